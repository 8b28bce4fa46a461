//! The plan of a run, its events, and its versioned record.
//!
//! Start at [`plan::Plan`] and [`record::Record`]. [`ids`] has the ids of causes, caveats and loss
//! points, and [`exit_codes`] the exit codes of the process. Units and statistics are in
//! `linerate-stats`.
//!
//! Nothing here reads a clock, a file or a socket. Tables, reports, comparisons and findings are
//! made from [`record::Record`]s only, so a record from another machine can be evaluated anywhere.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod earlier_names;
mod ends;

pub mod load;
pub mod waiting_costs;

pub mod comparison;
pub mod sweep;

pub mod call_times;
pub mod capacity;
pub mod command_line;
pub mod cost;
pub mod device_timestamps;
pub mod event;
pub mod facts;
pub mod finding;
pub mod forward;
pub mod generate;
pub mod ids;
pub mod json_pointer;
pub mod pace;
pub mod plan;
pub mod record;
pub mod round_trip;
pub mod run_set;
pub mod stack;
pub mod throttling;
pub mod timeline;
pub mod tuning;

pub mod exit_codes;
pub mod expect;
pub mod experiment;
pub mod figure;
