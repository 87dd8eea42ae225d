//! The state of an attachment, as ADD, GC, `reap`, `status`, `check` and rail-agent see it.

use anyhow::Result;

use super::locate;
use super::record::Record;
use super::steps::driver::Driver;
use crate::netns::{Life, Netns};
use crate::node::Node;
use crate::sysfs::Function;
use rail_netlink::Socket;
use rail_netlink::link::Link;

/// The state of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The pod has the device, as this link; `None` where the attachment has no netdev.
    Live(Option<Link>),
    /// The pod is alive, but its device is neither there nor on the host. The pod may have it in a
    /// namespace of its own.
    Elsewhere,
    /// The pod is alive, and its device is on the host: a driver that started anew made it there, or
    /// the pod gave it away. Its address stays until DEL, or until an ADD gets the device;
    /// `reattach.rs` returns the device to the pod.
    Lost,
    /// The device is on the host, and nothing shows whether the pod is alive; or its end has begun;
    /// or the attachment was of the RDMA device alone.
    OnHost,
    /// The pod is gone without a DEL.
    Dead,
    /// The ADD was killed.
    CutOff,
    /// The pod is gone, and the device has not returned.
    Missing,
    /// Cannot tell whether the pod is alive, for this reason. Then nothing is taken from it.
    Unknown(String),
}

impl State {
    /// Whether the device is out of the pod, so that an ADD may have it.
    pub fn is_free(&self) -> bool {
        self.is_left_over() || *self == State::Lost
    }

    /// Whether it is certain that only the record is left.
    pub fn is_left_over(&self) -> bool {
        matches!(
            self,
            State::Dead | State::CutOff | State::OnHost | State::Missing
        )
    }
}

/// Looks at the namespace of the record, and into it.
pub fn of(record: &Record, node: &Node, host: &mut Socket) -> Result<State> {
    match record.owner.life()? {
        Life::Dead if record.is_missing() => return Ok(State::Missing),
        Life::Dead => return Ok(State::Dead),
        // The device is not in two places, whatever hides the pod.
        Life::Unknown(_) if has_returned(record, node, host)? => return Ok(State::OnHost),
        Life::Unknown(why) => return Ok(State::Unknown(why)),
        Life::Alive if record.is_cut_off() => return Ok(State::CutOff),
        Life::Alive => (),
    }
    match in_living(record, node, host) {
        Ok(State::Live(_)) if record.is_returning() => Ok(State::Lost),
        Err(error) => Ok(State::Unknown(format!("{error:#}"))),
        state => state,
    }
}

fn has_returned(record: &Record, node: &Node, host: &mut Socket) -> Result<bool> {
    let function = record.owner.device.function(node)?;
    Ok(locate::on_host(&record.owner, function.as_ref(), node, host)?.is_some())
}

/// The state of an attachment in a living pod, by the place of its device.
fn in_living(record: &Record, node: &Node, host: &mut Socket) -> Result<State> {
    let owner = &record.owner;
    let netns = Netns::open(&owner.netns.path)?;
    let function = owner.device.function(node)?;
    if owner.is_rdma_alone() {
        // Has the host a netdev of the function? Then no pod has it.
        let netdev = function
            .as_ref()
            .map(Function::netdev)
            .transpose()?
            .flatten();
        return Ok(if netdev.is_some() {
            State::OnHost
        } else {
            State::Live(None)
        });
    }
    if owner.device.link.is_none() {
        return Ok(State::Live(None));
    }
    if let Some(link) = locate::in_pod(owner, &mut netns.run(Socket::open)?)? {
        return Ok(State::Live(Some(link)));
    }
    // Without a driver because a call was ended while it bound that again, the netdev is nowhere.
    let is_unbound = record.find::<Driver>().is_some_and(|driver| driver.0.again)
        && function
            .as_ref()
            .is_some_and(|function| function.driver().is_none());
    let is_on_host = is_unbound || locate::on_host(owner, function.as_ref(), node, host)?.is_some();
    if !is_on_host {
        return Ok(State::Elsewhere);
    }
    Ok(if record.is_ending() {
        State::OnHost
    } else {
        State::Lost
    })
}
