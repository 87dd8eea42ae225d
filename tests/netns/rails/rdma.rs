//! The RDMA device for a rail's programs: its GID, its name. In a sysfs of files, as the shared
//! mode has them; devices that move are in tests/lab.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::device::{host, refused};
use crate::harness::{Host, rail, vf_address, with};

/// rail 0, whose VF has the RDMA device mlx5_4.
fn with_rdma(test: &str) -> Option<(Host, PathBuf)> {
    let (host, pod) = host(test)?;
    host.make_vf(0, "mlx5_core");
    let device = host.path(&format!("sys/devices/{}/infiniband/mlx5_4", vf_address(0)));
    for folder in [
        "ports/1/gids",
        "ports/1/gid_attrs/types",
        "ports/1/gid_attrs/ndevs",
    ] {
        fs::create_dir_all(device.join(folder)).unwrap();
    }
    fs::write(device.join("node_type"), "1: CA\n").unwrap();
    fs::write(device.join("ports/1/link_layer"), "Ethernet\n").unwrap();
    Some((host, pod))
}

/// An entry of the table of mlx5_4, for 172.16.0.0.
fn put(host: &Host, index: u32, kind: &str, netdev: &str) {
    put_in(
        &host.path(&format!(
            "sys/devices/{}/infiniband/mlx5_4/ports/1",
            vf_address(0)
        )),
        index,
        kind,
        netdev,
    );
}

fn put_in(port: &Path, index: u32, kind: &str, netdev: &str) {
    fs::write(
        port.join(format!("gid_attrs/types/{index}")),
        format!("{kind}\n"),
    )
    .unwrap();
    fs::write(
        port.join(format!("gid_attrs/ndevs/{index}")),
        format!("{netdev}\n"),
    )
    .unwrap();
    // Last: it is what is looked for.
    fs::write(
        port.join(format!("gids/{index}")),
        "0000:0000:0000:0000:0000:ffff:ac10:0000\n",
    )
    .unwrap();
}

fn remove(host: &Host, index: u32) {
    let port = host.path(&format!(
        "sys/devices/{}/infiniband/mlx5_4/ports/1",
        vf_address(0)
    ));
    for folder in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
        fs::remove_file(port.join(folder).join(index.to_string())).unwrap();
    }
}

fn gids(host: &Host) -> Value {
    let status = host
        .call("", "", &host.path(""))
        .args(&["status", "--output", "json"])
        .run(&json!({}))
        .json();
    status["attachments"][0]["gids"].clone()
}

/// Entries of version 1, of another netdev or of another address are not it.
#[test]
fn the_gid_is_that_of_the_address_of_version_2_on_the_rail() {
    let Some((host, pod)) = with_rdma("rdma::gid") else {
        return;
    };
    put(&host, 1, "IB/RoCE v1", "net1");
    put(&host, 2, "RoCE v2", "net1.100");
    put(&host, 3, "RoCE v2", "net1");
    let info = host.path("devinfo/info");
    let config = with(
        rail(0),
        json!({"gid": "require", "runtimeConfig": {"CNIDeviceInfoFile": info}}),
    );
    let before = host.snapshot();
    let result = host.cni("ADD", "c1", &pod, &config).ok().json();
    let expected = json!([{"device": "mlx5_4", "port": 1, "index": 3, "address": "172.16.0.0"}]);
    let told: Value = serde_json::from_slice(&fs::read(&info).unwrap()).unwrap();
    assert_eq!(told["rail-cni"]["gids"], expected);
    assert_eq!(gids(&host), expected);
    let check = with(config.clone(), json!({ "prevResult": result }));
    host.cni("CHECK", "c1", &pod, &check).ok();
    remove(&host, 3);
    put(&host, 5, "RoCE v2", "net1");
    let moved = host.cni("CHECK", "c1", &pod, &check).error(100);
    assert!(
        moved["msg"].as_str().unwrap().contains("index 5"),
        "{moved}"
    );
    remove(&host, 5);
    let gone = host.cni("CHECK", "c1", &pod, &check).error(100);
    assert!(
        gone["msg"].as_str().unwrap().contains("172.16.0.0 on net1"),
        "{gone}"
    );
    host.cni("DEL", "c1", &pod, &config).ok();
    assert_eq!(host.snapshot(), before);
}

