//! A frame's handle.

use std::fmt;

use crate::sys::burst::BURST_FRAMES;

/// A frame in a [`Memory`](crate::Memory): which slot, where in it the bytes begin, how many they are.
///
/// Eight bytes: half of what a pointer and a descriptor would take, and the length is known without
/// touching the frame. A handle owns its slot: it is neither `Copy` nor `Clone`, so whoever has it may
/// change the bytes. Dropping it loses the slot for good (not the memory); give it back with
/// [`Pool::free`](crate::Pool::free).
///
/// Numbers of slots are drawn from one sequence of the process, so that a handle used with another
/// memory is noticed by the same comparison as a number out of range.
#[must_use = "a dropped handle loses its slot: free it into a pool"]
#[repr(transparent)]
pub struct Frame(u64);

const LEN_SHIFT: u32 = 48;
const OFFSET_SHIFT: u32 = 32;
const OFFSET_MASK: u64 = 0xffff << OFFSET_SHIFT;
const LEN_MASK: u64 = 0xffff << LEN_SHIFT;

const _: () = assert!(size_of::<Frame>() == 8);

impl Frame {
    /// Makes a handle out of nothing.
    ///
    /// # Safety
    /// No other handle of this slot may exist, anywhere, until this one is turned back into parts.
    #[inline]
    pub(crate) const unsafe fn from_parts(index: u32, len: u16, offset: u16) -> Self {
        Self(index as u64 | (offset as u64) << OFFSET_SHIFT | (len as u64) << LEN_SHIFT)
    }

    /// The handle as one word, which owns nothing.
    #[inline]
    pub(crate) const fn word(&self) -> u64 {
        self.0
    }

    /// Number of the slot, unique in the process.
    #[inline]
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.0 as u32
    }

    /// Bytes of the frame.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u16 {
        (self.0 >> LEN_SHIFT) as u16
    }

    /// Whether it has no bytes, as a frame fresh from a pool.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where in its slot the frame begins, in bytes.
    #[inline]
    #[must_use]
    pub const fn offset(&self) -> u16 {
        ((self.0 & OFFSET_MASK) >> OFFSET_SHIFT) as u16
    }

    /// Sets how many bytes the frame has. That they fit is checked when they are used.
    #[inline]
    pub const fn set_len(&mut self, len: u16) {
        self.0 = self.0 & !LEN_MASK | (len as u64) << LEN_SHIFT;
    }

    /// Sets where in its slot the frame begins. That it fits is checked when the bytes are used.
    #[inline]
    pub const fn set_offset(&mut self, offset: u16) {
        self.0 = self.0 & !OFFSET_MASK | (offset as u64) << OFFSET_SHIFT;
    }

    /// Sets both, as a frame fresh from a pool has them.
    #[inline]
    pub(crate) const fn reset(&mut self, offset: u16) {
        self.0 = self.0 & 0xffff_ffff | (offset as u64) << OFFSET_SHIFT;
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("index", &self.index())
            .field("len", &self.len())
            .field("offset", &self.offset())
            .finish()
    }
}

/// Bytes that handles given as words cover together.
#[inline]
pub(crate) fn total_bytes(words: &[u64]) -> u64 {
    // One shift and one addition each, which the compiler does for several words at once; for a whole
    // burst without a loop.
    match <&[u64; BURST_FRAMES]>::try_from(words) {
        Ok(burst) => burst.iter().map(|word| word >> LEN_SHIFT).sum(),
        Err(_) => words.iter().map(|word| word >> LEN_SHIFT).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_apart() {
        for (index, len, offset) in [
            (0, 0, 0),
            (u32::MAX, 0, 0),
            (0, u16::MAX, 0),
            (0, 0, u16::MAX),
            (7, 1514, 64),
        ] {
            // SAFETY: slots of no memory: nothing is ever read through these handles.
            let mut frame = unsafe { Frame::from_parts(index, len, offset) };
            assert_eq!(
                (frame.index(), frame.len(), frame.offset()),
                (index, len, offset)
            );
            frame.set_len(60);
            frame.set_offset(2);
            assert_eq!((frame.index(), frame.len(), frame.offset()), (index, 60, 2));
            frame.reset(128);
            assert_eq!(
                (frame.index(), frame.len(), frame.offset()),
                (index, 0, 128)
            );
        }
    }
}
