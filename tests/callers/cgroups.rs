//! The control groups of the containers of a test, which runc needs.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::node::text_of;

const ROOT: &str = "/sys/fs/cgroup";
/// The parent of all cgroups of the tests.
const OURS: &str = "rail-cni-callers";

/// The groups, which are removed with it. All processes of the test end before.
pub struct Cgroups(());

/// The parent of all groups of this test.
pub fn parent() -> String {
    format!(
        "/{OURS}/{}",
        fs::metadata("/proc/self/ns/net").unwrap().ino()
    )
}

impl Cgroups {
    /// Mounts the hierarchies of this machine, which the sandbox's own sysfs hides, or says why it
    /// cannot.
    pub fn new() -> Result<Cgroups, String> {
        let why = |error: String| format!("no control groups here, which runc needs: {error}");
        mount_all().map_err(why)?;
        Ok(Cgroups(()))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // All processes of this namespace but its first and this one.
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        let root = Path::new(ROOT);
        let hierarchies = fs::read_dir(root)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        for hierarchy in hierarchies.chain([root.to_owned()]) {
            remove(&hierarchy.join(&parent()[1..]));
            // Another test may have its own there.
            let _ = fs::remove_dir(hierarchy.join(OURS));
        }
    }
}

fn mount_all() -> Result<(), String> {
    let mount = |args: &[&str], dir: &str| {
        fs::create_dir_all(dir).map_err(|error| error.to_string())?;
        let output = Command::new("mount").args(args).arg(dir).output().unwrap();
        let text = text_of(&output);
        if output.status.success() {
            Ok(())
        } else {
            Err(text.lines().next().unwrap_or_default().to_owned())
        }
    };
    let hierarchies = fs::read_to_string("/proc/self/cgroup").unwrap();
    let controllers: Vec<_> = hierarchies
        .lines()
        .filter_map(|line| line.split(':').nth(1))
        .collect();
    if controllers == [""] {
        return mount(&["-t", "cgroup2", "cgroup2"], ROOT);
    }
    mount(&["-t", "tmpfs", "tmpfs"], ROOT)?;
    for one in controllers.into_iter().filter(|one| !one.is_empty()) {
        let (dir, option) = match one.strip_prefix("name=") {
            Some(name) => (name, format!("none,{one}")),
            None => (one, one.to_owned()),
        };
        mount(
            &["-t", "cgroup", "-o", &option, "cgroup"],
            &format!("{ROOT}/{dir}"),
        )?;
    }
    Ok(())
}

/// A killed process leaves its group when it is collected: until then the group stays.
fn remove(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while dir.is_dir() && fs::remove_dir(dir).is_err() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
}
