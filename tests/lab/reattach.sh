#!/usr/bin/env bash
# A driver that starts anew under a running pod: its netdev, and its RDMA device, are others then, and on the host.
# Runs in the machine: scripts/lab --rails 3 --vfs 2 --rdma tests/lab/reattach.sh
# lab: --rails 3 --vfs 2 --rdma
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# start_anew VF NAME: as after a reset of the firmware, with the name that udev gives.
start_anew() {
    echo "$1" >/sys/bus/pci/drivers/igbvf/unbind
    echo "$1" >/sys/bus/pci/drivers/igbvf/bind
    wait_until has_netdevs "/sys/bus/pci/devices/$1"
    rename_vf "$1" "$2"
}

# Its status is 1 while something is to be done.
state() { { "$bin/railctl" status --output json || true; } | jq -r '.attachments[0].state'; }

# network POD: what the rail is there, without numbers that a driver gives.
network() {
    in_pod "$1" ip -4 -br address show dev net1
    in_pod "$1" ip -4 route show table all dev net1 | sort
    in_pod "$1" ip rule
    cat /sys/class/net/ens2f0/address
    ip -json link show ens2f0 | jq -c '.[0].vfinfo_list[0] | del(.stats)'
}

a_vf_comes_back_with_its_settings() {
    local config result before
    config=$(conf 2 "$(vf 2)" '"rdma": "off", "gid": "off", "vlan": 100, "trust": "on", "spoofchk": "off",
        "mac": "02:00:00:00:02:07"')
    pod pod1
    add pod1 net1 "$config"
    result=$output
    before=$(network pod1)
    start_anew "$(vf 2)" ens2f0v0
    same "the state" lost "$(state)"
    check_fails "railctl reap --reattach" pod1 net1 "$config" "$result"
    contains "reap" "1 attached again" "$("$bin/railctl" reap --reattach)"
    same "the state" live "$(state)"
    same "the rail" "$before" "$(network pod1)"
    check pod1 net1 "$config" "$result"
    del pod1 net1 "$config"
}

# Also with the neighbour in another pod, and again and again.
each_of_two_vfs_comes_back_each_time() {
    local first second result round
    first=$(conf 2 "$(vf 2 0)" '"rdma": "off", "gid": "off"')
    second=$(conf 2 "$(vf 2 1)" '"rdma": "off", "gid": "off"' | jq -c 'del(.ipam)')
    pod pod1 && pod pod2
    add pod2 net1 "$second"
    add pod1 net1 "$first"
    result=$output
    for round in 1 2 3; do
        start_anew "$(vf 2 0)" ens2f0v0
        start_anew "$(vf 2 1)" ens2f0v1
        contains "round $round" "2 attached again, 0 not" "$("$bin/railctl" reap --reattach)"
        check pod1 net1 "$first" "$result"
    done
    del pod1 net1 "$first"
    del pod2 net1 "$second"
}

# The VFs of a PF end and are made again, as after a reset of the PF or of the slot.
a_vf_that_was_made_again_comes_back() {
    local config result before pf number
    pf=/sys/bus/pci/devices/$(pf 2)
    config=$(conf 2 "$(vf 2)" '"rdma": "off", "gid": "off", "vlan": 100, "trust": "on", "mac": "02:00:00:00:02:07"')
    pod pod1
    add pod1 net1 "$config"
    result=$output
    before=$(network pod1)
    echo 0 >"$pf/sriov_numvfs"
    same "without it" elsewhere "$(state)"
    same "reap" "0 returned, 0 remaining, 1 in use" "$("$bin/railctl" reap --reattach)"
    echo 2 >"$pf/sriov_numvfs"
    for number in 0 1; do
        wait_until has_netdevs "/sys/bus/pci/devices/$(vf 2 "$number")"
        rename_vf "$(vf 2 "$number")" "ens2f0v$number"
    done
    contains "reap" "1 attached again" "$("$bin/railctl" reap --reattach)"
    same "the rail" "$before" "$(network pod1)"
    check pod1 net1 "$config" "$result"
    del pod1 net1 "$config"
    restore_macs
}

# rename_vf VF NAME: as udev does.
rename_vf() {
    local found=("/sys/bus/pci/devices/$1/net/"*)
    [[ ${found[0]##*/} == "$2" ]] || ip link set "${found[0]##*/}" name "$2"
}

# New VFs have new MACs, of which the next case is to know nothing.
restore_macs() {
    local name mac
    for name in ens2f0v0 ens2f0v1; do
        mac=$(grep "^\[\"$name\"," <<<"$pristine" | jq -r '.[2]')
        [[ $(mac_of "$name") == "$mac" ]] || ip link set "$name" address "$mac"
    done
}

# The RDMA device comes some time after the netdev, with another index.
an_rdma_device_comes_back_with_its_vf() {
    local config result
    rdma link add rxe00 type rxe netdev ens0f0v0
    config=$(conf 0 "$(vf 0)" '"rdma": "required", "rdmaDeviceName": "rail0"')
    pod pod1
    add pod1 net1 "$config"
    result=$output
    start_anew "$(vf 0)" ens0f0v0
    contains "before there is one" "had 1 RDMA devices, and has 0" "$("$bin/railctl" reap --reattach || true)"
    same "the state" lost "$(state)"
    # Another device takes the lowest index.
    rdma link add rxe10 type rxe netdev ens1f0v0
    rdma link add rxe00 type rxe netdev ens0f0v0
    contains "reap" "1 attached again" "$("$bin/railctl" reap --reattach)"
    same "in the pod" "rail0 net1" "$(in_pod pod1 rdma -j link show | jq -r '[.[] | "\(.ifname) \(.netdev)"] | join(", ")')"
    check pod1 net1 "$config" "$result"
    del pod1 net1 "$config"
    same "on the host" "rxe00 rxe10" "$(rdma -j link show | jq -r '.[].ifname' | sort | xargs)"
    rdma link delete rxe00 && rdma link delete rxe10
}

# sriov_numvfs, or the PF's driver: a pod that ends meanwhile ends as always.
a_pod_whose_rail_is_lost_ends() {
    local config
    config=$(conf 2 "$(vf 2)" '"rdma": "off", "gid": "off", "mac": "02:00:00:00:02:07"')
    pod pod1
    add pod1 net1 "$config"
    start_anew "$(vf 2)" ens2f0v0
    del pod1 net1 "$config"
    same "a second try" "0 returned, 0 remaining, 0 in use" "$("$bin/railctl" reap --reattach)"
}

rdma system set netns exclusive
run_cases a_vf_comes_back_with_its_settings a_vf_that_was_made_again_comes_back each_of_two_vfs_comes_back_each_time \
    an_rdma_device_comes_back_with_its_vf a_pod_whose_rail_is_lost_ends
