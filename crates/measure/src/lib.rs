//! Measuring engine: transports, workloads, worker threads, and the control protocol between client
//! and server.
//!
//! This crate prints nothing. It emits [`linerate_record::event`]s and returns records, which other
//! crates render. Control and payload use separate connections. Threads that move payload do not
//! allocate or lock, and read the clock only where a figure needs it.
#![forbid(unsafe_code)]

pub mod capacity;
pub mod forward;
pub mod generate;
pub mod rate_search;

mod delay_variation;
mod flow_counters;
mod pacer;
mod payload_pattern;
mod sequence_tracker;
mod wait_policy;

mod flow;
mod timestamps;

pub mod netstack;
pub mod transport;
pub mod workload;

mod loss;

mod coordinator;
mod cpu_cost;
mod flow_memory;
mod interval_series;
mod rate_accuracy;
mod result_builder;
mod tcp_info_sums;
mod worker;
mod worker_costs;

mod end_limits;
mod error;
mod record_assembly;
mod session;

pub mod interop;

pub use error::MeasureError;
pub use interop::handlers::handler_names;
pub use linerate_protocol::amplification_guard::IpNetwork as AddressRange;
pub use linerate_protocol::control::{
    PresharedKey, PresharedKeyError, SECRET_MAX_BYTES, SECRET_MIN_BYTES,
};
pub use loss::{LabNetwork, LiveLoss, LiveLossView};
pub use session::{
    AddressFamily, AppliedSettings, CLIENT_SILENCE_TIMEOUT, Client, EventCallback, ExtraPort,
    GRANTS, Grant, InteropOptions, RemoteSettings, RemoteTuning, Server, ServerOptions,
    TIME_LIMIT_NS, agent,
};
