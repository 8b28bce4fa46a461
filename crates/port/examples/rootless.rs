//! Runs a command where networks can be built without being root: `rootless CMD [ARG…]`.
//!
//! For tests, whose own process has too many threads to enter a user namespace.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: rootless CMD [ARG...]");
        return ExitCode::from(2);
    };
    if let Err(error) = linerate_lab::enter_user_namespace() {
        eprintln!("{}", error.full_text());
        return ExitCode::from(4);
    }
    let error = Command::new(program).args(words).exec();
    eprintln!("{error}");
    ExitCode::FAILURE
}
