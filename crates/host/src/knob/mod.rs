//! Settings of this host: held while a guard lives, or read and written as text.

pub mod idle;
pub mod interface;
pub mod queues;

mod ethtool;

pub use ethtool::{coalescing, rings, set_coalescing, set_rings};
