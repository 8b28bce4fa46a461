//! The comparisons, by what they are about.

pub mod latency;
pub mod memory;
pub mod throughput;
