//! Options of `linerate explain`.

use std::path::PathBuf;

use clap::Args;

use super::{OutputArgs, heading};

/// `linerate explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate explain run.json                             what limited that run
  linerate explain 20261121T144042Z-3f9a1c              a stored run, by its id
  linerate throughput HOST --json | linerate explain -  the record on standard input
  linerate explain run.json --fail-on-finding           exit code 3 if something slowed it down
  linerate explain run.json --json | jq '.findings[0]'  print the record with its findings
  linerate explain receive-window                       about a cause: evidence, remedy, errors

A cause can be changed, and it costs performance. A limit is what the run reached: the link, a
CPU, the requested rate. A note is a condition that makes a figure doubtful.")]
pub struct ExplainArgs {
    /// Record or set of records: a file, the id of a stored one, or - for standard input; or a
    /// cause
    #[arg(value_name = "RECORD")]
    pub record: String,
    /// End with exit code 3 if the run has a finding of kind `cause`
    #[arg(long, help_heading = heading::CHECKS, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Write a report (HTML, self-contained) with all figures and charts to FILE
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT, env = "LINERATE_HTML")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}
