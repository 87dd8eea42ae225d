#!/usr/bin/env bash
# What `railctl doctor` and scripts/check-rdma say of RDMA devices that move with their VFs. The emulated PFs have no DCB
# and no devlink: of those, what is seen here is the refusal.
# Runs in the machine: scripts/lab --rails 2 --vfs 2 --rdma tests/lab/doctor-rdma.sh
# lab: --rails 2 --vfs 2 --rdma
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,5s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# doctor ARGUMENT...: sets $output.
doctor() { output=$("$bin/railctl" doctor --output json "$@" || true); }

# lines CHECK: verdict and text of each line, and the remedy.
lines() { jq -r --arg check "$1" '.checks[] | select(.check == $check) | "\(.verdict): \(.text) -> \(.remedy)"' <<<"$output"; }

a_port_is_judged_while_its_netdev_is_up() {
    doctor --rdma
    contains "all down" "skip: " "$(lines rdma-port)"
    ip link set ens0f0v0 up
    ip link set ens1f0v0 up
    until [[ $(cat /sys/class/net/ens{0,1}f0v0/carrier) == $'1\n1' ]]; do sleep 0.1; done
    doctor --rdma
    ip link set ens0f0v0 down
    ip link set ens1f0v0 down
    same "ports" "ok: 4 RDMA ports on the host, 2 up and active -> null" "$(lines rdma-port)"
    contains "GIDs" "RoCE v2" "$(lines rdma-gid)"
    contains "locked memory" "skip" "$(lines memlock)"
    doctor
    same "without --rdma" "" "$(lines rdma-port)"
}

what_the_driver_does_not_report_is_a_skip() {
    jq '.roce = {"trust": "dscp", "pfc": [3], "tos": 96, "ecn": true}' /etc/rail-cni/node.json >/run/roce.json
    RAIL_CNI_NODE_CONFIG=/run/roce.json doctor
    local check
    for check in roce-trust roce-pfc roce-tos; do
        same "$check" "skip: rail 0, rail 1: the driver igb does not report DCB settings -> null" "$(lines "$check")"
    done
    contains roce-ecn "skip: rail 0: the driver igb does not report ECN" "$(lines roce-ecn)"
    contains roce-mode "skip: no driver reports" "$(lines roce-mode)"
    RAIL_CNI_NODE_CONFIG=/run/roce.json refused_by_add '.roce.pfc = []' "no priority is lossless"
}

# refused_by_add EDIT PART
refused_by_add() {
    jq "$1" /run/roce.json >/run/wrong.json
    pod pod1
    RAIL_CNI_NODE_CONFIG=/run/wrong.json refused "$2" ADD pod1 net1 "$(conf 0 "$(vf 0)")"
}

a_rail_without_rdma_fails_where_it_is_wanted() {
    rdma link delete rxe10
    rdma link delete rxe11
    doctor
    contains "not asked" "warn: rail 1: " "$(lines rdma)"
    doctor --rdma
    contains "asked" "FAIL: rail 1: " "$(lines rdma | sed 's/^fail/FAIL/')"
    rdma link add rxe10 type rxe netdev ens1f0v0
    rdma link add rxe11 type rxe netdev ens1f0v1
}

# The pod has the device; nobody is told to take it away.
a_running_pods_device_is_not_asked_back_after_run_was_emptied() {
    local config
    config=$(conf 0 "$(vf 0)" '"rdma": "required"')
    pod pod1
    add pod1 net1 "$config"
    cp -r /run/rail-cni /run/kept
    rm -rf /run/rail-cni
    doctor --rdma
    rm -rf /run/rail-cni
    cp -r /run/kept /run/rail-cni
    rm -rf /run/kept
    contains lost "in the namespace" "$(lines lost)"
    [[ $(lines rdma) != *rxe00* && $output != *"dev set"* ]] || fail "doctor: $(lines rdma)"
    del pod1 net1 "$config"
}

# Its netdev is on the host, so no pod uses it as a rail.
a_device_whose_netdev_is_at_home_is_told_once() {
    pod pod1
    rdma dev set rxe00 netns pod1
    doctor --rdma
    kill_pod pod1
    contains "on the host again" rxe00 "$(rdma dev show)"
    same "lines" 1 "$(lines rdma | grep -c rxe00)"
    contains away "its RDMA device rxe00 is in the namespace /run/netns/pod1" "$(lines rdma)"
}

