//! A device that is back on the host is free, also where something of it is still owed: whoever
//! uses it by now keeps it as it is.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use serde_json::{Value, json};

use crate::harness::{self, Call, Host, Ran, pf_address, rail, run, vf_address, with};
use crate::programs::RAIL_IPAM;
use crate::trace::{self, Fate};

/// Two rails, a pod for each, and what there was before.
struct Bench {
    host: Host,
    pods: [PathBuf; 2],
    before: Value,
}

impl Bench {
    fn new(test: &str) -> Option<Bench> {
        let host = Host::new(&format!("free::{test}"))?;
        host.add_rail(0);
        host.add_rail(1);
        host.make_vf(0, "mlx5_core");
        let pods = [host.add_netns("c1"), host.add_netns("c2")];
        let before = host.snapshot();
        Some(Bench { host, pods, before })
    }

    fn call(&self, verb: &str, pod: usize) -> Call {
        self.host.call(verb, ["c1", "c2"][pod], &self.pods[pod])
    }

    fn reap(&self) -> Ran {
        self.call("", 0).args(&["reap"]).run(&Value::Null)
    }

    fn config(&self) -> Value {
        with(rail(0), json!({"device": null, "deviceID": vf_address(0)}))
    }

    /// A pod's whole life on rail 0, while a bridge has the name of its device: under the name that
    /// is returned, the device is free and owes that.
    fn leave_debt(&self) -> String {
        self.call("ADD", 0).run(&self.config()).ok();
        self.host.ip("link add vf0 type bridge");
        let deleted = self.call("DEL", 0).run(&self.config()).ok();
        assert!(deleted.stderr.contains(" warn "), "{deleted:?}");
        self.follow_name()
    }

    /// The life of a pod that puts a macvlan of its rail into the other pod's namespace, where its
    /// DEL does not find it.
    fn end_with_a_macvlan_elsewhere(&self) -> Ran {
        let other = self.pods[1].file_name().unwrap().to_str().unwrap();
        self.call("ADD", 0).run(&self.config()).ok();
        self.host
            .ip_in(&self.pods[0], "link add mv link net1 type macvlan");
        self.host
            .ip_in(&self.pods[0], &format!("link set mv netns {other}"));
        trace::run_with(&self.call("DEL", 0), &self.config(), no_search())
            .ran
            .ok()
    }

    /// The sysfs of files says by which name the device returned, as the kernel's own does.
    fn follow_name(&self) -> String {
        let links = self.host.json(None, "link show");
        let names = links
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|link| link["ifname"].as_str());
        let name = names
            .into_iter()
            .find(|name| name.starts_with("dev"))
            .unwrap()
            .to_owned();
        let net = self
            .host
            .path(&format!("sys/devices/{}/net", vf_address(0)));
        fs::rename(net.join("vf0"), net.join(&name)).unwrap();
        name
    }

    /// The steps of one record that are pending.
    fn left(&self) -> Vec<String> {
        harness::left(&self.host.only_pending())
    }

    /// A DEL that was killed has not written what is left.
    fn forget_what_is_owed(&self) {
        let mut record = self.host.only_pending();
        for step in record["steps"].as_array_mut().unwrap() {
            if !["move", "rail"].contains(&harness::name_of(step).as_str()) {
                step["state"] = json!("done");
            }
        }
        fs::write(&self.host.pending()[0], record.to_string()).unwrap();
    }

    /// The state that users of the device see. The kernel gives an address of its own to what is
    /// up.
    fn seen(&self, device: &str) -> Value {
        let link = &self.host.json(None, &format!("link show {device}"))[0];
        let is_up = link["flags"].as_array().unwrap().contains(&json!("UP"));
        let addresses = self
            .host
            .ip(&format!("-oneline addr show dev {device} scope global"));
        let routes = self.host.ip(&format!("route show dev {device}"));
        let other = self.host.json(Some(&self.pods[1]), "link show");
        let names: Vec<_> = other
            .as_array()
            .unwrap()
            .iter()
            .map(|link| &link["ifname"])
            .collect();
        json!([
            is_up,
            link["mtu"],
            link["address"],
            link["master"],
            addresses,
            routes,
            names
        ])
    }

    /// The name is free, and so is the device: what is owed can be paid.
    fn ends_as_before(&self) {
        self.host.ip("link del vf0");
        self.reap().ok();
        assert_eq!(self.host.snapshot(), self.before);
    }
}

