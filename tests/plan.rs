//! The real `rail-ipam plan`, from files to files and stores.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with stores and what is planned into them.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_rail-ipam"));
        command.args(args).env("RAIL_CNI_NODE_CONFIG", node).env_remove("CNI_COMMAND");
        command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, store: &str, args: &[&str]) -> String {
        let output = self.run(store, args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says when it fails with this exit status.
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
        self.files(name).keys().map(|path| self.path(name).join(path).display().to_string()).collect()
    }
}

fn with<'a>(args: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    args.iter().copied().chain(more.iter().map(String::as_str)).collect()
}

const FABRIC: &str = "conf/fabric.yaml";

/// The deployment that the project came from: rail-1 of its example.
#[test]
fn the_published_deployment_comes_out_as_it_was_published() {
    let place = Place::new();
    let out = place.path("pools").display().to_string();
    place.ok("store", &["plan", FABRIC, "--pool-name", "rail-{rail+1}", "--to", "cidrpool", "--out", &out]);
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

/// netplan -> plan -> netplan is exact, and the pools are those of the fabric that the hosts were given.
#[test]
fn hosts_tell_the_plan_that_they_were_given() {
    let place = Place::new();
    let out = |name: &str| place.path(name).display().to_string();
    place.ok("store", &["plan", FABRIC, "--to", "netplan", "--out", &out("hosts")]);
    let mode = fs::metadata(place.path("hosts/worker-gpu-62.yaml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "netplan warns of more");
    assert_eq!(place.files("hosts").len(), 64);
    place.ok(
        "store",
        &["plan", "--from", "netplan", &out("hosts"), "--to", "netplan", "--out", &out("again")],
    );
    assert!(place.files("hosts") == place.files("again"));
    // One file says by itself what it is.
    let host = out("hosts/worker-gpu-62.yaml");
    place.ok("store", &["plan", &host, "--to", "netplan", "--out", &out("one")]);
    assert!(fs::read(place.path("one/worker-gpu-62.yaml")).unwrap() == fs::read(&host).unwrap());
    // As they are on the hosts.
    for (name, text) in place.files("hosts") {
        let node = name.file_stem().unwrap().to_str().unwrap();
        place.write(&format!("roots/{node}/etc/netplan/60-rails.yaml"), std::str::from_utf8(&text).unwrap());
    }
    for (from, to) in [(FABRIC.to_owned(), "pools"), (out("hosts"), "pools-2"), (out("roots"), "pools-3")] {
        place.ok("store", &["plan", &from, "--to", "cidrpool", "--out", &out(to)]);
    }
    assert_eq!(place.files("pools").len(), 8);
    // Hosts do not know the leaf at the other end of their cables.
    let without_leaves = |name: &str| -> Vec<String> {
        let texts = place.files(name).into_values().map(|text| String::from_utf8(text).unwrap());
        let is_of_leaf = |line: &str| line.contains("leaf-su") || line.contains("rail-cni/leaf-ports");
        texts
            .map(|text| text.lines().filter(|line| !is_of_leaf(line)).collect::<Vec<_>>().join("\n"))
            .collect()
    };
    assert!(place.files("pools") != place.files("pools-2"));
    assert!(without_leaves("pools") == without_leaves("pools-2"));
    assert!(place.files("pools-2") == place.files("pools-3"));
    let same = ["plan", &out("hosts"), "--check", "--against", FABRIC];
    assert_eq!(place.ok("store", &same), "no difference in 512 allocations\n");
    assert!(place.fails(1, &["plan", &out("hosts"), "--tiers", "2"]).contains("these are netplan files"));
}

/// What is written for Kubernetes is what `rail-cni lint` finds nothing wrong with.
#[test]
fn networks_of_a_plan_are_clean() {
    let place = Place::new();
    let fabric = fs::read_to_string(FABRIC).unwrap();
    let planes = |mode: &str| {
        let text = fabric.replace("mode: none", &format!("mode: {mode}\nplanes: 2"));
        let text = text.replace("eth_r{rail}", "eth_r{rail}p{plane}");
        text.replace("leaf-su", "leaf-p{plane+1}-su")
    };
    let dual = fabric.replace("family: ipv4", "family: dual");
    for (text, networks) in [(fabric.clone(), 8), (dual, 8), (planes("swplb"), 16), (planes("hwplb"), 8)] {
        let file = place.write("fabric.yaml", &text);
        let out = place.path("nads").display().to_string();
        place.ok("store", &["plan", &file, "--to", "nads", "--out", &out]);
        let mut lint = Command::new(env!("CARGO_BIN_EXE_rail-cni"));
        let output = lint.args(["lint", &format!("{out}/nads.yaml")]).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{said}");
        assert_eq!(said, format!("{networks} networks: 0 errors, 0 warnings\n"));
    }
}

/// The same input gives the same bytes: who keeps the output in git sees only what changed.
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

#[test]
fn plan_to_manifests_to_store_to_plan_loses_nothing() {
    let place = Place::new();
    let out = place.path("pools").display().to_string();
    place.ok("planned", &["plan", FABRIC, "--to", "store", "--all-nodes"]);
    place.ok("store", &["plan", FABRIC, "--to", "cidrpool", "--out", &out]);
    let pools = place.names("pools");
    place.ok("imported", &with(&["import", "--all-nodes"], &pools));
    assert_eq!(place.files("planned").len(), 64 * (8 + 1));
    assert!(place.files("planned") == place.files("imported"), "the stores differ");

    let again = place.path("again").display().to_string();
    place.ok("store", &with(&["plan", "--to", "cidrpool", "--out", &again], &pools));
    assert!(place.files("pools") == place.files("again"), "the manifests differ");
    for args in [
        with(&["plan", "--check", "--all-nodes"], &pools),
        vec!["plan", FABRIC, "--check", "--all-nodes"],
        with(&["plan", FABRIC, "--check", "--against"], &pools),
    ] {
        assert_eq!(place.ok("imported", &args), "no difference in 512 allocations\n", "{args:?}");
    }
}

#[test]
fn differences_are_shown_and_nothing_is_written_before_it_is_wanted() {
    let place = Place::new();
    let fabric = fs::read_to_string(FABRIC).unwrap();
    let other = place.write("other.yaml", &fabric.replace("polarity: leaf-odd", "polarity: leaf-even"));
    assert_ne!(fs::read_to_string(&other).unwrap(), fabric);
    place.ok("store", &["plan", FABRIC, "--to", "store"]);
    let before = place.files("store");
    for args in
        [&["plan", other.as_str(), "--to", "store", "--diff"][..], &["plan", other.as_str(), "--check"]]
    {
        let output = place.run("store", args);
        assert_eq!(output.status.success(), args[2] == "--to", "{args:?}");
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains("172.16.1.60 (was 172.16.1.61)"), "{shown}");
        assert!(shown.contains("8 changed (nothing written)"), "{shown}");
    }
    assert!(place.files("store") == before, "something was written");

    let out = place.path("pools").display().to_string();
    place.ok("store", &["plan", FABRIC, "--to", "cidrpool", "--out", &out]);
    let before = place.files("pools");
    let shown = place.ok("store", &["plan", &other, "--to", "cidrpool", "--out", &out, "--diff"]);
    assert!(shown.contains("-    gateway: 172.16.1.61\n+    gateway: 172.16.1.60\n"), "{shown}");
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
    let before = place.write("topology.json", &topology(&["worker-gpu-61", "worker-gpu-62"]));
    let sorted = place.write("sorted.json", &topology(&["worker-gpu-62", "worker-gpu-61"]));
    let check = |file: &str| -> Vec<String> {
        ["plan", file, "--tiers", "2", "--check", "--all-nodes"].map(str::to_owned).into()
    };
    fn words(args: &[String]) -> Vec<&str> {
        args.iter().map(String::as_str).collect()
    }
    place.ok("store", &["plan", &before, "--tiers", "2", "--to", "store", "--all-nodes"]);
    assert_eq!(place.ok("store", &words(&check(&before))), "no difference in 2 allocations\n");
    let said = place.fails(1, &words(&check(&sorted)));
    assert!(
        said.contains("172.16.1.0/31 (was 172.16.1.2/31)")
            && said.contains("172.16.1.2/31 (was 172.16.1.0/31)"),
        "{said}"
    );
    let against = ["plan", &sorted, "--tiers", "2", "--check", "--against", &before];
    assert!(place.fails(1, &against).contains("172.16.1.0/31 (was 172.16.1.2/31)"));
    assert!(place.fails(1, &["plan", &before]).contains("how many tiers"));
    let fault = place.fails(1, &["plan", &before, "--tiers", "3"]);
    assert!(fault.contains("topology.json:5: links[0][0].attributes.pod: is missing: 0 to 31"), "{fault}");
}

/// A host that is not in the plan any more loses its address: while a pod uses it, only by --force.
#[test]
fn a_store_that_the_plan_does_not_know_whole_is_told() {
    let place = Place::new();
    place.ok("store", &["plan", FABRIC, "--to", "store", "--pool-name", "old-{rail}"]);
    let output = place.run("store", &["plan", FABRIC, "--to", "store"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("pool old-7 is in the store (1 nodes) and not in the plan"), "{said}");
    // And the file with the leaf ports.
    assert_eq!(place.files("store").len(), 17);

    // A node that the plan calls otherwise does not lose what it has.
    let other =
        place.write("other.yaml", &fs::read_to_string(FABRIC).unwrap().replace("worker-gpu-", "Worker-GPU-"));
    let said = place.fails(1, &["plan", &other, "--to", "store", "--prune"]);
    assert!(said.contains("did the plan mean it with Worker-GPU-62?"), "{said}");
    assert_eq!(place.files("store").len(), 17);

    let shown = place.ok("store", &["plan", FABRIC, "--to", "store", "--prune", "--diff"]);
    assert!(shown.ends_with("8 removed, 8 same (nothing written)\n"), "{shown}");
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
    place.ok("store", &["plan", FABRIC, "--to", "cidrpool", "--out", &out]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    assert!(fs::symlink_metadata(place.path("pools/rail-1.yaml")).unwrap().is_file());
    assert_eq!(place.files("pools").len(), 8);
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_written() {
    let place = Place::new();
    let scheme = ["plan", FABRIC, "--tiers", "2"];
    assert!(place.fails(1, &scheme).contains("--tiers is for topology files"));
    assert!(place.fails(1, &["plan", FABRIC, "--prune"]).contains("--prune is for the store, or --out"));
    for target in ["cidrpool", "nads"] {
        let said = place.fails(1, &["plan", FABRIC, "--pool-name", "Rail-{rail}", "--to", target]);
        assert!(said.contains("pool Rail-0: Kubernetes takes small letters"), "{said}");
    }
    let diff = ["plan", FABRIC, "--to", "cidrpool", "--diff"];
    assert!(place.fails(1, &diff).contains("--diff needs the store, or --out"));
    assert!(
        place.fails(1, &["plan", FABRIC, "--to", "cidrpool", "--all-nodes"]).contains("are for the store")
    );
    assert!(place.fails(1, &["plan", FABRIC, "--to", "store", "--out", "x"]).contains("--out is for files"));
    assert!(place.fails(1, &["plan", FABRIC, "--pool-name", "{x}"]).contains("--pool-name"));
    assert!(place.fails(1, &["plan", FABRIC, "--pool-name", "../{rail}"]).contains("no name of a pool"));
    assert!(place.fails(1, &["plan", FABRIC, "--pool-name", "same"]).contains("it is there twice"));
    assert!(
        place.fails(1, &["plan", FABRIC, "--to", "store", "--node", "../x"]).contains("no name of a node")
    );
    let unknown = place.fails(1, &["plan", FABRIC, "--to", "store", "--node", "Worker-GPU-62"]);
    assert!(unknown.contains("did the plan mean it with worker-gpu-62?"), "{unknown}");
    for usage in [&["plan"][..], &["plan", FABRIC, "--to", "x"], &["plan", FABRIC, "--against", "x"]] {
        place.fails(2, usage);
    }
    assert!(!place.path("store").exists());
}

/// The wrong file in the wrong place: a clear word with a position, nothing written, no panic.
#[test]
fn files_of_the_wrong_kind_are_told_with_their_place() {
    let place = Place::new();
    let pool = fs::read_to_string("conf/pools/spectrum-x.yaml").unwrap();
    let executable = env!("CARGO_BIN_EXE_rail-ipam");
    let fifo = place.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let laughs: String = (0..12)
        .map(|level| {
            let inner = if level == 0 { "x".to_owned() } else { format!("*a{}", level - 1) };
            format!("a{level}: &a{level} [{}]\n", vec![inner; 10].join(","))
        })
        .collect();
    for (file, told) in [
        (executable.to_owned(), ""),
        (fifo.display().to_string(), "not a regular file"),
        ("/nonexistent".to_owned(), "/nonexistent"),
        (place.write("empty", ""), "nothing in it"),
        (place.write("half", &pool[..pool.find("NetworkPrefix").unwrap()]), "half:"),
        (place.write("half.json", "{\"nodes\": ["), "half.json:1:11"),
        (place.write("deep", &"[".repeat(1_000_000)), "deep:1:"),
        (place.write("laughs", &laughs), "aliases"),
        (place.write("other", "kind: Pod\n"), "other:1: kind"),
        (
            place.write("name", &pool.replacen("worker-gpu-0", "../../etc", 1)),
            "\"../../etc\" is no name of a node",
        ),
        (place.write("slash", &pool.replacen("worker-gpu-0", "a/b", 1)), "slash:18"),
        (place.write("pool", &pool.replacen("name: rail-0", "name: ../rail-0", 1)), "pool:8: metadata.name"),
        (
            place.write("default", &pool.replacen("prefix: 172.16.0.0/31", "prefix: 172.16.0.1/31", 1)),
            "host bits",
        ),
        (place.write("family", &pool.replacen("dst: 172.16.0.0/12", "dst: fd00::/8", 1)), "family:16"),
    ] {
        let said = place.fails(1, &["plan", &file, "--to", "store"]);
        assert!(said.contains(told) && !said.contains("panicked"), "{told}: {said}");
    }
    assert!(!place.path("store").exists());
    assert!(Path::new(executable).exists());
}

/// Of a fabric, worker-gpu-5 was replaced by spare-7.
fn with_spare(place: &Place) -> String {
    let fabric = fs::read_to_string(FABRIC).unwrap();
    place.write("spare.yaml", &format!("{fabric}nodes:\n- {{name: spare-7, replaces: worker-gpu-5}}\n"))
}

/// A node that the plan no longer names keeps its addresses, and who would get them must say that he replaces it.
#[test]
fn a_node_is_replaced_by_a_word_and_not_by_a_slip() {
    let place = Place::new();
    let fabric = fs::read_to_string(FABRIC).unwrap();
    let put = |file: &str, more: &[&str]| {
        let output = place.run("store", &[&["plan", file, "--to", "store", "--all-nodes"], more].concat());
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
        assert!(said.contains("node worker-gpu-32 is in the store (8 pools) and not in the plan"), "{said}");
        assert!(said.contains("and 22 more of these"), "{said}");
        assert!(place.files("store") == before, "the store changed");
    }

    // Renamed without a word.
    let nodes = "nodes:\n- {name: spare-7, su: 0, host: 5}\n";
    let renamed = place.write("renamed.yaml", &format!("{fabric}{nodes}"));
    let (is_done, said) = put(&renamed, &[]);
    assert!(!is_done, "{said}");
    let told = "node spare-7 would get 172.16.0.10/31 and 7 more, which the store has for node worker-gpu-5 in pool rail-0";
    assert!(said.contains(told) && said.contains("--replaces spare-7=worker-gpu-5 says so"), "{said}");
    assert!(said.ends_with("nothing was written: 1 nodes would get what stays another's\n"), "{said}");
    assert!(place.files("store") == before, "the store changed");

    // With it, on the command line or in the plan.
    let shown =
        place.ok("store", &["plan", &with_spare(&place), "--to", "store", "--node", "spare-7", "--diff"]);
    assert!(shown.contains("new, in the place of worker-gpu-5"), "{shown}");
    assert!(shown.ends_with("8 new, 8 removed (nothing written)\n"), "{shown}");
    let (is_done, said) = put(&renamed, &["--replaces", "spare-7=worker-gpu-5"]);
    assert!(is_done && said.contains("8 new, 8 removed, 504 same"), "{said}");
    assert!(!place.path("store/worker-gpu-5").exists());
    let placed = nodes.replace("host: 5", "host: 5, replaces: worker-gpu-5");
    let placed = place.write("placed.yaml", &format!("{fabric}{placed}"));
    for file in [with_spare(&place), placed, renamed] {
        let (is_done, said) = put(&file, &[]);
        assert!(is_done && said.contains("512 same") && !said.contains("worker-gpu-5:"), "{said}");
    }
    // Manifests, the same.
    let pools = |name: &str, file: &str| {
        let out = place.path(name).display().to_string();
        place.ok("store", &["plan", file, "--to", "cidrpool", "--out", &out]);
        place.names(name)
    };
    place.ok("imported", &with(&["import", "--all-nodes"], &pools("pools", FABRIC)));
    let spare = pools("spare", &with_spare(&place));
    let output = place.run("imported", &with(&["import", "--all-nodes"], &spare));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--replaces spare-7=worker-gpu-5"),
        "{output:?}"
    );
    assert!(!output.status.success());
    let replaces = ["import", "--all-nodes", "--replaces", "spare-7=worker-gpu-5"];
    place.ok("imported", &with(&replaces, &spare));
    assert!(place.files("imported") == place.files("store"));
    for wrong in ["spare-7", "spare-7=", "=a", "a=a", "../x=a"] {
        place.fails(2, &["plan", FABRIC, "--to", "store", "--replaces", wrong]);
    }
    let nowhere = place.write("nowhere.yaml", &format!("{fabric}nodes:\n- {{name: a, replaces: b}}\n"));
    let said = place.fails(1, &["plan", &nowhere]);
    assert!(
        said.contains("nowhere.yaml:21: nodes[0].replaces: b is not by nodeName: say su and host"),
        "{said}"
    );
}

/// Two netplan files with one address: the one of a node that is gone stays until somebody wants it away.
#[test]
fn files_of_an_earlier_plan_are_told_and_go_when_they_are_pruned() {
    let place = Place::new();
    let out = place.path("hosts").display().to_string();
    let put = |file: &str, more: &[&str]| {
        let output = place.run("store", &[&["plan", file, "--to", "netplan", "--out", &out], more].concat());
        assert!(output.status.success(), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (old, kept) = (place.path("hosts/worker-gpu-5.yaml"), place.path("hosts/worker-gpu-6.yaml"));
    let (shown, _) = put(FABRIC, &[]);
    assert!(shown.ends_with("64 new\n"), "{shown}");
    // What is as it was is a number.
    assert_eq!(put(FABRIC, &[]), ("64 same\n".to_owned(), String::new()));
    place.write("hosts/notes.txt", "x");
    place.write("hosts/.hidden.yaml", "x");
    let foreign = place.write("hosts/foreign.yaml", "network: {version: 2}\n");

    let spare = with_spare(&place);
    for more in [&[][..], &["--diff"], &["--diff", "--prune"]] {
        let (shown, said) = put(&spare, more);
        let change = if more.contains(&"--prune") { "removed" } else { "stale" };
        assert!(
            shown.contains(&format!("worker-gpu-5.yaml  {change}")) && !shown.contains("gpu-6"),
            "{shown}"
        );
        assert_eq!(said.contains("stays (--prune: it goes): worker-gpu-5.yaml"), change == "stale", "{said}");
        assert!(
            said.contains(
                "nothing tells who wrote it: look at it, and remove it if it is old: foreign.yaml\n"
            ),
            "{said}"
        );
        assert!(old.exists() && place.path("hosts/spare-7.yaml").exists());
    }
    let (shown, _) = put(&spare, &["--prune"]);
    assert!(shown.ends_with("1 removed, 64 same\n") && !old.exists(), "{shown}");
    assert_eq!(put(&spare, &["--prune"]).0, "64 same\n");
    assert!(Path::new(&foreign).exists() && place.path("hosts/notes.txt").exists());

    // What somebody changed since is his.
    fs::remove_file(&foreign).unwrap();
    let less =
        fs::read_to_string(FABRIC).unwrap().replace("nodeName: worker-gpu-{node}", "nodeName: w{node}");
    let less = place.write("less.yaml", &less);
    fs::write(&kept, "# mine\n").unwrap();
    let (shown, said) = put(&less, &["--prune"]);
    assert!(shown.ends_with("1 edited, 64 new, 63 removed\n"), "{shown}");
    assert!(
        said.contains("changed since, so it stays: look at it, and remove it: worker-gpu-6.yaml\n"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&kept).unwrap(), "# mine\n");
    assert!(put(&less, &[]).0.ends_with("1 edited, 64 same\n"));
    fs::remove_file(&kept).unwrap();
    assert_eq!(put(&less, &[]), ("64 same\n".to_owned(), String::new()));

    // Nobody's list leads out of the folder, or over a link.
    let victim = place.write("victim.yaml", "x\n");
    let list = place.path("hosts/.rail-ipam-plan");
    let text = fs::read_to_string(&list).unwrap();
    let hash = "0".repeat(32);
    fs::write(&list, text.replace("\"w0.yaml\"", "\"../victim.yaml\"")).unwrap();
    put(&less, &["--prune"]);
    assert!(Path::new(&victim).exists());
    fs::write(&list, format!("{{\"netplan\": {{\"link.yaml\": \"{hash}\"}}}}")).unwrap();
    std::os::unix::fs::symlink(&victim, place.path("hosts/link.yaml")).unwrap();
    assert!(put(&less, &["--prune"]).0.contains("link.yaml  edited"));
    fs::write(&list, "{").unwrap();
    let said = place.fails(1, &["plan", &less, "--to", "netplan", "--out", &out]);
    assert!(said.contains("hosts/.rail-ipam-plan: EOF") && said.contains("remove it"), "{said}");
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
    let seven = fs::read_to_string(FABRIC).unwrap().replace("rails: 8", "rails: 7");
    let seven = place.write("seven.yaml", &seven);
    let shown = place.ok("store", &["plan", &seven, "--to", "cidrpool", "--out", &out, "--prune"]);
    assert!(shown.ends_with("1 removed, 7 same\n") && shown.contains("rail-7.yaml"), "{shown}");
    assert_eq!(place.files("all").len(), 7 + 1 + 64 + 1 + 1);
}

/// The leaf port of each allocation, from the plan or by way of manifests; and a store without them is complete.
#[test]
fn the_store_has_leaf_ports_where_the_plan_knows_them() {
    let place = Place::new();
    let out = place.path("pools").display().to_string();
    place.ok("planned", &["plan", FABRIC, "--to", "store"]);
    place.ok("store", &["plan", FABRIC, "--to", "cidrpool", "--out", &out]);
    let text = fs::read_to_string(place.path("pools/rail-0.yaml")).unwrap();
    assert!(text.contains("    rail-cni/leaf-ports: |\n      worker-gpu-0: leaf-su01-r1 swp1s0\n"), "{text}");
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
        text.lines().filter(|line| !line.contains("description")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(plain(nvue(&place.names("pools"))), plain(nvue(&[FABRIC.to_owned()])));

    let shown: serde_json::Value =
        serde_json::from_str(&place.ok("planned", &["show", "--output", "json"])).unwrap();
    let port = serde_json::json!([{"leaf": "leaf-su02-r1", "port": "swp16s0"}]);
    assert_eq!(shown["pools"][0]["leafPorts"], port);

    // Without the annotation: what the plan before said holds, and is no difference.
    let bare: String =
        text.lines().filter(|line| !line.contains("leaf-")).map(|line| format!("{line}\n")).collect();
    let bare = place.write("bare.yaml", &bare);
    let before = place.files("planned");
    assert!(place.ok("planned", &["import", &bare]).ends_with("1 same\n"));
    assert!(place.files("planned") == before);
    place.ok("old", &["import", &bare]);
    assert!(!place.path("old/worker-gpu-62/leaf-ports").exists());
    let rail_0 = place.path("pools/rail-0.yaml").display().to_string();
    assert_eq!(place.ok("old", &["plan", &rail_0, "--check"]), "no difference in 1 allocations\n");
    let shown = place.ok("old", &["import", &rail_0]);
    assert!(shown.contains("changed (leaf port)"), "{shown}");
    assert!(place.path("old/worker-gpu-62/leaf-ports").exists());

    for (from, to, told) in [
        ("0: leaf-su01-r1 swp1s0", "0 leaf", "is not NODE: LEAF PORT"),
        ("leaf-su01-r1 swp1s0", "leaf-su01-r1 swp$1", "\"swp$1\" is no name of a switch port"),
        ("worker-gpu-1:", "worker-gpu-0:", "this node is there twice"),
    ] {
        let wrong = place.write("wrong.yaml", &text.replacen(from, to, 1));
        let said = place.fails(1, &["plan", &wrong]);
        assert!(
            said.contains("wrong.yaml:8: CIDRPool rail-0: metadata.annotations.rail-cni/leaf-ports: "),
            "{said}"
        );
        assert!(said.contains(told), "{said}");
    }
}

/// Small letters, digits, - and .: nv-ipam would look for such a node in vain.
#[test]
fn manifests_name_only_what_can_be_a_node() {
    let place = Place::new();
    let fabric = fs::read_to_string(FABRIC).unwrap().replace("worker-gpu-{node}", "Worker_{node}");
    let file = place.write("fabric.yaml", &fabric);
    let said = place.fails(1, &["plan", &file, "--to", "cidrpool"]);
    assert!(
        said.contains("no node of Kubernetes can be called Worker_0; Worker_1; ")
            && said.contains("and 54 more"),
        "{said}"
    );
    // A node.json can say such a name.
    place.ok("store", &["plan", &file, "--to", "store", "--all-nodes"]);
    let pools = fs::read_to_string("conf/pools/dual-stack.yaml").unwrap();
    let pools = place.write("pools.yaml", &pools.replacen("worker-gpu-62", "Worker-GPU-62", 1));
    let output = place.run("store", &["import", "--all-nodes", &pools, "--dry-run"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no node of Kubernetes can be called Worker-GPU-62"), "{said}");
}

/// Eight networks without `rail`, of manifests as NVIDIA's tools write them.
#[test]
fn networks_of_manifests_without_annotations_have_their_rail() {
    let place = Place::new();
    let output = place.run("store", &["plan", "conf/pools/spectrum-x.yaml", "--to", "nads"]);
    let (text, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    for rail in 0..8 {
        assert!(text.contains(&format!("\"rail\": {rail},")), "{text}");
    }
    assert!(said.contains("comes from the addresses of the pools: "), "{said}");
}

/// Who is called otherwise than in the plan sees who there is.
#[test]
fn an_unknown_node_sees_the_names_that_there_are() {
    let place = Place::new();
    place.ok("store", &["plan", FABRIC, "--to", "store", "--all-nodes"]);
    let show = place.run("store", &["show", "--node", "worker-gpu-"]);
    let said = String::from_utf8(show.stderr).unwrap();
    assert!(
        said.contains("the store has worker-gpu-0, worker-gpu-1, ") && said.contains(" and 54 more; "),
        "{said}"
    );
    let said = place.fails(1, &["plan", FABRIC, "--to", "store", "--node", "worker-gpu-99"]);
    assert!(said.contains("the plan has worker-gpu-9, worker-gpu-19, "), "{said}");
}
