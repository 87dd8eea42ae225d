#!/usr/bin/env bash
# An API server takes the objects of deploy/, and what is applied a second time changes nothing: what the API server fills in
# below a list, which kubectl and Argo CD compare as a whole, is written out.
#
# usage: tests/apply.sh
#
# Prints a line per case and, last, `N passed, N failed, N skipped`. Needs the Kubernetes of scripts/callers, which is not
# built for it, and the tools that tests/deploy.sh names in RAIL_KUSTOMIZE, RAIL_HELM and RAIL_CRDS. Works in network and mount
# namespaces of its own. What is skipped goes to the file RAIL_TEST_SKIPS, too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

passed=0 failed=0 skipped=0
programs=()

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
    esac
    kube=${RAIL_KUBE:-$(cache_dir)/callers/kubernetes-1.34.2/bin/kube}
    [[ -x $kube ]] || skip_all "no Kubernetes here: scripts/callers kubernetes-1.34.2 builds it"
    [[ ${RAIL_KUSTOMIZE:-} && ${RAIL_HELM:-} && ${RAIL_CRDS:-} ]] || skip_all "a tool or the CRDs are not here"
    if [[ ! ${RAIL_SANDBOX:-} ]]; then
        export RAIL_KUBE=$kube
        unshare -Urnm true 2>/dev/null || ((EUID == 0)) || skip_all "no namespaces here"
        enter_sandbox "$@"
    fi
    work=$(mktemp -d)
    trap 'stop' EXIT
    start
    kubectl create -f "$RAIL_CRDS" >/dev/null
    kubectl wait --for condition=Established crd --all --timeout 60s >/dev/null

    local folder
    for folder in deploy deploy/uninstall deploy/chart/monitoring deploy/label; do
        "$RAIL_KUSTOMIZE" build "$root/$folder" >"$work/objects.yaml"
        changes_nothing_twice "$folder"
    done
    for folder in conf/admission-policy.yaml conf/admission-pods.yaml; do
        cp "$root/$folder" "$work/objects.yaml"
        changes_nothing_twice "$folder"
    done
    chart --set metricsSecret=s,monitoring.enabled=true,monitoring.dashboard=true,openshift=true,dranet=true \
        --set admissionPods.action=Deny >"$work/objects.yaml"
    changes_nothing_twice "the chart with its options"
    chart --set fullnameOverride=second,uninstall=true >"$work/objects.yaml"
    changes_nothing_twice "the chart that uninstalls a second release"
    expect "helm installs the chart" eval 'install | grep "daemonset/third"'
    expect "helm uninstalls rail-cni with the values that were used" \
        eval 'upgrade --reset-then-reuse-values --set uninstall=true | grep "daemonset/third-uninstall"'
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    exit $((failed > 0))
}

chart() { "$RAIL_HELM" template rail-cni "$root/deploy/chart" --namespace kube-system --kube-version 1.34.2 "$@"; }

install() { "$RAIL_HELM" install third "$root/deploy/chart" --namespace gpu --create-namespace --set fullnameOverride=third; }

upgrade() { "$RAIL_HELM" upgrade third "$root/deploy/chart" --namespace gpu "$@"; }

changes_nothing_twice() {
    expect "$1 is applied" kubectl apply -f "$work/objects.yaml"
    expect "$1, applied again, changes nothing" is_unchanged
}

is_unchanged() {
    kubectl apply -f "$work/objects.yaml" >"$work/again" 2>/dev/null
    [[ -s $work/again ]] && ! grep -v ' unchanged$' "$work/again"
}

expect() {
    local output
    if output=$("${@:2}" 2>&1); then
        passed=$((passed + 1))
        printf 'ok   %s\n' "$1"
    else
        failed=$((failed + 1))
        printf 'FAIL %s\n%s\n' "$1" "$output"
    fi
}

# etcd and the API server, and nothing that would start a pod.
start() {
    local program tries
    mkdir "$work/bin" "$work/home"
    for program in etcd kube-apiserver kubectl; do ln -s "$kube" "$work/bin/$program"; done
    export PATH=$work/bin:$PATH HOME=$work/home KUBECONFIG=$work/kubeconfig
    ip link set lo up
    ip addr add 192.0.2.1/32 dev lo
    openssl ecparam -name prime256v1 -genkey -noout -out "$work/accounts.key"
    printf 'a-token,admin,admin,system:masters\n' >"$work/tokens"
    cat >"$KUBECONFIG" <<-END
	apiVersion: v1
	kind: Config
	current-context: it
	contexts: [{name: it, context: {cluster: it, user: it}}]
	clusters: [{name: it, cluster: {server: "https://192.0.2.1:6443", insecure-skip-tls-verify: true}}]
	users: [{name: it, user: {token: a-token}}]
	END
    etcd --data-dir "$work/etcd" --unsafe-no-fsync --log-level warn >"$work/etcd.log" 2>&1 &
    programs=($!)
    kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address 192.0.2.1 --secure-port 6443 \
        --cert-dir "$work/pki" --token-auth-file "$work/tokens" --authorization-mode RBAC --allow-privileged \
        --service-cluster-ip-range 10.96.0.0/12 --service-account-issuer https://kubernetes.default.svc \
        --service-account-key-file "$work/accounts.key" --service-account-signing-key-file "$work/accounts.key" \
        --feature-gates MutatingAdmissionPolicy=true --runtime-config admissionregistration.k8s.io/v1beta1=true \
        >"$work/apiserver.log" 2>&1 &
    programs+=($!)
    for ((tries = 0; tries < 120; tries++)); do
        ! kubectl get --raw /readyz >/dev/null 2>&1 || ! kubectl get namespace kube-system >/dev/null 2>&1 || return 0
        sleep 0.5
    done
    tail -n 5 "$work/apiserver.log" >&2
    die "the API server does not get ready"
}

stop() {
    kill "${programs[@]}" 2>/dev/null || true
    wait
    rm -rf "$work"
}

skip_all() {
    printf 'skip apply: %s\n0 passed, 0 failed, 1 skipped\n' "$1"
    [[ ! ${RAIL_TEST_SKIPS:-} ]] || printf 'apply: %s\n' "$1" >>"$RAIL_TEST_SKIPS"
    exit 0
}

main "$@"
