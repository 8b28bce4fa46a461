//! `5tswap`: swaps Ethernet addresses, IP addresses and ports, so that a datagram returns to its
//! sender. Checksums stay valid, because the same words are summed.

use linerate_port::{Memory, Pool, Receive, Transmit};

use super::mac_swap;
use crate::forward::frame::{IPV4, carried};
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, ForwardMode, NoPlan, Stream};

/// Swaps addresses and ports.
pub struct FiveTupleSwap;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Swaps two adjacent fields of `WIDTH` bytes from `at` on; too short frames are not changed.
#[inline(always)]
fn swap_at<const WIDTH: usize>(bytes: &mut [u8], at: usize) {
    let Some(both) = bytes.get_mut(at..at + 2 * WIDTH) else {
        return;
    };
    let (one, other) = both.split_at_mut(WIDTH);
    one.swap_with_slice(other);
}

/// Swaps the addresses and ports that a frame has.
#[inline]
pub(super) fn swap(frame: &mut [u8]) {
    mac_swap::swap(frame);
    let Some((packet, kind)) = carried(frame) else {
        return;
    };
    let (protocol, transport) = match kind {
        0x0800 => {
            swap_at::<4>(frame, packet + 12);
            let Some(header) = frame.get(packet..packet + 10) else {
                return;
            };
            let length = usize::from(header[0] & 0xf) * 4;
            // Only the first fragment has ports, and an invalid header length does not locate them.
            if header[6] & 0x1f != 0 || header[7] != 0 || length < IPV4 {
                return;
            }
            (header[9], packet + length)
        }
        0x86dd => {
            swap_at::<16>(frame, packet + 8);
            let Some(&next) = frame.get(packet + 6) else {
                return;
            };
            (next, packet + 40)
        }
        _ => return,
    };
    if matches!(protocol, TCP | UDP) {
        swap_at::<2>(frame, transport);
    }
}

impl ForwardMode for FiveTupleSwap {
    type Plan = NoPlan;
    const ABOUT: &'static str = "swaps Ethernet addresses, IP addresses and ports";

    fn new(_: &NoPlan, _: &Facts, _: &Settings) -> Self {
        Self
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
            stream.change(memory, swap);
            stream.transmit(pool);
        }
        received
    }
}
