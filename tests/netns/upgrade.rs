//! An upgrade under running pods, from a build before this one. Record, its copy, lease and
//! device-info file are to the byte as that build wrote them, with the values of the moment filled
//! in: a change of their form fails here.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Call, Host, Ran, Sleeper, rail, vf_address, with};
use crate::programs::RAIL_IPAM;

const RECORD: &str = include_str!("upgrade/record.json");
const PENDING: &str = include_str!("upgrade/pending.json");
const LEASE: &str = include_str!("upgrade/lease.json");
const INFO: &str = r#"{"pci":{"pci-address":"0000:01:10.0","pf-pci-address":"0000:01:00.0"},"rail-cni":{"containerID":"c1","ifname":"net1"},"type":"pci","version":"1.1.0"}"#;
/// The result of an earlier build's ADD, which the runtime has kept.
const RESULT: &str = r#"{"cniVersion":"1.1.0","interfaces":[{"mac":"02:00:00:00:00:77","mtu":9000,"name":"net1","pciID":"0000:01:10.0","sandbox":"{netns}"}],"ips":[{"address":"172.16.0.0/31","gateway":"172.16.0.1","interface":0}],"routes":[{"dst":"172.16.0.0/15","gw":"172.16.0.1","priority":1000}]}"#;

/// A node on which an earlier build has served a pod.
struct Old {
    host: Host,
    pod: PathBuf,
    next: PathBuf,
    /// Before an earlier build did anything.
    before: Value,
    mac: String,
    index: Value,
    /// The identity of the pod's namespace.
    id: [String; 3],
}

impl Old {
    /// The pod has the device, and an attachment is on file that was never written by this version.
    fn new(test: &str) -> Option<Old> {
        let host = Host::new(&format!("upgrade::{test}"))?;
        host.add_rail(0);
        host.make_vf(0, "mlx5_core");
        host.plan("rail-0", "172.16.0.0/31", "172.16.0.1", &["172.16.0.0/15"]);
        host.ip("link property add dev vf0 altname enp1s0v0");
        host.ip("link set vf0 mtu 1400");
        let (pod, next) = (host.add_netns("pod"), host.add_netns("next"));
        let (before, link) = (host.snapshot(), host.json(None, "link show vf0")[0].clone());
        let mac = link["address"].as_str().unwrap().to_owned();
        let netns = fs::metadata(&pod).unwrap();
        let created = netns.ctime() * 1_000_000_000 + netns.ctime_nsec();
        let id = [
            netns.dev().to_string(),
            netns.ino().to_string(),
            created.to_string(),
        ];
        let old = Old {
            host,
            pod,
            next,
            before,
            mac,
            index: link["ifindex"].clone(),
            id,
        };
        old.file("devinfo/info", INFO);
        old.file(
            "run/leases/node-1/rail-0/172.16.0.0@311e8e978c8167328f92976d9aaed11c.json",
            &old.filled(LEASE),
        );
        old.file("run/leases/node-1/rail-0/lock", "");
        Some(old)
    }

