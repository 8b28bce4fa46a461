//! iperf2 over UDP: flows from its clients, and flows that they request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::Poll;

use linerate_dialect::amplification_guard::Refusal;
use linerate_dialect::iperf2::{
    DIALECT, Dual, QUIET_NS, REPORT_LEAST_BYTES, Settings, UdpServer, Way,
};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::event::Problem;
use linerate_metric::stack::ServiceFigures;
use linerate_stack::{Meta, SocketId, Stack};

use super::is_near;
use super::tcp_connection::Next;
use crate::interop::handlers::{Hall, Iperf2Back, Iperf2Flow, TakesDatagrams, Took};

/// Largest number of flows of a service.
const FLOWS: usize = 64;

/// Largest number of datagrams sent per round; the stack is polled in between.
const BURST: usize = 32;

/// The flows of a service.
pub struct Flows(Vec<Entry>);

/// Flows between one client address and the service.
struct Entry {
    peer: SocketAddr,
    /// Destination of the client's datagrams.
    own: SocketAddr,
    /// Flow from the client.
    comes: Option<Iperf2Flow>,
    /// Flow to the client.
    goes: Option<Goes>,
    /// Settings of the flow that is sent once the client's has ended.
    after: Option<Box<Settings>>,
    /// Time of the last datagram in either direction.
    last_ns: Nanos,
}

/// A flow to a client.
struct Goes {
    back: Iperf2Back,
    /// Connected socket, which reports ICMP errors; `None`: the service's socket.
    socket: Option<SocketId>,
    to: SocketAddr,
}

/// Socket and permissions of the service whose flows are handled.
pub struct Place<'a> {
    /// The service's socket.
    pub socket: SocketId,
    pub port: u16,
    /// Address validation and permissions.
    pub hall: &'a Hall,
}

impl Flows {
    pub fn new() -> Self {
        Self(Vec::with_capacity(FLOWS))
    }

    /// Handles a datagram and writes the response over it; returns the response's length.
    pub fn take(
        &mut self,
        stack: &mut Stack,
        place: &Place,
        now: Nanos,
        meta: &Meta,
        datagram: &mut [u8],
    ) -> Option<usize> {
        let Some(entry) = self.0.iter_mut().find(|entry| entry.peer == meta.from) else {
            self.open(stack, place, now, meta, datagram);
            return None;
        };
        entry.last_ns = now;
        let flow = entry.comes.as_mut()?;
        match flow.take(now, datagram) {
            Took::Answer { bytes, .. } => Some(bytes),
            // A report is written over the request here; the iperf2 client reads its beginning.
            Took::Reply => {
                let bytes = flow.reply().len().min(datagram.len());
                datagram[..bytes].copy_from_slice(&flow.reply()[..bytes]);
                (bytes >= REPORT_LEAST_BYTES).then_some(bytes)
            }
            Took::Payload | Took::Opening | Took::Other | Took::Unread => None,
        }
    }

    fn open(&mut self, stack: &mut Stack, place: &Place, now: Nanos, meta: &Meta, datagram: &[u8]) {
        if self.0.len() == FLOWS {
            return;
        }
        let wall = clock::real().wrapping_sub(now);
        // The end marker of an ended flow opens none.
        let Some(server) = UdpServer::open(datagram, now.wrapping_add(wall)) else {
            return;
        };
        let settings = server.settings().cloned();
        let (way, dual) = (server.way(), settings.as_ref().and_then(|asked| asked.dual));
        let mut entry = Entry {
            peer: meta.from,
            own: SocketAddr::new(meta.to, place.port),
            comes: (way != Way::Reverse).then(|| Iperf2Flow::new(server, wall, now)),
            goes: None,
            after: None,
            last_ns: now,
        };
        if let Some(settings) = settings
            && (way != Way::Forward || dual.is_some())
            && may_be_sent(stack, place.hall, meta.from, &settings)
        {
            match dual {
                Some(Dual::After) => entry.after = Some(Box::new(settings)),
                Some(Dual::Now) => entry.send_on_a_second(stack, place, &settings, now),
                None => entry.send(stack, place, &settings, now),
            }
        }
        if entry.comes.is_some() || entry.goes.is_some() {
            self.0.push(entry);
        }
    }

    /// Sends what is due; returns when to continue.
    pub fn work(
        &mut self,
        stack: &mut Stack,
        place: &Place,
        now: Nanos,
        figures: &mut ServiceFigures,
    ) -> Next {
        let mut next = Next::Wait;
        for entry in &mut self.0 {
            let last = &mut entry.last_ns;
            if let Some(goes) = &mut entry.goes {
                let sent = goes.work(stack, place.socket, now);
                figures.bytes_sent += sent;
                if sent > 0 {
                    *last = now;
                }
                if !goes.back.is_over() {
                    next = Next::Timed;
                }
            }
        }
        next
    }

