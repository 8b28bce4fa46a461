//! Trying remedies: which half of a pair comes first and when there are enough pairs, which point of a
//! matrix is next, which setting of a knob to try, and what became of it.
//!
//! What is tried next is decided from figures that are handed in; nothing here measures anything.
#![forbid(unsafe_code)]

mod error;

pub mod guard;
pub mod interleave;
pub mod journal;
pub mod knob;
pub mod matrix;
pub mod over;
pub mod point;
pub mod search;
pub mod snippet;

pub use error::TuneError;
