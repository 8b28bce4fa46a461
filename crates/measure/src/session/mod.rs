//! Talking to the other end: who runs what with whom, and what came of it.

mod client;
mod greeter;
mod house;
mod limits;
mod lobby;
mod server;
#[expect(
    clippy::module_inception,
    reason = "one session among what sessions need"
)]
mod session;
mod setup;
mod wire;

pub use client::{Client, Family};
pub use server::{Emit, Grant, Server, ServerOptions};
pub use wire::{PEER_PATIENCE, Wire};

use linerate_dialect::control::Hello;

/// What this end says of itself.
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

/// Names this boot of this kernel, so that two ends know when they share their cores.
fn boot_id() -> Option<String> {
    linerate_host::snapshot::Files::machine().text("/proc/sys/kernel/random/boot_id")
}
