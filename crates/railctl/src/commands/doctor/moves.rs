//! Measures how long this kernel takes to move a netdev to another network namespace: most of the
//! time of an ADD and of a DEL. It is tried with a veth, between two namespaces that only one
//! thread of this process is in: the host's devices are not touched, and all of it ends with the
//! thread, however the process ends.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::time::{ClockId, clock_getres};

use super::{Check, Findings};
use rail_cni::fail;
use rail_cni::netns;
use rail_netlink::Socket;
use rail_netlink::link::{self, Move};

const NAME: &str = "move";
/// Ways into the pod and back.
const ROUNDS: u32 = 2;
/// Eight rails that move in turn take almost a second of a pod's start, of which some runtimes give
/// them two.
const SLOW: Duration = Duration::from_millis(100);
/// 1 if the kernel waits for no grace period faster than usual
/// (Documentation/admin-guide/kernel-parameters.txt).
const RCU_NORMAL: &str = "/sys/kernel/rcu_normal";

/// Moves a veth to another namespace and back.
pub fn check(found: &mut Findings) {
    let is_normal =
        std::fs::read_to_string(Path::new(RCU_NORMAL)).is_ok_and(|text| text.trim() == "1");
    found.add(match fastest() {
        Ok(took) => judge(took, is_normal),
        Err(error) => Check::skip(NAME, format!("{error:#}")),
    });
}

fn judge(took: Duration, is_normal: bool) -> Check {
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE)
        .map(Duration::from)
        .unwrap_or_default();
    // The code that prints floating point numbers would be in the executable for this line alone.
    let tenths = took.as_micros() / 100;
    let text = format!(
        "moving a netdev to another namespace takes {}.{} ms; the kernel's tick is {} ms",
        tenths / 10,
        tenths % 10,
        tick.as_millis()
    );
    if is_normal {
        let remedy =
            format!("`echo 0 >{RCU_NORMAL}`, unless programs of this node need it for real time");
        return Check::warn(
            NAME,
            format!("{text}; {RCU_NORMAL} is 1, which roughly doubles it"),
            remedy,
        );
    }
    if took > SLOW {
        let remedy = "boot with rcutree.jiffies_till_first_fqs=0; if it is slow even while no pod starts or ends, \
            look for a process that keeps changing the network";
        return Check::warn(NAME, text, remedy);
    }
    Check::ok(NAME, text)
}

/// The shortest of some moves. The others may have waited for another program, because the kernel
/// makes one change at a time.
fn fastest() -> Result<Duration> {
    let moved = std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("mover".to_owned())
            .spawn_scoped(scope, moves)
            .map(|moves| moves.join())
    });
    match moved.context("cannot start a thread")? {
        Ok(took) => took,
        Err(_) => fail!(
            Internal,
            "the thread that moves a netdev panicked: please report it"
        ),
    }
}

fn moves() -> Result<Duration> {
    let (host, mut outside) = (netns::unnamed()?, Socket::open()?);
    link::add_veth(&mut outside, "rail")?;
    let (pod, mut inside) = (netns::unnamed()?, Socket::open()?);
    let mut fastest = Duration::MAX;
    for _ in 0..ROUNDS {
        let into_pod = Move {
            name: "net1",
            mtu: Some(9000),
            ..Move::default()
        };
        let (link, began) = (find(&mut outside, "rail")?, Instant::now());
        link::move_to(&mut outside, &link, &pod, &into_pod)?;
        fastest = fastest.min(began.elapsed());

        let link = find(&mut inside, "net1")?;
        link::set_up(&mut inside, &link)?;
        let back = Move {
            name: "rail",
            mtu: Some(1500),
            ..Move::default()
        };
        let began = Instant::now();
        link::move_to(&mut inside, &link, &host, &back)?;
        fastest = fastest.min(began.elapsed());
    }
    Ok(fastest)
}

fn find(socket: &mut Socket, name: &str) -> Result<link::Link> {
    link::by_name(socket, name)?.with_context(|| format!("the veth {name} is gone"))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn what_makes_moves_slow_is_a_warning_with_its_remedy() {
        let fast = Duration::from_millis(9);
        assert_eq!(judge(fast, false).verdict, Verdict::Ok);
        let remedy = |check: Check| {
            assert_eq!(check.verdict, Verdict::Warn);
            check.remedy.unwrap()
        };
        assert!(remedy(judge(fast, true)).contains("echo 0 >/sys/kernel/rcu_normal"));
        assert!(remedy(judge(SLOW * 2, false)).contains("jiffies_till_first_fqs=0"));
    }
}
