//! What the suite has to know of a plugin.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::beside::Ready;
use crate::sandbox::{self, DIR};

/// All versions of the specification.
pub const VERSIONS: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];

/// All verbs.
pub const VERBS: [&str; 6] = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"];

/// What kind of plugin it is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It makes an interface in the pod, or moves one there.
    Main,
    /// It changes what the plugin before it in the chain made.
    Meta,
    /// It assigns addresses.
    Ipam,
}

/// A plugin. In its texts `{N}` is the number of the attachment, which begins at 0, `{CONTAINER}`
/// the name of its pod's namespace and `{NETNS}` the path of it, `{IFNAME}` the interface, and
/// `{DIR}` a directory that exists for one check. `conf` and `prevResult` also have `{MAC}`, the
/// address of the interface before ADD; `files`, `stays` and `beside` only `{DIR}`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Description {
    /// What the report calls it; by default the type of the configuration.
    #[serde(default)]
    pub name: String,
    /// What kind of plugin it is.
    pub kind: Kind,
    /// The name of the executable, or its path; by default the type of the configuration.
    #[serde(default)]
    pub program: String,
    /// The network configuration. The suite adds `name` and `cniVersion`.
    pub conf: Value,
    /// Arguments of ip(8) that make what the plugin needs on the host: once, or for each attachment
    /// if they have `{N}`.
    #[serde(default)]
    pub host: Vec<String>,
    /// Arguments of ip(8) that make what the plugin needs in the pod, before ADD.
    #[serde(default)]
    pub pod: Vec<String>,
    /// For a plugin that is not the first of its chain: the result of the one before it.
    #[serde(default)]
    pub prev_result: Option<Value>,
    /// Can a plugin of kind `main` also be behind another one?
    #[serde(default)]
    pub chained: bool,
    /// Files that the plugin reads, by path: a text, or JSON.
    #[serde(default)]
    pub files: BTreeMap<String, Value>,
    /// Variables of its environment, beside those of CNI.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The verbs that it claims.
    #[serde(default = "all_verbs")]
    pub verbs: Vec<String>,
    /// The versions that it claims; what VERSION tells, if none is named.
    #[serde(default)]
    pub cni_versions: Vec<String>,
    /// Are they those that VERSION tells?
    #[serde(skip)]
    are_versions_asked: bool,
    /// Files, links and rules of the firewall that may stay after a DEL: names, or beginnings that
    /// end in `*`.
    #[serde(default)]
    pub stays: Vec<String>,
    /// Arguments of ip(8) that succeed where the plugin can run at all: a kind of device that a
    /// kernel may lack.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Arguments of ip(8) that take the device of an attachment away from the host for good.
    #[serde(default)]
    pub unplug: Option<String>,
    /// A program that runs beside the plugin while a check does.
    #[serde(default)]
    pub beside: Option<Beside>,
    /// Where in `conf` the plugin is named that it calls, as a JSON pointer to an object that has a
    /// `type`. By default `/ipam` for a main plugin that has one there.
    #[serde(default)]
    pub delegate: Option<String>,
    /// Does it keep no state, as an IPAM plugin that gives what its configuration says?
    #[serde(default)]
    pub stateless: bool,
    /// Checks that it is known to fail, because its maintainers chose it or an issue of theirs says
    /// it: with the reason, or the address of the issue.
    #[serde(default)]
    pub known: BTreeMap<String, String>,
}

/// A program that a plugin asks, such as an API server.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// The program and its arguments: a path, or a name in CNI_PATH or PATH. `cni-conformance` is
    /// this one.
    pub command: Vec<String>,
    /// When it is ready: it listens to this address, or this path is there.
    pub ready: String,
}

impl Beside {
    /// When it is ready.
    pub fn readiness(&self) -> Result<Ready, String> {
        Ready::of(&self.ready.replace("{DIR}", DIR)).map_err(|why| format!("beside.ready: {why}"))
    }
}

fn all_verbs() -> Vec<String> {
    VERBS.map(str::to_owned).into()
}

