//! A plugin that fails no check. The tests run each fault in front of it. As `right-ipam` it leases
//! addresses; by any other name it gives a pod one end of a veth pair, with an address of the IPAM
//! plugin that its configuration names.
//!
//! All its state is in the kernel: the name of the host's end says whose it is, and each lease is a
//! symbolic link, which is made whole or not at all. So whatever a call that was killed has left is
//! found by the next DEL.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash as _, Hasher as _};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use cni_conformance::description::VERSIONS;
use nix::fcntl::{Flock, FlockArg};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

const NEWEST: &str = VERSIONS[VERSIONS.len() - 1];

/// Code and message of an error object.
type Fault = (u64, String);

fn fault<T>(code: u64, text: impl Into<String>) -> Result<T, Fault> {
    Err((code, text.into()))
}

/// What the runtime asks.
struct Call {
    verb: String,
    container: String,
    netns: String,
    ifname: String,
    version: String,
    text: Vec<u8>,
    conf: Value,
    is_ipam: bool,
}

fn main() -> ExitCode {
    let verb = variable("CNI_COMMAND");
    if verb.is_empty() {
        let _ = writeln!(
            std::io::stderr(),
            "CNI plugin of versions {}",
            VERSIONS.join(", ")
        );
        return ExitCode::SUCCESS;
    }
    if verb == "VERSION" {
        let _ = print(&json!({"cniVersion": version_asked(), "supportedVersions": VERSIONS}));
        return ExitCode::SUCCESS;
    }
    let mut version = NEWEST.to_owned();
    let done = Call::read(verb, &mut version).and_then(|call| {
        if call.is_ipam {
            lease(&call)
        } else {
            attach(&call)
        }
    });
    let Err((code, msg)) = done else {
        return ExitCode::SUCCESS;
    };
    let _ = print(&json!({"cniVersion": version, "code": code, "msg": msg}));
    ExitCode::FAILURE
}

fn print(value: &Value) -> Result<(), Fault> {
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "{value}").and_then(|()| stdout.flush());
    written.map_err(|error| (5, format!("stdout: {error}")))
}

/// The version that VERSION is asked in. A stdin that says nothing is no reason to wait.
fn version_asked() -> String {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut text);
        let _ = sender.send(text);
    });
    let text = receiver
        .recv_timeout(Duration::from_secs(1))
        .unwrap_or_default();
    let conf: Value = serde_json::from_slice(&text).unwrap_or_default();
    let asked = conf["cniVersion"]
        .as_str()
        .filter(|version| VERSIONS.contains(version));
    asked.unwrap_or(NEWEST).to_owned()
}

