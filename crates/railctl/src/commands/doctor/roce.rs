//! Checks of what makes RoCE lossless: what the ports of the rails trust, priority flow control,
//! ECN, and whether their functions do RoCE at all. The ports are compared with `roce` of
//! node.json, and with each other.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::{Check, Findings, Verdict, count};
use crate::commands::inventory::{Inventory, Rail};
use rail_cni::node::{Node, Roce, Trust};
use rail_netlink::Socket;
use rail_netlink::dcb::{self, Dcb};
use rail_netlink::devlink::{Devlink, Modes};

const TRUST: &str = "roce-trust";
const PFC: &str = "roce-pfc";
const TOS: &str = "roce-tos";
const ECN: &str = "roce-ecn";
const MODE: &str = "roce-mode";
/// Added to commands whose effect ends with the next boot.
const PERMANENT: &str = ", and make it permanent";

/// The settings of a rail's port; an error is the reason why they are unknown.
struct Port<'a> {
    rail: &'a Rail,
    /// Name of the netdev.
    netdev: &'a str,
    driver: String,
    /// Directory of the netdev in sysfs.
    sysfs: PathBuf,
    dcb: Result<Dcb, String>,
}

/// Whether RDMA is to be expected on this node, and why.
fn wanted_by(node: &Node, inventory: &Inventory) -> bool {
    let has = |rail: &Rail| {
        !rail.rdma.is_empty()
            || rail
                .vfs
                .iter()
                .any(|vf| !vf.function.rdma_devices().is_empty())
    };
    node.roce.is_some()
        || inventory.rails.iter().any(has)
        || inventory
            .attachments
            .iter()
            .any(|one| one.record.moves_rdma())
}

/// Makes all checks of this file.
pub fn check(node: &Node, inventory: &Inventory, found: &mut Findings) {
    if node.rails.is_empty() {
        return found.add(Check::skip(
            TRUST,
            "node.json lists no rails, so no ports are compared",
        ));
    }
    if !wanted_by(node, inventory) {
        let text = "no PF and no VF of a rail has an RDMA device, and node.json has no `roce`";
        return found.add(Check::skip(TRUST, text));
    }
    let mut host = match Socket::open() {
        Ok(host) => host,
        Err(error) => return found.add(Check::skip(TRUST, format!("{error:#}"))),
    };
    let wanted = node.roce.clone().unwrap_or_default();
    let mut ports = Vec::new();
    for rail in &inventory.rails {
        match &rail.link {
            Some(link) => ports.push(Port::read(node, rail, &link.name, &mut host)),
            // The check `pf-link` reports it as well, but this one must not be `ok`.
            None => {
                let text = format!("{} has no netdev on the host", rail.pf());
                found.add(Check::skip(TRUST, text).on(rail));
            }
        }
    }
    if !ports.is_empty() {
        trust(&ports, &wanted, found);
        pfc(&ports, &wanted, found);
        tos(&ports, &wanted, found);
        ecn(&ports, &wanted, found);
    }
    modes(node, inventory, found);
}

