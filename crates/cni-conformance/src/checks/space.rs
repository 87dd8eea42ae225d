//! A full disk.

use std::fs;
use std::path::PathBuf;

use crate::check::{Check, extra};
use crate::ensure;
use crate::sandbox;
use crate::settings::Stop;
use crate::world::World;

/// Why it is asked.
const OF_DISKS: &str = "a node whose disk is full evicts pods";

pub const CHECKS: &[Check] = &[
    extra(
        "add_on_a_full_disk",
        "with /run and /var/lib/cni full, ADD succeeds or fails with an error object, and its DEL leaves nothing",
        OF_DISKS,
        add_on_a_full_disk,
    ),
    extra(
        "del_on_a_full_disk",
        "with /run and /var/lib/cni full, DEL succeeds",
        OF_DISKS,
        del_on_a_full_disk,
    ),
];

/// Files that fill the disks, while it lives.
struct Full<'w, 's> {
    world: &'w World<'s>,
    files: Vec<PathBuf>,
}

impl<'w, 's> Full<'w, 's> {
    fn new(world: &'w World<'s>) -> Result<Full<'w, 's>, Stop> {
        let files = sandbox::fillers().map_err(Stop::LeftOut)?;
        let full = Full { world, files };
        for path in &full.files {
            world.step(format!("cat /dev/zero >{}", path.display()));
            sandbox::fill(path).map_err(Stop::LeftOut)?;
        }
        Ok(full)
    }
}

impl Drop for Full<'_, '_> {
    fn drop(&mut self) {
        for path in &self.files {
            self.world.step(format!("rm {}", path.display()));
            let _ = fs::remove_file(path);
        }
    }
}

fn add_on_a_full_disk(world: &World<'_>) -> Result<(), Stop> {
    world.dels()?;
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let full = Full::new(world)?;
    let ran = world.run(&world.call("ADD", &one))?;
    drop(full);
    if ran.status != 0 {
        if let Err(why) = ran.error() {
            ensure!(world, false, "succeeded || is_error", "{why}");
        }
    }
    let deleted = world.run(&world.call("DEL", &one))?;
    ensure!(
        world,
        deleted.status == 0,
        "succeeded",
        "the DEL after it: {}",
        deleted.told()
    );
    world.is_as(&before, "after ADD on a full disk, and DEL")?;
    let one = world.renewed(one)?;
    world.ok(&world.call("ADD", &one)).map(drop)
}

fn del_on_a_full_disk(world: &World<'_>) -> Result<(), Stop> {
    world.dels()?;
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let result = world.add(&one)?;
    let full = Full::new(world)?;
    let ran = world.run(&world.del_call(&one, &result))?;
    drop(full);
    ensure!(world, ran.status == 0, "succeeded", "{}", ran.told());
    world.is_as(&before, "after DEL on a full disk")
}
