//! Input of any shape ends in one error object with a code of the specification, and changes
//! nothing: a tenant writes it, and root reads it. Environment, versions and names are in
//! contract/.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::{Map, Value, json};

use crate::harness::{Call, Host, Ran, rail, vf_address, with};
use crate::programs::RAIL_IPAM;

/// A host with rail 0 as VF and a pod.
struct Bench {
    host: Host,
    pod: PathBuf,
    before: Value,
}

impl Bench {
    fn new(test: &str) -> Option<Bench> {
        let host = Host::new(&format!("badinput::{test}"))?;
        host.add_rail(0);
        host.make_vf(0, "mlx5_core");
        let pod = host.add_netns("pod");
        let before = host.snapshot();
        Some(Bench { host, pod, before })
    }

    fn call(&self, program: &str, verb: &str) -> Call {
        let call = self.host.call(verb, "c1", &self.pod);
        if program == "rail-ipam" {
            call.ipam()
        } else {
            call
        }
    }

    #[track_caller]
    fn is_as_before(&self, what: &str) {
        assert_eq!(self.host.snapshot(), self.before, "{what}");
        let links = self.host.json(Some(&self.pod), "link");
        assert_eq!(links.as_array().unwrap().len(), 1, "{what}: {links}");
    }

    /// ADD is refused with this code and these words, and nothing has changed.
    #[track_caller]
    fn refuses(&self, program: &str, config: &Value, code: u32, words: &[&str]) -> String {
        let refused = self.call(program, "ADD").run(config);
        let msg = refused.error(code)["msg"].as_str().unwrap().to_owned();
        for word in words {
            assert!(msg.contains(word), "{word:?} is not in {msg:?}: {config}");
        }
        self.is_as_before(&config.to_string());
        msg
    }
}

/// An answer that a runtime can read, whatever it is.
fn is_an_answer(ran: &Ran) -> Result<(), TestCaseError> {
    prop_assert!(matches!(ran.status, 0 | 1), "{:?}", ran);
    prop_assert!(
        !ran.stderr.contains("panicked") && !ran.stdout.contains("panicked"),
        "{:?}",
        ran
    );
    if ran.status == 1 {
        let error: Map<String, Value> = serde_json::from_str(&ran.stdout)
            .map_err(|error| TestCaseError::fail(format!("{error}: {ran:?}")))?;
        prop_assert!(
            error["code"].is_u64() && error["cniVersion"].is_string(),
            "{:?}",
            ran
        );
        prop_assert!(
            error["msg"].as_str().is_some_and(|msg| !msg.is_empty()),
            "{:?}",
            ran
        );
    }
    Ok(())
}

/// Runs equal cases each time.
fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        max_shrink_iters: 64,
        ..Config::default()
    })
}

// Configurations.

