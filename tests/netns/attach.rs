//! The main job: a device becomes an interface of a pod, and everything goes back.

use serde_json::json;

use crate::harness::{Host, rail, with, with_static};

#[test]
fn a_rail_has_its_address_mtu_and_routes_and_goes_back_as_it_was() {
    let Some(host) = Host::new("attach::a_rail") else { return };
    host.add_rail(0);
    host.ip("link property add dev vf0 altname enp1s0v0");
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    let config = with_static(
        with(rail(0), json!({"routes": [{"dst": "172.16.0.0/12"}]})),
        "172.16.0.0/31",
        "172.16.0.1",
    );
    let added = host.cni("ADD", "c1", &pod, &config).ok().json();
    assert_eq!(added["ips"][0]["address"], "172.16.0.0/31");
    let ping = host.run_in(&pod, "ping -c1 -W2 -M do -s 8972 172.16.0.1");
    assert_eq!(ping.status, 0, "{ping:?}");
    host.cni("CHECK", "c1", &pod, &with(config.clone(), json!({"prevResult": added}))).ok();
    host.cni("DEL", "c1", &pod, &config).ok();
    assert_eq!(host.snapshot(), before);
}
