# shellcheck shell=bash disable=SC2034,SC2154
# Shared by the cases here, which `scripts/cluster test` runs in a cluster: `source "$(dirname "$0")/lib.sh"`. A case
# begins without pods, and `finish` sees that it leaves every rail on its host as it was.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
source "$root/scripts/cluster.d/lib.sh"

passed=0 failed=0 skipped=0
# One rail, by the network `it`, for who needs no more.
# shellcheck disable=SC2016
readonly one_rail='.metadata.annotations["k8s.v1.cni.cncf.io/networks"] = "it"
    | .spec.containers[0].resources.limits = {"nvidia.com/rail-0": "1"}'

# check WHAT COMMAND...: what must hold. Prints what the command printed where it does not, and how long it took where
# that was long. Times are not judged.
check() {
    local output begin verdict='ok  ' time=''
    now && begin=$now
    if output=$("${@:2}" 2>&1); then
        passed=$((passed + 1)) output=''
    else
        failed=$((failed + 1)) verdict=FAIL
    fi
    now
    ((now - begin < 500000)) || time=" ($(seconds $((now - begin))) s)"
    printf '%s %s%s\n' "$verdict" "$1" "$time"
    [[ ! $output ]] || tail -n 20 <<<"$output" | sed 's/^/     /'
}

# within SECONDS COMMAND...: until it succeeds.
within() {
    local until=$((SECONDS + $1 * patience)) output
    until output=$("${@:2}" 2>&1); do
        ((SECONDS < until)) || { printf '%s: not within %d s\n%s\n' "${*:2}" $(($1 * patience)) "$output" && return 1; }
        sleep 0.1
    done
}

# fails_with TEXT COMMAND...
fails_with() {
    local output
    if output=$("${@:2}" 2>&1); then printf 'it succeeded: %s\n' "$output" && return 1; fi
    [[ $output == *"$1"* ]] || { printf 'not "%s": %s\n' "$1" "$output" && return 1; }
}

# state NODE: the rails on the host, and what is on record of pods.
state() {
    # shellcheck disable=SC2016
    on "$1" "$BASH" -c 'for rail in 0 1 2 3 4 5 6 7; do ip -o link show "vf$rail" | sed "s/^[0-9]*: //; s/@[^:]*//"; done
        find /run/rail-cni/{leases,attachments,pending} /run/k8s.cni.cncf.io/devinfo/cni -type f ! -name lock 2>/dev/null
        find /var/lib/cni -path "*/pods/10.*" 2>/dev/null'
}

# remember: what `finish` compares with. Again after a reboot, which makes new devices.
remember() {
    local node
    for node in "${nodes[@]}"; do state "$node" >"$cluster/nodes/$node/before"; done
}

is_as_before() { diff "$cluster/nodes/$1/before" <(state "$1"); }

no_pods() { [[ $(kubectl get pods -o name) == '' ]]; }

# create POD...: and waits until they are ready.
create() {
    local pod
    for pod in "$@"; do trainer "$pod"; done | kubectl apply -f - && are_ready "$@"
}

are_ready() { kubectl wait --for condition=Ready --timeout 120s "${@/#/pod/}"; }

node_of() { kubectl get pod "$1" -o 'jsonpath={.spec.nodeName}'; }

# has_rails POD: net1 to net8 are up, with the MTU and the addresses that the plan gives to the pod's node.
has_rails() {
    local node
    node=$(node_of "$1") || return
    diff <(planned "$node") <(kubectl exec "$1" -- ip -o addr show | awk '$2 ~ /^net/ && $3 == "inet" { print $2, $4 }') &&
        [[ $(kubectl exec "$1" -- ip -o link show | grep -cE ' net[1-8]@.*[<,]UP,LOWER_UP.* mtu 9000 ') == 8 ]]
}

# planned NODE
planned() {
    "$target/static/railctl" plan "$root/conf/fabric.yaml" --to csv |
        awk -F, -v node="$1" '$1 == node { print "net" $2 + 1, $6 "/31" }'
}

# Each rail of each of two pods reaches each rail of the other.
all_reach_all() { pings "$1" "$2" && pings "$2" "$1"; }

restarts() { kubectl get pod "$1" -o 'jsonpath={.status.containerStatuses[0].restartCount}'; }

# tells POD TEXT: an event of the pod has it.
tells() {
    local events
    events=$(kubectl get events --field-selector "involvedObject.name=$1" -o json | jq -r '.items[].message')
    [[ $events == *"$2"* ]] || { printf 'not "%s": %s\n' "$2" "$events" && return 1; }
}

finish() {
    local node
    kubectl delete jobs,pods --all --wait --timeout 90s >/dev/null
    check "no pod is left" no_pods
    for node in "${nodes[@]}"; do
        check "$node has its rails back, and no lease or record is left" within 60 is_as_before "$node"
    done
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    exit 0
}

remember
