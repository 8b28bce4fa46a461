//! Options of testpmd's command line: those of mode noisy, and hints for those that our ports do
//! not have. An option without effect is rejected, not ignored.

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

/// Options, or common prefixes of options, with hints for a replacement. The first match counts.
const OPTION_HINTS: &[(&str, &str)] = &[
    (
        "--noisy-tx-sw-buffer-size",
        "frames are delayed by time, not by queue length: --mode noisy:delay=1ms",
    ),
    (
        "--noisy-tx-sw-buffer-flushtime",
        "each frame is delayed by the mode's delay: --mode noisy:delay=1ms",
    ),
    (
        "--noisy-forward-mode",
        "mode noisy forwards frames unchanged, as io does",
    ),
    (
        "--numa",
        "all ports share one memory, placed by first touch: `numactl --cpunodebind=0 --membind=0 linerate forward …` \
         selects a node, --corelist its CPUs",
    ),
    (
        "--no-numa",
        "memory is placed by first touch only: leave it out",
    ),
    (
        "--socket-num",
        "memory is placed by first touch: `numactl --membind=N linerate forward …` selects a node",
    ),
    (
        "--socket-mem",
        "memory is allocated as ports need it: --total-num-mbufs raises it",
    ),
    (
        "--port-numa-config",
        "all ports share one memory: `numactl --membind=N linerate forward …` selects a node",
    ),
    (
        "--ring-numa-config",
        "all ports share one memory: `numactl --membind=N linerate forward …` selects a node",
    ),
    (
        "--mlockall",
        "frame memory is touched before the start, and locked by ports that need it (xdp:): leave it out",
    ),
    (
        "--no-mlockall",
        "only ports that need it lock memory (xdp:): leave it out",
    ),
    (
        "--disable-link-check",
        "the start does not wait for links: leave it out",
    ),
    (
        "--disable-device-start",
        "ports open at the start: `port stop all` closes them",
    ),
    (
        "--vdev",
        "ports are named by URLs: --dev ring:0, --dev packet:eth1, --dev dpdk:net_null0",
    ),
    (
        "--allow",
        "ports are named by URLs: --dev xdp:eth1, --dev dpdk:0000:01:00.0",
    ),
    (
        "--lcores",
        "--corelist 0,1 sets the CPUs of the threads, --cores 2 their number",
    ),
    (
        "--no-huge",
        "huge pages are used if available: leave it out",
    ),
    ("--no-pci", "devices are not scanned: --dev names all ports"),
    (
        "--file-prefix",
        "forwarders share nothing but shm: ports, by name: leave it out",
    ),
    (
        "--proc-type",
        "two processes share packets over --dev shm:NAME",
    ),
    (
        "--num-procs",
        "two processes share packets over --dev shm:NAME",
    ),
    (
        "--proc-id",
        "two processes share packets over --dev shm:NAME",
    ),
    (
        "--rss-",
        "ports select no queue by a hash: the kernel does (`ethtool -N IF rx-flow-hash udp4 sdfn`)",
    ),
    (
        "--disable-rss",
        "ports select no queue by a hash: the kernel does (`ethtool -X IF equal 1`)",
    ),
    (
        "--rx-mq-mode",
        "ports select no queue by a hash: the kernel does (`ethtool -X IF`)",
    ),
    (
        "--enable-rx-cksum",
        "mode csum computes checksums in software",
    ),
    (
        "--enable-lro",
        "frames are received as they arrive: `ethtool -K IF lro on` joins them in the device",
    ),
    (
        "--enable-scatter",
        "frames have a single segment: use --max-pkt-len, or mtu= of a URL",
    ),
    (
        "--enable-hw-",
        "VLAN tags are not changed: `ethtool -K IF` sets what the device does",
    ),
    (
        "--enable-drop-en",
        "each full queue drops and counts by itself",
    ),
    (
        "--disable-crc-strip",
        "the device strips the FCS: frames arrive without it",
    ),
    (
        "--rx-offloads",
        "offloads are those that the kernel uses: `ethtool -K IF`",
    ),
    (
        "--tx-offloads",
        "offloads are those that the kernel uses: `ethtool -K IF`",
    ),
    (
        "--rxpkts",
        "frames have a single segment: give URLs a larger mtu=",
    ),
    (
        "--rxoffs",
        "frames have a single segment: give URLs a larger mtu=",
    ),
    ("--rxfreet", "descriptors are freed without thresholds"),
    ("--rxpt", "descriptors are freed without thresholds"),
    ("--rxht", "descriptors are freed without thresholds"),
    ("--rxwt", "descriptors are freed without thresholds"),
    ("--txfreet", "descriptors are freed without thresholds"),
    ("--txrst", "descriptors are freed without thresholds"),
    ("--txpt", "descriptors are freed without thresholds"),
    ("--txht", "descriptors are freed without thresholds"),
    ("--txwt", "descriptors are freed without thresholds"),
    (
        "--eth-peers-configfile",
        "addresses are given one by one: --eth-peer 0,02:00:00:00:00:01",
    ),
    (
        "--eth-link-speed",
        "the kernel manages links: `ethtool -s IF speed N`",
    ),
    (
        "--hairpinq",
        "device queues cannot be bound to each other: use two ports and mode io",
    ),
    (
        "--hot-plug",
        "a lost port is reported; `port attach URL` opens another one",
    ),
    (
        "--no-lsc-interrupt",
        "a link that goes down is reported in the result: leave it out",
    ),
    (
        "--no-rmv-interrupt",
        "a lost port is reported: leave it out",
    ),
    (
        "--mp-",
        "all ports share one memory, in huge pages if available: leave it out",
    ),
    (
        "--multi-rx-mempool",
        "all ports share one memory: leave it out",
    ),
];

/// Returns the hint for an option of testpmd; `None` if testpmd has no such option.
pub fn hint_for(option: &str) -> Option<&'static str> {
    Some(OPTION_HINTS[hint_index(option)?].1)
}

fn hint_index(option: &str) -> Option<usize> {
    let option = option.split('=').next().unwrap_or(option);
    let fits = |name: &str| option == name || (name.ends_with('-') && option.starts_with(name));
    OPTION_HINTS.iter().position(|(name, _)| fits(name))
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

    #[test]
    fn options_of_nics_have_a_hint() {
        for (option, expected) in [
            ("--numa", "numactl"),
            ("--no-numa", "leave it out"),
            ("--noisy-tx-sw-buffer-size=32", "noisy:delay"),
            ("--noisy-tx-sw-buffer-flushtime", "noisy:delay"),
            ("--rss-udp", "hash"),
            ("--vdev", "--dev"),
        ] {
            let said = hint_for(option).unwrap_or_else(|| panic!("{option}"));
            assert!(said.contains(expected), "{option}: {said}");
        }
        assert_eq!(hint_for("--nonsense"), None);
        for (at, (name, hint)) in OPTION_HINTS.iter().enumerate() {
            assert!(!hint.is_empty() && !hint.ends_with('.'), "{name}");
            assert_eq!(hint_index(name), Some(at), "{name}");
        }
    }
}
