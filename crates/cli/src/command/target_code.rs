//! `linerate target-code`: a far end in C, to build into a device.

use linerate_metric::exit;

use crate::args::TargetCodeArgs;
use crate::output::print;

/// The file, with one place that the options fill in.
const SOURCE: &str = include_str!("target/target.c");

/// What stands where the stamps are switched.
const SWITCH: &str = "@STAMPS@";

/// Prints it; gives the exit code.
pub fn run(args: &TargetCodeArgs) -> u8 {
    print(source(args.stamps).trim_end());
    exit::OK
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
