//! Too few packets circulate, or too few requests are outstanding.

use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Kind;
use linerate_metric::round_trip::OUTSTANDING_LIMIT;
use linerate_metric::units::format_share;

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::Case;

/// Smallest share of rounds without a frame that matters.
const MATTERS: f64 = 0.3;

/// See docs/CAUSES.md#too-few-in-flight.
pub struct TooFewInFlight;

impl Rule for TooFewInFlight {
    fn id(&self) -> &'static str {
        "too-few-in-flight"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let found = match case.plan.kind {
            Kind::Forward => self.of_frames(case),
            Kind::Latency => self.of_questions(case),
            _ => None,
        };
        found.into_iter().collect()
    }
}

impl TooFewInFlight {
    fn of_frames(&self, case: &Case<'_>) -> Option<Finding> {
        let figures = case.record.forward.as_ref()?;
        let plan = case.plan.forward.as_ref()?;
        // This end cannot increase packets from elsewhere, and modes that generate or consume
        // frames have no circulation.
        if plan.tx_first == 0 || figures.primed == 0 || !plan.circulates() || case.lacks_carrier() {
            return None;
        }
        let rounds: u64 = figures.cores.iter().map(|core| core.rounds).sum();
        let idle: u64 = figures.cores.iter().map(|core| core.idle_rounds).sum();
        let share = idle as f64 / rounds.max(1) as f64;
        let dropped: u64 = figures.ports.iter().map(|port| port.transmit.dropped).sum();
        let moved: u64 = figures.ports.iter().map(|port| port.receive.packets).sum();
        if rounds == 0 || share < MATTERS || dropped * 100 > moved.max(1) {
            return None;
        }
        let cores = figures.cores.len();
        Draft::cause(self.id(), End::Both)
            .cost(share)
            .says(format!(
                "{} packets circulate between {cores} {}, and {} of the rounds found no frame: \
                 there are too few packets in flight",
                figures.primed,
                if cores == 1 { "thread" } else { "threads" },
                format_share(share)
            ))
            .seen("primed", figures.primed, "packets", "forwarder")
            .seen("idle_rounds", idle, "rounds", "forwarding threads")
            .seen("rounds", rounds, "rounds", "forwarding threads")
            .seen("tx_first", plan.tx_first, "bursts", "plan")
            .remedy("put more bursts into circulation; more threads do not help before that")
            .command(case.again(&format!("--tx-first {}", plan.tx_first * 4)))
            .tried(Some(format!("--tx-first {}", plan.tx_first)))
            .tried((cores > 1).then(|| format!("--cores {cores}")))
            .gain(
                Some((1.0 / (1.0 - share).max(0.05)).min(4.0)),
                "1 / (1 - share of idle rounds), at most 4, the increase of the bursts",
            )
            .found()
    }

    /// Requests of a schedule are delayed because the limit of outstanding requests is reached.
    fn of_questions(&self, case: &Case<'_>) -> Option<Finding> {
        let plan = &case.plan.round_trip;
        let rate = plan.rate_per_second? as f64 * f64::from(case.plan.streams);
        let unsent = case.record.summary.unsent?;
        let done = case.record.summary.round_trips_per_second?;
        let rtt = case.record.summary.rtt_ns?;
        // Little's law: outstanding requests over mean round-trip time.
        let most = f64::from(plan.outstanding * case.plan.streams) * 1e9 / rtt.mean.max(1.0);
        if unsent == 0 || done > 0.95 * rate || done < 0.8 * most {
            return None;
        }
        let share = 1.0 - done / rate;
        Draft::cause(self.id(), End::Client)
            .cost(share)
            .says(format!(
                "{rate:.0} requests per second were scheduled, and at most {} may be outstanding: \
                 with {:.0} us each that permits {most:.0} per second",
                plan.outstanding,
                rtt.mean / 1e3
            ))
            .seen("outstanding", plan.outstanding, "requests", "plan")
            .seen("unsent", unsent, "requests", "client")
            .seen("rtt_ns.mean", rtt.mean, "ns", "client")
            .remedy("permit more outstanding requests")
            .command(case.again(&format!(
                "--outstanding {}",
                (plan.outstanding * 8).min(OUTSTANDING_LIMIT)
            )))
            .tried((plan.outstanding > 1).then(|| format!("--outstanding {}", plan.outstanding)))
            .gain(
                Some(rate / done.max(1.0)),
                "intended over achieved rate; Little's law: outstanding requests / mean \
                 round-trip time is the current limit",
            )
            .found()
    }
}
