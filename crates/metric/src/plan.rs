//! What a run does: every effective option, as data.
//!
//! The same plan stands in the record, crosses the control connection and drives the engine. Near
//! is the end that was told what to do (the client), far is the other one.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::forward::ForwardPlan;
use crate::generate::GeneratePlan;
use crate::pace::Pace;
use crate::round_trip::RoundTripPlan;
use crate::stack::StackPlan;
use crate::units::{parse_duration, written_duration};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// How much payload arrives in a second.
    Throughput,
    /// How long a question takes to be answered.
    Latency,
    /// How many frames poll-mode ports hand on. No far end takes part: it is no plan for a server.
    Forward,
    /// What becomes of frames that a generator sends. No far end takes part: it is no plan for a server.
    Generate,
    /// What our own stack did as a host that serves others. It is no plan for a server.
    Stack,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Forward => "forward",
            Self::Generate => "generate",
            Self::Stack => "stack",
        })
    }
}

/// Transport protocol that carries the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// Which way payload flows, seen from the near end.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Near to far.
    Send,
    /// Far to near.
    Receive,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "send",
            Self::Receive => "receive",
        })
    }
}

/// How a thread waits for its socket. Written as on the command line: `block`, `select:100us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum Wait {
    /// The call sleeps in the kernel until it can go on.
    Block,
    /// The call returns at once and is made again: the core never sleeps.
    Spin,
    /// `poll` sleeps before each receive call.
    Poll,
    /// `select` sleeps before each receive call, for at most this time at once.
    Select {
        /// Its time-out; absent: as long as the run allows.
        timeout_ns: Option<u64>,
    },
    /// Calls return at once; `epoll_wait` sleeps when none of the sockets could go on.
    Epoll,
    /// io_uring: sends are submitted and waited for, receives go on by themselves (multishot) into
    /// registered buffers; `io_uring_enter` sleeps when nothing is completed.
    IoUring,
    /// As `block`, but a call that would sleep looks into the interface's receive queue first
    /// (SO_BUSY_POLL).
    BusyPoll {
        /// For how long; absent: [`BUSY_POLL_NS`].
        time_ns: Option<u64>,
    },
    /// Our own stack alone: it looks for frames once in so much time, and sleeps in between.
    Interval {
        /// The time from one look to the next.
        time_ns: u64,
    },
}

/// Time of `busy-poll` without a number: what the kernel's documentation suggests
/// (net.core.busy_read in networking/sysctl).
pub const BUSY_POLL_NS: u64 = 50_000;

/// Longest time of `busy-poll`: beyond it a call does not sleep in any sense.
pub const LONGEST_BUSY_POLL_NS: u64 = 100_000_000;

/// Every way of waiting with its name, in the order help lists them.
pub const WAITS: &[(&str, Wait)] = &[
    ("block", Wait::Block),
    ("spin", Wait::Spin),
    ("poll", Wait::Poll),
    ("select", Wait::Select { timeout_ns: None }),
    ("epoll", Wait::Epoll),
    ("io-uring", Wait::IoUring),
    ("busy-poll", Wait::BusyPoll { time_ns: None }),
];

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Select {
            timeout_ns: Some(timeout),
        } = self
        {
            return f.pad(&format!("select:{}", written_duration(*timeout)));
        }
        if let Self::BusyPoll {
            time_ns: Some(time),
        } = self
        {
            return f.pad(&format!("busy-poll:{}", written_duration(*time)));
        }
        if let Self::Interval { time_ns } = self {
            return f.pad(&format!("interval:{}", written_duration(*time_ns)));
        }
        let (name, _) = WAITS
            .iter()
            .find(|(_, wait)| wait == self)
            .expect("every way of waiting is in the table");
        f.pad(name)
    }
}

impl From<Wait> for String {
    fn from(wait: Wait) -> Self {
        wait.to_string()
    }
}

