//! Plan of a run: every effective option, as data.
//!
//! The same plan is stored in the record, sent over the control connection, and executed by the
//! engine.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use linerate_stats::units::{format_exact_duration, parse_duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::ends::PerEnd;
use crate::forward::ForwardPlan;
use crate::generate::GeneratePlan;
use crate::pace::PacePlan;
use crate::round_trip::RoundTripPlan;
use crate::stack::StackPlan;

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RunKind {
    /// Payload received per second.
    Throughput,
    /// Round-trip time of requests and responses.
    Latency,
    /// Frames forwarded by poll-mode ports. Runs without a server.
    Forward,
    /// Frames sent by the packet generator. Runs without a server.
    Generate,
    /// The user-space stack as a host with services. Runs without a server.
    Stack,
}

impl fmt::Display for RunKind {
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

/// Transport protocol of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TransportProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for TransportProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// Direction of the payload, as seen from the client.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the client to the server.
    Send,
    /// From the server to the client.
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

/// Wait mode of a thread on its sockets. Written as on the command line: `block`, `select:100us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum WaitMode {
    /// Blocking calls.
    Block,
    /// Non-blocking calls in a loop: the core never sleeps.
    Spin,
    /// `poll` before each receive call.
    Poll,
    /// `select` before each receive call.
    Select {
        /// Timeout of one `select` call; absent: the rest of the run.
        timeout_ns: Option<u64>,
    },
    /// Non-blocking calls; `epoll_wait` when no socket is ready.
    Epoll,
    /// io_uring: sends are submitted and waited for, receives are multishot into registered
    /// buffers; `io_uring_enter` sleeps when nothing has completed.
    IoUring,
    /// Blocking calls that poll the interface's receive queue before they sleep (SO_BUSY_POLL).
    BusyPoll {
        /// Time to poll before sleeping; absent: [`DEFAULT_BUSY_POLL_NS`].
        time_ns: Option<u64>,
    },
    /// The user-space stack only: polls its port at a fixed interval and sleeps in between.
    Interval {
        /// Time from one poll to the next.
        time_ns: u64,
    },
}

/// Time of `busy-poll` without a number, as the kernel's documentation suggests (net.core.busy_read
/// in networking/sysctl).
pub const DEFAULT_BUSY_POLL_NS: u64 = 50_000;

/// Longest time of `busy-poll`: with more, a call would hardly ever sleep.
pub const MAX_BUSY_POLL_NS: u64 = 100_000_000;

/// Wait modes with their names, in the order of the help text.
pub const WAIT_MODES: &[(&str, WaitMode)] = &[
    ("block", WaitMode::Block),
    ("spin", WaitMode::Spin),
    ("poll", WaitMode::Poll),
    ("select", WaitMode::Select { timeout_ns: None }),
    ("epoll", WaitMode::Epoll),
    ("io-uring", WaitMode::IoUring),
    ("busy-poll", WaitMode::BusyPoll { time_ns: None }),
];

impl fmt::Display for WaitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Select {
            timeout_ns: Some(timeout),
        } = self
        {
            return f.pad(&format!("select:{}", format_exact_duration(*timeout)));
        }
        if let Self::BusyPoll {
            time_ns: Some(time),
        } = self
        {
            return f.pad(&format!("busy-poll:{}", format_exact_duration(*time)));
        }
        if let Self::Interval { time_ns } = self {
            return f.pad(&format!("interval:{}", format_exact_duration(*time_ns)));
        }
        let (name, _) = WAIT_MODES
            .iter()
            .find(|(_, wait)| wait == self)
            .expect("every wait mode is in the table");
        f.pad(name)
    }
}

impl From<WaitMode> for String {
    fn from(wait: WaitMode) -> Self {
        wait.to_string()
    }
}

