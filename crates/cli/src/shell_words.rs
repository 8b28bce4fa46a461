//! Arguments of a command line: splitting and quoting as a shell does, and setting of options.

use clap::{Arg, ArgAction, CommandFactory};
use linerate_record::command_line::shell_quote;
use linerate_record::event::ErrorReport;

use crate::args::Cli;
use crate::failure::CommandFailure;

/// Commands that measure and return one record.
pub const MEASURING_COMMANDS: [&str; 5] = ["throughput", "latency", "ttcp", "forward", "generate"];

/// Commands that run measuring commands.
const COMMANDS_THAT_RUN_OTHERS: [&str; 2] = ["compare", "sweep"];

/// Inserts `--` before the measuring command that another command runs, so that the options after
/// it are its own: `linerate sweep --over rcvbuf=1K,64K throughput HOST -t 1`.
pub fn separate_inner_command(args: &mut Vec<std::ffi::OsString>) {
    let runs_another = args.get(1).is_some_and(|arg| {
        COMMANDS_THAT_RUN_OTHERS
            .iter()
            .any(|command| arg == command)
    });
    if !runs_another {
        return;
    }
    let at = args
        .iter()
        .skip(2)
        .position(|arg| arg == "--" || MEASURING_COMMANDS.iter().any(|command| arg == command));
    if let Some(at) = at.map(|at| at + 2).filter(|&at| args[at] != "--") {
        args.insert(at, "--".into());
    }
}

/// Splits a text into arguments as a shell does: at white space outside quotes and not after `\`.
///
/// # Errors
/// Fails if a quote is not closed.
pub fn split_args(text: &str) -> Result<Vec<String>, String> {
    let mut args = Vec::new();
    let mut arg: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                arg.get_or_insert_default();
            }
            (Some('"') | None, '\\') => {
                let next = letters.next().ok_or("no character after the last \\")?;
                arg.get_or_insert_default().push(next);
            }
            (None, letter) if letter.is_whitespace() => args.extend(arg.take()),
            (_, letter) => arg.get_or_insert_default().push(letter),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("the quote {quote} is not closed"));
    }
    args.extend(arg);
    Ok(args)
}

/// Joins arguments, quoted for a shell.
pub fn join_args(args: &[String]) -> String {
    let quoted = args.iter().map(|arg| shell_quote(arg));
    quoted.collect::<Vec<_>>().join(" ")
}

/// Sets an option of a measuring command in place of its earlier value.
///
/// `args` start with the command's name. A switch takes `on` and `off`; any other option takes its
/// value, or `default` to be left out.
///
/// Fails if the command has no such option, or a switch gets another value.
pub fn set_option(args: &mut Vec<String>, option: &str, value: &str) -> Result<(), CommandFailure> {
    let name = args.first().cloned().unwrap_or_default();
    let unknown = |situation: String| {
        CommandFailure::usage(ErrorReport::new(
            situation,
            format!("--{option}"),
            format!("`linerate {name} --help` lists its options"),
        ))
    };
    let known_args = args_of_command(&name)
        .ok_or_else(|| unknown(format!("`{name}` is not a measuring command")))?;
    let known_arg = (known_args.iter())
        .find(|known_arg| known_arg.get_long() == Some(option))
        .ok_or_else(|| unknown(format!("`linerate {name}` has no such option")))?;
    remove_option(args, known_arg);
    match (is_switch(known_arg), value) {
        (_, "default") | (true, "off") => {}
        (true, "on") => args.push(format!("--{option}")),
        (true, other_value) => {
            let situation = format!("`{other_value}` is neither on nor off, but this is a switch");
            return Err(unknown(situation));
        }
        (false, value) => args.push(format!("--{option}={value}")),
    }
    Ok(())
}

/// Returns whether a measuring command sets an option.
pub fn sets_option(args: &[String], option: &str) -> bool {
    let known_args = args
        .first()
        .and_then(|name| args_of_command(name))
        .unwrap_or_default();
    let known_arg = known_args
        .iter()
        .find(|known_arg| known_arg.get_long() == Some(option));
    known_arg.is_some_and(|known_arg| {
        args.iter()
            .any(|arg| OptionForm::find(known_arg, arg).is_some())
    })
}

