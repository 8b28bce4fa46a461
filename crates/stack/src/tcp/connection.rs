//! TCP connection: a smoltcp socket with the state that smoltcp does not keep.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Poll;

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{self, SocketBuffer, State};

use super::recovery::{Nudge, Recovery, ahead};
use super::smoltcp_device::Sent;
use super::window_edge::{self, Bare};
use crate::Nanos;
use crate::counters::Counters;
use crate::error::StackError;
use crate::pmtu_cache::Path;
use crate::prefault;
use crate::socket::{SocketId, SocketKind, TcpState, Unreachable};
use crate::wire::ip::{self, Header};
use crate::wire::{ACK, RST, SYN, TCP_BYTES, long, word};

/// Owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Free.
    Free,
    /// Application.
    Application,
    /// Listener with this index, until the connection is accepted.
    Listener(u32),
    /// Orphaned: closed by its owner, and still closing on the wire.
    Nobody,
}

pub(crate) struct Connection {
    set: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) generation: u32,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) owner: Owner,
    /// Socket state at the last update.
    pub(super) state: State,
    /// Was established.
    pub(super) stood: bool,
    /// The application has finished sending.
    pub(super) finished: bool,
    /// Bytes that the application has written, modulo 2^32.
    pub(super) written: u32,
    /// Time when it started; for an orphan, when it was orphaned or last made progress. Both states
    /// have a timeout.
    pub(super) since: Nanos,
    /// Unacknowledged bytes of an orphan at the last update.
    pub(super) left: usize,
    /// Links in the lists of its listener: next in the half-open list or accept queue, and previous
    /// in the half-open list.
    pub(super) next: Option<u32>,
    pub(super) before: Option<u32>,
    /// Sequence number of the next byte that the application reads.
    pub(super) far_base: u32,
    /// Send variables.
    sent: Sent,
    /// Loss recovery.
    recovery: Recovery,
    /// Last ICMP error, and its sender.
    pub(super) trouble: Option<(Unreachable, IpAddr)>,
    /// Remaining attempts to force a retransmission of segments that were too long for the path.
    pub(super) resend: u8,
    /// Limited by the congestion window when it last sent.
    pub(super) held: bool,
    /// Largest flight since the last loss, in bytes: the congestion window is at least this.
    carried: u32,
    /// Arrival of the last payload at the port and in the buffer, if stages are watched.
    pub(super) came: Option<(Nanos, Nanos)>,
}

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Connection {
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
            local: NOWHERE,
            remote: NOWHERE,
            owner: Owner::Free,
            state: State::Closed,
            stood: false,
            finished: false,
            written: 0,
            since: 0,
            left: 0,
            next: None,
            before: None,
            far_base: 0,
            sent: Sent::default(),
            recovery: Recovery::default(),
            trouble: None,
            resend: 0,
            held: false,
            carried: 0,
            came: None,
        }
    }

    #[inline]
    pub(super) fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.set.get_mut(self.handle)
    }

    /// Returns the socket set and the send variables.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut SocketSet<'static>, &mut Sent) {
        (&mut self.set, &mut self.sent)
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

    pub(super) fn begin(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        owner: Owner,
        now: Nanos,
    ) {
        self.since = now;
        (self.local, self.remote, self.owner) = (local, remote, owner);
        (self.stood, self.finished) = (false, false);
        (self.next, self.before) = (None, None);
        (self.sent, self.came, self.written) = (Sent::default(), None, 0);
        self.recovery = Recovery::default();
        (self.trouble, self.resend, self.held, self.carried) = (None, 0, false, 0);
    }

    /// Processes the acknowledgement of a segment; returns how to replay it to smoltcp.
    #[inline]
    pub(super) fn heard(&mut self, segment: &[u8], now: Nanos) -> Option<Nudge> {
        self.recovery.heard(segment, &mut self.sent, now)
    }

    /// Records segments that may have left; returns when a tail loss probe is due.
    #[inline]
    pub(super) fn left(&mut self, now: Nanos, slack: Nanos) -> Option<Nanos> {
        self.recovery.left(&self.sent, now);
        let at = self.recovery.probe_at(&self.sent, slack)?;
        self.nudged_at().map(|_| at)
    }

    /// Returns an acknowledgement that makes smoltcp retransmit its first segment, if a tail loss
    /// probe is due.
    pub(super) fn probe(&mut self, now: Nanos, slack: Nanos) -> Option<Bare> {
        // Segments just sent restart the timer.
        self.recovery.left(&self.sent, now);
        self.recovery
            .probe_at(&self.sent, slack)
            .filter(|due| *due <= now)?;
        self.again()
    }

    /// Returns an acknowledgement that makes smoltcp retransmit an MTU probe which a router
    /// reported as dropped, once everything before it is acknowledged.
    #[cold]
    pub(super) fn dropped(&mut self) -> Option<Bare> {
        let from = self.sent.dropped?;
        let is_first = self.recovery.is_at(from);
        is_first.then(|| self.again())?
    }

    /// Returns an acknowledgement that makes smoltcp retransmit its first segment.
    fn again(&mut self) -> Option<Bare> {
        let expected = self.nudged_at()?;
        let (number, window) = self.recovery.probe(&mut self.sent)?;
        let ends = (self.remote, self.local);
        Some(Bare::made(ends, expected, number, window))
    }

    /// Processes a SYN or SYN-ACK. `longest` is the maximum payload of segments on the local link,
    /// and `path` the entry of the path MTU cache.
    pub(super) fn greeted(&mut self, segment: &[u8], longest: u16, path: Option<Path>) {
        self.recovery.greeted(segment);
        self.sent.told = window_edge::told_mss(segment);
        let own = self.longest_packet(longest);
        if let Some(path) = path.filter(|path| path.mtu < own) {
            self.sent.known(path.mtu, path.until);
        }
    }

    /// Returns the longest packet that leaves if the path does not limit it, in bytes.
    fn longest_packet(&self, longest: u16) -> u16 {
        let headers = ip::header_bytes(self.remote.ip()) + TCP_BYTES;
        longest.min(self.sent.told) + headers as u16
    }

    /// Ends the stream after the data in the buffer. If the peer has finished already, smoltcp does
    /// not get the FIN while data is unacknowledged: in LAST-ACK it would not count duplicates, and
    /// losses could only wait for the timeout. The last segment carries the FIN all the same.
    pub(super) fn end(&mut self) {
        let end = self.sent.first.wrapping_add(self.written);
        let socket = self.socket();
        if socket.state() == State::CloseWait && socket.send_queue() > 0 {
            // Without Nagle's algorithm the last bytes leave at once.
            socket.set_nagle_enabled(false);
            self.sent.ends = Some(end);
        } else {
            socket.close();
        }
    }

    /// Returns whether the stream has an end that smoltcp does not have yet.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.sent.ends.is_some()
    }

    /// Passes the FIN to smoltcp once no data is left that could be lost. If data is left and all
    /// of it was sent before the FIN was decided, returns a segment that makes smoltcp send a
    /// reply, which can carry the FIN.
    #[cold]
    pub(super) fn tell_end(&mut self) -> Option<Bare> {
        let end = self.sent.ends?;
        let (state, left) = (self.socket().state(), self.socket().send_queue() as u32);
        if state != State::CloseWait || left == 0 {
            self.sent.ends = None;
            let left_alone = !self.sent.end_rode;
            self.sent.repeats_end = left_alone && self.sent.up_to == Some(end.wrapping_add(1));
            self.socket().close();
            return None;
        }
        if self.sent.up_to != Some(end) || std::mem::replace(&mut self.sent.asked_end, true) {
            return None;
        }
        let before = self.expected()?.wrapping_sub(1);
        let ends = (self.remote, self.local);
        Some(Bare::stale(ends, before, end.wrapping_sub(left)))
    }

    /// Returns true, once, if the FIN has to be retransmitted and smoltcp would wait for its
    /// timeout.
    #[inline]
    pub(super) fn lost_end(&mut self) -> bool {
        self.sent.end_rode
            && self.socket().send_queue() == 0
            && matches!(
                self.socket().state(),
                State::FinWait1 | State::Closing | State::LastAck
            )
            && std::mem::take(&mut self.sent.end_rode)
    }

    /// Handles an acknowledgement that repeats: it covers all data and not the FIN, as replies to
    /// superfluous retransmissions do. At the third one smoltcp would stop its timer, find no data
    /// to retransmit, and never send the FIN again. Returns the same acknowledgement, to reset
    /// smoltcp's count.
    #[inline]
    pub(super) fn repeats_before_end(&mut self, segment: &[u8]) -> Option<Bare> {
        let socket = self.socket();
        let waits = matches!(socket.state(), State::FinWait1 | State::Closing);
        if !waits || socket.send_queue() > 0 {
            return None;
        }
        let number = self.acknowledged()?;
        if window_edge::acknowledged(segment) != Some(number) {
            return None;
        }
        let ends = (self.remote, self.local);
        Some(Bare::made(ends, self.expected()?, number, 0))
    }

    /// Handles an acknowledgement of a FIN that smoltcp does not have: passes the FIN on and
    /// returns the segment to use instead.
    #[cold]
    pub(super) fn heard_end(&mut self, header: &Header, packet: &[u8]) -> Option<Bare> {
        let behind = self.sent.ends?.wrapping_add(1);
        let segment = &packet[header.body..header.end];
        if self.sent.up_to != Some(behind) || window_edge::acknowledged(segment) != Some(behind) {
            return None;
        }
        let bare = Bare::of(self.expected()?, header, packet)?;
        self.sent.ends = None;
        self.socket().close();
        Some(bare)
    }

    /// Records, after all that may leave has left, whether a full segment had to stay. Data written
    /// later was not held back.
    #[inline]
    pub(super) fn note_held(&mut self) {
        let end = self.sent.first.wrapping_add(self.written);
        let least = self.sent.largest.max(1) as i32;
        self.held = (self.sent.up_to).is_some_and(|up_to| ahead(end, up_to) >= least);
    }

    /// Returns whether no loss is known.
    #[inline]
    fn is_undisturbed(&self) -> bool {
        self.recovery.is_undisturbed() && !self.sent.timed_out
    }

    /// Records, after all that may leave has left, the bytes in flight.
    #[inline]
    pub(super) fn note_carried(&mut self) {
        let flight = (self.sent.up_to).and_then(|up_to| self.recovery.flight(up_to));
        self.carried = match self.is_undisturbed() {
            true => self.carried.max(flight.unwrap_or(0)),
            false => 0,
        };
    }

    /// Returns the bytes that may leave now in full segments with `each` bytes of payload; less
    /// than `least` written bytes count as none. They are limited by the data written, the peer's
    /// window and, if `controls`, the congestion window, of which only the largest flight so far is
    /// known. Zero during loss recovery, or if segments of that size exceed the peer's limit or the
    /// path MTU.
    #[inline]
    pub(super) fn room_for_whole(&self, each: u16, least: u32, controls: bool) -> usize {
        let Some(up_to) = self.sent.up_to else {
            return 0;
        };
        let until = |end: u32| ahead(end, up_to).max(0) as u32;
        let written = until(self.sent.first.wrapping_add(self.written));
        if written < least {
            return 0;
        }
        let usual = self.remote.is_ipv4()
            && self.sent.told >= each
            && self.sent.path_mtu == 0
            && !self.sent.is_suspected();
        if !usual || !self.is_undisturbed() {
            return 0;
        }
        let (Some(flight), Some(window)) =
            (self.recovery.flight(up_to), self.recovery.window_ends())
        else {
            return 0;
        };
        let room = written.min(until(window));
        let carried = self.carried.saturating_sub(flight);
        let most = if controls { carried } else { u32::MAX };
        room.min(most) as usize
    }

    /// Returns the sequence number for replayed acknowledgements, if smoltcp has data to
    /// retransmit. With only a FIN it would stop its timer and send nothing.
    #[inline]
    pub(super) fn nudged_at(&mut self) -> Option<u32> {
        match self.socket().send_queue() {
            0 => None,
            _ => self.expected(),
        }
    }

    /// Returns the sequence number that smoltcp expects next from the peer, in states in which it
    /// counts duplicates.
    fn expected(&mut self) -> Option<u32> {
        use State::{CloseWait, Closing, Established, FinWait1};
        let counts = matches!(
            self.socket().state(),
            Established | FinWait1 | CloseWait | Closing
        );
        counts.then(|| self.next_number())?
    }

    /// Returns the sequence number that is expected next from the peer (RCV.NXT), if known.
    pub(super) fn next_number(&mut self) -> Option<u32> {
        let ended = match self.socket().state() {
            State::SynReceived | State::Established | State::FinWait1 | State::FinWait2 => 0,
            State::CloseWait | State::Closing | State::LastAck | State::TimeWait => 1,
            State::Closed | State::Listen | State::SynSent => return None,
        };
        let queued = self.socket().recv_queue() as u32;
        Some(self.far_base.wrapping_add(queued).wrapping_add(ended))
    }

    /// Returns whether a sequence number lies beyond all that the peer has used.
    pub(super) fn is_beyond(&mut self, number: u32) -> bool {
        let next = self.next_number();
        next.is_some_and(|next| number.wrapping_sub(next) as i32 >= 0)
    }

    /// Returns the acknowledged sequence number (SND.UNA) as smoltcp has it.
    pub(super) fn acknowledged(&mut self) -> Option<u32> {
        self.sent.up_to?;
        let end = self.sent.first.wrapping_add(self.written);
        Some(match self.socket().state() {
            State::FinWait2 | State::TimeWait => end.wrapping_add(1),
            _ => end.wrapping_sub(self.socket().send_queue() as u32),
        })
    }

    /// Returns whether the segment with this sequence number was sent and is unacknowledged.
    pub(super) fn is_on_its_way(&mut self, number: u32) -> bool {
        let (Some(up_to), Some(acknowledged)) = (self.sent.up_to, self.acknowledged()) else {
            return false;
        };
        let greets = match self.socket().state() {
            State::Closed | State::Listen => return false,
            State::SynSent | State::SynReceived => 1,
            _ => 0,
        };
        let from = acknowledged.wrapping_sub(greets);
        number.wrapping_sub(from) < up_to.wrapping_sub(from)
    }

    /// Limits packets to a path MTU; `longest` is the maximum payload on the local link. Returns
    /// whether that is a reduction.
    pub(super) fn narrow(&mut self, mtu: u16, longest: u16, attempts: u8, now: Nanos) -> bool {
        let before = match (self.sent.trial, self.sent.path_mtu) {
            // A longer MTU probe is in flight, and the path may be wider than known.
            (Some(trial), _) => trial.mtu,
            (None, 0) => self.longest_packet(longest),
            (None, before) => before,
        };
        let greets = matches!(self.socket().state(), State::SynSent | State::SynReceived);
        if mtu >= before || greets {
            return false;
        }
        // Segments in flight other than the probe are no longer than the known path MTU.
        self.sent.dropped = (self.sent.trial)
            .filter(|_| mtu >= self.sent.path_mtu)
            .map(|trial| trial.from);
        self.resend = match self.sent.dropped {
            Some(_) => 0,
            None => attempts,
        };
        self.sent.narrow(mtu, self.remote.is_ipv4(), now);
        true
    }

    /// Returns a reset of our SYN, as the peer would send it.
    pub(super) fn refusal(&mut self) -> Option<Bare> {
        let number = self.sent.up_to?;
        Some(Bare::made((self.remote, self.local), 0, number, 0).breaking_off())
    }

    /// Returns a keep-alive probe as the peer would send it: smoltcp replies with the positions of
    /// both streams, at most once a second on its clock.
    pub(super) fn question(&mut self) -> Option<Bare> {
        let before = self.next_number()?.wrapping_sub(1);
        let number = self.acknowledged()?;
        Some(Bare::made((self.remote, self.local), before, number, 1))
    }

    /// Returns whether a segment acknowledges data that was not sent.
    #[inline]
    pub(super) fn hears_of_unsent(&self, segment: &[u8]) -> bool {
        let acknowledges = word(segment, 12) & (SYN | RST | ACK) == ACK;
        let beyond = |up_to: u32| long(segment, 8).wrapping_sub(up_to) as i32 > 0;
        acknowledges && self.sent.up_to.is_some_and(beyond)
    }

    /// Returns whether data waits for the peer to open its window.
    #[inline]
    pub(super) fn is_shut_out(&mut self) -> bool {
        self.sent.closed && self.socket().send_queue() > 0
    }

    /// Returns the acknowledgement that closed the window, as the peer would repeat it.
    pub(super) fn shut_out(&mut self) -> Option<Bare> {
        let ends = (self.remote, self.local);
        Some(Bare::made(ends, self.expected()?, self.acknowledged()?, 0))
    }

    /// Closes the connection at once, with a reset if the peer has it.
    pub(super) fn break_off(&mut self, counters: &mut Counters) {
        let state = self.socket().state();
        self.count_end(state, counters);
        self.abort();
    }

    /// Closes the connection without counting it. After a timeout smoltcp sends from SND.UNA again,
    /// and a reset with that number would lie behind what the peer expects, which drops it (RFC
    /// 5961, section 3.2). So the number is SND.NXT, limited by the peer's window: a window probe
    /// beyond it was not accepted.
    pub(super) fn abort(&mut self) {
        let ends = self.recovery.window_ends();
        self.sent.broken_off = self.sent.up_to.map(|up_to| match ends {
            Some(ends) if up_to.wrapping_sub(ends) as i32 > 0 => ends,
            _ => up_to,
        });
        self.socket().abort();
    }

    /// Counts an immediate close from this state as RFC 4022 and Linux's /proc/net/snmp do: a
    /// connection that was closed regularly, or is being closed, neither failed nor was reset.
    pub(super) fn count_end(&self, from: State, counters: &mut Counters) {
        match from {
            State::SynSent | State::SynReceived => counters.tcp.attempt_fails += 1,
            // The application may have finished before smoltcp has the FIN.
            State::Established | State::CloseWait if !self.finished => {
                counters.tcp.established_resets += 1;
            }
            _ => {}
        }
    }

    /// Orphans the connection: its socket ids become stale.
    pub(super) fn disown(&mut self, now: Nanos) {
        self.since = now;
        self.owner = Owner::Nobody;
        self.generation = self.generation.wrapping_add(1);
    }

    pub(super) fn shown_state(&mut self) -> TcpState {
        match self.socket().state() {
            State::Listen | State::SynSent | State::SynReceived => TcpState::Opening,
            State::Established => TcpState::Established,
            State::CloseWait if self.finished => TcpState::Closing,
            State::CloseWait => TcpState::FarFinished,
            State::FinWait1 | State::FinWait2 => TcpState::Finished,
            State::Closing | State::LastAck => TcpState::Closing,
            State::TimeWait | State::Closed => TcpState::Closed,
        }
    }

    /// Returns the result of a send call that is not possible.
    pub(super) fn why_no_sending(&mut self) -> Poll<Result<usize, StackError>> {
        if self.finished {
            return Poll::Ready(Err(StackError::Finished));
        }
        self.why_closed()
    }

    /// Returns the result of a receive call that is not possible.
    pub(super) fn why_no_receiving<R>(&mut self) -> Poll<Result<R, StackError>> {
        self.why_closed()
    }

    fn why_not_opened(&self) -> StackError {
        let remote = self.remote;
        match self.trouble {
            Some((what, by)) if what.is_final() => StackError::Unreachable { remote, what, by },
            _ => StackError::Refused { remote },
        }
    }

    fn why_closed<R>(&mut self) -> Poll<Result<R, StackError>> {
        match self.socket().state() {
            State::Closed if self.stood => Poll::Ready(Err(StackError::Reset)),
            State::Closed => Poll::Ready(Err(self.why_not_opened())),
            State::SynSent | State::SynReceived | State::Listen => Poll::Pending,
            _ => Poll::Ready(Err(StackError::Reset)),
        }
    }
}
