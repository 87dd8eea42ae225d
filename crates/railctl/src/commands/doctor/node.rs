//! Checks of the node itself: node.json, executables, directories, clock, sysctls.

use std::fs::{self, FileType};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{AccessFlags, access};

use super::super::{output_within, root};
use super::order;
use super::{Check, Findings, count};
use rail_cni::cni::RELEASE;
use rail_cni::files;
use rail_cni::netns;
use rail_cni::node::{Node, RailPf};
use rail_cni::sysfs::{self, DeviceId, Function};

/// The default directory of runtimes for plugins.
const INSTALLED: &str = "/opt/cni/bin";
/// Time for a program to print its version. rail-cni answers at once, but another program of that
/// name may not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads node.json; for the other checks an invalid key counts as absent.
pub fn configuration(found: &mut Findings) -> Node {
    let name = "node.json";
    let path = rail_cni::node::path();
    let node = match Node::load() {
        Ok(node) => node,
        Err(_) if !root::is_root() && fs::File::open(&path).is_err() => {
            found.add(Check::skip(name, root::NEEDS_ROOT));
            return Node::default();
        }
        Err(error) => {
            found.add(Check::fail(
                name,
                format!("{error:#}"),
                "correct it: until then every ADD is refused",
            ));
            return Node::load_lenient();
        }
    };
    if !path.exists() {
        let text = format!(
            "{} is absent: devices are not compared with the PF of their rail",
            path.display()
        );
        found.add(Check::warn(name, text, "write one like conf/node.json"));
    } else if node.rails.is_empty() {
        let text = format!(
            "{} lists no rails: devices are not compared with the PF of their rail",
            path.display()
        );
        found.add(Check::warn(name, text, "list them as conf/node.json does"));
    }
    for one in &node.rails {
        let others = node
            .rails
            .iter()
            .filter(|other| other.rail > one.rail && is_same_pf(&node, one, other));
        for other in others {
            let text = format!(
                "rails {} and {} have the same PF {}, so one of them refuses its devices",
                one.rail, other.rail, one.pf
            );
            found.add(Check::fail(name, text, unlisted(&node, &path)));
        }
        if node
            .policy
            .rails
            .as_ref()
            .is_some_and(|allowed| !allowed.contains(&one.rail))
        {
            let text = format!("rail {} is listed, but policy.rails excludes it", one.rail);
            found.add(Check::fail(
                name,
                text,
                "add it to policy.rails, or remove it from the list",
            ));
        }
    }
    found.ok_unless_reported(
        name,
        format!("{}: {}", path.display(), count(node.rails.len(), "rail")),
    );
    node
}

/// Whether two rows mean one PF: the same text, or the name of its netdev in one row and its PCI
/// address in the other. Two names of one function are two of its ports.
fn is_same_pf(node: &Node, one: &RailPf, other: &RailPf) -> bool {
    let named = |text: &str, by: &str| {
        let function = Function::of_netdev(&node.sysfs_root, by).ok().flatten();
        DeviceId::parse(by).is_none()
            && function.is_some_and(|function| text.eq_ignore_ascii_case(&function.id))
    };
    one.pf.eq_ignore_ascii_case(&other.pf) || named(&one.pf, &other.pf) || named(&other.pf, &one.pf)
}

/// Adds to the remedy which PFs are in no rail, where two rails have the same PF.
fn unlisted(node: &Node, path: &Path) -> String {
    let all = sysfs::functions_with_sriov(&node.sysfs_root).unwrap_or_default();
    let is_listed = |function: &Function| {
        let netdev = function.netdev().ok().flatten();
        let is_it =
            |pf: &str| pf.eq_ignore_ascii_case(&function.id) || netdev.as_deref() == Some(pf);
        node.rails.iter().any(|one| is_it(&one.pf))
    };
    let free: Vec<_> = all
        .into_iter()
        .filter(|one| !one.is_vf() && !is_listed(one))
        .collect();
    let free: Vec<_> = free.into_iter().map(|one| one.id).collect();
    let remedy = format!(
        "each PF is one rail: correct the list in {}",
        path.display()
    );
    match (order::completed(node, &free), free.join(", ")) {
        (Some(rails), _) => {
            format!(
                "{remedy}, perhaps to `{rails}`, because no rail has {}",
                free.join(", ")
            )
        }
        (None, free) if free.is_empty() => remedy,
        (None, free) => format!("{remedy}: no rail has {free}"),
    }
}

