//! `flowgen`: generates frames of many flows and frees received frames.

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::frame::{Flows, Which};
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, ForwardMode, NoPlan, Stream};

/// Source of flows and sink of frames.
pub struct FlowGen {
    flows: Flows,
    next: u32,
    /// Copies of the present flow's frame still to send, and copies per frame.
    left: u32,
    clones: u32,
}

impl ForwardMode for FlowGen {
    type Plan = NoPlan;
    const MAKES_FRAMES: bool = true;
    const ABOUT: &'static str = "source of --flowgen-flows flows (by destination address) with --flowgen-clones copies of each frame, and sink";

    fn new(_: &NoPlan, facts: &Facts, setting: &Settings) -> Self {
        let mut spec = setting.frame.clone();
        spec.bytes = spec.bytes.min(facts.frame_bytes);
        Self {
            flows: Flows::new(
                &spec,
                facts.address,
                facts.peer,
                setting.generated_flows,
                Which::Destination,
            ),
            next: 0,
            left: setting.flow_clones,
            clones: setting.flow_clones,
        }
    }

    #[inline(always)]
    fn step<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize {
        let received = stream.receive(pool);
        if received > 0 {
            stream.take(pool);
        }
        stream.fill(pool, self.flows.len());
        stream.change(memory, |slot| {
            self.flows.write(slot, self.next);
            match self.left {
                0 => {
                    self.next = (self.next + 1) % self.flows.flows();
                    self.left = self.clones;
                }
                _ => self.left -= 1,
            }
        });
        let made = stream.burst.len();
        stream.transmit(pool);
        received + made
    }
}
