//! Directions of the path have different capacities.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::{Direction, RunKind, TransportProtocol};
use linerate_stats::units::{format_bit_rate, format_nanos, format_share};

use super::congestion_loss::{MIN_QUEUEING_SHARE, cwnd_limited_share};
use super::tcp_info_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent};
use crate::run_view::{DirectionView, FULL_SHARE, RunView, STANDING_QUEUE_NS};

/// Smallest ratio of both directions that counts as asymmetric.
const MIN_RATIO: f64 = 1.5;

/// Largest share of a rate limit that passing packets can have used: the count is an estimate, and
/// covers the full run.
const MAX_ACK_SHARE: f64 = 1.1;

/// Smallest difference between the two directions of a round trip that matters, ns.
const MIN_DIFFERENCE_NS: u64 = 20_000;

/// Clock errors that the difference must exceed: one of each direction.
const CLOCK_ERRORS: u64 = 2;

/// Smallest share of a round trip at which this difference matters.
const MIN_RELEVANT_SHARE: f64 = 0.05;

/// See docs/CAUSES.md#asymmetric-path.
pub struct AsymmetricPath;

impl Rule for AsymmetricPath {
    fn id(&self) -> CauseId {
        CauseId::AsymmetricPath
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "One direction of the path carries less, or takes longer, than the other.",
            shown_when: vec![
                detection(
                    "TCP and UDP, `--bidir`",
                    [
                        format!("one direction has {MIN_RATIO} times the goodput of the other"),
                        "the slower one is full".into(),
                    ],
                ),
                detection(
                    "TCP, acknowledgements",
                    [
                        format!(
                            "they use {} to {} of the rate of the receiving interface's qdisc",
                            percent(FULL_SHARE),
                            percent(MAX_ACK_SHARE)
                        ),
                        format!("goodput is {MIN_RATIO} times that rate or more"),
                        format!(
                            "queueing takes more than {}, and {} of the round-trip time",
                            duration(STANDING_QUEUE_NS),
                            percent(MIN_QUEUEING_SHARE)
                        ),
                        "no end is saturated, no known rate of the forward path is used up, and no \
                         rate was requested"
                            .into(),
                    ],
                ),
                detection(
                    "round trips with stages",
                    [
                        format!(
                            "`path-to-server` and `path-to-client` differ by {}, and by {CLOCK_ERRORS} times \
                             the error of the clocks",
                            duration(MIN_DIFFERENCE_NS as f64)
                        ),
                        format!(
                            "they differ by a factor of {MIN_RATIO}, and by {} of the median",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                    ],
                ),
            ],
            not_when: vec!["queues of the ends, which are stages of their own".into()],
            evidence: &[
                ("goodput_bps, slower", "bit/s"),
                ("goodput_bps, faster", "bit/s"),
                ("qdisc rate, slower", "bit/s"),
                ("qdisc rate, faster", "bit/s"),
                ("qdisc rate, reverse path", "bit/s"),
                ("used by acknowledgements", "share"),
                ("goodput_bps", "bit/s"),
                ("tcpi_rtt", "ns"),
                ("tcpi_min_rtt", "ns"),
                ("path-to-server", "ns"),
                ("path-to-client", "ns"),
                ("clock error", "ns"),
            ],
            cost: vec![
                "Difference as a share of the faster direction, or of the median.".into(),
                "Acknowledgements: share of the time limited by the congestion window.".into(),
            ],
            remedy: vec![
                "Compare rate limits, queues and routes of both directions.".into(),
            ],
            wrong_when: vec![
                "both directions share a processor: then none is full, and there is no finding"
                    .into(),
            ],
            ..CauseReference::limit()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        match run.plan.kind {
            RunKind::Throughput => {
                let ack_findings = run
                    .throughput_directions(TransportProtocol::Tcp)
                    .filter_map(|direction| self.evaluate_ack_path(run, direction));
                self.evaluate_goodputs(run)
                    .into_iter()
                    .chain(ack_findings)
                    .collect()
            }
            RunKind::Latency => self.evaluate_stages(run).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl AsymmetricPath {
    fn evaluate_goodputs(&self, run: &RunView<'_>) -> Option<Finding> {
        let [a, b] = &run.directions[..] else {
            return None;
        };
        let (slow, fast) = match a.goodput()? <= b.goodput()? {
            true => (a, b),
            false => (b, a),
        };
        let ratio = fast.goodput()? / slow.goodput()?.max(1.0);
        // Two directions on shared processors divide their time arbitrarily; a saturated path does
        // not.
        if ratio < MIN_RATIO || !slow.fills_path() {
            return None;
        }
        let shaper_bps = |direction: &crate::run_view::DirectionView<'_>| {
            direction.sender_shaper().map(|shaper| shaper.rate_bps)
        };
        FindingBuilder::limit(self.id(), FindingLocation::Path)
            .cost(1.0 - 1.0 / ratio)
            .summary(format!(
                "the path carries {} in one direction ({}) and {} in the other",
                format_bit_rate(slow.goodput()?),
                slow.direction,
                format_bit_rate(fast.goodput()?)
            ))
            .evidence(
                "goodput_bps, slower",
                slow.goodput()?,
                "bit/s",
                format!("{} direction", slow.direction),
            )
            .evidence(
                "goodput_bps, faster",
                fast.goodput()?,
                "bit/s",
                format!("{} direction", fast.direction),
            )
            .evidence_if(
                "qdisc rate, slower",
                shaper_bps(slow),
                "bit/s",
                "rtnetlink TCA_OPTIONS",
            )
            .evidence_if(
                "qdisc rate, faster",
                shaper_bps(fast),
                "bit/s",
                "rtnetlink TCA_OPTIONS",
            )
            .remedy(
                "compare rate limits, queues and links of both directions: access lines are often \
                 slower in one direction",
            )
            .command(run.rerun_without(
                &["bidir"],
                match slow.direction {
                    Direction::Receive => "-R",
                    Direction::Send => "",
                },
            ))
            .build()
    }

    /// Acknowledgements use up the reverse path and limit the payload.
    fn evaluate_ack_path(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        // With payload in both directions no frame is empty.
        let [_] = &run.directions[..] else {
            return None;
        };
        let (rate, used) = direction.ack_path_use()?;
        let goodput = direction.goodput()?;
        // A forward rate limit that is used up is the direct limit.
        let is_forward_full = [direction.shaper_share(), direction.line_share()];
        let is_forward_full = is_forward_full
            .into_iter()
            .flatten()
            .any(|share| share >= FULL_SHARE);
        // Traffic far above the rate did not pass this limit.
        if !(FULL_SHARE..=MAX_ACK_SHARE).contains(&used)
            || is_forward_full
            || goodput < MIN_RATIO * rate as f64
            || super::is_paced(run)
        {
            return None;
        }
        // Acknowledgements limit the payload if they queue while both ends have idle time.
        let tcp = direction.tcp()?;
        let has_standing_queue = tcp.rtt_ns - tcp.min_rtt_ns > STANDING_QUEUE_NS
            && tcp.queueing_share() >= MIN_QUEUEING_SHARE;
        if !has_standing_queue || super::is_saturated(direction) {
            return None;
        }
        let role = direction.receiver;
        let interface = &run.interface(role)?.name;
        FindingBuilder::limit(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(cwnd_limited_share(&tcp))
            .summary(format!(
                "acknowledgements use up the reverse path: {interface} of the {} is limited to \
                 {}, and they use {} of it",
                role.as_str(),
                format_bit_rate(rate as f64),
                format_share(used.min(1.0))
            ))
            .evidence(
                "qdisc rate, reverse path",
                rate,
                "bit/s",
                format!("{} {interface} rtnetlink TCA_OPTIONS", role.as_str()),
            )
            .evidence(
                "used by acknowledgements",
                used,
                "share",
                format!("{} {interface} tx_packets, as empty frames", role.as_str()),
            )
            .evidence("goodput_bps", goodput, "bit/s", "receiver")
            .evidence(
                "tcpi_rtt",
                tcp.rtt_ns.round(),
                "ns",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "tcpi_min_rtt",
                tcp.min_rtt_ns.round(),
                "ns",
                tcp_info_source(direction.sender),
            )
            .remedy(
                "raise the rate limit of the reverse path; UDP in one direction does not use it",
            )
            .command(run.command_at(role, &format!("tc -s qdisc show dev {interface}")))
            .build()
    }

    fn evaluate_stages(&self, run: &RunView<'_>) -> Option<Finding> {
        let of = |name: &str| run.record.stages.iter().find(|stage| stage.stage == name);
        let (there, back) = (of("path-to-server")?, of("path-to-client")?);
        let error = there
            .clock_error_ns
            .unwrap_or(0)
            .max(back.clock_error_ns.unwrap_or(0));
        let (less, more) = (there.p50_ns.min(back.p50_ns), there.p50_ns.max(back.p50_ns));
        if more - less < MIN_DIFFERENCE_NS.max(CLOCK_ERRORS * error)
            || (more as f64) < MIN_RATIO * less as f64
        {
            return None;
        }
        let rtt = run.record.summary.rtt_ns?;
        // The difference does not matter if most of the round trip has another cause.
        if ((more - less) as f64) < MIN_RELEVANT_SHARE * rtt.p50 as f64 {
            return None;
        }
        FindingBuilder::limit(self.id(), FindingLocation::Path)
            .cost((more - less) as f64 / rtt.p50.max(1) as f64)
            .summary(format!(
                "the forward path takes {} and the reverse path {}",
                format_nanos(there.p50_ns as f64),
                format_nanos(back.p50_ns as f64)
            ))
            .evidence("path-to-server", there.p50_ns, "ns", "stages")
            .evidence("path-to-client", back.p50_ns, "ns", "stages")
            .evidence("clock error", error, "ns", "stages")
            .remedy("check routes and queues of the slower direction")
            .command(run.throughput_command("--bidir"))
            .build()
    }
}
