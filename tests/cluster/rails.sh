#!/usr/bin/env bash
# Two pods of conf/pod.yaml, eight rails each.
source "$(dirname "$0")/lib.sh"

status_is_whole() {
    network_status "$1" | jq -e '(map(.interface) == ["eth0", (range(1; 9) | "net\(.)")])
        and ([range(8) as $rail | .[$rail + 1] | .name == "default/rail-\($rail)" and .mtu == 9000
            and ."device-info".pci["pci-address"] != null and (.ips | length == 1)] | all)'
}

# The device that the kubelet gave to the container is the one that is net1.
# shellcheck disable=SC2016
devices_are_the_kubelets() {
    local reported given
    reported=$(network_status "$1" | jq -r '.[1:][]["device-info"].pci["pci-address"]')
    given=$(kubectl exec "$1" -- sh -c 'for rail in 0 1 2 3 4 5 6 7; do eval echo "\$PCIDEVICE_NVIDIA_COM_RAIL_$rail"; done')
    [[ $given == 0000:*$'\n'* && $reported == "$given" ]] || { printf '%s\n' "$reported" "$given" && return 1; }
}

default_route_is_eth0() { [[ $(kubectl exec "$1" -- ip route show default) == "default via 10.244."*" dev eth0"* ]]; }

check "two pods become ready" create trainer-0 trainer-1
check "each has a node of its own" test "$(node_of trainer-0)" != "$(node_of trainer-1)"
for pod in trainer-0 trainer-1; do
    check "$pod has net1 to net8 with the addresses of the plan" has_rails "$pod"
    check "the network-status of $pod has the rails in order, with device-info" status_is_whole "$pod"
    check "the devices of $pod are those that the kubelet gave to its container" devices_are_the_kubelets "$pod"
    check "the default route of $pod is that of eth0" default_route_is_eth0 "$pod"
done
check "the largest packets pass between all rails" all_reach_all trainer-0 trainer-1
for node in "${nodes[@]}"; do
    check "doctor on $node finds nothing, with pods alive" on "$node" /opt/cni/bin/railctl doctor
    check "check on $node finds nothing, and all gateways answer" on "$node" /opt/cni/bin/railctl check
done
finish
