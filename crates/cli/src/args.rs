//! The command line: every option, with its variable in the environment.

mod capacity;
mod compare;
mod explain;
mod frames;
mod generate;
mod lab;
mod latency;
mod measure;
mod pairs;
mod report;
mod run;
#[cfg(feature = "history")]
mod runs;
mod screen;
mod server;
mod stack;
mod sweep;
mod throughput;
mod ttcp;
mod tune;
mod values;

pub use capacity::{CapacityArgs, Test};
pub use compare::CompareArgs;
pub use explain::ExplainArgs;
pub use frames::PortArgs;
pub use generate::GenerateArgs;
pub use lab::{LabAction, LabArgs};
pub use latency::LatencyArgs;
pub use measure::MeasureArgs;
pub use pairs::{KnobArgs, ManyArgs, PairArgs};
pub use report::{ReportArgs, ReportForm};
pub use run::RunArgs;
#[cfg(feature = "history")]
pub use runs::{ExportForm, RunsAction, RunsArgs, Selection};
pub use screen::ScreenArgs;
pub use server::ServerArgs;
pub use stack::{NearStackArgs, StackArgs, StackHostArgs};
pub use sweep::SweepArgs;
pub use throughput::{Offload, ThroughputArgs};
pub use ttcp::{TargetCodeArgs, TtcpArgs};
pub use tune::TuneArgs;
pub use values::duration;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use linerate_report::style::ColorChoice;

use crate::command::forward::args::ForwardArgs;

/// How fast a network stack goes, why it goes no faster, and what to change
#[derive(Debug, Parser)]
#[command(
    name = "linerate",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  linerate demo                         measure everything on this machine, write a report
  linerate server                       be the far end
  linerate throughput 127.0.0.1         send TCP for 10 s to the server on this machine
  linerate latency 127.0.0.1 -u         UDP round trips
  linerate doctor                       what this machine can do

Every option can also be set in the environment: --time as LINERATE_TIME, and so on.
Exit codes: 0 ok, 1 failed, 2 usage, 3 an --expect missed, a comparison lost or a cause found,
4 privilege or kernel feature missing, 5 the far end refused, vanished or cannot be reached,
6 a comparison stayed undecided, 130 interrupted."
)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The whole command line.
pub fn command() -> clap::Command {
    settle(Cli::command())
}

/// The same as it is parsed and shown on a terminal, whose width decides where lines end.
pub fn parser() -> clap::Command {
    flowing(command())
}

/// Notes behind the options, each paragraph on one line: lines that were broken by hand would be broken
/// twice where a terminal is narrower.
fn flowing(command: clap::Command) -> clap::Command {
    let after = command
        .get_after_help()
        .map(|text| joined(&text.to_string()));
    let command = match after {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(flowing)
}

/// Length from which on a line of prose was broken because it was full.
const FULL: usize = 75;

fn joined(text: &str) -> String {
    let mut out = String::new();
    let mut goes_on = false;
    for line in text.lines() {
        let is_prose = !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if goes_on && is_prose { ' ' } else { '\n' });
        }
        out.push_str(line);
        // A sentence that ends where its line does may be the last of a paragraph.
        goes_on = is_prose && line.len() >= FULL && !line.ends_with(['.', ':', ')']);
    }
    out
}

/// What holds for the options of every command.
fn settle(command: clap::Command) -> clap::Command {
    (command.mut_args(|arg| variable(amount(arg)))).mut_subcommands(settle)
}

/// Names of values that are amounts.
const AMOUNTS: [&str; 8] = [
    "RATE[/BURST]",
    "N[/BURST]",
    "SIZE",
    "TIME",
    "SHARE",
    "BYTES",
    "COUNT",
    "N",
];

/// What stands behind an amount's option is its value: -5 is wrong there, and no option.
fn amount(arg: clap::Arg) -> clap::Arg {
    let names = arg.get_value_names().unwrap_or_default();
    let is_amount = names.iter().any(|name| AMOUNTS.contains(&name.as_str()));
    let may_stand_alone = (arg.get_num_args()).is_some_and(|range| range.min_values() == 0);
    match is_amount && !may_stand_alone {
        true => arg.allow_hyphen_values(true),
        false => arg,
    }
}