impl TryFrom<String> for WaitMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for WaitMode {
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
                return Err(format!("`{text}` is out of range: use 1us to 1s"));
            }
            return Ok(Self::Interval { time_ns });
        }
        if let Some(time) = text.strip_prefix("busy-poll:") {
            let time = parse_duration(time).map_err(|error| error.to_string())?;
            let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            if !(1_000..=MAX_BUSY_POLL_NS).contains(&time) {
                return Err(format!("`{text}` is out of range: use 1us to 100ms"));
            }
            return Ok(Self::BusyPoll {
                time_ns: Some(time),
            });
        }
        WAIT_MODES
            .iter()
            .find(|(name, _)| *name == text)
            .map(|&(_, wait)| wait)
            .ok_or_else(|| {
                let names: Vec<_> = WAIT_MODES.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                match text {
                    "" => format!("a wait mode is missing: use {names}"),
                    _ => format!("`{text}` is not a wait mode: use {names}"),
                }
            })
    }
}

/// Scheduling class and priority of measuring threads. Written as on the command line: `fifo:80`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum SchedPolicy {
    /// Policy and priority that the process was started with.
    #[default]
    Inherited,
    /// SCHED_OTHER with this nice value, -20 to 19.
    Nice(i8),
    /// SCHED_FIFO with this priority, 1 to 99.
    Fifo(u8),
    /// SCHED_RR with this priority, 1 to 99.
    RoundRobin(u8),
}

impl SchedPolicy {
    /// Returns true for SCHED_FIFO and SCHED_RR.
    #[must_use]
    pub fn is_real_time(self) -> bool {
        self.real_time_priority().is_some()
    }

    /// Returns the priority of a real-time policy.
    #[must_use]
    pub fn real_time_priority(self) -> Option<u8> {
        match self {
            Self::Fifo(priority) | Self::RoundRobin(priority) => Some(priority),
            Self::Inherited | Self::Nice(_) => None,
        }
    }
}

impl fmt::Display for SchedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inherited => f.pad("inherited"),
            Self::Nice(value) => f.pad(&format!("nice:{value}")),
            Self::Fifo(priority) => f.pad(&format!("fifo:{priority}")),
            Self::RoundRobin(priority) => f.pad(&format!("rr:{priority}")),
        }
    }
}

impl FromStr for SchedPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let syntax_error = || {
            format!(
                "`{text}` is not a scheduling policy: use nice:-20 to nice:19, fifo:1 to fifo:99, rr:1 to rr:99"
            )
        };
        let priority = |value: &str| {
            let value = value.parse().ok();
            value
                .filter(|value| (1..=99).contains(value))
                .ok_or_else(syntax_error)
        };
        match text.split_once(':') {
            None if text == "inherited" => Ok(Self::Inherited),
            Some(("nice", value)) => {
                let value = value.parse().ok();
                let value = value.filter(|value| (-20..=19).contains(value));
                value.map(Self::Nice).ok_or_else(syntax_error)
            }
            Some(("fifo", value)) => priority(value).map(Self::Fifo),
            Some(("rr", value)) => priority(value).map(Self::RoundRobin),
            _ => Err(syntax_error()),
        }
    }
}

impl From<SchedPolicy> for String {
    fn from(sched: SchedPolicy) -> Self {
        sched.to_string()
    }
}

impl TryFrom<String> for SchedPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Processor numbers, ascending and without duplicates; empty: any processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct CpuList(pub Vec<u32>);

/// Limit of processor numbers: the kernel's largest configuration has 8192 processors.
const CPU_LIMIT: u32 = 8192;

impl CpuList {
    /// Parses a list whose order matters: it stays as written, and may not have duplicates.
    ///
    /// # Errors
    /// A sentence that names the syntax error or the duplicate.
    pub fn in_order(text: &str) -> Result<Self, String> {
        let cpus = Self::parse_list(text)?;
        let mut previous = HashSet::new();
        match cpus.iter().find(|cpu| !previous.insert(**cpu)) {
            Some(repeated) => Err(format!(
                "`{text}` lists {repeated} twice: list each processor once"
            )),
            None => Ok(Self(cpus)),
        }
    }

    fn parse_list(text: &str) -> Result<Vec<u32>, String> {
        let number = |part: &str| match part.parse::<u32>() {
            Ok(cpu) if cpu < CPU_LIMIT => Ok(cpu),
            _ => Err(format!(
                "`{text}` is not a list of processors: write 0, 0-3 or 0,2,4-7"
            )),
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            match part.split_once('-') {
                None => cpus.push(number(part)?),
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(format!(
                            "`{part}` is a descending range: write {last}-{first}"
                        ));
                    }
                    cpus.extend(first..=last);
                }
            }
        }
        Ok(cpus)
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Self::parse_list(text)?;
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
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

