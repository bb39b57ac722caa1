//! `caravan man` and `caravan completions`: pages and completions made from the command line's own
//! definition.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use caravan_learn::replace_file::replace;
use clap::{Command, CommandFactory};

use crate::cli::{Cli, CompletionsArgs, ManArgs};

/// Writes the pages of all commands into a folder, or the main one to standard output.
///
/// # Errors
/// If they cannot be written.
pub(crate) fn man(args: &ManArgs) -> Result<()> {
    let command = Cli::command();
    match &args.out {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            write(&page)
        }
        Some(folder) => {
            let named = || format!("cannot write pages into {}", folder.display());
            fs::create_dir_all(folder).with_context(named)?;
            let mut command = command.disable_help_subcommand(true);
            command.build();
            write_pages(command, folder).with_context(named)
        }
    }
}

/// Writes the page of a command, and those of the commands below it.
fn write_pages(command: Command, folder: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below.clone(), folder)?;
    }
    let man = clap_mangen::Man::new(command);
    let mut page = Vec::new();
    man.render(&mut page)?;
    Ok(replace(&folder.join(man.get_filename()), &page)?)
}

/// Writes the completions of a shell to standard output.
///
/// # Errors
/// If they cannot be written.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "caravan", &mut script);
    write(&script)
}

fn write(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("cannot write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the pages of a command and of those below it: each must be named by the page above.
    fn pages(folder: &Path, command: &Command) -> usize {
        let name = command.get_display_name().unwrap_or("caravan");
        let roff = fs::read_to_string(folder.join(format!("{name}.1"))).expect(name);
        assert!(roff.contains(".SH NAME") && roff.contains(".SH OPTIONS"), "{name}: {roff}");
        let words = roff.replace('\\', "");
        let mut counted = 1;
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            let page = format!("{name}-{}", below.get_name());
            assert_eq!(
                words.contains(&format!("{page}(1)")),
                !below.is_hide_set(),
                "{page}: {words}"
            );
            assert_eq!(folder.join(format!("{page}.1")).exists(), !below.is_hide_set(), "{page}");
            counted += if below.is_hide_set() { 0 } else { pages(folder, below) };
        }
        counted
    }

    #[test]
    fn the_manual_names_every_command_and_has_a_page_of_each() {
        let folder = tempfile::tempdir().unwrap();
        man(&ManArgs { out: Some(folder.path().to_owned()) }).unwrap();
        let mut command = Cli::command();
        command.build();
        let counted = pages(folder.path(), &command);
        assert_eq!(counted, fs::read_dir(folder.path()).unwrap().count());
        assert!(counted > 25, "{counted}");
    }

    #[test]
    fn no_page_is_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join("caravan-train.1")).unwrap();
        let said = man(&ManArgs { out: Some(folder.path().to_owned()) }).unwrap_err();
        let said = format!("{said:#}");
        assert!(said.contains("caravan-train.1 is a link"), "{said}");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}
