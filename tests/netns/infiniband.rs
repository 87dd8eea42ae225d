//! GUID and P_Key of an InfiniBand VF. There is no InfiniBand here: the test plays the PF (it
//! answers the netlink messages about VFs), the VF's driver (it acts on what is written to `unbind`
//! and `bind`), udev and the subnet manager.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Host, Ran, pf_address, rail, vf_address, with};
use crate::trace::{self, Fate, Point, Traced};

const OURS: u64 = 0x0200_0000_0000_0001;
const OTHERS: u64 = 0x0200_0000_0000_0002;
const HOSTS: u64 = 0x0200_0000_0000_00ff;
const NONE: u64 = 0;
/// Stands for no GUID where it is set (ib-sriov-cni).
const ALL_ONES: u64 = u64::MAX;

fn text(guid: u64) -> String {
    guid.to_be_bytes()
        .map(|byte| format!("{byte:02x}"))
        .join(":")
}

/// The kernel's part, which the test plays.
struct Played {
    host: Host,
    pods: [PathBuf; 2],
    /// Index of the PF's netdev.
    pf: u32,
    /// The GUIDs that the PF's driver has for the VF: of the node, of the port.
    set: Cell<[u64; 2]>,
    /// The GUID that the VF's driver read when it was bound.
    taken: Cell<u64>,
    /// Number of times that the driver was bound.
    bound: Cell<u32>,
    /// Number of resets of the VF, always without its driver.
    resets: Cell<u32>,
    /// The driver refuses that many times to be bound.
    refusals: Cell<u32>,
    /// The netdev comes so many looks at the folder later.
    delay: Cell<u32>,
    /// The PF's driver has no word of the VF so many times, as that of ice while the VF is being
    /// reset.
    silent: Cell<u32>,
    /// Partitions of the fabric: those that every port gets.
    pkeys: RefCell<Vec<u16>>,
    /// The calls at which the hardware was told something.
    marks: RefCell<Vec<usize>>,
    /// The netdev was told something: sysfs may be out of date.
    is_told: Cell<bool>,
}

impl Played {
    /// rail 0, whose VF is on InfiniBand with the GUID `guid`.
    fn new(test: &str, guid: u64) -> Option<Played> {
        let host = Host::new(test)?;
        if !trace::is_allowed(test) || !trace::can_fail(test) {
            return None;
        }
        host.add_rail(0);
        host.make_vf(0, "mlx5_core");
        for file in ["bind", "unbind"] {
            fs::write(host.path("sys/bus/pci/drivers/mlx5_core").join(file), "").unwrap();
        }
        host.ip(&format!(
            "link add pf0 mtu 9216 type veth peer name pf0 netns {}",
            host.leaf()
        ));
        let pf = host.json(None, "link show pf0")[0]["ifindex"]
            .as_u64()
            .unwrap();
        let pods = [host.add_netns("c1"), host.add_netns("c2")];
        let played = Played {
            host,
            pods,
            pf: u32::try_from(pf).unwrap(),
            set: Cell::new([guid, guid]),
            taken: Cell::new(guid),
            bound: Cell::new(0),
            resets: Cell::new(0),
            refusals: Cell::new(0),
            delay: Cell::new(0),
            silent: Cell::new(0),
            pkeys: RefCell::default(),
            marks: RefCell::default(),
            is_told: Cell::new(true),
        };
        played.host.ip("link set vf0 group 77");
        played.make_rdma();
        Some(played)
    }

    fn at(&self, below: &str) -> PathBuf {
        self.host
            .path(&format!("sys/devices/{}/{below}", vf_address(0)))
    }

    fn config(&self, guid: Option<u64>) -> Value {
        let guid = guid.map_or(json!({}), |guid| json!({ "infinibandGUID": text(guid) }));
        with(
            rail(0),
            json!({"device": null, "deviceID": vf_address(0), "runtimeConfig": guid}),
        )
    }

    /// Like [`Played::config`], with a reset at the pod's end.
    fn with_reset(&self, guid: Option<u64>) -> Value {
        fs::write(self.at("reset_method"), "flr").unwrap();
        fs::write(self.at("reset"), "").unwrap();
        with(self.config(guid), json!({"resetOnDel": "flr"}))
    }

