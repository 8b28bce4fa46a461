//! The record: everything that one run measured, as one versioned document.
//!
//! Keys are a contract with scripts: from version 0.1.0 on they are added, never renamed. A figure
//! that does not apply or could not be measured is absent or null, never zero.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call_times::{CallClock, CallsByName};
use crate::command_line::CommandLine;
use crate::cost::{
    MachineTime, MemoryCost, ProcessorTime, StreamInterval, TcpInterval, ThreadCost, ThreadShares,
};
use crate::facts::{HostFacts, Role};
use crate::finding::Finding;
use crate::forward::ForwardFigures;
use crate::generate::GenerateFigures;
use crate::ids::{CaveatId, LossPoint, StoredId};
use crate::plan::{Direction, Plan, RunKind};
use crate::stack::StackFigures;
use crate::throttling::CpuThrottling;

pub use crate::ends::FlowEnd;
pub use crate::round_trip::SlowResponse;
pub use crate::timeline::Timeline;
pub use linerate_stats::histogram::{HistogramData, Quantiles};

/// Schema id of a [`Record`].
pub const RUN_SCHEMA: &str = "linerate/run/1";

/// Result of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// `linerate/run/1`.
    pub schema: String,
    /// Unique id that sorts by time: `20261121T144042Z-3f9a1c`.
    pub id: String,
    /// Kind of measurement.
    pub kind: RunKind,
    /// Start of the first payload (RFC 3339, UTC).
    pub started: Timestamp,
    /// True if the run was stopped early; all figures cover the time until then.
    pub interrupted: bool,
    /// Program that made the record.
    pub tool: ToolVersion,
    /// Name given by the user to a series of runs; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Role of the end that stored this record when the client has a record of its own: the
    /// server's copy. Absent in the client's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "kept_by")]
    pub recorded_by: Option<Role>,
    /// Client of the run, in the server's copy of the record; absent in the client's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "served")]
    pub served_client: Option<ServedClient>,
    /// Command line that started the run; absent if the run is part of a larger command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandLine>,
    /// Every effective option.
    pub plan: Plan,
    /// Hosts: the client first, then the server where its facts are available.
    pub hosts: Vec<HostFacts>,
    /// Figures of the full run without the omitted time.
    pub summary: Summary,
    /// Figures by direction.
    pub directions: Vec<DirectionFigures>,
    /// Figures by interval, ascending in time.
    pub intervals: Vec<Interval>,
    /// Full distributions by name: `rtt_ns`; `rtt_intended_ns` (open loop); with a new socket per
    /// request `open_ns`, `bind_ns`, `connect_ns`, `send_ns`, `receive_ns`, `close_ns`, `whole_ns`;
    /// with device timestamps in the responses `device_ns` and `outside_ns`.
    #[serde(deserialize_with = "crate::earlier_names::map")]
    pub histograms: BTreeMap<String, HistogramData>,
    /// Latency: responses above the limit, ascending in time; the first 1,000 of a run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowResponse>,
    /// Packet losses by location, as far as they could be located.
    pub losses: Vec<PacketLoss>,
    /// Counters of the locations where packets can be lost, before and after the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<CounterDelta>,
    /// Durations of the client's system calls, by call and by outcome; empty without `--calls`.
    #[serde(
        default,
        skip_serializing_if = "CallsByName::is_empty",
        deserialize_with = "crate::earlier_names::map"
    )]
    pub calls: CallsByName,
    /// Durations of the server's system calls, by call and by outcome; empty without `--calls`.
    #[serde(
        default,
        skip_serializing_if = "CallsByName::is_empty",
        deserialize_with = "crate::earlier_names::map"
    )]
    #[serde(alias = "far_calls")]
    pub server_calls: CallsByName,
    /// Cost of verification at each end; empty without `--verify`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verification: Vec<VerificationCost>,
    /// Clock that timed the calls, for each end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub call_clocks: Vec<CallClock>,
    /// Parts of a round trip, in the order in which a packet passes them; empty unless requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<RoundTripStage>,
    /// Pass of the run that measured the stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_pass: Option<StagePass>,
    /// Timeline of the last round trips or calls, where one was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Text report of a server of another tool, unchanged, up to [`MAX_SERVER_TEXT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "far_text")]
    pub server_text: Option<String>,
    /// Forwarding: figures of each port, stream and thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Box<ForwardFigures>>,
    /// Generating: figures of the frames sent and received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generate: Option<Box<GenerateFigures>>,
    /// Reasons for the result, by cost. Empty until the record was explained, and if there are
    /// none.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// The user-space stack as a host: figures of its services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<Box<StackFigures>>,
    /// Caveats that limit the validity of the figures; empty if there are none.
    pub validity: Vec<Caveat>,
}

