//! topology.conf of Slurm, which places jobs by it: below one leaf group if they fit.
//!
//! The forms of its lines are those of the manual page topology.conf(5) of Slurm 24.05 to 26.11. A
//! name has at most 64 characters, and every block has at least as many nodes as the first of the
//! `BlockSizes`.

use anyhow::Result;

use crate::groups::{Below, Switch, switches};
use crate::plan::{File, Plan};

/// A topology plugin of Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// topology/tree: all levels of the fabric.
    Tree,
    /// topology/block: the leaf groups.
    Block,
}

/// Writes one file.
pub fn write(plan: &Plan, plugin: Plugin) -> Result<Vec<File>> {
    let name = match plugin {
        Plugin::Tree => "tree",
        Plugin::Block => "block",
    };
    let mut text =
        format!("# The fabric for Slurm: set TopologyPlugin=topology/{name} in slurm.conf.\n");
    let mut smallest: Option<usize> = None;
    for Switch { name, below, .. } in switches(plan)? {
        match (plugin, &below) {
            (Plugin::Tree, Below::Nodes(nodes)) => {
                text.push_str(&format!("SwitchName={name} Nodes={}\n", host_list(nodes)));
            }
            (Plugin::Tree, Below::Switches(names)) => {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                text.push_str(&format!(
                    "SwitchName={name} Switches={}\n",
                    host_list(&names)
                ));
            }
            (Plugin::Block, Below::Nodes(nodes)) => {
                smallest = Some(smallest.map_or(nodes.len(), |size| size.min(nodes.len())));
                text.push_str(&format!("BlockName={name} Nodes={}\n", host_list(nodes)));
            }
            (Plugin::Block, Below::Switches(_)) => (),
        }
    }
    if let Some(size) = smallest {
        text.push_str(&format!("BlockSizes={size}\n"));
    }
    Ok(vec![File {
        name: "topology.conf".to_owned(),
        text,
    }])
}

/// Names in the form of Slurm's host lists, in which names that count up are one word:
/// `n[0-31],n[40,42]`. The number is at the end of the name.
fn host_list(names: &[&str]) -> String {
    let mut words: Vec<(&str, Vec<String>)> = Vec::new();
    // The last number of the last range, with the digits of its first.
    let mut last: Option<(u64, usize)> = None;
    for name in names {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = name.strip_prefix(stem).unwrap_or_default();
        let Ok(number) = digits.parse::<u64>() else {
            words.push((name, Vec::new()));
            last = None;
            continue;
        };
        let range = words
            .last_mut()
            .filter(|(other, ranges)| *other == stem && !ranges.is_empty());
        match (range, last) {
            (Some((_, ranges)), Some((before, width)))
                if number.checked_sub(1) == Some(before)
                    && format!("{number:0width$}") == digits =>
            {
                if let Some(range) = ranges.last_mut() {
                    let first = range.split('-').next().unwrap_or_default();
                    *range = format!("{first}-{digits}");
                }
                last = Some((number, width));
            }
            (Some((_, ranges)), _) => {
                ranges.push(digits.to_owned());
                last = Some((number, digits.len()));
            }
            (None, _) => {
                words.push((stem, vec![digits.to_owned()]));
                last = Some((number, digits.len()));
            }
        }
    }
    let word = |(stem, ranges): &(&str, Vec<String>)| match ranges.as_slice() {
        [] => (*stem).to_owned(),
        [one] if !one.contains('-') => format!("{stem}{one}"),
        ranges => format!("{stem}[{}]", ranges.join(",")),
    };
    words.iter().map(word).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_count_up_are_one_word() {
        for (names, expected) in [
            (&["n0", "n1", "n2"][..], "n[0-2]"),
            (&["n8", "n9", "n10", "n12"], "n[8-10,12]"),
            (&["n08", "n09", "n10", "n100"], "n[08-10,100]"),
            (&["n9", "n10", "n011"], "n[9-10,011]"),
            (&["n1"], "n1"),
            (&["n1", "m1", "m2"], "n1,m[1-2]"),
            (&["a", "b.c"], "a,b.c"),
            (&["gpu-a1.dc", "gpu-a2.dc"], "gpu-a1.dc,gpu-a2.dc"),
            // More than a number has room for.
            (&["n99999999999999999999", "n3"], "n99999999999999999999,n3"),
        ] {
            assert_eq!(host_list(names), expected);
        }
    }
}
