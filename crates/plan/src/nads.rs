//! NetworkAttachmentDefinitions: one network for each rail, or with `swplb` for each rail and
//! plane, or one for all.

use std::collections::BTreeMap;

use crate::pattern::Pattern;
use crate::plan::{File, Plan, Pool, is_object_name, refused};
use crate::yaml;
use anyhow::{Context as _, Result};
use rail_cni::fail;
use rail_cni::fault::Fault;
use rail_cni::node::MAX_RAIL;
use rail_cni::pool::rail_in;

/// The MTU of pods without one of the hosts in any source, in bytes: below the 9216 of the leaves.
const MTU: u32 = 9000;

const CAPABILITIES: &str =
    r#""capabilities": {"deviceID": true, "mac": true, "ips": true, "CNIDeviceInfoFile": true}"#;

const OF_LISTS: &str = "\
# The networks of the plan: kubectl apply -f. Each has a resource of its own, so that the device plugin can only hand
# out a VF of that rail's PF.
";

const OF_SINGLES: &str = "\
# The networks of the plan: kubectl apply -f. Each is one plugin and no list, as dra-driver-sriov reads it.
";

const OF_ONE: &str = "\
# The network of all rails: kubectl apply -f. It has no rail and no pool: each device gets the addresses of its own rail, which
# `rails` of node.json says. A pod names it once for each device, and asks for as many of the resource.
";

/// The name of the network of all rails, and of its resource.
const ONE: &str = "rails";

/// The numbers in the name of a resource.
const NUMBERS: [&str; 2] = ["rail", "plane"];

/// The networks, and the names of their resources.
#[derive(Clone, Debug, Default)]
pub struct Networks {
    /// One network for all rails.
    pub is_one: bool,
    /// The resource of a network instead of `nvidia.com/NAME`.
    pub resource: Option<Pattern<2>>,
}

/// A network, and the pools whose rails it attaches.
#[derive(Debug)]
pub(super) struct Network<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its resource, `PREFIX/NAME`.
    pub resource: String,
    /// Both families of a rail, IPv4 first; or the pools of all rails.
    pub pools: Vec<&'a Pool>,
    is_one: bool,
}

/// The form of the configuration in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A list with one plugin.
    List,
    /// The plugin alone, for a driver that reads no list.
    Single,
}

/// Writes one file. A network has the name of its (IPv4) pool. Without a namespace, kubectl chooses
/// it.
pub fn write(
    plan: &mut Plan,
    networks: &Networks,
    form: Form,
    namespace: Option<&str>,
) -> Result<Vec<File>> {
    if !networks.is_one {
        let lacking: Vec<_> = plan
            .pools
            .iter()
            .filter(|pool| pool.rail.is_none())
            .collect();
        plan.warnings.extend(unknown(&lacking));
    }
    let head = match form {
        _ if networks.is_one => OF_ONE,
        Form::List => OF_LISTS,
        Form::Single => OF_SINGLES,
    };
    let mut text = head.to_owned();
    for network in networks.networks(plan)? {
        text.push_str(&network.text(form, namespace)?);
    }
    Ok(vec![File {
        name: "nads.yaml".to_owned(),
        text,
    }])
}

impl Networks {
    /// Parses the resource: `openshift.io/rail_{rail}`.
    pub fn new(is_one: bool, resource: Option<&str>) -> Result<Networks> {
        let resource = resource
            .map(|text| Pattern::parse(text, &NUMBERS))
            .transpose()
            .context("--resource")?;
        Ok(Networks { is_one, resource })
    }

