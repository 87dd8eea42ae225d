#!/usr/bin/env bash
# Who can tell what lives: the host, whose first process can be asked here, and not a debug pod or a container.
# Runs in the machine: scripts/lab --rails 1 tests/lab/liveness.sh
# lab: --rails 1 --vfs 1
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,3s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# ipam COMMAND POD [WRAPPER...]: rail-ipam alone; sets $output and $status.
ipam() {
    local command=$1 pod=$2
    shift 2
    status=0
    output=$(CNI_COMMAND=$command CNI_CONTAINERID=$pod CNI_NETNS=/run/netns/$pod CNI_IFNAME=net1 CNI_PATH=$bin \
        "$@" "$bin/rail-ipam" <<<"$(conf 0 unused)") || status=$?
}

a_container_with_its_own_run_is_refused() {
    local own='mount -t tmpfs tmpfs /run; mkdir /run/netns; exec "$@"'
    pod pod1
    ipam ADD pod1 unshare --mount sh -c "$own" sh
    contains ADD "is not the directory that process 1 sees" "$output"
    ipam DEL pod1 unshare --mount sh -c "$own" sh
    contains DEL "HostToContainer" "$output"
    # kubens: other mounts, the same /run.
    ipam ADD pod1 unshare --mount && same "status of ADD" 0 "$status"
    ipam DEL pod1 unshare --mount && same "status of DEL" 0 "$status"
    same "what is left" '' "$(state_files)"
}

a_debug_pod_frees_nothing() {
    pod pod1
    ipam ADD pod1 && same "status of ADD" 0 "$status"
    status=0
    output=$(unshare --mount sh -c 'mount -t tmpfs tmpfs /run/netns; exec "$@"' sh "$bin/railctl" release --dead 2>&1) ||
        status=$?
    same "status of release" 1 "$status"
    contains release "cannot tell whether" "$output"
    ipam DEL pod1 && same "status of DEL" 0 "$status"
}

run_cases a_container_with_its_own_run_is_refused a_debug_pod_frees_nothing
