//! The announcement of a switch by LLDP (IEEE 802.1AB): its name, and the port that it sends from.

use std::fmt;

/// A neighbour, as one LLDPDU tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The switch.
    pub chassis: Id,
    /// By which of its ports it speaks.
    pub port: Id,
    /// A second name of the port.
    pub port_description: Option<String>,
    /// Its name.
    pub system_name: Option<String>,
}

/// A neighbour's name for a chassis or a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Id {
    /// A hardware address.
    Mac([u8; 6]),
    /// The name of an interface (subtype 5 of a port).
    InterfaceName(String),
    /// A text that may be a name, an alias, or a number.
    Text(String),
    /// Bytes of another kind.
    Bytes(Vec<u8>),
}

impl Id {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Id::InterfaceName(text) | Id::Text(text) => Some(text),
            Id::Mac(_) | Id::Bytes(_) => None,
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Mac(bytes) => f.write_str(&hex(bytes)),
            Id::InterfaceName(text) | Id::Text(text) => f.write_str(text),
            Id::Bytes(bytes) => f.write_str(&hex(bytes)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(":")
}

// Types of TLVs.
const END: u8 = 0;
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TTL: u8 = 3;
const PORT_DESCRIPTION: u8 = 4;
const SYSTEM_NAME: u8 = 5;

// Subtypes of ids.
const CHASSIS_TEXTS: [u8; 5] = [1, 2, 3, 6, 7];
const CHASSIS_MAC: u8 = 4;
const PORT_TEXTS: [u8; 4] = [1, 2, PORT_INTERFACE_NAME, 7];
const PORT_MAC: u8 = 3;
const PORT_INTERFACE_NAME: u8 = 5;

/// Parses an LLDPDU, which is what follows the Ethernet header. `None` if the neighbour says that
/// it leaves. An error says what is wrong.
pub fn parse(pdu: &[u8]) -> Result<Option<Neighbour>, &'static str> {
    let (kind, chassis, rest) = next(pdu)?;
    let chassis = id(kind == CHASSIS, chassis, &CHASSIS_TEXTS, CHASSIS_MAC)?;
    let (kind, port, rest) = next(rest)?;
    let is_interface_name = port.first() == Some(&PORT_INTERFACE_NAME);
    let port = match id(kind == PORT, port, &PORT_TEXTS, PORT_MAC)? {
        Id::Text(name) if is_interface_name => Id::InterfaceName(name),
        port => port,
    };
    let (kind, ttl, mut rest) = next(rest)?;
    let &[high, low, ..] = ttl else {
        return Err("its time-to-live field is too short");
    };
    if kind != TTL {
        return Err("its third field is not a time to live");
    }
    let mut neighbour = Neighbour {
        chassis,
        port,
        port_description: None,
        system_name: None,
    };
    // The end may be missing, and what follows it is the padding of the frame.
    while !rest.is_empty() {
        let (kind, value, after) = next(rest)?;
        rest = after;
        let place = match kind {
            END if value.is_empty() => break,
            END => return Err("its end field is not empty"),
            CHASSIS | PORT | TTL => return Err("a mandatory field is repeated"),
            PORT_DESCRIPTION => &mut neighbour.port_description,
            SYSTEM_NAME => &mut neighbour.system_name,
            _ => continue,
        };
        if place.is_some() {
            return Err("it has two names");
        }
        *place = Some(text(value).ok_or("a name in it is not UTF-8")?);
    }
    let named = |name: Option<String>| name.filter(|name| !name.is_empty());
    neighbour.port_description = named(neighbour.port_description);
    neighbour.system_name = named(neighbour.system_name);
    Ok(([high, low] != [0, 0]).then_some(neighbour))
}

/// Type and value of the first TLV, and what follows: 7 bits are the type, 9 the length.
fn next(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), &'static str> {
    let (&[high, low], rest) = bytes.split_first_chunk().ok_or("it is truncated")?;
    let length = usize::from(high & 1) << 8 | usize::from(low);
    let (value, rest) = rest.split_at_checked(length).ok_or("it is truncated")?;
    Ok((high >> 1, value, rest))
}

/// An id: its kind, then up to 255 bytes. `texts` are the kinds that are names, `mac` is the one
/// that is an address.
fn id(is_its: bool, value: &[u8], texts: &[u8], mac: u8) -> Result<Id, &'static str> {
    let Some((kind, value)) = value
        .split_first()
        .filter(|(_, value)| is_its && (1..=255).contains(&value.len()))
    else {
        return Err("it does not begin with chassis and port");
    };
    if *kind == mac {
        return value
            .try_into()
            .map(Id::Mac)
            .map_err(|_| "a MAC in it has the wrong length");
    }
    let name = text(value).filter(|_| texts.contains(kind));
    Ok(name.map_or_else(|| Id::Bytes(value.to_owned()), Id::Text))
}

