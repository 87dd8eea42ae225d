//! The CNI protocol: a call is a set of environment variables and a configuration on stdin; the
//! answer is one JSON object on stdout and an exit status.

mod args;
mod build_id;
mod delegate;
pub mod keys;
mod result;

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{LazyLock, Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

pub use args::{
    Args, Attachment, Command, Environment, check_ifname, find_plugin, is_identifier,
    is_netdev_name, plugin_path,
};
pub use build_id::is_of_this_build;
pub use delegate::{Delegate, gave_nothing};
pub use keys::{Keys, Members};
pub use result::{AddResult, Dns, Interface, Ip, Route, VERSIONS, Version};

use crate::error::{Code, ErrorJson, Failure};
use crate::log::Call;
use crate::sysfs::DeviceId;
use crate::{calls, fail, failure, netns, watchdog};

/// The release and the commit, which `scripts/build` passes: `0.2.0 (71c319b3c2d1)`.
pub static RELEASE: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("RAIL_CNI_COMMIT").filter(|commit| !commit.is_empty());
    format!(
        "{} ({})",
        env!("CARGO_PKG_VERSION"),
        commit.unwrap_or("commit unknown")
    )
});

/// The verbs of a plugin. [`main`] has checked before what is the same for both plugins.
pub trait Plugin {
    /// The name of the executable.
    const NAME: &'static str;
    /// The keys of a network configuration that the plugin knows.
    const KEYS: &'static Keys;
    /// Bytes of a configuration that ADD accepts.
    const MOST_CONFIG: usize;
    /// Whether the plugin calls other plugins. Then none of them may call it in turn, because that
    /// call would wait for a lock that this process holds.
    const CALLS_OTHERS: bool;

    /// Attaches the device. When it fails, it leaves nothing behind.
    fn add(&self, network: &Network, attachment: &Attachment, netns: &Path) -> Result<AddResult>;
    /// Undoes an ADD. It succeeds if there is nothing to undo.
    fn del(&self, network: &Network, attachment: &Attachment, netns: Option<&Path>) -> Result<()>;
    /// Compares the attachment with what ADD made, and changes nothing.
    fn check(
        &self,
        network: &Network,
        attachment: &Attachment,
        netns: &Path,
        previous: &AddResult,
    ) -> Result<()>;
    /// Fails when an ADD would fail now.
    fn status(&self, network: &Network) -> Result<()>;
    /// Undoes every ADD of this network except those of `keep`.
    fn gc(&self, network: &Network, keep: &[Attachment]) -> Result<()>;
}

/// The configuration on stdin, with the environment variables that belong to it.
#[derive(Debug)]
pub struct Network {
    /// The name of the network, an identifier. It is empty in a DEL whose configuration has no
    /// valid name.
    pub name: String,
    /// The version of the answer.
    pub version: Version,
    /// The configuration as [`keys::read`] makes it of stdin: known keys are in the spelling of
    /// [`Plugin::KEYS`].
    pub config: Map<String, Value>,
    /// The unchanged bytes of stdin, for other plugins.
    pub stdin: Vec<u8>,
    /// CNI_ARGS.
    pub args: Args,
    /// CNI_PATH.
    pub path: Vec<std::path::PathBuf>,
}

/// The treatment of a faulty configuration by [`Network::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// A fault is an error.
    Strict,
    /// For DEL, which must work although the configuration was changed after ADD: an unknown
    /// version counts as the newest, a value of the wrong type as absent, and of two equal keys the
    /// last one counts.
    Lenient,
}

impl Network {
    /// The PCI address or auxiliary name of the device that is meant, if the runtime or the result
    /// of ADD says which it is. What cannot be read is absent.
    pub fn device_id(&self, ifname: &str) -> Option<DeviceId> {
        let previous = self.previous().ok().flatten();
        let interfaces = previous.iter().flat_map(|result| &result.interfaces);
        let of_result = interfaces
            .filter(|one| one.name == ifname)
            .find_map(|one| one.pci_id.as_deref());
        let given = [
            &["runtimeConfig", "deviceID"][..],
            &["deviceID"],
            &["pciBusID"],
        ];
        let text = |path: &&[&str]| self.get(path).and_then(Value::as_str);
        given
            .iter()
            .filter_map(text)
            .chain(of_result)
            .find_map(DeviceId::parse)
    }

