//! Pods that the node refuses although `railctl doctor` finds nothing wrong: it cannot know all
//! networks, such as one with a larger MTU than the PF has.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::calls::Call;
use crate::preflight;
use crate::text::clean;

/// The kubelet tries a pod that waits again within seconds, and a call ends within a minute. Where
/// nobody has tried for so long, the pod has ended, and nobody knows whether the cause has.
const FORGOTTEN: Duration = Duration::from_secs(180);
/// One refusal may be a chance; a pod that waits is refused again within a minute.
const STANDING: u32 = 2;
/// Networks that are kept, and that have room in a condition.
const MOST: usize = 64;
const TOLD: usize = 4;
/// Error codes of an ADD that failed on the node: reading or writing, a silent gateway, no GID, a
/// fault of ours. With others, the network or the pod is wrong, or another pod has the device.
const OF_NODE: [u32; 4] = [5, 101, 102, 999];
/// The words of that fault among the errors of a network that is wrong on this node alone (7): its
/// PF has a smaller MTU than the network.
const TOO_LARGE: [&str; 2] = ["mtu: ", " of the PF "];

/// Refusals by network and rail. A pod with eight rails has success with some of them each time
/// that it is tried.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<(String, Option<u8>), Refusal>);

#[derive(Debug)]
struct Refusal {
    times: u32,
    last: Instant,
    message: String,
}

impl Refusals {
    /// Counts a call. Success of a network ends what was refused to it.
    pub fn count(&mut self, call: &Call, now: Instant) {
        let key = (call.network.clone().unwrap_or_default(), call.rail);
        // A preflight is no pod, and has a condition of its own.
        if call.plugin != "rail-cni" || call.verb != "ADD" || key.0.starts_with(preflight::NETWORK)
        {
            return;
        }
        let message = call.message.as_deref().unwrap_or_default();
        if call.code == 0 {
            self.0.remove(&key);
        } else if is_of_node(call.code, message)
            && (self.0.len() < MOST || self.0.contains_key(&key))
        {
            let times = self
                .0
                .get(&key)
                .map_or(0, |before| before.times)
                .saturating_add(1);
            self.0.insert(
                key,
                Refusal {
                    times,
                    last: now,
                    message: clean(message),
                },
            );
        }
    }

    /// The standing refusals of the node; `None` if there are none.
    pub fn standing(&mut self, now: Instant) -> Option<String> {
        self.0
            .retain(|_, refusal| now.duration_since(refusal.last) < FORGOTTEN);
        let standing: Vec<_> = self
            .0
            .iter()
            .filter(|(_, refusal)| refusal.times >= STANDING)
            .collect();
        let shown = standing
            .iter()
            .take(TOLD)
            .map(|((network, rail), refusal)| {
                let rail = rail.map_or_else(String::new, |rail| format!("rail {rail}, "));
                format!("{rail}network {network}: {}", refusal.message)
            });
        let shown = shown.collect::<Vec<_>>().join("; ");
        (!standing.is_empty()).then(|| format!("pods are refused: {shown}"))
    }
}

fn is_of_node(code: u32, message: &str) -> bool {
    OF_NODE.contains(&code) || (code == 7 && TOO_LARGE.iter().all(|part| message.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: &str = "mtu: 9000 is more than the 1500 of the PF ens1: raise that first";

    fn add(rail: u8, code: u32, message: &str) -> Call {
        Call {
            plugin: "rail-cni".to_owned(),
            verb: "ADD".to_owned(),
            network: Some(format!("rail-{rail}")),
            rail: Some(rail),
            code,
            message: (code != 0).then(|| message.to_owned()),
            ..Call::default()
        }
    }

    /// The standing refusals after these calls, which are ten seconds apart.
    fn after(calls: &[Call]) -> Option<String> {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let mut now = begun;
        for call in calls {
            refusals.count(call, now);
            now += Duration::from_secs(10);
        }
        refusals.standing(now)
    }

    #[test]
    fn what_the_node_refuses_again_stands_until_it_succeeds() {
        let (no, yes) = (add(3, 7, MTU), add(3, 0, ""));
        assert_eq!(after(std::slice::from_ref(&no)), None, "it may be a chance");
        let told = after(&[no.clone(), no.clone()]).unwrap();
        assert!(told.contains("rail 3, network rail-3: mtu: 9000"), "{told}");
        assert_eq!(after(&[no.clone(), no.clone(), yes.clone()]), None);
        assert_eq!(after(&[no.clone(), yes, no.clone()]), None);
        // The other rails of the same pod, and the IPAM of this one, succeed each time.
        let other = add(0, 0, "");
        let ipam = Call {
            plugin: "rail-ipam".to_owned(),
            code: 0,
            ..no.clone()
        };
        assert!(
            after(&[
                other.clone(),
                no.clone(),
                ipam.clone(),
                other.clone(),
                no.clone(),
                ipam
            ])
            .is_some()
        );
        for verb in ["DEL", "CHECK", "STATUS"] {
            let call = Call {
                verb: verb.to_owned(),
                ..add(3, 999, "")
            };
            assert_eq!(after(&[call.clone(), call]), None, "{verb}");
        }
    }

    #[test]
    fn mistakes_of_a_network_or_a_pod_say_nothing_of_the_node() {
        for code in [5, 101, 102, 999] {
            assert!(
                after(&[add(0, code, "x"), add(0, code, "x")]).is_some(),
                "{code}"
            );
        }
        for code in [1, 2, 4, 6, 7, 8, 11, 50, 100] {
            assert_eq!(
                after(&[add(0, code, "x"), add(0, code, "x")]),
                None,
                "{code}"
            );
        }
    }

    #[test]
    fn what_nobody_tries_any_more_is_forgotten_and_networks_without_end_need_no_room() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        for _ in 0..2 {
            refusals.count(&add(0, 5, "x"), now);
        }
        assert!(
            refusals
                .standing(now + FORGOTTEN - Duration::from_secs(1))
                .is_some()
        );
        assert!(refusals.standing(now + FORGOTTEN).is_none() && refusals.0.is_empty());
        for network in 0..1000 {
            for _ in 0..2 {
                let network = Some(format!("network-{network}"));
                refusals.count(
                    &Call {
                        network,
                        ..add(0, 5, &"x".repeat(5000))
                    },
                    now,
                );
            }
        }
        assert_eq!(refusals.0.len(), MOST);
        assert!(refusals.standing(now).unwrap().len() < 5000);
    }
}
