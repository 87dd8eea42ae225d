#!/usr/bin/env bash
# What scripts/release makes: packages that install and upgrade, pages for every command, a complete bill of materials.
#
# usage: tests/release.sh [CASE...]
#
# Packages the executables that scripts/build left, and a rail-agent and a cni-conformance that are built for it. With
# RAIL_TEST_MODE=nightly, what is for arm64 is built and packaged, too. Packages are installed below a temporary directory, as
# root or in a user namespace. The last line is `N passed, N failed, N skipped`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

cases=(two_packagings_are_the_same_bytes a_deb_installs_and_goes a_rpm_installs_and_goes
    a_deb_stays_while_pods_need_it a_rpm_stays_while_pods_need_it
    the_packages_of_the_agent_install_beside_those_of_the_plugins the_agent_has_pages_and_completions
    the_bill_of_the_agent_names_what_its_package_links the_archive_of_the_suite_judges_a_plugin
    the_suite_can_be_published_as_a_crate
    no_call_fails_while_a_deb_is_upgraded an_archive_has_what_install_takes every_command_has_a_page
    bash_completes_commands_and_options completions_of_zsh_and_fish_parse the_bill_names_all_that_is_linked
    what_is_linked_has_an_allowed_licence_and_comes_from_crates_io tag_marks_a_clean_release tag_refuses_changed_files
    tag_refuses_a_version_without_a_dated_entry tag_refuses_a_lock_file_of_another_version
    tag_refuses_a_version_that_was_tagged a_signed_release_is_verified_and_a_changed_one_is_not
    a_key_that_nobody_knows_is_refused_before_the_build the_page_of_a_release_has_its_changes_alone_and_links_to_its_files)
