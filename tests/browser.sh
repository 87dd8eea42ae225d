#!/usr/bin/env bash
# The pages of `railctl plan --to html` and `railctl status --html` in a real browser, Chromium without a window.
#
# usage: tests/browser.sh [CASE...]
#
# Uses the executables that scripts/build left. The last line is `N passed, N failed, N skipped`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

cases=(the_first_links_are_listed an_address_is_found_with_its_link a_word_in_quotes_is_a_whole_word
    a_plan_of_8192_nodes_is_searched names_are_shown_as_text without_a_script_the_page_says_so
    the_page_of_a_node_needs_no_script)
passed=0 failed=0

main() {
    case ${1:-} in
        -h | --help) usage && exit ;;
    esac
    needs chromium awk
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    plan conf/fabric.yaml >plan.html
    sed 's/^sus: .*/sus: 64/; s/^hostsPerSU: .*/hostsPerSU: 128/' "$root/conf/fabric.yaml" >large.yaml
    plan "$work/large.yaml" >large.html
    (($#)) || set -- "${cases[@]}"
    local case status
    for case in "$@"; do
        set +e
        (set -e && "$case") >"$work/output" 2>&1
        status=$?
        set -e
        if ((status == 0)); then
            passed=$((passed + 1)) && printf 'ok   %s\n' "$case"
        else
            failed=$((failed + 1)) && printf 'FAIL %s\n' "$case"
            cut -c 1-2000 "$work/output" | sed 's/^/     /'
        fi
    done
    printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
    exit $((failed > 0))
}

plan() { (cd "$root" && "$target/static/railctl" plan "$1" --to html 2>/dev/null); }

# browser OPTION... URL. It opens files of ours only, and its own sandbox does not start everywhere.
browser() {
    timeout 120 chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" \
        "$@" 2>/dev/null
}

# dom PAGE [SEARCH]: the page as it is when its script has run.
dom() { browser --dump-dom "file://$work/$1${2:+#find=$2}"; }

# rows FILE: a line for each row of the list, with its cells.
rows() {
    grep -o '<tbody id="rows">.*' "$1" | sed 's/<\/tbody>.*//; s/<\/tr>/\n/g' | sed 's/<[^>]*>/ /g' | grep '[^ ]' || true
}

lacks_text() {
    if grep -qF -- "$2" "$1"; then
        printf '%s has %s\n' "$1" "$2" && return 1
    fi
}

has_text() { grep -qF -- "$2" "$1" || { printf 'no %s in:\n' "$2" && cat "$1" && return 1; }; }

the_first_links_are_listed() {
    dom plan.html >seen
    (($(rows seen | wc -l) == 100))
    has_text seen '100 of 512 links are shown'
}

an_address_is_found_with_its_link() {
    dom plan.html 172.16.1.61 >seen
    rows seen >listed
    (($(wc -l <listed) == 1))
    local text
    for text in worker-gpu-62 su1 rail-0 eth_r0 172.16.1.60/31 leaf-su02-r1 swp16s0 172.16.1.61 9216; do
        has_text listed "$text"
    done
    has_text seen '1 of 1 links are shown, 512 are in the plan'
    # The whole name first, then those that begin like it.
    dom plan.html worker-gpu-6 >seen
    rows seen | awk '{ print $1 }' | uniq >names
    [[ $(paste -sd' ' names) == 'worker-gpu-6 worker-gpu-60 worker-gpu-61 worker-gpu-62 worker-gpu-63' ]]
}

a_word_in_quotes_is_a_whole_word() {
    dom plan.html '%22worker-gpu-6%22' >seen
    has_text seen '8 of 8 links are shown'
    dom plan.html '%22worker-gpu%22' >seen
    has_text seen '0 of 0 links are shown'
}

a_plan_of_8192_nodes_is_searched() {
    dom large.html 'leaf-su64-r8%20worker-gpu-8191' >seen
    has_text seen '1 of 1 links are shown, 65,536 are in the plan'
    (($(grep -o '<svg' seen | wc -l) == 64))
}

# No plan lets such a name in: the page is changed.
names_are_shown_as_text() {
    sed 's/"worker-gpu-62"/"\\u003cimg src=x onerror=document.title=666\\u003e"/' plan.html >hostile.html
    has_text hostile.html onerror
    dom hostile.html 172.16.1.61 >seen
    has_text seen '<span>&lt;img src=x onerror=document.title=666&gt;</span>'
    has_text seen '<title>Plan of the fabric</title>'
    lacks_text seen '<img'
}

without_a_script_the_page_says_so() {
    sed 's/script-src .unsafe-inline.; //' plan.html >still.html
    lacks_text still.html script-src
    dom still.html >seen
    [[ ! $(rows seen) ]]
    has_text seen '<noscript>'
    (($(grep -o '<svg' seen | wc -l) == 2))
}

the_page_of_a_node_needs_no_script() {
    status_page >status.html
    lacks_text status.html '<script'
    dom status.html >seen
    has_text seen '<h1>Rails of node worker-gpu-0</h1>'
}

# This machine as a node, whatever it has.
status_page() {
    printf '{"nodeName": "worker-gpu-0", "runDir": "%s/state", "storeDir": "%s/store"}\n' "$work" "$work" >node.json
    RAIL_CNI_NODE_CONFIG=$work/node.json "$target/static/railctl" status --html || (($? == 1))
}

main "$@"
