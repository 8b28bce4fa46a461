//! `txonly`: generates frames.

use std::collections::BTreeMap;

use linerate_packet::frame::{FlowAddress, FlowFrames};
use linerate_port::{RxQueue, TxQueue};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};

/// Source of frames.
///
/// The payload of a frame is written only when its slot is used for the first time. No other code
/// writes to the memory in this mode, so zeros remain. For frames of 1500 B this saves a quarter of
/// the sender's time.
pub struct TxOnly {
    flows: FlowFrames,
    next_flow: u32,
    /// Slots that hold a frame of this run, one bit each.
    written_slots: Box<[u64]>,
    /// Number of polls that could not send a full burst.
    partial_polls: u64,
}

impl TxOnly {
    /// Fills the burst with frames, and writes all slots in full; returns the number of new frames.
    #[inline(always)]
    pub(crate) fn fill_all_slots<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize {
        self.written_slots.fill(0);
        self.refill(stream, pool, memory)
    }

    #[inline(always)]
    fn refill<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize {
        let new_frames = stream.fill(pool, self.flows.len());
        if self.written_slots.is_empty() {
            self.written_slots = vec![0; memory.frames().div_ceil(u64::BITS) as usize].into();
        }
        stream.burst.for_each_numbered_mut(memory, |number, slot| {
            let (bits, bit) = (&mut self.written_slots[number / 64], 1 << (number % 64));
            match *bits & bit {
                0 => self.flows.write(slot, self.next_flow),
                _ => self.flows.write_headers(slot, self.next_flow),
            }
            *bits |= bit;
            self.next_flow += 1;
            if self.next_flow == self.flows.flows() {
                self.next_flow = 0;
            }
        });
        new_frames
    }
}

impl ForwardMode for TxOnly {
    type Plan = NoOptions;
    const MAKES_FRAMES: bool = true;
    const ABOUT: &'static str = "source: sends frames of --txpkts bytes in --txonly-flows flows; waits while the ring is full";

    fn new(_: &NoOptions, facts: &StreamFacts, settings: &ModeSettings) -> Self {
        Self {
            flows: settings.flow_frames(facts, settings.transmit_flows, FlowAddress::Source),
            next_flow: 0,
            written_slots: Box::default(),
            partial_polls: 0,
        }
    }

    #[inline(always)]
    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize {
        // Frames that the full ring rejected are kept and sent first.
        if stream.burst.is_empty() {
            self.refill(stream, pool, memory);
        }
        let sent = stream.transmit.transmit(pool, &mut stream.burst);
        self.partial_polls += u64::from(!stream.burst.is_empty());
        if sent == 0 {
            stream.transmit.reclaim(pool);
        }
        sent
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        [("polls-that-found-no-room".to_owned(), self.partial_polls)].into()
    }
}
