//! Driver of smoltcp: passes segments to connections and sends what they have to send.

use std::net::SocketAddr;

use linerate_port::Frame;
use linerate_port::vnet::VnetHeader;
use smoltcp::iface::PollResult;
use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;

use super::Tcp;
use super::challenge_ack::Unasked;
use super::connection::Owner;
use super::recovery::Nudge;
use super::smoltcp_device::{Glance, Sent};
use super::window_edge::{self, Bare};
use crate::Nanos;
use crate::config::CongestionControl;
use crate::link::Link;
use crate::socket::{SocketId, SocketKind};
use crate::wire::ip::{self, Header};
use crate::wire::{ACK, FIN, RST, SYN, TCP, TCP_BYTES, Verdict, long, put, word};

/// Time without progress after which an orphaned connection is reset, as in Linux
/// (tcp_fin_timeout).
const PATIENCE: Nanos = 60_000_000_000;

/// Time that a half-open connection may stay unanswered. Within it the SYN-ACK is sent four times
/// if the minimum retransmission timeout is a second (RFC 6298), and more often if it is shorter.
const HALF_OPEN: Nanos = 15_000_000_000;

/// Steps into which one acknowledgement is split: segments of 1460 B in 64 KiB, the most that
/// arrives as one, and some more.
const MOST_STEPS: u32 = 64;

/// Segments that a connection sends before the next connection.
pub(super) const SEGMENTS_AT_A_TIME: u32 = 8;

const ACK_RST: u16 = ACK | RST;
const SYN_RST: u16 = SYN | RST;

/// Copies a packet into a frame of its own and changes it before smoltcp gets it; `None` if no
/// buffer is free.
fn changed(link: &mut Link, packet: &[u8], change: impl FnOnce(&mut [u8])) -> Option<Frame> {
    let Some(mut frame) = link.pool.allocate() else {
        link.counters.ip.in_no_buffer += 1;
        return None;
    };
    frame.set_len(packet.len() as u16);
    let bytes = link.memory.bytes_mut(&mut frame);
    bytes.copy_from_slice(packet);
    change(bytes);
    Some(frame)
}

impl Tcp {
    /// Processes a segment in an unfragmented packet.
    #[inline(always)]
    pub(crate) fn input(
        &mut self,
        link: &mut Link,
        header: &Header,
        packet: &[u8],
        vnet: VnetHeader,
    ) {
        link.counters.tcp.in_segments += 1;
        let segment = &packet[header.body..header.end];
        if segment.len() < TCP_BYTES {
            link.counters.tcp.in_errors += 1;
            return;
        }
        let open = vnet.needs_checksum || vnet.checksum_valid || !self.settings.verify;
        if !open {
            let pseudo = ip::pseudo_sum(header.from, header.to, TCP, segment.len());
            let counters = &mut link.counters.tcp;
            match Verdict::of(pseudo, segment, word(segment, 16)) {
                Verdict::Right => {}
                Verdict::Open if self.settings.takes_open => counters.in_open_checksums += 1,
                Verdict::Open => {
                    counters.open_checksum_drops += 1;
                    return;
                }
                Verdict::Wrong => {
                    counters.in_checksum_errors += 1;
                    return;
                }
            }
        }
        let ports = (word(segment, 0), word(segment, 2));
        let local = SocketAddr::new(header.to, ports.1);
        let remote = SocketAddr::new(header.from, ports.0);
        let flags = word(segment, 12);
        let asks = flags & (SYN | ACK_RST) == SYN;
        let now = self.clock.instant(link.now);
        let mut found = self.find_again(local, remote);
        if flags & SYN_RST != 0
            && let Some(index) = found
        {
            match self.challenged(link, now, index, header, packet) {
                Unasked::Usual => {}
                Unasked::Answered => return,
                Unasked::Over => found = None,
            }
        }
        let index = match found {
            Some(index) => Some(index),
            None if asks => match self.admit(link, header, ports) {
                Ok(Some(index)) => Some(index),
                Ok(None) => return,
                Err(()) => None,
            },
            None => None,
        };
        let Some(index) = index else {
            link.counters.tcp.no_ports += 1;
            // No reset is sent in reply to a reset.
            if !link.own.is_own(header.to) || flags & RST != 0 || !link.may_answer(1) {
                return;
            }
            let mut glance = Glance {
                packet: Some(packet),
                link,
                wire: &self.wire,
                sent: &mut Sent::default(),
                socket: None,
            };
            self.interface
                .poll_ingress_single(now, &mut glance, &mut self.nobody);
            return;
        };
        if flags & SYN_RST == 0 && flags & FIN != 0 && self.ends_with_payload(index, segment) {
            self.split(link, now, index, header, packet);
        } else {
            self.step(link, now, index, header, packet);
        }
    }

