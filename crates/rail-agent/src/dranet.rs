//! The profile provider of DRANET: an HTTP server on a Unix socket. DRANET requests the addresses of
//! a device before the pod has a sandbox.
//!
//! The agent only translates: `railctl lease` and `railctl release` decide, in the host's
//! namespaces. Parts of a request come from a tenant, so none becomes a path, or an argument that
//! could be an option.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::host::{Host, HostDir, ProgramOutput, RAILCTL};
use crate::report::Refused;
use crate::text::{clean, error_text, log};

/// The socket's directory in the run directory. DRANET mounts it.
pub const DIRECTORY: &str = "dranet";
/// The name of the socket.
pub const SOCKET: &str = "provider.sock";
/// The profile for the pools of the device's rail.
const RAIL_PROFILE: &str = "rail";
/// Larger than a ResourceClaim: etcd stores at most 1.5 MiB.
const MAX_REQUEST_BYTES: usize = 2 << 20;
/// Concurrent requests.
const MAX_REQUESTS: usize = 16;
/// Longer than the 10 s that DRANET waits.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval of the socket's checks: the run directory may have been emptied.
const SOCKET_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Priority of the rule of rail 0, as in rail-cni.
const FIRST_PRIORITY: u32 = 1000;
/// RT_SCOPE_LINK, the scope of a route to a neighbour.
const LINK_SCOPE: u8 = 253;

/// The server, which answers by railctl.
#[derive(Debug)]
pub struct Provider {
    host: Host,
    railctl: PathBuf,
}

/// Serves at the socket for as long as the agent runs.
pub fn serve(host: Host, run_dir: PathBuf, plugins_dir: &Path) -> Result<()> {
    let provider = Arc::new(Provider {
        host,
        railctl: plugins_dir.join(RAILCTL),
    });
    let mut socket = Socket::bind(&provider.host, &run_dir)?;
    log(
        "info",
        &format!(
            "DRANET finds its profile provider at {}",
            socket.dir.shown(SOCKET)
        ),
    );
    let request_permits = Arc::new(Semaphore::new(MAX_REQUESTS));
    tokio::spawn(async move {
        loop {
            let Ok(permit) = request_permits.clone().acquire_owned().await else {
                return;
            };
            match tokio::time::timeout(SOCKET_CHECK_INTERVAL, socket.listener.accept()).await {
                Ok(Ok((stream, _))) => {
                    let provider = provider.clone();
                    tokio::spawn(async move {
                        provider.converse(stream).await;
                        drop(permit);
                    });
                }
                // For example, no free file descriptor.
                Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(_) if socket.is_there() => (),
                Err(_) => match Socket::bind(&provider.host, &run_dir) {
                    Ok(new) => socket = new,
                    Err(error) => log("warn", &error_text(&error)),
                },
            }
        }
    });
    Ok(())
}

/// The socket of the host. Only root can enter its directory.
struct Socket {
    dir: HostDir,
    listener: UnixListener,
}

impl Socket {
    /// Replaces the socket of an earlier agent, which has ended because this one has the lock.
    fn bind(host: &Host, run_dir: &Path) -> Result<Socket> {
        let dir = host.make_dir(&run_dir.join(DIRECTORY), 0o700)?;
        dir.restrict(".", 0o700)?;
        dir.remove(SOCKET)?;
        let listener = UnixListener::bind(dir.at(SOCKET))
            .with_context(|| format!("cannot make the socket {} on the host", dir.shown(SOCKET)))?;
        dir.restrict(SOCKET, 0o600)?;
        Ok(Socket { dir, listener })
    }

    /// Whether clients find this socket at its path: the directory may have been replaced.
    fn is_there(&self) -> bool {
        self.dir.is_linked() && self.dir.at(SOCKET).exists()
    }
}

/// Whether the text is an address, with or without a prefix length.
fn is_address(text: &str) -> bool {
    let (address, length) = text.split_once('/').unwrap_or((text, "0"));
    address.parse::<std::net::IpAddr>().is_ok() && length.parse::<u8>().is_ok()
}

