//! `railctl env`, in a pod: by what rail-cni has left there, and without a privilege.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{self, Host, Ran, Sleeper, rail, run, vf_address, with};

/// A pod on the rails 0 and 1, whose VFs have RDMA devices, with eth0 as the cluster's network. The
/// plan says where the cables end.
fn trainer(test: &str) -> Option<(Host, PathBuf)> {
    let host = Host::new(test)?;
    let pod = host.add_netns("pod");
    host.ip_in(&pod, "link add eth0 type veth peer name host0");
    host.ip_in(&pod, "link set eth0 up");
    host.ip_in(&pod, "addr add 10.244.0.7/24 dev eth0");
    host.ip_in(&pod, "route add default via 10.244.0.1");
    for number in 0..2 {
        host.add_rail(number);
        host.make_vf(number, "mlx5_core");
        put_rdma(&host, number, 3);
    }
    let port = |rail: u8| json!({"gateway": format!("172.{}.0.1", 16 + 2 * rail), "ports": [{"leaf": format!("leaf-su0-r{rail}"), "port": "swp7"}]});
    let ports = json!({"rail-0": port(0), "rail-1": port(1)});
    fs::write(host.path("store/node-1/leaf-ports"), ports.to_string()).unwrap();
    for number in 0..2 {
        add(&host, &pod, number, &rail(number));
    }
    Some((host, pod))
}

/// Rail R becomes net(R+1), also in the sysfs of files.
fn add(host: &Host, pod: &Path, number: u8, config: &Value) {
    let ifname = format!("net{}", number + 1);
    host.call("ADD", "c1", pod).ifname(&ifname).run(config).ok();
    show_as(host, number, &ifname);
}

fn show_as(host: &Host, number: u8, ifname: &str) {
    let folder = host.path(&format!("sys/class/net/{ifname}"));
    fs::create_dir_all(&folder).unwrap();
    symlink(
        host.path(&format!("sys/devices/{}", vf_address(number))),
        folder.join("device"),
    )
    .unwrap();
}

/// The VF of rail R has the RDMA device mlx5_(R+4), with a GID of its address.
pub fn put_rdma(host: &Host, number: u8, index: u32) {
    let device = host.path(&format!(
        "sys/devices/{}/infiniband/mlx5_{}",
        vf_address(number),
        number + 4
    ));
    for folder in [
        "ports/1/gids",
        "ports/1/gid_attrs/types",
        "ports/1/gid_attrs/ndevs",
    ] {
        fs::create_dir_all(device.join(folder)).unwrap();
    }
    let put = |file: &str, text: &str| fs::write(device.join(file), text).unwrap();
    put("node_type", "1: CA\n");
    put("ports/1/link_layer", "Ethernet\n");
    put(&format!("ports/1/gid_attrs/types/{index}"), "RoCE v2\n");
    put(
        &format!("ports/1/gid_attrs/ndevs/{index}"),
        &format!("net{}\n", number + 1),
    );
    let gid = format!(
        "0000:0000:0000:0000:0000:ffff:ac{:02x}:0000\n",
        16 + 2 * number
    );
    put(&format!("ports/1/gids/{index}"), &gid);
}

