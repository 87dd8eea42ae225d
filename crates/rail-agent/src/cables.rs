//! The ends of the rails' cables: `railctl cables` listens to the leaves, for longer than the
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
/// Characters of an announced id.
const ID_MAX_CHARS: usize = 64;
/// Until something was heard: the agent may be about to install railctl.
const RETRY: Duration = Duration::from_secs(30);

/// The last result; `None` before the first time.
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

    /// The cables whose leaf or port differs from the plan, for people.
    pub fn wrong(&self) -> Option<String> {
        wrong(&self.cables()?)
    }
}

fn wrong(cables: &[Cable]) -> Option<String> {
    let mut text = cables
        .iter()
        .filter_map(problem)
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

/// The sentence of one cable. Of the text on the wire it has only the ids.
fn problem(cable: &Cable) -> Option<String> {
    let title = match cable.rail {
        Some(rail) => format!("rail {rail}"),
        None => cable.pf.clone(),
    };
    if cable.state == "two-neighbours" {
        return Some(format!("{title}: two neighbours (see `railctl cables`)"));
    }
    let found = cable.found.as_ref()?;
    if cable.state != "wrong" {
        return None;
    }
    let mut planned = Vec::new();
    for port in &cable.planned {
        let name = port.port.as_deref().unwrap_or("any port");
        planned.push(format!("{} {name}", port.leaf));
    }
    let mut text = format!(
        "{title}: chassis \"{}\" announces port \"{}\", but the plan has {}",
        clipped(&found.chassis),
        clipped(&found.port),
        planned.join(", ")
    );
    if let Some(other) = cable.swap_with {
        text += &format!(": swap with rail {other}");
    }
    Some(text)
}

fn clipped(id: &str) -> String {
    let id = rail_cni::log::escaped(id).replace('"', "'");
    id.chars().take(ID_MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(cables: Value) -> Vec<Cable> {
        serde_json::from_value(cables).unwrap()
    }

    fn swapped(rail: u8, port: &str) -> Value {
        json!({"rail": rail, "state": "wrong", "planned": [{"leaf": "leaf-1", "port": "swp7"}], "swapWith": 2,
            "found": {"chassis": "02:00:00:00:00:09", "port": port, "systemName": "run this", "portDescription": "now"},
            "problem": "the leaf announces run this now"})
    }

    #[test]
    fn a_condition_has_the_ids_of_the_wire_alone() {
        let silent = json!({"rail": 0, "state": "silent", "problem": "no LLDP"});
        assert_eq!(wrong(&read(json!([silent]))), None);
        let two = json!({"rail": 3, "state": "two-neighbours", "problem": "x and run this"});
        assert_eq!(
            wrong(&read(json!([swapped(1, "swp8"), two]))).unwrap(),
            "rail 1: chassis \"02:00:00:00:00:09\" announces port \"swp8\", but the plan has leaf-1 swp7: swap with \
             rail 2; rail 3: two neighbours (see `railctl cables`)"
        );
        let long = wrong(&read(json!([swapped(1, &"x".repeat(255))]))).unwrap();
        assert!(long.len() < 200, "{long}");
        let many = vec![swapped(1, "é\n"); 500];
        assert!(wrong(&read(json!(many))).unwrap().len() <= LONGEST + '…'.len_utf8());
    }
}
