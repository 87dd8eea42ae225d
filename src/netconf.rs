//! The network configuration of rail-cni: read, checked, and free of everything that could be wrong
//! by itself. What depends on the device or the kernel is checked when those are known.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use crate::cni::{self, Attachment, Dns, GC_KEYS, Keys, Network, Route};
use crate::error::{Code, Failure};
use crate::fail;
use crate::fault::Fault;
use crate::nearest::nearest;
use crate::node::{MAX_RAIL, Node, Policy};
use crate::sysfs::DeviceId;
use rail_netlink::link::parse_mac;
use rail_netlink::vf::{LinkState, VfState, Vlan};

/// A configuration that can be acted on.
#[derive(Clone, Debug)]
pub struct NetConf {
    /// The device's names.
    pub selector: Selector,
    /// Number of the rail. With `None` it is the rail of the device's PF in node.json; where
    /// node.json lists no rails, the network gets a free routing table.
    pub rail: Option<u8>,
    /// The routing table of rail 0, by node.json.
    pub first_table: u32,
    /// MTU in bytes; `None` keeps the device's.
    pub mtu: Option<u32>,
    /// Hardware address to set.
    pub mac: Option<Vec<u8>>,
    /// Settings that only a PF can make.
    pub vf: VfState,
    /// Names of the keys of `vf` that were given.
    pub vf_keys: Vec<&'static str>,
    /// Routes beside those of the IPAM.
    pub routes: Vec<Route>,
    /// Whether the rail has its own table and rules, or the main table alone.
    pub routing: Routing,
    /// Sysctls of the interface: path below /proc/sys with the interface's name in it, and value.
    pub sysctls: Vec<(PathBuf, String)>,
    /// Whether the RDMA devices move.
    pub rdma: Rdma,
    /// Name of the RDMA device in the pod.
    pub rdma_name: Option<String>,
    /// The ToS and the traffic class of the RDMA device.
    pub rdma_qos: Option<RdmaQos>,
    /// The partition of an InfiniBand device: a P_Key without its membership bit.
    pub pkey: Option<u16>,
    /// Whether ib-kubernetes chooses the GUID and configures the subnet manager before ADD.
    pub ib_kubernetes: bool,
    /// Whether the GIDs of the addresses, or the P_Key, are waited for.
    pub gid: Option<Probe>,
    /// Whether ADD asks the gateway, and how.
    pub probe: Option<Probe>,
    /// Number of the rail's planes that must have a carrier.
    pub min_planes: Option<u8>,
    /// Whether DEL resets the function (FLR).
    pub reset_on_del: bool,
    /// Name of the IPAM plugin.
    pub ipam: Option<String>,
    /// Whether the addresses are those that the host has on the device (`source` of `ipam`). Then
    /// there is no plugin.
    pub is_of_host: bool,
    /// Takes precedence over the IPAM's.
    pub dns: Dns,
    /// Path of the device-info file, as the runtime wants it.
    pub device_info: Option<PathBuf>,
}

/// The names of the device. At least one is given; those that are given must mean the same device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// PCI address or name on the auxiliary bus.
    pub id: Option<DeviceId>,
    /// Name of a netdev.
    pub device: Option<String>,
    /// Hardware address, as netlink writes it.
    pub hwaddr: Option<String>,
    /// Path below /sys/devices.
    pub kernelpath: Option<String>,
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            self.id.as_ref().map(|id| id.as_str().to_owned()),
            self.device.clone(),
            self.hwaddr.as_ref().map(|mac| format!("hwaddr {mac}")),
            self.kernelpath
                .as_ref()
                .map(|path| format!("kernelpath {path}")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The place of a rail's routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// In a table of the rail's own, with a rule for the rail's addresses, and in the main table.
    SourceBased,
    /// In the main table alone.
    DestinationBased,
}

/// Whether the device's RDMA devices move with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rdma {
    /// They move where the RDMA subsystem is in exclusive mode.
    Auto,
    /// They must move.
    Required,
    /// They stay.
    Off,
}

/// `rdmaQoS`: a ToS of 0 to 255 for the RDMA CM, a traffic class of 0 to 255 for the ports. At
/// least one is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaQos {
    /// The default ToS.
    pub tos: Option<u8>,
    /// The traffic class.
    pub tc: Option<u8>,
    /// ADD fails where the kernel has no way to set one of them; else it warns.
    pub required: bool,
}

/// Something that ADD looks for when the link is up: the gateway, the GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// ADD fails without it; else it warns.
    pub required: bool,
    /// Time limit for it in ADD.
    pub timeout: Duration,
}

/// Returns a [`Fault`] of the value at a key: `wrong!("mtu", "{mtu} is too large")`.
macro_rules! wrong {
    ($path:expr, $($problem:tt)*) => {
        return Err(anyhow::Error::from(Fault::new($path, format!($($problem)*))))
    };
}