    /// Reads the configuration and checks what both plugins need.
    pub fn parse(
        stdin: Vec<u8>,
        args: Args,
        path: Vec<std::path::PathBuf>,
        keys: &'static Keys,
        strictness: Strictness,
    ) -> Result<Network> {
        let lenient = strictness == Strictness::Lenient;
        let Members {
            object: config,
            fault,
        } = keys::read(&stdin, keys).context(Failure::new(
            Code::Decode,
            "stdin: the network configuration is not one JSON object",
        ))?;
        if let Some(fault) = fault.filter(|_| !lenient) {
            fail!(InvalidConfig, "network configuration: {fault}");
        }
        let name = match config.get("name") {
            None | Some(Value::Null) => fail!(InvalidConfig, "missing network name"),
            Some(Value::String(name)) if name.is_empty() => {
                fail!(InvalidConfig, "missing network name")
            }
            Some(Value::String(name)) if is_identifier(name) => name.clone(),
            Some(Value::String(name)) => {
                return Err(anyhow::Error::new(
                    Failure::new(
                        Code::InvalidConfig,
                        "invalid characters found in network name",
                    )
                    .details(name),
                ));
            }
            Some(_) if lenient => String::new(),
            Some(other) => fail!(Decode, "name: {other} is not a string"),
        };
        let version = match config.get("cniVersion") {
            None | Some(Value::Null) => Version::V010,
            Some(Value::String(text)) if text.is_empty() => Version::V010,
            Some(Value::String(text)) => match Version::parse(text) {
                Some(version) => version,
                None if lenient => Version::V110,
                None if !looks_like_a_version(text) => {
                    fail!(Decode, "cniVersion: {text:?} is not a version")
                }
                None => {
                    let known: Vec<_> = VERSIONS.iter().map(|version| version.as_str()).collect();
                    return Err(anyhow::Error::new(
                        Failure::new(Code::IncompatibleVersion, "incompatible CNI versions")
                            .details(format!("config is {text:?}, plugin supports {known:?}")),
                    ));
                }
            },
            Some(_) if lenient => Version::V110,
            Some(other) => fail!(Decode, "cniVersion: {other} is not a string"),
        };
        Ok(Network {
            name,
            version,
            config,
            stdin,
            args,
            path,
        })
    }

    /// The value at `path`; a JSON null counts as absent.
    pub fn get(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        let mut value = self.config.get(*first)?;
        for key in rest {
            value = value.as_object()?.get(*key)?;
        }
        Some(value).filter(|value| !value.is_null())
    }

    /// The configuration with `key` set to `value`, for an IPAM plugin that needs a fact about the
    /// device.
    pub fn stdin_with(&self, key: &str, value: Value) -> Result<Vec<u8>> {
        let value = serde_json::value::to_raw_value(&value)?;
        let mut config: BTreeMap<String, &RawValue> = serde_json::from_slice(&self.stdin)?;
        config.retain(|other, _| !other.eq_ignore_ascii_case(key));
        config.insert(key.to_owned(), &value);
        Ok(serde_json::to_vec(&config)?)
    }

    /// The result of an earlier plugin of the chain, or of this plugin's own ADD.
    pub fn previous(&self) -> Result<Option<AddResult>> {
        let Some(value) = self.get(&["prevResult"]) else {
            return Ok(None);
        };
        if value.as_object().is_some_and(Map::is_empty) {
            return Ok(None);
        }
        let result = AddResult::parse(value, self.version).context("prevResult")?;
        result.check_indexes().context("prevResult")?;
        Ok(Some(result))
    }

    /// The attachments that GC keeps: `cni.dev/valid-attachments`, or the key's first name in the
    /// text of 1.1.0. Absent, null and empty all mean that none is kept: cnitool sends no list, and
    /// CRI-O sends `null` for a node without pods.
    fn valid_attachments(&self) -> Result<Vec<Attachment>> {
        let list = GC_KEYS
            .iter()
            .find_map(|key| self.get(&[key]).map(|value| (*key, value)));
        let Some((key, list)) = list else {
            return Ok(Vec::new());
        };
        let Value::Array(list) = list else {
            fail!(Decode, "{key}: must be a list")
        };
        let text =
            |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        list.iter()
            .map(|entry| {
                let attachment = text(entry, "containerID").zip(text(entry, "ifname")).map(
                    |(container_id, ifname)| Attachment {
                        container_id,
                        ifname,
                    },
                );
                attachment.ok_or_else(|| {
                    failure!(Decode, "{key}: {entry} must have containerID and ifname")
                })
            })
            .collect()
    }
}

