//! The examples in conf/ against the executables, and the documents against the code. Needs no
//! root: an ADD of rail-cni is stopped at its namespace (error 8), behind everything that judges
//! the configuration.
#![cfg(test)]
#![allow(missing_docs)]

#[path = "conf/field.rs"]
mod field;
#[path = "conf/files.rs"]
mod files;
#[path = "conf/migration.rs"]
mod migration;
#[path = "netns/programs.rs"]
mod programs;
#[path = "conf/tree.rs"]
mod tree;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use files::{blocks, files_below, in_backquotes, read, source_files};
use programs::{RAIL_CNI, RAIL_IPAM, railctl};
use rail_cni::attach::Attach;
use rail_cni::cni::{Args, Network, Plugin as _, Strictness};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

static RAILCTL: LazyLock<String> = LazyLock::new(|| railctl().display().to_string());
const POOLS: [&str; 2] = ["conf/pools/dual-stack.yaml", "conf/pools/spectrum-x.yaml"];

fn json_of(path: &str) -> Value {
    serde_json::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml_documents(text: &str) -> Result<Vec<Value>, yaml_serde::Error> {
    yaml_serde::Deserializer::from_str(text)
        .map(Value::deserialize)
        .collect()
}

/// A node as conf/node.json describes it, with everything that it writes in a temporary folder.
struct Bench {
    temp: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        let mut node = json_of("conf/node.json");
        for pf in pfs(&node) {
            fs::create_dir_all(at("sys/devices").join(&pf)).unwrap();
            fs::create_dir_all(at("sys/bus/pci/devices")).unwrap();
            symlink(
                at("sys/devices").join(&pf),
                at("sys/bus/pci/devices").join(&pf),
            )
            .unwrap();
        }
        fs::create_dir_all(at("sys/class/net")).unwrap();
        node["nodeName"] = json!("worker-gpu-0");
        node["storeDir"] = json!(at("store"));
        node["runDir"] = json!(at("run"));
        node["sysfsRoot"] = json!(at("sys"));
        node["log"]["file"] = json!(at("log"));
        fs::write(at("node.json"), node.to_string()).unwrap();
        Bench { temp }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn with_pools(self) -> Bench {
        let output = self
            .command(&RAILCTL, &["import", POOLS[0], POOLS[1]])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        self
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .env("RAIL_CNI_NODE_CONFIG", self.path("node.json"));
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command
    }

    fn call(&self, program: &str, verb: &str, config: &Value) -> Output {
        let mut command = self.command(program, &[]);
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", "c1")
            .env("CNI_IFNAME", "net1");
        command.env("CNI_PATH", Path::new(RAIL_IPAM).parent().unwrap());
        // A file, but no namespace.
        command.env("CNI_NETNS", "/dev/null");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // VERSION answers without reading it.
        let _ = child
            .stdin
            .take()
            .unwrap()
            .write_all(config.to_string().as_bytes());
        child.wait_with_output().unwrap()
    }

    /// Panics unless rail-cni takes every key and value of `config`, silently.
    fn accepts(&self, place: &str, config: &Value) {
        let stdin = config.to_string().into_bytes();
        let network = Network::parse(
            stdin,
            Args::default(),
            vec![],
            Attach::KEYS,
            Strictness::Strict,
        );
        network.unwrap_or_else(|error| panic!("{place}: {error:#}"));
        let output = self.call(RAIL_CNI, "ADD", config);
        let error: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(error["code"], 8, "{place}: {error}");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!log.contains(" warn "), "{place}: {log}");
    }
}

fn pfs(node: &Value) -> Vec<String> {
    node["rails"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["pf"].as_str().unwrap().to_owned())
        .collect()
}

