//! The hardware of the rails: PFs, VFs, RDMA, and what the host does with them.

use std::fs;
use std::path::Path;

use super::{Check, Findings, count};
use crate::attach::device::refuse_what_the_host_needs;
use crate::attach::inventory::{Attached, Inventory, Rail, RdmaMode, State, Vf, link_state};
use crate::netlink::Socket;
use crate::netlink::link::Link;
use crate::node::Node;
use crate::sysfs::Function;

/// What rails are usually run with; a VF cannot have more than its PF.
const JUMBO: u32 = 9000;

/// All checks of this file.
pub fn check(node: &Node, inventory: &Inventory, found: &mut Findings) {
    if inventory.rails.is_empty() {
        found.add(Check::skip("pf", "node.json lists no rails, and no NIC of this node has SR-IOV"));
    }
    let rails: Vec<_> = inventory.rails.iter().collect();
    let all = count(rails.len(), "PF");
    if !rails.is_empty() {
        rails.iter().for_each(|rail| pf(node, rail, inventory, found));
        found.ok_unless_told("pf", format!("{all}, each with a driver"));
        rails.iter().for_each(|rail| pf_link(rail, inventory, found));
        found.ok_unless_told("pf-link", format!("{all}, up and with a carrier"));
        rails.iter().for_each(|rail| pf_mtu(rail, inventory, found));
        found.ok_unless_told("pf-mtu", format!("{JUMBO} or more"));
        vfs(node, &rails, inventory, found);
        host_use(node, &rails, inventory, found);
        rdma(&rails, inventory, found);
        managers(&rails, found);
    }
    lost(&rails, inventory, found);
    leftovers(&rails, inventory, found);
    records(inventory, found);
    debts(inventory, found);
}

/// What a pod has of which nothing is on record: its next pod is refused, and nobody will give it back.
fn lost(rails: &[&Rail], inventory: &Inventory, found: &mut Findings) {
    let name = "lost";
    if inventory.is_emptied {
        let text = "the run folder was emptied in this boot: pods that were there are on no record";
        found.add(Check::warn(
            name,
            text,
            "`rail-cni reap --rebuild`; their addresses are kept by themselves",
        ));
    }
    for lost in &inventory.lost {
        let has = |rail: &&&Rail| {
            let functions = rail.function.iter().chain(rail.vfs.iter().map(|vf| &vf.function));
            functions.into_iter().any(|function| function.id == lost.id)
        };
        let check = Check::fail(name, lost.told(), "`rail-cni reap --rebuild`, or end that pod");
        found.add(match rails.iter().find(has) {
            Some(rail) => check.on(rail),
            None => check,
        });
    }
    found.ok_unless_told(name, "no device is in a pod without a record".to_owned());
}

fn pf(node: &Node, rail: &Rail, inventory: &Inventory, found: &mut Findings) {
    let (name, id) = ("pf", rail.pf());
    if rail.is_missing() {
        let text = format!("there is no PF {id}");
        return found.add(Check::fail(name, text, "`lspci -D`; correct node.json, or mend the NIC").on(rail));
    }
    let Some(pf) = &rail.function else { return };
    let netdev = rail.link.as_ref().map(|link| link.name.as_str());
    let is = |text: &String| text.eq_ignore_ascii_case(id) || netdev == Some(text);
    if node.policy.pfs.as_ref().is_some_and(|allowed| !allowed.iter().any(is)) {
        let text = format!("policy.pfs of node.json excludes {id}");
        found.add(Check::fail(name, text, "add it, or take the rail from the list").on(rail));
    }
    match pf.driver() {
        None => {
            let remedy = format!("`echo {id} > /sys/bus/pci/drivers_probe`");
            found.add(Check::fail(name, format!("{id} has no driver"), remedy).on(rail));
        }
        Some(driver) if pf.is_userspace() => {
            let text = format!("{id} is bound to {driver}: it has no netdev");
            found.add(Check::warn(name, text, "bind its own driver, unless pods get the PF itself").on(rail));
        }
        Some(_) if rail.link.is_none() && inventory.holder(pf).is_none() => {
            let text = format!("{id} has no netdev on the host");
            found.add(Check::fail(name, text, "is it in another namespace? `ip netns`").on(rail));
        }
        Some(_) => (),
    }
}

