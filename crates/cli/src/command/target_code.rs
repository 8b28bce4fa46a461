//! `linerate target-code`: a server in C, to build into a device.

use linerate_record::exit_codes;

use crate::args::TargetCodeArgs;
use crate::standard_streams::print_stdout;

/// Source with one placeholder for the options.
const SOURCE: &str = include_str!("target/target.c");

/// Placeholder for the value of `LINERATE_STAMPS`.
const SWITCH: &str = "@STAMPS@";

/// Prints the source and returns the exit code.
pub fn run(args: &TargetCodeArgs) -> u8 {
    print_stdout(source(args.stamps).trim_end());
    exit_codes::OK
}

fn source(stamps: bool) -> String {
    SOURCE.replace(SWITCH, if stamps { "1" } else { "0" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_filled_in() {
        assert_eq!(SOURCE.matches(SWITCH).count(), 1);
        assert!(source(true).contains("#define LINERATE_STAMPS 1\n"));
        assert!(source(false).contains("#define LINERATE_STAMPS 0\n"));
    }
}
