//! One connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Poll;

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{self, SocketBuffer, State};

use super::device::Sent;
use super::edge::{self, Bare};
use super::recovery::{Nudge, Recovery, ahead};
use crate::Nanos;
use crate::counters::Counters;
use crate::error::StackError;
use crate::pages;
use crate::paths::Path;
use crate::socket::{SocketId, SocketKind, TcpState, Unreachable};
use crate::wire::ip::{self, Header};
use crate::wire::{ACK, RST, SYN, TCP_BYTES, long, word};

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// No one's: it can be opened.
    Free,
    /// The application's.
    Application,
    /// This listener's, until it is accepted.
    Listener(u32),
    /// No one's any more: it is on its way to its end.
    Nobody,
}

pub(crate) struct Connection {
    set: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) generation: u32,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) owner: Owner,
    /// The state when last looked at.
    pub(super) state: State,
    /// It stood once.
    pub(super) stood: bool,
    /// The application will send nothing more.
    pub(super) finished: bool,
    /// How much it has given to be sent, in numbers of the stream.
    pub(super) written: u32,
    /// When it began, or when nobody's it became or something of it moved since: neither lasts for ever.
    pub(super) since: Nanos,
    /// What of a connection that is nobody's was not acknowledged when last looked at.
    pub(super) left: usize,
    /// The next in its listener's line: of those that do not stand yet, or of those that do; and the one in front of it
    /// in the first of these.
    pub(super) next: Option<u32>,
    pub(super) before: Option<u32>,
    /// The sequence number of the next byte that the application fetches.
    pub(super) far_base: u32,
    /// How far its stream was sent.
    sent: Sent,
    /// What of that may be lost.
    recovery: Recovery,
    /// Who said last that something cannot be reached, and what.
    pub(super) trouble: Option<(Unreachable, IpAddr)>,
    /// How often it may still be looked whether what is on its way can be sent again: it was too long.
    pub(super) resend: u8,
    /// When it sent last there was more to send than the own window let go.
    pub(super) held: bool,
    /// The most that was on its way at once since something was last lost: so much the congestion window holds.
    carried: u32,
    /// When payload came last: to the port, and into the buffer; where stages are watched.
    pub(super) came: Option<(Nanos, Nanos)>,
}

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Connection {
    /// What the set of one socket takes from the heap.
    pub(super) const SET_BYTES: usize = size_of::<SocketStorage<'static>>();

    pub(super) fn new(receive_window: usize, send_buffer: usize) -> Self {
        let buffer = |bytes| SocketBuffer::new(pages::filled(bytes));
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

    /// The set, and how far its stream was sent.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut SocketSet<'static>, &mut Sent) {
        (&mut self.set, &mut self.sent)
    }

    /// Its name, as the connection of this place.
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

    /// A segment came, which acknowledges: whether the engine has to be shown that again.
    #[inline]
    pub(super) fn heard(&mut self, segment: &[u8], now: Nanos) -> Option<Nudge> {
        self.recovery.heard(segment, &mut self.sent, now)
    }

    /// Segments may have left: when one of them is sent again if nothing is heard.
    #[inline]
    pub(super) fn left(&mut self, now: Nanos, slack: Nanos) -> Option<Nanos> {
        self.recovery.left(&self.sent, now);
        let at = self.recovery.probe_at(&self.sent, slack)?;
        self.nudged_at().map(|_| at)
    }

    /// An acknowledgement that has the engine send its first segment again, if that is due.
    pub(super) fn probe(&mut self, now: Nanos, slack: Nanos) -> Option<Bare> {
        // What has just left, of more than leaves at a time, is not waited for since the last one before it.
        self.recovery.left(&self.sent, now);
        self.recovery
            .probe_at(&self.sent, slack)
            .filter(|due| *due <= now)?;
        self.again()
    }

    /// What a router says to have dropped was tried, and all in front of it has come: an acknowledgement that has the
    /// engine send it again.
    #[cold]
    pub(super) fn dropped(&mut self) -> Option<Bare> {
        let from = self.sent.dropped?;
        let is_first = self.recovery.is_at(from);
        is_first.then(|| self.again())?
    }

    /// An acknowledgement that has the engine send its first segment again.
    fn again(&mut self) -> Option<Bare> {
        let expected = self.nudged_at()?;
        let (number, window) = self.recovery.probe(&mut self.sent)?;
        let ends = (self.remote, self.local);
        Some(Bare::made(ends, expected, number, window))
    }

    /// The far end asked for the connection, or agreed to it; `longest` is the payload of the longest segments that are
    /// sent anywhere, and `path` what is known of the way there.
    pub(super) fn greeted(&mut self, segment: &[u8], longest: u16, path: Option<Path>) {
        self.recovery.greeted(segment);
        self.sent.told = edge::told_mss(segment);
        let own = self.longest_packet(longest);
        if let Some(path) = path.filter(|path| path.mtu < own) {
            self.sent.known(path.mtu, path.until);
        }
    }

    /// The longest packet that leaves, where the path takes any.
    fn longest_packet(&self, longest: u16) -> u16 {
        let headers = ip::header_bytes(self.remote.ip()) + TCP_BYTES;
        longest.min(self.sent.told) + headers as u16
    }

    /// The stream ends with what is in the buffer. Where the far end has finished already the engine is not told
    /// while payload waits to be acknowledged: in LAST-ACK it would count no duplicates, and what is lost could only
    /// wait for its time-out. The last segment says that it is the last one all the same.
    pub(super) fn end(&mut self) {
        let end = self.sent.first.wrapping_add(self.written);
        let socket = self.socket();
        if socket.state() == State::CloseWait && socket.send_queue() > 0 {
            // An end that is known of has the last bytes leave without waiting for company.
            socket.set_nagle_enabled(false);
            self.sent.ends = Some(end);
        } else {
            socket.close();
        }
    }

    /// There is an end that the engine does not know of.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.sent.ends.is_some()
    }

    /// Tells the engine of the end once no payload is left that could be lost. Where payload is left, and all of it
    /// was sent before the end was known: a segment that has the engine answer, with one that can say so.
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

    /// The end has to be sent again, and the engine would wait for its time-out: true once.
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

    /// A segment acknowledges once more all payload, and not the end behind it, as those do that answer payload which was
    /// sent again in vain. At the third of them the engine would stop its time-out, find no payload that it could send
    /// again, and never send the end any more: the same acknowledgement, which has it count anew.
    #[inline]
    pub(super) fn repeats_before_end(&mut self, segment: &[u8]) -> Option<Bare> {
        let socket = self.socket();
        let waits = matches!(socket.state(), State::FinWait1 | State::Closing);
        if !waits || socket.send_queue() > 0 {
            return None;
        }
        let number = self.acknowledged()?;
        if edge::acknowledged(segment) != Some(number) {
            return None;
        }
        let ends = (self.remote, self.local);
        Some(Bare::made(ends, self.expected()?, number, 0))
    }

    /// A segment that acknowledges an end that the engine does not know of: it is told, and what to show it instead.
    #[cold]
    pub(super) fn heard_end(&mut self, header: &Header, packet: &[u8]) -> Option<Bare> {
        let behind = self.sent.ends?.wrapping_add(1);
        let segment = &packet[header.body..header.end];
        if self.sent.up_to != Some(behind) || edge::acknowledged(segment) != Some(behind) {
            return None;
        }
        let bare = Bare::of(self.expected()?, header, packet)?;
        self.sent.ends = None;
        self.socket().close();
        Some(bare)
    }

    /// Notes, when all has left that may, whether a whole segment had to stay: what is written from then on was never
    /// held.
    #[inline]
    pub(super) fn note_held(&mut self) {
        let end = self.sent.first.wrapping_add(self.written);
        let least = self.sent.largest.max(1) as i32;
        self.held = (self.sent.up_to).is_some_and(|up_to| ahead(end, up_to) >= least);
    }

    /// Whether nothing is lost that is known of.
    #[inline]
    fn is_undisturbed(&self) -> bool {
        self.recovery.is_undisturbed() && !self.sent.timed_out
    }

    /// Notes, when all has left that may, how much is on its way.
    #[inline]
    pub(super) fn note_carried(&mut self) {
        let flight = (self.sent.up_to).and_then(|up_to| self.recovery.flight(up_to));
        self.carried = match self.is_undisturbed() {
            true => self.carried.max(flight.unwrap_or(0)),
            false => 0,
        };
    }

    /// How much may leave now in whole segments with so much payload, of which less than `least` is of no use: what was
    /// written, and neither the far end's window nor the congestion window holds back. Of the latter nothing is known
    /// beyond what was on its way before. Nothing where something is lost, the engine would make shorter ones, or these are
    /// too long for the path.
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

    /// The number that nudges have: the engine has payload to send again. Of an end alone it would stop its timer, and
    /// send nothing.
    #[inline]
    pub(super) fn nudged_at(&mut self) -> Option<u32> {
        match self.socket().send_queue() {
            0 => None,
            _ => self.expected(),
        }
    }

    /// The number that the engine expects of the far end next, where it counts duplicates.
    fn expected(&mut self) -> Option<u32> {
        use State::{CloseWait, Closing, Established, FinWait1};
        let counts = matches!(
            self.socket().state(),
            Established | FinWait1 | CloseWait | Closing
        );
        counts.then(|| self.next_number())?
    }

    /// The number of what the far end sends next, where that is known.
    pub(super) fn next_number(&mut self) -> Option<u32> {
        let ended = match self.socket().state() {
            State::SynReceived | State::Established | State::FinWait1 | State::FinWait2 => 0,
            State::CloseWait | State::Closing | State::LastAck | State::TimeWait => 1,
            State::Closed | State::Listen | State::SynSent => return None,
        };
        let queued = self.socket().recv_queue() as u32;
        Some(self.far_base.wrapping_add(queued).wrapping_add(ended))
    }

    /// Whether a number lies beyond all that the far end has used.
    pub(super) fn is_beyond(&mut self, number: u32) -> bool {
        let next = self.next_number();
        next.is_some_and(|next| number.wrapping_sub(next) as i32 >= 0)
    }

    /// The number that the far end has acknowledged, as the engine knows it.
    pub(super) fn acknowledged(&mut self) -> Option<u32> {
        self.sent.up_to?;
        let end = self.sent.first.wrapping_add(self.written);
        Some(match self.socket().state() {
            State::FinWait2 | State::TimeWait => end.wrapping_add(1),
            _ => end.wrapping_sub(self.socket().send_queue() as u32),
        })
    }

    /// Whether the segment with this number was sent and is not acknowledged.
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

    /// The path takes no longer packets than this, where the longest segments that are sent anywhere have so much
    /// payload; whether that is news.
    pub(super) fn narrow(&mut self, mtu: u16, longest: u16, attempts: u8, now: Nanos) -> bool {
        let before = match (self.sent.trial, self.sent.path_mtu) {
            // A longer one was tried, and may have taught of a path that is wider than it was.
            (Some(trial), _) => trial.mtu,
            (None, 0) => self.longest_packet(longest),
            (None, before) => before,
        };
        let greets = matches!(self.socket().state(), State::SynSent | State::SynReceived);
        if mtu >= before || greets {
            return false;
        }
        // What is on its way beside the one that was tried is as short as the path was believed to be.
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

    /// A refusal of what was asked for, as the far end would say it.
    pub(super) fn refusal(&mut self) -> Option<Bare> {
        let number = self.sent.up_to?;
        Some(Bare::made((self.remote, self.local), 0, number, 0).breaking_off())
    }

    /// A question whether this end is there, as the far end would ask it: the engine answers with where both
    /// streams are, once a second of its own at most.
    pub(super) fn question(&mut self) -> Option<Bare> {
        let before = self.next_number()?.wrapping_sub(1);
        let number = self.acknowledged()?;
        Some(Bare::made((self.remote, self.local), before, number, 1))
    }

    /// Whether a segment acknowledges what was not sent.
    #[inline]
    pub(super) fn hears_of_unsent(&self, segment: &[u8]) -> bool {
        let acknowledges = word(segment, 12) & (SYN | RST | ACK) == ACK;
        let beyond = |up_to: u32| long(segment, 8).wrapping_sub(up_to) as i32 > 0;
        acknowledges && self.sent.up_to.is_some_and(beyond)
    }

    /// Whether payload waits for a window that is closed.
    #[inline]
    pub(super) fn is_shut_out(&mut self) -> bool {
        self.sent.closed && self.socket().send_queue() > 0
    }

    /// The acknowledgement that closed the window, as the far end would say it again.
    pub(super) fn shut_out(&mut self) -> Option<Bare> {
        let ends = (self.remote, self.local);
        Some(Bare::made(ends, self.expected()?, self.acknowledged()?, 0))
    }

    /// It is to end at once, with a reset where the far end knows of it.
    pub(super) fn break_off(&mut self, counters: &mut Counters) {
        let state = self.socket().state();
        self.count_end(state, counters);
        self.abort();
    }

    /// The same, without a word about what it was. After a time-out the engine counts from what was acknowledged on; a
    /// reset with that number would lie behind what the far end expects, which drops it (RFC 5961, section 3.2), and would
    /// never hear of the end. Of what was sent no more can have been taken than its window held: not the byte that asks
    /// whether it is still closed.
    pub(super) fn abort(&mut self) {
        let ends = self.recovery.window_ends();
        self.sent.broken_off = self.sent.up_to.map(|up_to| match ends {
            Some(ends) if up_to.wrapping_sub(ends) as i32 > 0 => ends,
            _ => up_to,
        });
        self.socket().abort();
    }

    /// Counts that it is closed from this state at once, as RFC 4022 has it and Linux in /proc/net/snmp: what came
    /// to its end, or is on its way there, neither failed nor was reset.
    pub(super) fn count_end(&self, from: State, counters: &mut Counters) {
        match from {
            State::SynSent | State::SynReceived => counters.tcp.attempt_fails += 1,
            // The engine may learn of an end later than the application said it.
            State::Established | State::CloseWait if !self.finished => {
                counters.tcp.established_resets += 1;
            }
            _ => {}
        }
    }

    /// Names of this connection are stale from here on.
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

    /// What to say to who wants to send and cannot.
    pub(super) fn why_no_sending(&mut self) -> Poll<Result<usize, StackError>> {
        if self.finished {
            return Poll::Ready(Err(StackError::Finished));
        }
        self.why_closed()
    }

    /// What to say to who wants to receive and cannot.
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