/// Returns true if neither end has the flag.
fn is_neither_end(per_end: &PerEnd<bool>) -> bool {
    !per_end.client && !per_end.server
}

/// Options of the payload sockets at both ends; absent: the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SocketPlan {
    /// Send buffer (SO_SNDBUF); overrides `window_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer_bytes: Option<u64>,
    /// Receive buffer (SO_RCVBUF); overrides `window_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer_bytes: Option<u64>,
    /// TCP: maximum segment size (TCP_MAXSEG).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mss_bytes: Option<u32>,
    /// TCP: send small writes at once (TCP_NODELAY). Always set for round trips.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_delay: bool,
    /// IPv4 type of service or IPv6 traffic class: DSCP in the upper six bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
    /// SO_PRIORITY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Bytes in the receive buffer before a blocked receiver is woken (SO_RCVLOWAT).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_low_water_bytes: Option<u32>,
}

/// UDP segmentation and receive offload of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UdpOffload {
    /// Segmentation at the sender (UDP_SEGMENT); absent: not decided yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso: Option<bool>,
    /// Coalescing at the receiver (UDP_GRO); absent: not decided yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gro: Option<bool>,
    /// True if the user requested these settings.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[serde(alias = "asked")]
    pub requested: bool,
}

/// Method of passing payload from the sender's memory to the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SendCopy {
    /// The kernel copies it: the ordinary send call.
    #[default]
    Copied,
    /// MSG_ZEROCOPY: the kernel sends the pages in place and notifies their completion, or copies
    /// where it has to. On the user-space stack: the program writes into the stack's buffers.
    ZeroCopy,
    /// TCP: from a file in memory with `sendfile`; the program does not touch the payload.
    SendFile,
    /// TCP: pages of the program through a pipe (`vmsplice`, `splice`).
    Splice,
}

/// Method of passing payload from the network to the receiver's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReceiveCopy {
    /// The kernel copies it: the ordinary receive call.
    #[default]
    Copied,
    /// TCP: counted and discarded in the kernel (MSG_TRUNC). On the user-space stack: read in place.
    Discarded,
}

/// Copy modes of the payload at both ends. Runs with different modes are not comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CopyModes {
    /// Mode of the sender.
    pub send: SendCopy,
    /// Mode of the receiver.
    pub receive: ReceiveCopy,
}

impl CopyModes {
    /// Returns true if both ends copy, as by default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the content reaches user memory at both ends, so that it can be verified.
    #[must_use]
    pub fn delivers_content(&self) -> bool {
        self.is_default()
    }
}

/// Timestamps that a latency run requests from the kernel: each level includes those before it.
///
/// Timestamps cost time: figures of runs with and without them are not comparable.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum TimestampLevel {
    /// No timestamps.
    #[default]
    None,
    /// Time of each packet at the queueing discipline, at the driver, and on arrival
    /// (SO_TIMESTAMPING).
    Packets,
    /// Wake-up and scheduling of the waiting thread, as far as the kernel permits this user to
    /// trace it.
    Scheduler,
    /// Start and end of the kernel's receive work on each processor.
    Driver,
}

