//! Segments between the engine and frames.

use std::net::IpAddr;

use linerate_port::vnet::{Segmentation, VnetHeader};
use smoltcp::phy::{Device, DeviceCapabilities, PacketMeta, RxToken, TxToken};
use smoltcp::time::Instant;

use super::Wire;
use super::edge;
use super::recovery::Nudge;
use crate::config::Psh;
use crate::link::Link;
use crate::socket::SocketId;
use crate::watch::Mark;
use crate::wire::ip;
use crate::wire::{ETHERNET_BYTES, Sum, TCP, long, put, word};

const FIN: u16 = 0x01;
const SYN: u16 = 0x02;
const RST: u16 = 0x04;
const PSH: u16 = 0x08;

/// What the engine sees of the port while it works on one connection: one packet that came, or none.
pub(super) struct Glance<'a> {
    pub(super) packet: Option<&'a [u8]>,
    pub(super) link: &'a mut Link,
    pub(super) wire: &'a Wire,
    pub(super) sent: &'a mut Sent,
    /// Whose segments leave.
    pub(super) socket: Option<SocketId>,
}

/// How far a connection's stream was sent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sent {
    /// The sequence number behind all that was sent.
    pub(super) up_to: Option<u32>,
    /// The one of the stream's first byte.
    pub(super) first: u32,
    /// Payload of the longest segment.
    pub(super) largest: u32,
    /// What was last sent again: where it begins, and how far the stream was sent by then.
    pub(super) again: Option<(u32, u32)>,
    /// The engine has been asked for that, by acknowledgements.
    pub(super) asked: bool,
    /// The engine sent something again without having been asked.
    pub(super) timed_out: bool,
    /// The number behind the stream's last byte, where the engine does not know that the stream ends there.
    pub(super) ends: Option<u32>,
    /// The engine was asked for a segment that can say so: once, as it may be about to send the last one again.
    pub(super) asked_end: bool,
    /// The engine has learnt of the end after that had left, and will send it: once more than is needed.
    pub(super) repeats_end: bool,
    /// The end left with payload, or payload was sent again since. Where all payload is acknowledged and the end is
    /// not, it is lost: some far ends, this stack among them, keep what comes beyond a gap, and not the end.
    pub(super) end_rode: bool,
}

impl Sent {
    /// The engine is asked to send something again.
    pub(super) fn ask(&mut self, nudge: Nudge) -> Nudge {
        self.asked = true;
        nudge
    }

    /// Whether a segment of payload up to this number, or an empty one there, is the stream's last one.
    #[inline]
    fn is_last(&self, behind: u32, payload: usize) -> bool {
        self.ends == Some(behind) && (payload > 0 || self.up_to == self.ends)
    }

    /// A segment leaves that takes this much of the stream; whether all of it left before.
    fn leaves(&mut self, sequence: u32, length: u32) -> bool {
        let end = sequence.wrapping_add(length);
        match self.up_to {
            Some(last) if end.wrapping_sub(last) as i32 <= 0 => {
                self.again = Some((sequence, last));
                self.timed_out |= !std::mem::take(&mut self.asked);
                true
            }
            _ => {
                self.up_to = Some(end);
                false
            }
        }
    }
}

impl Device for Glance<'_> {
    type RxToken<'b>
        = Came<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Goes<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(Came<'_>, Goes<'_>)> {
        // Taking in never waits for room to send: two stacks that both did would stand still.
        let packet = self.packet.take()?;
        Some((Came(packet), self.goes()))
    }

    fn transmit(&mut self, _: Instant) -> Option<Goes<'_>> {
        self.link.has_room().then(|| self.goes())
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.wire.capabilities.clone()
    }
}

impl Glance<'_> {
    fn goes(&mut self) -> Goes<'_> {
        Goes {
            link: self.link,
            wire: self.wire,
            sent: self.sent,
            socket: self.socket,
            segment: None,
        }
    }
}

/// A device that is only asked what it can do.
pub(super) struct Still<'a>(pub(super) &'a Wire);

impl Device for Still<'_> {
    type RxToken<'b>
        = Came<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Goes<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(Came<'_>, Goes<'_>)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Goes<'_>> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.0.capabilities.clone()
    }
}

/// A packet that came.
pub(super) struct Came<'a>(&'a [u8]);

impl RxToken for Came<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// Leave to send one packet. Dropped unused it costs nothing: the frame is taken when it is written.
pub(super) struct Goes<'a> {
    link: &'a mut Link,
    wire: &'a Wire,
    sent: &'a mut Sent,
    socket: Option<SocketId>,
    /// Payload of each segment, when the port's other side is to cut the packet.
    segment: Option<u16>,
}