/// Checks that the log can be written, because it says why a pod did not start. No file is made.
pub fn log(node: &Node, found: &mut Findings) {
    let name = "log";
    if let Some(dir) = node.log_dir() {
        if let Err(why) = can_be_written(dir, FileType::is_dir, "directory") {
            let remedy = format!(
                "run `mkdir -p {}` and use it for nothing else, or remove log.dir from node.json",
                dir.display()
            );
            found.add(Check::warn(name, format!("log.dir: {why}"), remedy));
        }
    }
    let Some(file) = node.log_file() else {
        return found.ok_unless_reported(name, "the log goes to stderr, which the runtime keeps");
    };
    let (shown, directory) = (file.display(), file.parent().unwrap_or(Path::new("/")));
    // /dev/null is allowed as well.
    let is_file = |kind: &FileType| kind.is_file() || file == Path::new("/dev/null");
    let faults = [
        can_be_written(directory, FileType::is_dir, "directory")
            .map_err(|why| (why, format!("run `mkdir -p {}`", directory.display()))),
        match file.symlink_metadata() {
            Err(_) => Ok(()),
            Ok(meta) if meta.is_dir() => Err((
                format!("{shown} is a directory"),
                format!("run `rmdir {shown}`"),
            )),
            Ok(_) => can_be_written(file, is_file, "regular file").map_err(|why| {
                (
                    why,
                    format!("run `rm {shown}`: the next call creates a new one"),
                )
            }),
        },
    ];
    if let Some((why, remedy)) = faults.into_iter().find_map(Result::err) {
        let remedy = format!("{remedy}; or set another log.file in node.json");
        found.add(Check::fail(name, format!("log.file: {why}"), remedy));
    }
    found.ok_unless_reported(name, shown.to_string());
}

fn can_be_written(
    path: &Path,
    is_kind: impl Fn(&FileType) -> bool,
    kind: &str,
) -> Result<(), String> {
    let shown = path.display();
    match path.symlink_metadata() {
        Err(error) => return Err(format!("{shown}: {error}")),
        // The directory may be a symbolic link; the file may not.
        Ok(meta) if meta.is_symlink() && kind == "directory" => (),
        Ok(meta) if !is_kind(&meta.file_type()) => return Err(format!("{shown} is not a {kind}")),
        Ok(_) => (),
    }
    access(path, AccessFlags::W_OK)
        .map_err(|errno| format!("{shown} cannot be written: {}", errno.desc()))
}

