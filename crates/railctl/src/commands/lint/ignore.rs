//! Warnings that a file silences, each with its reason: `mtu: storage rails have 8000`.

use super::{Finding, Lint, Severity};
use rail_cni::fault::{Fault, Place};
use rail_cni::netconf::LINT_IGNORE;
use rail_plan::document::Part;

/// The warnings of one key of one network.
#[derive(Debug)]
pub struct Ignore {
    place: Place,
    network: String,
    /// As in a [`Finding`].
    of: usize,
    /// The path that the warnings are about: `mtu`, `routes[0].dst`.
    key: String,
    /// Empty where no reason was given; then nothing is silenced.
    reason: String,
    silenced: usize,
}

impl Lint {
    /// Reads the annotation of a manifest, which has a line for each key.
    pub(super) fn annotated(&mut self, manifest: Part, name: &str) {
        let annotations = manifest.get("metadata.annotations");
        let given = annotations
            .into_iter()
            .flat_map(Part::entries)
            .find(|(key, _)| *key == LINT_IGNORE);
        let Some((_, given)) = given else { return };
        for line in given
            .value
            .as_str()
            .unwrap_or_default()
            .lines()
            .filter(|line| !line.trim().is_empty())
        {
            let (key, reason) = line.split_once(':').unwrap_or((line, ""));
            self.ignore(given, name, key, reason);
        }
    }

    /// Reads the key of a CNI configuration, which is an object of reasons.
    pub(super) fn ignores_in(&mut self, config: Part, name: &str) {
        let Some((_, given)) = config.entries().find(|(key, _)| *key == LINT_IGNORE) else {
            return;
        };
        for (key, reason) in given.entries() {
            self.ignore(reason, name, key, reason.value.as_str().unwrap_or_default());
        }
        if !given.value.is_object() {
            let problem = "is not an object of keys and reasons, such as {\"mtu\": \"8000 here\"}";
            self.say(
                Severity::Warning,
                name,
                Fault::new(LINT_IGNORE, problem).at(given.place("")),
            );
        }
    }

    fn ignore(&mut self, part: Part, network: &str, key: &str, reason: &str) {
        let (key, reason) = (key.trim().to_owned(), reason.trim().to_owned());
        let (place, network) = (part.place(""), network.to_owned());
        self.ignores.push(Ignore {
            place,
            network,
            of: self.of,
            key,
            reason,
            silenced: 0,
        });
    }

    /// Removes the warnings that are silenced, and warns of reasons that silence nothing. Errors
    /// stay.
    pub(super) fn silence(&mut self) {
        for finding in std::mem::take(&mut self.findings) {
            let ignore = self.ignores.iter_mut().find(|ignore| {
                let is_meant = ignore.of == finding.of && ignore.key == finding.fault.path;
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
        for Ignore {
            place,
            network,
            of,
            key,
            reason,
            silenced,
        } in std::mem::take(&mut self.ignores)
        {
            let problem = match (reason.is_empty(), silenced) {
                (true, _) => {
                    format!("{key} has no reason, so nothing is silenced: write `{key}: why`")
                }
                (false, 0) => {
                    format!("{key} has no warning to silence: remove it")
                }
                (false, _) => continue,
            };
            let fault = Fault::new(LINT_IGNORE, problem).at(place);
            self.findings.push(Finding {
                severity: Severity::Warning,
                network,
                of,
                fault,
            });
        }
    }
}
