//! The networks of conf/migration, called as Multus calls them, on a node with the shipped
//! node.json; and the plugins that they were written for, on the same input.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Map, Value, json};

use crate::node::{
    self, documents, executable, ip, json_of, on_a_node, read, text_of, vf_address, write,
};

/// The plugin of a NAD of conf/migration, as Multus hands it over with the device of rail R.
fn network(file: &str, name: &str, rail: u8) -> Value {
    let nads = documents(&format!("conf/migration/{file}"));
    let nad = nads
        .iter()
        .find(|each| each["spec"]["config"].is_string() && each["metadata"]["name"] == name);
    let nad = nad.unwrap_or_else(|| panic!("{file} has no network {name}"));
    with_device(
        serde_json::from_str(nad["spec"]["config"].as_str().unwrap()).unwrap(),
        &vf_address(rail),
    )
}

/// Multus writes both keys for a network with a resource, and `runtimeConfig` for a declared
/// capability.
fn with_device(mut config: Value, id: &str) -> Value {
    (config["deviceID"], config["pciBusID"]) = (json!(id), json!(id));
    config
}

/// Calls the plugin of `config`.
fn call(verb: &str, config: &Value, ifname: &str) -> Output {
    let variables = BTreeMap::from([
        ("CNI_COMMAND", verb.to_owned()),
        ("CNI_CONTAINERID", "c1".to_owned()),
        ("CNI_NETNS", "/run/netns/trainer".to_owned()),
        ("CNI_IFNAME", ifname.to_owned()),
        ("CNI_PATH", "/opt/cni/bin".to_owned()),
    ]);
    let plugin = Path::new("/opt/cni/bin").join(config["type"].as_str().unwrap());
    node::run(&mut Command::new(plugin), &variables, &config.to_string())
}

#[track_caller]
fn add(config: &Value, ifname: &str) -> Value {
    json_of(&call("ADD", config, ifname))
}

#[track_caller]
fn del(config: &Value, ifname: &str) {
    let output = call("DEL", config, ifname);
    assert!(output.status.success(), "{}", text_of(&output));
}

/// An interface as the pod sees it.
#[derive(Debug, PartialEq)]
struct Seen {
    addresses: Vec<String>,
    mtu: u64,
    /// Destination and gateway of each route of the main table, without those that the kernel adds.
    routes: Vec<(String, String)>,
}

fn seen(ifname: &str) -> Seen {
    let list = |args: &str| -> Vec<Value> {
        serde_json::from_str(&ip(&format!("-json -n trainer -4 {args} dev {ifname}"))).unwrap()
    };
    let link = list("addr show").remove(0);
    let of = |each: &Value| format!("{}/{}", each["local"].as_str().unwrap(), each["prefixlen"]);
    let route = |each: &Value| {
        let gateway = each["gateway"].as_str().unwrap_or_default();
        (each["dst"].as_str().unwrap().to_owned(), gateway.to_owned())
    };
    let mut routes: Vec<_> = list("route show")
        .iter()
        .filter(|each| each["protocol"] != "kernel")
        .map(route)
        .collect();
    routes.sort();
    Seen {
        addresses: link["addr_info"]
            .as_array()
            .unwrap()
            .iter()
            .map(of)
            .collect(),
        mtu: link["mtu"].as_u64().unwrap(),
        routes,
    }
}

fn routes(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter()
        .map(|(dst, gateway)| ((*dst).to_owned(), (*gateway).to_owned()))
        .collect()
}

/// Imports pools into an empty store.
fn import(file: &str) {
    fs::remove_dir_all("/var/lib/rail-cni/store").unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("conf/migration")
        .join(file);
    let output = Command::new("/opt/cni/bin/railctl")
        .arg("import")
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
}

/// The rail's own table shows which rail the network got: node.json knows it, the network does not
/// say.
#[track_caller]
fn is_rail(rail: u8, ifname: &str) {
    let rules = ip("-n trainer rule show");
    let table = 100 + u32::from(rail);
    let address = &seen(ifname).addresses[0];
    let address = address.split('/').next().unwrap();
    assert!(
        rules.contains(&format!("from {address} lookup {table}")),
        "{rules}"
    );
}

