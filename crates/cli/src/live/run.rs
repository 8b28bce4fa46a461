//! State of the current run.

use std::collections::{BTreeMap, VecDeque};

use linerate_measure::SeenPlace;
use linerate_metric::capacity::CapacityTrial;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
use linerate_metric::record::{Interval, Loss, Quantiles};
use linerate_metric::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};
use linerate_report::text;

/// Maximum number of intervals in a curve: wider than any terminal.
const KEPT: usize = 512;

/// Fraction of the time that threads wait for a processor from which a warning is shown: below it,
/// any thread that sleeps reaches as much.
const CROWDED: f64 = 0.1;

/// Unit of a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rate {
    /// Payload bits per second.
    #[default]
    Bits,
    Trips,
    Frames,
}

impl Rate {
    pub(super) fn format(self, rate: f64) -> String {
        match self {
            Self::Trips => format!("{} round trips", format_per_second(rate)),
            Self::Frames => format!("{} frames", format_per_second(rate)),
            Self::Bits => format_bit_rate(rate),
        }
    }
}

/// Rates of one direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    /// `None` if the measurement has no directions.
    pub(super) direction: Option<Direction>,
    /// Rate of each interval or trial, latest last.
    pub(super) rates: VecDeque<f64>,
}

/// Scheduling times of the threads of one end over all intervals so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Shares {
    /// Total time in nanoseconds.
    of_ns: f64,
    /// Time in nanoseconds that threads were runnable but not running.
    runnable_ns: f64,
}

/// State of the current run.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub(super) title: String,
    /// Unit of its rates.
    pub(super) rate: Rate,
    /// Planned duration; `None` if something else ends the run.
    pub(super) duration_ns: Option<u64>,
    /// Time since the start of the run.
    pub(super) now_ns: u64,
    /// Rates of each direction that has any.
    pub(super) curves: Vec<Curve>,
    /// The run has no intervals (`-i 0`).
    pub(super) is_silent: bool,
    /// Round-trip times of the latest interval.
    pub(super) trips: Option<Quantiles>,
    /// Lost so far, if counted.
    pub(super) lost: Option<u64>,
    /// Number of datagrams or requests whose fate is known.
    pub(super) asked: u64,
    pub(super) retransmits: Option<u64>,
    /// Packets lost so far at the loss points whose counters can be read.
    pub(super) seen: Vec<SeenPlace>,
    /// These counters include other traffic of this host.
    pub(super) seen_is_shared: bool,
    /// Frames dropped so far by ports, by queue and cause.
    pub(super) dropped: Option<Vec<(String, u64)>>,
    /// Losses of the record, once the run has ended.
    pub(super) losses: Option<Vec<Loss>>,
    /// The kernel may count several datagrams as one packet (GSO, GRO).
    pub(super) joined: bool,
    /// Scheduling times by end.
    threads: BTreeMap<&'static str, Shares>,
}

impl Run {
    pub(super) fn of(plan: &Plan) -> Self {
        let host = linerate_report::style::clean(&plan.host);
        let (rate, title) = match plan.kind {
            Kind::Latency => (
                Rate::Trips,
                format!("{} latency with {host}:{}", plan.protocol, plan.port),
            ),
            Kind::Forward => (Rate::Frames, format!("forwarding between {host}")),
            Kind::Generate if plan.generate.is_some() => {
                (Rate::Frames, format!("frames over {host}"))
            }
            Kind::Generate => (Rate::Frames, format!("capacity of {host}")),
            Kind::Stack => (Rate::Frames, format!("our stack on {host}")),
            Kind::Throughput => (
                Rate::Bits,
                format!("{} {} with {host}:{}", plan.protocol, plan.kind, plan.port),
            ),
        };
        Self {
            title,
            rate,
            duration_ns: plan.duration_ns,
            is_silent: plan.interval_ns.is_none_or(|interval| interval == 0),
            joined: plan.protocol == Protocol::Udp
                && (plan.udp_offload.gso == Some(true) || plan.udp_offload.gro == Some(true)),
            ..Self::default()
        }
    }

    /// Returns whether the run has started or moved data.
    pub(super) fn has_begun(&self) -> bool {
        !self.title.is_empty() || !self.curves.is_empty()
    }

