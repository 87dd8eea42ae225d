//! `rail-cni lint`: what is wrong with networks before a pod finds out. Reads NetworkAttachmentDefinitions and
//! CNI configurations; needs neither node.json nor root. What ADD would refuse is found by ADD's own parser.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::config::{self, NetConf};
use crate::cni::{Args, Attachment, Dns, Network, Route, VERSIONS, Version};
use crate::document::{self, Document, Fault, Part, Place};
use crate::ipam;
use crate::nearest::nearest;
use crate::node::Node;
use crate::output::{self, Output};

const OURS: &str = "rail-cni";
const OUR_IPAM: &str = "rail-ipam";
/// Plugins whose configurations are ours once `type` is changed.
const LIKE_OURS: [&str; 2] = ["sriov", "host-device"];
/// Plugins that people chain behind these, and what does their work here.
const IN_ONE: [(&str, &str); 3] = [
    ("tuning", "mtu, mac and sysctl are keys of rail-cni: only promisc, allmulti and txQLen need tuning"),
    ("sbr", "rail-cni makes rules and tables itself (routing), which sbr would move again: remove it"),
    (
        "rdma",
        "rail-cni moves RDMA devices itself (rdma), rdma-cni would refuse what is already there: remove it",
    ),
];
/// What a list has beside its plugins.
const LIST_KEYS: [&str; 7] =
    ["cniVersion", "cniVersions", "name", "plugins", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"];
/// Capabilities that other plugins serve (CONVENTIONS.md).
const OTHER_CAPABILITIES: [&str; 6] =
    ["portMappings", "ipRanges", "bandwidth", "dns", "aliases", "cgroupPath"];
const RESOURCE: &str = "k8s.v1.cni.cncf.io/resourceName";
const SELECTORS: [&str; 5] = ["deviceID", "pciBusID", "device", "hwaddr", "kernelpath"];
/// A device for configurations that leave it to the runtime. It is never looked at.
const SOME_DEVICE: &str = "0000:00:00.1";

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    /// ADD refuses it, or it cannot be meant.
    Error,
    /// It works, perhaps not as it was meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        })
    }
}

#[derive(Debug)]
struct Finding {
    severity: Severity,
    place: Place,
    /// Empty: of no network.
    network: String,
    message: String,
}

/// What a network says of itself that others must not say too.
#[derive(Debug)]
struct Rail {
    /// Of `rail`, or of what would have it.
    place: Place,
    network: String,
    /// Of the NAD, where it is one; else the network's again.
    name: String,
    cluster: String,
    namespace: String,
    rail: Option<u64>,
    pools: Vec<String>,
    resource: Option<String>,
}

/// All that was read, and what was found.
#[derive(Debug, Default)]
struct Lint {
    /// In the order that was given.
    files: Vec<String>,
    findings: Vec<Finding>,
    rails: Vec<Rail>,
    /// Where each network was first, by cluster, namespace and name.
    names: BTreeMap<[String; 3], Place>,
    networks: usize,
    others: usize,
}

/// Checks all files, and all that is in folders; says what was found.
pub fn lint(files: &[String], output: Output) -> Result<ExitCode> {
    let mut lint = Lint::default();
    for file in files {
        lint.path(file);
    }
    lint.finish();
    let Lint { findings, networks, others, .. } = &lint;
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let text = match output {
        Output::Json => {
            let findings: Vec<_> = findings.iter().map(Finding::json).collect();
            output::pretty(&json!({"networks": networks, "otherNetworks": others, "errors": errors,
                "warnings": warnings, "findings": findings}))
        }
        Output::Table => {
            let lines = findings.iter().map(|finding| output::printable(&finding.to_string()) + "\n");
            let some = |count, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
            let (networks, others) = (some(*networks, "network"), *others);
            let beside = if others == 0 { String::new() } else { format!(" ({others} of other plugins)") };
            let (errors, warnings) = (some(errors, "error"), some(warnings, "warning"));
            lines.collect::<String>() + &format!("{networks}{beside}: {errors}, {warnings}\n")
        }
    };
    output::print(&text)?;
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { severity, place, network, message } = self;
        write!(f, "{place}: {severity}: ")?;
        if !network.is_empty() {
            write!(f, "{network}: ")?;
        }
        f.write_str(message)
    }
}

impl Finding {
    fn json(&self) -> Value {
        let Finding { severity, place: Place { file, line, column }, network, message } = self;
        let known = |number: u32| (number != 0).then_some(number);
        let network = (!network.is_empty()).then_some(network);
        json!({"file": file, "line": known(*line), "column": known(*column), "severity": severity.to_string(),
            "network": network, "message": message})
    }
}

/// One network of a file.
struct Context<'a> {
    name: String,
    /// What the name is unique in: nothing for a NAD, which has a namespace; the folder of a file for a runtime.
    cluster: String,
    namespace: String,
    /// The NAD, where it is one.
    nad: Option<Part<'a>>,
    /// The device plugin's resource, by which Multus chooses a device.
    resource: Option<&'a str>,
    /// One of the plugins in a list.
    in_list: bool,
}

impl Rail {
    /// Names that may have the rail's number in them.
    fn names(&self, what: &str) -> impl Iterator<Item = &str> {
        let (name, resource) = match what {
            "network" => (Some(&self.name), None),
            "resource" => (None, self.resource.as_ref()),
            _ => (None, None),
        };
        let pools = self.pools.iter().filter(move |_| what == "pool");
        name.into_iter().chain(resource).chain(pools).map(String::as_str)
    }
}

impl Context<'_> {
    /// The name by which it is asked for.
    fn unique(&self) -> &str {
        self.nad.and_then(|nad| nad.text("metadata.name")).unwrap_or(&self.name)
    }
}

impl Lint {
    fn say(&mut self, severity: Severity, part: Part, network: &str, message: String) {
        // `vlanQoS needs a vlan …` is about vlanQoS, `sysctl: "a.b" is …` about that key of sysctl.
        let mut words = message.split(' ').map(|word| word.trim_matches([':', '"']));
        let (path, next) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let key = format!("{path}.{next}");
        let place = part.place(if part.get(&key).is_some() { &key } else { path });
        self.findings.push(Finding { severity, place, network: network.to_owned(), message });
    }

    fn error(&mut self, part: Part, network: &str, message: String) {
        self.say(Severity::Error, part, network, message);
    }

    fn warning(&mut self, part: Part, network: &str, message: String) {
        self.say(Severity::Warning, part, network, message);
    }

    fn fault(&mut self, network: &str, Fault { place, problem }: Fault) {
        let network = network.to_owned();
        self.findings.push(Finding { severity: Severity::Error, place, network, message: problem });
    }

