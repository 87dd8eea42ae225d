//! What the host and the pods have: links, addresses, routes, rules and firewall, as ip(8) and
//! nft(8) show it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::sandbox::DIR;
use crate::settings::Stop;

/// Runs ip(8).
pub fn ip(arguments: &str) -> Result<String, String> {
    ip_with(arguments, "")
}

/// Runs ip(8) with a text on stdin.
fn ip_with(arguments: &str, text: &str) -> Result<String, String> {
    let told = |error: std::io::Error| format!("ip {arguments}: {error}");
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(told)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read has ended, and says why.
        let _ = stdin.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(told)?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr)
            .trim()
            .replace('\n', " ");
        return Err(format!("this machine refuses ip {arguments}: {text}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The rules of nftables of this thread's namespace, each behind its table and chain; iptables-nft
/// writes there, too.
pub fn firewall() -> Result<Vec<String>, String> {
    let told = |error: &dyn std::fmt::Display| format!("nft list ruleset: {error}");
    let output = Command::new("nft")
        .args(["-s", "list", "ruleset"])
        .output()
        .map_err(|error| told(&error))?;
    if !output.status.success() {
        return Err(told(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    let mut within: Vec<&str> = Vec::new();
    let mut rules = Vec::new();
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line == "}" {
            within.pop();
            continue;
        }
        let name = line.trim_end_matches(" {");
        rules.push([&within[..], &[name]].concat().join(": "));
        if name != line {
            within.push(name);
        }
    }
    // The order of tables is that in which they were made.
    rules.sort();
    Ok(rules)
}

/// What a namespace has: links with their addresses, routes, rules.
pub fn of_namespace(select: &str, stays: &[String]) -> Result<Value, Stop> {
    // Each process costs more than what it finds out.
    let see = |family: &str, what: &str| -> Result<Vec<Value>, Stop> {
        let arguments = format!("{family} -json -details {select} -batch -");
        let text = ip_with(&arguments, what).map_err(Stop::LeftOut)?;
        let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let values: Vec<_> = values.filter_map(Result::ok).collect();
        match values.len() {
            3 => Ok(values),
            count => Err(Stop::LeftOut(format!(
                "ip {arguments} printed {count} lists for 3 commands"
            ))),
        }
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let four = see("", "addr show\nroute show table all\nrule show\n")?;
    let six = see(
        "-6",
        "route show table all proto static\nroute show table all proto boot\nrule show\n",
    )?;
    let mut links = BTreeMap::new();
    for link in list(&four[0]) {
        let name = link["ifname"].as_str().unwrap_or_default().to_owned();
        if stays.iter().any(|pattern| matches(pattern, &name)) {
            continue;
        }
        let mut altnames: Vec<_> = list(&link["altnames"])
            .iter()
            .map(Value::to_string)
            .collect();
        altnames.sort();
        // The kernel gives and takes IPv6's link-local address by itself.
        let addresses = list(&link["addr_info"])
            .into_iter()
            .filter(|one| one["scope"] != "link" || one["family"] == "inet");
        let addresses: Vec<_> = addresses
            .map(|one| {
                format!(
                    "{}/{}",
                    one["local"].as_str().unwrap_or_default(),
                    one["prefixlen"]
                )
            })
            .collect();
        let is_up = list(&link["flags"]).iter().any(|flag| flag == "UP");
        let what = json!({
            "mtu": link["mtu"], "mac": link["address"], "altnames": altnames, "up": is_up, "addresses": addresses,
            "kind": link["linkinfo"]["info_kind"], "promisc": link["promiscuity"], "allmulti": link["allmulti"],
        });
        links.insert(name, what);
    }
    let mut routes = Vec::new();
    for routes_of in [&four[1], &six[0], &six[1]] {
        for route in list(routes_of) {
            let of = |key: &str| {
                route[key]
                    .as_str()
                    .map_or_else(|| route[key].to_string(), str::to_owned)
            };
            // With the addresses, the kernel makes those of IPv6 when it comes to it.
            let is_of_kernel = of("dst").contains(':') && of("protocol") == "kernel";
            if !is_of_kernel && !stays.iter().any(|pattern| matches(pattern, &of("dev"))) {
                let keys = [
                    "dst", "gateway", "dev", "table", "type", "metric", "prefsrc",
                ];
                routes.push(
                    keys.map(of)
                        .iter()
                        .filter(|text| *text != "null")
                        .cloned()
                        .collect::<Vec<_>>()
                        .join(" "),
                );
            }
        }
    }
    routes.sort();
    let rules = |value: &Value| list(value).iter().map(Value::to_string).collect::<Vec<_>>();
    Ok(json!({"links": links, "routes": routes, "rules": [rules(&four[2]), rules(&six[2])]}))
}

/// What two looks in succession see.
pub fn settled(look: impl Fn() -> Result<Value, Stop>) -> Result<Value, Stop> {
    let mut seen = look()?;
    for _ in 0..100 {
        let again = look()?;
        if again == seen {
            return Ok(seen);
        }
        seen = again;
    }
    Err(Stop::LeftOut(
        "the links of this machine do not come to rest".to_owned(),
    ))
}

/// Is `text` what the pattern says: a name, or a beginning and `*`? A name is also that of a file
/// in any directory.
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern = pattern.replace("{DIR}", DIR);
    match pattern.strip_suffix('*') {
        Some(begin) => text.starts_with(begin),
        None => text == pattern || text.rsplit('/').next() == Some(&pattern),
    }
}

/// The first difference, in words.
pub fn difference(before: &Value, after: &Value) -> Option<String> {
    if before == after {
        return None;
    }
    let (Some(old), Some(new)) = (before.as_object(), after.as_object()) else {
        if let (Some(old), Some(new)) = (before.as_array(), after.as_array()) {
            let gone = old
                .iter()
                .find(|one| !new.contains(one))
                .map(|one| format!("{one} is gone"));
            let added = || {
                new.iter()
                    .find(|one| !old.contains(one))
                    .map(|one| format!("{one} is new"))
            };
            // Some of them are there more often, or in another order.
            return gone
                .or_else(added)
                .or_else(|| Some(format!("are {after}, and were {before}")));
        }
        return Some(format!("is {after}, and was {before}"));
    };
    for key in old.keys().chain(new.keys()) {
        let text = match (old.get(key), new.get(key)) {
            (Some(_), None) => Some("is gone".to_owned()),
            (None, Some(_)) => Some("is new".to_owned()),
            (Some(old), Some(new)) => difference(old, new),
            (None, None) => None,
        };
        if let Some(text) = text {
            return Some(format!("{key} {text}"));
        }
    }
    None
}
