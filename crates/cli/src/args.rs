//! The command line: commands, options and the environment variables that set them.

mod capacity;
mod compare;
mod explain;
pub mod forward;
mod frames;
mod generate;
pub mod heading;
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
pub mod tool_options;
mod ttcp;
mod tune;
mod values;

pub use capacity::{CapacityArgs, Rfc2544Test};
pub use compare::CompareArgs;
pub use explain::ExplainArgs;
pub use forward::ForwardArgs;
pub use frames::PortArgs;
pub use generate::GenerateArgs;
pub use lab::{LabAction, LabArgs};
pub use latency::LatencyArgs;
pub use measure::MeasureArgs;
pub use pairs::{KnobArgs, PairArgs, SeriesArgs};
pub use report::{ReportArgs, ReportFormat};
pub use run::RunArgs;
#[cfg(feature = "history")]
pub use runs::{ExportFormat, RecordSelection, RunsAction, RunsArgs};
pub use screen::ScreenArgs;
pub use server::ServerArgs;
pub use stack::{LocalStackArgs, StackArgs, StackHostArgs};
pub use sweep::SweepArgs;
pub use throughput::{OffloadOption, ThroughputArgs};
pub use ttcp::{TargetCodeArgs, TtcpArgs};
pub use tune::TuneArgs;
pub use values::duration;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use linerate_interop::CLIENT_PROTOCOLS;
use linerate_record::plan::RunKind;
use linerate_report::style::ColorChoice;

/// Widest help, in columns.
const MAX_HELP_COLUMNS: usize = 100;

/// Measure the throughput and latency of a network stack, find what limits it, and tune it
#[derive(Debug, Parser)]
#[command(
    name = "linerate",
    version,
    max_term_width = MAX_HELP_COLUMNS,
    after_help = "\
Examples:
  linerate demo                         measure everything on this machine, write a report
  linerate server                       run the server
  linerate throughput 127.0.0.1         send TCP for 10 s to the server on this machine
  linerate latency 127.0.0.1 -u         UDP round trips
  linerate doctor                       what this machine supports

An environment variable sets each option too: LINERATE_TIME for --time, and so on.
Exit codes: 0 success; 1 failure; 2 wrong usage; 3 a check failed (--expect, a comparison,
--fail-on-finding); 4 a privilege or kernel feature is missing; 5 the server rejected the run, was lost or
cannot be reached; 6 a comparison is undecided; 130 interrupted."
)]
pub struct Cli {
    /// Command to run
    #[command(subcommand)]
    pub command: Command,
}

/// Returns the full command line.
pub fn command() -> clap::Command {
    let command = Cli::command()
        .mut_subcommand("throughput", |command| {
            with_protocols(command, RunKind::Throughput)
        })
        .mut_subcommand("latency", |command| {
            with_protocols(command, RunKind::Latency).mut_arg("length", |arg| {
                arg.help("Bytes of each message (64K = 65536), or several sizes: 64,1024,32K")
            })
        });
    prepare_args(command)
}

/// Adds the protocols that `--peer` takes for a kind of measurement to its help.
fn with_protocols(command: clap::Command, kind: RunKind) -> clap::Command {
    let usable = CLIENT_PROTOCOLS
        .iter()
        .filter(|protocol| protocol.kinds.contains(&kind));
    let names: Vec<_> = usable.map(|protocol| protocol.name).collect();
    command.mut_arg("peer", |arg| {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help}: {}; auto detects it", names.join(", ")))
    })
}

/// Returns the command line for parsing and help, with notes that wrap at the terminal's width.
pub fn parser() -> clap::Command {
    unwrap_notes(command())
}