    /// The networks of the plan: one for all rails, or one for each. No two have one resource.
    pub(super) fn networks<'a>(&self, plan: &'a Plan) -> Result<Vec<Network<'a>>> {
        refuse_hwplb(plan)?;
        let pools_by_network = if self.is_one {
            vec![of_all_rails(plan)?]
        } else {
            of_rails(plan)
        };
        let mut networks: Vec<Network<'_>> = Vec::new();
        for pools in pools_by_network {
            let Some(first) = pools.first() else {
                continue;
            };
            first.check_object_name()?;
            let name = if self.is_one {
                ONE
            } else {
                first.name.as_str()
            };
            let resource = self.resource_of(name, first)?;
            if let Some(other) = networks.iter().find(|other| other.resource == resource) {
                fail!(
                    InvalidConfig,
                    "--resource: {resource} is the resource of {} and of {name}: a pod would get a device of either rail; \
                     --one writes one network for all",
                    other.name
                );
            }
            networks.push(Network {
                name,
                resource,
                pools,
                is_one: self.is_one,
            });
        }
        Ok(networks)
    }

    fn resource_of(&self, name: &str, pool: &Pool) -> Result<String> {
        let Some(pattern) = &self.resource else {
            return Ok(format!("nvidia.com/{name}"));
        };
        let is_of_a_rail = NUMBERS.iter().any(|number| pattern.uses(number, &NUMBERS));
        if is_of_a_rail && self.is_one {
            fail!(
                InvalidConfig,
                "--resource: one network for all rails has one resource, without {{rail}}"
            );
        }
        let Some(rail) = pool.rail.or((!is_of_a_rail).then_some(0)) else {
            fail!(
                InvalidConfig,
                "--resource: no source says which rail pool {} is",
                pool.name
            );
        };
        let resource = pattern.render(&[rail.into(), pool.plane.unwrap_or(0).into()]);
        let is_resource = |(prefix, name): (&str, &str)| {
            let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let ends = [name.bytes().next(), name.bytes().next_back()];
            is_object_name(prefix)
                && name.len() <= 63
                && ends
                    .iter()
                    .all(|end| end.is_some_and(|end| end.is_ascii_alphanumeric()))
                && name.bytes().all(is_inner)
        };
        if !resource.split_once('/').is_some_and(is_resource) {
            fail!(
                InvalidConfig,
                "--resource: {resource:?} is not a resource of Kubernetes: PREFIX/NAME, as in openshift.io/rail_{{rail}}"
            );
        }
        Ok(resource)
    }
}

/// All pools, if ADD can tell the rail of each: from the plan, or else from names that count from 0.
fn of_all_rails(plan: &Plan) -> Result<Vec<&Pool>> {
    let is_said = plan.pools.iter().any(|pool| pool.rail.is_some());
    let is_from_0 = plan.pools.iter().any(|pool| rail_in(&pool.name) == Some(0));
    let is_known = |pool: &Pool| match is_said {
        true => pool.rail.is_some(),
        false => is_from_0 && rail_in(&pool.name).is_some(),
    };
    let unknown = plan
        .pools
        .iter()
        .filter(|pool| !is_known(pool))
        .map(|pool| {
            let remedy = format!(
                "`kubectl annotate cidrpool {} rail-cni/rail=0` for the first rail",
                pool.name
            );
            let fault = Fault::whole(
                "no source says which rail it is, so no device would get its addresses",
            );
            fault.remedy(remedy).of(format!("pool {}", pool.name))
        });
    let unknown: Vec<_> = unknown.collect();
    if unknown.is_empty() {
        Ok(plan.pools.iter().collect())
    } else {
        Err(refused(unknown))
    }
}

fn unknown(pools: &[&Pool]) -> Option<String> {
    let first = &pools.first()?.name;
    let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
    Some(format!(
        "no source says which rail {} is, so the network has no `rail`, and ADD does not notice a device of another \
         rail: add it to the CIDRPool (`kubectl annotate cidrpool {first} rail-cni/rail=0` for the first rail)",
        names.join(", ")
    ))
}

/// Fails if the plan has a rail that rail-cni cannot attach.
pub(super) fn refuse_hwplb(plan: &Plan) -> Result<()> {
    if let Some(pool) = plan.pools.iter().find(|pool| pool.is_hwplb) {
        fail!(
            InvalidConfig,
            "pool {} is of mode hwplb: OVS spreads one VF over the PFs of all planes, which are in switchdev, \
             and rail-cni attaches VFs of PFs in legacy: NVIDIA's operator makes these VFs and networks. \
             `--to cidrpool`, csv, html, nvue, slurm and volcano work; mode swplb has a network for each plane",
            pool.name
        );
    }
    Ok(())
}

