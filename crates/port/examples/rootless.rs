//! Runs a command in a user namespace where networks can be built without root: `rootless CMD
//! [ARG…]`.
//!
//! For tests: a test process has too many threads to enter a user namespace itself.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(program) = args.next() else {
        eprintln!("usage: rootless CMD [ARG...]");
        return ExitCode::from(2);
    };
    if let Err(error) = linerate_lab::enter_user_namespace() {
        eprintln!("{}", error.full_text());
        return ExitCode::from(4);
    }
    let error = Command::new(program).args(args).exec();
    eprintln!("{error}");
    ExitCode::FAILURE
}