impl TryFrom<String> for Wait {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(timeout) = text.strip_prefix("select:") {
            let timeout = parse_duration(timeout).map_err(|error| error.to_string())?;
            return Ok(Self::Select {
                timeout_ns: Some(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)),
            });
        }
        if let Some(time) = text.strip_prefix("interval:") {
            let time = parse_duration(time).map_err(|error| error.to_string())?;
            let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            if !(1_000..=1_000_000_000).contains(&time_ns) {
                return Err(format!("`{text}` is not within 1us and 1s"));
            }
            return Ok(Self::Interval { time_ns });
        }
        if let Some(time) = text.strip_prefix("busy-poll:") {
            let time = parse_duration(time).map_err(|error| error.to_string())?;
            let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            if !(1_000..=LONGEST_BUSY_POLL_NS).contains(&time) {
                return Err(format!("`{text}` is not within 1us and 100ms"));
            }
            return Ok(Self::BusyPoll {
                time_ns: Some(time),
            });
        }
        WAITS
            .iter()
            .find(|(name, _)| *name == text)
            .map(|&(_, wait)| wait)
            .ok_or_else(|| {
                let names: Vec<_> = WAITS.iter().map(|(name, _)| *name).collect();
                format!("`{text}` is no way of waiting: {}", names.join(", "))
            })
    }
}

/// Scheduling class and priority of measuring threads. Written as on the command line: `fifo:80`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum Sched {
    /// As the process was started.
    #[default]
    Inherited,
    /// SCHED_OTHER with this nice value, -20 to 19.
    Nice(i8),
    /// SCHED_FIFO with this priority, 1 to 99.
    Fifo(u8),
    /// SCHED_RR with this priority, 1 to 99.
    RoundRobin(u8),
}

impl Sched {
    /// Whether it runs before everything that is not real-time.
    #[must_use]
    pub fn is_real_time(self) -> bool {
        self.real_time_priority().is_some()
    }

    /// The priority among what is real-time, where it is.
    #[must_use]
    pub fn real_time_priority(self) -> Option<u8> {
        match self {
            Self::Fifo(priority) | Self::RoundRobin(priority) => Some(priority),
            Self::Inherited | Self::Nice(_) => None,
        }
    }
}

impl fmt::Display for Sched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inherited => f.pad("inherited"),
            Self::Nice(value) => f.pad(&format!("nice:{value}")),
            Self::Fifo(priority) => f.pad(&format!("fifo:{priority}")),
            Self::RoundRobin(priority) => f.pad(&format!("rr:{priority}")),
        }
    }
}

impl FromStr for Sched {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "`{text}` is no scheduling: nice:-20 to nice:19, fifo:1 to fifo:99, rr:1 to rr:99"
            )
        };
        let priority = |value: &str| {
            let value = value.parse().ok();
            value
                .filter(|value| (1..=99).contains(value))
                .ok_or_else(refused)
        };
        match text.split_once(':') {
            None if text == "inherited" => Ok(Self::Inherited),
            Some(("nice", value)) => {
                let value = value.parse().ok();
                let value = value.filter(|value| (-20..=19).contains(value));
                value.map(Self::Nice).ok_or_else(refused)
            }
            Some(("fifo", value)) => priority(value).map(Self::Fifo),
            Some(("rr", value)) => priority(value).map(Self::RoundRobin),
            _ => Err(refused()),
        }
    }
}

impl From<Sched> for String {
    fn from(sched: Sched) -> Self {
        sched.to_string()
    }
}

impl TryFrom<String> for Sched {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Processors by number, ascending and without repeats; empty means any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Cpus(pub Vec<u32>);

/// Processor numbers beyond this are nonsense: the kernel's own largest configuration is 8192.
const CPU_LIMIT: u32 = 8192;

impl Cpus {
    /// Reads a list whose order says which one is for what: it stays as written, and none comes twice.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn in_order(text: &str) -> Result<Self, String> {
        let cpus = Self::read(text)?;
        let mut before = HashSet::new();
        match cpus.iter().find(|cpu| !before.insert(**cpu)) {
            Some(twice) => Err(format!("`{text}` names {twice} twice: name each once")),
            None => Ok(Self(cpus)),
        }
    }

    fn read(text: &str) -> Result<Vec<u32>, String> {
        let number = |part: &str| match part.parse::<u32>() {
            Ok(cpu) if cpu < CPU_LIMIT => Ok(cpu),
            _ => Err(format!(
                "`{text}` is no list of processors: write 0, 0-3 or 0,2,4-7"
            )),
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            match part.split_once('-') {
                None => cpus.push(number(part)?),
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(format!("`{part}` counts down: write {last}-{first}"));
                    }
                    cpus.extend(first..=last);
                }
            }
        }
        Ok(cpus)
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Self::read(text)?;
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.pad("any");
        }
        let mut out = String::new();
        let mut rest = &self.0[..];
        while let Some(&first) = rest.first() {
            let run = rest
                .iter()
                .zip(first..)
                .take_while(|&(&cpu, expected)| cpu == expected)
                .count();
            if !out.is_empty() {
                out.push(',');
            }
            out.push_str(&first.to_string());
            if run > 1 {
                out.push('-');
                out.push_str(&rest[run - 1].to_string());
            }
            rest = &rest[run..];
        }
        f.pad(&out)
    }
}

