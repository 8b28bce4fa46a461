//! TCP connection: a smoltcp socket with the state that smoltcp does not keep.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Poll;

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp;
use smoltcp::socket::tcp::{SocketBuffer, State};

use super::recovery::{AckReplay, LossRecovery, sequence_distance};
use super::smoltcp_device::SendState;
use super::window_edge;
use super::window_edge::HeadersOnly;
use crate::counters::Counters;
use crate::error::StackError;
use crate::path_mtu_cache::PathMtu;
use crate::socket::{SocketId, SocketKind, TcpState, UnreachableReason};
use crate::wire::ip::IpHeader;
use crate::wire::{ACK, RST, SYN, TCP_BYTES, ip, read_u16, read_u32};
use crate::{Nanos, prefault};

/// Owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionOwner {
    /// Free.
    Free,
    /// Application.
    Application,
    /// Listener with this index, until the connection is accepted.
    Listener(u32),
    /// Orphaned: closed by its owner, and still closing on the wire.
    Orphaned,
}

pub(crate) struct TcpConnection {
    set: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) generation: u32,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) owner: ConnectionOwner,
    /// Socket state at the last update.
    pub(super) state: State,
    /// Was established.
    pub(super) was_established: bool,
    /// The application has finished sending.
    pub(super) send_finished: bool,
    /// Bytes that the application has written, modulo 2^32.
    pub(super) written_bytes: u32,
    /// Time when it started; for an orphan, when it was orphaned or last made progress. Both states
    /// have a timeout.
    pub(super) since: Nanos,
    /// Unacknowledged bytes of an orphan at the last update.
    pub(super) orphan_unacked_bytes: usize,
    /// Links in the lists of its listener: next in the half-open list or accept queue, and previous
    /// in the half-open list.
    pub(super) next: Option<u32>,
    pub(super) previous: Option<u32>,
    /// Sequence number of the next byte that the application reads.
    pub(super) read_sequence: u32,
    /// Send variables.
    send_state: SendState,
    /// Loss recovery.
    recovery: LossRecovery,
    /// Last ICMP error, and its sender.
    pub(super) icmp_error: Option<(UnreachableReason, IpAddr)>,
    /// Remaining attempts to force a retransmission of segments that were too long for the path.
    pub(super) resend_attempts: u8,
    /// Limited by the congestion window when it last sent.
    pub(super) is_cwnd_limited: bool,
    /// Largest flight since the last loss, in bytes: the congestion window is at least this.
    max_flight: u32,
    /// Arrival of the last payload at the port and in the buffer, if stages are watched.
    pub(super) arrival_times: Option<(Nanos, Nanos)>,
}

