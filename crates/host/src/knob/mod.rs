//! Settings of this host: held while a guard lives, or read and written as text.

pub mod addresses;
pub mod flow;
pub mod idle;
pub mod interface;
pub mod queues;
pub mod rss;

mod ethtool;

pub use ethtool::{channels, coalescing, rings, set_channels, set_coalescing, set_rings};
