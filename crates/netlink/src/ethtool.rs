//! The settings of a netdev that `ethtool` shows, over generic netlink
//! (include/uapi/linux/ethtool_netlink.h, Linux 5.6). The crates for this exist only with
//! asynchronous code.
//!
//! ```
//! use rail_netlink::{Socket, ethtool::Ethtool, link};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut socket = Socket::open()?;
//! let lo = link::by_name(&mut socket, "lo")?.expect("every namespace has it");
//! if let Some(mut ethtool) = Ethtool::open()? {
//!     println!("{} settings", ethtool.read(lo.index)?.len());
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;

use anyhow::Result;
use netlink_packet_core::DefaultNla;
use nix::errno::Errno;

use super::generic::{self, HEADER_LEN};
use super::link::{Index, Link};
use super::{Error, Message, Socket, attributes, nest};

/// The attribute that every request begins with, ETHTOOL_A_*_HEADER.
const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;
const HEADER_FLAGS: u16 = 3;
/// ETHTOOL_FLAG_COMPACT_BITSETS, and ETHTOOL_FLAG_OMIT_REPLY: an acknowledgement is enough.
const FLAGS: u32 = 1 | 2;
/// ETHTOOL_FLAG_STATS.
const FLAG_STATS: u32 = 4;
const PAUSE_GET: u8 = 21;
const PAUSE_STATS: u16 = 5;
/// The counters in it.
const PAUSE_FRAMES: [(u16, &str); 2] = [(2, "tx_pause"), (3, "rx_pause")];
const BITSET_NOMASK: u16 = 1;
const BITSET_SIZE: u16 = 2;
const BITSET_VALUE: u16 = 4;
const BITSET_MASK: u16 = 5;

/// Settings that are read and set together.
#[derive(Debug)]
pub struct Group {
    /// The name, after the option of `ethtool` that shows the group.
    pub name: &'static str,
    get: u8,
    set: u8,
    fields: &'static [Field],
}

/// A setting: its attribute, the form of its value, and its name.
type Field = (u16, Form, &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Byte,
    Word,
    /// All bits, including those that are off.
    Bits,
    /// Bits, of which a request contains only the changed ones.
    Changes,
    Bytes,
    /// The queue of each entry of a table.
    Queues,
}

use Form::{Bits, Byte, Bytes, Changes, Queues, Word};

/// All groups in the order in which they are set: a private flag or the number of channels may
/// change the settings of later groups.
pub static GROUPS: [Group; 12] = [
    Group {
        name: "private flags",
        get: 13,
        set: 14,
        fields: &[(2, Bits, "flags")],
    },
    Group {
        name: "channels",
        get: 17,
        set: 18,
        fields: &[
            (6, Word, "rx"),
            (7, Word, "tx"),
            (8, Word, "other"),
            (9, Word, "combined"),
        ],
    },
    Group {
        name: "rings",
        get: 15,
        set: 16,
        fields: &[
            (6, Word, "rx"),
            (7, Word, "rx-mini"),
            (8, Word, "rx-jumbo"),
            (9, Word, "tx"),
            (10, Word, "rx-buf-len"),
            (11, Byte, "tcp-data-split"),
            (12, Word, "cqe-size"),
            (13, Byte, "tx-push"),
            (14, Byte, "rx-push"),
            (15, Word, "tx-push-buf-len"),
            (17, Word, "hds-thresh"),
        ],
    },
    Group {
        name: "features",
        get: 11,
        set: 12,
        fields: &[(3, Changes, "wanted")],
    },
    Group {
        name: "coalesce",
        get: 19,
        set: 20,
        fields: &[
            (2, Word, "rx-usecs"),
            (3, Word, "rx-frames"),
            (4, Word, "rx-usecs-irq"),
            (5, Word, "rx-frames-irq"),
            (6, Word, "tx-usecs"),
            (7, Word, "tx-frames"),
            (8, Word, "tx-usecs-irq"),
            (9, Word, "tx-frames-irq"),
            (10, Word, "stats-block-usecs"),
            (11, Byte, "adaptive-rx"),
            (12, Byte, "adaptive-tx"),
            (13, Word, "pkt-rate-low"),
            (14, Word, "rx-usecs-low"),
            (15, Word, "rx-frames-low"),
            (16, Word, "tx-usecs-low"),
            (17, Word, "tx-frames-low"),
            (18, Word, "pkt-rate-high"),
            (19, Word, "rx-usecs-high"),
            (20, Word, "rx-frames-high"),
            (21, Word, "tx-usecs-high"),
            (22, Word, "tx-frames-high"),
            (23, Word, "sample-interval"),
            (24, Byte, "cqe-mode-tx"),
            (25, Byte, "cqe-mode-rx"),
            (26, Word, "tx-aggr-max-bytes"),
            (27, Word, "tx-aggr-max-frames"),
            (28, Word, "tx-aggr-time-usecs"),
        ],
    },
    Group {
        name: "pause",
        get: 21,
        set: 22,
        fields: &[(2, Byte, "autoneg"), (3, Byte, "rx"), (4, Byte, "tx")],
    },
    Group {
        name: "fec",
        get: 29,
        set: 30,
        fields: &[(2, Bits, "modes"), (3, Byte, "auto")],
    },
    Group {
        name: "eee",
        get: 23,
        set: 24,
        fields: &[
            (2, Bits, "advertise"),
            (5, Byte, "enabled"),
            (6, Byte, "tx-lpi"),
            (7, Word, "tx-timer"),
        ],
    },
    Group {
        name: "link modes",
        get: 4,
        set: 5,
        fields: &[
            (2, Byte, "autoneg"),
            (3, Bits, "advertise"),
            (5, Word, "speed"),
            (6, Byte, "duplex"),
        ],
    },
    Group {
        name: "wol",
        get: 9,
        set: 10,
        fields: &[(2, Bits, "modes"), (3, Bytes, "sopass")],
    },
    Group {
        name: "msglvl",
        get: 7,
        set: 8,
        fields: &[(2, Bits, "flags")],
    },
    // Linux can set these since 6.17.
    Group {
        name: "rss",
        get: 38,
        set: 48,
        fields: &[
            (3, Word, "hfunc"),
            (4, Queues, "indir"),
            (5, Bytes, "hkey"),
            (6, Word, "xfrm"),
        ],
    },
];

