//! Forwarding: what a run was told to do, and what each port, stream and core of it did.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::parse_duration;

/// Where a stream sends what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PortTopology {
    /// Ports are pairs: 0 and 1, 2 and 3; one that is left over sends to itself.
    #[default]
    Paired,
    /// Each port sends to the next, the last one to the first.
    Chained,
    /// Each port sends to itself.
    Loop,
}

/// Every topology with its name.
pub const TOPOLOGIES: &[(&str, PortTopology)] = &[
    ("paired", PortTopology::Paired),
    ("chained", PortTopology::Chained),
    ("loop", PortTopology::Loop),
];

impl fmt::Display for PortTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = TOPOLOGIES.iter().find(|(_, topology)| topology == self);
        f.pad(found.map_or("", |(name, _)| name))
    }
}

impl FromStr for PortTopology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = TOPOLOGIES.iter().find(|(name, _)| *name == text);
        found
            .map(|&(_, topology)| topology)
            .ok_or_else(|| format!("`{text}` is no topology: paired, chained or loop"))
    }
}

impl PortTopology {
    /// The port that port `from` of `ports` sends to.
    #[must_use]
    pub fn peer(self, from: usize, ports: usize) -> usize {
        match self {
            Self::Paired if from ^ 1 < ports => from ^ 1,
            Self::Paired | Self::Loop => from,
            Self::Chained => (from + 1) % ports.max(1),
        }
    }
}

/// What a forwarding thread does when none of its ports has a frame. Written as on the command line:
/// `spin`, `sleep:50us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum Idle {
    /// Looks again at once: the core is never free.
    #[default]
    Spin,
    /// Lets another thread of the core run, if one wants to.
    Yield,
    /// Sleeps for so long.
    Sleep {
        /// Nanoseconds.
        time_ns: u64,
    },
    /// Sleeps until the kernel says that a port has something.
    Interrupt,
}

/// Longest sleep: beyond it a stop would take too long.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spin => f.pad("spin"),
            Self::Yield => f.pad("yield"),
            Self::Sleep { time_ns } if time_ns.is_multiple_of(1000) => {
                f.pad(&format!("sleep:{}us", time_ns / 1000))
            }
            Self::Sleep { time_ns } => f.pad(&format!("sleep:{time_ns}ns")),
            Self::Interrupt => f.pad("interrupt"),
        }
    }
}

impl From<Idle> for String {
    fn from(idle: Idle) -> Self {
        idle.to_string()
    }
}

impl TryFrom<String> for Idle {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Idle {
    type Err = String;

    /// A bare number behind `sleep:` is microseconds.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(time) = text.strip_prefix("sleep:") {
            let time_ns = match time.parse::<u64>() {
                Ok(us) => us.saturating_mul(1000),
                Err(_) => {
                    let time = parse_duration(time).map_err(|error| error.to_string())?;
                    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
                }
            };
            return match time_ns {
                1..=LONGEST_SLEEP_NS => Ok(Self::Sleep { time_ns }),
                _ => Err(format!("`{text}` is not within 1ns and 1s")),
            };
        }
        match text {
            "spin" => Ok(Self::Spin),
            "yield" => Ok(Self::Yield),
            "interrupt" => Ok(Self::Interrupt),
            _ => Err(format!(
                "`{text}` is nothing to do when idle: spin, yield, sleep:50us or interrupt"
            )),
        }
    }
}

/// What a forwarding run does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ForwardPlan {
    /// The ports as they were named.
    pub ports: Vec<String>,
    /// What happens to frames, with its options: `io`, `link:delay=50us`.
    pub mode: String,
    /// Threads that forward.
    pub cores: u32,
    /// The processors they are pinned to; empty: not pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
    /// Where streams send.
    pub topology: PortTopology,
    /// Frames moved by one poll.
    pub burst: u32,
    /// Bursts that each stream sends before it forwards.
    pub tx_first: u64,
    /// Bytes of the frames that are made here, without check sequence.
    pub frame_bytes: u32,
    /// What a thread does when there is nothing to do.
    pub idle: Idle,
    /// Whether receive queues are emptied before the start.
    pub flush: bool,
    /// Times that a frame which the far ring has no room for is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Seed of everything drawn.
    pub seed: u64,
}

