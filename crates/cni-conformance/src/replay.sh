# Does what was done again, alone, in namespaces of its own; what it leaves ends with them.
#
# usage: [PLUGIN=EXECUTABLE] [CNI_PATH=DIRECTORIES] bash THIS_FILE      as root, or as a user who may create user namespaces
# exit status: 0 it holds, 1 it does not, 2 it cannot be tried here
set -u
if [ "${1:-}" != inside ]; then
    for tool in ip jq unshare timeout; do
        command -v "$tool" >/dev/null || { echo "$tool is not installed" >&2 && exit 2; }
    done
    spaces=(unshare --mount --net --pid --fork --kill-child --mount-proc)
    [ "$(id -u)" = 0 ] || spaces+=(--map-root-user)
    "${spaces[@]}" true || { echo "cannot make namespaces" >&2 && exit 2; }
    exec "${spaces[@]}" bash "$0" inside
fi
for directory in "${hidden[@]}"; do mount -t tmpfs -o mode=755,size=8m tmpfs "$directory" || exit 2; done
mkdir -p /run/netns /var/lib/cni /dev/shm/conformance/bin /dev/shm/replay
T=/dev/shm/replay
mount -t tmpfs tmpfs "$T" && ip link set lo up || exit 2
mount -t sysfs sysfs /sys 2>/dev/null

# run ID COMMAND...: a call of the plugin. lost ID COMMAND...: nobody reads its stdout.
run() {
    local id=$1 err=$T/$1.err
    shift
    [ -z "${mute:-}" ] || err=/dev/null
    timeout -k 1 "$limit" "$@" >"$T/$id.out" 2>"$err"
    ended "$id" $?
}
lost() {
    local id=$1
    shift
    exec 9> >(:)
    sleep 0.3
    : >"$T/$id.out"
    timeout -k 1 "$limit" "$@" >&9 2>"$T/$id.err"
    ended "$id" $?
    exec 9>&-
}
ended() {
    echo "$2" >"$T/$1.status"
    [ -e "$T/$1.err" ] || : >"$T/$1.err"
    printf 'call %s: exit status %s\n' "$1" "$2"
    head -c 2000 "$T/$1.out" | sed -e 's/^/  stdout: /' -e '$a\'
    head -c 2000 "$T/$1.err" | sed -e 's/^/  stderr: /' -e '$a\'
}

# Conditions, of the last call unless they name another.
succeeded() { [ "$(cat "$T/${1:-$last}.status")" = 0 ]; }
failed() { ! succeeded "$@"; }
returned() {
    for id in "${group[@]}"; do case $(cat "$T/$id.status") in 124 | 137) return 1 ;; esac; done
}
answer() { jq -e "$1" "$T/$last.out" >/dev/null 2>&1; }
told() { jq -r "$1" "$T/$last.out" 2>/dev/null; }
says() { grep -qF -- "$1" "$T/$last.err"; }
is_object() { jq -es 'length == 1 and (.[0] | type) == "object"' "$T/$last.out" >/dev/null 2>&1; }
is_error() {
    jq -es 'length == 1 and (.[0] | type) == "object" and (.[0] | (.code | type) == "number" and .code >= 0 and (.msg | type) == "string"
        and ((has("details") | not) or (.details | type) == "string"))' "$T/$last.out" >/dev/null 2>&1
}
is_silent() { failed || [ ! -s "$T/$last.out" ]; }
is_short() { [ "$(stat -c %s "$T/$last.out")" -le 1048576 ]; }
has_code() { tr -d ' \n' <"$T/$last.out" | grep -q "\"code\":$1"; }
crashed() { [ "$(cat "$T/$last.status")" -ge 128 ] || grep -q goroutine "$T/$last.err"; }
is_misread() { grep -qi -e 'not found' -e 'no such file or directory' "$T/$last.out"; }
is_closed() { sleep 2 && ! ls -l /proc/[0-9]*/fd 2>/dev/null | grep -qF "$T/$last."; }
has_link() { ip -n "$1" link show dev "$2" >/dev/null 2>&1; }
# A link may point to nothing.
has_file() { [ -e "$1" ] || [ -L "$1" ]; }
is_netns() { [ "$(stat -f -c %t "$1" 2>/dev/null)" = 6e736673 ]; }
all_succeeded() { for id in "${group[@]}"; do succeeded "$id" || return; done; }
all_differ() {
    local id
    [ "$(for id in "${group[@]}"; do jq -c "$1" "$T/$id.out"; done | sort | uniq -d)" = "" ]
}

