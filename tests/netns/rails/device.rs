//! The choice of a device, its refusal, and the result about it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Call, Host, Ran, pf_address, rail, vf_address, with};
use crate::programs::RAIL_IPAM;

/// A host with rail 0 and a pod.
pub fn host(test: &str) -> Option<(Host, PathBuf)> {
    let host = Host::new(test)?;
    host.add_rail(0);
    let pod = host.add_netns("pod");
    Some((host, pod))
}

/// Rail 0 without a device.
pub fn no_device() -> Value {
    with(rail(0), json!({ "device": null }))
}

/// ADD must be refused with this code and text, and nothing be changed.
#[track_caller]
pub fn refused(host: &Host, pod: &Path, config: &Value, code: u32, text: &str) {
    let before = host.snapshot();
    let error = host.cni("ADD", "refused", pod, config).error(code);
    assert!(
        golden::has(error["msg"].as_str().unwrap(), text),
        "no {text:?} in {error}"
    );
    assert_eq!(host.snapshot(), before);
}

/// ADD and DEL must work with these keys, on vf0.
#[track_caller]
pub fn taken(host: &Host, pod: &Path, more: &Value) -> Value {
    let config = with(no_device(), more.clone());
    let before = host.snapshot();
    let result = host.cni("ADD", "c1", pod, &config).ok().json();
    let links = host.snapshot()["links"].clone();
    assert_eq!(links.get("vf0"), None, "{more}");
    host.cni("DEL", "c1", pod, &config).ok();
    assert_eq!(host.snapshot(), before, "{more}");
    result
}

/// tests/contract-items, items 52, 54.
#[test]
fn every_selector_finds_the_device() {
    let Some((host, pod)) = host("device::selectors") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    host.ip(
        "link property add dev vf0 altname enp1s0v0 altname a-name-that-is-longer-than-fifteen",
    );
    let mac = host.json(None, "link show vf0")[0]["address"]
        .as_str()
        .unwrap()
        .to_owned();
    let vf = vf_address(0);
    for more in [
        json!({"device": "vf0"}),
        json!({"device": "enp1s0v0"}),
        json!({"device": "a-name-that-is-longer-than-fifteen"}),
        json!({ "hwaddr": mac }),
        json!({"hwaddr": mac.to_uppercase()}),
        json!({"hwaddr": mac.replace(':', "-")}),
        json!({ "deviceID": vf }),
        json!({ "pciBusID": vf }),
        json!({"deviceID": vf, "pciBusID": vf.to_uppercase()}),
        json!({"runtimeConfig": {"deviceID": vf}}),
        json!({"runtimeConfig": {"DeviceID": vf}, "deviceID": "", "pciBusID": null}),
        json!({"deviceID": vf, "device": "vf0", "hwaddr": mac}),
    ] {
        let result = taken(&host, &pod, &more);
        assert_eq!(result["interfaces"][0]["pciID"], vf, "{more}");
    }
}

