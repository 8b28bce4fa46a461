//! Server: accepts clients, limits them, and runs tests with them.
//!
//! Start at [`server`]: it opens the ports and runs the acceptor. The acceptor classifies each
//! connection or flow by its first bytes. Our own clients get a session, clients of other tools one
//! of the [`handlers`]. [`stack_host`] runs the same services on our user-space stack.
//!
//! No client gets more than [`limits`] and the options of the server allow. Nothing is sent to an
//! address that could be forged beyond the anti-amplification limit (RFC 9000 section 8).
#![forbid(unsafe_code)]

mod flow_socket;
pub mod stack_host;

pub mod options;
pub mod server;

pub mod handlers;
pub mod stack_services;

pub mod limits;
pub mod timeouts;

mod acceptor;
mod client_shares;
mod flow_open_responder;
mod grants;
mod interop_limits;
mod interop_state;
mod listen_ports;
mod server_session;
mod server_stack;
mod server_state;
mod test_rejection;
mod udp_demux;
