//! `rail-agent install` and `uninstall`: the executables of the plugins on the host.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rustix::fs::{Mode, XattrFlags};
use serde_json::Value;

use crate::api;
use crate::host::{Host, HostDir};
use crate::node_json;
use crate::text::say;

/// rail-ipam first, so that a new rail-cni never calls an old rail-ipam.
const PLUGINS: [&str; 2] = ["rail-ipam", "rail-cni"];
/// Where SELinux keeps the label of a file.
const LABEL: &str = "security.selinux";

/// Arguments of `rail-agent install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Directory of the plugins on the host, where the runtime looks for them
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub plugins_dir: PathBuf,
    /// Directory of this container with the executables to install
    #[arg(long, value_name = "DIR", default_value = "/plugins", conflicts_with = "previous")]
    pub from: PathBuf,
    /// Exchange the installed executables for those that were installed before them
    #[arg(long)]
    pub previous: bool,
}

/// Arguments of `rail-agent uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Directory of the plugins on the host
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub plugins_dir: PathBuf,
    /// Node whose labels and conditions are removed, too; without it, the API server is not asked
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub node: Option<String>,
    #[command(flatten)]
    pub names: api::Names,
    /// Wait for so many seconds until the last pod with rails has ended; without it, refuse while there is one
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
    /// Remove everything although pods have rails. Nothing can restore their devices then
    #[arg(long)]
    pub force: bool,
    /// Do not end after everything was removed: a DaemonSet would start the pod again
    #[arg(long)]
    pub stay: bool,
}