    fn file(&self, path: &str, content: &str) {
        let path = self.host.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn filled(&self, golden: &str) -> String {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let bin = Path::new(RAIL_IPAM).parent().unwrap().display().to_string();
        let [dev, ino, created] = &self.id;
        let folder = fs::metadata(self.pod.parent().unwrap()).unwrap();
        let folder = format!("[{},{}]", folder.dev(), folder.ino());
        let (netns, dir) = (
            self.pod.display().to_string(),
            self.host.dir.path().display().to_string(),
        );
        let index = self.index.to_string();
        let values = [
            ("{boot}", boot.trim()),
            ("{netns}", &netns),
            ("{dev}", dev),
            ("{ino}", ino),
            ("{created}", created),
            ("{folder}", &folder),
            ("{home}", &index),
            ("{mac}", &self.mac),
            ("{dir}", &dir),
            ("{bin}", &bin),
        ];
        values
            .iter()
            .fold(golden.to_owned(), |text, (name, value)| {
                text.replace(name, value)
            })
    }

    /// An earlier build has waited in vain for the return of the device.
    fn miss(&self) {
        let file = self.host.path("run/attachments/c1:net1:0000:01:10.0.json");
        let mut record: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        for step in record["steps"].as_array_mut().unwrap() {
            if step["change"] == "move" {
                step["state"] = json!({"failed": {"why": "it has not returned", "tries": 1}});
            }
        }
        for file in [
            "run/attachments/c1:net1:0000:01:10.0.json",
            "run/locks/device-0000:01:10.0",
        ] {
            self.file(file, &record.to_string());
        }
    }

    /// Puts record and copy there. An earlier build knew the index in the pod from the end of the
    /// move on.
    fn records(&self, progress: &str) {
        let index = if progress == "planned" {
            "0".to_owned()
        } else {
            self.index.to_string()
        };
        let record = self
            .filled(RECORD)
            .replace("{progress}", progress)
            .replace("{index}", &index);
        self.file("run/attachments/c1:net1:0000:01:10.0.json", &record);
        self.file("run/locks/device-0000:01:10.0", &record);
        fs::create_dir_all(self.host.path("run/locks")).unwrap();
    }

    /// Attaches the device as an earlier build's ADD did.
    fn attach(&self) {
        let pod = self.pod.file_name().unwrap().to_str().unwrap();
        let index = &self.index;
        self.host.ip(&format!(
            "link set vf0 address 02:00:00:00:00:77 mtu 9000 netns {pod} index {index} name net1"
        ));
        for args in [
            "addr add 172.16.0.0/31 dev net1",
            "link set net1 up",
            "route add 172.16.0.0/31 dev net1 table 100 proto static scope link",
            "route add 172.16.0.0/15 via 172.16.0.1 dev net1 table 100 metric 1000 proto static",
            "route add 172.16.0.0/15 via 172.16.0.1 dev net1 metric 1000 proto static",
            "rule add from 172.16.0.0 lookup 100 priority 1000 proto static",
        ] {
            self.host.ip_in(&self.pod, args);
        }
    }

    fn config(&self) -> Value {
        let info = json!({"CNIDeviceInfoFile": self.host.path("devinfo/info")});
        let more = json!({"device": null, "deviceID": vf_address(0), "mac": "02:00:00:00:00:77"});
        with(with(rail(0), more), json!({ "runtimeConfig": info }))
    }

    fn call(&self, verb: &str) -> Call {
        self.host.call(verb, "c1", &self.pod)
    }

    fn checked(&self) -> Ran {
        let result: Value = serde_json::from_str(&self.filled(RESULT)).unwrap();
        self.call("CHECK")
            .run(&with(self.config(), json!({ "prevResult": result })))
    }

    fn status(&self) -> Value {
        self.call("")
            .args(&["status", "--output", "json"])
            .run(&Value::Null)
            .json()
    }

    /// `status` calls the attachment one of these, and `doctor` tells of it.
    #[track_caller]
    fn is_told(&self, states: &[&str]) {
        let shown = self.status();
        let state = shown["attachments"][0]["state"].as_str().unwrap();
        assert!(states.contains(&state), "{shown}");
        let doctor = self
            .call("")
            .args(&["doctor", "--output", "json"])
            .run(&Value::Null)
            .json();
        let of_records = |check: &&Value| check["check"] == "records" && check["verdict"] != "ok";
        let found = doctor["checks"].as_array().unwrap().iter().find(of_records);
        let text = found.unwrap_or_else(|| panic!("{doctor}"))["text"].to_string();
        assert!(
            text.contains("0000:01:10.0") && text.contains("default/pod"),
            "{text}"
        );
    }

    /// All is as it was before an earlier build came.
    #[track_caller]
    fn is_as_before(&self) {
        let pending: Vec<_> = self
            .host
            .pending()
            .iter()
            .map(|file| fs::read_to_string(file).unwrap())
            .collect();
        assert_eq!(self.host.snapshot(), self.before, "{pending:?}");
        assert!(!self.host.path("devinfo/info").exists());
    }

    /// The next pod gets device and address, and gives them back.
    #[track_caller]
    fn serves_the_next(&self) {
        let config = with(self.config(), json!({"mac": ""}));
        let call = |verb: &str| self.host.call(verb, "c2", &self.next);
        let added = call("ADD").run(&config).ok().json();
        assert_eq!(added["interfaces"][0]["mac"], self.mac.as_str());
        call("CHECK")
            .run(&with(config.clone(), json!({ "prevResult": added })))
            .ok();
        call("DEL").run(&config).ok();
        // Steps for the dead pod that could not be undone at once.
        self.call("").args(&["reap"]).run(&Value::Null).ok();
        self.is_as_before();
    }
}

#[test]
fn a_running_pod_of_an_earlier_build_is_left_alone_and_given_back() {
    let Some(old) = Old::new("running") else {
        return;
    };
    old.attach();
    old.records("done");
    old.checked().ok();
    let shown = old.status();
    assert_eq!(
        (
            &shown["attachments"][0]["state"],
            &shown["attachments"][0]["pod"]
        ),
        (&json!("live"), &json!("default/pod"))
    );
    let doctor = old
        .call("")
        .args(&["doctor", "--output", "json"])
        .run(&Value::Null)
        .json();
    for check in doctor["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["check"] == "records")
    {
        assert_eq!(check["verdict"], "ok", "{check}");
    }
    // The address stays: it is taken neither by the next pod, nor by GC with an empty list, nor by
    // reap or release.
    let refused = old
        .host
        .call("ADD", "c2", &old.next)
        .run(&old.config())
        .error(11);
    assert!(
        refused["msg"]
            .as_str()
            .unwrap()
            .contains("pod default/pod, container c1 as net1"),
        "{refused}"
    );
    old.call("GC")
        .run(&with(
            old.config(),
            json!({"cni.dev/valid-attachments": []}),
        ))
        .ok();
    let reaped = old.call("").args(&["reap"]).run(&Value::Null).ok();
    assert!(reaped.stdout.contains("1 in use"), "{reaped:?}");
    old.checked().ok();
    // A second network of the same pod finds its record.
    let again = old.call("ADD").run(&old.config()).error(7);
    assert!(again["msg"].as_str().unwrap().contains("net1"), "{again}");
    for _ in 0..2 {
        old.call("DEL").run(&old.config()).ok();
        old.is_as_before();
    }
    old.serves_the_next();
}

#[test]
fn check_tells_what_a_pod_of_an_earlier_build_has_changed() {
    let Some(old) = Old::new("check") else { return };
    old.attach();
    old.records("done");
    old.host.ip_in(&old.pod, "link set net1 mtu 1500");
    old.host.ip_in(&old.pod, "rule del priority 1000");
    let msg = old.checked().error(100)["msg"].to_string();
    assert!(
        msg.contains("1500") && msg.contains("from 172.16.0.0"),
        "{msg}"
    );
    old.call("DEL").run(&old.config()).ok();
    old.is_as_before();
}

/// The record is gone: its copy is enough, as it was for an earlier build.
#[test]
fn the_copy_of_a_record_of_an_earlier_build_is_enough() {
    let Some(old) = Old::new("copy") else { return };
    old.attach();
    old.records("done");
    fs::remove_file(old.host.path("run/attachments/c1:net1:0000:01:10.0.json")).unwrap();
    old.checked().ok();
    old.call("DEL").run(&old.config()).ok();
    old.is_as_before();
}

#[test]
fn what_a_dead_pod_of_an_earlier_build_left_is_put_right_by_del_and_by_the_next_add() {
    for is_told in [true, false] {
        let Some(old) = Old::new("dead") else { return };
        old.attach();
        old.records("done");
        old.host.hand_back(&old.pod, "net1");
        old.is_told(&["dead"]);
        if is_told {
            old.call("DEL").run(&old.config()).ok();
            old.is_as_before();
        }
        old.serves_the_next();
    }
}

/// Steps that a DEL of before could not undo are undone by the next call.
#[test]
fn what_a_del_of_an_earlier_build_owed_is_undone() {
    for end in ["DEL", "reap", ""] {
        let Some(old) = Old::new("owed") else { return };
        old.file(
            "run/pending/c1:net1:0000:01:10.0.json",
            &old.filled(PENDING),
        );
        fs::create_dir_all(old.host.path("run/attachments")).unwrap();
        fs::create_dir_all(old.host.path("run/locks")).unwrap();
        fs::remove_file(old.host.path("devinfo/info")).unwrap();
        let shown = old.status();
        assert_eq!(shown["pending"][0]["steps"][0]["step"], "lease", "{shown}");
        match end {
            "" => (),
            "reap" => drop(old.call("").args(&["reap"]).run(&Value::Null).ok()),
            verb => drop(old.call(verb).run(&old.config()).ok()),
        }
        if !end.is_empty() {
            old.is_as_before();
        }
        old.serves_the_next();
    }
}

/// an earlier build was killed in its ADD, before the move or after.
#[test]
fn an_add_of_an_earlier_build_that_was_cut_off_is_undone() {
    for has_moved in [true, false] {
        for is_told in [true, false] {
            let Some(old) = Old::new("adding") else {
                return;
            };
            if has_moved {
                old.attach();
            }
            old.records("planned");
            old.is_told(&["cut-off"]);
            if is_told {
                old.call("DEL").run(&old.config()).ok();
                old.is_as_before();
            }
            // The sysfs of files cannot say that the device is in the pod: it is found all the
            // same.
            old.serves_the_next();
        }
    }
}

/// The namespace is gone, and a process keeps the device in it.
#[test]
fn a_device_that_an_earlier_build_missed_is_put_right_when_it_comes_back() {
    let Some(old) = Old::new("missing") else {
        return;
    };
    old.attach();
    old.records("done");
    old.miss();
    let keeper = Sleeper::new(Some(&old.pod));
    let home = Sleeper::new(None);
    old.host.delete_netns(&old.pod);
    old.is_told(&["missing"]);
    let refused = old.host.call("ADD", "c2", &old.next).run(&old.config());
    assert_eq!(refused.error(11)["code"], 11);
    let moved = std::process::Command::new("nsenter")
        .arg(format!("--net={}", keeper.netns().display()))
        .args(["ip", "link", "set", "net1", "down", "netns"])
        .arg(home.pid().to_string())
        .status();
    assert!(moved.is_ok_and(|moved| moved.success()));
    drop(keeper);
    old.serves_the_next();
}
