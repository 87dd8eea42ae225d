//! What a rail's programs need of its RDMA device: its GID, its name. In a sysfs of files, as the shared mode has them;
//! devices that move are in tests/lab.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::device::{host, refused};
use crate::harness::{Host, rail, vf_address, with};

/// rail 0, whose VF has the RDMA device mlx5_4.
fn with_rdma(test: &str) -> Option<(Host, PathBuf)> {
    let (host, pod) = host(test)?;
    host.make_vf(0, "mlx5_core");
    let device = host.path(&format!("sys/devices/{}/infiniband/mlx5_4", vf_address(0)));
    for folder in ["ports/1/gids", "ports/1/gid_attrs/types", "ports/1/gid_attrs/ndevs"] {
        fs::create_dir_all(device.join(folder)).unwrap();
    }
    fs::write(device.join("node_type"), "1: CA\n").unwrap();
    fs::write(device.join("ports/1/link_layer"), "Ethernet\n").unwrap();
    Some((host, pod))
}

/// An entry of the table of mlx5_4, for 172.16.0.0.
fn put(host: &Host, index: u32, kind: &str, netdev: &str) {
    put_in(
        &host.path(&format!("sys/devices/{}/infiniband/mlx5_4/ports/1", vf_address(0))),
        index,
        kind,
        netdev,
    );
}

fn put_in(port: &std::path::Path, index: u32, kind: &str, netdev: &str) {
    fs::write(port.join(format!("gid_attrs/types/{index}")), format!("{kind}\n")).unwrap();
    fs::write(port.join(format!("gid_attrs/ndevs/{index}")), format!("{netdev}\n")).unwrap();
    // Last: it is what is looked for.
    fs::write(port.join(format!("gids/{index}")), "0000:0000:0000:0000:0000:ffff:ac10:0000\n").unwrap();
}

fn remove(host: &Host, index: u32) {
    let port = host.path(&format!("sys/devices/{}/infiniband/mlx5_4/ports/1", vf_address(0)));
    for folder in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
        fs::remove_file(port.join(folder).join(index.to_string())).unwrap();
    }
}

fn gids(host: &Host) -> Value {
    let status =
        host.call("", "", &host.path("")).args(&["status", "--output", "json"]).run(&json!({})).json();
    status["attachments"][0]["gids"].clone()
}

/// Entries of version 1, of another netdev or of another address are not it.
#[test]
fn the_gid_is_that_of_the_address_of_version_2_on_the_rail() {
    let Some((host, pod)) = with_rdma("rdma::gid") else { return };
    put(&host, 1, "IB/RoCE v1", "net1");
    put(&host, 2, "RoCE v2", "net1.100");
    put(&host, 3, "RoCE v2", "net1");
    let info = host.path("devinfo/info");
    let config = with(rail(0), json!({"gid": "require", "runtimeConfig": {"CNIDeviceInfoFile": info}}));
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
    assert!(moved["msg"].as_str().unwrap().contains("has the index 5 of port 1, and had 3"), "{moved}");
    remove(&host, 5);
    let gone = host.cni("CHECK", "c1", &pod, &check).error(100);
    assert!(gone["msg"].as_str().unwrap().contains("has no RoCE v2 GID of 172.16.0.0 on net1"), "{gone}");
    host.cni("DEL", "c1", &pod, &config).ok();
    assert_eq!(host.snapshot(), before);
}

/// The entry comes while ADD waits.
#[test]
fn a_gid_that_comes_late_is_waited_for() {
    let Some((host, pod)) = with_rdma("rdma::late") else { return };
    let config = with(rail(0), json!({"gid": "require", "gidTimeout": "30s"}));
    let port = host.path(&format!("sys/devices/{}/infiniband/mlx5_4/ports/1", vf_address(0)));
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
    let Some((host, pod)) = with_rdma("rdma::silent") else { return };
    let config = |mode: &str| with(rail(0), json!({"gid": mode, "gidTimeout": "1ms"}));
    refused(&host, &pod, &config("require"), 102, "has no RoCE v2 GID of 172.16.0.0 within 1ms");
    for (mode, is_told) in [("warn", true), ("off", false)] {
        let before = host.snapshot();
        let added = host.cni("ADD", "c1", &pod, &config(mode)).ok();
        assert_eq!(added.stderr.contains("no RoCE v2 GID"), is_told, "{mode}: {added:?}");
        let check = with(config(mode), json!({ "prevResult": added.json() }));
        host.cni("CHECK", "c1", &pod, &check).ok();
        host.cni("DEL", "c1", &pod, &config(mode)).ok();
        assert_eq!(host.snapshot(), before);
    }
}

/// InfiniBand and iWARP have no such GIDs, and a VF may have no RDMA device.
#[test]
fn a_device_without_roce_is_not_waited_for() {
    let Some((host, pod)) = with_rdma("rdma::none") else { return };
    let device = host.path(&format!("sys/devices/{}/infiniband/mlx5_4", vf_address(0)));
    let config = with(rail(0), json!({"gid": "warn", "gidTimeout": "30s"}));
    for (file, text) in [("ports/1/link_layer", "InfiniBand\n"), ("node_type", "4: RNIC\n")] {
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
    refused(&host, &pod, &with(rail(0), json!({"gid": "require"})), 2, "gets no RDMA device");
}

#[test]
fn a_name_needs_a_device_and_must_be_one() {
    let Some((host, pod)) = host("rdma::name") else { return };
    let named = |name: Value| with(rail(0), json!({ "rdmaDeviceName": name }));
    refused(&host, &pod, &named(json!("rdma_rail-0")), 2, "has 0 RDMA devices");
    for name in ["../x", "..", ".x", "-x", "a b", "a/b", "é", &"x".repeat(64)] {
        refused(&host, &pod, &named(json!(name)), 7, "rdmaDeviceName");
    }
    refused(&host, &pod, &named(json!(7)), 7, "rdmaDeviceName");
    refused(&host, &pod, &with(named(json!("x")), json!({"rdma": "off"})), 7, "keeps its name");
    host.set_node(json!({"policy": {"vfKeys": ["vlan"]}}));
    refused(&host, &pod, &named(json!("rdma_rail-0")), 7, "this node's policy");
}
