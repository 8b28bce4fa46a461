//! Timestamps of round trips at every stage: a second pass that explains the first.
//!
//! Both ends keep an [`EndTimestamps`] of each round trip. The responding end sends its timestamps
//! at the end, and [`stages`] computes the figures from both. Memory is bounded: a ring of the
//! latest round trips.

pub mod clock_offsets;
pub mod ring;
pub mod scheduler_tracer;
pub mod stages;
pub mod timeline_export;

pub use clock_offsets::ClockOffsets;
use linerate_protocol::control::{DeviceTimestamping, ResponderTimestamps};
use linerate_record::record::{RoundTripStage, StagePass, Timeline};
use linerate_transport::MAX_TIMESTAMPED_ROUND_TRIPS;
use linerate_transport::call_times::{MAX_TRACED_CALLS, TimedCall};
pub use ring::{
    EndTimestamps, HardwareTimestampUse, LostRequest, ReceiveWork, RingContents, TimestampRing,
    WARM_UP_ROUND_TRIPS,
};
pub use scheduler_tracer::SchedulerTracer;

/// Round trips, or pieces of receive work, per frame: some 300 KiB.
const FRAME_ITEMS: usize = 4096;

/// Largest number of system calls kept of an end.
const MAX_CALLS: usize = MAX_TRACED_CALLS;

/// Largest number of warnings accepted from an end.
const MAX_WARNINGS: usize = 8;

/// Largest length of a warning accepted from the other end, in characters.
const MAX_WARNING_CHARACTERS: usize = 256;

/// Timestamps and events recorded at one end.
#[derive(Clone, Debug, Default)]
pub struct TimestampLog {
    /// Round trips by number.
    pub entries: Vec<EndTimestamps>,
    /// Receive work of the processors.
    pub receive_work: Vec<ReceiveWork>,
    /// Latest system calls.
    pub calls: Vec<TimedCall>,
    /// Warnings about data that could not be recorded.
    pub warnings: Vec<String>,
    /// Use of hardware timestamps.
    pub device: HardwareTimestampUse,
    /// Lost request that ended the pass.
    pub lost_request: Option<LostRequest>,
}

impl TimestampLog {
    /// Takes the contents of a ring.
    #[must_use]
    pub fn from_ring(log: TimestampRing) -> Self {
        let RingContents {
            entries,
            receive_work: work,
            warnings,
            device,
            lost_request,
        } = log.finish();
        Self {
            entries,
            receive_work: work,
            calls: Vec::new(),
            warnings,
            device,
            lost_request,
        }
    }

    /// Creates a log of calls only.
    #[must_use]
    pub fn from_calls(calls: Vec<TimedCall>) -> Self {
        // The other end accepts the latest calls of all threads, up to this number.
        let mut calls = calls;
        calls.sort_by_key(|call| call.from_ns);
        calls.drain(..calls.len().saturating_sub(MAX_CALLS));
        Self {
            calls,
            ..Self::default()
        }
    }

    /// Splits the log into frames for the other end.
    #[must_use]
    pub fn into_frames(self, flow: u32) -> Vec<ResponderTimestamps> {
        let HardwareTimestampUse {
            departures,
            arrivals,
            error_ns,
        } = self.device;
        let stamped = (departures || arrivals).then_some(DeviceTimestamping {
            departures,
            arrivals,
            error_ns,
        });
        let mut frames = vec![ResponderTimestamps {
            flow,
            caveats: self.warnings,
            device: stamped,
            ..ResponderTimestamps::default()
        }];
        frames.extend(
            self.entries
                .chunks(FRAME_ITEMS)
                .map(|entries| ResponderTimestamps {
                    flow,
                    round_trips: entries.iter().map(|entry| entry.to_fields()).collect(),
                    ..ResponderTimestamps::default()
                }),
        );
        frames.extend(self.receive_work.chunks(FRAME_ITEMS).map(|receive_work| {
            ResponderTimestamps {
                flow,
                work: receive_work
                    .iter()
                    .map(|w| [w.from_ns, w.to_ns, w.cpu.into()])
                    .collect(),
                ..ResponderTimestamps::default()
            }
        }));
        frames.extend(self.calls.chunks(FRAME_ITEMS).map(|calls| {
            let fields = |c: &TimedCall| [c.from_ns, c.to_ns, c.slot.into(), c.thread.into()];
            ResponderTimestamps {
                flow,
                calls: calls.iter().map(fields).collect(),
                ..ResponderTimestamps::default()
            }
        }));
        frames
    }

