//! Source of frames: made from a template or taken from a capture, at a rate or at recorded times.

use std::sync::Arc;

use linerate_packet::template::{FrameTag, Template};
use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use linerate_workload::pacer::Pacer;

use super::capture::Capture;

/// Bytes that the pacer counts for a frame. A large number keeps very low rates (one frame per
/// hour) exact.
const PACER_FRAME_BYTES: u64 = 1_000_000;

/// Origin of the frames.
pub(super) enum FrameOrigin {
    /// Made from a template, with a tag each.
    Template(Box<Template>),
    /// Taken unchanged from a capture.
    Capture(Arc<Capture>),
}

/// Schedule of the frames.
enum FrameSchedule {
    Rate(Pacer),
    /// Recorded times relative to the first frame, with the lateness of the frames.
    Recorded(Histogram),
}

/// Makes the frames of a run, burst by burst.
pub(super) struct FrameSource {
    origin: FrameOrigin,
    schedule: FrameSchedule,
    mark: u16,
    epoch: Nanos,
    started_at: Nanos,
    limit: u64,
    frames_made: u64,
    skipped: u64,
    flow: u32,
    /// Index of the size of the next frame, and of the first frame of this round over the flows.
    size_index: usize,
    first_size_index: usize,
    flow_group: u16,
    /// Next frame number of each flow group.
    next_numbers: Box<[u64]>,
    /// Next frame of the capture, and number of completed passes over it.
    next_frame: usize,
    capture_rounds: u64,
}

impl FrameSource {
    /// Creates the source of a run: at most `limit` frames, `rate` per second. `None`: unlimited,
    /// or at recorded times if the capture has them.
    pub(super) fn new(
        origin: FrameOrigin,
        rate: Option<f64>,
        limit: u64,
        burst: u32,
        flow_groups: u16,
        mark: u16,
        epoch: Nanos,
    ) -> Self {
        let recorded = matches!(&origin, FrameOrigin::Capture(capture) if capture.recorded_times());
        let schedule = if recorded {
            FrameSchedule::Recorded(Histogram::coarse())
        } else {
            let bits_per_second =
                rate.map(|rate| ((rate * PACER_FRAME_BYTES as f64 * 8.0) as u64).max(1));
            FrameSchedule::Rate(
                Pacer::new(bits_per_second, epoch)
                    .with_burst_bytes(u64::from(burst.max(1)) * PACER_FRAME_BYTES),
            )
        };
        Self {
            origin,
            schedule,
            mark,
            epoch,
            started_at: epoch,
            limit,
            frames_made: 0,
            skipped: 0,
            flow: 0,
            size_index: 0,
            first_size_index: 0,
            flow_group: 0,
            next_numbers: vec![0; flow_groups.max(1).into()].into_boxed_slice(),
            next_frame: 0,
            capture_rounds: 0,
        }
    }

    /// Limits the rate of late frames to twice the intended rate.
    pub(super) fn with_gentle_catch_up(self) -> Self {
        let schedule = match self.schedule {
            FrameSchedule::Rate(pacer) => FrameSchedule::Rate(pacer.with_smooth_catch_up()),
            recorded @ FrameSchedule::Recorded(_) => recorded,
        };
        Self { schedule, ..self }
    }

    /// Sets the deadline of the first frame to `now`.
    pub(super) fn start(&mut self, now: Nanos) {
        self.started_at = now;
        if let FrameSchedule::Rate(pacer) = &mut self.schedule {
            pacer.set_start_ns(now);
        }
    }

