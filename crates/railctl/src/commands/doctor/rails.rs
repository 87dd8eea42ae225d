//! Checks of the rails' hardware: PFs and VFs, and what the host uses them for.

use std::fs;
use std::path::Path;

use super::networks::Network;
use super::order;
use super::{Check, Findings, Verdict, count};
use crate::commands::inventory::{Attached, Inventory, Rail, link_state};
use crate::commands::{left as what_is_left, rebuild};
use rail_cni::attach::attachments::{State, has_dynamic_host_addresses};
use rail_cni::device::allowed::{refuse_addresses, refuse_what_the_host_needs};
use rail_cni::device::userspace;
use rail_cni::node::Node;
use rail_cni::pool::is_same_rail;
use rail_cni::pool::{Allocation, rail_in, store};
use rail_cni::sysfs::Function;
use rail_netlink::Socket;
use rail_netlink::link::Link;

/// The MTU that the remedy sets on a PF, in bytes: enough for every network.
const LARGE: u32 = 9216;

/// The devices of a rail that an ADD can get: its VFs, or the PF itself where pods get the PFs.
struct Stock<'a> {
    rail: &'a Rail,
    /// Number of devices that an ADD would accept now.
    usable: usize,
    /// Number of devices that pods have.
    held: usize,
    /// Why an ADD would refuse the others.
    faults: Vec<Fault>,
}

/// Why an ADD would refuse a device.
pub struct Fault {
    /// The name of the check that reports it.
    name: &'static str,
    /// The problem.
    pub text: String,
    remedy: String,
}

impl Stock<'_> {
    /// While another device is free, most pods start, so the check is only a warning.
    fn check(&self, fault: &Fault) -> Check {
        let Fault { name, text, remedy } = fault;
        let verdict = if self.usable == 0 {
            Verdict::Fail
        } else {
            Verdict::Warn
        };
        Check {
            remedy: Some(remedy.clone()),
            ..Check::new(verdict, name, text)
        }
        .on(self.rail)
    }
}

/// Makes all checks of this file. `mtu` in bytes is for rails without a known network.
pub fn check(
    node: &Node,
    inventory: &Inventory,
    networks: &[Network],
    mtu: u32,
    found: &mut Findings,
) {
    if inventory.rails.is_empty() {
        found.add(Check::skip(
            "pf",
            "node.json lists no rails, and no NIC of this node has SR-IOV",
        ));
    }
    let rails: Vec<_> = inventory.rails.iter().collect();
    let all = count(rails.len(), "PF");
    let mut stocks = Vec::new();
    if !rails.is_empty() {
        order(node, found);
        rails
            .iter()
            .for_each(|rail| pf(node, rail, inventory, found));
        found.ok_unless_reported("pf", format!("{all}, each with a driver"));
        rails
            .iter()
            .for_each(|rail| pf_link(node, rail, inventory, networks, found));
        found.ok_unless_reported(
            "pf-link",
            match inventory.is_pf_mode(node) {
                true => format!(
                    "{all}, which pods get and bring up: every one that is up has a carrier"
                ),
                false => format!("{all}, up and with a carrier"),
            },
        );
        mtus(node, inventory, networks, mtu, found);
        match Socket::open() {
            Ok(mut host) => {
                stocks.extend(
                    rails
                        .iter()
                        .map(|rail| stock(node, rail, inventory, &mut host)),
                );
                vfs(node, inventory, &stocks, found);
                host_use(&stocks, found);
                if node.policy.host_addresses {
                    host_addresses(&rails, &mut host, found);
                }
            }
            Err(error) => found.add(Check::skip("vfs", format!("{error:#}"))),
        }
        managers(&rails, found);
    }
    lost(&rails, inventory, found);
    leftovers(&rails, inventory, found);
    records(inventory, &stocks, found);
    tapped(inventory, found);
    pending(inventory, &stocks, found);
}

