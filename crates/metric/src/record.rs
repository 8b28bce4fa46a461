//! The record: everything one run found, as one versioned document.
//!
//! Names here are a contract with scripts: fields are added, never renamed. A figure that does not
//! apply or could not be known is absent or null, never zero.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::{Host, Role};
pub use crate::histogram::{HistogramData, Quantiles};
use crate::plan::{Direction, Kind, Plan};

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
    /// Full distributions by name (`rtt_ns`).
    pub histograms: BTreeMap<String, HistogramData>,
    /// Where packets were lost, as far as that is known.
    pub losses: Vec<Loss>,
    /// What speaks against the figures; empty when nothing does.
    pub validity: Vec<Doubt>,
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
    /// UDP: datagrams sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_sent: Option<u64>,
    /// UDP: datagrams received, duplicates included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_received: Option<u64>,
    /// UDP: share of the sent datagrams that did not arrive, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_fraction: Option<f64>,
    /// UDP: datagrams that arrived after one with a higher number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<u64>,
    /// UDP: datagrams that arrived more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<u64>,
    /// UDP: smoothed inter-arrival variation in nanoseconds (RFC 3550 section 6.4.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipdv_ns: Option<f64>,
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
    /// Latency: questions without an answer in time. Throughput over UDP: datagrams lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Latency: answers that differ from what was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatched: Option<u64>,
    /// Latency: answers above the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<u64>,
    /// What the threads that moved payload cost, by end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu: Vec<CpuCost>,
}

/// What one end's measuring threads cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuCost {
    /// Which end.
    pub role: Role,
    /// Processor time over wall time: 1.0 is one core kept busy. Exact to the scheduler's clock;
    /// interrupt work is billed to whoever it interrupted.
    pub share: f64,
    /// Share spent in user mode; where the kernel samples this by ticks, an estimate.
    pub user_share: f64,
    /// Times a thread went to sleep.
    pub voluntary_switches: u64,
    /// Times a thread was pushed off its core.
    pub involuntary_switches: u64,
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
    /// UDP: datagrams that one send call took at most (UDP GSO); absent: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagrams_per_call: Option<u32>,
    /// The kernel's view of the connection at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpState>,
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
    /// UDP: datagrams that the sender handed over meanwhile.
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
    /// `udp-receive-queue` or `path`.
    pub place: String,
    /// How many.
    pub packets: u64,
    /// Whether the counter is this run's alone; otherwise the number is an upper bound.
    pub exact: bool,
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