/// A text, without the zeros that some switches end it with.
fn text(bytes: &[u8]) -> Option<String> {
    Some(
        std::str::from_utf8(bytes)
            .ok()?
            .trim_end_matches('\0')
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len()).unwrap();
        [&(u16::from(kind) << 9 | length).to_be_bytes(), value].concat()
    }

    /// As lldpd on a Cumulus leaf sends it: chassis by MAC, port by name, TTL 120, name,
    /// description, capabilities, end.
    const CUMULUS: &[u8] =
        b"\x02\x07\x04\x44\x38\x39\x00\x00\x01\x04\x05\x05swp7\x06\x02\x00\x78\x0a\x0bleaf-su0-r3\
        \x08\x04swp7\x0e\x04\x00\x14\x00\x04\x00\x00";

    #[test]
    fn the_bytes_of_a_leaf_are_its_name_and_port() {
        let leaf = parse(CUMULUS).unwrap().unwrap();
        assert_eq!(leaf.chassis, Id::Mac([0x44, 0x38, 0x39, 0, 0, 1]));
        assert_eq!(
            (leaf.chassis.to_string(), leaf.port.to_string()),
            ("44:38:39:00:00:01".into(), "swp7".into())
        );
        assert_eq!(leaf.port, Id::InterfaceName("swp7".into()));
        assert_eq!(leaf.port_description.as_deref(), Some("swp7"));
        assert_eq!(leaf.system_name.as_deref(), Some("leaf-su0-r3"));
    }

    fn start() -> Vec<u8> {
        [
            tlv(1, b"\x04\x02\0\0\0\0\x01"),
            tlv(2, b"\x05swp1"),
            tlv(3, &[0, 120]),
        ]
        .concat()
    }

    #[test]
    fn the_end_and_names_may_be_missing_and_padding_is_not_read() {
        for more in [
            vec![],
            tlv(0, b""),
            [tlv(0, b""), vec![0xff; 40]].concat(),
            tlv(127, b"\0\x80\xc2\x01\0\x01"),
        ] {
            let leaf = parse(&[start(), more].concat()).unwrap().unwrap();
            assert_eq!(
                (leaf.system_name, leaf.port),
                (None, Id::InterfaceName("swp1".into()))
            );
        }
        let zero = parse(&[start(), tlv(5, b"leaf\0")].concat())
            .unwrap()
            .unwrap();
        assert_eq!(zero.system_name.as_deref(), Some("leaf"));
        let leaves = [tlv(1, b"\x07a"), tlv(2, b"\x07b"), tlv(3, &[0, 0])].concat();
        assert_eq!(parse(&leaves), Ok(None));
        let address = [
            tlv(1, b"\x05\x01\x0a\0\0\x01"),
            tlv(2, b"\x03\x02\0\0\0\0\x01"),
            tlv(3, &[0, 1]),
        ]
        .concat();
        let leaf = parse(&address).unwrap().unwrap();
        assert_eq!(
            (leaf.chassis.text(), leaf.port),
            (None, Id::Mac([2, 0, 0, 0, 0, 1]))
        );
    }

    #[test]
    fn what_is_no_lldpdu_is_refused() {
        let twice = [start(), tlv(5, b"a"), tlv(5, b"b")].concat();
        let wrong = [
            vec![],
            vec![2],
            CUMULUS[..22].to_vec(),
            start()[9..].to_vec(),
            twice,
            [start(), tlv(1, b"\x07a")].concat(),
            [start(), tlv(0, b"x")].concat(),
            [start(), tlv(5, b"\xff")].concat(),
            [start(), vec![0x0a, 9, b'a']].concat(),
            [
                tlv(1, b"\x04\x02\0"),
                tlv(2, b"\x05swp1"),
                tlv(3, &[0, 120]),
            ]
            .concat(),
            [tlv(1, b"\x07"), tlv(2, b"\x05swp1"), tlv(3, &[0, 120])].concat(),
            [tlv(1, &[7; 300]), tlv(2, b"\x05swp1"), tlv(3, &[0, 120])].concat(),
            [tlv(1, b"\x07a"), tlv(2, b"\x05swp1"), tlv(3, &[1])].concat(),
            [tlv(1, b"\x07a"), tlv(2, b"\x05swp1"), tlv(5, b"ab")].concat(),
        ];
        for (at, bytes) in wrong.iter().enumerate() {
            assert!(parse(bytes).is_err(), "{at}: {bytes:?}");
        }
    }

    proptest::proptest! {
        /// Every input ends, and what is read is text.
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, at in 0..CUMULUS.len(), byte: u8) {
            let _ = parse(&bytes);
            let mut leaf = CUMULUS.to_vec();
            leaf[at] = byte;
            let _ = parse(&leaf);
        }
    }
}
