//! `rail-agent install` and `uninstall`: the plugins and railctl on the host.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use rail_cni::pool::store::closed_name;
use rustix::fs::{Mode, XattrFlags};
use serde_json::Value;

use crate::alive;
use crate::dranet;
use crate::held::Held;
use crate::host::{Host, HostDir, PLUGINS, RAILCTL};
use crate::lock;
use crate::node;
use crate::node_json::{self, Paths};
use crate::report::Attachment;
use crate::runtime;
use crate::text::log;

/// In this order, so that a new rail-cni never calls an old rail-ipam, and its records never meet
/// an old railctl.
const EXECUTABLES: [&str; 3] = ["rail-ipam", RAILCTL, "rail-cni"];
/// Directory of the executables before they are installed and after they were replaced: below the
/// directory of the plugins, because there they can be renamed, and not in it, because a network
/// names any executable there as its `type`. CNI takes no separator of paths in a type.
const EXECUTABLES_DIR: &str = ".rail-cni";
/// Mark of an unfinished uninstall, beside node.json: the plugins that are not there were removed
/// by it, when no pod needed them.
const UNINSTALL_MARK: &str = "uninstall.begun";
/// Attribute in which SELinux keeps the label of a file.
const SELINUX_ATTRIBUTE: &str = "security.selinux";
/// Time that another install may keep the lock of that directory, which only root can open: it
/// writes two files.
const INSTALL_LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `rail-agent install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Directory of the plugins on the host, where the runtime looks for them
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub plugins_dir: PathBuf,
    /// Directory of this container with the executables to install
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/plugins",
        conflicts_with = "previous"
    )]
    pub from: PathBuf,
    /// Swap the installed executables with the previous ones
    #[arg(long)]
    pub previous: bool,
}

/// Arguments of `rail-agent uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Directory of the plugins on the host
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub plugins_dir: PathBuf,
    /// Node whose labels and conditions to remove too; without it, the API server is not contacted
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub node: Option<String>,
    /// How long to wait for the last pod with rails to end, in seconds; 0: refuse while there is
    /// one
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
    /// Remove everything even if pods have rails, whose devices then cannot be restored
    #[arg(long)]
    pub force: bool,
    /// Keep running when done, because a DaemonSet would restart the pod
    #[arg(long)]
    pub stay: bool,
}

