#!/usr/bin/env bash
# RDMA devices in the shared mode, in which every namespace sees all of them. On each PF, on each VF.
# Runs in the machine: scripts/lab --rails 2 --vfs 2 --rdma-shared tests/lab/rdma-shared.sh
# lab: --rails 2 --vfs 2 --rdma-shared
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

names() { rdma -j dev show | jq -r '.[] | "\(.ifindex) \(.ifname)"' | sort -n; }

the_gid_of_the_address_is_there_when_add_returns() {
    local config result info=/var/run/k8s.cni.cncf.io/devinfo/cni/pod1-net1
    config=$(conf 0 "$(vf 0)" '"gid": "require"' | jq -c --arg info "$info" '.runtimeConfig.CNIDeviceInfoFile = $info')
    pod pod1
    add pod1 net1 "$config"
    result=$output
    same "device-info" '["rxe00",1,"172.16.0.0"]' \
        "$(jq -c '[.pci["rdma-device"], ."rail-cni".gids[0].index, ."rail-cni".gids[0].address]' "$info")"
    check pod1 net1 "$config" "$result"
    ip -n pod1 addr del 172.16.0.0/31 dev net1
    check_fails "has no RoCE v2 GID of 172.16.0.0 on net1" pod1 net1 "$config" "$result"
    del pod1 net1 "$config"
}

# In this mode each pod with NET_ADMIN can rename each device. No directory can list this name.
a_name_with_a_slash_keeps_no_vf_from_its_pod() {
    local config said keys
    rdma dev set rxe00 name a/b || skip "this kernel refuses a/b"
    pod pod1
    for keys in '"rdma": "auto"' '"rdma": "off"'; do
        config=$(conf 0 "$(vf 0)" "$keys")
        said=$(cni ADD pod1 net1 "$config" 2>&1 && exit "$status") || fail "$keys: ADD: $said"
        contains "what is said" "without RDMA" "$said"
        del pod1 net1 "$config"
    done
    refused "rdma dev set" ADD pod1 net1 "$(conf 0 "$(vf 0)" '"rdma": "required"')"
    rdma dev set a/b name rxe00
}

# No RDMA device of that VF will have it.
a_gid_that_does_not_come_is_told_and_undone_where_it_is_required() {
    local config
    rdma link delete rxe00
    config=$(conf 0 "$(vf 0)" '"gid": "require"')
    pod pod1
    refused "gid: require" ADD pod1 net1 "$config"
    add pod1 net1 "$(conf 0 "$(vf 0)")"
    del pod1 net1 "$(conf 0 "$(vf 0)")"
    rdma link add rxe00 type rxe netdev ens0f0v0
}

a_name_is_given_checked_and_taken_back() {
    local config before name='"rdmaDeviceName": "rdma_rail-0"' way
    before=$(names)
    config=$(conf 0 "$(vf 0)" "$name")
    for way in del add reap; do
        pod pod1
        add pod1 net1 "$config"
        contains "the devices" rdma_rail-0 "$(names)"
        check pod1 net1 "$config" "$output"
        case $way in
            del) del pod1 net1 "$config" && ip netns del pod1 ;;
            reap) kill_pod pod1 && "$bin/railctl" reap >/dev/null ;;
            add)
                kill_pod pod1
                pod pod2
                add pod2 net1 "$config"
                del pod1 net1 "$config"
                contains "the devices" rdma_rail-0 "$(names)"
                del pod2 net1 "$config"
                ;;
        esac
        same "the devices after $way" "$before" "$(names)"
    done
    pod pod1
    refused "rdmaDeviceName" ADD pod1 net1 "$(conf 0 "$(vf 0)" '"rdmaDeviceName": "rxe01"')"
    same "the devices" "$before" "$(names)"
}

# The leaf must not send to the VF that had the address before.
the_leaf_learns_the_mac_of_another_vf_within_a_second() {
    local config number mac tenths
    for number in 0 1 0 1; do
        config=$(conf 0 "$(vf 0 "$number")")
        pod pod1
        add pod1 net1 "$config"
        mac=$(in_pod pod1 cat /sys/class/net/net1/address)
        tenths=0
        until [[ $(ip -n leaf -json neigh show 172.16.0.0 | jq -r '.[].lladdr') == "$mac" ]]; do
            ((tenths++ < 10)) || fail "the leaf has $(ip -n leaf neigh show 172.16.0.0) a second after the ADD, not $mac"
            sleep 0.1
        done
        echo "VF $number: $tenths tenths of a second"
        in_pod pod1 ping -c 1 -W 2 172.16.0.1 >/dev/null || fail "no ping by VF $number"
        del pod1 net1 "$config"
        ip netns del pod1
    done
}

# The peer is a pod on another rail, which the plan calls the same one.
preflight_measures_bandwidth_with_perftest() {
    local said server index
    has ib_write_bw || skip "no ib_write_bw here: apt-get install perftest"
    pod pod1
    add pod1 net1 "$(conf 1 "$(vf 1)" '"gid": "require"')"
    index=$("$bin/railctl" status --output json | jq '.attachments[0].gids[0].index')
    in_pod pod1 ib_write_bw -F --report_gbits -D 2 -d rxe10 -i 1 -x "$index" -p 18515 >/run/server 2>&1 &
    server=$!
    jq '.rails |= map(select(.rail == 0))' /etc/rail-cni/node.json >/run/one.json
    printf '%s\n' node,rail,plane,pool,family,address,gateway,prefix,interface,leaf,port,mtu \
        lab-node,0,,rail-0,ipv4,172.16.0.0,,172.16.0.0/31,,leaf-a,, other,0,,rail-0,ipv4,172.18.0.0,,172.18.0.0/31,,leaf-b,, >/run/plan.csv
    said=$(RAIL_CNI_NODE_CONFIG=/run/one.json "$bin/railctl" preflight --plugins-dir "$bin" --plan /run/plan.csv --bandwidth \
        --for 20 --output json) || fail "$said; the server: $(cat /run/server)"
    echo "$said"
    jq -e '.rails[0].bandwidth | .node == "other" and .gbits > 0' <<<"$said" >/dev/null || fail "no bandwidth: $said"
    wait "$server" || fail "the server: $(cat /run/server)"
    del pod1 net1 "$(conf 1 "$(vf 1)")"
}

rxe_on_vfs 2
run_cases preflight_measures_bandwidth_with_perftest the_gid_of_the_address_is_there_when_add_returns a_name_with_a_slash_keeps_no_vf_from_its_pod \
    a_gid_that_does_not_come_is_told_and_undone_where_it_is_required a_name_is_given_checked_and_taken_back \
    the_leaf_learns_the_mac_of_another_vf_within_a_second
