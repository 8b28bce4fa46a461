//! Output path: makes frames, resolves the next hop, and hands frames to the port in bursts.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use linerate_port::vnet::{VNET_HEADER_BYTES, VnetHeader};
use linerate_port::{AnyTransmit, Burst, Frame, Memory, MemoryPlan, Pool, Transmit};

use crate::Nanos;
use crate::addressing::Addressing;
use crate::config::Config;
use crate::counters::Counters;
use crate::icmp::Allowance;
use crate::ip_ids::Numbers;
use crate::neighbors::{Neighbors, Resolved};
use crate::pmtu_cache::Paths;
use crate::prefault;
use crate::stack::LONG_FRAME_BYTES;
use crate::stage_watch::{Mark, Watch};
use crate::tcp::Cut;
use crate::wire::{ETHERNET_BYTES, UDP, ip, put, word};

/// Output side of the stack: frame pool, transmit burst, addresses, neighbours and counters.
pub(crate) struct Link {
    pub(crate) memory: Memory,
    pub(crate) pool: Pool,
    transmit: AnyTransmit,
    burst: Burst,
    /// Frames that may still be made until the next poll, and the number that a poll allows.
    budget: usize,
    per_turn: usize,
    /// Share of the budget left for replies, in halves of a frame; negative after a long reply.
    answers: i64,
    /// Share of the budget left for SYN-ACKs, in quarters of a frame.
    agreements: i64,
    /// Frames sent when the poll began.
    left_before: u64,
    /// True while input is processed or a SYN is answered: frames sent meanwhile are unsolicited
    /// replies, and not requested by a local socket.
    pub(crate) answering: bool,
    /// True while a segment is split: its parts leave completely, or wait in `rest` until those in
    /// front of them have left. The burst is full while a part waits.
    pub(crate) cutting: bool,
    rest: VecDeque<(Frame, Option<Mark>)>,
    /// Bytes in front of the Ethernet header.
    pub(crate) vnet: usize,
    pub(crate) own: Addressing,
    pub(crate) ethernet: [u8; 6],
    pub(crate) neighbors: Neighbors,
    pub(crate) paths: Paths,
    /// Next-hop cache for the last destination: address, Ethernet address, and epoch of the
    /// neighbour cache. Most packets have the same destination as the last one.
    latest: (IpAddr, [u8; 6], u32),
    pub(crate) counters: Counters,
    pub(crate) now: Nanos,
    /// Arrival time of the frames at hand: the time of the poll, or read for each burst while
    /// stages are watched.
    pub(crate) came: Nanos,
    pub(crate) watch: Option<Watch>,
    /// Mark of the next frame that is pushed.
    pub(crate) mark: Option<Mark>,
    /// Buffer for a packet when no frame is free, or when the packet is to be split.
    pub(crate) scratch: Vec<u8>,
    pub(crate) numbers: Numbers,
    /// Type of service or traffic class of packets sent by sockets.
    tos: u8,
    /// TTL or hop limit of packets to groups.
    pub(crate) group_hops: u8,
    /// Limit of ICMP errors sent.
    pub(crate) errors: Allowance,
    /// Limit of accepted Packet Too Big messages about datagrams and echo replies.
    pub(crate) told: Allowance,
}

impl Link {
    pub(crate) fn new(
        memory: &Memory,
        transmit: AnyTransmit,
        vnet: usize,
        own: Addressing,
        ethernet: [u8; 6],
        config: &Config,
    ) -> Self {
        let per_turn = config.tx_descriptors;
        let numbers = Numbers::new(own.seed);
        Self {
            memory: memory.clone(),
            pool: memory.pool(),
            transmit,
            burst: Burst::new(),
            budget: per_turn as usize,
            per_turn: per_turn as usize,
            answers: 0,
            agreements: 0,
            left_before: 0,
            answering: false,
            cutting: false,
            rest: VecDeque::with_capacity(most_pieces(config.mtu)),
            vnet,
            neighbors: Neighbors::new(config.arp_cache as usize, own.seed),
            paths: Paths::new(own.seed),
            latest: (Ipv4Addr::UNSPECIFIED.into(), [0; 6], 0),
            own,
            ethernet,
            counters: Counters::default(),
            now: 0,
            came: 0,
            watch: None,
            mark: None,
            scratch: prefault::filled(scratch_bytes(memory.frame_bytes().into(), config)),
            numbers,
            tos: config.ip.tos,
            // RFC 1112, section 6.1.
            group_hops: 1,
            errors: Allowance::of_errors(),
            told: Allowance::of_paths(),
        }
    }

