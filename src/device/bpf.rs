//! BPF programs on a netdev. They move with it into the pod and back, and see its packets in both
//! places. A program of the host would drop a pod's packets: Cilium and Calico attach theirs to
//! every device that matches their configuration. A program of a pod would drop, or read, those of
//! the next pod.

use anyhow::{Context as _, Result};
use aya::programs::ProgramError;
use aya::programs::tc::{SchedClassifier, TcAttachType, TcError};
use nix::errno::Errno;

use crate::fail;
use rail_netlink::Socket;
use rail_netlink::link::Link;
use rail_netlink::tunables;

/// The hooks of tcx, with bpftool's names.
const HOOKS: [(TcAttachType, &str); 2] = [
    (TcAttachType::Ingress, "tcx_ingress"),
    (TcAttachType::Egress, "tcx_egress"),
];

/// Refuses a device with a program of the host.
pub fn refuse(what: &str, link: &Link) -> Result<()> {
    let name = &link.name;
    if link.xdp {
        fail!(
            InvalidConfig,
            "{what} is in use by the host: it has an XDP program: `ip link set {name} xdp off`, or `xdpgeneric off`"
        );
    }
    if let Some(hook) = tcx_hook(name)? {
        fail!(
            InvalidConfig,
            "{what} is in use by the host: it has a BPF program at {hook} (`bpftool net show dev {name}`). Cilium and \
             Calico attach theirs to the devices that match `devices` or `bpfDataIfacePattern`"
        );
    }
    Ok(())
}

/// Removes a pod's programs. Fails if one remains: a bpf_link holds it, or it is at tcx, where only
/// its owner can remove it.
pub fn remove(link: &Link, host: &mut Socket) -> Result<()> {
    if link.xdp {
        tunables::detach_xdp(host, link)?;
    }
    if let Some(hook) = tcx_hook(&link.name)? {
        fail!(
            Internal,
            "{}: a BPF program is still attached at {hook}: `bpftool net show dev {0}`",
            link.name
        );
    }
    Ok(())
}

/// The hook of tcx at which the netdev `name` of the host has a program.
fn tcx_hook(name: &str) -> Result<Option<&'static str>> {
    for (hook, shown) in HOOKS {
        match SchedClassifier::query_tcx(name, hook) {
            Ok((_, programs)) if programs.is_empty() => (),
            Ok(_) => return Ok(Some(shown)),
            Err(ProgramError::SyscallError(error)) if error.call != "bpf_prog_query" => {
                // There is one, which this process may not open: see `confine`.
                return Ok(Some(shown));
            }
            Err(error) => refuse_unless_unknown(error, name)?,
        }
    }
    Ok(None)
}

/// Fails unless the kernel cannot say: before Linux 6.6, without bpf(2), in a user namespace, or
/// where a policy forbids it.
fn refuse_unless_unknown(error: ProgramError, name: &str) -> Result<()> {
    const UNKNOWN: [Errno; 4] = [Errno::EINVAL, Errno::ENOSYS, Errno::EPERM, Errno::EACCES];
    let error = match error {
        ProgramError::SyscallError(error) => error.io_error,
        ProgramError::TcError(TcError::NetlinkError { io_error }) => io_error,
        _ => std::io::Error::other("aya"),
    };
    if error
        .raw_os_error()
        .is_some_and(|errno| UNKNOWN.contains(&Errno::from_raw(errno)))
    {
        return Ok(());
    }
    Err(error).with_context(|| format!("cannot list the BPF programs of {name}"))
}
