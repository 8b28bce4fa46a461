//! The record: everything one run found, as one versioned document.
//!
//! Names here are a contract with scripts: fields are added, never renamed. A figure that does not
//! apply or could not be known is absent or null, never zero.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calls::{CallClock, Calls};
use crate::command_line::CommandLine;
use crate::cost::{
    MachineTime, MemoryCost, ProcessorTime, StreamInterval, TcpInterval, ThreadCost, ThreadShares,
};
use crate::facts::{Host, Role};
use crate::finding::Finding;
use crate::forward::ForwardFigures;
use crate::generate::GenerateFigures;
pub use crate::histogram::{HistogramData, Quantiles};
use crate::plan::{Direction, Kind, Plan};
pub use crate::round_trip::SlowAnswer;
use crate::stack::StackFigures;
pub use crate::timeline::Timeline;

/// Schema id of a [`Record`].
pub const RUN_SCHEMA: &str = "linerate/run/1";

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// `linerate/run/1`.
    pub schema: String,
    /// Sortable by time, unique: `20261121T144042Z-3f9a1c`.
    pub id: String,
    /// What was measured.
    pub kind: Kind,
    /// When the first payload was sent (RFC 3339, UTC).
    pub started: Timestamp,
    /// Whether it was ended before its time; what is here was measured until then.
    pub interrupted: bool,
    /// Which program made it.
    pub tool: Tool,
    /// A name given by whoever made several runs; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The end that keeps this record of a run whose client keeps one as well: the server's copy. Absent in
    /// the record of whoever asked for the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<Role>,
    /// Whom this end served, in the record of a server; absent in that of whoever asked for the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
    /// The command that asked for the run; absent where it was no command of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandLine>,
    /// Every effective option.
    pub plan: Plan,
    /// The hosts: the client first, the server second where it is known.
    pub hosts: Vec<Host>,
    /// The figures of the whole run, omitted time left out.
    pub summary: Summary,
    /// The figures by direction.
    pub directions: Vec<DirectionFigures>,
    /// The series, ascending in time.
    pub intervals: Vec<Interval>,
    /// Full distributions by name (`rtt_ns`; `rtt_intended_ns` of an open loop; with a socket for each
    /// question `open_ns`, `bind_ns`, `connect_ns`, `send_ns`, `receive_ns`, `close_ns`, `whole_ns`; with
    /// times of the device in its answers `device_ns`, `around_ns`).
    pub histograms: BTreeMap<String, HistogramData>,
    /// Latency: answers above the limit, ascending in time; the first thousand of a run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowAnswer>,
    /// Where packets were lost, as far as that is known.
    pub losses: Vec<Loss>,
    /// The kernel's counters at the places where packets can be lost, before and after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<PlaceCounter>,
    /// What the near end's system calls took, by call and by what they found; empty without
    /// `--calls`. Near is the end that was told what to do: the client.
    #[serde(default, skip_serializing_if = "Calls::is_empty")]
    pub calls: Calls,
    /// The same of the far end.
    #[serde(default, skip_serializing_if = "Calls::is_empty")]
    pub far_calls: Calls,
    /// What verifying costs at each end; empty without `--verify`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verification: Vec<Verification>,
    /// What the calls of each end were timed with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub call_clocks: Vec<CallClock>,
    /// Where the time of a round trip went, in the order in which it passes; empty when it was not
    /// asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// How the stages were found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_pass: Option<StagePass>,
    /// What happened when in the latest round trips, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// What a far end that is another program reported in words, as it came, up to
    /// [`FAR_TEXT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far_text: Option<String>,
    /// Forwarding: what each port, stream and thread did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Box<ForwardFigures>>,
    /// Generating: what was offered, and what arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generate: Option<Box<GenerateFigures>>,
    /// Why the run was no faster, by what it costs; empty until somebody explained it, and when nothing
    /// was found.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Our stack as a host: what its services and it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<Box<StackFigures>>,
    /// What speaks against the figures; empty when nothing does.
    pub validity: Vec<Doubt>,
}

/// Longest [`Record::far_text`] in bytes: a report with an interval line a second for an hour.
pub const FAR_TEXT_BYTES: usize = 256 << 10;

