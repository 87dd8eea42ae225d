#!/usr/bin/env bash
# RDMA devices that move: with each VF goes its RDMA device, in a system whose RDMA namespaces are exclusive.
# Runs in the machine: scripts/lab --rails 4 --vfs 2 --rdma tests/lab/rdma-move.sh [ROUNDS]
# lab: --rails 4 --vfs 2 --rdma
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
rounds=${1:-4}

on_host() { rdma -j link show | jq -r '.[] | "\(.ifindex) \(.ifname) \(.netdev)"' | sort -n; }
has_rdma() { rdma -j link show | jq -e --arg name "$1" 'any(.[]; .ifname == $name)' >/dev/null; }
in_namespace() { in_pod "$1" rdma -j link show | jq -r '[.[] | "\(.ifname) \(.netdev)"] | join(", ")'; }

the_device_goes_with_its_vf_and_comes_back() {
    local config before
    config=$(conf 0 "$(vf 0)" '"rdma": "required"')
    before=$(on_host)
    pod pod1
    add pod1 net1 "$config"
    same "in the pod" "rxe00 net1" "$(in_namespace pod1)"
    same "left on the host" "" "$(on_host | grep rxe00 || true)"
    same "status" '["rxe00"]' "$("$bin/railctl" status --output json | jq -c '[.. | objects | select(.ifname? == "net1") | .rdma[]]')"
    check pod1 net1 "$config" "$output"
    del pod1 net1 "$config"
    same "in the pod afterwards" "" "$(in_namespace pod1)"
    same "on the host" "$before" "$(on_host)"
}

check_sees_that_the_device_has_left_the_pod() {
    local config result
    config=$(conf 0 "$(vf 0)")
    pod pod1 && pod pod2
    add pod1 net1 "$config"
    result=$output
    check pod1 net1 "$config" "$result"
    in_pod pod1 rdma dev set rxe00 netns pod2
    check_fails "the RDMA device rxe00 is not in the pod" pod1 net1 "$config" "$result"
    in_pod pod2 rdma dev set rxe00 netns pod1
    check pod1 net1 "$config" "$result"
    del pod1 net1 "$config"
}

# Neither name is free until the other device has its own.
names_that_a_pod_exchanged_are_restored() {
    local first second before
    first=$(conf 0 "$(vf 0)" '"rdma": "required"')
    second=$(conf 1 "$(vf 1)" '"rdma": "required"')
    before=$(on_host | cut -d' ' -f2- | sort)
    pod pod1
    add pod1 net1 "$first"
    add pod1 net2 "$second"
    in_pod pod1 rdma dev set rxe00 name theirs
    in_pod pod1 rdma dev set rxe10 name rxe00
    in_pod pod1 rdma dev set theirs name rxe10
    del pod1 net1 "$first"
    del pod1 net2 "$second"
    "$bin/railctl" reap >/dev/null
    same "on the host" "$before" "$(on_host | cut -d' ' -f2- | sort)"
    same "pending" 0 "$("$bin/railctl" status --output json | jq '.pending | length')"
}

# verbs_of NAME: the file of an RDMA device, in whatever namespace that is.
verbs_of() {
    local entry
    for entry in /sys/class/infiniband_verbs/uverbs*; do
        [[ $(<"$entry/ibdev") != "$1" ]] || printf '/dev/infiniband/%s' "${entry##*/}"
    done
}

# foretold VF: the file that a container is given before ADD.
foretold() {
    "$bin/railctl" devices --output json | jq -r --arg id "$1" \
        '.devices[] | select(.device == $id) | .files[] | select(test("uverbs"))'
}

# A move frees the number of the file, and takes the lowest free one.
the_file_for_verbs_is_the_one_that_devices_names() {
    local before one two three
    before=$(on_host)
    pod pod1 && pod pod2
    for one in 1 2 3 4; do
        one=$(foretold "$(vf 1)") two=$(foretold "$(vf 2)")
        add pod1 net1 "$(conf 1 "$(vf 1)" '"rdma": "required"')" &
        (add pod2 net1 "$(conf 2 "$(vf 2)" '"rdma": "required"')")
        wait $!
        same "of two pods at once" "$one $two" "$(verbs_of rxe10) $(verbs_of rxe20)"
        del pod1 net1 "$(conf 1 "$(vf 1)")" &
        (del pod2 net1 "$(conf 2 "$(vf 2)")")
        wait $!
    done
    rdma link delete rxe00
    three=$(foretold "$(vf 3)")
    add pod1 net1 "$(conf 3 "$(vf 3)" '"rdma": "required"')"
    same "with a lower number free" "$three" "$(verbs_of rxe30)"
    del pod1 net1 "$(conf 3 "$(vf 3)")"
    rdma link add rxe00 type rxe netdev ens0f0v0
    same "on the host" "$(cut -d' ' -f2- <<<"$before" | sort)" "$(on_host | cut -d' ' -f2- | sort)"
}

