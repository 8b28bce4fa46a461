//! The user-space stack as one end of a run, and as a host with services.
//!
//! A stack has one owner: a thread that lives as long as the stack. It opens the port, polls the
//! stack, and between START and the end of a run moves payload as a worker. Everything else runs in
//! the [`background`] of that thread: the bytes of the control connection, carried by a [`bridge`]
//! to
//! the session's thread, and the [`services`].

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
