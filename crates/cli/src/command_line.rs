//! Command line of this program, as records keep it.

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};
use linerate_metric::command_line::{Argument, CommandLine};

use crate::args::Cli;
use crate::lab_network;

/// Commands whose results are records.
const MEASURING: [&str; 7] = [
    "throughput",
    "latency",
    "ttcp",
    "forward",
    "generate",
    "capacity",
    "stack",
];

/// Options that only affect output and judgement of results.
const LEFT_OUT: [&str; 14] = [
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

static OWN: OnceLock<CommandLine> = OnceLock::new();

/// Options of the command that the environment sets, with their variables.
static SET: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Stores the command line if its command measures.
pub fn note(words: &[OsString], matches: &ArgMatches) {
    let Some((name, of_command)) = matches.subcommand() else {
        return;
    };
    if !MEASURING.contains(&name) {
        return;
    }
    let words: Vec<String> = (words.iter())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let program = words.first().cloned().unwrap_or_default();
    let mut line = CommandLine {
        through: lab_network::started_through(&program),
        ..read(&words[1..], of_command)
    };
    line.program = program;
    let _ = OWN.set(line);
    let cli = Cli::command();
    let arguments = cli.find_subcommand(name).into_iter();
    let set = arguments.flat_map(Command::get_arguments).filter(|arg| {
        of_command.value_source(arg.get_id().as_str()) == Some(ValueSource::EnvVariable)
    });
    let named = |arg: &Arg| {
        let variable = arg.get_env()?.to_string_lossy().into_owned();
        Some((arg.get_long()?.to_owned(), variable))
    };
    let _ = SET.set(set.filter_map(named).collect());
}

/// Returns the environment variable that sets an option of the command, unless the command line sets it.
pub fn variable_of(option: &str) -> Option<&'static str> {
    let set = SET.get()?.iter();
    let mut found = set.filter(|(long, _)| long == option);
    Some(&found.next()?.1)
}

/// Returns the long name of an option as clap shows it (`--cpu <LIST>`), with the environment
/// variable that sets it, if the command line does not.
pub fn variable_behind(words: &[OsString], called: &str) -> Option<(String, String)> {
    let words: Vec<String> = (words.iter().skip(1))
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let long = called.strip_prefix("--")?;
    let long = long.split([' ', '=', '[']).next()?;
    let cli = Cli::command();
    let command = cli.find_subcommand(words.first()?)?;
    let mut known = command.get_arguments();
    let arg = known.find(|arg| arg.get_long() == Some(long))?;
    let variable = arg.get_env()?;
    let is_set = std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let said = arguments(command, &words[1..]);
    let is_said = said.iter().any(|said| said.option.as_deref() == Some(long));
    (is_set && !is_said).then(|| (long.to_owned(), variable.to_string_lossy().into_owned()))
}

/// Returns the stored command line; `None` if the command does not measure.
pub fn own() -> Option<CommandLine> {
    OWN.get().cloned()
}

/// Returns the command line of arguments that start with the command's name, with the options that
/// the environment sets.
fn read(words: &[String], matches: &ArgMatches) -> CommandLine {
    let cli = Cli::command();
    let name = words.first().map_or("", String::as_str);
    let mut line = CommandLine::new(name);
    let Some(command) = cli.find_subcommand(name) else {
        return line;
    };
    line.arguments = arguments(command, &words[1..]);
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if matches.value_source(id) == Some(ValueSource::EnvVariable) {
            line.arguments.extend(from_environment(arg, matches));
        }
    }
    for option in LEFT_OUT {
        line.remove(option);
    }
    line
}

fn arguments(command: &Command, words: &[String]) -> Vec<Argument> {
    let mut arguments = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let alone = Argument {
            option: None,
            words: vec![word.clone()],
        };
        if word == "--" {
            arguments.push(alone);
            arguments.extend(rest.by_ref().map(|word| Argument {
                option: None,
                words: vec![word.clone()],
            }));
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, has_value) = match long.split_once('=') {
                Some((name, _)) => (name, true),
                None => (long, false),
            };
            let arg = command
                .get_arguments()
                .find(|arg| arg.get_long() == Some(name));
            let mut found = Argument {
                option: Some(name.to_owned()),
                words: vec![word.clone()],
            };
            if !has_value && arg.is_some_and(|arg| takes_next(arg, rest.as_slice())) {
                found.words.extend(rest.next().cloned());
            }
            arguments.push(found);
        } else if word.len() > 1 && word.starts_with('-') {
            arguments.extend(cluster(command, word, &mut rest));
        } else {
            arguments.push(alone);
        }
    }
    arguments
}

/// Splits an argument such as `-uR` or `-Rt5` into its options.
fn cluster(
    command: &Command,
    word: &str,
    rest: &mut std::slice::Iter<'_, String>,
) -> Vec<Argument> {
    let mut found = Vec::new();
    let letters: Vec<char> = word.chars().skip(1).collect();
    for (at, letter) in letters.iter().enumerate() {
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_short() == Some(*letter));
        let long = arg
            .and_then(Arg::get_long)
            .map_or_else(|| letter.to_string(), str::to_owned);
        let mut own = Argument {
            option: Some(long),
            words: vec![format!("-{letter}")],
        };
        let Some(arg) = arg.filter(|arg| takes_value(arg)) else {
            found.push(own);
            continue;
        };
        let value: String = letters[at + 1..].iter().collect();
        if !value.is_empty() {
            own.words[0].push_str(&value);
        } else if takes_next(arg, rest.as_slice()) {
            own.words.extend(rest.next().cloned());
        }
        found.push(own);
        break;
    }
    found
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Returns whether the next argument is the value of an option.
fn takes_next(arg: &Arg, rest: &[String]) -> bool {
    let optional = arg
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0);
    let plain = rest.first().is_some_and(|word| !word.starts_with('-'));
    takes_value(arg) && !arg.is_require_equals_set() && (!optional || plain)
}

/// Returns an environment option as it would be typed.
fn from_environment(arg: &Arg, matches: &ArgMatches) -> Vec<Argument> {
    let id = arg.get_id().as_str();
    let raw = matches.get_raw(id).into_iter().flatten();
    let values: Vec<String> = raw
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    match (arg.get_long(), takes_value(arg)) {
        (Some(long), true) => (values.iter())
            .map(|value| Argument {
                option: Some(long.to_owned()),
                words: vec![format!("--{long}={value}")],
            })
            .collect(),
        (Some(long), false) => vec![Argument {
            option: Some(long.to_owned()),
            words: vec![format!("--{long}")],
        }],
        (None, _) => (values.into_iter())
            .map(|value| Argument {
                option: None,
                words: vec![value],
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args, shell_words};

    fn line(text: &str) -> CommandLine {
        let words = shell_words::split(text).unwrap();
        let matches = args::command().try_get_matches_from(&words).unwrap();
        let (_, of_command) = matches.subcommand().unwrap();
        read(&words[1..], of_command)
    }

    #[test]
    fn a_command_is_kept_as_it_was_typed_without_where_its_results_go() {
        for (typed, kept) in [
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
            assert_eq!(line(typed).to_string(), kept);
        }
    }

    #[test]
    fn options_are_known_by_their_long_names() {
        let mut line = line("linerate throughput h -P2 -w64K -N");
        assert!(line.has("parallel") && line.has("no-delay"));
        line.set("window", &["-w", "4M"]);
        assert_eq!(line.to_string(), "linerate throughput h -P2 -w 4M -N");
    }
}