/// Compares the rails of node.json with what else is known about their order.
fn order(node: &Node, found: &mut Findings) {
    let name = "rail-order";
    if node.rails.is_empty() {
        return found.add(Check::skip(name, "node.json lists no rails"));
    }
    let slips = order::slips(node);
    for slip in &slips {
        let remedy = format!(
            "in {}, set `{}`; or correct the resource or the addresses; or, if the hardware has another order, \
             set \"railsInPciOrder\": false",
            rail_cni::node::path().display(),
            order::corrected(node, &slips)
        );
        let text =
            format!("{slip}: its pods would be refused, or connected to another rail's leaf");
        found.add(Check {
            rail: Some(slip.rail),
            ..Check::fail(name, text, remedy)
        });
    }
    let how = if node.rails_in_pci_order {
        ""
    } else {
        "; the order of the PCI addresses is not checked"
    };
    found.ok_unless_reported(
        name,
        format!("node.json, resources and addresses agree on the order{how}"),
    );
}

/// The devices of a rail that pods get: its VFs, or the PF where pods get PFs.
pub fn devices<'a>(
    rail: &'a Rail,
    inventory: &Inventory,
    node: &Node,
) -> impl Iterator<Item = (&'static str, &'a Function, Option<&'a Link>)> {
    let vfs = rail
        .vfs
        .iter()
        .map(|vf| ("VF", &vf.function, vf.link.as_ref()));
    let is_pf = rail.vfs.is_empty() && inventory.is_pf_mode(node);
    let pf = rail
        .function
        .iter()
        .filter(move |_| is_pf)
        .map(|pf| ("PF", pf, rail.link.as_ref()));
    vfs.chain(pf)
}

/// Finds out which devices of the rail an ADD would accept.
fn stock<'a>(node: &Node, rail: &'a Rail, inventory: &Inventory, host: &mut Socket) -> Stock<'a> {
    let mut stock = Stock {
        rail,
        usable: 0,
        held: 0,
        faults: Vec::new(),
    };
    let mut unbound = Vec::new();
    for (kind, function, link) in devices(rail, inventory, node) {
        match offer(kind, function, link, node, inventory, host) {
            Offer::Usable => stock.usable += 1,
            Offer::Held => stock.held += 1,
            Offer::Unbound => unbound.push(function.id.clone()),
            Offer::Refused(Some(fault)) => stock.faults.push(fault),
            Offer::Refused(None) => (),
        }
    }
    // A PF without a driver is reported under `pf`.
    if let (false, Some(first)) = (rail.vfs.is_empty(), unbound.first()) {
        let all = count(rail.vfs.len(), "VF");
        let text = format!(
            "no driver is bound to {} of {all}, such as {first}",
            unbound.len()
        );
        stock.faults.push(Fault {
            name: "vfs",
            text,
            remedy: bind(node, &unbound),
        });
    }
    stock
}

/// The verdict of an ADD on a device.
pub enum Offer {
    /// Take it.
    Usable,
    /// Refuse it, because a pod has it.
    Held,
    /// Refuse it: no driver is bound to it.
    Unbound,
    /// Refuse it; without a reason where another check reports it.
    Refused(Option<Fault>),
}

/// Judges a device, as an ADD would now.
pub fn offer(
    kind: &str,
    function: &Function,
    link: Option<&Link>,
    node: &Node,
    inventory: &Inventory,
    host: &mut Socket,
) -> Offer {
    let id = &function.id;
    let refused = |name, text, remedy: String| Offer::Refused(Some(Fault { name, text, remedy }));
    match inventory.holder(function) {
        Some(holder) if holder.is_missing() => {
            let owner = &holder.record.owner;
            let whose = owner.describe();
            let text =
                format!("{id} has not returned from {whose}, whose network namespace is gone");
            return refused("records", text, holder.how_to_end());
        }
        // The next ADD restores the device.
        Some(holder) if holder.is_left_over() => return Offer::Usable,
        Some(_) => return Offer::Held,
        // The check `lost` reports what no claim holds.
        None if inventory.is_held(function) || inventory.lost(function).is_some() => {
            return Offer::Held;
        }
        None => (),
    }
    let Some(driver) = function.driver() else {
        return Offer::Unbound;
    };
    let name = link.map_or_else(String::new, |link| format!(" ({})", link.name));
    let what = format!("{kind} {id}{name}");
    if node
        .policy
        .drivers
        .as_ref()
        .is_some_and(|allowed| !allowed.contains(&driver))
    {
        let text =
            format!("{what} has the driver {driver}, which policy.drivers of node.json excludes");
        return refused(
            "vfs",
            text,
            "add it to policy.drivers, or bind another driver".to_owned(),
        );
    }
    let of_host = match link {
        None if function.is_userspace() => userspace::refuse_held(&what, function),
        // The device has just been removed.
        None => return Offer::Refused(None),
        Some(link) => {
            let addresses = |host: &mut Socket| {
                refuse_addresses(&what, link, host).or_else(|error| {
                    match node.policy.host_addresses {
                        true => has_dynamic_host_addresses(&what, link, host).map(drop),
                        false => Err(error),
                    }
                })
            };
            refuse_what_the_host_needs(&what, link, node, host).and_then(|()| addresses(host))
        }
    };
    if let Err(error) = of_host {
        let remedy = "remove it from the host's configuration, or from the rail's resource";
        return refused("host-use", format!("{error:#}"), remedy.to_owned());
    }
    for record in inventory
        .pending
        .iter()
        .filter(|record| record.owner.device.is_of(id))
    {
        if let Err(error) = record.refuse_unless_apart(node, host) {
            let text = format!("ADDs of {id} are refused: {error:#}");
            return refused(
                "pending",
                text,
                "correct that, then run `railctl reap`".to_owned(),
            );
        }
    }
    Offer::Usable
}

