//! Command line of this program, as records keep it, and the environment variables that set its
//! options.

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};
use linerate_record::command_line::{CommandArgument, CommandLine};

use crate::args::Cli;
use crate::failure::CommandFailure;
use crate::lab_network;

/// Commands whose results are records.
const RECORDED_COMMANDS: [&str; 7] = [
    "throughput",
    "latency",
    "ttcp",
    "forward",
    "generate",
    "capacity",
    "stack",
];

/// Options that only affect output and judgement of results.
const OUTPUT_OPTIONS: [&str; 14] = [
    "json",
    "json-stream",
    "output",
    "quiet",
    "verbose",
    "no-store",
    "color",
    "html",
    "tui",
    "label",
    "expect",
    "fail-on-finding",
    "trace",
    "trace-on",
];

static OUR_COMMAND_LINE: OnceLock<CommandLine> = OnceLock::new();

/// Options of the command that the environment sets, with their variables.
static ENVIRONMENT_OPTIONS: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Stores the command line if its command measures.
pub fn store_command_line(args: &[OsString], matches: &ArgMatches) {
    let Some((name, submatches)) = matches.subcommand() else {
        return;
    };
    if !RECORDED_COMMANDS.contains(&name) {
        return;
    }
    let args: Vec<String> = (args.iter())
        .map(|text| text.to_string_lossy().into_owned())
        .collect();
    let program = args.first().cloned().unwrap_or_default();
    let mut line = CommandLine {
        wrapper: lab_network::lab_exec_args(&program),
        ..read_args(&args[1..], submatches)
    };
    line.program = program;
    let _ = OUR_COMMAND_LINE.set(line);
    let cli = Cli::command();
    let arguments = cli.find_subcommand(name).into_iter();
    let set_options = arguments.flat_map(Command::get_arguments).filter(|arg| {
        submatches.value_source(arg.get_id().as_str()) == Some(ValueSource::EnvVariable)
    });
    let named = |arg: &Arg| {
        let variable = arg.get_env()?.to_string_lossy().into_owned();
        Some((arg.get_long()?.to_owned(), variable))
    };
    let _ = ENVIRONMENT_OPTIONS.set(set_options.filter_map(named).collect());
}

impl CommandFailure {
    /// Adds the environment variable that set an option, unless the command line sets the option:
    /// the variable may be meant for other commands.
    pub fn with_variable(mut self, option: &str) -> Self {
        if let Some(variable) = variable_of_option(option) {
            let prefix = format!("--{option} ");
            if let Some(value) = self.problem.object.strip_prefix(&prefix) {
                self.problem.object = format!("{variable}={value}");
            }
            let next = &self.problem.next_step;
            self.problem.next_step = format!(
                "{next}; {variable} in the environment sets --{option}: unset it, or pass --{option}"
            );
        }
        self
    }
}

/// Returns the environment variable that sets an option of the command, unless the command line
/// sets it.
fn variable_of_option(option: &str) -> Option<&'static str> {
    let set_options = ENVIRONMENT_OPTIONS.get()?.iter();
    let mut matches = set_options.filter(|(long, _)| long == option);
    Some(&matches.next()?.1)
}

/// Returns the long name of an option as clap shows it (`--cpu <LIST>`), with the environment
/// variable that sets it, if the command line does not.
pub fn variable_of_shown_option(args: &[OsString], shown: &str) -> Option<(String, String)> {
    let args: Vec<String> = (args.iter().skip(1))
        .map(|text| text.to_string_lossy().into_owned())
        .collect();
    let long = shown.strip_prefix("--")?;
    let long = long.split([' ', '=', '[']).next()?;
    let cli = Cli::command();
    let command = cli.find_subcommand(args.first()?)?;
    let mut candidates = command.get_arguments();
    let arg = candidates.find(|arg| arg.get_long() == Some(long))?;
    let variable = arg.get_env()?;
    let is_set = std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let given = split_arguments(command, &args[1..]);
    let is_given = given
        .iter()
        .any(|given| given.option.as_deref() == Some(long));
    (is_set && !is_given).then(|| (long.to_owned(), variable.to_string_lossy().into_owned()))
}

/// Returns the commands that have an option, in its long or short form.
pub fn commands_with_option(option: &str) -> Vec<String> {
    let cli = Cli::command();
    let has_option = |command: &&Command| {
        command.get_arguments().any(|arg| {
            let long = arg.get_long().map(|long| format!("--{long}"));
            let short = arg.get_short().map(|short| format!("-{short}"));
            [long, short].iter().flatten().any(|form| form == option)
        })
    };
    let commands = cli.get_subcommands().filter(has_option);
    commands
        .map(|command| command.get_name().to_owned())
        .collect()
}

/// Returns the stored command line; `None` if the command does not measure.
pub fn our_command_line() -> Option<CommandLine> {
    OUR_COMMAND_LINE.get().cloned()
}

/// Returns the command line of arguments that start with the command's name, with the options that
/// the environment sets.
fn read_args(args: &[String], matches: &ArgMatches) -> CommandLine {
    let cli = Cli::command();
    let name = args.first().map_or("", String::as_str);
    let mut line = CommandLine::new(name);
    let Some(command) = cli.find_subcommand(name) else {
        return line;
    };
    line.arguments = split_arguments(command, &args[1..]);
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if matches.value_source(id) == Some(ValueSource::EnvVariable) {
            line.arguments.extend(from_environment(arg, matches));
        }
    }
    for option in OUTPUT_OPTIONS {
        line.remove_option(option);
    }
    line
}

