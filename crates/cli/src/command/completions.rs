//! `linerate completions SHELL`: a completion script, made from the command line itself.

use linerate_metric::exit;

use crate::args::{self, CompletionsArgs};

/// Runs it; gives the exit code.
pub fn run(args: &CompletionsArgs) -> u8 {
    clap_complete::generate(
        args.shell,
        &mut args::command(),
        "linerate",
        &mut std::io::stdout(),
    );
    exit::OK
}
