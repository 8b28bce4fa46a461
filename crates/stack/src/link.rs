//! Output path: makes frames, resolves the next hop, and hands frames to the port in bursts.

mod neighbor_discovery;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use linerate_packet::vnet::{VNET_HEADER_BYTES, VnetHeader};
use linerate_port::{AnyTransmit, TxQueue};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::frames::frame_pool::FramePool;

use crate::addressing::StackAddressing;
use crate::config::StackConfig;
use crate::counters::Counters;
use crate::ip_ids::IpIdGenerator;
use crate::neighbors::{NeighborCache, Resolution};
use crate::path_mtu_cache::PathMtuCache;
use crate::rate_limit::RateLimit;
use crate::segmentation::SegmentSplit;
use crate::stage_watch::{FrameMark, StageWatch};
use crate::wire::{ETHERNET_BYTES, UDP, ip, read_u16, write_u16};
use crate::{Nanos, prefault};

/// Frames longer than this come from ports with a vnet header (64 KiB), and memory holds few of
/// them.
pub(crate) const LONG_FRAME_BYTES: usize = 16 << 10;

/// Output side of the stack: frame pool, transmit burst, addresses, neighbours and counters.
pub(crate) struct LinkLayer {
    pub(crate) memory: FrameRegion,
    pub(crate) pool: FramePool,
    transmit: AnyTransmit,
    burst: Burst,
    /// Frames that may still be made until the next poll, and the number that a poll allows.
    frame_budget: usize,
    frames_per_poll: usize,
    /// Share of the budget left for replies, in halves of a frame; negative after a long reply.
    reply_half_frames: i64,
    /// Share of the budget left for SYN-ACKs, in quarters of a frame.
    syn_ack_quarter_frames: i64,
    /// Frames sent when the poll began.
    sent_before_poll: u64,
    /// True while input is processed or a SYN is answered: frames sent meanwhile are unsolicited
    /// replies, and not requested by a local socket.
    pub(crate) is_replying: bool,
    /// True while a segment is split: its parts leave completely, or wait in `waiting_parts` until
    /// those in front of them have left. The burst is full while a part waits.
    pub(crate) is_splitting: bool,
    waiting_parts: VecDeque<(Frame, Option<FrameMark>)>,
    /// Bytes in front of the Ethernet header.
    pub(crate) vnet_bytes: usize,
    pub(crate) addressing: StackAddressing,
    pub(crate) ethernet: [u8; 6],
    pub(crate) neighbors: NeighborCache,
    pub(crate) path_mtu_cache: PathMtuCache,
    /// Next-hop cache for the last destination: address, Ethernet address, and epoch of the
    /// neighbour cache. Most packets have the same destination as the last one.
    last_route: (IpAddr, [u8; 6], u32),
    pub(crate) counters: Counters,
    pub(crate) now: Nanos,
    /// Arrival time of the frames at hand: the time of the poll, or read for each burst while
    /// stages are watched.
    pub(crate) arrived_at: Nanos,
    pub(crate) stage_watch: Option<StageWatch>,
    /// Mark of the next frame that is pushed.
    pub(crate) mark: Option<FrameMark>,
    /// Buffer for a packet when no frame is free, or when the packet is to be split.
    pub(crate) scratch: Vec<u8>,
    pub(crate) ip_ids: IpIdGenerator,
    /// Type of service or traffic class of packets sent by sockets.
    tos: u8,
    /// TTL or hop limit of packets to groups.
    pub(crate) group_hops: u8,
    /// Limit of ICMP errors sent.
    pub(crate) error_limit: RateLimit,
    /// Limit of accepted Packet Too Big messages about datagrams and echo replies.
    pub(crate) path_mtu_limit: RateLimit,
}

