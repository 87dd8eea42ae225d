use super::*;
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
    assert_eq!(rendered("{rail*999999+999999}", [u64::MAX, 0, 0]), u64::MAX.to_string());
}

#[test]
fn what_is_wrong_with_a_pattern_is_told() {
    for (pattern, told) in [
        ("", "the pattern is empty"),
        ("w{", "\"w{\": unbalanced brace"),
        ("w}", "unbalanced brace"),
        ("w{rail{plane}}", "unbalanced brace"),
        ("{}", "{} is not one of {rail}, {plane}, {host}"),
        ("{hots}", "{hots} is not one of {rail}, {plane}, {host}: did you mean host?"),
        ("{Rail}", "did you mean rail?"),
        ("{su}", "{su} is not one of"),
        ("{rail-1}", "{rail-1} cannot be parsed: behind rail may follow, in this order"),
        ("{rail+1/2}", "as in {rail/2+1:02}"),
        ("{rail+}", "cannot be parsed"),
        ("{rail/0}", "cannot be parsed"),
        ("{rail%0}", "cannot be parsed"),
        ("{rail*0}", "cannot be parsed"),
        ("{rail+1000000}", "cannot be parsed"),
        ("{rail:2}", "cannot be parsed"),
        ("{rail:00}", "cannot be parsed"),
        ("{rail:010}", "cannot be parsed"),
        ("{rail:0+2}", "cannot be parsed"),
        ("{rail }", "cannot be parsed"),
    ] {
        let error = Pattern::parse(pattern, &KNOWN).unwrap_err().to_string();
        assert!(error.contains(told), "{pattern}: {error}");
    }
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
