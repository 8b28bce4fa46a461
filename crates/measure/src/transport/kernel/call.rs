//! One call: done, not now, or broken.

use std::io;
use std::task;

use linerate_host::sys::socket::Flags;

use super::Waiting;
use crate::transport::calls::{Call, Found, Recorder};

/// What a call came to: done, not now, or broken.
#[inline]
pub fn outcome<R>(result: io::Result<R>) -> task::Poll<io::Result<R>> {
    match result {
        Err(error) => match error.kind() {
            // A signal is as good a reason to look up as a time-out.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => task::Poll::Pending,
            // The interface's queue is full: the same as a full socket, only later.
            _ if error.raw_os_error() == Some(ENOBUFS) => task::Poll::Pending,
            // UDP only, TCP does not say this of a standing connection: the other end has closed
            // its socket, as it does when its part is over. The control connection knows more.
            io::ErrorKind::ConnectionRefused => task::Poll::Pending,
            _ => task::Poll::Ready(Err(error)),
        },
        done => task::Poll::Ready(done),
    }
}

/// Whether the kernel had no way to the other end at that moment.
#[inline]
pub(super) fn is_way_gone(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    )
}

/// "No buffer space available"; std has no kind for it.
pub(super) const ENOBUFS: i32 = 105;

/// "Input/output error": the device cannot finish the checksums of what it would cut.
pub const EIO: i32 = 5;

/// "Invalid argument": more datagrams in a call than this kernel takes.
pub const EINVAL: i32 = 22;

/// One send of `whole` bytes or datagrams; `call(n, ..)` sends what is left after the first n.
///
/// Recorded, a call that may sleep is tried without sleeping first: that is the only way to tell
/// whether there was room. What did not fit follows in the call that sleeps, so that the program sees
/// the same send; the duration is that of both.
#[inline]
pub(super) fn sending<W: Waiting, R: Recorder>(
    calls: &mut R,
    kind: Call,
    whole: usize,
    mut call: impl FnMut(usize, Flags) -> io::Result<usize>,
) -> io::Result<usize> {
    calls.begin();
    let all = |sent: &io::Result<usize>| match sent {
        Ok(taken) if *taken >= whole => Found::Ready,
        _ => Found::Waited,
    };
    if !(R::ON && W::CALLS_SLEEP) {
        let sent = call(0, W::FLAGS);
        calls.end(kind, all(&sent));
        return sent;
    }
    let at_once = call(0, Flags::DONT_WAIT);
    let taken = match &at_once {
        Ok(taken) if *taken < whole => *taken,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        _ => {
            calls.end(kind, all(&at_once));
            return at_once;
        }
    };
    let rest = call(taken, W::FLAGS);
    calls.end(kind, Found::Waited);
    match rest {
        Ok(more) => Ok(taken + more),
        // It shows again at the next call.
        Err(_) if taken > 0 => Ok(taken),
        Err(error) => Err(error),
    }
}

/// How a send went that was not to sleep.
#[inline]
pub(super) fn at_once(sent: &io::Result<usize>) -> Found {
    match sent {
        Ok(_) => Found::Ready,
        Err(_) => Found::Waited,
    }
}

/// One receive, with up to `looks` tries where the call does not sleep. Recorded, one that may sleep
/// is tried without sleeping first, as in [`sending`].
#[inline]
pub(super) fn receiving<W: Waiting, R: Recorder, T>(
    calls: &mut R,
    kind: Call,
    looks: usize,
    mut call: impl FnMut(Flags) -> io::Result<T>,
) -> task::Poll<io::Result<T>> {
    if R::ON && W::CALLS_SLEEP {
        let at_once = outcome(call(Flags::DONT_WAIT));
        if at_once.is_ready() {
            calls.end(kind, Found::Ready);
            return at_once;
        }
        let received = outcome(call(W::FLAGS));
        calls.end(kind, Found::Waited);
        return received;
    }
    for _ in 1..looks {
        let received = outcome(call(W::FLAGS));
        if received.is_ready() {
            calls.end(kind, Found::Ready);
            return received;
        }
        calls.end(kind, Found::Empty);
    }
    let received = outcome(call(W::FLAGS));
    let found = match received.is_ready() {
        true => Found::Ready,
        false => Found::Empty,
    };
    calls.end(kind, found);
    received
}
