#!/usr/bin/env bash
# A Job of two pods with labels instead of YAML is told its rails and its pods, and preflight on both nodes finds what is wrong
# with a cable before it starts.
source "$(dirname "$0")/lib.sh"

readonly plan=$cluster/home/plan.csv told=$cluster/home/told

# The image that the policy names, of what scripts/build made, with a shell for the job's own container.
import_image() {
    local node
    mkdir -p "$cluster/home/image/plugins"
    cp -a "$cluster/images/files/pod/bin" "$cluster/home/image/"
    ln -s busybox "$cluster/home/image/bin/nsenter"
    cp "$target/static/"{rail-cni,rail-ipam,railctl} "$cluster/home/image/plugins/"
    image "$cluster/home/image.tar" docker.io/library/rail-cni:0.2.0 "$cluster/home/image" /plugins/railctl
    for node in "${nodes[@]}"; do
        on "$node" ctr --namespace k8s.io images import --local - <"$cluster/home/image.tar" || return
    done
}

# A container that shows what it was given, and compares it with its rails. Its template knows nothing of rails.
# shellcheck disable=SC2016
job() {
    jq -n '{apiVersion: "batch/v1", kind: "Job", metadata: {name: "job"}, spec: {
        completions: 2, parallelism: 2, completionMode: "Indexed", backoffLimit: 0, template: {
            metadata: {labels: {job: "job", "rail-cni/rails": "8", "rail-cni/hosts": "2"}},
            spec: {restartPolicy: "Never", subdomain: "job", containers: [
                {name: "worker", image: "rail-cni:0.2.0", imagePullPolicy: "Never", command: ["/bin/sh", "-c",
                    "cat /etc/nccl.conf /job/hostfile && exec /plugins/railctl env --rails=0-7 --check"]}]}}}}'
    jq -n '{apiVersion: "v1", kind: "Service", metadata: {name: "job"},
        spec: {clusterIP: "None", publishNotReadyAddresses: true, selector: {job: "job"}}}'
}

is_changed() {
    trainer one '.metadata = {name: "one", labels: {"rail-cni/rails": "1"}}' | kubectl apply --dry-run=server -o json -f - |
        jq -e '.metadata.annotations["k8s.v1.cni.cncf.io/networks"] == "rail-0"'
}

# nccl.conf has a comment for each rail, and eth0 for the rendezvous; the hostfile has both pods.
was_told() {
    local text pod
    for pod in $(kubectl get pods --selector job=job -o 'jsonpath={.items[*].metadata.name}'); do
        text=$(kubectl logs "$pod") || return
        if [[ $(grep -cE '^# net[1-8]: rail [0-7] network rail-[0-7] leaf leaf-su01-r[1-8] port ' <<<"$text") != 8 ||
            $text != *$'\nNCCL_SOCKET_IFNAME==eth0\n'* ||
            $(grep '^job-' <<<"$text") != job-0.job.default.svc*$'\n'job-1.job.default.svc* ]]; then
            printf '%s: %s\n' "$pod" "$text" && return 1
        fi
    done
    [[ ${pod:-} ]]
}

# preflight: on both nodes at once, and what both say.
preflight() {
    local node
    rm -rf "$told" && mkdir -p "$told"
    for node in "${nodes[@]}"; do
        on "$node" /opt/cni/bin/railctl preflight --all --plan - --for 20 --output json <"$plan" >"$told/$node.json" &
    done
    wait
    "$target/static/railctl" preflight --merge "$told" --plan "$plan" "$@"
}

all_is_fine() {
    local said
    said=$(preflight --output json) || { jq -r '.missing[], (.nodes[] | .node + ": " + (.rails[] | .problems[]))' <<<"$said"; }
    jq -e '.isGood and .missing == [] and ([.nodes[].rails[] | .state == "fine" and
        ([.asked[] | .way] == ["leaf", "cross"]) and ([.asked[].state] == ["reached", "reached"])] | length == 16 and all)' <<<"$said"
}

# finds TEXT...: each in a line of what is wrong.
finds() {
    local text output
    output=$(preflight) && { printf 'nothing is wrong: %s\n' "$output" && return 1; }
    for text; do
        grep -qE "$text" <<<"$output" || { printf 'not "%s": %s\n' "$text" "$output" && return 1; }
    done
}

# conf/jobs/preflight.yaml with the number of nodes, for as long as it takes here.
# shellcheck disable=SC2016
preflight_job() {
    kubectl create configmap preflight-plan --from-file "plan.csv=$plan" &&
        kubectl create --dry-run=client -o json -f "$root/conf/jobs/preflight.yaml" |
        jq '.spec.completions = 2 | .spec.parallelism = 2 | .spec.template.spec.containers[0] |= (.image = "rail-cni:0.2.0"
            | .imagePullPolicy = "Never" | .command[0] = "/bin/sh" | .command[2] |= sub("--for 120"; "--for 30"))' |
        kubectl apply -f - && kubectl wait --for condition=Complete --timeout 150s job/preflight
}

