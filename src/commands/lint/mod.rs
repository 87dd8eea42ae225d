//! `rail-cni lint`: what is wrong with networks before a pod finds out. Reads NetworkAttachmentDefinitions and
//! CNI configurations, and of CIDRPools the routes; needs neither node.json nor root. What ADD would refuse is found by
//! ADD's own parser.

mod ignore;
mod plugin;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Value, json};

use self::ignore::Ignore;
use crate::attach::config;
use crate::cluster_networks::{self, Taken, USUAL};
use crate::cni::{VERSIONS, Version};
use crate::document::{self, Document, Fault, Part, Place};
use crate::ipam;
use crate::nearest::nearest;
use crate::node::Node;
use crate::output::{self, Output};
use crate::pool;

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
/// Kinds of which an operator makes a NAD, whose `type` is the operator's.
const OF_OPERATORS: [(&str, &str); 2] = [("HostDeviceNetwork", "host-device"), ("SriovNetwork", "sriov")];
const RESOURCE: &str = "k8s.v1.cni.cncf.io/resourceName";

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
    /// Which of the networks, in the order of reading; 0: of none.
    of: usize,
    message: String,
}

/// What a network says of itself that others must not say too.
#[derive(Debug)]
struct Rail {
    /// Of `rail`, or of what would have it.
    place: Place,
    network: String,
    /// As in a [`Finding`].
    of: usize,
    /// Of the NAD, where it is one; else the network's again.
    name: String,
    cluster: String,
    namespace: String,
    rail: Option<u64>,
    pools: Vec<String>,
    resource: Option<String>,
}

/// Where a network or a pool leads to, beside the node's own prefix.
#[derive(Debug)]
struct Routes {
    name: String,
    to: Vec<(IpNet, Place)>,
}

/// By how much a number in a name is more than the rail's; which of the rails, and the name.
type Shift<'a> = (i64, usize, &'a str);

/// All that was read, and what was found.
#[derive(Debug, Default)]
struct Lint {
    /// In the order that was given.
    files: Vec<String>,
    findings: Vec<Finding>,
    /// What files say need not be said, and what was not said for it, with the reason.
    ignores: Vec<Ignore>,
    silenced: Vec<(Finding, String)>,
    /// The network that is being read, as in a [`Finding`], and how many there were.
    of: usize,
    seen: usize,
    rails: Vec<Rail>,
    routes: Vec<Routes>,
    /// The cluster's own, of node.json.
    cluster_networks: Vec<IpNet>,
    /// CIDRPools.
    pools: usize,
    /// Where each network was first, by cluster, namespace and name.
    names: BTreeMap<[String; 3], Place>,
    networks: usize,
    others: usize,
}

/// Checks all files, and all that is in folders; says what was found.
pub fn lint(files: &[String], output: Output) -> Result<ExitCode> {
    let mut lint = Lint { cluster_networks: Node::load()?.cluster_networks, ..Lint::default() };
    for file in files {
        lint.path(file);
    }
    lint.finish();
    let Lint { findings, silenced, networks, others, .. } = &lint;
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let text = match output {
        Output::Json => {
            let findings: Vec<_> = findings.iter().map(Finding::json).collect();
            let with_reason = |(finding, reason): &(Finding, String)| {
                let mut json = finding.json();
                json["reason"] = reason.as_str().into();
                json
            };
            let silenced: Vec<_> = silenced.iter().map(with_reason).collect();
            output::pretty(&json!({"networks": networks, "otherNetworks": others, "errors": errors,
                "warnings": warnings, "findings": findings, "silenced": silenced}))
        }
        Output::Table => {
            let lines = findings.iter().map(|finding| output::printable(&finding.to_string()) + "\n");
            let some = |count, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
            let (networks, others) = (some(*networks, "network"), *others);
            let beside = if others == 0 { String::new() } else { format!(" ({others} of other plugins)") };
            let (errors, warnings) = (some(errors, "error"), some(warnings, "warning"));
            let silenced =
                if silenced.is_empty() { String::new() } else { format!(", {} silenced", silenced.len()) };
            lines.collect::<String>() + &format!("{networks}{beside}: {errors}, {warnings}{silenced}\n")
        }
    };
    output::print(&text)?;
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { severity, place, network, message, .. } = self;
        write!(f, "{place}: {severity}: ")?;
        if !network.is_empty() {
            write!(f, "{network}: ")?;
        }
        f.write_str(message)
    }
}

