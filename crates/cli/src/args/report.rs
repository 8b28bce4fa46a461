//! `linerate report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use linerate_report::style::ColorChoice;

/// `linerate report`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate report last                            the text that the run printed
  linerate report last --html last.html           a page with plots, readable without a network
  linerate report 3f9a1c last                     side by side, with intervals
  linerate report before.json after.json --format markdown -o - >> pull-request.md
  linerate report last --trace calls.pftrace      its timeline, for ui.perfetto.dev

A record is an id of `linerate runs list`, enough of its beginning or end, last, last~1, or a file.")]
pub struct ReportArgs {
    /// Records: ids, files, or folders of results
    #[arg(required = true, value_name = "RECORD")]
    pub records: Vec<String>,
    /// text, markdown, csv, json or html
    #[arg(
        long,
        value_name = "FORM",
        default_value = "text",
        env = "LINERATE_FORMAT"
    )]
    pub format: ReportForm,
    /// The same as --format markdown: a table for a pull request
    #[arg(long, conflicts_with_all = ["format", "json"], env = "LINERATE_MARKDOWN")]
    pub markdown: bool,
    /// The same as --format json
    #[arg(long, conflicts_with = "format", env = "LINERATE_JSON")]
    pub json: bool,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE", env = "LINERATE_OUTPUT")]
    pub output: Option<PathBuf>,
    /// Also write a page with plots
    #[arg(long, value_name = "FILE", env = "LINERATE_HTML")]
    pub html: Option<PathBuf>,
    /// Write the timeline of a run that has one: for ui.perfetto.dev, or as the Trace Event Format where
    /// FILE ends in .json
    #[arg(long, value_name = "FILE", env = "LINERATE_TRACE")]
    pub trace: Option<PathBuf>,
    /// Title of the page
    #[arg(long, value_name = "TEXT", env = "LINERATE_TITLE")]
    pub title: Option<String>,
    /// Colours: auto, always or never
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        env = "LINERATE_COLOR"
    )]
    pub color: ColorChoice,
}

/// Forms of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportForm {
    /// For a terminal
    Text,
    /// For a pull request
    Markdown,
    /// A row for each figure
    Csv,
    /// One document: of one record the record itself
    Json,
    /// A page with plots
    Html,
}
