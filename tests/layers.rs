//! The code against its map: the layers of the crates, the order of the files of `attach`, and what
//! ARCHITECTURE.md and the crates say of their modules.
#![cfg(test)]
#![allow(missing_docs)]

#[path = "conf/files.rs"]
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use files::{blocks, files_below, in_backquotes, read, source_files};

/// A crate, and its modules from the top: a module uses those of the lines below it and those of
/// its own line.
struct Layers {
    /// The folder of its source.
    source: &'static str,
    lines: &'static [&'static [&'static str]],
}

/// What people type stands on what runs at the start of a pod, which knows nothing of it: Cargo
/// holds that.
const CRATES: [Layers; 3] = [
    Layers {
        source: "crates/railctl/src",
        lines: &[&["commands"], &["store"], &["output", "progress"]],
    },
    Layers {
        source: "crates/plan/src",
        lines: &[
            &[
                "topology", "fabric", "netplan", "networks", "csv", "html", "nics", "nvue",
                "slurm", "volcano",
            ],
            &["manifest", "nads", "groups"],
            &["rails"],
            &["scheme"],
            &["plan"],
            &["refusal", "pattern", "natural", "yaml", "document", "page"],
        ],
    },
    Layers {
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
];

impl Layers {
    fn modules(&self) -> BTreeSet<&'static str> {
        self.lines
            .iter()
            .flat_map(|line| line.iter().copied())
            .collect()
    }

    fn line(&self, module: &str) -> Option<usize> {
        self.lines.iter().position(|line| line.contains(&module))
    }

    /// Its Rust files, each with its module.
    fn files(&self) -> Vec<(String, String)> {
        let in_source = |file: &String| {
            file.strip_prefix(self.source)?
                .strip_prefix('/')
                .map(str::to_owned)
        };
        let module = |path: String| {
            path.split('/')
                .next()
                .unwrap()
                .trim_end_matches(".rs")
                .to_owned()
        };
        let files = source_files()
            .into_iter()
            .filter_map(|file| Some((module(in_source(&file)?), file)));
        files
            .filter(|(_, file)| !file.ends_with("/tests.rs"))
            .filter(|(module, _)| !["lib", "main", "bin"].contains(&module.as_str()))
            .collect()
    }
}

/// The modules of the crate that the code of a file names, with the macros of `error`.
fn modules_used(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    for (_, after) in code
        .match_indices("crate::")
        .map(|(at, start)| (at, &code[at + start.len()..]))
    {
        let list = after.strip_prefix('{').map_or_else(
            || {
                after
                    .split(|c| !is_word(c))
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            },
            |inside| {
                let (mut depth, mut names) = (0, String::new());
                for c in inside.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        c if depth == 0 => names.push(c),
                        _ => (),
                    }
                }
                names
            },
        );
        let first = |path: &str| {
            path.trim()
                .split("::")
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        found.extend(list.split(',').map(first).filter(|name| !name.is_empty()));
    }
    let macros = ["fail", "failure"];
    found
        .into_iter()
        .map(|name| {
            if macros.contains(&name.as_str()) {
                "error".to_owned()
            } else {
                name
            }
        })
        .collect()
}

