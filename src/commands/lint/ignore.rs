//! Warnings that a file silences, each with its reason: `mtu: storage rails have 8000`.

use super::{Finding, Lint, Severity};
use crate::attach::config::LINT_IGNORE;
use crate::document::{Part, Place};

/// The warnings of one key of one network.
#[derive(Debug)]
pub struct Ignore {
    place: Place,
    network: String,
    /// As in a [`Finding`].
    of: usize,
    /// With which the warnings begin: `mtu`, `routes[0].dst`.
    key: String,
    /// Empty: none was given, and nothing is silenced.
    reason: String,
    silenced: usize,
}

impl Lint {
    /// Of a manifest: a line for each, in an annotation.
    pub(super) fn annotated(&mut self, manifest: Part, name: &str) {
        let annotations = manifest.get("metadata.annotations");
        let given = annotations.into_iter().flat_map(Part::entries).find(|(key, _)| *key == LINT_IGNORE);
        let Some((_, given)) = given else { return };
        for line in given.value.as_str().unwrap_or_default().lines().filter(|line| !line.trim().is_empty()) {
            let (key, reason) = line.split_once(':').unwrap_or((line, ""));
            self.ignore(given, name, key, reason);
        }
    }

    /// Of a CNI configuration, which is JSON: an object of reasons.
    pub(super) fn ignores_in(&mut self, config: Part, name: &str) {
        let Some((_, given)) = config.entries().find(|(key, _)| *key == LINT_IGNORE) else { return };
        for (key, reason) in given.entries() {
            self.ignore(reason, name, key, reason.value.as_str().unwrap_or_default());
        }
        if !given.value.is_object() {
            let message = format!(
                "{LINT_IGNORE}: is no object of keys and reasons, such as {{\"mtu\": \"8000 here\"}}"
            );
            self.warning(given, name, message);
        }
    }

    fn ignore(&mut self, part: Part, network: &str, key: &str, reason: &str) {
        let (key, reason) = (key.trim().to_owned(), reason.trim().to_owned());
        let (place, network) = (part.place(""), network.to_owned());
        self.ignores.push(Ignore { place, network, of: self.of, key, reason, silenced: 0 });
    }

    /// Takes out what need not be said, and says which of these words are for nothing. Errors stay.
    pub(super) fn silence(&mut self) {
        for finding in std::mem::take(&mut self.findings) {
            let about = finding.message.split(": ").next().unwrap_or_default();
            let ignore = self.ignores.iter_mut().find(|ignore| {
                let is_meant = ignore.of == finding.of && ignore.key == about;
                is_meant && !ignore.reason.is_empty() && finding.severity == Severity::Warning
            });
            match ignore {
                Some(ignore) => {
                    ignore.silenced += 1;
                    self.silenced.push((finding, ignore.reason.clone()));
                }
                None => self.findings.push(finding),
            }
        }
        for Ignore { place, network, of, key, reason, silenced } in std::mem::take(&mut self.ignores) {
            let message = match (reason.is_empty(), silenced) {
                (true, _) => {
                    format!("{LINT_IGNORE}: {key} has no reason, so nothing is silenced: `{key}: why`")
                }
                (false, 0) => {
                    format!("{LINT_IGNORE}: {key} has no warning that could be silenced: take it out")
                }
                (false, _) => continue,
            };
            self.findings.push(Finding { severity: Severity::Warning, place, network, of, message });
        }
    }
}
