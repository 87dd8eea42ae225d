//! `rail-ipam import`: CIDRPool manifests, YAML or JSON, into the store.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;

use super::change::{self, Import, Nodes};
use super::cidrpool::{self, Plan, Row, Spec};
use super::is_name;
use crate::document::{self, Fault, Part};
use crate::fail;
use crate::node::Node;

/// Reads and checks all files, compares them with the store, and changes nothing.
pub fn plan(node: &Node, files: &[String], nodes: &Nodes) -> Result<Import> {
    let mut warnings = Vec::new();
    let pools = pools(files, &mut warnings)?;
    let pools = pools.into_iter().map(|(pool, plan)| (pool, plan.allocations)).collect();
    let mut import = change::changes(node, &pools, nodes)?;
    warnings.append(&mut import.warnings);
    Ok(Import { warnings, ..import })
}

/// What every pool of the files gives; all faults of all files in one error.
fn pools(files: &[String], warnings: &mut Vec<String>) -> Result<BTreeMap<String, Plan>> {
    let mut faults = Vec::new();
    let mut pools = BTreeMap::new();
    for file in files {
        let documents = document::read(file).unwrap_or_else(|error| {
            faults.push(error.to_string());
            Vec::new()
        });
        let mut manifests = Vec::new();
        for document in &documents {
            pools_in(document.root(), &mut manifests, &mut faults);
        }
        if manifests.is_empty() && faults.is_empty() {
            faults.push(format!("{file}: no CIDRPool in it"));
        }
        for manifest in manifests {
            let Manifest { name, spec, status, .. } = &manifest;
            if spec.is_dynamic() && status.is_empty() {
                faults.push(manifest.at(&format!(
                    "spec: it has no staticAllocations, so nv-ipam chooses the prefixes as nodes come: \
                     import what it chose, `kubectl get cidrpool {name} -o yaml` shows it in status.allocations"
                )));
                continue;
            }
            match spec.plan("spec", status) {
                Ok(plan) => {
                    warnings.extend(plan.warnings.iter().map(|warning| manifest.at(warning)));
                    if pools.insert((*name).to_owned(), plan).is_some() {
                        faults.push(manifest.at("metadata.name: this pool is there twice"));
                    }
                }
                Err(more) => faults.extend(more.iter().map(|fault| manifest.at(fault))),
            }
        }
    }
    if !faults.is_empty() {
        fail!(InvalidConfig, "nothing was imported: {}", cidrpool::some_of(&faults));
    }
    Ok(pools)
}

/// A CIDRPool, parsed.
struct Manifest<'a> {
    part: Part<'a>,
    name: &'a str,
    spec: Spec,
    status: Vec<Row>,
}

impl Manifest<'_> {
    /// A message that begins with its path, with file, line and name before it.
    fn at(&self, fault: &str) -> String {
        format!("{}: CIDRPool {}: {fault}", self.part.place(fault), self.name)
    }
}

/// Finds the CIDRPools: the value itself, a list, or what `kubectl get -o yaml` makes of several.
fn pools_in<'a>(part: Part<'a>, found: &mut Vec<Manifest<'a>>, faults: &mut Vec<String>) {
    let place = part.place("");
    match (part.value, part.text("kind")) {
        (Value::Array(_), _) => part.items().for_each(|item| pools_in(item, found, faults)),
        (Value::Object(_), Some("List" | "CIDRPoolList")) => match part.get("items") {
            Some(items) if items.value.is_array() => pools_in(items, found, faults),
            _ => faults.push(format!("{}: items: not a list", part.place("items"))),
        },
        (Value::Object(_), Some("CIDRPool")) => match manifest(part) {
            Ok(manifest) => found.push(manifest),
            Err(fault) => faults.push(fault.to_string()),
        },
        (Value::Object(_), Some(other)) => {
            faults.push(format!("{}: kind {other:?} is no CIDRPool", part.place("kind")));
        }
        (Value::Object(_), None) => faults.push(format!("{place}: no kind: CIDRPool")),
        (other, _) => {
            let shown: String = other.to_string().chars().take(40).collect();
            faults.push(format!("{place}: {shown} is no CIDRPool"));
        }
    }
}