impl Finding {
    fn json(&self) -> Value {
        let Finding { severity, place: Place { file, line, column }, network, message, .. } = self;
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
    fn names(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let pools = self.pools.iter().map(|pool| ("pool", pool.as_str()));
        let resource = self.resource.iter().map(|resource| ("resource", resource.as_str()));
        [("network", self.name.as_str())].into_iter().chain(pools).chain(resource)
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
        self.findings.push(Finding { severity, place, network: network.to_owned(), of: self.of, message });
    }

    fn error(&mut self, part: Part, network: &str, message: String) {
        self.say(Severity::Error, part, network, message);
    }

    fn warning(&mut self, part: Part, network: &str, message: String) {
        self.say(Severity::Warning, part, network, message);
    }

    fn fault(&mut self, network: &str, Fault { place, problem }: Fault) {
        let network = network.to_owned();
        let (severity, of) = (Severity::Error, self.of);
        self.findings.push(Finding { severity, place, network, of, message: problem });
    }

    /// A file, or a folder: of manifests, or one that a runtime reads, such as /etc/cni/net.d.
    fn path(&mut self, path: &str) {
        if !Path::new(path).is_dir() {
            return self.file(path, false);
        }
        let fault = |problem| Fault { place: Place { file: path.to_owned(), ..Place::default() }, problem };
        let names = std::fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>());
        let mut names = match names {
            Ok(names) => names,
            Err(error) => return self.fault("", fault(error.to_string())),
        };
        let ends = |name: &Path, ends: &[&str]| {
            name.extension().and_then(|end| end.to_str()).is_some_and(|end| ends.contains(&end))
        };
        names.retain(|name| ends(name, &["conf", "conflist", "json", "yaml", "yml"]));
        names.sort();
        let before = self.found();
        for name in &names {
            // Beside NADs are pods, values, kustomizations. What ends otherwise is for a runtime.
            self.file(&name.display().to_string(), ends(name, &["yaml", "yml"]));
        }
        if self.found() == before {
            let problem = if names.is_empty() {
                "no .conf, .conflist, .json, .yaml or .yml in this folder"
            } else {
                "no NetworkAttachmentDefinition and no CNI configuration in this folder"
            };
            self.fault("", fault(problem.to_owned()));
        }
    }

    /// How much was found, or looked at.
    fn found(&self) -> usize {
        self.findings.len() + self.networks + self.others + self.pools
    }

    /// One file; `beside`: whatever in it is no manifest of ours is somebody else's.
    fn file(&mut self, file: &str, beside: bool) {
        self.files.push(file.to_owned());
        let documents = match document::read(file) {
            Ok(documents) => documents,
            Err(fault) => return self.fault("", fault),
        };
        let before = self.found();
        let is_manifest = |document: &&Document| {
            let root = document.root();
            root.get("kind").is_some() || root.items().next().is_some_and(|item| item.get("kind").is_some())
        };
        for document in documents.iter().filter(|document| !beside || is_manifest(document)) {
            self.value(document.root(), document);
        }
        if self.found() == before && !beside {
            let place = Place { file: file.to_owned(), ..Place::default() };
            let problem = "no NetworkAttachmentDefinition and no CNI configuration in it".to_owned();
            self.fault("", Fault { place, problem });
        }
    }

    /// From here on it is about another network, or with 0 about none.
    fn begin(&mut self) {
        self.seen += 1;
        self.of = self.seen;
    }

    /// A network, or a list of them as kubectl prints it. Pods and whatever else a manifest has are passed over.
    fn value(&mut self, part: Part, document: &Document) {
        let has = |key| part.get(key).is_some();
        match (part.value, part.text("kind")) {
            (Value::Array(list), _) if list.iter().all(Value::is_object) => {
                part.items().for_each(|item| self.value(item, document))
            }
            (_, Some("List" | "NetworkAttachmentDefinitionList")) => {
                part.get("items").into_iter().for_each(|items| self.value(items, document));
            }
            (_, Some("NetworkAttachmentDefinition")) => {
                self.begin();
                self.nad(part);
                self.of = 0;
            }
            (_, Some("CIDRPool")) => {
                self.pools += 1;
                let name = part.text("metadata.name").unwrap_or_default();
                self.leads_to(part, name, &["spec.routes"], "spec.cidr");
            }
            (_, Some(kind)) => {
                if let Some((_, plugin)) = OF_OPERATORS.iter().find(|(other, _)| *other == kind) {
                    self.begin();
                    self.of_operator(part, kind, plugin);
                    self.of = 0;
                }
            }
            (_, None) if has("type") || has("plugins") || has("cniVersion") => {
                self.begin();
                if !document.is_json {
                    self.error(part, "", "this is YAML: a container runtime reads JSON only".to_owned());
                }
                self.network(part, None);
                self.of = 0;
            }
            (_, None) => self.error(
                part,
                "",
                "neither a NetworkAttachmentDefinition (kind) nor a CNI configuration (type, plugins)"
                    .to_owned(),
            ),
        }
    }

