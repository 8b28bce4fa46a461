//! Figures of departures and arrivals: accuracy of the rate, and its evenness.

use std::collections::BTreeMap;

use linerate_protocol::control::EndResults;
use linerate_record::ids::CaveatId;
use linerate_record::pace::PacingMethod;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_record::record::{Caveat, DirectionFigures, Summary};
use linerate_stats::histogram::{Histogram, HistogramData, Quantiles};
use linerate_stats::units::{format_bit_rate, format_exact_bytes, format_nanos, format_share};
use linerate_workload::flow::{FlowEndResults, TimingHistograms};

/// Relative rate error from which the run is doubtful.
const RATE_TOLERANCE: f64 = 0.01;

/// Part of the run that one burst may take at the rate: the first burst leaves at once, so with two
/// bursts in a run the rate error would be a full burst.
const MAX_BURST_SHARE: f64 = 0.5;

type ReadHistogram = fn(&TimingHistograms) -> Option<&Histogram>;
type SummaryField = fn(&mut Summary) -> &mut Option<Quantiles>;

/// Distributions of flows: name in records, source in a flow, and figure in the summary.
const DISTRIBUTIONS: &[(&str, ReadHistogram, SummaryField)] = &[
    (
        "lateness_ns",
        |t| t.lateness.as_ref(),
        |summary| &mut summary.lateness_ns,
    ),
    (
        "delay_variation_ns",
        |t| t.variation.as_ref(),
        |summary| &mut summary.delay_variation_ns,
    ),
    (
        "arrival_gap_ns",
        |t| t.gaps.as_ref(),
        |summary| &mut summary.arrival_gap_ns,
    ),
    // Only from other tools, when their ends state that the clocks are synchronised.
    (
        ONE_WAY_DELAY,
        |_| None,
        |summary| &mut summary.one_way_delay_ns,
    ),
];

/// Name of the distribution of one-way delays.
pub const ONE_WAY_DELAY: &str = "one_way_delay_ns";

/// Returns the key of a distribution in records, such as `lateness_ns.send`.
pub fn histogram_key(distribution: &str, direction: Direction) -> String {
    format!("{distribution}.{direction}")
}

/// Returns the sum of the flows' distributions by direction.
#[must_use]
pub fn histograms_by_direction(flows: &[FlowEndResults]) -> BTreeMap<String, HistogramData> {
    let mut sums: BTreeMap<String, Histogram> = BTreeMap::new();
    for flow in flows {
        for (distribution, read, _) in DISTRIBUTIONS {
            let flow_histogram = read(&flow.timing).filter(|histogram| histogram.count() > 0);
            if let Some(histogram) = flow_histogram {
                let sum = sums.entry(histogram_key(distribution, flow.direction));
                sum.or_insert_with(Histogram::coarse).add(histogram);
            }
        }
    }
    sums.iter()
        .map(|(name, histogram)| (name.clone(), HistogramData::from(histogram)))
        .collect()
}

/// Returns the offered load over the intended load, minus 1; `None` where the run is too short for
/// it.
#[must_use]
pub fn rate_error(
    plan: &Plan,
    offered_bps: Option<f64>,
    duration_ns: Option<u64>,
    flows: u32,
) -> Option<f64> {
    let intended_bps = plan.rate_bps? as f64 * f64::from(flows);
    let is_measurable = plan.kind == RunKind::Throughput
        && intended_bps > 0.0
        && !is_burst_too_long(plan, duration_ns);
    is_measurable.then_some(offered_bps? / intended_bps - 1.0)
}

/// Returns whether one burst is too long, in relation to the run, to measure the rate.
fn is_burst_too_long(plan: &Plan, duration_ns: Option<u64>) -> bool {
    // The kernel paces a stream by bytes, not by bursts.
    let by_bursts =
        (plan.protocol, plan.pace.method) != (TransportProtocol::Tcp, PacingMethod::Socket);
    let seconds = duration_ns.map(|ns| ns as f64 / 1e9);
    let burst_s = burst_seconds(plan);
    by_bursts
        && matches!((burst_s, seconds), (Some(burst_s), Some(seconds)) if burst_s > MAX_BURST_SHARE * seconds)
}