/// Multus sorts devices by their addresses, so net1 may be any rail. Neither `rail` nor `pool` is
/// in the network.
#[test]
fn one_network_serves_every_rail_and_each_device_gets_the_address_of_its_own() {
    let Some((host, pod)) = host("device::one_network") else {
        return;
    };
    host.add_rail(1);
    (0..2).for_each(|rail| host.make_vf(rail, "mlx5_core"));
    host.set_node(
        json!({"rails": [{"rail": 0, "pf": pf_address(0)}, {"rail": 1, "pf": pf_address(1)}]}),
    );
    let before = host.snapshot();
    let of = |device: u8| {
        let config = with(
            rail(0),
            json!({"name": "rails", "rail": null, "device": null, "ipam": {"type": "rail-ipam"}}),
        );
        with(
            config,
            json!({"runtimeConfig": {"deviceID": vf_address(device)}}),
        )
    };
    host.call("STATUS", "", &pod)
        .run(&with(of(0), json!({"runtimeConfig": null})))
        .ok();
    for (ifname, device) in [("net1", 1), ("net2", 0)] {
        let result = host
            .call("ADD", "c1", &pod)
            .ifname(ifname)
            .run(&of(device))
            .ok()
            .json();
        assert_eq!(
            result["ips"][0]["address"],
            format!("172.{}.0.0/31", 16 + 2 * device)
        );
        let rules = host.ip_in(&pod, "rule");
        assert!(
            rules.contains(&format!(
                "from 172.{}.0.0 lookup {}",
                16 + 2 * device,
                100 + device
            )),
            "{rules}"
        );
        let checked = with(of(device), json!({ "prevResult": result }));
        host.call("CHECK", "c1", &pod)
            .ifname(ifname)
            .run(&checked)
            .ok();
    }
    for (ifname, device) in [("net1", 1), ("net2", 0)] {
        host.call("DEL", "c1", &pod)
            .ifname(ifname)
            .run(&of(device))
            .ok();
    }
    assert_eq!(host.snapshot(), before);
    // A rail without a plan is told before a pod meets it.
    fs::remove_file(host.path("store/node-1/rail-1.json")).unwrap();
    let status = host
        .call("STATUS", "", &pod)
        .run(&with(of(0), json!({"runtimeConfig": null})));
    assert!(
        status.error(50)["msg"].as_str().unwrap().contains("rail 1"),
        "{status:?}"
    );
}

/// host-device's `kernelpath`, and an SF on the auxiliary bus.
#[test]
fn a_kernel_path_and_an_auxiliary_device_are_found() {
    let Some((host, pod)) = host("device::auxiliary") else {
        return;
    };
    let at = |path: &str| host.path("sys").join(path);
    let sf = format!("devices/pci0000:00/{}/mlx5_core.sf.4", pf_address(0));
    fs::create_dir_all(at(&sf).join("net/vf0")).unwrap();
    symlink(at(&sf), at("bus/auxiliary/devices/mlx5_core.sf.4")).unwrap();
    symlink(
        at(&format!("devices/pci0000:00/{}", pf_address(0))),
        at(&format!("bus/pci/devices/{}", pf_address(0))),
    )
    .unwrap();
    symlink(at(&sf), at(&sf).join("net/vf0/device")).unwrap();
    symlink(at(&sf).join("net/vf0"), at("class/net/vf0")).unwrap();
    host.set_node(json!({"rails": [{"rail": 0, "pf": pf_address(0)}]}));
    for more in [
        json!({"deviceID": "mlx5_core.sf.4"}),
        json!({ "kernelpath": format!("/sys/{sf}") }),
        json!({ "kernelpath": format!("/sys/{sf}/net/vf0") }),
    ] {
        assert_eq!(
            taken(&host, &pod, &more)["interfaces"][0]["pciID"],
            "mlx5_core.sf.4",
            "{more}"
        );
    }
    for (path, text) in [
        ("/etc/passwd", "kernelpath"),
        ("/sys/devices/../../etc", "kernelpath"),
        ("/sys/devices/nothing", "no device"),
        ("relative", "kernelpath"),
    ] {
        refused(
            &host,
            &pod,
            &with(no_device(), json!({ "kernelpath": path })),
            7,
            text,
        );
    }
}

