//! What was found out, in the forms that people and CI read.

use std::fmt::Write as _;

use serde_json::json;

use crate::check::{Harm, Level};
use crate::checks::CHECK_SET;
use crate::description::VERSIONS;
use crate::run::{Gate, Judged, Outcome, Report};

/// The forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for people.
    Table,
    /// One line for each plugin, in Markdown.
    Scores,
    /// For CI systems.
    Junit,
    /// Everything.
    Json,
    /// A page for a browser.
    Html,
}

const LEVELS: [Level; 3] = [Level::Must, Level::Should, Level::Quality];

/// Writes the reports in this form. Those for CI systems have only the failures that count.
pub fn write(reports: &[Report], format: Format, gate: Gate) -> String {
    match format {
        Format::Table => reports.iter().map(table).collect::<Vec<_>>().join("\n"),
        Format::Scores => scores(reports),
        Format::Junit => junit(reports, gate),
        Format::Json => json_of(reports),
        Format::Html => html(reports),
    }
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "pass",
        Outcome::Fail => "FAIL",
        Outcome::Known => "known",
        Outcome::LeftOut => "left out",
    }
}

/// Failures of a level, those that are known among them, if anything of it was asked. Of a plugin
/// whose ADD fails there is nothing to count.
fn failures(report: &Report, level: Level) -> String {
    let is_asked = |one: &Judged| one.level == level && one.outcome != Outcome::LeftOut;
    if report.refusal.is_some() || !report.checks.iter().any(is_asked) {
        return "-".to_owned();
    }
    let (new, known) = (
        report.count(Some(level), Outcome::Fail),
        report.count(Some(level), Outcome::Known),
    );
    if known == 0 {
        new.to_string()
    } else {
        format!("{} ({known} known)", new + known)
    }
}

/// Failures that lose or double an address, cut a pod off or leak, whatever their level.
fn harmful(report: &Report) -> usize {
    let is_harmful = |one: &&Judged| one.outcome == Outcome::Fail && one.harm <= Harm::Leak;
    report.checks.iter().filter(is_harmful).count()
}

fn table(report: &Report) -> String {
    let mut text = format!("{}: {}\n", report.plugin, report.program);
    for one in &report.checks {
        let _ = writeln!(
            text,
            "{:8}  {:7}  {:8}  {:40}  {}",
            word(one.outcome),
            one.level,
            one.harm,
            one.name,
            one.asks
        );
        let fails = matches!(one.outcome, Outcome::Fail | Outcome::Known);
        let key = if fails { "seen" } else { "why" };
        let says = if one.says.is_empty() {
            String::new()
        } else {
            format!("{} ({}: {})", one.says, one.tags, one.address)
        };
        let of_failure = [
            ("says", &*says),
            ("but", one.why),
            ("known", &one.known),
            ("show", &one.show),
        ];
        let lines = of_failure.into_iter().filter(|_| fails);
        for (key, value) in [(key, &*one.seen)]
            .into_iter()
            .chain(lines)
            .filter(|(_, value)| !value.is_empty())
        {
            let _ = writeln!(text, "          {key}: {value}");
        }
    }
    let name = format!("{}, by {}", report.plugin, report.specification);
    let out = report.count(None, Outcome::LeftOut);
    let asked = report.checks.len() - out;
    let _ = match &report.refusal {
        Some(refusal) => writeln!(text, "{name}: nothing could be judged, for {refusal}"),
        None => {
            let of_level = LEVELS
                .map(|level| format!("{level} {}", failures(report, level)))
                .join(", ");
            writeln!(
                text,
                "{name}: failures: {of_level}; of them with harm: {}; {asked} checks asked, {out} left out",
                harmful(report)
            )
        }
    };
    text
}

fn scores(reports: &[Report]) -> String {
    let mut text = "| plugin | by | MUST failures | SHOULD failures | quality failures | with harm | left out | what does not hold |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n".to_owned();
    for report in reports {
        let of = |level: Level, outcome: Outcome| {
            let names = report
                .checks
                .iter()
                .filter(|one| one.level == level && one.outcome == outcome);
            names
                .map(|one| match one.harm {
                    Harm::Address | Harm::Pod | Harm::Leak => {
                        format!("`{}` ({})", one.name, one.harm)
                    }
                    Harm::Misleads | Harm::Cosmetic => format!("`{}`", one.name),
                })
                .collect::<Vec<_>>()
                .join(", ")
        };
        let mut parts = Vec::new();
        for level in LEVELS {
            for (outcome, mark) in [(Outcome::Fail, ""), (Outcome::Known, ", known")] {
                let names = of(level, outcome);
                if !names.is_empty() {
                    parts.push(format!("{level}{mark}: {names}"));
                }
            }
        }
        let reason = || report.checks.first().map(|one| one.seen.clone());
        let reason = report
            .refusal
            .clone()
            .or_else(|| if report.is_asked() { None } else { reason() });
        let parts = reason.unwrap_or_else(|| parts.join(". "));
        let of_level = LEVELS.map(|level| failures(report, level)).join(" | ");
        let (name, by, out) = (
            &report.plugin,
            &report.specification,
            report.count(None, Outcome::LeftOut),
        );
        let harm = if report.refusal.is_some() || !report.is_asked() {
            "-".to_owned()
        } else {
            harmful(report).to_string()
        };
        let _ = writeln!(
            text,
            "| {name} | {by} | {of_level} | {harm} | {out} | {parts} |"
        );
    }
    text
}

