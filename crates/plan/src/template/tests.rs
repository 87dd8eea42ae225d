use std::collections::BTreeSet;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::*;
use crate::plan::tests::{cabled, checked};
use crate::scheme::{Family, HostLink, Mode};

/// The page of leaf-su2-r1, with rail 0 of worker-gpu-62.
fn page(template: &Template, family: Family, links: &[HostLink]) -> String {
    let (plan, pools) = checked(Mode::None, family, links);
    template.write(&plan, &pools).unwrap().swap_remove(2).text
}

fn template(source: &str) -> Template {
    Template::new("leaf.cfg.j2", source, None).unwrap()
}

fn error(source: &str) -> String {
    let (plan, pools) = checked(Mode::None, Family::Ipv4, &cabled());
    let error = template(source).write(&plan, &pools).unwrap_err();
    error.to_string()
}

fn with_vrf(vrf: &str) -> Vec<HostLink> {
    let mut links = cabled();
    for link in &mut links {
        link.cable.vrf = Some(vrf.into());
    }
    links
}

#[test]
fn nvue_has_a_file_of_commands_for_each_leaf() {
    let (plan, pools) = checked(Mode::None, Family::Dual, &cabled());
    let files = Template::nvue().unwrap().write(&plan, &pools).unwrap();
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
    let expected = r"# leaf-su2-r1: the ports of hosts
# Commands are those of Cumulus Linux up to 5.14. From 5.15 on it is `ipv4 address`, `ipv6 address` and `vrf`:
#   sed -E 's/ ip address ([0-9.]+\/)/ ipv4 address \1/; s/ ip address / ipv6 address /; s/ ip vrf / vrf /'
# Ports that are split are so already, and none of them advertises itself as a router, which is the default.
nv set interface swp31s0 description worker-gpu-62:rail0
nv set interface swp31s0 link mtu 9216
nv set interface swp31s0 ip address 172.16.1.61/31
nv set interface swp31s0 ip address fd02:0:0:11e::2/64
# nv config apply
";
    assert_eq!(files[2].text, expected);
}

#[test]
fn a_description_without_an_interface_is_the_node() {
    let mut links = cabled();
    links[1].cable.interface = None;
    let page = page(&Template::nvue().unwrap(), Family::Ipv4, &links);
    assert!(page.contains(" description worker-gpu-62\n"), "{page}");
}

/// The command in the head of the file, to be run before the file goes to 5.15.
#[test]
fn the_command_in_the_head_changes_each_command_that_5_15_renamed() {
    let links = with_vrf("tenant-1");
    let text = page(&Template::nvue().unwrap(), Family::Dual, &links);
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

/// `swp1-2` is two ports to NVUE, and both would get the address; `et-0/0/0:0` is Juniper's.
#[test]
fn a_port_that_nvue_reads_as_several_or_as_none_is_refused() {
    for port in ["swp1", "swp64", "swp1s0", "swp12s3"] {
        assert!(is_cumulus_port(port), "{port}");
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
        let (plan, pools) = checked(Mode::None, Family::Ipv4, &links);
        let error = Template::nvue()
            .unwrap()
            .write(&plan, &pools)
            .unwrap_err()
            .to_string();
        let problem = format!("port {port} of leaf-su1-r1 ");
        assert!(error.contains(&problem), "{error}");
        assert!(error.contains("--template"), "{error}");
    }
}

/// The links with ports of SONiC.
fn sonic(mut links: Vec<HostLink>) -> Vec<HostLink> {
    for link in &mut links {
        link.cable.port = Some(format!("Ethernet{}", link.host * 4));
    }
    links
}

#[test]
fn sonic_has_an_entry_for_the_port_and_for_each_address() {
    let links = sonic(cabled());
    let page = page(&Template::sonic().unwrap(), Family::Dual, &links);
    let expected = r#"{
  "PORT": {
    "Ethernet120": {"mtu": "9000"}
  },
  "INTERFACE": {
    "Ethernet120": {},
    "Ethernet120|172.16.1.61/31": {},
    "Ethernet120|fd02:0:0:11e::2/64": {}
  }
}
"#;
    assert_eq!(page, expected);
}

#[test]
fn sonic_has_no_port_table_without_an_mtu_of_the_plan() {
    let mut links = sonic(cabled());
    links[1].cable.mtu = None;
    let page = page(&Template::sonic().unwrap(), Family::Ipv4, &links);
    let tables: Value = serde_json::from_str(&page).unwrap();
    let expected = json!({"INTERFACE": {"Ethernet120": {}, "Ethernet120|172.16.1.61/31": {}}});
    assert_eq!(tables, expected);
}

#[test]
fn sonic_binds_a_port_to_its_vrf() {
    let links = sonic(with_vrf("Vrf-1"));
    let page = page(&Template::sonic().unwrap(), Family::Ipv4, &links);
    let tables: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(tables["VRF"], json!({"Vrf-1": {}}));
    assert_eq!(
        tables["INTERFACE"]["Ethernet120"],
        json!({"vrf_name": "Vrf-1"})
    );
}

