//! What a run does: every effective option, as data.
//!
//! The same plan stands in the record, crosses the control connection and drives the engine. Near
//! is the end that was told what to do (the client), far is the other one.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::parse_duration;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// How much payload arrives in a second.
    Throughput,
    /// How long a question takes to be answered.
    Latency,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
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
}

/// Every way of waiting with its name, in the order help lists them.
pub const WAITS: &[(&str, Wait)] = &[
    ("block", Wait::Block),
    ("spin", Wait::Spin),
    ("poll", Wait::Poll),
    ("select", Wait::Select { timeout_ns: None }),
    ("epoll", Wait::Epoll),
];

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Select {
            timeout_ns: Some(timeout),
        } = self
        {
            return f.pad(&format!("select:{timeout}ns"));
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
        matches!(self, Self::Fifo(_) | Self::RoundRobin(_))
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

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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
    /// The directions in which payload flows at the same time; round trips count as `send`.
    pub directions: Vec<Direction>,
    /// Flows per direction.
    pub streams: u32,
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
    /// Whether cores are kept from halting for the time of the run.
    #[serde(default)]
    pub hold_latency: bool,
    /// Latency: an answer later than this counts as lost.
    #[serde(default)]
    pub answer_timeout_ns: Option<u64>,
    /// Which network stack moved the payload at each end.
    pub stack: Ends<String>,
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
            directions: vec![Direction::Send],
            streams: 1,
            duration_ns: Some(10_000_000_000),
            amount_bytes: None,
            round_trips: None,
            omit_ns: 0,
            interval_ns: Some(1_000_000_000),
            payload_bytes: match (kind, protocol) {
                (Kind::Latency, _) => 64,
                (Kind::Throughput, Protocol::Tcp) => TCP_SEND_BYTES,
                // Settled from the path's MTU once there is a socket to ask.
                (Kind::Throughput, Protocol::Udp) => 0,
            },
            receive_bytes: (kind == Kind::Throughput && protocol == Protocol::Tcp)
                .then_some(TCP_RECEIVE_BYTES),
            window_bytes: None,
            socket: SocketPlan::default(),
            rate_bps: None,
            congestion_control: None,
            congestion_control_asked: false,
            bind: None,
            source_port: None,
            wait: None,
            cpu: Ends::default(),
            sched: Ends::default(),
            udp_offload: UdpOffload::default(),
            hold_latency: false,
            answer_timeout_ns: (kind == Kind::Latency).then_some(1_000_000_000),
            stack: Ends::both("kernel".to_owned()),
        }
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

/// Room of a TCP receive call: the fastest of 128 KiB to 1 MiB for a spinning receiver
/// (docs/METHOD.md#write-size).
pub const TCP_RECEIVE_BYTES: u64 = 256 << 10;

/// Largest UDP payload: a 16-bit length with the UDP and IPv4 headers inside (RFC 768, RFC 791).
pub const LARGEST_DATAGRAM_BYTES: u64 = 65_507;

/// Largest message or call: what a server allocates per thread for a client at most.
pub const LARGEST_CALL_BYTES: u64 = 64 << 20;

/// Shortest reporting interval: below it the reports would disturb what they report.
pub const SHORTEST_INTERVAL_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        assert_eq!(timed.to_string().parse(), Ok(timed));
        for text in ["", "nap", "select:", "select:x", "block:1s"] {
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
