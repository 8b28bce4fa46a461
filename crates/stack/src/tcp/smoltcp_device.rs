//! smoltcp's device: converts between its packets and frames, and tracks what was sent.

use std::net::IpAddr;

use linerate_port::Frame;
use linerate_port::vnet::{Segmentation, VnetHeader};
use smoltcp::phy::{Device, DeviceCapabilities, PacketMeta, RxToken, TxToken};
use smoltcp::time::Instant;

use super::Wire;
use super::path_mtu::{self, Trial, Written};
use super::recovery::Nudge;
use super::window_edge;
use crate::Nanos;
use crate::config::Psh;
use crate::link::Link;
use crate::pmtu_cache::LEAST_V4;
use crate::socket::SocketId;
use crate::stage_watch::Mark;
use crate::wire::ip;
use crate::wire::{ACK, ETHERNET_BYTES, FIN, PSH, RST, SYN, Sum, TCP, long, put, word};

const ACK_RST: u16 = ACK | RST;

/// Device for one poll of one connection: at most one packet to receive.
pub(super) struct Glance<'a> {
    pub(super) packet: Option<&'a [u8]>,
    pub(super) link: &'a mut Link,
    pub(super) wire: &'a Wire,
    pub(super) sent: &'a mut Sent,
    /// Connection whose segments leave; `None` for resets without one.
    pub(super) socket: Option<SocketId>,
}

/// Send variables of a connection.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sent {
    /// SND.NXT: sequence number after all data sent.
    pub(super) up_to: Option<u32>,
    /// Sequence number of the first byte of the stream.
    pub(super) first: u32,
    /// Payload of the longest segment sent, in bytes.
    pub(super) largest: u32,
    /// Maximum segment size announced by the peer, in bytes.
    pub(super) told: u16,
    /// Last retransmission: its sequence number, and SND.NXT at that time.
    pub(super) again: Option<(u32, u32)>,
    /// The next retransmission was requested by replayed acknowledgements.
    pub(super) asked: bool,
    /// smoltcp has retransmitted on its own timeout.
    pub(super) timed_out: bool,
    /// Sequence number of a FIN that smoltcp does not have yet.
    pub(super) ends: Option<u32>,
    /// smoltcp was made to send a segment that can carry this FIN: once, as it may be about to
    /// retransmit the last one.
    pub(super) asked_end: bool,
    /// smoltcp got the FIN after it had left, and will send it a second time.
    pub(super) repeats_end: bool,
    /// Path MTU in bytes, if smaller than that of the local link; otherwise zero.
    pub(super) path_mtu: u16,
    /// Time of the next MTU probe, and the probe in flight.
    pub(super) wider_at: Nanos,
    pub(super) trial: Option<Trial>,
    /// Sequence number of an MTU probe that a router reported as dropped: no other data is missing.
    pub(super) dropped: Option<u32>,
    /// The peer's window is closed, and smoltcp probes it with one byte.
    pub(super) closed: bool,
    /// Segment retransmitted by timeouts alone since the last progress: its sequence number, and
    /// the number of times.
    pub(super) vain: (u32, u8),
    /// The FIN left with data, or data was retransmitted since. If all data is acknowledged and the
    /// FIN is not, it is lost: some peers (this stack included) keep data beyond a gap, but not a
    /// FIN.
    pub(super) end_rode: bool,
    /// Sequence number of the reset that closes the connection.
    pub(super) broken_off: Option<u32>,
}

impl Sent {
    /// Records that smoltcp is made to retransmit.
    pub(super) fn ask(&mut self, nudge: Nudge) -> Nudge {
        self.asked = true;
        nudge
    }

    /// Returns whether a segment that ends at `behind` is the last one and must carry the FIN.
    #[inline]
    fn is_last(&self, behind: u32, payload: usize) -> bool {
        self.ends == Some(behind) && (payload > 0 || self.up_to == self.ends)
    }

