//! Frames of the control protocol: type on the wire and contents.

use std::collections::BTreeMap;

use linerate_record::call_times::{CallClock, CallsByName};
use linerate_record::cost::MemoryCost;
use linerate_record::event::ErrorReport;
use linerate_record::facts::{HostFacts, Role};
use linerate_record::plan::{CpuList, Direction, Plan, WaitMode};
use linerate_record::record::{
    Caveat, CounterDelta, CpuCost, Interval, PacketLoss, SlowResponse, StreamFigures,
    VerificationCost,
};
use linerate_stats::histogram::HistogramData;
use serde::{Deserialize, Serialize};

use super::body;
use super::error::BodyError;
use super::hello::Hello;
use super::token::FlowToken;

/// Table of frames: type on the wire, name, structure.
macro_rules! frames {
    ($($(#[$doc:meta])* $kind:literal $name:literal $variant:ident($body:ty),)+) => {
        /// Message on a control connection.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Frame {
            $($(#[$doc])* $variant($body),)+
        }

        impl Frame {
            /// Returns the type on the wire.
            #[must_use]
            pub fn kind(&self) -> u16 {
                match self {
                    $(Self::$variant(_) => $kind,)+
                }
            }

            /// Returns the name, as in the protocol description and in errors.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                }
            }

            /// Appends the body.
            pub(super) fn encode_body(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
                match self {
                    $(Self::$variant(body) => body::encode(body, out),)+
                }
            }

            /// Reads the body of a frame; `Ok(None)` for an unknown type. An error comes with the
            /// frame's name.
            pub(super) fn decode(
                kind: u16,
                body: &[u8],
            ) -> Result<Option<Self>, (&'static str, BodyError)> {
                match kind {
                    $($kind => body::decode(body)
                        .map(|body| Some(Self::$variant(body)))
                        .map_err(|error| ($name, error)),)+
                    _ => Ok(None),
                }
            }
        }
    };
}

frames! {
    /// First frame of both ends: versions and features.
    1 "HELLO" Hello(Hello),
    /// Server: it cannot run the test, or will not.
    2 "REJECT" Reject(Reject),
    /// Client: the requested run.
    3 "PROPOSE" Propose(Box<Propose>),
    /// Server: the run is accepted; its plan and flows.
    4 "ACCEPT" Accept(Box<Accept>),
    /// Server: every flow has arrived.
    5 "ATTACHED" Attached(FlowsAttached),
    /// Client: the run begins.
    6 "START" Start(StartRun),
    /// Either end: figures of an interval of a direction that it counts.
    7 "INTERVAL" Interval(Box<IntervalReport>),
    /// Sender of a direction: its totals.
    8 "SENT" Sent(SenderTotals),
    /// Either end: the run ends early.
    9 "STOP" Stop(StopRun),
    /// Either end: its results.
    10 "RESULTS" Results(Box<EndResults>),
    /// Client: settings that it requests for the server's host, for the lifetime of the connection.
    11 "SETTINGS" Settings(RequestedSettings),
    /// Server: result of each requested setting.
    12 "SETTINGS_REPLY" SettingsReply(SettingsReply),
    /// Either end: requests the time of the other end.
    13 "CLOCK_REQUEST" ClockRequest(ClockRequest),
    /// Other end: the requested time.
    14 "CLOCK_REPLY" ClockReply(ClockReply),
    /// Either end: still connected.
    15 "HEARTBEAT" Heartbeat(Heartbeat),
    /// Either end: no more frames follow.
    16 "BYE" Bye(Bye),
    /// Either end, before RESULTS: flows that do not fit into it.
    17 "FIGURES" Figures(FlowFiguresBatch),
    /// Server, before RESULTS: timestamps of round trips or calls.
    20 "TIMESTAMPS" Timestamps(Box<ResponderTimestamps>),
}

/// Implements `From` for each body, so that `connection.send(&Stop { .. }.into())` works, boxed or
/// not.
macro_rules! into_frame {
    ($($variant:ident($body:ident))+) => {
        $(impl From<$body> for Frame {
            fn from(body: $body) -> Self {
                Self::$variant(body.into())
            }
        })+
    };
}

into_frame! {
    Hello(Hello) Reject(Reject) Propose(Propose) Accept(Accept) Attached(FlowsAttached) Start(StartRun)
    Interval(IntervalReport) Sent(SenderTotals) Stop(StopRun) Results(EndResults) Settings(RequestedSettings)
    SettingsReply(SettingsReply) ClockRequest(ClockRequest) ClockReply(ClockReply)
    Heartbeat(Heartbeat) Bye(Bye) Figures(FlowFiguresBatch) Timestamps(ResponderTimestamps)
}

/// Rejection of a run by the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// Error that the client reports to its user.
    pub problem: ErrorReport,
    /// Exit code for the client.
    pub exit_code: u8,
    /// True if a later attempt may succeed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "may_pass")]
    pub retryable: bool,
}

/// Run that the client requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Propose {
    /// Complete set of options; the server chooses those of its end that are absent.
    pub plan: Plan,
    /// Facts about the client's host.
    #[serde(default)]
    pub host: HostFacts,
}

