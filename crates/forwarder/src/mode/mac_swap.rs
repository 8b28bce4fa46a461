//! `macswap`: swaps source and destination Ethernet address.

use linerate_port::{RxQueue, TxQueue};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};

/// Swaps Ethernet addresses.
pub struct MacSwap;

/// Swaps the Ethernet addresses of a frame.
#[inline(always)]
pub(super) fn swap(frame: &mut [u8]) {
    if let Some(head) = frame.first_chunk_mut::<12>() {
        // Bytes 0 to 7 and 8 to 11 as two numbers: the swap takes four shifts, and no byte is moved
        // alone. Bytes 6 to 11 come first, then 0 to 5.
        let (first, rest) = head.split_at_mut(8);
        let low = u64::from_le_bytes(*first.first_chunk().expect("8 bytes"));
        let high = u32::from_le_bytes(*rest.first_chunk().expect("4 bytes"));
        let swapped = low >> 48 | u64::from(high) << 16 | low << 48;
        first.copy_from_slice(&swapped.to_le_bytes());
        rest.copy_from_slice(&((low >> 16) as u32).to_le_bytes());
    }
}

impl ForwardMode for MacSwap {
    type Plan = NoOptions;
    const ABOUT: &'static str = "swaps source and destination Ethernet address";

    fn new(_: &NoOptions, _: &StreamFacts, _: &ModeSettings) -> Self {
        Self
    }

    #[inline(always)]
    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize {
        stream.forward_modified(pool, memory, swap)
    }
}
