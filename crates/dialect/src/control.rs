//! Our own control protocol: how two `linerate` ends agree on a run, start it together and tell
//! each other what they counted.
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
//! was accepted, one above [`FRAME_LIMIT_BYTES`] always; memory grows with what has arrived, never
//! with what a length announces, and what a body unpacks to is bounded too (see `body.rs`). With
//! security 1 a handshake follows and the frames are inside Noise messages (see `seal.rs`): the
//! first nine bytes stay what they are, so a server always knows whom it talks to.
//!
//! # State by state
//!
//! 1. **Opening.** The client sends its opening and HELLO at once. The server says nothing until it
//!    has read both; then it answers with its own. Anything else is an error and ends the
//!    connection. Where one end has a key and the other none, a server answers with its own
//!    opening and closes; where the keys differ, a message of length 0 follows it.
//! 2. **Settled.** Both compute the same version: the highest that both ranges have. Without one,
//!    each end has the other's range and says which side to update. From here on the server may
//!    send REFUSE instead of what was expected, and closes after it.
//! 3. **Asking**, if the client likes: CLOCK_QUESTION is answered by CLOCK_ANSWER ([`clock`]),
//!    SETTINGS (about the far end) by SETTINGS_ANSWER, which today refuses each by its name.
//! 4. **Proposed.** The client sends PROPOSE. The server settles what was left open and sends
//!    ACCEPT with one token for each flow, or REFUSE.
//! 5. **Attaching.** The client opens the flows, each with its token ([`flow`]); on UDP it repeats
//!    that until the answer comes, and the server answers each time, until START. When every flow
//!    has arrived the server sends ATTACHED.
//! 6. **Running.** The client sends START with what it settled for itself, and both ends begin.
//!    Either end sends INTERVAL for each direction that it counts. Whoever sends a direction says
//!    with SENT what it sent in all, so that the receiver knows when it has everything. STOP ends
//!    the run early, from either end.
//! 7. **Done.** Each end sends OUTCOME when it has all of its own; with more flows than
//!    [`FLOWS_A_FRAME`] it sends FIGURES with the others before, and SENT, too, comes in several
//!    frames. Where round trips were stamped, the answering end sends its STAMPS before. The client
//!    may ask for the time once more. It then sends BYE and closes: one connection carries one run.
//!
//! An end that has sent nothing for a while sends HEARTBEAT, so that silence means a lost peer; it
//! prolongs no state. How long a while is, and what to do about a frame that comes in the wrong
//! state after HELLO, is the session's business; [`Connection`] sees to steps 1 and 2 and to the framing.
//!
//! # How it grows
//!
//! Frames of unknown types and unknown fields are skipped; fields added later have a default;
//! nothing is renamed or given another meaning. A new value of an old field (a new way of waiting)
//! is something that an older reader cannot take: HELLO's `features` announce it, and it is sent
//! only to those who announced it.
//! The version counts what cannot be done this way.

pub mod clock;
pub mod flow;

mod body;
mod connection;
mod error;
mod frame;
mod hello;
mod magic;
mod seal;
mod token;

pub use body::{DEPTH_LIMIT, FLOWS_A_FRAME, MAP_LIMIT, VALUE_LIMIT};
pub use connection::{BACKLOG_LIMIT_BYTES, Connection, READ_AHEAD_BYTES};
pub use error::{BodyError, ControlError};
pub use frame::{
    Accept, Attached, Bye, ClockAnswer, ClockQuestion, DeviceStamps, Figures, FlowFigures,
    FlowGrant, FlowTotal, Frame, Heartbeat, IntervalEnded, Outcome, Propose, Refuse, Sent,
    Settings, SettingsAnswer, Stamps, Start, Stop,
};
pub use hello::{Hello, PROTOCOL_MAX, PROTOCOL_MIN, Security, Versions};
pub use magic::{ANSWER_MAGIC, CONTROL_MAGIC, DATA_MAGIC, DIALECT, Opening};
pub use seal::{KEY_BYTES, Key, KeyError, Proof, SECRET_MAX_BYTES, SECRET_MIN_BYTES};
pub use token::{TOKEN_BYTES, Token};

/// Longest frame that is read before the peer's HELLO was accepted: type and body, in bytes.
///
/// A HELLO is about 100 bytes; whoever sends more is nobody we know yet.
pub const HELLO_LIMIT_BYTES: usize = 4 << 10;

/// Longest frame ever: type and body, in bytes.
///
/// The longest real one is an OUTCOME: a full histogram is 28,000 buckets of at most 19 bytes,
/// 0.5 MiB, and a flow is at most 3 KiB.
pub const FRAME_LIMIT_BYTES: usize = 16 << 20;