impl TimestampLevel {
    /// Returns true if no timestamps are requested.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Every effective option of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Kind of measurement.
    pub kind: RunKind,
    /// Transport protocol of the payload.
    pub protocol: TransportProtocol,
    /// Server host as the user named it.
    pub host: String,
    /// Server port, for the control connection and the payload.
    pub port: u16,
    /// Protocol of a server of another tool (`iperf3`, `sockperf`, ...); absent: our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "dialect")]
    pub peer_protocol: Option<String>,
    /// Command whose output has the counts of the server (`--far-report`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "far_report")]
    pub server_report_command: Option<String>,
    /// Directions in which payload flows at the same time; round trips count as `send`.
    pub directions: Vec<Direction>,
    /// Throughput: the directions run one after the other instead of at the same time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(alias = "in_turn")]
    pub sequential: bool,
    /// Flows per direction.
    pub streams: u32,
    /// Threads per direction at each end; absent: chosen when the run starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<PerEnd<u32>>,
    /// Duration of the run; absent if an amount ends it.
    #[serde(default)]
    pub duration_ns: Option<u64>,
    /// Throughput: payload bytes per direction after which the run ends.
    #[serde(default)]
    pub amount_bytes: Option<u64>,
    /// Latency: round trips after which the run ends.
    #[serde(default)]
    pub round_trips: Option<u64>,
    /// Time at the start that is measured but not included in the figures.
    #[serde(default)]
    pub omit_ns: u64,
    /// Length of a reporting interval; absent: none.
    #[serde(default)]
    pub interval_ns: Option<u64>,
    /// TCP throughput: bytes per send call. UDP: datagram payload. Latency: message size.
    pub payload_bytes: u64,
    /// TCP throughput: buffer size of each receive call.
    #[serde(default)]
    pub receive_bytes: Option<u64>,
    /// Requested size of the socket buffers (`-w`); absent: chosen by the kernel.
    #[serde(default)]
    pub window_bytes: Option<u64>,
    /// Other options of the payload sockets.
    #[serde(default)]
    pub socket: SocketPlan,
    /// Intended load per stream in payload bits per second; absent: as fast as possible.
    #[serde(default)]
    pub rate_bps: Option<u64>,
    /// Pacing of the intended load.
    #[serde(default)]
    pub pace: PacePlan,
    /// TCP congestion control of both ends; absent for UDP, and until it is read from the socket.
    #[serde(default)]
    pub congestion_control: Option<String>,
    /// True if the user requested `congestion_control`.
    #[serde(default)]
    #[serde(alias = "congestion_control_asked")]
    pub congestion_control_requested: bool,
    /// Local address to send from, with `%IF` if the user named an interface.
    #[serde(default)]
    pub bind: Option<String>,
    /// First local port of the payload flows; stream n uses this plus n.
    #[serde(default)]
    pub source_port: Option<u16>,
    /// Wait mode of each end; absent: chosen when the run starts.
    #[serde(default)]
    pub wait: Option<PerEnd<WaitMode>>,
    /// Wait mode of the client where the server is another tool, whose wait mode is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "near_wait")]
    pub client_wait: Option<WaitMode>,
    /// Processors of each end's threads, assigned round-robin; empty: chosen by the scheduler.
    #[serde(default)]
    pub cpu: PerEnd<CpuList>,
    /// Scheduling policy of each end's threads.
    #[serde(default)]
    pub sched: PerEnd<SchedPolicy>,
    /// UDP throughput: segmentation of one send call into datagrams (GSO) and coalescing of
    /// datagrams for one receive call (GRO). Figures count datagrams.
    #[serde(default)]
    pub udp_offload: UdpOffload,
    /// UDP throughput: most datagrams per send call (sendmmsg) and receive call (recvmmsg), each a
    /// separate packet in the kernel; absent: one, or as `udp_offload` permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Socket buffers beyond the limit of each end's system (net.core.wmem_max, rmem_max), as the
    /// end's privileges allow.
    #[serde(default, skip_serializing_if = "is_neither_end")]
    pub forced_buffers: PerEnd<bool>,
    /// Throughput: copy modes of the payload between kernel and user memory.
    #[serde(default, skip_serializing_if = "CopyModes::is_default")]
    pub copies: CopyModes,
    /// Throughput: compare every received byte with what was sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verify: bool,
    /// Record the duration of every system call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub calls: bool,
    /// Keep cores out of deep idle states during the run.
    #[serde(default)]
    pub hold_latency: bool,
    /// Latency: a response later than this counts as lost.
    #[serde(default)]
    #[serde(alias = "answer_timeout_ns")]
    pub response_timeout_ns: Option<u64>,
    /// True if the user requested `response_timeout_ns`; otherwise it follows from the path.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub response_timeout_requested: bool,
    /// Latency: options of the round trips.
    #[serde(default, skip_serializing_if = "RoundTripPlan::is_default")]
    pub round_trip: RoundTripPlan,
    /// Throughput: keep the last calls of each thread for a timeline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trace: bool,
    /// Stop the timeline soon after a round trip, or a call, slower than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_on_ns: Option<u64>,
    /// Latency: timestamps requested from the kernel.
    #[serde(default, skip_serializing_if = "TimestampLevel::is_none")]
    #[serde(alias = "stamps")]
    pub timestamps: TimestampLevel,
    /// Forwarding: ports, mode and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Box<ForwardPlan>>,
    /// Generating: ports, frames and load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generate: Option<Box<GeneratePlan>>,
    /// Network stack that moved the payload at each end.
    pub stack: PerEnd<String>,
    /// The user-space stack at the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "near_stack")]
    pub client_stack: Option<Box<StackPlan>>,
}

