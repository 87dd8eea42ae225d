#!/usr/bin/env bash
# The default ToS of the RDMA CM, and RDMA devices behind another plugin that attaches the VF, in a system whose RDMA
# namespaces are exclusive.
# Runs in the machine: scripts/lab --rails 2 --vfs 2 --rdma tests/lab/rdma-qos.sh
# lab: --rails 2 --vfs 2 --rdma
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,5s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cm=/run/configfs/rdma_cm
qos='"rdmaQoS": {"tos": 96, "tc": 96}'

# rxe<RAIL><VF> on each VF. configfs is mounted for this test, and not where rail-cni looks.
make_devices() {
    modprobe rdma_cm
    mkdir -p /run/configfs
    mount -t configfs none /run/configfs
    rxe_on_vfs 2
    set_tos rxe00 104
}

# tos DEVICE: its default ToS, in whatever namespace it is.
tos() {
    mkdir "$cm/$1"
    cat "$cm/$1/ports/1/default_roce_tos"
    rmdir "$cm/$1"
}

set_tos() {
    mkdir "$cm/$1"
    echo "$2" >"$cm/$1/ports/1/default_roce_tos"
    rmdir "$cm/$1"
}

# Names, netdevs, default ToS, groups: all that must be as it was.
on_host() {
    local name
    rdma -j link show | jq -r '.[] | "\(.ifindex) \(.ifname) \(.netdev)"' | sort -n
    for name in $(rdma -j dev show | jq -r '.[].ifname' | sort); do
        echo "$name $(tos "$name")"
    done
    ls "$cm"
}

in_namespace() { in_pod "$1" rdma -j link show | jq -r '[.[] | "\(.ifname) \(.netdev)"] | join(", ")'; }

# The kernel forgets it on the way, in both directions.
the_tos_is_set_in_the_pod_and_restored_after_it() {
    local config before way result
    config=$(conf 0 "$(vf 0)" "\"rdma\": \"required\", $qos")
    before=$(on_host)
    contains "the host" "rxe00 104" "$before"
    for way in del add reap; do
        pod pod1
        add pod1 net1 "$config"
        result=$output
        same "in the pod" "rxe00 net1" "$(in_namespace pod1)"
        same "the ToS" 96 "$(tos rxe00)"
        check pod1 net1 "$config" "$result"
        set_tos rxe00 0
        check_fails "port 1 of rxe00 has the default ToS 0 instead of 96" pod1 net1 "$config" "$result"
        case $way in
            del) del pod1 net1 "$config" && ip netns del pod1 ;;
            add)
                kill_pod pod1
                pod pod2
                add pod2 net1 "$config"
                same "the ToS of the next pod" 96 "$(tos rxe00)"
                del pod1 net1 "$config"
                same "the ToS after a late DEL" 96 "$(tos rxe00)"
                del pod2 net1 "$config"
                ;;
            reap)
                kill_pod pod1
                "$bin/railctl" reap >/dev/null
                ;;
        esac
        same "on the host after $way" "$before" "$(on_host)"
    done
}

# As NVIDIA's operator writes it.
name_and_tos_go_together() {
    local config before result
    config=$(conf 0 "$(vf 0)" "\"rdmaDeviceName\": \"rdma_rail-0\", $qos")
    before=$(on_host)
    pod pod1
    add pod1 net1 "$config"
    result=$output
    same "in the pod" "rdma_rail-0 net1" "$(in_namespace pod1)"
    same "the ToS" 96 "$(tos rdma_rail-0)"
    check pod1 net1 "$config" "$result"
    del pod1 net1 "$config"
    same "on the host" "$before" "$(on_host)"
}

# The kernel takes any text for a name, and a directory is made with it.
a_name_that_is_none_leads_nowhere() {
    local config before name
    config=$(conf 0 "$(vf 0)" "$qos")
    before=$(on_host)
    for name in ../x .. theirs; do
        pod pod1
        add pod1 net1 "$config"
        in_pod pod1 rdma dev set rxe00 name "$name" || skip "this kernel refuses $name"
        cni CHECK pod1 net1 "$(with_result "$config" "$output")"
        [[ $name == theirs ]] || del pod1 net1 "$config"
        kill_pod pod1
        "$bin/railctl" reap >/dev/null
        same "on the host after $name" "$before" "$(on_host)"
    done
}

# A group that somebody has made stays, one that a killed call has made does not.
groups_are_left_as_they_were() {
    local config
    config=$(conf 0 "$(vf 0)" "\"rdmaDeviceName\": \"rdma_rail-0\", $qos")
    pod pod1
    mkdir "$cm/rxe00"
    add pod1 net1 "$config"
    mkdir "$cm/rdma_rail-0"
    del pod1 net1 "$config"
    same "the groups" rxe00 "$(ls "$cm")"
    same "the ToS" 104 "$(<"$cm/rxe00/ports/1/default_roce_tos")"
    rmdir "$cm/rxe00"
}

