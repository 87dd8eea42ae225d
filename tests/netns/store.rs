//! The store, written by `railctl import` while pods come and go.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::failures::Mount;
use crate::harness::{self, Call, Host, Ran, rail, skip};
use crate::trace;

/// A node with the pools `rail-0` and `rail-0-v6`, and manifests of more than one plan. All of it
/// is on a tmpfs, where nobody waits for a disk.
pub struct Store {
    pub host: Host,
    pod: PathBuf,
    dir: tempfile::TempDir,
}

impl Store {
    pub fn new(test: &str) -> Option<Store> {
        let host = Host::new(test)?;
        let pod = host.add_netns("pod");
        let store = Store {
            host,
            pod,
            dir: tempfile::tempdir_in("/run").unwrap(),
        };
        store.host.set_node(json!({"storeDir": store.path("")}));
        Some(store)
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("store").join(below)
    }

    /// Writes the manifests of plan `number`, 0 to 99: node-1 has 172.16.NUMBER.0 and
    /// fd00:0:NUMBER::, node-2 has an IPv4 prefix only. In odd plans there is a node-3, in even
    /// ones a node-4.
    pub fn manifests(&self, number: u8) -> PathBuf {
        let third = if number % 2 == 1 { "node-3" } else { "node-4" };
        let pool = |name: &str, cidr: &str, length: u8, base: &str| {
            let rows: Vec<_> = ["node-1", "node-2", third]
                .iter()
                .zip(["0", "2", "4"])
                .filter(|(node, _)| length == 31 || **node != "node-2")
                .map(|(node, last)| json!({"nodeName": node, "prefix": format!("{base}{last}/{length}")}))
                .collect();
            json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "CIDRPool", "metadata": {"name": name},
                "spec": {"cidr": cidr, "perNodeNetworkPrefix": length, "gatewayIndex": 1,
                    "routes": [{"dst": cidr}], "staticAllocations": rows}})
        };
        let pools = json!([
            pool("rail-0", "172.16.0.0/15", 31, &format!("172.16.{number}.")),
            pool("rail-0-v6", "fd00::/32", 127, &format!("fd00:0:{number}::")),
        ]);
        let file = self.host.path(&format!("plan-{number}.json"));
        fs::write(&file, pools.to_string()).unwrap();
        file
    }

    /// `railctl import` of plan `number`.
    pub fn importer(&self, number: u8, args: &[&str]) -> Call {
        let file = self.manifests(number).display().to_string();
        let args: Vec<&str> = ["import", "--all-nodes", "--prune", &file]
            .into_iter()
            .chain(args.iter().copied())
            .collect();
        self.call("", "").args(&args)
    }

    pub fn import(&self, number: u8, args: &[&str]) -> Ran {
        self.importer(number, args).run(&json!(null))
    }

    /// The content of the store, hidden files and empty folders too.
    pub fn files(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.path("")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = path
                    .strip_prefix(self.path(""))
                    .unwrap()
                    .display()
                    .to_string();
                if path.is_dir() {
                    found.insert(name + "/", String::new());
                    folders.push(path);
                } else {
                    let target = || fs::read_link(&path).unwrap().display().to_string();
                    found.insert(name, fs::read_to_string(&path).unwrap_or_else(|_| target()));
                }
            }
        }
        found
    }

    pub fn call(&self, verb: &str, container: &str) -> Call {
        self.host.call(verb, container, &self.pod).ipam()
    }
}

/// A network with both pools.
pub fn network() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "any",
        "ipam": {"type": "rail-ipam", "pool": "rail-0,rail-0-v6"}})
}

