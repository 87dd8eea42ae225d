//! `rail-ipam import`: CIDRPool manifests, YAML or JSON, into the store.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::fcntl::OFlag;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::change::{self, Import, Nodes};
use super::cidrpool::{self, Plan, Row, Spec};
use super::is_name;
use crate::fail;
use crate::node::Node;

/// Much more than a CIDRPool can have: etcd ends near 1.5 MB.
const MAX_FILE: u64 = 64 << 20;
/// Much more than a manifest nests, texts in it included.
const MAX_BRACKETS: usize = 1000;

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
        let mut manifests = Vec::new();
        match read(file).and_then(|text| documents(&text)) {
            Ok(documents) => {
                let several = documents.len() > 1;
                for (index, document) in documents.into_iter().enumerate() {
                    let document_place = format!("{file}: document {}", index + 1);
                    let place = if several { &document_place } else { file };
                    pools_in(document, place, &mut manifests, &mut faults);
                }
                if manifests.is_empty() && faults.is_empty() {
                    faults.push(format!("{file}: no CIDRPool in it"));
                }
            }
            Err(error) => faults.push(format!("{file}: {error:#}")),
        }
        for Manifest { place, name, spec, status } in manifests {
            if spec.is_dynamic() && status.is_empty() {
                faults.push(format!(
                    "{place}: it has no staticAllocations, so nv-ipam chooses the prefixes as nodes come: \
                     import what it chose, `kubectl get cidrpool {name} -o yaml` shows it in status.allocations"
                ));
                continue;
            }
            match spec.plan("spec", &status) {
                Ok(plan) => {
                    warnings.extend(plan.warnings.iter().map(|warning| format!("{place}: {warning}")));
                    if pools.insert(name, plan).is_some() {
                        faults.push(format!("{place}: this pool is there twice"));
                    }
                }
                Err(more) => faults.extend(more.into_iter().map(|fault| format!("{place}: {fault}"))),
            }
        }
    }
    if !faults.is_empty() {
        fail!(InvalidConfig, "nothing was imported: {}", cidrpool::some_of(&faults));
    }
    Ok(pools)
}

fn read(file: &str) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    if file == "-" {
        io::stdin().lock().take(MAX_FILE + 1).read_to_end(&mut text)?;
    } else {
        // A FIFO would let us wait for a writer for ever.
        let flags = OFlag::O_NONBLOCK.bits();
        let opened = File::options().read(true).custom_flags(flags).open(Path::new(file))?;
        if !opened.metadata()?.is_file() {
            fail!(InvalidConfig, "not a regular file");
        }
        opened.take(MAX_FILE + 1).read_to_end(&mut text)?;
    }
    if text.len() as u64 > MAX_FILE {
        fail!(InvalidConfig, "larger than {} MB", MAX_FILE >> 20);
    }
    Ok(text)
}

/// The documents of a file: one of JSON, or any number of YAML.
fn documents(text: &[u8]) -> Result<Vec<Value>> {
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    if matches!(first, Some(b'{' | b'[')) {
        let mut json = serde_json::Deserializer::from_slice(text);
        let value = (&mut Budget::of(text)).deserialize(&mut json).context("JSON")?;
        json.end().context("JSON")?;
        return Ok(vec![value]);
    }
    if brackets(text) > MAX_BRACKETS {
        fail!(InvalidConfig, "YAML: more than {MAX_BRACKETS} brackets inside each other");
    }
    let mut documents = Vec::new();
    for document in yaml_serde::Deserializer::from_slice(text) {
        match (&mut Budget::of(text)).deserialize(document).context("YAML")? {
            Value::Null => (),
            value => documents.push(value),
        }
    }
    Ok(documents)
}