/// Returns the time of one burst at the requested rate, in seconds.
fn burst_seconds(plan: &Plan) -> Option<f64> {
    let rate = plan.rate_bps.filter(|&rate| rate > 0)? as f64;
    Some(plan.pace.burst_bytes(plan.payload_bytes) as f64 * 8.0 / rate)
}

/// Returns the rate at which payload left. For a stream with kernel pacing, the rate of the calls
/// is too high, because payload waits in the socket buffer; the received rate is right.
fn sent_bps(plan: &Plan, summary: &Summary) -> Option<f64> {
    match (plan.protocol, plan.pace.method) {
        (TransportProtocol::Tcp, PacingMethod::Socket) => summary.goodput_bps,
        _ => summary.offered_bps,
    }
}

/// Adds the distributions of both ends to each direction.
pub fn add_distributions(plan: &Plan, directions: &mut [DirectionFigures], ends: &[EndResults]) {
    for figures in directions {
        let sent = sent_bps(plan, &figures.summary);
        let duration_ns = figures.send_duration_ns();
        figures.summary.rate_error = rate_error(plan, sent, duration_ns, plan.streams);
        for (distribution, _, figure) in DISTRIBUTIONS {
            let name = histogram_key(distribution, figures.direction);
            let data = ends.iter().find_map(|o| o.histograms.get(&name));
            *figure(&mut figures.summary) = data.and_then(|data| Histogram::from(data).summary());
        }
    }
}

/// Warns when a rate was missed, with the responsible side.
#[must_use]
pub fn missed_rate_warnings(plan: &Plan, directions: &[DirectionFigures]) -> Vec<Caveat> {
    let Some(rate) = plan.rate_bps else {
        return Vec::new();
    };
    let mut caveats: Vec<Caveat> = directions
        .iter()
        .filter_map(|figures| missed_rate_warning(plan, rate, figures))
        .collect();
    caveats.dedup();
    caveats
}

/// Warns that one burst takes more than half of the run.
fn coarse_rate_warning(plan: &Plan, rate: u64, seconds: f64) -> Option<Caveat> {
    let (unit, smaller) = match (plan.pace.has_bursts(plan.payload_bytes), plan.protocol) {
        (true, _) => ("burst", "shorter bursts (-b RATE/BURST)"),
        (false, TransportProtocol::Udp) => ("datagram", "smaller ones (-l)"),
        (false, TransportProtocol::Tcp) => ("write", "smaller ones (-l)"),
    };
    Some(Caveat::new(
        CaveatId::RateTooCoarse,
        format!(
            "one {unit} of {} takes {} at {}, and the run lasted {}: too short to measure that rate; use {smaller} or a longer run (-t)",
            format_exact_bytes(plan.pace.burst_bytes(plan.payload_bytes)),
            format_nanos(burst_seconds(plan)? * 1e9),
            format_bit_rate(rate as f64),
            format_nanos(seconds * 1e9),
        ),
    ))
}

