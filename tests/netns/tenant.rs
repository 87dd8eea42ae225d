//! A run as a tenant: whoever writes networks, the annotation of his pod, and is root in his pod's
//! own namespaces. After each attack the node, the pod of another tenant and the next pod are as
//! they should be (docs/security.md).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Call, Host, Ran, Sleeper, pf_address, rail, skip, vf_address, with};

/// The device that is attacked is the VF of rail 0, the other tenant has that of rail 1, that of
/// rail 2 is free.
const MINE: u8 = 0;
const OTHERS: u8 = 1;
const FREE: u8 = 2;

/// A node with a planned fabric, as conf/node.json has it, and the pod of another tenant.
struct Node {
    host: Host,
    /// Of the attacker, with eth0 and its default route.
    pod: PathBuf,
    next: PathBuf,
    other: PathBuf,
    /// The result that the other pod is checked with.
    others: Value,
    node: Value,
    other_before: Value,
}

fn network(of: u8) -> Value {
    with(
        rail(of),
        json!({"device": null, "deviceID": vf_address(of)}),
    )
}

impl Node {
    fn new(test: &str) -> Option<Node> {
        let host = Host::new(&format!("tenant::{test}"))?;
        for rail in [MINE, OTHERS, FREE] {
            host.add_rail(rail);
            host.make_vf(rail, "mlx5_core");
            let plan = host.path(&format!("store/node-1/rail-{rail}.json"));
            let planned: Value = serde_json::from_slice(&fs::read(&plan).unwrap()).unwrap();
            fs::write(plan, with(planned, json!({ "rail": rail })).to_string()).unwrap();
            let (pf, of_pf) = (
                format!("pf{rail}"),
                host.path(&format!("sys/devices/{}", pf_address(rail))),
            );
            host.ip(&format!(
                "link add {pf} mtu 9216 type veth peer name port{rail} netns {}",
                host.leaf()
            ));
            fs::create_dir_all(host.path(&format!("sys/class/net/{pf}"))).unwrap();
            symlink(of_pf, host.path(&format!("sys/class/net/{pf}/device"))).unwrap();
        }
        for folder in ["log", "netlogs", "canary", "devinfo"] {
            fs::create_dir(host.path(folder)).unwrap();
        }
        for file in ["canary/file", "canary/log"] {
            fs::write(host.path(file), "untouched").unwrap();
        }
        symlink(host.path("canary/log"), host.path("netlogs/link")).unwrap();
        let rails = [MINE, OTHERS, FREE].map(|rail| json!({"rail": rail, "pf": pf_address(rail)}));
        host.set_node(json!({
            "rails": rails,
            "log": {"level": "info", "file": host.path("log/node.log"), "dir": host.path("netlogs")},
            "policy": {"vfsOnly": true, "rails": [MINE, OTHERS, FREE], "vfKeys": [], "kinds": [],
                "inlinePools": false},
        }));
        let [pod, next, other] = ["pod", "next", "other"].map(|name| host.add_netns(name));
        give_eth0(&host, &pod);
        // The host's end of the other pod's eth0, and the node's own network.
        host.ip("link add cali1 type veth peer name eth0");
        host.ip(&format!(
            "link set eth0 netns {}",
            other.file_name().unwrap().to_str().unwrap()
        ));
        host.ip("link set cali1 up");
        host.ip("route add 10.244.0.7/32 dev cali1");
        host.ip("link add br0 type bridge");
        host.ip("addr add 10.0.0.9/24 dev br0");
        host.ip("link set br0 up");
        host.ip("link add name0 type bridge");
        host.ip("link property add dev name0 altname uplink");
        host.ip("rule add from 10.0.0.9 lookup 50");
        let info = json!({"runtimeConfig": {"CNIDeviceInfoFile": host.path("devinfo/other")}});
        let others = with(network(OTHERS), info);
        let added = host.call("ADD", "c-other", &other).run(&others).ok().json();
        let others = with(others, json!({ "prevResult": added }));
        let mut node = Node {
            host,
            pod,
            next,
            other,
            others,
            node: json!(0),
            other_before: json!(0),
        };
        (node.node, node.other_before) = (node.state(), node.state_of_other());
        Some(node)
    }

    /// The state of the node that must be restored, beside the run folder: that is known by its
    /// leases and records.
    fn state(&self) -> Value {
        let mut files = BTreeMap::new();
        files_below(self.host.dir.path(), &mut files);
        // These grow, and are looked at by themselves; the run folder has locks.
        files.retain(|name, _| {
            !["/run/", "/log/", "/bin/", "/netlogs/"]
                .iter()
                .any(|part| name.contains(part))
        });
        json!({"links": links(&self.host, None), "more": self.host.snapshot(), "files": files,
            "routes": routes(&self.host, None)})
    }

    fn state_of_other(&self) -> Value {
        json!({"links": links(&self.host, Some(&self.other)), "routes": routes(&self.host, Some(&self.other))})
    }

    fn call(&self, verb: &str) -> Call {
        self.host.call(verb, "c1", &self.pod)
    }

    /// The state after the attacker is gone: the node and the other pod are as they were, and the
    /// next pod gets the device that was attacked, and gives it back.
    #[track_caller]
    fn stands(&self, attack: &str) {
        assert_same(
            &self.state(),
            &self.node,
            &format!("the node after: {attack}"),
        );
        self.other_stands(attack);
        let call = |verb: &str| self.host.call(verb, "c-next", &self.next);
        let added = call("ADD").run(&network(MINE));
        assert_eq!(added.status, 0, "the next pod after: {attack}: {added:?}");
        let checked = with(network(MINE), json!({"prevResult": added.json()}));
        let checked = call("CHECK").run(&checked);
        assert_eq!(
            checked.status, 0,
            "the next pod after: {attack}: {checked:?}"
        );
        let deleted = call("DEL").run(&network(MINE));
        assert_eq!(
            deleted.status, 0,
            "the next pod after: {attack}: {deleted:?}"
        );
        assert_same(
            &self.state(),
            &self.node,
            &format!("the node after the next pod after: {attack}"),
        );
    }

    #[track_caller]
    fn other_stands(&self, attack: &str) {
        assert_same(
            &self.state_of_other(),
            &self.other_before,
            &format!("the other pod after: {attack}"),
        );
        let checked = self
            .host
            .call("CHECK", "c-other", &self.other)
            .run(&self.others);
        assert_eq!(
            checked.status, 0,
            "the other pod after: {attack}: {checked:?}"
        );
    }

    /// ADD is refused with this code, and says these words. The DEL that a runtime sends then finds
    /// nothing.
    #[track_caller]
    fn refuses(&self, attack: &str, call: &Call, config: &[u8], code: u64, words: &[&str]) {
        let refused = call.run_with(config);
        assert_eq!(refused.status, 1, "{attack}: {refused:?}");
        let error = refused.json();
        let msg = error["msg"].as_str().unwrap();
        assert!(error["code"] == code, "{attack}: {error}");
        for word in words {
            assert!(msg.contains(word), "{attack}: {word:?} is not in {msg:?}");
        }
        let deleted = call.clone().var("CNI_COMMAND", "DEL").run_with(config);
        let is_of_nobody = code == 4 || words.contains(&"network name");
        assert!(deleted.status == 0 || is_of_nobody, "{attack}: {deleted:?}");
        self.stands(attack);
    }

    /// ADD is served; then `look` tells whether it did harm. DEL gives everything back.
    #[track_caller]
    fn serves(&self, attack: &str, call: &Call, config: &Value, look: impl Fn(&Ran)) {
        let added = call.run(config);
        assert_eq!(added.status, 0, "{attack}: {added:?}");
        look(&added);
        self.other_stands(attack);
        let default = self.host.ip_in(&self.pod, "route show default");
        assert_eq!(
            default.replace("linkdown", "").trim(),
            "default dev eth0 scope link",
            "{attack}"
        );
        let deleted = call.clone().var("CNI_COMMAND", "DEL").run(config);
        assert_eq!(deleted.status, 0, "{attack}: {deleted:?}");
        self.stands(attack);
    }

