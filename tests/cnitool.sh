#!/usr/bin/env bash
# The real caller: libcni's cnitool runs rail-cni and rail-ipam, alone and in front of upstream tuning.
#
# usage: tests/cnitool.sh
#
# For every cniVersion from 0.3.1 to 1.1.0: add, check, status, gc and del, with and without capability arguments
# (deviceID, mac, ips), and afterwards the device is on the host as it was, with no lease and no record left.
# Prints a line per case and, last, `N passed, N failed, N skipped`. Needs `scripts/build`, jq, and root or user
# namespaces; works in network and mount namespaces of its own. RAIL_CNITOOL and RAIL_PEERS name an
# executable and a folder of upstream plugins to use instead of those that scripts/cnitool fetches. What is skipped
# goes to the file RAIL_TEST_SKIPS, too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

bin=$target/static
passed=0 failed=0 skipped=0

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
    esac
    if [[ ! ${RAIL_SANDBOX:-} ]]; then
        # Fetched out here, where there is a network.
        [[ ${RAIL_CNITOOL:-} ]] || RAIL_CNITOOL=$("$root/scripts/cnitool") ||
            skip_all "$?" "cnitool cannot be fetched"
        [[ ${RAIL_PEERS:-} ]] || RAIL_PEERS=$("$root/scripts/cnitool" --peers) || RAIL_PEERS=/usr/lib/cni
        export RAIL_CNITOOL RAIL_PEERS
        enter_sandbox "$@"
    fi
    build_node

    local version
    for version in 0.3.1 0.4.0 1.0.0 1.1.0; do
        life_of_single "$version"
        life_of_chain "$version"
        capabilities "$version"
    done
    refusals
    recovery
    total
}

skip_all() {
    (($1 == 3)) || die "scripts/cnitool failed" 1
    skip "cnitool" "$2"
    total
}

total() {
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    exit $((failed > 0))
}

# --- the cases -------------------------------------------------------------------------------------------------

life_of_single() {
    local name="$1 single"
    network single "$(rail "$1")" "$1"
    full_life "$name" "$1" single
}

life_of_chain() {
    local name="$1 before tuning"
    if ! tuning_speaks "$1"; then
        skip "$name" "tuning of $RAIL_PEERS does not speak $1"
        return
    fi
    network chain "$(rail "$1"),{\"type\":\"tuning\",\"sysctl\":{\"net.ipv4.conf.IFNAME.log_martians\":\"1\"}}" "$1"
    full_life "$name" "$1" chain
    is "$name: tuning was called" 1 "$tuned"
}

# add, look, status, check, del, del again; add, gc.
full_life() {
    local name=$1 version=$2 net=$3
    succeeds "$name: status" cnitool status "$net" "$pod"
    succeeds "$name: add" cnitool add "$net" "$pod"
    is "$name: result: version" "$version" "$(result .cniVersion)"
    is "$name: result: interface" "net1 $pod" "$(result '.interfaces[0]|"\(.name) \(.sandbox)"')"
    is "$name: result: address" "172.16.1.60/31 172.16.1.61" "$(result '.ips[0]|"\(.address) \(.gateway)"')"
    is "$name: result: index in range" true "$(result '[.ips[].interface]|all(. == 0)')"
    if [[ $version == 1.1.0 ]]; then
        is "$name: result: mtu" 9000 "$(result '.interfaces[0].mtu')"
    fi
    is "$name: pod: link" "net1 9000 UP" "$(in_pod net1)"
    is "$name: pod: address" 172.16.1.60/31 "$(pod_address)"
    is "$name: pod: no default route" "" "$(ip -n pod route show default table all)"
    is "$name: host: device is away" "" "$(host_device)"
    is "$name: lease and record" "1 1" "$(count_leases) $(count_records)"
    tuned=$(ip netns exec pod cat /proc/sys/net/ipv4/conf/net1/log_martians 2>/dev/null || true)
    if [[ $version == 0.3.1 ]]; then
        fails "$name: check is not in this version" "does not support the CHECK command" cnitool check "$net" "$pod"
    else
        succeeds "$name: check" cnitool check "$net" "$pod"
        ip -n pod link set net1 mtu 1500
        fails "$name: check sees another MTU" "its MTU is 1500, not 9000" cnitool check "$net" "$pod"
        ip -n pod link set net1 mtu 9000
    fi
    fails "$name: second add" "a second ADD needs a DEL first" cnitool add "$net" "$pod"
    is "$name: second add harms nothing" "net1 9000 UP" "$(in_pod net1)"
    succeeds "$name: del" cnitool del "$net" "$pod"
    back "$name: del"
    succeeds "$name: del again" cnitool del "$net" "$pod"

    succeeds "$name: add before gc" cnitool add "$net" "$pod"
    succeeds "$name: gc" cnitool gc "$net" "$pod"
    back "$name: gc"
}