fn missed_rate_warning(plan: &Plan, rate: u64, figures: &DirectionFigures) -> Option<Caveat> {
    let summary = &figures.summary;
    let duration_ns = figures.send_duration_ns()?;
    let seconds = duration_ns as f64 / 1e9;
    if is_burst_too_long(plan, Some(duration_ns)) {
        return coarse_rate_warning(plan, rate, seconds);
    }
    let intended_bps = rate as f64 * f64::from(plan.streams);
    // The gap between two bursts may lie outside the run.
    let burst_bits =
        plan.pace.burst_bytes(plan.payload_bytes) as f64 * 8.0 * f64::from(plan.streams);
    let rejected_bps: u64 = (figures.streams.iter())
        .filter_map(|stream| stream.sender.as_ref()?.send_refused)
        .sum();
    let rejected_bps = (rejected_bps * plan.payload_bytes * 8) as f64 / seconds.max(1e-9);
    let offered = sent_bps(plan, summary)?;
    let error = (offered + rejected_bps) / intended_bps - 1.0;
    let is_met = error.abs() <= RATE_TOLERANCE + burst_bits / (intended_bps * seconds).max(1.0);
    if is_met || !seconds.is_normal() {
        return None;
    }
    let summary_text = format!(
        "{} requested, and {} {} {}",
        format_bit_rate(intended_bps),
        format_bit_rate(offered),
        match (plan.protocol, plan.pace.method) {
            (TransportProtocol::Tcp, PacingMethod::Socket) => "left the socket of",
            _ => "was sent by",
        },
        match figures.direction {
            Direction::Send => "the client",
            Direction::Receive => "the server",
        },
    );
    let error_text = format_share((offered / intended_bps - 1.0).abs());
    let (id, reason) = match (plan.pace.method, plan.protocol) {
        (PacingMethod::Socket | PacingMethod::Txtime, _) => (
            CaveatId::RateMissed,
            format!(
                "{summary_text} ({error_text} off): --pacing {} did not keep it",
                plan.pace.method
            ),
        ),
        (PacingMethod::User, TransportProtocol::Tcp) => (
            CaveatId::RateMissed,
            format!(
                "{summary_text} ({error_text} off): TCP accepted no more, or the sender was late"
            ),
        ),
        (PacingMethod::User, TransportProtocol::Udp) => (
            CaveatId::ToolLimit,
            format!(
                "{summary_text} ({error_text} off): the sender could not keep up, so the rate is the tool's limit"
            ),
        ),
    };
    Some(Caveat::new(id, reason))
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::StoredId;
    use linerate_record::record::{SocketFacts, StreamFigures};

    use super::*;

    fn warning_ids(
        offered: f64,
        rejected: u64,
        change: impl FnOnce(&mut Plan),
    ) -> Vec<StoredId<CaveatId>> {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
        plan.payload_bytes = 1000;
        plan.rate_bps = Some(8_000_000);
        change(&mut plan);
        let figures = DirectionFigures {
            direction: Direction::Send,
            summary: Summary {
                duration_ns: Some(1_000_000_000),
                offered_bps: Some(offered),
                goodput_bps: Some(8_000_000.0),
                ..Summary::default()
            },
            streams: vec![StreamFigures {
                sender: Some(SocketFacts {
                    send_refused: Some(rejected),
                    ..SocketFacts::default()
                }),
                ..StreamFigures::default()
            }],
        };
        let caveats = missed_rate_warnings(&plan, &[figures]);
        caveats.into_iter().map(|caveat| caveat.id).collect()
    }

    #[test]
    fn a_missed_rate_is_reported_with_its_cause() {
        assert!(warning_ids(8_000_000.0, 0, |_| {}).is_empty());
        assert!(warning_ids(7_930_000.0, 0, |_| {}).is_empty(), "within 1 %");
        assert_eq!(warning_ids(7_000_000.0, 0, |_| {}), [CaveatId::ToolLimit]);
        // A full socket buffer is caused by the network, and counted as loss.
        assert!(warning_ids(4_000_000.0, 500, |_| {}).is_empty());
        assert_eq!(
            warning_ids(7_000_000.0, 0, |plan| plan.protocol =
                TransportProtocol::Tcp),
            [CaveatId::RateMissed]
        );
        assert_eq!(
            warning_ids(90_000_000.0, 0, |plan| plan.pace.method =
                PacingMethod::Socket),
            [CaveatId::RateMissed]
        );
        // The socket buffer took all at once; the kernel sent it at the rate.
        let paced = |plan: &mut Plan| {
            (plan.protocol, plan.pace.method) = (TransportProtocol::Tcp, PacingMethod::Socket);
        };
        assert!(warning_ids(90_000_000.0, 0, paced).is_empty());
        // One burst of two more or less.
        let bursts = |plan: &mut Plan| plan.pace.burst = Some("500".parse().unwrap());
        assert!(warning_ids(4_000_000.0, 0, bursts).is_empty());
        // One burst larger than that is all that the rate allows in 1 s.
        let all = |plan: &mut Plan| plan.pace.burst = Some("1000".parse().unwrap());
        assert_eq!(warning_ids(8_000_000.0, 0, all), [CaveatId::RateTooCoarse]);
        assert!(warning_ids(4_000_000.0, 0, |plan| plan.rate_bps = None).is_empty());
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "host");
        (plan.rate_bps, plan.pace.method) = (Some(8_000_000), PacingMethod::Socket);
        let summary = Summary {
            offered_bps: Some(12_000_000.0),
            goodput_bps: Some(8_400_000.0),
            ..Summary::default()
        };
        let mut directions = [DirectionFigures {
            direction: Direction::Send,
            summary,
            streams: Vec::new(),
        }];
        add_distributions(&plan, &mut directions, &[]);
        let error = directions[0].summary.rate_error.unwrap();
        assert!((error - 0.05).abs() < 1e-9, "{error}");
    }

    /// Figures of a sender of 4 s whose payload takes 8 s at the receiver: a queue on the path.
    fn drained_figures(sent_bytes: u64, rejected: u64) -> DirectionFigures {
        let seconds = 4.0;
        let summary = Summary {
            duration_ns: Some(8_000_000_000),
            bytes_sent: Some(sent_bytes),
            offered_bps: Some(sent_bytes as f64 * 8.0 / seconds),
            ..Summary::default()
        };
        DirectionFigures {
            direction: Direction::Send,
            streams: vec![StreamFigures {
                summary: summary.clone(),
                sender: Some(SocketFacts {
                    send_refused: Some(rejected),
                    ..SocketFacts::default()
                }),
                ..StreamFigures::default()
            }],
            summary,
        }
    }

    #[test]
    fn the_senders_rate_is_of_the_senders_time() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
        (plan.payload_bytes, plan.rate_bps) = (1_000, Some(2_000_000));
        // 250 of 1,000 datagrams were sent, and the others found the socket full.
        let caveats = |figures| missed_rate_warnings(&plan, &[figures]);
        assert_eq!(caveats(drained_figures(250_000, 750)), []);
        // Without a full socket, the share is that of `rate_error`.
        let mut figures = [drained_figures(250_000, 100)];
        add_distributions(&plan, &mut figures, &[]);
        assert_eq!(figures[0].summary.rate_error, Some(-0.75));
        let [caveat] = &missed_rate_warnings(&plan, &figures)[..] else {
            panic!("no caveat");
        };
        let text = "2.00 Mb/s requested, and 500 kb/s was sent by the client (75.0 % off)";
        assert!(caveat.reason.starts_with(text), "{}", caveat.reason);
        // One datagram takes 3 s at the rate: too long for 4 s, though not for 8.
        (plan.payload_bytes, plan.rate_bps) = (3_000, Some(8_000));
        let mut figures = [drained_figures(3_000, 0)];
        add_distributions(&plan, &mut figures, &[]);
        assert_eq!(figures[0].summary.rate_error, None);
    }

    #[test]
    fn a_rate_too_low_for_one_datagram_is_reported() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
        (plan.payload_bytes, plan.rate_bps) = (65_507, Some(1_000));
        let figures = |seconds: u64| DirectionFigures {
            direction: Direction::Send,
            summary: Summary {
                duration_ns: Some(seconds * 1_000_000_000),
                offered_bps: Some(65_507.0 * 8.0 / seconds as f64),
                ..Summary::default()
            },
            streams: Vec::new(),
        };
        let mut directions = [figures(1)];
        add_distributions(&plan, &mut directions, &[]);
        assert_eq!(directions[0].summary.rate_error, None);
        let caveats = missed_rate_warnings(&plan, &[figures(1), figures(1)]);
        let [caveat] = &caveats[..] else {
            panic!("{caveats:?}");
        };
        let start = "one datagram of 65507 B takes 524 s at 1.00 kb/s, and the run lasted 1.00 s";
        assert!(caveat.reason.starts_with(start), "{}", caveat.reason);
        let end = "use smaller ones (-l) or a longer run (-t)";
        assert!(caveat.reason.ends_with(end), "{}", caveat.reason);
        // The number of payloads makes the burst long.
        let mut bursts = plan.clone();
        (bursts.payload_bytes, bursts.pace.burst) = (1_000, Some("60".parse().unwrap()));
        let caveats = missed_rate_warnings(&bursts, &[figures(1)]);
        let end = "use shorter bursts (-b RATE/BURST) or a longer run (-t)";
        assert!(caveats[0].reason.ends_with(end), "{caveats:?}");
        // In twice the time there are at least two bursts.
        let mut directions = [figures(1049)];
        add_distributions(&plan, &mut directions, &[]);
        assert!(directions[0].summary.rate_error.is_some());
    }
}