/// A prefix that the plan may have given to another machine is given to no new pod; pods that have
/// it keep it, and end.
#[test]
fn a_closed_node_gives_no_new_lease_and_serves_those_that_are() {
    let Some(store) = Store::new("store::closed") else {
        return;
    };
    store.import(1, &[]).ok();
    let mut checked = network();
    checked["prevResult"] = store.call("ADD", "c1").run(&network()).ok().json();
    let close = |text: &str| fs::write(store.path(".closed.node-1"), text).unwrap();
    // With any content of the file.
    for text in [
        "name it in the plan\n",
        "",
        "\0\u{7f}\n\n",
        &"x".repeat(1 << 20),
    ] {
        close(text);
        let refused = store.call("ADD", "c2").run(&network());
        assert_eq!(refused.error(11)["code"], 11);
        assert!(refused.stdout.len() < 4096, "{refused:?}");
        store.call("STATUS", "").run(&network()).error(50);
    }
    close("name it in the plan\n");
    assert!(
        store
            .call("ADD", "c2")
            .run(&network())
            .msg()
            .contains("name it in the plan")
    );
    let doctor = store
        .call("", "")
        .args(&["doctor", "--output", "json"])
        .run(&json!(null))
        .json();
    let is_it = |check: &&Value| {
        check["check"] == "pools" && check["text"].to_string().contains("name it in")
    };
    let told = doctor["checks"].as_array().unwrap().iter().find(is_it);
    assert_eq!(told.unwrap()["verdict"], "fail", "{doctor}");
    store.call("CHECK", "c1").run(&checked).ok();
    let mut kept = network();
    kept["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "net1"}]);
    store.call("GC", "").var("CNI_NETNS", "").run(&kept).ok();
    assert_eq!(store.host.leases().len(), 2);
    // An inline pool is none of the plan.
    let inline = json!({"cniVersion": "1.1.0", "name": "inline", "type": "any",
        "ipam": {"type": "rail-ipam", "cidr": "10.9.0.0/24", "perNodeNetworkPrefix": 24,
            "staticAllocations": [{"nodeName": "node-1", "prefix": "10.9.0.0/24"}]}});
    store.call("ADD", "c3").run(&inline).ok();
    store.call("DEL", "c3").run(&inline).ok();
    // A plan that is refused, and one that does not name the node, leave it closed.
    assert_eq!(store.import(2, &[]).status, 1);
    let manifests = store.manifests(1).display().to_string();
    store
        .call("", "")
        .args(&["import", "--node", "node-2", &manifests])
        .run(&json!(null))
        .ok();
    store.call("ADD", "c2").run(&network()).error(11);
    store.call("DEL", "c1").run(&network()).ok();
    // With the plan of before, and with another one.
    for number in [1, 2] {
        close("x");
        store.import(number, &[]).ok();
        assert!(!store.path(".closed.node-1").exists(), "plan {number}");
        store.call("ADD", "c4").run(&network()).ok();
        store.call("DEL", "c4").run(&network()).ok();
    }
}

/// Live leases outside the new plan are named and nothing is written without `--force`.
#[test]
fn a_plan_without_room_for_a_running_pod_is_not_written() {
    let Some(store) = Store::new("store::live") else {
        return;
    };
    store.import(1, &[]).ok();
    store.call("ADD", "c1").run(&network()).ok();
    let before = store.files();
    let named = [
        "pool rail-0: node node-1: 172.16.1.0 ",
        "pool rail-0-v6: node node-1: fd00:0:1:: ",
    ];

    let refused = store.import(2, &[]);
    assert_eq!(
        (refused.status, refused.stdout.as_str()),
        (1, ""),
        "{refused:?}"
    );
    for text in named.iter().chain(&["2 live leases"]) {
        assert!(refused.stderr.contains(text), "{text}: {refused:?}");
    }
    assert_eq!(store.files(), before);

    let dry = store.import(2, &["--dry-run", "--output", "json"]).ok();
    assert_eq!(dry.json()["outside"][1]["address"], "fd00:0:1::", "{dry:?}");
    assert!(
        named.iter().all(|text| dry.stderr.contains(text)),
        "{dry:?}"
    );
    assert_eq!(store.files(), before);

    // `plan` goes the same way.
    let manifests = store.manifests(2).display().to_string();
    let plan = |args: &[&str]| {
        let all = ["plan", &manifests, "--all-nodes", "--allow", "missing-rail"]
            .into_iter()
            .chain(args.iter().copied());
        store
            .call("", "")
            .args(&all.collect::<Vec<_>>())
            .run(&json!(null))
    };
    let refused = plan(&["--to", "store"]);
    assert!(
        refused.status == 1 && named.iter().all(|text| refused.stderr.contains(text)),
        "{refused:?}"
    );
    let diff = plan(&["--to", "store", "--diff"]).ok();
    assert!(
        named.iter().all(|text| diff.stderr.contains(text)),
        "{diff:?}"
    );
    assert_eq!(plan(&["--check"]).status, 1);
    assert_eq!(store.files(), before);

    // Only the node's own leases are here.
    store.import(1, &[]).ok();
    let forced = store.import(2, &["--force"]).ok();
    assert!(
        named.iter().all(|text| forced.stderr.contains(text)),
        "{forced:?}"
    );
    assert_ne!(store.files(), before);
    // The pod goes on, its DEL works, and the next one has the new address.
    store.call("DEL", "c1").run(&network()).ok();
    assert!(store.host.leases().is_empty());
    let added = store.call("ADD", "c2").run(&network()).ok().json();
    assert_eq!(added["ips"][0]["address"], "172.16.2.0/31");
}

/// Somebody removed the store while a pod lives.
#[test]
fn a_plan_that_is_refused_for_a_running_pod_makes_no_store() {
    let Some(store) = Store::new("store::none") else {
        return;
    };
    store.import(1, &[]).ok();
    store.call("ADD", "c1").run(&network()).ok();
    fs::remove_dir_all(store.path("")).unwrap();
    let manifests = store.manifests(2).display().to_string();
    let plan = [
        "plan",
        &manifests,
        "--all-nodes",
        "--allow",
        "missing-rail",
        "--to",
        "store",
    ]
    .map(str::to_owned);
    let plan = || {
        store
            .call("", "")
            .args(&plan.each_ref().map(String::as_str))
            .run(&json!(null))
    };
    for refused in [store.import(2, &[]), plan()] {
        let told = "pool rail-0: node node-1: 172.16.1.0 ";
        assert!(
            refused.status == 1 && refused.stderr.contains(told),
            "{refused:?}"
        );
        assert!(refused.stderr.contains("2 live leases"), "{refused:?}");
        assert_eq!(
            refused.stderr.matches(told).count(),
            1,
            "told once: {refused:?}"
        );
        assert!(!store.path("").exists(), "{refused:?}");
    }
    store.import(2, &["--force"]).ok();
    assert!(store.path("node-1").exists());
}

/// A pod whose namespace is gone has nothing to lose.
#[test]
fn leases_of_the_dead_stop_no_plan() {
    let Some(store) = Store::new("store::dead") else {
        return;
    };
    store.import(1, &[]).ok();
    store.call("ADD", "c1").run(&network()).ok();
    store.host.delete_netns(&store.pod);
    store.import(2, &[]).ok();
}

/// The prefixes of node-1 in plan `number`.
fn pair(number: u8) -> [String; 2] {
    [
        format!("172.16.{number}.0/31"),
        format!("fd00:0:{number}::/127"),
    ]
}

/// The entries of `files` in the folder of `node`.
pub fn of<'a>(files: &'a BTreeMap<String, String>, node: &str) -> Vec<(&'a String, &'a String)> {
    files
        .iter()
        .filter(|(name, _)| name.starts_with(&format!("{node}/")))
        .collect()
}

