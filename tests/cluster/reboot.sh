#!/usr/bin/env bash
# A node loses its power: everything on it is killed, /run is empty, the objects are still there.
source "$(dirname "$0")/lib.sh"

again() { trainer "$1" '.spec.restartPolicy = "Always"'; }

is_restarted() { (($(restarts "$1") > 0)) && are_ready "$1"; }

is_free() { [[ ! $(on "$1" find /run/rail-cni -path '*/attachments/*.json') ]]; }

check "two pods become ready" eval '{ again trainer-0 && again trainer-1; } | kubectl apply -f - && are_ready trainer-0 trainer-1'
node=$(node_of trainer-0)
check "the power of $node is cut" pull_the_plug "$node"
check "the other pod has its rails" has_rails trainer-1
check "$node boots" boot "$node"
check "its /run was empty" test ! "$(on "$node" find /run -path '/run/rail-cni/*.json' -not -newer /run/booted)"
check "the store of $node is there" test "$(on "$node" find /var/lib/rail-cni/store -name 'rail-*.json' | wc -l)" == 8
check "the pod is ready again" within 120 is_restarted trainer-0
check "it has its rails" has_rails trainer-0
check "the largest packets pass between all rails" all_reach_all trainer-0 trainer-1
check "doctor on $node finds nothing" on "$node" /opt/cni/bin/railctl doctor
check "the pods are deleted" kubectl delete pod trainer-0 trainer-1 --wait --timeout 60s
# The devices are new ones.
check "nothing is left of either" within 30 is_free "$node"
remember
finish