    /// A file, or a folder that a runtime reads, such as /etc/cni/net.d.
    fn path(&mut self, path: &str) {
        if !Path::new(path).is_dir() {
            return self.file(path);
        }
        let fault = |problem| Fault { place: Place { file: path.to_owned(), ..Place::default() }, problem };
        let names = std::fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>());
        let mut names = match names {
            Ok(names) => names,
            Err(error) => return self.fault("", fault(error.to_string())),
        };
        let is_read = |end: &std::ffi::OsStr| end == "conf" || end == "conflist" || end == "json";
        names.retain(|name| name.extension().is_some_and(is_read));
        names.sort();
        if names.is_empty() {
            self.fault("", fault("no .conf, .conflist or .json in this folder".to_owned()));
        }
        for name in names {
            self.file(&name.display().to_string());
        }
    }

    fn file(&mut self, file: &str) {
        self.files.push(file.to_owned());
        let documents = match document::read(file) {
            Ok(documents) => documents,
            Err(fault) => return self.fault("", fault),
        };
        let before = self.findings.len() + self.networks + self.others;
        for document in &documents {
            self.value(document.root(), document);
        }
        if self.findings.len() + self.networks + self.others == before {
            let place = Place { file: file.to_owned(), ..Place::default() };
            let problem = "no NetworkAttachmentDefinition and no CNI configuration in it".to_owned();
            self.fault("", Fault { place, problem });
        }
    }

    /// A network, or a list of them as kubectl prints it. Pods and whatever else a manifest has are passed over.
    fn value(&mut self, part: Part, document: &Document) {
        let has = |key| part.get(key).is_some();
        match (part.value, part.text("kind")) {
            (Value::Array(_), _) => part.items().for_each(|item| self.value(item, document)),
            (_, Some("List" | "NetworkAttachmentDefinitionList")) => {
                part.get("items").into_iter().for_each(|items| self.value(items, document));
            }
            (_, Some("NetworkAttachmentDefinition")) => self.nad(part),
            (_, Some(_)) => (),
            (_, None) if has("type") || has("plugins") || has("cniVersion") => {
                if !document.is_json {
                    self.error(part, "", "this is YAML: a container runtime reads JSON only".to_owned());
                }
                self.network(part, None);
            }
            (_, None) => self.error(
                part,
                "",
                "neither a NetworkAttachmentDefinition (kind) nor a CNI configuration (type, plugins)"
                    .to_owned(),
            ),
        }
    }

    fn nad(&mut self, nad: Part) {
        let name = nad.text("metadata.name").unwrap_or_default();
        if name.is_empty() {
            self.error(nad, "", "metadata.name: is missing".to_owned());
        }
        if nad.text("apiVersion") != Some("k8s.cni.cncf.io/v1") {
            self.error(nad, name, "apiVersion: is not k8s.cni.cncf.io/v1".to_owned());
        }
        if let Some(spec) = nad.get("spec") {
            self.keys(spec, name, "spec.", |key| key == "config", &["config"]);
        }
        match nad.get("spec.config") {
            Some(config) if config.value.is_string() => match config.json() {
                Ok(document) => self.network(document.root(), Some(nad)),
                Err(Fault { place, problem }) => {
                    self.fault(name, Fault { place, problem: format!("spec.config: {problem}") });
                }
            },
            Some(_) => self.error(
                nad,
                name,
                "spec.config: is no text: write the JSON as a block, below `config: |`".to_owned(),
            ),
            None => self.warning(
                nad,
                name,
                "spec: no config: Multus takes the file of this name in /etc/cni/net.d of each node"
                    .to_owned(),
            ),
        }
    }

    /// A CNI configuration: one plugin, or a list.
    fn network(&mut self, part: Part, nad: Option<Part>) {
        let metadata = |key| nad.and_then(|nad| nad.text(key)).unwrap_or_default();
        // Multus gives a configuration without a name the NAD's.
        let name = part.text("name").filter(|name| !name.is_empty()).unwrap_or(metadata("metadata.name"));
        let plugins: Vec<Part> = match part.get("plugins") {
            Some(plugins) => plugins.items().collect(),
            None => vec![part],
        };
        let is_ours = |plugin: &Part| {
            let main = plugin.text("type").unwrap_or_default();
            let ipam = plugin.text("ipam.type").unwrap_or_default();
            let near = |word: &str| nearest(word, [OURS, OUR_IPAM]).is_some();
            near(main) || near(ipam) || LIKE_OURS.contains(&main) || main.is_empty()
        };
        if !plugins.is_empty() && !plugins.iter().any(is_ours) {
            self.others += 1;
            return;
        }
        self.networks += 1;

        let resource = nad.and_then(|nad| nad.get("metadata.annotations")).and_then(|all| all.text(RESOURCE));
        let in_list = part.get("plugins").is_some();
        let namespace = metadata("metadata.namespace").to_owned();
        let folder = |file: &str| Path::new(file).parent().map(|folder| folder.display().to_string());
        let cluster = if nad.is_some() { None } else { folder(&part.place("").file) }.unwrap_or_default();
        let context = Context { name: name.to_owned(), cluster, namespace, nad, resource, in_list };
        self.names(part, &context);
        let version = self.versions(part, &context);
        if in_list {
            if plugins.is_empty() {
                self.error(part, name, "plugins: no plugin in it".to_owned());
            }
            let known = |key: &str| LIST_KEYS.contains(&key) || key.starts_with("cni.dev/");
            for (key, inner) in part.entries().filter(|(key, _)| !known(key)) {
                if config::is_known(key) {
                    self.error(inner, name, format!("{key}: belongs to a plugin, inside of plugins[0]"));
                } else {
                    self.unknown(inner, name, key, &LIST_KEYS);
                }
            }
        }
        let ours = plugins.iter().any(|plugin| plugin.text("type") == Some(OURS));
        for plugin in plugins {
            let kind = plugin.text("type").unwrap_or_default();
            if kind == OURS {
                self.plugin(plugin, &context, version);
            } else if LIKE_OURS.contains(&kind) {
                self.like_ours(plugin, &context, version);
            } else {
                self.other(plugin, &context, ours, version);
            }
        }
    }

    /// The network's name, here and elsewhere.
    fn names(&mut self, part: Part, context: &Context) {
        let Context { name, cluster, namespace, nad, .. } = context;
        let as_map = json!({"name": name});
        if let Err(error) = as_map.as_object().map_or(Ok(()), |map| parse(map).map(drop)) {
            self.error(part, name, format!("name: {error:#}"));
        }
        let unique = context.unique();
        if unique != name {
            let message = format!(
                "name: {name:?} in the NAD {unique:?}: leases and records are filed under the first, messages of \
                 Multus name the second"
            );
            self.warning(part, name, message);
        }
        let place = nad.map_or_else(|| part.place("name"), |nad| nad.place("metadata.name"));
        let key = [cluster.clone(), namespace.clone(), unique.to_owned()];
        if let Some(first) = self.names.get(&key) {
            let problem = format!("{unique} is also in {first}: one takes the place of the other");
            return self.fault(name, Fault { place, problem });
        }
        self.names.insert(key, place);
    }

    /// What runtimes make of the versions; the newest that we know.
    fn versions(&mut self, part: Part, context: &Context) -> Version {
        let name = &context.name;
        let listed = part.get("cniVersions").map(|list| list.items().enumerate().collect::<Vec<_>>());
        let listed = listed.into_iter().flatten().map(|(at, item)| (format!("cniVersions[{at}]"), item));
        let given =
            part.get("cniVersion").map(|one| ("cniVersion".to_owned(), one)).into_iter().chain(listed);
        let mut known = Vec::new();
        let mut any = false;
        for (path, item) in given.filter(|(_, item)| !item.value.is_null() && *item.value != "") {
            any = true;
            match item.value.as_str().and_then(Version::parse) {
                Some(version) => known.push(version),
                None => {
                    let all = VERSIONS.map(Version::as_str).join(", ");
                    self.error(part, name, format!("{path}: {} is not one of {all}", item.value));
                }
            }
        }
        if !any {
            let message = "cniVersion: is missing: runtimes take 0.1.0, which has no CHECK, STATUS and GC";
            self.warning(part, name, message.to_owned());
        }
        let (Some(oldest), Some(newest)) = (known.iter().min().copied(), known.iter().max().copied()) else {
            return Version::V110;
        };
        let both =
            "\"cniVersion\": \"1.0.0\", \"cniVersions\": [\"1.0.0\", \"1.1.0\"] in a list serves old and new";
        if newest < Version::V040 {
            let message = format!("cniVersion: {} has no CHECK, STATUS and GC: {both}", newest.as_str());
            self.warning(part, name, message);
        } else if newest < Version::V110 && context.nad.is_none() {
            // To a network of Multus they never come.
            let message = format!("cniVersion: {} has no STATUS and GC: {both}", newest.as_str());
            self.warning(part, name, message);
        }
        let first = part.text("cniVersion").and_then(Version::parse);
        if first == Some(Version::V110)
            && oldest == Version::V110
            && (context.in_list || context.nad.is_some())
        {
            let message = format!(
                "cniVersion: 1.1.0 alone is refused by libcni before 1.2 (containerd before 2.0, Multus before 4.2): {both}"
            );
            self.warning(part, name, message);
        }
        newest
    }

    /// A plugin that is not ours, in a list with ours or beside our IPAM.
    fn other(&mut self, plugin: Part, context: &Context, beside_ours: bool, version: Version) {
        let name = &context.name;
        let kind = plugin.text("type").unwrap_or_default();
        if kind.is_empty() {
            let message = "type: is missing: no runtime takes a plugin without";
            return self.error(plugin, name, message.to_owned());
        }
        if kind == OUR_IPAM {
            let message = format!("type: {OUR_IPAM} gives addresses: it belongs in ipam.type of {OURS}");
            return self.error(plugin, name, message);
        }
        if let Some(meant) = nearest(kind, [OURS]) {
            return self.error(plugin, name, format!("type: {kind:?}: did you mean {meant}?"));
        }
        let in_one = IN_ONE.iter().find(|(other, _)| *other == kind);
        if let Some((_, instead)) = in_one.filter(|_| beside_ours) {
            self.warning(plugin, name, format!("type: {kind}: {instead}"));
        }
        if plugin.get("ipam").is_some() {
            self.ipam(plugin, context, version);
        }
    }

    /// sriov and host-device: would it work as ours?
    fn like_ours(&mut self, plugin: Part, context: &Context, version: Version) {
        let (findings, rails) = (std::mem::take(&mut self.findings), self.rails.len());
        self.plugin(plugin, context, version);
        self.rails.truncate(rails);
        let found = std::mem::replace(&mut self.findings, findings);
        let errors = found.iter().filter(|finding| finding.severity == Severity::Error);
        let errors: Vec<_> = errors.map(|finding| finding.message.as_str()).collect();
        let kind = plugin.text("type").unwrap_or_default();
        let but = if errors.is_empty() { String::new() } else { format!(", but for: {}", errors.join("; ")) };
        let message = format!("type: {kind}: {OURS} takes this configuration when type is changed{but}");
        self.warning(plugin, &context.name, message);
    }

    /// One configuration of rail-cni.
    fn plugin(&mut self, plugin: Part, context: &Context, version: Version) {
        let Context { name, nad, resource, in_list, .. } = context;
        let name = name.as_str();
        self.keys(plugin, name, "", config::is_known, &config::KNOWN);
        self.keys_at(plugin, name, "dns", &Dns::KEYS);
        self.keys_at(plugin, name, "args.cni", &config::ARGS);
        for at in 0..plugin.get("routes").map_or(0, |routes| routes.items().count()) {
            self.keys_at(plugin, name, &format!("routes[{at}]"), &Route::KEYS);
        }
        for key in ["runtimeConfig", "prevResult"].into_iter().filter(|key| plugin.get(key).is_some()) {
            self.warning(plugin, name, format!("{key}: is for the runtime to write"));
        }
        for key in ["cniVersion", "cniVersions", "name"] {
            if *in_list && plugin.get(key).is_some() {
                self.warning(
                    plugin,
                    name,
                    format!("{key}: is not looked at in a plugin: that of the list counts"),
                );
            }
        }
        if plugin.text("logFile").is_some_and(|file| !file.is_empty()) {
            let message = "logFile: counts only in the folder of log.file in the node's node.json";
            self.warning(plugin, name, message.to_owned());
        }

        let is_set = |key: &&str| plugin.text(key).is_some_and(|text| !text.is_empty());
        let names_a_device = SELECTORS.iter().any(is_set) || plugin.get("runtimeConfig.deviceID").is_some();
        let declares = |key: &str| {
            let capabilities = plugin.get("capabilities");
            capabilities.and_then(|all| all.get(key)).is_some_and(|one| *one.value == true)
        };
        self.capabilities(plugin, context, names_a_device);
        if let Some(nad) = nad.filter(|_| !names_a_device && resource.is_none()) {
            let message = format!(
                "metadata.annotations: no {RESOURCE}: Multus gives a device only to networks with a resource, and \
                 this one names none itself"
            );
            self.error(nad, name, message);
        }
        let gets_a_device = nad.is_some() || declares("deviceID");
        self.refused(plugin, context, version, gets_a_device && !names_a_device);
        self.values(plugin, name);
        let pools = self.ipam(plugin, context, version).unwrap_or_default();
        let rail = plugin.get("rail").and_then(|rail| rail.value.as_u64());
        self.rails.push(Rail {
            place: plugin.place("rail"),
            network: name.to_owned(),
            name: context.unique().to_owned(),
            cluster: context.cluster.clone(),
            namespace: context.namespace.clone(),
            rail,
            pools,
            resource: resource.map(str::to_owned),
        });
    }

    /// All that ADD refuses, by ADD's own parser: what it refuses first is taken away, and it is asked again.
    fn refused(&mut self, plugin: Part, context: &Context, version: Version, gets_a_device: bool) {
        // Without one of them the others mean something else.
        const TOGETHER: [&[&str]; 3] =
            [&SELECTORS, &["vlan", "vlanQoS", "vlanProto"], &["min_tx_rate", "max_tx_rate"]];
        let name = context.name.as_str();
        let mut map = as_handed_over(plugin, context, version);
        if gets_a_device {
            map.insert("deviceID".to_owned(), SOME_DEVICE.into());
        }
        let attachment = Attachment { container_id: "lint".to_owned(), ifname: ifname_in(plugin) };
        if attachment.ifname != DEFAULT_IFNAME {
            let message = format!("sysctl: names {}: IFNAME fits any pod", attachment.ifname);
            self.warning(plugin, name, message);
        }
        for _ in 0..=map.len() {
            let Ok(network) = parse(&map) else { return };
            let Err(error) = NetConf::parse(&network, &attachment, &Node::default()) else { return };
            let message = format!("{error:#}");
            let message = message.strip_prefix(&format!("network {name}: ")).unwrap_or(&message);
            self.error(plugin, name, message.to_owned());
            let key = message.split(['.', ':', '[', ' ']).next().unwrap_or_default();
            for key in TOGETHER.into_iter().find(|group| group.contains(&key)).unwrap_or(&[key]) {
                map.remove(*key);
            }
            if SELECTORS.iter().all(|key| !map.contains_key(*key)) {
                map.insert("deviceID".to_owned(), SOME_DEVICE.into());
            }
        }
    }

    /// What ADD takes and nobody means.
    fn values(&mut self, plugin: Part, name: &str) {
        if plugin.get("rail").is_none_or(|rail| rail.value.is_null()) {
            let message = "rail: is missing: no PF is checked, and the routing table is a free one";
            self.warning(plugin, name, message.to_owned());
        }
        let mtu = plugin.get("mtu").filter(|mtu| !mtu.value.is_null());
        match mtu.map_or(Some(0), |mtu| mtu.value.as_u64()) {
            Some(0) => {
                let message = "mtu: is missing: the device keeps the one it has; rails have 9000";
                self.warning(plugin, name, message.to_owned());
            }
            Some(mtu @ ..1500) => {
                self.warning(
                    plugin,
                    name,
                    format!("mtu: {mtu} is less than any Ethernet has; rails have 9000"),
                );
            }
            Some(mtu @ 9217..) => {
                self.warning(
                    plugin,
                    name,
                    format!("mtu: {mtu} is more than most switches carry; rails have 9000"),
                );
            }
            Some(_) | None => (),
        }
        self.default_routes(plugin, name, "routes");
        if plugin.text("ipam.type").is_none_or(str::is_empty) {
            let message = "ipam: is missing: the rail has no address and no routes";
            self.warning(plugin, name, message.to_owned());
        }
    }

    fn default_routes(&mut self, plugin: Part, name: &str, path: &str) {
        let Some(routes) = plugin.get(path) else { return };
        for (at, route) in routes.items().enumerate() {
            let dst = route.text("dst").and_then(|dst| dst.parse::<ipnet::IpNet>().ok());
            if let Some(dst) = dst.filter(|dst| dst.prefix_len() == 0) {
                let message =
                    format!("{path}[{at}].dst: {dst} is left out: a rail never has the default route");
                self.warning(plugin, name, message);
            }
        }
    }

    /// The `ipam` section; the pools of ours.
    fn ipam(&mut self, plugin: Part, context: &Context, version: Version) -> Option<Vec<String>> {
        let name = context.name.as_str();
        let kind = plugin.text("ipam.type").filter(|kind| !kind.is_empty())?;
        if kind != OUR_IPAM {
            match nearest(kind, [OUR_IPAM, OURS]) {
                Some(_) => {
                    self.error(plugin, name, format!("ipam.type: {kind:?}: did you mean {OUR_IPAM}?"));
                }
                None => self.default_routes(plugin, name, "ipam.routes"),
            }
            return None;
        }
        let all: Vec<&str> = ipam::config::KEYS.iter().chain(&ipam::cidrpool::SPEC_KEYS).copied().collect();
        if let Some(section) = plugin.get("ipam") {
            self.keys(section, name, "ipam.", ipam::config::is_known, &all);
        }
        let network = parse(&as_handed_over(plugin, context, version)).ok()?;
        if let Err(error) = ipam::config::requested(&network) {
            self.error(plugin, name, format!("{error:#}"));
        }
        let config = match ipam::config::Config::parse(&network) {
            Ok(config) => config,
            Err(error) => {
                self.error(plugin, name, format!("{error:#}"));
                return None;
            }
        };
        match config.plan() {
            None => (),
            Some(Ok(plan)) => {
                plan.warnings.into_iter().for_each(|warning| self.warning(plugin, name, warning))
            }
            Some(Err(faults)) => faults.into_iter().for_each(|fault| self.error(plugin, name, fault)),
        }
        Some(config.pools)
    }

    /// What the runtime passes on, and what it drops without a word.
    fn capabilities(&mut self, plugin: Part, context: &Context, names_a_device: bool) {
        let name = context.name.as_str();
        let declared = plugin.get("capabilities").filter(|all| !all.value.is_null());
        if let Some(all) = declared.filter(|all| !all.value.is_object()) {
            return self.error(plugin, name, format!("capabilities: {} is no object", all.value));
        }
        for (key, one) in declared.into_iter().flat_map(Part::entries) {
            if !one.value.is_boolean() {
                self.error(
                    plugin,
                    name,
                    format!("capabilities.{key}: {} is neither true nor false", one.value),
                );
            } else if OTHER_CAPABILITIES.contains(&key) {
                self.warning(plugin, name, format!("capabilities.{key}: {OURS} makes nothing of it"));
            } else if !config::CAPABILITIES.contains(&key) {
                self.unknown(one, name, &format!("capabilities.{key}"), &config::CAPABILITIES);
            }
        }
        let is_on = |key: &str| declared.and_then(|all| all.get(key)).is_some_and(|one| *one.value == true);
        let lost = [
            ("deviceID", "runtimeConfig.deviceID"),
            ("mac", "a MAC that a pod asks for"),
            ("ips", "an address that a pod asks for"),
            ("CNIDeviceInfoFile", "the request for a device-info file"),
        ];
        let lost: Vec<_> = lost
            .into_iter()
            .filter(|(key, _)| !is_on(key) && (!names_a_device || matches!(*key, "mac" | "ips")))
            .collect();
        // Other runtimes have no such requests.
        if context.nad.is_some() && !lost.is_empty() {
            let keys: Vec<_> = lost.iter().map(|(key, _)| format!("{key:?}: true")).collect();
            let what: Vec<_> = lost.iter().map(|(_, what)| *what).collect();
            let message =
                format!("capabilities: without {} these never arrive: {}", keys.join(", "), what.join(", "));
            self.warning(plugin, name, message);
        }
    }

    /// Unknown keys of the object `part`, whose path ends in a dot.
    fn keys(&mut self, part: Part, network: &str, path: &str, known: impl Fn(&str) -> bool, all: &[&str]) {
        for (key, inner) in part.entries().filter(|(key, _)| !known(key)) {
            self.unknown(inner, network, &format!("{path}{key}"), all);
        }
    }

    fn keys_at(&mut self, plugin: Part, network: &str, path: &str, known: &[&str]) {
        if let Some(part) = plugin.get(path) {
            self.keys(part, network, &format!("{path}."), |key| known.contains(&key), known);
        }
    }

    fn unknown(&mut self, part: Part, network: &str, path: &str, known: &[&str]) {
        let key = path.rsplit_once('.').map_or(path, |(_, key)| key);
        let message = match nearest(key, known.iter().copied()) {
            Some(meant) => format!("{path}: unknown key: did you mean {meant}?"),
            None => format!("{path}: unknown key"),
        };
        let place = part.place("");
        let network = network.to_owned();
        self.findings.push(Finding { severity: Severity::Error, place, network, message });
    }

    /// When all was read.
    fn finish(&mut self) {
        self.across();
        let order = |file: &String| self.files.iter().position(|other| other == file);
        self.findings.sort_by_cached_key(|Finding { place, .. }| (order(&place.file), place.line));
    }

    /// What each network says by itself may be, and all together not.
    fn across(&mut self) {
        let rails = std::mem::take(&mut self.rails);
        let mut findings = Vec::new();
        let mut add = |severity, rail: &Rail, message: String| {
            let (place, network) = (rail.place.clone(), rail.network.clone());
            findings.push(Finding { severity, place, network, message });
        };
        for (at, rail) in rails.iter().enumerate() {
            let Some(number) = rail.rail else { continue };
            let before: Vec<_> = rails[..at].iter().filter(|other| other.cluster == rail.cluster).collect();
            let same = |other: &&&Rail| other.rail == rail.rail && other.namespace == rail.namespace;
            if let Some(other) = before.iter().find(same) {
                let message = format!("rail: {number} is also that of {} ({})", other.network, other.place);
                add(Severity::Warning, rail, message);
            }
            let differs = |other: &&&Rail| other.rail.is_some_and(|other| other != number);
            for pool in &rail.pools {
                if let Some(other) = before.iter().filter(differs).find(|other| other.pools.contains(pool)) {
                    let message = format!(
                        "ipam: pool {pool} is also that of rail {}, {} ({}): a prefix belongs to one rail",
                        other.rail.unwrap_or_default(),
                        other.network,
                        other.place
                    );
                    add(Severity::Error, rail, message);
                }
            }
            let shares = |other: &&&Rail| rail.resource.is_some() && other.resource == rail.resource;
            if let Some(other) = before.iter().filter(differs).find(shares) {
                let message = format!(
                    "metadata.annotations: the resource {} is also that of rail {}, {} ({}): its device plugin knows \
                     no rails",
                    rail.resource.as_deref().unwrap_or_default(),
                    other.rail.unwrap_or_default(),
                    other.network,
                    other.place
                );
                add(Severity::Warning, rail, message);
            }
        }
        for what in ["network", "pool", "resource"] {
            let mut shifts: BTreeMap<String, Vec<(i64, &Rail, &str)>> = BTreeMap::new();
            for rail in &rails {
                let Some(number) = rail.rail.and_then(|number| i64::try_from(number).ok()) else { continue };
                for name in rail.names(what) {
                    let Some((in_name, others_too)) = number_in(name) else { continue };
                    shifts.entry(others_too).or_default().push((in_name.saturating_sub(number), rail, name));
                }
            }
            // Who counts from 1, or a second plane's rails from 8, does so in all of these names.
            shifts.retain(|_, alike| alike.len() == 1 || alike.iter().any(|one| one.0 != alike[0].0));
            for (_, rail, name) in shifts.values().flatten().filter(|(shift, ..)| *shift != 0) {
                let message = format!("rail: is {} in the {what} {name}", rail.rail.unwrap_or_default());
                add(Severity::Warning, rail, message);
            }
        }
        self.findings.extend(findings);
    }
}