fn pf_link(rail: &Rail, inventory: &Inventory, found: &mut Findings) {
    let name = "pf-link";
    let holder = rail.function.as_ref().and_then(|pf| inventory.holder(pf));
    match (&rail.link, holder) {
        (Some(link), _) => match link_state(link) {
            "down" => {
                let remedy = format!("`ip link set {} up`", link.name);
                found.add(Check::fail(name, format!("{} is down", link.name), remedy).on(rail));
            }
            "no-carrier" => {
                let text = format!("{} has no carrier", link.name);
                found.add(Check::fail(name, text, "look at cable, transceiver, leaf port").on(rail));
            }
            _ => (),
        },
        (None, Some(holder)) => {
            let text = format!("{} is in a pod itself: {}", rail.pf(), holder.record.holder());
            found.add(Check::skip(name, text).on(rail));
        }
        (None, None) => found.add(Check::skip(name, format!("{} has no netdev here", rail.pf())).on(rail)),
    }
}

fn pf_mtu(rail: &Rail, inventory: &Inventory, found: &mut Findings) {
    let name = "pf-mtu";
    let Some(link) = &rail.link else { return };
    let on_it = inventory.attachments.iter().filter(|one| rail.has(one) && one.state == State::Live);
    let used = on_it.filter_map(|one| one.link.as_ref()).map(|link| link.mtu).max().unwrap_or(0);
    let remedy = format!("`ip link set {} mtu 9216`, and make it permanent", link.name);
    if link.mtu < used {
        let text =
            format!("{} has MTU {}, and a pod has {used}: its large packets are lost", link.name, link.mtu);
        found.add(Check::fail(name, text, remedy).on(rail));
    } else if link.mtu < JUMBO {
        let text = format!("{} has MTU {}: networks with \"mtu\": {JUMBO} are refused", link.name, link.mtu);
        found.add(Check::warn(name, text, remedy).on(rail));
    }
}

fn vfs(node: &Node, rails: &[&Rail], inventory: &Inventory, found: &mut Findings) {
    let name = "vfs";
    let has_pods = |rail: &Rail| rail.function.as_ref().is_some_and(|pf| inventory.holder(pf).is_some());
    let must = node.policy.vfs_only || rails.iter().any(|rail| !rail.vfs.is_empty());
    let (mut free, mut all_dead) = (0, Vec::new());
    for rail in rails {
        let Some(pf) = rail.function.as_ref().filter(|_| !has_pods(rail)) else { continue };
        if rail.vfs.is_empty() {
            let (id, most) = (&pf.id, pf.max_vf_count());
            let (text, remedy) = if most == 0 {
                let text = format!("{id} has no SR-IOV");
                (
                    text,
                    "switch it on in BIOS and firmware: `mlxconfig -d PF set SRIOV_EN=1 NUM_OF_VFS=8`"
                        .to_owned(),
                )
            } else {
                let text = format!("{id} has no VFs, of {most} that it could have");
                (text, format!("`echo {} > /sys/bus/pci/devices/{id}/sriov_numvfs`", most.min(8)))
            };
            let check = if must { Check::fail(name, text, remedy) } else { Check::warn(name, text, remedy) };
            found.add(check.on(rail));
            continue;
        }
        let unbound: Vec<_> = rail.vfs.iter().filter(|vf| vf.function.driver().is_none()).collect();
        if let Some(Vf { function, .. }) = unbound.first() {
            let (few, all) = (unbound.len(), rail.vfs.len());
            let text = format!("{few} of {} without a driver, as {}", count(all, "VF"), function.id);
            let remedy = format!("`echo {} > /sys/bus/pci/drivers_probe`", function.id);
            let check =
                if few == all { Check::fail(name, text, remedy) } else { Check::warn(name, text, remedy) };
            found.add(check.on(rail));
        }
        let holders: Vec<_> = rail.vfs.iter().filter_map(|vf| inventory.holder(&vf.function)).collect();
        free += rail.vfs.len() - holders.len();
        if holders.len() == rail.vfs.len() && holders.iter().all(|holder| holder.state.is_left_over()) {
            all_dead.push(rail.title());
        }
    }
    if !all_dead.is_empty() {
        let text = format!("{}: every VF was left by a pod that is gone", all_dead.join(", "));
        found.add(Check::warn(name, text, "the next ADD puts that right; at once: `rail-cni reap`"));
    }
    let all: usize = rails.iter().map(|rail| rail.vfs.len()).sum();
    found.ok_unless_told(name, format!("{}, {free} free", count(all, "VF")));
}

