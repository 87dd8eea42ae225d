//! Checks of the RDMA devices of the rails. With `--rdma` also of what a program needs besides
//! them: ports, GIDs, a large path MTU, and memory that may be locked.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use super::infiniband;
use super::networks::Network;
use super::{Check, Findings, count};
use crate::commands::inventory::{Inventory, Rail, RdmaMode};
use crate::commands::rebuild::SEARCH;
use rail_cni::every_netns::{self, Seen, Which};
use rail_cni::node::Node;
use rail_cni::sysfs::{ETHERNET, Function, Mounted, RdmaPort};
use rail_cni::watchdog;
use rail_netlink::link::Link;
use rail_netlink::rdma;

const DEVICES: &str = "rdma";
const PORT: &str = "rdma-port";
const GID: &str = "rdma-gid";
const MTU: &str = "rdma-mtu";
const MEMLOCK: &str = "memlock";
const TO_EXCLUSIVE: &str = "run `rdma system set netns exclusive` at boot, before any pod starts";
const TO_LOAD: &str =
    "load the driver's RDMA module, such as mlx5_ib (`rdma link` lists the devices)";
/// Runtimes whose limits containers inherit, by the names of their processes.
const RUNTIMES: [&str; 2] = ["containerd", "crio"];

/// Makes all checks of this file: those of `--rdma` if `is_asked`.
pub fn check(
    node: &Node,
    inventory: &Inventory,
    networks: &[Network],
    is_asked: bool,
    found: &mut Findings,
) {
    let needs = networks.iter().find(|network| network.needs_rdma);
    let why = match (needs, &node.roce) {
        (Some(network), _) => Some(format!("the network {} requires RDMA", network.name)),
        (None, Some(_)) => Some("node.json has `roce`".to_owned()),
        (None, None) => is_asked.then(|| "--rdma asks for them".to_owned()),
    };
    if inventory.rails.is_empty() && !is_asked {
        return;
    }
    if let Some(network) = needs.filter(|_| inventory.rdma != RdmaMode::Exclusive) {
        let name = &network.name;
        let text = format!(
            "the network {name} requires RDMA devices of its own, but RDMA is not in exclusive mode"
        );
        found.add(Check::fail(DEVICES, text, TO_EXCLUSIVE));
    } else {
        devices(inventory, why.as_deref(), found);
    }
    if is_asked {
        ports(inventory, node.roce.is_some(), found);
        path_mtu(inventory, networks, found);
        memlock(Path::new("/proc"), found);
    }
}

/// RDMA devices of a function that are in another namespace.
#[derive(Clone, Debug)]
struct Away {
    /// PCI address or auxiliary name of the function.
    id: String,
    /// Names of the RDMA devices.
    names: Vec<String>,
    /// A path that leads to the namespace.
    netns: PathBuf,
}

impl Away {
    /// Describes their place, for people.
    fn describe(&self) -> String {
        let (names, netns) = (self.names.join(" and "), self.netns.display());
        format!("its RDMA device {names} is in the namespace {netns}")
    }
}

/// Finds the RDMA devices of these functions in the namespaces that can be seen from here, as far
/// as the time suffices.
fn find_away(functions: &[&Function]) -> Result<Vec<Away>> {
    let mut found = Vec::new();
    if functions.is_empty() {
        return Ok(found);
    }
    let deadline = Instant::now() + watchdog::part(SEARCH);
    let seen = every_netns::visit(Which::All, deadline, |_, netns| {
        if Instant::now() > deadline {
            return Ok(ControlFlow::Break(Seen::Part));
        }
        // Most namespaces have none, and seeing that needs no mount.
        if rdma::open()?
            .as_mut()
            .map(rdma::is_any)
            .transpose()?
            .unwrap_or(false)
        {
            let sysfs = Mounted::here()?;
            for function in functions {
                // A pod can choose a name that makes the folder unreadable.
                let listed = function.seen_in(&sysfs.path()).list_rdma_devices();
                let names =
                    listed.unwrap_or_else(|_| vec!["with a name that cannot be listed".to_owned()]);
                if !names.is_empty() {
                    found.push(Away {
                        id: function.id.clone(),
                        names,
                        netns: netns.to_owned(),
                    });
                }
            }
        }
        let is_done = found.len() >= functions.len();
        Ok(if is_done {
            ControlFlow::Break(Seen::All)
        } else {
            ControlFlow::Continue(())
        })
    })?;
    if seen == Seen::Part {
        log::warn!("the search for RDMA devices ended before every namespace was examined");
    }
    Ok(found)
}

