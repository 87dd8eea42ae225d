//! `rail-cni lint`: finds mistakes in networks before a pod does. It reads NetworkAttachmentDefinitions, CNI
//! configurations, and the routes of CIDRPools, and needs neither node.json nor root. ADD's own parser finds what ADD
//! would refuse.

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
use crate::document::{self, Document, Format, Part};
use crate::fault::{Fault, Place};
use crate::ipam;
use crate::nearest::nearest;
use crate::node::Node;
use crate::output::{self, Output};
use crate::pool;

const OURS: &str = "rail-cni";
const OUR_IPAM: &str = "rail-ipam";
/// Plugins whose configurations work with rail-cni once `type` is changed.
const LIKE_OURS: [&str; 3] = ["sriov", "ib-sriov", "host-device"];
/// Plugins that people chain behind these, and what replaces them here.
const IN_ONE: [(&str, &str); 3] = [
    ("tuning", "mtu, mac and sysctl are keys of rail-cni: only promisc, allmulti and txQLen need tuning"),
    ("sbr", "rail-cni makes rules and tables itself (routing), and sbr would move them: remove it"),
    (
        "rdma",
        "rail-cni moves RDMA devices itself (rdma), and rdma-cni would refuse one that is already there: remove it",
    ),
];
/// The keys of a list.
const LIST_KEYS: [&str; 7] =
    ["cniVersion", "cniVersions", "name", "plugins", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"];
/// Kinds of which an operator makes a NAD, with the `type` of that NAD.
const OF_OPERATORS: [(&str, &str); 2] = [("HostDeviceNetwork", "host-device"), ("SriovNetwork", "sriov")];
const RESOURCE: &str = "k8s.v1.cni.cncf.io/resourceName";

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    /// ADD refuses it, or nobody can intend it.
    Error,
    /// It works, perhaps not as it was intended.
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
    /// The name of the network; empty where the finding is about none.
    network: String,
    /// The number of the network in the order of reading, from 1; 0 where the finding is about none.
    of: usize,
    fault: Fault,
}

/// The values of a network that no other network may have.
#[derive(Debug)]
struct Rail {
    /// The position of `rail`, or of the object that would have it.
    place: Place,
    network: String,
    /// As in a [`Finding`].
    of: usize,
    /// The name of the NAD, or else that of the network.
    name: String,
    cluster: String,
    namespace: String,
    rail: Option<u64>,
    pools: Vec<String>,
    resource: Option<String>,
}

/// The destinations of a network or a pool, beside the node's own prefix.
#[derive(Debug)]
struct Routes {
    name: String,
    to: Vec<(IpNet, Place)>,
}

/// The difference between the number in a name and the rail; the index of the rail, and the name.
type Shift<'a> = (i64, usize, &'a str);

/// All that was read, and what was found.
#[derive(Debug, Default)]
pub struct Lint {
    /// The files in the order of the arguments.
    files: Vec<String>,
    findings: Vec<Finding>,
    /// The warnings that files silence, and the findings that were silenced, with the reason.
    ignores: Vec<Ignore>,
    silenced: Vec<(Finding, String)>,
    /// The number of the current network, as in a [`Finding`], and of all so far.
    of: usize,
    seen: usize,
    rails: Vec<Rail>,
    routes: Vec<Routes>,
    /// The cluster's own networks, of node.json.
    cluster_networks: Vec<IpNet>,
    /// The number of CIDRPools.
    pools: usize,
    /// The first position of each network, by cluster, namespace and name.
    names: BTreeMap<[String; 3], Place>,
    networks: usize,
    others: usize,
}

/// Checks all files, and all files in directories, and prints the findings.
pub fn lint(files: &[String], output: Output) -> Result<ExitCode> {
    let lint = Lint::of(files, Node::load()?.cluster_networks);
    output::print(&lint.text(output))?;
    Ok(if lint.count(Severity::Error) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { severity, network, fault, .. } = self;
        write!(f, "{}: {severity}: ", fault.place)?;
        if !network.is_empty() {
            write!(f, "{network}: ")?;
        }
        f.write_str(&fault.message())
    }
}

