//! Timestamps in the TCP writes of a test with `--trip-times`, in both directions.

use super::settings::flags;
use super::{
    Iperf2Direction, Iperf2Settings, TestAmount, read_u32, to_wire_time, wire_time_ns, write_u32,
};

/// Bytes of the header of each write that are read here.
pub const WRITE_HEADER_BYTES: usize = 52;

/// Offset of the time of the write.
const WRITE_TIME_OFFSET: usize = 20;

/// Offset of the number of the write; the first is 1.
const NUMBER_OFFSET: usize = 44;

/// Offset of the size of the write, header included.
const SIZE_OFFSET: usize = 48;

/// Largest plausible write in bytes.
const WRITE_LIMIT_BYTES: u32 = 1 << 30;

/// Reader of the one-way delay of each write of a client: from the time in its header to the
/// arrival of its last byte.
///
/// The writes begin after the settings. The size in each header gives the position of the next one,
/// so after an implausible header nothing more is read.
#[derive(Debug, Default)]
pub struct WriteDelayReader {
    header: Vec<u8>,
    /// Remaining bytes of the write, after its header.
    remaining_bytes: u64,
    written_ns: u64,
    number: u32,
    out_of_sync: bool,
}

impl WriteDelayReader {
    /// Creates the reader for a connection whose settings were just read.
    #[must_use]
    pub fn new() -> Self {
        Self {
            header: Vec::with_capacity(WRITE_HEADER_BYTES),
            ..Self::default()
        }
    }

    /// Reads received bytes and calls `delay` for each write that ended in them, with its delay in
    /// nanoseconds; negative if the clocks are not synchronised.
    pub fn receive(&mut self, mut bytes: &[u8], now_wall_ns: u64, mut delay: impl FnMut(i64)) {
        while !bytes.is_empty() && !self.out_of_sync {
            if self.header.len() < WRITE_HEADER_BYTES {
                let chunk_bytes = bytes.len().min(WRITE_HEADER_BYTES - self.header.len());
                self.header.extend_from_slice(&bytes[..chunk_bytes]);
                bytes = &bytes[chunk_bytes..];
                if self.header.len() < WRITE_HEADER_BYTES {
                    return;
                }
                self.out_of_sync = self.read_header().is_none();
            } else {
                let chunk_bytes = self.remaining_bytes.min(bytes.len() as u64);
                self.remaining_bytes -= chunk_bytes;
                // At most the length of a slice, so the conversion is lossless.
                bytes = &bytes[chunk_bytes as usize..];
            }
            if self.remaining_bytes == 0 && !self.out_of_sync {
                delay(now_wall_ns.wrapping_sub(self.written_ns) as i64);
                self.header.clear();
            }
        }
    }

    /// Returns whether an implausible header was found.
    #[must_use]
    pub fn is_out_of_sync(&self) -> bool {
        self.out_of_sync
    }

    /// Reads the header of a write; `None` if it is implausible.
    fn read_header(&mut self) -> Option<()> {
        let at = |offset| read_u32(&self.header, offset);
        let (number, size) = (at(NUMBER_OFFSET)?, at(SIZE_OFFSET)?);
        let (seconds, microseconds) = (at(WRITE_TIME_OFFSET)?, at(WRITE_TIME_OFFSET + 4)?);
        if number != self.number.wrapping_add(1)
            || size > WRITE_LIMIT_BYTES
            || seconds == 0
            || microseconds >= 1_000_000
        {
            return None;
        }
        self.remaining_bytes = u64::from(size).checked_sub(WRITE_HEADER_BYTES as u64)?;
        self.number = number;
        let written_ns = wire_time_ns(seconds, microseconds);
        // The writes of one connection are in order: a clock that goes back was set.
        let is_later = written_ns >= self.written_ns;
        self.written_ns = written_ns;
        is_later.then_some(())
    }
}

/// Bytes that a server sends before its first write: the settings as it read them, and its start
/// time.
const REPLY_BYTES: usize = 80;

/// Offset of the start time in these bytes.
const REPLY_START_OFFSET: usize = 64;

/// Offset of the start time in the header of each write.
const START_TIME_OFFSET: usize = 12;

/// Writer of timestamps in the writes of a server, for a client that requests trip times.
#[derive(Clone, Debug)]
pub struct WriteTimestamper {
    reply: [u8; REPLY_BYTES],
    header: [u8; WRITE_HEADER_BYTES],
}

impl WriteTimestamper {
    /// Creates the writer for a client with these settings; `None` if it requests no timestamps, or
    /// its writes are too small for them.
    #[must_use]
    pub fn new(settings: &Iperf2Settings, write_bytes: usize, start_wall_ns: u64) -> Option<Self> {
        let version = settings.version.filter(|_| settings.trip_times)?;
        let write_bytes = u32::try_from(write_bytes).ok()?;
        if (write_bytes as usize) < REPLY_BYTES {
            return None;
        }
        let mut first = flags::EXTENSION | flags::LENGTH | (REPLY_BYTES as u32) << 1;
        let mut upper = flags::TRIP_TIMES;
        // A client that only receives expects the settings of the direction towards it.
        if settings.direction == Iperf2Direction::Both {
            first |= flags::V2;
            upper |= flags::FULL_DUPLEX;
        }
        let amount = match settings.amount {
            None => 0,
            Some(TestAmount::Bytes(bytes)) => i32::try_from(bytes).unwrap_or(0),
            Some(TestAmount::Time(ns)) => -i32::try_from(ns / 10_000_000).unwrap_or(0),
        };
        let (seconds, microseconds) = to_wire_time(start_wall_ns);
        let mut reply = [0; REPLY_BYTES];
        let mut header = [0; WRITE_HEADER_BYTES];
        for (at, value) in [(0, first), (4, settings.flows), (8, settings.port.into())] {
            write_u32(&mut reply, at, value);
            write_u32(&mut header, at, value);
        }
        for (at, value) in [
            (32, u32::from(upper) << 16),
            (36, version.0),
            (40, version.1),
        ] {
            write_u32(&mut reply, at, value);
            write_u32(&mut header, at, value);
        }
        // Two's complement, as on the wire.
        write_u32(&mut reply, 20, amount as u32);
        write_u32(&mut reply, REPLY_START_OFFSET, seconds);
        write_u32(&mut reply, REPLY_START_OFFSET + 4, microseconds);
        write_u32(&mut header, START_TIME_OFFSET, seconds);
        write_u32(&mut header, START_TIME_OFFSET + 4, microseconds);
        write_u32(&mut header, SIZE_OFFSET, write_bytes);
        Some(Self { reply, header })
    }

    /// Returns the bytes that precede all payload and do not count as payload.
    #[must_use]
    pub fn reply(&self) -> &[u8] {
        &self.reply
    }

    /// Writes number (from 1) and time over the beginning of a write.
    pub fn stamp(&mut self, write: &mut [u8], number: u32, now_wall_ns: u64) {
        let (seconds, microseconds) = to_wire_time(now_wall_ns);
        write_u32(&mut self.header, WRITE_TIME_OFFSET, seconds);
        write_u32(&mut self.header, WRITE_TIME_OFFSET + 4, microseconds);
        write_u32(&mut self.header, NUMBER_OFFSET, number);
        if let Some(beginning) = write.get_mut(..REPLY_BYTES) {
            // Servers of upstream write it over the settings, of which the rest remains.
            let (header, rest) = beginning.split_at_mut(WRITE_HEADER_BYTES);
            header.copy_from_slice(&self.header);
            rest.copy_from_slice(&self.reply[WRITE_HEADER_BYTES..]);
        }
    }
}