/// Declares a section of the configuration: its keys, which `lint` knows by the same list, and
/// their types. Every key may be missing.
macro_rules! section {
    ($(#[$meta:meta])* struct $name:ident { $($key:literal => $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(default)]
        struct $name {
            $(#[serde(rename = $key)] $field: Option<$type>,)*
        }

        impl $name {
            const KEYS: &'static [&'static str] = &[$($key),*];
        }
    };
}

section! {
    /// The keys as written. Absent, null and "" are the same, as they are for Go.
    struct Raw {
        "mode" => mode: String,
        "deviceID" => device_id: String,
        "pciBusID" => pci_bus_id: String,
        "device" => device: String,
        "hwaddr" => hwaddr: String,
        "kernelpath" => kernelpath: String,
        "rail" => rail: u8,
        "mtu" => mtu: u32,
        "mac" => mac: String,
        "vlan" => vlan: u32,
        "vlanQoS" => vlan_qos: u32,
        "vlanProto" => vlan_proto: String,
        "spoofchk" => spoofchk: String,
        "trust" => trust: String,
        "link_state" => link_state: String,
        "min_tx_rate" => min_tx_rate: u32,
        "max_tx_rate" => max_tx_rate: u32,
        "routes" => routes: Vec<Route>,
        "routing" => routing: String,
        "sysctl" => sysctl: BTreeMap<String, String>,
        "rdma" => rdma: String,
        "rdmaDeviceName" => rdma_device_name: String,
        "rdmaQoS" => rdma_qos: RawQos,
        "pkey" => pkey: String,
        "ibKubernetesEnabled" => ib_kubernetes: bool,
        "gid" => gid: String,
        "gidTimeout" => gid_timeout: String,
        "gatewayProbe" => gateway_probe: String,
        "gatewayProbeTimeout" => gateway_probe_timeout: String,
        "minPlanes" => min_planes: u8,
        "resetOnDel" => reset_on_del: String,
        "ipam" => ipam: Ipam,
        "dns" => dns: Dns,
    }
}

section! {
    struct RawQos {
        "tos" => tos: u32,
        "tc" => tc: u32,
        "onMissing" => on_missing: String,
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ipam {
    r#type: Option<String>,
    source: Option<String>,
}

/// Keys at the top level that others read: the CNI specification, libcni and Multus,
/// `node::Node::start_log` and `lint`.
const OTHERS: [&str; 16] = [
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "capabilities",
    "args",
    "runtimeConfig",
    "prevResult",
    "ipMasq",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "logLevel",
    "logFile",
    "resourceName",
    "rail-cni/lint-ignore",
];

/// Every key that means something at the top level; ADD ignores others, with a warning.
pub fn known() -> Vec<&'static str> {
    [Raw::KEYS, &OTHERS].concat()
}

/// The key that silences warnings of `railctl lint`, each with a reason. ADD ignores it.
pub const LINT_IGNORE: &str = "rail-cni/lint-ignore";

/// Capabilities that rail-cni or rail-ipam uses.
pub const CAPABILITIES: [&str; 5] = [
    "deviceID",
    "mac",
    "ips",
    "CNIDeviceInfoFile",
    "infinibandGUID",
];

/// Keys of `args.cni` that rail-cni or rail-ipam uses.
pub const ARGS: [&str; 5] = ["mac", "guid", "pkey", IB_APP, "ips"];

/// ib-kubernetes sets this key of `args.cni` to `configured` when it has added the GUID to the
/// partition.
pub const IB_APP: &str = "mellanox.infiniband.app";

/// Every key of a network configuration that is read. The rest of `ipam` is for the IPAM to read.
pub const NETWORK: Keys = Keys {
    names: &[Raw::KEYS, &OTHERS, &GC_KEYS],
    inside: &[
        ("routes", &Keys::flat(&[&Route::KEYS])),
        ("dns", &Keys::flat(&[&Dns::KEYS])),
        ("ipam", &Keys::flat(&[&["type", "source"]])),
        ("rdmaQoS", &Keys::flat(&[RawQos::KEYS])),
        ("runtimeConfig", &Keys::flat(&[&CAPABILITIES])),
        (
            "args",
            &Keys {
                names: &[&["cni"]],
                inside: &[("cni", &Keys::flat(&[&ARGS]))],
            },
        ),
    ],
};

impl NetConf {
    /// Reads the configuration for `attachment` on `node`. Of one for the RDMA device alone
    /// ([`Outline::is_chained`]), the keys of the netdev are refused.
    pub fn parse(network: &Network, attachment: &Attachment, node: &Node) -> Result<NetConf> {
        let raw: Raw = serde_path_to_error::deserialize(&network.config).map_err(|error| {
            let fault = Fault::new(error.path().to_string(), error.inner().to_string());
            fault.of(format!("network {}", network.name))
        })?;
        cni::warn_of_unknown("", network.config.keys().filter(|key| !is_known(key)));
        let rail = raw.rail;
        if let Some(rail) = rail.filter(|rail| *rail > MAX_RAIL) {
            wrong!("rail", "{rail} is more than {MAX_RAIL}");
        }
        one_of("mode", &raw.mode, &[("rdma", ())])?;
        let outline = Outline::of(network);
        let Outline {
            is_chained,
            is_of_host,
            ..
        } = outline;
        if is_chained {
            refuse_beside_rdma(network)?;
        }
        // A pod's settings for every plugin in the list are meant for the one that attaches the
        // netdev.
        let ((vf, vf_keys), mac, pkey) = match is_chained {
            true => Default::default(),
            false => (
                vf_settings(network, &raw)?,
                mac(network, &raw)?,
                pkey(network, &raw)?,
            ),
        };
        let (rdma_name, rdma_qos) = (rdma_name(&raw)?, rdma_qos(&raw)?);
        let others = [
            ("mac", mac.is_some()),
            ("rdmaDeviceName", rdma_name.is_some()),
            ("rdmaQoS", rdma_qos.is_some()),
            ("pkey", pkey.is_some()),
        ];
        let others = others
            .into_iter()
            .filter(|(_, given)| *given)
            .map(|(key, _)| key);
        check_policy(rail, vf_keys.iter().copied().chain(others), node)?;
        if is_of_host {
            check_of_host(network, &raw)?;
        }
        Ok(NetConf {
            selector: selector(network, &raw, is_chained)?,
            rail,
            first_table: node.first_table,
            mtu: raw.mtu.filter(|mtu| *mtu != 0),
            mac,
            vf,
            vf_keys,
            routes: routes(&raw)?,
            routing: routing(&raw)?,
            sysctls: sysctls(&raw, &attachment.ifname)?,
            rdma: rdma(&raw)?,
            rdma_name,
            rdma_qos,
            pkey,
            ib_kubernetes: raw.ib_kubernetes.unwrap_or(false),
            gid: probe("gid", &raw.gid, "warn", &raw.gid_timeout, "3s")?,
            probe: probe(
                "gatewayProbe",
                &raw.gateway_probe,
                "off",
                &raw.gateway_probe_timeout,
                "1s",
            )?,
            min_planes: min_planes(&raw)?,
            reset_on_del: one_of(
                "resetOnDel",
                &raw.reset_on_del,
                &[("off", false), ("flr", true)],
            )?
            .unwrap_or(false),
            ipam: ipam(outline, node)?,
            is_of_host,
            dns: raw.dns.clone().unwrap_or_default(),
            device_info: device_info(network, node)?,
        })
    }

    /// Puts the rail, where it is known, before an error of ours.
    pub fn with_rail(&self, error: anyhow::Error) -> anyhow::Error {
        match self.rail {
            Some(rail) => error.context(format!("rail {rail}")),
            None => error,
        }
    }

    /// Stops ADD with `error` where `probe` is required; else the log has it.
    pub fn or_warn(&self, probe: Option<Probe>, error: anyhow::Error) -> Result<()> {
        match probe {
            Some(probe) if probe.required => return Err(error),
            Some(_) => log::warn!("{:#}", self.with_rail(error)),
            None => (),
        }
        Ok(())
    }
}

/// The `type` of rdma-cni, whose configurations mean the same here.
pub const RDMA_CNI: &str = "rdma";

/// The readable part of any network, whatever else is wrong with it: for DEL, and for verbs that
/// need no more.
#[derive(Clone, Copy, Debug)]
pub struct Outline<'n> {
    /// `ipam.type`, unless the addresses are the host's, which are not leased.
    pub ipam: Option<&'n str>,
    /// `rail`, of whatever size.
    pub rail: Option<u64>,
    /// Is it about the RDMA device alone, behind another plugin that attaches the netdev?
    pub is_chained: bool,
    /// Are the addresses those that the host has on the device? Only rail-ipam has the key
    /// `source`.
    pub is_of_host: bool,
}

impl<'n> Outline<'n> {
    /// Reads it.
    pub fn of(network: &'n Network) -> Outline<'n> {
        let text = |path: &[&str]| {
            network
                .get(path)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let ipam = text(&["ipam", "type"]);
        let is_of_host = ipam == Some("rail-ipam") && text(&["ipam", "source"]).is_some();
        Outline {
            ipam: ipam.filter(|_| !is_of_host),
            rail: network.get(&["rail"]).and_then(Value::as_u64),
            is_chained: text(&["mode"]) == Some("rdma") || text(&["type"]) == Some(RDMA_CNI),
            is_of_host,
        }
    }

    /// The IPAM plugin to call. Whoever writes a network names a program that this one executes as
    /// root: only those that the node's policy lists.
    pub fn ipam(&self, policy: &Policy) -> Result<Option<&'n str>> {
        let is_allowed = |name: &str| policy.ipam.iter().any(|allowed| allowed == name);
        let Some(name) = self.ipam.filter(|name| !is_allowed(name)) else {
            return Ok(self.ipam);
        };
        let meant = nearest(name, policy.ipam.iter().map(String::as_str));
        let meant = meant.map_or(String::new(), |meant| format!(": did you mean {meant}?"));
        wrong!(
            "ipam.type",
            "{name:?} is not an IPAM plugin of this node (policy.ipam of node.json){meant}"
        )
    }
}

/// Keys of a network for the RDMA device alone, beside those that others read. Multus adds the
/// first two.
const RDMA_KEYS: [&str; 9] = [
    "deviceID",
    "pciBusID",
    "mode",
    "rail",
    "rdma",
    "rdmaDeviceName",
    "rdmaQoS",
    "gid",
    "gidTimeout",
];

/// Refuses what the plugin that attaches the netdev would have to do.
fn refuse_beside_rdma(network: &Network) -> Result<()> {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    let is_of_netdev = |key: &str| Raw::KEYS.contains(&key) && !RDMA_KEYS.contains(&key);
    match network
        .config
        .iter()
        .find(|(key, value)| is_of_netdev(key) && is_set(value))
    {
        Some((key, _)) => {
            wrong!(
                key.as_str(),
                "is not for mode rdma: the plugin that attaches the interface sets it"
            )
        }
        None => Ok(()),
    }
}

/// Does `key` mean something at the top level?
pub fn is_known(key: &str) -> bool {
    Raw::KEYS.contains(&key) || OTHERS.contains(&key) || key.starts_with("cni.dev/")
}

/// Refuses what node.json's `policy` does not let networks request.
fn check_policy(
    rail: Option<u8>,
    mut keys: impl Iterator<Item = &'static str>,
    node: &Node,
) -> Result<()> {
    // With rails in node.json, the device decides which rail it is: `device::check`.
    if let Some(allowed) = &node.policy.rails {
        if (rail.is_some() || node.rails.is_empty())
            && !rail.is_some_and(|rail| allowed.contains(&rail))
        {
            let given = rail.map_or_else(|| "absent".to_owned(), |rail| rail.to_string());
            wrong!(
                "rail",
                "{given}, and this node's policy allows the rails {allowed:?}"
            );
        }
    }
    if let Some(allowed) = &node.policy.vf_keys {
        if let Some(key) = keys.find(|key| !allowed.iter().any(|allowed| allowed == key)) {
            wrong!(
                key,
                "this node's policy lets networks set {allowed:?} only (policy.vfKeys of node.json)"
            );
        }
    }
    Ok(())
}

fn text(value: &Option<String>) -> Option<&str> {
    value.as_deref().filter(|text| !text.is_empty())
}

/// The id comes from the runtime, else from the configuration, where Multus writes it under two
/// names.
fn selector(network: &Network, raw: &Raw, may_be_none: bool) -> Result<Selector> {
    let runtime = match network.get(&["runtimeConfig", "deviceID"]) {
        None => None,
        Some(Value::String(id)) => Some(id.as_str()).filter(|id| !id.is_empty()),
        Some(other) => wrong!("runtimeConfig.deviceID", "{other} is not a string"),
    };
    let given = [
        ("runtimeConfig.deviceID", runtime),
        ("deviceID", text(&raw.device_id)),
        ("pciBusID", text(&raw.pci_bus_id)),
    ];
    let mut id: Option<(&str, DeviceId)> = None;
    for (key, value) in given
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
    {
        let Some(parsed) = DeviceId::parse(value) else {
            wrong!(
                key,
                "{value:?} is neither a PCI address (0000:3b:00.2) nor an auxiliary device (mlx5_core.sf.4)"
            );
        };
        match &id {
            Some((first, other)) if *other != parsed => {
                wrong!(
                    key,
                    "{value:?} and {first} {:?} name two devices: remove one",
                    other.as_str()
                )
            }
            Some(_) => (),
            None => id = Some((key, parsed)),
        }
    }
    let device = text(&raw.device).map(str::to_owned);
    if let Some(name) = &device {
        if let Err(error) = cni::check_ifname(name) {
            // An altname may be longer than a name.
            if name.len() <= 15 || name.len() > 127 || name.contains('/') {
                wrong!("device", "{error}");
            }
        }
    }
    let hwaddr = match text(&raw.hwaddr) {
        None => None,
        Some(text) => match parse_mac(text) {
            Some(bytes) if bytes.len() >= 6 => Some(text.to_ascii_lowercase().replace('-', ":")),
            _ => wrong!("hwaddr", "{text:?} is not a hardware address"),
        },
    };
    let selector = Selector {
        id: id.map(|(_, id)| id),
        device,
        hwaddr,
        kernelpath: text(&raw.kernelpath).map(str::to_owned),
    };
    if selector == Selector::default() && !may_be_none {
        fail!(
            InvalidConfig,
            "network {} names no device: neither deviceID (from the device plugin: are all devices of its resource \
             taken, and does the NAD carry the annotation k8s.v1.cni.cncf.io/resourceName?) nor device, hwaddr or \
             kernelpath",
            network.name
        );
    }
    Ok(selector)
}

/// The MAC: runtimeConfig takes precedence over args.cni, that over CNI_ARGS, and that over the
/// configuration.
fn mac(network: &Network, raw: &Raw) -> Result<Option<Vec<u8>>> {
    let json = |path: &[&str]| match network.get(path) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(other) => wrong!(path.join("."), "{other} is not a string"),
    };
    let given = [
        ("runtimeConfig.mac", json(&["runtimeConfig", "mac"])?),
        ("args.cni.mac", json(&["args", "cni", "mac"])?),
        ("CNI_ARGS MAC", network.args.get("MAC").map(str::to_owned)),
        ("mac", text(&raw.mac).map(str::to_owned)),
    ];
    let Some((key, text)) = given
        .into_iter()
        .find_map(|(key, value)| Some((key, value?)))
    else {
        return Ok(None);
    };
    match parse_mac(&text) {
        Some(bytes)
            if bytes.len() == 6 && bytes[0] & 1 == 0 && bytes.iter().any(|byte| *byte != 0) =>
        {
            Ok(Some(bytes))
        }
        Some(bytes) if bytes.len() == 6 => {
            wrong!(
                key,
                "{text:?} is a group address or all zero: no NIC can have it"
            )
        }
        _ => wrong!(
            key,
            "{text:?} is not an Ethernet address like 02:00:00:00:00:01"
        ),
    }
}

/// Checks sriov-cni's keys by its rules, but refuses what it silently takes for "off".
fn vf_settings(network: &Network, raw: &Raw) -> Result<(VfState, Vec<&'static str>)> {
    let guid = guid(network)?;
    let vf = VfState {
        mac: None,
        node_guid: guid,
        port_guid: guid,
        vlan: vlan(raw)?,
        rate: rate(raw)?,
        spoofchk: one_of("spoofchk", &raw.spoofchk, &[("on", true), ("off", false)])?,
        trust: one_of("trust", &raw.trust, &[("on", true), ("off", false)])?,
        link_state: one_of(
            "link_state",
            &raw.link_state,
            &[
                ("auto", LinkState::Auto),
                ("enable", LinkState::Enable),
                ("disable", LinkState::Disable),
            ],
        )?,
    };
    let keys = [
        ("vlan", vf.vlan.is_some()),
        ("vlanQoS", vf.vlan.is_some_and(|vlan| vlan.qos != 0)),
        ("vlanProto", vf.vlan.is_some_and(|vlan| vlan.is_dot1ad)),
        ("min_tx_rate", vf.rate.is_some_and(|(min, _)| min != 0)),
        ("max_tx_rate", vf.rate.is_some_and(|(_, max)| max != 0)),
        ("spoofchk", vf.spoofchk.is_some()),
        ("trust", vf.trust.is_some()),
        ("link_state", vf.link_state.is_some()),
        ("infinibandGUID", guid.is_some()),
    ];
    let keys: Vec<_> = keys
        .into_iter()
        .filter(|(_, given)| *given)
        .map(|(key, _)| key)
        .collect();
    Ok((vf, keys))
}

/// The GUID: runtimeConfig takes precedence over args.cni, as in ib-sriov-cni.
fn guid(network: &Network) -> Result<Option<u64>> {
    for path in [
        &["runtimeConfig", "infinibandGUID"][..],
        &["args", "cni", "guid"],
    ] {
        let key = path.join(".");
        let bytes = match network.get(path) {
            None => continue,
            Some(Value::String(text)) if text.is_empty() => continue,
            Some(Value::String(text)) => parse_mac(text).and_then(|bytes| bytes.try_into().ok()),
            Some(_) => None,
        };
        return match bytes.map(u64::from_be_bytes) {
            Some(guid) if guid != 0 && guid != u64::MAX => Ok(Some(guid)),
            _ => wrong!(
                key,
                "{} is not a GUID like 02:00:00:00:00:00:00:01",
                network.get(path).unwrap_or(&Value::Null)
            ),
        };
    }
    Ok(None)
}

/// The P_Key of `args.cni`, or else of the configuration, as ib-kubernetes reads it. Its highest
/// bit, full membership, is the subnet manager's to give.
fn pkey(network: &Network, raw: &Raw) -> Result<Option<u16>> {
    let (key, given) = match network.get(&["args", "cni", "pkey"]) {
        None => ("pkey", text(&raw.pkey)),
        Some(Value::String(text)) if text.is_empty() => ("pkey", self::text(&raw.pkey)),
        Some(Value::String(text)) => ("args.cni.pkey", Some(text.as_str())),
        Some(other) => wrong!("args.cni.pkey", "{other} is not a string"),
    };
    let Some(given) = given else { return Ok(None) };
    match parse_pkey(given) {
        Some(pkey) => Ok(Some(pkey)),
        None => wrong!(
            key,
            "{given:?} is not a P_Key like \"0x7fff\", 0x1 to 0x7fff"
        ),
    }
}

/// A P_Key with or without its membership bit, which is not part of the answer.
fn parse_pkey(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X"))?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parsed = u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
    Some(parsed & 0x7fff).filter(|pkey| *pkey != 0)
}

fn one_of<T: Copy>(key: &str, value: &Option<String>, allowed: &[(&str, T)]) -> Result<Option<T>> {
    let Some(value) = text(value) else {
        return Ok(None);
    };
    let found = allowed
        .iter()
        .find(|(name, _)| *name == value)
        .map(|(_, meaning)| *meaning);
    let names = || {
        allowed
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    found
        .map(Some)
        .ok_or_else(|| Fault::new(key, format!("{value:?} is not one of {}", names())).into())
}

fn routing(raw: &Raw) -> Result<Routing> {
    let allowed = [
        ("source-based", Routing::SourceBased),
        ("destination-based", Routing::DestinationBased),
    ];
    Ok(one_of("routing", &raw.routing, &allowed)?.unwrap_or(Routing::SourceBased))
}

fn rdma(raw: &Raw) -> Result<Rdma> {
    let allowed = [
        ("auto", Rdma::Auto),
        ("required", Rdma::Required),
        ("off", Rdma::Off),
    ];
    Ok(one_of("rdma", &raw.rdma, &allowed)?.unwrap_or(Rdma::Auto))
}

/// The VLAN; `vlan: 0` means none, as in sriov-cni.
fn vlan(raw: &Raw) -> Result<Option<Vlan>> {
    let up_to = |key: &str, value: Option<u32>, most: u16| match value.unwrap_or(0) {
        value if value > u32::from(most) => wrong!(key, "{value} is not within 0 to {most}"),
        value => Ok(u16::try_from(value).unwrap_or(most)),
    };
    let id = up_to("vlan", raw.vlan, 4094)?;
    let qos = up_to("vlanQoS", raw.vlan_qos, 7)?;
    let proto = raw
        .vlan_proto
        .as_ref()
        .map(|proto| proto.to_ascii_lowercase());
    let is_dot1ad =
        one_of("vlanProto", &proto, &[("802.1q", false), ("802.1ad", true)])?.unwrap_or(false);
    if id == 0 && (qos != 0 || is_dot1ad) {
        let key = if qos != 0 { "vlanQoS" } else { "vlanProto" };
        wrong!(key, "needs a vlan other than 0");
    }
    Ok((id != 0).then_some(Vlan {
        id,
        qos: u8::try_from(qos).unwrap_or(7),
        is_dot1ad,
    }))
}

/// The rates in Mbit/s; 0 means no limit.
fn rate(raw: &Raw) -> Result<Option<(u32, u32)>> {
    let (min, max) = (raw.min_tx_rate.unwrap_or(0), raw.max_tx_rate.unwrap_or(0));
    if max != 0 && min > max {
        wrong!(
            "min_tx_rate",
            "{min} Mbit/s is more than max_tx_rate, {max}"
        );
    }
    Ok((min != 0 || max != 0).then_some((min, max)))
}

fn routes(raw: &Raw) -> Result<Vec<Route>> {
    let routes = raw.routes.clone().unwrap_or_default();
    routes
        .iter()
        .try_for_each(|route| check_route(route, "routes"))?;
    Ok(routes)
}

/// Refuses a route, of the configuration or the IPAM, that no kernel accepts.
pub fn check_route(route: &Route, whose: &str) -> Result<()> {
    if let Some(gw) = route
        .gw
        .filter(|gw| gw.is_ipv4() && route.dst.addr().is_ipv6())
    {
        wrong!(
            whose,
            "{} via {gw}: an IPv6 route cannot have an IPv4 gateway",
            route.dst
        );
    }
    if route.table == Some(255) {
        wrong!(whose, "{}: table 255 is the kernel's own", route.dst);
    }
    Ok(())
}

/// `net.ipv4.conf.IFNAME.x` or with slashes, as in the tuning plugin; only keys of this interface.
fn sysctls(raw: &Raw, ifname: &str) -> Result<Vec<(PathBuf, String)>> {
    let mut seen = BTreeSet::new();
    let mut sysctls = Vec::new();
    for (key, value) in raw.sysctl.iter().flatten() {
        let separator = if key.contains('/') { '/' } else { '.' };
        let parts = || -> Option<(&str, &str, &str)> {
            let rest = key.strip_prefix("net")?.strip_prefix(separator)?;
            let (family, rest) = rest.split_once(separator)?;
            let (kind, rest) = rest.split_once(separator)?;
            // The name may contain dots itself.
            let (interface, leaf) = rest.rsplit_once(separator)?;
            let is_ours = interface == "IFNAME" || interface == ifname;
            let is_leaf = !leaf.is_empty()
                && leaf
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
            (is_ours
                && is_leaf
                && matches!(family, "ipv4" | "ipv6")
                && matches!(kind, "conf" | "neigh"))
            .then_some((family, kind, leaf))
        };
        let Some((family, kind, leaf)) = parts() else {
            wrong!(
                format!("sysctl.{key}"),
                "is not a key of this interface: net.{{ipv4,ipv6}}.{{conf,neigh}}.IFNAME.*"
            );
        };
        if value.contains('\n') || value.len() > 64 {
            wrong!(format!("sysctl.{key}"), "{value:?} is not a valid value");
        }
        if !seen.insert((family, kind, leaf)) {
            wrong!(format!("sysctl.{key}"), "is given twice");
        }
        sysctls.push((
            PathBuf::from(format!("net/{family}/{kind}/{ifname}/{leaf}")),
            value.clone(),
        ));
    }
    Ok(sysctls)
}

/// Checks a network whose addresses are the host's.
fn check_of_host(network: &Network, raw: &Raw) -> Result<()> {
    if let Some(other) = raw
        .ipam
        .as_ref()
        .and_then(|ipam| text(&ipam.source))
        .filter(|text| *text != "host")
    {
        wrong!(
            "ipam.source",
            "{other:?} is not \"host\"; for the addresses of a pool, remove the key"
        );
    }
    let section = network.get(&["ipam"]).and_then(Value::as_object);
    if let Some(key) = section.and_then(|all| {
        all.keys()
            .find(|key| !["type", "source"].contains(&key.as_str()))
    }) {
        wrong!(
            format!("ipam.{key}"),
            "has no meaning with \"source\": \"host\": remove one of the two keys"
        );
    }
    let is_list = |path: &[&str]| {
        network
            .get(path)
            .and_then(Value::as_array)
            .is_some_and(|all| !all.is_empty())
    };
    let requested = [
        ("runtimeConfig.ips", is_list(&["runtimeConfig", "ips"])),
        ("args.cni.ips", is_list(&["args", "cni", "ips"])),
        (
            "CNI_ARGS IP",
            network.args.get("IP").is_some_and(|ip| !ip.is_empty()),
        ),
    ];
    if let Some((key, _)) = requested.iter().find(|(_, given)| *given) {
        wrong!(
            *key,
            "a pod cannot request an address: with \"source\": \"host\" it gets the host's"
        );
    }
    if text(&raw.reset_on_del) == Some("flr") {
        wrong!(
            "resetOnDel",
            "a NIC with addresses of the host is not reset: remove the key"
        );
    }
    Ok(())
}

fn ipam(outline: Outline<'_>, node: &Node) -> Result<Option<String>> {
    if outline.ipam == Some("dhcp") {
        let why = "dhcp needs the link, which is attached only after its address is known";
        let not_supported = Failure::new(Code::UnsupportedField, "not supported");
        return Err(anyhow::Error::from(Fault::new("ipam.type", why)).context(not_supported));
    }
    let has_addresses = outline.ipam.is_some() || outline.is_of_host || outline.is_chained;
    if !has_addresses && node.policy.requires_ipam() {
        wrong!(
            "ipam",
            "absent, and this node's policy wants an address on each rail: name an IPAM, such as \
             {{\"type\": \"rail-ipam\"}}, or set policy.requireIPAM of node.json to false"
        );
    }
    Ok(outline.ipam(&node.policy)?.map(str::to_owned))
}

const LONGEST_NAME: usize = 240;

/// The runtime's path, but only inside the one directory that such files are for: a NAD can contain
/// this key too.
fn device_info(network: &Network, node: &Node) -> Result<Option<PathBuf>> {
    let path = match network.get(&["runtimeConfig", "CNIDeviceInfoFile"]) {
        None => return Ok(None),
        Some(Value::String(path)) if path.is_empty() => return Ok(None),
        Some(Value::String(path)) => PathBuf::from(path),
        Some(other) => wrong!("runtimeConfig.CNIDeviceInfoFile", "{other} is not a string"),
    };
    let allowed = &node.device_info_dir;
    // /var/run is a link to /run on every current distribution.
    let same = |dir: &std::path::Path| {
        let short = |path: &std::path::Path| {
            path.strip_prefix("/var/run")
                .map_or(path.to_owned(), |rest| PathBuf::from("/run").join(rest))
        };
        short(dir) == short(allowed)
    };
    if path.parent().is_some_and(same) {
        if let Some(name) = path.file_name() {
            // The kernel's limit is 255 bytes, and the file is first written under a longer name.
            if name.len() > LONGEST_NAME || name.as_encoded_bytes().iter().any(u8::is_ascii_control)
            {
                wrong!(
                    "runtimeConfig.CNIDeviceInfoFile",
                    "{name:?} is not a file name, or is longer than {LONGEST_NAME} bytes"
                );
            }
            return Ok(Some(path));
        }
    }
    wrong!(
        "runtimeConfig.CNIDeviceInfoFile",
        "{} is not a file in {} (deviceInfoDir of node.json)",
        path.display(),
        allowed.display()
    )
}

/// Longest wait of a pod's start; a DEL that comes meanwhile waits as long (record.rs).
const LONGEST_PROBE: Duration = Duration::from_secs(30);

/// The key `key` with its default, and how long ADD waits: `KEYTimeout`, with its default.
fn probe(
    key: &str,
    mode: &Option<String>,
    usual: &str,
    timeout: &Option<String>,
    usual_timeout: &str,
) -> Result<Option<Probe>> {
    let modes = [
        ("off", None),
        ("warn", Some(false)),
        ("require", Some(true)),
    ];
    let mode = Some(text(mode).unwrap_or(usual).to_owned());
    let required = one_of(key, &mode, &modes)?.flatten();
    let given = text(timeout).unwrap_or(usual_timeout);
    let Some(timeout) = parse_duration(given) else {
        wrong!(
            format!("{key}Timeout"),
            "{given:?} is not a duration like \"500ms\" or \"1.5s\""
        );
    };
    if timeout < Duration::from_millis(1) || timeout > LONGEST_PROBE {
        wrong!(
            format!("{key}Timeout"),
            "{given:?} is not within 1ms to {LONGEST_PROBE:?}"
        );
    }
    Ok(required.map(|required| Probe { required, timeout }))
}

/// As many as numbers of rails allow: a plane has the number rail + 8 * plane.
const MOST_PLANES: u8 = (MAX_RAIL + 1) / 8;

fn min_planes(raw: &Raw) -> Result<Option<u8>> {
    match raw.min_planes {
        Some(count) if count == 0 || count > MOST_PLANES => {
            wrong!("minPlanes", "{count} is not within 1 to {MOST_PLANES}")
        }
        count => Ok(count),
    }
}

/// IB_DEVICE_NAME_MAX without the zero at its end (rdma/ib_verbs.h).
const LONGEST_RDMA_NAME: usize = 63;

/// The kernel takes any text. This one becomes a directory in sysfs and a word of other programs'
/// options.
fn rdma_name(raw: &Raw) -> Result<Option<String>> {
    let Some(name) = text(&raw.rdma_device_name) else {
        return Ok(None);
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.len() > LONGEST_RDMA_NAME || !name.bytes().all(is_plain) || name.starts_with(['.', '-'])
    {
        wrong!(
            "rdmaDeviceName",
            "{name:?} is not a name of up to {LONGEST_RDMA_NAME} letters, digits, \"_\", \"-\" and \".\", \
             beginning with a letter, a digit or \"_\""
        );
    }
    if text(&raw.rdma) == Some("off") {
        wrong!(
            "rdmaDeviceName",
            "with \"rdma\": \"off\" the RDMA device keeps its name: remove one of the two keys"
        );
    }
    Ok(Some(name.to_owned()))
}

/// The keys of rdmaQoS that `lint` knows.
pub const QOS_KEYS: &[&str] = RawQos::KEYS;

/// The upper six bits of either are the DSCP. 0 leaves it as it is, as for rdma-cni.
fn rdma_qos(raw: &Raw) -> Result<Option<RdmaQos>> {
    let Some(qos) = &raw.rdma_qos else {
        return Ok(None);
    };
    let class =
        |key: &str, value: Option<u32>| match value.filter(|value| *value != 0).map(u8::try_from) {
            None => Ok(None),
            Some(Ok(value)) if value & 3 == 3 => wrong!(
                format!("rdmaQoS.{key}"),
                "{value} has both ECN bits, with which switches mark congestion: use {} or {}",
                value & !3,
                (value & !3) | 2
            ),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(_)) => wrong!(
                format!("rdmaQoS.{key}"),
                "{} is not within 0 to 255",
                value.unwrap_or(0)
            ),
        };
    let modes = [("warn", false), ("require", true)];
    let required = one_of("rdmaQoS.onMissing", &qos.on_missing, &modes)?.unwrap_or(false);
    let wanted = RdmaQos {
        tos: class("tos", qos.tos)?,
        tc: class("tc", qos.tc)?,
        required,
    };
    if wanted.tos.is_none() && wanted.tc.is_none() {
        return Ok(None);
    }
    if text(&raw.rdma) == Some("off") {
        wrong!(
            "rdmaQoS",
            "with \"rdma\": \"off\" the RDMA device is not changed: remove one of the two keys"
        );
    }
    Ok(Some(wanted))
}

/// A duration as Go writes it, `1m30s` or `1.5s`.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|c: char| c != '.' && !c.is_ascii_digit())?);
        let next = behind
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(behind.len());
        let mut unit = match &behind[..next] {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if number.is_empty() || number == "." || part.contains('.') {
            return None;
        }
        let whole = if whole.is_empty() {
            0
        } else {
            whole.parse::<u64>().ok()?
        };
        nanos = nanos.checked_add(whole.checked_mul(unit)?)?;
        for digit in part.bytes() {
            unit /= 10;
            nanos = nanos.checked_add(u64::from(digit - b'0') * unit)?;
        }
        rest = &behind[next..];
    }
    Some(Duration::from_nanos(nanos)).filter(|_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p_key_is_hexadecimal_and_loses_its_membership_bit() {
        for (text, expected) in [
            ("0x7fff", 0x7fff),
            ("0XFFFF", 0x7fff),
            ("0x12", 0x12),
            ("0x8012", 0x12),
        ] {
            assert_eq!(parse_pkey(text), Some(expected), "{text}");
        }
        for bad in [
            "", "0", "7fff", "0x", "0x0", "0x8000", "0x10000", "0x+1", "0xg",
        ] {
            assert_eq!(parse_pkey(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_duration_is_written_as_in_go() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("1s", 1000),
            ("1.5s", 1500),
            (".25s", 250),
            ("1m30s", 90_000),
            ("1h", 3_600_000),
            ("2000µs", 2),
            ("0s", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for bad in [
            "", "1", "s", "1 s", "-1s", "+1s", "1e3s", "1..5s", ".s", "1S", "1sec", "1d", "NaNs",
            "infs", "9e99s",
        ] {
            assert_eq!(parse_duration(bad), None, "{bad:?}");
        }
        assert_eq!(parse_duration(&format!("{}s", "9".repeat(400))), None);
    }
}
