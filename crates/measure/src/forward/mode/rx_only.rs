//! `rxonly`: frames end here.

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, Mode, NoPlan, Stream};

/// A sink.
pub struct RxOnly;

impl Mode for RxOnly {
    type Plan = NoPlan;
    const ABOUT: &'static str = "a sink: frames are received, counted and freed";

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
