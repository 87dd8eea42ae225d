//! Compares the networks of all files: values that are good in each network by itself.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use super::{Context, Finding, Lint, Rail, Range, Routes, Severity, Shift, number_in};
use rail_cni::cluster_networks::{self, Taken, USUAL, overlap};
use rail_cni::fault::Fault;
use rail_plan::document::Part;

impl Lint {
    /// Notes where its routes lead, and the prefixes at `paths`.
    pub(super) fn leads_to(&mut self, part: Part, name: &str, lists: &[&str], paths: &[&str]) {
        let mut paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        for list in lists {
            let count = part.get(list).map_or(0, |list| list.items().count());
            paths.extend((0..count).map(|at| format!("{list}[{at}].dst")));
        }
        let net = |path: &String| Some((part.text(path)?.parse().ok()?, part.place(path)));
        let to = paths.iter().filter_map(net).collect();
        self.routes.push(Routes {
            name: name.to_owned(),
            to,
        });
    }

    /// Notes the addresses that the IPAM of a plugin hands out, which are on the link.
    pub(super) fn hands_out(&mut self, plugin: Part, context: &Context) {
        let name = context.name.as_str();
        let kind = plugin.text("ipam.type").unwrap_or_default();
        let mut paths = vec!["ipam.subnet".to_owned(), "ipam.range".to_owned()];
        let mut each = |list: &str, key: &str| {
            let count = plugin.get(list).map_or(0, |all| all.items().count());
            paths.extend((0..count).map(|at| format!("{list}[{at}]{key}")));
        };
        each("ipam.addresses", ".address");
        each("ipam.ipRanges", ".range");
        for set in 0..plugin
            .get("ipam.ranges")
            .map_or(0, |sets| sets.items().count())
        {
            each(&format!("ipam.ranges[{set}]"), ".subnet");
        }
        // whereabouts has `10.0.0.5-10.0.0.9/24`, too.
        let net = |path: &String| {
            let text = plugin.text(path)?;
            let range: IpNet = text.rsplit('-').next()?.trim().parse().ok()?;
            Some((range.trunc(), plugin.place(path)))
        };
        let to: Vec<_> = paths.iter().filter_map(net).collect();
        if kind != "static" {
            let ranges = to.iter().map(|(range, place)| Range {
                network: name.to_owned(),
                scope: [context.cluster.clone(), context.namespace.clone()],
                is_of_all_nodes: context.nad.is_some(),
                of: self.of,
                ipam: kind.to_owned(),
                range: *range,
                place: place.clone(),
            });
            self.ranges.extend(ranges);
        }
        self.routes.push(Routes {
            name: name.to_owned(),
            to,
        });
    }

    /// host-local counts on each node by itself, and two rails in one subnet cannot be told apart.
    pub(super) fn compare_ranges(&mut self) {
        let ranges = std::mem::take(&mut self.ranges);
        for (
            at,
            Range {
                network,
                scope,
                is_of_all_nodes,
                of,
                ipam,
                range,
                place,
            },
        ) in ranges.iter().enumerate()
        {
            let other = ranges[..at].iter().find(|other| {
                other.of != *of && other.scope == *scope && overlap(other.range, *range)
            });
            let problem = match other {
                Some(other) => format!(
                    "{range} overlaps {} of {} ({}): two interfaces of a pod in one subnet cannot be told apart, and {ipam} gives \
                     a range for each network",
                    other.range, other.network, other.place
                ),
                None if ipam == "host-local" && *is_of_all_nodes => format!(
                    "{range}: host-local counts on each node by itself, so every node hands out the same addresses: use rail-ipam, \
                     whereabouts, or a range for each node"
                ),
                None => continue,
            };
            let fault = Fault::new("ipam", problem).at(place.clone());
            self.findings.push(Finding {
                severity: Severity::Warning,
                network: network.clone(),
                of: *of,
                fault,
            });
        }
    }

