//! A driver that started anew made its netdev on the host, under a pod that lives. `railctl reap
//! --reattach` returns the rail to the pod, as ADD made it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{self, Host, Ran, Sleeper, pf_address, rail, vf_address, with};
use crate::host_address;
use crate::trace::{self, Fate};

/// A pod that has rail 0 with all that a network can set without a PF.
struct Attached {
    host: Host,
    pod: PathBuf,
    config: Value,
    /// The result of ADD.
    added: Value,
    /// The host before ADD.
    before: Value,
}

impl Attached {
    fn new(test: &str, config: impl Fn(&Host) -> Value) -> Option<Attached> {
        let host = Host::new(test)?;
        host.add_rail(0);
        host.ip("link property add dev vf0 altname enp1s0v0");
        let before = host.snapshot();
        let pod = host.add_netns("pod");
        let config = config(&host);
        let added = host.cni("ADD", "c1", &pod, &config).ok().json();
        Some(Attached {
            host,
            pod,
            config,
            added,
            before,
        })
    }

    /// The netdev is on the host, under its former name, with the MAC that it has.
    fn lose(&self) {
        let process = Sleeper::new(None);
        let pid = process.pid();
        self.host
            .ip_in(&self.pod, &format!("link set net1 down netns {pid}"));
        self.host.ip("link set net1 name vf0");
    }

    fn check(&self) -> Ran {
        let config = with(self.config.clone(), json!({"prevResult": self.added}));
        self.host.cni("CHECK", "c1", &self.pod, &config)
    }

    fn status(&self) -> Value {
        let shown = railctl(&self.host, &["status", "--output", "json"]).json();
        shown["attachments"][0].clone()
    }

    fn reattach(&self) -> Ran {
        railctl(&self.host, &["reap", "--reattach"])
    }

    /// Routes, rules and addresses of the pod, by what they say.
    fn network(&self) -> Vec<String> {
        let show = |what| {
            let mut lines: Vec<_> = self
                .host
                .ip_in(&self.pod, what)
                .lines()
                .map(str::to_owned)
                .collect();
            lines.sort();
            lines.join("\n")
        };
        vec![
            show("-4 -br address show dev net1"),
            show("-4 route show table all dev net1"),
            show("-4 rule"),
        ]
    }

    #[track_caller]
    fn is_whole_and_ends(&self) {
        self.check().ok();
        assert_eq!(self.status()["state"], "live");
        self.host.cni("DEL", "c1", &self.pod, &self.config).ok();
        assert_eq!(self.host.snapshot(), self.before);
        assert!(self.host.leases().is_empty());
    }

    /// The rail stays lost with this reason, which `status` shows, and its address stays leased.
    #[track_caller]
    fn stays_lost(&self, why: &str) {
        let done = self.reattach();
        assert_eq!(done.status, 1, "{done:?}");
        assert!(done.stdout.contains(why), "{done:?}");
        let shown = self.status();
        assert_eq!(shown["state"], "lost", "{shown}");
        let noted = shown["reattached"]["whyNot"].as_str().unwrap_or_default();
        assert!(noted.contains(why), "{shown}");
    }
}

fn railctl(host: &Host, args: &[&str]) -> Ran {
    let mut command = Command::new(harness::railctl());
    command
        .args(args)
        .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
    command.output().unwrap().into()
}

fn full(_: &Host) -> Value {
    let more = json!({
        "mac": "02:00:00:00:00:77", "gid": "off", "routes": [{"dst": "10.9.0.0/16"}],
        "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
    });
    with(rail(0), more)
}

