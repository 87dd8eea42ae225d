use super::*;
use proptest::prelude::*;
use serde::Deserialize as _;
use serde_json::json;

fn values(text: &str) -> Vec<Value> {
    parse("f", text.as_bytes())
        .unwrap()
        .into_iter()
        .map(|document| document.value)
        .collect()
}

fn one(text: &str) -> Document {
    parse("f", text.as_bytes()).unwrap().remove(0)
}

fn error(text: impl AsRef<[u8]>) -> String {
    parse("f", text.as_ref()).unwrap_err().to_string()
}

#[test]
fn what_is_nearly_json_is_read_as_kubectl_reads_it() {
    for (text, values) in [
        (
            "{kind: Pod, spec: {a: 'b'}}\n",
            vec![json!({"kind": "Pod", "spec": {"a": "b"}})],
        ),
        (
            "{\"a\": 1}\n---\n{\"b\": 2}\n",
            vec![json!({"a": 1}), json!({"b": 2})],
        ),
    ] {
        let documents = parse("f.yaml", text.as_bytes()).unwrap();
        assert_eq!(
            documents
                .iter()
                .map(|one| one.value.clone())
                .collect::<Vec<_>>(),
            values
        );
        assert!(documents.iter().all(|one| one.format == Format::Yaml));
        // A runtime and jq do not.
        for file in ["f.json", "f.conf", "f.conflist"] {
            assert!(
                parse(file, text.as_bytes())
                    .unwrap_err()
                    .to_string()
                    .contains("JSON: "),
                "{text}"
            );
        }
    }
    // Neither of both.
    assert!(error("{a: [}").contains(": JSON: "));
}

#[test]
fn every_value_has_its_line() {
    let yaml = "# a comment\n---\nz:\n  y: 1\n  \"x.example.com/w\": [a,\n    b]\nlist:\n- k: 1\n  l: 2\n-\n  k: 3\n\
                ...\n--- # next\nspec:\n    config: 1\n";
    let json = "\n{\n \"z\": {\n  \"y\": 1\n ,\"x.example.com/w\": [\"a\",\n\"b\"]},\n \"list\":[\n {\"k\":1,\n \"l\"\n:\n2},\n{\n\"k\": 3}\n]}\n";
    for (text, expected) in [
        (yaml, [3, 4, 5, 5, 6, 7, 8, 8, 9, 11, 11]),
        (json, [3, 4, 5, 5, 6, 7, 8, 8, 9, 12, 13]),
    ] {
        let document = one(text);
        let paths = [
            "z",
            "z.y",
            "z.x.example.com/w",
            "z.x.example.com/w[0]",
            "z.x.example.com/w[1]",
            "list",
            "list[0]",
            "list[0].k",
            "list[0].l",
            "list[1]",
            "list[1].k",
        ];
        for (path, line) in paths.into_iter().zip(expected) {
            assert!(document.root().get(path).is_some(), "{path}");
            assert_eq!(document.root().place(path).line, line, "{path}: {text}");
        }
    }
    let second = &parse("f", yaml.as_bytes()).unwrap()[1];
    assert_eq!(second.root().place("spec.config").to_string(), "f:15");
    assert_eq!(second.root().place("spec.missing.more").line, 14);
    assert!(second.root().get("spec.missing").is_none());
    assert_eq!(second.root().get("spec").unwrap().place("config").line, 15);
}

#[test]
fn parts_know_their_lines() {
    let document = one("a:\n- b: 1\n- b: x\n  c: 2\n");
    let items: Vec<_> = document.root().get("a").unwrap().items().collect();
    assert_eq!(items[1].place("c").line, 4);
    let entries: Vec<_> = items[1]
        .entries()
        .map(|(key, part)| (key, part.place("").line))
        .collect();
    assert_eq!(entries, [("b", 3), ("c", 4)]);
    let list = |path| {
        document
            .root()
            .decode::<Vec<BTreeMap<String, u8>>>(path)
            .unwrap_err()
            .to_string()
    };
    assert!(
        list("a").starts_with("f:3: a[1].b: invalid type: string"),
        "{}",
        list("a")
    );
    assert!(
        list("d").starts_with("f:1: d: invalid type: null"),
        "{}",
        list("d")
    );
    let inner = items[1].decode::<bool>("").unwrap_err().to_string();
    assert!(inner.starts_with("f:3: invalid type: map"), "{inner}");
}

