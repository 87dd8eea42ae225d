use super::*;
use crate::cni::GC_KEYS;
use crate::pool::allocation::tests::allocation;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

const PF: &str = "0000:1a:00.0";
const VF: &str = "0000:1a:00.2";

struct Bench {
    temp: tempfile::TempDir,
    node: Node,
}

/// A node with a VF of rail 3, and a pool of each family for it.
fn bench(policy: serde_json::Value) -> Bench {
    let temp = tempfile::tempdir().unwrap();
    let at = |path: &str| temp.path().join(path);
    for device in [PF, VF] {
        fs::create_dir_all(at(&format!(
            "sys/bus/pci/devices/{device}/net/n-{}",
            &device[11..]
        )))
        .unwrap();
        symlink(
            "mlx5_core",
            at(&format!("sys/bus/pci/devices/{device}/driver")),
        )
        .unwrap();
    }
    symlink(
        format!("../{PF}"),
        at(&format!("sys/bus/pci/devices/{VF}/physfn")),
    )
    .unwrap();
    let node = serde_json::json!({"nodeName": "n", "storeDir": at("s"), "runDir": at("r"), "sysfsRoot": at("sys"),
        "rails": [{"rail": 3, "pf": PF}], "policy": policy});
    let bench = Bench {
        node: serde_json::from_value(node).unwrap(),
        temp,
    };
    bench.plan("rail-3", "10.0.0.0/31", Some(3));
    bench.plan("rail-3-v6", "fd00::/127", Some(3));
    bench
}

fn device(claim: &str) -> Attachment {
    Attachment {
        container_id: claim.into(),
        ifname: "pci-0000-1a-00-2".into(),
    }
}

impl Bench {
    fn plan(&self, pool: &str, prefix: &str, rail: Option<u8>) {
        let allocation = Allocation {
            rail,
            ..allocation(prefix, None, &[])
        };
        self.write(pool, &allocation);
    }

    fn write(&self, pool: &str, allocation: &Allocation) {
        let directory = self.node.store_dir.join("n");
        std::fs::create_dir_all(&directory).unwrap();
        let text = serde_json::to_string(allocation).unwrap();
        std::fs::write(directory.join(pool).with_extension("json"), text).unwrap();
    }

    fn take(&self, claim: &str, pools: &[&str], ips: &[&str]) -> Result<Vec<String>> {
        self.take_of(claim, pools, ips, VF)
    }

    fn take_of(
        &self,
        claim: &str,
        pools: &[&str],
        ips: &[&str],
        function: &str,
    ) -> Result<Vec<String>> {
        let given = take(
            &self.node,
            Request {
                device: device(claim),
                claim: Claim {
                    name: Some(format!("ai/{claim}")),
                    function: function.to_owned(),
                },
                pod: Some("ai/trainer-0".to_owned()),
                pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
                requested: ips.iter().map(|ip| (ip.parse().unwrap(), None)).collect(),
            },
        )?;
        Ok(given
            .addresses
            .iter()
            .map(|(_, _, address, _)| address.to_string())
            .collect())
    }

    fn refused(&self, claim: &str, pools: &[&str], ips: &[&str]) -> String {
        format!("{:#}", self.take(claim, pools, ips).unwrap_err())
    }

    fn leases(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.temp.path().join("r/leases"));
        let paths = entries.into_iter().flatten().flatten();
        let leases = paths.map(|entry| entry.path());
        let mut leases: Vec<_> = leases.filter(|path| path.extension().is_some()).collect();
        leases.sort();
        leases
    }

    fn netdev_goes(&self) {
        fs::remove_dir_all(
            self.temp
                .path()
                .join(format!("sys/bus/pci/devices/{VF}/net")),
        )
        .unwrap();
    }
}

