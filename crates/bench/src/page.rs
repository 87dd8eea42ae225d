//! The page: tables and pictures of what was measured, and the same in the documents.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::parts::{ETH0, LeftOut};
use crate::plot::{Labels, Series, bars, grouped, lines};
use crate::samples::{Counted, Sample, Summary, read_csv, summarize, write_csv};

/// Under which circumstances was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub date: String,
    pub kernel: String,
    pub processor: String,
    pub processors: usize,
    /// Whether nothing else used the processors when it began.
    #[serde(default)]
    pub is_idle: bool,
    pub version: String,
    pub others: String,
    pub rounds: usize,
    pub seed: u64,
    pub left_out: Vec<LeftOut>,
}

/// A part of the page: its text, and its pictures by name.
#[derive(Debug)]
struct Section {
    heading: &'static str,
    text: String,
    pictures: Vec<(String, String)>,
}

const WAYS: [&str; 3] = ["direct", "cnitool", "Multus"];

/// Parts in which all contenders and callers meet.
const SHAPES: [(&str, &str, &[&str]); 2] = [
    ("one", "One rail", &["one rail"]),
    ("eight", "Eight rails", &["eight in turn", "eight at once"]),
];

/// A part whose x grows.
struct Growth {
    part: &'static str,
    heading: &'static str,
    x: &'static str,
    says: &'static str,
}

const GROWTHS: [Growth; 9] = [
    Growth {
        part: "rails",
        heading: "Rails of a pod",
        x: "rails of one pod, one after the other",
        says: "ADD of all rails of a pod",
    },
    Growth {
        part: "pods",
        heading: "Pods that start at once",
        x: "pods at once, one rail each",
        says: "until the last ADD has ended",
    },
    Growth {
        part: "routes",
        heading: "Routes of a rail",
        x: "routes of the rail",
        says: "ADD of one rail",
    },
    Growth {
        part: "leases",
        heading: "Leases in the pool",
        x: "leases in the pool",
        says: "ADD of the IPAM plugin alone",
    },
    Growth {
        part: "nodes",
        heading: "Nodes in the plan",
        x: "nodes in the store",
        says: "ADD of rail-ipam alone",
    },
    Growth {
        part: "netdevs",
        heading: "Netdevs of the host",
        x: "netdevs in the host's namespace",
        says: "ADD of one rail",
    },
    Growth {
        part: "crowd",
        heading: "Other pods on the node",
        x: "other pods, with 24 processes, 23 mounts and 8 links each",
        says: "ADD of one rail",
    },
    Growth {
        part: "queues",
        heading: "Queues of the device",
        x: "transmit and receive queues",
        says: "ADD of one rail",
    },
    Growth {
        part: "vfs",
        heading: "VFs of a PF",
        x: "VFs of the PF, in an emulated machine",
        says: "ADD of one VF",
    },
];

