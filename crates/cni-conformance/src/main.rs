//! cni-conformance: judges any CNI plugin by the CNI specification, in namespaces of its own.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Parser, ValueEnum as _};
use cni_conformance::baseline::{self, Baseline};
use cni_conformance::check::{Check, Harm, Level, Profile};
use cni_conformance::checks;
use cni_conformance::description::{Description, Kind, VERSIONS};
use cni_conformance::look::firewall;
use cni_conformance::report::{self, Format};
use cni_conformance::run::{Gate, Judged, Manner, Report, judge};
use cni_conformance::sandbox;
use cni_conformance::settings::Settings;

const AFTER: &str = "\
Exit status: 0 no failure that counts (--level, --harm), 1 there is one, or ADD fails, or changes \
    nothing that can be judged, 2 usage error, or the plugin or a \
    line of its description cannot be executed, 3 this machine lacks namespaces, iproute2, or a device \
    that a plugin needs. Failures that the description lists as known do not count.

Run it as root, or as any user who may create user namespaces. Each check has network namespaces of its \
    own, and finds /run, /dev/shm, /etc/cni and /var/lib/cni empty (/var/lib, if there is no \
    /var/lib/cni). A plugin sees no process of the host, but can write to other directories. Processes \
    that it leaves behind are killed.";

/// Checks CNI plugins against the CNI specification, each check in namespaces of its own.
#[derive(Debug, Parser)]
#[command(version, after_help = AFTER)]
struct Arguments {
    /// Descriptions of plugins: README.md of this program has the keys
    #[arg(long, value_name = "FILE", num_args = 1.., required_unless_present_any = ["conf", "list"])]
    describe: Vec<PathBuf>,
    /// Network configuration, instead of a description, for a plugin that needs no device
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "describe",
        requires = "plugin"
    )]
    conf: Option<PathBuf>,
    /// Kind of plugin, with --conf
    #[arg(long, default_value = "main", value_parser = ["main", "ipam"])]
    kind: String,
    /// Plugin to run, instead of the one in CNI_PATH
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// CNI_PATH: directories of the plugins that the configuration names
    #[arg(long, value_name = "DIRECTORIES")]
    path: Option<String>,
    /// Checks to run
    #[arg(
        long,
        value_name = "PROFILES",
        value_enum,
        value_delimiter = ',',
        default_value = "spec"
    )]
    profile: Vec<Profile>,
    /// Only checks whose name contains this, from any profile
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// No checks whose name contains this
    #[arg(long, value_name = "PATTERN")]
    except: Vec<String>,
    /// Match whole names with --only and --except
    #[arg(long)]
    exactly: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Least binding level whose failures count, in the exit status and as failures in junit
    #[arg(long, value_enum, default_value = "must")]
    level: Level,
    /// Least harm whose failures count, whatever their level: address, pod, leak, misleads,
    /// cosmetic, or none. Checks of that harm are run whatever their profile
    #[arg(long, value_name = "HARM", default_value = "leak")]
    harm: LeastHarm,
    /// Ignore failures in this earlier JSON report; list new, fixed and missing ones on stderr
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Count failures whose cause is libcni's skel, too, in plugins that are built on it
    #[arg(long)]
    no_skel_baseline: bool,
    /// Write a script that reproduces each failure to this directory
    #[arg(long, value_name = "DIRECTORY")]
    replay: Option<PathBuf>,
    /// Where to write junit.xml, report.json, scores.md, and a page for each plugin
    #[arg(long, value_name = "DIRECTORY")]
    reports: Option<PathBuf>,
    /// Exit with 1 if a description hides everything or lists a known failure that no longer occurs
    #[arg(long)]
    strict: bool,
    /// Time limit of a call, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    limit: u64,
    /// Time limit of a check, in seconds; one that takes longer is left out
    #[arg(long, value_name = "SECONDS", default_value_t = 240)]
    check_limit: u64,
    /// Checks to run at the same time [default: four per processor, or sixteen if calls mostly wait]
    #[arg(long, value_name = "COUNT")]
    jobs: Option<usize>,
    /// List the checks
    #[arg(long)]
    list: bool,
    /// Tell no progress on stderr
    #[arg(long, short)]
    quiet: bool,
    /// It is in its namespaces
    #[arg(long, hide = true)]
    inside: bool,
}

