//! `flowgen`: generates frames of many flows and frees received frames.

use linerate_packet::frame::{FlowAddress, FlowFrames};
use linerate_port::{RxQueue, TxQueue};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};

/// Source of flows and sink of frames.
pub struct FlowGen {
    flows: FlowFrames,
    next_flow: u32,
    /// Copies of the present flow's frame still to send, and copies per frame.
    clones_left: u32,
    clones_per_frame: u32,
}

impl ForwardMode for FlowGen {
    type Plan = NoOptions;
    const MAKES_FRAMES: bool = true;
    const ABOUT: &'static str = "source of --flowgen-flows flows (by destination address) with --flowgen-clones copies of each frame, and sink";

    fn new(_: &NoOptions, facts: &StreamFacts, settings: &ModeSettings) -> Self {
        Self {
            flows: settings.flow_frames(facts, settings.generated_flows, FlowAddress::Destination),
            next_flow: 0,
            clones_left: settings.flow_clones,
            clones_per_frame: settings.flow_clones,
        }
    }

    #[inline(always)]
    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize {
        let received = stream.receive(pool);
        if received > 0 {
            stream.consume(pool);
        }
        stream.fill(pool, self.flows.len());
        stream.modify(memory, |slot| {
            self.flows.write(slot, self.next_flow);
            match self.clones_left {
                0 => {
                    self.next_flow = (self.next_flow + 1) % self.flows.flows();
                    self.clones_left = self.clones_per_frame;
                }
                _ => self.clones_left -= 1,
            }
        });
        let frames_sent = stream.burst.len();
        stream.transmit(pool);
        received + frames_sent
    }
}
