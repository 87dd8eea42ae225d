//! The sysctls of an interface, `net.ipv4.conf.NAME` and `net.ipv6.conf.NAME`, which the kernel
//! tells all at once (IFLA_AF_SPEC). They are written through /proc/sys.
//!
//! ```
//! use rail_netlink::{Socket, devconf, link};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! let sysctls = devconf::read(&mut socket, lo.index)?;
//! assert!(sysctls.contains_key("ipv4/rp_filter"));
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use netlink_packet_core::DefaultNla;
use nix::errno::Errno;
use nix::libc::{AF_INET, AF_INET6, IFLA_AF_SPEC, IFLA_EXT_MASK, RTM_GETLINK};

use super::link::{HEADER_LEN, Index, Link};
use super::{Message, Socket, attributes};

/// include/uapi/linux/ip.h and if_link.h: the attribute that has them, and their places in it.
const INET_CONF: u16 = 1;
const INET: [(usize, &str); 26] = [
    (0, "forwarding"),
    (2, "proxy_arp"),
    (3, "accept_redirects"),
    (4, "secure_redirects"),
    (5, "send_redirects"),
    (6, "shared_media"),
    (7, "rp_filter"),
    (8, "accept_source_route"),
    (9, "bootp_relay"),
    (10, "log_martians"),
    (12, "arp_filter"),
    (14, "disable_xfrm"),
    (15, "disable_policy"),
    (16, "force_igmp_version"),
    (17, "arp_announce"),
    (18, "arp_ignore"),
    (19, "promote_secondaries"),
    (20, "arp_accept"),
    (21, "arp_notify"),
    (22, "accept_local"),
    (23, "src_valid_mark"),
    (24, "proxy_arp_pvlan"),
    (25, "route_localnet"),
    (28, "ignore_routes_with_linkdown"),
    (29, "drop_unicast_in_l2_multicast"),
    (30, "drop_gratuitous_arp"),
];

/// include/uapi/linux/ipv6.h and if_link.h. Times are missing, which the kernel tells in other
/// units than sysctl.
const INET6_CONF: u16 = 2;
const INET6: [(usize, &str); 31] = [
    (0, "forwarding"),
    (1, "hop_limit"),
    (3, "accept_ra"),
    (4, "accept_redirects"),
    (5, "autoconf"),
    (6, "dad_transmits"),
    (7, "router_solicitations"),
    (10, "use_tempaddr"),
    (15, "max_addresses"),
    (16, "force_mld_version"),
    (17, "accept_ra_defrtr"),
    (18, "accept_ra_pinfo"),
    (19, "accept_ra_rtr_pref"),
    (21, "accept_ra_rt_info_max_plen"),
    (22, "proxy_ndp"),
    (23, "optimistic_dad"),
    (24, "accept_source_route"),
    (26, "disable_ipv6"),
    (27, "accept_dad"),
    (28, "force_tllao"),
    (29, "ndisc_notify"),
    (32, "suppress_frag_ndisc"),
    (33, "accept_ra_from_local"),
    (34, "use_optimistic"),
    (35, "accept_ra_mtu"),
    (37, "use_oif_addrs_only"),
    (38, "accept_ra_min_hop_limit"),
    (39, "ignore_routes_with_linkdown"),
    (42, "keep_addr_on_down"),
    (46, "enhanced_dad"),
    (47, "addr_gen_mode"),
];

/// Sysctls by their path below /proc/sys/net, with `conf/NAME` left out: `ipv4/arp_ignore`.
pub type Sysctls = BTreeMap<String, i32>;

/// The sysctls of the link. A family that the link does not have has none.
pub fn read(socket: &mut Socket, index: Index) -> Result<Sysctls> {
    // Without statistics, RTEXT_FILTER_SKIP_STATS.
    let mask = DefaultNla::new(IFLA_EXT_MASK, (1_u32 << 3).to_ne_bytes().to_vec());
    let mut header = [0; HEADER_LEN];
    header[4..8].copy_from_slice(&index.get().to_ne_bytes());
    let message = Message::raw(RTM_GETLINK, &header, &[mask]);
    let reply = socket.get(
        message,
        &[Errno::ENODEV],
        "cannot read the sysctls of the link",
    )?;
    Ok(reply.map(|reply| parse(&reply.payload)).unwrap_or_default())
}

fn parse(payload: &[u8]) -> Sysctls {
    let mut all = Sysctls::new();
    let rest = payload.get(HEADER_LEN..).unwrap_or_default();
    for spec in attributes(rest).filter(|attribute| attribute.kind() == IFLA_AF_SPEC) {
        for family in attributes(spec.value()) {
            let (conf, names, family_name): (_, &[(usize, &str)], _) =
                match i32::from(family.kind()) {
                    AF_INET => (INET_CONF, &INET, "ipv4"),
                    AF_INET6 => (INET6_CONF, &INET6, "ipv6"),
                    _ => continue,
                };
            for values in attributes(family.value()).filter(|attribute| attribute.kind() == conf) {
                for (place, name) in names {
                    let bytes = values.value().get(place * 4..place * 4 + 4);
                    if let Some(value) = bytes.and_then(|bytes| bytes.try_into().ok()) {
                        all.insert(format!("{family_name}/{name}"), i32::from_ne_bytes(value));
                    }
                }
            }
        }
    }
    all
}

/// Sets those of `was` that differ now. Only for a link of the namespace that this thread is in.
pub fn restore(socket: &mut Socket, link: &Link, was: &Sysctls) -> Result<()> {
    let now = read(socket, link.index)?;
    let changed: Vec<_> = was
        .iter()
        .filter(|(key, was)| now.get(*key).is_some_and(|now| now != *was))
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    // A pod may give its interface these names while it has no sysctls of IPv6 (dev_valid_name,
    // addrconf_sysctl_register).
    if ["all", "default"].contains(&link.name.as_str()) {
        bail!(
            "{} is a name that sysctl has for all interfaces: rename the device",
            link.name
        );
    }
    let set = |key: &str, value: i32| {
        let path = path(key, &link.name);
        fs::write(&path, value.to_string())
            .with_context(|| format!("cannot set {} to {value}", path.display()))
    };
    let mut done = Vec::new();
    for (key, was) in changed {
        done.push(set(key, *was));
    }
    crate::all_of(done)
}

fn path(key: &str, ifname: &str) -> PathBuf {
    let (family, name) = key.split_once('/').unwrap_or(("", key));
    Path::new("/proc/sys/net")
        .join(family)
        .join("conf")
        .join(ifname)
        .join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel tells the same as /proc/sys, for each name that it has there.
    #[test]
    fn the_places_of_the_sysctls_are_those_of_the_kernel() {
        let mut socket = Socket::open().unwrap();
        let lo = super::super::link::by_name(&mut socket, "lo")
            .unwrap()
            .unwrap();
        let all = read(&mut socket, lo.index).unwrap();
        assert!(all.contains_key("ipv4/rp_filter"), "{all:?}");
        for (key, told) in all {
            let Ok(text) = fs::read_to_string(path(&key, "lo")) else {
                continue;
            };

            assert_eq!(text.trim().parse::<i32>().unwrap(), told, "{key}");
        }
    }
}
