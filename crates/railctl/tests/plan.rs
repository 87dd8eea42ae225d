//! The real `railctl plan`, from files to files and stores.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The root of the repository, whose examples are planned.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn example(file: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(file)).unwrap()
}

/// A folder with stores and what is planned into them.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }

    /// Runs rail-ipam on a node with the store `store`.
    fn run(&self, store: &str, args: &[&str]) -> Output {
        let node = serde_json::json!({"nodeName": "worker-gpu-62", "storeDir": self.path(store), "runDir": self.path("run")});
        let node = self.write("node.json", &node.to_string());
        let mut command = Command::new(env!("CARGO_BIN_EXE_railctl"));
        command
            .args(args)
            .env("RAIL_CNI_NODE_CONFIG", node)
            .env_remove("CNI_COMMAND");
        command.current_dir(ROOT).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, store: &str, args: &[&str]) -> String {
        let output = self.run(store, args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// The messages of a call that fails with this exit status.
    #[track_caller]
    fn fails(&self, status: i32, args: &[&str]) -> String {
        let output = self.run("store", args);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        said
    }

    /// Every file below a folder, by its path in it.
    fn files(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut files, mut dirs) = (BTreeMap::new(), vec![self.path(name)]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else if !path.file_name().unwrap().to_str().unwrap().starts_with('.') {
                    files.insert(
                        path.strip_prefix(self.path(name)).unwrap().to_owned(),
                        fs::read(&path).unwrap(),
                    );
                }
            }
        }
        files
    }

    fn names(&self, name: &str) -> Vec<String> {
        self.files(name)
            .keys()
            .map(|path| self.path(name).join(path).display().to_string())
            .collect()
    }
}

fn with<'a>(args: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    args.iter()
        .copied()
        .chain(more.iter().map(String::as_str))
        .collect()
}

const FABRIC: &str = "conf/fabric.yaml";

/// The deployment that the project came from: rail-1 of its example.
#[test]
fn the_published_deployment_comes_out_as_it_was_published() {
    let place = Place::new();
    let out = place.path("pools").display().to_string();
    place.ok(
        "store",
        &[
            "plan",
            FABRIC,
            "--pool-name",
            "rail-{rail+1}",
            "--to",
            "cidrpool",
            "--out",
            &out,
        ],
    );
    let pool = fs::read_to_string(place.path("pools/rail-1.yaml")).unwrap();
    for part in [
        "  name: rail-1\n",
        "  cidr: 172.16.0.0/15\n  gatewayIndex: 0\n  perNodeNetworkPrefix: 31\n",
        "  routes:\n  - dst: 172.16.0.0/15\n  - dst: 172.16.0.0/12\n",
        "  - nodeName: worker-gpu-0\n    prefix: 172.16.0.0/31\n    gateway: 172.16.0.1\n",
        "  - nodeName: worker-gpu-1\n    prefix: 172.16.0.2/31\n    gateway: 172.16.0.3\n",
        "  - nodeName: worker-gpu-62\n    prefix: 172.16.1.60/31\n    gateway: 172.16.1.61\n",
        "  - nodeName: worker-gpu-63\n    prefix: 172.16.1.62/31\n    gateway: 172.16.1.63\n",
    ] {
        assert!(pool.contains(part), "{part} is not in {pool}");
    }
    assert_eq!(pool.matches("nodeName").count(), 64);
}