/// The command that makes the kernel look for a driver.
fn bind(node: &Node, functions: &[String]) -> String {
    let file = node.sysfs_root.join("bus/pci/drivers_probe");
    match functions {
        [one] => format!("run `echo {one} > {}`", file.display()),
        all => format!(
            "run `for vf in {}; do echo $vf > {}; done`",
            all.join(" "),
            file.display()
        ),
    }
}

/// Devices that pods have without a record: the next pod with such a device is refused, and no DEL
/// returns it.
fn lost(rails: &[&Rail], inventory: &Inventory, found: &mut Findings) {
    let name = "lost";
    if inventory.is_emptied {
        let text =
            "the run directory was emptied since the boot: what running pods have is not on record";
        found.add(Check::fail(
            name,
            text,
            "run `railctl reap --rebuild`; until then, no pod gets an address",
        ));
    }
    for lost in &inventory.lost {
        let has = |rail: &&&Rail| {
            let functions = rail
                .function
                .iter()
                .chain(rail.vfs.iter().map(|vf| &vf.function));
            functions.into_iter().any(|function| function.id == lost.id)
        };
        let check = Check::fail(name, lost.describe(), rebuild::REMEDY);
        found.add(match rails.iter().find(has) {
            Some(rail) => check.on(rail),
            None => check,
        });
    }
    found.ok_unless_reported(
        name,
        "every device in a pod is on record, or a resource claim holds it".to_owned(),
    );
}

fn pf(node: &Node, rail: &Rail, inventory: &Inventory, found: &mut Findings) {
    let (name, id) = ("pf", rail.pf());
    if rail.is_missing() {
        let text = format!("the node has no PF {id}");
        return found.add(
            Check::fail(
                name,
                text,
                "correct node.json (`lspci -D` lists the devices), or repair the NIC",
            )
            .on(rail),
        );
    }
    let Some(pf) = &rail.function else { return };
    let netdev = rail.link.as_ref().map(|link| link.name.as_str());
    let is = |text: &String| text.eq_ignore_ascii_case(id) || netdev == Some(text);
    if node
        .policy
        .pfs
        .as_ref()
        .is_some_and(|allowed| !allowed.iter().any(is))
    {
        let text = format!("policy.pfs of node.json excludes {id}");
        found.add(Check::fail(name, text, "add it, or remove the rail from the list").on(rail));
    }
    match pf.driver() {
        None => {
            let remedy = bind(node, std::slice::from_ref(&pf.id));
            found.add(Check::fail(name, format!("{id} has no driver"), remedy).on(rail));
        }
        Some(driver) if pf.is_userspace() => {
            let text = format!("{id} has no netdev, because its driver is {driver}");
            found.add(
                Check::warn(
                    name,
                    text,
                    "bind the NIC's own driver, unless pods get the PF itself",
                )
                .on(rail),
            );
        }
        Some(_) if rail.link.is_none() && !inventory.is_held(pf) => {
            let text = format!("{id} has no netdev on the host");
            found.add(
                Check::fail(
                    name,
                    text,
                    "if it is in another network namespace, move it back (`ip netns`)",
                )
                .on(rail),
            );
        }
        Some(_) => (),
    }
}

