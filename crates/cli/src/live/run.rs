//! State of the current run.

use std::collections::{BTreeMap, VecDeque};

use linerate_record::capacity::CapacityTrial;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_record::record::{Interval, PacketLoss};
use linerate_report::text;
use linerate_session::loss::LiveLoss;
use linerate_stats::histogram::Quantiles;
use linerate_stats::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};

/// Maximum number of intervals in a curve: wider than any terminal.
const MAX_CURVE_POINTS: usize = 512;

/// Fraction of the time that threads wait for a processor from which a warning is shown: below it,
/// any thread that sleeps reaches as much.
const MIN_RUNNABLE_FRACTION: f64 = 0.1;

/// Unit of a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RateUnit {
    /// Payload bits per second.
    #[default]
    Bits,
    RoundTrips,
    Frames,
}

impl RateUnit {
    pub(super) fn format(self, rate: f64) -> String {
        match self {
            Self::RoundTrips => format!("{} round trips", format_per_second(rate)),
            Self::Frames => format!("{} frames", format_per_second(rate)),
            Self::Bits => format_bit_rate(rate),
        }
    }
}

/// Rates of one direction.
#[derive(Clone, Debug, Default)]
pub(super) struct RateCurve {
    /// `None` if the measurement has no directions.
    pub(super) direction: Option<Direction>,
    /// Rate of each interval or trial, latest last.
    pub(super) rates: VecDeque<f64>,
}

/// Scheduling times of the threads of one end over all intervals so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RunnableTime {
    /// Total time in nanoseconds.
    total_ns: f64,
    /// Time in nanoseconds that threads were runnable but not running.
    runnable_ns: f64,
}

/// State of the current run.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveRun {
    pub(super) title: String,
    /// Unit of its rates.
    pub(super) unit: RateUnit,
    /// Planned duration; `None` if something else ends the run.
    pub(super) duration_ns: Option<u64>,
    /// Time since the start of the run.
    pub(super) now_ns: u64,
    /// Rates of each direction that has any.
    pub(super) curves: Vec<RateCurve>,
    /// The run has no intervals (`-i 0`).
    pub(super) is_silent: bool,
    /// Round-trip times of the latest interval.
    pub(super) rtt_ns: Option<Quantiles>,
    /// Lost so far, if counted.
    pub(super) lost: Option<u64>,
    /// Number of datagrams or requests whose fate is known.
    pub(super) attempts: u64,
    pub(super) retransmits: Option<u64>,
    /// Packets lost so far at the loss points whose counters can be read.
    pub(super) loss_points: Vec<LiveLoss>,
    /// These counters include other traffic of this host.
    pub(super) counters_are_shared: bool,
    /// Frames dropped so far by ports, by queue and cause.
    pub(super) port_drops: Option<Vec<(String, u64)>>,
    /// Losses of the record, once the run has ended.
    pub(super) losses: Option<Vec<PacketLoss>>,
    /// The kernel may count several datagrams as one packet (GSO, GRO).
    pub(super) has_offloads: bool,
    /// Scheduling times by end.
    threads: BTreeMap<&'static str, RunnableTime>,
}

impl LiveRun {
    pub(super) fn from_plan(plan: &Plan) -> Self {
        let host = linerate_report::style::strip_control_characters(&plan.host);
        let (rate, title) = match plan.kind {
            RunKind::Latency => (
                RateUnit::RoundTrips,
                format!("{} latency with {host}:{}", plan.protocol, plan.port),
            ),
            RunKind::Forward => (RateUnit::Frames, format!("forwarding between {host}")),
            RunKind::Generate if plan.generate.is_some() => {
                (RateUnit::Frames, format!("frames over {host}"))
            }
            RunKind::Generate => (RateUnit::Frames, format!("capacity of {host}")),
            RunKind::Stack => (RateUnit::Frames, format!("user-space stack on {host}")),
            RunKind::Throughput => (
                RateUnit::Bits,
                format!("{} {} with {host}:{}", plan.protocol, plan.kind, plan.port),
            ),
        };
        Self {
            title,
            unit: rate,
            duration_ns: plan.duration_ns,
            is_silent: plan.interval_ns.is_none_or(|interval| interval == 0),
            has_offloads: plan.protocol == TransportProtocol::Udp
                && (plan.udp_offload.gso == Some(true) || plan.udp_offload.gro == Some(true)),
            ..Self::default()
        }
    }

    /// Returns whether the run has started or moved data.
    pub(super) fn has_started(&self) -> bool {
        !self.title.is_empty() || !self.curves.is_empty()
    }

