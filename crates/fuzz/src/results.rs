//! Results: of this plugin's own ADD, and of any IPAM plugin.

use std::sync::LazyLock;

use rail_cni::attach::Attach;
use rail_cni::attach::inside::rail;
use rail_cni::cni::{
    AddResult, Args, Attachment, Network, Plugin as _, Strictness, VERSIONS, Version,
};
use rail_cni::netconf::{NetConf, Routing};
use rail_cni::node::Node;
use rail_netlink::Socket;
use serde_json::{Value, json};

use crate::input::{choice, line};
use crate::judge;

/// An unknown version, bad JSON, a bad value.
const REFUSED: [u32; 3] = [1, 6, 7];

/// A result is written and read again, in every version of the specification.
fn result(value: &Value, default: Version) -> Option<AddResult> {
    let read = match AddResult::parse(value, default) {
        Ok(read) => read,
        Err(error) => {
            judge::refused(&error, &REFUSED);
            return None;
        }
    };
    for version in VERSIONS {
        let written = match read.to_json(version) {
            Ok(written) => written,
            Err(error) => {
                assert!(version < Version::V030 && read.ips.is_empty());
                judge::refused(&error, &REFUSED);
                continue;
            }
        };
        assert_eq!(written["cniVersion"], version.as_str());
        let again = AddResult::parse(&written, Version::V010).expect("what was written is read");
        assert_eq!(
            again.to_json(version).expect("it was written before"),
            written
        );
        if version == Version::V110 {
            assert_eq!(again, read);
        }
    }
    let merged = read.clone().merged_with(read.clone());
    assert_eq!(merged.interfaces.len(), 2 * read.interfaces.len());
    let is_in = |result: &AddResult| {
        result.ips.iter().all(|ip| {
            ip.interface
                .is_none_or(|index| index < result.interfaces.len())
        })
    };
    assert_eq!(is_in(&read), is_in(&merged));
    Some(read)
}

/// The number of a version, and a result.
pub fn prev_result(data: &[u8]) {
    let (choices, text) = line(data);
    let version = VERSIONS[choice(choices, 0, VERSIONS.len())];
    let Ok(value) = serde_json::from_slice::<Value>(text) else {
        return;
    };
    result(&value, version);
    let config = json!({"cniVersion": version.as_str(), "name": "n", "type": "rail-cni", "prevResult": value});
    let read = |strictness| {
        let network = Network::parse(
            config.to_string().into_bytes(),
            Args::default(),
            Vec::new(),
            Attach::KEYS,
            strictness,
        );
        network.and_then(|network| network.previous())
    };
    match (read(Strictness::Strict), read(Strictness::Lenient)) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (Err(one), Err(other)) => {
            assert_eq!(one.to_string(), other.to_string());
            judge::refused(&one, &REFUSED);
        }
        (one, other) => panic!("{one:?} and {other:?}"),
    }
}

static CONF: LazyLock<NetConf> = LazyLock::new(|| {
    let config = json!({"cniVersion": "1.1.0", "name": "rail-3", "type": "rail-cni", "rail": 3,
        "deviceID": "0000:3b:00.2", "routes": [{"dst": "172.16.0.0/12"}, {"dst": "fd00::/16"}]});
    let text = config.to_string().into_bytes();
    let network = Network::parse(
        text,
        Args::default(),
        Vec::new(),
        Attach::KEYS,
        Strictness::Strict,
    );
    let attachment = Attachment {
        container_id: "c1".into(),
        ifname: "net1".into(),
    };
    NetConf::parse(&network.expect("a network"), &attachment, &Node::default())
        .expect("a configuration")
});

/// Choices: the version, the routing, whether the network has routes of its own. Then a result.
pub fn ipam_result(data: &[u8]) {
    let (choices, text) = line(data);
    let version = VERSIONS[choice(choices, 0, VERSIONS.len())];
    let Ok(value) = serde_json::from_slice::<Value>(text) else {
        return;
    };
    let Some(leased) = result(&value, version) else {
        return;
    };
    let mut conf = CONF.clone();
    if choice(choices, 1, 2) == 1 {
        conf.routing = Routing::DestinationBased;
    }
    if choice(choices, 2, 2) == 1 {
        conf.routes.clear();
    }
    // The rail has its own table, so nothing is asked.
    let mut nobody = Socket::over(netlink_sys::Socket::new(2).expect("a socket"));
    let applied = match rail::plan(&conf, &leased, conf.rail.map(u32::from), &mut nobody) {
        Ok(applied) => applied,
        Err(error) => return judge::refused(&error, &REFUSED),
    };
    assert_eq!(applied.addresses.len(), leased.ips.len());
    for address in &applied.addresses {
        let ip = address.addr();
        assert!(
            !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback(),
            "{address}"
        );
        assert!(address.prefix_len() > 0, "{address}");
    }
    for (index, route) in applied.routes.iter().enumerate() {
        assert!(
            route.dst.prefix_len() > 0 || route.table == 103,
            "a default route: {route}"
        );
        assert_eq!(route.dst, route.dst.trunc(), "the kernel refuses it");
        assert_ne!(route.table, 255, "{route}");
        assert!(
            route.table != 254 || route.metric != 0,
            "it would come before those of eth0: {route}"
        );
        let is_own = |gateway| {
            applied
                .addresses
                .iter()
                .any(|address| address.addr() == gateway)
        };
        assert!(
            !route.gateway.is_some_and(is_own),
            "a route to the pod itself: {route}"
        );
        assert!(
            !(route.dst.addr().is_ipv6() && route.gateway.is_some_and(|gateway| gateway.is_ipv4()))
        );
        assert!(
            !applied.routes[..index].contains(route),
            "the kernel refuses the second: {route}"
        );
    }
    for rule in &applied.rules {
        assert!(
            applied
                .addresses
                .iter()
                .any(|address| address.addr() == rule.from),
            "{rule}"
        );
        assert_eq!((rule.table, rule.priority), (103, 1003));
    }
}
