//! The help of railctl beyond clap's: the verbs in groups, and examples at the end of each verb's
//! help.

use clap::Command;

/// The verbs by purpose, in the order of `railctl --help` and of docs/operations.md.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Look (changes nothing)",
        &[
            "status", "check", "doctor", "wait", "leases", "devices", "cables", "lint",
        ],
    ),
    ("Plan", &["discover", "plan", "import"]),
    ("Act", &["preflight", "vfs", "reap", "release", "lease"]),
    ("In a pod", &["env"]),
];

/// Examples of each verb, which a test parses.
const EXAMPLES: [(&str, &[&str]); 17] = [
    ("status", &["railctl status", "railctl status --html"]),
    ("check", &["railctl check", "railctl check --output json"]),
    ("doctor", &["railctl doctor", "railctl doctor --rdma"]),
    ("wait", &["railctl wait --timeout 600"]),
    ("leases", &["railctl leases"]),
    ("devices", &["railctl devices"]),
    ("cables", &["railctl cables"]),
    (
        "discover",
        &[
            "railctl discover",
            "railctl discover --write /etc/rail-cni/node.json",
        ],
    ),
    (
        "lint",
        &["railctl lint nads.yaml", "railctl lint /etc/cni/net.d"],
    ),
    (
        "plan",
        &[
            "railctl plan fabric.yaml",
            "railctl plan topology.json --tiers 2 --to cidrpool --out pools",
            "railctl plan --from netplan hosts/ --pool-name 'rail-{rail+1}' --to cidrpool",
            "railctl plan fabric.yaml --to store --diff",
        ],
    ),
    ("import", &["railctl import pools.yaml"]),
    (
        "preflight",
        &[
            "railctl preflight",
            "railctl preflight --plan plan.csv --for 60",
        ],
    ),
    ("vfs", &["railctl vfs --check", "railctl vfs"]),
    (
        "reap",
        &["railctl reap --dry-run", "railctl reap ai/trainer-0"],
    ),
    (
        "release",
        &[
            "railctl release --address 172.16.1.60",
            "railctl release --pool rail-3 --dead",
        ],
    ),
    (
        "lease",
        &["railctl lease --claim 1df9fd4b --device net1 --function 0000:1a:00.2"],
    ),
    (
        "env",
        &[
            "eval \"$(railctl env --format sh)\"",
            "railctl env --check --pid 42",
        ],
    ),
];

/// Columns of the longest verb.
const WIDTH_OF_NAMES: usize = 9;

/// Adds the groups and the examples.
pub fn complete(mut command: Command) -> Command {
    for (verb, examples) in EXAMPLES {
        command = command.mut_subcommand(verb, |subcommand| with_examples(subcommand, examples));
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        groups(&command)
    );
    command.help_template(template)
}

fn with_examples(command: Command, examples: &[&str]) -> Command {
    let mut text = String::new();
    if let Some(help) = command.get_after_help() {
        text = format!("{help}\n\n");
    }
    text += "Examples:";
    for example in examples {
        text += &format!("\n  {example}");
    }
    command.after_help(text)
}

/// A heading for each group, and a line or two for each verb.
fn groups(command: &Command) -> String {
    let indent = " ".repeat(2 + WIDTH_OF_NAMES + 2);
    let options = textwrap::Options::new(80).subsequent_indent(&indent);
    let mut text = String::new();
    for (heading, verbs) in GROUPS {
        text += &format!("{heading}:\n");
        for verb in verbs {
            let Some(subcommand) = command.find_subcommand(verb) else {
                continue;
            };
            let about = subcommand.get_about().map(ToString::to_string);
            let line = format!("  {verb:<WIDTH_OF_NAMES$}  {}", about.unwrap_or_default());
            text += &textwrap::fill(&line, &options);
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::cli;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_verb_is_in_one_group_and_has_an_example() {
        let command = cli::command();
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let verbs: BTreeSet<&str> = shown.map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, verbs)| *verbs)
            .copied()
            .collect();
        assert_eq!(grouped.len(), verbs.len());
        assert_eq!(grouped.into_iter().collect::<BTreeSet<_>>(), verbs);
        let with_example: BTreeSet<&str> = EXAMPLES.iter().map(|(verb, _)| *verb).collect();
        assert_eq!(with_example, verbs);
    }

    #[test]
    fn every_example_parses() {
        for (verb, examples) in EXAMPLES {
            assert!(!examples.is_empty(), "{verb}");
            for example in examples {
                let words = example
                    .trim_start_matches("eval \"$(")
                    .trim_end_matches(")\"")
                    .split_whitespace()
                    .map(|word| word.trim_matches('\''));
                let matches = cli::command().try_get_matches_from(words);
                let matches = matches.unwrap_or_else(|error| panic!("{example}: {error}"));
                assert_eq!(matches.subcommand_name(), Some(verb), "{example}");
            }
        }
    }

    #[test]
    fn help_ends_with_examples_and_fits_into_80_columns() {
        let mut command = cli::command().term_width(80);
        let help = command.render_help().to_string();
        for (heading, _) in GROUPS {
            assert!(help.contains(&format!("\n{heading}:\n")), "{help}");
        }
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for (verb, examples) in EXAMPLES {
            let subcommand = command.find_subcommand_mut(verb).unwrap();
            let help = subcommand.render_help().to_string();
            let last = examples.last().unwrap();
            assert!(help.trim_end().ends_with(last), "{help}");
        }
    }
}
