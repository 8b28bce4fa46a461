//! Services of a host on a stack: echo, discard, chargen, sockperf, iperf2 and linerate itself.
//!
//! They are driven by changes of sockets, never by a scan of all of them. Protocol decisions are
//! made by the codecs; this code moves their bytes.

pub mod acceptor;
mod idle_sweep;
mod iperf2_udp;
mod outgoing_connects;
mod tcp_connection;
mod udp_service;

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::task::Poll;

use linerate_protocol::{chargen, discard, echo};
use linerate_record::plan::DEFAULT_PORT;
use linerate_record::stack::ServiceFigures;
use linerate_stack::{SocketId, SocketKind, Stack};
use linerate_sys::clock::Nanos;
use linerate_transport::TransportError;
use linerate_transport::stack_thread::bridge::ConnectionBridge;
use linerate_transport::stack_thread::stack_service::{
    OpenServices, PayloadCounters, StackService,
};

use self::acceptor::{AcceptHandle, NetstackAcceptor};
use self::idle_sweep::IdleSweep;
use self::outgoing_connects::{EstablishedConnect, OutgoingConnects};
use self::tcp_connection::{NextStep, ServiceConnection};
use self::udp_service::UdpService;
use crate::interop_state::InteropState;

/// Backlog of a service's listener.
const BACKLOG: u32 = 32;

/// Backlog of the linerate service, whose clients open a thousand flows in parallel.
const LINERATE_BACKLOG: u32 = 1_024;

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
        let (_, kind, default_port, _) = SERVICES
            .iter()
            .find(|(entry, ..)| *entry == name)
            .ok_or_else(|| format!("unknown service `{name}`: use one of {}", names()))?;
        let port = match port {
            None => *default_port,
            Some(port) => (port.parse().ok().filter(|&port| port > 0)).ok_or_else(|| {
                format!("`{text}` has no valid port: write {name}:{default_port}")
            })?,
        };
        Ok(Self { kind: *kind, port })
    }
}

impl ServiceKind {
    /// Returns whether its UDP responses can carry timestamps (`--stamp-payload`):
    /// those of other services have content of their own at that place.
    #[must_use]
    pub fn supports_timestamps(self) -> bool {
        matches!(self, Self::Echo | Self::Sockperf)
    }

    fn name(self) -> &'static str {
        let entry = SERVICES.iter().find(|(_, kind, ..)| *kind == self);
        entry.map_or("", |(name, ..)| *name)
    }
}

impl fmt::Display for ServiceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.port)
    }
}

/// A service with its sockets.
struct RunningService {
    spec: ServiceSpec,
    listener: SocketId,
    datagrams: UdpService,
    figures: ServiceFigures,
}

/// Context that services need from their host.
#[derive(Clone, Default)]
pub struct ServiceContext {
    /// Address validation, permissions and the log of rejections.
    pub interop: Arc<InteropState>,
    /// The linerate service, if enabled.
    pub linerate: Option<AcceptHandle>,
}

/// Returns whether an address is in a network of the stack's link.
fn is_on_link(stack: &Stack, address: IpAddr) -> bool {
    let networks = &stack.addressing().networks;
    networks.iter().any(|network| network.contains(address))
}

/// The services of a stack.
pub struct StackServices {
    services: Vec<RunningService>,
    /// Connections by socket index.
    connections: Vec<Option<Box<ServiceConnection>>>,
    /// Range of connections whose idle timeout is checked next.
    idle_sweep: IdleSweep,
    /// Sockets with more work than one round allows.
    run_queue: VecDeque<SocketId>,
    /// Sockets that continue at a time, not at a change.
    timed_sockets: Vec<SocketId>,
    /// Connections being opened towards clients.
    outgoing_connects: OutgoingConnects,
    /// Address validation and permissions, with the ports of all services, which must not receive
    /// responses (loops).
    interop: Arc<InteropState>,
    buffer: Box<[u8]>,
    /// The linerate service, if enabled.
    acceptor: Option<Box<NetstackAcceptor>>,
    /// Payload moved by its tests.
    test_payload: PayloadCounters,
    /// True if a socket was served since the last flush.
    has_output: bool,
}

/// Buffer for the largest datagram, and for a read of a stream.
const BUFFER_BYTES: usize = 1 << 16;