/// The client of a test, as its server knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Served {
    /// Its address and port: `10.77.0.1:40000`, `[fd77::1]:40000`.
    pub client: String,
    /// What it calls itself, as far as its dialect tells: `iperf3 3.12`, `linerate 0.1.0`.
    pub agent: String,
}

impl Served {
    /// Its address alone.
    #[must_use]
    pub fn address(&self) -> &str {
        let address = self
            .client
            .rsplit_once(':')
            .map_or(&*self.client, |it| it.0);
        address.trim_start_matches('[').trim_end_matches(']')
    }
}

/// The program that made a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// `linerate`.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The figures of a run, or of one direction of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Summary {
    /// Counted time in nanoseconds, at the receiver for throughput.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Payload bits per second that arrived (RFC 2647 section 3.17); both directions added up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_bps: Option<f64>,
    /// Payload bits per second that the sender handed over (RFC 2285 section 3.5.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_bps: Option<f64>,
    /// UDP: datagrams per second that arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_per_second: Option<f64>,
    /// TCP: send calls per second; packets are the kernel's and not counted here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_second: Option<f64>,
    /// Payload bytes sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// Payload bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_received: Option<u64>,
    /// UDP: datagrams that got a number: sent, or refused by a full socket of a paced flow
    /// (`streams[].sender.send_refused`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_sent: Option<u64>,
    /// UDP: datagrams received, duplicates included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_received: Option<u64>,
    /// UDP: share of the sent datagrams that did not arrive, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_fraction: Option<f64>,
    /// UDP: datagrams that arrived after one with a higher number. Latency: answers that came after
    /// their question was given up, or after the answer to a later one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<u64>,
    /// UDP: datagrams, or answers, that arrived more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<u64>,
    /// UDP: the furthest that a late datagram came behind the first one that overtook it, in
    /// datagrams (RFC 4737 section 4.2); absent when none came late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reordering_extent: Option<u64>,
    /// UDP: smoothed inter-arrival variation in nanoseconds (RFC 3550 section 6.4.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipdv_ns: Option<f64>,
    /// UDP: how much the transit times of two datagrams that follow each other differ, whatever the
    /// sign (RFC 5481 section 4.1, in percentiles to 1 %).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_variation_ns: Option<Quantiles>,
    /// UDP: time from the sender's stamp to the arrival (RFC 7679), where the sender says that both
    /// hosts' clocks agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_delay_ns: Option<Quantiles>,
    /// Offered over asked load, less one: -0.02 is 2 % too little.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_error: Option<f64>,
    /// How long after its time each burst left the sending program (percentiles to 1 %).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_ns: Option<Quantiles>,
    /// UDP at a rate: time between the arrivals of datagrams that follow each other, as the receiving
    /// program saw them (percentiles to 1 %).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival_gap_ns: Option<Quantiles>,
    /// TCP: segments that the sender's kernel sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
    /// Latency: the distribution of round-trip times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Quantiles>,
    /// Latency: round trips completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trips: Option<u64>,
    /// Latency: round trips completed per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trips_per_second: Option<f64>,
    /// Latency: questions without an answer in time. Throughput over UDP: datagrams lost. Forwarding: frames
    /// that ports dropped or an emulated link lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Latency: answers that differ from what was sent. Throughput with `--verify`: bytes that do, the
    /// omitted time included; a datagram that is too short or too long counts what is missing or too
    /// much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatched: Option<u64>,
    /// Latency: answers above the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<u64>,
    /// Latency: of the mismatched answers, those of another length than their question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong_length: Option<u64>,
    /// Latency: of the mismatched answers, those of the right length with another content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong_content: Option<u64>,
    /// Latency, open loop: from the intended send time to the answer, so that a question that had to
    /// wait for its turn counts with its waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_intended_ns: Option<Quantiles>,
    /// Latency, open loop: questions that were due before the end and never left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsent: Option<u64>,
    /// Latency with a socket for each question: from opening it to having closed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole_ns: Option<Quantiles>,
    /// Latency with `--device-stamps`: the part of the round trips inside the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Box<DeviceTimes>>,
    /// Latency over TCP with a socket for each question: connections made, used and closed per
    /// second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_second: Option<f64>,
    /// Throughput with several flows: Jain's fairness index of what each received, 1/n to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fairness_index: Option<f64>,
    /// What the threads that moved payload cost, by end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu: Vec<CpuCost>,
    /// What the flows took in memory, by end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryCost>,
}

