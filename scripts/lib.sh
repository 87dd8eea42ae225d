# shellcheck shell=bash disable=SC2034
# Shared by the scripts here: `source "$(dirname "$0")/lib.sh"`. Not a program of its own.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
target=${CARGO_TARGET_DIR:-$root/target}
[[ $target == /* ]] || target=$root/$target
# Rust and Go where their installers put them: CI and sudo often start with a shorter PATH.
PATH=$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:/usr/local/go/bin:/usr/sbin:/sbin
export PATH

# The executables that are installed in one folder, in the order in which an upgrade replaces them: a new rail-cni never
# meets an old rail-ipam, and before the new rail-cni writes its first record, railctl is one that reads the records of
# both.
executables=(rail-ipam railctl rail-cni)

die() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit "${2:-1}"
}

# Prints the comment at the head of the script.
usage() { sed -n '2,/^[^#]/ { s/^# \{0,1\}//p }' "$0"; }

has() { command -v "$1" >/dev/null 2>&1; }

# --- what a script needs -----------------------------------------------------------------------------------------

# packages MANAGER PROGRAM: the one that has it. A path is a file; `libc.a` is what a static executable is linked with.
packages() {
    case $1:$2 in
        *:unshare | *:nsenter | *:setpriv | *:setsid | *:findmnt | *:mount) printf 'util-linux' ;;
        apt-get:ip) printf 'iproute2' ;;
        dnf:ip) printf 'iproute' ;;
        zypper:ip) printf 'iproute2' ;;
        apt-get:ping) printf 'iputils-ping' ;;
        *:ping) printf 'iputils' ;;
        *:nft) printf 'nftables' ;;
        *:cc) printf 'gcc' ;;
        apt-get:cargo-clippy) printf 'rust-clippy' ;;
        *:cargo-clippy) printf 'clippy' ;;
        dnf:dmsetup | zypper:dmsetup) printf 'device-mapper' ;;
        *:ib_write_bw) printf 'perftest' ;;
        *:mkfs.ext4) printf 'e2fsprogs' ;;
        *:mkfs.xfs) printf 'xfsprogs' ;;
        zypper:mkfs.btrfs) printf 'btrfsprogs' ;;
        *:mkfs.btrfs) printf 'btrfs-progs' ;;
        apt-get:libc.a) printf 'libc6-dev' ;;
        dnf:libc.a) printf 'glibc-static' ;;
        zypper:libc.a) printf 'glibc-devel-static' ;;
        *:awk) printf 'gawk' ;;
        *:aarch64-linux-gnu-gcc) printf 'gcc-aarch64-linux-gnu' ;;
        *:/usr/aarch64-linux-gnu/lib/libc.a) printf 'libc6-dev-arm64-cross' ;;
        *:qemu-aarch64-static) printf 'qemu-user-static' ;;
        dnf:rpmbuild) printf 'rpm-build' ;;
        apt-get:rpmbuild) printf 'rpm' ;;
        *:dpkg-deb) printf 'dpkg' ;;
        apt-get:xz) printf 'xz-utils' ;;
        apt-get:ssh-keygen) printf 'openssh-client' ;;
        *:ssh-keygen) printf 'openssh' ;;
        *:readelf) printf 'binutils' ;;
        dnf:shellcheck | zypper:shellcheck) printf 'ShellCheck' ;;
        zypper:codespell) printf 'python3-codespell' ;;
        apt-get:/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf) printf 'fonts-dejavu-core' ;;
        *:/usr/share/keyrings/debian-archive-keyring.gpg) printf 'debian-archive-keyring' ;;
        zypper:/usr/lib/cni/host-device) printf 'cni-plugins' ;;
        *:/usr/lib/cni/host-device) printf 'containernetworking-plugins' ;;
        *) printf '%s' "$2" ;;
    esac
}

# lacks PROGRAM
lacks() {
    case $1 in
        libc.a) [[ $(cc -print-file-name=libc.a 2>/dev/null) != /* ]] ;;
        /*) [[ ! -e $1 ]] ;;
        *) ! has "$1" ;;
    esac
}

# lacking PROGRAM...: those that are not here.
lacking() {
    local program
    for program in "$@"; do
        ! lacks "$program" || printf '%s\n' "$program"
    done
}

# install_packages PROGRAM...: tries to have those that are not here, and says what it does. Needs no systemd, asks
# nothing. Who is not root is told what root would do.
install_packages() {
    local -a missing wanted install refresh=(true)
    local manager='' program output
    mapfile -t missing < <(lacking "$@")
    ((${#missing[@]})) || return 0
    for program in apt-get dnf zypper; do
        has "$program" && manager=$program && break
    done
    case $manager in
        apt-get)
            refresh=(apt-get -qq -o DPkg::Lock::Timeout=120 update)
            install=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install -y
                --no-install-recommends)
            ;;
        dnf) install=(dnf -q -y install --setopt=install_weak_deps=False) ;;
        zypper) install=(zypper --quiet --non-interactive install --no-recommends) ;;
        *)
            tell "${missing[*]}: not here, and no apt-get, dnf or zypper that could install it"
            return
            ;;
    esac
    mapfile -t wanted < <(for program in "${missing[@]}"; do
        printf '%s\n' "$(packages "$manager" "$program")"
    done | sort -u)
    if ((EUID)); then
        tell "${missing[*]}: not here; as root: ${manager} install -y ${wanted[*]}"
        return
    fi
    tell "installing ${wanted[*]} ($manager)"
    output=$({ "${refresh[@]}" && "${install[@]}" "${wanted[@]}"; } </dev/null 2>&1) || tail -n 5 <<<"$output" >&2
}

# needs PROGRAM...: has them, or ends with status 3.
needs() {
    install_packages "$@"
    local -a missing
    mapfile -t missing < <(lacking "$@")
    ((${#missing[@]} == 0)) || die "without ${missing[*]} this cannot be done" 3
}

# Requires the Rust of Cargo.toml or a newer one, or ends with status 3 and the command that installs it. It is never
# installed unasked: it takes a gigabyte.
needs_rust() {
    local required installed
    required=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    [[ ! $(lacking cargo rustc) ]] || die "no Rust here, and $required or newer is needed.
$(rust_advice "$required")" 3
    installed=$(rustc --version | sed 's/^rustc \([0-9.]*\).*/\1/') || die "rustc does not run: see above" 3
    is_at_least "$required" "$installed" || die "Rust $installed is too old, $required is needed.
$(rust_advice "$required")" 3
}

# is_at_least VERSION VERSION: the second one is as new as the first.
is_at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

# rust_advice VERSION: the distribution's package if it is new enough, else rustup.
rust_advice() {
    local required=$1 package='' packaged=''
    if has apt-get; then
        package='apt-get update && apt-get install -y cargo'
        packaged=$(packaged_rust)
    elif has dnf; then
        package='dnf install -y cargo'
    elif has zypper; then
        package='zypper install -y cargo'
    fi
    if [[ $packaged ]] && ! is_at_least "$required" "$packaged"; then
        printf 'The package of this distribution is %s. ' "$packaged"
        package=''
    fi
    if [[ $package ]]; then
        printf 'As root:\n    %s\n' "$package"
        [[ $packaged ]] || printf 'If that is older than %s, rustup has a newer one:\n' "$required"
        [[ ! $packaged ]] || printf 'Or, for this user alone:\n'
    else
        printf 'rustup has a newer one:\n'
    fi
    if has rustup; then
        printf '    rustup default stable && rustup update stable\n'
    else
        printf "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal\n"
    fi
    printf 'Executables that were built elsewhere need no Rust: RAIL_CNI_FROM=FOLDER or URL (scripts/build --help)'
}

# packaged_rust: apt's version of Rust, by its lists or else by the release of Debian; nothing if unknown.
packaged_rust() {
    local version='' os=/etc/os-release
    ! has apt-cache || version=$(apt-cache policy rustc 2>/dev/null |
        sed -nE 's/^ *Candidate: ([0-9]+:)?([0-9]+(\.[0-9]+)*).*/\2/p')
    if [[ ! $version ]] && grep -qx 'ID=debian' "$os" 2>/dev/null; then
        case $(sed -nE 's/^VERSION_ID="?([0-9]+)"?$/\1/p' "$os") in
            11) version=1.48 ;;
            12) version=1.63 ;;
            13) version=1.85 ;;
        esac
    fi
    printf '%s' "$version"
}