#[test]
fn sriov_with_host_local_starts_under_the_shipped_node_json() {
    on_a_node(
        "migration::sriov_with_host_local_starts_under_the_shipped_node_json",
        &["plugins"],
        |node| {
            import("flat-pools.yaml");
            node.add_pod("trainer");
            let wanted = [
                ("roce-a", "10.60.1.1/24", ("10.60.0.0/16", "")),
                ("roce-b", "10.61.1.1/24", ("10.61.0.0/16", "")),
                ("sto-a", "10.70.0.2/16", ("", "")),
                // As printed: its own subnet, which is on the link.
                ("sto-b", "10.71.0.2/16", ("", "")),
            ];
            let each = || {
                wanted
                    .iter()
                    .zip(0..)
                    .map(|(each, rail)| (each, rail, format!("net{}", rail + 1)))
            };
            for ((name, address, route), rail, ifname) in each() {
                let config = network("sriov-host-local.yaml", name, rail);
                assert_eq!(
                    (config.get("rail"), config["type"].as_str()),
                    (None, Some("rail-cni"))
                );
                let result = add(&config, &ifname);
                assert_eq!(result["ips"][0]["address"], json!(address), "{result}");
                let wanted: Vec<_> = [*route]
                    .into_iter()
                    .filter(|route| !route.0.is_empty())
                    .collect();
                let expected = Seen {
                    addresses: vec![(*address).to_owned()],
                    mtu: 9000,
                    routes: routes(&wanted),
                };
                assert_eq!(seen(&ifname), expected, "{name}");
                is_rail(rail, &ifname);
            }
            // Another node's address, on the same flat subnet.
            ip("-n leaf addr add 10.60.2.1/16 dev leaf0");
            ip("netns exec trainer ping -n -c 1 -W 10 -M do -s 8972 -I net1 10.60.2.1");
            for ((name, ..), rail, ifname) in each() {
                del(&network("sriov-host-local.yaml", name, rail), &ifname);
            }
            node.is_as_before();
        },
    );
}

/// As the operator writes it: `vlan` and `vlanQoS` are 0, which means none, and no policy is
/// against that.
#[test]
fn a_sriov_network_starts_under_the_shipped_node_json() {
    on_a_node(
        "migration::a_sriov_network_starts_under_the_shipped_node_json",
        &[],
        |node| {
            node.add_pod("trainer");
            let config = network("sriov-network.yaml", "rail-0", 0);
            let result = add(&config, "net1");
            assert_eq!(
                result["ips"][0]["address"],
                json!(node.addresses[0].0),
                "{result}"
            );
            is_rail(0, "net1");
            let gateway = node.addresses[0].1.as_str();
            assert_eq!(
                seen("net1").routes,
                routes(&[("172.16.0.0/12", gateway), ("172.16.0.0/15", gateway)])
            );
            // The network names no MTU: the VF keeps its own.
            assert_eq!(seen("net1").mtu, 1500);
            del(&config, "net1");
            node.is_as_before();

            // The operator's additions for `vlan`, `spoofChk`, `trust` and `linkState` stay the
            // operator's, by node.json.
            for (key, value) in [
                ("vlan", json!(100)),
                ("spoofchk", json!("off")),
                ("trust", json!("on")),
                ("link_state", json!("enable")),
            ] {
                let mut config = config.clone();
                config[key] = value;
                let told = text_of(&call("ADD", &config, "net1"));
                assert!(
                    told.contains(&format!("{key}: ")) && told.contains("policy.vfKeys"),
                    "{told}"
                );
            }
            node.is_as_before();
        },
    );
}

/// Whole NICs: the shipped policy allows VFs only, and says so.
#[test]
fn host_device_networks_with_nv_ipam_start_once_the_policy_allows_pfs() {
    let test = "migration::host_device_networks_with_nv_ipam_start_once_the_policy_allows_pfs";
    on_a_node(test, &[], |node| {
        import("host-device-pools.yaml");
        node.add_pod("trainer");
        let [first, second] = [0, 1].map(|rail: u8| vf_address(rail).replace("00.2", "00.0"));
        for (pf, number) in [(&first, 0), (&second, 1)] {
            ip(&format!(
                "link add pf{number} mtu 9216 type veth peer name pfleaf{number} netns leaf"
            ));
            let folder = Path::new("/run/sys/devices").join(pf);
            write(folder.join("sriov_numvfs"), "0\n");
            fs::remove_file(folder.join("virtfn0")).unwrap();
        }
        let config = |name, pf: &str| {
            let mut config = network("host-device-nv-ipam.yaml", name, 0);
            (config["deviceID"], config["pciBusID"]) = (json!(pf), json!(pf));
            config
        };
        let (one, two) = (config("rail-1", &first), config("rail-2", &second));
        let told = text_of(&call("ADD", &one, "net1"));
        assert!(told.contains(&first) && told.contains("policy"), "{told}");

        node.configure(|node| node["policy"]["vfsOnly"] = json!(false));
        for (config, ifname, address, rail) in [
            (&one, "net1", "172.16.0.0/31", 0),
            (&two, "net2", "172.18.0.0/31", 1),
        ] {
            let result = add(config, ifname);
            assert_eq!(result["ips"][0]["address"], address, "{result}");
            assert_eq!(seen(ifname).mtu, 9216);
            is_rail(rail, ifname);
        }
        del(&one, "net1");
        del(&two, "net2");
        ip("link show dev pf0");
    });
}

