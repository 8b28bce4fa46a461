//! Measuring commands that another command runs: what they measure, and for how long.

use clap::FromArgMatches;
use clap::error::ErrorKind;
use linerate_metric::event::Problem;

use crate::args::{self, Cli, Command};
use crate::failure::Failure;
use crate::{plan, words};

/// What a measuring command measures; refuses what makes no sense before anything runs.
pub fn kind_of(outer: &str, command: &[String]) -> Result<linerate_metric::plan::Kind, Failure> {
    use linerate_metric::plan::Kind;
    let line = std::iter::once("linerate").chain(command.iter().map(String::as_str));
    let parsed = args::command()
        .try_get_matches_from(line)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let refused_with = |situation: String, next: String| {
        Failure::usage(Problem::new(situation, words::join(command), next))
    };
    let refused = |situation: String| {
        let next =
            format!("put options of `{outer}` before the measuring command, its own after it");
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
            // The option is where it belongs, its value is not one.
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
            _ => Err(refused("makes several runs, and one is needed".to_owned())),
        },
        Command::Ttcp(_) => Ok(Kind::Throughput),
        Command::Forward(_) => Ok(Kind::Forward),
        Command::Generate(_) => Ok(Kind::Generate),
        _ => Err(refused(format!(
            "measures nothing: {} do",
            words::MEASURING.join(", ")
        ))),
    }
}

/// What to do about a value that its option does not take.
fn next_of_value(outer: &str) -> &'static str {
    match outer {
        "sweep" => {
            "give a value that it takes; --over takes several as A,B,C or as FIRST..LAST:xFACTOR"
        }
        _ => "give a value that it takes",
    }
}

/// Gives a measuring command that names neither a time nor an amount a second.
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

/// A seed short enough to be typed again.
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
                "give a value that it takes; --over takes several as A,B,C or as FIRST..LAST:xFACTOR",
            ),
            (
                "compare",
                "throughput h --rcvbuf=4K.1M",
                "give a value that it takes",
            ),
            (
                "sweep",
                "throughput h --over rcvbuf=1K",
                "put options of `sweep` before the measuring command, its own after it",
            ),
        ] {
            let command: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let failure = kind_of(outer, &command).expect_err("it makes no sense");
            assert_eq!(failure.problem.next_step, next, "{line}");
        }
    }
}
