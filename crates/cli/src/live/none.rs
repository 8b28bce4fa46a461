//! Replacement for the full-screen display in a build without `--tui`.

use linerate_host::stop_flag::StopFlag;

use crate::event_queue::EventSender;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::printer::run_with_printer;

/// Accepts everything: there is no `--tui`.
pub fn check_terminal(_enabled: bool) -> Result<(), CommandFailure> {
    Ok(())
}

/// Runs `body` with a printer.
///
/// # Errors
/// As [`run_with_printer`].
pub fn run_with_output<T>(
    _enabled: bool,
    _stop: &StopFlag,
    output: &mut CommandOutput,
    body: impl FnOnce(&EventSender) -> T,
) -> Result<T, CommandFailure> {
    run_with_printer(output, body)
}

/// Runs `body`; never fails.
pub fn run_series<T>(
    _enabled: bool,
    _title: &str,
    _stop: &StopFlag,
    output: &mut CommandOutput,
    body: impl FnOnce(&mut CommandOutput) -> T,
) -> Result<T, CommandFailure> {
    Ok(body(output))
}