/// Warns of unknown keys of the object at `path`. A few suffice to show the mistake.
pub fn warn_of_unknown<'a>(path: &str, keys: impl Iterator<Item = &'a String>) {
    const NAMED: usize = 8;
    let mut keys = keys.map(|key| keys::below(path, key));
    for key in keys.by_ref().take(NAMED) {
        log::warn!("unknown key {key:?} is ignored");
    }
    let more = keys.count();
    if more > 0 {
        log::warn!("{more} more unknown keys are ignored");
    }
}

/// The keys under which a runtime lists the attachments that GC keeps.
pub const GC_KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// Whether `text` has three numbers, as a version that this plugin merely does not know.
fn looks_like_a_version(text: &str) -> bool {
    let parts: Vec<_> = text.split('.').collect();
    parts.len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok())
}

/// The whole life of a plugin's process.
pub fn main<P: Plugin>(plugin: &P) -> ExitCode {
    crate::files::process_started();
    let var = |name: &str| std::env::var_os(name);
    match Environment::read(var) {
        Ok(None) => introduce::<P>(),
        Ok(Some(environment)) => {
            report_panics();
            serve(plugin, environment)
        }
        Err(error) => {
            let version = error_version(waiting_stdin().as_deref());
            let is_del = var("CNI_COMMAND").is_some_and(|verb| verb == "DEL");
            report(version, &error, is_del)
        }
    }
}

/// Answers whoever typed the name of a plugin. An argument other than `--version` fails, so that a
/// script notices that its command is one of railctl.
fn introduce<P: Plugin>() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if args == ["--version"] {
        let _ = writeln!(std::io::stdout(), "{} {}", P::NAME, *RELEASE);
        return ExitCode::SUCCESS;
    }
    let known: Vec<_> = VERSIONS.iter().map(|version| version.as_str()).collect();
    eprintln!("CNI {} plugin v{}", P::NAME, *RELEASE);
    eprintln!("CNI protocol versions supported: {}", known.join(", "));
    eprintln!("Container runtimes call it. For commands, use railctl: try `railctl --help`");
    if args.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    }
}

/// The version that errors are reported in after stdin was read; the thread that reports for a call
/// that hangs needs it as well.
static ANSWER_VERSION: OnceLock<&str> = OnceLock::new();

/// Runs one verb, from reading stdin to the answer.
fn serve<P: Plugin>(plugin: &P, environment: Environment) -> ExitCode {
    let Environment {
        command,
        args,
        path,
    } = environment;
    if let Command::Version = command {
        return version();
    }
    let is_del = matches!(command, Command::Del(..));
    calls::begin();
    watchdog::start(move |why: String| give_up(&why, is_del));
    watchdog::step(|| "reading the network configuration on stdin".to_owned());
    let stdin = match read_stdin::<P>(&command) {
        Ok(stdin) => stdin,
        Err(error) => return report(error_version(None), &error, is_del),
    };
    watchdog::allow(watchdog::LIMIT);
    let answer_version = *ANSWER_VERSION.get_or_init(|| error_version(Some(&stdin)));
    let strictness = if is_del {
        Strictness::Lenient
    } else {
        Strictness::Strict
    };
    let done = Network::parse(stdin, args, path, P::KEYS, strictness).and_then(|network| {
        crate::log::describe(call_of::<P>(&network, &command));
        run(plugin, &network, &command)
    });
    match done {
        Ok(()) => {
            calls::end(0, "");
            ExitCode::SUCCESS
        }
        Err(error) => report(answer_version, &error, is_del),
    }
}

/// The call, for its log.
pub fn call_of<P: Plugin>(network: &Network, command: &Command) -> Call {
    let attachment = command.attachment();
    Call {
        plugin: P::NAME,
        verb: command.name().to_owned(),
        network: network.name.clone(),
        pod: network.args.pod(),
        pod_uid: network.args.pod_uid().map(str::to_owned),
        container: attachment.map(|attachment| attachment.container_id.clone()),
        interface: attachment.map(|attachment| attachment.ifname.clone()),
    }
}

/// Bytes of the configuration of a verb other than ADD: a runtime adds results and the list that GC
/// keeps, and an earlier version may have attached what ADD refuses now. etcd has room for 1.5 MiB.
const MOST_STDIN: usize = 2 << 20;