/// Checks that both plugins are where runtimes look for them, or else beside this program, and of
/// one version. They may be older than this program, as on a node that was rolled back.
pub fn programs(found: &mut Findings) {
    let name = "programs";
    let here = std::env::current_exe().ok();
    let here = here
        .as_deref()
        .and_then(Path::parent)
        .unwrap_or(Path::new(INSTALLED));
    let Some(directory) = [Path::new(INSTALLED), here]
        .into_iter()
        .find(|one| one.join("rail-cni").exists())
    else {
        let text = format!("rail-cni is neither in {INSTALLED} nor beside this railctl");
        let remedy =
            "run `scripts/install`, unless the runtime has its plugins in another directory";
        return found.add(Check::warn(name, text, remedy));
    };
    let mut versions = Vec::new();
    for program in ["rail-cni", "rail-ipam"] {
        let path = directory.join(program);
        let shown = path.display();
        if !path.exists() {
            let text = format!("{shown} is absent: rail-cni needs it for addresses");
            found.add(Check::fail(name, text, "run `scripts/install`"));
            continue;
        }
        match version_of(&path, program) {
            Ok(version) => versions.push(version),
            Err(error) if path.metadata().is_ok_and(|meta| meta.mode() & 0o111 == 0) => {
                let text = format!("{shown} cannot be executed: {error:#}");
                found.add(Check::fail(name, text, format!("run `chmod 755 {shown}`")));
            }
            Err(error) => {
                let text = format!("{shown} does not print its version: {error:#}");
                found.add(Check::fail(name, text, "run `scripts/install`"));
            }
        }
    }
    let (shown, remedy) = (
        directory.display(),
        "run `scripts/install`, so that all are from one build",
    );
    let release = |version: &str| version.split(" (").next().map(str::to_owned);
    if let [cni, ipam] = versions.as_slice() {
        if cni != ipam {
            let text = format!("rail-cni in {shown} is {cni}, but rail-ipam is {ipam}");
            let is_release = release(cni) == release(ipam);
            let check = if is_release { Check::warn } else { Check::fail };
            found.add(check(name, text, remedy));
        } else if *cni != *RELEASE {
            let text = format!(
                "the plugins in {shown} are {cni}, but this railctl is {}",
                *RELEASE
            );
            found.add(Check::warn(name, text, remedy));
        }
    }
    found.ok_unless_reported(
        name,
        format!("rail-cni and rail-ipam {} are in {shown}", *RELEASE),
    );
}

/// Runs `NAME --version` with a deadline, and returns the version.
fn version_of(path: &Path, name: &str) -> Result<String> {
    let mut command = Command::new(path);
    command.arg("--version").env_remove("CNI_COMMAND");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // One line fits into the pipe. A program that prints more runs into the deadline.
    let output = output_within(PATIENCE, command.spawn().context("it cannot be started")?)?;
    let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let version = answer
        .strip_prefix(name)
        .and_then(|answer| answer.strip_prefix(' '));
    version
        .map(str::to_owned)
        .with_context(|| format!("it says {answer:?}"))
}

/// Checks the directories of node.json. No directory is made: a fresh node has no run directory
/// before its first pod.
pub fn directories(node: &Node, found: &mut Findings) {
    let (run, store) = (&node.run_dir, &node.store_dir);
    if let Err(error) = node.check_place(None) {
        found.add(Check::fail(
            "run",
            format!("{error:#}"),
            "correct that: until then every call is refused",
        ));
    }
    if let Err(error) = node.run_is_writable() {
        found.add(Check::fail(
            "run",
            format!("{error:#}"),
            "make it writable, or make room: until then every ADD is refused",
        ));
    }
    let nearest = run.ancestors().find(|path| path.exists());
    if let Some(there) = nearest {
        if statfs(there).is_ok_and(|fs| fs.filesystem_type() != TMPFS_MAGIC) {
            let text = format!(
                "{} is not on a tmpfs: an ADD may wait for a disk",
                run.display()
            );
            found.add(Check::warn(
                "run",
                text,
                "set a runDir below /run in node.json",
            ));
        }
    }
    for directory in [
        run.clone(),
        run.join("attachments"),
        run.join("leases"),
        run.join("locks"),
    ] {
        check_owner("run", &directory, found);
    }
    let fresh = if run.exists() {
        ""
    } else {
        " (does not exist yet: no pod has had a rail since the boot)"
    };
    found.ok_unless_reported("run", format!("{}{fresh}", run.display()));

    match fs::File::open(store) {
        // A node that needs a store is reported under `pools`.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            found.add(Check::warn(
                "store",
                format!("{} is absent", store.display()),
                "run `railctl import`",
            ));
        }
        Err(error) => {
            let text = format!("cannot open {}: {error}", store.display());
            found.add(Check::fail(
                "store",
                text,
                "correct that: until then no ADD gets an address",
            ));
        }
        Ok(directory) => {
            if let Err(error) = files::Dir::open(store)
                .map_err(Into::into)
                .and_then(|dir| dir.writable())
            {
                found.add(Check::warn(
                    "store",
                    format!("{error:#}"),
                    "make it writable for `railctl import`; an ADD only reads it",
                ));
            } else if let Err(error) = directory.sync_all() {
                let text = format!("cannot fsync {}: {error}", store.display());
                found.add(Check::fail(
                    "store",
                    text,
                    "use another disk: an import would not survive a power cut",
                ));
            }
            check_owner("store", store, found);
        }
    }
    found.ok_unless_reported("store", store.display().to_string());
}

