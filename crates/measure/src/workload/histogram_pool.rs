//! Histograms of a request flow, allocated before the start.
//!
//! Allocated later, they would disturb the run: each thread would fault in a few megabytes during
//! its first round trips.

use linerate_metric::histogram::Histogram;
use linerate_metric::plan::{Kind, Plan};
use linerate_metric::round_trip::Attachment;

use crate::flow::Part;

/// Largest number of request threads with three significant digits in every histogram (230 KiB).
/// With more threads, histograms other than those of the full run have two digits (30 KiB): 1,000
/// threads then use half a gigabyte instead of two.
const FINE_FLOWS: u32 = 64;

/// Histograms of the steps of a round trip with its own socket.
const STEPS: usize = 7;

/// Preallocated histograms of one flow.
#[derive(Debug, Default)]
pub struct Room {
    /// For the round trips of the full run.
    whole: Vec<Histogram>,
    /// For intervals and steps.
    beside: Vec<Histogram>,
    coarse: bool,
}

impl Room {
    /// Allocates a flow's histograms; the first flow of a thread gets those of the steps.
    #[must_use]
    pub fn of(plan: &Plan, part: Part, is_first: bool) -> Self {
        let mut room = Self {
            coarse: plan.streams > FINE_FLOWS,
            ..Self::default()
        };
        if plan.kind != Kind::Latency || part == Part::Sink || !plan.stamps.is_none() {
            return room;
        }
        let asked = &plan.round_trip;
        let whole = 1 + usize::from(asked.is_open());
        room.whole = (0..whole).map(|_| Histogram::new()).collect();
        let steps = match asked.attachment {
            Attachment::Reopened if is_first => STEPS,
            _ => 0,
        };
        // The current interval, and the one being handed over.
        room.beside = (0..2 + steps).map(|_| room.made_beside()).collect();
        room
    }

    fn made_beside(&self) -> Histogram {
        match self.coarse {
            true => Histogram::coarse(),
            false => Histogram::new(),
        }
    }

    /// Takes a histogram for the round trips of the full run.
    pub fn whole(&mut self) -> Histogram {
        self.whole.pop().unwrap_or_default()
    }

    /// Takes a histogram for intervals or steps.
    pub fn beside(&mut self) -> Histogram {
        self.beside.pop().unwrap_or_else(|| self.made_beside())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::plan::Protocol;

    #[test]
    fn what_a_flow_takes_is_there_before_the_start() {
        let mut plan = Plan::new(Kind::Latency, Protocol::Tcp, "far");
        let made = |plan: &Plan, part, first| {
            let room = Room::of(plan, part, first);
            (room.whole.len(), room.beside.len())
        };
        assert_eq!(made(&plan, Part::Source, true), (1, 2));
        assert_eq!(made(&plan, Part::Sink, true), (0, 0));
        plan.round_trip.attachment = Attachment::Reopened;
        assert_eq!(made(&plan, Part::Source, true), (1, 2 + STEPS));
        assert_eq!(made(&plan, Part::Source, false), (1, 2));
        plan.round_trip.attachment = Attachment::Connected;
        plan.round_trip.rate_per_second = Some(10);
        assert_eq!(made(&plan, Part::Source, true), (2, 2));
    }

    #[test]
    fn with_many_threads_only_the_round_trips_have_three_digits() {
        let mut plan = Plan::new(Kind::Latency, Protocol::Tcp, "far");
        for (streams, error) in [(FINE_FLOWS, 0.001), (FINE_FLOWS + 1, 0.01)] {
            plan.streams = streams;
            let mut room = Room::of(&plan, Part::Source, true);
            let sample = 1_234_567;
            let off = |mut times: Histogram| {
                times.record(sample);
                times.record(sample * 100);
                let half = times.quantile(0.5).expect("there are two") as f64;
                half / sample as f64 - 1.0
            };
            let beside = off(room.beside());
            assert!((0.0..=error).contains(&beside), "{streams}: {beside}");
            assert!((0.0..=0.001).contains(&off(room.whole())), "{streams}");
        }
    }
}