/// An option of both ends, `NEAR[/FAR]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ends<T> {
    /// The end that was told what to do.
    pub near: T,
    /// The other end.
    pub far: T,
}

impl<T> Ends<T> {
    /// The same thing at both ends with near and far exchanged, as the far end sees it.
    #[must_use]
    pub fn swapped(self) -> Self {
        Self {
            near: self.far,
            far: self.near,
        }
    }
}

impl<T: Clone> Ends<T> {
    /// The same at both ends.
    #[must_use]
    pub fn both(value: T) -> Self {
        Self {
            far: value.clone(),
            near: value,
        }
    }
}

impl<T: FromStr + Clone> FromStr for Ends<T> {
    type Err = T::Err;

    /// Without `/FAR` the far end does as the near one.
    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text.split_once('/') {
            None => text.parse().map(Self::both),
            Some((near, far)) => Ok(Self {
                near: near.parse()?,
                far: far.parse()?,
            }),
        }
    }
}

impl<T: fmt::Display + PartialEq> fmt::Display for Ends<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.near == self.far {
            write!(f, "{}", self.near)
        } else {
            write!(f, "{}/{}", self.near, self.far)
        }
    }
}

/// Whether something is so at no end.
fn is_neither(ends: &Ends<bool>) -> bool {
    !ends.near && !ends.far
}

/// What was asked of the payload sockets at both ends; absent: as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SocketPlan {
    /// Send buffer (SO_SNDBUF); goes before the size asked for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer_bytes: Option<u64>,
    /// Receive buffer (SO_RCVBUF); goes before the size asked for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer_bytes: Option<u64>,
    /// TCP: maximum segment size (TCP_MAXSEG).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mss_bytes: Option<u32>,
    /// TCP: small writes leave at once (TCP_NODELAY). Round trips always have it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_delay: bool,
    /// Type of service of IPv4, traffic class of IPv6: DSCP in the upper six bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
    /// SO_PRIORITY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Bytes before a sleeping receiver is woken (SO_RCVLOWAT).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_low_water_bytes: Option<u32>,
}

/// What the kernel does for many datagrams in one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UdpOffload {
    /// Cutting at the sender (UDP_SEGMENT); absent: not settled yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso: Option<bool>,
    /// Joining at the receiver (UDP_GRO); absent: not settled yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gro: Option<bool>,
    /// Whether this was asked for rather than chosen.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
}

/// How payload leaves the sender's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SendCopy {
    /// The kernel copies it: what nearly every program does.
    #[default]
    Copied,
    /// MSG_ZEROCOPY: the kernel takes the pages and tells when it is done with them; where it has to
    /// it copies after all. On our own stack: the program writes into its buffers.
    ZeroCopy,
    /// TCP: from a file in memory with `sendfile`; the program does not touch it.
    SendFile,
    /// TCP: pages of the program through a pipe (`vmsplice`, `splice`).
    Splice,
}

/// How payload comes into the receiver's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReceiveCopy {
    /// The kernel copies it: what nearly every program does.
    #[default]
    Copied,
    /// TCP: it is counted and thrown away unseen (MSG_TRUNC). On our own stack: seen where it lies.
    Discarded,
}

/// Whether payload is copied between the kernel and user memory at both ends. Figures of runs that
/// differ here do not compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Copies {
    /// At the sender.
    pub send: SendCopy,
    /// At the receiver.
    pub receive: ReceiveCopy,
}

impl Copies {
    /// Whether both ends copy, as by default.
    #[must_use]
    pub fn are_made(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the content reaches user memory at both ends, so that it can be verified.
    #[must_use]
    pub fn show_content(&self) -> bool {
        self.are_made()
    }
}

/// What a run of round trips asks the kernel to note of each packet: every level holds those before.
///
/// Notes cost time, so the figures of a run with them are no figures of one without.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Stamping {
    /// Nothing.
    #[default]
    None,
    /// When it passed the queueing discipline and the driver, and when it arrived
    /// (SO_TIMESTAMPING).
    Packets,
    /// When the thread that waits for it was woken and got a processor, as far as the kernel lets
    /// this user see that.
    Scheduler,
    /// When the kernel's receive work began and ended on each processor.
    Driver,
}

