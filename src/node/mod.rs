//! /etc/rail-cni/node.json, which the operator of the node writes. It is the only source of the
//! paths that the programs use: a network configuration, which a tenant may have written, cannot
//! set them.

mod place;
mod policy;
mod roce;
mod vfs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use log::LevelFilter;
use nix::sys::statfs::statfs;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::cni::keys::{self, Members};
use crate::files::{self, Dir};
use crate::nearest::nearest;
use crate::{calls, cluster_networks, cni, fail, failure, watchdog};

pub use policy::{Judged, Policy};
pub use roce::{Roce, Trust};
pub use vfs::{Driver, Vfs};

/// Environment variable with the path of another node.json, for tests and unusual hosts.
pub const VARIABLE: &str = "RAIL_CNI_NODE_CONFIG";
const PATH: &str = "/etc/rail-cni/node.json";

/// The content of node.json. Every key may be missing.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Node {
    node_name: Option<String>,
    /// The rails and their PFs; empty: devices are not compared with a rail's PF.
    pub rails: Vec<RailPf>,
    /// Whether the rails are numbered in the order of their PFs' PCI addresses.
    pub rails_in_pci_order: bool,
    /// Directory of the allocations, with a subdirectory per node.
    pub store_dir: PathBuf,
    /// Directory of records, leases and locks.
    pub run_dir: PathBuf,
    /// The mount point of sysfs.
    pub sysfs_root: PathBuf,
    /// Directory in which device-info files may be written. `runtimeConfig.CNIDeviceInfoFile` is a
    /// path that a tenant's configuration can set.
    pub device_info_dir: PathBuf,
    /// The routing table of rail 0 in pods; that of rail R is R more.
    pub first_table: u32,
    /// Networks of Services and pods, which no route of a rail may cover; empty: not known.
    pub cluster_networks: Vec<IpNet>,
    /// The settings for RoCE that the port of every rail must have; `None`: ports are compared with
    /// each other only.
    pub roce: Option<Roce>,
    /// The VFs of each rail without `vfs` of its own; `None`: they are left alone.
    vfs: Option<Vfs>,
    log: LogConfig,
    /// Longest time of a runtime's call in seconds, 1 to 3600; see [`crate::watchdog`].
    call_timeout: u16,
    /// Whether the kernel confines calls; see src/confine.
    pub confine: bool,
    /// The rules for networks on this node.
    pub policy: Policy,
    /// Why `run_dir` may be another than node.json says, if that cannot be read.
    #[serde(skip)]
    doubt: Option<String>,
}

/// The largest number of a rail. Each has a routing table of its own, which must not be one of the
/// kernel's, 253 to 255.
pub const MAX_RAIL: u8 = 127;

/// A rail and its PF.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RailPf {
    /// Number of the rail, from 0.
    pub rail: u8,
    /// PCI address or netdev name of the PF.
    pub pf: String,
    /// Whether rail-ipam gives the rail's addresses, so that the plan must have a pool for it.
    #[serde(default = "yes")]
    pub pool: bool,
    /// The VFs of this PF, instead of those of [`Node`].
    vfs: Option<Vfs>,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogConfig {
    #[serde(deserialize_with = "level")]
    level: Option<LevelFilter>,
    file: Option<PathBuf>,
    /// Directory in which networks may have log files of their own.
    dir: Option<PathBuf>,
    format: crate::log::Format,
}

impl LogConfig {
    /// Whether a network may log to `requested`: it must be the operator's file, or directly in the
    /// directory that the operator set aside for networks. In any other directory, such as
    /// /var/log, a tenant could write into another program's file.
    fn allows(&self, requested: &Path) -> bool {
        let name = requested
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_name =
            !name.is_empty() && !name.starts_with('.') && !name.contains(char::is_control);
        let is_inside = self.dir.is_some() && requested.parent() == self.dir.as_deref();
        self.file.as_deref() == Some(requested) || (is_inside && is_name)
    }
}

/// Settings of a device that come from a network or a pod, by their keys.
pub const VF_KEYS: [&str; 13] = [
    "vlan",
    "vlanQoS",
    "vlanProto",
    "min_tx_rate",
    "max_tx_rate",
    "spoofchk",
    "trust",
    "link_state",
    "mac",
    "infinibandGUID",
    "pkey",
    "rdmaDeviceName",
    "rdmaQoS",
];

fn level<'de, D: Deserializer<'de>>(from: D) -> Result<Option<LevelFilter>, D::Error> {
    let text = String::deserialize(from)?;
    let known = "panic, error, warning, info, debug";
    crate::log::parse_level(&text)
        .map(Some)
        .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not one of {known}")))
}