impl LinkLayer {
    pub(crate) fn new(
        memory: &FrameRegion,
        transmit: AnyTransmit,
        vnet: usize,
        addressing: StackAddressing,
        ethernet: [u8; 6],
        config: &StackConfig,
    ) -> Self {
        let frames_per_poll = config.tx_descriptors;
        let numbers = IpIdGenerator::new(addressing.seed);
        Self {
            memory: memory.clone(),
            pool: memory.pool(),
            transmit,
            burst: Burst::new(),
            frame_budget: frames_per_poll as usize,
            frames_per_poll: frames_per_poll as usize,
            reply_half_frames: 0,
            syn_ack_quarter_frames: 0,
            sent_before_poll: 0,
            is_replying: false,
            is_splitting: false,
            waiting_parts: VecDeque::with_capacity(max_parts(config.mtu)),
            vnet_bytes: vnet,
            neighbors: NeighborCache::new(config.arp_cache as usize, addressing.seed),
            path_mtu_cache: PathMtuCache::new(addressing.seed),
            last_route: (Ipv4Addr::UNSPECIFIED.into(), [0; 6], 0),
            addressing,
            ethernet,
            counters: Counters::default(),
            now: 0,
            arrived_at: 0,
            stage_watch: None,
            mark: None,
            scratch: prefault::filled(scratch_bytes(memory.frame_bytes().into(), config)),
            ip_ids: numbers,
            tos: config.ip.tos,
            // RFC 1112, section 6.1.
            group_hops: 1,
            error_limit: RateLimit::for_errors(),
            path_mtu_limit: RateLimit::for_path_mtus(),
        }
    }

    /// Returns the heap memory in bytes, over a memory of this plan.
    pub(crate) fn heap_bytes(plan: &MemoryPlan, config: &StackConfig) -> usize {
        // The memory rounds slots up, and frames may use the whole slot.
        let slot_capacity = plan.slot_bytes() - usize::from(plan.headroom);
        let waiting_bytes = max_parts(config.mtu) * size_of::<(Frame, Option<FrameMark>)>();
        scratch_bytes(slot_capacity.min(u16::MAX.into()), config)
            + FramePool::HEAP_BYTES
            + waiting_bytes
    }

    /// Returns the number of bytes in front of the IP header.
    #[inline]
    pub(crate) fn header_bytes(&self) -> usize {
        self.vnet_bytes + ETHERNET_BYTES
    }

    /// Sets TOS and hop limit in a packet that a socket sends; the caller writes the IPv4 checksum.
    pub(crate) fn set_tos_and_hops(&self, packet: &mut [u8], to: IpAddr) {
        ip::write_tos(packet, self.tos);
        if to.is_multicast() {
            ip::write_hop_limit(packet, self.group_hops);
        }
    }

    /// Starts a poll: resets the frame budget and sends waiting frames.
    pub(crate) fn begin_poll(&mut self, now: Nanos) {
        self.now = now;
        if self.stage_watch.is_none() {
            self.arrived_at = now;
        }
        self.frame_budget = self.frames_per_poll;
        self.flush();
        self.refill_shares();
    }

    /// Sets the arrival time of the frames just received, if stages are watched.
    #[inline]
    pub(crate) fn record_arrival(&mut self) {
        if let Some(watch) = &self.stage_watch {
            self.arrived_at = (watch.clock)();
        }
    }

    /// Refills the shares of replies and SYN-ACKs. Replies may use half of what a poll sends. If
    /// the port is full, that is half of what it took since the last poll. A flood of requests thus
    /// leaves the other half to sockets. SYN-ACKs have a quarter of their own, so that connections
    /// can be established during such a flood.
    fn refill_shares(&mut self) {
        let sent = self.counters.link.out_frames;
        let sent_since = sent - std::mem::replace(&mut self.sent_before_poll, sent);
        let refill = match self.has_unsent() {
            true => sent_since as i64,
            false => self.frames_per_poll as i64,
        };
        // With one descriptor: every second frame for replies, every fourth for SYN-ACKs.
        self.reply_half_frames =
            (self.reply_half_frames + refill).min(self.frames_per_poll.max(2) as i64);
        self.syn_ack_quarter_frames =
            (self.syn_ack_quarter_frames + refill).min(self.frames_per_poll.max(4) as i64);
    }

    /// Returns whether a reply of this many frames may be made; counts it if not.
    pub(crate) fn may_reply(&mut self, frames: usize) -> bool {
        // Without neighbour replies no other traffic arrives: part of the share is reserved for
        // them.
        self.take_reply_share(frames, self.frames_per_poll as i64 / 4)
    }

    /// Returns whether a reply to a neighbour's address request may be made; counts it if not.
    pub(crate) fn may_reply_to_neighbor(&mut self) -> bool {
        self.take_reply_share(1, 0)
    }

    fn take_reply_share(&mut self, frames: usize, reserved: i64) -> bool {
        const FRAME: i64 = 2;
        if self.reply_half_frames < FRAME + reserved {
            self.counters.link.out_answers_limited += 1;
            return false;
        }
        self.reply_half_frames -= FRAME * frames as i64;
        true
    }