impl Stamping {
    /// Whether nothing is noted.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Every effective option of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// What is measured.
    pub kind: Kind,
    /// Transport protocol of the payload.
    pub protocol: Protocol,
    /// The far host as it was named.
    pub host: String,
    /// Its port, of the control connection and of the payload.
    pub port: u16,
    /// The dialect of a far end that is another program (`iperf3`, `sockperf`, ...); absent: our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// The command whose output told what the far end counted (`--far-report`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far_report: Option<String>,
    /// The directions in which payload flows at the same time; round trips count as `send`.
    pub directions: Vec<Direction>,
    /// Throughput: each direction begins when the one before it has ended, and not with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_turn: bool,
    /// Flows per direction.
    pub streams: u32,
    /// Threads that move the flows of a direction at each end; absent: chosen when the run starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<Ends<u32>>,
    /// Stop after this time; absent when an amount ends the run.
    #[serde(default)]
    pub duration_ns: Option<u64>,
    /// Throughput: stop after this many payload bytes per direction.
    #[serde(default)]
    pub amount_bytes: Option<u64>,
    /// Latency: stop after this many round trips.
    #[serde(default)]
    pub round_trips: Option<u64>,
    /// Time at the start that is measured but not counted.
    #[serde(default)]
    pub omit_ns: u64,
    /// Length of a reporting interval; absent: none.
    #[serde(default)]
    pub interval_ns: Option<u64>,
    /// TCP throughput: bytes per send call. UDP: datagram payload. Latency: message size.
    pub payload_bytes: u64,
    /// TCP throughput: room offered to each receive call.
    #[serde(default)]
    pub receive_bytes: Option<u64>,
    /// Socket buffers asked for (`-w`); absent: the kernel's own sizing.
    #[serde(default)]
    pub window_bytes: Option<u64>,
    /// Everything else that was asked of the payload sockets.
    #[serde(default)]
    pub socket: SocketPlan,
    /// Offered load per stream in payload bits per second; absent: as fast as it goes.
    #[serde(default)]
    pub rate_bps: Option<u64>,
    /// How that load is spread over time.
    #[serde(default)]
    pub pace: Pace,
    /// TCP congestion control at both ends; absent until known (UDP has none).
    #[serde(default)]
    pub congestion_control: Option<String>,
    /// Whether `congestion_control` was asked for rather than found.
    #[serde(default)]
    pub congestion_control_asked: bool,
    /// Local address to send from, with `%IF` where an interface was named.
    #[serde(default)]
    pub bind: Option<String>,
    /// First local port of the payload flows; stream n takes this plus n.
    #[serde(default)]
    pub source_port: Option<u16>,
    /// How each end waits; absent: chosen when the run starts.
    #[serde(default)]
    pub wait: Option<Ends<Wait>>,
    /// How the near end waits where the far one is another program, whose way nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_wait: Option<Wait>,
    /// Processors of each end's threads, dealt in turn; empty: wherever the scheduler puts them.
    #[serde(default)]
    pub cpu: Ends<Cpus>,
    /// Scheduling of each end's threads.
    #[serde(default)]
    pub sched: Ends<Sched>,
    /// UDP throughput: whether the kernel cuts what one call sends into datagrams (GSO) at the
    /// sender, and joins them for one receive call (GRO) at the receiver. Figures count datagrams.
    #[serde(default)]
    pub udp_offload: UdpOffload,
    /// UDP throughput: datagrams that one call sends (sendmmsg) and receives (recvmmsg) at most, each
    /// of them on its own way through the kernel; absent: one, or as `udp_offload` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Whether the socket buffers asked for go beyond the limit of each end's system
    /// (net.core.wmem_max, rmem_max), because the end's privilege allows it.
    #[serde(default, skip_serializing_if = "is_neither")]
    pub forced_buffers: Ends<bool>,
    /// Throughput: whether payload is copied between the kernel and user memory.
    #[serde(default, skip_serializing_if = "Copies::are_made")]
    pub copies: Copies,
    /// Throughput: whether the content of every byte received is compared with what was sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verify: bool,
    /// Whether the duration of every system call is recorded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub calls: bool,
    /// Whether cores are kept from halting for the time of the run.
    #[serde(default)]
    pub hold_latency: bool,
    /// Latency: an answer later than this counts as lost.
    #[serde(default)]
    pub answer_timeout_ns: Option<u64>,
    /// Latency: how round trips are asked and judged.
    #[serde(default, skip_serializing_if = "RoundTripPlan::is_default")]
    pub round_trip: RoundTripPlan,
    /// Throughput: the latest calls of each thread are kept for a timeline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trace: bool,
    /// A timeline ends soon after a round trip, or a call, slower than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_on_ns: Option<u64>,
    /// Latency: what the kernel is asked to note of each packet.
    #[serde(default, skip_serializing_if = "Stamping::is_none")]
    pub stamps: Stamping,
    /// Forwarding: ports, mode and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Box<ForwardPlan>>,
    /// Generating: ports, frames and load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generate: Option<Box<GeneratePlan>>,
    /// Which network stack moved the payload at each end.
    pub stack: Ends<String>,
    /// Our own stack at the near end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_stack: Option<Box<StackPlan>>,
}

