#!/usr/bin/env bash
# What the kernel hands back when a pod's namespace dies, and DELs that come late, never, or after the record is lost.
# Runs in the machine: scripts/lab --rails 3 --vfs 2 tests/lab/returned.sh
# lab: --rails 3 --vfs 2
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The story of sriov-cni#126, open since 2020. Two pods have three rails each, their VFs called net1 to net3 in both.
# The node loses the pods at once, as after a crash of the runtime: the kernel takes the namespaces apart and moves
# every VF to the host, under the name that it has. The VFs of the first namespace become the host's net1 to net3; the
# names are taken, so those of the second become dev<ifindex>. All are down, with the pods' MTU. sriov-cni's DEL looks
# for the name that it once gave, in a namespace that is gone, and stops; each later pod then fails, or gets a VF with
# somebody's old settings, and an operator sets the names right by hand. Here any of DEL, the next ADD, and `reap`
# puts everything right, alone.
two_pods_die() {
    local rail
    pod podA && pod podB
    for rail in 0 1 2; do
        add podA "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail" 0)")"
    done
    # One address on each rail: the second pod's VFs have none.
    for rail in 0 1 2; do
        add podB "net$((rail + 1))" "$(bare "$rail" "$(vf "$rail" 1)" "\"mac\": \"02:00:00:00:0b:0$rail\"")"
    done
    same "VFs left on the host" "" "$(ip -br link show | grep -oE 'ens.f0v.' || true)"
    kill_pod podA podB
    # So it is: else this test would test nothing.
    local names
    names=$(ip -json link show | jq -r '.[].ifname' | grep -E '^(net|dev)[0-9]+$' | sed 's/dev.*/dev/' | sort | tr '\n' ' ')
    same "what the kernel made of it" "dev dev dev net1 net2 net3 " "$names"
    same "MTU" 9000 "$(cat /sys/class/net/net2/mtu)"
}

# bare RAIL DEVICE [KEYS]: without an IPAM.
bare() { conf "$@" | jq -c 'del(.ipam)'; }

del_puts_right_what_two_dead_pods_left() {
    two_pods_die
    local rail
    # The second pod's first, whose names are further from home.
    for rail in 2 1 0; do
        del podB "net$((rail + 1))" "$(bare "$rail" "$(vf "$rail" 1)")"
    done
    for rail in 0 1 2; do
        del podA "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail" 0)")"
    done
    same "the node" "$pristine" "$(snapshot)"
}

# A runtime may have forgotten the configuration as well.
del_without_a_device_in_its_configuration_puts_right_too() {
    two_pods_die
    local rail
    for rail in 0 1 2; do
        del podB "net$((rail + 1))" "{\"cniVersion\": \"1.1.0\", \"name\": \"rail-$rail\", \"type\": \"rail-cni\"}"
        del podA "net$((rail + 1))" "{\"cniVersion\": \"1.1.0\", \"name\": \"rail-$rail\", \"type\": \"rail-cni\"}"
    done
    same "the node" "$pristine" "$(snapshot)"
}

# Without a DEL. A new pod wants the VFs, with the dead pods' names, addresses, MTU on them.
the_next_add_puts_right_what_two_dead_pods_left() {
    two_pods_die
    local rail
    pod podC && pod podD
    for rail in 0 1 2; do
        add podC "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail" 1)")"
        same "MAC of rail $rail" "$(mac_at_home "ens${rail}f0v1")" "$(ip -n podC -json link show "net$((rail + 1))" |
            jq -r '.[0].address')"
        in_pod podC ping -q -c 2 -W 5 -M "do" -s 8972 "172.$((16 + 2 * rail)).0.1" >/dev/null ||
            fail "the leaf port of rail $rail does not answer"
        add podD "net$((rail + 1))" "$(bare "$rail" "$(vf "$rail" 0)")"
    done
    for rail in 0 1 2; do
        del podC "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail" 1)")"
        del podD "net$((rail + 1))" "$(bare "$rail" "$(vf "$rail" 0)")"
    done
    same "the node" "$pristine" "$(snapshot)"
}

mac_at_home() { grep "^\[\"$1\"," <<<"$pristine" | jq -r '.[2]'; }

reap_puts_right_what_two_dead_pods_left() {
    two_pods_die
    local said
    said=$("$bin/railctl" reap --dry-run)
    same "what reap --dry-run would do" 6 "$(grep -c "^would return 0000:" <<<"$said")"
    [[ -e /sys/class/net/net1 ]] || fail "reap --dry-run did something"
    said=$("$bin/railctl" reap)
    same "what reap did" 6 "$(grep -c "^returned 0000:" <<<"$said")"
    same "the node" "$pristine" "$(snapshot)"
}

