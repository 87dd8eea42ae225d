#!/usr/bin/env bash
# DRANET gives pods their rails by resource claims, with the addresses of rail-agent: docs/dra.md. Manifest and driver are
# upstream's. The kernel has no VFs here, so that DRANET, too, sees them in the sysfs of files; GPUs are a driver's of the tests.
source "$(dirname "$0")/lib.sh"

readonly of_upstream=registry.k8s.io/networking/dranet:stable
readonly programs_of=$scripts_callers/dranet-1.4.0/bin
own=$cluster/home/dranet

make_image() {
    mkdir -p "$own/image/tmp"
    cp "$programs_of/dranet" "$own/image/"
    image "$own/image.tar" "$of_upstream" "$own/image" /dranet
}

import() { on "$1" ctr --namespace k8s.io images import --local - <"$own/image.tar"; }

# restart_agent NODE RESOURCE [OPTION...]
restart_agent() { crash "$1" rail-agent && start_agent "$@"; }

# Upstream's manifest with the image that is here, and the sysfs of files. Veths are what it leaves out without a filter.
manifest() {
    # shellcheck disable=SC2154
    kubectl create --dry-run=client -o json -f "$dranet_manifest" | jq --arg sysfs "$sysfs" '(.items? // [.])[]
        | if .kind == "DaemonSet" then .spec.template.spec |= (.volumes += [{name: "sys", hostPath: {path: $sysfs}}]
            | .containers[0] |= (.imagePullPolicy = "Never" | .command = .args[:1]
                | .args = .args[1:] + ["--cloud-provider-hint=NONE", "--filter=\"dra.net/pciAddress\" in attributes"]
                | .volumeMounts += [{name: "sys", mountPath: "/sys"}]))
          else . end'
}

# As docs/dra.md has it.
patch() { kubectl -n kube-system patch daemonset dranet --type=json --patch-file "$root/conf/dranet.yaml"; }

rolled_out() { kubectl -n kube-system rollout status --timeout 120s daemonset/dranet; }

start_gpus() {
    local roots
    mapfile -t roots < <(pfs | sed -E 's/.* (.*):.*/pci\1/')
    on "$1" mkdir -p /var/lib/kubelet/plugins
    service "$1" gpus "$programs_of/gpus" /etc/kubernetes/agent.kubeconfig "$1" "${roots[@]}"
}

# publishes NODE DRIVER COUNT: that many devices.
publishes() {
    kubectl get resourceslices -o json | jq -e --arg node "$1" --arg driver "$2" --argjson count "$3" '[.items[].spec
        | select(.nodeName == $node and .driver == $driver) | .devices[]] | length == $count'
}

# object KIND NAME SPEC
object() {
    printf -- '---\n'
    jq -cn --arg kind "$1" --arg name "$2" --argjson spec "$3" \
        '{apiVersion: "resource.k8s.io/v1", kind: $kind, metadata: {name: $name}, spec: $spec}'
}

# class NAME EXPRESSION
class() { object DeviceClass "$1" "$(jq -n --arg expression "$2" '{selectors: [{cel: {expression: $expression}}]}')"; }

# template NAME FILTER: of claims, whose rails have a profile and an MTU.
template() {
    object ResourceClaimTemplate "$1" "$(jq -n '{spec: {devices: {config: [{opaque: {driver: "dra.net",
        parameters: {profile: "rail", interface: {mtu: 9000}}}}]}}} | .spec.devices |= ('"$2"')')"
}

# shellcheck disable=SC2016
objects() {
    class gpu 'device.driver == "gpu.example.com"'
    class rail 'device.driver == "dra.net" && has(device.attributes["dra.net"].isSriovVf)'
    # Eight GPUs, each with the rail beside it.
    template rails '. + {requests: [range(8) as $i | ("gpu", "rail") | {name: "\(.)-\($i)", exactly: {deviceClassName: .}}],
        constraints: [range(8) as $i | {requests: ["gpu-\($i)", "rail-\($i)"], matchAttribute: "resource.kubernetes.io/pcieRoot"}]}'
    template wrong '.requests = [{name: "rail", exactly: {deviceClassName: "rail"}}]
        | .config[0].opaque.parameters.interface.addresses = ["198.51.100.1/31"]'
}