/// A harm, or none.
#[derive(Clone, Copy, Debug)]
struct LeastHarm(Option<Harm>);

impl FromStr for LeastHarm {
    type Err = String;

    fn from_str(text: &str) -> Result<LeastHarm, String> {
        match text {
            "none" => Ok(LeastHarm(None)),
            text => {
                <Harm as clap::ValueEnum>::from_str(text, false).map(|harm| LeastHarm(Some(harm)))
            }
        }
    }
}

impl Arguments {
    fn gate(&self) -> Gate {
        Gate {
            level: self.level,
            harm: self.harm.0,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let is_meant = |check: &Check, patterns: &[String]| {
        patterns.iter().any(|one| {
            if arguments.exactly {
                check.name == one
            } else {
                check.name.contains(one)
            }
        })
    };
    let checks: Vec<Check> = checks::all()
        .into_iter()
        .filter(|check| arguments.only.is_empty() || is_meant(check, &arguments.only))
        .filter(|check| !is_meant(check, &arguments.except))
        .collect();
    let ended = if checks.is_empty() {
        Err((2, "no check is left: --list names them".to_owned()))
    } else if arguments.list {
        print(&list(&checks)).map(|()| 0)
    } else {
        run(&arguments, &checks)
    };
    match ended {
        Ok(status) => ExitCode::from(status),
        Err((status, reason)) => {
            let _ = writeln!(std::io::stderr(), "cni-conformance: {reason}");
            ExitCode::from(status)
        }
    }
}

fn print(text: &str) -> Result<(), (u8, String)> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    written.map_err(|error| (3, format!("cannot write the report: {error}")))
}

/// By the newest version of the specification: checks.md of a release is this, of all checks.
fn list(checks: &[Check]) -> String {
    let newest = VERSIONS[VERSIONS.len() - 1];
    let mut text = format!(
        "# Checks\n\nHow each is asked of a plugin that claims {newest} of the specification, and in parentheses \
         what a failure costs.\n\nThe texts that bind are those of the tags of the specification, which each \
         check names. Since the tag spec-v1.1.0, SPEC.md of the main branch has changed, and still calls itself \
         1.1.0; no level comes from it. All quotations of 1.0.0 and 1.1.0 also stand in the SPEC.md of release \
         v1.3.0 (2025-04-07), unless a check says otherwise.\n"
    );
    for profile in Profile::value_variants() {
        let mut of_profile = checks
            .iter()
            .filter(|check| check.profile_in(newest) == *profile)
            .peekable();
        if of_profile.peek().is_none() {
            continue;
        }
        text.push_str(match profile {
            Profile::Spec => "\n## spec: what the specification demands or recommends\n\n",
            Profile::Runtimes => {
                "\n## runtimes: what runtimes rely on, and what has two readings\n\n"
            }
            Profile::Extra => "\n## extra: what only this suite asks\n\n",
        });
        for check in of_profile {
            let level = if *profile == Profile::Spec {
                format!("{} ", check.level_in(newest))
            } else {
                String::new()
            };
            text.push_str(&format!(
                "* {level}`{}` ({}): {}\n",
                check.name, check.harm, check.asks
            ));
            if let Some(basis) = check.basis_in(newest) {
                text.push_str(&format!(
                    "  > {} ([{}]({}))\n",
                    basis.quoted(),
                    basis.tags(newest),
                    basis.address()
                ));
            }
            if !check.why.is_empty() {
                text.push_str(&format!("  * {}\n", check.why));
            }
        }
    }
    text
}

fn run(arguments: &Arguments, checks: &[Check]) -> Result<u8, (u8, String)> {
    let mut all = settings(arguments).map_err(|reason| (2, reason))?;
    if !arguments.inside {
        return sandbox::contain("--inside").map_err(|reason| (3, reason));
    }
    sandbox::enter().map_err(|reason| (3, reason))?;
    match firewall() {
        Ok(_) => all
            .iter_mut()
            .for_each(|settings| settings.sees_firewall = true),
        Err(reason) => {
            let _ = writeln!(
                std::io::stderr(),
                "cni-conformance: firewall rules are not compared: {reason}"
            );
        }
    }
    let profiles = if arguments.only.is_empty() {
        &arguments.profile[..]
    } else {
        Profile::value_variants()
    };
    let mut reports = Vec::new();
    for settings in &all {
        let excused = if arguments.no_skel_baseline {
            BTreeMap::new()
        } else {
            baseline::of_skel(&settings.program).map_err(|reason| (2, reason))?
        };
        let manner = Manner {
            profiles,
            gate: arguments.gate(),
            jobs: arguments.jobs,
            is_quiet: arguments.quiet,
            excused: &excused,
        };
        let report = judge(settings, checks, manner);
        tell_excused(&report, &excused);
        reports.push(report);
    }
    for (report, (had, refusal)) in reports
        .iter()
        .filter_map(|one| Some((one, one.few.as_ref()?)))
    {
        let plugin = &report.plugin;
        let _ = writeln!(
            std::io::stderr(),
            "cni-conformance: {plugin}: checks that need more attachments than {had} at once are left out: {refusal}"
        );
    }
    for (report, warning) in reports
        .iter()
        .flat_map(|one| one.warnings.iter().map(move |text| (one, text)))
    {
        let _ = writeln!(
            std::io::stderr(),
            "cni-conformance: {}: {warning}",
            report.plugin
        );
    }
    if let Some(directory) = &arguments.replay {
        write_scripts(directory, &reports).map_err(|reason| (3, reason))?;
    }
    if let Some(directory) = &arguments.reports {
        write_reports(directory, &reports, arguments.gate()).map_err(|reason| (3, reason))?;
    }
    let baseline = match &arguments.baseline {
        Some(path) => Some(Baseline::read(path).map_err(|reason| (2, reason))?),
        None => None,
    };
    if let Some(baseline) = &baseline {
        let _ = std::io::stderr().write_all(baseline.compared(&reports).as_bytes());
    }
    print(&report::write(&reports, arguments.format, arguments.gate()))?;
    ended(arguments, &reports, baseline.as_ref())
}

/// Says which failures do not count because their cause is libcni's.
fn tell_excused(report: &Report, excused: &BTreeMap<String, String>) {
    let is_excused = |one: &&Judged| excused.get(one.name) == Some(&one.known);
    for one in report.checks.iter().filter(is_excused) {
        let _ = writeln!(
            std::io::stderr(),
            "cni-conformance: {}: not counted: {}: {} (--no-skel-baseline counts it)",
            report.plugin,
            one.name,
            one.known
        );
    }
}

/// The exit status that reports have.
fn ended(
    arguments: &Arguments,
    reports: &[Report],
    baseline: Option<&Baseline>,
) -> Result<u8, (u8, String)> {
    if let Some(fault) = reports.iter().find_map(|report| report.fault.clone()) {
        return Err((2, fault));
    }
    for report in reports {
        let was_there =
            |one: &Judged| baseline.is_some_and(|old| old.has_failure(&report.plugin, one.name));
        let counts = |one: &&Judged| arguments.gate().counts(one) && !was_there(one);
        if report.checks.iter().any(|one| counts(&one))
            || arguments.strict && !report.warnings.is_empty()
        {
            return Ok(1);
        }
    }
    if let Some((plugin, refusal)) = reports
        .iter()
        .find_map(|one| Some((&one.plugin, one.refusal.as_ref()?)))
    {
        return Err((1, format!("{plugin}: nothing could be judged: {refusal}")));
    }
    for report in reports {
        if let (true, Some(reason)) = (arguments.only.is_empty(), &report.unjudged) {
            return Err((1, format!("{}: {reason}", report.plugin)));
        }
    }
    let Some(silent) = reports.iter().find(|report| !report.is_asked()) else {
        return Ok(0);
    };
    let reason = silent
        .checks
        .first()
        .map_or("no check", |one| one.seen.as_str());
    Err((
        3,
        format!("{}: nothing could be asked: {reason}", silent.plugin),
    ))
}

/// A file PLUGIN.CHECK.sh for each failure.
fn write_scripts(directory: &Path, reports: &[Report]) -> Result<(), String> {
    let scripts = reports
        .iter()
        .flat_map(|report| report.checks.iter().map(move |one| (report, one)));
    let scripts = scripts.filter(|(_, one)| !one.replay.is_empty());
    write_files(
        directory,
        scripts.map(|(report, one)| {
            (
                format!("{}.{}.sh", file_name(report), one.name),
                one.replay.clone(),
            )
        }),
    )
}

fn write_reports(directory: &Path, reports: &[Report], gate: Gate) -> Result<(), String> {
    let forms = [
        ("junit.xml", Format::Junit),
        ("report.json", Format::Json),
        ("scores.md", Format::Scores),
    ];
    let of_all =
        forms.map(|(name, format)| (name.to_owned(), report::write(reports, format, gate)));
    let page = |report: &Report| report::write(std::slice::from_ref(report), Format::Html, gate);
    let pages = reports
        .iter()
        .map(|report| (format!("{}.html", file_name(report)), page(report)));
    write_files(directory, of_all.into_iter().chain(pages))
}

/// The name of the plugin, which may be a path, and has that of the variant.
fn file_name(report: &Report) -> String {
    report.plugin.replace(
        |c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c),
        "_",
    )
}

