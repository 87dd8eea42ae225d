//! Visits the network namespaces of the node. The kernel has no call that lists them all, so the
//! mounted ones and those of processes are entered one after the other.

use std::collections::HashSet;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::netns::Netns;
use rail_netlink::Socket;

/// The namespaces to visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Namespaces that a runtime has mounted.
    Mounted,
    /// The mounted ones and those that exist only through processes. This reads /proc of every
    /// process of the node.
    All,
    /// Also those that only a thread or an open file of a process keeps.
    Kept,
}

/// The extent of the visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Every namespace that could be entered, or as many as the visitor wanted.
    All,
    /// Only a part: the time was over before the rest was visited.
    Part,
}

/// Shows every namespace except the caller's to `visitor`, with a path that leads to it, until the
/// visitor breaks off or the deadline has passed. A program that may create namespaces can create
/// any number of them, so the deadline applies to those that exist only through processes. The
/// mounted ones come first and are all visited, because only runtimes mount them. A namespace that
/// cannot be entered, as one of a parent user namespace, is left out. The visitor runs in the
/// namespace: the kernel lists RDMA devices by that of the thread, not of the socket.
pub fn visit(
    which: Which,
    deadline: Instant,
    mut visitor: impl FnMut(&mut Socket, &Path) -> Result<ControlFlow<Seen>>,
) -> Result<Seen> {
    let mut seen: HashSet<String> = number(Path::new("/proc/self/ns/net")).into_iter().collect();
    let mountinfo = fs::read("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let processes = if which == Which::Mounted {
        Vec::new()
    } else {
        processes()?
    };
    let of_processes = processes.iter().map(|process| process.join("ns/net"));
    let keepers: &[PathBuf] = if which == Which::Kept {
        &processes
    } else {
        &[]
    };
    let kept = keepers.iter().flat_map(|process| kept_by(process));
    let of_processes = of_processes
        .chain(kept)
        .map(|path| (number(&path), path, Which::All));
    let mounted = mounted(&mountinfo).into_iter();
    let mounted = mounted.map(|(number, path)| (Some(number), path, Which::Mounted));
    for (number, path, kind) in mounted.chain(of_processes) {
        if kind == Which::All && Instant::now() > deadline {
            return Ok(Seen::Part);
        }
        let Some(number) = number.filter(|number| number.starts_with("net:[")) else {
            continue;
        };
        if !seen.insert(number) {
            continue;
        }
        // The namespace may be gone by now.
        let entered = Netns::open(&path).and_then(|netns| {
            netns.run(|| {
                let mut socket = Socket::open()?;
                Ok(visitor(&mut socket, &path))
            })
        });
        match entered {
            Err(error) => log::debug!("{} cannot be entered: {error:#}", path.display()),
            Ok(visited) => {
                if let ControlFlow::Break(seen) = visited? {
                    return Ok(seen);
                }
            }
        }
    }
    Ok(Seen::All)
}

/// The link text of a namespace, such as `net:[4026532281]`, which identifies it.
fn number(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.to_str()?.to_owned())
}

/// The mounted network namespaces as (link text, mount point), from proc_pid_mountinfo(5): they are
/// on the file system nsfs, with a root such as `net:[4026532281]`.
fn mounted(mountinfo: &[u8]) -> Vec<(String, PathBuf)> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let found = lines.filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(3);
        let number = std::str::from_utf8(words.next()?)
            .ok()
            .filter(|root| root.starts_with("net:["))?;
        Some((number.to_owned(), unescaped(words.next()?)))
    });
    found.collect()
}

/// Decodes the octal escapes of mountinfo: space, tab, line feed and backslash are `\040` and so
/// on.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|text| std::str::from_utf8(text).ok());
        let byte = digits.and_then(|text| u8::from_str_radix(text, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// The ways in which a process may keep a namespace without being in it: its threads, and its open
/// files, as far as they name themselves (d_path: a file that was opened where the namespace is
/// mounted has the name of that place).
fn kept_by(process: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let list = |name: &str| {
        fs::read_dir(process.join(name))
            .into_iter()
            .flatten()
            .flatten()
    };
    let threads = list("task").map(|thread| thread.path().join("ns/net"));
    threads.chain(list("fd").map(|file| file.path()))
}

/// The directories of all processes in /proc.
pub fn processes() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir("/proc").context("cannot list /proc")?;
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.to_owned()));
    let processes = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(processes
        .map(|process| Path::new("/proc").join(process))
        .collect())
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
        let expected = [
            ("net:[4026532281]", "/run/netns/cni-1"),
            ("net:[4026532283]", "/run/a b\\c"),
        ];
        let expected = expected.map(|(number, path)| (number.to_owned(), PathBuf::from(path)));
        assert_eq!(mounted(text), expected);
    }
}
