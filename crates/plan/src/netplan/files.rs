//! The files of each host.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::document::{self, Document};
use rail_cni::fault::{Fault, Place};
use rail_cni::pool::is_name;

/// The files below some paths.
pub struct Found {
    /// The files of each host by the name of the node, in netplan's order, in which later values
    /// count.
    pub hosts: BTreeMap<String, Vec<String>>,
    /// Other files, which netplan would not read.
    pub ignored: Vec<String>,
}

/// A host, with the content of its files.
pub struct Host {
    /// The name of the node.
    pub name: String,
    /// Its files in netplan's order.
    pub documents: Vec<Document>,
}

/// Finds the hosts below these paths. The error has all faults.
pub fn find(paths: &[String]) -> Result<Found, Vec<Fault>> {
    let mut search = Search::default();
    for path in paths {
        search.look_at(Path::new(path));
    }
    let Search {
        hosts,
        ignored,
        mut faults,
    } = search;
    if hosts.is_empty() && faults.is_empty() {
        let problem =
            "no files of hosts: expected NODE.yaml, NODE/*.yaml or NODE/etc/netplan/*.yaml";
        faults.push(Fault::whole(problem).at(Place::file(paths.join(", "))));
    }
    if faults.is_empty() {
        Ok(Found { hosts, ignored })
    } else {
        Err(faults)
    }
}

impl Host {
    /// Reads a host's files.
    pub fn read(name: String, files: &[String], faults: &mut Vec<Fault>) -> Host {
        let mut documents = Vec::new();
        for file in files {
            match document::read(file) {
                Ok(some) => {
                    if let [_, second, ..] = some.as_slice() {
                        faults.push(second.root().fault(
                            "",
                            "is a second document, but netplan reads only \
                            one",
                        ));
                    }
                    documents.extend(some.into_iter().take(1));
                }
                Err(fault) => faults.push(fault),
            }
        }
        Host { name, documents }
    }
}

#[derive(Default)]
struct Search {
    hosts: BTreeMap<String, Vec<String>>,
    ignored: Vec<String>,
    faults: Vec<Fault>,
}

impl Search {
    /// Adds a path that the user named.
    fn look_at(&mut self, path: &Path) {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                if path
                    .canonicalize()
                    .is_ok_and(|path| path.ends_with("etc/netplan"))
                {
                    self.fault(
                        path,
                        "is the directory of one host: name a directory that has NODE/etc/netplan",
                    );
                } else {
                    self.directory(path);
                }
            }
            Ok(_) => self.file(path),
            Err(error) => self.fault(path, &error.to_string()),
        }
    }

    /// Adds a directory with hosts.
    fn directory(&mut self, directory: &Path) {
        for path in self.entries(directory) {
            match kind(&path) {
                Ok(Kind::Directory) => self.host(&path),
                Ok(Kind::Other) if is_yaml(&path) => self.file(&path),
                Ok(Kind::Other) => self.ignored.push(path.display().to_string()),
                Ok(Kind::Link) => self.fault(&path, LINK),
                Err(error) => self.fault(&path, &error.to_string()),
            }
        }
    }

    /// Adds the directory of one host, which may be a copy of its root.
    fn host(&mut self, directory: &Path) {
        let (etc, netplan) = (directory.join("etc"), directory.join("etc/netplan"));
        let mut at = directory;
        for path in [&etc, &netplan] {
            match kind(path) {
                Ok(Kind::Directory) if path == &netplan => at = &netplan,
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
            true => self.ignored.push(directory.display().to_string()),
            false => self.add(directory, directory.file_name(), files),
        }
    }

    fn file(&mut self, path: &Path) {
        if is_yaml(path) {
            self.add(path, path.file_stem(), vec![path.to_owned()]);
        } else {
            self.fault(path, "is not NODE.yaml, the file of a host");
        }
    }

    fn add(&mut self, path: &Path, name: Option<&std::ffi::OsStr>, files: Vec<PathBuf>) {
        let Some(name) = name
            .and_then(|name| name.to_str())
            .filter(|name| is_name(name))
        else {
            return self.fault(path, "the name is not a valid name of a node");
        };
        let files: Vec<_> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        if let Some(others) = self.hosts.insert(name.to_owned(), files) {
            self.fault(
                path,
                &format!("node {name} has {} already", others.join(", ")),
            );
        }
    }

    /// The entries of a directory, sorted, without hidden ones, which netplan does not read.
    fn entries(&mut self, directory: &Path) -> Vec<PathBuf> {
        let is_seen = |path: &PathBuf| {
            !path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
        };
        let all = || -> io::Result<Vec<PathBuf>> {
            fs::read_dir(directory)?
                .map(|entry| Ok(entry?.path()))
                .collect()
        };
        match all() {
            Ok(mut all) => {
                all.retain(is_seen);
                all.sort();
                all
            }
            Err(error) => {
                self.fault(directory, &error.to_string());
                Vec::new()
            }
        }
    }

    fn fault(&mut self, path: &Path, why: &str) {
        self.faults
            .push(Fault::whole(why).at(Place::file(path.display().to_string())));
    }
}

const LINK: &str =
    "is a symbolic link, which could lead to another host's file: name the file itself";

enum Kind {
    Directory,
    Link,
    Other,
}

fn kind(path: &Path) -> io::Result<Kind> {
    let found = fs::symlink_metadata(path)?;
    Ok(match found.file_type() {
        it if it.is_symlink() => Kind::Link,
        it if it.is_dir() => Kind::Directory,
        _ => Kind::Other,
    })
}

fn is_yaml(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "yaml")
}
