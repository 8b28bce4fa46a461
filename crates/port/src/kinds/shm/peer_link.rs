//! Connection between two processes: state of the peer, and the memory that both share.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linerate_sys::shm::{ShmLayout, ShmMismatch, ShmSegment};

use super::ShmRole;
use super::rendezvous::{
    HandshakeEvent, HandshakeMessage, PeerConnection, RendezvousListener, runtime_dir,
};
use crate::error::PortError;
use crate::port_url::FRAME_OVERHEAD_BYTES;
use crate::queue::{OutageInterval, PeerState};

/// Maximum number of empty polls between two reads of the clock: a read then adds 0.1 ns per poll.
const MAX_POLLS_PER_CHECK: u32 = 256;
/// Time between two checks of the peer by an idle queue.
const CHECK_PERIOD: Duration = Duration::from_millis(5);

/// Maximum number of peer outages kept; the oldest are dropped.
const MAX_OUTAGES: usize = 64;

/// Time in which a client must send its first message: other clients wait meanwhile.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// Most frames per ring that each side accepts, or its own number if that is larger: 13 MB for
/// frames of 1518 B.
const MAX_UNREQUESTED_CAPACITY: u32 = 4 * super::DESCRIPTORS;

/// Action named in the error when the peer's memory cannot be mapped.
const MAP_ACTION: &str = "map the memory from the other side";

/// Counts empty polls, to check the peer once per [`CHECK_PERIOD`], however rarely a sleeping loop
/// polls.
pub(super) struct IdleTimer {
    polls: u32,
    /// Empty polls between two reads of the clock: adapted so that they fit into a period.
    polls_per_check: u32,
    /// Latest read of the clock, and the read that started the period.
    last_clock_read: Option<Instant>,
    period_start: Option<Instant>,
}

impl IdleTimer {
    pub(super) fn new() -> Self {
        Self {
            polls: 0,
            polls_per_check: 1,
            last_clock_read: None,
            period_start: None,
        }
    }

    #[inline]
    pub(super) fn reset(&mut self) {
        self.polls = 0;
    }

    /// Returns true if it is time to check the peer; always at the first call. Without a peer
    /// (`has_no_peer`) the clock is read on each call: an empty poll has nothing else to do.
    #[inline]
    pub(super) fn has_elapsed(&mut self, has_no_peer: bool) -> bool {
        self.polls += 1;
        if self.polls < self.polls_per_check && !has_no_peer {
            return false;
        }
        self.has_elapsed_at(Instant::now())
    }

    fn has_elapsed_at(&mut self, now: Instant) -> bool {
        let polls = std::mem::take(&mut self.polls);
        let since = |time: Instant| now.saturating_duration_since(time);
        self.polls_per_check = match self.last_clock_read.map(since) {
            None => 1,
            Some(elapsed) if elapsed > CHECK_PERIOD => {
                let polls_per_period =
                    f64::from(polls) * CHECK_PERIOD.as_secs_f64() / elapsed.as_secs_f64();
                (polls_per_period as u32).clamp(1, MAX_POLLS_PER_CHECK)
            }
            Some(elapsed) if elapsed * 2 <= CHECK_PERIOD => {
                (self.polls_per_check * 2).min(MAX_POLLS_PER_CHECK)
            }
            Some(_) => self.polls_per_check,
        };
        self.last_clock_read = Some(now);
        let elapsed = self
            .period_start
            .is_none_or(|last| since(last) >= CHECK_PERIOD);
        if elapsed {
            self.period_start = Some(now);
        }
        elapsed
    }
}

/// This side of the connection; shared by both queues.
pub(super) struct PeerLink {
    port: String,
    role: ShmRole,
    socket: PathBuf,
    /// Layout of the memory that this side creates.
    layout: ShmLayout,
    /// Most frames per ring of memory that this side accepts.
    max_capacity: u32,
    /// Maximum frame length in bytes, equal on both sides.
    frame_bytes: u16,
    /// Number of peers so far, each with memory of its own.
    generation: AtomicU32,
    state: Mutex<PeerLinkState>,
}

struct PeerLinkState {
    /// Memory shared with the latest peer. Each peer gets new memory: one that has left may still
    /// write into its own.
    segment: Option<Arc<ShmSegment>>,
    /// Listening socket of a server.
    listener: Option<RendezvousListener>,
    /// Connection to the peer while it exists.
    peer: Option<PeerConnection>,
    /// Connection during the handshake: a client that has not sent its hello, or a server that has
    /// not replied.
    pending: Option<PeerConnection>,
    /// Time at which the handshake began; used by a server.
    pending_since: Instant,
    /// Reason why the last handshake failed.
    failure: Option<HandshakeFailure>,
    /// Latest times without a peer.
    outages: VecDeque<OutageInterval>,
}

