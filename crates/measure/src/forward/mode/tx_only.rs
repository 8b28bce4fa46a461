//! `txonly`: frames begin here.

use std::collections::BTreeMap;

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::frame::{Flows, Which};
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, Mode, NoPlan, Stream};

/// A source.
///
/// What a frame carries is written when its slot is used for the first time: while this mode runs nobody
/// else writes into the memory, and zeros that are there need not be written again. Of 1500 B this is a quarter
/// of the sender's time.
pub struct TxOnly {
    flows: Flows,
    next: u32,
    /// Which slots hold a frame of this run, a bit for each.
    written: Box<[u64]>,
    /// Polls that found no room for all of a burst.
    full: u64,
}

impl TxOnly {
    /// Fills the burst with frames, whatever their slots held; returns how many are new.
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

impl Mode for TxOnly {
    type Plan = NoPlan;
    const MAKES_FRAMES: bool = true;
    const ABOUT: &'static str =
        "a source: frames of --txpkts bytes, in --txonly-flows flows; what finds no room waits";

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
        // What the ring had no room for is kept: made once, it need not be made again.
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
