//! Send and receive calls, and the wait where there is no space or no data.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{io, task};

use linerate_sys::readiness::Readiness;
use linerate_sys::socket::MessageFlags;
use linerate_sys::{datagram, readiness, socket, zerocopy};
use socket2::Socket;

use super::syscall::{
    ENOBUFS, is_unreachable, nonblocking_outcome, receive_with, send_with, to_poll,
};
use super::{KernelSocket, KernelTransport, SOCKET_IS_OPEN, SocketIndex, SocketWait};
use crate::call_times::{CallOutcome, CallRecorder, TransportCall, poll_readiness};
use crate::copy_mode::{CopyMode, ZeroCopySends};

/// Pause between two tries to send while the remote end is unreachable: a route or link takes
/// longer to return.
const UNREACHABLE_RETRY: Duration = Duration::from_millis(1);

/// Buffer that holds the payload to send.
#[derive(Clone, Copy)]
pub(super) enum PayloadSource {
    /// Buffer that the workload fills.
    SendBuffer,
    /// Buffer of the last receive, for echoes.
    ReceiveBuffer,
}

impl<W: SocketWait, R: CallRecorder> KernelTransport<W, R> {
    #[inline]
    pub(super) fn send(
        &mut self,
        index: SocketIndex,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        fill(self.send_buffer.prefix(bytes));
        self.send_buffered(index, bytes, PayloadSource::SendBuffer)
    }

    /// Sends the first `bytes` bytes of a buffer.
    #[inline]
    pub(super) fn send_buffered(
        &mut self,
        index: SocketIndex,
        bytes: usize,
        source: PayloadSource,
    ) -> task::Poll<io::Result<usize>> {
        let payload = match source {
            PayloadSource::SendBuffer => self.send_buffer.prefix(bytes),
            PayloadSource::ReceiveBuffer => self.receive_buffer.prefix(bytes),
        };
        let payload = &*payload;
        let entry = self.sockets[index.0].as_ref().expect(SOCKET_IS_OPEN);
        let sent = if entry.paced {
            self.recorder.begin();
            let sent = socket::send(&entry.socket, payload, MessageFlags::DONT_WAIT);
            self.recorder
                .end(TransportCall::SendTo, nonblocking_outcome(&sent));
            sent
        } else {
            send_with::<W, R>(
                &mut self.recorder,
                TransportCall::SendTo,
                payload.len(),
                |from, flags| match entry.peer.destination() {
                    None => socket::send(&entry.socket, &payload[from..], flags),
                    Some(Some(to)) => datagram::send_to(&entry.socket, payload, flags, to),
                    // No request has arrived yet, so there is no destination.
                    Some(None) => Err(io::ErrorKind::WouldBlock.into()),
                },
            )
        };
        self.finish_send(index, sent)
    }

    /// Sends datagrams with MSG_ZEROCOPY, from a buffer that no outstanding send uses.
    pub(super) fn send_zero_copy_datagrams(
        &mut self,
        index: SocketIndex,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let entry = self.sockets[index.0].as_mut().expect(SOCKET_IS_OPEN);
        let KernelSocket {
            socket, copy_mode, ..
        } = entry;
        let Some(CopyMode::ZeroCopy(sends)) = copy_mode else {
            unreachable!("called only for MSG_ZEROCOPY sockets");
        };
        let calls = &mut self.recorder;
        if sends.next_buffer(bytes).is_none() {
            sends.poll_completions(calls, socket);
        }
        let Some(payload) = sends.next_buffer(bytes * count) else {
            return task::Poll::Pending;
        };
        for (number, datagram) in payload.chunks_mut(bytes).enumerate() {
            fill(number, datagram);
        }
        let sent = send_with::<W, R>(
            calls,
            TransportCall::SendTo,
            payload.len(),
            |from, flags| {
                let flags = flags.union(MessageFlags::ZERO_COPY);
                socket::send(socket, &payload[from..], flags)
            },
        );
        if sent.is_ok() {
            sends.count_send();
        }
        if let Err(error) = poll_zero_copy(sends, calls, socket, &sent) {
            return task::Poll::Ready(Err(error));
        }
        self.finish_send(index, sent)
    }

    /// Sends a stream's payload without a copy; its content is constant, so nothing is filled in.
    pub(super) fn send_without_copy(
        &mut self,
        index: SocketIndex,
        bytes: usize,
    ) -> task::Poll<io::Result<usize>> {
        let entry = self.sockets[index.0].as_mut().expect(SOCKET_IS_OPEN);
        let KernelSocket {
            socket, copy_mode, ..
        } = entry;
        let calls = &mut self.recorder;
        let payload = self.send_buffer.prefix(bytes);
        let copy_mode = copy_mode
            .as_mut()
            .expect("called only for sockets with a copy mode");
        let kind = match copy_mode {
            CopyMode::ZeroCopy(sends) => {
                let sent = send_with::<W, R>(
                    calls,
                    TransportCall::SendTo,
                    payload.len(),
                    |from, flags| {
                        let flags = flags.union(MessageFlags::ZERO_COPY);
                        let sent = socket::send(socket, &payload[from..], flags);
                        if matches!(sent, Ok(1..)) {
                            sends.count_send();
                        }
                        sent
                    },
                );
                if let Err(error) = poll_zero_copy(sends, calls, socket, &sent) {
                    return task::Poll::Ready(Err(error));
                }
                return self.finish_send(index, sent);
            }
            CopyMode::SendFile(_) => TransportCall::SendFile,
            CopyMode::Splice(_) => TransportCall::Splice,
        };
        calls.begin();
        let sent = match copy_mode {
            CopyMode::SendFile(file) => zerocopy::send_file(socket, file.as_ref(), payload.len()),
            CopyMode::Splice(pipe) => pipe.send(socket, payload),
            CopyMode::ZeroCopy(_) => unreachable!("returned above"),
        };
        let outcome = match sent {
            Ok(accepted) if accepted >= payload.len() => CallOutcome::Ready,
            _ => CallOutcome::Waited,
        };
        calls.end(kind, outcome);
        let full = sent
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if full && W::CALLS_BLOCK {
            let check = |timeout| readiness::poll(socket, Readiness::Send, timeout);
            if let Err(error) = poll_readiness(calls, TransportCall::Poll, entry.timeout, check) {
                return task::Poll::Ready(Err(error));
            }
        }
        self.finish_send(index, sent)
    }