fn variable(name: &str) -> String {
    std::env::var_os(name)
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Container IDs and names of networks have the same form.
fn has_form(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

fn is_ifname(text: &str) -> bool {
    let is_plain =
        !text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    (1..16).contains(&text.len()) && ![".", ".."].contains(&text) && is_plain
}

/// A key of the configuration. Its letter case has no meaning, and `null` is as absent.
fn key<'c>(conf: &'c Value, name: &str) -> &'c Value {
    let of_map = || {
        conf.as_object()?
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    };
    conf.get(name).or_else(of_map).unwrap_or(&Value::Null)
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn cidr(value: &Value) -> Result<(IpAddr, u8), Fault> {
    let parts = value.as_str().and_then(|text| text.split_once('/'));
    let parsed = parts.and_then(|(host, length)| Some((host.parse().ok()?, length.parse().ok()?)));
    parsed
        .filter(|(host, length): &(IpAddr, u8)| *length <= if host.is_ipv4() { 32 } else { 128 })
        .ok_or_else(|| (7, format!("{value} is no address with a prefix")))
}

impl Call {
    fn read(verb: String, version: &mut String) -> Result<Call, Fault> {
        let [container, netns, ifname] =
            ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"].map(variable);
        let mut text = Vec::new();
        std::io::stdin()
            .read_to_end(&mut text)
            .map_err(|error| (5, format!("stdin: {error}")))?;
        let conf = serde_json::from_slice::<Value>(&text)
            .ok()
            .filter(Value::is_object);
        let mut told = NEWEST.to_owned();
        if let Some(conf) = &conf {
            told = key(conf, "cniVersion")
                .as_str()
                .unwrap_or("0.1.0")
                .to_owned();
        }
        version.clone_from(&told);
        if !container.is_empty() && !has_form(&container) {
            return fault(4, "CNI_CONTAINERID has another form");
        }
        let needed: &[&str] = match verb.as_str() {
            "ADD" | "CHECK" => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            "DEL" => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            "GC" | "STATUS" => &["CNI_PATH"],
            _ => return fault(4, format!("CNI_COMMAND: there is no verb {verb}")),
        };
        let missing: Vec<_> = needed
            .iter()
            .copied()
            .filter(|name| variable(name).is_empty())
            .collect();
        if !missing.is_empty() {
            return fault(4, format!("not set: {}", missing.join(", ")));
        }
        if !ifname.is_empty() && !is_ifname(&ifname) {
            return fault(4, "CNI_IFNAME is no name of an interface");
        }
        let Some(conf) = conf else {
            return fault(6, "stdin is not one JSON object");
        };
        let program = std::env::args_os().next().unwrap_or_default();
        let is_ipam = Path::new(&program)
            .file_name()
            .is_some_and(|name| name == "right-ipam");
        let call = Call {
            verb,
            container,
            netns,
            ifname,
            version: told,
            text,
            conf,
            is_ipam,
        };
        call.is_possible().map(|()| call)
    }

    fn is_possible(&self) -> Result<(), Fault> {
        let version = key(&self.conf, "cniVersion");
        let since = match self.verb.as_str() {
            "CHECK" => "0.4.0",
            "GC" | "STATUS" => "1.1.0",
            _ => "0.1.0",
        };
        if !(version.is_null() || version.is_string()) {
            return fault(7, "cniVersion: expected a text");
        }
        if !VERSIONS.contains(&self.version.as_str()) || self.version.as_str() < since {
            let known = VERSIONS.join(", ");
            return fault(
                1,
                format!(
                    "{} has no {}; the versions are {known}",
                    self.version, self.verb
                ),
            );
        }
        if !key(&self.conf, "name").as_str().is_some_and(has_form) {
            return fault(7, "name: expected that of a network");
        }
        for (name, is_right) in [
            ("ipam", Value::is_object as fn(&Value) -> bool),
            ("mtu", Value::is_u64),
            ("runtimeConfig", Value::is_object),
        ] {
            let value = key(&self.conf, name);
            if !(value.is_null() || is_right(value)) {
                return fault(7, format!("{name}: {value} is of another type"));
            }
        }
        let id = |path: &str| fs::metadata(path).ok().map(|at| (at.dev(), at.ino()));
        let is_own = id(&self.netns).is_some_and(|pod| Some(pod) == id("/proc/self/ns/net"));
        if is_own && ["ADD", "DEL"].contains(&self.verb.as_str()) {
            return fault(8, "CNI_NETNS is the namespace of the host");
        }
        Ok(())
    }

    /// The name of the host's end.
    fn host_end(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (&self.container, &self.ifname).hash(&mut hasher);
        format!("v{:.12}", format!("{:016x}", hasher.finish()))
    }

    /// Does it in the namespace of the pod, in a thread of its own.
    fn in_pod<T: Send>(&self, work: impl FnOnce() -> Result<T, Fault> + Send) -> Result<T, Fault> {
        let told = |error: &dyn std::fmt::Display| (3, format!("CNI_NETNS: {error}"));
        let netns = File::open(&self.netns).map_err(|error| told(&error))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&netns, CloneFlags::CLONE_NEWNET).map_err(|error| told(&error))?;
                work()
            });
            thread
                .join()
                .unwrap_or_else(|_| fault(999, "a thread failed"))
        })
    }

    /// Has the IPAM plugin do the same, and returns what it prints.
    fn delegate(&self, verb: &str) -> Result<Value, Fault> {
        let ipam = key(&self.conf, "ipam");
        if ipam.is_null() {
            return Ok(json!({}));
        }
        let name = ipam["type"]
            .as_str()
            .filter(|name| !name.is_empty() && !name.contains('/'));
        let Some(name) = name else {
            return fault(7, "ipam.type: expected the name of a plugin");
        };
        let path = variable("CNI_PATH");
        let Some(program) = path
            .split(':')
            .map(|one| Path::new(one).join(name))
            .find(|one| one.is_file())
        else {
            return fault(7, format!("CNI_PATH has no plugin {name}"));
        };
        let mut command = Command::new(program);
        if verb != self.verb {
            command.env("CNI_COMMAND", verb);
        }
        let (is_done, text) = run(command, &self.text)?;
        let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
        if !is_done {
            let msg = answer["msg"]
                .as_str()
                .unwrap_or("the IPAM plugin says nothing");
            return fault(answer["code"].as_u64().unwrap_or(999), msg);
        }
        if verb == "ADD" && !answer.is_object() {
            return fault(6, format!("{name} printed no result"));
        }
        Ok(answer)
    }
}

