//! The main job: a device becomes an interface of a pod, and everything goes back.

use serde_json::json;

use crate::harness::{Host, pf_address, rail, vf_address, with};

#[test]
fn a_rail_has_its_address_mtu_and_routes_and_goes_back_as_it_was() {
    let Some(host) = Host::new("attach::a_rail") else {
        return;
    };
    host.add_rail(0);
    host.ip("link property add dev vf0 altname enp1s0v0");
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    let config = host.with_static(
        with(rail(0), json!({"routes": [{"dst": "172.16.0.0/12"}]})),
        "172.16.0.0/31",
        "172.16.0.1",
    );
    let added = host.cni("ADD", "c1", &pod, &config).ok().json();
    assert_eq!(added["ips"][0]["address"], "172.16.0.0/31");
    let ping = host.run_in(&pod, "ping -c1 -W2 -M do -s 8972 172.16.0.1");
    assert_eq!(ping.status, 0, "{ping:?}");
    host.cni(
        "CHECK",
        "c1",
        &pod,
        &with(config.clone(), json!({"prevResult": added})),
    )
    .ok();
    host.cni("DEL", "c1", &pod, &config).ok();
    assert_eq!(host.snapshot(), before);
}

/// A macvlan keeps its lower device over namespaces: left in a living pod, it would hold the rail
/// from there.
#[test]
fn what_the_pod_stacked_on_the_rail_does_not_hold_it() {
    let Some(host) = Host::new("attach::stacked") else {
        return;
    };
    host.add_rail(0);
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.ip_in(&pod, "link add link net1 name sub type macvlan");
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    // The kernel refuses both to a device that somebody has a macvlan on.
    host.ip("link add br0 type bridge");
    host.ip("link set vf0 master br0");
}

/// A wrong key of node.json keeps no DEL from its work, but for the one that says where our state
/// is.
#[test]
fn a_del_does_without_any_key_of_node_json_but_the_run_folder() {
    let Some(host) = Host::new("attach::node") else {
        return;
    };
    host.add_rail(0);
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    let attached = host.snapshot();
    host.set_node(json!({"runDir": "run"}));
    host.cni("DEL", "c1", &pod, &rail(0)).error(7);
    assert_eq!(host.snapshot(), attached);
    host.set_node(json!({"storeDir": 1, "rails": "x", "log": {"level": "x"}, "typo": {}}));
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    assert_eq!(host.snapshot(), before);
}

/// Without its PF nothing of a VF could be set back.
#[test]
fn a_pf_is_not_attached_while_a_pod_has_its_vf() {
    let Some(host) = Host::new("attach::pf") else {
        return;
    };
    host.add_rail(0);
    host.make_vf(0, "mlx5_core");
    host.set_node(json!({"policy": {"pfsWithVfs": true}}));
    host.ip("link add pf0 type veth peer name pf0-peer");
    host.ip("link set pf0 mtu 9000");
    let before = host.snapshot();
    let (one, other) = (host.add_netns("one"), host.add_netns("other"));
    let config = |id: String| with(rail(0), json!({"device": "", "deviceID": id, "ipam": {}}));
    let (vf, pf) = (config(vf_address(0)), config(pf_address(0)));
    host.cni("ADD", "c1", &one, &vf).ok();
    let msg = host.cni("ADD", "c2", &other, &pf).error(11)["msg"].to_string();
    assert!(msg.contains(&vf_address(0)) && msg.contains("c1"), "{msg}");
    host.cni("DEL", "c1", &one, &vf).ok();
    host.cni("ADD", "c2", &other, &pf).ok();
    host.cni("DEL", "c2", &other, &pf).ok();
    assert_eq!(host.snapshot(), before);
}