# It builds for arm64.
[[ ${RAIL_TEST_MODE:-} != nightly ]] || cases+=(the_archive_of_the_suite_is_there_for_arm64)
passed=0 failed=0 skipped=0 status=0

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
        --removal)
            removal "${@:2}"
            exit
            ;;
    esac
    needs jq git zsh fish mandoc dpkg-deb rpmbuild ssh-keygen unshare
    # dpkg and rpm take a root directory from root alone.
    if ((EUID)) && [[ ! ${RAIL_RELEASE_INSIDE:-} ]]; then
        RAIL_RELEASE_INSIDE=1 exec unshare -Ur "$BASH" "$0" "$@"
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    export SOURCE_DATE_EPOCH=1700000000
    # Without what a debugger needs, which is ten times as large.
    (cd "$root" && cargo build --locked --quiet --package rail-agent)
    agent=$work/rail-agent
    strip -o "$agent" "$target/debug/rail-agent"
    "$root/scripts/conformance" --build >"$work/tool"
    "$root/scripts/release" --no-build --agent "$agent" --arch x86_64 --out "$work/files" >"$work/output" ||
        { cat "$work/output" && die "nothing could be packaged"; }
    version=$(sed -n '0,/^version = "\(.*\)"/s//\1/p' "$root/Cargo.toml")
    name=rail-cni-$version-linux-x86_64
    deb=$work/files/rail-cni_${version}_amd64.deb
    mkdir "$work/unpacked"
    tar -C "$work/unpacked" -xf "$work/files/$name.tar.gz"
    unpacked=$work/unpacked/$name

    (($#)) || set -- "${cases[@]}"
    local case
    for case in "$@"; do
        # Not in a condition, where a command that fails stops nothing.
        set +e
        (
            set -e
            mkdir "$work/$case"
            cd "$work/$case"
            "$case"
        ) >"$work/output" 2>&1
        status=$?
        set -e
        if ((status == 0)); then
            passed=$((passed + 1)) && printf 'ok   %s\n' "$case"
        elif [[ -s $work/$case/skipped ]]; then
            skipped=$((skipped + 1)) && printf 'skip %s: %s\n' "$case" "$(<"$work/$case/skipped")"
            [[ ! ${RAIL_TEST_SKIPS:-} ]] || printf '%s: %s\n' "$case" "$(<"$work/$case/skipped")" >>"$RAIL_TEST_SKIPS"
        else
            failed=$((failed + 1)) && printf 'FAIL %s\n' "$case"
            sed 's/^/     /' "$work/output"
        fi
    done
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    exit $((failed > 0))
}

two_packagings_are_the_same_bytes() {
    # Another umask, another working directory, another temporary directory, another time.
    mkdir temporary
    (umask 077 && TMPDIR=$PWD/temporary "$root/scripts/release" --no-build --agent "$agent" --arch x86_64 --out again)
    diff -r "$work/files" again
    (cd again && sha256sum --quiet --strict -c SHA256SUMS)
    (($(wc -l <again/SHA256SUMS) == 9))
}

# --- packages ---------------------------------------------------------------------------------------------------

# make_root: an empty one, with the databases of dpkg and rpm, and the shell that runs a package's script.
make_root() {
    mkdir -p root/var/lib/dpkg/{info,updates} root/var/lib/rpm root/dev
    : >root/var/lib/dpkg/status
    : >root/dev/null
    rpm --root "$PWD/root" --dbpath /var/lib/rpm --initdb
    local file
    for file in /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*'); do
        mkdir -p "root${file%/*}"
        cp -L "$file" "root$file"
    done
}

install_deb() { dpkg --root="$PWD/root" --log=/dev/null --force-not-root --force-architecture -i "$1"; }

# installed: the files of a package, as they should be.
installed() {
    local program
    for program in "${executables[@]}"; do
        cmp "$target/static/$program" "root/opt/cni/bin/$program"
        [[ $(stat -c %a "root/opt/cni/bin/$program") == 755 ]]
    done
    # The programs in PATH.
    cmp "$target/static/railctl" root/usr/bin/railctl
    [[ -s root/usr/share/man/man8/railctl.8.gz && -s root/usr/share/bash-completion/completions/railctl ]]
    [[ $(stat -c %a root/etc/rail-cni) == 755 && -x root/usr/share/rail-cni/check-rdma && -x $unpacked/check-rdma ]]
    [[ -s root/usr/share/doc/rail-cni/THIRD-PARTY-LICENSES && -s root/usr/share/doc/rail-cni/rail-cni.cdx.json ]]
}

a_deb_installs_and_goes() {
    make_root
    install_deb "$deb"
    installed
    dpkg --root="$PWD/root" --verify rail-cni >changed
    [[ ! -s changed ]]
    # The operator's file stays.
    echo '{}' >root/etc/rail-cni/node.json
    dpkg --root="$PWD/root" --log=/dev/null --force-not-root -P rail-cni
    [[ ! -e root/opt/cni/bin/rail-cni && ! -e root/usr/bin/railctl && -e root/etc/rail-cni/node.json ]]
}

a_rpm_installs_and_goes() {
    local -a rpm=(rpm --root "$PWD/root" --dbpath /var/lib/rpm)
    make_root
    "${rpm[@]}" -i --nodeps "$work/files/rail-cni-$version-1.x86_64.rpm"
    installed
    # /bin/sh is no package's here.
    "${rpm[@]}" -V --nodeps rail-cni
    echo '{}' >root/etc/rail-cni/node.json
    "${rpm[@]}" -e rail-cni
    [[ ! -e root/opt/cni/bin/rail-cni && ! -e root/usr/bin/railctl && -e root/etc/rail-cni/node.json ]]
}

a_deb_stays_while_pods_need_it() {
    "$root/scripts/sandbox" "$BASH" "$root/tests/release.sh" --removal deb "$deb"
}

a_rpm_stays_while_pods_need_it() {
    "$root/scripts/sandbox" "$BASH" "$root/tests/release.sh" --removal rpm "$work/files/rail-cni-$version-1.x86_64.rpm"
}

# removal deb|rpm PACKAGE: in a sandbox, with a rail whose PF and VF are files and a veth.
removal() {
    local kind=$1 package=$2
    cd /dev/shm # its memory is no overlay, on which the plugins keep nothing
    make_root
    mkdir -p root/{proc,run,etc/rail-cni,sys/class/net,sys/devices/{0000:1a:00.0,0000:1a:00.2}/net} \
        root/sys/bus/pci/{devices,drivers/mlx5_core}
    mount --bind /dev/null root/dev/null
    mount --rbind /proc root/proc
    local pf=0000:1a:00.0 vf=0000:1a:00.2 one
    for one in "$pf pf0" "$vf vf0"; do
        mkdir -p "root/sys/devices/${one% *}/net/${one#* }" "root/sys/class/net/${one#* }"
        ln -s "/sys/devices/${one% *}" "root/sys/bus/pci/devices/${one% *}"
        ln -s "/sys/devices/${one% *}" "root/sys/class/net/${one#* }/device"
        ln -s /sys/bus/pci/drivers/mlx5_core "root/sys/devices/${one% *}/driver"
        ip link add "${one#* }" type veth peer name "leaf-${one#* }"
    done
    printf '1\n' | tee "root/sys/devices/$pf/sriov_numvfs" >"root/sys/devices/$pf/sriov_totalvfs"
    ln -s "../$pf" "root/sys/devices/$vf/physfn"
    ln -s "../$vf" "root/sys/devices/$pf/virtfn0"
    jq '. + {nodeName: "worker-gpu-0", runDir: "/rail-cni-run", rails: .rails[:1]}
        | .policy.kinds = ["veth"] | .policy.rails = [0]' "$root/conf/node.json" >root/etc/rail-cni/node.json
    cp "$root/conf/fabric.yaml" root/fabric.yaml
    unshare -n sleep 600 &
    pod=$!
    trap 'kill "$pod"' EXIT

    # No pod has a rail.
    install_it
    chroot root /opt/cni/bin/railctl plan /fabric.yaml --to store
    remove_it
    if [[ -e root/opt/cni/bin/rail-cni ]]; then return 1; fi
    # A pod has a rail. An upgrade asks nobody.
    install_it
    call ADD rail-cni
    stays 'ai/trainer-0 has 0000:1a:00.2 (live)'
    if grep -q '172.16.0.0\|owed' said; then return 1; fi
    install_it again
    call DEL rail-cni
    # The pod is gone, and its device cannot get its name back.
    call ADD rail-cni
    ip link add vf0 type veth peer name other
    call DEL rail-cni
    stays '0000:1a:00.2 is not as it was before ai/trainer-0'
    ip link delete vf0
    chroot root /opt/cni/bin/railctl reap
    # A pod has an address alone.
    call ADD rail-ipam
    stays 'ai/trainer-0 has 172.16.0.0 (live)'
    RAIL_CNI_REMOVE_ANYWAY=1 remove_it
    if [[ -e root/opt/cni/bin/rail-cni ]]; then return 1; fi
    # The state is unknown.
    install_it
    mv root/etc/rail-cni/node.json .
    printf '{' >root/etc/rail-cni/node.json
    stays 'not known: railctl: /etc/rail-cni/node.json'
    mv node.json root/etc/rail-cni/
    # Somebody took railctl away, or all of them.
    mv root/opt/cni/bin/railctl .
    stays 'there is no /opt/cni/bin/railctl'
    rm root/opt/cni/bin/rail-*
    remove_it
}

# install_it [again]
install_it() {
    if [[ $kind == deb ]]; then
        install_deb "$package"
    else
        rpm --root "$PWD/root" --dbpath /var/lib/rpm -U --nodeps ${1:+--replacepkgs} "$package"
    fi
}

remove_it() {
    if [[ $kind == deb ]]; then
        dpkg --root="$PWD/root" --log=/dev/null --force-not-root -r rail-cni
    else
        rpm --root "$PWD/root" --dbpath /var/lib/rpm -e rail-cni
    fi
}

# stays TEXT: it is not removed, and says why.
stays() {
    if remove_it >said 2>&1; then cat said && return 1; fi
    cat said
    grep -qF "$1" said
    grep -q RAIL_CNI_REMOVE_ANYWAY=1 said
    [[ -x root/opt/cni/bin/rail-cni && -x root/opt/cni/bin/rail-ipam ]]
}

# call VERB PLUGIN: as Multus calls for pod ai/trainer-0.
call() {
    printf '{"cniVersion": "1.1.0", "name": "rail-0", "type": "rail-cni", "rail": 0, "mtu": 1500, "deviceID": "0000:1a:00.2",
        "ipam": {"type": "rail-ipam", "pool": "rail-0"}}' |
        CNI_COMMAND=$1 CNI_CONTAINERID=trainer-0 CNI_NETNS=/proc/$pod/ns/net CNI_IFNAME=net1 CNI_PATH=/opt/cni/bin \
            CNI_ARGS='K8S_POD_NAMESPACE=ai;K8S_POD_NAME=trainer-0' chroot root "/opt/cni/bin/$2"
}

