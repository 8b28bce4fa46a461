//! UDP demultiplexer: datagrams of flows that have no socket yet.
//!
//! A flow of our client starts with an opening datagram, one of another tool with payload, without
//! a handshake. The first datagram of either opens a connected socket for its flow, which receives
//! all later ones. Datagrams that arrive before it is connected are queued here, so that none is
//! lost.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};

use linerate_protocol::control::FlowToken;
use linerate_protocol::control::flow::reply;
use linerate_protocol::sniff::{Classification, TransportKind, classify};
use linerate_protocol::unrelated_protocol;
use linerate_record::plan::TransportProtocol;
use linerate_sys::{clock, datagram};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::handlers as protocols;
use crate::handlers::ProtocolHandler;
use crate::interop_state::{ExpectedFlow, IncomingFlow, UnvalidatedPermit, canonical};
use crate::limits::TEST_LIMIT;
use crate::server_state::{AnnouncedFlow, ServerState};

/// Most bytes of queued early datagrams, over all flows that start in one poll.
const MAX_EARLY_BYTES: usize = 8 << 20;

/// Accounted memory of a queued datagram in addition to its bytes.
const EARLY_OVERHEAD_BYTES: usize = 64;

/// Flows that start in one poll: as many as tests can run. Others stay in the listening socket.
const MAX_PENDING_FLOWS: usize = TEST_LIMIT;

/// Receive buffer: the largest datagram.
const DATAGRAM_BYTES: usize = 1 << 16;

/// Receive buffer of a flow that starts with its payload: it holds all datagrams until its thread
/// runs. The kernel grants at most net.core.rmem_max.
const FLOW_BUFFER_BYTES: usize = 1 << 20;

/// Datagrams that a new socket may have received before it was connected.
const MAX_PRECONNECT_DATAGRAMS: usize = 1_024;

/// UDP flow that starts.
pub struct PendingUdpFlow {
    pub incoming: IncomingFlow,
    /// Destination address of its first datagram.
    pub local: IpAddr,
    /// Handler of its protocol; `None` when a test expects the flow.
    pub handler: Option<&'static ProtocolHandler>,
    /// Permit of a client whose address is not validated.
    pub unvalidated: Option<UnvalidatedPermit>,
    /// Expectation of a running test that the flow matches.
    expected: Option<ExpectedFlow>,
}

/// Opens the connected socket of a flow, given local address, peer and interface.
type ConnectFlow = fn(SocketAddr, SocketAddr, Option<&str>) -> io::Result<Socket>;

/// UDP flows that start in one poll.
pub struct UdpDemux {
    pending: HashMap<SocketAddr, PendingUdpFlow>,
    arrival_order: Vec<SocketAddr>,
    early_bytes: usize,
    new_flows: Vec<PendingUdpFlow>,
    /// Datagrams of other peers that a new socket received before it was connected.
    misdelivered: VecDeque<(SocketAddr, Box<[u8]>)>,
    buffer: Vec<u8>,
    connect: ConnectFlow,
}

impl UdpDemux {
    pub fn new() -> Self {
        Self {
            pending: HashMap::new(),
            arrival_order: Vec::new(),
            early_bytes: 0,
            new_flows: Vec::new(),
            misdelivered: VecDeque::new(),
            buffer: vec![0; DATAGRAM_BYTES],
            connect: connect_flow,
        }
    }

