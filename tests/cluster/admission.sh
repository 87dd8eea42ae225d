#!/usr/bin/env bash
# conf/admission-policy.yaml: what a tenant may write as a network is decided at `kubectl apply`.
source "$(dirname "$0")/lib.sh"

tenant() { kubectl --as tenant --as-group tenants --namespace ai "$@"; }

# may_write GROUP: networks, in all namespaces.
may_write() {
    kubectl create clusterrole networks --verb=get,list,create,patch,update,delete \
        --resource=network-attachment-definitions.k8s.cni.cncf.io --dry-run=client -o json | kubectl apply -f - &&
        kubectl create clusterrolebinding "networks-$1" --clusterrole networks --group "$1"
}

# network NAME [FILTER]: conf/nads.yaml's rail 0 under this name, with its plugin changed by a filter of jq.
network() {
    kubectl create --dry-run=client -o json -f "$root/conf/nads.yaml" | jq -s --arg name "$1" '[.[]
        | if .kind == "List" then .items[] else . end][0] | .metadata = {name: $name, annotations: .metadata.annotations}
        | .spec.config |= (fromjson | .plugins[0] |= ('"${2:-.}"') | tojson)'
}

is_there() { tenant get net-attach-def "$1" -o name; }

# has_config NAME FILTER: it is stored like this.
has_config() { tenant get net-attach-def "$1" -o json | jq -e ".spec.config | fromjson | .plugins[0] | $2"; }

# refused WHAT FILTER TEXT: as a new network, and as a change of one that is good.
refused() {
    check "$1: a new network is refused" fails_with "$3" eval "network bad '$2' | tenant apply -f -"
    check "$1: it is not there" fails_with "not found" is_there bad
    check "$1: a change is refused" fails_with "$3" eval "network good '$2' | tenant apply -f -"
}

applies_the_plan() {
    "$target/static/railctl" plan "$root/conf/fabric.yaml" --to nads | tenant apply -f -
}

is_up() { [[ $(kubectl exec one -- ip -o link show net1) == *LOWER_UP*"mtu 9000"* ]]; }

# The API server has looked at the expressions with the types that it knows.
no_expression_is_wrong() {
    kubectl get validatingadmissionpolicies -o json | jq -e '[.items[]
        | select(.metadata.name | startswith("rail-cni-"))] | length == 2 and all(.status.observedGeneration >= 1
            and (.status.typeChecking.expressionWarnings // []) == [])'
}

# apply_by GROUP FILE: its networks, as a member of this group.
apply_by() {
    # kubectl refuses a file with kinds that the cluster does not know.
    awk 'BEGIN { RS = "---\n" } /\nkind: NetworkAttachmentDefinition\n/ { print "---\n" $0 }' "$2" |
        kubectl create --dry-run=client -o json -f - |
        jq 'if .kind == "List" then .items[] else . end | .metadata.namespace = "ai"' |
        kubectl --as someone --as-group "$1" apply -f -
}

kubectl create namespace ai >/dev/null
operators=system:serviceaccounts:nvidia-network-operator
check "tenants may write networks" eval "may_write tenants && may_write $operators"
check "before the policy a tenant sets a VLAN" eval 'network old ".vlan = 5" | tenant apply -f -'
check "the policy is applied" kubectl apply -f "$root/conf/admission-policy.yaml"
check "no expression is wrong" within 60 no_expression_is_wrong
check "it is in force" within 60 fails_with "only the operator" \
    eval 'network bad ".vlan = 5" | tenant apply --dry-run=server -f -'
check "so is the policy for other plugins" within 60 fails_with "may name only" \
    eval "network bad '{type: \"macvlan\"}' | tenant apply --dry-run=server -f -"

check "a tenant applies conf/nads.yaml" tenant apply -f "$root/conf/nads.yaml"
check "a tenant applies the networks of the plan" applies_the_plan
check "a tenant applies a network with an MTU of its own" eval 'network good ".mtu = 4200" | tenant apply -f -'

of_operator=": only the operator of the cluster sets this of a device: remove the key"
refused "a VLAN" '.vlan = 5' "spec.config: vlan$of_operator"
refused "trust" '.trust = "on"' "spec.config: trust$of_operator"
refused "another letter case" '.LINK_state = "enable"' "spec.config: LINK_state$of_operator"
refused "a device" '.deviceID = "0000:1a:00.2"' "spec.config: deviceID: the device plugin chooses the device"
refused "a rail that there is not" '.rail = 8' "spec.config: rail is not a rail that networks may use"
refused "addresses of its own" '.ipam.source = "host"' "spec.config: source: addresses come from the plan"
refused "another IPAM plugin" '.ipam = {type: "host-local", dataDir: "/etc"}' "spec.config: type host-local"
refused "a file of the node" '.logFile = "/etc/shadow"' "a network names no file of the node: remove it"
refused "what the runtime writes" '.prevResult = {}' "spec.config: prevResult is written by the runtime: remove the key"
refused "a sysctl of the node" '.sysctl = {"kernel.panic": "1"}' "spec.config: sysctl has a key other than"
# By a plugin that both policies let a tenant name: where both refuse, the API server shows either's reason.
refused "a device of another plugin" '{type: "dummy", device: "eth0"}' \
    "spec.config: device: the device plugin chooses the device"
refused "an interface of the node" '{type: "dummy", master: "eth0"}' \
    "spec.config: master: only the operator of the cluster names an interface of the node"
refused "a plugin that is not listed" '{type: "macvlan"}' "spec.config: type macvlan: a network of a tenant may name only"
check "the network that is good is as it was" has_config good '.mtu == 4200 and .rail == 0 and .type == "rail-cni"'

check "a network from before may get a label" tenant label net-attach-def old team=a
check "its configuration may not change" fails_with "vlan$of_operator" eval 'network old ".vlan = 6" | tenant apply -f -'
check "but become a good one" eval 'network old | tenant apply -f -'
check "an operator's controller sets a VLAN" \
    eval "network theirs '.vlan = 5' | kubectl --as it --as-group $operators --namespace ai apply -f -"
check "a tenant may not change it otherwise" fails_with "vlan$of_operator" \
    eval 'network theirs ".vlan = 6" | tenant apply -f -'
for file in "$root"/conf/migration/*.yaml; do
    grep -q NetworkAttachmentDefinition "$file" || continue
    check "the operator applies ${file##*/}" apply_by system:masters "$file"
done

check "a network of a tenant is there for pods" eval 'network it | tenant apply --namespace default -f -'
trainer one "$one_rail" | kubectl apply -f - >/dev/null
check "a pod has its rail" are_ready one
check "it is up" is_up

kubectl delete pod one --wait --timeout 60s >/dev/null
kubectl delete net-attach-def it >/dev/null
kubectl delete -f "$root/conf/admission-policy.yaml" >/dev/null
kubectl delete clusterrolebinding networks-tenants "networks-$operators" >/dev/null
kubectl delete clusterrole networks >/dev/null
check "the namespace is deleted" kubectl delete namespace ai --wait --timeout 90s
finish
