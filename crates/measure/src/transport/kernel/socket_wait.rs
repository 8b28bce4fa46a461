//! Ways to wait on kernel sockets: each is a type, and the measuring loop is compiled for it.

use std::io;
use std::time::Duration;

use linerate_host::sys::readiness::{self, Events, Ready};
use linerate_host::sys::socket::Flags;
use linerate_metric::plan::Wait;
use socket2::Socket;

use super::super::call_times::{Call, Recorder, watched};

/// Longest wait for any of several sockets: the delay until a stop is noticed.
pub const IDLE_PATIENCE: Duration = Duration::from_millis(100);

/// Largest number of ready sockets per `epoll_wait`: enough to make the call cheap per socket, few
/// enough to notice a stop in between.
const EVENTS_AT_ONCE: usize = 256;

/// Way in which calls on sockets wait.
pub trait Waiting: Sized {
    /// Flags of every send and receive call.
    const FLAGS: Flags;
    /// True if a call, or the wait before it, blocks until its one socket is ready.
    const SLEEPS_IN_CALLS: bool;
    /// True if the send and receive calls themselves block.
    const CALLS_SLEEP: bool = false;
    /// Separate call that waits, if any.
    const WAITS_WITH: Option<Call> = None;
    /// True if a thread may sleep until a departure time.
    const SLEEPS: bool = true;
    /// Number of tries on an empty receive queue before the workload regains control.
    const LOOKS: usize = 1;
    /// True if a thread that waits this way uses no files except its sockets, so that it may have
    /// a file table of its own.
    const SOCKETS_ALONE: bool = false;

    /// True if sockets can be registered edge-triggered.
    const TELLS_CHANGES: bool = false;

    /// Creates the state of the wait.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    fn new(wait: Wait) -> io::Result<Self>;

    /// Blocks until there is data; returns false when the timeout expires first.
    #[inline]
    fn before_receive<R: Recorder>(
        &mut self,
        _calls: &mut R,
        _socket: &Socket,
        _patience: Duration,
    ) -> io::Result<bool> {
        Ok(true)
    }

    /// Blocks until there may be space to send.
    #[inline]
    fn no_room<R: Recorder>(
        &mut self,
        _calls: &mut R,
        _socket: &Socket,
        _patience: Duration,
    ) -> io::Result<()> {
        Ok(())
    }

    /// Records that a socket was not ready.
    #[inline]
    fn starved(&mut self, _index: usize, _socket: &Socket, _ready: Ready) -> io::Result<()> {
        Ok(())
    }

    /// Blocks until any socket is ready.
    #[inline]
    fn idle<R: Recorder>(&mut self, _calls: &mut R, _patience: Duration) {}

    /// Registers a socket under a key, level-triggered; returns false where that is not supported.
    fn enrol(
        &mut self,
        _index: usize,
        _socket: &Socket,
        _ready: Ready,
        _key: usize,
    ) -> io::Result<bool> {
        Ok(false)
    }

    /// Registers a socket under a key, edge-triggered.
    fn enrol_changes(&mut self, _index: usize, _socket: &Socket, _key: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Blocks until registered sockets are ready and appends their keys.
    fn ready<R: Recorder>(&mut self, _calls: &mut R, _keys: &mut Vec<usize>, _patience: Duration) {}

    /// Removes a socket from the wait.
    fn forget(&mut self, _index: usize, _socket: &Socket) {}

    /// Records that a socket closes that is open nowhere else: the kernel removes it by itself.
    fn closes(&mut self, _index: usize) {}
}

/// Blocking calls.
pub struct Block;
/// Non-blocking calls, repeated.
pub struct Spin;
/// `poll` blocks before each receive call.
pub struct Poll;
/// `select` blocks before each receive call.
pub struct Select {
    timeout: Option<Duration>,
}
/// Interest with which a socket is registered at `epoll`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// Level-triggered.
    For(Ready),
    /// Edge-triggered.
    Changes,
}
/// `epoll_wait` blocks when no socket was ready.
pub struct Epoll {
    instance: readiness::Epoll,
    /// Interest of each socket.
    watched: Vec<Option<Watched>>,
    /// True if sockets are registered edge-triggered: an unready socket needs no re-registration.
    by_changes: bool,
    /// Events of the last `epoll_wait`.
    events: Events,
}

impl Waiting for Block {
    const SOCKETS_ALONE: bool = true;
    const FLAGS: Flags = Flags::NONE;
    const SLEEPS_IN_CALLS: bool = true;
    const CALLS_SLEEP: bool = true;

    fn new(_: Wait) -> io::Result<Self> {
        Ok(Self)
    }
}

impl Waiting for Spin {
    const SOCKETS_ALONE: bool = true;
    const FLAGS: Flags = Flags::DONT_WAIT;
    const SLEEPS_IN_CALLS: bool = false;
    const SLEEPS: bool = false;
    // About a dozen microseconds: the workload's own time between two tries no longer shows in the
    // round trip, and a stop is still noticed at once.
    const LOOKS: usize = 64;

    fn new(_: Wait) -> io::Result<Self> {
        Ok(Self)
    }
}

