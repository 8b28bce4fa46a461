//! Services over UDP.

use std::task::Poll;

use linerate_dialect::sockperf::{self, Took};
use linerate_dialect::{chargen, echo};
use linerate_host::sys::clock::Nanos;
use linerate_metric::stack::ServiceFigures;
use linerate_stack::{Echo, Meta, SocketId, Stack, StackError};

use super::iperf2_udp::{Flows, Place};
use super::tcp_connection::Next;
use super::{ServiceKind, ServiceSpec};
use crate::interop::handlers::Hall;

/// Largest number of datagrams per round; the stack is polled in between.
const BURST: usize = 32;

/// UDP socket of a service.
pub struct Datagrams {
    socket: SocketId,
    port: u16,
    dialect: Dialect,
}

enum Dialect {
    InPlace(InPlace),
    Discard,
    Chargen { line: u64 },
    Iperf2(Flows),
}

/// Services that respond in the frame of the request, with at most its length.
enum InPlace {
    Echo,
    Sockperf(Box<sockperf::Server>),
}

impl Datagrams {
    pub fn new(spec: ServiceSpec, socket: SocketId) -> Self {
        Self {
            socket,
            port: spec.port,
            dialect: match spec.kind {
                ServiceKind::Echo => Dialect::InPlace(InPlace::Echo),
                // Sockets of the linerate service are handled by the acceptor.
                ServiceKind::Discard | ServiceKind::Linerate => Dialect::Discard,
                ServiceKind::Chargen => Dialect::Chargen { line: 0 },
                ServiceKind::Sockperf => Dialect::InPlace(InPlace::Sockperf(Box::default())),
                ServiceKind::Iperf2 => Dialect::Iperf2(Flows::new()),
            },
        }
    }

    pub fn socket(&self) -> SocketId {
        self.socket
    }

    /// Receives up to a burst and sends what is due; returns when to continue.
    pub fn step(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        room: &mut [u8],
        hall: &Hall,
        figures: &mut ServiceFigures,
    ) -> Next {
        let more = self.take(stack, now, room, hall, figures);
        let place = self.place(hall);
        let due = match &mut self.dialect {
            Dialect::Iperf2(flows) => flows.work(stack, &place, now, figures),
            _ => Next::Wait,
        };
        match more {
            true => Next::Again,
            false => due,
        }
    }

    fn place<'a>(&self, hall: &'a Hall) -> Place<'a> {
        Place {
            socket: self.socket,
            port: self.port,
            hall,
        }
    }

    /// Receives up to a burst; returns whether there may be more.
    fn take(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        room: &mut [u8],
        hall: &Hall,
        figures: &mut ServiceFigures,
    ) -> bool {
        let place = self.place(hall);
        for _ in 0..BURST {
            // A request stays in the socket's queue while its response could not be sent.
            if self.dialect.answers() && !stack.udp_has_room() {
                return stack
                    .udp_waiting(self.socket)
                    .is_ok_and(|waiting| waiting > 0);
            }
            match self.echo(stack, hall, figures) {
                Poll::Ready(Ok(Echo::Sent(_))) => {
                    if self.sends_the_last(stack) {
                        return false;
                    }
                    continue;
                }
                Poll::Ready(Ok(Echo::Elsewhere)) => {}
                // An ICMP error for an earlier response does not end the service.
                Poll::Ready(Ok(Echo::Ignored) | Err(_)) => continue,
                Poll::Pending => return false,
            }
            let received = stack.udp_receive(self.socket, |payload, meta| {
                let bytes = payload.len().min(room.len());
                room[..bytes].copy_from_slice(&payload[..bytes]);
                (bytes, meta)
            });
            let (bytes, meta) = match received {
                Poll::Ready(Ok(received)) => received,
                // An ICMP error for an earlier response does not end the service.
                Poll::Ready(Err(_)) => continue,
                Poll::Pending => return false,
            };
            figures.datagrams += 1;
            figures.bytes_received += bytes as u64;
            let answer = (self.dialect).take(stack, &place, now, &meta, &mut room[..bytes]);
            // A response to a service's port would be responded to forever.
            let Some(answer) = answer.filter(|_| echo::answers_to(meta.from.port(), hall.ports()))
            else {
                continue;
            };
            let own = &room[..answer];
            let sent = stack.udp_send(self.socket, Some(meta.from), answer, |out| {
                out.copy_from_slice(own);
            });
            match sent {
                Poll::Ready(Ok(_)) => figures.bytes_sent += answer as u64,
                // Too long for the stack, unreachable, or no buffer.
                Poll::Ready(Err(_)) | Poll::Pending => figures.answers_lost += 1,
            }
            if self.sends_the_last(stack) {
                return false;
            }
        }
        true
    }

    /// Responds to a request in its frame, if the service does that.
    #[inline]
    fn echo(
        &mut self,
        stack: &mut Stack,
        hall: &Hall,
        figures: &mut ServiceFigures,
    ) -> Poll<Result<Echo, StackError>> {
        let Dialect::InPlace(service) = &mut self.dialect else {
            return Poll::Ready(Ok(Echo::Elsewhere));
        };
        let echoed = stack.udp_echo(self.socket, None, |datagram, meta| {
            figures.datagrams += 1;
            figures.bytes_received += datagram.len() as u64;
            let answer = service.answer(datagram);
            answer.filter(|_| echo::answers_to(meta.from.port(), hall.ports()))
        });
        if let Poll::Ready(Ok(Echo::Sent(bytes))) = &echoed {
            figures.bytes_sent += *bytes as u64;
        }
        echoed
    }

    /// Transmits the last response at once; returns whether no request is waiting.
    #[inline]
    fn sends_the_last(&self, stack: &mut Stack) -> bool {
        let last = matches!(stack.udp_waiting(self.socket), Ok(0));
        if last {
            stack.send_made();
        }
        last
    }

    /// Removes flows that have ended; returns whether one was started, which continues at a time.
    pub fn look(&mut self, stack: &mut Stack, hall: &Hall, now: Nanos) -> bool {
        let place = self.place(hall);
        match &mut self.dialect {
            Dialect::Iperf2(flows) => flows.look(stack, &place, now),
            _ => false,
        }
    }
}

