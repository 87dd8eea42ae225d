//! `--out`: writes the files of a target to a directory, and removes those of an earlier plan.
//!
//! A hidden file in the directory lists what was written, so that other files are never removed.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use imara_diff::{Algorithm, BasicLineDiffPrinter, Diff, InternedInput, UnifiedDiffConfig};
use serde_json::json;

use super::report::Run;
use crate::output::{self, Output, pretty, print, table};
use rail_cni::failure;
use rail_cni::fault::SHOWN;
use rail_cni::files::{self, hash};
use rail_plan::File;

/// A name that kubectl, netplan and `railctl plan` ignore.
const WRITTEN: &str = ".rail-ipam-plan";

/// The files that were written for each target, with a hash of their content.
type Written = BTreeMap<String, BTreeMap<String, String>>;

/// The writer of files with a target's ending in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Plans only: a file that is not listed is probably of an earlier plan.
    Plans,
    /// Anybody.
    Anybody,
}

/// The treatment of an earlier plan's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// They stay, with a message.
    Keep,
    /// They are removed.
    Remove,
}

/// The way of writing a target's files.
#[derive(Debug)]
pub struct Out<'a> {
    /// The directory.
    pub dir: &'a Path,
    /// The name of the target on the command line.
    pub target: &'a str,
    /// The mode of new files.
    pub mode: u32,
    /// Other writers of files with this ending.
    pub owner: Owner,
    /// The treatment of an earlier plan's files.
    pub stale: Stale,
    /// Whether anything is written.
    pub run: Run,
}

/// Writes files to a directory, each under another name first, and then renamed. Files of others
/// stay.
pub fn write(out: &Out<'_>, files: &[File], output: Output) -> Result<ExitCode> {
    let mut written = out.written()?;
    let mut changes: Vec<(&str, &str)> = Vec::new();
    for file in files {
        let path = out.dir.join(&file.name);
        let before = read(&path)?;
        let change = match &before {
            None => "new",
            Some(before) if before == file.text.as_bytes() => "same",
            Some(_) => "changed",
        };
        if out.run == Run::Dry && change == "changed" && output == Output::Table {
            let before =
                String::from_utf8_lossy(before.as_deref().unwrap_or_default()).into_owned();
            print(&difference(&path, &before, &file.text))?;
        }
        changes.push((&file.name, change));
    }
    let now: BTreeMap<String, String> = files
        .iter()
        .map(|file| (file.name.clone(), hash(&[&file.text])))
        .collect();
    let mut earlier = written.remove(out.target).unwrap_or_default();
    earlier.retain(|name, _| {
        !now.contains_key(name) && is_plain(name) && out.dir.join(name).symlink_metadata().is_ok()
    });
    let unknown = out.unknown(files, &earlier, &written)?;

    if out.run == Run::Write {
        std::fs::create_dir_all(out.dir)
            .with_context(|| format!("cannot make {}", out.dir.display()))?;
        for (file, (_, change)) in files.iter().zip(&changes) {
            if *change != "same" {
                out.put(&file.name, &file.text, out.mode)?;
            }
        }
    }
    let mut left = now;
    for (name, hash) in &earlier {
        let change = out.end(name, hash)?;
        if change != "removed" || out.run == Run::Dry {
            left.insert(name.clone(), hash.clone());
        }
        changes.push((name, change));
    }
    if out.run == Run::Write {
        written.insert(out.target.to_owned(), left);
        let text = pretty(&json!(written));
        if read(&out.dir.join(WRITTEN))?.as_deref() != Some(text.as_bytes()) {
            out.put(WRITTEN, &text, 0o666)?;
        }
    }
    out.tell(&changes, &unknown);
    out.show(&changes, output)
}