/// A configuration of a network as a runtime hands it to rail-cni, for each version that it may
/// pick.
fn plugin_configs(network: &Value) -> Vec<Value> {
    let Some(plugins) = network.get("plugins") else {
        return vec![network.clone()];
    };
    let mut versions: Vec<_> = network["cniVersions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    versions.push(network["cniVersion"].clone());
    let plugins = plugins.as_array().unwrap();
    let with = |plugin: &Value, version: &Value| {
        let mut config: Map<String, Value> = plugin.as_object().unwrap().clone();
        config.insert("cniVersion".into(), version.clone());
        config.insert("name".into(), network["name"].clone());
        Value::Object(config)
    };
    plugins
        .iter()
        .flat_map(|plugin| {
            versions
                .iter()
                .map(|version| with(plugin, version))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The device as Multus adds it to every plugin of a NAD with a resource.
fn with_device(mut config: Value, id: &str) -> Value {
    config["deviceID"] = json!(id);
    config["pciBusID"] = json!(id);
    config["runtimeConfig"] = json!({"deviceID": id});
    config
}

fn nads() -> Vec<Value> {
    let nads = yaml_documents(&read("conf/nads.yaml")).unwrap();
    assert_eq!(nads.len(), 8);
    nads
}

fn config_of(nad: &Value) -> Value {
    serde_json::from_str(nad["spec"]["config"].as_str().unwrap()).unwrap()
}

/// The VF that goes with the PF of rail R.
fn vf_of(rail: usize) -> String {
    pfs(&json_of("conf/node.json"))[rail].replace("00.0", "00.2")
}

#[test]
fn every_network_is_accepted() {
    let bench = Bench::new();
    for (rail, nad) in nads().iter().enumerate() {
        let network = config_of(nad);
        assert_eq!(network["name"], nad["metadata"]["name"]);
        assert_eq!(network["name"], format!("rail-{rail}"));
        let configs = plugin_configs(&network);
        assert_eq!(configs.len(), 3);
        for config in configs {
            assert_eq!(config["rail"], rail);
            bench.accepts(
                &format!("nads.yaml: rail {rail}"),
                &with_device(config, &vf_of(rail)),
            );
        }
    }
    for config in plugin_configs(&json_of("conf/net.d/20-rail-0.conflist")) {
        assert_eq!(config["pciBusID"], vf_of(0));
        bench.accepts("20-rail-0.conflist", &config);
    }
    bench.accepts(
        "rail-0.conf",
        &with_device(json_of("conf/cnitool/rail-0.conf"), &vf_of(0)),
    );
    // Behind another plugin. The shipped policy lets no network set this of the RDMA device.
    let mut behind = plugin_configs(&config_of(
        &yaml_documents(&read("conf/ovs.yaml")).unwrap()[0],
    ))
    .pop()
    .unwrap();
    assert_eq!(behind["mode"], "rdma");
    behind["prevResult"] = json!({"cniVersion": "1.0.0", "interfaces": [], "ips": []});
    for key in ["rdmaDeviceName", "rdmaQoS"] {
        let error = String::from_utf8(bench.call(RAIL_CNI, "ADD", &behind).stdout).unwrap();
        assert!(error.contains(&format!("{key}: ")), "{error}");
        behind.as_object_mut().unwrap().remove(key);
    }
    let error = String::from_utf8(bench.call(RAIL_CNI, "ADD", &behind).stdout).unwrap();
    assert!(error.contains("CNI_NETNS"), "{error}");
}

/// As dra-driver-sriov calls: one plugin, the device in the network, no `runtimeConfig`.
#[test]
fn networks_of_one_plugin_are_those_of_the_lists() {
    let bench = Bench::new();
    let singles = yaml_documents(&read("conf/nads-single.yaml")).unwrap();
    assert_eq!(singles.len(), 8);
    for (rail, (single, list)) in singles.iter().zip(nads()).enumerate() {
        let mut config = config_of(single);
        assert_eq!(single["metadata"], list["metadata"]);
        // The lists ask for the gateway, which may take longer than the driver waits.
        let mut asking = config.clone();
        asking["gatewayProbe"] = json!("require");
        assert!(
            plugin_configs(&config_of(&list)).contains(&asking),
            "{config}"
        );
        assert!(config.get("plugins").is_none());
        config["deviceID"] = json!(vf_of(rail));
        bench.accepts(&format!("nads-single.yaml: rail {rail}"), &config);
    }
}

/// One network for the devices of all rails: the rail of each is that of its PF in node.json.
#[test]
fn one_network_takes_a_device_of_every_rail() {
    let bench = Bench::new().with_pools();
    let [nad] = &yaml_documents(&read("conf/nads-one.yaml")).unwrap()[..] else {
        panic!("one network")
    };
    let configs = plugin_configs(&config_of(nad));
    for config in &configs {
        let ready = bench.call(RAIL_CNI, "STATUS", config);
        assert!(
            ready.status.success() || config["cniVersion"] == "1.0.0",
            "{ready:?}"
        );
        for rail in 0..8 {
            bench.accepts(
                &format!("nads-one.yaml: rail {rail}"),
                &with_device(config.clone(), &vf_of(rail)),
            );
        }
    }
    let config = configs
        .into_iter()
        .find(|config| config["cniVersion"] == "1.1.0")
        .unwrap();
    for rail in 0..8 {
        let mut config = config.clone();
        config["rail"] = json!(rail);
        let leased: Value =
            serde_json::from_slice(&bench.call(RAIL_IPAM, "ADD", &config).stdout).unwrap();
        assert_eq!(
            leased["ips"][0]["address"],
            format!("172.{}.0.0/31", 16 + 2 * rail),
            "{leased}"
        );
        bench.call(RAIL_IPAM, "DEL", &config);
    }
}

/// The driver's container lacks the directories that node.json names, or has by default.
#[test]
fn the_driver_for_claims_sees_the_directories_of_rail_cni() {
    let [patch] = &yaml_documents(&read("conf/dra-driver-sriov.yaml")).unwrap()[..] else {
        panic!("one patch")
    };
    let pod = &patch["spec"]["template"]["spec"];
    let [container] = &pod["containers"].as_array().unwrap()[..] else {
        panic!("one container")
    };
    let source = read("src/node/mod.rs");
    let volumes = pod["volumes"].as_array().unwrap();
    for (mount, volume) in container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .zip(volumes)
    {
        assert_eq!(mount["name"], volume["name"]);
        assert_eq!(mount["mountPath"], volume["hostPath"]["path"]);
        assert!(
            source.contains(mount["mountPath"].as_str().unwrap()),
            "{mount}"
        );
    }
    assert_eq!(volumes.len(), 3);
}

/// DRANET mounts the directory of the socket, which is where rail-agent makes it.
#[test]
fn dranet_finds_the_socket_of_the_agent() {
    let [patch] = &yaml_documents(&read("conf/dranet.yaml")).unwrap()[..] else {
        panic!("one patch")
    };
    let values: Vec<_> = patch
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["value"])
        .collect();
    let [profile, url, mount, volume] = &values[..] else {
        panic!("{values:?}")
    };
    assert_eq!(*profile, "--profile-provider=webhook");
    let source = read("crates/rail-agent/src/dranet.rs");
    let constant = |name: &str| {
        source
            .split(name)
            .nth(1)
            .unwrap()
            .split('"')
            .nth(1)
            .unwrap()
            .to_owned()
    };
    let run_dir = rail_cni::node::Node::default().run_dir;
    let directory = run_dir.join(constant("const DIRECTORY"));
    assert_eq!(mount["mountPath"], volume["hostPath"]["path"]);
    assert_eq!(mount["name"], volume["name"]);
    assert_eq!(mount["mountPath"], directory.to_str().unwrap());
    let socket = directory.join(constant("const SOCKET"));
    assert_eq!(*url, &format!("--webhook-url=unix://{}", socket.display()));
}

/// Also without node.json, and the networks that a plan makes.
#[test]
fn lint_finds_nothing_in_the_networks() {
    let bench = Bench::new();
    let lint = |args: &[&str], input: &[u8]| {
        let mut command = bench.command(&RAILCTL, &["lint"]);
        command
            .args(args)
            .env_remove("RAIL_CNI_NODE_CONFIG")
            .stdout(Stdio::piped())
            .stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let files = ["conf/nads.yaml", "conf/net.d", "conf/ovs.yaml"];
    assert_eq!(
        lint(&files, b""),
        (Some(0), "10 networks: 0 errors, 0 warnings\n".into())
    );
    assert_eq!(
        lint(&["conf/nads-single.yaml"], b""),
        (Some(0), "8 networks: 0 errors, 0 warnings\n".into())
    );
    assert_eq!(
        lint(&["conf/nads-one.yaml"], b""),
        (Some(0), "1 network: 0 errors, 0 warnings\n".into())
    );
    // Of a pool that stands in the network the routes are seen: what they may cover, node.json
    // knows.
    let (code, told) = lint(&["conf/cnitool"], b"");
    assert_eq!(code, Some(0));
    assert!(
        told.contains("rail-0.conf:13: warning: 172.16.0.0/12"),
        "{told}"
    );
    let output = bench
        .command(&RAILCTL, &["lint", "conf/cnitool"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "1 network: 0 errors, 0 warnings\n"
    );
    let plan = bench
        .command(&RAILCTL, &["plan", "conf/fabric.yaml", "--to", "nads"])
        .output()
        .unwrap();
    assert_eq!(
        lint(&["-"], &plan.stdout),
        (Some(0), "8 networks: 0 errors, 0 warnings\n".into())
    );

    let bad = br#"{"cniVersion": "1.1.0", "name": "rail-0", "type": "rail-cni", "device": "eth9",
        "rail": 0, "mtu": 9000, "mtuu": 9000, "ipam": {"type": "rail-ipam"}}"#;
    let (code, told) = lint(&["-"], bad);
    let expected = "stdin:2: error: rail-0: mtuu: unknown key: did you mean mtu?\n1 network: 1 error, 0 warnings\n";
    assert_eq!((code, told.as_str()), (Some(1), expected));
    let (code, told) = lint(&["-", "--output", "json"], bad);
    let told: Value = serde_json::from_str(&told).unwrap();
    let finding = json!({"file": "stdin", "line": 2, "column": null, "severity": "error", "network": "rail-0",
        "message": "mtuu: unknown key: did you mean mtu?"});
    let expected = json!({"networks": 1, "otherNetworks": 0, "errors": 1, "warnings": 0, "findings": [finding],
        "silenced": []});
    assert_eq!((code, told), (Some(1), expected));
    assert_eq!(lint(&[], b"").0, Some(2));
}

/// The test above can fail.
#[test]
fn a_wrong_network_is_not_accepted() {
    let bench = Bench::new();
    let good = with_device(json_of("conf/cnitool/rail-0.conf"), &vf_of(0));
    for (key, value) in [
        ("mtu", json!("9000")),
        ("trust", json!("maybe")),
        ("vlan", json!(5)),
        ("maximum", json!(1)),
    ] {
        let mut bad = good.clone();
        bad[key] = value;
        let refused = std::panic::catch_unwind(|| bench.accepts(key, &bad));
        assert!(refused.is_err(), "{key}");
    }
}

#[test]
fn the_examples_make_a_node_that_is_ready() {
    let bench = Bench::new().with_pools();
    for (rail, nad) in nads().iter().enumerate() {
        let config = plugin_configs(&config_of(nad))
            .into_iter()
            .find(|config| config["cniVersion"] == "1.1.0")
            .unwrap();
        let ready = bench.call(RAIL_CNI, "STATUS", &config);
        assert!(
            ready.status.success() && ready.stdout.is_empty(),
            "{ready:?}"
        );
        let leased = bench.call(RAIL_IPAM, "ADD", &config);
        let leased: Value = serde_json::from_slice(&leased.stdout).unwrap();
        assert_eq!(
            leased["ips"][0]["address"],
            format!("172.{}.0.0/31", 16 + 2 * rail),
            "{leased}"
        );
        assert_eq!(
            leased["ips"][0]["gateway"],
            format!("172.{}.0.1", 16 + 2 * rail),
            "{leased}"
        );
        assert_eq!(leased["routes"][1]["dst"], "172.16.0.0/12");
    }
    fs::remove_file(
        bench
            .path("sys/bus/pci/devices")
            .join(&pfs(&json_of("conf/node.json"))[3]),
    )
    .unwrap();
    let config = plugin_configs(&config_of(&nads()[3])).pop().unwrap();
    let config = json!({"cniVersion": "1.1.0", "name": "rail-3", "rail": config["rail"], "ipam": config["ipam"]});
    let status = bench.call(RAIL_CNI, "STATUS", &config);
    assert!(
        String::from_utf8_lossy(&status.stdout).contains("0000:"),
        "{status:?}"
    );
}

#[test]
fn the_pool_in_the_file_of_cnitool_is_that_of_the_pools() {
    let bench = Bench::new();
    let config = json_of("conf/cnitool/rail-0.conf");
    let leased = bench.call(RAIL_IPAM, "ADD", &config);
    let leased: Value = serde_json::from_slice(&leased.stdout).unwrap();
    assert_eq!(
        leased["ips"][0],
        json!({"address": "172.16.0.0/31", "gateway": "172.16.0.1"})
    );
}

#[test]
fn both_executables_tell_their_versions() {
    let bench = Bench::new();
    for program in [RAIL_CNI, RAIL_IPAM] {
        let output = bench.call(program, "VERSION", &json!({"cniVersion": "1.0.0"}));
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let list = read("docs/configuration.md");
        for version in told["supportedVersions"].as_array().unwrap() {
            assert!(list.contains(version.as_str().unwrap()), "{version}");
        }
    }
}

/// An error of the environment comes before stdin is needed, and a writer may be slow.
#[test]
fn answers_have_the_version_that_stdin_asks_for() {
    for program in [RAIL_CNI, RAIL_IPAM] {
        for verb in ["VERSION", "ADD"] {
            let mut child = Command::new(program)
                .env_clear()
                .env("CNI_COMMAND", verb)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(200));
            let mut stdin = child.stdin.take().unwrap();
            let written = stdin.write_all(br#"{"cniVersion": "0.4.0", "name": "n"}"#);
            assert!(written.is_ok(), "{verb} did not wait for stdin");
            drop(stdin);
            let output = child.wait_with_output().unwrap();
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(answer["cniVersion"], "0.4.0", "{answer}");
        }
    }
}

/// One resource per rail, of that rail's PF; the networks name them; the pod asks for all.
#[test]
fn resources_networks_and_pod_are_of_one_piece() {
    let resources = json_of("conf/device-plugin.json");
    let resources = resources["resourceList"].as_array().unwrap();
    let pfs = pfs(&json_of("conf/node.json"));
    assert_eq!((resources.len(), pfs.len()), (8, 8));
    let [pod] = &yaml_documents(&read("conf/pod.yaml")).unwrap()[..] else {
        panic!("one pod")
    };
    let limits = pod["spec"]["containers"][0]["resources"]["limits"]
        .as_object()
        .unwrap();
    let mut networks = Vec::new();
    for (rail, nad) in nads().iter().enumerate() {
        let resource = &resources[rail];
        let name = format!(
            "{}/{}",
            resource["resourcePrefix"].as_str().unwrap(),
            resource["resourceName"].as_str().unwrap()
        );
        assert_eq!(resource["selectors"]["rootDevices"], json!([pfs[rail]]));
        assert_eq!(
            nad["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"],
            name
        );
        assert_eq!(limits[&name], 1);
        networks.push(nad["metadata"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(limits.len(), 8 + 1);
    assert_eq!(
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"],
        networks.join(", ")
    );
    let node = json_of("conf/node.json");
    for (rail, row) in node["rails"].as_array().unwrap().iter().enumerate() {
        assert_eq!(row["rail"], rail);
    }
}

/// Each pod of the examples of jobs: wherever it stands, it is what conf/pod.yaml is, and its NCCL
/// reads what the init container wrote, and no variable that would win over it.
#[test]
fn jobs_have_all_rails_and_read_what_their_init_container_writes() {
    fn pods<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
        if value.pointer("/spec/initContainers").is_some() {
            found.push(value);
        } else if let Some(object) = value.as_object() {
            object.values().for_each(|inner| pods(inner, found));
        } else {
            value
                .as_array()
                .into_iter()
                .flatten()
                .for_each(|inner| pods(inner, found));
        }
    }
    let [plain] = &yaml_documents(&read("conf/pod.yaml")).unwrap()[..] else {
        panic!("one pod")
    };
    let bench = Bench::new();
    for name in ["pod", "pytorchjob", "mpijob", "jobset", "leaderworkerset"] {
        let file = format!("conf/jobs/{name}.yaml");
        let [object] = &yaml_documents(&read(&file)).unwrap()[..] else {
            panic!("{file}: one object")
        };
        let mut found = Vec::new();
        pods(object, &mut found);
        let [pod] = found[..] else {
            panic!("{file}: one pod with rails")
        };
        assert_eq!(
            pod["metadata"]["annotations"], plain["metadata"]["annotations"],
            "{file}"
        );
        let [init] = &pod["spec"]["initContainers"].as_array().unwrap()[..] else {
            panic!("{file}")
        };
        let [container] = &pod["spec"]["containers"].as_array().unwrap()[..] else {
            panic!("{file}")
        };
        let of_plain = &plain["spec"]["containers"][0];
        assert_eq!(
            container["resources"]["limits"], of_plain["resources"]["limits"],
            "{file}"
        );
        assert_eq!(
            container["securityContext"], of_plain["securityContext"],
            "{file}"
        );
        assert_eq!(container.get("env"), None, "{file}");
        let args: Vec<_> = init["command"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap())
            .collect();
        assert_eq!(args[0], "/plugins/railctl");
        let written = args
            .iter()
            .find_map(|word| word.strip_prefix("--out="))
            .unwrap();
        let (mount, read) = (&init["volumeMounts"][0], &container["volumeMounts"][0]);
        let volume = &pod["spec"]["volumes"][0]["name"];
        assert!(
            mount["name"] == *volume && read["name"] == *volume,
            "{file}"
        );
        let below = |path: &str| Path::new(path).join(read["subPath"].as_str().unwrap());
        assert_eq!(
            below(mount["mountPath"].as_str().unwrap()),
            Path::new(written),
            "{file}"
        );
        assert_eq!(read["mountPath"], "/etc/nccl.conf", "{file}");
        // Here is no rail, and nothing is written; a word that is not understood ends with 2.
        let output = bench.command(&RAILCTL, &args[1..]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}: {output:?}");
    }
    let output = bench
        .command(&RAILCTL, &["lint", "conf/nads.yaml", "conf/jobs"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "8 networks: 0 errors, 0 warnings\n"
    );
}

/// Variables that name NICs take precedence over the nccl.conf of the init container.
#[test]
fn no_example_sets_a_variable_that_railctl_env_finds() {
    fn names_in_env<'a>(value: &'a Value, names: &mut Vec<&'a str>) {
        match value {
            Value::Object(object) => {
                for (key, inner) in object {
                    if key == "env" {
                        let variables = inner.as_array().into_iter().flatten();
                        names.extend(variables.filter_map(|variable| variable["name"].as_str()));
                    }
                    names_in_env(inner, names);
                }
            }
            Value::Array(list) => {
                for inner in list {
                    names_in_env(inner, names);
                }
            }
            _ => (),
        }
    }
    let found_by_env = [
        "NCCL_IB_",
        "NCCL_SOCKET_IFNAME",
        "NVSHMEM_",
        "UCX_NET_DEVICES",
        "GLOO_SOCKET_IFNAME",
        "CCL_KVS_IFACE",
    ];
    let mut pods = 0;
    for file in files_below("conf") {
        if !file.ends_with(".yaml") {
            continue;
        }
        for document in yaml_documents(&read(&file)).unwrap() {
            pods += usize::from(document["kind"] == "Pod");
            let mut names = Vec::new();
            names_in_env(&document, &mut names);
            for name in names {
                assert!(
                    !found_by_env.iter().any(|prefix| name.starts_with(prefix)),
                    "{file}: {name}"
                );
            }
        }
    }
    assert!(pods > 3, "{pods}");
}

// --- documents
// -------------------------------------------------------------------------------------------------

/// The pages of the root and of docs/.
fn documents() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for directory in ["", "docs/"] {
        let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)).unwrap();
        files.extend(entries.map(|entry| {
            format!(
                "{directory}{}",
                entry.unwrap().file_name().to_str().unwrap()
            )
        }));
    }
    files.retain(|file| file.ends_with(".md"));
    files
        .into_iter()
        .map(|file| (file.clone(), read(&file)))
        .collect()
}

/// The anchors that GitHub makes of the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let is_kept = |c: &char| c.is_alphanumeric() || ['-', '_', ' '].contains(c);
    let anchor = |line: &str| {
        line.trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter(is_kept)
            .collect()
    };
    headings
        .map(|line| -> String { anchor(line) })
        .map(|line| line.replace(' ', "-"))
        .collect()
}

#[test]
fn every_link_to_a_heading_reaches_one() {
    let mut pages = documents();
    pages.push((
        "crates/cni-conformance/README.md".to_owned(),
        read("crates/cni-conformance/README.md"),
    ));
    let mut count = 0;
    for (file, text) in &pages {
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')').map(|(link, _)| link));
        for (page, anchor) in links
            .filter_map(|link| link.split_once('#'))
            .filter(|(page, _)| !page.contains("://"))
        {
            let directory = if page.starts_with("../") {
                ""
            } else {
                file.rsplit_once('/').map_or("", |(directory, _)| directory)
            };
            let page = page.trim_start_matches("../");
            let page = match (page, directory) {
                ("", _) => file.clone(),
                (page, "") => page.to_owned(),
                (page, directory) => format!("{directory}/{page}"),
            };
            let (_, target) = pages
                .iter()
                .find(|(name, _)| *name == page)
                .unwrap_or_else(|| panic!("{file}: {page}"));
            assert!(
                anchors(target).contains(anchor),
                "{file}: {page} has no heading #{anchor}"
            );
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

#[test]
fn code_in_the_documents_parses() {
    let mut bench = Bench::new();
    let mut networks = 0;
    for (file, text) in documents() {
        for block in blocks(&text, "json") {
            let value: Value = serde_json::from_str(&block)
                .unwrap_or_else(|error| panic!("{file}: {error}: {block}"));
            if value.get("rails").is_some() {
                fs::write(bench.path("node.json"), block.as_bytes()).unwrap();
                let output = bench.command(&RAILCTL, &["status"]).output().unwrap();
                let said = String::from_utf8(output.stderr).unwrap();
                assert!(!said.contains("node.json"), "{file}: {said}: {block}");
                bench = Bench::new();
            }
            if value["type"] == "rail-cni" {
                bench.accepts(&file, &with_device(value, &vf_of(0)));
                networks += 1;
            }
        }
        for block in blocks(&text, "yaml") {
            yaml_documents(&block).unwrap_or_else(|error| panic!("{file}: {error}: {block}"));
        }
    }
    assert!(networks > 0);
}

#[test]
fn all_programs_say_release_and_commit() {
    for (program, name) in [
        (RAIL_CNI, "rail-cni"),
        (RAIL_IPAM, "rail-ipam"),
        (&*RAILCTL, "railctl"),
    ] {
        let said = |arguments: &[&str]| Bench::new().command(program, arguments).output().unwrap();
        let version = String::from_utf8(said(&["--version"]).stdout).unwrap();
        let commit = option_env!("RAIL_CNI_COMMIT").unwrap_or("commit unknown");
        let expected = format!("{} ({commit})", env!("CARGO_PKG_VERSION"));
        assert_eq!(version, format!("{name} {expected}\n"));
        let banner = String::from_utf8(said(&[]).stderr).unwrap();
        assert!(
            name == "railctl" || banner.starts_with(&format!("CNI {name} plugin v{expected}\n")),
            "{banner}"
        );
    }
}

/// The first table below a heading: the cells of the first column.
fn first_column(text: &str, heading: &str) -> Vec<String> {
    column(text, heading, 1)
}

/// Like [`keys`], of another column.
fn column(text: &str, heading: &str, number: usize) -> Vec<String> {
    let (_, section) = text
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("no {heading}"));
    let table = section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    table
        .skip(2)
        .map(|row| row.split('|').nth(number).unwrap().trim().to_owned())
        .collect()
}

fn keys(heading: &str) -> BTreeSet<String> {
    keys_in("docs/configuration.md", heading)
}

fn keys_in(file: &str, heading: &str) -> BTreeSet<String> {
    first_column(&read(file), heading)
        .iter()
        .flat_map(|cell| in_backquotes(cell))
        .collect()
}

/// The strings of a constant.
fn strings(file: &str, constant: &str) -> BTreeSet<String> {
    let source = read(file);
    let (_, rest) = source
        .split_once(constant)
        .unwrap_or_else(|| panic!("{file} has no {constant}"));
    let (_, rest) = rest.split_once('[').unwrap();
    let (_, rest) = rest.split_once('[').unwrap_or(("", rest));
    let (list, _) = rest.split_once(']').unwrap();
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_keys_of_a_network_are_those_of_the_code() {
    let others = strings("src/netconf.rs", "const OTHERS");
    let known: BTreeSet<String> = Attach::KEYS
        .names
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let of_gc = known.iter().filter(|key| key.starts_with("cni.dev/"));
    assert!(known.is_superset(&others) && known.len() > 40);
    assert_eq!(
        keys("## rail-cni"),
        known
            .difference(&of_gc.cloned().collect())
            .cloned()
            .collect()
    );
}

#[test]
fn the_steps_in_the_documents_are_those_of_the_code() {
    let source = read("src/attach/steps/mod.rs");
    let (_, list) = source.split_once("\nsteps! {").unwrap();
    let mut steps = Vec::new();
    for line in list.lines() {
        if let Some((name, _)) = line.trim().split_once(" => ") {
            steps.push(name.trim_matches('"').to_owned());
        }
    }
    assert!(steps.len() > 10, "{steps:?}");
    let architecture = read("ARCHITECTURE.md");
    let (_, picture) = architecture.split_once("what ADD changes").unwrap();
    let (picture, _) = picture.split_once("ADD, from the top").unwrap();
    let mut described = Vec::new();
    for line in picture.lines().skip(1) {
        // The picture is drawn in ASCII: the names are in its second column.
        let names = line.get(5..22).unwrap_or_default();
        described.extend(names.split([',', ' ']).filter(|name| !name.is_empty()));
    }
    assert_eq!(described, steps);
    let operations = read("docs/operations.md");
    let (_, pending) = operations.split_once("\n## Pending steps\n").unwrap();
    let (pending, _) = pending.split_once("\n## ").unwrap();
    for line in pending.lines().filter(|line| line.starts_with("* ")) {
        let (names, _) = line.split_once(": ").unwrap();
        for name in names.trim_start_matches("* ").split(", ") {
            assert!(
                steps.iter().any(|step| *name == format!("`{step}`")),
                "{name}"
            );
        }
    }
}

#[test]
fn the_keys_of_the_ipam_section_are_those_of_the_code() {
    let mut known = strings("src/pool/cidrpool.rs", "SPEC_KEYS");
    assert_eq!(known.len(), 8);
    known.extend(strings("src/ipam/config.rs", "const KEYS"));
    assert_eq!(known.len(), 13);
    assert_eq!(keys("## rail-ipam"), known);
}

#[test]
fn the_keys_of_a_fabric_are_those_of_the_code() {
    let known = strings("crates/plan/src/fabric/keys.rs", "const KEYS");
    assert_eq!(known.len(), 25);
    assert_eq!(keys_in("docs/planning.md", "## Fabric file"), known);
}

/// The keys of node.json, with those below `log`, `policy`, `roce` and `vfs`: the program itself
/// tells which it knows.
fn node_keys() -> BTreeSet<String> {
    let bench = Bench::new();
    let known = |wrong: Value| {
        fs::write(bench.path("node.json"), wrong.to_string()).unwrap();
        let output = bench.command(&RAILCTL, &["leases"]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        let (_, list) = text
            .split_once("expected")
            .unwrap_or_else(|| panic!("{text}"));
        in_backquotes(list)
    };
    assert_eq!(
        known(json!({"rails": [{"wrong": 1}]})),
        ["rail", "pf", "pool", "vfs"]
    );
    let mut all = BTreeSet::new();
    for key in known(json!({"wrong": 1})) {
        match key.as_str() {
            "log" | "policy" | "roce" | "vfs" => {
                let below = known(json!({ &key: {"wrong": 1} }));
                all.extend(below.into_iter().map(|below| format!("{key}.{below}")));
            }
            _ => drop(all.insert(key)),
        }
    }
    all
}

#[test]
fn the_keys_of_node_json_are_those_of_the_code() {
    assert_eq!(keys("## node.json"), node_keys());
}

#[test]
fn the_node_with_roce_is_the_other_node_with_one_key_more() {
    let bench = Bench::new();
    let mut node = json_of("conf/node-roce.json");
    let roce = node.as_object_mut().unwrap().remove("roce").unwrap();
    assert_eq!(node, json_of("conf/node.json"));
    let mut node = json_of("conf/node-roce.json");
    for (key, name) in [
        ("runDir", "run"),
        ("storeDir", "store"),
        ("sysfsRoot", "sys"),
    ] {
        node[key] = json!(bench.path(name));
    }
    fs::write(bench.path("node.json"), node.to_string()).unwrap();
    let output = bench
        .command(&RAILCTL, &["doctor", "--output", "json"])
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = told["checks"].as_array().unwrap();
    let of = |name: &str| {
        checks
            .iter()
            .filter(|check| check["check"] == name)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("node.json")[0]["verdict"], "ok", "{roce}: {told}");
    assert!(
        of("roce-trust")
            .iter()
            .all(|check| check["verdict"] == "skip"),
        "{told}"
    );
}

/// The effects of `policy` before a device is looked at. Its other keys are those of a device:
/// `tests/netns/rails/device.rs`.
#[test]
fn the_policy_does_what_its_tables_say() {
    let bench = Bench::new();
    let answer = |program, policy: &Value, has_rails: bool, more: &Value| -> Value {
        let mut node = json_of("conf/node.json");
        node["nodeName"] = json!("worker-gpu-0");
        node["runDir"] = json!(bench.path("run"));
        node["sysfsRoot"] = json!(bench.path("sys"));
        node["log"] = json!({});
        node["policy"] = policy.clone();
        if !has_rails {
            node["rails"] = json!([]);
        }
        fs::write(bench.path("node.json"), node.to_string()).unwrap();
        let config = json!({"cniVersion": "1.1.0", "name": "rail-0", "type": "rail-cni", "deviceID": vf_of(0),
            "ipam": {"type": "rail-ipam", "pool": "rail-0"}});
        let mut config = if program == RAIL_CNI {
            config
        } else {
            json_of("conf/cnitool/rail-0.conf")
        };
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_slice(&bench.call(program, "ADD", &config).stdout).unwrap()
    };
    let is_refused = |policy: Value, has_rails, more: &Value| {
        let error = answer(RAIL_CNI, &policy, has_rails, more);
        assert!(
            [7, 8].contains(&error["code"].as_i64().unwrap()),
            "{policy} {more}: {error}"
        );
        // 8: all of the configuration is accepted, and the namespace is none.
        let is_refused = error["code"] == 7;
        assert_eq!(
            is_refused,
            error["msg"].as_str().unwrap().contains("policy"),
            "{error}"
        );
        is_refused
    };

    let text = read("docs/configuration.md");
    let row = text
        .lines()
        .find(|line| line.starts_with("| `policy.vfKeys` |"))
        .unwrap();
    let documented = in_backquotes(row.split('|').nth(2).unwrap());
    let (mac, guid) = ("02:00:00:00:00:01", "02:00:00:00:00:00:00:01");
    let settings = [
        ("vlan", json!({"vlan": 5})),
        ("vlanQoS", json!({"vlan": 5, "vlanQoS": 3})),
        ("vlanProto", json!({"vlan": 5, "vlanProto": "802.1ad"})),
        ("min_tx_rate", json!({"min_tx_rate": 10})),
        ("max_tx_rate", json!({"max_tx_rate": 10})),
        ("spoofchk", json!({"spoofchk": "off"})),
        ("trust", json!({"trust": "on"})),
        ("link_state", json!({"link_state": "enable"})),
        ("rdmaDeviceName", json!({"rdmaDeviceName": "rdma_rail-0"})),
        ("rdmaQoS", json!({"rdmaQoS": {"tos": 96, "tc": 96}})),
        ("pkey", json!({"pkey": "0x8001"})),
        ("pkey", json!({"args": {"cni": {"pkey": "0x1"}}})),
        ("mac", json!({"mac": mac})),
        ("mac", json!({"runtimeConfig": {"mac": mac}})),
        ("mac", json!({"args": {"cni": {"mac": mac}}})),
        (
            "infinibandGUID",
            json!({"runtimeConfig": {"infinibandGUID": guid}}),
        ),
        ("infinibandGUID", json!({"args": {"cni": {"guid": guid}}})),
    ];
    let keys: BTreeSet<_> = settings.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, documented.iter().map(String::as_str).collect());
    for (key, more) in &settings {
        assert!(is_refused(json!({"vfKeys": []}), true, more), "{key}");
        let others: Vec<_> = keys.iter().filter(|other| *other != key).collect();
        assert!(is_refused(json!({ "vfKeys": others }), true, more), "{key}");
        assert!(
            !is_refused(json!({"vfKeys": [key, "vlan"]}), true, more),
            "{key}"
        );
        assert!(!is_refused(json!({}), true, more), "{key}");
    }
    for more in [
        json!({"vlan": 0, "vlanQoS": 0, "vlanProto": "802.1q", "min_tx_rate": 0, "max_tx_rate": 0}),
        json!({"mtu": 9000, "routes": [{"dst": "10.0.0.0/24"}], "sysctl": {"net.ipv4.conf.IFNAME.log_martians": "1"}}),
    ] {
        assert!(!is_refused(json!({"vfKeys": []}), true, &more), "{more}");
    }
    // A pod that asks a shipped network for a MAC, on a node as conf/node.json describes it.
    let shipped = Bench::new();
    let mut network = with_device(
        plugin_configs(&config_of(&nads()[0])).pop().unwrap(),
        &vf_of(0),
    );
    network["runtimeConfig"]["mac"] = json!(mac);
    let error = String::from_utf8(shipped.call(RAIL_CNI, "ADD", &network).stdout).unwrap();
    assert!(
        error.contains("mac: ") && error.contains("policy"),
        "{error}"
    );

    // Without `rail`, and with rails in node.json, the device tells the rail later.
    for (more, has_rails, expected) in [
        (json!({"rail": 1}), true, false),
        (json!({"rail": 0}), true, true),
        (json!({"rail": 1}), false, false),
        (json!({"rail": 0}), false, true),
        (json!({}), true, false),
        (json!({}), false, true),
    ] {
        assert_eq!(
            is_refused(json!({"rails": [1, 2]}), has_rails, &more),
            expected,
            "{more} {has_rails}"
        );
    }

    // VFs of one PF share an Ethernet.
    for (policy, more, expected) in [
        (json!({"vfsOnly": true}), json!({}), false),
        (json!({"vfsOnly": true}), json!({"ipam": null}), true),
        (json!({"vfsOnly": true}), json!({"ipam": {}}), true),
        (
            json!({"vfsOnly": true, "requireIPAM": false}),
            json!({"ipam": null}),
            false,
        ),
        (json!({"requireIPAM": true}), json!({"ipam": null}), true),
        (json!({}), json!({"ipam": null}), false),
    ] {
        assert_eq!(
            is_refused(policy.clone(), true, &more),
            expected,
            "{policy} {more}"
        );
    }

    let refused = answer(RAIL_IPAM, &json!({"inlinePools": false}), true, &json!({}));
    assert!(
        refused["msg"]
            .as_str()
            .unwrap()
            .contains("policy.inlinePools"),
        "{refused}"
    );
    let leased = answer(RAIL_IPAM, &json!({}), true, &json!({}));
    assert_eq!(leased["ips"][0]["address"], "172.16.0.0/31", "{leased}");
}

#[test]
fn the_sysctls_of_a_rail_are_those_of_the_code() {
    let source = read("src/attach/steps/rail.rs");
    let lines = source
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("(\"ipv"));
    let set: BTreeSet<String> = lines
        .map(|line| line.split('"').nth(3).unwrap().to_owned())
        .collect();
    assert!(set.len() > 5, "{set:?}");
    assert_eq!(keys("### Sysctls that every rail gets"), set);
}

/// A constant that is a time, as the documents have it.
fn time(file: &str, constant: &str) -> String {
    let source = read(file);
    let rest = source.split(&format!("const {constant}: ")).nth(1);
    let value = rest
        .and_then(|rest| rest.split(['=', ';']).nth(1))
        .unwrap_or_else(|| panic!("no {constant}"));
    let number: String = value.chars().filter(char::is_ascii_digit).collect();
    let number: u32 = number
        .parse()
        .unwrap_or_else(|error| panic!("{file}: {constant} = {value}: {error}"));
    let milliseconds = if value.contains("from_millis") {
        number
    } else {
        number * 1000
    };
    match milliseconds % 1000 {
        0 => format!("{} s", milliseconds / 1000),
        rest => format!("{}.{} s", milliseconds / 1000, rest / 100),
    }
}

#[test]
fn the_waits_are_those_of_the_code() {
    let (record, probe) = ("src/attach/locks.rs", "src/attach/steps/gateway.rs");
    let of_driver = time("src/watchdog.rs", "MOST_FOR_A_PART");
    let of_others = time(probe, "PATIENCE_WITH_OTHERS");
    let by_key = |key: &str| format!("`{key}`");
    let of_pool = time("src/ipam/table.rs", "PATIENCE");
    assert_eq!(of_pool, time("src/ipam/emptied.rs", "PATIENCE"));
    let waits = [
        ("the same attachment or device", time(record, "PATIENCE")),
        ("a VF of the same PF", time(record, "PF_PATIENCE")),
        ("the same pool", of_pool),
        (
            "another `import`",
            time("crates/railctl/src/store.rs", "PATIENCE"),
        ),
        ("on stdin", time("src/watchdog.rs", "STDIN_LIMIT")),
        (
            "stderr",
            format!("{} in all", time("src/log.rs", "PATIENCE")),
        ),
        ("IPAM plugin", time("src/attach/ipam.rs", "PATIENCE")),
        (
            "the kernel",
            time("crates/netlink/src/lib.rs", "PATIENCE_SECONDS"),
        ),
        (
            "the carrier",
            time("src/neighbours.rs", "PATIENCE_WITH_CARRIER"),
        ),
        ("the GIDs", by_key("gidTimeout")),
        ("the P_Key", by_key("gidTimeout")),
        (
            "whose driver",
            format!("a twelfth of `callTimeout`, at most {of_driver}"),
        ),
        (
            "gateways, with",
            format!("`gatewayProbeTimeout`, and {of_others} if one does not answer"),
        ),
        ("everything else", by_key("callTimeout")),
        (
            "a NIC to come back",
            time("src/attach/locate.rs", "PATIENCE"),
        ),
    ];
    let text = read("docs/configuration.md");
    let rows = column(&text, "## Waits", 1)
        .into_iter()
        .zip(column(&text, "## Waits", 2));
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), waits.len(), "{rows:?}");
    for ((row, told), (word, wait)) in rows.iter().zip(&waits) {
        assert!(
            row.contains(word) && told == wait,
            "{row}: {told}, and {word}: {wait}"
        );
    }
}

