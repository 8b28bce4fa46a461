//! The ways in which calls on kernel sockets wait: each is a type, and the loop is compiled for it.

use std::io;
use std::time::Duration;

use linerate_host::sys::socket::Flags;
use linerate_host::sys::wait::{self, Events, Ready};
use linerate_metric::plan::Wait;
use socket2::Socket;

use super::super::calls::{Call, Recorder, watched};

/// Longest sleep for any of several sockets: how soon a stop is noticed.
pub const IDLE_PATIENCE: Duration = Duration::from_millis(100);

/// Ready sockets taken at a time: a call of `epoll_wait` for so many costs little for each, and a
/// stop is noticed in between.
const EVENTS_AT_ONCE: usize = 256;

/// How calls on sockets wait.
pub trait Waiting: Sized {
    /// Flags of every call.
    const FLAGS: Flags;
    /// Whether a call, or what goes before it, sleeps until its one socket can go on.
    const SLEEPS_IN_CALLS: bool;
    /// Whether it is the send and receive calls themselves that sleep.
    const CALLS_SLEEP: bool = false;
    /// The call that it waits with, if that is another one.
    const WAITS_WITH: Option<Call> = None;
    /// Whether a thread may sleep until a departure is due.
    const SLEEPS: bool = true;
    /// How often an empty receive queue is looked at before the workload is told.
    const LOOKS: usize = 1;
    /// Whether a thread that waits like this uses no file but its sockets, so that it may have a
    /// table of open files of its own.
    const SOCKETS_ALONE: bool = false;

    /// Whether it tells of changes at sockets that were enrolled for that.
    const TELLS_CHANGES: bool = false;

    /// Gets ready to wait.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    fn new(wait: Wait) -> io::Result<Self>;

    /// Sleeps until there is something to receive; false when nothing came in time.
    #[inline]
    fn before_receive<R: Recorder>(
        &mut self,
        _calls: &mut R,
        _socket: &Socket,
        _patience: Duration,
    ) -> io::Result<bool> {
        Ok(true)
    }

    /// Sleeps until there may be room to send again.
    #[inline]
    fn no_room<R: Recorder>(
        &mut self,
        _calls: &mut R,
        _socket: &Socket,
        _patience: Duration,
    ) -> io::Result<()> {
        Ok(())
    }

    /// Notes that a socket could not go on.
    #[inline]
    fn starved(&mut self, _index: usize, _socket: &Socket, _ready: Ready) -> io::Result<()> {
        Ok(())
    }

    /// Sleeps until any socket can go on.
    #[inline]
    fn idle<R: Recorder>(&mut self, _calls: &mut R, _patience: Duration) {}

    /// Notes under which number a socket is to be told by [`Self::ready`]; false where it is not.
    fn enrol(
        &mut self,
        _index: usize,
        _socket: &Socket,
        _ready: Ready,
        _key: usize,
    ) -> io::Result<bool> {
        Ok(false)
    }

    /// Notes under which number changes at a socket are to be told by [`Self::ready`].
    fn enrol_changes(&mut self, _index: usize, _socket: &Socket, _key: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sleeps until enrolled sockets can go on, and adds their numbers.
    fn ready<R: Recorder>(&mut self, _calls: &mut R, _keys: &mut Vec<usize>, _patience: Duration) {}

    /// Does not wait for a socket any more.
    fn forget(&mut self, _index: usize, _socket: &Socket) {}

    /// Notes that a socket closes that nobody else has open: the kernel forgets it by itself.
    fn closes(&mut self, _index: usize) {}
}

/// Calls sleep until they can go on.
pub struct Block;
/// Calls return at once.
pub struct Spin;
/// `poll` sleeps before each receive call.
pub struct Poll;
/// `select` sleeps before each receive call.
pub struct Select {
    timeout: Option<Duration>,
}
/// What `epoll_wait` is to tell of a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// That it can go on, as long as it can.
    For(Ready),
    /// Whatever changes, once.
    Changes,
}
/// `epoll_wait` sleeps when no socket could go on.
pub struct Epoll {
    instance: wait::Epoll,
    /// What each socket is watched for.
    watched: Vec<Option<Watched>>,
    /// Whoever waits has its sockets enrolled for changes: that one could not go on tells it nothing.
    by_changes: bool,
    /// What was found at a time.
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
    // A dozen microseconds: what the workload does between two looks is no longer seen in the
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
        let look = |patience| wait::poll(socket, Ready::Receive, patience);
        watched(calls, Call::Poll, patience, look)
    }

    fn no_room<R: Recorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        patience: Duration,
    ) -> io::Result<()> {
        let look = |patience| wait::poll(socket, Ready::Send, patience);
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
            // A stop has to be noticed, whatever the time-out.
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
        let look = |patience| wait::select(socket, Ready::Receive, patience);
        watched(calls, Call::Select, patience, look)
    }

    fn no_room<R: Recorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        patience: Duration,
    ) -> io::Result<()> {
        let patience = self.timeout.unwrap_or(patience);
        let look = |patience| wait::select(socket, Ready::Send, patience);
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
            instance: wait::Epoll::new()?,
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
            // Not watched is what was wanted, whatever the reason.
            let _ = self.instance.forget(socket);
        }
    }

    fn closes(&mut self, index: usize) {
        if let Some(watched) = self.watched.get_mut(index) {
            *watched = None;
        }
    }
}
