#!/usr/bin/env bash
# Wrong set-ups: the pod does not start, its events say why, and nothing is left.
source "$(dirname "$0")/lib.sh"

# network FILTER: conf/nads.yaml's rail 0 under the name `it`, with its plugin changed by a filter of jq.
network() {
    kubectl get net-attach-def rail-0 -o json | jq '{apiVersion, kind,
        metadata: {name: "it", annotations: {"k8s.v1.cni.cncf.io/resourceName": "nvidia.com/rail-0"}},
        spec: {config: (.spec.config | fromjson | '"$1"' | tojson)}}' | kubectl apply -f -
}

# refused WHAT FILTER TEXT: a pod with such a network.
refused() {
    check "$1: the network is there" network "$2"
    trainer wrong "$one_rail" | kubectl apply -f - >/dev/null
    check "$1: the events of the pod say it" within 60 tells wrong "$3"
    check "$1: the pod has not started" fails_with "container not found" kubectl exec wrong -- ip link
    check "$1: the pod is deleted" kubectl delete pod wrong --wait --timeout 60s
    kubectl delete events --all >/dev/null
    for node in "${nodes[@]}"; do
        check "$1: nothing is left on $node" within 30 is_as_before "$node"
    done
}

refused "a rail that is not the device's" '.plugins[0].rail = 3' \
    "rail 3: VF 0000:1a:00.2 (vf0) belongs to PF 0000:1a:00.0 (rail 0)"
refused "a pool that the plan does not have" '.plugins[0].ipam.pool = "rail-9"' "rail-9"
refused "an MTU above that of the PF" '.plugins[0].mtu = 9500' "9500"
refused "a VLAN that node.json does not allow" '.plugins[0].vlan = 7' "vlan: this node's policy lets networks set [] only"
refused "a rail that node.json does not have" '.plugins[0].rail = 8' "rail"
finish