/// What an ADD would refuse of a free VF; of the PF itself, where that is all there is.
fn host_use(node: &Node, rails: &[&Rail], inventory: &Inventory, found: &mut Findings) {
    let name = "host-use";
    let mut host = match Socket::open() {
        Ok(host) => host,
        Err(error) => return found.add(Check::skip(name, format!("{error:#}"))),
    };
    for rail in rails {
        let vfs = rail.vfs.iter().map(|vf| ("VF", &vf.function, &vf.link));
        let pf = rail.function.iter().map(|pf| ("PF", pf, &rail.link)).filter(|_| rail.vfs.is_empty());
        for (kind, function, link) in vfs.chain(pf) {
            let Some(link) = link.as_ref().filter(|_| inventory.holder(function).is_none()) else { continue };
            let what = format!("{kind} {} ({})", function.id, link.name);
            if let Err(error) = refuse_what_the_host_needs(&what, link, node, &mut host) {
                let remedy = "take it out of the host's configuration, or out of the rail's resource";
                found.add(Check::warn(name, format!("{error:#}"), remedy).on(rail));
            }
        }
    }
    found.ok_unless_told(name, "the host uses no device that a pod could get");
}

fn rdma(rails: &[&Rail], inventory: &Inventory, found: &mut Findings) {
    let name = "rdma";
    if inventory.rdma == RdmaMode::Absent {
        found.add(Check::skip(name, "this kernel has no RDMA, or its modules are not loaded"));
        return;
    }
    // A device that a pod has is not in the host's sysfs.
    let is_home = |function: &Function| inventory.holder(function).is_none() && !function.is_userspace();
    let has = |function: &Function| !function.rdma_devices().is_empty();
    let of_rail = |rail: &Rail| {
        let functions = rail.function.iter().chain(rail.vfs.iter().map(|vf| &vf.function));
        functions.filter(|function| is_home(function)).cloned().collect::<Vec<_>>()
    };
    let with: usize = rails.iter().map(|rail| of_rail(rail).iter().filter(|one| has(one)).count()).sum();
    let moved = inventory.attachments.iter().any(|one| !one.record.rdma.is_empty());
    if with == 0 && !moved {
        found.add(Check::skip(name, "no PF and no VF of a rail has an RDMA device"));
        return;
    }
    for rail in rails {
        let without: Vec<_> = of_rail(rail).into_iter().filter(|one| !has(one)).map(|one| one.id).collect();
        if !without.is_empty() {
            let text = format!("no RDMA device on {}, while others have one", without.join(", "));
            found.add(
                Check::warn(name, text, "is the driver's RDMA module loaded (mlx5_ib)? `rdma link`").on(rail),
            );
        }
    }
    if inventory.rdma == RdmaMode::Shared {
        let text = "shared mode: every pod sees every RDMA device, and \"rdma\": \"required\" is refused";
        found.add(Check::warn(name, text, "`rdma system set netns exclusive` at boot, before any pod"));
    }
    found.ok_unless_told(name, format!("exclusive mode, {} with RDMA on the host", count(with, "function")));
}

