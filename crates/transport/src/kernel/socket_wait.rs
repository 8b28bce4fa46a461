//! Ways to wait on kernel sockets: each is a type, and the measuring loop is compiled for it.

use std::io;
use std::time::Duration;

use linerate_record::plan::WaitMode;
use linerate_sys::readiness;
use linerate_sys::readiness::{EpollEvents, Readiness};
use linerate_sys::socket::MessageFlags;
use socket2::Socket;

use super::super::call_times::{CallRecorder, TransportCall, poll_readiness};

/// Longest wait for any of several sockets: the delay until a stop is noticed.
pub const IDLE_TIMEOUT: Duration = Duration::from_millis(100);

/// Largest number of ready sockets per `epoll_wait`: enough to make the call cheap per socket, few
/// enough to notice a stop in between.
const EVENTS_PER_WAIT: usize = 256;

/// Way in which calls on sockets wait.
pub trait SocketWait: Sized {
    /// Flags of every send and receive call.
    const CALL_FLAGS: MessageFlags;
    /// True if a call, or the wait before it, blocks until its one socket is ready.
    const BLOCKS_ON_ONE_SOCKET: bool;
    /// True if the send and receive calls themselves block.
    const CALLS_BLOCK: bool = false;
    /// Separate call that waits, if any.
    const WAIT_CALL: Option<TransportCall> = None;
    /// True if a thread may sleep until a departure time.
    const MAY_SLEEP: bool = true;
    /// Number of tries on an empty receive queue before the workload regains control.
    const RECEIVE_TRIES: usize = 1;
    /// True if a thread that waits this way uses no files except its sockets, so that it may have
    /// a file table of its own.
    const SOCKETS_ONLY: bool = false;

    /// True if sockets can be registered edge-triggered.
    const EDGE_TRIGGERED: bool = false;

    /// Creates the state of the wait.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    fn new(wait: WaitMode) -> io::Result<Self>;

    /// Blocks until there is data; returns false when the timeout expires first.
    #[inline]
    fn wait_receivable<R: CallRecorder>(
        &mut self,
        _calls: &mut R,
        _socket: &Socket,
        _timeout: Duration,
    ) -> io::Result<bool> {
        Ok(true)
    }

    /// Blocks until there may be space to send.
    #[inline]
    fn wait_writable<R: CallRecorder>(
        &mut self,
        _calls: &mut R,
        _socket: &Socket,
        _timeout: Duration,
    ) -> io::Result<()> {
        Ok(())
    }

    /// Records that a socket was not ready.
    #[inline]
    fn mark_starved(
        &mut self,
        _index: usize,
        _socket: &Socket,
        _ready: Readiness,
    ) -> io::Result<()> {
        Ok(())
    }

    /// Blocks until any socket is ready.
    #[inline]
    fn idle<R: CallRecorder>(&mut self, _calls: &mut R, _timeout: Duration) {}

    /// Registers a socket under a key, level-triggered; returns false where that is not supported.
    fn register(
        &mut self,
        _index: usize,
        _socket: &Socket,
        _ready: Readiness,
        _key: usize,
    ) -> io::Result<bool> {
        Ok(false)
    }