# The kernel moves it to the host with the namespace's end.
the_device_of_a_dead_pod_is_the_next_ones() {
    local config before way
    config=$(conf 0 "$(vf 0)" '"rdma": "required"')
    before=$(on_host)
    for way in del add reap; do
        pod pod1
        add pod1 net1 "$config"
        in_pod pod1 rdma dev set rxe00 name theirs
        kill_pod pod1
        case $way in
            del) del pod1 net1 "$config" ;;
            add)
                pod pod2
                add pod2 net1 "$config"
                same "in the next pod" "rxe00 net1" "$(in_namespace pod2)"
                # Its DEL is late, and takes nothing from pod 2.
                del pod1 net1 "$config"
                same "in the next pod" "rxe00 net1" "$(in_namespace pod2)"
                del pod2 net1 "$config"
                ;;
            reap) "$bin/railctl" reap >/dev/null ;;
        esac
        same "after $way" "$before" "$(on_host)"
    done
}

# Its index says which device it is.
a_name_that_the_pod_gave_it_goes_with_the_pod() {
    local config before
    config=$(conf 0 "$(vf 0)" '"rdma": "required"')
    before=$(on_host)
    pod pod1
    add pod1 net1 "$config"
    in_pod pod1 rdma dev set rxe00 name theirs
    check pod1 net1 "$config" "$output"
    del pod1 net1 "$config"
    same "on the host" "$before" "$(on_host)"
}

# A list of the kernel leaves one out when another one leaves its namespace meanwhile (nldev_get_dumpit).
of_eight_dels_at_once_none_loses_its_device() {
    local before rail vf calls=()
    before=$(on_host)
    pod pod1
    for rail in 0 1 2 3; do
        for vf in 0 1; do
            add pod1 "net$rail$vf" "$(conf "$rail" "$(vf "$rail" "$vf")" '"rdma": "required"' | jq -c 'del(.ipam)')"
        done
    done
    same "left on the host" "" "$(on_host)"
    for rail in 0 1 2 3; do
        for vf in 0 1; do
            del pod1 "net$rail$vf" "$(conf "$rail" "$(vf "$rail" "$vf")" | jq -c 'del(.ipam)')" &
            calls+=($!)
        done
    done
    for rail in "${calls[@]}"; do
        wait "$rail" || fail "a DEL failed"
    done
    same "on the host" "$before" "$(on_host)"
}

# The pod fails: nothing stays half moved.
an_add_that_fails_after_the_move_brings_the_device_back() {
    local before
    before=$(on_host)
    pod pod1
    refused "did not answer ARP" ADD pod1 net1 "$(conf 0 "$(vf 0)" \
        '"vlan": 77, "gatewayProbe": "require", "gatewayProbeTimeout": "1s"')"
    same "on the host" "$before" "$(on_host)"
    same "in the pod" "" "$(in_namespace pod1)"
}

# NCCL would go on with TCP, and nobody would know why the job is slow.
a_vf_without_a_device_whose_pf_has_one_is_warned_of() {
    local config said
    config=$(conf 1 "$(vf 1)")
    rdma link delete rxe10
    pod pod1
    said=$(cni ADD pod1 net1 "$config" 2>&1 && printf '%s' "$output")
    same "warnings where the PF has none" "" "$(grep "no RDMA device" <<<"$said" || true)"
    del pod1 net1 "$config"
    rdma link add rxe19 type rxe netdev ens1f0
    said=$(cni ADD pod1 net1 "$config" 2>&1)
    contains "the log" "its PF has" "$said"
    del pod1 net1 "$config"
    refused "rdma" ADD pod1 net1 "$(conf 1 "$(vf 1)" '"rdma": "required"')"
    rdma link delete rxe19
    rdma link add rxe10 type rxe netdev ens1f0v0
}