/// Joins the hand-broken lines of the notes after the options, so that clap wraps each paragraph
/// once.
fn unwrap_notes(command: clap::Command) -> clap::Command {
    let after = command
        .get_after_help()
        .map(|text| narrow_remarks(&join_prose(&text.to_string())));
    let command = match after {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(unwrap_notes)
}

/// Length in bytes from which a line of prose counts as broken because it was full.
const FULL_LINE_BYTES: usize = 75;

/// Puts the remarks of examples below them where the terminal is too narrow.
fn narrow_remarks(text: &str) -> String {
    let columns = crate::standard_streams::help_columns().min(MAX_HELP_COLUMNS);
    let lines = text.lines().map(|line| {
        let columns_of_line = line
            .strip_prefix("  ")
            .and_then(|line| line.split_once("  "));
        match columns_of_line {
            Some((example, remark)) if line.chars().count() > columns && !example.is_empty() => {
                format!("  {example}\n      {}", remark.trim_start())
            }
            _ => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn join_prose(text: &str) -> String {
    let mut out = String::new();
    let mut is_open = false;
    for line in text.lines() {
        let is_prose = !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if is_open && is_prose { ' ' } else { '\n' });
        }
        out.push_str(line);
        // A line that ends with a sentence may end its paragraph.
        is_open = is_prose && line.len() >= FULL_LINE_BYTES && !line.ends_with(['.', ':', ')']);
    }
    out
}

/// Applies the rules for options to a command and its subcommands.
fn prepare_args(command: clap::Command) -> clap::Command {
    heading::sort(command.mut_args(|arg| bind_variable(allow_negative_numbers(arg))))
        .mut_subcommands(prepare_args)
}

/// Value names of options that take a number.
const NUMERIC_VALUE_NAMES: [&str; 8] = [
    "RATE[/BURST]",
    "N[/BURST]",
    "SIZE",
    "TIME",
    "SHARE",
    "BYTES",
    "COUNT",
    "N",
];

/// Lets an option with a number as its value take a negative one: `-5` is then a wrong value, not
/// an unknown option.
fn allow_negative_numbers(arg: clap::Arg) -> clap::Arg {
    let names = arg.get_value_names().unwrap_or_default();
    let is_amount = names
        .iter()
        .any(|name| NUMERIC_VALUE_NAMES.contains(&name.as_str()));
    let may_stand_alone = (arg.get_num_args()).is_some_and(|range| range.min_values() == 0);
    match is_amount && !may_stand_alone {
        true => arg.allow_hyphen_values(true),
        false => arg,
    }
}

/// Sets how the environment variable of an option is read.
fn bind_variable(arg: clap::Arg) -> clap::Arg {
    // The rule is in the help of the program once, not at each option.
    let arg = arg.hide_env(true);
    let Some(value) = arg.get_env().and_then(std::env::var_os) else {
        return arg;
    };
    let switch = matches!(arg.get_action(), ArgAction::SetTrue);
    // An empty variable counts as unset, and so does a switch that is off: as a value it would
    // conflict with other switches.
    if value.is_empty() || (switch && !is_on(&value)) {
        return arg.env(None::<&'static str>);
    }
    if switch {
        arg.value_parser(FalseyValueParser::new())
    } else {
        arg
    }
}

/// Returns whether the value of a switch in the environment turns it on: any text but empty, `0`,
/// `n`, `no`, `f`, `false` and `off`.
fn is_on(value: &std::ffi::OsStr) -> bool {
    let value = value.to_string_lossy().to_ascii_lowercase();
    !matches!(
        value.as_str(),
        "" | "0" | "n" | "no" | "f" | "false" | "off"
    )
}

/// Returns whether an environment variable turns a switch on.
pub fn is_variable_on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| is_on(&value))
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run all measurements on this machine and write a report (no root needed)
    Demo(DemoArgs),
    /// Run the server (also answers iperf2, iperf3, nuttcp, ttcp and sockperf clients)
    Server(ServerArgs),
    /// Measure TCP or UDP throughput
    Throughput(ThroughputArgs),
    /// Measure round-trip latency
    Latency(LatencyArgs),
    /// Run the classic ttcp test: 16 MiB in one direction, one line of result
    Ttcp(TtcpArgs),
    /// Print a server in C to build into a device: discard, chargen, echo
    TargetCode(TargetCodeArgs),
    /// Forward frames between ports with poll-mode threads, with a shell like testpmd's
    Forward(Box<ForwardArgs>),
    /// Generate packets at a rate and measure what arrives
    Generate(Box<GenerateArgs>),
    /// Measure the throughput, latency, frame loss and bursts of a device (RFC 2544)
    Capacity(Box<CapacityArgs>),
    /// Compare two configurations, commands or results with confidence intervals
    Compare(Box<CompareArgs>),
    /// Measure every combination of option values
    Sweep(Box<SweepArgs>),
    /// Explain what limited a run: cause, evidence, remedy
    Explain(ExplainArgs),
    /// Search for better options and settings, verify them, and restore the old settings
    Tune(Box<TuneArgs>),
    /// Run our user-space stack as a host on a port: ping, echo, discard, chargen and more
    Stack(Box<StackHostArgs>),
    /// Build test networks of hosts, switches and links
    Lab(LabArgs),
    /// Run an experiment from a file: all points, tables, a report, expected results
    Run(RunArgs),
    /// Manage stored results: list, show, tag, export, trend
    #[cfg(feature = "history")]
    Runs(RunsArgs),
    /// Write a report, a table or a timeline from stored records
    Report(ReportArgs),
    /// Check what this machine supports and how to enable the rest
    Doctor(DoctorArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Write the manual pages, one for each command
    Man(ManArgs),
}

/// Destination and format of results.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::OUTPUT)]
pub struct OutputArgs {
    /// Print one JSON document on standard output; all else goes to standard error
    #[arg(long, env = "LINERATE_JSON", conflicts_with = "json_stream")]
    pub json: bool,
    /// Print one line of JSON for each interval, event and failure, and for the result
    #[arg(long, env = "LINERATE_JSON_STREAM")]
    pub json_stream: bool,
    /// Write the record to FILE as JSON; with --json, instead of to standard output
    #[arg(short = 'o', long, value_name = "FILE", env = "LINERATE_OUTPUT")]
    pub output: Option<PathBuf>,
    /// Print the result only
    #[arg(short, long, env = "LINERATE_QUIET")]
    pub quiet: bool,
    /// Print all details: times of the CPUs, evidence and gain of each finding, a line for each flow
    /// of an interval; with --json, lines on standard error
    #[arg(short, long, env = "LINERATE_VERBOSE")]
    pub verbose: bool,
    /// Store no record under $XDG_DATA_HOME/linerate/runs
    #[arg(long, env = "LINERATE_NO_STORE")]
    pub no_store: bool,
    /// Use of colours: auto, always or never
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
  linerate demo --json > demo.json      print one JSON document instead
  linerate demo --json-stream           print events as they happen, then that document

demo has no --expect, because its runs differ too much: use it with `linerate throughput` and `latency`.")]
pub struct DemoArgs {
    /// Directory for the report and the records
    #[arg(
        long,
        value_name = "DIR",
        default_value = "linerate-demo",
        env = "LINERATE_DEMO_DIR"
    )]
    pub dir: PathBuf,
    /// Time of each of the seven measurements, and of one more with the remedy of a finding
    #[arg(short, long, value_name = "TIME", default_value = "3", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Duration,
    /// Use loopback instead of two hosts with a virtual link
    #[arg(long, env = "LINERATE_LOOPBACK")]
    pub loopback: bool,
    /// End with exit code 3 if the run has a finding of kind `cause`
    #[arg(long, help_heading = heading::CHECKS, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
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
    /// Shell to complete for
    pub shell: clap_complete::Shell,
}

/// `linerate man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate man ~/.local/share/man/man1         then: man linerate, man linerate-throughput")]
pub struct ManArgs {
    /// Directory for the pages
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
        let expected = format!("Examples:\n  linerate x\n\n{full} ends here.\nShort.\nNext.");
        assert_eq!(join_prose(&text), expected);
    }
}
