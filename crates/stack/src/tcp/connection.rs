//! One connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::task::Poll;

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{self, SocketBuffer, State};

use super::device::Sent;
use super::edge::Bare;
use super::recovery::{Nudge, Recovery};
use crate::Nanos;
use crate::error::StackError;
use crate::socket::{SocketId, SocketKind, TcpState};

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
    /// When it began, or when nobody's it became: neither lasts for ever.
    pub(super) since: Nanos,
    /// The next in its listener's line.
    pub(super) next: Option<u32>,
    /// The sequence number of the next byte that the application fetches.
    pub(super) far_base: u32,
    /// How far its stream was sent.
    sent: Sent,
    /// What of that may be lost.
    recovery: Recovery,
    /// When payload came last: to the port, and into the buffer; where stages are watched.
    pub(super) came: Option<(Nanos, Nanos)>,
}

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Connection {
    /// What the set of one socket takes from the heap.
    pub(super) const SET_BYTES: usize = size_of::<SocketStorage<'static>>();

    pub(super) fn new(receive_window: usize, send_buffer: usize) -> Self {
        let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
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
            since: 0,
            next: None,
            far_base: 0,
            sent: Sent::default(),
            recovery: Recovery::default(),
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
        (self.stood, self.finished, self.next) = (false, false, None);
        (self.sent, self.came) = (Sent::default(), None);
        self.recovery = Recovery::default();
    }

    /// A segment came, which acknowledges: whether the engine has to be shown that again.
    #[inline]
    pub(super) fn heard(&mut self, segment: &[u8], now: Nanos) -> Option<Nudge> {
        self.recovery.heard(segment, &mut self.sent, now)
    }

    /// Segments may have left: when one of them is sent again if nothing is heard.
    #[inline]
    pub(super) fn left(&mut self, now: Nanos) -> Option<Nanos> {
        self.recovery.left(&self.sent, now);
        let at = self.recovery.probe_at(&self.sent)?;
        self.expected().map(|_| at)
    }

    /// An acknowledgement that has the engine send its first segment again, if that is due.
    pub(super) fn probe(&mut self, now: Nanos) -> Option<Bare> {
        self.recovery
            .probe_at(&self.sent)
            .filter(|due| *due <= now)?;
        let expected = self.expected()?;
        let (number, window) = self.recovery.probe(&mut self.sent)?;
        let ends = (self.remote, self.local);
        Some(Bare::made(ends, expected, number, window))
    }

    /// The far end asked for the connection, or agreed to it.
    pub(super) fn greeted(&mut self, segment: &[u8]) {
        self.recovery.greeted(segment);
    }

    /// Whether more is to be sent than was, of what lies behind this number in the buffer.
    pub(super) fn has_unsent(&mut self, from: u32) -> bool {
        let sent = self.sent.up_to.map_or(0, |up_to| up_to.wrapping_sub(from));
        self.socket().send_queue() > sent as usize
    }

    /// The number that the engine expects of the far end next, where it may be nudged: in other states it
    /// counts no duplicates.
    pub(super) fn expected(&mut self) -> Option<u32> {
        let ended = match self.socket().state() {
            State::Established | State::FinWait1 => 0,
            State::CloseWait => 1,
            _ => return None,
        };
        let queued = self.socket().recv_queue() as u32;
        Some(self.far_base.wrapping_add(queued).wrapping_add(ended))
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

    fn why_closed<R>(&mut self) -> Poll<Result<R, StackError>> {
        match self.socket().state() {
            State::Closed if self.stood => Poll::Ready(Err(StackError::Reset)),
            State::Closed => Poll::Ready(Err(StackError::Refused {
                remote: self.remote,
            })),
            State::SynSent | State::SynReceived | State::Listen => Poll::Pending,
            _ => Poll::Ready(Err(StackError::Reset)),
        }
    }
}
