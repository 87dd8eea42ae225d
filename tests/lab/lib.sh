# shellcheck shell=bash
# Shared by the tests here, which run inside the machine of scripts/lab: `source "$(dirname "$0")/lib.sh"`.
#
# A case is a function whose name says what must be true. `run_cases` calls each on a node that is as it was when the
# machine had booted, and prints `ok NAME`, `FAIL NAME: why` or `skip NAME: reason`, and last the sum.

source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

bin=$target/static
declare -g output='' status=0

# --- cases -----------------------------------------------------------------------------------------------------

# run_cases NAME...: a case that changes the node for good makes the next one fail, by name.
run_cases() {
    local name passed=0 failed=0 skipped=0 result group
    [[ $(uname -n) == lab-node && -e /run/lab/job ]] || die "only inside the machine: scripts/lab $0" 2
    has_executables "$bin" || die "$bin has no executables: run scripts/build" 1
    group=$(basename "$0" .sh)
    pristine=$(snapshot)
    declare -gA homes=()
    for name in /sys/bus/pci/drivers/igbvf/*:*/net/*; do
        [[ ! -e $name ]] || homes[$(basename "$(readlink -f "$name/device")")]=${name##*/}
    done
    for name; do
        result=0
        (
            set -euo pipefail
            trap 'at_error $LINENO' ERR
            set -E
            "$name"
            tidy
            same "the node afterwards" "$pristine" "$(snapshot)"
        ) >/run/case.out 2>&1 &
        # Not `( ) || ...`: there errexit would be off.
        wait $! || result=$?
        case $result in
            0) printf 'ok %s: %s\n' "$group" "${name//_/ }" && passed=$((passed + 1)) ;;
            77)
                printf 'skip %s: %s: %s\n' "$group" "${name//_/ }" "$(tail -n 1 /run/case.out)"
                skipped=$((skipped + 1))
                ;;
            *)
                printf 'FAIL %s: %s: %s\n' "$group" "${name//_/ }" "$(tail -n 1 /run/case.out)"
                failed=$((failed + 1))
                sed 's/^/    /' /run/case.out
                tidy >/dev/null 2>&1 || true
                restore_node || true
                ;;
        esac
    done
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    exit $((failed > 0))
}

at_error() { printf 'line %d: %s\n' "$1" "$BASH_COMMAND"; }

# fail WHY: ends the case.
fail() {
    trap - ERR
    printf '%s\n' "$1"
    exit 1
}

# skip REASON: ends the case.
skip() {
    trap - ERR
    printf '%s\n' "$1"
    exit 77
}

# same WHAT EXPECTED FOUND
same() {
    [[ $2 != "$3" ]] || return 0
    [[ $2$3 != *$'\n'* ]] || {
        diff <(printf '%s\n' "$2") <(printf '%s\n' "$3") || true
        fail "$1: differs in the lines above"
    }
    fail "$1: \"$3\" instead of \"$2\""
}

# contains WHAT PART WHOLE
contains() {
    [[ $3 == *"$2"* ]] || fail "$1: no \"$2\" in: $3"
}

# --- the node --------------------------------------------------------------------------------------------------

pf() { printf '0000:%02x:00.0' $(($1 + 1)); }

# vf RAIL [NUMBER]: the PCI address.
vf() {
    local link
    link=$(readlink "/sys/bus/pci/devices/$(pf "$1")/virtfn${2:-0}") || fail "rail $1 has no VF ${2:-0}"
    printf '%s' "${link##*/}"
}

