//! `railctl lease`: leases an address to a device of a resource claim.

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::output::{Output, pretty, print, table};
use rail_cni::cni::Attachment;
use rail_cni::ipam::claim::{self, Given, Request};
use rail_cni::ipam::lease::Claim;
use rail_cni::node::Node;

/// Arguments of `railctl lease`.
#[derive(Debug, Args)]
pub struct LeaseArgs {
    /// UID of the resource claim
    #[arg(long, value_name = "UID")]
    claim: String,
    /// Device name reported by its driver
    #[arg(long, value_name = "NAME")]
    device: String,
    /// PCI address of the device
    #[arg(long, value_name = "ADDRESS")]
    function: String,
    /// Pool; separate an IPv4 and an IPv6 pool by a comma [default: the pools of the device's rail]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pool: Vec<String>,
    /// Address to lease
    #[arg(long, value_name = "IP[/LENGTH]", value_parser = address)]
    ip: Vec<(IpAddr, Option<u8>)>,
    /// The claim as NAMESPACE/NAME, so that rail-agent can look it up
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The pod as NAMESPACE/NAME, for messages
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
}

fn address(text: &str) -> Result<(IpAddr, Option<u8>), String> {
    let alone = text.parse::<IpAddr>().map(|address| (address, None));
    alone
        .or_else(|_| {
            text.parse::<IpNet>()
                .map(|net| (net.addr(), Some(net.prefix_len())))
        })
        .map_err(|_| "must be an IP address".to_owned())
}

/// `railctl lease`.
pub fn lease(node: &Node, args: &LeaseArgs, output: Output) -> Result<ExitCode> {
    node.check_place(None)?;
    let given = claim::take(node, args.request())?;
    print(&match output {
        Output::Json => pretty(&args.json(node, &given)?),
        Output::Table => {
            let rows = given
                .addresses
                .iter()
                .map(|(pool, allocation, address, _)| {
                    let gateway = allocation
                        .gateway
                        .map_or_else(String::new, |gateway| gateway.to_string());
                    vec![pool.clone(), address.to_string(), gateway]
                });
            table(&["POOL", "ADDRESS", "GATEWAY"], rows)
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

impl LeaseArgs {
    fn request(&self) -> Request {
        Request {
            device: Attachment {
                container_id: self.claim.clone(),
                ifname: self.device.clone(),
            },
            claim: Claim {
                name: self.name.clone(),
                function: self.function.to_ascii_lowercase(),
            },
            pod: self.pod.clone(),
            pools: self.pool.clone(),
            requested: self.ip.clone(),
        }
    }

    fn json(&self, node: &Node, given: &Given) -> Result<Value> {
        let addresses = given.addresses.iter().map(|(pool, allocation, address, shared)| {
            let routes: Vec<_> = allocation
                .routes
                .iter()
                .zip(shared)
                .map(|(route, is_shared)| json!({"dst": route.dst, "shared": is_shared}))
                .collect();
            let net = IpNet::new(*address, allocation.prefix.prefix_len())?;
            Ok(json!({"pool": pool, "address": net, "gateway": allocation.gateway, "routes": routes}))
        });
        let addresses = addresses.collect::<Result<Vec<_>>>()?;
        let table = given.rail.map(|rail| node.first_table + u32::from(rail));
        let Given { rail, .. } = given;
        Ok(
            json!({"claim": self.claim, "device": self.device, "rail": rail, "table": table, "addresses": addresses}),
        )
    }
}
