#!/usr/bin/env bash
# kubelet and containerd are killed and started again: under pods that run, and under pods that start.
source "$(dirname "$0")/lib.sh"

start() {
    case $2 in
        kubelet) start_kubelet "$1" ;;
        containerd) start_containerd "$1" ;;
    esac
    within 60 node_is_ready "$1"
}

check "two pods become ready" create trainer-0 trainer-1
for daemon in kubelet containerd; do
    for node in "${nodes[@]}"; do check "$daemon of $node is killed" crash "$node" "$daemon"; done
    check "without it the rails work" on worker-gpu-0 /opt/cni/bin/railctl check
    for node in "${nodes[@]}"; do check "$daemon of $node is there again" start "$node" "$daemon"; done
    for pod in trainer-0 trainer-1; do
        check "$pod is ready" are_ready "$pod"
        check "its container was not started again" test "$(restarts "$pod")" == 0
        check "it has its rails" within 30 has_rails "$pod"
    done
    check "the largest packets pass between all rails" all_reach_all trainer-0 trainer-1
done
check "the pods are deleted" kubectl delete pod trainer-0 trainer-1 --wait --timeout 60s
for node in "${nodes[@]}"; do check "the rails of $node are back" within 60 is_as_before "$node"; done

for daemon in kubelet containerd; do
    for delay in 0.3 0.6 0.9; do
        pod=$daemon-${delay/./-}
        trainer "$pod" '.spec.nodeName = "worker-gpu-0"' | kubectl apply -f - >/dev/null
        sleep "$delay"
        check "$daemon is killed $delay s after a pod was created" crash worker-gpu-0 "$daemon"
        check "$daemon is there again" start worker-gpu-0 "$daemon"
        check "the pod becomes ready" are_ready "$pod"
        check "it has all rails" within 30 has_rails "$pod"
        check "it is deleted" kubectl delete pod "$pod" --wait --timeout 60s
        check "its rails are back" within 60 is_as_before worker-gpu-0
    done
done
finish