/// `rail-agent install`.
pub fn install(args: &InstallArgs) -> Result<ExitCode> {
    let host = Host::open()?;
    if args.previous {
        let Some(dir) = host.dir(&args.plugins_dir)? else {
            bail!(
                "{} is not on the host: there is nothing to roll back",
                args.plugins_dir.display()
            );
        };
        roll_back(&host, &dir, &args.plugins_dir.join(EXECUTABLES_DIR))?;
        return Ok(ExitCode::SUCCESS);
    }
    let dir = host.make_dir(&args.plugins_dir, 0o755)?;
    if let Some(own) = host
        .dir(Path::new(node_json::DIRECTORY))?
        .filter(|own| own.at(UNINSTALL_MARK).exists())
    {
        own.remove(UNINSTALL_MARK)?;
    }
    for name in put_all(&host, &dir, args)? {
        log("info", &format!("installed {}", dir.shown(name)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Installs the executables, and returns the names of those that were not there already. All are
/// written and have run before the first is renamed, so that a full disk, or an image for another
/// machine, leaves the old ones.
fn put_all(host: &Host, dir: &HostDir, args: &InstallArgs) -> Result<Vec<&'static str>> {
    if changed(dir, args)?.is_empty() {
        return Ok(Vec::new());
    }
    let path = args.plugins_dir.join(EXECUTABLES_DIR);
    let kept = host
        .make_dir(&path, 0o700)
        .with_context(|| unwritten(dir, EXECUTABLES_DIR))?;
    let _lock = kept.lock(INSTALL_LOCK_TIMEOUT)?;
    // Another install may have done it meanwhile.
    let mut new = changed(dir, args)?;
    let mut write_all = || -> Result<()> {
        for (name, source) in &mut new {
            write(source, dir, &kept, name).with_context(|| unwritten(dir, name))?;
        }
        for (name, _) in &new {
            try_out(host, name, &path.join(temporary(name)))?;
        }
        Ok(())
    };
    write_all().inspect_err(|_| {
        for name in EXECUTABLES {
            let _ = std::fs::remove_file(kept.at(temporary(name)));
        }
    })?;
    let names = new.iter().map(|(name, _)| *name);
    for name in names.clone() {
        let rename = || {
            dir.keep_previous(name, &kept, &previous(name))?;
            std::fs::rename(kept.at(temporary(name)), dir.at(name))
        };
        rename().with_context(|| format!("cannot replace {} on the host", dir.shown(name)))?;
    }
    kept.sync()?;
    dir.sync()?;
    Ok(names.collect())
}

/// The executables of the image that are not installed.
fn changed(dir: &HostDir, args: &InstallArgs) -> Result<Vec<(&'static str, File)>> {
    let mut new = Vec::new();
    for name in EXECUTABLES {
        let path = args.from.join(name);
        let mut source = File::open(&path).with_context(|| {
            format!(
                "cannot open {}, which this image should contain",
                path.display()
            )
        })?;
        if !is_same(&mut source, dir, name)
            .with_context(|| format!("cannot read {}", dir.shown(name)))?
        {
            source
                .rewind()
                .with_context(|| format!("cannot read {}", path.display()))?;
            new.push((name, source));
        }
    }
    Ok(new)
}

fn unwritten(dir: &HostDir, name: &str) -> String {
    format!(
        "cannot write {} on the host; what was installed before is unchanged",
        dir.shown(name)
    )
}

/// The executable while it is written.
fn temporary(name: &str) -> String {
    format!("{name}.new")
}

/// The executable that was replaced.
fn previous(name: &str) -> String {
    format!("{name}.previous")
}

/// Fails if this node cannot execute a file of the image.
fn try_out(host: &Host, name: &str, path: &Path) -> Result<()> {
    let said = runtime::runtime()?.block_on(host.try_out(name, path)).with_context(|| {
        format!(
            "{name} of this image cannot be executed on this node; what was installed before is unchanged: use the image \
             for this architecture"
        )
    });
    said.map(drop)
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

fn write(source: &mut File, dir: &HostDir, kept: &HostDir, name: &str) -> io::Result<()> {
    let path = kept.at(temporary(name));
    // A killed install may have left one.
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

/// Gives the file the SELinux label of the executable that it replaces, or else that of the
/// directory: one that was written by a container could have a label that the runtime must not run.
fn copy_label(dir: &HostDir, name: &str, file: &File) -> io::Result<()> {
    let mut label = vec![0; 4096];
    for path in [dir.at(name), dir.at(".")] {
        // No label, no SELinux, or no such file.
        let Ok(length) = rustix::fs::getxattr(&path, SELINUX_ATTRIBUTE, &mut label[..]) else {
            continue;
        };
        return Ok(rustix::fs::fsetxattr(
            file,
            SELINUX_ATTRIBUTE,
            &label[..length],
            XattrFlags::empty(),
        )?);
    }
    Ok(())
}

/// Exchanges each executable for the one before it. A version without railctl leaves the present
/// one, which works on with older plugins.
fn roll_back(host: &Host, dir: &HostDir, path: &Path) -> Result<()> {
    let nothing = || {
        anyhow!(
            "{} has no previous version, so nothing was changed: install the image of the version that you want",
            path.display()
        )
    };
    let kept = host.dir(path)?.ok_or_else(nothing)?;
    let _lock = kept.lock(INSTALL_LOCK_TIMEOUT)?;
    if !PLUGINS.iter().all(|name| kept.at(previous(name)).exists()) {
        return Err(nothing());
    }
    // The older rail-cni knows the older rail-ipam, and the newer one is not needed to know it.
    for name in EXECUTABLES.iter().rev() {
        let (one, other) = (dir.at(name), kept.at(previous(name)));
        if *name == RAILCTL && !(one.exists() && other.exists()) {
            continue;
        }
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, flags)
            .with_context(|| {
                format!(
                    "cannot exchange {} and {}",
                    dir.shown(name),
                    kept.shown(&previous(name))
                )
            })?;
        log(
            "info",
            &format!("{} is the previous version again", dir.shown(name)),
        );
    }
    kept.sync()?;
    dir.sync()
}

/// `rail-agent uninstall`.
pub fn uninstall(args: &UninstallArgs) -> Result<ExitCode> {
    let host = Host::open()?;
    let (begun, patience) = (Instant::now(), Duration::from_secs(args.wait));
    let is_over = || begun.elapsed() >= patience;
    if !args.force {
        check_place(&host, &args.plugins_dir)?;
        until_free(&host, &args.plugins_dir, is_over)?;
    }
    // A living agent would write again what is removed here.
    let lock = until_alone(&host, is_over)?;
    if !args.force {
        // Pods may have come meanwhile.
        until_free(&host, &args.plugins_dir, is_over)?;
    }
    let paths = Paths::of(&host)?;
    if let Some(own) = host.dir(Path::new(node_json::DIRECTORY))? {
        std::fs::write(own.at(UNINSTALL_MARK), "").with_context(|| {
            format!(
                "nothing was removed: cannot write {} on the host",
                own.shown(UNINSTALL_MARK)
            )
        })?;
    }
    // railctl last: an uninstall that was interrupted asks it.
    let executables: Vec<_> = PLUGINS
        .into_iter()
        .chain([RAILCTL])
        .map(str::to_owned)
        .collect();
    let mut removed = remove(&host, &args.plugins_dir, &executables)?;
    let of_executable = |name: &&str| [previous(name), temporary(name), format!(".{name}.kept")];
    let kept: Vec<_> = EXECUTABLES.iter().flat_map(of_executable).collect();
    removed += remove(&host, &args.plugins_dir.join(EXECUTABLES_DIR), &kept)?;
    removed += remove(
        &host,
        &paths.run_dir,
        &["calls", ".calls.new", alive::NAME].map(str::to_owned),
    )?;
    removed += remove(
        &host,
        &paths.run_dir.join(dranet::DIRECTORY),
        &[dranet::SOCKET.to_owned()],
    )?;
    removed += remove_allocations(&host, &paths)?;
    // Last, because it says where the rest is: an uninstall that was interrupted goes on there.
    let own = [
        "node.json.previous",
        ".node.json.new",
        ".node.json.kept",
        node_json::NAME,
        UNINSTALL_MARK,
    ];
    removed += remove(
        &host,
        Path::new(node_json::DIRECTORY),
        &own.map(str::to_owned),
    )?;
    // The lock keeps others out as long as it has its name.
    removed += remove(&host, &paths.run_dir, &[lock::LOCK.to_owned()])?;
    drop(lock);
    log(
        "info",
        &format!("{removed} files and directories of rail-cni were removed from the host"),
    );
    if let Some(node) = &args.node {
        node::forget(node)?;
    }
    if args.stay {
        log(
            "info",
            "this node is clean; delete this DaemonSet when all of its pods are ready",
        );
        runtime::until_stopped()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until this is the only rail-agent on the node, and locks out others; `None` if there is no
/// run directory.
fn until_alone(host: &Host, is_over: impl Fn() -> bool) -> Result<Option<File>> {
    let Some(dir) = host.dir(&Paths::of(host)?.run_dir)? else {
        return Ok(None);
    };
    let mut is_told = false;
    loop {
        let holder = match lock::try_lock(&dir, None)? {
            Ok(lock) => return Ok(Some(lock)),
            Err(holder) => holder,
        };
        let which = format!("rail-agent still runs on this node ({holder})");
        if is_over() {
            bail!(
                "{which}; nothing was removed: delete its DaemonSet first, or wait for its end with --wait"
            );
        }
        if !is_told {
            log("info", &format!("waiting: {which}"));
            is_told = true;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Waits until no pod has a rail or an address, and nothing is left of pods that are gone.
fn until_free(host: &Host, plugins_dir: &Path, is_over: impl Fn() -> bool) -> Result<()> {
    let mut told = String::new();
    loop {
        let Some(which) = holders(host, plugins_dir)?.shown() else {
            return Ok(());
        };
        if is_over() {
            bail!("nothing was removed: {which}");
        }
        if told != which {
            log("info", &format!("waiting: {which}"));
            told = which;
        }
        std::thread::sleep(Duration::from_secs(2));
    }
}

/// State that only the plugins can restore.
#[derive(Debug, Default)]
struct Holders {
    /// Pods that have rails.
    pods: Vec<String>,
    /// Pods that have addresses alone: of rail-ipam, behind another plugin.
    addresses: Vec<String>,
    /// Traces of pods that are gone, and files that cannot be read.
    left: Vec<String>,
    /// The path of a missing railctl: then the files of the plugins alone tell the state.
    without_railctl: Option<PathBuf>,
}

impl Holders {
    /// The state and its remedy; `None` if there is nothing.
    fn shown(&self) -> Option<String> {
        let mut shown = Vec::new();
        if !self.pods.is_empty() {
            let list = self.pods.join(", ");
            shown.push(format!(
                "pods still have rails: {list}: end these pods, or wait for them with --wait"
            ));
        }
        if !self.addresses.is_empty() {
            let list = self.addresses.join(", ");
            shown.push(format!(
                "pods still have addresses: {list}: end these pods, or wait for them with --wait; `railctl release` \
                 frees an address whose pod is gone"
            ));
        }
        if !self.left.is_empty() {
            let list = self.left.join(", ");
            shown.push(format!(
                "not restored yet: {list}: run `railctl reap` on the node, which says what prevents each, and \
                 `railctl reap --forget` for what cannot be restored"
            ));
        }
        if let Some(dir) = self.without_railctl.as_ref().filter(|_| !shown.is_empty()) {
            shown.push(format!(
                "{} has no railctl, which would restore what can be restored: `rail-agent install` puts it there",
                dir.display()
            ));
        }
        (!shown.is_empty()).then(|| shown.join("; "))
    }
}

/// Whether the executable is in this directory of the host.
fn has(host: &Host, plugins_dir: &Path, name: &str) -> Result<bool> {
    Ok(host
        .dir(plugins_dir)?
        .is_some_and(|dir| dir.at(name).exists()))
}

/// Whether an uninstall that was not finished has begun to remove.
fn is_begun(host: &Host) -> Result<bool> {
    Ok(host
        .dir(Path::new(node_json::DIRECTORY))?
        .is_some_and(|own| own.at(UNINSTALL_MARK).exists()))
}

/// Fails if the plugins of this node are likely to be elsewhere: there they would stay, without
/// node.json and store.
fn check_place(host: &Host, plugins_dir: &Path) -> Result<()> {
    for name in PLUGINS {
        if has(host, plugins_dir, name)? {
            return Ok(());
        }
    }
    if node_json::is_missing(host) || is_begun(host)? {
        return Ok(());
    }
    bail!(
        "nothing was removed: this node has /etc/rail-cni/node.json, and neither rail-cni nor rail-ipam is in {}: name the \
         directory of the plugins with --plugins-dir; if they are gone, --force removes the rest, also under pods",
        plugins_dir.display()
    )
}

/// Empty if no record is left. Without railctl, what the files of the plugins say counts.
fn holders(host: &Host, plugins_dir: &Path) -> Result<Holders> {
    if !has(host, plugins_dir, RAILCTL)? {
        let Held {
            attachments,
            pending,
            leases,
        } = Held::of(host, &Paths::of(host)?.run_dir)?;
        return Ok(Holders {
            pods: attachments,
            // An uninstall that has removed railctl has asked it before: what is left is of the
            // dead.
            addresses: if is_begun(host)? { Vec::new() } else { leases },
            left: pending,
            without_railctl: Some(plugins_dir.to_owned()),
        });
    }
    let mut holders = Holders::default();
    let railctl = plugins_dir.join(RAILCTL);
    let status = ask_status(host, &railctl, &mut holders)?;
    holders.addresses = ask_leases(host, &railctl, &status)?;
    Ok(holders)
}

/// Restores what can be restored, and returns what `railctl status` says of the rest.
fn ask_status(host: &Host, program: &Path, holders: &mut Holders) -> Result<Value> {
    // State that can be restored without a pod is restored now. The rest, also after a reap that
    // took too long, is in the status.
    if let Err(error) = host.run_alone(program, &["reap"]) {
        log("warn", &crate::text::error_text(&error));
    }
    let said = host.run_alone(program, &["status", "--output", "json"])?;
    let status: Value = serde_json::from_str(&said.stdout)
        .with_context(|| format!("`railctl status` says: {}", said.stderr.trim()))?;
    for (list, what) in [
        ("attachments", "has"),
        ("pending", "has left something of"),
        ("lost", "has, without a record,"),
    ] {
        for one in status[list].as_array().into_iter().flatten() {
            let text = |key: &str| one[key].as_str().map(str::to_owned);
            let who = text("pod")
                .or_else(|| text("containerID"))
                .or_else(|| text("netns"))
                .unwrap_or_default();
            let is_alive = Attachment {
                state: text("state").unwrap_or_default(),
                ..Attachment::default()
            }
            .is_alive();
            let found = format!("{who} {what} {}", text("device").unwrap_or_default());
            if list == "attachments" && is_alive {
                &mut holders.pods
            } else {
                &mut holders.left
            }
            .push(found);
        }
    }
    let unreadable = status["unreadable"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    holders
        .left
        .extend(unreadable.map(|name| format!("the record {name} cannot be read")));
    Ok(status)
}

/// The addresses of pods whose device is of another plugin than rail-cni: its DEL needs rail-ipam,
/// too. An address of a resource claim is released without one.
fn ask_leases(host: &Host, program: &Path, status: &Value) -> Result<Vec<String>> {
    let said = host.run_alone(program, &["leases", "--output", "json"])?;
    let show: Value = serde_json::from_str(&said.stdout)
        .with_context(|| format!("`railctl leases` says: {}", said.stderr.trim()))?;
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let told: Vec<_> = ["attachments", "pending"]
        .iter()
        .flat_map(|key| list(status, key))
        .collect();
    let is_told = |lease: &Value| {
        told.iter().any(|one| {
            ["containerID", "ifname"]
                .iter()
                .all(|key| one[key] == lease[key])
        })
    };
    let leases = list(&show, "pools")
        .into_iter()
        .flat_map(|pool| list(&pool, "leases"));
    let held =
        leases.filter(|one| one["state"] != "dead" && one["claim"].is_null() && !is_told(one));
    let shown = held.map(|one| {
        let text = |key: &str| one[key].as_str();
        let who = text("pod")
            .or_else(|| text("containerID"))
            .unwrap_or("a pod whose lease cannot be read");
        format!("{who} has {}", text("address").unwrap_or_default())
    });
    Ok(shown.collect())
}

fn remove(host: &Host, dir: &Path, names: &[String]) -> Result<usize> {
    let Some(open) = host.dir(dir)? else {
        return Ok(0);
    };
    let mut removed = 0;
    for name in names {
        removed += usize::from(open.remove(name)?);
    }
    remove_empty(host, dir);
    Ok(removed)
}

/// Removes what the store has of this node, and the store itself if no other node is in it: nodes
/// may share its file system.
fn remove_allocations(host: &Host, paths: &Paths) -> Result<usize> {
    let dir = &paths.store_dir;
    let Some(open) = host.dir(dir)? else {
        return Ok(0);
    };
    let names = || -> Result<Vec<String>> {
        let entries = std::fs::read_dir(open.at("."))
            .with_context(|| format!("cannot list {}", dir.display()))?;
        Ok(entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect())
    };
    let remove = |name: &str| -> Result<usize> {
        let path = open.at(name);
        let done = if path.is_dir() {
            std::fs::remove_dir_all(path)
        } else {
            std::fs::remove_file(path)
        };
        done.with_context(|| format!("cannot remove {} of the host", open.shown(name)))
            .map(|()| 1)
    };
    let is_of_a_node = |name: &String| rail_cni::pool::is_name(name);
    let own = paths
        .node
        .iter()
        .flat_map(|name| [name.clone(), closed_name(name)]);
    let own: Vec<String> = own.filter(|name| open.at(name).exists()).collect();
    let mut removed = own.iter().map(|name| remove(name)).sum::<Result<usize>>()?;
    let left = names()?;
    match left.iter().filter(|name| is_of_a_node(name)).count() {
        0 => {
            // The lock, and what a process that was killed had begun.
            let is_ours = |name: &&String| {
                name.starts_with(".new.") || [".lock", ".unfinished"].contains(&name.as_str())
            };
            for name in left.iter().filter(is_ours) {
                removed += remove(name)?;
            }
            let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
                return Ok(removed);
            };
            if let Some(open) = host.dir(parent)? {
                // A directory that stays has files of others.
                removed += usize::from(std::fs::remove_dir(open.at(name)).is_ok());
            }
            remove_empty(host, parent);
        }
        others => log(
            "info",
            &format!(
                "{} stays, with what {others} other nodes have there",
                dir.display()
            ),
        ),
    }
    Ok(removed)
}

/// Removes one of our directories if nothing is left in it. /opt/cni/bin is everybody's.
fn remove_empty(host: &Host, dir: &Path) {
    if !dir.ends_with("rail-cni") && !dir.ends_with(EXECUTABLES_DIR) {
        return;
    }
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return;
    };
    if let Ok(Some(parent)) = host.dir(parent) {
        let _ = std::fs::remove_dir(parent.at(name));
    }
}