    #[cold]
    fn ends_with_payload(&mut self, index: u32, segment: &[u8]) -> bool {
        let head = usize::from(word(segment, 12) >> 12) * 4;
        let socket = self.connections[index as usize].socket();
        segment.len() > head
            && matches!(
                socket.state(),
                State::Established | State::FinWait1 | State::FinWait2
            )
    }

    /// Processes a segment with payload and FIN: first the payload, then the FIN if all payload was
    /// accepted. smoltcp cuts off what lies beyond the window that it announced last, and would
    /// accept the FIN all the same. A window that is rounded down can end a few bytes before one
    /// that was announced earlier.
    #[cold]
    fn split(&mut self, link: &mut Link, now: Instant, index: u32, header: &Header, packet: &[u8]) {
        let segment = &packet[header.body..header.end];
        let flags = word(segment, 12);
        let without_end = changed(link, packet, |changed| {
            put(changed, header.body + 12, flags & !FIN);
        });
        let Some(payload) = without_end else {
            // The peer retransmits the segment.
            return;
        };
        let memory = link.memory.clone();
        self.step(link, now, index, header, memory.bytes(&payload));
        link.pool.free(payload);

        let head = usize::from(flags >> 12) * 4;
        let behind = long(segment, 4).wrapping_add((segment.len() - head) as u32);
        if self.connections[index as usize].next_number() != Some(behind) {
            return;
        }
        if let Some(end) = Bare::of(behind, header, packet).map(Bare::ending) {
            let end = end.packet();
            let header = Header {
                end: end.len(),
                ..*header
            };
            self.step(link, now, index, &header, end);
        }
    }

    /// Processes a segment of a connection.
    #[inline(always)]
    fn step(&mut self, link: &mut Link, now: Instant, index: u32, header: &Header, packet: &[u8]) {
        let segment = &packet[header.body..header.end];
        let flags = word(segment, 12);
        link.counters.tcp.connection_steps += 1;
        let connection = &mut self.connections[index as usize];
        if flags & SYN != 0 {
            let first = long(segment, 4);
            if matches!(connection.socket().state(), State::Listen | State::SynSent) {
                connection.far_base = first.wrapping_add(1);
                let longest = self.wire.longest.of(header.to.is_ipv4());
                connection.greeted(segment, longest, link.paths.of(header.from));
            }
        }
        if connection.hears_of_unsent(segment) && self.refused(link, now, index) {
            return;
        }
        let connection = &mut self.connections[index as usize];
        if let Some(bare) = connection.repeats_before_end(segment) {
            self.count_anew(link, now, index, bare);
        }
        let connection = &mut self.connections[index as usize];
        let base = connection.far_base;
        if let Some(mut bare) = window_edge::beyond(connection.socket(), base, header, packet) {
            self.show(link, now, index, bare.packet());
            // A segment outside the window is acknowledged (RFC 9293, section 3.10.7.4); smoltcp
            // does so for one that lies before it.
            bare.step_back();
            self.show(link, now, index, bare.packet());
            self.look(link, index);
            self.dirty.push(index);
            return;
        }
        if let Some(bare) = window_edge::overlooked(connection.socket(), base, header, packet) {
            self.show(link, now, index, bare.packet());
        }
        let connection = &mut self.connections[index as usize];
        if connection.is_ending()
            && let Some(bare) = connection.heard_end(header, packet)
        {
            self.show(link, now, index, bare.packet());
            self.look(link, index);
            self.dirty.push(index);
            return;
        }
        let nudge = connection.heard(segment, link.now);
        match nudge {
            None if flags & SYN != 0 => {
                self.show_limited(link, now, index, header, packet);
            }
            None => self.show(link, now, index, packet),
            Some(nudge) => self.nudge(link, now, index, nudge, header, packet),
        }
        if let Some(watch) = &link.watch {
            let head = usize::from(word(segment, 12) >> 12) * 4;
            if segment.len() > head
                && let Some(queued) = watch.stage_now()
            {
                self.connections[index as usize].came = Some((link.came, queued));
            }
        }
        self.look(link, index);
        self.dirty.push(index);
    }

