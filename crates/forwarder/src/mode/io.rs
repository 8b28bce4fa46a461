//! `io`: forwards frames unread.

use linerate_port::{RxQueue, TxQueue};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};

/// Forwards frames.
pub struct Io;

impl ForwardMode for Io {
    type Plan = NoOptions;
    const ABOUT: &'static str = "forwards frames unread: the fastest mode";

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
        if let Some(passed) = stream.pass_through() {
            return passed;
        }
        let received = stream.receive(pool);
        if received > 0 {
            stream.transmit(pool);
        }
        received
    }
}
