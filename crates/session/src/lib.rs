//! Sessions between client and server: control connection, negotiation, setup, run and results.
//!
//! Start at [`client::Client`], which requests a test and returns its record. Both ends run the
//! same [`coordinator`] once the plan is agreed, and [`record_assembly`] makes the record.
//!
//! Payload moves in the threads of `linerate_workload`, never here.
#![forbid(unsafe_code)]

pub mod client_agreement;
mod client_caveats;
pub mod client_stack;
pub mod pacing;
pub mod plan_checks;
pub mod remote_settings;
mod tool_limit;

pub mod client;

pub mod control_connection;
pub mod dial;
pub mod error;
pub mod path_timeouts;
pub mod setup;
pub mod stack_rejections;
pub mod thread_plan;

pub mod coordinator;
pub mod flow_handle;
pub mod flow_memory;
pub mod interval_series;
pub mod loss;
mod result_builder;
pub mod tcp_info_sums;

pub mod cpu_cost;
mod rate_accuracy;
pub mod record_assembly;
pub mod third_party_record;
mod worker_costs;

pub mod rate_search;
mod receive_window;

pub mod cpu_load;
pub mod descriptor_limit;
pub mod random;
mod wait_policy;

use linerate_protocol::control::Hello;

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
