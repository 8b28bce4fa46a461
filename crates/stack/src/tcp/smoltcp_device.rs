//! smoltcp's device: converts between its packets and frames, and tracks what was sent.

use std::net::IpAddr;

use linerate_packet::checksum::UnfoldedSum;
use linerate_packet::vnet::{Segmentation, VnetHeader};
use linerate_sys::frames::frame::Frame;
use smoltcp::phy::{Device, DeviceCapabilities, PacketMeta, RxToken, TxToken};
use smoltcp::time::Instant;

use super::path_mtu::{MtuProbe, WrittenPacket};
use super::recovery::AckReplay;
use super::{SegmentFormat, path_mtu, window_edge};
use crate::Nanos;
use crate::config::PshPolicy;
use crate::link::LinkLayer;
use crate::path_mtu_cache::MIN_PMTU_V4;
use crate::socket::SocketId;
use crate::stage_watch::FrameMark;
use crate::wire::{
    ACK, ETHERNET_BYTES, FIN, PSH, RST, SYN, TCP, ip, read_u16, read_u32, write_u16,
};

const ACK_RST: u16 = ACK | RST;

/// Device for one poll of one connection: at most one packet to receive.
pub(super) struct SmoltcpDevice<'a> {
    pub(super) packet: Option<&'a [u8]>,
    pub(super) link: &'a mut LinkLayer,
    pub(super) format: &'a SegmentFormat,
    pub(super) send_state: &'a mut SendState,
    /// Connection whose segments leave; `None` for resets without one.
    pub(super) socket: Option<SocketId>,
}

/// Send variables of a connection.
#[derive(Clone, Copy, Default)]
pub(crate) struct SendState {
    /// SND.NXT: sequence number after all data sent.
    pub(super) snd_nxt: Option<u32>,
    /// Sequence number of the first byte of the stream.
    pub(super) first_sequence: u32,
    /// Payload of the longest segment sent, in bytes.
    pub(super) max_payload: u32,
    /// Maximum segment size announced by the peer, in bytes.
    pub(super) peer_mss: u16,
    /// Last retransmission: its sequence number, and SND.NXT at that time.
    pub(super) last_retransmit: Option<(u32, u32)>,
    /// The next retransmission was requested by replayed acknowledgements.
    pub(super) retransmit_requested: bool,
    /// smoltcp has retransmitted on its own timeout.
    pub(super) timed_out: bool,
    /// Sequence number of a FIN that smoltcp does not have yet.
    pub(super) deferred_fin: Option<u32>,
    /// smoltcp was made to send a segment that can carry this FIN: once, as it may be about to
    /// retransmit the last one.
    pub(super) fin_requested: bool,
    /// smoltcp got the FIN after it had left, and will send it a second time.
    pub(super) skips_redundant_fin: bool,
    /// Path MTU in bytes, if smaller than that of the local link; otherwise zero.
    pub(super) path_mtu: u16,
    /// Time of the next MTU probe, and the probe in flight.
    pub(super) probe_at: Nanos,
    pub(super) mtu_probe: Option<MtuProbe>,
    /// Sequence number of an MTU probe that a router reported as dropped: no other data is missing.
    pub(super) dropped_probe: Option<u32>,
    /// The peer's window is closed, and smoltcp probes it with one byte.
    pub(super) window_closed: bool,
    /// Segment retransmitted by timeouts alone since the last progress: its sequence number, and
    /// the number of times.
    pub(super) timeout_repeats: (u32, u8),
    /// The FIN left with data, or data was retransmitted since. If all data is acknowledged and the
    /// FIN is not, it is lost: some peers (this stack included) keep data beyond a gap, but not a
    /// FIN.
    pub(super) fin_left_with_data: bool,
    /// Sequence number of the reset that closes the connection.
    pub(super) reset_sequence: Option<u32>,
}

impl SendState {
    /// Records that smoltcp is made to retransmit.
    pub(super) fn request_retransmit(&mut self, replay: AckReplay) -> AckReplay {
        self.retransmit_requested = true;
        replay
    }

    /// Returns whether a segment that ends at `end` is the last one and must carry the FIN.
    #[inline]
    fn carries_fin(&self, end: u32, payload: usize) -> bool {
        self.deferred_fin == Some(end) && (payload > 0 || self.snd_nxt == self.deferred_fin)
    }