/// netplan -> plan -> netplan is exact, and the pools are those of the fabric that the hosts were
/// given.
#[test]
fn hosts_tell_the_plan_that_they_were_given() {
    let place = Place::new();
    let out = |name: &str| place.path(name).display().to_string();
    place.ok(
        "store",
        &["plan", FABRIC, "--to", "netplan", "--out", &out("hosts")],
    );
    let mode = fs::metadata(place.path("hosts/worker-gpu-62.yaml"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "netplan warns of more");
    assert_eq!(place.files("hosts").len(), 64);
    place.ok(
        "store",
        &[
            "plan",
            "--from",
            "netplan",
            &out("hosts"),
            "--to",
            "netplan",
            "--out",
            &out("again"),
        ],
    );
    assert!(place.files("hosts") == place.files("again"));
    // One file says by itself what it is.
    let host = out("hosts/worker-gpu-62.yaml");
    place.ok(
        "store",
        &["plan", &host, "--to", "netplan", "--out", &out("one")],
    );
    assert!(fs::read(place.path("one/worker-gpu-62.yaml")).unwrap() == fs::read(&host).unwrap());
    // As they are on the hosts.
    for (name, text) in place.files("hosts") {
        let node = name.file_stem().unwrap().to_str().unwrap();
        place.write(
            &format!("roots/{node}/etc/netplan/60-rails.yaml"),
            std::str::from_utf8(&text).unwrap(),
        );
    }
    for (from, to) in [
        (FABRIC.to_owned(), "pools"),
        (out("hosts"), "pools-2"),
        (out("roots"), "pools-3"),
    ] {
        place.ok(
            "store",
            &["plan", &from, "--to", "cidrpool", "--out", &out(to)],
        );
    }
    assert_eq!(place.files("pools").len(), 8);
    // Hosts do not know the leaf at the other end of their cables.
    let without_leaves = |name: &str| -> Vec<String> {
        let texts = place
            .files(name)
            .into_values()
            .map(|text| String::from_utf8(text).unwrap());
        let is_of_leaf =
            |line: &str| line.contains("leaf-su") || line.contains("rail-cni/leaf-ports");
        texts
            .map(|text| {
                text.lines()
                    .filter(|line| !is_of_leaf(line))
                    .collect::<Vec<_>>()
                    .join("\n")
            })
            .collect()
    };
    assert!(place.files("pools") != place.files("pools-2"));
    assert!(without_leaves("pools") == without_leaves("pools-2"));
    assert!(place.files("pools-2") == place.files("pools-3"));
    let same = ["plan", &out("hosts"), "--check", "--against", FABRIC];
    assert!(place.ok("store", &same).contains(" 512 "));
    assert!(
        place
            .fails(1, &["plan", &out("hosts"), "--tiers", "2"])
            .contains("--tiers")
    );
}

/// The output for Kubernetes is free of findings by `railctl lint`.
#[test]
fn networks_of_a_plan_are_clean() {
    let place = Place::new();
    let fabric = example(FABRIC);
    let planes = |mode: &str| {
        let text = fabric.replace("mode: none", &format!("mode: {mode}\nplanes: 2"));
        let text = text.replace("eth_r{rail}", "eth_r{rail}p{plane}");
        text.replace("leaf-su", "leaf-p{plane+1}-su")
    };
    let dual = fabric.replace("family: ipv4", "family: dual");
    for (text, networks) in [(fabric.clone(), 8), (dual, 8), (planes("swplb"), 16)] {
        let file = place.write("fabric.yaml", &text);
        let out = place.path("nads").display().to_string();
        place.ok("store", &["plan", &file, "--to", "nads", "--out", &out]);
        let mut lint = Command::new(env!("CARGO_BIN_EXE_railctl"));
        let output = lint
            .args(["lint", &format!("{out}/nads.yaml")])
            .output()
            .unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{said}");
        assert_eq!(said, format!("{networks} networks: 0 errors, 0 warnings\n"));
    }
}

/// Equal input gives equal bytes: with the output in git, only changes are seen.
#[test]
fn every_target_is_the_same_each_time() {
    let place = Place::new();
    for (target, files) in [
        ("cidrpool", 8),
        ("nads", 1),
        ("netplan", 64),
        ("nvue", 16),
        ("csv", 1),
        ("node-json", 64),
        ("device-plugin", 1),
        ("slurm", 1),
        ("slurm-block", 1),
        ("volcano", 1),
        ("html", 1),
    ] {
        let write = |name: &str| {
            let out = place.path(name).display().to_string();
            place.ok("store", &["plan", FABRIC, "--to", target, "--out", &out]);
            place.files(name)
        };
        let (first, second) = (write(&format!("{target}-1")), write(&format!("{target}-2")));
        assert_eq!(first.len(), files, "{target}");
        assert!(first == second, "{target}");
    }
}

/// A page with the leaf's name and its ports.
const TEMPLATE: &str =
    "! {{ leaf }}\n{% for port in ports %}\n{{ port.port }} {{ port.node }}\n{% endfor %}\n";

#[test]
fn a_template_makes_a_file_for_each_leaf() {
    let place = Place::new();
    let template = place.write("eos.cfg.j2", TEMPLATE);
    let out = place.path("leaves").display().to_string();
    place.ok(
        "store",
        &["plan", FABRIC, "--template", &template, "--out", &out],
    );
    assert_eq!(place.files("leaves").len(), 16);
    let page = fs::read_to_string(place.path("leaves/leaf-su02-r8.eos.cfg")).unwrap();
    assert!(
        page.starts_with("! leaf-su02-r8\nswp1s0 worker-gpu-32\nswp1s1 worker-gpu-33\n"),
        "{page}"
    );
}

#[test]
fn pages_of_a_template_are_printed_without_comments_of_ours() {
    let place = Place::new();
    let template = place.write("names.j2", "{{ number }} {{ leaf }}\n");
    let text = place.ok("store", &["plan", FABRIC, "--template", &template]);
    assert!(
        text.starts_with("0 leaf-su01-r1\n1 leaf-su01-r2\n"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 16);
}

/// The last leaf fails, after the pages of all others.
#[test]
fn a_failing_template_leaves_the_directory_as_it_was() {
    let place = Place::new();
    let template = place.write("eos.j2", TEMPLATE);
    let out = place.path("leaves").display().to_string();
    let args = ["plan", FABRIC, "--template", &template, "--out", &out];
    let failing = "{% if number == 15 %}{{ lief }}{% endif %}{{ leaf }}";
    place.write("eos.j2", failing);
    let error = place.fails(1, &args);
    assert!(error.contains("eos.j2:1: leaf-su02-r8: `lief`"), "{error}");
    assert!(!place.path("leaves").exists());

    place.write("eos.j2", TEMPLATE);
    place.ok("store", &args);
    let before = place.files("leaves");
    place.write("eos.j2", failing);
    place.fails(1, &args);
    assert!(place.files("leaves") == before);
}

#[test]
fn two_templates_keep_their_files_in_one_directory() {
    let place = Place::new();
    let out = place.path("leaves").display().to_string();
    for name in ["ports.j2", "bgp.j2", "ports.j2"] {
        let template = place.write(name, TEMPLATE);
        let args = ["plan", FABRIC, "--template", &template, "--out", &out];
        let text = place.ok("store", &[&args[..], &["--prune"]].concat());
        assert!(!text.contains("removed"), "{text}");
    }
    assert_eq!(place.files("leaves").len(), 32);
}

#[test]
fn tables_of_sonic_are_printed_one_leaf_at_a_time() {
    let place = Place::new();
    let fabric = example(FABRIC).replace("swp{host/2+1}s{host%2}", "Ethernet{host*4}");
    let file = place.write("sonic.yaml", &fabric);
    let error = place.fails(1, &["plan", &file, "--to", "sonic"]);
    assert!(error.contains("--out"), "{error}");
    let one_leaf = fabric
        .replace("rails: 8", "rails: 1")
        .replace("sus: 2", "sus: 1");
    let file = place.write("sonic.yaml", &one_leaf);
    let text = place.ok("store", &["plan", &file, "--to", "sonic"]);
    let tables: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(tables["PORT"]["Ethernet124"], json!({"mtu": "9216"}));
}

#[test]
fn plan_to_manifests_to_store_to_plan_loses_nothing() {
    let place = Place::new();
    let out = place.path("pools").display().to_string();
    place.ok("planned", &["plan", FABRIC, "--to", "store", "--all-nodes"]);
    place.ok(
        "store",
        &["plan", FABRIC, "--to", "cidrpool", "--out", &out],
    );
    let pools = place.names("pools");
    place.ok("imported", &with(&["import", "--all-nodes"], &pools));
    assert_eq!(place.files("planned").len(), 64 * (8 + 1));
    assert!(
        place.files("planned") == place.files("imported"),
        "the stores differ"
    );

    let again = place.path("again").display().to_string();
    place.ok(
        "store",
        &with(&["plan", "--to", "cidrpool", "--out", &again], &pools),
    );
    assert!(
        place.files("pools") == place.files("again"),
        "the manifests differ"
    );
    for args in [
        with(&["plan", "--check", "--all-nodes"], &pools),
        vec!["plan", FABRIC, "--check", "--all-nodes"],
        with(&["plan", FABRIC, "--check", "--against"], &pools),
    ] {
        assert!(place.ok("imported", &args).contains(" 512 "), "{args:?}");
    }
}

#[test]
fn differences_are_shown_and_nothing_is_written_before_it_is_wanted() {
    let place = Place::new();
    let fabric = example(FABRIC);
    let other = place.write(
        "other.yaml",
        &fabric.replace("polarity: leaf-odd", "polarity: leaf-even"),
    );
    assert_ne!(fs::read_to_string(&other).unwrap(), fabric);
    place.ok("store", &["plan", FABRIC, "--to", "store"]);
    let before = place.files("store");
    for args in [
        &["plan", other.as_str(), "--to", "store", "--diff"][..],
        &["plan", other.as_str(), "--check"],
    ] {
        let output = place.run("store", args);
        assert_eq!(output.status.success(), args[2] == "--to", "{args:?}");
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains("172.16.1.60 (was 172.16.1.61)"), "{shown}");
        assert!(shown.contains("8 changed"), "{shown}");
    }
    assert!(place.files("store") == before, "something was written");

    let out = place.path("pools").display().to_string();
    place.ok(
        "store",
        &["plan", FABRIC, "--to", "cidrpool", "--out", &out],
    );
    let before = place.files("pools");
    let shown = place.ok(
        "store",
        &["plan", &other, "--to", "cidrpool", "--out", &out, "--diff"],
    );
    assert!(
        shown.contains("-    gateway: 172.16.1.61\n+    gateway: 172.16.1.60\n"),
        "{shown}"
    );
    assert!(place.files("pools") == before, "something was written");
}

/// A topology of spcx-gen with these hosts, all on one leaf, in this order.
fn topology(hosts: &[&str]) -> String {
    let mut nodes = vec![serde_json::json!({"name": "leaf-0", "role": "leaf", "type": "cumulus"})];
    let mut links = Vec::new();
    for (port, host) in hosts.iter().enumerate() {
        nodes.push(serde_json::json!({"name": host, "role": "host", "type": "default"}));
        links.push(serde_json::json!([
            {"node": host, "interface": "eth_p0_r0", "attributes": {"role": "host", "rail": 0, "su": 1}},
            {"node": "leaf-0", "interface": format!("swp{port}"), "attributes": {"role": "leaf", "plane": 0}}]));
    }
    serde_json::to_string_pretty(&serde_json::json!({"nodes": nodes, "links": links})).unwrap()
}

/// In the spcx-gen form the order of the file decides addresses, so that a file which
/// was sorted would renumber the fabric without a word.
#[test]
fn a_topology_in_another_order_is_caught() {
    let place = Place::new();
    let before = place.write(
        "topology.json",
        &topology(&["worker-gpu-61", "worker-gpu-62"]),
    );
    let sorted = place.write(
        "sorted.json",
        &topology(&["worker-gpu-62", "worker-gpu-61"]),
    );
    let check = |file: &str| -> Vec<String> {
        ["plan", file, "--tiers", "2", "--check", "--all-nodes"]
            .map(str::to_owned)
            .into()
    };
    fn words(args: &[String]) -> Vec<&str> {
        args.iter().map(String::as_str).collect()
    }
    place.ok(
        "store",
        &[
            "plan",
            &before,
            "--tiers",
            "2",
            "--to",
            "store",
            "--all-nodes",
        ],
    );
    assert!(place.ok("store", &words(&check(&before))).contains(" 2 "));
    let said = place.fails(1, &words(&check(&sorted)));
    assert!(
        said.contains("172.16.1.0/31 (was 172.16.1.2/31)")
            && said.contains("172.16.1.2/31 (was 172.16.1.0/31)"),
        "{said}"
    );
    let against = [
        "plan",
        &sorted,
        "--tiers",
        "2",
        "--check",
        "--against",
        &before,
    ];
    assert!(
        place
            .fails(1, &against)
            .contains("172.16.1.0/31 (was 172.16.1.2/31)")
    );
    assert!(place.fails(1, &["plan", &before]).contains("--tiers"));
    let fault = place.fails(1, &["plan", &before, "--tiers", "3"]);
    assert!(
        fault.contains("topology.json:5: links[0][0].attributes.pod: "),
        "{fault}"
    );
}

/// A host that is not in the plan any more loses its address: while a pod uses it, only by --force.
#[test]
fn a_store_that_the_plan_does_not_know_whole_is_told() {
    let place = Place::new();
    // Equal addresses under other names would be given twice.
    place.ok(
        "store",
        &["plan", FABRIC, "--to", "store", "--pool-name", "old-{rail}"],
    );
    let said = place.fails(1, &["plan", FABRIC, "--to", "store"]);
    assert!(
        said.contains("worker-gpu-62") && said.contains("old-"),
        "{said}"
    );
    fs::remove_dir_all(place.path("store")).unwrap();
    let octet = example(FABRIC).replace("firstOctet: 172", "firstOctet: 11");
    let old = place.write("old.yaml", &octet);
    place.ok(
        "store",
        &["plan", &old, "--to", "store", "--pool-name", "old-{rail}"],
    );
    let output = place.run("store", &["plan", FABRIC, "--to", "store"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("pool old-7"), "{said}");
    // And the file with the leaf ports.
    assert_eq!(place.files("store").len(), 17);

    // A node that the plan calls otherwise does not lose what it has.
    let other = place.write(
        "other.yaml",
        &example(FABRIC).replace("worker-gpu-", "Worker-GPU-"),
    );
    let said = place.fails(1, &["plan", &other, "--to", "store", "--prune"]);
    assert!(said.contains("Worker-GPU-62"), "{said}");
    assert_eq!(place.files("store").len(), 17);

    let shown = place.ok(
        "store",
        &["plan", FABRIC, "--to", "store", "--prune", "--diff"],
    );
    assert!(shown.contains("8 removed, 8 same "), "{shown}");
    place.ok("store", &["plan", FABRIC, "--to", "store", "--prune"]);
    assert_eq!(place.files("store").len(), 9);
    place.ok("store", &["plan", FABRIC, "--check", "--prune"]);
}

/// Root may write into a folder that is not root's alone.
#[test]
fn no_link_leads_out_of_the_folder_that_is_written() {
    let place = Place::new();
    let victim = place.write("victim", "untouched");
    fs::create_dir(place.path("pools")).unwrap();
    for name in [".rail-0.yaml.new", "rail-1.yaml"] {
        std::os::unix::fs::symlink(&victim, place.path("pools").join(name)).unwrap();
    }
    let out = place.path("pools").display().to_string();
    place.ok(
        "store",
        &["plan", FABRIC, "--to", "cidrpool", "--out", &out],
    );
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    assert!(
        fs::symlink_metadata(place.path("pools/rail-1.yaml"))
            .unwrap()
            .is_file()
    );
    assert_eq!(place.files("pools").len(), 8);
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_written() {
    let place = Place::new();
    let scheme = ["plan", FABRIC, "--tiers", "2"];
    assert!(place.fails(1, &scheme).contains("--tiers"));
    assert!(
        place
            .fails(1, &["plan", FABRIC, "--prune"])
            .contains("--prune")
    );
    for target in ["cidrpool", "nads"] {
        let said = place.fails(
            1,
            &["plan", FABRIC, "--pool-name", "Rail-{rail}", "--to", target],
        );
        assert!(said.contains("pool Rail-0: "), "{said}");
    }
    for target in ["csv", "store", "volcano"] {
        let said = place.fails(1, &["plan", FABRIC, "--to", target, "--namespace", "rails"]);
        assert!(said.contains("--namespace"), "{said}");
    }
    for bad in ["Rails", "a.b", "-a", "", &"a".repeat(64)] {
        let said = place.fails(
            1,
            &[
                "plan",
                FABRIC,
                "--to",
                "nads",
                &format!("--namespace={bad}"),
            ],
        );
        assert!(said.contains("--namespace"), "{said}");
    }
    let said = place.fails(1, &["plan", FABRIC, "--to", "cidrpool", "--single"]);
    assert!(said.contains("--single"), "{said}");
    let diff = ["plan", FABRIC, "--to", "cidrpool", "--diff"];
    assert!(place.fails(1, &diff).contains("--diff"));
    assert!(
        place
            .fails(1, &["plan", FABRIC, "--to", "cidrpool", "--all-nodes"])
            .contains("--to store")
    );
    assert!(
        place
            .fails(1, &["plan", FABRIC, "--to", "store", "--out", "x"])
            .contains("--out")
    );
    assert!(
        place
            .fails(1, &["plan", FABRIC, "--pool-name", "{x}"])
            .contains("--pool-name")
    );
    assert!(
        place
            .fails(1, &["plan", FABRIC, "--pool-name", "../{rail}"])
            .contains("--pool-name")
    );
    assert!(
        place
            .fails(1, &["plan", FABRIC, "--pool-name", "same"])
            .contains("same")
    );
    assert!(
        place
            .fails(1, &["plan", FABRIC, "--to", "store", "--node", "../x"])
            .contains("--node")
    );
    let unknown = place.fails(
        1,
        &["plan", FABRIC, "--to", "store", "--node", "Worker-GPU-62"],
    );
    assert!(unknown.contains("worker-gpu-62"), "{unknown}");
    for usage in [
        &["plan"][..],
        &["plan", FABRIC, "--to", "x"],
        &["plan", FABRIC, "--against", "x"],
    ] {
        place.fails(2, usage);
    }
    assert!(!place.path("store").exists());
}

/// The wrong file in the wrong place: a clear word with a position, nothing written, no panic.
#[test]
fn files_of_the_wrong_kind_are_told_with_their_place() {
    let place = Place::new();
    let pool = example("conf/pools/spectrum-x.yaml");
    let executable = env!("CARGO_BIN_EXE_railctl");
    let fifo = place.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let laughs: String = (0..12)
        .map(|level| {
            let inner = if level == 0 {
                "x".to_owned()
            } else {
                format!("*a{}", level - 1)
            };
            format!("a{level}: &a{level} [{}]\n", vec![inner; 10].join(","))
        })
        .collect();
    for (file, told) in [
        (executable.to_owned(), ""),
        (fifo.display().to_string(), "fifo"),
        ("/nonexistent".to_owned(), "/nonexistent"),
        (place.write("empty", ""), "empty"),
        (
            place.write("half", &pool[..pool.find("NetworkPrefix").unwrap()]),
            "half:",
        ),
        (place.write("half.json", "{\"nodes\": ["), "half.json:1:11"),
        (place.write("deep", &"[".repeat(1_000_000)), "deep:1:"),
        (place.write("laughs", &laughs), "aliases"),
        (place.write("other", "kind: Pod\n"), "other:1: kind"),
        (
            place.write("name", &pool.replacen("worker-gpu-0", "../../etc", 1)),
            "\"../../etc\" ",
        ),
        (
            place.write("slash", &pool.replacen("worker-gpu-0", "a/b", 1)),
            "slash:18",
        ),
        (
            place.write("pool", &pool.replacen("name: rail-0", "name: ../rail-0", 1)),
            "pool:8: metadata.name",
        ),
        (
            place.write(
                "default",
                &pool.replacen("prefix: 172.16.0.0/31", "prefix: 172.16.0.1/31", 1),
            ),
            "host bits",
        ),
        (
            place.write(
                "family",
                &pool.replacen("dst: 172.16.0.0/12", "dst: fd00::/8", 1),
            ),
            "family:16",
        ),
    ] {
        let said = place.fails(1, &["plan", &file, "--to", "store"]);
        assert!(
            said.contains(told) && !said.contains("panicked"),
            "{told}: {said}"
        );
    }
    assert!(!place.path("store").exists());
    assert!(Path::new(executable).exists());
}

/// Of a fabric, worker-gpu-5 was replaced by spare-7.
fn with_spare(place: &Place) -> String {
    let fabric = example(FABRIC);
    place.write(
        "spare.yaml",
        &format!("{fabric}nodes:\n- {{name: spare-7, replaces: worker-gpu-5}}\n"),
    )
}

/// A node that the plan no longer names keeps its addresses, and who would get them must say that
/// he replaces it.
#[test]
fn a_node_is_replaced_by_a_word_and_not_by_a_slip() {
    let place = Place::new();
    let fabric = example(FABRIC);
    let put = |file: &str, more: &[&str]| {
        let output = place.run(
            "store",
            &[&["plan", file, "--to", "store", "--all-nodes"], more].concat(),
        );
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), said)
    };
    put(FABRIC, &[]);
    let before = place.files("store");
    assert_eq!(before.len(), 64 * 9);

    // One SU less: 32 nodes are not named.
    let less = place.write("less.yaml", &fabric.replace("sus: 2", "sus: 1"));
    for _ in 0..2 {
        let (is_done, said) = put(&less, &[]);
        assert!(is_done && said.contains("256 same"), "{said}");
        assert!(said.contains("node worker-gpu-32"), "{said}");
        assert!(said.contains("22 more"), "{said}");
        assert!(place.files("store") == before, "the store changed");
    }

    // Renamed without a word.
    let nodes = "nodes:\n- {name: spare-7, su: 0, host: 5}\n";
    let renamed = place.write("renamed.yaml", &format!("{fabric}{nodes}"));
    let (is_done, said) = put(&renamed, &[]);
    assert!(!is_done, "{said}");
    for told in [
        "node spare-7 ",
        "172.16.0.10/31",
        "worker-gpu-5",
        "--replaces spare-7=worker-gpu-5",
    ] {
        assert!(said.contains(told), "{told}: {said}");
    }
    golden::says("plan", "--to store: a node under another name", &said);
    assert!(place.files("store") == before, "the store changed");

    // With it, on the command line or in the plan.
    let shown = place.ok(
        "store",
        &[
            "plan",
            &with_spare(&place),
            "--to",
            "store",
            "--node",
            "spare-7",
            "--diff",
        ],
    );
    assert!(shown.contains("worker-gpu-5"), "{shown}");
    assert!(shown.contains("8 new, 8 removed "), "{shown}");
    let (is_done, said) = put(&renamed, &["--replaces", "spare-7=worker-gpu-5"]);
    assert!(
        is_done && said.contains("8 new, 8 removed, 504 same"),
        "{said}"
    );
    assert!(!place.path("store/worker-gpu-5").exists());
    let placed = nodes.replace("host: 5", "host: 5, replaces: worker-gpu-5");
    let placed = place.write("placed.yaml", &format!("{fabric}{placed}"));
    for file in [with_spare(&place), placed, renamed] {
        let (is_done, said) = put(&file, &[]);
        assert!(
            is_done && said.contains("512 same") && !said.contains("worker-gpu-5:"),
            "{said}"
        );
    }
    // Manifests, the same.
    let pools = |name: &str, file: &str| {
        let out = place.path(name).display().to_string();
        place.ok("store", &["plan", file, "--to", "cidrpool", "--out", &out]);
        place.names(name)
    };
    place.ok(
        "imported",
        &with(&["import", "--all-nodes"], &pools("pools", FABRIC)),
    );
    let spare = pools("spare", &with_spare(&place));
    let output = place.run("imported", &with(&["import", "--all-nodes"], &spare));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--replaces spare-7=worker-gpu-5"),
        "{output:?}"
    );
    assert!(!output.status.success());
    let replaces = [
        "import",
        "--all-nodes",
        "--replaces",
        "spare-7=worker-gpu-5",
    ];
    place.ok("imported", &with(&replaces, &spare));
    assert!(place.files("imported") == place.files("store"));
    for wrong in ["spare-7", "spare-7=", "=a", "a=a", "../x=a"] {
        place.fails(2, &["plan", FABRIC, "--to", "store", "--replaces", wrong]);
    }
    let nowhere = place.write(
        "nowhere.yaml",
        &format!("{fabric}nodes:\n- {{name: a, replaces: b}}\n"),
    );
    let said = place.fails(1, &["plan", &nowhere]);
    assert!(
        said.contains("nowhere.yaml:24: nodes[0].replaces: "),
        "{said}"
    );
}

