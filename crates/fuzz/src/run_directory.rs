//! The run directory: leases, records, pending steps. What cannot be read is never taken for
//! nothing.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rail_cni::attach::inside::{HostAddresses, Key, Record, Records};
use rail_cni::cni::Plugin as _;
use rail_cni::cni::{Args, Attachment, Network, Strictness};
use rail_cni::ipam::Ipam;
use rail_cni::ipam::lease::{self, Ask, Holder};
use rail_cni::ipam::table::{self, Table};
use rail_cni::ipam::{assign, names};
use rail_cni::node::Node;
use rail_cni::pool::Allocation;
use rail_netlink::saved::Saved;
use serde_json::{Value, json};

use crate::directory::Directory;
use crate::input::parts;
use crate::judge;
use crate::netlink;

const NODE: &str = "node-0";
const POOL: &str = "rail-0";
/// The only address of the pool that a host can have.
const ADDRESS: &str = "172.16.0.0";

fn node_of(directory: &Directory) -> Node {
    let node = json!({"runDir": directory.path("run"), "storeDir": directory.path("store"), "nodeName": NODE});
    Node::parse(Path::new("node.json"), node.to_string().as_bytes()).expect("a node.json")
}

/// Values that no file of a corpus can contain: the id of this boot, and the namespace that is
/// alive for sure.
static NOW: LazyLock<[(&str, String); 3]> = LazyLock::new(|| {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("an id");
    let netns = fs::metadata("/proc/self/ns/net").expect("a namespace");
    [
        ("@BOOT@", boot.trim().to_owned()),
        ("@DEV@", netns.dev().to_string()),
        ("@INO@", netns.ino().to_string()),
    ]
});

/// The input with these in place of their signs.
fn of_now(data: &[u8]) -> Vec<u8> {
    // Bytes that are no UTF-8 stay what they are: an input is changed only if it has a sign.
    let Ok(text) = std::str::from_utf8(data) else {
        return data.to_vec();
    };
    NOW.iter()
        .fold(text.to_owned(), |text, (sign, value)| {
            text.replace(sign, value)
        })
        .into_bytes()
}

/// A node whose run directory is `run`, in which leases were taken before.
fn node(directory: &Directory) -> Node {
    fs::create_dir_all(directory.path("run/leases").join(names::BEGUN)).expect("a directory");
    node_of(directory)
}

static NETWORK: LazyLock<Network> = LazyLock::new(|| {
    let config = json!({"cniVersion": "1.1.0", "name": "rail-0"})
        .to_string()
        .into_bytes();
    Network::parse(
        config,
        Args::default(),
        Vec::new(),
        Ipam::KEYS,
        Strictness::Strict,
    )
    .expect("a network")
});

static ALLOCATION: LazyLock<Allocation> = LazyLock::new(|| {
    let allocation = json!({"version": 1, "prefix": "172.16.0.0/31", "gateway": "172.16.0.1"});
    serde_json::from_value(allocation).expect("an allocation")
});

fn attachment(container_id: &str) -> Attachment {
    Attachment {
        container_id: container_id.to_owned(),
        ifname: "net1".to_owned(),
    }
}

/// The content of a lease's file. Another attachment wants the address, which is the only one.
pub fn lease(data: &[u8]) {
    let data = &of_now(data);
    let directory = Directory::new();
    let node = node(&directory);
    let (theirs, ours) = (attachment("theirs"), attachment("ours"));
    let name = format!("{ADDRESS}@{}.json", names::key("rail-0", &theirs));
    let file = directory.write(&format!("run/leases/{name}"), data);
    let table = Table::existing(&node)
        .expect("a directory")
        .expect("a directory");
    let [entry] = &table.entries().expect("a list")[..] else {
        panic!("one lease")
    };
    let read = table.read(entry);
    let is_read = match &read {
        Ok(Some(found)) => {
            let text = serde_json::to_vec(found).expect("a lease");
            assert_eq!(
                &serde_json::from_slice::<lease::Lease>(&text).expect("a lease"),
                found
            );
            assert_eq!(found.address.to_string(), ADDRESS);
            true
        }
        Ok(None) => panic!("a lease that is there is said not to be"),
        Err(why) => {
            assert!(
                why.contains(&file),
                "the error does not name the file: {why}"
            );
            judge::message(why);
            false
        }
    };
    // The attachment whose lease it is.
    let held = table::held_by(&node, "rail-0", &theirs);
    assert_eq!(
        held.as_ref().is_ok_and(|held| !held.is_empty()),
        is_read,
        "{held:?}"
    );
    // GC and the DEL of another attachment leave what they do not understand.
    assign::release(&node, "rail-0", &ours).expect("nothing to do");
    assert!(fs::exists(&file).expect("a look"));
    if !is_read {
        assign::collect(&node, "rail-0", &HashSet::new()).expect("it is left alone");
        assert!(
            fs::exists(&file).expect("a look"),
            "GC removed what it cannot read"
        );
        assign::release(&node, "", &theirs).expect("it is left alone");
        assert!(
            fs::exists(&file).expect("a look"),
            "a DEL without a network removed what it cannot read"
        );
    }
    // A request gets the address only if its holder is known and dead.
    let is_dead = read.as_ref().is_ok_and(|read| {
        read.as_ref()
            .is_some_and(|read| read.is_dead(&node).unwrap_or(false))
    });
    let asks = Ask::all(vec![POOL.into()], vec![ALLOCATION.clone()], &[]).expect("a request");
    let holder = Holder::new(&NETWORK, &ours, None).expect("a holder");
    match assign::take(&node, NODE, &asks, &holder, || Ok(true)) {
        Ok(given) => assert!(is_dead, "{given:?} was given, which {read:?} holds"),
        Err(error) => {
            assert!(!is_dead, "{error:#}");
            judge::refused(&error, &[11]);
            assert!(format!("{error:#}").contains(ADDRESS));
            assert!(fs::exists(&file).expect("a look"));
        }
    }
    // Its own DEL always ends it.
    assign::release(&node, "rail-0", &theirs).expect("it ends");
    assert!(!fs::exists(&file).expect("a look"));
}