    /// The attacker's network, beside a good one.
    fn asking(&self, more: Value) -> Value {
        with(with(network(MINE), json!({"name": "tenant"})), more)
    }
}

/// Fails with what differs alone.
#[track_caller]
fn assert_same(now: &Value, before: &Value, what: &str) {
    let mut found = Vec::new();
    differing(now, before, "", &mut found);
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

fn differing(now: &Value, before: &Value, at: &str, found: &mut Vec<String>) {
    match (now, before) {
        (Value::Object(new), Value::Object(old)) => {
            for key in new
                .keys()
                .chain(old.keys())
                .collect::<std::collections::BTreeSet<_>>()
            {
                differing(&now[key], &before[key], &format!("{at} {key}"), found);
            }
        }
        _ if now == before => (),
        _ => found.push(format!("{at}: {now}, was {before}")),
    }
}

fn give_eth0(host: &Host, pod: &Path) {
    host.ip_in(pod, "link add eth0 type bridge");
    host.ip_in(pod, "addr add 10.244.0.9/24 dev eth0");
    host.ip_in(pod, "link set eth0 up");
    host.ip_in(pod, "route add default dev eth0");
}

/// Every file with its content, a link with where it leads.
fn files_below(dir: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.display().to_string();
        if let Ok(to) = fs::read_link(&path) {
            files.insert(name, format!("-> {}", to.display()));
        } else if path.is_dir() {
            files_below(&path, files);
        } else {
            files.insert(
                name,
                String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned(),
            );
        }
    }
}

/// All of a link that an administrator can see and a tenant could have changed.
fn links(host: &Host, netns: Option<&Path>) -> BTreeMap<String, Value> {
    let told = [
        "address",
        "mtu",
        "txqlen",
        "group",
        "ifalias",
        "altnames",
        "promiscuity",
        "allmulti",
        "master",
        "xdp",
    ];
    let all = host.json(netns, "addr show");
    let one = |link: &Value| {
        let mut kept: serde_json::Map<_, _> = told
            .iter()
            .map(|key| ((*key).to_owned(), link[key].clone()))
            .collect();
        // Whether there is a carrier, and what the kernel makes of it, takes a moment.
        let flags = link["flags"].as_array().into_iter().flatten();
        let flags: Vec<_> = flags
            .filter(|flag| *flag != "LOWER_UP" && *flag != "NO-CARRIER")
            .cloned()
            .collect();
        let addresses = link["addr_info"].as_array().into_iter().flatten();
        let addresses: Vec<_> = addresses
            .filter(|one| one["scope"] != "link")
            .map(|one| one["local"].clone())
            .collect();
        kept.extend([
            ("flags".to_owned(), flags.into()),
            ("addresses".to_owned(), addresses.into()),
            ("kind".to_owned(), link["linkinfo"]["info_kind"].clone()),
        ]);
        (
            link["ifname"].as_str().unwrap().to_owned(),
            Value::Object(kept),
        )
    };
    all.as_array().unwrap().iter().map(one).collect()
}

/// Routes of all tables and rules, but what every link has by itself.
fn routes(host: &Host, netns: Option<&Path>) -> Vec<String> {
    let run = |args: &str| netns.map_or_else(|| host.ip(args), |netns| host.ip_in(netns, args));
    let all = [
        "-4 route show table all",
        "-6 route show table all",
        "-4 rule",
        "-6 rule",
    ]
    .map(run);
    let own = |line: &&str| !line.contains("fe80:") && !line.contains("ff00::");
    // Whether a carrier is there is noted on the route.
    all.iter()
        .flat_map(|text| text.lines())
        .filter(own)
        .map(|line| line.replace(" linkdown", ""))
        .collect()
}

// The limits of a network.

/// Files of the node are the operator's, names are names.
#[test]
fn no_network_reads_or_writes_a_file_of_the_node() {
    let Some(node) = Node::new("paths") else {
        return;
    };
    let at = |path: &str| node.host.path(path).display().to_string();
    let info = |path: &str| json!({"runtimeConfig": {"CNIDeviceInfoFile": at(path)}});
    let long = json!({"runtimeConfig": {"CNIDeviceInfoFile": at(&format!("devinfo/{}", "x".repeat(300)))}});
    let pool = |name: &str| json!({"ipam": {"type": "rail-ipam", "pool": name}});
    let ipam = |name: &str| json!({"ipam": {"type": name}});
    let table = [
        (
            "another pod's device-info file is overwritten",
            info("devinfo/other"),
            7,
            vec!["net1 of container c-other"],
        ),
        (
            "a device-info file outside of its folder",
            info("canary/file"),
            7,
            vec!["deviceInfoDir"],
        ),
        (
            "a device-info file out of its folder by ..",
            info("devinfo/../canary/file"),
            7,
            vec!["deviceInfoDir"],
        ),
        (
            "a device-info file below its folder",
            info("devinfo/below/file"),
            7,
            vec!["deviceInfoDir"],
        ),
        (
            "the device-info folder itself",
            info("devinfo/.."),
            7,
            vec!["deviceInfoDir"],
        ),
        (
            "a device-info file that no folder can hold",
            long,
            7,
            vec!["CNIDeviceInfoFile"],
        ),
        (
            "a kernel path outside of sysfs",
            json!({"kernelpath": "/etc/passwd"}),
            7,
            vec!["kernelpath", "/etc/passwd"],
        ),
        (
            "a kernel path out of sysfs",
            json!({"kernelpath": "/sys/devices/../../etc"}),
            7,
            vec!["kernelpath"],
        ),
        (
            "a network's name is a path",
            json!({"name": "../../etc/x"}),
            7,
            vec!["network name"],
        ),
        (
            "a network's name is a folder",
            json!({"name": ".."}),
            7,
            vec!["network name"],
        ),
        (
            "a network's name has a line feed",
            json!({"name": "a\nb"}),
            7,
            vec!["network name"],
        ),
        (
            "a pool's name is a path",
            pool("../../store/node-1/rail-0"),
            7,
            vec!["pool"],
        ),
        ("a pool's name is a folder", pool(".."), 7, vec!["pool"]),
        (
            "a pool's name is another node's",
            pool("../node-2/rail-0"),
            7,
            vec!["pool"],
        ),
        (
            "an IPAM is any program",
            ipam("../../../bin/sh"),
            7,
            vec!["ipam.type"],
        ),
        (
            "an IPAM is any program, absolutely",
            ipam("/bin/sh"),
            7,
            vec!["ipam.type"],
        ),
        ("an IPAM is the folder", ipam(".."), 7, vec!["ipam.type"]),
        (
            "the IPAM is rail-cni itself",
            ipam("rail-cni"),
            7,
            vec!["rail-cni"],
        ),
        ("the IPAM is macvlan", ipam("macvlan"), 7, vec!["macvlan"]),
        ("the IPAM is tuning", ipam("tuning"), 7, vec!["tuning"]),
        (
            "the IPAM is host-device",
            ipam("host-device"),
            7,
            vec!["host-device"],
        ),
        (
            "the IPAM is no plugin at all",
            ipam("no-such"),
            7,
            vec!["no-such"],
        ),
        (
            "the IPAM is a plugin that nobody has heard of",
            ipam("route-warden"),
            7,
            vec!["route-warden"],
        ),
    ];
    for (attack, more, code, words) in table {
        let config = node.asking(more).to_string();
        node.refuses(attack, &node.call("ADD"), config.as_bytes(), code, &words);
    }
    for (attack, file) in [
        ("a log file anywhere", at("canary/file")),
        ("a new log file anywhere", at("canary/new")),
        ("a log file out of its folder", at("netlogs/../canary/file")),
        ("a hidden log file", at("netlogs/.hidden")),
        ("a log file that is a link", at("netlogs/link")),
        ("a log file that is a device", "/dev/zero".to_owned()),
        (
            "a log file with a line feed",
            format!("{}\nx", at("netlogs/a")),
        ),
    ] {
        node.serves(
            attack,
            &node.call("ADD"),
            &node.asking(json!({ "logFile": file })),
            |_| (),
        );
    }
    // A link in the folder is replaced, and what it leads to is not.
    let file = node.host.path("devinfo/link");
    symlink(node.host.path("canary/file"), &file).unwrap();
    let asked = node.asking(json!({"runtimeConfig": {"CNIDeviceInfoFile": file}}));
    node.serves(
        "a device-info file that is a link",
        &node.call("ADD"),
        &asked,
        |_| (),
    );
    let left = fs::read_dir(node.host.path("netlogs")).unwrap().count();
    assert_eq!(left, 1, "files that no network may make");
}

