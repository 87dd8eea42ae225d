//! node.json of this node, made of the cluster's ConfigMap.
//!
//! The ConfigMap has a node.json for each class of machines, because the PCI addresses of the NICs
//! differ between server models. The key is `node.CLASS.json`, and `node.json` for nodes without
//! the label that names their class.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rail_cni::node::Node;
use serde_json::{Map, Value};

use crate::held::Held;
use crate::host::Host;

/// The directory of node.json on the host.
pub const DIRECTORY: &str = "/etc/rail-cni";
/// The name of the file.
pub const NAME: &str = "node.json";
/// The key of the ConfigMap that says which cluster it is for.
const CLUSTER: &str = "cluster";

/// The directories of the plugins' state on this host.
#[derive(Debug, PartialEq, Eq)]
pub struct Paths {
    /// Records, leases, and the lines about calls.
    pub run_dir: PathBuf,
    /// Allocations.
    pub store_dir: PathBuf,
    /// The name of the node in the store.
    pub node: Option<String>,
}

impl Paths {
    /// The paths of the host's node.json; those of a node without one if it cannot be parsed.
    pub fn of(host: &Host) -> Result<Paths> {
        Ok(Paths::known(host)?.unwrap_or_else(|| Paths::from(Node::default())))
    }

    /// The paths of the host's node.json, if there is one that can be parsed.
    pub fn known(host: &Host) -> Result<Option<Paths>> {
        let text = host.read(&Path::new(DIRECTORY).join(NAME))?;
        let node = text.and_then(|text| Node::parse(Path::new(NAME), text.as_bytes()).ok());
        Ok(node.map(Paths::from))
    }
}

/// Whether the host's node.json asks for VFs. One that cannot be parsed asks for nothing.
pub fn asks_for_vfs(host: &Host) -> bool {
    let text = host.read(&Path::new(DIRECTORY).join(NAME)).ok().flatten();
    let node = text.and_then(|text| Node::parse(Path::new(NAME), text.as_bytes()).ok());
    node.is_some_and(|node| node.has_vfs_to_make())
}

impl From<Node> for Paths {
    fn from(node: Node) -> Paths {
        Paths {
            node: rail_cni::pool::node_name(&node).ok(),
            run_dir: node.run_dir,
            store_dir: node.store_dir,
        }
    }
}

/// Fails if the ConfigMap says that it is for another cluster. `uid` is that of the namespace
/// kube-system, which no other cluster has; `None` if it is not known yet.
pub fn check_cluster(data: &BTreeMap<String, String>, uid: Option<&str>) -> Result<()> {
    let Some(meant) = data
        .get(CLUSTER)
        .map(|meant| meant.trim())
        .filter(|meant| !meant.is_empty())
    else {
        return Ok(());
    };
    match uid {
        Some(uid) if uid == meant => Ok(()),
        Some(uid) => bail!(
            "it is for the cluster {meant:?}, but this is {uid:?} (the UID of the namespace kube-system): correct its key \
             `cluster`, or apply the ConfigMap of this cluster"
        ),
        None => bail!(
            "it is not known yet whether this is the cluster {meant:?}, for the API server did not answer"
        ),
    }
}

/// The node.json for a node of this class, with the node's name in it, and its paths.
pub fn render(
    data: &BTreeMap<String, String>,
    class: Option<&str>,
    node_name: &str,
) -> Result<(String, Paths)> {
    let key = class.map_or_else(|| NAME.to_owned(), |class| format!("node.{class}.json"));
    let Some(text) = data.get(&key) else {
        let known: Vec<_> = data
            .keys()
            .filter(|key| key.starts_with("node.") && key.ends_with("json"))
            .collect();
        match class {
            Some(class) => {
                bail!("it has no key {key:?} for nodes of the class {class:?}, only {known:?}")
            }
            None => bail!(
                "it has no key {key:?} for nodes without a class, only {known:?}: label this node with its class"
            ),
        }
    };
    let mut object: Map<String, Value> =
        serde_json::from_str(text).with_context(|| format!("key {key:?}"))?;
    match object.get("nodeName") {
        Some(name) if name == node_name => (),
        Some(name) => bail!(
            "key {key:?}: nodeName {name} is not this node's name {node_name:?}: leave nodeName out, and each node gets its own"
        ),
        None => {
            object.insert("nodeName".to_owned(), node_name.into());
        }
    }
    let text = format!("{:#}\n", Value::Object(object));
    let node = Node::parse(Path::new(&key), text.as_bytes())?;
    Ok((text, Paths::from(node)))
}

