use super::change::Import;
use super::*;
use crate::store::Writer;
use rail_cni::pool::store;
use std::path::Path;

const EXAMPLES: [&str; 2] = [
    "../../conf/pools/spectrum-x.yaml",
    "../../conf/pools/dual-stack.yaml",
];

fn node(temp: &Path) -> Node {
    let dirs = serde_json::json!({"storeDir": temp.join("store"), "runDir": temp.join("run")});
    serde_json::from_value(dirs).unwrap()
}

fn plan(node: &Node, files: &[String], nodes: &Nodes, terms: &Terms) -> Result<Import> {
    change::changes(node, &read(files)?.0, nodes, terms)
}

fn write(node: &Node, import: &Import, force: Force) -> Result<()> {
    change::write(node, Writer::new(node)?, import, force)
}

fn plan_of(text: &str, nodes: &Nodes) -> Result<Import> {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("pools");
    std::fs::write(&file, text).unwrap();
    plan(
        &node(temp.path()),
        &[file.display().to_string()],
        nodes,
        &Terms::default(),
    )
}

fn pool(name: &str, rows: &str) -> String {
    format!(
        "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: CIDRPool\nmetadata: {{name: {name}}}\n\
         spec: {{cidr: 172.16.0.0/15, perNodeNetworkPrefix: 31, staticAllocations: [{rows}]}}\n"
    )
}

#[test]
fn the_examples_give_each_node_its_side_of_every_rail() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path());
    let import = plan(
        &node,
        &EXAMPLES.map(str::to_owned),
        &Nodes::All,
        &Terms::default(),
    )
    .unwrap();
    write(&node, &import, Force::No).unwrap();
    let load = |name: &str, pool: &str| {
        store::load(&node, name, &[pool.to_owned()]).map(|mut all| all.remove(0))
    };
    let ours = load("worker-gpu-62", "rail-0").unwrap();
    assert_eq!(ours.prefix.to_string(), "172.16.1.60/31");
    assert_eq!(ours.gateway.unwrap().to_string(), "172.16.1.61");
    for node_name in [
        "worker-gpu-0",
        "worker-gpu-1",
        "worker-gpu-62",
        "worker-gpu-63",
    ] {
        for rail in 0..8 {
            let ours = load(node_name, &format!("rail-{rail}")).unwrap();
            let address = ours.first_free(|_| false).unwrap().to_string();
            assert!(
                address.starts_with(&format!("172.{}.", 16 + 2 * rail)),
                "{address}"
            );
            assert_eq!(
                ours.routes[0].dst.to_string(),
                format!("172.{}.0.0/15", 16 + 2 * rail)
            );
            assert_eq!(ours.routes[1].dst.to_string(), "172.16.0.0/12");
        }
    }
    let error = load("Worker-GPU-62.example.com", "rail-0")
        .unwrap_err()
        .to_string();
    assert!(error.contains("worker-gpu-62?"), "{error}");
    let again = plan(
        &node,
        &EXAMPLES.map(str::to_owned),
        &Nodes::All,
        &Terms::default(),
    )
    .unwrap();
    assert!(again.lines.iter().all(|line| line.change() == "same"));
}

#[test]
fn a_row_that_left_the_pool_leaves_the_store_when_it_is_pruned() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path());
    let file = temp.path().join("p.yaml");
    let files = [file.display().to_string()];
    let one = "{nodeName: a, prefix: 172.16.0.0/31, gateway: 172.16.0.1}";
    std::fs::write(
        &file,
        pool(
            "r",
            &format!("{one}, {{nodeName: b, prefix: 172.16.0.2/31}}"),
        ),
    )
    .unwrap();
    write(
        &node,
        &plan(&node, &files, &Nodes::All, &Terms::default()).unwrap(),
        Force::No,
    )
    .unwrap();
    std::fs::write(&file, pool("r", one)).unwrap();
    let import = plan(&node, &files, &Nodes::One("b".into()), &Terms::default()).unwrap();
    assert!(
        import.lines.is_empty() && import.warnings.len() == 2,
        "{:?}",
        import.warnings
    );
    let prune = Terms {
        prune: true,
        ..Terms::default()
    };
    let import = plan(&node, &files, &Nodes::One("b".into()), &prune).unwrap();
    assert_eq!(import.lines[0].change(), "removed");
    write(&node, &import, Force::No).unwrap();
    assert!(store::load(&node, "b", &["r".to_owned()]).is_err());
    assert!(store::load(&node, "a", &["r".to_owned()]).is_ok());
    assert!(plan(&node, &files, &Nodes::One("b".into()), &prune).is_err());
}

