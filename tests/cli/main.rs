//! The real binary on one host.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/experiment.rs"]
mod experiment;
#[path = "../common/schema.rs"]
mod schema;

mod browser;
mod contract;
mod documents;
mod errors;
mod experiments;
mod help;
mod latency;
mod quota;
mod runs;
mod sweep;
mod tui;