/// Reads stdin. What is too long is read to its end and not kept, because its writer may not expect
/// a pipe to be closed.
fn read_stdin<P: Plugin>(command: &Command) -> Result<Vec<u8>> {
    let most = if let Command::Add(..) = command {
        P::MOST_CONFIG
    } else {
        MOST_STDIN
    };
    let mut from = std::io::stdin().lock();
    // Room for most configurations, or the library reads 32 bytes first.
    let mut stdin = Vec::with_capacity(4096);
    from.by_ref()
        .take(most as u64)
        .read_to_end(&mut stdin)
        .context("cannot read stdin")?;
    let more = std::io::copy(&mut from, &mut std::io::sink()).context("cannot read stdin")?;
    match command {
        _ if more == 0 => Ok(stdin),
        // No attachment has this configuration, and the pod must be able to end.
        Command::Del(..) => Ok(br#"{"name": 0}"#.to_vec()),
        _ => fail!(
            InvalidConfig,
            "the network configuration has {} bytes, which is more than {most}: leave out what no plugin reads, and \
             import a large pool into the store",
            stdin.len() as u64 + more
        ),
    }
}

fn run<P: Plugin>(plugin: &P, network: &Network, command: &Command) -> Result<()> {
    if P::CALLS_OTHERS && std::env::var_os(delegate::CALLER).is_some() {
        let (name, verb) = (P::NAME, command.name());
        if let Command::Del(..) = command {
            log::warn!(
                "{name} was called as its own IPAM plugin, which never had an address: there is nothing to do"
            );
            return Ok(());
        }
        fail!(
            InvalidConfig,
            "{name} called {name} as its own IPAM plugin for {verb}: correct ipam.type"
        );
    }
    if let Command::Add(_, netns) | Command::Del(_, Some(netns)) = command {
        refuse_own_namespace(netns)?;
    }
    let result = perform(plugin, network, command)?;
    let (Command::Add(attachment, netns), Some(result)) = (command, result) else {
        return Ok(());
    };
    // If the answer cannot be written, the runtime never learns of the device: a runtime that was
    // killed leaves a closed pipe, and its DEL may have come before.
    let printed = result
        .to_json(network.version)
        .and_then(|json| Ok(print(&json)?));
    printed.map_err(|error| {
        let undone = plugin.del(network, attachment, Some(netns));
        let error = error.context("the result could not be written, so the ADD was undone");
        undone
            .err()
            .map_or(error, |undo| failure!(Io, "undoing ADD failed: {undo:#}"))
    })
}

/// Runs one verb, and returns the result of an ADD.
pub fn perform<P: Plugin>(
    plugin: &P,
    network: &Network,
    command: &Command,
) -> Result<Option<AddResult>> {
    let needs = |version: Version| {
        if network.version < version {
            fail!(
                IncompatibleVersion,
                "config version does not allow {}",
                command.name()
            );
        }
        Ok(())
    };
    match command {
        Command::Add(attachment, netns) => return plugin.add(network, attachment, netns).map(Some),
        Command::Del(attachment, netns) => plugin.del(network, attachment, netns.as_deref())?,
        Command::Check(attachment, netns) => {
            needs(Version::V040)?;
            let Some(previous) = network.previous()? else {
                fail!(InvalidConfig, "required prevResult missing");
            };
            plugin.check(network, attachment, netns, &previous)?;
        }
        Command::Status => {
            needs(Version::V110)?;
            plugin.status(network)?;
        }
        Command::Gc => {
            needs(Version::V110)?;
            plugin.gc(network, &network.valid_attachments()?)?;
        }
        Command::Version | Command::Unknown(_) => {
            fail!(
                InvalidEnvironment,
                "unknown CNI_COMMAND: {}",
                command.name()
            )
        }
    }
    Ok(None)
}

/// Refuses CNI_NETNS if it is the plugin's own namespace: a plugin that moved a device there could
/// not tell it from the host's. Go's skel checks this only after the plugin has acted, and then
/// prints a second document.
fn refuse_own_namespace(netns: &Path) -> Result<()> {
    let allowed = std::env::var("CNI_NETNS_OVERRIDE")
        .unwrap_or_default()
        .to_ascii_lowercase();
    if !matches!(allowed.as_str(), "1" | "true")
        && netns::is_same(netns, Path::new("/proc/self/ns/net"))
    {
        fail!(
            InvalidNetns,
            "plugin's netns and netns from CNI_NETNS should not be the same"
        );
    }
    Ok(())
}

/// Time that VERSION, and an error before stdin is needed, wait for the next bytes of stdin. The
/// writer may be slow to be scheduled, or keep the pipe open and never write.
const STDIN_PATIENCE: Duration = Duration::from_secs(1);

/// Reads stdin until it pauses for [`STDIN_PATIENCE`], up to [`MOST_STDIN`]. `None` for a terminal.
fn waiting_stdin() -> Option<Vec<u8>> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return None;
    }
    let patience = PollTimeout::try_from(STDIN_PATIENCE).unwrap_or(PollTimeout::ZERO);
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    while text.len() < MOST_STDIN {
        let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if !poll(&mut fds, patience).is_ok_and(|ready| ready > 0) {
            break;
        }
        match stdin.lock().read(&mut chunk) {
            Ok(count) if count > 0 => text.extend_from_slice(&chunk[..count]),
            _ => break,
        }
    }
    Some(text)
}

