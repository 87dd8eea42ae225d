//! Every cable of the plan with both ends: as rows for tables and templates, and as JSON for programs
//! that configure switches or keep an inventory.

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;
use serde::Serialize;

use crate::plan::{Cable, File, Plan, Pools};

/// The version of the JSON, and of the variables of templates. New members may come; one that is gone
/// or means something else makes another version.
pub(crate) const VERSION: u32 = 1;

/// A cable, and the addresses of one family at its ends. JSON and templates have the members under
/// these names, in camelCase, and null for what no source says.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row<'a> {
    /// The name of the node.
    pub node: &'a str,
    /// The rail, from 0.
    pub rail: Option<u8>,
    /// The plane of the rail, from 0; none if the rail has no planes.
    pub plane: Option<u8>,
    /// The pool of the prefix.
    pub pool: &'a str,
    /// `ipv4` or `ipv6`.
    pub family: &'static str,
    /// The address of the host's end, which a pod gets.
    pub address: IpAddr,
    /// The address of the leaf's end.
    pub gateway: Option<IpAddr>,
    /// The prefix of both.
    pub prefix: IpNet,
    /// The length of the prefix, in bits.
    pub prefix_length: u8,
    /// The netdev of the host's end.
    pub interface: Option<&'a str>,
    /// The name of the leaf.
    pub leaf: Option<&'a str>,
    /// The port of the leaf.
    pub port: Option<&'a str>,
    /// The VRF of the port; none is the switch's default VRF.
    pub vrf: Option<&'a str>,
    /// The MTU of the host's end, in bytes.
    pub mtu: Option<u32>,
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    cables: Vec<Row<'a>>,
}

/// Writes one file. The pools are those of [`Plan::check`].
pub fn write(plan: &Plan, pools: &Pools) -> Result<Vec<File>> {
    let document = Document {
        version: VERSION,
        cables: rows(plan, pools),
    };
    Ok(vec![File {
        name: "plan.json".to_owned(),
        text: serde_json::to_string_pretty(&document)? + "\n",
    }])
}

/// All cables in the order of the pools and their nodes. The pools are those of [`Plan::check`].
pub fn rows<'a>(plan: &'a Plan, pools: &Pools) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for pool in &plan.pools {
        let Some(allocations) = pools.get(&pool.name) else {
            continue;
        };
        for (prefix, cables) in pool.rows() {
            // A prefix that is kept free has no node.
            let Some(allocation) = allocations.get(&prefix.node_name) else {
                continue;
            };
            let Some(host) = allocation.first_free(|_| false) else {
                continue;
            };
            let row = Row {
                node: &prefix.node_name,
                rail: pool.rail,
                plane: pool.plane,
                pool: &pool.name,
                family: if host.is_ipv4() { "ipv4" } else { "ipv6" },
                address: host,
                gateway: allocation.gateway,
                prefix: allocation.prefix,
                prefix_length: allocation.prefix.prefix_len(),
                interface: None,
                leaf: None,
                port: None,
                vrf: None,
                mtu: None,
            };
            if cables.is_empty() {
                rows.push(row);
                continue;
            }
            for cable in cables {
                rows.push(row.clone().with(cable));
            }
        }
    }
    rows
}

impl<'a> Row<'a> {
    fn with(self, cable: &'a Cable) -> Row<'a> {
        Row {
            interface: cable.interface.as_deref(),
            leaf: cable.leaf.as_deref(),
            port: cable.port.as_deref(),
            vrf: cable.vrf.as_deref(),
            mtu: cable.mtu,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plan::tests::{cabled, checked};
    use crate::scheme::{Family, Mode};

    #[test]
    fn a_cable_has_both_ends() {
        let (plan, pools) = checked(Mode::None, Family::Ipv4, &cabled());
        let text = &write(&plan, &pools).unwrap()[0].text;
        let document: Value = serde_json::from_str(text).unwrap();
        assert_eq!(document["version"], 1);
        let cables = document["cables"].as_array().unwrap();
        assert_eq!(cables.len(), 4);
        let expected = json!({
            "node": "worker-gpu-62", "rail": 0, "plane": null, "pool": "rail-0", "family": "ipv4",
            "address": "172.16.1.60", "gateway": "172.16.1.61", "prefix": "172.16.1.60/31",
            "prefixLength": 31, "interface": "rail0", "leaf": "leaf-su2-r1", "port": "swp31s0", "vrf": null, "mtu": 9000
        });
        assert_eq!(cables[1], expected);
    }

    #[test]
    fn a_plan_without_cables_has_its_addresses() {
        let mut links = cabled();
        for link in &mut links {
            link.cable = Cable::default();
        }
        let (plan, pools) = checked(Mode::Swplb, Family::Ipv4, &links);
        let rows = rows(&plan, &pools);
        assert!(rows.iter().all(|row| row.leaf.is_none()));
        assert_eq!((rows[0].rail, rows[0].plane), (Some(0), Some(0)));
        assert_eq!(rows[0].address.to_string(), "172.16.0.0");
    }
}
