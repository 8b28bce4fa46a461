//! `5tswap`: swaps Ethernet addresses, IP addresses and ports, so that a datagram returns to its
//! sender. Checksums stay valid, because the same words are summed.

use linerate_packet::frame::{IPV4_HEADER_BYTES, network_header};
use linerate_packet::ip_protocol;
use linerate_port::{RxQueue, TxQueue};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use super::mac_swap;
use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};

/// Swaps addresses and ports.
pub struct FiveTupleSwap;

/// Swaps two adjacent fields of `WIDTH` bytes from `at` on; too short frames are not changed.
#[inline(always)]
fn swap_adjacent<const WIDTH: usize>(bytes: &mut [u8], at: usize) {
    let Some(pair) = bytes.get_mut(at..at + 2 * WIDTH) else {
        return;
    };
    let (first, second) = pair.split_at_mut(WIDTH);
    first.swap_with_slice(second);
}

/// Swaps the addresses and ports that a frame has.
#[inline]
pub(super) fn swap(frame: &mut [u8]) {
    mac_swap::swap(frame);
    let Some((offset, ethertype)) = network_header(frame) else {
        return;
    };
    let (protocol, transport) = match ethertype {
        0x0800 => {
            swap_adjacent::<4>(frame, offset + 12);
            let Some(header) = frame.get(offset..offset + 10) else {
                return;
            };
            let length = usize::from(header[0] & 0xf) * 4;
            // Only the first fragment has ports, and an invalid header length does not locate them.
            if header[6] & 0x1f != 0 || header[7] != 0 || length < IPV4_HEADER_BYTES {
                return;
            }
            (header[9], offset + length)
        }
        0x86dd => {
            swap_adjacent::<16>(frame, offset + 8);
            let Some(&next) = frame.get(offset + 6) else {
                return;
            };
            (next, offset + 40)
        }
        _ => return,
    };
    if matches!(protocol, ip_protocol::TCP | ip_protocol::UDP) {
        swap_adjacent::<2>(frame, transport);
    }
}

impl ForwardMode for FiveTupleSwap {
    type Plan = NoOptions;
    const ABOUT: &'static str = "swaps Ethernet addresses, IP addresses and ports";

    fn new(_: &NoOptions, _: &StreamFacts, _: &ModeSettings) -> Self {
        Self
    }

    #[inline(always)]
    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize {
        stream.forward_modified(pool, memory, swap)
    }
}
