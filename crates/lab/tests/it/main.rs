//! Labs, and the processes that hold them.

#[path = "../common/mod.rs"]
mod common;

mod holder;
mod lab;
