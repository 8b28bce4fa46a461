//! Send and receive calls, and the wait where there is no space or no data.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::task;
use std::time::Duration;

use linerate_host::sys::datagram;
use linerate_host::sys::readiness::{self, Ready};
use linerate_host::sys::socket::{self, Flags};
use linerate_host::sys::zerocopy;
use socket2::Socket;

use super::syscall::{ENOBUFS, at_once, is_way_gone, outcome, receiving, sending};
use super::{Entry, Index, Kernel, OPEN, Waiting};
use crate::transport::call_times::{Call, Found, Recorder, watched};
use crate::transport::copy_mode::{Way, ZeroCopySends};

/// Pause between two tries to send while the remote end is unreachable: a route or link takes
/// longer
/// to return.
const WAY_GONE: Duration = Duration::from_millis(1);

/// Buffer that holds the payload to send.
#[derive(Clone, Copy)]
pub(super) enum Lies {
    /// Buffer that the workload fills.
    Outgoing,
    /// Buffer of the last receive, for echoes.
    Incoming,
}

impl<W: Waiting, R: Recorder> Kernel<W, R> {
    #[inline]
    pub(super) fn send(
        &mut self,
        index: Index,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        fill(self.outgoing.front(bytes));
        self.send_from(index, bytes, Lies::Outgoing)
    }

    /// Sends the first `bytes` bytes of a buffer.
    #[inline]
    pub(super) fn send_from(
        &mut self,
        index: Index,
        bytes: usize,
        lies: Lies,
    ) -> task::Poll<io::Result<usize>> {
        let payload = match lies {
            Lies::Outgoing => self.outgoing.front(bytes),
            Lies::Incoming => self.incoming.front(bytes),
        };
        let payload = &*payload;
        let entry = self.sockets[index.0].as_ref().expect(OPEN);
        let sent = if entry.paced {
            self.calls.begin();
            let sent = socket::send(&entry.socket, payload, Flags::DONT_WAIT);
            self.calls.end(Call::SendTo, at_once(&sent));
            sent
        } else {
            sending::<W, R>(
                &mut self.calls,
                Call::SendTo,
                payload.len(),
                |from, flags| match entry.peer.destination() {
                    None => socket::send(&entry.socket, &payload[from..], flags),
                    Some(Some(to)) => datagram::send_to(&entry.socket, payload, flags, to),
                    // No request has arrived yet, so there is no destination.
                    Some(None) => Err(io::ErrorKind::WouldBlock.into()),
                },
            )
        };
        self.sent(index, sent)
    }

