//! `linerate doctor`: supported features of this machine, and how to enable the others.

use linerate_metric::exit;
use linerate_report::text;

use crate::args::DoctorArgs;
use crate::output::Output;

/// Runs the command and returns the exit code.
pub fn run(args: DoctorArgs) -> u8 {
    let output = Output::new(&args.output);
    let examination = linerate_host::doctor::examine();
    let printed = output.document(&examination, |style| text::examination(&examination, style));
    match printed {
        Ok(()) => exit::OK,
        Err(failure) => {
            output.failure(&failure);
            failure.code
        }
    }
}
