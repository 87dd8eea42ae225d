//! The code against its map: the layers of the crates, circles of files, the order of the files of
//! `attach`, the modules in ARCHITECTURE.md and in lib.rs of each crate, and the dependencies of the
//! plugins.
#![cfg(test)]
#![allow(missing_docs)]

#[path = "conf/files.rs"]
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use files::{blocks, files_below, in_backquotes, read, source_files};

/// A crate with its modules from the top: a module uses those of the lines below it and those of
/// its own line.
struct Layers {
    /// The name in the picture of ARCHITECTURE.md.
    name: &'static str,
    /// The folder of its source.
    source: &'static str,
    lines: &'static [&'static [&'static str]],
}

/// The crates with layers. Cargo holds their own order.
const CRATES: [Layers; 5] = [
    Layers {
        name: "rail-agent",
        source: "crates/rail-agent/src",
        lines: &[
            &["run", "install"],
            &["watch"],
            &["serve"],
            &["metrics", "rollout"],
            &["node", "refusals", "events"],
            &["preflight", "revision", "alive", "devices"],
            &["ready", "place", "cables", "claims", "dranet", "node_json"],
            &["report", "calls", "held", "lock", "api"],
            &["host"],
            &["text", "runtime", "kubelet"],
        ],
    },
    Layers {
        name: "railctl",
        source: "crates/railctl/src",
        lines: &[&["commands"], &["store"], &["output", "progress"]],
    },
    Layers {
        name: "rail-plan",
        source: "crates/plan/src",
        lines: &[
            &[
                "topology", "fabric", "netplan", "networks", "csv", "html", "nics", "slurm",
                "template", "volcano",
            ],
            &["manifest", "nads", "groups", "leaves"],
            &["cables"],
            &["rails"],
            &["scheme"],
            &["plan"],
            &["refusal", "pattern", "natural", "yaml", "document", "page"],
        ],
    },
    Layers {
        name: "rail-cni",
        source: "src",
        lines: &[
            &["attach"],
            &["ipam", "device"],
            &["pool", "netconf"],
            &["node"],
            &["cni", "every_netns", "neighbours"],
            &["netns", "rdma_cm"],
            &["sysfs"],
            &["confine", "files", "cluster_networks", "calls"],
            &["log"],
            &["nearest", "fault", "watchdog", "error"],
        ],
    },
    Layers {
        name: "rail-netlink",
        source: "crates/netlink/src",
        lines: &[
            &["saved"],
            &[
                "address",
                "route",
                "rule",
                "neighbour",
                "filter",
                "vf",
                "carriers",
                "tunables",
                "stacked",
                "devconf",
                "ethtool",
                "devlink",
                "dcb",
                "rdma",
            ],
            &["link", "generic"],
        ],
    },
];

impl Layers {
    fn modules(&self) -> BTreeSet<&'static str> {
        self.lines.iter().copied().flatten().copied().collect()
    }

    fn line(&self, module: &str) -> Option<usize> {
        self.lines.iter().position(|line| line.contains(&module))
    }

    /// Its Rust files without those of tests.
    fn files(&self) -> Vec<String> {
        let mut files = files_below(self.source);
        files.retain(|file| file.ends_with(".rs") && !file.ends_with("/tests.rs"));
        files
    }
}

/// The first module of a path.
fn top(path: &str) -> &str {
    path.split("::").next().unwrap()
}

#[test]
fn no_module_uses_one_above_it() {
    for layers in &CRATES {
        let uses = uses_in(layers.source);
        let modules: BTreeSet<&str> = uses
            .keys()
            .map(|path| top(path))
            .filter(|module| *module != "bin")
            .collect();
        assert_eq!(modules, layers.modules(), "{}", layers.source);
        let mut upwards = Vec::new();
        for (path, used) in &uses {
            for used in used {
                if layers.line(top(used)) < layers.line(top(path)) && top(path) != "bin" {
                    upwards.push(format!("{path} uses {used}"));
                }
            }
        }
        assert!(upwards.is_empty(), "{}: {upwards:#?}", layers.source);
    }
}