/// Each use: what makes it, what ends it, and what the calls say. `DEV` is the device, `POD`
/// another namespace.
const USES: [(&str, &[&str], &[&str]); 5] = [
    (
        "10.9.9.1/24",
        &[
            "link set DEV up",
            "addr add 10.9.9.1/24 dev DEV",
            "route add 10.8.0.0/16 via 10.9.9.2",
        ],
        &["addr del 10.9.9.1/24 dev DEV", "link set DEV down"],
    ),
    (
        "10.8.0.0/16",
        &["link set DEV up", "route add 10.8.0.0/16 dev DEV"],
        &["link set DEV down"],
    ),
    (
        "br0",
        &["link add br0 type bridge", "link set DEV up master br0"],
        &["link set DEV nomaster", "link set DEV down", "link del br0"],
    ),
    (
        "mv (macvlan)",
        &[
            "link set DEV up",
            "link add mv link DEV type macvlan",
            "link set mv netns POD",
        ],
        &["-n POD link del mv", "link set DEV down"],
    ),
    ("up", &["link set DEV up"], &["link set DEV down"]),
];

#[test]
fn a_debt_leaves_a_device_alone_that_somebody_uses_by_now() {
    for (says, make, end) in USES {
        let Some(bench) = Bench::new("used") else {
            return;
        };
        let device = bench.leave_debt();
        let pod = bench.pods[1].file_name().unwrap().to_str().unwrap();
        let carry_out = |steps: &[&str]| {
            for step in steps {
                bench
                    .host
                    .ip(&step.replace("DEV", &device).replace("POD", pod));
            }
        };
        carry_out(make);
        let seen = bench.seen(&device);
        let other = rail(1);
        let gc = with(other.clone(), json!({"cni.dev/valid-attachments": []}));
        bench.host.make_due();
        bench.call("DEL", 1).run(&other).ok();
        assert_eq!(bench.seen(&device), seen, "DEL of another pod; {says}");
        bench.host.make_due();
        bench.call("GC", 1).run(&gc).ok();
        assert_eq!(bench.seen(&device), seen, "GC; {says}");
        let reaped = bench.reap();
        assert_eq!(reaped.status, 1, "{reaped:?}");
        assert!(reaped.stdout.contains(says), "{says}: {reaped:?}");
        assert_eq!(bench.seen(&device), seen, "reap; {says}");
        // A device that is up is no reason for an ADD to refuse it.
        if says != "up" {
            let refused = bench.call("ADD", 1).run(&bench.config());
            assert!(refused.msg().contains(says), "{refused:?}");
            assert_eq!(bench.seen(&device), seen, "ADD; {says}");
        }
        carry_out(end);
        bench.ends_as_before();
    }
}

/// The name alone is owed, and who waits for that need not lose the carrier of a device that nobody
/// seems to use.
#[test]
fn a_name_that_is_still_taken_costs_no_carrier() {
    let Some(mut bench) = Bench::new("carrier") else {
        return;
    };
    bench.host.ip("link set vf0 up");
    bench.before = bench.host.snapshot();
    let device = bench.leave_debt();
    let changes = || {
        let port = bench.pods[1].with_file_name(bench.host.leaf());
        bench.host.json(Some(&port), "-s -s link show leaf0")[0]["stats64"]["tx"]["carrier_changes"]
            .clone()
    };
    let before = changes();
    assert!(before.is_number(), "{before}");
    assert_eq!(bench.reap().status, 1);
    assert_eq!(changes(), before);
    bench.host.ip(&format!("link show {device} up"));
    bench.host.ip("link del vf0");
    bench.reap().ok();
    // The kernel adds a link-local address when it has time.
    assert_eq!(bench.host.snapshot()["links"], bench.before["links"]);
}

/// Does a search through the namespaces of the node begin here?
fn is_search(point: &trace::Point) -> bool {
    point
        .opened()
        .is_some_and(|name| name == "/proc/self/mountinfo")
}

/// DEL cannot search for what the pod stacked on its rail, after the move home.
fn no_search() -> impl FnMut(trace::Point) -> Fate {
    let (mut is_home, mut is_refused) = (false, false);
    move |point| {
        is_home |= point
            .sent()
            .is_some_and(|sent| sent[4..6] == libc::RTM_SETLINK.to_ne_bytes());
        if !is_home || is_refused || !is_search(&point) {
            return Fate::Made;
        }
        is_refused = true;
        Fate::Fails(Errno::ENOMEM)
    }
}

