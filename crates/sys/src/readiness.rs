//! Calls that wait for sockets: poll, select, epoll. Like the calls that move payload, they go
//! through libc's symbols.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Readable.
    Receive,
    /// Writable.
    Send,
}

impl Readiness {
    /// Flag of `poll`.
    fn events(self) -> libc::c_short {
        match self {
            Self::Receive => libc::POLLIN,
            Self::Send => libc::POLLOUT,
        }
    }

    /// Flag of `epoll`.
    fn epoll_events(self) -> libc::c_int {
        match self {
            Self::Receive => libc::EPOLLIN,
            Self::Send => libc::EPOLLOUT,
        }
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs() as libc::time_t,
        tv_nsec: duration.subsec_nanos() as _,
    }
}

/// Returns whether a call with this `result` reported a ready socket; interruption by a signal
/// counts as none.
fn is_ready_result(result: libc::c_int) -> io::Result<bool> {
    if result >= 0 {
        return Ok(result > 0);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        error => Err(error),
    }
}

/// Waits with `ppoll`; returns whether the socket is ready.
///
/// # Errors
/// Errors of `ppoll`.
pub fn poll(socket: &impl AsRawFd, readiness: Readiness, timeout: Duration) -> io::Result<bool> {
    let mut poll_fds = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: readiness.events(),
        revents: 0,
    };
    let timeout_spec = timespec(timeout);
    // SAFETY: one pollfd is passed, writable through the call; no signal mask is.
    let result = unsafe {
        libc::ppoll(
            &raw mut poll_fds,
            1,
            &raw const timeout_spec,
            std::ptr::null(),
        )
    };
    is_ready_result(result)
}

/// Waits with `ppoll` for any of several descriptors, each with its condition (a descriptor may
/// occur twice); returns whether one is ready.
///
/// # Errors
/// Errors of `ppoll`.
pub fn poll_any(poll_fds: &[(BorrowedFd<'_>, Readiness)], timeout: Duration) -> io::Result<bool> {
    let mut poll_fds: Vec<_> = (poll_fds.iter())
        .map(|(fd, readiness)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: readiness.events(),
            revents: 0,
        })
        .collect();
    let timeout_spec = timespec(timeout);
    // SAFETY: the vector holds that many pollfds, writable through the call; no signal mask is
    // passed.
    let result = unsafe {
        libc::ppoll(
            poll_fds.as_mut_ptr(),
            poll_fds.len() as libc::nfds_t,
            &raw const timeout_spec,
            std::ptr::null(),
        )
    };
    is_ready_result(result)
}

/// Waits with `select`; returns whether the socket is ready.
///
/// # Errors
/// `InvalidInput` for a descriptor that does not fit a `fd_set` (1024 and above), or errors of
/// `select`.
pub fn select(socket: &impl AsRawFd, readiness: Readiness, timeout: Duration) -> io::Result<bool> {
    let fd = socket.as_raw_fd();
    if fd < 0 || fd as usize >= libc::FD_SETSIZE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a fd_set is an array of integers; all zeros is its empty set.
    let mut set: libc::fd_set = unsafe { mem::zeroed() };
    // SAFETY: `fd` was checked to lie within the set.
    unsafe { libc::FD_SET(fd, &raw mut set) };
    let mut timeout_val = libc::timeval {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_usec: timeout.subsec_micros() as _,
    };
    let none = std::ptr::null_mut();
    let (receive, send) = match readiness {
        Readiness::Receive => (&raw mut set, none),
        Readiness::Send => (none, &raw mut set),
    };
    // SAFETY: the sets and the timeout are writable during the call, or null where that is allowed.
    let result = unsafe { libc::select(fd + 1, receive, send, none, &raw mut timeout_val) };
    is_ready_result(result)
}

/// Epoll instance.
#[derive(Debug)]
pub struct EpollSet(OwnedFd);

/// The descriptor can be polled itself: it is readable while a registered socket is ready.
impl AsRawFd for EpollSet {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl EpollSet {
    /// Creates an instance without sockets.
    ///
    /// # Errors
    /// Fails when the process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers.
        let fd: RawFd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, and no other value owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Registers a socket, or changes the condition of a registered (`is_registered`) one.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn register_or_modify(
        &self,
        socket: &impl AsRawFd,
        readiness: Readiness,
        is_registered: bool,
    ) -> io::Result<()> {
        let operation = if is_registered {
            libc::EPOLL_CTL_MOD
        } else {
            libc::EPOLL_CTL_ADD
        };
        self.control(operation, socket, readiness.epoll_events(), 0)
    }

    /// Registers a socket with a key that [`Self::wait`] reports when the socket is ready.
    ///
    /// Level-triggered: a socket is reported as long as it is ready, after all other ready ones, so
    /// that none starves.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn register(
        &self,
        socket: &impl AsRawFd,
        readiness: Readiness,
        key: u64,
    ) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, readiness.epoll_events(), key)
    }

    /// Registers a socket for all events with a key that [`Self::wait`] reports on a change:
    /// connected, data received, writable again, or closed.
    ///
    /// Edge-triggered: the current state is reported once, then only changes.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn register_edge_triggered(&self, socket: &impl AsRawFd, key: u64) -> io::Result<()> {
        let all = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        self.control(libc::EPOLL_CTL_ADD, socket, all, key)
    }

    fn control(
        &self,
        operation: libc::c_int,
        socket: &impl AsRawFd,
        events: libc::c_int,
        key: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: key,
        };
        // SAFETY: the event is readable through the call; the kernel copies it.
        let result = unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                operation,
                socket.as_raw_fd(),
                &raw mut event,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Deregisters a socket.
    ///
    /// # Errors
    /// Fails when it was not registered.
    pub fn deregister(&self, socket: &impl AsRawFd) -> io::Result<()> {
        // SAFETY: removing takes no event; null is allowed for it since Linux 2.6.9.
        let result = unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                socket.as_raw_fd(),
                std::ptr::null_mut(),
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Waits until a registered socket is ready and stores the keys of ready ones in `events`;
    /// returns their number. The timeout is rounded up to milliseconds.
    ///
    /// # Errors
    /// Errors of `epoll_wait`.
    pub fn wait(&self, timeout: Duration, events: &mut EpollEvents) -> io::Result<usize> {
        events.ready_count = 0;
        let milliseconds = timeout.as_micros().div_ceil(1_000);
        let milliseconds = libc::c_int::try_from(milliseconds).unwrap_or(libc::c_int::MAX);
        // SAFETY: the events are writable for the number given.
        let result = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.buffer.as_mut_ptr(),
                events.buffer.len() as libc::c_int,
                milliseconds,
            )
        };
        if is_ready_result(result)? {
            events.ready_count = result as usize;
        }
        Ok(events.ready_count)
    }
}

