//! Forwarding: plan of a run, and the figures of its ports, streams and threads.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use linerate_stats::units::parse_duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{SearchEnd, StoredId};
use crate::throttling::CpuThrottling;

/// Mapping from the port that receives a frame to the port that sends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PortTopology {
    /// Ports form pairs: 0 and 1, 2 and 3; the last of an odd number sends to itself.
    #[default]
    Paired,
    /// Ports form a ring: each sends to the next, the last to the first.
    Chained,
    /// Ports send to themselves.
    Loop,
}

/// Topologies with their names.
pub const PORT_TOPOLOGIES: &[(&str, PortTopology)] = &[
    ("paired", PortTopology::Paired),
    ("chained", PortTopology::Chained),
    ("loop", PortTopology::Loop),
];

impl fmt::Display for PortTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = PORT_TOPOLOGIES
            .iter()
            .find(|(_, topology)| topology == self);
        f.pad(entry.map_or("", |(name, _)| name))
    }
}

impl FromStr for PortTopology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entry = PORT_TOPOLOGIES.iter().find(|(name, _)| *name == text);
        entry
            .map(|&(_, topology)| topology)
            .ok_or_else(|| format!("`{text}` is not a topology: use paired, chained or loop"))
    }
}

impl PortTopology {
    /// Returns the port that port `from` of `ports` sends to.
    #[must_use]
    pub fn peer(self, from: usize, ports: usize) -> usize {
        match self {
            Self::Paired if from ^ 1 < ports => from ^ 1,
            Self::Paired | Self::Loop => from,
            Self::Chained => (from + 1) % ports.max(1),
        }
    }
}

/// Idle strategy of a forwarding thread when no port has a frame. Written as on the command line:
/// `spin`, `sleep:50us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum IdleStrategy {
    /// Polls again at once: the core is always busy.
    #[default]
    Spin,
    /// Yields the core to other threads.
    Yield,
    /// Sleeps for a fixed time.
    Sleep {
        /// Sleep time in nanoseconds.
        time_ns: u64,
    },
    /// Sleeps until the kernel signals that a port has frames.
    Interrupt,
}

/// Longest sleep: with more, stopping would take too long.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

impl fmt::Display for IdleStrategy {
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

impl From<IdleStrategy> for String {
    fn from(idle: IdleStrategy) -> Self {
        idle.to_string()
    }
}

impl TryFrom<String> for IdleStrategy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for IdleStrategy {
    type Err = String;

    /// Parses a strategy; a plain number after `sleep:` is in microseconds.
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
                _ => Err(format!(
                    "`{text}` is out of range: use sleep:1ns to sleep:1s"
                )),
            };
        }
        match text {
            "spin" => Ok(Self::Spin),
            "yield" => Ok(Self::Yield),
            "interrupt" => Ok(Self::Interrupt),
            _ => Err(format!(
                "`{text}` is not an idle strategy: use spin, yield, sleep:50us or interrupt"
            )),
        }
    }
}

/// Plan of a forwarding run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ForwardPlan {
    /// Ports as the user named them.
    pub ports: Vec<String>,
    /// Forwarding mode with its options: `io`, `link:delay=50us`.
    pub mode: String,
    /// Number of forwarding threads.
    pub cores: u32,
    /// Processors of the threads; empty: not pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
    /// Port topology.
    pub topology: PortTopology,
    /// Most frames moved by one poll.
    pub burst: u32,
    /// Bursts that each stream sends before it starts forwarding.
    pub tx_first: u64,
    /// Size of generated frames in bytes, without FCS.
    pub frame_bytes: u32,
    /// Idle strategy of the threads.
    pub idle: IdleStrategy,
    /// Empty the receive queues before the start.
    pub flush: bool,
    /// Retries for a frame when the transmit ring is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Seed of all random choices.
    pub seed: u64,
}

impl ForwardPlan {
    /// Returns true if frames can circulate: not in modes that only generate, consume or reply to
    /// frames.
    #[must_use]
    pub fn circulates(&self) -> bool {
        circulates(&self.mode)
    }
}

/// Returns true if frames can circulate in a mode, given with or without its options.
#[must_use]
pub fn circulates(mode: &str) -> bool {
    let name = mode.split(':').next().unwrap_or_default();
    !["rxonly", "txonly", "flowgen", "icmpecho"].contains(&name)
}

/// Figures of a forwarding run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ForwardFigures {
    /// Time of forwarding.
    pub duration_ns: u64,
    /// Figures by port.
    pub ports: Vec<ForwardPort>,
    /// Figures by stream.
    pub streams: Vec<ForwardStream>,
    /// Figures by thread.
    pub cores: Vec<ForwardCore>,
    /// Memory of the frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<FrameMemory>,
    /// Frames discarded before the start, because they were left in receive queues.
    pub flushed: u64,
    /// Frames that `tx_first` put into circulation, all streams.
    pub primed: u64,
    /// Stops by a quota of processor time during the run; absent without a quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttling: Option<CpuThrottling>,
}