fn junit(reports: &[Report], gate: Gate) -> String {
    let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n".to_owned();
    for report in reports {
        let counts = |one: &&Judged| gate.counts(one);
        let failed = report.checks.iter().filter(counts).count();
        let skipped = report.checks.len() - report.count(None, Outcome::Pass) - failed;
        let name = escaped(&report.plugin);
        let _ = writeln!(
            text,
            "<testsuite name=\"{name}\" tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\">",
            report.checks.len()
        );
        let versions = [
            ("cni-conformance", env!("CARGO_PKG_VERSION").to_owned()),
            ("check-set", CHECK_SET.to_string()),
            ("specification", report.specification.clone()),
        ];
        text.push_str("<properties>");
        for (name, value) in versions {
            let _ = write!(
                text,
                "<property name=\"{name}\" value=\"{}\"/>",
                escaped(&value)
            );
        }
        text.push_str("</properties>\n");
        for one in &report.checks {
            let _ = write!(
                text,
                "<testcase classname=\"{name}.{}\" name=\"{}\">",
                one.level, one.name
            );
            let seen = escaped(&one.seen);
            let _ = match one.outcome {
                Outcome::Pass => Ok(()),
                Outcome::Fail if !gate.counts(one) => {
                    write!(
                        text,
                        "<skipped message=\"{} ({}) does not count; {seen}\"/>",
                        one.level, one.harm
                    )
                }
                Outcome::Fail => {
                    write!(
                        text,
                        "<failure message=\"{seen}\">{}</failure>",
                        escaped(&one.replay)
                    )
                }
                Outcome::Known => {
                    write!(
                        text,
                        "<skipped message=\"known: {}; {seen}\"/>",
                        escaped(&one.known)
                    )
                }
                Outcome::LeftOut => write!(text, "<skipped message=\"{seen}\"/>"),
            };
            text.push_str("</testcase>\n");
        }
        text.push_str("</testsuite>\n");
    }
    text.push_str("</testsuites>\n");
    text
}

