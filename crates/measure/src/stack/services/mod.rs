//! What a stack answers on its own: the services of a host on a port.
//!
//! They are driven by what changes at sockets, never by looking at all of them. What a dialect says is
//! decided by its codec; here its bytes are moved.

mod connection;
mod datagrams;
pub mod reception;

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::task::Poll;

use linerate_dialect::{chargen, discard, echo};
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::DEFAULT_PORT;
use linerate_metric::stack::ServiceFigures;
use linerate_stack::{SocketId, SocketKind, Stack};

use self::connection::{Connection, Next};
use self::datagrams::Datagrams;
use self::reception::{Desk, Reception};
use crate::error::MeasureError;

/// Connections that wait to be accepted at a service.
const BACKLOG: u32 = 32;

/// The same at our own server, whose clients open a thousand flows side by side.
const OWN_BACKLOG: u32 = 1_024;

/// The port of sockperf's server without another wish.
const SOCKPERF_PORT: u16 = 11_111;

/// The same of iperf2's.
const IPERF2_PORT: u16 = 5_001;

/// What a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// The same bytes back (RFC 862).
    Echo,
    /// Takes what comes (RFC 863).
    Discard,
    /// Characters without end (RFC 864).
    Chargen,
    /// sockperf's server.
    Sockperf,
    /// iperf2's server.
    Iperf2,
    /// Our own server: whole tests, as `linerate server` has them.
    Linerate,
}

/// Every service: its name, its port, what it does.
pub const SERVICES: &[(&str, ServiceKind, u16, &str)] = &[
    (
        "echo",
        ServiceKind::Echo,
        echo::PORT,
        "the same bytes back, TCP and UDP",
    ),
    (
        "discard",
        ServiceKind::Discard,
        discard::PORT,
        "takes what comes, TCP and UDP",
    ),
    (
        "chargen",
        ServiceKind::Chargen,
        chargen::PORT,
        "sends without end, TCP; answers, UDP",
    ),
    (
        "sockperf",
        ServiceKind::Sockperf,
        SOCKPERF_PORT,
        "answers sockperf, TCP and UDP",
    ),
    (
        "iperf2",
        ServiceKind::Iperf2,
        IPERF2_PORT,
        "serves iperf 2, TCP and UDP",
    ),
    (
        "linerate",
        ServiceKind::Linerate,
        DEFAULT_PORT,
        "whole tests, as `linerate server` has them; one at a time",
    ),
];

/// A service and its port, `NAME[:PORT]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// What it is.
    pub kind: ServiceKind,
    /// Its port, over TCP and UDP.
    pub port: u16,
}

impl FromStr for ServiceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        };
        let names = || {
            let names: Vec<_> = SERVICES.iter().map(|(name, ..)| *name).collect();
            names.join(", ")
        };
        let (_, kind, usual, _) = SERVICES
            .iter()
            .find(|(known, ..)| *known == name)
            .ok_or_else(|| format!("`{name}` is no service: {}", names()))?;
        let port = match port {
            None => *usual,
            Some(port) => (port.parse().ok().filter(|&port| port > 0))
                .ok_or_else(|| format!("`{text}` names no port: write {name}:{usual}"))?,
        };
        Ok(Self { kind: *kind, port })
    }
}

impl ServiceKind {
    fn name(self) -> &'static str {
        let found = SERVICES.iter().find(|(_, kind, ..)| *kind == self);
        found.map_or("", |(name, ..)| *name)
    }
}

impl fmt::Display for ServiceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.port)
    }
}

/// Payload that was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Bytes that came.
    pub received: u64,
    /// Bytes that were sent.
    pub sent: u64,
    /// Datagrams that came.
    pub datagrams: u64,
}

/// One service with its sockets.
struct Service {
    spec: ServiceSpec,
    listener: SocketId,
    datagrams: Datagrams,
    figures: ServiceFigures,
}

/// All services of a stack.
pub struct Services {
    services: Vec<Service>,
    /// By the place of their socket.
    connections: Vec<Option<Box<Connection>>>,
    /// Sockets that have more to do than one round allows.
    again: VecDeque<SocketId>,
    /// Sockets that go on by the time and not by what changes.
    timed: Vec<SocketId>,
    /// Ports of all services: answers to them would be answered again.
    ports: Vec<u16>,
    room: Box<[u8]>,
    /// Our own server, where it is among them.
    reception: Option<Box<Reception>>,
    /// What its tests have moved.
    payload: Payload,
    /// Something was done since the last round.
    worked: bool,
}

/// Room for the largest datagram, and for a read of a stream.
const ROOM_BYTES: usize = 1 << 16;

