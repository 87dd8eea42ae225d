//! The leases of versions before the table: `leases/NODE/POOL/ADDRESS@KEY.json`, and `rebuilt/`.
//! They are moved at the first call. An older version that is installed again then misses its mark
//! of the first use, and assigns no address until `railctl reap --rebuild`.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::names::{BEGUN, BEGUN_LOCK, LOCK, parts};
use crate::files::Dir;

/// The mark of the first use in older versions.
const OLD_BEGUN: &str = "_begun";
const REBUILT: &str = "rebuilt";
const PATIENCE: Duration = Duration::from_secs(10);

/// Moves the leases of an older version, which are below the directory of leases, into it.
pub fn migrate(run: &Dir, leases: &Dir) -> Result<()> {
    if !is_old(leases)? {
        return Ok(());
    }
    let _lock = run.lock(BEGUN_LOCK, PATIENCE)?;
    for node_name in leases.names()? {
        if node_name == BEGUN || node_name == OLD_BEGUN || !is_of_older(&node_name) {
            continue;
        }
        let Some(of_node) = directory(leases, &node_name) else {
            continue;
        };
        for pool in of_node.names()? {
            if let Some(of_pool) = directory(&of_node, &pool) {
                move_leases(&of_pool, leases, &node_name, &pool)?;
                of_node.remove_empty(&pool);
            }
        }
        leases.remove_empty(&node_name);
    }
    if let Some(rebuilt) = run.sub(REBUILT)? {
        move_leases(&rebuilt, leases, "", "")?;
        run.remove_empty(REBUILT);
    }
    if leases.sub(OLD_BEGUN)?.is_some() {
        leases.create_sub(BEGUN)?;
        leases.remove_empty(OLD_BEGUN);
    }
    Ok(())
}

/// Whether an older version was here since the first use of the table, or before it.
fn is_old(leases: &Dir) -> Result<bool> {
    if leases.sub(OLD_BEGUN)?.is_some() {
        return Ok(true);
    }
    if leases.sub(BEGUN)?.is_some() {
        return Ok(false);
    }
    Ok(!leases.names_where(is_of_older)?.is_empty())
}

/// Whether a name in the directory of leases is not one of the table's.
fn is_of_older(name: &str) -> bool {
    name != LOCK && parts(name).is_none()
}

/// A link or a file in the place of a directory is not rail-ipam's.
fn directory(parent: &Dir, name: &str) -> Option<Dir> {
    parent.sub(name).unwrap_or_else(|error| {
        log::warn!("{error:#}: remove it");
        None
    })
}

/// Moves the leases of a pool, which an older version locks while it writes one.
fn move_leases(pool_dir: &Dir, table: &Dir, node_name: &str, pool: &str) -> Result<()> {
    let _lock = pool_dir.lock(LOCK, PATIENCE)?;
    for name in pool_dir.names()? {
        if parts(&name).is_none() {
            continue;
        }
        let content = pool_dir.read(&name).ok().flatten().unwrap_or_default();
        match serde_json::from_slice(&content) {
            Ok(Value::Object(mut lease)) => {
                lease.insert("nodeName".to_owned(), node_name.into());
                lease.insert("pool".to_owned(), pool.into());
                table.write(&name, &serde_json::to_vec(&lease)?)?;
                pool_dir.remove(&name)?;
            }
            // A damaged lease holds its address.
            _ => pool_dir.rename(&name, table, &name)?,
        }
    }
    pool_dir.remove(LOCK)
}
