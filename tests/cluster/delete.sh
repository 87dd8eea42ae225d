#!/usr/bin/env bash
# Pods are deleted: as they should be, by force, and while they start.
source "$(dirname "$0")/lib.sh"

delete() { kubectl delete pod "$@" --wait --timeout 60s; }

create_on_0() { trainer "$1" '.spec.nodeName = "worker-gpu-0"' | kubectl apply -f -; }

check "a pod becomes ready" create trainer-0
node=$(node_of trainer-0)
check "it is deleted" delete trainer-0
check "its rails are back" within 30 is_as_before "$node"

# The kubelet hands the same devices out at once, while the old pod still ends.
check "a pod becomes ready for a forced delete" eval 'create_on_0 old && are_ready old'
check "it is deleted by force, without grace" kubectl delete pod old --force --grace-period 0
check "the next pod gets the same devices" eval 'create_on_0 new && are_ready new'
check "it has all rails" has_rails new
check "it is deleted by force, too" kubectl delete pod new --force --grace-period 0
check "its rails are back" within 30 is_as_before worker-gpu-0

for delay in 0.2 0.5 0.8 1.1; do
    create_on_0 "short-${delay/./-}" >/dev/null
    sleep "$delay"
    check "a pod is deleted $delay s after it was created" delete "short-${delay/./-}"
    check "its rails are back" within 30 is_as_before worker-gpu-0
    create_on_0 "rude-${delay/./-}" >/dev/null
    sleep "$delay"
    check "a pod is deleted by force $delay s after it was created" kubectl delete pod "rude-${delay/./-}" --force --grace-period 0
    check "its rails are back" within 30 is_as_before worker-gpu-0
done
check "a pod becomes ready after all that" eval 'create_on_0 last && are_ready last && has_rails last'
finish