impl StackServices {
    /// Opens the sockets of services.
    ///
    /// # Errors
    /// When the stack rejects a socket, for example because a port is used twice.
    pub fn open(
        stack: &mut Stack,
        specs: Vec<ServiceSpec>,
        ServiceContext { interop, linerate }: ServiceContext,
    ) -> Result<Self, TransportError> {
        check_ports(&specs)?;
        let mut acceptor = None;
        let connections = stack.config().tcp_sockets as usize;
        let mut services = Vec::with_capacity(specs.len());
        for spec in specs {
            let unspecified = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), spec.port);
            let backlog = match spec.kind {
                ServiceKind::Linerate => LINERATE_BACKLOG,
                _ => BACKLOG,
            };
            let listener = stack.tcp_listen(unspecified, backlog)?;
            let socket = stack.udp_bind(unspecified)?;
            let stamped = match spec.kind.supports_timestamps() {
                true => stack.stamped_bytes(),
                false => {
                    stack.udp_disable_stamps(socket)?;
                    None
                }
            };
            if let (ServiceKind::Linerate, Some(linerate)) = (spec.kind, &linerate) {
                acceptor = Some(Box::new(NetstackAcceptor::new(
                    linerate.clone(),
                    spec.port,
                    socket,
                )));
            }
            services.push(RunningService {
                spec,
                listener,
                datagrams: UdpService::new(spec, socket, stamped),
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
            idle_sweep: IdleSweep::default(),
            run_queue: VecDeque::with_capacity(connections + 16),
            timed_sockets: Vec::with_capacity(16),
            outgoing_connects: OutgoingConnects::default(),
            interop,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            acceptor,
            test_payload: PayloadCounters::default(),
            has_output: false,
        })
    }

    /// Returns the figures of each service so far.
    #[must_use]
    pub fn figures(&self) -> Vec<ServiceFigures> {
        let all = self.services.iter().map(|service| {
            let mut figures = service.figures.clone();
            if service.spec.kind == ServiceKind::Linerate {
                figures.bytes_received += self.test_payload.received;
                figures.bytes_sent += self.test_payload.sent;
                figures.datagrams += self.test_payload.datagrams;
            }
            figures
        });
        all.collect()
    }

    /// Returns the acceptor of the linerate service, if enabled.
    pub fn acceptor(&mut self) -> Option<&mut NetstackAcceptor> {
        self.acceptor.as_deref_mut()
    }

    fn serve_socket(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        match socket.kind() {
            SocketKind::Listener => self.accept(stack, socket, now),
            SocketKind::Udp => self.serve_datagrams(stack, socket, now),
            SocketKind::Tcp => self.serve_connection(stack, socket, now),
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
                self.interop.mark_validated(peer.ip());
            }
            let service = &mut self.services[number];
            service.figures.connections += 1;
            if service.spec.kind == ServiceKind::Linerate {
                match &mut self.acceptor {
                    Some(acceptor) => acceptor.on_accepted(stack, socket, now),
                    None => drop(stack.abort(socket)),
                }
                continue;
            }
            if let Some(slot) = self.connections.get_mut(socket.index()) {
                let connection = ServiceConnection::new(service.spec.kind, number, socket, now);
                *slot = Some(Box::new(connection));
            }
            // Its first data may have arrived already.
            self.serve_connection(stack, socket, now);
        }
    }

    fn serve_datagrams(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        let mut services = self.services.iter_mut();
        let Some(service) = services.find(|service| service.datagrams.socket() == socket) else {
            return;
        };
        let figures = &mut service.figures;
        if service.spec.kind == ServiceKind::Linerate {
            if let Some(acceptor) = &mut self.acceptor {
                figures.datagrams += acceptor.accept_udp_flows(stack);
            }
            return;
        }
        match (service.datagrams).step(stack, now, &mut self.buffer, &self.interop, figures) {
            NextStep::Ready => self.run_queue.push_back(socket),
            NextStep::Timed => add_timed(&mut self.timed_sockets, socket),
            NextStep::Wait | NextStep::Finished => {}
        }
    }

    /// Advances the connections towards clients.
    fn poll_outgoing_connects(&mut self, stack: &mut Stack, now: Nanos) {
        while let Some(EstablishedConnect {
            socket,
            service,
            settings,
        }) = self.outgoing_connects.poll(stack, now)
        {
            if let Some(slot) = self.connections.get_mut(socket.index()) {
                let connection = ServiceConnection::second(&settings, service, socket, now);
                *slot = Some(Box::new(connection));
                self.serve_connection(stack, socket, now);
            }
        }
    }

    fn serve_connection(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        let Some(slot) = self.connections.get_mut(socket.index()) else {
            return;
        };
        let Some(connection) = slot.as_mut().filter(|entry| entry.socket() == socket) else {
            if let Some(acceptor) = &mut self.acceptor {
                acceptor.classify(stack, socket);
            }
            return;
        };
        let service = connection.service_index();
        let figures = &mut self.services[service].figures;
        let next = connection.step(stack, now, &mut self.buffer, figures);
        if let Some(settings) = connection.take_second_connection(next == NextStep::Finished)
            && let Ok(Some(client)) = stack.remote(socket)
        {
            self.outgoing_connects
                .add(stack, &self.interop, client, service, settings, now);
        }
        match next {
            NextStep::Wait => {}
            NextStep::Ready => self.run_queue.push_back(socket),
            NextStep::Timed => add_timed(&mut self.timed_sockets, socket),
            NextStep::Finished => {
                // A failed connection is closed already.
                let _ = stack.close(socket);
                *slot = None;
            }
        }
    }
}

impl StackService for StackServices {
    #[inline]
    fn on_socket_change(&mut self, stack: &mut Stack, socket: SocketId, now: Nanos) {
        self.has_output = true;
        self.serve_socket(stack, socket, now);
    }