/// Answers VERSION whatever stdin is: runtimes call it for every file in their directory, some of
/// them with an open pipe that they never write to.
fn version() -> ExitCode {
    let text = waiting_stdin().unwrap_or_default();
    let requested = version_in(&text);
    let requested = requested.as_ref().and_then(Value::as_str);
    let version = requested
        .filter(|text| !text.is_empty())
        .unwrap_or(Version::V110.as_str());
    let known: Vec<_> = VERSIONS.iter().map(|version| version.as_str()).collect();
    match print(&json!({ "cniVersion": version, "supportedVersions": known })) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The version that an error is reported in: that of the configuration, if it can be read.
fn error_version(stdin: Option<&[u8]>) -> &'static str {
    match stdin.and_then(version_in) {
        None => Version::V110.as_str(),
        Some(Value::Null) => Version::V010.as_str(),
        Some(Value::String(text)) if text.is_empty() => Version::V010.as_str(),
        Some(value) => value
            .as_str()
            .and_then(Version::parse)
            .unwrap_or(Version::V110)
            .as_str(),
    }
}

/// The `cniVersion` of a configuration, null where it has none; `None` if `stdin` is not a
/// configuration.
fn version_in(stdin: &[u8]) -> Option<Value> {
    static VERSION: Keys = Keys::flat(&[&["cniVersion"]]);
    let mut config = keys::read(stdin, &VERSION).ok()?.object;
    Some(config.remove("cniVersion").unwrap_or_default())
}

/// The answer to a call that failed. A runtime decodes it and shows it to people, and a tenant's
/// values are in it, so it has nothing that controls a terminal.
pub fn answer(version: &str, error: &anyhow::Error, is_del: bool) -> ErrorJson {
    let mut json = ErrorJson::new(version, error);
    json.msg = crate::log::clipped(&crate::log::escaped(&json.msg));
    let details = json
        .details
        .split('\n')
        .map(crate::log::escaped)
        .collect::<Vec<_>>()
        .join("\n");
    json.details = crate::log::clipped(&details);
    if is_del { json.safe_for_del() } else { json }
}

fn report(version: &str, error: &anyhow::Error, is_del: bool) -> ExitCode {
    log::error!("{error:#}");
    let json = answer(version, error, is_del);
    let code = json.code;
    // When this fails too, the exit status alone says that the call failed.
    let _ = serde_json::to_value(json).map(|json| print(&json));
    calls::end(code, &format!("{error:#}"));
    ExitCode::FAILURE
}

/// Answers for a call that does not end. The answer and, if it can be written, the log say what the
/// call was doing. What the call had begun is on record, and the next DEL undoes it.
fn give_up(why: &str, is_del: bool) {
    let why = format!("the call {why}; the next DEL undoes what it had begun");
    let error = failure!(TryAgain, "{why}");
    let version = ANSWER_VERSION
        .get()
        .copied()
        .unwrap_or(Version::V110.as_str());
    let json = answer(version, &error, is_del);
    let line = serde_json::to_string(&json).unwrap_or_default() + "\n";
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
    calls::end(json.code, &why);
    log::error!("{why}");
}

/// Prints the answer with one write. `println!` would panic on a closed pipe.
fn print(json: &Value) -> std::io::Result<()> {
    watchdog::answer();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(format!("{json}\n").as_bytes())?;
    stdout.flush()
}