impl<'a> Port<'a> {
    fn read(node: &Node, rail: &'a Rail, netdev: &'a str, host: &mut Socket) -> Port<'a> {
        let driver = rail
            .function
            .as_ref()
            .and_then(|function| function.driver());
        let driver = driver.unwrap_or_else(|| "of the netdev".to_owned());
        let dcb = match dcb::read(host, netdev) {
            Ok(Some(dcb)) => Ok(dcb),
            Ok(None) => Err(format!("the driver {driver} does not report DCB settings")),
            Err(error) => Err(format!("{error:#}")),
        };
        Port {
            rail,
            netdev,
            driver,
            sysfs: node.sysfs_root.join("class/net").join(netdev),
            dcb,
        }
    }

    /// Whether the driver is that of MLNX_OFED or DOCA, which has files of its own beside DCB.
    fn is_ofed(&self) -> bool {
        self.sysfs.join("qos/trust").exists()
    }

    fn trust(&self) -> Result<Trust, String> {
        // With that driver, DCB shows a DSCP only where it was set.
        match fs::read_to_string(self.sysfs.join("qos/trust"))
            .unwrap_or_default()
            .trim()
        {
            "dscp" => return Ok(Trust::Dscp),
            "pcp" => return Ok(Trust::Pcp),
            _ => (),
        }
        let trusts_dscp = self.dcb.as_ref().map_err(Clone::clone)?.trusts_dscp;
        Ok(if trusts_dscp { Trust::Dscp } else { Trust::Pcp })
    }

    fn pfc(&self) -> Result<u8, String> {
        let pfc = self.dcb.as_ref().map_err(Clone::clone)?.pfc;
        pfc.ok_or_else(|| format!("the driver {} does not report PFC", self.driver))
    }

    /// The priorities for which ECN is on, as bits, at the receiver and at the sender.
    fn ecn(&self) -> Result<[u8; 2], String> {
        let read = |point: &str| -> Result<u8, String> {
            let mut bits = 0;
            for priority in 0..8u8 {
                let file = self.sysfs.join(format!("ecn/{point}/enable/{priority}"));
                let text = fs::read_to_string(&file).map_err(|error| {
                    let (driver, file) = (&self.driver, file.display());
                    format!("the driver {driver} does not report ECN, as MLNX_OFED does ({file}: {error})")
                })?;
                bits |= u8::from(text.trim() == "1") << priority;
            }
            Ok(bits)
        };
        Ok([read("roce_np")?, read("roce_rp")?])
    }

    /// The command that gives these priorities PFC. ice applies it only if its firmware leaves LLDP
    /// to the host.
    fn set_pfc(&self, wanted: u8) -> String {
        let dev = self.netdev;
        if self.is_ofed() {
            let each: Vec<_> = (0..8)
                .map(|priority| (wanted >> priority & 1).to_string())
                .collect();
            return format!(
                "run `mlnx_qos -i {dev} --pfc {}`{PERMANENT}",
                each.join(",")
            );
        }
        let on: String = bits(wanted)
            .map(|priority| format!(" {priority}:on"))
            .collect();
        format!(
            "run {}`dcb pfc set dev {dev} prio-pfc all:off{on}`{PERMANENT}",
            self.before()
        )
    }

    fn set_trust(&self, wanted: Trust, roce: &Roce) -> String {
        let dev = self.netdev;
        if self.is_ofed() {
            let word = trust_text(wanted);
            return format!("run `mlnx_qos -i {dev} --trust {word}`{PERMANENT}");
        }
        if wanted == Trust::Pcp {
            return format!("run `dcb app flush dev {dev} dscp-prio`{PERMANENT}");
        }
        let lossless = bits(roce.pfc().unwrap_or(0)).next();
        let dscp = roce
            .tos
            .map(|tos| tos >> 2)
            .unwrap_or(lossless.unwrap_or(3) << 3);
        let priority = lossless.unwrap_or(dscp >> 3);
        format!(
            "run {}`dcb app add dev {dev} dscp-prio {dscp}:{priority}`{PERMANENT}",
            self.before()
        )
    }

    fn before(&self) -> String {
        match &*self.driver {
            "ice" => format!(
                "`ethtool --set-priv-flags {} fw-lldp-agent off`, then ",
                self.netdev
            ),
            _ => String::new(),
        }
    }
}

fn bits(mask: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |bit| mask >> bit & 1 == 1)
}

fn priorities(mask: u8) -> String {
    match mask {
        0 => "no priority".to_owned(),
        0xff => "all priorities".to_owned(),
        _ if mask.count_ones() == 1 => format!("priority {}", mask.trailing_zeros()),
        _ => {
            let all: Vec<_> = bits(mask).map(|bit| bit.to_string()).collect();
            format!("the priorities {}", all.join(", "))
        }
    }
}

