//! The stack with simulated and real peers.

#[path = "../common/mod.rs"]
mod common;

mod acknowledgements;
mod announcements;
mod challenges;
mod congestion;
mod datagrams;
mod echoes;
mod ends;
mod floods;
mod half_open;
mod headers;
mod kernel;
mod late;
mod neighbors;
mod pair;
mod paths;
mod probes;
mod smaller_paths;
mod streams;
mod windows;
