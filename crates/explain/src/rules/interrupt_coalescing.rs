//! A device holds its interrupts back.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::units::format_nanos;

use crate::Rule;
use crate::case::{Case, name};
use crate::draft::Draft;

/// Share of a median round trip from which it matters.
const MATTERS: f64 = 0.1;

/// See docs/CAUSES.md#interrupt-coalescing.
pub struct InterruptCoalescing;

impl Rule for InterruptCoalescing {
    fn id(&self) -> &'static str {
        "interrupt-coalescing"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| self.of(case, role))
            .collect()
    }
}

impl InterruptCoalescing {
    fn of(&self, case: &Case<'_>, role: Role) -> Option<Finding> {
        if !case.is_latency() || case.plan.round_trip.outstanding > 8 {
            return None;
        }
        let interface = case.device(role)?;
        let coalescing = interface.coalescing?;
        // One frame is enough for an interrupt: then nothing is held back.
        if coalescing.rx_us == 0 || coalescing.rx_frames == 1 {
            return None;
        }
        let rtt = case.record.summary.rtt_ns?;
        let held = f64::from(coalescing.rx_us) * 1e3;
        let share = (held / rtt.p50.max(1) as f64).min(0.9);
        if share < MATTERS || held > 1.1 * rtt.p50 as f64 {
            return None;
        }
        let end = name(role);
        let at = format!("{end} {} ethtool -c", interface.name);
        Draft::cause(self.id(), role)
            .cost(share)
            .says(format!(
                "{} of the {end} holds the interrupt of a received frame back for up to {}: that is part of each round trip",
                interface.name,
                format_nanos(held)
            ))
            .seen("rx-usecs", coalescing.rx_us, "us", at.clone())
            .seen("rx-frames", coalescing.rx_frames, "frames", at.clone())
            .seen("adaptive-rx", if coalescing.adaptive_rx { "on" } else { "off" }, "", at)
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .remedy("let it interrupt at once where round trips matter; throughput costs more interrupts then")
            .command(case.at(role, &format!("ethtool -C {} adaptive-rx off rx-usecs 0 rx-frames 1", interface.name)))
            .gain(Some(1.0 / (1.0 - share)), "p50 / (p50 - rx-usecs)")
            .found()
    }
}