/// Acceptance of a run by the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accept {
    /// Plan with the values that the server chose.
    pub plan: Plan,
    /// Wait mode of the server's threads.
    pub wait: WaitMode,
    /// Processors of the server's threads; empty: any.
    #[serde(default)]
    pub cpus: CpuList,
    /// Grants, one per flow, in the order in which the client must open them.
    pub flows: Vec<FlowGrant>,
    /// Parts of the plan that the server cannot follow, and other caveats about the figures.
    #[serde(default)]
    #[serde(rename = "doubts")]
    pub caveats: Vec<Caveat>,
    /// Reason for the wait mode if the server chose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "because")]
    pub wait_reason: Option<String>,
    /// Number of server threads that move the flows of a direction; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

/// Permission to open one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowGrant {
    /// Number of the flow, from 1, unique within the run.
    pub id: u32,
    /// Direction of its payload.
    pub direction: Direction,
    /// Token that the flow opens with.
    pub token: FlowToken,
    /// Port of the socket that was opened for this flow alone; absent: the port of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Message that every flow has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsAttached {}

/// Start of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRun {
    /// Wait mode of the client's threads; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitMode>,
    /// Processors of the client's threads, empty for any; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// Number of client threads that move the flows of a direction; absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

/// Figures of one interval of a direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntervalReport {
    /// Counters of the interval. Times are relative to the start at the sending end.
    pub interval: Interval,
}

/// Totals of the sender of a direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderTotals {
    /// Totals of each flow.
    pub flows: Vec<FlowTotal>,
}

/// Totals that one flow sent, including the omitted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTotal {
    /// Number of the flow.
    pub id: u32,
    /// Payload bytes that the kernel accepted.
    pub bytes: u64,
    /// UDP: datagrams that the kernel accepted. TCP: absent, the kernel forms its packets.
    #[serde(default)]
    pub packets: Option<u64>,
}

/// Early end of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRun {
    /// Reason as text.
    #[serde(default)]
    #[serde(rename = "why")]
    pub reason: String,
}

