//! Server: accepts clients, limits them, and runs tests with them.
//!
//! [`acceptor`] classifies a connection or a flow by its first bytes. Our own clients get a
//! [`server_session`], clients of other tools one of the [`handlers`]. [`limits`] holds what a client
//! may use. [`stack_services`] are the same services on our user-space stack.
#![forbid(unsafe_code)]

pub mod acceptor;
mod flow_open_responder;
mod grants;
pub mod handlers;
pub mod limits;
pub mod listen_ports;
pub mod server;
pub mod server_session;
pub mod server_stack;
pub mod server_state;
mod service;
pub mod stack_services;
pub mod udp_demux;
