//! Our own stack as an end of a run, and as a host that serves others.
//!
//! A stack has one owner, a thread that lives as long as the stack is needed: it opens the port,
//! turns the stack, and between START and the end of a run moves payload as a lane. What is not measured
//! goes over the same stack in the [`background`]: bytes of the control connection, through a pair of
//! sockets to the thread that talks ([`bridge`]), and [`services`] for others.

pub mod background;
pub mod bridge;
pub mod doubts;
pub mod driver;
pub mod facts;
pub mod host;
pub mod open;
#[cfg(test)]
pub mod pair;
pub mod port_state;
pub mod refuse;
pub mod schedule;
pub mod services;
mod sessions;
mod thread;

pub use thread::{StackHandle, StackThread, gone};
