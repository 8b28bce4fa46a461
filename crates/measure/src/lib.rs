//! How a number is made: transports, workloads, measuring threads, and the conversation of the two
//! ends.
//!
//! What measures does not print: it emits [`linerate_metric::event`]s and gives records, which other
//! rooms render. Control and payload use separate connections; threads that move payload allocate
//! nothing, take no lock, and read no clock that their number does not need.
#![forbid(unsafe_code)]

mod choose;
mod meter;
mod pacing;
mod sequence;

mod flow;

pub mod transport;
pub mod workload;

mod end;
mod lane;
mod outcome;
mod series;

mod assemble;
mod error;
mod session;

pub use error::MeasureError;
pub use session::{Client, Emit, Family, Grant, PEER_PATIENCE, Server, ServerOptions, agent};
