//! Checks of the measuring command that another command runs.

use clap::FromArgMatches;
use clap::error::ErrorKind;
use linerate_metric::event::Problem;

use crate::args::{self, Cli, Command};
use crate::failure::Failure;
use crate::{plan, shell_words};

/// Returns the kind of measurement; rejects invalid command lines before any run.
pub fn kind_of(outer: &str, command: &[String]) -> Result<linerate_metric::plan::Kind, Failure> {
    use linerate_metric::plan::Kind;
    let line = std::iter::once("linerate").chain(command.iter().map(String::as_str));
    let parsed = args::command()
        .try_get_matches_from(line)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let refused_with = |situation: String, next: String| {
        Failure::usage(Problem::new(situation, shell_words::join(command), next))
    };
    let refused = |situation: String| {
        let next = format!(
            "put options of `{outer}` before the measuring command, its own options after it"
        );
        refused_with(situation, next)
    };
    let cli = parsed.map_err(|error| {
        let text = error.to_string();
        let first: Vec<_> = text
            .lines()
            .map(str::trim)
            .take_while(|line| !line.is_empty())
            .collect();
        let situation = first.join(" ").trim_start_matches("error: ").to_owned();
        match error.kind() {
            // The option is in the right place, but its value is invalid.
            ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
                refused_with(situation, next_of_value(outer).to_owned())
            }
            _ => refused(situation),
        }
    })?;
    match cli.command {
        Command::Throughput(args) => plan::throughput(&args).map(|_| Kind::Throughput),
        Command::Latency(args) => match plan::latency(&args)? {
            plan::LatencySeries::One(_) => Ok(Kind::Latency),
            _ => Err(refused("makes several runs, but must make one".to_owned())),
        },
        Command::Ttcp(_) => Ok(Kind::Throughput),
        Command::Forward(_) => Ok(Kind::Forward),
        Command::Generate(_) => Ok(Kind::Generate),
        _ => Err(refused(format!(
            "is not a measuring command: use {}",
            shell_words::MEASURING.join(", ")
        ))),
    }
}

/// Returns the next step for an invalid value.
fn next_of_value(outer: &str) -> &'static str {
    match outer {
        "sweep" => "give a valid value; --over takes several as A,B,C or as FIRST..LAST:xFACTOR",
        _ => "give a valid value",
    }
}

/// Adds `-t 1` to a measuring command without time and amount.
pub fn timed(all: &mut Vec<String>) {
    let says = |word: &String| {
        ["-t", "-n", "--time=", "--bytes=", "--count="]
            .iter()
            .any(|start| word.starts_with(start))
            || ["--time", "--bytes", "--count"].contains(&word.as_str())
    };
    let takes_time = all.first().is_some_and(|name| name != "ttcp");
    if takes_time && !all.iter().any(says) {
        all.extend(["-t".to_owned(), "1".to_owned()]);
    }
}

/// Returns a random seed that is short enough to be typed.
pub fn fresh_seed() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let state = std::collections::hash_map::RandomState::new();
    let mut hasher = state.build_hasher();
    hasher.write_u32(std::process::id());
    (hasher.finish() % 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_makes_no_sense_is_told_apart_from_an_option_in_the_wrong_place() {
        for (outer, line, next) in [
            (
                "sweep",
                "throughput h --rcvbuf=4K.1M",
                "give a valid value; --over takes several as A,B,C or as FIRST..LAST:xFACTOR",
            ),
            (
                "compare",
                "throughput h --rcvbuf=4K.1M",
                "give a valid value",
            ),
            (
                "sweep",
                "throughput h --over rcvbuf=1K",
                "put options of `sweep` before the measuring command, its own options after it",
            ),
        ] {
            let command: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let failure = kind_of(outer, &command).expect_err("it makes no sense");
            assert_eq!(failure.problem.next_step, next, "{line}");
        }
    }
}