impl Services {
    /// Opens the sockets of services.
    ///
    /// # Errors
    /// What the stack says, as that a port is named twice.
    pub fn open(
        stack: &mut Stack,
        specs: Vec<ServiceSpec>,
        desk: Option<Desk>,
    ) -> Result<Self, MeasureError> {
        let mut reception = None;
        let connections = stack.config().tcp_sockets as usize;
        let ports: Vec<u16> = specs.iter().map(|spec| spec.port).collect();
        let mut services = Vec::with_capacity(specs.len());
        for spec in specs {
            let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), spec.port);
            let backlog = match spec.kind {
                ServiceKind::Linerate => OWN_BACKLOG,
                _ => BACKLOG,
            };
            let listener = stack.tcp_listen(any, backlog)?;
            let socket = stack.udp_bind(any)?;
            if !matches!(spec.kind, ServiceKind::Echo | ServiceKind::Sockperf) {
                // Their datagrams have words of their own where times would stand.
                stack.udp_leave_unstamped(socket)?;
            }
            if let (ServiceKind::Linerate, Some(desk)) = (spec.kind, &desk) {
                reception = Some(Box::new(Reception::new(desk.clone(), spec.port, socket)));
            }
            services.push(Service {
                spec,
                listener,
                datagrams: Datagrams::new(spec.kind, socket),
                figures: ServiceFigures {
                    service: spec.kind.name().to_owned(),
                    port: spec.port,
                    ..ServiceFigures::default()
                },
            });
        }
        Ok(Self {
            services,
            connections: std::iter::repeat_with(|| None).take(connections).collect(),
            again: VecDeque::with_capacity(connections + 16),
            timed: Vec::with_capacity(16),
            ports,
            room: vec![0; ROOM_BYTES].into_boxed_slice(),
            reception,
            payload: Payload::default(),
            worked: false,
        })
    }

    /// What each service did so far.
    #[must_use]
    pub fn figures(&self) -> Vec<ServiceFigures> {
        let all = self.services.iter().map(|service| {
            let mut figures = service.figures.clone();
            if service.spec.kind == ServiceKind::Linerate {
                figures.bytes_received += self.payload.received;
                figures.bytes_sent += self.payload.sent;
                figures.datagrams += self.payload.datagrams;
            }
            figures
        });
        all.collect()
    }

    /// What the tests of our own server have moved in all: their flows are no connections of a service's.
    #[inline]
    pub fn moved(&mut self, payload: Payload) {
        self.payload = payload;
    }

    /// Our own server, where it is among the services.
    pub fn reception(&mut self) -> Option<&mut Reception> {
        self.reception.as_deref_mut()
    }

    /// Something changed at a socket: serves whoever it is.
    #[inline]
    pub fn changed(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        self.worked = true;
        self.step(stack, socket, now);
    }

    /// Goes on where one round was not enough, and sends what all of it gave.
    #[inline]
    pub fn go_on(&mut self, stack: &mut Stack, now: Nanos) {
        let left = self.again.len();
        let worked = std::mem::take(&mut self.worked) || left > 0 || !self.timed.is_empty();
        for _ in 0..left {
            if let Some(socket) = self.again.pop_front() {
                self.step(stack, socket, now);
            }
        }
        for place in (0..self.timed.len()).rev() {
            let socket = self.timed.swap_remove(place);
            self.step(stack, socket, now);
        }
        if worked {
            stack.flush();
        }
    }

    /// Ends what has been silent for too long.
    pub fn look(&mut self, stack: &mut Stack, now: Nanos) {
        for service in &mut self.services {
            service.datagrams.look(now);
        }
        if let Some(reception) = &mut self.reception {
            reception.look(stack, now);
        }
        for place in &mut self.connections {
            if let Some(connection) = place
                && connection.is_forgotten(now)
            {
                // It may be gone already.
                let _ = stack.abort(connection.socket());
                *place = None;
            }
        }
    }

    fn step(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        match socket.kind() {
            SocketKind::Listener => self.accept(stack, socket, now),
            SocketKind::Udp => self.answer(stack, socket, now),
            SocketKind::Tcp => self.talk(stack, socket, now),
        }
    }

    fn accept(&mut self, stack: &mut Stack, listener: SocketId, now: Nanos) {
        let Some(number) = (self.services.iter()).position(|service| service.listener == listener)
        else {
            return;
        };
        while let Poll::Ready(Ok(socket)) = stack.tcp_accept(listener) {
            let service = &mut self.services[number];
            service.figures.connections += 1;
            if service.spec.kind == ServiceKind::Linerate {
                match &mut self.reception {
                    Some(reception) => reception.came(stack, socket, now),
                    None => drop(stack.abort(socket)),
                }
                continue;
            }
            if let Some(place) = self.connections.get_mut(socket.index()) {
                let connection = Connection::new(service.spec.kind, number, socket, now);
                *place = Some(Box::new(connection));
            }
            // What it said may be here already.
            self.talk(stack, socket, now);
        }
    }

    fn answer(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        let mut services = self.services.iter_mut();
        let Some(service) = services.find(|service| service.datagrams.socket() == socket) else {
            return;
        };
        let figures = &mut service.figures;
        if service.spec.kind == ServiceKind::Linerate {
            if let Some(reception) = &mut self.reception {
                figures.datagrams += reception.open_flows(stack);
            }
            return;
        }
        if service
            .datagrams
            .step(stack, now, &mut self.room, &self.ports, figures)
        {
            self.again.push_back(socket);
        }
    }

    fn talk(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        let Some(place) = self.connections.get_mut(socket.index()) else {
            return;
        };
        let Some(connection) = place.as_mut().filter(|known| known.socket() == socket) else {
            if let Some(reception) = &mut self.reception {
                reception.hear(stack, socket);
            }
            return;
        };
        let figures = &mut self.services[connection.service()].figures;
        match connection.step(stack, now, &mut self.room, figures) {
            Next::Wait => {}
            Next::Again => self.again.push_back(socket),
            Next::Timed => self.timed.push(socket),
            Next::Over => {
                // A connection that broke is closed already.
                let _ = stack.close(socket);
                *place = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_read_as_they_print() {
        for (text, want) in [
            ("echo", "echo:7"),
            ("discard:4000", "discard:4000"),
            ("iperf2", "iperf2:5001"),
        ] {
            let spec: ServiceSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), want);
        }
        for text in ["", "ftp", "echo:", "echo:0", "echo:70000"] {
            assert!(text.parse::<ServiceSpec>().is_err(), "{text}");
        }
        for (name, kind, ..) in SERVICES {
            assert_eq!(kind.name(), *name);
        }
    }
}
