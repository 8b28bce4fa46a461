//! linerate's own control protocol: two ends agree on a run, start it together and exchange their
//! results.
//!
//! # On the wire
//!
//! A control connection is a TCP connection of its own; payload never flows on it. Each end sends
//! an *opening*, then *frames*:
//!
//! ```text
//! opening   01 'l' 'r' c0 ff 'c' 't' 'l' | security, 1 byte (0: plain, 1: Noise; others reserved)
//! frame     length u32 of what follows | type u16 | body, MessagePack map with named fields
//! ```
//!
//! Numbers are big-endian. A length above [`HELLO_LIMIT_BYTES`] is an error until the peer's HELLO
//! was accepted; a length above [`FRAME_LIMIT_BYTES`] is always one. Memory grows with the bytes
//! that have arrived, never with an announced length, and the unpacked size of a body is bounded
//! too (see `body.rs`). With security 1 a handshake follows, and the frames are inside Noise
//! messages (see `noise.rs`). The first nine bytes are the same in both cases, so a server can
//! always classify the connection.
//!
//! # State by state
//!
//! 1. **Opening.** The client sends its opening and HELLO at once. The server sends nothing until
//!    it has read both; then it sends its own. Anything else is an error and ends the connection.
//!    If only one end has a key, a server sends its own opening and closes; if the keys differ, a
//!    message of length 0 follows the opening.
//! 2. **Version.** Both ends compute the same version: the highest one in both ranges. Without one,
//!    each end has the range of the other and reports which side to update. From here on the server
//!    may send REJECT instead of the expected frame, and closes after it.
//! 3. **Queries**, optional: CLOCK_REQUEST is answered by CLOCK_REPLY ([`clock_offset`]),
//!    SETTINGS (for the server's host) by SETTINGS_REPLY.
//! 4. **Proposal.** The client sends PROPOSE. The server chooses what the plan leaves open and
//!    sends ACCEPT with one token for each flow, or REJECT.
//! 5. **Attaching.** The client opens the flows, each with its token ([`flow`]). On UDP it repeats
//!    the opening until the reply arrives, and the server replies each time, until START. When
//!    every flow has arrived, the server sends ATTACHED.
//! 6. **Running.** The client sends START with its own settings, and both ends begin. Each end
//!    sends INTERVAL for each direction that it counts. The sender of a direction sends its totals
//!    with SENT, so that the receiver can detect the end of the data. STOP from either end ends the
//!    run early.
//! 7. **Results.** Each end sends RESULTS when its own figures are complete. With more flows than
//!    [`FLOWS_PER_FRAME`] it sends FIGURES with the others first, and SENT is split in the same
//!    way.
//!    If round trips were timestamped, the responding end sends its TIMESTAMPS first. The client
//!    may repeat the clock exchange. It then sends BYE and closes: one connection carries one run.
//!
//! An end that has sent nothing for a while sends HEARTBEAT, so that silence means a lost peer; it
//! extends no deadline of a state. The session defines that interval and handles a frame that
//! arrives in the wrong state after HELLO; [`ControlCodec`] implements steps 1 and 2 and the
//! framing.
//!
//! # Compatibility
//!
//! Frames of unknown types and unknown fields are skipped; fields added later have a default; no
//! field is renamed or given another meaning on the wire. An older reader cannot parse a new value
//! of an old field (such as a new wait mode): it is announced in HELLO's `features` and sent only
//! to peers that announce it. The version number covers changes that are not possible in this way.

pub mod clock_offset;

pub mod flow;

mod body;
mod connection;
mod error;
mod frame;
mod hello;
mod magic;
mod noise;
mod token;

pub use body::{DEPTH_LIMIT, FLOWS_PER_FRAME, MAP_LIMIT, VALUE_LIMIT};
pub use connection::{
    BACKLOG_LIMIT_BYTES, ControlCodec, FIRST_FRAME_LIMIT_BYTES, READ_AHEAD_BYTES,
    is_first_frame_complete,
};
pub use error::{BodyError, ControlError};
pub use frame::{
    Accept, Bye, ClockReply, ClockRequest, DeviceTimestamping, EndResults, FlowFigures,
    FlowFiguresBatch, FlowGrant, FlowTotal, FlowsAttached, Frame, Heartbeat, IntervalReport,
    Propose, Reject, RequestedSettings, ResponderTimestamps, SenderTotals, SettingsReply, StartRun,
    StopRun,
};
pub use hello::{Hello, PROTOCOL_MAX, PROTOCOL_MIN, Security, VersionRange};
pub use magic::{CONTROL_MAGIC, DATA_MAGIC, OpeningKind, PROTOCOL, REPLY_MAGIC};
pub use noise::{
    KEY_BYTES, NoiseCredentials, PresharedKey, PresharedKeyError, SECRET_MAX_BYTES,
    SECRET_MIN_BYTES,
};
pub use token::{FlowToken, TOKEN_BYTES};

/// Longest frame that is read before the peer's HELLO was accepted: type and body, in bytes.
///
/// A HELLO is about 100 bytes; an unidentified peer has no reason to send much more.
pub const HELLO_LIMIT_BYTES: usize = 4 << 10;

/// Longest frame: type and body, in bytes.
///
/// The longest real one is RESULTS: a full histogram is 28,000 buckets of at most 19 bytes, 0.5
/// MiB, and a flow is at most 3 KiB.
pub const FRAME_LIMIT_BYTES: usize = 16 << 20;