/// A store is replaced atomically. After a kill at any system call each node has its whole old plan
/// or its whole new one, and the next import leaves no rubbish.
#[test]
fn an_import_killed_at_any_call_leaves_every_node_old_or_new() {
    const TEST: &str = "store::killed";
    let Some(store) = Store::new(TEST) else {
        return;
    };
    if !trace::is_allowed(TEST) {
        return;
    }
    store.import(2, &[]).ok();
    let new = store.files();
    store.import(1, &[]).ok();
    let old = store.files();
    assert_eq!(
        new.keys().filter(|name| name.ends_with(".json")).count(),
        5,
        "{new:?}"
    );

    let import = store.importer(2, &[]);
    let (mut victim, mut seen) = (0, [0, 0]);
    loop {
        victim += 1;
        let traced = trace::run(&import, &json!(null), |point| point.count == victim);
        let now = store.files();
        for node in ["node-1", "node-2", "node-3", "node-4"] {
            let (is_old, is_new) = (
                of(&now, node) == of(&old, node),
                of(&now, node) == of(&new, node),
            );
            assert!(is_old || is_new, "{:?}: {now:?}", traced.killed);
            seen[usize::from(is_new)] += 1;
        }
        store.import(2, &[]).ok();
        assert_eq!(store.files(), new, "after {:?}", traced.killed);
        if traced.killed.is_none() {
            traced.ran.ok();
            break;
        }
        store.import(1, &[]).ok();
        assert_eq!(store.files(), old, "after {:?}", traced.killed);
    }
    println!("{victim} calls: {seen:?} old, new");
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

/// Remains of a power cut on a file system that loses changes out of order: the new directories of
/// an import without the file that announces them.
#[test]
fn remains_that_nothing_announces_stop_no_import() {
    let Some(store) = Store::new("store::remains") else {
        return;
    };
    store.import(2, &[]).ok();
    let new = store.files();
    for node in ["node-1", "node-2", "node-3", "node-4"] {
        store.import(1, &[]).ok();
        let remains = store.path(&format!(".new.{node}"));
        fs::create_dir(&remains).unwrap();
        fs::write(remains.join("rail-0.json"), "").unwrap();
        store.import(2, &[]).ok();
        assert_eq!(store.files(), new, "{node}");
    }
}

/// An ADD during an import sees the old store or the new one, in both of its pools. The import
/// comes whole before each of the ADD's system calls.
#[test]
fn an_add_sees_one_plan_whenever_another_is_written() {
    const TEST: &str = "store::between";
    let Some(store) = Store::new(TEST) else {
        return;
    };
    if !trace::is_allowed(TEST) {
        return;
    }
    let [old, new] = [1, 2].map(|number| store.importer(number, &["--force"]));
    let (mut moment, mut seen) = (0, [0, 0]);
    loop {
        moment += 1;
        old.run(&json!(null)).ok();
        let traced = trace::run(&store.call("ADD", "c1"), &network(), |point| {
            if point.count == moment {
                new.run(&json!(null)).ok();
            }
            false
        });
        let added = traced.ran.ok().json();
        store.call("DEL", "c1").run(&network()).ok();
        let both = [0, 1].map(|index| added["ips"][index]["address"].as_str().unwrap().to_owned());
        let number = [1, 2].into_iter().position(|number| both == pair(number));
        seen[number.unwrap_or_else(|| panic!("import before call {moment}: {both:?}"))] += 1;
        if traced.calls < moment {
            break;
        }
    }
    println!("{moment} moments: {seen:?} old, new");
    assert!(seen.iter().all(|count| *count > 5), "{seen:?}");
}

/// Without a lease that holds the addresses.
#[test]
fn an_add_during_an_import_sees_one_plan() {
    let Some(store) = Store::new("store::race") else {
        return;
    };
    store.import(1, &[]).ok();
    let plans = [2, 1].map(|number| store.importer(number, &["--force"]));
    let importer = std::thread::spawn(move || {
        (0..100).for_each(|turn| drop(plans[turn % 2].run(&json!(null)).ok()));
    });
    let mut seen = BTreeMap::new();
    while !importer.is_finished() {
        let added = store.call("ADD", "c1").run(&network()).ok().json();
        store.call("DEL", "c1").run(&network()).ok();
        let both = [0, 1].map(|index| added["ips"][index]["address"].as_str().unwrap().to_owned());
        *seen.entry(both).or_insert(0) += 1;
    }
    importer.join().unwrap();
    println!("{seen:?}");
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), [pair(1), pair(2)]);
}