/// The pools of each network: both families of a rail, IPv4 first. A pool of an unknown rail is a
/// network of its own.
pub(super) fn of_rails(plan: &Plan) -> Vec<Vec<&Pool>> {
    let mut of_rail: BTreeMap<_, Vec<&Pool>> = BTreeMap::new();
    for pool in &plan.pools {
        of_rail
            .entry((pool.rail, pool.plane))
            .or_default()
            .push(pool);
    }
    let both = |pools: &[&Pool]| matches!(pools, [one, other] if one.is_ipv4() != other.is_ipv4());
    let split = |((rail, _), mut pools): ((Option<u8>, _), Vec<_>)| {
        pools.sort_by_key(|pool: &&Pool| !pool.is_ipv4());
        if rail.is_some() && both(&pools) {
            vec![pools]
        } else {
            pools.into_iter().map(|pool| vec![pool]).collect()
        }
    };
    of_rail.into_iter().flat_map(split).collect()
}

impl Network<'_> {
    /// The MTU in bytes: that of the hosts, the smallest.
    pub fn mtu(&self) -> u32 {
        let cables = self
            .pools
            .iter()
            .flat_map(|pool| pool.cables.iter().flatten());
        cables.filter_map(|cable| cable.mtu).min().unwrap_or(MTU)
    }

    /// Whether ADD can ask the leaf port of each node for its address. Where a rail has planes, one may
    /// be dead while the others work.
    fn has_gateways(&self) -> bool {
        self.pools.iter().all(|pool| {
            let rows = &pool.spec.static_allocations;
            let is_in_each_row = rows.iter().all(|row| !row.gateway.is_empty());
            pool.plane.is_none() && (is_in_each_row || pool.spec.gateway_index.is_some())
        })
    }

    /// The keys of the plugin, each as a line.
    fn plugin(&self, form: Form) -> Result<Vec<String>> {
        let name = self.name;
        let rail = self
            .pools
            .first()
            .and_then(|pool| pool.number())
            .filter(|_| !self.is_one);
        let mut plugin = vec!["\"type\": \"rail-cni\"".to_owned()];
        if let Some(rail) = rail {
            if rail > MAX_RAIL {
                fail!(
                    InvalidConfig,
                    "pool {name}: its network would be rail {rail}, and the last is {MAX_RAIL}"
                );
            }
            plugin.push(format!("\"rail\": {rail}"));
        }
        plugin.push(format!("\"mtu\": {}", self.mtu()));
        // The driver that reads the other form has two seconds for all rails of a pod.
        if form == Form::List && self.has_gateways() {
            plugin.push("\"gatewayProbe\": \"require\"".to_owned());
        }
        plugin.push(CAPABILITIES.to_owned());
        let names: Vec<_> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        plugin.push(match self.is_one {
            true => "\"ipam\": {\"type\": \"rail-ipam\"}".to_owned(),
            false => format!(
                "\"ipam\": {{\"type\": \"rail-ipam\", \"pool\": \"{}\"}}",
                names.join(",")
            ),
        });
        Ok(plugin)
    }

    fn text(&self, form: Form, namespace: Option<&str>) -> Result<String> {
        let Network { name, resource, .. } = self;
        let plugin = self.plugin(form)?;
        let lines = |indent: &str| plugin.join(&format!(",\n{indent}"));
        let config = match form {
            Form::List => format!(
                "      \"cniVersion\": \"1.0.0\",
      \"cniVersions\": [\"1.0.0\", \"1.1.0\"],
      \"name\": \"{name}\",
      \"plugins\": [
        {{
          {}
        }}
      ]
",
                lines("          ")
            ),
            Form::Single => format!(
                "      \"cniVersion\": \"1.0.0\",
      \"name\": \"{name}\",
      {}
",
                lines("      ")
            ),
        };
        let namespace = namespace.map(|name| format!("  namespace: {}\n", yaml::scalar(name)));
        Ok(format!(
            "---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: {}
{}  annotations:
    k8s.v1.cni.cncf.io/resourceName: {resource}
spec:
  config: |
    {{
{config}    }}
",
            yaml::scalar(name),
            namespace.unwrap_or_default(),
        ))
    }
}

#[cfg(test)]
mod tests;
