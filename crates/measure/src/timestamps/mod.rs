//! Timestamps of round trips at every stage: a second pass that explains the first.
//!
//! Both ends keep a [`Half`] of each round trip. The responding end sends its timestamps at the
//! end,
//! and [`stages`] computes the figures from both. Memory is bounded: a ring of the latest round
//! trips.

pub mod clock_offsets;
pub mod ring;
pub mod scheduler_tracer;
pub mod stages;
pub mod timeline_export;

use linerate_dialect::control::{DeviceStamps, Stamps};
use linerate_metric::record::{Stage, StagePass, Timeline};

use crate::transport::call_times::{LATEST_OF_ALL, TimedCall};

pub use clock_offsets::Clocks;
pub use ring::{COLD_TRIPS, DeviceUse, Finished, GivenUp, Half, Log, Work};
pub use scheduler_tracer::Instruments;

/// Round trips, or pieces of receive work, per frame: some 300 KiB.
const PART: usize = 4096;

/// Largest number of system calls kept of an end.
const CALLS: usize = LATEST_OF_ALL;

/// Largest number of warnings accepted from an end.
const NOTES: usize = 8;

/// Largest length of a warning accepted from the other end, in characters.
const NOTE_CHARACTERS: usize = 256;

/// Timestamps and events recorded at one end.
#[derive(Clone, Debug, Default)]
pub struct Noted {
    /// Round trips by number.
    pub halves: Vec<Half>,
    /// Receive work of the processors.
    pub work: Vec<Work>,
    /// Latest system calls.
    pub calls: Vec<TimedCall>,
    /// Warnings about data that could not be recorded.
    pub notes: Vec<String>,
    /// Use of hardware timestamps.
    pub device: DeviceUse,
    /// Lost request that ended the pass.
    pub given_up: Option<GivenUp>,
}

impl Noted {
    /// Takes the contents of a ring.
    #[must_use]
    pub fn of(log: Log) -> Self {
        let Finished {
            halves,
            work,
            notes,
            device,
            given_up,
        } = log.finish();
        Self {
            halves,
            work,
            calls: Vec::new(),
            notes,
            device,
            given_up,
        }
    }

    /// Creates a log of calls only.
    #[must_use]
    pub fn of_calls(calls: Vec<TimedCall>) -> Self {
        // The other end accepts the latest calls of all threads, up to this number.
        let mut calls = calls;
        calls.sort_by_key(|call| call.from_ns);
        calls.drain(..calls.len().saturating_sub(CALLS));
        Self {
            calls,
            ..Self::default()
        }
    }

    /// Splits the log into frames for the other end.
    #[must_use]
    pub fn parts(self, flow: u32) -> Vec<Stamps> {
        let DeviceUse {
            departures,
            arrivals,
            error_ns,
        } = self.device;
        let stamped = (departures || arrivals).then_some(DeviceStamps {
            departures,
            arrivals,
            error_ns,
        });
        let mut parts = vec![Stamps {
            flow,
            notes: self.notes,
            device: stamped,
            ..Stamps::default()
        }];
        parts.extend(self.halves.chunks(PART).map(|halves| Stamps {
            flow,
            trips: halves.iter().map(|half| half.to_words()).collect(),
            ..Stamps::default()
        }));
        parts.extend(self.work.chunks(PART).map(|work| {
            Stamps {
                flow,
                work: work
                    .iter()
                    .map(|w| [w.from_ns, w.to_ns, w.cpu.into()])
                    .collect(),
                ..Stamps::default()
            }
        }));
        parts.extend(self.calls.chunks(PART).map(|calls| {
            let words = |c: &TimedCall| [c.from_ns, c.to_ns, c.slot.into(), c.thread.into()];
            Stamps {
                flow,
                calls: calls.iter().map(words).collect(),
                ..Stamps::default()
            }
        }));
        parts
    }

