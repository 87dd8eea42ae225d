//! The move of the netdev into the pod, with name, MTU and MAC, and back.

use anyhow::{Context as _, Result};

use super::rdma;
use crate::attach::context::Cx;
use crate::attach::locate::{self, Place};
use crate::attach::step::{Asked, Made, Step, UndoneAt};
use crate::cni::AddResult;
use crate::device::alias::Alias;
use crate::device::stacked::{is_tapped, of_namespace, receiver_in_pod};
use crate::netconf::NetConf;
use crate::netns::Netns;
use crate::{fail, watchdog};
use rail_netlink::Socket;
use rail_netlink::link::{self, Link, parse_mac};
use rail_netlink::stacked::{self, Receiver};

/// The netdev moves to the pod.
#[derive(Debug)]
pub struct Move;

impl Step for Move {
    fn describe(&self) -> &'static str {
        "the return of its device"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Pod
    }

    fn plan(asked: &Asked<'_>, _cx: &mut Cx<'_>) -> Result<Option<Move>> {
        Ok(asked.device.original.link.as_ref().map(|_| Move))
    }

    fn make(&mut self, asked: &Asked<'_>, made: &mut Made, cx: &mut Cx<'_>) -> Result<()> {
        made.turn = cx.locks.turn();
        watchdog::step(|| format!("moving {}", cx.owner.device.id));
        if made.is_anew {
            look_again(cx)?;
        }
        // Not where DEL would not know the alias that was there before.
        let alias = if cx.facts.knows_alias {
            Alias::of(asked.conf, &cx.owner.network, asked.leased, cx.node)
        } else {
            None
        };
        move_to_pod(asked.conf, alias.map(Alias::text).as_deref(), cx)
    }

    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        take_home(cx)
    }

    fn check(&self, _previous: &AddResult, cx: &mut Cx<'_>) -> Result<Vec<String>> {
        let id = cx.owner.device.id.clone();
        if matches!(cx.place, Place::Host(_)) {
            return Ok(vec![format!(
                "the device {id} is on the host: its driver started anew, or the pod gave it away; `railctl reap \
                 --reattach` attaches it again"
            )]);
        }
        let Some(link) = cx.link_in_pod() else {
            return Ok(vec![format!("the device {id} is not in the pod")]);
        };
        let is_tapped = is_tapped(&link, &mut cx.pod()?.socket)?;
        let tapped = format!(
            "a link in another namespace, such as a macvlan of another pod with CAP_NET_ADMIN, takes frames of {id}"
        );
        Ok(is_tapped.then_some(tapped).into_iter().collect())
    }
}

/// The device as it is right before its move: a driver whose VF the PF has set, or whose RDMA
/// device has left, may have made the netdev anew.
fn look_again(cx: &mut Cx<'_>) -> Result<()> {
    // The kernel makes the netdev of an InfiniBand device anew when its RDMA device moves: on the
    // host, or since Linux 6.18 with it.
    let is_infiniband = cx
        .owner
        .device
        .link
        .as_ref()
        .is_some_and(Link::is_infiniband);
    if is_infiniband && !cx.facts.rdma.is_empty() {
        cx.locate()?;
        if let Some(link) = cx.link_in_pod() {
            move_home(&link, cx)?;
        }
    }
    cx.await_home()
}

/// Moves the device into the pod with one message, which tells the pod what its rail is.
fn move_to_pod(conf: &NetConf, alias: Option<&str>, cx: &mut Cx<'_>) -> Result<()> {
    let original = cx.link_on_host()?;
    let ifname = cx.owner.ifname.clone();
    for altname in clashing(&mut cx.pod()?.socket, &original, &ifname)? {
        link::remove_altname(&mut cx.host, &original, &altname)?;
    }
    // Some VFs refuse even the MAC that they have; one that the PF prescribes comes later.
    let is_new = |mac: &&[u8]| !cx.facts.is_mac_by_pf && link::format_mac(mac) != original.mac;
    let mac = conf.mac.as_deref().filter(is_new);
    let Cx { host, pod, .. } = cx;
    let pod = pod.as_mut().context("the namespace of the pod is gone")?;
    link::move_to(
        host,
        &original,
        &pod.netns,
        &link::Move {
            name: &ifname,
            mtu: conf.mtu,
            mac,
            alias,
        },
    )?;
    let moved = link::by_name(&mut pod.socket, &ifname)?;
    let moved = moved.filter(|link| link.parent == original.parent && link.kind == original.kind);
    let moved =
        moved.with_context(|| format!("{} vanished on its way to the pod", original.name))?;
    cx.owner.inside.index = moved.index.get();
    if moved.is_infiniband() {
        cx.owner.inside.mac.clone_from(&moved.mac);
    }
    cx.place = Place::Pod(moved);
    refuse_shared(cx)
}

