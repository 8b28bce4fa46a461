//! `linerate man DIR`: manual pages, generated from the command line definition.

use std::io::Write;
use std::path::Path;

use clap_mangen::Man;
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_report::text;

use crate::args::{self, ManArgs};
use crate::failure::CommandFailure;
use crate::standard_streams::{print_stderr, stderr_style};

/// Runs the command and returns the exit code.
pub fn run(args: &ManArgs) -> u8 {
    let mut command = args::command().disable_help_subcommand(true);
    // Gives subcommands their full names.
    command.build();
    let written = std::fs::create_dir_all(&args.dir).and_then(|()| write_pages(&args.dir, command));
    match written {
        Ok(()) => exit_codes::OK,
        Err(error) => {
            let failure = CommandFailure::failed(ErrorReport::new(
                format!("cannot write the manual pages ({error})"),
                args.dir.display().to_string(),
                "name a directory that this user may write",
            ));
            print_stderr(&text::render_error(&failure.problem, &stderr_style()));
            failure.code
        }
    }
}

/// Writes the page of a command and of its subcommands.
fn write_pages(dir: &Path, command: clap::Command) -> std::io::Result<()> {
    for subcommand in command.get_subcommands() {
        if !subcommand.is_hide_set() {
            write_pages(dir, subcommand.clone())?;
        }
    }
    let has_commands = command
        .get_subcommands()
        .any(|subcommand| !subcommand.is_hide_set());
    let after = command.get_after_help().map(ToString::to_string);
    let man = Man::new(command)
        .source(concat!("linerate ", env!("CARGO_PKG_VERSION")))
        .manual("linerate's manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(after) = after {
        // Filled text would join the lines of the examples.
        let text = escape_roff(&after);
        write!(page, ".SH NOTES AND EXAMPLES\n.nf\n{text}.fi\n")?;
    }
    std::fs::write(dir.join(man.get_filename()), page)
}

/// Escapes lines so that roff prints them unchanged.
fn escape_roff(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        // A leading dot or quote would be a request, a plain hyphen a typographic one.
        out.push_str("\\&");
        out.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_printed_as_they_are() {
        assert_eq!(escape_roff(".x -t 5\n'a\\n'"), "\\&.x \\-t 5\n\\&'a\\en'\n");
    }
}
