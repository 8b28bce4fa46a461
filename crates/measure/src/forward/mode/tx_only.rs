//! `txonly`: generates frames.

use std::collections::BTreeMap;

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::frame::{Flows, Which};
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, ForwardMode, NoPlan, Stream};

/// Source of frames.
///
/// The payload of a frame is written only when its slot is used for the first time. No other code
/// writes to the memory in this mode, so zeros remain. For frames of 1500 B this saves a quarter of
/// the sender's time.
pub struct TxOnly {
    flows: Flows,
    next: u32,
    /// Slots that hold a frame of this run, one bit each.
    written: Box<[u64]>,
    /// Number of polls that could not send a full burst.
    full: u64,
}

impl TxOnly {
    /// Fills the burst with frames, and writes all slots in full; returns the number of new frames.
    #[inline(always)]
    pub(in crate::forward) fn fill<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize {
        self.written.fill(0);
        self.refill(stream, pool, memory)
    }

    #[inline(always)]
    fn refill<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize {
        let fresh = stream.fill(pool, self.flows.len());
        if self.written.is_empty() {
            self.written = vec![0; memory.frames().div_ceil(u64::BITS) as usize].into();
        }
        stream.burst.change_numbered(memory, |number, slot| {
            let (word, bit) = (&mut self.written[number / 64], 1 << (number % 64));
            match *word & bit {
                0 => self.flows.write(slot, self.next),
                _ => self.flows.write_headers(slot, self.next),
            }
            *word |= bit;
            self.next += 1;
            if self.next == self.flows.flows() {
                self.next = 0;
            }
        });
        fresh
    }
}

impl ForwardMode for TxOnly {
    type Plan = NoPlan;
    const MAKES_FRAMES: bool = true;
    const ABOUT: &'static str = "source: sends frames of --txpkts bytes in --txonly-flows flows; waits while the ring is full";

    fn new(_: &NoPlan, facts: &Facts, setting: &Settings) -> Self {
        let mut spec = setting.frame.clone();
        spec.bytes = spec.bytes.min(facts.frame_bytes);
        Self {
            flows: Flows::new(
                &spec,
                facts.address,
                facts.peer,
                setting.transmit_flows,
                Which::Source,
            ),
            next: 0,
            written: Box::default(),
            full: 0,
        }
    }

    #[inline(always)]
    fn step<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize {
        // Frames that the full ring rejected are kept and sent first.
        if stream.burst.is_empty() {
            self.refill(stream, pool, memory);
        }
        let sent = stream.transmit.transmit(pool, &mut stream.burst);
        self.full += u64::from(!stream.burst.is_empty());
        if sent == 0 {
            stream.transmit.reclaim(pool);
        }
        sent
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        [("polls-that-found-no-room".to_owned(), self.full)].into()
    }
}