fn split_arguments(command: &Command, tokens: &[String]) -> Vec<CommandArgument> {
    let mut arguments = Vec::new();
    let mut rest = tokens.iter();
    while let Some(token) = rest.next() {
        let alone = CommandArgument {
            option: None,
            tokens: vec![token.clone()],
        };
        if token == "--" {
            arguments.push(alone);
            arguments.extend(rest.by_ref().map(|token| CommandArgument {
                option: None,
                tokens: vec![token.clone()],
            }));
        } else if let Some(long) = token.strip_prefix("--") {
            let (name, has_value) = match long.split_once('=') {
                Some((name, _)) => (name, true),
                None => (long, false),
            };
            let arg = command
                .get_arguments()
                .find(|arg| arg.get_long() == Some(name));
            let mut argument = CommandArgument {
                option: Some(name.to_owned()),
                tokens: vec![token.clone()],
            };
            if !has_value && arg.is_some_and(|arg| takes_next_arg(arg, rest.as_slice())) {
                argument.tokens.extend(rest.next().cloned());
            }
            arguments.push(argument);
        } else if token.len() > 1 && token.starts_with('-') {
            arguments.extend(split_short_options(command, token, &mut rest));
        } else {
            arguments.push(alone);
        }
    }
    arguments
}

/// Splits an argument such as `-uR` or `-Rt5` into its options.
fn split_short_options(
    command: &Command,
    word: &str,
    rest: &mut std::slice::Iter<'_, String>,
) -> Vec<CommandArgument> {
    let mut arguments = Vec::new();
    let letters: Vec<char> = word.chars().skip(1).collect();
    for (at, letter) in letters.iter().enumerate() {
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_short() == Some(*letter));
        let long = arg
            .and_then(Arg::get_long)
            .map_or_else(|| letter.to_string(), str::to_owned);
        let mut option = CommandArgument {
            option: Some(long),
            tokens: vec![format!("-{letter}")],
        };
        let Some(arg) = arg.filter(|arg| has_value(arg)) else {
            arguments.push(option);
            continue;
        };
        let value: String = letters[at + 1..].iter().collect();
        if !value.is_empty() {
            option.tokens[0].push_str(&value);
        } else if takes_next_arg(arg, rest.as_slice()) {
            option.tokens.extend(rest.next().cloned());
        }
        arguments.push(option);
        break;
    }
    arguments
}

fn has_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Returns whether the next argument is the value of an option.
fn takes_next_arg(arg: &Arg, rest: &[String]) -> bool {
    let optional = arg
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0);
    let plain = rest.first().is_some_and(|next| !next.starts_with('-'));
    has_value(arg) && !arg.is_require_equals_set() && (!optional || plain)
}

/// Returns an environment option as it would be typed.
fn from_environment(arg: &Arg, matches: &ArgMatches) -> Vec<CommandArgument> {
    let id = arg.get_id().as_str();
    let raw = matches.get_raw(id).into_iter().flatten();
    let values: Vec<String> = raw
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    match (arg.get_long(), has_value(arg)) {
        (Some(long), true) => (values.iter())
            .map(|value| CommandArgument {
                option: Some(long.to_owned()),
                tokens: vec![format!("--{long}={value}")],
            })
            .collect(),
        (Some(long), false) => vec![CommandArgument {
            option: Some(long.to_owned()),
            tokens: vec![format!("--{long}")],
        }],
        (None, _) => (values.into_iter())
            .map(|value| CommandArgument {
                option: None,
                tokens: vec![value],
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args, shell_words};

    fn command_line(text: &str) -> CommandLine {
        let words = shell_words::split_args(text).unwrap();
        let matches = args::command().try_get_matches_from(&words).unwrap();
        let (_, submatches) = matches.subcommand().unwrap();
        read_args(&words[1..], submatches)
    }

    #[test]
    fn a_command_is_kept_as_it_was_typed_without_where_its_results_go() {
        for (typed, expected) in [
            (
                "linerate throughput -uRt5 10.0.0.2 -l 1K --json -o x.json --peer=iperf3",
                "linerate throughput -u -R -t5 10.0.0.2 -l 1K --peer=iperf3",
            ),
            (
                "linerate latency h --dev tap:t0 --ip 10.0.0.2/24 --set tcp.psh=never -qi 0",
                "linerate latency h --dev tap:t0 --ip 10.0.0.2/24 --set tcp.psh=never -i 0",
            ),
            (
                "linerate throughput --batch 16 -u h --no-store --label 'a b'",
                "linerate throughput --batch 16 -u h",
            ),
            (
                "linerate forward --dev ring:0 --dev ring:1 --cores 2 -t 1",
                "linerate forward --dev ring:0 --dev ring:1 --cores 2 -t 1",
            ),
        ] {
            assert_eq!(command_line(typed).to_string(), expected);
        }
    }

    #[test]
    fn options_are_known_by_their_long_names() {
        let mut line = command_line("linerate throughput h -P2 -w64K -N");
        assert!(line.has_option("parallel") && line.has_option("no-delay"));
        line.set_option("window", &["-w", "4M"]);
        assert_eq!(line.to_string(), "linerate throughput h -P2 -w 4M -N");
    }
}
