#!/usr/bin/env bash
# What is set for a VF through its PF: on the emulated igb, which takes some of it and refuses the rest, and on
# netdevsim, which takes all of it but has no VFs.
# Runs in the machine: scripts/lab --rails 2 --vfs 2 --iommu --netdevsim tests/lab/vf.sh
# lab: --rails 2 --vfs 2 --iommu --netdevsim
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,5s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# of_vf PF NUMBER FILTER: what the PF says.
of_vf() { ip -json link show "$1" | jq -c ".[0].vfinfo_list[] | select(.vf == $2) | $3"; }

readonly settings='[(.vlan_list[0].vlan // 0), (.vlan_list[0].qos // 0), .spoofchk, .trust, .rate.max_tx]'

all_that_igb_has_is_set_checked_and_restored() {
    local config result
    config=$(conf 0 "$(vf 0)" '"vlan": 100, "vlanQoS": 3, "spoofchk": "off", "trust": "on", "max_tx_rate": 200')
    pod pod1
    add pod1 net1 "$config"
    result=$output
    same "the VF's settings" '[100,3,false,true,200]' "$(of_vf ens0f0 0 "$settings")"
    same "its neighbour's" '[0,0,true,false,0]' "$(of_vf ens0f0 1 "$settings")"
    check pod1 net1 "$config" "$result"

    # Somebody changes one after the other behind our back.
    ip link set ens0f0 vf 0 vlan 7 qos 3
    check_fails vlan pod1 net1 "$config" "$result"
    ip link set ens0f0 vf 0 vlan 100 qos 3
    ip link set ens0f0 vf 0 trust off
    check_fails trust pod1 net1 "$config" "$result"
    ip link set ens0f0 vf 0 trust on
    ip link set ens0f0 vf 0 max_tx_rate 300
    check_fails max_tx_rate pod1 net1 "$config" "$result"
    ip link set ens0f0 vf 0 max_tx_rate 200
    ip link set ens0f0 vf 0 spoofchk on
    check_fails spoofchk pod1 net1 "$config" "$result"

    del pod1 net1 "$config"
    same "after DEL" '[0,0,true,false,0]' "$(of_vf ens0f0 0 "$settings")"
}

# The counts of tests/netns/frugal.rs, where a VF has a driver, a PF and settings of its own.
calls_count() {
    traced -c -o /run/trace -- "$1" pod1 "$2" >/run/answer 2>&1 || fail "$1 below strace: $(</run/answer)"
    awk '$NF == "total" { print $4 }' /run/trace
}

a_vf_of_a_driver_costs_few_system_calls() {
    local config added deleted
    has strace || skip "no strace here"
    config=$(conf 0 "$(vf 0)")
    pod pod1
    # The first call makes the folders.
    add pod1 net1 "$config"
    del pod1 net1 "$config"
    added=$(calls_count ADD "$config")
    deleted=$(calls_count DEL "$config")
    echo "system calls: ADD $added, DEL $deleted"
    ((added <= 640)) || fail "ADD makes $added system calls"
    ((deleted <= 425)) || fail "DEL makes $deleted system calls"
}

# The operator's own settings come back, not the driver's defaults.
what_was_set_before_comes_back() {
    local config
    config=$(conf 0 "$(vf 0)" '"vlan": 100, "trust": "on"')
    ip link set ens0f0 vf 0 vlan 55 qos 2
    ip link set ens0f0 vf 0 max_tx_rate 400
    pod pod1
    add pod1 net1 "$config"
    del pod1 net1 "$config"
    same "after DEL" '[55,2,true,false,400]' "$(of_vf ens0f0 0 "$settings")"
    ip link set ens0f0 vf 0 vlan 0
    ip link set ens0f0 vf 0 max_tx_rate 0
}