/// Fails if pods of this node have rails, and the plugins would have their state elsewhere, or
/// addresses of another node. Elsewhere the DEL of a pod would find no record, and its address would
/// be given again; as another node, the plan may give the addresses of these pods to a third one.
pub fn check_paths(host: &Host, new: &Paths) -> Result<()> {
    let old = Paths::of(host)?;
    // A directory that cannot be opened counts as empty.
    let held = Held::of(host, &old.run_dir).unwrap_or_default();
    let Some(held) = held.shown() else {
        return Ok(());
    };
    if let (Some(before), Some(now)) = (&old.node, &new.node)
        && before != now
    {
        bail!(
            "its nodeName {now} is another name than {before}, by which pods of this node have addresses ({held} in \
             {}): drain the node first; `railctl leases` shows what remains",
            old.run_dir.display()
        );
    }
    let is_elsewhere = |old: &Path, new: &Path| {
        // A directory that cannot be opened counts as empty.
        let open = |path| host.dir(path).ok().flatten();
        old != new && open(old).is_some_and(|old| open(new).is_none_or(|new| !new.is_same(&old)))
    };
    for (key, old_dir, new_dir) in [
        ("runDir", &old.run_dir, &new.run_dir),
        ("storeDir", &old.store_dir, &new.store_dir),
    ] {
        if is_elsewhere(old_dir, new_dir) {
            bail!(
                "its {key} {} is another directory than {}, and pods of this node would lose their \
                    rails ({held} in {}): \
                 drain the node first; `railctl status` and `railctl leases` show what remains",
                new_dir.display(),
                old_dir.display(),
                old.run_dir.display()
            );
        }
    }
    Ok(())
}

/// Whether the host has no node.json, whoever would have written it.
pub fn is_missing(host: &Host) -> bool {
    matches!(host.read(&Path::new(DIRECTORY).join(NAME)), Ok(None))
}

/// Writes node.json on the host, unless it has this content. Returns whether it was written.
pub fn write(host: &Host, text: &str) -> Result<bool> {
    let dir = Path::new(DIRECTORY);
    if host.read(&dir.join(NAME))?.as_deref() == Some(text) {
        return Ok(false);
    }
    host.make_dir(dir, 0o755)?.replace(NAME, text.as_bytes())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    const RAILS: &str = r#"{"rails": [{"rail": 0, "pf": "0000:1a:00.0"}]}"#;

    #[test]
    fn the_class_of_a_node_selects_its_file_and_its_name_is_filled_in() {
        let data = data(&[
            ("node.json", "{}"),
            ("node.dgx.json", RAILS),
            ("fabric.yaml", ""),
        ]);
        let of = |class| render(&data, class, "worker-1").unwrap().0;
        assert!(
            of(Some("dgx")).contains("0000:1a:00.0")
                && of(Some("dgx")).contains("\"nodeName\": \"worker-1\"")
        );
        assert!(!of(None).contains("rails"));
        let error = format!("{:#}", render(&data, Some("hgx"), "worker-1").unwrap_err());
        assert!(
            error.contains("\"node.hgx.json\"") && error.contains("node.dgx.json"),
            "{error}"
        );
    }

    #[test]
    fn what_the_plugins_would_refuse_is_refused() {
        for (text, told) in [
            ("{", "EOF"),
            (r#"{"rail": []}"#, "rails?"),
            (
                r#"{"rails": [{"rail": 0, "pf": "a"}, {"rail": 0, "pf": "a"}]}"#,
                "rail",
            ),
            (r#"{"nodeName": "worker-2"}"#, "\"worker-1\""),
            (r#"{"runDir": "run"}"#, "runDir"),
        ] {
            let error = format!(
                "{:#}",
                render(&data(&[("node.json", text)]), None, "worker-1").unwrap_err()
            );
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn the_config_map_of_another_cluster_is_refused() {
        let mine = data(&[("cluster", "1234\n")]);
        assert!(check_cluster(&mine, Some("1234")).is_ok());
        assert!(check_cluster(&data(&[]), None).is_ok());
        let error = check_cluster(&mine, Some("5678")).unwrap_err().to_string();
        assert!(
            error.contains("\"1234\"") && error.contains("\"5678\""),
            "{error}"
        );
        assert!(check_cluster(&mine, None).is_err());
    }
}