fn pf_link(
    node: &Node,
    rail: &Rail,
    inventory: &Inventory,
    networks: &[Network],
    found: &mut Findings,
) {
    let name = "pf-link";
    let holder = rail.function.as_ref().and_then(|pf| inventory.holder(pf));
    match (&rail.link, holder) {
        // The check `records` reports what a dead pod left of the PF.
        (Some(_), Some(holder)) if holder.state.is_left_over() => (),
        (Some(link), _) => match link_state(link) {
            // A DEL leaves the PF as it was, and the next ADD brings it up.
            "down" if inventory.is_pf_mode(node) => (),
            "down" => {
                let remedy = format!("run `ip link set {} up`", link.name);
                let text = format!("{} is down: its VFs have no carrier", link.name);
                found.add(Check::fail(name, text, remedy).on(rail));
            }
            "no-carrier" => {
                let ports = ports(node, rail);
                let remedy = format!("check the cable, the transceiver and the leaf port{ports}");
                let (up, all) = rail.rail.map_or((0, 0), |number| inventory.planes(number));
                // Pods start all the same.
                let is_enough = |network: &Network| {
                    let is_its = network
                        .rail
                        .zip(rail.rail)
                        .is_some_and(|(one, other)| is_same_rail(one, other));
                    is_its && network.min_planes.is_some_and(|min| up >= usize::from(min))
                };
                found.add(match networks.iter().any(is_enough) {
                    true => {
                        let text = format!(
                            "{} has no carrier; {up} of the rail's {all} planes have one",
                            link.name
                        );
                        Check::warn(name, text, remedy).on(rail)
                    }
                    false => {
                        Check::fail(name, format!("{} has no carrier", link.name), remedy).on(rail)
                    }
                });
            }
            _ => (),
        },
        (None, Some(holder)) => {
            let text = format!(
                "{} itself is in a pod: {}",
                rail.pf(),
                holder.record.owner.describe()
            );
            found.add(Check::skip(name, text).on(rail));
        }
        (None, None) => found
            .add(Check::skip(name, format!("{} has no netdev on the host", rail.pf())).on(rail)),
    }
}

/// The leaf port of the rail, for the remedy, if the plan has it.
fn ports(node: &Node, rail: &Rail) -> String {
    let is_its = |(pool, one): &(String, Allocation)| {
        rail.rail.is_some()
            && one.rail.or_else(|| rail_in(pool)) == rail.rail
            && !one.leaf_ports.is_empty()
    };
    let all = store::allocations(node)
        .into_iter()
        .filter(is_its)
        .flat_map(|(_, one)| one.leaf_ports);
    let mut all: Vec<_> = all.map(|port| port.to_string()).collect();
    all.dedup();
    if all.is_empty() {
        String::new()
    } else {
        format!(" ({})", all.join(", "))
    }
}

/// Checks the MTU of PFs with VFs. A PF that is attached itself gets the MTU of its network.
fn mtus(
    node: &Node,
    inventory: &Inventory,
    networks: &[Network],
    assumed: u32,
    found: &mut Findings,
) {
    let name = "pf-mtu";
    if inventory.is_pf_mode(node) {
        return found.add(Check::ok(
            name,
            "pods get the PFs themselves, with the MTU of their networks",
        ));
    }
    for rail in &inventory.rails {
        let Some(link) = &rail.link else { continue };
        let on_it = inventory
            .attachments
            .iter()
            .filter(|one| rail.has(one) && one.is_live());
        let used = on_it
            .filter_map(|one| one.link())
            .map(|link| link.mtu)
            .max()
            .unwrap_or(0);
        let wanting = networks
            .iter()
            .filter(|network| network.may_be_of(rail.rail));
        let wanting = wanting
            .filter_map(|network| Some((network.mtu?, Some(&network.name))))
            .max();
        let (wanted, who) = wanting.unwrap_or((assumed, None));
        let remedy = match link.max_mtu {
            most @ 1.. if most < wanted.max(used) => {
                format!("set a smaller \"mtu\" in the network: the driver accepts at most {most}")
            }
            most => {
                let large = LARGE.max(wanted).max(used);
                let large = if most == 0 { large } else { large.min(most) };
                format!(
                    "run `ip link set {} mtu {large}`, and make it permanent",
                    link.name
                )
            }
        };
        let text = if link.mtu < used {
            format!(
                "{} has MTU {}, but a pod on it has {used}: its large packets are lost",
                link.name, link.mtu
            )
        } else if link.mtu >= wanted {
            continue;
        } else if let Some(who) = who {
            format!(
                "{} has MTU {}, but the network {who} has {wanted}: its ADDs are refused",
                link.name, link.mtu
            )
        } else {
            format!(
                "{} has MTU {}: ADDs with \"mtu\": {wanted} are refused (no network of the rail is known here; to check \
                 another MTU, run `railctl doctor --mtu`)",
                link.name, link.mtu
            )
        };
        found.add(Check::fail(name, text, remedy).on(rail));
    }
    found.ok_unless_reported(name, "no network has a larger MTU than its PF");
}

