#!/usr/bin/env bash
# RDMA devices that move: with each VF goes its RDMA device, in a system whose RDMA namespaces are exclusive.
# Runs in the machine: scripts/lab --rails 4 --vfs 2 --rdma tests/lab/rdma-move.sh
# lab: --rails 4 --vfs 2 --rdma
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# rxe<RAIL><VF> on each VF.
make_devices() {
    local rail
    for rail in 0 1 2 3; do
        rdma link add "rxe${rail}0" type rxe netdev "ens${rail}f0v0"
        rdma link add "rxe${rail}1" type rxe netdev "ens${rail}f0v1"
    done
}

on_host() { rdma -j link show | jq -r '.[] | "\(.ifindex) \(.ifname) \(.netdev)"' | sort -n; }
in_namespace() { in_pod "$1" rdma -j link show | jq -r '[.[] | "\(.ifname) \(.netdev)"] | join(", ")'; }

the_device_goes_with_its_vf_and_comes_back() {
    local config before
    config=$(conf 0 "$(vf 0)" '"rdma": "required"')
    before=$(on_host)
    pod pod1
    add pod1 net1 "$config"
    same "in the pod" "rxe00 net1" "$(in_namespace pod1)"
    same "left on the host" "" "$(on_host | grep rxe00 || true)"
    same "status" '["rxe00"]' "$("$bin/rail-cni" status --output json | jq -c '[.. | objects | select(.ifname? == "net1") | .rdma[]]')"
    check pod1 net1 "$config" "$output"
    del pod1 net1 "$config"
    same "in the pod afterwards" "" "$(in_namespace pod1)"
    same "on the host" "$before" "$(on_host)"
}

check_sees_that_the_device_has_left_the_pod() {
    local config result
    config=$(conf 0 "$(vf 0)")
    pod pod1 && pod pod2
    add pod1 net1 "$config"
    result=$output
    check pod1 net1 "$config" "$result"
    in_pod pod1 rdma dev set rxe00 netns pod2
    check_fails "the RDMA device rxe00 is not in the pod" pod1 net1 "$config" "$result"
    in_pod pod2 rdma dev set rxe00 netns pod1
    check pod1 net1 "$config" "$result"
    del pod1 net1 "$config"
}

# The kernel moves it to the host with the namespace's end.
the_device_of_a_dead_pod_is_the_next_ones() {
    local config before way
    config=$(conf 0 "$(vf 0)" '"rdma": "required"')
    before=$(on_host)
    for way in del add reap; do
        pod pod1
        add pod1 net1 "$config"
        in_pod pod1 rdma dev set rxe00 name theirs
        kill_pod pod1
        case $way in
            del) del pod1 net1 "$config" ;;
            add)
                pod pod2
                add pod2 net1 "$config"
                same "in the next pod" "rxe00 net1" "$(in_namespace pod2)"
                # Its DEL is late, and takes nothing from pod 2.
                del pod1 net1 "$config"
                same "in the next pod" "rxe00 net1" "$(in_namespace pod2)"
                del pod2 net1 "$config"
                ;;
            reap) "$bin/rail-cni" reap >/dev/null ;;
        esac
        same "after $way" "$before" "$(on_host)"
    done
}

# Its index says which device it is.
a_name_that_the_pod_gave_it_goes_with_the_pod() {
    local config before
    config=$(conf 0 "$(vf 0)" '"rdma": "required"')
    before=$(on_host)
    pod pod1
    add pod1 net1 "$config"
    in_pod pod1 rdma dev set rxe00 name theirs
    check pod1 net1 "$config" "$output"
    del pod1 net1 "$config"
    same "on the host" "$before" "$(on_host)"
}

# A list of the kernel leaves one out when another one leaves its namespace meanwhile (nldev_get_dumpit).
of_eight_dels_at_once_none_loses_its_device() {
    local before rail vf calls=()
    before=$(on_host)
    pod pod1
    for rail in 0 1 2 3; do
        for vf in 0 1; do
            add pod1 "net$rail$vf" "$(conf "$rail" "$(vf "$rail" "$vf")" '"rdma": "required"' | jq -c 'del(.ipam)')"
        done
    done
    same "left on the host" "" "$(on_host)"
    for rail in 0 1 2 3; do
        for vf in 0 1; do
            del pod1 "net$rail$vf" "$(conf "$rail" "$(vf "$rail" "$vf")" | jq -c 'del(.ipam)')" &
            calls+=($!)
        done
    done
    for rail in "${calls[@]}"; do
        wait "$rail" || fail "a DEL failed"
    done
    same "on the host" "$before" "$(on_host)"
}

# The pod fails: nothing stays half moved.
an_add_that_fails_after_the_move_brings_the_device_back() {
    local before
    before=$(on_host)
    pod pod1
    refused "did not answer ARP" ADD pod1 net1 "$(conf 0 "$(vf 0)" \
        '"vlan": 77, "gatewayProbe": "require", "gatewayProbeTimeout": "1s"')"
    same "on the host" "$before" "$(on_host)"
    same "in the pod" "" "$(in_namespace pod1)"
}

# NCCL would go on with TCP, and nobody would know why the job is slow.
a_vf_without_a_device_whose_pf_has_one_is_warned_of() {
    local config said
    config=$(conf 1 "$(vf 1)")
    rdma link delete rxe10
    pod pod1
    said=$(cni ADD pod1 net1 "$config" 2>&1 && printf '%s' "$output")
    same "warnings where the PF has none" "" "$(grep "no RDMA device" <<<"$said" || true)"
    del pod1 net1 "$config"
    rdma link add rxe19 type rxe netdev ens1f0
    said=$(cni ADD pod1 net1 "$config" 2>&1)
    contains "the log" "has no RDMA device here, and its PF has one" "$said"
    del pod1 net1 "$config"
    refused "rdma" ADD pod1 net1 "$(conf 1 "$(vf 1)" '"rdma": "required"')"
    rdma link delete rxe19
    rdma link add rxe10 type rxe netdev ens1f0v0
}

make_devices
run_cases the_device_goes_with_its_vf_and_comes_back check_sees_that_the_device_has_left_the_pod \
    the_device_of_a_dead_pod_is_the_next_ones a_name_that_the_pod_gave_it_goes_with_the_pod \
    of_eight_dels_at_once_none_loses_its_device an_add_that_fails_after_the_move_brings_the_device_back \
    a_vf_without_a_device_whose_pf_has_one_is_warned_of
