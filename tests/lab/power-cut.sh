#!/usr/bin/env bash
# The power fails while the store is written, on each file system: tests/lab/powercut.rs says what is tried.
# Runs in the machine: scripts/lab --rails 1 tests/lab/power-cut.sh; RAIL_CUTS is the number of cuts on each.
# lab: --rails 1 --vfs 0 --timeout 900
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cuts=${RAIL_CUTS:-40}
nodes=12
under=()
powercut=$target/debug/examples/powercut
folder=/dev/shm/cut # of memory
disk=$folder/mounted
export DM_DISABLE_UDEV=1 # the machine has none
exec 3>&1

ext4_has_the_old_plan_or_the_new() { tries ext4 24M; }
ext4_that_commits_all_the_time_has_the_old_plan_or_the_new() { tries ext4 24M busy; }
xfs_has_the_old_plan_or_the_new() { tries xfs 300M; }
xfs_that_commits_all_the_time_has_the_old_plan_or_the_new() { tries xfs 300M busy; }
btrfs_has_the_old_plan_or_the_new() { tries btrfs 128M; }
btrfs_that_commits_all_the_time_has_the_old_plan_or_the_new() { tries btrfs 128M busy; }

# Without railctl's waits for the disk, a store that is written wrongly is found.
without_waits_for_the_disk_plans_are_lost() {
    has strace || skip "no strace"
    under=(strace -qq -o /dev/null -e inject=syncfs:retval=0)
    local type cuts=20
    for type in ext4 xfs btrfs; do
        has "mkfs.$type" || continue
        contains "$type without waits" $'\nwrong: flush ' "$( (tries "$type" 300M) 2>&1 || true)"
    done
}

# tries TYPE SIZE [busy]: records the changes and cuts them. `busy`: somebody else lets the file system write what it has
# without a pause.
tries() {
    local type=$1 busy=${3:-} options='' status=0
    [[ $type != btrfs ]] || options=nodiscard
    has dmsetup || skip "no dmsetup"
    has "mkfs.$type" || skip "no mkfs.$type"
    modprobe -a loop dm-mod dm-log-writes "$type" || skip "the kernel lacks dm-log-writes or $type"
    clean
    mkdir -p "$disk" "$folder/plan-0"
    truncate -s "$2" "$folder/image"
    truncate -s 256M "$folder/log"
    # The background work of a file system would be most of the recording.
    [[ $type != ext4 ]] || set -- "$1" "$2" "$busy" -E lazy_itable_init=0,lazy_journal_init=0
    "mkfs.$type" -q "$folder/image" "${@:4}"
    cp --sparse=always "$folder/image" "$folder/base"
    local device log
    device=$(losetup -f --show "$folder/image")
    log=$(losetup -f --show "$folder/log")
    dmsetup create cut --table "0 $(blockdev --getsz "$device") log-writes $device $log"
    mount -t "$type" ${options:+-o "$options"} /dev/mapper/cut "$disk"
    local noise=''
    [[ ! $busy ]] || { while sync -f "$disk"; do :; done & noise=$!; }
    change_the_store
    if [[ $noise ]]; then
        kill "$noise"
        wait "$noise" || true
    fi
    umount "$disk"
    dmsetup remove cut
    losetup -d "$log"
    "$powercut" "$cuts" "$folder" "$folder/image" "$disk" "$type" "$options" "$device" >"$folder/found" || status=$?
    cat "$folder/found"
    # The figures, even if all is well. Who plays without waits has others.
    ((${#under[@]})) || sed "s/^/  $type${busy:+, busy}: /" "$folder/found" >&3
    clean
    return "$status"
}

# Removes the remains of a failed case, too.
clean() {
    ! mountpoint -q "$disk" || umount "$disk"
    [[ ! -e /dev/mapper/cut ]] || dmsetup remove cut
    losetup -D
    rm -rf "$folder"
}

# Every kind of step that railctl has for a node: a first directory, another one in its place, one file in the place of
# another, a removed one; and all that write.
change_the_store() {
    printf '{"nodeName": "node-1", "storeDir": "%s/store"}\n' "$disk" >"$folder/node.json"
    manifests 1 >"$folder/1.json"
    manifests 2 >"$folder/2.json"
    sed 's/"node-2"/"node-102"/' "$folder/1.json" >"$folder/renamed.json"
    change 1 import --all-nodes "$folder/1.json"
    change 2 import --all-nodes --prune "$folder/2.json"
    change 3 import --all-nodes --prune "$folder/1.json"
    change 4 import --all-nodes --replaces node-102=node-2 "$folder/renamed.json"
    change 5 plan "$folder/2.json" --to store --all-nodes --prune --allow missing-rail
}

# change N ARGUMENT...
change() {
    local number=$1
    shift
    {
        printf 'export RAIL_CNI_NODE_CONFIG=%q\n' "$folder/node.json"
        printf 'exec'
        printf ' %q' "${under[@]}" "$bin/railctl" "$@"
        printf '\n'
    } >"$folder/change-$number"
    dmsetup message cut 0 mark "begin-$number"
    bash "$folder/change-$number" >"$folder/out" 2>&1 || fail "change $number: $(<"$folder/out")"
    dmsetup message cut 0 mark "end-$number"
    cp -r "$disk/store" "$folder/plan-$number"
}

# manifests PLAN: two pools. In plan 1 every fourth node is missing, in plan 2 every third; every second node is in both
# pools, the others in one.
manifests() {
    jq -n --argjson plan "$1" --argjson nodes "$nodes" '
        def rows(base; length): [range(1; $nodes + 1)
            | select(. % (if $plan == 1 then 4 else 3 end) != 0 and (length == 31 or . % 2 == 0))
            | {nodeName: "node-\(.)", prefix: "\(base)\(if length == 31 then 2 * . | tostring else "\(2 * .)" end)/\(length)"}];
        def pool(name; cidr; length; base): {apiVersion: "nv-ipam.nvidia.com/v1alpha1", kind: "CIDRPool",
            metadata: {name: name}, spec: {cidr: cidr, perNodeNetworkPrefix: length, gatewayIndex: 1,
            routes: [{dst: cidr}], staticAllocations: rows(base; length)}};
        [pool("rail-0"; "172.16.0.0/15"; 31; "172.16.\($plan)."),
        pool("rail-0-v6"; "fd00::/32"; 127; "fd00:0:\($plan)::")]'
}

run_cases ext4_has_the_old_plan_or_the_new ext4_that_commits_all_the_time_has_the_old_plan_or_the_new \
    xfs_has_the_old_plan_or_the_new xfs_that_commits_all_the_time_has_the_old_plan_or_the_new \
    btrfs_has_the_old_plan_or_the_new btrfs_that_commits_all_the_time_has_the_old_plan_or_the_new \
    without_waits_for_the_disk_plans_are_lost