/// A store that cannot be written stays as it is, and says why.
#[test]
fn a_full_or_read_only_store_is_left_as_it_is() {
    for full in [Some(false), Some(true), None] {
        let Some(store) = Store::new("store::full") else {
            return;
        };
        let small = "size=128k,nr_inodes=60,mode=700";
        let Some(mount) = Mount::new(store.path(""), "store::full", "tmpfs", small) else {
            return;
        };
        store.import(1, &[]).ok();
        let (before, told) = match full {
            Some(inodes) => {
                mount.fill(inodes);
                (store.files(), "No space left")
            }
            None => {
                mount.remount("ro");
                (store.files(), "Read-only file system")
            }
        };
        let refused = store.import(2, &[]);
        assert_eq!(
            (refused.status, refused.stdout.as_str()),
            (1, ""),
            "{refused:?}"
        );
        assert!(refused.stderr.contains(told), "{refused:?}");
        assert_eq!(store.files(), before);
        // An existing lock file needs no room.
        store.import(1, &[]).ok();
        let added = store.call("ADD", "c1").run(&network()).ok().json();
        assert_eq!(added["ips"][0]["address"], "172.16.1.0/31");
        store.call("DEL", "c1").run(&network()).ok();
        if full.is_some() {
            mount.empty();
        } else {
            mount.remount("rw");
        }
        store.import(2, &[]).ok();
        assert!(
            store
                .files()
                .keys()
                .all(|name| !name.starts_with('.') || name == ".lock")
        );
    }
}