impl Plan {
    /// Creates a plan with the defaults of `linerate KIND HOST`; open values are chosen when the
    /// run starts.
    #[must_use]
    pub fn new(kind: RunKind, protocol: TransportProtocol, host: impl Into<String>) -> Self {
        Self {
            kind,
            protocol,
            host: host.into(),
            port: DEFAULT_PORT,
            peer_protocol: None,
            server_report_command: None,
            directions: vec![Direction::Send],
            sequential: false,
            streams: 1,
            threads: None,
            duration_ns: Some(10_000_000_000),
            amount_bytes: None,
            round_trips: None,
            omit_ns: 0,
            interval_ns: Some(1_000_000_000),
            payload_bytes: match (kind, protocol) {
                (RunKind::Latency | RunKind::Forward | RunKind::Generate | RunKind::Stack, _) => 64,
                (RunKind::Throughput, TransportProtocol::Tcp) => TCP_SEND_BYTES,
                // Chosen from the path MTU once a socket is connected.
                (RunKind::Throughput, TransportProtocol::Udp) => 0,
            },
            receive_bytes: (kind == RunKind::Throughput && protocol == TransportProtocol::Tcp)
                .then_some(TCP_RECEIVE_BYTES),
            window_bytes: None,
            socket: SocketPlan::default(),
            rate_bps: None,
            pace: PacePlan::default(),
            congestion_control: None,
            congestion_control_requested: false,
            bind: None,
            source_port: None,
            wait: None,
            client_wait: None,
            cpu: PerEnd::default(),
            sched: PerEnd::default(),
            udp_offload: UdpOffload::default(),
            batch: None,
            forced_buffers: PerEnd::default(),
            copies: CopyModes::default(),
            verify: false,
            calls: false,
            hold_latency: false,
            response_timeout_ns: None,
            response_timeout_requested: false,
            round_trip: RoundTripPlan::default(),
            trace: false,
            trace_on_ns: None,
            timestamps: TimestampLevel::None,
            forward: None,
            generate: None,
            stack: PerEnd::same("kernel".to_owned()),
            client_stack: None,
        }
    }

    /// Returns true if both ends record a timeline.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.trace || !self.timestamps.is_none()
    }

    /// Returns true if payload flows in this direction.
    #[must_use]
    pub fn has_direction(&self, direction: Direction) -> bool {
        self.directions.contains(&direction)
    }
}

/// Default port of `linerate server`: iperf3's, which firewalls often open for throughput tests.
pub const DEFAULT_PORT: u16 = 5201;

/// Bytes per TCP send call: beyond 1 MiB the write does not fit the second-level cache, and there
/// is no gain (docs/method/defaults.md#write-size).
pub const TCP_SEND_BYTES: u64 = 1 << 20;

/// Returns the bytes per TCP send call for a number of parallel streams: with 1 MiB each, one pass
/// over thousands of streams takes seconds, and the data in their sockets does not fit any cache
/// (docs/method/defaults.md#many-streams).
#[must_use]
pub fn tcp_send_bytes(streams: u32) -> u64 {
    const TOTAL_BYTES: u64 = 64 << 20;
    (TOTAL_BYTES / u64::from(streams.max(1))).clamp(256 << 10, TCP_SEND_BYTES)
}

/// Buffer size of a TCP receive call: the fastest of 128 KiB to 1 MiB for a spinning receiver
/// (docs/method/defaults.md#write-size).
pub const TCP_RECEIVE_BYTES: u64 = 256 << 10;