/// The files of a crate that one names, as paths of modules. `text` is that of the file of `module`.
fn files_used(text: &str, module: &str, all: &BTreeSet<String>) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join(" ");
    let above = module.rsplit_once("::").map_or("", |(above, _)| above);
    let is_folder = all
        .iter()
        .any(|other| other.starts_with(&format!("{module}::")));
    let own = if is_folder { module } else { above };
    let starts = [
        ("crate::", ""),
        ("super::", if is_folder { above } else { own }),
    ];
    let mut found = BTreeSet::new();
    for (start, base) in starts {
        for (at, _) in code.match_indices(start) {
            for path in paths(&code[at + start.len()..]) {
                let mut path = if base.is_empty() {
                    path
                } else {
                    format!("{base}::{path}")
                };
                // An item is in the file of the module before it.
                while !path.is_empty() && !all.contains(&path) {
                    path = path
                        .rsplit_once("::")
                        .map_or(String::new(), |(path, _)| path.to_owned());
                }
                found.insert(path);
            }
        }
    }
    found.remove("");
    found.remove(module);
    found
}

/// The paths that a path of `use` is, with its lists in braces taken apart.
fn paths(text: &str) -> Vec<String> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let path: String = text.chars().take_while(|c| is_path(*c)).collect();
    let Some(inside) = text[path.len()..].strip_prefix('{') else {
        return vec![path.trim_matches(':').to_owned()];
    };
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in inside.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => (),
        }
        parts.last_mut().unwrap().push(c);
    }
    let parts = parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty());
    parts
        .flat_map(paths)
        .map(|part| {
            format!("{path}{part}")
                .trim_end_matches("::self")
                .to_owned()
        })
        .collect()
}

/// A file uses those below it.
#[test]
fn the_files_of_attach_are_in_an_order() {
    const ORDER: [&str; 26] = [
        "attachments",
        "del",
        "check",
        "chained",
        "add",
        "reattach",
        "attaching",
        "claim",
        "heal",
        "rebuild",
        "pending",
        "undo",
        "state",
        "away",
        "planes",
        "records",
        "record",
        "steps",
        "step",
        "started",
        "ipam",
        "context",
        "locate",
        "locks",
        "owner",
        "",
    ];
    let mut uses = BTreeMap::new();
    for (name, used) in uses_in("src") {
        let in_attach = |name: &String| name.strip_prefix("attach::").map(str::to_owned);
        if let Some(name) = in_attach(&name) {
            let used: BTreeSet<String> = used.iter().filter_map(in_attach).collect();
            uses.insert(name, used);
        }
    }
    let rank = |name: &str| {
        ORDER
            .iter()
            .position(|one| *one == name.split("::").next().unwrap())
            .unwrap()
    };
    let mut upwards = Vec::new();
    for (one, used) in &uses {
        upwards.extend(
            used.iter()
                .filter(|used| rank(used) < rank(one))
                .map(|used| format!("{one} uses {used}")),
        );
    }
    assert!(upwards.is_empty(), "{upwards:#?}");
    let arrows: usize = uses.values().map(BTreeSet::len).sum();
    assert!(arrows > 100, "{arrows}");
}

/// The files that each file of a crate uses, as paths of modules.
fn uses_in(source: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut files = BTreeMap::new();
    for file in files_below(source) {
        let path = file.strip_prefix(source).unwrap().trim_start_matches('/');
        let Some(path) = path.strip_suffix(".rs") else {
            continue;
        };
        let module = path.trim_end_matches("/mod").replace('/', "::");
        let is_root = ["lib", "main"].contains(&module.as_str());
        if !is_root && !module.ends_with("tests") {
            files.insert(module, file);
        }
    }
    let all: BTreeSet<String> = files.keys().cloned().collect();
    let mut uses = BTreeMap::new();
    for (module, file) in files {
        let used = files_used(&read(&file), &module, &all);
        uses.insert(module, used);
    }
    uses
}

/// The files of a circle, and those that use one; empty without a circle.
fn circle(mut uses: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    // A file that uses none of the remaining ones is in no circle.
    while let Some(free) = uses
        .iter()
        .find(|(_, used)| used.is_empty())
        .map(|(name, _)| name.clone())
    {
        uses.remove(&free);
        for used in uses.values_mut() {
            used.remove(&free);
        }
    }
    uses
}