impl ForwardPlan {
    /// Whether frames that are put in come round again: modes that make frames, take them out, or answer
    /// questions alone let nothing circulate.
    #[must_use]
    pub fn circulates(&self) -> bool {
        circulates(&self.mode)
    }
}

/// As [`ForwardPlan::circulates`], of a mode with or without its options.
#[must_use]
pub fn circulates(mode: &str) -> bool {
    let name = mode.split(':').next().unwrap_or_default();
    !["rxonly", "txonly", "flowgen", "icmpecho"].contains(&name)
}

/// What a forwarding run did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ForwardFigures {
    /// How long frames were forwarded.
    pub duration_ns: u64,
    /// The ports.
    pub ports: Vec<ForwardPort>,
    /// The streams.
    pub streams: Vec<ForwardStream>,
    /// The threads.
    pub cores: Vec<ForwardCore>,
    /// The memory that frames lived in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<FrameMemory>,
    /// Frames thrown away before the start, because they were left over in receive queues.
    pub flushed: u64,
    /// Frames put into circulation by `tx_first`, all streams.
    pub primed: u64,
}

impl ForwardFigures {
    /// Frames that emulated links lost or had no room for.
    #[must_use]
    pub fn lost_by_links(&self) -> u64 {
        let links = self.streams.iter().filter(|stream| stream.is_link());
        let causes = ["lost", "queue-full"];
        links
            .flat_map(|stream| causes.map(|cause| stream.counts.get(cause).copied().unwrap_or(0)))
            .sum()
    }
}

/// What the queues of one direction of a port moved and lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct QueueFigures {
    /// Frames received, or taken to send.
    pub packets: u64,
    /// Their bytes, without preamble, gap and check sequence.
    pub bytes: u64,
    /// Frames dropped.
    pub dropped: u64,
    /// The same by cause: `ring-full`, `no-buffer`, `too-long`, `bad`; causes that never struck are
    /// left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
}

impl QueueFigures {
    /// What was added since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let drops = self.drops.iter().map(|(cause, count)| {
            let before = earlier.drops.get(cause).copied().unwrap_or(0);
            (cause.clone(), count.saturating_sub(before))
        });
        Self {
            packets: self.packets.saturating_sub(earlier.packets),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            dropped: self.dropped.saturating_sub(earlier.dropped),
            drops: drops.filter(|&(_, count)| count > 0).collect(),
        }
    }

    /// Adds what another queue has.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.dropped += other.dropped;
        for (cause, count) in &other.drops {
            *self.drops.entry(cause.clone()).or_default() += count;
        }
    }
}

/// One port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ForwardPort {
    /// Its number, from 0, in the order in which ports were named.
    pub port: u32,
    /// Its kind and name: `ring:0`.
    pub name: String,
    /// Its Ethernet address, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Queue pairs.
    pub queues: u32,
    /// Largest frame, from the Ethernet header on, without check sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_bytes: Option<u32>,
    /// Descriptors of each receive ring, as obtained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_descriptors: Option<u32>,
    /// Descriptors of each transmit ring, as obtained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_descriptors: Option<u32>,
    /// Whether anybody ever was at the other end; absent where that cannot be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined: Option<bool>,
    /// Times within the run without anybody at the other end after somebody had been there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absences: Vec<PeerAbsence>,
    /// Whether its interface had a carrier both when the run began and when it ended; absent where it has no
    /// interface, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<bool>,
    /// Whether this port has its interface receive frames for any address; absent where it has no interface
    /// that could leave frames out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promiscuous: Option<bool>,
    /// Bit rates, second by second (`--bitrate-stats`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bit_rates: Option<PortBitRates>,
    /// How bytes travel: `none` (handles move), `each-way` (copied in and out), `in-kernel`.
    pub copies: String,
    /// How its AF_XDP sockets are bound, as obtained; absent on other ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<XdpFacts>,
    /// What was obtained where there was a choice, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Received, all queues.
    pub receive: QueueFigures,
    /// Sent, all queues.
    pub transmit: QueueFigures,
}