# The device info names the device that the pod sees, and goes with it.
the_device_info_names_what_the_pod_sees() {
    local config info=/var/run/k8s.cni.cncf.io/devinfo/cni/pod1-net1
    pod pod1
    config=$(conf 0 "$(vf 0)" | jq -c --arg info "$info" '.runtimeConfig.CNIDeviceInfoFile = $info')
    add pod1 net1 "$config"
    same "rdma-device" '"rxe00"' "$(jq -c '.pci["rdma-device"]' "$info")"
    same "the GID" '["rxe00",1,1,"172.16.0.0"]' "$(jq -c '."rail-cni".gids[0] | [.device, .port, .index, .address]' "$info")"
    del pod1 net1 "$config"
    config=$(jq -c '.rdma = "off"' <<<"$config")
    add pod1 net1 "$config"
    same "rdma-device with rdma off" null "$(jq -c '.pci["rdma-device"]' "$info")"
    same "in the pod" "" "$(in_namespace pod1)"
    del pod1 net1 "$config"
}

# The GID of ADD's result is the one that the pod's programs see.
the_gid_of_the_address_is_there_when_add_returns() {
    local config result table
    config=$(conf 0 "$(vf 0)" '"gid": "require"')
    pod pod1
    add pod1 net1 "$config"
    result=$output
    table=$(gid_in pod1 rxe00 1)
    same "the GID" "0000:0000:0000:0000:0000:ffff:ac10:0000 RoCE v2 net1" "$table"
    same "status" '["rxe00",1,1,"172.16.0.0"]' \
        "$("$bin/railctl" status --output json | jq -c '.attachments[0].gids[] | [.device, .port, .index, .address]')"
    contains "the table of status" "pod lab/pod1: NCCL_IB_GID_INDEX=1" "$("$bin/railctl" status)"
    check pod1 net1 "$config" "$result"
    in_pod pod1 rdma dev set rxe00 name theirs
    check pod1 net1 "$config" "$result"
    ip -n pod1 addr del 172.16.0.0/31 dev net1
    check_fails "has no RoCE v2 GID of 172.16.0.0 on net1" pod1 net1 "$config" "$result"
    del pod1 net1 "$config"
    refused "the pod gets no RDMA device" ADD pod1 net1 "$(conf 0 "$(vf 0)" '"gid": "require", "rdma": "off"')"
}

# gid_in POD DEVICE INDEX: GID, kind and netdev, by the sysfs of the pod.
gid_in() {
    in_pod "$1" bash -c "cd /sys/class/infiniband/$2/ports/1 && echo \$(cat gids/$3 gid_attrs/types/$3 gid_attrs/ndevs/$3)"
}

# The pod that asked for it may be gone without a DEL: its name is free for the next one's device.
a_name_is_given_checked_and_taken_back() {
    local config other result before name='"rdmaDeviceName": "rdma_rail-0"'
    config=$(conf 0 "$(vf 0)" "$name") other=$(conf 0 "$(vf 0 1)" "$name" | jq -c 'del(.ipam)')
    before=$(on_host)
    pod pod1 && pod pod2
    add pod1 net1 "$config"
    result=$output
    same "in the pod" "rdma_rail-0 net1" "$(in_namespace pod1)"
    check pod1 net1 "$config" "$result"
    in_pod pod1 rdma dev set rdma_rail-0 name theirs
    check_fails "the RDMA device rdma_rail-0 has the name theirs" pod1 net1 "$config" "$result"
    in_pod pod1 rdma dev set theirs name rdma_rail-0
    refused "rdmaDeviceName: cannot name rxe01 rdma_rail-0" ADD pod2 net1 "$other"
    kill_pod pod1
    add pod2 net1 "$other"
    same "in the next pod" "rdma_rail-0 net1" "$(in_namespace pod2)"
    del pod1 net1 "$config"
    same "in the next pod" "rdma_rail-0 net1" "$(in_namespace pod2)"
    del pod2 net1 "$other"
    same "on the host" "$before" "$(on_host)"
    refused "rdmaDeviceName" ADD pod2 net1 "$(conf 0 "$(vf 0)" '"rdmaDeviceName": "../x"')"
}

# The kernel takes any text for a name.
a_name_that_is_no_name_of_a_file_goes_with_the_pod() {
    local config before name
    config=$(conf 0 "$(vf 0)" '"rdma": "required"')
    before=$(on_host)
    for name in ../x ..; do
        pod pod1
        add pod1 net1 "$config"
        in_pod pod1 rdma dev set rxe00 name "$name" || skip "this kernel refuses $name"
        "$bin/railctl" status >/dev/null
        cni CHECK pod1 net1 "$(with_result "$config" "$output")"
        del pod1 net1 "$config"
        same "on the host after $name" "$before" "$(on_host)"
        ip netns del pod1
    done
}

