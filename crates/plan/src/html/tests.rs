use serde_json::json;

use super::*;
use crate::plan::tests::{cabled, plan};
use crate::scheme::{Family, HostLink, Mode};

fn text(plan: &Plan) -> String {
    write(plan).unwrap().remove(0).text
}

/// The script's data.
fn data_of(text: &str) -> Value {
    let (_, from) = text
        .split_once("<script type=\"application/json\" id=\"plan\">")
        .unwrap();
    serde_json::from_str(from.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn every_link_is_there_with_both_ends() {
    let plan = plan(Mode::None, Family::Dual, &cabled());
    let data = data_of(&text(&plan));
    assert_eq!(
        data["leaves"],
        json!(["leaf-su1-r1", "leaf-su1-r2", "leaf-su2-r1", "leaf-su2-r2"])
    );
    assert_eq!(data["groups"], json!(["su0", "su1"]));
    assert_eq!(
        data["networks"][1],
        json!({"name": "rail-1", "rail": 1, "colour": 1})
    );
    let link = json!([
        "172.18.1.60/31 fd02:0:100:11e::1/64",
        "172.18.1.61 fd02:0:100:11e::2",
        [[3, "swp31s0", "rail1", 9000, null]]
    ]);
    assert_eq!(data["nodes"][1][0], "worker-gpu-62");
    assert_eq!(data["nodes"][1][1], 1);
    assert_eq!(data["nodes"][1][2][1], link);
    assert_eq!((&data["mtu"], &data["vrf"]), (&json!(true), &json!(false)));
}

#[test]
fn a_picture_has_a_square_for_each_leaf_and_a_wire_for_each_port() {
    let count = |text: &str, what: &str| text.matches(what).count();
    let one = text(&plan(Mode::None, Family::Ipv4, &cabled()));
    assert_eq!(
        (
            count(&one, "<rect class=\"leaf"),
            count(&one, "class=\"wire"),
            count(&one, "<svg")
        ),
        (4, 4, 2)
    );
    assert!(
        one.contains("<title>leaf-su2-r2</title>") && one.contains("leaf-su1-r1 to leaf-su1-r2")
    );
    // A plane is a line of leaves in the columns of their rails.
    for mode in [Mode::Swplb, Mode::Hwplb] {
        let second = cabled().into_iter().map(|mut link| {
            let cable = &mut link.cable;
            (cable.leaf, cable.interface) = (
                cable.leaf.take().map(|name| name + "-p2"),
                Some(format!("p2r{}", link.rail)),
            );
            HostLink { plane: 1, ..link }
        });
        let text = text(&plan(
            mode,
            Family::Ipv4,
            &cabled().into_iter().chain(second).collect::<Vec<_>>(),
        ));
        assert_eq!(count(&text, "<rect class=\"leaf"), 8, "{mode:?}");
        assert!(
            text.contains(">plane 1</text>")
                && text.contains(">r1</text>")
                && !text.contains(">r2</text>"),
            "{mode:?}"
        );
    }
    // Leaves that no source names.
    let mut unknown = plan(Mode::None, Family::Ipv4, &cabled());
    unknown
        .pools
        .iter_mut()
        .for_each(|pool| pool.cables.clear());
    let text = text(&unknown);
    assert_eq!(
        (
            count(&text, "<rect class=\"leaf"),
            count(&text, "<rect class=\"none\"")
        ),
        (0, 4)
    );
}

/// A page goes by mail, and names in it come from others. That of a node would be refused before.
#[test]
fn the_page_loads_nothing_and_no_name_becomes_code() {
    const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\"'<!--";
    let mut plan = plan(Mode::None, Family::Ipv4, &cabled());
    for pool in &mut plan.pools {
        pool.name = HOSTILE.to_owned();
        pool.cables
            .iter_mut()
            .flatten()
            .for_each(|cable| cable.leaf = Some(HOSTILE.to_owned()));
    }
    plan.positions.clear();
    let text = text(&plan);
    assert_eq!(text.matches("<script").count(), 2);
    assert_eq!(text.matches("</script").count(), 2);
    assert!(!text.contains("<img") && !text.contains("<!--"));
    for outside in [
        "http://", "https://", "src=\"", "@import", "url(", "<link", "<iframe",
    ] {
        assert!(!text.contains(outside), "{outside}");
    }
    assert!(text.contains("default-src 'none'"));
}

#[test]
fn many_groups_are_drawn_small_and_very_many_are_only_counted() {
    let fabric = |sus: usize| {
        let text = format!(
            "fabric: spectrum-x\ntiers: 3\nrails: 1\nsus: {sus}\nhostsPerSU: 1\npods: 2\nnodeName: n{{node}}\n"
        );
        crate::fabric::read(&crate::document::parse("f", text.as_bytes()).unwrap()[..1]).unwrap()
    };
    let few = text(&fabric(6));
    assert!(few.contains("<div class=\"cards\">") && few.contains("<h3>pod 1</h3>"));
    let many = text(&fabric(200));
    assert!(many.contains("<div class=\"cards small\">") && many.contains(">144 "));
    assert_eq!(many.matches("<svg").count(), MAX_DRAWN);
    assert_eq!(data_of(&many)["nodes"].as_array().unwrap().len(), 400);
}
