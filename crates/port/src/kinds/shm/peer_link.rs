//! Connection between two processes: state of the peer, and the memory that both share.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::Role;
use super::rendezvous::{Heard, Place, Talk, Word, folder};
use crate::error::PortError;
use crate::port_url::ETHERNET_BYTES;
use crate::queue::{Absence, Partner};
use crate::sys::shm::{Region, Shape};

/// Maximum number of empty polls between two reads of the clock: a read then adds 0.1 ns per poll.
const POLLS: u32 = 256;
/// Time between two checks of the peer by an idle queue.
const PERIOD: Duration = Duration::from_millis(5);

/// Maximum number of peer outages kept; the oldest are dropped.
const ABSENCES: usize = 64;

/// Time in which a client must send its first message: other clients wait meanwhile.
const SILENCE: Duration = Duration::from_secs(1);

/// Action named in the error when the peer's memory cannot be mapped.
const MAP: &str = "map the memory from the other side";

/// Counts empty polls, to check the peer once per [`PERIOD`], however rarely a sleeping loop polls.
pub(super) struct Idle {
    polls: u32,
    /// Empty polls between two reads of the clock: adapted so that they fit into a period.
    every: u32,
    /// Latest read of the clock, and the read that started the period.
    looked: Option<Instant>,
    last: Option<Instant>,
}

impl Idle {
    pub(super) fn new() -> Self {
        Self {
            polls: 0,
            every: 1,
            looked: None,
            last: None,
        }
    }

    #[inline]
    pub(super) fn reset(&mut self) {
        self.polls = 0;
    }

    /// Returns true if it is time to check the peer; always at the first call. Without a peer
    /// (`is_alone`) the clock is read on each call: an empty poll has nothing else to do.
    #[inline]
    pub(super) fn is_over(&mut self, is_alone: bool) -> bool {
        self.polls += 1;
        if self.polls < self.every && !is_alone {
            return false;
        }
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&mut self, now: Instant) -> bool {
        let polls = std::mem::take(&mut self.polls);
        let since = |time: Instant| now.saturating_duration_since(time);
        self.every = match self.looked.map(since) {
            None => 1,
            Some(took) if took > PERIOD => {
                let fit = f64::from(polls) * PERIOD.as_secs_f64() / took.as_secs_f64();
                (fit as u32).clamp(1, POLLS)
            }
            Some(took) if took * 2 <= PERIOD => (self.every * 2).min(POLLS),
            Some(_) => self.every,
        };
        self.looked = Some(now);
        let over = self.last.is_none_or(|last| since(last) >= PERIOD);
        if over {
            self.last = Some(now);
        }
        over
    }
}

/// This side of the connection; shared by both queues.
pub(super) struct Link {
    port: String,
    role: Role,
    socket: PathBuf,
    shape: Shape,
    /// Maximum frame length in bytes, equal on both sides.
    frame_bytes: u16,
    /// Set when the two connect for the first time, and kept for all later peers.
    region: OnceLock<Arc<Region>>,
    state: Mutex<State>,
}

struct State {
    /// Listening socket of a server.
    place: Option<Place>,
    /// Connection to the peer while it exists.
    partner: Option<Talk>,
    /// Connection during the handshake: a client that has not sent its hello, or a server that has
    /// not replied.
    begun: Option<Talk>,
    /// Time at which the handshake began; used by a server.
    begun_at: Instant,
    /// Reason why the last handshake failed.
    trouble: Option<Trouble>,
    /// Latest times without a peer.
    absences: VecDeque<Absence>,
}

impl State {
    fn parted(&mut self) {
        self.partner = None;
        if self.absences.len() == ABSENCES {
            self.absences.pop_front();
        }
        self.absences.push_back(Absence {
            from: Instant::now(),
            until: None,
        });
    }

    /// Completes the handshake: the pending connection becomes that of the peer.
    fn joined(&mut self) {
        self.partner = self.begun.take();
        if let Some(last) = self.absences.back_mut() {
            last.until.get_or_insert_with(Instant::now);
        }
    }
}