/// Longest [`Record::server_text`] in bytes: a report with one interval line per second for an
/// hour.
pub const MAX_SERVER_TEXT_BYTES: usize = 256 << 10;

/// The client of a run, as its server identified it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServedClient {
    /// Address and port: `10.77.0.1:40000`, `[fd77::1]:40000`.
    #[serde(alias = "client")]
    pub address: String,
    /// Program and version, as far as its protocol transmits them: `iperf3 3.12`, `linerate 0.1.0`.
    pub agent: String,
}

impl ServedClient {
    /// Returns the IP address without the port.
    #[must_use]
    pub fn ip(&self) -> &str {
        let address = self
            .address
            .rsplit_once(':')
            .map_or(&*self.address, |it| it.0);
        address.trim_start_matches('[').trim_end_matches(']')
    }
}

/// The program that made a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolVersion {
    /// Program name: `linerate`.
    pub name: String,
    /// Program version.
    pub version: String,
}

/// Figures of a run, or of one direction of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Summary {
    /// Measured time in nanoseconds, at the receiver for throughput.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Payload bits per second received (RFC 2647 section 3.17); both directions added up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_bps: Option<f64>,
    /// Payload bits per second that the sender passed to the stack (RFC 2285 section 3.5.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_bps: Option<f64>,
    /// UDP: datagrams received per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_per_second: Option<f64>,
    /// TCP: send calls per second. Packets are formed by the kernel and not counted here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_second: Option<f64>,
    /// Payload bytes sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// Payload bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_received: Option<u64>,
    /// UDP: datagrams that got a sequence number: sent, or dropped because the socket of a paced
    /// flow was full (`streams[].sender.send_refused`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_sent: Option<u64>,
    /// UDP: datagrams received, duplicates included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_received: Option<u64>,
    /// UDP: share of the sent datagrams that did not arrive, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_fraction: Option<f64>,
    /// UDP: datagrams that arrived after one with a higher number. Latency: responses that arrived
    /// after their timeout, or after the response to a later request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<u64>,
    /// UDP: datagrams received more than once. Latency: responses received more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<u64>,
    /// UDP: largest distance in datagrams of a late datagram from the first one that overtook it
    /// (RFC 4737 section 4.2); absent if none was late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reordering_extent: Option<u64>,
    /// UDP: smoothed inter-arrival variation in nanoseconds (RFC 3550 section 6.4.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipdv_ns: Option<f64>,
    /// UDP: absolute difference of the transit times of consecutive datagrams (RFC 5481 section
    /// 4.1, percentiles within 1 %).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_variation_ns: Option<Quantiles>,
    /// UDP: time from the sender's timestamp to the arrival (RFC 7679), where the sender declares
    /// both hosts' clocks synchronised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_delay_ns: Option<Quantiles>,
    /// Relative error of the load, offered / intended - 1: -0.02 is 2 % too little.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_error: Option<f64>,
    /// Delay of each burst behind its scheduled send time, in the sending program (percentiles
    /// within 1 %).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_ns: Option<Quantiles>,
    /// UDP at a rate: time between the arrivals of consecutive datagrams in the receiving program
    /// (percentiles within 1 %).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival_gap_ns: Option<Quantiles>,
    /// TCP: segments that the sender's kernel retransmitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
    /// Latency: distribution of the round-trip times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Quantiles>,
    /// Latency: round trips completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trips: Option<u64>,
    /// Latency: round trips completed per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trips_per_second: Option<f64>,
    /// Latency: requests without a response before the timeout. Throughput over UDP: datagrams
    /// lost. Forwarding: frames that ports dropped or an emulated link lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Latency: responses that differ from their request. Throughput with `--verify`: bytes that
    /// differ from what was sent, the omitted time included; for a datagram of the wrong length,
    /// the missing or surplus bytes count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatched: Option<u64>,
    /// Latency: responses above the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<u64>,
    /// Latency: mismatched responses whose length differs from that of their request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong_length: Option<u64>,
    /// Latency: mismatched responses of the right length with different content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong_content: Option<u64>,
    /// Latency, open loop: time from the scheduled send time to the response, so the delay of a
    /// request that could not be sent on time is included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_intended_ns: Option<Quantiles>,
    /// Latency, open loop: requests that were scheduled before the end and never sent. Throughput over
    /// UDP at a rate: datagrams given up because the sender's socket was full; `packets_sent`, `lost`
    /// and `loss_fraction` include them. Absent for throughput: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsent: Option<u64>,
    /// Latency with a new socket per request: time from opening the socket to the end of its close.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole_ns: Option<Quantiles>,
    /// Latency with `--device-stamps`: part of the round trips inside the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Box<DeviceTimes>>,
    /// Latency over TCP with a new socket per request: connections opened, used and closed per
    /// second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_second: Option<f64>,
    /// Throughput with several flows: Jain's fairness index of their received bytes, 1/n to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fairness_index: Option<f64>,
    /// Processor time of the threads that moved payload, by end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu: Vec<CpuCost>,
    /// Memory of the flows, by end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryCost>,
}

