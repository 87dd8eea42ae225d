# shellcheck shell=bash disable=SC2034,SC2154
# A Spectrum-X fabric in namespaces, for scripts/demo: sourced after lib.sh, not a program. tests/fabric has its own, in
# Rust, which can also break it.
#
#   node-0 node-1      SU 0: a port of each node on each of leaf-su0-r0 ... leaf-su0-r7
#   node-2 node-3      SU 1: likewise on leaf-su1-r0 ... leaf-su1-r7
#   spine-0 spine-1    an uplink from every leaf to every spine; leaves spread flows over both
#
# Every namespace is a machine, and its kernel the router. Cables are laid here; all addresses between nodes and leaves
# come from a plan of rail-ipam, which writes each node's store and each leaf's commands. A leaf has the addresses of
# its ports alone, the rest it sends to the spines.
#
# Needs $dir, a folder of the sandbox, and $bin with the executables.

rails=(0 1 2 3 4 5 6 7)
sus=(0 1)
nodes=(0 1 2 3)
spines=(0 1)
declare -A planned=() # "NODE RAIL" -> the rail's address, "NODE RAIL leaf" -> the leaf's

# --- who is where ----------------------------------------------------------------------------------------------

su_of() { printf '%d' $(($1 / 2)); }
device() { printf 'ens%df0v0' $(($1 + 1)); }
leaf_of() { printf 'leaf-su%d-r%d' $(($1 / 2)) "$2"; }
port_of() { printf 'swp%d' $(($1 % 2 + 1)); }

# Of the network team: what the leaf of an SU and a rail tells the spines, what it expects behind them, and
# the addresses of an uplink: uplink SPINE SU RAIL SIDE, where side 0 is the spine.
leaf_network() { printf '172.%d.%d.0/24' $((16 | $2 << 1)) "$1"; }
aggregate=172.16.0.0/12
uplink() { printf '10.255.%d.%d' "$1" $((($2 * 8 + $3) << 1 | $4)); }

# --- machines and cables ---------------------------------------------------------------------------------------

build_fabric() {
    local s r n k leaves=()
    for s in "${sus[@]}"; do
        for r in "${rails[@]}"; do leaves+=("leaf-su$s-r$r"); done
    done
    printf 'netns add %s\n' "${spines[@]/#/spine-}" "${leaves[@]}" "${nodes[@]/#/node-}" "${nodes[@]/#/pod-}" | ip -batch -
    for k in "${spines[@]/#/spine-}" "${leaves[@]}"; do make_router "$k"; done
    {
        for s in "${sus[@]}"; do
            for r in "${rails[@]}"; do
                for k in "${spines[@]}"; do
                    printf 'link add su%s-r%s netns spine-%s mtu 9216 type veth peer name up%s netns leaf-su%s-r%s mtu 9216\n' \
                        "$s" "$r" "$k" "$k" "$s" "$r"
                done
            done
        done
        for n in "${nodes[@]}"; do
            for r in "${rails[@]}"; do
                printf 'link add %s netns node-%d address 02:00:00:%02x:%02x:01 mtu 1500 type veth peer name %s netns %s\n' \
                    "$(device "$r")" "$n" "$n" "$r" "$(port_of "$n")" "$(leaf_of "$n" "$r")"
            done
        done
    } | ip -batch -
    for k in "${spines[@]}"; do set_up_spine "$k" | ip -n "spine-$k" -batch -; done
    for s in "${sus[@]}"; do
        for r in "${rails[@]}"; do set_up_uplinks "$s" "$r" | ip -n "leaf-su$s-r$r" -batch -; done
    done
}

# As Cumulus does it: a port answers ARP for its own address alone.
make_router() {
    # shellcheck disable=SC2016
    inside "$1" sh -c 'cd /proc/sys/net
        for all in all default; do
            echo 0 >ipv4/conf/$all/rp_filter
            echo 1 >ipv4/conf/$all/arp_ignore
        done
        echo 1 >ipv4/ip_forward
        echo 1 >ipv4/fib_multipath_hash_policy'
}

set_up_spine() {
    local s r
    for s in "${sus[@]}"; do
        for r in "${rails[@]}"; do
            printf 'link set su%s-r%s up\n' "$s" "$r"
            printf 'address add %s/31 dev su%s-r%s\n' "$(uplink "$1" "$s" "$r" 0)" "$s" "$r"
            printf 'route add %s via %s\n' "$(leaf_network "$s" "$r")" "$(uplink "$1" "$s" "$r" 1)"
        done
    done
}

