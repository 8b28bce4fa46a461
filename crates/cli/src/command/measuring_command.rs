//! Checks of the measuring command that another command runs.

use clap::FromArgMatches;
use clap::error::ErrorKind;
use linerate_record::event::ErrorReport;

use crate::args::{self, Cli, Command};
use crate::failure::CommandFailure;
use crate::{plan, shell_words};

/// Returns the kind of measurement; rejects invalid command lines before any run.
pub fn kind_of(
    outer: &str,
    command: &[String],
) -> Result<linerate_record::plan::RunKind, CommandFailure> {
    use linerate_record::plan::RunKind;
    let line = std::iter::once("linerate").chain(command.iter().map(String::as_str));
    let parsed = args::command()
        .try_get_matches_from(line)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let reject_with = |situation: String, next: String| {
        CommandFailure::usage(ErrorReport::new(
            situation,
            shell_words::join_args(command),
            next,
        ))
    };
    let reject = |situation: String| {
        let next = format!(
            "put options of `{outer}` before the measuring command, its own options after it"
        );
        reject_with(situation, next)
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
                reject_with(situation, next_of_value(outer).to_owned())
            }
            _ => reject(situation),
        }
    })?;
    match cli.command {
        Command::Throughput(args) => plan::plan_throughput(&args).map(|_| RunKind::Throughput),
        Command::Latency(args) => match plan::plan_latency(&args)? {
            plan::LatencySeries::Single(_) => Ok(RunKind::Latency),
            _ => Err(reject("makes several runs, but must make one".to_owned())),
        },
        Command::Ttcp(_) => Ok(RunKind::Throughput),
        Command::Forward(_) => Ok(RunKind::Forward),
        Command::Generate(_) => Ok(RunKind::Generate),
        _ => Err(reject(format!(
            "is not a measuring command: use {}",
            shell_words::MEASURING_COMMANDS.join(", ")
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
pub fn add_default_time(all: &mut Vec<String>) {
    let is_amount = |arg: &String| {
        ["-t", "-n", "--time=", "--bytes=", "--count="]
            .iter()
            .any(|start| arg.starts_with(start))
            || ["--time", "--bytes", "--count"].contains(&arg.as_str())
    };
    let has_time_option = all.first().is_some_and(|name| name != "ttcp");
    if has_time_option && !all.iter().any(is_amount) {
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
    fn invalid_values_and_misplaced_options_have_different_hints() {
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
