//! The alias of the netdev, which `ip link` shows to people and `railctl env` reads inside the pod.
//! It is set by the message that moves the netdev, and DEL restores it with the other settings.
//!
//! A pod with CAP_NET_ADMIN can write another one, so nothing on the host believes what it says.

use std::fmt;

use crate::cni::AddResult;
use crate::netconf::NetConf;
use crate::node::Node;
use crate::pool::{self, LeafPort, RAILS, store};

/// IFALIASZ without the zero at its end (linux/if.h).
const LONGEST: usize = 255;
const LONGEST_WORD: usize = 64;

/// The alias of a rail, such as `rail 3 plane 1 network rail-3-plane-1 leaf leaf-su0-r3 port swp7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Number of the rail.
    pub rail: u8,
    /// Its plane, where the network has one of several.
    pub plane: Option<u8>,
    /// Name of the network.
    pub network: Option<String>,
    /// The ends of the cables, if the plan names them.
    pub leaf_ports: Vec<LeafPort>,
}

impl Alias {
    /// The alias for a network whose rail is known.
    pub fn of(conf: &NetConf, network: &str, leased: &AddResult, node: &Node) -> Option<Alias> {
        let number = conf.rail?;
        let gateway = leased.ips.iter().find_map(|ip| ip.gateway);
        let leaf_ports = gateway
            .map(|gateway| store::leaf_ports_of(node, gateway))
            .unwrap_or_default();
        // Without a sign of planes, numbers from 8 on are rails of their own.
        let plane = number / RAILS;
        let has_planes = conf.min_planes.is_some() || pool::plane_in(network) == Some(plane);
        Some(Alias {
            rail: if has_planes { number % RAILS } else { number },
            plane: has_planes.then_some(plane),
            network: is_word(network).then(|| network.to_owned()),
            leaf_ports: if leaf_ports.iter().all(has_words) {
                leaf_ports
            } else {
                Vec::new()
            },
        })
    }

    /// Its text, without the leaf ports where it would be too long.
    pub fn text(mut self) -> String {
        if self.to_string().len() > LONGEST {
            self.leaf_ports.clear();
        }
        self.to_string()
    }

    /// Parses what [`Alias::text`] makes, and nothing else: a tenant may have written it.
    pub fn parse(text: &str) -> Option<Alias> {
        let mut words = text.split(' ').peekable();
        let mut after = |key: &str| {
            words.next_if_eq(&key)?;
            words.next().filter(|word| is_word(word))
        };
        let number = |word: &str| {
            word.parse()
                .ok()
                .filter(|number: &u8| number.to_string() == word)
        };
        let mut alias = Alias {
            rail: number(after("rail")?)?,
            plane: after("plane")
                .map(|word| number(word).ok_or(()))
                .transpose()
                .ok()?,
            network: after("network").map(str::to_owned),
            leaf_ports: Vec::new(),
        };
        while let Some(leaf) = after("leaf") {
            let port = after("port").map(str::to_owned);
            alias.leaf_ports.push(LeafPort {
                leaf: leaf.to_owned(),
                port,
            });
        }
        // Unknown words are missing in the comparison.
        (text.len() <= LONGEST && alias.to_string() == text).then_some(alias)
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rail {}", self.rail)?;
        if let Some(plane) = self.plane {
            write!(f, " plane {plane}")?;
        }
        if let Some(network) = &self.network {
            write!(f, " network {network}")?;
        }
        for LeafPort { leaf, port } in &self.leaf_ports {
            write!(f, " leaf {leaf}")?;
            if let Some(port) = port {
                write!(f, " port {port}")?;
            }
        }
        Ok(())
    }
}

/// Whether it is a word that no shell, no list and no terminal reads as something else. Ports have
/// slashes and colons.
fn is_word(text: &str) -> bool {
    text.len() <= LONGEST_WORD
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-/:".contains(&byte))
}

fn has_words(port: &LeafPort) -> bool {
    is_word(&port.leaf) && port.port.as_deref().is_none_or(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alias(plane: Option<u8>, network: Option<&str>, ports: &[(&str, Option<&str>)]) -> Alias {
        let port = |(leaf, port): &(&str, Option<&str>)| LeafPort {
            leaf: (*leaf).to_owned(),
            port: port.map(str::to_owned),
        };
        let leaf_ports = ports.iter().map(port).collect();
        Alias {
            rail: 3,
            plane,
            network: network.map(str::to_owned),
            leaf_ports,
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (alias, text) in [
            (alias(None, None, &[]), "rail 3"),
            (
                alias(Some(0), Some("rail-3"), &[("l1", Some("swp7"))]),
                "rail 3 plane 0 network rail-3 leaf l1 port swp7",
            ),
            (
                alias(Some(1), None, &[("l1", None), ("l2", Some("Eth1/2:1"))]),
                "rail 3 plane 1 leaf l1 leaf l2 port Eth1/2:1",
            ),
            // Words of the form itself are names like others.
            (
                alias(None, Some("leaf"), &[("port", Some("leaf"))]),
                "rail 3 network leaf leaf port port leaf",
            ),
        ] {
            assert_eq!(alias.clone().text(), text);
            assert_eq!(Alias::parse(text), Some(alias));
        }
    }

    #[test]
    fn nothing_else_is_read() {
        for bad in [
            "",
            "rail",
            "rail ",
            " rail 3",
            "rail 3 ",
            "rail  3",
            "rail 03",
            "rail +3",
            "rail 256",
            "rail -1",
            "Rail 3",
            "rail 3\n",
            "rail 3\nNCCL_DEBUG=INFO",
            "rail 3 plane",
            "rail 3 plane x",
            "rail 3 plane 1 plane 1",
            "rail 3 network",
            "rail 3 network a'b",
            "rail 3 network $(id)",
            "rail 3 network a,b",
            "rail 3 leaf",
            "rail 3 leaf é",
            "rail 3 leaf a port",
            "rail 3 leaf a port \u{1b}[2J",
            "rail 3 port a",
            "rail 3 leaf a network b",
            "rail 3 leaf \"a\"",
            "uplink",
            "rail 3 leaf \u{fffd}",
        ] {
            assert_eq!(Alias::parse(bad), None, "{bad:?}");
        }
        assert_eq!(
            Alias::parse(&format!("rail 3 leaf {}", "a".repeat(65))),
            None
        );
    }

    #[test]
    fn one_that_is_too_long_has_no_leaf_ports() {
        let name = "l".repeat(64);
        let long = alias(
            None,
            Some("rail-3"),
            &[(&name, Some(&name)), (&name, Some(&name))],
        );
        assert_eq!(long.text(), "rail 3 network rail-3");
    }
}
