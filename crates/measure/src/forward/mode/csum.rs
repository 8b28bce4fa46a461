//! `csum`: like `mac`, and corrects IP, TCP and UDP checksums; wrong ones are counted.

use std::collections::BTreeMap;

use linerate_port::{Memory, Pool, Receive, Transmit, checksum};

use super::mac::addresses;
use crate::forward::frame::{ipv4_checksum_holds, write_ipv4_checksum};
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, ForwardMode, NoPlan, Stream};

/// Corrects checksums.
pub struct Csum {
    addresses: [u8; 12],
    bad_ip: u64,
    bad_transport: u64,
}

/// Wrong checksums found in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) bad_ip: bool,
    pub(super) bad_transport: bool,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Corrects the checksums of a frame of either IP version, behind VLAN tags; returns which were
/// wrong.
pub(super) fn complete(frame: &mut [u8]) -> Found {
    let bad_ip = ipv4_checksum_holds(frame) == Some(false);
    if bad_ip {
        write_ipv4_checksum(frame);
    }
    let segment = checksum::verify(frame).filter(|found| [TCP, UDP].contains(&found.protocol));
    let bad_transport = segment.is_some_and(|found| !found.segment_holds);
    // A right checksum would be computed again to the same value.
    if bad_transport || segment.is_some_and(|found| found.is_unsummed) {
        checksum::complete(frame);
    }
    Found {
        bad_ip,
        bad_transport,
    }
}

impl ForwardMode for Csum {
    type Plan = NoPlan;
    const ABOUT: &'static str = "like mac, and recomputes IP, TCP and UDP checksums in software";

    fn new(_: &NoPlan, facts: &Facts, _: &Settings) -> Self {
        Self {
            addresses: addresses(facts.address, facts.peer),
            bad_ip: 0,
            bad_transport: 0,
        }
    }

    fn step<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize {
        let received = stream.receive(pool);
        if received > 0 {
            stream.change(memory, |frame| {
                if let Some(head) = frame.first_chunk_mut::<12>() {
                    *head = self.addresses;
                }
                let found = complete(frame);
                self.bad_ip += u64::from(found.bad_ip);
                self.bad_transport += u64::from(found.bad_transport);
            });
            stream.transmit(pool);
        }
        received
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        BTreeMap::from([
            ("bad-ip-checksum".to_owned(), self.bad_ip),
            ("bad-l4-checksum".to_owned(), self.bad_transport),
        ])
    }
}