    /// Returns the number of SYN-ACKs that may be sent until the next poll.
    pub(crate) fn syn_acks_left(&self) -> usize {
        self.syn_ack_quarter_frames as usize / 4
    }

    /// Takes one SYN-ACK from the share; false if none is left.
    pub(crate) fn may_send_syn_ack(&mut self) -> bool {
        let is_allowed = self.syn_acks_left() > 0;
        self.syn_ack_quarter_frames -= 4 * i64::from(is_allowed);
        is_allowed
    }

    /// Returns whether a frame that can wait may be made now.
    #[inline]
    pub(crate) fn can_send(&mut self) -> bool {
        self.can_send_frames(1)
    }

    /// Returns whether this many consecutive frames may be made now.
    #[inline]
    pub(crate) fn can_send_frames(&mut self, frames: usize) -> bool {
        if self.burst.remaining() < frames {
            self.flush();
        }
        self.burst.remaining() >= frames && self.frame_budget >= frames
    }

    /// Starts recording departures with this clock.
    pub(crate) fn start_watch(&mut self, clock: fn() -> Nanos) -> &mut StageWatch {
        let frames = self.burst.len();
        if self.stage_watch.is_none() {
            // For frames received before, this is the first known time.
            self.arrived_at = clock();
        }
        let watch = self
            .stage_watch
            .get_or_insert_with(|| StageWatch::new(clock, frames));
        watch.clock = clock;
        watch
    }