/// The functions of the rail that no pod has, with their netdevs. In exclusive mode, the RDMA
/// device of a function that a pod has is not in the host's sysfs, whether there is a record of the
/// pod or not.
fn at_home<'a>(rail: &'a Rail, inventory: &'a Inventory) -> Vec<(&'a Function, Option<&'a Link>)> {
    let pf = rail.function.iter().map(|pf| (pf, rail.link.as_ref()));
    let all = pf.chain(rail.vfs.iter().map(|vf| (&vf.function, vf.link.as_ref())));
    let is_home = |function: &Function| {
        !inventory.is_held(function)
            && inventory.lost(function).is_none()
            && !function.is_userspace()
    };
    all.filter(|(function, _)| is_home(function)).collect()
}

fn has(function: &Function) -> bool {
    !function.rdma_devices().is_empty()
}

/// `why` says who needs RDMA, if anybody does.
fn devices(inventory: &Inventory, why: Option<&str>, found: &mut Findings) {
    if inventory.rdma == RdmaMode::Absent {
        let text = "this kernel has no RDMA, or its modules are not loaded";
        return found.add(match why {
            Some(why) => Check::fail(DEVICES, format!("{text}, and {why}"), TO_LOAD),
            None => Check::skip(DEVICES, text),
        });
    }
    let rails: Vec<_> = inventory
        .rails
        .iter()
        .map(|rail| (rail, at_home(rail, inventory)))
        .collect();
    let with: usize = rails
        .iter()
        .map(|(_, all)| all.iter().filter(|(one, _)| has(one)).count())
        .sum();
    // Pods whose records were lost have devices as well, and so have claims.
    let moved = !inventory.lost.is_empty()
        || !inventory.claimed.is_empty()
        || inventory
            .attachments
            .iter()
            .any(|one| one.record.moves_rdma());
    // Of a device whose netdev is not on the host either, a pod is the owner.
    let is_pending = |function: &Function| {
        let mut pending = inventory.pending.iter();
        pending.any(|record| record.owner.device.is_of(&function.id) && record.leaves_rdma())
    };
    let lacking = rails
        .iter()
        .flat_map(|(_, all)| all)
        .filter(|(one, _)| !has(one));
    let searched = lacking
        .filter(|(one, link)| link.is_some() && !is_pending(one))
        .map(|(one, _)| *one);
    let searched: Vec<_> = searched
        .filter(|_| inventory.rdma == RdmaMode::Exclusive)
        .collect();
    let away = find_away(&searched).unwrap_or_else(|error| {
        found.add(Check::skip(DEVICES, format!("{error:#}")));
        Vec::new()
    });
    if with == 0 && !moved && away.is_empty() {
        let text = "no PF and no VF of a rail has an RDMA device";
        return found.add(match why {
            Some(why) => Check::fail(DEVICES, format!("{text}, and {why}"), TO_LOAD),
            None => Check::skip(DEVICES, text),
        });
    }
    for (rail, all) in &rails {
        infiniband::check(
            DEVICES,
            rail,
            all.iter().map(|(function, _)| *function),
            found,
        );
        let lacking: Vec<_> = all
            .iter()
            .filter(|(one, _)| !has(one))
            .map(|(one, _)| *one)
            .collect();
        let mut without = Vec::new();
        for function in &lacking {
            let id = &function.id;
            if is_pending(function) {
                let text =
                    format!("{id}: its RDMA device has not returned from a pod that is gone");
                found.add(Check::warn(DEVICES, text, "run `railctl reap`").on(rail));
            } else if let Some(one) = away.iter().find(|one| one.id == *id) {
                let text = format!(
                    "{id}: {}, and no record says so: a pod gets it without RDMA",
                    one.describe()
                );
                let remedy = "end that pod: the device comes back when its namespace ends";
                found.add(Check::warn(DEVICES, text, remedy).on(rail));
            } else {
                without.push(id.as_str());
            }
        }
        if without.is_empty() {
            continue;
        }
        // The devices of the rail that a pod can get, now or later.
        let is_lacking = |function: &Function| without.contains(&function.id.as_str());
        let is_last = match &rail.vfs[..] {
            [] => rail.function.as_ref().is_some_and(is_lacking),
            vfs => vfs.iter().all(|vf| is_lacking(&vf.function)),
        };
        let text = format!(
            "there is no RDMA device on {}, but others have one",
            without.join(", ")
        );
        let check = match why.filter(|_| is_last) {
            Some(why) => Check::fail(DEVICES, format!("{text}, and {why}"), TO_LOAD),
            None => Check::warn(DEVICES, text, TO_LOAD),
        };
        found.add(check.on(rail));
    }
    if inventory.rdma == RdmaMode::Shared {
        let text = "RDMA is in shared mode: every pod sees every RDMA device, and networks with \"rdma\": \"required\" are refused";
        found.add(Check::warn(DEVICES, text, TO_EXCLUSIVE));
    }
    found.ok_unless_reported(
        DEVICES,
        format!(
            "RDMA is in exclusive mode, with {} on the host",
            count(with, "RDMA function")
        ),
    );
}

