use super::*;
use crate::plan::tests::{cabled, plan};
use crate::scheme::{Family, HostLink, Mode};
use golden::has;

fn written(mode: Mode, family: Family, links: &[HostLink]) -> Result<Vec<File>> {
    write(&plan(mode, family, links))
}

#[test]
fn the_commands_of_a_leaf_are_these() {
    let files = written(Mode::None, Family::Dual, &cabled()).unwrap();
    let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "leaf-su1-r1.nvue",
            "leaf-su1-r2.nvue",
            "leaf-su2-r1.nvue",
            "leaf-su2-r2.nvue"
        ]
    );
    let expected = format!(
        "# leaf-su2-r1: the ports of hosts\n{HEAD}\
         nv set interface swp31s0 description worker-gpu-62:rail0\n\
         nv set interface swp31s0 link mtu 9216\n\
         nv set interface swp31s0 ip address 172.16.1.61/31\n\
         nv set interface swp31s0 ip address fd02:0:0:11e::2/64\n\
         # nv config apply\n"
    );
    assert_eq!(files[2].text, expected);
}

#[test]
fn ports_are_in_the_order_in_which_people_count() {
    let mut ports = [
        "swp10",
        "swp2s1",
        "swp2s0",
        "swp2",
        "swp1",
        "swp01",
        "Ethernet1/10",
        "Ethernet1/9",
    ];
    ports.sort_by_cached_key(|port| chunks(port));
    assert_eq!(
        ports,
        [
            "Ethernet1/9",
            "Ethernet1/10",
            "swp01",
            "swp1",
            "swp2",
            "swp2s0",
            "swp2s1",
            "swp10"
        ]
    );
}

/// `swp1-2` is two ports to NVUE, and both would get the address; `et-0/0/0:0` is Juniper's.
#[test]
fn a_port_that_nvue_reads_as_several_or_as_none_is_refused() {
    for port in ["swp1", "swp64", "swp1s0", "swp12s3"] {
        assert!(is_port(port), "{port}");
    }
    let others = ["et-0/0/0:0", "Ethernet1/1", "swp1.100", "1"];
    let miscounted = ["swp0", "swp0s1", "swp01", "swp1s00"];
    for port in ["swp1-2", "swp", "swps0", "swp1s", "swp1s0-3"]
        .into_iter()
        .chain(others)
        .chain(miscounted)
    {
        let mut links = cabled();
        links[0].cable.port = Some(port.into());
        let error = written(Mode::None, Family::Ipv4, &links)
            .unwrap_err()
            .to_string();
        let told = format!("port {port} of leaf-su1-r1 ");
        assert!(
            error.contains(&told) && error.contains("--to csv"),
            "{error}"
        );
    }
}

/// The command in the head of the file, to be run before the file goes to 5.15.
#[test]
fn the_command_in_the_head_changes_each_command_that_5_15_renamed() {
    let mut links = cabled();
    links
        .iter_mut()
        .for_each(|link| link.cable.vrf = Some("tenant-1".into()));
    let text = written(Mode::None, Family::Dual, &links)
        .unwrap()
        .swap_remove(2)
        .text;
    let command = text
        .lines()
        .find_map(|line| line.strip_prefix("#   "))
        .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &text).unwrap();
    let line = format!("{command} '{}'", file.path().display());
    let output = std::process::Command::new("sh")
        .args(["-c", &line])
        .output()
        .unwrap();
    let changed = String::from_utf8(output.stdout).unwrap();
    let commands: Vec<_> = changed
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert_eq!(
        commands,
        [
            "nv set vrf tenant-1 table auto",
            "nv set interface swp31s0 description worker-gpu-62:rail0",
            "nv set interface swp31s0 link mtu 9216",
            "nv set interface swp31s0 vrf tenant-1",
            "nv set interface swp31s0 ipv4 address 172.16.1.61/31",
            "nv set interface swp31s0 ipv6 address fd02:0:0:11e::2/64",
        ]
    );
}

/// With `hwplb` the leaf of each plane has the same address, each on its own link to the NIC.
#[test]
fn each_plane_has_its_leaf() {
    let mut links = cabled();
    links.truncate(1);
    links.push(HostLink {
        plane: 1,
        ..links[0].clone()
    });
    links[1].cable.leaf = Some("leaf-p2-su1-r1".into());
    let files = written(Mode::Hwplb, Family::Ipv4, &links).unwrap();
    assert_eq!(files.len(), 2);
    assert!(
        files
            .iter()
            .all(|file| file.text.contains("swp1s0 ip address 172.16.0.1/31\n"))
    );
    links[1].cable.leaf = links[0].cable.leaf.clone();
    links[1].cable.port = Some("swp1s1".into());
    let error = written(Mode::Hwplb, Family::Ipv4, &links)
        .unwrap_err()
        .to_string();
    assert!(has(&error, "swp1s0…swp1s1…leaf-su1-r1"), "{error}");
}

#[test]
fn a_row_without_a_port_is_told_with_node_and_pool() {
    let mut links = cabled();
    links[0].cable.port = None;
    links[3].cable = Cable::default();
    let error = written(Mode::None, Family::Ipv4, &links)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("\n  node worker-gpu-0 in pool rail-0: "),
        "{error}"
    );
    assert!(
        error.contains("\n  node worker-gpu-62 in pool rail-1: "),
        "{error}"
    );
    assert!(error.contains("topology.json, or"), "{error}");
}

#[test]
fn a_port_has_one_cable_and_no_more_mtu_than_it_can() {
    let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
    plan.pools[0].cables[1] = plan.pools[0].cables[0].clone();
    plan.pools[1].cables[0] = plan.pools[0].cables[0].clone();
    plan.pools[1].cables[1][0].mtu = Some(9600);
    let error = write(&plan).unwrap_err().to_string();
    golden::says("plan", "--to nvue: ports with two cables", &error);
    for told in [
        "node worker-gpu-62 in pool rail-0: …swp1s0 of leaf-su1-r1…node worker-gpu-0",
        "node worker-gpu-0 in pool rail-1: …swp1s0 of leaf-su1-r1…172.16.0.1/31",
        "node worker-gpu-62 in pool rail-1: …MTU 9600",
    ] {
        assert!(error.lines().any(|line| has(line, told)), "{told}: {error}");
    }
}