impl Plan {
    /// A plan with the defaults of `linerate KIND HOST`; what is left open is settled at the start.
    #[must_use]
    pub fn new(kind: Kind, protocol: Protocol, host: impl Into<String>) -> Self {
        Self {
            kind,
            protocol,
            host: host.into(),
            port: DEFAULT_PORT,
            dialect: None,
            far_report: None,
            directions: vec![Direction::Send],
            in_turn: false,
            streams: 1,
            threads: None,
            duration_ns: Some(10_000_000_000),
            amount_bytes: None,
            round_trips: None,
            omit_ns: 0,
            interval_ns: Some(1_000_000_000),
            payload_bytes: match (kind, protocol) {
                (Kind::Latency | Kind::Forward | Kind::Generate | Kind::Stack, _) => 64,
                (Kind::Throughput, Protocol::Tcp) => TCP_SEND_BYTES,
                // Settled from the path's MTU once there is a socket to ask.
                (Kind::Throughput, Protocol::Udp) => 0,
            },
            receive_bytes: (kind == Kind::Throughput && protocol == Protocol::Tcp)
                .then_some(TCP_RECEIVE_BYTES),
            window_bytes: None,
            socket: SocketPlan::default(),
            rate_bps: None,
            pace: Pace::default(),
            congestion_control: None,
            congestion_control_asked: false,
            bind: None,
            source_port: None,
            wait: None,
            near_wait: None,
            cpu: Ends::default(),
            sched: Ends::default(),
            udp_offload: UdpOffload::default(),
            batch: None,
            forced_buffers: Ends::default(),
            copies: Copies::default(),
            verify: false,
            calls: false,
            hold_latency: false,
            answer_timeout_ns: (kind == Kind::Latency).then_some(1_000_000_000),
            round_trip: RoundTripPlan::default(),
            trace: false,
            trace_on_ns: None,
            stamps: Stamping::None,
            forward: None,
            generate: None,
            stack: Ends::both("kernel".to_owned()),
            near_stack: None,
        }
    }

    /// Whether what happened when is noted at both ends.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.trace || !self.stamps.is_none()
    }

    /// Whether payload flows in this direction.
    #[must_use]
    pub fn flows(&self, direction: Direction) -> bool {
        self.directions.contains(&direction)
    }
}

/// Port of `linerate server`: the one people's firewalls already open for throughput tests.
pub const DEFAULT_PORT: u16 = 5201;

/// Bytes per TCP send call: past 1 MiB the write no longer fits the second-level cache and gains
/// nothing (docs/METHOD.md#write-size).
pub const TCP_SEND_BYTES: u64 = 1 << 20;

/// Bytes per TCP send call where so many streams are sent at the same time: with the whole megabyte a
/// turn of thousands takes seconds, and what waits in their sockets leaves every cache
/// (docs/METHOD.md#many-streams).
#[must_use]
pub fn tcp_send_bytes(streams: u32) -> u64 {
    const TOGETHER: u64 = 64 << 20;
    (TOGETHER / u64::from(streams.max(1))).clamp(256 << 10, TCP_SEND_BYTES)
}

/// Room of a TCP receive call: the fastest of 128 KiB to 1 MiB for a spinning receiver
/// (docs/METHOD.md#write-size).
pub const TCP_RECEIVE_BYTES: u64 = 256 << 10;