/// host-device, tuning and sbr in a chain, and the one plugin that replaces them: address, MTU,
/// sysctl and gateway of each destination are the same. The main table is not: sbr empties it, and
/// rail-cni leaves each route in it, too.
#[test]
fn one_plugin_does_what_host_device_tuning_and_sbr_do() {
    let test = "migration::one_plugin_does_what_host_device_tuning_and_sbr_do";
    on_a_node(test, &["cnitool", "plugins"], |node| {
        let ours: Value =
            serde_json::from_str(&read("conf/migration/host-device-chain.conflist")).unwrap();
        let mut chain = ours.clone();
        let mut main = ours["plugins"][0].as_object().unwrap().clone();
        let sysctl = main.remove("sysctl").unwrap();
        let mtu = main.remove("mtu").unwrap();
        // Here the VF is no PCI function for upstream's plugin, which reads the machine's own
        // sysfs.
        main.remove("pciBusID").unwrap();
        main.insert("type".to_owned(), json!("host-device"));
        main.insert("device".to_owned(), json!("vf0"));
        let tuning =
            json!({"type": "tuning", "mtu": mtu, "sysctl": sysctl, "dataDir": "/run/tuning"});
        chain["plugins"] = json!([main, tuning, {"type": "sbr"}]);

        node.add_pod("trainer");
        let mut both = Vec::new();
        for list in [&chain, &ours] {
            write("/etc/cni/net.d/20-rail-0.conflist", list.to_string());
            let result = json_of(&cnitool("add"));
            let leads = |to: &str| -> Value {
                let args = format!("-json -n trainer route get {to} from 172.16.0.2");
                let route: Vec<Value> = serde_json::from_str(&ip(&args)).unwrap();
                json!([route[0]["dev"], route[0]["gateway"]])
            };
            let sysctl = ip("netns exec trainer cat /proc/sys/net/ipv4/conf/net1/rp_filter");
            let Seen {
                addresses,
                mtu,
                routes,
            } = seen("net1");
            let same = (
                result["ips"][0]
                    .as_object()
                    .map(|ip| (ip["address"].clone(), ip["gateway"].clone())),
                addresses,
                mtu,
                sysctl,
                ["172.16.0.1", "172.18.5.6", "172.31.0.1"].map(leads),
            );
            both.push((same, routes));
            let output = cnitool("del");
            assert!(output.status.success(), "{}", text_of(&output));
            // host-device leaves the device down, and tuning's MTU is restored before.
            ip("link set vf0 up");
            ip("link set vf0 down");
            fs::remove_dir_all("/run/host-local").unwrap();
        }
        assert_eq!(both[0].0, both[1].0);
        assert_eq!(both[0].0.2, 9000);
        assert_eq!(both[0].1, routes(&[]));
        assert_eq!(both[1].1, routes(&[("172.16.0.0/12", "172.16.0.1")]));
        node.is_as_before();
    });
}

fn cnitool(verb: &str) -> Output {
    let variables = BTreeMap::from([
        ("CNI_PATH", "/opt/cni/bin".to_owned()),
        ("CNI_IFNAME", "net1".to_owned()),
        ("NETCONFPATH", "/etc/cni/net.d".to_owned()),
    ]);
    let mut command = Command::new(executable("cnitool", "cnitool"));
    node::run(
        command.args([verb, "rail-0", "/run/netns/trainer"]),
        &variables,
        "",
    )
}

