//! `csum`: as `mac`, and IP, TCP and UDP checksums are summed anew; wrong ones are counted.

use std::collections::BTreeMap;

use linerate_port::{Memory, Pool, Receive, Transmit, checksum};

use super::mac::addresses;
use crate::forward::frame::{ipv4_checksum_holds, write_ipv4_checksum};
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, Mode, NoPlan, Stream};

/// Sums.
pub struct Csum {
    addresses: [u8; 12],
    bad_ip: u64,
    bad_transport: u64,
}

/// What summing found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) bad_ip: bool,
    pub(super) bad_transport: bool,
}

/// The checksum of TCP or UDP in an untagged IPv4 frame; where it is, and whether 0 stands for none.
fn transport_sum(frame: &[u8]) -> Option<(usize, bool)> {
    let header = crate::forward::frame::ipv4_header(frame)?;
    let start = crate::forward::frame::ETHERNET + header;
    let place = match frame.get(23)? {
        6 => (start + 16, false),
        17 => (start + 6, true),
        _ => return None,
    };
    (frame.len() >= place.0 + 2).then_some(place)
}

/// Writes the checksums of a frame, and says which were wrong.
pub(super) fn complete(frame: &mut [u8]) -> Found {
    let mut found = Found {
        bad_ip: ipv4_checksum_holds(frame) == Some(false),
        ..Found::default()
    };
    if found.bad_ip {
        write_ipv4_checksum(frame);
    }
    let read = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let place = transport_sum(frame);
    let before = place.map(|(at, _)| read(frame, at));
    if checksum::complete(frame)
        && let (Some((at, zero_is_none)), Some(before)) = (place, before)
    {
        let none = zero_is_none && before == 0;
        // 0 and 0xffff are one number in ones' complement.
        let same = before % u16::MAX == read(frame, at) % u16::MAX;
        found.bad_transport = !none && !same;
    }
    found
}

impl Mode for Csum {
    type Plan = NoPlan;
    const ABOUT: &'static str = "as mac, and IP, TCP and UDP checksums are summed anew in software";

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