# sriov-cni#219: the DEL of a pod that is long gone comes when its VF is another pod's.
a_late_del_leaves_the_new_owner_alone() {
    local config before
    config=$(conf 0 "$(vf 0)")
    pod podA
    add podA net1 "$config"
    kill_pod podA
    pod podB
    add podB net1 "$config"
    before=$(rail_of podB)
    del podA net1 "$config"
    same "pod B" "$before" "$(rail_of podB)"
    in_pod podB ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "pod B has lost its rail"
    # And again, with the namespace's name in use by somebody else.
    pod podA
    del podA net1 "$config"
    same "pod B" "$before" "$(rail_of podB)"
    del podB net1 "$config"
}

# A path of a namespace leads to another pod's by now, which has the same VF under the same name; the DEL that comes has
# no record.
a_del_without_a_record_leaves_what_another_pod_has() {
    local config before
    config=$(conf 0 "$(vf 0)")
    pod podA
    add podA net1 "$config"
    before=$(rail_of podA)
    ln -s podA /run/netns/old
    del old net1 "$config"
    rm /run/netns/old
    same "the pod that lives" "$before" "$(rail_of podA)"
    in_pod podA ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "it has lost its rail"
    del podA net1 "$config"
}

# The IPv4 state: IPv6 has states that pass.
rail_of() {
    ip -n "$1" link show net1
    ip -n "$1" -4 addr show net1
    ip -n "$1" -4 rule show
    ip -n "$1" -4 route show table all
    state_files
}

# The pod has put its VF into a namespace below its own: neither in the pod nor on the host. It is on record until it is
# back, and then whoever comes next puts it right.
a_vf_in_a_namespace_below_the_pods_comes_back_with_its_end() {
    local config
    config=$(conf 0 "$(vf 0)")
    pod podA && pod podB && pod podX
    add podA net1 "$config"
    ip -n podA link set net1 down netns podX
    ip -n podX link set net1 name mine mtu 68 address 02:00:00:00:00:66
    del podA net1 "$config"
    refused "is attached to pod lab/podA" ADD podB net1 "$config"
    kill_pod podA
    refused "has not returned" ADD podB net1 "$config"
    kill_pod podX
    add podB net1 "$config"
    in_pod podB ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "the next pod has no rail"
    del podB net1 "$config"
    same "leases and records" "" "$(state_files)"
}

# The pod has pushed its VF into another pod, which has a rail of its own, and ends. The VF answers there: its address is
# kept, and status, doctor and reap name the other pod and the command that brings the VF home.
a_vf_in_another_pod_keeps_its_address_and_is_found() {
    local config vf told verb command
    vf=$(vf 0)
    config=$(conf 0 "$vf")
    pod podA && pod podB && pod podX
    add podA net1 "$config"
    add podX net1 "$(conf 1 "$(vf 1)")"
    ip -n podA link set net1 down netns podX name mine
    ip -n podX link set mine mtu 68 address 02:00:00:00:00:66
    ip -n podX addr add 172.16.0.0/31 dev mine
    ip -n podX link set mine up
    told=$("$bin/railctl" status) && fail "status has nothing to do"
    grep -F "it is mine in the namespace /run/netns/podX of pod lab/podX" <<<"$told" || fail "status: $told"
    del podA net1 "$config"
    kill_pod podA
    command="nsenter --net=/run/netns/podX ip link set mine netns 1"
    for verb in status doctor reap; do
        told=$("$bin/railctl" "$verb" || true)
        grep -F "of pod lab/podX" <<<"$told" | grep -F "\`$command\`" || fail "$verb: $told"
    done
    refused "of pod lab/podX" ADD podB net1 "$config"
    refused "172.16.0.0" ADD podB net1 "$(conf 0 "$(vf 0 1)")"
    $command
    "$bin/railctl" reap >/dev/null
    add podB net1 "$config"
    in_pod podB ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "the next pod has no rail"
    del podB net1 "$config"
    del podX net1 "$(conf 1 "$(vf 1)")"
    same "leases and records" "" "$(state_files)"
}

# sriov_numvfs is set to 0 under a pod: there is no device, and DEL must still end.
del_ends_when_the_vf_has_vanished() {
    local config numvfs macs=() number
    config=$(conf 2 "$(vf 2)")
    numvfs=/sys/bus/pci/devices/$(pf 2)/sriov_numvfs
    macs=("$(mac_of ens2f0v0)" "$(mac_of ens2f0v1)")
    pod pod1
    add pod1 net1 "$config"
    echo 0 >"$numvfs"
    del pod1 net1 "$config"
    same "leases and records" "" "$(state_files)"
    del pod1 net1 "$config"
    refused "no device" ADD pod1 net1 "$config"
    remake_vfs 2 "${macs[@]}"
}