    /// Returns whether no further flow may start in this poll.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING_FLOWS
            || self.early_bytes + DATAGRAM_BYTES > MAX_EARLY_BYTES
    }

    /// Handles a datagram that a listening socket received at `local`.
    pub fn on_datagram(
        &mut self,
        server: &ServerState,
        peer: SocketAddr,
        local: SocketAddr,
        forced: Option<&'static ProtocolHandler>,
        datagram: &[u8],
    ) {
        self.start_flow(server, peer, local, forced, datagram);
        // Each flow that starts with one of these may queue others: a loop, so that stack depth is
        // bounded.
        while let Some((peer, datagram)) = self.misdelivered.pop_front() {
            self.early_bytes -= datagram.len() + EARLY_OVERHEAD_BYTES;
            self.start_flow(server, peer, local, forced, &datagram);
        }
    }

    /// Handles one datagram; datagrams of other peers that its new socket received are queued.
    fn start_flow(
        &mut self,
        server: &ServerState,
        peer: SocketAddr,
        local: SocketAddr,
        forced: Option<&'static ProtocolHandler>,
        datagram: &[u8],
    ) {
        let peer = canonical(peer);
        // A datagram that does not fit is lost, as with a full socket buffer.
        if self.queue_if_pending(peer, datagram) || self.pending.len() >= MAX_PENDING_FLOWS {
            return;
        }
        let Some((handler, expected)) =
            classify_datagram(server, peer, local.port(), forced, datagram)
        else {
            // The port is forced to a protocol without UDP: other protocols still get the
            // rejection.
            reject_wrong_protocol(server, peer, local.port(), forced, datagram);
            return;
        };
        if forced.is_some_and(|forced| protocols::is_only_probe(forced, datagram)) {
            return;
        }
        if expected.is_none() && reject_wrong_protocol(server, peer, local.port(), forced, datagram)
        {
            return;
        }
        if let Some(handler) = handler
            && !server.interop.serves(handler.name)
        {
            server.interop.reject_protocol(handler.name, peer);
            return;
        }
        if let Some(rejects) = handler.and_then(|handler| handler.rejects_flow)
            && rejects(&server.interop, peer, datagram)
        {
            return;
        }
        // Source addresses can be forged: unvalidated clients have a smaller limit.
        let is_plain = |handler: &ProtocolHandler| {
            forced.is_none() && handler.name == protocols::plain_handler().name
        };
        let unvalidated = match handler {
            Some(handler) if is_plain(handler) || !server.interop.is_validated(peer.ip()) => {
                match server.interop.acquire_unvalidated_permit() {
                    None => {
                        server.interop.reject_unvalidated_client(handler.name, peer);
                        return;
                    }
                    some => some,
                }
            }
            _ => None,
        };
        // The flow exists already: this datagram arrived before its socket was connected.
        let Some(key) = server.interop.open_flow(local.port(), peer) else {
            return;
        };
        if !reserve_early_bytes(&mut self.early_bytes, datagram) {
            return;
        }
        // On an error the datagram is lost, as with a full socket buffer.
        let Ok(socket) = (self.connect)(local, peer, server.interface.as_deref()) else {
            return;
        };
        let _ = socket.set_recv_buffer_size(FLOW_BUFFER_BYTES);
        let flow = PendingUdpFlow {
            incoming: IncomingFlow {
                socket,
                peer,
                early_datagrams: vec![(clock::now(), datagram.into())],
                key: Some(key),
            },
            local: local.ip(),
            handler,
            unvalidated,
            expected,
        };
        self.pending.insert(peer, flow);
        self.arrival_order.push(peer);
        self.collect_preconnect(peer);
    }

    /// Queues a datagram of a flow that started in this poll; false when it belongs to none.
    fn queue_if_pending(&mut self, peer: SocketAddr, datagram: &[u8]) -> bool {
        let Some(flow) = self.pending.get_mut(&peer) else {
            return false;
        };
        if reserve_early_bytes(&mut self.early_bytes, datagram) {
            flow.incoming
                .early_datagrams
                .push((clock::now(), datagram.into()));
        }
        true
    }

    /// Reads what a new socket received before it was connected: until then it also matched
    /// datagrams of other peers, which are queued for their own flows.
    fn collect_preconnect(&mut self, peer: SocketAddr) {
        for _ in 0..MAX_PRECONNECT_DATAGRAMS {
            let Some(flow) = self.pending.get_mut(&peer) else {
                return;
            };
            let received =
                datagram::receive_with_destination(&flow.incoming.socket, &mut self.buffer);
            let Ok(received) = received else {
                break;
            };
            let datagram = &self.buffer[..received.bytes];
            if !reserve_early_bytes(&mut self.early_bytes, datagram) {
                continue;
            }
            if canonical(received.sender) == peer {
                flow.incoming
                    .early_datagrams
                    .push((clock::now(), datagram.into()));
            } else {
                self.misdelivered
                    .push_back((received.sender, datagram.into()));
            }
        }
    }

    /// Returns the new flows in order of arrival; expected flows are delivered to their tests.
    pub fn finish(mut self, server: &ServerState) -> Vec<PendingUdpFlow> {
        for peer in std::mem::take(&mut self.arrival_order) {
            let Some(flow) = self.pending.remove(&peer) else {
                continue;
            };
            match &flow.expected {
                Some(expected) => {
                    let expected = expected.clone();
                    server
                        .interop
                        .deliver(&expected, peer, || Some(flow.incoming));
                }
                None => self.new_flows.push(flow),
            }
        }
        self.new_flows
    }
}

/// Reserves queue space for a datagram; false when the limit is reached.
fn reserve_early_bytes(early_bytes: &mut usize, datagram: &[u8]) -> bool {
    let bytes = datagram.len() + EARLY_OVERHEAD_BYTES;
    let fits = *early_bytes + bytes <= MAX_EARLY_BYTES;
    if fits {
        *early_bytes += bytes;
    }
    fits
}

