//! Frames in flight: given to the kernel and not yet returned.

use crate::af_xdp::xsk_socket::SocketClosed;
use crate::frames::frame::Frame;
use crate::frames::frame_memory::FrameRegion;

/// Bits of one bitmap word.
const WORD_BITS: u32 = u64::BITS;

/// Frames that one queue of a socket has given to the kernel: a bit for each slot of the memory.
///
/// A handle given to the kernel is dropped, and created again only when the kernel returns its slot
/// and the bit is set. So no slot can have two handles, whatever address the kernel writes into a
/// ring, and the number of frames in flight is always exact.
#[derive(Debug)]
pub struct InFlightFrames {
    memory: FrameRegion,
    bitmap: Box<[u64]>,
    count: u32,
}

impl InFlightFrames {
    /// No frames in flight, for the slots of `memory`.
    pub fn new(memory: &FrameRegion) -> Self {
        let words = memory.frames().div_ceil(WORD_BITS) as usize;
        Self {
            memory: memory.clone(),
            bitmap: vec![0; words].into_boxed_slice(),
            count: 0,
        }
    }

    /// Memory that the frames belong to.
    pub fn memory(&self) -> &FrameRegion {
        &self.memory
    }

    /// Number of frames in flight.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Drops the handle of a frame for the kernel; returns the offset of its bytes in the memory.
    ///
    /// # Panics
    /// If the frame belongs to another memory or exceeds its slot.
    #[inline]
    pub fn give_to_kernel(&mut self, frame: Frame) -> u64 {
        let range = self.memory.byte_range(&frame);
        let slot_number = frame.index() - self.memory.first_index();
        let (word, bit) = word_and_bit(slot_number);
        self.bitmap[word] |= bit;
        self.count += 1;
        range.start as u64
    }

    /// Creates the handle of a frame that the kernel returned: `bytes` bytes at `address`.
    ///
    /// None for an address whose slot is not in flight, and for bytes that exceed the slot.
    #[inline]
    pub fn take_back(&mut self, address: u64, bytes: u32) -> Option<Frame> {
        let slot_bytes = self.memory.slot_bytes() as u64;
        // AF_XDP chunks are powers of two, which the compiler cannot derive.
        debug_assert!(slot_bytes.is_power_of_two());
        let shift = slot_bytes.trailing_zeros();
        let slot_number = u32::try_from(address >> shift).ok()?;
        let offset = address & (slot_bytes - 1);
        if slot_number >= self.memory.frames() || offset + u64::from(bytes) > slot_bytes {
            return None;
        }
        let (len, offset) = (u16::try_from(bytes).ok()?, u16::try_from(offset).ok()?);
        let (word, bit) = word_and_bit(slot_number);
        if self.bitmap[word] & bit == 0 {
            return None;
        }
        self.bitmap[word] &= !bit;
        self.count -= 1;
        // SAFETY: the bit shows that this slot's only handle was dropped in `give_to_kernel`; it is
        // cleared now.
        Some(unsafe { Frame::from_parts(self.memory.first_index() + slot_number, len, offset) })
    }

    /// Frees all frames that are still in flight.
    ///
    /// Requires that the socket is closed.
    pub fn reclaim_all(mut self, _: &SocketClosed) {
        let memory = self.memory.clone();
        let slot_bytes = memory.slot_bytes() as u64;
        let mut pool = memory.pool();
        for slot_number in 0..memory.frames() {
            if self.count == 0 {
                break;
            }
            if let Some(frame) = self.take_back(u64::from(slot_number) * slot_bytes, 0) {
                pool.free(frame);
            }
        }
    }
}

fn word_and_bit(slot_number: u32) -> (usize, u64) {
    (
        (slot_number / WORD_BITS) as usize,
        1 << (slot_number % WORD_BITS),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frames::frame_memory::MemoryPlan;

    fn memory(frames: u32) -> FrameRegion {
        FrameRegion::new(MemoryPlan {
            frames,
            power_of_two: true,
            huge_pages: false,
            ..MemoryPlan::default()
        })
        .unwrap()
    }

    #[test]
    fn only_frames_in_flight_come_back_and_once() {
        let memory = memory(100);
        let mut pool = memory.pool();
        let mut in_flight = InFlightFrames::new(&memory);
        let mut frame = pool.allocate().unwrap();
        frame.set_len(60);
        let index = frame.index();
        let address = in_flight.give_to_kernel(frame);
        let slot = address / 2048 * 2048;
        for (wrong_address, bytes, why) in [
            (slot ^ 2048, 60, "another slot"),
            (100 * 2048, 60, "beyond the memory"),
            (u64::MAX, 60, "beyond any memory"),
            (slot + 2000, 49, "beyond its slot"),
            (slot, 70_000, "longer than a handle can say"),
        ] {
            assert!(in_flight.take_back(wrong_address, bytes).is_none(), "{why}");
        }
        let returned = in_flight.take_back(slot + 256, 1500).unwrap();
        assert_eq!(
            (returned.index(), returned.offset(), returned.len()),
            (index, 256, 1500)
        );
        assert!(in_flight.take_back(slot + 256, 1500).is_none(), "twice");
        assert_eq!(in_flight.count(), 0);
        pool.free(returned);
    }

    #[test]
    fn frames_in_flight_are_freed_when_a_socket_closes() {
        let memory = memory(130);
        let mut pool = memory.pool();
        let mut in_flight = InFlightFrames::new(&memory);
        while let Some(frame) = pool.allocate() {
            in_flight.give_to_kernel(frame);
        }
        assert_eq!(in_flight.count(), 130);
        in_flight.reclaim_all(&SocketClosed::for_tests());
        let frames: Vec<Frame> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(frames.len(), 130);
    }

    proptest! {
        /// Compares with a plain set of the slots that the kernel has.
        #[test]
        fn the_account_is_exact(steps in proptest::collection::vec((any::<bool>(), 0_u32..80), 0..300)) {
            let memory = memory(70);
            let mut pool = memory.pool();
            let mut lent = InFlightFrames::new(&memory);
            let mut there = std::collections::BTreeSet::new();
            for (give, number) in steps {
                if give {
                    if let Some(frame) = pool.allocate() {
                        prop_assert!(there.insert(frame.index() - memory.first_index()));
                        lent.give_to_kernel(frame);
                    } else {
                        prop_assert_eq!(there.len(), 70);
                    }
                } else {
                    let frame = lent.take_back(u64::from(number) * 2048 + 128, 64);
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