fn vfs(node: &Node, inventory: &Inventory, stocks: &[Stock<'_>], found: &mut Findings) {
    let name = "vfs";
    if inventory.is_pf_mode(node) {
        stocks
            .iter()
            .for_each(|stock| add_faults(name, stock, found));
        let text = "no rail has VFs, so pods get the PFs themselves (if they should get VFs, set policy.vfsOnly in node.json)";
        return found.ok_unless_reported(name, text);
    }
    let mut all_dead = Vec::new();
    for stock in stocks {
        let rail = stock.rail;
        let Some(pf) = rail.function.as_ref().filter(|pf| !inventory.is_held(pf)) else {
            continue;
        };
        if rail.vfs.is_empty() {
            let (id, most) = (&pf.id, pf.max_vf_count());
            let (text, remedy) = if most == 0 {
                let remedy = format!(
                    "enable SR-IOV in BIOS and firmware: `mlxconfig -d {id} set SRIOV_EN=1 NUM_OF_VFS=8`, then reboot"
                );
                (format!("{id} has no SR-IOV"), remedy)
            } else {
                let file = node
                    .sysfs_root
                    .join("bus/pci/devices")
                    .join(id)
                    .join("sriov_numvfs");
                let text = format!("{id} has no VFs; it supports {most}");
                // Of a /31 one pod has the address, and the scheduler counts VFs.
                let remedy = match node.has_vfs_to_make() {
                    true => "run `railctl vfs`, now and at every boot".to_owned(),
                    false => format!(
                        "run `echo 1 > {}`, now and at every boot; more only with addresses for them",
                        file.display()
                    ),
                };
                (text, remedy)
            };
            found.add(Check::fail(name, text, remedy).on(rail));
            continue;
        }
        add_faults(name, stock, found);
        let holders: Vec<_> = rail
            .vfs
            .iter()
            .filter_map(|vf| inventory.holder(&vf.function))
            .collect();
        let is_left = |holder: &&Attached| holder.is_left_over();
        if holders.len() == rail.vfs.len() && holders.iter().all(is_left) {
            all_dead.push(rail.title());
        }
    }
    if !all_dead.is_empty() {
        let text = format!(
            "{}: every VF is stale, because its pod is gone",
            all_dead.join(", ")
        );
        found.add(Check::warn(
            name,
            text,
            "the next ADD restores it; to do so now, run `railctl reap`",
        ));
    }
    let all: usize = stocks.iter().map(|stock| stock.rail.vfs.len()).sum();
    let free: usize = stocks
        .iter()
        .map(|stock| stock.rail.vfs.len() - stock.held)
        .sum();
    found.ok_unless_reported(name, format!("{}, {free} free", count(all, "VF")));
}

fn add_faults(name: &'static str, stock: &Stock<'_>, found: &mut Findings) {
    stock
        .faults
        .iter()
        .filter(|fault| fault.name == name)
        .for_each(|fault| found.add(stock.check(fault)));
}

/// Reports the devices that an ADD would refuse because the host uses them: free VFs, or PFs where
/// there are no VFs.
fn host_use(stocks: &[Stock<'_>], found: &mut Findings) {
    let name = "host-use";
    stocks
        .iter()
        .for_each(|stock| add_faults(name, stock, found));
    found.ok_unless_reported(name, "the host uses no device that a pod could get");
}

/// Warns of devices whose addresses go into pods, and that a program of the host configures.
fn host_addresses(rails: &[&Rail], host: &mut Socket, found: &mut Findings) {
    let name = "host-addresses";
    for rail in rails {
        for link in rail
            .link
            .iter()
            .chain(rail.vfs.iter().filter_map(|vf| vf.link.as_ref()))
        {
            // A device that cannot go into a pod is reported under `host-use`.
            let Ok(is_dynamic) = has_dynamic_host_addresses(&link.name, link, host) else {
                continue;
            };
            if is_dynamic {
                let text = format!(
                    "{} has an address with a lifetime, which ends in a pod as well",
                    link.name
                );
                found.add(Check::warn(name, text, "give it a static address on the host").on(rail));
            }
            for (manager, directory, is_managed) in MANAGERS {
                let state = fs::read_to_string(Path::new(directory).join(link.index.to_string()));
                if state.is_ok_and(|state| is_managed(&state)) {
                    let text = format!(
                        "{manager} manages {}, and configures it when it returns from a pod",
                        link.name
                    );
                    let remedy = "compare that with what rail-cni restores: docs/host-addresses.md";
                    found.add(Check::warn(name, text, remedy).on(rail));
                }
            }
        }
    }
    found.ok_unless_reported(
        name,
        "no program of the host and no lifetime changes addresses that go into pods",
    );
}

/// A manager that configures VFs as well may give them addresses or take them down. Both managers
/// record in files below /run what they do with each netdev.
fn managers(rails: &[&Rail], found: &mut Findings) {
    let name = "managers";
    let running: Vec<_> = MANAGERS
        .iter()
        .filter(|(_, directory, _)| Path::new(directory).exists())
        .collect();
    for (manager, directory, is_managed) in &running {
        let vfs = rails
            .iter()
            .flat_map(|rail| rail.vfs.iter().map(move |vf| (rail, vf)));
        for (rail, link) in vfs.filter_map(|(rail, vf)| Some((rail, vf.link.as_ref()?))) {
            let text = fs::read_to_string(Path::new(directory).join(link.index.to_string()));
            if text.is_ok_and(|text| is_managed(&text)) {
                let text = format!("{manager} manages the VF {}", link.name);
                found.add(Check::warn(name, text, "configure VFs as unmanaged there").on(rail));
            }
        }
    }
    let names: Vec<_> = running.iter().map(|(manager, ..)| *manager).collect();
    found.ok_unless_reported(
        name,
        match names[..] {
            [] => "neither systemd-networkd nor NetworkManager runs".to_owned(),
            _ => format!("{} manage none of the VFs", names.join(" and ")),
        },
    );
}

/// A program that configures netdevs, the directory of what it says of each by its index, and
/// whether that says that it manages the netdev.
type Manager = (&'static str, &'static str, fn(&str) -> bool);

const MANAGERS: [Manager; 2] = [
    ("systemd-networkd", "/run/systemd/netif/links", is_networkds),
    (
        "NetworkManager",
        "/run/NetworkManager/devices",
        is_network_managers,
    ),
];

fn is_networkds(state: &str) -> bool {
    let state = state
        .lines()
        .find_map(|line| line.strip_prefix("ADMIN_STATE="));
    matches!(state, Some("configuring" | "configured" | "failed"))
}

fn is_network_managers(state: &str) -> bool {
    state.lines().any(|line| line == "managed=true")
}

/// Whether `name` is one that the kernel gives to a NIC whose namespace is gone.
fn is_handed_back(name: &str) -> bool {
    let digits = name
        .strip_prefix("net")
        .or_else(|| name.strip_prefix("dev"));
    digits.is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Reports devices that returned under the name of a pod's interface, and that no record explains.
fn leftovers(rails: &[&Rail], inventory: &Inventory, found: &mut Findings) {
    let name = "leftovers";
    let devices: Vec<(&Rail, &Link, &str)> = rails
        .iter()
        .flat_map(|rail| {
            let vfs = rail.vfs.iter().map(|vf| (&vf.function, &vf.link));
            let all = rail.function.iter().map(|pf| (pf, &rail.link)).chain(vfs);
            all.filter_map(|(function, link)| Some((*rail, link.as_ref()?, function.id.as_str())))
        })
        .collect();
    for (rail, link, id) in devices {
        let on_record = inventory.attachments.iter().map(|one| &one.record);
        let recorded = on_record
            .chain(&inventory.pending)
            .any(|record| record.owner.device.is_of(id));
        if is_handed_back(&link.name) && !recorded {
            let text = format!(
                "{id} has the name {} on the host, as if a dead pod had had it; no record has its former name",
                link.name
            );
            let remedy = format!(
                "run `ip link set {0} down`, then `ip link set {0} name NAME`",
                link.name
            );
            found.add(Check::warn(name, text, remedy).on(rail));
        }
    }
    found.ok_unless_reported(
        name,
        "no device of a rail has the name of a pod's interface",
    );
}

/// Reports the rails of running pods whose frames another namespace takes.
fn tapped(inventory: &Inventory, found: &mut Findings) {
    let name = "tapped";
    for attached in &inventory.attachments {
        if let Some(tapped) = &attached.tapped {
            let owner = &attached.record.owner;
            let what = format!("{} of {}", owner.device.id, owner.describe());
            let text = format!("{what}: {}", tapped.describe());
            found.add(Check {
                rail: owner.rail,
                ..Check::warn(name, text, tapped.remedy())
            });
        }
    }
    found.ok_unless_reported(name, "no rail of a pod is tapped by another namespace");
}

/// Reports the unfinished cleanup of pods that are gone. It affects no other pod, unless the next
/// one would not be apart from the last.
fn pending(inventory: &Inventory, stocks: &[Stock<'_>], found: &mut Findings) {
    let name = "pending";
    stocks
        .iter()
        .for_each(|stock| add_faults(name, stock, found));
    for record in inventory
        .pending
        .iter()
        .filter(|record| record.is_left_in_vain())
    {
        let id = &record.owner.container_id;
        for line in what_is_left::lines(record) {
            let remedy = format!(
                "correct that, then run `railctl reap`; or give up: `railctl reap --forget {id}`"
            );
            found.add(Check::warn(name, format!("pending for {line}"), remedy));
        }
    }
    found.ok_unless_reported(name, "nothing is pending for pods that are gone");
}

/// The records of attachments: those of dead pods, those whose device is not in the living pod, and
/// those that cannot be read.
fn records(inventory: &Inventory, stocks: &[Stock<'_>], found: &mut Findings) {
    let name = "records";
    for stock in stocks {
        add_faults(name, stock, found);
    }
    if let Some(text) = left_over(inventory) {
        found.add(Check::warn(
            name,
            text,
            "the next ADD restores it; to do so now, run `railctl reap`",
        ));
    }
    for attached in &inventory.attachments {
        let owner = &attached.record.owner;
        let what = format!("{} of {}", owner.device.id, owner.describe());
        match attached.state {
            State::Lost => found.add(Check::warn(
                name,
                format!(
                    "{what}, which is alive, is on the host: its driver started anew, or the pod gave it away"
                ),
                attached.remedy_of_loss(),
            )),
            State::Elsewhere => found.add(Check::warn(
                name,
                format!("{what} is {}", attached.elsewhere()),
                "restart the pod: it moved the device away, or the VFs were recreated",
            )),
            _ => {
                if let Some(error) = attached.error() {
                    found.add(Check::skip(name, format!("{what}: {error}")));
                }
            }
        }
    }
    for file in &inventory.unreadable {
        let remedy = format!("if no pod has its device, run `railctl reap --forget {file}`");
        found.add(Check::warn(
            name,
            format!("the record {file} cannot be read"),
            remedy,
        ));
    }
    let attachments = inventory.attachments.iter();
    let live = attachments.filter(|attached| attached.is_live()).count();
    found.ok_unless_reported(
        name,
        format!("{}, none of a pod that is gone", count(live, "attachment")),
    );
}

/// The attachments of pods that are gone, the first of them by name.
fn left_over(inventory: &Inventory) -> Option<String> {
    const NAMED: usize = 3;
    let mut left = Vec::new();
    for attached in &inventory.attachments {
        if attached.is_left_over() {
            let owner = &attached.record.owner;
            let who = owner.pod.as_ref().unwrap_or(&owner.container_id);
            let word = attached.word();
            left.push(format!("{} of {who} ({word})", owner.device.id));
        }
    }
    if left.is_empty() {
        return None;
    }
    let all = count(left.len(), "attachment");
    let more = match left.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    left.truncate(NAMED);
    Some(format!(
        "{all} of pods that are gone: {}{more}",
        left.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_that_came_back() {
        assert!(["net1", "net12", "dev7"].into_iter().all(is_handed_back));
        assert!(
            !["eth0", "net", "devlink0", "netdev1", "ens1f0v0"]
                .into_iter()
                .any(is_handed_back)
        );
    }
}
