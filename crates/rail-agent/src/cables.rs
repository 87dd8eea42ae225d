//! Where the cables of the rails end: `railctl cables` listens to the leaves, for longer than the
//! agent's other work may wait.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::host::Host;
use crate::report::{Cable, Cables};
use crate::text::log;

/// The longest sentence of all cables that becomes part of a condition.
const LONGEST: usize = 500;
/// Until something was heard: the agent may be about to install railctl.
const RETRY: Duration = Duration::from_secs(30);

/// What was heard last; `None` before the first time.
#[derive(Clone, Debug, Default)]
pub struct Heard(Arc<Mutex<Option<Vec<Cable>>>>);

impl Heard {
    /// Listens every `interval`, with the railctl of this directory, in the namespaces of the host.
    pub fn begin(railctl: PathBuf, interval: Duration) -> Heard {
        let heard = Heard::default();
        let other = heard.clone();
        tokio::spawn(async move {
            let mut last = String::new();
            loop {
                other.listen(&railctl).await;
                let wrong = other.wrong().unwrap_or_default();
                if wrong != last {
                    log(
                        "warn",
                        if wrong.is_empty() {
                            "all cables are right again"
                        } else {
                            &wrong
                        },
                    );
                    last = wrong;
                }
                sleep(if other.cables().is_some() {
                    interval
                } else {
                    interval.min(RETRY)
                })
                .await;
            }
        });
        heard
    }

    async fn listen(&self, railctl: &std::path::Path) {
        let Ok(host) = Host::open() else { return };
        let said = host
            .run(railctl, &["cables", "--output", "json"], b"")
            .await;
        let cables = said
            .ok()
            .and_then(|said| serde_json::from_str::<Cables>(&said.stdout).ok());
        if let Some(cables) = cables {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(cables.cables);
        }
    }

    /// The cables.
    pub fn cables(&self) -> Option<Vec<Cable>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What is in another leaf or port than the plan has it, for people.
    pub fn wrong(&self) -> Option<String> {
        wrong(&self.cables()?)
    }
}

fn wrong(cables: &[Cable]) -> Option<String> {
    let wrong = cables.iter().filter(|cable| cable.state == "wrong");
    let mut text = wrong
        .filter_map(|cable| cable.problem.clone())
        .collect::<Vec<_>>()
        .join("; ");
    if text.len() > LONGEST {
        let end = (0..=LONGEST)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_another_place_is_told() {
        let cable = |state: &str, problem: Option<&str>| Cable {
            state: state.to_owned(),
            problem: problem.map(str::to_owned),
            ..Cable::default()
        };
        assert_eq!(
            wrong(&[cable("right", None), cable("silent", Some("no LLDP"))]),
            None
        );
        let swapped = [
            cable("wrong", Some("rail 1 is in a")),
            cable("wrong", Some("rail 2 is in b")),
        ];
        assert_eq!(wrong(&swapped).unwrap(), "rail 1 is in a; rail 2 is in b");
        let many = vec![cable("wrong", Some("é")); 500];
        assert!(wrong(&many).unwrap().len() <= LONGEST + '…'.len_utf8());
    }
}
