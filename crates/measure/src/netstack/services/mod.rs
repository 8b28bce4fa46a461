//! Services of a host on a stack: echo, discard, chargen, sockperf, iperf2 and linerate itself.
//!
//! They are driven by changes of sockets, never by a scan of all of them. Protocol decisions are
//! made by
//! the codecs; this code moves their bytes.

pub mod acceptor;
mod idle_sweep;
mod iperf2_udp;
mod outgoing_connects;
mod tcp_connection;
mod udp_service;

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::task::Poll;

use linerate_dialect::{chargen, discard, echo};
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::DEFAULT_PORT;
use linerate_metric::stack::ServiceFigures;
use linerate_stack::{SocketId, SocketKind, Stack};

use self::acceptor::{Desk, Reception};
use self::idle_sweep::Patrol;
use self::outgoing_connects::{Dialled, Dials};
use self::tcp_connection::{Connection, Next};
use self::udp_service::Datagrams;
use crate::error::MeasureError;
use crate::interop::handlers::Hall;

/// Backlog of a service's listener.
const BACKLOG: u32 = 32;

/// Backlog of the linerate service, whose clients open a thousand flows in parallel.
const OWN_BACKLOG: u32 = 1_024;

/// Default port of sockperf's server.
const SOCKPERF_PORT: u16 = 11_111;

/// Default port of iperf2's server.
const IPERF2_PORT: u16 = 5_001;

/// Kind of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// Echoes everything (RFC 862).
    Echo,
    /// Discards everything (RFC 863).
    Discard,
    /// Character generator (RFC 864).
    Chargen,
    /// sockperf's server.
    Sockperf,
    /// iperf2's server.
    Iperf2,
    /// linerate's own server: complete tests, as with `linerate server`.
    Linerate,
}

/// Table of services: name, kind, default port, description.
pub const SERVICES: &[(&str, ServiceKind, u16, &str)] = &[
    (
        "echo",
        ServiceKind::Echo,
        echo::PORT,
        "returns every byte (RFC 862), TCP and UDP",
    ),
    (
        "discard",
        ServiceKind::Discard,
        discard::PORT,
        "discards all input (RFC 863), TCP and UDP",
    ),
    (
        "chargen",
        ServiceKind::Chargen,
        chargen::PORT,
        "character generator (RFC 864), TCP and UDP",
    ),
    (
        "sockperf",
        ServiceKind::Sockperf,
        SOCKPERF_PORT,
        "sockperf server, TCP and UDP",
    ),
    (
        "iperf2",
        ServiceKind::Iperf2,
        IPERF2_PORT,
        "iperf 2 server, TCP and UDP",
    ),
    (
        "linerate",
        ServiceKind::Linerate,
        DEFAULT_PORT,
        "complete tests as with `linerate server`, one at a time",
    ),
];

/// A service and its port, `NAME[:PORT]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    pub kind: ServiceKind,
    /// TCP and UDP port.
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
            .ok_or_else(|| format!("unknown service `{name}`: use one of {}", names()))?;
        let port = match port {
            None => *usual,
            Some(port) => (port.parse().ok().filter(|&port| port > 0))
                .ok_or_else(|| format!("`{text}` has no valid port: write {name}:{usual}"))?,
        };
        Ok(Self { kind: *kind, port })
    }
}

impl ServiceKind {
    /// Returns whether its UDP responses can carry timestamps (`--stamp-payload`): those of other
    /// services
    /// have content of their own at that place.
    #[must_use]
    pub fn carries_times(self) -> bool {
        matches!(self, Self::Echo | Self::Sockperf)
    }

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

/// Payload that was received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Datagrams received.
    pub datagrams: u64,
}

/// A service with its sockets.
struct Service {
    spec: ServiceSpec,
    listener: SocketId,
    datagrams: Datagrams,
    figures: ServiceFigures,
}

