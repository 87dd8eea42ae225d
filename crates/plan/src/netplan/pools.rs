//! Makes pools of the rails of all hosts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use super::host::{Notes, Rail};
use crate::plan::{Cable, Ethernet, Plan, Pool};
use crate::scheme::place_of;
use rail_cni::fault::{Fault, Place};
use rail_cni::pool::allocation::{IpVersion, address, bits};
use rail_cni::pool::cidrpool::{AddressRange, IndexRange, RouteTo, Row, Spec};
use rail_cni::pool::number;

/// The pools of these rails. Faults go to the notes.
pub fn plan(rails: Vec<Rail>, notes: &mut Notes) -> Plan {
    let rails = without_shared_networks(rails, notes);
    duplicates(&rails, notes);
    let ids: BTreeSet<&str> = rails.iter().map(|rail| rail.id.as_str()).collect();
    let astray = std::mem::take(&mut notes.astray);
    let is_rail = |(id, _): &(String, Fault)| ids.contains(id.as_str());
    notes
        .faults
        .extend(astray.into_iter().filter(is_rail).map(|(_, fault)| fault));

    let (v4, v6): (Vec<_>, Vec<_>) = rails.iter().partition(|rail| rail.prefix.addr().is_ipv4());
    let (v4, v6) = (groups(&v4), groups(&v6));
    for group in v4.iter().chain(&v6) {
        group.agree(notes);
    }
    let numbers_v4 = numbers(&v4, notes);
    let numbers_v6 = if v4.is_empty() {
        numbers(&v6, notes)
    } else {
        paired(&v4, &numbers_v4, &v6, notes)
    };
    let mut plan = Plan::default();
    for (groups, numbers, suffix) in [(v4, numbers_v4, ""), (v6, numbers_v6, "-v6")] {
        let suffix = if plan.pools.is_empty() { "" } else { suffix };
        for (group, (rail, plane)) in groups.iter().zip(numbers) {
            match u8::try_from(rail) {
                Ok(rail) => plan.pools.push(group.pool(rail, plane, suffix)),
                Err(_) => {
                    let problem = format!("more rails than there can be ({})", group.cidr);
                    notes
                        .faults
                        .push(Fault::whole(problem).of(format!("rail {rail}")));
                }
            }
        }
    }
    plan.pools
        .sort_by_key(|pool| (pool.rail, pool.plane, !pool.is_ipv4()));
    plan
}

/// Leaves out networks of many hosts, such as those of management and storage, which are not rails.
fn without_shared_networks(rails: Vec<Rail>, notes: &mut Notes) -> Vec<Rail> {
    let kind = |rail: &Rail| (rail.id.clone(), rail.prefix.addr().is_ipv4());
    let mut hosts: HashMap<_, (usize, BTreeSet<IpNet>)> = HashMap::new();
    for rail in &rails {
        let (links, prefixes) = hosts.entry(kind(rail)).or_default();
        *links += 1;
        prefixes.insert(rail.prefix);
    }
    // One prefix that two hosts have is a mistake. Where a prefix has two hosts on average, it is
    // meant.
    let is_shared = |rail: &Rail| {
        let has_room = rail.prefix.max_prefix_len() - rail.prefix.prefix_len() > 2;
        has_room
            && hosts
                .get(&kind(rail))
                .is_some_and(|(links, prefixes)| *links >= prefixes.len() * 2)
    };
    let (shared, own): (Vec<_>, Vec<_>) = rails.into_iter().partition(is_shared);
    for rail in shared {
        rail.warn(notes, "", "is left out: hosts share its networks");
    }
    own
}

/// Finds addresses and prefixes that two rails have.
fn duplicates(rails: &[Rail], notes: &mut Notes) {
    let mut prefixes: HashMap<IpNet, &Rail> = HashMap::new();
    for rail in rails {
        let Some(other) = prefixes.insert(rail.prefix, rail) else {
            continue;
        };
        let what = if rail.address == other.address {
            format!("{} is also the address", rail.address)
        } else {
            format!("{} is also the prefix", rail.prefix)
        };
        rail.fault(
            notes,
            ".addresses",
            &format!("{what} of {} ({})", other.whose(), other.place("")),
        );
    }
}

