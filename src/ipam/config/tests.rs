use super::*;
use crate::cni::Args;
use proptest::prelude::*;
use serde_json::json;

fn network(config: Value) -> Network {
    Network::parse(
        config.to_string().into_bytes(),
        Args::default(),
        vec![],
        &NETWORK,
        crate::cni::Strictness::Strict,
    )
    .unwrap()
}

fn pools(ipam: Value) -> Result<Vec<String>> {
    Config::parse(&network(json!({"name": "net", "ipam": ipam}))).map(|config| config.pools)
}

#[test]
fn a_pool_is_named_as_ours_or_as_nv_ipams_or_not_at_all() {
    assert_eq!(
        pools(json!({"type": "rail-ipam", "pool": "rail-0"})).unwrap(),
        ["rail-0"]
    );
    assert_eq!(
        pools(json!({"poolName": "rail-0", "poolType": "CIDRPool"})).unwrap(),
        ["rail-0"]
    );
    assert_eq!(pools(json!({"PoolName": "a", "pool": "a"})).unwrap(), ["a"]);
    assert_eq!(
        pools(json!({"type": "rail-ipam", "daemonSocket": "x"})).unwrap(),
        [""; 0]
    );
    assert_eq!(pools(json!({"pool": "a, b"})).unwrap(), ["a", "b"]);
}

#[test]
fn a_pool_that_cannot_be_meant_is_refused_with_code_7() {
    for ipam in [
        json!({"pool": "a", "poolName": "b"}),
        json!({"pool": "a", "poolType": "ippool"}),
        json!({"pool": "a,a"}),
        json!({"pool": "a,b,c"}),
        json!({"pool": "a,"}),
        json!({"pool": "../a"}),
        json!({"pool": "a".repeat(201)}),
        json!({"pool": 1}),
        json!({"pool": "a,b", "cidr": "10.0.0.0/8", "perNodeNetworkPrefix": 31}),
        json!({"cidr": "10.0.0.0/8"}),
        json!([]),
        json!(null),
    ] {
        let error = pools(ipam.clone()).unwrap_err();
        assert_eq!(crate::error::code_of(&error), 7, "{ipam}: {error:#}");
    }
}

#[test]
fn keys_of_a_pool_in_place_are_taken_in_any_letter_case() {
    let config =
        |ipam: Value| Config::parse(&network(json!({"name": "net", "ipam": ipam}))).unwrap();
    let spelt = json!({"cidr": "10.0.0.0/24", "perNodeNetworkPrefix": 30, "gatewayIndex": 1,
        "routes": [{"dst": "10.0.0.0/8"}], "exclusions": [{"startIP": "10.0.0.2", "endIP": "10.0.0.2"}],
        "perNodeExclusions": [{"startIndex": 0, "endIndex": 0}],
        "staticAllocations": [{"nodeName": "a", "prefix": "10.0.0.0/30", "gateway": "10.0.0.1"}]});
    let otherwise = json!({"CIDR": "10.0.0.0/24", "PerNodeNetworkPrefix": 30, "gatewayindex": 1,
        "Routes": [{"Dst": "10.0.0.0/8"}], "Exclusions": [{"StartIP": "10.0.0.2", "ENDIP": "10.0.0.2"}],
        "PerNodeExclusions": [{"StartIndex": 0, "endindex": 0}],
        "staticallocations": [{"NodeName": "a", "Prefix": "10.0.0.0/30", "GATEWAY": "10.0.0.1"}]});
    assert_eq!(config(otherwise).inline, config(spelt).inline);
}

#[test]
fn a_request_hides_those_below_it_and_odd_shapes_do_no_harm() {
    let ask = |config: Value| requested(&network(config)).map(|list| list.len());
    let both = json!({"name": "n", "runtimeConfig": {"IPs": ["10.0.0.1/31", "10.0.0.2"]},
        "args": {"cni": {"ips": ["10.0.0.9"]}}});
    assert_eq!(ask(both).unwrap(), 2);
    // nv-ipam's plugin panics on these.
    for args in [
        json!({}),
        json!({"other": 1}),
        json!({"cni": null}),
        json!({"cni": []}),
        json!(7),
    ] {
        assert_eq!(ask(json!({"name": "n", "args": args})).unwrap(), 0);
    }
    assert_eq!(
        ask(json!({"name": "n", "runtimeConfig": {"ips": null}})).unwrap(),
        0
    );
    assert_eq!(ask(json!({"name": "n", "runtimeConfig": null})).unwrap(), 0);
    for bad in [json!(7), json!("10.0.0.1"), json!([{"ips": ["10.0.0.1"]}])] {
        let error = ask(json!({"name": "n", "runtimeConfig": bad})).unwrap_err();
        let expected = format!("runtimeConfig: {bad} is not a JSON object");
        assert!(format!("{error:#}").contains(&expected), "{error:#}");
    }
    for bad in [
        json!("10.0.0.1"),
        json!([1]),
        json!(["x"]),
        json!(["10.0.0.1/33"]),
    ] {
        assert!(ask(json!({"name": "n", "runtimeConfig": {"ips": bad}})).is_err());
    }
}

proptest! {
    #[test]
    fn no_section_makes_it_panic(key in "(pool|poolName|poolType|cidr|routes|exclusions|staticAllocations)",
        value in "[\\[\\]{}\":,0-9a-z./ ]{0,40}", text: String) {
        let value = serde_json::from_str(&value).unwrap_or(Value::String(text));
        let _ = pools(json!({key: value, "perNodeNetworkPrefix": 31}));
    }
}
