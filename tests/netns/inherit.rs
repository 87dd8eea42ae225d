//! Settings that a pod with CAP_NET_ADMIN makes on its rail end with the pod.

use std::fs;
use std::path::Path;
use std::process::Command;

use rail_cni::netns::Netns;
use rail_netlink::{Socket, link, rule};
use serde_json::Value;

use crate::bpf::{self, Hook};
use crate::harness::{self, Host, rail, skip};

/// The state of a device of the host, by `ip` and `ethtool`.
fn device(host: &Host, name: &str) -> String {
    let mut link = host.json(None, &format!("link show {name}"))[0].take();
    for passing in [
        "ifindex",
        "link_index",
        "link_netnsid",
        "operstate",
        "qdisc",
        "flags",
    ] {
        link.as_object_mut().unwrap().remove(passing);
    }
    let flags = host.ip(&format!("-br link show {name}"));
    let mut text = format!("{link:#}\n{}", flags.split('<').next_back().unwrap());
    for option in ["-k", "-l"] {
        let told = Command::new("ethtool")
            .args([option, name])
            .output()
            .unwrap();
        assert!(told.status.success(), "ethtool {option}");
        text += &String::from_utf8(told.stdout).unwrap();
    }
    text
}

fn has_ethtool(test: &str) -> bool {
    let has = Command::new("ethtool").arg("--version").output().is_ok();
    if !has {
        skip(test, "package ethtool is not installed");
    }
    has
}

/// Every setting that a veth has. Seen with 0.1.0: the next pod has `arp off`, and its ping gets no
/// answer.
#[test]
fn what_a_pod_set_on_its_rail_is_gone_after_del() {
    let test = "inherit::settings";
    let Some(host) = Host::new(test).filter(|_| has_ethtool(test)) else {
        return;
    };
    host.add_rail(0);
    // The host's own settings come back as well.
    host.ip("link set vf0 txqueuelen 500 alias uplink group 3 promisc on gso_max_size 30000");
    assert!(
        Command::new("ethtool")
            .args(["-K", "vf0", "tso", "off"])
            .status()
            .unwrap()
            .success()
    );
    let before = device(&host, "vf0");
    let (pod, next) = (host.add_netns("pod"), host.add_netns("next"));
    let theirs = [
        "ip link set net1 promisc off",
        "ip link set net1 allmulticast on",
        "ip link set net1 multicast off",
        "ip link set net1 dynamic on",
        "ip link set net1 arp off",
        "ip link set net1 txqueuelen 7",
        "ip link set net1 group 9",
        "ip link set net1 alias theirs",
        "ip link set net1 mode dormant",
        "ip link set net1 gso_max_segs 3",
        "ip link set net1 gso_max_size 4000",
        "ip link set net1 gro_max_size 5000",
        "ip link set net1 broadcast 02:00:00:00:00:02",
        "ethtool -K net1 tso on sg off rx off gro on",
        "ethtool -L net1 rx 2 tx 2",
    ];
    // Each by itself, then all together.
    let rounds = theirs.iter().map(std::slice::from_ref).chain([&theirs[..]]);
    for (number, round) in rounds.enumerate() {
        let container = format!("c{number}");
        host.cni("ADD", &container, &pod, &rail(0)).ok();
        for command in round {
            host.run_in(&pod, command).ok();
        }
        host.cni("DEL", &container, &pod, &rail(0)).ok();
        assert_eq!(device(&host, "vf0"), before, "after {round:?}");
    }
    host.cni("ADD", "next", &next, &rail(0)).ok();
    host.run_in(&next, "ping -c1 -W2 172.16.0.1").ok();
    host.cni("DEL", "next", &next, &rail(0)).ok();
}

