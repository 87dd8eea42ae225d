//! The same for rail-agent: `agent-pages DIRECTORY`.

#[path = "../../railctl/examples/pages/write.rs"]
mod write;

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let directory = std::env::args_os()
        .nth(1)
        .ok_or_else(|| io::Error::other("usage: agent-pages DIRECTORY"))?;
    write::pages(rail_agent::command(), Path::new(&directory))
}