impl ForwardFigures {
    /// Returns the frames that emulated links lost or dropped from a full queue.
    #[must_use]
    pub fn link_losses(&self) -> u64 {
        let links = self.streams.iter().filter(|stream| stream.is_link());
        let causes = ["lost", "queue-full"];
        links
            .flat_map(|stream| {
                causes.map(|cause| stream.mode_counters.get(cause).copied().unwrap_or(0))
            })
            .sum()
    }
}

/// Counters of the queues of one direction of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct QueueFigures {
    /// Frames received, or accepted for sending.
    pub packets: u64,
    /// Bytes of these frames, without preamble, gap and FCS.
    pub bytes: u64,
    /// Frames dropped.
    pub dropped: u64,
    /// Frames dropped by cause: `ring-full`, `no-buffer`, `too-long`, `bad`; causes with a count of
    /// zero are left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
}

impl QueueFigures {
    /// Returns the increase since an earlier reading.
    #[must_use]
    pub fn since(&self, previous: &Self) -> Self {
        let drops = self.drops.iter().map(|(cause, count)| {
            let before = previous.drops.get(cause).copied().unwrap_or(0);
            (cause.clone(), count.saturating_sub(before))
        });
        Self {
            packets: self.packets.saturating_sub(previous.packets),
            bytes: self.bytes.saturating_sub(previous.bytes),
            dropped: self.dropped.saturating_sub(previous.dropped),
            drops: drops.filter(|&(_, count)| count > 0).collect(),
        }
    }

    /// Adds the counters of another queue.
    pub fn add(&mut self, queue: &Self) {
        self.packets += queue.packets;
        self.bytes += queue.bytes;
        self.dropped += queue.dropped;
        for (cause, count) in &queue.drops {
            *self.drops.entry(cause.clone()).or_default() += count;
        }
    }
}

/// Figures of one port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ForwardPort {
    /// Number from 0, in the order in which the ports were named.
    pub port: u32,
    /// Kind and name: `ring:0`.
    pub name: String,
    /// Ethernet address, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Number of queue pairs.
    pub queues: u32,
    /// Largest frame in bytes, Ethernet header included, without FCS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_bytes: Option<u32>,
    /// Descriptors of each receive ring, as granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_descriptors: Option<u32>,
    /// Descriptors of each transmit ring, as granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_descriptors: Option<u32>,
    /// True if a peer was ever connected; absent if the port cannot detect it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "joined")]
    pub peer_seen: Option<bool>,
    /// Times within the run without a peer, after one had been connected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "absences")]
    pub peer_outages: Vec<PeerOutage>,
    /// True if the interface had carrier both at the start and at the end of the run; absent
    /// without an interface, or if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<bool>,
    /// True if the port put its interface into promiscuous mode; absent without an interface that
    /// filters addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promiscuous: Option<bool>,
    /// Bit rates per second (`--bitrate-stats`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bit_rates: Option<PortBitRates>,
    /// Copies of frame data: `none` (only handles move), `each-way` (copied in and out),
    /// `in-kernel`.
    pub copies: String,
    /// Binding of its AF_XDP sockets, as granted; absent on other ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<XdpFacts>,
    /// Settings that were granted where the port had a choice, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Received, sum of all queues.
    pub receive: QueueFigures,
    /// Sent, sum of all queues.
    pub transmit: QueueFigures,
}

/// Binding of an AF_XDP socket, as the kernel granted it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct XdpFacts {
    /// XDP mode: `native` (in the driver) or `generic` (after it).
    pub mode: String,
    /// True if the device reads and writes the frame memory; else the kernel copies each frame.
    pub zero_copy: bool,
    /// True if the kernel signals when it needs a wake-up; else every burst needs one.
    pub need_wakeup: bool,
    /// Busy polling, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_poll: Option<BusyPollFacts>,
}

/// Busy polling of a socket (`SO_PREFER_BUSY_POLL`); the kernel grants it even if there is nothing
/// to poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BusyPollFacts {
    /// Most frames that one call takes from the driver (`SO_BUSY_POLL_BUDGET`).
    pub budget: u32,
    /// NAPI id of the queue that feeds the socket (`SO_INCOMING_NAPI_ID`); 0: none known to the
    /// kernel, and busy polling has no effect.
    pub napi_id: u32,
}

/// Bit rates of a port (`--bitrate-stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PortBitRates {
    /// Received, sum of all queues.
    pub receive: BitRates,
    /// Sent, sum of all queues.
    pub transmit: BitRates,
}

/// Bit rates of one direction, sampled each full second. Frames count from the Ethernet header on,
/// without FCS, preamble and gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BitRates {
    /// Rate of the last full second, in bit/s (`mean_bits` of DPDK's bit-rate statistics).
    pub last_l2_bps: f64,
    /// Smoothed rate: an exponential average with weight 1/5 (`ewma_bits`).
    pub smoothed_l2_bps: f64,
    /// Highest rate (`peak_bits`).
    pub peak_l2_bps: f64,
}

