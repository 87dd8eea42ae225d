//! The calls that the plugins report: a line of JSON for each call, in the file `calls` of the run
//! directory.
//!
//! The file exists only because the agent makes it: where there is none, the plugins write nothing,
//! and they never wait for a reader. The agent reads the end of the file, and replaces it before it
//! is large.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::host::HostDir;

/// The name of the file.
pub const NAME: &str = "calls";
/// A file of this size is replaced. The plugins stop at 4 MiB.
const LARGE: u64 = 1 << 20;
/// A line that is longer is none of the plugins'.
const LONGEST_LINE: usize = 64 << 10;
/// A call that opened the old file before the new one had its name writes to it within this time.
const LATE: Duration = Duration::from_secs(5);

/// A call of a plugin. A value that the plugin did not know is absent.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct Call {
    /// `rail-cni` or `rail-ipam`.
    pub plugin: String,
    /// `ADD`, `DEL`, `CHECK`, `GC`, or a `STATUS` that failed.
    pub verb: String,
    /// The name of the network.
    pub network: Option<String>,
    /// The pod, as `namespace/name`.
    pub pod: Option<String>,
    /// The UID of the pod.
    pub pod_uid: Option<String>,
    /// The interface in the pod.
    pub interface: Option<String>,
    /// The rail of the network.
    pub rail: Option<u8>,
    /// Duration of the call, in microseconds.
    pub micros: u64,
    /// The error code of CNI; 0 is success.
    pub code: u32,
    /// The error message.
    pub message: Option<String>,
    /// State of earlier pods that this call restored.
    pub restored: Vec<String>,
}

/// The reader of the file.
#[derive(Debug)]
pub struct Tail {
    dir: HostDir,
    current: Open,
    old: Option<(Open, Instant)>,
}

#[derive(Debug)]
struct Open {
    file: File,
    inode: u64,
    /// The start of a line whose end is not written yet.
    partial: Vec<u8>,
}

impl Tail {
    /// Begins with the calls from now on: those before were counted by an earlier agent, or by
    /// none.
    pub fn new(dir: HostDir) -> Result<Tail> {
        let mut current = open(&dir)?;
        current
            .file
            .seek(SeekFrom::End(0))
            .with_context(|| format!("cannot read {}", dir.shown(NAME)))?;
        Ok(Tail {
            dir,
            current,
            old: None,
        })
    }

    /// The calls that ended since the last time.
    pub fn read(&mut self) -> Result<Vec<Call>> {
        let mut calls = Vec::new();
        if let Some((old, until)) = &mut self.old {
            read_lines(old, &mut calls)?;
            if Instant::now() >= *until {
                self.old = None;
            }
        }
        read_lines(&mut self.current, &mut calls)?;
        let named = self.dir.at(NAME).metadata().ok().map(|meta| meta.ino());
        if named != Some(self.current.inode) {
            // Somebody emptied the run directory.
            let new = open(&self.dir)?;
            self.retire(new);
        } else if self
            .current
            .file
            .metadata()
            .is_ok_and(|meta| meta.len() >= LARGE)
        {
            let new = self.rotate()?;
            self.retire(new);
        }
        Ok(calls)
    }

    fn retire(&mut self, new: Open) {
        let old = std::mem::replace(&mut self.current, new);
        self.old = Some((old, Instant::now() + LATE));
    }

    /// Gives the name to an empty file. A call that opened the old one can still write to it.
    fn rotate(&self) -> Result<Open> {
        let temporary = self.dir.at(format!(".{NAME}.new"));
        let make = || -> io::Result<Open> {
            let _ = std::fs::remove_file(&temporary);
            let file = File::options()
                .read(true)
                .append(true)
                .create_new(true)
                .mode(0o600)
                .open(&temporary)?;
            std::fs::rename(&temporary, self.dir.at(NAME))?;
            Open::new(file)
        };
        make().with_context(|| format!("cannot replace {}", self.dir.shown(NAME)))
    }
}

impl Open {
    fn new(file: File) -> io::Result<Open> {
        let inode = file.metadata()?.ino();
        Ok(Open {
            file,
            inode,
            partial: Vec::new(),
        })
    }
}

fn open(dir: &HostDir) -> Result<Open> {
    let path: PathBuf = dir.at(NAME);
    let open = || {
        Open::new(
            File::options()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&path)?,
        )
    };
    open().with_context(|| format!("cannot make {} on the host", dir.shown(NAME)))
}

