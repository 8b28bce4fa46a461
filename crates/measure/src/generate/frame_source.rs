//! Source of frames: made from a template or taken from a capture, at a rate or at recorded times.

use std::sync::Arc;

use linerate_host::sys::clock::Nanos;
use linerate_metric::histogram::Histogram;
use linerate_port::{Burst, Memory, Pool};

use super::capture::Capture;
use super::template::{Tag, Template};
use crate::pacer::Pacer;

/// Bytes that the pacer counts for a frame. A large number keeps very low rates (one frame per
/// hour) exact.
const UNIT: u64 = 1_000_000;

/// Origin of the frames.
pub(super) enum Frames {
    /// Made from a template, with a tag each.
    Made(Box<Template>),
    /// Taken unchanged from a capture.
    Captured(Arc<Capture>),
}

/// Schedule of the frames.
enum Hold {
    Rate(Pacer),
    /// Recorded times relative to the first frame, with the lateness of the frames.
    Recorded(Histogram),
}

/// Makes the frames of a run, burst by burst.
pub(super) struct Source {
    frames: Frames,
    hold: Hold,
    mark: u16,
    epoch: Nanos,
    began: Nanos,
    limit: u64,
    made: u64,
    given_up: u64,
    flow: u32,
    /// Index of the size of the next frame, and of the first frame of this round over the flows.
    size: usize,
    round: usize,
    account: u16,
    /// Next frame number of each flow group.
    numbers: Box<[u64]>,
    /// Next frame of the capture, and number of completed passes over it.
    next: usize,
    rounds: u64,
}

impl Source {
    /// Creates the source of a run: at most `limit` frames, `rate` per second. `None`: unlimited,
    /// or at recorded times if the capture has them.
    pub(super) fn new(
        frames: Frames,
        rate: Option<f64>,
        limit: u64,
        burst: u32,
        accounts: u16,
        mark: u16,
        epoch: Nanos,
    ) -> Self {
        let recorded = matches!(&frames, Frames::Captured(capture) if capture.recorded_times());
        let hold = if recorded {
            Hold::Recorded(Histogram::coarse())
        } else {
            let units = rate.map(|rate| ((rate * UNIT as f64 * 8.0) as u64).max(1));
            Hold::Rate(Pacer::new(units, epoch).in_bursts_of(u64::from(burst.max(1)) * UNIT))
        };
        Self {
            frames,
            hold,
            mark,
            epoch,
            began: epoch,
            limit,
            made: 0,
            given_up: 0,
            flow: 0,
            size: 0,
            round: 0,
            account: 0,
            numbers: vec![0; accounts.max(1).into()].into_boxed_slice(),
            next: 0,
            rounds: 0,
        }
    }

    /// Limits the rate of late frames to twice the intended rate.
    pub(super) fn catching_up_gently(self) -> Self {
        let hold = match self.hold {
            Hold::Rate(pacer) => Hold::Rate(pacer.catching_up_gently()),
            recorded @ Hold::Recorded(_) => recorded,
        };
        Self { hold, ..self }
    }

    /// Sets the deadline of the first frame to `now`.
    pub(super) fn begin(&mut self, now: Nanos) {
        self.began = now;
        if let Hold::Rate(pacer) = &mut self.hold {
            pacer.due_from(now);
        }
    }

