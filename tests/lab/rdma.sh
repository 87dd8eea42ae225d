#!/usr/bin/env bash
# An RDMA device on a VF, in a system whose RDMA namespaces are exclusive. The kernel's own rdma_rxe refuses to be
# moved: what is seen here is the refusal, and that nothing is left of it. rdma-move.sh has devices that move.
# Runs in the machine: scripts/lab --rails 1 --vfs 2 tests/lab/rdma.sh
# lab: --rails 1 --vfs 2
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,6s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Exclusive mode can be chosen only while there is no other namespace.
make_exclusive() {
    ip netns del leaf
    modprobe rdma_rxe
    # The kernel takes a namespace apart after the fact.
    wait_until rdma system set netns exclusive
    make_device
}

make_device() {
    rdma link show | grep -q 'rxe0/1' && return
    ip link set ens0f0v0 up
    rdma link add rxe0 type rxe netdev ens0f0v0
    ip link set ens0f0v0 down
}

# The node's sysfs, with rxe0 below the first VF.
show_device_in_sysfs() {
    local sys=/run/simsys function from
    mkdir -p "$sys/class" "$sys"/bus/{pci,auxiliary}/devices "$sys/devices"
    ln -s /sys/class/net "$sys/class/net"
    ln -s /sys/class/infiniband "$sys/class/infiniband"
    for function in "$(pf 0)" "$(vf 0)"; do
        from=/sys/bus/pci/devices/$function
        mkdir "$sys/devices/$function"
        ln -s "$from"/{net,driver,vendor,device} "$sys/devices/$function/"
        ln -s "$sys/devices/$function" "$sys/bus/pci/devices/$function"
    done
    ln -s "../$(pf 0)" "$sys/devices/$(vf 0)/physfn"
    ln -s "../$(vf 0)" "$sys/devices/$(pf 0)/virtfn0"
    ln -s "/sys/bus/pci/devices/$(pf 0)/sriov_numvfs" "$sys/devices/$(pf 0)/"
    mkdir -p "$sys/devices/$(vf 0)/infiniband/rxe0"
    jq --arg sys "$sys" '.sysfsRoot = $sys' /etc/rail-cni/node.json >/run/simnode.json
}

the_mode_is_exclusive_and_the_vf_has_a_device() {
    contains "the mode" "netns exclusive" "$(rdma system show)"
    contains "the device" "netdev ens0f0v0" "$(rdma link show)"
}

# The VF has a device, the PF and the other VF have none.
status_and_doctor_tell_of_mode_and_devices() {
    export RAIL_CNI_NODE_CONFIG=/run/simnode.json
    make_device
    same mode '"exclusive"' "$("$bin/railctl" status --output json | jq -c .rdma)"
    local told
    told=$("$bin/railctl" doctor --output json || true)
    contains doctor "no RDMA device on $(pf 0), but others have one" \
        "$(jq -r '.checks[] | select(.check == "rdma" and .verdict == "warn") | .text' <<<"$told")"
    same "verdicts" '["warn"]' "$(jq -c '[.checks[] | select(.check == "rdma") | .verdict]' <<<"$told")"
}

# The device's refusal to move rolls back the whole ADD: the VF is on the host as it was, nothing is leased. (That
# rxe0 survives depends on the order: it dies when its netdev moves, as no NIC's own device does.)
a_refused_move_is_rolled_back() {
    local key
    export RAIL_CNI_NODE_CONFIG=/run/simnode.json
    pod pod1
    for key in required auto; do
        make_device
        refused "its driver cannot move an RDMA device to a pod" ADD pod1 net1 "$(conf 0 "$(vf 0)" "\"rdma\": \"$key\"")"
        same "the node after $key" "$pristine" "$(snapshot)"
        same "the pod after $key" lo "$(ip -n pod1 -json link show | jq -r '.[].ifname')"
    done
}

a_vf_without_a_device_is_attached_unless_one_is_required() {
    pod pod1
    refused rdma ADD pod1 net1 "$(conf 0 "$(vf 0 1)" '"rdma": "required"')"
    same "the node" "$pristine" "$(snapshot)"
    add pod1 net1 "$(conf 0 "$(vf 0 1)")"
    del pod1 net1 "$(conf 0 "$(vf 0 1)")"
}

# Last: rxe dies when its netdev moves.
a_device_is_left_alone_when_rdma_is_off() {
    pod pod1
    add pod1 net1 "$(conf 0 "$(vf 0)" '"rdma": "off"')"
    del pod1 net1 "$(conf 0 "$(vf 0)" '"rdma": "off"')"
}

make_exclusive
show_device_in_sysfs
run_cases the_mode_is_exclusive_and_the_vf_has_a_device status_and_doctor_tell_of_mode_and_devices \
    a_refused_move_is_rolled_back a_vf_without_a_device_is_attached_unless_one_is_required a_device_is_left_alone_when_rdma_is_off