    /// Feeds smoltcp a SYN that announces no larger segments than this end sends and receives:
    /// smoltcp acknowledges at once what exceeds one segment of the announced size.
    #[cold]
    fn show_limited(
        &mut self,
        link: &mut Link,
        now: Instant,
        index: u32,
        header: &Header,
        packet: &[u8],
    ) {
        let most = self.wire.longest.of(header.to.is_ipv4());
        let greeting = Bare::greeting(header, packet, most);
        let packet = greeting.as_ref().map_or(packet, Bare::packet);
        self.show(link, now, index, packet);
    }

    /// Feeds smoltcp a packet for a connection.
    #[inline(always)]
    pub(super) fn show(&mut self, link: &mut Link, now: Instant, index: u32, packet: &[u8]) {
        let connection = &mut self.connections[index as usize];
        let socket = Some(connection.id(index));
        let (set, sent) = connection.parts();
        let mut glance = Glance {
            packet: Some(packet),
            link,
            wire: &self.wire,
            sent,
            socket,
        };
        self.interface.poll_ingress_single(now, &mut glance, set);
    }

    /// Feeds smoltcp an acknowledgement in the form that `nudge` selects.
    #[cold]
    fn nudge(
        &mut self,
        link: &mut Link,
        now: Instant,
        index: u32,
        nudge: Nudge,
        header: &Header,
        packet: &[u8],
    ) {
        let controls = self.settings.control != CongestionControl::None;
        let bare = |own: &mut Self| {
            let expected = own.connections[index as usize].nudged_at()?;
            Bare::of(expected, header, packet)
        };
        match nudge {
            Nudge::Window(window) => match bare(self) {
                Some(mut bare) => {
                    bare.set_window(window);
                    self.show(link, now, index, bare.packet());
                }
                None => self.show(link, now, index, packet),
            },
            Nudge::InSteps { from, each } => {
                let connection = &mut self.connections[index as usize];
                if controls
                    && connection.held
                    && let Some(mut bare) = bare(self)
                {
                    let to = long(packet, header.body + 8);
                    let steps = (to.wrapping_sub(from) - 1) / each;
                    for step in 1..=steps.min(MOST_STEPS) {
                        bare.set_number(from.wrapping_add(step * each));
                        self.show(link, now, index, bare.packet());
                    }
                }
                self.show(link, now, index, packet);
            }
            Nudge::Late(window) => {
                let Some(number) = self.connections[index as usize].acknowledged() else {
                    return;
                };
                self.show_changed(link, now, index, packet, |changed| {
                    let tcp = &mut changed[header.body..];
                    tcp[8..12].copy_from_slice(&number.to_be_bytes());
                    put(tcp, 14, window);
                });
            }
            Nudge::Again | Nudge::Anew => {
                self.show(link, now, index, packet);
                if let Some(bare) = bare(self) {
                    self.repeat(link, now, index, bare, nudge);
                }
            }
        }
    }

