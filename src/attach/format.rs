//! Reads a record. Those of the version before, whose pods are alive when a node is upgraded, had a
//! field for each thing that could be left, and said what was left by the fields that were set.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::owner::Owner;
use super::record::{Failed, Record, State, VERSION};
use super::steps::Change;
use super::steps::gids::Gids;
use super::steps::netdev::Netdev;
use super::steps::rail::Rail;
use super::steps::rdma::Rdma;
use super::steps::vf::Vf;
use crate::fail;

/// Reads a record of this version or of the one before.
pub fn parse(json: &[u8]) -> Result<Record> {
    let value: Value = serde_json::from_slice(json)?;
    match value.get("version").and_then(Value::as_u64) {
        Some(1) => parse_old(value),
        Some(version) if version == u64::from(VERSION) => Ok(serde_json::from_value(value)?),
        version => {
            let version =
                version.map_or_else(|| "no version".to_owned(), |version| version.to_string());
            fail!(
                Decode,
                "it has version {version}: another version of rail-cni wrote it"
            )
        }
    }
}

/// The fields of an old record.
struct Fields(Value);

impl Fields {
    /// Takes the field at a path, as [`Value::pointer`] has it.
    fn value(&mut self, path: &str) -> Value {
        self.0
            .pointer_mut(path)
            .map(Value::take)
            .unwrap_or_default()
    }

    fn take<T: DeserializeOwned>(&mut self, path: &str) -> Result<T> {
        serde_json::from_value(self.value(path)).with_context(|| path.to_owned())
    }

    fn text(&self, path: &str) -> &str {
        self.0
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }
}

/// Reads a record of version 1.
fn parse_old(json: Value) -> Result<Record> {
    let mut old = Fields(json);
    let states = States::of(&mut old);
    let mut record = Record::new(owner(&mut old)?);
    for change in changes(&mut old, record.owner.device.link.is_some())? {
        record.plan(change);
    }
    for step in &mut record.steps {
        step.state = states.of_step(&step.change);
    }
    Ok(record)
}

fn owner(old: &mut Fields) -> Result<Owner> {
    let ifname = old.text("/ifname").to_owned();
    let (ifname, part) = match ifname.strip_suffix(" (rdma)") {
        Some(ifname) => (ifname, "rdma"),
        None => (ifname.as_str(), "whole"),
    };
    let is_rebuilt = old.text("/containerID").starts_with("rebuilt-");
    let inside = json!({"index": old.value("/applied/index").as_u64().unwrap_or(0), "mac": old.text("/applied/mac")});
    let mut owner =
        json!({"ifname": ifname, "part": part, "rebuilt": is_rebuilt, "inside": inside});
    for key in [
        "network",
        "containerID",
        "pod",
        "netns",
        "bootId",
        "since",
        "rail",
        "minPlanes",
        "device",
    ] {
        owner[key] = old.value(&format!("/{key}"));
    }
    Ok(serde_json::from_value(owner)?)
}

