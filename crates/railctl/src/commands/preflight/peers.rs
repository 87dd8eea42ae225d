//! Whom each rail asks, by the plan of the whole fabric: so few that every node asks as many, and
//! so chosen that all nodes together use every leaf, its uplinks, and the ways from one rail to
//! another.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use rail_cni::failure;

/// More than 100,000 nodes with eight rails have.
const LARGEST: u64 = 256 << 20;

/// A line of `railctl plan --to csv`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Row {
    node: String,
    rail: Option<u8>,
    plane: Option<u8>,
    address: IpAddr,
    leaf: Option<String>,
}

/// The distance of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// On the same leaf.
    Leaf,
    /// On another leaf of the same rail.
    Spine,
    /// On another rail.
    Cross,
}

/// A rail of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its node.
    pub node: String,
    /// Number of the rail there.
    pub rail: u8,
    /// The address of its pods.
    pub address: IpAddr,
    /// Its leaf.
    pub leaf: Option<String>,
    /// Its distance.
    pub way: Way,
}

/// The rows of the plan.
#[derive(Debug)]
pub struct Fabric(Vec<Row>);

impl Fabric {
    /// Reads the file, or stdin if that is `-`.
    pub fn read(path: &Path) -> Result<Fabric> {
        let mut text = String::new();
        let done = if path == Path::new("-") {
            io::stdin().lock().take(LARGEST).read_to_string(&mut text)
        } else {
            File::open(path).and_then(|file| file.take(LARGEST).read_to_string(&mut text))
        };
        done.with_context(|| failure!(InvalidConfig, "cannot read the plan {}", path.display()))?;
        Fabric::parse(&text).with_context(|| {
            failure!(
                InvalidConfig,
                "{} is not what `railctl plan --to csv` prints",
                path.display()
            )
        })
    }

    fn parse(text: &str) -> Result<Fabric> {
        let rows = csv::Reader::from_reader(text.as_bytes()).into_deserialize();
        let rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
        if rows.is_empty() {
            bail!("it has no line");
        }
        Ok(Fabric(rows))
    }

    /// The nodes, each once, in the order of the plan.
    pub fn nodes(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        self.0
            .iter()
            .map(|row| row.node.as_str())
            .filter(|node| seen.insert(*node))
            .collect()
    }

    /// The leaf of an address.
    pub fn leaf(&self, own: IpAddr) -> Option<&str> {
        self.0
            .iter()
            .find(|row| row.address == own)?
            .leaf
            .as_deref()
    }

    /// Whom the rail with this address asks: the next node on its leaf, the one in its place on the
    /// next leaf of the rail, and the next node's next rail. None if the plan does not have it.
    pub fn peers(&self, own: IpAddr) -> Option<Vec<Peer>> {
        let own = self.0.iter().find(|row| row.address == own)?;
        let is_like =
            |row: &&Row| row.plane == own.plane && row.address.is_ipv4() == own.address.is_ipv4();
        let alike: Vec<&Row> = self.0.iter().filter(is_like).collect();
        let of_rail: Vec<&Row> = alike
            .iter()
            .copied()
            .filter(|row| row.rail == own.rail)
            .collect();
        let mut leaves: BTreeMap<Option<&str>, Vec<&Row>> = BTreeMap::new();
        let mut order = Vec::new();
        for row in of_rail {
            let of = leaves.entry(row.leaf.as_deref()).or_insert_with(|| {
                order.push(row.leaf.as_deref());
                Vec::new()
            });
            of.push(row);
        }
        let here = leaves.get(&own.leaf.as_deref())?;
        let at = here.iter().position(|row| *row == own)?;
        let in_order = order.iter().position(|leaf| *leaf == own.leaf.as_deref())?;
        let next_leaf = leaves.get(order.get((in_order + 1) % order.len())?)?;
        let near = here.get((at + 1) % here.len()).copied();
        let far = next_leaf.get(at % next_leaf.len()).copied();
        let cross = self.on_next_rail(own, &alike);
        let all = [(near, Way::Leaf), (far, Way::Spine), (cross, Way::Cross)];
        let mut seen = BTreeSet::from([own.address]);
        let peer = |(row, way): (Option<&Row>, Way)| {
            let row = row.filter(|row| row.node != own.node && seen.insert(row.address))?;
            Some(Peer {
                node: row.node.clone(),
                rail: row.rail?,
                address: row.address,
                leaf: row.leaf.clone(),
                way,
            })
        };
        Some(all.into_iter().filter_map(peer).collect())
    }