# agent_installed: the files of its package, as they should be.
agent_installed() {
    cmp "$agent" root/usr/sbin/rail-agent
    [[ $(stat -c %a root/usr/sbin/rail-agent) == 755 && -e root/opt/cni/bin/rail-cni ]]
    [[ -s root/usr/share/man/man8/rail-agent-run.8.gz && -s root/usr/share/bash-completion/completions/rail-agent ]]
    [[ -s root/usr/share/doc/rail-agent/THIRD-PARTY-LICENSES && -s root/usr/share/doc/rail-agent/rail-agent.cdx.json ]]
    grep -q '^=== tokio ' root/usr/share/doc/rail-agent/THIRD-PARTY-LICENSES
}

the_packages_of_the_agent_install_beside_those_of_the_plugins() {
    make_root
    install_deb "$deb"
    install_deb "$work/files/rail-agent_${version}_amd64.deb"
    agent_installed
    dpkg --root="$PWD/root" --log=/dev/null --force-not-root -P rail-agent
    [[ ! -e root/usr/sbin/rail-agent && ! -e root/usr/share/doc/rail-agent && -e root/opt/cni/bin/rail-cni ]]
    rm -rf root
    local -a rpm=(rpm --root "$PWD/root" --dbpath /var/lib/rpm)
    mkdir -p root/var/lib/rpm
    "${rpm[@]}" --initdb
    "${rpm[@]}" -i --nodeps "$work/files"/rail-{cni,agent}-"$version"-1.x86_64.rpm
    agent_installed
    "${rpm[@]}" -V rail-agent
    "${rpm[@]}" -e rail-agent
    [[ ! -e root/usr/sbin/rail-agent && ! -e root/usr/share/doc/rail-agent && -e root/opt/cni/bin/rail-cni ]]
}

