//! What is stacked on a device of the host from within another namespace: a pod's macvlan would be on the wire of
//! the device's next pod. sysfs shows only what is in the device's own namespace (netdev_adjacent_sysfs_add), and
//! no call asks the kernel the other way round, so every namespace is entered and asked.
//!
//! At a pod's end they are all looked at, those too of which there is only a process: what the pod left on its rail is
//! removed. At ADD those that the runtime has mounted are, for each costs about as much as one netlink request; those of
//! processes cost a look at every process of the node as well, and only a device that is up can have something there that
//! carries traffic and is nobody's who had it from us.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns};

use crate::fail;
use crate::netlink::Socket;
use crate::netlink::link::Link;
use crate::netlink::stacked::{self, Stacked};
use crate::netns::Netns;

/// Pods can make namespaces without end: the look at them must not keep the next pod, nor this one's end for long.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(5);

/// Somebody's link on ours.
#[derive(Debug)]
pub struct Upper {
    /// The link.
    pub link: Stacked,
    /// How its namespace can be reached.
    pub netns: PathBuf,
}

/// A link in another namespace that is stacked on `link`.
pub fn elsewhere(link: &Link) -> Result<Option<Upper>> {
    let mut found = None;
    let seen = look(link, link.up, PATIENCE, |_, upper, path| {
        found = Some(Upper { link: upper, netns: path.to_owned() });
        Ok(Next::Enough)
    })?;
    if seen == Seen::Part {
        log::warn!("{}: not every namespace could be asked what is stacked on it", link.name);
    }
    Ok(found)
}

/// Removes what a pod has put on `link`, which it had, from wherever: the next pod must neither share its rail with it
/// nor be kept from it. A pod's end can wait for every process of the node to be looked at.
pub fn remove_elsewhere(link: &Link) -> Result<()> {
    let seen = look(link, true, PATIENCE_AT_THE_END, |socket, upper, path| {
        log::warn!(
            "{} ({}) is stacked on {}, in {}: removed",
            upper.name,
            upper.kind,
            link.name,
            path.display()
        );
        stacked::remove(socket, &upper)?;
        Ok(Next::Again)
    })?;
    if seen == Seen::Part {
        fail!(Internal, "{}: not every namespace could be asked what is stacked on it", link.name);
    }
    Ok(())
}

/// How much of the node was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    All,
    /// There was no time for the rest.
    Part,
}

/// Where the look goes on after a link was found.
enum Next {
    /// In the same namespace: it may have another one.
    Again,
    Enough,
}

/// Shows every link of another namespace that is stacked on `link`. The thread goes from namespace to namespace, and is
/// not used for anything else.
fn look(
    link: &Link,
    with_processes: bool,
    patience: Duration,
    mut found: impl FnMut(&mut Socket, Stacked, &Path) -> Result<Next> + Send,
) -> Result<Seen> {
    let mut walk = || -> Result<Seen> {
        let deadline = Instant::now() + patience;
        let home = Netns::current()?;
        let mut seen: HashSet<String> = number(Path::new("/proc/self/ns/net")).into_iter().collect();
        let mountinfo = fs::read("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
        let processes = if with_processes { processes()? } else { Vec::new() };
        let of_processes = processes.into_iter().map(|process| process.join("ns/net"));
        let of_processes = of_processes.filter_map(|path| Some((number(&path)?, path)));
        for (number, path) in mounted(&mountinfo).into_iter().chain(of_processes) {
            if !seen.insert(number) {
                continue;
            }
            // Gone meanwhile, or of a user namespace above ours.
            let Some(mut socket) = enter(&path) else { continue };
            loop {
                if Instant::now() > deadline {
                    return Ok(Seen::Part);
                }
                match stacked::on(&mut socket, link.index, &home) {
                    Ok(Some(upper)) => match found(&mut socket, upper, &path)? {
                        Next::Again => (),
                        Next::Enough => return Ok(Seen::All),
                    },
                    Ok(None) => break,
                    Err(error) => {
                        log::debug!("{} cannot be asked: {error:#}", path.display());
                        break;
                    }
                }
            }
        }
        Ok(Seen::All)
    };
    let ended = thread::scope(|scope| {
        let looker = thread::Builder::new().name("looker".to_owned());
        looker.spawn_scoped(scope, &mut walk).map(thread::ScopedJoinHandle::join)
    });
    match ended.context("cannot start a thread")? {
        Ok(done) => done,
        Err(_) => fail!(Internal, "the look at other namespaces panicked"),
    }
}

fn enter(path: &Path) -> Option<Socket> {
    let entered = Netns::open(path).and_then(|netns| {
        setns(netns, CloneFlags::CLONE_NEWNET)?;
        Socket::open()
    });
    entered.inspect_err(|error| log::debug!("{} cannot be entered: {error:#}", path.display())).ok()
}

/// `net:[4026532281]`: which namespace it is.
fn number(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.to_str()?.to_owned())
}

/// The network namespaces that are mounted, with their numbers: proc_pid_mountinfo(5). Their own file system is
/// nsfs, its root `net:[4026532281]`.
fn mounted(mountinfo: &[u8]) -> Vec<(String, PathBuf)> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let found = lines.filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(3);
        let number = std::str::from_utf8(words.next()?).ok().filter(|root| root.starts_with("net:["))?;
        Some((number.to_owned(), unescaped(words.next()?)))
    });
    found.collect()
}

/// Space, tab, line feed and backslash are `\040` and so on.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| *first == b'\\').and_then(|text| std::str::from_utf8(text).ok());
        let byte = digits.and_then(|text| u8::from_str_radix(text, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Their folders in /proc.
pub fn processes() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir("/proc").context("cannot list /proc")?;
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.to_owned()));
    let processes = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(processes.map(|process| Path::new("/proc").join(process)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mounted_network_namespaces_are_found_under_any_name() {
        let text = br"24 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
411 30 0:4 net:[4026532281] /run/netns/cni-1 rw shared:210 - nsfs nsfs rw
412 30 0:4 mnt:[4026532282] /run/docker/mnt rw - nsfs nsfs rw
413 30 0:4 net:[4026532283] /run/a\040b\134c rw - nsfs nsfs rw
broken line
";
        let expected = [("net:[4026532281]", "/run/netns/cni-1"), ("net:[4026532283]", "/run/a b\\c")];
        let expected = expected.map(|(number, path)| (number.to_owned(), PathBuf::from(path)));
        assert_eq!(mounted(text), expected);
    }
}