# leave_below CONF: pod1 has NET_ADMIN, and its RDMA device stays in a namespace of its own, by the name ../x. pod2 is there.
leave_below() {
    pod pod1 && pod pod2
    add pod1 net1 "$1"
    ip netns add below
    in_pod pod1 rdma dev set rxe00 netns below
    ip netns exec below rdma dev set rxe00 name ../x || skip "this kernel refuses ../x"
    del pod1 net1 "$1"
    contains "what is owed" "RDMA device" "$("$bin/railctl" status)"
}

# It comes back later, by that name.
a_name_from_a_namespace_below_the_pods_is_taken_away() {
    local config before
    config=$(conf 0 "$(vf 0)" '"rdma": "auto"')
    before=$(on_host)
    leave_below "$config"
    # Another pod can have the VF meanwhile.
    add pod2 net1 "$config"
    del pod2 net1 "$config"
    ip netns del below
    wait_until has_rdma ../x
    "$bin/railctl" reap >/dev/null
    same "on the host" "$before" "$(on_host)"
}

# It comes home after the DEL had given up, and before anything is tried again: that pod's successor has it by its name.
a_device_that_came_late_is_the_next_pods_by_its_name() {
    local config before
    config=$(conf 0 "$(vf 0)" '"rdma": "required"')
    before=$(on_host)
    leave_below "$config"
    ip netns del below
    wait_until has_rdma ../x
    add pod2 net1 "$config"
    same "in the next pod" "rxe00 net1" "$(in_namespace pod2)"
    del pod2 net1 "$config"
    "$bin/railctl" reap >/dev/null
    same "on the host" "$before" "$(on_host)"
}

# Its module was unloaded, say. It is waited for, and not for ever.
a_device_that_ended_in_its_pod_is_not_owed_for_ever() {
    local config try
    config=$(conf 0 "$(vf 0)")
    pod pod1
    add pod1 net1 "$config"
    in_pod pod1 rdma link delete rxe00
    del pod1 net1 "$config"
    contains "what is owed" "RDMA device" "$("$bin/railctl" status)"
    for try in 1 2 3 4 5 6; do "$bin/railctl" reap >/dev/null 2>&1 || true; done
    same "pending after $try tries" "" "$(find /run/rail-cni/pending -type f)"
    rdma link add rxe00 type rxe netdev ens0f0v0
}

# A namespace that only an open file keeps is found by nobody who looks for it. The kernel knows that it has the device.
a_device_that_nobody_sees_is_owed_until_it_is_back() {
    local config before try holder
    config=$(conf 0 "$(vf 0)" '"rdma": "auto"')
    before=$(on_host)
    leave_below "$config"
    exec {holder}</run/netns/below
    ip netns del below
    for try in 1 2 3 4 5 6; do "$bin/railctl" reap >/dev/null 2>&1 || true; done
    same "pending after $try tries" 1 "$(find /run/rail-cni/pending -type f | wc -l)"
    exec {holder}<&-
    wait_until has_rdma ../x
    "$bin/railctl" reap >/dev/null
    same "on the host" "$before" "$(on_host)"
}

# It is on no record: somebody else moved it.
a_device_in_another_namespace_is_named_and_doctor_has_its_place() {
    local said
    pod pod1 && pod pod2
    rdma dev set rxe00 netns pod2
    said=$(cni ADD pod1 net1 "$(conf 0 "$(vf 0)")" 2>&1)
    contains "the log" "another namespace" "$said"
    del pod1 net1 "$(conf 0 "$(vf 0)")"
    refused "is in another namespace" ADD pod1 net1 "$(conf 0 "$(vf 0)" '"rdma": "required"')"
    said=$("$bin/railctl" doctor --output json || true)
    contains doctor "$(vf 0): its RDMA device rxe00 is in the namespace /run/netns/pod2" \
        "$(jq -r '.checks[] | select(.check == "rdma" and .rail == 0) | .text' <<<"$said")"
    ip netns del pod2
    wait_until has_rdma rxe00
    same "on the host" rxe00 "$(rdma -j link show | jq -r '.[] | select(.ifname == "rxe00") | .ifname')"
}

