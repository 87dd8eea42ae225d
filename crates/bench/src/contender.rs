//! The contenders: the way in which each attaches a rail, called directly, by cnitool, or by
//! Multus.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bed::{self, Bed, DIR};
use crate::floor::FLOOR;
use crate::run::{Process, Runner};
use crate::samples::Key;

/// Version of all configurations. Multus and containerd of all versions know it.
const VERSION: &str = "1.0.0";

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// The program of [`crate::floor`], which makes the same state as rail-cni.
    Floor,
    /// `ip -batch` with the same moves, addresses and routes.
    Batch,
    /// rail-cni with rail-ipam.
    Rail,
    /// host-device with static.
    HostDeviceStatic,
    /// host-device with host-local.
    HostDeviceLocal,
    /// host-device with host-local, then tuning for MTU and sysctls, then sbr for the routing.
    HostDeviceChain,
}

/// The caller of the plugins of one rail. Multus is called for all of a pod: [`by_multus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Direct,
    Cnitool,
}

/// A contender's way to attach.
#[derive(Debug)]
enum How {
    /// With these routes.
    Floor(Vec<String>),
    /// Files of `ip -batch`: the move, what is done in the pod, and the way back.
    Batch,
    /// These plugins, one after the other.
    Direct(Vec<Value>),
    /// A network of this name, called by cnitool.
    Cnitool(String),
    /// eth0, and the networks of this pod, called by Multus.
    Multus(String, Value),
}

/// An attachment of one rail, or of all rails of a pod where the caller does that.
#[derive(Debug)]
pub struct Attachment {
    how: How,
    rail: usize,
    pod: String,
    ifname: String,
    /// For the DEL.
    result: Mutex<Value>,
    /// By its last call.
    took: Mutex<Duration>,
}

/// The object of one measurement.
#[derive(Debug)]
pub struct Subject {
    pub key: Key,
    pub attachments: Vec<Attachment>,
    pub is_at_once: bool,
}

impl Contender {
    pub fn title(self) -> &'static str {
        match self {
            Contender::Floor => "floor: requests alone",
            Contender::Batch => "ip -batch",
            Contender::Rail => "rail-cni + rail-ipam",
            Contender::HostDeviceStatic => "host-device + static",
            Contender::HostDeviceLocal => "host-device + host-local",
            Contender::HostDeviceChain => "host-device + host-local, tuning, sbr",
        }
    }

    /// Whether no plugin is called.
    pub fn is_program(self) -> bool {
        matches!(self, Contender::Floor | Contender::Batch)
    }

    fn file(self) -> &'static str {
        match self {
            Contender::Floor => "floor",
            Contender::Batch => "batch",
            Contender::Rail => "rail",
            Contender::HostDeviceStatic => "hd-static",
            Contender::HostDeviceLocal => "hd-local",
            Contender::HostDeviceChain => "hd-chain",
        }
    }

    /// The plugins that attach a rail, in their order. Writes what they read.
    pub fn plugins(self, rail: usize, routes: &[String]) -> Result<Vec<Value>, String> {
        let via = |route: &String| json!({"dst": route, "gw": format!("10.{rail}.0.1")});
        let routes_via: Vec<_> = routes.iter().map(via).collect();
        let host_device = |ipam: Value| json!({"type": "host-device", "device": format!("dev{rail}"), "ipam": ipam});
        let local = json!({"type": "host-local", "dataDir": format!("{DIR}/host-local"), "routes": routes_via,
            "ranges": [[{"subnet": format!("10.{rail}.0.0/30"), "gateway": format!("10.{rail}.0.1")}]]});
        Ok(match self {
            Contender::Floor | Contender::Batch => Vec::new(),
            Contender::Rail => {
                let routes: Vec<_> = routes.iter().map(|route| json!({"dst": route})).collect();
                let pool = json!({"version": 1, "prefix": format!("10.{rail}.0.0/31"),
                    "gateway": format!("10.{rail}.0.1"), "routes": routes});
                bed::write(&format!("store/bench/rail-{rail}.json"), &pool.to_string())?;
                vec![
                    json!({"type": "rail-cni", "rail": rail, "mtu": 9000, "device": format!("dev{rail}"),
                    "ipam": {"type": "rail-ipam", "pool": format!("rail-{rail}")}}),
                ]
            }
            Contender::HostDeviceStatic => {
                let address = json!({"address": format!("10.{rail}.0.0/31"), "gateway": format!("10.{rail}.0.1")});
                vec![host_device(
                    json!({"type": "static", "addresses": [address], "routes": routes_via}),
                )]
            }
            Contender::HostDeviceLocal => vec![host_device(local)],
            Contender::HostDeviceChain => {
                let sysctl = json!({"net.ipv4.conf.IFNAME.arp_ignore": "1", "net.ipv4.conf.IFNAME.arp_announce": "2",
                    "net.ipv4.conf.IFNAME.rp_filter": "2"});
                let tuning = json!({"type": "tuning", "mtu": 9000, "sysctl": sysctl, "dataDir": format!("{DIR}/tuning")});
                vec![host_device(local), tuning, json!({"type": "sbr"})]
            }
        })
    }

    fn network(self, rail: usize, routes: &[String]) -> Result<Value, String> {
        let plugins = self.plugins(rail, routes)?;
        Ok(json!({"cniVersion": VERSION, "name": self.name(rail), "plugins": plugins}))
    }

    fn name(self, rail: usize) -> String {
        format!("{}-{rail}", self.file())
    }

    /// A rail of a pod, with these routes.
    pub fn attachment(
        self,
        way: Way,
        rail: usize,
        pod: usize,
        ifname: usize,
        routes: &[String],
    ) -> Result<Attachment, String> {
        let pod = format!("pod{pod}");
        let ifname = format!("net{}", ifname + 1);
        let how = match (self, way) {
            (Contender::Floor, _) => How::Floor(routes.to_vec()),
            (Contender::Batch, _) => {
                let own = |route: &String| {
                    format!(
                        "route add {route} via 10.{rail}.0.1 metric {}\n",
                        1000 + rail
                    )
                };
                let added: String = routes.iter().map(own).collect();
                bed::write(
                    &format!("batch-{rail}.move"),
                    &format!("link set dev{rail} netns {pod} name {ifname} mtu 9000\n"),
                )?;
                bed::write(
                    &format!("batch-{rail}.add"),
                    &format!(
                        "address add 10.{rail}.0.0/31 dev {ifname}\nlink set {ifname} up\n{added}"
                    ),
                )?;
                bed::write(
                    &format!("batch-{rail}.del"),
                    &format!("link set {ifname} netns host name dev{rail} mtu 1500\n"),
                )?;
                How::Batch
            }
            (_, Way::Cnitool) => {
                let name = self.name(rail);
                bed::write(
                    &format!("net.d/{name}.conflist"),
                    &self.network(rail, routes)?.to_string(),
                )?;
                How::Cnitool(name)
            }
            _ => How::Direct(self.plugins(rail, routes)?),
        };
        Ok(Attachment {
            how,
            rail,
            pod,
            ifname,
            result: Mutex::default(),
            took: Mutex::default(),
        })
    }

    /// The object of a network as an API server has it.
    pub fn nad(self, rail: usize, routes: &[String]) -> Result<Value, String> {
        Ok(
            json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": self.name(rail)}, "spec": {"config": self.network(rail, routes)?.to_string()}}),
        )
    }

    /// The object of a pod with the first `rails` networks of this contender.
    pub fn pod(self, rails: usize) -> Value {
        let networks: Vec<_> = (0..rails).map(|rail| self.name(rail)).collect();
        let name = format!("{}-of-{rails}", self.file());
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "uid": name, "resourceVersion": "1",
                "annotations": {"k8s.v1.cni.cncf.io/networks": networks.join(",")}},
            "spec": {"containers": []}, "status": {}})
    }
}

