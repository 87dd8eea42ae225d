//! Decides which NIC is which rail by all the evidence, and lists contradictions.

use super::pci::{Device, Near, Pci};
use rail_cni::pool::RAILS;

/// A NIC, and what was seen of it.
#[derive(Debug)]
pub struct Seen {
    /// The function.
    pub nic: Device,
    /// Its netdev.
    pub netdev: Option<String>,
    /// Its use by the host.
    pub host_use: Option<String>,
    /// The switch at the other end of its cable.
    pub leaf: Option<String>,
    /// Two announcements on its cable, in words: one of them is not the leaf's.
    pub neighbours: Option<String>,
    /// The rail whose leaf ports of the plan have that end.
    pub by_leaf: Option<u8>,
    /// The rail of whose prefix in the plan it has an address.
    pub by_address: Option<u8>,
    /// The rail that node.json has.
    pub present: Option<u8>,
}

/// The proposal for a NIC.
#[derive(Debug)]
pub struct Row {
    /// The NIC.
    pub seen: Seen,
    /// The GPUs that it is nearest to, and how near.
    pub gpus: Vec<(String, Near)>,
    /// Its rail, if something tells it.
    pub rail: Option<u8>,
    /// Why it is this rail, or none.
    pub reasons: Vec<String>,
    /// The evidence against it.
    pub contradictions: Vec<String>,
}

impl Row {
    /// Whether something says that it is a rail, but perhaps not which.
    pub fn is_candidate(&self) -> bool {
        let is_wanted = !self.gpus.is_empty() || self.seen.neighbours.is_some();
        self.is_planned() || (self.seen.host_use.is_none() && is_wanted)
    }

    fn is_planned(&self) -> bool {
        self.seen.by_leaf.is_some() || self.seen.by_address.is_some()
    }
}

/// Judges all NICs of a node, in the order of their addresses.
pub fn judge(seen: Vec<Seen>, pci: &Pci) -> Vec<Row> {
    let mut rows: Vec<Row> = seen
        .into_iter()
        .map(|seen| Row {
            seen,
            gpus: Vec::new(),
            rail: None,
            reasons: Vec::new(),
            contradictions: Vec::new(),
        })
        .collect();
    pair(&mut rows, pci);
    rows.iter_mut().for_each(by_plan);
    by_order(&mut rows, pci);
    rows.iter_mut().for_each(compare);
    refuse_twice(&mut rows);
    rows
}

/// Gives each GPU to the NIC that is nearest to it.
fn pair(rows: &mut [Row], pci: &Pci) {
    for gpu in &pci.gpus {
        let near: Vec<Near> = rows
            .iter()
            .map(
                |row| match row.seen.host_use.is_some() && !row.is_planned() {
                    true => Near::Apart,
                    false => gpu.near(&row.seen.nic),
                },
            )
            .collect();
        // A NUMA node has GPUs of several rails.
        let Some(nearest) = near.iter().min().copied().filter(|near| *near < Near::Numa) else {
            continue;
        };
        let of: Vec<usize> = (0..rows.len())
            .filter(|row| near[*row] == nearest)
            .collect();
        for row in &of {
            let others = of
                .iter()
                .filter(|other| !rows[**other].seen.nic.is_same_card(&rows[*row].seen.nic));
            let others: Vec<_> = others
                .map(|other| rows[*other].seen.nic.id.clone())
                .collect();
            let row = &mut rows[*row];
            row.gpus.push((gpu.id.clone(), nearest));
            if !others.is_empty() {
                row.contradictions.push(format!(
                    "{} is as near to GPU {}",
                    others.join(", "),
                    gpu.id
                ));
            }
        }
    }
    for row in rows.iter_mut() {
        if row.seen.nic.has_hidden_ways(pci) {
            row.gpus.clear();
            row.contradictions.clear();
            row.reasons.push(
                "this node uses ConnectX-8 Data Direct, so the position of a NIC on PCI does not say which GPU is near"
                    .to_owned(),
            );
            continue;
        }
        match &row.gpus[..] {
            [] => row.reasons.push("no GPU nearby on PCI".to_owned()),
            [(gpu, near)] => row.reasons.push(format!("{} with GPU {gpu}", near.text())),
            several => {
                let all: Vec<_> = several.iter().map(|(gpu, _)| gpu.as_str()).collect();
                row.reasons.push(format!(
                    "nearest to the GPUs {}, which share it",
                    all.join(", ")
                ));
            }
        }
    }
}