fn trust_text(trust: Trust) -> &'static str {
    match trust {
        Trust::Pcp => "pcp",
        Trust::Dscp => "dscp",
    }
}

/// Rail, name of the port, and the value of a property; an error is the reason why it is not known.
type Row<'a> = (&'a Rail, &'a str, Result<[u8; 2], String>);

/// A property of the port of each rail.
struct Property<'a> {
    /// Name of the check.
    name: &'static str,
    /// The value of node.json.
    wanted: Option<[u8; 2]>,
    seen: Vec<Row<'a>>,
    show: fn([u8; 2]) -> String,
}

impl Property<'_> {
    /// Compares the ports with node.json, or else with what most of them have. `remedy` gets the
    /// place of a port in `seen`, and the value that is right.
    fn judge(&self, remedy: &dyn Fn(usize, [u8; 2]) -> String, found: &mut Findings) {
        let Property {
            name,
            wanted,
            seen,
            show,
        } = self;
        skip_unknown(name, seen, found);
        let known = || {
            seen.iter()
                .enumerate()
                .filter_map(|(at, one)| Some((at, *one.2.as_ref().ok()?)))
        };
        let having = |value| known().filter(move |(_, other)| *other == value);
        // Of values that are equally frequent, the first one.
        let Some((_, usual)) = known()
            .rev()
            .max_by_key(|(_, value)| having(*value).count())
        else {
            return;
        };
        let (right, verdict) =
            wanted.map_or((usual, Verdict::Warn), |wanted| (wanted, Verdict::Fail));
        for (at, value) in known().filter(|(_, value)| *value != right) {
            let who = match wanted {
                Some(_) => "node.json".to_owned(),
                None => having(usual)
                    .map(|(at, _)| seen[at].0.title())
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            let text = format!(
                "{}: {}, and {who}: {}",
                seen[at].1,
                show(value),
                show(right)
            );
            let check = Check {
                remedy: Some(remedy(at, right)),
                ..Check::new(verdict, name, text)
            };
            found.add(check.on(seen[at].0));
        }
        let how = if wanted.is_some() {
            "as node.json has it"
        } else {
            "compared with each other only"
        };
        found.ok_unless_reported(
            name,
            format!("{}: {}, {how}", count(known().count(), "port"), show(right)),
        );
    }
}

/// Adds a line for each reason why ports could not be examined.
fn skip_unknown(name: &'static str, seen: &[Row<'_>], found: &mut Findings) {
    let mut told: Vec<&String> = Vec::new();
    for reason in seen.iter().filter_map(|(.., value)| value.as_ref().err()) {
        if told.contains(&reason) {
            continue;
        }
        told.push(reason);
        let of = seen
            .iter()
            .filter(|(.., value)| value.as_ref().err() == Some(reason));
        let rails: Vec<_> = of.map(|(rail, ..)| rail.title()).collect();
        found.add(Check::skip(name, format!("{}: {reason}", rails.join(", "))));
    }
}

