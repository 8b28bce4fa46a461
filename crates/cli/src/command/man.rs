//! `linerate man DIR`: manual pages, generated from the command line definition.

use std::io::Write;
use std::path::Path;

use clap_mangen::Man;
use linerate_record::exit_codes;
use linerate_report::{ReportError, text};

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
        Err(source) => {
            let path = args.dir.join("linerate.1");
            let failure = CommandFailure::from(ReportError::Write { path, source });
            print_stderr(&text::render_error(&failure.problem, &stderr_style()));
            failure.code
        }
    }
}

/// Writes the page of a command and of its subcommands.
fn write_pages(dir: &Path, mut command: clap::Command) -> std::io::Result<()> {
    for subcommand in command.get_subcommands() {
        if !subcommand.is_hide_set() {
            write_pages(dir, subcommand.clone())?;
        }
    }
    let has_commands = command
        .get_subcommands()
        .any(|subcommand| !subcommand.is_hide_set());
    let has_arguments = command.get_positionals().next().is_some();
    let notes = after_help_sections(&command);
    let usage = command.render_usage().to_string().replace(['<', '>'], "");
    let command = command.override_usage(usage.trim_start_matches("Usage:").to_owned());
    let man = Man::new(show_args(&command, |arg| !arg.is_positional()))
        .source(concat!("linerate ", env!("CARGO_PKG_VERSION")))
        .manual("linerate's manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if has_arguments {
        let mut section = Vec::new();
        Man::new(show_args(&command, clap::Arg::is_positional))
            .render_options_section(&mut section)?;
        let section = String::from_utf8_lossy(&section);
        write!(page, "{}", section.replace(".SH OPTIONS", ".SH ARGUMENTS"))?;
    }
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    write!(page, "{notes}")?;
    std::fs::write(dir.join(man.get_filename()), page)
}

/// Hides the other arguments of a command.
fn show_args(command: &clap::Command, is_shown: fn(&clap::Arg) -> bool) -> clap::Command {
    command.clone().mut_args(|arg| {
        let hide = arg.is_hide_set() || !is_shown(&arg);
        arg.hide(hide)
    })
}

/// Returns the sections NOTES and EXAMPLES of the text after a command's options.
fn after_help_sections(command: &clap::Command) -> String {
    let after = command.get_after_help().map(ToString::to_string);
    let (mut notes, mut examples) = (String::new(), String::new());
    let mut in_examples = false;
    for line in after.iter().flat_map(|text| text.lines()) {
        let is_indented = line.starts_with(' ');
        if !is_indented && !line.is_empty() {
            in_examples = line.starts_with("Examples") || (in_examples && line.ends_with(':'));
        }
        let section = if in_examples {
            &mut examples
        } else {
            &mut notes
        };
        section.push_str(&match line {
            "Examples:" => String::new(),
            "" => ".PP\n".to_owned(),
            line if is_indented => labelled_line(line),
            // The heading says that these are examples.
            line => escape_roff(line.strip_prefix("Examples ").unwrap_or(line)),
        });
    }
    let section = |name: &str, text: String| match text.replace(".PP\n", "").is_empty() {
        true => String::new(),
        false => format!(".SH {name}\n{text}"),
    };
    section("NOTES", notes) + &section("EXAMPLES", examples)
}

/// Columns from which an indented line continues the remark of the line before.
const REMARK_INDENT: usize = 20;

/// Returns a line of a table as a paragraph with its first column as the label.
fn labelled_line(line: &str) -> String {
    let text = line.trim_start();
    if line.len() - text.len() >= REMARK_INDENT {
        return format!(".br\n{}", escape_roff(text));
    }
    let (label, remark) = text.split_once("  ").unwrap_or((text, ""));
    let label = escape_roff(label);
    let remark = escape_roff(remark.trim_start());
    format!(".TP\n\\fB{}\\fR\n{remark}", label.trim_end())
}

/// Escapes a line so that roff prints its characters unchanged.
fn escape_roff(line: &str) -> String {
    if line.is_empty() {
        return String::new();
    }
    // A leading dot or quote would be a request, a plain hyphen a typographic one.
    format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_printed_as_they_are() {
        assert_eq!(escape_roff(".x -t 5"), "\\&.x \\-t 5\n");
        assert_eq!(escape_roff("'a\\n'"), "\\&'a\\en'\n");
    }

    #[test]
    fn notes_and_examples_are_sections() {
        let text = "A note.\n\nExamples:\n  linerate x    remark\n\nMore:\n  linerate y\n\nEnd.";
        let command = clap::Command::new("x").after_help(text);
        let expected = ".SH NOTES\n\\&A note.\n.PP\n\\&End.\n\
            .SH EXAMPLES\n.TP\n\\fB\\&linerate x\\fR\n\\&remark\n.PP\n\\&More:\n.TP\n\\fB\\&linerate y\\fR\n.PP\n";
        assert_eq!(after_help_sections(&command), expected);
    }
}