/// Checks the ports of the RDMA devices on the host. The port of a netdev that is down is down as
/// well: that of a VF comes up with the VF, in the pod.
fn ports(inventory: &Inventory, needs_roce: bool, found: &mut Findings) {
    let mut layers: Vec<String> = Vec::new();
    let (mut active, mut all) = (0, 0);
    for rail in &inventory.rails {
        for (function, link) in at_home(rail, inventory) {
            for port in function.rdma_ports() {
                let is_up = link.is_some_and(|link| link.up && link.carrier);
                if is_up && port.state != "ACTIVE" {
                    let text = format!(
                        "{} of {} is {}, although its netdev is up",
                        port.name, function.id, port.state
                    );
                    let remedy = format!(
                        "look for the reason in `rdma link show {}` and `dmesg`",
                        port.name
                    );
                    found.add(Check::fail(PORT, text, remedy).on(rail));
                }
                if port.layer == ETHERNET {
                    gids(rail, function, link, &port, found);
                } else if needs_roce {
                    let text = format!(
                        "{} of {} is {}, but node.json has `roce`",
                        port.name, function.id, port.layer
                    );
                    let remedy = format!(
                        "set the port to Ethernet: `mlxconfig -d {} set LINK_TYPE_P1=2`",
                        rail.pf()
                    );
                    found.add(Check::fail(PORT, text, remedy).on(rail));
                }
                layers.push(port.layer);
                active += usize::from(is_up);
                all += 1;
            }
        }
    }
    layers.sort();
    layers.dedup();
    if layers.len() > 1 {
        let text = format!(
            "the ports of the rails are of different kinds: {}",
            layers.join(", ")
        );
        found.add(Check::warn(
            PORT,
            text,
            "`rdma link` shows them; a pod can use one kind only at a time",
        ));
    }
    if active == 0 {
        let text = match all {
            0 => "there is no RDMA port on the host",
            _ => "every netdev with an RDMA device is down on the host",
        };
        found.add(Check::skip(PORT, text));
    }
    found.ok_unless_reported(
        PORT,
        format!(
            "{} on the host, {active} up and active",
            count(all, "RDMA port")
        ),
    );
    if all == 0 {
        found.add(Check::skip(GID, "there is no RDMA port on the host"));
    } else if !layers.iter().any(|layer| layer == ETHERNET) {
        found.add(Check::skip(GID, "there is no RoCE port on the host"));
    }
    found.ok_unless_reported(GID, "every RoCE port has RoCE v2 GIDs of its own netdev");
}

/// Checks that a port has GIDs of the kind RoCE v2: one of the link-local address is there without
/// any other address.
fn gids(
    rail: &Rail,
    function: &Function,
    link: Option<&Link>,
    port: &RdmaPort,
    found: &mut Findings,
) {
    let (id, name) = (&function.id, &port.name);
    let own = link.map(|link| &link.name);
    if port.netdevs.is_empty() {
        let text = format!("{name} of {id} has no RoCE v2 GID");
        found.add(match link.filter(|link| link.up) {
            Some(_) => {
                let remedy = format!(
                    "switch RoCE on: `devlink dev param show pci/{id} name enable_roce` must show true; \
                     `rdma link show {name}` must show the netdev"
                );
                Check::fail(GID, text, remedy).on(rail)
            }
            None => Check::skip(GID, format!("{text} while its netdev is down")).on(rail),
        });
    } else if own.is_some_and(|own| !port.netdevs.contains(own)) {
        let text = format!(
            "the GIDs of {name} of {id} belong to {}",
            port.netdevs.join(", ")
        );
        let remedy =
            "take the netdev out of its bond or bridge: a pod would get a device without GIDs";
        found.add(Check::warn(GID, text, remedy).on(rail));
    }
}