/// Largest UDP payload: a 16-bit length with the UDP and IPv4 headers inside (RFC 768, RFC 791).
pub const LARGEST_DATAGRAM_BYTES: u64 = 65_507;

/// Largest message or call: what a server allocates per thread for a client at most.
pub const LARGEST_CALL_BYTES: u64 = 64 << 20;

/// Datagrams of a `--batch` without a number: where the curve turns flat (docs/METHOD.md#batches).
pub const BATCH: u32 = 64;

/// Most datagrams that the kernel takes in one call (UIO_MAXIOV).
pub const LARGEST_BATCH: u32 = 1024;

/// Shortest reporting interval: below it the reports would disturb what they report.
pub const SHORTEST_INTERVAL_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn many_streams_have_shorter_turns() {
        for (streams, want) in [
            (0, 1 << 20),
            (1, 1 << 20),
            (64, 1 << 20),
            (128, 512 << 10),
            (1_024, 256 << 10),
            (u32::MAX, 256 << 10),
        ] {
            assert_eq!(tcp_send_bytes(streams), want, "{streams}");
        }
    }

    #[test]
    fn processor_lists() {
        for (text, want) in [
            ("0", vec![0]),
            ("0-3", vec![0, 1, 2, 3]),
            ("5,1-2,1", vec![1, 2, 5]),
        ] {
            assert_eq!(text.parse::<Cpus>().unwrap().0, want, "{text}");
        }
        for text in ["", "a", "3-1", "0-", "9999", "0,,1", "-1"] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
        assert_eq!(Cpus::in_order("5,1-2").unwrap().0, [5, 1, 2]);
        let twice = Cpus::in_order("0,1,0").unwrap_err();
        assert!(twice.contains("names 0 twice"), "{twice}");
        assert!(Cpus::in_order("0-").is_err());
    }

    #[test]
    fn without_far_the_far_end_does_as_the_near_one() {
        let same: Ends<Wait> = "spin".parse().unwrap();
        assert_eq!(same, Ends::both(Wait::Spin));
        let mixed: Ends<Wait> = "block/spin".parse().unwrap();
        assert_eq!((mixed.near, mixed.far), (Wait::Block, Wait::Spin));
        let cpus: Ends<Cpus> = "0-3/4-7".parse().unwrap();
        assert_eq!(cpus.far.0, [4, 5, 6, 7]);
        assert!("spin/nap".parse::<Ends<Wait>>().is_err());
    }

    #[test]
    fn ways_of_waiting_read_as_they_print() {
        for (text, wait) in WAITS {
            assert_eq!(text.parse(), Ok(*wait));
        }
        let timed: Wait = "select:100us".parse().unwrap();
        assert_eq!(
            timed,
            Wait::Select {
                timeout_ns: Some(100_000)
            }
        );
        assert_eq!(timed.to_string(), "select:100us");
        assert_eq!(timed.to_string().parse(), Ok(timed));
        let busy: Wait = "busy-poll:20us".parse().unwrap();
        assert_eq!(
            busy,
            Wait::BusyPoll {
                time_ns: Some(20_000)
            }
        );
        assert_eq!(busy.to_string().parse(), Ok(busy));
        for text in [
            "",
            "nap",
            "select:",
            "select:x",
            "block:1s",
            "busy-poll:1s",
            "busy-poll:0",
            "io-uring:1",
        ] {
            assert!(text.parse::<Wait>().is_err(), "{text}");
        }
    }

    #[test]
    fn scheduling_reads_as_it_prints() {
        for (text, sched) in [
            ("fifo:80", Sched::Fifo(80)),
            ("rr:99", Sched::RoundRobin(99)),
            ("nice:-20", Sched::Nice(-20)),
            ("inherited", Sched::Inherited),
        ] {
            assert_eq!(text.parse(), Ok(sched));
            assert_eq!(sched.to_string(), text);
        }
        for text in ["fifo", "fifo:0", "fifo:100", "nice:20", "rr:x", ""] {
            assert!(text.parse::<Sched>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn processor_lists_print_as_they_read(mut cpus in prop::collection::vec(0u32..8192, 1..40)) {
            cpus.sort_unstable();
            cpus.dedup();
            let printed = Cpus(cpus.clone()).to_string();
            prop_assert_eq!(printed.parse::<Cpus>().unwrap().0, cpus);
        }
    }
}