    pub(super) fn add_interval(&mut self, interval: &Interval) {
        self.now_ns = self.now_ns.max(interval.end_ns);
        let length = interval.end_ns.saturating_sub(interval.start_ns).max(1) as f64;
        let rate = match self.unit {
            RateUnit::RoundTrips | RateUnit::Frames => {
                interval.packets.unwrap_or(0) as f64 * 1e9 / length
            }
            RateUnit::Bits => interval.bytes as f64 * 8e9 / length,
        };
        self.push_rate(Some(interval.direction), rate);
        self.rtt_ns = interval.rtt_ns.or(self.rtt_ns);
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0) + more);
            }
        };
        add(&mut self.lost, interval.lost);
        let responded = interval.packets.unwrap_or(0) + interval.lost.unwrap_or(0);
        self.attempts += interval.packets_sent.unwrap_or(responded);
        for (end, threads) in [
            ("sender", &interval.sender_threads),
            ("receiver", &interval.receiver_threads),
        ] {
            if let Some(shares) = threads {
                let totals = self.threads.entry(end).or_default();
                totals.total_ns += length;
                totals.runnable_ns += shares.runnable * length;
            }
        }
        add(&mut self.retransmits, interval.retransmits);
    }

    pub(super) fn add_frames(&mut self, start_ns: u64, end_ns: u64, count: u64) {
        self.unit = RateUnit::Frames;
        self.now_ns = self.now_ns.max(end_ns);
        let length = end_ns.saturating_sub(start_ns).max(1) as f64;
        self.push_rate(None, count as f64 * 1e9 / length);
    }

    pub(super) fn add_trial(&mut self, trial: &CapacityTrial) {
        self.attempts += trial.sent;
        self.now_ns += trial.duration_ns;
        self.push_rate(None, trial.forwarding_fps);
        self.lost = Some(self.lost.unwrap_or(0) + trial.lost);
    }

    fn push_rate(&mut self, direction: Option<Direction>, rate: f64) {
        let is_same_direction = |curve: &RateCurve| curve.direction == direction;
        let index = self
            .curves
            .iter()
            .position(is_same_direction)
            .unwrap_or_else(|| {
                self.curves.push(RateCurve {
                    direction,
                    ..RateCurve::default()
                });
                self.curves.len() - 1
            });
        let rates = &mut self.curves[index].rates;
        rates.push_back(rate);
        if rates.len() > MAX_CURVE_POINTS {
            rates.pop_front();
        }
    }

    /// Returns the number of packets lost so far and their fraction; `None` if losses are not
    /// counted.
    pub(super) fn loss(&self) -> Option<(u64, f64)> {
        let lost = self.lost?;
        Some((lost, lost as f64 / self.attempts.max(lost).max(1) as f64))
    }

    /// Returns warnings on the figures, as far as intervals show them.
    ///
    /// Causes are available only after the run: they come from counters of both ends.
    pub(super) fn caveats(&self) -> Vec<String> {
        let mut caveats = Vec::new();
        if let Some((lost, share)) = self.loss().filter(|(lost, _)| *lost > 0) {
            let lost_units = match self.unit {
                RateUnit::RoundTrips => "requests have no response",
                RateUnit::Frames => "frames are lost",
                RateUnit::Bits => "datagrams are lost",
            };
            caveats.push(format!(
                "{} {lost_units} ({})",
                format_count(lost),
                format_share(share)
            ));
        }
        for (end, shares) in &self.threads {
            let share = shares.runnable_ns / shares.total_ns.max(1.0);
            if share >= MIN_RUNNABLE_FRACTION {
                caveats.push(format!(
                    "the {end}'s threads waited for a CPU for {} of the time",
                    format_share(share)
                ));
            }
        }
        caveats
    }

    /// Returns the latest percentiles, the losses, and their loss points: lines of parts that stay
    /// together.
    pub(super) fn figure_lines(&self) -> Vec<Vec<String>> {
        let mut lines = Vec::new();
        lines.extend(self.rtt_ns.map(|quantiles| {
            let part = |name: &str, ns: u64| format!("{name} {}", format_nanos(ns as f64));
            vec![
                part("p50", quantiles.p50),
                part("p90", quantiles.p90),
                part("p99", quantiles.p99),
                part("p99.9", quantiles.p99_9),
                part("max", quantiles.max),
            ]
        }));
        let lost = self
            .loss()
            .map(|(lost, share)| format!("{} lost ({})", format_count(lost), format_share(share)));
        let retransmits = self.retransmits;
        let retransmits =
            retransmits.map(|retransmits| format!("{} retransmits", format_count(retransmits)));
        let counted: Vec<String> = lost.into_iter().chain(retransmits).collect();
        let unknown = counted.is_empty() && self.port_drops.is_none() && !self.curves.is_empty();
        lines.push(match unknown {
            true => vec!["losses are not counted during the run".to_owned()],
            false => counted,
        });
        lines.extend(self.loss_lines());
        lines
    }

    /// Returns the loss points: those of the record after the run, of the readable counters before.
    fn loss_lines(&self) -> Vec<Vec<String>> {
        let at = |name: &str, count: u64| format!("{} at {name}", format_count(count));
        if let Some(losses) = &self.losses {
            let parts = losses
                .iter()
                .map(|loss| format!("{} at {}", text::format_loss_count(loss), loss.place));
            return vec![parts.collect()];
        }
        if let Some(dropped) = &self.port_drops {
            let lost = dropped.iter().filter(|(_, count)| *count > 0);
            let parts: Vec<String> = lost.map(|(name, count)| at(name, *count)).collect();
            return vec![match parts.is_empty() {
                true => vec!["no drops at ports".to_owned()],
                false => parts,
            }];
        }
        if self.loss_points.is_empty() {
            let unknown = self
                .has_started()
                .then(|| vec!["loss points are shown when the run has ended".to_owned()]);
            return unknown.into_iter().collect();
        }
        let mut lines = Vec::new();
        let has_both_directions = self
            .loss_points
            .iter()
            .any(|points| points.direction != self.loss_points[0].direction);
        for direction in [Direction::Send, Direction::Receive] {
            let points: Vec<_> = (self.loss_points.iter())
                .filter(|points| points.direction == direction)
                .collect();
            if points.is_empty() {
                continue;
            }
            let names = |is_listed: fn(Option<u64>) -> bool| -> Vec<&str> {
                let fits = points.iter().filter(|points| is_listed(points.packets));
                fits.map(|points| points.point.as_str()).collect()
            };
            let mut parts: Vec<String> = (points.iter())
                .filter_map(|points| {
                    Some((
                        points.point.as_str(),
                        points.packets.filter(|&count| count > 0)?,
                    ))
                })
                .map(|(name, count)| at(name, count))
                .collect();
            if self.has_offloads && !parts.is_empty() {
                parts.push("a packet may be several datagrams (GSO, GRO)".to_owned());
            }
            let none = names(|packets| packets == Some(0));
            if !none.is_empty() {
                parts.push(format!("none at {}", none.join(", ")));
            }
            let unknown = names(|packets| packets.is_none());
            if !unknown.is_empty() {
                parts.push(format!("unknown during the run: {}", unknown.join(", ")));
            }
            if has_both_directions {
                parts[0] = format!("{direction}: {}", parts[0]);
            }
            // The counters include what other programs lose at the same points.
            if self.counters_are_shared {
                parts[0] = format!("all programs on this host: {}", parts[0]);
            }
            lines.push(parts);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::LossPoint;

    use super::*;

    fn loss_point(direction: Direction, point: LossPoint, packets: Option<u64>) -> LiveLoss {
        LiveLoss {
            direction,
            point,
            packets,
        }
    }

    #[test]
    fn loss_points_show_losses_and_unknown_ones() {
        let mut run = LiveRun {
            title: "UDP".to_owned(),
            ..LiveRun::default()
        };
        run.add_frames(0, 1_000_000_000, 7);
        assert_eq!(
            run.figure_lines(),
            [
                vec!["losses are not counted during the run".to_owned()],
                vec!["loss points are shown when the run has ended".to_owned()]
            ]
        );
        run.loss_points = vec![
            loss_point(Direction::Send, LossPoint::SenderSocket, Some(0)),
            loss_point(Direction::Send, LossPoint::Qdisc, Some(1_200)),
            loss_point(Direction::Send, LossPoint::UdpReceiveQueue, None),
        ];
        let parts = |run: &LiveRun| run.loss_lines().concat();
        assert_eq!(
            parts(&run),
            [
                "1,200 at qdisc",
                "none at sender-socket",
                "unknown during the run: udp-receive-queue"
            ]
        );
        run.loss_points.push(loss_point(
            Direction::Receive,
            LossPoint::UdpReceiveQueue,
            Some(3),
        ));
        assert_eq!(
            run.loss_lines()
                .iter()
                .map(|line| line[0].as_str())
                .collect::<Vec<_>>(),
            ["send: 1,200 at qdisc", "receive: 3 at udp-receive-queue"]
        );
        // Counters that other programs share are marked.
        run.counters_are_shared = true;
        assert_eq!(
            run.loss_lines()[1][0],
            "all programs on this host: receive: 3 at udp-receive-queue"
        );
        run.port_drops = Some(vec![("tap:a receive, ring-full".to_owned(), 7)]);
        assert_eq!(parts(&run), ["7 at tap:a receive, ring-full"]);
        run.losses = Some(vec![PacketLoss {
            direction: Direction::Send,
            place: LossPoint::Path.into(),
            packets: 9,
            exact: true,
            at_least: None,
            at_most: None,
        }]);
        assert_eq!(parts(&run), ["9 at path"]);
        run.losses.as_mut().unwrap()[0].exact = false;
        run.losses.as_mut().unwrap()[0].place = LossPoint::Qdisc.into();
        assert_eq!(parts(&run), ["at most 9 at qdisc"]);
    }
}
