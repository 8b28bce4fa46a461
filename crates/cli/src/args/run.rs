//! `linerate run`.

use std::path::PathBuf;

use clap::Args;
use linerate_experiment::MAX_REPEATS;

use super::{OutputArgs, ScreenArgs, heading};

/// `linerate run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Shipped: stack-tuning, pmd-threads, ttcp-calls, udp-response, udp-hops

Examples:
  linerate run udp-hops --quick              write the report to linerate-udp-hops
  linerate run mine.toml                     run an experiment of your own
  linerate run udp-hops --print > mine.toml  start from a shipped one
  linerate run udp-hops --on 192.0.2.7 --point hops=1 --label bench
                                             measure to a host, each point into
                                             the same table
  linerate run --resume 20261121T144042Z-3f9a1c
                                             continue after a crash or Ctrl-C

An experiment file lists knobs to vary, networks, servers, commands of linerate that measure a point,
figures to read from their records, tables, plots, and the expected results. The command ends with exit
code 3 if an expected result does not hold.")]
pub struct RunArgs {
    /// Shipped experiment, or a file
    #[arg(value_name = "FILE|NAME")]
    pub experiment: Option<String>,
    /// Fewer and shorter points: under a minute
    #[arg(long, env = "LINERATE_QUICK")]
    pub quick: bool,
    /// Run only points with this value of a knob (hops=2); repeatable
    #[arg(long, value_name = "KNOB=VALUE", value_parser = point, env = "LINERATE_POINT")]
    pub point: Vec<(String, String)>,
    /// Add the points to the table of this name; they replace earlier ones
    #[arg(long, value_name = "NAME", value_parser = label, env = "LINERATE_LABEL")]
    pub label: Option<String>,
    /// Measure from here to HOST, where `linerate server` runs (on PORT), instead of in networks on
    /// this machine; steps to do by hand are printed, and the run waits for them
    #[arg(long, value_name = "HOST[:PORT]", env = "LINERATE_ON")]
    pub on: Option<String>,
    /// Number of rounds over all points [default: that of the file]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_REPEATS)), help_heading = heading::CHECKS, env = "LINERATE_REPEAT")]
    pub repeat: Option<u32>,
    /// Directory for report.html, result.json and the records [default: linerate-NAME, with
    /// --label linerate-NAME-LABEL]
    #[arg(long, value_name = "DIR", env = "LINERATE_RUN_DIR")]
    pub dir: Option<PathBuf>,
    /// Continue an interrupted experiment: its id, or its journal file
    #[arg(long, value_name = "ID|FILE", conflicts_with_all = ["experiment", "quick", "point", "label", "on", "repeat", "dir", "print", "print_lab", "list"], env = "LINERATE_RESUME")]
    pub resume: Option<String>,
    /// Print the experiment file
    #[arg(long, conflicts_with = "quick", env = "LINERATE_PRINT")]
    pub print: bool,
    /// Print the network of the experiment as a lab file, for `linerate lab up`
    #[arg(long, conflicts_with_all = ["quick", "print"], env = "LINERATE_PRINT_LAB")]
    pub print_lab: bool,
    /// List the shipped experiments
    #[arg(long, env = "LINERATE_LIST")]
    pub list: bool,
    #[command(flatten)]
    pub screen: ScreenArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

fn label(text: &str) -> Result<String, String> {
    match linerate_experiment::is_valid_name(text) {
        true => Ok(text.to_owned()),
        false => Err("the label names a directory: use letters, digits, `-` and `_`".to_owned()),
    }
}

fn point(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((knob, value)) if !knob.is_empty() => Ok((knob.to_owned(), value.to_owned())),
        _ => Err("write KNOB=VALUE, as in hops=2".to_owned()),
    }
}
