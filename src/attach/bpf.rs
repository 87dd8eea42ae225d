//! BPF programs on a netdev. They go with it into the pod and come back with it, and see its packets in both places: one
//! of the host (Cilium and Calico put theirs on all devices that they are told, or guess) would drop a pod's packets, and
//! one of a pod those of the next.

use anyhow::Result;
use aya::programs::ProgramError;
use aya::programs::tc::{SchedClassifier, TcAttachType};
use aya::sys::SyscallError;

use crate::fail;
use rail_netlink::Socket;
use rail_netlink::link::Link;
use rail_netlink::tunables;

/// The hooks of tcx, by the names that bpftool has for them.
const HOOKS: [(TcAttachType, &str); 2] =
    [(TcAttachType::Ingress, "tcx_ingress"), (TcAttachType::Egress, "tcx_egress")];

/// Refuses a device with a program of the host.
pub fn refuse(what: &str, link: &Link) -> Result<()> {
    let name = &link.name;
    if link.xdp {
        fail!(
            InvalidConfig,
            "{what} is in use by the host: it has an XDP program: `ip link set {name} xdp off`, or `xdpgeneric off`"
        );
    }
    if let Some(hook) = tcx_hook(name) {
        fail!(
            InvalidConfig,
            "{what} is in use by the host: it has a BPF program at {hook} (`bpftool net show dev {name}`). Cilium and \
             Calico attach theirs to the devices that match `devices` or `bpfDataIfacePattern`"
        );
    }
    Ok(())
}

/// Removes a pod's programs. Fails where one stays: whoever made it holds it by a bpf_link, or it is at tcx, where programs
/// are removed by whoever knows them.
pub fn remove(link: &Link, host: &mut Socket) -> Result<()> {
    if link.xdp {
        tunables::detach_xdp(host, link)?;
    }
    if let Some(hook) = tcx_hook(&link.name) {
        fail!(Internal, "{}: a BPF program is left at {hook}: `bpftool net show dev {0}`", link.name);
    }
    Ok(())
}

/// The hook of tcx at which the netdev `name` of the host has a program; `None` also where the kernel does not say (before
/// Linux 6.6, or in a user namespace).
fn tcx_hook(name: &str) -> Option<&'static str> {
    let has_program = |hook| match SchedClassifier::query_tcx(name, hook) {
        Ok((_, programs)) => !programs.is_empty(),
        // It has one that cannot be opened: this process may only ask, see `confine`.
        Err(ProgramError::SyscallError(SyscallError { call, .. })) => call != "bpf_prog_query",
        Err(_) => false,
    };
    HOOKS.into_iter().find(|(hook, _)| has_program(*hook)).map(|(_, name)| name)
}
