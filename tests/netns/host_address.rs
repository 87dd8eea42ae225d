//! `"source": "host"`: a device goes into the pod with the addresses that the host has on it, and
//! has them again afterwards.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{self, Host, rail, vf_address, with};

/// Rail 0 with the host's addresses.
pub fn config() -> Value {
    with(
        rail(0),
        json!({"ipam": {"type": "rail-ipam", "source": "host"}}),
    )
}

/// A host that has, on vf0, what netplan and an operator would set: addresses of both families,
/// routes in several tables with all kinds of attributes, a rule, permanent neighbours, sysctls.
fn host(test: &str) -> Option<(Host, PathBuf)> {
    let host = Host::new(test)?;
    host.add_rail(0);
    host.set_node(json!({"policy": {"hostAddresses": true}}));
    set_up(&host);
    let pod = host.add_netns("pod");
    Some((host, pod))
}

/// Gives the host its addresses on vf0.
pub fn set_up(host: &Host) {
    let sysctl =
        |key: &str, value: &str| std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
    sysctl("ipv6/conf/vf0/accept_ra", "0");
    sysctl("ipv4/conf/vf0/arp_ignore", "1");
    sysctl("ipv4/conf/vf0/rp_filter", "1");
    host.ip("link set vf0 up");
    for args in [
        "addr add 172.16.0.0/31 dev vf0 label vf0:rail metric 77",
        "addr add 10.7.0.1 peer 10.7.0.2/32 dev vf0",
        "addr add 10.8.0.1/24 dev vf0 valid_lft 5000 preferred_lft 4000",
        "addr add 10.8.0.2/24 dev vf0 noprefixroute",
        "-6 addr add fd00:10::/127 dev vf0 nodad",
        "-6 addr add fd00:13::1/64 dev vf0",
        "-6 addr add fd00:11::5/64 dev vf0 nodad noprefixroute valid_lft 6000 preferred_lft 6000",
        "route add 172.16.0.0/15 via 172.16.0.1 dev vf0 proto static metric 50 mtu 8900 advmss 8000",
        "route add 172.16.0.0/12 via 172.16.0.1 dev vf0 src 172.16.0.0 initcwnd 20",
        "route add 172.16.0.0/12 via 172.16.0.1 dev vf0 table 4242 onlink",
        "route add local 10.99.0.0/16 dev vf0",
        "-6 route add fd00:10::/32 via fd00:10::1 dev vf0 metric 300 pref high",
        // A life of a pod takes a second of it, and a kill sweep has hundreds.
        "-6 route add fd00:12::/32 dev vf0 expires 90000",
        "rule add from 172.16.0.0 lookup 4242 priority 99",
        "neigh add 172.16.0.1 lladdr 02:00:00:00:00:99 dev vf0 nud permanent",
        "-6 neigh add fd00:10::1 lladdr 02:00:00:00:00:99 dev vf0 nud permanent",
    ] {
        host.ip(args);
    }
}

/// The host's state of vf0, to the last attribute. Values that count down, and the flags of a
/// detection that runs, are left out.
pub fn of_host(host: &Host) -> Value {
    let lines = |args: &str| -> Vec<String> {
        let text = host.ip(args);
        let lines = text.lines().map(|line| {
            let words = line.split_whitespace().collect::<Vec<_>>();
            let counts_down = ["valid_lft", "preferred_lft", "expires"];
            let mut kept: Vec<&str> = Vec::new();
            for (at, word) in words.iter().enumerate() {
                let is_time = at > 0 && counts_down.contains(&words[at - 1]) && *word != "forever";
                kept.push(if is_time { "TIME" } else { word });
            }
            kept.retain(|word| *word != "tentative" && *word != "dynamic");
            kept.join(" ")
        });
        // The kernel makes link-local addresses, and the local routes of IPv6 addresses, when it
        // has time.
        let is_late = |line: &String| line.contains("fe80::") || line.starts_with("local fd00:");
        let mut lines: Vec<_> = lines.filter(|line| !is_late(line)).collect();
        lines.sort();
        lines
    };
    let sysctls: Vec<_> = [
        "ipv6/conf/vf0/accept_ra",
        "ipv4/conf/vf0/arp_ignore",
        "ipv4/conf/vf0/rp_filter",
    ]
    .iter()
    .map(|key| std::fs::read_to_string(format!("/proc/sys/net/{key}")).unwrap_or_default())
    .collect();
    json!({
        "addresses": lines("-details addr show dev vf0").into_iter().filter(|line| line.contains("inet") || line.contains("lft")).collect::<Vec<_>>(),
        "routes": [lines("-4 -details route show table all dev vf0"), lines("-6 -details route show table all dev vf0")],
        "rules": [lines("rule"), lines("-6 rule")],
        "neighbours": lines("neigh show nud permanent dev vf0"),
        "sysctls": sysctls,
    })
}

