//! The keys of a fabric file whose addresses follow from patterns: `fabric: l3-p2p` and `fabric:
//! unnumbered`.

use serde_json::Value;

use super::keys::{Keys, Kind, OF_INTERFACE, OF_LEAF};
use crate::pattern::Pattern;
use crate::scheme::patterns::{Addresses, Leaf, Patterns, network};
use crate::scheme::{Mode, Polarity};
use rail_cni::pool::allocation::IpVersion;

impl Keys<'_> {
    /// The patterns of a file, as far as they have no faults.
    pub(super) fn patterns(&mut self, kind: Kind, mode: Mode, rails: u64, planes: u64) -> Patterns {
        let mut families = Vec::new();
        let addresses = self.one_per_family("address", mode);
        let gateways = if kind == Kind::Unnumbered {
            self.one_per_family("gateway", mode)
        } else {
            Vec::new()
        };
        if kind == Kind::Unnumbered && !gateways.is_empty() && gateways.len() != addresses.len() {
            let problem = format!(
                "has {} patterns for {} of address",
                gateways.len(),
                addresses.len()
            );
            self.fault(
                "gateway",
                format!("{problem}: give one for each, in the same order"),
            );
        }
        let polarity = if kind == Kind::P2p {
            self.polarity()
        } else {
            None
        };
        let lengths = self.lengths(kind, &addresses);
        let mut gateways = gateways.into_iter();
        for (address, length) in addresses.into_iter().zip(lengths) {
            let leaf = match (gateways.next(), polarity) {
                (Some(gateway), _) => Leaf::Unnumbered(gateway),
                (None, Some(polarity)) => Leaf::Numbered { length, polarity },
                (None, None) => continue,
            };
            families.push(Addresses {
                version: version(&address),
                address,
                leaf,
            });
        }
        families.sort_by_key(|family| family.version);
        if let [one, other] = families.as_slice() {
            if one.version == other.version {
                self.fault(
                    "address",
                    "has two patterns of one address family: give one of IPv4 and one of IPv6",
                );
            }
        }
        Patterns {
            mode,
            families,
            routes: self.routes(mode, rails, planes),
        }
    }

    /// One pattern of an address, or one of each family.
    fn one_per_family(&mut self, key: &str, mode: Mode) -> Vec<Pattern<5>> {
        let paths: Vec<String> = match self.value(key) {
            Some(Value::Array(list)) if !matches!(list.len(), 1 | 2) => {
                self.fault(
                    key,
                    "must be one pattern, or a list with one of IPv4 and one of IPv6",
                );
                return Vec::new();
            }
            Some(Value::Array(list)) => (0..list.len())
                .map(|index| format!("{key}[{index}]"))
                .collect(),
            _ => vec![key.to_owned()],
        };
        if self.is_missing(key) {
            self.fault(
                key,
                "is missing: a pattern with {pod}, {su}, {host}, {rail} and {plane}",
            );
            return Vec::new();
        }
        let mut found = Vec::new();
        for path in paths {
            let Some(pattern) = self.pattern(&path, &OF_LEAF) else {
                continue;
            };
            if mode == Mode::Hwplb && pattern.uses("plane", &OF_LEAF) {
                self.fault(
                    &path,
                    "has {plane}, and with mode hwplb all planes of a rail have one address",
                );
            }
            found.push(pattern);
        }
        found
    }

    fn polarity(&mut self) -> Option<Polarity> {
        if self.is_missing("polarity") {
            // A wrong guess would exchange both ends of every link.
            self.fault("polarity", "is missing: leaf-odd or leaf-even");
        }
        self.get("polarity")
    }

    /// The lengths of the links' prefixes.
    fn lengths(&mut self, kind: Kind, addresses: &[Pattern<5>]) -> Vec<u8> {
        const KEY: &str = "prefixLength";
        let given = if kind == Kind::P2p {
            self.get::<u8>(KEY)
        } else {
            None
        };
        let has_v4 = addresses
            .iter()
            .any(|address| version(address) == IpVersion::V4);
        match given {
            Some(16..=31) if has_v4 => (),
            Some(127) if !has_v4 => (),
            Some(other) if has_v4 => self.fault(
                KEY,
                format!("{other} is not 16 to 31, the lengths for IPv4"),
            ),
            Some(other) => self.fault(KEY, format!("{other} is not 127, the length for IPv6")),
            None => (),
        }
        let length = |address| match version(address) {
            IpVersion::V4 => given.unwrap_or(31),
            IpVersion::V6 => 127,
        };
        addresses.iter().map(length).collect()
    }

    /// The destinations of the rails, each checked for all rails and planes.
    fn routes(&mut self, mode: Mode, rails: u64, planes: u64) -> Vec<Pattern<2>> {
        const KEY: &str = "routes";
        let count = match self.value(KEY) {
            Some(Value::Array(list)) => list.len(),
            Some(_) => {
                self.fault(KEY, "is not a list");
                return Vec::new();
            }
            None => 0,
        };
        if count == 0 && (self.is_missing(KEY) || self.value(KEY).is_some()) {
            self.fault(
                KEY,
                "is missing: a list of the prefixes that a rail leads to, such as [10.0.0.0/8]",
            );
        }
        let mut found = Vec::new();
        for path in (0..count).map(|index| format!("{KEY}[{index}]")) {
            let Some(pattern) = self.pattern(&path, &OF_INTERFACE) else {
                continue;
            };
            if mode == Mode::Hwplb && pattern.uses("plane", &OF_INTERFACE) {
                self.fault(
                    &path,
                    "has {plane}, and with mode hwplb all planes of a rail have one pool",
                );
                continue;
            }
            let all = (0..rails).flat_map(|rail| (0..planes).map(move |plane| [rail, plane]));
            match all
                .map(|numbers| network(&pattern.render(&numbers)))
                .find_map(Result::err)
            {
                Some(problem) => self.fault(&path, problem),
                None => found.push(pattern),
            }
        }
        found
    }
}

/// The family of the addresses of a pattern.
fn version(pattern: &Pattern<5>) -> IpVersion {
    if pattern.render(&[0; 5]).contains(':') {
        IpVersion::V6
    } else {
        IpVersion::V4
    }
}

#[cfg(test)]
mod tests;