/// One node's folder that cannot be replaced, here because something is mounted on it: the others
/// get theirs back.
#[test]
fn a_plan_that_one_node_cannot_have_is_given_to_none() {
    let Some(store) = Store::new("store::none") else {
        return;
    };
    store.import(1, &[]).ok();
    let Some(_mount) = Mount::new(store.path("node-2"), "store::none", "tmpfs", "mode=700") else {
        return;
    };
    let before = store.files();
    let refused = store.import(2, &[]);
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(
        refused.stderr.contains("node-2: Device or resource busy"),
        "{refused:?}"
    );
    assert_eq!(store.files(), before);
}

/// A container's overlay cannot exchange folders of its image: there it goes file by file, and says
/// so.
#[test]
fn a_store_on_a_file_system_without_exchange_is_written_nonetheless() {
    let Some(store) = Store::new("store::overlay") else {
        return;
    };
    store.import(2, &[]).ok();
    let new = store.files();
    store.import(1, &[]).ok();
    fs::write(store.path("node-1/notes"), "kept").unwrap();
    let below = |name: &str| store.dir.path().join(name);
    fs::rename(store.path(""), below("lower")).unwrap();
    fs::create_dir_all(below("upper")).unwrap();
    fs::create_dir_all(below("work")).unwrap();
    let layers =
        ["lower", "upper", "work"].map(|name| format!("{name}dir={}", below(name).display()));
    // redirect_dir would let it move them.
    let options = format!("{},redirect_dir=off", layers.join(","));
    let Some(_mount) = Mount::new(store.path(""), "store::overlay", "overlay", &options) else {
        return;
    };
    let imported = store.import(2, &[]).ok();
    assert!(imported.stderr.contains("2 nodes"), "{imported:?}");
    let mut now = store.files();
    assert_eq!(now.remove("node-1/notes").unwrap(), "kept");
    assert_eq!(now, new);
}

/// NFS exchanges nothing at all.
#[test]
fn a_store_on_nfs_is_written_nonetheless() {
    const TEST: &str = "store::nfs";
    let Some(store) = Store::new(TEST) else {
        return;
    };
    if Command::new("strace").arg("-V").output().is_err() {
        return skip(TEST, "no strace");
    }
    store.import(2, &[]).ok();
    let new = store.files();
    store.import(1, &[]).ok();
    let nfs = [
        "strace",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "inject=renameat2:error=EINVAL",
    ];
    let imported = store.importer(2, &[]).under(&nfs).run(&json!(null)).ok();
    assert!(imported.stderr.contains("2 nodes"), "{imported:?}");
    assert_eq!(store.files(), new);
}

