//! Measuring engine: transports, workloads, worker threads, and the control protocol between client
//! and server.
//!
//! This crate prints nothing. It emits [`linerate_metric::event`]s and returns records, which other
//! crates render. Control and payload use separate connections. Threads that move payload do not
//! allocate or lock, and read the clock only where a figure needs it.
#![forbid(unsafe_code)]

pub mod capacity;
pub mod forward;
pub mod generate;
pub mod search;

mod arrival;
pub mod carrier;
mod choose;
mod meter;
mod numa;
mod pacing;
mod pattern;
mod sequence;

mod flow;
mod stamped;

pub mod stack;
pub mod transport;
pub mod workload;

mod loss;

mod cost;
mod end;
mod hire;
mod lane;
mod memory;
mod outcome;
mod series;
mod tcp_series;
mod threads;
mod timing;

mod assemble;
mod error;
mod limits_seen;
mod session;

pub mod peers;

pub use error::MeasureError;
pub use linerate_dialect::guard::Network as AddressRange;
pub use loss::{Lookout, Network, SeenPlace};
pub use peers::serve::dialects;
pub use session::{
    Also, Client, Emit, Family, FarSettings, GRANTS, Grant, Held, Key, KeyError, Maker,
    PEER_PATIENCE, PeerOptions, SECRET_MAX_BYTES, SECRET_MIN_BYTES, Server, ServerOptions,
    TIME_LIMIT_NS, agent,
};
