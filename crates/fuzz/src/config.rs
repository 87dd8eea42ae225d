//! The input from a runtime: environment variables, and the configuration on stdin, which a tenant
//! may have written.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path};
use std::sync::LazyLock;
use std::time::Duration;

use rail_cni::attach::Attach;
use rail_cni::cni::{
    Attachment, Command, Environment, Keys, Network, Plugin as _, Strictness, check_ifname,
    is_identifier,
};
use rail_cni::ipam::{Ipam, config};
use rail_cni::netconf::{NetConf, Outline};
use rail_cni::node::Node;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::input::{choice, line};
use crate::judge;

/// The errors for a configuration: the version, a key of a feature that there is not, bad JSON, a
/// bad value.
const REFUSED: [u32; 4] = [1, 2, 6, 7];
/// A bad variable.
const ENVIRONMENT: [u32; 1] = [4];

static NODES: LazyLock<[Node; 3]> = LazyLock::new(|| {
    let strict = r#"{"rails": [{"rail": 0, "pf": "0000:3b:00.0"}, {"rail": 1, "pf": "ens1"}],
        "policy": {"rails": [0], "vfKeys": ["vlan"], "inlinePools": false}}"#;
    let lax =
        r#"{"policy": {"kinds": ["veth"]}, "log": {"level": "debug", "dir": "/var/log/rail"}}"#;
    let node =
        |text: &str| Node::parse(Path::new("node.json"), text.as_bytes()).expect("a node.json");
    [Node::default(), node(strict), node(lax)]
});

/// Lines: CNI_COMMAND, CNI_CONTAINERID, CNI_IFNAME, CNI_ARGS, the number of a node.json, and then
/// stdin.
pub fn config(data: &[u8]) {
    let (command, rest) = line(data);
    let (container, rest) = line(rest);
    let (ifname, rest) = line(rest);
    let (args, rest) = line(rest);
    let (choices, stdin) = line(rest);
    let given = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", container),
        ("CNI_IFNAME", ifname),
        ("CNI_ARGS", args),
        ("CNI_NETNS", b"/run/netns/pod"),
        ("CNI_PATH", b"/opt/cni/bin:/nowhere"),
    ];
    let given: BTreeMap<_, _> = given
        .into_iter()
        .map(|(name, value)| (name, OsString::from_vec(value.to_vec())))
        .collect();
    let environment = match Environment::read(|name| given.get(name).cloned()) {
        Ok(Some(environment)) => environment,
        Ok(None) => return,
        Err(error) => return judge::refused(&error, &ENVIRONMENT),
    };
    let attachment = environment.command.attachment().cloned();
    if let Some(Attachment {
        container_id,
        ifname,
    }) = &attachment
    {
        assert!(is_identifier(container_id) && !ifname.contains('/') && ifname.len() < 16);
        check_ifname(ifname).expect("a name of an interface");
    }
    let is_del = matches!(environment.command, Command::Del(..));
    let attachment = attachment.unwrap_or_else(|| Attachment {
        container_id: "c".into(),
        ifname: "n".into(),
    });
    let which = choice(choices, 0, NODES.len());
    let node = &NODES[which];
    if let Some(network) = parsed(stdin, &environment, Attach::KEYS, is_del) {
        match NetConf::parse(&network, &attachment, node) {
            Ok(conf) => accepted(&conf, &network, &attachment, which == 1),
            Err(error) => judge::refused(&error, &REFUSED),
        }
        if let Err(error) = network.previous() {
            judge::refused(&error, &REFUSED);
        }
    }
    if let Some(network) = parsed(stdin, &environment, Ipam::KEYS, is_del) {
        of_ipam(&network);
    }
}

/// The properties that both parsers share, and the difference between strict and lenient reading.
fn parsed(
    stdin: &[u8],
    environment: &Environment,
    keys: &'static Keys,
    is_del: bool,
) -> Option<Network> {
    let parse = |stdin: &[u8], strictness| {
        Network::parse(
            stdin.to_vec(),
            environment.args.clone(),
            environment.path.clone(),
            keys,
            strictness,
        )
    };
    let (strict, lenient) = (
        parse(stdin, Strictness::Strict),
        parse(stdin, Strictness::Lenient),
    );
    let network = match (strict, lenient) {
        (Ok(strict), Ok(lenient)) => {
            // A DEL of what an ADD took reads the same.
            assert_eq!(
                (&strict.name, strict.version),
                (&lenient.name, lenient.version)
            );
            assert_eq!(strict.config, lenient.config);
            assert!(is_identifier(&strict.name));
            same_again(&strict, &parse);
            strict
        }
        (Ok(_), Err(error)) => panic!("an ADD takes what a DEL refuses: {error:#}"),
        (Err(error), lenient) => {
            judge::refused(&error, &REFUSED);
            match lenient {
                Ok(network) if is_del => network,
                Ok(_) => return None,
                Err(error) => {
                    judge::refused(&error, &REFUSED);
                    return None;
                }
            }
        }
    };
    // Only of a DEL without a valid name.
    assert!(network.name.is_empty() || is_identifier(&network.name));
    let handed_on = network.stdin_with("rail", 3.into()).expect("it is JSON");
    let value: BTreeMap<String, &RawValue> =
        serde_json::from_slice(&handed_on).expect("it is JSON");
    assert_eq!(value["rail"].get(), "3");
    Some(network)
}