/// Every key with what it cannot be: the code, and what the message says beside the key.
#[test]
fn rail_cni_names_the_key_and_the_value_that_is_wrong() {
    let Some(bench) = Bench::new("rail_cni") else {
        return;
    };
    let long = "x".repeat(128);
    let long_value = format!("{:065}", 1);
    let info = bench.host.path("devinfo/../info").display().to_string();
    let table = [
        (json!({"deviceID": 7}), 7, "deviceID", "7"),
        (
            json!({"deviceID": ["0000:02:10.0"]}),
            7,
            "deviceID",
            "sequence",
        ),
        (json!({"deviceID": "nic"}), 7, "deviceID", "\"nic\""),
        (
            json!({"deviceID": "../../0000:01:10.0"}),
            7,
            "deviceID",
            "../../0000:01:10.0",
        ),
        (
            json!({"deviceID": "0000:01:10.8"}),
            7,
            "deviceID",
            "0000:01:10.8",
        ),
        (
            json!({"deviceID": "0000:02:10.0"}),
            7,
            "0000:02:10.0",
            "no device",
        ),
        (
            json!({"deviceID": "mlx5_core.sf.4"}),
            7,
            "mlx5_core.sf.4",
            "no device",
        ),
        (json!({"pciBusID": 7}), 7, "pciBusID", "7"),
        (json!({"pciBusID": "nic"}), 7, "pciBusID", "\"nic\""),
        (
            json!({"deviceID": "0000:01:10.0", "pciBusID": "0000:02:10.0"}),
            7,
            "pciBusID",
            "0000:02:10.0",
        ),
        (
            json!({"runtimeConfig": {"deviceID": 7}}),
            7,
            "runtimeConfig.deviceID",
            "7",
        ),
        (
            json!({"runtimeConfig": {"deviceID": "nic"}}),
            7,
            "runtimeConfig.deviceID",
            "\"nic\"",
        ),
        (
            json!({"runtimeConfig": {"deviceID": "0000:01:10.0"}, "deviceID": "0000:02:10.0"}),
            7,
            "runtimeConfig.deviceID",
            "0000:02:10.0",
        ),
        (json!({"device": 7}), 7, "device", "7"),
        (json!({"device": ""}), 7, "device", "device"),
        (json!({"device": "a/b"}), 7, "device", "a/b"),
        (json!({"device": ".."}), 7, "device", ".."),
        (json!({"device": "net%d"}), 7, "device", "net%d"),
        (json!({"device": long}), 7, "device", "too long"),
        (json!({"device": "vf9"}), 7, "vf9", "no device"),
        (json!({"hwaddr": 7}), 7, "hwaddr", "7"),
        (json!({"hwaddr": "nic"}), 7, "hwaddr", "\"nic\""),
        (
            json!({"hwaddr": "02:00:00:00:00"}),
            7,
            "hwaddr",
            "02:00:00:00:00",
        ),
        (
            json!({"device": "", "hwaddr": "02:00:00:00:99:99"}),
            7,
            "hwaddr",
            "02:00:00:00:99:99",
        ),
        (json!({"kernelpath": 7}), 7, "kernelpath", "7"),
        (
            json!({"kernelpath": "/etc/passwd"}),
            7,
            "kernelpath",
            "/etc/passwd",
        ),
        (
            json!({"kernelpath": "/sys/devices/../class"}),
            7,
            "kernelpath",
            "/sys/devices/../class",
        ),
        (json!({"rail": "0"}), 7, "rail", "\"0\""),
        (json!({"rail": -1}), 7, "rail", "-1"),
        (json!({"rail": 1.5}), 7, "rail", "1.5"),
        (json!({"rail": 128}), 7, "rail", "128"),
        (json!({"rail": 256}), 7, "rail", "256"),
        (json!({"rail": true}), 7, "rail", "true"),
        (json!({"mtu": "9000"}), 7, "mtu", "\"9000\""),
        (json!({"mtu": -1}), 7, "mtu", "-1"),
        (json!({"mtu": 1500.5}), 7, "mtu", "1500.5"),
        (json!({"mtu": 67}), 7, "mtu", "67"),
        (json!({"mtu": 65536}), 7, "mtu", "65536"),
        (json!({"mtu": 1_u64 << 32}), 7, "mtu", "4294967296"),
        (json!({"mac": 7}), 7, "mac", "7"),
        (json!({"mac": "nic"}), 7, "mac", "\"nic\""),
        (
            json!({"mac": "01:00:00:00:00:01"}),
            7,
            "mac",
            "01:00:00:00:00:01",
        ),
        (
            json!({"mac": "00:00:00:00:00:00"}),
            7,
            "mac",
            "00:00:00:00:00:00",
        ),
        (
            json!({"mac": "02:00:00:00:00:00:01"}),
            7,
            "mac",
            "02:00:00:00:00:00:01",
        ),
        (
            json!({"runtimeConfig": {"mac": 7}}),
            7,
            "runtimeConfig.mac",
            "7",
        ),
        (
            json!({"runtimeConfig": {"mac": "nic"}}),
            7,
            "runtimeConfig.mac",
            "\"nic\"",
        ),
        (
            json!({"args": {"cni": {"mac": "nic"}}}),
            7,
            "args.cni.mac",
            "\"nic\"",
        ),
        (json!({"vlan": "1"}), 7, "vlan", "\"1\""),
        (json!({"vlan": -1}), 7, "vlan", "-1"),
        (json!({"vlan": 4095}), 7, "vlan", "4095"),
        (json!({"vlan": 1, "vlanQoS": 8}), 7, "vlanQoS", "8"),
        (json!({"vlan": 1, "vlanQoS": "x"}), 7, "vlanQoS", "\"x\""),
        (json!({"vlanQoS": 1}), 7, "vlanQoS", "vlan"),
        (
            json!({"vlan": 1, "vlanProto": "802.1x"}),
            7,
            "vlanProto",
            "802.1x",
        ),
        (
            json!({"vlan": 1, "vlanProto": 8021}),
            7,
            "vlanProto",
            "8021",
        ),
        (json!({"vlanProto": "802.1ad"}), 7, "vlanProto", "vlan"),
        (json!({"spoofchk": "yes"}), 7, "spoofchk", "\"yes\""),
        (json!({"spoofchk": true}), 7, "spoofchk", "true"),
        (json!({"trust": "yes"}), 7, "trust", "\"yes\""),
        (json!({"trust": false}), 7, "trust", "false"),
        (json!({"link_state": "up"}), 7, "link_state", "\"up\""),
        (json!({"link_state": 1}), 7, "link_state", "1"),
        (json!({"min_tx_rate": "1"}), 7, "min_tx_rate", "\"1\""),
        (json!({"max_tx_rate": -5}), 7, "max_tx_rate", "-5"),
        (
            json!({"min_tx_rate": 9, "max_tx_rate": 8}),
            7,
            "min_tx_rate",
            "9",
        ),
        (
            json!({"runtimeConfig": {"infinibandGUID": 7}}),
            7,
            "infinibandGUID",
            "7",
        ),
        (
            json!({"runtimeConfig": {"infinibandGUID": "x"}}),
            7,
            "infinibandGUID",
            "\"x\"",
        ),
        (
            json!({"args": {"cni": {"guid": "x"}}}),
            7,
            "args.cni.guid",
            "\"x\"",
        ),
        (json!({"routes": 7}), 7, "routes", "7"),
        (json!({"routes": {}}), 7, "routes", "map"),
        (json!({"routes": [7]}), 7, "routes[0]", "7"),
        (json!({"routes": [{}]}), 7, "routes[0]", "dst"),
        (
            json!({"routes": [{"dst": "10.0.0.0/8"}, {"dst": "ten"}]}),
            7,
            "routes[1].dst",
            "invalid",
        ),
        (
            json!({"routes": [{"dst": "10.0.0.0/33"}]}),
            7,
            "routes[0].dst",
            "invalid",
        ),
        (
            json!({"routes": [{"dst": "10.0.0.0/8", "gw": "x"}]}),
            7,
            "routes[0].gw",
            "\"x\"",
        ),
        (
            json!({"routes": [{"dst": "fd00::/8", "gw": "172.16.0.1"}]}),
            7,
            "routes",
            "172.16.0.1",
        ),
        (
            json!({"routes": [{"dst": "10.0.0.0/8", "mtu": "x"}]}),
            7,
            "routes[0].mtu",
            "\"x\"",
        ),
        (
            json!({"routes": [{"dst": "10.0.0.0/8", "priority": -1}]}),
            7,
            "routes[0].priority",
            "-1",
        ),
        (
            json!({"routes": [{"dst": "10.0.0.0/8", "scope": 256}]}),
            7,
            "routes[0].scope",
            "256",
        ),
        (
            json!({"routes": [{"dst": "10.0.0.0/8", "table": 255}]}),
            7,
            "routes",
            "255",
        ),
        (json!({"routing": 7}), 7, "routing", "7"),
        (json!({"routing": "static"}), 7, "routing", "\"static\""),
        (json!({"sysctl": 7}), 7, "sysctl", "7"),
        (
            json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": 1}}),
            7,
            "sysctl",
            "1",
        ),
        (
            json!({"sysctl": {"net.ipv4.ip_forward": "1"}}),
            7,
            "sysctl",
            "net.ipv4.ip_forward",
        ),
        (
            json!({"sysctl": {"net.ipv4.conf.all.rp_filter": "0"}}),
            7,
            "sysctl",
            "net.ipv4.conf.all.rp_filter",
        ),
        (
            json!({"sysctl": {"net.ipv4.conf.eth0.rp_filter": "0"}}),
            7,
            "sysctl",
            "eth0",
        ),
        (
            json!({"sysctl": {"kernel.core_pattern": "|/bin/sh"}}),
            7,
            "sysctl",
            "kernel.core_pattern",
        ),
        (
            json!({"sysctl": {"net/ipv4/conf/IFNAME/../all/rp_filter": "0"}}),
            7,
            "sysctl",
            "..",
        ),
        (
            json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1\n1"}}),
            7,
            "sysctl",
            "arp_filter",
        ),
        (
            json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "x"}}),
            7,
            "sysctl",
            "\"x\"",
        ),
        // One byte more than a value can have.
        (
            json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": long_value}}),
            7,
            "sysctl",
            "00001\"",
        ),
        (
            json!({"sysctl": {"net.ipv4.conf.IFNAME.no_such": "1"}}),
            7,
            "sysctl",
            "no_such",
        ),
        (
            json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/ipv4/conf/net1/arp_filter": "0"}}),
            7,
            "sysctl",
            "twice",
        ),
        (json!({"rdma": 7}), 7, "rdma", "7"),
        (json!({"rdma": "maybe"}), 7, "rdma", "\"maybe\""),
        (json!({"rdma": "required"}), 2, "rdma", "required"),
        (json!({"gatewayProbe": 7}), 7, "gatewayProbe", "7"),
        (
            json!({"gatewayProbe": "maybe"}),
            7,
            "gatewayProbe",
            "\"maybe\"",
        ),
        (json!({"resetOnDel": "on"}), 7, "resetOnDel", "\"on\""),
        (json!({"resetOnDel": true}), 7, "resetOnDel", "true"),
        (json!({"Vlan": 4095}), 7, "vlan", "4095"),
        (
            json!({"Routes": [{"Dst": "ten"}]}),
            7,
            "routes[0].dst",
            "invalid",
        ),
        (
            json!({"SYSCTL": {"net.ipv4.conf.IFNAME.ARP_FILTER": "1"}}),
            7,
            "sysctl",
            "ARP_FILTER",
        ),
        (json!({"ipam": 7}), 7, "ipam", "7"),
        (json!({"ipam": "rail-ipam"}), 7, "ipam", "rail-ipam"),
        (json!({"ipam": {"type": 7}}), 7, "ipam.type", "7"),
        (
            json!({"ipam": {"type": "../../bin/sh"}}),
            7,
            "ipam.type",
            "../../bin/sh",
        ),
        (
            json!({"ipam": {"type": "no-such"}}),
            7,
            "no-such",
            "CNI_PATH",
        ),
        (json!({"ipam": {"type": "dhcp"}}), 2, "ipam.type", "dhcp"),
        (json!({"dns": 7}), 7, "dns", "7"),
        (
            json!({"dns": {"nameservers": "8.8.8.8"}}),
            7,
            "dns.nameservers",
            "8.8.8.8",
        ),
        (json!({"prevResult": 7}), 6, "prevResult", "object"),
        (
            json!({"prevResult": {"cniVersion": "9.9.9"}}),
            1,
            "prevResult",
            "9.9.9",
        ),
        (
            json!({"prevResult": {"ips": [{"address": "x"}]}}),
            6,
            "prevResult",
            "ips[0].address",
        ),
        (
            json!({"runtimeConfig": {"CNIDeviceInfoFile": 7}}),
            7,
            "CNIDeviceInfoFile",
            "7",
        ),
        (
            json!({"runtimeConfig": {"CNIDeviceInfoFile": "/etc/passwd"}}),
            7,
            "CNIDeviceInfoFile",
            "/etc/passwd",
        ),
        (
            json!({"runtimeConfig": {"CNIDeviceInfoFile": info}}),
            7,
            "CNIDeviceInfoFile",
            "info",
        ),
    ];
    let mut said = Vec::new();
    for (more, code, key, value) in table {
        let config = with(rail(0), more);
        said.push(bench.refuses("rail-cni", &config, code, &[key, value]));
        // DEL judges nothing of this, but it has to find the IPAM that it is to call.
        if key != "no-such" && key != "ipam.type" {
            let deleted = bench.call("rail-cni", "DEL").run(&config);
            assert_eq!(deleted.status, 0, "{config}: {deleted:?}");
        }
    }
    golden::says(
        "plugins",
        "ADD: networks with a fault",
        bench.host.steady(&said.join("\n")),
    );
    // The kernel's own error: our bound is behind it.
    let longest = json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": format!("{:064}", 1)}});
    bench.refuses(
        "rail-cni",
        &with(rail(0), longest),
        7,
        &["sysctl", "Invalid argument"],
    );
    // The node works as before.
    bench.call("rail-cni", "ADD").run(&rail(0)).ok();
    bench.call("rail-cni", "DEL").run(&rail(0)).ok();
    bench.is_as_before("the table");
}

