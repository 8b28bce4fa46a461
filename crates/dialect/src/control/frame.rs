//! Every frame: its type on the wire, and what it says.

use std::collections::BTreeMap;

use linerate_metric::calls::{CallClock, Calls};
use linerate_metric::cost::MemoryCost;
use linerate_metric::event::Problem;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{Cpus, Direction, Plan, Wait};
use linerate_metric::record::{
    CpuCost, Doubt, HistogramData, Interval, Loss, PlaceCounter, SlowAnswer, Stream, Verification,
};
use serde::{Deserialize, Serialize};

use super::body;
use super::error::BodyError;
use super::hello::Hello;
use super::token::Token;

/// The table of frames: type on the wire, name for people, structure.
macro_rules! frames {
    ($($(#[$doc:meta])* $kind:literal $name:literal $variant:ident($body:ty),)+) => {
        /// One message on a control connection.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Frame {
            $($(#[$doc])* $variant($body),)+
        }

        impl Frame {
            /// Its type on the wire.
            #[must_use]
            pub fn kind(&self) -> u16 {
                match self {
                    $(Self::$variant(_) => $kind,)+
                }
            }

            /// Its name, as the protocol's description and errors have it.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                }
            }

            /// Appends its body.
            pub(super) fn encode_body(&self, out: &mut Vec<u8>) -> Result<(), BodyError> {
                match self {
                    $(Self::$variant(body) => body::encode(body, out),)+
                }
            }

            /// Reads the body of a frame; `Ok(None)` for a type that this version does not know,
            /// and the frame's name beside an error.
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
    /// Both ends, first: who they are.
    1 "HELLO" Hello(Hello),
    /// Server: it cannot or will not do what was asked.
    2 "REFUSE" Refuse(Refuse),
    /// Client: what it wants to run.
    3 "PROPOSE" Propose(Box<Propose>),
    /// Server: it will, and how.
    4 "ACCEPT" Accept(Box<Accept>),
    /// Server: every flow has arrived.
    5 "ATTACHED" Attached(Attached),
    /// Client: the run begins.
    6 "START" Start(Start),
    /// Either end: an interval of a direction it counts is over.
    7 "INTERVAL" Interval(Box<IntervalEnded>),
    /// The sender of a direction: what it sent in all.
    8 "SENT" Sent(Sent),
    /// Either end: the run ends before its time.
    9 "STOP" Stop(Stop),
    /// Either end: all it found.
    10 "OUTCOME" Outcome(Box<Outcome>),
    /// Client: settings that it wants at the far end, for as long as this conversation lasts.
    11 "SETTINGS" Settings(Settings),
    /// Server: what became of them.
    12 "SETTINGS_ANSWER" SettingsAnswer(SettingsAnswer),
    /// Either end: what time is it there?
    13 "CLOCK_QUESTION" ClockQuestion(ClockQuestion),
    /// The other end: this.
    14 "CLOCK_ANSWER" ClockAnswer(ClockAnswer),
    /// Either end: still there.
    15 "HEARTBEAT" Heartbeat(Heartbeat),
    /// Either end: nothing more will come.
    16 "BYE" Bye(Bye),
    /// Either end, before OUTCOME: flows that it does not hold.
    17 "FIGURES" Figures(Figures),
    /// The server: what it noted of round trips or calls, before its OUTCOME.
    20 "STAMPS" Stamps(Box<Stamps>),
}

/// Makes `connection.send(&Stop { .. }.into())` read well, boxed or not.
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
    Hello(Hello) Refuse(Refuse) Propose(Propose) Accept(Accept) Attached(Attached) Start(Start)
    Interval(IntervalEnded) Sent(Sent) Stop(Stop) Outcome(Outcome) Settings(Settings)
    SettingsAnswer(SettingsAnswer) ClockQuestion(ClockQuestion) ClockAnswer(ClockAnswer)
    Heartbeat(Heartbeat) Bye(Bye) Figures(Figures) Stamps(Stamps)
}

/// The server cannot or will not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refuse {
    /// What the client is to tell its user.
    pub problem: Problem,
    /// The exit code that fits it.
    pub exit_code: u8,
    /// Whether asking again later may help.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_pass: bool,
}

/// What the client wants to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Propose {
    /// Every option; what is absent is the server's to settle at its end.
    pub plan: Plan,
    /// The client's host.
    #[serde(default)]
    pub host: Host,
}

/// The server will run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accept {
    /// The plan with what the far end settled.
    pub plan: Plan,
    /// How the server's threads will wait.
    pub wait: Wait,
    /// On which processors they will run; empty: any.
    #[serde(default)]
    pub cpus: Cpus,
    /// One grant for each flow, in the order in which they are to be opened.
    pub flows: Vec<FlowGrant>,
    /// What the server could not do as asked, or finds to speak against the figures to come.
    #[serde(default)]
    pub doubts: Vec<Doubt>,
    /// Why its threads will wait like that, when nobody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Threads that will move the flows of a direction there; absent: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

/// Leave to open one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowGrant {
    /// Number of the flow, from 1, unique within the run.
    pub id: u32,
    /// Which way its payload goes.
    pub direction: Direction,
    /// What it opens with.
    pub token: Token,
    /// The port of the socket that was opened for it alone; absent: the server's own port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Every flow has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {}

/// The run begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// How the client's threads wait; absent: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// On which processors they run, empty for any; absent: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// How many of them move the flows of a direction; absent: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

/// An interval of a direction is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntervalEnded {
    /// What its sender counted in it. Times count from its sender's start.
    pub interval: Interval,
}