impl Rail {
    fn place(&self, key: &str) -> &Place {
        let [address, route] = &self.places;
        if key == ".routes" { route } else { address }
    }

    fn fault(&self, notes: &mut Notes, key: &str, why: &str) {
        notes.faults.push(self.note(key, why));
    }

    fn warn(&self, notes: &mut Notes, key: &str, why: &str) {
        notes.warn(self.note(key, why));
    }

    fn note(&self, key: &str, why: &str) -> Fault {
        Fault::new(format!("network.ethernets.{}{key}", self.id), why).at(self.place(key).clone())
    }

    fn whose(&self) -> String {
        format!("{} of node {}", self.id, self.node_name)
    }

    /// The most specific route that holds the prefix.
    fn supernet(&self) -> Option<IpNet> {
        let holds = |dst: &&IpNet| {
            dst.prefix_len() < self.prefix.prefix_len() && dst.contains(&self.prefix)
        };
        self.routes
            .iter()
            .filter(holds)
            .max_by_key(|dst| dst.prefix_len())
            .copied()
    }

    /// The distance of the gateway from the first address of the prefix; `None` on an unnumbered
    /// link.
    fn gateway_index(&self) -> Option<u128> {
        self.prefix
            .contains(&self.gateway)
            .then(|| index(self.prefix, self.gateway))
    }

    fn is_unnumbered(&self) -> bool {
        self.prefix.prefix_len() == self.prefix.max_prefix_len()
    }
}

fn index(prefix: IpNet, address: IpAddr) -> u128 {
    bits(address) - bits(prefix.network())
}

/// The links of a rail, in the order of their prefixes.
struct Group<'a> {
    cidr: IpNet,
    rails: Vec<&'a Rail>,
}

/// Groups the links of each rail, by the route to the rail's supernet. Where hosts have only the
/// route to all rails (IPv6), by the formulas, or else by the names of the interfaces.
fn groups<'a>(rails: &[&'a Rail]) -> Vec<Group<'a>> {
    let mut of_supernet: BTreeMap<Option<IpNet>, Vec<&Rail>> = BTreeMap::new();
    for rail in rails {
        of_supernet.entry(rail.supernet()).or_default().push(rail);
    }
    let mut groups: BTreeMap<(IpNet, &str), Vec<&Rail>> = BTreeMap::new();
    let mut cidrs = BTreeSet::new();
    let mut left = Vec::new();
    for (supernet, rails) in of_supernet {
        let nodes: BTreeSet<&str> = rails.iter().map(|rail| rail.node_name.as_str()).collect();
        // One host with two links here has made a mistake.
        let several = nodes.len() * 2 <= rails.len();
        let formula: Option<Vec<IpNet>> = supernet.and_then(|supernet| {
            // In IPv4 the formulas have a route to the rail as well.
            (several || !supernet.addr().is_ipv4()).then_some(())?;
            let cidr =
                |rail: &&Rail| place_of(rail.prefix, supernet.prefix_len()).map(|(.., cidr)| cidr);
            rails.iter().map(cidr).collect()
        });
        match (formula, supernet) {
            (Some(formula), _) => cidrs.extend(formula),
            (None, Some(supernet)) if !several => drop(cidrs.insert(supernet)),
            _ => left.push((supernet, rails)),
        }
    }
    // A host that lacks the route to its rail is still on the rail, and `agree` reports the route
    // that it lacks.
    let of_cidr = |rail: &Rail| {
        let holds = |cidr: &&IpNet| cidr.contains(&rail.prefix);
        cidrs
            .iter()
            .filter(holds)
            .max_by_key(|cidr| cidr.prefix_len())
            .copied()
    };
    let mut named: BTreeMap<(Option<IpNet>, &str), Vec<&Rail>> = BTreeMap::new();
    for rail in rails {
        let left = left
            .iter()
            .find(|(supernet, _)| *supernet == rail.supernet());
        let closer =
            |cidr: &IpNet| left.is_none_or(|(supernet, _)| supernet.is_none_or(|net| net != *cidr));
        match of_cidr(rail).filter(closer) {
            Some(cidr) => groups.entry((cidr, "")).or_default().push(rail),
            None => named
                .entry((rail.supernet(), rail.id.as_str()))
                .or_default()
                .push(rail),
        }
    }
    for ((supernet, id), rails) in named {
        let cidr = supernet.or_else(|| common(&rails));
        groups
            .entry((cidr.unwrap_or_default(), id))
            .or_default()
            .extend(rails);
    }
    let group = |((cidr, _), mut rails): ((IpNet, _), Vec<&'a Rail>)| {
        rails.sort_by_key(|rail| (rail.prefix, &rail.node_name));
        Group { cidr, rails }
    };
    let mut groups: Vec<_> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|group| (group.cidr, group.rails.first().map(|rail| rail.prefix)));
    groups
}