impl Finding {
    fn json(&self) -> Value {
        let Finding { severity, network, fault, .. } = self;
        let Place { file, line, column } = &fault.place;
        let known = |number: u32| (number != 0).then_some(number);
        let network = (!network.is_empty()).then_some(network);
        json!({"file": file, "line": known(*line), "column": known(*column), "severity": severity.to_string(),
            "network": network, "message": fault.message()})
    }
}

/// What a file may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Networks: a file with none is a mistake.
    Networks,
    /// Any manifests, of which some may be networks.
    Anything,
}

/// One network of a file.
struct Context<'a> {
    name: String,
    /// The scope in which the name is unique: nothing for a NAD, which has a namespace; for a file of a runtime, its
    /// directory.
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
    /// The name that pods ask for.
    fn unique(&self) -> &str {
        self.nad.and_then(|nad| nad.text("metadata.name")).unwrap_or(&self.name)
    }
}

impl Lint {
    /// Checks all files, and all files in directories, of a cluster with these networks of its own.
    pub fn of(files: &[String], cluster_networks: Vec<IpNet>) -> Lint {
        let mut lint = Lint { cluster_networks, ..Lint::default() };
        for file in files {
            lint.path(file);
        }
        lint.finish();
        lint
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// The findings, and the number of networks.
    pub fn text(&self, output: Output) -> String {
        let Lint { findings, silenced, networks, others, .. } = self;
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        match output {
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
                let beside =
                    if others == 0 { String::new() } else { format!(" ({others} of other plugins)") };
                let (errors, warnings) = (some(errors, "error"), some(warnings, "warning"));
                let silenced = if silenced.is_empty() {
                    String::new()
                } else {
                    format!(", {} silenced", silenced.len())
                };
                lines.collect::<String>() + &format!("{networks}{beside}: {errors}, {warnings}{silenced}\n")
            }
        }
    }

    fn say(&mut self, severity: Severity, network: &str, fault: Fault) {
        self.findings.push(Finding { severity, network: network.to_owned(), of: self.of, fault });
    }

    /// An error at the path `path` below `part`.
    fn error(&mut self, part: Part, network: &str, path: &str, problem: impl Into<String>) {
        self.say(Severity::Error, network, part.fault(path, problem));
    }

    /// A warning at the path `path` below `part`.
    fn warning(&mut self, part: Part, network: &str, path: &str, problem: impl Into<String>) {
        self.say(Severity::Warning, network, part.fault(path, problem));
    }

    fn fault(&mut self, network: &str, fault: Fault) {
        self.say(Severity::Error, network, fault);
    }

