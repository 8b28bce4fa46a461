//! `linerate completions SHELL`: a completion script, made from the command line itself.

use clap::CommandFactory;
use linerate_metric::exit;

use crate::args::{Cli, CompletionsArgs};

/// Runs it; gives the exit code.
pub fn run(args: &CompletionsArgs) -> u8 {
    clap_complete::generate(
        args.shell,
        &mut Cli::command(),
        "linerate",
        &mut std::io::stdout(),
    );
    exit::OK
}
