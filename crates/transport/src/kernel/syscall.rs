//! Single system calls and their results: done, pending, or failed.

use std::{io, task};

use linerate_sys::socket::MessageFlags;

use super::SocketWait;
use crate::call_times::{CallOutcome, CallRecorder, TransportCall};

/// Converts the result of a non-blocking call to a `Poll`.
#[inline]
pub fn to_poll<R>(result: io::Result<R>) -> task::Poll<io::Result<R>> {
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
pub(super) fn is_unreachable(kind: io::ErrorKind) -> bool {
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

/// Makes one send of `total` bytes or datagrams; `call(n, ..)` sends the part after the first n.
///
/// When recorded, a blocking call is first tried without blocking: only that detects whether there
/// was space. The rest follows in the blocking call, so that the program's send is unchanged. The
/// recorded duration includes both calls.
#[inline]
pub(super) fn send_with<W: SocketWait, R: CallRecorder>(
    calls: &mut R,
    kind: TransportCall,
    total: usize,
    mut call: impl FnMut(usize, MessageFlags) -> io::Result<usize>,
) -> io::Result<usize> {
    calls.begin();
    let outcome_of = |sent: &io::Result<usize>| match sent {
        Ok(sent_bytes) if *sent_bytes >= total => CallOutcome::Ready,
        _ => CallOutcome::Waited,
    };
    if !(R::ON && W::CALLS_BLOCK) {
        let sent = call(0, W::CALL_FLAGS);
        calls.end(kind, outcome_of(&sent));
        return sent;
    }
    let immediate = call(0, MessageFlags::DONT_WAIT);
    let sent_bytes = match &immediate {
        Ok(sent_bytes) if *sent_bytes < total => *sent_bytes,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        _ => {
            calls.end(kind, outcome_of(&immediate));
            return immediate;
        }
    };
    let rest = call(sent_bytes, W::CALL_FLAGS);
    calls.end(kind, CallOutcome::Waited);
    match rest {
        Ok(more) => Ok(sent_bytes + more),
        // The error occurs again at the next call.
        Err(_) if sent_bytes > 0 => Ok(sent_bytes),
        Err(error) => Err(error),
    }
}

/// Returns the recorded result of a non-blocking send.
#[inline]
pub(super) fn nonblocking_outcome(sent: &io::Result<usize>) -> CallOutcome {
    match sent {
        Ok(_) => CallOutcome::Ready,
        Err(_) => CallOutcome::Waited,
    }
}

/// Makes one receive, with up to `tries` tries where the call does not block. When recorded, a
/// blocking call is first tried without blocking, as in [`send_with`]; a first try that finds nothing
/// is recorded as an empty call.
#[inline]
pub(super) fn receive_with<W: SocketWait, R: CallRecorder, T>(
    calls: &mut R,
    kind: TransportCall,
    tries: usize,
    mut call: impl FnMut(MessageFlags) -> io::Result<T>,
) -> task::Poll<io::Result<T>> {
    if R::ON && W::CALLS_BLOCK {
        let immediate = to_poll(call(MessageFlags::DONT_WAIT));
        if immediate.is_ready() {
            calls.end(kind, CallOutcome::Ready);
            return immediate;
        }
        calls.end(kind, CallOutcome::Empty);
        let received = to_poll(call(W::CALL_FLAGS));
        calls.end(kind, CallOutcome::Waited);
        return received;
    }
    for _ in 1..tries {
        let received = to_poll(call(W::CALL_FLAGS));
        if received.is_ready() {
            calls.end(kind, CallOutcome::Ready);
            return received;
        }
        calls.end(kind, CallOutcome::Empty);
    }
    let received = to_poll(call(W::CALL_FLAGS));
    let found = match received.is_ready() {
        true => CallOutcome::Ready,
        false => CallOutcome::Empty,
    };
    calls.end(kind, found);
    received
}