    pub(super) fn interval(&mut self, interval: &Interval) {
        self.now_ns = self.now_ns.max(interval.end_ns);
        let length = interval.end_ns.saturating_sub(interval.start_ns).max(1) as f64;
        let rate = match self.rate {
            Rate::Trips | Rate::Frames => interval.packets.unwrap_or(0) as f64 * 1e9 / length,
            Rate::Bits => interval.bytes as f64 * 8e9 / length,
        };
        self.push(Some(interval.direction), rate);
        self.trips = interval.rtt_ns.or(self.trips);
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0) + more);
            }
        };
        add(&mut self.lost, interval.lost);
        let answered = interval.packets.unwrap_or(0) + interval.lost.unwrap_or(0);
        self.asked += interval.packets_sent.unwrap_or(answered);
        for (end, threads) in [
            ("sender", &interval.sender_threads),
            ("receiver", &interval.receiver_threads),
        ] {
            if let Some(shares) = threads {
                let known = self.threads.entry(end).or_default();
                known.of_ns += length;
                known.runnable_ns += shares.runnable * length;
            }
        }
        add(&mut self.retransmits, interval.retransmits);
    }

    pub(super) fn frames(&mut self, start_ns: u64, end_ns: u64, count: u64) {
        self.rate = Rate::Frames;
        self.now_ns = self.now_ns.max(end_ns);
        let length = end_ns.saturating_sub(start_ns).max(1) as f64;
        self.push(None, count as f64 * 1e9 / length);
    }

    pub(super) fn trial(&mut self, trial: &CapacityTrial) {
        self.asked += trial.sent;
        self.now_ns += trial.duration_ns;
        self.push(None, trial.forwarding_fps);
        self.lost = Some(self.lost.unwrap_or(0) + trial.lost);
    }

    fn push(&mut self, direction: Option<Direction>, rate: f64) {
        let known = |curve: &Curve| curve.direction == direction;
        let place = self.curves.iter().position(known).unwrap_or_else(|| {
            self.curves.push(Curve {
                direction,
                ..Curve::default()
            });
            self.curves.len() - 1
        });
        let rates = &mut self.curves[place].rates;
        rates.push_back(rate);
        if rates.len() > KEPT {
            rates.pop_front();
        }
    }

    /// Returns the number of packets lost so far and their fraction; `None` if losses are not
    /// counted.
    pub(super) fn loss(&self) -> Option<(u64, f64)> {
        let lost = self.lost?;
        Some((lost, lost as f64 / self.asked.max(lost).max(1) as f64))
    }

    /// Returns warnings on the figures, as far as intervals show them.
    ///
    /// Causes are available only after the run: they come from counters of both ends.
    pub(super) fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if let Some((lost, share)) = self.loss().filter(|(lost, _)| *lost > 0) {
            let what = match self.rate {
                Rate::Trips => "requests have no response",
                Rate::Frames => "frames are lost",
                Rate::Bits => "datagrams are lost",
            };
            doubts.push(format!(
                "{} {what} ({})",
                format_count(lost),
                format_share(share)
            ));
        }
        for (end, shares) in &self.threads {
            let share = shares.runnable_ns / shares.of_ns.max(1.0);
            if share >= CROWDED {
                doubts.push(format!(
                    "{} of the time the {end}'s threads waited for a processor",
                    format_share(share)
                ));
            }
        }
        doubts
    }

    /// Returns the latest percentiles, the losses, and their loss points: lines of parts that stay
    /// together.
    pub(super) fn figures(&self) -> Vec<Vec<String>> {
        let mut lines = Vec::new();
        lines.extend(self.trips.map(|trips| {
            let part = |name: &str, ns: u64| format!("{name} {}", format_nanos(ns as f64));
            vec![
                part("p50", trips.p50),
                part("p90", trips.p90),
                part("p99", trips.p99),
                part("p99.9", trips.p99_9),
                part("max", trips.max),
            ]
        }));
        let lost = self
            .loss()
            .map(|(lost, share)| format!("{} lost ({})", format_count(lost), format_share(share)));
        let again = self.retransmits;
        let again = again.map(|again| format!("{} retransmits", format_count(again)));
        let counted: Vec<String> = lost.into_iter().chain(again).collect();
        let unknown = counted.is_empty() && self.dropped.is_none() && !self.curves.is_empty();
        lines.push(match unknown {
            true => vec!["losses are not counted during the run".to_owned()],
            false => counted,
        });
        lines.extend(self.places());
        lines
    }

    /// Returns the loss points: those of the record after the run, of the readable counters before.
    fn places(&self) -> Vec<Vec<String>> {
        let at = |place: &str, count: u64| format!("{} at {place}", format_count(count));
        if let Some(losses) = &self.losses {
            let parts = losses
                .iter()
                .map(|loss| format!("{} at {}", text::loss_count(loss), loss.place));
            return vec![parts.collect()];
        }
        if let Some(dropped) = &self.dropped {
            let lost = dropped.iter().filter(|(_, count)| *count > 0);
            let parts: Vec<String> = lost.map(|(place, count)| at(place, *count)).collect();
            return vec![match parts.is_empty() {
                true => vec!["no drops at ports".to_owned()],
                false => parts,
            }];
        }
        if self.seen.is_empty() {
            let unknown = self
                .has_begun()
                .then(|| vec!["loss points are shown when the run has ended".to_owned()]);
            return unknown.into_iter().collect();
        }
        let mut lines = Vec::new();
        let both = self
            .seen
            .iter()
            .any(|seen| seen.direction != self.seen[0].direction);
        for direction in [Direction::Send, Direction::Receive] {
            let seen: Vec<_> = (self.seen.iter())
                .filter(|seen| seen.direction == direction)
                .collect();
            if seen.is_empty() {
                continue;
            }
            let named = |which: fn(Option<u64>) -> bool| -> Vec<&str> {
                let fits = seen.iter().filter(|seen| which(seen.packets));
                fits.map(|seen| seen.place).collect()
            };
            let mut parts: Vec<String> = (seen.iter())
                .filter_map(|seen| Some((seen.place, seen.packets.filter(|&count| count > 0)?)))
                .map(|(place, count)| at(place, count))
                .collect();
            if self.joined && !parts.is_empty() {
                parts.push("a packet may be several datagrams (GSO, GRO)".to_owned());
            }
            let none = named(|packets| packets == Some(0));
            if !none.is_empty() {
                parts.push(format!("none at {}", none.join(", ")));
            }
            let unknown = named(|packets| packets.is_none());
            if !unknown.is_empty() {
                parts.push(format!("unknown during the run: {}", unknown.join(", ")));
            }
            if both {
                parts[0] = format!("{direction}: {}", parts[0]);
            }
            // The counters include what other programs lose at the same points.
            if self.seen_is_shared {
                parts[0] = format!("all programs on this host: {}", parts[0]);
            }
            lines.push(parts);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(direction: Direction, place: &'static str, packets: Option<u64>) -> SeenPlace {
        SeenPlace {
            direction,
            place,
            packets,
        }
    }

    #[test]
    fn places_say_what_they_lost_and_which_are_out_of_view() {
        let mut run = Run {
            title: "UDP".to_owned(),
            ..Run::default()
        };
        run.frames(0, 1_000_000_000, 7);
        assert_eq!(
            run.figures(),
            [
                vec!["losses are not counted during the run".to_owned()],
                vec!["loss points are shown when the run has ended".to_owned()]
            ]
        );
        run.seen = vec![
            seen(Direction::Send, "sender-socket", Some(0)),
            seen(Direction::Send, "qdisc", Some(1_200)),
            seen(Direction::Send, "udp-receive-queue", None),
        ];
        let parts = |run: &Run| run.places().concat();
        assert_eq!(
            parts(&run),
            [
                "1,200 at qdisc",
                "none at sender-socket",
                "unknown during the run: udp-receive-queue"
            ]
        );
        run.seen
            .push(seen(Direction::Receive, "udp-receive-queue", Some(3)));
        assert_eq!(
            run.places()
                .iter()
                .map(|line| line[0].as_str())
                .collect::<Vec<_>>(),
            ["send: 1,200 at qdisc", "receive: 3 at udp-receive-queue"]
        );
        // Counters that other programs share are marked.
        run.seen_is_shared = true;
        assert_eq!(
            run.places()[1][0],
            "all programs on this host: receive: 3 at udp-receive-queue"
        );
        run.dropped = Some(vec![("tap:a receive, ring-full".to_owned(), 7)]);
        assert_eq!(parts(&run), ["7 at tap:a receive, ring-full"]);
        run.losses = Some(vec![Loss {
            direction: Direction::Send,
            place: "path".to_owned(),
            packets: 9,
            exact: true,
            at_least: None,
            at_most: None,
        }]);
        assert_eq!(parts(&run), ["9 at path"]);
        run.losses.as_mut().unwrap()[0].exact = false;
        run.losses.as_mut().unwrap()[0].place = "qdisc".to_owned();
        assert_eq!(parts(&run), ["at most 9 at qdisc"]);
    }
}
