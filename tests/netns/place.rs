//! Leases in a container's own /run are seen by nobody else, and the address is had twice. The
//! places that must work are those of thick Multus, OpenShift's kubens and services with
//! PrivateTmp.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Call, Host, Ran, skip};

/// A node whose run folder is below /run, which is the test's own; process 1 is one of ours.
struct Place {
    host: Host,
    pod: PathBuf,
    run_dir: PathBuf,
}

fn network() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "any", "ipam": {"type": "rail-ipam", "pool": "p"}})
}

/// A PID namespace as a container has it. Its first process is `sh`.
const CONTAINER: [&str; 7] = [
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "--pid",
    "--fork",
    "--mount-proc",
];

impl Place {
    fn new(test: &str) -> Option<Place> {
        let host = Host::new(test)?;
        let can = Command::new(CONTAINER[0])
            .args(&CONTAINER[1..])
            .arg("true")
            .status();
        if !can.is_ok_and(|status| status.success()) {
            skip(test, "no PID namespace with a /proc of its own here");
            return None;
        }
        let pod = host.add_netns("pod");
        // The mark beside the run directory is this test's own, too.
        let run_dir = PathBuf::from(format!("/run/{}/rail-cni", host.id));
        host.set_node(json!({ "runDir": run_dir }));
        host.plan("p", "10.0.0.0/24", "10.0.0.1", &[]);
        Some(Place { host, pod, run_dir })
    }

    fn call(&self, verb: &str, container: &str) -> Call {
        self.host.call(verb, container, &self.pod).ipam()
    }

    /// The call where process 1 did `first`, and the caller then `change` in a mount namespace of
    /// its own.
    fn run(&self, call: &Call, first: &str, change: &str) -> Ran {
        let (dir, run) = (self.host.dir.path().display(), self.run_dir.display());
        let begin = format!("set -e; dir={dir}; runDir={run}");
        let inner = format!("{begin}; {change}; \"$@\"");
        let script = format!(
            "{begin}; {first}; unshare --mount --propagation private sh -c '{inner}' sh \"$@\" || exit $?; exit 0"
        );
        let wrapper: Vec<&str> = CONTAINER
            .into_iter()
            .chain(["sh", "-c", &script, "sh"])
            .collect();
        call.clone().under(&wrapper).run(&network())
    }

    #[track_caller]
    fn works(&self, first: &str, change: &str) {
        self.run(&self.call("STATUS", ""), first, change).ok();
        self.run(&self.call("ADD", "c1"), first, change).ok();
        assert!(self.run_dir.join("leases/_table").exists());
        self.run(&self.call("GC", "").var("CNI_NETNS", ""), first, change)
            .ok();
        self.run(&self.call("DEL", "c1"), first, change).ok();
        self.run(&self.call("DEL", "c1"), first, change).ok();
        fs::remove_dir_all(&self.run_dir).unwrap();
        // As after a boot.
        let _ = fs::remove_file(self.run_dir.with_extension("begun"));
    }

    /// Every call is refused without a write, and the error names the mounts that it takes. A DEL
    /// that finds nothing does not succeed.
    #[track_caller]
    fn is_refused(&self, first: &str, change: &str, why: &str) {
        for (verb, code) in [("STATUS", 50), ("ADD", 5), ("GC", 5), ("DEL", 5)] {
            let netns = if verb == "GC" {
                ""
            } else {
                self.pod.to_str().unwrap()
            };
            let ran = self.run(
                &self.call(verb, "c1").var("CNI_NETNS", netns),
                first,
                change,
            );
            let msg = ran.error(code)["msg"].as_str().unwrap().to_owned();
            for part in [
                why,
                "HostToContainer",
                "/run/netns",
                self.run_dir.to_str().unwrap(),
            ] {
                assert!(msg.contains(part), "{verb}: no {part:?} in {msg}");
            }
        }
        let released = self.run(
            &self.call("", "").args(&["release", "--dead"]),
            first,
            change,
        );
        assert_eq!(released.status, 1, "{released:?}");
        assert!(released.stderr.contains(why), "{released:?}");
        assert!(!self.run_dir.exists());
    }
}

