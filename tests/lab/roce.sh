#!/usr/bin/env bash
# RDMA traffic of two pods with eight rails each: all pairs of rails, at once after ADD, in exclusive mode.
# Runs in the machine: scripts/lab --vfs 2 --rdma tests/lab/roce.sh
# lab: --rails 8 --vfs 2 --rdma --timeout 600
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0" && exit ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

all='0 1 2 3 4 5 6 7'
tools=$(sed -n 's/^lab=//p' /run/lab/job)/rdma

# Pod 1 has VF 0 of each PF and the /31 of the lab, pod 2 has VF 1 and a /31 of its own on the same leaf port.
address() { printf '172.%d.%d.0' $((16 + 2 * $2)) $(($1 - 1)); }

# Of all networks, besides those of a rail.
keys='"gid": "require"'

network() {
    conf "$2" "$(vf "$2" $(($1 - 1)))" "$keys" | jq -c --arg pool "pod$1-$2" '.ipam.pool = $pool'
}

furnish() {
    local rail store=/var/lib/rail-cni/store/lab-node
    rxe_on_vfs 8
    for rail in $all; do
        ip -n leaf addr add "172.$((16 + 2 * rail)).1.1/31" dev "leaf$rail"
        # Both pods are behind one port: no packet is to find a shorter way.
        in_pod leaf sysctl -qw "net.ipv4.conf.leaf$rail.send_redirects=0"
        mv "$store/rail-$rail.json" "$store/pod1-$rail.json"
        sed 's/\.0\.0\/31/.1.0\/31/; s/\.0\.1"/.1.1"/' "$store/pod1-$rail.json" >"$store/pod2-$rail.json"
    done
    in_pod leaf sysctl -qw net.ipv4.conf.all.send_redirects=0
    # The addresses and the DSCP of all RoCE packets that the leaf forwards.
    in_pod leaf nft -f - <<-'END'
	table ip roce {
	    set seen {
	        typeof ip saddr . ip daddr . ip dscp
	        flags dynamic
	        size 4096
	    }
	    chain forward {
	        type filter hook forward priority 0;
	        udp dport 4791 update @seen { ip saddr . ip daddr . ip dscp }
	    }
	}
	END
    modprobe rdma_ucm
    mkdir -p /etc/libibverbs.d # empty: which providers there are is in the environment
}

seen() {
    in_pod leaf nft -n -j list set ip roce seen | jq -r '.nftables[].set.elem[]?.concat | "\(.[0]) \(.[1]) \(.[2])"' | sort
}

# The host's RDMA devices: each with its netdev and its GIDs.
on_host() {
    local gid port entry
    rdma -j link show | jq -r '.[] | "\(.ifindex) \(.ifname) \(.netdev)"' | sort -n
    for gid in /sys/class/infiniband/*/ports/1/gids/*; do
        entry=$(<"$gid")
        [[ $entry != 0000:0000:0000:0000:0000:0000:0000:0000 ]] || continue
        port=${gid%/gids/*}
        printf '%s %s %s\n' "$gid" "$entry" "$(<"$port/gid_attrs/types/${gid##*/}") $(<"$port/gid_attrs/ndevs/${gid##*/}")"
    done
}

# on_all_rails ADD|DEL NUMBER: of pod NUMBER, at once.
on_all_rails() {
    local rail calls=()
    for rail in $all; do
        succeeds "$1" "pod$2" "net$((rail + 1))" "$(network "$2" "$rail")" &
        calls+=($!)
    done
    for rail in "${calls[@]}"; do
        wait "$rail" || fail "$1 of pod $2 failed"
    done
}