const UNSPECIFIED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl TcpConnection {
    /// Heap memory of a set of one socket, in bytes.
    pub(super) const SET_BYTES: usize = size_of::<SocketStorage<'static>>();

    pub(super) fn new(receive_window: usize, send_buffer: usize) -> Self {
        let buffer = |bytes| SocketBuffer::new(prefault::filled(bytes));
        let socket = tcp::Socket::new(buffer(receive_window), buffer(send_buffer));
        let mut set = SocketSet::new(vec![SocketStorage::EMPTY]);
        let handle = set.add(socket);
        Self {
            set,
            handle,
            generation: 0,
            local: UNSPECIFIED,
            remote: UNSPECIFIED,
            owner: ConnectionOwner::Free,
            state: State::Closed,
            was_established: false,
            send_finished: false,
            written_bytes: 0,
            since: 0,
            orphan_unacked_bytes: 0,
            next: None,
            previous: None,
            read_sequence: 0,
            send_state: SendState::default(),
            recovery: LossRecovery::default(),
            icmp_error: None,
            resend_attempts: 0,
            is_cwnd_limited: false,
            max_flight: 0,
            arrival_times: None,
        }
    }

    #[inline]
    pub(super) fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.set.get_mut(self.handle)
    }

    /// Returns the socket set and the send variables.
    #[inline]
    pub(super) fn set_and_send_state(&mut self) -> (&mut SocketSet<'static>, &mut SendState) {
        (&mut self.set, &mut self.send_state)
    }

    /// Returns the socket id of the connection at this index.
    #[inline]
    pub(super) fn id(&self, index: u32) -> SocketId {
        SocketId {
            kind: SocketKind::Tcp,
            index,
            generation: self.generation,
        }
    }

    pub(super) fn reset_for(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        owner: ConnectionOwner,
        now: Nanos,
    ) {
        self.since = now;
        (self.local, self.remote, self.owner) = (local, remote, owner);
        (self.was_established, self.send_finished) = (false, false);
        (self.next, self.previous) = (None, None);
        (self.send_state, self.arrival_times, self.written_bytes) = (SendState::default(), None, 0);
        self.recovery = LossRecovery::default();
        (
            self.icmp_error,
            self.resend_attempts,
            self.is_cwnd_limited,
            self.max_flight,
        ) = (None, 0, false, 0);
    }

    /// Processes the acknowledgement of a segment; returns how to replay it to smoltcp.
    #[inline]
    pub(super) fn on_ack(&mut self, segment: &[u8], now: Nanos) -> Option<AckReplay> {
        self.recovery.on_ack(segment, &mut self.send_state, now)
    }

    /// Records segments that may have left; returns when a tail loss probe is due.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Nanos, slack: Nanos) -> Option<Nanos> {
        self.recovery.on_sent(&self.send_state, now);
        let at = self.recovery.probe_deadline(&self.send_state, slack)?;
        self.replay_sequence().map(|_| at)
    }

    /// Returns an acknowledgement that makes smoltcp retransmit its first segment, if a tail loss
    /// probe is due.
    pub(super) fn tail_probe(&mut self, now: Nanos, slack: Nanos) -> Option<HeadersOnly> {
        // Segments just sent restart the timer.
        self.recovery.on_sent(&self.send_state, now);
        self.recovery
            .probe_deadline(&self.send_state, slack)
            .filter(|deadline| *deadline <= now)?;
        self.retransmit_ack()
    }

    /// Returns an acknowledgement that makes smoltcp retransmit an MTU probe which a router
    /// reported as dropped, once everything before it is acknowledged.
    #[cold]
    pub(super) fn resend_dropped_probe(&mut self) -> Option<HeadersOnly> {
        let from = self.send_state.dropped_probe?;
        let is_first = self.recovery.is_acknowledged_up_to(from);
        is_first.then(|| self.retransmit_ack())?
    }

    /// Returns an acknowledgement that makes smoltcp retransmit its first segment.
    fn retransmit_ack(&mut self) -> Option<HeadersOnly> {
        let expected = self.replay_sequence()?;
        let (number, window) = self.recovery.record_probe(&mut self.send_state)?;
        let addresses = (self.remote, self.local);
        Some(HeadersOnly::crafted_ack(
            addresses, expected, number, window,
        ))
    }

    /// Processes a SYN or SYN-ACK. `max_payload` is the maximum payload of segments on the local
    /// link, and `path` the entry of the path MTU cache.
    pub(super) fn on_syn(&mut self, segment: &[u8], max_payload: u16, path: Option<PathMtu>) {
        self.recovery.on_syn(segment);
        self.send_state.peer_mss = window_edge::peer_mss(segment);
        let local_limit = self.longest_packet(max_payload);
        if let Some(path) = path.filter(|path| path.mtu < local_limit) {
            self.send_state.set_path_mtu(path.mtu, path.expires_at);
        }
    }

    /// Returns the longest packet that leaves if the path does not limit it, in bytes.
    fn longest_packet(&self, max_payload: u16) -> u16 {
        let headers = ip::header_bytes(self.remote.ip()) + TCP_BYTES;
        max_payload.min(self.send_state.peer_mss) + headers as u16
    }

    /// Ends the stream after the data in the buffer. If the peer has finished already, smoltcp does
    /// not get the FIN while data is unacknowledged: in LAST-ACK it would not count duplicates, and
    /// losses could only wait for the timeout. The last segment carries the FIN all the same.
    pub(super) fn end_stream(&mut self) {
        let end = self
            .send_state
            .first_sequence
            .wrapping_add(self.written_bytes);
        let socket = self.socket();
        if socket.state() == State::CloseWait && socket.send_queue() > 0 {
            // Without Nagle's algorithm the last bytes leave at once.
            socket.set_nagle_enabled(false);
            self.send_state.deferred_fin = Some(end);
        } else {
            socket.close();
        }
    }

    /// Returns whether the stream has an end that smoltcp does not have yet.
    #[inline]
    pub(super) fn has_deferred_fin(&self) -> bool {
        self.send_state.deferred_fin.is_some()
    }

    /// Passes the FIN to smoltcp once no data is left that could be lost. If data is left and all
    /// of it was sent before the FIN was decided, returns a segment that makes smoltcp send a
    /// reply, which can carry the FIN.
    #[cold]
    pub(super) fn apply_deferred_fin(&mut self) -> Option<HeadersOnly> {
        let end = self.send_state.deferred_fin?;
        let (state, unacked_bytes) = (self.socket().state(), self.socket().send_queue() as u32);
        if state != State::CloseWait || unacked_bytes == 0 {
            self.send_state.deferred_fin = None;
            let left_without_data = !self.send_state.fin_left_with_data;
            self.send_state.skips_redundant_fin =
                left_without_data && self.send_state.snd_nxt == Some(end.wrapping_add(1));
            self.socket().close();
            return None;
        }
        if self.send_state.snd_nxt != Some(end)
            || std::mem::replace(&mut self.send_state.fin_requested, true)
        {
            return None;
        }
        let previous_sequence = self.expected_sequence()?.wrapping_sub(1);
        let addresses = (self.remote, self.local);
        Some(HeadersOnly::old_byte(
            addresses,
            previous_sequence,
            end.wrapping_sub(unacked_bytes),
        ))
    }

    /// Returns true, once, if the FIN has to be retransmitted and smoltcp would wait for its
    /// timeout.
    #[inline]
    pub(super) fn take_lost_fin(&mut self) -> bool {
        self.send_state.fin_left_with_data
            && self.socket().send_queue() == 0
            && matches!(
                self.socket().state(),
                State::FinWait1 | State::Closing | State::LastAck
            )
            && std::mem::take(&mut self.send_state.fin_left_with_data)
    }

    /// Handles an acknowledgement that repeats: it covers all data and not the FIN, as replies to
    /// superfluous retransmissions do. At the third one smoltcp would stop its timer, find no data
    /// to retransmit, and never send the FIN again. Returns the same acknowledgement, to reset
    /// smoltcp's count.
    #[inline]
    pub(super) fn ack_before_fin(&mut self, segment: &[u8]) -> Option<HeadersOnly> {
        let socket = self.socket();
        let is_waiting = matches!(socket.state(), State::FinWait1 | State::Closing);
        if !is_waiting || socket.send_queue() > 0 {
            return None;
        }
        let number = self.acknowledged_number()?;
        if window_edge::acknowledged_number(segment) != Some(number) {
            return None;
        }
        let addresses = (self.remote, self.local);
        Some(HeadersOnly::crafted_ack(
            addresses,
            self.expected_sequence()?,
            number,
            0,
        ))
    }

    /// Handles an acknowledgement of a FIN that smoltcp does not have: passes the FIN on and
    /// returns the segment to use instead.
    #[cold]
    pub(super) fn on_deferred_fin_acked(
        &mut self,
        header: &IpHeader,
        packet: &[u8],
    ) -> Option<HeadersOnly> {
        let fin_number = self.send_state.deferred_fin?.wrapping_add(1);
        let segment = &packet[header.transport..header.end];
        if self.send_state.snd_nxt != Some(fin_number)
            || window_edge::acknowledged_number(segment) != Some(fin_number)
        {
            return None;
        }
        let headers_only = HeadersOnly::ack_of(self.expected_sequence()?, header, packet)?;
        self.send_state.deferred_fin = None;
        self.socket().close();
        Some(headers_only)
    }

    /// Records, after all that may leave has left, whether a full segment had to stay. Data written
    /// later was not held back.
    #[inline]
    pub(super) fn note_cwnd_limited(&mut self) {
        let end = self
            .send_state
            .first_sequence
            .wrapping_add(self.written_bytes);
        let least = self.send_state.max_payload.max(1) as i32;
        self.is_cwnd_limited =
            (self.send_state.snd_nxt).is_some_and(|up_to| sequence_distance(end, up_to) >= least);
    }

    /// Returns whether no loss is known.
    #[inline]
    fn has_no_loss(&self) -> bool {
        self.recovery.has_no_loss() && !self.send_state.timed_out
    }

    /// Records, after all that may leave has left, the bytes in flight.
    #[inline]
    pub(super) fn note_max_flight(&mut self) {
        let flight =
            (self.send_state.snd_nxt).and_then(|up_to| self.recovery.bytes_in_flight(up_to));
        self.max_flight = match self.has_no_loss() {
            true => self.max_flight.max(flight.unwrap_or(0)),
            false => 0,
        };
    }

    /// Returns the bytes that may leave now in full segments with `segment_payload` bytes of
    /// payload; less than `min_bytes` written bytes count as none. They are limited by the data
    /// written, the peer's window and, if `has_congestion_control`, the congestion window, of which
    /// only the largest flight so far is known. Zero during loss recovery, or if segments of that
    /// size exceed the peer's limit or the path MTU.
    #[inline]
    pub(super) fn full_segment_bytes(
        &self,
        segment_payload: u16,
        min_bytes: u32,
        has_congestion_control: bool,
    ) -> usize {
        let Some(up_to) = self.send_state.snd_nxt else {
            return 0;
        };
        let bytes_until = |end: u32| sequence_distance(end, up_to).max(0) as u32;
        let unsent = bytes_until(
            self.send_state
                .first_sequence
                .wrapping_add(self.written_bytes),
        );
        if unsent < min_bytes {
            return 0;
        }
        let is_unrestricted = self.remote.is_ipv4()
            && self.send_state.peer_mss >= segment_payload
            && self.send_state.path_mtu == 0
            && !self.send_state.is_length_suspected();
        if !is_unrestricted || !self.has_no_loss() {
            return 0;
        }
        let (Some(flight), Some(window)) = (
            self.recovery.bytes_in_flight(up_to),
            self.recovery.window_end(),
        ) else {
            return 0;
        };
        let sendable = unsent.min(bytes_until(window));
        let cwnd_bytes = self.max_flight.saturating_sub(flight);
        let cwnd_limit = if has_congestion_control {
            cwnd_bytes
        } else {
            u32::MAX
        };
        sendable.min(cwnd_limit) as usize
    }

    /// Returns the sequence number for replayed acknowledgements, if smoltcp has data to
    /// retransmit. With only a FIN it would stop its timer and send nothing.
    #[inline]
    pub(super) fn replay_sequence(&mut self) -> Option<u32> {
        match self.socket().send_queue() {
            0 => None,
            _ => self.expected_sequence(),
        }
    }

    /// Returns the sequence number that smoltcp expects next from the peer, in states in which it
    /// counts duplicates.
    fn expected_sequence(&mut self) -> Option<u32> {
        use State::{CloseWait, Closing, Established, FinWait1};
        let counts_duplicates = matches!(
            self.socket().state(),
            Established | FinWait1 | CloseWait | Closing
        );
        counts_duplicates.then(|| self.next_sequence())?
    }

    /// Returns the sequence number that is expected next from the peer (RCV.NXT), if known.
    pub(super) fn next_sequence(&mut self) -> Option<u32> {
        let fin_bytes = match self.socket().state() {
            State::SynReceived | State::Established | State::FinWait1 | State::FinWait2 => 0,
            State::CloseWait | State::Closing | State::LastAck | State::TimeWait => 1,
            State::Closed | State::Listen | State::SynSent => return None,
        };
        let buffered = self.socket().recv_queue() as u32;
        Some(
            self.read_sequence
                .wrapping_add(buffered)
                .wrapping_add(fin_bytes),
        )
    }

    /// Returns whether a sequence number lies beyond all that the peer has used.
    pub(super) fn is_beyond_received(&mut self, number: u32) -> bool {
        let next = self.next_sequence();
        next.is_some_and(|next| number.wrapping_sub(next) as i32 >= 0)
    }

    /// Returns the acknowledged sequence number (SND.UNA) as smoltcp has it.
    pub(super) fn acknowledged_number(&mut self) -> Option<u32> {
        self.send_state.snd_nxt?;
        let end = self
            .send_state
            .first_sequence
            .wrapping_add(self.written_bytes);
        Some(match self.socket().state() {
            State::FinWait2 | State::TimeWait => end.wrapping_add(1),
            _ => end.wrapping_sub(self.socket().send_queue() as u32),
        })
    }

    /// Returns whether the segment with this sequence number was sent and is unacknowledged.
    pub(super) fn is_in_flight(&mut self, number: u32) -> bool {
        let (Some(up_to), Some(acknowledged)) =
            (self.send_state.snd_nxt, self.acknowledged_number())
        else {
            return false;
        };
        let syn_bytes = match self.socket().state() {
            State::Closed | State::Listen => return false,
            State::SynSent | State::SynReceived => 1,
            _ => 0,
        };
        let start = acknowledged.wrapping_sub(syn_bytes);
        number.wrapping_sub(start) < up_to.wrapping_sub(start)
    }

    /// Limits packets to a path MTU; `max_payload` is the maximum payload on the local link.
    /// Returns whether that is a reduction.
    pub(super) fn reduce_path_mtu(
        &mut self,
        mtu: u16,
        max_payload: u16,
        resend_attempts: u8,
        now: Nanos,
    ) -> bool {
        let current_mtu = match (self.send_state.mtu_probe, self.send_state.path_mtu) {
            // A longer MTU probe is in flight, and the path may be wider than known.
            (Some(trial), _) => trial.mtu,
            (None, 0) => self.longest_packet(max_payload),
            (None, current_mtu) => current_mtu,
        };
        let is_handshake = matches!(self.socket().state(), State::SynSent | State::SynReceived);
        if mtu >= current_mtu || is_handshake {
            return false;
        }
        // Segments in flight other than the probe are no longer than the known path MTU.
        self.send_state.dropped_probe = (self.send_state.mtu_probe)
            .filter(|_| mtu >= self.send_state.path_mtu)
            .map(|trial| trial.start);
        self.resend_attempts = match self.send_state.dropped_probe {
            Some(_) => 0,
            None => resend_attempts,
        };
        self.send_state
            .reduce_path_mtu(mtu, self.remote.is_ipv4(), now);
        true
    }

    /// Returns a reset of our SYN, as the peer would send it.
    pub(super) fn reset_of_syn(&mut self) -> Option<HeadersOnly> {
        let number = self.send_state.snd_nxt?;
        Some(HeadersOnly::crafted_ack((self.remote, self.local), 0, number, 0).with_rst())
    }

    /// Returns a keep-alive probe as the peer would send it: smoltcp replies with the positions of
    /// both streams, at most once a second on its clock.
    pub(super) fn keepalive_probe(&mut self) -> Option<HeadersOnly> {
        let previous_sequence = self.next_sequence()?.wrapping_sub(1);
        let number = self.acknowledged_number()?;
        Some(HeadersOnly::crafted_ack(
            (self.remote, self.local),
            previous_sequence,
            number,
            1,
        ))
    }

    /// Returns whether a segment acknowledges data that was not sent.
    #[inline]
    pub(super) fn acks_unsent_data(&self, segment: &[u8]) -> bool {
        let acknowledges = read_u16(segment, 12) & (SYN | RST | ACK) == ACK;
        let is_beyond = |up_to: u32| read_u32(segment, 8).wrapping_sub(up_to) as i32 > 0;
        acknowledges && self.send_state.snd_nxt.is_some_and(is_beyond)
    }

    /// Returns whether data waits for the peer to open its window.
    #[inline]
    pub(super) fn waits_for_window(&mut self) -> bool {
        self.send_state.window_closed && self.socket().send_queue() > 0
    }

    /// Returns the acknowledgement that closed the window, as the peer would repeat it.
    pub(super) fn zero_window_ack(&mut self) -> Option<HeadersOnly> {
        let addresses = (self.remote, self.local);
        Some(HeadersOnly::crafted_ack(
            addresses,
            self.expected_sequence()?,
            self.acknowledged_number()?,
            0,
        ))
    }

    /// Closes the connection at once, with a reset if the peer has it.
    pub(super) fn reset(&mut self, counters: &mut Counters) {
        let state = self.socket().state();
        self.count_close(state, counters);
        self.abort();
    }

    /// Closes the connection without counting it. After a timeout smoltcp sends from SND.UNA again,
    /// and a reset with that number would lie behind what the peer expects, which drops it (RFC
    /// 5961, section 3.2). So the number is SND.NXT, limited by the peer's window: a window probe
    /// beyond it was not accepted.
    pub(super) fn abort(&mut self) {
        let window_end = self.recovery.window_end();
        self.send_state.reset_sequence = self.send_state.snd_nxt.map(|up_to| match window_end {
            Some(window_end) if up_to.wrapping_sub(window_end) as i32 > 0 => window_end,
            _ => up_to,
        });
        self.socket().abort();
    }

    /// Counts an immediate close from this state as RFC 4022 and Linux's /proc/net/snmp do: a
    /// connection that was closed regularly, or is being closed, neither failed nor was reset.
    pub(super) fn count_close(&self, from: State, counters: &mut Counters) {
        match from {
            State::SynSent | State::SynReceived => counters.tcp.attempt_fails += 1,
            // The application may have finished before smoltcp has the FIN.
            State::Established | State::CloseWait if !self.send_finished => {
                counters.tcp.established_resets += 1;
            }
            _ => {}
        }
    }

    /// Orphans the connection: its socket ids become stale.
    pub(super) fn orphan(&mut self, now: Nanos) {
        self.since = now;
        self.owner = ConnectionOwner::Orphaned;
        self.generation = self.generation.wrapping_add(1);
    }

    pub(super) fn public_state(&mut self) -> TcpState {
        match self.socket().state() {
            State::Listen | State::SynSent | State::SynReceived => TcpState::Connecting,
            State::Established => TcpState::Established,
            State::CloseWait if self.send_finished => TcpState::Closing,
            State::CloseWait => TcpState::RemoteFinished,
            State::FinWait1 | State::FinWait2 => TcpState::LocalFinished,
            State::Closing | State::LastAck => TcpState::Closing,
            State::TimeWait | State::Closed => TcpState::Closed,
        }
    }

    /// Returns the result of a send call that is not possible.
    pub(super) fn send_error(&mut self) -> Poll<Result<usize, StackError>> {
        if self.send_finished {
            return Poll::Ready(Err(StackError::SendFinished));
        }
        self.closed_error()
    }

    /// Returns the result of a receive call that is not possible.
    pub(super) fn receive_error<R>(&mut self) -> Poll<Result<R, StackError>> {
        self.closed_error()
    }

    fn connect_error(&self) -> StackError {
        let remote = self.remote;
        match self.icmp_error {
            Some((reason, reporter)) if reason.is_final() => StackError::Unreachable {
                remote,
                reason,
                reporter,
            },
            _ => StackError::ConnectionRefused { remote },
        }
    }

    fn closed_error<R>(&mut self) -> Poll<Result<R, StackError>> {
        match self.socket().state() {
            State::Closed if self.was_established => Poll::Ready(Err(StackError::ConnectionReset)),
            State::Closed => Poll::Ready(Err(self.connect_error())),
            State::SynSent | State::SynReceived | State::Listen => Poll::Pending,
            _ => Poll::Ready(Err(StackError::ConnectionReset)),
        }
    }
}
