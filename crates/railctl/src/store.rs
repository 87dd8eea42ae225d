//! The write side of the store: all changes of a plan, or none. What is read there is in
//! [`rail_cni::pool::store`].

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use rail_cni::error::{self, Code};
use rail_cni::files::{self, Dir, Lock};
use rail_cni::node::Node;
use rail_cni::pool::Allocation;
use rail_cni::pool::store::{
    LEAF_PORTS, OfPool, UNFINISHED, closed_name, file_name, read_leaf_ports,
};
use serde::Serialize;

use crate::progress::Progress;

const LOCK: &str = ".lock";
/// The prefix of a directory's name that is not a node's yet, or not any more.
const NEW: &str = ".new.";
const PATIENCE: Duration = Duration::from_secs(10);

/// A change of the store.
#[derive(Debug)]
pub struct Change<'a> {
    /// The name of the node.
    pub node_name: &'a str,
    /// The name of the pool.
    pub pool: &'a str,
    /// The new allocation; `None` to remove it.
    pub allocation: Option<&'a Allocation>,
}

/// The right to write the store. Its holder compares a plan with the store and writes the
/// differences; no other program writes in between.
#[derive(Debug)]
pub struct Writer {
    /// The directory, and its lock. It is no error that there is none as long as there is nothing
    /// to write.
    root: Result<(Dir, Lock)>,
    path: PathBuf,
}

impl Writer {
    /// Waits for other writers. Makes the directory if it is missing.
    pub fn new(node: &Node) -> Result<Writer> {
        let open = || -> Result<(Dir, Lock)> {
            let root = Dir::create(&node.store_dir)?;
            let lock = root.lock(LOCK, PATIENCE)?;
            Ok((root, lock))
        };
        match open() {
            Err(error) if error::code_of(&error) == Code::TryAgain as u32 => Err(error),
            root => Ok(Writer {
                root,
                path: node.store_dir.clone(),
            }),
        }
    }
}

/// A plan that names these nodes is in the store: those that a plan had closed are open again.
fn open_again(root: &Dir, named: &[&str]) -> Result<()> {
    let is_closed = |name: &&&str| root.path().join(closed_name(name)).exists();
    let closed: Vec<_> = named.iter().filter(is_closed).collect();
    closed
        .iter()
        .try_for_each(|name| root.remove(&closed_name(name)))?;
    if closed.is_empty() {
        Ok(())
    } else {
        sync(root)
    }
}

