#!/usr/bin/env bash
# VFs that a program in user space drives: bound to vfio-pci, they have no netdev.
# Runs in the machine: scripts/lab --rails 2 --vfs 2 --iommu tests/lab/userspace.sh
# lab: --rails 2 --vfs 2 --iommu
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

refuser=$target/debug/examples/refuser
[[ -x $refuser ]] || die "no $refuser: cargo build --example refuser"

# to_driver FUNCTION DRIVER
to_driver() {
    local at=/sys/bus/pci/devices/$1
    [[ ! -e $at/driver ]] || echo "$1" >"$at/driver/unbind"
    echo "$2" >"$at/driver_override"
    echo "$1" >/sys/bus/pci/drivers_probe
    [[ $(basename "$(readlink "$at/driver")") == "$2" ]] || fail "$1 does not bind to $2"
}

# The first VF of rail 0 is bound for all cases of this machine.
bind() {
    [[ -e /sys/kernel/iommu_groups/0 ]] || return
    to_driver "$(vf 0)" vfio-pci
    # igb forgets a MAC that it did not set itself when the VF is reset (igb_vf_reset_event).
    ip link set ens0f0 vf 0 mac 02:00:00:00:0a:01
}

vfio() { conf 0 "$(vf 0)"; }

it_is_leased_and_reported_and_nothing_is_moved() {
    local links group
    group=$(readlink "/sys/bus/pci/devices/$(vf 0)/iommu_group")
    [[ -c /dev/vfio/${group##*/} ]] || fail "no /dev/vfio/${group##*/}"
    pod pod1
    links=$(ip -json link show)
    add pod1 net1 "$(vfio)"
    same "pciID" "$(vf 0)" "$(jq -r '.interfaces[0].pciID' <<<"$output")"
    same "interface" "net1 /run/netns/pod1" "$(jq -r '.interfaces[0] | "\(.name) \(.sandbox)"' <<<"$output")"
    same "address" "172.16.0.0/31 172.16.0.1" "$(jq -r '.ips[0] | "\(.address) \(.gateway)"' <<<"$output")"
    same "the pod" "lo" "$(ip -n pod1 -json link show | jq -r '.[].ifname')"
    same "rules of the pod" "" "$(ip -n pod1 rule show | grep -v 'lookup \(local\|main\|default\)' || true)"
    same "the host's links" "$links" "$(ip -json link show)"
    check pod1 net1 "$(vfio)" "$output"
    del pod1 net1 "$(vfio)"
    same "leases and records" "" "$(state_files)"
}

it_is_nobody_elses_while_its_pod_lives() {
    pod pod1 && pod pod2
    add pod1 net1 "$(vfio)"
    refused "attached to" ADD pod2 net1 "$(vfio)"
    del pod2 net1 "$(vfio)"
    del pod1 net1 "$(vfio)"
    add pod2 net1 "$(vfio)"
    del pod2 net1 "$(vfio)"
}

# Its pod dies without a DEL: the next one has it at once.
a_dead_pod_does_not_keep_it() {
    pod pod1
    add pod1 net1 "$(vfio)"
    kill_pod pod1
    pod pod2
    add pod2 net1 "$(vfio)"
    del pod1 net1 "$(vfio)"
    pod pod3
    refused "attached to" ADD pod3 net1 "$(vfio)"
    del pod2 net1 "$(vfio)"
}

del_works_after_a_lost_record_too() {
    pod pod1
    add pod1 net1 "$(vfio)"
    rm -rf /run/rail-cni
    del pod1 net1 "$(vfio)"
    del pod1 net1 "$(vfio)"
    "$bin/railctl" reap --rebuild >/dev/null
    add pod1 net1 "$(vfio)"
    del pod1 net1 "$(vfio)"
}

# A pool may hold both kinds: the one with a netdev is attached as ever.
its_neighbour_with_a_netdev_is_attached_as_ever() {
    pod pod1
    add pod1 net1 "$(conf 0 "$(vf 0 1)")"
    same "link" "9000" "$(ip -n pod1 -json link show net1 | jq -r '.[0].mtu')"
    del pod1 net1 "$(conf 0 "$(vf 0 1)")"
}

# Sets $at, $method and $config: pod1 has the VF with a VLAN, and a reset at its end.
add_with_reset() {
    at=/sys/bus/pci/devices/$(vf 0)
    method=$(cat "$at/reset_method")
    [[ $method == *flr* ]] || skip "this VF has no function-level reset: $method"
    config=$(jq -c '. + {vlan: 100, resetOnDel: "flr"}' <<<"$(vfio)")
    pod pod1
    add pod1 net1 "$config"
}

# end_refused CONF: DEL of pod1 while the PF refuses to take the VLAN back.
end_refused() {
    status=0
    output=$(CNI_COMMAND=DEL CNI_CONTAINERID=pod1 CNI_NETNS=/run/netns/pod1 CNI_IFNAME=net1 CNI_PATH=$bin \
        "$refuser" /run/refusals vlan=0 "$bin/rail-cni" <<<"$1") || status=$?
    ((status == 0)) || fail "DEL: $output"
}

pending() {
    find /run/rail-cni/pending -type f -exec jq -r '.steps[] | select(.state | type == "object")
        | "\(.change | if type == "object" then keys[0] else . end): \(.state.failed.why)"' {} +
}

# Sets $keeper to a program that has the VF open, until close_vf or the end of the case.
open_vf() {
    local group
    group=$(readlink "/sys/bus/pci/devices/$(vf 0)/iommu_group")
    sleep 1000 <>"/dev/vfio/${group##*/}" &
    keeper=$!
    trap 'kill "$keeper" 2>/dev/null || true' EXIT
    wait_until has_open "$keeper" "/dev/vfio/${group##*/}"
}

# has_open PROCESS FILE: is it its standard input? A shell has it open before it becomes `sleep`.
has_open() { [[ $(readlink "/proc/$1/fd/0") == "$2" && $(<"/proc/$1/comm") == sleep ]]; }

close_vf() {
    kill "$keeper"
    wait "$keeper" || true
}

# A program opened the VF before the debt was tried again: a reset would tear the device out of its hands, and without
# its VLAN it would be on another network.
what_a_dead_pod_owes_waits_until_nothing_has_the_vf_open() {
    local at method config
    add_with_reset
    # The kernel refuses the reset, too.
    printf '\n' >"$at/reset_method"
    end_refused "$config"
    contains "what is owed" "reset: " "$(pending)"
    contains "what is owed" "vf: " "$(pending)"
    printf '%s\n' "$method" >"$at/reset_method"
    open_vf
    output=$("$bin/railctl" reap 2>&1) && fail "reap succeeds: $output"
    contains "reap" "waiting until nothing uses the device" "$output"
    contains "reap" "process $keeper (sleep)" "$output"
    same "the VLAN" "100" "$(ip -json link show ens0f0 | jq -r '.[0].vfinfo_list[0].vlan_list[0].vlan // .[0].vfinfo_list[0].vlan')"
    contains "what is owed" "reset: waiting" "$(pending)"
    close_vf
    "$bin/railctl" reap >/dev/null
    same "what is owed" "" "$(pending)"
}

# Before any undo was tried: the pod died, and a virtual machine was started with its VF.
a_dead_pods_vf_is_left_alone_while_something_has_it_open() {
    local at method config
    add_with_reset
    kill_pod pod1
    open_vf
    ip link set ens0f0 vf 0 vlan 7
    # As the next pod's ADD and the late DEL see it.
    pod pod2
    refused "process $keeper (sleep)" ADD pod2 net1 "$(vfio)"
    del pod1 net1 "$config"
    "$bin/railctl" reap >/dev/null 2>&1 || true
    contains "what is owed" "reset: waiting" "$(pending)"
    contains "the VF" "vlan 7," "$(ip link show ens0f0 | grep 'vf 0')"
    close_vf
    "$bin/railctl" reap >/dev/null
    same "what is owed" "" "$(pending)"
}

# The reset was done when the pod ended, and only the VLAN is owed: by the second try, somebody else may have the VF.
a_second_try_does_not_reset_what_was_reset() {
    local at method config
    add_with_reset
    end_refused "$config"
    contains "what is owed" "vf: " "$(pending)"
    [[ $(pending) != *reset:* ]] || fail "a reset is owed: $(pending)"
    # A reset would fail, and be owed.
    printf '\n' >"$at/reset_method"
    output=$("$bin/railctl" reap 2>&1) || fail "reap: $output"
    [[ $output != *"the reset of"* ]] || fail "reap tries a reset: $output"
    printf '%s\n' "$method" >"$at/reset_method"
    same "what is owed" "" "$(pending)"
}

# A pod had a rail with a netdev, and somebody bound its VF to vfio-pci, or to nothing: DEL gives it its driver, and its name.
a_vf_that_was_left_with_another_driver_gets_its_own() {
    local neighbour at driver name way
    neighbour=$(vf 0 1)
    at=/sys/bus/pci/devices/$neighbour
    driver=$(basename "$(readlink "$at/driver")")
    name=$(ls "$at/net")
    for way in vfio-pci nothing; do
        pod pod1
        add pod1 net1 "$(conf 0 "$neighbour")"
        case $way in
            vfio-pci) to_driver "$neighbour" vfio-pci ;;
            nothing) echo "$neighbour" >"$at/driver/unbind" ;;
        esac
        del pod1 net1 "$(conf 0 "$neighbour")"
        same "the driver after $way" "$driver" "$(basename "$(readlink "$at/driver")")"
        same "the only driver after $way" '(null)' "$(<"$at/driver_override")"
        same "the netdev after $way" "$name" "$(ls "$at/net")"
        same "what is pending" "" "$(pending)"
        ip netns del pod1
    done
    pod pod2
    add pod2 net1 "$(conf 0 "$neighbour")"
    same "link" "9000" "$(ip -n pod2 -json link show net1 | jq -r '.[0].mtu')"
    del pod2 net1 "$(conf 0 "$neighbour")"
}

bind
run_cases it_is_leased_and_reported_and_nothing_is_moved it_is_nobody_elses_while_its_pod_lives \
    a_dead_pod_does_not_keep_it del_works_after_a_lost_record_too \
    what_a_dead_pod_owes_waits_until_nothing_has_the_vf_open \
    a_dead_pods_vf_is_left_alone_while_something_has_it_open a_second_try_does_not_reset_what_was_reset \
    its_neighbour_with_a_netdev_is_attached_as_ever \
    a_vf_that_was_left_with_another_driver_gets_its_own