/// tests/contract-items, items 52 to 54.
#[test]
fn selectors_that_contradict_or_mean_nothing_are_refused() {
    let Some((host, pod)) = host("device::conflicts") else {
        return;
    };
    host.add_rail(1);
    host.make_vf(0, "mlx5_core");
    host.make_vf(1, "mlx5_core");
    let (one, other) = (vf_address(0), vf_address(1));
    for (more, text) in [
        (json!({"deviceID": one, "pciBusID": other}), "deviceID"),
        (
            json!({"runtimeConfig": {"deviceID": one}, "deviceID": other}),
            other.as_str(),
        ),
        (
            json!({"runtimeConfig": {"deviceID": one}, "deviceID": other}),
            one.as_str(),
        ),
        (json!({"deviceID": one, "device": "vf1"}), "vf1"),
        (
            json!({"device": "vf0", "hwaddr": host.json(None, "link show vf1")[0]["address"]}),
            "vf1",
        ),
        (json!({}), "deviceID"),
        (
            json!({"deviceID": "", "device": "", "hwaddr": null}),
            "deviceID",
        ),
        (
            json!({"deviceID": "nvidia.com/rail-0-17"}),
            "nvidia.com/rail-0-17",
        ),
        (json!({"deviceID": "../../etc"}), "../../etc"),
        (json!({"deviceID": "0000:77:00.0"}), "0000:77:00.0"),
        (json!({"deviceID": "mlx5_core.sf.99"}), "mlx5_core.sf.99"),
        (json!({"device": "nothing"}), "nothing"),
        (json!({"device": "a/b"}), "device"),
        (json!({"hwaddr": "nonsense"}), "hwaddr"),
        (json!({"hwaddr": "02:00:00:00:00:55"}), "02:00:00:00:00:55"),
        (json!({"deviceID": 7}), "deviceID"),
        (json!({"runtimeConfig": {"deviceID": [one]}}), "deviceID"),
    ] {
        refused(&host, &pod, &with(no_device(), more), 7, text);
    }
}

/// A device of another rail's PF would have an address that its leaf does not route: refused, with
/// both named.
#[test]
fn a_device_of_another_rail_is_refused() {
    let Some((host, pod)) = host("device::rail") else {
        return;
    };
    host.add_rail(1);
    host.make_vf(0, "mlx5_core");
    host.make_vf(1, "mlx5_core");
    let rails =
        |pf0: &str, pf1: &str| json!({"rails": [{"rail": 0, "pf": pf0}, {"rail": 1, "pf": pf1}]});
    for node in [rails(&pf_address(0), &pf_address(1)), rails("pf0", "pf1")] {
        host.set_node(node);
        let wrong = with(no_device(), json!({"deviceID": vf_address(1)}));
        refused(&host, &pod, &wrong, 7, "rail 0: VF 0000:02:10.0");
        refused(&host, &pod, &wrong, 7, "PF 0000:02:00.0 (rail 1)…node.json");
        // By whatever selector.
        refused(
            &host,
            &pod,
            &with(no_device(), json!({"device": "vf1"})),
            7,
            "(rail 1)",
        );
        taken(&host, &pod, &json!({"deviceID": vf_address(0)}));
    }
    // The fault is the node's, and no VF is accused.
    for absent in ["ens9f0np0", "0000:77:00.0"] {
        host.set_node(rails(absent, &pf_address(1)));
        refused(
            &host,
            &pod,
            &rail(0),
            7,
            &format!("the host has no PF {absent}"),
        );
    }
    host.set_node(json!({"rails": [{"rail": 1, "pf": pf_address(1)}]}));
    refused(&host, &pod, &rail(0), 7, "rail 0");
    host.add_rail(2);
    host.set_node(rails(&pf_address(0), &pf_address(1)));
    refused(
        &host,
        &pod,
        &with(rail(0), json!({"device": "vf2"})),
        7,
        "rail 0",
    );
}

/// The author of networks need not be the owner of the node.
#[test]
fn the_policy_of_the_node_narrows_what_networks_may_do() {
    let Some((host, pod)) = host("device::policy") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    let by_id = with(no_device(), json!({"deviceID": vf_address(0)}));
    for (policy, text) in [
        (json!({"pfs": ["0000:99:00.0"]}), "PFs"),
        (json!({"pfs": []}), "PFs"),
        (json!({"rails": [1, 2]}), "rail"),
        (json!({"drivers": ["ice"]}), "mlx5_core"),
    ] {
        host.set_node(json!({ "policy": policy }));
        refused(&host, &pod, &by_id, 7, text);
    }
    host.set_node(json!({"policy": {"vfKeys": ["vlan"]}}));
    refused(
        &host,
        &pod,
        &with(by_id, json!({"trust": "on"})),
        7,
        "policy",
    );
    host.add_rail(1);
    host.set_node(json!({"policy": {"vfsOnly": true}}));
    refused(
        &host,
        &pod,
        &with(rail(0), json!({"device": "vf1"})),
        7,
        "VF",
    );
    for policy in [
        json!({"pfs": [pf_address(0)], "rails": [0], "drivers": ["mlx5_core"], "vfsOnly": true}),
        json!({"pfs": ["pf0"]}),
        json!({}),
    ] {
        host.set_node(json!({ "policy": policy }));
        taken(&host, &pod, &json!({"deviceID": vf_address(0)}));
    }
    // A policy with a spelling mistake is not one that allows everything.
    host.set_node(json!({"policy": {"pf": ["0000:99:00.0"]}}));
    refused(&host, &pod, &rail(0), 7, "pf");
}