#[test]
fn rail_ipam_names_the_key_and_the_value_that_is_wrong() {
    let Some(bench) = Bench::new("rail_ipam") else {
        return;
    };
    let ipam = |more: Value| {
        with(
            rail(0),
            json!({"ipam": with(json!({"type": "rail-ipam"}), more)}),
        )
    };
    let inline = |more: Value| {
        let good = json!({
            "cidr": "10.0.0.0/16", "perNodeNetworkPrefix": 31, "gatewayIndex": 1,
            "staticAllocations": [{"nodeName": "node-1", "prefix": "10.0.0.0/31"}],
        });
        ipam(with(good, more))
    };
    let table = [
        (with(rail(0), json!({"ipam": 7})), 7, "ipam", "object"),
        // A pod without any device would hold the addresses of a node's rails.
        (
            with(rail(0), json!({"type": "rail-ipam"})),
            7,
            "type",
            "ipam.type",
        ),
        (ipam(json!({"pool": 7})), 7, "ipam.pool", "7"),
        (ipam(json!({"pool": "a/b"})), 7, "ipam.pool", "a/b"),
        (
            ipam(json!({"pool": "../rail-0"})),
            7,
            "ipam.pool",
            "../rail-0",
        ),
        (
            ipam(json!({"pool": "rail-0,rail-0"})),
            7,
            "ipam.pool",
            "twice",
        ),
        (ipam(json!({"pool": "a,b,c"})), 7, "ipam.pool", "a,b,c"),
        (ipam(json!({"pool": "rail-9"})), 7, "rail-9", "node-1"),
        (
            ipam(json!({"pool": "rail-0", "poolName": "rail-1"})),
            7,
            "poolName",
            "rail-1",
        ),
        (
            ipam(json!({"pool": "rail-0", "poolType": "ippool"})),
            7,
            "poolType",
            "ippool",
        ),
        (inline(json!({"cidr": 7})), 7, "ipam.cidr", "7"),
        (inline(json!({"cidr": "x"})), 7, "cidr", "x"),
        (
            inline(json!({"cidr": "10.0.0.1/16"})),
            7,
            "cidr",
            "10.0.0.1/16",
        ),
        (
            inline(json!({"perNodeNetworkPrefix": "31"})),
            7,
            "perNodeNetworkPrefix",
            "31",
        ),
        (
            inline(json!({"perNodeNetworkPrefix": 33})),
            7,
            "perNodeNetworkPrefix",
            "33",
        ),
        (
            inline(json!({"perNodeNetworkPrefix": 8})),
            7,
            "perNodeNetworkPrefix",
            "8",
        ),
        (inline(json!({"gatewayIndex": -1})), 7, "gatewayIndex", "-1"),
        (inline(json!({"gatewayIndex": 2})), 7, "gatewayIndex", "2"),
        (
            inline(json!({"staticAllocations": 7})),
            7,
            "staticAllocations",
            "7",
        ),
        (
            inline(json!({"staticAllocations": []})),
            7,
            "staticAllocations",
            "node-1",
        ),
        (
            inline(json!({"staticAllocations": [{"nodeName": "node-1", "prefix": "10.9.0.0/31"}]})),
            7,
            "staticAllocations[0]",
            "10.9.0.0/31",
        ),
        (
            inline(json!({"exclusions": [{"startIP": "10.0.0.9", "endIP": "10.0.0.8"}]})),
            7,
            "exclusions[0]",
            "startIP",
        ),
        (
            inline(json!({"routes": [{"dst": "x"}]})),
            7,
            "routes[0]",
            "x",
        ),
        (
            with(rail(0), json!({"runtimeConfig": {"ips": "x"}})),
            7,
            "runtimeConfig.ips",
            "list",
        ),
        (
            with(rail(0), json!({"runtimeConfig": {"ips": [7]}})),
            7,
            "runtimeConfig.ips",
            "7",
        ),
        (
            with(rail(0), json!({"runtimeConfig": {"ips": ["x"]}})),
            7,
            "runtimeConfig.ips",
            "\"x\"",
        ),
        (
            with(rail(0), json!({"runtimeConfig": {"ips": ["10.0.0.1"]}})),
            7,
            "10.0.0.1",
            "172.16.0.0/31",
        ),
        (
            with(rail(0), json!({"runtimeConfig": {"ips": ["172.16.0.1"]}})),
            7,
            "172.16.0.1",
            "gateway",
        ),
        (
            with(rail(0), json!({"args": {"cni": {"ips": ["x"]}}})),
            7,
            "args.cni.ips",
            "\"x\"",
        ),
    ];
    for (config, code, key, value) in table {
        bench.refuses("rail-ipam", &config, code, &[key, value]);
        bench.call("rail-ipam", "DEL").run(&config).ok();
        bench.call("rail-ipam", "GC").run(&config).ok();
        bench.is_as_before(&config.to_string());
    }
    // By a copy and by a link of another name, as by its own.
    let (copy, link) = (
        bench.host.path("bin").join(bench.host.copy_rail_ipam()),
        bench.host.path("ipam-link"),
    );
    std::os::unix::fs::symlink(RAIL_IPAM, &link).unwrap();
    for (program, name) in [(copy, "ipam-copy"), (link, "ipam-link")] {
        let call = || bench.call("rail-ipam", "ADD").program(&program);
        let refused = call().run(&with(rail(0), json!({ "type": name })));
        let told = refused.error(7)["msg"].as_str().unwrap().to_owned();
        assert!(told.contains("ipam.type"), "{told}");
        bench.is_as_before(name);
        call().run(&rail(0)).ok();
        bench
            .call("rail-ipam", "DEL")
            .program(&program)
            .run(&rail(0))
            .ok();
    }
}

