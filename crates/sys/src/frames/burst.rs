//! Burst: frames that move together.

use std::fmt;
use std::slice;

use crate::frames::frame::{Frame, total_bytes};
use crate::frames::frame_memory::FrameRegion;

/// Maximum frames moved by one poll: the usual burst of poll-mode programs, so that results are
/// comparable; 32 handles are 256 B, four cache lines.
pub const BURST_FRAMES: usize = 32;

/// Up to 32 frames, in order. The burst owns its frames.
///
/// Dropping a burst that still holds frames loses their slots; free them with
/// [`FramePool::free_all`](crate::frames::frame_pool::FramePool::free_all).
pub struct Burst {
    /// The first `len` are handles owned by this burst; the others are left over from earlier ones.
    handles: [u64; BURST_FRAMES],
    len: usize,
    limit: usize,
    /// Bytes of the frames held; none after an access that may have changed a length. Both queues
    /// that a burst passes count its bytes, and summing them takes half as long as moving it.
    bytes: Option<u64>,
}

impl Default for Burst {
    fn default() -> Self {
        Self::new()
    }
}

impl Burst {
    /// An empty burst for 32 frames.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            handles: [0; BURST_FRAMES],
            len: 0,
            limit: BURST_FRAMES,
            bytes: Some(0),
        }
    }

    /// An empty burst that queues fill with at most `limit` frames (clamped to 1 to 32).
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            limit: limit.clamp(1, BURST_FRAMES),
            ..Self::new()
        }
    }

    /// Number of frames held.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no frame is held.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of frames that may be added.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.limit.saturating_sub(self.len)
    }

    /// Returns true if no frame may be added.
    #[inline]
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// Total bytes of all frames held.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.unwrap_or_else(|| total_bytes(self.handles()))
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// Returns the frame if the burst is full.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.is_full() {
            return Err(frame);
        }
        self.handles[self.len] = frame.raw();
        self.len += 1;
        self.bytes = self.bytes.map(|bytes| bytes + u64::from(frame.len()));
        Ok(())
    }

    /// Takes the last frame.
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        self.len = self.len.checked_sub(1)?;
        self.bytes = None;
        // SAFETY: the value came from a handle owned by this burst, and is beyond `len` from here
        // on.
        Some(unsafe { frame_from_handle(self.handles[self.len]) })
    }

    /// Frames in order.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        // SAFETY: Frame is a transparent u64, and each of the first `len` values is a handle owned
        // by this burst, borrowed for as long as the burst is.
        unsafe { slice::from_raw_parts(self.handles.as_ptr().cast::<Frame>(), self.len) }
    }

    /// Frames in order, to be changed or swapped with others.
    #[inline]
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        self.bytes = None;
        // SAFETY: as in `frames`; the burst is borrowed mutably, so there is no other access to
        // these handles. A handle moved out by a swap is replaced by one that the burst then owns.
        unsafe { slice::from_raw_parts_mut(self.handles.as_mut_ptr().cast::<Frame>(), self.len) }
    }

    /// Passes frames from the front to `take`, in order, until it returns one.
    ///
    /// Returns the number of frames taken. The returned frame and those behind it stay in the
    /// burst.
    pub fn take_front(&mut self, mut take: impl FnMut(Frame) -> Result<(), Frame>) -> usize {
        let before = self.len;
        self.bytes = None;
        // If `take` panics, the burst owns nothing: slots are lost, but none is owned twice.
        self.len = 0;
        let mut taken = 0;
        while taken < before {
            // SAFETY: a value of the burst, which gave up all of them above; each becomes a handle
            // once.
            let frame = unsafe { frame_from_handle(self.handles[taken]) };
            if let Err(rejected) = take(frame) {
                self.handles[taken] = rejected.raw();
                break;
            }
            taken += 1;
        }
        self.handles.copy_within(taken..before, 0);
        self.len = before - taken;
        if self.len == 0 {
            self.bytes = Some(0);
        }
        taken
    }

    /// Moves the last frames of a list, up to 32, into a burst, in order.
    pub fn drain_tail(list: &mut Vec<Frame>) -> Self {
        let from = list.len().saturating_sub(BURST_FRAMES);
        let mut burst = Self::new();
        burst.len = list.len() - from;
        burst.bytes = None;
        for (handle, frame) in burst.handles.iter_mut().zip(&list[from..]) {
            *handle = frame.raw();
        }
        // The burst owns the slots from here on; dropping a handle has no effect.
        const { assert!(!std::mem::needs_drop::<Frame>()) };
        list.truncate(from);
        burst
    }

    /// Appends all frames to a list, in order; returns their number. As integers, and not one by
    /// one through [`Burst::take_front`]: frames that drift between two pools pass through here
    /// twice.
    #[inline]
    pub fn drain_into(&mut self, list: &mut Vec<Frame>) -> usize {
        let count = std::mem::replace(&mut self.len, 0);
        self.bytes = Some(0);
        let handles = self.handles[..count].iter();
        // SAFETY: values of the burst, which gave up all of them above; each becomes a handle once.
        list.extend(handles.map(|&handle| unsafe { frame_from_handle(handle) }));
        count
    }

    /// Keeps the frames for which `keep` returns true, and passes the others to `discard`.
    pub fn retain(
        &mut self,
        mut keep: impl FnMut(&mut Frame) -> bool,
        mut discard: impl FnMut(Frame),
    ) {
        let before = self.len;
        self.bytes = None;
        self.len = 0;
        let mut kept = 0;
        for index in 0..before {
            // SAFETY: as in `take_front`.
            let mut frame = unsafe { frame_from_handle(self.handles[index]) };
            if keep(&mut frame) {
                self.handles[kept] = frame.raw();
                kept += 1;
            } else {
                discard(frame);
            }
        }
        self.len = kept;
    }

    /// Handles as integers.
    #[inline]
    pub fn handles(&self) -> &[u64] {
        &self.handles[..self.len]
    }

    /// Removes the first `count` frames, whose handles another owner took over as integers.
    #[inline(always)]
    pub fn forget_front(&mut self, count: usize) {
        debug_assert!(count <= self.len);
        self.bytes = Some(0);
        if count < self.len {
            self.handles.copy_within(count..self.len, 0);
            self.bytes = None;
        }
        self.len -= count;
    }

    /// Calls `change` with the bytes of each frame, in order; lengths do not change.
    #[inline(always)]
    pub fn for_each_mut(&mut self, memory: &FrameRegion, mut change: impl FnMut(&mut [u8])) {
        self.for_each_numbered_mut(memory, |_, bytes| change(bytes));
    }

    /// Like [`Burst::for_each_mut`], with the slot number of each frame
    /// ([`FrameRegion::slot_number`]).
    #[inline(always)]
    pub fn for_each_numbered_mut(
        &mut self,
        memory: &FrameRegion,
        mut change: impl FnMut(usize, &mut [u8]),
    ) {
        // No handle changes, so the total of the lengths stays valid.
        let bytes = self.bytes;
        for frame in self.frames_mut() {
            change(memory.slot_number(frame), memory.bytes_mut(frame));
        }
        self.bytes = bytes;
    }

    /// Lets `fill` write handles as integers behind those held, and takes ownership of them.
    ///
    /// `fill` returns the number of handles written and their total bytes; so does this function.
    ///
    /// # Safety
    /// The first values that `fill` wrote, as many as it returns, are handles without another
    /// owner.
    #[inline(always)]
    pub unsafe fn fill_handles(
        &mut self,
        fill: impl FnOnce(&mut [u64]) -> (usize, u64),
    ) -> (usize, u64) {
        let before = self.len;
        let remaining = self.remaining();
        let (added, bytes_added) = fill(&mut self.handles[before..before + remaining]);
        let added = added.min(remaining);
        self.len = before + added;
        debug_assert_eq!(bytes_added, total_bytes(&self.handles[before..self.len]));
        self.bytes = self.bytes.map(|bytes| bytes + bytes_added);
        (added, bytes_added)
    }
}