    /// Returns the heap memory in bytes, over a memory of this plan.
    pub(crate) fn heap_bytes(plan: &MemoryPlan, config: &Config) -> usize {
        // The memory rounds slots up, and frames may use the whole slot.
        let room = plan.slot_bytes() - usize::from(plan.headroom);
        let rest = most_pieces(config.mtu) * size_of::<(Frame, Option<Mark>)>();
        scratch_bytes(room.min(u16::MAX.into()), config) + Pool::HEAP_BYTES + rest
    }

    /// Returns the number of bytes in front of the IP header.
    #[inline]
    pub(crate) fn head(&self) -> usize {
        self.vnet + ETHERNET_BYTES
    }

    /// Sets TOS and hop limit in a packet that a socket sends; the caller writes the IPv4 checksum.
    pub(crate) fn label(&self, packet: &mut [u8], to: IpAddr) {
        ip::mark(packet, self.tos);
        if to.is_multicast() {
            ip::limit_hops(packet, self.group_hops);
        }
    }

    /// Starts a poll: resets the frame budget and sends waiting frames.
    pub(crate) fn begin(&mut self, now: Nanos) {
        self.now = now;
        if self.watch.is_none() {
            self.came = now;
        }
        self.budget = self.per_turn;
        self.flush();
        self.share();
    }

    /// Sets the arrival time of the frames just received, if stages are watched.
    #[inline]
    pub(crate) fn arrived(&mut self) {
        if let Some(watch) = &self.watch {
            self.came = (watch.clock)();
        }
    }

    /// Refills the shares of replies and SYN-ACKs. Replies may use half of what a poll sends. If
    /// the port is full, that is half of what it took since the last poll. A flood of requests thus
    /// leaves the other half to sockets. SYN-ACKs have a quarter of their own, so that connections
    /// can be established during such a flood.
    fn share(&mut self) {
        let left = self.counters.link.out_frames;
        let since = left - std::mem::replace(&mut self.left_before, left);
        let more = match self.is_behind() {
            true => since as i64,
            false => self.per_turn as i64,
        };
        // With one descriptor: every second frame for replies, every fourth for SYN-ACKs.
        self.answers = (self.answers + more).min(self.per_turn.max(2) as i64);
        self.agreements = (self.agreements + more).min(self.per_turn.max(4) as i64);
    }

    /// Returns whether a reply of this many frames may be made; counts it if not.
    pub(crate) fn may_answer(&mut self, frames: usize) -> bool {
        // Without neighbour replies no other traffic arrives: part of the share is reserved for
        // them.
        self.takes_share(frames, self.per_turn as i64 / 4)
    }

    /// Returns whether a reply to a neighbour's address request may be made; counts it if not.
    pub(crate) fn may_answer_neighbor(&mut self) -> bool {
        self.takes_share(1, 0)
    }

    fn takes_share(&mut self, frames: usize, kept: i64) -> bool {
        const FRAME: i64 = 2;
        if self.answers < FRAME + kept {
            self.counters.link.out_answers_limited += 1;
            return false;
        }
        self.answers -= FRAME * frames as i64;
        true
    }

    /// Returns the number of SYN-ACKs that may be sent until the next poll.
    pub(crate) fn agreements_left(&self) -> usize {
        self.agreements as usize / 4
    }

