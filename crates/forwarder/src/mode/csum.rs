//! `csum`: like `mac`, and corrects IP, TCP and UDP checksums; wrong ones are counted.

use std::collections::BTreeMap;

use linerate_packet::checksum;
use linerate_packet::frame::{is_ipv4_checksum_right, write_ipv4_checksum};
use linerate_packet::ip_protocol;
use linerate_port::{RxQueue, TxQueue};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use super::mac::address_bytes;
use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};

/// Corrects checksums.
pub struct Csum {
    addresses: [u8; 12],
    bad_ip: u64,
    bad_transport: u64,
}

/// Wrong checksums found in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WrongChecksums {
    pub(super) bad_ip: bool,
    pub(super) bad_transport: bool,
}

/// Corrects the checksums of a frame of either IP version, behind VLAN tags; returns which were
/// wrong.
pub(super) fn correct_checksums(frame: &mut [u8]) -> WrongChecksums {
    let bad_ip = is_ipv4_checksum_right(frame) == Some(false);
    if bad_ip {
        write_ipv4_checksum(frame);
    }
    let segment = checksum::verify(frame)
        .filter(|verified| [ip_protocol::TCP, ip_protocol::UDP].contains(&verified.protocol));
    let bad_transport = segment.is_some_and(|verified| !verified.segment_valid);
    // A right checksum would be computed again to the same value.
    if bad_transport || segment.is_some_and(|verified| verified.is_without_checksum) {
        checksum::complete(frame);
    }
    WrongChecksums {
        bad_ip,
        bad_transport,
    }
}

impl ForwardMode for Csum {
    type Plan = NoOptions;
    const ABOUT: &'static str = "like mac, and corrects wrong IP, TCP and UDP checksums";

    fn new(_: &NoOptions, facts: &StreamFacts, _: &ModeSettings) -> Self {
        Self {
            addresses: address_bytes(facts.address, facts.peer),
            bad_ip: 0,
            bad_transport: 0,
        }
    }

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
            let wrong = correct_checksums(frame);
            self.bad_ip += u64::from(wrong.bad_ip);
            self.bad_transport += u64::from(wrong.bad_transport);
        })
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        BTreeMap::from([
            ("bad-ip-checksum".to_owned(), self.bad_ip),
            ("bad-l4-checksum".to_owned(), self.bad_transport),
        ])
    }
}