/// Who configures a VF beside us gives it addresses, or takes it down. Both managers say in files below /run what
/// they do with each netdev.
fn managers(rails: &[&Rail], found: &mut Findings) {
    let name = "managers";
    let managers = [
        ("systemd-networkd", Path::new("/run/systemd/netif/links"), is_networkds as fn(&str) -> bool),
        ("NetworkManager", Path::new("/run/NetworkManager/devices"), is_network_managers),
    ];
    let running: Vec<_> = managers.iter().filter(|(_, folder, _)| folder.exists()).collect();
    for (manager, folder, is_managed) in &running {
        let vfs = rails.iter().flat_map(|rail| rail.vfs.iter().map(move |vf| (rail, vf)));
        for (rail, link) in vfs.filter_map(|(rail, vf)| Some((rail, vf.link.as_ref()?))) {
            let text = fs::read_to_string(folder.join(link.index.to_string()));
            if text.is_ok_and(|text| is_managed(&text)) {
                let text = format!("{manager} manages the VF {}", link.name);
                found.add(Check::warn(name, text, "tell it that VFs are unmanaged").on(rail));
            }
        }
    }
    let names: Vec<_> = running.iter().map(|(manager, ..)| *manager).collect();
    found.ok_unless_told(
        name,
        match names[..] {
            [] => "neither systemd-networkd nor NetworkManager runs".to_owned(),
            _ => format!("{} leave the VFs alone", names.join(" and ")),
        },
    );
}

fn is_networkds(state: &str) -> bool {
    let state = state.lines().find_map(|line| line.strip_prefix("ADMIN_STATE="));
    matches!(state, Some("configuring" | "configured" | "failed"))
}

fn is_network_managers(state: &str) -> bool {
    state.lines().any(|line| line == "managed=true")
}

/// Is it a name that the kernel gives to a NIC of a dead namespace?
fn is_handed_back(name: &str) -> bool {
    let digits = name.strip_prefix("net").or_else(|| name.strip_prefix("dev"));
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Devices that came back under the name of a pod, and that no record tells anything of.
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
        let recorded = on_record.chain(&inventory.debts).any(|record| record.device.is_of(id));
        if is_handed_back(&link.name) && !recorded {
            let text =
                format!("{id} is {} on the host, as a pod's that is gone; no record has its name", link.name);
            let remedy = format!("`ip link set {0} down`, then `ip link set {0} name NAME`", link.name);
            found.add(Check::warn(name, text, remedy).on(rail));
        }
    }
    found.ok_unless_told(name, "no device of a rail has the name of a pod's interface");
}

/// Attachments of which only the record is left.
/// What pods that are gone still owe. It is in nobody's way, unless the device is not as it was.
fn debts(inventory: &Inventory, found: &mut Findings) {
    for record in inventory.debts.iter().filter(|record| record.is_owed_in_vain()) {
        for owed in record.owed() {
            let text = format!("owed by {}: {}: {}", record.holder(), owed.what.as_str(), owed.why);
            let remedy = format!(
                "mend that, then `rail-cni reap`; or `rail-cni reap --forget {}`",
                record.container_id
            );
            found.add(Check::warn("debts", text, remedy));
        }
    }
    found.ok_unless_told("debts", "nothing is owed by pods that are gone");
}