fn read_lines(open: &mut Open, calls: &mut Vec<Call>) -> Result<()> {
    let mut new = Vec::new();
    (&open.file)
        .take(2 * LARGE)
        .read_to_end(&mut new)
        .context("cannot read the calls of the plugins")?;
    open.partial.append(&mut new);
    let last_newline = open.partial.iter().rposition(|byte| *byte == b'\n');
    let end = last_newline.map_or(0, |position| position + 1);
    let whole_lines: Vec<u8> = open.partial.drain(..end).collect();
    for line in whole_lines.split(|byte| *byte == b'\n') {
        // Skipped without an error each second: the line of another version.
        let Ok(call) = serde_json::from_slice::<Call>(line) else {
            continue;
        };
        if !call.plugin.is_empty() {
            calls.push(call);
        }
    }
    if open.partial.len() > LONGEST_LINE {
        open.partial.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn parsed(text: &str) -> Vec<Call> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        let mut open = Open::new(file).unwrap();
        let mut calls = Vec::new();
        read_lines(&mut open, &mut calls).unwrap();
        calls
    }

    /// A run directory, its reader, and a way to write a line to the file that has the name now.
    fn begun() -> (tempfile::TempDir, Tail) {
        let dir = tempfile::tempdir().unwrap();
        let tail = Tail::new(HostDir::here(dir.path())).unwrap();
        (dir, tail)
    }

    /// As a plugin opens it, which never makes it.
    fn opened(dir: &tempfile::TempDir) -> File {
        File::options()
            .append(true)
            .open(dir.path().join(NAME))
            .unwrap()
    }

    fn append(file: &mut File, micros: u64) {
        writeln!(
            file,
            r#"{{"plugin":"rail-cni","verb":"ADD","micros":{micros}}}"#
        )
        .unwrap();
    }

    fn read(tail: &mut Tail) -> Vec<u64> {
        tail.read()
            .unwrap()
            .iter()
            .map(|call| call.micros)
            .collect()
    }

    #[test]
    fn a_large_file_is_replaced_and_a_late_line_of_the_old_one_counts() {
        let (dir, mut tail) = begun();
        let mut old = opened(&dir);
        append(&mut old, 1);
        assert_eq!(read(&mut tail), [1]);
        let before = tail.current.inode;
        // Just below the limit, and just above.
        let fill = usize::try_from(LARGE - old.metadata().unwrap().len()).unwrap() - 1;
        old.write_all(&[b'\n'].repeat(fill)).unwrap();
        assert_eq!((read(&mut tail), tail.current.inode), (vec![], before));
        append(&mut old, 2);
        assert_eq!(read(&mut tail), [2]);
        assert_ne!(tail.current.inode, before);
        let mut new = opened(&dir);
        assert_eq!(new.metadata().unwrap().len(), 0);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
        append(&mut new, 3);
        append(&mut old, 4);
        assert_eq!(read(&mut tail), [4, 3]);
        // The time of late lines is over: those that are there already count.
        append(&mut old, 5);
        tail.old.as_mut().unwrap().1 = Instant::now();
        assert_eq!(read(&mut tail), [5]);
        append(&mut old, 6);
        append(&mut new, 7);
        assert_eq!(read(&mut tail), [7]);
        assert!(tail.old.is_none());
    }

    #[test]
    fn the_file_is_made_again_when_somebody_emptied_the_run_directory() {
        let (dir, mut tail) = begun();
        let mut old = opened(&dir);
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        append(&mut old, 1);
        assert_eq!(read(&mut tail), [1]);
        append(&mut opened(&dir), 2);
        append(&mut old, 3);
        assert_eq!(read(&mut tail), [3, 2]);
    }

    #[test]
    fn an_agent_begins_with_the_calls_from_now_on() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), "").unwrap();
        append(&mut opened(&dir), 1);
        let mut tail = Tail::new(HostDir::here(dir.path())).unwrap();
        append(&mut opened(&dir), 2);
        assert_eq!(read(&mut tail), [2]);
    }

    #[test]
    fn lines_that_are_cut_off_or_foreign_hide_no_other() {
        let calls = parsed(concat!(
            r#"{"time":"2026-11-22T22:00:00.123456Z","plugin":"rail-cni","verb":"ADD","rail":3,"micros":21345,"code":0}"#,
            "\nnonsense\n[]\n",
            // A full /run took a part of this one.
            r#"{"plugin":"rail-ipam","ver"#,
            "\n",
            r#"{"plugin":"rail-ipam","verb":"DEL","micros":1,"code":5,"message":"no","later":true}"#,
            "\n{\"plugin\":\"rail-c"
        ));
        let shown: Vec<_> = calls
            .iter()
            .map(|call| (call.plugin.as_str(), call.micros, call.code))
            .collect();
        assert_eq!(shown, [("rail-cni", 21345, 0), ("rail-ipam", 1, 5)]);
    }
}
