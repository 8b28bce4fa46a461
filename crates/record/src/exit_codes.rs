//! Exit codes: a contract with scripts.

/// Success.
pub const OK: u8 = 0;
/// The run failed.
pub const FAILED: u8 = 1;
/// Invalid command line.
pub const USAGE: u8 = 2;
/// A gate failed: a threshold, an expected shape, a regression, or a finding with
/// `--fail-on-finding`.
pub const GATE: u8 = 3;
/// A privilege or a kernel feature is missing.
pub const MISSING: u8 = 4;
/// The peer rejected the run, disappeared, or could not be reached.
pub const PEER: u8 = 5;
/// A comparison stayed undecided: too few pairs, or too much noise.
pub const UNDECIDED: u8 = 6;
/// Ended by SIGINT or SIGTERM; the partial result was printed and stored.
pub const INTERRUPTED: u8 = 130;