    /// Registers a socket under a key, edge-triggered.
    fn register_edge_triggered(
        &mut self,
        _index: usize,
        _socket: &Socket,
        _key: usize,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Blocks until registered sockets are ready and appends their keys.
    fn wait_ready<R: CallRecorder>(
        &mut self,
        _calls: &mut R,
        _keys: &mut Vec<usize>,
        _timeout: Duration,
    ) {
    }

    /// Removes a socket from the wait.
    fn deregister(&mut self, _index: usize, _socket: &Socket) {}

    /// Records that a socket closes that is open nowhere else: the kernel removes it by itself.
    fn on_close(&mut self, _index: usize) {}
}

/// Blocking calls.
pub struct BlockingWait;
/// Non-blocking calls, repeated.
pub struct SpinWait;
/// `poll` blocks before each receive call.
pub struct PollWait;
/// `select` blocks before each receive call.
pub struct SelectWait {
    timeout: Option<Duration>,
}
/// Interest with which a socket is registered at `epoll`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EpollInterest {
    /// Level-triggered.
    Level(Readiness),
    /// Edge-triggered.
    Edge,
}
/// `epoll_wait` blocks when no socket was ready.
pub struct EpollWait {
    instance: readiness::EpollSet,
    /// Interest of each socket.
    interests: Vec<Option<EpollInterest>>,
    /// True if sockets are registered edge-triggered: an unready socket needs no re-registration.
    is_edge_triggered: bool,
    /// Events of the last `epoll_wait`.
    events: EpollEvents,
}

impl SocketWait for BlockingWait {
    const SOCKETS_ONLY: bool = true;
    const CALL_FLAGS: MessageFlags = MessageFlags::NONE;
    const BLOCKS_ON_ONE_SOCKET: bool = true;
    const CALLS_BLOCK: bool = true;

    fn new(_: WaitMode) -> io::Result<Self> {
        Ok(Self)
    }
}

impl SocketWait for SpinWait {
    const SOCKETS_ONLY: bool = true;
    const CALL_FLAGS: MessageFlags = MessageFlags::DONT_WAIT;
    const BLOCKS_ON_ONE_SOCKET: bool = false;
    const MAY_SLEEP: bool = false;
    // About a dozen microseconds: the workload's own time between two tries no longer shows in the
    // round trip, and a stop is still noticed at once.
    const RECEIVE_TRIES: usize = 64;

    fn new(_: WaitMode) -> io::Result<Self> {
        Ok(Self)
    }
}

impl SocketWait for PollWait {
    const SOCKETS_ONLY: bool = true;
    const CALL_FLAGS: MessageFlags = MessageFlags::DONT_WAIT;
    const BLOCKS_ON_ONE_SOCKET: bool = true;
    const WAIT_CALL: Option<TransportCall> = Some(TransportCall::Poll);

    fn new(_: WaitMode) -> io::Result<Self> {
        Ok(Self)
    }

    #[inline]
    fn wait_receivable<R: CallRecorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        timeout: Duration,
    ) -> io::Result<bool> {
        let check = |timeout| readiness::poll(socket, Readiness::Receive, timeout);
        poll_readiness(calls, TransportCall::Poll, timeout, check)
    }

    fn wait_writable<R: CallRecorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        timeout: Duration,
    ) -> io::Result<()> {
        let check = |timeout| readiness::poll(socket, Readiness::Send, timeout);
        poll_readiness(calls, TransportCall::Poll, timeout, check).map(|_| ())
    }
}

impl SocketWait for SelectWait {
    const SOCKETS_ONLY: bool = true;
    const CALL_FLAGS: MessageFlags = MessageFlags::DONT_WAIT;
    const BLOCKS_ON_ONE_SOCKET: bool = true;
    const WAIT_CALL: Option<TransportCall> = Some(TransportCall::Select);

    fn new(wait: WaitMode) -> io::Result<Self> {
        let timeout = match wait {
            // Bounded, so that a stop is noticed with any timeout.
            WaitMode::Select { timeout_ns } => timeout_ns.map(Duration::from_nanos),
            _ => None,
        };
        Ok(Self {
            timeout: timeout.map(|timeout| timeout.min(IDLE_TIMEOUT)),
        })
    }

    #[inline]
    fn wait_receivable<R: CallRecorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        timeout: Duration,
    ) -> io::Result<bool> {
        let timeout = self.timeout.unwrap_or(timeout);
        let check = |timeout| readiness::select(socket, Readiness::Receive, timeout);
        poll_readiness(calls, TransportCall::Select, timeout, check)
    }

    fn wait_writable<R: CallRecorder>(
        &mut self,
        calls: &mut R,
        socket: &Socket,
        timeout: Duration,
    ) -> io::Result<()> {
        let timeout = self.timeout.unwrap_or(timeout);
        let check = |timeout| readiness::select(socket, Readiness::Send, timeout);
        poll_readiness(calls, TransportCall::Select, timeout, check).map(|_| ())
    }
}

