//! `io`: forwards frames unread.

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, ForwardMode, NoPlan, Stream};

/// Forwards frames.
pub struct Io;

impl ForwardMode for Io {
    type Plan = NoPlan;
    const ABOUT: &'static str = "forwards frames unread: the fastest mode";

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
        if let Some(passed) = stream.pass() {
            return passed;
        }
        let received = stream.receive(pool);
        if received > 0 {
            stream.transmit(pool);
        }
        received
    }
}