/// Context that services need from their host.
#[derive(Clone, Default)]
pub struct Front {
    /// Address validation, permissions and the log of rejections.
    pub hall: Arc<Hall>,
    /// The linerate service, if enabled.
    pub desk: Option<Desk>,
}

/// Returns whether an address is in a network of the stack's link.
fn is_near(stack: &Stack, address: IpAddr) -> bool {
    let networks = &stack.addressing().networks;
    networks.iter().any(|network| network.contains(address))
}

/// The services of a stack.
pub struct Services {
    services: Vec<Service>,
    /// Connections by socket index.
    connections: Vec<Option<Box<Connection>>>,
    /// Range of connections whose idle timeout is checked next.
    patrol: Patrol,
    /// Sockets with more work than one round allows.
    again: VecDeque<SocketId>,
    /// Sockets that continue at a time, not at a change.
    timed: Vec<SocketId>,
    /// Connections being opened towards clients.
    dials: Dials,
    /// Address validation and permissions, with the ports of all services, which must not receive
    /// responses (loops).
    hall: Arc<Hall>,
    room: Box<[u8]>,
    /// The linerate service, if enabled.
    reception: Option<Box<Reception>>,
    /// Payload moved by its tests.
    payload: Payload,
    /// True if a socket was served since the last flush.
    worked: bool,
}

/// Buffer for the largest datagram, and for a read of a stream.
const ROOM_BYTES: usize = 1 << 16;