const ANOTHER: &str = "process 1";

#[test]
fn a_run_folder_that_process_1_does_not_see_is_refused() {
    let Some(place) = Place::new("place::own") else {
        return;
    };
    place.is_refused("true", "mount -t tmpfs tmpfs /run", ANOTHER);
    place.is_refused(
        "true",
        "mount -t tmpfs tmpfs /run; mkdir -p $runDir/leases",
        ANOTHER,
    );
}

/// A lease of 0.1.0 in such a place is released there.
#[test]
fn del_in_a_container_gives_back_what_it_finds_there() {
    let Some(place) = Place::new("place::del") else {
        return;
    };
    place.run(&place.call("ADD", "c1"), "true", "true").ok();
    let own = "mkdir -p $dir/own; cp -a $runDir/. $dir/own; mount --bind $dir/own $runDir";
    place.run(&place.call("ADD", "c2"), "true", own).error(5);
    let del = place.call("DEL", "c1");
    place.run(&del, "true", own).ok();
    let leases = place.host.path("own/leases");
    assert!(leases.exists() && !leases.join("node-1").exists());
    place.run(&del, "true", "true").ok();
    place.run(&del, "true", own).error(5);
}

/// Process 1 is the container's own here.
#[test]
fn a_run_folder_on_an_overlay_is_refused() {
    let Some(place) = Place::new("place::overlay") else {
        return;
    };
    // On a tmpfs, for the folder of the test may itself be on an overlay.
    let overlay = "mkdir -p $dir/o; mount -t tmpfs tmpfs $dir/o; mkdir $dir/o/lower $dir/o/upper $dir/o/work; \
                   mount -t overlay -olowerdir=$dir/o/lower,upperdir=$dir/o/upper,workdir=$dir/o/work overlay /run";
    let probe = place.run(&place.call("VERSION", ""), overlay, "true");
    if probe.status != 0 {
        return skip(
            "place::overlay",
            &format!("no overlay can be mounted here: {}", probe.stderr.trim()),
        );
    }
    place.is_refused(overlay, "true", "overlay");
}

/// The host's namespaces, and a /run of its own: the first mount that is thought of.
#[test]
fn a_run_folder_on_another_file_system_than_the_namespaces_is_refused() {
    let Some(place) = Place::new("place::netns") else {
        return;
    };
    let mounts = "mkdir -p $dir/netns; mount --rbind /run/netns $dir/netns; mount -t tmpfs tmpfs /run; \
                  mkdir /run/netns; mount --rbind $dir/netns /run/netns";
    let (add, why) = (
        place.call("ADD", "c1"),
        "is on another file system than /run/netns",
    );
    let msg = place.run(&add, mounts, "true").error(5)["msg"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(msg.contains(why), "{msg}");
    assert!(!place.run_dir.exists());
    // With the host's run folder it is right.
    let mounts = format!(
        "mkdir -p $runDir $dir/run; mount --bind $runDir $dir/run; {mounts}; mkdir -p $runDir; mount --bind $dir/run $runDir"
    );
    place.works(&mounts, "true");
}

#[test]
fn the_host_and_all_who_see_its_run_may_work() {
    let Some(place) = Place::new("place::host") else {
        return;
    };
    for (first, change) in [
        ("true", "true"),
        // kubens, and services with PrivateTmp.
        ("true", "mount -t tmpfs tmpfs /mnt"),
        (
            "true",
            "mkdir -p $dir/bind; mount --bind /run $dir/bind; mount --rbind /run /run",
        ),
    ] {
        place.works(first, change);
    }
    // If process 1 cannot be looked at, there is no verdict.
    if fs::metadata("/proc/1/root/").is_err() {
        place.call("ADD", "c1").run(&network()).ok();
        place.call("DEL", "c1").run(&network()).ok();
    }
}

/// It changes its root to the host's.
#[test]
fn thick_multus_may_work() {
    let Some(place) = Place::new("place::chroot") else {
        return;
    };
    let chroot = "mkdir -p $dir/host; mount --rbind / $dir/host; mount -t tmpfs tmpfs /run; set -- chroot $dir/host \"$@\"";
    place.works("true", chroot);
}
