//! Sessions between client and server: control connection, negotiation, test setup and admission.

pub(crate) mod agreement;
pub(crate) mod burn;
mod checks;
pub(crate) mod client;
mod doors;
mod doubts;
pub(crate) mod files;
pub(crate) mod footing;
mod grants;
mod greeter;
pub(crate) mod ground;
pub(crate) mod house;
pub(crate) mod limits;
pub(crate) mod lobby;
pub(crate) mod manner;
pub(crate) mod pace;
pub(crate) mod porch;
mod random;
pub(crate) mod reach;
mod server;
mod service;
#[expect(
    clippy::module_inception,
    reason = "one session among the modules that sessions need"
)]
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod setup;
pub(crate) mod wire;

pub use client::Client;
pub use doors::Also;
pub use limits::TIME_LIMIT_NS;
pub use linerate_dialect::control::{Key, KeyError, SECRET_MAX_BYTES, SECRET_MIN_BYTES};
pub use reach::Family;
pub use server::{Emit, GRANTS, Grant, PeerOptions, Server, ServerOptions};
pub use settings::{FarSettings, Held, Maker};
pub use wire::PEER_PATIENCE;

use linerate_dialect::control::Hello;

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
    linerate_host::snapshot::Files::machine().text("/proc/sys/kernel/random/boot_id")
}
