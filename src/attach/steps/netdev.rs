//! The netdev as it was: name, altnames, MTU, MAC, sysctls, and all else that a pod can change. ADD
//! changes name, MTU and MAC with the move; what is here is only restored.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::attach::context::Cx;
use crate::attach::locate::Place;
use crate::attach::step::{Asked, Step, UndoneAt};
use crate::device::pf;
use crate::device::settings::Settings;
use crate::fail;
use rail_netlink::Socket;
use rail_netlink::all_of;
use rail_netlink::devconf::{self, Sysctls};
use rail_netlink::link::{self, Link, parse_mac};

use super::links;

/// The netdev's state on the host, beside [`crate::device::Original`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Netdev {
    /// Queues, offloads, flags and the like.
    pub settings: Settings,
    /// Sysctls of the interface, which a netdev loses with its namespace.
    pub sysctls: Sysctls,
}

impl Step for Netdev {
    fn describe(&self) -> &'static str {
        "the settings of its netdev"
    }

    fn undone_at(&self) -> UndoneAt {
        UndoneAt::Device
    }

    fn plan(asked: &Asked<'_>, cx: &mut Cx<'_>) -> Result<Option<Netdev>> {
        let Some(link) = &asked.device.original.link else {
            return Ok(None);
        };
        let settings = Settings::take(link, &cx.node.sysfs_root, &mut cx.host);
        Ok(Some(Netdev {
            settings,
            sysctls: devconf::read(&mut cx.host, link.index)?,
        }))
    }

    /// Restores the netdev, which is on the host: name, MTU, MAC, altnames, all that a pod can
    /// change, and up.
    fn undo(&self, cx: &mut Cx<'_>) -> Result<()> {
        let Some(mut link) = cx.at_home() else {
            return Ok(());
        };
        let Some(mut original) = cx.owner.device.link.clone() else {
            return Ok(());
        };
        if link.mac != original.mac && is_of_another_card(&link, &original, cx) {
            original.mac.clone_from(&link.mac);
        }
        if link.up && !links::is_as_it_was(&link, &original, &mut cx.host)? {
            link::set_down(&mut cx.host, &link)?;
        }
        // sysfs has the settings of a device below its name.
        if link.name.contains(char::REPLACEMENT_CHARACTER) {
            let name = link::free_name();
            link::set_name(&mut cx.host, &link, &name)?;
            link.name = name;
            cx.place = Place::Host(link.clone());
        }
        let done = self.restore(&link, &original, cx);
        if cx.is_anew {
            // It has its name again.
            cx.await_home()?;
        }
        all_of(done).with_context(|| format!("{} is on the host, but not as it was", link.name))
    }
}

impl Netdev {
    fn restore(&self, link: &Link, original: &Link, cx: &mut Cx<'_>) -> Vec<Result<()>> {
        let host = &mut cx.host;
        // These come first: sysfs has the device under its present name.
        let mut done = self.settings.restore(link, &cx.node.sysfs_root, host);
        // An altname that the pod gave must not stay: the next pod may have the same one already.
        done.push(link::remove_unreadable(host, link));
        for altname in &link.altnames {
            if !original.altnames.contains(altname) && *altname != original.name {
                done.push(link::remove_altname(host, link, altname));
            }
        }
        if link.name != original.name {
            done.push(rename(link, original, host));
        }
        if link.mtu != original.mtu {
            done.push(link::set_mtu(host, link, original.mtu));
        }
        // They are found by the name, and below an MTU of 1280 there are none of IPv6. They come
        // before anything sets the link up: with those of a new netdev, a router could give the
        // host a default route at once.
        done.push(self.restore_sysctls(link, host));
        // The MAC of an InfiniBand netdev comes from the hardware.
        if link.mac != original.mac && !link.is_infiniband() {
            if let Some(mac) = parse_mac(&original.mac) {
                done.push(set_mac(host, link, &mac));
            }
        }
        for altname in original
            .altnames
            .iter()
            .filter(|name| !link.altnames.contains(*name))
        {
            done.push(link::add_altname(host, link, altname));
        }
        if original.up {
            done.push(link::set_up(host, link));
        }
        done
    }

    fn restore_sysctls(&self, link: &Link, host: &mut Socket) -> Result<()> {
        match link::by_index(host, link.index)? {
            Some(now) => devconf::restore(host, &now, &self.sysctls),
            None => Ok(()),
        }
    }
}

/// Whether `link` belongs to a card that was put in the place of the one before, and keeps its own
/// MAC. The permanent MAC of a VF tells nothing: some drivers take for it what the PF sets.
fn is_of_another_card(link: &Link, original: &Link, cx: &mut Cx<'_>) -> bool {
    if cx.owner.device.pf.is_none() {
        return link.is_not_port(original.permanent_mac.as_deref());
    }
    let Some(before) = &cx.facts.vf_before else {
        return false;
    };
    // A PF that cannot be asked is taken for the one before.
    let pf = pf::link(&before.pf, before.number, cx.node, &mut cx.host);
    matches!(pf, Ok(Some(pf)) if before.is_of_another_card(&pf))
}

/// Sets the MAC. A VF that is not trusted cannot while the PF prescribes one, but takes that when
/// it comes up.
fn set_mac(host: &mut Socket, link: &Link, mac: &[u8]) -> Result<()> {
    let refused = match link::set_mac(host, link, mac) {
        Err(error) if link.parent.is_some() => error,
        done => return done,
    };
    link::set_up(host, link)?;
    // A device that stays up looks as if it were in use.
    link::set_down(host, link).or_else(|_| link::set_down(host, link))?;
    let now = link::by_index(host, link.index)?;
    let has_it = now.is_some_and(|now| parse_mac(&now.mac).as_deref() == Some(mac));
    if has_it { Ok(()) } else { Err(refused) }
}

fn rename(link: &Link, original: &Link, host: &mut Socket) -> Result<()> {
    if let Some(other) =
        link::by_name(host, &original.name)?.filter(|other| other.index != link.index)
    {
        fail!(
            Internal,
            "{} cannot get its name {} back, because another device has it (index {}): rename that device",
            link.name,
            original.name,
            other.index
        );
    }
    // udev may have given it its old name as an altname.
    if link.altnames.contains(&original.name) {
        link::remove_altname(host, link, &original.name)?;
    }
    link::set_name(host, link, &original.name)
}