// Files of the node.

#[test]
fn a_wrong_store_file_is_named_and_del_does_not_care() {
    let Some(bench) = Bench::new("store") else {
        return;
    };
    let good = json!({"version": 1, "prefix": "172.16.0.0/31", "gateway": "172.16.0.1"});
    let changed = |more: Value| with(good.clone(), more).to_string();
    let table = [
        (String::new(), ""),
        ("{".to_owned(), ""),
        ("[]".to_owned(), ""),
        ("{}".to_owned(), "version"),
        (format!("{good}{good}"), ""),
        (changed(json!({"version": 3})), "version"),
        (changed(json!({"prefix": "x"})), "prefix"),
        (changed(json!({"prefix": "172.16.0.1/31"})), "prefix"),
        (changed(json!({"gateway": "x"})), "gateway"),
        (changed(json!({"gateway": "172.16.0.2"})), "gateway"),
        (changed(json!({"gateway": "fe80::1"})), "gateway"),
        (changed(json!({"routes": "x"})), "routes"),
        (
            changed(json!({"routes": [{"dst": "0.0.0.0/0"}]})),
            "routes[0].dst",
        ),
        (
            changed(json!({"routes": [{"dst": "10.0.0.1/8"}]})),
            "routes[0].dst",
        ),
        (
            changed(json!({"exclusions": [{"startIP": "172.16.0.1", "endIP": "172.16.0.0"}]})),
            "exclusions[0]",
        ),
        (changed(json!({"unknown": 1})), "unknown"),
    ];
    let file = bench.host.path("store/node-1/rail-0.json");
    for (content, word) in table {
        fs::write(&file, &content).unwrap();
        for program in ["rail-ipam", "rail-cni"] {
            bench.refuses(program, &rail(0), 6, &[file.to_str().unwrap(), word]);
            bench.call(program, "STATUS").run(&rail(0)).error(50);
            bench.call(program, "DEL").run(&rail(0)).ok();
        }
    }
}

