//! The file `calls`, by which the agent of the node learns what became of every call.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{Host, rail, with};
use crate::programs::RAIL_CNI;

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ai;K8S_POD_NAME=trainer;K8S_POD_UID=u-1";

fn host(test: &str) -> Option<(Host, PathBuf)> {
    let host = Host::new(&format!("calls::{test}"))?;
    host.add_rail(3);
    let pod = host.add_netns("pod");
    host.call("STATUS", "c0", &pod).run(&rail(3));
    fs::create_dir_all(host.path("run")).unwrap();
    Some((host, pod))
}

/// The lines, without the time and the duration, which each has.
fn lines(host: &Host) -> Vec<Value> {
    let text = fs::read_to_string(host.path("run/calls")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty()).map(|line| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let object = line.as_object_mut().unwrap();
        humantime::parse_rfc3339(object.remove("time").unwrap().as_str().unwrap()).unwrap();
        assert!(object.remove("micros").unwrap().as_u64().unwrap() > 0);
        line
    });
    lines.collect()
}

#[test]
fn every_call_leaves_a_line_where_an_agent_reads_them() {
    let Some((host, pod)) = host("lines") else {
        return;
    };
    let call = |verb: &str, config: &Value| {
        host.call(verb, "c1", &pod)
            .var("CNI_ARGS", ARGS)
            .run(config)
    };
    call("ADD", &rail(3)).ok();
    call("DEL", &rail(3)).ok();
    assert!(!host.path("run/calls").exists(), "only the agent makes it");

    fs::write(host.path("run/calls"), "").unwrap();
    call("STATUS", &rail(3)).ok();
    assert_eq!(
        lines(&host),
        [] as [Value; 0],
        "a runtime asks every few seconds"
    );
    let result = call("ADD", &rail(3)).ok().json();
    call("CHECK", &with(rail(3), json!({"prevResult": result}))).ok();
    call("DEL", &rail(3)).ok();
    let refused = call(
        "ADD",
        &with(rail(3), json!({"mtu": 9000, "device": "missing0"})),
    );
    let error = refused.json();
    let told = |plugin: &str, verb: &str| {
        json!({"plugin": plugin, "verb": verb, "network": "rail-3", "pod": "ai/trainer", "podUid": "u-1",
            "container": "c1", "interface": "net1", "rail": 3, "code": 0})
    };
    let mut expected = ["ADD", "CHECK", "DEL"]
        .map(|verb| told("rail-cni", verb))
        .to_vec();
    let fault = json!({"code": error["code"], "message": error["msg"]});
    expected.push(with(told("rail-cni", "ADD"), fault));
    let lines = lines(&host);
    assert_eq!(lines, expected);
    assert_ne!(lines.last().unwrap()["code"], 0);
}

/// What the runtime calls is a call; of an IPAM that is a process, there is a line, too.
#[test]
fn rail_ipam_is_a_process_unless_it_is_the_very_file_that_calls_it() {
    let Some((host, pod)) = host("process") else {
        return;
    };
    fs::write(host.path("run/calls"), "").unwrap();
    let copy = host.copy_rail_ipam();
    symlink(RAIL_CNI, host.path("bin/ipam-link")).unwrap();
    let plugins = |name: &str| {
        fs::write(host.path("run/calls"), "").unwrap();
        let ipam = json!({"type": name, "pool": "rail-3"});
        let config = with(rail(3), json!({ "ipam": ipam }));
        let added = host.cni("ADD", "c1", &pod, &config).ok().json();
        host.cni(
            "CHECK",
            "c1",
            &pod,
            &with(config.clone(), json!({ "prevResult": added })),
        )
        .ok();
        host.cni("DEL", "c1", &pod, &config).ok();
        lines(&host)
            .iter()
            .map(|line| line["plugin"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(plugins("rail-ipam"), ["rail-cni"; 3]);
    assert_eq!(plugins("ipam-link"), ["rail-cni"; 3]);
    assert_eq!(plugins(copy), ["rail-ipam", "rail-cni"].repeat(3));
}

#[test]
fn what_an_earlier_pod_left_behind_is_told_as_restored() {
    let Some((host, pod)) = host("restored") else {
        return;
    };
    host.cni("ADD", "c1", &pod, &rail(3)).ok();
    fs::write(host.path("run/calls"), "").unwrap();
    let next = host.add_netns("next");
    // Its runtime never sent DEL.
    host.hand_back(&pod, "net1");
    host.cni("ADD", "c2", &next, &rail(3)).ok();
    let lines = lines(&host);
    let line = lines
        .iter()
        .find(|line| line["plugin"] == "rail-cni")
        .unwrap();
    let restored = line["restored"].as_array().unwrap();
    assert!(
        restored.len() == 1 && restored[0].to_string().contains("default/pod"),
        "{line}"
    );
    assert!(
        !line["warnings"].to_string().contains("vf3"),
        "told once: {line}"
    );
    host.cni("DEL", "c2", &next, &rail(3)).ok();
}

/// A full /run takes a part of a line, and this is where the file ends when there is room again.
#[test]
fn a_line_that_was_cut_off_costs_no_other() {
    let Some((host, pod)) = host("cut_off") else {
        return;
    };
    fs::write(host.path("run/calls"), r#"{"plugin":"rail-cni","verb":"DE"#).unwrap();
    host.cni("ADD", "c1", &pod, &rail(3)).ok();
    host.cni("DEL", "c1", &pod, &rail(3)).ok();
    let text = fs::read_to_string(host.path("run/calls")).unwrap();
    let read = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let read: Vec<_> = read
        .map(|line| format!("{} {}", line["plugin"], line["verb"]))
        .collect();
    let expected = ["rail-cni ADD", "rail-cni DEL"];
    assert_eq!(
        read,
        expected.map(|call| format!("\"{}\"", call.replace(' ', "\" \""))),
        "{text}"
    );
}

/// The pod has its rail, whatever became of its line.
#[test]
fn no_call_waits_for_the_file_or_fills_the_memory() {
    let Some((host, pod)) = host("never_waits") else {
        return;
    };
    let file = host.path("run/calls");
    let both = || {
        host.cni("ADD", "c1", &pod, &rail(3)).ok();
        host.cni("DEL", "c1", &pod, &rail(3)).ok();
    };
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    both();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    both();
    fs::remove_dir(&file).unwrap();
    fs::write(host.path("victim"), "").unwrap();
    symlink(host.path("victim"), &file).unwrap();
    both();
    assert_eq!(fs::read(host.path("victim")).unwrap(), b"");
    fs::remove_file(&file).unwrap();
    fs::File::create(&file).unwrap().set_len(4 << 20).unwrap();
    both();
    assert_eq!(file.metadata().unwrap().len(), 4 << 20);
    // What a tenant wrote is one line of bounded length.
    fs::write(&file, "").unwrap();
    let long = format!("K8S_POD_NAMESPACE=a;K8S_POD_NAME=x\n{}", "é".repeat(3000));
    host.call("ADD", "c1", &pod)
        .var("CNI_ARGS", &long)
        .run(&rail(3))
        .ok();
    host.call("DEL", "c1", &pod)
        .var("CNI_ARGS", &long)
        .run(&rail(3))
        .ok();
    let lines = lines(&host);
    assert_eq!(lines.len(), 2);
    assert!(
        lines
            .iter()
            .all(|line| (200..400).contains(&line["pod"].as_str().unwrap().len()))
    );
}