    /// Feeds smoltcp a changed copy of a packet; without a free buffer the packet is lost.
    #[cold]
    fn show_changed(
        &mut self,
        link: &mut Link,
        now: Instant,
        index: u32,
        packet: &[u8],
        change: impl FnOnce(&mut [u8]),
    ) {
        let Some(frame) = changed(link, packet, change) else {
            return;
        };
        let memory = link.memory.clone();
        self.show(link, now, index, memory.bytes(&frame));
        link.pool.free(frame);
    }

    /// Feeds smoltcp an acknowledgement until it has counted three duplicates.
    #[cold]
    pub(super) fn repeat(
        &mut self,
        link: &mut Link,
        now: Instant,
        index: u32,
        mut bare: Bare,
        nudge: Nudge,
    ) {
        let window = bare.window();
        // A different window makes smoltcp start a new count.
        let other = if window > 1 { window - 1 } else { 2 };
        let windows: &[u16] = match nudge {
            Nudge::Anew => &[other, window, window, window, window],
            _ => &[window; 3],
        };
        // smoltcp sends nothing into a closed window.
        for &window in windows.iter().filter(|_| window > 0) {
            bare.set_window(window);
            self.show(link, now, index, bare.packet());
        }
    }

    /// Resets smoltcp's count of duplicates, whatever window it has: an acknowledgement with a
    /// different window is no duplicate to it.
    #[cold]
    fn count_anew(&mut self, link: &mut Link, now: Instant, index: u32, mut bare: Bare) {
        for window in [1, 2] {
            bare.set_window(window);
            self.show(link, now, index, bare.packet());
        }
    }

    /// Handles changes of a connection after a segment or a deadline.
    pub(super) fn look(&mut self, link: &mut Link, index: u32) {
        let connection = &mut self.connections[index as usize];
        let state = connection.socket().state();
        let before = std::mem::replace(&mut connection.state, state);
        let owner = connection.owner;
        if owner == Owner::Nobody {
            // No application reads the data, which must not fill the window for good.
            if connection.socket().can_recv() {
                connection.abort();
            }
            let left = connection.socket().send_queue();
            if std::mem::replace(&mut connection.left, left) != left || state != before {
                connection.since = link.now;
            }
            if state == State::TimeWait && before != State::TimeWait {
                // `give_one_up` can free it.
                self.swept = None;
            }
            return;
        }
        if state != before {
            let opening =
                |state| matches!(state, State::Listen | State::SynSent | State::SynReceived);
            if opening(before) && !opening(state) && state != State::Closed {
                connection.stood = true;
                if let Owner::Listener(at) = owner {
                    self.line_up(index, at);
                }
            } else if opening(before) && (state == State::Closed || state == State::Listen) {
                // A socket that returned to the LISTEN state counts, too.
                link.counters.tcp.attempt_fails += 1;
                if let Owner::Listener(at) = owner {
                    self.not_lined_up(index, at);
                    let connection = &mut self.connections[index as usize];
                    connection.disown(link.now);
                    connection.socket().abort();
                    return;
                }
            } else if state == State::Closed {
                connection.count_end(before, &mut link.counters);
            }
        }
        if owner == Owner::Application {
            self.ready.push(index);
        }
    }