    /// Sends datagrams with MSG_ZEROCOPY, from a buffer that no outstanding send uses.
    pub(super) fn send_from_place(
        &mut self,
        index: Index,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> task::Poll<io::Result<usize>> {
        let entry = self.sockets[index.0].as_mut().expect(OPEN);
        let Entry { socket, way, .. } = entry;
        let Some(Way::ZeroCopy(sends)) = way else {
            unreachable!("called only for MSG_ZEROCOPY sockets");
        };
        let calls = &mut self.calls;
        if sends.place(bytes).is_none() {
            sends.look(calls, socket);
        }
        let Some(payload) = sends.place(bytes * count) else {
            return task::Poll::Pending;
        };
        for (number, datagram) in payload.chunks_mut(bytes).enumerate() {
            fill(number, datagram);
        }
        let sent = sending::<W, R>(calls, Call::SendTo, payload.len(), |from, flags| {
            let flags = flags.and(Flags::ZERO_COPY);
            socket::send(socket, &payload[from..], flags)
        });
        if sent.is_ok() {
            sends.left();
        }
        if let Err(error) = note_zero_copy(sends, calls, socket, &sent) {
            return task::Poll::Ready(Err(error));
        }
        self.sent(index, sent)
    }

    /// Sends a stream's payload without a copy; its content is constant, so nothing is filled in.
    pub(super) fn send_by_way(
        &mut self,
        index: Index,
        bytes: usize,
    ) -> task::Poll<io::Result<usize>> {
        let entry = self.sockets[index.0].as_mut().expect(OPEN);
        let Entry { socket, way, .. } = entry;
        let calls = &mut self.calls;
        let payload = self.outgoing.front(bytes);
        let way = way
            .as_mut()
            .expect("called only for sockets with a copy mode");
        let kind = match way {
            Way::ZeroCopy(sends) => {
                let sent = sending::<W, R>(calls, Call::SendTo, payload.len(), |from, flags| {
                    let flags = flags.and(Flags::ZERO_COPY);
                    let sent = socket::send(socket, &payload[from..], flags);
                    if matches!(sent, Ok(1..)) {
                        sends.left();
                    }
                    sent
                });
                if let Err(error) = note_zero_copy(sends, calls, socket, &sent) {
                    return task::Poll::Ready(Err(error));
                }
                return self.sent(index, sent);
            }
            Way::File(_) => Call::SendFile,
            Way::Pipe(_) => Call::Splice,
        };
        calls.begin();
        let sent = match way {
            Way::File(file) => zerocopy::send_file(socket, file.as_ref(), payload.len()),
            Way::Pipe(pipe) => pipe.send(socket, payload),
            Way::ZeroCopy(_) => unreachable!("returned above"),
        };
        let found = match sent {
            Ok(taken) if taken >= payload.len() => Found::Ready,
            _ => Found::Waited,
        };
        calls.end(kind, found);
        let full = sent
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if full && W::CALLS_SLEEP {
            let look = |patience| readiness::poll(socket, Ready::Send, patience);
            if let Err(error) = watched(calls, Call::Poll, entry.patience, look) {
                return task::Poll::Ready(Err(error));
            }
        }
        self.sent(index, sent)
    }

    /// Converts the result of a send; waits for space where there was none.
    #[inline]
    pub(super) fn sent(
        &mut self,
        index: Index,
        sent: io::Result<usize>,
    ) -> task::Poll<io::Result<usize>> {
        if let Err(error) = &sent
            && let Some(entry) = self.sockets[index.0].as_mut()
        {
            match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    // Relaxed: other threads only read it. 2^32 of them are more than a run has.
                    entry.refusals.fetch_add(1, Relaxed);
                }
                kind if is_way_gone(kind) => entry.unroutable = entry.unroutable.saturating_add(1),
                _ => {}
            }
        }
        let sent = match sent {
            // A link or route that is down may return; a closed connection fails again next time.
            Err(error) if is_way_gone(error.kind()) => {
                // The socket has space, so no other wait would apply.
                std::thread::sleep(WAY_GONE);
                task::Poll::Pending
            }
            sent => outcome(sent),
        };
        self.attempts.calls += 1;
        self.attempts.empty += u64::from(sent.is_pending());
        if sent.is_pending() {
            let entry = self.sockets[index.0].as_ref().expect(OPEN);
            // This send used MSG_DONTWAIT, so the wait that blocking mode implies is made here.
            if entry.paced && W::CALLS_SLEEP {
                let look = |patience| readiness::poll(&entry.socket, Ready::Send, patience);
                self.calls.begin();
                if let Err(error) = watched(&mut self.calls, Call::Poll, entry.patience, look) {
                    return task::Poll::Ready(Err(error));
                }
            }
            let waited = self
                .waiting
                .no_room(&mut self.calls, &entry.socket, entry.patience)
                .and_then(|()| self.waiting.starved(index.0, &entry.socket, Ready::Send));
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
        index: Index,
        kind: Call,
        max_bytes: usize,
        mut call: impl FnMut(&Socket, &mut [u8], Flags) -> io::Result<T>,
    ) -> task::Poll<io::Result<T>> {
        let entry = self.sockets[index.0].as_ref().expect(OPEN);
        self.calls.begin();
        let (socket, patience) = (&entry.socket, entry.patience);
        match (self.waiting).before_receive(&mut self.calls, socket, patience) {
            Ok(true) => {}
            Ok(false) => return task::Poll::Pending,
            Err(error) => return task::Poll::Ready(Err(error)),
        }
        // With several sockets no one may be polled for long.
        let alone = self.open == 1 && !patience.is_zero();
        let looks = if alone { W::LOOKS } else { 1 };
        let room = self.incoming.front(max_bytes);
        let mut tried = 0;
        let received = receiving::<W, R, T>(&mut self.calls, kind, looks, |flags| {
            tried += 1;
            call(socket, room, flags)
        });
        self.attempts.calls += tried;
        self.attempts.empty += tried - u64::from(received.is_ready());
        if received.is_pending()
            && let Err(error) = self.waiting.starved(index.0, socket, Ready::Receive)
        {
            return task::Poll::Ready(Err(error));
        }
        received
    }
}

/// Reads completions of MSG_ZEROCOPY sends when it is time, or when memory for more is short.
fn note_zero_copy<R: Recorder>(
    sends: &mut ZeroCopySends,
    calls: &mut R,
    socket: &Socket,
    sent: &io::Result<usize>,
) -> io::Result<()> {
    let short = matches!(sent, Err(error) if error.raw_os_error() == Some(ENOBUFS));
    if !short && !sends.is_due() {
        return Ok(());
    }
    if short && sends.is_idle() {
        return Err(io::Error::other(
            "no memory for a MSG_ZEROCOPY send: raise net.core.optmem_max and `ulimit -l`",
        ));
    }
    sends.look(calls, socket);
    Ok(())
}
