//! Options of mode noisy, named as in testpmd.

use std::str::FromStr;

use clap::Args;
use linerate_forwarder::ModeSpec;
use linerate_record::event::ErrorReport;

use super::heading;
use crate::failure::CommandFailure;

/// Forwarding mode of the command line, and whether it was given without options.
#[derive(Clone, Debug)]
pub struct ModeArg {
    spec: ModeSpec,
    has_no_options: bool,
}

impl FromStr for ModeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self {
            spec: text.parse()?,
            has_no_options: !text.contains(':'),
        })
    }
}

/// Options of mode noisy, named as in testpmd.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = heading::NOISY)]
pub struct NoisyArgs {
    /// Size of the lookup table in MiB: `noisy:memory=`
    #[arg(long, value_name = "MIB", env = "LINERATE_NOISY_LKUP_MEMORY")]
    pub noisy_lkup_memory: Option<u32>,
    /// Random reads of the table for each frame: `noisy:reads=`
    #[arg(long, value_name = "N", env = "LINERATE_NOISY_LKUP_NUM_READS")]
    pub noisy_lkup_num_reads: Option<u32>,
    /// Random writes to the table for each frame: `noisy:writes=`
    #[arg(long, value_name = "N", env = "LINERATE_NOISY_LKUP_NUM_WRITES")]
    pub noisy_lkup_num_writes: Option<u32>,
    /// Additional reads and writes, N of each
    #[arg(long, value_name = "N", env = "LINERATE_NOISY_LKUP_NUM_READS_WRITES")]
    pub noisy_lkup_num_reads_writes: Option<u32>,
}

impl NoisyArgs {
    /// Returns the given options with their values.
    fn given_options(&self) -> Vec<(&'static str, u32)> {
        let all = [
            ("--noisy-lkup-memory", self.noisy_lkup_memory),
            ("--noisy-lkup-num-reads", self.noisy_lkup_num_reads),
            ("--noisy-lkup-num-writes", self.noisy_lkup_num_writes),
            (
                "--noisy-lkup-num-reads-writes",
                self.noisy_lkup_num_reads_writes,
            ),
        ];
        let options = all.into_iter();
        options
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }

    /// Returns the mode with these options applied.
    ///
    /// # Errors
    /// Fails if the mode is not noisy, or if a value is out of range.
    pub fn apply_to(&self, named: &ModeArg) -> Result<ModeSpec, CommandFailure> {
        let (options, mode) = (self.given_options(), &named.spec);
        let Some((name, value)) = options.first() else {
            return Ok(mode.clone());
        };
        let reject = |situation: String, next: &str| {
            Err(CommandFailure::usage(ErrorReport::new(
                situation,
                format!("{name} {value}"),
                next,
            )))
        };
        let ModeSpec::Noisy(plan) = mode else {
            return reject(
                format!(
                    "applies to mode noisy only, but the mode is {}",
                    mode.name()
                ),
                "use --mode noisy; in the shell `set fwd noisy:memory=16M,reads=4,writes=4`",
            );
        };
        let mut plan = plan.clone();
        let counts = [
            self.noisy_lkup_num_reads,
            self.noisy_lkup_num_writes,
            self.noisy_lkup_num_reads_writes,
        ];
        if named.has_no_options && counts.iter().any(Option::is_some) {
            // In testpmd, a count that is not given is 0.
            (plan.reads, plan.writes) = (0, 0);
        }
        plan.reads = self.noisy_lkup_num_reads.unwrap_or(plan.reads);
        plan.writes = self.noisy_lkup_num_writes.unwrap_or(plan.writes);
        let reads_and_writes = self.noisy_lkup_num_reads_writes.unwrap_or(0);
        plan.reads = plan.reads.saturating_add(reads_and_writes);
        plan.writes = plan.writes.saturating_add(reads_and_writes);
        if let Some(mebibytes) = self.noisy_lkup_memory {
            plan.memory_bytes = u64::from(mebibytes) << 20;
        }
        // Parsed again to check the bounds of these values too.
        let text = ModeSpec::Noisy(plan).to_string();
        text.parse()
            .or_else(|why| reject(why, "use 1 to 4096 MiB, and up to 100000 reads and writes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> ModeSpec {
        text.parse().unwrap()
    }

    #[test]
    fn work_of_mode_noisy_has_two_names() {
        let args = |memory, reads, writes, reads_and_writes| NoisyArgs {
            noisy_lkup_memory: memory,
            noisy_lkup_num_reads: reads,
            noisy_lkup_num_writes: writes,
            noisy_lkup_num_reads_writes: reads_and_writes,
        };
        for (noisy_args, mode_text, expected) in [
            (args(None, None, None, None), "io", "io"),
            (args(None, None, None, None), "noisy", "noisy"),
            (args(Some(1), None, None, None), "noisy", "noisy:memory=1M"),
            (
                args(Some(2), Some(3), None, None),
                "noisy",
                "noisy:memory=2M,reads=3,writes=0",
            ),
            (
                args(None, None, Some(5), None),
                "noisy",
                "noisy:reads=0,writes=5",
            ),
            (
                args(None, Some(1), Some(2), Some(3)),
                "noisy",
                "noisy:reads=4,writes=5",
            ),
            (
                args(None, None, Some(2), None),
                "noisy:delay=1ms,reads=7",
                "noisy:delay=1ms,reads=7,writes=2",
            ),
            // Explicit values are kept, even if they equal the default.
            (
                args(None, None, Some(2), None),
                "noisy:reads=4",
                "noisy:reads=4,writes=2",
            ),
        ] {
            let applied = noisy_args.apply_to(&mode_text.parse().unwrap()).unwrap();
            assert_eq!(applied, mode(expected), "{noisy_args:?}");
        }
        for (noisy_args, mode_text, wanted) in [
            (args(None, Some(1), None, None), "io", "mode is io"),
            (args(Some(0), None, None, None), "noisy", "8 and 4G"),
            (args(Some(5000), None, None, None), "noisy", "8 and 4G"),
            (
                args(None, Some(u32::MAX), None, Some(1)),
                "noisy",
                "0 and 100000",
            ),
        ] {
            let failure = noisy_args
                .apply_to(&mode_text.parse().unwrap())
                .unwrap_err();
            let situation = failure.problem.situation;
            assert!(situation.contains(wanted), "{noisy_args:?}: {situation}");
        }
    }
}
