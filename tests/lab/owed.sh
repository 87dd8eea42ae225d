#!/usr/bin/env bash
# A step of a pod's end that fails, on real hardware: a setting that the PF refuses to set back, an RDMA device that
# does not come home. In each way that a pod can end the next pod starts, or is told what to do.
# Runs in the machine: scripts/lab --rails 1 --vfs 2 --rdma tests/lab/owed.sh
# lab: --rails 1 --vfs 2 --rdma
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,5s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

refuser=$target/debug/examples/refuser
[[ -x $refuser ]] || die "no $refuser: cargo build --example refuser"

# The settings of the first pod's network for its VF, and the one that is refused when it is to go back. Steps that need
# no hardware are in tests/netns/owed.rs.
declare -A wanted=(
    [vlan]='"vlan": 100' [mac]='"mac": "02:00:00:00:0c:01"' [spoofchk]='"spoofchk": "off"' [trust]='"trust": "on"'
    [rate]='"max_tx_rate": 200' [rdma]='"rdma": "required"'
)
declare -A back=([vlan]=vlan=0 [spoofchk]=spoofchk=1 [trust]=trust=0 [rate]=rate=0 [rdma]=rdma)

# The step that fails, the end of the pod, the next user. VLAN and MAC are put back in places of their own, the other
# settings in that of the VLAN: for them the ways that differ most, and the next pod that they could harm. A dead
# namespace's RDMA devices are the kernel's to give back.
readonly cases='
    vlan del network      vlan del-twice same      vlan dead-then-del address
    vlan gc network       vlan reap same           vlan nothing network
    mac del same          mac del-twice network    mac dead-then-del network
    mac gc address        mac reap network         mac nothing network
    spoofchk del network  spoofchk reap same       spoofchk nothing network
    trust del address     trust gc network         trust nothing network
    rate del network      rate dead-then-del same  rate nothing network
    rdma del same         rdma del network         rdma del-twice address    rdma nothing same
'

# The kernel's refusal, for now: all calls of cni go through the refuser while it is set.
refuse=''

# As in lib.sh.
cni() {
    status=0
    output=$(CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 CNI_IFNAME=$3 CNI_PATH=$bin \
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=lab;K8S_POD_NAME=$2" \
        ${refuse:+"$refuser" /run/refusals "$refuse"} "$bin/rail-cni" <<<"$4") || status=$?
}

# of_vf NUMBER: all that the PF says.
of_vf() { ip link show ens0f0 | sed -n "s/^ *vf $1 //p"; }

# network NAME VF KEYS: jq would take most of the time of this group.
network() {
    local ipam=''
    [[ $1 != rail-0 ]] || ipam=', "ipam": {"type": "rail-ipam", "pool": "rail-0"}'
    printf '{"cniVersion": "1.1.0", "name": "%s", "type": "rail-cni", "rail": 0, "mtu": 9000, "deviceID": "%s"%s%s}' \
        "$1" "$2" "$ipam" "${3:+, $3}"
}

# end WAY CONF: of pod1.
end() {
    case $1 in
        del) cni DEL pod1 net1 "$2" ;;
        del-twice)
            cni DEL pod1 net1 "$2"
            ((status == 0)) || return 0
            cni DEL pod1 net1 "$2"
            ;;
        dead-then-del)
            kill_pod pod1
            cni DEL pod1 net1 "$2"
            ;;
        gc)
            kill_pod pod1
            local none='"cni.dev/valid-attachments": [], "mtu"'
            cni GC pod1 net1 "${2/\"mtu\"/$none}"
            ;;
        reap)
            kill_pod pod1
            "$refuser" /run/refusals "$refuse" "$bin/railctl" reap >/dev/null || true
            ;;
        nothing) kill_pod pod1 ;;
    esac
    ((status == 0)) || fail "$1: $output"
}