    /// Removes flows that have ended, and starts those that waited for that; returns whether one
    /// started.
    pub fn look(&mut self, stack: &mut Stack, place: &Place, now: Nanos) -> bool {
        let mut begun = false;
        for entry in &mut self.0 {
            // The client may still respond to the end, and would report a closed port as an error.
            let is_quiet = now.saturating_sub(entry.last_ns) > QUIET_NS;
            if is_quiet && entry.goes.as_ref().is_some_and(|goes| goes.back.is_over()) {
                entry.stop_sending(stack);
            }
            let over = entry.comes.as_mut().is_none_or(|flow| flow.is_over(now));
            if !over {
                continue;
            }
            let is_gone = entry.comes.take().is_some_and(|flow| flow.is_gone());
            // Without an end marker (no FIN), silence is the end.
            let says_no_end = entry.after.as_ref().is_some_and(|asked| asked.no_fin);
            if is_gone && !says_no_end {
                // The client is gone.
                entry.after = None;
                entry.stop_sending(stack);
            }
            if let Some(settings) = entry.after.take() {
                entry.send_on_a_second(stack, place, &settings, now);
                begun |= entry.goes.is_some();
            }
        }
        self.0.retain(|entry| {
            let quiet = now.saturating_sub(entry.last_ns) > QUIET_NS;
            entry.comes.is_some() || entry.goes.is_some() || !quiet
        });
        begun
    }
}

impl Entry {
    /// Sends on the flow that the client opened.
    fn send(&mut self, stack: &mut Stack, place: &Place, settings: &Settings, now: Nanos) {
        // With both directions, the client's datagrams must arrive at the service's socket.
        let own = match settings.way {
            Way::Both => None,
            _ => stack.udp_bind_pair(self.own, self.peer).ok(),
        };
        self.begin(stack, place.hall, (own, self.peer), settings, now);
    }

    /// Sends to the port on which the client listens.
    fn send_on_a_second(
        &mut self,
        stack: &mut Stack,
        place: &Place,
        settings: &Settings,
        now: Nanos,
    ) {
        let any: IpAddr = match self.peer.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        let to = SocketAddr::new(self.peer.ip(), settings.port);
        let Ok(socket) = stack.udp_bind(SocketAddr::new(any, 0)) else {
            return;
        };
        if stack.udp_connect(socket, to).is_err() {
            let _ = stack.close(socket);
            return;
        }
        self.begin(stack, place.hall, (Some(socket), to), settings, now);
    }

    fn begin(
        &mut self,
        stack: &mut Stack,
        hall: &Hall,
        (socket, to): (Option<SocketId>, SocketAddr),
        settings: &Settings,
        now: Nanos,
    ) {
        let wall = clock::real().wrapping_sub(now);
        if let Some(socket) = socket {
            // Its payload has iperf2 headers where timestamps would be written.
            let _ = stack.udp_leave_unstamped(socket);
        }
        let back = Iperf2Back::new(settings, settings.dual.is_some(), now, wall);
        if back.is_cut() {
            hall.refuse_wish(
                DIALECT.name,
                self.peer,
                &Problem::new(
                    "datagrams are sent for at most 60 s to a client without a TCP connection that would show \
                     it is still there",
                    "a longer flow",
                    "use a shorter -t, or leave -u out",
                ),
            );
        }
        self.last_ns = now;
        self.goes = Some(Goes { back, socket, to });
    }

    fn stop_sending(&mut self, stack: &mut Stack) {
        if let Some(socket) = self.goes.take().and_then(|goes| goes.socket) {
            let _ = stack.close(socket);
        }
    }
}

impl Goes {
    /// Sends what is due; returns the number of bytes.
    fn work(&mut self, stack: &mut Stack, service: SocketId, now: Nanos) -> u64 {
        if let Some(own) = self.socket {
            // Received data is discarded, but ICMP errors and responses to the end are counted.
            for _ in 0..BURST {
                match stack.udp_receive(own, |_, _| ()) {
                    Poll::Ready(Ok(())) => self.back.answered(),
                    Poll::Ready(Err(_)) => self.back.refused(now),
                    Poll::Pending => break,
                }
            }
        }
        let (socket, to) = match self.socket {
            Some(own) => (own, None),
            None => (service, Some(self.to)),
        };
        let mut sent = 0;
        for _ in 0..BURST {
            let Some(datagram) = self.back.due(now) else {
                break;
            };
            let bytes = datagram.len();
            match stack.udp_send(socket, to, bytes, |room| room.copy_from_slice(datagram)) {
                Poll::Ready(Ok(_)) => {
                    self.back.left(now);
                    sent += bytes as u64;
                }
                Poll::Ready(Err(_)) => {
                    self.back.refused(now);
                    break;
                }
                Poll::Pending => break,
            }
        }
        sent
    }
}

/// Returns whether a flow may be sent to the client that requests it. Its address may be forged,
/// and the
/// flow is far larger than the request. A rejection is logged.
fn may_be_sent(stack: &Stack, hall: &Hall, from: SocketAddr, settings: &Settings) -> bool {
    let address = from.ip();
    if !hall.is_known(address) {
        hall.refuse_answer(DIALECT.name, from, Refusal::Unproved { address });
        return false;
    }
    settings.dual.is_none() || may_be_called(stack, hall, from, settings.port)
}

/// Returns whether a port that a client names may be connected to. A rejection is logged.
pub fn may_be_called(stack: &Stack, hall: &Hall, client: SocketAddr, port: u16) -> bool {
    /// Alternative for the client.
    const OTHERWISE: &str = "use --full-duplex or -R at the client";
    let address = client.ip();
    if port == 0 || stack.addressing().is_own(address) {
        return false;
    }
    is_near(stack, address) || hall.may_connect_back(DIALECT.name, client, port, OTHERWISE)
}

#[cfg(test)]
mod tests;