    /// What an operator turns into a NAD with another plugin's `type`; what to write in its place.
    fn of_operator(&mut self, part: Part, kind: &str, plugin: &str) {
        let name = part.text("metadata.name").unwrap_or_default();
        self.annotated(part, name);
        let text = |path| part.text(path).filter(|text| !text.is_empty());
        let resource = text("spec.resourceName").unwrap_or("RESOURCE");
        let prefix = if kind == OF_OPERATORS[0].0 && !resource.contains('/') { "nvidia.com/" } else { "" };
        let namespace =
            text("spec.networkNamespace").map_or(String::new(), |of| format!(" in namespace {of}"));
        let ipam = part.get("spec.ipam").filter(|ipam| ipam.value.is_string());
        let ipam = ipam.and_then(|ipam| ipam.json().ok());
        let pool = ipam.as_ref().and_then(|ipam| ipam.root().text("poolName").or(ipam.root().text("pool")));
        let pool = pool.map_or(String::new(), |pool| {
            format!(", \"ipam\": {{\"type\": \"{OUR_IPAM}\", \"pool\": {pool:?}}}")
        });
        let message = format!(
            "kind: {kind}: its operator makes a network of type {plugin} of it, and would undo an edit of that: \
             delete it, and write a NetworkAttachmentDefinition {name}{namespace} with the annotation {RESOURCE}: \
             {prefix}{resource} and \"type\": \"{OURS}\"{pool} (the NADs of `rail-ipam plan --to nads` are such)"
        );
        self.warning(part, name, message);
    }

    /// Takes down where its routes lead.
    fn leads_to(&mut self, part: Part, name: &str, lists: &[&str], cidr: &str) {
        let mut paths = vec![cidr.to_owned()];
        for list in lists {
            let count = part.get(list).map_or(0, |list| list.items().count());
            paths.extend((0..count).map(|at| format!("{list}[{at}].dst")));
        }
        let net = |path: &String| Some((part.text(path)?.parse().ok()?, part.place(path)));
        self.routes.push(Routes { name: name.to_owned(), to: paths.iter().filter_map(net).collect() });
    }

    /// Do all these routes leave the cluster its own networks?
    fn compare_routes(&mut self) {
        let routes: Vec<(String, Vec<IpNet>)> = self
            .routes
            .iter()
            .map(|Routes { name, to }| (name.clone(), to.iter().map(|(net, _)| *net).collect()))
            .collect();
        let usual: Vec<IpNet> = USUAL.iter().filter_map(|usual| usual.network()).collect();
        let known = &self.cluster_networks;
        let taken = cluster_networks::taken_by(&routes, if known.is_empty() { &usual } else { known });
        let place = |taken: &Taken| {
            let mut all = self.routes.iter().flat_map(|routes| &routes.to);
            all.find(|(net, _)| *net == taken.route).map(|(_, place)| place.clone()).unwrap_or_default()
        };
        let remedy =
            "other addresses for the rails (firstOctet of the plan), or other networks for the cluster";
        let found: Vec<Finding> = if known.is_empty() {
            let problem = cluster_networks::usually_taken_by(&routes, "").into_iter().zip(taken.first());
            let finding = |(message, first): (String, &Taken)| Finding {
                severity: Severity::Warning,
                place: place(first),
                network: String::new(),
                of: 0,
                message: format!("{message}; where they overlap: {remedy}"),
            };
            problem.map(finding).collect()
        } else {
            let finding = |taken: &Taken| Finding {
                severity: Severity::Error,
                place: place(taken),
                network: String::new(),
                of: 0,
                message: format!("{taken}: {remedy}"),
            };
            taken.iter().map(finding).collect()
        };
        self.findings.extend(found);
    }