/// Makes all changes durable, or none. The changes of one node are next to each other.
///
/// The new directory of a node is complete before it replaces the old one in one step, so a reader
/// has the old or the new one. All nodes share two waits for the disk: one for each file would take
/// minutes for a large fabric. `agree` is asked right before the first of them is replaced, when
/// nothing but the exchange is left to do. What it returns is kept until all are, and not while the
/// disk is waited for. Then the nodes that the plan has `named` are open.
pub fn apply<G>(
    writer: Writer,
    changes: &[Change<'_>],
    named: &[&str],
    agree: impl FnOnce() -> Result<G>,
) -> Result<()> {
    let is_unfinished = writer.path.join(UNFINISHED).exists();
    if changes.is_empty() && !is_unfinished {
        agree()?;
        // Without a store that can be opened, no node was closed.
        return writer
            .root
            .as_ref()
            .map_or(Ok(()), |(root, _lock)| open_again(root, named));
    }
    let (root, _lock) = writer.root?;
    if is_unfinished {
        let names = root.all_names()?;
        let names: Vec<_> = names
            .iter()
            .filter_map(|name| name.strip_prefix(NEW))
            .collect();
        clear(&root, &names)?;
    }
    let of_node: Vec<_> = changes
        .chunk_by(|one, other| one.node_name == other.node_name)
        .collect();
    let names: Vec<_> = of_node.iter().map(|changes| changes[0].node_name).collect();
    root.write_new(UNFINISHED, b"")?;
    let replaced = replace(&root, &of_node, agree);
    if let Err(error) = clear(&root, &names) {
        // The remains do no harm, and the next apply removes them.
        log::warn!("{error:#}");
    }
    replaced.and_then(|()| open_again(&root, named))
}

fn replace<G>(
    root: &Dir,
    of_node: &[&[Change<'_>]],
    agree: impl FnOnce() -> Result<G>,
) -> Result<()> {
    let mut steps = Vec::with_capacity(of_node.len());
    let mut progress = Progress::new("writing nodes", of_node.len());
    for changes in of_node {
        steps.push((changes[0].node_name, prepare(root, changes)?));
        progress.step();
    }
    sync(root)?;
    let agreed = agree()?;
    progress = Progress::new("replacing nodes", steps.len());
    for (done, (name, step)) in steps.iter_mut().enumerate() {
        progress.step();
        let Err(error) = step.take(root, name) else {
            continue;
        };
        // A directory is unchanged, unless its files were replaced one by one.
        let taken = if matches!(step, Step::FileByFile) {
            done + 1
        } else {
            done
        };
        let undone = steps[..taken]
            .iter()
            .rev()
            .try_for_each(|(name, step)| step.undo(root, name));
        return Err(match undone {
            Ok(()) => error,
            Err(why) => {
                let mixed =
                    "some nodes have the new plan and some the old one: write the plan again";
                error.context(format!("{why:#}; {mixed}"))
            }
        });
    }
    drop(agreed);
    drop(progress);
    match steps
        .iter()
        .filter(|(_, step)| matches!(step, Step::FileByFile))
        .count()
    {
        0 => (),
        count => log::warn!(
            "{}: this file system cannot exchange directories: {count} nodes were written file by file, and an ADD \
             at that moment may have read one pool of the old plan and one of the new",
            root.path().display()
        ),
    }
    sync(root)
}

fn sync(root: &Dir) -> Result<()> {
    let _progress = Progress::wait("waiting for the disk");
    root.sync()
}

/// The step of a node's new directory.
#[derive(Debug)]
enum Step {
    /// The node had no directory.
    Make,
    /// The directories are exchanged.
    Exchange,
    /// The directory has one file, and only this file is exchanged: a million nodes with one pool
    /// need no new directories.
    ExchangeFile(String),
    /// The directory is removed.
    Remove,
    /// There is no directory, before and after.
    Nothing,
    /// The files were replaced one by one, on a file system that cannot exchange directories.
    FileByFile,
}

/// Makes the new directory of a node, with the changes and with links to all other files of the old
/// one.
fn prepare(root: &Dir, changes: &[Change<'_>]) -> Result<Step> {
    let name = changes[0].node_name;
    let old = root.sub(name)?;
    let mut kept = old
        .as_ref()
        .map(Dir::names)
        .transpose()?
        .unwrap_or_default();
    let files: Vec<_> = changes
        .iter()
        .map(|change| file_name(change.pool))
        .collect();
    let only = match kept.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    };
    kept.retain(|name| name != LEAF_PORTS && !files.contains(name));
    let mut leaf_ports = old
        .as_ref()
        .map(read_leaf_ports)
        .transpose()?
        .unwrap_or_default();
    leaf_ports.retain(|pool, _| kept.contains(&file_name(pool)));
    let mut put = Vec::new();
    for (file, change) in files.into_iter().zip(changes) {
        let Some(allocation) = change.allocation else {
            continue;
        };
        put.push((file, content(allocation)?));
        let Allocation {
            gateway,
            leaf_ports: ports,
            ..
        } = allocation;
        if !ports.is_empty() {
            let of_pool = OfPool {
                gateway: *gateway,
                ports: ports.clone(),
            };
            leaf_ports.insert(change.pool.to_owned(), of_pool);
        }
    }
    if !leaf_ports.is_empty() {
        put.push((LEAF_PORTS.to_owned(), content(&leaf_ports)?));
    }
    let has_new = !kept.is_empty() || !put.is_empty();
    let hidden = hidden(name);
    if let (Some(only), true, [(file, content)]) = (only, kept.is_empty(), put.as_slice()) {
        if only == *file {
            make_new(root, &hidden, || root.write_new(&hidden, content))?;
            return Ok(Step::ExchangeFile(format!("{name}/{file}")));
        }
    }
    let step = match (&old, has_new) {
        (None, true) => Step::Make,
        (Some(_), true) => Step::Exchange,
        (Some(_), false) => {
            root.remove_any(&hidden)?; // as in make_new
            Step::Remove
        }
        (None, false) => Step::Nothing,
    };
    if has_new {
        make_new(root, &hidden, || root.make(&hidden))?;
    }
    for (file, content) in put {
        root.write_new(&format!("{hidden}/{file}"), &content)?;
    }
    if let (Some(old), false) = (old, kept.is_empty()) {
        let new = root.create_sub(&hidden)?;
        kept.iter().try_for_each(|name| old.link(name, &new))?;
    }
    Ok(step)
}

/// Makes the entry `hidden`. A file system that loses its last changes in another order than that
/// in which they were made may have kept one of a killed writer without [`UNFINISHED`].
fn make_new(root: &Dir, hidden: &str, make: impl Fn() -> Result<()>) -> Result<()> {
    match make() {
        Err(error) if files::is_already_there(&error) => {
            root.remove_any(hidden)?;
            make()
        }
        made => made,
    }
}

fn content(of_file: &impl Serialize) -> Result<Vec<u8>> {
    let mut content = serde_json::to_vec(of_file)?;
    content.push(b'\n');
    Ok(content)
}

impl Step {
    fn take(&mut self, root: &Dir, name: &str) -> Result<()> {
        let hidden = &hidden(name);
        let whole = match self {
            Step::Make => root.rename(hidden, root, name),
            Step::Remove => root.rename(name, root, hidden),
            Step::Exchange => root.exchange(hidden, name),
            Step::ExchangeFile(file) => root.exchange(hidden, file),
            Step::Nothing | Step::FileByFile => return Ok(()),
        };
        // EXDEV: overlayfs, for a directory that is not in the upper layer.
        let cannot = |error: &std::io::Error| {
            [
                Errno::EINVAL,
                Errno::EXDEV,
                Errno::ENOSYS,
                Errno::EOPNOTSUPP,
            ]
            .iter()
            .any(|errno| error.raw_os_error() == Some(*errno as i32))
        };
        match whole {
            Err(error) if !matches!(self, Step::Make) && cannot(&error) => {
                let done = match self {
                    Step::ExchangeFile(file) => move_file(root, hidden, root, file),
                    _ => file_by_file(root, name),
                };
                *self = Step::FileByFile;
                done
            }
            whole => {
                whole.with_context(|| format!("cannot write {}", root.path().join(name).display()))
            }
        }
    }

    fn undo(&self, root: &Dir, name: &str) -> Result<()> {
        let hidden = &hidden(name);
        let undone = match self {
            Step::Make => root.rename(name, root, hidden),
            Step::Remove => root.rename(hidden, root, name),
            Step::Exchange => root.exchange(hidden, name),
            Step::ExchangeFile(file) => root.exchange(hidden, file),
            Step::Nothing => return Ok(()),
            Step::FileByFile => Err(ErrorKind::Unsupported.into()),
        };
        undone.with_context(|| format!("cannot put {} back", root.path().join(name).display()))
    }
}

/// Moves the prepared files of a node, if there are any, into its directory, and removes all others
/// there.
fn file_by_file(root: &Dir, name: &str) -> Result<()> {
    let Some(old) = root.sub(name)? else {
        return Ok(());
    };
    let new = root.sub(&hidden(name))?;
    let names = new
        .as_ref()
        .map(Dir::names)
        .transpose()?
        .unwrap_or_default();
    for file in &names {
        if let Some(new) = &new {
            move_file(new, file, &old, file)?;
        }
    }
    for file in old.names()?.iter().filter(|file| !names.contains(file)) {
        old.remove(file)?;
    }
    if names.is_empty() {
        root.remove_any(name)
    } else {
        Ok(())
    }
}

fn move_file(from: &Dir, name: &str, to: &Dir, new_name: &str) -> Result<()> {
    from.rename(name, to, new_name)
        .with_context(|| format!("cannot write {}", to.path().join(new_name).display()))
}

/// Removes the hidden directories of these nodes: old ones, or those of a killed writer. The caller
/// has the lock.
fn clear(root: &Dir, names: &[&str]) -> Result<()> {
    let mut progress = Progress::new("removing old nodes", names.len());
    for name in names {
        root.remove_any(&hidden(name))?;
        progress.step();
    }
    root.remove(UNFINISHED)
}

/// The name of a node's directory before and after it is the node's. It has the same parent,
/// because a directory that stays in its parent is not written again when it is renamed.
fn hidden(node_name: &str) -> String {
    format!("{NEW}{node_name}")
}

#[cfg(test)]
pub mod tests;