fn records(inventory: &Inventory, found: &mut Findings) {
    const NAMED: usize = 3;
    let name = "records";
    let left: Vec<_> = inventory.attachments.iter().filter(|one| one.state.is_left_over()).collect();
    if !left.is_empty() {
        let named = left.iter().take(NAMED).map(|Attached { record, state, .. }| {
            let who = record.pod.as_ref().unwrap_or(&record.container_id);
            format!("{} of {who} ({})", record.device.id, state.as_str())
        });
        let more = left.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = named.collect::<Vec<_>>().join(", ");
        let text = format!("{} left by pods: {named}{more}", count(left.len(), "attachment"));
        found.add(Check::warn(name, text, "the next ADD puts that right; at once: `rail-cni reap`"));
    }
    for Attached { record, state, error, .. } in &inventory.attachments {
        let what = format!("{} of {}", record.device.id, record.holder());
        if *state == State::Elsewhere {
            let text = format!("{what} is neither in the pod nor on the host");
            found.add(Check::warn(
                name,
                text,
                "did the pod move it on? Were the VFs made anew? Restart the pod",
            ));
        } else if let Some(error) = error {
            found.add(Check::skip(name, format!("{what}: {error}")));
        }
    }
    for file in &inventory.unreadable {
        let remedy = format!("if no pod has its device, `rail-cni reap --forget {file}`");
        found.add(Check::warn(name, format!("{file} cannot be read"), remedy));
    }
    let live = inventory.attachments.iter().filter(|one| one.state == State::Live).count();
    found.ok_unless_told(name, format!("{}, none of a pod that is gone", count(live, "attachment")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::doctor::Verdict;
    use crate::sysfs::DeviceId;

    /// Two rails with a VF each; whose function has an RDMA device is in `with`.
    fn judged(mode: RdmaMode, with: &[&str]) -> Vec<(Verdict, String)> {
        let root = tempfile::tempdir().unwrap();
        let function = |id: &str| {
            let path = root.path().join("bus/pci/devices").join(id);
            fs::create_dir_all(&path).unwrap();
            if with.contains(&id) {
                fs::create_dir_all(path.join("infiniband/mlx5_0")).unwrap();
            }
            Function::find(root.path(), &DeviceId::parse(id).unwrap()).unwrap().unwrap()
        };
        let rails = (0..2u8).map(|rail| Rail {
            rail: Some(rail),
            named: String::new(),
            function: Some(function(&format!("0000:0{rail}:00.0"))),
            link: None,
            rdma: Vec::new(),
            vfs: vec![Vf { function: function(&format!("0000:0{rail}:00.1")), link: None }],
        });
        let (rails, attachments, unreadable) = (rails.collect(), Vec::new(), Vec::new());
        let inventory = Inventory {
            rdma: mode,
            rails,
            attachments,
            debts: Vec::new(),
            unreadable,
            lost: Vec::new(),
            is_emptied: false,
        };
        let mut found = Findings::default();
        rdma(&inventory.rails.iter().collect::<Vec<_>>(), &inventory, &mut found);
        found.0.into_iter().map(|check| (check.verdict, check.text)).collect()
    }

    #[test]
    fn rdma_is_judged_by_its_mode_and_by_what_the_other_rails_have() {
        let all = ["0000:00:00.0", "0000:00:00.1", "0000:01:00.0", "0000:01:00.1"];
        let verdicts =
            |found: &[(Verdict, String)]| found.iter().map(|(verdict, _)| *verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&judged(RdmaMode::Absent, &[])), [Verdict::Skip]);
        assert_eq!(verdicts(&judged(RdmaMode::Exclusive, &[])), [Verdict::Skip]);
        let good = judged(RdmaMode::Exclusive, &all);
        assert_eq!(good, [(Verdict::Ok, "exclusive mode, 4 functions with RDMA on the host".to_owned())]);
        let shared = judged(RdmaMode::Shared, &all);
        assert!(verdicts(&shared) == [Verdict::Warn] && shared[0].1.starts_with("shared mode"), "{shared:?}");
        let lacking = judged(RdmaMode::Exclusive, &all[..3]);
        assert_eq!(verdicts(&lacking), [Verdict::Warn]);
        assert!(lacking[0].1.starts_with("rail 1: no RDMA device on 0000:01:00.1"), "{lacking:?}");
    }

    #[test]
    fn names_of_devices_that_came_back() {
        assert!(["net1", "net12", "dev7"].into_iter().all(is_handed_back));
        assert!(!["eth0", "net", "devlink0", "netdev1", "ens1f0v0"].into_iter().any(is_handed_back));
    }
}