fn manifest(part: Part) -> Result<Manifest, Fault> {
    const API_VERSION: &str = "nv-ipam.nvidia.com/v1alpha1";
    let wrong = |problem: String| part.fault(problem);
    let name = match part.text("metadata.name") {
        Some(name) if is_name(name) => name,
        Some(name) => return Err(wrong(format!("metadata.name: {name:?} is no name of a pool"))),
        None => return Err(wrong("metadata.name: is missing".to_owned())),
    };
    let within = |fault: Fault| Fault { problem: format!("CIDRPool {name}: {}", fault.problem), ..fault };
    match part.text("apiVersion") {
        Some(API_VERSION) => (),
        other => {
            let other = other.unwrap_or("none");
            return Err(within(wrong(format!("apiVersion: {other} is not {API_VERSION}"))));
        }
    }
    let spec = part.decode("spec").map_err(within)?;
    let status: Option<Vec<Row>> = part.decode("status.allocations").map_err(within)?;
    Ok(Manifest { part, name, spec, status: status.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::{store, write};
    use std::path::Path;

    const EXAMPLES: [&str; 2] = ["conf/pools/spectrum-x.yaml", "conf/pools/dual-stack.yaml"];

    fn node(temp: &Path) -> Node {
        let dirs = serde_json::json!({"storeDir": temp.join("store"), "runDir": temp.join("run")});
        serde_json::from_value(dirs).unwrap()
    }

    fn plan_of(text: &str, nodes: &Nodes) -> Result<Import> {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("pools");
        std::fs::write(&file, text).unwrap();
        plan(&node(temp.path()), &[file.display().to_string()], nodes)
    }

    fn pool(name: &str, rows: &str) -> String {
        format!(
            "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {{name: {name}}}\n\
             spec: {{cidr: 172.16.0.0/15, perNodeNetworkPrefix: 31, staticAllocations: [{rows}]}}\n"
        )
    }

    #[test]
    fn the_examples_give_each_node_its_side_of_every_rail() {
        let temp = tempfile::tempdir().unwrap();
        let node = node(temp.path());
        let import = plan(&node, &EXAMPLES.map(str::to_owned), &Nodes::All).unwrap();
        write(&node, &import, false).unwrap();
        let load = |name: &str, pool: &str| {
            store::load(&node, name, &[pool.to_owned()]).map(|mut all| all.remove(0))
        };
        let ours = load("worker-gpu-62", "rail-0").unwrap();
        assert_eq!(ours.prefix.to_string(), "172.16.1.60/31");
        assert_eq!(ours.gateway.unwrap().to_string(), "172.16.1.61");
        for node_name in ["worker-gpu-0", "worker-gpu-1", "worker-gpu-62", "worker-gpu-63"] {
            for rail in 0..8 {
                let ours = load(node_name, &format!("rail-{rail}")).unwrap();
                let address = ours.first_free(|_| false).unwrap().to_string();
                assert!(address.starts_with(&format!("172.{}.", 16 + 2 * rail)), "{address}");
                assert_eq!(ours.routes[0].dst.to_string(), format!("172.{}.0.0/15", 16 + 2 * rail));
                assert_eq!(ours.routes[1].dst.to_string(), "172.16.0.0/12");
            }
        }
        let error = load("Worker-GPU-62.example.com", "rail-0").unwrap_err().to_string();
        assert!(error.contains("did the plan mean it with worker-gpu-62?"), "{error}");
        let again = plan(&node, &EXAMPLES.map(str::to_owned), &Nodes::All).unwrap();
        assert!(again.lines.iter().all(|line| line.change() == "same"));
    }

    #[test]
    fn a_row_that_left_the_pool_leaves_the_store() {
        let temp = tempfile::tempdir().unwrap();
        let node = node(temp.path());
        let file = temp.path().join("p.yaml");
        let files = [file.display().to_string()];
        let one = "{nodeName: a, prefix: 172.16.0.0/31, gateway: 172.16.0.1}";
        std::fs::write(&file, pool("r", &format!("{one}, {{nodeName: b, prefix: 172.16.0.2/31}}"))).unwrap();
        write(&node, &plan(&node, &files, &Nodes::All).unwrap(), false).unwrap();
        std::fs::write(&file, pool("r", one)).unwrap();
        let import = plan(&node, &files, &Nodes::One("b".into())).unwrap();
        assert_eq!(import.lines[0].change(), "removed");
        write(&node, &import, false).unwrap();
        assert!(store::load(&node, "b", &["r".to_owned()]).is_err());
        assert!(store::load(&node, "a", &["r".to_owned()]).is_ok());
        assert!(plan(&node, &files, &Nodes::One("b".into())).is_err());
    }

    #[test]
    fn every_form_that_kubectl_prints_is_read() {
        let row = "{nodeName: a, prefix: 172.16.0.0/31, gateway: 172.16.0.1}";
        let json = r#"{"apiVersion":"nv-ipam.nvidia.com/v1alpha1","kind":"CIDRPool","metadata":{"name":"r"},
            "spec":{"cidr":"172.16.0.0/15","perNodeNetworkPrefix":31,"exclusions":null,
            "staticAllocations":[{"nodeName":"a","prefix":"172.16.0.0/31"}]},"status":{"allocations":null}}"#;
        for (text, count) in [
            (pool("r", row), 1),
            (format!("---\n{}---\n{}---\n", pool("r", row), pool("s", row)), 2),
            (json.to_owned(), 1),
            (format!("[{json}]"), 1),
            (format!(r#"{{"kind":"List","apiVersion":"v1","items":[{json}]}}"#), 1),
            (format!("kind: List\nitems:\n- {}", pool("r", row).replace('\n', "\n  ")), 1),
        ] {
            assert_eq!(plan_of(&text, &Nodes::All).unwrap().lines.len(), count, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_place() {
        let row = "{nodeName: a, prefix: 172.16.0.0/31}";
        let good = pool("r", row);
        for (text, told) in [
            (String::new(), "no CIDRPool in it"),
            ("x".to_owned(), "is no CIDRPool"),
            ("{".to_owned(), "JSON: EOF"),
            ("a: [".to_owned(), "YAML"),
            (good.replace("CIDRPool", "IPPool"), "kind \"IPPool\""),
            (good.replace("v1alpha1", "v2"), "apiVersion: nv-ipam.nvidia.com/v2"),
            (good.replace("name: r", "name: ../r"), "metadata.name"),
            (good.replace("name: r", "x: r"), "pools:3: metadata.name: is missing"),
            (good.replace("31,", "31, spare: 1,"), "CIDRPool r: spec.spare: unknown field"),
            (good.replace("prefix: 172", "prefix: [172"), "YAML"),
            (
                good.replace("nodeName: a", "nodeName: [a]"),
                "spec.staticAllocations[0].nodeName: invalid type",
            ),
            (good.replace("172.16.0.0/31", "172.16.0.1/31"), "CIDRPool r: spec.staticAllocations[0].prefix"),
            (format!("{good}---\n{good}"), "pools:8: CIDRPool r: metadata.name: this pool is there twice"),
            (format!("{good}kind: CIDRPool\n"), "the key \"kind\" stands twice"),
            (pool("r", ""), "kubectl get cidrpool r"),
        ] {
            let error = plan_of(&text, &Nodes::All).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains("/pools:"), "{told}: {error}");
        }
        assert!(plan_of(&good, &Nodes::One("A.example".into())).unwrap_err().to_string().contains("with a?"));
    }
}