/// Round trips inside the device that answered, by its own stamps, and around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceTimes {
    /// From when a question came into the device to when its answer left it, by its own clock.
    pub device_ns: Quantiles,
    /// What is left of the same round trips.
    pub around_ns: Quantiles,
    /// The device's part of the time of all these round trips, 0 to 1.
    pub share: f64,
}

/// What one end's measuring threads cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuCost {
    /// Which end.
    pub role: Role,
    /// Processor time over wall time: 1.0 is one core kept busy. Exact to the scheduler's clock;
    /// interrupt work is billed to whoever it interrupted.
    pub share: f64,
    /// Share spent in user mode. Most kernels sample this by ticks: then it is an estimate, and absent where
    /// there was too little time for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_share: Option<f64>,
    /// Times a thread went to sleep.
    pub voluntary_switches: u64,
    /// Times a thread was pushed off its core.
    pub involuntary_switches: u64,
    /// Share of the threads' time asleep in a send, receive or waiting call, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_share: Option<f64>,
    /// Share of the threads' time ready to run and not running, 0 to 1: waking up, and waiting for a
    /// core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_share: Option<f64>,
    /// Share of the calls that found nothing to receive, or no room to send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_share: Option<f64>,
    /// Processor time of the threads over the payload bytes that they moved, omitted ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_per_byte: Option<f64>,
    /// UDP: the same over datagrams. Latency: over round trips.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_per_packet: Option<f64>,
    /// Processor cycles of the threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// Instructions that they retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// Why cycles and instructions are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncounted_because: Option<String>,
    /// Where the time of the whole machine went meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineTime>,
    /// The machine's processors one by one, up to 64 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<ProcessorTime>,
    /// The threads one by one, up to 64 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadCost>,
}

/// One direction of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectionFigures {
    /// Which way.
    pub direction: Direction,
    /// Its figures.
    #[serde(flatten)]
    pub summary: Summary,
    /// Its flows.
    pub streams: Vec<Stream>,
}

/// One flow, with what both of its ends know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stream {
    /// Number of the flow, from 1, unique within a run.
    pub id: u32,
    /// Its figures.
    #[serde(flatten)]
    pub summary: Summary,
    /// The first byte that differs from what was sent (`--verify`); absent when none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<Mismatch>,
    /// Its sending socket (the asking one for round trips).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<Socket>,
    /// Its receiving socket (the answering one for round trips).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver: Option<Socket>,
}

/// One end of a flow as the kernel had it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Socket {
    /// Local address and port.
    pub local: Option<String>,
    /// Remote address and port.
    pub remote: Option<String>,
    /// Send buffer that the kernel granted (it doubles what is asked for, for its own overhead).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer_bytes: Option<u64>,
    /// Receive buffer that the kernel granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer_bytes: Option<u64>,
    /// Congestion control in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// Datagrams that this socket's full receive buffer refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_queue_drops: Option<u64>,
    /// UDP: datagrams of a paced flow that were never handed over, because the socket had no room
    /// while their time passed, since counting began; the receiver finds their numbers missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_refused: Option<u64>,
    /// UDP: sends that were told that nobody has the far port; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusals: Option<u32>,
    /// Sends for which the kernel had no route, no answer of the next hop, or no link; each was tried
    /// again. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unroutable: Option<u32>,
    /// UDP: datagrams that one send call took at most (UDP GSO, or a batch); absent: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagrams_per_call: Option<u32>,
    /// The interface's receive queue that its packets came from (SO_INCOMING_NAPI_ID); absent where
    /// the kernel does not tell, as on loopback and plain veth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub napi_id: Option<u32>,
    /// Sends with MSG_ZEROCOPY (`--offload zerocopy`); absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_copy: Option<ZeroCopy>,
    /// The kernel's view of the connection at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpState>,
}

/// Where received content differs from what was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mismatch {
    /// Position of the first byte that differs: in the stream, or in its datagram. What differs in
    /// the 16 bytes of a datagram's header shows in the first bytes behind it.
    pub offset: u64,
    /// UDP: the number that the datagram carries; absent for those too small to have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagram: Option<u64>,
    /// What had to be there from that position on, up to 16 bytes in hexadecimal.
    pub expected: String,
    /// What was there; empty when the datagram had ended.
    pub found: String,
}

