//! `railctl preflight --merge`: what the nodes of a fabric said, in one: which rail reaches which,
//! and what is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::peers::{Fabric, Way};
use crate::output::{self, Output};
use rail_cni::failure;
use rail_plan::page::{self, Script, escape};

/// A node with 64 rails says less.
const LARGEST: u64 = 4 << 20;
const STYLE: &str = "\
thead th { position: sticky; top: 0; }
.wide { max-height: 85vh; overflow: auto; }
td { padding: .1rem .5rem; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 700; } .warn { color: var(--warn); }
li { overflow-wrap: anywhere; }
";

/// A peer's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Packets of the rail's MTU came back.
    Reached,
    /// Only small ones did.
    TooLarge,
    /// None did.
    Silent,
    /// None did, and the peer's rail was not attached there.
    Away,
}

impl Answer {
    /// By the step that found it wrong.
    pub fn of(step: Option<&str>) -> Answer {
        match step {
            None => Answer::Reached,
            Some("mtu") => Answer::TooLarge,
            Some(_) => Answer::Silent,
        }
    }

    fn is_wrong(self) -> bool {
        matches!(self, Answer::TooLarge | Answer::Silent)
    }

    /// Its class on a page, for the color.
    fn class(self) -> &'static str {
        match self {
            Answer::Reached => "good",
            Answer::TooLarge | Answer::Silent => "bad",
            Answer::Away => "warn",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Answer::Reached => "reached",
            Answer::TooLarge => "only small packets",
            Answer::Silent => "no answer",
            Answer::Away => "away",
        }
    }
}

/// The output of a node with `--output json`.
#[derive(Debug, Deserialize)]
struct Report {
    node: String,
    rails: Vec<Rail>,
}

#[derive(Debug, Deserialize)]
struct Rail {
    rail: u8,
    state: String,
    #[serde(default)]
    why: Option<String>,
    problems: Vec<Problem>,
    #[serde(default)]
    device: Option<String>,
    #[serde(default)]
    leaf: Option<String>,
    #[serde(default)]
    asked: Vec<Asked>,
}

#[derive(Debug, Deserialize)]
struct Problem {
    text: String,
}

#[derive(Debug, Deserialize)]
struct Asked {
    node: String,
    rail: u8,
    leaf: Option<String>,
    way: Way,
    state: Answer,
}

/// All nodes, by name.
#[derive(Debug)]
struct Matrix {
    nodes: Vec<Report>,
    /// Nodes of the plan that said nothing.
    missing: Vec<String>,
}