impl Description {
    /// Reads a description, and behind it each of its `variants`: an object that has, by name, what
    /// is other there, as a JSON merge patch. The error says what is wrong.
    pub fn read(path: &Path) -> Result<Vec<Description>, String> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read(path).map_err(|error| told(&error))?;
        let mut whole: Value = serde_json::from_slice(&text).map_err(|error| told(&error))?;
        let variants = whole
            .as_object_mut()
            .and_then(|keys| keys.remove("variants"));
        let mut all = vec![Description::of(whole.clone()).map_err(|error| told(&error))?];
        let Value::Object(variants) = variants.unwrap_or(json!({})) else {
            return Err(told(&"variants: expected an object"));
        };
        for (name, changes) in variants {
            let variant = Description::of(patched(&whole, &changes));
            let mut variant =
                variant.map_err(|error| told(&format!("variants: {name}: {error}")))?;
            variant.name = format!("{}/{name}", variant.name);
            all.push(variant);
        }
        Ok(all)
    }

    fn of(text: Value) -> Result<Description, String> {
        let mut read: Description =
            serde_json::from_value(text).map_err(|error| error.to_string())?;
        read.complete()?;
        Ok(read)
    }

    /// What can be said of a plugin of which there is only a configuration: it is asked for no
    /// version above that of it.
    pub fn of_conf(conf: Value, kind: Kind) -> Result<Description, String> {
        let mut description: Description =
            serde_json::from_value(json!({"kind": "main", "conf": conf}))
                .map_err(|error| format!("the configuration: {error}"))?;
        description.kind = kind;
        description.complete()?;
        if let Some(newest) = description.conf["cniVersion"].as_str() {
            let Some(at) = VERSIONS.iter().position(|known| *known == newest) else {
                return Err(format!(
                    "cniVersion: expected one of {}",
                    VERSIONS.join(", ")
                ));
            };
            description.cni_versions.truncate(at + 1);
        }
        Ok(description)
    }

    fn complete(&mut self) -> Result<(), String> {
        let section = if self.kind == Kind::Ipam {
            &self.conf["ipam"]
        } else {
            &self.conf
        };
        let known = section["type"].as_str().unwrap_or_default().to_owned();
        if known.is_empty() {
            let key = if self.kind == Kind::Ipam {
                "conf.ipam.type"
            } else {
                "conf.type"
            };
            return Err(format!("{key} must be the name of the plugin"));
        }
        for text in [&mut self.name, &mut self.program] {
            if text.is_empty() {
                text.clone_from(&known);
            }
        }
        if self.kind == Kind::Ipam && self.conf["type"].is_null() {
            self.conf["type"] = json!("conformance");
        }
        for (claimed, known) in [(&self.verbs, &VERBS[..]), (&self.cni_versions, &VERSIONS)] {
            if let Some(wrong) = claimed.iter().find(|one| !known.contains(&one.as_str())) {
                return Err(format!("{wrong}: expected some of {}", known.join(", ")));
            }
        }
        if let Some(beside) = &self.beside {
            if beside.command.is_empty() {
                return Err("beside.command: expected a program and its arguments".to_owned());
            }
            beside.readiness()?;
        }
        // As root, any other file would be one of the host.
        if let Some(path) = self
            .files
            .keys()
            .find(|path| !sandbox::is_hidden(path.replace("{DIR}", DIR).as_ref()))
        {
            let hidden: Vec<_> = sandbox::hidden()
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            return Err(format!(
                "files: {path}: expected a path without .. below {}",
                hidden.join(", ")
            ));
        }
        if self.delegate.is_some() && !self.delegates() {
            return Err(
                "delegate: expected a JSON pointer to an object of conf that has a type".to_owned(),
            );
        }
        self.are_versions_asked = self.cni_versions.is_empty();
        if self.are_versions_asked {
            self.cni_versions = VERSIONS.map(str::to_owned).into();
        }
        Ok(())
    }

    /// Takes the versions that VERSION tells for those that it claims, unless it names them itself.
    /// If none of them is known, VERSION could not be asked, and all of them are.
    pub fn serves(&mut self, told: &[String]) {
        let both: Vec<_> = self
            .cni_versions
            .iter()
            .filter(|known| told.contains(known))
            .cloned()
            .collect();
        if self.are_versions_asked && !both.is_empty() {
            self.cni_versions = both;
        }
    }

    /// The newest version that it claims.
    pub fn newest(&self) -> &str {
        VERSIONS
            .into_iter()
            .rfind(|known| self.claims_version(known))
            .unwrap_or("1.1.0")
    }

    /// Does it claim this version?
    pub fn claims_version(&self, version: &str) -> bool {
        self.cni_versions.iter().any(|one| one == version)
    }

    /// Why it cannot be asked for a result of this version, if so.
    pub fn lacks_version(&self, version: &str) -> Option<String> {
        if !self.claims_version(version) {
            return Some(format!("it does not claim {version}"));
        }
        // libcni, which most plugins are made with, has no result without an address there.
        let needs_address = ["0.1.0", "0.2.0"].contains(&version);
        let may_lack_address = self.kind == Kind::Main && !self.calls_ipam();
        (needs_address && may_lack_address)
            .then(|| format!("a result of {version} has addresses, and it calls no IPAM plugin"))
    }

    /// Does it claim this verb, in the newest version that it claims?
    pub fn claims(&self, verb: &str) -> bool {
        let since = match verb {
            "CHECK" => 4,
            "GC" | "STATUS" => 6,
            _ => 0,
        };
        self.verbs.iter().any(|one| one == verb)
            && VERSIONS
                .iter()
                .position(|version| *version == self.newest())
                .is_some_and(|at| at >= since)
    }

    /// Those of `stays` that hide everything, or all of a directory in which plugins keep their
    /// state.
    pub fn broad_stays(&self) -> impl Iterator<Item = &str> {
        let roots = [
            "/",
            "/run/",
            "/var/",
            "/var/lib/",
            "/var/lib/cni/",
            "/dev/",
            "/dev/shm/",
            "{DIR}/",
        ];
        let is_broad = move |begin: &str| {
            begin.is_empty()
                || roots
                    .iter()
                    .any(|root| begin == *root || begin == root.trim_end_matches('/'))
        };
        self.stays
            .iter()
            .map(String::as_str)
            .filter(move |pattern| pattern.strip_suffix('*').is_some_and(is_broad))
    }

    /// Where in `conf` the plugin is named that it calls.
    pub fn delegate_at(&self) -> String {
        self.delegate.clone().unwrap_or_else(|| "/ipam".to_owned())
    }

    /// Does it call another plugin?
    pub fn delegates(&self) -> bool {
        let named = self.conf.pointer(&self.delegate_at());
        let is_named = named.is_some_and(|section| section["type"].is_string());
        is_named && (self.kind == Kind::Main || self.delegate.is_some())
    }

    /// Is the other plugin one that assigns addresses?
    pub fn calls_ipam(&self) -> bool {
        self.delegates() && self.delegate_at().rsplit('/').next() == Some("ipam")
    }
}

