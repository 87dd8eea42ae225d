#!/usr/bin/env bash
# rail-agent installs rail-cni on nodes that are new and have the taint: the steps of docs/agent.md, from the image to
# the uninstall. The class of the nodes says where their sysfs is.
source "$(dirname "$0")/lib.sh"

readonly images=$target/image
readonly of_agent=(--namespace kube-system)
# kustomizations take folders by relative paths alone.
own=$cluster/home/own
mkdir -p "$own"/{install,uninstall}
cp -r "$root/deploy" "$own/deploy"

# configure CLASS NODE.JSON: what who installs it changes in deploy/.
configure() {
    jq -n --arg key "node.$1.json" --arg content "$2" '{apiVersion: "v1", kind: "ConfigMap",
        metadata: {name: "rail-cni", namespace: "kube-system"}, data: {($key): $content}}' >"$own/install/class.json"
}

# take_tag TAG: for the image of both kustomizations. These images are good, so no node waits long for the one before.
take_tag() {
    local of
    for of in install uninstall; do
        jq -n --arg of "$of" --arg tag "$1" '{apiVersion: "kustomize.config.k8s.io/v1beta1", kind: "Kustomization",
            resources: [{install: "../deploy", uninstall: "../deploy/uninstall"}[$of]],
            images: [{name: "rail-cni", newTag: $tag}]}
            + if $of == "install" then {patches: [{path: "class.json"}, {target: {kind: "DaemonSet", name: "rail-agent"},
                patch: ([{op: "replace", path: "/spec/minReadySeconds", value: 1},
                    ("--taint-after=5", "--resource=nvidia.com/rail-{rail}"
                        | {op: "add", path: "/spec/template/spec/containers/0/args/-", value: .})] | tojson)}]}
            else {} end' >"$own/$of/kustomization.yaml"
    done
}

# make_next: an image whose executables have other bytes and do the same.
make_next() {
    local plugin
    cp -r "$images/root" "$own/next"
    for plugin in rail-cni rail-ipam railctl; do printf 'next' >>"$own/next/plugins/$plugin"; done
    image "$own/next.tar" docker.io/library/rail-cni:next "$own/next" /rail-agent
}

import() { on "$1" ctr --namespace k8s.io images import --local - <"$2"; }

# empty NODE: nothing of rail-cni is there.
empty() {
    # shellcheck disable=SC2016
    on "$1" "$BASH" -c 'rm -rf /opt/cni/bin/rail* /etc/rail-cni /var/lib/rail-cni /run/rail-cni /run/rail-cni.begun'
}

# register NODE: it comes to the cluster as a new one, with the taint and its class.
register() {
    crash "$1" kubelet && kubectl delete node "$1" &&
        start_kubelet "$1" --register-with-taints=rail-cni/not-ready=:NoSchedule --node-labels=rail-cni/node-class=veth &&
        within 60 has_taint "$1" && give_gpus "$1"
}

has_taint() { kubectl get node "$1" -o json | jq -e '[.spec.taints[]?.key] | index("rail-cni/not-ready") != null'; }

waits_for_a_node() {
    kubectl get pod "$1" -o json | jq -e '[.status.conditions[]? | select(.reason == "Unschedulable")] | length == 1'
}

apply_plan() { "$target/static/railctl" plan "$root/conf/fabric.yaml" --to cidrpool | kubectl apply -f -; }

# apply_plan_of_another NODE: the plan gives the prefixes of the node to a machine in its place.
apply_plan_of_another() {
    "$target/static/railctl" plan "$root/conf/fabric.yaml" --to cidrpool | sed -E "s/\b$1\b/spare-gpu-9/" | kubectl apply -f -
}

# is_closed NODE REASON: no new pod comes, and the pod of the agent is ready, because the agent is.
is_closed() {
    has_taint "$1" && has_label "$1" rail-cni/ready=false &&
        kubectl get node "$1" -o json | jq -e --arg reason "$2" \
            '[.status.conditions[] | select(.type == "RailsReady") | "\(.status) \(.reason)"] == ["False \($reason)"]' &&
        kubectl get pod "${of_agent[@]}" "$(agent_on "$1")" -o json |
        jq -e '[.status.conditions[] | select(.type == "Ready").status] == ["True"]'
}

# is_forgotten NODE: the agent took its labels and conditions with it.
is_forgotten() {
    kubectl get node "$1" -o json | jq -e '[(.metadata.labels | keys[] | select(startswith("rail-cni/") and
        . != "rail-cni/node-class")), (.status.conditions[].type | select(startswith("Rails")))] == []'
}

# has_label NODE KEY=VALUE
has_label() {
    [[ $(kubectl get nodes -l "$2" -o name) == *"node/$1"* ]] || { kubectl get nodes --show-labels && return 1; }
}

# condition NODE TYPE REASON
condition() {
    kubectl get node "$1" -o json | jq -e --arg type "$2" --arg reason "$3" \
        '[.status.conditions[] | select(.type == $type)] | if length == 1 and .[0].status == "True" and .[0].reason == $reason
        then true else . end | if . == true then . else (tojson | halt_error(1)) end'
}

