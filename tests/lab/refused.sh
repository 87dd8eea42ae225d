#!/usr/bin/env bash
# What is not handed out of real NICs, with what the host or another pod uses it for.
# Runs in the machine: scripts/lab --rails 2 --vfs 2 --iommu --netdevsim tests/lab/refused.sh
# lab: --rails 2 --vfs 2 --iommu --netdevsim
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
bpf_link=$target/debug/examples/bpf-link
[[ -x $bpf_link ]] || die "no $bpf_link: cargo build --example bpf-link"

# refused_as TEXT KEYS: an ADD of VF 0 of rail 0, or of what KEYS say; nothing is changed.
refused_as() {
    local before
    before=$(snapshot)
    refused "$1" ADD pod1 net1 "${2:-$(conf 0 "$(vf 0)")}"
    same "the node after a refused ADD" "$before" "$(snapshot)"
}

# by_name DEVICE: without an id, without a rail.
by_name() {
    conf 0 x | jq -c --arg device "$1" 'del(.deviceID, .pciBusID, .runtimeConfig, .rail, .ipam) + {device: $device}'
}

# Every kind of link that takes the VF's frames, in a namespace that has a name; a VLAN, which gets only those with its
# tag, on a VF that is up.
links_of_other_namespaces_on_a_vf_are_seen() {
    local kind held=0
    pod pod1 && pod pod2
    modprobe -a macvlan ipvlan 8021q macsec
    ip link set ens0f0v0 up
    for kind in macvlan ipvlan macsec "vlan id 5"; do
        # shellcheck disable=SC2086 # the kind has its options behind it
        ip link add link ens0f0v0 name upper netns pod2 type $kind || continue
        refused_as "upper (${kind%% *}) is stacked on it, in the namespace /run/netns/pod2"
        ip -n pod2 link del upper
        held=$((held + 1))
    done
    ((held == 4)) || fail "$held of 4 kinds could be tried"
    ip link set ens0f0v0 down
    add pod1 net1 "$(conf 0 "$(vf 0)")"
    # Links that a pod has stacked on its own device are no matter of the host's.
    ip -n pod1 link add link net1 name upper type vlan id 7
    del pod1 net1 "$(conf 0 "$(vf 0)")"
}

is_added() { cni ADD "$@" && ((status == 0)); }

a_vlan_in_a_namespace_without_a_name_is_seen_on_a_vf_that_is_up() {
    local process
    pod pod1
    unshare --net sleep 60 &
    process=$!
    while [[ $(readlink "/proc/$process/ns/net") == $(readlink /proc/self/ns/net) ]]; do sleep 0.01; done
    ip link set ens0f0v0 up
    ip link add link ens0f0v0 name upper netns "$process" type vlan id 5
    refused_as "upper (vlan) is stacked on it, in the namespace /proc/$process/ns/net"
    kill "$process"
    wait "$process" || true
    # The kernel takes the namespace apart after the fact, and nothing else tells when that VLAN is gone.
    wait_until is_added pod1 net1 "$(conf 0 "$(vf 0)")"
    ((status == 0)) || fail "ADD: $output"
    del pod1 net1 "$(conf 0 "$(vf 0)")"
    # It was up, and is so again.
    ip link set ens0f0v0 down
}

# hide: a process in whose mount namespace alone the namespace "kept" has a name.
hide() {
    ip netns add kept
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount --propagation private sh -ec \
        'mount -t tmpfs t /mnt; touch /mnt/netns; mount --bind /run/netns/kept /mnt/netns; exec sleep 600' &
    hider=$!
    wait_until in_hiding ip link show lo
}

# in_hiding COMMAND: in that namespace.
in_hiding() { nsenter -t "$hider" -m nsenter --net=/mnt/netns "$@" &>/dev/null; }