/// The payload of an RDMA packet for a netdev's MTU, both in bytes: a power of two, with room for
/// all headers (iboe_get_mtu).
fn payload(mtu: u32) -> u32 {
    const HEADERS: u32 = 96;
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|payload| mtu >= payload + HEADERS)
        .unwrap_or(0)
}

/// Checks that packets can carry 4096 bytes, the most that RDMA can.
fn path_mtu(inventory: &Inventory, networks: &[Network], found: &mut Findings) {
    for rail in &inventory.rails {
        let device = rail
            .vfs
            .iter()
            .find_map(|vf| vf.link.as_ref())
            .or(rail.link.as_ref());
        // There, the packets of RDMA have an MTU of their own, that of the port.
        if device.is_some_and(Link::is_infiniband) {
            found
                .add(Check::skip(MTU, "the rail is InfiniBand, whose subnet has the MTU").on(rail));
            continue;
        }
        let of_pods = inventory
            .attachments
            .iter()
            .filter(|one| rail.has(one) && one.is_live());
        let of_pods =
            of_pods.filter_map(|one| Some((one.link()?.mtu, one.record.owner.describe())));
        let mut seen: Vec<(u32, String)> = of_pods.collect();
        for network in networks
            .iter()
            .filter(|network| network.may_be_of(rail.rail))
        {
            let mtu = network.mtu.or(device.map(|link| link.mtu));
            seen.extend(mtu.map(|mtu| (mtu, format!("the network {}", network.name))));
        }
        if seen.is_empty() {
            seen.extend(rail.link.iter().map(|link| (link.mtu, link.name.clone())));
        }
        match seen.into_iter().min() {
            Some((mtu, who)) if payload(mtu) < 4096 => {
                let text = format!(
                    "MTU {mtu} of {who} leaves {} bytes for an RDMA packet; 4096 need MTU 4192",
                    payload(mtu)
                );
                let remedy = "set \"mtu\": 9000 in the network, and at least that on PF and leaf";
                found.add(Check::warn(MTU, text, remedy).on(rail));
            }
            Some(_) => (),
            None => found.add(Check::skip(MTU, "no MTU is known").on(rail)),
        }
    }
    found.ok_unless_reported(MTU, "RDMA packets of 4096 bytes fit the MTU of every rail");
}

