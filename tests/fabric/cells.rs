//! The result of every cell: did the question get an answer, and by which rails did both go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::fabric::{End, Fabric, Family, NODES, RAILS, batch};
use crate::prober::{self, Answer, Kind, Probe};

/// A rail of a pod asked a rail of another pod.
#[derive(Debug)]
pub struct Cell {
    pub kind: Kind,
    pub family: Family,
    pub from: End,
    pub to: End,
    pub answer: Answer,
    /// The rails by which the question left and entered, and by which the answer left and entered.
    ways: [Rails; 4],
}

/// None where no packet was seen.
type Rails = BTreeSet<usize>;

/// The result of a round of questions of one kind.
#[derive(Debug)]
pub struct Asked {
    pub cells: Vec<Cell>,
    /// Packets of questions and answers that pods sent and received.
    pub packets: u64,
    /// Other packets, and pairs of addresses that another rail carried than that of the pod's own
    /// address.
    pub strays: Vec<String>,
}

impl Cell {
    /// Is it as source-based routing promises: answered, every packet by the rail of its own
    /// address, with one router between the same rails of an SU and with three between all others?
    pub fn is_good(&self) -> bool {
        let routers = if self.from.rail == self.to.rail && self.from.su() == self.to.su() {
            1
        } else {
            3
        };
        let (from, to) = (Rails::from([self.from.rail]), Rails::from([self.to.rail]));
        self.answer
            .as_ref()
            .is_ok_and(|hops| hops.is_none_or(|hops| hops == routers))
            && self.ways == [from.clone(), to.clone(), to, from]
    }

    /// Has it one of these ends?
    pub fn has_end(&self, ends: &[End]) -> bool {
        ends.contains(&self.from) || ends.contains(&self.to)
    }
}

impl Fabric {
    /// Asks everything, each kind by itself, all pods at once.
    pub fn ask_all(&self, kinds: &[Kind]) -> BTreeMap<Kind, Asked> {
        kinds.iter().map(|kind| (*kind, self.ask(*kind))).collect()
    }

    fn ask(&self, kind: Kind) -> Asked {
        self.settle();
        for node in 0..NODES {
            let nft = || {
                batch(
                    Command::new("nft").args(["-f", "-"]),
                    include_str!("count.nft"),
                )
            };
            self.inside(&format!("pod-{node}"), nft);
        }
        let questions: Vec<_> = (0..NODES).map(|node| self.questions(node, kind)).collect();
        let answers: Vec<Vec<Answer>> = std::thread::scope(|scope| {
            let pods: Vec<_> = questions
                .iter()
                .enumerate()
                .map(|(node, questions)| {
                    let probes: Vec<Probe> = questions
                        .iter()
                        .map(|question| question.probe.clone())
                        .collect();
                    scope
                        .spawn(move || self.inside(&format!("pod-{node}"), || prober::ask(&probes)))
                })
                .collect();
            pods.into_iter().map(|pod| pod.join().unwrap()).collect()
        });
        let seen = Seen::of(self);
        let cells = questions
            .into_iter()
            .flatten()
            .zip(answers.into_iter().flatten());
        let cells = cells
            .map(|(question, answer)| seen.cell(question, answer))
            .collect();
        Asked {
            cells,
            packets: seen.packets,
            strays: seen.strays,
        }
    }

    /// Waits for the connections of the kind before. The last segment of one that has not ended may
    /// come again, and would be a question of this kind.
    fn settle(&self) {
        // LISTEN, TIME_WAIT, and the head of the table.
        let is_open =
            |line: &str| !["0A", "06", "st"].contains(&line.split_whitespace().nth(3).unwrap());
        let is_quiet = || {
            let tables = ["tcp", "tcp6"].map(|name| format!("/proc/thread-self/net/{name}"));
            tables
                .iter()
                .all(|table| !fs::read_to_string(table).unwrap().lines().any(is_open))
        };
        let has_settled = || {
            (0..1000).any(|_| {
                is_quiet() || {
                    sleep(Duration::from_millis(10));
                    false
                }
            })
        };
        for node in 0..NODES {
            assert!(
                self.inside(&format!("pod-{node}"), has_settled),
                "pod-{node} has open connections"
            );
        }
    }