/// Reads what was measured, and writes summary, pictures and page beside it.
pub fn render(folder: &Path) -> Result<(), String> {
    let samples: Vec<Sample> = read_csv(&folder.join("raw.csv"))?;
    let counted: Vec<Counted> = read_csv(&folder.join("counts.csv"))?;
    let text = read(&folder.join("run.json"))?;
    let run: Run = serde_json::from_str(&text).map_err(|error| format!("run.json: {error}"))?;
    let summary = summarize(&samples);
    write_csv(&folder.join("summary.csv"), &summary)?;
    let sections = sections(&summary, &counted, &run)?;
    let mut page = "# Figures\n".to_owned();
    for section in &sections {
        page.push_str(&format!("\n## {}\n\n{}", section.heading, section.text));
        for (name, svg) in &section.pictures {
            write(&folder.join(name), svg)?;
        }
    }
    write(&folder.join("page.md"), &page)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn sections(summary: &[Summary], counted: &[Counted], run: &Run) -> Result<Vec<Section>, String> {
    let mut sections = Vec::new();
    let of = |part: &str| {
        summary
            .iter()
            .filter(|row| row.part == part)
            .collect::<Vec<_>>()
    };
    for (part, heading, shapes) in SHAPES {
        let rows = of(part);
        if !rows.is_empty() {
            sections.push(ways(part, heading, shapes, &rows, counted, run)?);
        }
    }
    let (probed, short) = (of("probe"), of("short"));
    if !probed.is_empty() {
        let head = head("probe", &probed, run);
        let mut text = format!(
            "{head}| addresses | gatewayProbe | ADD ms | DEL ms |\n| --- | --- | --- | --- |\n"
        );
        for add in probed.iter().filter(|row| row.verb == "ADD") {
            let asked = add.contender.trim_start_matches("gatewayProbe: ");
            text.push_str(&format!(
                "| {} | {asked} | {} | {} |\n",
                add.shape,
                ms(add.p50_us),
                ms(del_of(&probed, add))
            ));
        }
        sections.push(Section {
            heading: "The gateway probe",
            text,
            pictures: Vec::new(),
        });
    }
    if !short.is_empty() {
        let head = head("short", &short, run);
        let heads = ["call", "ms", "p99", "longest", "CPU ms"].map(str::to_owned);
        let cells = short.iter().map(|row| {
            let call = format!("{} of {}", row.verb, row.contender);
            vec![
                call,
                ms(row.p50_us),
                p99(row),
                ms(row.max_us),
                ms(row.cpu_us),
            ]
        });
        let text = head + &table(&heads, &cells.collect::<Vec<_>>());
        sections.push(Section {
            heading: "VERSION and STATUS",
            text,
            pictures: Vec::new(),
        });
    }
    for growth in &GROWTHS {
        let rows = of(growth.part);
        if !rows.is_empty() {
            sections.push(grows(growth, &rows, counted, run)?);
        }
    }
    Ok(sections)
}

/// Place and time of the measurement, and the gaps in it.
fn head(part: &str, rows: &[&Summary], run: &Run) -> String {
    let least = rows.iter().map(|row| row.n).min().unwrap_or(0);
    let most = rows.iter().map(|row| row.n).max().unwrap_or(0);
    let samples = match (least, most) {
        (_, 1) => "One call each".to_owned(),
        _ if least == most => format!("Medians of {most} interleaved calls"),
        _ => format!("Medians of {least} to {most} interleaved calls"),
    };
    let processors = if run.processors == 1 {
        "1 processor".to_owned()
    } else {
        format!("{} processors", run.processors)
    };
    let how = if part == "vfs" { "--lab" } else { part };
    let mut text = format!(
        "Measured by `scripts/bench {how}` on {}: Linux {}, {} ({}), {}; {}{}. {samples}, seed {}.\n\n",
        run.date,
        run.kernel,
        processors,
        run.processor,
        if run.is_idle {
            "idle when it began"
        } else {
            "with `--anyway`"
        },
        run.version,
        run.others,
        run.seed
    );
    if !run.is_idle {
        text.push_str(
            "**Other programs may have run.** The times have them in them; the counts do not.\n\n",
        );
    }
    for left_out in run.left_out.iter().filter(|one| one.part == part) {
        text.push_str(&format!(
            "Left out: {}, because {}.\n\n",
            left_out.what,
            left_out.reason.trim_end_matches('.')
        ));
    }
    text
}

/// Milliseconds, with as many digits as mean something.
fn ms(micros: u64) -> String {
    let tenths = (micros + 50) / 100;
    match micros {
        0..10_000 => format!("{}.{:02}", micros / 1000, micros % 1000 / 10),
        10_000..1_000_000 => format!("{}.{}", tenths / 10, tenths % 10),
        _ => grouped(as_ms(micros).round()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a call")]
fn as_ms(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

/// The median of the DEL of the same key.
fn del_of(rows: &[&Summary], add: &Summary) -> u64 {
    same(rows, add, "DEL").map_or(0, |row| row.p50_us)
}

fn same<'a>(rows: &[&'a Summary], of: &Summary, verb: &str) -> Option<&'a Summary> {
    let is_same = |row: &&&Summary| {
        row.verb == verb
            && row.contender == of.contender
            && row.way == of.way
            && row.shape == of.shape
            && row.x == of.x
    };
    rows.iter().find(is_same).copied()
}

fn ways(
    part: &'static str,
    heading: &'static str,
    shapes: &[&str],
    rows: &[&Summary],
    counted: &[Counted],
    run: &Run,
) -> Result<Section, String> {
    let mut text = head(part, rows, run);
    let mut pictures = Vec::new();
    for shape in shapes {
        let of_shape: Vec<&Summary> = rows
            .iter()
            .filter(|row| row.shape == *shape)
            .copied()
            .collect();
        if of_shape.is_empty() {
            continue;
        }
        let name = format!("bench-{}.svg", shape.replace(' ', "-"));
        text.push_str(&format!(
            "![ADD, {shape}, by contender and caller]({name})\n\n"
        ));
        let times = ["ADD ms", "p99", "longest", "DEL ms", "p99", "longest"];
        let heads = [*shape, "caller"]
            .into_iter()
            .chain(times)
            .chain(["both, of the floor", "CPU ms of both"]);
        let heads: Vec<String> = heads.map(str::to_owned).collect();
        let mut lines = Vec::new();
        let floor = of_shape
            .iter()
            .find(|row| row.contender.starts_with("floor") && row.verb == "ADD");
        let floor = floor.map(|add| add.p50_us + del_of(&of_shape, add));
        for way in WAYS {
            for add in in_order(
                of_shape
                    .iter()
                    .filter(|row| row.verb == "ADD" && row.way == way),
            ) {
                let Some(del) = same(&of_shape, add, "DEL") else {
                    continue;
                };
                let ratio = floor.map_or(NOTHING.to_owned(), |floor| {
                    format!(
                        "{:.2}",
                        as_ms(add.p50_us + del.p50_us) / as_ms(floor).max(0.001)
                    )
                });
                lines.push(vec![
                    add.contender.clone(),
                    way.to_owned(),
                    ms(add.p50_us),
                    p99(add),
                    ms(add.max_us),
                    ms(del.p50_us),
                    p99(del),
                    ms(del.max_us),
                    ratio,
                    ms(add.cpu_us + del.cpu_us),
                ]);
            }
        }
        text.push_str(&table(&heads, &lines));
        text.push('\n');
        pictures.push((name, bars_of(shape, &of_shape)?));
    }
    let counted: Vec<_> = counted.iter().filter(|one| one.part == part).collect();
    text.push_str(&counts_of(&counted));
    Ok(Section {
        heading,
        text,
        pictures,
    })
}

/// As they are measured: the floor first, then ours.
fn in_order<'a>(rows: impl Iterator<Item = &'a &'a Summary>) -> Vec<&'a Summary> {
    let mut rows: Vec<&Summary> = rows.copied().collect();
    rows.sort_by_key(|row| place_of(&row.contender));
    rows
}

fn place_of(contender: &str) -> usize {
    let order = [
        "eth0",
        "floor",
        "ip -batch",
        "rail",
        "host-device + static",
        "host-device + host-local",
        "host-device",
    ];
    order
        .iter()
        .position(|name| contender.starts_with(name))
        .unwrap_or(order.len())
}

fn bars_of(shape: &str, rows: &[&Summary]) -> Result<String, String> {
    let adds: Vec<&Summary> = rows
        .iter()
        .filter(|row| row.verb == "ADD")
        .copied()
        .collect();
    let groups: Vec<&str> = WAYS
        .into_iter()
        .filter(|way| adds.iter().any(|row| row.way == *way))
        .collect();
    let mut series: BTreeMap<(usize, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for (group, way) in (0_u32..).zip(&groups) {
        // Only pods of Multus have it.
        for row in adds
            .iter()
            .filter(|row| row.way == *way && row.contender != ETH0)
        {
            let at = (place_of(&row.contender), row.contender.as_str());
            series
                .entry(at)
                .or_default()
                .push((f64::from(group), as_ms(row.p50_us)));
        }
    }
    let series: Vec<_> = series
        .into_iter()
        .map(|((_, title), points)| Series {
            title: title.to_owned(),
            points,
        })
        .collect();
    let title = format!("ADD of {}", shape.replace("eight", "eight rails"));
    bars(
        Labels {
            title: &title,
            x: "caller (Multus also makes eth0)",
            y: "median, ms",
        },
        &groups,
        &series,
    )
}

fn counts_of(counted: &[&Counted]) -> String {
    if counted.is_empty() {
        return String::new();
    }
    let text = "What the calls do, counted in one call each; ADD / DEL. *Peak* is that of the largest process. Under \
        Multus eth0 is counted, too.\n\n";
    let kinds = [
        "programs run",
        "moves between namespaces",
        "`setns`",
        "system calls",
        "peak MiB",
    ];
    let heads = ["", "caller", "shape"]
        .into_iter()
        .chain(kinds)
        .chain(["instructions, million"]);
    let heads: Vec<String> = heads.map(str::to_owned).collect();
    let mut lines = Vec::new();
    let mut adds: Vec<&Counted> = counted
        .iter()
        .filter(|one| one.verb == "ADD")
        .copied()
        .collect();
    let way_of = |one: &Counted| WAYS.iter().position(|way| *way == one.way);
    adds.sort_by_key(|one| (way_of(one), place_of(&one.contender)));
    for add in adds {
        let is_same = |one: &&&Counted| {
            one.verb == "DEL"
                && one.contender == add.contender
                && one.way == add.way
                && one.shape == add.shape
        };
        let Some(del) = counted.iter().find(is_same) else {
            continue;
        };
        let pair = |of: fn(&Counted) -> u64| match [of(add), of(del)] {
            [0, 0] => NOTHING.to_owned(),
            both => both
                .map(|count| grouped(f64::from(u32::try_from(count).unwrap_or(u32::MAX))))
                .join(" / "),
        };
        let peak = [add, del].map(|one| {
            format!(
                "{:.1}",
                f64::from(u32::try_from(one.peak_kib).unwrap_or(0)) / 1024.0
            )
        });
        lines.push(vec![
            add.contender.clone(),
            add.way.clone(),
            add.shape.clone(),
            pair(|one| one.execs),
            pair(|one| one.moves),
            pair(|one| one.setns),
            pair(|one| one.syscalls),
            peak.join(" / "),
            pair(|one| one.instructions.unwrap_or(0) / 1_000_000),
        ]);
    }
    text.to_owned() + &table(&heads, &lines)
}

/// The text of a cell without a value.
const NOTHING: &str = "–";

/// The 99th percentile, if there were a hundred calls.
fn p99(row: &Summary) -> String {
    if row.n < 100 {
        NOTHING.to_owned()
    } else {
        ms(row.p99_us)
    }
}

/// A table without the columns in which no line has a value.
fn table(heads: &[String], lines: &[Vec<String>]) -> String {
    let has_value = |column: &usize| lines.iter().any(|cells| cells[*column] != NOTHING);
    let columns: Vec<usize> = (0..heads.len()).filter(has_value).collect();
    let line = |cells: &[String]| {
        let cells = columns.iter().map(|&column| match cells[column].as_str() {
            "" => " |".to_owned(),
            cell => format!(" {cell} |"),
        });
        format!("|{}\n", cells.collect::<String>())
    };
    let rule = format!("|{}\n", " --- |".repeat(columns.len()));
    line(heads) + &rule + &lines.iter().map(|cells| line(cells)).collect::<String>()
}

fn grows(
    growth: &Growth,
    rows: &[&Summary],
    counted: &[Counted],
    run: &Run,
) -> Result<Section, String> {
    let adds: Vec<&Summary> = rows
        .iter()
        .filter(|row| row.verb == "ADD")
        .copied()
        .collect();
    let mut contenders: Vec<&str> = adds.iter().map(|row| row.contender.as_str()).collect();
    contenders.sort_by_key(|name| (place_of(name), *name));
    contenders.dedup();
    let mut values: Vec<u64> = adds.iter().map(|row| row.x).collect();
    values.sort_unstable();
    values.dedup();
    let of = |contender: &str, x: u64| {
        adds.iter()
            .find(|row| row.contender == contender && row.x == x)
    };
    let series: Vec<_> = contenders
        .iter()
        .map(|contender| {
            let rows = values.iter().filter_map(|&x| of(contender, x));
            Series {
                title: (*contender).to_owned(),
                points: rows.map(|row| (count(row.x), as_ms(row.p50_us))).collect(),
            }
        })
        .collect();
    let name = format!("bench-{}.svg", growth.part);
    let title = format!("{}: {}", growth.heading, growth.says);
    let picture = lines(
        Labels {
            title: &title,
            x: growth.x,
            y: "median, ms",
        },
        &series,
    )?;
    let mut text = format!("{}![{title}]({name})\n\n", head(growth.part, rows, run));
    let calls = |row: &Summary| {
        let is_same = |one: &&Counted| {
            one.part == row.part
                && one.x == row.x
                && one.contender == row.contender
                && one.verb == row.verb
        };
        counted
            .iter()
            .find(is_same)
            .map(|one| one.syscalls)
            .filter(|&calls| calls > 0)
    };
    let unit = if adds.iter().any(|row| calls(row).is_some()) {
        "ms (CPU ms; system calls)"
    } else {
        "ms (CPU ms)"
    };
    let heads = contenders
        .iter()
        .map(|contender| format!("{contender}: ADD / DEL {unit}"));
    let heads: Vec<String> = [growth.x.to_owned()].into_iter().chain(heads).collect();
    let mut lines = Vec::new();
    for x in values {
        let cells = contenders.iter().map(|contender| {
            let Some(add) = of(contender, x) else {
                return NOTHING.to_owned();
            };
            let both: Vec<&Summary> = [Some(*add), same(rows, add, "DEL")]
                .into_iter()
                .flatten()
                .collect();
            let each = |of: fn(&Summary) -> u64| {
                both.iter()
                    .map(|row| ms(of(row)))
                    .collect::<Vec<_>>()
                    .join(" / ")
            };
            let (times, cpu) = (each(|row| row.p50_us), each(|row| row.cpu_us));
            let made: Option<Vec<String>> = both
                .iter()
                .map(|row| calls(row).map(|calls| grouped(count(calls))))
                .collect();
            let made = made.map_or(format!(" ({cpu})"), |made| {
                format!(" ({cpu}; {})", made.join(" / "))
            });
            times + &made
        });
        lines.push([grouped(count(x))].into_iter().chain(cells).collect());
    }
    text.push_str(&table(&heads, &lines));
    Ok(Section {
        heading: growth.heading,
        text,
        pictures: vec![(name, picture)],
    })
}

fn count(x: u64) -> f64 {
    f64::from(u32::try_from(x).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes what a run writes: every contender once, and what one call did.
    fn write_run(folder: &Path) {
        let names = [
            "rail-cni + rail-ipam",
            "host-device + static",
            "host-device + host-local, tuning, sbr",
        ];
        let sample = |contender: &str, verb: &str| Sample {
            part: "one".to_owned(),
            contender: contender.to_owned(),
            way: "direct".to_owned(),
            shape: "one rail".to_owned(),
            x: 1,
            verb: verb.to_owned(),
            round: 1,
            wall_us: 20_000,
            cpu_us: 9_000,
        };
        let samples: Vec<_> = names
            .iter()
            .flat_map(|name| ["ADD", "DEL"].map(|verb| sample(name, verb)))
            .collect();
        let counted = samples.iter().map(|sample| Counted {
            part: sample.part.clone(),
            contender: sample.contender.clone(),
            way: sample.way.clone(),
            shape: sample.shape.clone(),
            x: sample.x,
            verb: sample.verb.clone(),
            execs: 2,
            setns: 3,
            moves: 1,
            syscalls: 800,
            peak_kib: 3000,
            instructions: None,
        });
        write_csv(&folder.join("raw.csv"), &samples).unwrap();
        write_csv(&folder.join("counts.csv"), &counted.collect::<Vec<_>>()).unwrap();
        fs::write(
            folder.join("run.json"),
            serde_json::to_string(&run()).unwrap(),
        )
        .unwrap();
        render(folder).unwrap();
    }

    /// In scripts/test of a real run, whose folder is in RAIL_BENCH_PAGE.
    #[test]
    fn what_a_run_wrote_reads_back() {
        let made = tempfile::tempdir().unwrap();
        let real = std::env::var_os("RAIL_BENCH_PAGE").map(std::path::PathBuf::from);
        let folder = real.unwrap_or_else(|| {
            write_run(made.path());
            made.path().to_owned()
        });
        let samples: Vec<Sample> = read_csv(&folder.join("raw.csv")).unwrap();
        let summary: Vec<Summary> = read_csv(&folder.join("summary.csv")).unwrap();
        assert_eq!(summary, summarize(&samples));
        let is_measured = |contender: &str, way: &str, verb: &str| {
            summary.iter().any(|row| {
                row.part == "one"
                    && (&*row.contender, &*row.way, &*row.verb) == (contender, way, verb)
                    && row.p50_us > 0
            })
        };
        for verb in ["ADD", "DEL"] {
            for contender in [
                "rail-cni + rail-ipam",
                "host-device + static",
                "host-device + host-local, tuning, sbr",
            ] {
                assert!(
                    is_measured(contender, "direct", verb),
                    "{verb} of {contender}"
                );
            }
        }
        let counted: Vec<Counted> = read_csv(&folder.join("counts.csv")).unwrap();
        let ours = counted
            .iter()
            .find(|one| one.contender.starts_with("rail-cni") && one.way == "direct")
            .unwrap();
        assert!(ours.peak_kib > 0);
        let page = read(&folder.join("page.md")).unwrap();
        let names = page
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'))
            .map(|(name, _)| name);
        let pictures: Vec<_> = names.filter(|name| name.ends_with(".svg")).collect();
        assert!(!pictures.is_empty());
        for name in pictures {
            let svg = read(&folder.join(name)).unwrap();
            roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn milliseconds_have_the_digits_that_mean_something() {
        assert_eq!(
            [1_234, 12_345, 999_999, 1_453_400].map(ms),
            ["1.23", "12.3", "1000.0", "1,453"]
        );
    }

    fn row(
        part: &str,
        contender: &str,
        way: &str,
        shape: &str,
        x: u64,
        verb: &str,
        p50_us: u64,
    ) -> Summary {
        let [part, contender, way, shape, verb] =
            [part, contender, way, shape, verb].map(str::to_owned);
        Summary {
            part,
            contender,
            way,
            shape,
            x,
            verb,
            n: 7,
            p50_us,
            p99_us: p50_us,
            max_us: p50_us,
            cpu_us: 1000,
        }
    }

    fn run() -> Run {
        let left_out = vec![LeftOut {
            part: "one".into(),
            what: "instructions".into(),
            reason: "perf is not here".into(),
        }];
        Run {
            date: "2026-01-01".into(),
            kernel: "6.1".into(),
            processor: "x".into(),
            processors: 2,
            is_idle: true,
            version: "rail-cni 0.2.0".into(),
            others: String::new(),
            rounds: 7,
            seed: 3,
            left_out,
        }
    }

    #[test]
    fn the_page_says_who_took_how_long_and_what_is_missing() {
        let rows = [
            row(
                "one",
                "floor: requests alone",
                "direct",
                "one rail",
                1,
                "ADD",
                10_000,
            ),
            row(
                "one",
                "floor: requests alone",
                "direct",
                "one rail",
                1,
                "DEL",
                20_000,
            ),
            row(
                "one",
                "rail-cni + rail-ipam",
                "direct",
                "one rail",
                1,
                "ADD",
                12_000,
            ),
            row(
                "one",
                "rail-cni + rail-ipam",
                "direct",
                "one rail",
                1,
                "DEL",
                21_000,
            ),
            row(
                "leases",
                "rail-ipam",
                "direct",
                "one call",
                5000,
                "ADD",
                1_500,
            ),
        ];
        let sections = sections(&rows, &[], &run()).unwrap();
        assert_eq!(
            sections
                .iter()
                .map(|section| section.heading)
                .collect::<Vec<_>>(),
            ["One rail", "Leases in the pool"]
        );
        let ours = "| rail-cni + rail-ipam | direct | 12.0 | 12.0 | 21.0 | 21.0 | 1.10 | 2.00 |";
        assert!(sections[0].text.contains(ours), "{}", sections[0].text);
        assert!(
            sections[0]
                .text
                .contains("Left out: instructions, because perf is not here.")
        );
        assert!(
            sections[1].text.contains("| 5,000 | 1.50 (1.00) |"),
            "{}",
            sections[1].text
        );
    }

    #[test]
    fn a_column_without_any_value_is_left_out() {
        let of_ours = |count, verb| Summary {
            n: count,
            ..row("short", "rail-cni", "direct", "one call", 1, verb, 1_000)
        };
        let text_of = |rows: &[Summary]| sections(rows, &[], &run()).unwrap().pop().unwrap().text;
        let few = text_of(&[of_ours(80, "VERSION"), of_ours(80, "STATUS")]);
        assert!(
            few.contains("| call | ms | longest | CPU ms |\n| --- | --- | --- | --- |\n"),
            "{few}"
        );
        assert!(
            few.contains("| STATUS of rail-cni | 1.00 | 1.00 | 1.00 |\n"),
            "{few}"
        );
        let some = text_of(&[of_ours(80, "VERSION"), of_ours(100, "STATUS")]);
        assert!(
            some.contains("| call | ms | p99 | longest | CPU ms |\n"),
            "{some}"
        );
        assert!(
            some.contains("| VERSION of rail-cni | 1.00 | – | 1.00 | 1.00 |\n"),
            "{some}"
        );
    }
}
