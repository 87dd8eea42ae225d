#!/usr/bin/env bash
# The first command on a machine that lacks something: what scripts/lib.sh installs, and what it says.
#
# usage: tests/setup.sh [CASE...]
#
# The package managers are fakes that note their arguments, so nothing is installed. What only root's machine does is skipped
# without root, and goes to the file RAIL_TEST_SKIPS, too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

cases=(root_gets_what_is_missing a_user_is_told_the_line no_manager_is_said what_cannot_be_installed_is_named
    no_rust_is_answered_with_a_line the_package_of_rust_is_named an_old_package_of_rust_is_not_advised
    an_old_rust_is_said executables_of_elsewhere_are_taken
    executables_that_are_not_what_their_sums_say_are_refused nothing_runs_that_is_no_static_executable_for_this_machine
    a_compiler_is_unpacked_by_its_sum_alone a_url_without_tls_is_refused a_release_is_taken_by_its_signature_alone a_build_says_its_commit
    an_installation_is_for_people_and_is_removed_to_the_last_file files_of_others_stay_and_are_named)
passed=0 failed=0 skipped=0 status=0
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
    esac
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"
    (($#)) || set -- "${cases[@]}"
    local name
    for name in "$@"; do
        # Not in a condition, where a command that fails stops nothing.
        set +e
        (
            set -e
            machine
            "$name"
        ) >"$work/output" 2>&1
        status=$?
        set -e
        if ((status == 0)); then
            passed=$((passed + 1)) && printf 'ok   %s\n' "$name"
        elif ((status == 77)); then
            skipped=$((skipped + 1)) && printf 'skip %s: %s\n' "$name" "$(<"$work/output")"
            [[ ! ${RAIL_TEST_SKIPS:-} ]] || printf '%s: %s\n' "$name" "$(<"$work/output")" >>"$RAIL_TEST_SKIPS"
        else
            failed=$((failed + 1)) && printf 'FAIL %s\n' "$name"
            sed 's/^/     /' "$work/output"
        fi
    done
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    exit $((failed > 0))
}

# A machine with a few programs, without ping, Rust and any package manager: all that PATH leads to.
machine() {
    local program
    rm -rf "${work:?}/bin" "$work/os-release" && mkdir "$work/bin"
    for program in bash env sed grep sort tail head mktemp rm cp mv mkdir chmod dirname cat sha256sum stat ldd setpriv git; do
        ln -s "$(type -P "$program")" "$work/bin/"
    done
    : >"$work/calls" && chmod 666 "$work/calls"
}

# manager NAME [nothing]: notes how it is called, and installs a ping unless it is to install nothing.
manager() {
    local makes
    makes="$(type -P ln) -sf '$(type -P true)' '$work/bin/ping'"
    [[ ${2:-} != nothing ]] || makes='echo E: no such package; exit 100'
    printf '#!/bin/bash\necho "%s $*" >>%q\n[[ " $* " != *" install "* ]] || { %s; }\n' "$1" "$work/calls" "$makes" \
        >"$work/bin/$1"
    chmod 755 "$work/bin/$1"
}

# on_it [USER] COMMAND...: a script that sources lib.sh and runs COMMAND, with that PATH alone. What lib.sh puts behind it
# is what installers use, and must not lead to this machine's programs.
on_it() {
    local -a as=()
    if [[ $1 == nobody ]]; then
        shift
        ((EUID)) || as=(setpriv --reuid 65534 --regid 65534 --clear-groups --)
    fi
    sed "s,^PATH=.*,PATH=$work/bin,; s,/etc/os-release,$work/os-release," "$root/scripts/lib.sh" >"$work/lib.sh"
    printf '#!/bin/bash\nset -euo pipefail\nsource %q\nroot=%q\n"$@"\n' "$work/lib.sh" "$root" >"$work/first"
    chmod 755 "$work/lib.sh" "$work/first"
    status=0
    said=$(PATH=$work/bin "${as[@]}" bash "$work/first" "$@" 2>&1) || status=$?
}

says() { [[ $said == *"$1"* ]] || { printf 'it says %q, and not %q\n' "$said" "$1" && return 1; }; }
says_not() { [[ $said != *"$1"* ]] || { printf 'it says %q\n' "$said" && return 1; }; }
ends() { ((status == $1)) || { printf 'status %d, and not %d: %s\n' "$status" "$1" "$said" && return 1; }; }
needs_root() { ((EUID == 0)) || { printf 'needs root\n' && exit 77; }; }
calls() { [[ $(<"$work/calls") == "$1" ]] || { printf 'called: %s\n' "$(<"$work/calls")" && return 1; }; }

root_gets_what_is_missing() {
    needs_root
    local row name package
    for row in apt-get:iputils-ping dnf:iputils zypper:iputils; do
        name=${row%:*} package=${row#*:}
        machine
        manager "$name"
        on_it needs bash ping
        ends 0
        says "first: installing $package ($name)"
        [[ $(tail -n 1 "$work/calls") == "$name "*" $package" ]]
        [[ $name != apt-get || $(head -n 1 "$work/calls") == *update ]]
        # Installed packages are not asked for.
        : >"$work/calls"
        on_it needs bash ping
        ends 0
        [[ ! $said && ! -s $work/calls ]]
    done
}

a_user_is_told_the_line() {
    manager dnf
    on_it nobody needs ping
    ends 3
    says 'first: ping: not here; as root: dnf install -y iputils'
    calls ''
}

no_manager_is_said() {
    on_it needs ping
    ends 3
    says 'ping: not here, and no apt-get, dnf or zypper'
}

what_cannot_be_installed_is_named() {
    needs_root
    manager zypper nothing
    on_it needs ping
    ends 3
    says 'E: no such package'
    says 'without ping this cannot be done'
}

no_rust_is_answered_with_a_line() {
    on_it needs_rust
    ends 3
    says "no Rust here, and $rust or newer is needed"
    says 'https://sh.rustup.rs | sh -s -- -y'
    says RAIL_CNI_FROM
    says_not ' install -y'
}

the_package_of_rust_is_named() {
    local row name command
    for row in apt-get:'apt-get update && apt-get install -y cargo' dnf:'dnf install -y cargo' zypper:'zypper install -y cargo'; do
        name=${row%%:*} command=${row#*:}
        machine
        manager "$name"
        on_it needs_rust
        ends 3
        says "As root:
    $command
If that is older than $rust, rustup"
        calls ''
    done
    machine
    manager apt-get
    printf 'ID=debian\nVERSION_ID="13"\n' >"$work/os-release"
    on_it needs_rust
    says 'apt-get install -y cargo
Or, for this user alone:'
}

# By the lists of apt, or where it has none by the release.
an_old_package_of_rust_is_not_advised() {
    manager apt-get
    printf 'ID=debian\nVERSION_ID="12"\n' >"$work/os-release"
    on_it needs_rust
    ends 3
    says 'The package of this distribution is 1.63. rustup has a newer one:'
    says_not 'install -y cargo'
    printf '#!/bin/bash\nprintf "%%s\\n" rustc: "  Installed: (none)" "  Candidate: 1.75.0+dfsg0ubuntu1-0ubuntu7"\n' >"$work/bin/apt-cache"
    chmod 755 "$work/bin/apt-cache"
    on_it needs_rust
    says 'The package of this distribution is 1.75.0. rustup'
    sed -i 's/1\.75\.0/1.91.1/' "$work/bin/apt-cache"
    on_it needs_rust
    says 'apt-get install -y cargo
Or, for this user alone:'
}

an_old_rust_is_said() {
    printf '#!/bin/bash\necho "rustc 1.63.0 (Debian)"\n' >"$work/bin/rustc"
    cp "$work/bin/rustc" "$work/bin/cargo" && chmod 755 "$work"/bin/{rustc,cargo}
    on_it needs_rust
    ends 3
    says "Rust 1.63.0 is too old, $rust is needed"
    says 'https://sh.rustup.rs'
    cp "$work/bin/rustc" "$work/bin/rustup"
    on_it needs_rust
    says 'rustup update stable'
}

# The programs as another machine would have left them.
elsewhere() {
    mkdir -p "$work/elsewhere"
    cp "${executables[@]/#/$target/static/}" "$work/elsewhere/"
    (cd "$work/elsewhere" && sha256sum "${executables[@]}" >SHA256SUMS)
}

refuses() { if take_them "$1" >"$work/said"; then return 1; fi; }

take_them() { CARGO_TARGET_DIR=$work/target RAIL_CNI_FROM=$1 "$root/scripts/build" 2>&1; }

executables_of_elsewhere_are_taken() {
    elsewhere
    for from in "$work/elsewhere" "file://$work/elsewhere/"; do
        rm -rf "$work/target"
        take_them "$from"
        cmp "$work/elsewhere/rail-cni" "$work/target/static/rail-cni"
        cmp "$work/elsewhere/SHA256SUMS" "$work/target/static/SHA256SUMS"
    done
}

executables_that_are_not_what_their_sums_say_are_refused() {
    elsewhere
    rm -rf "$work/target"
    printf x >>"$work/elsewhere/rail-ipam"
    refuses "$work/elsewhere"
    grep -q 'is not what its SHA256SUMS says' "$work/said"
    if [[ -e $work/target/static/rail-cni ]]; then return 1; fi
    # Files from a network must have sums; a folder may go without.
    elsewhere && rm "$work/elsewhere/SHA256SUMS"
    refuses "file://$work/elsewhere"
    take_them "$work/elsewhere"
}

# Anything else is refused by its headers, and was not run.
nothing_runs_that_is_no_static_executable_for_this_machine() {
    local what
    printf '#!/bin/sh\necho ran >>%s/ran\necho "rail-cni 0.2.0"\n' "$work" >"$work/script"
    head -c 100000 "$target/static/rail-cni" >"$work/cut" && printf 'x' | dd of="$work/cut" bs=1 seek=4 conv=notrunc 2>/dev/null
    cp "$target/static/rail-cni" "$work/other" && printf '\xb7\0' | dd of="$work/other" bs=1 seek=18 conv=notrunc 2>/dev/null
    cp "$target/static/rail-cni" "$work/object" && printf '\1\0' | dd of="$work/object" bs=1 seek=16 conv=notrunc 2>/dev/null
    : >"$work/empty"
    cp "$(type -P bash)" "$work/dynamic"
    for what in script:'no ELF' cut:'no ELF' empty:'no ELF' other:'for another machine' object:'no executable' \
        dynamic:'not static: it has an interpreter'; do
        elsewhere
        rm -rf "$work/target" && cp "$work/${what%%:*}" "$work/elsewhere/rail-ipam"
        (cd "$work/elsewhere" && sha256sum "${executables[@]}" >SHA256SUMS)
        refuses "$work/elsewhere"
        grep -qF "${what#*:}" "$work/said" || { cat "$work/said" && return 1; }
        if [[ -e $work/target/static/rail-cni || -e $work/ran ]]; then return 1; fi
    done
}

a_compiler_is_unpacked_by_its_sum_alone() {
    local copy=$work/compiler name=rustc-1-x
    mkdir -p "$copy/scripts" "$copy/packaging" "$work/files/$name"
    cp "$root"/scripts/{pinned-rust,lib.sh} "$copy/scripts/"
    # shellcheck disable=SC2016
    printf '#!/bin/bash\ninto=${1#--prefix=}\nmkdir -p "$into/bin"\nprintf "#!/bin/bash\\necho installed\\n" >"$into/bin/rustc"
chmod 755 "$into/bin/rustc"\n' >"$work/files/$name/install.sh"
    chmod 755 "$work/files/$name/install.sh"
    tar -C "$work/files" -cJf "$work/files/$name.tar.xz" "$name"
    printf '# https://example.invalid/dist/2026-01-01/\n%s  %s\n' "$(sha256sum <"$work/files/$name.tar.xz" | cut -d ' ' -f 1)" \
        "$name.tar.xz" >"$copy/packaging/rust.sha256"
    [[ $("$copy/scripts/pinned-rust" --from "$work/files" "$work/rust") == installed ]]
    rm -rf "$work/rust" && printf x >>"$work/files/$name.tar.xz"
    if "$copy/scripts/pinned-rust" --from "$work/files" "$work/rust" 2>"$work/said"; then return 1; fi
    grep -q 'that is not what .*rust.sha256 says' "$work/said" && [[ ! -e $work/rust ]]
}

a_url_without_tls_is_refused() {
    local url
    for url in http://127.0.0.1:1 HTTP://127.0.0.1:1 ftp://127.0.0.1 scp://x HTTPS://127.0.0.1:1; do
        refuses "$url"
        grep -qE 'only https is accepted|cannot fetch' "$work/said" || { cat "$work/said" && return 1; }
    done
}

# serve FOLDER: by TLS, at $url; /away/NAME leads to NAME without TLS.
serve() {
    cat >"$work/serve.py" <<-'END'
	import http.server, os, ssl, sys
	folder, cert, port = sys.argv[1:]
	os.chdir(folder)
	class Handler(http.server.SimpleHTTPRequestHandler):
	    def do_GET(self):
	        if not self.path.startswith("/away/"):
	            return super().do_GET()
	        self.send_response(302)
	        self.send_header("Location", "http://127.0.0.1:1/" + self.path[6:])
	        self.end_headers()
	    def log_message(self, *_): pass
	server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
	context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
	context.load_cert_chain(cert)
	server.socket = context.wrap_socket(server.socket, server_side=True)
	open(port, "w").write(str(server.server_port) + "\n")
	server.serve_forever()
	END
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$work/key.pem" -out "$work/cert.pem" \
        -subj /CN=x -addext subjectAltName=IP:127.0.0.1 -days 1 2>/dev/null
    cat "$work/key.pem" >>"$work/cert.pem"
    rm -f "$work/port"
    python3 "$work/serve.py" "$1" "$work/cert.pem" "$work/port" &
    server=$!
    trap 'kill "$server"' EXIT
    until [[ -s $work/port ]]; do sleep 0.05; done
    url=https://127.0.0.1:$(<"$work/port")
    export CURL_CA_BUNDLE=$work/cert.pem
}

# make_release VERSION: as scripts/release does, of the executables that are there.
make_release() {
    local name
    name=rail-cni-$1-linux-$(uname -m)
    rm -rf "${work:?}/made" "${release:?}"/* && mkdir -p "$work/made/$name"
    cp "${executables[@]/#/$target/static/}" "$work/made/$name/"
    tar -C "$work/made" -czf "$release/$name.tar.gz" "$name"
    (cd "$release" && sha256sum -- *.tar.gz >SHA256SUMS)
}

# Its key is in the checkout: whoever has the server, or a certificate for it, has not that.
a_release_is_taken_by_its_signature_alone() {
    local copy=$work/copy release=$work/release version program
    for program in ssh-keygen openssl python3 curl; do
        has "$program" || { printf 'no %s\n' "$program" && exit 77; }
    done
    version=$(sed -n '0,/^version = "\(.*\)"/s//\1/p' "$root/Cargo.toml")
    mkdir "$copy" && cp -r "$root"/{scripts,packaging,Cargo.toml,Cargo.lock} "$copy/"
    mkdir "$release" && serve "$release"
    take_it() { rm -rf "$work/target" && CARGO_TARGET_DIR=$work/target RAIL_CNI_FROM=${1:-$url} "$copy/scripts/build" >"$work/said" 2>&1; }
    # refuses_it TEXT [URL]
    refuses_it() {
        if take_it "${2:-}"; then return 1; fi
        grep -qF "$1" "$work/said" || { cat "$work/said" && return 1; }
        if [[ -e $work/target/static/rail-cni ]]; then return 1; fi
    }
    sign() { RAIL_CNI_RELEASE_KEY=$1 "$copy/scripts/release" sign "$release" >"$work/signed" 2>&1; }

    make_release "$version"
    refuses_it 'cannot fetch'
    "$copy/scripts/release" key "$work/ours" >/dev/null
    sign "$work/ours"
    take_it || { cat "$work/said" && return 1; }
    cmp "$target/static/rail-cni" "$work/target/static/rail-cni"
    refuses_it 'cannot fetch' "$url/away"
    # Changes that the signature does not cover.
    printf '\n' >>"$release/SHA256SUMS"
    refuses_it 'is not signed by a key of'
    sign "$work/ours" && printf x >>"$release/rail-cni-$version-linux-$(uname -m).tar.gz"
    refuses_it 'is not what its SHA256SUMS says'
    # Somebody else's signature, and ours of something else.
    make_release "$version"
    ssh-keygen -q -t ed25519 -N '' -f "$work/theirs"
    if sign "$work/theirs"; then return 1; fi
    refuses_it 'is not signed by a key of'
    ssh-keygen -q -Y sign -f "$work/ours" -n file "$release/SHA256SUMS" 2>/dev/null <<<y
    refuses_it 'is not signed by a key of'
    # An older release, of which something may be known by now.
    make_release 0.1.0 && sign "$work/ours"
    refuses_it 'cannot fetch'
    mv "$release"/rail-cni-0.1.0-*.tar.gz "$release/rail-cni-$version-linux-$(uname -m).tar.gz"
    refuses_it 'is not what its SHA256SUMS says'
}

# Of a checkout, of what `git archive` writes, of a copy that is neither, of one below another project.
a_build_says_its_commit() {
    local copy=$work/copy hash
    says_commit() {
        sed '/^main "\$@"$/d' "$copy/scripts/build" >"$copy/scripts/asked"
        [[ $(cd / && bash -c "source '$copy/scripts/asked'; commit") == "$1" ]]
    }
    mkdir -p "$copy"
    cp -r "$root"/{scripts,.gitattributes,build.rs,Cargo.toml,Cargo.lock} "$copy/"
    mkdir -p "$copy"/{src,crates/netlink,crates/plan,crates/railctl} && touch "$copy"/{src,crates/netlink,crates/plan,crates/railctl}/lib.rs
    says_commit ''
    (
        cd "$copy"
        git init -q . && git add -A
        git -c user.name=a -c user.email=a@b commit -qm a
    ) >"$work/git" 2>&1
    hash=$(git -C "$copy" rev-parse HEAD)
    says_commit "${hash:0:12}"
    printf '// more\n' >"$copy/src/lib.rs"
    says_commit "${hash:0:12}, changed"
    git -C "$copy" checkout -q src && printf '// more\n' >"$copy/crates/railctl/lib.rs"
    says_commit "${hash:0:12}, changed"
    RAIL_CNI_COMMIT=0123456789abcdef says_commit 0123456789ab
    mkdir "$work/unpacked" && git -C "$copy" archive HEAD | tar -x -C "$work/unpacked"
    mv "$work/unpacked" "$copy/below"
    copy=$copy/below says_commit "${hash:0:12}"
    cp "$root/scripts/build" "$copy/below/scripts/build"
    copy=$copy/below says_commit ''
}

# install_there [OPTION...]: the executables that are there, below $work/root. What it says is in $work/said.
install_there() {
    CARGO_TARGET_DIR=$work/target RAIL_CNI_FROM=$target/static DESTDIR=$work/root "$root/scripts/install" "$@" \
        >"$work/said" 2>&1 || { cat "$work/said" && return 1; }
}

# files: what is there, with where links lead.
files() { (cd "$work/root" && find . -mindepth 1 -printf '%y %p %l\n' | sort); }

an_installation_is_for_people_and_is_removed_to_the_last_file() {
    local share=$work/root/usr/local/share name
    rm -rf "$work/root"
    mkdir -p "$work/root/usr/local/share/man/man8"
    printf 'other\n' >"$share/man/man8/other.8"
    files >"$work/before"
    install_there
    for name in "${executables[@]}"; do cmp "$target/static/$name" "$work/root/opt/cni/bin/$name"; done
    [[ $(readlink "$work/root/usr/local/bin/railctl") == /opt/cni/bin/railctl ]]
    [[ -s $share/man/man8/railctl.8 && -s $share/man/man8/railctl-status.8 ]]
    grep -q 'complete .* railctl$' "$share/bash-completion/completions/railctl"
    grep -qx '#compdef railctl' "$share/zsh/site-functions/_railctl"
    grep -q '^complete -c railctl ' "$share/fish/vendor_completions.d/railctl.fish"
    grep -q '/usr/local/bin/railctl  link to /opt/cni/bin/railctl' "$work/said"
    grep -q 'completions for bash zsh fish' "$work/said"
    # Once more, with a page of an older version.
    files >"$work/installed"
    printf 'old\n' >"$share/man/man8/railctl-old.8"
    printf '/usr/local/share/man/man8/railctl-old.8\n' >>"$share/rail-cni/installed"
    install_there
    files | cmp - "$work/installed"
    install_there --uninstall
    files | cmp - "$work/before"
    # In other folders.
    install_there --prefix /usr/people /srv/plugins
    [[ $(readlink "$work/root/usr/people/bin/railctl") == /srv/plugins/railctl && -x $work/root/srv/plugins/rail-cni ]]
    install_there --prefix /usr/people --uninstall /srv/plugins
    files | cmp - "$work/before"
}

files_of_others_stay_and_are_named() {
    local bin=$work/root/usr/local/bin page=$work/root/usr/local/share/man/man8/railctl.8
    rm -rf "$work/root"
    mkdir -p "$bin" "${page%/*}"
    printf 'theirs\n' | tee "$bin/railctl" >"$page"
    files >"$work/before"
    install_there
    grep -qF "$bin/railctl stays as it is" "$work/said"
    grep -qF "$page stays as it is" "$work/said"
    [[ $(<"$bin/railctl") == theirs && $(<"$page") == theirs && -x $work/root/opt/cni/bin/railctl ]]
    install_there --uninstall
    files | cmp - "$work/before"
    # A link that leads elsewhere by now is somebody else's.
    rm "$bin/railctl" && install_there
    ln -sfT /usr/bin/true "$bin/railctl"
    install_there --uninstall
    [[ $(readlink "$bin/railctl") == /usr/bin/true ]]
}

main "$@"
