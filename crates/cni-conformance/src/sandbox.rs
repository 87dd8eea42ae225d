//! Namespaces in which nothing of the host can be changed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::{NSFS_MAGIC, statfs};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// The directory that exists for one check. Not below /run: plugins refuse state below a /run that
/// is not the host's.
pub const DIR: &str = "/dev/shm/conformance";

/// Runs this program once more, with `argument` behind its arguments, in namespaces of its own:
/// process, mount and network, and a user namespace unless it is root's. This process, which must
/// have one thread, only waits. Returns the exit status.
pub fn contain(argument: &str) -> Result<u8, String> {
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let mut kinds = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWPID;
    if !user.is_root() {
        kinds |= CloneFlags::CLONE_NEWUSER;
    }
    let remedy = remedy(user.is_root());
    unshare(kinds).map_err(|errno| format!("cannot make namespaces: {errno}{remedy}"))?;
    if !user.is_root() {
        let write = |file: &str, text: String| {
            fs::write(file, text).map_err(|error| format!("cannot write {file}: {error}{remedy}"))
        };
        write("/proc/self/setgroups", "deny".to_owned())?;
        write("/proc/self/uid_map", format!("0 {user} 1"))?;
        write("/proc/self/gid_map", format!("0 {group} 1"))?;
    }
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(arguments.next().unwrap_or_default())
        .args(arguments)
        .arg(argument);
    let ended = command
        .status()
        .map_err(|error| format!("cannot run itself in its namespaces: {error}"))?;
    let status = ended
        .code()
        .unwrap_or_else(|| 128 + ended.signal().unwrap_or(0));
    Ok(u8::try_from(status).unwrap_or(u8::MAX))
}

/// Makes the first process of the namespaces, which is this one, ready for worlds. When it ends, so
/// does all that there is in them, and it ends with the process that waits for it, whatever ends
/// that one.
pub fn enter() -> Result<(), String> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|errno| format!("cannot end with its parent: {errno}"))?;
    // Ubuntu lets a user make a user namespace without any right in it.
    let remedy = remedy(false);
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(|errno| format!("cannot make mounts private: {errno}{remedy}"))?;
    // The one that is there has other numbers for the processes.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>).map_err(|errno| {
        format!("cannot mount /proc anew: {errno}: run it as root, or where nothing covers parts of /proc")
    })?;
    match Command::new("ip").arg("-V").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("ip (iproute2) is not installed".to_owned()),
    }
}

fn remedy(is_root: bool) -> &'static str {
    if is_root {
        return "";
    }
    ": run it as root, or allow user namespaces (on Ubuntu, sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
}

/// Takes note of the children of this thread that have ended. Orphans come to the first thread of
/// the first process.
pub fn reap() {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::__WNOTHREAD;
    while let Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) =
        waitid(Id::All, flags | WaitPidFlag::WNOWAIT)
    {
        let _ = waitid(Id::Pid(pid), flags);
    }
}

/// What is empty in a world. What is not there cannot be covered, and making it would change the
/// host.
pub fn hidden() -> Vec<&'static Path> {
    let state = if Path::new("/var/lib/cni").exists() {
        "/var/lib/cni"
    } else {
        "/var/lib"
    };
    let all = ["/run", "/dev/shm", "/etc/cni", state].map(Path::new);
    all.into_iter().filter(|path| path.exists()).collect()
}

/// Is this the path of a file that a world has for itself?
pub fn is_hidden(path: &Path) -> bool {
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    !goes_up
        && hidden()
            .into_iter()
            .any(|hidden| path != hidden && path.starts_with(hidden))
}

/// Moves this thread, and what it starts from now on, into a network and a mount namespace of its
/// own, with an empty /run, /var/lib/cni and [`DIR`].
pub fn enter_world() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .map_err(|errno| format!("cannot make namespaces: {errno}"))?;
    let hidden = hidden();
    hidden.iter().try_for_each(|path| empty(path))?;
    for directory in ["/run/netns", "/var/lib/cni", DIR] {
        if !hidden
            .iter()
            .any(|hidden| Path::new(directory).starts_with(hidden))
        {
            return Err(format!(
                "{directory} would be made on this machine, which has no directory to cover"
            ));
        }
        fs::create_dir_all(directory)
            .map_err(|error| format!("cannot create {directory}: {error}"))?;
    }
    // Only where the machine allows it: plugins that look for a device by its address need it.
    let _ = mount(
        Some("sysfs"),
        "/sys",
        Some("sysfs"),
        MsFlags::empty(),
        None::<&str>,
    );
    Ok(())
}

