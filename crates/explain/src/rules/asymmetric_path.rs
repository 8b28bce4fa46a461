//! Directions of the path have different capacities.

use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::{Direction, Kind, Protocol};
use linerate_metric::units::{format_bit_rate, format_nanos, format_share};

use super::congestion_loss::{QUEUED, held_by_congestion};
use super::tcp_info;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, FULL, STANDING_NS, Way, name};

/// Smallest ratio of both directions that counts as asymmetric.
const RATIO: f64 = 1.5;

/// Largest share of a rate limit that passing packets can have used: the count is an estimate, and
/// covers the full run.
const USED_UP: f64 = 1.1;

/// Smallest difference between the two directions of a round trip that matters, ns.
const APART_NS: u64 = 20_000;

/// Smallest share of a round trip at which this difference matters.
const MATTERS: f64 = 0.05;

/// See docs/CAUSES.md#asymmetric-path.
pub struct AsymmetricPath;

impl Rule for AsymmetricPath {
    fn id(&self) -> &'static str {
        "asymmetric-path"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        match case.plan.kind {
            Kind::Throughput => {
                let answers = case
                    .throughput(Protocol::Tcp)
                    .filter_map(|way| self.of_answers(case, way));
                self.of_streams(case).into_iter().chain(answers).collect()
            }
            Kind::Latency => self.of_stages(case).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl AsymmetricPath {
    fn of_streams(&self, case: &Case<'_>) -> Option<Finding> {
        let [a, b] = &case.ways[..] else { return None };
        let (slow, fast) = match a.goodput()? <= b.goodput()? {
            true => (a, b),
            false => (b, a),
        };
        let ratio = fast.goodput()? / slow.goodput()?.max(1.0);
        // Two directions on shared processors divide their time arbitrarily; a saturated path does
        // not.
        if ratio < RATIO || !slow.fills_path() {
            return None;
        }
        let shape = |way: &crate::run_view::Way<'_>| way.own_shape().map(|shape| shape.rate_bps);
        Draft::limit(self.id(), End::Path)
            .cost(1.0 - 1.0 / ratio)
            .says(format!(
                "the path carries {} in one direction ({}) and {} in the other",
                format_bit_rate(slow.goodput()?),
                slow.direction,
                format_bit_rate(fast.goodput()?)
            ))
            .seen(
                "goodput_bps, slower",
                slow.goodput()?,
                "bit/s",
                format!("{} direction", slow.direction),
            )
            .seen(
                "goodput_bps, faster",
                fast.goodput()?,
                "bit/s",
                format!("{} direction", fast.direction),
            )
            .seen_if(
                "qdisc rate, slower",
                shape(slow),
                "bit/s",
                "rtnetlink TCA_OPTIONS",
            )
            .seen_if(
                "qdisc rate, faster",
                shape(fast),
                "bit/s",
                "rtnetlink TCA_OPTIONS",
            )
            .remedy(
                "compare rate limits, queues and links of both directions: access lines are often \
                 slower in one direction",
            )
            .command(case.again_without(
                &["bidir"],
                match slow.direction {
                    Direction::Receive => "-R",
                    Direction::Send => "",
                },
            ))
            .found()
    }

    /// Acknowledgements use up the reverse path and limit the payload.
    fn of_answers(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        // With payload in both directions no frame is empty.
        let [_] = &case.ways[..] else { return None };
        let (rate, used) = way.answers()?;
        let goodput = way.goodput()?;
        // A forward rate limit that is used up is the direct limit.
        let there = [way.share_of_shape(), way.share_of_line()];
        let there = there.into_iter().flatten().any(|share| share >= FULL);
        // Traffic far above the rate did not pass this limit.
        if !(FULL..=USED_UP).contains(&used)
            || there
            || goodput < RATIO * rate as f64
            || super::is_paced(case)
        {
            return None;
        }
        // Acknowledgements limit the payload if they queue while both ends have idle time.
        let tcp = way.tcp()?;
        let stand = tcp.rtt_ns - tcp.min_rtt_ns > STANDING_NS && tcp.queueing() >= QUEUED;
        if !stand || super::is_saturated(way) {
            return None;
        }
        let role = way.receiver;
        let interface = &case.interface(role)?.name;
        Draft::limit(self.id(), End::Path)
            .way(way.direction)
            .cost(held_by_congestion(&tcp))
            .says(format!(
                "acknowledgements use up the reverse path: {interface} of the {} is limited to \
                 {}, and they use {} of it",
                name(role),
                format_bit_rate(rate as f64),
                format_share(used.min(1.0))
            ))
            .seen(
                "qdisc rate, reverse path",
                rate,
                "bit/s",
                format!("{} {interface} rtnetlink TCA_OPTIONS", name(role)),
            )
            .seen(
                "used by acknowledgements",
                used,
                "share",
                format!("{} {interface} tx_packets, as empty frames", name(role)),
            )
            .seen("goodput_bps", goodput, "bit/s", "receiver")
            .seen("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info(way.sender))
            .seen(
                "tcpi_min_rtt",
                tcp.min_rtt_ns.round(),
                "ns",
                tcp_info(way.sender),
            )
            .remedy(
                "raise the rate limit of the reverse path; UDP in one direction does not use it",
            )
            .command(case.at(role, &format!("tc -s qdisc show dev {interface}")))
            .found()
    }

    fn of_stages(&self, case: &Case<'_>) -> Option<Finding> {
        let of = |name: &str| case.record.stages.iter().find(|stage| stage.stage == name);
        let (there, back) = (of("path-there")?, of("path-back")?);
        let error = there
            .clock_error_ns
            .unwrap_or(0)
            .max(back.clock_error_ns.unwrap_or(0));
        let (less, more) = (there.p50_ns.min(back.p50_ns), there.p50_ns.max(back.p50_ns));
        if more - less < APART_NS.max(2 * error) || (more as f64) < RATIO * less as f64 {
            return None;
        }
        let rtt = case.record.summary.rtt_ns?;
        // The difference does not matter if most of the round trip has another cause.
        if ((more - less) as f64) < MATTERS * rtt.p50 as f64 {
            return None;
        }
        Draft::limit(self.id(), End::Path)
            .cost((more - less) as f64 / rtt.p50.max(1) as f64)
            .says(format!(
                "the forward path takes {} and the reverse path {}",
                format_nanos(there.p50_ns as f64),
                format_nanos(back.p50_ns as f64)
            ))
            .seen("path-there", there.p50_ns, "ns", "stages")
            .seen("path-back", back.p50_ns, "ns", "stages")
            .seen("clock error", error, "ns", "stages")
            .remedy("check routes and queues of the slower direction")
            .command(case.one_way("--bidir"))
            .found()
    }
}
