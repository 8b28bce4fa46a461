//! `flowgen`: many flows leave, whatever arrives ends here.

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::frame::{Flows, Which};
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, Mode, NoPlan, Stream};

/// A source of flows and a sink.
pub struct FlowGen {
    flows: Flows,
    next: u32,
}

impl Mode for FlowGen {
    type Plan = NoPlan;
    const MAKES_FRAMES: bool = true;
    const ABOUT: &'static str =
        "a source of --flowgen-flows flows (by destination address) and a sink";

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
            self.next = (self.next + 1) % self.flows.flows();
        });
        let made = stream.burst.len();
        stream.transmit(pool);
        received + made
    }
}
