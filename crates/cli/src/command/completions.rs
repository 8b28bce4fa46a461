//! `linerate completions SHELL`: a completion script, generated from the command line definition.

use clap::builder::PossibleValuesParser;
use linerate_experiment::builtin::BUILTIN_EXPERIMENTS;
use linerate_record::exit_codes;

use crate::args::{self, CompletionsArgs};
use crate::standard_streams::print_stdout;

/// Runs the command and returns the exit code.
pub fn run(args: &CompletionsArgs) -> u8 {
    let mut script = Vec::new();
    // Any file is accepted too, but a shell can only offer the shipped experiments.
    let names = PossibleValuesParser::new(BUILTIN_EXPERIMENTS.iter().map(|(name, _)| *name));
    let mut command = args::command().mut_subcommand("run", |run| {
        run.mut_arg("experiment", |arg| arg.value_parser(names))
    });
    clap_complete::generate(args.shell, &mut command, "linerate", &mut script);
    print_stdout(String::from_utf8_lossy(&script).trim_end());
    exit_codes::OK
}
