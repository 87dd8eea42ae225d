#!/usr/bin/env bash
# conf/nads-one.yaml: one network and one resource for all rails. A device's rail is that of its PF.
source "$(dirname "$0")/lib.sh"

# offer NODE [RESOURCE]: its agent starts anew with this resource.
offer() { crash "$1" rail-agent && start_agent "$@"; }

# has NODE RESOURCE NUMBER: pods can get so many.
has() { kubectl get node "$1" -o json | jq -e --arg of "$2" --arg number "$3" '.status.allocatable[$of] == $number'; }

# worker NAME NUMBER: with so many rails.
worker() {
    # shellcheck disable=SC2016
    trainer "$1" '.metadata.annotations["k8s.v1.cni.cncf.io/networks"] = ([range('"$2"') | "rails"] | join(","))
        | .spec.containers[0].resources.limits = {"nvidia.com/rails": "'"$2"'"}'
}

# have POD NUMBER: so many interfaces, each with the address that the plan gives to the node for the rail of the device's PF.
have() {
    local node
    node=$(node_of "$1") && [[ $(given "$1" | wc -l) == "$2" ]] &&
        [[ ! $(comm -23 <(given "$1" | sort) <(wanted "$node" | sort) | tee /dev/stderr) ]]
}

# wanted NODE: each PF with the address of its rail.
wanted() {
    join <(pfs | sort) <("$target/static/railctl" plan "$root/conf/fabric.yaml" --to csv |
        awk -F, -v node="$1" '$1 == node { print $2, $6 }' | sort) | cut -d ' ' -f 2-
}

# given POD: the PF and the address of each of its interfaces.
given() {
    network_status "$1" | jq -r '.[1:][] | "\(.["device-info"].pci["pci-address"] | sub("\\.2$"; ".0")) \(.ips[0])"'
}

# The kubelet's choice, as the container sees it.
# shellcheck disable=SC2016
is_told() {
    [[ $(kubectl exec "$1" -- sh -c 'echo "$PCIDEVICE_NVIDIA_COM_RAILS"' | tr ',' '\n' | sort) == \
        "$(network_status "$1" | jq -r '.[1:][]["device-info"].pci["pci-address"]' | sort)" ]]
}

kubectl apply -f "$root/conf/nads-one.yaml" >/dev/null
for node in "${nodes[@]}"; do
    check "$node offers one resource for all rails" offer "$node" nvidia.com/rails
    check "it has eight devices" within 60 has "$node" nvidia.com/rails 8
    check "none is offered twice" within 60 has "$node" nvidia.com/rail-0 0
done
{ worker trainer-0 8 && worker trainer-1 8; } | kubectl apply -f - >/dev/null
check "two pods with eight rails become ready" are_ready trainer-0 trainer-1
for pod in trainer-0 trainer-1; do
    check "each device of $pod has the address of its own rail" have "$pod" 8
    check "$pod is told its devices" is_told "$pod"
    check "net1 to net8 are in the order of the rails" has_rails "$pod"
done
check "the largest packets pass between all rails" all_reach_all trainer-0 trainer-1
node=$(node_of trainer-0)
check "the agent of $node ends and starts again under its pod" offer "$node" nvidia.com/rails
check "its devices are offered again" within 60 has "$node" nvidia.com/rails 8
check "the pod keeps its rails" all_reach_all trainer-0 trainer-1
kubectl delete pod trainer-0 trainer-1 --wait --timeout 60s >/dev/null
{ worker two-0 2 && worker two-1 2 && worker two-2 2; } | kubectl apply -f - >/dev/null
check "pods with two rails become ready" are_ready two-0 two-1 two-2
for pod in two-0 two-1 two-2; do check "$pod has two rails, each with its address" have "$pod" 2; done
kubectl delete pods --all --wait --timeout 60s >/dev/null
kubectl delete net-attach-def rails >/dev/null
for node in "${nodes[@]}"; do
    check "$node offers a resource per rail again" offer "$node"
    check "it is ready" within 60 node_is_ready "$node"
done
finish