/// Results of one end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndResults {
    /// Role of this end.
    pub role: Role,
    /// Facts about its host.
    #[serde(default)]
    pub host: HostFacts,
    /// CPU cost of its measuring threads; absent if the kernel does not report it.
    #[serde(default)]
    pub cpu: Option<CpuCost>,
    /// Memory of its flows; absent if not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryCost>,
    /// Figures of its flows.
    #[serde(default)]
    pub streams: Vec<FlowFigures>,
    /// Complete histograms by name.
    #[serde(default)]
    pub histograms: BTreeMap<String, HistogramData>,
    /// Packet losses that this end counted.
    #[serde(default)]
    pub losses: Vec<PacketLoss>,
    /// Counters of this end's host, before and after the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<CounterDelta>,
    /// Cost of payload verification at this end; absent if not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationCost>,
    /// Durations of its system calls; empty if not requested.
    #[serde(default, skip_serializing_if = "CallsByName::is_empty")]
    pub calls: CallsByName,
    /// Clock that timed the system calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_clock: Option<CallClock>,
    /// Responses above the latency limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowResponse>,
    /// Caveats about its figures.
    #[serde(default)]
    #[serde(rename = "doubts")]
    pub caveats: Vec<Caveat>,
    /// True if it was stopped early.
    #[serde(default)]
    pub interrupted: bool,
    /// Duration of the counting in nanoseconds, without the omitted time.
    pub duration_ns: u64,
}

/// Some of the flows of an end that has more than one frame may hold. RESULTS has the last ones,
/// and frames of this type before it have the others. Up to
/// [`FLOWS_PER_FRAME`](super::FLOWS_PER_FRAME) flows no such frame is sent, for compatibility with
/// earlier versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowFiguresBatch {
    /// Figures of each flow.
    pub flows: Vec<FlowFigures>,
}

/// Figures of a flow at one end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowFigures {
    /// Direction of its payload.
    pub direction: Direction,
    /// Figures of the flow; those that only the other end can measure are absent.
    pub stream: StreamFigures,
}

/// Settings that the client requests for the server's host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedSettings {
    /// Values by setting name.
    #[serde(rename = "wanted")]
    pub requested: BTreeMap<String, String>,
}

/// Results of the requested settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsReply {
    /// Applied settings with their effective values.
    #[serde(default)]
    pub granted: BTreeMap<String, String>,
    /// Rejected settings, each with the reason.
    #[serde(default)]
    #[serde(rename = "refused")]
    pub rejected: BTreeMap<String, String>,
}

/// Request for the time of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRequest {
    /// Monotonic clock of the requesting end when it sent the request, in ns.
    pub t1_ns: u64,
}

/// Reply to a [`ClockRequest`]: with its time of arrival it makes a
/// [`ClockSample`](crate::control::clock_offset::ClockSample).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReply {
    /// Time in the request, unchanged.
    pub t1_ns: u64,
    /// Monotonic clock of the responding end when the request arrived, in ns.
    pub t2_ns: u64,
    /// Monotonic clock of the responding end when it sent the reply, in ns.
    pub t3_ns: u64,
}

/// Sign of life without content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {}

/// End of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {}

/// Timestamps of round trips at the responding end; a long list is split into several frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponderTimestamps {
    /// Number of the flow.
    pub flow: u32,
    /// Round trips, ascending by number. Each entry is the number, then times of the responding
    /// end's monotonic clock in ns, 0 if unknown: arrived, thread to be woken, thread running,
    /// received, passed to the kernel, in the queueing discipline, in the driver, send call
    /// returned.
    #[serde(default)]
    #[serde(rename = "trips")]
    pub round_trips: Vec<[u64; 9]>,
    /// Receive work of its processors: start, end (both in ns), processor.
    #[serde(default)]
    pub work: Vec<[u64; 3]>,
    /// System calls of the responding end: start, end (both in ns), call and result (index of the
    /// call in the table of calls times three, plus 0 ready, 1 waited, 2 empty), thread.
    #[serde(default)]
    pub calls: Vec<[u64; 4]>,
    /// Data that it could not record, with the reasons.
    #[serde(default)]
    #[serde(rename = "notes")]
    pub caveats: Vec<String>,
    /// Timestamps that its network device took in place of its kernel, in the first frame of a
    /// flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceTimestamping>,
}

/// Hardware timestamps of a network device, by its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTimestamping {
    /// True if departures are timestamped.
    pub departures: bool,
    /// True if arrivals are timestamped.
    pub arrivals: bool,
    /// Upper bound of the error of these times, in ns.
    pub error_ns: u64,
}
