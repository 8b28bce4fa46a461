//! Sessions between client and server: control connection, negotiation, test setup and admission.
#![forbid(unsafe_code)]

pub mod coordinator;
pub mod cpu_cost;
mod end_limits;
pub mod error;
pub mod flow_memory;
pub mod interval_series;
pub mod loss;
mod rate_accuracy;
pub mod rate_search;
pub mod record_assembly;
mod result_builder;
pub mod stack_rejections;
pub mod tcp_info_sums;
pub mod third_party_record;
mod wait_policy;
mod worker_costs;

pub mod agreement;
pub mod checks;
pub mod client;
mod client_doubts;
pub mod control_connection;
pub mod cpu_load;
pub mod descriptor_limit;
pub mod dial;
pub mod local_stack;
pub mod pace;
pub mod random;
pub mod settings;
pub mod setup;
pub mod thread_plan;

use linerate_protocol::control::Hello;

pub use client::Client;
pub use control_connection::CLIENT_SILENCE_TIMEOUT;
pub use dial::AddressFamily;
pub use settings::{AppliedSettings, RemoteSettings, RemoteTuning};

/// Name and version that this program sends in its hello.
#[must_use]
pub fn agent() -> String {
    format!("linerate {}", env!("CARGO_PKG_VERSION"))
}

pub fn hello(boot_id: Option<String>) -> Hello {
    Hello {
        boot_id,
        ..Hello::new(agent())
    }
}

/// Boot id of this kernel: two ends with the same id share their CPUs.
pub fn boot_id() -> Option<String> {
    linerate_host::snapshot::SystemFiles::of_machine().read_text("/proc/sys/kernel/random/boot_id")
}