/// Shared while an address is leased, exclusive while those of ended claims are released: such a
/// claim may be reserved for a new pod meanwhile.
pub static ADDRESS_LOCK: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// The status and the message of a refused request.
type Refusal = (StatusCode, String);

fn malformed(why: impl Into<String>) -> Refusal {
    (StatusCode::BAD_REQUEST, why.into())
}

fn failed(why: impl Into<String>) -> Refusal {
    (StatusCode::INTERNAL_SERVER_ERROR, why.into())
}

impl Provider {
    async fn converse(self: Arc<Provider>, stream: UnixStream) {
        let service = service_fn(move |request: Request<Incoming>| {
            let provider = self.clone();
            async move {
                let (status, body) = match provider.answer(request).await {
                    Ok(body) => (StatusCode::OK, body.to_string()),
                    Err((status, why)) => {
                        let why = clean(&why);
                        log(
                            "warn",
                            &format!(
                                "a request of DRANET is refused ({}): {why}",
                                status.as_u16()
                            ),
                        );
                        (status, json!({"error": why}).to_string())
                    }
                };
                let mut response = Response::new(Full::new(Bytes::from(body)));
                *response.status_mut() = status;
                let kind = HeaderValue::from_static("application/json");
                response.headers_mut().insert(CONTENT_TYPE, kind);
                Ok::<_, Infallible>(response)
            }
        });
        let mut http = http1::Builder::new();
        http.keep_alive(false)
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIMEOUT);
        let _ = tokio::time::timeout(
            REQUEST_TIMEOUT,
            http.serve_connection(TokioIo::new(stream), service),
        )
        .await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Value, Refusal> {
        let path = request.uri().path().to_owned();
        let is_post = request.method() == Method::POST;
        match (path.as_str(), is_post) {
            ("/health", false) => Ok(json!({"cloudProvider": false, "profileProvider": true,
                "deviceLifecycleProvider": false})),
            ("/GetProfileConfig", true) => self.lease(&read(request).await?).await,
            ("/ReleaseProfileConfig", true) => self.release(&read(request).await?).await,
            _ => {
                let known = "use GET /health, POST /GetProfileConfig or POST /ReleaseProfileConfig";
                Err((
                    StatusCode::NOT_FOUND,
                    format!("{} {path}: {known}", request.method()),
                ))
            }
        }
    }

    /// Leases the addresses of a device, and describes them to DRANET.
    async fn lease(&self, asked: &Asked) -> Result<Value, Refusal> {
        let claim = asked.claim()?;
        let config = asked.config.as_ref();
        let profile = config.map_or("", |config| config.profile.as_str());
        let Some(function) = asked
            .device
            .pci_address
            .as_deref()
            .filter(|id| !id.is_empty())
        else {
            return Err(malformed(format!(
                "device {}: it has no PCI address, which determines its rail",
                asked.device.name
            )));
        };
        let mut arguments = vec![
            "lease".to_owned(),
            format!("--claim={claim}"),
            format!("--device={}", asked.device.name),
            format!("--function={function}"),
        ];
        if profile != RAIL_PROFILE {
            if !profile.split(',').all(rail_cni::pool::is_name) {
                let text = format!(
                    "there is no profile {profile:?}: it is {RAIL_PROFILE:?}, or the name of a pool"
                );
                return Err((StatusCode::NOT_FOUND, text));
            }
            arguments.push(format!("--pool={profile}"));
        }
        let requested = match config {
            Some(config) => config.requested()?,
            None => &[],
        };
        for address in requested {
            if !is_address(address) {
                return Err(malformed(format!("{address:?} is not an address")));
            }
            arguments.push(format!("--ip={address}"));
        }
        for (option, name) in asked.names() {
            arguments.push(format!("--{option}={name}"));
        }
        let _leasing = ADDRESS_LOCK.read().await;
        let output = self.railctl(&arguments).await?;
        if output.is_success {
            let leased = serde_json::from_str(&output.stdout).unwrap_or_default();
            return network_config(&leased, config.is_some_and(Config::has_vrf)).map_err(failed);
        }
        let Refused {
            reason, message, ..
        } = Refused::of(&output);
        Err(match reason.as_str() {
            "held" => (StatusCode::CONFLICT, message),
            "invalid" => malformed(message),
            "no-pool" => (StatusCode::NOT_FOUND, message),
            _ => failed(message),
        })
    }

