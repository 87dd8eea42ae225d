#!/usr/bin/env bash
# The plan of 8,192 nodes as objects: applied by the client and by the server.
source "$(dirname "$0")/lib.sh"

fabric=$cluster/home/fabric.yaml
sed 's/^sus: .*/sus: 64/; s/^hostsPerSU: .*/hostsPerSU: 128/' "$root/conf/fabric.yaml" >"$fabric"

plan() { "$target/static/railctl" plan "$fabric" "$@"; }

# The pools of the first NODES nodes.
pools_of() {
    kubectl create --dry-run=client -o json -f "$cluster/home/pools" |
        jq --argjson nodes "$1" '(if .kind == "List" then .items[] else . end) | .spec.staticAllocations |= .[:$nodes]'
}

pools_have() {
    local sizes
    sizes=$(kubectl get cidrpools -n nvidia-network-operator -o json | jq -c '[.items[].spec.staticAllocations | length]')
    [[ $sizes == "[$1,$1,$1,$1,$1,$1,$1,$1]" ]] || { printf '%s\n' "$sizes" && return 1; }
}

# Compares the API server's store with the plan, for a node at the end.
are_those_of_the_plan() {
    diff <(plan --to csv | awk -F, '$1 == "worker-gpu-8191" { print $6 "/31", $7 }' | sort) \
        <(kubectl get cidrpools -n nvidia-network-operator -o json | jq -r '.items[].spec.staticAllocations[]
            | select(.nodeName == "worker-gpu-8191") | "\(.prefix) \(.gateway)"' | sort)
}

is_unchanged() { [[ $(pools_of "$1" | kubectl apply -f - | grep -c unchanged) == 8 ]]; }

lint() { kubectl get net-attach-def -n networks -o yaml | "$target/static/railctl" lint -; }

# A node takes what the API server stored.
import_takes_them() {
    kubectl get cidrpools -n nvidia-network-operator -o yaml | on worker-gpu-0 /opt/cni/bin/railctl import - --dry-run
}

check "the plan of 8,192 nodes is written as pools" plan --to cidrpool --out "$cluster/home/pools"
kubectl create namespace nvidia-network-operator >/dev/null
kubectl create namespace networks >/dev/null

check "3,000 nodes are applied by the client" eval 'pools_of 3000 | kubectl apply -f -'
check "the pools have 3,000 nodes" pools_have 3000
check "applied again, nothing changes" is_unchanged 3000
check "8,192 nodes are refused for the annotation that the client adds" fails_with "Too long: may not be more than 262144 bytes" \
    kubectl apply -f "$cluster/home/pools"
check "the pools have 3,000 nodes still" pools_have 3000
kubectl delete cidrpools -n nvidia-network-operator --all >/dev/null

check "8,192 nodes are applied by the server" kubectl apply --server-side -f "$cluster/home/pools"
check "the pools have 8,192 nodes" pools_have 8192
check "they are those of the plan" are_those_of_the_plan
check "applied again by the server, they are the same" kubectl apply --server-side -f "$cluster/home/pools"
check "railctl takes them from the API server" import_takes_them
kubectl delete cidrpools -n nvidia-network-operator --all >/dev/null
check "8,192 nodes are created" kubectl create -f "$cluster/home/pools"
kubectl delete namespace nvidia-network-operator --wait=false >/dev/null

for form in --server-side=false --server-side=true; do
    check "the networks of the plan are applied with $form" eval "plan --to nads | kubectl apply $form -n networks -f -"
    check "there are eight" test "$(kubectl get net-attach-def -n networks -o name | wc -l)" == 8
    check "lint finds no error in what the API server has" lint
    kubectl delete net-attach-def -n networks --all >/dev/null
done
kubectl delete namespace networks --wait=false >/dev/null
finish
