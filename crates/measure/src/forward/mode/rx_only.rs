//! `rxonly`: receives frames and frees them.

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, ForwardMode, NoPlan, Stream};

/// Sink of frames.
pub struct RxOnly;

impl ForwardMode for RxOnly {
    type Plan = NoPlan;
    const ABOUT: &'static str = "sink: receives, counts and frees frames";

    fn new(_: &NoPlan, _: &Facts, _: &Settings) -> Self {
        Self
    }

    #[inline(always)]
    fn step<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        _: &Memory,
    ) -> usize {
        let received = stream.receive(pool);
        if received > 0 {
            stream.take(pool);
        }
        received
    }
}