#[test]
fn json_in_a_text_has_the_lines_of_the_file() {
    let json = "{ \"name\": \"r\",\n  \"mtu\": 9000,\n  \"bad\": }";
    let block = |style: &str| {
        format!(
            "spec:\n  config: {style}\n    {}\n",
            json.replace('\n', "\n    ")
        )
    };
    for (text, line) in [
        (block("|"), 5),
        (block("|-"), 5),
        (block("|\n"), 6),
        (block(">"), 2),
        (
            format!("spec:\n  config: '{}'", json.replace('\n', "\n    ")),
            2,
        ),
        (
            format!(
                "spec:\n  config:\n    |\n    {}",
                json.replace('\n', "\n    ")
            ),
            6,
        ),
        (json!({"spec": {"config": json}}).to_string(), 1),
    ] {
        let document = one(&text);
        let config = document.root().get("spec.config").unwrap();
        let fault = config.json().unwrap_err().to_string();
        assert!(
            fault.starts_with(&format!("f:{line}: JSON: expected value")),
            "{fault}: {text}"
        );
        let document = one(&text
            .replace("bad\": ", "bad\": 1")
            .replace("bad\\\": ", "bad\\\": 1"));
        let inner = document.root().get("spec.config").unwrap().json().unwrap();
        assert_eq!(inner.root().place("bad").line, line, "{text}");
        assert_eq!(inner.value["mtu"], 9000);
    }
}

#[test]
fn scalars_are_those_of_yaml_1_2() {
    let yaml = "[yes, no, on, ~, null, '', true, False, 1, -1, +1, 0, 010, 0x1F, 0o17, 1.5, -1e3, .5, 1., .inf, \
                18446744073709551615, 0.0.0.0/0, '::/0', 02:00:00:00:00:01, 172.16.0.0/31, 1_000, 2026-01-01, \
                \"1\", 'true', -, -x, ., fd00::1, =, !]";
    let yaml = yaml.replace(", !]", "]").replace(" -,", "");
    let expected = json!([
        "yes",
        "no",
        "on",
        null,
        null,
        "",
        true,
        false,
        1,
        -1,
        1,
        0,
        "010",
        31,
        15,
        1.5,
        -1000.0,
        0.5,
        1.0,
        ".inf",
        18_446_744_073_709_551_615_u64,
        "0.0.0.0/0",
        "::/0",
        "02:00:00:00:00:01",
        "172.16.0.0/31",
        "1_000",
        "2026-01-01",
        "1",
        "true",
        "-x",
        ".",
        "fd00::1",
        "="
    ]);
    assert_eq!(values(&format!("- {yaml}")), [json!([expected])]);
    assert_eq!(
        values("a: !!str 1\n".replace("!!str ", "").as_str()),
        [json!({"a": 1})]
    );
    assert_eq!(values("1: a\n~: b\n"), [json!({"1": "a", "~": "b"})]);
    assert_eq!(
        values("a: |\n  x\n  y\nb: >-\n  x\n  y\nc: \"\\u00e4\\n\"\nd:\n"),
        [json!({"a": "x\ny\n", "b": "x y", "c": "ä\n", "d": null})]
    );
}

/// Text that kubectl, libyaml and Go read, and YAML 1.2 does not.
#[test]
fn a_quoted_text_may_begin_at_the_left_margin() {
    let config = "{\n\"mtu\": 9000\n\n}";
    let single = format!("spec:\n  config: '{config}'\n  last: 1\n");
    let double = format!(
        "spec:\n  config: \"{}\"\n  last: 1\n",
        config.replace('"', "\\\"")
    );
    for text in [
        single.clone(),
        double,
        single.replace("\n\"mtu", "\n\t\"mtu"),
        single.replace('\n', "\r\n"),
    ] {
        let document = one(&text);
        assert_eq!(
            document.value["spec"]["config"], "{ \"mtu\": 9000\n}",
            "{text}"
        );
        assert_eq!(document.root().place("spec.config").line, 2, "{text}");
        assert_eq!(document.root().place("spec.last").line, 6, "{text}");
    }
    // Not where the text has no end.
    assert!(error("a: '{\n---\nb: 1\n").starts_with("f:1:4: YAML: "));
}

#[test]
fn merge_keys_and_the_tags_of_yaml_itself_are_read() {
    let text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  y: 3\n  <<: *a\nd:\n  <<: [*b, *a]\n  w: 4\n\"<<\": 5\n";
    let document = one(text);
    assert_eq!(document.value["c"], json!({"x": 1, "y": 3}));
    assert_eq!(document.value["d"], json!({"w": 4, "x": 1, "y": 2, "z": 2}));
    assert_eq!(document.value["<<"], 5);
    let line = |path| document.root().place(path).line;
    assert_eq!((line("c.y"), line("c.x"), line("d.z")), (4, 1, 2));
    assert_eq!(
        values("- !!str 1\n- !!int \"1\"\n- ! 1\n- !!map {a: !!seq [!!null '']}\n- !!bool true\n"),
        [json!(["1", 1, "1", {"a": [null]}, true])]
    );
}

