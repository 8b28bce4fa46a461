//! `linerate doctor`: supported features of this machine, and how to enable the others.

use linerate_record::exit_codes;
use linerate_report::text;

use crate::args::DoctorArgs;
use crate::output::CommandOutput;

/// Runs the command and returns the exit code.
pub fn run(args: DoctorArgs) -> u8 {
    let output = CommandOutput::new(&args.output);
    let report = linerate_host::doctor::run_checks();
    let printed =
        output.write_document(&report, |style| text::render_doctor_report(&report, style));
    match printed {
        Ok(()) => exit_codes::OK,
        Err(failure) => {
            output.report_failure(&failure);
            failure.code
        }
    }
}