# Once the PF has set it, igb lets the VF itself change it no more: neither to the same, nor back.
a_mac_is_set_twice_and_goes_back() {
    local mac config before
    before=$(mac_of ens1f0v0)
    pod pod1
    for mac in 02:00:00:00:0c:01 02:00:00:00:0c:02; do
        config=$(conf 1 "$(vf 1)" "\"mac\": \"$mac\"")
        add pod1 net1 "$config"
        same "MAC in the result" "$mac" "$(jq -r '.interfaces[0].mac' <<<"$output")"
        same "MAC in the pod" "$mac" "$(ip -n pod1 -json link show net1 | jq -r '.[0].address')"
        same "MAC for the PF" "\"$mac\"" "$(of_vf ens1f0 0 .address)"
        check pod1 net1 "$config" "$output"
        in_pod pod1 ping -q -c 3 -W 5 -M "do" -s 8972 172.18.0.1 >/dev/null || fail "the leaf port does not answer"
        same "MAC that the leaf port sees" "$mac" "$(ip -n leaf -json neigh show 172.18.0.0 | jq -r '.[0].lladdr')"
        del pod1 net1 "$config"
        same "MAC after DEL" "$before" "$(mac_of ens1f0v0)"
    done
    # A MAC that the VF has already is not set by the PF.
    config=$(conf 1 "$(vf 1)" "\"mac\": \"$before\"")
    add pod1 net1 "$config"
    same "MAC in the pod" "$before" "$(ip -n pod1 -json link show net1 | jq -r '.[0].address')"
    same "MAC on record for the PF" null \
        "$(jq '.steps[].change | objects | select(.vf) | .vf.wanted.mac' /run/rail-cni/attachments/*)"
    del pod1 net1 "$config"
    # A VF without a wish keeps its own, also when it goes up.
    add pod1 net1 "$(conf 1 "$(vf 1)")"
    same "MAC without a wish" "$before" "$(ip -n pod1 -json link show net1 | jq -r '.[0].address')"
    in_pod pod1 ping -q -c 3 -W 5 172.18.0.1 >/dev/null || fail "the leaf port does not answer"
    del pod1 net1 "$(conf 1 "$(vf 1)")"
}

