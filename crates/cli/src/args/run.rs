//! `linerate run`.

use std::path::PathBuf;

use clap::Args;
use linerate_experiment::MOST_REPEATS;

use super::{OutputArgs, ScreenArgs};

/// `linerate run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Shipped: stack-tuning, pmd-threads, ttcp-calls, udp-response, udp-hops

Examples:
  linerate run udp-hops --quick              a page in linerate-udp-hops
  linerate run mine.toml                     an experiment of your own
  linerate run udp-hops --print > mine.toml  begin with one that works
  linerate run udp-hops --on 192.0.2.7 --point hops=1 --label bench
                                             against a host; each point into
                                             the same table
  linerate run --resume 20261121T144042Z-3f9a1c
                                             go on after a crash or Ctrl-C

An experiment is a file: knobs to vary, a network or none, far ends, commands of linerate that measure a
point, figures to read from their records, tables, plots, and the shape that is expected. Ends with exit
code 3 where that shape does not hold.")]
pub struct RunArgs {
    /// A shipped experiment, or a file
    #[arg(value_name = "FILE|NAME")]
    pub experiment: Option<String>,
    /// Fewer points, each shorter: under a minute
    #[arg(long, env = "LINERATE_QUICK")]
    pub quick: bool,
    /// Only points with this value of a knob (hops=2); repeatable
    #[arg(long, value_name = "KNOB=VALUE", value_parser = point, env = "LINERATE_POINT")]
    pub point: Vec<(String, String)>,
    /// Add the points to the table of this name, in place of earlier ones
    #[arg(long, value_name = "NAME", value_parser = label, env = "LINERATE_LABEL")]
    pub label: Option<String>,
    /// Measure from here to HOST, where `linerate server` runs (on PORT), instead of in networks on this
    /// machine; what hands must set or start there is told, and it waits for that
    #[arg(long, value_name = "HOST[:PORT]", env = "LINERATE_ON")]
    pub on: Option<String>,
    /// Rounds over all points [default: as the file says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_REPEATS)), env = "LINERATE_REPEAT")]
    pub repeat: Option<u32>,
    /// Folder for report.html, result.json and the records [default: linerate-NAME, with
    /// --label linerate-NAME-LABEL]
    #[arg(long, value_name = "DIR", env = "LINERATE_RUN_DIR")]
    pub dir: Option<PathBuf>,
    /// Go on with an experiment that was ended half-way: its id, or the file of its journal
    #[arg(long, value_name = "ID|FILE", conflicts_with_all = ["experiment", "quick", "point", "label", "on", "repeat", "dir", "print", "print_lab", "list"], env = "LINERATE_RESUME")]
    pub resume: Option<String>,
    /// Print the experiment's file
    #[arg(long, conflicts_with = "quick", env = "LINERATE_PRINT")]
    pub print: bool,
    /// Print the experiment's network as a lab file, for `linerate lab up`
    #[arg(long, conflicts_with_all = ["quick", "print"], env = "LINERATE_PRINT_LAB")]
    pub print_lab: bool,
    /// List what ships
    #[arg(long, env = "LINERATE_LIST")]
    pub list: bool,
    /// A screen meanwhile
    #[command(flatten)]
    pub screen: ScreenArgs,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

fn label(text: &str) -> Result<String, String> {
    match linerate_experiment::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("a folder is named after it: letters, digits, `-` and `_`".to_owned()),
    }
}

fn point(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((knob, value)) if !knob.is_empty() => Ok((knob.to_owned(), value.to_owned())),
        _ => Err("write KNOB=VALUE, as in hops=2".to_owned()),
    }
}
