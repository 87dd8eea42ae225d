//! Links that a pod has on its rail, or on a free VF, in a namespace where nobody looks. The kernel
//! says that they are there, wherever that is, and no pod shares its frames with them.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use crate::harness::{self, Host, Ran, Sleeper, rail, skip, vf_address, with};

/// A VF with a network for it, and two pods.
struct Bench {
    host: Host,
    pods: [PathBuf; 2],
    config: Value,
}

impl Bench {
    fn new(test: &str) -> Option<Bench> {
        let test = format!("hidden::{test}");
        let host = Host::new(&test)?;
        host.add_rail(0);
        host.make_vf(0, "mlx5_core");
        let pods = [host.add_netns("c1"), host.add_netns("c2")];
        let config = with(rail(0), json!({"device": null, "deviceID": vf_address(0)}));
        let made = Command::new("ip")
            .args([
                "link", "add", "link", "vf0", "name", "try", "type", "macvlan",
            ])
            .output();
        if !made.unwrap().status.success() {
            skip(&test, "this kernel has no macvlan");
            return None;
        }
        host.ip("link del try");
        Some(Bench { host, pods, config })
    }

    fn cni(&self, verb: &str, pod: usize) -> Ran {
        self.host
            .call(verb, ["c1", "c2"][pod], &self.pods[pod])
            .run(&self.config)
    }

    /// The first pod's macvlan on its rail goes into `netns`, a file or the id of a process.
    fn hide(&self, netns: &str) {
        self.cni("ADD", 0).ok();
        self.host.ip_in(
            &self.pods[0],
            "link add mv link net1 type macvlan mode private",
        );
        self.host
            .ip_in(&self.pods[0], &format!("link set mv netns {netns}"));
    }

    /// The pod's life ends, and the next one has the rail for itself.
    fn ends_with_its_pod(&self, links: impl Fn() -> String) {
        assert!(links().contains("mv@"), "{}", links());
        let deleted = self.cni("DEL", 0).ok();
        assert!(!links().contains("mv@"), "{deleted:?}");
        self.cni("ADD", 1).ok();
        self.cni("DEL", 1).ok();
    }
}

