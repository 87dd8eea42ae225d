#!/usr/bin/env bash
# Disks that do not answer below log, store and run folder: every call ends with an answer, and nothing is lost.
# Runs in the machine: scripts/lab --rails 1 --vfs 1 tests/lab/hang.sh
# lab: --rails 1 --vfs 1
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

disk=/run/disk

# with_node FILTER: node.json with two seconds for a call, and changed by FILTER.
with_node() {
    jq ".callTimeout = 2 | $1" /etc/rail-cni/node.json >/run/hang.json
    export RAIL_CNI_NODE_CONFIG=/run/hang.json
}

# A file system whose server has died: each look at it waits, until SIGKILL, as on NFS that is mounted hard.
mount_of_the_dead() {
    mkdir -p "$disk"
    exec {server}<>/dev/fuse
    mount -i -t fuse -o "fd=$server,rootmode=40000,user_id=0,group_id=0" none "$disk"
}

bury() {
    umount -l "$disk"
    exec {server}>&-
}

nothing_is_lost() {
    local config
    config=$(conf 0 "$(vf 0)")
    unset RAIL_CNI_NODE_CONFIG
    del pod1 net1 "$config"
    add pod1 net1 "$config"
    in_pod pod1 ping -q -c 2 -W 5 172.16.0.1 >/dev/null || fail "the next ADD makes no rail"
    del pod1 net1 "$config"
}

# hangs_at WHAT: ADD, DEL and STATUS end by themselves, and say WHAT they were doing.
hangs_at() {
    local verb began
    pod pod1
    for verb in ADD DEL STATUS; do
        began=$SECONDS
        refused "longer than 2s and was ended" "$verb" pod1 net1 "$(conf 0 "$(vf 0)")"
        contains "$verb" "$1" "$output"
        ((SECONDS - began < 15)) || fail "$verb took $((SECONDS - began)) seconds"
    done
}

a_log_on_a_server_that_has_died_ends_no_call_without_an_answer() {
    mount_of_the_dead
    with_node ".log.file = \"$disk/log\""
    hangs_at "opening the log $disk/log"
    bury
    nothing_is_lost
}

a_store_on_a_server_that_has_died_ends_no_call_without_an_answer() {
    local said
    mount_of_the_dead
    with_node ".storeDir = \"$disk/store\""
    pod pod1
    refused "longer than 2s and was ended" ADD pod1 net1 "$(conf 0 "$(vf 0)")"
    # A request for the node's state gets an answer too.
    said=$(timeout 30 "$bin/railctl" doctor 2>&1) && fail "doctor: $said"
    contains "doctor" "the checks run and store" "$said"
    # It needs no store.
    del pod1 net1 "$(conf 0 "$(vf 0)")"
    bury
    nothing_is_lost
}

a_run_folder_on_a_server_that_has_died_ends_no_call_without_an_answer() {
    mount_of_the_dead
    with_node ".runDir = \"$disk/run\""
    pod pod1
    refused "longer than 2s and was ended" ADD pod1 net1 "$(conf 0 "$(vf 0)")"
    refused "longer than 2s and was ended" DEL pod1 net1 "$(conf 0 "$(vf 0)")"
    bury
    nothing_is_lost
}

# The kernel lets nobody go who writes to a frozen disk, not for SIGKILL either. The answer is out all the same.
a_log_on_a_frozen_disk_does_not_keep_the_answer() {
    local pid
    modprobe -a loop ext4
    truncate -s 16M /run/disk.img
    mkfs.ext4 -q /run/disk.img
    mkdir -p "$disk"
    mount -o loop /run/disk.img "$disk"
    : >"$disk/log"
    with_node ".log.file = \"$disk/log\" | .log.level = \"debug\""
    pod pod1
    fsfreeze --freeze "$disk"
    CNI_COMMAND=ADD CNI_CONTAINERID=pod1 CNI_NETNS=/run/netns/pod1 CNI_IFNAME=net1 CNI_PATH=$bin \
        "$bin/rail-cni" <<<"$(conf 0 "$(vf 0)")" >/run/answer 2>/run/answer.log &
    pid=$!
    for _ in {1..300}; do
        # jq 1.6 finds nothing wrong with nothing.
        [[ -s /run/answer ]] && break
        sleep 0.2
    done
    cat /run/answer.log
    ps -L -o pid,tid,stat,wchan:30,comm -p "$pid" || true
    contains "the answer" "writing the log" "$(cat /run/answer)"
    contains "its state" "D" "$(ps -o stat= -p "$pid" -L | tr -d '\n')"
    fsfreeze --unfreeze "$disk"
    wait "$pid" && fail "it succeeded after all"
    umount "$disk"
    nothing_is_lost
}

run_cases a_log_on_a_server_that_has_died_ends_no_call_without_an_answer \
    a_store_on_a_server_that_has_died_ends_no_call_without_an_answer \
    a_run_folder_on_a_server_that_has_died_ends_no_call_without_an_answer \
    a_log_on_a_frozen_disk_does_not_keep_the_answer
