//! `railctl lint`: finds mistakes in networks before a pod does, and prints what networks of other
//! plugins and operators become. It reads NetworkAttachmentDefinitions, CNI configurations, objects
//! of operators, pods, and the routes of CIDRPools, and needs neither node.json nor root. ADD's own
//! parser finds what ADD would refuse.

mod across;
mod chain;
mod fix;
mod ignore;
mod markdown;
mod operators;
mod plugin;
mod pods;
mod resources;
mod spiderpool;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use self::chain::Chain;
use self::fix::Fixed;
use self::ignore::Ignore;
use crate::output::{self, Output};
use rail_cni::cni::{VERSIONS, Version};
use rail_cni::fault::{Fault, Place};
use rail_cni::ipam;
use rail_cni::nearest::nearest;
use rail_cni::netconf;
use rail_cni::node::Node;
use rail_cni::pool;
use rail_plan::document::{self, Document, Format, Part};
use rail_plan::manifest;

const OURS: &str = "rail-cni";
const OUR_IPAM: &str = "rail-ipam";
/// Plugins whose configurations work with rail-cni once `type` is changed.
const LIKE_OURS: [&str; 4] = ["sriov", "ib-sriov", "host-device", "amd-host-device"];
/// The keys of a list.
const LIST_KEYS: [&str; 7] = [
    "cniVersion",
    "cniVersions",
    "name",
    "plugins",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
];
const RESOURCE: &str = "k8s.v1.cni.cncf.io/resourceName";

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    /// ADD refuses it, or it cannot be intended.
    Error,
    /// It works, perhaps not as it was intended.
    Warning,
    /// No action is needed.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

#[derive(Debug)]
struct Finding {
    severity: Severity,
    /// The name of the network; empty where the finding is about none.
    network: String,
    /// The number of the network in the order of reading, from 1; 0 where the finding is about
    /// none.
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

/// The destinations and addresses of a network or a pool.
#[derive(Debug)]
struct Routes {
    name: String,
    to: Vec<(IpNet, Place)>,
}

/// Addresses that an IPAM plugin hands out for a network.
#[derive(Debug)]
struct Range {
    network: String,
    /// Cluster and namespace: a pod has no networks of two.
    scope: [String; 2],
    /// On every node, and not on one.
    is_of_all_nodes: bool,
    of: usize,
    ipam: String,
    range: IpNet,
    place: Place,
}

/// The difference between the number in a name and the rail; the index of the rail, and the name.
type Shift<'a> = (i64, usize, &'a str);

/// The files, and the findings.
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
    ranges: Vec<Range>,
    /// The resource of each NAD, by namespace and name.
    nads: BTreeMap<(String, String), Option<String>>,
    pods: Vec<pods::Pod>,
    resources: resources::Resources,
    fixed: Vec<fix::Fixed>,
    /// The comments of the current document, for its first network.
    comments: Vec<String>,
    /// The kind of the object of which an operator makes the current network, and what else it
    /// makes of it.
    made_by: Option<(String, &'static str)>,
    /// The MTU of VFs, by resource.
    mtus: BTreeMap<String, u64>,
    /// Resources whose VFs have a driver for user space.
    userspace: BTreeSet<String>,
    /// The number of objects beside networks that were read.
    noted: usize,
    /// Of node.json, the cluster's own networks and the IPAM plugins: what is meant for all nodes.
    node: Node,
    /// The number of CIDRPools.
    pools: usize,
    /// The first position of each network, by cluster, namespace and name.
    names: BTreeMap<[String; 3], Place>,
    networks: usize,
    others: usize,
}

/// Checks all files, and all files in directories, and prints the findings; with `fix`, the
/// networks, and the findings on stderr.
pub fn lint(files: &[String], fix: bool, output: Output) -> Result<ExitCode> {
    let (here, mut node) = (Node::load()?, Node::default());
    (node.cluster_networks, node.policy.ipam) = (here.cluster_networks, here.policy.ipam);
    let mut lint = Lint::of(files, node);
    if fix {
        let networks = lint.fixed();
        output::print(&networks)?;
        lint.text(output).lines().for_each(output::say);
    } else {
        output::print(&lint.text(output))?;
    }
    Ok(if lint.count(Severity::Error) == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.for_people()))
    }
}

