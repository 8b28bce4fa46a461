//! Handle of a frame.

use std::fmt;

use crate::frames::burst::BURST_FRAMES;

/// Handle of a frame in a [`FrameRegion`](crate::frames::frame_memory::FrameRegion): slot index,
/// offset in the slot, and length.
///
/// Eight bytes: half the size of a pointer and a descriptor, and the length is available without
/// access to the frame. A handle owns its slot: it is neither `Copy` nor `Clone`, so its owner may
/// change the bytes. Dropping it loses the slot for good (not the memory); return it with
/// [`FramePool::free`](crate::frames::frame_pool::FramePool::free).
///
/// Slot indices are unique in the process, so one comparison detects both a handle of another
/// memory and an index out of range.
#[must_use = "a dropped handle loses its slot: free it into a pool"]
#[repr(transparent)]
pub struct Frame(u64);

const LEN_SHIFT: u32 = 48;
const OFFSET_SHIFT: u32 = 32;
const OFFSET_MASK: u64 = 0xffff << OFFSET_SHIFT;
const LEN_MASK: u64 = 0xffff << LEN_SHIFT;

const _: () = assert!(size_of::<Frame>() == 8);

impl Frame {
    /// Creates a handle.
    ///
    /// # Safety
    /// No other handle of this slot may exist until this one is dropped or turned into its raw
    /// value.
    #[inline]
    pub const unsafe fn from_parts(index: u32, len: u16, offset: u16) -> Self {
        Self(index as u64 | (offset as u64) << OFFSET_SHIFT | (len as u64) << LEN_SHIFT)
    }

    /// The handle as an integer, which does not own the slot.
    #[inline]
    pub const fn raw(&self) -> u64 {
        self.0
    }

    /// Index of the slot, unique in the process.
    #[inline]
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.0 as u32
    }

    /// Length of the frame in bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u16 {
        (self.0 >> LEN_SHIFT) as u16
    }

    /// Returns true if the frame has no bytes, like one that a pool has just allocated.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Offset of the frame in its slot, in bytes.
    #[inline]
    #[must_use]
    pub const fn offset(&self) -> u16 {
        ((self.0 & OFFSET_MASK) >> OFFSET_SHIFT) as u16
    }

    /// Sets the length in bytes. It is checked against the slot when the bytes are accessed.
    #[inline]
    pub const fn set_len(&mut self, len: u16) {
        self.0 = self.0 & !LEN_MASK | (len as u64) << LEN_SHIFT;
    }

    /// Sets the offset in the slot in bytes. It is checked when the bytes are accessed.
    #[inline]
    pub const fn set_offset(&mut self, offset: u16) {
        self.0 = self.0 & !OFFSET_MASK | (offset as u64) << OFFSET_SHIFT;
    }

    /// Sets the length to zero and the offset, as for a frame that a pool has just allocated.
    #[inline]
    pub const fn reset(&mut self, offset: u16) {
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

/// Total bytes of frames whose handles are given as integers.
#[inline]
pub fn total_bytes(handles: &[u64]) -> u64 {
    // One shift and one addition each, which the compiler vectorizes; without a loop for a full
    // burst.
    match <&[u64; BURST_FRAMES]>::try_from(handles) {
        Ok(burst) => burst.iter().map(|handle| handle >> LEN_SHIFT).sum(),
        Err(_) => handles.iter().map(|handle| handle >> LEN_SHIFT).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_independent() {
        for (index, len, offset) in [
            (0, 0, 0),
            (u32::MAX, 0, 0),
            (0, u16::MAX, 0),
            (0, 0, u16::MAX),
            (7, 1514, 64),
        ] {
            // SAFETY: slots of no memory: no bytes are accessed through these handles.
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