/// A pod's macvlan keeps the rail beyond its end, wherever it is: that it could not be removed at
/// once is no reason to leave it there.
#[test]
fn what_a_pod_stacked_on_its_rail_is_owed_until_it_is_gone() {
    let test = "free::stacked";
    let Some(bench) = Bench::new("stacked") else {
        return;
    };
    if !trace::is_allowed(test) || !trace::can_fail(test) {
        return;
    }
    let deleted = bench.end_with_a_macvlan_elsewhere();
    assert!(
        deleted
            .stderr
            .contains("pod default/pod, container c1 as net1"),
        "{deleted:?}"
    );
    bench.host.ip_in(&bench.pods[1], "link show mv");
    // It stays everything while somebody uses the device, and while another call has it.
    bench.forget_what_is_owed();
    let lock = File::open(
        bench
            .host
            .path(&format!("run/locks/device-{}", vf_address(0))),
    )
    .unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    bench.call("DEL", 1).run(&rail(1)).ok();
    drop(lock);
    assert_eq!(bench.left(), ["netdev", "links", "driver"]);
    bench.forget_what_is_owed();
    bench.host.ip("addr add 10.9.9.1/24 dev vf0");
    let reaped = bench.reap();
    assert!(reaped.stdout.contains("10.9.9.1/24"), "{reaped:?}");
    bench.host.ip("addr del 10.9.9.1/24 dev vf0");
    bench.host.ip_in(&bench.pods[1], "link show mv");
    bench.reap().ok();
    assert!(
        !bench
            .host
            .ip_in(&bench.pods[1], "link show")
            .contains("mv@")
    );
    assert_eq!(bench.host.snapshot(), bench.before);
}

/// They would be on the wire of the next pod.
#[test]
fn a_device_on_which_links_of_a_pod_may_be_left_is_not_handed_out() {
    let test = "free::links";
    let Some(bench) = Bench::new("links") else {
        return;
    };
    if !trace::is_allowed(test) || !trace::can_fail(test) {
        return;
    }
    bench.end_with_a_macvlan_elsewhere();
    let is_left = || {
        bench
            .host
            .ip_in(&bench.pods[1], "link show")
            .contains("mv@")
    };
    // From each search on, none can be made.
    let mut is_refused = false;
    for made in 0..30 {
        let mut searches = 0;
        let no_further = |point: trace::Point| {
            searches += u32::from(is_search(&point));
            if is_search(&point) && searches > made {
                Fate::Fails(Errno::ENOMEM)
            } else {
                Fate::Made
            }
        };
        let ran = trace::run_with(&bench.call("ADD", 1), &bench.config(), no_further).ran;
        if ran.status == 0 {
            assert!(!is_left(), "it is handed out: {ran:?}");
            break;
        }
        let error = ran.json();
        if error["code"] == 11 {
            assert!(
                is_left() && ran.msg().contains("pod default/pod, container c1 as net1"),
                "{ran:?}"
            );
            is_refused = true;
        }
    }
    assert!(is_refused && !is_left());
    bench.call("DEL", 1).run(&bench.config()).ok();
    bench.reap().ok();
    assert_eq!(bench.host.snapshot(), bench.before);
}

/// The kernel gives the inode number of a namespace that ended to one that is made later.
#[test]
fn a_later_namespace_of_the_same_number_does_not_keep_what_ended_with_the_pod() {
    let Some(bench) = Bench::new("number") else {
        return;
    };
    bench.call("ADD", 0).run(&rail(1)).ok();
    let later = harness::Sleeper::new(Some(&bench.pods[1]));
    let file = bench.host.records().pop().unwrap();
    let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    record["owner"]["netns"]["ino"] = json!(later.netns().metadata().unwrap().ino());
    fs::write(&file, record.to_string()).unwrap();
    bench.host.delete_netns(&bench.pods[0]);
    bench.call("DEL", 0).run(&rail(1)).ok();
    assert_eq!(
        (bench.host.records().len(), bench.host.pending().len()),
        (0, 0)
    );
}

/// The device is free while the DEL of its IPAM is at work: what the next ADD restores by then is
/// not done a second time, to whoever stacks something on the device later.
#[test]
fn what_an_add_paid_beside_the_end_of_a_del_is_not_owed_again() {
    let test = "free::beside";
    let Some(bench) = Bench::new("beside") else {
        return;
    };
    if !trace::is_allowed(test) || !trace::can_fail(test) {
        return;
    }
    let (reached, go) = (bench.host.path("reached"), bench.host.path("go"));
    let waits = format!(
        "touch {}; until test -e {}; do sleep 0.01; done",
        reached.display(),
        go.display()
    );
    let ipam = RAIL_IPAM;
    bench.host.add_plugin(
        "stand-in",
        &format!("test $CNI_COMMAND = DEL && {{ {waits}; }}; exec {ipam}"),
    );
    let config = with(
        bench.config(),
        json!({"ipam": {"type": "stand-in", "pool": "rail-0"}}),
    );
    bench.call("ADD", 0).run(&config).ok();
    let other = bench.pods[1].file_name().unwrap().to_str().unwrap();
    bench
        .host
        .ip_in(&bench.pods[0], "link add mv link net1 type macvlan");
    bench
        .host
        .ip_in(&bench.pods[0], &format!("link set mv netns {other}"));
    bench.host.ip("link add vf0 type bridge");
    std::thread::scope(|scope| {
        let deleting = scope.spawn(|| trace::run_with(&bench.call("DEL", 0), &config, no_search()));
        while !reached.exists() && !deleting.is_finished() {
            std::thread::yield_now();
        }
        bench.follow_name();
        // The request of the ADD is looked at after the device was restored.
        bench
            .call("ADD", 1)
            .run(&with(config.clone(), json!({"mtu": 100_000})))
            .error(7);
        assert!(
            !bench
                .host
                .ip_in(&bench.pods[1], "link show")
                .contains("mv@")
        );
        fs::write(go, "").unwrap();
        deleting.join().unwrap().ran.ok();
    });
    assert_eq!(bench.left(), ["netdev"]);
    bench.ends_as_before();
}