/// `whole` after a JSON merge patch: a key that is `null` in `changes` is none.
fn patched(whole: &Value, changes: &Value) -> Value {
    let Value::Object(changes) = changes else {
        return changes.clone();
    };
    let mut keys = whole.as_object().cloned().unwrap_or_default();
    for (key, change) in changes {
        let new = patched(keys.get(key).unwrap_or(&Value::Null), change);
        if new.is_null() {
            keys.remove(key)
        } else {
            keys.insert(key.clone(), new)
        };
    }
    Value::Object(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_the_description_with_its_changes() {
        let file = std::env::temp_dir().join(format!("variants-{}.json", std::process::id()));
        let read = |variants: Value| {
            let stays = ["a", "b"];
            let text = json!({"kind": "main", "conf": {"type": "x", "mtu": 9, "ipam": {"type": "y"}}, "stays": stays, "variants": variants});
            fs::write(&file, text.to_string()).unwrap();
            Description::read(&file)
        };
        let all = read(
            json!({"six": {"conf": {"mtu": null, "ipam": {"range": "::/64"}}, "stays": ["c"]}, "same": {}}),
        );
        let all = all.unwrap();
        let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["x", "x/same", "x/six"]);
        assert_eq!(
            all[2].conf,
            json!({"type": "x", "ipam": {"type": "y", "range": "::/64"}})
        );
        assert_eq!(
            (all[2].stays.len(), &all[1].conf, &all[1].stays),
            (1, &all[0].conf, &all[0].stays)
        );
        for (wrong, told) in [
            (
                json!({"six": {"stay": []}}),
                "variants: six: unknown field `stay`",
            ),
            (
                json!({"six": {"variants": {}}}),
                "variants: six: unknown field `variants`",
            ),
            (
                json!({"six": {"conf": {"type": null}}}),
                "variants: six: conf.type",
            ),
            (json!({"six": 6}), "variants: six: "),
            (json!(["six"]), "variants: expected an object"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_configuration_claims_versions_up_to_its_own() {
        let of = |version: &str| {
            Description::of_conf(json!({"type": "x", "cniVersion": version}), Kind::Main)
        };
        assert_eq!(of("0.3.1").unwrap().cni_versions, VERSIONS[..4]);
        assert!(!of("0.4.0").unwrap().claims("GC") && of("0.4.0").unwrap().claims("CHECK"));
        assert_eq!(
            of("0.3.2").unwrap_err(),
            format!("cniVersion: expected one of {}", VERSIONS.join(", "))
        );
        assert_eq!(
            Description::of_conf(json!({"type": "x"}), Kind::Main)
                .unwrap()
                .cni_versions,
            VERSIONS
        );
    }

    #[test]
    fn the_versions_are_those_that_version_tells_up_to_that_of_the_configuration() {
        let told = ["0.3.0", "0.4.0", "1.1.0", "7.0.0"].map(str::to_owned);
        let served = |conf: Value, told: &[String]| {
            let mut description = Description::of_conf(conf, Kind::Main).unwrap();
            description.serves(told);
            description.cni_versions
        };
        assert_eq!(
            served(json!({"type": "x", "cniVersion": "1.0.0"}), &told),
            ["0.3.0", "0.4.0"]
        );
        assert_eq!(
            served(json!({"type": "x"}), &told),
            ["0.3.0", "0.4.0", "1.1.0"]
        );
        assert_eq!(served(json!({"type": "x"}), &[]), VERSIONS);
        let text = json!({"kind": "main", "conf": {"type": "x"}, "cniVersions": ["1.0.0"]});
        let mut named: Description = serde_json::from_value(text).unwrap();
        named.complete().unwrap();
        named.serves(&told);
        assert_eq!(named.cni_versions, ["1.0.0"]);
    }

    #[test]
    fn a_result_of_0_2_0_is_not_asked_of_a_plugin_without_addresses() {
        let of = |conf| Description::of_conf(conf, Kind::Main).unwrap();
        let without = of(json!({"type": "x"}));
        assert!(
            without.lacks_version("0.2.0").is_some() && without.lacks_version("0.3.0").is_none()
        );
        assert!(
            of(json!({"type": "x", "ipam": {"type": "y"}}))
                .lacks_version("0.2.0")
                .is_none()
        );
    }
}
