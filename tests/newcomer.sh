#!/usr/bin/env bash
# A newcomer's first hour: in a minimal Debian, a clone, the commands of README.md, and docs/first-rail.md up to the
# cluster, as these pages print them.
#
# usage: tests/newcomer.sh [--only-page]
#
#   --only-page   only docs/first-rail.md, and what it needs
#
# The root is made by debootstrap, which is installed if it is missing, and kept as an archive in ~/.cache/rail-cni
# (or below $XDG_CACHE_HOME) with the packages that were downloaded. It has git, no Rust, no home but an empty /root, and
# the PATH of a login shell. It is entered by pivot_root in mount, process, IPC and UTS namespaces of its own; the
# network is the host's, and so are the mirror of Debian, proxies, certificates and crates that were downloaded.
# RAIL_DEBIAN_MIRROR names another mirror.
#
# Each command is printed with the time since the clone. If one ends because something is missing and prints the command
# that installs it, this is typed, and then the first one again. The clone is of HEAD: changes that are not committed are
# not in it. The last line is `N passed, N failed, N skipped`.
#
# Needs root. Exit status 3: the root cannot be made here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
source "$root/scripts/debian.sh"

suite=trixie
# Packages that a clone needs, beside the minimal Debian.
included=ca-certificates,git
place=/root/rail-cni
passed=0 failed=0

main() {
    local only_page=''
    case ${1:-} in
        -h | --help) usage && exit ;;
        --only-page) only_page=1 ;;
        '') ;;
        *) usage >&2 && exit 2 ;;
    esac
    ((EUID == 0)) || die "needs root, to make a root directory of its own" 3
    needs debootstrap tar git unshare "$debian_keyring"
    work=$(mktemp -d)
    trap 'end' EXIT
    cache=$(cache_dir)/newcomer
    mkdir -p "$cache/archives/partial"
    exec {lock}>"$cache/lock"
    flock "$lock"
    log=$cache/log
    archive=$cache/$suite-$(uname -m)-$included.tar.gz
    [[ -s $archive ]] || make_archive
    make_root
    flock -u "$lock"
    begin=$SECONDS
    git -c "safe.directory=$root" clone --quiet --no-hardlinks "$root" "$new$place" 2>"$work/why" ||
        die "cannot clone $root: $(tail -n 1 "$work/why")" 3
    local command
    if [[ ! $only_page ]]; then
        while IFS= read -r command; do
            try "$command"
        done < <(readme_commands)
    fi
    try 'scripts/walk-docs --here docs/first-rail.md'
    save_packages
    printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
    exit $((failed > 0))
}

end() {
    rm -rf "$work"
}

# make_archive: a minimal Debian. In mounts of its own, for debootstrap leaves some.
make_archive() {
    local mirror
    mirror=$(debian_mirror)
    [[ $mirror ]] || cannot "apt has no Debian mirror here: name one in RAIL_DEBIAN_MIRROR"
    tell "fetching a minimal Debian $suite"
    # shellcheck disable=SC2016
    unshare --mount --propagation private "$BASH" -euo pipefail -c '
        debootstrap --variant=minbase --include="$7" --keyring="$1" "$2" "$3" "$4" >"$5" 2>&1
        tar --one-file-system --exclude=./proc/* --exclude=./sys/* --exclude=./dev/* -C "$3" -czf "$6.new" .
        mv "$6.new" "$6"' bash "$debian_keyring" "$suite" "$work/debootstrap" "$mirror" "$log" "$archive" "$included" ||
        cannot "no Debian $suite from $mirror" log
    rm -rf "$work/debootstrap"
}

# make_root: $new, with what the host has to reach mirrors and registries.
make_root() {
    new=$work/root
    mkdir -p "$new"
    tar -C "$new" -xzf "$archive"
    cp -L /etc/resolv.conf /etc/hosts "$new/etc/"
    [[ ! -s /etc/ssl/certs/ca-certificates.crt ]] || cp -L /etc/ssl/certs/ca-certificates.crt "$new/etc/ssl/certs/"
    apt-config dump | grep -E '^Acquire::[a-zA-Z:]*(Proxy|CaInfo) ' >"$new/etc/apt/apt.conf.d/90host" || true
    cp "$cache"/archives/*.deb "$new/var/cache/apt/archives/" 2>/dev/null || true
    local crates=${CARGO_HOME:-${HOME:-/root}/.cargo}/registry/cache
    [[ ! -d $crates ]] || { mkdir -p "$new/root/.cargo/registry" && cp -r "$crates" "$new/root/.cargo/registry/"; }
}

# save_packages: for the next newcomer.
save_packages() { cp -u "$new"/var/cache/apt/archives/*.deb "$cache/archives/" 2>/dev/null || true; }

# readme_commands: those of the section "Try it" that need no virtual machine.
readme_commands() {
    awk '/^## Try it$/ { on = 1; next } /^## / { on = 0 }
        on && /^\$ / { sub(/^\$ /, ""); sub(/ +#.*/, ""); if ($0 != "scripts/lab") print }' "$root/README.md"
}

# try COMMAND: as a newcomer, who does what a program advises.
try() {
    local status=0 advice tries=0
    while ! type_in "$1"; do
        advice=$(sed -nE 's/^    ((apt-get|apt) .*)/\1/p' "$work/said" | head -n 1)
        if [[ ! $advice ]] || ((++tries > 3)); then
            status=1
            break
        fi
        type_in "$advice" || break
    done
    if ((status)); then failed=$((failed + 1)); else passed=$((passed + 1)); fi
}

# type_in COMMAND: in a login shell of the new root.
type_in() {
    local status=0 begun=$SECONDS
    printf '%s $ %s\n' "$(clock)" "$1"
    enter "$1" >"$work/said" 2>&1 </dev/null || status=$?
    if ((status)); then sed 's/^/      /' "$work/said"; else tail -n 25 "$work/said" | sed 's/^/      /'; fi
    printf '%s status %d, after %d s\n' "$(clock)" "$status" $((SECONDS - begun))
    return "$status"
}

# clock: minutes and seconds since the clone.
clock() { printf '%3d:%02d' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)); }

# enter COMMAND: no variable of ours but the host's proxies, and no HOME.
enter() {
    local -a proxies
    mapfile -t proxies < <(env | grep -iE '^(https?|no|all)_proxy=' || true)
    # shellcheck disable=SC2016
    env -i TERM=dumb "${proxies[@]}" PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        unshare --mount --pid --fork --ipc --uts --kill-child --propagation private bash -euo pipefail -c '
        mount --bind "$1" "$1"
        cd "$1"
        mount -t proc proc proc
        mount -t sysfs sysfs sys
        mount --rbind /dev dev
        mount -t tmpfs -o mode=1777 tmpfs dev/shm
        mount -t tmpfs -o mode=755 tmpfs run
        pivot_root . mnt
        umount -l mnt
        cd "$2"
        exec bash --login -c "$3"' bash "$new" "$place" "$1"
}

main "$@"
