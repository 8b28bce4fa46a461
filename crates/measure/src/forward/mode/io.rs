//! `io`: frames pass unread.

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, Mode, NoPlan, Stream};

/// Hands frames on.
pub struct Io;

impl Mode for Io {
    type Plan = NoPlan;
    const ABOUT: &'static str = "frames pass unread: the fastest";

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