    /// Adds the frames with a deadline up to `latest_deadline` to `burst`; returns their number.
    /// They are sent at `now`.
    #[inline]
    pub(super) fn fill(
        &mut self,
        now: Nanos,
        latest_deadline: Nanos,
        pool: &mut FramePool,
        memory: &FrameRegion,
        burst: &mut Burst,
    ) -> usize {
        if let FrameSchedule::Rate(pacer) = &mut self.schedule {
            self.skipped += pacer.drop_overdue(now, PACER_FRAME_BYTES);
        }
        let mut added = 0;
        while !burst.is_full() && !self.is_exhausted() && self.may_send(now, latest_deadline) {
            let Some(mut frame) = pool.allocate() else {
                break;
            };
            match &self.origin {
                FrameOrigin::Template(template) => {
                    let sizes = template.sizes().sequence();
                    frame.set_len(sizes[self.size_index]);
                    let tag = FrameTag {
                        mark: self.mark,
                        number: self.next_numbers[usize::from(self.flow_group)],
                        flow_group: self.flow_group,
                        time_ns: now.saturating_sub(self.epoch),
                    };
                    template.write(memory.bytes_mut(&mut frame), self.flow, tag);
                    let (flows, count) = (template.flows(), sizes.len());
                    self.next_numbers[usize::from(self.flow_group)] += 1;
                    self.advance(flows, count);
                }
                FrameOrigin::Capture(capture) => {
                    let bytes = capture.frame(self.next_frame);
                    frame.set_len(bytes.len() as u16);
                    memory.bytes_mut(&mut frame).copy_from_slice(bytes);
                    self.next_numbers[0] += 1;
                    self.next_frame += 1;
                    if self.next_frame == capture.len() {
                        self.next_frame = 0;
                        self.capture_rounds += 1;
                    }
                }
            }
            if burst.push(frame).is_err() {
                unreachable!("the loop condition ensures space in the burst");
            }
            if let FrameSchedule::Rate(pacer) = &mut self.schedule {
                pacer.record_sent(PACER_FRAME_BYTES, now);
            }
            self.frames_made += 1;
            added += 1;
        }
        added
    }

    /// Advances to the next flow and size. Each round over the flows starts with another size, so
    /// that every flow gets all sizes.
    #[inline]
    fn advance(&mut self, flows: u32, sizes: usize) {
        self.size_index += 1;
        if self.size_index == sizes {
            self.size_index = 0;
        }
        self.flow += 1;
        self.flow_group += 1;
        if usize::from(self.flow_group) == self.next_numbers.len() {
            self.flow_group = 0;
        }
        if self.flow == flows {
            self.flow = 0;
            self.flow_group = 0;
            self.first_size_index += 1;
            if self.first_size_index == sizes {
                self.first_size_index = 0;
            }
            self.size_index = self.first_size_index;
        }
    }

    fn may_send(&mut self, now: Nanos, latest_deadline: Nanos) -> bool {
        match (&mut self.schedule, &self.origin) {
            (FrameSchedule::Rate(pacer), _) => pacer.may_send(now, latest_deadline),
            (FrameSchedule::Recorded(lateness), FrameOrigin::Capture(capture)) => {
                let deadline =
                    self.started_at + capture.deadline_ns(self.next_frame, self.capture_rounds);
                let is_due = latest_deadline >= deadline;
                if is_due {
                    lateness.record(now - deadline);
                }
                is_due
            }
            (FrameSchedule::Recorded(_), FrameOrigin::Template(_)) => true,
        }
    }

    /// Returns whether all frames have been made.
    pub(super) fn is_exhausted(&self) -> bool {
        self.frames_made >= self.limit
    }

    /// Returns the deadline of the next frame; `None` without a rate.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        match (&self.schedule, &self.origin) {
            (FrameSchedule::Rate(pacer), _) => pacer.is_paced().then(|| pacer.next_departure_ns()),
            (FrameSchedule::Recorded(_), FrameOrigin::Capture(capture)) => {
                Some(self.started_at + capture.deadline_ns(self.next_frame, self.capture_rounds))
            }
            (FrameSchedule::Recorded(_), FrameOrigin::Template(_)) => None,
        }
    }

    /// Takes back a frame that was made but will not be sent. The caller passes the frames newest
    /// first.
    pub(super) fn retract(&mut self, frame: &[u8]) {
        self.frames_made -= 1;
        let flow_group = match &self.origin {
            FrameOrigin::Template(template) => template
                .tag_location()
                .and_then(|(offset, layout)| FrameTag::flow_group_of(frame.get(offset..)?, layout)),
            FrameOrigin::Capture(_) => None,
        };
        let number = &mut self.next_numbers[usize::from(flow_group.unwrap_or(0))];
        *number = number.saturating_sub(1);
    }

    /// Returns the number of frames made and not taken back.
    pub(super) fn frames_made(&self) -> u64 {
        self.frames_made
    }

    /// Returns the frames sent by flow group, the number of skipped frames, and the lateness.
    pub(super) fn into_results(self) -> (Box<[u64]>, u64, Option<Histogram>) {
        let lateness = match self.schedule {
            FrameSchedule::Rate(pacer) => pacer.into_lateness(),
            FrameSchedule::Recorded(lateness) => Some(lateness),
        };
        (self.next_numbers, self.skipped, lateness)
    }
}
