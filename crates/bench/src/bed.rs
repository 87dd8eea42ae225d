//! The place of the measurement: a host with veth devices as VFs, pods, a node's configuration, and
//! the plugins.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cni_conformance::sandbox;
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

use crate::run::Process;

/// Directory of every file that is written during a measurement, in memory.
pub const DIR: &str = sandbox::DIR;

/// The programs that are measured, and those that measure.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The directory of rail-cni and rail-ipam.
    pub bin: PathBuf,
    /// The directory of upstream's plugins.
    pub peers: PathBuf,
    pub cnitool: Option<PathBuf>,
    pub multus: Option<PathBuf>,
    /// Why nothing is traced, if strace is not here.
    pub lacks_strace: Option<String>,
    /// Why no instructions are counted.
    pub lacks_instructions: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Bed<'t> {
    pub tools: &'t Tools,
    devices: Vec<String>,
    pods: Vec<String>,
}

/// Runs `work` in namespaces of its own, in a thread of its own.
pub fn inside<T: Send>(
    tools: &Tools,
    work: impl FnOnce(&mut Bed) -> Result<T, String> + Send,
) -> Result<T, String> {
    let inside = move || {
        sandbox::enter_world()?;
        // A million nodes have more files than a tmpfs takes unless it is told otherwise.
        mount_memory(Path::new(DIR))?;
        ip("link set lo up")?;
        fs::write("/run/netns/host", "").map_err(|error| format!("/run/netns/host: {error}"))?;
        let own = Some("/proc/thread-self/ns/net");
        mount(
            own,
            "/run/netns/host",
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .map_err(|errno| format!("cannot bind the namespace of the host: {errno}"))?;
        write(
            "node.json",
            &json!({"nodeName": "bench", "runDir": format!("{DIR}/run"), "storeDir": format!("{DIR}/store"),
                "policy": {"kinds": ["veth"]}})
            .to_string(),
        )?;
        work(&mut Bed {
            tools,
            devices: Vec::new(),
            pods: Vec::new(),
        })
    };
    std::thread::scope(|scope| {
        let ended = scope.spawn(inside).join();
        ended.unwrap_or_else(|_| Err("the bench itself failed".to_owned()))
    })
}

/// An empty file system in memory, whose number of files has no limit.
pub fn mount_memory(path: &Path) -> Result<(), String> {
    mount(
        Some("tmpfs"),
        path,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=700,nr_inodes=0"),
    )
    .map_err(|errno| {
        format!(
            "cannot mount an empty file system on {}: {errno}",
            path.display()
        )
    })
}

/// Writes a file below [`DIR`].
pub fn write(name: &str, text: &str) -> Result<(), String> {
    let path = Path::new(DIR).join(name);
    let parent = path.parent().unwrap_or(Path::new(DIR));
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// `ip` with these arguments.
pub fn ip(arguments: &str) -> Result<String, String> {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// `ip -batch` with these lines.
pub fn ip_batch(lines: &str) -> Result<(), String> {
    batch(&[], lines)
}

/// Like [`ip_batch`], in a pod.
pub fn ip_batch_in(pod: &str, lines: &str) -> Result<(), String> {
    batch(&["-n", pod], lines)
}

fn batch(options: &[&str], lines: &str) -> Result<(), String> {
    let told = |error: std::io::Error| format!("ip -batch: {error}");
    let mut command = Command::new("ip");
    command
        .args(options)
        .args(["-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(told)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(lines.as_bytes()).map_err(told)?;
    }
    let output = child.wait_with_output().map_err(told)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip -batch: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// The routes of a rail unless something else is measured: the other end of the rail's links, and
/// for the first rail of a pod the whole fabric. The kernel refuses the latter twice unless its
/// metric differs, as that of rail-cni does.
pub fn routes(rail: usize, is_first: bool) -> Vec<String> {
    let own = format!("10.{rail}.128.0/17");
    if is_first {
        vec![own, "10.0.0.0/8".to_owned()]
    } else {
        vec![own]
    }
}

impl Bed<'_> {
    /// Makes `count` devices `dev0`, `dev1` and so on, whose other ends are `leaf0` and so on.
    pub fn make_devices(&mut self, count: usize) -> Result<(), String> {
        let mut lines = String::new();
        for rail in self.devices.len()..count {
            self.devices.push(format!("dev{rail}"));
            lines.push_str(&format!(
                "link add dev{rail} mtu 1500 type veth peer name leaf{rail}\n"
            ));
            lines.push_str(&format!("link set leaf{rail} mtu 9216 up\n"));
        }
        ip_batch(&lines)
    }

    /// Takes care of a device that is there, as of those that were made.
    pub fn adopt(&mut self, device: &str) {
        self.devices.push(device.to_owned());
    }

    /// Makes `count` pods `pod0`, `pod1` and so on.
    pub fn make_pods(&mut self, count: usize) -> Result<(), String> {
        for number in self.pods.len()..count {
            let pod = format!("pod{number}");
            sandbox::make_netns(&netns(&pod))?;
            ip(&format!("-n {pod} link set lo up"))?;
            self.pods.push(pod);
        }
        Ok(())
    }

    /// After a DEL: host-device gives no MTU back, and the floor takes no care of one. All start
    /// equal.
    pub fn restore(&self) -> Result<(), String> {
        let lines = self
            .devices
            .iter()
            .map(|device| format!("link set {device} mtu 1500 down\n"));
        ip_batch(&lines.collect::<String>())
    }

    /// Makes devices and pods again, after something failed.
    pub fn make_again(&mut self) -> Result<(), String> {
        let (devices, pods) = (self.devices.len(), self.pods.len());
        for pod in self.pods.drain(..) {
            sandbox::delete_netns(&netns(&pod))?;
        }
        // A veth ends with its other end, wherever that is.
        let lines: String = (0..devices)
            .map(|rail| format!("link del leaf{rail}\n"))
            .collect();
        // The pods' devices are gone, or go at some later time.
        let _ = ip_batch(&lines);
        self.devices.clear();
        self.make_devices(devices)?;
        self.make_pods(pods)
    }

    /// A call of a plugin, as a runtime makes it.
    pub fn call(
        &self,
        verb: &str,
        conf: &Value,
        container: &str,
        pod: &str,
        ifname: &str,
    ) -> Process {
        let name = conf["type"].as_str().unwrap_or_default();
        self.call_of(&self.program(name), verb, conf, container, pod, ifname)
    }

    /// Like [`Bed::call`], with another program than the type of the configuration.
    pub fn call_of(
        &self,
        program: &Path,
        verb: &str,
        conf: &Value,
        container: &str,
        pod: &str,
        ifname: &str,
    ) -> Process {
        let mut vars = self.vars();
        let netns = netns(pod).to_string_lossy().into_owned();
        let said = [
            ("COMMAND", verb),
            ("CONTAINERID", container),
            ("NETNS", &netns),
            ("IFNAME", ifname),
        ];
        vars.extend(said.map(|(name, value)| (format!("CNI_{name}"), value.to_owned())));
        Process {
            program: program.to_owned(),
            arguments: Vec::new(),
            vars,
            stdin: conf.to_string().into_bytes(),
        }
    }

    /// The executable of a plugin.
    pub fn program(&self, name: &str) -> PathBuf {
        let own = self.tools.bin.join(name);
        if own.exists() {
            own
        } else {
            self.tools.peers.join(name)
        }
    }

    /// The variables of all calls.
    pub fn vars(&self) -> Vec<(String, String)> {
        let path = format!(
            "{}:{}",
            self.tools.bin.display(),
            self.tools.peers.display()
        );
        vec![
            ("CNI_PATH".to_owned(), path),
            (
                "RAIL_CNI_NODE_CONFIG".to_owned(),
                format!("{DIR}/node.json"),
            ),
        ]
    }
}

/// The path of a pod's namespace.
pub fn netns(pod: &str) -> PathBuf {
    Path::new("/run/netns").join(pod)
}