fn parse(map: &Map<String, Value>) -> Result<Network> {
    Network::parse(json!(map).to_string().into(), Args::default(), vec![], false)
}

/// A plugin's configuration as a runtime hands it over.
fn as_handed_over(plugin: Part, context: &Context, version: Version) -> Map<String, Value> {
    let mut map = plugin.value.as_object().cloned().unwrap_or_default();
    map.insert("cniVersion".to_owned(), version.as_str().into());
    if context.in_list || (context.nad.is_some() && plugin.text("name").is_none_or(str::is_empty)) {
        map.insert("name".to_owned(), context.name.clone().into());
    }
    map
}

const DEFAULT_IFNAME: &str = "net1";

/// The interface that sysctl keys name, where it is one that Multus makes; they fit no other.
fn ifname_in(plugin: Part) -> String {
    let keys = plugin.get("sysctl").into_iter().flat_map(Part::entries).map(|(key, _)| key);
    let mut names = keys.filter_map(|key| key.split(['.', '/']).nth(3));
    let is_net = |name: &&str| {
        name.strip_prefix("net").is_some_and(|number| {
            !number.is_empty() && number.len() < 4 && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    names.find(is_net).unwrap_or(DEFAULT_IFNAME).to_owned()
}

/// 3 of `rail-3-v6`, `Rail3` and `cluster.rail_3`, and the name without it.
fn number_in(name: &str) -> Option<(i64, String)> {
    let lower = name.to_ascii_lowercase();
    let (before, after) = lower.split_once("rail")?;
    let digits = after.trim_start_matches(['-', '_', '.']);
    let (digits, rest) =
        digits.split_at(digits.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(digits.len()));
    Some((digits.parse().ok()?, format!("{before}rail{rest}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    /// What is said of files with these texts, without the folder.
    fn lint_of(files: &[(&str, &str)]) -> (Lint, Vec<String>) {
        let temp = tempfile::tempdir().unwrap();
        let names = files.iter().map(|(name, text)| {
            let path = temp.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path.display().to_string()
        });
        let mut lint = Lint::default();
        names.collect::<Vec<_>>().iter().for_each(|file| lint.path(file));
        lint.finish();
        let folder = format!("{}/", temp.path().display());
        let told = lint.findings.iter().map(|finding| finding.to_string().replace(&folder, "")).collect();
        (lint, told)
    }

    const CONFIG: &str = r#"{
      "cniVersion": "1.0.0",
      "cniVersions": ["1.0.0", "1.1.0"],
      "name": "rail-3",
      "plugins": [{
        "type": "rail-cni",
        "rail": 3,
        "mtu": 9000,
        "capabilities": {"deviceID": true, "mac": true, "ips": true, "CNIDeviceInfoFile": true},
        "ipam": {"type": "rail-ipam", "pool": "rail-3"}
      }]
    }"#;

    fn nad(name: &str, config: &str) -> String {
        format!(
            "---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: {name}\n  \
             annotations: {{k8s.v1.cni.cncf.io/resourceName: nvidia.com/{name}}}\nspec:\n  config: |\n    {config}\n"
        )
    }

    fn good() -> String {
        nad("rail-3", CONFIG)
    }

    #[test]
    fn a_good_network_is_clean_in_every_form() {
        let yaml = good();
        let object = document::parse("x", yaml.as_bytes()).unwrap().remove(0).value;
        let single = r#"{"cniVersion": "1.1.0", "name": "a", "type": "rail-cni", "rail": 0, "mtu": 9000,
            "device": "eth9", "ipam": {"type": "static", "addresses": [{"address": "10.0.0.0/31"}]}}"#;
        for (name, text) in [
            ("a.yaml", format!("{yaml}---\nkind: Pod\n")),
            ("a.yaml", yaml.replace("config: |", "config: >-")),
            ("a.json", object.to_string()),
            ("a.json", json!({"kind": "List", "apiVersion": "v1", "items": [object]}).to_string()),
            ("a.json", json!([object]).to_string()),
            ("a.conflist", CONFIG.replace(r#""rail": 3,"#, r#""rail": 3, "pciBusID": "0000:3b:00.2","#)),
            ("a.conf", single.to_owned()),
            ("net.d/a.conf", single.to_owned()),
            (
                "a.conf",
                single
                    .replace("rail-cni", "macvlan")
                    .replace("static", "rail-ipam")
                    .replace("addresses", "pool")
                    .replace(r#"[{"address": "10.0.0.0/31"}]"#, "\"p\""),
            ),
        ] {
            let (lint, told) = lint_of(&[(name, &text)]);
            assert_eq!((told, lint.networks, lint.others), (vec![], 1, 0), "{text}");
        }
        let (lint, told) =
            lint_of(&[("a.conf", r#"{"cniVersion": "0.3.1", "name": "a", "type": "macvlan"}"#)]);
        assert_eq!((told, lint.networks, lint.others), (vec![], 0, 1));
    }

    /// What is replaced in the good one, by what, and what is found then: the least that brings it about.
    const FINDINGS: &str = r#"
# keys
"mtu": 9000, => "mtu": 9000, "maxTxRate": 1, => 16: error: rail-3: maxTxRate: unknown key: did you mean max_tx_rate?
"mtu": 9000, => "mtu": 9000, "colour": 1, => 16: error: rail-3: colour: unknown key
"mtu": 9000, => "MTU": 9000, "mtu": 9000, => 16: error: rail-3: MTU: unknown key: did you mean mtu?
"mtu": 9000, => "mtu": 9000, "routes": [{"dst": "10.0.0.0/8", "via": "10.0.0.1"}], => 16: error: rail-3: routes[0].via: unknown key
"mtu": 9000, => "mtu": 9000, "dns": {"server": []}, => 16: error: rail-3: dns.server: unknown key
"mtu": 9000, => "mtu": 9000, "args": {"cni": {"macs": ""}}, => 16: error: rail-3: args.cni.macs: unknown key: did you mean mac?
"pool": "rail-3" => "pol": "x", "pool": "rail-3" => 18: error: rail-3: ipam.pol: unknown key: did you mean pool?
"mac": true => "mac": true, "macs": true => 17: error: rail-3: capabilities.macs: unknown key: did you mean mac?
"mac": true => "mac": true, "bandwidth": true => 17: warning: rail-3: capabilities.bandwidth: rail-cni makes nothing of it
"mac": true => "mac": true, "x": 1 => 17: error: rail-3: capabilities.x: 1 is neither true nor false
"name": "rail-3", => "name": "rail-3", "mtu": 9000, => 12: error: rail-3: mtu: belongs to a plugin, inside of plugins[0]
"name": "rail-3", => "name": "rail-3", "plugin": [], => 12: error: rail-3: plugin: unknown key: did you mean plugins?
  config: | =>   confg: x\n  config: | => 8: error: rail-3: spec.confg: unknown key: did you mean config?
# what ADD refuses
"mtu": 9000, => "mtu": "9000", => 16: error: rail-3: mtu: invalid type: string "9000", expected u32
"mtu": 9000, => "mtu": 9000, "trust": "yes", => 16: error: rail-3: trust: "yes" is not one of on, off
"mtu": 9000, => "mtu": 9000, "vlanQoS": 1, => 16: error: rail-3: vlanQoS needs a vlan other than 0
"mtu": 9000, => "mtu": 9000, "sysctl": {"net.ipv4.conf.IFNAME.arp_ignore": "1",\n      "net.ipv4.ip_forward": "1"}, => 17: error: rail-3: sysctl: "net.ipv4.ip_forward" is no key of this interface
"mtu": 9000, => "mtu": 9000, "sysctl": {"net.ipv4.conf.all.rp_filter": "2"}, => 16: error: rail-3: sysctl: "net.ipv4.conf.all.rp_filter" is no key
"mtu": 9000, => "mtu": 9000, "routes": [{"dst": "10.0.0.0/8"},\n      {"dst": "10.1.0.0/33"}], => 17: error: rail-3: routes[1].dst: invalid IP
"rail": 3, => "rail": 300, => 15: error: rail-3: rail: invalid value
"pool": "rail-3" => "pool": "../x" => 18: error: rail-3: ipam.pool: "../x" is no name of a pool
"pool": "rail-3" => "poolType": "ippool" => 18: error: rail-3: ipam.poolType "ippool": only pools of type cidrpool are served
"pool": "rail-3" => "cidr": "172.16.0.0/15", "perNodeNetworkPrefix": 31, "gatewayIndex": 9 => 18: error: rail-3: ipam.gatewayIndex: 9: gateway index is outside
"pool": "rail-3" => "cidr": "172.16.0.0/15" => 18: error: rail-3: ipam: missing field `perNodeNetworkPrefix`
"rail-ipam" => "dhcp" => 18: error: rail-3: ipam.type: dhcp
"name": "rail-3" => "name": "rail 3" => 12: error: rail 3: name: invalid characters
"mtu": 9000, => "mtu": 9000, "deviceID": "x", => 16: error: rail-3: deviceID: "x" is neither a PCI address
# default routes
"mtu": 9000, => "mtu": 9000, "routes": [{"dst": "10.0.0.0/8"},\n      {"dst": "::/0"}], => 17: warning: rail-3: routes[1].dst: ::/0 is left out
"pool": "rail-3" => "cidr": "172.16.0.0/15", "perNodeNetworkPrefix": 31, "gatewayIndex": 1, "routes": [{"dst": "0.0.0.0/0"}] => 18: warning: rail-3: ipam.routes[0].dst: 0.0.0.0/0: left out
"pool": "rail-3" => "cidr": "172.16.0.0/15", "perNodeNetworkPrefix": 31, "gatewayIndex": 1, "defaultGateway": true => 18: warning: rail-3: ipam.defaultGateway: left out
"rail-ipam" => "static", "routes": [{"dst": "0.0.0.0/0"}] => 18: warning: rail-3: ipam.routes[0].dst: 0.0.0.0/0 is left out
# versions
"cniVersion": "1.0.0",\n      "cniVersions": ["1.0.0", "1.1.0"], =>  => 9: warning: rail-3: cniVersion: is missing
"cniVersion": "1.0.0",\n      "cniVersions": ["1.0.0", "1.1.0"], => "cniVersion": "0.3.1", => 10: warning: rail-3: cniVersion: 0.3.1 has no CHECK, STATUS and GC
"cniVersion": "1.0.0",\n      "cniVersions": ["1.0.0", "1.1.0"], => "cniVersion": "1.1.0", => 10: warning: rail-3: cniVersion: 1.1.0 alone is refused by libcni before 1.2
["1.0.0", "1.1.0"] => ["1.0.0", "1.2.0"] => 11: error: rail-3: cniVersions[1]: "1.2.0" is not one of 0.1.0
# plugins
"type": "rail-cni" => "type": "rail_cni" => 14: error: rail-3: type: "rail_cni": did you mean rail-cni?
"type": "rail-cni" => "type": "rail-ipam" => 14: error: rail-3: type: rail-ipam gives addresses
"type": "rail-cni", =>  => 13: error: rail-3: type: is missing
"type": "rail-ipam" => "type": "railipam" => 18: error: rail-3: ipam.type: "railipam": did you mean rail-ipam?
}]\n => }, {"type": "sbr"}]\n => 19: warning: rail-3: type: sbr: rail-cni makes rules and tables itself
"type": "rail-cni" => "type": "sriov" => 14: warning: rail-3: type: sriov: rail-cni takes this configuration when type is changed
"type": "rail-cni" => "type": "host-device", "device": "a b" => 14: warning: rail-3: type: host-device: rail-cni takes this configuration when type is changed, but for: device: 
# devices
{"deviceID": true, "mac": true, "ips": true, "CNIDeviceInfoFile": true} => {"mac": true, "ips": true} => 17: warning: rail-3: capabilities: without "deviceID": true, "CNIDeviceInfoFile": true these never arrive: runtimeConfig.deviceID, the request
resourceName: nvidia.com/rail-3 => other: x => 6: error: rail-3: metadata.annotations: no k8s.v1.cni.cncf.io/resourceName
# what nobody means
name: rail-3 => name: rail-03 => 12: warning: rail-3: name: "rail-3" in the NAD "rail-03"
name: rail-3 => x: rail-3 => 4: error: metadata.name: is missing
v1\nkind => v2\nkind => 2: error: rail-3: apiVersion: is not k8s.cni.cncf.io/v1
"rail": 3, =>  => 13: warning: rail-3: rail: is missing
"rail": 3, => "rail": 4, => 15: warning: rail-3: rail: is 4 in the network rail-3
"mtu": 9000, =>  => 13: warning: rail-3: mtu: is missing
"mtu": 9000, => "mtu": 900, => 16: warning: rail-3: mtu: 900 is less than any Ethernet has
"mtu": 9000, => "mtu": 90000, => 16: warning: rail-3: mtu: 90000 is more than most switches carry
"mtu": 9000, => "mtu": 9000, "logFile": "/tmp/x", => 16: warning: rail-3: logFile: counts only in the folder
"mtu": 9000, => "mtu": 9000, "runtimeConfig": {}, => 16: warning: rail-3: runtimeConfig: is for the runtime to write
"mtu": 9000, => "mtu": 9000, "name": "x", => 16: warning: rail-3: name: is not looked at in a plugin
"mtu": 9000, => "mtu": 9000, "sysctl": {"net.ipv4.conf.net3.arp_ignore": "1"}, => 16: warning: rail-3: sysctl: names net3: IFNAME fits any pod
"ipam": {"type": "rail-ipam", "pool": "rail-3"} => "ipam": {} => 18: warning: rail-3: ipam: is missing: the rail has no address
# texts
"mtu": 9000, => "mtu": 9000, "mtu": 9000, => 16: error: rail-3: spec.config: JSON: the key "mtu" stands twice
"mtu": 9000, => "mtu": , => 16: error: rail-3: spec.config: JSON: expected value
config: | => config: => 8: error: rail-3: spec.config: is no text
"#;

    #[test]
    fn each_finding_is_shown_with_its_line() {
        let good = good();
        for row in FINDINGS.lines().filter(|row| row.contains(" => ")) {
            let [from, to, told] =
                &row.split(" => ").map(|text| text.replace("\\n", "\n")).collect::<Vec<_>>()[..]
            else {
                panic!("{row}");
            };
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{row}");
            let (_, findings) = lint_of(&[("f", &text)]);
            let count = findings.iter().filter(|one| one.starts_with(&format!("f:{told}"))).count();
            assert_eq!(count, 1, "{row}\n{findings:#?}\n{text}");
        }
    }

    #[test]
    fn networks_are_compared_with_each_other() {
        let other = |name: &str, change: &dyn Fn(String) -> String| {
            format!("{}{}", good(), change(nad(name, &CONFIG.replace("rail-3", name).replace("3,", "4,"))))
        };
        let unchanged = other("rail-4", &|text| text);
        assert_eq!(lint_of(&[("f", &unchanged)]).1, [] as [&str; 0]);
        for (text, told) in [
            (
                other("rail-4", &|text| text.replace("\"pool\": \"rail-4\"", "\"pool\": \"rail-3\"")),
                "f:35: error: rail-4: ipam: pool rail-3 is also that of rail 3, rail-3 (f:15)",
            ),
            (
                other("rail-4", &|text| text.replace("\"rail\": 4", "\"rail\": 3")),
                "f:35: warning: rail-4: rail: 3 is also that of rail-3 (f:15)",
            ),
            (
                other("rail-4", &|text| text.replace("com/rail-4", "com/rail-3")),
                "f:35: warning: rail-4: metadata.annotations: the resource nvidia.com/rail-3 is also that of rail 3, rail-3 (f:15)",
            ),
            (other("rail-5", &|text| text), "f:35: warning: rail-5: rail: is 4 in the network rail-5"),
            (other("rail-5", &|text| text), "f:35: warning: rail-5: rail: is 4 in the pool rail-5"),
            (
                other("rail-3", &|text| text),
                "f:25: error: rail-3: rail-3 is also in f:5: one takes the place of the other",
            ),
        ] {
            let (_, findings) = lint_of(&[("f", &text)]);
            assert!(
                findings.iter().any(|one| one == told || one.starts_with(&format!("{told}:"))),
                "{told}\n{findings:#?}"
            );
        }
        // Counted from 1, planes, another namespace, another folder: nothing to be said.
        let planes = |rail: u8| {
            good().replace("rail-3", &format!("rail-{rail}-plane-1")).replace("3,", &format!("{},", rail + 8))
        };
        assert_eq!(lint_of(&[("f", &(good() + &planes(3) + &planes(4)))]).1, [] as [&str; 0]);
        let from_one = |rail: u8| {
            nad(
                &format!("rail-{rail}"),
                &CONFIG.replace("rail-3", &format!("rail-{rail}")).replace("3,", &format!("{},", rail - 1)),
            )
        };
        assert_eq!(lint_of(&[("f", &(from_one(1) + &from_one(2)))]).1, [] as [&str; 0]);
        let elsewhere = good() + &good().replace("metadata:", "metadata:\n  namespace: x");
        assert_eq!(lint_of(&[("f", &elsewhere)]).1, [] as [&str; 0]);
        let conf = CONFIG.replace(r#""rail": 3,"#, r#""rail": 3, "device": "eth9","#);
        assert_eq!(lint_of(&[("a/f", &conf), ("b/f", &conf)]).1, [] as [&str; 0]);
        assert_eq!(lint_of(&[("a/f", &conf), ("a/g", &conf)]).1.len(), 2);
    }

    #[test]
    fn files_that_are_no_networks_end_in_an_error() {
        for (text, told) in [
            (&b""[..], "f: error: no NetworkAttachmentDefinition and no CNI configuration in it"),
            (b"kind: Pod\n", "f: error: no NetworkAttachmentDefinition and no CNI configuration in it"),
            (b"x", "f:1: error: neither a NetworkAttachmentDefinition"),
            (b"{\"a\": 1}", "f:1: error: neither a NetworkAttachmentDefinition"),
            (b"type: rail-cni\nname: a\n", "f:1: error: this is YAML"),
            (b"{\"plugins\": [", "f:1:13: error: JSON: EOF"),
            (b"\x7fELF\0", "f:1:5: error: neither YAML nor JSON: a NUL byte"),
            (b"\xff\xfe\0", "f:1:1: error: this is UTF-16"),
        ] {
            let temp = tempfile::tempdir().unwrap();
            let path = temp.path().join("f");
            fs::write(&path, text).unwrap();
            let mut lint = Lint::default();
            lint.path(&path.display().to_string());
            let findings: Vec<_> = lint.findings.iter().map(ToString::to_string).collect();
            let folder = format!("{}/", temp.path().display());
            assert!(
                findings.iter().any(|one| one.replace(&folder, "").starts_with(told)),
                "{told} {findings:?}"
            );
        }
        let mut lint = Lint::default();
        let temp = tempfile::tempdir().unwrap();
        lint.path(&temp.path().display().to_string());
        lint.path("/nonexistent");
        assert_eq!(lint.findings.len(), 2);
    }

    #[test]
    fn rails_are_found_in_names() {
        for (name, number) in [
            ("rail-3", Some(3)),
            ("Rail12-v6", Some(12)),
            ("a.rail_0", Some(0)),
            ("rail", None),
            ("net3", None),
        ] {
            assert_eq!(number_in(name).map(|(number, _)| number), number, "{name}");
        }
    }

    const VALUES: [&str; 20] = [
        "true",
        "1",
        "-1",
        "70000",
        "\"\"",
        "\"on\"",
        "\"x\"",
        "\"0000:3b:00.2\"",
        "\"0000:3b:00.3\"",
        "null",
        "[]",
        "{}",
        r#"[{"dst": "10.0.0.0/8"}]"#,
        r#"[{"dst": "x"}]"#,
        r#"[{"dst": "::/1", "gw": "10.0.0.1"}]"#,
        r#"{"type": "dhcp"}"#,
        r#"{"type": "a/b"}"#,
        r#"{"type": ""}"#,
        r#"{"deviceID": "x"}"#,
        r#"{"CNIDeviceInfoFile": "/etc/passwd"}"#,
    ];

    proptest! {
        /// Whatever ADD refuses is an error here: DESIGN section 8.
        #[test]
        fn lint_and_add_agree(
            key in prop::sample::select(config::KNOWN.to_vec()),
            value in prop::sample::select(VALUES.to_vec()),
        ) {
            let mut config = json!({"cniVersion": "1.1.0", "name": "a", "type": "rail-cni", "deviceID": "0000:3b:00.2"});
            config[key] = serde_json::from_str(value).unwrap();
            let is_refused = Network::parse(config.to_string().into(), Args::default(), vec![], false)
                .and_then(|network| {
                    let attachment = Attachment { container_id: "c".into(), ifname: "net1".into() };
                    NetConf::parse(&network, &attachment, &Node::default())
                })
                .is_err();
            let (lint, told) = lint_of(&[("f", &config.to_string())]);
            let errors = lint.findings.iter().filter(|one| one.severity == Severity::Error).count();
            prop_assert!(!is_refused || errors > 0, "{}: {:?}", config, told);
        }

        #[test]
        fn no_text_makes_it_panic(from in 0usize..2000, to in "[-\\[\\]{}:,\"'|>a-z0-9. \n]{0,12}") {
            let mut text = good();
            let at = from.min(text.len());
            text.replace_range(at..(at + to.len()).min(text.len()), &to);
            let _ = lint_of(&[("f", &text)]);
        }
    }
}
