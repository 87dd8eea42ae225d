#!/usr/bin/env bash
# `railctl vfs` makes the VFs of an emulated NIC, and leaves those alone that somebody has.
# Runs in the machine: scripts/lab --rails 3 --vfs 0 --iommu tests/lab/vfs.sh
# lab: --rails 3 --vfs 0 --iommu
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# wants VFS [RAIL]: node.json asks for this on every rail, or on this one.
wants() {
    local at=.vfs
    [[ ! ${2:-} ]] || at=".rails[$2].vfs"
    [[ -e /run/vfs.json && ${2:-} ]] || cp /etc/rail-cni/node.json /run/vfs.json
    jq "$at = $1" /run/vfs.json >/run/vfs.json.new
    mv /run/vfs.json.new /run/vfs.json
    export RAIL_CNI_NODE_CONFIG=/run/vfs.json
}

# vfs STATUS [ARGUMENT...]: sets $output to the JSON.
vfs() {
    local expected=$1 exited=0
    shift
    output=$("$bin/railctl" vfs --output json "$@") || exited=$?
    printf '%s\n' "$output"
    same "exit status of vfs $*" "$expected" "$exited"
}

# is RAIL STATE [REASON]
is() { same "rail $1" "$2 ${3:-null}" "$(jq -r ".pfs[$1] | \"\(.state) \(.reason)\"" <<<"$output")"; }
says() { contains "rail $1" "$2" "$(jq -r ".pfs[$1].problem" <<<"$output")"; }

numbers() { cat "/sys/bus/pci/devices/$(pf 0)/sriov_numvfs" "/sys/bus/pci/devices/$(pf 1)/sriov_numvfs" | xargs; }
driver() { basename "$(readlink "/sys/bus/pci/devices/$1/driver")"; }
trusts() { ip -json link show ens0f0 | jq -c '[.[0].vfinfo_list[].trust]'; }

no_vfs() {
    wants '{"number": 0}'
    vfs 0
    same "VFs" "0 0" "$(numbers)"
}

vfs_are_made_as_asked_and_what_is_as_asked_stays() {
    wants '{"number": 2, "mtu": 9100, "trust": true}'
    vfs 1 --check
    is 0 differs
    same "the differences" '["mtu 9000 9100","number 0 2"]' \
        "$(jq -c '[.pfs[0].changes[] | "\(.what) \(.from) \(.to)"]' <<<"$output")"
    same "VFs after --check" "0 0" "$(numbers)"
    vfs 0
    is 0 changed && is 1 changed && is 2 changed
    same "VFs" "2 2 [true,true] 9100" "$(numbers) $(trusts) $(cat /sys/class/net/ens0f0/mtu)"
    # As udev names them.
    local before netdev
    netdev=$(basename "/sys/bus/pci/devices/$(vf 0 1)/net/"*)
    ip link set "$netdev" name ens0f0v1
    before=$(ip -json link show)
    vfs 0
    is 0 as-wanted
    vfs 0 --check
    same "the links" "$before" "$(ip -json link show)"
    # One setting of one VF.
    ip link set ens0f0 vf 1 trust off
    vfs 0 --undrained
    is 0 changed && is 1 as-wanted
    same "the change" "[\"trust $(vf 0 1)\"]" "$(jq -c '[.pfs[0].changes[] | "\(.what) \(.vf)"]' <<<"$output")"
    same "trust" '[true,true]' "$(trusts)"
    same "the name" "ens0f0v1" "$(basename "/sys/bus/pci/devices/$(vf 0 1)/net/"*)"
    # A run that was killed between two drivers.
    vf 0 1 >/sys/bus/pci/drivers/igbvf/unbind
    vfs 0 --undrained
    is 0 changed && is 1 as-wanted
    same "the driver" igbvf "$(driver "$(vf 0 1)")"
    # A smaller MTU is not asked for, and another number is.
    wants '{"number": 1, "mtu": 1500}'
    vfs 0
    same "VFs" "1 1 9100" "$(numbers) $(cat /sys/class/net/ens0f0/mtu)"
    no_vfs
    for rail in 0 1 2; do
        ip link set "ens${rail}f0" mtu 9000
    done
}