# with_progress cargo build OPTION...: replaces cargo's output by one line that counts the compiled units, rewritten
# every second on a terminal and printed every 30 seconds elsewhere. Errors and warnings are printed as they are.
with_progress() {
    local -x CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=120 CARGO_TERM_COLOR=never
    # The pipe carries standard error; standard output bypasses it.
    { set -o pipefail && "$@" 2>&1 >&3 3>&- | show_progress >&2; } 3>&1
}

# Reads the output of cargo, which ends its progress bar with a carriage return.
show_progress() {
    local interval=30 next_line pending='' counter='' piece status
    local bar='\] +([0-9]+)/([0-9]+)(: ([^,( ]*))?'
    [[ ! -t 1 ]] || interval=1
    SECONDS=0 next_line=$interval
    while true; do
        status=0
        IFS= read -r -t 1 -d $'\r' piece || status=$?
        pending+=$piece
        if ((status <= 128)); then # more is a second without output
            [[ ! $pending =~ $bar ]] || counter="${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}${BASH_REMATCH[4]:+, ${BASH_REMATCH[4]}}"
            print_messages "$pending"
            pending=''
        fi
        ((status == 0 || status > 128)) || break
        if ((SECONDS >= next_line)); then
            print_progress "compiling: ${counter:-fetching crates}, $((SECONDS / 60)) min $((SECONDS % 60)) s"
            next_line=$((SECONDS + interval))
        fi
    done
    print_progress ''
}