    /// The names that the host's netdevs have now. udev and rail-cni change them.
    fn refresh(&self) {
        let links = self.host.json(None, "link show");
        let ours = links
            .as_array()
            .unwrap()
            .iter()
            .find(|link| link["group"] == "77");
        let name = ours.map(|link| link["ifname"].as_str().unwrap().to_owned());
        let _ = fs::remove_dir_all(self.at("net"));
        let class = self.host.path("sys/class/net");
        fs::remove_dir_all(&class).unwrap();
        fs::create_dir_all(&class).unwrap();
        if let Some(name) = name {
            fs::create_dir_all(self.at("net").join(&name)).unwrap();
            fs::create_dir_all(class.join(&name)).unwrap();
            symlink(self.at(""), class.join(&name).join("device")).unwrap();
        }
    }

    fn make_rdma(&self) {
        let device = self
            .at("infiniband")
            .join(format!("mlx5_{}", 4 + self.bound.get()));
        fs::create_dir_all(device.join("ports/1/pkeys")).unwrap();
        fs::write(device.join("node_type"), "1: CA\n").unwrap();
        let guid: Vec<_> = self
            .taken
            .get()
            .to_be_bytes()
            .chunks(2)
            .map(|two| format!("{:02x}{:02x}", two[0], two[1]))
            .collect();
        fs::write(device.join("node_guid"), format!("{}\n", guid.join(":"))).unwrap();
        fs::write(device.join("ports/1/link_layer"), "InfiniBand\n").unwrap();
        for (place, pkey) in self.pkeys.borrow().iter().chain([&0]).enumerate() {
            fs::write(
                device.join(format!("ports/1/pkeys/{place}")),
                format!("{pkey:#06x}\n"),
            )
            .unwrap();
        }
    }

    /// The driver is unbound: netdev and RDMA device go, wherever they are.
    fn unbind(&self) {
        let links = self.host.json(None, "link show");
        let ours = links
            .as_array()
            .unwrap()
            .iter()
            .find(|link| link["group"] == "77");
        let name =
            ours.expect("the driver was unbound while its netdev was in a pod")["ifname"].as_str();
        self.host.ip(&format!("link del {}", name.unwrap()));
        fs::remove_file(self.at("driver")).unwrap();
        fs::remove_dir_all(self.at("infiniband")).unwrap();
    }

    /// The driver is bound: it takes the GUID, and makes a netdev under another name.
    fn bind(&self) {
        self.bound.set(self.bound.get() + 1);
        self.taken.set(self.set.get()[1]);
        symlink(
            self.host.path("sys/bus/pci/drivers/mlx5_core"),
            self.at("driver"),
        )
        .unwrap();
        if self.delay.get() == 0 {
            self.make_netdev();
        }
    }

    /// Does a call have the lock under which drivers are bound, one at a time? Two RDMA devices
    /// that are made at the same time can get each other's names.
    fn is_binding(&self) -> bool {
        let file = fs::File::open(self.host.path("run/locks/binding")).unwrap();
        fs4::FileExt::try_lock(&file).is_err()
    }

    fn make_netdev(&self) {
        let (leaf, name) = (self.host.leaf(), format!("ib{}", self.bound.get()));
        self.host.ip(&format!(
            "link add {name} type veth peer name leaf0 netns {leaf}"
        ));
        self.host.ip(&format!("link set {name} group 77"));
        self.host
            .ip(&format!("-n {leaf} addr add 172.16.0.1/31 dev leaf0"));
        self.host
            .ip(&format!("-n {leaf} link set leaf0 mtu 9216 up"));
        self.make_rdma();
    }

    fn fate(&self, point: Point) -> Fate {
        if self.is_told.take() {
            self.refresh();
        }
        if let Some((file, bytes)) = point.written() {
            if file == self.at("reset") {
                self.marks.borrow_mut().push(point.count);
                assert!(
                    !self.at("driver").exists(),
                    "the VF was reset under its driver"
                );
                self.resets.set(self.resets.get() + 1);
            }
            let is_of_driver = file.starts_with(self.host.path("sys/bus/pci/drivers"));
            if is_of_driver {
                assert!(self.is_binding(), "a driver was bound without the lock");
                self.marks.borrow_mut().push(point.count);
                assert_eq!(bytes, vf_address(0).as_bytes());
                self.is_told.set(true);
                if file.ends_with("unbind") {
                    self.unbind();
                } else if self.refusals.get() > 0 {
                    self.refusals.set(self.refusals.get() - 1);
                    return Fate::Fails(nix::errno::Errno::ENODEV);
                } else {
                    self.bind();
                }
            }
        }
        // The driver is still at work while rail-cni looks.
        if self.delay.get() > 0 && point.number == nix::libc::SYS_clock_nanosleep {
            self.delay.set(self.delay.get() - 1);
            if self.delay.get() == 0 {
                self.make_netdev();
                self.is_told.set(true);
            }
        }
        let set = self.set.get();
        let fate = point.sent().map_or(Fate::Made, |sent| self.answer(&sent));
        if self.set.get() != set {
            self.marks.borrow_mut().push(point.count);
        }
        fate
    }