/// Checks that only root can write there: write access gives any device and any address.
fn check_owner(name: &'static str, directory: &Path, found: &mut Findings) {
    let Ok(meta) = directory.metadata() else {
        return;
    };
    let shown = directory.display();
    if meta.mode() & 0o022 != 0 {
        let text = format!(
            "users other than its owner can write to {shown} (mode {:o})",
            meta.mode() & 0o7777
        );
        found.add(Check::fail(name, text, format!("run `chmod go-w {shown}`")));
    }
    if meta.uid() != 0 {
        let text = format!("{shown} belongs to user {}", meta.uid());
        found.add(Check::fail(name, text, format!("run `chown root {shown}`")));
    }
}

/// Checks for Linux 5.14. Before, netlink does not report which function a netdev belongs to
/// (IFLA_PARENT_DEV_NAME), so a device in a pod could not be identified.
const OLDEST_KERNEL: (u32, u32) = (5, 14);

fn kernel(found: &mut Findings) {
    let release =
        nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    let release = release.unwrap_or_default();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse().ok());
    let (oldest, text) = (OLDEST_KERNEL, format!("Linux {release}"));
    found.add(match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) < oldest => Check::fail(
            "kernel",
            format!("{text} does not report which NIC a netdev in a pod belongs to"),
            format!("install Linux {}.{} or newer", oldest.0, oldest.1),
        ),
        (Some(_), Some(_)) => Check::ok("kernel", text),
        _ => Check::skip(
            "kernel",
            format!("{text} is a version that this program cannot compare"),
        ),
    });
}

/// Says what the kernel holds each call to. Nothing fails without it.
pub fn confined(node: &Node, found: &mut Findings) {
    let name = "confine";
    if !node.confine {
        let text = "node.json has \"confine\": false, so the kernel does not limit what the plugins can do";
        return found.add(Check::warn(
            name,
            text,
            "remove the key; if that breaks something, report it",
        ));
    }
    let calls = match Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        true => "seccomp limits the system calls of the plugins",
        false => "this kernel has no seccomp",
    };
    found.add(Check::ok(name, calls));
}

/// Checks who runs this and in which namespace, and the settings of the host's kernel.
pub fn host(found: &mut Findings) {
    kernel(found);
    if !root::is_root() {
        found.add(Check::fail(
            "root",
            "doctor does not run as root, so it cannot tell whether the node is ready",
            "run `sudo railctl doctor`",
        ));
    }
    let (ours, init) = (Path::new("/proc/self/ns/net"), Path::new("/proc/1/ns/net"));
    let is_there = init.metadata();
    found.add(match is_there {
        Err(_) if !root::is_root() => Check::skip("namespace", root::NEEDS_ROOT),
        Err(error) => Check::skip(
            "namespace",
            format!("cannot inspect {}: {error}", init.display()),
        ),
        Ok(_) if netns::is_same(ours, init) => {
            Check::ok("namespace", "doctor runs in the host's network namespace")
        }
        Ok(_) => Check::warn(
            "namespace",
            "doctor does not run in the network namespace of process 1",
            "run it on the host: the other checks describe this namespace",
        ),
    });
    // No decision depends on the clock, but people read ages and logs.
    let start_of_2024 = SystemTime::UNIX_EPOCH + Duration::from_secs(1_704_067_200);
    found.add(if SystemTime::now() < start_of_2024 {
        Check::warn(
            "clock",
            format!("the clock says {}", files::now()),
            "set the clock: run `chronyc makestep`",
        )
    } else {
        Check::ok("clock", format!("the clock says {}", files::now()))
    });
    sysctls(Path::new("/proc/sys/net"), found);
}