#[test]
fn a_wrong_node_json_is_named_with_its_key() {
    let Some(bench) = Bench::new("node_json") else {
        return;
    };
    let file = bench.host.path("node.json");
    let good: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let changed = |more: Value| with(good.clone(), more).to_string();
    let table = [
        (String::new(), "node.json"),
        ("{".to_owned(), "node.json"),
        ("[]".to_owned(), "node.json"),
        (changed(json!({"unknown": 1})), "unknown"),
        (changed(json!({"runDir": 7})), "runDir"),
        (changed(json!({"runDir": "run"})), "runDir"),
        (changed(json!({"storeDir": ""})), "storeDir"),
        (changed(json!({"nodeName": "a/b"})), "nodeName"),
        (changed(json!({"nodeName": 7})), "nodeName"),
        (changed(json!({"rails": {}})), "rails"),
        (changed(json!({"rails": [{"rail": 0}]})), "rails[0]"),
        (
            changed(json!({"rails": [{"rail": -1, "pf": "x"}]})),
            "rails[0].rail",
        ),
        (changed(json!({"log": {"level": "loud"}})), "log.level"),
        (changed(json!({"log": {"levle": "info"}})), "levle"),
        (changed(json!({"log": {"dir": "log"}})), "log.dir"),
        (
            changed(json!({"policy": {"vfsOnly": "yes"}})),
            "policy.vfsOnly",
        ),
        (changed(json!({"policy": {"vfOnly": true}})), "vfOnly"),
        (changed(json!({"callTimeout": "1"})), "callTimeout"),
        (
            changed(json!({"callTimeout": 0})),
            "callTimeout: 0 must be 1 to 3600 seconds",
        ),
        (
            changed(json!({"callTimeout": 3601})),
            "callTimeout: 3601 must be 1 to 3600 seconds",
        ),
        (changed(json!({"firstTable": 0})), "firstTable: 0 must be"),
        (
            changed(json!({"firstTable": 200})),
            "firstTable: 200 must be",
        ),
    ];
    for (content, word) in table {
        fs::write(&file, &content).unwrap();
        for program in ["rail-ipam", "rail-cni"] {
            bench.refuses(program, &rail(0), 7, &["node.json", word]);
            bench
                .call(program, "STATUS")
                .run(&rail(0))
                .error(if program == "rail-cni" { 50 } else { 7 });
        }
    }
    fs::write(&file, changed(json!({"callTimeout": 3600}))).unwrap();
    bench.call("rail-cni", "STATUS").run(&rail(0)).ok();
    fs::remove_file(&file).unwrap();
    bench.refuses("rail-cni", &rail(0), 5, &["node.json"]);
}