the_agent_has_pages_and_completions() {
    dpkg-deb -x "$work/files/rail-agent_${version}_amd64.deb" root
    local share=root/usr/share command
    "$agent" --help | awk '/^Usage:/ { on = 1 } /^Options:/ { on = 0 } on && /^  [a-z]/ && $1 != "help" { print $1 }' >names
    grep -qx install names
    # Neither `help` nor the subcommand that only the agent itself calls has a page.
    find "$share/man/man8" -name '*.gz' -printf '%f\n' | sed -n 's/^rail-agent-\(.*\)\.8\.gz$/\1/p' | sort >pages
    diff <(sort names) pages
    for command in '' $(sed 's/^/-/' names); do
        gzip -dc "$share/man/man8/rail-agent$command.8.gz" >page
        mandoc -T lint -W error page
        grep -qx '.SH OPTIONS' page
    done
    gzip -dc "$share/man/man8/rail-agent-run.8.gz" | grep -q 'dranet'
    bash -n "$share/bash-completion/completions/rail-agent"
    zsh -n "$share/zsh/vendor-completions/_rail-agent"
    HOME=$PWD fish -c "source '$share/fish/vendor_completions.d/rail-agent.fish'; complete -C 'rail-agent run --dra'" >offers
    grep -q -- --dranet offers
}

# without_checksum BILL PACKAGE...: of what cargo links, these alone, which are our own.
without_checksum() {
    jq -r '.components[] | select(.purl | startswith("pkg:cargo/")) | select(.hashes | not) | .name' "$1" >unhashed
    [[ $(<unhashed) == "$(printf '%s\n' "${@:2}")" ]]
}

