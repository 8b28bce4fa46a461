//! Arguments of a command line: splitting and quoting as a shell does, and setting of options.

use clap::{Arg, ArgAction, CommandFactory};
use linerate_metric::command_line::quoted;
use linerate_metric::event::Problem;

use crate::args::Cli;
use crate::failure::Failure;

/// Commands that measure and return one record.
pub const MEASURING: [&str; 5] = ["throughput", "latency", "ttcp", "forward", "generate"];

/// Commands that run measuring commands.
const RUNNING: [&str; 2] = ["compare", "sweep"];

/// Inserts `--` before the measuring command that another command runs, so that the options after
/// it are its own: `linerate sweep --over rcvbuf=1K,64K throughput HOST -t 1`.
pub fn separate(words: &mut Vec<std::ffi::OsString>) {
    let runs = words
        .get(1)
        .is_some_and(|word| RUNNING.iter().any(|command| word == command));
    if !runs {
        return;
    }
    let at = words
        .iter()
        .skip(2)
        .position(|word| word == "--" || MEASURING.iter().any(|command| word == command));
    if let Some(at) = at.map(|at| at + 2).filter(|&at| words[at] != "--") {
        words.insert(at, "--".into());
    }
}

/// Splits a text into arguments as a shell does: at white space outside quotes and not after `\`.
///
/// # Errors
/// Fails if a quote is not closed.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (Some('"') | None, '\\') => {
                let next = letters.next().ok_or("no character after the last \\")?;
                word.get_or_insert_default().push(next);
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("the quote {quote} is not closed"));
    }
    words.extend(word);
    Ok(words)
}

/// Joins arguments, quoted for a shell.
pub fn join(words: &[String]) -> String {
    let quoted = words.iter().map(|word| quoted(word));
    quoted.collect::<Vec<_>>().join(" ")
}

/// Sets an option of a measuring command in place of its earlier value.
///
/// `words` start with the command's name. A switch takes `on` and `off`; any other option takes its
/// value, or `default` to be left out.
///
/// Fails if the command has no such option, or a switch gets another value. The command has no such
/// option, or a switch gets another value.
pub fn set_option(words: &mut Vec<String>, option: &str, value: &str) -> Result<(), Failure> {
    let name = words.first().cloned().unwrap_or_default();
    let unknown = |situation: String| {
        Failure::usage(Problem::new(
            situation,
            format!("--{option}"),
            format!("`linerate {name} --help` lists its options"),
        ))
    };
    let arguments =
        arguments(&name).ok_or_else(|| unknown(format!("`{name}` is not a measuring command")))?;
    let argument = (arguments.iter())
        .find(|argument| argument.get_long() == Some(option))
        .ok_or_else(|| unknown(format!("`linerate {name}` has no such option")))?;
    remove(words, argument);
    match (is_switch(argument), value) {
        (_, "default") | (true, "off") => {}
        (true, "on") => words.push(format!("--{option}")),
        (true, other) => {
            let situation = format!("`{other}` is neither on nor off, but this is a switch");
            return Err(unknown(situation));
        }
        (false, value) => words.push(format!("--{option}={value}")),
    }
    Ok(())
}

/// Returns whether a measuring command sets an option.
pub fn names(words: &[String], option: &str) -> bool {
    let arguments = words
        .first()
        .and_then(|name| arguments(name))
        .unwrap_or_default();
    let argument = arguments
        .iter()
        .find(|argument| argument.get_long() == Some(option));
    argument.is_some_and(|argument| words.iter().any(|word| Said::by(argument, word).is_some()))
}

/// Returns whether a measuring command has an option.
pub fn has_option(words: &[String], option: &str) -> bool {
    let arguments = words.first().and_then(|name| arguments(name));
    let arguments = arguments.unwrap_or_default();
    arguments
        .iter()
        .any(|argument| argument.get_long() == Some(option))
}

/// Returns the value of an option on a measuring command's line.
pub fn value_of(words: &[String], option: &str) -> Option<String> {
    let arguments = arguments(words.first()?)?;
    let argument = arguments
        .iter()
        .find(|argument| argument.get_long() == Some(option))?;
    let at = (words.iter()).rposition(|word| Said::by(argument, word).is_some())?;
    match Said::by(argument, &words[at])? {
        Said::Alone => words.get(at + 1).cloned(),
        Said::WithValue => {
            let word = words[at].trim_start_matches('-');
            let value = word.strip_prefix(&format!("{option}="));
            // A short option has no `=` before its value.
            let value = value.or_else(|| word.get(1..));
            value.map(str::to_owned)
        }
    }
}