/// Runs a program with this on stdin: whether it succeeds, and what it prints.
fn run(mut command: Command, text: &[u8]) -> Result<(bool, Vec<u8>), Fault> {
    let told = |error: std::io::Error| (5, format!("cannot execute a program: {error}"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(told)?;
    let stdin = child.stdin.take();
    std::thread::scope(|scope| {
        // One that does not read it needs it not.
        scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(text)));
        let output = child.wait_with_output().map_err(told)?;
        Ok((output.status.success(), output.stdout))
    })
}

/// ip(8), with these lines on stdin.
fn ip(arguments: &str, lines: &str) -> Result<Value, Fault> {
    let mut command = Command::new("ip");
    command
        .args(arguments.split_whitespace())
        .stderr(Stdio::null());
    let (is_done, text) = run(command, lines.as_bytes())?;
    if is_done {
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    } else {
        fault(11, format!("ip {arguments} {lines}"))
    }
}

fn shown(name: &str) -> Result<Value, Fault> {
    ip(&format!("-json addr show dev {name}"), "").map(|links| links[0].clone())
}

// --- the main plugin
// ------------------------------------------------------------------------------------------------

fn attach(call: &Call) -> Result<(), Fault> {
    match call.verb.as_str() {
        "ADD" => add(call),
        "DEL" => {
            detach(call)?;
            call.delegate("DEL").map(drop)
        }
        "CHECK" => check(call),
        verb => call.delegate(verb).map(drop),
    }
}

fn add(call: &Call) -> Result<(), Fault> {
    if call.in_pod(|| Ok(shown(&call.ifname).is_ok()))? {
        return fault(100, format!("the pod has an interface {}", call.ifname));
    }
    let added = call.delegate("ADD").and_then(|leased| {
        let leased = of_any_version(&leased);
        make(call, &leased)?;
        print(&in_version(&result(call, &leased)?, &call.version)?)
    });
    if added.is_err() {
        // What cannot be undone now is left to DEL.
        let _ = detach(call);
        let _ = call.delegate("DEL");
    }
    added
}

/// With its host's end, the interface of the pod is gone.
fn detach(call: &Call) -> Result<(), Fault> {
    let name = call.host_end();
    let deleted = ip(&format!("link del dev {name}"), "");
    if shown(&name).is_ok() {
        deleted.map(drop)
    } else {
        Ok(())
    }
}