/// Fails while somebody else takes the device's frames. The link is not up yet. CHECK asks again:
/// who has CAP_NET_ADMIN can come to do so later.
fn refuse_shared(cx: &mut Cx<'_>) -> Result<()> {
    let Some(link) = cx.link_in_pod() else {
        return Ok(());
    };
    let id = cx.owner.device.id.clone();
    let was_up = cx
        .owner
        .device
        .link
        .as_ref()
        .is_some_and(|original| original.up);
    match receiver_in_pod(&link, was_up, &mut cx.pod()?.socket)? {
        Receiver::Nobody | Receiver::Unknown => Ok(()),
        Receiver::Somebody => fail!(
            TryAgain,
            "{id}: a link in another namespace, such as a macvlan, takes its frames: it is removed, or the driver is bound again"
        ),
    }
}

/// The device's altnames that are in use in the pod. The kernel refuses the move for each.
fn clashing(pod: &mut Socket, device: &Link, name: &str) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    for altname in &device.altnames {
        if altname == name || link::by_any_name(pod, altname)?.is_some() {
            taken.push(altname.clone());
        }
    }
    Ok(taken)
}

/// Moves the device back, after its RDMA devices. An error means that it is still in the pod.
fn take_home(cx: &mut Cx<'_>) -> Result<()> {
    watchdog::step(|| format!("returning {}", cx.owner.device.id));
    let moving = cx.facts.rdma.clone();
    // It does not keep the netdev there, and is tried again when that is home.
    rdma::take_back(&moving, cx).unwrap_or_else(|error| log::warn!("{error:#}"));
    if let Some(link) = cx.link_in_pod() {
        if cx.is_pod_the_host()? {
            // Kernels before 6.2 rename no link that is up.
            link::set_down(&mut cx.host, &link).unwrap_or_else(|error| log::warn!("{error:#}"));
        }
        remove_stacked(&mut cx.pod()?.socket, &link);
        move_home(&link, cx)?;
    }
    cx.await_home()
}

/// Removes the links that the pod stacked on the device: a macvlan keeps its lower device even over
/// namespaces. A pod that makes and removes links without a pause must not delay its own end, so
/// only what one listing shows is removed.
fn remove_stacked(pod: &mut Socket, link: &Link) {
    let mut remove = || -> Result<()> {
        let uppers = of_namespace(link, pod)?;
        let uppers: Vec<_> = uppers.iter().map(|upper| upper.index).collect();
        if uppers.is_empty() {
            Ok(())
        } else {
            stacked::remove(pod, &uppers)
        }
    };
    remove().unwrap_or_else(|error| log::warn!("{error:#}"));
}

/// Moves the device to the host with one message: name, MTU and MAC as they were.
fn move_home(link: &Link, cx: &mut Cx<'_>) -> Result<()> {
    let Some(original) = cx.owner.device.link.clone() else {
        return Ok(());
    };
    let host_ns = Netns::current()?;
    let is_set = original.mac != link.mac && !cx.facts.is_mac_by_pf && !link.is_infiniband();
    let mac = parse_mac(&original.mac).filter(|_| is_set);
    let mtu = Some(original.mtu).filter(|mtu| *mtu != link.mtu);
    // Another netdev may have the name by now. The device must leave the pod all the same.
    let name = match link::by_name(&mut cx.host, &original.name)? {
        None => original.name.clone(),
        Some(_) => link::free_name(),
    };
    let taken = locate::clashing(link, &mut cx.host)?;
    let Cx { pod, owner, .. } = cx;
    let pod = &mut pod
        .as_mut()
        .context("the namespace of the pod is gone")?
        .socket;
    // Two of them clash unseen.
    link::remove_unreadable(pod, link).unwrap_or_else(|error| log::warn!("{error:#}"));
    for altname in taken {
        // With an altname that stays, the move fails and is tried again below.
        link::remove_altname(pod, link, &altname).unwrap_or_else(|error| log::warn!("{error:#}"));
    }
    let moved = link::move_to(
        pod,
        link,
        &host_ns,
        &link::Move {
            name: &name,
            mtu,
            mac: mac.as_deref(),
            alias: None,
        },
    );
    // The message is not atomic: what counts is where the device is. The rest is restored on the
    // host.
    if moved.is_err() && locate::in_pod(owner, pod)?.is_some() {
        // Try again without the parts that a driver may refuse.
        link::move_to(
            pod,
            link,
            &host_ns,
            &link::Move {
                name: &link::free_name(),
                ..link::Move::default()
            },
        )?;
    }
    Ok(())
}