/// The entry comes while ADD waits.
#[test]
fn a_gid_that_comes_late_is_waited_for() {
    let Some((host, pod)) = with_rdma("rdma::late") else {
        return;
    };
    let config = with(rail(0), json!({"gid": "require", "gidTimeout": "30s"}));
    let port = host.path(&format!(
        "sys/devices/{}/infiniband/mlx5_4/ports/1",
        vf_address(0)
    ));
    let records = host.path("run/attachments");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Not before ADD has begun.
            while fs::read_dir(&records).map_or(0, Iterator::count) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            put_in(&port, 3, "RoCE v2", "net1");
        });
        host.cni("ADD", "c1", &pod, &config).ok();
    });
    assert_eq!(gids(&host)[0]["index"], 3);
}

#[test]
fn a_gid_that_does_not_come_fails_the_pod_only_where_it_is_required() {
    let Some((host, pod)) = with_rdma("rdma::silent") else {
        return;
    };
    let config = |mode: &str| with(rail(0), json!({"gid": mode, "gidTimeout": "1ms"}));
    refused(
        &host,
        &pod,
        &config("require"),
        102,
        "RoCE v2 …172.16.0.0 …1ms",
    );
    for (mode, is_told) in [("warn", true), ("off", false)] {
        let before = host.snapshot();
        let added = host.cni("ADD", "c1", &pod, &config(mode)).ok();
        assert_eq!(
            added.stderr.contains("RoCE v2"),
            is_told,
            "{mode}: {added:?}"
        );
        let check = with(config(mode), json!({ "prevResult": added.json() }));
        host.cni("CHECK", "c1", &pod, &check).ok();
        host.cni("DEL", "c1", &pod, &config(mode)).ok();
        assert_eq!(host.snapshot(), before);
    }
}

/// As with drivers that end it when the netdev leaves the host, or that start anew.
#[test]
fn an_rdma_device_that_goes_during_add_fails_the_pod_where_a_gid_is_required() {
    let Some((host, pod)) = with_rdma("rdma::goes") else {
        return;
    };
    let devices = host.path(&format!("sys/devices/{}/infiniband", vf_address(0)));
    let hidden = host.path("hidden");
    host.add_plugin(
        "stand-in",
        &format!(
            "[ $CNI_COMMAND != ADD ] || {{ mv {} {}; \
             echo '{{\"cniVersion\":\"1.0.0\",\"ips\":[{{\"address\":\"172.16.0.0/31\"}}]}}'; }}",
            devices.display(),
            hidden.display()
        ),
    );
    let config = |mode: &str| {
        with(
            rail(0),
            json!({"gid": mode, "gidTimeout": "1ms", "ipam": {"type": "stand-in"}}),
        )
    };
    refused(
        &host,
        &pod,
        &config("require"),
        102,
        "RDMA device of net1 …is gone",
    );
    fs::rename(&hidden, &devices).unwrap();
    let added = host.cni("ADD", "c1", &pod, &config("warn")).ok();
    assert!(added.stderr.contains("is gone"), "{added:?}");
    host.cni("DEL", "c1", &pod, &config("warn")).ok();
}

/// InfiniBand and iWARP have no such GIDs, and a VF may have no RDMA device.
#[test]
fn a_device_without_roce_is_not_waited_for() {
    let Some((host, pod)) = with_rdma("rdma::none") else {
        return;
    };
    let device = host.path(&format!("sys/devices/{}/infiniband/mlx5_4", vf_address(0)));
    let config = with(rail(0), json!({"gid": "warn", "gidTimeout": "30s"}));
    for (file, text) in [
        ("ports/1/link_layer", "InfiniBand\n"),
        ("node_type", "4: RNIC\n"),
    ] {
        let was = fs::read(device.join(file)).unwrap();
        fs::write(device.join(file), text).unwrap();
        let added = host.cni("ADD", "c1", &pod, &config).ok();
        assert!(!added.stderr.contains("GID"), "{text}: {added:?}");
        host.cni("DEL", "c1", &pod, &config).ok();
        fs::write(device.join(file), was).unwrap();
    }
    fs::remove_dir_all(&device).unwrap();
    host.cni("ADD", "c1", &pod, &config).ok();
    host.cni("DEL", "c1", &pod, &config).ok();
    refused(
        &host,
        &pod,
        &with(rail(0), json!({"gid": "require"})),
        2,
        "RDMA",
    );
}

