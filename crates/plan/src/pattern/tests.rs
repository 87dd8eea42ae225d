use super::*;
use golden::has;
use proptest::prelude::*;

const KNOWN: [&str; 3] = ["rail", "plane", "host"];

fn rendered(pattern: &str, numbers: [u64; 3]) -> String {
    Pattern::parse(pattern, &KNOWN).unwrap().render(&numbers)
}

#[test]
fn numbers_are_counted_as_the_pattern_says() {
    for (pattern, name) in [
        ("rail-{rail}-plane-{plane}", "rail-7-plane-1"),
        ("rail-{rail+1}", "rail-8"),
        ("r{rail:03}", "r007"),
        ("h{host:01}", "h37"),
        ("swp{host/2+1}s{host%2}", "swp19s1"),
        ("swp{host*2}", "swp74"),
        ("swp{host*4/8%16+1:04}x", "swp0003x"),
        ("{host}", "37"),
        ("fixed", "fixed"),
    ] {
        assert_eq!(rendered(pattern, [7, 1, 37]), name, "{pattern}");
    }
    assert_eq!(
        rendered("{rail*999999+999999}", [u64::MAX, 0, 0]),
        u64::MAX.to_string()
    );
}

#[test]
fn what_is_wrong_with_a_pattern_is_told() {
    let mut said = Vec::new();
    for (pattern, told) in [
        ("", ""),
        ("w{", "\"w{\": "),
        ("w}", "\"w}\": "),
        ("w{rail{plane}}", "\"w{rail{plane}}\": "),
        ("{}", "{} …{rail}, {plane}, {host}"),
        ("{hots}", "{hots} …{rail}, {plane}, {host}…host?"),
        ("{Rail}", "rail?"),
        ("{su}", "{su} "),
        ("{rail-1}", "{rail-1} "),
        ("{rail+1/2}", "as in {rail/2+1:02}"),
        ("{rail+}", "{rail+} "),
        ("{rail/0}", "{rail/0} "),
        ("{rail%0}", "{rail%0} "),
        ("{rail*0}", "{rail*0} "),
        ("{rail+1000000}", "{rail+1000000} "),
        ("{rail:2}", "{rail:2} "),
        ("{rail:00}", "{rail:00} "),
        ("{rail:010}", "{rail:010} "),
        ("{rail:0+2}", "{rail:0+2} "),
        ("{rail }", "{rail } "),
    ] {
        let error = Pattern::parse(pattern, &KNOWN).unwrap_err().to_string();
        assert!(has(&error, told), "{pattern}: {error}");
        said.push(error);
    }
    golden::says("plan", "fabric file: patterns", said.join("\n"));
}

proptest! {
    #[test]
    fn no_pattern_makes_it_panic(
        pattern in "([a-z{}:*/%+0-9é]|rail|\\{rail){0,12}", number in any::<u64>(),
    ) {
        if let Ok(pattern) = Pattern::parse(&pattern, &KNOWN) {
            pattern.render(&[number, 0, number]);
        }
    }
}
