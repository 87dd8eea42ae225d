#!/usr/bin/env bash
# PFs that the host has configured go into pods with their addresses, and come back with them.
# Runs in the machine: scripts/lab --rails 2 --vfs 1 tests/lab/host.sh
# lab: --rails 2 --vfs 1
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The PF of rail 0, without VFs, as a host has it: with addresses, routes, a rule and a permanent neighbour.
configured() {
    jq '.policy += {hostAddresses: true, vfsOnly: false}' /etc/rail-cni/node.json >/run/host.json
    export RAIL_CNI_NODE_CONFIG=/run/host.json
    sysctl -qw net.ipv6.conf.ens0f0.accept_ra=0 net.ipv4.conf.ens0f0.arp_ignore=1
    ip addr add 172.16.0.0/31 dev ens0f0 metric 77
    ip addr add 10.8.0.1/24 dev ens0f0 valid_lft 5000 preferred_lft 4000
    ip -6 addr add fd00:10::/127 dev ens0f0 nodad
    ip route add 172.16.0.0/12 via 172.16.0.1 dev ens0f0 src 172.16.0.0 initcwnd 20
    ip route add 172.16.0.0/12 via 172.16.0.1 dev ens0f0 table 4242
    ip -6 route add fd00:10::/32 via fd00:10::1 dev ens0f0 metric 300
    ip rule add from 172.16.0.0 lookup 4242 priority 99
    ip neigh add 10.8.0.9 lladdr 02:00:00:00:00:99 dev ens0f0 nud permanent
}

# The node as it was before `configured`.
deconfigured() {
    ip rule del from 172.16.0.0 lookup 4242 priority 99
    ip addr flush dev ens0f0 scope global
    ip neigh flush dev ens0f0 nud permanent
    ip -6 route flush dev ens0f0 proto boot
    ip route flush table 4242 2>/dev/null || true
}

# The host's addresses and routes on the NIC. Times count down, IPv6 makes its local routes when it can, and the carrier
# comes later.
of_host() { all_of_host | sed -E 's/(lft) [0-9]+sec/\1 TIME/g; s/ (tentative|linkdown)//g'; }

all_of_host() {
    ip -details addr show dev ens0f0 | grep -E 'inet|lft' | grep -v fe80
    ip -details route show table all dev ens0f0
    ip -6 -details route show table all dev ens0f0 | grep -Ev 'fe80|^local|^anycast'
    ip rule
    ip neigh show nud permanent dev ens0f0
    sysctl net.ipv6.conf.ens0f0.accept_ra net.ipv4.conf.ens0f0.arp_ignore
    device ens0f0
}

with_host() { conf 0 "$(pf 0)" | jq -c '.ipam = {type: "rail-ipam", source: "host"}'; }

a_configured_pf_is_a_rail_and_the_host_has_it_again() {
    local before
    configured
    before=$(of_host)
    pod pod1
    for _ in 1 2 3; do
        add pod1 net1 "$(with_host)"
        contains "result" "172.16.0.0/31" "$output"
        in_pod pod1 ping -q -c 2 -w 20 172.16.0.1 >/dev/null || fail "the gateway does not answer the pod"
        contains "rules" "from 172.16.0.0 lookup 100" "$(ip -n pod1 rule)"
        del pod1 net1 "$(with_host)"
        same "the host" "$before" "$(of_host)"
    done
    ping -q -c 2 -w 20 172.16.0.1 >/dev/null || fail "the gateway does not answer the host"
    deconfigured
}

# The kernel brings the PF back down, without addresses, under the pod's name for it.
a_pf_of_a_pod_that_died_gets_its_addresses_back() {
    local before how
    configured
    before=$(of_host)
    for how in reap ADD; do
        pod pod1
        add pod1 net1 "$(with_host)"
        kill_pod pod1
        # The kernel resets the PF on its way to the host.
        until compgen -G "/sys/bus/pci/devices/$(pf 0)/net/*" >/dev/null; do sleep 0.1; done
        if [[ $how == reap ]]; then
            "$bin/railctl" reap 
        else
            pod pod2
            add pod2 net1 "$(with_host)"
            del pod2 net1 "$(with_host)"
        fi
        same "the host after $how" "$before" "$(of_host)"
    done
    deconfigured
}

a_pf_with_a_default_route_stays() {
    local before
    configured
    ip route add default via 172.16.0.1 dev ens0f0 table 77
    before=$(of_host)
    pod pod1
    refused "default route" ADD pod1 net1 "$(with_host)"
    same "the host" "$before" "$(of_host)"
    ip route del default table 77
    deconfigured
}

# Made anew, a VF has another name and MAC: so it goes before the first case, for all of them.
[[ ! -e /run/lab/job ]] || echo 0 >"/sys/bus/pci/devices/$(pf 0)/sriov_numvfs"
run_cases a_configured_pf_is_a_rail_and_the_host_has_it_again a_pf_of_a_pod_that_died_gets_its_addresses_back \
    a_pf_with_a_default_route_stays
