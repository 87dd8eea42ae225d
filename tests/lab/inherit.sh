#!/usr/bin/env bash
# What a pod sets on its VF, or on a port of netdevsim, ends with the pod: the next one starts from what the host had.
# Runs in the machine: scripts/lab --rails 1 --vfs 1 --netdevsim tests/lab/inherit.sh
# lab: --rails 1 --vfs 1 --netdevsim
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

has ethtool || die "no ethtool: scripts/test installs it"
program=$root/tests/xdp-drop.o

# told DEVICE: all that ip, ethtool and sysfs say of it, but for what changes by itself.
told() {
    local option pattern file
    ip -details link show "$1" | sed -E 's/^[0-9]+: //; s/ state [A-Z]+//; s/,?(UP|LOWER_UP|NO-CARRIER)//g; s/ qdisc [^ ]+//'
    for option in -k -g -c -l -a -x --show-priv-flags --show-eee --show-fec; do
        ethtool "$option" "$1" 2>/dev/null | grep -v '^ring_' || true
    done
    ethtool "$1" 2>/dev/null | grep -vE 'Speed|Duplex|Link detected' || true
    for pattern in gro_flush_timeout napi_defer_hard_irqs threaded queues/*/{rps_cpus,rps_flow_cnt} \
        queues/*/{tx_maxrate,xps_cpus,byte_queue_limits/{limit_max,limit_min,hold_time}}; do
        for file in /sys/class/net/"$1"/$pattern; do
            printf '%s %s\n' "${file#/sys/class/net/*/}" "$(cat "$file" 2>/dev/null)"
        done
    done
}

# set_all POD DEVICE: whatever its driver lets it set. Sets $set to how many commands had an effect.
set_all() {
    local command
    set=0
    while read -r command; do
        # A sysfs of the pod's own, as a pod with CAP_SYS_ADMIN mounts it.
        # shellcheck disable=SC2086
        ! ip netns exec "$1" sh -c "${command//DEV/$2}" >/dev/null 2>&1 || set=$((set + 1))
    done <<'END'
ip link set DEV promisc on
ip link set DEV allmulticast on
ip link set DEV multicast off
ip link set DEV dynamic on
ip link set DEV arp off
ip link set DEV txqueuelen 7
ip link set DEV group 9
ip link set DEV alias theirs
ip link set DEV mode dormant
ip link set DEV gso_max_size 4000
ip link set DEV gso_max_segs 3
ip link set DEV gro_max_size 5000
ip link set DEV broadcast 02:00:00:00:00:02
ethtool -K DEV tso off
ethtool -K DEV tx off
ethtool -K DEV rx off
ethtool -K DEV gro off
ethtool -G DEV rx 128 tx 128
ethtool -G DEV rx 512
ethtool -C DEV rx-usecs 7
ethtool -C DEV tx-usecs 9
ethtool -A DEV rx off
ethtool -A DEV tx on
ethtool -L DEV combined 1
ethtool -s DEV msglvl 0xff
ethtool -s DEV wol d
ethtool --set-fec DEV encoding rs
echo 70000 >/sys/class/net/DEV/gro_flush_timeout
echo 3 >/sys/class/net/DEV/napi_defer_hard_irqs
echo 1 >/sys/class/net/DEV/threaded
for file in /sys/class/net/DEV/queues/rx-*/rps_cpus; do echo 1 >$file || exit; done
for file in /sys/class/net/DEV/queues/rx-*/rps_flow_cnt; do echo 64 >$file || exit; done
for file in /sys/class/net/DEV/queues/tx-*/byte_queue_limits/limit_max; do echo 5000 >$file || exit; done
for file in /sys/class/net/DEV/queues/tx-*/byte_queue_limits/hold_time; do echo 7 >$file || exit; done
END
}

