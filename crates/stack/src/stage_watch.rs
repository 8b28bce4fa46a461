//! Stage times of datagrams and segments, and stamps written into replies. When off, the cost is
//! one check of an empty option.

use std::collections::VecDeque;

use linerate_record::device_timestamps::DeviceTimestamps;
use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
use linerate_sys::frames::frame_memory::FrameRegion;

use crate::Nanos;
use crate::socket::SocketId;
use crate::wire::{checksum_sum, combine_sums, read_u16, write_u16};

/// Departure of a datagram or segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameDeparture {
    /// Socket that sent it.
    pub socket: SocketId,
    /// Number of the datagram, counted from 0 for each socket; for a segment, the stream position
    /// of its last byte of payload. Modulo 2^32.
    pub number: u32,
    /// Time when the stack had finished it ("stack out").
    pub finished_ns: Nanos,
    /// Time when it was handed to the port ("driver out").
    pub sent_ns: Nanos,
}

/// Origin of a frame in the burst.
#[derive(Clone, Copy)]
pub(crate) struct FrameMark {
    pub(crate) socket: SocketId,
    pub(crate) number: u32,
    /// Arrival time of the request that it may be the reply to.
    pub(crate) request_arrived: Option<Nanos>,
    /// Time when the stack had finished it, if departures are kept.
    pub(crate) finished_at: Option<Nanos>,
    /// Offset of its UDP header in the frame.
    pub(crate) udp_offset: usize,
    /// True if its checksum is complete.
    pub(crate) has_checksum: bool,
}

/// Recorder of departures.
pub(crate) struct StageWatch {
    pub(crate) clock: fn() -> Nanos,
    pub(crate) stamps: Option<DeviceTimestamps>,
    /// Marks of the frames in the burst, in order.
    marks: VecDeque<Option<FrameMark>>,
    departures: VecDeque<FrameDeparture>,
    capacity: usize,
    missed: u64,
}

impl StageWatch {
    pub(crate) fn new(clock: fn() -> Nanos, frames: usize) -> Self {
        let mut marks = VecDeque::with_capacity(BURST_FRAMES);
        // Frames already in the burst have no mark.
        marks.extend((0..frames).map(|_| None));
        Self {
            clock,
            stamps: None,
            marks,
            departures: VecDeque::new(),
            capacity: 0,
            missed: 0,
        }
    }

    /// Sets the capacity for departures not yet fetched.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.departures.clear();
        self.departures.reserve_exact(capacity);
    }

    /// Reads the clock if departures are kept.
    #[inline]
    pub(crate) fn read_stage_clock(&self) -> Option<Nanos> {
        (self.capacity > 0).then(self.clock)
    }

    /// Records a frame put into the burst.
    #[inline]
    pub(crate) fn record_pushed(&mut self, mark: Option<FrameMark>) {
        self.marks.push_back(mark);
    }

    /// Reads the clock when the burst is handed to the port, and writes stamps into replies.
    pub(crate) fn stamp_burst(&self, memory: &FrameRegion, burst: &mut Burst) -> Nanos {
        let now = (self.clock)();
        if let Some(stamps) = &self.stamps {
            for (frame, mark) in burst.frames_mut().iter_mut().zip(&self.marks) {
                if let Some(mark) = mark
                    && let Some(request_arrived) = mark.request_arrived
                {
                    let datagram = &mut memory.bytes_mut(frame)[mark.udp_offset..];
                    write_stamps(stamps, datagram, (request_arrived, now), mark.has_checksum);
                }
            }
        }
        now
    }

    /// Records that the port took `count` frames from the front of the burst.
    pub(crate) fn record_sent(&mut self, count: usize, now: Nanos) {
        for _ in 0..count {
            let Some(Some(mark)) = self.marks.pop_front() else {
                continue;
            };
            // Frames made before departures were kept are not reported.
            let Some(handed_ns) = mark.finished_at else {
                continue;
            };
            if self.departures.len() < self.capacity {
                self.departures.push_back(FrameDeparture {
                    socket: mark.socket,
                    number: mark.number,
                    finished_ns: handed_ns,
                    sent_ns: now,
                });
            } else {
                self.missed += u64::from(self.capacity > 0);
            }
        }
    }

    pub(crate) fn take_departures(&mut self, mut take: impl FnMut(FrameDeparture)) -> u64 {
        while let Some(departure) = self.departures.pop_front() {
            take(departure);
        }
        std::mem::take(&mut self.missed)
    }
}

/// Writes both times into a datagram's payload and updates its checksum.
pub(crate) fn write_stamps(
    stamps: &DeviceTimestamps,
    datagram: &mut [u8],
    (arrived, sent): (Nanos, Nanos),
    has_checksum: bool,
) {
    let (header, payload) = datagram.split_at_mut(crate::wire::UDP_BYTES);
    let range = stamps.byte_range();
    // The checksum is a sum of 16-bit words, and the payload begins with one.
    let covered = range.start & !1..(range.end.next_multiple_of(2)).min(payload.len());
    let Some(before) = payload.get(covered.clone()).map(checksum_sum) else {
        return;
    };
    if !stamps.write(payload, arrived, sent) || !has_checksum || read_u16(header, 6) == 0 {
        return;
    }
    let after = checksum_sum(&payload[covered]);
    let checksum = !combine_sums([!read_u16(header, 6), !before, after]);
    write_u16(header, 6, if checksum == 0 { 0xffff } else { checksum });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The checksum stays correct wherever the times are written, and nothing else changes.
        #[test]
        fn stamps_keep_the_sum(
            payload in prop::collection::vec(any::<u8>(), 20..90),
            offset in 16u32..90,
            wide: bool,
            times: (u64, u64),
        ) {
            let text = format!("{offset},width={},order=le", if wide { 8 } else { 4 });
            let stamps: DeviceTimestamps = text.parse().unwrap();
            let mut datagram = vec![0, 7, 0, 8, 0, (8 + payload.len()) as u8, 0, 0];
            datagram.extend(&payload);
            let checksum = !checksum_sum(&datagram);
            write_u16(&mut datagram, 6, checksum);
            prop_assume!(checksum != 0);
            let mut stamped = datagram.clone();
            write_stamps(&stamps, &mut stamped, times, true);
            prop_assert_eq!(checksum_sum(&stamped) % 0xffff, 0);
            let range = stamps.byte_range();
            if range.end <= payload.len() {
                prop_assert_eq!(stamps.read(&stamped[8..]).unwrap().arrival as u32, times.0 as u32);
                stamped[8..][range.clone()].copy_from_slice(&payload[range]);
            }
            prop_assert_eq!(&stamped[8..], &payload[..]);
        }
    }
}