fn changes(old: &mut Fields, has_netdev: bool) -> Result<Vec<Change>> {
    let mut all = Vec::new();
    if has_netdev {
        let mut netdev = Netdev {
            settings: old.take::<Option<_>>("/settings")?.unwrap_or_default(),
            ..Netdev::default()
        };
        for (key, value) in old
            .value("/hostAddresses/sysctls")
            .as_object()
            .into_iter()
            .flatten()
        {
            if let Some(value) = value.as_str().and_then(|value| value.parse().ok()) {
                netdev.sysctls.insert(key.clone(), value);
            }
        }
        all.extend([Change::Netdev(netdev), Change::Links, Change::Move]);
    }
    all.extend(old.take::<Option<_>>("/ipam")?.map(Change::Lease));
    all.extend(
        old.take::<Option<_>>("/hostAddresses")?
            .map(Change::HostAddresses),
    );
    if let Some((vf, mac)) = old.take::<Option<Vf>>("/vf")?.map(Vf::parts) {
        all.push(Change::Vf(vf));
        all.extend(mac.map(Change::VfMac));
    }
    // It was empty for a name that an earlier pod left.
    if old.text("/rdmaRenamed/wanted").is_empty() {
        old.value("/rdmaRenamed/wanted");
    }
    let rdma = json!({"moving": old.value("/rdma"), "renamed": old.value("/rdmaRenamed"), "qos": old.value("/rdmaQoS")});
    let rdma: Rdma = serde_json::from_value(without_null(rdma)).context("its RDMA devices")?;
    if rdma.is_something() {
        all.push(Change::Rdma(rdma));
    }
    if old.value("/reset") == true {
        all.push(Change::Reset);
    }
    if !old.0["bind"].is_null() {
        old.0["bind"]["again"] = true.into();
        all.push(Change::Driver(old.take("/bind")?));
    }
    let rail: Rail = serde_json::from_value(without_null(old.value("/applied")))
        .context("what is in the pod")?;
    if has_netdev || !rail.addresses.is_empty() {
        all.push(Change::Rail(rail));
    }
    all.extend(old.take::<Option<_>>("/probe")?.map(Change::Gateways));
    all.extend(old.take::<Option<_>>("/pkey")?.map(Change::Pkey));
    let found: Option<Vec<_>> = old.take("/gids")?;
    all.extend(
        found
            .filter(|found| !found.is_empty())
            .map(|found| Change::Gids(Gids { found })),
    );
    all.extend(
        old.take::<Option<PathBuf>>("/deviceInfo")?
            .map(Change::DeviceInfo),
    );
    Ok(all)
}

fn without_null(mut value: Value) -> Value {
    match value.as_object_mut() {
        Some(object) => object.retain(|_, value| !value.is_null()),
        None => value = json!({}),
    }
    value
}

/// How far the steps are.
struct States {
    phase: String,
    debt: Option<Debt>,
}

/// What was owed, in the words of then, and why; since when, and how often it was tried.
struct Debt {
    owed: Vec<(String, String)>,
    since: String,
    tries: u32,
}

impl States {
    fn of(old: &mut Fields) -> States {
        let (phase, since) = (
            old.text("/phase").to_owned(),
            old.text("/debt/since").to_owned(),
        );
        let tries = old
            .value("/debt/tries")
            .as_u64()
            .and_then(|tries| tries.try_into().ok())
            .unwrap_or(0);
        let owed = old.value("/debt/owed");
        let debt = owed.as_array().map(|owed| {
            let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
            Debt {
                owed: owed
                    .iter()
                    .map(|one| (text(one, "what"), text(one, "why")))
                    .collect(),
                since,
                tries,
            }
        });
        States { phase, debt }
    }

    fn of_step(&self, change: &Change) -> State {
        let Some(Debt { owed, since, tries }) = &self.debt else {
            return match (self.phase.as_str(), change) {
                ("adding", _) => State::Planned,
                ("missing", Change::Move) => State::Failed(Failed {
                    why: "it has not returned".to_owned(),
                    ..Failed::default()
                }),
                _ => State::Done,
            };
        };
        match owed.iter().find(|(what, _)| is_of(what, change)) {
            Some((_, why)) => State::Failed(Failed {
                why: why.clone(),
                tries: *tries,
                since: since.clone(),
                next: 0,
            }),
            None => State::Undone,
        }
    }
}

/// Whether this step is what was owed, in the words of then.
fn is_of(what: &str, change: &Change) -> bool {
    match change {
        Change::Lease(_) => what == "ipam",
        Change::DeviceInfo(_) => what == "device-info",
        Change::Rail(_) => what == "rules",
        Change::Links => what == "idle",
        Change::Reset => what == "reset",
        Change::Vf(_) | Change::VfMac(_) => what == "vf",
        Change::Netdev(_) => what == "device",
        Change::Rdma(_) => ["rdma", "device"].contains(&what),
        Change::Driver(_) => ["reset", "vf", "device"].contains(&what),
        Change::HostAddresses(_) => what == "host-addresses",
        Change::Move | Change::Gateways(_) | Change::Gids(_) | Change::Pkey(_) => false,
    }
}

#[cfg(test)]
mod tests;
