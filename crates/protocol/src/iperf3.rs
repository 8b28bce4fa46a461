//! iperf3: one control connection for each test, data flows of their own, results as JSON.
//!
//! # On the wire (numbers are big-endian)
//!
//! ```text
//! client to server   cookie, 37 bytes: 36 characters and a NUL
//! server to client   09                       send your parameters
//! client to server   length u32 | parameters  JSON
//! server to client   0a                       open your flows
//!                    (TCP: one connection each, which opens with the same cookie;
//!                     UDP: one at a time, 4 bytes in each direction)
//! server to client   01 02                    start
//! client to server   04                       the end, in either direction
//! server to client   0d                       results
//! client to server   length u32 | results     JSON
//! server to client   length u32 | results     JSON
//! server to client   0e                       display them
//! client to server   10                       done
//! ```
//!
//! Instead of the expected byte the server may send `ff` (busy), or `fe` with two numbers (error,
//! errno). Each end may terminate the test: `0b` (server), `0c` (client).
//!
//! # Use
//!
//! [`Iperf3Server`] and [`Iperf3Client`] are the two ends of the control connection. Bytes and
//! times go in; events for the driver and bytes to write come out. The driver owns the data flows:
//! their order, numbers and directions are in [`Iperf3Params::flows`], their first bytes in
//! [`Cookie`] and [`udp`].
//!
//! Two properties of upstream's 3.12 that a driver must handle:
//!
//! - The client sends `04` while bytes are still on their way, and upstream's server closes at
//!   once.
//!   Ours can do better: the client's results arrive first and contain how much it sent, so the
//!   flows can be read up to that amount before [`Iperf3Server::send_results`] is called.
//! - In a flow towards the client, the client reads until `0d` arrives. Datagrams must have exactly
//!   the requested length, because it joins shorter ones.
//!
//! With many tests at a time on one port, the cookie identifies the flow's test over TCP. A UDP
//! hello has only an address: while one test waits for flows ([`Iperf3Server::waits_for_flows`]),
//! delay [`Iperf3Server::accept`] of another test from the same address; its client does not
//! notice.
//!
//! # Not implemented
//!
//! Authentication: the client's token is passed on unchanged ([`Iperf3Params::auth_token`]);
//! creating or checking one needs RSA. SCTP: rejected with the error code for it.

pub mod udp;

mod client;
mod control_buffers;
mod cookie;
mod error;
mod error_code;
mod flow;
mod json;
mod params;
mod remote_report;
mod results;
mod server;
mod sniff;
mod state;

pub use client::{Iperf3Client, Iperf3ClientEvent};
pub use control_buffers::READ_AHEAD_BYTES;
pub use cookie::{COOKIE_BYTES, Cookie};
pub use error::{Iperf3Error, Iperf3Phase, JsonError};
pub use error_code::{BUSY, Iperf3ErrorCode};
pub use flow::{Iperf3Direction, Iperf3Flow, flow_id};
pub use params::{CounterWidth, Iperf3Params, Iperf3Transport, PARALLEL_LIMIT};
pub use remote_report::remote_report;
pub use results::{CpuPercent, FlowResult, Iperf3Results, RESULTS_LIMIT_FLOWS};
pub use server::{Iperf3Server, Iperf3ServerEvent};
pub use sniff::PROTOCOL;
pub use state::Iperf3State;

/// Longest parameters that are read, in bytes: the limit of upstream servers since 3.14.
pub const PARAMS_LIMIT_BYTES: usize = 8 << 10;

/// Longest results of a server that are read, in bytes.
///
/// Results have about 130 bytes per flow, and with `--get-server-output` also 80 bytes per line of
/// the server's report: 4 MiB are 50,000 lines. Parsing the worst case takes less than eight times
/// the size for a moment (`tests/iperf3_memory.rs`).
pub const RESULTS_LIMIT_BYTES: usize = 4 << 20;

/// Longest results of a client that are read, in bytes: they have only flows, no report.
pub const CLIENT_RESULTS_LIMIT_BYTES: usize = 256 << 10;

/// Maximum levels of nesting in a peer's JSON: a complete server report (`server_output_json`) has
/// six.
pub const DEPTH_LIMIT: usize = 16;
