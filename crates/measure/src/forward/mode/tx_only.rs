//! `txonly`: frames begin here.

use std::collections::BTreeMap;

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::frame::{Flows, Which};
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, Mode, NoPlan, Stream};

/// A source.
pub struct TxOnly {
    flows: Flows,
    next: u32,
    /// Polls that found no room for all of a burst.
    full: u64,
}

impl TxOnly {
    /// Fills the burst with frames; returns how many are new.
    #[inline(always)]
    pub(in crate::forward) fn fill<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize {
        let fresh = stream.fill(pool, self.flows.len());
        if self.flows.flows() == 1 {
            stream.change(memory, |slot| self.flows.write(slot, 0));
        } else {
            stream.change(memory, |slot| {
                self.flows.write(slot, self.next);
                self.next = (self.next + 1) % self.flows.flows();
            });
        }
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
            self.fill(stream, pool, memory);
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