/// As nobody, with nothing of the environment but the node.json that names the sysfs of files.
fn env_with(host: &Host, pod: &Path, args: &[&str], variables: &[(&str, &str)]) -> Ran {
    fs::set_permissions(
        host.dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", pod.display()));
    command.args(["setpriv", "--bounding-set=-all", "--inh-caps=-all"]);
    // Without root there is no other user.
    if fs::read_to_string("/proc/self/uid_map")
        .unwrap()
        .split_whitespace()
        .nth(2)
        != Some("1")
    {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    command
        .arg(harness::railctl())
        .arg("env")
        .args(args)
        .env_clear();
    command
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"));
    command
        .envs(variables.iter().copied())
        .stdin(std::process::Stdio::piped());
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    run(command, b"")
}

fn env(host: &Host, pod: &Path, args: &[&str]) -> Ran {
    env_with(host, pod, args, &[])
}

/// `ip` splits the words of an alias; this does not.
#[track_caller]
fn set_alias(namespace: &[&str], name: &str, alias: &str) {
    let set = Command::new("ip")
        .args(namespace)
        .args(["link", "set", name, "alias", alias])
        .status();
    assert!(set.unwrap().success());
}

#[test]
fn a_pod_knows_its_rails_without_a_privilege() {
    let Some((host, pod)) = trainer("env::rails") else {
        return;
    };
    let told = env(&host, &pod, &["--output", "json"]).ok();
    assert_eq!(told.stderr, "");
    let rail_of = |number: u8| {
        json!({"rail": number, "plane": null, "network": format!("rail-{number}"), "interface": format!("net{}", number + 1),
            "addresses": [format!("172.{}.0.0/31", 16 + 2 * number)],
            "rdma": {"device": format!("mlx5_{}", number + 4), "port": 1, "gidIndex": 3},
            "leafPorts": [{"leaf": format!("leaf-su0-r{number}"), "port": "swp7"}]})
    };
    let variables = json!({"NCCL_IB_HCA": "=mlx5_4:1,mlx5_5:1", "NVSHMEM_HCA_LIST": "mlx5_4:1,mlx5_5:1",
        "UCX_NET_DEVICES": "mlx5_4:1,mlx5_5:1", "NCCL_SOCKET_IFNAME": "=eth0",
        "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", "CCL_KVS_IFACE": "eth0"});
    assert_eq!(
        told.json(),
        json!({"rails": [rail_of(0), rail_of(1)], "variables": variables, "unknown": []})
    );
    let conf = "# net1: rail 0 network rail-0 leaf leaf-su0-r0 port swp7\n# net2: rail 1 network rail-1 leaf leaf-su0-r1 port swp7\n\
        NCCL_IB_HCA==mlx5_4:1:0,mlx5_5:1:1\nNCCL_SOCKET_IFNAME==eth0\n";
    assert_eq!(
        env(&host, &pod, &["--format", "nccl.conf", "--nccl", "2.30"])
            .ok()
            .stdout,
        conf
    );
    let older = env(&host, &pod, &["--format", "nccl.conf", "--nccl", "2.19.3"])
        .ok()
        .stdout;
    assert!(
        older.contains("\nNCCL_IB_HCA==mlx5_4:1,mlx5_5:1\nNCCL_IB_GID_INDEX=3\n"),
        "{older}"
    );
    let sh = env(&host, &pod, &["--format", "sh"]).ok().stdout;
    assert!(
        sh.lines()
            .all(|line| line.starts_with("export ") && line.ends_with('\'')),
        "{sh}"
    );
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(
        folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let file = folder.path().join("nccl.conf");
    env(
        &host,
        &pod,
        &[
            "--format",
            "nccl.conf",
            "--nccl",
            "2.30",
            "--out",
            file.to_str().unwrap(),
        ],
    )
    .ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), conf);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// The alias of a plane is by the name that `plan` gives its network.
#[test]
fn a_network_of_a_plane_says_which() {
    let Some((host, pod)) = trainer("env::planes") else {
        return;
    };
    host.call("DEL", "c1", &pod)
        .ifname("net2")
        .run(&rail(1))
        .ok();
    fs::remove_dir_all(host.path("sys/class/net/net2")).unwrap();
    // Rail 0 on plane 1 has the number 8.
    let plane = with(rail(1), json!({"name": "rail-0-plane-1", "rail": 8}));
    add(&host, &pod, 1, &plane);
    let conf = env(
        &host,
        &pod,
        &["--format", "nccl.conf", "--nccl", "2.30", "--rails", "0"],
    )
    .ok()
    .stdout;
    assert!(
        conf.contains("NCCL_IB_HCA==mlx5_4:1:0,mlx5_5:1:0:1\n"),
        "{conf}"
    );
}

#[test]
fn what_the_job_renames_has_its_new_name() {
    let Some((host, pod)) = trainer("env::renamed") else {
        return;
    };
    host.ip_in(&pod, "link set net2 down");
    host.ip_in(&pod, "link set net2 name roce1");
    show_as(&host, 1, "roce1");
    fs::write(
        host.path(&format!(
            "sys/devices/{}/infiniband/mlx5_5/ports/1/gid_attrs/ndevs/3",
            vf_address(1)
        )),
        "roce1\n",
    )
    .unwrap();
    let told = env(&host, &pod, &["--output", "json"]).ok().json();
    assert_eq!(
        (
            &told["rails"][1]["interface"],
            &told["rails"][1]["rdma"]["gidIndex"]
        ),
        (&json!("roce1"), &json!(3))
    );
    // The kernel lets a name have quotes.
    host.ip_in(&pod, "link set roce1 name a'$(id)");
    let told = env(&host, &pod, &["--format", "sh"]).ok();
    assert!(
        told.stdout.contains("NCCL_IB_HCA='=mlx5_4:1'\n") && !told.stdout.contains("id"),
        "{told:?}"
    );
    assert!(!told.stderr.is_empty());
}

/// A pod with CAP_NET_ADMIN can write the alias.
#[test]
fn a_forged_alias_reaches_no_file() {
    let Some((host, pod)) = trainer("env::forged") else {
        return;
    };
    for forged in [
        "rail 1\nNCCL_DEBUG=INFO",
        "rail 1 network a'b",
        "rail 1 leaf $(id)",
        "rail 01",
        "rail 1 leaf \u{1b}[2J",
        "rail 1 ",
        "rail x",
    ] {
        set_alias(
            &["-n", pod.file_name().unwrap().to_str().unwrap()],
            "net2",
            forged,
        );
        for form in ["nccl.conf", "sh"] {
            let told = env(&host, &pod, &["--format", form]).ok();
            assert!(
                told.stdout.contains("=mlx5_4:1") && !told.stdout.contains("mlx5_5"),
                "{forged:?}: {told:?}"
            );
            assert!(
                !told.stdout.contains("id)") && !told.stdout.contains("DEBUG"),
                "{forged:?}: {told:?}"
            );
            assert_eq!(told.stderr.lines().count(), 1, "{forged:?}: {told:?}");
            assert!(!told.stderr.contains('\u{1b}'), "{told:?}");
        }
    }
    // Of another rail: which of the two is right, nobody knows.
    for (forged, is_clear) in [
        ("rail 0 network rail-0", false),
        ("rail 1 network storage-1", false),
        ("rail 1 network rail-1", true),
    ] {
        set_alias(
            &["-n", pod.file_name().unwrap().to_str().unwrap()],
            "net2",
            forged,
        );
        let told = env(&host, &pod, &["--format", "nccl.conf"]);
        assert_eq!(
            (told.status == 0, told.stdout.is_empty()),
            (is_clear, !is_clear),
            "{forged}: {told:?}"
        );
    }
}

#[test]
fn a_pod_without_rails_or_without_rdma_gets_no_wrong_line() {
    let Some((host, pod)) = trainer("env::none") else {
        return;
    };
    let empty = host.add_netns("empty");
    let told = env(&host, &empty, &["--format", "nccl.conf"]);
    assert_eq!((told.status, told.stdout.as_str()), (1, ""));
    // A name that would be two entries of the list.
    let device = host.path(&format!("sys/devices/{}/infiniband", vf_address(1)));
    fs::rename(device.join("mlx5_5"), device.join("a,mlx5_9")).unwrap();
    let told = env(&host, &pod, &["--format", "nccl.conf"]).ok();
    assert!(told.stdout.contains("NCCL_IB_HCA==mlx5_4:1\n"), "{told:?}");
    for number in 0..2 {
        fs::remove_dir_all(host.path(&format!("sys/devices/{}/infiniband", vf_address(number))))
            .unwrap();
    }
    let told = env(&host, &pod, &["--format", "nccl.conf"]).ok();
    assert!(
        !told.stdout.contains("NCCL_IB_HCA") && told.stdout.contains("NCCL_SOCKET_IFNAME==eth0\n"),
        "{told:?}"
    );
    assert_eq!(told.stderr.lines().count(), 3, "{told:?}");
    host.ip_in(&pod, "route del default");
    let told = env(&host, &pod, &["--format", "sh"]).ok();
    assert_eq!(told.stdout, "");
}

#[test]
fn each_difference_of_a_job_is_named() {
    let Some((host, pod)) = trainer("env::check") else {
        return;
    };
    let good = [
        ("NCCL_IB_HCA", "=mlx5_5:1,mlx5_4:1"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
    ];
    let check = |variables: &[(&str, &str)]| {
        let ran = env_with(&host, &pod, &["--check", "--output", "json"], variables);
        let named = ran.json()["differences"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["variable"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>();
        (ran.status, named)
    };
    assert_eq!(check(&good), (0, vec![]));
    assert_eq!(
        check(&[("NCCL_IB_HCA", "^mlx5_4"), good[1]]),
        (1, vec!["NCCL_IB_HCA".to_owned()])
    );
    assert_eq!(
        check(&[]),
        (
            1,
            vec!["NCCL_IB_HCA".to_owned(), "NCCL_SOCKET_IFNAME".to_owned()]
        )
    );
    let file = host.path("nccl.conf");
    fs::write(
        &file,
        env(&host, &pod, &["--format", "nccl.conf"]).ok().stdout,
    )
    .unwrap();
    assert_eq!(
        check(&[("NCCL_CONF_FILE", file.to_str().unwrap())]),
        (0, vec![])
    );
    // A process of another namespace has other rails.
    let other = Sleeper::new(None);
    let told = env(&host, &pod, &["--check", "--pid", &other.pid().to_string()]);
    assert_eq!((told.status, told.stdout.as_str()), (1, ""));
    assert!(!told.stderr.is_empty());
}

/// It is one of the settings of a netdev: DEL restores it, and one of ours that was left over is
/// not taken for the host's.
#[test]
fn the_hosts_alias_comes_back_and_a_rails_does_not_stay() {
    let Some(host) = Host::new("env::alias") else {
        return;
    };
    host.add_rail(0);
    let (pod, next) = (host.add_netns("pod"), host.add_netns("next"));
    let alias_of = |netns: Option<&Path>, name: &str| {
        host.json(netns, &format!("link show {name}"))[0]["ifalias"].clone()
    };
    for of_host in [json!(null), json!("uplink of the rack")] {
        if let Some(text) = of_host.as_str() {
            set_alias(&[], "vf0", text);
        }
        host.cni("ADD", "c1", &pod, &rail(0)).ok();
        assert_eq!(alias_of(Some(&pod), "net1"), "rail 0 network rail-0");
        host.cni("DEL", "c1", &pod, &rail(0)).ok();
        assert_eq!(alias_of(None, "vf0"), of_host);
        // A rail of a dead pod comes home as the kernel hands it back.
        let again = host.add_netns(if of_host.is_null() { "lost" } else { "lost2" });
        host.cni("ADD", "c2", &again, &rail(0)).ok();
        host.hand_back(&again, "net1");
        host.cni("ADD", "c3", &next, &rail(0)).ok();
        host.cni("DEL", "c3", &next, &rail(0)).ok();
        assert_eq!(alias_of(None, "vf0"), of_host);
    }
    set_alias(&[], "vf0", "rail 7 network old");
    host.cni("ADD", "c4", &pod, &rail(0)).ok();
    host.cni("DEL", "c4", &pod, &rail(0)).ok();
    assert_eq!(alias_of(None, "vf0"), json!(null));
}

/// In a pod the kubelet writes /etc/hosts, and the controller the host name.
#[test]
fn a_pod_of_a_job_names_the_others() {
    let Some((host, pod)) = trainer("env::hosts") else {
        return;
    };
    let hosts = host.path("hosts");
    fs::write(
        &hosts,
        "127.0.0.1 localhost\n10.244.0.7\tjob-1.job.ai.svc.cluster.local\tjob-1\n",
    )
    .unwrap();
    let (file, conf) = (host.path("hostfile"), host.path("nccl.conf"));
    let run_as = |name: &str, args: &str| {
        let script = format!(
            "mount --bind {} /etc/hosts && hostname {name} && exec {} env {args}",
            hosts.display(),
            harness::railctl().display()
        );
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", pod.display()))
            .args(["unshare", "-mu", "sh", "-c", &script]);
        command
            .env("RAIL_CNI_NODE_CONFIG", host.path("node.json"))
            .stdin(std::process::Stdio::piped());
        command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        run(command, b"")
    };
    let both = format!(
        "--format nccl.conf --out {} --hostfile {} --slots 8",
        conf.display(),
        file.display()
    );
    // The number of hosts is unknown.
    assert_eq!(run_as("job-1", &both).status, 1);
    assert!(!file.exists() && !conf.exists());
    run_as("job-1", &format!("{both} --hosts 2")).ok();
    let names = "job-0.job.ai.svc.cluster.local slots=8\njob-1.job.ai.svc.cluster.local slots=8\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), names);
    assert!(
        fs::read_to_string(&conf)
            .unwrap()
            .contains("NCCL_IB_HCA==mlx5_4:1,mlx5_5:1\n")
    );
    assert_eq!(
        run_as("job-1", "--hostfile - --hosts 2 --slots 8")
            .ok()
            .stdout,
        names
    );
    let other = run_as("launcher", "--hostfile - --hosts 2");
    assert_eq!((other.status, other.stdout.as_str()), (1, ""));
    assert_eq!(run_as("job-1", "--hosts 2").status, 2);
}