    /// Sends for connections while the ring has space, and handles expired timers.
    pub(crate) fn work(&mut self, link: &mut Link) {
        while let Some(index) = self.timers.expired(link.now) {
            self.dirty.push(index);
        }
        for _ in 0..link.agreements_left() {
            let Some(index) = self.unanswered.pop() else {
                break;
            };
            // In front of later ones, which would otherwise be served first during a flood.
            self.dirty.push_front(index);
        }
        if self.dirty.is_empty() {
            return;
        }
        let now = self.clock.instant(link.now);
        let controls = self.settings.control != CongestionControl::None;
        let mut idle = 0;
        while idle < self.dirty.len() && link.has_room() {
            let Some(index) = self.dirty.pop() else {
                break;
            };
            if self.connections[index as usize].owner == Owner::Free {
                continue;
            }
            link.counters.tcp.connection_steps += 1;
            // Before anything is sent for a connection that has timed out.
            if self.end_if_due(link, index) {
                continue;
            }
            // The source of a SYN may be forged: until the connection is established, segments to
            // it count as replies.
            link.answering = self.half_open_of(index).is_some();
            if link.answering && !link.may_agree() {
                self.unanswered.push(index);
                continue;
            }
            if self.connections[index as usize].is_ending()
                && let Some(bare) = self.connections[index as usize].tell_end()
            {
                self.show(link, now, index, bare.packet());
            }
            if let Some(slack) = self.settings.tail_probe {
                self.probe(link, now, index, slack);
            }
            let connection = &mut self.connections[index as usize];
            let lost_end = connection.lost_end();
            let long = self.long.as_ref();
            let room = long.map_or(0, |long| long.room(connection, controls));
            let socket = Some(connection.id(index));
            let (set, sent) = connection.parts();
            // Only the FIN is left to be retransmitted, so a timeout costs nothing: smoltcp is
            // polled with the time of its timer.
            let due = lost_end.then(|| self.interface.poll_at(now, set)).flatten();
            let due = due.map(|due| due.max(now));
            let mut glance = Glance {
                packet: None,
                link,
                wire: &self.wire,
                sent,
                socket,
            };
            // Several segments at a time: the connection is looked up once and is in the cache.
            let mut state = PollResult::SocketStateChanged;
            if let Some(due) = due {
                self.interface.poll_egress(due, &mut glance, set);
            }
            let mut left = SEGMENTS_AT_A_TIME;
            if room > 0
                && let Some(long) = &mut self.long
            {
                (left, state) = long.send(now, &mut glance, set, room);
            }
            for _ in 0..left {
                state = self.interface.poll_egress(now, &mut glance, set);
                if state == PollResult::None || !glance.link.has_room() {
                    break;
                }
            }
            if state == PollResult::SocketStateChanged {
                idle = 0;
                self.dirty.push(index);
                continue;
            }
            self.connections[index as usize].note_held();
            if controls && self.long.is_some() {
                self.connections[index as usize].note_carried();
            }
            if self.connections[index as usize].socket().state()
                != self.connections[index as usize].state
            {
                self.look(link, index);
            }
            if let Some(slack) = self.settings.tail_probe
                && let Some(at) = self.connections[index as usize].left(link.now, slack)
            {
                self.timers.no_later_than(index, at);
            }
            let (set, _) = self.connections[index as usize].parts();
            let next = self.interface.poll_at(now, set);
            if self.connections[index as usize].resend > 0 && next.is_none_or(|at| at > now) {
                self.resend(link, index, next);
            }
            let next = match next {
                None if self.connections[index as usize].is_shut_out() => {
                    self.ask_for_room(link, now, index)
                }
                next => next,
            };
            match next {
                // A segment that has to wait for space is tried again in the next poll.
                Some(at) if at <= now => {
                    idle += 1;
                    self.dirty.push(index);
                }
                Some(at) => self.timers.no_later_than(index, self.clock.nanos(at)),
                None => self.settle(index),
            }
        }
        link.answering = false;
    }

    /// Makes smoltcp's retransmission timeout expire: the segments in flight were too long and are
    /// lost.
    #[cold]
    fn resend(&mut self, link: &mut Link, index: u32, next: Option<Instant>) {
        let connection = &mut self.connections[index as usize];
        connection.resend -= 1;
        let Some(due) = next.filter(|_| connection.socket().send_queue() > 0) else {
            connection.resend = 0;
            return;
        };
        let before = std::mem::take(&mut connection.parts().1.timed_out);
        self.poll_egress(link, due, index);
        let connection = &mut self.connections[index as usize];
        let timed_out = &mut connection.parts().1.timed_out;
        if std::mem::replace(timed_out, *timed_out || before) {
            connection.resend = 0;
        }
        self.dirty.push(index);
    }