    /// Adds a frame of the other end, up to the limits of a correct one.
    pub fn take(&mut self, stamps: Stamps) {
        if let Some(device) = stamps.device {
            self.device = DeviceUse {
                departures: device.departures,
                arrivals: device.arrivals,
                error_ns: device.error_ns,
            };
        }
        let room = ring::KEPT.saturating_sub(self.halves.len());
        let trips = stamps.trips.into_iter().take(room);
        self.halves.extend(trips.map(Half::from_words));
        let room = ring::WORKS.saturating_sub(self.work.len());
        let work = stamps.work.into_iter().take(room);
        self.work.extend(work.map(|[from_ns, to_ns, cpu]| Work {
            from_ns,
            to_ns,
            cpu: u32::try_from(cpu).unwrap_or(u32::MAX),
        }));
        let room = CALLS.saturating_sub(self.calls.len());
        let calls = stamps.calls.into_iter().take(room);
        self.calls
            .extend(calls.map(|[from_ns, to_ns, slot, thread]| TimedCall {
                from_ns,
                to_ns,
                slot: u16::try_from(slot).unwrap_or(u16::MAX),
                thread: u32::try_from(thread).unwrap_or(u32::MAX),
            }));
        let room = NOTES.saturating_sub(self.notes.len());
        let notes = stamps.notes.into_iter().take(room);
        self.notes.extend(notes.map(|mut note| {
            if let Some((end, _)) = note.char_indices().nth(NOTE_CHARACTERS) {
                note.truncate(end);
            }
            note
        }));
    }
}

/// Timestamps of both ends.
#[derive(Clone, Debug)]
pub struct Stamped {
    /// Start of the run, on the client's clock.
    pub start_ns: u64,
    /// Timestamps of the requesting end.
    pub near: Noted,
    /// Timestamps of the responding end, on its own clock.
    pub far: Noted,
}

/// Analysis of a pass.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Times of the stages.
    pub stages: Vec<Stage>,
    /// Facts of the pass: round trips used, errors, warnings.
    pub pass: StagePass,
    /// Events in the order of time.
    pub timeline: Timeline,
}

impl Stamped {
    /// Converts both ends to one clock and computes the figures. `clocks` is absent within one
    /// host;
    /// `waited_for_ns` is the limit above which a round trip ended the pass, if any.
    #[must_use]
    pub fn explain(mut self, clocks: Option<&Clocks>, waited_for_ns: Option<u64>) -> Explained {
        if let Some(clocks) = clocks {
            for half in &mut self.far.halves {
                // The offset changes by far less than a round trip, so any of its times will do.
                *half = half.carried(clocks.ahead_ns(half.received_ns));
            }
            for work in &mut self.far.work {
                let ahead = clocks.ahead_ns(work.from_ns) as u64;
                work.from_ns = work.from_ns.wrapping_sub(ahead);
                work.to_ns = work.to_ns.wrapping_sub(ahead);
            }
            for call in &mut self.far.calls {
                let ahead = clocks.ahead_ns(call.from_ns) as u64;
                call.from_ns = call.from_ns.wrapping_sub(ahead);
                call.to_ns = call.to_ns.wrapping_sub(ahead);
            }
        }
        let error = clocks.map(Clocks::error_ns);
        let (stages, mut pass) = stages::figures(&self.near, &self.far, error);
        pass.notes.clone_from(&self.near.notes);
        pass.notes.extend(self.far.notes.iter().cloned());
        let timeline = timeline_export::timeline(&self, error, waited_for_ns);
        Explained {
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
    fn notes_cross_in_parts_and_bounded() {
        let noted = Noted {
            given_up: None,
            halves: (0..10_000)
                .map(|number| Half {
                    number,
                    ..Half::default()
                })
                .collect(),
            work: vec![
                Work {
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
            notes: vec!["why".to_owned()],
            device: DeviceUse {
                departures: true,
                arrivals: false,
                error_ns: 700,
            },
        };
        let parts = noted.clone().parts(1);
        assert_eq!(parts.len(), 1 + 3 + 2 + 2);
        let mut heard = Noted::default();
        for part in parts.clone() {
            heard.take(part);
        }
        assert_eq!(heard.halves, noted.halves);
        assert_eq!(heard.work, noted.work);
        assert_eq!(heard.notes, noted.notes);
        assert_eq!(heard.calls, noted.calls);
        assert_eq!(heard.device, noted.device);
        heard.take(Stamps {
            notes: vec!["é".repeat(100_000), "short".to_owned()],
            ..Stamps::default()
        });
        assert_eq!(heard.notes[1].chars().count(), NOTE_CHARACTERS);
        assert_eq!(heard.notes[2], "short");
        let mut flooded = Noted::default();
        for _ in 0..100 {
            parts.iter().for_each(|part| flooded.take(part.clone()));
        }
        assert_eq!(
            (flooded.halves.len(), flooded.calls.len()),
            (ring::KEPT, CALLS)
        );
        assert_eq!(
            (flooded.work.len(), flooded.notes.len()),
            (4 * ring::KEPT, NOTES)
        );
    }
}