#[test]
fn no_module_uses_one_above_it() {
    let mut wrong = Vec::new();
    for layers in &CRATES {
        let mut seen = BTreeSet::new();
        for (module, path) in layers.files() {
            seen.insert(module.clone());
            let Some(own) = layers.line(&module) else {
                wrong.push(format!("{path} is in no layer"));
                continue;
            };
            for used in modules_used(&read(&path))
                .iter()
                .filter(|used| **used != module)
            {
                if layers.line(used).is_none_or(|of_used| of_used < own) {
                    wrong.push(format!("{path}: uses {used}"));
                }
            }
        }
        let listed = layers.modules();
        assert!(
            seen.iter().map(String::as_str).eq(listed.iter().copied()),
            "{listed:?}, but there are {seen:?}"
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(modules_used("use crate::{fail, cni::{self, keys}, node};").len() == 3);
}

/// The files below `src/FOLDER` that one names, as paths of modules below it. `text` is that of the
/// file of `module`.
fn files_used(text: &str, folder: &str, module: &str, all: &BTreeSet<String>) -> BTreeSet<String> {
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
    let mut found = BTreeSet::new();
    let from_root = format!("crate::{folder}::");
    let starts = [
        (from_root.as_str(), ""),
        ("super::", if is_folder { above } else { own }),
    ];
    for (start, base) in starts {
        for (at, _) in code.match_indices(start) {
            for path in paths(&code[at + start.len()..]) {
                let mut path = if base.is_empty() {
                    path
                } else {
                    format!("{base}::{path}")
                };
                // Of a module that is a folder, what is not a file below it is its mod.rs.
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

/// What is above uses what is below.
#[test]
fn the_files_of_attach_are_in_an_order() {
    const ORDER: [&str; 21] = [
        "del", "check", "chained", "add", "claim", "rebuild", "pending", "undo", "state", "planes",
        "records", "format", "record", "steps", "started", "ipam", "context", "locate", "locks",
        "owner", "",
    ];
    let uses = uses_in("attach");
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

/// Which files below `src/FOLDER` each of them uses.
fn uses_in(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let start = format!("src/{folder}/");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(&start);
    let module = |file: &String| {
        let path = file
            .strip_prefix(&start)
            .unwrap()
            .trim_end_matches(".rs")
            .trim_end_matches("/mod");
        path.replace('/', "::")
    };
    let files = files_below(start.trim_end_matches('/'));
    let all: BTreeSet<String> = files
        .iter()
        .map(module)
        .filter(|name| name != "mod" && !name.ends_with("tests"))
        .collect();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in &all {
        let path = root.join(name.replace("::", "/"));
        let file = path.with_extension("rs");
        let path = if file.exists() {
            file
        } else {
            path.join("mod.rs")
        };
        uses.insert(
            name.clone(),
            files_used(&fs::read_to_string(path).unwrap(), folder, name, &all),
        );
    }
    uses
}

#[test]
fn no_files_of_the_plugins_make_a_circle() {
    for folder in ["attach", "cni", "confine", "device", "ipam", "node", "pool"] {
        let mut uses = uses_in(folder);
        // Whatever uses nothing that is left is taken away; of a circle nothing can be.
        while let Some(name) = uses
            .iter()
            .find(|(_, used)| used.is_empty())
            .map(|(name, _)| name.clone())
        {
            uses.remove(&name);
            for used in uses.values_mut() {
                used.remove(&name);
            }
        }
        assert!(uses.is_empty(), "src/{folder}, a circle: {uses:#?}");
    }
}

#[test]
fn architecture_has_the_layers_and_every_directory_of_the_code() {
    let text = read("ARCHITECTURE.md");
    let [picture] = &blocks(&text, "text layers")[..] else {
        panic!("one picture")
    };
    let lines: Vec<&[&str]> = CRATES
        .iter()
        .flat_map(|layers| layers.lines.iter().copied())
        .collect();
    let names: BTreeSet<&str> = lines.iter().flat_map(|line| line.iter().copied()).collect();
    let mut seen = Vec::new();
    for line in picture.lines() {
        // What a line says of its modules is in the last column, after two spaces and more.
        let line = line
            .char_indices()
            .nth(68)
            .map_or(line, |(at, _)| &line[..at]);
        let words = line.split([' ', ',']).filter(|word| names.contains(word));
        seen.extend(words.map(|word| {
            (
                lines.iter().position(|line| line.contains(&word)).unwrap(),
                word,
            )
        }));
    }
    assert!(seen.is_sorted_by_key(|(line, _)| *line), "{seen:?}");
    assert_eq!(
        seen.iter().map(|(_, word)| *word).collect::<BTreeSet<_>>(),
        names
    );
    assert_eq!(seen.len(), names.len(), "{seen:?}");
    for file in source_files()
        .iter()
        .filter(|file| !file.ends_with("/tests.rs"))
    {
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
        if names.contains(directory) {
            let is_there =
                |layers: &Layers| source_files().contains(&format!("{}/{path}", layers.source));
            assert!(CRATES.iter().any(is_there), "{path} is not there");
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
    for file in source_files()
        .into_iter()
        .filter(|file| !file.ends_with("/tests.rs"))
    {
        assert!(
            read(&file).starts_with("//! "),
            "{file} does not say what it is for"
        );
    }
}
