//! A BPF program that drops everything, held on a netdev by a bpf_link, as Cilium and Calico do it.

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya::programs::tc::{SchedClassifier, TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, Xdp, XdpFlags};

/// `SEC("xdp") int drop() { return XDP_DROP; }`. tcx-drop.o is the same, made by `objcopy
/// --rename-section xdp=classifier`.
pub const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/xdp-drop.o");

/// The hook on the netdev.
#[derive(Clone, Copy, Debug)]
pub enum Hook {
    /// XDP, in the driver or before it.
    Xdp,
    /// tcx, for what comes in.
    Tcx,
}

/// Puts it on `netdev` of this thread's namespace, until what is returned is dropped.
pub fn hold(netdev: &str, hook: Hook) -> Result<Ebpf> {
    // The section says what kind of program it is.
    let object = match hook {
        Hook::Xdp => OBJECT,
        Hook::Tcx => concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tcx-drop.o"),
    };
    let mut programs = Ebpf::load_file(object)?;
    let (_, program) = programs.programs_mut().next().context("no program")?;
    match hook {
        Hook::Xdp => {
            let program: &mut Xdp = program.try_into()?;
            program.load()?;
            program.attach(netdev, XdpFlags::SKB_MODE)?;
        }
        Hook::Tcx => {
            let program: &mut SchedClassifier = program.try_into()?;
            program.load()?;
            let order = TcAttachOptions::TcxOrder(LinkOrder::default());
            program.attach_with_options(netdev, TcAttachType::Ingress, order)?;
        }
    }
    Ok(programs)
}