/// How an option is set in the environment.
fn variable(arg: clap::Arg) -> clap::Arg {
    // The variables of all options follow one rule, which is told once.
    let arg = arg.hide_env(true);
    let Some(value) = arg.get_env().and_then(std::env::var_os) else {
        return arg;
    };
    let switch = matches!(arg.get_action(), ArgAction::SetTrue);
    // An empty variable is one that is not set, and so is a switch that is off: as a value it would
    // contradict other switches.
    if value.is_empty() || (switch && !is_on(&value)) {
        return arg.env(None::<&'static str>);
    }
    if switch {
        arg.value_parser(FalseyValueParser::new())
    } else {
        arg
    }
}

/// Whether a switch in the environment is on: anything but empty, `0`, `n`, `no`, `f`, `false` and
/// `off`.
fn is_on(value: &std::ffi::OsStr) -> bool {
    let value = value.to_string_lossy().to_ascii_lowercase();
    !matches!(
        value.as_str(),
        "" | "0" | "n" | "no" | "f" | "false" | "off"
    )
}

/// Whether a variable of the environment turns a switch on.
pub fn switched_on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| is_on(&value))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure everything at once on this machine and write a report; no root needed
    Demo(DemoArgs),
    /// Be the far end of other hosts' tests
    Server(ServerArgs),
    /// Measure how much payload arrives in a second
    Throughput(ThroughputArgs),
    /// Measure round trips
    Latency(LatencyArgs),
    /// The classic ttcp: 16 MB one way, and its one-line result
    Ttcp(TtcpArgs),
    /// Print a far end in C, to build into a device: sink, source, echo
    TargetCode(TargetCodeArgs),
    /// Forward frames between ports by poll-mode threads, at once or from a shell
    Forward(Box<ForwardArgs>),
    /// Send frames at a rate, and tell what becomes of them
    Generate(Box<GenerateArgs>),
    /// Measure what a device can carry: throughput, latency, loss and bursts (RFC 2544)
    Capacity(Box<CapacityArgs>),
    /// Say whether two configurations, commands or results differ, with proof
    Compare(Box<CompareArgs>),
    /// Measure every combination of some options, and say which are worth having
    Sweep(Box<SweepArgs>),
    /// Say why a run was no faster, from its record
    Explain(ExplainArgs),
    /// Search options and settings for what makes it better, prove it, and set all back
    Tune(Box<TuneArgs>),
    /// Run our own poll-mode stack as a host on a port: ping, echo, sink, source
    Stack(Box<StackHostArgs>),
    /// Build hosts, switches and links to test on
    Lab(LabArgs),
    /// Run a whole experiment: points, tables, a page, and whether its shape holds
    Run(RunArgs),
    /// Find, tag, note, move and follow what was measured before
    #[cfg(feature = "history")]
    Runs(RunsArgs),
    /// Make a page, a table or a timeline from stored records; several side by side
    Report(ReportArgs),
    /// Say what this machine can and cannot do, and how to enable it
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages, one for each command
    Man(ManArgs),
}

/// Where results go and how they look.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print one JSON document on standard output, and nothing else there
    #[arg(long, env = "LINERATE_JSON", conflicts_with = "json_stream")]
    pub json: bool,
    /// Print one line of JSON for each interval and event, failures and the result included
    #[arg(long, env = "LINERATE_JSON_STREAM")]
    pub json_stream: bool,
    /// Write the record to FILE as JSON; with --json instead of standard output
    #[arg(short = 'o', long, value_name = "FILE", env = "LINERATE_OUTPUT")]
    pub output: Option<PathBuf>,
    /// Print the result only
    #[arg(short, long, env = "LINERATE_QUIET")]
    pub quiet: bool,
    /// Say more: a line for each flow of an interval; with --json, lines on standard error
    #[arg(short, long, env = "LINERATE_VERBOSE")]
    pub verbose: bool,
    /// Keep no record under $XDG_DATA_HOME/linerate/runs
    #[arg(long, env = "LINERATE_NO_STORE")]
    pub no_store: bool,
    /// Colours: auto, always or never
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        env = "LINERATE_COLOR"
    )]
    pub color: ColorChoice,
}

/// `linerate demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate demo                         about half a minute; writes linerate-demo/report.html
  linerate demo --json > demo.json      the same as one document
  linerate demo --json-stream           what happens while it happens, then that document

Its runs are too different for one --expect: `linerate throughput` and `linerate latency` have it.")]
pub struct DemoArgs {
    /// Folder for the report and the records
    #[arg(
        long,
        value_name = "DIR",
        default_value = "linerate-demo",
        env = "LINERATE_DEMO_DIR"
    )]
    pub dir: PathBuf,
    /// Time for each of the seven measurements
    #[arg(short, long, value_name = "TIME", default_value = "3", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Duration,
    /// Use loopback instead of two hosts joined by a virtual link
    #[arg(long, env = "LINERATE_LOOPBACK")]
    pub loopback: bool,
    /// End with exit code 3 if a finding says that something slowed the run down (kind `cause`)
    #[arg(long, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `linerate doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate doctor
  linerate doctor --json")]
pub struct DoctorArgs {
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `linerate completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate completions bash > ~/.local/share/bash-completion/completions/linerate
  linerate completions zsh > ~/.zfunc/_linerate
  linerate completions fish > ~/.config/fish/completions/linerate.fish")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `linerate man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate man ~/.local/share/man/man1         then: man linerate, man linerate-throughput")]
pub struct ManArgs {
    /// The folder that they go to
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_flows_and_examples_stay_lines() {
        let full = "word ".repeat(16);
        let full = full.trim_end();
        let text = format!("Examples:\n  linerate x\n\n{full}\nends here.\nShort.\nNext.");
        let want = format!("Examples:\n  linerate x\n\n{full} ends here.\nShort.\nNext.");
        assert_eq!(joined(&text), want);
    }
}