/// A tenant must not take the node off the network.
#[test]
fn what_the_host_needs_is_refused() {
    let uses: [(&str, &[&str], &[&str]); 7] = [
        (
            "default route",
            &["link set vf0 up", "route add default dev vf0"],
            &[],
        ),
        (
            "address 192.0.2.1/24",
            &["addr add 192.0.2.1/24 dev vf0"],
            &[],
        ),
        ("address fd00::1/64", &["addr add fd00::1/64 dev vf0"], &[]),
        (
            "br0",
            &["link add br0 type bridge", "link set vf0 master br0"],
            &[],
        ),
        (
            "macvlan0",
            &["link add link vf0 name macvlan0 type macvlan"],
            &["macvlan0"],
        ),
        ("vf0.5", &[], &["vf0.5"]),
        (
            "bridge",
            &[
                "link add br1 type bridge",
                "link set vf0 name other",
                "link set br1 name vf0",
            ],
            &[],
        ),
    ];
    for (text, commands, uppers) in uses {
        let Some((host, pod)) = host("device::needed") else {
            return;
        };
        for command in commands {
            host.ip(command);
        }
        for upper in uppers {
            fs::create_dir_all(host.path(&format!("sys/class/net/vf0/upper_{upper}"))).unwrap();
        }
        refused(&host, &pod, &rail(0), 7, text);
    }
    let Some((host, pod)) = host("device::lo") else {
        return;
    };
    refused(
        &host,
        &pod,
        &with(rail(0), json!({"device": "lo"})),
        7,
        "loopback",
    );
    // IPv6 gives every link one that nobody needs.
    host.ip("link set vf0 up");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
}

/// The holder is named, and keeps it.
#[test]
fn a_device_that_is_attached_is_refused_with_its_holder() {
    let Some((host, pod)) = host("device::attached") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    let added = host.cni("ADD", "c1", &pod, &rail(0)).ok().json();
    let next = host.add_netns("next");
    let mac = added["interfaces"][0]["mac"].clone();
    for more in [
        json!({"device": "vf0"}),
        json!({"deviceID": vf_address(0)}),
        json!({ "hwaddr": mac }),
    ] {
        refused(
            &host,
            &next,
            &with(no_device(), more.clone()),
            11,
            "container c1",
        );
        refused(&host, &next, &with(no_device(), more), 11, "default/pod");
    }
    // The container is named again, with another interface.
    host.call("ADD", "c1", &pod)
        .ifname("net2")
        .run(&rail(0))
        .error(11);
    host.cni(
        "CHECK",
        "c1",
        &pod,
        &with(rail(0), json!({ "prevResult": added })),
    )
    .ok();
}

