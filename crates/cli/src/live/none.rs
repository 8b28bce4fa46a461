//! A build without `--tui`: everything is printed.

use linerate_host::stop::Stop;

use crate::failure::Failure;
use crate::output::Output;
use crate::printer::{Teller, while_printing};

/// There is nothing to refuse.
pub fn check(_asked: bool) -> Result<(), Failure> {
    Ok(())
}

/// Runs `body` beside a printer.
///
/// # Errors
/// As [`while_printing`].
pub fn while_told<T>(
    _asked: bool,
    _stop: &Stop,
    output: &mut Output,
    body: impl FnOnce(&Teller) -> T,
) -> Result<T, Failure> {
    while_printing(output, body)
}

/// Runs `body`.
///
/// # Errors
/// None here.
pub fn series<T>(
    _asked: bool,
    _title: &str,
    _stop: &Stop,
    output: &mut Output,
    body: impl FnOnce(&mut Output) -> T,
) -> Result<T, Failure> {
    Ok(body(output))
}
