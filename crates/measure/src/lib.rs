//! How a number is made: transports, workloads, measuring threads, and the conversation of the two
//! ends.
//!
//! What measures does not print: it emits [`linerate_metric::event`]s and gives records, which other
//! rooms render. Control and payload use separate connections; threads that move payload allocate
//! nothing, take no lock, and read no clock that their number does not need.
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