    /// Converts the result of a send; waits for space where there was none.
    #[inline]
    pub(super) fn finish_send(
        &mut self,
        index: SocketIndex,
        sent: io::Result<usize>,
    ) -> task::Poll<io::Result<usize>> {
        if let Err(error) = &sent
            && let Some(entry) = self.sockets[index.0].as_mut()
        {
            match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    // Relaxed: other threads only read it. 2^32 of them are more than a run has.
                    entry.port_unreachable.fetch_add(1, Relaxed);
                }
                kind if is_unreachable(kind) => {
                    entry.unroutable = entry.unroutable.saturating_add(1)
                }
                _ => {}
            }
        }
        let sent = match sent {
            // A link or route that is down may return; a closed connection fails again next time.
            Err(error) if is_unreachable(error.kind()) => {
                // The socket has space, so no other wait would apply.
                std::thread::sleep(UNREACHABLE_RETRY);
                task::Poll::Pending
            }
            sent => to_poll(sent),
        };
        self.attempts.calls += 1;
        self.attempts.empty += u64::from(sent.is_pending());
        if sent.is_pending() {
            let entry = self.sockets[index.0].as_ref().expect(SOCKET_IS_OPEN);
            // This send used MSG_DONTWAIT, so the wait that blocking mode implies is made here.
            if entry.paced && W::CALLS_BLOCK {
                let check = |timeout| readiness::poll(&entry.socket, Readiness::Send, timeout);
                self.recorder.begin();
                if let Err(error) = poll_readiness(
                    &mut self.recorder,
                    TransportCall::Poll,
                    entry.timeout,
                    check,
                ) {
                    return task::Poll::Ready(Err(error));
                }
            }
            let waited = self
                .wait
                .wait_writable(&mut self.recorder, &entry.socket, entry.timeout)
                .and_then(|()| {
                    self.wait
                        .mark_starved(index.0, &entry.socket, Readiness::Send)
                });
            if let Err(error) = waited {
                return task::Poll::Ready(Err(error));
            }
        }
        sent
    }

    /// Makes one receive call into the first `max_bytes` bytes of the receive buffer and returns
    /// the result of `call`.
    #[inline]
    pub(super) fn receive<T>(
        &mut self,
        index: SocketIndex,
        kind: TransportCall,
        max_bytes: usize,
        mut call: impl FnMut(&Socket, &mut [u8], MessageFlags) -> io::Result<T>,
    ) -> task::Poll<io::Result<T>> {
        let entry = self.sockets[index.0].as_ref().expect(SOCKET_IS_OPEN);
        self.recorder.begin();
        let (socket, timeout) = (&entry.socket, entry.timeout);
        match (self.wait).wait_receivable(&mut self.recorder, socket, timeout) {
            Ok(true) => {}
            Ok(false) => return task::Poll::Pending,
            Err(error) => return task::Poll::Ready(Err(error)),
        }
        // With several sockets none of them may be polled for long.
        let may_poll = self.open_count == 1 && !timeout.is_zero();
        let tries = if may_poll { W::RECEIVE_TRIES } else { 1 };
        let buffer = self.receive_buffer.prefix(max_bytes);
        let mut tried = 0;
        let received = receive_with::<W, R, T>(&mut self.recorder, kind, tries, |flags| {
            tried += 1;
            call(socket, buffer, flags)
        });
        self.attempts.calls += tried;
        self.attempts.empty += tried - u64::from(received.is_ready());
        if received.is_pending()
            && let Err(error) = self.wait.mark_starved(index.0, socket, Readiness::Receive)
        {
            return task::Poll::Ready(Err(error));
        }
        received
    }
}

/// Reads completions of MSG_ZEROCOPY sends when it is time, or when memory for more is short.
fn poll_zero_copy<R: CallRecorder>(
    sends: &mut ZeroCopySends,
    calls: &mut R,
    socket: &Socket,
    sent: &io::Result<usize>,
) -> io::Result<()> {
    let short = matches!(sent, Err(error) if error.raw_os_error() == Some(ENOBUFS));
    if !short && !sends.is_poll_due() {
        return Ok(());
    }
    if short && sends.is_idle() {
        return Err(io::Error::other(
            "no memory for a MSG_ZEROCOPY send: raise net.core.optmem_max and `ulimit -l`",
        ));
    }
    sends.poll_completions(calls, socket);
    Ok(())
}