    /// Returns the bytes sent since SND.NXT was `before`.
    #[inline]
    pub(super) fn bytes_since(&self, before: Option<u32>) -> usize {
        match (self.snd_nxt, before) {
            (Some(up_to), Some(before)) => up_to.wrapping_sub(before) as usize,
            _ => 0,
        }
    }

    /// Records a segment that leaves; returns whether it is a retransmission.
    fn record_segment(&mut self, sequence: u32, length: u32) -> bool {
        let end = sequence.wrapping_add(length);
        if self.mtu_probe.is_some() {
            self.cancel_overlapping_probe(sequence, end);
        }
        match self.snd_nxt {
            Some(last) if end.wrapping_sub(last) as i32 <= 0 => {
                if length == 1 && self.window_closed && !self.retransmit_requested {
                    // A repeated window probe: nothing was lost.
                    return false;
                }
                self.last_retransmit = Some((sequence, last));
                (self.dropped_probe).take_if(|from| end.wrapping_sub(*from) as i32 > 0);
                let was_requested = std::mem::take(&mut self.retransmit_requested);
                self.timed_out |= !was_requested;
                match &mut self.timeout_repeats {
                    _ if was_requested => {}
                    (from, times @ 0) => (*from, *times) = (sequence, 1),
                    (from, times) if *from == sequence => *times = times.saturating_add(1),
                    _ => {}
                }
                true
            }
            _ => {
                self.snd_nxt = Some(end);
                false
            }
        }
    }
}

impl Device for SmoltcpDevice<'_> {
    type RxToken<'b>
        = ReceivedPacket<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = PacketSender<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(ReceivedPacket<'_>, PacketSender<'_>)> {
        // Receiving never waits for transmit space: two stacks that both did would deadlock.
        let packet = self.packet.take()?;
        Some((ReceivedPacket(packet), self.packet_sender()))
    }

    fn transmit(&mut self, _: Instant) -> Option<PacketSender<'_>> {
        self.link.can_send().then(|| self.packet_sender())
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.format.capabilities.clone()
    }
}

impl SmoltcpDevice<'_> {
    fn packet_sender(&mut self) -> PacketSender<'_> {
        PacketSender {
            link: self.link,
            format: self.format,
            send_state: self.send_state,
            socket: self.socket,
            segment_payload: None,
        }
    }
}

/// Device that only reports capabilities.
pub(super) struct CapabilityDevice<'a>(pub(super) &'a DeviceCapabilities);

impl Device for CapabilityDevice<'_> {
    type RxToken<'b>
        = ReceivedPacket<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = PacketSender<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(ReceivedPacket<'_>, PacketSender<'_>)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<PacketSender<'_>> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.0.clone()
    }
}

/// Received packet.
pub(super) struct ReceivedPacket<'a>(&'a [u8]);

impl RxToken for ReceivedPacket<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// Permission to send one packet. Unused it costs nothing: the frame is allocated when the packet
/// is written.
pub(super) struct PacketSender<'a> {
    link: &'a mut LinkLayer,
    format: &'a SegmentFormat,
    send_state: &'a mut SendState,
    socket: Option<SocketId>,
    /// Payload of each segment if the packet is a super-segment, to be split by the port's other
    /// side or here.
    segment_payload: Option<u16>,
}

impl TxToken for PacketSender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, length: usize, write: F) -> R {
        let exceeds_path_mtu =
            self.send_state.path_mtu != 0 && length > usize::from(self.send_state.path_mtu);
        let is_probe_or_suspect = (exceeds_path_mtu && self.link.now >= self.send_state.probe_at)
            || (self.send_state.is_length_suspected() && length > usize::from(MIN_PMTU_V4));
        let split_payload = self
            .segment_payload
            .filter(|_| !self.format.offloads_segmentation());
        if is_probe_or_suspect || (exceeds_path_mtu && !self.format.offloads_segmentation()) {
            debug_assert_eq!(split_payload, None, "of these none is made long");
            return self.send_within_path_mtu(length, write);
        }
        if let Some(segment_payload) = split_payload {
            return self.send_split(length, segment_payload, write);
        }
        let Some(mut frame) = self.link.allocate_frame(length) else {
            // As on a device without a free buffer, the packet is lost; `allocate_frame` counted that.
            let mut scratch = std::mem::take(&mut self.link.scratch);
            let result = write(&mut scratch[..length]);
            self.link.scratch = scratch;
            return result;
        };
        let packet = self.link.packet(&mut frame);
        let result = write(packet);
        if exceeds_path_mtu {
            // The port's other side splits the packet, into shorter segments.
            let fitting_payload = path_mtu::payload_limit(packet, self.send_state.path_mtu);
            let fitting_payload = fitting_payload.min(self.send_state.peer_mss);
            self.segment_payload = Some(
                self.segment_payload
                    .map_or(fitting_payload, |segment| segment.min(fitting_payload)),
            );
        }
        self.send_segment(frame);
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment_payload = meta
            .segmentation_offload_size
            .map(std::num::NonZeroU16::get);
    }
}