impl PeerLinkState {
    fn peer_left(&mut self) {
        self.peer = None;
        if self.outages.len() == MAX_OUTAGES {
            self.outages.pop_front();
        }
        self.outages.push_back(OutageInterval {
            from: Instant::now(),
            until: None,
        });
    }

    /// Completes the handshake: the pending connection becomes that of the peer.
    fn peer_joined(&mut self, segment: ShmSegment) {
        self.segment = Some(Arc::new(segment));
        self.peer = self.pending.take();
        if let Some(last) = self.outages.back_mut() {
            last.until.get_or_insert_with(Instant::now);
        }
    }
}

#[derive(Debug)]
enum HandshakeFailure {
    UnknownVersion,
    ServerBusy,
    /// The server rejected this client.
    Rejected,
    /// Maximum frame length of the peer in bytes, which differs from ours.
    FrameLength(u16),
    /// Bytes per frame slot of the peer's memory, which differ from ours.
    SlotSize(u32),
    /// Frames per ring of the peer's memory: more than accepted here.
    Capacity(u32),
    /// Action that the kernel did not perform, and its error.
    System(&'static str, io::Error),
}

impl PeerLink {
    pub(super) fn open(
        name: &str,
        port: String,
        role: ShmRole,
        capacity: Option<u32>,
        frame_bytes: u16,
    ) -> Result<Self, PortError> {
        let socket = runtime_dir()?.join(format!("shm-{name}.sock"));
        let listener = match role {
            ShmRole::Client => None,
            ShmRole::Server => {
                let bound =
                    RendezvousListener::bind(&socket).map_err(|source| PortError::File {
                        path: socket.clone(),
                        situation: "the socket cannot be created".to_owned(),
                        next_step: "set XDG_RUNTIME_DIR to a directory of your own",
                        source: Some(source),
                    })?;
                Some(bound.ok_or_else(|| {
                    PortError::InUse {
                        port: port.clone(),
                        remedy:
                            "another process serves it: choose another name, or stop that process"
                                .to_owned(),
                    }
                })?)
            }
        };
        let link = Self {
            port,
            role,
            socket,
            layout: ShmLayout::new(capacity.unwrap_or(super::DESCRIPTORS), frame_bytes),
            max_capacity: capacity.unwrap_or(0).max(MAX_UNREQUESTED_CAPACITY),
            frame_bytes,
            generation: AtomicU32::new(0),
            state: Mutex::new(PeerLinkState {
                segment: None,
                listener,
                peer: None,
                pending: None,
                pending_since: Instant::now(),
                failure: None,
                outages: VecDeque::with_capacity(MAX_OUTAGES),
            }),
        };
        link.poll_peer();
        Ok(link)
    }

    pub(super) fn role(&self) -> ShmRole {
        self.role
    }

    /// Number of peers so far.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Relaxed)
    }

    /// Memory shared with the latest peer, and the number of that peer.
    pub(super) fn segment(&self) -> Option<(u32, Arc<ShmSegment>)> {
        let state = self.lock_state();
        let segment = state.segment.clone()?;
        Some((self.generation(), segment))
    }

    pub(super) fn peer_state(&self) -> PeerState {
        let state = self.lock_state();
        match (&state.peer, &state.segment) {
            (Some(_), _) => PeerState::Connected,
            (None, Some(_)) => PeerState::Disconnected,
            (None, None) => PeerState::NeverConnected,
        }
    }

    /// Latest times without a peer, the earliest first.
    pub(super) fn outages(&self) -> Vec<OutageInterval> {
        self.lock_state().outages.iter().copied().collect()
    }

