#!/usr/bin/env bash
# The images that scripts/image makes: whole, the same each time, and their executables run.
#
# usage: tests/image.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
    esac
    (umask 022 && "$root/scripts/image" "$work/one.tar")
    (umask 077 && "$root/scripts/image" "$work/two.tar")
    mkdir "$work/image" "$work/layer"
    tar -C "$work/image" -xf "$work/one.tar"
    local test status
    for test in two_images_are_the_same plugins_that_are_stale_are_built_anew a_folder_without_a_plugin_is_refused a_registry_has_it_by_the_digest_that_is_printed every_blob_has_its_digest the_layer_has_four_executables_and_nothing_else \
        the_executables_are_static_and_run the_image_of_conformance_judges_a_plugin; do
        status=0
        ("$test") >"$work/log" 2>&1 || status=$?
        if ((status == 0)); then
            passed=$((passed + 1))
        elif ((status == 3)); then
            skipped=$((skipped + 1))
            printf 'skipped %s: %s\n' "$test" "$(tail -n 1 "$work/log")"
        else
            failed=$((failed + 1))
            printf 'FAIL %s\n' "$test"
            cat "$work/log"
        fi
    done
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
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

a_registry_has_it_by_the_digest_that_is_printed() {
    local crane name port=''
    crane=$("$root/scripts/callers" crane-0.22.1)/crane-0.22.1/bin || return
    PATH=$crane:$PATH
    crane registry serve --address 127.0.0.1:0 >"$work/registry" 2>&1 &
    registry=$!
    trap 'kill "$registry"' EXIT # of the subshell in which each test runs
    until port=$(grep -oE '[0-9]+$' "$work/registry"); do kill -0 "$registry" && sleep 0.1 || return; done
    name=$("$root/scripts/image" --push "127.0.0.1:$port/team/rail-cni:0.2.0" "$work/five.tar" | tail -n 1)
    cmp "$work/one.tar" "$work/five.tar" || return
    [[ $name == "127.0.0.1:$port/team/rail-cni@$(jq -r '.manifests[0].digest' "$work/image/index.json")" ]] || return
    [[ $(crane digest "127.0.0.1:$port/team/rail-cni:0.2.0") == "${name#*@}" ]] || return
    crane pull --format oci "$name" "$work/pulled" && diff -r "$work/image/blobs" "$work/pulled/blobs"
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

# unpack [IMAGE LAYER]: folders in $work.
unpack() {
    local image=$work/${1:-image} to=$work/${2:-layer} manifest layer
    manifest=$(jq -r '.manifests[0].digest' "$image/index.json")
    layer=$(jq -r '.layers[0].digest' "$image/blobs/sha256/${manifest#sha256:}")
    tar -C "$to" -xf "$image/blobs/sha256/${layer#sha256:}"
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

# shellcheck disable=SC2016
# As a container runs it: with a /proc and a /dev of its own. The script of a finding runs there, too.
the_image_of_conformance_judges_a_plugin() {
    local image=$work/conformance layer=$work/root readme=$root/crates/cni-conformance/README.md
    mkdir -p "$image" "$layer"
    "$root/scripts/image" --conformance "$work/conformance.tar" || return
    tar -C "$image" -xf "$work/conformance.tar"
    jq -e '.manifests[0].annotations["io.containerd.image.name"] | startswith("docker.io/library/cni-conformance:")' \
        "$image/index.json" || return
    unpack conformance root
    sed -n '/^```sh$/,/^```$/ { /^```/d; p }' "$readme" >"$layer/tmp/shell-veth"
    sed -n '/^```json$/,/^```$/ { /^```$/q; /^```/d; p }' "$readme" >"$layer/tmp/shell-veth.json"
    sed 's/! is_there || said=.*link del.*/fail 11 no/' "$layer/tmp/shell-veth" >"$layer/tmp/wrong"
    chmod 755 "$layer"/tmp/{shell-veth,wrong}
    local -a judge=(/usr/bin/cni-conformance --describe /tmp/shell-veth.json --plugin)
    inside "${judge[@]}" /tmp/shell-veth || return
    ! inside "${judge[@]}" /tmp/wrong --level should --only del_after_add --replay /tmp || return
    inside /bin/bash -c 'cd /tmp; bash shell-veth.*.sh; [ $? = 1 ] && PLUGIN=/tmp/shell-veth bash shell-veth.*.sh'
}

# inside PROGRAM [ARGUMENT]...: in the folder of that image.
inside() {
    # shellcheck disable=SC2016
    unshare -m --propagation private bash -c 'mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" &&
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$0" "$@"' "$work/root" "$@"
}

main "$@"