    /// Releases the addresses of a device. DRANET does not retry, so the agent also looks for ended
    /// claims.
    async fn release(&self, asked: &Asked) -> Result<Value, Refusal> {
        let arguments = release_arguments(asked.claim()?, &asked.device.name);
        let output = self.railctl(&arguments).await?;
        if output.is_success {
            Ok(json!({}))
        } else {
            Err(failed(output.stderr.trim()))
        }
    }

    async fn railctl(&self, arguments: &[String]) -> Result<ProgramOutput, Refusal> {
        let arguments: Vec<_> = arguments
            .iter()
            .map(String::as_str)
            .chain(["--output", "json"])
            .collect();
        self.host
            .run(&self.railctl, &arguments, b"")
            .await
            .map_err(|error| failed(error_text(&error)))
    }
}

/// The arguments of `railctl release` for a device of a claim.
pub fn release_arguments(claim: &str, device: &str) -> Vec<String> {
    vec![
        "release".to_owned(),
        format!("--claim={claim}"),
        format!("--device={device}"),
    ]
}

async fn read(request: Request<Incoming>) -> Result<Asked, Refusal> {
    let body = Limited::new(request.into_body(), MAX_REQUEST_BYTES)
        .collect()
        .await;
    let body = body.map_err(|error| malformed(format!("the request cannot be read: {error}")))?;
    let asked: Asked = serde_json::from_slice(&body.to_bytes())
        .map_err(|error| malformed(format!("the request is not what DRANET sends: {error}")))?;
    if !is_word(&asked.device.name) {
        return Err(malformed(format!(
            "{:?} is not the name of a device",
            asked.device.name
        )));
    }
    Ok(asked)
}

/// Whether the text can be a UID, or the name of a device or object. Other arguments from a request
/// are only addresses, and the PCI address, which railctl checks.
fn is_word(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    !text.is_empty() && text.len() <= 253 && text.chars().all(is_allowed)
}

