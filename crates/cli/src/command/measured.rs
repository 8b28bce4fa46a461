//! Measuring commands that another command runs: what they measure, and for how long.

use clap::FromArgMatches;
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
    let refused = |situation: String| {
        let next =
            format!("put options of `{outer}` before the measuring command, its own after it");
        Failure::usage(Problem::new(situation, words::join(command), next))
    };
    let cli = parsed.map_err(|error| {
        let text = error.to_string();
        let first: Vec<_> = text
            .lines()
            .map(str::trim)
            .take_while(|line| !line.is_empty())
            .collect();
        refused(first.join(" ").trim_start_matches("error: ").to_owned())
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
