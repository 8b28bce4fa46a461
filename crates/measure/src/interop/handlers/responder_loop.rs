//! Responders: connections and flows with requests and responses.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_dialect::amplification_guard::Leave;
use linerate_dialect::echo::answers_to;
use linerate_dialect::remote_report::FarReport;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{Ready, poll_any};
use linerate_host::sys::socket::{self, Flags};
use linerate_metric::event::Problem;
use linerate_metric::plan::Plan;
use socket2::Socket;

use super::plain::question_silence;
use super::test_run::Test;
use super::worker::{Broke, Context, Datagrams, LOOK_UP, Moved, Numbers, Take, receive_datagrams};
use super::{Caller, Hall, Refused};
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::session::server_state::Claim;
use crate::session::udp_demux::Arrived;

/// Buffer of one receive call.
const ROOM_BYTES: usize = 64 << 10;

/// Responder of one protocol over a stream.
pub trait Answers {
    /// Processes received bytes and returns how many were consumed; the others are passed again.
    ///
    /// # Errors
    /// If the bytes are invalid.
    fn receive(&mut self, bytes: &[u8]) -> Result<usize, String>;

    /// Handles the end of the client's stream.
    fn finish(&mut self) {}

    /// Returns whether the client has announced the end of its requests.
    fn is_over(&self) -> bool {
        false
    }

    /// Returns whether clients of this protocol end by closing, possibly with unread responses: the
    /// resulting reset is a regular end.
    fn ends_by_closing(&self) -> bool {
        false
    }

    /// Returns the bytes to send next.
    fn outgoing(&self) -> &[u8];

    /// Drops `bytes` of them, which were sent.
    fn sent(&mut self, bytes: usize);

    /// Returns the totals so far.
    fn totals(&self) -> Totals;

    /// Returns the number of responses; `None` if the protocol has no response boundaries.
    fn answered(&self) -> Option<u64>;
}

/// Responds to requests on a connection, of which the first arrived at `arrived_ns`, until the
/// client has ended it and has received everything.
pub fn answer_stream(
    context: &Context,
    socket: &Socket,
    idle: Duration,
    came_ns: Nanos,
    machine: &mut impl Answers,
) -> Moved {
    let mut moved = Moved::since(came_ns);
    let idle_ns = idle.as_nanos() as u64;
    let mut room = vec![0; ROOM_BYTES];
    let (mut from, mut to) = (0, 0);
    let (mut ended, mut came, mut calls) = (false, false, 0);
    let (mut last, mut waited) = (clock::now(), false);
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
        if std::mem::take(&mut came) {
            moved.totals = Totals {
                calls,
                ..machine.totals()
            };
            context.publish(&moved);
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
        // The clock is read only after a wait: requests in a row have times of their own.
        if std::mem::take(&mut waited) && clock::now().saturating_sub(last) > idle_ns {
            moved.broke = Some(Broke::Silent(idle));
            break;
        }
        if from < to || full {
            waited = true;
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
                // Requests may be few: the test lasted until the receipt of its end. A client that
                // requested no response only sent, and its test ended with the last payload.
                if machine.answered() != Some(0) {
                    moved.span = moved.span.map(|(first, _)| (first, clock::now()));
                }
            }
            Ok(bytes) => {
                last = clock::now();
                (from, to) = (0, bytes);
                calls += 1;
                moved.span = Some((moved.span.map_or(last, |(first, _)| first), last));
                came = true;
            }
            Err(error) if super::worker::is_nothing(&error) => waited = true,
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

/// Returns whether an error is the regular end of a client of this protocol.
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

/// Returns whether a reply to this sender would be replied to in turn; that is logged, and the
/// sender gets none.
pub fn would_answer(dialect: &'static str, hall: &Hall, from: SocketAddr) -> bool {
    if answers_to(from.port(), hall.ports()) {
        return false;
    }
    let refused = Refused {
        why: "answering-port",
        dialect,
        from,
    };
    hall.refuse(refused, || {
        Problem::new(
            format!("{from} would reply to every reply (endless loop)"),
            format!("{dialect} over UDP"),
            "let the client send from another port; no option allows this",
        )
    });
    true
}

/// Replies to datagrams, each with one of at most its size, as far as the server's guard allows.
pub fn answer_datagrams<D: Datagrams + Send + 'static>(
    dialect: &'static str,
    plan: Plan,
    mut caller: Caller,
    claim: Claim,
    arrived: Arrived,
    mut flow: D,
) {
    let (house, client) = (caller.house.clone(), (dialect, caller.peer));
    let test = Test::begin(&mut caller, claim, dialect, dialect, plan);
    let mut test = test.without_an_end();
    test.keep(arrived.key, false);
    test.takes_size_from_payload();
    let early = arrived.early;
    let spawned = test.spawn(1, Part::Sink, arrived.socket, move |context, socket| {
        let mut leave = Leave::default();
        let allow = |now, received, answer| {
            let hall = &house.hall;
            hall.may_answer(&mut leave, now, client, received, answer)
        };
        receive_datagrams(context, socket, early, &mut flow, allow)
    });
    test.conclude(spawned, FarReport::default);
}

/// Flow of datagrams that are all requests, answered in place.
pub struct Questions<A> {
    /// Turns a request, with its number from 0, into its response and returns the size of that.
    answer: A,
    totals: Totals,
    last_ns: Nanos,
}

impl<A: FnMut(&mut [u8], u64) -> usize> Questions<A> {
    /// Creates a flow; `respond` turns a request, with its number from 0, into its response and
    /// returns its size.
    pub fn answered_by(answer: A) -> Self {
        Self {
            answer,
            totals: Totals::default(),
            last_ns: 0,
        }
    }
}

impl<A: FnMut(&mut [u8], u64) -> usize> Datagrams for Questions<A> {
    #[inline]
    fn take(&mut self, now: Nanos, datagram: &mut [u8]) -> Take {
        let number = self.totals.packets;
        self.totals.packets += 1;
        self.totals.bytes += datagram.len() as u64;
        self.last_ns = now;
        Take::Answer {
            bytes: (self.answer)(datagram, number),
            payload: true,
        }
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        now.saturating_sub(self.last_ns) > question_silence(self.totals.packets).as_nanos() as u64
    }

    fn totals(&self) -> Totals {
        self.totals
    }

    fn numbers(&mut self) -> Option<Numbers> {
        None
    }

    fn answers(&self) -> bool {
        true
    }
}