capabilities() {
    local name="$1 CAP_ARGS" mac=02:00:00:00:00:77
    local asks="\"capabilities\":{\"deviceID\":true,\"mac\":true,\"ips\":true}"
    network caps "$(rail "$1" "$asks")" "$1"
    export CAP_ARGS="{\"deviceID\":\"$vf\",\"mac\":\"$mac\",\"ips\":[\"172.16.1.60/31\"]}"
    succeeds "$name: add" cnitool add caps "$pod"
    is "$name: pod: link" "net1 9000 UP" "$(in_pod net1)"
    is "$name: pod: mac" "$mac" "$(ip -n pod -j link show net1 | jq -r '.[0].address')"
    is "$name: pod: address" 172.16.1.60/31 "$(pod_address)"
    is "$name: result: mac" "$mac" "$(result '.interfaces[0].mac')"
    if [[ $1 == 1.1.0 ]]; then
        is "$name: result: pciID" "$vf" "$(result '.interfaces[0].pciID')"
    fi
    if [[ $1 != 0.3.1 ]]; then
        succeeds "$name: check" cnitool check caps "$pod"
    fi
    unset CAP_ARGS # a runtime may have forgotten them
    succeeds "$name: del" cnitool del caps "$pod"
    back "$name: del"
}

# Refused before anything happened.
refusals() {
    local asks="\"capabilities\":{\"deviceID\":true,\"mac\":true,\"ips\":true}"
    network caps "$(rail 1.1.0 "$asks")" 1.1.0
    refused "the gateway as address" "is the gateway of 172.16.1.60/31" "{\"deviceID\":\"$vf\",\"ips\":[\"172.16.1.61/31\"]}"
    refused "an address of elsewhere" "is outside of this node's prefix" "{\"deviceID\":\"$vf\",\"ips\":[\"10.9.9.9/31\"]}"
    refused "a MAC that is none" nonsense "{\"deviceID\":\"$vf\",\"mac\":\"nonsense\"}"
    refused "a device that is not there" 'no device' '{"deviceID":"0000:7f:10.7"}'
    refused "no device" "names no device" '{}'
    network caps "$(rail 1.1.0 "$asks" 1)" 1.1.0
    refused "another rail's device" "belongs to PF $pf (rail 0)" "{\"deviceID\":\"$vf\"}"
}

# refused WHAT WORD CAP_ARGS
refused() {
    CAP_ARGS=$3 fails "refused: $1" "$2" cnitool add caps "$pod"
    # libcni's caller that gives up sends DEL.
    CAP_ARGS=$3 succeeds "refused: $1: del" cnitool del caps "$pod"
    back "refused: $1"
}

# Faults of runtimes, and cases in which they have no choice.
recovery() {
    network single "$(rail 1.1.0)" 1.1.0
    succeeds "recovery: del of what was never added" cnitool del single "$pod"

    succeeds "recovery: add" cnitool add single "$pod"
    rm -rf /var/lib/cni/results
    succeeds "recovery: del without libcni's cache" cnitool del single "$pod"
    back "recovery: del without libcni's cache"

    succeeds "recovery: add before the namespace goes" cnitool add single "$pod"
    ip netns del pod
    # A veth dies with its namespace, where a VF comes back: only state can be looked at.
    succeeds "recovery: del without the namespace" cnitool del single "$pod"
    is "recovery: del without the namespace: lease and record" "0 0" "$(count_leases) $(count_records)"
    local try
    for ((try = 0; try < 50; try++)); do # the kernel tears a namespace down in its own time
        ip link show leaf0 >/dev/null 2>&1 || break
        sleep 0.1
    done
    ip netns add pod
    make_device
    succeeds "recovery: add afterwards" cnitool add single "$pod"
    succeeds "recovery: del afterwards" cnitool del single "$pod"
    back "recovery: del afterwards"
}

# --- the node --------------------------------------------------------------------------------------------------

vf=0000:01:10.0 pf=0000:01:00.0
pod=/run/netns/pod

build_node() {
    furnish_sandbox
    mkdir -p /run/test/{net.d,store/node-1}
    mount -t tmpfs tmpfs /var/lib # libcni keeps its cache in /var/lib/cni/results, whatever one asks for
    cat >/run/test/node.json <<END
{"nodeName": "node-1", "runDir": "/dev/shm/run", "storeDir": "/run/test/store", "sysfsRoot": "/run/test/sys",
 "rails": [{"rail": 0, "pf": "$pf"}, {"rail": 1, "pf": "0000:02:00.0"}]}
END
    cat >/run/test/store/node-1/rail-0.json <<END
{"version": 1, "prefix": "172.16.1.60/31", "gateway": "172.16.1.61",
 "routes": [{"dst": "172.16.0.0/15"}, {"dst": "172.16.0.0/12"}]}
END
    chmod -R go= /run/test
    build_sysfs /run/test/sys
    make_device
    ip netns add pod
    export RAIL_CNI_NODE_CONFIG=/run/test/node.json NETCONFPATH=/run/test/net.d CNI_IFNAME=net1
    export CNI_PATH=$bin:$RAIL_PEERS
    export CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=trainer-0"
}