/// How an AF_XDP socket is bound, as the kernel granted it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct XdpFacts {
    /// Where the program meets frames: `native` (in the driver) or `generic` (behind it).
    pub mode: String,
    /// Whether the device itself reads and writes the frames' memory; else the kernel copies each.
    pub zero_copy: bool,
    /// Whether the kernel says when it wants to be woken; else it is woken for every burst.
    pub need_wakeup: bool,
    /// Busy polling, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_poll: Option<BusyPollFacts>,
}

/// Busy polling of a socket (`SO_PREFER_BUSY_POLL`), which the kernel grants whether or not there is anything to
/// poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BusyPollFacts {
    /// Frames that one call may take from the driver (`SO_BUSY_POLL_BUDGET`).
    pub budget: u32,
    /// The driver's poll context that feeds the socket (`SO_INCOMING_NAPI_ID`); 0: the kernel knows of none, and
    /// busy polling has no effect.
    pub napi_id: u32,
}

/// Bit rates of a port (`--bitrate-stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PortBitRates {
    /// Received, all queues.
    pub receive: BitRates,
    /// Sent, all queues.
    pub transmit: BitRates,
}

/// Bit rates of one direction, one for each whole second. Counted are frames from the Ethernet header on,
/// without check sequence, preamble and gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BitRates {
    /// That of the last whole second, in bit/s (`mean_bits` of DPDK's bit-rate statistics).
    pub last_l2_bps: f64,
    /// Smoothed: each second moves it by a fifth of the way (`ewma_bits`).
    pub smoothed_l2_bps: f64,
    /// The highest (`peak_bits`).
    pub peak_l2_bps: f64,
}

/// How long frames were in the forwarder: from before the poll that found them until the transmit queue had
/// them. A figure for each poll that found frames, however many they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Residence {
    /// Polls that found frames.
    pub polls: u64,
    /// The shortest time, in nanoseconds.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How much one differs from the next, smoothed as RFC 3550 section 6.4.1 does.
    pub jitter_ns: u64,
}

/// A time without the process at the other end, counted from the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PeerAbsence {
    /// When it was found gone; 0 where that was before the run.
    pub from_ns: u64,
    /// When somebody came in its place; absent where nobody did until the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
}

/// One stream: a receive queue and the transmit queue that its frames go to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ForwardStream {
    /// Port of the receive queue.
    pub rx_port: u32,
    /// The receive queue.
    pub rx_queue: u32,
    /// Port of the transmit queue.
    pub tx_port: u32,
    /// The transmit queue.
    pub tx_queue: u32,
    /// Number of the thread, from 0.
    pub core: u32,
    /// Received.
    pub receive: QueueFigures,
    /// Sent.
    pub transmit: QueueFigures,
    /// Frames that the mode took out: a sink's, unanswered ones, those that an emulated link lost.
    pub taken: u64,
    /// What the mode counted, by its own names (`bad-ip-checksum`, `lost`, …).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// Polls by how many frames they gave, from 1 (`--record-burst-stats`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bursts: Vec<u64>,
    /// Processor cycles (of the time-stamp counter) of polls that gave frames, over those frames
    /// (`--record-core-cycles`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles_per_packet: Option<f64>,
    /// How long frames were in the forwarder (`--latencystats`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residence: Option<Residence>,
}

impl ForwardStream {
    /// Whether it went over an emulated link, which counts by these names whether anything struck or not.
    #[must_use]
    pub fn is_link(&self) -> bool {
        self.counts.contains_key("queue-full")
    }
}

/// Where a stream goes, and who carries it; told at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    /// Port that frames come from.
    pub rx_port: u32,
    /// Its queue.
    pub rx_queue: u32,
    /// Port that they go to.
    pub tx_port: u32,
    /// Its queue.
    pub tx_queue: u32,
    /// The Ethernet address behind that port.
    pub peer: String,
    /// Number of the thread.
    pub core: u32,
    /// The processor that the thread is pinned to.
    pub cpu: Option<u32>,
}