impl TxToken for Goes<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let Some(mut frame) = self.link.make(length) else {
            // As a device without a free buffer: written nowhere, and counted where it was missed.
            let mut nowhere = std::mem::take(&mut self.link.scratch);
            let result = write(&mut nowhere[..length]);
            self.link.scratch = nowhere;
            return result;
        };
        let packet = self.link.packet(&mut frame);
        let result = write(packet);
        let (to, header) = finish(packet, self.wire, self.segment, self.sent);
        if header.repeats {
            self.link.unmake(frame);
            return result;
        }
        let flags = header.flags;
        let counters = &mut self.link.counters;
        counters.tcp.out_segments += 1;
        counters.ip.out_requests += 1;
        counters.tcp.retransmitted_segments += u64::from(header.again);
        counters.tcp.out_resets += u64::from(flags & RST != 0);
        if let Some(watch) = &self.link.watch
            && let (Some(socket), Some(number)) = (self.socket, header.last_byte)
        {
            self.link.mark = Some(Mark {
                socket,
                number,
                asked: None,
                handed: (watch.clock)(),
                datagram: 0,
                summed: false,
            });
        }
        self.link.send(frame, to, header.vnet);
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment = meta
            .segmentation_offload_size
            .map(std::num::NonZeroU16::get);
    }
}

struct Finished {
    flags: u16,
    again: bool,
    /// It does not leave: it has before, and the engine does not know.
    repeats: bool,
    /// The number of the last byte of payload in the stream, from 0.
    last_byte: Option<u32>,
    vnet: VnetHeader,
}

/// Changes a segment that the engine wrote as the configuration asks, and says where it goes.
fn finish(
    packet: &mut [u8],
    wire: &Wire,
    segment: Option<u16>,
    sent: &mut Sent,
) -> (IpAddr, Finished) {
    // The engine writes headers without options, and nothing behind the packet.
    if wire.tos != 0 {
        ip::mark(packet, wire.tos);
    }
    let v4 = packet[0] >> 4 == 4;
    let (head, from, to) = if v4 {
        // The engine has left zero there.
        let header = packet.first_chunk().expect("a header");
        let checksum = !Sum::of_header(header).folded();
        put(packet, 10, checksum);
        let address = |at: usize| -> [u8; 4] { packet[at..at + 4].try_into().expect("four") };
        (ip::V4_BYTES, address(12).into(), address(16).into())
    } else {
        let address = |at: usize| -> [u8; 16] { packet[at..at + 16].try_into().expect("sixteen") };
        (ip::V6_BYTES, address(8).into(), address(24).into())
    };
    let tcp = &mut packet[head..];
    let before = word(tcp, 12);
    let payload = tcp.len() - usize::from(before >> 12) * 4;
    let sequence = long(tcp, 4);
    let behind = sequence.wrapping_add(payload as u32);
    let mut flags = before;
    if sent.is_last(behind, payload) && flags & RST == 0 {
        flags |= FIN;
    }
    match wire.psh {
        Psh::Never => flags &= !PSH,
        Psh::Always if payload > 0 => flags |= PSH,
        Psh::Always | Psh::BufferEmpty => {}
    }
    if flags != before {
        put(tcp, 12, flags);
    }
    if let (Some(most), true) = (wire.mss, flags & SYN != 0) {
        edge::limit_mss(tcp, most);
    }
    let repeats = flags & FIN != 0 && std::mem::take(&mut sent.repeats_end) && payload == 0;
    let length = payload as u32 + u32::from(flags & (SYN | FIN) != 0);
    let mut again = false;
    if length > 0 && flags & RST == 0 && !repeats {
        again = sent.leaves(sequence, length);
        sent.end_rode = payload > 0 && (again || flags & FIN != 0);
        let each = segment.map_or(payload as u32, u32::from);
        sent.largest = sent.largest.max(each);
        if flags & SYN != 0 {
            sent.first = sequence.wrapping_add(1);
        }
    }
    let last_byte = (payload > 0).then(|| behind.wrapping_sub(sent.first).wrapping_sub(1));
    let mut vnet = VnetHeader::default();
    if wire.sums {
        // The engine has left zero there.
        let pseudo = ip::pseudo_sum(from, to, TCP, tcp.len());
        let checksum = !(pseudo + Sum::of(tcp)).folded();
        put(tcp, 16, checksum);
    } else if wire.offload {
        let pseudo = ip::pseudo(from, to, TCP, tcp.len());
        put(tcp, 16, pseudo);
        vnet.needs_checksum = true;
        vnet.checksum_start = (ETHERNET_BYTES + head) as u16;
        vnet.checksum_offset = 16;
        if let Some(segment) = segment {
            // The engine has none of IPv6.
            vnet.segmentation = Segmentation::TcpV4;
            vnet.segment_bytes = segment;
            vnet.header_bytes = (ETHERNET_BYTES + head + usize::from(before >> 12) * 4) as u16;
        }
    }
    let finished = Finished {
        flags,
        again,
        repeats,
        last_byte,
        vnet,
    };
    (to, finished)
}