#[test]
fn the_checks_of_doctor_and_the_states_of_status_are_those_of_the_code() {
    let text = read("docs/operations.md");
    let (_, doctor) = text.split_once("\n## railctl doctor\n").unwrap();
    let (_, table) = doctor.split_once("\n| check |").unwrap();
    let table: String = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let output = Bench::new()
        .command(&RAILCTL, &["doctor", "--output", "json"])
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    for check in told["checks"].as_array().unwrap() {
        let name = check["check"].as_str().unwrap();
        assert!(
            table.contains(&format!("`{name}`")),
            "docs/operations.md does not tell of {name}"
        );
    }
    let source = read("crates/railctl/src/commands/inventory.rs");
    let states = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("State::")?.split('"').nth(1));
    let states: Vec<_> = states.collect();
    assert!(states.len() > 5, "{states:?}");
    for state in states {
        assert!(
            text.contains(&format!("| `{state}` |")),
            "docs/operations.md does not tell of {state}"
        );
    }
}

/// All source without tests, each text in one piece.
fn source() -> String {
    let mut all = String::new();
    for file in source_files()
        .iter()
        .filter(|file| !file.ends_with("/tests.rs"))
    {
        let text = read(file);
        let text = text.split("#[cfg(test)]").next().unwrap();
        let mut broken = text.split("\\\n");
        all.push_str(broken.next().unwrap());
        broken.for_each(|part| all.push_str(part.trim_start()));
    }
    all.replace("\\\"", "\"")
}

