//! The file `calls`, by which the agent of the node learns what became of every call.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Host, rail, with};
use crate::programs::{RAIL_CNI, RAIL_IPAM};

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

/// The plugins that leave a line during ADD, CHECK and DEL, while CNI_PATH is `path`. A rail-ipam
/// that is a process leaves lines of its own.
fn plugins_called(host: &Host, pod: &Path, path: &Path, ipam: &str) -> Vec<String> {
    fs::write(host.path("run/calls"), "").unwrap();
    let config = with(rail(3), json!({"ipam": {"type": ipam, "pool": "rail-3"}}));
    let call = |verb: &str, config: &Value| {
        host.call(verb, "c1", pod)
            .var("CNI_PATH", path.to_str().unwrap())
            .run(config)
    };
    let result = call("ADD", &config).ok().json();
    let checked = with(config.clone(), json!({"prevResult": result}));
    call("CHECK", &checked).ok();
    call("DEL", &config).ok();
    lines(host)
        .iter()
        .map(|line| line["plugin"].as_str().unwrap().to_owned())
        .collect()
}

/// Position of the build ID in the content of an executable.
fn position_of_build_id(content: &[u8]) -> usize {
    // Sizes of owner and ID, the type, the owner.
    let note = b"\x04\0\0\0\x10\0\0\0\x03\0\0\0GNU\0";
    let start = content
        .windows(note.len())
        .position(|bytes| bytes == note)
        .unwrap();
    start + note.len()
}

#[test]
fn rail_ipam_of_the_same_build_is_a_function_however_it_is_installed() {
    let Some((host, pod)) = host("function") else {
        return;
    };
    host.copy_program(Path::new(RAIL_IPAM), "copy/rail-ipam");
    for folder in ["linked", "hard", "both"] {
        fs::create_dir(host.path(folder)).unwrap();
    }
    symlink(RAIL_IPAM, host.path("linked/rail-ipam")).unwrap();
    fs::hard_link(host.path("copy/rail-ipam"), host.path("hard/rail-ipam")).unwrap();
    symlink("../linked/rail-ipam", host.path("both/rail-ipam")).unwrap();
    for folder in ["copy", "linked", "hard", "both"] {
        let plugins = plugins_called(&host, &pod, &host.path(folder), "rail-ipam");
        assert_eq!(plugins, ["rail-cni"; 3], "{folder}");
    }
}

#[test]
fn any_other_rail_ipam_is_a_process() {
    let Some((host, pod)) = host("process") else {
        return;
    };
    let both = ["rail-ipam", "rail-cni"].repeat(3);
    let content = fs::read(RAIL_IPAM).unwrap();
    let id = position_of_build_id(&content);
    let mut builds = [("older", content.clone()), ("without", content)];
    // Another ID, and a note of another type.
    builds[0].1[id] ^= 1;
    builds[1].1[id - 8] = 9;
    for (folder, content) in builds {
        fs::write(host.path("content"), content).unwrap();
        host.copy_program(&host.path("content"), &format!("{folder}/rail-ipam"));
        fs::set_permissions(
            host.path(&format!("{folder}/rail-ipam")),
            fs::Permissions::from_mode(0o755),
        )
        .unwrap();
        let plugins = plugins_called(&host, &pod, &host.path(folder), "rail-ipam");
        assert_eq!(plugins, both, "{folder}");
    }
    host.add_plugin("rail-ipam", &format!("exec {RAIL_IPAM}"));
    let plugins = plugins_called(&host, &pod, &host.path("bin"), "rail-ipam");
    assert_eq!(plugins, both, "a script");
    let copy = host.copy_rail_ipam();
    let plugins = plugins_called(&host, &pod, &host.path("bin"), copy);
    assert_eq!(plugins, both, "another name");
}

#[test]
fn what_is_no_executable_is_refused_in_the_place_of_rail_ipam() {
    let Some((host, pod)) = host("no_executable") else {
        return;
    };
    let content = fs::read(RAIL_IPAM).unwrap();
    let id = position_of_build_id(&content);
    fs::create_dir_all(host.path("fifo")).unwrap();
    fs::create_dir_all(host.path("folder/rail-ipam")).unwrap();
    nix::unistd::mkfifo(&host.path("fifo/rail-ipam"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let files: [(&str, &[u8]); 4] = [
        ("empty", b""),
        ("garbage", &[0xff; 5000]),
        ("cut", &content[..id + 4]),
        ("magic", b"\x7fELF\x02\x01"),
    ];
    for (folder, content) in files {
        fs::create_dir(host.path(folder)).unwrap();
        fs::write(host.path(&format!("{folder}/rail-ipam")), content).unwrap();
    }
    for folder in ["fifo", "folder", "empty", "garbage", "cut", "magic"] {
        let call = host
            .call("ADD", "c1", &pod)
            .var("CNI_PATH", host.path(folder).to_str().unwrap());
        let error = call.run(&rail(3)).json();
        let message = error["msg"].as_str().unwrap();
        let expected = match folder {
            "fifo" | "folder" => "there is no plugin \"rail-ipam\" in CNI_PATH",
            _ => "cannot run the IPAM plugin",
        };
        assert!(message.starts_with(expected), "{folder}: {message}");
    }
    assert_eq!(host.records(), [] as [PathBuf; 0]);
}

/// A rail-cni is rail-cni, whatever its file is called.
#[test]
fn the_name_of_its_file_does_not_make_rail_cni_another_plugin() {
    let Some((host, pod)) = host("name") else {
        return;
    };
    host.copy_program(Path::new(RAIL_CNI), "bin/rail-cni-for-nv-ipam-nodes");
    let program = host.path("bin/rail-cni-for-nv-ipam-nodes");
    let version = Command::new(&program).arg("--version").output().unwrap();
    let text = String::from_utf8_lossy(&version.stdout);
    assert!(text.starts_with("rail-cni "), "{text}");
    let call = |verb: &str| host.call(verb, "c1", &pod).program(&program);
    let interfaces = call("ADD").run(&rail(3)).ok().json()["interfaces"].clone();
    assert_eq!(interfaces[0]["name"], "net1");
    call("DEL").run(&rail(3)).ok();
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
    // A tenant's text is one line of bounded length.
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