/// Returns whether a measuring command has an option.
pub fn has_option(args: &[String], option: &str) -> bool {
    let known_args = args.first().and_then(|name| args_of_command(name));
    let known_args = known_args.unwrap_or_default();
    known_args
        .iter()
        .any(|known_arg| known_arg.get_long() == Some(option))
}

/// Returns the value of an option on a measuring command's line.
pub fn value_of(args: &[String], option: &str) -> Option<String> {
    let known_args = args_of_command(args.first()?)?;
    let known_arg = known_args
        .iter()
        .find(|known_arg| known_arg.get_long() == Some(option))?;
    let at = (args.iter()).rposition(|arg| OptionForm::find(known_arg, arg).is_some())?;
    match OptionForm::find(known_arg, &args[at])? {
        OptionForm::Separate => args.get(at + 1).cloned(),
        OptionForm::WithValue => {
            let arg = args[at].trim_start_matches('-');
            let value = arg.strip_prefix(&format!("{option}="));
            // A short option has no `=` before its value.
            let value = value.or_else(|| arg.get(1..));
            value.map(str::to_owned)
        }
    }
}

/// Returns the value of a positional argument of a measuring command.
pub fn positional_value(args: &[String], name: &str) -> Option<String> {
    let all = std::iter::once("linerate").chain(args.iter().map(String::as_str));
    let matches = Cli::command().try_get_matches_from(all).ok()?;
    let (_, submatches) = matches.subcommand()?;
    let mut values = submatches.try_get_raw(name).ok()??;
    Some(values.next()?.to_string_lossy().into_owned())
}

/// Adds arguments to a measuring command; options among them replace earlier ones.
pub fn add_args(args: &mut Vec<String>, more: &[String]) {
    let known_args = args
        .first()
        .and_then(|name| args_of_command(name))
        .unwrap_or_default();
    for known_arg in &known_args {
        if more
            .iter()
            .any(|arg| OptionForm::find(known_arg, arg).is_some())
        {
            remove_option(args, known_arg);
        }
    }
    args.extend_from_slice(more);
}

/// Returns the arguments that a command of this program takes.
fn args_of_command(command: &str) -> Option<Vec<Arg>> {
    let cli = Cli::command();
    let command = cli.find_subcommand(command)?;
    Some(command.get_arguments().cloned().collect())
}

fn is_switch(known_arg: &Arg) -> bool {
    matches!(known_arg.get_action(), ArgAction::SetTrue)
}

/// Form of an option on a command line.
enum OptionForm {
    /// The value, if any, is the next argument.
    Separate,
    /// The value is part of the argument.
    WithValue,
}

impl OptionForm {
    fn find(known_arg: &Arg, arg: &str) -> Option<Self> {
        let long = known_arg
            .get_long()
            .and_then(|long| arg.strip_prefix(&format!("--{long}")));
        match long {
            Some("") => return Some(Self::Separate),
            Some(rest) if rest.starts_with('=') => return Some(Self::WithValue),
            _ => {}
        }
        let short = known_arg.get_short()?;
        match arg.strip_prefix(&format!("-{short}"))? {
            "" => Some(Self::Separate),
            _ if is_switch(known_arg) => None,
            _ => Some(Self::WithValue),
        }
    }
}