/// Programs and scripts, without what they read.
fn test_files() -> impl Iterator<Item = String> {
    files_below("tests")
        .into_iter()
        .filter(|file| file.ends_with(".rs") || file.ends_with(".sh"))
}

/// The summary of scripts/test has what was skipped, by name and reason. Of an ignored test it
/// would say nothing.
#[test]
fn no_test_is_ignored() {
    let folders = ["src", "crates", "tests"];
    let attribute = concat!("#[", "ignore");
    let mut sources = folders
        .into_iter()
        .flat_map(files_below)
        .filter(|file| file.ends_with(".rs"));
    assert_eq!(sources.find(|file| read(file).contains(attribute)), None);
}

/// The texts in double quotes of a Rust file, each in one piece and with its line. Raw ones are
/// left out.
fn texts(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let raw = rest
            .strip_prefix('r')
            .map(|text| text.trim_start_matches('#'));
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            // A character, and no lifetime.
            '\'' if rest.starts_with("'\\") => 4 + rest[3..].find('\'').unwrap(),
            '\'' if rest.chars().nth(2) == Some('\'') => {
                2 + rest[1..].chars().next().unwrap().len_utf8()
            }
            'r' if raw.is_some_and(|raw| raw.starts_with('"')) => {
                let begin = rest.find('"').unwrap() + 1;
                let end = format!("\"{}", &rest[1..begin - 1]);
                begin + rest[begin..].find(&end).unwrap() + end.len()
            }
            '"' => {
                let mut is_escaped = false;
                let ends = |character: char| {
                    let ends = character == '"' && !is_escaped;
                    is_escaped = character == '\\' && !is_escaped;
                    ends
                };
                let end = 1 + rest[1..].find(ends).unwrap();
                let mut lines = rest[1..end].split("\\\n");
                let first = lines.next().unwrap().to_owned();
                let text = lines.fold(first, |text, line| text + line.trim_start());
                found.push((
                    1 + source[..source.len() - rest.len()].matches('\n').count(),
                    text,
                ));
                end + 1
            }
            _ => first.len_utf8(),
        };
        rest = &rest[length..];
    }
    found
}

