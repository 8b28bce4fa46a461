//! `linerate report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use linerate_report::style::ColorChoice;

/// `linerate report`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate report last                            the text that the run printed
  linerate report last --html last.html           a self-contained report (HTML) with plots
  linerate report 3f9a1c last                     side by side, with intervals
  linerate report results/ --html week.html       records of a directory; many are charts
  linerate report before.json after.json --format markdown -o - >> pull-request.md
  linerate report last --trace calls.pftrace      its timeline, for ui.perfetto.dev

A record is an id of `linerate runs list`, a unique start or end of one, last, last~1, a file, or a
directory of records.")]
pub struct ReportArgs {
    /// Records: ids, files, or directories of results
    #[arg(required = true, value_name = "RECORD")]
    pub records: Vec<String>,
    /// Format: text, markdown, csv, json or html
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        env = "LINERATE_FORMAT"
    )]
    pub format: ReportFormat,
    /// Print a table for a pull request, as --format markdown does
    #[arg(long, conflicts_with_all = ["format", "json"], env = "LINERATE_MARKDOWN")]
    pub markdown: bool,
    /// Print JSON, as --format json does
    #[arg(long, conflicts_with = "format", env = "LINERATE_JSON")]
    pub json: bool,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE", env = "LINERATE_OUTPUT")]
    pub output: Option<PathBuf>,
    /// Also write a report (HTML) with plots
    #[arg(long, value_name = "FILE", env = "LINERATE_HTML")]
    pub html: Option<PathBuf>,
    /// Write the timeline of a run to FILE, for ui.perfetto.dev; in Trace Event Format if FILE ends
    /// in .json
    #[arg(long, value_name = "FILE", env = "LINERATE_TRACE")]
    pub trace: Option<PathBuf>,
    /// Title of the report
    #[arg(long, value_name = "TEXT", env = "LINERATE_TITLE")]
    pub title: Option<String>,
    /// Use of colours: auto, always or never
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        env = "LINERATE_COLOR"
    )]
    pub color: ColorChoice,
}

/// Formats of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Text for a terminal
    Text,
    /// Table for a pull request
    Markdown,
    /// One row for each figure
    Csv,
    /// One document; for a single record, the record itself
    Json,
    /// Self-contained page with plots
    Html,
}
