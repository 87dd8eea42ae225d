#!/usr/bin/env bash
# scripts/demo: its exit status, its last screen, and the commands that it prints.
#
# usage: tests/demo.sh [CASE...]
#
# Example: tests/demo.sh an_unplugged_rail_fails
#
# Uses the executables that scripts/build left. The last line is `N passed, N failed, N skipped`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

cases=(every_ping_is_answered readme_shows_the_last_screen an_unplugged_rail_fails the_printed_commands_work a_terminal_gets_colours
    wrong_arguments_are_refused)
passed=0 failed=0 skipped=0 holder=''

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
    esac
    work=$(mktemp -d)
    trap 'end_holder; rm -rf "$work"' EXIT
    cd "$root"
    (($#)) || set -- "${cases[@]}"
    local name status
    for name in "$@"; do
        set +e
        (
            trap 'end_holder' EXIT
            set -e
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

# demo STATUS OPTION...: runs it, and compares its exit status. Its output is in $work/said.
demo() {
    local expected=$1 status=0
    shift
    scripts/demo --no-build "$@" >"$work/said" 2>&1 </dev/null || status=$?
    holder=$(sed -n 's/^ *end it *kill //p' "$work/said")
    ((status == expected)) || { printf 'status %d, not %d:\n' "$status" "$expected" && cat "$work/said" && return 1; }
}

end_holder() {
    [[ ! $holder ]] || kill "$holder"
    holder=''
}

says() { grep -qE -- "$1" "$work/said" || { printf 'no %s in:\n' "$1" && cat "$work/said" && return 1; }; }

# rows REGEX: how many rows of the picture match.
rows() { sed -n '/^== What happened/,$p' "$work/said" | grep -cE -- "^   pod-.*$1" || true; }

# No line has more than 80 columns, apart from a target folder elsewhere, and no line is coloured.
fits_a_terminal() {
    if grep -vF "$target" "$work/said" | grep -E '.{81}'; then return 1; fi
    if grep -n $'[\e\r]' "$work/said"; then return 1; fi
}

every_ping_is_answered() {
    demo 0
    (($(rows '( +ok){8} +64 of 64$') == 12))
    says '^   pinged .* 768 of 768 answered$'
    says '^   restored .* no lease, record, route or rule remains$'
    says '^   look around scripts/demo --keep$'
    fits_a_terminal
}

# Each line in turn, for any number of seconds; `...` stands for more lines.
readme_shows_the_last_screen() {
    demo 0
    local line
    awk '/^== What happened/ { inside = 1 } /^```/ { inside = 0 } inside' README.md | sed 's/, in .* s$//' >"$work/excerpt"
    (($(wc -l <"$work/excerpt") > 8))
    sed -n '/^== What happened/,$ { s/, in .* s$//; p }' "$work/said" >"$work/screen"
    while IFS= read -r line; do
        [[ $line =~ ^\ *\.\.\.$ ]] || grep -qxF -- "$line" "$work/screen" || { printf 'not printed: %s\n' "$line" && return 1; }
    done <"$work/excerpt"
}

# Rail 3 of pod-0 sends 24 of the pings, and is asked by 24.
an_unplugged_rail_fails() {
    demo 1 --unplug 0:3
    (($(rows 'pod-[1-3]( +ok){3}  0/8( +ok){4} +56 of 64$') == 3))
    (($(rows '-> pod-0( +7/8){8} +56 of 64$') == 3))
    (($(rows '( +ok){8} +64 of 64$') == 6))
    says '^   48 of 768 failed, all from or to rail 3 of pod-0 \(leaf-su0-r3 swp1\)$'
    says '^   restored .* no lease, record, route or rule remains$'
    fits_a_terminal
}

the_printed_commands_work() {
    demo 0 --keep
    local line count=0
    local -a enter
    read -ra enter < <(sed -n 's/^   look around *//p' "$work/said")
    sed -n '/^   and in there:/,/^   end it /s/^     //p' "$work/said" >"$work/commands"
    while IFS= read -r line; do
        timeout 30 "${enter[@]}" sh -c "$line" </dev/null >"$work/answer" 2>&1 || { cat "$work/answer" && return 1; }
        [[ -s $work/answer ]]
        count=$((count + 1))
    done <"$work/commands"
    ((count == 6))
    fits_a_terminal
    end_holder
}

# util-linux's script makes one.
a_terminal_gets_colours() {
    has script || { printf 'no script\n' && exit 77; }
    local coloured=$'\e[32m   ok\e[0m'
    TERM=xterm script -qec 'scripts/demo --no-build' /dev/null </dev/null >"$work/said"
    grep -qF "$coloured" "$work/said"
    NO_COLOR=1 TERM=xterm script -qec 'scripts/demo --no-build' /dev/null </dev/null >"$work/said"
    if grep -qE $'\e\\[[0-9;]*m' "$work/said"; then return 1; fi
}

wrong_arguments_are_refused() {
    local argument
    for argument in '--unplug' '--unplug 4:0' '--unplug 0:8' '--unplug x' '--what'; do
        # shellcheck disable=SC2086
        demo 2 $argument
    done
    CARGO_TARGET_DIR=$work/nothing demo 3
    says 'run scripts/demo without --no-build'
}

main "$@"
