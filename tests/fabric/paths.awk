# Which way the cells went, from what cells.awk prints of all kinds: a line per way, with the kinds that go it. A is
# the rail of the address that asks, B that of the one that is asked; unbound the kernel chooses the one that asks. `-`
# is where no packet came.
function whose(rail) {
    if (rail == "-") return "-"
    return rail == at[5] && (rail != at[3] || $2 == "unbound") ? "B" : rail == at[3] ? "A" : "rail " rail
}
{
    split($1, at, ",")
    between = $2 == "unbound" ? "to B" : at[3] == at[5] ? "A to A" : "A to B"
    verdict = $3 == "ok" ? "passes" : $4
    way = sprintf("IPv%s %-6s %-9s  out %s, in %s; back out %s, in %s", at[1], between, verdict, whose($5), whose($6), whose($7), whose($8))
    cells[way, $2]++
    ways[way]
}
END {
    n = split("device tcp-device source jumbo tcp unbound", order, " ")
    for (way in ways) {
        kinds = ""
        for (i = 1; i <= n; i++) if ((way, order[i]) in cells) {
            if (kinds && count != cells[way, order[i]]) kinds = kinds " (" count ")"
            count = cells[way, order[i]]
            kinds = kinds (kinds ? ", " : "") order[i]
        }
        printf "%-66s %3d cells each: %s\n", way, count, kinds | "LC_ALL=C sort"
    }
}
