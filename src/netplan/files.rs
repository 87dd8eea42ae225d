//! Which file is which host's.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::document::{self, Document};
use crate::pool::is_name;

/// A host's files, and what is no file of a host.
pub struct Found {
    /// By the name of the node, its files in netplan's order: what comes later counts.
    pub hosts: BTreeMap<String, Vec<String>>,
    /// What netplan would not read.
    pub ignored: Vec<String>,
}

/// A host, read.
pub struct Host {
    /// The node.
    pub name: String,
    /// Its files.
    pub documents: Vec<Document>,
}

/// The hosts below these paths. All faults are told at once.
pub fn find(paths: &[String]) -> Result<Found, Vec<String>> {
    let mut search = Search::default();
    for path in paths {
        search.look_at(Path::new(path));
    }
    let Search { hosts, ignored, mut faults } = search;
    if hosts.is_empty() && faults.is_empty() {
        faults.push(format!(
            "{}: no files of hosts: NODE.yaml, NODE/*.yaml or NODE/etc/netplan/*.yaml",
            paths.join(", ")
        ));
    }
    if faults.is_empty() { Ok(Found { hosts, ignored }) } else { Err(faults) }
}

impl Host {
    /// Reads a host's files.
    pub fn read(name: String, files: &[String], faults: &mut Vec<String>) -> Host {
        let mut documents = Vec::new();
        for file in files {
            match document::read(file) {
                Ok(some) => {
                    if let [_, second, ..] = some.as_slice() {
                        let second = second.root().place("");
                        faults.push(format!("{second}: a second document: netplan takes one"));
                    }
                    documents.extend(some.into_iter().take(1));
                }
                Err(fault) => faults.push(fault.to_string()),
            }
        }
        Host { name, documents }
    }
}

#[derive(Default)]
struct Search {
    hosts: BTreeMap<String, Vec<String>>,
    ignored: Vec<String>,
    faults: Vec<String>,
}

impl Search {
    /// What the user named.
    fn look_at(&mut self, path: &Path) {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                if path.canonicalize().is_ok_and(|path| path.ends_with("etc/netplan")) {
                    self.fault(path, "is the folder of one host: name a folder with NODE/etc/netplan in it");
                } else {
                    self.folder(path);
                }
            }
            Ok(_) => self.file(path),
            Err(error) => self.fault(path, &error.to_string()),
        }
    }

    /// A folder with hosts.
    fn folder(&mut self, folder: &Path) {
        for path in self.entries(folder) {
            match kind(&path) {
                Ok(Kind::Folder) => self.host(&path),
                Ok(Kind::Other) if is_yaml(&path) => self.file(&path),
                Ok(Kind::Other) => self.ignored.push(path.display().to_string()),
                Ok(Kind::Link) => self.fault(&path, LINK),
                Err(error) => self.fault(&path, &error.to_string()),
            }
        }
    }

    /// A folder of one host, perhaps its root.
    fn host(&mut self, folder: &Path) {
        let (etc, netplan) = (folder.join("etc"), folder.join("etc/netplan"));
        let mut at = folder;
        for path in [&etc, &netplan] {
            match kind(path) {
                Ok(Kind::Folder) if path == &netplan => at = &netplan,
                Ok(Kind::Link) => return self.fault(path, LINK),
                _ => (),
            }
        }
        let mut files = Vec::new();
        for path in self.entries(at) {
            match kind(&path) {
                Ok(Kind::Link) => self.fault(&path, LINK),
                Ok(Kind::Other) if is_yaml(&path) => files.push(path),
                Ok(_) => self.ignored.push(path.display().to_string()),
                Err(error) => self.fault(&path, &error.to_string()),
            }
        }
        match files.is_empty() {
            true => self.ignored.push(folder.display().to_string()),
            false => self.add(folder, folder.file_name(), files),
        }
    }

    fn file(&mut self, path: &Path) {
        if is_yaml(path) {
            self.add(path, path.file_stem(), vec![path.to_owned()]);
        } else {
            self.fault(path, "a host's file is called NODE.yaml");
        }
    }

    fn add(&mut self, path: &Path, name: Option<&std::ffi::OsStr>, files: Vec<PathBuf>) {
        let Some(name) = name.and_then(|name| name.to_str()).filter(|name| is_name(name)) else {
            return self.fault(path, "its name is no name of a node");
        };
        let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        if let Some(others) = self.hosts.insert(name.to_owned(), files) {
            self.fault(path, &format!("node {name} has {} already", others.join(", ")));
        }
    }

    /// Sorted; netplan reads none that is hidden.
    fn entries(&mut self, folder: &Path) -> Vec<PathBuf> {
        let is_seen =
            |path: &PathBuf| !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let all =
            || -> io::Result<Vec<PathBuf>> { fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect() };
        match all() {
            Ok(mut all) => {
                all.retain(is_seen);
                all.sort();
                all
            }
            Err(error) => {
                self.fault(folder, &error.to_string());
                Vec::new()
            }
        }
    }

    fn fault(&mut self, path: &Path, why: &str) {
        self.faults.push(format!("{}: {why}", path.display()));
    }
}

const LINK: &str = "a symbolic link, which could name another host's file: name the file itself";

enum Kind {
    Folder,
    Link,
    Other,
}

fn kind(path: &Path) -> io::Result<Kind> {
    let found = fs::symlink_metadata(path)?;
    Ok(match found.file_type() {
        it if it.is_symlink() => Kind::Link,
        it if it.is_dir() => Kind::Folder,
        _ => Kind::Other,
    })
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml")
}
