//! Connections on which questions come and answers go.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_host::sys::clock;
use linerate_host::sys::socket::{self, Flags};
use linerate_host::sys::wait::{Ready, poll_any};
use socket2::Socket;

use super::lane::{Broke, Context, LOOK_UP, Moved};
use crate::meter::Totals;

/// Bytes that one receive call may give.
const ROOM_BYTES: usize = 64 << 10;

/// The answering end of a dialect, over a stream.
pub trait Answers {
    /// Takes what came, and says how much of it; the rest is given again.
    ///
    /// # Errors
    /// What makes no sense.
    fn receive(&mut self, bytes: &[u8]) -> Result<usize, String>;

    /// The client closed its writing half.
    fn finish(&mut self) {}

    /// Whether the client has said that nothing more will come.
    fn is_over(&self) -> bool {
        false
    }

    /// Whether its clients end by closing, with answers unread or not: that resets the connection, and
    /// is an end as any other.
    fn ends_by_closing(&self) -> bool {
        false
    }

    /// What is to be sent next.
    fn outgoing(&self) -> &[u8];

    /// So many bytes of it were sent.
    fn sent(&mut self, bytes: usize);

    /// What came so far.
    fn totals(&self) -> Totals;

    /// Answers that were given; `None` where they cannot be told apart.
    fn answered(&self) -> Option<u64>;
}

/// Answers on a connection until the client has ended it and has everything.
pub fn answer_stream(
    context: &Context,
    socket: &Socket,
    idle: Duration,
    machine: &mut impl Answers,
) -> Moved {
    let mut moved = Moved::default();
    let idle_ns = idle.as_nanos() as u64;
    let mut room = vec![0; ROOM_BYTES];
    let (mut from, mut to) = (0, 0);
    let (mut ended, mut calls) = (false, 0);
    let mut last = clock::now();
    let ready = socket
        .set_read_timeout(Some(LOOK_UP))
        .and_then(|()| socket.set_tcp_nodelay(true));
    if let Err(error) = ready {
        moved.broke = Some(Broke::Error(error));
        return moved;
    }
    while !context.signals.closed.load(Relaxed) {
        while from < to {
            match machine.receive(&room[from..to]) {
                Ok(0) => break,
                Ok(taken) => from += taken,
                Err(nonsense) => {
                    moved.broke = Some(Broke::Nonsense(nonsense));
                    ended = true;
                    (from, to) = (0, 0);
                }
            }
        }
        let mut full = false;
        while !full && !machine.outgoing().is_empty() {
            match socket::send(socket, machine.outgoing(), Flags::DONT_WAIT) {
                Ok(bytes) => machine.sent(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => full = true,
                Err(error) => {
                    if !is_end(&error, machine) {
                        moved.broke.get_or_insert(Broke::Error(error));
                    }
                    return close(context, machine, moved, calls);
                }
            }
        }
        if (ended || machine.is_over()) && machine.outgoing().is_empty() {
            break;
        }
        if clock::now().saturating_sub(last) > idle_ns {
            moved.broke = Some(Broke::Silent(idle));
            break;
        }
        if from < to || full {
            let wanted = [(socket.as_fd(), Ready::Send)];
            let _ = poll_any(&wanted, LOOK_UP);
            if from < to || ended {
                continue;
            }
        }
        let flags = if full { Flags::DONT_WAIT } else { Flags::NONE };
        match socket::receive(socket, &mut room, flags) {
            Ok(0) => {
                ended = true;
                machine.finish();
                // Questions may be few: the test lasted until its end was heard.
                moved.span = moved.span.map(|(first, _)| (first, clock::now()));
            }
            Ok(bytes) => {
                last = clock::now();
                (from, to) = (0, bytes);
                calls += 1;
                moved.span = Some((moved.span.map_or(last, |(first, _)| first), last));
                moved.totals = Totals {
                    calls,
                    ..machine.totals()
                };
                context.publish(&moved);
            }
            Err(error) if super::lane::is_nothing(&error) => {}
            Err(error) => {
                if !is_end(&error, machine) {
                    moved.broke = Some(Broke::Error(error));
                }
                break;
            }
        }
    }
    close(context, machine, moved, calls)
}

/// Whether an error is how clients of this dialect end.
fn is_end(error: &io::Error, machine: &impl Answers) -> bool {
    let closed = matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    );
    closed && machine.ends_by_closing() && machine.totals().bytes > 0
}

fn close(context: &Context, machine: &impl Answers, mut moved: Moved, calls: u64) -> Moved {
    moved.totals = Totals {
        calls,
        ..machine.totals()
    };
    context.publish(&moved);
    moved.answered = machine.answered();
    moved
}
