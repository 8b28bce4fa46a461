//! Timeline of a run: calls, wake-ups, packets and the kernel's receive work of both ends.

use linerate_stats::histogram::Quantiles;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::Role;

/// Track of a timeline.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum TimelineTrack {
    /// Activity of the measuring thread: calls, and sleep within them.
    Thread,
    /// Position of its messages in the kernel.
    Kernel,
    /// Receive work of the kernel (the NET_RX soft interrupt), on any processor.
    Driver,
}

/// An activity with start and end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimelineSlice {
    /// End of the run.
    pub role: Role,
    /// Track of the timeline.
    #[serde(alias = "lane")]
    pub track: TimelineTrack,
    /// Name: of round trips `send`, `receive`, `stack-out`, `qdisc`, `stack-in`, `wake-up`,
    /// `net-rx`; of streams the system call, with its outcome if it had to wait (`recvfrom
    /// waited`).
    pub name: String,
    /// Start in nanoseconds since the start of the run, on the client's clock.
    pub start_ns: u64,
    /// End in nanoseconds since the start of the run.
    pub end_ns: u64,
    /// Number of the round trip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "trip")]
    pub round_trip: Option<u64>,
    /// Processor, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Number of the measuring thread, if the end may have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
}

/// Regularity and duration of the receive driver's work at one end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DriverActivity {
    /// End of the run.
    pub role: Role,
    /// Time from the start of one activity to the next, on the same processor.
    pub period_ns: Quantiles,
    /// Duration of an activity.
    pub duration_ns: Quantiles,
}

/// Trigger of `--trace-on`, and its event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TraceTrigger {
    /// Quantity that is compared: `rtt` or `call`.
    #[serde(alias = "of")]
    pub quantity: String,
    /// Threshold in ns.
    #[serde(alias = "above_ns")]
    pub threshold_ns: u64,
    /// First event above the threshold; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fired: Option<TriggerEvent>,
}

/// First round trip or call above the threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TriggerEvent {
    /// End of the run.
    pub role: Role,
    /// Start in ns since the start of the recorded pass.
    pub at_ns: u64,
    /// Duration in ns.
    #[serde(alias = "took_ns")]
    pub duration_ns: u64,
    /// Number of the round trip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "trip")]
    pub round_trip: Option<u64>,
    /// Name of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// True if the response never arrived; the duration is then the wait for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

/// Trace file with the full timeline; a record contains only a part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TraceFile {
    /// Path as given by the user.
    pub path: String,
    /// `perfetto` or `trace-event`.
    pub format: String,
    /// Round trips in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trips: Option<u64>,
    /// Calls in the file, if there are no round trips.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Start of the first of these, in ns since the start of the recorded pass.
    pub from_ns: u64,
    /// End of the last of these.
    pub to_ns: u64,
}

/// Timeline of the last round trips, or of those around the trigger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Timeline {
    /// Activities, sorted by start.
    pub slices: Vec<TimelineSlice>,
    /// Work of the receive drivers, where it could be traced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub driver: Vec<DriverActivity>,
    /// Largest offset between the two hosts' clocks; absent within one host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// Data that could not be traced, and the reason; sentences for users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Trigger, if one was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<TraceTrigger>,
    /// File with the full timeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<TraceFile>,
}

impl Timeline {
    /// Returns the extent of a file with all activities of this timeline.
    #[must_use]
    pub fn extent(&self) -> TraceFile {
        let is_thread_slice = |slice: &&TimelineSlice| slice.track == TimelineTrack::Thread;
        let mut round_trips: Vec<u64> = (self.slices.iter())
            .filter_map(|slice| slice.round_trip)
            .collect();
        round_trips.sort_unstable();
        round_trips.dedup();
        let calls = self.slices.iter().filter(is_thread_slice).count() as u64;
        TraceFile {
            round_trips: (!round_trips.is_empty()).then_some(round_trips.len() as u64),
            calls: round_trips.is_empty().then_some(calls),
            from_ns: (self.slices.iter().filter(is_thread_slice))
                .map(|slice| slice.start_ns)
                .min()
                .unwrap_or(0),
            to_ns: (self.slices.iter().filter(is_thread_slice))
                .map(|slice| slice.end_ns)
                .max()
                .unwrap_or(0),
            ..TraceFile::default()
        }
    }

