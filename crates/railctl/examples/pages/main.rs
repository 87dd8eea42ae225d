//! Writes the manual pages and the shell completions of railctl: `pages DIRECTORY` makes `man`,
//! `bash`, `zsh` and `fish` in it. The same programs give the same bytes.

mod write;

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let directory = std::env::args_os()
        .nth(1)
        .ok_or_else(|| io::Error::other("usage: pages DIRECTORY"))?;
    write::pages(railctl::commands::command(), Path::new(&directory))
}