/// A pod of Multus, with eth0 and the networks that the API server names.
pub fn by_multus(pod: &Value, api: &str) -> Result<Attachment, String> {
    let kubeconfig = format!("{DIR}/kubeconfig");
    let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "node",
        "clusters": [{"name": "node", "cluster": {"server": api}}],
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": "node"}}],
        "users": [{"name": "node", "user": {}}]});
    bed::write("kubeconfig", &text.to_string())?;
    let eth0 = json!({"cniVersion": VERSION, "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "172.20.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]});
    let conf = json!({"cniVersion": VERSION, "name": "multus-cni-network", "type": "multus", "kubeconfig": kubeconfig,
        "cniDir": format!("{DIR}/multus"), "delegates": [eth0]});
    let name = pod["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    Ok(Attachment {
        how: How::Multus(name, conf),
        rail: 0,
        pod: "pod0".to_owned(),
        ifname: "eth0".to_owned(),
        result: Mutex::default(),
        took: Mutex::default(),
    })
}

impl Attachment {
    /// Changes the configuration of each plugin that is called directly.
    pub fn change(&mut self, change: impl Fn(&mut Value)) {
        if let How::Direct(plugins) = &mut self.how {
            plugins.iter_mut().for_each(change);
        }
    }

    pub fn add(&self, bed: &Bed, runner: &Runner) -> Result<(), String> {
        match &self.how {
            How::Floor(routes) => drop(runner.run(&self.floor("ADD", routes)?)?),
            How::Batch => {
                runner.run(&batch(&[], &format!("batch-{}.move", self.rail)))?;
                runner.run(&batch(
                    &["-n", &self.pod],
                    &format!("batch-{}.add", self.rail),
                ))?;
            }
            How::Direct(plugins) => {
                let mut result = Value::Null;
                for plugin in plugins {
                    let printed = runner.run(&self.call(bed, "ADD", plugin, &result))?;
                    result = serde_json::from_slice(&printed)
                        .map_err(|error| format!("{plugin}: {error}"))?;
                }
                *self.result.lock().unwrap_or_else(PoisonError::into_inner) = result;
            }
            How::Cnitool(name) => drop(runner.run(&self.cnitool(bed, "add", name)?)?),
            How::Multus(name, conf) => drop(runner.run(&self.multus(bed, "ADD", name, conf)?)?),
        }
        Ok(())
    }