#[test]
fn documents_line_ends_and_marks() {
    assert_eq!(
        values("a: 1\n---\n---\n# nothing\n---\nb: 2\n...\n---\n{c: 3}"),
        [json!({"a": 1}), json!({"b": 2}), json!({"c": 3})]
    );
    for text in [
        "\u{feff}a: 1\n",
        "\r\na: 1\r\n",
        "%YAML 1.2\n---\na: 1\n",
        "\u{feff}{\"a\": 1}",
        " {\"a\":\r\n1 }",
    ] {
        assert_eq!(values(text), [json!({"a": 1})], "{text:?}");
    }
    assert_eq!(one("a: 1\r\nb: 2\r\n").root().place("b").line, 2);
    assert_eq!(values(""), [] as [Value; 0]);
    assert_eq!(values("# nothing\n"), [] as [Value; 0]);
    let twice = one("a: &x {k: 1}\nb: *x\nc:\n- *x\n");
    assert_eq!(
        twice.value,
        json!({"a": {"k": 1}, "b": {"k": 1}, "c": [{"k": 1}]})
    );
    assert_eq!(
        (twice.root().place("b").line, twice.root().place("b.k").line),
        (2, 1)
    );
}

#[test]
fn a_fault_of_a_text_has_its_line_and_column() {
    let text = "apiVersion: v1\nspec:\n  a: [1,\n  b: 2\n";
    let mut said = Vec::new();
    for (text, told) in [
        (text.to_owned(), "f:3:6: YAML: "),
        ("a:\n\tb: 1\n".to_owned(), "f:2:"),
        ("a: 1\n b: 2\n".to_owned(), "f:2:"),
        ("a: 'x\n".to_owned(), "f:1:4: YAML: "),
        ("a: 1\nb: 2\na: 3\n".to_owned(), "f:3:1: YAML: "),
        ("{\"a\": 1,\n \"a\": 2}".to_owned(), "f:2:5: JSON: "),
        ("x:\n  <<: 1\n".to_owned(), "f:2:7: YAML: <<: "),
        ("x: *a\n".to_owned(), "f:1:4: YAML: "),
        ("x: &a [*a]\n".to_owned(), "f:1:8: YAML: "),
        ("x: !!binary aGk=\n".to_owned(), "f:1:13: YAML: "),
        ("x: !secret y\n".to_owned(), "f:1:12: YAML: "),
        ("[a, b]: c\n".to_owned(), "f:1:"),
        ("? [a, b]\n: c\n".to_owned(), "f:1:3: YAML: "),
        ("{\"a\": [1, 2\n".to_owned(), "f:2: JSON: "),
        ("{\n\"a\": tru }".to_owned(), "f:2:9: JSON: "),
        ("{\"a\": 1}\n{\"b\": 1}\n".to_owned(), "f:2:1: JSON: "),
        ("a: 1\nb: \0\n".to_owned(), "f:2:4: "),
    ] {
        let error = error(&text);
        assert!(
            error.starts_with("f:") && error.contains(told),
            "{told}: {error}"
        );
        said.push(error);
    }
    for (bytes, told) in [
        (&b"\x7fELF\x02\x01\x01\0\0\0\0\0"[..], "f:1:8: "),
        (b"\x1f\x8b\x08\0\0", "f:1:2: "),
        (b"\xff\xfea\0:\0", "f:1:1: "),
        (b"a: 1\nb: \xe4\n", "f:2:4: "),
    ] {
        assert!(error(bytes).starts_with(told), "{}", error(bytes));
        said.push(error(bytes));
    }
    golden::says("plan", "YAML and JSON", said.join("\n"));
}

#[test]
fn aliases_depth_and_size_do_no_harm() {
    let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..12 {
        let alias = vec![format!("*a{}", level - 1); 10].join(",");
        laughs.push_str(&format!("a{level}: &a{level} [{alias}]\n"));
    }
    let wide = format!(
        "a: &a [{}]\nb: [{}]\n",
        "x,".repeat(3000),
        "*a,".repeat(3000)
    );
    let mut deep = "a0: &a0 [x]\n".to_owned();
    for level in 1..200 {
        deep.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    for text in [
        laughs,
        wide,
        deep,
        "[".repeat(5_000_000),
        format!("a: {}", "[".repeat(5_000_000)),
        format!("a: {}", "{a: ".repeat(1_000_000)),
        format!("a: {}", "{? ".repeat(1_000_000)),
        "- ".repeat(1_000_000),
        "? ".repeat(1_000_000),
        "a: &a ".repeat(100_000),
        (0..2000)
            .map(|depth| format!("{}a:\n", " ".repeat(depth)))
            .collect(),
    ] {
        error(text);
    }
    let many = "- {}\n".repeat(1000);
    assert_eq!(values(&many)[0].as_array().unwrap().len(), 1000);
}

#[test]
fn only_regular_files_are_read() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name).display().to_string();
    nix::unistd::mkfifo(
        temp.path().join("fifo").as_path(),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    File::create(at("large"))
        .unwrap()
        .set_len(MAX_FILE as u64 + 1)
        .unwrap();
    let files = [
        at("missing"),
        at(""),
        at("fifo"),
        at("large"),
        "/dev/zero".to_owned(),
    ];
    let mut said = Vec::new();
    for file in &files {
        let error = read(file).unwrap_err().to_string();
        assert!(error.starts_with(file), "{error}");
        said.push(error);
    }
    golden::says("plan", "files that are not read", said.join("\n"));
}

