//! The plan as a table for the network team: RFC 4180, with a line for each cable.

use anyhow::Result;
use csv::{Terminator, WriterBuilder};

use crate::cables;
use crate::plan::{File, Plan, Pool, Pools};

const COLUMNS: [&str; 12] = [
    "node",
    "rail",
    "plane",
    "pool",
    "family",
    "address",
    "gateway",
    "prefix",
    "interface",
    "leaf",
    "port",
    "mtu",
];

/// Writes one file, in which `gateway` is the address of the leaf's port. If a port has a VRF,
/// there is a column for it. The pools are those of [`Plan::check`].
pub fn write(plan: &Plan, pools: &Pools) -> Result<Vec<File>> {
    let has_vrfs = plan.pools.iter().any(Pool::has_vrf);
    let mut table = WriterBuilder::new()
        .terminator(Terminator::CRLF)
        .from_writer(Vec::new());
    let mut write = |mut cells: Vec<String>, vrf: &str| {
        if has_vrfs {
            cells.push(vrf.to_owned());
        }
        table.write_record(cells.iter().map(|cell| no_formula(cell)))
    };
    write(COLUMNS.map(str::to_owned).to_vec(), "vrf")?;
    for row in cables::rows(plan, pools) {
        let cells = vec![
            row.node.to_owned(),
            shown(row.rail),
            shown(row.plane),
            row.pool.to_owned(),
            row.family.to_owned(),
            row.address.to_string(),
            shown(row.gateway),
            row.prefix.to_string(),
            shown(row.interface),
            shown(row.leaf),
            shown(row.port),
            shown(row.mtu),
        ];
        write(cells, row.vrf.unwrap_or_default())?;
    }
    Ok(vec![File {
        name: "plan.csv".to_owned(),
        text: String::from_utf8(table.into_inner()?)?,
    }])
}

fn shown<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// A spreadsheet takes a text that begins with one of these signs for a formula, and names of
/// interfaces and ports can begin so.
fn no_formula(cell: &str) -> String {
    if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        format!("'{cell}")
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Cable;
    use crate::plan::tests::{cabled, checked};
    use crate::scheme::{Family, HostLink, Mode};

    fn table(mode: Mode, family: Family, links: &[HostLink]) -> String {
        let (plan, pools) = checked(mode, family, links);
        write(&plan, &pools).unwrap().swap_remove(0).text
    }

    #[test]
    fn the_table_is_this() {
        let text = &table(Mode::None, Family::Dual, &cabled());
        let expected = [
            "node,rail,plane,pool,family,address,gateway,prefix,interface,leaf,port,mtu",
            "worker-gpu-0,0,,rail-0,ipv4,172.16.0.0,172.16.0.1,172.16.0.0/31,rail0,leaf-su1-r1,swp1s0,9000",
            "worker-gpu-62,0,,rail-0,ipv4,172.16.1.60,172.16.1.61,172.16.1.60/31,rail0,leaf-su2-r1,swp31s0,9000",
            "worker-gpu-0,0,,rail-0-v6,ipv6,fd02::1,fd02::2,fd02::/64,rail0,leaf-su1-r1,swp1s0,9000",
            "worker-gpu-62,0,,rail-0-v6,ipv6,fd02:0:0:11e::1,fd02:0:0:11e::2,fd02:0:0:11e::/64,rail0,leaf-su2-r1,\
             swp31s0,9000",
            "worker-gpu-0,1,,rail-1,ipv4,172.18.0.0,172.18.0.1,172.18.0.0/31,rail1,leaf-su1-r2,swp1s0,9000",
            "worker-gpu-62,1,,rail-1,ipv4,172.18.1.60,172.18.1.61,172.18.1.60/31,rail1,leaf-su2-r2,swp31s0,9000",
            "worker-gpu-0,1,,rail-1-v6,ipv6,fd02:0:100::1,fd02:0:100::2,fd02:0:100::/64,rail1,leaf-su1-r2,swp1s0,\
             9000",
            "worker-gpu-62,1,,rail-1-v6,ipv6,fd02:0:100:11e::1,fd02:0:100:11e::2,fd02:0:100:11e::/64,rail1,\
             leaf-su2-r2,swp31s0,9000",
        ];
        assert_eq!(text.split_terminator("\r\n").collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_plan_without_cables_has_empty_cells() {
        let mut links = cabled();
        links
            .iter_mut()
            .for_each(|link| link.cable = Cable::default());
        let text = &table(Mode::Swplb, Family::Ipv4, &links);
        assert!(text.contains(
            "worker-gpu-0,0,0,rail-0-plane-0,ipv4,172.16.0.0,172.16.0.1,172.16.0.0/31,,,,\r\n"
        ));
    }

    #[test]
    fn no_cell_is_a_formula() {
        for (cell, expected) in [
            ("rail0", "rail0"),
            ("=HYPERLINK(\"x\")", "'=HYPERLINK(\"x\")"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@x", "'@x"),
            ("\tx", "'\tx"),
            ("", ""),
        ] {
            assert_eq!(no_formula(cell), expected);
        }
    }
}