/// What verifying costs at one end, as measured on its processor after the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// Which end.
    pub role: Role,
    /// Sender: time to write 1024 bytes of content, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill_ns_per_kib: Option<f64>,
    /// Receiver: time to compare 1024 bytes, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_ns_per_kib: Option<f64>,
}

/// What became of sends with MSG_ZEROCOPY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ZeroCopy {
    /// Calls that the kernel took.
    pub sends: u64,
    /// Of these it copied so many after all.
    pub copied: u64,
    /// Of so many it did not tell until the end.
    pub untold: u64,
}

/// What TCP_INFO told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TcpState {
    /// Segments sent again since the connection began.
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
    /// Least round-trip time of the recent past; absent before Linux 4.9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rtt_ns: Option<u64>,
    /// Window that the receiver offered at the end (Linux 5.4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_window_bytes: Option<u64>,
    /// Rate of the latest deliveries; absent before Linux 4.9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_rate_bps: Option<u64>,
    /// Time with data to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<u64>,
    /// Of that, limited by the peer's window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_window_limited_ns: Option<u64>,
    /// Of that, limited by the send buffer (the kernel misses most of it: docs/METHOD.md).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer_limited_ns: Option<u64>,
    /// Bytes sent again since the connection began (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmitted_bytes: Option<u64>,
    /// Segments that arrived twice, as the receiver said (DSACK, Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spurious_retransmits: Option<u64>,
    /// Times the sender found segments reordered (Linux 4.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reordering_seen: Option<u64>,
    /// Retransmission time-outs (Linux 6.7).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
    /// Segments that arrived with a congestion mark (ECN, Linux 4.18).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// Whether both ends agreed on ECN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
}

/// One slice of the series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Number of the interval within its direction, from 0; both ends number alike.
    #[serde(default)]
    pub number: u64,
    /// Nanoseconds since the start of the run.
    pub start_ns: u64,
    /// Nanoseconds since the start of the run.
    pub end_ns: u64,
    /// Which way.
    pub direction: Direction,
    /// Whether it lies in the omitted time at the start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub omitted: bool,
    /// Which end counted `bytes`, `packets` and `calls`: the receiver, unless its count was lost.
    pub counted_at: CountedAt,
    /// Payload bytes.
    pub bytes: u64,
    /// UDP: datagrams. Latency: round trips.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Calls that moved payload: the sender's on a stream, the receiver's for datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Payload bytes that the sender handed over meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// UDP: datagrams that got a number meanwhile, as in the summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_sent: Option<u64>,
    /// UDP: numbers found missing meanwhile; a late datagram is missed first and found later.
    /// Latency: answers missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// TCP: segments sent again meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
    /// TCP: congestion window of all flows at the end of the interval, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwnd_bytes: Option<u64>,
    /// TCP: mean of the flows' smoothed round-trip times at the end of the interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_rtt_ns: Option<u64>,
    /// Latency: the distribution within the interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Quantiles>,
    /// TCP: what the sender's kernel told of its connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpInterval>,
    /// How the sender's threads spent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_threads: Option<ThreadShares>,
    /// How the receiver's threads spent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver_threads: Option<ThreadShares>,
    /// The flows one by one, where there are 2 to 64 in the direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamInterval>,
}

/// The end of a direction that counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CountedAt {
    /// Where the payload came from.
    Sender,
    /// Where the payload arrived.
    Receiver,
}

/// Packets lost at one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Loss {
    /// Which way they were going.
    pub direction: Direction,
    /// `sender-socket`, `qdisc`, `interface-tx`, `interface-rx`, `softnet-backlog`, `reassembly`,
    /// `udp-receive-queue` or `path`; of a forwarder `emulated-link`, what mode `link` lost as it was told to.
    pub place: String,
    /// How many; of one place and all its counters, never more than were lost in all.
    pub packets: u64,
    /// Whether nothing else can be true. Otherwise the number is an upper bound, of `path` a lower
    /// one, unless the two fields below say more.
    pub exact: bool,
    /// Not exact: the least that it can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u64>,
    /// Not exact: the most that it can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u64>,
}