/// They are what is left of a line that ended with a backslash. A text of several lines may be a
/// table.
fn has_lost_blanks(text: &str) -> bool {
    !text.contains('\n') && !text.contains("\\n") && text.trim().contains(&" ".repeat(8))
}

#[test]
fn no_message_has_the_indentation_of_the_code_in_it() {
    let sample = r#"fn f<'a>() { g('"', '\'', "a: \
        b", "c:          d"); }"#;
    let found: Vec<_> = texts(sample)
        .into_iter()
        .map(|(line, text)| (line, has_lost_blanks(&text)))
        .collect();
    assert_eq!(found, [(1, false), (2, true)]);
    let mut count = 0;
    for file in source_files()
        .into_iter()
        .chain(files_below("crates/rail-agent/src"))
    {
        for (line, text) in texts(&read(&file)) {
            count += 1;
            assert!(!has_lost_blanks(&text), "{file}:{line}: {text}");
        }
    }
    assert!(count > 5000, "{count}");
}

#[test]
fn the_messages_in_the_documents_are_those_of_the_code() {
    let source = source();
    let text = read("docs/troubleshooting.md");
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| format!("`{row}"));
    let mut count = 0;
    for row in rows {
        let cell = row.split(" | ").next().unwrap();
        for message in in_backquotes(cell) {
            count += 1;
            for part in message
                .split('…')
                .map(str::trim)
                .filter(|part| part.len() > 3)
            {
                // A fault has its key by itself, and prints it with a colon.
                let is_key = part
                    .strip_suffix(':')
                    .is_some_and(|key| source.contains(&format!("\"{key}\"")));
                let is_there = match part.split_once(": ") {
                    Some((key, problem)) if source.contains(&format!("\"{key}\"")) => {
                        source.contains(problem)
                    }
                    _ => is_key || source.contains(part),
                };
                assert!(
                    is_there,
                    "no message of the code has {part:?}, of {message:?}"
                );
            }
        }
    }
    assert!(count > 40, "{count}");
}

