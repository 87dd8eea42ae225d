//! The environment variables of one call, checked once: what is left after the check is
//! well-formed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{fail, failure};

/// The verb of the call, with what it needs.
#[derive(Clone, Debug)]
pub enum Command {
    /// Attach a device; the path is CNI_NETNS.
    Add(Attachment, PathBuf),
    /// Undo an ADD; the namespace may be gone, or the runtime may not have passed it.
    Del(Attachment, Option<PathBuf>),
    /// Compare the attachment with what ADD made; the path is CNI_NETNS.
    Check(Attachment, PathBuf),
    /// Report whether an ADD would succeed.
    Status,
    /// Undo every ADD of this network that is not in the list on stdin.
    Gc,
    /// Report the supported versions of the specification.
    Version,
    /// Any other verb. It is refused, but only after stdin was found to be in order, as Go's skel
    /// does.
    Unknown(String),
}

impl Command {
    /// The value of CNI_COMMAND.
    pub fn name(&self) -> &str {
        match self {
            Command::Add(..) => "ADD",
            Command::Del(..) => "DEL",
            Command::Check(..) => "CHECK",
            Command::Status => "STATUS",
            Command::Gc => "GC",
            Command::Version => "VERSION",
            Command::Unknown(name) => name,
        }
    }

    /// The attachment that the call is for; `None` for STATUS and GC, which are for the whole node.
    pub fn attachment(&self) -> Option<&Attachment> {
        match self {
            Command::Add(attachment, _)
            | Command::Del(attachment, _)
            | Command::Check(attachment, _) => Some(attachment),
            Command::Status | Command::Gc | Command::Version | Command::Unknown(_) => None,
        }
    }
}

/// One device in one container under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// CNI_CONTAINERID, which matches `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`.
    pub container_id: String,
    /// CNI_IFNAME, a valid name of a network interface.
    pub ifname: String,
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of container {}", self.ifname, self.container_id)
    }
}

/// The CNI_* variables of this process.
#[derive(Debug)]
pub struct Environment {
    /// CNI_COMMAND, with the variables that it needs.
    pub command: Command,
    /// CNI_ARGS. They are never required, and none makes a call fail.
    pub args: Args,
    /// CNI_PATH: the directories in which plugins are searched.
    pub path: Vec<PathBuf>,
}

impl Environment {
    /// Reads and checks the variables in the order of Go's skel and with its texts, which runtimes
    /// and their tests know (pkg/skel/skel.go:62-161). An empty variable counts as missing, because
    /// libcni sets the variables that it does not use to "". Returns `None` without CNI_COMMAND:
    /// then no runtime called.
    pub fn read(var: impl Fn(&str) -> Option<OsString>) -> Result<Option<Environment>> {
        let text = |name: &str| -> Result<String> {
            match var(name).unwrap_or_default().into_string() {
                Ok(value) => Ok(value),
                Err(raw) => fail!(InvalidEnvironment, "{name}: {raw:?} is not UTF-8"),
            }
        };
        let command = text("CNI_COMMAND")?;
        let needs: &[&str] = match command.as_str() {
            "" => return Ok(None),
            "ADD" | "CHECK" => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            "DEL" => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            "GC" | "STATUS" => &["CNI_PATH"],
            _ => &[],
        };
        let mut missing = Vec::new();
        for name in needs {
            match (*name, var(name).unwrap_or_default()) {
                (name, value) if value.is_empty() => missing.push(name),
                ("CNI_CONTAINERID", _) => check_container_id(&text(name)?)?,
                ("CNI_IFNAME", _) => check_ifname(&text(name)?)?,
                _ => (),
            }
        }
        if !missing.is_empty() {
            fail!(
                InvalidEnvironment,
                "required env variables [{}] missing",
                missing.join(",")
            );
        }

        let netns = var("CNI_NETNS")
            .filter(|value| !value.is_empty())
            .map(PathBuf::from);
        let attachment = || -> Result<Attachment> {
            Ok(Attachment {
                container_id: text("CNI_CONTAINERID")?,
                ifname: text("CNI_IFNAME")?,
            })
        };
        let command = match (command.as_str(), netns) {
            ("ADD", Some(netns)) => Command::Add(attachment()?, netns),
            ("CHECK", Some(netns)) => Command::Check(attachment()?, netns),
            ("DEL", netns) => Command::Del(attachment()?, netns),
            ("GC", _) => Command::Gc,
            ("STATUS", _) => Command::Status,
            ("VERSION", _) => Command::Version,
            _ => Command::Unknown(command),
        };
        let path = directories(var("CNI_PATH"));
        let args = Args::parse(&var("CNI_ARGS").unwrap_or_default().to_string_lossy());
        Ok(Some(Environment {
            command,
            args,
            path,
        }))
    }
}

