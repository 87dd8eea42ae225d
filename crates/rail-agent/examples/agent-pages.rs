//! Writes the manual pages and the shell completions of rail-agent: `agent-pages DIRECTORY`.

#[path = "../../railctl/src/commands/pages.rs"]
mod pages;

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let directory = std::env::args_os()
        .nth(1)
        .ok_or_else(|| io::Error::other("usage: agent-pages DIRECTORY"))?;
    pages::pages(rail_agent::command(), "rail-agent", Path::new(&directory))
}
