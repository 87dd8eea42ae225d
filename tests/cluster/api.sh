#!/usr/bin/env bash
# The API server is frozen: it takes connections and answers none.
source "$(dirname "$0")/lib.sh"

freeze() { kill -STOP "$(<"$cluster/kube-apiserver.pid")"; }
thaw() { kill -CONT "$(<"$cluster/kube-apiserver.pid")" && within 60 kubectl get --raw /readyz; }

check "two pods become ready" create trainer-0 trainer-1
node=$(node_of trainer-0)
kubectl delete pod trainer-0 --wait=false >/dev/null
check "the API server freezes while a pod ends" freeze
check "the pod ends, and its rails are back" within 60 is_as_before "$node"
check "the other pod has its rails" on "$(printf '%s\n' "${nodes[@]}" | grep -vx "$node")" /opt/cni/bin/railctl check
check "the API server thaws" thaw
check "the pod is gone" kubectl wait --for delete --timeout 60s pod/trainer-0

trainer late | kubectl apply -f - >/dev/null
check "the API server freezes while a pod starts" freeze
sleep 3
check "the API server thaws" thaw
check "the pod becomes ready" are_ready late
check "it has its rails" has_rails late
check "the largest packets pass between all rails" all_reach_all late trainer-1
finish