/// `nads.yaml:5: error: rail-0: mtuu: unknown key`.
fn one_line(finding: &output::Finding) -> String {
    let output::Finding {
        kind,
        place,
        subject,
        text,
        ..
    } = finding;
    if subject.is_empty() {
        format!("{place}: {kind}: {text}")
    } else {
        format!("{place}: {kind}: {subject}: {text}")
    }
}

impl Finding {
    fn for_people(&self) -> output::Finding {
        output::Finding {
            kind: self.severity.to_string(),
            place: self.fault.place.to_string(),
            subject: self.network.clone(),
            text: self.fault.message(),
            remedy: None,
        }
    }

    fn json(&self) -> Value {
        let Finding {
            severity,
            network,
            fault,
            ..
        } = self;
        let Place { file, line, column } = &fault.place;
        let known = |number: u32| (number != 0).then_some(number);
        let network = (!network.is_empty()).then_some(network);
        json!({"file": file, "line": known(*line), "column": known(*column), "severity": severity.to_string(),
            "network": network, "message": fault.message()})
    }
}

/// The content of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Networks: a file with none is a mistake.
    Networks,
    /// Any manifests, of which some may be networks.
    Anything,
    /// Settings of a program, such as whereabouts.d/whereabouts.conf, or networks.
    Settings,
    /// Text with manifests in it, and with parts of some.
    Page,
}

/// One network of a file.
struct Context<'a> {
    name: String,
    /// The scope in which the name is unique: nothing for a NAD, which has a namespace; for a file
    /// of a runtime, its directory.
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
        let resource = self
            .resource
            .iter()
            .map(|resource| ("resource", resource.as_str()));
        [("network", self.name.as_str())]
            .into_iter()
            .chain(pools)
            .chain(resource)
    }
}

impl Context<'_> {
    /// The name that pods ask for.
    fn unique(&self) -> &str {
        self.nad
            .and_then(|nad| nad.text("metadata.name"))
            .unwrap_or(&self.name)
    }
}

impl Lint {
    /// Checks all files, and all files in directories, of a cluster with these networks of its own.
    pub fn of(files: &[String], node: Node) -> Lint {
        let mut lint = Lint {
            node,
            ..Lint::default()
        };
        for file in files {
            lint.path(file);
        }
        lint.finish();
        lint
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    }

