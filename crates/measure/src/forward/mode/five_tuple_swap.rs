//! `5tswap`: Ethernet addresses, IP addresses and ports change places, so that a datagram goes back to
//! who sent it. Sums of the same words are the same: no checksum changes.

use linerate_port::{Memory, Pool, Receive, Transmit};

use super::mac_swap;
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, Mode, NoPlan, Stream};

/// Swaps all that names an end.
pub struct FiveTupleSwap;

const TCP: u8 = 6;
const UDP: u8 = 17;
const VLAN: [u8; 2] = [0x81, 0x00];

/// Swaps two fields of `width` bytes that lie side by side from `at` on; frames too short stay.
#[inline(always)]
fn swap_at<const WIDTH: usize>(bytes: &mut [u8], at: usize) {
    let Some(both) = bytes.get_mut(at..at + 2 * WIDTH) else {
        return;
    };
    let (one, other) = both.split_at_mut(WIDTH);
    one.swap_with_slice(other);
}

/// Swaps the addresses and ports of a frame, as far as it has them.
#[inline]
pub(super) fn swap(frame: &mut [u8]) {
    mac_swap::swap(frame);
    let mut at = 12;
    if frame.get(at..at + 2) == Some(&VLAN) {
        at += 4;
    }
    let Some(&[high, low]) = frame.get(at..at + 2).and_then(|kind| kind.first_chunk()) else {
        return;
    };
    let packet = at + 2;
    let (protocol, transport) = match [high, low] {
        [0x08, 0x00] => {
            swap_at::<4>(frame, packet + 12);
            let Some(header) = frame.get(packet..packet + 10) else {
                return;
            };
            // Only the first fragment has ports.
            if header[6] & 0x1f != 0 || header[7] != 0 {
                return;
            }
            (header[9], packet + usize::from(header[0] & 0xf) * 4)
        }
        [0x86, 0xdd] => {
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

impl Mode for FiveTupleSwap {
    type Plan = NoPlan;
    const ABOUT: &'static str = "Ethernet and IP addresses and ports change places";

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