impl Services {
    /// Opens the sockets of services.
    ///
    /// # Errors
    /// When the stack rejects a socket, for example because a port is used twice.
    pub fn open(
        stack: &mut Stack,
        specs: Vec<ServiceSpec>,
        Front { hall, desk }: Front,
    ) -> Result<Self, MeasureError> {
        refuse_twice(&specs)?;
        let mut reception = None;
        let connections = stack.config().tcp_sockets as usize;
        let mut services = Vec::with_capacity(specs.len());
        for spec in specs {
            let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), spec.port);
            let backlog = match spec.kind {
                ServiceKind::Linerate => OWN_BACKLOG,
                _ => BACKLOG,
            };
            let listener = stack.tcp_listen(any, backlog)?;
            let socket = stack.udp_bind(any)?;
            if !spec.kind.carries_times() {
                stack.udp_leave_unstamped(socket)?;
            }
            if let (ServiceKind::Linerate, Some(desk)) = (spec.kind, &desk) {
                reception = Some(Box::new(Reception::new(desk.clone(), spec.port, socket)));
            }
            services.push(Service {
                spec,
                listener,
                datagrams: Datagrams::new(spec, socket),
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
            patrol: Patrol::default(),
            again: VecDeque::with_capacity(connections + 16),
            timed: Vec::with_capacity(16),
            dials: Dials::default(),
            hall,
            room: vec![0; ROOM_BYTES].into_boxed_slice(),
            reception,
            payload: Payload::default(),
            worked: false,
        })
    }

    /// Returns the figures of each service so far.
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

    /// Sets the payload that the linerate service's tests have moved in all.
    #[inline]
    pub fn moved(&mut self, payload: Payload) {
        self.payload = payload;
    }

    /// Returns the acceptor of the linerate service, if enabled.
    pub fn reception(&mut self) -> Option<&mut Reception> {
        self.reception.as_deref_mut()
    }

    /// Serves a socket that changed.
    #[inline]
    pub fn changed(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        self.worked = true;
        self.step(stack, socket, now);
    }

    /// Returns whether a socket continues without new frames: timed, or with work left.
    #[inline]
    pub fn is_pressed(&self) -> bool {
        !self.again.is_empty() || !self.timed.is_empty()
    }

    /// Continues sockets with work left and timed ones, and transmits the output.
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

    /// Closes idle connections and flows, and advances outgoing connections.
    pub fn look(&mut self, stack: &mut Stack, now: Nanos) {
        for service in &mut self.services {
            if service.datagrams.look(stack, &self.hall, now) {
                go_on_at(&mut self.timed, service.datagrams.socket());
            }
        }
        self.dial(stack, now);
        if let Some(reception) = &mut self.reception {
            reception.look(stack, now);
        }
        let share = self.patrol.share(self.connections.len(), now);
        for place in &mut self.connections[share] {
            if let Some(connection) = place
                && connection.is_forgotten(now)
            {
                // It may be closed already.
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
            if let Ok(Some(peer)) = stack.remote(socket) {
                // The completed handshake validates its address.
                self.hall.prove(peer.ip());
            }
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
            // Its first data may have arrived already.
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
        match (service.datagrams).step(stack, now, &mut self.room, &self.hall, figures) {
            Next::Again => self.again.push_back(socket),
            Next::Timed => go_on_at(&mut self.timed, socket),
            Next::Wait | Next::Over => {}
        }
    }

    /// Advances the connections towards clients.
    fn dial(&mut self, stack: &mut Stack, now: Nanos) {
        while let Some(Dialled {
            socket,
            service,
            settings,
        }) = self.dials.look(stack, now)
        {
            if let Some(place) = self.connections.get_mut(socket.index()) {
                let back = Connection::back(&settings, service, socket, now);
                *place = Some(Box::new(back));
                self.talk(stack, socket, now);
            }
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
        let service = connection.service();
        let figures = &mut self.services[service].figures;
        let next = connection.step(stack, now, &mut self.room, figures);
        if let Some(settings) = connection.wish(next == Next::Over)
            && let Ok(Some(client)) = stack.remote(socket)
        {
            self.dials
                .add(stack, &self.hall, client, service, settings, now);
        }
        match next {
            Next::Wait => {}
            Next::Again => self.again.push_back(socket),
            Next::Timed => go_on_at(&mut self.timed, socket),
            Next::Over => {
                // A failed connection is closed already.
                let _ = stack.close(socket);
                *place = None;
            }
        }
    }
}

/// Rejects a port that two services use.
fn refuse_twice(specs: &[ServiceSpec]) -> Result<(), MeasureError> {
    for (at, spec) in specs.iter().enumerate() {
        if let Some(other) = specs[..at].iter().find(|other| other.port == spec.port) {
            return Err(MeasureError::OptionRefused {
                option: format!("--serve {other},{spec}"),
                why: format!("both use port {}", spec.port),
                next_step: format!(
                    "leave one out, or give it another port: {}:PORT",
                    spec.kind.name()
                ),
            });
        }
    }
    Ok(())
}

/// Adds a socket to those that continue at a time, once.
fn go_on_at(timed: &mut Vec<SocketId>, socket: SocketId) {
    if !timed.contains(&socket) {
        timed.push(socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_services() {
        let specs = |all: &[&str]| -> Vec<ServiceSpec> {
            all.iter().map(|one| one.parse().unwrap()).collect()
        };
        assert!(refuse_twice(&specs(&["echo", "discard", "echo:8"])).is_ok());
        let refused = refuse_twice(&specs(&["echo", "iperf2", "discard:7"])).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("echo:7,discard:7"), "{text}");
    }

    /// Without the check, a change and a timer of a socket would each add it, in every round.
    #[test]
    fn who_goes_on_by_the_time_is_looked_at_once_a_round() {
        let plan = linerate_metric::stack::StackPlan {
            device: "null:".to_owned(),
            addresses: vec!["10.9.0.2/24".to_owned()],
            profile: "default".to_owned(),
            ..Default::default()
        };
        let (mut stack, ..) = crate::netstack::open_stack::open(&plan, &Arc::default()).unwrap();
        let sockets = [0, 0].map(|port| stack.udp_bind(SocketAddr::from(([0; 4], port))).unwrap());
        let mut timed = Vec::new();
        for _ in 0..1_000 {
            for socket in sockets {
                go_on_at(&mut timed, socket);
            }
        }
        assert_eq!(timed, sockets);
    }

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
