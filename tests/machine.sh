#!/usr/bin/env bash
# scripts/lab with a double of QEMU: how SCRIPT is run, what is waited for, and what is said if nothing starts.
#
# usage: tests/machine.sh [CASE...]
#
# Example: tests/machine.sh a_file_is_run_by_its_first_line
#
# Boots nothing and downloads nothing: tests/lab has the tests of the real machine. The last line is
# `N passed, N failed, N skipped`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

cases=(a_file_is_run_by_its_first_line the_status_comes_back the_last_words_are_the_guests a_silent_guest_shows_qemus_words
    an_early_end_shows_the_last_words patience_multiplies_the_timeout wrong_arguments_are_refused)
passed=0 failed=0

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
    esac
    [[ $(uname -m) == x86_64 ]] || { printf '0 passed, 0 failed, 0 skipped\n' && exit; }
    needs jq ip ping
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    make_cache
    make_qemu
    cd "$work"
    (($#)) || set -- "${cases[@]}"
    local name status
    for name in "$@"; do
        set +e
        (set -e && "$name") >"$work/output" 2>&1
        status=$?
        set -e
        if ((status == 0)); then
            passed=$((passed + 1)) && printf 'ok   %s\n' "$name"
        else
            failed=$((failed + 1)) && printf 'FAIL %s\n' "$name"
            sed 's/^/     /' "$work/output"
        fi
    done
    printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
    exit $((failed > 0))
}

# As scripts/lab.d/fetch leaves it. KVM counts as tried.
make_cache() {
    local lab=$work/cache/rail-cni/lab
    mkdir -p "$lab/linux/modules/1.0" "$work/bin"
    printf '1.0\n' >"$lab/linux/release"
    printf 'kernel\n' >"$lab/linux/vmlinuz"
    printf '#!/bin/sh\ncat >/dev/null\n' >"$lab/busybox"
    chmod 755 "$lab/busybox"
    cat /proc/sys/kernel/random/boot_id >"$lab/kvm-does-not-work"
}

# The double has the devices that scripts/lab asks for. As the machine, it does what $GUEST says.
make_qemu() {
    cat >"$work/bin/qemu-system-x86_64" <<'END'
#!/usr/bin/env bash
if [[ $* == '-device help' ]]; then
    printf 'name "igb"\nname "virtio-9p-pci"\n'
    exit
fi
path_of() { sed -n "s/.*id=$1,path=\([^,]*\).*/\1/p" <<<"$arguments"; }
arguments=$(printf '%s\n' "$@")
share=$(path_of share) console=$(path_of console) out=$(path_of out) err=$(path_of err)
echo 'qemu: warning: TCG does not support everything' >&2
case $GUEST in
    panics) printf '\e[0m[    1.2] \e[31mKernel panic - not syncing: VFS\e[0m\r\n\r\n' >"$console" ;;
    silent) echo 'qemu: cannot set up guest memory' >&2 ;;
    *)
        source "$share/job"
        : >"$share/started"
        ;;&
    ends) echo 'lab: 0 of 8 NICs came up' >"$console" ;;
    hangs) exec sleep 60 ;;
    runs)
        # shellcheck disable=SC2154
        (cd "$folder" && "${command[@]}") </dev/null >"$out" 2>"$err"
        echo $? >"$share/status"
        ;;
esac
END
    chmod 755 "$work/bin/qemu-system-x86_64"
}

# lab STATUS GUEST ARGUMENT...
lab() {
    local expected=$1 guest=$2 status=0
    shift 2
    PATH=$work/bin:$PATH XDG_CACHE_HOME=$work/cache GUEST=$guest timeout 60 "$root/scripts/lab" "$@" >"$work/said" 2>&1 ||
        status=$?
    ((status == expected)) || { printf 'status %d, not %d:\n' "$status" "$expected" && cat "$work/said" && return 1; }
}

says() { grep -qF -- "$1" "$work/said" || { printf 'no %s in:\n' "$1" && cat "$work/said" && return 1; }; }
says_not() { if grep -F -- "$1" "$work/said"; then return 1; fi; }

# shellcheck disable=SC2016
a_file_is_run_by_its_first_line() {
    cat >plain <<<'echo "$BASH_VERSION|$#|$1|$0"'
    lab 0 runs plain 'a b' c
    says "$BASH_VERSION|2|a b|./plain"
    printf '#!/bin/sed -n -f\nq\n' >with-argument
    lab 1 runs "$work/with-argument"
    says "sed: "
    cat >by-env <<<$'#! /usr/bin/env bash\necho "by env: $1"'
    lab 0 runs ./by-env x
    says 'by env: x'
    printf '#!/bin/cat' >no-newline
    lab 0 runs no-newline
    says '#!/bin/cat'
    # With the run bit, the kernel decides.
    printf '#!/bin/sh\necho run\n' >program && chmod 755 program
    lab 0 runs program
    says run
    lab 0 runs printf '%s-%s' 1 2
    says 1-2
}

the_status_comes_back() {
    printf 'exit 7\n' >plain
    lab 7 runs plain
}

the_last_words_are_the_guests() {
    lab 4 panics true
    says "lab: the guest's last words:"
    says '    [    1.2] Kernel panic - not syncing: VFS'
    says 'the machine did not start and ended'
    says_not 'qemu: warning'
    says_not Aborted
}

a_silent_guest_shows_qemus_words() {
    lab 4 silent true
    says 'lab: the guest printed nothing. QEMU:'
    says '    qemu: cannot set up guest memory'
}

an_early_end_shows_the_last_words() {
    lab 4 ends true
    says '    lab: 0 of 8 NICs came up'
    says 'the machine ended before the script'
    says_not 'qemu: warning'
}

patience_multiplies_the_timeout() {
    lab 124 hangs --timeout 1 --patience 2 true
    says 'stopped after 2 s'
    RAIL_LAB_PATIENCE=3 lab 124 hangs --timeout 1 true
    says 'stopped after 3 s'
}

wrong_arguments_are_refused() {
    local arguments
    for arguments in '--patience 0 true' '--patience 101 true' '--patience x true' --patience --boot '--what true' nothing ./nothing .; do
        # shellcheck disable=SC2086
        lab 2 runs $arguments
    done
    lab 2 runs nothing
    says 'nothing: no such program or file'
}

main "$@"