/// Reports a panic, which is a bug, as a JSON object to the runtime. What the call had begun is on
/// record, and the next DEL undoes it.
fn report_panics() {
    static ONCE: Mutex<()> = Mutex::new(());
    std::panic::set_hook(Box::new(|info| {
        let _first = ONCE.lock();
        let error = failure!(Internal, "internal error, please report it: {info}");
        let _ = report(Version::V110.as_str(), &error, true);
        #[expect(
            clippy::exit,
            reason = "the only way to end with status 1 instead of SIGABRT"
        )]
        std::process::exit(1);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::DeviceId;
    use proptest::prelude::*;

    /// JSON with the keys that the parsers look for.
    fn any_json() -> impl Strategy<Value = Value> {
        let key = prop_oneof![
            prop::sample::select(vec![
                "cniVersion",
                "name",
                "prevResult",
                "interfaces",
                "ips",
                "address",
                "gateway",
                "interface",
                "routes",
                "dst",
                "gw",
                "mtu",
                "dns",
                "nameservers",
                "ip4",
                "ip6",
                "ip",
                "cni.dev/valid-attachments",
                "containerID",
                "ifname",
                "CNIVersion",
            ])
            .prop_map(str::to_owned),
            ".{0,4}",
        ];
        let text = prop_oneof![
            prop::sample::select(vec![
                "0.1.0",
                "0.2.0",
                "1.1.0",
                "10.0.0.1/24",
                "10.0.0.1",
                "::/0",
                "net1",
                ""
            ])
            .prop_map(str::to_owned),
            ".{0,8}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key.clone(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn strictness() -> impl Strategy<Value = Strictness> {
        prop_oneof![Just(Strictness::Strict), Just(Strictness::Lenient)]
    }

    fn parse(stdin: Vec<u8>, strictness: Strictness) -> Result<Network> {
        static KEYS: Keys = Keys::flat(&[&["cniVersion", "name", "prevResult"], &GC_KEYS]);
        Network::parse(stdin, Args::default(), Vec::new(), &KEYS, strictness)
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes: Vec<u8>, strictness in strictness()) {
            let _ = error_version(Some(&bytes));
            let _ = DeviceId::parse(&String::from_utf8_lossy(&bytes));
            prop_assert!(parse(bytes, strictness).is_err());
        }

        #[test]
        fn a_network_of_any_content_is_read_or_refused(mut config in any_json(), strictness in strictness()) {
            if let Some(object) = config.as_object_mut() {
                object.insert("name".to_owned(), "rail-0".into());
            }
            if let Ok(network) = parse(config.to_string().into_bytes(), strictness) {
                let _ = network.previous();
                let _ = network.valid_attachments();
                prop_assert_eq!(network.name, "rail-0");
            }
        }

        /// A version reads its own results, as far as it has room for the value.
        #[test]
        fn a_result_of_any_content_is_read_or_refused(value in any_json(), version in prop::sample::select(&VERSIONS[..])) {
            let Ok(result) = AddResult::parse(&value, version) else { return Ok(()) };
            for version in VERSIONS {
                let Ok(written) = result.to_json(version) else { continue };
                let read = AddResult::parse(&written, version);
                prop_assert!(read.is_ok(), "{:?}: {}", read, written);
                prop_assert_eq!(read.ok().and_then(|read| read.to_json(version).ok()), Some(written));
            }
        }

        #[test]
        fn a_device_id_stays_a_file_name(text in "[0-9a-fA-F:.a-z_/-]{0,24}|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-9]") {
            if let Some(id) = DeviceId::parse(&text) {
                prop_assert!(!id.as_str().contains('/') && !id.as_str().starts_with('.') && !id.as_str().is_empty());
                prop_assert_eq!(DeviceId::parse(id.as_str()), Some(id.clone()));
            }
        }
    }

    /// kubectl prints what an error of a NAD's key says, and a tenant writes NADs.
    #[test]
    fn no_answer_controls_the_terminal_of_who_reads_it() {
        let error = anyhow::Error::new(
            Failure::new(Code::InvalidConfig, "sysctl.\u{1b}[2J\u{7f}\u{202e}\nx")
                .details("a\tb\nc\u{85}"),
        );
        let json = answer("1.1.0", &error, false);
        assert_eq!(json.msg, "sysctl.\\u{1b}[2J\\u{7f}\\u{202e}\\nx");
        assert_eq!(json.details, "a\\tb\nc\\u{85}");
    }
}
