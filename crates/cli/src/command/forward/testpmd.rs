//! Options of testpmd's command line: those of mode noisy in its words, and those that mean nothing on our ports.
//! Nothing is accepted that does nothing.

use std::str::FromStr;

use clap::Args;
use linerate_measure::forward::ModeSpec;
use linerate_metric::event::Problem;

use crate::failure::Failure;

/// A mode as it was named: with options of its own, or by its bare word.
#[derive(Clone, Debug)]
pub struct NamedMode {
    spec: ModeSpec,
    is_bare: bool,
}

impl FromStr for NamedMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self {
            spec: text.parse()?,
            is_bare: !text.contains(':'),
        })
    }
}

/// Work of mode noisy, as testpmd names it.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Mode noisy, in testpmd's words")]
pub struct NoisyArgs {
    /// Mebibytes of the table: `noisy:memory=`
    #[arg(long, value_name = "MIB", env = "LINERATE_NOISY_LKUP_MEMORY")]
    pub noisy_lkup_memory: Option<u32>,
    /// Words read from random places of it for each frame: `noisy:reads=`
    #[arg(long, value_name = "N", env = "LINERATE_NOISY_LKUP_NUM_READS")]
    pub noisy_lkup_num_reads: Option<u32>,
    /// Words written to random places of it: `noisy:writes=`
    #[arg(long, value_name = "N", env = "LINERATE_NOISY_LKUP_NUM_WRITES")]
    pub noisy_lkup_num_writes: Option<u32>,
    /// So many of both, beside those
    #[arg(long, value_name = "N", env = "LINERATE_NOISY_LKUP_NUM_READS_WRITES")]
    pub noisy_lkup_num_reads_writes: Option<u32>,
}

impl NoisyArgs {
    /// Options that were given, with their values.
    fn given(&self) -> Vec<(&'static str, u32)> {
        let all = [
            ("--noisy-lkup-memory", self.noisy_lkup_memory),
            ("--noisy-lkup-num-reads", self.noisy_lkup_num_reads),
            ("--noisy-lkup-num-writes", self.noisy_lkup_num_writes),
            (
                "--noisy-lkup-num-reads-writes",
                self.noisy_lkup_num_reads_writes,
            ),
        ];
        let given = all.into_iter();
        given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }

    /// The mode with what they say.
    ///
    /// # Errors
    /// That it is another mode, or that it cannot have so much.
    pub fn applied(&self, named: &NamedMode) -> Result<ModeSpec, Failure> {
        let (given, mode) = (self.given(), &named.spec);
        let Some((name, value)) = given.first() else {
            return Ok(mode.clone());
        };
        let refused = |situation: String, next: &str| {
            Err(Failure::usage(Problem::new(
                situation,
                format!("{name} {value}"),
                next,
            )))
        };
        let ModeSpec::Noisy(plan) = mode else {
            return refused(
                format!(
                    "it is work of mode noisy, and frames are forwarded in mode {}",
                    mode.name()
                ),
                "say --mode noisy; in the shell `set fwd noisy:memory=16M,reads=4,writes=4`",
            );
        };
        let mut plan = plan.clone();
        let counts = [
            self.noisy_lkup_num_reads,
            self.noisy_lkup_num_writes,
            self.noisy_lkup_num_reads_writes,
        ];
        if named.is_bare && counts.iter().any(Option::is_some) {
            // There what is not asked for is not done.
            (plan.reads, plan.writes) = (0, 0);
        }
        plan.reads = self.noisy_lkup_num_reads.unwrap_or(plan.reads);
        plan.writes = self.noisy_lkup_num_writes.unwrap_or(plan.writes);
        let both = self.noisy_lkup_num_reads_writes.unwrap_or(0);
        plan.reads = plan.reads.saturating_add(both);
        plan.writes = plan.writes.saturating_add(both);
        if let Some(mebibytes) = self.noisy_lkup_memory {
            plan.memory_bytes = u64::from(mebibytes) << 20;
        }
        // Read again, so that its bounds hold for these words too.
        let text = ModeSpec::Noisy(plan).to_string();
        text.parse()
            .or_else(|why| refused(why, "use 1 to 4096 MiB, and up to 100000 reads and writes"))
    }
}