# cargo's tree and cargo's metadata are two looks at the lock file.
the_bill_of_the_agent_names_what_its_package_links() {
    local bill=$work/files/rail-agent-$version-linux-x86_64.cdx.json
    jq -e --arg sum "$(sha256sum <"$agent" | cut -d ' ' -f 1)" '
        .metadata.component.name == "rail-agent" and .metadata.component.components[0].hashes[0].content == $sum' "$bill"
    jq -e '[.components[].name] | index("kube") and index("rail-cni") and index("tokio") and index("glibc")
        and (index("rail-agent") | not)' "$bill"
    without_checksum "$bill" rail-cni rail-netlink
    local allowed
    allowed=$(sed -n 's/^allow = //p' "$root/.cargo/deny-agent.toml")
    jq -r --argjson allowed "$allowed" '
        .components[] | select(.purl | startswith("pkg:cargo/")) | .licenses[0].expression | gsub("[()]"; "")
        | select(split(" AND ") | all(split(" OR ") | any(. as $one | $allowed | index([$one]))) | not)' "$bill" >refused
    cat refused
    [[ ! -s refused ]]
}

# As somebody who has nothing but the archive.
the_archive_of_the_suite_judges_a_plugin() {
    local name=cni-conformance-$version-linux-x86_64 bill=$work/files/cni-conformance-$version-linux-x86_64.cdx.json
    tar -xf "$work/files/$name.tar.gz"
    cmp "$(<"$work/tool")" "$name/cni-conformance"
    cmp <("$name/cni-conformance" --list) "$name/checks.md"
    # A check of its own empties /run and /dev/shm.
    mkdir plugin
    cp "$target/static/rail-ipam" plugin/
    "$name/cni-conformance" --describe "$root/tests/conformance/rail-ipam.json" --path "$PWD/plugin" --only version_ \
        --format json >report
    jq -e '[.. | .outcome? // empty] | length > 3 and all(. == "pass")' report
    [[ -s $name/LICENSE && -s $name/README.md && -s $name/conformance.md && -s $name/cni-contract.md ]]
    local link
    while read -r link; do [[ -s $name/$link ]]; done < <(grep -ohE '\]\([^):#]+\.md' "$name"/*.md | cut -c 3-)
    grep -q '^=== nix ' "$name/THIRD-PARTY-LICENSES"
    jq -e --arg sum "$(sha256sum <"$name/cni-conformance" | cut -d ' ' -f 1)" '
        .metadata.component.components[0].hashes[0].content == $sum' "$bill"
    jq -e '[.components[].name] | index("nix") and index("glibc") and (index("rail-cni") | not)' "$bill"
    # No path of the machine that built it.
    ! grep -qF -e "$root/" -e "${CARGO_HOME:-${HOME:-/root}/.cargo}/" "$name/cni-conformance"
}

# It depends on nothing that a registry has not, and has what its page and its tests name.
the_suite_can_be_published_as_a_crate() {
    local crate=cni-conformance-$version to=$PWD
    (cd "$root" && cargo package --quiet --locked --offline --allow-dirty --no-verify --package cni-conformance --target-dir "$to/target")
    tar -xzf "target/package/$crate.crate"
    if grep -E '^path = "\.\.' "$crate/Cargo.toml"; then return 1; fi
    [[ -s $crate/README.md && -s $crate/plugins/bridge.json && -s $crate/src/replay.sh && -s $crate/action.sh ]]
    local link
    while read -r link; do [[ -e $crate/${link%%#*} ]]; done < <(grep -oE '\]\([^):#]+\)' "$crate/README.md" | tr -d ')' | cut -c 3-)
}

# built COMMAND...: what it prints. A case is skipped where it says by its status that it cannot be done here.
built() {
    local status=0
    "$@" 2>why || status=$?
    ((status != 3)) || tail -n 1 why >skipped
    cat why >&2
    return "$status"
}

the_archive_of_the_suite_is_there_for_arm64() {
    local name=cni-conformance-$version-linux-aarch64 tool
    tool=$(built "$root/scripts/conformance" --build --aarch64)
    built "$root/scripts/build" --aarch64
    "$root/scripts/release" --no-build --arch aarch64 --out files
    [[ ! $(find files -name '*x86_64*' -o -name 'rail-agent*') ]]
    tar -xf "files/$name.tar.gz"
    cmp "$tool" "$name/cni-conformance"
    readelf -h "$name/cni-conformance" | grep 'Machine: *AArch64'
    readelf -l "$name/cni-conformance" >segments
    [[ $(<segments) != *INTERP* ]]
    # All checks, also those that trace a plugin.
    qemu-aarch64-static "$name/cni-conformance" --list >list
    "$(<"$work/tool")" --list | cmp - list
    [[ -s $name/plugins/bridge.json && -s $name/conformance.md ]]
    jq -e --arg sum "$(sha256sum <"$tool" | cut -d ' ' -f 1)" '
        .metadata.component.components[0].hashes[0].content == $sum
        and (.metadata.properties | index([{name: "architecture", value: "aarch64"}]))
        and (.components[] | select(.name == "rust-std").version | test("^[0-9]+[.][0-9.]+$"))' "files/$name.cdx.json"
    ! grep -qF -e "$root/" -e "${CARGO_HOME:-${HOME:-/root}/.cargo}/" "$name/cni-conformance"
}

# Calls go on until dpkg has ended, and the first has ended before it starts: how fast either is does not matter. The
# executables of both packages differ, so each must have been replaced.
no_call_fails_while_a_deb_is_upgraded() {
    make_root
    dpkg-deb -R "$deb" older
    sed -i 's/^Version: .*/Version: 0.0.1/' older/DEBIAN/control
    local program inode calls
    for program in "${executables[@]}"; do
        printf 'older' >>"older/opt/cni/bin/$program"
    done
    dpkg-deb --root-owner-group -Zgzip --build older older.deb
    install_deb older.deb
    inode=$(stat -c %i "${executables[@]/#/root/opt/cni/bin/}")

    call_until_done &
    local caller=$!
    # A caller that ended can say nothing more.
    while [[ ! -e called ]] && kill -0 "$caller"; do sleep 0.01; done
    install_deb "$deb"
    : >ended
    wait "$caller"

    for program in "${executables[@]}"; do
        cmp "$target/static/$program" "root/opt/cni/bin/$program"
    done
    # No inode of before is in its place.
    [[ ! $(comm -12 <(sort <<<"$inode") <(stat -c %i "${executables[@]/#/root/opt/cni/bin/}" | sort)) ]]
    calls=$(wc -l <called)
    printf '%d calls\n' "$calls"
    ((calls > 0))
}

call_until_done() {
    local program
    while [[ ! -e ended ]]; do
        for program in rail-cni rail-ipam; do
            CNI_COMMAND=VERSION "root/opt/cni/bin/$program" </dev/null >answer
            jq -e .supportedVersions answer >supported
        done
        printf 'both\n' >>called
    done
}

an_archive_has_what_install_takes() {
    CARGO_TARGET_DIR=$PWD/target RAIL_CNI_FROM=$unpacked "$root/scripts/build"
    local program
    for program in "${executables[@]}"; do
        cmp "$target/static/$program" "target/static/$program"
    done
    [[ -s $unpacked/LICENSE && -s $unpacked/THIRD-PARTY-LICENSES && -s $unpacked/conf/node.json ]]
}

# --- pages and completions --------------------------------------------------------------------------------------

# commands: as --help of railctl lists them.
commands() {
    "$unpacked/railctl" --help | awk '/^Usage:/ { on = 1 } /^Options:/ { on = 0 } on && /^  [a-z]/ { print $1 }'
}

every_command_has_a_page() {
    local command page
    commands >names
    (($(wc -l <names) > 3))
    while IFS= read -r command; do
        page=$unpacked/man/railctl-$command.8
        [[ -s $page ]] || { printf 'railctl %s has no page\n' "$command" && return 1; }
        grep -qxF "railctl\\-$command(8)" "$unpacked/man/railctl.8"
    done <names
    for page in "$unpacked"/man/*.8; do
        mandoc -T lint -W error "$page"
        grep -qx '.SH OPTIONS' "$page"
    done
}

bash_completes_commands_and_options() {
    # completes WORD...: what bash offers for the last one.
    completes() {
        bash --norc -c '
            source "$1"
            shift
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            function=$(complete -p "$1" | sed "s/.* -F \([^ ]*\) .*/\1/")
            "$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            printf "%s\n" "${COMPREPLY[@]}"' bash "$unpacked/completions/bash/$1.bash" "$@"
    }
    [[ $(completes railctl doc) == doctor ]]
    [[ $(completes railctl reap --dry) == --dry-run ]]
    [[ $(completes railctl --output js) == json ]]
    [[ $(completes railctl pl) == plan ]]
    completes railctl plan --cl | grep -qx -- --cluster-networks
}