/// A setting as (group, name, value). Numbers are decimal; bits and bytes are hexadecimal.
pub type Setting = (&'static str, &'static str, String);

/// A socket to the ethtool family of generic netlink.
#[derive(Debug)]
pub struct Ethtool {
    socket: Socket,
    family: u16,
}

impl Ethtool {
    /// Opens a socket in the namespace of this thread; `None` if the kernel does not have the
    /// family.
    pub fn open() -> Result<Option<Ethtool>> {
        Ok(generic::open("ethtool")?.map(|(socket, family)| Ethtool::over(socket, family)))
    }

    /// Talks over a socket of generic netlink, in which the family has this number.
    pub fn over(socket: Socket, family: u16) -> Ethtool {
        Ethtool { socket, family }
    }

    /// Reads all settings that the driver reports, with one system call for all requests.
    pub fn read(&mut self, index: Index) -> Result<Vec<Setting>> {
        let requests: Vec<_> = GROUPS
            .iter()
            .map(|group| request(self.family, group.get, index, Vec::new()))
            .collect();
        let replies = self.socket.get_each(&requests)?;
        let told = GROUPS
            .iter()
            .zip(&replies)
            .filter_map(|(group, reply)| Some((group, reply.as_ref()?)));
        Ok(told
            .flat_map(|(group, reply)| group.parse(&reply.payload))
            .collect())
    }

    /// Numbers of pause frames that the port has sent and received, as `tx_pause` and `rx_pause`;
    /// empty if its driver does not count them.
    pub fn pause_frames(&mut self, index: Index) -> Result<BTreeMap<&'static str, u64>> {
        let request = request_with(
            FLAGS | FLAG_STATS,
            (self.family, PAUSE_GET),
            index,
            Vec::new(),
        );
        let reply = self.socket.get_each(&[request])?.pop().flatten();
        Ok(reply
            .map(|reply| pause_frames(&reply.payload))
            .unwrap_or_default())
    }

    /// Sets the settings of `group` in `changed` back to their former values.
    pub fn set(&mut self, link: &Link, group: &Group, changed: &[Change<'_>]) -> Result<()> {
        let attributes = changed
            .iter()
            .filter_map(|change| group.attribute(change))
            .collect();
        let message = request(self.family, group.set, link.index, attributes);
        self.socket.change(message, 0, || {
            let all = changed
                .iter()
                .map(|(name, was, now)| format!("{name} was {was} and is {now}"));
            let all: Vec<_> = all.collect();
            format!(
                "ethtool: cannot restore {} of {} ({})",
                group.name,
                link.name,
                all.join(", ")
            )
        })
    }
}

/// A setting as (name, former value, present value); the former value is to be restored.
pub type Change<'a> = (&'a str, &'a str, &'a str);