/// A device that the kernel handed back from a dead pod has them too.
#[test]
fn what_a_dead_pod_set_is_gone_after_the_next_add() {
    let test = "inherit::dead";
    let Some(host) = Host::new(test).filter(|_| has_ethtool(test)) else {
        return;
    };
    host.add_rail(0);
    let before = device(&host, "vf0");
    let (pod, next) = (host.add_netns("pod"), host.add_netns("next"));
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.ip_in(&pod, "link set net1 arp off txqueuelen 7");
    host.hand_back(&pod, "net1");
    host.cni("ADD", "next", &next, &rail(0)).ok();
    host.run_in(&next, "ping -c1 -W2 172.16.0.1").ok();
    host.cni("DEL", "next", &next, &rail(0)).ok();
    assert_eq!(device(&host, "vf0"), before);
}

/// No veth can end them by its driver: it waits, and is nobody's until whoever holds the program
/// has let it go.
#[test]
fn a_device_with_a_program_that_its_pod_holds_is_not_handed_out() {
    let Some(host) = Host::new("inherit::held") else {
        return;
    };
    host.add_rail(0);
    let before = host.snapshot();
    let (pod, next) = (host.add_netns("pod"), host.add_netns("next"));
    host.ip(&format!("-n {} link set leaf0 mtu 1500", host.leaf()));
    for hook in [Hook::Xdp, Hook::Tcx] {
        host.cni("ADD", "c1", &pod, &rail(0)).ok();
        host.ip_in(&pod, "link set net1 mtu 1500");
        let held = Netns::open(&pod).unwrap().run(|| bpf::hold("net1", hook));
        if let Err(error) = &held {
            host.cni("DEL", "c1", &pod, &rail(0)).ok();
            return skip("inherit::held", &format!("{hook:?}: {error:#}"));
        }
        host.cni("DEL", "c1", &pod, &rail(0)).ok();
        host.cni("ADD", "next", &next, &rail(0)).error(11);
        drop(held);
        host.cni("ADD", "next", &next, &rail(0)).ok();
        host.run_in(&next, "ping -c1 -W2 172.16.0.1").ok();
        host.cni("DEL", "next", &next, &rail(0)).ok();
        assert_eq!(host.snapshot(), before, "{hook:?}");
    }
}

/// It would drop, or read, the packets of the next tenant.
#[test]
fn an_xdp_program_of_a_pod_is_gone_after_del() {
    let Some(host) = Host::new("inherit::xdp") else {
        return;
    };
    host.add_rail(0);
    // SEC("xdp") int drop() { return XDP_DROP; }
    let program = bpf::OBJECT;
    let tried = Command::new("ip")
        .args([
            "link",
            "set",
            "vf0",
            "xdpgeneric",
            "obj",
            program,
            "sec",
            "xdp",
        ])
        .output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        return skip("inherit::xdp", "no XDP program can be loaded here");
    }
    host.ip("link set vf0 xdpgeneric off");
    let before = host.snapshot();
    let (pod, next) = (host.add_netns("pod"), host.add_netns("next"));
    host.ip(&format!("-n {} link set leaf0 mtu 1500", host.leaf()));
    for mode in ["xdpgeneric", "xdpdrv"] {
        host.cni("ADD", "c1", &pod, &rail(0)).ok();
        // A driver refuses a program for frames of 9000 bytes.
        host.ip_in(&pod, "link set net1 mtu 1500");
        host.ip_in(&pod, &format!("link set net1 {mode} obj {program} sec xdp"));
        host.cni("DEL", "c1", &pod, &rail(0)).ok();
        assert_eq!(
            host.json(None, "link show vf0")[0].get("xdp"),
            None,
            "{mode}"
        );
        host.cni("ADD", "next", &next, &rail(0)).ok();
        host.run_in(&next, "ping -c1 -W2 172.16.0.1").ok();
        host.cni("DEL", "next", &next, &rail(0)).ok();
        assert_eq!(host.snapshot(), before, "{mode}");
    }
}

