//! What this machine can do towards a measurement, and how to enable what it cannot.
//!
//! One small function a check, one line in the table `PROBES` each. Nothing is changed: what must be tried is
//! tried in a child process or let go at once. All of it works as an ordinary user, in containers and
//! without /sys, where more lines read "unknown".

pub mod cache_line;

mod capability;
mod feature;
mod ground;
mod kernel;
mod limits;
mod network;
mod processor;
mod stamping;
mod tracing;

#[cfg(test)]
mod tests;

use linerate_metric::facts::{Ability, Check, EXAMINATION_SCHEMA, Examination};

use ground::Ground;

pub use cache_line::cache_line_round_trip;
pub use processor::processors_apart;

/// One check: its name, stable for scripts, and the function that looks.
type Probe = (&'static str, fn(&Ground) -> Answer);

/// Every check, in the order they print.
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
    ("time-stamping", stamping::time_stamping),
    ("perf-events", tracing::perf_events),
    ("tracefs", tracing::tracefs),
    // Last, so that the others fill the span that it looks at.
    ("steal", processor::steal),
];

/// Looks at everything; takes well under two seconds.
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

/// What a check found.
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

    /// Adds how to enable it.
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