fn remove_option(args: &mut Vec<String>, known_arg: &Arg) {
    let optional = known_arg
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0);
    let mut at = 1;
    while at < args.len() {
        let Some(form) = OptionForm::find(known_arg, &args[at]) else {
            at += 1;
            continue;
        };
        args.remove(at);
        let value_follows =
            matches!(form, OptionForm::Separate) && !is_switch(known_arg) && !optional;
        if value_follows && at < args.len() {
            args.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_line(text: &str) -> Vec<String> {
        split_args(text).unwrap()
    }

    #[test]
    fn words_are_split_and_joined() {
        assert_eq!(
            split_line(r#"-l  128K --cpu '0/1' "a b"c \"x ''"#),
            ["-l", "128K", "--cpu", "0/1", "a bc", "\"x", ""]
        );
        assert!(split_args("'open").is_err());
        for text in ["a 'b c'", "it''s", "x '' y", "-C cubic --wait=spin/block"] {
            let first = split_line(text);
            assert_eq!(split_line(&join_args(&first)), first, "{text}");
        }
    }

    #[test]
    fn an_option_replaces_an_earlier_one() {
        for (before, option, value, after) in [
            ("throughput h", "length", "1M", "throughput h --length=1M"),
            (
                "throughput h -l 64K -t 1",
                "length",
                "1M",
                "throughput h -t 1 --length=1M",
            ),
            (
                "throughput -l64K h",
                "length",
                "1M",
                "throughput h --length=1M",
            ),
            (
                "throughput --length=64K h",
                "length",
                "default",
                "throughput h",
            ),
            ("throughput h -N", "no-delay", "off", "throughput h"),
            ("throughput h", "no-delay", "on", "throughput h --no-delay"),
            (
                "throughput h --batch -u",
                "batch",
                "16",
                "throughput h -u --batch=16",
            ),
        ] {
            let mut changed = split_line(before);
            set_option(&mut changed, option, value).unwrap();
            assert_eq!(join_args(&changed), after, "{before} {option}={value}");
        }
        let none = set_option(&mut split_line("throughput h"), "speed", "1").unwrap_err();
        assert_eq!(none.problem.object, "--speed");
        assert!(set_option(&mut split_line("throughput h"), "no-delay", "1").is_err());
    }

    #[test]
    fn the_value_of_an_option_is_found() {
        for (text, option, value) in [
            ("throughput h -p 7", "port", Some("7")),
            ("throughput h -p7", "port", Some("7")),
            ("throughput h --port=7 -u", "port", Some("7")),
            ("throughput h --port 7 -p 8", "port", Some("8")),
            ("throughput h", "port", None),
            ("throughput h -p", "port", None),
        ] {
            let value_found = value_of(&split_line(text), option);
            assert_eq!(value_found.as_deref(), value, "{text}");
        }
        assert!(has_option(&split_line("throughput h"), "length"));
        assert!(!has_option(&split_line("throughput h"), "speed"));
    }

    #[test]
    fn a_host_is_found_wherever_it_stands() {
        for (text, host) in [
            ("throughput 10.0.0.2 -t 1", Some("10.0.0.2")),
            ("throughput -R 10.0.0.2", Some("10.0.0.2")),
            ("latency -u -l 64 --wait spin h", Some("h")),
            ("ttcp -t h", Some("h")),
            ("ttcp -r", None),
            ("throughput --nosuch h", None),
        ] {
            assert_eq!(
                positional_value(&split_line(text), "host").as_deref(),
                host,
                "{text}"
            );
        }
    }

    #[test]
    fn options_of_a_side_take_the_place_of_those_of_both() {
        let mut all = split_line("throughput h -l 64K -u --wait block");
        add_args(&mut all, &split_line("--length=1M -t 2"));
        assert_eq!(
            join_args(&all),
            "throughput h -u --wait block --length=1M -t 2"
        );
    }

    #[test]
    fn an_inner_command_is_separated() {
        let separated = |text: &str| {
            let mut all: Vec<_> = split_line(text).into_iter().map(Into::into).collect();
            separate_inner_command(&mut all);
            let all: Vec<String> = all
                .iter()
                .map(|w| w.to_string_lossy().into_owned())
                .collect();
            join_args(&all)
        };
        for (text, expected) in [
            (
                "linerate sweep --over a=1 throughput h",
                "linerate sweep --over a=1 -- throughput h",
            ),
            (
                "linerate sweep -- throughput h",
                "linerate sweep -- throughput h",
            ),
            ("linerate compare one two", "linerate compare one two"),
            ("linerate throughput h", "linerate throughput h"),
        ] {
            assert_eq!(separated(text), expected);
        }
    }
}