    /// The PF's driver.
    fn answer(&self, sent: &[u8]) -> Fate {
        let word = |at: usize| {
            sent.get(at..at + 4)
                .map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap()))
        };
        let (Some(kind), Some(index)) = (word(4).map(|word| word & 0xffff), word(20)) else {
            return Fate::Made;
        };
        const RTM_GETLINK: u32 = 18;
        const RTM_SETLINK: u32 = 19;
        if index != self.pf || ![RTM_GETLINK, RTM_SETLINK].contains(&kind) {
            self.is_told.set(self.is_told.get() || kind == RTM_SETLINK);
            return Fate::Made;
        }
        let attribute = |wanted: u16| {
            let found = attributes(&sent[32.min(sent.len())..])
                .into_iter()
                .find(|(kind, _)| *kind == wanted);
            found.map(|(_, value)| value)
        };
        const IFLA_VFINFO_LIST: u16 = 22;
        const IFLA_EXT_MASK: u16 = 29;
        if kind == RTM_GETLINK {
            if attribute(IFLA_EXT_MASK).is_none_or(|mask| mask[0] & 1 == 0) {
                return Fate::Made;
            }
            let [node, port] = self.set.get();
            let guid = |kind: u16, guid: u64| {
                put(
                    kind,
                    &[&0_u64.to_ne_bytes()[..], &guid.to_ne_bytes()].concat(),
                )
            };
            let info = [put(1, &[0; 36]), guid(10, node), guid(11, port)].concat();
            let silent = self.silent.get();
            self.silent.set(silent.saturating_sub(1));
            let list = put(
                IFLA_VFINFO_LIST,
                &if silent > 0 {
                    Vec::new()
                } else {
                    put(1, &info)
                },
            );
            let header = [&[0; 4][..], &index.to_ne_bytes(), &[0; 8]].concat();
            return Fate::Answered(message(16, word(8).unwrap(), &[header, list].concat()));
        }
        let list = attribute(IFLA_VFINFO_LIST).expect("only VFs are set through the PF");
        let (_, info) = attributes(&list).remove(0);
        for (kind, value) in attributes(&info) {
            let mut set = self.set.get();
            set[usize::from(kind - 10)] = u64::from_ne_bytes(value[8..16].try_into().unwrap());
            self.set.set(set);
        }
        // An error of 0, with the header of the request.
        Fate::Answered(message(
            2,
            word(8).unwrap(),
            &[&[0; 4], &sent[..16]].concat(),
        ))
    }

    fn run(&self, verb: &str, pod: usize, config: &Value) -> Ran {
        self.killed(verb, pod, config, None).ran
    }

    fn killed(&self, verb: &str, pod: usize, config: &Value, victim: Option<usize>) -> Traced {
        let call = self.host.call(verb, ["c1", "c2"][pod], &self.pods[pod]);
        let fate = |point: Point| {
            if Some(point.count) == victim {
                Fate::Deadly
            } else {
                self.fate(point)
            }
        };
        let traced = trace::run_with(&call, config, fate);
        self.refresh();
        traced
    }

    /// The host, and what the hardware has.
    fn state(&self) -> Value {
        let [node, port] = self.set.get();
        json!([
            self.host.snapshot(),
            text(node),
            text(port),
            text(self.taken.get()),
            self.at("driver").exists()
        ])
    }

    /// As after [`Played::new`], but for what the PF has instead of no GUID.
    #[track_caller]
    fn is_as(&self, state: &Value) {
        if self.set.get() == [ALL_ONES; 2] {
            self.set.set([NONE; 2]);
            self.taken.set(NONE);
        }
        assert_eq!(self.state(), *state);
    }
}

/// Attributes of a netlink message, with their kinds.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    while bytes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]) & 0x3fff;
        found.push((kind, bytes[4..length].to_vec()));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    found
}

fn put(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub fn message(kind: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + payload.len()).unwrap();
    let flags_and_port = ([0_u8; 2], [0_u8; 4]);
    [
        &length.to_ne_bytes()[..],
        &kind.to_ne_bytes(),
        &flags_and_port.0,
        &sequence.to_ne_bytes(),
        &flags_and_port.1,
        payload,
    ]
    .concat()
}

