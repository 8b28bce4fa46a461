//! `linerate doctor`: checks of what this machine supports, with instructions for what it lacks.
//!
//! A check is one small function and one line in the table `CHECKS`. Nothing is changed: what needs
//! a trial runs in a child process or is undone at once. Checks work for ordinary users, in
//! containers and without /sys, where more of them report "unknown".

pub mod cache_line;

mod capability;
mod inputs;
mod kernel;
mod kernel_feature;
mod limits;
mod network;
mod processor;
mod timestamping;
mod tracing;

#[cfg(test)]
mod tests;

use inputs::DoctorInputs;
use linerate_record::facts::{DOCTOR_SCHEMA, DoctorCheck, DoctorReport, Support};

pub use cache_line::measure_cache_line;
pub use processor::measure_processor_distance;

/// Check: its name, stable for scripts, and its function.
type CheckEntry = (&'static str, fn(&DoctorInputs) -> CheckOutcome);

/// Table of all checks, in the order they are printed.
const CHECKS: &[CheckEntry] = &[
    ("kernel", kernel::check_kernel),
    ("privileges", kernel::check_privileges),
    ("user-namespaces", kernel::check_user_namespaces),
    ("processors", processor::check_processors),
    ("clock-source", processor::check_clock_source),
    ("core-to-core", processor::check_cache_line),
    ("frequency-scaling", processor::check_frequency_scaling),
    ("idle-states", processor::check_idle_states),
    ("congestion-control", network::check_congestion_control),
    (
        "allowed-congestion-controls",
        network::check_allowed_congestion_controls,
    ),
    ("default-qdisc", network::check_default_qdisc),
    ("offloads", network::check_offloads),
    ("socket-buffers", network::check_socket_buffers),
    ("open-files", limits::check_open_files),
    ("locked-memory", limits::check_locked_memory),
    ("hugepages", limits::check_hugepages),
    ("af-xdp", network::check_af_xdp),
    ("io-uring", kernel::check_io_uring),
    ("netem", network::check_netem),
    ("tun", network::check_tun),
    ("time-stamping", timestamping::check_timestamping),
    ("perf-events", tracing::check_perf_events),
    ("tracefs", tracing::check_tracefs),
    // Last: it samples processor time over the duration of the other checks.
    ("steal", processor::check_steal),
];

/// Runs all checks; takes well under two seconds.
#[must_use]
pub fn run_checks() -> DoctorReport {
    let inputs = DoctorInputs::of_machine();
    let checks = CHECKS
        .iter()
        .map(|(name, check)| check(&inputs).into_check(name))
        .collect();
    DoctorReport {
        schema: DOCTOR_SCHEMA.to_owned(),
        host: inputs.host,
        checks,
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CheckOutcome {
    support: Support,
    detail: String,
    enable: Option<String>,
}

impl CheckOutcome {
    fn ok(detail: impl Into<String>) -> Self {
        Self::new(Support::Ok, detail)
    }

    fn limited(detail: impl Into<String>) -> Self {
        Self::new(Support::Limited, detail)
    }

    fn missing(detail: impl Into<String>) -> Self {
        Self::new(Support::Missing, detail)
    }

    fn unknown(detail: impl Into<String>) -> Self {
        Self::new(Support::Unknown, detail)
    }

    fn new(support: Support, detail: impl Into<String>) -> Self {
        Self {
            support,
            detail: detail.into(),
            enable: None,
        }
    }

    /// Adds instructions for enabling the feature.
    fn with_enable(mut self, instruction: impl Into<String>) -> Self {
        self.enable = Some(instruction.into());
        self
    }

    fn into_check(self, name: &str) -> DoctorCheck {
        DoctorCheck {
            name: name.to_owned(),
            support: self.support,
            detail: self.detail,
            enable: self.enable,
        }
    }
}