a_vf_forgets_what_its_pod_set() {
    local config before changed
    config=$(conf 0 "$(vf 0)")
    before=$(told ens0f0v0)
    pod pod1 && pod pod2
    add pod1 net1 "$config"
    set_all pod1 net1
    ((set >= 20)) || fail "the pod could set $set things only"
    changed=$(ip -n pod1 link show net1)
    contains "in the pod" NOARP "$changed"
    del pod1 net1 "$config"
    same "the VF after DEL" "$before" "$(told ens0f0v0)"
    add pod2 net1 "$config"
    in_pod pod2 ping -q -c 2 -W 5 -M "do" -s 8972 172.16.0.1 >/dev/null || fail "the next pod's rail is silent"
    del pod2 net1 "$config"
    same "the VF after the next DEL" "$before" "$(told ens0f0v0)"
}

# Without a DEL: the kernel hands it back as net1, with everything on it.
a_vf_of_a_dead_pod_has_nothing_of_it() {
    local config before
    config=$(conf 0 "$(vf 0)")
    before=$(told ens0f0v0)
    pod pod1 && pod pod2
    add pod1 net1 "$config"
    set_all pod1 net1
    kill_pod pod1
    add pod2 net1 "$config"
    in_pod pod2 ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "the next pod's rail is silent"
    del pod2 net1 "$config"
    same "the VF" "$before" "$(told ens0f0v0)"
}

# The host's own settings come back.
a_vf_keeps_what_the_host_set() {
    local config before
    config=$(conf 0 "$(vf 0)")
    ip link set ens0f0v0 txqueuelen 300 alias uplink
    ethtool -K ens0f0v0 tso off
    ethtool -G ens0f0v0 rx 512
    before=$(told ens0f0v0)
    pod pod1
    add pod1 net1 "$config"
    in_pod pod1 ip link set net1 txqueuelen 7 alias theirs
    in_pod pod1 ethtool -K net1 tso on
    in_pod pod1 ethtool -G net1 rx 128
    del pod1 net1 "$config"
    same "the VF" "$before" "$(told ens0f0v0)"
    ip link set ens0f0v0 txqueuelen 1000 alias ""
    ethtool -K ens0f0v0 tso on
    ethtool -G ens0f0v0 rx 256
}

an_xdp_program_of_the_pod_is_gone() {
    local config
    config=$(conf 0 "$(vf 0)")
    pod pod1 && pod pod2
    add pod1 net1 "$config"
    in_pod pod1 ip link set net1 xdpgeneric obj "$program" sec xdp || skip "no XDP program can be loaded here"
    del pod1 net1 "$config"
    [[ $(ip link show ens0f0v0) != *xdp* ]] || fail "$(ip link show ens0f0v0)"
    add pod2 net1 "$config"
    in_pod pod2 ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "the next pod's rail is silent"
    del pod2 net1 "$config"
}

sim() {
    printf '{"cniVersion": "1.1.0", "name": "sim", "type": "rail-cni", "mtu": 9000, "device": "%s"}' "$1"
}

# netdevsim has rings, coalescing, pause and FEC that an igbvf has not.
a_port_of_netdevsim_forgets_what_its_pod_set() {
    local port before
    echo "7 1 2" >/sys/bus/netdevsim/new_device || skip "no netdevsim here"
    for port in /sys/bus/netdevsim/devices/netdevsim7/net/*; do
        ip link set "${port##*/}" name sim0
    done
    ethtool --set-fec sim0 encoding off
    allow_netdevsim
    before=$(told sim0)
    pod pod1
    add pod1 net1 "$(sim sim0)"
    set_all pod1 net1
    ((set >= 20)) || fail "the pod could set $set things only"
    del pod1 net1 "$(sim sim0)"
    same "the port" "$before" "$(told sim0)"
    echo 7 >/sys/bus/netdevsim/del_device
}

run_cases a_vf_forgets_what_its_pod_set a_vf_of_a_dead_pod_has_nothing_of_it a_vf_keeps_what_the_host_set \
    an_xdp_program_of_the_pod_is_gone a_port_of_netdevsim_forgets_what_its_pod_set
