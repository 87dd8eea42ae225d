//! The settings that a pod with CAP_NET_ADMIN can change on its rail, beside name, MTU, MAC, and
//! what the move to the host ends: ADD records them and DEL restores them, because the next pod
//! must inherit nothing.
//!
//! N-tuple filters, further RSS contexts and time stamping are missing: neither netlink nor sysfs
//! can restore them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::alias::Alias;
use rail_netlink::ethtool::{self, Ethtool, GROUPS, Group};
use rail_netlink::link::{self, Link};
use rail_netlink::{Socket, tunables};

/// Number of comparisons of ethtool's settings: restoring one may change another.
const ROUNDS: u32 = 2;
/// Files of the whole device, below class/net/NAME.
const FILES: [&str; 3] = ["gro_flush_timeout", "napi_defer_hard_irqs", "threaded"];
/// Files of each queue, with the value that a driver leaves there. Only other values are recorded:
/// a VF can have 64 queues.
const RX_FILES: [(&str, &str); 2] = [("rps_cpus", "0"), ("rps_flow_cnt", "0")];
const TX_FILES: [(&str, &str); 6] = [
    ("xps_cpus", "0"),
    ("xps_rxqs", "0"),
    ("tx_maxrate", "0"),
    // DQL_MAX_LIMIT, include/linux/dynamic_queue_limits.h.
    ("byte_queue_limits/limit_max", "1879048192"),
    ("byte_queue_limits/limit_min", "0"),
    ("byte_queue_limits/hold_time", "1000"),
];

