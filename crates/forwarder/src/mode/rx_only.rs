//! `rxonly`: receives frames and frees them.

use linerate_port::{RxQueue, TxQueue};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};

/// Sink of frames.
pub struct RxOnly;

impl ForwardMode for RxOnly {
    type Plan = NoOptions;
    const ABOUT: &'static str = "sink: receives, counts and frees frames";

    fn new(_: &NoOptions, _: &StreamFacts, _: &ModeSettings) -> Self {
        Self
    }

    #[inline(always)]
    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        _: &FrameRegion,
    ) -> usize {
        let received = stream.receive(pool);
        if received > 0 {
            stream.consume(pool);
        }
        received
    }
}