    /// Compares all routes with the cluster's own networks.
    pub(super) fn compare_routes(&mut self) {
        let routes: Vec<(String, Vec<IpNet>)> = self
            .routes
            .iter()
            .map(|Routes { name, to }| (name.clone(), to.iter().map(|(net, _)| *net).collect()))
            .collect();
        let usual: Vec<IpNet> = USUAL.iter().filter_map(|usual| usual.network()).collect();
        let known = &self.node.cluster_networks;
        let taken =
            cluster_networks::taken_by(&routes, if known.is_empty() { &usual } else { known });
        let place = |taken: &Taken| {
            let mut all = self.routes.iter().flat_map(|routes| &routes.to);
            all.find(|(net, _)| *net == taken.route)
                .map(|(_, place)| place.clone())
                .unwrap_or_default()
        };
        let remedy = "other addresses for the rails (firstOctet of the plan), or other networks for the cluster";
        let finding = |severity, fault: Fault| Finding {
            severity,
            network: String::new(),
            of: 0,
            fault,
        };
        let found: Vec<Finding> = if known.is_empty() {
            let problem = cluster_networks::usually_taken_by(&routes, "")
                .into_iter()
                .zip(taken.first());
            let warning = |(problem, first): (String, &Taken)| {
                let remedy = format!("{problem}; where they overlap: {remedy}");
                finding(Severity::Warning, Fault::whole(remedy).at(place(first)))
            };
            problem.map(warning).collect()
        } else {
            let error = |taken: &Taken| {
                let fault = Fault::whole(taken.to_string())
                    .remedy(remedy)
                    .at(place(taken));
                finding(Severity::Error, fault)
            };
            taken.iter().map(error).collect()
        };
        self.findings.extend(found);
    }

    /// Compares values that are good in each network by itself.
    pub(super) fn across(&mut self) {
        let rails = std::mem::take(&mut self.rails);
        let mut findings = Vec::new();
        let mut add = |severity, rail: &Rail, path: &str, problem: String| {
            let (network, of) = (rail.network.clone(), rail.of);
            let fault = Fault::new(path, problem).at(rail.place.clone());
            findings.push(Finding {
                severity,
                network,
                of,
                fault,
            });
        };
        // The first network with a value, by the kind of the value and the scope in which it is
        // unique.
        let mut first: HashMap<String, &Rail> = HashMap::new();
        for rail in &rails {
            let Rail {
                cluster,
                namespace,
                pools,
                resource,
                ..
            } = rail;
            let Some(number) = rail.rail else { continue };
            let mut other = |what: &str, namespace: &str, said: &str| {
                let before = *first
                    .entry(format!("{what}\n{cluster}\n{namespace}\n{said}"))
                    .or_insert(rail);
                Some(before).filter(|before| !std::ptr::eq(*before, rail))
            };
            if let Some(other) = other("rail", namespace, &number.to_string()) {
                let problem = format!(
                    "{number} is also the rail of {} ({})",
                    other.network, other.place
                );
                add(Severity::Warning, rail, "rail", problem);
            }
            let differs = |other: &&Rail| other.rail != rail.rail;
            let of = |other: &Rail| {
                format!(
                    "rail {}, {} ({})",
                    other.rail.unwrap_or_default(),
                    other.network,
                    other.place
                )
            };
            for pool in pools {
                if let Some(other) = other("pool", "", pool).filter(differs) {
                    let of = of(other);
                    let problem = format!(
                        "pool {pool} is also the pool of {of}: a prefix belongs to one rail"
                    );
                    add(Severity::Error, rail, "ipam", problem);
                }
            }
            if let Some(resource) = resource {
                if let Some(other) = other("resource", "", resource).filter(differs) {
                    let problem = format!(
                        "the resource {resource} is also the resource of {}: a pod gets a device of either rail",
                        of(other)
                    );
                    add(Severity::Warning, rail, "metadata.annotations", problem);
                }
            }
        }
        let mut shifts: BTreeMap<(&str, String), Vec<Shift>> = BTreeMap::new();
        for (index, rail) in rails.iter().enumerate() {
            let Some(number) = rail.rail.and_then(|number| i64::try_from(number).ok()) else {
                continue;
            };
            for (what, name) in rail.names() {
                let Some((in_name, else_in_it)) = number_in(name) else {
                    continue;
                };
                let shift = in_name.saturating_sub(number);
                shifts
                    .entry((what, else_in_it))
                    .or_default()
                    .push((shift, index, name));
            }
        }
        // A fabric that counts rails from 1, or those of a second plane from 8, does so in all of
        // these names.
        shifts.retain(|_, alike| alike.len() == 1 || alike.iter().any(|one| one.0 != alike[0].0));
        let mut odd: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for ((what, _), alike) in &shifts {
            for (_, index, name) in alike.iter().filter(|(shift, ..)| *shift != 0) {
                odd.entry(*index)
                    .or_default()
                    .push(format!("the {what} {name}"));
            }
        }
        for (index, names) in odd {
            let rail = &rails[index];
            let problem = format!(
                "is {} in {}",
                rail.rail.unwrap_or_default(),
                names.join(", ")
            );
            add(Severity::Warning, rail, "rail", problem);
        }
        self.findings.extend(findings);
    }
}