/// YAML as people write it.
fn written() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~ä]{0,12}".prop_map(Value::from),
        "[a-z\n :#]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-z. /]{1,8}", inner, 0..5)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

#[test]
fn a_list_is_taken_item_by_item_and_not_kept() {
    let text = |json: &str| Text {
        file: "t.json".into(),
        bytes: json.as_bytes().to_vec(),
    };
    let taken = |json: &str| {
        let mut taken = Vec::new();
        let document = text(json).without("links", &mut |number, part| {
            taken.push(format!("{} {number} {}", part.place(""), part.value));
        });
        (document.unwrap().value, taken)
    };
    let (rest, items) = taken("{\"a\": [1],\n\"links\": [[1],\n{\"links\": [2]}], \"b\": 3}");
    assert_eq!(rest, json!({"a": [1], "links": [], "b": 3}));
    assert_eq!(items, ["t.json:2 0 [1]", "t.json:3 1 {\"links\":[2]}"]);
    let (rest, items) = taken("{\"content\": {\"links\": [1, 2], \"x\": {\"links\": [3]}}}");
    assert_eq!(rest, json!({"content": {"links": [], "x": {"links": [3]}}}));
    assert_eq!(items, ["t.json:1 0 1", "t.json:1 1 2"]);
    for other in [
        "{\"links\": {\"links\": [1]}}",
        "[{\"links\": [1]}]",
        "[[1]]",
        "1",
        "{\"links\": 1}",
    ] {
        let (rest, items) = taken(other);
        assert_eq!(
            (rest, items),
            (serde_json::from_str(other).unwrap(), vec![]),
            "{other}"
        );
    }
    let fault = text("{\"links\": [1,\n2")
        .without("links", &mut |_, _| ())
        .unwrap_err();
    assert!(
        fault.to_string().starts_with("t.json:2:1: JSON: "),
        "{fault}"
    );
}

/// Every value whose key or text stands in a line of its own is said to be there.
fn compare(part: Part, text: &[&str], path: &str) {
    for (key, inner) in part.entries() {
        let line = inner.place("").line;
        assert!(
            text[line as usize - 1].contains(key),
            "{path}.{key}: {line}: {text:?}"
        );
        compare(inner, text, &format!("{path}.{key}"));
    }
    for (index, inner) in part.items().enumerate() {
        compare(inner, text, &format!("{path}[{index}]"));
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[-\\[\\]{}:,&*!|>?'\"#%@ a-c0-9\n\t\r]{0,80}", bytes: Vec<u8>) {
        let _ = parse("f", text.as_bytes());
        let _ = parse("f", &bytes);
    }

    #[test]
    fn what_is_written_is_read(value in written()) {
        let wrapped = json!({"value": value});
        let json = serde_json::to_string_pretty(&wrapped).unwrap();
        prop_assert_eq!(&one(&json).value, &wrapped);
        let lines: Vec<&str> = json.lines().collect();
        compare(one(&json).root(), &lines, "");
        let yaml = yaml_serde::to_string(&wrapped).unwrap();
        let document = one(&yaml);
        prop_assert_eq!(&document.value, &wrapped, "{}", yaml);
        compare(document.root(), &yaml.lines().collect::<Vec<_>>(), "");
        // JSON is YAML.
        prop_assert_eq!(&one(&format!("---\n{json}")).value, &wrapped);
    }

    #[test]
    fn what_another_parser_reads_is_read_alike(text in "([ ]{0,4}(- )?([a-c]|'[a-c ]'|\"[a-c]\"|[1-9]{1,3})?(: |:|, )?(\\[[a-c1, ]{0,4}\\]|\\{[a-c]: [a-c1]\\}|[a-c]{1,3})?( #[a-c])?\n){1,6}") {
        let other = yaml_serde::Deserializer::from_str(&text).map(Value::deserialize).collect::<Result<Vec<_>, _>>();
        let ours = parse("f", text.as_bytes());
        if let (Ok(other), Ok(ours)) = (other, ours) {
            let other: Vec<_> = other.into_iter().filter(|value| !value.is_null()).collect();
            let ours: Vec<_> = ours.into_iter().map(|document| document.value).collect();
            prop_assert_eq!(ours, other, "{}", text);
        }
    }
}
