//! The way out: frames are made here, find their neighbour's address, and go to the port in bursts.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use linerate_port::vnet::{VNET_HEADER_BYTES, VnetHeader};
use linerate_port::{AnyTransmit, Burst, Frame, Memory, MemoryPlan, Pool, Transmit};

use crate::Nanos;
use crate::addressing::Addressing;
use crate::config::Config;
use crate::counters::Counters;
use crate::icmp::Allowance;
use crate::neighbors::{Neighbors, Resolved};
use crate::numbers::Numbers;
use crate::pages;
use crate::paths::Paths;
use crate::stack::LONG_FRAME_BYTES;
use crate::tcp::Cut;
use crate::watch::{Mark, Watch};
use crate::wire::{ETHERNET_BYTES, UDP, ip, put, word};

/// What leaves the stack, who it is, and whom it knows.
pub(crate) struct Link {
    pub(crate) memory: Memory,
    pub(crate) pool: Pool,
    transmit: AnyTransmit,
    burst: Burst,
    /// Frames that may still be made until the next turn, and how many a turn allows.
    budget: usize,
    per_turn: usize,
    /// What answers may still take of that, in halves of a frame; below zero after a long one.
    answers: i64,
    /// The same of agreements to connections that are asked for, in quarters of a frame.
    agreements: i64,
    /// Frames that had left when the turn began.
    left_before: u64,
    /// What comes is being taken in, or somebody's request for a connection is answered: what leaves meanwhile is an
    /// answer that nobody here has asked for.
    pub(crate) answering: bool,
    /// A segment is being cut: its pieces leave all, or wait in `rest` until those in front of them have left. While
    /// one waits the burst is full.
    pub(crate) cutting: bool,
    rest: VecDeque<(Frame, Option<Mark>)>,
    /// Bytes in front of the Ethernet header.
    pub(crate) vnet: usize,
    pub(crate) own: Addressing,
    pub(crate) ethernet: [u8; 6],
    pub(crate) neighbors: Neighbors,
    pub(crate) paths: Paths,
    /// Where the last packet went, and what its neighbour's address was in which state of them: most go
    /// where the last one did.
    latest: (IpAddr, [u8; 6], u32),
    pub(crate) counters: Counters,
    pub(crate) now: Nanos,
    /// When the frames at hand came: the turn's time, or read anew where stages are watched.
    pub(crate) came: Nanos,
    pub(crate) watch: Option<Watch>,
    /// What the next frame that is pushed is.
    pub(crate) mark: Option<Mark>,
    /// Where a packet is written for which no buffer is free, or that is to be cut.
    pub(crate) scratch: Vec<u8>,
    pub(crate) numbers: Numbers,
    /// Type of service or traffic class of what is sent for sockets.
    tos: u8,
    /// Networks that packets to a group may cross.
    pub(crate) group_hops: u8,
    /// Errors of ICMP that may be sent.
    pub(crate) errors: Allowance,
    /// What is believed about the paths of datagrams and echo answers.
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
            scratch: pages::filled(scratch_bytes(memory.frame_bytes().into(), config)),
            numbers,
            tos: config.ip.tos,
            // RFC 1112, section 6.1.
            group_hops: 1,
            errors: Allowance::of_errors(),
            told: Allowance::of_paths(),
        }
    }

    /// Bytes from the heap, over a memory of this plan.
    pub(crate) fn heap_bytes(plan: &MemoryPlan, config: &Config) -> usize {
        // The memory rounds slots up, and frames may fill them.
        let room = plan.slot_bytes() - usize::from(plan.headroom);
        let rest = most_pieces(config.mtu) * size_of::<(Frame, Option<Mark>)>();
        scratch_bytes(room.min(u16::MAX.into()), config) + Pool::HEAP_BYTES + rest
    }

    /// Bytes in front of the IP header.
    #[inline]
    pub(crate) fn head(&self) -> usize {
        self.vnet + ETHERNET_BYTES
    }

    /// Completes the header of a packet that a socket sends; the checksum of IPv4 is the caller's.
    pub(crate) fn label(&self, packet: &mut [u8], to: IpAddr) {
        ip::mark(packet, self.tos);
        if to.is_multicast() {
            ip::limit_hops(packet, self.group_hops);
        }
    }

    /// A turn begins: as many frames as it has descriptors may leave again.
    pub(crate) fn begin(&mut self, now: Nanos) {
        self.now = now;
        if self.watch.is_none() {
            self.came = now;
        }
        self.budget = self.per_turn;
        self.flush();
        self.share();
    }

    /// Frames have just come: the time is read where stages are watched, and is the turn's elsewhere.
    #[inline]
    pub(crate) fn arrived(&mut self) {
        if let Some(watch) = &self.watch {
            self.came = (watch.clock)();
        }
    }

    /// Half of what a turn sends may be answers, and where the port is full half of what it has taken since the last
    /// turn: whoever floods the stack with questions leaves the other half to sockets. A quarter of all may be agreements,
    /// which are no answers: a flood of questions lets connections come to stand.
    fn share(&mut self) {
        let left = self.counters.link.out_frames;
        let since = left - std::mem::replace(&mut self.left_before, left);
        let more = match self.is_behind() {
            true => since as i64,
            false => self.per_turn as i64,
        };
        // Of one descriptor every second frame, and every fourth.
        self.answers = (self.answers + more).min(self.per_turn.max(2) as i64);
        self.agreements = (self.agreements + more).min(self.per_turn.max(4) as i64);
    }

    /// Whether an answer of so many frames may be made; counted where it may not.
    pub(crate) fn may_answer(&mut self, frames: usize) -> bool {
        // Without neighbours' answers nothing else comes: some places are kept for them.
        self.takes_share(frames, self.per_turn as i64 / 4)
    }

    /// The same of an answer to a neighbour who asks for an address.
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

    /// Agreements to connections that may be made until the next turn.
    pub(crate) fn agreements_left(&self) -> usize {
        self.agreements as usize / 4
    }

    /// Whether one of them may be made now; one that may not waits.
    pub(crate) fn may_agree(&mut self) -> bool {
        let may = self.agreements_left() > 0;
        self.agreements -= 4 * i64::from(may);
        may
    }

    /// Whether a frame that can wait may be made now.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        self.has_room_for(1)
    }

    /// The same of so many, one behind the other.
    #[inline]
    pub(crate) fn has_room_for(&mut self, frames: usize) -> bool {
        if self.burst.room() < frames {
            self.flush();
        }
        self.burst.room() >= frames && self.budget >= frames
    }

    /// Has departures watched by this clock.
    pub(crate) fn watched_by(&mut self, clock: fn() -> Nanos) -> &mut Watch {
        let frames = self.burst.len();
        if self.watch.is_none() {
            // Of frames that a look has found before this it is the first time that is known.
            self.came = clock();
        }
        let watch = self.watch.get_or_insert_with(|| Watch::new(clock, frames));
        watch.clock = clock;
        watch
    }

    /// Whether frames wait for the port.
    pub(crate) fn is_behind(&self) -> bool {
        !self.burst.is_empty()
    }

    /// Gives what has been made to the port, as far as it takes it.
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

    /// Pieces that waited go where others have left.
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

    /// For turns in which nothing left: what has left earlier comes back.
    pub(crate) fn reclaim(&mut self) {
        self.transmit.reclaim(&mut self.pool);
    }

    pub(crate) fn transmit_mut(&mut self) -> &mut AnyTransmit {
        &mut self.transmit
    }

    /// A frame for an IP packet of so many bytes, its headers not written.
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

    /// Gives back a frame that [`Link::make`] made.
    #[cold]
    pub(crate) fn unmake(&mut self, frame: Frame) {
        self.pool.free(frame);
    }

    /// The IP packet in a frame that [`Link::make`] made.
    #[inline]
    pub(crate) fn packet<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let head = self.head();
        &mut self.memory.bytes_mut(frame)[head..]
    }

    /// Sends a packet on its way to `to`. It waits, or is lost and counted, while the neighbour's address
    /// is not known.
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
                // What is only answered stays known as that.
                if !self.answering {
                    self.latest = (to, ethernet, self.neighbors.epoch());
                }
                self.send_to(frame, ethernet, to, header);
            }
            None => self.wait(frame, hop, to, header),
        }
    }

    /// The address whose Ethernet address a packet needs.
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

    /// The Ethernet address of a neighbour or group; asks for it when it is not known.
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

    /// Frames that waited for a neighbour leave.
    pub(crate) fn release(&mut self) {
        while let Some((frame, _)) = self.release_some() {
            self.pool.free(frame);
        }
    }

    /// The same, up to the next one that waited in vain: it is given, with the neighbour that did not answer. What the port
    /// has no room for goes on waiting, until the next turn.
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

    /// Gives back a frame that did not leave, and says which ends its datagram of UDP has.
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

    /// Writes what stands in front of a packet.
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

    /// Puts a whole frame into the burst. A long one leaves at once: its bytes are still in the cache when the port reads
    /// them, and its buffer is when the next one is written into it; a burst of them is larger than that. Part of its
    /// caller: a call took a fortieth of a datagram's way.
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
            // Without anybody who watches nothing is ever marked.
            watch.entered(self.mark.take());
        }
        if is_long {
            self.flush();
        }
    }

    /// Neither the burst nor the port has room: a piece of a segment waits, an answer is lost.
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