/// There is no netdev: nothing is moved, the address is leased and not applied.
#[test]
fn a_device_of_a_userspace_driver_stays_and_its_address_is_leased() {
    let Some((host, pod)) = host("device::vfio") else {
        return;
    };
    host.make_vf(0, "vfio-pci");
    let config = with(no_device(), json!({"deviceID": vf_address(0)}));
    let before = host.snapshot();
    let added = host.cni("ADD", "c1", &pod, &config).ok().json();
    assert_eq!(
        added["interfaces"],
        json!([{"name": "net1", "sandbox": pod, "pciID": vf_address(0)}])
    );
    assert_eq!(
        added["ips"],
        json!([{"address": "172.16.0.0/31", "gateway": "172.16.0.1", "interface": 0}])
    );
    assert_eq!(
        added.get("routes"),
        None,
        "only what was installed: {added}"
    );
    assert_eq!(host.snapshot()["links"], before["links"]);
    assert_eq!(
        host.json(Some(&pod), "link show").as_array().unwrap().len(),
        1
    );
    let checked = with(config.clone(), json!({ "prevResult": added }));
    host.cni("CHECK", "c1", &pod, &checked).ok();

    let next = host.add_netns("next");
    refused(&host, &next, &config, 11, "container c1");
    host.cni("CHECK", "c1", &pod, &checked).ok();
    for _ in 0..2 {
        host.cni("DEL", "c1", &pod, &config).ok();
        assert_eq!(host.snapshot(), before);
    }
    // A lost DEL.
    host.cni("ADD", "c1", &pod, &config).ok();
    host.delete_netns(&pod);
    host.cni("ADD", "c2", &next, &config).ok();
    host.cni("DEL", "c1", &pod, &config).ok();
    host.cni(
        "CHECK",
        "c2",
        &next,
        &with(
            config.clone(),
            json!({ "prevResult": host_result(&added, &next) }),
        ),
    )
    .ok();
    host.cni("DEL", "c2", &next, &config).ok();
    assert_eq!(host.snapshot(), before);
}

/// `result`, but of the sandbox `netns`.
fn host_result(result: &Value, netns: &Path) -> Value {
    let mut result = result.clone();
    result["interfaces"][0]["sandbox"] = json!(netns);
    result
}

/// tests/contract-items, items 55, 56: runtimeConfig over args.cni over CNI_ARGS over the
/// configuration.
#[test]
fn the_mac_of_the_highest_source_counts() {
    let Some((host, pod)) = host("device::mac") else {
        return;
    };
    let mac = |last: u8| format!("02:00:00:00:00:{last:02x}");
    let before = host.snapshot();
    let attach = |more: Value, args: &str| -> Ran {
        host.call("ADD", "c1", &pod)
            .var("CNI_ARGS", args)
            .run(&with(rail(0), more))
    };
    let all =
        json!({"runtimeConfig": {"mac": mac(1)}, "args": {"cni": {"mac": mac(2)}}, "mac": mac(4)});
    let below = |keys: &[&str]| {
        let mut config = all.clone();
        keys.iter().for_each(|key| config[*key] = json!(null));
        config
    };
    let args = format!("IgnoreUnknown=1;MAC={}", mac(3));
    for (config, args, last) in [
        (all.clone(), args.as_str(), 1),
        (below(&["runtimeConfig"]), &args, 2),
        (below(&["runtimeConfig", "args"]), &args, 3),
        (below(&["runtimeConfig", "args"]), "MAC=", 4),
    ] {
        let result = attach(config, args).ok().json();
        assert_eq!(result["interfaces"][0]["mac"], mac(last));
        assert_eq!(
            host.json(Some(&pod), "link show net1")[0]["address"],
            mac(last)
        );
        // tests/contract-items, items 79: DEL is not told.
        host.call("DEL", "c1", &pod)
            .without("CNI_ARGS")
            .run(&rail(0))
            .ok();
        assert_eq!(host.snapshot(), before);
    }
    // As netlink writes it (tests/contract-items, item 64).
    let result = attach(json!({"mac": "02-00-00-00-00-AB"}), "").ok().json();
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:ab");
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    for bad in [
        "nonsense",
        "01:00:5e:00:00:01",
        "00:00:00:00:00:00",
        "ff:ff:ff:ff:ff:ff",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02:03",
    ] {
        for config in [
            json!({"runtimeConfig": {"mac": bad}}),
            json!({"args": {"cni": {"mac": bad}}}),
            json!({ "mac": bad }),
        ] {
            let failed = attach(config.clone(), "");
            assert!(
                failed.error(7)["msg"].as_str().unwrap().contains("mac"),
                "{config} {failed:?}"
            );
        }
        attach(json!({}), &format!("MAC={bad}")).error(7);
    }
    attach(json!({"runtimeConfig": {"mac": 7}}), "").error(7);
    assert_eq!(host.snapshot(), before);
}