/// Settings by name: `txqueuelen`, `rings rx`, `queues/tx-0/tx_maxrate`. One that is missing is not
/// reported by kernel or driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Whether the setting `name` was reported.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Reads the settings of `link`, which is on the host. Whatever cannot be read is left out.
    pub fn take(link: &Link, sysfs: &Path, host: &mut Socket) -> Settings {
        let or_none = |read: Result<BTreeMap<String, String>>| {
            read.unwrap_or_else(|error| {
                log::warn!("{error:#}");
                BTreeMap::new()
            })
        };
        let mut all = or_none(of_link(link, host));
        if let Some((_, alias)) = all.iter_mut().find(|(name, alias)| is_of_rail(name, alias)) {
            alias.clear();
        }
        if let Some(mut ethtool) = open() {
            all.extend(or_none(of_ethtool(link, &mut ethtool)));
        }
        for file in of_files(&folder(sysfs, link))
            .into_iter()
            .filter(|file| !file.is_default())
        {
            all.insert(file.name, file.now);
        }
        Settings(all)
    }

    /// Restores the settings of `link`, which is on the host and down. Settings that have not
    /// changed are not touched.
    pub fn restore(&self, link: &Link, sysfs: &Path, host: &mut Socket) -> Vec<Result<()>> {
        let mut done = self.restore_link(link, host);
        if let Some(mut ethtool) = open() {
            done.extend(self.restore_ethtool(link, &mut ethtool));
        }
        done.extend(self.restore_files(link, &folder(sysfs, link), host));
        done
    }

    fn restore_link(&self, link: &Link, host: &mut Socket) -> Vec<Result<()>> {
        let now = match of_link(link, host) {
            Ok(now) => now,
            Err(error) => return vec![Err(error)],
        };
        let changed = now
            .iter()
            .filter(|(name, value)| self.0.get(*name) != Some(value));
        let restore = |(name, now): (&String, &String)| match self.0.get(name) {
            None if is_of_rail(name, now) => {
                tunables::set(host, link, name, &|_| Some(String::new()))
            }
            // It was not reported at ADD.
            None => Ok(()),
            Some(_) => {
                let was = |name: &str| self.0.get(name).cloned();
                tunables::set(host, link, name, &was).with_context(|| format!("it is {now}"))
            }
        };
        changed.map(restore).collect()
    }

    fn restore_ethtool(&self, link: &Link, ethtool: &mut Ethtool) -> Vec<Result<()>> {
        let mut done = Vec::new();
        for _ in 0..ROUNDS {
            let now = match of_ethtool(link, ethtool) {
                Ok(now) => now,
                Err(error) => return vec![Err(error)],
            };
            done.clear();
            for group in &GROUPS {
                let changed = self.changed(group, &now);
                if !changed.is_empty() {
                    done.push(restore_group(link, group, &changed, ethtool));
                }
            }
            if done.is_empty() {
                break;
            }
        }
        done
    }

    /// The settings of `group` that must be restored: name, recorded value, present value.
    fn changed<'a>(
        &'a self,
        group: &Group,
        now: &'a BTreeMap<String, String>,
    ) -> Vec<ethtool::Change<'a>> {
        let prefix = format!("{} ", group.name);
        let of_group = now
            .iter()
            .filter_map(|(key, now)| Some((key.strip_prefix(&prefix)?, self.0.get(key)?, now)));
        let is_on = |name: &str| {
            let key = format!("{prefix}{name}");
            [&self.0, now]
                .iter()
                .all(|all| all.get(&key).is_some_and(|value| value == "1"))
        };
        let mut changed: Vec<_> = of_group
            .filter(|(_, was, now)| was != now)
            .map(|(name, was, now)| (name, was.as_str(), now.as_str()))
            .collect();
        match group.name {
            // A driver in adaptive mode changes them by itself.
            "coalesce" => changed.retain(|(name, ..)| match *name {
                "rx-usecs" | "rx-frames" => !is_on("adaptive-rx"),
                "tx-usecs" | "tx-frames" => !is_on("adaptive-tx"),
                _ => true,
            }),
            // They follow the cable while they are negotiated, and are unknown (all bits set)
            // without a carrier.
            "link modes" => {
                let is_unknown = |value: &str| {
                    [u32::MAX.to_string(), u8::MAX.to_string()].contains(&value.to_owned())
                };
                let is_forced = self
                    .0
                    .get("link modes autoneg")
                    .is_some_and(|autoneg| autoneg == "0");
                changed.retain(|(name, was, now)| {
                    !["speed", "duplex"].contains(name)
                        || (is_forced && !is_unknown(was) && !is_unknown(now))
                });
            }
            // No modes at all is how a driver begins, and cannot be asked for (ethnl_set_fec).
            "fec" => changed
                .retain(|(name, was, _)| *name != "modes" || was.bytes().any(|byte| byte != b'0')),
            // bnxt_en tells zeros while its link is down (bnxt_get_rxfh), and some of its versions
            // choose a new key each time it comes up.
            "rss" => {
                let is_told = |all: &BTreeMap<String, String>| {
                    all.get("rss hkey")
                        .is_none_or(|key| key.bytes().any(|byte| byte != b'0'))
                };
                if !is_told(&self.0) || !is_told(now) {
                    changed.clear();
                }
            }
            _ => (),
        }
        changed
    }

    fn restore_files(&self, link: &Link, folder: &Path, host: &mut Socket) -> Vec<Result<()>> {
        let mut done = Vec::new();
        for file in of_files(folder) {
            let was = match (self.0.get(&file.name), file.default) {
                (Some(was), _) => was.as_str(),
                // It had the driver's value.
                (None, Some(default)) if !file.is_default() => default,
                _ => continue,
            };
            if was != file.now {
                let path = folder.join(&file.name);
                let what = || format!("cannot set {} to {was}: it is {}", path.display(), file.now);
                done.push(write(&path, was, link, host).with_context(what));
            }
        }
        done
    }
}

fn write(path: &Path, value: &str, link: &Link, host: &mut Socket) -> Result<()> {
    match fs::write(path, value) {
        // `threaded` can only be set on a link that is up, if its driver removes its NAPI instances
        // with the link (mlx5; modify_napi_threaded).
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {
            link::set_up(host, link)?;
            let written = fs::write(path, value);
            link::set_down(host, link)?;
            Ok(written?)
        }
        written => Ok(written?),
    }
}

