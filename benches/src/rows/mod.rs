//! The comparisons, by what they are about.

pub mod forward;
pub mod growth;
pub mod guard;
pub mod hops;
pub mod latency;
pub mod memory;
pub mod stack;
pub mod throughput;
pub mod xdp;