    /// Adds a frame of the other end, up to the limits of a correct one.
    pub fn add_frame(&mut self, frame: ResponderTimestamps) {
        if let Some(device) = frame.device {
            self.device = HardwareTimestampUse {
                departures: device.departures,
                arrivals: device.arrivals,
                error_ns: device.error_ns,
            };
        }
        let capacity = MAX_TIMESTAMPED_ROUND_TRIPS.saturating_sub(self.entries.len());
        let entries = frame.round_trips.into_iter().take(capacity);
        self.entries.extend(entries.map(EndTimestamps::from_fields));
        let capacity = ring::MAX_RECEIVE_WORK.saturating_sub(self.receive_work.len());
        let work = frame.work.into_iter().take(capacity);
        self.receive_work
            .extend(work.map(|[from_ns, to_ns, cpu]| ReceiveWork {
                from_ns,
                to_ns,
                cpu: u32::try_from(cpu).unwrap_or(u32::MAX),
            }));
        let capacity = MAX_CALLS.saturating_sub(self.calls.len());
        let calls = frame.calls.into_iter().take(capacity);
        self.calls
            .extend(calls.map(|[from_ns, to_ns, slot, thread]| TimedCall {
                from_ns,
                to_ns,
                slot: u16::try_from(slot).unwrap_or(u16::MAX),
                thread: u32::try_from(thread).unwrap_or(u32::MAX),
            }));
        let capacity = MAX_WARNINGS.saturating_sub(self.warnings.len());
        let warnings = frame.caveats.into_iter().take(capacity);
        self.warnings.extend(warnings.map(|mut warning| {
            if let Some((end, _)) = warning.char_indices().nth(MAX_WARNING_CHARACTERS) {
                warning.truncate(end);
            }
            warning
        }));
    }
}

/// Timestamps of both ends.
#[derive(Clone, Debug)]
pub struct TimestampPass {
    /// Start of the run, on the client's clock.
    pub start_ns: u64,
    /// Timestamps of the requesting end.
    pub client: TimestampLog,
    /// Timestamps of the responding end, on its own clock.
    pub server: TimestampLog,
}

/// Analysis of a pass.
#[derive(Clone, Debug)]
pub struct PassAnalysis {
    /// Times of the stages.
    pub stages: Vec<RoundTripStage>,
    /// Facts of the pass: round trips used, errors, warnings.
    pub pass: StagePass,
    /// Events in the order of time.
    pub timeline: Timeline,
}

impl TimestampPass {
    /// Converts both ends to one clock and computes the figures. `clocks` is absent within one
    /// host; `trigger_above_ns` is the limit above which a round trip ended the pass, if any.
    #[must_use]
    pub fn analyse(
        mut self,
        clocks: Option<&ClockOffsets>,
        trigger_above_ns: Option<u64>,
    ) -> PassAnalysis {
        if let Some(clocks) = clocks {
            for entry in &mut self.server.entries {
                // The offset changes by far less than a round trip, so any of its times will do.
                *entry = entry.to_clock_behind(clocks.offset_at_ns(entry.received_ns));
            }
            for work in &mut self.server.receive_work {
                let ahead = clocks.offset_at_ns(work.from_ns) as u64;
                work.from_ns = work.from_ns.wrapping_sub(ahead);
                work.to_ns = work.to_ns.wrapping_sub(ahead);
            }
            for call in &mut self.server.calls {
                let ahead = clocks.offset_at_ns(call.from_ns) as u64;
                call.from_ns = call.from_ns.wrapping_sub(ahead);
                call.to_ns = call.to_ns.wrapping_sub(ahead);
            }
        }
        let error = clocks.map(ClockOffsets::error_ns);
        let (stages, mut pass) = stages::compute_stages(&self.client, &self.server, error);
        pass.notes.clone_from(&self.client.warnings);
        pass.notes.extend(self.server.warnings.iter().cloned());
        let timeline = timeline_export::build_timeline(&self, error, trigger_above_ns);
        PassAnalysis {
            stages,
            pass,
            timeline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_split_into_frames_and_bounded() {
        let noted = TimestampLog {
            lost_request: None,
            entries: (0..10_000)
                .map(|number| EndTimestamps {
                    number,
                    ..EndTimestamps::default()
                })
                .collect(),
            receive_work: vec![
                ReceiveWork {
                    from_ns: 1,
                    to_ns: 2,
                    cpu: 3
                };
                5_000
            ],
            calls: vec![
                TimedCall {
                    from_ns: 1,
                    to_ns: 2,
                    slot: 3,
                    thread: 4
                };
                4_097
            ],
            warnings: vec!["why".to_owned()],
            device: HardwareTimestampUse {
                departures: true,
                arrivals: false,
                error_ns: 700,
            },
        };
        let frames = noted.clone().into_frames(1);
        assert_eq!(frames.len(), 1 + 3 + 2 + 2);
        let mut received = TimestampLog::default();
        for frame in frames.clone() {
            received.add_frame(frame);
        }
        assert_eq!(received.entries, noted.entries);
        assert_eq!(received.receive_work, noted.receive_work);
        assert_eq!(received.warnings, noted.warnings);
        assert_eq!(received.calls, noted.calls);
        assert_eq!(received.device, noted.device);
        received.add_frame(ResponderTimestamps {
            caveats: vec!["é".repeat(100_000), "short".to_owned()],
            ..ResponderTimestamps::default()
        });
        assert_eq!(received.warnings[1].chars().count(), MAX_WARNING_CHARACTERS);
        assert_eq!(received.warnings[2], "short");
        let mut flooded = TimestampLog::default();
        for _ in 0..100 {
            frames
                .iter()
                .for_each(|frame| flooded.add_frame(frame.clone()));
        }
        assert_eq!(
            (flooded.entries.len(), flooded.calls.len()),
            (MAX_TIMESTAMPED_ROUND_TRIPS, MAX_CALLS)
        );
        assert_eq!(
            (flooded.receive_work.len(), flooded.warnings.len()),
            (4 * MAX_TIMESTAMPED_ROUND_TRIPS, MAX_WARNINGS)
        );
    }
}