impl Default for Node {
    fn default() -> Node {
        Node {
            node_name: None,
            rails: Vec::new(),
            rails_in_pci_order: true,
            store_dir: "/var/lib/rail-cni/store".into(),
            run_dir: "/run/rail-cni".into(),
            sysfs_root: "/sys".into(),
            device_info_dir: "/var/run/k8s.cni.cncf.io/devinfo/cni".into(),
            first_table: 100,
            cluster_networks: Vec::new(),
            roce: None,
            vfs: None,
            log: LogConfig::default(),
            call_timeout: watchdog::LIMIT.as_secs().try_into().unwrap_or(u16::MAX),
            confine: true,
            policy: Policy::default(),
            doubt: None,
        }
    }
}

impl Node {
    /// Reads node.json, or returns the defaults if the file does not exist. Fails if the file is
    /// invalid.
    pub fn load() -> Result<Node> {
        let path = path();
        let Some(members) = read(&path)? else {
            return Ok(Node::default());
        };
        whole(&path, members)
    }

    /// Reads node.json for what ends attachments, which must work whatever the file contains: an
    /// invalid key counts as absent, and all keys do if the file cannot be read. A search in the run
    /// directory that finds nothing is followed by [`Node::confirm_nothing`].
    pub fn load_lenient() -> Node {
        let path = path();
        let members = match read(&path) {
            Ok(Some(members)) => members,
            Ok(None) => return Node::default(),
            Err(error) => return Node::in_doubt(&error),
        };
        let object = members.object.clone();
        whole(&path, members).unwrap_or_else(|error| {
            log::warn!("{error:#}");
            Node::of_valid_keys(&path, &object)
        })
    }

    fn of_valid_keys(path: &Path, object: &Map<String, Value>) -> Node {
        let mut valid = Map::new();
        let mut run_dir_error = None;
        for (key, value) in object {
            let alone = Map::from_iter([(key.clone(), value.clone())]);
            match parse(path, &Value::Object(alone)) {
                Ok(_) => drop(valid.insert(key.clone(), value.clone())),
                Err(error) if key == "runDir" => run_dir_error = Some(error),
                Err(_) => (),
            }
        }
        let node =
            parse(path, &Value::Object(valid)).unwrap_or_else(|error| Node::in_doubt(&error));
        match run_dir_error {
            Some(error) => Node {
                doubt: Some(format!("{error:#}")),
                ..node
            },
            None => node,
        }
    }

    /// The defaults in place of a file that cannot be read.
    fn in_doubt(error: &anyhow::Error) -> Node {
        log::warn!("{error:#}: using the default directories");
        Node {
            doubt: Some(format!("{error:#}")),
            ..Node::default()
        }
    }

    /// Parses the text of a node.json, called `path` in messages: for programs that write one.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Node> {
        whole(path, members(path, text)?)
    }

    /// The name of this node in pools. It must match exactly, because the fabric was planned with
    /// it.
    pub fn name(&self) -> Result<String> {
        match &self.node_name {
            Some(name) => Ok(name.clone()),
            None => files::host_name(),
        }
    }

    /// Opens the directory `name` in the run directory; makes it where it is missing.
    pub fn run(&self, name: &str) -> Result<Dir> {
        Dir::create(&self.run_dir)?.create_sub(name)
    }

    /// Opens the directory `name` in the run directory if it exists, for verbs that write nothing.
    pub fn existing_run(&self, name: &str) -> Result<Option<Dir>> {
        self.existing_run_dir()?
            .map_or(Ok(None), |run| run.sub(name))
    }

    /// Opens the run directory if it exists.
    pub fn existing_run_dir(&self) -> Result<Option<Dir>> {
        match Dir::open(&self.run_dir) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(error).with_context(|| format!("cannot open {}", self.run_dir.display()))
            }
        }
    }

    /// Fails if no file could be made in the run directory. Checks the nearest directory that
    /// exists, and makes none.
    pub fn run_is_writable(&self) -> Result<()> {
        for there in self.run_dir.ancestors() {
            let shown = there.display();
            let look = || format!("cannot open {shown}");
            match Dir::open(there) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                dir => dir.with_context(look)?.writable()?,
            }
            let fs = statfs(there).with_context(look)?;
            // File systems without a fixed number of files report 0 of 0.
            if fs.blocks_free() == 0 || (fs.files() > 0 && fs.files_free() == 0) {
                fail!(
                    Io,
                    "the file system of {} is full: `df {shown}` and `df -i {shown}` show what is used",
                    self.run_dir.display()
                );
            }
            break;
        }
        Ok(())
    }

    /// The time limit of a runtime's call, and of a command that changes nothing.
    pub fn call_timeout(&self) -> Duration {
        Duration::from_secs(self.call_timeout.into())
    }

    /// The log file besides stderr.
    pub fn log_file(&self) -> Option<&Path> {
        self.log.file.as_deref()
    }

    /// Directory in which networks may have log files of their own.
    pub fn log_dir(&self) -> Option<&Path> {
        self.log.dir.as_deref()
    }

    /// Starts the log. A network may set the level, and a file that node.json allows.
    pub fn start_log(&self, network: &cni::Network) {
        let text = |key| {
            network
                .get(&[key])
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let level = text("logLevel")
            .and_then(crate::log::parse_level)
            .or(self.log.level);
        let requested = text("logFile").map(Path::new);
        let allowed = requested.filter(|requested| self.log.allows(requested));
        calls::is_below(&self.run_dir);
        calls::rail(
            network
                .get(&["rail"])
                .and_then(Value::as_u64)
                .and_then(|rail| rail.try_into().ok()),
        );
        watchdog::allow(self.call_timeout());
        let file = allowed.or(self.log.file.as_deref());
        crate::log::configure(level.unwrap_or(LevelFilter::Info), self.log.format, file);
        if let Some(requested) = requested.filter(|_| allowed.is_none()) {
            log::warn!(
                "logFile {requested:?} is ignored: it is neither log.file of node.json nor a file in its log.dir"
            );
        }
    }
}