/// tests/contract-items, item 57.
#[test]
fn dns_of_the_configuration_counts_else_that_of_the_ipam() {
    let Some((host, pod)) = host("device::dns") else {
        return;
    };
    let theirs = json!({"nameservers": ["10.0.0.10"], "domain": "ipam.example"});
    let ours = json!({"search": ["rails.example"], "options": ["ndots:1"]});
    let answer = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}], "dns": theirs});
    host.add_plugin(
        "stand-in",
        &format!("[ $CNI_COMMAND = ADD ] && echo '{answer}'; exit 0"),
    );
    for (dns, expected) in [
        (json!(null), &theirs),
        (json!({}), &theirs),
        (
            json!({"nameservers": [], "search": null, "domain": ""}),
            &theirs,
        ),
        (ours.clone(), &ours),
    ] {
        let config = with(rail(0), json!({"ipam": {"type": "stand-in"}, "dns": dns}));
        assert_eq!(
            host.cni("ADD", "c1", &pod, &config).ok().json()["dns"],
            *expected,
            "{dns}"
        );
        host.cni("DEL", "c1", &pod, &config).ok();
    }
}

/// tests/contract-items, item 58.
#[test]
fn the_device_info_file_is_written_replaced_and_removed() {
    let Some((host, pod)) = host("device::info") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    fs::create_dir_all(host.path(&format!("sys/devices/{}/infiniband/mlx5_4", vf_address(0))))
        .unwrap();
    let file = host.path("devinfo/default-rail-0-c1_net1");
    let config = with(
        rail(0),
        json!({"runtimeConfig": {"CNIDeviceInfoFile": file}}),
    );
    let expected = json!({"type": "pci", "version": "1.1.0", "pci": {
        "pci-address": vf_address(0), "pf-pci-address": pf_address(0), "rdma-device": "mlx5_4",
    }, "rail-cni": {"containerID": "c1", "ifname": "net1"}});
    let before = host.snapshot();
    for stale in [None, Some("a stale one, of Multus"), Some("another")] {
        if let Some(text) = stale {
            fs::write(&file, text).unwrap();
        }
        host.cni("ADD", "c1", &pod, &config).ok();
        assert_eq!(
            serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).unwrap(),
            expected
        );
        assert_eq!(
            fs::read_dir(host.path("devinfo")).unwrap().count(),
            1,
            "nothing half-written"
        );
        // DEL is not told of it, Multus may have removed it.
        if stale.is_some() {
            fs::remove_file(&file).unwrap();
        }
        host.cni("DEL", "c1", &pod, &rail(0)).ok();
        assert!(!file.exists());
        assert_eq!(host.snapshot(), before);
    }
    for bad in [
        host.path("elsewhere"),
        host.path("devinfo/../elsewhere"),
        host.path("devinfo/sub/file"),
        "/etc/x".into(),
        "relative".into(),
        host.path("devinfo/.."),
    ] {
        refused(
            &host,
            &pod,
            &with(
                rail(0),
                json!({"runtimeConfig": {"CNIDeviceInfoFile": bad}}),
            ),
            7,
            "CNIDeviceInfoFile",
        );
        assert!(!host.path("elsewhere").exists());
    }
    refused(
        &host,
        &pod,
        &with(rail(0), json!({"runtimeConfig": {"CNIDeviceInfoFile": 7}})),
        7,
        "CNIDeviceInfoFile",
    );
    for name in ["x".repeat(241), "x".repeat(300), "a\nb".to_owned()] {
        let long = json!({"CNIDeviceInfoFile": host.path("devinfo").join(name)});
        refused(
            &host,
            &pod,
            &with(rail(0), json!({ "runtimeConfig": long })),
            7,
            "CNIDeviceInfoFile",
        );
    }
    // A link in its place is replaced, not followed.
    symlink(host.path("victim"), &file).unwrap();
    fs::write(host.path("victim"), "untouched").unwrap();
    host.cni("ADD", "c1", &pod, &config).ok();
    assert_eq!(
        fs::read_to_string(host.path("victim")).unwrap(),
        "untouched"
    );
    assert!(fs::symlink_metadata(&file).unwrap().is_file());
    // A link that was put there meanwhile stays.
    fs::remove_file(&file).unwrap();
    symlink(host.path("victim"), &file).unwrap();
    host.cni("DEL", "c1", &pod, &config).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "untouched");
    assert_eq!(host.snapshot(), before);
}