    /// Takes one SYN-ACK from the share; false if none is left.
    pub(crate) fn may_agree(&mut self) -> bool {
        let may = self.agreements_left() > 0;
        self.agreements -= 4 * i64::from(may);
        may
    }

    /// Returns whether a frame that can wait may be made now.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        self.has_room_for(1)
    }

    /// Returns whether this many consecutive frames may be made now.
    #[inline]
    pub(crate) fn has_room_for(&mut self, frames: usize) -> bool {
        if self.burst.room() < frames {
            self.flush();
        }
        self.burst.room() >= frames && self.budget >= frames
    }

    /// Starts recording departures with this clock.
    pub(crate) fn watched_by(&mut self, clock: fn() -> Nanos) -> &mut Watch {
        let frames = self.burst.len();
        if self.watch.is_none() {
            // For frames received before, this is the first known time.
            self.came = clock();
        }
        let watch = self.watch.get_or_insert_with(|| Watch::new(clock, frames));
        watch.clock = clock;
        watch
    }

    /// Returns whether frames wait for the port.
    pub(crate) fn is_behind(&self) -> bool {
        !self.burst.is_empty()
    }

    /// Hands the waiting frames to the port, as many as it takes.
    pub(crate) fn flush(&mut self) {
        while !self.burst.is_empty() {
            let watch = self.watch.as_ref();
            let now = watch.map(|watch| watch.leaving(&self.memory, &mut self.burst));
            let sent = self.transmit.transmit(&mut self.pool, &mut self.burst);
            if let (Some(watch), Some(now)) = (&mut self.watch, now) {
                watch.left(sent, now);
            }
            self.counters.link.out_frames += sent as u64;
            if sent == 0 {
                return;
            }
            if !self.rest.is_empty() {
                self.refill();
            }
        }
    }

    /// Moves waiting parts of a split segment into free places of the burst.
    #[cold]
    fn refill(&mut self) {
        while !self.burst.is_full()
            && let Some((frame, mark)) = self.rest.pop_front()
        {
            if let Err(frame) = self.burst.push(frame) {
                self.rest.push_front((frame, mark));
                return;
            }
            if let Some(watch) = &mut self.watch {
                watch.entered(mark);
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
    pub(crate) fn make(&mut self, ip_bytes: usize) -> Option<Frame> {
        let bytes = self.head() + ip_bytes;
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

    /// Frees a frame that [`Link::make`] returned.
    #[cold]
    pub(crate) fn unmake(&mut self, frame: Frame) {
        self.pool.free(frame);
    }

    /// Returns the IP packet in a frame that [`Link::make`] returned.
    #[inline]
    pub(crate) fn packet<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let head = self.head();
        &mut self.memory.bytes_mut(frame)[head..]
    }

    /// Sends a packet towards `to`. While the next hop's Ethernet address is unknown it waits, or
    /// is dropped and counted.
    pub(crate) fn send(&mut self, frame: Frame, to: IpAddr, header: VnetHeader) {
        let (latest, ethernet, epoch) = self.latest;
        if latest == to && epoch == self.neighbors.epoch() {
            self.send_to(frame, ethernet, to, header);
            return;
        }
        let Some(hop) = self.hop(to) else {
            self.counters.ip.out_no_routes += 1;
            self.pool.free(frame);
            return;
        };
        match self.neighbor(hop) {
            Some(ethernet) => {
                // A neighbour that only receives replies keeps that rank in the cache.
                if !self.answering {
                    self.latest = (to, ethernet, self.neighbors.epoch());
                }
                self.send_to(frame, ethernet, to, header);
            }
            None => self.wait(frame, hop, to, header),
        }
    }

    /// Returns the address whose Ethernet address a packet needs.
    pub(crate) fn hop(&self, to: IpAddr) -> Option<IpAddr> {
        let group = match to {
            IpAddr::V4(to) => to.is_multicast() || self.own.is_broadcast(to),
            IpAddr::V6(to) => to.is_multicast(),
        };
        if group {
            Some(to)
        } else {
            self.own.next_hop(to)
        }
    }

    /// Returns the Ethernet address of a neighbour or group; sends a request if it is unknown.
    pub(crate) fn neighbor(&mut self, hop: IpAddr) -> Option<[u8; 6]> {
        match hop {
            IpAddr::V4(to) if self.own.is_broadcast(to) => return Some([0xff; 6]),
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
        match self.neighbors.resolve(hop, self.now, !self.answering) {
            Resolved::Known(ethernet) => Some(ethernet),
            Resolved::Renew(ethernet) => {
                self.ask(hop);
                Some(ethernet)
            }
            Resolved::Ask => {
                self.ask(hop);
                None
            }
            Resolved::Asked => None,
        }
    }

    fn wait(&mut self, mut frame: Frame, hop: IpAddr, to: IpAddr, header: VnetHeader) {
        self.mark = None;
        self.write_head(&mut frame, [0; 6], ip::ethertype(to), header);
        if let Err(frame) = self.neighbors.wait(hop, frame, self.answering) {
            self.counters.link.out_unresolved += 1;
            self.pool.free(frame);
        }
    }

    /// Sends the frames whose neighbour was resolved.
    pub(crate) fn release(&mut self) {
        while let Some((frame, _)) = self.release_some() {
            self.pool.free(frame);
        }
    }

    /// Sends frames whose neighbour was resolved, up to the next one whose neighbour did not
    /// answer; returns that frame and its neighbour. Frames that the port does not take wait until
    /// the next poll.
    pub(crate) fn release_some(&mut self) -> Option<(Frame, IpAddr)> {
        loop {
            if self.burst.is_full() {
                self.flush();
                if self.burst.is_full() {
                    return None;
                }
            }
            let (mut frame, hop, ethernet) = self.neighbors.released()?;
            let Some(ethernet) = ethernet else {
                self.counters.link.out_unresolved += 1;
                return Some((frame, hop));
            };
            let at = self.vnet;
            self.memory.bytes_mut(&mut frame)[at..at + 6].copy_from_slice(&ethernet);
            self.push(frame);
        }
    }

    /// Frees a frame that did not leave, and returns the source and destination of its UDP
    /// datagram.
    #[cold]
    pub(crate) fn ends_of(&mut self, frame: Frame) -> Option<(SocketAddr, SocketAddr)> {
        let packet = &self.memory.bytes(&frame)[self.head()..];
        let header = match packet[0] >> 4 {
            4 => ip::parse_v4(packet, false),
            _ => ip::parse_v6(packet),
        };
        let first = |header: &ip::Header| header.piece.is_none_or(|piece| piece.offset == 0);
        let ends = header
            .filter(|header| header.protocol == UDP && first(header))
            .and_then(|header| {
                let ports = packet.get(header.body..header.body + 4)?;
                let (from, to) = (word(ports, 0), word(ports, 2));
                Some((
                    SocketAddr::new(header.from, from),
                    SocketAddr::new(header.to, to),
                ))
            });
        self.pool.free(frame);
        ends
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
        self.write_head(&mut frame, ethernet, ip::ethertype(to), header);
        self.push(frame);
    }

    /// Writes the vnet and Ethernet headers.
    #[inline]
    pub(crate) fn write_head(
        &self,
        frame: &mut Frame,
        ethernet: [u8; 6],
        ethertype: u16,
        header: VnetHeader,
    ) {
        let bytes = self.memory.bytes_mut(frame);
        if self.vnet > 0 {
            bytes[..VNET_HEADER_BYTES].copy_from_slice(&header.bytes());
        }
        let bytes = &mut bytes[self.vnet..];
        bytes[..6].copy_from_slice(&ethernet);
        bytes[6..12].copy_from_slice(&self.ethernet);
        put(bytes, 12, ethertype);
    }

    /// Puts a complete frame into the burst. A long frame is handed to the port at once, while its
    /// bytes are still in the cache; its buffer still is when the next one is written. A burst of
    /// long frames is larger than the cache. Inlined: a call took a fortieth of a datagram's time.
    #[inline(always)]
    pub(crate) fn push(&mut self, frame: Frame) {
        if self.burst.is_full() {
            self.flush();
        }
        self.budget = self.budget.saturating_sub(1);
        let is_long = usize::from(frame.len()) > LONG_FRAME_BYTES;
        if let Err(frame) = self.burst.push(frame) {
            self.find_no_place(frame);
        } else if let Some(watch) = &mut self.watch {
            // Frames have marks only while stages are watched.
            watch.entered(self.mark.take());
        }
        if is_long {
            self.flush();
        }
    }

    /// Handles a full burst and a full port: parts of a segment wait, other frames are dropped.
    #[cold]
    fn find_no_place(&mut self, frame: Frame) {
        let mark = self.mark.take();
        if self.cutting && self.rest.len() < self.rest.capacity() {
            self.rest.push_back((frame, mark));
            return;
        }
        self.counters.link.out_ring_full += 1;
        self.pool.free(frame);
    }
}

/// Returns the length of the longest packet that is written before its frame is known.
fn scratch_bytes(frame_bytes: usize, config: &Config) -> usize {
    let cut = Cut::of(config).map_or(0, Cut::packet_bytes);
    frame_bytes.max(cut)
}

/// Returns the maximum number of parts that a packet is split into: every path takes 512 B of
/// payload with headers, which `LEAST_V4` ensures.
pub(crate) const fn most_pieces(mtu: u16) -> usize {
    mtu as usize / 512 + 1
}

impl Drop for Link {
    fn drop(&mut self) {
        self.flush();
        self.pool.free_all(&mut self.burst);
        for (frame, _) in self.rest.drain(..) {
            self.pool.free(frame);
        }
        for frame in self.neighbors.drain() {
            self.pool.free(frame);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use linerate_port::{AnyPort, AnyReceive, PortUrl, Receive, open};

    use super::*;
    use crate::stack::memory_plan;

    /// Returns a link whose port is one end of a ring, the receive half of that port, and the port
    /// at the other end.
    pub(crate) fn on_ring(settings: &[&str], frames: u32) -> (Link, AnyReceive, AnyPort) {
        let mut config = Config::default();
        for setting in settings {
            config.apply(setting).unwrap();
        }
        let mtu = config.mtu;
        let url = |end| format!("ring:l,end={end},rxd={frames},mtu={mtu}").parse();
        let urls: [PortUrl; 2] = ["a", "b"].map(|end| url(end).unwrap());
        let plan = memory_plan(&config, &urls[0]).joined(memory_plan(&config, &urls[1]));
        let memory = Memory::new(MemoryPlan {
            huge: false,
            ..plan
        });
        let memory = memory.unwrap();
        let [near, far] = urls.map(|url| open(&url, &memory).unwrap().remove(0));
        let own = Addressing::new(&["10.0.0.1/24", "fd00::1/64"]).unwrap();
        let link = Link::new(
            &memory,
            near.transmit,
            0,
            own.copied(),
            [2, 0, 0, 0, 0, 1],
            &config,
        );
        (link, near.receive, far)
    }

    /// Pushes a frame with `kind` in its first byte.
    fn push(link: &mut Link, kind: u8) {
        let mut frame = link.make(20).unwrap();
        link.memory.bytes_mut(&mut frame)[0] = kind;
        link.push(frame);
    }

    #[test]
    fn answers_take_half_of_what_a_port_takes() {
        // Budgets for many frames, for a few, and for one; and a port that takes two per poll.
        for (descriptors, frames) in [(64u32, 512u32), (6, 512), (1, 512), (64, 8)] {
            let setting = format!("tx_descriptors={descriptors}");
            let (mut link, _receive, mut far) = on_ring(&[&setting], frames);
            let mut pool = link.memory.pool();
            let takes = if frames == 8 { 2 } else { 64 };
            let mut left = [0u32; 2];
            for turn in 0..400u64 {
                link.begin(turn);
                for _ in 0..64 {
                    if link.may_answer(1) {
                        push(&mut link, 1);
                    }
                }
                while link.has_room() {
                    push(&mut link, 0);
                }
                link.flush();
                let mut taken = 0;
                while taken < takes {
                    let mut burst = Burst::with_limit(takes - taken);
                    let count = far.receive.receive(&mut pool, &mut burst);
                    for frame in burst.frames() {
                        let kind = link.memory.bytes(frame)[0];
                        left[usize::from(kind)] += u32::from(turn >= 100);
                    }
                    pool.free_all(&mut burst);
                    taken += count;
                    if count == 0 {
                        break;
                    }
                }
            }
            let [others, answers] = left;
            let all = 300 * descriptors.min(takes as u32);
            let case = format!("{descriptors} descriptors, {frames} frames: {left:?}");
            assert_eq!(others + answers, all, "{case}");
            // Part of their half is reserved for neighbour replies.
            assert!(answers * 4 >= all, "{case}");
            assert!(others * 2 + 10 >= all, "{case}");
            assert!(link.counters.link.out_answers_limited > 0);
        }
    }

    /// Like the fragments of a long datagram: more frames than ring and burst hold.
    #[test]
    fn what_has_waited_leaves_a_short_ring_whole() {
        let (mut link, _receive, mut far) = on_ring(&["tx_descriptors=4"], 4);
        let mut pool = link.memory.pool();
        let to = "10.0.0.2".parse().unwrap();
        link.begin(0);
        for number in 0..45 {
            let mut frame = link.make(40).unwrap();
            link.packet(&mut frame).fill(number);
            link.send(frame, to, VnetHeader::default());
        }
        link.neighbors.learn(to, [2, 0, 0, 0, 0, 2], true, 0);
        link.release();
        let mut left = Vec::new();
        for turn in 1..100 {
            let mut burst = Burst::new();
            far.receive.receive(&mut pool, &mut burst);
            let waited = burst.frames().iter().map(|frame| link.memory.bytes(frame));
            left.extend(
                waited
                    .filter(|bytes| bytes.len() == 54)
                    .map(|bytes| bytes[53]),
            );
            pool.free_all(&mut burst);
            link.begin(turn);
            assert!(link.check_neighbors().is_none());
            link.flush();
        }
        assert_eq!(left, (0..45).collect::<Vec<u8>>());
        assert_eq!(link.counters.link.out_ring_full, 0);
    }

    /// A burst of long frames is larger than the caches that one of them fits into.
    #[test]
    fn a_long_frame_waits_for_no_company() {
        let (mut link, _receive, mut far) = on_ring(&["mtu=60000"], 64);
        let mut pool = link.memory.pool();
        link.begin(0);
        let came = [1_000, 40_000, 40_001, 1_001].map(|bytes| {
            let frame = link.make(bytes).unwrap();
            link.push(frame);
            let mut burst = Burst::new();
            far.receive.receive(&mut pool, &mut burst);
            pool.free_all(&mut burst)
        });
        // Frames pushed before it leave with it.
        assert_eq!(came, [0, 2, 1, 0]);
        link.flush();
        let mut burst = Burst::new();
        assert_eq!(far.receive.receive(&mut pool, &mut burst), 1);
        pool.free_all(&mut burst);
    }

    #[test]
    fn a_long_answer_is_paid_for_later() {
        let (mut link, _receive, _far) = on_ring(&["tx_descriptors=4"], 64);
        link.begin(0);
        // 45 frames: the share of 22 polls.
        assert!(link.may_answer(45));
        let waited = (1..100).find(|&turn| {
            link.begin(turn);
            link.may_answer(1)
        });
        assert_eq!(waited, Some(23));
    }
}