# look SPACE ID: what the host has, or the pod SPACE. Two looks in succession see the same.
look() {
    local tries=0
    looked "$1" "$2"
    while looked "$1" again && ! diff -rq "$T/$2.look" "$T/again.look" >/dev/null && [ $((tries += 1)) -lt 50 ]; do
        rm -rf "$T/$2.look" && cp -r "$T/again.look" "$T/$2.look"
    done
}
looked() {
    local space=() to=$T/$2.look hides=stays
    [ "$1" = host ] || space=(-n "$1") hides=false
    rm -rf "$to" && mkdir -p "$to"
    ip "${space[@]}" -json -details addr show | jq -rS '.[] | .ifname + "\t" + ({mtu, mac: .address, altnames: ((.altnames // []) | sort),
        up: (.flags | index("UP") != null), addresses: [.addr_info[]? | select(.scope != "link" or .family == "inet") |
        "\(.local)/\(.prefixlen)"], kind: .linkinfo.info_kind, promisc: .promiscuity, allmulti: .allmulti} | tojson)' |
        kept "$hides" | sort >"$to/links"
    {
        ip "${space[@]}" -json -details route show table all
        ip "${space[@]}" -6 -json -details route show table all proto static
        ip "${space[@]}" -6 -json -details route show table all proto boot
    } | jq -r '.[] | select((.dst | contains(":") | not) or .protocol != "kernel") | (.dev // "-") + "\t" +
        ([.dst, .gateway, .table, .type, .metric, .prefsrc] | map(tostring) | join(" "))' | kept "$hides" | sort >"$to/routes"
    {
        ip "${space[@]}" rule show
        ip "${space[@]}" -6 rule show
    } >"$to/rules"
    [ "$1" = host ] || return 0
    find /run /var/lib/cni /dev/shm/conformance ! -type d 2>/dev/null | sort | while IFS= read -r path; do
        ours "$path" || stays "$path" || printf '%s\n' "$path"
    done >"$to/files"
    [ "$sees_firewall" = 0 ] || nft -s list ruleset | awk '{ gsub(/^[ \t]+|[ \t]+$/, "") } $0 == "" { next } $0 == "}" { d--; next }
        { name = $0; sub(/ \{$/, "", name); line = ""; for (i = 1; i <= d; i++) line = line w[i] ": "; print line name
        if (name != $0) w[++d] = name }' | while IFS= read -r rule; do stays "$rule" || printf '%s\n' "$rule"; done | sort >"$to/firewall"
}
# kept COMMAND: the lines whose first word COMMAND does not know.
kept() {
    local line
    while IFS= read -r line; do "$1" "${line%%$'\t'*}" || printf '%s\n' "$line"; done
}
# same SPACE ID: is it as it was at that look, within two seconds?
same() {
    local tries=0
    until looked "$1" now && diff -r "$T/$2.look" "$T/now.look" >"$T/diff"; do
        [ $((tries += 1)) -lt 20 ] || { cat "$T/diff" && return 1; }
        sleep 0.1
    done
}
# same_part PART ID: that part of the host. same_link SPACE NAME ID: that link.
same_part() { looked host now && diff "$T/$2.look/$1" "$T/now.look/$1"; }
same_link() {
    looked "$1" now
    local then now
    then=$(grep "^$2"$'\t' "$T/$3.look/links" | cut -f 2- | jq -c 'del(.addresses)')
    now=$(grep "^$2"$'\t' "$T/now.look/links" | cut -f 2- | jq -c 'del(.addresses)')
    [ "$then" = "$now" ]
}