/// The host's sysfs has the device whenever it is at home. Of queues only what a driver does not
/// leave there is on record.
#[test]
fn files_of_the_device_are_as_they_were() {
    let Some(host) = Host::new("inherit::files") else {
        return;
    };
    host.add_rail(0);
    let at = |name: &str| host.path("sys/class/net/vf0").join(name);
    for queue in ["rx-0", "rx-1", "tx-0/byte_queue_limits"] {
        fs::create_dir_all(at("queues").join(queue)).unwrap();
    }
    let files = [
        ("gro_flush_timeout", "20000", "1"),
        ("napi_defer_hard_irqs", "0", "9"),
        ("threaded", "0", "1"),
        ("queues/rx-0/rps_cpus", "00000000,00000000", "ff"),
        ("queues/rx-1/rps_cpus", "00000000,0000000f", "0"),
        ("queues/rx-0/rps_flow_cnt", "0", "4096"),
        ("queues/tx-0/xps_cpus", "0003", "0001"),
        ("queues/tx-0/tx_maxrate", "0", "1"),
        ("queues/tx-0/byte_queue_limits/limit_max", "1879048192", "1"),
        ("queues/tx-0/byte_queue_limits/hold_time", "500", "1000"),
    ];
    let write = |value: fn(&(&str, &'static str, &'static str)) -> &'static str| {
        files
            .iter()
            .for_each(|file| fs::write(at(file.0), value(file)).unwrap());
    };
    write(|(_, before, _)| before);
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    write(|(.., theirs)| theirs);
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    for (name, before, _) in files {
        let now = fs::read_to_string(at(name)).unwrap();
        // A mask is written as short as it can be.
        let is_same =
            now == before || (now == "0" && before.bytes().all(|byte| b"0,".contains(&byte)));
        assert!(is_same, "{name}: {now}, not {before}");
    }
}

/// Records may have no settings.
#[test]
fn a_record_without_settings_is_enough_for_del() {
    let Some(host) = Host::new("inherit::old") else {
        return;
    };
    host.add_rail(0);
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    let record = host.records().remove(0);
    let mut json: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let netdev = harness::change(&mut json, "netdev")
        .as_object_mut()
        .unwrap();
    assert!(netdev.remove("settings").is_some());
    json["owner"]["device"]["link"]
        .as_object_mut()
        .unwrap()
        .remove("xdp")
        .unwrap();
    fs::write(&record, json.to_string()).unwrap();
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    assert_eq!(host.snapshot(), before);
}

/// A kernel without memory or room for a request or its answer (ENOBUFS), and signals.
#[test]
fn a_request_that_was_lost_is_made_again() {
    let Some(host) = Host::new("inherit::lost") else {
        return;
    };
    if !Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return skip("inherit::lost", "strace cannot trace here");
    }
    host.add_rail(0);
    let before = host.snapshot();
    let pod = host.add_netns("pod");
    let faults = [
        ("sendto:error=ENOBUFS", 5),
        ("sendto:error=EINTR", 5),
        ("recvfrom:error=EINTR", 5),
        // Every fifth would hit every dump.
        ("recvfrom:error=ENOBUFS", 37),
    ];
    for (fault, period) in faults {
        for verb in ["ADD", "DEL"] {
            let fault = format!("inject={fault}:when=2+{period}");
            let call =
                host.call(verb, "c1", &pod)
                    .under(&["strace", "-o", "/dev/null", "-e", &fault]);
            call.run(&rail(0)).ok();
        }
        assert_eq!(host.snapshot(), before, "{fault}");
    }
}