/// Another pod's, the host's, another rail's.
#[test]
fn no_network_gets_a_device_that_is_not_free_and_of_its_rail() {
    let Some(node) = Node::new("devices") else {
        return;
    };
    let mac = |name: &str, netns: Option<&Path>| links(&node.host, netns)[name]["address"].clone();
    let by = |key: &str, value: Value| {
        let more = json!({"deviceID": null, key: value});
        with(node.asking(more), json!({"rail": null}))
    };
    let held = || vec!["container c-other as net1"];
    let others_path = format!("/sys/devices/{}", vf_address(OTHERS));
    let table = [
        (
            "the other pod's VF",
            node.asking(json!({"deviceID": vf_address(OTHERS), "rail": OTHERS})),
            11,
            held(),
        ),
        (
            "the other pod's VF as one of this rail",
            node.asking(json!({"deviceID": vf_address(OTHERS)})),
            11,
            held(),
        ),
        (
            "the other pod's VF by its name",
            by("device", json!("vf1")),
            11,
            held(),
        ),
        (
            "the other pod's VF by its MAC",
            by("hwaddr", mac("net1", Some(&node.other))),
            11,
            held(),
        ),
        (
            "the other pod's VF by its path",
            by("kernelpath", json!(others_path)),
            7,
            vec![],
        ),
        (
            "the host's end of the other pod",
            by("device", json!("cali1")),
            7,
            vec!["cali1"],
        ),
        (
            "the same by its MAC",
            by("hwaddr", mac("cali1", None)),
            7,
            vec!["cali1"],
        ),
        (
            "the node's bridge",
            by("device", json!("br0")),
            7,
            vec!["br0"],
        ),
        (
            "the node's uplink by an altname",
            by("device", json!("uplink")),
            7,
            vec!["name0"],
        ),
        (
            "the loopback device",
            by("device", json!("lo")),
            7,
            vec!["lo"],
        ),
        (
            "the loopback device by its MAC",
            by("hwaddr", json!("00:00:00:00:00:00")),
            7,
            vec!["00:00:00:00:00:00"],
        ),
        (
            "the PF",
            node.asking(json!({"deviceID": pf_address(MINE)})),
            7,
            vec!["VFs"],
        ),
        (
            "the PF by its name",
            by("device", json!("pf0")),
            7,
            vec!["VFs"],
        ),
        (
            "the PF by its path",
            by(
                "kernelpath",
                json!(format!("/sys/devices/{}", pf_address(MINE))),
            ),
            7,
            vec![],
        ),
        (
            "a VF of another rail",
            node.asking(json!({"deviceID": vf_address(FREE)})),
            7,
            vec!["rail 0", "rail 2"],
        ),
        (
            "a rail that the node has not",
            node.asking(json!({"rail": 9})),
            7,
            vec!["9"],
        ),
        (
            "two devices",
            node.asking(json!({"device": "vf2"})),
            7,
            vec!["two devices"],
        ),
        (
            "a device of the runtime's and another",
            node.asking(json!({"runtimeConfig": {"deviceID": vf_address(FREE)}})),
            7,
            vec!["two devices"],
        ),
        (
            "another rail's address for a device that tells its rail",
            by("deviceID", json!(vf_address(FREE))),
            7,
            vec!["rail"],
        ),
    ];
    for (attack, config, code, words) in table {
        node.refuses(
            attack,
            &node.call("ADD"),
            config.to_string().as_bytes(),
            code,
            &words,
        );
    }
}