/// A tag of an action can be moved, and what runs in a job has what the job may do.
#[test]
fn workflows_run_what_was_reviewed_and_publish_nothing_that_could_change_it() {
    let mut seen = 0;
    for entry in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows")).unwrap()
    {
        let file = entry.unwrap().path();
        let workflow: Value = yaml_serde::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let of_all = &workflow["permissions"];
        assert!(
            of_all.is_object() && !of_all.to_string().contains("write"),
            "{file:?}: {of_all}"
        );
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            let steps = job["steps"].as_array().unwrap();
            for action in steps.iter().filter_map(|step| step["uses"].as_str()) {
                let (_, hash) = action.split_once('@').unwrap();
                let is_hash =
                    hash.len() == 40 && hash.bytes().all(|digit| digit.is_ascii_hexdigit());
                assert!(is_hash, "{file:?}: {name}: {action}");
                seen += 1;
            }
            for checkout in steps
                .iter()
                .filter(|step| step["uses"].to_string().contains("actions/checkout@"))
            {
                assert_eq!(
                    checkout["with"]["persist-credentials"], false,
                    "{file:?}: {name}"
                );
            }
            let may_write = job["permissions"].to_string().contains("write");
            let run: String = steps
                .iter()
                .filter_map(|step| step["run"].as_str())
                .collect();
            let builds = ["sudo", "cargo", "scripts/test", "scripts/build", ".ci/run"];
            let does_build =
                builds.iter().any(|word| run.contains(word)) || run.contains("scripts/release\n");
            assert!(
                !may_write || !does_build,
                "{file:?}: {name} builds, and may publish"
            );
            assert_eq!(run.contains("gh release"), may_write, "{file:?}: {name}");
        }
    }
    assert!(seen > 8, "{seen}");
}