# A card is exchanged under a living pod. The machine has one, so the record is made to tell of another.
a_card_that_was_exchanged_keeps_its_own_mac() {
    local config mac=02:00:00:00:0c:03 other=02:00:00:00:0c:04 before
    before=$(mac_of ens1f0v0)
    config=$(conf 1 "$(vf 1)" "\"mac\": \"$mac\"")
    pod pod1
    add pod1 net1 "$config"
    same "PF on record" "$(ip -json link show ens1f0 | jq '.[0].permaddr // .[0].address')" \
        "$(jq '.steps[].change | objects | select(.vf) | .vf.pf_permanent_mac' /run/rail-cni/attachments/*)"
    sed -i -E "s/(\"pf_permanent_mac\": ?\")[^\"]*/\1$other/" /run/rail-cni/attachments/*
    : >"/run/rail-cni/locks/device-$(vf 1)"
    del pod1 net1 "$config"
    same "MAC after DEL" "$mac" "$(mac_of ens1f0v0)"
    same "MAC for the PF" "\"$mac\"" "$(of_vf ens1f0 0 .address)"
    ip link set ens1f0 vf 0 mac "$before"
    ip link set ens1f0v0 up
    ip link set ens1f0v0 down
    same "MAC by hand" "$before" "$(mac_of ens1f0v0)"
}

# igb refuses each of these, but for a rate that its link does not have; what was set before it is undone, and the VF is
# where it was.
what_igb_refuses_is_rolled_back_completely() {
    local keys key
    pod pod1
    for keys in 'vlanProto|"trust": "on", "vlan": 100, "vlanProto": "802.1ad"' \
        'link_state|"vlan": 100, "spoofchk": "off", "trust": "on", "link_state": "disable"' \
        'min_tx_rate|"vlan": 100, "trust": "on", "min_tx_rate": 100, "max_tx_rate": 200' \
        "of the PF's link|\"vlan\": 100, \"trust\": \"on\", \"max_tx_rate\": 2000" \
        'vlanProto|"mac": "02:00:00:00:0d:01", "vlan": 100, "vlanProto": "802.1ad"'; do
        key=${keys%%|*}
        cni ADD pod1 net1 "$(conf 0 "$(vf 0)" "${keys#*|}")"
        ((status == 1)) || fail "$keys: status $status: $output"
        # VLAN and protocol are one attribute, so are the two rates.
        contains "the message names its key" "${key/Proto/}" "$(jq -r .msg <<<"$output")"
        same "after $keys" "$pristine" "$(snapshot)"
        same "the pod after $keys" lo "$(ip -n pod1 -json link show | jq -r '.[].ifname')"
    done
}

# The driver is away meanwhile, and comes back with another netdev. The PF forgets what it has set for a VF that is reset.
a_vf_that_is_reset_is_as_it_was() {
    local at config before way index
    at=/sys/bus/pci/devices/$(vf 0)
    [[ $(cat "$at/reset_method") == *flr* ]] || skip "this VF has no function-level reset"
    # igb forgets a MAC that it did not set itself when the VF is reset (igb_vf_reset_event).
    ip link set ens0f0 vf 0 mac "$(mac_of ens0f0v0)"
    config=$(conf 0 "$(vf 0)" '"vlan": 100, "trust": "on", "resetOnDel": "flr"')
    pod podB
    before=$(snapshot)
    for way in del add reap; do
        pod podA
        index=$(cat /sys/class/net/ens0f0v0/ifindex)
        add podA net1 "$config"
        ip -n podA link set net1 alias theirs
        case $way in
            del) del podA net1 "$config" ;;
            add)
                kill_pod podA
                add podB net1 "$config"
                same "alias of the pod before" false "$(ip -n podB -json link show net1 | jq '.[0].ifalias == "theirs"')"
                del podB net1 "$config"
                ;;
            reap) kill_pod podA && "$bin/railctl" reap >/dev/null ;;
        esac
        same "after $way" "$before" "$(snapshot)"
        [[ $(cat /sys/class/net/ens0f0v0/ifindex) != "$index" ]] || fail "after $way: the driver was not bound again"
        same "pending after $way" "" "$(find /run/rail-cni/pending -type f)"
        ip netns del podA 2>/dev/null || true
    done
}

# sriov-cni#219, with what made it hurt: the late DEL of a dead pod resets the VLAN of the living one.
a_late_del_leaves_vlan_and_mac_of_the_new_owner_alone() {
    local old new
    old=$(conf 0 "$(vf 0)" '"vlan": 100, "trust": "on"')
    new=$(conf 0 "$(vf 0)" '"vlan": 200, "vlanQoS": 5')
    pod podA
    add podA net1 "$old"
    kill_pod podA
    pod podB
    add podB net1 "$new"
    same "settings of pod B" '[200,5,true,false,0]' "$(of_vf ens0f0 0 "$settings")"
    del podA net1 "$old"
    same "settings of pod B" '[200,5,true,false,0]' "$(of_vf ens0f0 0 "$settings")"
    same "pod B" "lo net1" "$(ip -n podB -json link show | jq -r '.[].ifname' | tr '\n' ' ' | sed 's/ $//')"
    del podB net1 "$new"
}

# The kernel gives back the netdev; VLAN, trust and rate stay in the PF until somebody takes them out.
reap_takes_the_settings_of_dead_pods_out() {
    pod podA && pod podB
    add podA net1 "$(conf 0 "$(vf 0)" '"vlan": 100, "trust": "on", "max_tx_rate": 100')"
    add podB net1 "$(conf 1 "$(vf 1 1)" '"vlan": 300, "vlanQoS": 6, "spoofchk": "off"')"
    kill_pod podA podB
    same "settings of a dead pod" '[100,0,true,true,100]' "$(of_vf ens0f0 0 "$settings")"
    "$bin/railctl" reap >/dev/null
    same "the node" "$pristine" "$(snapshot)"
}

# The leaf port of rail 0 has its address on VLAN 100, and then without a tag again.
leaf_on_vlan() {
    ip netns exec leaf modprobe 8021q
    ip -n leaf link add leaf0.100 link leaf0 type vlan id 100
    ip -n leaf addr del 172.16.0.1/31 dev leaf0
    ip -n leaf addr add 172.16.0.1/31 dev leaf0.100
    ip -n leaf link set leaf0.100 up
}
leaf_off_vlan() {
    ip -n leaf link del leaf0.100
    ip -n leaf addr add 172.16.0.1/31 dev leaf0
}

# The VLAN is in force: the leaf port sees the tag.
frames_of_the_pod_carry_the_vlan() {
    local config=
    config=$(conf 0 "$(vf 0)" '"vlan": 100')
    leaf_on_vlan
    pod pod1
    add pod1 net1 "$config"
    local answered=0
    in_pod pod1 ping -q -c 3 -W 5 172.16.0.1 >/dev/null || answered=$?
    del pod1 net1 "$config"
    leaf_off_vlan
    ((answered == 0)) || fail "no answer on VLAN 100"
}

# So does the question for the gateway, whose tag the PF puts on.
a_gateway_is_asked_on_the_vlan_of_the_vf() {
    local probe='"gatewayProbe": "require", "gatewayProbeTimeout": "3s"' with without result
    with=$(conf 0 "$(vf 0)" "\"vlan\": 100, $probe")
    without=$(conf 0 "$(vf 0)" "$probe")
    pod pod1
    refused "rail 0: gateway 172.16.0.1 did not answer ARP on net1 ($(vf 0) of PF $(pf 0))" ADD pod1 net1 "$with"
    same "the node after a refused ADD" "$pristine" "$(snapshot)"
    add pod1 net1 "$without"
    del pod1 net1 "$without"
    leaf_on_vlan
    cni ADD pod1 net1 "$with"
    ((status == 0)) || { leaf_off_vlan && fail "on its VLAN: $output"; }
    result=$output
    check pod1 net1 "$with" "$result"
    leaf_off_vlan
    check_fails "did not answer ARP" pod1 net1 "$with" "$result"
    del pod1 net1 "$with"
    refused "did not answer ARP" ADD pod1 net1 "$with"
}

# Bound to vfio-pci: settings and the administrative MAC are all that a VF can be given.
a_vf_for_user_space_gets_its_settings_too() {
    local vf config
    vf=$(vf 1 1)
    echo "$vf" >"/sys/bus/pci/devices/$vf/driver/unbind"
    echo vfio-pci >"/sys/bus/pci/devices/$vf/driver_override"
    echo "$vf" >/sys/bus/pci/drivers_probe
    local before
    before=$(snapshot)
    config=$(conf 1 "$vf" '"mac": "02:00:00:00:0e:01", "vlan": 100, "trust": "on"')
    pod pod1
    add pod1 net1 "$config"
    same "MAC in the result" "02:00:00:00:0e:01" "$(jq -r '.interfaces[0].mac' <<<"$output")"
    same "MAC for the PF" '"02:00:00:00:0e:01"' "$(of_vf ens1f0 1 .address)"
    same "settings" '[100,0,true,true,0]' "$(of_vf ens1f0 1 "$settings")"
    check pod1 net1 "$config" "$output"
    del pod1 net1 "$config"
    same "after DEL" "$before" "$(snapshot)"
    home_from_vfio "$vf" ens1f0v1
}

# --- netdevsim -------------------------------------------------------------------------------------------------

# A PF `simpf` with VFs on netdevsim 1, a port `simvf` of netdevsim 2 in the place of VF 0, and a sysfs that says so.
make_simulated_pf() {
    local sys=/run/simsys pf=0000:21:00.0 vf=0000:21:10.0 found number
    echo "1 1" >/sys/bus/netdevsim/new_device
    echo "2 1" >/sys/bus/netdevsim/new_device
    found=(/sys/bus/netdevsim/devices/netdevsim1/net/*)
    ip link set "${found[0]##*/}" name simpf
    found=(/sys/bus/netdevsim/devices/netdevsim2/net/*)
    ip link set "${found[0]##*/}" name simvf
    ip link set simpf mtu 9000 up
    echo 200 >/sys/kernel/debug/netdevsim/netdevsim1/max_vfs
    echo 200 >/sys/bus/netdevsim/devices/netdevsim1/sriov_numvfs
    mkdir -p "$sys"/bus/pci/devices "$sys/devices/$pf/net/simpf" "$sys/bus/pci/drivers/netdevsim"
    mkdir -p "$sys/class/net/simpf" "$sys/class/net/simvf" "$sys/bus/auxiliary/devices"
    for number in 0 150; do
        vf=0000:21:10.$((number / 100))
        mkdir -p "$sys/devices/$vf"
        ln -s "../$pf" "$sys/devices/$vf/physfn"
        ln -s "../$vf" "$sys/devices/$pf/virtfn$number"
        ln -s "$sys/bus/pci/drivers/netdevsim" "$sys/devices/$vf/driver"
        ln -s "$sys/devices/$vf" "$sys/bus/pci/devices/$vf"
    done
    ln -s "$sys/devices/$pf" "$sys/bus/pci/devices/$pf"
    ln -s "$sys/devices/$pf" "$sys/class/net/simpf/device"
    echo 200 >"$sys/devices/$pf/sriov_numvfs"
    printf '{"nodeName": "lab-node", "sysfsRoot": "%s", "runDir": "/run/rail-cni"}\n' "$sys" >/run/simnode.json
}