/// Round-trip time inside the responding device, from its own timestamps, and outside of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceTimes {
    /// Time from the arrival of a request in the device to the departure of its response, by the
    /// device's clock.
    pub device_ns: Quantiles,
    /// Rest of the same round-trip times: time outside of the device.
    #[serde(alias = "around_ns")]
    pub outside_ns: Quantiles,
    /// Share of the device in the sum of these round-trip times, 0 to 1.
    pub share: f64,
}

/// Processor cost of one end's measuring threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuCost {
    /// End of the run.
    pub role: Role,
    /// Processor time over wall time: 1.0 is one busy core. As exact as the scheduler's clock; the
    /// kernel bills interrupt work to the thread that was interrupted.
    pub share: f64,
    /// Share in user mode. An estimate on most kernels, which sample it by ticks; absent if the run
    /// was too short for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_share: Option<f64>,
    /// Voluntary context switches: a thread blocked.
    pub voluntary_switches: u64,
    /// Involuntary context switches: a thread was preempted.
    pub involuntary_switches: u64,
    /// Share of the threads' time blocked in a send, receive or wait call, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_share: Option<f64>,
    /// Share of the threads' time runnable and not running, 0 to 1: wake-up latency and waiting for
    /// a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_share: Option<f64>,
    /// Share of the calls that had nothing to receive, or no buffer space to send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_share: Option<f64>,
    /// Processor time of the threads per payload byte moved, omitted time included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_per_byte: Option<f64>,
    /// Processor time of the threads per datagram (UDP) or round trip (latency).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_per_packet: Option<f64>,
    /// Processor cycles of the threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// Instructions that the threads retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// Reason for missing cycles and instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "uncounted_because")]
    pub uncounted_reason: Option<String>,
    /// Stops by a quota of processor time during the run; absent without a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttling: Option<CpuThrottling>,
    /// Time of the full machine during the run, by use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineTime>,
    /// Time of each processor of the machine, up to 64 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<ProcessorTime>,
    /// Cost of each thread, up to 64 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadCost>,
}

/// Figures of one direction of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectionFigures {
    /// Direction of the payload.
    pub direction: Direction,
    /// Figures of the direction.
    #[serde(flatten)]
    pub summary: Summary,
    /// Flows of the direction.
    pub streams: Vec<StreamFigures>,
}

impl DirectionFigures {
    /// Returns the time of the sender in ns, the base of its rates. `duration_ns` of the direction
    /// is the receiver's, with the time in which queues on the path empty.
    #[must_use]
    pub fn send_duration_ns(&self) -> Option<u64> {
        let times = self.streams.iter().filter_map(|stream| {
            let (bytes, bps) = (stream.summary.bytes_sent?, stream.summary.offered_bps?);
            (bps > 0.0).then(|| (bytes as f64 * 8e9 / bps).round() as u64)
        });
        times.max().or(self.summary.duration_ns)
    }
}