#[test]
fn a_program_is_told_in_one_word_why_a_plan_is_refused() {
    let place = Place::new();
    let refused = |args: &[&str]| -> Value {
        let output = place.run(
            "store",
            &with(args, &["--output".to_owned(), "json".to_owned()]),
        );
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["refused"].take()
    };
    let pool = |name: &str, node: &str| {
        let text = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "CIDRPool", "metadata": {"name": "r"},
            "spec": {"cidr": "172.16.0.0/15", "perNodeNetworkPrefix": 31,
                "staticAllocations": [{"nodeName": node, "prefix": "172.16.0.0/31"}]}});
        place.write(name, &text.to_string())
    };
    let (first, second) = (pool("first.json", "a"), pool("second.json", "b"));
    place.ok("store", &["import", "--all-nodes", &first]);
    for verb in [&["import"][..], &["plan", "--to", "store"]] {
        let taken = refused(&[verb, &["--all-nodes", &second]].concat());
        assert_eq!(taken["reason"], "taken");
        let of = |key: &str| taken["taken"][0][key].clone();
        assert_eq!(
            ["node", "owner", "pool", "prefix"].map(of),
            ["b", "a", "r", "172.16.0.0/31"]
        );
        assert!(
            of("text").as_str().unwrap().contains("--replaces b=a"),
            "{taken}"
        );
        let wrong = place.write("wrong.json", "{\"kind\": \"CIDRPool\"}");
        let invalid = refused(&[verb, &[&wrong]].concat());
        assert_eq!(invalid["reason"], "invalid");
        assert!(
            invalid["message"].as_str().unwrap().contains("wrong.json"),
            "{invalid}"
        );
    }
    // The output has its warnings beside it.
    let other = place.write(
        "other.json",
        &fs::read_to_string(&second)
            .unwrap()
            .replace("0.0/31", "0.2/31"),
    );
    let written = place.ok(
        "store",
        &["import", "--all-nodes", &other, "--output", "json"],
    );
    let written: Value = serde_json::from_str(&written).unwrap();
    assert!(
        written["warnings"][0].as_str().unwrap().contains("node a "),
        "{written}"
    );
}