/// The operator's mistake costs no pod its end: what says where our state is counts by itself.
#[test]
fn del_gives_back_although_node_json_is_wrong() {
    let Some(bench) = Bench::new("del_node_json") else {
        return;
    };
    let file = bench.host.path("node.json");
    let text = fs::read_to_string(&file).unwrap();
    let good: Value = serde_json::from_str(&text).unwrap();
    let wrong = [
        json!({"unknown": 1}),
        json!({"rails": {}}),
        json!({"policy": {"vfsOnly": "yes"}}),
        json!({"log": 7}),
        json!({"nodeName": "a/b"}),
        json!({"storeDir": 7}),
    ];
    for more in wrong {
        bench.call("rail-cni", "ADD").run(&rail(0)).ok();
        fs::write(&file, with(good.clone(), more.clone()).to_string()).unwrap();
        bench.call("rail-cni", "DEL").run(&rail(0)).ok();
        fs::write(&file, &text).unwrap();
        bench.is_as_before(&more.to_string());
    }
}

/// A file that was truncated or lost, where the default directories are in use: attachments end by
/// what is there. Elsewhere a DEL that finds nothing cannot know that nothing is left.
#[test]
fn attachments_end_although_node_json_cannot_be_read() {
    let Some(host) = Host::new("badinput::broken_node_json") else {
        return;
    };
    host.add_rail(0);
    let file = host.path("node.json");
    let custom = host.path("run");
    host.set_node(json!({"sysfsRoot": "/sys", "runDir": "/run/rail-cni"}));
    let defaults = fs::read_to_string(&file).unwrap();
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    let call = |verb: &str| host.call(verb, "c1", &pod);
    let broken = ["", "{", &defaults[..30], r#"{"runDir": 7}"#];
    for broken in broken {
        println!("{broken}");
        for is_ipam in [false, true] {
            let call = |verb: &str| {
                if is_ipam {
                    call(verb).ipam()
                } else {
                    call(verb)
                }
            };
            fs::write(&file, &defaults).unwrap();
            call("ADD").run(&rail(0)).ok();
            fs::write(&file, broken).unwrap();
            call("DEL").run(&rail(0)).ok();
            let msg = call("DEL").run(&rail(0)).error(7)["msg"].to_string();
            assert!(
                msg.contains("node.json") && msg.contains("/run/rail-cni"),
                "{msg}"
            );
            assert_eq!(host.snapshot(), before);
        }
    }
    for verb in ["GC", "reap"] {
        println!("{verb}");
        let pod = host.add_netns(verb);
        fs::write(&file, &defaults).unwrap();
        host.cni("ADD", "c2", &pod, &rail(0)).ok();
        host.hand_back(&pod, "net1");
        fs::write(&file, "{").unwrap();
        let gc = with(rail(0), json!({"cni.dev/valid-attachments": []}));
        match verb {
            "GC" => call("GC").var("CNI_NETNS", "").run(&gc).ok(),
            _ => call("").args(&["reap"]).run(&Value::Null).ok(),
        };
        assert_eq!(host.snapshot(), before);
    }
    // A default directory that an earlier call made says nothing of the one that is meant.
    let gc = with(rail(0), json!({"cni.dev/valid-attachments": []}));
    let msg = call("GC").var("CNI_NETNS", "").run(&gc).error(7)["msg"].to_string();
    assert!(msg.contains("node.json"), "{msg}");
    for args in [&["reap"][..], &["reap", "--force", "c1"]] {
        let ran = call("").args(args).run(&Value::Null);
        assert!(
            ran.status == 1 && ran.stderr.contains("node.json"),
            "{ran:?}"
        );
    }
    assert!(!custom.exists());
    fs::remove_dir_all("/run/rail-cni").unwrap();
}

// Anything.

const PROGRAMS: [&str; 2] = ["rail-cni", "rail-ipam"];
const VERBS: [&str; 6] = ["ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION"];

/// A configuration with every key.
fn full(bench: &Bench) -> Value {
    let more = json!({
        "deviceID": vf_address(0), "mac": "02:00:00:00:00:77", "routing": "source-based", "rdma": "auto",
        "routes": [{"dst": "10.0.0.0/8", "gw": "172.16.0.1", "mtu": 9000, "priority": 5, "table": 100, "scope": 0}],
        "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
        "dns": {"nameservers": ["10.0.0.1"], "domain": "x", "search": ["y"], "options": []},
        "args": {"cni": {"mac": "02:00:00:00:00:78", "ips": ["172.16.0.0"]}},
        "runtimeConfig": {"mac": "02:00:00:00:00:79", "ips": ["172.16.0.0/31"], "deviceID": vf_address(0),
            "CNIDeviceInfoFile": bench.host.path("devinfo/info")},
        "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/x", "mtu": 1500}],
            "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 0}], "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {}},
        "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}],
        "vlan": 0, "spoofchk": "", "logLevel": "debug",
    });
    with(rail(0), more)
}

