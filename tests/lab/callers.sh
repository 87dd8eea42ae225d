#!/usr/bin/env bash
# containerd and Multus with real VFs: sandboxes with eight rails, by CRI.
# Runs in the machine: scripts/lab tests/lab/callers.sh
# lab: --rails 8 --vfs 1
# callers: containerd-2.4.2 runc-1.5.2 cri multus-4.3.0
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,3s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

all='0 1 2 3 4 5 6 7'
callers=$(cache_dir)/callers
peers=$("$root/scripts/cnitool" --peers 2>/dev/null) || peers=
socket=/run/containerd/containerd.sock
networks=/etc/cni/net.d

a_sandbox_gets_a_network_for_each_of_eight_rails() {
    begin
    add_networks
    start_containerd
    start_sandbox
    has_all_rails eth
    stop_sandbox
}

a_sandbox_gets_eight_rails_by_multus() {
    begin
    add_multus
    start_containerd
    start_sandbox
    has_all_rails net
    stop_sandbox
}

# The kernel returns the VFs under the names that they had in the pod.
the_rails_are_restored_when_the_namespace_is_gone_before_stop() {
    begin
    add_multus
    start_containerd
    start_sandbox
    # shellcheck disable=SC2046
    kill -9 $(ip netns pids "$netns")
    ip netns del "$netns"
    local deadline=$((SECONDS + 60))
    until (($(find /sys/bus/pci/drivers/igbvf/*/net -mindepth 1 -maxdepth 1 | wc -l) == 8)); do
        ((SECONDS < deadline)) || fail "the kernel has not returned the VFs after a minute"
        sleep 0.1
    done
    stop_sandbox
}

nothing_is_left_when_containerd_is_killed_in_the_middle() {
    begin
    add_networks
    start_containerd
    local deadline=$((SECONDS + 60)) id
    cri run pod-killed /rail-cni-callers >/dev/null 2>&1 &
    until (($(find /run/rail-cni/attachments -name '*.json' 2>/dev/null | wc -l) >= 3)); do
        ((SECONDS < deadline)) || fail "no three rails after a minute"
    done
    kill -9 "$daemon"
    wait "$daemon" 2>/dev/null || true
    start_containerd
    for id in $(cri list | jq -r '.[].id'); do
        cri stop "$id" >/dev/null
    done
}

# --- the node --------------------------------------------------------------------------------------------------

# Empty directories, the plugins, and containerd's end with the case.
begin() {
    local name
    for name in containerd-2.4.2/bin/containerd runc-1.5.2/bin/runc cri/bin/cri multus-4.3.0/bin/multus; do
        [[ -x $callers/$name ]] || skip "$callers has no $name: scripts/callers gets it"
    done
    [[ -x $peers/ptp ]] || skip "no plugins of upstream: scripts/cnitool --peers gets them"
    trap 'end' EXIT
    rm -rf "$networks"
    mkdir -p "$networks" /opt/cni/bin /etc/containerd
    ln -sf "$peers"/* "$bin/rail-cni" "$bin/rail-ipam" "$callers/multus-4.3.0/bin/multus" /opt/cni/bin/
    mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mountpoint -q /var/lib/containerd || { mkdir -p /var/lib/containerd && mount -t tmpfs tmpfs /var/lib/containerd; }
    cat >/etc/containerd/config.toml <<-EOF
	version = 3
	[plugins.'io.containerd.cri.v1.images'.pinned_images]
	sandbox = 'rail-cni.test/pause:1'
	[plugins.'io.containerd.cri.v1.runtime'.cni]
	max_conf_num = 0
	use_internal_loopback = true
	[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
	runtime_type = 'io.containerd.runc.v2'
	[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
	BinaryName = '$callers/runc-1.5.2/bin/runc'
	EOF
}

end() {
    local path
    pkill -9 -f "$callers/" || true
    pkill -9 -x pause || true
    for path in /run/netns/cni-*; do
        [[ ! -e $path ]] || ip netns del "${path##*/}"
    done
}

start_containerd() {
    local deadline=$((SECONDS + 60))
    PATH=$callers/containerd-2.4.2/bin:$PATH containerd >>/run/containerd.log 2>&1 &
    daemon=$!
    until cri status 2>/dev/null |
        jq -e '[.conditions[] | select(.type | endswith("Ready")) | .status == true] | all' >/dev/null; do
        ((SECONDS < deadline)) || fail "not ready: $(cri status 2>&1) $(tail -n 5 /run/containerd.log)"
        sleep 0.1
    done
    "$callers/cri/bin/cri" image /run/pause.tar
    "$callers/containerd-2.4.2/bin/ctr" -n k8s.io images import --local /run/pause.tar >/dev/null
}

cri() { "$callers/cri/bin/cri" "$socket" "$@"; }

# eth0: a veth that goes with the pod.
eth0() {
    printf '{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {"type": "host-local",
        "ranges": [[{"subnet": "10.244.0.0/24"}]]}}]}'
}

# network RAIL
network() {
    jq -c --argjson rail "$1" --arg vf "$(vf "$1")" '.name = "rail-\($rail)" | .plugins[0] |= (.rail = $rail |
        .pciBusID = $vf | .ipam.pool = "rail-\($rail)")' "$root/conf/net.d/20-rail-0.conflist"
}

add_networks() {
    local rail
    setup='containerd 2.4.2 with a network per rail'
    eth0 >"$networks/10-pods.conflist"
    for rail in $all; do
        network "$rail" >"$networks/2$rail-rail-$rail.conflist"
    done
}

# Its networks are in its own file: there is no API server here.
add_multus() {
    local rail
    setup='containerd 2.4.2 with Multus 4.3.0'
    { eth0 && for rail in $all; do network "$rail"; done; } |
        jq -s '{cniVersion: "1.0.0", name: "multus-cni-network", type: "multus", delegates: .}' >"$networks/00-multus.conf"
}

# Sets $sandbox and $netns, and how long it took.
start_sandbox() {
    local answer
    answer=$(cri run pod1 /rail-cni-callers 2>&1) || fail "$answer"
    sandbox=$(jq -r .id <<<"$answer")
    netns=$(jq -r '.info.runtimeSpec.linux.namespaces[] | select(.type == "network").path' <<<"$answer")
    netns=${netns##*/}
    up=$(jq .ms <<<"$answer")
}

# has_all_rails PREFIX: each with its address, and a frame of 9000 bytes to its leaf port.
has_all_rails() {
    local rail second
    for rail in $all; do
        second=$((16 + 2 * rail))
        contains "rail $rail" "172.$second.0.0/31" "$(ip -n "$netns" -br addr show dev "$1$((rail + 1))")"
        ip netns exec "$netns" ping -q -n -c 1 -W 10 -M "do" -s 8972 -I "$1$((rail + 1))" "172.$second.0.1" >/dev/null ||
            fail "rail $rail does not reach its leaf"
    done
}

stop_sandbox() {
    local answer
    answer=$(cri stop "$sandbox" 2>&1) || fail "$answer"
    cri stop "$sandbox" >/dev/null
    cri remove "$sandbox" >/dev/null
    printf '  up %4.0f ms, down %4.0f ms: %s\n' "$up" "$(jq .ms <<<"$answer")" "$setup" >>/run/times
}

trap '[[ ! -e /run/times ]] || cat /run/times' EXIT
run_cases a_sandbox_gets_a_network_for_each_of_eight_rails a_sandbox_gets_eight_rails_by_multus \
    the_rails_are_restored_when_the_namespace_is_gone_before_stop nothing_is_left_when_containerd_is_killed_in_the_middle