/// Files that an operator put beside those of the store stay there; anything but a file is refused,
/// not lost.
#[test]
fn other_files_of_a_node_stay() {
    let Some(store) = Store::new("store::others") else {
        return;
    };
    store.import(1, &[]).ok();
    for node in ["node-1", "node-3"] {
        fs::write(store.path(node).join("notes"), "kept").unwrap();
        std::os::unix::fs::symlink("/nowhere", store.path(node).join("link")).unwrap();
    }
    store.import(2, &[]).ok();
    // node-3 is in no pool any more.
    for node in ["node-1", "node-3"] {
        assert_eq!(fs::read(store.path(node).join("notes")).unwrap(), b"kept");
        assert_eq!(
            fs::read_link(store.path(node).join("link")).unwrap(),
            PathBuf::from("/nowhere")
        );
    }
    assert!(!store.path("node-3/rail-0.json").exists());
    fs::create_dir(store.path("node-1/folder")).unwrap();
    let before = store.files();
    let refused = store.import(1, &[]);
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stderr.contains("node-1/folder"), "{refused:?}");
    assert_eq!(store.files(), before);
}

/// Long work shows a progress bar on a terminal, nothing when piped.
#[test]
fn a_terminal_gets_a_bar_and_a_pipe_none() {
    const TEST: &str = "store::progress";
    let Some(store) = Store::new(TEST) else {
        return;
    };
    if Command::new("script").arg("--version").output().is_err() {
        return skip(TEST, "no script (util-linux)");
    }
    let rows: Vec<_> = (0..20_000)
        .map(|n| {
            let prefix = format!("10.{}.{}.{}/31", n >> 15, n >> 7 & 255, (n << 1) & 255);
            json!({"nodeName": format!("n{n}"), "prefix": prefix})
        })
        .collect();
    let pool = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "CIDRPool", "metadata": {"name": "p"},
        "spec": {"cidr": "10.0.0.0/8", "perNodeNetworkPrefix": 31, "staticAllocations": rows}});
    let file = store.host.path("many.json");
    fs::write(&file, pool.to_string()).unwrap();

    let import = format!(
        "{} import --all-nodes {}",
        harness::railctl().display(),
        file.display()
    );
    let out = store.host.path("out").display().to_string();
    let on_terminal = store
        .call("", "")
        .args(&["-qec", &format!("{import} >{out}"), "/dev/null"])
        .program("script");
    let seen = on_terminal.run(&json!(null)).ok().stdout;
    assert!(
        seen.contains("\rwriting nodes [") && seen.contains(" % of 20000"),
        "{seen:?}"
    );
    assert!(seen.ends_with("\r\x1b[K"), "it is erased: {seen:?}");
    assert!(fs::read_to_string(&out).unwrap().ends_with("20000 new\n"));

    fs::remove_dir_all(store.path("")).unwrap();
    let piped = store
        .call("", "")
        .args(&["import", "--all-nodes", file.to_str().unwrap()])
        .run(&json!(null))
        .ok();
    assert_eq!(piped.stderr, "");
}

