//! The user-space stack as one end of a run, and as a host with services.
//!
//! A stack has one owner: a thread that lives as long as the stack. It opens the port, polls the
//! stack, and between START and the end of a run moves payload as a worker. Everything else runs in
//! the [`background`] of that thread: the bytes of the control connection, carried by a [`bridge`]
//! to
//! the session's thread, and the [`services`].

pub mod background;
pub mod bridge;
pub mod open_stack;
pub mod port_driver;
pub mod port_state;
pub mod rejections;
pub mod service_host;
pub mod services;
mod sessions;
pub mod stack_facts;
pub mod stack_service;
mod stack_thread;
pub mod stack_warnings;
#[cfg(test)]
pub mod test_pair;
pub mod thread_schedule;

pub use stack_thread::{StackHandle, StackThread, thread_ended};
