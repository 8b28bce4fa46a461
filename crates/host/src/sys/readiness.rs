//! Calls that wait for sockets: poll, select, epoll. Like the calls that move payload, they go
//! through libc's symbols.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Readable.
    Receive,
    /// Writable.
    Send,
}

impl Ready {
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
fn found(result: libc::c_int) -> io::Result<bool> {
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
pub fn poll(socket: &impl AsRawFd, ready: Ready, patience: Duration) -> io::Result<bool> {
    let mut wanted = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: ready.events(),
        revents: 0,
    };
    let timeout = timespec(patience);
    // SAFETY: one pollfd is passed, writable through the call; no signal mask is.
    let result = unsafe { libc::ppoll(&raw mut wanted, 1, &raw const timeout, std::ptr::null()) };
    found(result)
}

/// Waits with `ppoll` for any of several descriptors, each with its condition (a descriptor may
/// occur twice); returns whether one is ready.
///
/// # Errors
/// Errors of `ppoll`.
pub fn poll_any(wanted: &[(BorrowedFd<'_>, Ready)], patience: Duration) -> io::Result<bool> {
    let mut wanted: Vec<_> = (wanted.iter())
        .map(|(fd, ready)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: ready.events(),
            revents: 0,
        })
        .collect();
    let timeout = timespec(patience);
    // SAFETY: the vector holds that many pollfds, writable through the call; no signal mask is
    // passed.
    let result = unsafe {
        libc::ppoll(
            wanted.as_mut_ptr(),
            wanted.len() as libc::nfds_t,
            &raw const timeout,
            std::ptr::null(),
        )
    };
    found(result)
}

/// Waits with `select`; returns whether the socket is ready.
///
/// # Errors
/// `InvalidInput` for a descriptor that does not fit a `fd_set` (1024 and above), or errors of
/// `select`.
pub fn select(socket: &impl AsRawFd, ready: Ready, patience: Duration) -> io::Result<bool> {
    let fd = socket.as_raw_fd();
    if fd < 0 || fd as usize >= libc::FD_SETSIZE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a fd_set is an array of integers; all zeros is its empty set.
    let mut set: libc::fd_set = unsafe { mem::zeroed() };
    // SAFETY: `fd` was checked to lie within the set.
    unsafe { libc::FD_SET(fd, &raw mut set) };
    let mut timeout = libc::timeval {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_usec: patience.subsec_micros() as _,
    };
    let none = std::ptr::null_mut();
    let (receive, send) = match ready {
        Ready::Receive => (&raw mut set, none),
        Ready::Send => (none, &raw mut set),
    };
    // SAFETY: the sets and the timeout are writable during the call, or null where that is allowed.
    let result = unsafe { libc::select(fd + 1, receive, send, none, &raw mut timeout) };
    found(result)
}

/// Epoll instance.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// The descriptor can be polled itself: it is readable while a registered socket is ready.
impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Epoll {
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

    /// Registers a socket, or changes the condition of a registered (`known`) one.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn watch(&self, socket: &impl AsRawFd, ready: Ready, known: bool) -> io::Result<()> {
        let operation = if known {
            libc::EPOLL_CTL_MOD
        } else {
            libc::EPOLL_CTL_ADD
        };
        self.control(operation, socket, ready.epoll_events(), 0)
    }

    /// Registers a socket with a key that [`Self::wait_for`] reports when the socket is ready.
    ///
    /// Level-triggered: a socket is reported as long as it is ready, after all other ready ones, so
    /// that none starves.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn enrol(&self, socket: &impl AsRawFd, ready: Ready, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, ready.epoll_events(), key)
    }

