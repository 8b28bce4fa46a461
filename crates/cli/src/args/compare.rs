//! `linerate compare`.

use clap::Args;
use linerate_record::comparison::BetterWhen;

use super::{KnobArgs, OutputArgs, PairArgs, ScreenArgs, SeriesArgs, heading};

/// `linerate compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate compare --b '-l 64K' throughput 127.0.0.1         options of B against none
  linerate compare --a '-C bbr' --b '-C cubic' throughput 127.0.0.1 -t 500ms
  linerate compare --b '--wait spin' --effect 2% latency 127.0.0.1 -u
  linerate compare old.json new.json --figure p99            two existing results
  linerate compare --command-a './old' --command-b './new' --figure 'took ([0-9.]+) s' --better lower
  linerate compare --prepare-a 'modprobe x' --prepare-b 'modprobe y' throughput 127.0.0.1
  linerate compare --name-a old --name-b new --command-a ./old --command-b ./new --figure 'took ([0-9.]+) s'
  linerate compare --knob-b window=16384 --knob-file mine.toml throughput 127.0.0.1

A and B run in pairs, in random order within each pair, until the comparison is decided. Options after
the measuring command are that command's. Runs take 1 s unless it sets a time.
Exit codes: 0 B is not worse; 3 B is worse, by --effect as far as the interval shows; 6 undecided: too
few pairs or too much noise; others as in `linerate --help`.")]
pub struct CompareArgs {
    /// Two results: files, or ids of stored records or sets
    #[arg(value_name = "A B", num_args = 0..=2)]
    pub results: Vec<String>,
    /// Measuring command: `throughput HOST ...`, `latency HOST ...`
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
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
    /// Command of side A that prints a record or a number
    #[arg(
        long,
        value_name = "CMD",
        requires = "command_b",
        env = "LINERATE_COMMAND_A"
    )]
    pub command_a: Option<String>,
    /// Command of side B
    #[arg(long, value_name = "CMD", requires = "command_a", conflicts_with_all = ["a", "b"], env = "LINERATE_COMMAND_B")]
    pub command_b: Option<String>,
    /// Command to run before each run of side A: load a module, write a firmware, change a setting
    #[arg(long, value_name = "CMD", env = "LINERATE_PREPARE_A")]
    pub prepare_a: Option<String>,
    /// Command to run before each run of side B
    #[arg(long, value_name = "CMD", env = "LINERATE_PREPARE_B")]
    pub prepare_b: Option<String>,
    /// Name of side A in the result: old, before, cubic
    #[arg(long, value_name = "NAME", env = "LINERATE_NAME_A")]
    pub name_a: Option<String>,
    /// Name of side B in the result
    #[arg(long, value_name = "NAME", env = "LINERATE_NAME_B")]
    pub name_b: Option<String>,
    /// Figure to compare: goodput, p50, p99, pps, cpu, ... (`linerate throughput --expect x` lists
    /// them); with commands also a regular expression that finds a number in their output
    #[arg(long, value_name = "FIGURE", env = "LINERATE_FIGURE")]
    pub figure: Option<String>,
    /// Direction in which the figure is better: higher or lower; figures with a name have one
    /// [default: higher]
    #[arg(long, value_name = "DIRECTION", env = "LINERATE_BETTER")]
    pub better: Option<BetterWhen>,
    /// Exact number of pairs that count, instead of as many as needed; fewer than 7 prove nothing
    #[arg(long, value_name = "N", help_heading = heading::SEARCH, env = "LINERATE_PAIRS")]
    pub pairs: Option<usize>,
    #[command(flatten)]
    pub pairs_until: PairArgs,
    #[command(flatten)]
    pub many: SeriesArgs,
    /// Set a knob for side A: one of --knob-file, or of `linerate tune` (mtu=9000); repeatable
    #[arg(long, value_name = "KNOB=VALUE", help_heading = heading::KNOBS, value_delimiter = ';', env = "LINERATE_KNOB_A")]
    pub knob_a: Vec<String>,
    /// Set a knob for side B
    #[arg(long, value_name = "KNOB=VALUE", help_heading = heading::KNOBS, value_delimiter = ';', env = "LINERATE_KNOB_B")]
    pub knob_b: Vec<String>,
    #[command(flatten)]
    pub knobs: KnobArgs,
    #[command(flatten)]
    pub screen: ScreenArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}
