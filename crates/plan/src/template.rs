//! Pages for the leaves by templates: minijinja, the language of Jinja2.
//!
//! A template is rendered once for each leaf. Its variables are `version`, `leaf`, `number` and
//! `ports`; [`Port`] and [`Row`](crate::cables::Row) have the members of a port and of an address.
//! The shipped templates are in `crates/plan/templates`.

use std::path::Path;

use anyhow::Result;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value, escape_formatter};
use serde::Serialize;

use crate::cables::VERSION;
use crate::document::Text;
use crate::leaves::{Leaves, Port, System};
use crate::plan::{File, Plan, Pools};
use rail_cni::fault::{Fault, Place};

/// The work that the page of a leaf may take, in minijinja's units: about one for each expression, tag
/// and 64 bytes of text. A port of the shipped templates takes less than 100.
const FUEL: u64 = 10_000_000;

const CUMULUS_LINUX: System = System {
    name: "Cumulus Linux",
    max_mtu: 9216,
    is_port: is_cumulus_port,
    ports: "swp1 or swp1s0",
    vrf_prefix: "",
};

const SONIC: System = System {
    name: "SONiC",
    max_mtu: 9216,
    is_port: is_sonic_port,
    ports: "Ethernet0 or Ethernet4",
    vrf_prefix: "Vrf",
};

/// A compiled template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    /// The file as the user named it.
    file: String,
    /// The file's name without its last ending.
    suffix: String,
    /// The system of the leaves; none if the template is the user's.
    system: Option<&'static System>,
}

/// The variables of a template.
#[derive(Serialize)]
struct Page<'a> {
    version: u32,
    leaf: &'a str,
    /// The number of the leaf, from 0.
    number: usize,
    ports: &'a [Port<'a>],
}

impl Template {
    /// NVUE commands of Cumulus Linux.
    pub fn nvue() -> Result<Template> {
        let source = include_str!("../templates/nvue.j2");
        Template::new("nvue.j2", source, Some(&CUMULUS_LINUX))
    }

    /// Tables of SONiC's config_db, as JSON.
    pub fn sonic() -> Result<Template> {
        let source = include_str!("../templates/sonic.json.j2");
        Template::new("sonic.json.j2", source, Some(&SONIC))
    }

    /// Reads a user's template; `-` is standard input.
    ///
    /// # Errors
    ///
    /// Names the file, and the line of a syntax error.
    pub fn read(file: &str) -> Result<Template> {
        let text = Text::read(file)?;
        let Ok(source) = String::from_utf8(text.bytes) else {
            let fault = Fault::whole("it is not UTF-8: save it as UTF-8");
            return Err(fault.at(Place::file(text.file)).into());
        };
        Template::new(&text.file, &source, None)
    }

    fn new(file: &str, source: &str, system: Option<&'static System>) -> Result<Template> {
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(true)
            .build()?;
        let mut environment = Environment::new();
        environment.set_syntax(syntax);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        // Names the undefined variable in errors.
        environment.set_debug(true);
        environment.set_formatter(|output, state, value| {
            if value.is_none() {
                let problem =
                    "the value is null, as no source has it: print it inside of an {% if %}";
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, problem));
            }
            escape_formatter(output, state, value)
        });
        environment
            .add_template_owned(file.to_owned(), source.to_owned())
            .map_err(|error| fault(file, &error))?;
        let suffix = Path::new(file).file_stem().unwrap_or_default();
        Ok(Template {
            environment,
            file: file.to_owned(),
            suffix: suffix.to_string_lossy().into_owned(),
            system,
        })
    }

    /// The name of the template's file without its last ending, which ends the names of the files
    /// that it makes.
    pub fn suffix(&self) -> &str {
        &self.suffix
    }

    /// Writes a file for each leaf. The pools are those of [`Plan::check`].
    ///
    /// # Errors
    ///
    /// Names the faults of [`Leaves::new`], or the line of the template that failed.
    pub fn write(&self, plan: &Plan, pools: &Pools) -> Result<Vec<File>> {
        let template = self
            .environment
            .get_template(&self.file)
            .map_err(|error| fault(&self.file, &error))?;
        let leaves = Leaves::new(plan, pools, self.system)?;
        let mut files = Vec::new();
        for (number, leaf) in leaves.iter().enumerate() {
            let page = Page {
                version: VERSION,
                leaf: leaf.name,
                number,
                ports: &leaf.ports,
            };
            let variables = Value::from(Serde(&page));
            let mut text = template.render(&variables).map_err(|error| {
                let mut fault = fault(&self.file, &error).of(leaf.name);
                if error.kind() == ErrorKind::UndefinedError {
                    fault = fault.remedy(known_variables(&variables));
                }
                fault
            })?;
            text.shrink_to_fit();
            files.push(File {
                name: format!("{}.{}", leaf.name, self.suffix),
                text,
            });
        }
        Ok(files)
    }
}

/// The position and the problem of an error.
fn fault(file: &str, error: &minijinja::Error) -> Fault {
    let line = error.line().and_then(|line| u32::try_from(line).ok());
    let place = Place {
        line: line.unwrap_or_default(),
        ..Place::file(file)
    };
    let problem = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => {
            "the page takes more work than a leaf needs: shorten its loops".to_owned()
        }
        (ErrorKind::InvalidOperation | ErrorKind::UndefinedError, Some(detail)) => {
            detail.to_owned()
        }
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    Fault::whole(problem).at(place)
}

/// The names of all variables, for a message.
fn known_variables(variables: &Value) -> String {
    let port = variables
        .get_attr("ports")
        .and_then(|ports| ports.get_item_by_index(0))
        .unwrap_or_default();
    let address = port
        .get_attr("addresses")
        .and_then(|addresses| addresses.get_item_by_index(0))
        .unwrap_or_default();
    format!(
        "variables are {}; of each of ports {}; of each of its addresses {}",
        names(variables),
        names(&port),
        names(&address)
    )
}

fn names(value: &Value) -> String {
    let mut names = Vec::new();
    for name in value.try_iter().into_iter().flatten() {
        names.push(name.to_string());
    }
    names.join(", ")
}

/// A port has a number, counted from 1, and another one, counted from 0, if it is split. To NVUE,
/// swp1-2 and swp1,swp2 are two ports, and both would get the address.
fn is_cumulus_port(name: &str) -> bool {
    let numbers = name.strip_prefix("swp").unwrap_or_default();
    let (port, split) = numbers.split_once('s').unwrap_or((numbers, "0"));
    port != "0" && is_number(port) && is_number(split)
}

/// `Ethernet` and the number of the first lane; not an alias such as `etp1a`, and no subinterface.
fn is_sonic_port(name: &str) -> bool {
    is_number(name.strip_prefix("Ethernet").unwrap_or_default())
}

/// Whether the text has only digits, and no 0 before others.
fn is_number(text: &str) -> bool {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits && (text == "0" || !text.starts_with('0'))
}

#[cfg(test)]
mod tests;