fn json_of(reports: &[Report]) -> String {
    let plugins: Vec<_> = reports.iter().map(json_of_one).collect();
    let tool = json!({"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
    let newest = VERSIONS.last();
    format!(
        "{:#}\n",
        json!({"tool": tool, "checkSet": CHECK_SET, "specification": newest, "plugins": plugins})
    )
}

fn json_of_one(report: &Report) -> serde_json::Value {
    let mut value = json!(report);
    if let Some(refusal) = &report.refusal {
        value["refusal"] = json!(refusal);
        return value;
    }
    let counts = LEVELS.into_iter().map(|level| {
        let count = |outcome| report.count(Some(level), outcome);
        let of_level = json!({
            "pass": count(Outcome::Pass), "fail": count(Outcome::Fail),
            "known": count(Outcome::Known), "left-out": count(Outcome::LeftOut),
        });
        (level.to_string(), of_level)
    });
    value["counts"] = counts.collect();
    value
}

/// In HTML and XML. Of control characters XML has none but these.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

const STYLE: &str = "body{font:15px/1.4 sans-serif;margin:2em;max-width:80em}table{border-collapse:collapse}\
td,th{padding:.2em .6em;border-bottom:1px solid #ccc;text-align:left;vertical-align:top}\
.fail{color:#a00;font-weight:bold}.known{color:#960}.left-out{color:#777}.pass{color:#070}\
pre{white-space:pre-wrap;background:#f4f4f4;padding:.6em}";

fn html(reports: &[Report]) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>CNI conformance</title><style>{STYLE}</style></head><body>\n<h1>CNI conformance</h1>\n"
    );
    text.push_str(
        "<table><tr><th>plugin<th>MUST failures<th>SHOULD failures<th>quality failures<th>left out</tr>\n",
    );
    for report in reports {
        let name = escaped(&report.plugin);
        let of_level = LEVELS.map(|level| failures(report, level)).join("<td>");
        let _ = writeln!(
            text,
            "<tr><td><a href=\"#{name}\">{name}</a><td>{of_level}<td>{}</tr>",
            report.count(None, Outcome::LeftOut)
        );
    }
    text.push_str("</table>\n");
    for report in reports {
        let name = escaped(&report.plugin);
        let _ = writeln!(
            text,
            "<h2 id=\"{name}\">{name}</h2>\n<table><tr><th>outcome<th>level<th>harm<th>check<th>what is asked</tr>"
        );
        for one in &report.checks {
            let class = word(one.outcome).to_lowercase().replace(' ', "-");
            let _ = write!(
                text,
                "<tr><td class=\"{class}\">{}<td>{}<td>{}<td><code>{}</code><td>{}",
                word(one.outcome),
                one.level,
                one.harm,
                one.name,
                escaped(one.asks)
            );
            for value in [&*one.seen, one.says, one.why, &one.known] {
                if !value.is_empty() {
                    let _ = write!(text, "<br>{}", escaped(value));
                }
            }
            if !one.replay.is_empty() {
                let _ = write!(
                    text,
                    "<details><summary>how to see it</summary><pre>{}</pre></details>",
                    escaped(&one.replay)
                );
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</table>\n");
    }
    text.push_str("</body></html>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Profile;

    fn report() -> Report {
        let judged = |name, level, outcome, seen: &str| Judged {
            name,
            level,
            harm: Harm::Cosmetic,
            profile: Profile::Spec,
            asks: "what is asked",
            says: "",
            tags: String::new(),
            address: String::new(),
            why: "",
            outcome,
            seen: seen.to_owned(),
            known: if outcome == Outcome::Known {
                "an issue # 7\u{1b}".to_owned()
            } else {
                String::new()
            },
            show: if outcome == Outcome::Fail {
                "show <it>".to_owned()
            } else {
                String::new()
            },
            replay: if outcome == Outcome::Fail {
                "first\nshow <it>\n".to_owned()
            } else {
                String::new()
            },
        };
        let checks = vec![
            judged("one", Level::Must, Outcome::Pass, ""),
            judged("two", Level::Must, Outcome::Fail, "<\"&\u{1}\n# x"),
            judged("three", Level::Should, Outcome::Known, "as ever"),
            judged("four", Level::Quality, Outcome::LeftOut, "no device"),
        ];
        Report {
            plugin: "a<b".to_owned(),
            program: "/x".to_owned(),
            specification: "1.1.0".to_owned(),
            warnings: Vec::new(),
            checks,
            fault: None,
            refusal: None,
            unjudged: None,
            few: None,
        }
    }

    #[test]
    fn scores_count_failures() {
        let line = scores(&[report()]).lines().nth(2).unwrap().to_owned();
        assert_eq!(
            line,
            "| a<b | 1.1.0 | 1 | 1 (1 known) | - | 0 | 1 | MUST: `two`. SHOULD, known: `three` |"
        );
    }

    #[test]
    fn a_plugin_whose_add_fails_has_no_score() {
        let report = Report {
            refusal: Some("its ADD fails: no".to_owned()),
            ..report()
        };
        let line = scores(std::slice::from_ref(&report))
            .lines()
            .nth(2)
            .unwrap()
            .to_owned();
        assert_eq!(
            line,
            "| a<b | 1.1.0 | - | - | - | - | 1 | its ADD fails: no |"
        );
        assert!(json_of_one(&report)["counts"].is_null());
    }

    #[test]
    fn a_report_says_by_what_it_was_made() {
        let all: serde_json::Value = serde_json::from_str(&json_of(&[report()])).unwrap();
        assert_eq!(all["tool"]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(
            (&all["checkSet"], &all["specification"]),
            (&json!(CHECK_SET), &json!("1.1.0"))
        );
        assert_eq!(all["plugins"][0]["specification"], "1.1.0");
        let junit = junit(&[report()], GATE);
        assert!(
            junit.contains("<property name=\"specification\" value=\"1.1.0\"/>"),
            "{junit}"
        );
    }

    #[test]
    fn what_a_plugin_prints_is_no_markup() {
        for format in [Format::Junit, Format::Html] {
            let text = write(&[report()], format, GATE);
            assert!(
                text.contains("&lt;&quot;&amp;\u{fffd}") && text.contains("show &lt;it&gt;"),
                "{text}"
            );
            assert!(!text.contains('\u{1}') && !text.contains("a<b"), "{text}");
        }
    }

    const GATE: Gate = Gate {
        level: Level::Must,
        harm: Some(Harm::Leak),
    };

    #[test]
    fn a_failure_counts_by_its_level_or_its_harm() {
        let mut report = report();
        for (level, harm, counted) in [
            (Level::Must, Harm::Cosmetic, 1),
            (Level::Should, Harm::Misleads, 0),
            (Level::Quality, Harm::Cosmetic, 0),
            (Level::Quality, Harm::Leak, 1),
            (Level::Quality, Harm::Address, 1),
        ] {
            report.checks[1].level = level;
            report.checks[1].harm = harm;
            let junit = junit(std::slice::from_ref(&report), GATE);
            assert_eq!(junit.matches("<failure").count(), counted, "{junit}");
            let totals = format!("failures=\"{counted}\" skipped=\"{}\"", 3 - counted);
            assert!(junit.contains(&totals), "{junit}");
        }
    }
}