fn is_as_before(host: &Host, before: &(Value, Value)) {
    assert_eq!(of_host(host), before.1);
    let mut now = host.snapshot();
    without_link_local(&mut now);
    assert_eq!(now, before.0);
}

fn before(host: &Host) -> (Value, Value) {
    let mut snapshot = host.snapshot();
    without_link_local(&mut snapshot);
    (snapshot, of_host(host))
}

/// The kernel makes them when it has time.
pub fn without_link_local(snapshot: &mut Value) {
    let addresses = snapshot["addresses"].as_array_mut().unwrap();
    addresses.retain(|address| !address.as_str().unwrap().contains("fe80:"));
    addresses.sort_by_key(ToString::to_string);
}

fn refused(host: &Host, pod: &Path, config: &Value, text: &str) {
    let before = before(host);
    let error = host.cni("ADD", "refused", pod, config).error(7);
    assert!(
        error["msg"].as_str().unwrap().contains(text),
        "no {text:?} in {error}"
    );
    is_as_before(host, &before);
}

#[test]
fn the_pod_gets_what_the_host_had_and_the_host_has_it_again() {
    let Some((host, pod)) = host("host_address::life") else {
        return;
    };
    let before = before(&host);
    for round in 0..2 {
        let result = host.cni("ADD", "c1", &pod, &config()).ok().json();
        let ips: Vec<_> = result["ips"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ip| (&ip["address"], &ip["gateway"]))
            .collect();
        assert!(
            ips.contains(&(&json!("172.16.0.0/31"), &json!("172.16.0.1"))),
            "{result}"
        );
        assert!(
            ips.contains(&(&json!("fd00:10::/127"), &json!("fd00:10::1"))),
            "{result}"
        );
        let routes: Vec<_> = result["routes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|route| route["dst"].clone())
            .collect();
        for dst in [
            "172.16.0.0/15",
            "172.16.0.0/12",
            "fd00:10::/32",
            "fd00:12::/32",
        ] {
            assert!(routes.contains(&json!(dst)), "{result}");
        }
        assert!(
            !routes.contains(&json!("10.99.0.0/16")),
            "a local route is the host's own: {result}"
        );
        let of_pod = host.ip_in(&pod, "route show table 100");
        assert!(
            of_pod.contains(
                "172.16.0.0/15 via 172.16.0.1 dev net1 proto static metric 1000 mtu 8900 advmss 8000"
            ),
            "{of_pod}"
        );
        assert!(of_pod.contains("10.7.0.2 dev net1"), "{of_pod}");
        assert!(
            host.ip_in(&pod, "rule")
                .contains("from 172.16.0.0 lookup 100")
        );
        assert!(
            host.ip_in(&pod, "neigh show nud permanent")
                .contains("02:00:00:00:00:99")
        );
        assert!(host.leases().is_empty(), "nothing is leased");
        let check = with(config(), json!({ "prevResult": result }));
        host.cni("CHECK", "c1", &pod, &check).ok();
        host.ip_in(&pod, "addr del 172.16.0.0/31 dev net1");
        let differs = host.cni("CHECK", "c1", &pod, &check).error(100);
        assert!(
            differs["msg"].as_str().unwrap().contains("172.16.0.0/31"),
            "{differs}"
        );
        // Another pod cannot have it as well.
        let other = host.add_netns(&format!("other{round}"));
        host.cni("ADD", "c2", &other, &config()).error(11);
        host.cni("DEL", "c1", &pod, &config()).ok();
        is_as_before(&host, &before);
        host.cni("DEL", "c1", &pod, &config()).ok();
    }
}

/// A lease of DHCP goes on while a pod has the address, although nobody renews it. A record that is
/// older stands for a pod that has lived for two minutes.
#[test]
fn lifetimes_count_on_while_the_pod_has_the_address() {
    let Some((host, pod)) = host("host_address::lifetimes") else {
        return;
    };
    host.ip("addr add 10.20.0.1/24 dev vf0 valid_lft 119 preferred_lft 60");
    host.cni("ADD", "c1", &pod, &config()).ok();
    assert!(
        host.ip_in(&pod, "addr show dev net1")
            .contains("10.20.0.1/24")
    );
    let path = host.records()[0].clone();
    let mut record: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let saved = harness::change(&mut record, "host-addresses");
    let at = saved["at"].as_u64().unwrap();
    saved["at"] = json!(
        at.checked_sub(120_000)
            .expect("this machine has just booted")
    );
    std::fs::write(&path, record.to_string()).unwrap();
    host.cni("DEL", "c1", &pod, &config()).ok();
    let now = host.ip("addr show dev vf0");
    assert!(
        !now.contains("10.20.0.1") && now.contains("172.16.0.0"),
        "{now}"
    );
    let lifetime = |local: &str| {
        let all = host.json(None, "addr show dev vf0");
        let all = all[0]["addr_info"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["local"] == local).unwrap()["valid_life_time"]
            .as_u64()
            .unwrap()
    };
    assert!((1..=4880).contains(&lifetime("10.8.0.1")), "{now}");
    assert_eq!(lifetime("172.16.0.0"), u64::from(u32::MAX));
    assert!(host.pending().is_empty());
}

#[test]
fn what_a_lost_del_left_gets_its_addresses_back() {
    for heal in ["reap", "GC", "ADD", "DEL"] {
        let Some((host, pod)) = host("host_address::lost") else {
            return;
        };
        let before = before(&host);
        host.cni("ADD", "c1", &pod, &config()).ok();
        host.hand_back(&pod, "net1");
        let next = host.add_netns("next");
        match heal {
            "reap" => drop(
                host.call("", "", &next)
                    .args(&["reap"])
                    .run(&json!({}))
                    .ok(),
            ),
            "GC" => drop(
                host.cni(
                    "GC",
                    "",
                    &next,
                    &with(config(), json!({"cni.dev/valid-attachments": []})),
                )
                .ok(),
            ),
            "DEL" => drop(host.cni("DEL", "c1", &pod, &config()).ok()),
            _ => {
                let result = host.cni("ADD", "c2", &next, &config()).ok().json();
                assert!(result.to_string().contains("172.16.0.0/31"), "{result}");
                host.cni("DEL", "c2", &next, &config()).ok();
            }
        }
        is_as_before(&host, &before);
    }
}

/// An ADD that fails does not take the link of a NIC that the host uses down.
#[test]
fn a_refused_add_leaves_the_link_up() {
    let Some((host, pod)) = host("host_address::rollback") else {
        return;
    };
    let before = before(&host);
    let changes =
        || std::fs::read_to_string("/sys/class/net/vf0/carrier_changes").unwrap_or_default();
    let count = changes();
    // Two rails with one number: the route exists.
    let bad = with(
        config(),
        json!({"routes": [{"dst": "10.30.0.0/16", "gw": "10.66.0.1"}]}),
    );
    host.cni("ADD", "c1", &pod, &bad).error(7);
    is_as_before(&host, &before);
    let early = with(
        config(),
        json!({"routes": [{"dst": "10.30.0.0/16", "gw": "172.16.0.0"}]}),
    );
    let count_now = changes();
    host.cni("ADD", "c1", &pod, &early).error(7);
    assert_eq!(
        changes(),
        count_now,
        "the link went down (before both: {count})"
    );
    is_as_before(&host, &before);
}

#[test]
fn what_cannot_be_restored_is_owed_and_paid_later() {
    let Some((host, pod)) = host("host_address::owed") else {
        return;
    };
    let before = before(&host);
    host.cni("ADD", "c1", &pod, &config()).ok();
    let record = host.records()[0].clone();
    let text = std::fs::read_to_string(&record).unwrap();
    // A message that no kernel takes stands for all that may be refused.
    let mut broken: Value = serde_json::from_str(&text).unwrap();
    let saved = harness::change(&mut broken, "host-addresses");
    let good = saved["neighbours"].clone();
    saved["neighbours"][0] = json!(good[0].as_str().unwrap().replacen("02", "63", 1));
    std::fs::write(&record, broken.to_string()).unwrap();
    host.cni("DEL", "c1", &pod, &config()).ok();
    assert_eq!(host.pending().len(), 1);
    let status = host.call("", "", &pod).args(&["status"]).run(&json!({}));
    assert!(
        status.stdout.contains("pod default/pod, container c1"),
        "{status:?}"
    );
    // The next pod gets the rail all the same, and its DEL does not forget what is owed.
    let next = host.add_netns("next");
    host.cni("ADD", "c2", &next, &config()).ok();
    host.cni("DEL", "c2", &next, &config()).ok();
    for debt in host.pending() {
        let mut paid: Value =
            serde_json::from_str(&std::fs::read_to_string(&debt).unwrap()).unwrap();
        harness::change(&mut paid, "host-addresses")["neighbours"] = good.clone();
        std::fs::write(&debt, paid.to_string()).unwrap();
    }
    host.call("", "", &pod).args(&["reap"]).run(&json!({})).ok();
    is_as_before(&host, &before);
}

/// The host has found another use for the device by then.
#[test]
fn what_is_owed_to_the_host_waits_while_the_device_is_part_of_a_bridge() {
    let Some((host, pod)) = host("host_address::bridge") else {
        return;
    };
    host.cni("ADD", "c1", &pod, &config()).ok();
    let record = host.records()[0].clone();
    let mut broken: Value =
        serde_json::from_str(&std::fs::read_to_string(&record).unwrap()).unwrap();
    let neighbour = &mut harness::change(&mut broken, "host-addresses")["neighbours"][0];
    *neighbour = json!(neighbour.as_str().unwrap().replacen("02", "63", 1));
    std::fs::write(&record, broken.to_string()).unwrap();
    host.cni("DEL", "c1", &pod, &config()).ok();
    assert_eq!(host.pending().len(), 1);
    for step in [
        "link add br0 type bridge",
        "addr flush dev vf0",
        "link set vf0 up master br0",
    ] {
        host.ip(step);
    }
    let seen = || {
        let link = &host.json(None, "link show vf0")[0];
        let is_up = link["flags"].as_array().unwrap().contains(&json!("UP"));
        (
            host.ip("-4 -oneline addr show dev vf0"),
            json!([is_up, link["master"], link["mtu"], link["address"]]),
        )
    };
    let before = seen();
    let reaped = host.call("", "", &pod).args(&["reap"]).run(&json!({}));
    assert!(reaped.stdout.contains("br0"), "{reaped:?}");
    assert_eq!(seen(), before);
}

/// Another netdev has the name of the device, and that alone is owed. What the operator does with
/// the addresses meanwhile stays.
#[test]
fn a_debt_of_a_name_puts_no_address_back() {
    let Some((host, pod)) = host("host_address::name") else {
        return;
    };
    host.cni("ADD", "c1", &pod, &config()).ok();
    host.ip("link add vf0 type veth peer name other");
    host.cni("DEL", "c1", &pod, &config()).ok();
    assert_eq!(host.pending().len(), 1);
    let links = host.json(None, "link show");
    let names = links
        .as_array()
        .unwrap()
        .iter()
        .map(|link| link["ifname"].as_str().unwrap().to_owned());
    let name = names
        .into_iter()
        .find(|name| name.starts_with("dev"))
        .unwrap();
    let addresses = |name: &str| host.ip(&format!("-oneline addr show dev {name} scope global"));
    assert!(
        addresses(&name).contains("172.16.0.0"),
        "{}",
        addresses(&name)
    );
    let reap = || host.call("", "", &pod).args(&["reap"]).run(&json!({}));
    let told = reap();
    assert!(told.stdout.contains("172.16.0.0"), "{told:?}");
    for family in ["", "-6 "] {
        host.ip(&format!("{family}addr flush dev {name} scope global"));
        host.ip(&format!("{family}route flush dev {name} proto static"));
        host.ip(&format!("{family}route flush dev {name} proto boot"));
    }
    let told = reap();
    assert!(told.status == 1 && told.stdout.contains("vf0"), "{told:?}");
    assert_eq!(addresses(&name), "");
    host.ip("link delete vf0");
    reap().ok();
    assert_eq!(addresses("vf0"), "");
    assert!(host.pending().is_empty());
}

/// As soon as the name is free the device gets it, and what the host has on it by then goes with
/// it.
#[test]
fn a_device_gets_its_name_back_with_the_addresses_of_the_host() {
    let Some((host, pod)) = host("host_address::named") else {
        return;
    };
    let before = before(&host);
    host.cni("ADD", "c1", &pod, &config()).ok();
    host.ip("link add vf0 type veth peer name other");
    host.cni("DEL", "c1", &pod, &config()).ok();
    assert_eq!(host.pending().len(), 1);
    host.ip("link delete vf0");
    host.call("", "", &pod).args(&["reap"]).run(&json!({})).ok();
    assert!(host.pending().is_empty());
    // The kernel makes labels of its own when a device gets another name (inetdev_changename).
    let unlabelled = |(snapshot, of_host): (Value, Value)| {
        let labels = ["vf0:rail", "vf0:2", "vf0:3", "vf0:4"];
        labels
            .iter()
            .fold(format!("{snapshot:#}{of_host:#}"), |text, label| {
                text.replace(label, "vf0")
            })
    };
    assert_eq!(unlabelled(self::before(&host)), unlabelled(before));
}

/// Every record of the device keeps what is owed to the host, and no pod gets it for that.
#[test]
fn a_network_that_did_not_ask_gets_nothing_of_the_host() {
    let Some(host) = Host::new("host_address::not_asked") else {
        return;
    };
    host.add_rail(0);
    host.set_node(json!({"policy": {"hostAddresses": true}}));
    let pod = host.add_netns("pod");
    host.ip("link set vf0 up");
    host.ip("addr add 10.20.0.1/24 dev vf0 valid_lft 119 preferred_lft 60");
    for neighbour in ["10.20.0.8", "10.20.0.9"] {
        host.ip(&format!(
            "neigh replace {neighbour} lladdr 02:00:00:00:00:99 dev vf0 nud permanent"
        ));
    }
    host.cni("ADD", "c1", &pod, &config()).ok();
    let record = host.records()[0].clone();
    let mut broken: Value =
        serde_json::from_str(&std::fs::read_to_string(&record).unwrap()).unwrap();
    let saved = harness::change(&mut broken, "host-addresses");
    // A message that no kernel takes is owed, while the lifetime of the address has ended.
    saved["neighbours"][0] = json!(
        saved["neighbours"][0]
            .as_str()
            .unwrap()
            .replacen("02", "63", 1)
    );
    saved["at"] = json!(saved["at"].as_u64().unwrap() - 120_000);
    std::fs::write(&record, broken.to_string()).unwrap();
    host.cni("DEL", "c1", &pod, &config()).ok();
    assert_eq!(host.pending().len(), 1);
    let next = host.add_netns("next");
    let plain = host.with_static(rail(0), "10.20.0.2/24", "10.20.0.9");
    host.cni("ADD", "c2", &next, &plain).ok();
    assert_eq!(
        host.ip_in(&next, "neigh show dev net1 nud permanent")
            .trim(),
        ""
    );
    host.cni("DEL", "c2", &next, &plain).ok();
}

/// A pod may leave it under a name that sysctl has for all interfaces, with an MTU for which there
/// are no sysctls of IPv6.
#[test]
fn sysctls_are_those_of_the_host_again_whatever_the_pod_left() {
    for left in ["mtu 1000", "mtu 1000 name all", "mtu 1000 name other0"] {
        let Some((host, pod)) = host("host_address::sysctls") else {
            return;
        };
        let of_all = || {
            [
                "ipv4/conf/all/arp_ignore",
                "ipv4/conf/all/rp_filter",
                "ipv6/conf/all/accept_ra",
            ]
            .map(|key| std::fs::read_to_string(format!("/proc/sys/net/{key}")).unwrap())
        };
        let (before, all) = (before(&host), of_all());
        host.cni("ADD", "c1", &pod, &config()).ok();
        host.ip_in(&pod, "link set net1 down");
        host.ip_in(&pod, &format!("link set net1 {left}"));
        let name = left.split_once("name ").map_or("net1", |(_, name)| name);
        host.hand_back(&pod, name);
        host.call("", "", &pod).args(&["reap"]).run(&json!({})).ok();
        is_as_before(&host, &before);
        assert_eq!(of_all(), all, "{left}");
    }
}

#[test]
fn a_device_that_the_host_needs_is_refused() {
    let Some((host, pod)) = host("host_address::needed") else {
        return;
    };
    host.ip(&format!(
        "link add second type veth peer name other netns {}",
        host.leaf()
    ));
    host.ip("link set second up");
    host.ip("-6 addr add fd00:77::1/64 dev second nodad");
    let mut cases = vec![
        (
            "route add default via 172.16.0.1 dev vf0",
            "route del default",
            "default route",
        ),
        (
            "route add default via 172.16.0.1 dev vf0 table 77",
            "route del default table 77",
            "default route",
        ),
        (
            "-6 route add default via fd00:10::1 dev vf0",
            "-6 route del default",
            "default route",
        ),
        (
            "route add 128.0.0.0/1 via 172.16.0.1 dev vf0",
            "route del 128.0.0.0/1",
            "default route",
        ),
        (
            "rule add not from 10.0.0.0/8 lookup 4242",
            "rule del not from 10.0.0.0/8 lookup 4242",
            "\"not\"",
        ),
        (
            "route add 10.40.0.0/16 nexthop via 172.16.0.1 dev vf0 nexthop dev lo",
            "route del 10.40.0.0/16",
            "10.40.0.0/16",
        ),
        (
            "-6 route add fd00:40::/32 nexthop via fd00:10::1 dev vf0 nexthop via fd00:77::2 dev second",
            "-6 route del fd00:40::/32",
            "fd00:40::/32",
        ),
        (
            "route add 10.41.0.0/16 dev lo src 172.16.0.0",
            "route del 10.41.0.0/16",
            "10.41.0.0/16",
        ),
    ];
    if std::process::Command::new("ip")
        .args([
            "nexthop",
            "add",
            "id",
            "7",
            "via",
            "172.16.0.1",
            "dev",
            "vf0",
        ])
        .status()
        .unwrap()
        .success()
    {
        cases.push((
            "route add default nhid 7",
            "route del default",
            "default route",
        ));
        cases.push((
            "route add 10.42.0.0/16 nhid 7",
            "route del 10.42.0.0/16",
            "10.42.0.0/16",
        ));
    }
    for compat in ["1", "0"] {
        let _ = std::fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", compat);
        for (set, unset, told) in &cases {
            host.ip(set);
            refused(&host, &pod, &config(), told);
            host.ip(unset);
        }
    }
    host.cni("ADD", "c1", &pod, &config()).ok();
}

/// Hosts with several uplinks have a table for each, to which only its own address leads (AMD's
/// guide of system acceptance, Spiderpool's setNicAddr.sh). No other packet of the host misses it.
#[test]
fn a_default_route_for_the_devices_own_address_goes_with_it_and_comes_back() {
    for (rule, is_taken) in [
        ("from 172.16.0.0", true),
        ("from 172.16.0.0/31", true),
        ("from 172.16.0.0 iif lo", true),
        ("from 10.8.0.0/16", false),
        ("from all", false),
        ("not from 172.16.0.0", false),
        ("fwmark 7", false),
    ] {
        let Some((host, pod)) = host("host_address::own_default") else {
            return;
        };
        host.ip("route add default via 172.16.0.1 dev vf0 table 101");
        host.ip(&format!("rule add {rule} lookup 101 priority 90"));
        if !is_taken {
            refused(&host, &pod, &config(), "default route");
            continue;
        }
        let before = before(&host);
        let added = host.cni("ADD", "c1", &pod, &config()).ok().json();
        let of_pod = host.ip_in(&pod, "route show table 100 default");
        assert!(
            of_pod.contains("via 172.16.0.1 dev net1"),
            "{rule}: {of_pod}"
        );
        assert_eq!(
            host.ip_in(&pod, "route show default"),
            "",
            "{rule}: none in the main table"
        );
        host.cni(
            "CHECK",
            "c1",
            &pod,
            &with(config(), json!({"prevResult": added})),
        )
        .ok();
        host.cni("DEL", "c1", &pod, &config()).ok();
        is_as_before(&host, &before);
    }
}

#[test]
fn a_default_route_by_a_router_stays_with_the_host_that_has_another() {
    let Some((host, pod)) = host("host_address::router") else {
        return;
    };
    host.ip("-6 route add default via fd00:10::1 dev vf0 proto ra metric 1024 expires 900");
    refused(&host, &pod, &config(), "default route");
    host.ip(&format!(
        "link add uplink type veth peer name other netns {}",
        host.leaf()
    ));
    host.ip("link set uplink up");
    host.ip("-6 addr add fd00:77::1/64 dev uplink nodad");
    host.ip("-6 route add default via fd00:77::2 dev uplink metric 2048");
    let before = before(&host);
    host.cni("ADD", "c1", &pod, &config()).ok();
    assert!(
        !host
            .ip_in(&pod, "-6 route show table all")
            .contains("default")
    );
    host.cni("DEL", "c1", &pod, &config()).ok();
    is_as_before(&host, &before);
}

#[test]
fn the_other_address_of_two_is_the_gateway() {
    let Some(host) = Host::new("host_address::other_end") else {
        return;
    };
    host.add_rail(0);
    host.set_node(json!({"policy": {"hostAddresses": true}}));
    let pod = host.add_netns("pod");
    host.ip("link set vf0 up");
    host.ip("addr add 172.16.0.0/31 dev vf0");
    host.ip("-6 addr add fd00:10::1/127 dev vf0 nodad");
    let added = host.cni("ADD", "c1", &pod, &config()).ok().json();
    let ips = added["ips"].as_array().unwrap().iter();
    let ips: Vec<_> = ips
        .map(|ip| (ip["address"].as_str(), ip["gateway"].as_str()))
        .collect();
    let wanted = [
        ("172.16.0.0/31", "172.16.0.1"),
        ("fd00:10::1/127", "fd00:10::"),
    ];
    assert_eq!(
        ips,
        wanted.map(|(address, gateway)| (Some(address), Some(gateway)))
    );
}

#[test]
fn the_operator_allows_it_and_the_network_says_nothing_else() {
    let Some((host, pod)) = host("host_address::policy") else {
        return;
    };
    let ipam = |more: Value| {
        with(
            config(),
            json!({"ipam": with(json!({"type": "rail-ipam", "source": "host"}), more)}),
        )
    };
    for (config, told) in [
        (ipam(json!({"source": "dhcp"})), "ipam.source"),
        (ipam(json!({"pool": "rail-0"})), "ipam.pool"),
        (ipam(json!({"cidr": "10.0.0.0/8"})), "ipam.cidr"),
        (
            with(
                config(),
                json!({"runtimeConfig": {"ips": ["172.16.0.0/31"]}}),
            ),
            "runtimeConfig.ips",
        ),
        (
            with(config(), json!({"args": {"cni": {"ips": ["172.16.0.0"]}}})),
            "args.cni.ips",
        ),
        (with(config(), json!({"resetOnDel": "flr"})), "resetOnDel"),
    ] {
        refused(&host, &pod, &config, told);
    }
    // Without the key the host keeps what it has.
    refused(&host, &pod, &rail(0), "172.16.0.0/31");
    host.set_node(json!({}));
    refused(&host, &pod, &config(), "policy.hostAddresses");
    host.set_node(json!({"policy": {"hostAddresses": true}}));
    host.ip("addr flush dev vf0");
    host.ip("-6 addr flush dev vf0 scope global");
    refused(&host, &pod, &config(), "vf0");
    // rail-ipam has no device.
    let alone = host.call("ADD", "c1", &pod).ipam().run(&config()).error(7);
    assert!(
        alone["msg"].as_str().unwrap().contains("ipam.source"),
        "{alone}"
    );
}

#[test]
fn a_function_with_addresses_of_the_host_is_a_rail_as_well() {
    let Some((host, pod)) = host("host_address::function") else {
        return;
    };
    host.make_vf(0, "mlx5_core");
    let before = before(&host);
    let config = with(
        config(),
        json!({"device": "", "deviceID": vf_address(0), "rdma": "off"}),
    );
    host.cni("ADD", "c1", &pod, &config).ok();
    host.cni("DEL", "c1", &pod, &config).ok();
    is_as_before(&host, &before);
}