# Addresses of the leaf's own network that are on none of its ports lead nowhere.
set_up_uplinks() {
    local k hops=''
    for k in "${spines[@]}"; do
        printf 'link set up%s up\n' "$k"
        printf 'address add %s/31 dev up%s\n' "$(uplink "$k" "$1" "$2" 1)" "$k"
        hops+=" nexthop via $(uplink "$k" "$1" "$2" 0) dev up$k"
    done
    printf 'route add %s%s\n' "$aggregate" "$hops"
    printf 'route add blackhole %s metric 9999\n' "$(leaf_network "$1" "$2")"
}

# inside NAMESPACE COMMAND...: in the network namespace, and in our mounts.
inside() { nsenter --net="/run/netns/$1" -- "${@:2}"; }

# --- from the plan to nodes and leaves -------------------------------------------------------------------------

# $dir/fabric.yaml, and $planned from it.
write_plan() {
    cat >"$dir/fabric.yaml" <<END
fabric: spectrum-x
family: ipv4
rails: 8
sus: 2
hostsPerSU: 2
nodeName: node-{node}
hostInterface: ens{rail+1}f0v0
leafName: leaf-su{su}-r{rail}
leafPort: swp{host+1}
mtu: 9216
clusterNetworks: [10.96.0.0/12]
END
    "$bin/railctl" plan "$dir/fabric.yaml" --to csv >"$dir/plan.csv"
    read_plan
}
read_plan() {
    local node rail address gateway
    while IFS=, read -r node rail _ _ _ address gateway _; do
        [[ $node != node ]] || continue
        planned["${node#node-} $rail"]=$address
        planned["${node#node-} $rail leaf"]=$gateway
    done <"$dir/plan.csv"
}

# Every node has its own node.json, store and run folder, as it were its own machine.
set_up_nodes() {
    local n
    for n in "${nodes[@]}"; do
        mkdir -p "$dir/node-$n"
        printf '{"nodeName": "node-%d", "runDir": "%s/run", "storeDir": "%s/store", "policy": {"kinds": ["veth"]}}\n' \
            "$n" "$dir/node-$n" "$dir/node-$n" >"$dir/node-$n/node.json"
        RAIL_CNI_NODE_CONFIG=$dir/node-$n/node.json "$bin/railctl" plan "$dir/fabric.yaml" --to store >"$dir/node-$n/plan"
        state_of "$n" >"$dir/node-$n/before"
        ip -n "pod-$n" link set lo up
    done
}

# The leaves' commands are NVIDIA's, for Cumulus; here they are the kernel's.
set_up_leaves() {
    local file
    "$bin/railctl" plan "$dir/fabric.yaml" --to nvue --out "$dir/leaves" >"$dir/leaves.txt"
    for file in "$dir"/leaves/*.nvue; do
        awk '!/^nv set interface / { next }
            $5 == "link" && $6 == "mtu" { print "link set", $4, "mtu", $7, "up" }
            $5 == "ip" && $6 == "address" { print "address add", $7, "dev", $4 }' "$file" |
            ip -n "$(basename "$file" .nvue)" -batch -
    done
}

# --- the plugin ------------------------------------------------------------------------------------------------

# cni VERB NODE RAIL: rail-cni on the node, called as a runtime does, by a script that is in the node's namespace already.
# The answer is in $dir/node-N/out, what was logged in .../err.
cni() {
    local n=$2
    printf '{"cniVersion":"1.1.0","name":"rail-%d","type":"rail-cni","rail":%d,"mtu":9000,"device":"%s","ipam":{"type":"rail-ipam","pool":"rail-%d"}}' \
        "$3" "$3" "$(device "$3")" "$3" >"$dir/node-$n/conf"
    RAIL_CNI_NODE_CONFIG=$dir/node-$n/node.json \
        CNI_COMMAND=$1 CNI_CONTAINERID=pod-$n CNI_NETNS=/run/netns/pod-$n CNI_IFNAME=net$(($3 + 1)) CNI_PATH=$bin \
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-$n" \
        "$bin/rail-cni" <"$dir/node-$n/conf" >"$dir/node-$n/out" 2>"$dir/node-$n/err"
}

# The state that a DEL must restore: name, MTU, MAC, up or down.
state_of() {
    ip -n "node-$1" -o link show type veth |
        sed -E 's/^[0-9]+: ([^@:]+).*<([^>]*)>.* mtu ([0-9]+).*link\/ether ([0-9a-f:]+).*/\1 \3 \4 \2/' | sort
}
