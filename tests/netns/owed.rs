//! A step of a pod's end that fails, in each way that a pod can end: the next pod starts all the
//! same, and when the cause is gone everything is as it was before the first.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::libc;
use serde_json::{Value, json};

use crate::harness::{Call, Host, Ran, rail, sample, vf_address, with};
use crate::programs::RAIL_IPAM;
use crate::trace::{self, Fate, Point};

/// The step that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The DEL of the IPAM plugin.
    Ipam,
    /// The removal of the device-info file.
    DeviceInfo,
    /// The removal of the rule in the pod.
    Rule,
    /// A route of ADD, which is undone then.
    Route,
    /// The device's MTU of before.
    Mtu,
    /// Its MAC of before.
    Mac,
    /// Its name, which another device has by now.
    Name,
    /// Its altname, likewise.
    Altname,
    /// Another setting of the netdev: the length of its queue, here.
    Setting,
}

const STEPS: [Step; 9] = [
    Step::Ipam,
    Step::DeviceInfo,
    Step::Rule,
    Step::Route,
    Step::Mtu,
    Step::Mac,
    Step::Name,
    Step::Altname,
    Step::Setting,
];

/// The end of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Del,
    DelTwice,
    /// The namespace is gone when DEL comes.
    DeadThenDel,
    /// No DEL comes.
    Gc,
    Reap,
    /// No call.
    Nothing,
}

const ENDS: [End; 6] = [
    End::Del,
    End::DelTwice,
    End::DeadThenDel,
    End::Gc,
    End::Reap,
    End::Nothing,
];

/// The next user of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// A pod of the same network: same device, same address.
    Same,
    /// With the same address, on another device.
    Address,
    /// With the same device, in another network.
    Network,
}

const NEXTS: [Next; 3] = [Next::Same, Next::Address, Next::Network];

struct Bench {
    host: Host,
    pods: [PathBuf; 2],
    before: Value,
    mac: String,
    /// Number of steps that were made to fail.
    failed: Cell<u32>,
}

impl Bench {
    fn new(test: &str) -> Option<Bench> {
        let host = Host::new(test)?;
        host.add_rail(0);
        host.add_rail(1);
        host.plan("other", "172.30.0.0/31", "172.30.0.1", &["172.30.0.0/15"]);
        host.make_vf(0, "mlx5_core");
        host.make_vf(1, "mlx5_core");
        host.ip("link property add dev vf0 altname enp1s0v0");
        host.ip("link set vf0 mtu 1400 txqueuelen 777");
        // An address is leased as rail-ipam does it, and DEL fails as long as there is a file of
        // that name.
        let ipam = RAIL_IPAM;
        let broken = host.path("broken").display().to_string();
        host.add_plugin(
            "stand-in",
            &format!("test $CNI_COMMAND = DEL && test -e {broken} && exit 3\nexec {ipam}"),
        );
        let pods = [host.add_netns("c1"), host.add_netns("c2")];
        let before = host.snapshot();
        let mac = before["links"]["vf0"]["mac"].as_str().unwrap().to_owned();
        Some(Bench {
            host,
            pods,
            before,
            mac,
            failed: Cell::new(0),
        })
    }

    fn config(&self, container: &str) -> Value {
        let file = self.host.path(&format!("devinfo/{container}"));
        let more = json!({"device": null, "deviceID": vf_address(0), "mac": "02:00:00:00:00:77",
            "ipam": {"type": "stand-in", "pool": "rail-0"}, "runtimeConfig": {"CNIDeviceInfoFile": file}});
        with(rail(0), more)
    }

    fn config_of(&self, next: Next) -> Value {
        match next {
            Next::Same => self.config("c2"),
            Next::Address => with(self.config("c2"), json!({"deviceID": vf_address(1)})),
            Next::Network => with(
                self.config("c2"),
                json!({"name": "other", "rail": 7, "ipam": {"type": "rail-ipam", "pool": "other"}}),
            ),
        }
    }

    /// The cause that needs no tracer.
    fn spoil(&self, step: Step) {
        match step {
            Step::Ipam => fs::write(self.host.path("broken"), "").unwrap(),
            Step::Name => drop(self.host.ip("link add vf0 type bridge")),
            Step::Altname => {
                self.host.ip("link add other type bridge");
                self.host.ip("link property add dev other altname enp1s0v0");
            }
            _ => (),
        }
    }

