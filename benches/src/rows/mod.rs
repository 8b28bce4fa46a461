//! Comparisons by topic.

pub mod forward;
pub mod growth;
pub mod guard;
pub mod hops;
pub mod latency;
pub mod memory;
pub mod stack;
pub mod throughput;
pub mod xdp;