/// Rejects a datagram that certainly belongs to another protocol than the port's; true if it did.
fn reject_wrong_protocol(
    server: &ServerState,
    peer: SocketAddr,
    port: u16,
    forced: Option<&'static ProtocolHandler>,
    datagram: &[u8],
) -> bool {
    let Some(owner) = forced else {
        return false;
    };
    let Classification::Known(detected) =
        protocols::wrong_protocol_for_port(owner, TransportKind::Datagram, datagram)
    else {
        return false;
    };
    server
        .interop
        .reject_wrong_protocol(detected.name, peer, (port, owner.name));
    true
}

/// Classifies a first datagram: the handler of its protocol, or the test that expects it.
fn classify_datagram(
    server: &ServerState,
    peer: SocketAddr,
    port: u16,
    forced: Option<&'static ProtocolHandler>,
    datagram: &[u8],
) -> Option<(Option<&'static ProtocolHandler>, Option<ExpectedFlow>)> {
    let datagrams = ExpectedFlow::Datagrams { port };
    if server.interop.expects(&datagrams, peer) {
        return Some((None, Some(datagrams)));
    }
    let is_hello = linerate_protocol::iperf3::udp::UdpHello::read(datagram).is_some();
    let hello = ExpectedFlow::Iperf3Hello { port };
    if is_hello && server.interop.expects(&hello, peer) {
        return Some((None, Some(hello)));
    }
    if forced.is_some() {
        return Some((forced, None)).filter(|_| forced.is_some_and(|it| it.datagrams.is_some()));
    }
    if is_hello {
        // A hello that no test expects is ignored.
        return None;
    }
    if unrelated_protocol::is_nuttcp_marker(datagram) {
        // Marker of a test that has ended or never existed.
        return None;
    }
    match classify(TransportKind::Datagram, datagram) {
        Classification::Known(protocol) => Some((protocols::handler_named(protocol.name), None))
            .filter(|(handler, _)| handler.is_some_and(|handler| handler.datagrams.is_some())),
        Classification::NeedMore | Classification::Unknown => {
            Some((Some(protocols::plain_handler()), None))
        }
    }
}

/// Opens the socket of one of our UDP flows on the server's port, bound to the address that the
/// client used, and confirms the opening. The kernel prefers a socket connected to the sender.
///
/// The opening must come from the host of the control connection. A source address can be forged,
/// and a test towards it would flood the real owner.
pub fn open_flow(
    flow: &AnnouncedFlow,
    peer: SocketAddr,
    token: FlowToken,
    interface: Option<&str>,
) -> Option<Socket> {
    let peer = canonical(peer);
    if flow.protocol != TransportProtocol::Udp || peer.ip() != flow.peer {
        return None;
    }
    // On an error the flow stays announced: the client repeats its opening.
    let socket = connect_flow(flow.local, peer, interface).ok()?;
    // Datagrams received between bind and connect may open other flows: their clients repeat them.
    drain(&socket, MAX_PRECONNECT_DATAGRAMS);
    socket.set_nonblocking(false).ok()?;
    socket.send(&reply(token)).ok()?;
    Some(socket)
}

/// Discards up to `limit` queued datagrams: the sender may continue meanwhile.
fn drain(socket: &Socket, limit: usize) {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1];
    for _ in 0..limit {
        if socket.recv(&mut buffer).is_err() {
            return;
        }
    }
}