/// Other programs name links and make rules at the same time; a name may be longer than the
/// kernel's own.
#[test]
fn what_is_already_as_wanted_is_success() {
    let Some(host) = Host::new("inherit::wanted") else {
        return;
    };
    let (long, other) = (
        "a-name-of-more-than-fifteen-bytes",
        "another-name-of-more-than-fifteen-bytes",
    );
    host.ip("link add one type veth peer name two");
    let mut socket = Socket::open().unwrap();
    let one = link::by_name(&mut socket, "one").unwrap().unwrap();
    let two = link::by_name(&mut socket, "two").unwrap().unwrap();
    for _ in 0..2 {
        link::add_altname(&mut socket, &one, long).unwrap();
    }
    assert!(link::add_altname(&mut socket, &two, long).is_err());
    assert_eq!(
        link::by_any_name(&mut socket, long)
            .unwrap()
            .map(|link| link.index),
        Some(one.index)
    );
    for unknown in [other, "none", &"x".repeat(200)] {
        assert_eq!(link::by_any_name(&mut socket, unknown).unwrap(), None);
    }
    for name in [long, long, other] {
        link::remove_altname(&mut socket, &one, name).unwrap();
    }
    assert_eq!(link::by_any_name(&mut socket, long).unwrap(), None);
    for _ in 0..2 {
        link::set_name(&mut socket, &one, "three").unwrap();
    }
    assert!(link::set_name(&mut socket, &one, "two").is_err());
    let from = rule::Rule {
        from: [10, 0, 0, 1].into(),
        table: 7,
        priority: 7,
    };
    for _ in 0..2 {
        rule::add(&mut socket, &from).unwrap();
    }
    for _ in 0..2 {
        rule::remove(&mut socket, &from).unwrap();
        link::remove(&mut socket, &one).unwrap();
    }
}

/// A dump is interrupted again and again, and must not hold up a DEL.
#[test]
fn a_look_at_all_links_ends_while_links_come_and_go() {
    let Some(host) = Host::new("inherit::links") else {
        return;
    };
    host.ip("link add rail type veth peer name leaf");
    // More than one datagram's worth.
    for number in 0..20 {
        host.ip(&format!("link add a{number} type veth peer name b{number}"));
    }
    let batch = host.path("batch");
    let lines: String = (0..500)
        .map(|n| format!("link add x{n} type bridge\nlink del x{n}\n"))
        .collect();
    fs::write(&batch, lines).unwrap();
    let mut other = churn(&batch);
    let mut socket = Socket::open().unwrap();
    for _ in 0..20 {
        let seen = link::seen(&mut socket, |_| true).unwrap();
        assert!(seen.iter().any(|link| link.name == "rail"), "{seen:?}");
        assert!(link::by_name(&mut socket, "rail").unwrap().is_some());
    }
    other.kill().unwrap();
    other.wait().unwrap();
}

fn churn(batch: &Path) -> std::process::Child {
    let mut command = Command::new("ip");
    command
        .args(["-force", "-batch"])
        .arg(batch)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// With accept_ra of a new netdev, a leaf's router advertisement gives the host a default route by
/// the rail.
#[test]
fn sysctls_of_the_interface_on_the_host_are_as_they_were() {
    let Some(host) = Host::new("inherit::sysctls") else {
        return;
    };
    host.add_rail(0);
    let all = |family: &str| -> Vec<(String, String)> {
        let folder = format!("/proc/sys/net/{family}/conf/vf0");
        let mut all = Vec::new();
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            // Some can only be written, and one is a secret.
            if let Ok(value) = fs::read_to_string(entry.path()) {
                all.push((entry.file_name().into_string().unwrap(), value));
            }
        }
        all.sort();
        all
    };
    for (key, value) in [
        ("ipv6/conf/vf0/accept_ra", "0"),
        ("ipv6/conf/vf0/autoconf", "0"),
        ("ipv4/conf/vf0/arp_ignore", "2"),
        ("ipv4/conf/vf0/rp_filter", "1"),
    ] {
        fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
    }
    let before = (all("ipv4"), all("ipv6"));
    assert!(before.0.len() > 20 && before.1.len() > 20, "{before:?}");
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    assert_eq!((all("ipv4"), all("ipv6")), before);
    // Nor after the pod's own end.
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.hand_back(&pod, "net1");
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    assert_eq!((all("ipv4"), all("ipv6")), before);
}
