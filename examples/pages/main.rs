//! Writes the manual pages and the shell completions of both plugins: `pages DIRECTORY` makes `man`, `bash`, `zsh`
//! and `fish` in it. The same programs give the same bytes.

mod write;

use std::io;
use std::path::Path;

use rail_cni::commands;

fn main() -> io::Result<()> {
    let directory = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: pages DIRECTORY"))?;
    for command in [commands::rail_cni::command(), commands::rail_ipam::command()] {
        write::pages(command, Path::new(&directory))?;
    }
    Ok(())
}