/// Options, or what several begin with, and what stands in their place. The first that fits is meant.
const ABSENT: &[(&str, &str)] = &[
    (
        "--noisy-tx-sw-buffer-size",
        "frames wait for a time here and not for a number of others: --mode noisy:delay=1ms",
    ),
    (
        "--noisy-tx-sw-buffer-flushtime",
        "each frame waits for as long as the mode says: --mode noisy:delay=1ms",
    ),
    (
        "--noisy-forward-mode",
        "mode noisy hands frames on unread, as io does",
    ),
    (
        "--numa",
        "there is one memory for all ports, placed where it is touched first: `numactl --cpunodebind=0 --membind=0 \
         linerate forward …` chooses a node, --corelist processors on it",
    ),
    (
        "--no-numa",
        "memory is placed where it is touched first and nothing else is tried: leave it out",
    ),
    (
        "--socket-num",
        "memory is placed where it is touched first: `numactl --membind=N linerate forward …` says where",
    ),
    (
        "--socket-mem",
        "memory is taken as ports need it: --total-num-mbufs asks for more",
    ),
    (
        "--port-numa-config",
        "there is one memory for all ports: `numactl --membind=N linerate forward …` says where",
    ),
    (
        "--ring-numa-config",
        "there is one memory for all ports: `numactl --membind=N linerate forward …` says where",
    ),
    (
        "--mlockall",
        "memory of frames is touched before the start, and locked by ports that need that (xdp:): leave it out",
    ),
    (
        "--no-mlockall",
        "only ports that need it lock memory (xdp:): leave it out",
    ),
    (
        "--disable-link-check",
        "no link is waited for before the start: leave it out",
    ),
    (
        "--disable-device-start",
        "ports are open from the beginning: `port stop all` closes them",
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
        "processors of the threads are --corelist 0,1, and their number --cores 2",
    ),
    (
        "--no-huge",
        "huge pages are used where there are some, and ordinary ones else: leave it out",
    ),
    (
        "--no-pci",
        "no device is looked for: ports are those of --dev",
    ),
    (
        "--file-prefix",
        "nothing is shared between forwarders but shm: ports, by their names: leave it out",
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
        "ports choose no queue by a hash: the kernel does (`ethtool -N IF rx-flow-hash udp4 sdfn`)",
    ),
    (
        "--disable-rss",
        "ports choose no queue by a hash: the kernel does (`ethtool -X IF equal 1`)",
    ),
    (
        "--rx-mq-mode",
        "ports choose no queue by a hash: the kernel does (`ethtool -X IF`)",
    ),
    (
        "--enable-rx-cksum",
        "checksums of what arrives are summed by mode csum",
    ),
    (
        "--enable-lro",
        "frames are taken as they come: `ethtool -K IF lro on` joins them before",
    ),
    (
        "--enable-scatter",
        "a frame is one piece here: --max-pkt-len, or mtu= of a URL",
    ),
    (
        "--enable-hw-",
        "tags are left as they are: `ethtool -K IF` switches what the device does",
    ),
    (
        "--enable-drop-en",
        "each queue drops for itself when it is full, and counts that",
    ),
    (
        "--disable-crc-strip",
        "check sequences are the device's: frames come without",
    ),
    (
        "--rx-offloads",
        "nothing is left to devices but what the kernel leaves to them: `ethtool -K IF`",
    ),
    (
        "--tx-offloads",
        "nothing is left to devices but what the kernel leaves to them: `ethtool -K IF`",
    ),
    (
        "--rxpkts",
        "a frame is one piece here: give URLs a larger mtu= instead",
    ),
    (
        "--rxoffs",
        "a frame is one piece here: give URLs a larger mtu= instead",
    ),
    (
        "--rxfreet",
        "descriptors go back as rings want it: no threshold is set",
    ),
    (
        "--rxpt",
        "descriptors go back as rings want it: no threshold is set",
    ),
    (
        "--rxht",
        "descriptors go back as rings want it: no threshold is set",
    ),
    (
        "--rxwt",
        "descriptors go back as rings want it: no threshold is set",
    ),
    (
        "--txfreet",
        "descriptors go back as rings want it: no threshold is set",
    ),
    (
        "--txrst",
        "descriptors go back as rings want it: no threshold is set",
    ),
    (
        "--txpt",
        "descriptors go back as rings want it: no threshold is set",
    ),
    (
        "--txht",
        "descriptors go back as rings want it: no threshold is set",
    ),
    (
        "--txwt",
        "descriptors go back as rings want it: no threshold is set",
    ),
    (
        "--eth-peers-configfile",
        "addresses are named one by one: --eth-peer 0,02:00:00:00:00:01",
    ),
    (
        "--eth-link-speed",
        "links are the kernel's: `ethtool -s IF speed N`",
    ),
    (
        "--hairpinq",
        "no queue of a device is bound to another: two ports and mode io do that",
    ),
    (
        "--hot-plug",
        "a port that goes away says so; `port attach URL` opens one more",
    ),
    (
        "--no-lsc-interrupt",
        "a link that goes down is told in the result: leave it out",
    ),
    (
        "--no-rmv-interrupt",
        "a port that goes away says so: leave it out",
    ),
    (
        "--mp-",
        "there is one memory for all ports, in huge pages where there are some: leave it out",
    ),
    (
        "--multi-rx-mempool",
        "there is one memory for all ports: leave it out",
    ),
];