/// Who is in a world: each process in its mount or its network namespace, whatever its session and
/// its parent are.
#[derive(Clone, Debug)]
pub struct Inhabitants([u64; 2]);

impl Inhabitants {
    /// Those of the world of this thread.
    pub fn of_this_world() -> Result<Inhabitants, String> {
        let numbers = spaces("thread-self").zip(spaces("self"));
        match numbers {
            // Whoever is in those of the suite is none of ours.
            Some((own, of_suite)) if own[0] != of_suite[0] && own[1] != of_suite[1] => {
                Ok(Inhabitants(own))
            }
            _ => Err("cannot see the namespaces of a check in /proc".to_owned()),
        }
    }

    /// Ends them all, also those that they start meanwhile.
    pub fn end(&self) {
        for _ in 0..500 {
            if !self.end_once() {
                return;
            }
            std::thread::sleep(Duration::from_millis(4));
        }
    }

    /// Was there any?
    fn end_once(&self) -> bool {
        let mut found = false;
        let names = fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in names
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .map(Pid::from_raw)
        {
            let is_in = |[mount, net]: [u64; 2]| mount == self.0[0] || net == self.0[1];
            let is_inhabitant = spaces(&process.to_string()).is_some_and(is_in);
            if is_inhabitant && process != Pid::this() {
                found = true;
                let _ = kill(process, Signal::SIGKILL);
            }
        }
        found
    }
}

/// The mount and the network namespace of a process; of one that has ended there are none.
fn spaces(process: &str) -> Option<[u64; 2]> {
    let number = |kind| {
        fs::metadata(format!("/proc/{process}/ns/{kind}"))
            .ok()
            .map(|file| file.ino())
    };
    Some([number("mnt")?, number("net")?])
}

/// An empty file system of 8 MiB over `path`.
pub fn empty(path: &Path) -> Result<(), String> {
    mount(
        Some("tmpfs"),
        path,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755,size=8m"),
    )
    .map_err(|errno| {
        format!(
            "cannot mount an empty file system on {}: {errno}",
            path.display()
        )
    })
}

/// Makes a network namespace and binds it to `path`, as a runtime does.
pub fn make_netns(path: &Path) -> Result<(), String> {
    let told = |what: &str, error: &dyn std::fmt::Display| {
        format!("cannot {what} {}: {error}", path.display())
    };
    fs::write(path, "").map_err(|error| told("create", &error))?;
    let path = path.to_owned();
    let bind = {
        let path = path.clone();
        move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(
                Some("/proc/thread-self/ns/net"),
                &path,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
        }
    };
    match std::thread::spawn(bind).join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(errno)) => Err(told("bind a namespace to", &errno)),
        Err(_) => Err(told("bind a namespace to", &"its thread ended")),
    }
}

/// Is a namespace bound to `path`?
pub fn is_netns(path: &Path) -> bool {
    statfs(path).is_ok_and(|stats| stats.filesystem_type() == NSFS_MAGIC)
}

/// Deletes the namespace at `path`, as a runtime does.
pub fn delete_netns(path: &Path) -> Result<(), String> {
    nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH)
        .map_err(|errno| format!("cannot unmount {}: {errno}", path.display()))?;
    fs::remove_file(path).map_err(|error| format!("cannot remove {}: {error}", path.display()))
}

/// Files that fill the file systems on which plugins keep their state: one for each.
pub fn fillers() -> Result<Vec<PathBuf>, String> {
    let mut fillers = Vec::new();
    let mut devices = Vec::new();
    for directory in ["/run", "/var/lib/cni", DIR] {
        let device = fs::metadata(directory)
            .map_err(|error| format!("{directory}: {error}"))?
            .dev();
        if devices.contains(&device) {
            continue;
        }
        devices.push(device);
        fillers.push(Path::new(directory).join("conformance-fills-this"));
    }
    Ok(fillers)
}

/// Writes a file until no page is left. No inode is made after it, so an empty file can still be.
pub fn fill(path: &Path) -> Result<(), String> {
    let mut file =
        fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    Ok(())
}