    /// Returns the bytes sent since SND.NXT was `before`.
    #[inline]
    pub(super) fn beyond(&self, before: Option<u32>) -> usize {
        match (self.up_to, before) {
            (Some(up_to), Some(before)) => up_to.wrapping_sub(before) as usize,
            _ => 0,
        }
    }

    /// Records a segment that leaves; returns whether it is a retransmission.
    fn leaves(&mut self, sequence: u32, length: u32) -> bool {
        let end = sequence.wrapping_add(length);
        if self.trial.is_some() {
            self.leaves_again(sequence, end);
        }
        match self.up_to {
            Some(last) if end.wrapping_sub(last) as i32 <= 0 => {
                if length == 1 && self.closed && !self.asked {
                    // A repeated window probe: nothing was lost.
                    return false;
                }
                self.again = Some((sequence, last));
                (self.dropped).take_if(|from| end.wrapping_sub(*from) as i32 > 0);
                let asked = std::mem::take(&mut self.asked);
                self.timed_out |= !asked;
                match &mut self.vain {
                    _ if asked => {}
                    (from, times @ 0) => (*from, *times) = (sequence, 1),
                    (from, times) if *from == sequence => *times = times.saturating_add(1),
                    _ => {}
                }
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
        // Receiving never waits for transmit space: two stacks that both did would deadlock.
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

/// Device that only reports capabilities.
pub(super) struct Still<'a>(pub(super) &'a DeviceCapabilities);

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
        self.0.clone()
    }
}

/// Received packet.
pub(super) struct Came<'a>(&'a [u8]);

impl RxToken for Came<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// Permission to send one packet. Unused it costs nothing: the frame is allocated when the packet
/// is written.
pub(super) struct Goes<'a> {
    link: &'a mut Link,
    wire: &'a Wire,
    sent: &'a mut Sent,
    socket: Option<SocketId>,
    /// Payload of each segment if the packet is a super-segment, to be split by the port's other
    /// side or here.
    segment: Option<u16>,
}

impl TxToken for Goes<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, length: usize, write: F) -> R {
        let narrow = self.sent.path_mtu != 0 && length > usize::from(self.sent.path_mtu);
        let decides = (narrow && self.link.now >= self.sent.wider_at)
            || (self.sent.is_suspected() && length > usize::from(LEAST_V4));
        let here = self.segment.filter(|_| !self.wire.cuts());
        if decides || (narrow && !self.wire.cuts()) {
            debug_assert_eq!(here, None, "of these none is made long");
            return self.cut(length, write);
        }
        if let Some(each) = here {
            return self.split(length, each, write);
        }
        let Some(mut frame) = self.link.make(length) else {
            // As on a device without a free buffer, the packet is lost; `make` counted that.
            let mut nowhere = std::mem::take(&mut self.link.scratch);
            let result = write(&mut nowhere[..length]);
            self.link.scratch = nowhere;
            return result;
        };
        let packet = self.link.packet(&mut frame);
        let result = write(packet);
        if narrow {
            // The port's other side splits the packet, into shorter segments.
            let fits = path_mtu::payload_within(packet, self.sent.path_mtu);
            let fits = fits.min(self.sent.told);
            self.segment = Some(self.segment.map_or(fits, |segment| segment.min(fits)));
        }
        self.leave(frame);
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment = meta
            .segmentation_offload_size
            .map(std::num::NonZeroU16::get);
    }
}

