//! iperf3: one control connection for each test, data flows of their own, results as JSON.
//!
//! # On the wire (numbers are big-endian)
//!
//! ```text
//! client to server   cookie, 37 bytes: 36 characters and a NUL
//! server to client   09                       now say what you want
//! client to server   length u32 | parameters  JSON
//! server to client   0a                       now open your flows
//!                    (TCP: one connection each, opened by the same cookie;
//!                     UDP: one at a time, 4 bytes each way)
//! server to client   01 02                    start
//! client to server   04                       the end, in either direction
//! server to client   0d                       results
//! client to server   length u32 | results     JSON
//! server to client   length u32 | results     JSON
//! server to client   0e                       show them
//! client to server   10                       done
//! ```
//!
//! Instead of what was expected the server may say `ff` (busy) and `fe` with two numbers (error, errno),
//! and each end may say that it stops: `0b` (server), `0c` (client).
//!
//! # What a driver does
//!
//! [`Server`] and [`Client`] are the two ends of the control connection. Bytes and times go in; events
//! say what the driver has to do; bytes to be written come out. Data flows are the driver's: their
//! order, numbers and directions are in [`Params::flows`], their first bytes in [`Cookie`] and [`udp`].
//! `tests/iperf3_driver` has a complete one of each end.
//!
//! Two habits of stock 3.12 that a driver must know:
//!
//! - The client says `04` while bytes are still on their way, and a stock server closes at once. Ours
//!   can do better: the client's results come first and say how much it sent, so the flows can be
//!   read up to there before [`Server::results`] answers.
//! - In a flow towards the client it reads until `0d` arrives; datagrams must be exactly as long as
//!   asked for, because it glues shorter ones together.
//!
//! Many tests at a time on one port: over TCP the cookie of a connection tells whose flow it is. A UDP
//! hello has no name, only an address: while one test waits for flows ([`Server::waits_for_flows`]),
//! another of the same address waits with [`Server::accept`], which a client does not notice.
//!
//! # What is not here
//!
//! Authentication: the token of a client is handed over as it came ([`Params::auth_token`]); making and
//! checking one needs RSA. SCTP: refused with the code that says so.

pub mod udp;

mod client;
mod cookie;
mod error;
mod far;
mod flow;
mod inbox;
mod json;
mod params;
mod refusal;
mod results;
mod server;
mod state;

pub use client::{Client, ClientEvent};
pub use cookie::{COOKIE_BYTES, Cookie, DIALECT};
pub use error::{Iperf3Error, JsonError, Phase};
pub use far::far_report;
pub use flow::{Flow, Way, flow_id};
pub use inbox::READ_AHEAD_BYTES;
pub use params::{Counters, PARALLEL_LIMIT, Params, Protocol};
pub use refusal::{BUSY, Refusal};
pub use results::{Cpu, FlowResult, RESULTS_LIMIT_FLOWS, Results};
pub use server::{Server, ServerEvent};
pub use state::State;

/// Longest parameters that are read, in bytes: what stock servers take since 3.14.
pub const PARAMS_LIMIT_BYTES: usize = 8 << 10;

/// Longest results of a server that are read, in bytes. They are about 130 bytes a flow, and with
/// `--get-server-output` also 80 bytes a line of the server's report: 4 MiB are 50,000 lines. Reading
/// the worst of them takes less than eight times that for a moment (`tests/iperf3_memory.rs`).
pub const RESULTS_LIMIT_BYTES: usize = 4 << 20;

/// Longest results of a client that are read, in bytes: they have no report, only flows.
pub const CLIENT_RESULTS_LIMIT_BYTES: usize = 256 << 10;

/// Levels of nesting in JSON of a peer: a whole report of a server (`server_output_json`) has six.
pub const DEPTH_LIMIT: usize = 16;
