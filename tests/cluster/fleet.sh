#!/usr/bin/env bash
# What many agents cost the API server: crates/rail-agent/examples/fleet.rs asks what they ask. Prints the figures of docs/agent.md.
source "$(dirname "$0")/lib.sh"

readonly agents=${RAIL_FLEET:-5000} seconds=${RAIL_FLEET_SECONDS:-300}
readonly out=$cluster/fleet

# cpu: hundredths of a second that the API server has used. rss: its memory in KiB.
cpu() { awk '{ print $14 + $15 }' "/proc/$(pgrep -x kube-apiserver)/stat"; }
rss() { awk '/^VmRSS/ { print $2 }' "/proc/$(pgrep -x kube-apiserver)/status"; }

# Not an administrator, whom the server's fairness does not count.
account() {
    local token
    kubectl -n kube-system create serviceaccount fleet &&
        kubectl create clusterrolebinding fleet --clusterrole cluster-admin --serviceaccount kube-system:fleet &&
        token=$(kubectl -n kube-system create token fleet) &&
        cp "$KUBECONFIG" "$cluster/fleet.kubeconfig" &&
        kubectl --kubeconfig "$cluster/fleet.kubeconfig" config set-credentials fleet --token "$token" &&
        kubectl --kubeconfig "$cluster/fleet.kubeconfig" config set-context --current --user fleet
}

has_started() { grep -q '^started' "$out"; }
has_ended() { grep -q '^{' "$out"; }

# figure FILTER: of what the program printed.
figure() { tail -n 1 "$out" | jq -e "$1"; }

ulimit -n 65536 || true
kubectl -n kube-system get configmap rail-cni >/dev/null 2>&1 ||
    kubectl -n kube-system create configmap rail-cni --from-file=node.json="$root/conf/node.json" >/dev/null
check "an account" account
before=$(rss)
KUBECONFIG=$cluster/fleet.kubeconfig "$target/debug/examples/fleet" "$agents" "$seconds" >"$out" 2>&1 &
program=$!
check "$agents agents have started and know what there is" within 600 has_started
begun=$(cpu)
check "they have watched for $seconds s" within $((seconds + 60)) has_ended
ended=$(cpu) after=$(rss)
printf '%s agents: %s of a processor, %d MiB more memory; %s\n' "$agents" \
    "$(awk -v cpu=$((ended - begun)) -v s="$seconds" 'BEGIN { printf "%.2f", cpu / 100 / s }')" \
    $(((after - before) / 1024)) "$(tail -n 1 "$out")"
check "none was refused" figure '.failed == 0'
check "each writes every five minutes" figure '.writes <= .agents * .seconds / 200 + .agents'
check "each is told of its own Node, and of no other" figure '.news >= .writes and .news <= 4 * (.writes + .agents)'
kill "$program" 2>/dev/null
wait "$program" 2>/dev/null
kubectl delete nodes --selector rail-cni/fleet --wait=false >/dev/null 2>&1
kubectl delete clusterrolebinding fleet >/dev/null && kubectl -n kube-system delete serviceaccount fleet >/dev/null
finish
