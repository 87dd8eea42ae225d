# shellcheck shell=bash disable=SC2034
# Shared by the scripts here: `source "$(dirname "$0")/lib.sh"`. Not a program of its own.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
target=${CARGO_TARGET_DIR:-$root/target}
[[ $target == /* ]] || target=$root/$target
# Rust and Go where their installers put them: CI and sudo often start with a shorter PATH.
PATH=$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:/usr/local/go/bin:/usr/sbin:/sbin
export PATH

die() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit "${2:-1}"
}

# Prints the comment at the head of the script.
usage() { sed -n '2,/^[^#]/ { s/^# \{0,1\}//p }' "$0"; }

has() { command -v "$1" >/dev/null 2>&1; }

# Where fetched tools are kept.
cache_dir() { printf '%s/rail-cni' "${XDG_CACHE_HOME:-${HOME:-/root}/.cache}"; }

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