/// # Safety
/// `handle` is the [`Frame::handle`] of a handle that is given up with this call.
#[inline]
unsafe fn frame_from_handle(handle: u64) -> Frame {
    // SAFETY: Frame is a transparent u64; the caller owns the handle.
    unsafe { std::mem::transmute::<u64, Frame>(handle) }
}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.frames()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(index: u32) -> Frame {
        // SAFETY: slots of no memory: no bytes are accessed through these handles.
        unsafe { Frame::from_parts(index, 60, 0) }
    }

    fn indices(burst: &Burst) -> Vec<u32> {
        burst.frames().iter().map(Frame::index).collect()
    }

    #[test]
    fn the_rest_of_a_burst_stays_in_order() {
        let mut burst = Burst::new();
        for index in 0..5 {
            burst.push(frame(index)).unwrap();
        }
        let mut out = Vec::new();
        let taken = burst.take_front(|frame| {
            if out.len() == 2 {
                return Err(frame);
            }
            out.push(frame.index());
            Ok(())
        });
        assert_eq!(
            (taken, out, indices(&burst)),
            (2, vec![0, 1], vec![2, 3, 4])
        );
        assert_eq!(burst.bytes(), 180);
        burst.forget_front(1);
        assert_eq!(indices(&burst), [3, 4]);
        assert_eq!(burst.pop().map(|frame| frame.index()), Some(4));
    }

    #[test]
    fn frames_move_to_lists_and_back() {
        for count in [0, 1, 31, 32, 33, 70] {
            let mut list: Vec<Frame> = (0..count).map(frame).collect();
            let mut burst = Burst::drain_tail(&mut list);
            let expected = count.min(BURST_FRAMES as u32);
            assert_eq!(indices(&burst), Vec::from_iter(count - expected..count));
            assert_eq!(burst.bytes(), u64::from(expected) * 60);
            assert_eq!(list.len() as u32, count - expected);
            assert_eq!(burst.drain_into(&mut list) as u32, expected);
            let back = list.iter().map(Frame::index);
            assert_eq!(Vec::from_iter(back), Vec::from_iter(0..count));
            assert!(burst.is_empty() && burst.bytes() == 0);
        }
    }

    #[test]
    fn bytes_are_those_of_the_frames() {
        let mut burst = Burst::new();
        let count = |burst: &Burst| {
            let bytes = burst.frames().iter().map(|frame| u64::from(frame.len()));
            bytes.sum::<u64>()
        };
        for (step, expected) in [60, 180, 1500, 1500, 120, 1560, 1500, 0, 60]
            .into_iter()
            .enumerate()
        {
            match step {
                0 | 8 => burst.push(frame(1)).unwrap(),
                1 => {
                    burst.push(frame(2)).unwrap();
                    burst.push(frame(3)).unwrap();
                }
                2 => {
                    burst.frames_mut()[1].set_len(1380);
                }
                3 => assert_eq!(burst.bytes(), 1500),
                4 => burst.retain(|frame| frame.len() == 60, |_| ()),
                5 => burst.frames_mut()[0].set_len(1500),
                6 => {
                    let _ = burst.pop().unwrap();
                }
                _ => burst.forget_front(1),
            }
            assert_eq!(
                (burst.bytes(), count(&burst)),
                (expected, expected),
                "step {step}"
            );
        }
    }

    #[test]
    fn a_limit_holds() {
        let mut burst = Burst::with_limit(2);
        assert_eq!(burst.remaining(), 2);
        burst.push(frame(0)).unwrap();
        burst.push(frame(1)).unwrap();
        assert!(burst.is_full());
        assert_eq!(burst.push(frame(2)).unwrap_err().index(), 2);
        assert_eq!(Burst::with_limit(0).remaining(), 1);
        assert_eq!(Burst::with_limit(99).remaining(), BURST_FRAMES);
    }

    #[test]
    fn discarded_frames_leave() {
        let mut burst = Burst::new();
        for index in 0..6 {
            burst.push(frame(index)).unwrap();
        }
        let mut discarded = Vec::new();
        burst.retain(
            |frame| frame.index().is_multiple_of(2),
            |frame| discarded.push(frame.index()),
        );
        assert_eq!((indices(&burst), discarded), (vec![0, 2, 4], vec![1, 3, 5]));
    }
}
