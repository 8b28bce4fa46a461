//! Services over UDP.

use std::task::Poll;

use linerate_dialect::sockperf::{self, Took};
use linerate_dialect::{chargen, echo};
use linerate_host::sys::clock::Nanos;
use linerate_metric::stack::ServiceFigures;
use linerate_stack::{Meta, SocketId, Stack};

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
    Echo,
    Discard,
    Chargen { line: u64 },
    Sockperf(Box<sockperf::Server>),
    Iperf2(Flows),
}

impl Datagrams {
    pub fn new(spec: ServiceSpec, socket: SocketId) -> Self {
        Self {
            socket,
            port: spec.port,
            dialect: match spec.kind {
                ServiceKind::Echo => Dialect::Echo,
                // Our own server's are the reception's.
                ServiceKind::Discard | ServiceKind::Linerate => Dialect::Discard,
                ServiceKind::Chargen => Dialect::Chargen { line: 0 },
                ServiceKind::Sockperf => Dialect::Sockperf(Box::default()),
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
            if let Poll::Ready(Ok(_)) = sent {
                figures.bytes_sent += answer as u64;
            }
        }
        true
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
            Self::Echo => Some(datagram.len()),
            Self::Discard => None,
            Self::Chargen { line } => {
                let bytes = chargen::answer(datagram.len(), *line, datagram);
                *line += 1;
                Some(bytes)
            }
            Self::Sockperf(server) => match server.datagram(datagram) {
                Took::Answer(_) => Some(datagram.len()),
                Took::Counted(_) | Took::Ignored => None,
            },
            Self::Iperf2(flows) => flows.take(stack, place, now, meta, datagram),
        }
    }
}
