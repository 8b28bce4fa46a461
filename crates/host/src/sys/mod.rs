//! System calls behind safe functions; the only `unsafe` of this crate.

pub mod clock;
pub mod cpu;
pub mod ethtool_set;
pub mod namespace;
pub mod socket;
