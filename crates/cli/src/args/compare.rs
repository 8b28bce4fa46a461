//! `linerate compare`.

use clap::Args;
use linerate_metric::comparison::Better;

use super::{KnobArgs, ManyArgs, OutputArgs, PairArgs, ScreenArgs};

/// `linerate compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate compare --b '-l 64K' throughput 127.0.0.1         the options of B against none
  linerate compare --a '-C bbr' --b '-C cubic' throughput 127.0.0.1 -t 500ms
  linerate compare --b '--wait spin' --effect 2% latency 127.0.0.1 -u
  linerate compare old.json new.json --figure p99            two results that are there already
  linerate compare --command-a './old' --command-b './new' --figure 'took ([0-9.]+) s' --better lower
  linerate compare --prepare-a 'modprobe x' --prepare-b 'modprobe y' throughput 127.0.0.1
  linerate compare --knob-b window=16384 --knob-file mine.toml throughput 127.0.0.1

Both sides run in turn, in random order, until it is decided. What follows the measuring command is that
command's. Runs are 1 s long where it names no time.
Exit codes: 0 B is not worse; 3 B is slower, by --effect as far as the interval tells; 6 undecided:
too few pairs, or too much noise; others as ever.")]
pub struct CompareArgs {
    /// Two results: files, or ids of stored records and sets
    #[arg(value_name = "A B", num_args = 0..=2)]
    pub results: Vec<String>,
    /// Options of the measuring command for side A
    #[arg(
        long,
        value_name = "OPTIONS",
        allow_hyphen_values = true,
        env = "LINERATE_A"
    )]
    pub a: Option<String>,
    /// Options of the measuring command for side B
    #[arg(
        long,
        value_name = "OPTIONS",
        allow_hyphen_values = true,
        env = "LINERATE_B"
    )]
    pub b: Option<String>,
    /// A command for side A: it prints a record, or a number
    #[arg(
        long,
        value_name = "CMD",
        requires = "command_b",
        env = "LINERATE_COMMAND_A"
    )]
    pub command_a: Option<String>,
    /// A command for side B
    #[arg(long, value_name = "CMD", requires = "command_a", conflicts_with_all = ["a", "b"], env = "LINERATE_COMMAND_B")]
    pub command_b: Option<String>,
    /// Run before each half of side A: load a module, write a firmware, set something
    #[arg(long, value_name = "CMD", env = "LINERATE_PREPARE_A")]
    pub prepare_a: Option<String>,
    /// Run before each half of side B
    #[arg(long, value_name = "CMD", env = "LINERATE_PREPARE_B")]
    pub prepare_b: Option<String>,
    /// The figure: goodput, p50, p99, pps, cpu, ... (`linerate throughput --expect x` lists them); with
    /// commands also a regular expression that finds a number in their output
    #[arg(long, value_name = "FIGURE", env = "LINERATE_FIGURE")]
    pub figure: Option<String>,
    /// Which way the figure is better: higher or lower; known for figures with a name [default: higher]
    #[arg(long, value_name = "WAY", env = "LINERATE_BETTER")]
    pub better: Option<Better>,
    /// N pairs that count, instead of as many as it takes; fewer than 7 tell nothing
    #[arg(long, value_name = "N", env = "LINERATE_PAIRS")]
    pub pairs: Option<usize>,
    /// When it is decided
    #[command(flatten)]
    pub until: PairArgs,
    /// Order and page
    #[command(flatten)]
    pub many: ManyArgs,
    /// Turn a knob for side A: a knob of your own, or one of `linerate tune` (mtu=9000); repeatable
    #[arg(
        long,
        value_name = "KNOB=VALUE",
        help_heading = "Knobs",
        value_delimiter = ';',
        env = "LINERATE_KNOB_A"
    )]
    pub knob_a: Vec<String>,
    /// Turn a knob for side B
    #[arg(
        long,
        value_name = "KNOB=VALUE",
        help_heading = "Knobs",
        value_delimiter = ';',
        env = "LINERATE_KNOB_B"
    )]
    pub knob_b: Vec<String>,
    /// What may be turned
    #[command(flatten)]
    pub knobs: KnobArgs,
    /// A screen meanwhile
    #[command(flatten)]
    pub screen: ScreenArgs,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
    /// What measures: `throughput HOST ...`, `latency HOST ...`
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
