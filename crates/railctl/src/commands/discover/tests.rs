use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::judge::{Row, Seen, judge};
use super::pci::{Pci, scan};

/// A sysfs with functions of PCI.
struct Tree(tempfile::TempDir);

const GPU: &str = "0x030200 10de 2330";
const NIC: &str = "0x020000 15b3 1021";

impl Tree {
    fn new() -> Tree {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("bus/pci/devices")).unwrap();
        Tree(root)
    }

    /// A function at a path below `devices`, with class, vendor, device and NUMA node.
    fn add(&self, path: &str, kind: &str, numa: &str) -> PathBuf {
        let at = self.0.path().join("devices").join(path);
        fs::create_dir_all(&at).unwrap();
        let words: Vec<_> = kind.split(' ').collect();
        for (file, text) in ["class", "vendor", "device"].iter().zip(words) {
            fs::write(
                at.join(file),
                format!("0x{}\n", text.trim_start_matches("0x")),
            )
            .unwrap();
        }
        fs::write(at.join("numa_node"), numa).unwrap();
        let id = Path::new(path).file_name().unwrap();
        symlink(&at, self.0.path().join("bus/pci/devices").join(id)).unwrap();
        at
    }

    /// A switch behind a root port, with a port for each device.
    fn switch(&self, bus: u8, devices: &[&str], numa: &str) {
        let top = format!(
            "pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{:02x}:00.0",
            bus + 1
        );
        for (port, kind) in devices.iter().enumerate() {
            let port = u8::try_from(port).unwrap();
            let place = format!(
                "{top}/0000:{:02x}:{port:02x}.0/0000:{:02x}:00.0",
                bus + 2,
                bus + 3 + port
            );
            self.add(&place, kind, numa);
        }
    }

    fn pci(&self) -> Pci {
        scan(self.0.path()).unwrap()
    }
}

/// Eight switches with a GPU and a NIC each, a NIC for storage and one for the host, and the
/// display of a BMC.
fn hgx() -> Tree {
    let tree = Tree::new();
    for (number, bus) in [0x15, 0x38, 0x48, 0x59, 0x97, 0xb7, 0xc7, 0xd7]
        .into_iter()
        .enumerate()
    {
        tree.switch(bus, &[NIC, GPU], if number < 4 { "0" } else { "1" });
    }
    tree.add("pci0000:26/0000:26:01.0/0000:27:00.0", NIC, "0");
    tree.add(
        "pci0000:00/0000:00:1c.0/0000:02:00.0",
        "0x020000 8086 1593",
        "0",
    );
    tree.add(
        "pci0000:00/0000:00:1d.0/0000:03:00.0",
        "0x030000 1a03 2000",
        "0",
    );
    let vf = tree.add(
        "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.2",
        "0x020000 15b3 101e",
        "0",
    );
    symlink("../0000:18:00.0", vf.join("physfn")).unwrap();
    tree
}

fn seen(pci: &Pci, change: impl Fn(&mut Seen)) -> Vec<Seen> {
    let one = |nic: &super::Device| {
        let mut seen = Seen {
            nic: nic.clone(),
            netdev: None,
            host_use: None,
            leaf: None,
            neighbours: None,
            by_leaf: None,
            by_address: None,
            present: None,
        };
        change(&mut seen);
        seen
    };
    pci.nics.iter().map(one).collect()
}

fn rails(rows: &[Row]) -> Vec<(&str, Option<u8>)> {
    let candidates = rows.iter().filter(|row| row.is_candidate());
    candidates
        .map(|row| (row.seen.nic.id.as_str(), row.rail))
        .collect()
}

const OF_HGX: [(&str, Option<u8>); 8] = [
    ("0000:18:00.0", Some(0)),
    ("0000:3b:00.0", Some(1)),
    ("0000:4b:00.0", Some(2)),
    ("0000:5c:00.0", Some(3)),
    ("0000:9a:00.0", Some(4)),
    ("0000:ba:00.0", Some(5)),
    ("0000:ca:00.0", Some(6)),
    ("0000:da:00.0", Some(7)),
];

fn against(rows: &[Row]) -> Vec<&str> {
    rows.iter()
        .flat_map(|row| row.contradictions.iter().map(String::as_str))
        .collect()
}

#[test]
fn eight_nics_beside_eight_gpus_are_eight_rails_and_storage_and_host_are_none() {
    let pci = hgx().pci();
    assert_eq!((pci.gpus.len(), pci.nics.len()), (8, 10));
    let rows = judge(seen(&pci, |_| ()), &pci);
    assert_eq!(rails(&rows), OF_HGX);
    assert!(against(&rows).is_empty(), "{rows:?}");
    let others: Vec<_> = rows.iter().filter(|row| row.rail.is_none()).collect();
    assert!(
        others.len() == 2 && others.iter().all(|row| row.reasons.len() == 1),
        "{others:?}"
    );
    golden::says(
        "railctl",
        "discover: a NIC that is not a rail",
        &others[0].reasons[0],
    );
    let proposed = super::proposal(&rows);
    let node = rail_cni::node::Node::parse(Path::new("node.json"), proposed.as_bytes()).unwrap();
    assert_eq!(
        (node.rails.len(), node.rails[7].pf.as_str()),
        (8, "0000:da:00.0")
    );
}

