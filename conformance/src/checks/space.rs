//! docs/cni-contract.md, items 50 and 51 on a full disk.

use std::fs;
use std::path::PathBuf;

use super::{Check, Quality, check};
use crate::ensure;
use crate::sandbox;
use crate::world::{Stop, World};

pub const CHECKS: &[Check] = &[
    check(
        "add_on_a_full_disk",
        &[3, 50],
        Quality,
        "an ADD that finds /run and /var/lib/cni full succeeds, or fails with an error object; its DEL leaves nothing",
        add_on_a_full_disk,
    ),
    check(
        "del_on_a_full_disk",
        &[73, 84],
        Quality,
        "a DEL that finds /run and /var/lib/cni full succeeds",
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
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let full = Full::new(world)?;
    let ran = world.run(&world.call("ADD", &one))?;
    drop(full);
    if ran.status != 0 {
        ran.error().map_err(Stop::Fails)?;
    }
    let deleted = world.run(&world.call("DEL", &one))?;
    ensure!(deleted.status == 0, "the DEL after it: {}", deleted.told());
    world.is_as(&before, "after ADD on a full disk, and DEL")?;
    let one = world.renewed(one)?;
    world.ok(&world.call("ADD", &one)).map(drop)
}

fn del_on_a_full_disk(world: &World<'_>) -> Result<(), Stop> {
    let one = world.attachment(0)?;
    let before = world.baseline()?;
    let result = world.add(&one)?;
    let full = Full::new(world)?;
    let ran = world.run(&world.del_call(&one, &result))?;
    drop(full);
    ensure!(ran.status == 0, "{}", ran.told());
    world.is_as(&before, "after DEL on a full disk")
}