impl Goes<'_> {
    /// Chooses the segment length for a path with reduced MTU, and splits the packet; FIN and PSH
    /// move to the last segment.
    #[cold]
    fn cut<R>(mut self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut whole = std::mem::take(&mut self.link.scratch);
        let result = write(&mut whole[..length]);
        let (packet, now) = (&whole[..length], self.link.now);
        let written = Written::of(packet);
        let most = self.wire.longest.of(written.is_v4()).min(self.sent.told);
        let mut each = self.segment.unwrap_or(most);
        let guesses = self.sent.guess(&written, each, now);
        self.link.counters.tcp.path_mtu_guesses += u64::from(guesses);
        let mut trial = self.sent.tries(&written, most, now);
        let mut longest = u16::MAX;
        if self.sent.path_mtu != 0 {
            each = each.min(path_mtu::payload_within(packet, self.sent.path_mtu));
            if !self.wire.cuts() {
                longest = self.sent.path_mtu;
            }
        }
        let asked = self.sent.asked;
        let mut first = None;
        self.link.cutting = true;
        let begins = trial.map_or(longest, |trial| trial.mtu);
        for piece in path_mtu::pieces(packet, begins, longest) {
            let tries = trial.take();
            // A failed allocation is counted by `make`.
            let Some(mut frame) = self.link.make(piece.bytes()) else {
                continue;
            };
            piece.write(self.link.packet(&mut frame));
            // The request covers all parts.
            self.sent.asked = asked;
            let largest = self.sent.largest;
            // The port's other side splits the longer parts further.
            self.segment = (tries.is_none() && piece.payload > usize::from(each)).then_some(each);
            self.leave(frame);
            if let Some(trial) = tries {
                self.sent.largest = largest;
                self.sent.tried(trial, now);
            }
            first.get_or_insert((self.sent.again, self.sent.vain));
        }
        self.link.cutting = false;
        if let Some((again, vain)) = first {
            (self.sent.again, self.sent.vain) = (again, vain);
        }
        if guesses {
            // At the new length it was sent once.
            self.sent.vain.1 = 0;
        }
        self.link.scratch = whole;
        result
    }

    /// Splits a super-segment into segments, for each of which there is space. They are sent and
    /// counted as if smoltcp had made them one by one.
    fn split<R>(mut self, length: usize, each: u16, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut whole = std::mem::take(&mut self.link.scratch);
        let result = write(&mut whole[..length]);
        let packet = &whole[..length];
        self.segment = None;
        let mtu = path_mtu::packet_of(packet, each);
        for piece in path_mtu::pieces(packet, mtu, mtu) {
            // A failed allocation is counted by `make`.
            let Some(mut frame) = self.link.make(piece.bytes()) else {
                continue;
            };
            piece.write(self.link.packet(&mut frame));
            self.leave(frame);
        }
        self.link.scratch = whole;
        result
    }

    /// Sends a frame with a segment.
    #[inline(always)]
    fn leave(&mut self, mut frame: Frame) {
        let packet = self.link.packet(&mut frame);
        let (to, header) = finish(packet, self.wire, self.segment, self.sent);
        if header.repeats {
            self.link.unmake(frame);
            return;
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
                handed: watch.stage_now(),
                datagram: 0,
                summed: false,
            });
        }
        self.link.send(frame, to, header.vnet);
    }
}

struct Finished {
    flags: u16,
    again: bool,
    /// Not to be sent: the FIN has left before, which smoltcp does not know.
    repeats: bool,
    /// Stream position of the last byte of payload, from 0.
    last_byte: Option<u32>,
    vnet: VnetHeader,
}