    /// The rail after this one, on the node after this one.
    fn on_next_rail<'a>(&self, own: &Row, alike: &[&'a Row]) -> Option<&'a Row> {
        let rails: BTreeSet<u8> = alike.iter().filter_map(|row| row.rail).collect();
        let rail = rails.range(own.rail? + 1..).next().or(rails.first())?;
        if Some(*rail) == own.rail {
            return None;
        }
        let nodes = self.nodes();
        let at = nodes.iter().position(|node| *node == own.node)?;
        let next = nodes.get((at + 1) % nodes.len())?;
        alike
            .iter()
            .find(|row| row.rail == Some(*rail) && row.node == **next)
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `nodes` nodes with `rails` rails, `per_leaf` of them on each leaf.
    fn fabric(nodes: u16, rails: u8, per_leaf: u16) -> Fabric {
        let row = |rail: u8, node: u16| Row {
            node: format!("node-{node}"),
            rail: Some(rail),
            plane: None,
            address: format!("172.{}.{}.{}", 16 + 2 * rail, node / 128, node % 128 * 2)
                .parse()
                .unwrap(),
            leaf: Some(format!("leaf-su{}-r{rail}", node / per_leaf)),
        };
        Fabric(
            (0..rails)
                .flat_map(|rail| (0..nodes).map(move |node| row(rail, node)))
                .collect(),
        )
    }

    #[test]
    fn every_leaf_and_way_is_used_and_everybody_is_asked_equally_often() {
        let fabric = fabric(96, 8, 32);
        let mut asked: BTreeMap<IpAddr, u32> = BTreeMap::new();
        let mut pairs: BTreeSet<(Way, &str, &str)> = BTreeSet::new();
        for row in &fabric.0 {
            let peers = fabric.peers(row.address).unwrap();
            assert_eq!(
                peers.iter().map(|peer| peer.way).collect::<Vec<_>>(),
                [Way::Leaf, Way::Spine, Way::Cross]
            );
            for peer in peers {
                *asked.entry(peer.address).or_default() += 1;
                pairs.insert((
                    peer.way,
                    fabric.leaf(row.address).unwrap(),
                    fabric.leaf(peer.address).unwrap(),
                ));
            }
        }
        assert!(asked.len() == 96 * 8 && asked.values().all(|times| *times == 3));
        let of = |path| pairs.iter().filter(|(of, _, _)| *of == path).count();
        // 24 leaves, the next of each; the last node of a leaf crosses to the next SU.
        assert_eq!(
            (of(Way::Leaf), of(Way::Spine), of(Way::Cross)),
            (24, 24, 48)
        );
        assert!(
            pairs
                .iter()
                .all(|(path, one, other)| (*path == Way::Leaf) == (one == other))
        );
    }

    #[test]
    fn small_and_odd_fabrics_have_fewer_peers_and_never_oneself() {
        let of =
            |fabric: &Fabric, at: usize| fabric.peers(fabric.0[at].address).map(|all| all.len());
        assert_eq!(of(&fabric(1, 8, 32), 0), Some(0));
        assert_eq!(of(&fabric(2, 1, 32), 0), Some(1));
        assert_eq!(of(&fabric(2, 2, 1), 0), Some(2));
        let mut uneven = fabric(5, 2, 2);
        assert_eq!(of(&uneven, 3), Some(3));
        // Without leaves all are on one.
        uneven.0.iter_mut().for_each(|row| row.leaf = None);
        assert_eq!(of(&uneven, 3), Some(2));
        assert_eq!(uneven.peers("10.0.0.1".parse().unwrap()), None);
    }

    #[test]
    fn the_plan_is_read_as_it_is_printed() {
        let text = "node,rail,plane,pool,family,address,gateway,prefix,interface,leaf,port,mtu\r\n\
            a,0,,rail-0,ipv4,172.16.0.0,172.16.0.1,172.16.0.0/31,eth_r0,leaf-su01-r1,swp1s0,9216\r\n\
            b,0,,rail-0,ipv4,172.16.0.2,172.16.0.3,172.16.0.2/31,,,,\r\n";
        let fabric = Fabric::parse(text).unwrap();
        assert_eq!(
            (fabric.nodes(), fabric.0[1].leaf.as_deref()),
            (vec!["a", "b"], None)
        );
        let header = text.lines().next().unwrap();
        for bad in [
            "",
            header,
            "a,b\n1,2\n",
            &format!("{header}\na,x,,,,,,,,,,\n"),
        ] {
            assert!(Fabric::parse(bad).is_err(), "{bad:?}");
        }
    }
}