/// Whether the driver does not support the setting at all. Then no pod can have changed it.
pub fn is_unknown(error: &anyhow::Error) -> bool {
    Error::is(error, Errno::EOPNOTSUPP)
}

fn pause_frames(payload: &[u8]) -> BTreeMap<&'static str, u64> {
    let stats = attributes(payload.get(HEADER_LEN..).unwrap_or_default())
        .find(|one| one.kind() == PAUSE_STATS);
    let Some(stats) = stats else {
        return BTreeMap::new();
    };
    let count = |(kind, name): (u16, &'static str)| {
        let one = attributes(stats.value()).find(|one| one.kind() == kind)?;
        Some((name, u64::from_ne_bytes(one.value().try_into().ok()?)))
    };
    PAUSE_FRAMES.into_iter().filter_map(count).collect()
}

fn request(family: u16, command: u8, index: Index, attributes: Vec<DefaultNla>) -> Message {
    request_with(FLAGS, (family, command), index, attributes)
}

fn request_with(
    flags: u32,
    (family, command): (u16, u8),
    index: Index,
    mut attributes: Vec<DefaultNla>,
) -> Message {
    let word = |kind, number: u32| DefaultNla::new(kind, number.to_ne_bytes().to_vec());
    attributes.insert(
        0,
        nest(
            HEADER,
            &[
                word(HEADER_DEV_INDEX, index.get()),
                word(HEADER_FLAGS, flags),
            ],
        ),
    );
    Message::raw(family, &[command, 1, 0, 0], &attributes)
}

impl Group {
    fn parse(&self, payload: &[u8]) -> Vec<Setting> {
        let mut found = Vec::new();
        for attribute in attributes(payload.get(HEADER_LEN..).unwrap_or_default()) {
            let Some((_, form, name)) = self
                .fields
                .iter()
                .find(|(kind, ..)| *kind == attribute.kind())
            else {
                continue;
            };
            found.extend(
                form.text(attribute.value())
                    .map(|text| (self.name, *name, text)),
            );
        }
        found
    }

    fn attribute(&self, (name, was, now): &Change<'_>) -> Option<DefaultNla> {
        let (kind, form, _) = self.fields.iter().find(|(.., other)| other == name)?;
        let bitset = |value: Vec<u8>, mask: Option<Vec<u8>>| {
            let bits = u32::try_from(value.len() * 8).ok()?;
            let mask = mask.map_or_else(
                || DefaultNla::new(BITSET_NOMASK, Vec::new()),
                |mask| DefaultNla::new(BITSET_MASK, mask),
            );
            let size = DefaultNla::new(BITSET_SIZE, bits.to_ne_bytes().to_vec());
            Some(nest(
                *kind,
                &[size, DefaultNla::new(BITSET_VALUE, value), mask],
            ))
        };
        let value = match form {
            Byte => vec![was.parse().ok()?],
            Word => was.parse::<u32>().ok()?.to_ne_bytes().to_vec(),
            Bytes => bytes_of(was)?,
            Queues => queues_of(was)?,
            Bits => return bitset(bytes_of(was)?, None),
            Changes => {
                let (was, now) = (bytes_of(was)?, bytes_of(now)?);
                let mask: Vec<_> = was
                    .iter()
                    .zip(&now)
                    .map(|(one, other)| one ^ other)
                    .collect();
                // The value has no unchanged bits: the kernel refuses a request that contains bits
                // which nobody can change.
                let value = was
                    .iter()
                    .zip(&mask)
                    .map(|(one, mask)| one & mask)
                    .collect();
                return bitset(value, Some(mask));
            }
        };
        Some(DefaultNla::new(*kind, value))
    }
}

impl Form {
    fn text(self, value: &[u8]) -> Option<String> {
        match self {
            Byte => value.first().map(u8::to_string),
            Word => Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?).to_string()),
            Bits | Changes => {
                let bits = attributes(value).find(|one| one.kind() == BITSET_VALUE)?;
                Some(hex(bits.value()))
            }
            Bytes => Some(hex(value)),
            Queues => Some(equal_queues(value).unwrap_or_else(|| hex(value))),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let pairs = text
        .as_bytes()
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).ok());
    pairs
        .map(|pair| u8::from_str_radix(pair?, 16).ok())
        .collect()
}

/// `equal 8/128` for a table of 128 entries that lead to 8 queues in turn, as drivers set it up
/// (ethtool_rxfh_indir_default). Any other table is written as bytes, which are long.
fn equal_queues(value: &[u8]) -> Option<String> {
    let entries: Vec<_> = value
        .chunks_exact(4)
        .map(|entry| u32::from_ne_bytes(entry.try_into().unwrap_or_default()))
        .collect();
    let queues = entries.iter().max()?.checked_add(1)?;
    let is_equal = entries
        .iter()
        .zip((0..queues).cycle())
        .all(|(entry, queue)| *entry == queue);
    is_equal.then(|| format!("equal {queues}/{}", entries.len()))
}