    /// Makes smoltcp probe the peer's window, and returns when it will. smoltcp starts probing when
    /// the window closes behind what was sent, and stops if the window has shrunk and the timeout
    /// of the data beyond it expires. Both ends would then be silent for ever (RFC 9293, section
    /// 3.8.6, MUST-35).
    #[cold]
    fn ask_for_room(&mut self, link: &mut Link, now: Instant, index: u32) -> Option<Instant> {
        if let Some(bare) = self.connections[index as usize].shut_out() {
            self.show(link, now, index, bare.packet());
        }
        let (set, _) = self.connections[index as usize].parts();
        self.interface.poll_at(now, set)
    }

    /// Makes smoltcp send at most one segment of a connection.
    fn poll_egress(&mut self, link: &mut Link, now: Instant, index: u32) {
        let connection = &mut self.connections[index as usize];
        let socket = Some(connection.id(index));
        let (set, sent) = connection.parts();
        let mut glance = Glance {
            packet: None,
            link,
            wire: &self.wire,
            sent,
            socket,
        };
        self.interface.poll_egress(now, &mut glance, set);
    }

    /// Sends a tail loss probe if one is due.
    #[inline]
    fn probe(&mut self, link: &mut Link, now: Instant, index: u32, slack: Nanos) {
        if let Some(bare) = self.connections[index as usize].probe(link.now, slack) {
            self.repeat(link, now, index, bare, Nudge::Anew);
        }
    }

    /// Frees an idle connection if it is closed.
    fn settle(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if connection.owner != Owner::Nobody {
            return;
        }
        if connection.socket().state() == State::Closed {
            self.drop_connection(index);
        } else {
            self.timers
                .no_later_than(index, connection.since + PATIENCE);
        }
    }

    /// Gives up half-open and orphaned connections after their timeout; returns whether the
    /// connection is free now.
    fn end_if_due(&mut self, link: &mut Link, index: u32) -> bool {
        if let Some(at) = self.half_open_of(index) {
            let due = self.connections[index as usize].since + HALF_OPEN;
            if link.now >= due {
                self.drop_half_open(link, index, at);
                return true;
            }
            self.timers.no_later_than(index, due);
            return false;
        }
        let connection = &mut self.connections[index as usize];
        if connection.owner == Owner::Nobody && link.now >= connection.since + PATIENCE {
            connection.break_off(&mut link.counters);
        }
        false
    }

    /// Frees a connection.
    pub(super) fn drop_connection(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        connection.owner = Owner::Free;
        connection.socket().abort();
        self.timers.remove(index);
        self.unname(index);
        self.free.push(index);
    }

    /// Removes a connection from the table, so that another one can use its addresses.
    pub(super) fn unname(&mut self, index: u32) {
        let connection = &self.connections[index as usize];
        let hash = self.hash(connection.local, connection.remote);
        let connections = &self.connections;
        let seed = self.seed;
        self.table.remove(hash, index, |other| {
            let other = &connections[other as usize];
            super::pair_hash(seed, other.local, other.remote)
        });
        self.latest = u32::MAX;
    }

    /// Returns the next deadline of a connection.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.timers.next()
    }

    /// Returns whether connections have work in the next poll.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.unanswered.is_empty()
    }

    /// Returns the number of connections that are not free.
    pub(crate) fn in_use(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Returns the next socket with an event.
    pub(crate) fn next_ready(&mut self) -> Option<SocketId> {
        loop {
            let index = self.ready.pop()?;
            let count = self.connections.len() as u32;
            if let Some(listener) = index.checked_sub(count) {
                if let Some(generation) = self.listener_generation(listener) {
                    return Some(SocketId {
                        kind: SocketKind::Listener,
                        index: listener,
                        generation,
                    });
                }
                continue;
            }
            let connection = &self.connections[index as usize];
            if connection.owner == Owner::Application {
                return Some(SocketId {
                    kind: SocketKind::Tcp,
                    index,
                    generation: connection.generation,
                });
            }
        }
    }
}