    fn mend(&self, step: Step) {
        match step {
            Step::Ipam => fs::remove_file(self.host.path("broken")).unwrap(),
            Step::Name => drop(self.host.ip("link del vf0")),
            Step::Altname => drop(self.host.ip("link del other")),
            _ => (),
        }
    }

    /// Is this the system call that makes `step` fail? Of the changes of a netdev only those back
    /// to what it was: the next pod's own are another matter.
    fn fails(&self, step: Step, point: &Point) -> bool {
        let is_message = |kinds: &[u16], has: &dyn Fn(u16, &[u8]) -> bool| {
            let Some(sent) = point.sent() else {
                return false;
            };
            let kind = sent
                .get(4..6)
                .map(|kind| u16::from_ne_bytes(kind.try_into().unwrap()));
            kind.is_some_and(|kind| kinds.contains(&kind))
                && attributes(&sent[32.min(sent.len())..])
                    .iter()
                    .any(|(kind, value)| has(*kind, value))
        };
        let set = [libc::RTM_SETLINK, libc::RTM_NEWLINK];
        let number = |value: &[u8]| value.try_into().map(u32::from_ne_bytes).ok();
        match step {
            Step::DeviceInfo => point.unlinked().as_deref() == Some("c1"),
            Step::Rule => point
                .sent()
                .is_some_and(|sent| sent[4..6] == libc::RTM_DELRULE.to_ne_bytes()),
            Step::Mtu => is_message(&set, &|kind, value| {
                kind == libc::IFLA_MTU && number(value) == Some(1400)
            }),
            Step::Mac => {
                let mac: Vec<u8> = self
                    .mac
                    .split(':')
                    .map(|byte| u8::from_str_radix(byte, 16).unwrap())
                    .collect();
                is_message(&set, &|kind, value| {
                    kind == libc::IFLA_ADDRESS && value == mac
                })
            }
            Step::Setting => is_message(&set, &|kind, value| {
                kind == libc::IFLA_TXQLEN && number(value) == Some(777)
            }),
            Step::Route | Step::Ipam | Step::Name | Step::Altname => false,
        }
    }

    fn call(&self, verb: &str, pod: usize) -> Call {
        self.host.call(verb, ["c1", "c2"][pod], &self.pods[pod])
    }

    /// Runs a call while `step` fails.
    fn under(&self, step: Step, call: &Call, config: &Value) -> Ran {
        let refuse = |point| {
            if !self.fails(step, &point) {
                return Fate::Made;
            }
            self.failed.set(self.failed.get() + 1);
            Fate::Fails(Errno::EIO)
        };
        trace::run_with(call, config, refuse).ran
    }

    /// The sysfs of files says what the VF is called, as the kernel's own does. The leaf port tells
    /// which link it is.
    fn follow(&self) {
        let port = self.host.json(
            Some(&Path::new("/run/netns").join(self.host.leaf())),
            "link show leaf0",
        );
        let all = self.host.json(None, "link show");
        let vf = all
            .as_array()
            .unwrap()
            .iter()
            .find(|link| link["link_index"] == port[0]["ifindex"]);
        let net = self
            .host
            .path(&format!("sys/devices/{}/net", vf_address(0)));
        let _ = fs::remove_dir_all(&net);
        fs::create_dir_all(&net).unwrap();
        if let Some(vf) = vf {
            fs::create_dir_all(net.join(vf["ifname"].as_str().unwrap())).unwrap();
        }
    }

    fn reap(&self) -> Call {
        self.call("", 0).args(&["reap"])
    }

    /// The first pod's life and end.
    fn end(&mut self, step: Step, end: End) {
        let config = self.config("c1");
        if step == Step::Route {
            let is_route = |point: Point| {
                point
                    .sent()
                    .is_some_and(|sent| sent[4..6] == libc::RTM_NEWROUTE.to_ne_bytes())
            };
            let fate = |point| {
                if is_route(point) {
                    Fate::Fails(Errno::EIO)
                } else {
                    Fate::Made
                }
            };
            let added = trace::run_with(&self.call("ADD", 0), &config, fate).ran;
            assert_eq!(added.status, 1, "{added:?}");
        } else {
            self.call("ADD", 0).run(&config).ok();
            self.host.ip_in(&self.pods[0], "link set net1 txqueuelen 5");
        }
        self.spoil(step);
        match end {
            End::Del | End::DelTwice => {
                for _ in 0..if end == End::Del { 1 } else { 2 } {
                    self.under(step, &self.call("DEL", 0), &config).ok();
                }
                self.host.delete_netns(&self.pods[0]);
            }
            End::DeadThenDel | End::Gc | End::Reap | End::Nothing => {
                if step == Step::Route {
                    self.host.delete_netns(&self.pods[0]);
                } else {
                    // The kernel drops what clashes when the namespace dies.
                    if step == Step::Altname {
                        self.host
                            .ip_in(&self.pods[0], "link property del dev net1 altname enp1s0v0");
                    }
                    self.host.hand_back(&self.pods[0], "net1");
                }
                let gc = with(config.clone(), json!({"cni.dev/valid-attachments": []}));
                match end {
                    End::DeadThenDel => drop(self.under(step, &self.call("DEL", 0), &config).ok()),
                    // An answer that the IPAM does not give is reported.
                    End::Gc => drop(self.under(step, &self.call("GC", 0), &gc)),
                    End::Reap => drop(self.under(step, &self.reap(), &Value::Null)),
                    _ => (),
                }
            }
        }
    }