/// The path of node.json.
pub fn path() -> PathBuf {
    std::env::var_os(VARIABLE)
        .filter(|value| !value.is_empty())
        .map_or_else(|| PATH.into(), PathBuf::from)
}

fn read(path: &Path) -> Result<Option<Members>> {
    let text = match files::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && path == Path::new(PATH) => {
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    members(path, &text).map(Some)
}

fn members(path: &Path, text: &[u8]) -> Result<Members> {
    // Editors of Windows begin a file with a mark that no editor shows.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    keys::read(text, &keys::ANY)
        .map_err(|error| failure!(InvalidConfig, "{}: not valid JSON: {error}", path.display()))
}

/// The node, if no key appears twice.
fn whole(path: &Path, members: Members) -> Result<Node> {
    if let Some(fault) = members.fault {
        fail!(InvalidConfig, "{}: {fault}", path.display());
    }
    parse(path, &Value::Object(members.object))
}

/// Adds the known key that was probably meant. serde names the unknown key and then all known ones,
/// in backquotes.
fn with_nearest(error: &str) -> String {
    let mut words = error.split('`').skip(1).step_by(2);
    let unknown = words.next().filter(|_| error.contains("unknown field"));
    match unknown.and_then(|word| nearest(word, words)) {
        Some(meant) => format!("{error}: did you mean {meant}?"),
        None => error.to_owned(),
    }
}

fn parse(path: &Path, value: &Value) -> Result<Node> {
    let node: Node = serde_path_to_error::deserialize(value).map_err(|error| {
        failure!(
            InvalidConfig,
            "{}: {}",
            path.display(),
            with_nearest(&error.to_string())
        )
    })?;
    check(&node).with_context(|| path.display().to_string())?;
    Ok(node)
}

/// Checks what types do not.
fn check(node: &Node) -> Result<()> {
    let dirs = [
        ("storeDir", &node.store_dir),
        ("runDir", &node.run_dir),
        ("sysfsRoot", &node.sysfs_root),
        ("deviceInfoDir", &node.device_info_dir),
    ];
    let mut dirs = dirs
        .into_iter()
        .chain(node.log.dir.as_ref().map(|dir| ("log.dir", dir)));
    if let Some((key, dir)) = dirs.find(|(_, dir)| !dir.is_absolute()) {
        fail!(
            InvalidConfig,
            "{key}: {} must be an absolute path",
            dir.display()
        );
    }
    if !(1..=3600).contains(&node.call_timeout) {
        fail!(
            InvalidConfig,
            "callTimeout: {} must be 1 to 3600 seconds",
            node.call_timeout
        );
    }
    if !matches!(node.first_table, 1..=125 | 256..=1_000_000) {
        fail!(
            InvalidConfig,
            "firstTable: {} must be 1 to 125 or 256 to 1000000",
            node.first_table
        );
    }
    if let Some(name) = node
        .node_name
        .as_ref()
        .filter(|name| !cni::is_identifier(name))
    {
        fail!(
            InvalidConfig,
            "nodeName: {name:?} cannot be the name of a node"
        );
    }
    for (index, one) in node.rails.iter().enumerate() {
        let mut before = node.rails[..index].iter();
        if before.any(|other| (other.rail, &other.pf) == (one.rail, &one.pf)) {
            fail!(InvalidConfig, "rails: rail {} is listed twice", one.rail);
        }
        if one.rail > MAX_RAIL {
            fail!(
                InvalidConfig,
                "rails: rail {} is more than {MAX_RAIL}",
                one.rail
            );
        }
        policy::check_pf("rails", &one.pf)?;
    }
    for (index, network) in node.cluster_networks.iter().enumerate() {
        if let Err(what) = cluster_networks::check(*network) {
            fail!(InvalidConfig, "clusterNetworks[{index}]: {what}");
        }
    }
    node.policy.check()?;
    node.roce.as_ref().map_or(Ok(()), Roce::check)?;
    vfs::check(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_key_of_a_policy_that_nothing_knows_is_refused() {
        let parsed =
            |keys: Value| parse(Path::new("node.json"), &json!({"policy": {"vfKeys": keys}}));
        assert!(parsed(json!(VF_KEYS)).is_ok() && parsed(json!([])).is_ok());
        let error = format!(
            "{:#}",
            parsed(json!(["vlan", "infinibandGuid"])).unwrap_err()
        );
        assert!(error.contains("\"infinibandGuid\""), "{error}");
        assert!(error.ends_with("infinibandGUID?"), "{error}");
    }

    #[test]
    fn what_editors_and_lspci_make_of_a_node_is_read_or_refused_by_its_key() {
        let parsed = |text: &str| Node::parse(Path::new("node.json"), text.as_bytes());
        assert!(
            parsed("\u{feff}{\"callTimeout\": 9}\r\n").is_ok_and(|node| node.call_timeout == 9)
        );
        for pf in [
            "0000:1A:00.0",
            "10000:e1:00.0",
            "mlx5_core.sf.4",
            "ens1f0np0",
        ] {
            assert!(
                parsed(&json!({"rails": [{"rail": 0, "pf": pf}]}).to_string()).is_ok(),
                "{pf}"
            );
        }
        let mut said = Vec::new();
        for (text, key) in [
            (r#"{"rails": [{"rail": 0, "pf": "1a:00.0"}]}"#, "rails: "),
            (r#"{"rails": [{"rail": 0, "pf": "ens1f0 "}]}"#, "rails: "),
            (r#"{"rails": [{"rail": 0, "pf": ""}]}"#, "rails: "),
            (r#"{"policy": {"pfs": ["1a:00.0"]}}"#, "policy.pfs: "),
            (r#"{"policy": {"ipam": ["../bin/x"]}}"#, "policy.ipam: "),
            (r#"{"runDir": "/a", "runDir": "/b"}"#, "runDir: "),
            (
                r#"{"policy": {"vfsOnly": true, "vfsOnly": false}}"#,
                "policy.vfsOnly: ",
            ),
            (r#"{"runDir": "/a",}"#, ""),
        ] {
            let error = format!("{:#}", parsed(text).unwrap_err());
            assert!(error.starts_with(&format!("node.json: {key}")), "{error}");
            said.push(error);
        }
        golden::says("plugins", "node.json: faults", said.join("\n"));
    }

    #[test]
    fn a_rail_has_a_table_that_is_not_the_kernels() {
        let parsed = |rail: Value| {
            parse(
                Path::new("node.json"),
                &json!({"rails": [{"rail": rail, "pf": "ens1f0"}]}),
            )
        };
        assert!(parsed(json!(MAX_RAIL)).is_ok_and(|node| node.rails[0].pool));
        let error = format!("{:#}", parsed(json!(155)).unwrap_err());
        assert!(error.contains("rails: rail 155"), "{error}");
    }

    #[test]
    fn networks_of_the_cluster_are_prefixes() {
        let parsed = |networks: Value| {
            parse(
                Path::new("node.json"),
                &json!({"clusterNetworks": networks}),
            )
        };
        let node = parsed(json!(["10.96.0.0/12", "fd00:10:96::/112"])).unwrap();
        let shown: Vec<_> = node.cluster_networks.iter().map(IpNet::to_string).collect();
        assert_eq!(shown, ["10.96.0.0/12", "fd00:10:96::/112"]);
        for (networks, told) in [
            (
                json!(["10.244.0.0/16", "10.96.0.1/12"]),
                "clusterNetworks[1]: 10.96.0.1/12 ",
            ),
            (json!(["0.0.0.0/0"]), "clusterNetworks[0]: 0.0.0.0/0 "),
            (json!(["10.96.0.0"]), "clusterNetworks[0]: "),
            (json!("10.96.0.0/12"), "clusterNetworks: "),
        ] {
            let error = format!("{:#}", parsed(networks).unwrap_err());
            assert!(error.contains(told), "{told}: {error}");
        }
    }
}