/// Checks how much memory containers may lock: they inherit the limit of their runtime. A program
/// registers memory with an RDMA device by locking it.
fn memlock(processes: &Path, found: &mut Findings) {
    let entries = fs::read_dir(processes).into_iter().flatten().flatten();
    for process in entries.map(|entry| entry.path()) {
        let Ok(name) = fs::read_to_string(process.join("comm")) else {
            continue;
        };
        let name = name.trim();
        if !RUNTIMES.contains(&name) {
            continue;
        }
        let limits = fs::read_to_string(process.join("limits")).unwrap_or_default();
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max locked memory"));
        let pid = process
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        found.add(match line.and_then(|line| line.split_ascii_whitespace().next()) {
            None => Check::skip(MEMLOCK, format!("the limits of {name} (process {pid}) cannot be read")),
            Some("unlimited") => Check::ok(MEMLOCK, format!("{name} and its containers may lock all memory")),
            Some(bytes) => {
                let text = format!(
                    "containers of {name} may lock {bytes} bytes: RDMA fails in those without the capability IPC_LOCK"
                );
                let remedy = format!(
                    "set LimitMEMLOCK=infinity under [Service] with `systemctl edit {name}`, and restart it"
                );
                Check::warn(MEMLOCK, text, remedy)
            }
        });
    }
    if !found.0.iter().any(|check| check.name == MEMLOCK) {
        found.add(Check::skip(
            MEMLOCK,
            format!("none of {} is running", RUNTIMES.join(" and ")),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;
    use crate::commands::inventory::Vf;
    use rail_cni::sysfs::DeviceId;

    /// Two rails with a VF each; whose function has an RDMA device is in `with`.
    fn inventory(root: &Path, mode: RdmaMode, with: &[&str]) -> Inventory {
        let function = |id: &str| {
            let path = root.join("bus/pci/devices").join(id);
            fs::create_dir_all(&path).unwrap();
            if with.contains(&id) {
                fs::create_dir_all(path.join("infiniband/mlx5_0")).unwrap();
            }
            Function::find(root, &DeviceId::parse(id).unwrap())
                .unwrap()
                .unwrap()
        };
        let rails = (0..2u8).map(|rail| Rail {
            rail: Some(rail),
            named: String::new(),
            function: Some(function(&format!("0000:0{rail}:00.0"))),
            link: None,
            rdma: Vec::new(),
            vfs: vec![Vf {
                function: function(&format!("0000:0{rail}:00.1")),
                link: None,
            }],
        });
        Inventory {
            rdma: mode,
            rails: rails.collect(),
            attachments: Vec::new(),
            pending: Vec::new(),
            unreadable: Vec::new(),
            lost: Vec::new(),
            claimed: Default::default(),
            is_emptied: false,
        }
    }

    fn told(found: Findings) -> Vec<(Verdict, String)> {
        found
            .0
            .into_iter()
            .map(|check| (check.verdict, check.text))
            .collect()
    }

    fn judged(mode: RdmaMode, with: &[&str], why: Option<&str>) -> Vec<(Verdict, String)> {
        let root = tempfile::tempdir().unwrap();
        let mut found = Findings::default();
        devices(&inventory(root.path(), mode, with), why, &mut found);
        told(found)
    }

    const ALL: [&str; 4] = [
        "0000:00:00.0",
        "0000:00:00.1",
        "0000:01:00.0",
        "0000:01:00.1",
    ];

    #[test]
    fn rdma_is_judged_by_its_mode_and_by_what_the_other_rails_have() {
        let judged = |mode, with: &[&str]| judged(mode, with, None);
        let verdicts = |found: &[(Verdict, String)]| {
            found
                .iter()
                .map(|(verdict, _)| *verdict)
                .collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&judged(RdmaMode::Absent, &[])), [Verdict::Skip]);
        assert_eq!(verdicts(&judged(RdmaMode::Exclusive, &[])), [Verdict::Skip]);
        let good = judged(RdmaMode::Exclusive, &ALL);
        assert_eq!(verdicts(&good), [Verdict::Ok]);
        golden::says("doctor", "rdma: exclusive mode", &good[0].1);
        let shared = judged(RdmaMode::Shared, &ALL);
        assert!(
            verdicts(&shared) == [Verdict::Warn] && shared[0].1.contains("shared mode"),
            "{shared:?}"
        );
        let lacking = judged(RdmaMode::Exclusive, &ALL[..3]);
        assert_eq!(verdicts(&lacking), [Verdict::Warn]);
        assert!(
            lacking[0].1.starts_with("rail 1: ") && lacking[0].1.contains("0000:01:00.1"),
            "{lacking:?}"
        );
    }

    #[test]
    fn a_rail_without_rdma_fails_where_somebody_wants_it() {
        let why = Some("node.json has `roce`");
        for (case, mode, with) in [
            ("absent", RdmaMode::Absent, &ALL[..]),
            ("no device", RdmaMode::Exclusive, &[]),
            ("no device on a VF", RdmaMode::Exclusive, &ALL[..3]),
        ] {
            let [(verdict, text)] = &judged(mode, with, why)[..] else {
                panic!("{case}")
            };
            assert!(
                *verdict == Verdict::Fail && text.contains("node.json has `roce`"),
                "{text}"
            );
            golden::says("doctor", &format!("rdma: {case}, and roce is set"), text);
        }
        // Pods get the VFs.
        let without_pf = judged(RdmaMode::Exclusive, &[ALL[0], ALL[1], ALL[3]], why);
        assert!(
            without_pf.len() == 1 && without_pf[0].0 == Verdict::Warn,
            "{without_pf:?}"
        );
    }

    fn link(name: &str, up: bool) -> Link {
        let json = serde_json::json!({"index": 1, "name": name, "altnames": [], "mtu": 9000, "max_mtu": 0, "min_mtu": 0,
            "mac": "", "up": up, "carrier": up, "loopback": false});
        serde_json::from_value(json).unwrap()
    }

    /// Judges rail 0 with a PF whose ports have these files; rail 1 is as it should be.
    fn of_ports(up: bool, files: &[(&str, &str)], roce: bool) -> Vec<(Verdict, String)> {
        let root = tempfile::tempdir().unwrap();
        let mut inventory = inventory(root.path(), RdmaMode::Exclusive, &[ALL[0], ALL[2]]);
        let good = [
            ("link_layer", "Ethernet"),
            ("state", "4: ACTIVE"),
            ("gid_attrs/types/1", "RoCE v2"),
            ("gid_attrs/ndevs/1", "pf"),
        ];
        for (number, rail) in inventory.rails.iter_mut().enumerate() {
            rail.link = Some(link("pf", up));
            let port = root
                .path()
                .join("bus/pci/devices")
                .join(rail.pf())
                .join("infiniband/mlx5_0/ports/1");
            let special = files.iter().filter(|_| number == 0);
            for (file, text) in good.iter().chain(special) {
                fs::create_dir_all(port.join(file).parent().unwrap()).unwrap();
                fs::write(port.join(file), format!("{text}\n")).unwrap();
            }
        }
        let mut found = Findings::default();
        ports(&inventory, roce, &mut found);
        told(found)
    }

    #[test]
    fn ports_and_gids_are_judged_while_their_netdev_is_up() {
        let good = of_ports(true, &[], true);
        assert_eq!(
            (good.len(), good[0].0, good[1].0),
            (2, Verdict::Ok, Verdict::Ok)
        );
        golden::says("doctor", "rdma: ports are active", &good[0].1);
        for (files, verdict, part) in [
            (("state", "1: DOWN"), Verdict::Fail, "DOWN"),
            (
                ("gid_attrs/types/1", "IB/RoCE v1"),
                Verdict::Fail,
                "RoCE v2",
            ),
            (("gid_attrs/ndevs/1", "bond0"), Verdict::Warn, "bond0"),
            (("link_layer", "InfiniBand"), Verdict::Fail, "InfiniBand"),
        ] {
            let told = of_ports(true, &[files], true);
            let (found, text) = &told[0];
            assert!(
                *found == verdict && text.starts_with("rail 0: ") && text.contains(part),
                "{told:?}"
            );
            assert!(text.contains("mlx5_0/1 of 0000:00:00.0"), "{text}");
            golden::says("doctor", &format!("rdma: {} is {}", files.0, files.1), text);
        }
        let mixed = of_ports(true, &[("link_layer", "InfiniBand")], false);
        assert!(
            mixed[0].0 == Verdict::Warn && mixed[0].1.ends_with("Ethernet, InfiniBand"),
            "{mixed:?}"
        );
        let down = of_ports(
            false,
            &[("state", "1: DOWN"), ("gid_attrs/types/1", "")],
            true,
        );
        assert!(
            down.len() == 2 && down.iter().all(|(verdict, _)| *verdict == Verdict::Skip),
            "{down:?}"
        );
    }

    #[test]
    fn the_payload_leaves_room_for_all_headers() {
        let mtus = [9000, 4192, 4191, 1500, 351, 0];
        assert_eq!(mtus.map(payload), [4096, 4096, 2048, 1024, 0, 0]);
    }

    #[test]
    fn containers_inherit_the_limit_of_their_runtime() {
        let processes = tempfile::tempdir().unwrap();
        let judged = |name: &str, limit: &str| {
            let process = processes.path().join("71");
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            let limits =
                format!("Max processes  1  1  processes\nMax locked memory         {limit}\n");
            fs::write(process.join("limits"), limits).unwrap();
            let mut found = Findings::default();
            memlock(processes.path(), &mut found);
            found
                .0
                .into_iter()
                .map(|check| check.verdict)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            judged("containerd", "unlimited  unlimited  bytes"),
            [Verdict::Ok]
        );
        assert_eq!(judged("crio", "8388608  8388608  bytes"), [Verdict::Warn]);
        assert_eq!(
            judged("containerd-shim", "8388608  8388608  bytes"),
            [Verdict::Skip]
        );
        assert_eq!(judged("crio", ""), [Verdict::Skip]);
    }
}
