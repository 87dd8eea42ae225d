//! Commands that need root. The directories of rail-cni have mode 0700, so another user would get
//! half of an answer, or the error of one system call.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Result, bail};
use nix::unistd::geteuid;
use rail_cni::node::{self, Node};

use crate::output::PROGRAM;

/// Why a check of `doctor` is skipped.
pub const NEEDS_ROOT: &str = "needs root";

/// Whether this process may read the directories of rail-cni.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Fails if the current user is not root and does not own the directories of node.json, as a
/// developer with a node.json of their own does.
pub fn require() -> Result<()> {
    if is_root() {
        return Ok(());
    }
    let node_json = node::path();
    if let Err(error) = File::open(&node_json) {
        if error.kind() == ErrorKind::PermissionDenied {
            return refuse(&node_json);
        }
    }
    let node = Node::load()?;
    for directory in [&node.run_dir, &node.store_dir] {
        if !is_own(directory) {
            return refuse(directory);
        }
    }
    Ok(())
}

fn refuse(path: &Path) -> Result<()> {
    bail!(
        "this command needs root to use {}: run `{}`",
        path.display(),
        with_sudo(std::env::var(node::VARIABLE).ok(), std::env::args().skip(1))
    )
}

/// Whether the directory, or the nearest one above it that exists, belongs to the current user.
fn is_own(directory: &Path) -> bool {
    for path in directory.ancestors() {
        if let Ok(metadata) = path.metadata() {
            return metadata.uid() == geteuid().as_raw();
        }
    }
    false
}

/// The command line for sudo, which does not pass on the environment.
fn with_sudo(node_json: Option<String>, arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["sudo".to_owned()];
    if let Some(path) = node_json {
        words.push(quoted(&format!("{}={path}", node::VARIABLE)));
    }
    words.push(PROGRAM.to_owned());
    for argument in arguments {
        words.push(quoted(&argument));
    }
    words.join(" ")
}

/// The word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_for_sudo_is_the_one_that_was_typed() {
        let typed = ["leases", "--output", "json"].map(str::to_owned);
        assert_eq!(
            with_sudo(None, typed.into_iter()),
            "sudo railctl leases --output json"
        );
        let typed = ["reap", "it's me"].map(str::to_owned);
        assert_eq!(
            with_sudo(Some("/tmp/a node.json".to_owned()), typed.into_iter()),
            r"sudo 'RAIL_CNI_NODE_CONFIG=/tmp/a node.json' railctl reap 'it'\''s me'"
        );
    }
}
