//! Subcommands, one module each: arguments become a plan, the libraries run it, `report` prints the result.

pub mod capacity;
pub mod compare;
pub mod completions;
pub mod demo;
pub mod doctor;
pub mod explain;
mod explained;
pub mod forward;
mod frames;
pub mod generate;
pub mod lab;
mod lab_link;
pub mod latency;
pub mod man;
mod measure;
pub mod measured;
pub mod report;
pub mod run;
#[cfg(feature = "history")]
pub mod runs;
mod search;
pub mod series;
pub mod server;
pub mod stack;
pub mod sweep;
pub mod target_code;
pub mod throughput;
pub mod ttcp;
pub mod tune;