fn make(call: &Call, leased: &Value) -> Result<(), Fault> {
    let (name, host) = (&call.ifname, call.host_end());
    let mut link = format!("link add name {name}");
    let mac = &key(&call.conf, "runtimeConfig")["mac"];
    if let Some(mac) = mac.as_str() {
        if !mac.chars().all(|c| c.is_ascii_hexdigit() || c == ':') {
            return fault(7, format!("runtimeConfig.mac: {mac} is no address"));
        }
        link += &format!(" address {mac}");
    }
    if let Some(mtu) = key(&call.conf, "mtu").as_u64() {
        link += &format!(" mtu {mtu}");
    }
    let mut lines = format!(
        "{link} type veth peer name {host} netns {}\n",
        std::process::id()
    );
    for one in list(&leased["ips"]) {
        let (address, length) = cidr(&one["address"])?;
        lines += &format!(
            "addr add {address}/{length} dev {name}{}\n",
            if address.is_ipv6() { " nodad" } else { "" }
        );
    }
    lines += &format!("link set dev {name} up\n");
    for route in list(&leased["routes"]) {
        let (address, length) = cidr(&route["dst"])?;
        let family = if address.is_ipv6() { "-6 " } else { "" };
        let gateway = route["gw"]
            .as_str()
            .and_then(|text| text.parse::<IpAddr>().ok());
        let via = gateway.map_or_else(String::new, |gateway| format!("via {gateway} "));
        lines += &format!("{family}route append {address}/{length} {via}dev {name}\n");
    }
    call.in_pod(|| ip("-batch -", &lines))?;
    ip(&format!("link set dev {host} up"), "").map(drop)
}

/// Of the newest version, behind that of the plugin before.
fn result(call: &Call, leased: &Value) -> Result<Value, Fault> {
    let mut result = of_any_version(key(&call.conf, "prevResult"));
    let own = list(&result["interfaces"]).len();
    let (pod, host) = (
        call.in_pod(|| shown(&call.ifname))?,
        shown(&call.host_end())?,
    );
    let told =
        |link: &Value| json!({"name": link["ifname"], "mac": link["address"], "mtu": link["mtu"]});
    let mut of_pod = told(&pod);
    of_pod["sandbox"] = json!(call.netns);
    let mut ips = list(&leased["ips"]);
    ips.iter_mut().for_each(|one| one["interface"] = json!(own));
    for (name, more) in [
        ("interfaces", vec![of_pod, told(&host)]),
        ("ips", ips),
        ("routes", list(&leased["routes"])),
    ] {
        result[name] = json!([list(&result[name]), more].concat());
    }
    let dns = key(&call.conf, "dns");
    if dns.is_object() {
        result["dns"] = dns.clone();
    }
    Ok(result)
}

/// A result in the form of the newest version.
fn of_any_version(old: &Value) -> Value {
    let (mut ips, mut routes) = (list(&old["ips"]), list(&old["routes"]));
    for of_family in ["ip4", "ip6"]
        .map(|family| &old[family])
        .into_iter()
        .filter(|one| one.is_object())
    {
        ips.push(json!({"address": of_family["ip"], "gateway": of_family["gateway"]}));
        routes.extend(list(&of_family["routes"]));
    }
    for keys in ips.iter_mut().filter_map(Value::as_object_mut) {
        keys.retain(|key, value| key != "version" && !value.is_null());
    }
    let dns = if old["dns"].is_object() {
        old["dns"].clone()
    } else {
        json!({})
    };
    json!({"interfaces": list(&old["interfaces"]), "ips": ips, "routes": routes, "dns": dns})
}

fn in_version(result: &Value, version: &str) -> Result<Value, Fault> {
    let family = |value: &Value| {
        if value.to_string().contains(':') {
            "6"
        } else {
            "4"
        }
    };
    let mut told = result.clone();
    told["cniVersion"] = json!(version);
    if version < "1.1.0" {
        for keys in list(&result["interfaces"])
            .iter()
            .zip(0..)
            .filter_map(|(one, at)| Some((one.as_object()?.clone(), at)))
        {
            let (mut keys, at): (_, usize) = keys;
            keys.remove("mtu");
            told["interfaces"][at] = keys.into();
        }
    }
    if ("0.3.0".."1.0.0").contains(&version) {
        list(&told["ips"])
            .iter()
            .enumerate()
            .for_each(|(at, one)| told["ips"][at]["version"] = json!(family(&one["address"])));
    }
    if version < "0.3.0" {
        told = json!({"cniVersion": version, "dns": result["dns"]});
        for one in list(&result["ips"]) {
            let of = family(&one["address"]);
            let name = format!("ip{of}");
            if !told[&name].is_null() {
                return fault(
                    1,
                    format!("{version} has no room for two addresses of a family"),
                );
            }
            let routes: Vec<_> = list(&result["routes"])
                .into_iter()
                .filter(|route| family(&route["dst"]) == of)
                .collect();
            told[name] = json!({"ip": one["address"], "gateway": one["gateway"], "routes": routes});
        }
    }
    Ok(told)
}

