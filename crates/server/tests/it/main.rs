//! Servers with clients of this program and of others.

#[path = "../common/mod.rs"]
mod common;

mod content;
mod hostile;
mod kernel_drops;
mod key;
mod pace;
mod pair;
mod scale;
mod stages;
mod third_party;
mod third_party_hostile;
