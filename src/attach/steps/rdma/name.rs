//! `rdmaDeviceName`: programs find the RDMA device of a rail under a name that is the same on every
//! node. The kernel has each name only once, over all namespaces.

use anyhow::{Context as _, Result};
use nix::errno::Errno;

use super::data::{Rdma, Renamed};
use crate::attach::context::{Bound, Cx};
use crate::fail;
use crate::netconf::NetConf;
use crate::netns::Netns;
use crate::rdma_cm::is_listed;
use crate::sysfs::Function;
use rail_netlink::all_of;
use rail_netlink::{Error, Socket, rdma};

/// The beginning of the name of a device on the host whose own name another one has; its index
/// follows.
const NEUTRAL_NAME: &str = "rail-cni-";

/// Adds the new name to `changes`.
pub fn plan(
    conf: &NetConf,
    what: &str,
    socket: Option<&mut Socket>,
    changes: &mut Rdma,
) -> Result<()> {
    let Some(wanted) = &conf.rdma_name else {
        return Ok(());
    };
    let (Some(socket), [before]) = (socket, &changes.names[..]) else {
        let count = changes.names.len();
        fail!(
            UnsupportedField,
            "rdmaDeviceName: {what} has {count} RDMA devices here, and the name is for exactly one: remove the key"
        );
    };
    if before == wanted {
        return Ok(());
    }
    let Some(device) = rdma::named(socket, &changes.names)?.pop() else {
        fail!(
            TryAgain,
            "rdmaDeviceName: {what} had the RDMA device {before}, which is gone"
        );
    };
    changes.renamed = Some(Renamed {
        index: device.index,
        before: device.name,
        wanted: Some(wanted.clone()),
    });
    changes.names = vec![wanted.clone()];
    Ok(())
}

impl Renamed {
    /// Gives the device its name, while it is on the host.
    pub fn apply(&self, host: &mut Socket) -> Result<()> {
        let Renamed {
            index,
            before,
            wanted,
        } = self;
        let Some(wanted) = wanted else {
            if let Some(now) = rdma::by_index(host, *index)?.filter(|now| now.name != *before) {
                let name = now.name;
                log::warn!(
                    "the RDMA device {name} has the name that an earlier pod gave it; it was {before}"
                );
            }
            return Ok(());
        };
        rdma::rename(host, *index, wanted).with_context(|| {
            format!(
                "rdmaDeviceName: cannot name {before} {wanted}; each name exists once on a node, over all pods: \
                 `railctl status` shows which pod has it"
            )
        })
    }

    /// Compares the name, for CHECK.
    pub fn check(&self, netns: &Netns) -> Result<Option<String>> {
        let Some(wanted) = &self.wanted else {
            return Ok(None);
        };
        let Some(mut pod) = netns.run(rdma::open)? else {
            return Ok(None);
        };
        Ok(match rdma::by_index(&mut pod, self.index)? {
            Some(now) if now.name == *wanted => None,
            Some(now) => Some(format!(
                "the RDMA device {wanted} has the name {}",
                now.name
            )),
            None => Some(format!("the RDMA device {wanted} is not in the pod")),
        })
    }
}

/// Restores the names of devices that are on the host, whether the pod or ADD changed them.
pub fn restore(step: &Rdma, cx: &Cx<'_>) -> Result<()> {
    let mut original_names = Vec::new();
    for device in &step.moving {
        original_names.push((device.index, &device.name));
    }
    if let Some(renamed) = &step.renamed {
        original_names.push((renamed.index, &renamed.before));
    }
    if original_names.is_empty() {
        return Ok(());
    }
    let Some(mut host) = rdma::open()? else {
        return Ok(());
    };
    let mut results = Vec::new();
    for (index, original_name) in original_names {
        results.push(restore_name(&mut host, index, original_name, cx));
    }
    all_of(results)
}

/// Restores the name of a device, if it is on the host. The kernel reuses the index of a device
/// that is gone, so the device must still belong to the function.
fn restore_name(host: &mut Socket, index: u32, original_name: &str, cx: &Cx<'_>) -> Result<()> {
    let Some(device) = rdma::by_index(host, index)? else {
        return Ok(());
    };
    if device.name == original_name || !is_of(cx.function.as_ref(), &device) {
        return Ok(());
    }
    let renamed = rdma::rename(host, index, original_name);
    let is_taken = renamed
        .as_ref()
        .is_err_and(|error| Error::is(error, Errno::EEXIST));
    // A pod may exchange the names of its rails: while this one has the other's name, neither gets
    // its own back.
    if is_taken && !device.name.starts_with(NEUTRAL_NAME) {
        rdma::rename(host, index, &format!("{NEUTRAL_NAME}{index}"))?;
    }
    renamed
}

/// Gives the RDMA device of a driver that was bound again the name that it had: the kernel numbers
/// devices by the order in which drivers are bound.
pub fn restore_names_made_anew(bound: &Bound, cx: &Cx<'_>) -> Result<()> {
    let now = cx
        .function
        .as_ref()
        .map(Function::list_rdma_devices)
        .transpose()?
        .unwrap_or_default();
    // Several devices cannot be told apart.
    let ([before], [now]) = (&bound.rdma[..], &now[..]) else {
        return Ok(());
    };
    let Some(mut host) = (if before == now { None } else { rdma::open()? }) else {
        return Ok(());
    };
    match rdma::named(&mut host, std::slice::from_ref(now))?.first() {
        Some(device) => rdma::rename(&mut host, device.index, before),
        None => Ok(()),
    }
}

fn is_of(function: Option<&Function>, device: &rdma::Device) -> bool {
    !is_listed(&device.name)
        || function.is_some_and(|function| function.rdma_devices().contains(&device.name))
}
