#!/usr/bin/env bash
# Eight rails with real VFs: attach, frames of 9000 bytes, all pairs, give back; PFs; what is refused.
# Runs in the machine: scripts/lab tests/lab/rails.sh
# lab: --rails 8 --vfs 1
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

all='0 1 2 3 4 5 6 7'

a_pod_has_eight_rails_and_all_go_back() {
    local rail second results=() link leaves
    pod pod1
    for rail in $all; do
        add pod1 "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail")")"
        results[rail]=$output
        same "pciID of rail $rail" "$(vf "$rail")" "$(jq -r '.interfaces[0].pciID' <<<"$output")"
    done
    same "devices left on the host" "" "$(ip -br link show | grep -oE 'ens.f0v.' || true)"
    for rail in $all; do
        link=$(ip -n pod1 -json addr show "net$((rail + 1))")
        second=$((16 + 2 * rail))
        same "rail $rail" "9000 172.$second.0.0/31 true" "$(jq -r '.[0] | (.addr_info[] | select(.family == "inet")) as $a |
            "\(.mtu) \($a.local)/\($a.prefixlen) \(.flags | index("UP") != null)"' <<<"$link")"
    done
    same "default routes" "" "$(ip -n pod1 route show default table all)"

    leaves=$(reach pod1 0.1 -I)
    same "leaf ports that answer a frame of 9000 bytes" "$all" "$leaves"

    for rail in $all; do
        check pod1 "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail")")" "${results[rail]}"
    done
    ip -n pod1 link set net3 mtu 1500
    check_fails MTU pod1 net3 "$(conf 2 "$(vf 2)")" "${results[2]}"
    for rail in $all; do
        del pod1 "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail")")"
    done
    same "links left in the pod" "lo" "$(ip -n pod1 -json link show | jq -r '.[].ifname')"
}

# reach POD SUFFIX [-I]: rails R on which 172.(16+2R).SUFFIX answers a full frame, all asked at once; with -I from
# this rail's own interface.
reach() {
    local rail from=()
    rm -f /run/reached.*
    for rail in $all; do
        [[ ! ${3:-} ]] || from=(-I "net$((rail + 1))")
        (in_pod "$1" ping -q -c 3 -i 1 -W 5 -M "do" -s 8972 "${from[@]}" "172.$((16 + 2 * rail)).$2" \
            >/dev/null 2>&1 && : >"/run/reached.$rail") &
    done
    wait
    for rail in $all; do
        [[ ! -e /run/reached.$rail ]] || printf '%s ' "$rail"
    done | sed 's/ $//'
}

# Pod A has the even rails, pod B the odd ones: every frame between them goes through the leaf.
one_pods_rails_reach_the_others_through_the_leaf() {
    local rail
    pod podA && pod podB
    for rail in 0 2; do
        add podA "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail")")"
    done
    for rail in 1 3; do
        add podB "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail")")"
    done
    local from to
    for from in 0 2; do
        for to in 1 3; do
            in_pod podA ping -q -c 2 -W 5 -M "do" -s 8972 -I "172.$((16 + 2 * from)).0.0" "172.$((16 + 2 * to)).0.0" \
                >/dev/null || fail "rail $from does not reach rail $to"
        done
    done
    for rail in 0 2; do
        del podA "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail")")"
    done
    for rail in 1 3; do
        del podB "net$((rail + 1))" "$(conf "$rail" "$(vf "$rail")")"
    done
}

# The VF of another rail's PF: the resource of the network is wrong. Nothing has moved, nothing is leased.
a_vf_of_another_rail_is_refused_before_anything_moves() {
    pod pod1
    refused "belongs to PF $(pf 4) (rail 4)" ADD pod1 net1 "$(conf 3 "$(vf 4)")"
    contains "the message" "rail 3: VF $(vf 4)" "$output"
    same "after the refusal" "$pristine" "$(snapshot)"
    del pod1 net1 "$(conf 3 "$(vf 4)")"
}

what_cannot_be_is_refused_before_anything_moves() {
    pod pod1
    refused "0000:7f:10.7" ADD pod1 net1 "$(conf 0 0000:7f:10.7)"
    refused "92000 is outside of what" ADD pod1 net1 "$(conf 0 "$(vf 0)" | sed 's/"mtu": 9000/"mtu": 92000/')"
    refused "name two devices" ADD pod1 net1 "$(conf 0 "$(vf 0)" | sed "s/\"pciBusID\": \"$(vf 0)\"/\"pciBusID\": \"$(vf 1)\"/")"
    refused "is not one of on, off" ADD pod1 net1 "$(conf 0 "$(vf 0)" '"trust": "maybe"')"
    refused "vlan: 4095" ADD pod1 net1 "$(conf 0 "$(vf 0)" '"vlan": 4095')"
    refused "vlanQoS: needs a vlan" ADD pod1 net1 "$(conf 0 "$(vf 0)" '"vlanQoS": 3')"
    same "after the refusals" "$pristine" "$(snapshot)"
}

# Above the PF's MTU no frame would pass, whatever the VF says.
an_mtu_above_the_pfs_is_refused() {
    pod pod1
    ip link set ens5f0 mtu 1500
    refused "ens5f0" ADD pod1 net1 "$(conf 5 "$(vf 5)")"
    ip link set ens5f0 mtu 9000
    same "after the refusal" "$pristine" "$(snapshot)"
}

# No function of the bus has a driver that is not told so: unbound is not a netdev that is gone.
an_unbound_vf_is_refused() {
    pod pod1
    local vf name
    vf=$(vf 6) name=ens6f0v0
    local before mac
    mac=$(mac_of "$name")
    echo "$vf" >/sys/bus/pci/drivers/igbvf/unbind
    refused "no driver" ADD pod1 net1 "$(conf 6 "$vf")"
    echo "$vf" >/sys/bus/pci/drivers/igbvf/bind
    rename_back "$vf" "$name" "$mac"
}

rename_back() {
    local found=("/sys/bus/pci/devices/$1/net/"*)
    [[ ${found[0]##*/} == "$2" ]] || ip link set "${found[0]##*/}" name "$2"
    ip link set "$2" address "$3"
}

# A PF is a device too, if the policy says so and none of its VFs is away.
a_pf_is_attached_and_given_back() {
    pod pod1
    local name=ens7f0 before
    ip link set "$name" down
    before=$(device "$name")
    refused "it has VFs" ADD pod1 net1 "$(conf 7 "$(pf 7)")"
    jq '.policy.pfsWithVfs = true' /etc/rail-cni/node.json >/run/node.json
    export RAIL_CNI_NODE_CONFIG=/run/node.json
    add pod1 net1 "$(conf 7 "$(pf 7)")"
    same "the PF in the pod" "$(pf 7)" "$(jq -r '.interfaces[0].pciID' <<<"$output")"
    same "the PF on the host" "" "$(ip -br link show "$name" 2>/dev/null || true)"
    in_pod pod1 ping -q -c 3 -W 5 -M "do" -s 8972 172.30.0.1 >/dev/null || fail "the leaf port does not answer"
    del pod1 net1 "$(conf 7 "$(pf 7)")"
    same "the PF afterwards" "$before" "$(device "$name")"
    ip link set "$name" up
}

run_cases a_pod_has_eight_rails_and_all_go_back one_pods_rails_reach_the_others_through_the_leaf \
    a_vf_of_another_rail_is_refused_before_anything_moves what_cannot_be_is_refused_before_anything_moves \
    an_mtu_above_the_pfs_is_refused an_unbound_vf_is_refused a_pf_is_attached_and_given_back