/// Figures of one flow, merged from both of its ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StreamFigures {
    /// Number of the flow, from 1, unique within a run.
    pub id: u32,
    /// Figures of the flow.
    #[serde(flatten)]
    pub summary: Summary,
    /// First byte that differs from what was sent (`--verify`); absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<ContentMismatch>,
    /// Sending socket (for round trips the requesting one).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<SocketFacts>,
    /// Receiving socket (for round trips the responding one).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver: Option<SocketFacts>,
}

/// Kernel state of the socket at one end of a flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SocketFacts {
    /// Local address and port.
    pub local: Option<String>,
    /// Remote address and port.
    pub remote: Option<String>,
    /// Send buffer that the kernel granted (it doubles the requested size, for its own overhead).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer_bytes: Option<u64>,
    /// Receive buffer that the kernel granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer_bytes: Option<u64>,
    /// Congestion control in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// Datagrams dropped because this socket's receive buffer was full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_queue_drops: Option<u64>,
    /// UDP: datagrams of a paced flow that were never sent because the socket buffer stayed full
    /// beyond their send time, since counting began; the receiver counts their numbers as missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_refused: Option<u64>,
    /// UDP: sends that failed because no socket was bound to the remote port (ICMP port
    /// unreachable); absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "refusals")]
    pub port_unreachable: Option<u32>,
    /// Sends for which the kernel had no route, no reply from the next hop, or no link; each was
    /// retried. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unroutable: Option<u32>,
    /// UDP: most datagrams that one send call sent (UDP GSO, or a batch); absent: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagrams_per_call: Option<u32>,
    /// Receive queue of the interface that delivered the socket's packets (SO_INCOMING_NAPI_ID);
    /// absent where the kernel does not report it, as on loopback and plain veth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub napi_id: Option<u32>,
    /// Sends with MSG_ZEROCOPY (`--offload zerocopy`); absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_copy: Option<ZeroCopyCounts>,
    /// TCP state in the kernel at the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpFacts>,
}

/// First difference between received and sent content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContentMismatch {
    /// Position of the first differing byte, in the stream or in its datagram. A difference in the
    /// 16-byte header of a datagram is reported at the first byte after the header.
    pub offset: u64,
    /// UDP: sequence number in the datagram; absent for datagrams too short to carry one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagram: Option<u64>,
    /// Expected bytes from that position on, up to 16, in hexadecimal.
    pub expected: String,
    /// Received bytes from that position on; empty if the datagram ended there.
    #[serde(alias = "found")]
    pub received: String,
}

/// Cost of verification at one end, measured on its processor after the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerificationCost {
    /// End of the run.
    pub role: Role,
    /// Sender: time to write 1024 bytes of content, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill_ns_per_kib: Option<f64>,
    /// Receiver: time to compare 1024 bytes, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_ns_per_kib: Option<f64>,
}

/// Counts of sends with MSG_ZEROCOPY by their result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZeroCopyCounts {
    /// Calls that the kernel accepted.
    pub sends: u64,
    /// Calls whose data the kernel copied after all.
    pub copied: u64,
    /// Calls without a completion notification until the end of the run.
    #[serde(alias = "untold")]
    pub unconfirmed: u64,
}