/// The longest prefix that holds all of them.
fn common(rails: &[&Rail]) -> Option<IpNet> {
    let (first, rest) = rails.split_first()?;
    let hold = |net: &IpNet| rest.iter().all(|rail| net.contains(&rail.prefix));
    std::iter::successors(Some(first.prefix), IpNet::supernet).find(hold)
}

/// The value that most of them have; the first one if several are equally frequent.
fn most<T: Ord + Clone>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut counts: BTreeMap<T, (usize, usize)> = BTreeMap::new();
    for (number, one) in all.enumerate() {
        counts.entry(one).or_insert((0, usize::MAX - number)).0 += 1;
    }
    counts
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .map(|(one, _)| one)
}

impl<'a> Group<'a> {
    /// Reports links that differ from most of the rail. The routes belong to the pool, so they must
    /// be the same.
    fn agree(&self, notes: &mut Notes) {
        let cidr = self.cidr;
        let as_most = |typical: &Rail| {
            format!(
                "as most on the rail {cidr} have ({} at {})",
                typical.node_name,
                typical.place("")
            )
        };
        self.odd(
            |rail| rail.prefix.prefix_len(),
            |rail, typical| {
                let why = format!("{} is not a /{}", rail.prefix, typical.prefix.prefix_len());
                rail.fault(notes, ".addresses", &format!("{why}, {}", as_most(typical)));
            },
        );
        self.odd(
            |rail| rail.routes.iter().collect::<BTreeSet<_>>(),
            |rail, typical| {
                let why = format!(
                    "{} instead of {}",
                    shown(&rail.routes),
                    shown(&typical.routes)
                );
                rail.fault(notes, ".routes", &format!("{why}, {}", as_most(typical)));
            },
        );
        let mut nodes: HashMap<&str, &Rail> = HashMap::new();
        for rail in &self.rails {
            // An address that is given twice is a fault already.
            let other = nodes.insert(&rail.node_name, rail);
            if let Some(other) = other.filter(|other| other.prefix != rail.prefix) {
                let why = format!(
                    "{} and {} are both on the rail {cidr}",
                    rail.address, other.address
                );
                rail.fault(notes, ".addresses", &format!("{why} ({})", other.place("")));
            }
        }
        self.odd(
            |rail| rail.gateway_index(),
            |rail, typical| {
                let why = format!(
                    "the leaf is on the other side than {}",
                    as_most(typical).replacen("as ", "", 1)
                );
                rail.warn(notes, ".routes", &why);
            },
        );
        self.odd(
            |rail| rail.id.as_str(),
            |rail, typical| {
                rail.warn(
                    notes,
                    "",
                    &format!(
                        "is on the rail instead of {}, {}",
                        typical.id,
                        as_most(typical)
                    ),
                );
            },
        );
        let mtu = |rail: &Rail| {
            rail.mtu
                .map_or_else(|| "none".to_owned(), |mtu| mtu.to_string())
        };
        self.odd(
            |rail| rail.mtu,
            |rail, typical| {
                let why = format!(
                    "{} instead of {}, {}",
                    mtu(rail),
                    mtu(typical),
                    as_most(typical)
                );
                rail.warn(notes, ".mtu", &why);
            },
        );
    }

