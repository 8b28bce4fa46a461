//! Datagrams that are longer than a frame leave in fragments (RFC 791).

use std::net::Ipv4Addr;

use linerate_port::vnet::VnetHeader;

use crate::link::Link;
use crate::wire::ip::{self, V4_BYTES};
use crate::wire::put;

/// The longest payload of an IPv4 packet.
pub(crate) const LONGEST: usize = 65_535 - V4_BYTES;

/// One datagram on its way out. The next begins when the last fragment has left: none is overwritten,
/// however small the ring is.
pub(crate) struct Fragmenter {
    /// Empty when datagrams may not be cut.
    datagram: Vec<u8>,
    length: usize,
    sent: usize,
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    id: u16,
    /// Payload of all fragments but the last.
    step: usize,
}

impl Fragmenter {
    pub(crate) fn new(on: bool, mtu: usize) -> Self {
        Self {
            datagram: vec![0; Self::heap_bytes(on)],
            length: 0,
            sent: 0,
            from: Ipv4Addr::UNSPECIFIED,
            to: Ipv4Addr::UNSPECIFIED,
            protocol: 0,
            id: 0,
            step: (mtu - V4_BYTES) & !7,
        }
    }

    pub(crate) const fn heap_bytes(on: bool) -> usize {
        if on { LONGEST } else { 0 }
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.datagram.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sent >= self.length
    }

    /// Room for a datagram's IP payload; `None` while another is on its way, or when it is too long.
    pub(crate) fn begin(&mut self, length: usize) -> Option<&mut [u8]> {
        if !self.is_idle() {
            return None;
        }
        let room = self.datagram.get_mut(..length)?;
        (self.length, self.sent) = (length, length);
        Some(room)
    }

    /// What [`Fragmenter::begin`] made room for is written and may leave.
    pub(crate) fn send(&mut self, from: Ipv4Addr, to: Ipv4Addr, protocol: u8, id: u16) {
        (self.from, self.to, self.protocol, self.id) = (from, to, protocol, id);
        self.sent = 0;
    }

    /// Makes fragments while there is room for frames.
    pub(crate) fn work(&mut self, link: &mut Link) {
        while !self.is_idle() && link.has_room() {
            let length = self.step.min(self.length - self.sent);
            let Some(mut frame) = link.make(V4_BYTES + length) else {
                return;
            };
            let more = self.sent + length < self.length;
            let packet = link.packet(&mut frame);
            ip::write(
                packet,
                self.from.into(),
                self.to.into(),
                self.protocol,
                length,
                self.id,
            );
            let place = (self.sent / 8) as u16 | if more { 0x2000 } else { 0 };
            put(packet, 6, place);
            link.label(packet, self.to.into());
            ip::seal(&mut packet[..V4_BYTES]);
            packet[V4_BYTES..].copy_from_slice(&self.datagram[self.sent..self.sent + length]);
            self.sent += length;
            link.counters.ip.fragments_created += 1;
            if !more {
                link.counters.ip.fragmented_ok += 1;
            }
            link.send(frame, self.to.into(), VnetHeader::default());
        }
    }
}
