//! A port of a pair, with its memory and pool.

use std::ops::Range;
use std::time::{Duration, Instant};

use linerate_port::{AnyPort, Port, QueueTotals};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use super::net;

/// Timeout far above the time that a test takes on a loaded machine.
pub const TIMEOUT: Duration = Duration::from_secs(20);

pub struct TestPort {
    pub port: AnyPort,
    pub memory: FrameRegion,
    pub pool: FramePool,
}

impl TestPort {
    /// Opens the only queue of `url`, or prints what is missing.
    pub fn open(url: &str, memory: &FrameRegion) -> Option<Self> {
        Some(Self::all(url, memory)?.remove(0))
    }

    /// Opens all queues of `url`, or prints what is missing.
    pub fn all(url: &str, memory: &FrameRegion) -> Option<Vec<Self>> {
        let end = |port| Self {
            port,
            memory: memory.clone(),
            pool: memory.pool(),
        };
        Some(net::open(url, memory)?.into_iter().map(end).collect())
    }

    /// A unique frame: broadcast, an experimental EtherType, its number.
    pub fn frame(&mut self, number: u32, length: u16) -> Option<Frame> {
        let mut frame = self.pool.allocate()?;
        frame.set_len(length);
        let bytes = self.memory.bytes_mut(&mut frame);
        bytes.fill(number as u8);
        bytes[..6].fill(0xff);
        bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
        bytes[14..18].copy_from_slice(&number.to_be_bytes());
        Some(frame)
    }

    /// Puts all frames with these numbers into the ring.
    pub fn send(&mut self, numbers: Range<u32>, length: impl Fn(u32) -> u16) {
        let mut burst = Burst::new();
        let end = Instant::now() + TIMEOUT;
        let mut next = numbers.start;
        while next < numbers.end || !burst.is_empty() {
            assert!(Instant::now() < end, "{next} of {numbers:?} sent");
            while next < numbers.end && !burst.is_full() {
                let Some(frame) = self.frame(next, length(next)) else {
                    break;
                };
                burst.push(frame).unwrap();
                next += 1;
            }
            self.port.transmit(&mut self.pool, &mut burst);
        }
    }

    /// Makes the kernel send the frames that it left in the ring.
    pub fn flush(&mut self) {
        self.port.reclaim(&mut self.pool);
    }

    /// Adds the frames received to `received`.
    pub fn receive_into(&mut self, received: &mut Vec<Frame>) {
        let mut burst = Burst::new();
        self.port.receive(&mut self.pool, &mut burst);
        while let Some(frame) = burst.pop() {
            received.push(frame);
        }
    }

    pub fn free(&mut self, frames: impl IntoIterator<Item = Frame>) {
        for frame in frames {
            self.pool.free(frame);
        }
    }

    /// Counters of the receive queue, including the kernel's.
    pub fn received(&mut self) -> QueueTotals {
        self.port.refresh().unwrap();
        self.port.counters().0.read()
    }

    /// Counters of the transmit queue, including the kernel's.
    pub fn sent(&mut self) -> QueueTotals {
        self.port.refresh().unwrap();
        self.port.counters().1.read()
    }

    pub fn has_note(&self, text: &str) -> bool {
        let notes = &self.port.capabilities().notes;
        notes.iter().any(|note| note.contains(text))
    }
}

/// Opens two ports over memory of their own at the ends of a new veth pair, or prints what is missing.
pub fn open_pair(a: &str, b: &str) -> Option<(TestPort, TestPort)> {
    net::pair(1);
    let memory = net::memory(&[a, b]);
    Some((TestPort::open(a, &memory)?, TestPort::open(b, &memory)?))
}

/// Receives `count` frames while `local` continues to send; checks all bytes and returns the
/// numbers.
pub fn receive(local: &mut TestPort, remote: &mut TestPort, count: usize) -> Vec<u32> {
    let mut burst = Burst::new();
    let mut numbers = Vec::new();
    let end = Instant::now() + TIMEOUT;
    while numbers.len() < count {
        assert!(
            Instant::now() < end,
            "{} of {count} received",
            numbers.len()
        );
        local.flush();
        remote.port.receive(&mut remote.pool, &mut burst);
        for frame in burst.frames() {
            let bytes = remote.memory.bytes(frame);
            let number = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
            assert_eq!(bytes[12..14], [0x88, 0xb5]);
            let filled = bytes[18..].iter().all(|byte| *byte == number as u8);
            assert!(filled, "frame {number}: {bytes:x?}");
            numbers.push(number);
        }
        remote.pool.free_all(&mut burst);
    }
    numbers
}

/// Waits until the receive counters satisfy `is_settled`, while `local` continues to send.
pub fn settle(
    local: &mut TestPort,
    remote: &mut TestPort,
    is_settled: impl Fn(QueueTotals) -> bool,
) -> QueueTotals {
    let end = Instant::now() + TIMEOUT;
    loop {
        local.flush();
        let totals = remote.received();
        if is_settled(totals) {
            return totals;
        }
        assert!(Instant::now() < end, "{totals:?}");
    }
}

/// Length of a frame; the lengths cover 60 to 1514.
pub fn length(number: u32) -> u16 {
    60 + (number.wrapping_mul(7919) % 1455) as u16
}

/// Number of free frames.
pub fn free_frames(memory: &FrameRegion) -> usize {
    let mut pool = memory.pool();
    let frames: Vec<Frame> = std::iter::from_fn(|| pool.allocate()).collect();
    let count = frames.len();
    for frame in frames {
        pool.free(frame);
    }
    count
}
