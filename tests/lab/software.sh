#!/usr/bin/env bash
# Devices without hardware: ports of netdevsim, which outlive their namespace like a real NIC's, and rdma_rxe.
# Runs in the machine: scripts/lab --rails 1 --netdevsim tests/lab/software.sh
# lab: --rails 1 --vfs 1 --netdevsim
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Ports sim0 to sim3.
make_ports() {
    local port number=0
    echo "7 4" >/sys/bus/netdevsim/new_device
    for port in /sys/bus/netdevsim/devices/netdevsim7/net/*; do
        ip link set "${port##*/}" name "sim$number"
        number=$((number + 1))
    done
    ((number == 4)) || die "netdevsim made $number ports"
}

# sim NAME [KEYS]: a port has no PCI address, and is of no rail of this node.
sim() {
    printf '{"cniVersion": "1.1.0", "name": "sim", "type": "rail-cni", "mtu": 9000, "device": "%s"%s}' \
        "$1" "${2:+, $2}"
}

a_port_is_attached_and_goes_back() {
    pod pod1
    add pod1 net1 "$(sim sim0)"
    same "in the pod" "net1 9000" "$(ip -n pod1 -json link show net1 | jq -r '.[0] | "\(.ifname) \(.mtu)"')"
    check pod1 net1 "$(sim sim0)" "$output"
    refused "attached to" ADD pod1 net2 "$(sim sim0)"
    del pod1 net1 "$(sim sim0)"
}

# The kernel puts it on the host as net1, the next as dev<ifindex>.
ports_of_two_dead_pods_are_put_right() {
    local way
    for way in del add reap; do
        pod podA && pod podB
        add podA net1 "$(sim sim0)"
        add podB net1 "$(sim sim1)"
        kill_pod podA podB
        same "what the kernel made of it" "dev net1 " "$(ip -json link show | jq -r '.[].ifname' |
            grep -E '^(net|dev)[0-9]+$' | sed 's/dev.*/dev/' | sort | tr '\n' ' ')"
        case $way in
            del)
                del podB net1 "$(sim sim1)"
                del podA net1 "$(sim sim0)"
                ;;
            add)
                pod podC
                add podC net1 "$(sim sim1)"
                add podC net2 "$(sim sim0)"
                del podC net1 "$(sim sim1)"
                del podC net2 "$(sim sim0)"
                ip netns del podC
                ;;
            reap) "$bin/railctl" reap >/dev/null ;;
        esac
        same "after $way" "$pristine" "$(snapshot)"
    done
}

a_late_del_leaves_the_new_owner_alone() {
    pod podA
    add podA net1 "$(sim sim2)"
    kill_pod podA
    pod podB
    add podB net5 "$(sim sim2)"
    del podA net1 "$(sim sim2)"
    same "pod B" "net5 9000" "$(ip -n podB -json link show net5 | jq -r '.[0] | "\(.ifname) \(.mtu)"')"
    del podB net5 "$(sim sim2)"
}

# The device goes away while a pod has it.
del_ends_when_the_port_has_vanished() {
    echo "8 1" >/sys/bus/netdevsim/new_device
    local port ports=(/sys/bus/netdevsim/devices/netdevsim8/net/*)
    port=${ports[0]##*/}
    pod pod1
    add pod1 net1 "$(sim "$port")"
    echo 8 >/sys/bus/netdevsim/del_device
    del pod1 net1 "$(sim "$port")"
    same "leases and records" "" "$(state_files)"
}

# rdma_rxe on a VF. The system's mode is `shared`, as at every boot: nothing has to move.
a_vf_with_an_rdma_device_is_attached_in_shared_mode() {
    modprobe rdma_rxe || skip "this kernel has no rdma_rxe"
    contains "the mode" "netns shared" "$(rdma system show)"
    ip link set ens0f0v0 up
    rdma link add rxe0 type rxe netdev ens0f0v0
    ip link set ens0f0v0 down
    contains "the device" "rxe0" "$(rdma link show)"
    pod pod1
    refused rdma ADD pod1 net1 "$(conf 0 "$(vf 0)" '"rdma": "maybe"')"
    refused "shared mode" ADD pod1 net1 "$(conf 0 "$(vf 0)" '"rdma": "required"')"
    add pod1 net1 "$(conf 0 "$(vf 0)" '"rdma": "auto"')"
    del pod1 net1 "$(conf 0 "$(vf 0)" '"rdma": "auto"')"
    # rxe ends where its netdev leaves the namespace; what is left of it goes here.
    rdma link delete rxe0 2>/dev/null || true
}

make_ports
allow_netdevsim
run_cases a_port_is_attached_and_goes_back ports_of_two_dead_pods_are_put_right a_late_del_leaves_the_new_owner_alone \
    del_ends_when_the_port_has_vanished a_vf_with_an_rdma_device_is_attached_in_shared_mode