/// The longest packet that is written before it is known where it goes, where frames hold so much.
fn scratch_bytes(frame_bytes: usize, config: &Config) -> usize {
    let cut = Cut::of(config).map_or(0, Cut::packet_bytes);
    frame_bytes.max(cut)
}

/// Pieces that a packet of this length is cut into at most: 512 B of payload and headers are what every path takes
/// (tcp/path.rs).
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

    /// A link into a ring of so many frames, what its port receives, and the ring's far end.
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

    /// A frame with this in its first byte.
    fn push(link: &mut Link, kind: u8) {
        let mut frame = link.make(20).unwrap();
        link.memory.bytes_mut(&mut frame)[0] = kind;
        link.push(frame);
    }

    #[test]
    fn answers_take_half_of_what_a_port_takes() {
        // Turns with room for all, for a few, and for one frame; a port that takes two of them meanwhile.
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
            // A part of their half is kept for neighbours.
            assert!(answers * 4 >= all, "{case}");
            assert!(others * 2 + 10 >= all, "{case}");
            assert!(link.counters.link.out_answers_limited > 0);
        }
    }

    /// More than the ring and a burst hold, as the fragments of a long datagram are.
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
        // What was made before it leaves with it.
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
        // In 45 frames: as many as 22 turns may answer with.
        assert!(link.may_answer(45));
        let waited = (1..100).find(|&turn| {
            link.begin(turn);
            link.may_answer(1)
        });
        assert_eq!(waited, Some(23));
    }
}