/// TCP state of a socket, from TCP_INFO.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TcpFacts {
    /// Segments retransmitted since the connection was established.
    pub retransmits: u64,
    /// Congestion window in segments.
    pub cwnd_segments: u64,
    /// Maximum segment size for sending.
    pub mss_bytes: u64,
    /// Path MTU.
    pub path_mtu_bytes: u64,
    /// Smoothed round-trip time.
    pub rtt_ns: u64,
    /// Variation of the round-trip time.
    pub rtt_variation_ns: u64,
    /// Minimum round-trip time of the recent past; absent before Linux 4.9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rtt_ns: Option<u64>,
    /// Window that the receiver advertised at the end (Linux 5.4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_window_bytes: Option<u64>,
    /// Most recent delivery rate; absent before Linux 4.9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_rate_bps: Option<u64>,
    /// Time with data to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<u64>,
    /// Part of the busy time limited by the peer's window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_window_limited_ns: Option<u64>,
    /// Part of the busy time limited by the send buffer (the kernel misses most of it:
    /// docs/method/tcp-state.md).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer_limited_ns: Option<u64>,
    /// Bytes retransmitted since the connection was established (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmitted_bytes: Option<u64>,
    /// Segments that arrived twice, as the receiver reported (DSACK, Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spurious_retransmits: Option<u64>,
    /// Times the sender detected reordering (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reordering_seen: Option<u64>,
    /// Retransmission timeouts (Linux 6.7).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
    /// Segments that arrived with a congestion mark (ECN, Linux 4.18).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// True if both ends negotiated ECN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
}

/// Figures of one reporting interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Number of the interval within its direction, from 0; both ends use the same numbers.
    #[serde(default)]
    pub number: u64,
    /// Start in nanoseconds since the start of the run.
    pub start_ns: u64,
    /// End in nanoseconds since the start of the run.
    pub end_ns: u64,
    /// Direction of the payload.
    pub direction: Direction,
    /// True if the interval lies in the omitted time at the start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub omitted: bool,
    /// End that counted `bytes`, `packets` and `calls`: the receiver, unless its counts were lost.
    pub counted_at: FlowEnd,
    /// Payload bytes.
    pub bytes: u64,
    /// UDP: datagrams. Latency: round trips.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Calls that moved payload: the sender's on a stream, the receiver's for datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Payload bytes sent in the interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// UDP: datagrams that got a sequence number in the interval, as in the summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_sent: Option<u64>,
    /// UDP: sequence numbers found missing in the interval; a late datagram counts as missing first
    /// and is corrected later. Latency: responses missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// TCP: segments retransmitted in the interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
    /// TCP: congestion window of all flows at the end of the interval, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwnd_bytes: Option<u64>,
    /// TCP: mean of the flows' smoothed round-trip times at the end of the interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_rtt_ns: Option<u64>,
    /// Latency: distribution of the round-trip times of the interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Quantiles>,
    /// TCP: state of the sender's connections in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpInterval>,
    /// Use of the interval by the sender's threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_threads: Option<ThreadShares>,
    /// Use of the interval by the receiver's threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver_threads: Option<ThreadShares>,
    /// Figures of each flow, if the direction has 2 to 64 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamInterval>,
}

/// Packets lost at one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PacketLoss {
    /// Direction of the lost packets.
    pub direction: Direction,
    /// `sender-socket`, `qdisc`, `interface-tx`, `interface-rx`, `softnet-backlog`, `reassembly`,
    /// `udp-receive-queue` or `path`; for a forwarder `emulated-link`, the loss that its mode
    /// `link` was configured to make.
    pub place: StoredId<LossPoint>,
    /// Number of packets; never more than were lost in total.
    pub packets: u64,
    /// True if the number is exact. Otherwise it is an upper bound (of `path` a lower bound),
    /// unless the two fields below narrow it.
    pub exact: bool,
    /// Lower bound, if not exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u64>,
    /// Upper bound, if not exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u64>,
}

/// A counter before and after a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CounterDelta {
    /// `client`, `server`, or the name of a lab host or switch.
    pub host: String,
    /// Interface; absent for a counter of the whole host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Name of the counter, from the list in docs/method/loss.md#where-packets-were-lost.
    pub counter: String,
    /// Value before the first payload.
    pub before: u64,
    /// Value after the end of the run.
    pub after: u64,
}

impl CounterDelta {
    /// Returns the increase during the run; 0 if the counter was reset.
    #[must_use]
    pub fn increase(&self) -> u64 {
        self.after.saturating_sub(self.before)
    }
}