#[derive(Debug)]
enum Trouble {
    Unknown,
    Taken,
    Unfit,
    /// Maximum frame length of the peer in bytes, which differs from ours.
    Frames(u16),
    /// Bytes per frame slot of the peer's memory, which differ from ours.
    Slots(u32),
    Spoilt,
    /// Action that the kernel did not perform, and its error.
    System(&'static str, io::Error),
}

impl Link {
    pub(super) fn open(
        name: &str,
        port: String,
        role: Role,
        (capacity, frame_bytes): (u32, u16),
    ) -> Result<Self, PortError> {
        let socket = folder()?.join(format!("shm-{name}.sock"));
        let place = match role {
            Role::Client => None,
            Role::Server => {
                let taken = Place::take(&socket).map_err(|source| PortError::File {
                    path: socket.clone(),
                    situation: "the socket cannot be created".to_owned(),
                    next_step: "set XDG_RUNTIME_DIR to a directory of your own",
                    source: Some(source),
                })?;
                Some(taken.ok_or_else(|| {
                    PortError::Taken {
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
            shape: Shape::new(capacity, frame_bytes),
            frame_bytes,
            region: OnceLock::new(),
            state: Mutex::new(State {
                place,
                partner: None,
                begun: None,
                begun_at: Instant::now(),
                trouble: None,
                absences: VecDeque::with_capacity(ABSENCES),
            }),
        };
        link.tend();
        Ok(link)
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// Shared memory, after the first connection.
    pub(super) fn region(&self) -> Option<Arc<Region>> {
        self.region.get().cloned()
    }

    pub(super) fn partner(&self) -> Partner {
        // Both are set under the lock.
        let state = self.locked();
        match (&state.partner, self.region.get()) {
            (Some(_), _) => Partner::There,
            (None, Some(_)) => Partner::Gone,
            (None, None) => Partner::Awaited,
        }
    }

    /// Latest times without a peer, the earliest first.
    pub(super) fn absences(&self) -> Vec<Absence> {
        self.locked().absences.iter().copied().collect()
    }

    /// Records that the positions in the memory are not those of a ring.
    pub(super) fn spoilt(&self) {
        self.locked().trouble = Some(Trouble::Spoilt);
    }

    /// Returns the reason of a failed handshake, once; a peer that is just absent is no error.
    pub(super) fn trouble(&self) -> Result<(), PortError> {
        let port = || self.port.clone();
        let mismatch = |why: &str| PortError::PeerMismatch {
            port: port(),
            why: why.to_owned(),
        };
        match self.locked().trouble.take() {
            None => Ok(()),
            Some(Trouble::Taken) => Err(PortError::Taken {
                port: port(),
                remedy: "its server has a client already: choose another name, or stop that client"
                    .to_owned(),
            }),
            Some(Trouble::Unknown) => Err(mismatch("it uses another protocol version")),
            Some(Trouble::Unfit) => Err(mismatch("both sides have memory from earlier peers")),
            Some(Trouble::Frames(other)) => Err(mismatch(&format!(
                "its frames have up to {other} bytes (mtu={}) and those of this side {} (mtu={})",
                other.saturating_sub(ETHERNET_BYTES),
                self.frame_bytes,
                self.frame_bytes - ETHERNET_BYTES
            ))),
            Some(Trouble::Slots(other)) => Err(mismatch(&format!(
                "its memory has {other} bytes for each frame and that of this side {}",
                self.shape.slot_bytes
            ))),
            Some(Trouble::Spoilt) => Err(mismatch("the memory is corrupted")),
            Some(Trouble::System(action, source)) => Err(PortError::Kernel {
                port: port(),
                action,
                source,
            }),
        }
    }

    /// Detects a peer that has connected or gone. Does nothing while the other queue does it.
    pub(super) fn tend(&self) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        if let Some(partner) = &state.partner
            && !matches!(partner.hear(), Heard::Nothing)
        {
            state.parted();
        }
        match self.role {
            Role::Server => self.serve(&mut state),
            Role::Client => self.seek(&mut state),
        }
    }

    /// Returns true if the peer's frame length differs from ours; 0 (not given) matches any length.
    fn differs(&self, theirs: u16) -> bool {
        theirs != 0 && theirs != self.frame_bytes
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, state: &mut State) {
        if state.begun.is_none() {
            state.begun = state.place.as_ref().and_then(Place::accept);
            state.begun_at = Instant::now();
        }
        let Some(guest) = &state.begun else { return };
        let heard = guest.hear();
        match heard {
            Heard::Nothing if state.begun_at.elapsed() < SILENCE => return,
            // A client that sends nothing does not block others.
            Heard::Nothing | Heard::End => {}
            Heard::Word(Word::Hello, ..) if state.partner.is_some() => {
                let _ = guest.say(Word::Taken, None, self.frame_bytes);
            }
            // The client gets the reason, and this side waits for another one.
            Heard::Word(Word::Hello, _, theirs) if self.differs(theirs) => {
                let _ = guest.say(Word::Unfit, None, self.frame_bytes);
            }
            Heard::Word(Word::Hello, file, _) => {
                if let Err(trouble) = self.join(guest, file) {
                    let _ = guest.say(Word::Unfit, None, self.frame_bytes);
                    state.trouble = Some(trouble);
                } else {
                    state.joined();
                }
            }
            Heard::Word(..) | Heard::Unknown => {
                let _ = guest.say(Word::Unfit, None, self.frame_bytes);
                state.trouble = Some(Trouble::Unknown);
            }
        }
        state.begun = None;
    }

    /// Agrees with a client on the memory: the one that survived, or a new one.
    fn join(&self, guest: &Talk, file: Option<OwnedFd>) -> Result<(), Trouble> {
        let said = match (self.region.get(), file) {
            (Some(region), None) => guest.say(Word::Joined, Some(region.as_fd()), self.frame_bytes),
            (Some(_), Some(_)) => return Err(Trouble::Unfit),
            (None, Some(file)) => {
                let region = self.adopted(file)?;
                let said = guest.say(Word::Joined, None, self.frame_bytes);
                if said.is_ok() {
                    let _ = self.region.set(region);
                }
                said
            }
            (None, None) => {
                let region = Region::create(self.shape)
                    .map_err(|error| Trouble::System("create memory to share", error))?;
                let said = guest.say(Word::Joined, Some(region.as_fd()), self.frame_bytes);
                if said.is_ok() {
                    let _ = self.region.set(Arc::new(region));
                }
                said
            }
        };
        said.map_err(|error| Trouble::System("send the memory to the client", error))
    }

    fn seek(&self, state: &mut State) {
        if state.partner.is_some() {
            return;
        }
        let Some(host) = &state.begun else {
            // A missing server is no error: it may start later.
            let Ok(talk) = Talk::to(&self.socket) else {
                return;
            };
            let own = self.region.get().map(|region| region.as_fd());
            if talk.say(Word::Hello, own, self.frame_bytes).is_ok() {
                state.begun = Some(talk);
            }
            return;
        };
        match host.hear() {
            Heard::Nothing => return,
            Heard::End => {}
            Heard::Word(Word::Joined | Word::Unfit, _, theirs) if self.differs(theirs) => {
                state.trouble = Some(Trouble::Frames(theirs));
            }
            Heard::Word(Word::Joined, file, _) => match (self.region.get(), file) {
                (None, Some(file)) => match self.adopted(file) {
                    Ok(region) => {
                        let _ = self.region.set(region);
                        state.joined();
                    }
                    Err(trouble) => state.trouble = Some(trouble),
                },
                (Some(_), None) => state.joined(),
                _ => state.trouble = Some(Trouble::Unfit),
            },
            Heard::Word(Word::Taken, ..) => state.trouble = Some(Trouble::Taken),
            Heard::Word(Word::Unfit, ..) => state.trouble = Some(Trouble::Unfit),
            Heard::Word(..) | Heard::Unknown => state.trouble = Some(Trouble::Unknown),
        }
        state.begun = None;
    }

    /// Maps the memory of the peer, if its slots have the agreed size.
    fn adopted(&self, file: OwnedFd) -> Result<Arc<Region>, Trouble> {
        match Region::adopt(file) {
            Ok(Some(region)) if region.shape().slot_bytes == self.shape.slot_bytes => {
                Ok(Arc::new(region))
            }
            Ok(Some(region)) => Err(Trouble::Slots(region.shape().slot_bytes)),
            Ok(None) => Err(Trouble::Unknown),
            Err(error) => Err(Trouble::System(MAP, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls at this interval, in simulated time, until a check is due; returns the polls and the
    /// time.
    fn until_over(
        idle: &mut Idle,
        now: &mut Instant,
        apart: Duration,
        most: u32,
    ) -> (u32, Duration) {
        let from = *now;
        for polls in 1..=most {
            *now += apart;
            idle.polls += 1;
            if idle.polls >= idle.every && idle.is_over_at(*now) {
                return (polls, *now - from);
            }
        }
        panic!("not within {most} polls");
    }

    #[test]
    fn a_loop_that_sleeps_looks_around_as_soon_as_one_that_spins() {
        let mut now = Instant::now();
        for apart in [50, 50_000, 1_000_000, 3_000_000, 20_000_000] {
            let apart = Duration::from_nanos(apart);
            let mut idle = Idle::new();
            assert!(idle.is_over_at(now));
            for _ in 0..10 {
                let (_, took) = until_over(&mut idle, &mut now, apart, 1_000_000);
                assert!(took <= PERIOD * 2 || took == apart, "{apart:?}: {took:?}");
            }
        }
    }

    /// A spinning loop rarely reads the clock; when its pace changes, the interval adapts.
    #[test]
    fn a_pace_that_changes_is_followed() {
        let (mut idle, mut now) = (Idle::new(), Instant::now());
        for _ in 0..20 {
            until_over(&mut idle, &mut now, Duration::from_nanos(50), 1_000_000);
        }
        assert_eq!(idle.every, POLLS);
        let apart = Duration::from_millis(1);
        until_over(&mut idle, &mut now, apart, POLLS);
        let (polls, _) = until_over(&mut idle, &mut now, apart, POLLS);
        assert!(polls <= 10, "{polls}");
    }

    /// A queue without a peer reads the clock at each poll.
    #[test]
    fn one_that_waits_for_its_other_end_asks_each_time() {
        let mut idle = Idle::new();
        assert!(idle.is_over(true));
        idle.every = POLLS;
        let long_ago = Instant::now().checked_sub(PERIOD * 2).unwrap();
        idle.last = Some(long_ago);
        assert!(!idle.is_over(false));
        assert!(idle.is_over(true));
    }
}