fn write_files(
    directory: &Path,
    files: impl Iterator<Item = (String, String)>,
) -> Result<(), String> {
    let told = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(directory).map_err(|error| told(directory, error))?;
    for (name, text) in files {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|error| told(&path, error))?;
    }
    Ok(())
}

/// Refuses names of checks in a description that there are not.
fn check_known(description: &Description) -> Result<(), String> {
    let checks = checks::all();
    for name in description.known.keys() {
        if checks.iter().all(|check| check.name != name) {
            return Err(format!(
                "known: there is no check {name}: --list names them"
            ));
        }
    }
    Ok(())
}

fn settings(arguments: &Arguments) -> Result<Vec<Settings>, String> {
    let mut descriptions = Vec::new();
    for path in &arguments.describe {
        for description in Description::read(path)? {
            check_known(&description).map_err(|why| format!("{}: {why}", path.display()))?;
            descriptions.push(description);
        }
    }
    if let Some(path) = &arguments.conf {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read(path).map_err(|error| told(&error))?;
        let conf = serde_json::from_slice(&text).map_err(|error| told(&error))?;
        let kind = if arguments.kind == "ipam" {
            Kind::Ipam
        } else {
            Kind::Main
        };
        descriptions.push(Description::of_conf(conf, kind).map_err(|error| told(&error))?);
    }
    if arguments.describe.len() > 1 && arguments.plugin.is_some() {
        return Err("--plugin goes with one description".to_owned());
    }
    let mut path: Vec<PathBuf> = Vec::new();
    if let Some(own) = arguments.plugin.as_deref().and_then(Path::parent) {
        path.push(absolute(own)?);
    }
    let given = arguments
        .path
        .clone()
        .or_else(|| std::env::var("CNI_PATH").ok());
    for directory in given
        .unwrap_or("/opt/cni/bin:/usr/lib/cni".to_owned())
        .split(':')
        .filter(|one| !one.is_empty())
    {
        path.push(absolute(Path::new(directory))?);
    }
    let mut all = Vec::new();
    for description in descriptions {
        let program = match &arguments.plugin {
            Some(plugin) => absolute(plugin)?,
            None => found(&description.program, &path)?,
        };
        if !program.is_file() {
            return Err(format!("{}: no such executable", program.display()));
        }
        if nix::unistd::access(&program, nix::unistd::AccessFlags::X_OK).is_err() {
            return Err(format!("{}: it may not be executed", program.display()));
        }
        let used =
            std::iter::once(&program).chain(path.iter().filter(|directory| directory.is_dir()));
        for used in used {
            if let Some(hidden) = sandbox::hidden()
                .into_iter()
                .find(|hidden| used.starts_with(hidden))
            {
                let (used, hidden) = (used.display(), hidden.display());
                return Err(format!(
                    "{used}: {hidden} is empty for each check; copy the plugins elsewhere"
                ));
            }
        }
        all.push(Settings {
            description,
            program,
            path: path.clone(),
            limit: Duration::from_secs(arguments.limit),
            check_limit: Duration::from_secs(arguments.check_limit),
            sees_firewall: false,
            changes: false,
            dels: false,
        });
    }
    Ok(all)
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    // `--plugin x` has an empty parent.
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn found(program: &str, path: &[PathBuf]) -> Result<PathBuf, String> {
    if program.contains('/') {
        return absolute(Path::new(program));
    }
    let candidates = path.iter().map(|directory| directory.join(program));
    candidates
        .into_iter()
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            let path: Vec<_> = path.iter().map(|one| one.display().to_string()).collect();
            format!(
                "{program} is in none of {}: name the directory with --path",
                path.join(", ")
            )
        })
}