# A program that says what it was called with, and a server that waits to be ended.
write_bw() {
    mkdir -p /run/bw
    cat >/run/bw/ib_write_bw <<'STUB'
#!/bin/sh
echo "$*" >>/run/bw/calls
case "$*" in *172.*) ;; *) exec sleep 1000 ;; esac
[ ! -e /run/bw/fails ] || { echo "Unable to init the socket connection" && exit 1; }
echo " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
echo " 65536      1000             1.10               1.05               0.002"
STUB
    chmod 755 /run/bw/ib_write_bw
}

check_rdma_uses_the_gid_of_the_rail_and_leaves_no_server() {
    local rail said index
    write_bw
    for rail in 0 1; do
        pod "pod$rail"
        add "pod$rail" net1 "$(conf "$rail" "$(vf "$rail")" '"gid": "require"')"
    done
    index=$("$bin/railctl" status --output json | jq -r '[.attachments[].gids[0].index] | unique | join(" ")')
    export PATH=/run/bw:$PATH
    said=$("$root/scripts/check-rdma" --seconds 1 'ip netns exec pod0' 'ip netns exec pod1')
    contains "endpoints" "server 172.16.0.0: rxe00 port 1 index $index; client 172.18.0.0: rxe10 port 1 index $index" "$said"
    contains "the sum" "3 passed, 0 failed, 0 skipped" "$said"
    same "calls" "-d rxe00 -i 1 -x $index --tclass 96 -D 1 -F --report_gbits
-d rxe10 -i 1 -x $index --tclass 96 -D 1 -F --report_gbits 172.16.0.0
-d rxe00 -i 1 -R -T 96 -D 1 -F --report_gbits
-d rxe10 -i 1 -R -T 96 -D 1 -F --report_gbits 172.16.0.0" "$(cat /run/bw/calls)"
    # The counter is far before the end of what ethtool prints.
    printf '#!/bin/sh\necho "{\"dscp_prio\":[[24,3]]}"\n' >/run/bw/dcb
    cat >/run/bw/ethtool <<'STUB'
#!/bin/sh
echo "     tx_prio3_bytes: $(date +%s%N)"
seq 1000000
STUB
    chmod 755 /run/bw/dcb /run/bw/ethtool
    said=$("$root/scripts/check-rdma" --port env ens1f0 --seconds 1 'ip netns exec pod0' 'ip netns exec pod1')
    contains "a port" "ok    priority   ToS 96 has priority 3 on ens1f0, and tx_prio3_bytes counted the packets" "$said"
    rm /run/bw/dcb /run/bw/ethtool
    touch /run/bw/fails
    status=0
    said=$("$root/scripts/check-rdma" --port env ens1f0 --seconds 1 'ip netns exec pod0' 'ip netns exec pod1') || status=$?
    same "exit status" 1 "$status"
    contains "a failure" "FAIL  gid-index  ib_write_bw -x $index --tclass 96: Unable to init the socket connection" "$said"
    contains "no counter" "skip  priority   ens1f0 does not tell the priority of DSCP 24" "$said"
    same "servers" "" "$(pgrep -f 'sleep 1000' || true)"
    for rail in 0 1; do
        del "pod$rail" net1 "$(conf "$rail" "$(vf "$rail")")"
    done
    status=0
    said=$("$root/scripts/check-rdma" 'ip netns exec pod0' 'ip netns exec pod1' 2>&1) || status=$?
    same "exit status without a rail" 3 "$status"
    contains "without a rail" "net1" "$said"
    rm -r /run/bw
}

rxe_on_vfs 2
run_cases a_port_is_judged_while_its_netdev_is_up what_the_driver_does_not_report_is_a_skip \
    a_rail_without_rdma_fails_where_it_is_wanted a_running_pods_device_is_not_asked_back_after_run_was_emptied \
    a_device_whose_netdev_is_at_home_is_told_once check_rdma_uses_the_gid_of_the_rail_and_leaves_no_server
