//! `linerate completions SHELL`: a completion script, made from the command line itself.

use linerate_metric::exit;

use crate::args::{self, CompletionsArgs};
use crate::output::print;

/// Runs it; gives the exit code.
pub fn run(args: &CompletionsArgs) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "linerate", &mut script);
    print(String::from_utf8_lossy(&script).trim_end());
    exit::OK
}