    /// Keeps the activities of the last `round_trips` round trips, or of as many calls. With a
    /// trigger, keeps those around it.
    pub fn keep_last(&mut self, round_trips: u64) {
        /// Calls of a stream that count as one round trip.
        const CALLS: usize = 8;
        let fired = self
            .trigger
            .as_ref()
            .and_then(|trigger| trigger.fired.clone());
        let Some(last) = self
            .slices
            .iter()
            .filter_map(|slice| slice.round_trip)
            .max()
        else {
            let most = CALLS.saturating_mul(usize::try_from(round_trips).unwrap_or(usize::MAX));
            // Ends where both ends were still active: the activity of only one end at the end of a
            // run is of no interest.
            let last = |role| {
                let slices_of_role = self.slices.iter().filter(|slice| slice.role == role);
                slices_of_role.map(|slice| slice.start_ns).max()
            };
            let until = [Role::Client, Role::Server]
                .into_iter()
                .filter_map(last)
                .min();
            match fired {
                Some(fired) => {
                    let until =
                        self.slices.partition_point(|s| s.start_ns <= fired.at_ns) + most / 2;
                    self.slices.truncate(until);
                }
                None => self.slices.retain(|slice| Some(slice.start_ns) <= until),
            }
            let surplus = self.slices.len().saturating_sub(most);
            self.slices.drain(..surplus);
            return;
        };
        let middle = fired.and_then(|fired| fired.round_trip);
        let last = middle.map_or(last, |round_trip| {
            last.min(round_trip.saturating_add(round_trips / 2))
        });
        let first = last.saturating_sub(round_trips.saturating_sub(1));
        let is_kept = |slice: &TimelineSlice| {
            (slice.round_trip).is_some_and(|round_trip| (first..=last).contains(&round_trip))
        };
        let bounds =
            |read: fn(&TimelineSlice) -> u64| self.slices.iter().filter(|s| is_kept(s)).map(read);
        let (Some(from), Some(to)) = (
            bounds(|slice| slice.start_ns).min(),
            bounds(|slice| slice.end_ns).max(),
        ) else {
            return;
        };
        let is_parallel = |slice: &TimelineSlice| {
            slice.round_trip.is_none() && (from..=to).contains(&slice.start_ns)
        };
        // Activities after the last round trip of the run belong to it.
        let open = middle.is_none();
        self.slices.retain(|slice| {
            is_kept(slice)
                || is_parallel(slice)
                || (open && slice.round_trip.is_none() && slice.start_ns >= from)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(round_trip: Option<u64>, start_ns: u64) -> TimelineSlice {
        TimelineSlice {
            role: Role::Client,
            track: TimelineTrack::Thread,
            name: "send".to_owned(),
            start_ns,
            end_ns: start_ns + 1,
            round_trip,
            cpu: None,
            thread: None,
        }
    }

    fn trigger_at(round_trip: Option<u64>, at_ns: u64) -> Option<TraceTrigger> {
        Some(TraceTrigger {
            fired: Some(TriggerEvent {
                role: Role::Client,
                at_ns,
                duration_ns: 1,
                round_trip,
                call: None,
                lost: false,
            }),
            ..TraceTrigger::default()
        })
    }

    #[test]
    fn the_trigger_is_kept() {
        let mut timeline = Timeline {
            slices: (0..100)
                .flat_map(|n| [slice(Some(n), n * 100), slice(None, n * 100 + 50)])
                .collect(),
            trigger: trigger_at(Some(36), 3_600),
            ..Timeline::default()
        };
        let extent = timeline.extent();
        assert_eq!((extent.round_trips, extent.calls), (Some(100), None));
        assert_eq!((extent.from_ns, extent.to_ns), (0, 9_951));
        timeline.keep_last(10);
        let numbers: Vec<_> = timeline
            .slices
            .iter()
            .filter_map(|s| s.round_trip)
            .collect();
        assert_eq!(numbers, (32..=41).collect::<Vec<_>>());
        assert!(
            timeline
                .slices
                .iter()
                .all(|s| (3_200..4_150).contains(&s.start_ns))
        );
        let mut stream_timeline = Timeline {
            slices: (0..1_000).map(|n| slice(None, n * 10)).collect(),
            trigger: trigger_at(None, 5_000),
            ..Timeline::default()
        };
        assert_eq!(stream_timeline.extent().calls, Some(1_000));
        stream_timeline.keep_last(2);
        let starts: Vec<_> = stream_timeline.slices.iter().map(|s| s.start_ns).collect();
        assert_eq!(starts.len(), 16);
        assert!(starts.contains(&5_000), "{starts:?}");
    }

    #[test]
    fn the_last_round_trips_and_parallel_work_are_kept() {
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
        timeline.slices.iter_mut().for_each(|s| s.round_trip = None);
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