# Sets $device and $index, by rail: what `status` says of pod NUMBER.
look_up_gids() {
    local ifname name number
    device=() index=()
    while read -r ifname name number; do
        device[${ifname#net} - 1]=$name index[${ifname#net} - 1]=$number
    done < <("$bin/railctl" status --output json | jq -r --arg pod "pod$1" \
        '.attachments[] | select(.containerID == $pod) | .ifname as $ifname | .gids[] | "\($ifname) \(.device) \(.index)"')
    same "rails of pod $1 with a GID" 8 ${#device[@]}
}

# start NAME POD PROGRAM [ARGUMENT...]: a program of Debian with the libraries that were fetched with it, in the
# background; what it says goes to a file.
start() {
    local name=$1 pod=$2 program=$3 usr=$tools/usr
    shift 3
    IBV_DRIVERS=$usr/lib/x86_64-linux-gnu/libibverbs/librxe ip netns exec "$pod" "$tools/lib64/ld-linux-x86-64.so.2" \
        --library-path "$tools/lib/x86_64-linux-gnu:$usr/lib/x86_64-linux-gnu" "$usr/bin/$program" "$@" \
        >"$outputs/$name" 2>&1 &
    running[$!]=$name
}

# ended PID...: each with success.
ended() {
    local pid
    for pid; do
        wait "$pid" || fail "${running[$pid]}: $(tr '\n' ' ' <"$outputs/${running[$pid]}")"
        unset "running[$pid]"
    done
}

# listening NUMBER COMMAND: until COMMAND prints so many different lines. A program that has ended, or half a minute without
# another line, is the end of the case.
listening() {
    local count=$1 found last=0 tenths=0 pid
    while found=$("$2" | sort -u | wc -l) && ((found < count)); do
        for pid in "${!running[@]}"; do
            kill -0 "$pid" 2>/dev/null || ended "$pid"
        done
        ((found == last)) || tenths=0
        last=$found
        ((tenths++ < 300)) || fail "$found of $count listen"
        sleep 0.1
    done
}

by_tcp() { in_pod pod2 ss -Hltn | awk '{ print $4 }'; }
by_rdma_cm() { in_pod pod2 rdma -j res show cm_id | jq -r '.[] | select(.state == "LISTEN") | .pid'; }

# with_two_pods SERVERS CLIENTS: pod 2 has its rails and its servers; then pod 1 has its rails, and at once its clients,
# at the first try. After DEL the host is as it was.
with_two_pods() {
    local before
    local -a device index
    local -A running=()
    outputs=$(mktemp -d /run/roce.XXXXXX)
    before=$(on_host)
    in_pod leaf nft flush set ip roce seen
    pod pod1 && pod pod2
    on_all_rails ADD 2
    look_up_gids 2
    "$1"
    on_all_rails ADD 1
    look_up_gids 1
    "$2"
    on_all_rails DEL 1
    on_all_rails DEL 2
    same "RDMA devices and GIDs of the host" "$before" "$(on_host)"
    rm -r "$outputs"
}

# --- ib_write_bw by GID index ------------------------------------------------------------------------------------

# Few messages; and a machine that is busy is no reason to give up (-u: 1 s).
readonly short='-n 5 -s 4096 -F -u 18'

# The number of a pair is its DSCP and its server's port.
pair() { printf '%d' $((8 * $1 + $2)); }

all_pairs_write_by_gid_index_with_their_traffic_class() { with_two_pods serve_pairs write_pairs; }

serve_pairs() {
    local from to pair
    for from in $all; do
        for to in $all; do
            pair=$(pair "$from" "$to")
            # shellcheck disable=SC2086
            start "server-$from-$to" pod2 ib_write_bw $short -d "${device[to]}" -x "${index[to]}" \
                --tclass=$((4 * pair)) -p $((20000 + pair))
        done
    done
    listening 64 by_tcp
}

write_pairs() {
    local from to pair clients expected=''
    for from in $all; do
        clients=()
        for to in $all; do
            pair=$(pair "$from" "$to")
            # shellcheck disable=SC2086
            start "client-$from-$to" pod1 ib_write_bw $short -d "${device[from]}" -x "${index[from]}" \
                --tclass=$((4 * pair)) -p $((20000 + pair)) "$(address 2 "$to")"
            clients+=($!)
            expected+="$(address 1 "$from") $(address 2 "$to") $pair"$'\n'"$(address 2 "$to") $(address 1 "$from") $pair"$'\n'
        done
        ended "${clients[@]}"
    done
    ended "${!running[@]}"
    same "addresses and DSCP of the packets on the leaf" "$(sort <<<"${expected%$'\n'}")" "$(seen)"
}

# --- RDMA CM -----------------------------------------------------------------------------------------------------

all_pairs_connect_by_rdma_cm_with_the_tos_of_the_network() {
    local keys="$keys, \"rdmaQoS\": {\"tos\": 96, \"onMissing\": \"require\"}"
    with_two_pods serve_connections connect_pairs
}

serve_connections() {
    local to
    for to in $all; do
        start "server-$to" pod2 rping -s -P -a "$(address 2 "$to")"
    done
    listening 8 by_rdma_cm
}

connect_pairs() {
    local from to clients servers=("${!running[@]}")
    for from in $all; do
        clients=()
        for to in $all; do
            start "client-$from-$to" pod1 rping -c -V -C 3 -a "$(address 2 "$to")" -I "$(address 1 "$from")"
            clients+=($!)
        done
        ended "${clients[@]}"
    done
    # They do not end by themselves.
    kill "${servers[@]}"
    wait "${servers[@]}" || true
    same "pairs with packets of DSCP 24 on the leaf" 128 "$(seen | grep -c ' 24$')"
}

each_rail_sends_by_rdma_cm_with_its_tos() { with_two_pods serve_rails send_on_rails; }

serve_rails() {
    local rail
    for rail in $all; do
        start "server-$rail" pod2 ucmatose -b "$(address 2 "$rail")" -p $((20000 + rail))
    done
    listening 8 by_rdma_cm
}

send_on_rails() {
    local rail expected=''
    for rail in $all; do
        start "client-$rail" pod1 ucmatose -s "$(address 2 "$rail")" -b "$(address 1 "$rail")" -p $((20000 + rail)) \
            -t $((96 + 4 * rail))
        expected+="$(address 1 "$rail") $(address 2 "$rail") $((24 + rail))"$'\n'
    done
    ended "${!running[@]}"
    # The connection itself is made without it.
    same "addresses and DSCP of the packets to pod 2" "$(sort <<<"${expected%$'\n'}")" \
        "$(seen | grep -E '^172\.[0-9]+\.0\.0 .* [1-9][0-9]*$')"
}

furnish
run_cases all_pairs_write_by_gid_index_with_their_traffic_class \
    all_pairs_connect_by_rdma_cm_with_the_tos_of_the_network each_rail_sends_by_rdma_cm_with_its_tos