make_device() {
    ip link add vf0 address 02:00:00:00:00:10 mtu 1500 type veth peer name leaf0
    ip link set leaf0 mtu 9216 up
    before=$(host_device)
}

# Makes the sysfs of a PF with one VF, whose netdev is our veth.
build_sysfs() {
    local devices=$1/bus/pci/devices drivers=$1/bus/pci/drivers
    mkdir -p "$devices/$pf/net/pf0" "$devices/$vf/net/vf0" "$drivers/igb" "$drivers/igbvf" "$1/class/net/"{pf0,vf0}
    ln -s "../$pf" "$devices/$vf/physfn"
    ln -s "../$vf" "$devices/$pf/virtfn0"
    ln -s ../../drivers/igbvf "$devices/$vf/driver"
    ln -s ../../drivers/igb "$devices/$pf/driver"
    printf '7\n' >"$devices/$pf/sriov_totalvfs"
    printf '1\n' >"$devices/$pf/sriov_numvfs"
    ln -s "../../../bus/pci/devices/$vf" "$1/class/net/vf0/device"
    ln -s "../../../bus/pci/devices/$pf" "$1/class/net/pf0/device"
}

# rail VERSION [KEYS [RAIL]]: the configuration of the plugin; without KEYS, by the device's name.
rail() {
    printf '{"cniVersion":"%s","type":"rail-cni","rail":%d,"mtu":9000,%s,"ipam":{"type":"rail-ipam","pool":"rail-0"}}' \
        "$1" "${3:-0}" "${2:-\"device\":\"vf0\"}"
}

# network NAME PLUGINS VERSION: the only one; a list even when it is of one plugin, and a bare .conf for `single`.
network() {
    rm -f /run/test/net.d/*
    if [[ $1 == single ]]; then
        jq --arg name "$1" '. + {name: $name}' <<<"$2" >/run/test/net.d/10-rail.conf
    else
        printf '{"cniVersion":"%s","name":"%s","plugins":[%s]}\n' "$3" "$1" "$2" >/run/test/net.d/10-rail.conflist
    fi
}

cnitool() { "$RAIL_CNITOOL" "$@"; }

tuning_speaks() {
    [[ -x $RAIL_PEERS/tuning ]] || return 1
    CNI_COMMAND=VERSION "$RAIL_PEERS/tuning" </dev/null | jq -e --arg v "$1" '.supportedVersions | index($v)' >/dev/null
}

# --- looking ---------------------------------------------------------------------------------------------------

result() { jq -r "$1" /run/test/out 2>/dev/null || true; }
describe() { jq -r '.[0]|"\(.ifname) \(.mtu) \(if .flags|index("UP") then "UP" else "DOWN" end)"'; }
in_pod() { ip -n pod -j link show "$1" 2>/dev/null | describe || true; }
pod_address() { ip -n pod -j -4 addr show net1 | jq -r '.[0].addr_info[]|"\(.local)/\(.prefixlen)"' || true; }
host_device() { ip -j link show vf0 2>/dev/null | jq -r '.[]|select(.ifname)|"\(.ifname) \(.mtu) \(.address)"'; }
count_leases() { find /dev/shm/run/leases -type f ! -name '*lock*' 2>/dev/null | wc -l; }
count_records() { find /dev/shm/run/attachments -type f 2>/dev/null | wc -l; }

# Is everything as before?
back() {
    is "$1: device is back" "$before" "$(host_device)"
    is "$1: lease and record" "0 0" "$(count_leases) $(count_records)"
    is "$1: pod is clean" "" "$(ip -n pod -br link show type veth)$(ip -n pod rule | grep -v 'lookup \(local\|main\|default\)' || true)"
}

# --- counting --------------------------------------------------------------------------------------------------

succeeds() {
    local name=$1
    shift
    if "$@" >/run/test/out 2>/run/test/err; then ok "$name"; else bad "$name" "$(said)"; fi
}

# fails NAME WORD COMMAND...: it fails, and says WORD.
fails() {
    local name=$1 word=$2
    shift 2
    if "$@" >/run/test/out 2>/run/test/err; then
        bad "$name" "it succeeded"
    elif [[ $(</run/test/err) != *"$word"* || $(said) == *panick* ]]; then
        bad "$name" "no \"$word\" in: $(said)"
    else
        ok "$name" "$(said)"
    fi
}

said() { tail -n 3 /run/test/err | tr '\n' ' ' | cut -c -300; }

is() {
    if [[ $2 == "$3" ]]; then ok "$1"; else bad "$1" "expected '$2', have '$3'"; fi
}

ok() {
    passed=$((passed + 1))
    printf 'ok   %s%s\n' "$1" "${2:+: ${2% }}"
}

bad() {
    failed=$((failed + 1))
    printf 'FAIL %s: %s\n' "$1" "$2"
}

skip() {
    skipped=$((skipped + 1))
    printf 'skip %s: %s\n' "$1" "$2"
    [[ ! ${RAIL_TEST_SKIPS:-} ]] || printf '%s: %s\n' "$1" "$2" >>"$RAIL_TEST_SKIPS"
}

main "$@"