/// Takes the rail that the plan says.
fn by_plan(row: &mut Row) {
    let Seen {
        by_leaf,
        by_address,
        leaf,
        ..
    } = &row.seen;
    let end = leaf.as_deref().unwrap_or("the leaf");
    match (by_leaf, by_address) {
        (Some(one), Some(other)) if one != other => {
            let text =
                format!("its cable is in {end}, of rail {one}, and its address is of rail {other}");
            row.contradictions.push(text);
        }
        (Some(rail), _) => {
            row.rail = Some(*rail);
            row.reasons.push(format!(
                "its cable is in {end}, which the plan has for rail {rail}"
            ));
        }
        (None, Some(rail)) => {
            row.rail = Some(*rail);
            row.reasons.push(format!("its address is of rail {rail}"));
        }
        (None, None) => {
            row.reasons.extend(
                leaf.as_ref()
                    .map(|leaf| format!("{leaf} is not a leaf port of the plan")),
            );
        }
    }
    row.contradictions.extend(row.seen.neighbours.clone());
    if let Some(why) = row.seen.host_use.clone().filter(|_| !row.is_planned()) {
        row.reasons = vec![why];
    }
}

/// Numbers what the plan does not, by the order of the addresses on PCI, unless that contradicts
/// the plan or the order of GPUs.
fn by_order(rows: &mut [Row], pci: &Pci) {
    let mut cards: Vec<Vec<usize>> = Vec::new();
    for (index, row) in rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.is_candidate())
    {
        match cards
            .last_mut()
            .filter(|card| rows[card[0]].seen.nic.is_same_card(&row.seen.nic))
        {
            Some(card) => card.push(index),
            None => cards.push(vec![index]),
        }
    }
    let is_clear = cards
        .iter()
        .flatten()
        .all(|row| rows[*row].contradictions.is_empty());
    let first_gpu = |row: &Row| {
        let places = row
            .gpus
            .iter()
            .filter_map(|(gpu, _)| pci.gpus.iter().position(|one| one.id == *gpu));
        places.min()
    };
    let orders: Vec<_> = cards
        .iter()
        .filter_map(|card| first_gpu(&rows[card[0]]))
        .collect();
    let is_in_order = orders.is_sorted();
    // With planes, a number is that of the rail and eight for each plane.
    let known: Vec<_> = rows
        .iter()
        .map(|row| row.rail.map(|rail| rail % RAILS))
        .collect();
    let is_crossed = |index: usize, rail: u8| {
        let rail = rail % RAILS;
        known[..index].iter().flatten().any(|before| *before > rail)
            || known[index..].iter().flatten().any(|after| *after < rail)
    };
    let numbered: Vec<_> = cards.iter().zip(0u8..).collect();
    let is_planned_so = numbered.iter().all(|(card, number)| {
        card.iter()
            .all(|row| rows[*row].rail.is_none_or(|rail| rail == *number))
    });
    for (card, number) in numbered {
        for index in card {
            let row = &mut rows[*index];
            match row.rail {
                Some(rail) if is_crossed(*index, rail) => row.contradictions.push(
                    "the rails by PCI address are in another order: is its cable in another rail's port, or is that so on this \
                     hardware (railsInPciOrder)?"
                        .to_owned(),
                ),
                Some(_) => (),
                None if card.len() > 1 => row.contradictions.push(
                    "its card has several ports, and only LLDP or a plan can tell which one is the rail or plane".to_owned(),
                ),
                None if !is_clear => (),
                None if !is_in_order => row
                    .contradictions
                    .push("NICs and GPUs are in different orders on PCI, so neither tells the rail".to_owned()),
                None if !is_planned_so => row
                    .contradictions
                    .push("the plan has the other NICs in another order than PCI".to_owned()),
                None => {
                    row.rail = Some(number);
                    row.reasons.push(format!("number {number} of the NICs by PCI address"));
                }
            }
        }
    }
}

/// Says where node.json has it otherwise.
fn compare(row: &mut Row) {
    if let (Some(present), Some(rail)) = (row.seen.present, row.rail) {
        if present != rail {
            row.contradictions
                .push(format!("node.json has it for rail {present}"));
        }
    }
    if let (Some(present), None) = (row.seen.present, row.rail) {
        row.reasons
            .push(format!("node.json has it for rail {present}"));
    }
}

/// Two NICs of one rail are planes only if the plan has both.
fn refuse_twice(rows: &mut [Row]) {
    let all: Vec<_> = rows
        .iter()
        .map(|row| (row.rail, row.is_planned()))
        .collect();
    for (index, row) in rows.iter_mut().enumerate() {
        let is_same = |other: usize| other != index && all[other].0 == row.rail;
        let is_twice = row.rail.is_some()
            && (0..all.len()).any(|other| is_same(other) && !(all[other].1 && all[index].1));
        if is_twice {
            row.contradictions
                .push("another NIC claims the same rail".to_owned());
        }
    }
    // A NIC with contradictions gets no proposal, unless the leaf itself names its rail.
    for row in rows
        .iter_mut()
        .filter(|row| !row.contradictions.is_empty() && row.seen.by_leaf.is_none())
    {
        row.rail = None;
    }
}
