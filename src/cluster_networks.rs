//! The cluster's own networks, of Services and pods, which the routes of a rail must not cover.
//!
//! A pod reaches them by the default route of eth0. A route of a rail is longer than the default
//! route, so the part of these networks that it covers goes to the fabric, and the pod has no DNS.

use std::fmt;

use ipnet::IpNet;

/// A network that clusters have by default.
#[derive(Clone, Copy, Debug)]
pub struct Usual {
    /// The product and what it uses the network for.
    pub of: &'static str,
    /// The prefix, without host bits.
    network: &'static str,
}

/// The defaults of common installers.
pub const USUAL: [Usual; 11] = [
    Usual {
        of: "kubeadm's Services",
        network: "10.96.0.0/12",
    },
    Usual {
        of: "flannel's pods",
        network: "10.244.0.0/16",
    },
    Usual {
        of: "Calico's pods",
        network: "192.168.0.0/16",
    },
    Usual {
        of: "Cilium's pods",
        network: "10.0.0.0/8",
    },
    Usual {
        of: "pods of k3s and RKE2",
        network: "10.42.0.0/16",
    },
    Usual {
        of: "Services of k3s and RKE2",
        network: "10.43.0.0/16",
    },
    Usual {
        of: "OpenShift's Services",
        network: "172.30.0.0/16",
    },
    Usual {
        of: "OpenShift's pods",
        network: "10.128.0.0/14",
    },
    Usual {
        of: "Kubespray's Services and pods",
        network: "10.233.0.0/17",
    },
    Usual {
        of: "pods of MicroK8s",
        network: "10.1.0.0/16",
    },
    Usual {
        of: "Services of MicroK8s",
        network: "10.152.183.0/24",
    },
];

impl Usual {
    /// The prefix.
    pub fn network(self) -> Option<IpNet> {
        self.network.parse().ok()
    }
}

/// Whether two prefixes overlap, which means that one contains the other.
pub fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// The networks that a route overlaps, each with the first such route, in the order of the
/// networks.
pub fn taken(networks: &[IpNet], routes: &[IpNet]) -> Vec<(IpNet, IpNet)> {
    let first = |network: IpNet| {
        routes
            .iter()
            .copied()
            .find(|route| overlap(*route, network))
    };
    networks
        .iter()
        .filter_map(|network| Some((*network, first(*network)?)))
        .collect()
}

/// A network that pods lose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The network of the cluster.
    pub network: IpNet,
    /// The widest route that overlaps it.
    pub route: IpNet,
    /// The names of the pools or networks that have the route.
    pub by: Vec<String>,
}

/// The networks that the routes of these pools or networks overlap. A default route does not count,
/// because a rail never gets one.
pub fn taken_by(routes: &[(String, Vec<IpNet>)], networks: &[IpNet]) -> Vec<Taken> {
    let mut routes = routes.to_vec();
    for (_, routes) in &mut routes {
        routes.retain(|route| route.prefix_len() > 0);
        routes.sort_by_key(IpNet::prefix_len);
    }
    let of = |network: &IpNet| {
        let by = routes
            .iter()
            .filter_map(|(name, routes)| Some((name, taken(&[*network], routes).pop()?.1)));
        let by: Vec<_> = by.collect();
        let (_, route) = by.first()?;
        let names = by.iter().map(|(name, _)| (*name).clone()).collect();
        Some(Taken {
            network: *network,
            route: *route,
            by: names,
        })
    };
    networks.iter().filter_map(of).collect()
}

/// A warning about routes that overlap the networks that clusters usually have. `elsewhere` is
/// where the cluster's own can be named beside node.json.
pub fn usually_taken_by(routes: &[(String, Vec<IpNet>)], elsewhere: &str) -> Option<String> {
    let usual: Vec<IpNet> = USUAL.iter().filter_map(|usual| usual.network()).collect();
    let taken = taken_by(routes, &usual);
    let whose = |network: IpNet| USUAL.iter().find(|usual| usual.network() == Some(network));
    let listed: Vec<_> = taken
        .iter()
        .map(|Taken { network, .. }| {
            format!(
                "{network} ({})",
                whose(*network).map_or("", |usual| usual.of)
            )
        })
        .collect();
    let first = taken.first()?;
    Some(format!(
        "{}, a prefix of {}, overlaps networks that clusters usually have, and pods would lose them: {}. Name the \
         cluster's own in clusterNetworks of node.json{elsewhere} to compare with those instead",
        first.route,
        first.names(),
        listed.join(", ")
    ))
}

impl Taken {
    /// The first name, and the number of the others.
    pub fn names(&self) -> String {
        match self.by.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            [first, more @ ..] => format!("{first} and {} more", more.len()),
        }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taken { network, route, .. } = self;
        write!(
            f,
            "{network} overlaps {route}, a prefix of {}: pods would not reach it",
            self.names()
        )
    }
}

/// Fails if a prefix cannot be a network of the cluster.
pub fn check(network: IpNet) -> Result<(), String> {
    if network.prefix_len() == 0 {
        return Err(format!(
            "{network} is every address: give the prefixes of Services and pods"
        ));
    }
    if network != network.trunc() {
        return Err(format!(
            "{network} has host bits set, the prefix is {}",
            network.trunc()
        ));
    }
    Ok(())
}

/// Whether every link has such a route.
pub fn is_of_links(dst: IpNet) -> bool {
    match dst {
        IpNet::V4(net) => net.addr().is_link_local(),
        IpNet::V6(net) => net.addr().is_unicast_link_local() || net.addr().is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(all: &[&str]) -> Vec<IpNet> {
        all.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn a_network_is_taken_where_one_holds_the_other() {
        let shown = |networks: &[&str], routes: &[&str]| -> Vec<String> {
            let all = taken(&nets(networks), &nets(routes));
            all.iter()
                .map(|(network, route)| format!("{network} by {route}"))
                .collect()
        };
        let rail = ["10.32.0.0/11", "10.0.0.0/8", "fd02::/32"];
        assert_eq!(
            shown(&["10.96.0.0/12", "192.168.0.0/16"], &rail),
            ["10.96.0.0/12 by 10.0.0.0/8"]
        );
        assert_eq!(
            shown(&["10.32.0.0/16"], &rail),
            ["10.32.0.0/16 by 10.32.0.0/11"]
        );
        assert_eq!(
            shown(&["10.0.0.0/7", "fd02::/16"], &rail),
            ["10.0.0.0/7 by 10.32.0.0/11", "fd02::/16 by fd02::/32"]
        );
        assert!(
            shown(
                &["10.96.0.0/12", "fd00::/16"],
                &["172.16.0.0/12", "fd02::/32"]
            )
            .is_empty()
        );
    }

    #[test]
    fn networks_are_prefixes() {
        for (network, told) in [
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("10.96.0.1/12", "10.96.0.0/12"),
        ] {
            assert!(
                check(network.parse().unwrap()).unwrap_err().contains(told),
                "{network}"
            );
        }
        for usual in USUAL {
            assert_eq!(check(usual.network().unwrap()), Ok(()), "{}", usual.of);
        }
    }
}