    /// The findings, and the number of networks.
    pub fn text(&self, output: Output) -> String {
        let Lint {
            findings,
            silenced,
            networks,
            others,
            ..
        } = self;
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
                output::pretty(
                    &json!({"networks": networks, "otherNetworks": others, "errors": errors,
                    "warnings": warnings, "findings": findings, "silenced": silenced}),
                )
            }
            Output::Table => {
                let findings = findings.iter().map(Finding::for_people).collect();
                let mut lines = String::new();
                for finding in output::merged(findings, "network") {
                    lines += &output::line(&one_line(&finding));
                }
                let some =
                    |count, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
                let (networks, others) = (some(*networks, "network"), *others);
                let beside = if others == 0 {
                    String::new()
                } else {
                    format!(" ({others} of other plugins)")
                };
                let (errors, warnings) = (some(errors, "error"), some(warnings, "warning"));
                let silenced = if silenced.is_empty() {
                    String::new()
                } else {
                    format!(", {} silenced", silenced.len())
                };
                lines + &format!("{networks}{beside}: {errors}, {warnings}{silenced}\n")
            }
        }
    }

    fn say(&mut self, severity: Severity, network: &str, fault: Fault) {
        self.findings.push(Finding {
            severity,
            network: network.to_owned(),
            of: self.of,
            fault,
        });
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

    /// Reads a file, or a directory with all below it: of manifests, or one that a runtime reads,
    /// such as /etc/cni/net.d.
    fn path(&mut self, path: &str) {
        if !Path::new(path).is_dir() {
            return self.file(path, Content::Networks);
        }
        const EXTENSIONS: [&str; 5] = ["conf", "conflist", "json", "yaml", "yml"];
        let files = match document::files_below(Path::new(path), &EXTENSIONS) {
            Ok(files) => files,
            Err(fault) => return self.fault("", fault),
        };
        let before = self.found();
        for file in &files {
            // Beside NADs are pods, values, kustomizations. The other endings are those of a
            // runtime's files, but a runtime reads no directory below its own.
            let content = if document::has_extension(file, &["yaml", "yml"]) {
                Content::Anything
            } else if file.parent() == Some(Path::new(path)) {
                Content::Networks
            } else {
                Content::Settings
            };
            self.file(&file.display().to_string(), content);
        }
        if self.found() == before {
            let problem = if files.is_empty() {
                "no .conf, .conflist, .json, .yaml or .yml in this directory"
            } else {
                "no NetworkAttachmentDefinition and no CNI configuration in this directory"
            };
            self.fault("", Fault::whole(problem).at(Place::file(path)));
        }
    }

    /// The number of findings, and of all objects that were read.
    fn found(&self) -> usize {
        self.findings.len()
            + self.networks
            + self.others
            + self.pools
            + self.noted
            + self.pods.len()
    }

    /// Reads one file.
    fn file(&mut self, file: &str, content: Content) {
        self.files.push(file.to_owned());
        let before = self.found();
        let is_page = [".md", ".markdown"].iter().any(|end| file.ends_with(end));
        let mut text = String::new();
        let read = if is_page {
            self.page(file)
        } else {
            document::Text::read(file).and_then(|read| {
                text = String::from_utf8_lossy(&read.bytes).into_owned();
                document::parse(&read.file, &read.bytes)
            })
        };
        let documents = match read {
            Ok(documents) => documents,
            Err(fault) => return self.fault("", fault),
        };
        let content = if is_page { Content::Page } else { content };
        let is_manifest = |document: &&Document| {
            let root = document.root();
            root.get("kind").is_some()
                || root
                    .items()
                    .next()
                    .is_some_and(|item| item.get("kind").is_some())
        };
        // A page also shows parts of objects.
        let is_whole = |document: &&Document| {
            let root = document.root();
            root.get("type").is_some() && root.get("cniVersion").is_some()
                || root.get("plugins").is_some()
                || root.get("resourceList").is_some()
                || is_node_json(root)
        };
        for document in documents.iter().filter(|document| match content {
            Content::Networks => true,
            Content::Anything => is_manifest(document),
            Content::Page | Content::Settings => is_manifest(document) || is_whole(document),
        }) {
            self.comments = match document.format {
                Format::Yaml => fix::comments(&text, document.root().place("").line),
                Format::Json => Vec::new(),
            };
            self.value(document.root(), document);
        }
        let may_be_empty = matches!(content, Content::Anything | Content::Settings);
        if self.found() == before && !may_be_empty {
            let problem = "no NetworkAttachmentDefinition and no CNI configuration in it";
            self.fault("", Fault::whole(problem).at(Place::file(file)));
        }
    }

    /// The manifests in a page of Markdown. What is no YAML there is left out, and said.
    fn page(&mut self, file: &str) -> Result<Vec<Document>, Fault> {
        let text = document::Text::read(file)?;
        let mut all = Vec::new();
        for block in markdown::blocks(&String::from_utf8_lossy(&text.bytes)) {
            match document::parse(&text.file, block.as_bytes()) {
                Ok(documents) => all.extend(documents),
                Err(fault) => self.say(Severity::Warning, "", fault),
            }
        }
        Ok(all)
    }

    /// Begins another network.
    fn begin(&mut self) {
        self.seen += 1;
        self.of = self.seen;
    }

    /// Checks a network, or a list of them as kubectl prints it. Pods and other objects are
    /// ignored.
    fn value(&mut self, part: Part, document: &Document) {
        let has = |key| part.get(key).is_some();
        match (part.value, part.text("kind")) {
            (Value::Array(list), _) if list.iter().all(Value::is_object) => {
                part.items().for_each(|item| self.value(item, document))
            }
            (_, Some(kind)) => self.object(part, kind, document),
            (_, None) if has("type") || has("plugins") || has("cniVersion") => {
                self.begin();
                if document.format == Format::Yaml {
                    self.error(
                        part,
                        "",
                        "",
                        "this is YAML: a container runtime reads JSON only",
                    );
                }
                self.network(part, None);
                self.of = 0;
            }
            (_, None) if self.device_plugin(part, "the device plugin") => self.noted += 1,
            (_, None) if is_node_json(part) => self.node_json(part),
            (_, None) => {
                let problem = "neither a NetworkAttachmentDefinition (kind) nor a CNI configuration (type, plugins)";
                self.error(part, "", "", problem);
            }
        }
    }

    /// An object of Kubernetes, or a list of them.
    fn object(&mut self, part: Part, kind: &str, document: &Document) {
        match (kind, kind.strip_suffix("List"), part.get("items")) {
            ("NetworkAttachmentDefinition", ..) => {
                self.begin();
                self.nad(part);
                self.of = 0;
            }
            ("CIDRPool", ..) => {
                self.pools += 1;
                let name = part.text("metadata.name").unwrap_or_default();
                for fault in manifest::faults(part) {
                    self.fault("", fault.of(format!("CIDRPool {name}")));
                }
                self.leads_to(part, name, &["spec.routes"], &["spec.cidr"]);
                if let Some(spec) = part.get("spec") {
                    self.pool_holds(name, spec);
                }
            }
            ("ConfigMap", ..) => {
                let name = part.text("metadata.name").unwrap_or_default();
                if self.config_map(part, name) {
                    self.noted += 1;
                }
            }
            ("ResourceClaim" | "ResourceClaimTemplate" | "DeviceClass", ..) => {
                self.claim(part);
                self.noted += 1;
            }
            // The API server leaves the kind out of the items of a list that has it.
            (_, Some(of), Some(items)) => {
                items.items().for_each(|item| match item.text("kind") {
                    None if !of.is_empty() => self.object(item, of, document),
                    _ => self.value(item, document),
                });
            }
            _ => {
                if !self.of_operator(part, kind) {
                    self.pods(part, part.text("metadata.name").unwrap_or_default());
                }
            }
        }
    }

    fn nad(&mut self, nad: Part) {
        let name = nad.text("metadata.name").unwrap_or_default();
        self.annotated(nad, name);
        match nad
            .get("metadata.name")
            .filter(|name| !name.value.is_null())
        {
            Some(given) if !given.value.is_string() => {
                self.error(
                    nad,
                    "",
                    "metadata.name",
                    "is not a text: write it in quotes",
                );
            }
            _ if name.is_empty() => self.error(nad, "", "metadata.name", "is missing"),
            _ => (),
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
                Err(fault) => self.fault(
                    name,
                    Fault {
                        path: "spec.config".to_owned(),
                        ..fault
                    },
                ),
            },
            Some(_) => {
                let problem = "is not a string: write the JSON as a block, below `config: |`";
                self.error(nad, name, "spec.config", problem);
            }
            None if spec.is_some_and(|spec| is_misspelt(spec, "config", &["config"])) => (),
            None => {
                let problem = "has no config, so Multus uses the file of this name in /etc/cni/net.d of each node";
                self.warning(nad, name, "spec", problem);
            }
        }
    }

    /// A CNI configuration: one plugin, or a list.
    fn network(&mut self, part: Part, nad: Option<Part>) {
        let metadata = |key| nad.and_then(|nad| nad.text(key)).unwrap_or_default();
        // Multus gives a configuration without a name the NAD's.
        let name = part
            .text("name")
            .filter(|name| !name.is_empty())
            .unwrap_or(metadata("metadata.name"));
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
            near(main) || near(ipam) || is_like_ours(main) || main.is_empty()
        };
        let resource = nad
            .and_then(|nad| nad.get("metadata.annotations"))
            .and_then(|all| all.text(RESOURCE));
        let in_list = part.get("plugins").is_some();
        let namespace = metadata("metadata.namespace").to_owned();
        let directory = |file: &str| {
            Path::new(file)
                .parent()
                .map(|path| path.display().to_string())
        };
        let cluster = if nad.is_some() {
            None
        } else {
            directory(&part.place("").file)
        }
        .unwrap_or_default();
        let context = Context {
            name: name.to_owned(),
            cluster,
            namespace,
            nad,
            resource,
            in_list,
        };
        if nad.is_some() {
            let key = (context.namespace.clone(), context.unique().to_owned());
            self.nads.insert(key, resource.map(str::to_owned));
        }
        if !plugins.is_empty() && !plugins.iter().any(is_ours) && self.made_by.is_none() {
            self.others += 1;
            return;
        }
        if let Some(nad) = nad {
            self.demand(nad, &plugins, &context);
        }
        if let Some((kind, also)) = self.made_by.clone() {
            return self.made(part, &plugins, &context, &kind, also);
        }
        self.networks += 1;
        self.names(part, &context);
        let version = self.versions(part, &context);
        if in_list {
            if plugins.is_empty() {
                self.error(part, name, "plugins", "has no plugin");
            }
            let known = |key: &str| {
                LIST_KEYS.contains(&key)
                    || key.starts_with("cni.dev/")
                    || key == netconf::LINT_IGNORE
            };
            for (key, inner) in part.entries().filter(|(key, _)| !known(key)) {
                if netconf::is_known(key) {
                    self.error(part, name, key, "belongs in a plugin, plugins[0]");
                } else {
                    self.unknown(inner, name, key, &LIST_KEYS);
                }
            }
        }
        let is_chained = |plugin: &Part| plugin.text("mode") == Some("rdma");
        let is_whole = |plugin: &Part| plugin.text("type") == Some(OURS) && !is_chained(plugin);
        self.become_ours(part, &plugins, &context);
        for (at, plugin) in plugins.iter().copied().enumerate() {
            let kind = plugin.text("type").unwrap_or_default();
            if kind == OURS && is_chained(&plugin) {
                let problem = match &plugins[..at] {
                    [] => Some(
                        "needs a plugin before it in the list, one that attaches the interface",
                    ),
                    before if before.iter().any(is_whole) => Some(
                        "rail-cni does all of this in one plugin: write the keys there, and remove this one",
                    ),
                    _ => None,
                };
                if let Some(problem) = problem {
                    self.error(plugin, name, "mode", problem);
                }
                self.chained(plugin, &context, version);
            } else if kind == OURS {
                self.plugin(plugin, &context, version);
            } else if is_like_ours(kind) {
                self.like_ours(plugin, &context, version);
            } else {
                self.other(plugin, &context, version);
            }
        }
    }

    /// The network's name, here and elsewhere.
    fn names(&mut self, part: Part, context: &Context) {
        let Context {
            name,
            cluster,
            namespace,
            nad,
            ..
        } = context;
        let as_map = json!({"name": name});
        if let Err(error) = as_map
            .as_object()
            .map_or(Ok(()), |map| plugin::parse(map).map(drop))
        {
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
        let listed = part
            .get("cniVersions")
            .map(|list| list.items().enumerate().collect::<Vec<_>>());
        let listed = listed
            .into_iter()
            .flatten()
            .map(|(at, item)| (format!("cniVersions[{at}]"), item));
        let given = part
            .get("cniVersion")
            .map(|one| ("cniVersion".to_owned(), one))
            .into_iter()
            .chain(listed);
        let mut known = Vec::new();
        let mut any = false;
        for (path, item) in given.filter(|(_, item)| !item.value.is_null() && *item.value != "") {
            any = true;
            match item.value.as_str().and_then(Version::parse) {
                Some(version) => known.push(version),
                None => {
                    let all = VERSIONS.map(Version::as_str).join(", ");
                    self.error(
                        part,
                        name,
                        &path,
                        format!("{} is not one of {all}", item.value),
                    );
                }
            }
        }
        if !any && !is_misspelt(part, "cniVersion", &["cniVersion", "cniVersions"]) {
            let problem = "is missing: runtimes then assume 0.1.0, without CHECK, STATUS and GC";
            self.warning(part, name, "cniVersion", problem);
        }
        let (Some(oldest), Some(newest)) =
            (known.iter().min().copied(), known.iter().max().copied())
        else {
            return Version::V110;
        };
        let both = "\"cniVersion\": \"1.0.0\", \"cniVersions\": [\"1.0.0\", \"1.1.0\"] in a list works with old and new \
                    runtimes";
        let mut warn = |problem: String| self.warning(part, name, "cniVersion", problem);
        if newest < Version::V040 {
            warn(format!(
                "{} has no CHECK, STATUS and GC: {both}",
                newest.as_str()
            ));
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
    fn other(&mut self, plugin: Part, context: &Context, version: Version) {
        let name = &context.name;
        let kind = plugin.text("type").unwrap_or_default();
        if kind.is_empty() {
            return self.error(
                plugin,
                name,
                "type",
                "is missing: runtimes refuse a plugin without it",
            );
        }
        if kind == OUR_IPAM {
            let problem =
                format!("{OUR_IPAM} is an IPAM plugin: it belongs in ipam.type of {OURS}");
            return self.error(plugin, name, "type", problem);
        }
        if let Some(meant) = nearest(kind, [OURS]) {
            return self.error(
                plugin,
                name,
                "type",
                format!("{kind:?}: did you mean {meant}?"),
            );
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
        let findings = std::mem::take(&mut self.findings);
        let rails = self.rails.len();
        let without = self.resources.without.len();
        self.plugin(plugin, context, version);
        self.rails.truncate(rails);
        let mut found = std::mem::replace(&mut self.findings, findings);
        let without = self.resources.without.drain(without..);
        found.extend(without.map(|(_, finding)| finding));
        let errors = found
            .iter()
            .filter(|finding| finding.severity == Severity::Error);
        let errors: Vec<_> = errors.map(|finding| finding.fault.message()).collect();
        let kind = plugin.text("type").unwrap_or_default();
        let becomes = self.fixed.last().map(|fixed| fixed.plugins.iter());
        let stays = becomes
            .into_iter()
            .flatten()
            .any(|plugin| plugin.get("type") == Some(&json!(kind)));
        if stays && errors.is_empty() {
            // A note of the chain tells why.
            return;
        }
        let but = if errors.is_empty() {
            String::new()
        } else {
            format!(", apart from: {}", errors.join("; "))
        };
        let behind = self.fixed.last().map_or(0, |fixed| fixed.notes.len());
        let and = if behind == 0 {
            ""
        } else {
            ", with the other changes that are listed here"
        };
        let problem = format!(
            "{kind}: {OURS} takes this configuration when type is changed{but}{and}: `railctl lint --fix` prints it"
        );
        self.warning(plugin, &context.name, "type", problem);
    }

    /// Plans the change behind a plugin of ours, or one like ours, and builds the network as it is
    /// then.
    fn become_ours(&mut self, part: Part, plugins: &[Part], context: &Context) -> bool {
        let Chain {
            plugins: mut becomes,
            whole,
            notes,
            faults,
        } = chain::chain(plugins, context);
        // Keys of the network, where it is one plugin.
        becomes
            .iter_mut()
            .for_each(|plugin| plugin.retain(|key, _| !LIST_KEYS[..3].contains(&key.as_str())));
        let is_ours = |plugin: &Map<String, Value>| {
            plugin.get("type") == Some(&json!(OURS)) || operators::has_our_ipam(plugin)
        };
        if whole.is_none() && !becomes.iter().any(is_ours) {
            return false;
        }
        for plugin in plugins
            .iter()
            .filter(|plugin| is_like_ours(plugin.text("type").unwrap_or_default()))
        {
            self.default_routes(*plugin, &context.name, "ipam.routes");
        }
        let told = notes.iter().chain(&faults).map(Fault::message).collect();
        for fault in faults {
            self.fault(&context.name, fault);
        }
        for note in notes {
            self.say(Severity::Warning, &context.name, note);
        }
        let mut list = part
            .value
            .as_object()
            .filter(|_| context.in_list)
            .cloned()
            .unwrap_or_default();
        list.retain(|key, _| LIST_KEYS[4..].contains(&key.as_str()) || key == netconf::LINT_IGNORE);
        let metadata = context.nad.map(|nad| {
            let mut metadata = nad
                .get("metadata")
                .and_then(|of| of.value.as_object())
                .cloned()
                .unwrap_or_default();
            metadata.retain(|key, value| {
                matches!(
                    key.as_str(),
                    "name" | "namespace" | "annotations" | "labels"
                ) && !value.is_null()
            });
            if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
                annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            }
            metadata
        });
        // dra-driver-sriov gives the device, and reads no list.
        let is_single = !context.in_list
            && (context.nad.is_none() || context.resource.is_none())
            && becomes.len() == 1;
        self.fixed.push(Fixed {
            name: context.name.clone(),
            namespace: context.nad.map(|_| context.namespace.clone()),
            metadata,
            resource: context.resource.map(str::to_owned),
            is_single,
            list,
            plugins: becomes,
            notes: told,
            comments: std::mem::take(&mut self.comments),
        });
        true
    }

    /// Reports an object of which an operator makes a network, with the network that takes its
    /// place.
    fn made(&mut self, part: Part, plugins: &[Part], context: &Context, kind: &str, also: &str) {
        let name = context.name.as_str();
        let before = plugins
            .first()
            .and_then(|plugin| plugin.text("type"))
            .unwrap_or_default();
        if !self.become_ours(part, plugins, context) {
            let stays = if before.is_empty() {
                String::new()
            } else {
                format!("{before} stays: ")
            };
            let problem = format!("{kind}: {stays}nothing in it is for {OURS}");
            return self.say(Severity::Note, name, part.fault("kind", problem));
        }
        for plugin in plugins.iter().copied() {
            self.hands_out(plugin, context);
        }
        let is_ours = |plugin: &&Part| is_like_ours(plugin.text("type").unwrap_or_default());
        let names_a_device = |plugin: Part| {
            plugin::SELECTORS
                .iter()
                .any(|key| plugin.get(key).is_some())
        };
        if context.resource.is_none()
            && plugins
                .iter()
                .find(is_ours)
                .is_some_and(|one| !names_a_device(*one))
        {
            let problem = format!(
                "{kind}: has no resource (resourceName), so no pod gets a device for it, and nothing can replace it"
            );
            self.fixed.pop();
            self.noted += 1;
            return self.warning(part, name, "kind", problem);
        }
        let becomes = self.fixed.last().map(|fixed| {
            fixed
                .plugins
                .iter()
                .map(|plugin| fix::spaced(&json!(plugin)))
                .collect::<Vec<_>>()
        });
        let namespace = if context.namespace.is_empty() {
            String::new()
        } else {
            format!(" in namespace {}", context.namespace)
        };
        let resource = context.resource.map_or(" with".to_owned(), |resource| {
            format!(" with the annotation {RESOURCE}: {resource} and")
        });
        let also = if also.is_empty() {
            String::new()
        } else {
            format!("; {also}")
        };
        let problem = format!(
            "{kind}: its operator makes a network of it, and would undo an edit of that network: delete it, and \
             apply the NetworkAttachmentDefinition {name}{namespace}{resource} {} that `railctl lint --fix` prints{also}",
            becomes.unwrap_or_default().join(", ")
        );
        self.noted += 1;
        self.warning(part, name, "kind", problem);
    }

    /// Unknown keys of the object `part`, whose path ends in a dot.
    fn keys(
        &mut self,
        part: Part,
        network: &str,
        path: &str,
        known: impl Fn(&str) -> bool,
        all: &[&str],
    ) {
        for (key, inner) in part.entries().filter(|(key, _)| !known(key)) {
            self.unknown(inner, network, &format!("{path}{key}"), all);
        }
    }

    fn keys_at(&mut self, plugin: Part, network: &str, path: &str, known: &[&str]) {
        if let Some(part) = plugin.get(path) {
            self.keys(
                part,
                network,
                &format!("{path}."),
                |key| known.contains(&key),
                known,
            );
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
        self.compare_resources();
        self.compare_nodes();
        self.across();
        self.compare_routes();
        self.compare_ranges();
        self.compare_pods();
        self.silence();
        let order = |file: &String| self.files.iter().position(|other| other == file);
        self.findings.sort_by_cached_key(|Finding { fault, .. }| {
            (order(&fault.place.file), fault.place.line)
        });
    }
}

/// Whether an object is a node.json: its rails have PFs.
fn is_node_json(part: Part) -> bool {
    let rails = part.get("rails").into_iter().flat_map(Part::items);
    rails.into_iter().any(|rail| rail.get("pf").is_some())
}

/// Whether an unknown key of `part` probably means `key`. Then `key` is not reported as missing.
fn is_misspelt(part: Part, key: &str, known: &[&str]) -> bool {
    let means = |(given, _): (&str, Part)| {
        !known.contains(&given) && nearest(given, known.iter().copied()) == Some(key)
    };
    part.entries().any(means)
}

/// 3 of `rail-3-v6`, `Rail3` and `cluster.rail_3`, 11 of `rail-3-plane-1` and `rail3p1`, and the
/// name without the numbers.
fn number_in(name: &str) -> Option<(i64, String)> {
    let lower = name.to_ascii_lowercase();
    let (before, after) = lower.split_once("rail")?;
    let (rail, after) = leading_number(after)?;
    for word in ["plane", "p"] {
        let Some(after_word) = without_separators(after).strip_prefix(word) else {
            continue;
        };
        if let Some((plane, after)) = leading_number(after_word) {
            let number = pool::number(rail, Some(plane));
            return Some((i64::from(number), format!("{before}rail{after}")));
        }
    }
    Some((i64::from(rail), format!("{before}rail{after}")))
}

/// The number at the beginning of a text, after separators, and the rest of the text.
fn leading_number(text: &str) -> Option<(u8, &str)> {
    let text = without_separators(text);
    let end = text.find(|digit: char| !digit.is_ascii_digit());
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    Some((digits.parse().ok()?, rest))
}

fn without_separators(text: &str) -> &str {
    text.trim_start_matches(['-', '_', '.'])
}

fn is_like_ours(kind: &str) -> bool {
    LIKE_OURS.contains(&kind)
}

#[cfg(test)]
mod tests;