#[test]
fn a_device_of_a_claim_has_one_address_of_each_family_however_often_it_is_prepared() {
    let bench = bench(serde_json::json!({}));
    assert_eq!(bench.take("c1", &[], &[]).unwrap(), ["10.0.0.0", "fd00::"]);
    let before: Vec<_> = bench
        .leases()
        .iter()
        .map(|file| fs::read(file).unwrap())
        .collect();
    assert_eq!(before.len(), 2);
    // The pod has the device by now.
    bench.netdev_goes();
    assert_eq!(bench.take("c1", &[], &[]).unwrap(), ["10.0.0.0", "fd00::"]);
    assert_eq!(
        bench
            .leases()
            .iter()
            .map(|file| fs::read(file).unwrap())
            .collect::<Vec<_>>(),
        before
    );
    let other = bench.refused("c1", &["rail-3"], &["10.0.0.1"]);
    assert!(
        other.contains("holds 10.0.0.0 since") && other.contains("now requests 10.0.0.1"),
        "{other}"
    );
}

#[test]
fn what_a_killed_call_left_is_completed() {
    let bench = bench(serde_json::json!({}));
    bench.take("c1", &[], &[]).unwrap();
    let v6 = bench
        .leases()
        .into_iter()
        .find(|file| file.to_string_lossy().contains("fd00"));
    fs::remove_file(v6.unwrap()).unwrap();
    assert_eq!(bench.take("c1", &[], &[]).unwrap(), ["10.0.0.0", "fd00::"]);
    assert_eq!(bench.leases().len(), 2);
}

#[test]
fn the_other_one_is_refused_by_the_name_of_the_claim_and_a_reboot_frees_it() {
    let bench = bench(serde_json::json!({}));
    bench.take("c1", &["rail-3"], &["10.0.0.0"]).unwrap();
    let error = bench.take("c2", &["rail-3"], &["10.0.0.0"]).unwrap_err();
    assert_eq!(crate::error::code_of(&error), 11);
    let holder = "held by device pci-0000-1a-00-2 of pod ai/trainer-0 (resource claim ai/c1, UID c1) since 2";
    assert!(error.to_string().contains(holder), "{error}");
    let [file] = bench.leases().try_into().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replace(crate::files::boot_id().unwrap(), "another-boot"),
    )
    .unwrap();
    assert_eq!(
        bench.take("c2", &["rail-3"], &["10.0.0.0"]).unwrap(),
        ["10.0.0.0"]
    );
}

#[test]
fn a_claim_holds_its_device_while_the_lease_stands() {
    let bench = bench(serde_json::json!({}));
    bench.take("c1", &[], &[]).unwrap();
    bench.netdev_goes();
    assert_eq!(
        devices(&bench.node).unwrap(),
        HashSet::from([VF.to_owned()])
    );
    // A reboot ends the pod. A lease that cannot be read names no holder.
    for (file, with) in bench.leases().iter().zip(["another-boot", "\""]) {
        let text = fs::read_to_string(file).unwrap();
        fs::write(file, text.replace(crate::files::boot_id().unwrap(), with)).unwrap();
    }
    assert_eq!(devices(&bench.node).unwrap(), HashSet::new());
}

#[test]
fn no_verb_of_a_runtime_ends_the_lease_of_a_claim() {
    let bench = bench(serde_json::json!({}));
    bench.take("c1", &["rail-3"], &[]).unwrap();
    assert!(
        !crate::cni::is_identifier(lease::OF_CLAIMS),
        "a network could have this name: {GC_KEYS:?}"
    );
    // A DEL without a network, and a GC that keeps nothing.
    assert!(!assign::release(&bench.node, "", &device("c1")).unwrap());
    assign::collect(&bench.node, "rail-3", &Default::default()).unwrap();
    assert_eq!(bench.leases().len(), 1);
}

#[test]
fn a_device_in_a_pod_is_away_and_one_that_does_not_exist_is_not() {
    let bench = bench(serde_json::json!({}));
    let claim = |function: &str| Claim {
        name: None,
        function: function.to_owned(),
    };
    assert_eq!(claim(VF).is_away(&bench.node).unwrap(), None);
    assert_eq!(claim("0000:ff:00.0").is_away(&bench.node).unwrap(), None);
    bench.netdev_goes();
    let why = claim(VF).is_away(&bench.node).unwrap().unwrap();
    golden::says("plugins", "a device is with a pod", &why);
    assert!(why.contains(VF), "{why}");
    let error = bench.refused("c1", &[], &[]);
    assert_eq!(
        error, why,
        "a new claim gets no address for a device that another pod has"
    );
    fs::remove_file(
        bench
            .temp
            .path()
            .join(format!("sys/bus/pci/devices/{VF}/driver")),
    )
    .unwrap();
    assert_eq!(claim(VF).is_away(&bench.node).unwrap(), None);
}