/// The PF would take the settings of the VF with it.
#[test]
fn a_pf_is_not_attached_while_an_add_of_its_vf_is_at_work() {
    let Some(bench) = Bench::new("pf") else {
        return;
    };
    let Bench { host, .. } = &bench;
    host.set_node(json!({"policy": {"pfsWithVfs": true}}));
    host.ip("link add pf0 type veth peer name pf0-peer");
    host.ip("link set pf0 mtu 9000");
    let (reached, go) = (host.path("reached"), host.path("go"));
    let ipam = RAIL_IPAM;
    let waits = format!(
        "touch {}; until test -e {}; do sleep 0.01; done",
        reached.display(),
        go.display()
    );
    host.add_plugin("stand-in", &format!("{waits}; exec {ipam}"));
    let vf = with(
        bench.config(),
        json!({"ipam": {"type": "stand-in", "pool": "rail-0"}}),
    );
    let pf = with(
        rail(0),
        json!({"device": null, "deviceID": pf_address(0), "ipam": {}}),
    );
    let (command, stdin) = (bench.call("ADD", 0).command(), vf.to_string());
    // This thread's namespace is inherited.
    let adding = std::thread::spawn(move || run(command, stdin.as_bytes()));
    while !reached.exists() && !adding.is_finished() {
        std::thread::yield_now();
    }
    let refused = bench.call("ADD", 1).run(&pf);
    fs::write(go, "").unwrap();
    adding.join().unwrap().ok();
    let says = "0000:01:00.0 …0000:01:10.0…pod default/pod, container c1";
    assert!(
        golden::has(refused.error(11)["msg"].as_str().unwrap(), says),
        "{refused:?}"
    );
    bench.call("DEL", 0).run(&vf).ok();
    bench.call("ADD", 1).run(&pf).ok();
    bench.call("DEL", 1).run(&pf).ok();
}

/// A runtime may add an attachment again under its name.
#[test]
fn what_is_owed_of_rules_leaves_those_of_the_same_attachment_that_was_added_anew() {
    let test = "free::heir";
    let Some(bench) = Bench::new("heir") else {
        return;
    };
    if !trace::is_allowed(test) || !trace::can_fail(test) {
        return;
    }
    let fate = |point: trace::Point| {
        let is_removal = point
            .sent()
            .is_some_and(|sent| sent[4..6] == libc::RTM_DELRULE.to_ne_bytes());
        if is_removal {
            Fate::Fails(Errno::EIO)
        } else {
            Fate::Made
        }
    };
    bench.call("ADD", 0).run(&bench.config()).ok();
    let rules = bench.host.ip_in(&bench.pods[0], "rule");
    let deleted = trace::run_with(&bench.call("DEL", 0), &bench.config(), fate)
        .ran
        .ok();
    assert!(deleted.stderr.contains(" warn "), "{deleted:?}");
    trace::run_with(&bench.call("ADD", 0), &bench.config(), fate)
        .ran
        .ok();
    bench.host.make_due();
    bench.call("DEL", 1).run(&rail(1)).ok();
    assert_eq!(bench.host.ip_in(&bench.pods[0], "rule"), rules);
    bench.call("DEL", 0).run(&bench.config()).ok();
    bench.reap().ok();
    assert!(!bench.host.ip_in(&bench.pods[0], "rule").contains("172.16."));
    assert_eq!(bench.host.snapshot(), bench.before);
}

/// A name with a typing error, or of a pod that was reaped before: nothing is left of it either
/// way.
#[test]
fn reap_says_when_it_knows_nothing_of_a_name() {
    let Some(bench) = Bench::new("unknown") else {
        return;
    };
    let reap = |which: &str| {
        bench
            .call("", 0)
            .args(&["reap", which])
            .run(&Value::Null)
            .ok()
            .stderr
    };
    let names = |told: &str, which: &str| {
        told.lines().count() == 1 && told.contains(&format!(" {which}: "))
    };
    assert!(names(&reap("c1"), "c1"));
    golden::says("railctl", "reap: an unknown name", reap("c1"));
    bench.call("ADD", 0).run(&bench.config()).ok();
    for known in ["c1", "default/pod", &vf_address(0)] {
        assert_eq!(reap(known), "", "{known}");
    }
    assert!(names(&reap("default/pot"), "default/pot"));
}
