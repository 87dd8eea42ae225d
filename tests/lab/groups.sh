#!/usr/bin/env bash
# The control groups of version 2 that scripts/cluster makes: on a whole machine, and in a container.
# Runs in the machine: scripts/lab tests/lab/groups.sh
# lab: --rails 1 --vfs 1
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,3s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$root/scripts/cluster.d/lib.sh"

readonly at=/sys/fs/cgroup

the_root_hands_on_what_the_cluster_needs_and_is_restored() {
    begin
    lives_and_ends
}

what_the_root_hands_on_already_stays() {
    begin
    printf '+memory' >"$at/cgroup.subtree_control"
    lives_and_ends
    printf -- '-memory' >"$at/cgroup.subtree_control"
}

processes_of_a_container_make_room_and_return() {
    begin
    hand_on "$at" >/dev/null
    mkdir -p "$at/container"
    # shellcheck disable=SC2016
    (
        printf '%s\n' "$BASHPID" >"$at/container/cgroup.procs"
        exec unshare -Cm "$BASH" -euo pipefail -c 'at=$1 && umount "$at" && mount -t cgroup2 cgroup2 "$at" && source "$2"
            sleep 60 & other=$!
            lives_and_ends
            [[ $(cat "/proc/$other/cgroup") == 0::/ ]] || fail "a process has not returned"
            kill "$other"' bash "$at" <(declare -f && declare -p root own_group inner aside cluster controllers)
    )
    rmdir "$at/container"
}

begin() {
    mountpoint -q "$at" || mount -t cgroup2 cgroup2 "$at"
    groups=
}

# A cluster with a node, which reboots.
lives_and_ends() {
    local before node controller back
    before=$(seen)
    prepare_root
    groups=$(make_groups "$own_group.1")
    mkdir -p "$cluster"
    printf '%s\n' "$groups" >"$cluster/groups"
    for node in worker-gpu-0 worker-gpu-0; do
        make_node_groups "$node"
        printf '%s\n' "$BASHPID" >"$groups/$node$inner/cgroup.procs"
        # As its kubelet does.
        hand_on "$groups/$node" >/dev/null
        mkdir "$groups/$node/kubepods"
        for controller in memory.max cpu.weight cpuset.cpus pids.max; do
            [[ -e $groups/$node/kubepods/$controller ]] || fail "kubepods has no $controller"
        done
        # It dies.
        back=$at
        [[ ! -d $aside ]] || back=$aside
        printf '%s\n' "$BASHPID" >"$back/cgroup.procs"
    done
    remove_groups "$groups"
    restore_root
    [[ $(seen) == "$before" ]] || fail "before: $before; after: $(seen)"
}

# The groups, what the root hands on, and where this process is.
seen() {
    find "$at" -type d
    cat "$at/cgroup.subtree_control" "/proc/$BASHPID/cgroup"
}

run_cases the_root_hands_on_what_the_cluster_needs_and_is_restored what_the_root_hands_on_already_stays \
    processes_of_a_container_make_room_and_return
