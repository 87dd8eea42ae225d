#!/usr/bin/env bash
# `railctl status` and `doctor` on a node with eight SR-IOV rails.
# Runs in the machine: scripts/lab tests/lab/operator.sh
# lab: --rails 8 --vfs 1
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,3s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# railctl STATUS ARGUMENTS...: a command that must exit with this status; sets $output.
railctl() {
    local expected=$1 exited=0
    shift
    output=$("$bin/railctl" "$@") || exited=$?
    printf '%s\n' "$output"
    same "exit status of $*" "$expected" "$exited"
}

# json STATUS COMMAND FILTER: of its JSON.
json() {
    railctl "$1" "$2" --output json >/dev/null
    jq -c "$3" <<<"$output"
}

a_node_with_eight_rails_is_ready() {
    railctl 0 doctor
    contains doctor "8 PFs, up and with a carrier" "$output"
    contains doctor "8 VFs, 8 free" "$output"
    contains doctor "node lab-node has 8 allocations" "$output"
    same failed '[]' "$(json 0 doctor '[.checks[] | select(.verdict == "fail")]')"
    railctl 0 status
    local each='[.rail, .pf.driver, .pf.link, .pf.mtu, .vfs.enabled, .vfs.free, .vfs.max]'
    same rails '[0,"igb","up",9000,1,1,7] 8' "$(json 0 status ".rails[0] | $each") $(json 0 status '.rails | length')"
    [[ ! -e /run/rail-cni ]] || fail "made /run/rail-cni"
}

# There are no GPUs here, so only the plan tells.
discover_takes_no_nic_for_a_rail_that_nothing_tells() {
    local each='[.nics[] | [.nic, .netdev, .rail, .isCandidate]] | map(select((.[1] // "") | startswith("ens")))'
    railctl 1 discover --timeout 0 --output json >/dev/null
    same NICs '8 ["0000:03:00.0","ens2f0",null,false]' \
        "$(jq -c "$each | length" <<<"$output") $(jq -c "$each | .[2]" <<<"$output")"
    ip addr add 172.20.0.0/31 dev ens2f0
    railctl 0 discover --timeout 0 --output json >/dev/null
    same "by its address" '["0000:03:00.0","ens2f0",2,true]' "$(jq -c "$each | .[2]" <<<"$output")"
    ip addr del 172.20.0.0/31 dev ens2f0
}

status_shows_the_vf_of_a_pod() {
    pod pod1
    add pod1 net3 "$(conf 2 "$(vf 2)")"
    railctl 0 status
    same attachment '["live","lab/pod1","net3","0000:03:10.0",["172.20.0.0/31"],9000,"up"]' \
        "$(json 0 status '.attachments[0] | [.state, .pod, .ifname, .device, .addresses, .mtu, .link]')"
    same "the rail's VFs" '[1,1,0]' "$(json 0 status '.rails[2].vfs | [.enabled, .attached, .free]')"
    railctl 0 doctor
    del pod1 net3 "$(conf 2 "$(vf 2)")"
}

# The remedy that is printed is what mends it.
a_pf_that_is_down_is_told_with_its_remedy() {
    ip link set ens3f0 down
    railctl 1 status
    contains status "rail 3: ens3f0 is down" "$output"
    railctl 1 doctor
    contains doctor "FAIL  pf-link" "$output"
    local remedy
    remedy=$(json 1 doctor '.checks[] | select(.check == "pf-link" and .rail == 3) | .remedy' | jq -r . | tr -d '`')
    remedy=${remedy#run }
    same remedy "ip link set ens3f0 up" "$remedy"
    $remedy
    for _ in {1..50}; do
        [[ $(cat /sys/class/net/ens3f0/carrier) != 1 ]] || break
        sleep 0.1
    done
    railctl 0 doctor
}

# The kernel gave the VF back as net3, with the pod's MTU.
what_a_lost_del_left_is_told_and_reaped() {
    pod pod1
    add pod1 net3 "$(conf 2 "$(vf 2)")"
    kill_pod pod1
    railctl 1 status
    same state '["dead"]' "$(json 1 status '[.attachments[].state]')"
    railctl 0 doctor
    contains doctor "every VF is stale, because its pod is gone" "$output"
    contains doctor "1 lease of pods that are gone" "$output"
    railctl 0 reap --output json
    same reaped '["0000:03:10.0"]' "$(jq -c '[.givenBack[].device]' <<<"$output")"
    railctl 0 status
}

# An emulated VF has no RDMA; rdma_rxe makes a device over any netdev, which its PCI function does not show.
rdma_is_told_or_skipped_by_name() {
    modprobe rdma_rxe 2>/dev/null || skip "this kernel has no rdma_rxe"
    same mode '"shared"' "$(json 0 status .rdma)"
    same rdma '["skip"]' "$(json 0 doctor '[.checks[] | select(.check == "rdma") | .verdict]')"
}

run_cases a_node_with_eight_rails_is_ready discover_takes_no_nic_for_a_rail_that_nothing_tells \
    status_shows_the_vf_of_a_pod a_pf_that_is_down_is_told_with_its_remedy \
    what_a_lost_del_left_is_told_and_reaped rdma_is_told_or_skipped_by_name
