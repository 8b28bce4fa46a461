//! Printer thread: measuring threads never wait for a terminal, a pipe or a disk.

use std::thread;

use linerate_record::event::ErrorReport;

use crate::event_queue::{EventSender, printer_queue};
use crate::failure::CommandFailure;
use crate::output::CommandOutput;

/// Runs `body` while a thread prints the events it sends; returns when all of them are printed.
///
/// # Errors
/// Fails if the thread cannot be started.
pub fn run_with_printer<T>(
    output: &mut CommandOutput,
    body: impl FnOnce(&EventSender) -> T,
) -> Result<T, CommandFailure> {
    thread::scope(|scope| {
        // The sender is owned here: if `body` panics, the queue closes and the printer ends.
        let (sender, receiver) = printer_queue();
        let print = move || {
            while let Some((at, event)) = receiver.receive() {
                output.print_event(&event, at);
                for warning in receiver.take_drop_warnings() {
                    output.warn(&warning);
                }
            }
        };
        thread::Builder::new()
            .name("printer".to_owned())
            .spawn_scoped(scope, print)
            .map_err(|error| {
                CommandFailure::failed(ErrorReport::new(
                    format!("cannot start the printer thread ({error})"),
                    "this process",
                    "raise the process limit: `ulimit -u`",
                ))
            })?;
        let result = body(&sender);
        sender.finish();
        Ok(result)
    })
}
