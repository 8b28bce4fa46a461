//! Driver of smoltcp: passes segments to connections and sends what they have to send.

use std::net::SocketAddr;

use linerate_packet::vnet::VnetHeader;
use linerate_sys::frames::frame::Frame;
use smoltcp::iface::PollResult;
use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;

use super::challenge_ack::SynRstOutcome;
use super::connection::ConnectionOwner;
use super::recovery::AckReplay;
use super::smoltcp_device::{SendState, SmoltcpDevice};
use super::window_edge::HeadersOnly;
use super::{TcpLayer, window_edge};
use crate::Nanos;
use crate::config::CongestionAlgorithm;
use crate::link::LinkLayer;
use crate::segmentation::MAX_SEGMENTS_PER_VISIT;
use crate::socket::{SocketId, SocketKind};
use crate::wire::ip::IpHeader;
use crate::wire::{
    ACK, ChecksumVerdict, FIN, RST, SYN, TCP, TCP_BYTES, ip, read_u16, read_u32, write_u16,
};

/// Time without progress after which an orphaned connection is reset, as in Linux
/// (tcp_fin_timeout).
const ORPHAN_TIMEOUT_NS: Nanos = 60_000_000_000;

/// Time that a half-open connection may stay unanswered. Within it the SYN-ACK is sent four times
/// if the minimum retransmission timeout is a second (RFC 6298), and more often if it is shorter.
const HALF_OPEN_TIMEOUT_NS: Nanos = 15_000_000_000;

/// Steps into which one acknowledgement is split: segments of 1460 B in 64 KiB, the most that
/// arrives as one, and some more.
const MAX_ACK_STEPS: u32 = 64;

const ACK_RST: u16 = ACK | RST;
const SYN_RST: u16 = SYN | RST;