/// Applies the configuration to a segment that smoltcp wrote; returns its destination and
/// properties.
fn finish(
    packet: &mut [u8],
    wire: &Wire,
    segment: Option<u16>,
    sent: &mut Sent,
) -> (IpAddr, Finished) {
    // smoltcp writes IP headers without options, and no padding.
    if wire.tos != 0 {
        ip::mark(packet, wire.tos);
    }
    let v4 = packet[0] >> 4 == 4;
    let (head, from, to) = if v4 {
        // smoltcp has left the field zero.
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
    let packet_head = usize::from(before >> 12) * 4;
    let payload = tcp.len() - packet_head;
    // A reset that replies to an unknown segment has the number of its acknowledgement, and no ACK
    // flag.
    if before & ACK_RST == ACK_RST
        && let Some(number) = sent.broken_off
    {
        tcp[4..8].copy_from_slice(&number.to_be_bytes());
    }
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
    let longest = wire.longest.of(v4);
    if flags & SYN != 0 {
        window_edge::limit_mss(tcp, longest);
    }
    // smoltcp requests segmentation for IPv4 packets, and not for IPv6.
    let segment = segment.or_else(|| {
        let each = longest.min(sent.told);
        (!v4 && payload > usize::from(each)).then_some(each)
    });
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
        // smoltcp has left the field zero.
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
            vnet.segmentation = match v4 {
                true => Segmentation::TcpV4,
                false => Segmentation::TcpV6,
            };
            vnet.segment_bytes = segment;
            vnet.header_bytes = (ETHERNET_BYTES + head + packet_head) as u16;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::wire::TCP_BYTES;

    fn wire(settings: &[&str]) -> Wire {
        let mut config = Config::default();
        for setting in settings {
            config.apply(setting).unwrap();
        }
        let own = crate::addressing::Addressing::new(&["10.0.0.1/24", "fd00::1/64"]).unwrap();
        super::super::Tcp::new(&config, &own, (true, false), (10, 65_000)).wire
    }

    /// Returns a segment as smoltcp writes it, with `options` bytes of options.
    fn segment(v6: bool, options: usize, payload: usize) -> Vec<u8> {
        let ends = match v6 {
            true => ["fd00::1", "fd00::2"],
            false => ["10.0.0.1", "10.0.0.2"],
        };
        let [from, to]: [IpAddr; 2] = ends.map(|end| end.parse().unwrap());
        let head = ip::header_bytes(to);
        let tcp = TCP_BYTES + options + payload;
        let mut packet = vec![0; head + tcp];
        ip::write(&mut packet, from, to, TCP, tcp, 0);
        if !v6 {
            put(&mut packet, 10, 0);
        }
        let words = (TCP_BYTES + options) as u16 / 4;
        put(&mut packet, head + 12, words << 12 | 0x10);
        packet
    }

    #[test]
    fn what_is_to_be_cut_says_of_which_protocol_it_is() {
        let wire = wire(&["checksum=offload"]);
        for (v6, kind, head, told, each) in [
            (false, Segmentation::TcpV4, 20, 1_460, 1_448),
            (true, Segmentation::TcpV6, 40, 1_220, 1_220),
            // Local packets hold less than the peer would accept.
            (true, Segmentation::TcpV6, 40, 8_960, 1_440),
        ] {
            let mut packet = segment(v6, 12, 5 * usize::from(each) + 7);
            let mut sent = Sent {
                told,
                ..Sent::default()
            };
            // smoltcp requests it for IPv4.
            let says = (!v6).then_some(each);
            let (to, header) = finish(&mut packet, &wire, says, &mut sent);
            let from: IpAddr = if v6 { "fd00::1" } else { "10.0.0.1" }.parse().unwrap();
            let want = VnetHeader {
                needs_checksum: true,
                checksum_valid: false,
                segmentation: kind,
                header_bytes: 14 + head + 32,
                segment_bytes: each,
                checksum_start: 14 + head,
                checksum_offset: 16,
            };
            assert_eq!(header.vnet, want, "IPv6 {v6}");
            assert_eq!(sent.largest, u32::from(each));
            // The field has the sum of the pseudo header, to be completed by the device.
            let tcp = &packet[usize::from(head)..];
            assert_eq!(word(tcp, 16), ip::pseudo(from, to, TCP, tcp.len()));
        }
    }

    /// Also with the larger MTU that smoltcp has for offloaded segmentation.
    #[test]
    fn greetings_ask_for_what_a_packet_holds() {
        for (settings, v4, v6) in [
            (&["checksum=offload"][..], 1_460, 1_440),
            (&["checksum=offload", "tcp.mss=600"], 600, 600),
            (&["checksum=offload", "mtu=9000"], 8_960, 8_940),
            (&[], 1_460, 1_440),
        ] {
            let wire = wire(settings);
            for (is_v6, want) in [(false, v4), (true, v6)] {
                let mut packet = segment(is_v6, 4, 0);
                let head = if is_v6 { ip::V6_BYTES } else { ip::V4_BYTES };
                put(&mut packet, head + 12, 6 << 12 | SYN);
                packet[head + 20..].copy_from_slice(&[2, 4, 250, 0]);
                finish(&mut packet, &wire, None, &mut Sent::default());
                let tcp = &packet[head..];
                assert_eq!(
                    window_edge::told_mss(tcp),
                    want,
                    "{settings:?} IPv6 {is_v6}"
                );
            }
        }
    }

    #[test]
    fn what_a_packet_holds_is_not_to_be_cut() {
        for (settings, sums) in [(&["checksum=offload"][..], false), (&[], true)] {
            let wire = wire(settings);
            for v6 in [false, true] {
                let mut packet = segment(v6, 0, 1_000);
                let mut sent = Sent {
                    told: 1_000,
                    ..Sent::default()
                };
                let (to, header) = finish(&mut packet, &wire, None, &mut sent);
                assert_eq!(header.vnet.segmentation, Segmentation::None);
                assert_eq!(header.vnet.needs_checksum, !sums);
                let tcp = &packet[ip::header_bytes(to)..];
                let from: IpAddr = if v6 { "fd00::1" } else { "10.0.0.1" }.parse().unwrap();
                let right = (ip::pseudo_sum(from, to, TCP, tcp.len()) + Sum::of(tcp)).is_right();
                assert_eq!(right, sums, "{settings:?} IPv6 {v6}");
            }
        }
    }

    /// Without an offloading port smoltcp makes no segments longer than a packet, for either IP
    /// version.
    #[test]
    fn the_engine_is_told_of_both_protocols_alike() {
        for (settings, some) in [(&["checksum=offload"][..], true), (&[], false)] {
            let cuts = wire(settings).capabilities.segmentation;
            assert_eq!((cuts.tcpv4.is_some(), cuts.tcpv6.is_some()), (some, some));
            assert_eq!(cuts.tcpv4, cuts.tcpv6);
        }
    }

    /// A single place is left: the rest of the segment waits and is not lost.
    #[test]
    fn all_pieces_of_a_segment_leave_a_ring_that_is_full() {
        use linerate_port::{BURST_FRAMES, Burst, Receive};

        const RING: u32 = 8;
        let wire = wire(&[]);
        let (mut link, _receive, mut far) = crate::link::tests::on_ring(&[], RING);
        let to: IpAddr = "10.0.0.2".parse().unwrap();
        link.neighbors.learn(to, [2, 0, 0, 0, 0, 2], true, 0);
        link.begin(1);
        for _ in 0..RING as usize + BURST_FRAMES - 1 {
            let frame = link.make(20).unwrap();
            link.push(frame);
        }
        assert!(link.has_room());
        let whole = segment(false, 0, 1_460);
        let mut sent = Sent {
            path_mtu: 552,
            told: 1_460,
            ..Sent::default()
        };
        let goes = Goes {
            link: &mut link,
            wire: &wire,
            sent: &mut sent,
            socket: None,
            segment: None,
        };
        goes.consume(whole.len(), |packet| packet.copy_from_slice(&whole));
        assert!(!link.has_room());
        let (mut pool, mut pieces) = (link.memory.pool(), Vec::new());
        loop {
            let mut burst = Burst::new();
            if far.receive.receive(&mut pool, &mut burst) == 0 {
                break;
            }
            let lengths = burst.frames().iter().map(|frame| usize::from(frame.len()));
            pieces.extend(lengths.filter(|&length| length > ETHERNET_BYTES + 20));
            pool.free_all(&mut burst);
            link.flush();
        }
        let head = ETHERNET_BYTES + ip::V4_BYTES + TCP_BYTES;
        assert_eq!(pieces, [head + 512, head + 512, head + 436]);
        assert_eq!(link.counters.link.out_ring_full, 0);
        assert!(link.has_room() && !link.is_behind());
    }
}