/// A configuration is read alike when it is written again, and when known keys are in capital
/// letters.
fn same_again(network: &Network, parse: &dyn Fn(&[u8], Strictness) -> anyhow::Result<Network>) {
    let text = Value::Object(network.config.clone()).to_string();
    let again = parse(text.as_bytes(), Strictness::Strict).expect("it was read before");
    assert_eq!(again.config, network.config);
    let known = |key: &String| {
        let spelt = [Attach::KEYS, Ipam::KEYS]
            .iter()
            .all(|keys| keys.spelt(key) == Some(key.as_str()));
        if spelt {
            key.to_ascii_uppercase()
        } else {
            key.clone()
        }
    };
    let capital: Map<String, Value> = network
        .config
        .iter()
        .map(|(key, value)| (known(key), value.clone()))
        .collect();
    if capital.len() == network.config.len() {
        let again = parse(
            Value::Object(capital).to_string().as_bytes(),
            Strictness::Strict,
        );
        assert_eq!(
            again.expect("letter case means nothing").config,
            network.config
        );
    }
}

/// A configuration that ADD would act on.
fn accepted(conf: &NetConf, network: &Network, attachment: &Attachment, is_strict: bool) {
    assert!(conf.routes.iter().all(|route| route.table != Some(255)));
    for (path, value) in &conf.sysctls {
        let mut parts: Vec<_> = path.components().collect();
        assert!(
            parts
                .iter()
                .all(|part| matches!(part, Component::Normal(_))),
            "{}",
            path.display()
        );
        let interface = parts.remove(3);
        assert_eq!(
            interface.as_os_str(),
            attachment.ifname.as_str(),
            "{}",
            path.display()
        );
        assert_eq!(parts.len(), 4, "{}", path.display());
        assert!(!value.contains('\n') && value.len() <= 64);
    }
    if let Some(path) = &conf.device_info {
        assert!(path.is_absolute() && path.components().all(|part| part != Component::ParentDir));
        assert!(path.ends_with(path.file_name().expect("a file")));
    }
    if let Some(ipam) = &conf.ipam {
        assert!(
            !ipam.is_empty() && !ipam.contains(['/', '\0']) && ipam != "." && ipam != "..",
            "{ipam:?}"
        );
    }
    for probe in [conf.probe, conf.gid].into_iter().flatten() {
        assert!((Duration::from_millis(1)..=Duration::from_secs(30)).contains(&probe.timeout));
    }
    if let Some(id) = &conf.selector.id {
        assert!(!id.as_str().contains('/') && !id.as_str().contains(".."));
    }
    if Outline::of(network).is_chained {
        assert!(conf.vf_keys.is_empty() && conf.mac.is_none());
    }
    if is_strict {
        assert!(conf.vf_keys.iter().all(|key| *key == "vlan") && conf.mac.is_none());
        assert!(conf.rail.is_none_or(|rail| rail == 0));
    }
}

fn of_ipam(network: &Network) {
    match config::requested(network) {
        Ok(addresses) => {
            for (address, length) in addresses {
                assert!(
                    length.is_none_or(|length| length <= if address.is_ipv4() { 32 } else { 128 })
                );
            }
        }
        Err(error) => judge::refused(&error, &REFUSED),
    }
    let parsed = match config::Config::parse(network) {
        Ok(parsed) => parsed,
        Err(error) => return judge::refused(&error, &REFUSED),
    };
    // None: those of the rail.
    assert!(parsed.pools.len() <= 2);
    assert!(
        parsed.pools.iter().all(|pool| is_identifier(pool)),
        "{:?}",
        parsed.pools
    );
    match parsed.check() {
        None => (),
        Some(Err(faults) | Ok(faults)) => faults
            .iter()
            .for_each(|fault| judge::message(&fault.to_string())),
    }
}