/// Returns the value of a positional argument of a measuring command.
pub fn argument_of(words: &[String], name: &str) -> Option<String> {
    let all = std::iter::once("linerate").chain(words.iter().map(String::as_str));
    let matches = Cli::command().try_get_matches_from(all).ok()?;
    let (_, own) = matches.subcommand()?;
    own.try_get_one::<String>(name).ok()?.cloned()
}

/// Adds arguments to a measuring command; options among them replace earlier ones.
pub fn add(words: &mut Vec<String>, more: &[String]) {
    let arguments = words
        .first()
        .and_then(|name| arguments(name))
        .unwrap_or_default();
    for argument in &arguments {
        if more.iter().any(|word| Said::by(argument, word).is_some()) {
            remove(words, argument);
        }
    }
    words.extend_from_slice(more);
}

/// Returns the arguments that a command of this program takes.
fn arguments(command: &str) -> Option<Vec<Arg>> {
    let cli = Cli::command();
    let command = cli.find_subcommand(command)?;
    Some(command.get_arguments().cloned().collect())
}

fn is_switch(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::SetTrue)
}

/// Form of an option on a command line.
enum Said {
    /// The value, if any, is the next argument.
    Alone,
    /// The value is part of the argument.
    WithValue,
}

impl Said {
    fn by(argument: &Arg, word: &str) -> Option<Self> {
        let long = argument
            .get_long()
            .and_then(|long| word.strip_prefix(&format!("--{long}")));
        match long {
            Some("") => return Some(Self::Alone),
            Some(rest) if rest.starts_with('=') => return Some(Self::WithValue),
            _ => {}
        }
        let short = argument.get_short()?;
        match word.strip_prefix(&format!("-{short}"))? {
            "" => Some(Self::Alone),
            _ if is_switch(argument) => None,
            _ => Some(Self::WithValue),
        }
    }
}

fn remove(words: &mut Vec<String>, argument: &Arg) {
    let optional = argument
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0);
    let mut at = 1;
    while at < words.len() {
        let Some(said) = Said::by(argument, &words[at]) else {
            at += 1;
            continue;
        };
        words.remove(at);
        let value_follows = matches!(said, Said::Alone) && !is_switch(argument) && !optional;
        if value_follows && at < words.len() {
            words.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        split(text).unwrap()
    }

    #[test]
    fn words_are_split_and_joined() {
        assert_eq!(
            words(r#"-l  128K --cpu '0/1' "a b"c \"x ''"#),
            ["-l", "128K", "--cpu", "0/1", "a bc", "\"x", ""]
        );
        assert!(split("'open").is_err());
        for text in ["a 'b c'", "it''s", "x '' y", "-C cubic --wait=spin/block"] {
            let once = words(text);
            assert_eq!(words(&join(&once)), once, "{text}");
        }
    }

    #[test]
    fn an_option_takes_the_place_of_what_was_said_before() {
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
            let mut changed = words(before);
            set_option(&mut changed, option, value).unwrap();
            assert_eq!(join(&changed), after, "{before} {option}={value}");
        }
        let none = set_option(&mut words("throughput h"), "speed", "1").unwrap_err();
        assert_eq!(none.problem.object, "--speed");
        assert!(set_option(&mut words("throughput h"), "no-delay", "1").is_err());
    }

    #[test]
    fn what_is_said_of_an_option_is_found() {
        for (text, option, value) in [
            ("throughput h -p 7", "port", Some("7")),
            ("throughput h -p7", "port", Some("7")),
            ("throughput h --port=7 -u", "port", Some("7")),
            ("throughput h --port 7 -p 8", "port", Some("8")),
            ("throughput h", "port", None),
            ("throughput h -p", "port", None),
        ] {
            let found = value_of(&words(text), option);
            assert_eq!(found.as_deref(), value, "{text}");
        }
        assert!(has_option(&words("throughput h"), "length"));
        assert!(!has_option(&words("throughput h"), "speed"));
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
            assert_eq!(argument_of(&words(text), "host").as_deref(), host, "{text}");
        }
    }

    #[test]
    fn options_of_a_side_take_the_place_of_those_of_both() {
        let mut all = words("throughput h -l 64K -u --wait block");
        add(&mut all, &words("--length=1M -t 2"));
        assert_eq!(join(&all), "throughput h -u --wait block --length=1M -t 2");
    }

    #[test]
    fn a_command_within_is_set_apart() {
        let separated = |text: &str| {
            let mut all: Vec<_> = words(text).into_iter().map(Into::into).collect();
            separate(&mut all);
            let all: Vec<String> = all
                .iter()
                .map(|w| w.to_string_lossy().into_owned())
                .collect();
            join(&all)
        };
        for (text, want) in [
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
            assert_eq!(separated(text), want);
        }
    }
}
