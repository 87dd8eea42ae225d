#!/usr/bin/env bash
# Two pods have all devices. A third one waits for them; a Job runs one after the other; pods come and go.
source "$(dirname "$0")/lib.sh"

is_pending() { [[ $(kubectl get pod "$1" -o 'jsonpath={.status.phase}') == Pending ]]; }

# shellcheck disable=SC2016
job() {
    jq -n --argjson pod "$(trainer worker '
        .spec.containers[0].command = ["sh", "-c", "
            [ \"$(ip -o -4 addr | grep -c \" net[1-8] \")\" = 8 ] || exit 1
            for rail in 0 1 2 3 4 5 6 7; do
                ping -q -c 1 -W 5 -s 8972 -I net$((rail + 1)) $(ip -4 route show table $((100 + rail)) | sed -n \"s/.* via \\([^ ]*\\).*/\\1/p\" | head -n 1) || exit 1
            done"]')" \
        '{apiVersion: "batch/v1", kind: "Job", metadata: {name: "trainings"},
            spec: {completions: 10, parallelism: 2, backoffLimit: 0,
                template: {metadata: {annotations: $pod.metadata.annotations}, spec: $pod.spec}}}'
}

check "two pods become ready" create trainer-0 trainer-1
trainer trainer-2 | kubectl apply -f - >/dev/null
check "the scheduler says what a third one waits for" within 30 tells trainer-2 "Insufficient nvidia.com/rail-0"
check "it is pending" is_pending trainer-2
check "the first is deleted" kubectl delete pod trainer-0 --wait --timeout 60s
check "the third one becomes ready" are_ready trainer-2
check "it has the rails of the first" has_rails trainer-2
check "the largest packets pass between all rails" all_reach_all trainer-1 trainer-2
check "both are deleted" kubectl delete pod trainer-1 trainer-2 --wait --timeout 60s

check "a Job of ten pods starts" eval 'job | kubectl apply -f -'
check "each of its pods had eight rails, and all gateways answered" \
    kubectl wait --for condition=Complete --timeout 180s job/trainings
check "none had to be tried again" test "$(kubectl get job trainings -o 'jsonpath={.status.failed}')" == ''
check "the Job is deleted" kubectl delete job trainings --wait --timeout 60s

rounds=10
churn() {
    local round
    for ((round = 0; round < rounds; round++)); do
        create "a-$round" "b-$round" && has_rails "a-$round" && has_rails "b-$round" &&
            kubectl delete pod "a-$round" "b-$round" --wait --timeout 60s || return
    done
}
check "$rounds pairs of pods come and go" churn
finish