# calls_to_rdma POD VERB CONF: each message of VERB to the RDMA subsystem, and the one that follows it, as numbers of the
# sendto of a thread.
calls_to_rdma() {
    traced -o /run/trace -yy -e trace=sendto -- "$2" "$1" "$3" >/dev/null 2>&1 || fail "$2 fails below strace"
    awk '/ sendto\(/ { count[$1]++ } / sendto\([0-9]+<NETLINK:\[RDMA/ { print count[$1]; print count[$1] + 1 }' \
        /run/trace | sort -nu
}

what_a_killed_call_left_is_restored_by_the_next_one() {
    local config before verb call ways=(del add reap) way=0 killed=0 calls
    has strace || skip "no strace here"
    config=$(conf 0 "$(vf 0)" '"rdma": "required", "rdmaDeviceName": "rdma_rail-0"')
    before=$(on_host)
    for verb in ADD DEL; do
        pod pod1
        [[ $verb == ADD ]] || add pod1 net1 "$config"
        calls=$(calls_to_rdma pod1 "$verb" "$config")
        del pod1 net1 "$config"
        [[ $calls ]] || fail "$verb sends nothing to the RDMA subsystem"
        for call in $calls; do
            [[ $verb == ADD ]] || add pod1 net1 "$config"
            traced -o /run/trace -e trace=sendto -e "inject=sendto:signal=KILL:when=$call" -- "$verb" pod1 "$config" \
                >/dev/null 2>&1 || killed=$((killed + 1))
            case ${ways[way++ % 3]} in
                del) del pod1 net1 "$config" ;;
                reap) kill_pod pod1 && "$bin/railctl" reap >/dev/null && del pod1 net1 "$config" && pod pod1 ;;
                add)
                    kill_pod pod1
                    pod pod1 && pod pod2
                    add pod2 net1 "$config"
                    same "in the next pod" "rdma_rail-0 net1" "$(in_namespace pod2)"
                    del pod1 net1 "$config"
                    del pod2 net1 "$config"
                    ip netns del pod2
                    ;;
            esac
            same "on the host after $verb, killed at its message $call" "$before" "$(on_host)"
        done
        ip netns del pod1
    done
    ((killed >= 8)) || fail "only $killed calls were killed"
    echo "$killed calls were killed"
}

# A list of the kernel is short while devices leave: ADDs at once find theirs.
eight_adds_and_dels_at_once_lose_no_device() {
    local before round rail vf calls=() call
    before=$(on_host)
    for ((round = 1; round <= rounds; round++)); do
        for call in ADD DEL; do
            [[ $call == DEL ]] || pod pod1
            calls=()
            for rail in 0 1 2 3; do
                for vf in 0 1; do
                    succeeds "$call" pod1 "net$rail$vf" \
                        "$(conf "$rail" "$(vf "$rail" "$vf")" '"rdma": "required"' | jq -c 'del(.ipam)')" &
                    calls+=($!)
                done
            done
            for rail in "${calls[@]}"; do
                wait "$rail" || fail "round $round: one $call failed"
            done
            [[ $call == DEL ]] || same "left on the host in round $round" "" "$(on_host)"
        done
        same "on the host after round $round" "$before" "$(on_host)"
        ip netns del pod1
    done
}

rxe_on_vfs 4
run_cases the_device_goes_with_its_vf_and_comes_back the_file_for_verbs_is_the_one_that_devices_names \
    names_that_a_pod_exchanged_are_restored check_sees_that_the_device_has_left_the_pod \
    the_device_of_a_dead_pod_is_the_next_ones a_name_that_the_pod_gave_it_goes_with_the_pod \
    of_eight_dels_at_once_none_loses_its_device an_add_that_fails_after_the_move_brings_the_device_back \
    a_vf_without_a_device_whose_pf_has_one_is_warned_of \
    the_device_info_names_what_the_pod_sees the_gid_of_the_address_is_there_when_add_returns \
    a_name_is_given_checked_and_taken_back a_name_that_is_no_name_of_a_file_goes_with_the_pod \
    a_name_from_a_namespace_below_the_pods_is_taken_away \
    a_device_that_came_late_is_the_next_pods_by_its_name a_device_that_ended_in_its_pod_is_not_owed_for_ever \
    a_device_that_nobody_sees_is_owed_until_it_is_back \
    a_device_in_another_namespace_is_named_and_doctor_has_its_place \
    what_a_killed_call_left_is_restored_by_the_next_one eight_adds_and_dels_at_once_lose_no_device
