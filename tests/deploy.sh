#!/usr/bin/env bash
# The manifests of deploy/, as kustomize and Helm render them, compared with each other, with the schemas of two
# versions of Kubernetes and of the Prometheus Operator, and with the agent. promtool tries the alerts, and an API
# server what is applied (tests/apply.sh).
#
# usage: tests/deploy.sh
#
# Go fetches tools and schemas once, and apt promtool, to $XDG_CACHE_HOME/rail-cni. What cannot be had is skipped by its name.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

# The last ones that Go 1.26 builds.
kustomize=sigs.k8s.io/kustomize/kustomize/v5@v5.7.1
helm=helm.sh/helm/v3/cmd/helm@v3.22.0
kubernetes=(v1.32.13 v1.34.2)
operator=v0.85.0

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
    esac
    local cache version file
    local -a schemas=()
    cache=$(cache_dir)/deploy
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    RAIL_KUSTOMIZE=$(tool "$kustomize") || RAIL_KUSTOMIZE=''
    RAIL_HELM=$(tool "$helm") || RAIL_HELM=''
    for version in "${kubernetes[@]}"; do
        file=$cache/swagger-$version.json
        schema "$version" "$file" || continue
        schemas+=("$file")
    done
    RAIL_CRDS=$(operator_crds) || RAIL_CRDS=''
    RAIL_PROMTOOL=$(promtool) || RAIL_PROMTOOL=''
    exec 9>&-
    RAIL_SCHEMAS=$(IFS=: && printf '%s' "${schemas[*]}")
    export RAIL_KUSTOMIZE RAIL_HELM RAIL_SCHEMAS RAIL_CRDS RAIL_PROMTOOL
    cd "$root"
    cargo test --locked --quiet --package rail-agent --test deploy
    tests/apply.sh
}

# tool MODULE@VERSION: prints the path of its executable.
tool() {
    local name=${1%@*} into
    name=$(basename "${name%/v[0-9]}")
    into=$cache/$name-${1#*@}
    if [[ ! -x $into/$name ]]; then
        has go || { tell "no Go, which would fetch $name" && return 1; }
        CGO_ENABLED=0 GOFLAGS='' GOBIN=$into go install -trimpath "$1" 2>"$cache/why" ||
            { tell "$name cannot be fetched: $(tail -n 1 "$cache/why")" && return 1; }
    fi
    printf '%s/%s' "$into" "$name"
}

# schema VERSION FILE: the API of that version.
schema() {
    [[ ! -s $2 ]] || return 0
    has go || { tell "no Go, which would fetch the schemas of $1" && return 1; }
    local folder
    folder=$(module "k8s.io/kubernetes@$1") || { tell "the schemas of $1 cannot be fetched: $(tail -n 1 "$cache/why")" && return 1; }
    cp "$folder/api/openapi-spec/swagger.json" "$2.new" && mv "$2.new" "$2"
}

# module MODULE@VERSION: prints the folder of its files.
module() {
    (cd "$cache" && GOFLAGS=-mod=mod go mod download -json "$1" 2>"$cache/why") |
        sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' | grep .
}

# Fetches the Prometheus Operator's CRDs; prints the folder.
operator_crds() {
    local into=$cache/prometheus-operator-$operator folder
    if [[ ! -d $into ]]; then
        has go || { tell "no Go, which would fetch the CRDs of the Prometheus Operator" && return 1; }
        folder=$(module "github.com/prometheus-operator/prometheus-operator@$operator") ||
            { tell "the CRDs of the Prometheus Operator cannot be fetched: $(tail -n 1 "$cache/why")" && return 1; }
        rm -rf "$into.new"
        mkdir "$into.new"
        cp "$folder"/example/prometheus-operator-crd/*_{podmonitors,prometheusrules}.yaml "$into.new/" && mv "$into.new" "$into"
    fi
    printf '%s' "$into"
}

# The one of this machine, or of Debian's package, which is not installed. Prints its path.
promtool() {
    local into=$cache/promtool
    type -P promtool && return
    if [[ ! -x $into ]]; then
        if ! has apt-get || ! has dpkg-deb; then
            tell "no promtool, and no apt-get that would fetch it"
            return 1
        fi
        unpacked_promtool "$into" 2>"$cache/why" || { tell "promtool cannot be fetched: $(tail -n 1 "$cache/why")" && return 1; }
    fi
    printf '%s' "$into"
}

unpacked_promtool() {
    local folder status=0
    folder=$(mktemp -d -p "$cache")
    (cd "$folder" && apt-get download prometheus && dpkg-deb -x ./*.deb . && mv usr/bin/promtool "$1") >&2 || status=$?
    rm -rf "$folder"
    return "$status"
}

main "$@"
