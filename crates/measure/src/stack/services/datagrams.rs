//! Services over UDP.

use std::net::SocketAddr;
use std::task::Poll;

use linerate_dialect::iperf2::{REPORT_LEAST_BYTES, UdpServer};
use linerate_dialect::sockperf::{self, Took};
use linerate_dialect::{chargen, echo};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::stack::ServiceFigures;
use linerate_stack::{SocketId, Stack};

use super::ServiceKind;
use crate::peers::serve::{Iperf2Flow, TakesDatagrams, Took as Taken};

/// Datagrams that one round takes at most: the stack is to turn in between.
const BURST: usize = 32;

/// Flows of iperf2 that a service keeps at a time.
const FLOWS: usize = 64;

/// A service's UDP socket.
pub struct Datagrams {
    socket: SocketId,
    dialect: Dialect,
}

enum Dialect {
    Echo,
    Discard,
    Chargen { line: u64 },
    Sockperf(Box<sockperf::Server>),
    Iperf2(Vec<(SocketAddr, Iperf2Flow)>),
}

impl Datagrams {
    pub fn new(kind: ServiceKind, socket: SocketId) -> Self {
        Self {
            socket,
            dialect: match kind {
                ServiceKind::Echo => Dialect::Echo,
                // Our own server's are the reception's.
                ServiceKind::Discard | ServiceKind::Linerate => Dialect::Discard,
                ServiceKind::Chargen => Dialect::Chargen { line: 0 },
                ServiceKind::Sockperf => Dialect::Sockperf(Box::default()),
                ServiceKind::Iperf2 => Dialect::Iperf2(Vec::with_capacity(FLOWS)),
            },
        }
    }

    pub fn socket(&self) -> SocketId {
        self.socket
    }

    /// Takes what is there, up to a burst; whether there may be more.
    pub fn step(
        &mut self,
        stack: &mut Stack,
        now: Nanos,
        room: &mut [u8],
        own_ports: &[u16],
        figures: &mut ServiceFigures,
    ) -> bool {
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
            let answer = self.dialect.take(now, meta.from, &mut room[..bytes]);
            // An answer to a service that answers would be answered for ever.
            let Some(answer) = answer.filter(|_| echo::answers_to(meta.from.port(), own_ports))
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

    /// Forgets flows that are over.
    pub fn look(&mut self, now: Nanos) {
        if let Dialect::Iperf2(flows) = &mut self.dialect {
            flows.retain_mut(|(_, flow)| !flow.is_over(now));
        }
    }
}

impl Dialect {
    /// Takes a datagram, and makes an answer of it: how long that is.
    #[inline]
    fn take(&mut self, now: Nanos, from: SocketAddr, datagram: &mut [u8]) -> Option<usize> {
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
            Self::Iperf2(flows) => {
                let known = flows.iter().position(|(peer, _)| *peer == from);
                let number = match known {
                    Some(number) => number,
                    None => {
                        if flows.len() == FLOWS {
                            return None;
                        }
                        let wall = clock::real().wrapping_sub(now);
                        // The end of a flow that is over opens none.
                        let server = UdpServer::open(datagram, now.wrapping_add(wall))?;
                        flows.push((from, Iperf2Flow::new(server, wall, now)));
                        return None;
                    }
                };
                let flow = &mut flows[number].1;
                match flow.take(now, datagram) {
                    Taken::Answer { bytes, .. } => Some(bytes),
                    // An answer is written over its question here, and stock clients read its beginning.
                    Taken::Reply => {
                        let bytes = flow.reply().len().min(datagram.len());
                        datagram[..bytes].copy_from_slice(&flow.reply()[..bytes]);
                        (bytes >= REPORT_LEAST_BYTES).then_some(bytes)
                    }
                    Taken::Payload | Taken::Opening | Taken::Other | Taken::Unread => None,
                }
            }
        }
    }
}