    /// Returns the reason of a failed handshake, once; a peer that is just absent is no error.
    pub(super) fn take_failure(&self) -> Result<(), PortError> {
        let port = || self.port.clone();
        let mismatch = |why: &str| PortError::PeerMismatch {
            port: port(),
            reason: why.to_owned(),
        };
        match self.lock_state().failure.take() {
            None => Ok(()),
            Some(HandshakeFailure::ServerBusy) => Err(PortError::InUse {
                port: port(),
                remedy: "its server has a client already: choose another name, or stop that client"
                    .to_owned(),
            }),
            Some(HandshakeFailure::UnknownVersion) => {
                Err(mismatch("it uses another protocol version"))
            }
            Some(HandshakeFailure::Rejected) => Err(mismatch("it rejects this side")),
            Some(HandshakeFailure::FrameLength(peer_bytes)) => Err(mismatch(&format!(
                "its frames have up to {peer_bytes} bytes (mtu={}) and those of this side {} (mtu={})",
                peer_bytes.saturating_sub(FRAME_OVERHEAD_BYTES),
                self.frame_bytes,
                self.frame_bytes - FRAME_OVERHEAD_BYTES
            ))),
            Some(HandshakeFailure::SlotSize(peer_bytes)) => Err(mismatch(&format!(
                "its memory has {peer_bytes} bytes for each frame and that of this side {}",
                self.layout.slot_bytes
            ))),
            Some(HandshakeFailure::Capacity(peer_frames)) => Err(mismatch(&format!(
                "its memory has {peer_frames} frames for each direction (rxd={peer_frames}) and \
                 this side accepts 1 to {}",
                self.max_capacity
            ))),
            Some(HandshakeFailure::System(action, source)) => Err(PortError::Kernel {
                port: port(),
                action,
                source,
            }),
        }
    }