# With the move the kernel would take it from the program.
a_device_that_a_program_has_open_is_refused_with_its_name() {
    local config before program
    has python3 || skip "no python3 here"
    config=$(conf 0 "$(vf 0)")
    before=$(on_host)
    pod pod1
    program=$(basename "$(readlink -f "$(command -v python3)")")
    python3 - "/dev/infiniband/$(ls /sys/class/infiniband/rxe00/device/infiniband_verbs)" <<'PY' &
import ctypes, os, struct, sys, time
# IB_USER_VERBS_CMD_GET_CONTEXT (rdma/ib_user_verbs.h)
answer = ctypes.create_string_buffer(64)
fd = os.open(sys.argv[1], os.O_RDWR)
os.write(fd, struct.pack("IHHQ", 0, 4, 2, ctypes.addressof(answer)))
open("/run/is-open", "w")
time.sleep(600)
PY
    until [[ -e /run/is-open ]]; do sleep 0.1; done
    refused "the RDMA device rxe00 of VF $(vf 0) (ens0f0v0) must move to the pod, and process $! ($program) has it open" \
        ADD pod1 net1 "$config"
    kill $!
    wait $! || true
    same "on the host" "$before" "$(on_host)"
    add pod1 net1 "$config"
    del pod1 net1 "$config"
}

two_rails_with_one_name_are_refused() {
    local before name='"rdmaDeviceName": "rdma_rail"'
    before=$(on_host)
    pod pod1
    add pod1 net1 "$(conf 0 "$(vf 0)" "$name")"
    refused "rdmaDeviceName: cannot name rxe10 rdma_rail" ADD pod1 net2 "$(conf 1 "$(vf 1)" "$name, $qos")"
    del pod1 net1 "$(conf 0 "$(vf 0)" "$name")"
    same "on the host" "$before" "$(on_host)"
}

# --- behind another plugin -------------------------------------------------------------------------------------

# plugin NAME COMMAND POD CONF: as cni, with another plugin.
plugin() {
    local name=$1 command=$2 pod=$3
    output=$(CNI_COMMAND=$command CNI_CONTAINERID=$pod CNI_NETNS=/run/netns/$pod CNI_IFNAME=net1 \
        CNI_PATH="$peers:$bin" "$peers/$name" <<<"$4") || fail "$name $command: $output"
}

main_conf() {
    printf '{"cniVersion": "1.0.0", "name": "ovs-0", "type": "host-device", "pciBusID": "%s",
        "ipam": {"type": "static", "addresses": [{"address": "172.16.0.0/31"}]}}' "$(vf 0)"
}

# rdma_conf [KEYS]: what follows it in the list, with the result of the plugin before.
rdma_conf() {
    printf '{"cniVersion": "1.0.0", "name": "ovs-0", "type": "rail-cni", "mode": "rdma"%s}' "${1:+, $1}"
}

behind() {
    peers=$("$root/scripts/cnitool" --peers) || skip "no upstream plugins here"
    before=$(on_host)
    pod pod1
    plugin host-device ADD pod1 "$(main_conf)"
    main=$output
}

the_rdma_device_follows_a_vf_that_another_plugin_has_attached() {
    local config peers before main keys
    behind
    for keys in "" "\"deviceID\": \"$(vf 0)\", " "\"runtimeConfig\": {\"deviceID\": \"$(vf 0)\"}, "; do
        config=$(with_result "$(rdma_conf "$keys\"rdmaDeviceName\": \"rdma_rail-0\", \"gid\": \"require\", $qos")" "$main")
        add pod1 net1 "$config"
        same "the result" "$(jq -S . <<<"$main")" "$(jq -S . <<<"$output")"
        same "in the pod" "rdma_rail-0 net1" "$(in_namespace pod1)"
        same "the ToS" 96 "$(tos rdma_rail-0)"
        same "status" '["net1","rdma","live",["rdma_rail-0"],1]' "$("$bin/railctl" status --output json |
            jq -c '.attachments[] | [.ifname, .part, .state, .rdma, .gids[0].index]')"
        check pod1 net1 "$config" "$main"
        in_pod pod1 rdma dev set rdma_rail-0 name theirs
        check_fails "the RDMA device rdma_rail-0 has the name theirs" pod1 net1 "$config" "$main"
        refused "second ADD" ADD pod1 net1 "$config"
        del pod1 net1 "$config"
        del pod1 net1 "$config"
        same "in the pod afterwards" "" "$(in_namespace pod1)"
    done
    same "the netdev" net1 "$(ip -n pod1 -json link show net1 | jq -r '.[].ifname')"
    plugin host-device DEL pod1 "$(main_conf)"
    same "on the host" "$before" "$(on_host)"
}

# The lists of NVIDIA's operator have this type.
the_plugin_is_rdma_under_that_name() {
    local config peers before main
    behind
    config=$(with_result "{\"cniVersion\": \"1.0.0\", \"name\": \"ovs-0\", \"type\": \"rdma\",
        \"rdmaDeviceName\": \"rdma_rail-0\", $qos}" "$main")
    ln -sf "$bin/rail-cni" /run/rdma
    output=$(CNI_COMMAND=ADD CNI_CONTAINERID=pod1 CNI_NETNS=/run/netns/pod1 CNI_IFNAME=net1 CNI_PATH=$bin \
        /run/rdma <<<"$config") || fail "$output"
    same "in the pod" "rdma_rail-0 net1" "$(in_namespace pod1)"
    del pod1 net1 "$config"
    plugin host-device DEL pod1 "$(main_conf)"
    same "on the host" "$before" "$(on_host)"
}

