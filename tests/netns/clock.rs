//! Files of the run directory that are dated a year before or after now, as they are once the clock
//! of the node has been set, and a /run from an image of an earlier boot.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::harness::{Host, rail, with};
use crate::programs::RAIL_IPAM;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// In a boot that lasted ten years.
const LATE: Duration = Duration::from_secs(3650 * 24 * 3600);

/// All files below `folder`.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let is_folder = entry.file_type().unwrap().is_dir();
            if is_folder {
                folders.push(entry.path())
            } else {
                files.push(entry.path())
            }
        }
    }
    files
}

/// Gives all files of the run directory this time.
fn date(host: &Host, time: SystemTime) {
    for file in files_below(&host.path("run")) {
        let times = FileTimes::new().set_modified(time).set_accessed(time);
        File::open(file).unwrap().set_times(times).unwrap();
    }
}

#[test]
fn files_dated_a_year_before_or_after_cost_no_pod_its_rail_and_no_rail_its_pod() {
    for time in [SystemTime::now() - YEAR, SystemTime::now() + YEAR] {
        let Some(host) = Host::new("clock::dated") else {
            return;
        };
        host.add_rail(0);
        let before = host.snapshot();
        let (pod, next) = (host.add_netns("pod"), host.add_netns("next"));
        let config = rail(0);
        // So many lock files that calls remove old ones.
        fs::create_dir_all(host.path("run/locks")).unwrap();
        for number in 0..300 {
            fs::write(
                host.path(&format!("run/locks/attachment-gone{number}:net1")),
                "1",
            )
            .unwrap();
        }
        let added = host.cni("ADD", "c1", &pod, &config).ok().json();
        date(&host, time);
        host.cni(
            "CHECK",
            "c1",
            &pod,
            &with(config.clone(), json!({ "prevResult": added })),
        )
        .ok();
        let status = host
            .call("", "", &pod)
            .args(&["status", "--output", "json"])
            .run(&Value::Null)
            .json();
        assert_eq!(status["attachments"][0]["state"], "live", "{status}");
        let all = json!({"cni.dev/valid-attachments": []});
        host.cni("GC", "c1", &pod, &with(config.clone(), all)).ok();
        let reaped = host
            .call("", "", &pod)
            .args(&["reap"])
            .run(&Value::Null)
            .ok();
        assert!(reaped.stdout.contains("1 in use"), "{reaped:?}");
        host.cni("ADD", "c2", &next, &config).error(11);
        host.cni("DEL", "c1", &pod, &config).ok();
        assert_eq!(host.snapshot(), before);

        // A dead pod's device goes to the next one.
        host.cni("ADD", "c3", &pod, &config).ok();
        date(&host, time);
        host.hand_back(&pod, "net1");
        host.cni("ADD", "c2", &next, &config).ok();
        date(&host, time);
        host.cni("DEL", "c2", &next, &config).ok();
        host.cni("DEL", "c3", &pod, &config).ok();
        assert_eq!(host.snapshot(), before);
    }
}

/// The note of a DEL stops an ADD that is still waiting. So many lock files that calls remove old
/// ones, and all are dated a year before the next call.
#[test]
fn a_lock_file_dated_a_year_before_keeps_the_note_of_a_del() {
    let Some(host) = Host::new("clock::note") else {
        return;
    };
    host.add_rail(0);
    let pod = host.add_netns("pod");
    host.cni("ADD", "c1", &pod, &rail(0)).ok();
    host.cni("DEL", "c1", &pod, &rail(0)).ok();
    let lock = |container: &str| host.path(&format!("run/locks/attachment-{container}:net1"));
    let note = fs::read_to_string(lock("c1")).unwrap();
    // As old as the boot, of a boot before this one, and of an ADD that was never deleted.
    for number in 0..300 {
        fs::write(
            lock(&format!("gone{number}")),
            ["1", "9000000000000000000", ""][number % 3],
        )
        .unwrap();
    }
    date(&host, SystemTime::now() - YEAR);
    host.cni("DEL", "c2", &pod, &rail(0)).ok();
    assert_eq!(fs::read_to_string(lock("c1")).unwrap(), note);
    let left = fs::read_dir(host.path("run/locks")).unwrap().count();
    assert!(left < 256, "{left} lock files");
}

/// Every file that was in /run while a pod of an earlier boot had the rail. The times in it, which
/// count from the boot, are still to come.
#[test]
fn a_run_directory_of_an_earlier_boot_stops_no_pod() {
    let Some(host) = Host::new("clock::restored") else {
        return;
    };
    host.add_rail(0);
    host.add_rail(1);
    let (pod, next) = (host.add_netns("pod"), host.add_netns("next"));
    let broken = host.path("broken").display().to_string();
    let ipam = RAIL_IPAM;
    host.add_plugin(
        "stand-in",
        &format!("test $CNI_COMMAND = DEL && test -e {broken} && exit 3\nexec {ipam}"),
    );
    let before = host.snapshot();
    let config = rail(0);
    let owing = with(
        rail(1),
        json!({"ipam": {"type": "stand-in", "pool": "rail-1"}}),
    );

    // A debt, a living pod, and the time of a DEL.
    fs::write(&broken, "").unwrap();
    host.cni("ADD", "c1", &pod, &owing).ok();
    host.cni("DEL", "c1", &pod, &owing).ok();
    fs::remove_file(&broken).unwrap();
    let [debt] = &host.pending()[..] else {
        panic!("{:?}", host.pending())
    };
    let owed: Value = serde_json::from_slice(&fs::read(debt).unwrap()).unwrap();
    let debt = debt.clone();
    host.cni("ADD", "c2", &pod, &config).ok();
    let files = files_below(&host.path("run"));
    let image: Vec<_> = files
        .into_iter()
        .map(|file| (fs::read_to_string(&file).unwrap(), file))
        .collect();
    host.cni("DEL", "c2", &pod, &config).ok();

    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for (content, file) in image {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(
            file,
            content.replace(boot.trim(), "00000000-0000-0000-0000-000000000000"),
        )
        .unwrap();
    }
    let mut late = owed;
    late["owner"]["bootId"] = json!("00000000-0000-0000-0000-000000000000");
    for step in late["steps"].as_array_mut().unwrap() {
        if let Some(failed) = step["state"].get_mut("failed") {
            failed["next"] = json!(LATE.as_secs());
        }
    }
    fs::write(debt, late.to_string()).unwrap();
    for container in ["c2", "c3"] {
        let lock = host.path(&format!("run/locks/attachment-{container}:net1"));
        fs::write(lock, LATE.as_nanos().to_string()).unwrap();
    }

    // The container that podman starts again has its old name.
    for container in ["c2", "c3"] {
        host.cni("ADD", container, &next, &config).ok();
        host.cni("DEL", container, &next, &config).ok();
        assert!(
            host.pending().is_empty(),
            "{container}: {:?}",
            host.pending()
        );
    }
    assert_eq!(host.snapshot(), before);
}