    fn nad(&mut self, nad: Part) {
        let name = nad.text("metadata.name").unwrap_or_default();
        self.annotated(nad, name);
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
        self.ignores_in(part, name);
        plugins
            .iter()
            .filter(|_| part.get("plugins").is_some())
            .for_each(|plugin| self.ignores_in(*plugin, name));
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
            let known = |key: &str| {
                LIST_KEYS.contains(&key) || key.starts_with("cni.dev/") || key == config::LINT_IGNORE
            };
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
        if let Err(error) = as_map.as_object().map_or(Ok(()), |map| plugin::parse(map).map(drop)) {
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
        if plugin.text("ipam.type") == Some(OUR_IPAM) {
            let spelt = self.spelt(plugin, name, &ipam::config::NETWORK);
            self.ipam(spelt.root(), context, version);
        } else if plugin.get("ipam").is_some() {
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
        self.findings.push(Finding { severity: Severity::Error, place, network, of: self.of, message });
    }

    /// When all was read.
    fn finish(&mut self) {
        self.across();
        self.compare_routes();
        self.silence();
        let order = |file: &String| self.files.iter().position(|other| other == file);
        self.findings.sort_by_cached_key(|Finding { place, .. }| (order(&place.file), place.line));
    }

    /// What each network says by itself may be, and all together not.
    fn across(&mut self) {
        let rails = std::mem::take(&mut self.rails);
        let mut findings = Vec::new();
        let mut add = |severity, rail: &Rail, message: String| {
            let (place, network, of) = (rail.place.clone(), rail.network.clone(), rail.of);
            findings.push(Finding { severity, place, network, of, message });
        };
        // Who said it first, by what is said and where that is unique.
        let mut first: HashMap<String, &Rail> = HashMap::new();
        for rail in &rails {
            let Rail { cluster, namespace, pools, resource, .. } = rail;
            let Some(number) = rail.rail else { continue };
            let mut other = |what: &str, namespace: &str, said: &str| {
                let before = *first.entry(format!("{what}\n{cluster}\n{namespace}\n{said}")).or_insert(rail);
                Some(before).filter(|before| !std::ptr::eq(*before, rail))
            };
            if let Some(other) = other("rail", namespace, &number.to_string()) {
                let message = format!("rail: {number} is also that of {} ({})", other.network, other.place);
                add(Severity::Warning, rail, message);
            }
            let differs = |other: &&Rail| other.rail != rail.rail;
            let of = |other: &Rail| {
                format!("rail {}, {} ({})", other.rail.unwrap_or_default(), other.network, other.place)
            };
            for pool in pools {
                if let Some(other) = other("pool", "", pool).filter(differs) {
                    let of = of(other);
                    let message =
                        format!("ipam: pool {pool} is also that of {of}: a prefix belongs to one rail");
                    add(Severity::Error, rail, message);
                }
            }
            if let Some(resource) = resource
                && let Some(other) = other("resource", "", resource).filter(differs)
            {
                let message = format!(
                    "metadata.annotations: the resource {resource} is also that of {}: a pod gets a device of either",
                    of(other)
                );
                add(Severity::Warning, rail, message);
            }
        }
        let mut shifts: BTreeMap<(&str, String), Vec<Shift>> = BTreeMap::new();
        for (index, rail) in rails.iter().enumerate() {
            let Some(number) = rail.rail.and_then(|number| i64::try_from(number).ok()) else { continue };
            for (what, name) in rail.names() {
                let Some((in_name, else_in_it)) = number_in(name) else { continue };
                let shift = in_name.saturating_sub(number);
                shifts.entry((what, else_in_it)).or_default().push((shift, index, name));
            }
        }
        // Who counts from 1, or a second plane's rails from 8, does so in all of these names.
        shifts.retain(|_, alike| alike.len() == 1 || alike.iter().any(|one| one.0 != alike[0].0));
        let mut odd: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for ((what, _), alike) in &shifts {
            for (_, index, name) in alike.iter().filter(|(shift, ..)| *shift != 0) {
                odd.entry(*index).or_default().push(format!("the {what} {name}"));
            }
        }
        for (index, names) in odd {
            let rail = &rails[index];
            let message = format!("rail: is {} in {}", rail.rail.unwrap_or_default(), names.join(", "));
            add(Severity::Warning, rail, message);
        }
        self.findings.extend(findings);
    }
}

/// 3 of `rail-3-v6`, `Rail3` and `cluster.rail_3`, 11 of `rail-3-plane-1`, and the name without the numbers.
fn number_in(name: &str) -> Option<(i64, String)> {
    let lower = name.to_ascii_lowercase();
    let (rail, rest) = take_number(&lower, "rail")?;
    match take_number(&rest, "plane") {
        Some((plane, rest)) => Some((i64::from(pool::number(rail, Some(plane))), rest)),
        None => Some((i64::from(rail), rest)),
    }
}

/// The number behind a word, and the text without it.
fn take_number(text: &str, word: &str) -> Option<(u8, String)> {
    let (before, after) = text.split_once(word)?;
    let digits = after.trim_start_matches(['-', '_', '.']);
    let (digits, rest) =
        digits.split_at(digits.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(digits.len()));
    Some((digits.parse().ok()?, format!("{before}{word}{rest}")))
}

#[cfg(test)]
mod tests;