/// A node that changed its name: its pods hold addresses under the old one, and would get company.
#[test]
fn a_node_that_replaces_another_waits_for_its_pods() {
    let Some(store) = Store::new("store::replace") else {
        return;
    };
    store.import(1, &[]).ok();
    store.call("ADD", "c1").run(&network()).ok();
    let before = store.files();
    let text = fs::read_to_string(store.manifests(1))
        .unwrap()
        .replace("node-1", "node-9");
    let file = store.host.path("renamed.json").display().to_string();
    fs::write(&file, text).unwrap();
    store
        .host
        .set_node(json!({"storeDir": store.path(""), "nodeName": "node-9"}));
    let import = |args: &[&str]| {
        let all: Vec<_> = ["import", &file]
            .into_iter()
            .chain(args.iter().copied())
            .collect();
        store.call("", "").args(&all).run(&json!(null))
    };

    let refused = import(&[]);
    let told = "node node-9 …172.16.1.0/31 …node node-1 in pool rail-0";
    assert!(
        refused.status == 1 && golden::has(&refused.stderr, told),
        "{refused:?}"
    );
    let refused = import(&["--replaces", "node-9=node-1"]);
    for text in ["172.16.1.0 ", "pod default/pod", "2 live leases"] {
        assert!(
            refused.status == 1 && refused.stderr.contains(text),
            "{text}: {refused:?}"
        );
    }
    assert_eq!(store.files(), before);
    let diff = import(&["--replaces", "node-9=node-1", "--dry-run"]).ok();
    assert!(diff.stdout.contains("node-1"), "{diff:?}");

    store.call("DEL", "c1").run(&network()).ok();
    import(&["--replaces", "node-9=node-1"]).ok();
    let added = store.call("ADD", "c2").run(&network()).ok().json();
    assert_eq!(added["ips"][0]["address"], "172.16.1.0/31");
    assert!(
        import(&["--replaces", "node-9=node-1"])
            .ok()
            .stdout
            .ends_with("2 same\n")
    );
}

/// The name of the node is exact; who has it wrong sees those that there are.
#[test]
fn an_add_on_an_unknown_node_lists_those_of_the_store() {
    let Some(store) = Store::new("store::unknown") else {
        return;
    };
    store.import(1, &[]).ok();
    store
        .host
        .set_node(json!({"storeDir": store.path(""), "nodeName": "nodd-2"}));
    let failed = store.call("ADD", "c1").run(&network());
    let msg = failed.error(7)["msg"].to_string();
    assert!(msg.contains("node-2, node-1, node-3"), "{msg}");
    let mut doctor = Command::new(harness::railctl());
    doctor
        .arg("doctor")
        .env("RAIL_CNI_NODE_CONFIG", store.host.path("node.json"));
    let doctor: Ran = doctor.output().unwrap().into();
    assert!(
        doctor.stdout.contains("node-2, node-1, node-3"),
        "{doctor:?}"
    );
}

/// The paths below `folder`, and itself, that others than root have any bits for; and the number of
/// all.
fn open_to_others(folder: &Path) -> (Vec<String>, usize) {
    let (mut found, mut seen, mut paths) = (Vec::new(), 0, vec![folder.to_owned()]);
    while let Some(path) = paths.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        seen += 1;
        let mode = about.permissions().mode() & 0o7777;
        if mode != if about.is_dir() { 0o700 } else { 0o600 } {
            found.push(format!("{mode:04o} {}", path.display()));
        }
        if about.is_dir() {
            paths.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    (found, seen)
}

/// docs/configuration.md, files: runtimes start plugins with the umask that they have, and root's
/// may be 0.
#[test]
fn what_is_written_is_for_its_owner_alone_whatever_the_umask_is() {
    let Some(store) = Store::new("store::umask") else {
        return;
    };
    let host = &store.host;
    host.add_rail(0);
    host.set_node(json!({"storeDir": store.path(""), "log": {"file": host.path("log/node.log")}}));
    fs::create_dir(host.path("log")).unwrap();
    let bare = |call: Call| call.under(&["sh", "-c", "umask 0; exec \"$0\" \"$@\""]);
    // The manifests are the operator's: only what import makes of them is ours.
    bare(store.importer(1, &[])).run(&json!(null)).ok();
    for verb in ["ADD", "DEL"] {
        bare(host.call(verb, "c1", &store.pod)).run(&rail(0)).ok();
        let (run, store, log) = (host.path("run"), store.path(""), host.path("log/node.log"));
        for (folder, least) in [(run, 8), (store, 4), (log, 1)] {
            let (open, seen) = open_to_others(&folder);
            assert_eq!(open, [""; 0], "after {verb}");
            assert!(
                seen >= least,
                "{seen} files and folders in {} after {verb}",
                folder.display()
            );
        }
    }
}