said_fine() {
    local pod
    rm -rf "$told" && mkdir -p "$told"
    for pod in $(kubectl get pods --selector app=preflight -o 'jsonpath={.items[*].metadata.name}'); do
        kubectl logs "$pod" >"$told/$pod.json" || return
    done
    "$target/static/railctl" preflight --merge "$told" --plan "$plan"
}

# swap: the cables of rails 0 and 1 of the first node change places at the leaf.
swap() {
    local rail
    for rail in 0 1; do ip -n leaf addr flush dev "n0-r$rail" scope global; done
    ip -n leaf addr add "$1/31" dev n0-r0
    ip -n leaf addr add "$2/31" dev n0-r1
    ip netns exec leaf sysctl -qw net.ipv4.conf.all.arp_ignore=1
}

gateway() { awk -F, -v rail="$1" '$1 == "worker-gpu-0" && $2 == rail { print $7 }' "$plan"; }

"$target/static/railctl" plan "$root/conf/fabric.yaml" --to csv | tr -d '\r' |
    awk -F, 'NR == 1 || $1 == "worker-gpu-0" || $1 == "worker-gpu-1"' >"$plan"

check "the nodes have the image with railctl" import_image
check "before the job all rails reach their leaf, the other node, and another rail" all_is_fine
check "the cables are swapped" swap "$(gateway 1)" "$(gateway 0)"
check "preflight names both rails" finds 'worker-gpu-0 rail 0: .*rail-1' 'worker-gpu-0 rail 1: .*rail-0'
check "they are where they belong" swap "$(gateway 0)" "$(gateway 1)"
check "a leaf port has another MTU" ip -n leaf link set n1-r2 mtu 1500
check "preflight names it" finds 'worker-gpu-1 rail 2: gateway .* raise the MTU of the leaf port'
check "it has its own again" ip -n leaf link set n1-r2 mtu 9216
check "all is fine again" all_is_fine

check "the Job of the examples asks all nodes" preflight_job
check "its pods have said that all is fine" said_fine
kubectl delete job preflight >/dev/null

# restart_agent NODE [OPTION...]
restart_agent() { crash "$1" rail-agent && start_agent "$1" 'nvidia.com/rail-{rail}' "${@:2}" && within 60 node_is_ready "$1"; }

# preflight_says STATUS TEXT: the condition of the first node.
preflight_says() {
    kubectl get node worker-gpu-0 -o json | jq -e --arg status "$1" --arg text "$2" '.status.conditions[]
        | select(.type == "RailsPreflight") | if .status == $status and (.message | contains($text)) then true
        else (.message | halt_error(1)) end'
}

has_no_preflight() { kubectl get node worker-gpu-0 -o json | jq -e '[.status.conditions[].type] | index("RailsPreflight") == null'; }

check "an agent tries the rails of an idle node" restart_agent worker-gpu-0 --preflight-interval 10
check "its condition says that they are fine" within 60 preflight_says True "8 rails"
check "the cables are swapped again" swap "$(gateway 1)" "$(gateway 0)"
check "the condition names a rail" within 60 preflight_says False "rail 0: "
check "they are back" swap "$(gateway 0)" "$(gateway 1)"
check "the condition says so" within 60 preflight_says True "8 rails"

if [[ $(kubectl api-resources --api-group admissionregistration.k8s.io -o name) == *mutatingadmissionpolicies* ]]; then
    check "the policies of the label are applied" kubectl apply -f "$root/deploy/label/policy.yaml"
    check "they are in force" within 60 fails_with "the number of rails" \
        eval 'trainer wrong ".metadata.labels[\"rail-cni/rails\"] = \"9\"" | kubectl apply --dry-run=server -f -'
    check "so is the one that changes pods" within 60 is_changed
    check "a Job of two pods with the label is created" eval 'job | kubectl apply -f -'
    check "it completes: the check of each pod passes" kubectl wait --for condition=Complete --timeout 120s job/job
    check "nccl.conf and hostfile have the rails and the pods" was_told
    kubectl delete -f "$root/deploy/label/policy.yaml" >/dev/null
    kubectl delete service job >/dev/null
else
    printf 'skipped: this Kubernetes has no MutatingAdmissionPolicy, which deploy/label is\n'
    skipped=$((skipped + 1))
fi
check "an agent without preflight has no such condition" restart_agent worker-gpu-0
check "it removed that of before" within 60 has_no_preflight
finish
