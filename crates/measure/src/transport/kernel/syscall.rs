//! Single system calls and their results: done, pending, or failed.

use std::io;
use std::task;

use linerate_host::sys::socket::Flags;

use super::Waiting;
use crate::transport::call_times::{Call, Found, Recorder};

/// Converts the result of a non-blocking call to a `Poll`.
#[inline]
pub fn outcome<R>(result: io::Result<R>) -> task::Poll<io::Result<R>> {
    match result {
        Err(error) => match error.kind() {
            // A signal ends a wait just as a timeout does.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => task::Poll::Pending,
            // The interface's queue is full: handled like a full socket.
            _ if error.raw_os_error() == Some(ENOBUFS) => task::Poll::Pending,
            // UDP only; TCP never returns this on an established connection. The remote end has
            // closed its socket, as it does at its end of the run. The control connection reports
            // errors of the remote end.
            io::ErrorKind::ConnectionRefused => task::Poll::Pending,
            _ => task::Poll::Ready(Err(error)),
        },
        done => task::Poll::Ready(done),
    }
}

/// Returns whether an error means that the remote end is temporarily unreachable.
#[inline]
pub(super) fn is_way_gone(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    )
}

/// ENOBUFS, "No buffer space available"; std has no kind for it.
pub(super) const ENOBUFS: i32 = 105;

/// EIO, "Input/output error": the device cannot compute the checksums of GSO datagrams.
pub const EIO: i32 = 5;

/// EINVAL, "Invalid argument": more datagrams in a GSO call than this kernel accepts.
pub const EINVAL: i32 = 22;

/// Makes one send of `whole` bytes or datagrams; `call(n, ..)` sends the part after the first n.
///
/// When recorded, a blocking call is first tried without blocking: only that detects whether there
/// was space. The rest follows in the blocking call, so that the program's send is unchanged. The
/// recorded duration includes both calls.
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
        // The error occurs again at the next call.
        Err(_) if taken > 0 => Ok(taken),
        Err(error) => Err(error),
    }
}

/// Returns the recorded result of a non-blocking send.
#[inline]
pub(super) fn at_once(sent: &io::Result<usize>) -> Found {
    match sent {
        Ok(_) => Found::Ready,
        Err(_) => Found::Waited,
    }
}

/// Makes one receive, with up to `looks` tries where the call does not block. When recorded, a
/// blocking call is first tried without blocking, as in [`sending`].
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
