//! `railctl status`: rails, attachments and their states.

use std::fs;

use serde_json::{Value, json};

use super::{files, run, two_rails};
use crate::harness::{Host, Sleeper, pf_address, rail, vf_address, with};

fn status(host: &Host) -> Value {
    run(host, &["status", "--output", "json"]).json()
}

#[test]
fn status_shows_rails_and_who_has_them() {
    let Some(host) = two_rails("operator::status") else {
        return;
    };
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(1)).ok();
    let counters = host
        .path("sys/devices")
        .join(vf_address(0))
        .join("infiniband/mlx5_2/ports/1/hw_counters");
    fs::create_dir_all(&counters).unwrap();
    fs::write(counters.join("packet_seq_err"), "7\n").unwrap();
    fs::write(counters.join("rcvd_pkts"), "8\n").unwrap();
    let before = files(host.dir.path());

    let shown = status(&host);
    assert_eq!(
        (&shown["node"], &shown["todo"]),
        (&json!("node-1"), &json!([])),
        "{shown}"
    );
    let counted = shown["rails"][0]["pf"]["counted"].clone();
    assert!(
        counted["rx_errors"] == 0 && counted["carrier_down"].is_u64(),
        "{counted}"
    );
    assert_eq!(
        shown["rails"][0],
        json!({"rail": 0, "pf": {"name": pf_address(0), "pciID": pf_address(0), "netdev": "pf0",
            "driver": "mlx5_core", "link": "up", "mtu": 9216, "rdma": [], "counted": counted},
            "rdmaCounted": {vf_address(0): {"packet_seq_err": 7}},
            "vfs": {"max": 8, "enabled": 1, "attached": 0, "dead": 0, "lost": 0, "free": 1}})
    );
    assert_eq!(
        shown["rails"][1]["vfs"],
        json!({"max": 8, "enabled": 1, "attached": 1, "dead": 0, "lost": 0, "free": 0})
    );
    let one = &shown["attachments"][0];
    assert_eq!(shown["attachments"].as_array().unwrap().len(), 1);
    let mac = host.json(Some(&pod), "link show net1")[0]["address"].clone();
    let since = one["since"].clone();
    assert_eq!(
        *one,
        json!({"rail": 1, "state": "live", "network": "rail-1", "pod": "default/pod", "containerID": "c1",
            "ifname": "net1", "part": "whole", "netns": pod, "since": since, "device": vf_address(1), "pf": pf_address(1),
            "addresses": ["172.18.0.0/31"], "mtu": 9000, "mac": mac, "link": "up", "rdma": [], "minPlanes": null, "source": null, "gids": [], "error": null, "tapped": null, "away": null, "reattached": null})
    );

    let table = run(&host, &["status"]).ok().stdout;
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert!(
        lines.contains(&vec![
            "1",
            &pf_address(1),
            "pf1",
            "up",
            "9216",
            "1/8",
            "1",
            "0",
            "0",
            "-"
        ]),
        "{table}"
    );
    let row = lines
        .iter()
        .find(|line| line.contains(&"net1"))
        .unwrap_or_else(|| panic!("{table}"));
    assert_eq!(
        row[..7],
        [
            "1",
            &vf_address(1),
            "default/pod",
            "net1",
            "172.18.0.0/31",
            "9000",
            "up"
        ]
    );
    assert_eq!(row.last(), Some(&"live"));
    assert!(before == files(host.dir.path()), "status changed something");
}

/// A fresh node: nothing is made below /run.
#[test]
fn status_on_a_fresh_node_makes_nothing() {
    let Some(host) = Host::new("operator::fresh") else {
        return;
    };
    let shown = run(&host, &["status"]).ok();
    assert!(shown.stdout.contains("no rails"), "{shown:?}");
    assert!(!host.path("run").exists());
}

#[test]
fn status_tells_what_is_to_be_done_and_exits_with_1() {
    let Some(host) = two_rails("operator::todo") else {
        return;
    };
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.hand_back(&pod, "net1");
    host.ip("link set pf1 down");
    let shown = run(&host, &["status", "--output", "json"]);
    assert_eq!(shown.status, 1);
    let shown = shown.json();
    assert_eq!(shown["attachments"][0]["state"], "dead", "{shown}");
    assert_eq!(shown["rails"][0]["vfs"]["dead"], 1, "{shown}");
    assert_eq!(shown["rails"][1]["pf"]["link"], "down");
    let todo = shown["todo"].as_array().unwrap();
    assert!(
        todo[0].as_str().unwrap().contains("`ip link set pf1 up`"),
        "{todo:?}"
    );
    assert!(
        todo[1].as_str().unwrap().contains("`railctl reap`"),
        "{todo:?}"
    );
    assert_eq!(todo.len(), 2, "{todo:?}");

    host.ip("link set pf1 up");
    let reaped = run(&host, &["reap", "--output", "json"]).ok().json();
    assert_eq!(reaped["givenBack"][0]["device"], vf_address(0), "{reaped}");
    assert_eq!((&reaped["left"], &reaped["inUse"]), (&json!([]), &json!(0)));
    run(&host, &["status"]).ok();
}

/// A namespace is known by its identity: another one at the same path is not looked into.
#[test]
fn status_does_not_take_another_pod_for_the_one_on_record() {
    let Some(host) = two_rails("operator::identity") else {
        return;
    };
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.hand_back(&pod, "net1");
    let again = host.add_netns("pod");
    assert_eq!(pod, again);
    host.ip_in(&again, "link add net1 type veth peer name other");
    let shown = status(&host);
    assert_eq!(shown["attachments"][0]["state"], "dead", "{shown}");
    assert_eq!(shown["attachments"][0]["mac"], Value::Null, "{shown}");
}

