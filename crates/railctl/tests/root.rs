//! railctl run by an ordinary user.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use nix::unistd::geteuid;

/// The user `nobody`, and its group.
const NOBODY: u32 = 65534;

/// Runs railctl as the current user, or as nobody if that is root.
fn as_user(arguments: &[&str]) -> Output {
    // A process that another test starts meanwhile would have the copy open for writing, and the
    // kernel executes no such file.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let temp = tempfile::tempdir_in("/tmp").unwrap();
    let program = temp.path().join("railctl");
    fs::copy(env!("CARGO_BIN_EXE_railctl"), &program).unwrap();
    for path in [temp.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/");
    command.env_remove("RAIL_CNI_NODE_CONFIG");
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.output().unwrap()
}

#[test]
fn a_command_that_needs_root_says_so_in_one_line() {
    for arguments in [
        "status",
        "check",
        "leases",
        "devices",
        "cables",
        "discover",
        "wait --timeout 1",
        "reap --dry-run",
        "release --address 172.16.0.0",
        "vfs --check",
        "preflight",
        "import pools.yaml",
        "plan fabric.yaml --to store",
        "plan fabric.yaml --check",
    ] {
        let words: Vec<&str> = arguments.split(' ').collect();
        let output = as_user(&words);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {message}");
        assert_eq!(output.stdout, b"", "{arguments}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("needs root"), "{message}");
        let command = format!("run `sudo railctl {arguments}`");
        assert!(message.trim_end().ends_with(&command), "{message}");
    }
}

#[test]
fn doctor_skips_what_only_root_can_see() {
    let output = as_user(&["doctor", "--output", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut skipped = Vec::new();
    for check in report["checks"].as_array().unwrap() {
        let name = check["check"].as_str().unwrap();
        if check["text"] == "needs root" {
            assert_eq!(check["verdict"], "skip", "{check}");
            skipped.push(name);
        } else if check["verdict"] == "fail" {
            assert_eq!(name, "root", "{check}");
        }
    }
    for name in ["run", "store", "pf", "pools", "leases"] {
        assert!(skipped.contains(&name), "{name}: {skipped:?}");
    }
}