rolled_out() { kubectl rollout status "${of_agent[@]}" --timeout 120s "daemonset/$1"; }

# agent_on NODE: the pod's name.
agent_on() {
    kubectl get pods "${of_agent[@]}" -l "app.kubernetes.io/name=${2:-rail-agent}" --field-selector "spec.nodeName=$1" \
        -o 'jsonpath={.items[*].metadata.name}'
}

# installed NODE FOLDER: the executables are these.
installed() {
    local plugin
    for plugin in rail-cni rail-ipam railctl; do on "$1" cat "/opt/cni/bin/$plugin" | cmp - "$2/plugins/$plugin" || return; done
}

has_config() {
    diff <(jq -S . <<<"$config" | jq -S --arg name "$1" '.nodeName = $name') <(on "$1" jq -S . /etc/rail-cni/node.json)
}

# allocatable NODE RESOURCE NUMBER
allocatable() { kubectl get node "$1" -o json | jq -e --arg of "$2" --arg number "$3" '.status.allocatable[$of] == $number'; }

# shows NODE LINE...: /metrics has them.
shows() {
    local text line
    text=$(on "$1" curl -sS http://127.0.0.1:9810/metrics) || return
    for line in "${@:2}"; do
        grep -qxE -- "$line" <<<"$text" || { printf 'no line %s:\n%s\n' "$line" "$text" && return 1; }
    done
}

# told POD REASON TEXT: an Event of rail-agent about a pod.
told() {
    kubectl get events -o json | jq -e --arg pod "$1" --arg reason "$2" --arg text "$3" '[.items[]
        | select(.involvedObject.name == $pod and .reason == $reason and .reportingComponent == "rail-agent"
            and (.message | contains($text)))] | length > 0' && return
    kubectl get events && return 1
}

# is_clean NODE: as it was before rail-cni came, but for what the plugins lock.
is_clean() {
    local left
    # shellcheck disable=SC2016
    left=$(on "$1" "$BASH" -c 'shopt -s nullglob dotglob; echo /opt/cni/bin/*rail* /etc/rail-cni/* /var/lib/rail-cni/*
        find /run/rail-cni -type f ! -name "*lock" ! -path "*/locks/*"')
    [[ $left =~ ^[[:space:]]*$ ]] || { printf '%s\n' "$left" && return 1; }
    kubectl get node "$1" -o json | jq -e '[(.metadata.labels | keys[] | select(. == "rail-cni/ready")),
        (.status.conditions[].type | select(startswith("Rails")))] | if . == [] then true else (tojson | halt_error(1)) end'
}

config=$(jq --arg sysfs "$sysfs" '. + {sysfsRoot: $sysfs}' "$root/conf/node.json")
configure veth "$config"
take_tag "$(sed -n 's/^ *newTag: //p' "$own/deploy/kustomization.yaml")"

for node in "${nodes[@]}"; do
    crash "$node" rail-agent
    empty "$node"
    check "the image is imported on $node" import "$node" "$images/rail-cni.tar"
    check "$node registers with the taint" register "$node"
done
{ trainer trainer-0 && trainer trainer-1; } | kubectl apply -f - >/dev/null
check "pods with rails wait" within 30 eval 'waits_for_a_node trainer-0 && waits_for_a_node trainer-1'
kubectl create namespace nvidia-network-operator >/dev/null
check "the plan is applied as CIDRPools" apply_plan
check "deploy/ is applied" kubectl apply -k "$own/install"
check "the pods of rail-agent are ready" rolled_out rail-agent
for node in "${nodes[@]}"; do
    check "$node loses the taint and is ready" within 60 node_is_ready "$node"
    check "$node has the condition RailsReady" within 30 condition "$node" RailsReady DoctorPassed
    check "$node has the condition RailsPlanCurrent" within 30 condition "$node" RailsPlanCurrent Written
    check "$node has the label" has_label "$node" rail-cni/ready=true
    check "$node has the plugins of the image" installed "$node" "$images/root"
    check "$node has the node.json of its class, with its name" has_config "$node"
done
check "the pods become ready" are_ready trainer-0 trainer-1
for pod in trainer-0 trainer-1; do check "$pod has net1 to net8 with the addresses of the plan" has_rails "$pod"; done
check "the largest packets pass between all rails" all_reach_all trainer-0 trainer-1
for node in "${nodes[@]}"; do
    check "/metrics of $node shows its rails and the calls" within 60 shows "$node" 'rail_cni_ready 1' \
        'rail_cni_attachments\{state="live"\} 8' 'rail_cni_calls_total\{plugin="rail-cni",verb="ADD",code="0"\} 8'
done