    /// Reads a file, or a directory: of manifests, or one that a runtime reads, such as /etc/cni/net.d.
    fn path(&mut self, path: &str) {
        if !Path::new(path).is_dir() {
            return self.file(path, Content::Networks);
        }
        let fault = |problem: &str| Fault::whole(problem).at(Place::file(path));
        let names = std::fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>());
        let mut names = match names {
            Ok(names) => names,
            Err(error) => return self.fault("", fault(&error.to_string())),
        };
        let ends = |name: &Path, ends: &[&str]| {
            name.extension().and_then(|end| end.to_str()).is_some_and(|end| ends.contains(&end))
        };
        names.retain(|name| ends(name, &["conf", "conflist", "json", "yaml", "yml"]));
        names.sort();
        let before = self.found();
        for name in &names {
            // Beside NADs are pods, values, kustomizations. The other endings are those of a runtime's files.
            let content = if ends(name, &["yaml", "yml"]) { Content::Anything } else { Content::Networks };
            self.file(&name.display().to_string(), content);
        }
        if self.found() == before {
            let problem = if names.is_empty() {
                "no .conf, .conflist, .json, .yaml or .yml in this directory"
            } else {
                "no NetworkAttachmentDefinition and no CNI configuration in this directory"
            };
            self.fault("", fault(problem));
        }
    }

    /// The number of findings, and of all objects that were read.
    fn found(&self) -> usize {
        self.findings.len() + self.networks + self.others + self.pools
    }

    /// Reads one file.
    fn file(&mut self, file: &str, content: Content) {
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
        for document in
            documents.iter().filter(|document| content == Content::Networks || is_manifest(document))
        {
            self.value(document.root(), document);
        }
        if self.found() == before && content == Content::Networks {
            let problem = "no NetworkAttachmentDefinition and no CNI configuration in it";
            self.fault("", Fault::whole(problem).at(Place::file(file)));
        }
    }

    /// Begins another network.
    fn begin(&mut self) {
        self.seen += 1;
        self.of = self.seen;
    }

    /// Checks a network, or a list of them as kubectl prints it. Pods and other objects are ignored.
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
                if document.format == Format::Yaml {
                    self.error(part, "", "", "this is YAML: a container runtime reads JSON only");
                }
                self.network(part, None);
                self.of = 0;
            }
            (_, None) => {
                let problem =
                    "neither a NetworkAttachmentDefinition (kind) nor a CNI configuration (type, plugins)";
                self.error(part, "", "", problem);
            }
        }
    }

    /// Reports an object of which an operator makes a NAD, with the NAD to write instead.
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
        let problem = format!(
            "{kind}: its operator makes a network of type {plugin} of it, and would undo an edit of that network: \
             delete it, and write a NetworkAttachmentDefinition {name}{namespace} with the annotation {RESOURCE}: \
             {prefix}{resource} and \"type\": \"{OURS}\"{pool} (`rail-ipam plan --to nads` writes such ones)"
        );
        self.warning(part, name, "kind", problem);
    }

    /// Notes where its routes lead.
    fn leads_to(&mut self, part: Part, name: &str, lists: &[&str], cidr: &str) {
        let mut paths = vec![cidr.to_owned()];
        for list in lists {
            let count = part.get(list).map_or(0, |list| list.items().count());
            paths.extend((0..count).map(|at| format!("{list}[{at}].dst")));
        }
        let net = |path: &String| Some((part.text(path)?.parse().ok()?, part.place(path)));
        self.routes.push(Routes { name: name.to_owned(), to: paths.iter().filter_map(net).collect() });
    }

    /// Compares all routes with the cluster's own networks.
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
        let finding = |severity, fault: Fault| Finding { severity, network: String::new(), of: 0, fault };
        let found: Vec<Finding> = if known.is_empty() {
            let problem = cluster_networks::usually_taken_by(&routes, "").into_iter().zip(taken.first());
            let warning = |(problem, first): (String, &Taken)| {
                let remedy = format!("{problem}; where they overlap: {remedy}");
                finding(Severity::Warning, Fault::whole(remedy).at(place(first)))
            };
            problem.map(warning).collect()
        } else {
            let error = |taken: &Taken| {
                let fault = Fault::whole(taken.to_string()).remedy(remedy).at(place(taken));
                finding(Severity::Error, fault)
            };
            taken.iter().map(error).collect()
        };
        self.findings.extend(found);
    }

    fn nad(&mut self, nad: Part) {
        let name = nad.text("metadata.name").unwrap_or_default();
        self.annotated(nad, name);
        if name.is_empty() {
            self.error(nad, "", "metadata.name", "is missing");
        }
        if nad.text("apiVersion") != Some("k8s.cni.cncf.io/v1") {
            self.error(nad, name, "apiVersion", "is not k8s.cni.cncf.io/v1");
        }
        let spec = nad.get("spec");
        if let Some(spec) = spec {
            self.keys(spec, name, "spec.", |key| key == "config", &["config"]);
        }
        match nad.get("spec.config") {
            Some(config) if config.value.is_string() => match config.json() {
                Ok(document) => self.network(document.root(), Some(nad)),
                Err(fault) => self.fault(name, Fault { path: "spec.config".to_owned(), ..fault }),
            },
            Some(_) => {
                let problem = "is not a text: write the JSON as a block, below `config: |`";
                self.error(nad, name, "spec.config", problem);
            }
            None if spec.is_some_and(|spec| is_misspelt(spec, "config", &["config"])) => (),
            None => {
                let problem =
                    "has no config, so Multus takes the file of this name in /etc/cni/net.d of each node";
                self.warning(nad, name, "spec", problem);
            }
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
        let directory = |file: &str| Path::new(file).parent().map(|path| path.display().to_string());
        let cluster = if nad.is_some() { None } else { directory(&part.place("").file) }.unwrap_or_default();
        let context = Context { name: name.to_owned(), cluster, namespace, nad, resource, in_list };
        self.names(part, &context);
        let version = self.versions(part, &context);
        if in_list {
            if plugins.is_empty() {
                self.error(part, name, "plugins", "has no plugin");
            }
            let known = |key: &str| {
                LIST_KEYS.contains(&key) || key.starts_with("cni.dev/") || key == config::LINT_IGNORE
            };
            for (key, inner) in part.entries().filter(|(key, _)| !known(key)) {
                if config::is_known(key) {
                    self.error(part, name, key, "belongs to a plugin, inside of plugins[0]");
                } else {
                    self.unknown(inner, name, key, &LIST_KEYS);
                }
            }
        }
        let is_chained = |plugin: &Part| plugin.text("mode") == Some("rdma");
        let is_whole = |plugin: &Part| plugin.text("type") == Some(OURS) && !is_chained(plugin);
        let ours = plugins.iter().any(is_whole);
        for (at, plugin) in plugins.iter().copied().enumerate() {
            let kind = plugin.text("type").unwrap_or_default();
            if kind == OURS && is_chained(&plugin) {
                let problem = match &plugins[..at] {
                    [] => Some("needs a plugin before it in the list, one that attaches the interface"),
                    before if before.iter().any(is_whole) => Some(
                        "a rail of rail-cni has it all in one: write the keys there, and remove this plugin",
                    ),
                    _ => None,
                };
                if let Some(problem) = problem {
                    self.error(plugin, name, "mode", problem);
                }
                self.chained(plugin, &context, version);
            } else if kind == OURS {
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
            self.error(part, name, "name", format!("{error:#}"));
        }
        let unique = context.unique();
        if unique != name {
            let problem = format!(
                "{name:?} in the NAD {unique:?}: leases and records have the first name, messages of Multus the second"
            );
            self.warning(part, name, "name", problem);
        }
        let place = nad.map_or_else(|| part.place("name"), |nad| nad.place("metadata.name"));
        let key = [cluster.clone(), namespace.clone(), unique.to_owned()];
        if let Some(first) = self.names.get(&key) {
            let problem = format!("{unique} is also in {first}: one would replace the other");
            return self.fault(name, Fault::whole(problem).at(place));
        }
        self.names.insert(key, place);
    }

    /// Checks the versions with the rules of runtimes, and returns the newest known one.
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
                    self.error(part, name, &path, format!("{} is not one of {all}", item.value));
                }
            }
        }
        if !any && !is_misspelt(part, "cniVersion", &["cniVersion", "cniVersions"]) {
            let problem = "is missing: runtimes take 0.1.0, which has no CHECK, STATUS and GC";
            self.warning(part, name, "cniVersion", problem);
        }
        let (Some(oldest), Some(newest)) = (known.iter().min().copied(), known.iter().max().copied()) else {
            return Version::V110;
        };
        let both = "\"cniVersion\": \"1.0.0\", \"cniVersions\": [\"1.0.0\", \"1.1.0\"] in a list works with old and new \
                    runtimes";
        let mut warn = |problem: String| self.warning(part, name, "cniVersion", problem);
        if newest < Version::V040 {
            warn(format!("{} has no CHECK, STATUS and GC: {both}", newest.as_str()));
        } else if newest < Version::V110 && context.nad.is_none() {
            // Multus never sends them to its networks.
            warn(format!("{} has no STATUS and GC: {both}", newest.as_str()));
        }
        let first = part.text("cniVersion").and_then(Version::parse);
        if first == Some(Version::V110)
            && oldest == Version::V110
            && (context.in_list || context.nad.is_some())
        {
            let refusers = "libcni before 1.2 (containerd before 2.0, Multus before 4.2)";
            warn(format!("1.1.0 alone is refused by {refusers}: {both}"));
        }
        newest
    }

    /// A plugin that is not ours, in a list with ours or beside our IPAM.
    fn other(&mut self, plugin: Part, context: &Context, beside_ours: bool, version: Version) {
        let name = &context.name;
        let kind = plugin.text("type").unwrap_or_default();
        if kind.is_empty() {
            return self.error(plugin, name, "type", "is missing: runtimes refuse a plugin without it");
        }
        if kind == OUR_IPAM {
            let problem = format!("{OUR_IPAM} is an IPAM plugin: it belongs in ipam.type of {OURS}");
            return self.error(plugin, name, "type", problem);
        }
        if let Some(meant) = nearest(kind, [OURS]) {
            return self.error(plugin, name, "type", format!("{kind:?}: did you mean {meant}?"));
        }
        let in_one = IN_ONE.iter().find(|(other, _)| *other == kind);
        if let Some((_, instead)) = in_one.filter(|_| beside_ours) {
            self.warning(plugin, name, "type", format!("{kind}: {instead}"));
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
        let errors: Vec<_> = errors.map(|finding| finding.fault.message()).collect();
        let kind = plugin.text("type").unwrap_or_default();
        let but =
            if errors.is_empty() { String::new() } else { format!(", apart from: {}", errors.join("; ")) };
        let problem = format!("{kind}: {OURS} takes this configuration when type is changed{but}");
        self.warning(plugin, &context.name, "type", problem);
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
        let problem = match nearest(key, known.iter().copied()) {
            Some(meant) => format!("unknown key: did you mean {meant}?"),
            None => "unknown key".to_owned(),
        };
        self.fault(network, Fault::new(path, problem).at(part.place("")));
    }

    /// Compares all networks, when all files are read.
    fn finish(&mut self) {
        self.across();
        self.compare_routes();
        self.silence();
        let order = |file: &String| self.files.iter().position(|other| other == file);
        self.findings
            .sort_by_cached_key(|Finding { fault, .. }| (order(&fault.place.file), fault.place.line));
    }

    /// Compares values that are good in each network by itself.
    fn across(&mut self) {
        let rails = std::mem::take(&mut self.rails);
        let mut findings = Vec::new();
        let mut add = |severity, rail: &Rail, path: &str, problem: String| {
            let (network, of) = (rail.network.clone(), rail.of);
            let fault = Fault::new(path, problem).at(rail.place.clone());
            findings.push(Finding { severity, network, of, fault });
        };
        // The first network with a value, by the kind of the value and the scope in which it is unique.
        let mut first: HashMap<String, &Rail> = HashMap::new();
        for rail in &rails {
            let Rail { cluster, namespace, pools, resource, .. } = rail;
            let Some(number) = rail.rail else { continue };
            let mut other = |what: &str, namespace: &str, said: &str| {
                let before = *first.entry(format!("{what}\n{cluster}\n{namespace}\n{said}")).or_insert(rail);
                Some(before).filter(|before| !std::ptr::eq(*before, rail))
            };
            if let Some(other) = other("rail", namespace, &number.to_string()) {
                let problem = format!("{number} is also the rail of {} ({})", other.network, other.place);
                add(Severity::Warning, rail, "rail", problem);
            }
            let differs = |other: &&Rail| other.rail != rail.rail;
            let of = |other: &Rail| {
                format!("rail {}, {} ({})", other.rail.unwrap_or_default(), other.network, other.place)
            };
            for pool in pools {
                if let Some(other) = other("pool", "", pool).filter(differs) {
                    let of = of(other);
                    let problem =
                        format!("pool {pool} is also the pool of {of}: a prefix belongs to one rail");
                    add(Severity::Error, rail, "ipam", problem);
                }
            }
            if let Some(resource) = resource {
                if let Some(other) = other("resource", "", resource).filter(differs) {
                    let problem = format!(
                        "the resource {resource} is also the resource of {}: a pod gets a device of either rail",
                        of(other)
                    );
                    add(Severity::Warning, rail, "metadata.annotations", problem);
                }
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
        // A fabric that counts rails from 1, or those of a second plane from 8, does so in all of these names.
        shifts.retain(|_, alike| alike.len() == 1 || alike.iter().any(|one| one.0 != alike[0].0));
        let mut odd: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for ((what, _), alike) in &shifts {
            for (_, index, name) in alike.iter().filter(|(shift, ..)| *shift != 0) {
                odd.entry(*index).or_default().push(format!("the {what} {name}"));
            }
        }
        for (index, names) in odd {
            let rail = &rails[index];
            let problem = format!("is {} in {}", rail.rail.unwrap_or_default(), names.join(", "));
            add(Severity::Warning, rail, "rail", problem);
        }
        self.findings.extend(findings);
    }
}

/// Whether an unknown key of `part` probably means `key`. Then `key` is not reported as missing.
fn is_misspelt(part: Part, key: &str, known: &[&str]) -> bool {
    let means = |(given, _): (&str, Part)| {
        !known.contains(&given) && nearest(given, known.iter().copied()) == Some(key)
    };
    part.entries().any(means)
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
