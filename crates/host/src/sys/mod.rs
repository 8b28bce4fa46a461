//! System calls behind safe functions; the only `unsafe` of this crate.

pub mod clock;
pub mod counter;
pub mod cpu;
pub mod cpuid;
pub mod datagram;
pub mod descriptors;
pub mod device_stamps;
pub mod ethtool;
pub mod ethtool_set;
pub mod memory;
mod message;
pub mod messages;
pub mod namespace;
pub mod pacing;
pub mod perf;
pub mod sched;
pub mod signal;
pub mod skip;
pub mod socket;
pub mod stamp;
pub mod thread;
pub mod ticks;
pub mod timestamping;
pub mod trial;
pub mod uring;
pub mod wait;