fn check(call: &Call) -> Result<(), Fault> {
    if !key(&call.conf, "prevResult").is_object() {
        return fault(7, "prevResult: CHECK needs the result of ADD");
    }
    let told = of_any_version(key(&call.conf, "prevResult"));
    let interfaces = list(&told["interfaces"]);
    // The host may have one of the same name, without a sandbox.
    let is_own = |one: &Value| {
        one["name"] == call.ifname && one["sandbox"].as_str().is_some_and(|path| !path.is_empty())
    };
    let Some(own) = interfaces.iter().position(is_own) else {
        return fault(100, format!("prevResult has no interface {}", call.ifname));
    };
    let (link, routes) = call.in_pod(|| {
        let routes = |family: &str| {
            ip(
                &format!("{family} -json route show table all dev {}", call.ifname),
                "",
            )
            .map(|all| list(&all))
        };
        Ok((
            shown(&call.ifname)?,
            [routes("-4")?, routes("-6")?].concat(),
        ))
    })?;
    let differs =
        |key: &str, now: &Value| !interfaces[own][key].is_null() && interfaces[own][key] != *now;
    let is_up = list(&link["flags"]).contains(&json!("UP"));
    if !is_up || differs("mac", &link["address"]) || differs("mtu", &link["mtu"]) {
        return fault(100, format!("{} is now {link}", call.ifname));
    }
    let now: Vec<_> = list(&link["addr_info"])
        .iter()
        .filter_map(|one| {
            Some((
                one["local"].as_str()?.parse().ok()?,
                u8::try_from(one["prefixlen"].as_u64()?).ok()?,
            ))
        })
        .collect();
    let mut gateways = Vec::new();
    for one in list(&told["ips"])
        .iter()
        .filter(|one| one["interface"] == json!(own))
    {
        if !now.contains(&cidr(&one["address"])?) {
            return fault(
                100,
                format!("{} has no address {}", call.ifname, one["address"]),
            );
        }
        gateways.push(one["gateway"].clone());
    }
    // Those of other plugins are their matter.
    let mut own_routes = list(&told["routes"]);
    own_routes.retain(|route| gateways.contains(&route["gw"]));
    if let Some(gone) = own_routes
        .iter()
        .find(|route| !routes.iter().any(|now| now["dst"] == route["dst"]))
    {
        return fault(100, format!("{} has no route {gone}", call.ifname));
    }
    call.delegate("CHECK").map(drop)
}

// --- the IPAM plugin
// ------------------------------------------------------------------------------------------------

/// The leases of a network: links by address, to container and interface. Nobody else changes them
/// meanwhile.
struct Leases {
    directory: PathBuf,
    _lock: Option<Flock<File>>,
}