    /// Returns whether frames wait for the port.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.burst.is_empty()
    }

    /// Hands the waiting frames to the port, as many as it takes.
    pub(crate) fn flush(&mut self) {
        while !self.burst.is_empty() {
            let watch = self.stage_watch.as_ref();
            let now = watch.map(|watch| watch.stamp_burst(&self.memory, &mut self.burst));
            let sent = self.transmit.transmit(&mut self.pool, &mut self.burst);
            if let (Some(watch), Some(now)) = (&mut self.stage_watch, now) {
                watch.record_sent(sent, now);
            }
            self.counters.link.out_frames += sent as u64;
            if sent == 0 {
                return;
            }
            if !self.waiting_parts.is_empty() {
                self.requeue_waiting_parts();
            }
        }
    }

    /// Moves waiting parts of a split segment into free places of the burst.
    #[cold]
    fn requeue_waiting_parts(&mut self) {
        while !self.burst.is_full()
            && let Some((frame, mark)) = self.waiting_parts.pop_front()
        {
            if let Err(frame) = self.burst.push(frame) {
                self.waiting_parts.push_front((frame, mark));
                return;
            }
            if let Some(watch) = &mut self.stage_watch {
                watch.record_pushed(mark);
            }
        }
    }

    /// Frees transmitted frames; for polls in which nothing was sent.
    pub(crate) fn reclaim(&mut self) {
        self.transmit.reclaim(&mut self.pool);
    }

    pub(crate) fn transmit_mut(&mut self) -> &mut AnyTransmit {
        &mut self.transmit
    }

    /// Allocates a frame for an IP packet of this many bytes, with headers unwritten.
    #[inline]
    pub(crate) fn allocate_frame(&mut self, ip_bytes: usize) -> Option<Frame> {
        let bytes = self.header_bytes() + ip_bytes;
        if bytes > usize::from(self.memory.frame_bytes()) {
            self.counters.link.out_no_buffer += 1;
            return None;
        }
        let Some(mut frame) = self.pool.allocate() else {
            self.counters.link.out_no_buffer += 1;
            return None;
        };
        frame.set_len(bytes as u16);
        Some(frame)
    }

    /// Frees a frame that [`LinkLayer::allocate_frame`] returned.
    #[cold]
    pub(crate) fn free_frame(&mut self, frame: Frame) {
        self.pool.free(frame);
    }

    /// Returns the IP packet in a frame that [`LinkLayer::allocate_frame`] returned.
    #[inline]
    pub(crate) fn packet<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let head = self.header_bytes();
        &mut self.memory.bytes_mut(frame)[head..]
    }

    /// Sends a packet towards `to`. While the next hop's Ethernet address is unknown it waits, or
    /// is dropped and counted.
    pub(crate) fn send(&mut self, frame: Frame, to: IpAddr, header: VnetHeader) {
        let (latest, ethernet, epoch) = self.last_route;
        if latest == to && epoch == self.neighbors.epoch() {
            self.send_to(frame, ethernet, to, header);
            return;
        }
        let Some(hop) = self.next_hop(to) else {
            self.counters.ip.out_no_routes += 1;
            self.pool.free(frame);
            return;
        };
        match self.resolve_neighbor(hop) {
            Some(ethernet) => {
                // A neighbour that only receives replies keeps that rank in the cache.
                if !self.is_replying {
                    self.last_route = (to, ethernet, self.neighbors.epoch());
                }
                self.send_to(frame, ethernet, to, header);
            }
            None => self.hold_for_neighbor(frame, hop, to, header),
        }
    }

    /// Returns the address whose Ethernet address a packet needs.
    pub(crate) fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        let group = match to {
            IpAddr::V4(to) => to.is_multicast() || self.addressing.is_broadcast(to),
            IpAddr::V6(to) => to.is_multicast(),
        };
        if group {
            Some(to)
        } else {
            self.addressing.next_hop(to)
        }
    }

    /// Returns the Ethernet address of a neighbour or group; sends a request if it is unknown.
    pub(crate) fn resolve_neighbor(&mut self, hop: IpAddr) -> Option<[u8; 6]> {
        match hop {
            IpAddr::V4(to) if self.addressing.is_broadcast(to) => return Some([0xff; 6]),
            IpAddr::V4(to) if to.is_multicast() => {
                let [_, one, two, three] = to.octets();
                return Some([0x01, 0x00, 0x5e, one & 0x7f, two, three]);
            }
            IpAddr::V6(to) if to.is_multicast() => {
                let octets = to.octets();
                return Some([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]);
            }
            _ => {}
        }
        match self.neighbors.resolve(hop, self.now, !self.is_replying) {
            Resolution::Usable(ethernet) => Some(ethernet),
            Resolution::Stale(ethernet) => {
                self.solicit_neighbor(hop);
                Some(ethernet)
            }
            Resolution::Unrequested => {
                self.solicit_neighbor(hop);
                None
            }
            Resolution::Requested => None,
        }
    }

    fn hold_for_neighbor(&mut self, mut frame: Frame, hop: IpAddr, to: IpAddr, header: VnetHeader) {
        self.mark = None;
        self.write_link_header(&mut frame, [0; 6], ip::ethertype(to), header);
        if let Err(frame) = self.neighbors.hold_frame(hop, frame, self.is_replying) {
            self.counters.link.out_unresolved += 1;
            self.pool.free(frame);
        }
    }

    /// Records that the path to a host has this MTU; returns whether that is new.
    pub(crate) fn learn_path_mtu(&mut self, to: IpAddr, mtu: u16) -> bool {
        let is_new = self.path_mtu_cache.learn(to, mtu, self.now);
        if is_new {
            // Prepared headers contain the limit of that destination.
            self.neighbors.bump_epoch();
        }
        is_new
    }

    /// Removes expired entries of the path MTU cache.
    #[inline]
    pub(crate) fn expire_path_mtus(&mut self) {
        if self.path_mtu_cache.has_expired(self.now) {
            self.remove_expired_path_mtus();
        }
    }

    #[cold]
    fn remove_expired_path_mtus(&mut self) {
        self.path_mtu_cache.remove_expired(self.now);
        self.neighbors.bump_epoch();
    }

    /// Sends the frames whose neighbour was resolved.
    pub(crate) fn release_resolved(&mut self) {
        while let Some((frame, _)) = self.release_until_unresolved() {
            self.pool.free(frame);
        }
    }

    /// Sends frames whose neighbour was resolved, up to the next one whose neighbour did not
    /// answer; returns that frame and its neighbour. Frames that the port does not take wait until
    /// the next poll.
    pub(crate) fn release_until_unresolved(&mut self) -> Option<(Frame, IpAddr)> {
        loop {
            if self.burst.is_full() {
                self.flush();
                if self.burst.is_full() {
                    return None;
                }
            }
            let (mut frame, hop, ethernet) = self.neighbors.pop_ready()?;
            let Some(ethernet) = ethernet else {
                self.counters.link.out_unresolved += 1;
                return Some((frame, hop));
            };
            let at = self.vnet_bytes;
            self.memory.bytes_mut(&mut frame)[at..at + 6].copy_from_slice(&ethernet);
            self.push(frame);
        }
    }

    /// Frees a frame that did not leave, and returns the source and destination of its UDP
    /// datagram.
    #[cold]
    pub(crate) fn free_undelivered(&mut self, frame: Frame) -> Option<(SocketAddr, SocketAddr)> {
        let packet = &self.memory.bytes(&frame)[self.header_bytes()..];
        let header = match packet[0] >> 4 {
            4 => ip::parse_v4(packet, false),
            _ => ip::parse_v6(packet),
        };
        let is_first_fragment =
            |header: &ip::IpHeader| header.fragment.is_none_or(|fragment| fragment.offset == 0);
        let addresses = header
            .filter(|header| header.protocol == UDP && is_first_fragment(header))
            .and_then(|header| {
                let ports = packet.get(header.transport..header.transport + 4)?;
                let (from, to) = (read_u16(ports, 0), read_u16(ports, 2));
                Some((
                    SocketAddr::new(header.from, from),
                    SocketAddr::new(header.to, to),
                ))
            });
        self.pool.free(frame);
        addresses
    }

    /// Sends a packet to an Ethernet address.
    #[inline]
    pub(crate) fn send_to(
        &mut self,
        mut frame: Frame,
        ethernet: [u8; 6],
        to: IpAddr,
        header: VnetHeader,
    ) {
        self.write_link_header(&mut frame, ethernet, ip::ethertype(to), header);
        self.push(frame);
    }

    /// Writes the vnet and Ethernet headers.
    #[inline]
    pub(crate) fn write_link_header(
        &self,
        frame: &mut Frame,
        ethernet: [u8; 6],
        ethertype: u16,
        header: VnetHeader,
    ) {
        let bytes = self.memory.bytes_mut(frame);
        if self.vnet_bytes > 0 {
            bytes[..VNET_HEADER_BYTES].copy_from_slice(&header.to_bytes());
        }
        let bytes = &mut bytes[self.vnet_bytes..];
        bytes[..6].copy_from_slice(&ethernet);
        bytes[6..12].copy_from_slice(&self.ethernet);
        write_u16(bytes, 12, ethertype);
    }

    /// Puts a complete frame into the burst. A long frame is handed to the port at once, while its
    /// bytes are still in the cache; its buffer still is when the next one is written. A burst of
    /// long frames is larger than the cache. Inlined: a call took a fortieth of a datagram's time.
    #[inline(always)]
    pub(crate) fn push(&mut self, frame: Frame) {
        if self.burst.is_full() {
            self.flush();
        }
        self.frame_budget = self.frame_budget.saturating_sub(1);
        let is_long = usize::from(frame.len()) > LONG_FRAME_BYTES;
        if let Err(frame) = self.burst.push(frame) {
            self.handle_full_ring(frame);
        } else if let Some(watch) = &mut self.stage_watch {
            // Frames have marks only while stages are watched.
            watch.record_pushed(self.mark.take());
        }
        if is_long {
            self.flush();
        }
    }

    /// Handles a full burst and a full port: parts of a segment wait, other frames are dropped.
    #[cold]
    fn handle_full_ring(&mut self, frame: Frame) {
        let mark = self.mark.take();
        if self.is_splitting && self.waiting_parts.len() < self.waiting_parts.capacity() {
            self.waiting_parts.push_back((frame, mark));
            return;
        }
        self.counters.link.out_ring_full += 1;
        self.pool.free(frame);
    }
}

/// Returns the length of the longest packet that is written before its frame is known.
fn scratch_bytes(frame_bytes: usize, config: &StackConfig) -> usize {
    let split_bytes = SegmentSplit::for_config(config).map_or(0, SegmentSplit::packet_bytes);
    frame_bytes.max(split_bytes)
}

/// Returns the maximum number of parts that a packet is split into: every path takes 512 B of
/// payload with headers, which `MIN_PMTU_V4` ensures.
pub(crate) const fn max_parts(mtu: u16) -> usize {
    mtu as usize / 512 + 1
}

impl Drop for LinkLayer {
    fn drop(&mut self) {
        self.flush();
        self.pool.free_all(&mut self.burst);
        for (frame, _) in self.waiting_parts.drain(..) {
            self.pool.free(frame);
        }
        for frame in self.neighbors.drain() {
            self.pool.free(frame);
        }
    }
}