# The state that must be restored after the last DEL: each device of the host with MTU, MAC, altnames, state, and the
# PFs' settings for their VFs; leases and records.
snapshot() {
    ip -json -details link show | jq -rc '.[] | select(.ifname != "lo") |
        [.ifname, .mtu, .address, (.altnames // [] | sort), (.flags | index("UP") != null),
         (.vfinfo_list // [] | map(del(.stats)))] | @json' | sort
    ip -json addr show | jq -rc '.[] | .ifname as $name | .addr_info[]? | select(.scope == "global") |
        "\($name) \(.local)"'
    state_files
}

# Without the leases of addresses that `reap --rebuild` found in other namespaces.
state_files() {
    {
        find /run/rail-cni/leases -name '*.json' -exec grep -L '"containerID":"rebuilt-' {} + 2>/dev/null
        find /run/rail-cni/attachments -type f 2>/dev/null
    } | sort || true
}

# address MTU UP of a device of the host.
device() {
    ip -json link show "$1" 2>/dev/null |
        jq -r '.[0] | "\(.ifname) \(.mtu) \(.address) \(if .flags | index("UP") then "up" else "down" end)"'
}

# Ports of netdevsim are no functions of a bus and on no rail: they are handed out where node.json says so.
allow_netdevsim() {
    jq '.rails = [] | .policy.kinds = ["netdevsim"]' /etc/rail-cni/node.json >/run/netdevsim.json
    export RAIL_CNI_NODE_CONFIG=/run/netdevsim.json
}

mac_of() { cat "/sys/class/net/$1/address"; }

# Namespaces of pods that a case left.
tidy() {
    local path pods=()
    for path in /run/netns/pod*; do
        [[ ! -e $path ]] || pods+=("${path##*/}")
    done
    kill_pod "${pods[@]}"
}

# After a failed case: the next one is to be judged on its own, on what can be mended.
restore_node() {
    local vf found name
    "$bin/railctl" reap >/dev/null 2>&1 || true
    rm -rf /run/rail-cni /run/rail-cni.begun
    for vf in "${!homes[@]}"; do
        found=("/sys/bus/pci/devices/$vf/net/"*)
        name=${found[0]##*/}
        [[ -e ${found[0]} && $name != "${homes[$vf]}" ]] || continue
        ip link set "$name" down
        ip link set "$name" mtu 1500
        ip link set "$name" name "${homes[$vf]}"
    done
    pristine=$(snapshot)
}

# home_from_vfio VF NAME: back to its driver, with the name and MAC that it had.
home_from_vfio() {
    local vf=$1 name=$2 mac found
    mac=$(grep "^\[\"$name\"," <<<"$pristine" | jq -r '.[2]')
    echo "$vf" >/sys/bus/pci/drivers/vfio-pci/unbind
    echo >"/sys/bus/pci/devices/$vf/driver_override"
    echo "$vf" >/sys/bus/pci/drivers_probe
    found=("/sys/bus/pci/devices/$vf/net/"*)
    [[ ${found[0]##*/} == "$name" ]] || ip link set "${found[0]##*/}" name "$name"
    [[ $(mac_of "$name") == "$mac" ]] || ip link set "$name" address "$mac"
}

pod() {
    ip netns add "$1"
    ip -n "$1" link set lo up
}

in_pod() {
    local pod=$1
    shift
    ip netns exec "$pod" "$@"
}

# kill_pod POD...: their namespaces go away under their devices, and nobody says DEL. The kernel takes a namespace apart after
# the fact: this waits until the host has the netdevs that it hands back. RDMA devices come before these.
kill_pod() {
    local pod device
    local -A wanted=()
    for pod; do
        for device in $(ip -n "$pod" -details -json link show |
            jq -r '.[] | select(.parentdev) | "/sys/bus/\(.parentbus)/devices/\(.parentdev)"'); do
            wanted[$device]=$((${wanted[$device]:-$(netdevs_of "$device")} + 1))
        done
    done
    for pod; do
        ip netns del "$pod"
    done
    for device in "${!wanted[@]}"; do
        wait_until has_netdevs "$device" "${wanted[$device]}"
    done
}

# wait_until COMMAND...: until it succeeds, but 30 s at most: the case goes on, and says what it misses.
wait_until() {
    local try
    for ((try = 0; try < 300; try++)); do
        ! "$@" || return 0
        sleep 0.1
    done
}

# has_netdevs DEVICE [NUMBER]: has the host so many netdevs of a device, a folder of sysfs?
has_netdevs() { (($(netdevs_of "$1") >= ${2:-1})); }

# Number of netdevs.
netdevs_of() { { find "$1/net/" -mindepth 1 -maxdepth 1 2>/dev/null || true; } | wc -l; }

# --- the plugin ------------------------------------------------------------------------------------------------

# conf RAIL DEVICE [KEYS]: a network as Multus hands it over; KEYS is further JSON, `"trust": "on"`.
conf() {
    printf '{"cniVersion": "1.1.0", "name": "rail-%d", "type": "rail-cni", "rail": %d, "mtu": 9000,
        "deviceID": "%s", "pciBusID": "%s", "runtimeConfig": {"deviceID": "%s"},
        "capabilities": {"deviceID": true, "mac": true, "ips": true},
        "ipam": {"type": "rail-ipam", "pool": "rail-%d"}%s}' "$1" "$1" "$2" "$2" "$2" "$1" "${3:+, $3}"
}

# cni COMMAND POD IFNAME CONF: sets $output and $status; the log goes to stderr.
cni() {
    status=0
    output=$(CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 CNI_IFNAME=$3 CNI_PATH=$bin \
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=lab;K8S_POD_NAME=$2" "$bin/rail-cni" <<<"$4") || status=$?
}

succeeds() {
    cni "$@"
    ((status == 0)) || fail "$1 $2 $3: $output"
}

# refused PART COMMAND POD IFNAME CONF: an error that says PART.
refused() {
    local part=$1
    shift
    cni "$@"
    ((status == 1)) || fail "$1 $2 $3: status $status instead of an error: $output"
    contains "$1 $2 $3" "$part" "$(jq -r .msg <<<"$output")"
}

add() { succeeds ADD "$@"; }
del() { succeeds DEL "$@"; }

# check POD IFNAME CONF RESULT
check() { succeeds CHECK "$1" "$2" "$(with_result "$3" "$4")"; }
check_fails() { refused "$1" CHECK "$2" "$3" "$(with_result "$4" "$5")"; }
with_result() { jq -c --argjson result "$2" '.prevResult = $result' <<<"$1"; }

# traced OPTION... -- VERB POD CONF: of net1.
traced() {
    local -a of_strace=()
    while [[ $1 != -- ]]; do
        of_strace+=("$1") && shift
    done
    CNI_COMMAND=$2 CNI_CONTAINERID=$3 CNI_NETNS=/run/netns/$3 CNI_IFNAME=net1 CNI_PATH=$bin \
        strace -qq -f "${of_strace[@]}" "$bin/rail-cni" <<<"$4"
}

# rxe_on_vfs RAILS: RDMA devices in software, rxe<RAIL><VF>, on VFs 0 and 1 of the rails 0 to RAILS-1.
rxe_on_vfs() {
    local rail vf
    for ((rail = 0; rail < $1; rail++)); do
        for vf in 0 1; do
            rdma link add "rxe$rail$vf" type rxe netdev "ens${rail}f0v$vf"
        done
    done
}
