//! Subcommands, one module each: arguments become a plan, the libraries run it, `report` prints the
//! result.

pub mod capacity;
pub mod compare;
pub mod completions;
pub mod demo;
pub mod doctor;
pub mod explain;
pub mod forward;
pub mod generate;
mod generator_ports;
pub mod lab;
mod lab_link;
pub mod latency;
pub mod man;
mod measure;
pub mod measuring_command;
mod rate_search;
pub mod report;
pub mod run;
#[cfg(feature = "history")]
pub mod runs;
pub mod series;
pub mod server;
pub mod stack;
mod stage_passes;
pub mod sweep;
pub mod target_code;
pub mod throughput;
pub mod ttcp;
pub mod tune;