/// A promise without a test is none.
#[test]
fn the_tests_in_the_threat_model_are_there() {
    let tests: String = test_files().map(|file| read(&file)).collect();
    let text = read("docs/security.md");
    let is_name = |word: &String| word.matches('_').count() > 2 && !word.contains([' ', '/', '.']);
    let named: Vec<_> = in_backquotes(&text).into_iter().filter(is_name).collect();
    assert!(named.len() > 25, "{named:?}");
    for name in named {
        let is_there =
            tests.contains(&format!("fn {name}()")) || tests.contains(&format!("\n{name}() {{"));
        assert!(
            is_there,
            "docs/security.md names the test {name}, which is nowhere below tests/"
        );
    }
}

/// The numbers behind each `word`, and behind its plural: "items 73, 84 to 86" are four.
fn numbers_behind(word: &str, text: &str) -> BTreeSet<u32> {
    let mut numbers = BTreeSet::new();
    for behind in text.split(word).skip(1) {
        let mut last = None;
        let mut words = behind
            .strip_prefix('s')
            .unwrap_or(behind)
            .split_ascii_whitespace();
        while let Some(word) = words.next() {
            let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
            match (digits.parse::<u32>(), word, last) {
                (Ok(number), ..) => numbers.insert(*last.insert(number)),
                (Err(_), "to", Some(first)) => {
                    let end = words
                        .next()
                        .and_then(|word| word.trim_end_matches([',', ':', '.']).parse().ok());
                    numbers.extend(first..=end.unwrap_or(first));
                    false
                }
                (Err(_), "and", Some(_)) => false,
                _ => break,
            };
        }
    }
    numbers
}