/// Time of frames in the forwarder: from before the poll that received them until the transmit
/// queue accepted them. One sample for each poll with frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ResidenceTime {
    /// Polls with frames.
    pub polls: u64,
    /// Shortest time, in nanoseconds.
    pub min_ns: u64,
    /// Mean time, in nanoseconds.
    pub mean_ns: u64,
    /// Longest time, in nanoseconds.
    pub max_ns: u64,
    /// Smoothed difference between consecutive samples (RFC 3550 section 6.4.1), in nanoseconds.
    pub jitter_ns: u64,
}

/// A time without the peer process, counted from the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PeerOutage {
    /// Detection of the loss; 0 if it was before the run.
    pub from_ns: u64,
    /// Connection of the next peer; absent if there was none until the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
}

/// Figures of one stream: a receive queue and the transmit queue that its frames are sent to.
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
    /// Number of its thread, from 0.
    pub core: u32,
    /// Receive counters.
    pub receive: QueueFigures,
    /// Transmit counters.
    pub transmit: QueueFigures,
    /// Frames that the mode consumed: by a sink, requests without a reply, or lost by an emulated
    /// link.
    #[serde(alias = "taken")]
    pub consumed: u64,
    /// Counters of the mode, by its names (`bad-ip-checksum`, `lost`, …).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[serde(alias = "counts")]
    pub mode_counters: BTreeMap<String, u64>,
    /// Processor cycles (time-stamp counter) of polls with frames, per frame
    /// (`--record-core-cycles`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles_per_packet: Option<f64>,
    /// Time of frames in the forwarder (`--latencystats`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residence: Option<ResidenceTime>,
}

impl ForwardStream {
    /// Returns true for a stream through an emulated link, which has these counters even at zero.
    #[must_use]
    pub fn is_link(&self) -> bool {
        self.mode_counters.contains_key("queue-full")
    }
}

/// Route of a stream and its thread, known at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRoute {
    /// Port that receives.
    pub rx_port: u32,
    /// Receive queue.
    pub rx_queue: u32,
    /// Port that sends.
    pub tx_port: u32,
    /// Transmit queue.
    pub tx_queue: u32,
    /// Ethernet address of the peer on the sending port.
    pub peer: String,
    /// Number of its thread.
    pub core: u32,
    /// Processor of the thread, if it is pinned.
    pub cpu: Option<u32>,
}

/// Figures of one forwarding thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ForwardCore {
    /// Number of the thread, from 0.
    pub core: u32,
    /// Processor of the thread; absent: not pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Number of streams that it forwards.
    pub streams: u32,
    /// Processor time over wall time, 0 to 1.
    pub cpu_share: f64,
    /// Poll rounds over its streams.
    pub rounds: u64,
    /// Rounds without a frame from any stream.
    pub idle_rounds: u64,
    /// Mean time between polls when idle: the longest wait of a frame that arrives meanwhile.
    /// Absent if the thread spins (then `duration_ns` / `rounds`), was never idle, or is woken by
    /// frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_gap_ns: Option<u64>,
    /// Longest time between polls when idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_gap_max_ns: Option<u64>,
    /// With `--idle interrupt`: median wake-up latency of a few test events before the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_ns: Option<u64>,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
}

/// Memory of the frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FrameMemory {
    /// Number of frame buffers.
    pub frames: u32,
    /// Distance between frame buffers in bytes.
    pub slot_bytes: u64,
    /// Bytes allocated from the kernel.
    pub bytes: u64,
    /// True if the memory is in reserved huge pages.
    pub huge_pages: bool,
}

/// Packets per second as a function of packets in flight, for one number of threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SaturationCurve {
    /// Number of forwarding threads.
    pub cores: u32,
    /// Steps, ascending.
    pub points: Vec<SaturationPoint>,
    /// Plateau rate: median of the steps on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plateau_pps: Option<f64>,
    /// Packets in flight at which the plateau starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plateau_in_flight: Option<u64>,
    /// Reason for the end of the sweep: `plateau` (the rate stopped rising), `full` (the rings are
    /// full), `limit` (the largest step) or `interrupted`. No plateau is reported if a step was
    /// disturbed.
    pub stopped_by: StoredId<SearchEnd>,
}

/// Step of a [`SaturationCurve`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SaturationPoint {
    /// Initial bursts of each stream.
    pub tx_first: u64,
    /// Packets in circulation, all streams.
    pub in_flight: u64,
    /// Packets forwarded per second, all streams.
    pub packets_per_second: f64,
    /// Packets dropped in the step.
    pub dropped: u64,
    /// True if other programs used the threads' processors in each of several tries, which lowers
    /// the rate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disturbed: bool,
    /// Id of the step's record.
    pub record: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies_give_every_port_one_sender() {
        for &(name, topology) in PORT_TOPOLOGIES {
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
            let idle: IdleStrategy = text.parse().unwrap();
            assert_eq!(idle.to_string(), printed);
            assert_eq!(printed.parse(), Ok(idle));
        }
        for text in ["", "sleep", "sleep:0", "sleep:2s", "sleep:x", "nap"] {
            assert!(text.parse::<IdleStrategy>().is_err(), "{text}");
        }
    }
}