# print_progress LINE: cut to 79 columns in place of the last one on a terminal. An empty one takes it away.
print_progress() {
    if [[ -t 1 ]]; then
        printf '\r\e[K%s' "${1:0:79}"
    elif [[ $1 ]]; then
        printf '%s\n' "$1"
    fi
}

# print_messages TEXT: the lines of cargo's output that are not its report of progress.
print_messages() {
    local line
    while IFS= read -r line; do
        [[ ! $line =~ ^\ *((Building|Compiling|Downloaded|Downloading|Fetch|Finished|Updating)\ |$) ]] || continue
        print_progress ''
        printf '%s\n' "$line"
    done <<<"$1"
}

# static_flags: of a Rust executable without libraries, into $flags. Where this machine keeps the sources is nobody's business,
# and would make other bytes.
static_flags() {
    flags=(-C target-feature=+crt-static "--remap-path-prefix=$root=." \
        "--remap-path-prefix=${CARGO_HOME:-${HOME:-/root}/.cargo}=cargo")
}

# for_aarch64: what cargo needs to build for arm64 on an x86-64 machine, or ends with status 3. Sets $triple.
for_aarch64() {
    needs aarch64-linux-gnu-gcc /usr/aarch64-linux-gnu/lib/libc.a
    triple='aarch64-unknown-linux-gnu'
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    [[ -d $(rustc --print target-libdir --target "$triple") ]] || RUSTC=$("$root/scripts/oldest-rust" --arm64) || exit
    export RUSTC=${RUSTC:-rustc}
}

tell() { printf '%s: %s\n' "${0##*/}" "$1" >&2; }

# The folder of fetched tools.
cache_dir() { printf '%s/rail-cni' "${XDG_CACHE_HOME:-${HOME:-/root}/.cache}"; }

# has_executables FOLDER: all that is installed is there.
has_executables() {
    local name
    for name in "${executables[@]}"; do
        [[ -f $1/$name && -x $1/$name ]] || return
    done
}

# Runs "$0" again with these arguments in network and mount namespaces of its own (and in a user namespace
# unless we are root), so that nothing of the host is touched. Does not return. RAIL_SANDBOX marks the inside.
enter_sandbox() {
    local -a how=(-nm)
    ((EUID == 0)) || how=(-Urnm)
    unshare "${how[@]}" true 2>/dev/null ||
        die "cannot make namespaces: needs root, or user namespaces for everyone" 3
    RAIL_SANDBOX=$EUID exec unshare "${how[@]}" --propagation private "$BASH" "$0" "$@"
}

# Inside: a /run of our own (`ip netns`), a /dev/shm of our own (run folders: below a /run that process 1 does not
# see the plugins refuse them), the sysfs of this network namespace, loopback.
furnish_sandbox() {
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p /run/netns
    mount -t tmpfs -o mode=755 tmpfs /dev/shm
    mount -t sysfs sysfs /sys 2>/dev/null || true # a container may forbid it
    ip link set lo up
}

# `now` sets $now to microseconds since some epoch, without a child process.
now() { now=${EPOCHREALTIME/[.,]/}; }

# milliseconds MICROSECONDS: with one decimal.
milliseconds() { printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100)); }
