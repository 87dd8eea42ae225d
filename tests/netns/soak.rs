//! Many pods, one after the other and at once: nothing fails, and nothing is left that grows.
//!
//! RAIL_SOAK is the number of lives of the first test: 20 in scripts/test, 2,000 in scripts/soak.
//! Times are printed and not judged.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Call, Host, Sleeper, rail, with};

const RAILS: u8 = 8;

/// Device `number` as one of rail NUMBER % 8, with a pool of its own.
fn device(number: u8) -> Value {
    let name = format!("vf{number}");
    let ipam = json!({"type": "rail-ipam", "pool": format!("rail-{number}")});
    with(
        rail(number % RAILS),
        json!({"name": format!("net-{number}"), "device": name, "ipam": ipam}),
    )
}

/// The number that must not grow: entries of the run directory but its locks, and leases.
/// Namespaces and descriptors of this process are also those of the tests beside this one.
fn entries(host: &Host) -> usize {
    let of = |name: &str| entries_of(&host.path(name));
    of("run") + of("run/attachments") + of("run/pending") + host.leases().len()
}

fn entries_of(path: &Path) -> usize {
    fs::read_dir(path).map_or(0, Iterator::count)
}

/// Limit of the lock files: those that are not pruned, the notes of the DELs of five minutes, and
/// an eighth more, because a DEL looks at some of them only.
fn most_locks(ended: &[Instant]) -> usize {
    let young = Duration::from_secs(300 + 10);
    let noted = ended.iter().filter(|ended| ended.elapsed() < young).count() * usize::from(RAILS);
    256 + 64 + noted * 9 / 8
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() * share / 1000).min(times.len() - 1)];
    println!(
        "{what}: {} calls, p50 {:.1?}, p99 {:.1?}, longest {:.1?}",
        times.len(),
        at(500),
        at(990),
        at(1000)
    );
}

#[test]
fn lives_of_eight_rails_leave_nothing() {
    let Some(host) = Host::new("soak::lives") else {
        return;
    };
    let lives = std::env::var("RAIL_SOAK").map_or(20, |text| text.parse().unwrap());
    (0..RAILS).for_each(|number| host.add_rail(number));
    let before = host.snapshot();
    let (mut adds, mut dels, mut ended, mut warm) = (Vec::new(), Vec::new(), Vec::new(), None);
    for life in 0..lives {
        let container = format!("c{life}");
        let pod = host.add_netns("pod");
        let call = |verb: &str, number: u8| {
            host.call(verb, &container, &pod)
                .ifname(&format!("net{}", number + 1))
                .run(&device(number))
        };
        for number in 0..RAILS {
            let began = Instant::now();
            call("ADD", number).ok();
            adds.push(began.elapsed());
        }
        // The namespace of every fifth pod is gone before DEL. A NIC is on the host by then, a veth
        // has to be moved.
        let dies = life % 5 == 4;
        if dies {
            let home = Sleeper::new(None);
            for number in 1..=RAILS {
                host.ip_in(
                    &pod,
                    &format!("link set net{number} down netns {}", home.pid()),
                );
            }
            host.delete_netns(&pod);
        }
        for number in 0..RAILS {
            let began = Instant::now();
            call("DEL", number).ok();
            dels.push(began.elapsed());
        }
        ended.push(Instant::now());
        if !dies {
            host.delete_netns(&pod);
        }
        assert_eq!(host.snapshot(), before, "life {life}");
        assert_eq!(
            entries(&host),
            *warm.get_or_insert_with(|| entries(&host)),
            "life {life}"
        );
        let locks = entries_of(&host.path("run/locks"));
        assert!(locks <= most_locks(&ended), "life {life}: {locks} locks");
    }
    println!("{lives} lives");
    let tenth = adds.len() / 10;
    for (what, times) in [("ADD", adds), ("DEL", dels)] {
        print(
            &format!("{what} in the first tenth of the lives"),
            times[..tenth].to_vec(),
        );
        print(
            &format!("{what} in the last tenth of the lives"),
            times[times.len() - tenth..].to_vec(),
        );
        print(&format!("{what} in all lives"), times);
    }
}

/// `pods` pods with `rails` rails each, all at once.
fn at_once(test: &str, pods: u8, rails: u8) {
    let Some(host) = Host::new(test) else { return };
    (0..pods * rails).for_each(|number| host.add_rail(number));
    let before = host.snapshot();
    let namespaces: Vec<PathBuf> = (0..pods)
        .map(|pod| host.add_netns(&format!("pod{pod}")))
        .collect();
    let calls = |verb: &str| -> Vec<(Call, Value)> {
        let all = (0..pods).flat_map(|pod| (0..rails).map(move |one| (pod, one)));
        let call = |(pod, one): (u8, u8)| {
            let call = host.call(verb, &format!("c{pod}"), &namespaces[usize::from(pod)]);
            (
                call.ifname(&format!("net{}", one + 1)),
                device(pod * rails + one),
            )
        };
        all.map(call).collect()
    };
    let all = |verb: &str| -> Vec<Duration> {
        let start = |(call, config): (Call, Value)| {
            std::thread::spawn(move || {
                let began = Instant::now();
                call.run(&config).ok();
                began.elapsed()
            })
        };
        let threads: Vec<_> = calls(verb).into_iter().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    };
    for verb in ["ADD", "DEL"] {
        print(
            &format!("{verb} of {pods} pods with {rails} rails at once"),
            all(verb),
        );
    }
    assert_eq!(host.snapshot(), before);
}

#[test]
fn four_pods_with_eight_rails_start_at_once() {
    at_once("soak::four", 4, 8);
}

#[test]
fn eighty_pods_with_a_rail_start_at_once() {
    at_once("soak::eighty", 80, 1);
}
