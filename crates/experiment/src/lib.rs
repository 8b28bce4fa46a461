//! Whole experiments from a file: a network to build, far ends to start, commands to run at every
//! combination of knobs, and what their figures must look like.
//!
//! A point is measured by the same command lines that people type, run on a host of the lab, so each row
//! of a table can be repeated by hand. Nothing here measures by itself or prints.
#![forbid(unsafe_code)]

mod again;
mod check;
mod doubt;
mod error;
pub mod file;
pub mod rule;

mod judge;
mod outcome;
mod place;
mod point;
mod process;
mod run;
mod runner;
pub mod shipped;

pub use check::{MOST_REPEATS, is_name};
pub use error::ExperimentError;
pub use file::Experiment;
pub use place::{FarHost, Place};
pub use process::{PARENT_VARIABLE, die_with_parent};
pub use run::{Listener, Measured, Options, Progress, run};