fn lease(call: &Call) -> Result<(), Fault> {
    let leases = Leases::of(call)?;
    let own = format!("{}/{}", call.container, call.ifname);
    match call.verb.as_str() {
        "ADD" => {
            let leased = leases.add(call, &own)?;
            let told = in_version(&leased, &call.version).and_then(|result| print(&result));
            if told.is_err() {
                leases.remove(|owner| owner == own)?;
            }
            told
        }
        "DEL" => leases.remove(|owner| owner == own),
        "CHECK" if !leases.all().iter().any(|(_, owner)| *owner == own) => {
            fault(100, format!("{own} has no address"))
        }
        "GC" => {
            let valid = ["cni.dev/valid-attachments", "cni.dev/attachments"]
                .map(|name| key(&call.conf, name));
            let Some(valid) = valid.into_iter().find_map(Value::as_array) else {
                return Ok(());
            };
            let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
            let living: Vec<_> = valid
                .iter()
                .map(|one| format!("{}/{}", text(one, "containerID"), text(one, "ifname")))
                .collect();
            leases.remove(|owner| !living.iter().any(|one| one == owner))
        }
        _ => Ok(()),
    }
}

impl Leases {
    fn of(call: &Call) -> Result<Leases, Fault> {
        let told = |error: &dyn std::fmt::Display| (5, format!("the leases: {error}"));
        let Some(data) = key(&call.conf, "ipam")["dataDir"].as_str() else {
            return fault(7, "ipam.dataDir: expected a path");
        };
        let directory = Path::new(data).join(key(&call.conf, "name").as_str().unwrap_or_default());
        if call.verb == "ADD" {
            fs::create_dir_all(&directory).map_err(|error| told(&error))?;
        }
        let lock = match File::open(&directory) {
            Ok(file) => Some(
                Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| told(&error))?,
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(told(&error)),
        };
        Ok(Leases {
            directory,
            _lock: lock,
        })
    }

    fn all(&self) -> Vec<(PathBuf, String)> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        entries
            .filter_map(|path| Some((fs::read_link(&path).ok()?.to_str()?.to_owned(), path)))
            .map(|(to, at)| (at, to))
            .collect()
    }

    fn remove(&self, is_over: impl Fn(&str) -> bool) -> Result<(), Fault> {
        for (path, _) in self.all().iter().filter(|(_, owner)| is_over(owner)) {
            fs::remove_file(path)
                .map_err(|error| (5, format!("cannot release: {:?}", error.kind())))?;
        }
        Ok(())
    }

    fn add(&self, call: &Call, own: &str) -> Result<Value, Fault> {
        let ipam = key(&call.conf, "ipam");
        if self.all().iter().any(|(_, owner)| owner == own) {
            return fault(100, format!("{own} has an address"));
        }
        let (IpAddr::V4(first), length) = cidr(&ipam["subnet"])? else {
            return fault(7, "ipam.subnet: expected one of IPv4");
        };
        let size = 1_u32
            .checked_shl(32 - u32::from(length))
            .unwrap_or(0)
            .clamp(1, 1 << 16);
        // The first is the network, and the last the broadcast.
        let hosts = if size > 2 { 1..size - 1 } else { 0..size };
        let all = hosts.map(|at| Ipv4Addr::from(u32::from(first).saturating_add(at)));
        let asked = &key(&call.conf, "runtimeConfig")["ips"];
        let asked: Vec<_> = list(asked)
            .iter()
            .map(|one| one.as_str().unwrap_or_default().to_owned())
            .collect();
        let is_asked = |one: &Ipv4Addr| {
            asked.is_empty()
                || asked
                    .iter()
                    .any(|text| text.split('/').next() == Some(&one.to_string()))
        };
        for address in all
            .filter(|one| ipam["gateway"] != one.to_string())
            .filter(is_asked)
        {
            match symlink(own, self.directory.join(address.to_string())) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => (),
                Err(error) => return fault(5, format!("cannot lease {address}: {error}")),
                Ok(()) => {
                    let mut routes = list(&ipam["routes"]);
                    routes
                        .iter_mut()
                        .for_each(|route| route["gw"] = ipam["gateway"].clone());
                    let address = format!("{address}/{length}");
                    let of_any = json!({"ips": [{"address": address, "gateway": ipam["gateway"]}], "routes": routes});
                    let mut leased = of_any_version(&of_any);
                    leased.as_object_mut().map(|keys| keys.remove("interfaces"));
                    return Ok(leased);
                }
            }
        }
        fault(11, "no address is left")
    }
}