/// CNI_PATH of this process: where the runtime has its plugins now. Empty for a command without it.
pub fn plugin_path() -> Vec<PathBuf> {
    directories(std::env::var_os("CNI_PATH"))
}

fn directories(path: Option<OsString>) -> Vec<PathBuf> {
    path.map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default()
}

/// CNI_ARGS: `K=V;K2=V2`. Thin Multus writes every key twice, and empty values; the last one
/// counts.
#[derive(Clone, Debug, Default)]
pub struct Args {
    pairs: BTreeMap<String, String>,
    /// The unchanged text, for other plugins that are called later.
    pub raw: String,
}

impl Args {
    /// Reads CNI_ARGS.
    pub fn parse(text: &str) -> Args {
        let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
        let pairs = pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Args {
            pairs,
            raw: text.to_owned(),
        }
    }

    /// The value of `key`; an empty one counts as absent.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The pod as `namespace/name`, when a Kubernetes runtime called.
    pub fn pod(&self) -> Option<String> {
        Some(format!(
            "{}/{}",
            self.get("K8S_POD_NAMESPACE")?,
            self.get("K8S_POD_NAME")?
        ))
    }

    /// The UID of the pod, when a Kubernetes runtime called. It is the runtime's word: no network
    /// can set it.
    pub fn pod_uid(&self) -> Option<&str> {
        self.get("K8S_POD_UID")
    }
}

/// Whether `text` matches the specification's `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`, for container ids
/// and for the names of networks and pools. Such a text is safe as part of a file name.
pub fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// Whether `name` can be the name of a netdev in a file that people write. The kernel accepts more
/// names, but nobody means those.
pub fn is_netdev_name(name: &str) -> bool {
    is_identifier(name) && name.len() <= 15
}

fn check_container_id(id: &str) -> Result<()> {
    if is_identifier(id) {
        return Ok(());
    }
    Err(anyhow::Error::new(
        crate::error::Failure::new(
            crate::error::Code::InvalidEnvironment,
            "invalid characters in containerID",
        )
        .details(id),
    ))
}

/// Checks that the kernel accepts `name` for a netdev (dev_valid_name). The errors are those of
/// skel.
pub fn check_ifname(name: &str) -> Result<()> {
    let wrong = match name {
        "" => "interface name is empty",
        "." | ".." => "interface name is . or ..",
        name if name.len() > 15 => "interface name is too long: more than 15 bytes",
        name if name.contains(['/', ':']) => "interface name contains / or :",
        name if name.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            "interface name contains whitespace or control characters"
        }
        // The kernel would complete such a name (`net%d`), so the interface could not be found
        // again.
        name if name.contains('%') => "interface name contains %",
        // The sysctls of such an interface would be those of all interfaces
        // (sysctl_dev_name_is_allowed).
        "all" | "default" => "interface name is one of sysctl's own",
        _ => return Ok(()),
    };
    fail!(InvalidEnvironment, "{wrong}: {name:?}")
}

/// Finds the program `name` in the directories of CNI_PATH, in their order. PATH is never searched.
pub fn find_plugin(name: &str, path: &[PathBuf]) -> Result<PathBuf> {
    let found = path
        .iter()
        .map(|dir| dir.join(name))
        .find(|file| is_file(file));
    found.ok_or_else(|| {
        let dirs: Vec<_> = path.iter().map(|dir| dir.display().to_string()).collect();
        failure!(
            InvalidConfig,
            "there is no plugin {name:?} in CNI_PATH [{}]: install it there",
            dirs.join(", ")
        )
    })
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Option<Environment>> {
        let vars: BTreeMap<_, _> = vars.iter().copied().collect();
        Environment::read(|name| vars.get(name).map(OsString::from))
    }

    #[test]
    fn every_missing_variable_is_named() {
        let error = read(&[("CNI_COMMAND", "ADD")]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH]"),
            "{error}"
        );
        golden::says("plugins", "variables are missing", error);
    }

    #[test]
    fn a_bad_container_id_is_reported_before_what_is_missing_after_it() {
        let error = read(&[("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "a\n")]).unwrap_err();
        assert_eq!(crate::error::code_of(&error), 4);
        golden::says("plugins", "CNI_CONTAINERID is not valid", error);
    }

    #[test]
    fn the_last_of_two_equal_args_counts_and_nonsense_is_passed_over() {
        let args = Args::parse("IgnoreUnknown=1;;K=a;K=b=c;nonsense;K8S_POD_UID=");
        assert_eq!(
            (args.get("K"), args.get("K8S_POD_UID")),
            (Some("b=c"), None)
        );
    }

    #[test]
    fn names_are_measured_in_bytes() {
        assert!(check_ifname("ééééééé1").is_ok());
        assert!(check_ifname("éééééééé").is_err());
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "a\u{85}b",
            "a\0b",
            "net%d",
            "sixteen-bytes-xx",
        ] {
            assert!(check_ifname(bad).is_err(), "{bad:?}");
        }
    }
}