    /// The questions of the pod of `node`. An unbound question goes to each rail once.
    fn questions(&self, node: usize, kind: Kind) -> Vec<Question> {
        let mut questions = Vec::new();
        for &family in &self.setup.families {
            for to in crate::fabric::ends().filter(|to| to.node != node) {
                for rail in (0..RAILS).filter(|rail| kind != Kind::Unbound || *rail == to.rail) {
                    let from = End { node, rail };
                    let probe = Probe {
                        kind,
                        interface: from.interface(),
                        source: self.planned(from, family).address,
                        destination: self.planned(to, family).address,
                    };
                    questions.push(Question {
                        family,
                        from,
                        to,
                        probe,
                    });
                }
            }
        }
        questions
    }
}

struct Question {
    family: Family,
    from: End,
    to: End,
    probe: Probe,
}

/// The pods' counters, see count.nft.
#[derive(Default)]
struct Seen {
    packets: u64,
    strays: Vec<String>,
    /// By pod, set, source and destination: the rails.
    ways: BTreeMap<(usize, String, IpAddr, IpAddr), Rails>,
}

impl Seen {
    fn of(fabric: &Fabric) -> Seen {
        let mut seen = Seen::default();
        let rails: BTreeMap<IpAddr, usize> = crate::fabric::ends()
            .flat_map(|end| {
                fabric
                    .setup
                    .families
                    .iter()
                    .map(move |family| (end, *family))
            })
            .map(|(end, family)| (fabric.planned(end, family).address, end.rail))
            .collect();
        for node in 0..NODES {
            let list = || {
                Command::new("nft")
                    .args(["-j", "list", "ruleset"])
                    .output()
                    .unwrap()
                    .stdout
            };
            let ruleset: Value =
                serde_json::from_slice(&fabric.inside(&format!("pod-{node}"), list)).unwrap();
            for object in ruleset["nftables"].as_array().unwrap() {
                if object["counter"]["name"] == "ours" {
                    seen.packets += object["counter"]["packets"].as_u64().unwrap();
                } else if object["counter"]["name"] == "others" {
                    let packets = object["counter"]["packets"].as_u64().unwrap();
                    (packets > 0).then(|| {
                        seen.strays
                            .push(format!("pod-{node}: {packets} other packets"))
                    });
                }
                let Some(name) = object["set"]["name"].as_str() else {
                    continue;
                };
                for element in object["set"]["elem"].as_array().into_iter().flatten() {
                    seen.note(node, name, &element["concat"], &rails);
                }
            }
        }
        seen
    }

    /// An element of a set: interface, source, destination.
    fn note(&mut self, node: usize, set: &str, element: &Value, rails: &BTreeMap<IpAddr, usize>) {
        let word = |index: usize| {
            element[index]
                .as_str()
                .unwrap_or_else(|| panic!("{set}: {element}"))
        };
        let rail = word(0)
            .strip_prefix("net")
            .unwrap()
            .parse::<usize>()
            .unwrap()
            - 1;
        let [source, destination] = [1, 2].map(|index| word(index).parse::<IpAddr>().unwrap());
        let own = if set.contains("_out_") {
            source
        } else {
            destination
        };
        if rails.get(&own) != Some(&rail) {
            self.strays.push(format!("pod-{node}: {set}: {element}"));
        }
        let set = set.rsplit_once('_').unwrap().0.to_owned();
        self.ways
            .entry((node, set, source, destination))
            .or_default()
            .insert(rail);
    }

    fn cell(&self, question: Question, answer: Answer) -> Cell {
        let Question {
            family,
            from,
            to,
            probe,
        } = question;
        let destination = probe.destination;
        let source = if probe.kind == Kind::Unbound {
            // The kernel chose it.
            let chosen = self.ways.keys().find(|(pod, set, _, asked)| {
                (*pod, set.as_str(), *asked) == (from.node, "questions_out", destination)
            });
            chosen.map_or(probe.source, |(_, _, source, _)| *source)
        } else {
            probe.source
        };
        let way = |node: usize, set: &str, source, destination| {
            self.ways
                .get(&(node, set.to_owned(), source, destination))
                .cloned()
                .unwrap_or_default()
        };
        let ways = [
            way(from.node, "questions_out", source, destination),
            way(to.node, "questions_in", source, destination),
            way(to.node, "answers_out", destination, source),
            way(from.node, "answers_in", destination, source),
        ];
        Cell {
            kind: probe.kind,
            family,
            from,
            to,
            answer,
            ways,
        }
    }
}