/// Checks the values of `all` that a rail's own cannot override. A pod's namespace begins with the
/// host's values, unless core.devconf_inherit_init_net is 2
/// (Documentation/admin-guide/sysctl/net.rst).
fn sysctls(net: &Path, found: &mut Findings) {
    let name = "sysctl";
    let read = |path: &str| -> Option<u32> {
        fs::read_to_string(net.join(path)).ok()?.trim().parse().ok()
    };
    if !net.join("ipv4/conf/all").exists() {
        found.add(Check::skip(
            name,
            format!("{} cannot be read", net.display()),
        ));
        return;
    }
    let is_inherited = read("core/devconf_inherit_init_net") != Some(2);
    // The larger value of `all` and the interface counts; a rail sets 1.
    match read("ipv4/conf/all/arp_ignore").filter(|_| is_inherited) {
        Some(value @ 8..) => found.add(Check::fail(
            name,
            format!(
                "net.ipv4.conf.all.arp_ignore={value}: a pod would answer no ARP, so the leaf cannot reach it"
            ),
            "run `sysctl net.ipv4.conf.all.arp_ignore=0`",
        )),
        Some(value @ 3..8) => found.add(Check::warn(
            name,
            format!("net.ipv4.conf.all.arp_ignore={value}: rails would answer for each other's addresses"),
            "run `sysctl net.ipv4.conf.all.arp_ignore=0`",
        )),
        _ => (),
    }
    // All namespaces share one table.
    if let Some(most) = read("ipv4/neigh/default/gc_thresh3").filter(|most| *most < 256) {
        let text = format!(
            "net.ipv4.neigh.default.gc_thresh3={most}: all pods of the node share this table"
        );
        found.add(Check::warn(
            name,
            text,
            "run `sysctl net.ipv4.neigh.default.gc_thresh3=1024`, the default, or set more",
        ));
    }
    let strict = match read("ipv4/conf/all/rp_filter") {
        Some(1) => " (all.rp_filter=1 is no problem: a rail has 2, and the larger value counts)",
        _ => "",
    };
    found.ok_unless_reported(
        name,
        format!("no value of `all` overrides a rail's own{strict}"),
    );
}

/// Whether the kernel has IPv6.
pub fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    fn judged(settings: &[(&str, &str)]) -> Findings {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("ipv4/conf/all")).unwrap();
        for (path, value) in settings {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        let mut found = Findings::default();
        sysctls(root.path(), &mut found);
        found
    }

    #[test]
    fn only_what_overrides_a_rail_is_reported() {
        let verdict = |settings: &[(&str, &str)]| {
            let found = judged(settings);
            assert_eq!(found.0.len(), 1, "{found:?}");
            found.0[0].verdict
        };
        assert_eq!(verdict(&[]), Verdict::Ok);
        assert_eq!(
            verdict(&[
                ("ipv4/conf/all/arp_ignore", "2"),
                ("ipv4/conf/all/rp_filter", "1")
            ]),
            Verdict::Ok
        );
        assert_eq!(verdict(&[("ipv4/conf/all/arp_ignore", "3")]), Verdict::Warn);
        assert_eq!(verdict(&[("ipv4/conf/all/arp_ignore", "8")]), Verdict::Fail);
        let reset = [
            ("ipv4/conf/all/arp_ignore", "8"),
            ("core/devconf_inherit_init_net", "2"),
        ];
        assert_eq!(verdict(&reset), Verdict::Ok);
        assert_eq!(
            verdict(&[("ipv4/neigh/default/gc_thresh3", "128")]),
            Verdict::Warn
        );
        let mut found = Findings::default();
        sysctls(Path::new("/nonexistent"), &mut found);
        assert_eq!(found.0[0].verdict, Verdict::Skip);
    }
}