/// How deep brackets stand inside each other, at most. libyaml's time grows with the square of it: some
/// millions of `[` would keep it busy for hours.
fn brackets(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => (),
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// A CIDRPool, parsed.
struct Manifest {
    /// File, document, name.
    place: String,
    name: String,
    spec: Spec,
    status: Vec<Row>,
}

/// Finds the CIDRPools in a document: itself, a list, or what `kubectl get -o yaml` makes of several.
fn pools_in(value: Value, place: &str, found: &mut Vec<Manifest>, faults: &mut Vec<String>) {
    let mut object = match value {
        Value::Array(list) => {
            for (index, value) in list.into_iter().enumerate() {
                pools_in(value, &format!("{place}: [{index}]"), found, faults);
            }
            return;
        }
        Value::Object(object) => object,
        other => {
            let shown: String = other.to_string().chars().take(40).collect();
            faults.push(format!("{place}: {shown} is no CIDRPool"));
            return;
        }
    };
    match object.get("kind").and_then(Value::as_str) {
        Some("List" | "CIDRPoolList") => match object.remove("items") {
            Some(Value::Array(items)) => {
                for (index, value) in items.into_iter().enumerate() {
                    pools_in(value, &format!("{place}: items[{index}]"), found, faults);
                }
            }
            _ => faults.push(format!("{place}: items: not a list")),
        },
        Some("CIDRPool") => match manifest(object, place) {
            Ok(manifest) => found.push(manifest),
            Err(fault) => faults.push(fault),
        },
        Some(other) => faults.push(format!("{place}: kind {other:?} is no CIDRPool")),
        None => faults.push(format!("{place}: no kind: CIDRPool")),
    }
}

fn manifest(mut object: Map<String, Value>, place: &str) -> Result<Manifest, String> {
    const API_VERSION: &str = "nv-ipam.nvidia.com/v1alpha1";
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
    let name = match name {
        Some(name) if is_name(name) => name.to_owned(),
        Some(name) => return Err(format!("{place}: metadata.name: {name:?} is no name of a pool")),
        None => return Err(format!("{place}: metadata.name is missing")),
    };
    let place = format!("{place}: CIDRPool {name}");
    match object.get("apiVersion").and_then(Value::as_str) {
        Some(API_VERSION) => (),
        other => {
            return Err(format!("{place}: apiVersion: {} is not {API_VERSION}", other.unwrap_or("none")));
        }
    }
    let wrong = |path: &str, error: serde_path_to_error::Error<serde_json::Error>| {
        format!("{place}: {path}.{}: {}", error.path(), error.inner())
    };
    let spec = object.remove("spec").unwrap_or_default();
    let spec: Spec = serde_path_to_error::deserialize(spec).map_err(|error| wrong("spec", error))?;
    let status = object.get_mut("status").and_then(|status| status.get_mut("allocations"));
    let status = status.map_or(Value::Null, Value::take);
    let status: Option<Vec<Row>> =
        serde_path_to_error::deserialize(status).map_err(|error| wrong("status.allocations", error))?;
    Ok(Manifest { place, name, spec, status: status.unwrap_or_default() })
}

/// Builds a value while it counts: a text without aliases cannot give more than it has bytes, but a page of
/// YAML aliases can fill the memory. Keys that stand twice are refused, of which parsers keep either.
struct Budget {
    left: usize,
}

impl Budget {
    fn of(text: &[u8]) -> Budget {
        // An escape can be shorter than what it stands for.
        Budget { left: text.len().saturating_mul(4).saturating_add(1024) }
    }

    fn spend<E: serde::de::Error>(&mut self, size: usize) -> Result<(), E> {
        let left = self.left.checked_sub(size.saturating_add(1));
        self.left = left.ok_or_else(|| E::custom("aliases make more of this file than it holds"))?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &mut Budget {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Budget {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain YAML or JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.spend(value.len())?;
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = from.next_element_seed(&mut *self)? {
            self.spend(0)?;
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            self.spend(key.len())?;
            let value = from.next_value_seed(&mut *self)?;
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} stands twice")));
            }
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::{store, write};
    use proptest::prelude::*;

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
        let ours = store::load(&node, "worker-gpu-62", "rail-0").unwrap();
        assert_eq!(ours.prefix.to_string(), "172.16.1.60/31");
        assert_eq!(ours.gateway.unwrap().to_string(), "172.16.1.61");
        for node_name in ["worker-gpu-0", "worker-gpu-1", "worker-gpu-62", "worker-gpu-63"] {
            for rail in 0..8 {
                let ours = store::load(&node, node_name, &format!("rail-{rail}")).unwrap();
                let address = ours.first_free(|_| false).unwrap().to_string();
                assert!(address.starts_with(&format!("172.{}.", 16 + 2 * rail)), "{address}");
                assert_eq!(ours.routes[0].dst.to_string(), format!("172.{}.0.0/15", 16 + 2 * rail));
                assert_eq!(ours.routes[1].dst.to_string(), "172.16.0.0/12");
            }
        }
        let error = store::load(&node, "Worker-GPU-62.example.com", "rail-0").unwrap_err().to_string();
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
        assert!(store::find(&node, "b", "r").unwrap().is_none());
        assert!(store::find(&node, "a", "r").unwrap().is_some());
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
            (good.replace("name: r", "x: r"), "metadata.name is missing"),
            (good.replace("31,", "31, spare: 1,"), "CIDRPool r: spec.spare: unknown field"),
            (good.replace("prefix: 172", "prefix: [172"), "YAML"),
            (
                good.replace("nodeName: a", "nodeName: [a]"),
                "spec.staticAllocations[0].nodeName: invalid type",
            ),
            (good.replace("172.16.0.0/31", "172.16.0.1/31"), "CIDRPool r: spec.staticAllocations[0].prefix"),
            (format!("{good}---\n{good}"), "document 2: CIDRPool r: this pool is there twice"),
            (format!("{good}kind: CIDRPool\n"), "the key \"kind\" stands twice"),
            (pool("r", ""), "kubectl get cidrpool r"),
        ] {
            let error = plan_of(&text, &Nodes::All).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains("/pools: "), "{told}: {error}");
        }
        assert!(plan_of(&good, &Nodes::One("A.example".into())).unwrap_err().to_string().contains("with a?"));
    }

    #[test]
    fn aliases_and_depth_do_no_harm() {
        let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let alias = vec![format!("*a{}", level - 1); 10].join(",");
            laughs.push_str(&format!("a{level}: &a{level} [{alias}]\n"));
        }
        let wide = format!("a: &a [{}]\nb: [{}]\n", "x,".repeat(3000), "*a,".repeat(3000));
        for text in [
            laughs,
            wide,
            "[".repeat(100_000),
            format!("a: {}", "[".repeat(900)),
            format!("a: {}", "[".repeat(5_000_000)),
        ] {
            assert!(documents(text.as_bytes()).is_err(), "{}", &text[..20]);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[-\\[\\]{}:,&*!|>'\"#%@ a-c0-9\n]{0,60}", bytes: Vec<u8>) {
            let _ = documents(text.as_bytes());
            let _ = documents(&bytes);
        }
    }
}