impl PacketSender<'_> {
    /// Chooses the segment length for a path with reduced MTU, and splits the packet; FIN and PSH
    /// move to the last segment.
    #[cold]
    fn send_within_path_mtu<R>(mut self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut packet_bytes = std::mem::take(&mut self.link.scratch);
        let result = write(&mut packet_bytes[..length]);
        let (packet, now) = (&packet_bytes[..length], self.link.now);
        let written = WrittenPacket::parse(packet);
        let max_payload = self
            .format
            .max_payload
            .for_version(written.is_v4())
            .min(self.send_state.peer_mss);
        let mut segment_payload = self.segment_payload.unwrap_or(max_payload);
        let is_reduced = self
            .send_state
            .reduce_if_black_hole(&written, segment_payload, now);
        self.link.counters.tcp.path_mtu_guesses += u64::from(is_reduced);
        let mut mtu_probe = self.send_state.propose_probe(&written, max_payload, now);
        let mut part_mtu = u16::MAX;
        if self.send_state.path_mtu != 0 {
            segment_payload =
                segment_payload.min(path_mtu::payload_limit(packet, self.send_state.path_mtu));
            if !self.format.offloads_segmentation() {
                part_mtu = self.send_state.path_mtu;
            }
        }
        let was_requested = self.send_state.retransmit_requested;
        let mut first = None;
        self.link.is_splitting = true;
        let first_mtu = mtu_probe.map_or(part_mtu, |mtu_probe| mtu_probe.mtu);
        for part in path_mtu::split_packet(packet, first_mtu, part_mtu) {
            let part_probe = mtu_probe.take();
            // A failed allocation is counted by `allocate_frame`.
            let Some(mut frame) = self.link.allocate_frame(part.packet_bytes()) else {
                continue;
            };
            part.write(self.link.packet(&mut frame));
            // The request covers all parts.
            self.send_state.retransmit_requested = was_requested;
            let saved_max_payload = self.send_state.max_payload;
            // The port's other side splits the longer parts further.
            self.segment_payload = (part_probe.is_none()
                && part.payload_bytes > usize::from(segment_payload))
            .then_some(segment_payload);
            self.send_segment(frame);
            if let Some(mtu_probe) = part_probe {
                self.send_state.max_payload = saved_max_payload;
                self.send_state.record_probe(mtu_probe, now);
            }
            first.get_or_insert((
                self.send_state.last_retransmit,
                self.send_state.timeout_repeats,
            ));
        }
        self.link.is_splitting = false;
        if let Some((last_retransmit, timeout_repeats)) = first {
            (
                self.send_state.last_retransmit,
                self.send_state.timeout_repeats,
            ) = (last_retransmit, timeout_repeats);
        }
        if is_reduced {
            // At the new length it was sent once.
            self.send_state.timeout_repeats.1 = 0;
        }
        self.link.scratch = packet_bytes;
        result
    }

    /// Splits a super-segment into segments, for each of which there is space. They are sent and
    /// counted as if smoltcp had made them one by one.
    fn send_split<R>(
        mut self,
        length: usize,
        segment_payload: u16,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let mut packet_bytes = std::mem::take(&mut self.link.scratch);
        let result = write(&mut packet_bytes[..length]);
        let packet = &packet_bytes[..length];
        self.segment_payload = None;
        let mtu = path_mtu::packet_bytes(packet, segment_payload);
        for part in path_mtu::split_packet(packet, mtu, mtu) {
            // A failed allocation is counted by `allocate_frame`.
            let Some(mut frame) = self.link.allocate_frame(part.packet_bytes()) else {
                continue;
            };
            part.write(self.link.packet(&mut frame));
            self.send_segment(frame);
        }
        self.link.scratch = packet_bytes;
        result
    }

    /// Sends a frame with a segment.
    #[inline(always)]
    fn send_segment(&mut self, mut frame: Frame) {
        let packet = self.link.packet(&mut frame);
        let (to, header) =
            finish_segment(packet, self.format, self.segment_payload, self.send_state);
        if header.is_redundant_fin {
            self.link.free_frame(frame);
            return;
        }
        let flags = header.flags;
        let counters = &mut self.link.counters;
        counters.tcp.out_segments += 1;
        counters.ip.out_requests += 1;
        counters.tcp.retransmitted_segments += u64::from(header.is_retransmission);
        counters.tcp.out_resets += u64::from(flags & RST != 0);
        if let Some(watch) = &self.link.stage_watch
            && let (Some(socket), Some(number)) = (self.socket, header.last_byte)
        {
            self.link.mark = Some(FrameMark {
                socket,
                number,
                request_arrived: None,
                finished_at: watch.read_stage_clock(),
                udp_offset: 0,
                has_checksum: false,
            });
        }
        self.link.send(frame, to, header.vnet);
    }
}