#[test]
fn a_name_needs_a_device_and_must_be_one() {
    let Some((host, pod)) = host("rdma::name") else {
        return;
    };
    let named = |name: Value| with(rail(0), json!({ "rdmaDeviceName": name }));
    refused(
        &host,
        &pod,
        &named(json!("rdma_rail-0")),
        2,
        "rdmaDeviceName",
    );
    for name in ["../x", "..", ".x", "-x", "a b", "a/b", "é", &"x".repeat(64)] {
        refused(&host, &pod, &named(json!(name)), 7, "rdmaDeviceName");
    }
    refused(&host, &pod, &named(json!(7)), 7, "rdmaDeviceName");
    refused(
        &host,
        &pod,
        &with(named(json!("x")), json!({"rdma": "off"})),
        7,
        "rdmaDeviceName",
    );
    host.set_node(json!({"policy": {"vfKeys": ["vlan"]}}));
    refused(
        &host,
        &pod,
        &named(json!("rdma_rail-0")),
        7,
        "rdmaDeviceName…policy",
    );
}

/// Its files with the default ToS and with the traffic class, for two ports each.
fn with_qos(host: &Host) -> [PathBuf; 4] {
    let device = host.path(&format!("sys/devices/{}/infiniband/mlx5_4", vf_address(0)));
    let files = ["1", "2"].map(|port| {
        let tos = host.path(&format!(
            "sys/kernel/config/rdma_cm/mlx5_4/ports/{port}/default_roce_tos"
        ));
        [tos, device.join(format!("tc/{port}/traffic_class"))]
    });
    let [[tos, tc], [tos2, tc2]] = files;
    for (file, text) in [
        (&tos, "0\n"),
        (&tos2, "104\n"),
        (&tc, "Global tclass=106\ntclass=8,src_ip=10.0.0.1\n"),
        (&tc2, ""),
    ] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    [tos, tos2, tc, tc2]
}