fn trust(ports: &[Port<'_>], roce: &Roce, found: &mut Findings) {
    const KINDS: [Trust; 2] = [Trust::Pcp, Trust::Dscp];
    let value = |trust: Trust| [u8::from(trust == Trust::Dscp), 0];
    let kind = |value: [u8; 2]| KINDS[usize::from(value[0] & 1)];
    let seen = ports
        .iter()
        .map(|port| (port.rail, port.netdev, port.trust().map(value)));
    let property = Property {
        name: TRUST,
        wanted: roce.trust().map(value),
        seen: seen.collect(),
        show: |value| format!("trust {}", trust_text(KINDS[usize::from(value[0] & 1)])),
    };
    property.judge(&|at, right| ports[at].set_trust(kind(right), roce), found);
}

fn pfc(ports: &[Port<'_>], roce: &Roce, found: &mut Findings) {
    let seen = ports
        .iter()
        .map(|port| (port.rail, port.netdev, port.pfc().map(|pfc| [pfc, 0])));
    let property = Property {
        name: PFC,
        wanted: roce.pfc().map(|pfc| [pfc, 0]),
        seen: seen.collect(),
        show: |value| format!("PFC for {}", priorities(value[0])),
    };
    property.judge(&|at, right| ports[at].set_pfc(right[0]), found);
}

/// Checks that each port gives packets with the ToS of node.json a priority that has PFC.
fn tos(ports: &[Port<'_>], roce: &Roce, found: &mut Findings) {
    let Some(tos) = roce.tos else { return };
    let dscp = tos >> 2;
    let mut seen = Vec::new();
    for port in ports {
        let priority = |port: &Port<'_>| {
            if port.trust()? == Trust::Pcp {
                return Err(format!("no port with trust pcp looks at ToS {tos}"));
            }
            let dcb = port.dcb.as_ref().map_err(Clone::clone)?;
            dcb.priorities.get(&dscp).copied().ok_or_else(|| {
                format!(
                    "the driver {} does not report the priority of DSCP {dscp} (ToS {tos})",
                    port.driver
                )
            })
        };
        let lossless = roce.pfc().map_or_else(|| port.pfc(), Ok);
        let judged = priority(port).and_then(|priority| Ok((priority, lossless?)));
        if let Ok((priority, lossless)) = judged {
            if lossless >> (priority & 7) & 1 == 0 {
                let dev = port.netdev;
                let text = format!(
                    "{dev}: ToS {tos} (DSCP {dscp}) has priority {priority}, which PFC does not keep lossless (PFC for {})",
                    priorities(lossless)
                );
                let right = bits(lossless).next().unwrap_or(dscp >> 3);
                let remedy = match port.is_ofed() {
                    true => {
                        format!("run `mlnx_qos -i {dev} --dscp2prio set,{dscp},{right}`{PERMANENT}")
                    }
                    false => format!(
                        "run `dcb app replace dev {dev} dscp-prio {dscp}:{right}`{PERMANENT}"
                    ),
                };
                found.add(Check::fail(TOS, text, remedy).on(port.rail));
            }
        }
        seen.push((
            port.rail,
            port.netdev,
            judged.map(|(priority, _)| [priority, 0]),
        ));
    }
    skip_unknown(TOS, &seen, found);
    let text = format!(
        "{}: ToS {tos} (DSCP {dscp}) has a lossless priority",
        count(ports.len(), "port")
    );
    found.ok_unless_reported(TOS, text);
}

fn ecn(ports: &[Port<'_>], roce: &Roce, found: &mut Findings) {
    // A driver has ECN on for every priority by default; only the lossless ones matter.
    let of = match (roce.ecn, roce.pfc()) {
        (Some(_), Some(pfc @ 1..)) => pfc,
        _ => 0xff,
    };
    let masked = |[np, rp]: [u8; 2]| [np & of, rp & of];
    let seen = ports
        .iter()
        .map(|port| (port.rail, port.netdev, port.ecn().map(masked)));
    let property = Property {
        name: ECN,
        wanted: roce.ecn.map(|is_on| if is_on { [of; 2] } else { [0; 2] }),
        seen: seen.collect(),
        show: |[np, rp]| match np == rp {
            true => format!("ECN for {}", priorities(np)),
            false => format!(
                "ECN for {} (np) and {} (rp)",
                priorities(np),
                priorities(rp)
            ),
        },
    };
    let remedy = |at: usize, right: [u8; 2]| {
        let Ok(now) = ports[at].ecn().map(masked) else {
            return String::new();
        };
        let mut set = Vec::new();
        for (point, right, now) in [("roce_np", right[0], now[0]), ("roce_rp", right[1], now[1])] {
            for priority in bits(right ^ now) {
                let file = ports[at]
                    .sysfs
                    .join(format!("ecn/{point}/enable/{priority}"));
                set.push(format!(
                    "`echo {} > {}`",
                    right >> priority & 1,
                    file.display()
                ));
            }
        }
        format!("run {}{PERMANENT}", set.join(" and "))
    };
    property.judge(&remedy, found);
}

/// Checks that no function of a rail has RoCE switched off, and that the switches of the NICs have
/// one mode.
fn modes(node: &Node, inventory: &Inventory, found: &mut Findings) {
    let mut devlink = match Devlink::open() {
        Ok(Some(devlink)) => devlink,
        Ok(None) => return found.add(Check::skip(MODE, "this kernel has no devlink")),
        Err(error) => return found.add(Check::skip(MODE, format!("{error:#}"))),
    };
    let mut seen = Vec::new();
    for rail in &inventory.rails {
        let functions = rail
            .function
            .iter()
            .chain(rail.vfs.iter().map(|vf| &vf.function));
        let mut all = Vec::new();
        for function in functions {
            let id = function.id.as_str();
            let mut modes = devlink.modes(id).unwrap_or_else(|error| {
                found.add(Check::skip(MODE, format!("{id}: {error:#}")).on(rail));
                Modes::default()
            });
            // A port on InfiniBand has no RoCE to switch on.
            modes.roce = modes.roce.filter(|_| !function.has_infiniband());
            all.push((id, modes));
        }
        seen.push((rail, all));
    }
    judge_modes(node.roce.is_some(), &seen, found);
}

/// The modes of the functions of a rail, by PCI address; the PF is the first.
type Seen<'a> = (&'a Rail, Vec<(&'a str, Modes)>);

fn judge_modes(needs_roce: bool, seen: &[Seen<'_>], found: &mut Findings) {
    let mut on = 0;
    if !seen
        .iter()
        .flat_map(|(_, functions)| functions)
        .any(|(_, modes)| modes.roce.is_some())
    {
        found.add(Check::skip(
            MODE,
            "no driver reports over devlink whether RoCE is on (enable_roce)",
        ));
    }
    for (rail, functions) in seen {
        for (id, modes) in functions {
            let Some((is_on, when)) = modes.roce else {
                continue;
            };
            if is_on {
                on += 1;
                continue;
            }
            let verdict = if needs_roce {
                Verdict::Fail
            } else {
                Verdict::Warn
            };
            let text = format!("{id} has RoCE switched off (enable_roce)");
            let set = format!(
                "`devlink dev param set pci/{id} name enable_roce value true cmode {when}`"
            );
            let remedy = match when {
                "driverinit" => {
                    format!("while no pod uses it, run {set}, then `devlink dev reload pci/{id}`")
                }
                _ => format!("run {set}"),
            };
            let check = Check {
                remedy: Some(remedy),
                ..Check::new(verdict, MODE, text)
            };
            found.add(check.on(rail));
        }
    }
    found.ok_unless_reported(MODE, count(on, "function") + " with RoCE switched on");
    let switches = seen.iter().filter_map(|(rail, functions)| {
        let (id, modes) = functions.first()?;
        Some((*rail, *id, Ok([u8::from(modes.is_switchdev?), 0])))
    });
    let property = Property {
        name: MODE,
        wanted: None,
        seen: switches.collect(),
        show: |value| format!("switch mode {}", switch_mode(value)),
    };
    let remedy = |at: usize, right: [u8; 2]| {
        let id = property.seen[at].1;
        let mode = switch_mode(right);
        format!(
            "if that is not intended, run `devlink dev eswitch set pci/{id} mode {mode}` while it has no VFs"
        )
    };
    property.judge(&remedy, found);
}

fn switch_mode(value: [u8; 2]) -> &'static str {
    if value[0] == 1 { "switchdev" } else { "legacy" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;
    use std::path::Path;

    fn rails() -> Vec<Rail> {
        let rail = |rail| Rail {
            rail: Some(rail),
            named: format!("pf{rail}"),
            function: None,
            link: None,
            rdma: Vec::new(),
            vfs: Vec::new(),
        };
        (0..3).map(rail).collect()
    }

    /// A port of each rail. `change` changes that of rail 2, and what it has in sysfs, a directory
    /// of its own.
    fn judged(
        check: fn(&[Port<'_>], &Roce, &mut Findings),
        roce: Value,
        change: impl Fn(&mut Port<'_>),
    ) -> Vec<(Verdict, String)> {
        let sysfs = tempfile::tempdir().unwrap();
        let rails = rails();
        let port = |rail| Port {
            rail,
            netdev: &rail.named,
            driver: "mlx5_core".to_owned(),
            sysfs: sysfs.path().join(&rail.named),
            dcb: Ok(Dcb {
                pfc: Some(8),
                priorities: BTreeMap::from([(24, 3)]),
                trusts_dscp: true,
            }),
        };
        let mut ports: Vec<_> = rails.iter().map(port).collect();
        ports.iter().for_each(|port| write_ecn(&port.sysfs, 8, 8));
        change(&mut ports[2]);
        let mut found = Findings::default();
        check(&ports, &serde_json::from_value(roce).unwrap(), &mut found);
        let text = |check: Check| match check.remedy {
            Some(remedy) => format!("{} -> {remedy}", check.text),
            None => check.text,
        };
        let shown = found
            .0
            .into_iter()
            .map(|check| (check.verdict, text(check)));
        let path = sysfs.path().display().to_string();
        shown
            .map(|(verdict, text)| (verdict, text.replace(&path, "SYS")))
            .collect()
    }

    fn write_ecn(sysfs: &Path, np: u8, rp: u8) {
        for (point, mask) in [("roce_np", np), ("roce_rp", rp)] {
            let enable = sysfs.join("ecn").join(point).join("enable");
            fs::create_dir_all(&enable).unwrap();
            for priority in 0..8 {
                fs::write(
                    enable.join(priority.to_string()),
                    format!("{}\n", mask >> priority & 1),
                )
                .unwrap();
            }
        }
    }

    fn is_ofed(port: &mut Port<'_>, trust: &str) {
        fs::create_dir_all(port.sysfs.join("qos")).unwrap();
        fs::write(port.sysfs.join("qos/trust"), format!("{trust}\n")).unwrap();
    }

    /// The only finding, with this verdict and these parts. Its wording is that of the case.
    #[track_caller]
    fn is_one(found: &[(Verdict, String)], verdict: Verdict, case: &str, parts: &[&str]) {
        let [(judged, text)] = found else {
            panic!("{found:?}")
        };
        assert!(
            *judged == verdict && parts.iter().all(|part| text.contains(part)),
            "{found:?}: {parts:?}"
        );
        golden::says("doctor", case, text);
    }

    use Verdict::{Fail, Ok as Good, Skip, Warn};

    #[test]
    fn a_port_that_differs_from_the_others_is_named() {
        is_one(
            &judged(trust, json!({}), |_| ()),
            Good,
            "roce-trust: alike",
            &["3 ports", "trust dscp"],
        );
        let off = |port: &mut Port<'_>| {
            port.dcb = Ok(Dcb {
                pfc: Some(0),
                ..Dcb::default()
            })
        };
        let parts = [
            "rail 2: pf2: trust pcp",
            "`dcb app add dev pf2 dscp-prio 24:3`",
        ];
        is_one(
            &judged(trust, json!({}), off),
            Warn,
            "roce-trust: one differs",
            &parts,
        );
        let parts = [
            "rail 2: pf2: ",
            "`dcb pfc set dev pf2 prio-pfc all:off 3:on`",
        ];
        is_one(
            &judged(pfc, json!({}), off),
            Warn,
            "roce-pfc: one differs",
            &parts,
        );
        let found = judged(ecn, json!({}), |port| write_ecn(&port.sysfs, 8, 0));
        let parts = ["rail 2: pf2: ", "`echo 1 > SYS/pf2/ecn/roce_rp/enable/3`"];
        is_one(&found, Warn, "roce-ecn: one differs", &parts);
    }

    #[test]
    fn a_port_that_differs_from_node_json_fails() {
        let wanted = json!({"trust": "dscp", "pfc": [3], "ecn": true});
        for check in [trust, pfc, ecn] {
            let found = judged(check, wanted.clone(), |_| ());
            let name = found[0].1.split(' ').nth(2).unwrap().to_lowercase();
            is_one(
                &found,
                Good,
                &format!("roce-{name}: as wanted"),
                &["node.json"],
            );
        }
        // All alike, and all wrong.
        let found = judged(pfc, json!({"pfc": [3, 4]}), |port| is_ofed(port, "dscp"));
        assert!(
            found.len() == 3 && found.iter().all(|(verdict, _)| *verdict == Fail),
            "{found:?}"
        );
        let parts = ["rail 2: pf2: ", "`mlnx_qos -i pf2 --pfc 0,0,0,1,1,0,0,0`"];
        is_one(&found[2..], Fail, "roce-pfc: not as wanted", &parts);
        let found = judged(trust, json!({"tos": 96}), |port| is_ofed(port, "pcp"));
        let parts = ["rail 2: pf2: trust pcp", "`mlnx_qos -i pf2 --trust dscp`"];
        is_one(&found, Fail, "roce-trust: not as wanted", &parts);
        let found = judged(trust, json!({"trust": "pcp"}), |port| {
            port.driver = "ice".to_owned()
        });
        assert!(found[2].1.contains("`dcb app flush dev pf2 dscp-prio`"));
        let ice = judged(trust, json!({"tos": 104, "pfc": [3]}), |port| {
            (port.driver, port.dcb) = ("ice".to_owned(), Ok(Dcb::default()));
        });
        for command in [
            "`ethtool --set-priv-flags pf2 fw-lldp-agent off`",
            "`dcb app add dev pf2 dscp-prio 26:3`",
        ] {
            assert!(ice[0].1.contains(command), "{ice:?}");
        }
        // ECN of other priorities does not matter.
        let found = judged(ecn, json!({"pfc": [3], "ecn": true}), |port| {
            write_ecn(&port.sysfs, 0xff, 0xff)
        });
        assert_eq!(found[0].0, Good);
        let found = judged(ecn, json!({"ecn": false}), |port| {
            write_ecn(&port.sysfs, 0, 0)
        });
        golden::says("doctor", "roce-ecn: off", &found[0].1);
        assert!(found.len() == 2 && found[0].0 == Fail, "{found:?}");
    }

    #[test]
    fn what_cannot_be_read_is_never_ok() {
        let reason = "the reason";
        let unknown = |port: &mut Port<'_>| port.dcb = Err(reason.to_owned());
        for check in [trust, pfc, tos] {
            for roce in [json!({"tos": 96}), json!({"tos": 96, "pfc": [3]})] {
                let found = judged(check, roce, unknown);
                assert!(
                    found.iter().all(|(verdict, _)| *verdict != Good),
                    "{found:?}"
                );
                assert_eq!(found[0], (Skip, format!("rail 2: {reason}")));
            }
        }
        let found = judged(pfc, json!({}), |port| port.dcb = Ok(Dcb::default()));
        is_one(
            &found,
            Skip,
            "roce-pfc: unknown",
            &["rail 2: ", "mlx5_core"],
        );
        let found = judged(ecn, json!({"ecn": true}), |port| {
            fs::remove_dir_all(&port.sysfs).unwrap()
        });
        assert!(
            found.iter().all(|(verdict, _)| *verdict != Good),
            "{found:?}"
        );
        assert!(
            found[0].0 == Skip && found[0].1.contains("SYS/pf2/ecn/roce_np/enable/0: "),
            "{found:?}"
        );
    }

    #[test]
    fn a_tos_needs_a_port_that_gives_it_a_lossless_priority() {
        let roce = json!({"tos": 96});
        let found = judged(tos, roce.clone(), |_| ());
        is_one(
            &found,
            Good,
            "roce-tos: lossless",
            &["3 ports", "ToS 96 (DSCP 24)"],
        );
        let with = |priorities: &[(u8, u8)], pfc: u8| {
            let priorities = priorities.iter().copied().collect();
            move |port: &mut Port<'_>| {
                let priorities = BTreeMap::clone(&priorities);
                port.dcb = Ok(Dcb {
                    pfc: Some(pfc),
                    priorities,
                    trusts_dscp: true,
                });
            }
        };
        let found = judged(tos, roce.clone(), with(&[(24, 4)], 8));
        let parts = [
            "rail 2: pf2: ",
            "priority 4",
            "`dcb app replace dev pf2 dscp-prio 24:3`",
        ];
        is_one(&found, Fail, "roce-tos: a priority without PFC", &parts);
        assert_eq!(judged(tos, roce.clone(), with(&[(24, 4)], 16))[0].0, Good);
        assert_eq!(judged(tos, roce.clone(), with(&[(24, 3)], 0))[0].0, Fail);
        let found = judged(tos, roce.clone(), with(&[(26, 3)], 8));
        is_one(&found, Skip, "roce-tos: unknown", &["rail 2: ", "DSCP 24"]);
        let found = judged(tos, roce, |port| is_ofed(port, "pcp"));
        is_one(
            &found,
            Skip,
            "roce-tos: trust pcp",
            &["rail 2: ", "trust pcp"],
        );
    }

    fn modes_of(functions: [Modes; 3], roce: Option<Roce>) -> Vec<(Verdict, String)> {
        let rails = rails();
        let seen: Vec<_> = rails
            .iter()
            .zip(functions)
            .map(|(rail, modes)| (rail, vec![("0000:01:00.0", modes)]))
            .collect();
        let mut found = Findings::default();
        judge_modes(roce.is_some(), &seen, &mut found);
        found
            .0
            .into_iter()
            .map(|check| {
                (
                    check.verdict,
                    check.text + " -> " + &check.remedy.unwrap_or_default(),
                )
            })
            .collect()
    }

    #[test]
    fn a_function_without_roce_and_a_switch_of_another_mode_are_found() {
        let mode = |roce, is_switchdev| Modes { roce, is_switchdev };
        let on = mode(Some((true, "driverinit")), Some(false));
        let all = |last: Modes| [on.clone(), on.clone(), last];
        let good = modes_of(all(on.clone()), None);
        is_one(&good, Good, "roce-mode: on", &["3 functions"]);
        let off = mode(Some((false, "driverinit")), Some(false));
        let parts = [
            "rail 2: 0000:01:00.0 ",
            "`devlink dev param set pci/0000:01:00.0 name enable_roce value true cmode driverinit`",
            "`devlink dev reload pci/0000:01:00.0`",
        ];
        for (wanted, verdict) in [(None, Warn), (Some(Roce::default()), Fail)] {
            is_one(
                &modes_of(all(off.clone()), wanted),
                verdict,
                "roce-mode: off",
                &parts,
            );
        }
        let other = modes_of(all(mode(None, Some(true))), None);
        assert_eq!(other[1].0, Warn);
        assert!(other[1].1.starts_with("rail 2: 0000:01:00.0: "));
        let unknown = modes_of(
            [Modes::default(), Modes::default(), Modes::default()],
            Some(Roce::default()),
        );
        assert!(unknown.len() == 1 && unknown[0].0 == Skip, "{unknown:?}");
    }
}
