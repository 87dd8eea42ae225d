#!/usr/bin/env bash
# Nodes are drained under pods with eight rails, and come back.
source "$(dirname "$0")/lib.sh"

# Two replicas of conf/pod.yaml.
deployment() {
    jq -n --argjson pod "$(trainer worker)" '{apiVersion: "apps/v1", kind: "Deployment", metadata: {name: "workers"},
        spec: {replicas: 2, strategy: {type: "Recreate"}, selector: {matchLabels: {of: "workers"}},
            template: {metadata: ($pod.metadata | del(.name) | .labels.of = "workers"),
                spec: ($pod.spec | .restartPolicy = "Always")}}}'
}

# pods [NODE]: those of the deployment that do not end, by name; on a node.
pods() {
    kubectl get pods -l of=workers -o json | jq -r --arg node "${1:-}" '.items[]
        | select(.metadata.deletionTimestamp == null and ($node == "" or .spec.nodeName == $node)) | .metadata.name'
}

drain() { kubectl drain "$1" --timeout "${2:-60s}"; }

# replicas N: so many are ready.
replicas() { [[ $(kubectl get deployment workers -o 'jsonpath={.status.readyReplicas}') == "$1" ]]; }

is_counted() { [[ $(kubectl get poddisruptionbudget workers -o 'jsonpath={.status.currentHealthy}') == 2 ]]; }

rails_of_all() {
    local pod
    for pod in $(pods); do has_rails "$pod" || return; done
}

# The one that has no node.
waiting() { kubectl get pods -l of=workers -o json | jq -r '.items[] | select(.spec.nodeName == null) | .metadata.name'; }

names_what_it_waits_for() {
    local pod
    pod=$(waiting) && [[ $pod ]] && tells "$pod" "Insufficient nvidia.com/rail-0"
}

all_reach_each_other() {
    local -a both
    mapfile -t both < <(pods)
    all_reach_all "${both[@]}"
}

check "a Deployment of two pods is applied" eval 'deployment | kubectl apply -f -'
check "both are ready" within 120 replicas 2
check "they have their rails" rails_of_all

kubectl create poddisruptionbudget workers --selector of=workers --min-available 2 >/dev/null
check "the budget is known" within 30 is_counted
check "a drain against the budget is refused" fails_with "disruption budget" drain worker-gpu-0 10s
check "both pods have their rails still" eval 'replicas 2 && rails_of_all && all_reach_each_other'
check "the budget allows one to end" kubectl patch poddisruptionbudget workers --type merge -p '{"spec": {"minAvailable": 1}}'

check "worker-gpu-0 is drained" drain worker-gpu-0
check "its rails are back" within 30 is_as_before worker-gpu-0
check "doctor finds nothing on it" on worker-gpu-0 /opt/cni/bin/railctl doctor
check "the next pod waits for devices" within 30 names_what_it_waits_for
check "the other pod has its rails" has_rails "$(pods worker-gpu-1)"
check "a drain of the other node is refused by the budget" fails_with "disruption budget" drain worker-gpu-1 10s
kubectl delete poddisruptionbudget workers >/dev/null
check "without a budget it is drained, too" drain worker-gpu-1
for node in "${nodes[@]}"; do check "the rails of $node are on their host" within 30 is_as_before "$node"; done

for node in "${nodes[@]}"; do check "$node takes pods again" kubectl uncordon "$node"; done
check "both pods are ready again" within 120 replicas 2
check "they have their rails" rails_of_all
check "the largest packets pass between all rails" all_reach_each_other
check "the Deployment is deleted" kubectl delete deployment workers --cascade=foreground --wait --timeout 90s
finish