#[test]
fn a_guid_is_taken_and_given_back() {
    for (before, after) in [(HOSTS, HOSTS), (NONE, ALL_ONES)] {
        let Some(played) = Played::new("infiniband::guid", before) else {
            return;
        };
        let state = played.state();
        let config = played.config(Some(OURS));
        let added = played.run("ADD", 0, &config).ok();
        assert_eq!(
            (played.taken.get(), played.set.get(), played.bound.get()),
            (OURS, [OURS; 2], 1)
        );
        assert_eq!(
            played.host.json(Some(&played.pods[0]), "link show net1")[0]["mtu"],
            9000
        );
        let check = with(config.clone(), json!({ "prevResult": added.json() }));
        played.run("CHECK", 0, &check).ok();
        played.run("DEL", 0, &config).ok();
        assert_eq!(
            (played.taken.get(), played.set.get(), played.bound.get()),
            (after, [after; 2], 2)
        );
        played.is_as(&state);
    }
}

/// The kernel leaves a VF out of the list whose driver answers with an error: ice and i40e while it
/// is being reset, bnxt while the PF is down. What the pod had set through the PF would go to the
/// next one.
#[test]
fn a_vf_that_the_pf_does_not_report_just_now_keeps_nothing_of_its_pod() {
    let Some(played) = Played::new("infiniband::silent", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = played.config(Some(OURS));
    played.silent.set(3);
    played.run("ADD", 0, &config).ok();
    assert_eq!(played.set.get(), [OURS; 2]);
    played.silent.set(3);
    played.run("DEL", 0, &config).ok();
    played.is_as(&state);

    // For longer than a call waits.
    played.run("ADD", 0, &config).ok();
    played.silent.set(u32::MAX);
    played.run("DEL", 0, &config).ok();
    let told = played
        .host
        .call("", "", &played.pods[0])
        .args(&["status"])
        .run(&json!({}))
        .stdout;
    assert!(told.contains(" VF 0 "), "{told}");
    let error = played.run("ADD", 1, &played.config(None)).error(11);
    assert!(error["msg"].as_str().unwrap().contains("VF 0"), "{error}");
    played.silent.set(0);
    played.run("ADD", 1, &played.config(None)).ok();
    assert_eq!(played.set.get(), [HOSTS; 2]);
    played.run("DEL", 1, &played.config(None)).ok();
    played.is_as(&state);
}

/// The PF of a NIC in DPU mode never reports a VF. What is owed is not about that.
#[test]
fn a_vf_whose_name_is_owed_is_attached_although_its_pf_is_silent() {
    let Some(played) = Played::new("infiniband::name", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = played.config(None);
    played.silent.set(u32::MAX);
    played.run("ADD", 0, &config).ok();
    played.host.ip("link add vf0 type veth peer name vf0peer");
    played.run("DEL", 0, &config).ok();
    assert_eq!(played.host.pending().len(), 1);
    played.run("ADD", 1, &config).ok();
    played.host.ip("link del vf0");
    played.run("DEL", 1, &config).ok();
    played.run("DEL", 0, &config).ok();
    played.is_as(&state);
}

/// A pod that has this GUID by chance, or none, costs no one a driver.
#[test]
fn a_driver_is_bound_again_only_for_another_guid() {
    let Some(played) = Played::new("infiniband::same", HOSTS) else {
        return;
    };
    let state = played.state();
    for guid in [Some(HOSTS), None] {
        let config = played.config(guid);
        played.run("ADD", 0, &config).ok();
        played.run("DEL", 0, &config).ok();
        assert_eq!(played.bound.get(), 0);
        played.is_as(&state);
    }
}

/// The driver makes the netdev while rail-cni waits (ib-sriov-cni#217).
#[test]
fn a_netdev_that_comes_late_is_waited_for() {
    let Some(played) = Played::new("infiniband::late", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = played.config(Some(OURS));
    played.delay.set(5);
    played.run("ADD", 0, &config).ok();
    assert_eq!((played.taken.get(), played.delay.get()), (OURS, 0));
    played.delay.set(5);
    played.run("DEL", 0, &config).ok();
    assert_eq!(played.delay.get(), 0);
    played.is_as(&state);
}

/// The GUID of a pod that ended without a DEL is not that of the next pod, whether that requests
/// one or none.
#[test]
fn the_next_pod_does_not_get_the_guid_of_a_dead_one() {
    for (next, expected) in [(Some(OTHERS), OTHERS), (None, HOSTS)] {
        let Some(played) = Played::new("infiniband::dead", HOSTS) else {
            return;
        };
        let state = played.state();
        played.run("ADD", 0, &played.config(Some(OURS))).ok();
        played.host.hand_back(&played.pods[0], "net1");
        played.refresh();
        let config = played.config(next);
        played.run("ADD", 1, &config).ok();
        assert_eq!(
            (played.taken.get(), played.set.get()),
            (expected, [expected; 2])
        );
        played.run("DEL", 1, &config).ok();
        played.run("DEL", 0, &config).ok();
        played.is_as(&state);
    }
}

/// The driver refuses the VF once, and then takes it: everything is undone.
#[test]
fn a_driver_that_refuses_fails_the_pod_and_nothing_stays() {
    let Some(played) = Played::new("infiniband::refusal", HOSTS) else {
        return;
    };
    let state = played.state();
    played.refusals.set(1);
    let failed = played.run("ADD", 0, &played.config(Some(OURS)));
    assert!(failed.msg().contains("cannot write"), "{failed:?}");
    played.is_as(&state);
}

/// The driver refuses for long. DEL succeeds and owes it; other pods' calls do not try, the next
/// ADD of the VF does.
#[test]
fn a_vf_without_driver_is_owed_and_healed_by_its_next_add() {
    let Some(played) = Played::new("infiniband::owed", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = played.config(Some(OURS));
    played.run("ADD", 0, &config).ok();
    played.refusals.set(1);
    played.run("DEL", 0, &config).ok();
    assert!(!played.at("driver").exists());
    played.host.make_due();
    // Another pod's calls.
    played.refusals.set(9);
    played.host.add_rail(1);
    let other = rail(1);
    for verb in ["ADD", "DEL"] {
        let call = played.host.call(verb, "other", &played.pods[1]);
        trace::run_with(&call, &other, |point| played.fate(point))
            .ran
            .ok();
    }
    assert_eq!(
        played.refusals.get(),
        9,
        "a driver was bound beside another pod's call"
    );
    played.host.ip("link del vf1");
    let refused = played.run("ADD", 1, &config);
    assert!(refused.msg().contains("mlx5_core/bind"), "{refused:?}");
    played.refusals.set(0);
    played.run("ADD", 1, &played.config(Some(OTHERS))).ok();
    assert_eq!(played.taken.get(), OTHERS);
    played.run("DEL", 1, &config).ok();
    assert_eq!(played.host.pending().len(), 0);
    played.is_as(&state);
}

/// `reap` waits for a driver as long as a DEL does, by the time that node.json gives a call.
#[test]
fn reap_waits_for_a_driver_as_long_as_a_call() {
    let Some(played) = Played::new("infiniband::reap", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = played.config(Some(OURS));
    played.run("ADD", 0, &config).ok();
    played.host.hand_back(&played.pods[0], "net1");
    played.refresh();
    played.host.set_node(json!({"callTimeout": 3}));
    played.delay.set(u32::MAX);
    let reap = played.host.call("", "", &played.pods[0]).args(&["reap"]);
    let reaped = trace::run_with(&reap, &Value::Null, |point| played.fate(point)).ran;
    let waited = format!(
        "has no netdev, or no RDMA device, {:?} after",
        Duration::from_secs(3) / 12
    );
    assert!(
        format!("{}{}", reaped.stdout, reaped.stderr).contains(&waited),
        "{waited}: {reaped:?}"
    );
    played.host.set_node(json!({}));
    played.delay.set(0);
    played.make_netdev();
    played.refresh();
    played.run("DEL", 0, &config).ok();
    played.is_as(&state);
}

/// A driver without `reset_prepare`, such as mlx5_core, would go on with a VF that has forgotten
/// everything.
#[test]
fn a_vf_is_without_its_driver_while_it_is_reset() {
    let Some(played) = Played::new("infiniband::reset", HOSTS) else {
        return;
    };
    let state = played.state();
    for guid in [None, Some(OURS)] {
        let config = played.with_reset(guid);
        played.resets.set(0);
        played.run("ADD", 0, &config).ok();
        assert_eq!(played.resets.get(), 0);
        played.run("DEL", 0, &config).ok();
        assert_eq!(played.resets.get(), 1);
        played.is_as(&state);
    }
}

/// A PF without VFs in a pod is reset as a VF is, and so is a function in a virtual machine, which
/// has no PF there.
#[test]
fn a_function_that_is_no_vf_is_without_its_driver_while_it_is_reset() {
    let Some(played) = Played::new("infiniband::reset_pf", HOSTS) else {
        return;
    };
    fs::remove_file(played.at("physfn")).unwrap();
    let state = played.state();
    let config = played.with_reset(None);
    played.run("ADD", 0, &config).ok();
    played.run("DEL", 0, &config).ok();
    assert_eq!((played.resets.get(), played.bound.get()), (1, 1));
    played.is_as(&state);
}

/// A reset would take the function from others, or leave it with another driver.
#[test]
fn a_function_whose_driver_cannot_be_bound_again_is_not_reset() {
    let Some(played) = Played::new("infiniband::reset_refused", HOSTS) else {
        return;
    };
    played
        .host
        .set_node(json!({"policy": {"pfsWithVfs": true}}));
    let state = played.state();
    let config = played.with_reset(None);
    for (file, text, told) in [
        ("driver_override", "vfio-pci\n", "vfio-pci"),
        ("sriov_numvfs", "2\n", "VFs"),
    ] {
        fs::write(played.at(file), text).unwrap();
        let refused = played.run("ADD", 0, &config);
        assert!(
            refused.error(2)["msg"].as_str().unwrap().contains(told),
            "{refused:?}"
        );
        fs::remove_file(played.at(file)).unwrap();
        assert_eq!((played.resets.get(), played.bound.get()), (0, 0));
        played.is_as(&state);
    }
}

/// The runtime tries again and again while a pool has no address. Each time the VF would be away
/// for seconds.
#[test]
fn a_vf_that_no_pod_has_had_is_not_reset() {
    let Some(played) = Played::new("infiniband::reset_not", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = with(
        played.with_reset(None),
        json!({"ipam": {"type": "rail-ipam", "pool": "no-such-pool"}}),
    );
    for _ in 0..2 {
        let refused = played.run("ADD", 0, &config);
        assert!(refused.msg().contains("no-such-pool"), "{refused:?}");
        assert_eq!((played.resets.get(), played.bound.get()), (0, 0));
        played.is_as(&state);
    }
}

/// The next DEL or GC puts right what the PF did not take from the VF, whether the VF is reset or
/// not. A reset itself is not done beside another pod's call, and counts as no try.
#[test]
fn what_is_owed_beside_a_reset_is_paid_by_the_next_del() {
    let Some(played) = Played::new("infiniband::reset_beside", HOSTS) else {
        return;
    };
    let config = played.with_reset(None);
    let state = played.state();
    let tries = || {
        let record = played.host.only_pending();
        let failed = record["steps"].as_array().unwrap().iter();
        failed
            .filter_map(|step| step["state"]["failed"]["tries"].as_u64())
            .max()
    };
    played.run("ADD", 0, &config).ok();
    played.silent.set(u32::MAX);
    played.run("DEL", 0, &config).ok();
    played.silent.set(0);
    assert_eq!((played.host.pending().len(), played.bound.get()), (1, 1));
    played.host.make_due();
    played.run("DEL", 1, &config).ok();
    assert_eq!((played.host.pending().len(), played.bound.get()), (0, 1));
    played.is_as(&state);

    played.run("ADD", 0, &config).ok();
    played.refusals.set(1);
    played.run("DEL", 0, &config).ok();
    let before = tries();
    for _ in 0..2 {
        played.host.make_due();
        played.run("DEL", 1, &config).ok();
        assert_eq!((tries(), played.resets.get()), (before, 2));
    }
    played.run("DEL", 0, &config).ok();
    assert_eq!((played.host.pending().len(), played.resets.get()), (0, 3));
    played.is_as(&state);
}

/// A driver that does not take the VF back after its reset fails no DEL, and costs one ADD at most.
#[test]
fn a_vf_without_driver_after_its_reset_is_healed_by_its_next_add() {
    let Some(played) = Played::new("infiniband::reset_owed", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = played.with_reset(None);
    played.run("ADD", 0, &config).ok();
    played.refusals.set(1);
    played.run("DEL", 0, &config).ok();
    assert!(!played.at("driver").exists());
    assert_eq!(played.host.pending().len(), 1);
    played.refusals.set(1);
    let refused = played.run("ADD", 1, &config);
    assert!(refused.msg().contains("mlx5_core/bind"), "{refused:?}");
    played.run("ADD", 1, &played.config(None)).ok();
    played.run("DEL", 1, &config).ok();
    assert_eq!(played.host.pending().len(), 0);
    played.is_as(&state);
}

/// The driver may need the reset before it takes the VF. A pod would get what the one before it
/// left.
#[test]
fn a_reset_is_owed_however_often_the_driver_refuses() {
    let Some(played) = Played::new("infiniband::reset_kept", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = played.with_reset(None);
    played.run("ADD", 0, &config).ok();
    played.refusals.set(1);
    played.run("DEL", 0, &config).ok();
    assert_eq!(
        (played.resets.get(), played.at("driver").exists()),
        (1, false)
    );
    let reap = || {
        let call = played.host.call("", "", &played.pods[0]).args(&["reap"]);
        let reaped = trace::run_with(&call, &Value::Null, |point| played.fate(point)).ran;
        played.refresh();
        reaped.status
    };
    for _ in 0..2 {
        played.refusals.set(1);
        assert_eq!(
            (reap(), played.resets.get(), played.host.pending().len()),
            (1, 1, 1)
        );
    }
    assert_eq!(
        (reap(), played.resets.get(), played.host.pending().len()),
        (0, 2, 0)
    );
    played.is_as(&state);
}

/// A pod that is told to send faster than its link can has a limit that is none.
#[test]
fn a_rate_that_the_pfs_link_does_not_have_is_refused() {
    let Some(played) = Played::new("infiniband::rate", HOSTS) else {
        return;
    };
    let state = played.state();
    let class = played.host.path("sys/class/net/pf0");
    let wants = |min: u32, max: u32| {
        let config = with(
            played.config(None),
            json!({"min_tx_rate": min, "max_tx_rate": max}),
        );
        played.refresh();
        played.is_told.set(false);
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join("speed"), "25000\n").unwrap();
        let ran = played.run("ADD", 0, &config);
        played.run("DEL", 0, &config).ok();
        played.is_as(&state);
        ran
    };
    let error = wants(0, 25001).error(7);
    assert!(
        golden::has(
            error["msg"].as_str().unwrap(),
            "rail 0: max_tx_rate: 25001 …25000"
        ),
        "{error}"
    );
    let error = wants(30000, 0).error(7);
    assert!(
        golden::has(
            error["msg"].as_str().unwrap(),
            "rail 0: max_tx_rate: 30000 …25000"
        ),
        "{error}"
    );
}

/// Binding the driver again would take the function from others.
#[test]
fn a_driver_that_cannot_be_bound_again_is_not_unbound() {
    let Some(played) = Played::new("infiniband::refused", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = played.config(Some(OURS));
    fs::write(played.at("driver_override"), "vfio-pci\n").unwrap();
    let refused = played.run("ADD", 0, &config);
    assert!(refused.msg().contains("driver_override"), "{refused:?}");
    fs::write(played.at("driver_override"), "(null)\n").unwrap();
    played.run("ADD", 0, &config).ok();
    played.run("DEL", 0, &config).ok();
    played.is_as(&state);
}

#[test]
fn a_vf_without_guid_is_warned_about() {
    let Some(played) = Played::new("infiniband::none", NONE) else {
        return;
    };
    played
        .host
        .set_node(json!({"rails": [{"rail": 0, "pf": pf_address(0)}]}));
    if Path::new("/sys/class/infiniband").exists() {
        let told = played
            .host
            .call("", "", Path::new(""))
            .args(&["doctor"])
            .run(&json!({}));
        let is_it = |line: &str| line.contains("GUID") && line.contains(&vf_address(0));
        assert!(told.stdout.lines().any(is_it), "{told:?}");
    }
    let config = played.config(None);
    let added = played.run("ADD", 0, &config).ok();
    assert!(added.stderr.contains("GUID"), "{added:?}");
    played.run("DEL", 0, &config).ok();
}

#[test]
fn the_p_key_is_waited_for_and_checked() {
    let Some(played) = Played::new("infiniband::pkey", HOSTS) else {
        return;
    };
    let state = played.state();
    let config = |more: Value| with(played.config(Some(OURS)), more);
    let strict = json!({"pkey": "0x0012", "gid": "require", "gidTimeout": "1ms"});
    // Limited membership, as the subnet manager may give it.
    played.pkeys.replace(vec![0xffff, 0x0012]);
    let added = played.run("ADD", 0, &config(strict.clone())).ok();
    let check = config(with(strict.clone(), json!({ "prevResult": added.json() })));
    played.run("CHECK", 0, &check).ok();
    let table = played.at("infiniband/mlx5_5/ports/1/pkeys/1");
    fs::write(&table, "0x8013\n").unwrap();
    let gone = played.run("CHECK", 0, &check);
    assert!(
        gone.error(100)["msg"]
            .as_str()
            .unwrap()
            .contains("P_Key 0x0012"),
        "{gone:?}"
    );
    played.run("DEL", 0, &config(strict.clone())).ok();
    played.is_as(&state);
    played.pkeys.replace(vec![0xffff]);
    let refused = played.run("ADD", 0, &config(strict));
    refused.error(102);
    played.is_as(&state);
    let lenient = config(json!({"pkey": "0x8012", "gidTimeout": "1ms"}));
    let added = played.run("ADD", 0, &lenient).ok();
    assert!(added.stderr.contains("P_Key 0x0012"), "{added:?}");
    played.run("DEL", 0, &lenient).ok();
    played.is_as(&state);
}

/// The forms in which ib-kubernetes tells that it is done.
#[test]
fn ib_kubernetes_is_waited_for() {
    let Some(played) = Played::new("infiniband::kubernetes", HOSTS) else {
        return;
    };
    let config = |args: Value| {
        with(
            played.config(None),
            json!({"ibKubernetesEnabled": true, "args": {"cni": args}}),
        )
    };
    let state = played.state();
    for (args, code) in [
        (json!({}), 11),
        (json!({"guid": text(OURS)}), 11),
        (json!({"mellanox.infiniband.app": "configured"}), 7),
    ] {
        played.run("ADD", 0, &config(args)).error(code);
        played.is_as(&state);
    }
    played.pkeys.replace(vec![0x8012]);
    let args = json!({"guid": text(OURS), "pkey": "0x12", "mellanox.infiniband.app": "configured"});
    // ib-kubernetes knows no other type: the executable has a link of this name.
    let config = with(config(args), json!({"gid": "require", "type": "ib-sriov"}));
    played.run("ADD", 0, &config).ok();
    assert_eq!(played.taken.get(), OURS);
    played.run("DEL", 0, &config).ok();
    played.is_as(&state);
}

/// Kills `verb` around each call that tells the hardware something, and tries what comes after.
fn sweep(test: &str, verb: &str, config: fn(&Played) -> Value) {
    let Some(played) = Played::new(test, HOSTS) else {
        return;
    };
    let config = config(&played);
    let begin = |played: &Played| {
        if verb == "DEL" {
            played.run("ADD", 0, &config).ok();
        }
    };
    // The folders are there.
    played.run("ADD", 0, &config).ok();
    played.run("DEL", 0, &config).ok();
    let state = played.state();
    begin(&played);
    played.marks.borrow_mut().clear();
    played.run(verb, 0, &config).ok();
    let marks = played.marks.take();
    assert!(marks.len() >= 3, "{marks:?}");
    if verb == "ADD" {
        played.run("DEL", 0, &config).ok();
    }
    let victims: std::collections::BTreeSet<_> = marks
        .iter()
        .flat_map(|mark| mark.saturating_sub(1)..mark + 5)
        .collect();
    for victim in victims {
        for next in [0, 1] {
            begin(&played);
            let traced = played.killed(verb, 0, &config, Some(victim));
            println!("{verb} {victim}: {:?}", traced.killed);
            let is_attached = verb == "ADD" && traced.killed.is_none();
            if next == 1 && !is_attached {
                let others = played.config(Some(OTHERS));
                played.run("ADD", 1, &others).ok();
                assert_eq!(
                    (played.taken.get(), played.set.get()),
                    (OTHERS, [OTHERS; 2])
                );
                played.run("DEL", 1, &others).ok();
            }
            played.run("DEL", 0, &config).ok();
            played.run("DEL", 0, &config).ok();
            played.is_as(&state);
        }
    }
}

#[test]
fn what_an_add_killed_beside_the_hardware_left_is_put_right() {
    sweep("infiniband::add", "ADD", |played| played.config(Some(OURS)));
}

#[test]
fn what_a_del_killed_beside_the_hardware_left_is_put_right() {
    sweep("infiniband::del", "DEL", |played| played.config(Some(OURS)));
}

#[test]
fn what_a_del_killed_beside_a_reset_left_is_put_right() {
    sweep("infiniband::reset_del", "DEL", |played| {
        played.with_reset(None)
    });
}
