//! Numbers: units, histograms, intervals, rank tests, change points, regression.
//!
//! Nothing here reads a clock, a file or a socket.
#![forbid(unsafe_code)]

pub mod change_points;
pub mod histogram;
pub mod power;
pub mod rank_tests;
pub mod size_costs;
pub mod statistics;
pub mod transit_variation;
pub mod units;