/// Reads the files of `folder`, and prints what they say together.
pub fn merge(
    folder: &Path,
    plan: Option<&Path>,
    is_page: bool,
    output: Output,
) -> Result<ExitCode> {
    let fabric = plan.map(Fabric::read).transpose()?;
    let planned = fabric
        .iter()
        .flat_map(Fabric::nodes)
        .map(str::to_owned)
        .collect();
    let matrix = Matrix::of(read(folder)?, planned)?;
    output::print(&match output {
        _ if is_page => matrix.page(),
        Output::Json => output::pretty(&matrix.json()),
        Output::Table => matrix.table(),
    })?;
    Ok(if matrix.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Every file of the folder, in the order of their names.
fn read(folder: &Path) -> Result<Vec<Report>> {
    let what = || failure!(InvalidConfig, "--merge: cannot read {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(what)? {
        let path = entry.with_context(what)?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let report = |path: &Path| -> Result<Report> {
        let what = || {
            failure!(
                InvalidConfig,
                "{} is not what preflight prints",
                path.display()
            )
        };
        if fs::metadata(path).with_context(what)?.len() > LARGEST {
            return Err(what());
        }
        serde_json::from_slice(&fs::read(path).with_context(what)?).with_context(what)
    };
    paths.iter().map(|path| report(path)).collect()
}

impl Matrix {
    fn of(mut nodes: Vec<Report>, planned: Vec<String>) -> Result<Matrix> {
        if nodes.is_empty() {
            return Err(failure!(
                InvalidConfig,
                "--merge: there is no file of a node"
            ));
        }
        let place: BTreeMap<&String, usize> = planned.iter().zip(0..).collect();
        // In the order of the plan; those that it does not have follow.
        nodes.sort_by_key(|one| {
            (
                place.get(&one.node).copied().unwrap_or(usize::MAX),
                one.node.clone(),
            )
        });
        if let Some(twice) = nodes.windows(2).find(|pair| pair[0].node == pair[1].node) {
            return Err(failure!(
                InvalidConfig,
                "--merge: two files are of the node {}",
                twice[0].node
            ));
        }
        let there: BTreeSet<(String, u8)> = nodes
            .iter()
            .flat_map(|one| one.rails.iter().map(move |rail| (one, rail)))
            .filter(|(_, rail)| rail.device.is_some())
            .map(|(one, rail)| (one.node.clone(), rail.rail))
            .collect();
        for asked in nodes
            .iter_mut()
            .flat_map(|one| &mut one.rails)
            .flat_map(|rail| &mut rail.asked)
        {
            if asked.state == Answer::Silent && !there.contains(&(asked.node.clone(), asked.rail)) {
                asked.state = Answer::Away;
            }
        }
        let said: BTreeSet<String> = nodes.iter().map(|one| one.node.clone()).collect();
        let missing = planned
            .into_iter()
            .filter(|node| !said.contains(node))
            .collect();
        Ok(Matrix { nodes, missing })
    }

    fn rails(&self) -> impl Iterator<Item = (&Report, &Rail)> {
        self.nodes
            .iter()
            .flat_map(|one| one.rails.iter().map(move |rail| (one, rail)))
    }

    fn numbers(&self) -> BTreeSet<u8> {
        self.rails().map(|(_, rail)| rail.rail).collect()
    }

    fn is_good(&self) -> bool {
        self.missing.is_empty() && self.rails().all(|(_, rail)| rail.state() != "wrong")
    }

    /// Numbers of rails in each state, and of peers with each answer.
    fn counts(&self) -> (BTreeMap<&str, usize>, BTreeMap<&'static str, usize>) {
        let (mut states, mut answers) = (BTreeMap::new(), BTreeMap::new());
        for (_, rail) in self.rails() {
            *states.entry(rail.state()).or_default() += 1;
            for asked in &rail.asked {
                *answers.entry(asked.state.words()).or_default() += 1;
            }
        }
        (states, answers)
    }

    fn summary(&self) -> String {
        let (states, answers) = self.counts();
        let list = |all: Vec<(&str, usize)>| {
            all.into_iter()
                .map(|(word, count)| format!("{count} {word}"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let rails = list(states.into_iter().collect());
        let peers = list(answers.into_iter().collect());
        let peers = if peers.is_empty() {
            "no peers were asked".to_owned()
        } else {
            format!("peers: {peers}")
        };
        format!("{} nodes; rails: {rails}; {peers}", self.nodes.len())
    }

    /// The problems, a line each.
    fn problems(&self) -> Vec<String> {
        let mut lines: Vec<_> = self
            .missing
            .iter()
            .map(|node| format!("{node}: the plan has it, and it said nothing"))
            .collect();
        for (of, rail) in self.rails() {
            lines.extend(
                rail.own_problems()
                    .map(|text| format!("{} rail {}: {text}", of.node, rail.rail)),
            );
        }
        lines
    }

    /// Pairs of leaves: how many peers were asked from one to the other, and how many of them were
    /// reached.
    fn leaves(&self) -> BTreeMap<(&str, &str), (usize, usize)> {
        let mut pairs: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
        for (_, rail) in self.rails() {
            let Some(leaf) = rail.leaf.as_deref() else {
                continue;
            };
            for asked in rail
                .asked
                .iter()
                .filter(|asked| asked.state != Answer::Away)
            {
                let Some(other) = asked.leaf.as_deref() else {
                    continue;
                };
                let (all, reached) = pairs.entry((leaf, other)).or_default();
                *all += 1;
                *reached += usize::from(asked.state == Answer::Reached);
            }
        }
        pairs
    }

    fn table(&self) -> String {
        let numbers = self.numbers();
        let headers: Vec<String> = numbers.iter().map(|rail| format!("RAIL {rail}")).collect();
        let headers: Vec<&str> = ["NODE"]
            .into_iter()
            .chain(headers.iter().map(String::as_str))
            .collect();
        let rows = self.nodes.iter().map(|one| {
            let cell = |number: &u8| {
                one.rail(*number)
                    .map(|rail| rail.state().to_owned())
                    .unwrap_or_default()
            };
            [one.node.clone()]
                .into_iter()
                .chain(numbers.iter().map(cell))
                .collect()
        });
        let mut text = output::table(&headers, rows);
        text += &format!("\n{}", output::line(&self.summary()));
        text.extend(self.problems().iter().map(|line| output::line(line)));
        text
    }

    /// The help of the verb lists these keys: new keys may be added, but none may change its
    /// meaning.
    fn json(&self) -> Value {
        let asked = |one: &Asked| json!({"node": one.node, "rail": one.rail, "leaf": one.leaf, "way": one.way, "state": one.state});
        let rail = |one: &Rail| {
            json!({"rail": one.rail, "state": one.state(), "leaf": one.leaf, "problems": one.own_problems().collect::<Vec<_>>(),
                "asked": one.asked.iter().map(asked).collect::<Vec<_>>()})
        };
        let node = |one: &Report| json!({"node": one.node, "rails": one.rails.iter().map(rail).collect::<Vec<_>>()});
        json!({"nodes": self.nodes.iter().map(node).collect::<Vec<_>>(), "missing": self.missing, "isGood": self.is_good()})
    }

    fn page(&self) -> String {
        let title = "Which rail reaches which";
        let mut body = format!(
            "<h1>{title}</h1>\n<p class=\"dim\">{}</p>\n",
            escape(&self.summary())
        );
        let problems = self.problems();
        if problems.is_empty() {
            body += "<p class=\"good\">Nothing is wrong.</p>\n";
        } else {
            let lines: String = problems
                .iter()
                .map(|line| format!("<li>{}</li>\n", escape(line)))
                .collect();
            body += &format!("<h2>What is wrong</h2>\n<ul>\n{lines}</ul>\n");
        }
        let is_wrong = |one: &&Report| one.rails.iter().any(|rail| rail.state() == "wrong");
        let wrong: Vec<&Report> = self.nodes.iter().filter(is_wrong).collect();
        if !wrong.is_empty() {
            body += &format!("<h2>Nodes with a wrong rail</h2>\n{}", self.grid(&wrong));
        }
        body += "<h2>All nodes</h2>\n<p class=\"dim\">L: the next node on the leaf. S: a node on the next leaf, by the spines. \
            X: another rail. In the color of the answer; the cell says who was asked.</p>\n";
        body += &self.grid(&self.nodes.iter().collect::<Vec<_>>());
        let rows = self
            .leaves()
            .into_iter()
            .map(|((from, to), (all, reached))| {
                vec![
                    from.to_owned(),
                    to.to_owned(),
                    format!("{reached} of {all}"),
                ]
            });
        let class = |column: &str, text: &str| match text.split_once(" of ") {
            Some((reached, all)) if column == "REACHED" && reached != all => "bad",
            _ => "",
        };
        let table = page::table(&["FROM LEAF", "TO LEAF", "REACHED"], rows.collect(), class);
        body += &format!(
            "<h2>Leaves</h2>\n<details><summary>From leaf to leaf</summary>\n{table}</details>\n"
        );
        page::render(title, STYLE, &body, Script::None)
    }

    /// A row for each node, a column for each rail.
    fn grid(&self, nodes: &[&Report]) -> String {
        let numbers = self.numbers();
        let head: String = numbers
            .iter()
            .map(|rail| format!("<th>{rail}</th>"))
            .collect();
        let rows: String = nodes
            .iter()
            .map(|one| {
                let cells: String = numbers
                    .iter()
                    .map(|number| cell(one.rail(*number)))
                    .collect();
                format!("<tr><td>{}</td>{cells}</tr>\n", escape(&one.node))
            })
            .collect();
        format!(
            "<div class=\"wide\"><table>\n<thead><tr><th>NODE</th>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
        )
    }
}

/// The state of a rail, and a letter for each peer.
fn cell(rail: Option<&Rail>) -> String {
    let Some(rail) = rail else {
        return "<td>-</td>".to_owned();
    };
    let mut marks = String::new();
    let mut title: Vec<String> = rail.why.iter().cloned().collect();
    for asked in &rail.asked {
        let letter = match asked.way {
            Way::Leaf => "L",
            Way::Spine => "S",
            Way::Cross => "X",
        };
        let class = asked.state.class();
        marks.push_str(&format!("<span class=\"{class}\">{letter}</span>"));
        let words = asked.state.words();
        title.push(format!("rail {} of {}: {words}", asked.rail, asked.node));
    }
    let state = rail.state();
    let class = match state {
        "fine" => "good",
        "wrong" => "bad",
        _ => "warn",
    };
    // A fine rail with peers has only letters.
    let word = if state == "fine" && !rail.asked.is_empty() {
        String::new()
    } else {
        format!("<span class=\"{class}\">{}</span> ", escape(state))
    };
    format!(
        "<td title=\"{}\">{word}{marks}</td>",
        escape(&title.join("; "))
    )
}

impl Report {
    fn rail(&self, number: u8) -> Option<&Rail> {
        self.rails.iter().find(|rail| rail.rail == number)
    }
}

impl Rail {
    /// Its state on its node, but that a peer that was not there makes nothing wrong.
    fn state(&self) -> &str {
        let is_wrong = self.state == "wrong" && self.own_problems().next().is_some();
        if self.state == "wrong" && !is_wrong {
            "fine"
        } else {
            &self.state
        }
    }

    /// Problems of its own, without peers that were not there: they come last, and in the order of
    /// the peers.
    fn own_problems(&self) -> impl Iterator<Item = &str> {
        let of_peers = self
            .asked
            .iter()
            .filter(|asked| asked.state != Answer::Reached)
            .count();
        let (own, peers) = self
            .problems
            .split_at(self.problems.len().saturating_sub(of_peers));
        let peers = self
            .asked
            .iter()
            .filter(|asked| asked.state != Answer::Reached)
            .zip(peers);
        let wrong = peers
            .filter(|(asked, _)| asked.state.is_wrong())
            .map(|(_, problem)| problem);
        own.iter().chain(wrong).map(|problem| problem.text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node whose rails ask the same rail of `peer`, which answers so.
    fn node(name: &str, peer: &str, states: &[&str]) -> Value {
        let rail = |(number, state): (usize, &&str)| {
            let problems = match *state {
                "reached" => json!([]),
                state => json!([{"step": "peer", "code": null, "text": format!("{peer} {state}")}]),
            };
            json!({"rail": number, "pf": "p", "state": if *state == "reached" { "fine" } else { "wrong" }, "problems": problems,
                "device": "d", "leaf": format!("leaf-r{number}"),
                "asked": [{"node": peer, "rail": number, "address": "10.0.0.1", "leaf": format!("leaf-r{number}"), "way": "leaf", "state": state}]})
        };
        json!({"node": name, "rails": states.iter().enumerate().map(rail).collect::<Vec<_>>()})
    }

    fn matrix(nodes: &[Value], planned: &[&str]) -> Result<Matrix> {
        let nodes = nodes
            .iter()
            .map(|node| serde_json::from_value(node.clone()))
            .collect::<Result<_, _>>();
        Matrix::of(
            nodes.unwrap(),
            planned.iter().map(|node| (*node).to_owned()).collect(),
        )
    }

    #[test]
    fn a_silent_peer_is_wrong_if_it_was_there_and_away_if_not() {
        let both = [
            node("b", "a", &["reached", "reached"]),
            node("a", "b", &["reached", "silent"]),
        ];
        let all = matrix(&both, &["a", "b"]).unwrap();
        assert_eq!(
            all.nodes
                .iter()
                .map(|one| one.node.as_str())
                .collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert_eq!(
            (all.is_good(), all.problems()),
            (false, vec!["a rail 1: b silent".to_owned()])
        );
        assert_eq!(all.leaves()[&("leaf-r1", "leaf-r1")], (2, 1));
        let mut without = node("b", "a", &["reached", "reached"]);
        without["rails"][1] =
            json!({"rail": 1, "pf": "p", "state": "in-use", "why": "w", "problems": []});
        let all = matrix(&[without, both[1].clone()], &[]).unwrap();
        assert_eq!((all.is_good(), all.problems().len()), (true, 0), "{all:?}");
        assert_eq!(all.nodes[0].rails[1].state(), "fine");
        // Other problems stay.
        let mut own = both[1].clone();
        own["rails"][1]["problems"] =
            json!([{"step": "gateway", "text": "g"}, {"step": "peer", "text": "p"}]);
        let all = matrix(&[own], &["a", "c"]).unwrap();
        let told = all.problems();
        assert!(
            told.len() == 2 && told[0].starts_with("c: ") && told[1] == "a rail 1: g",
            "{told:?}"
        );
        golden::says("railctl", "preflight: a node without a report", &told[0]);
        assert!(matrix(&[both[0].clone(), both[0].clone()], &[]).is_err());
        assert!(matrix(&[], &[]).is_err());
    }

    #[test]
    fn the_page_of_512_nodes_is_small_and_shows_text_as_text() {
        const HOSTILE: &str = "<script>alert(1)</script>\"'";
        let mut nodes: Vec<_> = (0..511)
            .map(|n| {
                node(
                    &format!("n{n}"),
                    &format!("n{}", (n + 1) % 512),
                    &["reached"; 8],
                )
            })
            .collect();
        let mut states = ["reached"; 8];
        states[3] = "too-large";
        let mut last = node("n511", "n0", &states);
        last["rails"][3]["problems"][0]["text"] = json!(HOSTILE);
        nodes.push(last);
        let page = matrix(&nodes, &[]).unwrap().page();
        assert!(page.len() < 2 << 20, "{}", page.len());
        assert!(!page.contains("<script"), "{page}");
        assert_eq!(page.matches("<tr><td>n511</td>").count(), 2);
        assert!(page.contains("<td class=\"bad\">511 of 512</td>"));
        for part in ["512 nodes", "4095 fine, 1 wrong", "4095 reached"] {
            assert!(page.contains(part), "{part}");
        }
    }
}