#[test]
fn every_form_that_kubectl_prints_is_read() {
    let row = "{nodeName: a, prefix: 172.16.0.0/31, gateway: 172.16.0.1}";
    let json = r#"{"apiVersion":"nv-ipam.nvidia.com/v1alpha1","kind":"CIDRPool","metadata":{"name":"r"},
        "spec":{"cidr":"172.16.0.0/15","perNodeNetworkPrefix":31,"exclusions":null,
        "staticAllocations":[{"nodeName":"a","prefix":"172.16.0.0/31"}]},"status":{"allocations":null}}"#;
    for (text, count) in [
        (pool("r", row), 1),
        (
            format!(
                "---\n{}---\n{}---\n",
                pool("r", row),
                pool("s", &row.replace("16.0", "17.0"))
            ),
            2,
        ),
        (json.to_owned(), 1),
        (format!("[{json}]"), 1),
        (
            format!(r#"{{"kind":"List","apiVersion":"v1","items":[{json}]}}"#),
            1,
        ),
        (
            format!(
                "kind: List\nitems:\n- {}",
                pool("r", row).replace('\n', "\n  ")
            ),
            1,
        ),
    ] {
        assert_eq!(
            plan_of(&text, &Nodes::All).unwrap().lines.len(),
            count,
            "{text}"
        );
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_place() {
    let row = "{nodeName: a, prefix: 172.16.0.0/31}";
    let good = pool("r", row);
    let mut said = String::new();
    for (text, told) in [
        (String::new(), ""),
        ("x".to_owned(), "CIDRPool"),
        ("{".to_owned(), "JSON: EOF"),
        ("a: [".to_owned(), "YAML"),
        (good.replace("CIDRPool", "IPPool"), "kind: \"IPPool\" "),
        (
            good.replace("v1alpha1", "v2"),
            "apiVersion: nv-ipam.nvidia.com/v2",
        ),
        (good.replace("name: r", "name: ../r"), "metadata.name"),
        (good.replace("name: r", "x: r"), "pools:3: metadata.name: "),
        (
            good.replace("31,", "31, spare: 1,"),
            "CIDRPool r: spec.spare: ",
        ),
        (good.replace("prefix: 172", "prefix: [172"), "YAML"),
        (
            good.replace("nodeName: a", "nodeName: [a]"),
            "spec.staticAllocations[0].nodeName: ",
        ),
        (
            good.replace("172.16.0.0/31", "172.16.0.1/31"),
            "CIDRPool r: spec.staticAllocations[0].prefix",
        ),
        (
            format!("{good}---\n{good}"),
            "pools:8: CIDRPool r: metadata.name: ",
        ),
        (
            format!("{good}---\n{}", good.replace("name: r", "name: s")),
            "/pools:9: pool s: node a: 172.16.0.0/31 ",
        ),
        (
            format!(
                "{good}---\n{}",
                good.replace("name: r", "name: s").replace("31", "30")
            ),
            "pool r: node a: 172.16.0.0/31 ",
        ),
        (format!("{good}kind: CIDRPool\n"), "\"kind\""),
        (pool("r", ""), "cidrpool r"),
    ] {
        let error = format!("{:#}", plan_of(&text, &Nodes::All).unwrap_err());
        assert!(
            error.contains(told) && error.contains("/pools:"),
            "{told}: {error}"
        );
        let (_, fault) = error.split_once("/pools:").unwrap();
        said += &format!("pools:{fault}\n");
    }
    golden::says("railctl", "import: CIDRPools with a fault", said);
    // A prefix of no node is kept free for another pool.
    let kept = pool("r", &format!("{row}, {{prefix: 172.16.0.4/31}}"))
        .replace("31", "30")
        .replace("0.0/30", "0.8/30");
    let other = pool("s", "{nodeName: a, prefix: 172.16.0.6/31}");
    plan_of(&format!("{kept}---\n{other}"), &Nodes::All).unwrap();
    assert!(
        plan_of(&good, &Nodes::One("A.example".into()))
            .unwrap_err()
            .to_string()
            .contains(" a?")
    );
}

/// Pools that do not say their rail, imported one after the other, are found by it.
#[test]
fn the_rail_that_addresses_or_names_tell_is_written_down() {
    for (rows, rails) in [
        (
            [
                "172.16.0.0/31, gateway: 172.16.0.1",
                "172.18.0.0/31, gateway: 172.18.0.1",
            ],
            [Some(0), Some(1)],
        ),
        // The formulas make neither, and nobody knows what the name of the second alone means.
        (
            [
                "10.0.0.0/31, gateway: 10.0.0.1",
                "10.2.0.0/31, gateway: 10.2.0.1",
            ],
            [Some(0), None],
        ),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let node = node(temp.path());
        for (number, row) in rows.iter().enumerate() {
            let file = temp.path().join("pools");
            let cidr = format!("{}/15", row.split('/').next().unwrap());
            let text = pool(
                &format!("eth-rail{number}"),
                &format!("{{nodeName: a, prefix: {row}}}"),
            )
            .replace(
                "172.16.0.0/15",
                &format!(
                    "{cidr:?}, gatewayIndex: 0, routes: [{{dst: {cidr:?}}}, {{dst: 172.16.0.0/12}}]"
                ),
            );
            std::fs::write(&file, text).unwrap();
            let import = plan(
                &node,
                &[file.display().to_string()],
                &Nodes::All,
                &Terms::default(),
            )
            .unwrap();
            write(&node, &import, Force::No).unwrap();
        }
        for (number, rail) in rails.into_iter().enumerate() {
            let pool = format!("eth-rail{number}");
            assert_eq!(
                store::load(&node, "a", std::slice::from_ref(&pool)).unwrap()[0].rail,
                rail,
                "{rows:?}"
            );
            let found = store::of_rail(&node, "a", number as u64).unwrap();
            assert_eq!(
                found.iter().map(|(name, _)| name).collect::<Vec<_>>(),
                [&pool],
                "{rows:?}"
            );
        }
    }
}

#[test]
fn a_directory_is_read_with_those_below_and_without_hidden_ones() {
    let temp = tempfile::tempdir().unwrap();
    let write_pool = |folder: &str, name: &str, prefix: &str| {
        let folder = temp.path().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let row = format!("{{nodeName: w1, gateway: {prefix}.1, prefix: {prefix}.0/31}}");
        std::fs::write(folder.join(format!("{name}.yaml")), pool(name, &row)).unwrap();
    };
    write_pool("su-0", "rail-0", "172.16.0");
    write_pool("su-1/more", "rail-1", "172.16.1");
    write_pool(".git", "rail-2", "172.16.2");
    std::os::unix::fs::symlink(temp.path(), temp.path().join("su-0/circle")).unwrap();
    std::fs::write(temp.path().join("README"), "no manifest").unwrap();
    let directory = temp.path().display().to_string();
    let (pools, _) = read(std::slice::from_ref(&directory)).unwrap();
    assert_eq!(pools.keys().collect::<Vec<_>>(), ["rail-0", "rail-1"]);
    let empty = temp.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let error = read(&[empty.display().to_string()]).unwrap_err();
    assert!(
        format!("{error:#}").contains("no .json, .yaml or .yml"),
        "{error:#}"
    );
}