struct FinishedSegment {
    flags: u16,
    is_retransmission: bool,
    /// Not to be sent: the FIN has left before, which smoltcp does not know.
    is_redundant_fin: bool,
    /// Stream position of the last byte of payload, from 0.
    last_byte: Option<u32>,
    vnet: VnetHeader,
}

/// Applies the configuration to a segment that smoltcp wrote; returns its destination and
/// properties.
fn finish_segment(
    packet: &mut [u8],
    format: &SegmentFormat,
    segment_payload: Option<u16>,
    send_state: &mut SendState,
) -> (IpAddr, FinishedSegment) {
    // smoltcp writes IP headers without options, and no padding.
    if format.tos != 0 {
        ip::write_tos(packet, format.tos);
    }
    let v4 = packet[0] >> 4 == 4;
    let (head, from, to) = if v4 {
        // smoltcp has left the field zero.
        let header = packet.first_chunk().expect("a header");
        let checksum = !UnfoldedSum::from_ipv4_header(header).to_u16();
        write_u16(packet, 10, checksum);
        let address = |at: usize| -> [u8; 4] { packet[at..at + 4].try_into().expect("four") };
        (ip::V4_BYTES, address(12).into(), address(16).into())
    } else {
        let address = |at: usize| -> [u8; 16] { packet[at..at + 16].try_into().expect("sixteen") };
        (ip::V6_BYTES, address(8).into(), address(24).into())
    };
    let tcp = &mut packet[head..];
    let original_flags = read_u16(tcp, 12);
    let packet_head = usize::from(original_flags >> 12) * 4;
    let payload = tcp.len() - packet_head;
    // A reset that replies to an unknown segment has the number of its acknowledgement, and no ACK
    // flag.
    if original_flags & ACK_RST == ACK_RST
        && let Some(number) = send_state.reset_sequence
    {
        tcp[4..8].copy_from_slice(&number.to_be_bytes());
    }
    let sequence = read_u32(tcp, 4);
    let end = sequence.wrapping_add(payload as u32);
    let mut flags = original_flags;
    if send_state.carries_fin(end, payload) && flags & RST == 0 {
        flags |= FIN;
    }
    match format.psh {
        PshPolicy::Never => flags &= !PSH,
        PshPolicy::Always if payload > 0 => flags |= PSH,
        PshPolicy::Always | PshPolicy::BufferEmpty => {}
    }
    if flags != original_flags {
        write_u16(tcp, 12, flags);
    }
    let max_payload = format.max_payload.for_version(v4);
    if flags & SYN != 0 {
        window_edge::limit_mss(tcp, max_payload);
    }
    // smoltcp requests segmentation for IPv4 packets, and not for IPv6.
    let segment_payload = segment_payload.or_else(|| {
        let payload_each = max_payload.min(send_state.peer_mss);
        (!v4 && payload > usize::from(payload_each)).then_some(payload_each)
    });
    let is_redundant_fin =
        flags & FIN != 0 && std::mem::take(&mut send_state.skips_redundant_fin) && payload == 0;
    let length = payload as u32 + u32::from(flags & (SYN | FIN) != 0);
    let mut is_retransmission = false;
    if length > 0 && flags & RST == 0 && !is_redundant_fin {
        is_retransmission = send_state.record_segment(sequence, length);
        send_state.fin_left_with_data = payload > 0 && (is_retransmission || flags & FIN != 0);
        let payload_each = segment_payload.map_or(payload as u32, u32::from);
        send_state.max_payload = send_state.max_payload.max(payload_each);
        if flags & SYN != 0 {
            send_state.first_sequence = sequence.wrapping_add(1);
        }
    }
    let last_byte =
        (payload > 0).then(|| end.wrapping_sub(send_state.first_sequence).wrapping_sub(1));
    let mut vnet = VnetHeader::default();
    if format.software_checksum {
        // smoltcp has left the field zero.
        let pseudo = ip::pseudo_sum(from, to, TCP, tcp.len());
        let checksum = !(pseudo + UnfoldedSum::from_bytes(tcp)).to_u16();
        write_u16(tcp, 16, checksum);
    } else if format.checksum_offload {
        let pseudo = ip::folded_pseudo_sum(from, to, TCP, tcp.len());
        write_u16(tcp, 16, pseudo);
        vnet.needs_checksum = true;
        vnet.checksum_start = (ETHERNET_BYTES + head) as u16;
        vnet.checksum_offset = 16;
        if let Some(segment_payload) = segment_payload {
            vnet.segmentation = match v4 {
                true => Segmentation::TcpV4,
                false => Segmentation::TcpV6,
            };
            vnet.segment_bytes = segment_payload;
            vnet.header_bytes = (ETHERNET_BYTES + head + packet_head) as u16;
        }
    }
    let finished = FinishedSegment {
        flags,
        is_retransmission,
        is_redundant_fin,
        last_byte,
        vnet,
    };
    (to, finished)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StackConfig;
    use crate::wire::TCP_BYTES;

    fn wire(settings: &[&str]) -> SegmentFormat {
        let mut config = StackConfig::default();
        for setting in settings {
            config.apply(setting).unwrap();
        }
        let own = crate::addressing::StackAddressing::new(&["10.0.0.1/24", "fd00::1/64"]).unwrap();
        super::super::TcpLayer::new(&config, &own, (true, false), (10, 65_000)).format
    }

    /// Returns a segment as smoltcp writes it, with `options` bytes of options.
    fn segment(v6: bool, options: usize, payload: usize) -> Vec<u8> {
        let addresses = match v6 {
            true => ["fd00::1", "fd00::2"],
            false => ["10.0.0.1", "10.0.0.2"],
        };
        let [from, to]: [IpAddr; 2] = addresses.map(|end| end.parse().unwrap());
        let head = ip::header_bytes(to);
        let tcp = TCP_BYTES + options + payload;
        let mut packet = vec![0; head + tcp];
        ip::write_header(&mut packet, from, to, TCP, tcp, 0);
        if !v6 {
            write_u16(&mut packet, 10, 0);
        }
        let header_words = (TCP_BYTES + options) as u16 / 4;
        write_u16(&mut packet, head + 12, header_words << 12 | 0x10);
        packet
    }

    #[test]
    fn offloaded_segments_name_their_protocol() {
        let format = wire(&["checksum=offload"]);
        for (v6, kind, head, peer_mss, each) in [
            (false, Segmentation::TcpV4, 20, 1_460, 1_448),
            (true, Segmentation::TcpV6, 40, 1_220, 1_220),
            // Local packets hold less than the peer would accept.
            (true, Segmentation::TcpV6, 40, 8_960, 1_440),
        ] {
            let mut packet = segment(v6, 12, 5 * usize::from(each) + 7);
            let mut send_state = SendState {
                peer_mss,
                ..SendState::default()
            };
            // smoltcp requests it for IPv4.
            let requested_segment = (!v6).then_some(each);
            let (to, header) =
                finish_segment(&mut packet, &format, requested_segment, &mut send_state);
            let from: IpAddr = if v6 { "fd00::1" } else { "10.0.0.1" }.parse().unwrap();
            let expected = VnetHeader {
                needs_checksum: true,
                checksum_valid: false,
                segmentation: kind,
                header_bytes: 14 + head + 32,
                segment_bytes: each,
                checksum_start: 14 + head,
                checksum_offset: 16,
            };
            assert_eq!(header.vnet, expected, "IPv6 {v6}");
            assert_eq!(send_state.max_payload, u32::from(each));
            // The field has the sum of the pseudo header, to be completed by the device.
            let tcp = &packet[usize::from(head)..];
            assert_eq!(
                read_u16(tcp, 16),
                ip::folded_pseudo_sum(from, to, TCP, tcp.len())
            );
        }
    }

    /// Also with the larger MTU that smoltcp has for offloaded segmentation.
    #[test]
    fn syns_announce_what_a_packet_holds() {
        for (settings, v4, v6) in [
            (&["checksum=offload"][..], 1_460, 1_440),
            (&["checksum=offload", "tcp.mss=600"], 600, 600),
            (&["checksum=offload", "mtu=9000"], 8_960, 8_940),
            (&[], 1_460, 1_440),
        ] {
            let format = wire(settings);
            for (is_v6, expected) in [(false, v4), (true, v6)] {
                let mut packet = segment(is_v6, 4, 0);
                let head = if is_v6 { ip::V6_BYTES } else { ip::V4_BYTES };
                write_u16(&mut packet, head + 12, 6 << 12 | SYN);
                packet[head + 20..].copy_from_slice(&[2, 4, 250, 0]);
                finish_segment(&mut packet, &format, None, &mut SendState::default());
                let tcp = &packet[head..];
                assert_eq!(
                    window_edge::peer_mss(tcp),
                    expected,
                    "{settings:?} IPv6 {is_v6}"
                );
            }
        }
    }

    #[test]
    fn single_segments_request_no_segmentation() {
        for (settings, sums) in [(&["checksum=offload"][..], false), (&[], true)] {
            let format = wire(settings);
            for v6 in [false, true] {
                let mut packet = segment(v6, 0, 1_000);
                let mut send_state = SendState {
                    peer_mss: 1_000,
                    ..SendState::default()
                };
                let (to, header) = finish_segment(&mut packet, &format, None, &mut send_state);
                assert_eq!(header.vnet.segmentation, Segmentation::None);
                assert_eq!(header.vnet.needs_checksum, !sums);
                let tcp = &packet[ip::header_bytes(to)..];
                let from: IpAddr = if v6 { "fd00::1" } else { "10.0.0.1" }.parse().unwrap();
                let right = (ip::pseudo_sum(from, to, TCP, tcp.len())
                    + UnfoldedSum::from_bytes(tcp))
                .is_valid();
                assert_eq!(right, sums, "{settings:?} IPv6 {v6}");
            }
        }
    }

    /// Without an offloading port smoltcp makes no segments longer than a packet, for either IP
    /// version.
    #[test]
    fn smoltcp_gets_equal_limits_for_both_versions() {
        for (settings, some) in [(&["checksum=offload"][..], true), (&[], false)] {
            let segmentation = wire(settings).capabilities.segmentation;
            assert_eq!(
                (segmentation.tcpv4.is_some(), segmentation.tcpv6.is_some()),
                (some, some)
            );
            assert_eq!(segmentation.tcpv4, segmentation.tcpv6);
        }
    }

    /// A single place is left: the rest of the segment waits and is not lost.
    #[test]
    fn all_parts_of_a_segment_leave_a_full_ring() {
        use linerate_port::RxQueue;
        use linerate_sys::frames::burst::{BURST_FRAMES, Burst};

        const RING: u32 = 8;
        let format = wire(&[]);
        let (mut link, _receive, mut remote_port) = crate::link::tests::on_ring(&[], RING);
        let to: IpAddr = "10.0.0.2".parse().unwrap();
        link.neighbors.learn(to, [2, 0, 0, 0, 0, 2], true, 0);
        link.begin_poll(1);
        for _ in 0..RING as usize + BURST_FRAMES - 1 {
            let frame = link.allocate_frame(20).unwrap();
            link.push(frame);
        }
        assert!(link.can_send());
        let packet_bytes = segment(false, 0, 1_460);
        let mut send_state = SendState {
            path_mtu: 552,
            peer_mss: 1_460,
            ..SendState::default()
        };
        let sender = PacketSender {
            link: &mut link,
            format: &format,
            send_state: &mut send_state,
            socket: None,
            segment_payload: None,
        };
        sender.consume(packet_bytes.len(), |packet| {
            packet.copy_from_slice(&packet_bytes)
        });
        assert!(!link.can_send());
        let (mut pool, mut part_lengths) = (link.memory.pool(), Vec::new());
        loop {
            let mut burst = Burst::new();
            if remote_port.receive.receive(&mut pool, &mut burst) == 0 {
                break;
            }
            let lengths = burst.frames().iter().map(|frame| usize::from(frame.len()));
            part_lengths.extend(lengths.filter(|&length| length > ETHERNET_BYTES + 20));
            pool.free_all(&mut burst);
            link.flush();
        }
        let head = ETHERNET_BYTES + ip::V4_BYTES + TCP_BYTES;
        assert_eq!(part_lengths, [head + 512, head + 512, head + 436]);
        assert_eq!(link.counters.link.out_ring_full, 0);
        assert!(link.can_send() && !link.has_unsent());
    }
}
