//! Stage times of datagrams and segments, and stamps written into replies. When off, the cost is
//! one check of an empty option.

use std::collections::VecDeque;

use linerate_metric::device_timestamps::DeviceStamps;
use linerate_port::{BURST_FRAMES, Burst, Memory};

use crate::Nanos;
use crate::socket::SocketId;
use crate::wire::{combine, put, sum, word};

/// Departure of a datagram or segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Socket that sent it.
    pub socket: SocketId,
    /// Number of the datagram, counted from 0 for each socket; for a segment, the stream position
    /// of its last byte of payload. Modulo 2^32.
    pub number: u32,
    /// Time when the stack had finished it ("stack out").
    pub handed_ns: Nanos,
    /// Time when it was handed to the port ("driver out").
    pub left_ns: Nanos,
}

/// Origin of a frame in the burst.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) socket: SocketId,
    pub(crate) number: u32,
    /// Arrival time of the request that it may be the reply to.
    pub(crate) asked: Option<Nanos>,
    /// Time when the stack had finished it, if departures are kept.
    pub(crate) handed: Option<Nanos>,
    /// Offset of its UDP header in the frame.
    pub(crate) datagram: usize,
    /// True if its checksum is complete.
    pub(crate) summed: bool,
}

/// Recorder of departures.
pub(crate) struct Watch {
    pub(crate) clock: fn() -> Nanos,
    pub(crate) stamps: Option<DeviceStamps>,
    /// Marks of the frames in the burst, in order.
    marks: VecDeque<Option<Mark>>,
    departures: VecDeque<Departure>,
    room: usize,
    missed: u64,
}

impl Watch {
    pub(crate) fn new(clock: fn() -> Nanos, frames: usize) -> Self {
        let mut marks = VecDeque::with_capacity(BURST_FRAMES);
        // Frames already in the burst have no mark.
        marks.extend((0..frames).map(|_| None));
        Self {
            clock,
            stamps: None,
            marks,
            departures: VecDeque::new(),
            room: 0,
            missed: 0,
        }
    }

    /// Sets the capacity for departures not yet fetched.
    pub(crate) fn keep(&mut self, room: usize) {
        self.room = room;
        self.departures.clear();
        self.departures.reserve_exact(room);
    }

    /// Reads the clock if departures are kept.
    #[inline]
    pub(crate) fn stage_now(&self) -> Option<Nanos> {
        (self.room > 0).then(self.clock)
    }

    /// Records a frame put into the burst.
    #[inline]
    pub(crate) fn entered(&mut self, mark: Option<Mark>) {
        self.marks.push_back(mark);
    }

    /// Reads the clock when the burst is handed to the port, and writes stamps into replies.
    pub(crate) fn leaving(&self, memory: &Memory, burst: &mut Burst) -> Nanos {
        let now = (self.clock)();
        if let Some(stamps) = &self.stamps {
            for (frame, mark) in burst.frames_mut().iter_mut().zip(&self.marks) {
                if let Some(mark) = mark
                    && let Some(asked) = mark.asked
                {
                    let datagram = &mut memory.bytes_mut(frame)[mark.datagram..];
                    write(stamps, datagram, (asked, now), mark.summed);
                }
            }
        }
        now
    }

    /// Records that the port took `count` frames from the front of the burst.
    pub(crate) fn left(&mut self, count: usize, now: Nanos) {
        for _ in 0..count {
            let Some(Some(mark)) = self.marks.pop_front() else {
                continue;
            };
            // Frames made before departures were kept are not reported.
            let Some(handed_ns) = mark.handed else {
                continue;
            };
            if self.departures.len() < self.room {
                self.departures.push_back(Departure {
                    socket: mark.socket,
                    number: mark.number,
                    handed_ns,
                    left_ns: now,
                });
            } else {
                self.missed += u64::from(self.room > 0);
            }
        }
    }

    pub(crate) fn fetch(&mut self, mut take: impl FnMut(Departure)) -> u64 {
        while let Some(departure) = self.departures.pop_front() {
            take(departure);
        }
        std::mem::take(&mut self.missed)
    }
}

/// Writes both times into a datagram's payload and updates its checksum.
pub(crate) fn write(
    stamps: &DeviceStamps,
    datagram: &mut [u8],
    (came, left): (Nanos, Nanos),
    summed: bool,
) {
    let (header, payload) = datagram.split_at_mut(crate::wire::UDP_BYTES);
    let range = stamps.range();
    // The checksum is a sum of 16-bit words, and the payload begins with one.
    let words = range.start & !1..(range.end.next_multiple_of(2)).min(payload.len());
    let Some(before) = payload.get(words.clone()).map(sum) else {
        return;
    };
    if !stamps.write(payload, came, left) || !summed || word(header, 6) == 0 {
        return;
    }
    let after = sum(&payload[words]);
    let checksum = !combine([!word(header, 6), !before, after]);
    put(header, 6, if checksum == 0 { 0xffff } else { checksum });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            let stamps: DeviceStamps = text.parse().unwrap();
            let mut datagram = vec![0, 7, 0, 8, 0, (8 + payload.len()) as u8, 0, 0];
            datagram.extend(&payload);
            let checksum = !sum(&datagram);
            put(&mut datagram, 6, checksum);
            prop_assume!(checksum != 0);
            let mut stamped = datagram.clone();
            write(&stamps, &mut stamped, times, true);
            prop_assert_eq!(sum(&stamped) % 0xffff, 0);
            let range = stamps.range();
            if range.end <= payload.len() {
                prop_assert_eq!(stamps.read(&stamped[8..]).unwrap().came as u32, times.0 as u32);
                stamped[8..][range.clone()].copy_from_slice(&payload[range]);
            }
            prop_assert_eq!(&stamped[8..], &payload[..]);
        }
    }
}
