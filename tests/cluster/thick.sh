#!/usr/bin/env bash
# Multus as a daemon, installed by upstream's manifest: it runs the plugins in its container, in a chroot of the node.
source "$(dirname "$0")/lib.sh"

readonly of_daemon=(--namespace kube-system)
readonly daemon=kube-multus-ds pod_label=name=multus
readonly of_upstream=docker.io/library/multus:thick
own=$cluster/home/thick

make_image() {
    local to=$own/image/usr/src/multus-cni/bin
    mkdir -p "$to" "$own/image"/{bin,etc,var}
    # It wants to be root by name, and finds the namespaces of pods by the path that the runtime names.
    printf 'root:x:0:0:root:/:/bin/sh\n' >"$own/image/etc/passwd"
    ln -s /run "$own/image/var/run"
    cp "$scripts_callers/multus-thick-4.3.0/bin"/multus-{daemon,shim} "$to/"
    cp "$scripts_callers/busybox/bin/busybox" "$own/image/bin/"
    image "$own/image.tar" "$of_upstream" "$own/image" /usr/src/multus-cni/bin/multus-daemon
}

import() { on "$1" ctr --namespace k8s.io images import --local - <"$own/image.tar"; }

# Upstream's manifest with the image that is here, which has no installer. The CRD is there.
manifest() {
    # shellcheck disable=SC2154
    kubectl create --dry-run=client -o json -f "$thick_manifest" | jq --arg image "$of_upstream" '(.items? // [.])[]
        | select(.kind != "CustomResourceDefinition") | if .kind == "DaemonSet" then .spec.template.spec |=
            ((.containers[], .initContainers[]) |= (.image = $image | .imagePullPolicy = "Never")
            | .initContainers[0].command = ["/bin/busybox", "cp", "/usr/src/multus-cni/bin/multus-shim", "/host/opt/cni/bin/"])
          else . end'
}

# give_up_thin NODE: the network of eth0 alone is left, which the daemon finds and wraps.
give_up_thin() {
    on "$1" jq '{cniVersion: "1.0.0", name: .delegates[0].name, plugins: .delegates[0].plugins}' \
        /etc/cni/net.d/00-multus.conf >"$own/eth0" &&
        on "$1" tee /etc/cni/net.d/10-pods.conflist <"$own/eth0" &&
        on "$1" rm -r /etc/cni/net.d/00-multus.conf /etc/cni/net.d/multus.d /opt/cni/bin/multus
}

give_up_thick() {
    on "$1" rm -f /etc/cni/net.d/00-multus.conf /etc/cni/net.d/10-pods.conflist /opt/cni/bin/multus-shim
    install_multus "$1"
}

rolled_out() { kubectl rollout status "${of_daemon[@]}" --timeout 120s "daemonset/$daemon"; }

has_shim() { on "$1" jq -e '.type == "multus-shim"' /etc/cni/net.d/00-multus.conf; }

# run_daemons KEY: on the nodes that have this label.
run_daemons() {
    kubectl patch "${of_daemon[@]}" "daemonset/$daemon" --type merge \
        -p "{\"spec\": {\"template\": {\"spec\": {\"nodeSelector\": {\"kubernetes.io/os\": $1}}}}}"
}

no_daemon() { [[ ! $(kubectl get pods "${of_daemon[@]}" -l "$pod_label" -o name) ]]; }

# In its mode `auto`, a DEL of eth0 gets no more than its types: host-local keeps the address (docs/compatibility.md).
are_back() {
    on "$1" find /var/lib/cni -path '*/pods/10.*' -delete
    is_as_before "$1"
}

# With pods that have an address of eth0 alone.
rails_are_home() { diff <(grep -v /pods/ "$cluster/nodes/$1/before") <(state "$1" | grep -v /pods/); }

delete() { kubectl delete pod "$@" --wait --timeout 60s; }

mkdir -p "$own"
check "the image is made" make_image
for node in "${nodes[@]}"; do
    check "it is imported on $node" import "$node"
    check "the thin one leaves $node" give_up_thin "$node"
done
check "upstream's manifest is applied" eval 'manifest | kubectl apply -f -'
check "the daemons are ready" rolled_out
for node in "${nodes[@]}"; do check "$node has its shim" within 60 has_shim "$node"; done
for node in "${nodes[@]}"; do check "$node is ready" within 60 node_is_ready "$node"; done

check "two pods become ready" create trainer-0 trainer-1
for pod in trainer-0 trainer-1; do check "$pod has net1 to net8 with the addresses of the plan" has_rails "$pod"; done
check "the largest packets pass between all rails" all_reach_all trainer-0 trainer-1
for node in "${nodes[@]}"; do check "doctor on $node finds nothing" on "$node" /opt/cni/bin/railctl doctor; done

check "the daemons are started again" kubectl rollout restart "${of_daemon[@]}" "daemonset/$daemon"
check "they are ready" rolled_out
for pod in trainer-0 trainer-1; do check "$pod has its rails still" has_rails "$pod"; done
check "the pods are deleted" delete trainer-0 trainer-1
for node in "${nodes[@]}"; do check "the rails of $node are back" within 60 are_back "$node"; done

# A pod with rails that ended meanwhile would take its veths with it, which VFs would survive.
check "the daemons end" run_daemons '"none"'
check "none is left" within 60 no_daemon
# On its way out it takes its network away, and the runtime takes that of eth0: docs/compatibility.md.
for node in "${nodes[@]}"; do check "$node has lost its shim" within 60 fails_with "" has_shim "$node"; done
check "pods that start meanwhile become ready" create bare-0 bare-1
for pod in bare-0 bare-1; do check "$pod has no rail" fails_with "net1" has_rails "$pod"; done
for node in "${nodes[@]}"; do check "the rails of $node are on the host" within 60 rails_are_home "$node"; done
check "the daemons come back" run_daemons null
check "they are ready" rolled_out
for node in "${nodes[@]}"; do check "$node has its shim" within 60 has_shim "$node"; done
check "the pods are deleted" delete bare-0 bare-1
check "the next pods become ready" create trainer-2 trainer-3
for pod in trainer-2 trainer-3; do check "$pod has its rails" has_rails "$pod"; done
check "the largest packets pass between all rails" all_reach_all trainer-2 trainer-3
check "they are deleted" delete trainer-2 trainer-3
for node in "${nodes[@]}"; do check "the rails of $node are back" within 60 are_back "$node"; done

check "the daemon is deleted" eval 'manifest | kubectl delete --wait --timeout 60s -f -'
kubectl apply -f "$root/scripts/cluster.d/multus.yaml" >/dev/null
for node in "${nodes[@]}"; do check "the thin one comes back to $node" give_up_thick "$node"; done
for node in "${nodes[@]}"; do check "$node is ready" within 60 node_is_ready "$node"; done
check "it gives a pod its rails" eval 'create last && has_rails last'
finish