# remake_vfs RAIL MAC...: as they were.
remake_vfs() {
    local rail=$1 vf number=0 found
    shift
    echo "$#" >"/sys/bus/pci/devices/$(pf "$rail")/sriov_numvfs"
    for vf in $(seq 0 $(($# - 1))); do
        found=("/sys/bus/pci/devices/$(vf "$rail" "$vf")/net/"*)
        ip link set "${found[0]##*/}" name "ens${rail}f0v$vf"
    done
    for vf; do
        ip link set "ens${rail}f0v$number" address "$vf"
        number=$((number + 1))
    done
}

# Here the function stays: it gets its driver back, and is as it was.
del_ends_when_the_driver_was_unbound() {
    local config vf
    vf=$(vf 1)
    config=$(conf 1 "$vf")
    pod pod1
    add pod1 net1 "$config"
    echo "$vf" >/sys/bus/pci/drivers/igbvf/unbind
    del pod1 net1 "$config"
    same "leases and records" "" "$(state_files)"
    same "the driver" igbvf "$(basename "$(readlink "/sys/bus/pci/devices/$vf/driver")")"
    same "the netdev" ens1f0v0 "$(ls "/sys/bus/pci/devices/$vf/net")"
}

# Somebody emptied /run. The pod still has the VF, and DEL says which: it returns to the host.
a_lost_record_does_not_lose_the_vf() {
    local config vf mac
    vf=$(vf 0) mac=$(mac_of ens0f0v0)
    config=$(conf 0 "$vf")
    pod pod1
    add pod1 net1 "$config"
    rm -rf /run/rail-cni
    del pod1 net1 "$config"
    same "in the pod" lo "$(ip -n pod1 -json link show | jq -r '.[].ifname')"
    same "the VF" "$mac down" "$(device ens0f0v0 | cut -d' ' -f3-)"
    # It serves the next pod.
    "$bin/railctl" reap --rebuild >/dev/null
    pod pod2
    add pod2 net1 "$config"
    del pod2 net1 "$config"
    ip link set ens0f0v0 mtu 1500
}

# The leaf knows the first VF's MAC for the address, and an entry that it believes lives for 15 s and more. The carrier of
# a VF comes after ADD, and what the kernel announces when the link comes up is lost then.
a_leaf_learns_which_vf_has_the_address_now() {
    local number mac
    ip -n leaf neigh flush dev leaf0
    for number in 0 1 0; do
        mac=$(mac_of "ens0f0v$number")
        pod "pod$number"
        add "pod$number" net1 "$(conf 0 "$(vf 0 "$number")")"
        # The leaf asks nobody; it is the pod that says something, of itself.
        in_leaf ping -q -c 3 -W 1 172.16.0.0 >/dev/null || fail "VF $number is not reached"
        same "MAC that the leaf has" "$mac" "$(ip -n leaf -json neigh show 172.16.0.0 | jq -r '.[0].lladdr')"
        del "pod$number" net1 "$(conf 0 "$(vf 0 "$number")")"
        ip netns del "pod$number"
    done
}

in_leaf() { ip netns exec leaf "$@"; }

# A tenant gives the VF a name and an altname that are no text. The kernel takes both home, and nobody says DEL.
no_name_keeps_the_vf() {
    local config
    config=$(conf 0 "$(vf 0)")
    pod podA && pod podB
    add podA net1 "$config"
    in_pod podA ip link set net1 down
    # sysfs has it below the name.
    in_pod podA sh -c 'echo 70000 >/sys/class/net/net1/gro_flush_timeout'
    in_pod podA ip link property add dev net1 altname $'\376\376'
    in_pod podA ip link set net1 name $'\377\377'
    kill_pod podA
    ip link show | grep -qaF $'\377\377' || fail "the VF did not come home by that name"
    add podB net1 "$config"
    same "altnames" "" "$(ip -n podB link show net1 | grep -a altname || true)"
    same "gro_flush_timeout" 0 "$(in_pod podB cat /sys/class/net/net1/gro_flush_timeout)"
    del podB net1 "$config"
}

run_cases no_name_keeps_the_vf del_puts_right_what_two_dead_pods_left del_without_a_device_in_its_configuration_puts_right_too \
    the_next_add_puts_right_what_two_dead_pods_left reap_puts_right_what_two_dead_pods_left \
    a_late_del_leaves_the_new_owner_alone a_del_without_a_record_leaves_what_another_pod_has a_vf_in_a_namespace_below_the_pods_comes_back_with_its_end \
    a_vf_in_another_pod_keeps_its_address_and_is_found \
    del_ends_when_the_vf_has_vanished del_ends_when_the_driver_was_unbound a_lost_record_does_not_lose_the_vf \
    a_leaf_learns_which_vf_has_the_address_now