    /// Adds the frames with a deadline up to `until` to `burst`; returns their number. They are
    /// sent at `now`.
    #[inline]
    pub(super) fn fill(
        &mut self,
        now: Nanos,
        until: Nanos,
        pool: &mut Pool,
        memory: &Memory,
        burst: &mut Burst,
    ) -> usize {
        if let Hold::Rate(pacer) = &mut self.hold {
            self.given_up += pacer.give_up(now, UNIT);
        }
        let mut added = 0;
        while !burst.is_full() && !self.is_over() && self.is_due(now, until) {
            let Some(mut frame) = pool.allocate() else {
                break;
            };
            match &self.frames {
                Frames::Made(template) => {
                    let sizes = template.sizes().order();
                    frame.set_len(sizes[self.size]);
                    let tag = Tag {
                        mark: self.mark,
                        number: self.numbers[usize::from(self.account)],
                        account: self.account,
                        time_ns: now.saturating_sub(self.epoch),
                    };
                    template.write(memory.bytes_mut(&mut frame), self.flow, tag);
                    let (flows, count) = (template.flows(), sizes.len());
                    self.numbers[usize::from(self.account)] += 1;
                    self.advance(flows, count);
                }
                Frames::Captured(capture) => {
                    let bytes = capture.frame(self.next);
                    frame.set_len(bytes.len() as u16);
                    memory.bytes_mut(&mut frame).copy_from_slice(bytes);
                    self.numbers[0] += 1;
                    self.next += 1;
                    if self.next == capture.len() {
                        self.next = 0;
                        self.rounds += 1;
                    }
                }
            }
            if burst.push(frame).is_err() {
                unreachable!("the loop condition ensures space in the burst");
            }
            if let Hold::Rate(pacer) = &mut self.hold {
                pacer.left(UNIT, now);
            }
            self.made += 1;
            added += 1;
        }
        added
    }

    /// Advances to the next flow and size. Each round over the flows starts with another size, so
    /// that every flow gets all sizes.
    #[inline]
    fn advance(&mut self, flows: u32, sizes: usize) {
        self.size += 1;
        if self.size == sizes {
            self.size = 0;
        }
        self.flow += 1;
        self.account += 1;
        if usize::from(self.account) == self.numbers.len() {
            self.account = 0;
        }
        if self.flow == flows {
            self.flow = 0;
            self.account = 0;
            self.round += 1;
            if self.round == sizes {
                self.round = 0;
            }
            self.size = self.round;
        }
    }

    fn is_due(&mut self, now: Nanos, until: Nanos) -> bool {
        match (&mut self.hold, &self.frames) {
            (Hold::Rate(pacer), _) => pacer.may_leave(now, until),
            (Hold::Recorded(lateness), Frames::Captured(capture)) => {
                let due = self.began + capture.due_ns(self.next, self.rounds);
                let is_due = until >= due;
                if is_due {
                    lateness.record(now - due);
                }
                is_due
            }
            (Hold::Recorded(_), Frames::Made(_)) => true,
        }
    }

    /// Returns whether all frames have been made.
    pub(super) fn is_over(&self) -> bool {
        self.made >= self.limit
    }

    /// Returns the deadline of the next frame; `None` without a rate.
    pub(super) fn due(&self) -> Option<Nanos> {
        match (&self.hold, &self.frames) {
            (Hold::Rate(pacer), _) => pacer.is_paced().then(|| pacer.due_ns()),
            (Hold::Recorded(_), Frames::Captured(capture)) => {
                Some(self.began + capture.due_ns(self.next, self.rounds))
            }
            (Hold::Recorded(_), Frames::Made(_)) => None,
        }
    }

    /// Takes back a frame that was made but will not be sent. The caller passes the frames newest
    /// first.
    pub(super) fn take_back(&mut self, frame: &[u8]) {
        self.made -= 1;
        let account = match &self.frames {
            Frames::Made(template) => template
                .tag_place()
                .and_then(|(place, layout)| Tag::account_in(frame.get(place..)?, layout)),
            Frames::Captured(_) => None,
        };
        let number = &mut self.numbers[usize::from(account.unwrap_or(0))];
        *number = number.saturating_sub(1);
    }

    /// Returns the number of frames made and not taken back.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// Returns the frames sent by flow group, the number of skipped frames, and the lateness.
    pub(super) fn finish(self) -> (Box<[u64]>, u64, Option<Histogram>) {
        let lateness = match self.hold {
            Hold::Rate(pacer) => pacer.into_lateness(),
            Hold::Recorded(lateness) => Some(lateness),
        };
        (self.numbers, self.given_up, lateness)
    }
}
