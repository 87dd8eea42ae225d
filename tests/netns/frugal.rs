//! The requests of a call to the kernel. Times are in docs/performance.md; the counts do not depend
//! on the machine.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::harness::{Host, Sleeper, rail, skip, with};
use crate::trace;

/// The calls of a life, and the most system calls that each may make. A step that needs more says
/// here what for.
const MOST: [(&str, usize); 4] = [("ADD", 405), ("CHECK", 160), ("DEL", 300), ("STATUS", 82)];
/// The difference between two runs: the looks of a process for an answer vary.
const NOISE: usize = 12;

fn counts(host: &Host, pod: &Path) -> [usize; 4] {
    let result = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": pod}],
        "ips": [{"address": "172.16.0.0/31", "gateway": "172.16.0.1", "interface": 0}],
        "routes": [{"dst": "172.16.0.0/15", "gw": "172.16.0.1"}, {"dst": "172.16.0.0/12", "gw": "172.16.0.1"}]});
    MOST.map(|(verb, _)| {
        let config = match verb {
            "CHECK" => with(rail(0), json!({"prevResult": result})),
            _ => rail(0),
        };
        trace::count(&host.call(verb, "c1", pod), &config)
    })
}

#[test]
fn a_call_asks_no_more_than_it_needs_and_no_more_on_a_crowded_node() {
    let test = "frugal::crowd";
    let Some(host) = Host::new(test) else { return };
    if !trace::is_allowed(test) {
        return;
    }
    host.add_rail(0);
    let pod = host.add_netns("pod");
    // The first call makes the folders.
    counts(&host, &pod);
    let alone = counts(&host, &pod);
    println!("{alone:?}");
    for ((verb, most), count) in MOST.into_iter().zip(alone) {
        assert!(
            count <= most,
            "{verb} makes {count} system calls, and {most} were enough"
        );
    }
    let others: Vec<PathBuf> = (0..40)
        .map(|number| host.add_netns(&format!("other{number}")))
        .collect();
    // The tracer waits for the children of its thread.
    let start = || {
        others
            .iter()
            .map(|netns| Sleeper::new(Some(netns)))
            .collect::<Vec<_>>()
    };
    let processes = std::thread::scope(|scope| scope.spawn(start).join().unwrap());
    let crowded = counts(&host, &pod);
    println!("{crowded:?}");
    drop(processes);
    let has_vlans = Path::new("/proc/net/vlan").exists();
    for (((verb, _), alone), crowded) in MOST.into_iter().zip(alone).zip(crowded) {
        if verb == "DEL" && has_vlans {
            skip(
                test,
                "where the kernel has VLANs, DEL looks for them in the namespaces of all processes",
            );
        } else {
            assert!(
                crowded <= alone + NOISE,
                "{verb}: {crowded} system calls, and {alone} on an empty node"
            );
        }
    }
}

/// A node that has run for long, or whose IPAM plugin has failed for as long.
#[test]
fn a_call_asks_little_more_beside_a_thousand_attachments_and_pending_steps() {
    const MANY: usize = 1000;
    let test = "frugal::many";
    let Some(host) = Host::new(test) else { return };
    if !trace::is_allowed(test) {
        return;
    }
    host.add_rail(0);
    host.add_rail(1);
    host.add_plugin("fails", "test $CNI_COMMAND = DEL && exit 3\necho '{\"cniVersion\": \"1.1.0\", \"ips\": [{\"address\": \"172.18.0.0/31\"}]}'");
    let (pod, other) = (host.add_netns("pod"), host.add_netns("other"));
    let failing = with(rail(1), json!({"ipam": {"type": "fails"}}));
    host.cni("ADD", "other", &other, &failing).ok();
    let attached = host.records().remove(0);
    let copies = |of: &Path, count: usize| {
        let text = fs::read_to_string(of).unwrap();
        let name = of.file_name().unwrap().to_str().unwrap();
        let named = |text: &str, number: usize| text.replace("other", &format!("o{number}"));
        for number in 0..count {
            // None has the device of another.
            let (text, device) = (named(&text, number), format!("dev{number}"));
            fs::write(
                of.with_file_name(named(name, number).replace("vf1", &device)),
                text.replace("vf1", &device),
            )
            .unwrap();
        }
    };
    counts(&host, &pod);
    let alone = counts(&host, &pod);
    copies(&attached, MANY);
    let attachments = counts(&host, &pod);
    host.cni("DEL", "other", &other, &failing).ok();
    let pending = host.pending().remove(0);
    copies(&pending, MANY);
    assert_eq!(
        (host.records().len(), host.pending().len()),
        (MANY, MANY + 1)
    );
    let both = counts(&host, &pod);
    println!("{alone:?} {attachments:?} {both:?}");
    // Lists of names are longer, and a few of the pending records are read.
    for (((verb, _), alone), count) in MOST.into_iter().zip(alone).zip(attachments) {
        assert!(
            count <= alone + NOISE,
            "{verb}: {count} system calls, and {alone} beside no attachment"
        );
    }
    for (((verb, _), alone), count) in MOST.into_iter().zip(alone).zip(both) {
        assert!(
            count <= alone + 60,
            "{verb}: {count} system calls, and {alone} with nothing pending"
        );
    }
}