# with_claim NAME TEMPLATE: a pod.
with_claim() {
    trainer "$1" 'del(.metadata.annotations) | .spec.resourceClaims = [{name: "it", resourceClaimTemplateName: "'"$2"'"}]
        | .spec.containers[0].resources = {claims: [{name: "it"}]}'
}

claim_of() { kubectl get pod "$1" -o 'jsonpath={.status.resourceClaimStatuses[0].resourceClaimName}'; }

# has_claimed POD: its VFs are up, with MTU and addresses of the plan, and nothing else has a rail's address.
has_claimed() {
    local node
    node=$(node_of "$1") || return
    diff <(planned "$node" | sed 's/^net//' | while read -r number address; do printf 'vf%s %s\n' $((number - 1)) "$address"; done) \
        <(kubectl exec "$1" -- ip -o addr show | awk '$2 ~ /^vf/ && $3 == "inet" { print $2, $4 }') &&
        [[ $(kubectl exec "$1" -- ip -o link show | grep -cE ' vf[0-7]@.*[<,]UP,LOWER_UP.* mtu 9000 ') == 8 ]]
}

# Each rail has the same PCIe root as its GPU.
are_beside_gpus() {
    local claim slices
    claim=$(kubectl get resourceclaim "$(claim_of "$1")" -o json) && slices=$(kubectl get resourceslices -o json) || return
    jq -e --argjson slices "$slices" '([$slices.items[].spec | .pool.name as $pool | .driver as $driver | .devices[]
        | {key: "\($pool) \($driver) \(.name)", value: .attributes["resource.kubernetes.io/pcieRoot"].string}] | from_entries) as $roots
        | [.status.allocation.devices.results[] | {number: (.request | split("-")[1]), root: $roots["\(.pool) \(.driver) \(.device)"]}]
        | group_by(.number) | length == 8 and all(length == 2 and .[0].root == .[1].root and .[0].root != null)
            and (map(.[0].root) | unique | length) == 8' <<<"$claim"
}

