//! Fragmentation of datagrams that are longer than a frame (RFC 791; RFC 8200, section 4.5).

use std::net::{IpAddr, Ipv4Addr};

use linerate_packet::vnet::VnetHeader;

use crate::link::LinkLayer;
use crate::prefault;
use crate::wire::ip::{FRAGMENT_BYTES, FragmentPosition, V4_BYTES, V6_BYTES};
use crate::wire::{FRAGMENT_HEADER_V6, ip, write_u16};

/// Longest payload of a packet: IPv4's total length includes the header.
const MAX_PAYLOAD_V4: usize = 65_535 - V4_BYTES;
const MAX_PAYLOAD_V6: usize = 65_535;

/// Returns the longest IP payload for a destination.
pub(crate) const fn max_payload(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => MAX_PAYLOAD_V4,
        IpAddr::V6(_) => MAX_PAYLOAD_V6,
    }
}

/// The datagram that is leaving in fragments. The next one begins when the last fragment has left:
/// none is overwritten, however small the ring is.
pub(crate) struct Fragmenter {
    /// Buffer; empty if fragmentation is off.
    datagram: Vec<u8>,
    length: usize,
    sent: usize,
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    id: u32,
    /// Longest packet on the path to the destination, in bytes.
    mtu: usize,
}

/// Returns the length of a fragment's headers.
const fn fragment_header_bytes(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => V4_BYTES,
        IpAddr::V6(_) => V6_BYTES + FRAGMENT_BYTES,
    }
}

/// Returns the payload of a fragment in a packet of `mtu` bytes: all but the last hold a multiple
/// of eight bytes.
fn fragment_payload(to: IpAddr, mtu: usize) -> usize {
    (mtu - fragment_header_bytes(to)) & !7
}

/// Returns the number of fragments of a datagram.
pub(crate) fn fragment_count(to: IpAddr, length: usize, mtu: usize) -> usize {
    length.div_ceil(fragment_payload(to, mtu))
}

impl Fragmenter {
    pub(crate) fn new(on: bool) -> Self {
        Self {
            datagram: prefault::filled(Self::heap_bytes(on)),
            length: 0,
            sent: 0,
            from: Ipv4Addr::UNSPECIFIED.into(),
            to: Ipv4Addr::UNSPECIFIED.into(),
            protocol: 0,
            id: 0,
            mtu: 0,
        }
    }

    pub(crate) const fn heap_bytes(on: bool) -> usize {
        if on { MAX_PAYLOAD_V6 } else { 0 }
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.datagram.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sent >= self.length
    }

    /// Returns the buffer for a datagram's IP payload; `None` while another one is leaving, or if
    /// it is too long.
    pub(crate) fn begin(&mut self, length: usize) -> Option<&mut [u8]> {
        if !self.is_idle() {
            return None;
        }
        let buffer = self.datagram.get_mut(..length)?;
        (self.length, self.sent) = (length, length);
        Some(buffer)
    }

    /// Starts sending the datagram in the buffer of [`Fragmenter::begin`], in packets of at most
    /// `mtu` bytes.
    pub(crate) fn send(
        &mut self,
        link: &mut LinkLayer,
        addresses: (IpAddr, IpAddr),
        protocol: u8,
        mtu: usize,
    ) {
        ((self.from, self.to), self.protocol) = (addresses, protocol);
        (self.sent, self.mtu) = (0, mtu);
        self.id = link.ip_ids.next(self.from, self.to);
    }

    /// Makes fragments while the ring has space.
    pub(crate) fn poll(&mut self, link: &mut LinkLayer) {
        if self.is_idle() {
            return;
        }
        let head = fragment_header_bytes(self.to);
        let payload_step = fragment_payload(self.to, self.mtu);
        while !self.is_idle() && link.can_send() {
            let length = payload_step.min(self.length - self.sent);
            let Some(mut frame) = link.allocate_frame(head + length) else {
                return;
            };
            let fragment = FragmentPosition {
                id: self.id,
                offset: self.sent,
                has_more: self.sent + length < self.length,
            };
            let packet = link.packet(&mut frame);
            self.write_fragment_headers(packet, length, fragment);
            link.set_tos_and_hops(packet, self.to);
            if self.to.is_ipv4() {
                ip::write_checksum(&mut packet[..V4_BYTES]);
            }
            packet[head..].copy_from_slice(&self.datagram[self.sent..self.sent + length]);
            self.sent += length;
            link.counters.ip.fragments_created += 1;
            if !fragment.has_more {
                link.counters.ip.fragmented_ok += 1;
            }
            link.send(frame, self.to, VnetHeader::default());
        }
    }

    fn write_fragment_headers(&self, packet: &mut [u8], length: usize, fragment: FragmentPosition) {
        match self.to {
            IpAddr::V4(_) => {
                let id = fragment.id as u16;
                ip::write_header(packet, self.from, self.to, self.protocol, length, id);
                let more = if fragment.has_more { 0x2000 } else { 0 };
                write_u16(packet, 6, (fragment.offset / 8) as u16 | more);
            }
            IpAddr::V6(_) => {
                let payload_bytes = FRAGMENT_BYTES + length;
                ip::write_header(
                    packet,
                    self.from,
                    self.to,
                    FRAGMENT_HEADER_V6,
                    payload_bytes,
                    0,
                );
                ip::write_fragment_header(&mut packet[V6_BYTES..], self.protocol, fragment);
            }
        }
    }
}
