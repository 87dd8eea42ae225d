//! The arguments of `rail-agent run`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::devices;
use crate::kubelet;
use crate::node::Names;

/// The source of this node's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlanFrom {
    /// The cluster's CIDRPools, with the allocations of nv-ipam's controller.
    Cidrpools,
    /// The fabric file in the ConfigMap's key `fabric.yaml`.
    ConfigMap,
    /// None: the agent does not write the store.
    None,
}

/// Arguments of `rail-agent run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of this Node
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(super) node: String,
    /// Namespace of the ConfigMap
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAMESPACE",
        default_value = "kube-system"
    )]
    pub(super) namespace: String,
    /// ConfigMap with a node.json per class of nodes, and the fabric file
    #[arg(long, value_name = "NAME", default_value = "rail-cni")]
    pub(super) config_map: String,
    /// Source of the plan
    #[arg(long, value_enum, value_name = "SOURCE", default_value = "cidrpools")]
    pub(super) plan_from: PlanFrom,
    /// Namespace of the CIDRPools [default: all namespaces]
    #[arg(long, value_name = "NAME")]
    pub(super) cidrpools_namespace: Option<String>,
    /// DaemonSet of this pod: once it is deleted or no longer selects the Node, labels and
    /// conditions are removed
    #[arg(long, value_name = "NAME", default_value = "rail-agent")]
    pub(super) daemon_set: String,
    #[command(flatten)]
    pub(super) names: Names,
    /// Directory of the plugins on the host
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(super) plugins_dir: PathBuf,
    /// Address of /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9810", value_parser = socket_address)]
    pub(super) listen: SocketAddr,
    /// Directory of a Secret with tls.crt, tls.key and token: serve /metrics over TLS to clients
    /// with the token; required unless the address is local
    #[arg(long, value_name = "DIR")]
    pub(super) metrics_secret: Option<PathBuf>,
    /// Add namespace and name of each pod with a rail to the metrics
    #[arg(long)]
    pub(super) metrics_pods: bool,
    /// Seconds between inspections of the node, besides those at a change of a PF's carrier
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) interval: u64,
    /// Seconds between runs of `railctl cables`, which listens to the leaves for half a minute; 0:
    /// never
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(super) cables_interval: u64,
    /// Seconds between runs of `railctl preflight`, while no pod of the node has a rail; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=604800))]
    pub(super) preflight_interval: u64,
    /// Seconds for which the rails must work before the taint is removed, or fail before a rollout
    /// pauses
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(super) taint_after: u64,
    /// Do not attach rails again that running pods lost to the host, where a driver started anew
    #[arg(long)]
    pub(super) no_reattach: bool,
    /// Serve the kubelet's device plugin API: offer the devices of the rails as this resource, or
    /// for a pattern such as nvidia.com/rail-{rail} as one resource per rail; empty: no resource
    #[arg(long, value_name = "RESOURCE", default_value = "", value_parser = devices::parse_resource)]
    pub(super) resource: String,
    /// Root directory of kubelet on the host, as in its option --root-dir
    #[arg(long, value_name = "DIR", default_value = kubelet::ROOT_DIR)]
    pub(super) kubelet_root_dir: PathBuf,
    /// Be DRANET's profile provider, on the socket dranet/provider.sock in the run directory
    #[arg(long)]
    pub(super) dranet: bool,
    /// Seconds between checks of the resource claims that hold addresses
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(super) claim_interval: u64,
}

/// An address and a port. An IPv6 address needs no brackets: Kubernetes gives that of the host
/// without.
fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let split = || {
        let (address, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
    };
    text.parse()
        .ok()
        .or_else(split)
        .ok_or_else(|| "must be an IP address, a colon and a port".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_address_of_either_family_can_be_listened_at() {
        for (text, shown) in [
            ("192.0.2.1:9810", "192.0.2.1:9810"),
            ("2001:db8::1:9810", "[2001:db8::1]:9810"),
            ("[::]:9810", "[::]:9810"),
        ] {
            assert_eq!(socket_address(text).unwrap().to_string(), shown);
        }
        assert!(socket_address("9810").is_err() && socket_address("localhost:1").is_err());
    }
}