/// The kernel has one line; a file keeps what was behind it.
fn first_line(file: &Path) -> String {
    fs::read_to_string(file)
        .unwrap()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn contents(files: &[PathBuf; 4]) -> [String; 4] {
    files.each_ref().map(|file| first_line(file))
}

/// NVIDIA's spectrum-x-operator writes these values.
#[test]
fn tos_and_traffic_class_are_set_checked_and_restored_on_all_ports() {
    let Some((host, pod)) = with_rdma("rdma::qos") else {
        return;
    };
    let files = with_qos(&host);
    let config = with(
        rail(0),
        json!({"gid": "off", "rdmaQoS": {"tos": 96, "tc": 96}}),
    );
    let driver = host.path("sys/bus/pci/drivers/mlx5_core");
    let function = host.path(&format!("sys/devices/{}", vf_address(0)));
    let written = [
        driver.join("unbind"),
        driver.join("bind"),
        function.join("reset"),
        function.join("reset_method"),
    ];
    written
        .iter()
        .for_each(|file| fs::write(file, "flr").unwrap());
    for way in ["del", "reset", "reap"] {
        // Its driver is bound again when the pod ends, and not before.
        let more = if way == "reset" {
            json!({"resetOnDel": "flr"})
        } else {
            json!({})
        };
        let config = with(config.clone(), more);
        let result = host.cni("ADD", "c1", &pod, &config).ok().json();
        assert_eq!(contents(&files), ["96"; 4]);
        let check = with(config.clone(), json!({ "prevResult": result }));
        host.cni("CHECK", "c1", &pod, &check).ok();
        fs::write(&files[1], "0\n").unwrap();
        fs::write(&files[2], "Global tclass=12\n").unwrap();
        let other = host.cni("CHECK", "c1", &pod, &check).error(100);
        for part in ["port 2 of mlx5_4 …ToS 0 …96", "port 1 of mlx5_4 …12 …96"] {
            assert!(golden::has(other["msg"].as_str().unwrap(), part), "{other}");
        }
        if way != "reap" {
            host.cni("DEL", "c1", &pod, &config).ok();
        } else {
            // The veth that plays the VF ends with it.
            host.delete_netns(&pod);
            host.call("", "", &host.path(""))
                .args(&["reap"])
                .run(&json!({}))
                .ok();
        }
        assert_eq!(contents(&files), ["0", "104", "106", "-1"], "{way}");
    }
}

/// Values that a killed ADD, or the pod's end, left are not the original ones.
#[test]
fn an_add_that_fails_restores_tos_and_traffic_class() {
    let Some((host, pod)) = with_rdma("rdma::undone") else {
        return;
    };
    let files = with_qos(&host);
    let config = with(
        rail(0),
        json!({"rdmaQoS": {"tos": 96, "tc": 96}, "gid": "require", "gidTimeout": "1ms"}),
    );
    refused(&host, &pod, &config, 102, "RoCE v2");
    assert_eq!(contents(&files), ["0", "104", "106", "-1"]);
}

/// The kernel of the node, or the driver, may have no such setting.
#[test]
fn what_the_node_cannot_set_is_warned_of_or_refused_as_asked() {
    let Some((host, pod)) = with_rdma("rdma::missing") else {
        return;
    };
    let config = |qos: Value| with(rail(0), json!({"gid": "off", "rdmaQoS": qos}));
    let files = with_qos(&host);
    fs::remove_dir_all(host.path(&format!(
        "sys/devices/{}/infiniband/mlx5_4/tc",
        vf_address(0)
    )))
    .unwrap();
    let added = host
        .cni("ADD", "c1", &pod, &config(json!({"tos": 96, "tc": 96})))
        .ok();
    assert!(added.stderr.contains("rdmaQoS.tc "), "{added:?}");
    assert_eq!(first_line(&files[0]), "96");
    host.cni("DEL", "c1", &pod, &config(json!({"tos": 96, "tc": 96})))
        .ok();
    assert_eq!(first_line(&files[0]), "0");
    refused(
        &host,
        &pod,
        &config(json!({"tos": 96, "tc": 96, "onMissing": "require"})),
        2,
        "rdmaQoS.tc",
    );
    assert_eq!(first_line(&files[0]), "0");

    // A group of a device that the RDMA CM does not serve has no ports.
    fs::remove_dir_all(host.path("sys/kernel/config/rdma_cm/mlx5_4")).unwrap();
    let added = host
        .cni("ADD", "c1", &pod, &config(json!({"tos": 96})))
        .ok();
    assert!(added.stderr.contains("mlx5_4"), "{added:?}");
    host.cni("DEL", "c1", &pod, &config(json!({"tos": 96})))
        .ok();
    refused(
        &host,
        &pod,
        &config(json!({"tos": 96, "onMissing": "require"})),
        2,
        "mlx5_4",
    );
    assert!(!host.path("sys/kernel/config/rdma_cm/mlx5_4").exists());
    fs::remove_dir_all(host.path("sys/kernel")).unwrap();
    let added = host
        .cni("ADD", "c1", &pod, &config(json!({"tos": 96})))
        .ok();
    assert!(added.stderr.contains("configfs"), "{added:?}");
    host.cni("DEL", "c1", &pod, &config(json!({"tos": 96})))
        .ok();
    refused(
        &host,
        &pod,
        &config(json!({"tos": 96, "onMissing": "require"})),
        2,
        "rdmaQoS.tos: configfs",
    );
}

#[test]
fn tos_and_traffic_class_need_one_device_with_roce_and_a_value() {
    let Some((host, pod)) = with_rdma("rdma::wrong") else {
        return;
    };
    with_qos(&host);
    let config = |qos: Value| with(rail(0), json!({"gid": "off", "rdmaQoS": qos}));
    for (qos, part) in [
        (json!({"tos": 256}), "rdmaQoS.tos: 256 …0 to 255"),
        (json!({"tos": -1}), "rdmaQoS.tos"),
        (json!({"tc": "96"}), "rdmaQoS.tc"),
        (json!({"tc": 99}), "rdmaQoS.tc: 99 …ECN"),
        (json!({"tos": 96, "onMissing": "off"}), "rdmaQoS.onMissing"),
        (json!(96), "rdmaQoS"),
    ] {
        refused(&host, &pod, &config(qos), 7, part);
    }
    refused(
        &host,
        &pod,
        &with(config(json!({"tos": 96})), json!({"rdma": "off"})),
        7,
        "rdmaQoS",
    );
    for (qos, is_set) in [
        (json!({}), false),
        (json!({"tos": 0, "tc": 0}), false),
        (json!({"tos": 98}), true),
    ] {
        host.set_node(json!({"policy": {"vfKeys": ["vlan"]}}));
        if is_set {
            refused(&host, &pod, &config(qos), 7, "rdmaQoS: …policy");
        } else {
            host.cni("ADD", "c1", &pod, &config(qos.clone())).ok();
            host.cni("DEL", "c1", &pod, &config(qos)).ok();
        }
    }
    host.set_node(json!({"policy": {}}));
    let device = host.path(&format!("sys/devices/{}/infiniband", vf_address(0)));
    fs::create_dir_all(device.join("mlx5_5")).unwrap();
    refused(
        &host,
        &pod,
        &config(json!({"tos": 96})),
        2,
        "rdmaQoS: VF 0000:",
    );
    fs::remove_dir_all(device.join("mlx5_5")).unwrap();
    fs::write(device.join("mlx5_4/ports/1/link_layer"), "InfiniBand\n").unwrap();
    refused(&host, &pod, &config(json!({"tos": 96})), 2, "RoCE");
    fs::remove_dir_all(&device).unwrap();
    refused(&host, &pod, &config(json!({"tos": 96})), 2, "rdmaQoS");
}

/// Mode `rdma`: another plugin has the netdev. What is behind the interface is in tests/lab.
#[test]
fn the_mode_for_the_rdma_device_alone_touches_no_netdev() {
    let Some((host, pod)) = with_rdma("rdma::chained") else {
        return;
    };
    with_qos(&host);
    let sandbox = pod.to_str().unwrap();
    let previous = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": sandbox}], "ips": []});
    let config = json!({"cniVersion": "1.1.0", "name": "rail-0", "type": "rail-cni", "mode": "rdma",
        "deviceID": vf_address(0), "rdmaQoS": {"tos": 96, "tc": 96}});
    refused(&host, &pod, &config, 7, "prevResult");
    let config = with(config, json!({ "prevResult": previous }));
    refused(&host, &pod, &config, 7, "net1 ");
    host.ip_in(&pod, "link add net1 type veth peer name other");
    for config in [
        config.clone(),
        with(config.clone(), json!({"type": "rdma", "mode": ""})),
    ] {
        refused(&host, &pod, &config, 7, "net1 ");
        // A DEL of what was never added takes nothing home.
        host.cni("DEL", "c1", &pod, &config).ok();
        host.ip_in(&pod, "link show net1");
    }
    for (key, value) in [
        ("mtu", json!(9000)),
        ("vlan", json!(5)),
        ("mac", json!("02:00:00:00:00:01")),
        ("ipam", json!({"type": "rail-ipam"})),
        ("routes", json!([{"dst": "10.0.0.0/8"}])),
        ("trust", json!("on")),
        ("device", json!("vf0")),
        ("gatewayProbe", json!("warn")),
        ("resetOnDel", json!("flr")),
    ] {
        refused(
            &host,
            &pod,
            &with(config.clone(), json!({ key: value })),
            7,
            &format!("{key}: …rdma"),
        );
    }
    refused(
        &host,
        &pod,
        &with(config, json!({"mode": "netdev"})),
        7,
        "mode",
    );
    // A rail of rail-cni has it all in one.
    host.ip_in(&pod, "link del net1");
    let whole = with(rail(0), json!({"gid": "off"}));
    let result = host.cni("ADD", "c1", &pod, &whole).ok().json();
    let behind = json!({"cniVersion": "1.1.0", "name": "rail-0", "type": "rdma", "deviceID": vf_address(0), "prevResult": result});
    let error = host.cni("ADD", "c1", &pod, &behind).error(7);
    assert!(
        error["msg"].as_str().unwrap().contains("rail-cni"),
        "{error}"
    );
    host.cni("DEL", "c1", &pod, &behind).ok();
    host.ip_in(&pod, "link show net1");
    host.cni("DEL", "c1", &pod, &whole).ok();
}