# next STEP NEXT: pod2 starts, or is told what to do and starts then. Sets $config and $result.
next() {
    local told expected vf=0
    case $2 in
        # An RDMA device that is still in the first pod nobody can have: with `auto` the VF is a rail without it.
        same) config=$(network rail-0 "$vf0" "${wanted[$1]/required/auto}") expected=$with_keys ;;
        address) config=$(network rail-0 "$vf1" '') expected=$second vf=1 refuse='' ;;
        network) config=$(network other "$vf0" '') expected=$first ;;
    esac
    # A rate that cannot be taken back is no reason to refuse a pod.
    [[ $1:$2 != rate:network ]] || expected=$with_keys
    cni ADD pod2 net1 "$config"
    case $1:$2 in
        vlan:network | mac:network | spoofchk:network | trust:network)
            ((status == 1)) || fail "the next pod has what keeps tenants apart from another: $output"
            told=$(jq -r .msg <<<"$output")
            contains "the message" "the $1 of VF 0" "$told"
            contains "the message" "lab/pod1" "$told"
            contains "the message" "\`ip link set ens0f0 vf 0 $1 " "$told"
            # Its remedy helps.
            told=${told#*\`}
            told=${told%%\`*}
            $told
            cni ADD pod2 net1 "$config"
            ;;
    esac
    ((status == 0)) || fail "the next pod does not start: $output"
    result=$output
    check pod2 net1 "$config" "$result"
    same "the next pod's settings" "$expected" "$(of_vf "$vf")"
}

# one STEP END NEXT
one() {
    local config result with_keys
    rm -f /run/refusals
    pod pod1 && pod pod2
    refuse=''
    config=$(network rail-0 "$vf0" "${wanted[$1]}")
    add pod1 net1 "$config"
    with_keys=$(of_vf 0)
    refuse=${back[$1]}
    end "$2" "$config"
    next "$1" "$3"
    if [[ ! -e /run/refusals && $1:$2 != rdma:nothing ]]; then
        fail "nothing was refused: this case shows nothing"
    fi
    # The cause is mended.
    refuse=''
    cni DEL pod2 net1 "$config"
    ((status == 0)) || fail "DEL of the next pod: $output"
    "$bin/railctl" reap >/dev/null
    tidy
    same "the node" "$pristine" "$(snapshot)"
    same "RDMA devices" "$devices" "$(rdma_devices)"
    same "pending" "" "$(find /run/rail-cni/pending -type f)"
}

whatever_the_pf_refuses_the_next_pod_starts() {
    local step way next lost=0 count=0
    while read -r step way next; do
        (one "$step" "$way" "$next") </dev/null >/run/one.out 2>&1 &
        # Not `( ) || ...`: there errexit would be off.
        if ! wait $!; then
            printf '%s, %s, %s: %s\n' "$step" "$way" "$next" "$(tail -n 1 /run/one.out)"
            sed 's/^/    /' /run/one.out
            lost=$((lost + 1))
            start_anew
        fi
        count=$((count + 1))
    done < <(xargs -n 3 <<<"$cases")
    printf '%d cases, %d lost\n' "$count" "$lost" >/run/owed.sum
    ((lost == 0)) || fail "$lost of $count cases lost"
}

# After a case that was lost: the next one is to be judged on its own.
start_anew() {
    tidy
    restore_node
    ip link set ens0f0 vf 0 vlan 0
    ip link set ens0f0 vf 0 trust off
    ip link set ens0f0 vf 0 spoofchk on
    ip link set ens0f0 vf 0 max_tx_rate 0
    ip link set ens0f0 vf 0 mac "${back[mac]#mac=}"
    pristine=$(snapshot)
}

# A pod has the VF; somebody sets its VLAN through the PF. That ends with the pod as the pod's own settings do.
what_an_operator_set_meanwhile_is_set_back() {
    local config
    config=$(network rail-0 "$vf0" '"trust": "on"')
    pod pod1
    add pod1 net1 "$config"
    ip link set ens0f0 vf 0 vlan 7 qos 2
    ip link set ens0f0 vf 0 spoofchk off
    ip link set ens0f0 vf 0 max_tx_rate 300
    del pod1 net1 "$config"
    same "the VF" "$first" "$(of_vf 0)"
}

# Sets $config. Its DEL could not take the RDMA device out of pod1.
owe_rdma_device() {
    config=$(network rail-0 "$vf0" "${wanted[rdma]}")
    pod pod1
    add pod1 net1 "$config"
    refuse=rdma
    del pod1 net1 "$config"
    refuse=''
}

a_pod_that_needs_the_rdma_device_of_another_is_told_whose() {
    local config
    owe_rdma_device
    pod pod2
    refuse=rdma
    refused "is still in pod lab/pod1" ADD pod2 net1 "$config"
    refuse=''
    # It is taken home as soon as that can be done.
    add pod2 net1 "$config"
    del pod2 net1 "$config"
}

# Sets $config. Of the first interface of pod1, the RDMA device was pending; somebody brought that home, and the second
# one has it.
attached_again() {
    owe_rdma_device
    ip netns attach host 1
    in_pod pod1 rdma dev set rxe0 netns host
    ip netns del host
    add pod1 net2 "$config"
}

# A step of the first interface is not undone on the second.
an_rdma_device_that_was_attached_again_stays_in_its_pod() {
    local config result
    attached_again
    result=$output
    output=$("$bin/railctl" reap 2>&1) || fail "reap: $output"
    contains "the pod's RDMA devices" "rxe0:" "$(in_pod pod1 rdma dev show)"
    check pod1 net2 "$config" "$result"
    del pod1 net2 "$config"
    "$bin/railctl" reap >/dev/null
    same "pending" "" "$(find /run/rail-cni/pending -type f)"
    same "RDMA devices" "$devices" "$(rdma_devices)"
}

# The record of the second interface is lost, and a rebuilt one does not say which RDMA devices it has.
a_rebuilt_record_keeps_the_rdma_device_in_its_pod() {
    local config
    attached_again
    # The record, and its copy in the lock of the device.
    find /run/rail-cni -type f ! -path '*/pending/*' ! -path '*/leases/*' -delete
    output=$("$bin/railctl" reap --rebuild 2>&1) || fail "reap: $output"
    contains "reap" "recorded $vf0" "$output"
    contains "the pod's RDMA devices" "rxe0:" "$(in_pod pod1 rdma dev show)"
    kill_pod pod1
    "$bin/railctl" reap >/dev/null
    same "pending" "" "$(find /run/rail-cni/pending -type f)"
    same "RDMA devices" "$devices" "$(rdma_devices)"
    # A rebuilt record does not know the former MTU, and the lease waits for the next pod.
    ip link set ens0f0v0 mtu 1500
    "$bin/railctl" release --dead >/dev/null
}

# The pod that the debt waits for is dead, and gives the device back in the same call.
what_waited_for_a_device_is_done_when_reap_returns_it() {
    local config
    owe_rdma_device
    pod pod2
    add pod2 net1 "${config/required/auto}"
    kill_pod pod2
    "$bin/railctl" reap >/dev/null || fail "reap has to be called twice"
    same "pending" "" "$(find /run/rail-cni/pending -type f)"
    same "RDMA devices" "$devices" "$(rdma_devices)"
}

# Another plugin attached the VF while its VLAN was owed; rail-cni has that on a rebuilt record, and gives it back.
a_rebuilt_record_gives_back_what_an_earlier_pod_owes() {
    local config
    config=$(network rail-0 "$vf0" "${wanted[vlan]}")
    pod pod1 && pod pod2
    add pod1 net1 "$config"
    refuse=vlan=0
    del pod1 net1 "$config"
    refuse=''
    ip link set ens0f0v0 netns pod2
    "$bin/railctl" reap --rebuild >/dev/null
    same "pending" "" "$(find /run/rail-cni/pending -type f)"
    contains "the VF" "vlan 100" "$(of_vf 0)"
    kill_pod pod2
    "$bin/railctl" reap >/dev/null
    same "the VF" "$first" "$(of_vf 0)"
}

# Only the name is owed. What the operator sets on the free VF meanwhile stays.
a_debt_of_a_name_leaves_the_settings_of_the_vf_alone() {
    local config name=ens0f0v0
    config=$(network rail-0 "$vf0" '"vlan": 100')
    pod pod1
    add pod1 net1 "$config"
    ip link add "$name" type veth peer name other
    del pod1 net1 "$config"
    ip link set ens0f0 vf 0 vlan 7
    output=$("$bin/railctl" reap 2>&1) && fail "reap succeeds: $output"
    contains "the VF" "vlan 7" "$(of_vf 0)"
    ip link set ens0f0 vf 0 vlan 0
    ip link del "$name"
    "$bin/railctl" reap >/dev/null
    same "pending" "" "$(find /run/rail-cni/pending -type f)"
}

rdma_devices() { rdma link show | sed 's/ state.* netdev / /'; }

rdma link add rxe0 type rxe netdev ens0f0v0
rdma link add rxe1 type rxe netdev ens0f0v1
vf0=$(vf 0) vf1=$(vf 0 1)
devices=$(rdma_devices) first=$(of_vf 0) second=$(of_vf 1)
back[mac]=mac=$(sed -E 's/.*link.ether ([0-9a-f:]+).*/\1/' <<<"$first")
trap 'cat /run/owed.sum' EXIT
run_cases whatever_the_pf_refuses_the_next_pod_starts what_an_operator_set_meanwhile_is_set_back \
    a_pod_that_needs_the_rdma_device_of_another_is_told_whose an_rdma_device_that_was_attached_again_stays_in_its_pod \
    a_rebuilt_record_keeps_the_rdma_device_in_its_pod what_waited_for_a_device_is_done_when_reap_returns_it \
    a_rebuilt_record_gives_back_what_an_earlier_pod_owes a_debt_of_a_name_leaves_the_settings_of_the_vf_alone