fn queues_of(text: &str) -> Option<Vec<u8>> {
    let Some(equal) = text.strip_prefix("equal ") else {
        return bytes_of(text);
    };
    let (queues, entries) = equal.split_once('/')?;
    let (queues, entries): (u32, usize) = (queues.parse().ok()?, entries.parse().ok()?);
    // An attribute has at most 64 KiB.
    let entries = (0..queues).cycle().take(entries.min(16_000));
    Some(entries.flat_map(u32::to_ne_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str) -> &'static Group {
        GROUPS.iter().find(|group| group.name == name).unwrap()
    }

    fn bytes(group: &Group, changed: &[Change<'_>]) -> Vec<u8> {
        let attributes = changed
            .iter()
            .filter_map(|change| group.attribute(change))
            .collect();
        let message = request(0x14, group.set, Index::MIN.saturating_add(4), attributes);
        assert_eq!(message.kind, 0x14);
        message.payload
    }

    fn head(command: u8) -> Vec<u8> {
        [
            &[command, 1, 0, 0][..],
            &[
                20, 0, 1, 0x80, 8, 0, 1, 0, 5, 0, 0, 0, 8, 0, 3, 0, 3, 0, 0, 0,
            ],
        ]
        .concat()
    }

    /// As Linux answers ETHTOOL_MSG_PAUSE_GET with statistics: PAUSE_STATS is nested, and its
    /// counters may have padding between.
    #[test]
    fn pause_frames_are_read_from_these_bytes() {
        let autoneg = [5, 0, 2, 0, 1, 0, 0, 0];
        let stats = [
            32, 0, 5, 0x80, 4, 0, 1, 0, 12, 0, 2, 0, 7, 0, 0, 0, 0, 0, 0, 0, 12, 0, 3, 0, 0, 1, 0,
            0, 0, 0, 0, 0,
        ];
        let reply = [&[22, 1, 0, 0][..], &autoneg, &stats].concat();
        assert_eq!(
            pause_frames(&reply),
            BTreeMap::from([("tx_pause", 7), ("rx_pause", 256)])
        );
        assert_eq!(pause_frames(&reply[..12]), BTreeMap::new());
        assert_eq!(pause_frames(&[]), BTreeMap::new());
    }

    /// ETHTOOL_MSG_RINGS_SET with _RX and _TX_PUSH, FEATURES_SET with a compact bitset, DEBUG_SET
    /// with one without a mask: numbers from ethtool_netlink.h.
    #[test]
    fn a_change_is_these_bytes() {
        let rings = bytes(
            group("rings"),
            &[("rx", "256", "64"), ("tx-push", "1", "0")],
        );
        assert_eq!(
            rings,
            [
                &head(16)[..],
                &[8, 0, 6, 0, 0, 1, 0, 0, 5, 0, 13, 0, 1, 0, 0, 0]
            ]
            .concat()
        );
        let features = bytes(group("features"), &[("wanted", "05000000", "06000000")]);
        let set = [
            28, 0, 3, 0x80, 8, 0, 2, 0, 32, 0, 0, 0, 8, 0, 4, 0, 1, 0, 0, 0, 8, 0, 5, 0, 3, 0, 0, 0,
        ];
        assert_eq!(features, [&head(12)[..], &set].concat());
        let msglvl = bytes(group("msglvl"), &[("flags", "07000000", "ff000000")]);
        let set = [
            24, 0, 2, 0x80, 8, 0, 2, 0, 32, 0, 0, 0, 8, 0, 4, 0, 7, 0, 0, 0, 4, 0, 1, 0,
        ];
        assert_eq!(msglvl, [&head(8)[..], &set].concat());
    }

    #[test]
    fn what_is_set_is_what_is_read() {
        let indir = hex(&[1u32, 0, 3].map(u32::to_ne_bytes).concat());
        let was = [
            ("hfunc", "1"),
            ("indir", "equal 8/128"),
            ("hkey", "0102ff"),
            ("indir", &indir),
        ];
        for (name, value) in was {
            let read = group("rss").parse(&bytes(group("rss"), &[(name, value, "")]));
            assert_eq!(read, [("rss", name, value.to_owned())]);
        }
        assert_eq!(group("rss").parse(&[1]), []);
        assert_eq!(bytes_of("0g"), None);
    }
}