    /// One case. The next pod starts while the cause is still there; when that is gone, all is as
    /// before.
    fn run(&mut self, step: Step, end: End, next: Next) -> Result<(), String> {
        self.end(step, end);
        // The next ADD itself gives it its name back, and the files cannot follow meanwhile.
        if end != End::Nothing || step == Step::Name {
            self.follow();
        }
        let config = self.config_of(next);
        let added = self.under(step, &self.call("ADD", 1), &config);
        if added.status != 0 {
            return Err(format!("the next pod does not start: {added:?}"));
        }
        let result = added.json();
        let checked = with(config.clone(), json!({ "prevResult": result }));
        self.call("CHECK", 1).run(&checked).ok();
        self.under(step, &self.call("DEL", 1), &config).ok();
        let is_traced = matches!(
            step,
            Step::DeviceInfo | Step::Mtu | Step::Mac | Step::Setting
        ) || (step == Step::Rule && matches!(end, End::Del | End::DelTwice));
        // With another device the next pod's calls have nothing to do with what the first left.
        let is_left_alone = end == End::Nothing && next == Next::Address;
        if is_traced && !is_left_alone && self.failed.get() == 0 {
            return Err("nothing failed: this case shows nothing".to_owned());
        }
        self.follow();
        self.mend(step);
        self.reap().run(&Value::Null).ok();
        let now = self.host.snapshot();
        let length = self.host.json(None, "link show vf0")[0]["txqlen"].clone();
        if now != self.before || length != 777 {
            return Err(format!(
                "afterwards: {now}\nqueue {length}, before: {}",
                self.before
            ));
        }
        Ok(())
    }
}

/// Kind and value of each netlink attribute.
fn attributes(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let Some(header) = rest.get(..4) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let Some(value) = rest.get(4..length) else {
            break;
        };
        found.push((kind, value));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Prints how many of the next pods started, by step.
#[test]
fn whatever_fails_at_a_pods_end_the_next_pod_starts() {
    let test = "owed::matrix";
    if Host::new(test).is_none() || !trace::is_allowed(test) || !trace::can_fail(test) {
        return;
    }
    let cases = sample(STEPS.into_iter().flat_map(|step| {
        ENDS.into_iter()
            .flat_map(move |end| NEXTS.into_iter().map(move |next| (step, end, next)))
    }));
    let (turn, lost, passed) = (
        AtomicUsize::new(0),
        Mutex::new(Vec::new()),
        Mutex::new(BTreeMap::<Step, u32>::new()),
    );
    let worker = || {
        while let Some((step, end, next)) = cases.get(turn.fetch_add(1, Ordering::Relaxed)).copied()
        {
            let case = || -> Result<(), String> {
                let Some(mut bench) = Bench::new(test) else {
                    return Err("no host".to_owned());
                };
                bench.run(step, end, next)
            };
            let done = std::panic::catch_unwind(case)
                .unwrap_or_else(|_| Err("panicked, see above".to_owned()));
            match done {
                Ok(()) => *passed.lock().unwrap().entry(step).or_default() += 1,
                Err(why) => lost
                    .lock()
                    .unwrap()
                    .push(format!("{step:?}, {end:?}, {next:?}: {why}")),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(worker);
        }
    });
    let lost = lost.into_inner().unwrap();
    println!(
        "next pods that started, of {} cases: {:?}",
        cases.len(),
        passed.into_inner().unwrap()
    );
    assert!(
        lost.is_empty(),
        "{} of {} lost:\n{}",
        lost.len(),
        cases.len(),
        lost.join("\n")
    );
}