#[test]
fn a_leaf_of_the_plan_stands_before_the_order_and_what_it_contradicts_is_told() {
    let pci = hgx().pci();
    let swapped = |seen: &mut Seen| {
        seen.by_leaf = match seen.nic.id.as_str() {
            "0000:5c:00.0" => Some(4),
            "0000:9a:00.0" => Some(3),
            _ => None,
        };
    };
    let rows = judge(seen(&pci, swapped), &pci);
    let of = |id: &str| rows.iter().find(|row| row.seen.nic.id == id).unwrap();
    assert_eq!(
        (of("0000:5c:00.0").rail, of("0000:9a:00.0").rail),
        (Some(4), Some(3))
    );
    assert!(
        of("0000:5c:00.0").contradictions[0].contains("another order"),
        "{rows:?}"
    );
    // Then the order tells nothing of the others.
    assert_eq!(of("0000:18:00.0").rail, None);
    assert!(super::proposal(&rows).contains("\"railsInPciOrder\": false"));
    let twice = judge(
        seen(&pci, |seen| {
            seen.by_leaf = (seen.nic.id == "0000:18:00.0").then_some(0);
            seen.by_address = (seen.nic.id == "0000:18:00.0").then_some(1);
        }),
        &pci,
    );
    assert_eq!(
        twice
            .iter()
            .find(|row| row.seen.by_address.is_some())
            .unwrap()
            .rail,
        None
    );
}

#[test]
fn two_gpus_may_share_a_nic_and_two_nics_at_one_gpu_are_told_apart_by_the_plan_only() {
    let tree = Tree::new();
    tree.switch(0x10, &[NIC, GPU, GPU], "0");
    tree.switch(0x40, &[NIC, GPU, GPU], "1");
    let pci = tree.pci();
    let rows = judge(seen(&pci, |_| ()), &pci);
    assert_eq!(
        rails(&rows),
        [("0000:13:00.0", Some(0)), ("0000:43:00.0", Some(1))]
    );
    assert!(
        rows[0].gpus.len() == 2 && against(&rows).is_empty(),
        "{rows:?}"
    );

    let tree = Tree::new();
    tree.switch(0x10, &[NIC, NIC, GPU], "0");
    let pci = tree.pci();
    let rows = judge(seen(&pci, |_| ()), &pci);
    assert_eq!(
        rails(&rows),
        [("0000:13:00.0", None), ("0000:14:00.0", None)]
    );
    assert_eq!(against(&rows).len(), 2, "{rows:?}");
    // One carries the node, so the other is the rail.
    let rows = judge(
        seen(&pci, |seen| {
            seen.host_use = (seen.nic.id == "0000:13:00.0").then(|| "it has an address".to_owned());
        }),
        &pci,
    );
    assert_eq!(rails(&rows), [("0000:14:00.0", Some(0))]);
    let rows = judge(
        seen(&pci, |seen| {
            seen.by_leaf = (seen.nic.id == "0000:13:00.0").then_some(5)
        }),
        &pci,
    );
    assert_eq!(
        rails(&rows),
        [("0000:13:00.0", Some(5)), ("0000:14:00.0", None)]
    );
}

#[test]
fn two_ports_of_a_card_are_planes_only_if_the_plan_says_so() {
    let tree = Tree::new();
    tree.switch(0x10, &[NIC, GPU], "0");
    tree.add(
        "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.1",
        NIC,
        "0",
    );
    let pci = tree.pci();
    let rows = judge(seen(&pci, |_| ()), &pci);
    assert_eq!(
        rails(&rows),
        [("0000:13:00.0", None), ("0000:13:00.1", None)]
    );
    let rows = judge(seen(&pci, |seen| seen.by_leaf = Some(0)), &pci);
    assert_eq!(
        rails(&rows),
        [("0000:13:00.0", Some(0)), ("0000:13:00.1", Some(0))]
    );
    assert!(against(&rows).is_empty(), "{rows:?}");
}

#[test]
fn orders_that_differ_and_one_numa_node_tell_no_rail() {
    // NIC 13 is with GPU 44, and NIC 43 with GPU 14.
    let tree = Tree::new();
    tree.add(
        "pci0000:10/0000:10:01.0/0000:11:00.0/0000:13:00.0",
        NIC,
        "0",
    );
    tree.add(
        "pci0000:10/0000:10:01.0/0000:11:00.0/0000:44:00.0",
        GPU,
        "0",
    );
    tree.add(
        "pci0000:40/0000:40:01.0/0000:41:00.0/0000:43:00.0",
        NIC,
        "0",
    );
    tree.add(
        "pci0000:40/0000:40:01.0/0000:41:00.0/0000:14:00.0",
        GPU,
        "0",
    );
    let pci = tree.pci();
    let rows = judge(seen(&pci, |_| ()), &pci);
    assert_eq!(
        rails(&rows),
        [("0000:13:00.0", None), ("0000:43:00.0", None)]
    );
    assert!(against(&rows)[0].contains("different orders"), "{rows:?}");

    let tree = Tree::new();
    tree.add("pci0000:10/0000:10:01.0/0000:11:00.0", NIC, "0");
    tree.add(
        "pci0000:40/0000:40:01.0/0000:41:00.0",
        "0x120000 1002 74a1",
        "0",
    );
    let pci = tree.pci();
    let rows = judge(seen(&pci, |_| ()), &pci);
    assert_eq!((pci.gpus.len(), rails(&rows)), (1, vec![]));
}

#[test]
fn a_nic_with_data_direct_is_a_rail_by_leaf_or_plan_only() {
    let tree = Tree::new();
    tree.switch(0x10, &["0x088000 15b3 2100", GPU], "0");
    tree.add(
        "pci0000:00/0000:00:01.0/0000:01:00.0",
        "0x020000 15b3 1023",
        "0",
    );
    let pci = tree.pci();
    let rows = judge(seen(&pci, |_| ()), &pci);
    assert!(
        rails(&rows).is_empty() && rows[0].reasons[0].contains("ConnectX-8"),
        "{rows:?}"
    );
    let rows = judge(seen(&pci, |seen| seen.by_leaf = Some(2)), &pci);
    assert_eq!(rails(&rows), [("0000:01:00.0", Some(2))]);
}