/// What stands in the place of an option of testpmd's; none where it is not known there either.
pub fn instead_of(option: &str) -> Option<&'static str> {
    Some(ABSENT[place(option)?].1)
}

fn place(option: &str) -> Option<usize> {
    let option = option.split('=').next().unwrap_or(option);
    let fits = |name: &str| option == name || (name.ends_with('-') && option.starts_with(name));
    ABSENT.iter().position(|(name, _)| fits(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> ModeSpec {
        text.parse().unwrap()
    }

    #[test]
    fn work_of_mode_noisy_has_two_names() {
        let args = |memory, reads, writes, both| NoisyArgs {
            noisy_lkup_memory: memory,
            noisy_lkup_num_reads: reads,
            noisy_lkup_num_writes: writes,
            noisy_lkup_num_reads_writes: both,
        };
        for (given, said, want) in [
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
            // What was asked for is kept, also where it is what is done anyway.
            (
                args(None, None, Some(2), None),
                "noisy:reads=4",
                "noisy:reads=4,writes=2",
            ),
        ] {
            let found = given.applied(&said.parse().unwrap()).unwrap();
            assert_eq!(found, mode(want), "{given:?}");
        }
        for (given, said, wanted) in [
            (args(None, Some(1), None, None), "io", "mode io"),
            (args(Some(0), None, None, None), "noisy", "8 and 4G"),
            (args(Some(5000), None, None, None), "noisy", "8 and 4G"),
            (
                args(None, Some(u32::MAX), None, Some(1)),
                "noisy",
                "0 and 100000",
            ),
        ] {
            let refused = given.applied(&said.parse().unwrap()).unwrap_err();
            let situation = refused.problem.situation;
            assert!(situation.contains(wanted), "{given:?}: {situation}");
        }
    }

    #[test]
    fn options_of_nics_are_answered() {
        for (option, wanted) in [
            ("--numa", "numactl"),
            ("--no-numa", "leave it out"),
            ("--noisy-tx-sw-buffer-size=32", "noisy:delay"),
            ("--noisy-tx-sw-buffer-flushtime", "noisy:delay"),
            ("--rss-udp", "hash"),
            ("--vdev", "--dev"),
        ] {
            let said = instead_of(option).unwrap_or_else(|| panic!("{option}"));
            assert!(said.contains(wanted), "{option}: {said}");
        }
        assert_eq!(instead_of("--nonsense"), None);
        for (at, (name, instead)) in ABSENT.iter().enumerate() {
            assert!(!instead.is_empty() && !instead.ends_with('.'), "{name}");
            assert_eq!(place(name), Some(at), "{name}");
        }
    }
}
