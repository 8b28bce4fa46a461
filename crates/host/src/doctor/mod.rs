//! `linerate doctor`: checks of what this machine supports, with instructions for what it lacks.
//!
//! A check is one small function and one line in the table `PROBES`. Nothing is changed: what needs
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

use linerate_metric::facts::{Ability, Check, EXAMINATION_SCHEMA, Examination};

use inputs::Ground;

pub use cache_line::cache_line_round_trip;
pub use processor::processors_apart;

/// Check: its name, stable for scripts, and its function.
type Probe = (&'static str, fn(&Ground) -> Answer);

/// Table of all checks, in the order they are printed.
const PROBES: &[Probe] = &[
    ("kernel", kernel::kernel),
    ("privileges", kernel::privileges),
    ("user-namespaces", kernel::user_namespaces),
    ("processors", processor::processors),
    ("clock-source", processor::clock_source),
    ("cache-line", processor::cache_line),
    ("frequency-scaling", processor::frequency_scaling),
    ("idle-states", processor::idle_states),
    ("congestion-control", network::congestion_control),
    (
        "allowed-congestion-controls",
        network::allowed_congestion_controls,
    ),
    ("default-qdisc", network::default_qdisc),
    ("offloads", network::offloads),
    ("socket-buffers", network::socket_buffers),
    ("open-files", limits::open_files),
    ("locked-memory", limits::locked_memory),
    ("hugepages", limits::hugepages),
    ("af-xdp", network::af_xdp),
    ("io-uring", kernel::io_uring),
    ("netem", network::netem),
    ("tun", network::tun),
    ("time-stamping", timestamping::time_stamping),
    ("perf-events", tracing::perf_events),
    ("tracefs", tracing::tracefs),
    // Last: it samples processor time over the duration of the other checks.
    ("steal", processor::steal),
];

/// Runs all checks; takes well under two seconds.
#[must_use]
pub fn examine() -> Examination {
    let ground = Ground::machine();
    let checks = PROBES
        .iter()
        .map(|(name, probe)| probe(&ground).named(name))
        .collect();
    Examination {
        schema: EXAMINATION_SCHEMA.to_owned(),
        host: ground.host,
        checks,
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    ability: Ability,
    found: String,
    enable: Option<String>,
}

impl Answer {
    fn ok(found: impl Into<String>) -> Self {
        Self::new(Ability::Ok, found)
    }

    fn limited(found: impl Into<String>) -> Self {
        Self::new(Ability::Limited, found)
    }

    fn missing(found: impl Into<String>) -> Self {
        Self::new(Ability::Missing, found)
    }

    fn unknown(found: impl Into<String>) -> Self {
        Self::new(Ability::Unknown, found)
    }

    fn new(ability: Ability, found: impl Into<String>) -> Self {
        Self {
            ability,
            found: found.into(),
            enable: None,
        }
    }

    /// Adds instructions for enabling the feature.
    fn enable(mut self, how: impl Into<String>) -> Self {
        self.enable = Some(how.into());
        self
    }

    fn named(self, name: &str) -> Check {
        Check {
            name: name.to_owned(),
            ability: self.ability,
            found: self.found,
            enable: self.enable,
        }
    }
}