/// Opens a non-blocking socket that is bound to `local` and connected to the peer of a flow.
fn connect_flow(
    local: SocketAddr,
    peer: SocketAddr,
    interface: Option<&str>,
) -> io::Result<Socket> {
    let peer = canonical(peer);
    let local_ip = local.ip().to_canonical();
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, None)?;
    socket.set_reuse_address(true)?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    // Bound to the unspecified IPv4 address, the kernel chooses the source address itself.
    let local_ip = match (local_ip, peer) {
        (IpAddr::V6(any), SocketAddr::V4(_)) if any.is_unspecified() => {
            IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)
        }
        (ip, _) => ip,
    };
    let mut bound = SocketAddr::new(local_ip, local.port());
    if let (SocketAddr::V6(bound), SocketAddr::V6(peer)) = (&mut bound, peer) {
        bound.set_scope_id(peer.scope_id());
    }
    socket.bind(&SockAddr::from(bound))?;
    socket.connect(&SockAddr::from(peer))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::Arc;

    use linerate_protocol::iperf2::{Iperf2Direction, Iperf2Settings};

    use super::*;
    use crate::options::ServerOptions;
    /// A distinct sender for each number.
    fn sender(number: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1 + number))
    }

    fn server() -> ServerState {
        let server = ServerState::new(
            ServerOptions::default(),
            Arc::new(|_| {}),
            Arc::default(),
            None,
        );
        // Unvalidated clients have a smaller limit.
        server.interop.mark_validated(sender(0).ip());
        server
    }

    /// An iperf2 header and some payload.
    fn iperf2_datagram(bytes: usize) -> Vec<u8> {
        let mut datagram = vec![b'1'; bytes];
        datagram[..16].fill(0);
        datagram[3] = 1;
        datagram
    }

    /// A socket that received datagrams of two other peers before it was connected.
    fn socket_with_preconnect_datagrams(
        _: SocketAddr,
        _: SocketAddr,
        _: Option<&str>,
    ) -> io::Result<Socket> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        for _ in 0..2 {
            UdpSocket::bind("127.0.0.1:0")?.send_to(&iperf2_datagram(60), socket.local_addr()?)?;
        }
        Ok(socket.into())
    }

    #[test]
    fn flows_that_queue_others_are_bounded() {
        let (server, mut demux) = (server(), UdpDemux::new());
        demux.connect = socket_with_preconnect_datagrams;
        let local = SocketAddr::from(([127, 0, 0, 1], 5201));
        demux.on_datagram(&server, sender(0), local, None, &iperf2_datagram(60));
        assert!(demux.misdelivered.is_empty());
        assert_eq!(demux.arrival_order.len(), MAX_PENDING_FLOWS);
    }

    #[test]
    fn queued_bytes_of_a_poll_are_bounded() {
        let (server, mut demux) = (server(), UdpDemux::new());
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        for number in 0..1_000 {
            demux.on_datagram(
                &server,
                sender(number),
                local,
                None,
                &iperf2_datagram(60_000),
            );
        }
        let queued = demux
            .pending
            .values()
            .flat_map(|flow| &flow.incoming.early_datagrams);
        let bytes: usize = queued.map(|(_, datagram)| datagram.len()).sum();
        assert!(
            bytes <= MAX_EARLY_BYTES && bytes > MAX_EARLY_BYTES / 2,
            "{bytes}"
        );
        assert!(demux.is_full());
    }

    #[test]
    fn a_rejected_client_gets_no_socket() {
        let server = server();
        let local = SocketAddr::from(([127, 0, 0, 1], 5201));
        let unvalidated = SocketAddr::from(([127, 0, 0, 2], 4_000));
        let mut reverse = iperf2_datagram(200);
        let settings = Iperf2Settings {
            direction: Iperf2Direction::Reverse,
            ..Iperf2Settings::client(5201)
        };
        settings.write(&mut reverse[16..], 16).unwrap();
        let mut end = iperf2_datagram(60);
        end[..4].fill(0xff);
        for (peer, forced, datagram, begins) in [
            (unvalidated, None, &iperf2_datagram(60), true),
            (unvalidated, None, &reverse, false),
            (sender(4_000), None, &reverse, true),
            (unvalidated, Some("iperf2"), &vec![b'x'; 7], false),
            (unvalidated, Some("iperf2"), &end, false),
            (unvalidated, Some("echo"), &vec![b'x'; 7], true),
            (sender(6), Some("echo"), &vec![b'x'; 7], false),
            (sender(6), Some("chargen"), &vec![b'x'; 7], false),
            (sender(6), Some("discard"), &vec![b'x'; 7], true),
        ] {
            let mut demux = UdpDemux::new();
            demux.connect = |_, _, _| Socket::new(Domain::IPV4, Type::DGRAM, None);
            let forced = forced.and_then(protocols::handler_named);
            demux.on_datagram(&server, peer, local, forced, datagram);
            let context = format!("{peer} {:?} {datagram:?}", forced.map(|forced| forced.name));
            assert_eq!(demux.arrival_order.len(), usize::from(begins), "{context}");
        }
    }

    #[test]
    fn a_flooded_flow_is_not_drained_for_ever() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        for number in 0..20 {
            socket
                .send_to(&[number], socket.local_addr().unwrap())
                .unwrap();
        }
        let socket = Socket::from(socket);
        drain(&socket, 8);
        let mut buffer = [0; 1];
        let next = datagram::receive_with_destination(&socket, &mut buffer).unwrap();
        assert_eq!((next.bytes, buffer), (1, [8]));
    }
}