    /// Detects a peer that has connected or gone. Does nothing while the other queue does it.
    pub(super) fn poll_peer(&self) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        if let Some(peer) = &state.peer
            && !matches!(peer.receive(), HandshakeEvent::Pending)
        {
            state.peer_left();
        }
        match self.role {
            ShmRole::Server => self.accept_client(&mut state),
            ShmRole::Client => self.connect_to_server(&mut state),
        }
    }

    /// Returns true if the peer's frame length differs from ours; 0 (not given) matches any length.
    fn frame_length_differs(&self, peer_frame_bytes: u16) -> bool {
        peer_frame_bytes != 0 && peer_frame_bytes != self.frame_bytes
    }

    fn lock_state(&self) -> MutexGuard<'_, PeerLinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_client(&self, state: &mut PeerLinkState) {
        if state.pending.is_none() {
            state.pending = state.listener.as_ref().and_then(RendezvousListener::accept);
            state.pending_since = Instant::now();
        }
        let Some(client) = &state.pending else { return };
        let event = client.receive();
        match event {
            HandshakeEvent::Pending if state.pending_since.elapsed() < HELLO_TIMEOUT => return,
            // A client that sends nothing does not block others.
            HandshakeEvent::Pending | HandshakeEvent::Closed => {}
            HandshakeEvent::Message(HandshakeMessage::Hello, ..) if state.peer.is_some() => {
                let _ = client.send(HandshakeMessage::Busy, None, self.frame_bytes);
            }
            // The client gets the reason, and this side waits for another one.
            HandshakeEvent::Message(HandshakeMessage::Hello, _, peer_frame_bytes)
                if self.frame_length_differs(peer_frame_bytes) =>
            {
                let _ = client.send(HandshakeMessage::Incompatible, None, self.frame_bytes);
            }
            HandshakeEvent::Message(HandshakeMessage::Hello, ..) => {
                match self.send_new_memory(client) {
                    Ok(segment) => self.join(state, segment),
                    Err(failure) => {
                        let _ = client.send(HandshakeMessage::Incompatible, None, self.frame_bytes);
                        state.failure = Some(failure);
                    }
                }
            }
            // Any process of this user may have sent it: no reason to stop this port.
            HandshakeEvent::Message(..) | HandshakeEvent::Unknown => {
                let _ = client.send(HandshakeMessage::Incompatible, None, self.frame_bytes);
            }
        }
        state.pending = None;
    }

    /// Creates memory for a client and sends it. A client that has gone meanwhile is no failure:
    /// the next check detects it.
    fn send_new_memory(&self, client: &PeerConnection) -> Result<ShmSegment, HandshakeFailure> {
        let segment = ShmSegment::create(self.layout)
            .map_err(|error| HandshakeFailure::System("create memory to share", error))?;
        let _ = client.send(
            HandshakeMessage::Joined,
            Some(segment.as_fd()),
            self.frame_bytes,
        );
        Ok(segment)
    }

    fn join(&self, state: &mut PeerLinkState, segment: ShmSegment) {
        state.peer_joined(segment);
        // Under the lock, so that it belongs to the segment.
        self.generation.fetch_add(1, Relaxed);
    }

    fn connect_to_server(&self, state: &mut PeerLinkState) {
        if state.peer.is_some() {
            return;
        }
        let Some(server) = &state.pending else {
            // A missing server is no error: it may start later.
            let Ok(connection) = PeerConnection::connect(&self.socket) else {
                return;
            };
            if connection
                .send(HandshakeMessage::Hello, None, self.frame_bytes)
                .is_ok()
            {
                state.pending = Some(connection);
            }
            return;
        };
        match server.receive() {
            HandshakeEvent::Pending => return,
            HandshakeEvent::Closed => {}
            HandshakeEvent::Message(
                HandshakeMessage::Joined | HandshakeMessage::Incompatible,
                _,
                peer_frame_bytes,
            ) if self.frame_length_differs(peer_frame_bytes) => {
                state.failure = Some(HandshakeFailure::FrameLength(peer_frame_bytes));
            }
            HandshakeEvent::Message(HandshakeMessage::Joined, file, _) => {
                let adopted = match file {
                    Some(file) => self.adopt_segment(file),
                    None => Err(HandshakeFailure::UnknownVersion),
                };
                match adopted {
                    Ok(segment) => {
                        self.join(state, segment);
                        return;
                    }
                    Err(failure) => state.failure = Some(failure),
                }
            }
            HandshakeEvent::Message(HandshakeMessage::Busy, ..) => {
                state.failure = Some(HandshakeFailure::ServerBusy)
            }
            HandshakeEvent::Message(HandshakeMessage::Incompatible, ..) => {
                state.failure = Some(HandshakeFailure::Rejected)
            }
            HandshakeEvent::Message(..) | HandshakeEvent::Unknown => {
                state.failure = Some(HandshakeFailure::UnknownVersion)
            }
        }
        state.pending = None;
    }

    /// Maps the memory of the peer, if its slots have the agreed size and are not too many.
    fn adopt_segment(&self, file: OwnedFd) -> Result<ShmSegment, HandshakeFailure> {
        let adopted = ShmSegment::adopt(file, self.layout.slot_bytes, self.max_capacity)
            .map_err(|error| HandshakeFailure::System(MAP_ACTION, error))?;
        adopted.map_err(|mismatch| match mismatch {
            ShmMismatch::Unknown => HandshakeFailure::UnknownVersion,
            ShmMismatch::SlotBytes(bytes) => HandshakeFailure::SlotSize(bytes),
            ShmMismatch::Capacity(frames) => HandshakeFailure::Capacity(frames),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls at this interval, in simulated time, until a check is due; returns the polls and the
    /// time.
    fn poll_until_elapsed(
        idle: &mut IdleTimer,
        now: &mut Instant,
        interval: Duration,
        max_polls: u32,
    ) -> (u32, Duration) {
        let from = *now;
        for polls in 1..=max_polls {
            *now += interval;
            idle.polls += 1;
            if idle.polls >= idle.polls_per_check && idle.has_elapsed_at(*now) {
                return (polls, *now - from);
            }
        }
        panic!("not within {max_polls} polls");
    }

    #[test]
    fn a_sleeping_loop_checks_as_soon_as_a_spinning_one() {
        let mut now = Instant::now();
        for interval in [50, 50_000, 1_000_000, 3_000_000, 20_000_000] {
            let interval = Duration::from_nanos(interval);
            let mut idle = IdleTimer::new();
            assert!(idle.has_elapsed_at(now));
            for _ in 0..10 {
                let (_, elapsed) = poll_until_elapsed(&mut idle, &mut now, interval, 1_000_000);
                assert!(
                    elapsed <= CHECK_PERIOD * 2 || elapsed == interval,
                    "{interval:?}: {elapsed:?}"
                );
            }
        }
    }

    /// A spinning loop rarely reads the clock; when its pace changes, the interval adapts.
    #[test]
    fn a_pace_that_changes_is_followed() {
        let (mut idle, mut now) = (IdleTimer::new(), Instant::now());
        for _ in 0..20 {
            poll_until_elapsed(&mut idle, &mut now, Duration::from_nanos(50), 1_000_000);
        }
        assert_eq!(idle.polls_per_check, MAX_POLLS_PER_CHECK);
        let interval = Duration::from_millis(1);
        poll_until_elapsed(&mut idle, &mut now, interval, MAX_POLLS_PER_CHECK);
        let (polls, _) = poll_until_elapsed(&mut idle, &mut now, interval, MAX_POLLS_PER_CHECK);
        assert!(polls <= 10, "{polls}");
    }

    /// A queue without a peer reads the clock at each poll.
    #[test]
    fn without_a_peer_each_poll_reads_the_clock() {
        let mut idle = IdleTimer::new();
        assert!(idle.has_elapsed(true));
        idle.polls_per_check = MAX_POLLS_PER_CHECK;
        let long_ago = Instant::now().checked_sub(CHECK_PERIOD * 2).unwrap();
        idle.period_start = Some(long_ago);
        assert!(!idle.has_elapsed(false));
        assert!(idle.has_elapsed(true));
    }
}
