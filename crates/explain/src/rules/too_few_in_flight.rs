//! Too few packets circulate, or too few requests are outstanding.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_record::round_trip::MAX_OUTSTANDING;
use linerate_stats::units::format_share;

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Smallest share of rounds without a frame that matters.
const MIN_RELEVANT_SHARE: f64 = 0.3;

/// Part of the moved frames up to which drops are noise: one in a hundred.
const DROPPED_PART: u64 = 100;

/// Share of the intended rate up to which requests are missing, and share of the rate that Little's
/// law permits from which the limit of outstanding requests is the reason.
const MAX_ACHIEVED_SHARE: f64 = 0.95;
const MIN_LIMIT_SHARE: f64 = 0.8;

/// See docs/CAUSES.md#too-few-in-flight.
pub struct TooFewInFlight;

impl Rule for TooFewInFlight {
    fn id(&self) -> CauseId {
        CauseId::TooFewInFlight
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Too few packets circulate, or too few requests are outstanding.",
            shown_when: vec![
                detection(
                    "`forward --tx-first`",
                    [
                        format!(
                            "{} of the rounds or more find no frame",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                        format!(
                            "{} of the frames at most are dropped",
                            percent(1.0 / DROPPED_PART as f64)
                        ),
                    ],
                ),
                detection(
                    "round trips on a schedule",
                    [
                        format!(
                            "the achieved rate is {} of the intended one at most, and requests were \
                             not sent",
                            percent(MAX_ACHIEVED_SHARE)
                        ),
                        format!(
                            "it is {} or more of the rate that Little's law permits: outstanding \
                             requests / mean round trip",
                            percent(MIN_LIMIT_SHARE)
                        ),
                    ],
                ),
            ],
            not_when: vec![
                "modes without circulation: `rxonly`, `txonly`, `flowgen`, `icmpecho`".into(),
                "a port has no carrier".into(),
            ],
            evidence: &[
                ("primed", "packets"),
                ("idle_rounds", "rounds"),
                ("rounds", "rounds"),
                ("tx_first", "bursts"),
                ("outstanding", "requests"),
                ("unsent", "requests"),
                ("rtt_ns.mean", "ns"),
            ],
            cost: vec!["Share of idle rounds, or of requests that were not sent.".into()],
            remedy: vec![
                "Put more bursts into circulation (`--tx-first`); more threads do not help before \
                 that."
                    .into(),
                "Permit more outstanding requests (`--outstanding`).".into(),
            ],
            wrong_when: vec!["the frames come from elsewhere: then the source is the limit".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let finding = match run.plan.kind {
            RunKind::Forward => self.evaluate_frames(run),
            RunKind::Latency => self.evaluate_requests(run),
            _ => None,
        };
        finding.into_iter().collect()
    }
}

impl TooFewInFlight {
    fn evaluate_frames(&self, run: &RunView<'_>) -> Option<Finding> {
        let figures = run.record.forward.as_ref()?;
        let plan = run.plan.forward.as_ref()?;
        // This end cannot increase packets from elsewhere, and modes that generate or consume
        // frames have no circulation.
        if plan.tx_first == 0 || figures.primed == 0 || !plan.circulates() || run.lacks_carrier() {
            return None;
        }
        let rounds: u64 = figures.cores.iter().map(|core| core.rounds).sum();
        let idle: u64 = figures.cores.iter().map(|core| core.idle_rounds).sum();
        let share = idle as f64 / rounds.max(1) as f64;
        let dropped: u64 = figures.ports.iter().map(|port| port.transmit.dropped).sum();
        let frames_moved: u64 = figures.ports.iter().map(|port| port.receive.packets).sum();
        if rounds == 0 || share < MIN_RELEVANT_SHARE || dropped * DROPPED_PART > frames_moved.max(1)
        {
            return None;
        }
        let cores = figures.cores.len();
        FindingBuilder::cause(self.id(), FindingLocation::Both)
            .cost(share)
            .summary(format!(
                "{} packets circulate between {cores} {}, and {} of the rounds found no frame: \
                 there are too few packets in flight",
                figures.primed,
                if cores == 1 { "thread" } else { "threads" },
                format_share(share)
            ))
            .evidence("primed", figures.primed, "packets", "forwarder")
            .evidence("idle_rounds", idle, "rounds", "forwarding threads")
            .evidence("rounds", rounds, "rounds", "forwarding threads")
            .evidence("tx_first", plan.tx_first, "bursts", "plan")
            .remedy("put more bursts into circulation; more threads do not help before that")
            .command(run.rerun_command(&format!("--tx-first {}", plan.tx_first * 4)))
            .tried(Some(format!("--tx-first {}", plan.tx_first)))
            .tried((cores > 1).then(|| format!("--cores {cores}")))
            .estimated_gain(
                Some((1.0 / (1.0 - share).max(0.05)).min(4.0)),
                "1 / (1 - share of idle rounds), at most 4, the increase of the bursts",
            )
            .build()
    }

    /// Requests of a schedule are delayed because the limit of outstanding requests is reached.
    fn evaluate_requests(&self, run: &RunView<'_>) -> Option<Finding> {
        let plan = &run.plan.round_trip;
        let rate = plan.rate_per_second? as f64 * f64::from(run.plan.streams);
        let unsent = run.record.summary.unsent?;
        let done = run.record.summary.round_trips_per_second?;
        let rtt = run.record.summary.rtt_ns?;
        // Little's law: outstanding requests over mean round-trip time.
        let most = f64::from(plan.outstanding * run.plan.streams) * 1e9 / rtt.mean.max(1.0);
        if unsent == 0 || done > MAX_ACHIEVED_SHARE * rate || done < MIN_LIMIT_SHARE * most {
            return None;
        }
        let share = 1.0 - done / rate;
        FindingBuilder::cause(self.id(), FindingLocation::Client)
            .cost(share)
            .summary(format!(
                "{rate:.0} requests per second were scheduled, and at most {} may be outstanding: \
                 with {:.0} us each that permits {most:.0} per second",
                plan.outstanding,
                rtt.mean / 1e3
            ))
            .evidence("outstanding", plan.outstanding, "requests", "plan")
            .evidence("unsent", unsent, "requests", "client")
            .evidence("rtt_ns.mean", rtt.mean, "ns", "client")
            .remedy("permit more outstanding requests")
            .command(run.rerun_command(&format!(
                "--outstanding {}",
                (plan.outstanding * 8).min(MAX_OUTSTANDING)
            )))
            .tried((plan.outstanding > 1).then(|| format!("--outstanding {}", plan.outstanding)))
            .gain(
                Some(rate / done.max(1.0)),
                "intended over achieved rate; Little's law: outstanding requests / mean \
                 round-trip time is the current limit",
            )
            .build()
    }
}
