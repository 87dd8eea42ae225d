#!/usr/bin/env bash
# /run/rail-cni is emptied while pods have VFs: nothing is on record of them, and the namespaces tell.
# Runs in the machine: scripts/lab --rails 2 --vfs 2 tests/lab/emptied.sh
# lab: --rails 2 --vfs 2
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# A pod has a VF, and no record tells of it.
forgotten_pod() {
    pod podA
    add podA net1 "$(conf 0 "$(vf 0)")"
    rm -rf /run/rail-cni
}

# tells_where WHAT TEXT [IFNAME POD]
tells_where() { contains "$1" "$(vf 0) is ${3:-net1} in the namespace /run/netns/${4:-podA}" "$2"; }

# status_of FILTER: its exit status says that there is something to do.
status_of() { { "$bin/railctl" status --output json || true; } | jq -r "$1"; }

# Settings that ADD could not have known are as the pod left them.
as_before() { ip link set ens0f0v0 mtu 1500; }

every_command_says_which_namespace_has_the_vf() {
    local said
    forgotten_pod
    said=$("$bin/railctl" status || true)
    tells_where "status" "$said"
    same "free VFs" "2 1 1" "$(status_of '.rails[0].vfs | "\(.enabled) \(.lost) \(.free)"')"
    said=$("$bin/railctl" doctor || true)
    tells_where "doctor" "$said"
    contains "doctor" FAIL "$(grep "podA" <<<"$said")"
    pod podB
    refused "$(vf 0) has no netdev on the host" ADD podB net1 "$(conf 0 "$(vf 0)")"
    # Nor is its address given with another VF.
    refused "reap --rebuild" ADD podB net1 "$(conf 0 "$(vf 0 1)")"
    contains "reap" "leased 172.16.0.0 to net1 in the namespace /run/netns/podA" "$("$bin/railctl" reap --rebuild)"
    refused "172.16.0.0 is held by net1 of pod /run/netns/podA" ADD podB net1 "$(conf 0 "$(vf 0 1)")"
    in_pod podA ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "the living pod has lost its rail"
    del podA net1 "$(conf 0 "$(vf 0)")"
    as_before
}

reap_rebuild_puts_it_on_record_and_its_end_is_as_any_other() {
    local config how
    config=$(conf 0 "$(vf 0)")
    for how in del death; do
        forgotten_pod
        contains "dry run" "would record it" "$("$bin/railctl" reap --rebuild --dry-run)"
        same "records" "" "$(state_files)"
        contains "reap" "recorded $(vf 0) (ens0f0v0)" "$("$bin/railctl" reap --rebuild)"
        same "records" 1 "$(find /run/rail-cni/attachments -type f | wc -l)"
        contains "again" "0 returned, 0 remaining, 1 in use" "$("$bin/railctl" reap --rebuild)"
        same "state" "live 172.16.0.0/31 0" "$(status_of '.attachments[0] | "\(.state) \(.addresses[0]) \(.rail)"')"
        pod podB
        refused "is attached to container rebuilt-" ADD podB net1 "$config"
        if [[ $how == del ]]; then
            del podA net1 "$config"
        else
            kill_pod podA
        fi
        add podB net1 "$config"
        in_pod podB ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "the next pod has no rail"
        del podB net1 "$config"
        same "the VF" "ens0f0v0 $(mac_of ens0f0v0) down" "$(device ens0f0v0 | cut -d' ' -f1,3-)"
        as_before
        tidy
        same "the node" "$pristine" "$(snapshot)"
    done
}

# A device that was found may be on record, or on the host, by the time that the record is written.
reap_rebuild_looks_again_before_it_writes() {
    local meanwhile reaping holding
    for meanwhile in added returned; do
        pod podA
        add podA net1 "$(conf 0 "$(vf 0)")"
        mv /run/rail-cni/attachments /run/kept
        flock "/run/rail-cni/locks/device-$(vf 0)" sh -c 'echo $$ >/run/holding; exec sleep 60' &
        until [[ -s /run/holding ]]; do sleep 0.01; done
        holding=$(</run/holding)
        # The copy in the lock file would be a record.
        : >"/run/rail-cni/locks/device-$(vf 0)"
        "$bin/railctl" reap --rebuild >/run/reaped &
        reaping=$!
        # It opens the lock file after its search.
        until find -L "/proc/$reaping/fd" -samefile "/run/rail-cni/locks/device-$(vf 0)" 2>/dev/null | grep -q .; do
            sleep 0.01
        done
        if [[ $meanwhile == added ]]; then
            mkdir -p /run/rail-cni/attachments
            cp /run/kept/* /run/rail-cni/attachments
        else
            ip -n podA link set net1 down
            ip -n podA link set net1 name ens0f0v0 netns 1
        fi
        kill "$holding"
        wait "$reaping"
        same "recorded" "" "$(grep recorded /run/reaped || true)"
        if [[ $meanwhile == returned ]]; then
            same "records" "" "$(find /run/rail-cni/attachments -type f)"
            cp /run/kept/* /run/rail-cni/attachments
        fi
        same "records" 1 "$(find /run/rail-cni/attachments -type f | wc -l)"
        del podA net1 "$(conf 0 "$(vf 0)")"
        rm -rf /run/kept /run/holding /run/reaped
        kill_pod podA
    done
}

# Another plugin may attach a device that still owes its name. A record that is rebuilt of that takes the name over.
an_add_of_an_indebted_vf_that_another_namespace_has_is_refused() {
    local name
    ip link set ens0f0v0 name mine0
    pod podA
    add podA net1 "$(conf 0 "$(vf 0)")"
    ip link add mine0 type veth peer name other
    del podA net1 "$(conf 0 "$(vf 0)")"
    name=$(basename "/sys/bus/pci/devices/$(vf 0)/net/"*)
    pod podB
    ip link set "$name" netns podB
    refused "$(vf 0) has no netdev on the host, and there is no record of it" ADD podA net1 "$(conf 0 "$(vf 0)")"
    tells_where status "$("$bin/railctl" status || true)" "$name" podB
    contains "reap" "$(vf 0)" "$("$bin/railctl" reap --rebuild || true)"
    same "pending" 0 "$(find /run/rail-cni/pending -type f | wc -l)"
    ip -n podB link set "$name" netns 1
    kill_pod podB
    ip link del mine0
    "$bin/railctl" reap >/dev/null
    same "name" mine0 "$(basename "/sys/bus/pci/devices/$(vf 0)/net/"*)"
    same "pending" 0 "$(find /run/rail-cni/pending -type f | wc -l)"
    ip link set mine0 name ens0f0v0
}

# A pod that is at home in no mounted namespace, with the interface renamed.
a_vf_of_a_process_is_found() {
    local pid
    forgotten_pod
    ip -n podA link set net1 down name mine
    ip netns exec podA sleep 60 &
    pid=$!
    until [[ $(readlink "/proc/$pid/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.01; done
    ip netns del podA
    contains "status" "$(vf 0) is mine in the namespace /proc/$pid/ns/net" "$("$bin/railctl" status || true)"
    "$bin/railctl" reap --rebuild >/dev/null
    kill "$pid"
    wait "$pid" || true
    wait_until has_netdevs "/sys/bus/pci/devices/$(vf 0)"
    contains "reap" "returned $(vf 0)" "$("$bin/railctl" reap)"
    as_before
}

run_cases every_command_says_which_namespace_has_the_vf reap_rebuild_puts_it_on_record_and_its_end_is_as_any_other \
    reap_rebuild_looks_again_before_it_writes an_add_of_an_indebted_vf_that_another_namespace_has_is_refused \
    a_vf_of_a_process_is_found