/// 0.1.0 took a name that no file can have, and could then neither end that pod nor start the next
/// one.
#[test]
fn a_record_with_an_impossible_device_info_file_ends() {
    let Some((host, pod)) = host("device::info_name") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    let file = host.path("devinfo/short");
    let config = with(
        rail(0),
        json!({"runtimeConfig": {"CNIDeviceInfoFile": file}}),
    );
    let before = host.snapshot();
    host.cni("ADD", "c1", &pod, &config).ok();
    let copy = host.path(&format!("run/locks/device-{}", vf_address(0)));
    for path in host.records().into_iter().chain([copy]) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("devinfo/short"), "{text}");
        fs::write(
            &path,
            text.replace("devinfo/short", &format!("devinfo/{}", "x".repeat(300))),
        )
        .unwrap();
    }
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    assert_eq!(host.snapshot(), before);
}

/// Multus copies it there; programs in the pod read it for OVS and vhost-net.
#[test]
fn what_the_device_plugin_said_of_the_device_is_kept() {
    let Some((host, pod)) = host("device::info_merged") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    let file = host.path("devinfo/one");
    fs::create_dir_all(host.path("devinfo")).unwrap();
    let config = with(
        rail(0),
        json!({"runtimeConfig": {"CNIDeviceInfoFile": file}}),
    );
    let pci = |id: &str| {
        json!({"pci-address": id, "representor-device": "eth7", "vhost-net": "/dev/vhost-net",
            "rdma-device": "mlx5_9"})
    };
    let info = json!({"type": "pci", "version": "1.1.0", "pci": pci(&vf_address(0))});
    fs::write(&file, info.to_string()).unwrap();
    host.cni("ADD", "c1", &pod, &config).ok();
    let now: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    // The pod sees no RDMA device.
    let expected = json!({"pci-address": vf_address(0), "pf-pci-address": pf_address(0),
        "representor-device": "eth7", "vhost-net": "/dev/vhost-net"});
    assert_eq!(now["pci"], expected);
    host.cni("DEL", "c1", &pod, &config).ok();
    assert!(!file.exists());
}

/// After a forced delete, the kubelet gives the VF to the next pod while the runtime still stops
/// the last one.
#[test]
fn a_device_of_a_pod_that_is_ending_is_waited_for() {
    let Some((host, pod)) = host("device::ending") else {
        return;
    };
    let next = host.add_netns("next");
    let before = host.snapshot();
    // Its device is free some time before its address.
    let ipam = RAIL_IPAM;
    host.add_plugin(
        "stand-in",
        &format!("test $CNI_COMMAND = DEL && sleep 0.5; exec {ipam}"),
    );
    let rail = |number| {
        with(
            rail(number),
            json!({"ipam": {"type": "stand-in", "pool": "rail-0"}}),
        )
    };
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    let locks = host.path("run/locks");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Not before the next ADD has begun.
            let has_begun = || {
                fs::read_dir(&locks)
                    .unwrap()
                    .flatten()
                    .any(|lock| lock.file_name().to_string_lossy().contains("c2"))
            };
            while !has_begun() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(100));
            host.cni("DEL", "c1", &pod, &rail(0)).ok();
        });
        host.cni("ADD", "c2", &next, &rail(0)).ok();
    });
    host.cni("DEL", "c2", &next, &rail(0)).ok();
    assert_eq!(host.snapshot(), before);
}