impl Out<'_> {
    fn written(&self) -> Result<Written> {
        let path = self.dir.join(WRITTEN);
        let Some(text) = read(&path)? else {
            return Ok(Written::new());
        };
        serde_json::from_slice(&text).map_err(|error| {
            let file = path.display();
            failure!(
                Decode,
                "{file}: {error}: it lists the files of earlier plans: remove it, and check \
                for such files yourself"
            )
        })
    }

    /// Files that are not listed, which an older rail-ipam may have written.
    fn unknown(
        &self,
        files: &[File],
        earlier: &BTreeMap<String, String>,
        others: &Written,
    ) -> Result<Vec<String>> {
        let ending = files
            .first()
            .and_then(|file| file.name.rsplit_once('.'))
            .map(|(_, ending)| ending);
        let Some(ending) = ending.filter(|_| self.owner == Owner::Plans) else {
            return Ok(Vec::new());
        };
        let entries = match std::fs::read_dir(self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("cannot read {}", self.dir.display()))?,
        };
        let ours: std::collections::HashSet<&str> =
            files.iter().map(|file| file.name.as_str()).collect();
        let mut unknown: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| {
                is_plain(name) && name.rsplit_once('.').is_some_and(|(_, own)| own == ending)
            })
            .filter(|name| !ours.contains(name.as_str()) && !earlier.contains_key(name))
            .filter(|name| !others.values().any(|files| files.contains_key(name)))
            .collect();
        unknown.sort();
        Ok(unknown)
    }

    /// Removes or keeps a file that the plan does not make any more, and returns the word for that.
    fn end(&self, name: &str, written: &str) -> Result<&'static str> {
        let path = self.dir.join(name);
        let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
        let text = if is_file { read(&path)? } else { None };
        let is_as_written = text.is_some_and(|text| {
            std::str::from_utf8(&text).is_ok_and(|text| hash(&[text]) == written)
        });
        Ok(match (is_as_written, self.stale) {
            (false, _) => "edited",
            (true, Stale::Keep) => "stale",
            (true, Stale::Remove) => {
                if self.run == Run::Write {
                    std::fs::remove_file(&path)
                        .with_context(|| format!("cannot remove {}", path.display()))?;
                }
                "removed"
            }
        })
    }

    /// Writes a file, never through a link. A half-written file of a killed run is removed.
    fn put(&self, name: &str, text: &str, mode: u32) -> Result<()> {
        let (path, beside) = (self.dir.join(name), self.dir.join(format!(".{name}.new")));
        let mut options = std::fs::File::options();
        options.write(true).create_new(true).mode(mode);
        let _ = std::fs::remove_file(&beside);
        options
            .open(&beside)
            .and_then(|mut opened| opened.write_all(text.as_bytes()))
            .and_then(|()| std::fs::rename(&beside, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn tell(&self, changes: &[(&str, &str)], unknown: &[String]) {
        let all = |word: &str| -> Vec<&str> {
            changes
                .iter()
                .filter(|(_, change)| *change == word)
                .map(|(name, _)| *name)
                .collect()
        };
        let say = |names: &[&str], what: &str| {
            if let Some((first, more)) = names.split_at_checked(SHOWN.min(names.len())) {
                if first.is_empty() {
                    return;
                }
                let more = if more.is_empty() {
                    String::new()
                } else {
                    format!(" and {} more", more.len())
                };
                let dir = self.dir.display();
                output::say(&format!("{dir}: {what}: {}{more}", first.join(", ")));
            }
        };
        say(
            &all("stale"),
            "written for an earlier plan: it stays (--prune removes it)",
        );
        say(
            &all("edited"),
            "written for an earlier plan, but edited since, so it stays: check it, and remove it",
        );
        let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
        say(
            &unknown,
            "not in this plan, and not written by one: check it, and remove it if it is old",
        );
    }

    /// Prints the changes. The table only counts files that stay the same.
    fn show(&self, changes: &[(&str, &str)], output: Output) -> Result<ExitCode> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, change) in changes {
            *counts.entry(change).or_default() += 1;
        }
        let path = |name: &str| self.dir.join(name).display().to_string();
        match output {
            Output::Json => {
                let files: Vec<_> = changes
                    .iter()
                    .map(|(name, change)| json!({"file": path(name), "change": change}))
                    .collect();
                let is_dry = self.run == Run::Dry;
                print(&pretty(
                    &json!({"dryRun": is_dry, "files": files, "counts": counts}),
                ))?;
            }
            Output::Table => {
                let mut rows = Vec::new();
                for (name, change) in changes {
                    if *change != "same" {
                        rows.push(vec![path(name), (*change).to_owned()]);
                    }
                }
                if !rows.is_empty() {
                    print(&table(&["FILE", "CHANGE"], rows.into_iter()))?;
                }
                let counts: Vec<_> = counts
                    .iter()
                    .map(|(change, count)| format!("{count} {change}"))
                    .collect();
                let end = if self.run == Run::Dry {
                    " (nothing written)"
                } else {
                    ""
                };
                print(&format!("{}{end}\n", counts.join(", ")))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether a name is that of a file in the directory itself: others may have changed the list of
/// what was written.
fn is_plain(name: &str) -> bool {
    !name.starts_with('.') && !name.contains('/')
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match files::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The unified diff from the present file to the plan's.
fn difference(path: &Path, before: &str, after: &str) -> String {
    let input = InternedInput::new(before, after);
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let printer = BasicLineDiffPrinter(&input.interner);
    let unified_diff = diff
        .unified_diff(&printer, UnifiedDiffConfig::default(), &input)
        .to_string();
    let mut text = format!("--- {}\n+++ the plan\n", path.display());
    for line in unified_diff.lines() {
        text.push_str(&rail_cni::log::printable(line));
        text.push('\n');
    }
    text
}
