//! `railctl status`, `check` and `doctor`, as docs/operations.md shows them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{self, Host, Ran, Sleeper, pf_address, rail, vf_address, with};

mod broken;
mod cables;
mod check;
mod devices;
mod discover;
mod doctor;
mod env;
mod foretold;
mod moves;
mod preflight;
mod status;
mod vfs;
mod wait;

fn run(host: &Host, args: &[&str]) -> Ran {
    let mut command = Command::new(harness::railctl());
    command
        .args(args)
        .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
    command.output().unwrap().into()
}

/// Two rails: their VFs are veths, so are their PFs, with a carrier.
fn two_rails(test: &str) -> Option<Host> {
    let host = Host::new(test)?;
    let rails: Vec<_> = (0..2)
        .map(|rail| json!({"rail": rail, "pf": pf_address(rail)}))
        .collect();
    host.set_node(json!({ "rails": rails }));
    for rail in 0..2 {
        host.add_rail(rail);
        host.make_vf(rail, "mlx5_core");
        let leaf = host.leaf();
        host.ip(&format!(
            "link add pf{rail} mtu 9216 type veth peer name port{rail} netns {leaf}"
        ));
        host.ip(&format!("link set pf{rail} up"));
        host.ip(&format!("-n {leaf} link set port{rail} mtu 9216 up"));
        let pf = host.path("sys/devices").join(pf_address(rail));
        fs::write(pf.join("sriov_totalvfs"), "8\n").unwrap();
        std::os::unix::fs::symlink("../../bus/pci/drivers/mlx5_core", pf.join("driver")).unwrap();
    }
    Some(host)
}

/// Lists the test's folder, by path and content: a command that only looks must leave it alone.
fn files(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            all.push((path.clone(), Vec::new()));
            all.extend(files(&path));
        } else {
            all.push((path.clone(), fs::read(&path).unwrap_or_default()));
        }
    }
    all.sort();
    all
}

/// A pod that had rail 0 and is gone, but for a process that keeps its namespace, with the device
/// in it.
fn kept_away(host: &Host) -> Sleeper {
    let pod = host.add_netns("gone");
    let mut config = with(rail(0), json!({ "deviceID": vf_address(0) }));
    config.as_object_mut().unwrap().remove("device");
    host.cni("ADD", "gone", &pod, &config).ok();
    let process = Sleeper::new(Some(&pod));
    fs::remove_dir(host.path("sys/devices").join(vf_address(0)).join("net/vf0")).unwrap();
    host.delete_netns(&pod);
    process
}
