//! Writes the manual pages and the shell completions of a program. The example agent-pages of the
//! crate rail-agent includes this file, too.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::{Generator as _, Shell, generate};
use clap_mangen::Man;

/// Writes `man`, `bash`, `zsh` and `fish` of the program below the directory. The same program
/// gives the same bytes.
pub fn pages(command: Command, name: &'static str, directory: &Path) -> io::Result<()> {
    // The release without the commit, so that a page changes only when its command does.
    let mut command = command
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true);
    let mut offered = without_hidden(&command, name);
    for (shell, folder) in [
        (Shell::Bash, "bash"),
        (Shell::Zsh, "zsh"),
        (Shell::Fish, "fish"),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut offered, name, &mut script);
        let script = String::from_utf8(script).map_err(io::Error::other)?;
        fs::create_dir_all(directory.join(folder))?;
        fs::write(
            directory.join(folder).join(shell.file_name(name)),
            mend(&script, name),
        )?;
    }
    // Gives the subcommands their whole names: railctl-status.
    command.build();
    fs::create_dir_all(directory.join("man"))?;
    write_pages(command, &directory.join("man"))
}

/// The command for completions, without hidden subcommands, which clap_complete would offer as
/// well.
fn without_hidden(command: &Command, name: &'static str) -> Command {
    let subcommands = command.get_subcommands();
    Command::new(name)
        .disable_help_subcommand(true)
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(subcommands.filter(|subcommand| !subcommand.is_hide_set()))
}

/// clap_complete 4.6 writes the hyphen of a program in two ways into bash's script, so that no
/// subcommand is found.
fn mend(script: &str, name: &str) -> String {
    script.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__"))
}

/// A page for the command, and one for each of its subcommands: `railctl.8`, `railctl-status.8`.
fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    for subcommand in command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set())
    {
        write_pages(subcommand.clone(), directory)?;
    }
    let page = Man::new(command).section("8").manual("rail-cni");
    let mut text = Vec::new();
    page.render(&mut text)?;
    fs::write(directory.join(page.get_filename()), text)
}
