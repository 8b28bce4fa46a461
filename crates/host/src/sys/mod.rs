//! System calls behind safe functions; the only `unsafe` of this crate.

pub mod clock;
pub mod cpu;
pub mod cpuid;
pub mod ethtool;
pub mod ethtool_set;
pub mod namespace;
pub mod sched;
pub mod signal;
pub mod socket;
pub mod thread;
pub mod timestamping;
pub mod trial;
pub mod wait;
