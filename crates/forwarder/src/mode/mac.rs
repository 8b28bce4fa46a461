//! `mac`: sets the Ethernet addresses of each frame, as a router does.

use linerate_packet::mac_address::MacAddress;
use linerate_port::{RxQueue, TxQueue};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};

/// Sets Ethernet addresses.
pub struct MacForward {
    /// Destination and source, in the order of the Ethernet header.
    addresses: [u8; 12],
}

/// Returns the first twelve bytes of a frame between two addresses.
pub(super) fn address_bytes(from: MacAddress, to: MacAddress) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..6].copy_from_slice(&to.0);
    bytes[6..].copy_from_slice(&from.0);
    bytes
}

impl ForwardMode for MacForward {
    type Plan = NoOptions;
    const ABOUT: &'static str =
        "sets source to the sending port's address, destination to its peer's";

    fn new(_: &NoOptions, facts: &StreamFacts, _: &ModeSettings) -> Self {
        Self {
            addresses: address_bytes(facts.address, facts.peer),
        }
    }

    #[inline(always)]
    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize {
        stream.forward_modified(pool, memory, |frame| {
            if let Some(head) = frame.first_chunk_mut::<12>() {
                *head = self.addresses;
            }
        })
    }
}