    #[inline]
    fn has_ready_work(&self) -> bool {
        !self.run_queue.is_empty() || !self.timed_sockets.is_empty()
    }

    #[inline]
    fn run_ready(&mut self, stack: &mut Stack, now: Nanos) {
        let ready_count = self.run_queue.len();
        let has_output = std::mem::take(&mut self.has_output)
            || ready_count > 0
            || !self.timed_sockets.is_empty();
        for _ in 0..ready_count {
            if let Some(socket) = self.run_queue.pop_front() {
                self.serve_socket(stack, socket, now);
            }
        }
        for index in (0..self.timed_sockets.len()).rev() {
            let socket = self.timed_sockets.swap_remove(index);
            self.serve_socket(stack, socket, now);
        }
        if has_output {
            stack.flush();
        }
    }

    fn poll_timers(&mut self, stack: &mut Stack, now: Nanos) {
        for service in &mut self.services {
            if service.datagrams.poll_timers(stack, &self.interop, now) {
                add_timed(&mut self.timed_sockets, service.datagrams.socket());
            }
        }
        self.poll_outgoing_connects(stack, now);
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.poll_timers(stack, now);
        }
        let range = self.idle_sweep.next_range(self.connections.len(), now);
        for slot in &mut self.connections[range] {
            if let Some(connection) = slot
                && connection.is_idle_timed_out(now)
            {
                // It may be closed already.
                let _ = stack.abort(connection.socket());
                *slot = None;
            }
        }
    }

    #[inline]
    fn set_test_payload(&mut self, payload: PayloadCounters) {
        self.test_payload = payload;
    }

    fn take_bridges(&mut self) -> Vec<ConnectionBridge> {
        self.acceptor
            .as_mut()
            .map(|acceptor| acceptor.take_bridges())
            .unwrap_or_default()
    }

    fn hand_over_socket(&mut self, socket: SocketId) {
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.hand_over_socket(socket);
        }
    }

    fn stop_openings(&mut self) {
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.stop_openings();
        }
    }

    fn end_test(&mut self, stack: &mut Stack) {
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.end_test(stack);
        }
    }
}

/// Returns what opens these services on the stack's thread; `None` without a service.
pub fn opener(specs: Vec<ServiceSpec>, context: ServiceContext) -> Option<OpenServices> {
    if specs.is_empty() {
        return None;
    }
    Some(Box::new(move |stack| {
        Ok(Box::new(StackServices::open(stack, specs, context)?))
    }))
}

/// Returns the services of a stack that these are, if it has any.
pub fn downcast(services: Option<&mut dyn StackService>) -> Option<&mut StackServices> {
    let services: &mut dyn Any = services?;
    services.downcast_mut()
}

/// Rejects a port that two services use.
fn check_ports(specs: &[ServiceSpec]) -> Result<(), TransportError> {
    for (position, spec) in specs.iter().enumerate() {
        if let Some(first) = specs[..position]
            .iter()
            .find(|first| first.port == spec.port)
        {
            return Err(TransportError::OptionRejected {
                option: format!("--serve {first},{spec}"),
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
fn add_timed(timed: &mut Vec<SocketId>, socket: SocketId) {
    if !timed.contains(&socket) {
        timed.push(socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_belongs_to_one_service() {
        let specs = |all: &[&str]| -> Vec<ServiceSpec> {
            all.iter()
                .map(|spec_text| spec_text.parse().unwrap())
                .collect()
        };
        assert!(check_ports(&specs(&["echo", "discard", "echo:8"])).is_ok());
        let error = check_ports(&specs(&["echo", "iperf2", "discard:7"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("echo:7,discard:7"), "{text}");
    }

    /// Without the check, a change and a timer of a socket would each add it, in every round.
    #[test]
    fn a_timed_socket_is_added_once() {
        let plan = linerate_record::stack::StackPlan {
            device: "null:".to_owned(),
            addresses: vec!["10.9.0.2/24".to_owned()],
            profile: "default".to_owned(),
            ..Default::default()
        };
        let (mut stack, ..) =
            linerate_transport::stack_thread::open_stack::open_stack(&plan, &Arc::default())
                .unwrap();
        let sockets = [0, 0].map(|port| stack.udp_bind(SocketAddr::from(([0; 4], port))).unwrap());
        let mut timed = Vec::new();
        for _ in 0..1_000 {
            for socket in sockets {
                add_timed(&mut timed, socket);
            }
        }
        assert_eq!(timed, sockets);
    }

    #[test]
    fn services_read_as_they_print() {
        for (text, expected) in [
            ("echo", "echo:7"),
            ("discard:4000", "discard:4000"),
            ("iperf2", "iperf2:5001"),
        ] {
            let spec: ServiceSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), expected);
        }
        for text in ["", "ftp", "echo:", "echo:0", "echo:70000"] {
            assert!(text.parse::<ServiceSpec>().is_err(), "{text}");
        }
        for (name, kind, ..) in SERVICES {
            assert_eq!(kind.name(), *name);
        }
    }
}