/// Largest UDP payload: a 16-bit length that includes the UDP and IPv4 headers (RFC 768, RFC 791).
pub const MAX_DATAGRAM_BYTES: u64 = 65_507;

/// Largest message or call size: the most that a server allocates per thread for a client.
pub const MAX_CALL_BYTES: u64 = 64 << 20;

/// Datagrams per call of `--batch` without a number: where the curve turns flat
/// (docs/method/defaults.md#batches).
pub const DEFAULT_BATCH_DATAGRAMS: u32 = 64;

/// Most datagrams that the kernel accepts in one call (UIO_MAXIOV).
pub const MAX_BATCH_DATAGRAMS: u32 = 1024;

/// Shortest reporting interval: with shorter ones the reports would disturb the measurement.
pub const MIN_INTERVAL_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn many_streams_have_smaller_writes() {
        for (streams, expected) in [
            (0, 1 << 20),
            (1, 1 << 20),
            (64, 1 << 20),
            (128, 512 << 10),
            (1_024, 256 << 10),
            (u32::MAX, 256 << 10),
        ] {
            assert_eq!(tcp_send_bytes(streams), expected, "{streams}");
        }
    }

    #[test]
    fn processor_lists() {
        for (text, expected) in [
            ("0", vec![0]),
            ("0-3", vec![0, 1, 2, 3]),
            ("5,1-2,1", vec![1, 2, 5]),
        ] {
            assert_eq!(text.parse::<CpuList>().unwrap().0, expected, "{text}");
        }
        for text in ["", "a", "3-1", "0-", "9999", "0,,1", "-1"] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
        assert_eq!(CpuList::in_order("5,1-2").unwrap().0, [5, 1, 2]);
        let error = CpuList::in_order("0,1,0").unwrap_err();
        assert!(error.contains("lists 0 twice"), "{error}");
        assert!(CpuList::in_order("0-").is_err());
    }

    #[test]
    fn without_a_server_part_both_ends_have_the_same_value() {
        let same: PerEnd<WaitMode> = "spin".parse().unwrap();
        assert_eq!(same, PerEnd::same(WaitMode::Spin));
        let mixed: PerEnd<WaitMode> = "block/spin".parse().unwrap();
        assert_eq!(
            (mixed.client, mixed.server),
            (WaitMode::Block, WaitMode::Spin)
        );
        let cpus: PerEnd<CpuList> = "0-3/4-7".parse().unwrap();
        assert_eq!(cpus.server.0, [4, 5, 6, 7]);
        assert!("spin/nap".parse::<PerEnd<WaitMode>>().is_err());
    }

    #[test]
    fn wait_modes_read_as_they_print() {
        for (text, wait) in WAIT_MODES {
            assert_eq!(text.parse(), Ok(*wait));
        }
        let timed: WaitMode = "select:100us".parse().unwrap();
        assert_eq!(
            timed,
            WaitMode::Select {
                timeout_ns: Some(100_000)
            }
        );
        assert_eq!(timed.to_string(), "select:100us");
        assert_eq!(timed.to_string().parse(), Ok(timed));
        let busy: WaitMode = "busy-poll:20us".parse().unwrap();
        assert_eq!(
            busy,
            WaitMode::BusyPoll {
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
            assert!(text.parse::<WaitMode>().is_err(), "{text}");
        }
    }

    #[test]
    fn scheduling_reads_as_it_prints() {
        for (text, sched) in [
            ("fifo:80", SchedPolicy::Fifo(80)),
            ("rr:99", SchedPolicy::RoundRobin(99)),
            ("nice:-20", SchedPolicy::Nice(-20)),
            ("inherited", SchedPolicy::Inherited),
        ] {
            assert_eq!(text.parse(), Ok(sched));
            assert_eq!(sched.to_string(), text);
        }
        for text in ["fifo", "fifo:0", "fifo:100", "nice:20", "rr:x", ""] {
            assert!(text.parse::<SchedPolicy>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn processor_lists_print_as_they_read(mut cpus in prop::collection::vec(0u32..8192, 1..40)) {
            cpus.sort_unstable();
            cpus.dedup();
            let printed = CpuList(cpus.clone()).to_string();
            prop_assert_eq!(printed.parse::<CpuList>().unwrap().0, cpus);
        }
    }
}