/// What the sender of a direction sent in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Its flows.
    pub flows: Vec<FlowTotal>,
}

/// What one flow sent in all, omitted time included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTotal {
    /// Number of the flow.
    pub id: u32,
    /// Payload bytes that the kernel took.
    pub bytes: u64,
    /// UDP: datagrams that the kernel took. TCP: absent, its packets are the kernel's own.
    #[serde(default)]
    pub packets: Option<u64>,
}

/// The run ends before its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Why, for people.
    #[serde(default)]
    pub why: String,
}

/// All that one end found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Which end this is.
    pub role: Role,
    /// Its host.
    #[serde(default)]
    pub host: Host,
    /// What its measuring threads cost; absent when the kernel did not tell.
    #[serde(default)]
    pub cpu: Option<CpuCost>,
    /// What its flows took in memory; absent when nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryCost>,
    /// Its flows, with what this end knows of each.
    #[serde(default)]
    pub streams: Vec<FlowFigures>,
    /// Full distributions by name.
    #[serde(default)]
    pub histograms: BTreeMap<String, HistogramData>,
    /// Where this end saw packets lost.
    #[serde(default)]
    pub losses: Vec<Loss>,
    /// The counters of this end's host, before and after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<PlaceCounter>,
    /// What verifying costs there; absent when nobody asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// What its system calls took; empty when nobody asked.
    #[serde(default, skip_serializing_if = "Calls::is_empty")]
    pub calls: Calls,
    /// What they were timed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_clock: Option<CallClock>,
    /// Its answers above the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowAnswer>,
    /// What speaks against its figures.
    #[serde(default)]
    pub doubts: Vec<Doubt>,
    /// Whether it was ended before its time.
    #[serde(default)]
    pub interrupted: bool,
    /// Time that it counted, omitted time left out, in nanoseconds.
    pub duration_ns: u64,
}

/// Some of an end's flows: with more of them than one frame may hold, OUTCOME has the last ones, and
/// frames of this type before it have all others. Up to [`FLOWS_A_FRAME`](super::FLOWS_A_FRAME) there is none, as an
/// earlier version expects it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// With what this end knows of each.
    pub flows: Vec<FlowFigures>,
}

/// A flow and its direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowFigures {
    /// Which way its payload went.
    pub direction: Direction,
    /// Its figures; those that only the other end can know are absent.
    pub stream: Stream,
}

/// Settings that the client wants at the far end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Values by the settings' names.
    pub wanted: BTreeMap<String, String>,
}

/// What became of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsAnswer {
    /// Those that were made, with the values that they really have now.
    #[serde(default)]
    pub granted: BTreeMap<String, String>,
    /// Those that were not, each with the reason.
    #[serde(default)]
    pub refused: BTreeMap<String, String>,
}

/// What time is it there?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockQuestion {
    /// The asking end's monotonic clock when it asked, in ns.
    pub t1_ns: u64,
}

/// The answer to a [`ClockQuestion`]: with its time of arrival it makes a
/// [`Sample`](super::clock::Sample).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnswer {
    /// The question's own time.
    pub t1_ns: u64,
    /// The answering end's monotonic clock when the question arrived, in ns.
    pub t2_ns: u64,
    /// The answering end's monotonic clock when it answered, in ns.
    pub t3_ns: u64,
}

/// Still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {}

/// Nothing more will come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {}

/// What the answering end noted of round trips; a long list comes in several of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamps {
    /// Number of the flow.
    pub flow: u32,
    /// Trips, ascending in number: the number, and times of the answering end's monotonic clock in
    /// ns, 0 where not known: arrived, thread to be woken, thread running, received, handed over,
    /// in the queueing discipline, in the driver, send call returned.
    #[serde(default)]
    pub trips: Vec<[u64; 9]>,
    /// Receive work of its processors: from, to (both in ns), processor.
    #[serde(default)]
    pub work: Vec<[u64; 3]>,
    /// Its system calls: from, to (both in ns), which call and what it found (the call's place in
    /// the table of calls times three, plus 0 ready, 1 waited, 2 empty), thread.
    #[serde(default)]
    pub calls: Vec<[u64; 4]>,
    /// What it could not note, and why.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What its network device stamped in place of its kernel, in the first frame of a flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceStamps>,
}

/// What a network device stamped by its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStamps {
    /// When packets left.
    pub departures: bool,
    /// When they arrived.
    pub arrivals: bool,
    /// How far these times may be off, in ns.
    pub error_ns: u64,
}