# No search finds these, so the driver is bound again. A pod makes one on its rail, or by the number of the node's namespace
# on a free VF.
links_that_nobody_finds_end_with_the_driver() {
    local kind held=0 config
    config=$(conf 0 "$(vf 0)")
    modprobe -a macvlan ipvlan macsec 8021q
    pod pod1 && pod pod2
    for kind in "macvlan mode private" "ipvlan mode l2" macsec "vlan id 4094" "vlan id 0 protocol 802.1ad"; do
        hide
        add pod1 net1 "$config"
        # shellcheck disable=SC2086 # the kind has its options behind it
        ip -n pod1 link add link net1 name upper type $kind
        ip -n pod1 link set upper netns kept
        ip netns del kept
        in_hiding ip link show upper || fail "$kind: it is not hidden"
        del pod1 net1 "$config"
        ! in_hiding ip link show upper || fail "$kind: it is still there"
        add pod2 net1 "$config"
        in_pod pod2 ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "$kind: the leaf port does not answer"
        del pod2 net1 "$config"
        kill "$hider"
        wait "$hider" || true
        held=$((held + 1))
    done
    ((held == 5)) || fail "$held of 5 kinds were tried"

    # Also what would send into the network without VLANs, and get frames that have only a priority.
    for kind in "macvlan mode passthru" "vlan id 0"; do
        hide_on_free_vf "$kind"
        refused "takes its frames" ADD pod1 net1 "$config"
        same "code" 11 "$(jq .code <<<"$output")"
        ! in_hiding ip link show upper || fail "a free VF: it is still there"
        add pod1 net1 "$config"
        del pod1 net1 "$config"
        kill "$hider"
        wait "$hider" || true
    done
}

# hide_on_free_vf KIND: by the number of the node's namespace a pod can do it.
hide_on_free_vf() {
    hide
    # shellcheck disable=SC2086 # the kind has its options behind it
    ip link add link ens0f0v0 name upper netns kept type $1
    ip netns del kept
}

# As docs/security.md has it: an ADD asks for ids of VLANs only where the device is up.
a_hidden_vlan_on_a_free_vf_ends_with_the_next_pod_or_is_found_if_the_vf_is_up() {
    local config
    config=$(conf 0 "$(vf 0)")
    modprobe 8021q
    pod pod1
    hide_on_free_vf "vlan id 7"
    add pod1 net1 "$config"
    in_hiding ip link show upper || fail "it is gone before DEL"
    del pod1 net1 "$config"
    ! in_hiding ip link show upper || fail "it is there after DEL"
    kill "$hider"
    wait "$hider" || true

    hide_on_free_vf "vlan id 7"
    ip link set ens0f0v0 up
    refused "takes its frames" ADD pod1 net1 "$config"
    same "code" 11 "$(jq .code <<<"$output")"
    ! in_hiding ip link show upper || fail "the VF is up: it is still there"
    add pod1 net1 "$config"
    del pod1 net1 "$config"
    kill "$hider"
    wait "$hider" || true
    ip link set ens0f0v0 down
}

# Each change of a link waits for the others, wherever they are.
no_pod_that_changes_links_without_end_hides_a_vlan_behind_that() {
    local config begun flapper
    config=$(conf 0 "$(vf 0)")
    modprobe 8021q
    modprobe dummy numdummies=0
    pod pod1 && pod pod2
    for begun in {1..50}; do printf 'link add d%d type dummy\nlink del d%d\n' "$begun" "$begun"; done >/run/flap
    while :; do ip -n pod2 -force -batch /run/flap; done &>/dev/null &
    flapper=$!
    hide
    add pod1 net1 "$config"
    ip -n pod1 link add link net1 name upper netns kept type vlan id 4094
    ip netns del kept
    begun=$SECONDS
    del pod1 net1 "$config"
    kill "$flapper"
    wait "$flapper" || true
    ((SECONDS - begun < 60)) || fail "DEL took $((SECONDS - begun)) s"
    ! in_hiding ip link show upper || fail "it is still there"
    kill "$hider"
    wait "$hider" || true
}

a_pf_with_vfs_is_refused() {
    pod pod1
    refused_as "it has VFs (2): take one of them, or allow this with policy.pfsWithVfs" "$(conf 0 "$(pf 0)")"
}

a_vf_with_an_xdp_program_is_refused() {
    pod pod1
    ip link set ens0f0v0 xdpgeneric obj "$root/tests/xdp-drop.o" sec xdp || skip "ip or this kernel loads no XDP program"
    refused_as "it has an XDP program"
    ip link set ens0f0v0 xdpgeneric off
}

# hold HOOK NETDEV [COMMAND...]: holds a BPF program there, by COMMAND in a pod's namespace.
hold() {
    local hook=$1 netdev=$2
    shift 2
    "$@" "$bpf_link" "$hook" "$netdev" >/run/held 2>&1 &
    holder=$!
    wait_until grep -q held /run/held
}