/// Multus puts the device plugin's file there before ADD, and takes it away with DEL: a file that
/// is there says nothing, only what is in it does.
#[test]
fn a_device_info_file_of_another_pod_is_neither_overwritten_nor_removed() {
    let Some((host, pod)) = host("device::info_owner") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    host.add_rail(1);
    host.make_vf(1, "mlx5_core");
    let file = host.path("devinfo/one");
    let info = |at: u8| {
        with(
            rail(at),
            json!({"runtimeConfig": {"CNIDeviceInfoFile": file}}),
        )
    };

    // The device plugin's own, of this device, is ours to replace.
    fs::create_dir_all(host.path("devinfo")).unwrap();
    let unowned =
        |at: u8| json!({"type": "pci", "version": "1.1.0", "pci": {"pci-address": vf_address(at)}});
    fs::write(&file, unowned(0).to_string()).unwrap();
    host.cni("ADD", "c1", &pod, &info(0)).ok();
    let first = fs::read_to_string(&file).unwrap();
    assert!(first.contains("\"containerID\":\"c1\""), "{first}");

    // The second interface, and another pod.
    let attached = host.snapshot();
    let other = host.add_netns("other");
    let refused = |call: Call| {
        let error = call.run(&info(1)).error(7);
        assert!(
            error["msg"]
                .as_str()
                .unwrap()
                .contains("net1 of container c1"),
            "{error}"
        );
        assert_eq!(host.snapshot(), attached);
        assert_eq!(fs::read_to_string(&file).unwrap(), first);
    };
    refused(host.call("ADD", "c1", &pod).ifname("net2"));
    refused(host.call("ADD", "c2", &other));
    host.call("DEL", "c2", &other).run(&info(1)).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), first);

    // Somebody has written another's there while the pod ran: DEL ends the pod, and leaves it.
    host.cni("ADD", "c9", &other, &rail(1)).ok();
    let with_other = host.snapshot();
    let before = {
        host.cni("DEL", "c1", &pod, &info(0)).ok();
        host.snapshot()
    };
    host.cni("ADD", "c1", &pod, &info(0)).ok();
    assert_eq!(host.snapshot()["records"], with_other["records"]);
    let of_another_type =
        json!({"type": "vhost-user", "version": "1.1.0", "vhost-user": {"path": "/p"}}).to_string();
    for others in [
        first.replace("\"c1\"", "\"c9\""),
        unowned(1).to_string(),
        of_another_type,
    ] {
        fs::write(&file, &others).unwrap();
        host.cni("DEL", "c1", &pod, &info(0)).ok();
        assert_eq!(host.snapshot(), before);
        assert_eq!(fs::read_to_string(&file).unwrap(), others);
        host.cni("ADD", "c1", &pod, &info(0)).error(7);
        assert_eq!(host.snapshot(), before);
        fs::remove_file(&file).unwrap();
        host.cni("ADD", "c1", &pod, &info(0)).ok();
    }
    host.cni("DEL", "c1", &pod, &info(0)).ok();
    assert!(!file.exists());

    // One whose owner is not on record any more is stale.
    host.cni("DEL", "c9", &other, &rail(1)).ok();
    fs::write(&file, first.replace("\"c1\"", "\"c9\"")).unwrap();
    host.cni("ADD", "c1", &pod, &info(0)).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), first);
    host.cni("DEL", "c1", &pod, &info(0)).ok();
    assert!(!file.exists());
}

/// host-device and sriov-cni have no such key: the next pod inherits whatever there was
/// (sriov-cni#123).
#[test]
fn the_mtu_is_checked_applied_told_and_restored() {
    let Some((host, pod)) = host("device::mtu") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    host.ip("link add pf0 type veth peer name pf0-peer");
    host.ip("link set pf0 mtu 9000");
    let before = host.snapshot();
    for mtu in [1280, 9000] {
        let result = taken(&host, &pod, &json!({"device": "vf0", "mtu": mtu}));
        assert_eq!(result["interfaces"][0]["mtu"], mtu);
    }
    for none in [json!(null), json!(0)] {
        assert_eq!(
            taken(&host, &pod, &json!({"device": "vf0", "mtu": none}))["interfaces"][0]["mtu"],
            1500
        );
    }
    host.ip("link set pf0 mtu 4096");
    refused(&host, &pod, &rail(0), 7, "4096");
    host.ip("link set pf0 mtu 9000");
    assert_eq!(host.snapshot(), before);
}