/// The ways of the cells, as paths.txt has them: a line per way, with the kinds that went it. A is
/// the rail of the address that asks, B that of the one that is asked. For an unbound socket the
/// kernel chooses the first one. `-` is for cells in which no packet came.
pub fn paths(asked: &BTreeMap<Kind, Asked>) -> Vec<String> {
    let mut ways: BTreeMap<String, BTreeMap<Kind, u32>> = BTreeMap::new();
    for (kind, asked) in asked {
        for cell in &asked.cells {
            let between = match kind {
                Kind::Unbound => "to B",
                _ if cell.from.rail == cell.to.rail => "A to A",
                _ => "A to B",
            };
            let verdict = cell
                .answer
                .as_ref()
                .map_or_else(|failure| failure.0.as_str(), |_| "passes");
            let [out, entered, back_out, back] =
                [0, 1, 2, 3].map(|step| whose(cell, &cell.ways[step]));
            let way = format!(
                "{} {between:<6} {verdict:<9}  out {out}, in {entered}; back out {back_out}, in {back}",
                cell.family
            );
            *ways.entry(way).or_default().entry(*kind).or_default() += 1;
        }
    }
    let mut lines: Vec<String> = ways.iter().map(|(way, kinds)| line(way, kinds)).collect();
    lines.sort();
    lines
}

fn whose(cell: &Cell, rails: &Rails) -> String {
    let names: Vec<String> = rails
        .iter()
        .map(|&rail| match rail {
            _ if rail == cell.to.rail && (rail != cell.from.rail || cell.kind == Kind::Unbound) => {
                "B".to_owned()
            }
            _ if rail == cell.from.rail => "A".to_owned(),
            _ => format!("rail {rail}"),
        })
        .collect();
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join("+")
    }
}

/// A number of cells is written behind a kind where it is not that of all.
fn line(way: &str, kinds: &BTreeMap<Kind, u32>) -> String {
    let most = kinds.values().copied().max().unwrap_or_default();
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, count)| {
            if *count == most {
                kind.to_string()
            } else {
                format!("{kind} ({count})")
            }
        })
        .collect();
    format!("{way:<66} {most:>3} cells each: {}", kinds.join(", "))
}

/// The grid of a family, for whoever looks for a fault: a row per pair of nodes, a group per rail
/// that asks, in it a digit per rail that is asked: the routers that the answer crossed. Where a
/// cell failed, a letter says how: d by the interface, s by the source address, j the jumbo frame,
/// t TCP, b TCP by both; `!`: it passed by another rail.
pub fn grid(asked: &BTreeMap<Kind, Asked>, family: Family) -> String {
    let mut marks: BTreeMap<(End, End), char> = BTreeMap::new();
    let cells = asked.values().flat_map(|asked| &asked.cells);
    for cell in cells.filter(|cell| cell.family == family && cell.kind != Kind::Unbound) {
        let mark = match (&cell.answer, cell.kind) {
            (Err(_), Kind::TcpDevice) => 'b',
            (Err(_), kind) => kind.to_string().chars().next().unwrap(),
            (Ok(_), _) if !cell.is_good() => '!',
            (Ok(None), _) => continue,
            (Ok(Some(hops)), _) => char::from_digit(hops.unsigned_abs(), 10).unwrap_or('?'),
        };
        let shown = marks.entry((cell.from, cell.to)).or_insert(mark);
        if shown.is_ascii_digit() {
            *shown = mark;
        }
    }
    let mut grid = format!("{family}\n{:<15}", "from    to");
    for rail in 0..RAILS {
        write!(grid, " rail {rail}  ").unwrap();
    }
    for (from, to) in (0..NODES)
        .flat_map(|from| (0..NODES).map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
    {
        write!(grid, "\nnode-{from}  node-{to}").unwrap();
        for asks in 0..RAILS {
            grid.push(' ');
            for rail in 0..RAILS {
                let ends = (
                    End {
                        node: from,
                        rail: asks,
                    },
                    End { node: to, rail },
                );
                grid.push(marks.get(&ends).copied().unwrap_or(' '));
            }
        }
    }
    grid
}