impl SocketWait for EpollWait {
    const CALL_FLAGS: MessageFlags = MessageFlags::DONT_WAIT;
    const BLOCKS_ON_ONE_SOCKET: bool = false;
    const WAIT_CALL: Option<TransportCall> = Some(TransportCall::EpollWait);
    const EDGE_TRIGGERED: bool = true;

    fn new(_: WaitMode) -> io::Result<Self> {
        Ok(Self {
            instance: readiness::EpollSet::new()?,
            interests: Vec::new(),
            is_edge_triggered: false,
            events: EpollEvents::with_capacity(EVENTS_PER_WAIT),
        })
    }

    fn register(
        &mut self,
        index: usize,
        socket: &Socket,
        ready: Readiness,
        key: usize,
    ) -> io::Result<bool> {
        if self.interests.len() <= index {
            self.interests.resize(index + 1, None);
        }
        if self.interests[index].take().is_some() {
            self.instance.deregister(socket)?;
        }
        self.instance.register(socket, ready, key as u64)?;
        self.interests[index] = Some(EpollInterest::Level(ready));
        Ok(true)
    }

    fn register_edge_triggered(
        &mut self,
        index: usize,
        socket: &Socket,
        key: usize,
    ) -> io::Result<()> {
        if self.interests.len() <= index {
            self.interests.resize(index + 1, None);
        }
        if self.interests[index].take().is_some() {
            self.instance.deregister(socket)?;
        }
        self.is_edge_triggered = true;
        self.instance.register_edge_triggered(socket, key as u64)?;
        self.interests[index] = Some(EpollInterest::Edge);
        Ok(())
    }

    #[inline]
    fn wait_ready<R: CallRecorder>(
        &mut self,
        calls: &mut R,
        keys: &mut Vec<usize>,
        timeout: Duration,
    ) {
        calls.begin();
        let mut count = 0;
        let check = |timeout| {
            count = self.instance.wait(timeout, &mut self.events)?;
            Ok(count > 0)
        };
        // A failure shows at the next call on the socket.
        let _ = poll_readiness(calls, TransportCall::EpollWait, timeout, check);
        keys.extend((0..count).map(|nth| self.events.key(nth) as usize));
    }

    #[inline]
    fn mark_starved(&mut self, index: usize, socket: &Socket, ready: Readiness) -> io::Result<()> {
        if self.is_edge_triggered {
            return Ok(());
        }
        if self.interests.len() <= index {
            self.interests.resize(index + 1, None);
        }
        let interest = &mut self.interests[index];
        if *interest != Some(EpollInterest::Level(ready)) {
            self.instance
                .register_or_modify(socket, ready, interest.is_some())?;
            *interest = Some(EpollInterest::Level(ready));
        }
        Ok(())
    }

    #[inline]
    fn idle<R: CallRecorder>(&mut self, calls: &mut R, timeout: Duration) {
        calls.begin();
        let check = |timeout| Ok(self.instance.wait(timeout, &mut self.events)? > 0);
        // A failure shows at the next call on the socket.
        let _ = poll_readiness(calls, TransportCall::EpollWait, timeout, check);
    }

    fn deregister(&mut self, index: usize, socket: &Socket) {
        if let Some(interest) = self.interests.get_mut(index)
            && interest.take().is_some()
        {
            // An error means that it was not registered, which is the goal.
            let _ = self.instance.deregister(socket);
        }
    }

    fn on_close(&mut self, index: usize) {
        if let Some(interest) = self.interests.get_mut(index) {
            *interest = None;
        }
    }
}