#[test]
fn every_item_of_the_contract_has_a_test_that_names_it() {
    let contract = read("tests/contract-items");
    let numbered = |text: &str| -> BTreeSet<u32> {
        text.lines()
            .filter_map(|line| line.split_once(". ")?.0.parse().ok())
            .collect()
    };
    let items = numbered(&contract);
    assert_eq!(items.len(), 123);

    // The head of a file tells its content by and large.
    let is_of_a_test = |line: &&str| !line.starts_with("//!");
    let text: String = test_files()
        .chain(["src/error.rs", "src/cni/result.rs"].map(str::to_owned))
        .flat_map(|file| {
            read(&file)
                .lines()
                .filter(is_of_a_test)
                .map(|line| format!("{line}\n"))
                .collect::<Vec<_>>()
        })
        .collect();
    // Of each item, the checks of the suite that find it.
    let suite = files_below("crates/cni-conformance/src/checks")
        .iter()
        .map(|file| read(file))
        .collect::<String>();
    let mut asked = BTreeSet::new();
    let mut item = None;
    for line in contract.lines() {
        let Some(checks) = line.strip_prefix("    ") else {
            item = line
                .split_once(". ")
                .and_then(|(number, _)| number.parse().ok());
            continue;
        };
        asked.insert(item.unwrap());
        for name in checks.split(' ') {
            assert!(
                suite.contains(&format!("\"{name}\"")),
                "item {item:?}: there is no check {name}"
            );
        }
    }
    assert!(asked.len() > 80, "{asked:?}");
    assert_eq!(
        numbers_behind("Item", &text),
        BTreeSet::new(),
        "items without the name of their document"
    );
    let tested: BTreeSet<u32> = numbers_behind(", item", &text)
        .union(&asked)
        .copied()
        .collect();
    assert_eq!(
        tested.difference(&items).collect::<Vec<_>>(),
        Vec::<&u32>::new(),
        "items that there are not"
    );
    // No input is known that causes a panic.
    assert_eq!(
        items.difference(&tested).collect::<Vec<_>>(),
        [&9],
        "items without a test"
    );
    // A reader of a test wants the reason, not a number.
    assert_eq!(
        numbers_behind("trap", &(text + &contract)),
        BTreeSet::new(),
        "traps by number"
    );
}

#[test]
fn the_readme_is_short_and_names_the_oldest_rust() {
    let readme = read("README.md");
    assert!(readme.lines().count() <= 150);
    let manifest = read("Cargo.toml");
    let rust = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))
        .unwrap()
        .trim_matches('"');
    assert!(
        readme.contains(&format!("Rust {rust}")),
        "README.md does not name Rust {rust}"
    );
}