impl Dialect {
    fn answers(&self) -> bool {
        !matches!(self, Self::Discard)
    }

    /// Handles a datagram and writes the response over it; returns the response's length.
    #[inline]
    fn take(
        &mut self,
        stack: &mut Stack,
        place: &Place,
        now: Nanos,
        meta: &Meta,
        datagram: &mut [u8],
    ) -> Option<usize> {
        match self {
            Self::InPlace(service) => service.answer(datagram),
            Self::Discard => None,
            Self::Chargen { line } => {
                let bytes = chargen::answer(datagram.len(), *line, datagram);
                *line += 1;
                Some(bytes)
            }
            Self::Iperf2(flows) => flows.take(stack, place, now, meta, datagram),
        }
    }
}

impl InPlace {
    /// Writes the response over a request; returns its length.
    #[inline]
    fn answer(&mut self, datagram: &mut [u8]) -> Option<usize> {
        match self {
            Self::Echo => Some(datagram.len()),
            Self::Sockperf(server) => match server.datagram(datagram) {
                Took::Answer(_) => Some(datagram.len()),
                Took::Counted(_) | Took::Ignored => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use linerate_host::sys::clock;
    use linerate_metric::stack::ServiceFigures;
    use linerate_stack::Stack;

    use super::super::{Front, Services};
    use super::*;
    use crate::netstack::test_pair;

    const QUESTIONS: usize = 24;

    /// Sends a number of requests at once to the echo service of a stack with this setting. Returns
    /// the
    /// figures of the service when all are settled, and the number of responses.
    fn asked_at_once(name: &str, bytes: usize, setting: (&str, &str)) -> (ServiceFigures, usize) {
        let mut stacks = test_pair::set_pair(name, &[setting]);
        let specs = vec!["echo".parse().unwrap()];
        let mut services = Services::open(&mut stacks[1], specs, Front::default()).unwrap();
        let to = SocketAddr::from(([10, 9, 0, 2], echo::PORT));
        let socket = stacks[0].udp_bind(SocketAddr::from(([0; 4], 0))).unwrap();
        let (mut asked, mut answered) = (0, 0);
        let mut serve = |server: &mut Stack| {
            let now = clock::now();
            while let Some(socket) = server.ready() {
                services.changed(server, socket, now);
            }
            services.go_on(server, now);
            services.figures().remove(0)
        };
        // The ARP queue holds few frames, so the address is resolved first.
        test_pair::until(&mut stacks, |[client, _]| {
            client.neighbor_towards(to.ip()).unwrap().1
        });
        // All requests wait at the service before it handles the first.
        test_pair::until(&mut stacks, |[client, server]| {
            while asked < QUESTIONS
                && client
                    .udp_send(socket, Some(to), bytes, |room| room.fill(7))
                    .is_ready()
            {
                asked += 1;
            }
            server.counters().udp.in_datagrams == QUESTIONS as u64
        });
        let mut done = ServiceFigures::default();
        test_pair::until(&mut stacks, |[client, server]| {
            done = serve(server);
            let mut take =
                || client.udp_receive(socket, |answer, _| assert_eq!(answer.len(), bytes));
            while let Poll::Ready(Ok(())) = take() {
                answered += 1;
            }
            answered + done.answers_lost as usize == QUESTIONS
        });
        (done, answered)
    }

    /// Responses without space used to be dropped: only four arrived.
    #[test]
    fn a_question_waits_until_its_answer_has_room() {
        // In one frame, and in three.
        for (name, bytes) in [("answers", 64), ("long-answers", 4_000)] {
            let (done, answered) = asked_at_once(name, bytes, ("tx_descriptors", "4"));
            assert_eq!((answered, done.answers_lost), (QUESTIONS, 0), "{bytes} B");
            assert_eq!(done.bytes_sent, (QUESTIONS * bytes) as u64);
        }
    }

    #[test]
    fn an_answer_that_cannot_be_sent_is_counted() {
        let (done, answered) = asked_at_once("no-answers", 4_000, ("ip.fragmentation", "off"));
        assert_eq!((answered, done.answers_lost), (0, QUESTIONS as u64));
        assert_eq!((done.datagrams, done.bytes_sent), (QUESTIONS as u64, 0));
    }
}
