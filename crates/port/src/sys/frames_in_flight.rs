//! Frames in flight: given to the kernel and not yet returned.

use crate::sys::frame::Frame;
use crate::sys::frame_memory::Memory;
use crate::sys::xsk_socket::Closed;

/// Bits of one bitmap word.
const WORD_BITS: u32 = u64::BITS;

/// Frames that one queue of a socket has given to the kernel: a bit for each slot of the memory.
///
/// A handle given to the kernel is dropped, and created again only when the kernel returns its slot
/// and the bit is set. So no slot can have two handles, whatever address the kernel writes into a
/// ring, and the number of frames in flight is always exact.
#[derive(Debug)]
pub(crate) struct Lent {
    memory: Memory,
    marks: Box<[u64]>,
    count: u32,
}

impl Lent {
    /// No frames in flight, for the slots of `memory`.
    pub(crate) fn new(memory: &Memory) -> Self {
        let words = memory.frames().div_ceil(WORD_BITS) as usize;
        Self {
            memory: memory.clone(),
            marks: vec![0; words].into_boxed_slice(),
            count: 0,
        }
    }

    /// Memory that the frames belong to.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Number of frames in flight.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Drops the handle of a frame for the kernel; returns the offset of its bytes in the memory.
    ///
    /// # Panics
    /// If the frame belongs to another memory or exceeds its slot.
    #[inline]
    pub(crate) fn lend(&mut self, frame: Frame) -> u64 {
        let span = self.memory.span(&frame);
        let number = frame.index() - self.memory.first_index();
        let (word, bit) = place(number);
        self.marks[word] |= bit;
        self.count += 1;
        span.start as u64
    }

    /// Creates the handle of a frame that the kernel returned: `bytes` bytes at `address`.
    ///
    /// None for an address whose slot is not in flight, and for bytes that exceed the slot.
    #[inline]
    pub(crate) fn take(&mut self, address: u64, bytes: u32) -> Option<Frame> {
        let slot_bytes = self.memory.slot_bytes() as u64;
        // AF_XDP chunks are powers of two, which the compiler cannot derive.
        debug_assert!(slot_bytes.is_power_of_two());
        let shift = slot_bytes.trailing_zeros();
        let number = u32::try_from(address >> shift).ok()?;
        let offset = address & (slot_bytes - 1);
        if number >= self.memory.frames() || offset + u64::from(bytes) > slot_bytes {
            return None;
        }
        let (len, offset) = (u16::try_from(bytes).ok()?, u16::try_from(offset).ok()?);
        let (word, bit) = place(number);
        if self.marks[word] & bit == 0 {
            return None;
        }
        self.marks[word] &= !bit;
        self.count -= 1;
        // SAFETY: the bit shows that this slot's only handle was dropped in `lend`; it is cleared
        // now.
        Some(unsafe { Frame::from_parts(self.memory.first_index() + number, len, offset) })
    }

    /// Frees all frames that are still in flight.
    ///
    /// Requires that the socket is closed.
    pub(crate) fn return_all(mut self, _: &Closed) {
        let memory = self.memory.clone();
        let slot_bytes = memory.slot_bytes() as u64;
        let mut pool = memory.pool();
        for number in 0..memory.frames() {
            if self.count == 0 {
                break;
            }
            if let Some(frame) = self.take(u64::from(number) * slot_bytes, 0) {
                pool.free(frame);
            }
        }
    }
}

fn place(number: u32) -> (usize, u64) {
    ((number / WORD_BITS) as usize, 1 << (number % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::frame_memory::MemoryPlan;
    use proptest::prelude::*;

    fn memory(frames: u32) -> Memory {
        Memory::new(MemoryPlan {
            frames,
            power_of_two: true,
            huge: false,
            ..MemoryPlan::default()
        })
        .unwrap()
    }

    #[test]
    fn only_what_was_lent_comes_back_and_once() {
        let memory = memory(100);
        let mut pool = memory.pool();
        let mut lent = Lent::new(&memory);
        let mut frame = pool.allocate().unwrap();
        frame.set_len(60);
        let index = frame.index();
        let address = lent.lend(frame);
        let slot = address / 2048 * 2048;
        for (refused, bytes, why) in [
            (slot ^ 2048, 60, "another slot"),
            (100 * 2048, 60, "beyond the memory"),
            (u64::MAX, 60, "beyond any memory"),
            (slot + 2000, 49, "beyond its slot"),
            (slot, 70_000, "longer than a handle can say"),
        ] {
            assert!(lent.take(refused, bytes).is_none(), "{why}");
        }
        let back = lent.take(slot + 256, 1500).unwrap();
        assert_eq!(
            (back.index(), back.offset(), back.len()),
            (index, 256, 1500)
        );
        assert!(lent.take(slot + 256, 1500).is_none(), "twice");
        assert_eq!(lent.count(), 0);
        pool.free(back);
    }

    #[test]
    fn what_is_lent_when_a_socket_closes_is_free_again() {
        let memory = memory(130);
        let mut pool = memory.pool();
        let mut lent = Lent::new(&memory);
        while let Some(frame) = pool.allocate() {
            lent.lend(frame);
        }
        assert_eq!(lent.count(), 130);
        lent.return_all(&Closed::for_tests());
        let frames: Vec<Frame> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(frames.len(), 130);
    }

    proptest! {
        /// Compares with a plain set of the slots that the kernel has.
        #[test]
        fn the_account_is_exact(steps in proptest::collection::vec((any::<bool>(), 0_u32..80), 0..300)) {
            let memory = memory(70);
            let mut pool = memory.pool();
            let mut lent = Lent::new(&memory);
            let mut there = std::collections::BTreeSet::new();
            for (give, number) in steps {
                if give {
                    if let Some(frame) = pool.allocate() {
                        prop_assert!(there.insert(frame.index() - memory.first_index()));
                        lent.lend(frame);
                    } else {
                        prop_assert_eq!(there.len(), 70);
                    }
                } else {
                    let frame = lent.take(u64::from(number) * 2048 + 128, 64);
                    prop_assert_eq!(frame.is_some(), there.remove(&number));
                    if let Some(frame) = frame {
                        pool.free(frame);
                    }
                }
                prop_assert_eq!(lent.count() as usize, there.len());
            }
        }
    }
}