    /// Registers a socket for all events with a key that [`Self::wait_for`] reports on a change:
    /// connected, data received, writable again, or closed.
    ///
    /// Edge-triggered: the current state is reported once, then only changes.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn enrol_changes(&self, socket: &impl AsRawFd, key: u64) -> io::Result<()> {
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
    pub fn forget(&self, socket: &impl AsRawFd) -> io::Result<()> {
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
    pub fn wait_for(&self, patience: Duration, events: &mut Events) -> io::Result<usize> {
        events.found = 0;
        let milliseconds = patience.as_micros().div_ceil(1_000);
        let milliseconds = libc::c_int::try_from(milliseconds).unwrap_or(libc::c_int::MAX);
        // SAFETY: the events are writable for the number given.
        let result = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.room.as_mut_ptr(),
                events.room.len() as libc::c_int,
                milliseconds,
            )
        };
        if found(result)? {
            events.found = result as usize;
        }
        Ok(events.found)
    }
}

/// Buffer for the events of [`Epoll::wait_for`], allocated once.
pub struct Events {
    room: Vec<libc::epoll_event>,
    found: usize,
}

impl Events {
    /// Allocates a buffer for at least one socket at a time.
    #[must_use]
    pub fn with_room(sockets: usize) -> Self {
        Self {
            room: vec![libc::epoll_event { events: 0, u64: 0 }; sockets.max(1)],
            found: 0,
        }
    }

    /// Returns the key of the nth ready socket.
    #[must_use]
    pub fn key(&self, nth: usize) -> u64 {
        self.room[nth].u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn every_call_tells_ready_from_not() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        let epoll = Epoll::new().unwrap();
        epoll.watch(&far, Ready::Receive, false).unwrap();
        let mut events = Events::with_room(4);
        let moment = Duration::from_millis(2);
        assert!(!poll(&far, Ready::Receive, moment).unwrap());
        assert!(!select(&far, Ready::Receive, moment).unwrap());
        assert_eq!(epoll.wait_for(moment, &mut events).unwrap(), 0);
        let any = [
            (far.as_fd(), Ready::Receive),
            (near.as_fd(), Ready::Receive),
        ];
        assert!(!poll_any(&any, moment).unwrap());
        near.send(b"now").unwrap();
        let long = Duration::from_secs(5);
        assert!(poll(&far, Ready::Receive, long).unwrap());
        assert!(poll_any(&any, long).unwrap());
        assert!(select(&far, Ready::Receive, long).unwrap());
        assert_eq!(epoll.wait_for(long, &mut events).unwrap(), 1);
        assert!(poll(&near, Ready::Send, long).unwrap());
        assert!(select(&near, Ready::Send, long).unwrap());
        epoll.watch(&far, Ready::Send, true).unwrap();
        assert_eq!(epoll.wait_for(long, &mut events).unwrap(), 1);
    }

    #[test]
    fn epoll_tells_of_a_change_once() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_room(4);
        let (long, moment) = (Duration::from_secs(5), Duration::from_millis(2));
        epoll.enrol_changes(&far, 7).unwrap();
        // Writable already: reported once.
        assert_eq!(epoll.wait_for(long, &mut events).unwrap(), 1);
        assert_eq!(events.key(0), 7);
        assert_eq!(epoll.wait_for(moment, &mut events).unwrap(), 0);
        for _ in 0..2 {
            near.send(b"now").unwrap();
            assert_eq!(epoll.wait_for(long, &mut events).unwrap(), 1);
            // Data were not read, but the state did not change: no report.
            assert_eq!(epoll.wait_for(moment, &mut events).unwrap(), 0);
        }
    }

    #[test]
    fn epoll_names_the_ready_ones_in_turn() {
        let sockets: Vec<_> = (0..4)
            .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        let epoll = Epoll::new().unwrap();
        for (key, socket) in (10..).zip(&sockets) {
            epoll.enrol(socket, Ready::Receive, key).unwrap();
        }
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        for socket in &sockets[1..] {
            near.send_to(b"now", socket.local_addr().unwrap()).unwrap();
        }
        // One event at a time and no reads: all three are reported.
        let mut events = Events::with_room(1);
        let mut keys = Vec::new();
        for _ in 0..3 {
            assert_eq!(
                epoll.wait_for(Duration::from_secs(5), &mut events).unwrap(),
                1
            );
            keys.push(events.key(0));
        }
        keys.sort_unstable();
        assert_eq!(keys, [11, 12, 13]);
    }
}
