//! Changes a PF and its VFs, while no ADD or DEL has one of them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::differ::{Change, VFIO};
use super::refuse::Refusal;
use super::{State, VfsArgs, look};
use crate::commands::inventory::{Inventory, Rail};
use rail_cni::attach::attachments::{Attachments, DeviceLock};
use rail_cni::failure;
use rail_cni::node::{Driver, Node, Vfs};
use rail_cni::sysfs::{DeviceId, Function};
use rail_netlink::vf::{self, VfState};
use rail_netlink::{Socket, link};

/// The PF, its VFs, and once more to see that nothing is left.
const ROUNDS: usize = 3;
/// The longest time that a driver has to make the netdev of a VF, and that for each other VF of its
/// PF.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_PER_VF: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Changes what differs until nothing does. First what is of the PF, for the VFs are others then.
pub fn make(row: usize, wanted: &Vfs, node: &Node, args: &VfsArgs) -> (State, Vec<Change>) {
    let mut made = Vec::new();
    for _ in 0..ROUNDS {
        match round(row, wanted, node, args, &mut made) {
            Ok(Left::Something) => (),
            Ok(Left::Nothing) => return (State::Changed, made),
            Ok(Left::Stopped(state, differing)) => {
                return (state, if made.is_empty() { differing } else { made });
            }
            Err(error) => return (State::Failed(format!("{error:#}")), made),
        }
    }
    (
        State::Failed("it changed, but is not as wanted: run `railctl vfs --check`".to_owned()),
        made,
    )
}

/// The outcome of a round.
enum Left {
    Nothing,
    Something,
    Stopped(State, Vec<Change>),
}

fn round(
    row: usize,
    wanted: &Vfs,
    node: &Node,
    args: &VfsArgs,
    made: &mut Vec<Change>,
) -> Result<Left> {
    let attachments = Attachments::open(node)?;
    let inventory = Inventory::take(node)?;
    let rail = inventory.rails.get(row).context("node.json has changed")?;
    let locks = match lock(rail, &attachments)? {
        Ok(locks) => locks,
        Err(refusal) => return Ok(Left::Stopped(State::Refused(refusal), Vec::new())),
    };
    // Only now nobody takes one.
    let mut changes = match look(row, wanted, node, args) {
        Ok(changes) if changes.is_empty() => return Ok(Left::Nothing),
        Ok(changes) => changes,
        Err((state, changes)) => return Ok(Left::Stopped(state, changes)),
    };
    if changes.iter().any(Change::is_of_pf) {
        changes.retain(Change::is_of_pf);
    }
    let _binding = attachments.binding()?;
    let _pf = attachments.pf(rail.pf())?;
    for change in changes {
        apply(&change, rail, node)?;
        log::info!("{}: {}", rail.title(), change.text());
        made.push(change);
    }
    drop(locks);
    Ok(Left::Something)
}

/// Locks the PF and its VFs against the calls of runtimes.
fn lock(rail: &Rail, attachments: &Attachments) -> Result<Result<Vec<DeviceLock>, Refusal>> {
    let mut locks = Vec::new();
    let vfs = rail.vfs.iter().map(|vf| &vf.function);
    for function in rail.function.iter().chain(vfs) {
        let Some(lock) = attachments.try_device(&function.id)? else {
            let text = format!(
                "an ADD or DEL of {} is running: try again when it has ended",
                function.id
            );
            return Ok(Err(Refusal::new("in-use", text)));
        };
        locks.push(lock);
    }
    Ok(Ok(locks))
}

fn apply(change: &Change, rail: &Rail, node: &Node) -> Result<()> {
    let mut host = Socket::open()?;
    let pf = rail.link.as_ref().context("the PF has no netdev")?;
    let function = rail
        .function
        .as_ref()
        .context("the PF is not a PCI function")?;
    let vf_of = |id: &str| {
        let found = DeviceId::parse(id)
            .map(|id| Function::find(&node.sysfs_root, &id))
            .transpose()?
            .flatten();
        found.with_context(|| format!("the VF {id} is gone"))
    };
    match change {
        Change::Mtu { to, .. } => link::set_mtu(&mut host, pf, *to),
        Change::Up => link::set_up(&mut host, pf),
        Change::Number { to, .. } => {
            function.set_vf_count(*to).context(
                "the kernel's log has the reason (`dmesg`); without room for the VFs' memory it is `pci=realloc`",
            )?;
            await_netdevs(function, *to, node)
        }
        Change::Setting { number, to, .. } => vf::set(&mut host, pf.index, &pf.name, *number, to),
        Change::Driver { vf, to, .. } => drive(&vf_of(vf)?, *to),
        Change::NodeGuid { vf, number, mac } => {
            let mac = VfState {
                mac: Some(mac.clone()),
                ..VfState::default()
            };
            vf::set(&mut host, pf.index, &pf.name, *number, &mac)?;
            let vf = vf_of(vf)?;
            let driver = vf
                .driver()
                .with_context(|| format!("{} has no driver", vf.id))?;
            vf.unbind()?;
            vf.bind(&driver)?;
            await_netdev(&vf, Instant::now() + PATIENCE)
        }
    }
}

/// Gives a VF to another driver.
fn drive(vf: &Function, to: Driver) -> Result<()> {
    vf.set_driver_override(match to {
        Driver::Netdev => None,
        Driver::Vfio => Some(VFIO),
    })?;
    if vf.driver().is_some() {
        vf.unbind()?;
    }
    match to {
        Driver::Vfio => vf.bind(VFIO),
        Driver::Netdev => {
            vf.probe()?;
            await_netdev(vf, Instant::now() + PATIENCE)
        }
    }
}

/// Waits until the drivers have made the netdevs of new VFs, which udev then names.
fn await_netdevs(pf: &Function, number: u16, node: &Node) -> Result<()> {
    let deadline = Instant::now() + PATIENCE + PATIENCE_PER_VF * u32::from(number);
    let found = pf.vfs()?;
    if found.len() != usize::from(number) {
        return Err(failure!(
            Io,
            "{} has {} VFs after {number} were made",
            pf.id,
            found.len()
        ));
    }
    if !pf.binds_vfs() {
        return Ok(());
    }
    for id in found.iter().filter_map(|id| DeviceId::parse(id)) {
        if let Some(vf) = Function::find(&node.sysfs_root, &id)? {
            await_netdev(&vf, deadline)?;
        }
    }
    Ok(())
}

fn await_netdev(vf: &Function, deadline: Instant) -> Result<()> {
    while vf.netdev()?.is_none() && !vf.is_userspace() {
        if Instant::now() > deadline {
            let driver = vf.driver().unwrap_or_else(|| "no driver".to_owned());
            return Err(failure!(
                TryAgain,
                "{} has no netdev yet ({driver}): is the module of its driver there? See `dmesg`",
                vf.id
            ));
        }
        sleep(PAUSE);
    }
    Ok(())
}
