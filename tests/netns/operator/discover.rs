//! `railctl discover`: leaves and plan say which NIC is which rail. What PCI says is in
//! crates/railctl/src/commands/discover/tests.rs.

use std::fs;

use serde_json::{Value, json};

use super::cables::{leaf, plan, railctl};
use super::{files, two_rails};
use crate::harness::{Host, pf_address};

/// Two rails whose PFs are NICs by their class.
fn two_nics(test: &str) -> Option<Host> {
    let host = two_rails(test)?;
    for rail in 0..2 {
        let pf = host.path("sys/devices").join(pf_address(rail));
        for (file, text) in [
            ("class", "0x020000"),
            ("vendor", "0x15b3"),
            ("device", "0x1021"),
        ] {
            fs::write(pf.join(file), format!("{text}\n")).unwrap();
        }
    }
    Some(host)
}

fn rails(json: &Value) -> Vec<Value> {
    json["nics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|nic| nic["rail"].clone())
        .collect()
}

#[test]
fn leaves_of_the_plan_say_which_nic_is_which_rail_and_only_what_is_certain_is_written() {
    let Some(host) = two_nics(
        "leaves_of_the_plan_say_which_nic_is_which_rail_and_only_what_is_certain_is_written",
    ) else {
        return;
    };
    plan(&host, &[(0, "leaf-r1", "swp1"), (1, "leaf-r2", "swp1")]);
    let file = host.path("proposed.json");
    let write = [
        "discover",
        "--timeout",
        "2",
        "--output",
        "json",
        "--write",
        file.to_str().unwrap(),
    ];
    let json = |time: &'static str| ["discover", "--timeout", time, "--output", "json"];
    let before = (host.snapshot(), files(&host.path("sys")));
    // Without announcements, and without GPUs.
    let ran = railctl(&host, &json("1"), &[]);
    assert_eq!(
        (ran.status, rails(&ran.json())),
        (1, vec![Value::Null, Value::Null]),
        "{ran:?}"
    );
    // Swapped cables are told, and not written.
    let swapped = [
        ("pf0", leaf("leaf-r2", "swp1")),
        ("pf1", leaf("leaf-r1", "swp1")),
    ];
    let ran = railctl(&host, &json("2"), &swapped);
    assert_eq!(
        (ran.status, rails(&ran.json())),
        (1, vec![json!(1), json!(0)]),
        "{ran:?}"
    );
    let told = ran.json()["nics"][0]["contradictions"].to_string();
    assert!(told.contains("node.json"), "{told}");
    let ran = railctl(
        &host,
        &[
            "discover",
            "--timeout",
            "2",
            "--write",
            file.to_str().unwrap(),
        ],
        &swapped,
    );
    assert!(ran.status == 1 && !file.exists(), "{ran:?}");
    let right = [
        ("pf0", leaf("leaf-r1", "swp1")),
        ("pf1", leaf("leaf-r2", "swp1")),
    ];
    let ran = railctl(&host, &write, &right);
    assert_eq!(
        (ran.status, rails(&ran.json())),
        (0, vec![json!(0), json!(1)]),
        "{ran:?}"
    );
    let written: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let expected =
        json!({"rails": [{"rail": 0, "pf": pf_address(0)}, {"rail": 1, "pf": pf_address(1)}]});
    assert_eq!(written, expected);
    // With two announcements, the leaf's is not certain.
    let two = [&right[..], &[("pf0", leaf("leaf-r2", "swp1"))]].concat();
    let ran = railctl(&host, &json("2"), &two);
    assert!(
        ran.status == 1 && ran.stdout.contains("two neighbours: "),
        "{ran:?}"
    );
    // A file that is there is not replaced.
    fs::write(&file, "mine").unwrap();
    assert_eq!(
        (
            railctl(&host, &write, &right).status,
            fs::read(&file).unwrap()
        ),
        (1, b"mine".to_vec())
    );
    assert_eq!(before, (host.snapshot(), files(&host.path("sys"))));
}

#[test]
fn a_nic_with_the_address_of_a_rail_is_that_rail_and_one_of_the_host_is_none() {
    let Some(host) =
        two_nics("a_nic_with_the_address_of_a_rail_is_that_rail_and_one_of_the_host_is_none")
    else {
        return;
    };
    host.ip("addr add 172.16.0.0/31 dev pf0");
    host.ip("addr add 10.9.0.1/24 dev pf1");
    let ran = railctl(
        &host,
        &["discover", "--timeout", "0", "--output", "json"],
        &[],
    );
    assert_eq!(
        (ran.status, rails(&ran.json())),
        (0, vec![json!(0), Value::Null]),
        "{ran:?}"
    );
    assert!(
        ran.json()["nics"][1]["reasons"]
            .to_string()
            .contains("10.9.0.1/24"),
        "{ran:?}"
    );
    let table = railctl(&host, &["discover", "--timeout", "0"], &[]);
    assert!(
        table
            .stdout
            .contains(&format!(r#"{{"rail": 0, "pf": "{}"}}"#, pf_address(0))),
        "{table:?}"
    );
    assert_eq!(
        railctl(&host, &["discover", "--timeout", "-1"], &[]).status,
        2
    );
}
