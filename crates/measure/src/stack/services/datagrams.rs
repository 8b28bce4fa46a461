//! Services over UDP.

use std::task::Poll;

use linerate_dialect::sockperf::{self, Took};
use linerate_dialect::{chargen, echo};
use linerate_host::sys::clock::Nanos;
use linerate_metric::stack::ServiceFigures;
use linerate_stack::{Echo, Meta, SocketId, Stack, StackError};

use super::connection::Next;
use super::flows::{Flows, Place};
use super::{ServiceKind, ServiceSpec};
use crate::peers::serve::Hall;

/// Datagrams that one round takes at most: the stack is to turn in between.
const BURST: usize = 32;

/// A service's UDP socket.
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

/// What answers where its question lies, with no more than that.
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
                // Our own server's are the reception's.
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

    /// Takes what is there, up to a burst, and sends what is due; when that is to be done again.
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

    /// Takes what is there, up to a burst; whether there may be more.
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
            // A question waits in the socket's queue while its answer could not leave.
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
                // What this socket sent was refused somewhere: nothing that ends a service.
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
                // What this socket sent was refused somewhere: nothing that ends a service.
                Poll::Ready(Err(_)) => continue,
                Poll::Pending => return false,
            };
            figures.datagrams += 1;
            figures.bytes_received += bytes as u64;
            let answer = (self.dialect).take(stack, &place, now, &meta, &mut room[..bytes]);
            // An answer to a service that answers would be answered for ever.
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
                // Too long for the stack, or nobody to be reached, or no buffer.
                Poll::Ready(Err(_)) | Poll::Pending => figures.answers_lost += 1,
            }
            if self.sends_the_last(stack) {
                return false;
            }
        }
        true
    }

    /// Answers a question where it lies, if the service does that.
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

    /// Sends what was answered, where nobody else waits here: it waits for nothing that a round does besides.
    #[inline]
    fn sends_the_last(&self, stack: &mut Stack) -> bool {
        let last = matches!(stack.udp_waiting(self.socket), Ok(0));
        if last {
            stack.send_made();
        }
        last
    }

    /// Forgets flows that are over; whether one began for it, which goes on by the time.
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

    /// Takes a datagram, and makes an answer of it: how long that is.
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
    /// Makes an answer of a datagram: how long that is.
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
    use crate::stack::pair;

    const QUESTIONS: usize = 24;

    /// Asks the echo service of a stack with this setting so many times at once; what the service has done when all are
    /// settled, and how many answers there were.
    fn asked_at_once(name: &str, bytes: usize, setting: (&str, &str)) -> (ServiceFigures, usize) {
        let mut stacks = pair::set_pair(name, &[setting]);
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
        // Few frames wait for an address.
        pair::until(&mut stacks, |[client, _]| {
            client.neighbor_towards(to.ip()).unwrap().1
        });
        // They all wait at the service before it looks at the first.
        pair::until(&mut stacks, |[client, server]| {
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
        pair::until(&mut stacks, |[client, server]| {
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

    /// What found no room was thrown away: four of them were answered.
    #[test]
    fn a_question_waits_until_its_answer_has_room() {
        // In a frame, and in three.
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