/// A PF that is gone, an interface that the pod took down, a device that somebody moved out of a
/// living pod.
#[test]
fn status_tells_the_states_apart() {
    let Some(host) = two_rails("operator::states") else {
        return;
    };
    let (one, two) = (host.add_netns("one"), host.add_netns("two"));
    host.cni("ADD", "c1", &one, &rail(0)).ok();
    host.cni("ADD", "c2", &two, &with(rail(1), json!({"rail": 1})))
        .ok();
    host.ip_in(&one, "link set net1 down");
    let me = Sleeper::new(None);
    host.ip_in(&two, &format!("link set net1 netns {}", me.pid()));
    host.ip("link del pf0");
    fs::remove_file(host.path("sys/bus/pci/devices").join(pf_address(0))).unwrap();
    let shown = status(&host);
    let of = |container: &str| {
        let all = shown["attachments"].as_array().unwrap();
        all.iter()
            .find(|one| one["containerID"] == container)
            .unwrap()
            .clone()
    };
    assert_eq!(
        (&of("c1")["state"], &of("c1")["link"]),
        (&json!("live"), &json!("down")),
        "{shown}"
    );
    assert_eq!(of("c2")["state"], "lost", "{shown}");
    assert_eq!(shown["rails"][0]["pf"]["link"], "missing", "{shown}");
    assert_eq!(shown["todo"].as_array().unwrap().len(), 3, "{shown}");
}

/// Another call for the attachment is at work: what is on record is not left over.
#[test]
fn status_calls_an_attachment_busy_while_its_lock_is_held() {
    let Some(host) = two_rails("operator::busy") else {
        return;
    };
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.hand_back(&pod, "net1");
    let lock = fs::File::open(host.path("run/locks/attachment-c1:net1")).unwrap();
    fs4::FileExt::lock(&lock).unwrap();
    assert_eq!(status(&host)["attachments"][0]["state"], "busy");
    // Closing is not enough: a child that another test is starting may have it open for a moment.
    fs4::FileExt::unlock(&lock).unwrap();
    assert_eq!(status(&host)["attachments"][0]["state"], "dead");
}

/// A program in user space has the device: the address is that of the lease.
#[test]
fn status_of_a_userspace_device_has_the_leased_address() {
    let Some(host) = Host::new("operator::userspace") else {
        return;
    };
    host.add_rail(0);
    host.make_vf(0, "vfio-pci");
    let pod = host.add_netns("pod");
    let mut config = with(rail(0), json!({ "deviceID": vf_address(0) }));
    config.as_object_mut().unwrap().remove("device");
    host.cni("ADD", "c1", &pod, &config).ok();
    let one = status(&host)["attachments"][0].clone();
    assert_eq!(
        (&one["state"], &one["addresses"]),
        (&json!("live"), &json!(["172.16.0.0"])),
        "{one}"
    );
    assert_eq!(one["link"], Value::Null);
}

#[test]
fn status_goes_on_where_a_record_cannot_be_read() {
    let Some(host) = two_rails("operator::unreadable") else {
        return;
    };
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    fs::write(host.path("run/attachments/x:net1:y.json"), "{").unwrap();
    let shown = run(&host, &["status", "--output", "json"]);
    assert_eq!((shown.status, shown.stderr.as_str()), (1, ""));
    assert_eq!(shown.json()["unreadable"], json!(["x:net1:y.json"]));
    assert_eq!(shown.json()["attachments"][0]["state"], "live");
}

/// A pod with CAP_NET_ADMIN makes a macvlan on the rail of another, which runs.
#[test]
fn status_and_doctor_name_the_link_and_the_pod_that_tap_a_rail() {
    let Some(host) = two_rails("operator::tapped") else {
        return;
    };
    let victim = host.add_netns("victim");
    let other = host.add_netns("other");
    host.cni("ADD", "c1", &victim, &rail(0)).ok();
    let pod = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=other";
    let add = host.call("ADD", "c2", &other).var("CNI_ARGS", pod);
    add.run(&rail(1)).ok();
    let state = || status(&host)["attachments"][0].clone();
    host.ip_in(&victim, "link add mv link net1 type macvlan mode source");
    assert_eq!(state()["state"], "live", "its own link");

    let netns = other.file_name().unwrap().to_str().unwrap();
    host.ip_in(&victim, &format!("link set mv netns {netns}"));
    let tapped = state();
    let tap = json!({"link": "mv", "kind": "macvlan", "netns": other, "pod": "default/other"});
    assert_eq!(
        (&tapped["state"], &tapped["tapped"]),
        (&json!("tapped"), &tap)
    );
    for verb in ["status", "doctor"] {
        let text = run(&host, &[verb]).stdout;
        let shown = format!(
            "mv (macvlan) in the namespace {} of pod default/other takes",
            other.display()
        );
        let remedy = format!("`nsenter --net={} ip link del mv`", other.display());
        assert!(text.contains(&shown) && text.contains(&remedy), "{text}");
    }

    host.cni("DEL", "c2", &other, &rail(1)).ok();
    assert_eq!(state()["tapped"]["pod"], json!(null), "it has no rail");
    let of_node = format!("link set mv netns {}", nix::unistd::gettid());
    host.ip_in(&other, &of_node);
    assert_eq!(state()["tapped"]["netns"], json!(null), "the node's own");
    host.ip("link del mv");
    assert_eq!(state()["state"], "live");
    host.cni("DEL", "c1", &victim, &rail(0)).ok();
}