/// sonic-interface.yang: INTERFACE_LIST has `name`, INTERFACE_IPPREFIX_LIST `name|ip-prefix`, whose
/// name must be in INTERFACE_LIST. sonic-port.yang: a name has 1 to 128 characters.
#[test]
fn keys_of_sonic_have_the_form_of_its_yang_models() {
    let fabric = include_str!("../../../../conf/fabric.yaml")
        .replace("swp{host/2+1}s{host%2}", "Ethernet{host*4}")
        .replace("family: ipv4", "family: dual");
    let documents = crate::document::parse("fabric.yaml", fabric.as_bytes()).unwrap();
    let mut plan = crate::fabric::read(&documents).unwrap();
    let pools = plan.check().unwrap();
    let files = Template::sonic().unwrap().write(&plan, &pools).unwrap();
    assert_eq!(files.len(), 16);
    for file in files {
        let tables: Value = serde_json::from_str(&file.text).unwrap();
        let interfaces = tables["INTERFACE"].as_object().unwrap();
        let mut names = BTreeSet::new();
        let mut prefixes = 0;
        for key in interfaces.keys() {
            match key.split_once('|') {
                Some((name, prefix)) => {
                    assert!(interfaces.contains_key(name), "{key}");
                    let prefix: IpNet = prefix.parse().unwrap();
                    assert_ne!(prefix.prefix_len(), prefix.max_prefix_len(), "{key}");
                    prefixes += 1;
                }
                None => {
                    assert!(is_sonic_port(key), "{key}");
                    names.insert(key.as_str());
                }
            }
        }
        assert_eq!((names.len(), prefixes), (32, 64), "{}", file.name);
        let mtus = tables["PORT"].as_object().unwrap();
        assert!(mtus.keys().all(|name| names.contains(name.as_str())));
    }
}

#[test]
fn sonic_refuses_names_that_its_yang_models_do() {
    for (port, vrf, remedy) in [
        ("swp1s0", None, "--template"),
        ("etp1a", None, "--template"),
        ("Ethernet01", None, "--template"),
        ("Ethernet0.100", None, "--template"),
        ("Ethernet0", Some("tenant-1"), "must begin with Vrf"),
    ] {
        let mut links = sonic(cabled());
        links[0].cable.port = Some(port.into());
        links[0].cable.vrf = vrf.map(str::to_owned);
        let (plan, pools) = checked(Mode::None, Family::Ipv4, &links);
        let error = Template::sonic()
            .unwrap()
            .write(&plan, &pools)
            .unwrap_err()
            .to_string();
        assert!(error.contains(vrf.unwrap_or(port)), "{error}");
        assert!(error.contains(remedy), "{error}");
    }
}

#[test]
fn a_template_has_all_variables_that_the_documents_list() {
    let source = "\
{{ version }} {{ number }} {{ leaf }}
{% for port in ports %}
{{ port.port }} {{ port.node }} {{ port.interface }} {{ port.mtu }} {{ port.rail }} {{ port.plane is none }} {{ port.vrf is none }}
{% for address in port.addresses %}
{{ address.family }} {{ address.pool }} {{ address.address }} {{ address.gateway }} {{ address.prefix }} {{ address.prefixLength }}
{% endfor %}
{% endfor %}
";
    let expected = "\
1 2 leaf-su2-r1
swp31s0 worker-gpu-62 rail0 9000 0 True True
ipv4 rail-0 172.16.1.60 172.16.1.61 172.16.1.60/31 31
ipv6 rail-0-v6 fd02:0:0:11e::1 fd02:0:0:11e::2 fd02:0:0:11e::/64 64
";
    assert_eq!(page(&template(source), Family::Dual, &cabled()), expected);
}

#[test]
fn a_file_is_named_after_leaf_and_template() {
    let (plan, pools) = checked(Mode::None, Family::Ipv4, &cabled());
    for (file, name) in [
        ("site/eos.j2", "leaf-su1-r1.eos"),
        ("eos.cfg.j2", "leaf-su1-r1.eos.cfg"),
        ("eos", "leaf-su1-r1.eos"),
        ("site.d/eos", "leaf-su1-r1.eos"),
    ] {
        let template = Template::new(file, "", None).unwrap();
        assert_eq!(template.write(&plan, &pools).unwrap()[0].name, name);
    }
}

#[test]
fn text_is_written_as_it_is_and_not_as_html_or_json() {
    let template = Template::new("leaf.json.j2", "{{ leaf }}<&>{{ '<&>' }}\n", None).unwrap();
    let page = page(&template, Family::Ipv4, &cabled());
    assert_eq!(page, "leaf-su2-r1<&><&>\n");
}

#[test]
fn an_unknown_variable_is_an_error_with_line_and_known_ones() {
    let error = error("{{ leaf }}\n{{ ports[0].nodename }}\n");
    golden::says("plan", "--template: an unknown variable", &error);
    for fact in ["leaf.cfg.j2:2: ", "leaf-su1-r1", "nodename", "prefixLength"] {
        assert!(error.contains(fact), "{fact}: {error}");
    }
}

#[test]
fn null_is_not_written_as_a_word() {
    let error = error("\n{{ ports[0].vrf }}");
    golden::says("plan", "--template: null", &error);
    assert!(error.contains("leaf.cfg.j2:2: "), "{error}");
}

#[test]
fn a_syntax_error_has_its_line() {
    let error = Template::new("leaf.cfg.j2", "!\n{% for port %}", None).unwrap_err();
    golden::says("plan", "--template: a syntax error", &error);
    assert!(error.to_string().contains("leaf.cfg.j2:2: "), "{error}");
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let error = error(source);
    golden::says("plan", "--template: too much work", &error);
    assert!(error.contains("leaf.cfg.j2:1: "), "{error}");
}
