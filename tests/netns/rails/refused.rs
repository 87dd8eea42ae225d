//! Devices that are not handed out, with their use by the host: a tenant may have written the
//! configuration, and each of these was handed out once (issues of the peers: sriov-cni takes any
//! VF, host-device any netdev).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::device::{host, no_device, refused, taken};
use crate::bpf::{self, Hook};
use crate::harness::{Sleeper, pf_address, rail, skip, vf_address, with};

fn by_name(name: &str) -> Value {
    with(no_device(), json!({ "device": name }))
}

/// May this kernel do that? Says so otherwise.
fn can(test: &str, program: &str, args: &str) -> bool {
    let output = Command::new(program)
        .args(args.split_whitespace())
        .output()
        .unwrap();
    if !output.status.success() {
        skip(
            test,
            &format!(
                "{program} {args}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
        );
    }
    output.status.success()
}

/// Calico's `cali123` with its /32 route is another pod's end, `cilium_vxlan` the node's overlay.
#[test]
fn a_netdev_that_is_no_function_needs_a_policy_that_names_its_kind() {
    let Some((host, pod)) = host("refused::kinds") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    host.ip("link add cali123 type veth peer name eth0");
    host.ip("link set cali123 up");
    host.ip("route add 10.1.2.3/32 dev cali123");
    host.set_node(json!({"policy": {"kinds": []}}));
    let text = |kind: &str| format!("policy.kinds…\"{kind}\"");
    refused(&host, &pod, &by_name("cali123"), 7, &text("veth"));
    for (kind, args) in [
        ("vxlan", "link add other type vxlan id 5 dstport 4789"),
        ("macvlan", "link add link eth0 name other type macvlan"),
    ] {
        if can("refused::kinds", "ip", args) {
            refused(&host, &pod, &by_name("other"), 7, &text(kind));
            host.ip("link del other");
        }
    }
    refused(&host, &pod, &by_name("lo"), 7, &text("loopback"));
    taken(&host, &pod, &json!({"device": "vf0"}));
    host.set_node(json!({"policy": {"kinds": ["loopback"]}}));
    refused(&host, &pod, &by_name("lo"), 7, "loopback");
    // A policy that names the kind does not hand out what somebody uses.
    host.set_node(json!({"policy": {"kinds": ["veth"]}}));
    refused(&host, &pod, &by_name("cali123"), 7, "10.1.2.3/32");
    host.ip("route del 10.1.2.3/32 dev cali123");
    host.cni("ADD", "c1", &pod, &by_name("cali123")).ok();
}

/// A PF in switchdev mode has them beside it: each is the other end of a VF.
#[test]
fn a_representor_is_not_its_pf() {
    let Some((host, pod)) = host("refused::representor") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    host.ip("link add pf0vf0 type veth peer name peer0");
    let (device, net) = (
        format!("devices/{}", pf_address(0)),
        host.path("sys/class/net/pf0vf0"),
    );
    fs::create_dir_all(host.path("sys").join(&device).join("net/pf0vf0")).unwrap();
    fs::create_dir_all(&net).unwrap();
    symlink(host.path("sys").join(&device), net.join("device")).unwrap();
    for port in ["pf0vf0", "c1pf0vf0", "pf0sf4"] {
        for path in [&net, &host.path("sys").join(&device).join("net/pf0vf0")] {
            fs::write(path.join("phys_port_name"), format!("{port}\n")).unwrap();
        }
        host.set_node(json!({"rails": [{"rail": 0, "pf": pf_address(0)}]}));
        refused(&host, &pod, &by_name("pf0vf0"), 7, "pf0vf0 …representor");
        host.set_node(json!({"policy": {"kinds": ["representor"]}}));
        let config = by_name("pf0vf0");
        host.cni("ADD", "c1", &pod, &config).ok();
        host.cni("DEL", "c1", &pod, &config).ok();
    }
}

/// The rail of such a network is that of the device's PF: table, `policy.rails` and the pool's rail
/// are compared.
#[test]
fn a_network_without_a_rail_gets_devices_of_the_nodes_rails_only() {
    let Some((host, pod)) = host("refused::rails") else {
        return;
    };
    host.add_rail(1);
    host.make_vf(0, "mlx5_core");
    host.make_vf(1, "mlx5_core");
    let config = |r: u8| with(rail(r), json!({"rail": null}));
    let listed = json!([{"rail": 3, "pf": pf_address(0)}, {"rail": 5, "pf": "0000:77:00.0"}]);
    host.set_node(json!({ "rails": listed }));
    refused(
        &host,
        &pod,
        &config(1),
        7,
        "VF 0000:02:10.0 (vf1) …0000:02:00.0…node.json",
    );
    host.ip("link add other type veth peer name peer");
    let other = with(config(0), json!({"device": "other"}));
    refused(&host, &pod, &other, 7, "netdev other …node.json");
    host.cni("ADD", "c1", &pod, &config(0)).ok();
    assert!(
        host.ip_in(&pod, "rule").contains("lookup 103"),
        "{}",
        host.ip_in(&pod, "rule")
    );
    host.cni("DEL", "c1", &pod, &config(0)).ok();

    host.set_node(json!({ "rails": listed, "policy": {"rails": [5]} }));
    refused(&host, &pod, &config(0), 7, "rail 3…policy…[5]");
    host.set_node(json!({ "rails": listed, "policy": {"rails": [3]} }));
    taken(&host, &pod, &with(config(0), json!({})));
    // The pool of another rail.
    let file = host.path("store/node-1/rail-0.json");
    let mut planned: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    planned["rail"] = json!(0);
    fs::write(&file, planned.to_string()).unwrap();
    refused(&host, &pod, &config(0), 7, "pool rail-0 …rail 3");

    let twice = json!([{"rail": 0, "pf": pf_address(0)}, {"rail": 3, "pf": "pf0"}]);
    host.set_node(json!({ "rails": twice }));
    let text = "VF 0000:01:10.0 (vf0) …[0, 3] …`rail`";
    refused(&host, &pod, &config(0), 7, text);
    taken(&host, &pod, &json!({"device": "vf0", "rail": 0}));
}

/// Any of them, in any table: not the default route alone.
#[test]
fn a_device_with_a_route_of_the_host_is_refused() {
    let Some((host, pod)) = host("refused::routes") else {
        return;
    };
    host.ip("link set vf0 addrgenmode none up");
    for (route, text) in [
        ("10.1.2.3/32 dev vf0", "10.1.2.3/32"),
        ("10.2.0.0/16 dev vf0 table 77", "10.2.0.0/16 table 77"),
        ("fd00:7::/64 dev vf0", "fd00:7::/64"),
        ("10.3.0.0/16 nexthop dev vf0 nexthop dev lo", "10.3.0.0/16"),
        ("default dev vf0", "default route 0.0.0.0/0"),
    ] {
        host.ip(&format!("route add {route}"));
        refused(&host, &pod, &rail(0), 7, text);
        host.ip(&format!("route del {route}"));
    }
    // A route that is only deleted comes back with the next advertisement.
    host.ip("-6 route add default via fe80::1 dev vf0");
    refused(
        &host,
        &pod,
        &rail(0),
        7,
        "`echo 0 >/proc/sys/net/ipv6/conf/vf0/accept_ra; ip -6 route del ::/0 via fe80::1 dev vf0`",
    );
    host.ip("-6 route del default via fe80::1 dev vf0");
    // Addresses that every link has once it is up, or that a daemon gives to every link.
    host.ip("route add 169.254.0.0/16 dev vf0 scope link");
    host.ip("addr add 169.254.7.7/16 dev vf0");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
}

/// Cilium, Calico's eBPF mode, a load balancer: frames of the device are the host's business.
#[test]
fn a_device_with_a_program_or_filter_of_the_host_is_refused() {
    let test = "refused::datapath";
    let Some((host, pod)) = host(test) else {
        return;
    };
    for (qdisc, hook, at) in [
        ("clsact", "ingress", "ingress"),
        ("clsact", "egress", "egress"),
        ("ingress", "parent ffff:", "ingress"),
    ] {
        if !can(test, "tc", &format!("qdisc add dev vf0 {qdisc}")) {
            continue;
        }
        if can(
            test,
            "tc",
            &format!("filter add dev vf0 {hook} u32 match u32 0 0"),
        ) {
            let text = format!("u32…`tc filter show dev vf0 {at}`");
            refused(&host, &pod, &rail(0), 7, &text);
        }
        assert!(can(test, "tc", &format!("qdisc del dev vf0 {qdisc}")));
    }
    // A qdisc alone sees nothing.
    if can(test, "tc", "qdisc add dev vf0 clsact") {
        host.cni("ADD", "c1", &pod, &rail(0)).ok();
        host.cni("DEL", "c1", &pod, &rail(0)).ok();
    }
    for (hook, text) in [
        (Hook::Xdp, "XDP …`ip link set vf0 xdp off`"),
        (Hook::Tcx, "tcx_ingress"),
    ] {
        let held = bpf::hold("vf0", hook);
        if let Err(error) = &held {
            return skip(test, &format!("{hook:?}: {error:#}"));
        }
        refused(&host, &pod, &rail(0), 7, text);
    }
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    host.ip("link set vf0 xdpgeneric off");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
}

/// The pod of the macvlan would be on the wire of the next pod, with its MAC and unseen.
#[test]
fn a_device_with_a_macvlan_in_another_namespace_is_refused() {
    let test = "refused::stacked";
    let Some((host, pod)) = host(test) else {
        return;
    };
    let other = host.add_netns("other");
    let name = other.file_name().unwrap().to_str().unwrap();
    // A namespace between, with a device of the same index, and a macvlan on that: nothing to do
    // with ours.
    let between = host.add_netns("between");
    let index = host.json(None, "link show vf0")[0]["ifindex"].clone();
    host.ip_in(
        &between,
        &format!("link add same index {index} type veth peer name peer netns {name}"),
    );
    if !can(
        test,
        "ip",
        &format!(
            "-n {} link add link same name mv0 netns {name} type macvlan",
            in_ip(&between)
        ),
    ) {
        return;
    }
    taken(&host, &pod, &json!({"device": "vf0"}));

    host.ip(&format!(
        "link add link vf0 name mv1 netns {name} type macvlan"
    ));
    let text = format!("mv1 (macvlan) …{}", other.display());
    refused(&host, &pod, &rail(0), 7, &text);
    host.ip_in(&other, "link del mv1");
    taken(&host, &pod, &json!({"device": "vf0"}));

    // No file names the namespace: only a process is in it.
    let nameless = host.add_netns("nameless");
    let process = Sleeper::new(Some(&nameless));
    host.delete_netns(&nameless);
    host.ip(&format!(
        "link add link vf0 name mv2 netns {} type macvlan",
        process.pid()
    ));
    host.ip("link set vf0 addrgenmode none up");
    let text = format!("mv2 (macvlan) …{}", process.netns().display());
    refused(&host, &pod, &rail(0), 7, &text);
}

fn in_ip(netns: &Path) -> &str {
    netns.file_name().unwrap().to_str().unwrap()
}

/// VFs of one PF may be several tenants': who has the PF sets their VLANs.
#[test]
fn a_pf_with_vfs_is_refused_unless_the_policy_allows_it() {
    let Some((host, pod)) = host("refused::pf") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    host.ip("link add pf0 type veth peer name pf0-peer");
    host.ip("link set pf0 mtu 9000");
    let config = with(no_device(), json!({"deviceID": pf_address(0)}));
    let text = "0000:01:00.0 (pf0) …VFs (1)…policy.pfsWithVfs";
    refused(&host, &pod, &config, 7, text);
    // For a program in user space likewise.
    let driver = host
        .path("sys")
        .join(format!("devices/{}/driver", pf_address(0)));
    fs::create_dir_all(host.path("sys/bus/pci/drivers/vfio-pci")).unwrap();
    symlink(host.path("sys/bus/pci/drivers/vfio-pci"), &driver).unwrap();
    refused(&host, &pod, &config, 7, "VFs (1)");
    fs::remove_file(driver).unwrap();
    host.set_node(json!({"policy": {"pfsWithVfs": true}}));
    host.cni("ADD", "c1", &pod, &config).ok();
    host.cni("DEL", "c1", &pod, &config).ok();
    host.set_node(json!({}));
    fs::write(
        host.path("sys")
            .join(format!("devices/{}/sriov_numvfs", pf_address(0))),
        "0\n",
    )
    .unwrap();
    host.cni("ADD", "c1", &pod, &config).ok();
}

/// mlx4 and cxgb4: one PCI function, two ports, each with a netdev.
#[test]
fn both_netdevs_of_a_function_with_two_ports_are_handed_out_and_told_apart() {
    let Some((host, pod)) = host("refused::ports") else {
        return;
    };
    host.add_rail(1);
    host.set_node(json!({"policy": {"kinds": []}}));
    host.make_vf(0, "mlx4_core");
    let device = host.path("sys/devices").join(vf_address(0));
    for (port, name) in ["vf0", "vf1"].into_iter().enumerate() {
        let net = host.path("sys/class/net").join(name);
        fs::create_dir_all(device.join("net").join(name)).unwrap();
        fs::create_dir_all(&net).unwrap();
        let _ = symlink(&device, net.join("device"));
        for path in [&net, &device.join("net").join(name)] {
            fs::write(path.join("dev_port"), format!("{port}\n")).unwrap();
        }
    }
    let before = host.snapshot();
    let next = host.add_netns("next");
    let (one, other) = (rail(0), rail(1));
    host.cni("ADD", "c1", &pod, &one).ok();
    let added = host.cni("ADD", "c2", &next, &other).ok().json();
    assert_eq!(added["interfaces"][0]["pciID"], vf_address(0));
    let mut told: Vec<_> = host
        .records()
        .iter()
        .map(|path| {
            let record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            let device = &record["owner"]["device"];
            json!([
                device["id"],
                device["pciID"],
                device["port"],
                device["siblings"]
            ])
        })
        .collect();
    told.sort_by_key(Value::to_string);
    let (id, second) = (vf_address(0), format!("{}-port1", vf_address(0)));
    assert_eq!(
        told,
        [json!([id, id, 0, true]), json!([second, id, 1, true])]
    );
    let third = host.add_netns("third");
    refused(&host, &third, &one, 11, "container c1");
    host.cni("DEL", "c1", &pod, &one).ok();
    host.cni("DEL", "c2", &next, &other).ok();
    assert_eq!(host.snapshot(), before);
}