/// `rail-agent install`.
pub fn install(args: &InstallArgs) -> Result<ExitCode> {
    let host = Host::open()?;
    if args.previous {
        let Some(dir) = host.dir(&args.plugins_dir)? else {
            bail!("{} is not on the host: there is nothing to roll back", args.plugins_dir.display());
        };
        roll_back(&dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    let dir = host.make_dir(&args.plugins_dir)?;
    for name in put_all(&dir, &args.from)? {
        say("info", &format!("installed {}", dir.shown(name)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Installs both executables, and returns the names of those that were not there already. Both are written before the
/// first is renamed, so that a full disk leaves the old pair.
fn put_all(dir: &HostDir, from: &Path) -> Result<Vec<&'static str>> {
    let _lock = dir.lock()?;
    let write_all = || -> Result<Vec<&'static str>> {
        let mut new = Vec::new();
        for name in PLUGINS {
            let path = from.join(name);
            let mut source = File::open(&path).with_context(|| {
                format!("cannot open {}, which this image should contain", path.display())
            })?;
            if !is_same(&mut source, dir, name).with_context(|| format!("cannot read {}", dir.shown(name)))? {
                write(&mut source, dir, name).with_context(|| {
                    format!(
                        "cannot write {} on the host; what was installed before is unchanged",
                        dir.shown(name)
                    )
                })?;
                new.push(name);
            }
        }
        Ok(new)
    };
    let new = write_all().inspect_err(|_| {
        for name in PLUGINS {
            let _ = std::fs::remove_file(dir.at(temporary(name)));
        }
    })?;
    for name in &new {
        let rename = || {
            dir.keep_previous(name, &previous(name))?;
            std::fs::rename(dir.at(temporary(name)), dir.at(name))
        };
        rename().with_context(|| format!("cannot replace {} on the host", dir.shown(name)))?;
    }
    dir.sync()?;
    Ok(new)
}

/// The executable while it is written. A runtime finds plugins by their names, and never finds this.
fn temporary(name: &str) -> String {
    format!(".{name}.new")
}

/// The executable that was replaced.
fn previous(name: &str) -> String {
    format!(".{name}.previous")
}

fn is_same(source: &mut File, dir: &HostDir, name: &str) -> io::Result<bool> {
    let mut old = match File::open(dir.at(name)) {
        Ok(old) => old,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let meta = old.metadata()?;
    if meta.len() != source.metadata()?.len() || meta.mode() & 0o7777 != 0o755 {
        return Ok(false);
    }
    let (mut one, mut other) = (Vec::new(), Vec::new());
    source.read_to_end(&mut one)?;
    source.rewind()?;
    old.read_to_end(&mut other)?;
    Ok(one == other)
}

fn write(source: &mut File, dir: &HostDir, name: &str) -> io::Result<()> {
    let path = dir.at(temporary(name));
    // One that a killed install left.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let mut file = File::options().write(true).create_new(true).open(&path)?;
    io::copy(source, &mut file)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o755))?;
    copy_label(dir, name, &file)?;
    file.sync_all()
}

/// Gives the file the SELinux label of the executable that it replaces, or else that of the directory: one that was
/// written by a container could have a label that the runtime must not run.
fn copy_label(dir: &HostDir, name: &str, file: &File) -> io::Result<()> {
    let mut label = vec![0; 4096];
    for path in [dir.at(name), dir.at(".")] {
        // No label, no SELinux, or no such file.
        let Ok(length) = rustix::fs::getxattr(&path, LABEL, &mut label[..]) else { continue };
        return Ok(rustix::fs::fsetxattr(file, LABEL, &label[..length], XattrFlags::empty())?);
    }
    Ok(())
}

/// Exchanges each executable for the one before it.
fn roll_back(dir: &HostDir) -> Result<()> {
    let _lock = dir.lock()?;
    for name in PLUGINS {
        let path = dir.at(previous(name));
        if !path.exists() {
            let shown = dir.shown(&previous(name));
            bail!(
                "there is no {shown} on the host, so nothing was changed: install the image of the version that you want"
            );
        }
    }
    // The older rail-cni knows the older rail-ipam, and the newer one is not needed to know it.
    for name in PLUGINS.iter().rev() {
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(
            rustix::fs::CWD,
            dir.at(name),
            rustix::fs::CWD,
            dir.at(previous(name)),
            flags,
        )
        .with_context(|| format!("cannot exchange {} and {}", dir.shown(name), dir.shown(&previous(name))))?;
        say("info", &format!("{} is the previous version again", dir.shown(name)));
    }
    dir.sync()
}

/// `rail-agent uninstall`.
pub fn uninstall(args: &UninstallArgs) -> Result<ExitCode> {
    let host = Host::open()?;
    if !args.force {
        until_free(&host, &args.plugins_dir.join("rail-cni"), Duration::from_secs(args.wait))?;
    }
    let paths = node_json::Paths::of(&host)?;
    let mut removed = remove(&host, &args.plugins_dir, &PLUGINS.map(str::to_owned))?;
    let hidden: Vec<_> = PLUGINS.iter().flat_map(|name| [previous(name), temporary(name)]).collect();
    removed += remove(&host, &args.plugins_dir, &hidden)?;
    let own = [node_json::NAME, "node.json.previous"].map(str::to_owned);
    removed += remove(&host, Path::new(node_json::DIRECTORY), &own)?;
    removed += remove(&host, &paths.run_dir, &["calls", "agent.lock"].map(str::to_owned))?;
    removed += remove_tree(&host, &paths.store_dir)?;
    say("info", &format!("{removed} files and directories of rail-cni were removed from the host"));
    if let Some(node) = &args.node {
        api::forget(node, &args.names)?;
    }
    if args.stay {
        say("info", "this node is clean; delete this DaemonSet when all of its pods are ready");
        api::until_stopped()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until no pod has a rail. Fails after `patience`.
fn until_free(host: &Host, program: &Path, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    let mut told = String::new();
    loop {
        let list = holders(host, program)?.join(", ");
        if list.is_empty() {
            return Ok(());
        }
        let which =
            format!("rails of this node are still with pods, and only the plugins can restore them: {list}");
        if begun.elapsed() >= patience {
            bail!("{which}; nothing was removed: end these pods, or wait for them with --wait");
        }
        if told != list {
            say("info", &format!("waiting: {which}"));
            told = list;
        }
        std::thread::sleep(Duration::from_secs(2));
    }
}

/// The pods that have rails, and what is owed of pods that are gone. Empty if the plugins are not installed and no
/// record is left.
fn holders(host: &Host, program: &Path) -> Result<Vec<String>> {
    let Some(dir) = program.parent().map(|dir| host.dir(dir)).transpose()?.flatten() else {
        return Ok(Vec::new());
    };
    if !dir.at("rail-cni").exists() {
        let paths = node_json::Paths::of(host)?;
        let records = host.dir(&paths.run_dir.join("attachments"))?;
        let records = records.map(|dir| std::fs::read_dir(dir.at("."))).transpose()?;
        let names = records.into_iter().flatten().flatten().map(|entry| entry.file_name());
        return Ok(names.map(|name| name.to_string_lossy().into_owned()).collect());
    }
    // What can be restored without a pod is restored now. What it says is in the status.
    let _ = host.run_alone(program, &["reap"])?;
    let said = host.run_alone(program, &["status", "--output", "json"])?;
    let status: Value = serde_json::from_str(&said.stdout)
        .with_context(|| format!("`rail-cni status` says: {}", said.stderr.trim()))?;
    let mut holders = Vec::new();
    for (list, what) in [("attachments", "has"), ("debts", "owes for"), ("lost", "has, without a record,")] {
        for one in status[list].as_array().into_iter().flatten() {
            let text = |key: &str| one[key].as_str().map(str::to_owned);
            let who =
                text("pod").or_else(|| text("containerID")).or_else(|| text("netns")).unwrap_or_default();
            holders.push(format!("{who} {what} {}", text("device").unwrap_or_default()));
        }
    }
    let unreadable = status["unreadable"].as_array().into_iter().flatten().filter_map(Value::as_str);
    holders.extend(unreadable.map(|name| format!("the record {name} cannot be read")));
    Ok(holders)
}

fn remove(host: &Host, dir: &Path, names: &[String]) -> Result<usize> {
    let Some(open) = host.dir(dir)? else { return Ok(0) };
    let mut removed = 0;
    for name in names {
        removed += usize::from(open.remove(name)?);
    }
    remove_empty(host, dir);
    Ok(removed)
}

fn remove_tree(host: &Host, dir: &Path) -> Result<usize> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return Ok(0) };
    let Some(open) = host.dir(parent)? else { return Ok(0) };
    match std::fs::remove_dir_all(open.at(name)) {
        Ok(()) => {
            remove_empty(host, parent);
            Ok(1)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error).with_context(|| format!("cannot remove {} of the host", dir.display())),
    }
}

/// Removes one of our directories if nothing is left in it. /opt/cni/bin is everybody's.
fn remove_empty(host: &Host, dir: &Path) {
    if !dir.ends_with("rail-cni") {
        return;
    }
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return };
    if let Ok(Some(parent)) = host.dir(parent) {
        let _ = std::fs::remove_dir(parent.at(name));
    }
}