/// JSON as it comes, with texts that mean something somewhere.
fn any_json() -> impl Strategy<Value = Value> {
    let texts = prop_oneof![
        Just(String::new()),
        "[a-z0-9.:/ é-]{0,20}",
        prop::sample::select(vec![
            "net1",
            "vf0",
            "lo",
            "..",
            "/",
            "rail-0",
            "10.0.0.0/8",
            "::/0",
            "0.1.0",
            "on",
            "\0"
        ])
        .prop_map(str::to_owned),
        "x{300}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2_i64..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        texts.prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z.]{0,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Paths to everything in `value`.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| pointers(value, &format!("{at}/{}", escape(key)), found)),
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(index, value)| pointers(value, &format!("{at}/{index}"), found));
        }
        _ => (),
    }
}

#[test]
fn bytes_that_are_no_configuration_are_answered() {
    let Some(bench) = Bench::new("bytes") else {
        return;
    };
    let whole = full(&bench).to_string().into_bytes();
    let mangled = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        any::<Vec<u8>>(),
    )
        .prop_map(move |(from, to, with)| {
            let (from, to) = (from.index(whole.len()), to.index(whole.len()));
            [&whole[..from.min(to)], &with, &whole[from.max(to)..]].concat()
        });
    let bytes = prop_oneof![prop::collection::vec(any::<u8>(), 0..200), mangled];
    let calls = (
        prop::sample::select(&PROGRAMS[..]),
        prop::sample::select(&VERBS[..]),
        bytes,
    );
    runner(96)
        .run(&calls, |(program, verb, bytes)| {
            is_an_answer(&bench.call(program, verb).run_with(&bytes))
        })
        .unwrap();
    bench.is_as_before("bytes");
}

