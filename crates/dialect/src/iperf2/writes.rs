//! Times in the writes of a client on TCP that was started with `--trip-times`.

use super::{wall_ns, word};

/// Bytes in front of each write that are read here.
pub const WRITE_HEADER_BYTES: usize = 52;

/// Where the time of the write is.
const WRITTEN_AT: usize = 20;

/// Where the number of the write is; the first is 1.
const NUMBER_AT: usize = 44;

/// Where its size is, header included.
const SIZE_AT: usize = 48;

/// The largest write that is believed.
const MOST_BYTES: u32 = 1 << 30;

/// How long each write of a client was on its way, from the time in front of it to its last byte.
///
/// The writes begin behind the settings. A client whose writes do not look as they should is not
/// listened to any more: the size in front of each says where the next one is.
#[derive(Debug, Default)]
pub struct WriteTimes {
    header: Vec<u8>,
    /// Bytes of the write that are still to come, its header taken.
    left: u64,
    written_ns: u64,
    number: u32,
    lost: bool,
}

impl WriteTimes {
    /// For a connection whose settings were just read.
    #[must_use]
    pub fn new() -> Self {
        Self {
            header: Vec::with_capacity(WRITE_HEADER_BYTES),
            ..Self::default()
        }
    }

    /// Takes what arrived, and tells for each write that ended in it how long it was on its way, in
    /// nanoseconds; below zero when the clocks do not agree.
    pub fn receive(&mut self, mut bytes: &[u8], now_wall_ns: u64, mut delay: impl FnMut(i64)) {
        while !bytes.is_empty() && !self.lost {
            if self.header.len() < WRITE_HEADER_BYTES {
                let some = bytes.len().min(WRITE_HEADER_BYTES - self.header.len());
                self.header.extend_from_slice(&bytes[..some]);
                bytes = &bytes[some..];
                if self.header.len() < WRITE_HEADER_BYTES {
                    return;
                }
                self.lost = self.begin().is_none();
            } else {
                let some = self.left.min(bytes.len() as u64);
                self.left -= some;
                // No more than the length of a slice.
                bytes = &bytes[some as usize..];
            }
            if self.left == 0 && !self.lost {
                delay(now_wall_ns.wrapping_sub(self.written_ns) as i64);
                self.header.clear();
            }
        }
    }

    /// Whether what came was no write with a time.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Reads the header of a write; `None` for anything else.
    fn begin(&mut self) -> Option<()> {
        let at = |offset| word(&self.header, offset);
        let (number, size) = (at(NUMBER_AT)?, at(SIZE_AT)?);
        let (seconds, microseconds) = (at(WRITTEN_AT)?, at(WRITTEN_AT + 4)?);
        if number != self.number.wrapping_add(1)
            || size > MOST_BYTES
            || seconds == 0
            || microseconds >= 1_000_000
        {
            return None;
        }
        self.left = u64::from(size).checked_sub(WRITE_HEADER_BYTES as u64)?;
        self.number = number;
        self.written_ns = wall_ns(seconds, microseconds);
        Some(())
    }
}
