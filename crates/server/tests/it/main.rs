//! Servers with clients of this program and of others.

#[path = "../common/mod.rs"]
mod common;

mod content;
mod foreign;
mod foreign_hostile;
mod hostile;
mod kernel_drops;
mod key;
mod pace;
mod pair;
mod scale;
mod stages;