/// Buffer for the events of [`EpollSet::wait`], allocated once.
pub struct EpollEvents {
    buffer: Vec<libc::epoll_event>,
    ready_count: usize,
}

impl EpollEvents {
    /// Allocates a buffer for at least one socket at a time.
    #[must_use]
    pub fn with_capacity(sockets: usize) -> Self {
        Self {
            buffer: vec![libc::epoll_event { events: 0, u64: 0 }; sockets.max(1)],
            ready_count: 0,
        }
    }

    /// Returns the key of the nth ready socket.
    #[must_use]
    pub fn key(&self, nth: usize) -> u64 {
        self.buffer[nth].u64
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn every_call_reports_readiness() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        let epoll = EpollSet::new().unwrap();
        epoll
            .register_or_modify(&remote, Readiness::Receive, false)
            .unwrap();
        let mut events = EpollEvents::with_capacity(4);
        let short_timeout = Duration::from_millis(2);
        assert!(!poll(&remote, Readiness::Receive, short_timeout).unwrap());
        assert!(!select(&remote, Readiness::Receive, short_timeout).unwrap());
        assert_eq!(epoll.wait(short_timeout, &mut events).unwrap(), 0);
        let any = [
            (remote.as_fd(), Readiness::Receive),
            (local.as_fd(), Readiness::Receive),
        ];
        assert!(!poll_any(&any, short_timeout).unwrap());
        local.send(b"now").unwrap();
        let long_timeout = Duration::from_secs(5);
        assert!(poll(&remote, Readiness::Receive, long_timeout).unwrap());
        assert!(poll_any(&any, long_timeout).unwrap());
        assert!(select(&remote, Readiness::Receive, long_timeout).unwrap());
        assert_eq!(epoll.wait(long_timeout, &mut events).unwrap(), 1);
        assert!(poll(&local, Readiness::Send, long_timeout).unwrap());
        assert!(select(&local, Readiness::Send, long_timeout).unwrap());
        epoll
            .register_or_modify(&remote, Readiness::Send, true)
            .unwrap();
        assert_eq!(epoll.wait(long_timeout, &mut events).unwrap(), 1);
    }

    #[test]
    fn edge_triggered_changes_are_reported_once() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        let epoll = EpollSet::new().unwrap();
        let mut events = EpollEvents::with_capacity(4);
        let (long_timeout, short_timeout) = (Duration::from_secs(5), Duration::from_millis(2));
        epoll.register_edge_triggered(&remote, 7).unwrap();
        // Writable already: reported once.
        assert_eq!(epoll.wait(long_timeout, &mut events).unwrap(), 1);
        assert_eq!(events.key(0), 7);
        assert_eq!(epoll.wait(short_timeout, &mut events).unwrap(), 0);
        for _ in 0..2 {
            local.send(b"now").unwrap();
            assert_eq!(epoll.wait(long_timeout, &mut events).unwrap(), 1);
            // Data were not read, but the state did not change: no report.
            assert_eq!(epoll.wait(short_timeout, &mut events).unwrap(), 0);
        }
    }

    #[test]
    fn level_triggered_sockets_are_reported_fairly() {
        let sockets: Vec<_> = (0..4)
            .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        let epoll = EpollSet::new().unwrap();
        for (key, socket) in (10..).zip(&sockets) {
            epoll.register(socket, Readiness::Receive, key).unwrap();
        }
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        for socket in &sockets[1..] {
            local.send_to(b"now", socket.local_addr().unwrap()).unwrap();
        }
        // One event at a time and no reads: all three are reported.
        let mut events = EpollEvents::with_capacity(1);
        let mut keys = Vec::new();
        for _ in 0..3 {
            assert_eq!(epoll.wait(Duration::from_secs(5), &mut events).unwrap(), 1);
            keys.push(events.key(0));
        }
        keys.sort_unstable();
        assert_eq!(keys, [11, 12, 13]);
    }
}
