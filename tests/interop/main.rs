//! The real binary with programs of others.

#[path = "../common/mod.rs"]
mod common;

mod peers;
mod preload;