/// While both plugins are in use, each leaves the other's pods alone.
#[test]
fn a_device_that_host_device_attached_is_refused_until_its_pod_ends() {
    let test = "migration::a_device_that_host_device_attached_is_refused_until_its_pod_ends";
    on_a_node(test, &["plugins"], |node| {
        node.add_pod("trainer");
        let old =
            json!({"cniVersion": "1.0.0", "name": "old", "type": "host-device", "device": "vf0"});
        let new = network("sriov-network.yaml", "rail-0", 0);
        add(&old, "net1");
        let told = text_of(&call("ADD", &new, "net2"));
        assert!(told.contains(&vf_address(0)), "{told}");
        // Its DEL, which a runtime sends after such an ADD, takes nothing from the other pod.
        del(&new, "net2");
        ip("-n trainer link show dev net1");
        del(&old, "net1");
        add(&new, "net2");
        // The end of the old pod comes late, once more. It finds nothing of its own.
        call("DEL", &old, "net1");
        is_rail(0, "net2");
        del(&new, "net2");
        node.is_as_before();
    });
}

/// Adds one network by both plugins, with this IPAM section.
fn by_both(ipam: &Value, others: &Map<String, Value>) -> [(Value, Seen); 2] {
    ["host-device", "rail-cni"].map(|plugin| {
        let mut config =
            json!({"cniVersion": "1.0.0", "name": "sto-a", "type": plugin, "device": "vf2", "ipam": ipam});
        config.as_object_mut().unwrap().extend(others.clone());
        let result = add(&config, "net1");
        let seen = seen("net1");
        del(&config, "net1");
        // The next call gets the first address again.
        let _ = fs::remove_dir_all("/var/lib/cni/networks");
        (result, seen)
    })
}

/// Both addresses are of host-local. The differences are those of the page about migration.
#[test]
fn a_rail_differs_from_host_device_in_mtu_default_route_and_neighbours() {
    let test = "migration::a_rail_differs_from_host_device_in_mtu_default_route_and_neighbours";
    on_a_node(test, &["plugins"], |node| {
        node.add_pod("trainer");
        let ipam = network("sriov-host-local.yaml", "sto-a", 2)["ipam"].clone();
        assert_eq!(ipam["routes"][0]["dst"], "0.0.0.0/0");
        let mtu = json!({"mtu": 9000});
        let [(theirs, they), (ours, we)] = by_both(&ipam, mtu.as_object().unwrap());
        assert_eq!(theirs["ips"][0]["address"], ours["ips"][0]["address"]);
        assert_eq!(theirs["ips"][0]["gateway"], ours["ips"][0]["gateway"]);
        assert_eq!(they.addresses, we.addresses);
        // Neither host-device nor sriov-cni has the key `mtu`.
        assert_eq!((they.mtu, we.mtu), (1500, 9000));
        assert_eq!(they.routes, routes(&[("default", "10.70.0.1")]));
        assert_eq!(we.routes, routes(&[]));
        assert_eq!(theirs["routes"], json!([{"dst": "0.0.0.0/0"}]));
        assert_eq!(ours["routes"], json!(null));

        // To a neighbour, host-device's pod goes by a gateway that nobody asked for: host-local
        // takes the first address.
        let ipam = network("sriov-host-local.yaml", "sto-b", 2)["ipam"].clone();
        let mut by = Vec::new();
        for plugin in ["host-device", "rail-cni"] {
            let config = json!({"cniVersion": "1.0.0", "name": "sto-b", "type": plugin, "device": "vf2", "ipam": ipam});
            add(&config, "net1");
            by.push(
                ip("-n trainer route get 10.71.9.9 from 10.71.0.2").contains(" via 10.71.0.1 "),
            );
            del(&config, "net1");
            fs::remove_dir_all("/var/lib/cni/networks").unwrap();
        }
        assert_eq!(by, [true, false]);
        node.is_as_before();
    });
}

/// Addresses, gateways and routes of static, in both families.
#[test]
fn static_gives_a_rail_what_it_gives_host_device() {
    on_a_node(
        "migration::static_gives_a_rail_what_it_gives_host_device",
        &["plugins"],
        |node| {
            node.add_pod("trainer");
            let ipam = json!({"type": "static",
            "addresses": [{"address": "172.20.0.0/31", "gateway": "172.20.0.1"}],
            "routes": [{"dst": "172.20.0.0/15"}, {"dst": "172.16.0.0/12", "gw": "172.20.0.1"}]});
            let [(theirs, they), (ours, we)] = by_both(&ipam, &Map::new());
            assert_eq!(they, we);
            assert_eq!(
                we.routes,
                routes(&[
                    ("172.16.0.0/12", "172.20.0.1"),
                    ("172.20.0.0/15", "172.20.0.1")
                ])
            );
            assert_eq!(theirs["ips"][0]["address"], ours["ips"][0]["address"]);
            node.is_as_before();
        },
    );
}