/// One of the kernel's counters around a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlaceCounter {
    /// `client`, `server`, or the name of a host or switch of the lab that the run was in.
    pub host: String,
    /// The interface; absent for what a host counts as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// What is counted: docs/METHOD.md#where-packets-were-lost lists the names.
    pub counter: String,
    /// Before the first payload.
    pub before: u64,
    /// When the run was over.
    pub after: u64,
}

impl PlaceCounter {
    /// What was added meanwhile; none when it was set back.
    #[must_use]
    pub fn added(&self) -> u64 {
        self.after.saturating_sub(self.before)
    }
}

/// One part of a round trip, between two stamps of the same trip.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stage {
    /// `client-send-call`, `client-qdisc`, `path-there`, `server-receive`, `server-application`,
    /// `server-send-call`, `server-qdisc`, `path-back`, `client-receive`; as parts of the two
    /// `…-receive` there are `…-softirq`, `…-wake-up`, `…-receive-call` (docs/METHOD.md#stages).
    pub stage: String,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Arithmetic mean.
    pub mean_ns: f64,
    /// Which clock gave its stamps: `software` (the kernel's and ours) or `hardware` (at least one is
    /// the device's).
    pub stamps: String,
    /// How far both of its ends may be off against each other when they were read by different clocks:
    /// on two hosts, or one of them by a device; absent where one clock gave both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// What it consists of, found in a pass of its own that takes longer: parts tell how a stage
    /// divides, and do not add up to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Stage>,
}

/// The pass of round trips in which the stages were found, beside the one that gave the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StagePass {
    /// Round trips of which every stamp is known.
    pub round_trips: u64,
    /// Those that lack one, and are left out.
    pub left_out: u64,
    /// Round-trip times of this pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Quantiles>,
    /// The medians of all stages added up.
    pub sum_of_medians_ns: u64,
    /// What asking for the stamps cost: the median of this pass less that of the pass without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asking_ns: Option<i64>,
    /// What watching the scheduler cost, in the pass that found the parts of stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watching_ns: Option<i64>,
    /// What could not be told apart, and why; for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Something that speaks against a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Doubt {
    /// Kebab-case id, stable for scripts.
    pub doubt: String,
    /// What it means here, for people.
    pub why: String,
}

impl Doubt {
    /// A doubt with its reason.
    #[must_use]
    pub fn new(doubt: &str, why: impl Into<String>) -> Self {
        Self {
            doubt: doubt.to_owned(),
            why: why.into(),
        }
    }
}

/// An id that sorts by time and that two runs of the same second do not share.
#[must_use]
pub fn new_id(now: Timestamp) -> String {
    let stamp = now.strftime("%Y%m%dT%H%M%SZ");
    format!("{stamp}-{:06x}", fastrand::u32(..1 << 24))
}

/// A record of an unknown version, or no record at all.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON, or JSON of another shape.
    #[error("not a record: {0}")]
    Shape(#[from] serde_json::Error),
    /// A record of another version.
    #[error("a record of schema `{found}`; this version reads `{RUN_SCHEMA}`")]
    Schema {
        /// The schema it names.
        found: String,
    },
}

impl Record {
    /// The record of a run by this program of which nothing is known but its plan; its kind is the plan's.
    #[must_use]
    pub fn new(id: String, started: Timestamp, plan: Plan) -> Self {
        Self {
            schema: RUN_SCHEMA.to_owned(),
            id,
            kind: plan.kind,
            started,
            interrupted: false,
            tool: Tool {
                name: "linerate".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            label: None,
            kept_by: None,
            served: None,
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
            calls: Calls::default(),
            far_calls: Calls::default(),
            verification: Vec::new(),
            call_clocks: Vec::new(),
            stages: Vec::new(),
            stage_pass: None,
            timeline: None,
            far_text: None,
            forward: None,
            generate: None,
            findings: Vec::new(),
            stack: None,
            validity: Vec::new(),
        }
    }

    /// Reads a record; fields that this version does not know are skipped.
    ///
    /// # Errors
    /// [`RecordError`] when it is not one, or one of another version.
    pub fn from_json(text: &str) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Named {
            schema: String,
        }
        let named: Named = serde_json::from_str(text)?;
        if named.schema != RUN_SCHEMA {
            return Err(RecordError::Schema {
                found: named.schema,
            });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Writes it as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a record holds only what JSON can say")
    }
}
