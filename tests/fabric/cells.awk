# What became of every cell: awk -f cells.awk -v counted=FILE -v astray=FILE PLAN COUNTS ANSWERS
#
# PLAN       of `rail-ipam plan --to csv`
# COUNTS     NODE SET INTERFACE SOURCE DESTINATION, or NODE counter NAME PACKETS      as count.nft has it
# ANSWERS    LABEL KIND INTERFACE SOURCE DESTINATION ok HOPS    of the prober; or `failed REASON`
#
# Prints LABEL KIND ok HOPS OUT IN BACK-OUT BACK-IN good: the rails by which the question left and entered, and
# the answer. `good` is what source-based routing promises: every packet by the rail of its own address, one router
# between the same rails of an SU, else three. The files: how many packets there were; how many other packets,
# and pairs of addresses on another rail than that of the pod's own.
FILENAME == ARGV[1] {
    split($0, column, ",")
    rail_of[column[6]] = column[2]
    next
}
FILENAME == ARGV[2] && $2 == "counter" {
    if ($3 == "ours") all += $4
    else strays += $4
    next
}
FILENAME == ARGV[2] {
    rail = substr($3, 4) - 1
    own = $2 ~ /_out_/ ? $4 : $5
    if (rail_of[own] != rail) strays++
    set = substr($2, 1, length($2) - 2)
    step = $1 " " set " " $4 " " $5
    if (step in ways) rail = ways[step] "+" rail
    ways[step] = rail
    if (set == "questions_out") chosen[$1 " " $5] = $4
    next
}
function way(step) { return step in ways ? ways[step] : "-" }
{
    split($1, at, ",")
    # Unbound, the kernel chooses.
    source = $4
    if ($2 == "unbound" && (at[2] " " $5) in chosen) source = chosen[at[2] " " $5]
    path = way(at[2] " questions_out " source " " $5) " " way(at[4] " questions_in " source " " $5)
    path = path " " way(at[4] " answers_out " $5 " " source) " " way(at[2] " answers_in " $5 " " source)
    good = $6 == "ok" && path == at[3] " " at[5] " " at[5] " " at[3]
    same_leaf = at[3] == at[5] && int(at[2] / 2) == int(at[4] / 2)
    if ($7 != "-" && $7 != (same_leaf ? 1 : 3)) good = 0
    print $1, $2, $6, $7, path, good ? "good" : "bad"
}
END {
    print all + 0 > counted
    print strays + 0 > astray
}