/// Two netplan files with one address: the one of a node that is gone stays until somebody wants it
/// away.
#[test]
fn files_of_an_earlier_plan_are_told_and_go_when_they_are_pruned() {
    let place = Place::new();
    let out = place.path("hosts").display().to_string();
    let put = |file: &str, more: &[&str]| {
        let output = place.run(
            "store",
            &[&["plan", file, "--to", "netplan", "--out", &out], more].concat(),
        );
        assert!(output.status.success(), "{output:?}");
        (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (old, kept) = (
        place.path("hosts/worker-gpu-5.yaml"),
        place.path("hosts/worker-gpu-6.yaml"),
    );
    let (shown, _) = put(FABRIC, &[]);
    assert!(shown.ends_with("64 new\n"), "{shown}");
    // Files without a change are counted.
    assert_eq!(put(FABRIC, &[]), ("64 same\n".to_owned(), String::new()));
    place.write("hosts/notes.txt", "x");
    place.write("hosts/.hidden.yaml", "x");
    let foreign = place.write("hosts/foreign.yaml", "network: {version: 2}\n");

    let spare = with_spare(&place);
    for more in [&[][..], &["--diff"], &["--diff", "--prune"]] {
        let (shown, said) = put(&spare, more);
        let change = if more.contains(&"--prune") {
            "removed"
        } else {
            "stale"
        };
        assert!(
            shown.contains(&format!("worker-gpu-5.yaml  {change}")) && !shown.contains("gpu-6"),
            "{shown}"
        );
        assert_eq!(
            said.contains("worker-gpu-5.yaml"),
            change == "stale",
            "{said}"
        );
        assert!(said.contains("foreign.yaml\n"), "{said}");
        assert!(old.exists() && place.path("hosts/spare-7.yaml").exists());
    }
    let (shown, _) = put(&spare, &["--prune"]);
    assert!(
        shown.ends_with("1 removed, 64 same\n") && !old.exists(),
        "{shown}"
    );
    assert_eq!(put(&spare, &["--prune"]).0, "64 same\n");
    assert!(Path::new(&foreign).exists() && place.path("hosts/notes.txt").exists());

    // A file that somebody changed since stays.
    fs::remove_file(&foreign).unwrap();
    let less = example(FABRIC).replace("nodeName: worker-gpu-{node}", "nodeName: w{node}");
    let less = place.write("less.yaml", &less);
    fs::write(&kept, "# mine\n").unwrap();
    let (shown, said) = put(&less, &["--prune"]);
    assert!(shown.ends_with("1 edited, 64 new, 63 removed\n"), "{shown}");
    assert!(said.contains("worker-gpu-6.yaml\n"), "{said}");
    assert_eq!(fs::read_to_string(&kept).unwrap(), "# mine\n");
    assert!(put(&less, &[]).0.ends_with("1 edited, 64 same\n"));
    fs::remove_file(&kept).unwrap();
    assert_eq!(put(&less, &[]), ("64 same\n".to_owned(), String::new()));

    // A list of others leads neither out of the folder nor over a link.
    let victim = place.write("victim.yaml", "x\n");
    let list = place.path("hosts/.rail-ipam-plan");
    let text = fs::read_to_string(&list).unwrap();
    let hash = "0".repeat(32);
    fs::write(&list, text.replace("\"w0.yaml\"", "\"../victim.yaml\"")).unwrap();
    put(&less, &["--prune"]);
    assert!(Path::new(&victim).exists());
    fs::write(
        &list,
        format!("{{\"netplan\": {{\"link.yaml\": \"{hash}\"}}}}"),
    )
    .unwrap();
    std::os::unix::fs::symlink(&victim, place.path("hosts/link.yaml")).unwrap();
    assert!(put(&less, &["--prune"]).0.contains("link.yaml  edited"));
    fs::write(&list, "{").unwrap();
    let said = place.fails(1, &["plan", &less, "--to", "netplan", "--out", &out]);
    assert!(
        said.contains("hosts/.rail-ipam-plan: ") && said.contains("remove it"),
        "{said}"
    );
}

/// Targets share a folder, and each takes away its own.
#[test]
fn targets_in_one_folder_leave_each_other_alone() {
    let place = Place::new();
    let out = place.path("all").display().to_string();
    for target in ["cidrpool", "nads", "node-json", "device-plugin", "csv"] {
        place.ok("store", &["plan", FABRIC, "--to", target, "--out", &out]);
    }
    assert_eq!(place.files("all").len(), 8 + 1 + 64 + 1 + 1);
    let seven = example(FABRIC).replace("rails: 8", "rails: 7");
    let seven = place.write("seven.yaml", &seven);
    let shown = place.ok(
        "store",
        &["plan", &seven, "--to", "cidrpool", "--out", &out, "--prune"],
    );
    assert!(
        shown.ends_with("1 removed, 7 same\n") && shown.contains("rail-7.yaml"),
        "{shown}"
    );
    assert_eq!(place.files("all").len(), 7 + 1 + 64 + 1 + 1);
}

/// The leaf port of each allocation, from the plan or by way of manifests; and a store without them
/// is complete.
#[test]
fn the_store_has_leaf_ports_where_the_plan_knows_them() {
    let place = Place::new();
    let out = place.path("pools").display().to_string();
    place.ok("planned", &["plan", FABRIC, "--to", "store"]);
    place.ok(
        "store",
        &["plan", FABRIC, "--to", "cidrpool", "--out", &out],
    );
    let text = fs::read_to_string(place.path("pools/rail-0.yaml")).unwrap();
    assert!(
        text.contains("    rail-cni/leaf-ports: |\n      worker-gpu-0: leaf-su01-r1 swp1s0\n"),
        "{text}"
    );
    place.ok("imported", &with(&["import"], &place.names("pools")));
    for store in ["planned", "imported"] {
        let file = place.path(store).join("worker-gpu-62/leaf-ports");
        let ports: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let told = serde_json::json!({"gateway": "172.16.1.61", "ports": [{"leaf": "leaf-su02-r1", "port": "swp16s0"}]});
        assert_eq!(ports["rail-0"], told, "{store}");
    }
    // Manifests are enough for the switches, too.
    let nvue = |from: &[String]| place.ok("store", &with(&["plan", "--to", "nvue"], from));
    let plain = |text: String| {
        text.lines()
            .filter(|line| !line.contains("description"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!(
        plain(nvue(&place.names("pools"))),
        plain(nvue(&[FABRIC.to_owned()]))
    );

    let shown: serde_json::Value =
        serde_json::from_str(&place.ok("planned", &["leases", "--output", "json"])).unwrap();
    let port = serde_json::json!([{"leaf": "leaf-su02-r1", "port": "swp16s0"}]);
    assert_eq!(shown["pools"][0]["leafPorts"], port);

    // Without the annotation: what the plan before said holds, and is no difference.
    let bare: String = text
        .lines()
        .filter(|line| !line.contains("leaf-"))
        .map(|line| format!("{line}\n"))
        .collect();
    let bare = place.write("bare.yaml", &bare);
    let before = place.files("planned");
    assert!(
        place
            .ok("planned", &["import", &bare])
            .ends_with("1 same\n")
    );
    assert!(place.files("planned") == before);
    place.ok("old", &["import", &bare]);
    assert!(!place.path("old/worker-gpu-62/leaf-ports").exists());
    let rail_0 = place.path("pools/rail-0.yaml").display().to_string();
    assert!(
        place
            .ok("old", &["plan", &rail_0, "--check"])
            .contains(" 1 ")
    );
    let shown = place.ok("old", &["import", &rail_0]);
    assert!(shown.contains("changed (leaf port)"), "{shown}");
    assert!(place.path("old/worker-gpu-62/leaf-ports").exists());

    for (from, to, told) in [
        ("0: leaf-su01-r1 swp1s0", "0 leaf", "0 leaf"),
        ("leaf-su01-r1 swp1s0", "leaf-su01-r1 swp$1", "\"swp$1\" "),
        ("worker-gpu-1:", "worker-gpu-0:", "worker-gpu-0"),
    ] {
        let wrong = place.write("wrong.yaml", &text.replacen(from, to, 1));
        let said = place.fails(1, &["plan", &wrong]);
        assert!(
            said.contains(
                "wrong.yaml:8: CIDRPool rail-0: metadata.annotations.rail-cni/leaf-ports: "
            ),
            "{said}"
        );
        assert!(said.contains(told), "{said}");
    }
}

/// Small letters, digits, - and .: nv-ipam would look for such a node in vain.
#[test]
fn manifests_name_only_what_can_be_a_node() {
    let place = Place::new();
    let fabric = example(FABRIC).replace("worker-gpu-{node}", "Worker_{node}");
    let file = place.write("fabric.yaml", &fabric);
    let said = place.fails(1, &["plan", &file, "--to", "cidrpool"]);
    assert!(
        said.contains("Worker_0; Worker_1; ") && said.contains("and 54 more"),
        "{said}"
    );
    // A node.json can say such a name.
    place.ok("store", &["plan", &file, "--to", "store", "--all-nodes"]);
    let pools = example("conf/pools/dual-stack.yaml");
    let pools = place.write(
        "pools.yaml",
        &pools.replacen("worker-gpu-62", "Worker-GPU-62", 1),
    );
    let output = place.run("store", &["import", "--all-nodes", &pools, "--dry-run"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("Worker-GPU-62"), "{said}");
}

/// Eight networks without `rail`, of manifests as NVIDIA's tools write them.
#[test]
fn networks_of_manifests_without_annotations_have_their_rail() {
    let place = Place::new();
    let output = place.run(
        "store",
        &["plan", "conf/pools/spectrum-x.yaml", "--to", "nads"],
    );
    let (text, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    for rail in 0..8 {
        assert!(text.contains(&format!("\"rail\": {rail},")), "{text}");
    }
    assert!(said.contains("rail-7 is rail 7"), "{said}");
}

/// A node with another name than in the plan sees the names of the plan.
#[test]
fn an_unknown_node_sees_the_names_that_there_are() {
    let place = Place::new();
    place.ok("store", &["plan", FABRIC, "--to", "store", "--all-nodes"]);
    let show = place.run("store", &["leases", "--node", "worker-gpu-"]);
    let said = String::from_utf8(show.stderr).unwrap();
    assert!(
        said.contains(" worker-gpu-0, worker-gpu-1, ") && said.contains(" 54 "),
        "{said}"
    );
    let said = place.fails(
        1,
        &["plan", FABRIC, "--to", "store", "--node", "worker-gpu-99"],
    );
    assert!(said.contains(" worker-gpu-9, worker-gpu-19, "), "{said}");
}

// --- topology files that are wrong
// ----------------------------------------------------------------------------

/// A topology of spcx-gen: two SUs of three hosts, two rails, a leaf for each.
fn good_topology() -> Value {
    let (mut nodes, mut links) = (Vec::new(), Vec::new());
    for (su, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        nodes.push(json!({"name": format!("leaf-su{su}-r{rail}"), "role": "leaf"}));
    }
    for (su, host) in (0..2).flat_map(|su| (0..3).map(move |host| (su, host))) {
        let name = format!("worker-gpu-{}", su * 3 + host);
        nodes.push(json!({"name": name, "role": "host"}));
        for rail in 0..2 {
            links.push(json!([
                {"node": name, "interface": format!("eth_r{rail}"),
                 "attributes": {"role": "host", "rail": rail, "su": su, "pod": 0}},
                {"node": format!("leaf-su{su}-r{rail}"), "interface": format!("swp{}", host + 1),
                 "attributes": {"role": "leaf", "plane": 0, "su": su, "pod": 0, "rail_group": [rail]}}]));
        }
    }
    json!({"nodes": nodes, "links": links})
}

/// A topology that somebody broke, and what is said of it.
struct Broken {
    place: Place,
    topology: Value,
    faults: Vec<String>,
}

const NETWORKS: [&str; 2] = ["--cluster-networks", "10.96.0.0/12"];

impl Broken {
    /// Breaks the good file. Nothing is written, and every fault has the line of what it names.
    #[track_caller]
    fn new(change: impl FnOnce(&mut Value)) -> Broken {
        let mut broken = Broken {
            place: Place::new(),
            topology: good_topology(),
            faults: Vec::new(),
        };
        change(&mut broken.topology);
        let output = broken.run(&[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(output.stdout.is_empty() && !broken.place.path("store").exists());
        let text = fs::read_to_string(broken.place.path("topology.json")).unwrap();
        for fault in said.lines().filter(|line| line.contains("topology.json:")) {
            let (_, fault) = fault.split_once("topology.json:").unwrap();
            let (line, what) = fault.split_once(": ").unwrap();
            let key = what.split(": ").next().unwrap().rsplit('.').next().unwrap();
            let at = text
                .lines()
                .nth(line.parse::<usize>().unwrap() - 1)
                .unwrap();
            assert!(
                key.starts_with("links[") || at.contains(&format!("\"{key}\"")),
                "{fault} at {at}"
            );
            broken.faults.push(what.replace(
                broken.place.path("topology.json").to_str().unwrap(),
                "topology.json",
            ));
        }
        assert!(!broken.faults.is_empty(), "{said}");
        broken
    }

    fn run(&self, more: &[&str]) -> Output {
        let file = self.place.write(
            "topology.json",
            &serde_json::to_string_pretty(&self.topology).unwrap(),
        );
        let args = [
            "plan",
            &file,
            "--tiers",
            "2",
            "--to",
            "store",
            "--all-nodes",
            "--strict",
        ];
        self.place
            .run("store", &[&args, &NETWORKS[..], more].concat())
    }

    /// The value at `links[4][1].attributes.su`.
    #[track_caller]
    fn at(&mut self, path: &str) -> &mut Value {
        let pointer = format!(
            "/{}",
            path.replace('[', "/").replace(']', "").replace('.', "/")
        );
        self.topology
            .pointer_mut(&pointer)
            .unwrap_or_else(|| panic!("{path}"))
    }

    /// Writes what a fault says to write, where it says.
    #[track_caller]
    fn write_as_told(&mut self) {
        for fault in self.faults.clone() {
            let (path, what) = fault.split_once(": ").unwrap();
            let (_, number) = what
                .rsplit_once(": write ")
                .unwrap_or_else(|| panic!("{fault}"));
            *self.at(path) = number.parse::<u64>().unwrap().into();
        }
    }

    /// Now it is the plan that it was before.
    #[track_caller]
    fn is_ended(&self) {
        let output = self.run(&[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
        let good = self.place.write("good.json", &good_topology().to_string());
        self.place.ok(
            "good",
            &[
                &[
                    "plan",
                    &good,
                    "--tiers",
                    "2",
                    "--to",
                    "store",
                    "--all-nodes",
                ],
                &NETWORKS[..],
            ]
            .concat(),
        );
        assert!(
            self.place.files("store") == self.place.files("good"),
            "other addresses"
        );
    }

    /// The fault has these facts, between which there is an ellipsis, and the wording of the golden
    /// file.
    #[track_caller]
    fn says(&self, fault: usize, facts: &str) {
        let fault = &self.faults[fault];
        assert!(golden::has(fault, facts), "{facts}: {:#?}", self.faults);
        golden::says(
            "plan",
            &format!("topology: {}", facts.replace('…', "")),
            fault,
        );
    }

    /// A construct that is meant can be allowed.
    #[track_caller]
    fn is_allowed_by(&self, kind: &str) {
        let output = self.run(&["--allow", kind]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && self.faults.iter().all(|fault| said.contains(fault)),
            "{said}"
        );
    }
}

/// One digit, and hosts of two SUs would have other addresses.
#[test]
fn a_wrong_su_is_told_with_the_end_that_is_wrong() {
    // All links of a host, one link of a host, and one of a leaf.
    for (links, end, su, told) in [
        (&[4, 5][..], 0, 1, "worker-gpu-2…leaf-su0-r0…write 0"),
        (&[5], 0, 1, "worker-gpu-2…leaf-su0-r1…write 0"),
        (&[6, 8, 10], 1, 0, "leaf-su1-r0…worker-gpu-3…write 1"),
    ] {
        let mut broken = Broken::new(|topology| {
            links
                .iter()
                .for_each(|link| topology["links"][link][end]["attributes"]["su"] = su.into());
        });
        assert_eq!(broken.faults.len(), links.len());
        broken.says(
            0,
            &format!("links[{}][{end}].attributes.su: …{told}", links[0]),
        );
        broken.is_allowed_by("other-su");
        fs::remove_dir_all(broken.place.path("store")).unwrap();
        broken.write_as_told();
        broken.is_ended();
    }
}

/// Leaves may say no SU: then their other hosts tell.
#[test]
fn a_wrong_su_is_told_where_leaves_say_none() {
    for (links, told) in [
        (&[4, 5][..], "links[4]: …worker-gpu-2…leaf-su0-r0…write 0"),
        (&[5], "links[5]: …worker-gpu-2…leaf-su0-r1…write su 0"),
    ] {
        let mut broken = Broken::new(|topology| {
            for link in topology["links"].as_array_mut().unwrap() {
                link[1]["attributes"].as_object_mut().unwrap().remove("su");
            }
            links
                .iter()
                .for_each(|link| topology["links"][link][0]["attributes"]["su"] = 1.into());
        });
        assert_eq!(broken.faults.len(), links.len());
        broken.says(0, told);
        for fault in broken.faults.clone() {
            let path = format!("{}[0].attributes.su", fault.split(": ").next().unwrap());
            *broken.at(&path) = 0.into();
        }
        broken.is_ended();
    }
}

#[test]
fn a_host_without_one_of_its_rails_is_told_with_the_rail() {
    let mut link = None;
    let mut broken = Broken::new(|topology| {
        link = Some(topology["links"].as_array_mut().unwrap().remove(3));
    });
    broken.says(0, "links[2]: …worker-gpu-1…rail 1");
    assert_eq!(broken.faults.len(), 1);
    broken.is_allowed_by("missing-rail");
    broken.topology["links"]
        .as_array_mut()
        .unwrap()
        .push(link.unwrap());
    broken.is_ended();
}

#[test]
fn a_host_in_two_sus_is_told_with_the_link_that_leads_astray() {
    let mut broken = Broken::new(|topology| {
        topology["links"][3][0]["attributes"]["su"] = 1.into();
        topology["links"][3][1]["node"] = "leaf-su1-r1".into();
        topology["links"][3][1]["interface"] = "swp60".into();
        topology["links"][3][1]["attributes"]["su"] = 1.into();
    });
    broken.says(0, "links[3]: …worker-gpu-1…leaf-su1-r1…write su 0");
    assert_eq!(broken.faults.len(), 1);
    broken.is_allowed_by("two-sus");
    fs::remove_dir_all(broken.place.path("store")).unwrap();
    *broken.at("links[3][0].attributes.su") = 0.into();
    *broken.at("links[3][1]") = good_topology()["links"][3][1].clone();
    broken.is_ended();
}

#[test]
fn two_hosts_with_one_name_are_told_with_every_place_of_the_second() {
    // In another SU, and in the same one.
    for (of, links, first) in [
        ("worker-gpu-4", [8, 9], [53, 78]),
        ("worker-gpu-2", [4, 5], [53, 78]),
    ] {
        let mut broken = Broken::new(|topology| {
            let text = topology.to_string().replace(of, "worker-gpu-1");
            *topology = serde_json::from_str(&text).unwrap();
        });
        for (rail, (link, line)) in links.iter().zip(first).enumerate() {
            let facts = format!(
                "links[{link}]: …worker-gpu-1…rail {rail}…topology.json:{line}: links[{}]",
                2 + rail
            );
            broken.says(rail, &facts);
        }
        broken.says(
            2,
            &format!("nodes[{}].name: worker-gpu-1 …nodes[5]", links[0] / 2 + 4),
        );
        assert_eq!(broken.faults.len(), 3);
        for fault in broken.faults.clone() {
            let path = fault.split(": ").next().unwrap();
            let name = if path.ends_with(".name") {
                path.to_owned()
            } else {
                format!("{path}[0].node")
            };
            *broken.at(&name) = of.into();
        }
        broken.is_ended();
    }
}

#[test]
fn a_cable_in_a_leaf_of_another_rail_is_told_with_what_is_wrong() {
    // The number is wrong, the leaf is right.
    let mut broken =
        Broken::new(|topology| topology["links"][5][0]["attributes"]["rail"] = 0.into());
    broken.says(
        0,
        "links[5][0].attributes.rail: …worker-gpu-2…leaf-su0-r1…write 1",
    );
    assert_eq!(broken.faults.len(), 1);
    broken.write_as_told();
    broken.is_ended();
    // The leaf is wrong.
    let mut broken = Broken::new(|topology| {
        topology["links"][5][1]["node"] = "leaf-su0-r0".into();
        topology["links"][5][1]["interface"] = "swp60".into();
        topology["links"][5][1]["attributes"]["rail_group"] = json!([0]);
    });
    broken.says(
        0,
        "links[5][0].attributes.rail: …worker-gpu-2…leaf-su0-r0…rail 1",
    );
    assert_eq!(broken.faults.len(), 1);
    broken.is_allowed_by("other-rail");
    *broken.at("links[5][1]") = good_topology()["links"][5][1].clone();
    broken.is_ended();
}

#[test]
fn two_hosts_in_one_leaf_port_are_told_with_both_links() {
    let mut broken = Broken::new(|topology| topology["links"][10][1]["interface"] = "swp2".into());
    broken.says(
        0,
        "links[10]: …swp2 of leaf-su1-r0…topology.json:203: links[8]",
    );
    assert_eq!(broken.faults.len(), 1);
    *broken.at("links[10][1].interface") = "swp3".into();
    broken.is_ended();
}

// --- what a plan must leave alone
// ------------------------------------------------------------------------------

#[test]
fn no_plan_takes_services_and_pods_of_the_cluster_away() {
    let place = Place::new();
    let fabric =
        "fabric: spectrum-x\ntiers: 3\nrails: 2\nsus: 1\nhostsPerSU: 1\nnodeName: w{host}\n";
    let file = place.write("fabric.yaml", fabric);
    // Without the cluster's networks there is a warning, and with --strict an error.
    let output = place.run("store", &["plan", &file]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    for told in [
        "10.0.0.0/8",
        "rail-0",
        "10.96.0.0/12 (kubeadm's Services)",
        "firstOctet: 11",
    ] {
        assert!(said.contains(told), "{told}: {said}");
    }
    let said = place.fails(
        1,
        &["plan", &file, "--to", "store", "--all-nodes", "--strict"],
    );
    assert!(said.contains("kubeadm's Services"), "{said}");
    // By an option, by the fabric file, by node.json.
    let told = "10.96.0.0/12 overlaps 10.0.0.0/8";
    let named = place.write(
        "named.yaml",
        &format!("{fabric}clusterNetworks: [10.96.0.0/12]\n"),
    );
    let to_store = ["--to", "store", "--all-nodes"];
    for args in [
        &[
            "plan",
            &file,
            "--cluster-networks",
            "192.168.0.0/16,10.96.0.0/12",
        ][..],
        &["plan", &named],
    ] {
        let said = place.fails(1, &[args, &to_store[..]].concat());
        assert!(said.contains(told), "{said}");
    }
    let node =
        json!({"storeDir": place.path("store"), "clusterNetworks": ["10.96.0.0/12"]}).to_string();
    let node = place.write("known.json", &node);
    let mut command = Command::new(env!("CARGO_BIN_EXE_railctl"));
    let output = command
        .args(["plan", &file])
        .env("RAIL_CNI_NODE_CONFIG", node)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && said.contains(told),
        "{said}"
    );
    assert!(!place.path("store").exists());
    // Its remedy ends the warning; and it can be allowed.
    let other = place.write(
        "other.yaml",
        &format!("{fabric}firstOctet: 11\nclusterNetworks: [10.96.0.0/12]\n"),
    );
    place.ok(
        "store",
        &["plan", &other, "--strict", "--to", "store", "--all-nodes"],
    );
    let output = place.run(
        "store",
        &["plan", &named, "--allow", "cluster-networks", "--strict"],
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains(told), "{said}");
    for (networks, told) in [("0.0.0.0/0", "0.0.0.0/0"), ("10.96.0.1/12", "10.96.0.0/12")] {
        let said = place.fails(1, &["plan", &other, "--cluster-networks", networks]);
        assert!(
            said.contains(&format!("--cluster-networks: {networks}")) && said.contains(told),
            "{said}"
        );
    }
}

/// A warning of the store is an error before it is written.
#[test]
fn with_strict_every_warning_is_an_error() {
    let place = Place::new();
    place.ok(
        "store",
        &[
            "plan",
            FABRIC,
            "--to",
            "store",
            "--pool-name",
            "old-{rail}",
            "--strict",
        ],
    );
    let before = place.files("store");
    let said = place.fails(1, &["plan", FABRIC, "--to", "store", "--strict"]);
    assert!(
        said.contains("9 faults:") && said.contains("pool old-7"),
        "{said}"
    );
    assert!(
        place
            .fails(1, &["plan", FABRIC, "--check", "--strict"])
            .contains("pool old-7")
    );
    assert!(place.files("store") == before, "something was written");
}

/// No topology file says an MTU.
#[test]
fn the_mtu_of_a_topology_reaches_hosts_and_networks() {
    let place = Place::new();
    let file = place.write("topology.json", &good_topology().to_string());
    let to = |target: &str, more: &[&str]| {
        place.ok(
            "store",
            &[&["plan", &file, "--tiers", "2", "--to", target], more].concat(),
        )
    };
    for (target, mtu) in [
        ("nads", "\"mtu\": 4200"),
        ("netplan", "mtu: 4200"),
        ("csv", ",4200\r\n"),
    ] {
        assert!(to(target, &["--mtu", "4200"]).contains(mtu), "{target}");
        assert!(!to(target, &[]).contains("4200"), "{target}");
    }
    // The leaf's port takes 9216 at most.
    let nvue = ["plan", &file, "--tiers", "2", "--to", "nvue", "--mtu"];
    assert!(
        place
            .fails(1, &[&nvue[..], &["9600"]].concat())
            .contains("9600")
    );
    place.ok("store", &[&nvue[..], &["9216"]].concat());
    place.fails(2, &[&nvue[..], &["1279"]].concat());
    assert!(
        place
            .fails(1, &["plan", FABRIC, "--mtu", "9000"])
            .contains("--mtu")
    );
}

/// A target refuses whatever it cannot express, with the reason, and writes nothing.
#[test]
fn each_target_says_all_of_an_unnumbered_fabric_or_refuses_it() {
    let place = Place::new();
    let inet6 = "conf/fabric-unnumbered.yaml";
    let fabric = example(inet6);
    let onlink = place.write(
        "onlink.yaml",
        &fabric.replace("fe80::1", "10.255.{su}.{rail+1}"),
    );

    let row = "worker-gpu-62,7,,rail-7,ipv4,10.71.1.31,fe80::1,10.71.1.31/32,eth_r7,leaf-su02-r8,swp31,9216\r\n";
    assert!(
        place
            .ok("store", &["plan", inet6, "--to", "csv"])
            .contains(row)
    );
    let networks = place.ok("store", &["plan", inet6, "--to", "nads"]);
    assert!(
        networks.contains("\"ipam\": {\"type\": \"rail-ipam\", \"pool\": \"rail-7\"}"),
        "{networks}"
    );
    place.ok("store", &["plan", inet6, "--to", "store"]);
    let stored: Value =
        serde_json::from_slice(&fs::read(place.path("store/worker-gpu-62/rail-7.json")).unwrap())
            .unwrap();
    let expected = json!({"version": 2, "prefix": "10.71.1.31/32", "gateway": "fe80::1", "rail": 7,
        "routes": [{"dst": "10.71.0.0/16"}, {"dst": "10.64.0.0/13"}], "exclusions": []});
    assert_eq!(stored, expected);
    assert!(
        place
            .ok("store", &["plan", inet6, "--check"])
            .contains(" 8 ")
    );
    // A gateway that moves is told as every other change.
    assert!(
        place
            .fails(1, &["plan", &onlink, "--check"])
            .contains("10.255.1.8")
    );

    let hosts = place.ok(
        "store",
        &["plan", &onlink, "--to", "netplan", "--output", "json"],
    );
    let hosts: Value = serde_json::from_str(&hosts).unwrap();
    let host = hosts.to_string();
    for part in ["10.71.1.31/32", "via: 10.255.1.8", "on-link: true"] {
        assert!(host.contains(part), "{part} is not in {host}");
    }
    for (file, target, told) in [
        (inet6, "netplan", "pool rail-0"),
        (inet6, "cidrpool", "nv-ipam"),
        (&onlink, "cidrpool", "nv-ipam"),
        (inet6, "nvue", "unnumbered"),
        (&onlink, "nvue", "unnumbered"),
        (&onlink, "sonic", "unnumbered"),
    ] {
        let out = place.path("out").display().to_string();
        let said = place.fails(1, &["plan", file, "--to", target, "--out", &out]);
        assert!(said.contains(told), "{told}: {said}");
        assert!(!place.path("out").exists(), "{target}");
    }
}

/// Each plane's port has the VRF of its plane, also where the planes share an address.
#[test]
fn the_vrf_of_a_leaf_port_reaches_its_switch_and_the_table() {
    let place = Place::new();
    let fabric = example(FABRIC);
    let text =
        fabric.replace("mode: none", "mode: hwplb\nplanes: 2") + "leafVrf: plane{plane}-r{rail}\n";
    let text = text.replace(
        "leaf-su{su+1:02}-r{rail+1}",
        "leaf-p{plane}-su{su+1:02}-r{rail+1}",
    );
    let file = place.write("vrf.yaml", &text);
    let out = place.path("leaves").display().to_string();
    place.ok("store", &["plan", &file, "--to", "nvue", "--out", &out]);
    for plane in [0, 1] {
        let leaf =
            fs::read_to_string(place.path(&format!("leaves/leaf-p{plane}-su02-r8.nvue"))).unwrap();
        let vrf = format!("plane{plane}-r7");
        assert!(
            leaf.contains(&format!("\nnv set vrf {vrf} table auto\n")),
            "{leaf}"
        );
        assert_eq!(
            leaf.matches(&format!(" ip vrf {vrf}\n")).count(),
            32,
            "{leaf}"
        );
    }
    let table = place.ok("store", &["plan", &file, "--to", "csv"]);
    assert!(table.lines().next().unwrap().ends_with(",mtu,vrf"));
    for plane in [0, 1] {
        let row = format!(",leaf-p{plane}-su01-r1,swp1s0,9216,plane{plane}-r0\r\n");
        assert!(table.contains(&row), "{row}: {table}");
    }
    // Manifests would lose it, and leaf configuration of them would put the ports into no VRF.
    let said = place.fails(1, &["plan", &file, "--to", "cidrpool"]);
    assert!(said.contains("pool rail-0: "), "{said}");
}

/// Manifests of a fabric with a prefix for each link come back as they were.
#[test]
fn a_fabric_by_patterns_goes_through_manifests_and_hosts() {
    let place = Place::new();
    for fabric in ["conf/fabric-juniper.yaml", "conf/fabric-amd.yaml"] {
        let pools = place.path("pools").display().to_string();
        place.ok(
            "store",
            &["plan", fabric, "--to", "cidrpool", "--out", &pools],
        );
        let names = place.names("pools");
        let args = with(&["plan", fabric, "--check", "--against"], &names);
        assert!(place.ok("store", &args).lines().count() == 1, "{fabric}");
        fs::remove_dir_all(place.path("pools")).unwrap();
    }
}

/// NVIDIA's pools do not say their rail, and exclude no gateway.
#[test]
fn pools_that_give_the_same_addresses_differ_in_nothing() {
    let place = Place::new();
    let fabric = place.write(
        "fabric.yaml",
        "fabric: spectrum-x\nrails: 1\nnodes:\n- {name: gpu-2, su: 0, host: 2}\n- {name: gpu-3, su: 0, host: 3}\n",
    );
    let pool = |third: &str| {
        format!(
            "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {{name: eth-0}}\nspec:\n  cidr: 172.16.0.0/15\n  \
             gatewayIndex: 0\n  perNodeNetworkPrefix: 31\n  routes: [{{dst: 172.16.0.0/15}}, {{dst: 172.16.0.0/12}}]\n  \
             staticAllocations:\n  - {{nodeName: gpu-2, prefix: 172.16.0.4/31, gateway: 172.16.0.5}}\n  \
             - {{nodeName: gpu-3, prefix: 172.16.0.6/31, gateway: {third}}}\n"
        )
    };
    let check = [
        "plan",
        &fabric,
        "--pool-name",
        "eth-{rail}",
        "--check",
        "--against",
    ];
    let same = place.write("same.yaml", &pool("172.16.0.7"));
    place.ok("store", &[&check[..], &[same.as_str()]].concat());
    let other = place.write("other.yaml", &pool("172.16.0.6"));
    let output = place.run("store", &[&check[..], &[other.as_str()]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("1 changed ")
    );
}

/// A row without a node keeps its prefix free.
#[test]
fn a_reserved_prefix_is_no_node() {
    let place = Place::new();
    let pool = place.write(
        "pool.yaml",
        "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {name: rail-0}\nspec:\n  cidr: 172.16.0.0/15\n  \
         perNodeNetworkPrefix: 31\n  staticAllocations:\n  - {prefix: 172.16.0.0/31}\n  - {nodeName: gpu-0, prefix: 172.16.0.2/31}\n  \
         - {nodeName: \"\", prefix: 172.16.0.4/31}\n",
    );
    let shown = place.ok("store", &["plan", &pool]);
    let row: Vec<_> = shown.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(
        row[row.len() - 5..],
        ["1", "172.16.0.2/31", "gpu-0", "172.16.0.2/31", "gpu-0"],
        "{shown}"
    );
    let line = place.ok("store", &["plan", &pool, "--to", "csv"]);
    assert_eq!(line.lines().count(), 2, "{line}");
}

#[test]
fn a_gateway_outside_of_its_prefix_is_refused_by_plan_and_lint() {
    let place = Place::new();
    let pool = place.write(
        "pool.yaml",
        "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {name: rail-0}\nspec:\n  cidr: 172.16.0.0/15\n  \
         perNodeNetworkPrefix: 31\n  staticAllocations:\n  - {nodeName: gpu-0, prefix: 172.16.0.0/31, gateway: 172.16.0.5}\n",
    );
    for verb in ["plan", "lint"] {
        let said = place.fails(1, &[verb, &pool]);
        assert!(
            said.contains("172.16.0.5 ") && said.contains(" 172.16.0.0/31"),
            "{verb}: {said}"
        );
    }
}