# by_address POD TO: the largest packet from each rail's address to the same rail of the other pod.
by_address() {
    local rail
    local -a from to
    mapfile -t from < <(claimed "$1")
    mapfile -t to < <(claimed "$2")
    ((${#from[@]} == 8 && ${#to[@]} == 8)) || return
    for rail in {0..7}; do
        kubectl exec "$1" -- ping -q -c 1 -W 5 -s 8972 -I "${from[rail]}" "${to[rail]}" || return
    done
}

# claimed POD: the addresses of its rails, by what DRANET reported.
claimed() {
    kubectl get resourceclaim "$(claim_of "$1")" -o json |
        jq -r '[.status.devices[] | select(.driver == "dra.net") | .networkData] | sort_by(.interfaceName)[].ips[0] | split("/")[0]'
}

# has_leases NODE COUNT: of claims.
has_leases() {
    on "$1" /opt/cni/bin/railctl leases --output json | jq -e --argjson count "$2" '[.pools[].leases[]?] | length == $count'
}

vfs_are_home() { [[ $(on "$1" ip -br link | grep -c '^vf[0-7]@') == 8 ]]; }

# DRANET leaves a device up, with the MTU of the claim.
are_left() { [[ $(on "$1" ip -o link show up | grep -cE ': vf[0-7]@.* mtu 9000 ') == 8 ]]; }

# As they were at the beginning: without a queue, which a device has once it was up, until it moves.
restore_vfs() {
    local rail
    on "$1" ip netns add aside
    for rail in {0..7}; do
        on "$1" ip link set "vf$rail" down mtu 1500 netns aside && on "$1" ip -n aside link set "vf$rail" netns 1 || return
    done
    on "$1" ip netns del aside
}

skip() {
    printf 'skipped: %s\n' "$1"
    skipped=1
    finish
}

[[ -x $programs_of/dranet && ${dranet_manifest:-} ]] || skip "there is no DRANET here"
kubectl api-versions | grep -qx resource.k8s.io/v1 || skip "this Kubernetes has no resource.k8s.io/v1"
mkdir -p "$own"
check "the image is made" make_image
for node in "${nodes[@]}"; do
    check "it is imported on $node" import "$node"
    check "the agent of $node is the profile provider" restart_agent "$node" '' --dranet
    check "GPUs come to $node" start_gpus "$node"
done
check "upstream's manifest is applied" eval 'manifest | kubectl apply -f -'
check "conf/dranet.yaml is applied" patch
check "the pods of DRANET are ready" rolled_out
for node in "${nodes[@]}"; do
    check "DRANET publishes the PFs and VFs of $node" within 60 publishes "$node" dra.net 16
    check "$node has eight GPUs" within 60 publishes "$node" gpu.example.com 8
done
check "classes and templates are applied" eval 'objects | kubectl apply -f -'

for pod in claimer-0 claimer-1; do with_claim "$pod" rails; done | kubectl apply -f - >/dev/null
check "two pods with claims of eight GPUs and rails become ready" are_ready claimer-0 claimer-1
for pod in claimer-0 claimer-1; do
    check "$pod has vf0 to vf7 with the addresses of the plan" has_claimed "$pod"
    check "each rail of $pod is beside its GPU" are_beside_gpus "$pod"
done
check "the largest packets pass on each rail" by_address claimer-0 claimer-1
check "and back" by_address claimer-1 claimer-0
for node in "${nodes[@]}"; do check "$node has eight leases" has_leases "$node" 8; done
for node in "${nodes[@]}"; do
    check "reap leaves the leases of $node alone" eval "on $node /opt/cni/bin/railctl reap && has_leases $node 8"
done

check "one of them ends" kubectl delete pod claimer-0 --wait --timeout 60s
check "its devices are on the host" within 60 eval 'vfs_are_home worker-gpu-0 || vfs_are_home worker-gpu-1'
check "its leases are released" within 60 eval 'has_leases worker-gpu-0 0 || has_leases worker-gpu-1 0'
check "the other has its rails still" has_claimed claimer-1
with_claim claimer-2 rails | kubectl apply -f - >/dev/null
check "the next pod becomes ready" are_ready claimer-2
check "it has the rails of the first" has_claimed claimer-2
check "the largest packets pass on each rail" by_address claimer-2 claimer-1

check "the agent of $(node_of claimer-1) is started again" restart_agent "$(node_of claimer-1)" '' --dranet
check "DRANET is started again" kubectl -n kube-system rollout restart daemonset/dranet
check "it is ready" rolled_out
check "running pods have their rails" eval 'has_claimed claimer-1 && has_claimed claimer-2'
check "they end" kubectl delete pod claimer-1 claimer-2 --wait --timeout 60s
for node in "${nodes[@]}"; do
    check "the devices of $node are on the host" within 60 vfs_are_home "$node"
    check "$node has no lease" within 60 has_leases "$node" 0
done

with_claim stranger wrong | kubectl apply -f - >/dev/null
check "a claim of an address of elsewhere is refused, and its pod says why" within 60 tells stranger "198.51.100.1"
check "it ends" kubectl delete pod stranger --wait --timeout 60s

kubectl delete resourceclaimtemplates --all >/dev/null
kubectl delete deviceclass rail gpu >/dev/null
check "DRANET is deleted" eval 'manifest | kubectl delete --wait --timeout 60s -f -'
for node in "${nodes[@]}"; do
    check "the VFs of $node are as DRANET left them" are_left "$node"
    crash "$node" gpus
    check "the agent of $node offers the devices again" restart_agent "$node" 'nvidia.com/rail-{rail}'
    check "$node is ready" within 60 node_is_ready "$node"
done
check "pods of rail-cni become ready" create trainer-0 trainer-1
for pod in trainer-0 trainer-1; do check "$pod has net1 to net8 with the addresses of the plan" has_rails "$pod"; done
check "they end" kubectl delete pod trainer-0 trainer-1 --wait --timeout 60s
for node in "${nodes[@]}"; do
    check "the VFs of $node are as DRANET left them" within 60 are_left "$node"
    restore_vfs "$node"
done
finish
