//! Hidden subcommand with which the program runs itself, and its steps.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Hidden subcommand with which the program runs itself.
pub const HOLDER_COMMAND: &str = "lab-holder";
/// Subcommand step that leaves the terminal and makes the namespaces.
pub(crate) const START_STEP: &str = "start";
/// Subcommand step that builds and holds a lab.
pub(crate) const KEEP_STEP: &str = "keep";
/// Subcommand step that executes a command inside a lab.
pub(crate) const ENTER_STEP: &str = "enter";
/// Subcommand step that emulates a link; two interface names and the mode follow.
pub const LINK_STEP: &str = "link";

/// Returns the command for one step of this program, also when its file was replaced or removed.
pub(crate) fn this_program(step: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    // Shown by `ps`; otherwise /proc/self/exe.
    command.arg0("linerate").args([HOLDER_COMMAND, step]);
    command
}