fn restore_group(
    link: &Link,
    group: &Group,
    changed: &[ethtool::Change<'_>],
    ethtool: &mut Ethtool,
) -> Result<()> {
    let refused = match ethtool.set(link, group, changed) {
        Err(error) if ethtool::is_unknown(&error) => error,
        done => return done,
    };
    // Netlink sets it since Linux 6.17, the older interface since long ago.
    if group.name == "rss" {
        return Err(refused.context(format!(
            "RSS of {} was changed: `ethtool -X {} default`",
            link.name, link.name
        )));
    }
    log::debug!("{refused:#}");
    Ok(())
}

fn open() -> Option<Ethtool> {
    Ethtool::open().unwrap_or_else(|error| {
        log::warn!("{error:#}");
        None
    })
}

// `collect` would bring a sort of pairs of strings, ten KiB of code.
fn of_link(link: &Link, host: &mut Socket) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for (name, value) in tunables::read(host, link.index)? {
        all.insert(name.to_owned(), value);
    }
    Ok(all)
}

/// Whether the setting is the alias of a rail: of an earlier pod, whose record was lost.
fn is_of_rail(name: &str, value: &str) -> bool {
    name == "alias" && Alias::parse(value).is_some()
}

fn of_ethtool(link: &Link, ethtool: &mut Ethtool) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for (group, name, value) in ethtool.read(link.index)? {
        all.insert(format!("{group} {name}"), value);
    }
    Ok(all)
}

fn folder(sysfs: &Path, link: &Link) -> PathBuf {
    sysfs.join("class/net").join(&link.name)
}

/// A file of sysfs below the device's folder.
struct File {
    name: String,
    now: String,
    /// The value that it had if none is recorded.
    default: Option<&'static str>,
}

impl File {
    fn is_default(&self) -> bool {
        // Masks are as long as the machine has CPUs: `0000,00000000`.
        self.default.is_some_and(|default| {
            self.now == default
                || (default == "0" && self.now.bytes().all(|byte| b"0,".contains(&byte)))
        })
    }
}

fn of_files(folder: &Path) -> Vec<File> {
    let mut all = Vec::new();
    let mut add = |name: String, default| {
        if let Some(now) = read(&folder.join(&name)) {
            all.push(File { name, now, default });
        }
    };
    for name in FILES {
        add(name.to_owned(), None);
    }
    for queue in fs::read_dir(folder.join("queues"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let queue = queue.file_name().to_string_lossy().into_owned();
        let files: &[(&str, &str)] = if queue.starts_with("rx-") {
            &RX_FILES
        } else {
            &TX_FILES
        };
        for (file, default) in files {
            add(format!("queues/{queue}/{file}"), Some(*default));
        }
    }
    all
}

/// A file of sysfs or a sysctl has a page at most, and comes whole. `None` if it cannot be read.
pub fn read(path: &Path) -> Option<String> {
    let mut page = [0; 4096];
    let length = fs::File::open(path).ok()?.read(&mut page).ok()?;
    Some(
        std::str::from_utf8(page.get(..length)?)
            .ok()?
            .trim()
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that a driver hides while its link is down has not changed.
    #[test]
    fn an_rss_key_of_zeros_is_none() {
        let rss = |key: &str, table: &str| -> BTreeMap<String, String> {
            [("rss hkey", key), ("rss indir", table)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        };
        let group = GROUPS.iter().find(|group| group.name == "rss").unwrap();
        let changed = |was, now| Settings(was).changed(group, &now).len();
        assert_eq!(
            changed(rss("0a0b", "equal 8/128"), rss("0a0c", "equal 4/128")),
            2
        );
        assert_eq!(
            changed(rss("0a0b", "equal 8/128"), rss("0a0b", "equal 4/128")),
            1
        );
        assert_eq!(changed(rss("0a0b", "equal 8/128"), rss("0000", "00")), 0);
        assert_eq!(changed(rss("0000", "00"), rss("0a0b", "equal 8/128")), 0);
    }
}
