//! The log: where networks may write, and what they cannot write.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Host, Ran, rail, with};

fn host(test: &str) -> Option<(Host, PathBuf)> {
    let host = Host::new(&format!("log::{test}"))?;
    host.add_rail(0);
    let pod = host.add_netns("pod");
    Some((host, pod))
}

/// ADD and DEL of `config`, which must succeed.
#[track_caller]
fn both(host: &Host, pod: &Path, config: &Value) -> Ran {
    let added = host.cni("ADD", "c1", pod, config).ok();
    host.cni("DEL", "c1", pod, config).ok();
    added
}

/// A disk that is gone, or a reader of a FIFO that never comes, is no reason for a pod to wait.
#[test]
fn a_log_that_cannot_be_written_stops_no_call() {
    let Some((host, pod)) = host("unwritable") else {
        return;
    };
    let before = host.snapshot();
    fs::create_dir(host.path("folder")).unwrap();
    nix::unistd::mkfifo(&host.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink(host.path("victim"), host.path("link")).unwrap();
    let bad = ["folder", "fifo", "link", "no/such/folder"].map(|name| host.path(name));
    for file in bad
        .into_iter()
        .chain(["/dev/zero".into(), "/dev/full".into()])
    {
        host.set_node(json!({"log": {"file": file}}));
        let ran = both(&host, &pod, &rail(0));
        let told = file.display().to_string();
        assert!(ran.stderr.contains(&told), "{ran:?}");
        host.call("ADD", "c1", &pod).ipam().run(&rail(0)).ok();
        host.call("DEL", "c1", &pod).ipam().run(&rail(0)).ok();
        assert_eq!(host.snapshot(), before, "{}", file.display());
    }
    assert!(!host.path("victim").exists());
    host.set_node(json!({"log": {"file": "/dev/null"}}));
    assert!(!both(&host, &pod, &rail(0)).stderr.contains("cannot write"));
}

#[test]
fn a_network_logs_only_where_the_operator_lets_it() {
    let Some((host, pod)) = host("file") else {
        return;
    };
    for folder in ["var", "nets", "nets/below"] {
        fs::create_dir(host.path(folder)).unwrap();
    }
    fs::write(host.path("var/auth.log"), "").unwrap();
    symlink(host.path("var/auth.log"), host.path("nets/link")).unwrap();
    let (ours, dir) = (host.path("var/rail.log"), host.path("nets"));
    let asked = |file: &Path| with(rail(0), json!({"logFile": file, "logLevel": "info"}));
    let nothing = json!({"log": {}});
    let file = json!({"log": {"file": ours}});
    let folder = json!({"log": {"dir": dir}});
    for (node, wanted, is_allowed) in [
        (&file, ours.clone(), true),
        (&file, host.path("var/auth.log"), false),
        (&file, host.path("var/new.log"), false),
        (&folder, dir.join("mine.log"), true),
        (&folder, dir.join(".hidden"), false),
        (&folder, dir.join("below/file"), false),
        (&folder, dir.join("../var/auth.log"), false),
        (&folder, dir.join("below/../x"), false),
        (&folder, dir.join("a\nb"), false),
        (&folder, dir.join(".."), false),
        (&folder, dir.clone(), false),
        (&folder, "mine.log".into(), false),
        (&nothing, dir.join("other.log"), false),
    ] {
        host.set_node(node.clone());
        let ran = both(&host, &pod, &asked(&wanted));
        assert_eq!(
            !ran.stderr.contains("ignored"),
            is_allowed,
            "{}: {ran:?}",
            wanted.display()
        );
        assert_eq!(
            fs::read_to_string(&wanted).is_ok_and(|text| text.contains("rail-cni ADD")),
            is_allowed
        );
    }
    // A link in the folder leads nowhere.
    host.set_node(folder);
    both(&host, &pod, &asked(&dir.join("link")));
    assert_eq!(fs::read_to_string(host.path("var/auth.log")).unwrap(), "");
    assert_eq!(fs::read_dir(host.path("var")).unwrap().count(), 2);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 3);
}