vfs_of_a_pod_stay_with_it() {
    wants '{"number": 1}'
    vfs 0
    pod pod1
    add pod1 net1 "$(conf 0 "$(vf 0)")"
    local added=$output
    wants '{"number": 2}'
    vfs 1
    is 0 refused in-use && is 1 changed
    says 0 "lab/pod1"
    same "VFs" "1 2" "$(numbers)"
    # The settings of a pod's VF are the pod's.
    wants '{"number": 1, "trust": true, "driver": "vfio-pci"}' 0
    vfs 0 --check
    is 0 as-wanted
    check pod1 net1 "$(conf 0 "$(vf 0)")" "$added"
    del pod1 net1 "$(conf 0 "$(vf 0)")"
    wants '{"number": 2}'
    vfs 1 --undrained
    is 0 refused not-drained
    vfs 0
    same "VFs" "2 2" "$(numbers)"
    no_vfs
}

a_dead_pods_vf_is_restored_before_its_pf_changes() {
    wants '{"number": 1}'
    vfs 0
    pod pod1
    add pod1 net1 "$(conf 0 "$(vf 0)")"
    kill_pod pod1
    wants '{"number": 1}' && wants '{"number": 2}' 0
    vfs 1
    is 0 refused in-use
    says 0 'railctl reap'
    "$bin/railctl" reap
    vfs 0
    no_vfs
}

a_pf_or_vf_of_the_host_is_left_alone() {
    wants '{"number": 1}' && wants '{"number": 0}' 2
    ip addr add 10.9.0.1/24 dev ens0f0
    ip link add br0 type bridge
    ip link set ens1f0 master br0
    vfs 1
    is 0 refused host-use && is 1 refused host-use && is 2 as-wanted
    says 0 10.9.0.1/24
    says 1 br0
    same "VFs" "0 0" "$(numbers)"
    ip addr del 10.9.0.1/24 dev ens0f0
    ip link del br0
    vfs 0
    # Now a VF of it carries the node.
    local netdev
    netdev=$(basename "/sys/bus/pci/devices/$(vf 0)/net/"*)
    ip addr add 10.9.0.1/24 dev "$netdev"
    wants '{"number": 0}'
    vfs 1
    is 0 refused in-use && is 1 changed
    says 0 10.9.0.1/24
    ip addr del 10.9.0.1/24 dev "$netdev"
    no_vfs
}

what_the_operator_or_the_firmware_says_stands() {
    wants '{"number": 8}' && wants '{"number": 1}' 1 && wants '{"number": 0}' 2
    mkdir -p /etc/sriov-operator/pci
    printf '{"pciAddress": "%s", "numVfs": 4}\n' "$(pf 1)" >"/etc/sriov-operator/pci/$(pf 1)"
    vfs 1
    is 0 refused too-many && is 1 refused sriov-operator
    says 0 "allows 7 VFs"
    same "VFs" "0 0" "$(numbers)"
    rm -r /etc/sriov-operator
}

vfs_go_to_user_space_and_back() {
    [[ -e /sys/kernel/iommu_groups/0 ]] || skip "no IOMMU"
    wants '{"number": 1}' && wants '{"number": 2, "driver": "vfio-pci"}' 0
    vfs 0
    same "drivers" "vfio-pci vfio-pci igbvf" "$(driver "$(vf 0)") $(driver "$(vf 0 1)") $(driver "$(vf 1)")"
    vfs 0
    is 0 as-wanted
    # A program has one.
    local group
    group=/dev/vfio/$(basename "$(readlink "/sys/bus/pci/devices/$(vf 0)/iommu_group")")
    exec 9<>"$group"
    wants '{"number": 2, "driver": "netdev"}' 0
    vfs 1
    is 0 refused in-use
    same "driver" vfio-pci "$(driver "$(vf 0)")"
    exec 9>&-
    vfs 0
    same "drivers" "igbvf igbvf" "$(driver "$(vf 0)") $(driver "$(vf 0 1)")"
    [[ $(ls "/sys/bus/pci/devices/$(vf 0)/net") ]] || fail "no netdev"
    no_vfs
}

# igb cannot set the link state of VFs.
a_setting_that_the_driver_refuses_is_told() {
    wants '{"number": 0}' && wants '{"number": 1, "linkState": "enable"}' 0
    vfs 1
    is 0 failed
    says 0 link_state
    no_vfs
}

modprobe vfio-pci || true
run_cases vfs_are_made_as_asked_and_what_is_as_asked_stays vfs_of_a_pod_stay_with_it \
    a_dead_pods_vf_is_restored_before_its_pf_changes a_pf_or_vf_of_the_host_is_left_alone \
    what_the_operator_or_the_firmware_says_stands vfs_go_to_user_space_and_back \
    a_setting_that_the_driver_refuses_is_told