# simulated NUMBER KEYS: the VF whose netdev is simvf.
simulated() {
    local sys=/run/simsys vf=0000:21:10.$(($1 / 100))
    rm -rf "$sys"/devices/0000:21:10.*/net "$sys/class/net/simvf/device"
    mkdir -p "$sys/devices/$vf/net/simvf"
    ln -s "$sys/devices/$vf" "$sys/class/net/simvf/device"
    config=$(conf 0 "$vf" "$2" | jq -c 'del(.ipam, .rail)')
    export RAIL_CNI_NODE_CONFIG=/run/simnode.json
}

readonly everything='[.address, .vlan_list[0].vlan, .vlan_list[0].qos, .vlan_list[0].protocol, .spoofchk, .trust,
    .link_state, .rate.min_tx, .rate.max_tx]'

everything_is_set_and_restored_on_netdevsim() {
    local config number result
    pod pod1
    # The second is past what one reply of the kernel holds.
    for number in 0 150; do
        simulated "$number" '"mac": "02:00:00:00:0f:01", "vlan": 100, "vlanQoS": 3, "vlanProto": "802.1ad",
            "spoofchk": "on", "trust": "on", "link_state": "enable", "min_tx_rate": 100, "max_tx_rate": 200'
        add pod1 net1 "$config"
        result=$output
        same "settings of VF $number" \
            '["02:00:00:00:0f:01",100,3,"802.1ad",true,true,"enable",100,200]' "$(of_vf simpf "$number" "$everything")"
        check pod1 net1 "$config" "$result"
        ip link set simpf vf "$number" state disable
        check_fails link_state pod1 net1 "$config" "$result"
        del pod1 net1 "$config"
        same "the node after DEL" "$pristine" "$(snapshot)"
    done
}

