//! Replacement for the full-screen display in a build without `--tui`.

use linerate_host::stop::Stop;

use crate::failure::Failure;
use crate::output::Output;
use crate::printer::{Teller, while_printing};

/// Accepts everything: there is no `--tui`.
pub fn check(_asked: bool) -> Result<(), Failure> {
    Ok(())
}

/// Runs `body` with a printer.
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
/// Never fails. None here.
pub fn series<T>(
    _asked: bool,
    _title: &str,
    _stop: &Stop,
    output: &mut Output,
    body: impl FnOnce(&mut Output) -> T,
) -> Result<T, Failure> {
    Ok(body(output))
}