#[test]
fn pools_and_devices_that_do_not_fit_are_refused() {
    let bench = bench(serde_json::json!({}));
    bench.plan("rail-4", "10.4.0.0/31", Some(4));
    let mut said = Vec::new();
    for (pools, ips, told) in [
        (
            &["rail-9"][..],
            &[][..],
            ["\"rail-9\"", "rail-3, rail-3-v6, rail-4"],
        ),
        (&["rail-4"], &[], ["pool rail-4 ", "rail 3"]),
        (&[], &["10.9.0.0"], ["10.9.0.0 ", "10."]),
    ] {
        let error = bench.refused("c1", pools, ips);
        assert!(told.iter().all(|part| error.contains(part)), "{error}");
        said.push(error);
    }
    golden::says("plugins", "a claim: pools that do not fit", said.join("\n"));
    bench.plan("rail-3-b", "10.3.0.0/31", Some(3));
    let error = bench.refused("c1", &[], &[]);
    assert!(error.contains("rail-3, rail-3-b, rail-3-v6"), "{error}");
    for (function, told) in [("0000:ff:00.0", "0000:ff:00.0"), ("../x", "\"../x\"")] {
        let error = bench
            .take_of("c1", &["rail-3"], &[], function)
            .unwrap_err()
            .to_string();
        assert!(error.contains(told), "{error}");
    }
    assert!(bench.leases().is_empty());
}

#[test]
fn the_policy_of_the_node_holds_for_claims() {
    let mut said = Vec::new();
    for (policy, told) in [
        (serde_json::json!({"rails": [1]}), "rails [1]"),
        (serde_json::json!({"pfs": ["0000:ff:00.0"]}), "PFs"),
        (serde_json::json!({"drivers": ["ice"]}), "mlx5_core"),
    ] {
        let error = bench(policy).refused("c1", &[], &[]);
        assert!(error.contains(told), "{error}");
        said.push(error);
    }
    golden::says("plugins", "a claim: the policy", said.join("\n"));
    let bench = bench(serde_json::json!({"vfsOnly": true}));
    let error = bench.take_of("c1", &[], &[], PF).unwrap_err().to_string();
    assert!(error.contains(PF), "{error}");
    assert!(bench.take("c1", &[], &[]).is_ok());
}

/// As ADD refuses it.
#[test]
fn a_pf_that_has_vfs_is_leased_nothing_unless_the_policy_allows_it() {
    for (policy, is_allowed) in [
        (serde_json::json!({}), false),
        (serde_json::json!({"pfsWithVfs": true}), true),
    ] {
        let bench = bench(policy);
        fs::write(
            bench
                .temp
                .path()
                .join(format!("sys/bus/pci/devices/{PF}/sriov_numvfs")),
            "1",
        )
        .unwrap();
        let taken = bench.take_of("c1", &[], &[], PF);
        assert_eq!(taken.is_ok(), is_allowed, "{taken:?}");
        if let Err(error) = taken {
            assert_eq!(crate::error::code_of(&error), 7);
        }
    }
}

#[test]
fn routes_that_another_rail_has_are_told_from_those_of_one_rail() {
    let bench = bench(serde_json::json!({}));
    for (pool, prefix, rail, own) in [
        ("rail-3", "10.0.0.0/31", 3, "10.0.0.0/16"),
        ("rail-4", "10.4.0.0/31", 4, "10.4.0.0/16"),
    ] {
        let mut one = Allocation {
            rail: Some(rail),
            ..allocation(prefix, None, &[])
        };
        one.routes = [own, "10.0.0.0/8"]
            .map(|dst| crate::pool::To {
                dst: dst.parse().unwrap(),
            })
            .to_vec();
        bench.write(pool, &one);
    }
    let request = Request {
        device: device("c1"),
        claim: Claim {
            name: None,
            function: VF.to_owned(),
        },
        pod: None,
        pools: vec!["rail-3".to_owned()],
        requested: Vec::new(),
    };
    let given = take(&bench.node, request).unwrap();
    assert_eq!(
        (given.rail, &given.addresses[0].3),
        (Some(3), &vec![false, true])
    );
}