fn file(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_lost_rail_comes_back_as_add_made_it() {
    let Some(attached) = Attached::new("reattach::back", full) else {
        return;
    };
    let network = attached.network();
    attached.lose();
    assert_eq!(attached.status()["state"], "lost");
    let differs = attached.check().error(100);
    assert!(
        differs["msg"]
            .as_str()
            .unwrap()
            .contains("railctl reap --reattach"),
        "{differs}"
    );
    let found = attached.host.snapshot();
    let dry = railctl(&attached.host, &["reap", "--reattach", "--dry-run"]).ok();
    assert!(dry.stdout.contains("would attach again: vf0"), "{dry:?}");
    assert_eq!(attached.host.snapshot(), found);

    let done = attached.reattach().ok();
    assert!(done.stdout.contains("1 attached again"), "{done:?}");
    assert_eq!(attached.network(), network);
    let pod = &attached.pod;
    assert_eq!(attached.host.sysctl(pod, "ipv4/conf/net1/arp_filter"), "1");
    assert_eq!(attached.host.sysctl(pod, "ipv4/conf/net1/arp_ignore"), "1");
    assert_eq!(attached.status()["reattached"]["times"], 1);

    attached.lose();
    attached.reattach().ok();
    assert_eq!(attached.status()["reattached"]["times"], 2);
    attached.is_whole_and_ends();
}

/// The netdev of a VF that its driver made anew has another index, another MAC where nobody prescribes
/// one, and the driver's MTU. The function tells whose it is.
#[test]
fn a_vf_that_its_driver_made_anew_comes_back() {
    let Some(host) = Host::new("reattach::anew") else {
        return;
    };
    host.add_rail(0);
    host.make_vf(0, "mlx5_core");
    let pod = host.add_netns("pod");
    host.ip("link set vf0 mtu 9000");
    let original = host.json(None, "link show vf0")[0]["address"].clone();
    let more = json!({"device": "", "deviceID": vf_address(0), "mtu": null, "gid": "off"});
    let config = with(rail(0), more);
    let added = host.cni("ADD", "c1", &pod, &config).ok().json();
    host.ip_in(&pod, "link del net1");
    let leaf = host.leaf();
    host.ip(&format!(
        "link add vf0 index 900 address 02:00:00:00:09:00 type veth peer name leaf0 netns {leaf}"
    ));
    railctl(&host, &["reap", "--reattach"]).ok();
    let check = with(config.clone(), json!({ "prevResult": added }));
    host.cni("CHECK", "c1", &pod, &check).ok();
    let link = &host.json(Some(&pod), "link show net1")[0];
    assert_eq!((&link["address"], &link["mtu"]), (&original, &json!(9000)));
    host.cni("DEL", "c1", &pod, &config).ok();
    let link = &host.json(None, "link show vf0")[0];
    assert_eq!((&link["address"], &link["mtu"]), (&original, &json!(9000)));
    assert!(host.leases().is_empty() && host.records().is_empty());
}

/// Nothing is lost, and nothing is done.
#[test]
fn a_rail_that_its_pod_has_is_left_alone() {
    let Some(attached) = Attached::new("reattach::alone", full) else {
        return;
    };
    let record = file(&attached.host.records()[0]);
    attached.reattach().ok();
    assert_eq!(file(&attached.host.records()[0]), record);
    attached.is_whole_and_ends();
}

#[test]
fn a_rail_without_an_address_comes_back() {
    let without = |_: &Host| {
        let mut config = full_without_ipam();
        config["mtu"] = json!(1400);
        config
    };
    let Some(attached) = Attached::new("reattach::no_ipam", without) else {
        return;
    };
    attached.lose();
    attached.reattach().ok();
    attached.is_whole_and_ends();
}

fn full_without_ipam() -> Value {
    let mut config = with(rail(0), json!({"mac": "02:00:00:00:00:77", "gid": "off"}));
    config.as_object_mut().unwrap().remove("ipam");
    config
}

/// The address of another IPAM plugin stays what it is: the plugin is not asked.
#[test]
fn a_rail_of_another_ipam_comes_back() {
    let of_static = |host: &Host| {
        host.add_static();
        host.with_static(full_without_ipam(), "172.16.0.0/31", "172.16.0.1")
    };
    let Some(attached) = Attached::new("reattach::static", of_static) else {
        return;
    };
    let network = attached.network();
    attached.lose();
    attached.reattach().ok();
    assert_eq!(attached.network(), network);
    attached.is_whole_and_ends();
}

#[test]
fn what_stands_in_the_way_is_said_and_tried_again() {
    let Some(attached) = Attached::new("reattach::refused", full) else {
        return;
    };
    let Attached { host, pod, .. } = &attached;
    attached.lose();
    host.ip_in(
        pod,
        "link add net1 index 700 type veth peer name net1-peer index 701",
    );
    attached.stays_lost("already has an interface net1");
    host.ip_in(pod, "link del net1");
    host.ip("address add 192.0.2.9/24 dev vf0");
    host.ip("link set vf0 mtu 1300");
    attached.stays_lost("192.0.2.9");
    assert_eq!(
        host.json(None, "link show vf0")[0]["mtu"],
        1300,
        "the host uses it"
    );
    host.ip("address del 192.0.2.9/24 dev vf0");
    // Another pod may have the address by now.
    let lease = &host.leases()[0];
    let content = std::fs::read(lease).unwrap();
    std::fs::remove_file(lease).unwrap();
    attached.stays_lost("172.16.0.0 is not leased to it any more");
    std::fs::write(lease, content).unwrap();
    attached.reattach().ok();
    assert_eq!(attached.status()["reattached"]["whyNot"], Value::Null);
    attached.is_whole_and_ends();
}

/// A lease that goes at any moment before the device is in the pod, where nobody else gets it any
/// more: the pod never has an address that it does not lease.
#[test]
fn an_address_is_set_only_while_it_is_leased() {
    let Some(attached) = Attached::new("reattach::lease", full) else {
        return;
    };
    if !trace::is_allowed("reattach::lease") {
        return;
    }
    let Attached {
        host, pod, config, ..
    } = &attached;
    let lease = host.leases()[0].clone();
    let content = std::fs::read(&lease).unwrap();
    let call = host.call("ADD", "c1", pod).without("CNI_COMMAND");
    let call = call
        .program(harness::railctl())
        .args(&["reap", "--reattach"]);
    let is_in_pod = || host.ip_in(pod, "-br link").contains("net1");
    let mut removed_before_move = 0;
    for victim in (60..340).step_by(7) {
        attached.lose();
        let mut was_in_pod = None;
        trace::run_with(&call, config, |point| {
            if point.count == victim {
                was_in_pod = Some(is_in_pod());
                std::fs::remove_file(&lease).unwrap();
            }
            Fate::Made
        });
        if was_in_pod == Some(false) {
            removed_before_move += 1;
            assert!(!is_in_pod(), "removed before call {victim}");
        }
        std::fs::write(&lease, &content).unwrap();
        if !is_in_pod() {
            attached.reattach().ok();
        }
    }
    assert!(removed_before_move > 10, "{removed_before_move}");
    attached.is_whole_and_ends();
}

/// A step fails after the move: the device is on the host again, and a later try succeeds.
#[test]
fn a_rail_whose_steps_fail_stays_lost() {
    let Some(attached) = Attached::new("reattach::failed", full) else {
        return;
    };
    let Attached { host, pod, .. } = &attached;
    attached.lose();
    // Another interface has the route that the rail needs, with its metric.
    host.ip_in(
        pod,
        "link add other index 700 type veth peer name other-peer index 701",
    );
    host.ip_in(pod, "link set other-peer up");
    host.ip_in(pod, "link set other up");
    host.ip_in(pod, "route add 10.9.0.0/16 dev other metric 1000");
    attached.stays_lost("10.9.0.0/16");
    assert!(host.ip("link show vf0").contains("vf0"));
    assert!(!host.ip_in(pod, "rule").contains("172.16.0.0"));
    host.ip_in(pod, "link del other");
    attached.reattach().ok();
    attached.is_whole_and_ends();
}

/// After a try that failed, somebody puts the device into the pod by hand: it is the pod's.
#[test]
fn a_rail_that_was_returned_by_hand_stays() {
    let Some(attached) = Attached::new("reattach::by_hand", full) else {
        return;
    };
    let Attached { host, pod, .. } = &attached;
    let network = attached.network();
    attached.lose();
    host.ip("address add 192.0.2.9/24 dev vf0");
    attached.stays_lost("192.0.2.9");
    let name = pod.file_name().unwrap().to_str().unwrap();
    host.ip(&format!("link set vf0 netns {name} name net1"));
    host.ip_in(pod, "address add 172.16.0.0/31 dev net1");
    assert_eq!(attached.status()["state"], "live");
    attached.reattach().ok();
    assert!(
        attached.network()[0].contains("172.16.0.0/31"),
        "{network:?}"
    );
    assert_eq!(attached.status()["reattached"]["times"], 0);
    host.cni("DEL", "c1", pod, &attached.config).ok();
    assert_eq!(host.snapshot(), attached.before);
}

/// The copy in the lock of the device is the record then, also of a pod that is gone.
#[test]
fn a_dead_pod_with_a_damaged_record_is_reaped() {
    let Some(attached) = Attached::new("reattach::damaged", full) else {
        return;
    };
    attached.host.hand_back(&attached.pod, "net1");
    std::fs::write(&attached.host.records()[0], "{").unwrap();
    let done = attached.reattach();
    assert!(done.stdout.contains("1 returned"), "{done:?}");
    assert!(attached.host.ip("link show vf0").contains("vf0"));
}

/// The host may have configured the new netdev by itself.
#[test]
fn a_rail_with_addresses_of_the_host_does_not_come_back() {
    let of_host = |host: &Host| {
        host.set_node(json!({"policy": {"hostAddresses": true}}));
        host.ip("link set vf0 up");
        host.ip("address add 172.16.0.0/31 dev vf0");
        with(host_address::config(), json!({"gid": "off"}))
    };
    let Some(attached) = Attached::new("reattach::of_host", of_host) else {
        return;
    };
    attached.lose();
    attached.stays_lost("vf0 has addresses of the host");
}

/// Without its PF on the host, the settings of a VF could not be restored.
#[test]
fn a_pf_whose_vf_a_pod_got_meanwhile_does_not_come_back() {
    let Some(host) = Host::new("reattach::pf") else {
        return;
    };
    host.set_node(json!({"policy": {"pfsWithVfs": true}}));
    host.add_rail(0);
    host.make_vf(0, "mlx5_core");
    host.plan("wide", "172.30.0.0/29", "172.30.0.1", &[]);
    host.ip("link add pf0 mtu 9000 type veth peer name leaf-pf");
    let class = host.path("sys/class/net/pf0");
    std::fs::create_dir_all(&class).unwrap();
    let function = host.path("sys/devices").join(pf_address(0));
    std::os::unix::fs::symlink(function, class.join("device")).unwrap();
    let pool = json!({"type": "rail-ipam", "pool": "wide"});
    let of_device = |id: String| {
        let more = json!({"device": "", "rail": null, "deviceID": id, "gid": "off", "ipam": pool});
        with(rail(0), more)
    };
    let of_pf = of_device(pf_address(0));
    let of_vf = of_device(vf_address(0));
    let pods = [host.add_netns("one"), host.add_netns("two")];
    host.cni("ADD", "c1", &pods[0], &of_pf).ok();
    let process = Sleeper::new(None);
    host.ip_in(
        &pods[0],
        &format!("link set net1 down netns {}", process.pid()),
    );
    host.ip("link set net1 name pf0");
    host.cni("ADD", "c2", &pods[1], &of_vf).ok();
    let done = railctl(&host, &["reap", "--reattach"]);
    assert!(done.stdout.contains("is the PF of"), "{done:?}");
    host.cni("DEL", "c2", &pods[1], &of_vf).ok();
    railctl(&host, &["reap", "--reattach"]).ok();
    host.cni("DEL", "c1", &pods[0], &of_pf).ok();
    assert!(host.leases().is_empty() && host.records().is_empty());
}

/// The runtime's GC does not know attachments that Multus made.
#[test]
fn gc_keeps_a_lost_rail() {
    let Some(attached) = Attached::new("reattach::gc", full) else {
        return;
    };
    attached.lose();
    let config = with(
        attached.config.clone(),
        json!({"cni.dev/valid-attachments": []}),
    );
    attached.host.cni("GC", "", Path::new(""), &config).ok();
    assert_eq!(attached.status()["state"], "lost");
    attached.reattach().ok();
    attached.is_whole_and_ends();
}

/// A pod that gets the device of a lost rail has it: the rail cannot come back.
#[test]
fn a_device_that_another_pod_got_does_not_come_back() {
    let Some(attached) = Attached::new("reattach::other", full) else {
        return;
    };
    attached.lose();
    let next = attached.host.add_netns("next");
    attached.host.cni("ADD", "c2", &next, &attached.config).ok();
    attached.reattach().ok();
    assert!(
        !attached
            .host
            .ip_in(&attached.pod, "-br link")
            .contains("net1")
    );
    attached.host.cni("DEL", "c2", &next, &attached.config).ok();
    attached
        .host
        .cni("DEL", "c1", &attached.pod, &attached.config)
        .ok();
    assert_eq!(attached.host.snapshot(), attached.before);
}