    /// Calls `tell` for each link whose value differs from that of most links, with a link that has
    /// the usual value.
    fn odd<T: Ord + Clone>(
        &self,
        of: impl Fn(&'a Rail) -> T,
        mut tell: impl FnMut(&'a Rail, &'a Rail),
    ) {
        let usual = most(self.rails.iter().map(|rail| of(rail)));
        let (like, odd): (Vec<_>, Vec<_>) = self
            .rails
            .iter()
            .copied()
            .partition(|rail| Some(of(rail)) == usual);
        let Some(typical) = like.first() else { return };
        odd.iter().for_each(|rail| tell(rail, typical));
    }

    fn pool(&self, rail: u8, plane: Option<u8>, suffix: &str) -> Pool {
        let plane_part = plane
            .map(|plane| format!("-plane-{plane}"))
            .unwrap_or_default();
        let routes = most(self.rails.iter().map(|rail| rail.routes.clone())).unwrap_or_default();
        let (mut static_allocations, mut cables) = (Vec::new(), Vec::new());
        for rail in &self.rails {
            static_allocations.push(Row {
                node_name: rail.node_name.to_owned(),
                gateway: rail.gateway.to_string(),
                prefix: rail.prefix.to_string(),
            });
            let ethernet = Ethernet {
                id: rail.id.to_owned(),
                keys: rail.keys.clone(),
            };
            cables.push(vec![Cable {
                interface: rail.interface.clone(),
                mtu: rail.mtu,
                netplan: Some(Box::new(ethernet)),
                ..Cable::default()
            }]);
        }
        let (gateway_index, per_node_exclusions, exclusions) = self.indexes();
        Pool {
            name: format!("rail-{rail}{plane_part}{suffix}"),
            rail: Some(rail),
            plane,
            is_hwplb: false,
            namespace: None,
            spec: Spec {
                cidr: self.cidr.to_string(),
                per_node_network_prefix: self
                    .rails
                    .first()
                    .map_or(0, |rail| rail.prefix.prefix_len().into()),
                gateway_index,
                static_allocations,
                routes: routes
                    .iter()
                    .map(|dst| RouteTo {
                        dst: dst.to_string(),
                    })
                    .collect(),
                exclusions,
                per_node_exclusions,
                default_gateway: false,
                node_selector: None,
                is_unnumbered: self.rails.first().is_some_and(|rail| rail.is_unnumbered()),
            },
            cables,
            // `duplicates` has compared the prefixes of all pools.
            places: Vec::new(),
        }
    }

    /// The gateway's index, and exclusions with which the first address for a pod is that of the
    /// host.
    fn indexes(&self) -> (Option<i64>, Vec<IndexRange>, Vec<AddressRange>) {
        if self.rails.iter().any(|rail| rail.is_unnumbered()) {
            return (None, Vec::new(), Vec::new());
        }
        let all_of_two = self
            .rails
            .iter()
            .all(|rail| rail.prefix.max_prefix_len() - rail.prefix.prefix_len() == 1);
        let small = |index: u128| {
            i64::try_from(index)
                .ok()
                .filter(|index| *index <= i64::from(i32::MAX))
        };
        let indexes: BTreeSet<_> = self
            .rails
            .iter()
            .map(|rail| (rail.gateway_index(), index(rail.prefix, rail.address)))
            .collect();
        let same = match indexes.first() {
            Some((Some(gateway), host)) if indexes.len() == 1 => small(*gateway).zip(small(*host)),
            _ => None,
        };
        let range = |start_index, end_index| IndexRange {
            start_index,
            end_index,
        };
        match same {
            // As in the pools of the formulas: a node without a row gets no address, instead of the
            // leaf's.
            Some((gateway, host)) if all_of_two => {
                (Some(host), vec![range(gateway, gateway)], Vec::new())
            }
            Some((gateway, 1)) => (Some(gateway), vec![range(gateway, gateway)], Vec::new()),
            Some((gateway, host)) if gateway < host => {
                (Some(gateway), vec![range(1, host - 1)], Vec::new())
            }
            Some((gateway, host)) => (
                Some(gateway),
                vec![range(1, host - 1), range(gateway, gateway)],
                Vec::new(),
            ),
            None => (Some(i64::from(!all_of_two)), Vec::new(), self.exclusions()),
        }
    }

    /// The addresses before each host's, without the leaf's.
    fn exclusions(&self) -> Vec<AddressRange> {
        let range = |rail: &&Rail| {
            let net = bits(rail.prefix.network());
            let first =
                net + u128::from(rail.prefix.max_prefix_len() - rail.prefix.prefix_len() > 1);
            let (host, gateway) = (bits(rail.address), bits(rail.gateway));
            let is_first = host == first || (host == first + 1 && gateway == first);
            let at = |bits| address(bits, IpVersion::of(rail.address)).to_string();
            (!is_first).then(|| AddressRange {
                start: at(first),
                end: at(host - 1),
            })
        };
        self.rails.iter().filter_map(range).collect()
    }
}

fn shown(routes: &[IpNet]) -> String {
    routes
        .iter()
        .map(IpNet::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The rail and the plane of each group: by the formulas if they made any of the addresses, else
/// counted. What they did not make comes last then: one network more, such as that of storage,
/// gives no rail another number.
fn numbers(groups: &[Group<'_>], notes: &mut Notes) -> Vec<(usize, Option<u8>)> {
    let of = |group: &Group<'_>| -> Option<(u8, u8)> {
        let routes = &group.rails.first()?.routes;
        let fits = |all: &IpNet| {
            let places: Option<BTreeSet<_>> = (group.rails.iter())
                .map(|rail| {
                    place_of(rail.prefix, all.prefix_len()).filter(|_| all.contains(&rail.prefix))
                })
                .collect();
            let places = places?;
            let (rail, plane, cidr) = places.first()?;
            (places.len() == 1 && *cidr == group.cidr).then_some((*rail, *plane))
        };
        routes.iter().find_map(fits)
    };
    let places: Vec<_> = groups.iter().map(of).collect();
    let made: Vec<_> = places.iter().flatten().collect();
    let is_each_one = made.iter().collect::<BTreeSet<_>>().len() == made.len();
    let networks = made
        .iter()
        .map(|(rail, plane)| usize::from(number(*rail, Some(*plane))));
    let Some(last) = networks.max().filter(|_| is_each_one) else {
        return (0..groups.len()).map(|number| (number, None)).collect();
    };
    let has_planes = made.iter().any(|(_, plane)| *plane > 0);
    let mut next = last;
    let number_of = |(group, place): (&Group<'_>, &Option<(u8, u8)>)| {
        if let Some((rail, plane)) = place {
            return (usize::from(*rail), has_planes.then_some(*plane));
        }
        next += 1;
        let why = format!(
            "{} does not follow the formulas, unlike the others: it becomes rail {next}",
            group.cidr
        );
        group
            .rails
            .iter()
            .for_each(|rail| rail.warn(notes, ".addresses", &why));
        (next, None)
    };
    groups.iter().zip(&places).map(number_of).collect()
}

/// The numbers of IPv6 rails, which are those of the IPv4 rails on the same interfaces.
fn paired(
    v4: &[Group<'_>],
    numbers: &[(usize, Option<u8>)],
    v6: &[Group<'_>],
    notes: &mut Notes,
) -> Vec<(usize, Option<u8>)> {
    let interfaces: HashMap<_, usize> = (v4.iter().enumerate())
        .flat_map(|(number, group)| {
            group
                .rails
                .iter()
                .map(move |rail| ((rail.node_name.as_str(), rail.id.as_str()), number))
        })
        .collect();
    let network = |(rail, plane): &(usize, Option<u8>)| {
        usize::from(number(u8::try_from(*rail).unwrap_or(u8::MAX), *plane))
    };
    let mut next = numbers
        .iter()
        .map(|place| network(place) + 1)
        .max()
        .unwrap_or(0);
    let mut taken: HashMap<usize, IpNet> = HashMap::new();
    let mut number_of = |group: &Group<'_>| {
        let of = |rail: &Rail| {
            interfaces
                .get(&(rail.node_name.as_str(), rail.id.as_str()))
                .copied()
        };
        let usual = most(group.rails.iter().filter_map(|rail| of(rail)));
        let Some(usual) = usual.filter(|usual| !taken.contains_key(usual)) else {
            next += 1;
            return (next - 1, None);
        };
        taken.insert(usual, group.cidr);
        for rail in &group.rails {
            if let (Some(other), Some(usual)) =
                (of(rail).filter(|other| *other != usual), v4.get(usual))
            {
                let other = v4.get(other).map(|other| other.cidr).unwrap_or_default();
                let why = format!(
                    "is on the rail that has {} in IPv4, and its interface has {other}",
                    usual.cidr
                );
                rail.fault(notes, ".addresses", &format!("{} {why}", rail.address));
            }
        }
        numbers.get(usual).copied().unwrap_or_default()
    };
    v6.iter().map(&mut number_of).collect()
}