# shellcheck disable=SC2034
readonly before=$config
config=$(jq '.log.level = "debug"' <<<"$config")
check "a share of no nodes is set" kubectl annotate "${of_agent[@]}" configmap rail-cni rail-cni/rollout-percent=0
check "worker-gpu-1 is in every share" kubectl label node worker-gpu-1 rail-cni/rollout-first=
configure veth "$config"
check "another node.json is applied" kubectl apply -k "$own/install"
check "worker-gpu-1 has it" within 60 has_config worker-gpu-1
# shellcheck disable=SC2016
check "worker-gpu-0 has the one of before" eval 'config=$before has_config worker-gpu-0'
check "the share is raised" kubectl annotate "${of_agent[@]}" configmap rail-cni rail-cni/rollout-percent=100 --overwrite
check "worker-gpu-0 has it, too" within 60 has_config worker-gpu-0
kubectl label node worker-gpu-1 rail-cni/rollout-first- >/dev/null

check "the prefixes of worker-gpu-0 go to another machine" apply_plan_of_another worker-gpu-0
check "worker-gpu-0 closes" within 90 is_closed worker-gpu-0 ClosedByPlan
check "its pod keeps its rails" all_reach_all trainer-0 trainer-1
check "the plan names worker-gpu-0 again" apply_plan
check "worker-gpu-0 opens" within 90 node_is_ready worker-gpu-0
check "a cable of worker-gpu-1 is cut" ip -n leaf link set n1-p3 down
check "worker-gpu-1 gets the taint under its pod" within 90 is_closed worker-gpu-1 PfLink
check "its device of that rail is none that a pod can get" within 30 allocatable worker-gpu-1 nvidia.com/rail-3 0
check "the pod of worker-gpu-1 keeps its rails" all_reach_all trainer-0 trainer-1
check "the cable is there again" ip -n leaf link set n1-p3 up
check "worker-gpu-1 opens" within 90 node_is_ready worker-gpu-1

kubectl get net-attach-def rail-0 -o json | jq '{apiVersion, kind,
    metadata: {name: "it", annotations: {"k8s.v1.cni.cncf.io/resourceName": "nvidia.com/rail-0"}},
    spec: {config: (.spec.config | fromjson | .plugins[0].mtu = 9500 | tojson)}}' | kubectl apply -f - >/dev/null
kubectl delete pod trainer-1 --wait --timeout 60s >/dev/null
trainer wrong "$one_rail" | kubectl apply -f - >/dev/null
check "a rail that is refused is an Event of rail-agent" within 60 told wrong RailRefused 9500
kubectl delete pod wrong --wait --timeout 60s >/dev/null
kubectl delete net-attach-def it >/dev/null

check "the next image is made" make_next
for node in "${nodes[@]}"; do check "it is imported on $node" import "$node" "$own/next.tar"; done
take_tag next
check "it is applied" kubectl apply -k "$own/install"
check "a pod starts meanwhile, at the first attempt" create trainer-1
check "the DaemonSet is rolled out" rolled_out rail-agent
for node in "${nodes[@]}"; do check "$node has the next plugins" installed "$node" "$own/next"; done
for pod in trainer-0 trainer-1; do
    check "$pod has its rails" has_rails "$pod"
    check "its container was not started again" test "$(restarts "$pod")" == 0
done
check "the pod that started before ends" kubectl delete pod trainer-0 --wait --timeout 60s
check "another takes its rails" create trainer-0
check "the image before is rolled back to" kubectl rollout undo "${of_agent[@]}" daemonset/rail-agent
check "the DaemonSet is rolled out" rolled_out rail-agent
for node in "${nodes[@]}"; do check "$node has the plugins of before" installed "$node" "$images/root"; done
check "the largest packets pass between all rails" all_reach_all trainer-0 trainer-1

check "uninstall by hand is refused, and names the pod" fails_with "default/trainer-" \
    kubectl exec "${of_agent[@]}" "$(agent_on worker-gpu-0)" -- /rail-agent uninstall
check "the DaemonSet is deleted" kubectl delete "${of_agent[@]}" daemonset rail-agent --wait --timeout 60s
for node in "${nodes[@]}"; do check "labels and conditions of $node go with it" within 60 is_forgotten "$node"; done
check "deploy/uninstall/ is applied" kubectl apply -k "$own/uninstall"
for node in "${nodes[@]}"; do
    # shellcheck disable=SC2016
    check "on $node it waits for the pod" within 30 eval '[[ $(kubectl logs "${of_agent[@]}" -c uninstall \
        "$(agent_on "$node" rail-uninstall)") == *default/trainer-* ]]'
    check "$node has the plugins still" on "$node" test -x /opt/cni/bin/rail-cni
done
check "the pods have their rails" all_reach_all trainer-0 trainer-1
check "the pods end" kubectl delete pod trainer-0 trainer-1 --wait --timeout 60s
check "then it removes everything" rolled_out rail-uninstall
for node in "${nodes[@]}"; do check "nothing of rail-cni is left on $node" is_clean "$node"; done
check "deploy/uninstall/ is deleted" kubectl delete -k "$own/uninstall" --timeout 60s
check "deploy/ is deleted" kubectl delete -k "$own/install" --ignore-not-found --timeout 60s
kubectl delete namespace nvidia-network-operator --wait --timeout 60s >/dev/null

# The next test finds the nodes as this one found them.
for node in "${nodes[@]}"; do check "rail-cni is installed on $node again, without the agent" install_rails "$node"; done
finish