/// Part of a round trip, between two timestamps of the same round trip.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RoundTripStage {
    /// `client-send-call`, `client-qdisc`, `path-to-server`, `server-receive`, `server-application`,
    /// `server-send-call`, `server-qdisc`, `path-to-client`, `client-receive`; the two `…-receive`
    /// stages have the parts `…-softirq`, `…-wake-up`, `…-receive-call`
    /// (docs/method/stages-and-timestamps.md).
    #[serde(deserialize_with = "crate::earlier_names::name")]
    pub stage: String,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Arithmetic mean.
    pub mean_ns: f64,
    /// Clock of the timestamps: `software` (kernel and program) or `hardware` (at least one is from
    /// the device).
    #[serde(alias = "stamps")]
    pub timestamp_source: String,
    /// Largest offset between the clocks of both timestamps, where these are different clocks: on
    /// two hosts, or one of a device. Absent where one clock gave both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// Parts of the stage, measured in a separate, slower pass: they show how the stage divides and
    /// do not add up to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<RoundTripStage>,
}

/// Pass of round trips that measured the stages, separate from the pass that gave the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StagePass {
    /// Round trips with all timestamps.
    pub round_trips: u64,
    /// Round trips that lack a timestamp and were not used.
    #[serde(alias = "left_out")]
    pub incomplete: u64,
    /// Round-trip times of this pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Quantiles>,
    /// Sum of the medians of all stages.
    pub sum_of_medians_ns: u64,
    /// Overhead of requesting timestamps: median of this pass less that of the pass without.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "asking_ns")]
    pub timestamp_overhead_ns: Option<i64>,
    /// Overhead of tracing the scheduler, in the pass that measured the parts of stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "watching_ns")]
    pub tracing_overhead_ns: Option<i64>,
    /// Stages that could not be separated, and the reason; sentences for users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A caveat: a reason to doubt a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Caveat {
    /// Kebab-case id, stable for scripts.
    #[serde(rename = "doubt")]
    pub id: StoredId<CaveatId>,
    /// Meaning for this run, as a sentence for users.
    #[serde(rename = "why")]
    pub reason: String,
}

impl Caveat {
    /// Creates a caveat with its reason.
    #[must_use]
    pub fn new(id: CaveatId, reason: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            reason: reason.into(),
        }
    }
}

/// Returns a new record id: it sorts by time and is unique within a second.
#[must_use]
pub fn new_id(now: Timestamp) -> String {
    let timestamp = now.strftime("%Y%m%dT%H%M%SZ");
    format!("{timestamp}-{:06x}", fastrand::u32(..1 << 24))
}

/// Error of reading a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The text is not JSON, or not the JSON of a record.
    #[error("not a record: {0}")]
    Shape(#[from] serde_json::Error),
    /// The record has another schema version.
    #[error("the record has schema `{schema}`, and this version reads `{RUN_SCHEMA}`")]
    Schema {
        /// Schema id in the record.
        schema: String,
    },
}

impl Record {
    /// Creates the record of a run by this program from its plan only; its kind is the plan's.
    #[must_use]
    pub fn new(id: String, started: Timestamp, plan: Plan) -> Self {
        Self {
            schema: RUN_SCHEMA.to_owned(),
            id,
            kind: plan.kind,
            started,
            interrupted: false,
            tool: ToolVersion {
                name: "linerate".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            label: None,
            recorded_by: None,
            served_client: None,
            command: None,
            plan,
            hosts: Vec::new(),
            summary: Summary::default(),
            directions: Vec::new(),
            intervals: Vec::new(),
            histograms: BTreeMap::new(),
            slow: Vec::new(),
            losses: Vec::new(),
            counters: Vec::new(),
            calls: CallsByName::default(),
            server_calls: CallsByName::default(),
            verification: Vec::new(),
            call_clocks: Vec::new(),
            stages: Vec::new(),
            stage_pass: None,
            timeline: None,
            server_text: None,
            forward: None,
            generate: None,
            findings: Vec::new(),
            stack: None,
            validity: Vec::new(),
        }
    }

    /// Parses a record; unknown fields are skipped.
    ///
    /// # Errors
    /// [`RecordError`] if the text is not a record, or a record of another version.
    pub fn from_json(text: &str) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct SchemaField {
            schema: String,
        }
        let schema_field: SchemaField = serde_json::from_str(text)?;
        if schema_field.schema != RUN_SCHEMA {
            return Err(RecordError::Schema {
                schema: schema_field.schema,
            });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Serialises the record as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("every field of a record has a JSON form")
    }
}