/// `vfKeys` is empty: a tenant is in the VLAN of the operator, and who he was made to be.
#[test]
fn no_network_sets_what_the_policy_keeps_to_the_operator() {
    let Some(node) = Node::new("keys") else {
        return;
    };
    let mac = "02:00:00:00:00:66";
    let table = [
        (json!({"vlan": 7}), "vlan"),
        (json!({"VLAN": 7}), "vlan"),
        (json!({"vLaN": 7}), "vlan"),
        (json!({"vlan": 7, "vlanQoS": 3}), "vlan"),
        (json!({"trust": "on"}), "trust"),
        (json!({"Trust": "on"}), "trust"),
        (json!({"spoofchk": "off"}), "spoofchk"),
        (json!({"SpoofChk": "off"}), "spoofchk"),
        (json!({"link_state": "enable"}), "link_state"),
        (json!({"Link_State": "enable"}), "link_state"),
        (json!({"max_tx_rate": 1}), "max_tx_rate"),
        (json!({"mac": mac}), "mac"),
        (json!({"MAC": mac}), "mac"),
        (json!({"runtimeConfig": {"mac": mac}}), "mac"),
        (json!({"runtimeConfig": {"Mac": mac}}), "mac"),
        (json!({"args": {"cni": {"mac": mac}}}), "mac"),
        (json!({"Args": {"CNI": {"MAC": mac}}}), "mac"),
        (
            json!({"runtimeConfig": {"infinibandGUID": "02:00:00:00:00:00:00:01"}}),
            "infinibandGUID",
        ),
        (
            json!({"args": {"cni": {"guid": "02:00:00:00:00:00:00:01"}}}),
            "infinibandGUID",
        ),
    ];
    for (more, key) in table {
        let config = node.asking(more.clone()).to_string();
        let words = [&format!("{key}: "), ""];
        let words = words.map(|word| word as &str);
        node.refuses(
            &more.to_string(),
            &node.call("ADD"),
            config.as_bytes(),
            7,
            &words,
        );
    }
    let from_args = node
        .call("ADD")
        .var("CNI_ARGS", &format!("IgnoreUnknown=1;MAC={mac}"));
    let config = node.asking(json!({})).to_string();
    node.refuses(
        "a MAC in CNI_ARGS",
        &from_args,
        config.as_bytes(),
        7,
        &["mac: ", "policy"],
    );
    for (attack, text) in [
        (
            "a key twice, the second in another letter case",
            r#""vlan": 0, "Vlan": 7"#,
        ),
        ("a key twice", r#""trust": "", "trust": "on""#),
        (
            "a key twice below another",
            r#""runtimeConfig": {"mac": "", "MAC": "02:00:00:00:00:66"}"#,
        ),
    ] {
        let config = format!("{}, {text}}}", &config[..config.len() - 1]);
        node.refuses(
            attack,
            &node.call("ADD"),
            config.as_bytes(),
            7,
            &["appears twice"],
        );
    }
}

/// Addresses of other pods, of the gateway, of other nodes; and other requests for them.
#[test]
fn no_network_gets_an_address_that_is_not_free_and_of_its_rail() {
    let Some(node) = Node::new("addresses") else {
        return;
    };
    let ips = |address: &str| json!({"runtimeConfig": {"ips": [address]}});
    let pool = |more: Value| json!({"ipam": with(json!({"type": "rail-ipam"}), more)});
    let inline = |name: &str, cidr: &str| {
        let first = format!("{}/31", cidr.split_once('/').unwrap().0);
        let mine = json!([{"nodeName": "node-1", "prefix": first}]);
        pool(
            json!({"pool": name, "cidr": cidr, "perNodeNetworkPrefix": 31, "staticAllocations": mine}),
        )
    };
    let table = [
        (
            "the gateway's",
            ips("172.16.0.1"),
            7,
            vec!["172.16.0.1", "gateway"],
        ),
        ("the other pod's", ips("172.18.0.0"), 7, vec!["172.18.0.0"]),
        ("another node's", ips("172.16.0.2"), 7, vec!["172.16.0.2"]),
        ("a whole network", ips("0.0.0.0/0"), 7, vec!["0.0.0.0"]),
        (
            "the gateway's by args",
            json!({"args": {"cni": {"ips": ["172.16.0.1"]}}}),
            7,
            vec!["gateway"],
        ),
        (
            "the other pod's pool",
            pool(json!({"pool": "rail-1"})),
            7,
            vec!["rail-1"],
        ),
        (
            "a free pool of another rail",
            pool(json!({"pool": "rail-2"})),
            7,
            vec!["rail-2"],
        ),
        (
            "both rails' pools",
            pool(json!({"pool": "rail-0,rail-1"})),
            7,
            vec!["rail-1"],
        ),
        (
            "a pool that is none",
            pool(json!({"pool": "rail-9"})),
            7,
            vec!["rail-9"],
        ),
        (
            "a pool of its own",
            inline("mine", "10.9.0.0/24"),
            7,
            vec!["inlinePools"],
        ),
        (
            "a pool of its own, keys in capitals",
            pool(
                json!({"CIDR": "10.9.0.0/24", "PerNodeNetworkPrefix": 31, "StaticAllocations": [{"nodeName": "node-1", "prefix": "10.9.0.0/31"}]}),
            ),
            7,
            vec!["inlinePools"],
        ),
    ];
    for (attack, more, code, words) in table {
        let config = node.asking(more).to_string();
        node.refuses(attack, &node.call("ADD"), config.as_bytes(), code, &words);
    }
    let from_args = node.call("ADD").var("CNI_ARGS", "IP=172.16.0.1");
    node.refuses(
        "the gateway's by CNI_ARGS",
        &from_args,
        node.asking(json!({})).to_string().as_bytes(),
        7,
        &["gateway"],
    );

    // If pools in networks are allowed, they keep off the plan.
    let allowed = fs::read_to_string(node.host.path("node.json")).unwrap();
    let mut allowed: Value = serde_json::from_str(&allowed).unwrap();
    allowed["policy"]["inlinePools"] = json!(true);
    fs::write(node.host.path("node.json"), allowed.to_string()).unwrap();
    let node = Node {
        node: node.state(),
        ..node
    };
    let mine = json!([{"nodeName": "node-1", "prefix": "172.16.0.2/31"}]);
    let another = with(
        inline("mine", "172.16.0.0/24")["ipam"].clone(),
        json!({"staticAllocations": mine}),
    );
    for (attack, more, word) in [
        (
            "another node's by a pool of its own",
            json!({"ipam": another}),
            "172.16.0.",
        ),
        (
            "a pool with the name of a planned one",
            inline("rail-0", "10.9.0.0/24"),
            "rail-0",
        ),
        (
            "a pool with the addresses of a planned one",
            inline("mine", "172.18.0.0/24"),
            "172.18.0.",
        ),
        (
            "a pool of all addresses",
            inline("mine", "0.0.0.0/0"),
            "0.0.0.0/31",
        ),
    ] {
        let config = node.asking(more).to_string();
        node.refuses(attack, &node.call("ADD"), config.as_bytes(), 7, &[word]);
    }
}

/// An answer of an IPAM is a tenant's word as well: he names it, and writes what it says.
#[test]
fn no_network_leads_the_pods_traffic_away_or_touches_others_sysctls() {
    let Some(node) = Node::new("routes") else {
        return;
    };
    let route = |more: Value| json!({"routes": [with(json!({"dst": "10.96.0.0/12"}), more)]});
    let sysctl = |key: &str| json!({"sysctl": { key: "1" }});
    let statics =
        |more: Value| json!({"cniVersion": "1.0.0", "ipam": with(json!({"type": "static"}), more)});
    let table = [
        (
            "an MTU that the PF has not",
            json!({"mtu": 9217}),
            7,
            vec!["9217", "pf0"],
        ),
        (
            "an MTU that no link has",
            json!({"mtu": 1}),
            7,
            vec!["mtu: 1 "],
        ),
        (
            "a route in the kernel's table",
            route(json!({"table": 255})),
            7,
            vec!["table 255"],
        ),
        (
            "a route of two families",
            route(json!({"dst": "fd96::/112", "gw": "172.16.0.1"})),
            7,
            vec!["an IPv4 gateway"],
        ),
        (
            "a route to the pod's own address",
            route(json!({"gw": "172.16.0.0"})),
            7,
            vec!["own address"],
        ),
        (
            "a sysctl of the pod",
            sysctl("net.ipv4.ip_forward"),
            7,
            vec!["net.ipv4.ip_forward"],
        ),
        (
            "a sysctl of all interfaces",
            sysctl("net.ipv4.conf.all.forwarding"),
            7,
            vec!["sysctl."],
        ),
        (
            "a sysctl of eth0",
            sysctl("net.ipv4.conf.eth0.forwarding"),
            7,
            vec!["sysctl."],
        ),
        (
            "a sysctl of the kernel",
            sysctl("kernel.core_pattern"),
            7,
            vec!["sysctl."],
        ),
        (
            "a sysctl by ..",
            sysctl("net/ipv4/conf/IFNAME/../all/forwarding"),
            7,
            vec!["sysctl."],
        ),
        (
            "a sysctl by .. at its end",
            sysctl("net/ipv4/conf/../../.."),
            7,
            vec!["sysctl."],
        ),
        (
            "a sysctl of two lines",
            json!({"sysctl": {"net.ipv4.conf.IFNAME.forwarding": "1\n1"}}),
            7,
            vec!["sysctl."],
        ),
        (
            "no timeout",
            json!({"gatewayProbe": "require", "gatewayProbeTimeout": "0s"}),
            7,
            vec!["gatewayProbeTimeout"],
        ),
        (
            "a timeout for ever",
            json!({"gatewayProbe": "require", "gatewayProbeTimeout": "9999h"}),
            7,
            vec!["30s"],
        ),
        (
            "a negative timeout",
            json!({"gatewayProbe": "warn", "gatewayProbeTimeout": "-1s"}),
            7,
            vec!["-1s"],
        ),
        (
            "an endless number",
            json!({"gatewayProbeTimeout": format!("{}s", "9".repeat(400))}),
            7,
            vec!["gatewayProbeTimeout"],
        ),
        (
            "an address that none is",
            statics(json!({"addresses": [{"address": "127.0.0.2/8"}]})),
            7,
            vec!["127.0.0.2"],
        ),
        (
            "an address of everybody",
            statics(json!({"addresses": [{"address": "10.1.1.1/0"}]})),
            7,
            vec!["default route"],
        ),
    ];
    for (attack, more, code, words) in table {
        let config = node.asking(more).to_string();
        node.refuses(attack, &node.call("ADD"), config.as_bytes(), code, &words);
    }
    // Each is served but for the default route: `serves` looks whether eth0 has it still.
    let v4 = json!({"address": "10.1.1.1/24", "gateway": "10.1.1.254"});
    for (attack, more) in [
        ("a default route", route(json!({"dst": "0.0.0.0/0"}))),
        (
            "a default route of best metric",
            route(json!({"dst": "0.0.0.0/0", "priority": 1})),
        ),
        (
            "a default route with host bits",
            route(json!({"dst": "1.2.3.4/0"})),
        ),
        (
            "a default route for IPv6",
            route(json!({"dst": "::/0", "gw": "fe80::1"})),
        ),
        (
            "a default route of the IPAM",
            statics(json!({"addresses": [v4], "routes": [{"dst": "0.0.0.0/0"}]})),
        ),
        (
            "the other pod's address",
            statics(json!({"addresses": [{"address": "172.18.0.0/31"}]})),
        ),
        ("a network of Services", route(json!({}))),
        (
            "another rail's network",
            route(json!({"dst": "172.18.0.0/15"})),
        ),
        ("a table of another rail", route(json!({"table": 101}))),
        (
            "a previous result that lies",
            json!({"prevResult": {"cniVersion": "1.1.0",
            "interfaces": [{"name": "eth0", "sandbox": "/proc/1/ns/net"}, {"name": "vf2"}],
            "ips": [{"address": "172.18.0.0/31", "interface": 1}], "routes": [{"dst": "0.0.0.0/0"}]}}),
        ),
    ] {
        node.serves(attack, &node.call("ADD"), &node.asking(more), |_| ());
    }
}

/// The readers of a network read no more than it can hold, and every reader of a message sees one
/// line.
#[test]
fn no_network_overwhelms_or_forges() {
    let Some(node) = Node::new("json") else {
        return;
    };
    let good = node.asking(json!({})).to_string();
    let raw = |text: &str| format!("{}, {text}}}", &good[..good.len() - 1]);
    let deep = |key: &str| {
        raw(&format!(
            "\"{key}\": {}{}",
            "[".repeat(5000),
            "]".repeat(5000)
        ))
    };
    for (attack, config, words) in [
        ("a key that is too deep", deep("unheard"), vec!["unheard"]),
        ("a known key that is too deep", deep("args"), vec!["args"]),
        ("an integer that is none", raw(r#""mtu": 1e400"#), vec![]),
        (
            "an MTU of all bits",
            raw(r#""MTU": 4294967295"#),
            vec!["appears twice"],
        ),
        (
            "a number for a text",
            raw(r#""routing": 7"#),
            vec!["routing"],
        ),
    ] {
        node.refuses(attack, &node.call("ADD"), config.as_bytes(), 7, &words);
    }
    let big = |size: usize| {
        node.asking(json!({ "unheard": "x".repeat(size) }))
            .to_string()
    };
    let config = big(64 << 10);
    node.refuses(
        "a configuration of 64 KiB",
        &node.call("ADD"),
        config.as_bytes(),
        7,
        &["more than 65536"],
    );
    let config = big(4 << 20);
    node.refuses(
        "a configuration of 4 MiB",
        &node.call("ADD"),
        config.as_bytes(),
        7,
        &["more than 65536"],
    );
    let many: Vec<_> = (0..1000).map(|n| format!("key{n}")).collect();
    let many: Value = many
        .into_iter()
        .map(|key| (key, json!(1)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let forged = "x\n2026-01-01T00:00:00Z forged: \u{1b}[2J\r\u{9b}\u{2028}";
    for (attack, more) in [
        ("32 KiB", json!({ "unheard": "x".repeat(32 << 10) })),
        ("a thousand keys", many),
        ("a key that forges a line", json!({ forged: 1 })),
        (
            "a log file that forges a line",
            json!({ "logFile": forged }),
        ),
    ] {
        node.serves(attack, &node.call("ADD"), &node.asking(more), |_| ());
    }
    let args = format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={forged}");
    let named = node.call("ADD").var("CNI_ARGS", &args);
    node.serves(
        "a pod's name that forges a line",
        &named,
        &node.asking(json!({})),
        |_| {
            for command in [
                ["status", "--output", "table"],
                ["doctor", "--output", "table"],
                ["reap", "--dry-run", "--all"],
            ] {
                let told = node
                    .call("")
                    .args(&command[..command.len() - usize::from(command[0] == "reap")])
                    .run(&json!(0));
                let all = format!("{}{}", told.stdout, told.stderr);
                let is_bad =
                    |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{2028}');
                assert!(
                    !all.contains(is_bad)
                        && !all.lines().any(|line| line.starts_with("2026-01-01")),
                    "{all:?}"
                );
            }
        },
    );
    let log = fs::read_to_string(node.host.path("log/node.log")).unwrap();
    assert!(
        !log.lines()
            .any(|line| line.starts_with("2026-01-01T00:00:00Z")),
        "a forged line in the log"
    );
}

/// Limits of the writes and the memory that a tenant can cause: Multus has the memory in its own
/// limit.
#[test]
fn no_network_makes_a_call_large() {
    let Some(node) = Node::new("size") else {
        return;
    };
    let file = node.host.path("log/node.log");
    // `[]` is filled with as many of `part` as ADD accepts.
    let filled = |more: Value, part: &str| {
        let text = node
            .asking(with(json!({"logLevel": "debug"}), more))
            .to_string();
        let count = ((64 << 10) - text.len()) / (part.len() + 1);
        text.replacen(
            "[]",
            &format!("[{}]", vec![part; count.min(8_000)].join(",")),
            1,
        )
    };
    let network = |more: Value| node.asking(more).to_string();
    let keys = |count: usize| -> Value {
        (0..count)
            .map(|n| (format!("k{n}"), json!(0)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let pool =
        |more: Value| json!({"ipam": with(json!({"type": "rail-ipam", "pool": "rail-0"}), more)});
    let long = "k".repeat(20_000);
    let controls = "\u{85}".repeat(10_000);
    let levels = (0..100).fold(json!(0), |inner, _| json!([inner]));
    let table = [
        (
            "objects that nobody reads",
            filled(json!({"x": []}), r#"{"":0}"#),
        ),
        ("lists that nobody reads", filled(json!({"x": []}), "[]")),
        (
            "objects as routes",
            filled(json!({"routes": []}), r#"{"dst":0}"#),
        ),
        (
            "wrong routes",
            filled(json!({"routes": []}), r#"{"dst":"0.0.0.0/0"}"#),
        ),
        (
            "objects as result",
            filled(json!({"prevResult": {"ips": []}}), r#"{"":0}"#),
        ),
        (
            "objects of a pool",
            filled(pool(json!({"routes": []})), r#"{"":0}"#),
        ),
        ("texts", filled(json!({"dns": {"search": []}}), r#""a""#)),
        (
            "arguments",
            filled(json!({"args": {"cni": {"ips": []}}}), r#"{"":0}"#),
        ),
        (
            "the same key below a long one",
            filled(json!({"args": {&long: []}}), r#"{"a":0,"a":0}"#),
        ),
        (
            "levels below a long key",
            network(json!({"args": {&long: levels}})),
        ),
        ("a long value", network(json!({"mtu": "x".repeat(60_000)}))),
        (
            "a long version",
            network(json!({"cniVersion": "x".repeat(60_000)})),
        ),
        ("a long name", network(json!({"name": "x".repeat(60_000)}))),
        ("keys", network(keys(5_000))),
        ("keys of the pool", network(pool(keys(5_000)))),
        (
            "controls",
            network(json!({ &controls: 1, "logFile": controls })),
        ),
    ];
    let args = format!("K8S_POD_NAMESPACE=a;K8S_POD_NAME={}", "x".repeat(100_000));
    for (attack, config) in table {
        assert!(config.len() <= 64 << 10, "{attack}: {} bytes", config.len());
        for verb in ["ADD", "CHECK", "DEL"] {
            for call in [node.call(verb), node.call(verb).ipam()] {
                let call = call
                    .var("CNI_ARGS", &args)
                    .under(&["prlimit", "--data=16777216", "--"]);
                fs::write(&file, "").unwrap();
                is_small(
                    &format!("{attack}: {verb}"),
                    &call.run_with(config.as_bytes()),
                    &file,
                );
            }
        }
    }
    node.stands("everything that is large");
}

/// An answer without the network in it, and a log that an operator still can read.
#[track_caller]
fn is_small(attack: &str, ran: &Ran, log: &Path) {
    let told = if ran.status == 0 { 0 } else { ran.stdout.len() };
    let begin: String = ran.stdout.chars().take(200).collect();
    assert!(
        ran.status == 0 || ran.json()["code"].is_u64(),
        "{attack}: {begin}"
    );
    assert!(told < 12 << 10, "{attack}: {told} bytes: {begin}");
    for text in [&ran.stderr, &fs::read_to_string(log).unwrap()] {
        let (lines, bytes) = (text.lines().count(), text.len());
        assert!(
            lines < 80 && bytes < 96 << 10,
            "{attack}: {lines} lines, {bytes} bytes"
        );
    }
}

/// The pod ends although its network became what no ADD accepts.
#[test]
fn no_size_of_a_network_keeps_its_pod() {
    let Some(node) = Node::new("size_of_del") else {
        return;
    };
    for size in [1 << 20, 4 << 20] {
        node.call("ADD").run(&node.asking(json!({}))).ok();
        let grown = node
            .asking(json!({"x": vec![json!({"": 0}); size / 8]}))
            .to_string();
        let within = |verb: &str| node.call(verb).under(&["prlimit", "--data=16777216", "--"]);
        within("DEL").run_with(grown.as_bytes()).ok();
        within("GC").run_with(grown.as_bytes()).error(7);
        assert!(
            node.host
                .leases()
                .iter()
                .all(|lease| !lease.to_string_lossy().contains("rail-0")),
            "{size}"
        );
        node.stands(&format!("a network of {size} bytes"));
    }
}

/// CHECK, and the ADD of the pod's next rail, read what the pod itself has made of routes.
#[test]
fn no_routes_of_a_pod_make_a_call_large() {
    let Some(node) = Node::new("size_of_pod") else {
        return;
    };
    let within = |call: Call| call.under(&["prlimit", "--data=16777216", "--"]);
    let own = node.asking(json!({}));
    let next = network(FREE);
    let filled = [
        (
            "routes of the rail's table",
            "seq 1 150000 | awk '{printf \"route add 10.%d.%d.%d dev net1 table 100\\n\", \
             $1 / 65536, ($1 / 256) % 256, $1 % 256}'",
        ),
        (
            "routes of the main table",
            "seq 1 150000 | awk '{printf \"route add 10.%d.%d.%d dev net1\\n\", \
             $1 / 65536, ($1 / 256) % 256, $1 % 256}'",
        ),
    ];
    for (what, lines) in filled {
        let result = within(node.call("ADD")).run(&own).ok().json();
        let filled = in_pod(&node.pod, &format!("{lines} | ip -batch -"))
            .output()
            .unwrap();
        assert!(filled.status.success(), "{what}: {filled:?}");
        let checked = with(own.clone(), json!({"prevResult": result}));
        within(node.call("CHECK")).run(&checked).ok();
        let second = |verb: &str| within(node.call(verb).ifname("net2"));
        second("ADD").run(&next).ok();
        second("DEL").run(&next).ok();
        within(node.call("DEL")).run(&own).ok();
    }
    node.stands("a pod full of routes");
}

/// A pod can make links on the node: here it has the device's own name, and those that the kernel
/// and rail-cni would give next.
#[test]
fn no_names_that_are_taken_on_the_node_keep_a_rail_in_its_pod() {
    let Some(node) = Node::new("names_of_node") else {
        return;
    };
    let config = node.asking(json!({}));
    node.call("ADD").run(&config).ok();
    let batch = node.host.path("taken");
    let taken = (0..1400).map(|number| format!("dev{number}"));
    let taken = taken.chain(["vf0".to_owned(), "net1".to_owned()]);
    let lines: String = taken
        .map(|name| format!("link add {name} group 47 type bridge\n"))
        .collect();
    fs::write(&batch, lines).unwrap();
    node.host.ip(&format!("-batch {}", batch.display()));
    fs::remove_file(batch).unwrap();
    node.call("DEL").run(&config).ok();
    node.host.ip("link del group 47");
    node.host.make_due();
    let mut reap = Command::new(crate::harness::railctl());
    reap.arg("reap")
        .env("RAIL_CNI_NODE_CONFIG", node.host.path("node.json"));
    let reaped = reap.output().unwrap();
    assert!(reaped.status.success(), "{reaped:?}");
    node.stands("1,402 names on the node");
}

/// The annotation names the interface.
#[test]
fn no_interface_takes_a_name_that_is_another_things() {
    let Some(node) = Node::new("names") else {
        return;
    };
    let config = node.asking(json!({})).to_string();
    for (name, code, word) in [
        ("eth0", 7, "eth0"),
        ("lo", 7, "lo"),
        ("a/b", 4, "interface name"),
        ("..", 4, "interface name"),
        ("a b", 4, "interface name"),
        ("a:b", 4, "interface name"),
        ("net%d", 4, "interface name"),
        ("sixteen-letters-", 4, "interface name"),
        // Sysctls of these are those of every interface.
        ("all", 4, "interface name"),
        ("default", 4, "interface name"),
    ] {
        node.refuses(
            &format!("the name {name}"),
            &node.call("ADD").ifname(name),
            config.as_bytes(),
            code,
            &[word],
        );
    }
    for name in ["vf2", "cali1", "pf0", "uplink", "IFNAME", "dev7"] {
        node.serves(
            &format!("the name {name}"),
            &node.call("ADD").ifname(name),
            &node.asking(json!({})),
            |_| (),
        );
    }
}

/// The tenant's own stand-in for an IPAM plugin: one that an operator has installed may be led by
/// its configuration.
#[test]
fn no_answer_of_an_ipam_does_harm() {
    let Some(node) = Node::new("ipam") else {
        return;
    };
    let answer =
        |json: &str| format!("test $CNI_COMMAND = ADD || exit 0\ncat <<'END'\n{json}\nEND");
    let ips = |ips: &str| answer(&format!(r#"{{"cniVersion": "1.1.0", "ips": [{ips}]}}"#));
    for (attack, script, code, word) in [
        ("garbage", answer("\u{1}\u{2}{"), 6, "stand-in"),
        ("nothing", "exit 0".to_owned(), 6, "stand-in"),
        ("no address", ips(""), 7, "stand-in"),
        (
            "an address of everybody",
            ips(r#"{"address": "10.1.1.1/0"}"#),
            7,
            "10.1.1.1/0",
        ),
        (
            "the loopback's",
            ips(r#"{"address": "127.0.0.1/8"}"#),
            7,
            "127.0.0.1/8",
        ),
        (
            "a group's",
            ips(r#"{"address": "224.0.0.1/32"}"#),
            7,
            "224.0.0.1/32",
        ),
        (
            "an address that is its gateway",
            ips(r#"{"address": "10.1.1.1/24", "gateway": "10.1.1.1"}"#),
            7,
            "10.1.1.1",
        ),
        (
            "a long answer",
            "head -c 9000000 /dev/zero".to_owned(),
            999,
            "65536",
        ),
        (
            "an error that is another's",
            "echo '{\"code\": 11, \"msg\": \"x\"}'; exit 1".to_owned(),
            11,
            "x",
        ),
        ("a signal", "kill -9 $$".to_owned(), 6, "signal 9"),
    ] {
        node.host.add_plugin("stand-in", &script);
        let config = node.asking(json!({"ipam": {"type": "stand-in"}}));
        let refused = node.call("ADD").run(&config);
        assert_eq!(refused.status, 1, "{attack}: {refused:?}");
        let error = refused.json();
        let msg = error["msg"].as_str().unwrap();
        assert!(
            error["code"] == code && msg.contains(word),
            "{attack}: {error}"
        );
        node.call("DEL").run(&config).ok();
        // With the plugin, any former DEL is settled.
        node.host.add_plugin("stand-in", "exit 0");
        node.call("").args(&["reap"]).run(&json!(0)).ok();
        node.stands(attack);
    }
}

// The acts of a pod with CAP_NET_ADMIN and CAP_SYS_ADMIN in its own namespaces.

/// A script that cannot do its part on this kernel exits with it.
const CANNOT: i32 = 77;

impl Node {
    /// Runs `script` in a new pod with the rail as net1, `meanwhile` while DEL runs; then the pod
    /// ends.
    #[track_caller]
    fn survives(&self, number: usize, attack: &str, script: &str, meanwhile: Option<&str>) {
        let name = format!("p{number}");
        let (pod, config) = (self.host.add_netns(&name), self.asking(json!({})));
        give_eth0(&self.host, &pod);
        let container = format!("c-{name}");
        let added = self.host.call("ADD", &container, &pod).run(&config);
        assert_eq!(added.status, 0, "{attack}: {added:?}");
        let ran = in_pod(&pod, script).output().unwrap();
        let text = String::from_utf8_lossy(&ran.stderr).into_owned();
        if ran.status.code() == Some(CANNOT) {
            skip(
                "tenant::pod",
                &format!("{attack}: {}", text.lines().next().unwrap_or_default()),
            );
        } else {
            assert!(ran.status.success(), "{attack}: {text}");
        }
        self.other_stands(attack);
        let mut child = meanwhile.map(|script| in_pod(&pod, script).spawn().unwrap());
        let deleted = self.host.call("DEL", &container, &pod).run(&config);
        if let Some(child) = &mut child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(deleted.status, 0, "{attack}: {deleted:?}");
        assert_same(
            &self.state(),
            &self.node,
            &format!("the node after the DEL of: {attack}"),
        );
        self.host.delete_netns(&pod);
        self.stands(attack);
    }
}

fn in_pod(pod: &Path, script: &str) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net={}", pod.display()))
        .args(["sh", "-ec", script]);
    command.stderr(std::process::Stdio::piped());
    command
}

/// A shell's way to the MAC of net1.
const MAC: &str = r"$(ip -o link show net1 | sed 's/.*ether \([0-9a-f:]*\).*/\1/')";

fn survives_all(test: &str, attacks: &[(&str, String)]) {
    let Some(node) = Node::new(test) else { return };
    for (number, (attack, script)) in attacks.iter().enumerate() {
        node.survives(number, attack, script, None);
    }
}

#[test]
fn no_pod_keeps_its_rail_by_a_name() {
    let renamed = |name: &str| format!("ip link set net1 down; ip link set net1 name {name}");
    let altname = |name: &str| format!("ip link property add dev net1 altname {name}");
    let altnames = "for n in $(seq 128); do echo link property add dev net1 altname a-rather-long-name-of-no-use-$n; done";
    survives_all(
        "names",
        &[
            ("it is renamed", renamed("mine")),
            ("its name is no text", renamed("$(printf '\\377\\377')")),
            ("an altname is no text", altname("$(printf '\\377\\377')")),
            ("it is called as a free VF of the host", renamed("vf2")),
            ("it is called as the host's end of a pod", renamed("cali1")),
            (
                "another link is net1",
                renamed("x") + "; ip link add net1 type bridge",
            ),
            (
                "another link is net1 and has its MAC",
                format!(
                    "mac={MAC}; {}; ip link add net1 address $mac type veth peer name y",
                    renamed("x")
                ),
            ),
            (
                "another link is called as its device was, with its MAC",
                format!(
                    "mac={MAC}; ip link add vf0 address $mac type veth peer name y; {}",
                    renamed("x")
                ),
            ),
            ("it has 128 altnames", format!("({altnames}) | ip -batch -")),
            ("it has a free VF's name as an altname", altname("vf2")),
            ("it has a PF's name as an altname", altname("pf0")),
            ("it has its own former name as an altname", altname("vf0")),
            ("it has the uplink's altname", altname("uplink")),
            (
                "400 links",
                "(for n in $(seq 400); do echo link add d$n type bridge; done) | ip -batch -"
                    .into(),
            ),
        ],
    );
}

#[test]
fn no_pod_keeps_its_rail_by_what_is_stacked_on_it_or_leads_over_it() {
    let stack = |args: &str| {
        format!(
            "ip link add link net1 name upper type {args} || exit {CANNOT}; ip link set upper up"
        )
    };
    let master = |args: &str| {
        format!(
            "ip link add up0 type {args} || exit {CANNOT}; ip link set net1 down master up0; ip link set up0 up"
        )
    };
    let many = |line: &str| format!("(for n in $(seq 200); do echo {line}; done) | ip -batch -");
    survives_all(
        "stacked",
        &[
            ("a VLAN is on it", stack("vlan id 7")),
            ("a macvlan is on it", stack("macvlan mode private")),
            ("a macvlan has it alone", stack("macvlan mode passthru")),
            ("an ipvlan is on it", stack("ipvlan mode l2")),
            ("it is in a bridge", master("bridge")),
            ("it is in a bond", master("bond")),
            ("it is in a VRF", master("vrf table 77")),
            ("addresses", many("addr add 172.18.0.$n/32 dev net1")),
            (
                "routes in the rail's table",
                many("route add 10.9.$n.0/24 dev net1 table 100"),
            ),
            (
                "a default route by it",
                "ip route replace default dev net1".into(),
            ),
            (
                "rules in the way",
                "ip rule add prio 1 unreachable; ip rule add prio 2 from 172.16.0.0 blackhole"
                    .into(),
            ),
            ("no rules", "ip rule flush".into()),
            (
                "the rule of another priority",
                "ip rule add from 172.16.0.0 lookup 100 prio 999".into(),
            ),
            (
                "permanent neighbours",
                many("neigh replace 172.16.0.$n lladdr 02:00:00:00:00:01 nud permanent dev net1"),
            ),
            ("no address", "ip addr flush dev net1".into()),
            (
                "a queueing discipline",
                format!(
                    "tc qdisc replace dev net1 root tbf rate 8bit burst 1500 latency 1s || exit {CANNOT}"
                ),
            ),
            (
                "a filter",
                format!(
                    "tc qdisc add dev net1 clsact && tc filter add dev net1 ingress u32 match u32 0 0 || exit {CANNOT}"
                ),
            ),
        ],
    );
}

#[test]
fn no_pod_changes_its_rail_for_the_next() {
    let set = |args: &str| format!("ip link set net1 {args}");
    let xdp = crate::bpf::OBJECT;
    survives_all(
        "settings",
        &[
            ("no ARP", set("arp off")),
            (
                "promiscuous",
                set("promisc on allmulticast on multicast off"),
            ),
            ("another queue", set("txqueuelen 1")),
            (
                "an alias with an escape",
                set("alias \"$(printf 'x\\033[2J')\""),
            ),
            ("a group", set("group 7")),
            ("the smallest MTU", set("mtu 68")),
            ("another MAC", set("down address 02:00:00:00:00:66")),
            ("it is down", set("down")),
            (
                "an XDP program",
                format!(
                    "ip link set net1 mtu 1500; ip link set net1 xdpgeneric obj {xdp} sec xdp || exit {CANNOT}"
                ),
            ),
            (
                "offloads",
                format!("ethtool -K net1 tx off gso off || exit {CANNOT}"),
            ),
            (
                "no IPv6",
                "echo 1 >/proc/sys/net/ipv6/conf/net1/disable_ipv6".into(),
            ),
            (
                "a forwarding pod",
                "echo 1 >/proc/sys/net/ipv4/conf/net1/forwarding".into(),
            ),
        ],
    );
}

/// Dumps of links are interrupted for as long as they come and go.
#[test]
fn no_pod_holds_up_its_end_with_links_that_come_and_go() {
    let Some(node) = Node::new("flapping") else {
        return;
    };
    let add = "(for n in $(seq 300); do echo link add d$n type bridge; done) | ip -batch -";
    let flap = "(for i in 1 2; do for n in $(seq 300); do echo link del d$n; echo link add d$n type bridge; done; done) \
                | exec ip -force -batch - 2>/dev/null";
    node.survives(0, "links come and go", add, Some(flap));
    let altnames = "(for n in $(seq 2000); do echo link property add dev net1 altname x$n; \
                    echo link property del dev net1 altname x$n; done) | exec ip -force -batch - 2>/dev/null";
    node.survives(1, "altnames come and go", "true", Some(altnames));
}

/// A macvlan keeps its lower device over namespaces, and would see the next pod's frames: it goes
/// with the pod that made it, wherever it is by then. A device that is itself in such a namespace:
/// tests/lab/returned.sh.
#[test]
fn no_pod_stays_on_its_rail_from_another_namespace() {
    for (is_mounted, is_dead) in [(true, false), (false, false), (true, true), (false, true)] {
        let Some(node) = Node::new("nested") else {
            return;
        };
        let config = node.asking(json!({}));
        let (pod, nested) = (node.host.add_netns("outer"), node.host.add_netns("nested"));
        let keeper = Sleeper::new(Some(&nested));
        node.call("ADD")
            .var("CNI_NETNS", pod.to_str().unwrap())
            .run(&config)
            .ok();
        let pid = keeper.pid();
        let script = format!(
            "ip link add link net1 name upper type macvlan || exit {CANNOT}; ip link set upper netns {pid}"
        );
        let ran = in_pod(&pod, &script).output().unwrap();
        if ran.status.code() == Some(CANNOT) {
            return skip("tenant::nested", "this kernel has no macvlan");
        }
        assert!(ran.status.success(), "{ran:?}");
        let links = || {
            let shown = Command::new("nsenter")
                .args(["-t", &pid.to_string(), "-n", "ip", "link"])
                .output();
            String::from_utf8(shown.unwrap().stdout).unwrap()
        };
        assert!(links().contains("upper"));
        if !is_mounted {
            node.host.delete_netns(&nested);
        }
        if is_dead {
            node.host.hand_back(&pod, "net1");
        }
        node.call("DEL")
            .var("CNI_NETNS", pod.to_str().unwrap())
            .run(&config)
            .ok();
        assert!(
            !links().contains("upper"),
            "mounted {is_mounted}, dead {is_dead}"
        );
        if !is_dead {
            node.host.delete_netns(&pod);
        }
        node.other_stands("a macvlan in a namespace below");
        node.stands("a macvlan in a namespace below");
        drop(keeper);
    }
}

/// A pod pushes its rail into the pod of another tenant, and ends. The rail answers there for its
/// address, which nobody else gets until it has left.
#[test]
fn no_pod_frees_an_address_that_its_rail_has_in_another_pod() {
    let Some(node) = Node::new("given") else {
        return;
    };
    let host = &node.host;
    let config = node.asking(json!({}));
    let pod = host.add_netns("giver");
    let call = |verb: &str| host.call(verb, "c1", &pod);
    call("ADD").run(&config).ok();
    let other = node.other.file_name().unwrap().to_str().unwrap();
    host.ip_in(
        &pod,
        &format!("link set net1 down netns {other} name given"),
    );
    // sysfs of the fixture still has the VF on the host.
    let device = host.path("sys/devices").join(vf_address(MINE));
    fs::remove_dir(device.join("net/vf0")).unwrap();
    let railctl = |verb: &str| {
        host.call("", "", &node.next)
            .args(&[verb])
            .run(&Value::Null)
    };
    let place = format!(
        "it is given in the namespace {} of pod default/pod",
        node.other.display()
    );
    let elsewhere = railctl("status").stdout;
    assert!(elsewhere.contains(&place), "{elsewhere}");

    call("DEL").run(&config).ok();
    host.delete_netns(&pod);
    call("DEL").run(&config).ok();
    let home = format!(
        "`nsenter --net={} ip link set given netns 1`; then run `railctl reap`",
        node.other.display()
    );
    for verb in ["status", "doctor", "reap"] {
        let ran = railctl(verb);
        let is_told = ran.stdout.contains(&place) && ran.stdout.contains(&home);
        assert!(ran.status != 0 && is_told, "{verb}: {ran:?}");
    }
    let gc = with(config.clone(), json!({"cni.dev/valid-attachments": []}));
    host.call("GC", "", &node.next)
        .var("CNI_NETNS", "")
        .run(&gc);
    assert_eq!(host.leases().len(), 2, "its own, and that of the other pod");
    let refused = host.call("ADD", "c-next", &node.next).run(&config);
    refused.error(11);
    assert!(refused.msg().contains(&place), "{refused:?}");

    let process = Sleeper::new(None);
    host.ip_in(
        &node.other,
        &format!("link set given netns {}", process.pid()),
    );
    fs::create_dir(device.join("net/vf0")).unwrap();
    railctl("reap").ok();
    assert_eq!(host.leases().len(), 1);
    node.stands("its rail in another pod");
}

/// The MAC of a veth is the network's, in whichever pod it is.
#[test]
fn no_pod_frees_an_address_whose_rail_has_the_networks_mac() {
    let Some(host) = Host::new("tenant::networks_mac") else {
        return;
    };
    host.add_rail(0);
    host.make_vf(0, "mlx5_core");
    let [pod, other] = ["giver", "other"].map(|name| host.add_netns(name));
    let device = json!({"device": null, "deviceID": vf_address(0), "mac": "02:00:00:00:00:77"});
    let config = with(rail(0), device);
    host.cni("ADD", "c1", &pod, &config).ok();
    let into = other.file_name().unwrap().to_str().unwrap();
    host.ip_in(&pod, &format!("link set net1 down netns {into} name given"));
    // sysfs of the fixture still has the VF on the host.
    fs::remove_dir(host.path("sys/devices").join(vf_address(0)).join("net/vf0")).unwrap();
    host.delete_netns(&pod);
    host.cni("DEL", "c1", &pod, &config).ok();
    assert_eq!(host.leases().len(), 1, "the other pod has the address");
    let place = "it is given in the namespace";
    let status = host.call("", "", &other).args(&["status"]);
    assert!(status.run(&Value::Null).stdout.contains(place));
}

/// A pod whose namespace a process keeps open after its end, without a name.
#[test]
fn no_process_that_keeps_a_namespace_costs_the_next_pod_its_rail() {
    let Some(node) = Node::new("kept") else {
        return;
    };
    let config = node.asking(json!({}));
    let pod = node.host.add_netns("kept");
    node.host.call("ADD", "c1", &pod).run(&config).ok();
    let keeper = Sleeper::new(Some(&pod));
    node.host.call("DEL", "c1", &pod).run(&config).ok();
    node.host.delete_netns(&pod);
    node.stands("a process keeps the namespace");
    drop(keeper);
}