# policy.vfKeys may allow one of the two: the other is the operator's.
a_rate_that_the_network_does_not_give_is_kept() {
    local config
    simulated 0 '"min_tx_rate": 100'
    ip link set simpf vf 0 max_tx_rate 300
    pod pod1
    add pod1 net1 "$config"
    same rates '[100,300]' "$(of_vf simpf 0 '[.rate.min_tx, .rate.max_tx]')"
    check pod1 net1 "$config" "$output"
    del pod1 net1 "$config"
    same "rates after DEL" '[0,300]' "$(of_vf simpf 0 '[.rate.min_tx, .rate.max_tx]')"
    refused "min_tx_rate of 400 and a max_tx_rate of 300" ADD pod1 net1 "$(jq -c '.min_tx_rate = 400' <<<"$config")"
    ip link set simpf vf 0 max_tx_rate 0
}

# GUIDs belong to InfiniBand: netdevsim refuses them.
a_refused_guid_is_rolled_back() {
    local config
    simulated 0 '"vlan": 100, "trust": "on"'
    config=$(jq -c '.runtimeConfig.infinibandGUID = "00:11:22:33:44:55:66:77"' <<<"$config")
    pod pod1
    cni ADD pod1 net1 "$config"
    ((status == 1)) || fail "status $status: $output"
    contains "the message" GUID "$output"
    same "the node" "$pristine" "$(snapshot)"
}

make_simulated_pf
run_cases a_vf_of_a_driver_costs_few_system_calls all_that_igb_has_is_set_checked_and_restored what_was_set_before_comes_back \
    a_mac_is_set_twice_and_goes_back a_card_that_was_exchanged_keeps_its_own_mac what_igb_refuses_is_rolled_back_completely \
    a_vf_that_is_reset_is_as_it_was a_late_del_leaves_vlan_and_mac_of_the_new_owner_alone reap_takes_the_settings_of_dead_pods_out \
    frames_of_the_pod_carry_the_vlan a_gateway_is_asked_on_the_vlan_of_the_vf \
    a_vf_for_user_space_gets_its_settings_too \
    everything_is_set_and_restored_on_netdevsim a_rate_that_the_network_does_not_give_is_kept a_refused_guid_is_rolled_back
