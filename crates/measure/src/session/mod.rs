//! Talking to the other end: who runs what with whom, and what came of it.

mod client;
mod server;
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