completions_of_zsh_and_fish_parse() {
    zsh -n "$unpacked/completions/zsh/_railctl"
    HOME=$PWD fish -n "$unpacked/completions/fish/railctl.fish"
    HOME=$PWD fish -c "source '$unpacked/completions/fish/railctl.fish'; complete -C 'railctl --out'" >offers
    grep -q -- --output offers
}

# --- the bill of materials --------------------------------------------------------------------------------------

# The bill comes from cargo's tree; this from the plan of a build.
the_bill_names_all_that_is_linked() {
    local triple=x86_64-unknown-linux-gnu
    (cd "$root" && RUSTC_BOOTSTRAP=1 cargo build --locked --release --package rail-cni --package railctl --bins \
        --target "$triple" -Z unstable-options --unit-graph) >units
    jq -r --arg triple "$triple" '
        .units[] | select(.platform == $triple and .mode == "build" and (.target.kind | index("lib"))) | .pkg_id
        | capture("[#/](?<name>[a-zA-Z0-9_-]+)[@#](?<version>[0-9][^/]*)$")
        | select(.name != "rail-cni") | "\(.name) \(.version)"' units | sort -u >linked
    jq -r '.components[] | select(.purl | startswith("pkg:cargo/")) | "\(.name) \(.version)"' \
        "$work/files/$name.cdx.json" | sort >named
    (($(wc -l <linked) > 20))
    diff linked named
    without_checksum "$work/files/$name.cdx.json" rail-netlink rail-plan railctl
    # Every other is in the lock file with this checksum.
    jq -r '.components[] | select(.hashes) | .hashes[0].content' "$work/files/$name.cdx.json" >sums
    local sum
    while IFS= read -r sum; do
        grep -q "^checksum = \"$sum\"$" "$root/Cargo.lock"
    done <sums
    # Parts of the executables that are no package of cargo.
    jq -e '[.components[] | select(.version | test("^[0-9]+[.][0-9]")) | .name] | index("glibc") and index("rust-std")' \
        "$work/files/$name.cdx.json"
    jq -r '.metadata.component.components[] | "\(.hashes[0].content)  \(.name)"' "$work/files/$name.cdx.json" >executables
    (($(wc -l <executables) == ${#executables[@]}))
    (cd "$target/static" && sha256sum --quiet --strict -c) <executables
}

# As .cargo/deny.toml has it, which needs a tool that takes minutes to build.
what_is_linked_has_an_allowed_licence_and_comes_from_crates_io() {
    local allowed
    allowed=$(sed -n 's/^allow = //p' "$root/.cargo/deny.toml")
    jq -r --argjson allowed "$allowed" '
        .components[] | select(.purl | startswith("pkg:cargo/")) | .licenses[0].expression as $licence
        | select($licence | split(" OR ") | any(. as $one | $allowed | index([$one])) | not)
        | "\(.name): \($licence)"' "$work/files/$name.cdx.json" >refused
    cat refused
    [[ ! -s refused ]]
    # Each that has a licence file has it in the texts.
    grep -q '^=== clap ' "$unpacked/THIRD-PARTY-LICENSES"
    [[ $(sed -n 's/^source = //p' "$root/Cargo.lock" | sort -u) == \
        '"registry+https://github.com/rust-lang/crates.io-index"' ]]
}

# --- signatures -------------------------------------------------------------------------------------------------

# make_signed: a checkout with a key, and files with the names of a release, signed.
make_signed() {
    local arch
    mkdir -p checkout/packaging files
    cp -r "$root"/{scripts,Cargo.toml} checkout/
    printf '# none\n' >checkout/packaging/release-signers
    checkout/scripts/release key "$PWD/key"
    for arch in linux-x86_64.tar.gz linux-aarch64.tar.gz; do printf '%s\n' "$arch" >"files/rail-cni-$version-$arch"; done
    for arch in amd64 arm64; do printf '%s\n' "$arch" >"files/rail-cni_${version}_$arch.deb"; done
    (cd files && sha256sum -- * >SHA256SUMS)
    RAIL_CNI_RELEASE_KEY=$PWD/key checkout/scripts/release sign "$PWD/files"
}

# is_refused WORDS: by `verify`, for this reason.
is_refused() {
    if checkout/scripts/release verify "$PWD/files" >said 2>&1; then return 1; fi
    cat said
    grep -qF -- "$1" said
}

a_signed_release_is_verified_and_a_changed_one_is_not() {
    make_signed
    checkout/scripts/release verify "$PWD/files" >said
    grep -qF "rail-cni $version: 4 files, signed, complete, unchanged" said
    printf 'x\n' >files/extra
    is_refused 'extra is in'
    rm files/extra
    printf 'x\n' >>"files/rail-cni_${version}_amd64.deb"
    is_refused 'is not what its SHA256SUMS says'
    (cd files && sha256sum -- rail-* >SHA256SUMS)
    is_refused 'no key of'
    rm "files/rail-cni_${version}_amd64.deb"
    (cd files && sha256sum -- rail-* >SHA256SUMS)
    RAIL_CNI_RELEASE_KEY=$PWD/key checkout/scripts/release sign "$PWD/files"
    is_refused "lacks rail-cni_${version}_amd64.deb"
    rm files/SHA256SUMS.sig
    is_refused 'has no SHA256SUMS.sig'
}

a_key_that_nobody_knows_is_refused_before_the_build() {
    make_signed
    ssh-keygen -q -t ed25519 -N '' -f other
    if RAIL_CNI_RELEASE_KEY=$PWD/other checkout/scripts/release >said 2>&1; then return 1; fi
    grep -qF 'the public key of' said
}

# --- the page ---------------------------------------------------------------------------------------------------

the_page_of_a_release_has_its_changes_alone_and_links_to_its_files() {
    local page link
    page=$("$root/scripts/release" notes)
    grep -qF "rail-cni-$version-linux-ARCH.tar.gz" <<<"$page"
    grep -qxF '### Added' <<<"$page"
    if grep '^## ' <<<"$page"; then return 1; fi
    while read -r link; do
        [[ $link == "../../blob/v$version/"* && -e $root/${link#"../../blob/v$version/"} ]]
    done < <(grep -oE '\]\([^):#]+' <<<"$page" | cut -c 3-)
}

# --- tags -------------------------------------------------------------------------------------------------------

# make_checkout: a repository of its own whose release is ready.
make_checkout() {
    mkdir -p checkout
    cp -r "$root"/{scripts,Cargo.toml,Cargo.lock,CHANGELOG.md} checkout/
    sed -i "s/^## \[$version\] - .*/## [$version] - 2026-01-02/" checkout/CHANGELOG.md
    export GIT_CONFIG_GLOBAL=$PWD/gitconfig GIT_CONFIG_NOSYSTEM=1
    git config --global user.name nobody
    git config --global user.email nobody@localhost
    git init -q checkout
    commit
}

commit() {
    git -C checkout add -A
    git -C checkout commit -qm 'A release'
}

tag() { checkout/scripts/release tag >said 2>&1; }

# refuses WORDS: no tag is made, for this reason.
refuses() {
    if tag; then return 1; fi
    cat said
    grep -qF "$1" said
    [[ ! $(git -C checkout tag) ]]
}

tag_marks_a_clean_release() {
    make_checkout
    tag
    [[ $(git -C checkout describe --exact-match) == "v$version" ]]
    grep -qF "git push origin v$version" said
}

tag_refuses_changed_files() {
    make_checkout
    : >checkout/new
    refuses 'not committed'
}

tag_refuses_a_version_without_a_dated_entry() {
    make_checkout
    sed -i "s/^## \[$version\] - .*/## [$version] - unreleased/" checkout/CHANGELOG.md
    commit
    refuses "CHANGELOG.md has no entry '## [$version] - YYYY-MM-DD'"
}

tag_refuses_a_lock_file_of_another_version() {
    make_checkout
    sed -i '0,/^version = .*/s//version = "99.0.0"/' checkout/Cargo.toml
    commit
    refuses 'Cargo.lock has'
}

tag_refuses_a_version_that_was_tagged() {
    make_checkout
    tag
    : >checkout/new
    commit
    if tag; then return 1; fi
    grep -qF "the tag v$version exists" said
}

main "$@"
