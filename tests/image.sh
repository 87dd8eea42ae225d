#!/usr/bin/env bash
# The image that scripts/image makes: whole, the same each time, and its executables run.
#
# usage: tests/image.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
    esac
    (umask 022 && "$root/scripts/image" "$work/one.tar")
    (umask 077 && "$root/scripts/image" "$work/two.tar")
    mkdir "$work/image" "$work/layer"
    tar -C "$work/image" -xf "$work/one.tar"
    local test
    for test in two_images_are_the_same plugins_that_are_stale_are_built_anew a_folder_without_a_plugin_is_refused every_blob_has_its_digest the_layer_has_four_executables_and_nothing_else \
        the_executables_are_static_and_run; do
        if ("$test") >"$work/log" 2>&1; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            printf 'FAIL %s\n' "$test"
            cat "$work/log"
        fi
    done
    printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
    exit $((failed > 0))
}

two_images_are_the_same() { cmp "$work/one.tar" "$work/two.tar"; }

# Another target folder, with what a commit before left there. The plugins are not compiled again, but taken from ours.
plugins_that_are_stale_are_built_anew() {
    local triple
    triple=$(rustc -vV | sed -n 's/^host: //p')
    mkdir -p "$work/target/static"
    ln -s "$target/$triple" "$target/agent" "$work/target/"
    local name
    for name in "${executables[@]}"; do printf '#!/bin/sh\necho stale\n' >"$work/target/static/$name"; done
    chmod 755 "$work/target/static"/rail*
    CARGO_TARGET_DIR=$work/target RAIL_CNI_FROM=$target/static "$root/scripts/image" "$work/three.tar"
    cmp "$work/one.tar" "$work/three.tar"
}

a_folder_without_a_plugin_is_refused() {
    local said
    mkdir "$work/half" && cp "$target"/static/rail-{cni,ipam} "$work/half/"
    ! said=$("$root/scripts/image" --plugins "$work/half" "$work/four.tar" 2>&1) || return
    [[ $said == *"$work/half has no executable railctl"* && ! -e $work/four.tar ]]
}

every_blob_has_its_digest() {
    cd "$work/image/blobs/sha256"
    local blob
    for blob in *; do
        [[ $(sha256sum <"$blob") == "$blob  -" ]] || return
    done
    # The index names the manifest, which names the configuration and the layer.
    local manifest
    manifest=$(jq -r '.manifests[0].digest' "$work/image/index.json")
    jq -r '.config, .layers[] | "\(.size) \(.digest)"' "${manifest#sha256:}" | while read -r size digest; do
        [[ $(stat -c %s "${digest#sha256:}") == "$size" ]] || return
    done || return
    [[ $(jq -r '.manifests[0].annotations["io.containerd.image.name"]' "$work/image/index.json") == \
        "docker.io/library/rail-cni:$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)" ]]
}

unpack() {
    local manifest layer
    manifest=$(jq -r '.manifests[0].digest' "$work/image/index.json")
    layer=$(jq -r '.layers[0].digest' "$work/image/blobs/sha256/${manifest#sha256:}")
    tar -C "$work/layer" -xf "$work/image/blobs/sha256/${layer#sha256:}"
}

the_layer_has_four_executables_and_nothing_else() {
    unpack
    [[ $(cd "$work/layer" && find . -type f -perm 755 | sort | tr '\n' ' ') == './plugins/rail-cni ./plugins/rail-ipam ./plugins/railctl ./rail-agent ' ]] || return
    [[ $(find "$work/layer" -type f | wc -l) == 4 ]]
}

the_executables_are_static_and_run() {
    unpack
    local name
    for name in rail-agent "${executables[@]/#/plugins/}"; do
        LC_ALL=C ldd "$work/layer/$name" 2>&1 | grep -E 'statically linked|not a dynamic executable' || return
        "$work/layer/$name" --version || return
    done
}

main "$@"