/// Copies a packet into a frame of its own and changes it before smoltcp gets it; `None` if no
/// buffer is free.
fn copy_and_change(
    link: &mut LinkLayer,
    packet: &[u8],
    change: impl FnOnce(&mut [u8]),
) -> Option<Frame> {
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

impl TcpLayer {
    /// Processes a segment in an unfragmented packet.
    #[inline(always)]
    pub(crate) fn input_segment(
        &mut self,
        link: &mut LinkLayer,
        header: &IpHeader,
        packet: &[u8],
        vnet: VnetHeader,
    ) {
        link.counters.tcp.in_segments += 1;
        let segment = &packet[header.transport..header.end];
        if segment.len() < TCP_BYTES {
            link.counters.tcp.in_errors += 1;
            return;
        }
        let skips_verification =
            vnet.needs_checksum || vnet.checksum_valid || !self.settings.verifies_checksums;
        if !skips_verification {
            let pseudo = ip::pseudo_sum(header.from, header.to, TCP, segment.len());
            let counters = &mut link.counters.tcp;
            match ChecksumVerdict::verify(pseudo, segment, read_u16(segment, 16)) {
                ChecksumVerdict::Valid => {}
                ChecksumVerdict::Partial if self.settings.accepts_partial_checksum => {
                    counters.in_open_checksums += 1
                }
                ChecksumVerdict::Partial => {
                    counters.open_checksum_drops += 1;
                    return;
                }
                ChecksumVerdict::Invalid => {
                    counters.in_checksum_errors += 1;
                    return;
                }
            }
        }
        let ports = (read_u16(segment, 0), read_u16(segment, 2));
        let local = SocketAddr::new(header.to, ports.1);
        let remote = SocketAddr::new(header.from, ports.0);
        let flags = read_u16(segment, 12);
        let is_syn = flags & (SYN | ACK_RST) == SYN;
        let now = self.clock.smoltcp_instant(link.now);
        let mut connection = self.find_connection_cached(local, remote);
        if flags & SYN_RST != 0
            && let Some(index) = connection
        {
            match self.check_syn_rst(link, now, index, header, packet) {
                SynRstOutcome::Process => {}
                SynRstOutcome::Handled => return,
                SynRstOutcome::ConnectionGone => connection = None,
            }
        }
        let index = match connection {
            Some(index) => Some(index),
            None if is_syn => match self.accept_syn(link, header, ports) {
                Ok(Some(index)) => Some(index),
                Ok(None) => return,
                Err(()) => None,
            },
            None => None,
        };
        let Some(index) = index else {
            link.counters.tcp.no_ports += 1;
            // No reset is sent in reply to a reset.
            if !link.addressing.is_local(header.to) || flags & RST != 0 || !link.may_reply(1) {
                return;
            }
            let mut device = SmoltcpDevice {
                packet: Some(packet),
                link,
                format: &self.format,
                send_state: &mut SendState::default(),
                socket: None,
            };
            self.interface
                .poll_ingress_single(now, &mut device, &mut self.empty_set);
            return;
        };
        if flags & SYN_RST == 0 && flags & FIN != 0 && self.is_fin_with_payload(index, segment) {
            self.input_payload_then_fin(link, now, index, header, packet);
        } else {
            self.input_for_connection(link, now, index, header, packet);
        }
    }

    #[cold]
    fn is_fin_with_payload(&mut self, index: u32, segment: &[u8]) -> bool {
        let head = usize::from(read_u16(segment, 12) >> 12) * 4;
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
    fn input_payload_then_fin(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
        header: &IpHeader,
        packet: &[u8],
    ) {
        let segment = &packet[header.transport..header.end];
        let flags = read_u16(segment, 12);
        let without_fin = copy_and_change(link, packet, |copy| {
            write_u16(copy, header.transport + 12, flags & !FIN);
        });
        let Some(payload) = without_fin else {
            // The peer retransmits the segment.
            return;
        };
        let memory = link.memory.clone();
        self.input_for_connection(link, now, index, header, memory.bytes(&payload));
        link.pool.free(payload);

        let head = usize::from(flags >> 12) * 4;
        let fin_sequence = read_u32(segment, 4).wrapping_add((segment.len() - head) as u32);
        if self.connections[index as usize].next_sequence() != Some(fin_sequence) {
            return;
        }
        if let Some(end) =
            HeadersOnly::ack_of(fin_sequence, header, packet).map(HeadersOnly::with_fin)
        {
            let end = end.packet();
            let header = IpHeader {
                end: end.len(),
                ..*header
            };
            self.input_for_connection(link, now, index, &header, end);
        }
    }

    /// Processes a segment of a connection.
    #[inline(always)]
    fn input_for_connection(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
        header: &IpHeader,
        packet: &[u8],
    ) {
        let segment = &packet[header.transport..header.end];
        let flags = read_u16(segment, 12);
        link.counters.tcp.connection_steps += 1;
        let connection = &mut self.connections[index as usize];
        if flags & SYN != 0 {
            let first_sequence = read_u32(segment, 4);
            if matches!(connection.socket().state(), State::Listen | State::SynSent) {
                connection.read_sequence = first_sequence.wrapping_add(1);
                let max_payload = self.format.max_payload.for_version(header.to.is_ipv4());
                connection.on_syn(segment, max_payload, link.path_mtu_cache.get(header.from));
            }
        }
        if connection.acks_unsent_data(segment) && self.challenge_unsent_ack(link, now, index) {
            return;
        }
        let connection = &mut self.connections[index as usize];
        if let Some(headers_only) = connection.ack_before_fin(segment) {
            self.reset_duplicate_count(link, now, index, headers_only);
        }
        let connection = &mut self.connections[index as usize];
        let read_sequence = connection.read_sequence;
        if let Some(mut headers_only) =
            window_edge::ack_beyond_buffer(connection.socket(), read_sequence, header, packet)
        {
            self.feed(link, now, index, headers_only.packet());
            // A segment outside the window is acknowledged (RFC 9293, section 3.10.7.4); smoltcp
            // does so for one that lies before it.
            headers_only.decrement_sequence();
            self.feed(link, now, index, headers_only.packet());
            self.update_state(link, index);
            self.dirty.push(index);
            return;
        }
        if let Some(headers_only) =
            window_edge::ack_outside_window(connection.socket(), read_sequence, header, packet)
        {
            self.feed(link, now, index, headers_only.packet());
        }
        let connection = &mut self.connections[index as usize];
        if connection.has_deferred_fin()
            && let Some(headers_only) = connection.on_deferred_fin_acked(header, packet)
        {
            self.feed(link, now, index, headers_only.packet());
            self.update_state(link, index);
            self.dirty.push(index);
            return;
        }
        let replay = connection.on_ack(segment, link.now);
        match replay {
            None if flags & SYN != 0 => {
                self.feed_limited_syn(link, now, index, header, packet);
            }
            None => self.feed(link, now, index, packet),
            Some(replay) => self.replay_ack(link, now, index, replay, header, packet),
        }
        if let Some(watch) = &link.stage_watch {
            let head = usize::from(read_u16(segment, 12) >> 12) * 4;
            if segment.len() > head
                && let Some(queued) = watch.read_stage_clock()
            {
                self.connections[index as usize].arrival_times = Some((link.arrived_at, queued));
            }
        }
        self.update_state(link, index);
        self.dirty.push(index);
    }

    /// Feeds smoltcp a SYN that announces no larger segments than this end sends and receives:
    /// smoltcp acknowledges at once what exceeds one segment of the announced size.
    #[cold]
    fn feed_limited_syn(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
        header: &IpHeader,
        packet: &[u8],
    ) {
        let max_mss = self.format.max_payload.for_version(header.to.is_ipv4());
        let limited_syn = HeadersOnly::syn_with_mss(header, packet, max_mss);
        let packet = limited_syn.as_ref().map_or(packet, HeadersOnly::packet);
        self.feed(link, now, index, packet);
    }

    /// Feeds smoltcp a packet for a connection.
    #[inline(always)]
    pub(super) fn feed(&mut self, link: &mut LinkLayer, now: Instant, index: u32, packet: &[u8]) {
        let connection = &mut self.connections[index as usize];
        let socket = Some(connection.id(index));
        let (set, send_state) = connection.set_and_send_state();
        let mut device = SmoltcpDevice {
            packet: Some(packet),
            link,
            format: &self.format,
            send_state,
            socket,
        };
        self.interface.poll_ingress_single(now, &mut device, set);
    }

    /// Feeds smoltcp an acknowledgement in the form that `replay_ack` selects.
    #[cold]
    fn replay_ack(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
        replay: AckReplay,
        header: &IpHeader,
        packet: &[u8],
    ) {
        let has_congestion_control = self.settings.congestion_control != CongestionAlgorithm::None;
        let headers_only = |layer: &mut Self| {
            let expected = layer.connections[index as usize].replay_sequence()?;
            HeadersOnly::ack_of(expected, header, packet)
        };
        match replay {
            AckReplay::WithWindow(window) => match headers_only(self) {
                Some(mut headers_only) => {
                    headers_only.set_window(window);
                    self.feed(link, now, index, headers_only.packet());
                }
                None => self.feed(link, now, index, packet),
            },
            AckReplay::Split {
                from,
                step: step_bytes,
            } => {
                let connection = &mut self.connections[index as usize];
                if has_congestion_control
                    && connection.is_cwnd_limited
                    && let Some(mut headers_only) = headers_only(self)
                {
                    let to = read_u32(packet, header.transport + 8);
                    let steps = (to.wrapping_sub(from) - 1) / step_bytes;
                    for step in 1..=steps.min(MAX_ACK_STEPS) {
                        headers_only.set_number(from.wrapping_add(step * step_bytes));
                        self.feed(link, now, index, headers_only.packet());
                    }
                }
                self.feed(link, now, index, packet);
            }
            AckReplay::Outdated(window) => {
                let Some(number) = self.connections[index as usize].acknowledged_number() else {
                    return;
                };
                self.feed_changed(link, now, index, packet, |copy| {
                    let tcp = &mut copy[header.transport..];
                    tcp[8..12].copy_from_slice(&number.to_be_bytes());
                    write_u16(tcp, 14, window);
                });
            }
            AckReplay::Duplicate | AckReplay::DuplicateAfterOther => {
                self.feed(link, now, index, packet);
                if let Some(headers_only) = headers_only(self) {
                    self.feed_duplicates(link, now, index, headers_only, replay);
                }
            }
        }
    }

    /// Feeds smoltcp a changed copy of a packet; without a free buffer the packet is lost.
    #[cold]
    fn feed_changed(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
        packet: &[u8],
        change: impl FnOnce(&mut [u8]),
    ) {
        let Some(frame) = copy_and_change(link, packet, change) else {
            return;
        };
        let memory = link.memory.clone();
        self.feed(link, now, index, memory.bytes(&frame));
        link.pool.free(frame);
    }

    /// Feeds smoltcp an acknowledgement until it has counted three duplicates.
    #[cold]
    pub(super) fn feed_duplicates(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
        mut headers_only: HeadersOnly,
        replay: AckReplay,
    ) {
        let announced_window = headers_only.window();
        // A different window makes smoltcp start a new count.
        let other_window = if announced_window > 1 {
            announced_window - 1
        } else {
            2
        };
        let windows: &[u16] = match replay {
            AckReplay::DuplicateAfterOther => &[
                other_window,
                announced_window,
                announced_window,
                announced_window,
                announced_window,
            ],
            _ => &[announced_window; 3],
        };
        // smoltcp sends nothing into a closed window.
        for &announced_window in windows.iter().filter(|_| announced_window > 0) {
            headers_only.set_window(announced_window);
            self.feed(link, now, index, headers_only.packet());
        }
    }

    /// Resets smoltcp's count of duplicates, whatever window it has: an acknowledgement with a
    /// different window is no duplicate to it.
    #[cold]
    fn reset_duplicate_count(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
        mut headers_only: HeadersOnly,
    ) {
        for window in [1, 2] {
            headers_only.set_window(window);
            self.feed(link, now, index, headers_only.packet());
        }
    }

    /// Handles changes of a connection after a segment or a deadline.
    pub(super) fn update_state(&mut self, link: &mut LinkLayer, index: u32) {
        let connection = &mut self.connections[index as usize];
        let state = connection.socket().state();
        let previous_state = std::mem::replace(&mut connection.state, state);
        let owner = connection.owner;
        if owner == ConnectionOwner::Orphaned {
            // No application reads the data, which must not fill the window for good.
            if connection.socket().can_recv() {
                connection.abort();
            }
            let unacked_bytes = connection.socket().send_queue();
            if std::mem::replace(&mut connection.orphan_unacked_bytes, unacked_bytes)
                != unacked_bytes
                || state != previous_state
            {
                connection.since = link.now;
            }
            if state == State::TimeWait && previous_state != State::TimeWait {
                // `reclaim_time_wait` can free it.
                self.reclaim_failed_at = None;
            }
            return;
        }
        if state != previous_state {
            let is_opening =
                |state| matches!(state, State::Listen | State::SynSent | State::SynReceived);
            if is_opening(previous_state) && !is_opening(state) && state != State::Closed {
                connection.was_established = true;
                if let ConnectionOwner::Listener(at) = owner {
                    self.enqueue_established(index, at);
                }
            } else if is_opening(previous_state)
                && (state == State::Closed || state == State::Listen)
            {
                // A socket that returned to the LISTEN state counts, too.
                link.counters.tcp.attempt_fails += 1;
                if let ConnectionOwner::Listener(at) = owner {
                    self.remove_pending(index, at);
                    let connection = &mut self.connections[index as usize];
                    connection.orphan(link.now);
                    connection.socket().abort();
                    return;
                }
            } else if state == State::Closed {
                connection.count_close(previous_state, &mut link.counters);
            }
        }
        if owner == ConnectionOwner::Application {
            self.ready.push(index);
        }
    }

    /// Sends for connections while the ring has space, and handles expired timers.
    pub(crate) fn poll(&mut self, link: &mut LinkLayer) {
        while let Some(index) = self.timers.pop_expired(link.now) {
            self.dirty.push(index);
        }
        for _ in 0..link.syn_acks_left() {
            let Some(index) = self.waiting_syn_acks.pop() else {
                break;
            };
            // In front of later ones, which would otherwise be served first during a flood.
            self.dirty.push_front(index);
        }
        if self.dirty.is_empty() {
            return;
        }
        let now = self.clock.smoltcp_instant(link.now);
        let has_congestion_control = self.settings.congestion_control != CongestionAlgorithm::None;
        let mut idle = 0;
        while idle < self.dirty.len() && link.can_send() {
            let Some(index) = self.dirty.pop() else {
                break;
            };
            if self.connections[index as usize].owner == ConnectionOwner::Free {
                continue;
            }
            link.counters.tcp.connection_steps += 1;
            // Before anything is sent for a connection that has timed out.
            if self.expire_connection(link, index) {
                continue;
            }
            // The source of a SYN may be forged: until the connection is established, segments to
            // it count as replies.
            link.is_replying = self.half_open_listener(index).is_some();
            if link.is_replying && !link.may_send_syn_ack() {
                self.waiting_syn_acks.push(index);
                continue;
            }
            if self.connections[index as usize].has_deferred_fin()
                && let Some(headers_only) = self.connections[index as usize].apply_deferred_fin()
            {
                self.feed(link, now, index, headers_only.packet());
            }
            if let Some(slack) = self.settings.tail_probe {
                self.send_tail_probe(link, now, index, slack);
            }
            let connection = &mut self.connections[index as usize];
            let lost_end = connection.take_lost_fin();
            let super_segments = self.super_segments.as_ref();
            let sendable = super_segments.map_or(0, |super_segments| {
                super_segments.sendable_bytes(connection, has_congestion_control)
            });
            let socket = Some(connection.id(index));
            let (set, send_state) = connection.set_and_send_state();
            // Only the FIN is left to be retransmitted, so a timeout costs nothing: smoltcp is
            // polled with the time of its timer.
            let timer = lost_end.then(|| self.interface.poll_at(now, set)).flatten();
            let timer = timer.map(|timer| timer.max(now));
            let mut device = SmoltcpDevice {
                packet: None,
                link,
                format: &self.format,
                send_state,
                socket,
            };
            // Several segments at a time: the connection is looked up once and is in the cache.
            let mut state = PollResult::SocketStateChanged;
            if let Some(timer) = timer {
                self.interface.poll_egress(timer, &mut device, set);
            }
            let mut segments_left = MAX_SEGMENTS_PER_VISIT;
            if sendable > 0
                && let Some(super_segments) = &mut self.super_segments
            {
                (segments_left, state) = super_segments.send(now, &mut device, set, sendable);
            }
            for _ in 0..segments_left {
                state = self.interface.poll_egress(now, &mut device, set);
                if state == PollResult::None || !device.link.can_send() {
                    break;
                }
            }
            if state == PollResult::SocketStateChanged {
                idle = 0;
                self.dirty.push(index);
                continue;
            }
            self.connections[index as usize].note_cwnd_limited();
            if has_congestion_control && self.super_segments.is_some() {
                self.connections[index as usize].note_max_flight();
            }
            if self.connections[index as usize].socket().state()
                != self.connections[index as usize].state
            {
                self.update_state(link, index);
            }
            if let Some(slack) = self.settings.tail_probe
                && let Some(at) = self.connections[index as usize].on_sent(link.now, slack)
            {
                self.timers.arm(index, at);
            }
            let (set, _) = self.connections[index as usize].set_and_send_state();
            let next = self.interface.poll_at(now, set);
            if self.connections[index as usize].resend_attempts > 0
                && next.is_none_or(|at| at > now)
            {
                self.force_timeout(link, index, next);
            }
            let next = match next {
                None if self.connections[index as usize].waits_for_window() => {
                    self.start_window_probe(link, now, index)
                }
                next => next,
            };
            match next {
                // A segment that has to wait for space is tried again in the next poll.
                Some(at) if at <= now => {
                    idle += 1;
                    self.dirty.push(index);
                }
                Some(at) => self.timers.arm(index, self.clock.stack_time(at)),
                None => self.finish_if_closed(index),
            }
        }
        link.is_replying = false;
    }

    /// Makes smoltcp's retransmission timeout expire: the segments in flight were too long and are
    /// lost.
    #[cold]
    fn force_timeout(&mut self, link: &mut LinkLayer, index: u32, next: Option<Instant>) {
        let connection = &mut self.connections[index as usize];
        connection.resend_attempts -= 1;
        let Some(deadline) = next.filter(|_| connection.socket().send_queue() > 0) else {
            connection.resend_attempts = 0;
            return;
        };
        let had_timed_out = std::mem::take(&mut connection.set_and_send_state().1.timed_out);
        self.send_one(link, deadline, index);
        let connection = &mut self.connections[index as usize];
        let timed_out = &mut connection.set_and_send_state().1.timed_out;
        if std::mem::replace(timed_out, *timed_out || had_timed_out) {
            connection.resend_attempts = 0;
        }
        self.dirty.push(index);
    }

    /// Makes smoltcp probe the peer's window, and returns when it will. smoltcp starts probing when
    /// the window closes behind what was sent, and stops if the window has shrunk and the timeout
    /// of the data beyond it expires. Both ends would then be silent for ever (RFC 9293, section
    /// 3.8.6, MUST-35).
    #[cold]
    fn start_window_probe(
        &mut self,
        link: &mut LinkLayer,
        now: Instant,
        index: u32,
    ) -> Option<Instant> {
        if let Some(headers_only) = self.connections[index as usize].zero_window_ack() {
            self.feed(link, now, index, headers_only.packet());
        }
        let (set, _) = self.connections[index as usize].set_and_send_state();
        self.interface.poll_at(now, set)
    }

    /// Makes smoltcp send at most one segment of a connection.
    fn send_one(&mut self, link: &mut LinkLayer, now: Instant, index: u32) {
        let connection = &mut self.connections[index as usize];
        let socket = Some(connection.id(index));
        let (set, send_state) = connection.set_and_send_state();
        let mut device = SmoltcpDevice {
            packet: None,
            link,
            format: &self.format,
            send_state,
            socket,
        };
        self.interface.poll_egress(now, &mut device, set);
    }

    /// Sends a tail loss probe if one is due.
    #[inline]
    fn send_tail_probe(&mut self, link: &mut LinkLayer, now: Instant, index: u32, slack: Nanos) {
        if let Some(headers_only) = self.connections[index as usize].tail_probe(link.now, slack) {
            self.feed_duplicates(
                link,
                now,
                index,
                headers_only,
                AckReplay::DuplicateAfterOther,
            );
        }
    }

    /// Frees an idle connection if it is closed.
    fn finish_if_closed(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if connection.owner != ConnectionOwner::Orphaned {
            return;
        }
        if connection.socket().state() == State::Closed {
            self.free_connection(index);
        } else {
            self.timers.arm(index, connection.since + ORPHAN_TIMEOUT_NS);
        }
    }

    /// Gives up half-open and orphaned connections after their timeout; returns whether the
    /// connection is free now.
    fn expire_connection(&mut self, link: &mut LinkLayer, index: u32) -> bool {
        if let Some(at) = self.half_open_listener(index) {
            let deadline = self.connections[index as usize].since + HALF_OPEN_TIMEOUT_NS;
            if link.now >= deadline {
                self.drop_half_open(link, index, at);
                return true;
            }
            self.timers.arm(index, deadline);
            return false;
        }
        let connection = &mut self.connections[index as usize];
        if connection.owner == ConnectionOwner::Orphaned
            && link.now >= connection.since + ORPHAN_TIMEOUT_NS
        {
            connection.reset(&mut link.counters);
        }
        false
    }

    /// Frees a connection.
    pub(super) fn free_connection(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        connection.owner = ConnectionOwner::Free;
        connection.socket().abort();
        self.timers.disarm(index);
        self.remove_from_table(index);
        self.free.push(index);
    }

    /// Removes a connection from the table, so that another one can use its addresses.
    pub(super) fn remove_from_table(&mut self, index: u32) {
        let connection = &self.connections[index as usize];
        let hash = self.pair_hash(connection.local, connection.remote);
        let connections = &self.connections;
        let seed = self.seed;
        self.table.remove(hash, index, |other_connection| {
            let other_connection = &connections[other_connection as usize];
            super::pair_hash(seed, other_connection.local, other_connection.remote)
        });
        self.last_connection = u32::MAX;
    }

    /// Returns the next deadline of a connection.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.timers.next_deadline()
    }

    /// Returns whether connections have work in the next poll.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.waiting_syn_acks.is_empty()
    }

    /// Returns the number of connections that are not free.
    pub(crate) fn connections_in_use(&self) -> usize {
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
            if connection.owner == ConnectionOwner::Application {
                return Some(SocketId {
                    kind: SocketKind::Tcp,
                    index,
                    generation: connection.generation,
                });
            }
        }
    }
}