/// The device of the records.
const DEVICE: &str = "0000:3b:00.2";

/// Parts: a record, the copy in the lock of its device, a pending one, and a message of netlink
/// that a record keeps.
pub fn record(data: &[u8]) {
    let data = &of_now(data);
    let parts = parts(data, 4);
    let directory = Directory::new();
    let node = node_of(&directory);
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    let ours = Key::whole(&attachment("c1"));
    let name = format!("c1:net1:{DEVICE}.json");
    let paths: Vec<PathBuf> = [
        (format!("run/attachments/{name}"), part(0)),
        (format!("run/locks/device-{DEVICE}"), part(1)),
        (format!("run/pending/{name}"), part(2)),
    ]
    .into_iter()
    .map(|(path, content)| directory.write(&path, content).into())
    .collect();
    let records = Records::open_existing(&node)
        .expect("directories")
        .expect("directories");
    let on_file = records.on_file(&ours);
    let found = records.find(&ours);
    for error in [&on_file, &found]
        .into_iter()
        .filter_map(|answer| answer.as_ref().err())
    {
        judge::refused(error, &[5]);
        assert!(
            format!("{error:#}").contains(&name),
            "the error does not name the file: {error:#}"
        );
    }
    let (all, unreadable) = records.all().expect("an answer");
    let is_record = matches!(
        serde_json::from_slice::<Value>(part(0)),
        Ok(Value::Object(_))
    );
    assert!(
        is_record || unreadable == [name.clone()],
        "a damaged record is not told of: {unreadable:?}"
    );
    assert!(unreadable.is_empty() || on_file.is_err());
    // One attachment has one record.
    let keys: HashSet<_> = all
        .iter()
        .map(|record| record.owner.key().to_string())
        .collect();
    assert_eq!(keys.len(), all.len());
    assert!(all.len() <= 2);
    assert!(!matches!(on_file, Ok(Some(_))) || matches!(found, Ok(Some(_))));
    let mut lock = records.locks.device(DEVICE).expect("a lock");
    let claims = records
        .claims_on(DEVICE, &mut lock, None)
        .expect("an answer");
    // Every claim on the device is among all records.
    for claim in &claims {
        assert!(
            all.iter()
                .any(|record| record.owner.key() == claim.owner.key()),
            "{claim:?}"
        );
    }
    let but = records
        .claims_on(DEVICE, &mut lock, Some(&ours))
        .expect("an answer");
    assert!(but.len() <= claims.len() && but.iter().all(|claim| claim.owner.key() != ours));
    drop(lock);
    let pending = records.pending().expect("an answer");
    assert!(pending.len() <= 1);
    let of_device = records.pending_of(DEVICE).expect("an answer");
    assert_eq!(of_device.len(), pending.len());
    let listed = records.list().expect("an answer");
    assert_eq!(listed.interfaces_of("c1"), ["net1"]);
    for record in all
        .iter()
        .chain(pending.iter().map(|pending| &pending.record))
    {
        let text = serde_json::to_vec(record).expect("a record");
        let again = Record::parse(&text).expect("a record");
        assert_eq!(serde_json::to_vec(&again).expect("a record"), text);
        assert!(!record.owner.describe().is_empty());
        let _ = (
            record.owner.life(),
            record.owner.is_rdma_alone(),
            record.facts(),
            record.is_due(),
        );
        let _ = (
            record.is_attached(),
            record.is_missing(),
            record.is_left_in_vain(),
        );
        assert_eq!(record.is_left(), record.left().next().is_some());
        assert!(record.is_left() || !record.is_left_of_device());
        if let Some(host) = record.find::<HostAddresses>() {
            assert!(
                host.lease()
                    .ips
                    .iter()
                    .all(|ip| !ip.address.addr().is_multicast())
            );
        }
    }
    // Looking changes nothing.
    for (path, content) in paths.iter().zip([part(0), part(1), part(2)]) {
        assert_eq!(
            fs::read(path).expect("a file"),
            content,
            "{}",
            path.display()
        );
    }
    if let Ok(saved) = serde_json::from_slice::<Saved>(part(3)) {
        netlink::saved(&saved);
    }
}
