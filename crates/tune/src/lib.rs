//! Decisions of A/B comparisons, sweeps and knob searches, and guarded changes of host settings.
//!
//! `pair_scheduler` orders the runs of a comparison and decides when there are enough. `matrix`
//! walks the points of a sweep, `search` proposes knob values. All three decide from figures passed
//! in; this crate measures nothing. `guard` and `journal` change host settings and restore them.
#![forbid(unsafe_code)]

mod error;

pub mod finding_knobs;
pub mod guard;
pub mod journal;
pub mod knob;
pub mod matrix;
pub mod pair_scheduler;
pub mod search;
pub mod snippet;
pub mod sweep_axis;

pub use error::TuneError;