# A process that holds a bpf_link holds the program, and neither netlink nor `ip` ends it.
programs_that_somebody_holds_end_with_the_driver() {
    local hook config
    config=$(conf 0 "$(vf 0)")
    pod pod1 && pod pod2
    for hook in xdp tcx; do
        hold "$hook" ens0f0v0
        refused_as "program"
        kill "$holder"
        wait "$holder" || true
        add pod1 net1 "$config"
        hold "$hook" net1 ip netns exec pod1
        del pod1 net1 "$config"
        add pod2 net1 "$config"
        in_pod pod2 ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "$hook: the leaf port does not answer"
        del pod2 net1 "$config"
        kill "$holder"
        wait "$holder" || true
    done
}

a_vf_with_a_filter_is_refused() {
    pod pod1
    modprobe -a sch_ingress cls_u32 || skip "no tc filters in this kernel"
    tc qdisc add dev ens0f0v0 clsact
    tc filter add dev ens0f0v0 ingress u32 match u32 0 0
    refused_as "it has a tc filter (u32)"
    tc qdisc del dev ens0f0v0 clsact
}

# A port of netdevsim has a bus, and is no function of a NIC.
other_kinds_of_netdev_need_a_policy() {
    local port ports
    pod pod1
    echo "7 1" >/sys/bus/netdevsim/new_device
    ports=(/sys/bus/netdevsim/devices/netdevsim7/net/*)
    port=${ports[0]##*/}
    jq '.rails = []' /etc/rail-cni/node.json >/run/node.json
    export RAIL_CNI_NODE_CONFIG=/run/node.json
    refused_as "netdev $port is a netdevsim device, not a PCI or auxiliary function" "$(by_name "$port")"
    allow_netdevsim
    add pod1 net1 "$(by_name "$port")"
    del pod1 net1 "$(by_name "$port")"
    # With rails listed, a port is on none.
    jq '.policy.kinds = ["netdevsim"]' /etc/rail-cni/node.json >/run/node.json
    export RAIL_CNI_NODE_CONFIG=/run/node.json
    refused_as "netdev $port (no PF)" "$(by_name "$port")"
    echo 7 >/sys/bus/netdevsim/del_device
}

the_rail_of_a_network_without_one_is_that_of_the_vf() {
    pod pod1
    add pod1 net1 "$(conf 1 "$(vf 1)" | jq -c 'del(.rail)')"
    contains "the rules" "lookup 101" "$(ip -n pod1 rule)"
    del pod1 net1 "$(conf 1 "$(vf 1)")"
}

# As a virtual machine does: whoever has the group open has the VF.
a_vf_whose_group_somebody_holds_is_refused() {
    local group vf
    vf=$(vf 1 1)
    [[ -e /sys/kernel/iommu_groups/0 ]] || skip "no IOMMU"
    echo "$vf" >"/sys/bus/pci/devices/$vf/driver/unbind"
    echo vfio-pci >"/sys/bus/pci/devices/$vf/driver_override"
    echo "$vf" >/sys/bus/pci/drivers_probe
    group=$(readlink "/sys/bus/pci/devices/$vf/iommu_group")
    group=/dev/vfio/${group##*/}
    pod pod1
    exec {held}<>"$group"
    refused_as "is held by process $BASHPID (" "$(conf 1 "$vf")"
    refused_as "which has $group open: end that first" "$(conf 1 "$vf")"
    exec {held}>&-
    add pod1 net1 "$(conf 1 "$vf")"
    # Its own program opens it then; that the pod has it is said first.
    exec {held}<>"$group"
    pod pod2
    refused "attached to" ADD pod2 net1 "$(conf 1 "$vf")"
    del pod1 net1 "$(conf 1 "$vf")"
    exec {held}>&-
    home_from_vfio "$vf" ens1f0v1
}

run_cases links_of_other_namespaces_on_a_vf_are_seen links_that_nobody_finds_end_with_the_driver \
    a_hidden_vlan_on_a_free_vf_ends_with_the_next_pod_or_is_found_if_the_vf_is_up \
    no_pod_that_changes_links_without_end_hides_a_vlan_behind_that \
    a_vlan_in_a_namespace_without_a_name_is_seen_on_a_vf_that_is_up a_pf_with_vfs_is_refused \
    a_vf_with_an_xdp_program_is_refused programs_that_somebody_holds_end_with_the_driver \
    a_vf_with_a_filter_is_refused other_kinds_of_netdev_need_a_policy \
    the_rail_of_a_network_without_one_is_that_of_the_vf a_vf_whose_group_somebody_holds_is_refused