/// One forwarding thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ForwardCore {
    /// Number of the thread, from 0.
    pub core: u32,
    /// The processor that it is pinned to; absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Streams that it forwards.
    pub streams: u32,
    /// Processor time over wall time, 0 to 1.
    pub cpu_share: f64,
    /// Rounds over its streams.
    pub rounds: u64,
    /// Of these, rounds in which no stream had a frame.
    pub idle_rounds: u64,
    /// How long the thread was away from its ports when it had nothing to do, on average: a frame that
    /// comes meanwhile waits for so long at most. Absent where it spins (a round then, `duration_ns`
    /// over `rounds`) or never idled, and where what comes wakes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_gap_ns: Option<u64>,
    /// The longest time away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_gap_max_ns: Option<u64>,
    /// With `--idle interrupt`: from an event to when the thread runs, the median of a few that were
    /// made before the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_ns: Option<u64>,
    /// Times that it was pushed off its processor.
    pub involuntary_switches: u64,
    /// Times that it went to sleep.
    pub voluntary_switches: u64,
}

/// The memory that frames live in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FrameMemory {
    /// Frames in all.
    pub frames: u32,
    /// Bytes from one to the next.
    pub slot_bytes: u64,
    /// Bytes taken from the kernel.
    pub bytes: u64,
    /// Whether in huge pages that were set aside.
    pub huge_pages: bool,
}

/// Packets per second against packets in flight, for one number of threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Saturation {
    /// Threads that forwarded.
    pub cores: u32,
    /// The steps, ascending.
    pub points: Vec<SaturationPoint>,
    /// The rate of the plateau: the median of the steps on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plateau_pps: Option<f64>,
    /// Packets in flight from which on the rate is that of the plateau.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plateau_in_flight: Option<u64>,
    /// Why the walk ended: `plateau` (the rate rises no more), `full` (rings have no room for more),
    /// `limit` (the largest step) or `interrupted`. No plateau is named where a step was disturbed.
    pub stopped_by: String,
}

/// One step of a [`Saturation`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SaturationPoint {
    /// Bursts that each stream began with.
    pub tx_first: u64,
    /// Packets in circulation, all streams.
    pub in_flight: u64,
    /// Packets forwarded per second, all streams.
    pub packets_per_second: f64,
    /// Packets dropped meanwhile.
    pub dropped: u64,
    /// Whether something else ran on the threads' processors, in each of several tries: the rate is theirs too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disturbed: bool,
    /// Id of its record.
    pub record: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies_give_every_port_one_sender() {
        for &(name, topology) in TOPOLOGIES {
            assert_eq!(name.parse(), Ok(topology));
            assert_eq!(topology.to_string(), name);
            for ports in 1..8 {
                let mut peers: Vec<_> = (0..ports).map(|port| topology.peer(port, ports)).collect();
                peers.sort_unstable();
                assert_eq!(peers, (0..ports).collect::<Vec<_>>(), "{name} of {ports}");
            }
        }
        assert_eq!(PortTopology::Paired.peer(2, 4), 3);
        assert_eq!(PortTopology::Paired.peer(2, 3), 2);
        assert_eq!(PortTopology::Chained.peer(2, 3), 0);
    }

    #[test]
    fn idling_reads_as_it_prints() {
        for (text, printed) in [
            ("spin", "spin"),
            ("yield", "yield"),
            ("interrupt", "interrupt"),
            ("sleep:50", "sleep:50us"),
            ("sleep:1ms", "sleep:1000us"),
            ("sleep:500ns", "sleep:500ns"),
        ] {
            let idle: Idle = text.parse().unwrap();
            assert_eq!(idle.to_string(), printed);
            assert_eq!(printed.parse(), Ok(idle));
        }
        for text in ["", "sleep", "sleep:0", "sleep:2s", "sleep:x", "nap"] {
            assert!(text.parse::<Idle>().is_err(), "{text}");
        }
    }
}