fn links_at(netns: &str) -> String {
    let shown = Command::new("nsenter")
        .arg(format!("--net={netns}"))
        .args(["ip", "link"])
        .output()
        .unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

/// A process that keeps a namespace. It has said that it does.
struct Keeper(Child);

impl Keeper {
    fn new(mut command: Command) -> Keeper {
        let mut keeper = Keeper(command.stdout(Stdio::piped()).spawn().unwrap());
        keeper
            .0
            .stdout
            .take()
            .unwrap()
            .read_exact(&mut [0])
            .unwrap();
        keeper
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_link_that_only_a_thread_keeps_goes_with_its_pod() {
    let Some(bench) = Bench::new("thread") else {
        return;
    };
    let (tell, told) = mpsc::channel();
    let (done, wait) = mpsc::channel::<()>();
    let keeper = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        tell.send(nix::unistd::gettid()).unwrap();
        wait.recv().unwrap_err();
    });
    let thread = told.recv().unwrap();
    bench.hide(&thread.to_string());
    bench.ends_with_its_pod(|| {
        links_at(&format!(
            "/proc/{}/task/{thread}/ns/net",
            std::process::id()
        ))
    });
    drop(done);
    keeper.join().unwrap();
}

#[test]
fn a_link_that_only_an_open_file_keeps_goes_with_its_pod() {
    let Some(bench) = Bench::new("file") else {
        return;
    };
    let kept = bench.host.add_netns("kept");
    let sleeper = Sleeper::new(Some(&kept));
    let script = format!("exec 9<{}; echo; exec sleep 600", sleeper.netns().display());
    let mut keeper = Command::new("sh");
    keeper.args(["-c", &script]);
    let keeper = Keeper::new(keeper);
    bench.hide(name(&kept));
    bench.host.delete_netns(&kept);
    drop(sleeper);
    let file = format!("/proc/{}/fd/9", keeper.0.id());
    bench.ends_with_its_pod(|| links_at(&file));
    drop(keeper);
}

fn name(netns: &Path) -> &str {
    netns.file_name().unwrap().to_str().unwrap()
}

/// A namespace that only a mount in another mount namespace keeps: no search finds it.
struct Nowhere {
    keeper: Keeper,
    kept: PathBuf,
}

impl Nowhere {
    fn new(host: &Host) -> Nowhere {
        let kept = host.add_netns("kept");
        let mut keeper = Command::new("unshare");
        // At another place: with the file that is mounted on, the kernel ends a mount in every
        // mount namespace.
        let script = "mount -t tmpfs t /mnt; touch /mnt/netns; mount --bind \"$0\" /mnt/netns; echo; exec sleep 600";
        keeper
            .args(["--mount", "--propagation", "private", "sh", "-ec", script])
            .arg(&kept);
        Nowhere {
            keeper: Keeper::new(keeper),
            kept,
        }
    }

    fn links(&self) -> String {
        let mut shown = Command::new("nsenter");
        shown.args([
            "-t",
            &self.keeper.0.id().to_string(),
            "-m",
            "nsenter",
            "--net=/mnt/netns",
            "ip",
            "link",
        ]);
        String::from_utf8(shown.output().unwrap().stdout).unwrap()
    }
}

/// This VF's driver cannot be bound again: it stays with nobody until the link is gone.
#[test]
fn a_rail_whose_frames_go_nobody_knows_where_is_not_handed_out() {
    let Some(bench) = Bench::new("nowhere") else {
        return;
    };
    let before = bench.host.snapshot();
    let nowhere = Nowhere::new(&bench.host);
    bench.hide(name(&nowhere.kept));
    bench.host.delete_netns(&nowhere.kept);
    bench.cni("DEL", 0).ok();
    assert!(nowhere.links().contains("mv@"));
    assert!(harness::left(&bench.host.only_pending()).contains(&"links".to_owned()));
    bench.cni("ADD", 1).error(11);
    drop(nowhere.keeper);
    bench.host.make_due();
    until(|| bench.cni("ADD", 1).status == 0);
    bench.cni("DEL", 1).ok();
    assert_eq!(bench.host.snapshot(), before);
}

/// As a pod with CAP_NET_ADMIN makes it by the number that the node's namespace has in its own.
#[test]
fn no_pod_starts_on_a_free_vf_whose_frames_go_nobody_knows_where() {
    let Some(bench) = Bench::new("free") else {
        return;
    };
    let before = bench.host.snapshot();
    let nowhere = Nowhere::new(&bench.host);
    bench.host.ip(&format!(
        "link add mv link vf0 netns {} type macvlan mode passthru",
        name(&nowhere.kept)
    ));
    // While it has a name it is found, and is somebody's.
    bench.cni("ADD", 1).error(7);
    bench.host.delete_netns(&nowhere.kept);
    bench.cni("ADD", 1).error(11);
    assert!(nowhere.links().contains("mv@"));
    assert!(bench.host.ip("link show vf0").contains("vf0"));
    assert!(
        !bench
            .host
            .ip_in(&bench.pods[1], "link show")
            .contains("net1")
    );
    drop(nowhere.keeper);
    bench.host.make_due();
    until(|| bench.cni("ADD", 1).status == 0);
    bench.cni("DEL", 1).ok();
    assert_eq!(bench.host.snapshot(), before);
}

/// The kernel takes a namespace apart a moment after its last user.
fn until(is_so: impl Fn() -> bool) {
    for _ in 0..100 {
        if is_so() {
            return;
        }
        thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it did not come to be so");
}

/// A pod with CAP_NET_ADMIN makes a macvlan on the rail of another, which runs. The pod's own is
/// its own business.
#[test]
fn check_reports_a_link_of_another_namespace_on_a_running_rail() {
    let Some(bench) = Bench::new("tapped") else {
        return;
    };
    let result = bench.cni("ADD", 0).ok().json();
    let [victim, other] = &bench.pods;
    let check = || {
        let config = with(bench.config.clone(), json!({ "prevResult": result }));
        bench.host.call("CHECK", "c1", victim).run(&config)
    };
    let make = "link add mv link net1 type macvlan mode";
    for mode in ["source", "private"] {
        bench.host.ip_in(victim, &format!("{make} {mode}"));
        check().ok();
        let netns = other.file_name().unwrap().to_str().unwrap();
        bench
            .host
            .ip_in(victim, &format!("link set mv netns {netns}"));
        let msg = check().error(100)["msg"].to_string();
        assert!(msg.contains("takes frames of 0000:01:10.0"), "{msg}");
        bench.host.ip_in(other, "link del mv");
        check().ok();
    }
    bench.cni("DEL", 0).ok();
}