/// The body of a request. DRANET sent only the UID of the claim until 2026, and the whole claim
/// since.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    device: Device,
    claim_uid: Option<String>,
    claim: Option<ResourceClaim>,
    config: Option<Config>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Device {
    name: String,
    pci_address: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResourceClaim {
    metadata: Metadata,
    status: ClaimStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    uid: String,
    namespace: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClaimStatus {
    reserved_for: Vec<Consumer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Consumer {
    name: String,
}

/// The part of the claim's NetworkConfig that matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    profile: String,
    interface: Interface,
    sub_interface: Option<Value>,
    routes: Vec<RouteTo>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Interface {
    addresses: Vec<String>,
    dhcp: Option<bool>,
    vrf: Option<Value>,
    ipvlan: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RouteTo {
    destination: String,
}

impl Asked {
    /// The UID of the claim.
    fn claim(&self) -> Result<&str, Refusal> {
        let uid = self
            .claim_uid
            .as_deref()
            .or_else(|| Some(&self.claim.as_ref()?.metadata.uid));
        uid.filter(|uid| is_word(uid))
            .ok_or_else(|| malformed("the request names no resource claim"))
    }

    /// The names of the claim and its pod, with railctl's options for them.
    fn names(&self) -> impl Iterator<Item = (&'static str, String)> {
        let claim = self.claim.as_ref();
        let namespace = claim.map_or("", |claim| claim.metadata.namespace.as_str());
        let name = claim.map(|claim| claim.metadata.name.as_str());
        let pod = claim.and_then(|claim| match claim.status.reserved_for.as_slice() {
            [pod] => Some(pod.name.as_str()),
            _ => None,
        });
        [("name", name), ("pod", pod)]
            .into_iter()
            .filter_map(move |(option, name)| {
                let name = name.filter(|name| is_word(name) && is_word(namespace))?;
                Some((option, format!("{namespace}/{name}")))
            })
    }
}

impl Config {
    /// The addresses that the claim requests. DRANET adds them to those of the answer, so all must
    /// be leased: another node may have them.
    fn requested(&self) -> Result<&[String], Refusal> {
        let refused = |what: &str| {
            Err(malformed(format!(
                "a rail has no {what}: leave it out of the claim"
            )))
        };
        let is_default = |route: &RouteTo| route.destination.ends_with("/0");
        match self {
            _ if self.sub_interface.is_some() || self.interface.ipvlan.is_some() => {
                refused("sub-interface")
            }
            _ if self.interface.dhcp == Some(true) => refused("DHCP"),
            _ if self.routes.iter().any(is_default) => refused("default route"),
            Config { interface, .. } => Ok(&interface.addresses),
        }
    }

    fn has_vrf(&self) -> bool {
        self.interface.vrf.is_some()
    }
}

/// DRANET's NetworkConfig for what railctl leased.
///
/// DRANET keeps one route per destination and device, adds it without a metric, and skips a
/// destination that has one already. So a route that rails share is only in this rail's table,
/// which the rule selects by the source address. A route of this rail alone is in the main table,
/// for sockets without an address. In a VRF there are no rules, and DRANET chooses the table.
fn network_config(leased: &Value, has_vrf: bool) -> Result<Value, String> {
    let number = |key: &str| {
        leased[key]
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
    };
    let rail = number("rail").unwrap_or_default();
    let table = number("table").filter(|_| !has_vrf);
    let mut addresses = Vec::new();
    let mut routes = Vec::new();
    let mut rules = Vec::new();
    let leases = leased["addresses"]
        .as_array()
        .ok_or("railctl returned no addresses")?;
    for lease in leases {
        let net = lease["address"]
            .as_str()
            .ok_or("railctl returned no address")?;
        addresses.push(net);
        let (address, length) = net.split_once('/').ok_or("railctl returned no prefix")?;
        let is_ipv4 = |text: &str| !text.contains(':');
        let whole = if is_ipv4(address) { 32 } else { 128 };
        let Some(gateway) = lease["gateway"].as_str() else {
            continue;
        };
        if is_ipv4(gateway) != is_ipv4(address) {
            let pool = &lease["pool"];
            return Err(format!(
                "pool {pool}: DRANET cannot set a route through a gateway of the other \
                family"
            ));
        }
        // Without a prefix, the gateway needs a route of its own.
        if length == whole.to_string() && !gateway.starts_with("fe80:") {
            routes.push(json!({"destination": format!("{gateway}/{whole}"), "scope": LINK_SCOPE}));
        }
        let mut is_in_table = false;
        for route in lease["routes"].as_array().into_iter().flatten() {
            let mut new = json!({"destination": route["dst"], "gateway": gateway});
            if let Some(table) = table
                && route["shared"] == true
            {
                new["table"] = json!(table);
                is_in_table = true;
            }
            routes.push(new);
        }
        if is_in_table {
            let priority = FIRST_PRIORITY.saturating_add(rail);
            let source = format!("{address}/{whole}");
            rules.push(json!({"priority": priority, "source": source, "table": table}));
        }
    }
    Ok(json!({"interface": {"addresses": addresses}, "routes": routes, "rules": rules}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(value: Value) -> Asked {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn both_forms_of_a_request_name_the_claim() {
        let old = asked(json!({"device": {"name": "pci-0000-1a-00-2"}, "claim_uid": "u-1"}));
        assert_eq!((old.claim().unwrap(), old.names().count()), ("u-1", 0));
        let new = asked(json!({"device": {"name": "d"}, "claim": {
            "metadata": {"uid": "u-2", "namespace": "ai", "name": "c", "managedFields": [{}]},
            "status": {"reservedFor": [{"resource": "pods", "name": "trainer-0", "uid": "p"}]}}}));
        assert_eq!(new.claim().unwrap(), "u-2");
        let names: Vec<_> = new.names().collect();
        assert_eq!(
            names,
            [
                ("name", "ai/c".to_owned()),
                ("pod", "ai/trainer-0".to_owned())
            ]
        );
    }

    #[test]
    fn what_is_no_word_becomes_no_argument() {
        for bad in ["", "a b", "../x", "a\nb", "ü", &"x".repeat(254)] {
            assert!(!is_word(bad), "{bad}");
            assert!(asked(json!({"claim_uid": bad})).claim().is_err());
        }
        let claim = json!({"metadata": {"uid": "u", "namespace": "../..", "name": "--force"}});
        assert_eq!(asked(json!({"claim": claim})).names().count(), 0);
    }

    #[test]
    fn what_a_rail_cannot_have_is_refused() {
        for (config, told) in [
            (json!({"interface": {"dhcp": true}}), "DHCP"),
            (
                json!({"routes": [{"destination": "0.0.0.0/0"}]}),
                "default route",
            ),
            (
                json!({"routes": [{"destination": "::/0"}]}),
                "default route",
            ),
            (json!({"subInterface": {"type": "ipvlan"}}), "sub-interface"),
            (json!({"interface": {"ipvlan": {}}}), "sub-interface"),
        ] {
            let config: Config = serde_json::from_value(config).unwrap();
            let (status, why) = config.requested().unwrap_err();
            assert!(
                status == StatusCode::BAD_REQUEST && why.contains(told),
                "{why}"
            );
        }
    }

    #[test]
    fn a_shared_route_is_in_the_table_of_the_rail_and_its_own_in_the_main_one() {
        let leased = json!({"rail": 3, "table": 103, "addresses": [
            {"pool": "rail-3", "address": "172.22.0.0/31", "gateway": "172.22.0.1",
                "routes": [{"dst": "172.22.0.0/15", "shared": false}, {"dst": "172.16.0.0/12", "shared": true}]},
            {"pool": "rail-3-v6", "address": "fd00::/127", "gateway": "fd00::1", "routes": []}]});
        let expected = json!({
            "interface": {"addresses": ["172.22.0.0/31", "fd00::/127"]},
            "routes": [{"destination": "172.22.0.0/15", "gateway": "172.22.0.1"},
                {"destination": "172.16.0.0/12", "gateway": "172.22.0.1", "table": 103}],
            "rules": [{"priority": 1003, "source": "172.22.0.0/32", "table": 103}]});
        assert_eq!(network_config(&leased, false).unwrap(), expected);
        let in_vrf = network_config(&leased, true).unwrap();
        assert_eq!(
            (&in_vrf["routes"][1]["table"], &in_vrf["rules"]),
            (&Value::Null, &json!([]))
        );
    }

    #[test]
    fn the_gateway_of_a_link_without_a_prefix_is_a_neighbour() {
        let of = |address: &str, gateway: &str| {
            network_config(
                &json!({"rail": 0, "table": 100, "addresses": [{"pool": "p", "address": address, "gateway": gateway,
                    "routes": [{"dst": "10.0.0.0/8", "shared": false}]}]}),
                false,
            )
        };
        let routes = &of("10.1.0.1/32", "10.1.0.0").unwrap()["routes"];
        assert_eq!(
            routes[0],
            json!({"destination": "10.1.0.0/32", "scope": 253})
        );
        assert_eq!(
            of("fd00::1/128", "fe80::1").unwrap()["routes"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        let error = of("10.1.0.1/32", "fe80::1").unwrap_err();
        golden::says("agent", "dranet: a gateway of the other family", &error);
        assert!(error.contains("\"p\""), "{error}");
    }
}