/// Readers believe the lines of a log, and a terminal obeys them.
#[test]
fn nothing_that_a_tenant_wrote_makes_a_line_of_its_own() {
    let Some((host, pod)) = host("lines") else {
        return;
    };
    let file = host.path("log");
    host.set_node(json!({"log": {"file": file, "level": "debug"}}));
    let forged = "x\n1970-01-01T00:00:00Z info root: \u{1b}[2J\r\u{7f}\u{9b}\u{2028}\u{2029}\u{85}";
    let script = r"printf 'first \033[2J\r\302\205 \342\200\250 \377\nsecond' >&2";
    host.add_plugin("loud", &format!("{script}\nexit 0"));
    host.add_plugin(
        "wrong",
        &format!("{script}\ncat >&2\necho '{{\"code\": 7, \"msg\": \"a\\nb\\u001b\"}}'; exit 1"),
    );
    let mut told = String::new();
    for config in [
        with(rail(0), json!({ forged: 1, "logFile": forged })),
        with(
            rail(0),
            json!({"ipam": {"type": "rail-ipam", "pool": "rail-0", forged: 1}}),
        ),
        with(rail(0), json!({"ipam": {"type": "loud"}})),
        with(rail(0), json!({"ipam": {"type": "wrong", "x": forged}})),
        with(rail(0), json!({"routing": forged})),
        with(rail(0), json!({"device": forged})),
    ] {
        for verb in ["ADD", "CHECK", "GC", "DEL"] {
            let call = host
                .call(verb, "c1", &pod)
                .var("CNI_ARGS", &format!("K8S_POD_NAME={forged}"));
            told += &call.run(&config).stderr;
        }
    }
    let is_bad = |letter: char| letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}');
    let written = fs::read_to_string(&file).unwrap();
    for line in told.lines().chain(written.lines()) {
        assert!(
            !line.contains(is_bad) && !line.starts_with("1970"),
            "{line:?}"
        );
    }
    assert!(
        told.contains("first \\u{1b}[2J\\r\\u{85} \\u{2028} \u{fffd}\n")
            && told.contains("second\n"),
        "{told}"
    );
    assert!(
        written.contains("x\\n1970") && written.lines().all(|line| line.starts_with("20")),
        "{written}"
    );
}

/// A search for a pod, an address or a rail finds all lines about it, and its end.
#[test]
fn every_line_says_for_whom_it_is_and_del_says_what_it_did() {
    let Some((host, pod)) = host("columns") else {
        return;
    };
    let file = host.path("log");
    let cycle = |format: &str| {
        fs::write(&file, "").unwrap();
        host.set_node(json!({"log": {"file": file, "level": "debug", "format": format}}));
        let call = |verb: &str| {
            let call = host.call(verb, "c1", &pod);
            call.var("CNI_ARGS", "K8S_POD_NAMESPACE=ai;K8S_POD_NAME=trainer-0")
                .run(&rail(0))
        };
        let mut stderr = call("ADD").ok().stderr;
        for verb in ["DEL", "DEL", "GC"] {
            stderr += &call(verb).ok().stderr;
        }
        (fs::read_to_string(&file).unwrap(), stderr)
    };

    let (text, stderr) = cycle("text");
    assert_eq!(text, stderr);
    let of_pod = |line: &&str| line.contains(" rail-0 ai/trainer-0 net1 ");
    let (ours, others): (Vec<_>, Vec<_>) = text.lines().partition(of_pod);
    assert!(
        others
            .iter()
            .all(|line| line.contains(" GC rail-0 - - -: ")),
        "{others:?}"
    );
    let wording: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("Z ").map(|(_, rest)| rest))
        .collect();
    golden::says(
        "plugins",
        "log of ADD, DEL, DEL and GC",
        host.steady(&wording.join("\n")),
    );
    let has = |what: &str| ours.iter().any(|line| line.contains(what));
    assert!(
        has(" info  rail-cni ADD rail-0 ai/trainer-0 net1 172.16.0.0: "),
        "{text}"
    );
    assert!(
        has(" info  rail-cni DEL rail-0 ai/trainer-0 net1 172.16.0.0: vf0 "),
        "{text}"
    );
    assert!(
        has(" info  rail-ipam DEL rail-0 ai/trainer-0 net1 172.16.0.0: pool rail-0: 172.16.0.0 "),
        "{text}"
    );
    assert!(
        has(" info  rail-cni DEL rail-0 ai/trainer-0 net1 -: "),
        "{text}"
    );

    let (json, stderr) = cycle("json");
    assert_eq!(json, stderr);
    for line in json
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
    {
        assert_eq!(line["network"], "rail-0", "{line}");
        assert!(
            line["verb"] == "GC" || (line["pod"] == "ai/trainer-0" && line["interface"] == "net1"),
            "{line}"
        );
    }
    assert!(
        json.contains(r#""address":"172.16.0.0""#) && json.contains(r#""container":"c1""#),
        "{json}"
    );

    let (text, journal) = cycle("journal");
    assert_eq!(text.lines().count(), journal.lines().count());
    for (line, told) in text.lines().zip(journal.lines()) {
        let (priority, told) = told.split_once('>').unwrap();
        assert!(["<3", "<4", "<6", "<7"].contains(&priority), "{priority}");
        assert!(
            line.starts_with("20") && line.ends_with(told),
            "{line} {told}"
        );
    }
    host.set_node(json!({"log": {"format": "xml"}}));
    let msg = host.cni("ADD", "c1", &pod, &rail(0)).msg();
    assert!(
        msg.contains("log.format") && msg.contains("journal"),
        "{msg}"
    );
}
