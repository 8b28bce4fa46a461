//! Experiments from a TOML file: a network to build, remote programs to start, commands to measure
//! at every combination of knob values, and assertions about their figures.
//!
//! A point is measured by ordinary command lines of this program, run on a host of the lab, so each
//! table row can be reproduced by hand. This crate measures and prints nothing itself.
#![forbid(unsafe_code)]

mod caveats;
mod conclusion;
mod error;
mod evaluation;
pub mod file;
mod retry;
pub mod rule;
mod validation;

pub mod builtin;
mod location;
mod point;
mod point_state;
mod process;
mod remote_host;
mod results;
mod run;
mod run_options;
mod runner;
mod verdict;

pub use error::ExperimentError;
pub use file::Experiment;
pub use location::RunLocation;
pub use point_state::PointMeasurement;
pub use process::{EventListener, PARENT_VARIABLE, die_with_parent};
pub use remote_host::RemoteHost;
pub use run::{Progress, run};
pub use run_options::RunOptions;
pub use validation::{MAX_REPEATS, is_valid_name};
