//! Options of `linerate explain`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

/// `linerate explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate explain run.json                             why that run was no faster
  linerate explain 20261121T144042Z-3f9a1c              a run of the store, by its id
  linerate throughput HOST --json | linerate explain -  of what comes in
  linerate explain run.json --fail-on-finding           exit code 3 if something slowed it down
  linerate explain run.json --json | jq '.findings[0]'  the same record with its findings

docs/CAUSES.md has a section for each cause: how it shows, what to do, when the finding is wrong.")]
pub struct ExplainArgs {
    /// The record, or a set of them: a file, the id of a stored one, or - for standard input
    #[arg(value_name = "RECORD")]
    pub record: String,
    /// End with exit code 3 if a finding says that something slowed the run down (kind `cause`)
    #[arg(long, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Write a page with all figures and charts to FILE: self-contained, for any browser
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Output",
        env = "LINERATE_HTML"
    )]
    pub html: Option<PathBuf>,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}