    pub fn del(&self, bed: &Bed, runner: &Runner) -> Result<(), String> {
        match &self.how {
            How::Floor(_) => drop(runner.run(&self.floor("DEL", &[])?)?),
            How::Batch => {
                runner.run(&batch(
                    &["-n", &self.pod],
                    &format!("batch-{}.del", self.rail),
                ))?;
            }
            How::Direct(plugins) => {
                let result = self
                    .result
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                for plugin in plugins.iter().rev() {
                    runner.run(&self.call(bed, "DEL", plugin, &result))?;
                }
            }
            How::Cnitool(name) => drop(runner.run(&self.cnitool(bed, "del", name)?)?),
            How::Multus(name, conf) => drop(runner.run(&self.multus(bed, "DEL", name, conf)?)?),
        }
        Ok(())
    }

    fn call(&self, bed: &Bed, verb: &str, plugin: &Value, result: &Value) -> Process {
        let mut conf = plugin.clone();
        conf["cniVersion"] = json!(VERSION);
        conf["name"] = json!(format!("rail-{}", self.rail));
        if !result.is_null() {
            conf["prevResult"] = result.clone();
        }
        bed.call(verb, &conf, &self.pod, &self.pod, &self.ifname)
    }

    fn floor(&self, verb: &str, routes: &[String]) -> Result<Process, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("the own executable: {error}"))?;
        let rail = self.rail.to_string();
        let words = [FLOOR, verb, &rail, &self.pod, &self.ifname].map(str::to_owned);
        let arguments = words.into_iter().chain(routes.iter().cloned()).collect();
        Ok(Process {
            program,
            arguments,
            ..Process::default()
        })
    }

    fn cnitool(&self, bed: &Bed, verb: &str, name: &str) -> Result<Process, String> {
        let program = bed.tools.cnitool.clone().ok_or("no cnitool")?;
        let netns = bed::netns(&self.pod).to_string_lossy().into_owned();
        let mut vars = bed.vars();
        vars.push(("NETCONFPATH".to_owned(), format!("{DIR}/net.d")));
        vars.push(("CNI_IFNAME".to_owned(), self.ifname.clone()));
        Ok(Process {
            program,
            arguments: vec![verb.to_owned(), name.to_owned(), netns],
            vars,
            stdin: Vec::new(),
        })
    }

    fn multus(&self, bed: &Bed, verb: &str, name: &str, conf: &Value) -> Result<Process, String> {
        let program = bed.tools.multus.clone().ok_or("no Multus")?;
        let mut process = bed.call_of(&program, verb, conf, &self.pod, &self.pod, &self.ifname);
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={name}",
            self.pod
        );
        process.vars.push(("CNI_ARGS".to_owned(), args));
        Ok(process)
    }
}

fn batch(options: &[&str], file: &str) -> Process {
    let mut arguments: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
    arguments.extend(["-batch".to_owned(), format!("{DIR}/{file}")]);
    Process {
        program: "ip".into(),
        arguments,
        ..Process::default()
    }
}

impl Subject {
    pub fn add(&self, bed: &Bed, runner: &Runner) -> Result<(), String> {
        self.each(self.attachments.iter(), |attachment| {
            attachment.add(bed, runner)
        })
    }

    /// In the reverse order.
    pub fn del(&self, bed: &Bed, runner: &Runner) -> Result<(), String> {
        self.each(self.attachments.iter().rev(), |attachment| {
            attachment.del(bed, runner)
        })
    }

    /// The mean duration of the last call of each.
    pub fn mean(&self) -> Duration {
        let took = |one: &Attachment| *one.took.lock().unwrap_or_else(PoisonError::into_inner);
        let count = u32::try_from(self.attachments.len()).unwrap_or(1).max(1);
        self.attachments.iter().map(took).sum::<Duration>() / count
    }

    fn each<'s>(
        &'s self,
        mut attachments: impl Iterator<Item = &'s Attachment>,
        work: impl Fn(&Attachment) -> Result<(), String> + Sync,
    ) -> Result<(), String> {
        if !self.is_at_once {
            return attachments.try_for_each(work);
        }
        let timed = |attachment: &Attachment| {
            let began = Instant::now();
            let done = work(attachment);
            *attachment
                .took
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = began.elapsed();
            done
        };
        let work = &timed;
        std::thread::scope(|scope| {
            let started: Vec<_> = attachments
                .map(|attachment| scope.spawn(move || work(attachment)))
                .collect();
            let ended = started.into_iter().map(|one| {
                one.join()
                    .unwrap_or_else(|_| Err("a thread failed".to_owned()))
            });
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }
}
