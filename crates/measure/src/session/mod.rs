//! Sessions between client and server: control connection, negotiation, test setup and admission.

pub(crate) mod acceptor;
pub(crate) mod agreement;
mod checks;
pub(crate) mod client;
mod client_doubts;
pub(crate) mod control_connection;
pub(crate) mod cpu_load;
pub(crate) mod descriptor_limit;
pub(crate) mod dial;
mod flow_open_responder;
mod grants;
pub(crate) mod limits;
mod listen_ports;
pub(crate) mod local_stack;
pub(crate) mod pace;
mod random;
mod server;
pub(crate) mod server_session;
pub(crate) mod server_stack;
pub(crate) mod server_state;
mod service;
pub(crate) mod settings;
pub(crate) mod setup;
pub(crate) mod thread_plan;
pub(crate) mod udp_demux;

use linerate_protocol::control::Hello;

pub use client::Client;
pub use control_connection::CLIENT_SILENCE_TIMEOUT;
pub use dial::AddressFamily;
pub use limits::TIME_LIMIT_NS;
pub use listen_ports::ExtraPort;
pub use server::{EventCallback, GRANTS, Grant, InteropOptions, Server, ServerOptions};
pub use settings::{AppliedSettings, RemoteSettings, RemoteTuning};

/// Name and version that this program sends in its hello.
#[must_use]
pub fn agent() -> String {
    format!("linerate {}", env!("CARGO_PKG_VERSION"))
}

fn hello(boot_id: Option<String>) -> Hello {
    Hello {
        boot_id,
        ..Hello::new(agent())
    }
}

/// Boot id of this kernel: two ends with the same id share their CPUs.
fn boot_id() -> Option<String> {
    linerate_host::snapshot::SystemFiles::of_machine().read_text("/proc/sys/kernel/random/boot_id")
}
