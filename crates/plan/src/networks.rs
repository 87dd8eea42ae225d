//! Compares the routes of the rails with the cluster's own networks. NVIDIA's addresses of three
//! tiers are all of 10.0.0.0/8, where most clusters have Services and pods.

use ipnet::{IpNet, Ipv4Net};

use crate::plan::{Plan, Pool};
use crate::refusal::Doubt;
use rail_cni::cluster_networks::{self, USUAL, overlap};
use rail_cni::fault::Fault;

/// First octets for a fabric: NVIDIA's two, and two of the US Department of Defense, which hardly
/// any pod talks to.
const OCTETS: [u8; 4] = [172, 10, 11, 30];

/// Compares the routes with the cluster's networks. An overlap with `known` networks is a doubt;
/// without any, an overlap with the networks that clusters usually have is a warning. `octet` is
/// the option or key of the source for the first octet of its addresses.
pub fn compare(plan: &mut Plan, known: &[IpNet], octet: Option<&str>) {
    let routes: Vec<(String, Vec<IpNet>)> = plan
        .pools
        .iter()
        .map(|pool| (pool.name.clone(), routes(pool)))
        .collect();
    let remedy = |networks: &[IpNet]| match (octet, free_octet(&routes, networks)) {
        (Some(key), Some(free)) => {
            format!("{key}{free} here and at the switches, or other networks for the cluster")
        }
        _ => "other addresses for the rails, or other networks for the cluster".to_owned(),
    };
    if known.is_empty() {
        let usual: Vec<IpNet> = USUAL.iter().filter_map(|usual| usual.network()).collect();
        let warning = cluster_networks::usually_taken_by(
            &routes,
            " or the fabric file, or with --cluster-networks",
        );
        plan.warnings.extend(
            warning.map(|warning| format!("{warning}; where they overlap: {}", remedy(&usual))),
        );
        return;
    }
    for taken in cluster_networks::taken_by(&routes, known) {
        plan.doubts.push(Doubt::ClusterNetworks, || {
            Fault::whole(taken.to_string()).remedy(remedy(known))
        });
    }
}

fn routes(pool: &Pool) -> Vec<IpNet> {
    let routes = pool.spec.routes.iter().map(|to| to.dst.as_str());
    routes
        .chain([pool.spec.cidr.as_str()])
        .filter_map(|route| route.parse().ok())
        .collect()
}

/// A first octet with which the IPv4 routes overlap none of the networks.
fn free_octet(routes: &[(String, Vec<IpNet>)], networks: &[IpNet]) -> Option<u8> {
    let v4 = |route: &IpNet| match route {
        IpNet::V4(route) => Some(*route),
        IpNet::V6(_) => None,
    };
    let routes: Vec<Ipv4Net> = routes
        .iter()
        .flat_map(|(_, routes)| routes)
        .filter_map(v4)
        .collect();
    if routes.is_empty() {
        return None;
    }
    let moved = |route: Ipv4Net, octet: u8| {
        let [_, second, third, last] = route.addr().octets();
        Ipv4Net::new([octet, second, third, last].into(), route.prefix_len())
            .ok()
            .map(IpNet::V4)
    };
    let private = Ipv4Net::new([172, 16, 0, 0].into(), 12).ok().map(IpNet::V4);
    OCTETS.into_iter().find(|octet| {
        routes.iter().all(|route| {
            let Some(moved) = moved(*route, *octet) else {
                return false;
            };
            // Most of 172.0.0.0/8 is public.
            let is_private =
                *octet != 172 || private.is_some_and(|private| private.contains(&moved));
            is_private && !networks.iter().any(|network| overlap(moved, *network))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::cabled;
    use crate::scheme::{Family, HostLink, Mode, Polarity, Scheme, Tiers};
    use golden::has;

    /// Overlaps of two rails with these tiers and these networks: doubts, then warnings.
    fn compared(
        tiers: Tiers,
        first_octet: u8,
        family: Family,
        known: &[&str],
    ) -> (Vec<String>, Vec<String>) {
        let scheme = Scheme {
            tiers,
            mode: Mode::None,
            family,
            first_octet,
            polarity: Polarity::LeafOdd,
        };
        let links: Vec<HostLink> = cabled();
        let mut plan = scheme.plan(links, &crate::plan::tests::origin).unwrap();
        let known: Vec<IpNet> = known.iter().map(|net| net.parse().unwrap()).collect();
        compare(&mut plan, &known, Some("firstOctet: "));
        (plan.doubts.into_warnings(), plan.warnings)
    }

    #[test]
    fn known_networks_refuse_a_plan_whose_routes_cover_them() {
        let three = |known: &[&str]| compared(Tiers::Three, 10, Family::Ipv4, known).0;
        let told = three(&["10.96.0.0/12", "192.168.0.0/16"]);
        golden::says("plan", "a network of the cluster", told.join("\n"));
        assert!(
            told.len() == 1 && has(&told[0], "10.96.0.0/12…10.0.0.0/8…rail-0…firstOctet: 11 "),
            "{told:?}"
        );
        assert!(three(&["10.96.0.0/12", "11.0.0.0/8"])[0].contains("firstOctet: 30 "));
        assert!(three(&["192.168.0.0/16", "fd00::/16"]).is_empty());
        let openshift = compared(
            Tiers::Two,
            172,
            Family::Ipv4,
            &["172.30.0.0/16", "10.128.0.0/14"],
        );
        assert_eq!(openshift.0.len(), 1);
        assert!(
            openshift.0[0].starts_with("172.30.0.0/16 "),
            "{openshift:?}"
        );
        assert!(openshift.0[0].contains("firstOctet: 10 "), "{openshift:?}");
        let v6 = compared(Tiers::Two, 172, Family::Ipv6, &["fd02:0:1::/48"]).0;
        golden::says("plan", "a network of the cluster, IPv6", &v6[0]);
        assert!(
            v6[0].contains("fd02::/32") && !v6[0].contains("firstOctet"),
            "{v6:?}"
        );
    }

    #[test]
    fn networks_that_clusters_usually_have_are_warned_of_where_none_are_known() {
        let (doubts, warnings) = compared(Tiers::Three, 10, Family::Ipv4, &[]);
        assert_eq!((doubts.len(), warnings.len()), (0, 1));
        for told in [
            "10.96.0.0/12 (kubeadm's Services)",
            "10.244.0.0/16 (flannel's pods)",
            "firstOctet: 11 ",
        ] {
            assert!(warnings[0].contains(told), "{told}: {warnings:?}");
        }
        assert!(!warnings[0].contains("192.168"), "{warnings:?}");
        let (_, two) = compared(Tiers::Two, 172, Family::Ipv4, &[]);
        assert!(
            two[0].contains("172.30.0.0/16 (OpenShift's Services). Name"),
            "{two:?}"
        );
        for (tiers, octet, family) in [
            (Tiers::Three, 11, Family::Ipv4),
            (Tiers::Two, 11, Family::Ipv4),
            (Tiers::Three, 10, Family::Ipv6),
        ] {
            assert!(
                compared(tiers, octet, family, &[]).1.is_empty(),
                "{tiers:?} {octet}"
            );
        }
        assert!(
            compared(Tiers::Two, 172, Family::Ipv4, &["10.96.0.0/12"])
                .1
                .is_empty()
        );
    }
}