#[test]
fn no_files_of_a_crate_make_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = vec!["src".to_owned()];
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let source = format!("crates/{name}/src");
        if root.join(&source).is_dir() {
            sources.push(source);
        }
    }
    assert!(sources.len() > 6, "{sources:?}");
    let mut circles = BTreeMap::new();
    for source in sources {
        let uses = uses_in(&source);
        let found = circle(uses);
        if !found.is_empty() {
            circles.insert(source, found);
        }
    }
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn architecture_has_the_layers_and_every_directory_of_the_code() {
    let text = read("ARCHITECTURE.md");
    let [picture] = &blocks(&text, "text layers")[..] else {
        panic!("one picture")
    };
    let mut shown: BTreeMap<&str, Vec<BTreeSet<&str>>> = BTreeMap::new();
    let mut name = "";
    let mut is_continued = false;
    for line in picture.lines() {
        // The last column explains the modules.
        let line = line
            .char_indices()
            .nth(68)
            .map_or(line, |(at, _)| &line[..at]);
        let words: Vec<&str> = line
            .split([' ', ','])
            .filter(|word| !word.is_empty())
            .collect();
        let header = CRATES.iter().find(|layers| words.contains(&layers.name));
        match header {
            Some(layers) => name = layers.name,
            None if words.is_empty() => (),
            None => {
                let lines = shown.entry(name).or_default();
                if !is_continued {
                    lines.push(BTreeSet::new());
                }
                lines.last_mut().unwrap().extend(words);
            }
        }
        is_continued = line.trim_end().ends_with(',');
    }
    for layers in &CRATES {
        let lines: Vec<BTreeSet<&str>> = layers
            .lines
            .iter()
            .map(|line| line.iter().copied().collect())
            .collect();
        assert_eq!(shown.get(layers.name), Some(&lines), "{}", layers.name);
    }
    for file in CRATES.iter().flat_map(Layers::files) {
        let (directory, _) = file.rsplit_once('/').unwrap();
        let is_source = CRATES.iter().any(|layers| layers.source == directory);
        let is_there = is_source || text.contains(&format!("`{directory}/`"));
        // The checks of one command, and what is below it.
        let is_of_a_command = directory.starts_with("crates/railctl/src/commands/");
        assert!(
            is_there || is_of_a_command,
            "ARCHITECTURE.md does not name {directory}/"
        );
    }
    for path in in_backquotes(&text) {
        let Some((directory, _)) = path.split_once('/') else {
            continue;
        };
        let is_module = |layers: &&Layers| layers.modules().contains(directory);
        let mut of_crates = CRATES.iter().filter(is_module).peekable();
        if of_crates.peek().is_some() {
            let is_there = |layers: &Layers| {
                let file = format!("{}/{path}", layers.source);
                Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists()
            };
            assert!(of_crates.any(is_there), "{path} is not there");
        }
    }
}

#[test]
fn each_crate_names_its_modules_and_each_file_says_what_it_is_for() {
    for layers in &CRATES {
        let map = read(&format!("{}/lib.rs", layers.source));
        for module in layers.modules() {
            assert!(
                map.contains(&format!("`{module}`")),
                "{}/lib.rs does not name {module}",
                layers.source
            );
        }
    }
    let agent = files_below("crates/rail-agent/src").into_iter();
    for file in source_files().into_iter().chain(agent) {
        if file.ends_with("/tests.rs") || !file.ends_with(".rs") {
            continue;
        }
        assert!(
            read(&file).starts_with("//! "),
            "{file} does not say what it is for"
        );
    }
}

/// A pod waits for the plugins, and they run as root.
#[test]
fn the_plugins_are_built_without_the_dependencies_of_railctl() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--package", "rail-cni"])
        .args(["--edges", "normal", "--prefix", "none"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let tree = String::from_utf8(output.stdout).unwrap();
    let packages: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(packages.contains("rail-netlink"), "{tree}");
    for package in ["clap", "comfy-table", "csv", "granit-parser", "minijinja"] {
        assert!(!packages.contains(package), "{package}");
    }
}