# A list could name any device.
the_interface_must_be_the_device() {
    local peers before main
    behind
    refused "$(vf 0 1)" ADD pod1 net1 \
        "$(with_result "$(rdma_conf "\"deviceID\": \"$(vf 0 1)\"")" "$main")"
    ip -n pod1 link add vlan1 link net1 type vlan id 5
    cni ADD pod1 vlan1 "$(with_result "$(rdma_conf)" "$main")"
    contains "ADD of a VLAN" "mode rdma: vlan1 " "$output"
    same "in the pod" "" "$(in_namespace pod1)"
    ip -n pod1 link del vlan1
    plugin host-device DEL pod1 "$(main_conf)"
    same "on the host" "$before" "$(on_host)"
}

# No DEL comes, or too late, or one of the two only.
what_is_left_behind_another_plugin_is_put_right() {
    local config peers before main way
    for way in del reap next add killed; do
        behind
        config=$(with_result "$(rdma_conf "\"rdmaDeviceName\": \"rdma_rail-0\", $qos")" "$main")
        if [[ $way == killed ]]; then
            # No GID of that address will come.
            CNI_COMMAND=ADD CNI_CONTAINERID=pod1 CNI_NETNS=/run/netns/pod1 CNI_IFNAME=net1 CNI_PATH=$bin \
                "$bin/rail-cni" <<<"$(jq -c '.gid = "require" | .gidTimeout = "30s" |
                .prevResult.ips[0].address = "10.1.1.1/24"' <<<"$config")" >/dev/null 2>&1 &
            until [[ $(in_namespace pod1) == rdma_rail-0* ]]; do sleep 0.1; done
            kill -9 $!
            wait $! || true
        else
            add pod1 net1 "$config"
        fi
        case $way in
            del | reap | add | next)
                kill_pod pod1
                # As host-device cannot.
                ip link set net1 down
                ip link set net1 name ens0f0v0
                ;;
        esac
        case $way in
            del) del pod1 net1 "$config" ;;
            reap | killed) "$bin/railctl" reap >/dev/null ;;
            add)
                pod pod2
                add pod2 net1 "$(conf 0 "$(vf 0)" "$qos")"
                same "in the next pod" "rxe00 net1" "$(in_namespace pod2)"
                del pod2 net1 "$(conf 0 "$(vf 0)" "$qos")"
                ip netns del pod2
                ;;
            next)
                pod pod1
                plugin host-device ADD pod1 "$(main_conf)"
                add pod1 net1 "$(with_result "$config" "$output")"
                same "in the next pod" "rdma_rail-0 net1" "$(in_namespace pod1)"
                del pod1 net1 "$config"
                plugin host-device DEL pod1 "$(main_conf)"
                ip netns del pod1
                ;;
        esac
        if [[ $way == killed ]]; then
            plugin host-device DEL pod1 "$(main_conf)"
            ip netns del pod1
        fi
        same "on the host after $way" "$before" "$(on_host)"
        same "records after $way" "" "$(state_files)"
    done
}

# Its netdev is in a pod, so nothing can be restored, and nothing is forgotten.
what_is_owed_of_the_netdev_stays_owed_behind_another_plugin() {
    local config peers before main first
    first=$(on_host)
    pod pod0
    add pod0 net1 "$(conf 0 "$(vf 0)")"
    # Its name is taken when it comes back.
    ip link add ens0f0v0 type veth peer name other
    del pod0 net1 "$(conf 0 "$(vf 0)")"
    ip netns del pod0
    behind
    config=$(with_result "$(rdma_conf "$qos")" "$main")
    add pod1 net1 "$config"
    ! "$bin/railctl" reap >/run/reaped || fail "nothing is owed any more: $(</run/reaped)"
    contains "reap" "its name ens0f0v0" "$(</run/reaped)"
    del pod1 net1 "$config"
    plugin host-device DEL pod1 "$(main_conf)"
    ip netns del pod1
    ip link del ens0f0v0
    "$bin/railctl" reap >/run/reaped || fail "$(</run/reaped)"
    same "on the host" "$first" "$(on_host)"
    same "records" "" "$(state_files)"
}

make_devices
run_cases the_tos_is_set_in_the_pod_and_restored_after_it name_and_tos_go_together a_name_that_is_none_leads_nowhere \
    groups_are_left_as_they_were a_device_that_a_program_has_open_is_refused_with_its_name \
    two_rails_with_one_name_are_refused the_rdma_device_follows_a_vf_that_another_plugin_has_attached \
    the_plugin_is_rdma_under_that_name the_interface_must_be_the_device \
    what_is_left_behind_another_plugin_is_put_right what_is_owed_of_the_netdev_stays_owed_behind_another_plugin
