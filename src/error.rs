//! The report of a failed verb to the runtime: one JSON object with an error code of the CNI
//! specification. The code is chosen here and nowhere else.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// Error codes. The specification reserves 1 to 99 (SPEC.md, "Error").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The plugin does not support the configuration's `cniVersion`.
    IncompatibleVersion = 1,
    /// A key needs a feature that this plugin, this device or this kernel does not have.
    UnsupportedField = 2,
    /// A CNI_* variable is missing or malformed.
    InvalidEnvironment = 4,
    /// Reading or writing failed.
    Io = 5,
    /// The content is not what it should be: for example, the JSON cannot be parsed.
    Decode = 6,
    /// The network configuration is wrong.
    InvalidConfig = 7,
    /// CNI_NETNS does not name a network namespace, or names the plugin's own.
    InvalidNetns = 8,
    /// Another call holds what this one needs; the same call may succeed later.
    TryAgain = 11,
    /// STATUS: an ADD would fail now.
    NotAvailable = 50,
    /// CHECK: the attachment differs from what ADD made.
    CheckFailed = 100,
    /// The gateway of a rail does not answer: a cable or a leaf port is wrong.
    GatewaySilent = 101,
    /// The RDMA device of a rail has no GID of the rail's address.
    GidMissing = 102,
    /// Every other failure.
    Internal = 999,
}

/// An error with a code. Context may be added above it; the code stays the same.
#[derive(Clone, Debug)]
pub struct Failure {
    code: u32,
    msg: String,
    details: String,
    is_relayed: bool,
}

impl Failure {
    /// An error of this program with the given code.
    pub fn new(code: Code, msg: impl Into<String>) -> Failure {
        Failure {
            code: code as u32,
            msg: msg.into(),
            details: String::new(),
            is_relayed: false,
        }
    }

    /// Adds text that belongs to the error but is too long for its message.
    #[must_use]
    pub fn details(mut self, details: impl Into<String>) -> Failure {
        self.details = details.into();
        self
    }

    /// The error that another plugin reported, unchanged.
    pub fn relayed(error: ErrorJson) -> Failure {
        Failure {
            code: error.code,
            msg: error.msg,
            details: error.details,
            is_relayed: true,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)
    }
}

impl std::error::Error for Failure {}

/// The code that `error` is reported with.
pub fn code_of(error: &anyhow::Error) -> u32 {
    if let Some(failure) = failure_in(error) {
        failure.code
    } else if error.chain().any(|cause| cause.is::<Fault>()) {
        Code::InvalidConfig as u32
    } else if error
        .chain()
        .any(|cause| cause.is::<std::io::Error>() || cause.is::<nix::errno::Errno>())
    {
        Code::Io as u32
    } else {
        Code::Internal as u32
    }
}

/// Whether `error` is the error object that another plugin printed: that plugin ran, and refused
/// the call.
pub fn is_relayed(error: &anyhow::Error) -> bool {
    failure_in(error).is_some_and(|failure| failure.is_relayed)
}

/// The outermost failure in the chain. `downcast_ref` also finds a failure that was added as
/// context to another error; `chain` shows such a context only under a private type.
fn failure_in(error: &anyhow::Error) -> Option<&Failure> {
    error
        .downcast_ref()
        .or_else(|| error.chain().find_map(|cause| cause.downcast_ref()))
}

/// The error object of the specification.
#[derive(Debug, Serialize, Deserialize)]
pub struct ErrorJson {
    /// The `cniVersion` of the configuration, or the newest version that the plugin supports.
    #[serde(rename = "cniVersion", default)]
    pub cni_version: String,
    /// The error code; see [`Code`].
    pub code: u32,
    /// One line that says what failed, where, and what to do.
    #[serde(default)]
    pub msg: String,
    /// Text that does not fit into one line, or the value that is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl ErrorJson {
    /// The report of `error`, with every cause in one line.
    pub fn new(cni_version: &str, error: &anyhow::Error) -> ErrorJson {
        let details = failure_in(error).map_or_else(String::new, |failure| failure.details.clone());
        ErrorJson {
            cni_version: cni_version.to_owned(),
            code: code_of(error),
            msg: format!("{error:#}"),
            details,
        }
    }

    /// go-cni takes a DEL that fails with one of these texts for a success and forgets the
    /// attachment (containerd/go-cni cni.go:270). It does not matter who wrote the text: the
    /// kernel's error strings and the message of an IPAM plugin count as well.
    #[must_use]
    pub fn safe_for_del(mut self) -> ErrorJson {
        for text in [&mut self.msg, &mut self.details] {
            *text = replace_ignoring_case(text, "no such file or directory", "ENOENT");
            *text = replace_ignoring_case(text, "not found", "absent");
        }
        self
    }
}

fn replace_ignoring_case(text: &str, from: &str, to: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(found) = lower[at..].find(from) {
        out.push_str(&text[at..at + found]);
        out.push_str(to);
        at += found + from.len();
    }
    out.push_str(&text[at..]);
    out
}

/// Returns early with a [`Failure`]: `fail!(InvalidConfig, "mtu {mtu}: …")`.
#[macro_export]
macro_rules! fail {
    ($code:ident, $($arg:tt)*) => {
        return Err(anyhow::Error::new($crate::error::Failure::new($crate::error::Code::$code, format!($($arg)*))))
    };
}

/// Builds a [`Failure`] as an `anyhow::Error`.
#[macro_export]
macro_rules! failure {
    ($code:ident, $($arg:tt)*) => {
        anyhow::Error::new($crate::error::Failure::new($crate::error::Code::$code, format!($($arg)*)))
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn the_code_survives_context_and_the_text_keeps_every_cause() {
        let error = Err::<(), _>(failure!(TryAgain, "held by c1"))
            .context("rail 3")
            .unwrap_err();
        let json = ErrorJson::new("1.0.0", &error);
        assert_eq!((json.code, json.msg.as_str()), (11, "rail 3: held by c1"));
    }

    #[test]
    fn a_failure_as_context_gives_its_code() {
        let cause = || anyhow::Error::new(std::io::Error::other("x"));
        let error = cause()
            .context(Failure::new(Code::Decode, "stdin").details("d"))
            .context("above");
        let json = ErrorJson::new("1.0.0", &error);
        assert_eq!(
            (json.code, json.msg.as_str(), json.details.as_str()),
            (6, "above: stdin: x", "d")
        );
    }

    #[test]
    fn an_io_error_is_code_5_and_anything_else_999() {
        assert_eq!(code_of(&anyhow::Error::new(std::io::Error::other("x"))), 5);
        assert_eq!(code_of(&anyhow::anyhow!("x")), 999);
        assert_eq!(
            code_of(&anyhow::Error::new(Fault::new("mtu", "x")).context("above")),
            7
        );
    }

    /// go-cni takes a DEL whose error contains `not found` for done, and containerd then forgets
    /// the pod: tests/contract-items, item 82.
    #[test]
    fn no_del_error_reads_like_a_success_to_go_cni() {
        let error = anyhow::anyhow!("link Not Found: No such file or directory (os error 2)");
        assert_eq!(
            ErrorJson::new("1.1.0", &error).safe_for_del().msg,
            "link absent: ENOENT (os error 2)"
        );
    }
}
