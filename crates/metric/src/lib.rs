//! What a number is: units, histograms, statistics, the plan of a run and its versioned record.
//!
//! Nothing here reads a clock, a file or a socket. Tables, pages, comparisons and findings are made
//! from [`record::Record`]s alone, so that a record from another machine can be read anywhere.
#![forbid(unsafe_code)]

pub mod units;

pub mod histogram;
pub mod statistics;

pub mod event;
pub mod facts;
pub mod plan;
pub mod record;
pub mod set;

pub mod exit;
pub mod expect;