/// One value of a good configuration is another: what ADD takes, CHECK finds and DEL gives back.
#[test]
fn a_configuration_with_one_wrong_value_is_refused_or_served_and_given_back() {
    let Some(bench) = Bench::new("mutated") else {
        return;
    };
    let good = full(&bench);
    let mut all = Vec::new();
    pointers(&good, "", &mut all);
    let calls = (
        prop::sample::select(&PROGRAMS[..]),
        prop::sample::select(all),
        any_json(),
    );
    runner(128)
        .run(&calls, |(program, pointer, value)| {
            let mut config = good.clone();
            *config.pointer_mut(&pointer).unwrap() = value;
            let added = bench.call(program, "ADD").run(&config);
            is_an_answer(&added)?;
            if added.status == 0 {
                let checked = with(config.clone(), json!({"prevResult": added.json()}));
                is_an_answer(&bench.call(program, "CHECK").run(&checked))?;
            }
            for verb in ["STATUS", "GC", "DEL"] {
                is_an_answer(&bench.call(program, verb).run(&config))?;
            }
            let deleted = bench.call(program, "DEL").run(&config);
            prop_assert!(added.status == 1 || deleted.status == 0, "{deleted:?}");
            prop_assert_eq!(bench.host.snapshot(), bench.before.clone());
            Ok(())
        })
        .unwrap();
}

#[test]
fn variables_of_any_content_are_answered() {
    let Some(bench) = Bench::new("variables") else {
        return;
    };
    let pod = bench.pod.display().to_string();
    let text = prop_oneof![
        Just(String::new()),
        "[^\0]{0,20}",
        "[a-zA-Z0-9_.-]{1,300}",
        prop::sample::select(vec![
            "net1",
            "c1",
            "..",
            "/",
            "/dev/null",
            "/proc/self/ns/net",
            "ADD",
            "VERSION"
        ])
        .prop_map(str::to_owned),
        Just(pod),
    ];
    let names = [
        "CNI_COMMAND",
        "CNI_CONTAINERID",
        "CNI_NETNS",
        "CNI_IFNAME",
        "CNI_ARGS",
        "CNI_PATH",
    ];
    let changes = prop::collection::vec((prop::sample::select(names.to_vec()), text), 1..3);
    let calls = (
        prop::sample::select(&PROGRAMS[..]),
        prop::sample::select(&VERBS[..]),
        changes,
    );
    runner(96)
        .run(&calls, |(program, verb, changes)| {
            let mut call = bench.call(program, verb);
            for (name, value) in &changes {
                call = call.var(name, value);
            }
            let ran = call.run(&rail(0));
            is_an_answer(&ran)?;
            // An ADD that was served is given back by the DEL of its own variables.
            let deleted = call.var("CNI_COMMAND", "DEL").run(&rail(0));
            is_an_answer(&deleted)?;
            prop_assert_eq!(
                bench.host.snapshot(),
                bench.before.clone(),
                "{:?} {:?}",
                ran,
                deleted
            );
            Ok(())
        })
        .unwrap();
}

/// One value of a record or a lease is another, as after an upgrade gone wrong: every call is
/// answered. What a record says is believed, so each case has a host of its own.
#[test]
fn records_and_leases_of_any_content_are_answered() {
    let cases = (any::<bool>(), any::<prop::sample::Index>(), any_json());
    runner(64)
        .run(&cases, |(is_record, which, value)| {
            let Some(bench) = Bench::new("records") else {
                return Ok(());
            };
            let config = rail(0);
            let added = bench.call("rail-cni", "ADD").run(&config).ok().json();
            let files = if is_record {
                bench.host.records()
            } else {
                bench.host.leases()
            };
            let [file]: [PathBuf; 1] = files.try_into().unwrap();
            let mut content: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            bench.call("rail-cni", "DEL").run(&config).ok();
            let mut all = Vec::new();
            pointers(&content, "", &mut all);
            *content.pointer_mut(&all[which.index(all.len())]).unwrap() = value;
            let lock = bench
                .host
                .path(&format!("run/locks/device-{}", vf_address(0)));
            for verb in ["CHECK", "GC", "DEL", "ADD"] {
                // The folder of a pool goes with its last lease.
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(&file, content.to_string()).unwrap();
                if is_record {
                    fs::write(&lock, content.to_string()).unwrap();
                }
                let config = with(config.clone(), json!({"prevResult": added}));
                is_an_answer(&bench.call("rail-cni", verb).run(&config))?;
            }
            is_an_answer(&bench.call("rail-cni", "DEL").run(&config))
        })
        .unwrap();
}
