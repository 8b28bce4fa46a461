//! What happened when, on one time axis: calls, wake-ups, packets and the kernel's receive work of
//! both ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::Role;
use crate::record::Quantiles;

/// A row of the picture.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// What the measuring thread did: calls, and sleep within them.
    Thread,
    /// Where its messages were in the kernel.
    Kernel,
    /// When the kernel's receive work ran (the NET_RX soft interrupt), on any processor.
    Driver,
}

/// Something with a beginning and an end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// Whose.
    pub role: Role,
    /// Which row.
    pub lane: Lane,
    /// What: of round trips `send`, `receive`, `stack-out`, `qdisc`, `stack-in`, `wake-up`, `net-rx`;
    /// of streams the system call, with what it found where that was not what it wanted
    /// (`recvfrom waited`).
    pub name: String,
    /// Nanoseconds since the start of the run, on the client's clock.
    pub start_ns: u64,
    /// When it was over.
    pub end_ns: u64,
    /// The round trip that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trip: Option<u64>,
    /// The processor, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Which of its end's measuring threads, where there may be several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
}

/// How regularly and how long an end's receive driver works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DriverWork {
    /// Whose.
    pub role: Role,
    /// From the beginning of one piece of work to the next, on the same processor.
    pub period_ns: Quantiles,
    /// From the beginning of a piece to its end.
    pub duration_ns: Quantiles,
}

/// The latest round trips, or those around the one that was waited for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Timeline {
    /// Everything, by start.
    pub slices: Vec<Slice>,
    /// How the receive drivers worked, where that could be seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub driver: Vec<DriverWork>,
    /// How far the two hosts' clocks may be apart; absent within one host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// What could not be seen, and why; for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Timeline {
    /// Keeps what belongs to the last `trips` round trips, or as many calls, for a picture.
    pub fn keep_last(&mut self, trips: u64) {
        /// Calls of a stream that take the place of a round trip.
        const CALLS: usize = 8;
        let Some(last) = self.slices.iter().filter_map(|slice| slice.trip).max() else {
            let most = CALLS.saturating_mul(usize::try_from(trips).unwrap_or(usize::MAX));
            // Up to where both ends still did something: what one does alone at the end of a run is
            // not what anybody looks for.
            let last = |role| {
                let own = self.slices.iter().filter(|slice| slice.role == role);
                own.map(|slice| slice.start_ns).max()
            };
            let until = [Role::Client, Role::Server]
                .into_iter()
                .filter_map(last)
                .min();
            self.slices.retain(|slice| Some(slice.start_ns) <= until);
            let surplus = self.slices.len().saturating_sub(most);
            self.slices.drain(..surplus);
            return;
        };
        let first = last.saturating_sub(trips.saturating_sub(1));
        let kept = |slice: &Slice| slice.trip.is_some_and(|trip| trip >= first);
        let from = self.slices.iter().filter(|slice| kept(slice));
        let Some(from) = from.map(|slice| slice.start_ns).min() else {
            return;
        };
        self.slices
            .retain(|slice| kept(slice) || (slice.trip.is_none() && slice.start_ns >= from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_trips_and_what_ran_beside_them_are_kept() {
        let slice = |trip: Option<u64>, start_ns: u64| Slice {
            role: Role::Client,
            lane: Lane::Thread,
            name: "send".to_owned(),
            start_ns,
            end_ns: start_ns + 1,
            trip,
            cpu: None,
            thread: None,
        };
        let mut timeline = Timeline {
            slices: (0..10)
                .flat_map(|n| [slice(Some(n), n * 100), slice(None, n * 100 + 50)])
                .collect(),
            ..Timeline::default()
        };
        timeline.keep_last(3);
        let starts: Vec<_> = timeline.slices.iter().map(|s| s.start_ns).collect();
        assert_eq!(starts, [700, 750, 800, 850, 900, 950]);
        Timeline::default().keep_last(3);
        timeline.slices.iter_mut().for_each(|s| s.trip = None);
        timeline
            .slices
            .extend((0..40).map(|n| slice(None, 2_000 + n)));
        timeline.keep_last(3);
        assert_eq!(timeline.slices.len(), 24);
        assert_eq!(timeline.slices[23].start_ns, 2_039);
        let mut alone = slice(None, 2_020);
        alone.role = Role::Server;
        timeline.slices.insert(0, alone);
        timeline.keep_last(3);
        assert!(timeline.slices.iter().all(|slice| slice.start_ns <= 2_020));
    }
}
