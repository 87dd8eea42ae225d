#!/usr/bin/env bash
# The default ToS of the RDMA CM in the shared mode, in which every namespace sees every RDMA device.
# Runs in the machine: scripts/lab --rails 2 --vfs 2 --rdma-shared tests/lab/rdma-qos-shared.sh
# lab: --rails 2 --vfs 2 --rdma-shared
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cm=/sys/kernel/config/rdma_cm

make_devices() {
    rdma link add rxe00 type rxe netdev ens0f0v0
    rdma link add rxe10 type rxe netdev ens1f0v0
}

tos() {
    mkdir "$cm/$1"
    cat "$cm/$1/ports/1/default_roce_tos"
    rmdir "$cm/$1"
}

# First: a module that is loaded stays.
a_kernel_without_the_rdma_cm_is_told_of() {
    local config said
    pod pod1
    config=$(conf 0 "$(vf 0)" '"rdmaQoS": {"tos": 96, "onMissing": "require"}')
    [[ ! -d /sys/module/rdma_cm ]] || skip "this kernel has the RDMA CM from the start"
    refused "run \`modprobe rdma_cm\`" ADD pod1 net1 "$config"
    config=$(conf 0 "$(vf 0)" '"rdmaQoS": {"tos": 96}')
    said=$(cni ADD pod1 net1 "$config" 2>&1)
    contains "the log" "rdma_cm" "$said"
    del pod1 net1 "$config"
}

the_tos_is_set_and_restored() {
    local config way result
    modprobe rdma_cm
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    config=$(conf 0 "$(vf 0)" '"rdmaDeviceName": "rdma_rail-0", "rdmaQoS": {"tos": 106, "tc": 96}')
    for way in del add reap; do
        pod pod1
        add pod1 net1 "$config"
        result=$output
        same "the ToS" 106 "$(tos rdma_rail-0)"
        same "the ToS of the other rail" 0 "$(tos rxe10)"
        check pod1 net1 "$config" "$result"
        case $way in
            del) del pod1 net1 "$config" && ip netns del pod1 ;;
            add)
                kill_pod pod1
                pod pod2
                add pod2 net1 "$config"
                del pod1 net1 "$config"
                same "the ToS after a late DEL" 106 "$(tos rdma_rail-0)"
                del pod2 net1 "$config"
                ;;
            reap) kill_pod pod1 && "$bin/railctl" reap >/dev/null ;;
        esac
        same "the ToS after $way" 0 "$(tos rxe00)"
        same "groups after $way" "" "$(ls "$cm")"
    done
}

# The pod's name for the device cannot be taken from it: another device has the old one by now.
a_name_that_cannot_be_restored_refuses_nobody() {
    local config
    config=$(conf 0 "$(vf 0)" '"rdmaDeviceName": "rdma_rail-0", "rdmaQoS": {"tos": 96}')
    pod pod1
    add pod1 net1 "$config"
    rdma dev set rxe10 name rxe00
    del pod1 net1 "$config"
    contains "what is owed" "rxe00" "$("$bin/railctl" status || true)"
    add pod1 net1 "$(conf 0 "$(vf 0)")"
    rdma dev set rxe00 name rxe10
    del pod1 net1 "$(conf 0 "$(vf 0)")"
    same "the devices" "rxe00 rxe10" "$(rdma -j dev show | jq -r '[.[].ifname] | sort | join(" ")')"
    same "the ToS" 0 "$(tos rxe00)"
}

make_devices
run_cases a_kernel_without_the_rdma_cm_is_told_of the_tos_is_set_and_restored \
    a_name_that_cannot_be_restored_refuses_nobody