impl Waiting for Poll {
    const SOCKETS_ALONE: bool = true;
    const FLAGS: Flags = Flags::DONT_WAIT;
    const SLEEPS_IN_CALLS: bool = true;
    const WAITS_WITH: Option<Call> = Some(Call::Poll);

    fn new(_: Wait) -> io::Result<Self> {
        Ok(Self)
    }

    #[inline]
    fn before_receive<R: Recorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        patience: Duration,
    ) -> io::Result<bool> {
        let look = |patience| readiness::poll(socket, Ready::Receive, patience);
        watched(calls, Call::Poll, patience, look)
    }

    fn no_room<R: Recorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        patience: Duration,
    ) -> io::Result<()> {
        let look = |patience| readiness::poll(socket, Ready::Send, patience);
        watched(calls, Call::Poll, patience, look).map(|_| ())
    }
}

impl Waiting for Select {
    const SOCKETS_ALONE: bool = true;
    const FLAGS: Flags = Flags::DONT_WAIT;
    const SLEEPS_IN_CALLS: bool = true;
    const WAITS_WITH: Option<Call> = Some(Call::Select);

    fn new(wait: Wait) -> io::Result<Self> {
        let timeout = match wait {
            // Bounded, so that a stop is noticed with any timeout.
            Wait::Select { timeout_ns } => timeout_ns.map(Duration::from_nanos),
            _ => None,
        };
        Ok(Self {
            timeout: timeout.map(|timeout| timeout.min(IDLE_PATIENCE)),
        })
    }

    #[inline]
    fn before_receive<R: Recorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        patience: Duration,
    ) -> io::Result<bool> {
        let patience = self.timeout.unwrap_or(patience);
        let look = |patience| readiness::select(socket, Ready::Receive, patience);
        watched(calls, Call::Select, patience, look)
    }

    fn no_room<R: Recorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        patience: Duration,
    ) -> io::Result<()> {
        let patience = self.timeout.unwrap_or(patience);
        let look = |patience| readiness::select(socket, Ready::Send, patience);
        watched(calls, Call::Select, patience, look).map(|_| ())
    }
}

impl Waiting for Epoll {
    const FLAGS: Flags = Flags::DONT_WAIT;
    const SLEEPS_IN_CALLS: bool = false;
    const WAITS_WITH: Option<Call> = Some(Call::EpollWait);
    const TELLS_CHANGES: bool = true;

    fn new(_: Wait) -> io::Result<Self> {
        Ok(Self {
            instance: readiness::Epoll::new()?,
            watched: Vec::new(),
            by_changes: false,
            events: Events::with_room(EVENTS_AT_ONCE),
        })
    }

    fn enrol(
        &mut self,
        index: usize,
        socket: &Socket,
        ready: Ready,
        key: usize,
    ) -> io::Result<bool> {
        if self.watched.len() <= index {
            self.watched.resize(index + 1, None);
        }
        if self.watched[index].take().is_some() {
            self.instance.forget(socket)?;
        }
        self.instance.enrol(socket, ready, key as u64)?;
        self.watched[index] = Some(Watched::For(ready));
        Ok(true)
    }

    fn enrol_changes(&mut self, index: usize, socket: &Socket, key: usize) -> io::Result<()> {
        if self.watched.len() <= index {
            self.watched.resize(index + 1, None);
        }
        if self.watched[index].take().is_some() {
            self.instance.forget(socket)?;
        }
        self.by_changes = true;
        self.instance.enrol_changes(socket, key as u64)?;
        self.watched[index] = Some(Watched::Changes);
        Ok(())
    }

    #[inline]
    fn ready<R: Recorder>(&mut self, calls: &mut R, keys: &mut Vec<usize>, patience: Duration) {
        calls.begin();
        let mut count = 0;
        let look = |patience| {
            count = self.instance.wait_for(patience, &mut self.events)?;
            Ok(count > 0)
        };
        // A failure shows at the next call on the socket.
        let _ = watched(calls, Call::EpollWait, patience, look);
        keys.extend((0..count).map(|nth| self.events.key(nth) as usize));
    }

    #[inline]
    fn starved(&mut self, index: usize, socket: &Socket, ready: Ready) -> io::Result<()> {
        if self.by_changes {
            return Ok(());
        }
        if self.watched.len() <= index {
            self.watched.resize(index + 1, None);
        }
        let watched = &mut self.watched[index];
        if *watched != Some(Watched::For(ready)) {
            self.instance.watch(socket, ready, watched.is_some())?;
            *watched = Some(Watched::For(ready));
        }
        Ok(())
    }

    #[inline]
    fn idle<R: Recorder>(&mut self, calls: &mut R, patience: Duration) {
        calls.begin();
        let look = |patience| Ok(self.instance.wait_for(patience, &mut self.events)? > 0);
        // A failure shows at the next call on the socket.
        let _ = watched(calls, Call::EpollWait, patience, look);
    }

    fn forget(&mut self, index: usize, socket: &Socket) {
        if let Some(watched) = self.watched.get_mut(index)
            && watched.take().is_some()
        {
            // An error means that it was not registered, which is the goal.
            let _ = self.instance.forget(socket);
        }
    }

    fn closes(&mut self, index: usize) {
        if let Some(watched) = self.watched.get_mut(index) {
            *watched = None;
        }
    }
}
