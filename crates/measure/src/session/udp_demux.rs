//! UDP demultiplexer: datagrams of flows that have no socket yet.
//!
//! UDP flows of other tools start with payload, without a handshake. The first datagram opens a
//! connected socket for its flow, which receives all later ones. Datagrams that arrive before it is
//! connected are queued here, so that none is lost.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use linerate_dialect::control::Token;
use linerate_dialect::control::flow::answer;
use linerate_dialect::sniff::{Carrier, Speaker as Classification, speaker};
use linerate_dialect::unrelated_protocol;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::datagram;
use linerate_metric::plan::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};

use super::acceptor::canonical;
use super::limits::TEST_LIMIT;
use super::server_state::{House, Waiting};
use crate::interop::handlers::{self as protocols, FlowKey, Speaker, Stranger, Wanted};

/// Most bytes of queued early datagrams, over all flows that start in one poll.
const WAITING_BYTES: usize = 8 << 20;

/// Accounted memory of a queued datagram in addition to its bytes.
const OVERHEAD_BYTES: usize = 64;

/// Flows that start in one poll: as many as tests can run. Others stay in the listening socket.
const KNOCK_LIMIT: usize = TEST_LIMIT;

/// Receive buffer: the largest datagram.
const DATAGRAM_BYTES: usize = 1 << 16;

/// Receive buffer of a flow that starts with its payload: it holds all datagrams until its thread
/// runs. The kernel grants at most net.core.rmem_max.
const FLOW_BUFFER_BYTES: usize = 1 << 20;

/// Datagrams that a new socket may have received before it was connected.
const MIXED_LIMIT: usize = 1_024;

/// Connection or UDP flow that is handed to a test.
pub struct Arrived {
    /// Socket, connected to the peer.
    pub socket: Socket,
    pub from: SocketAddr,
    /// Datagrams that arrived before the socket was connected, with their receive times.
    pub early: Vec<(Nanos, Box<[u8]>)>,
    /// Guard that prevents a second start of the same UDP flow.
    pub key: Option<FlowKey>,
}

impl Arrived {
    /// Wraps a TCP connection.
    pub fn stream(stream: TcpStream, from: SocketAddr) -> Self {
        Self {
            socket: stream.into(),
            from,
            early: Vec::new(),
            key: None,
        }
    }

    /// Size in bytes of the largest early datagram.
    pub fn largest(&self) -> u64 {
        let sizes = self.early.iter().map(|(_, datagram)| datagram.len());
        sizes.max().unwrap_or(0) as u64
    }
}

/// UDP flow that starts.
pub struct Knock {
    pub arrived: Arrived,
    /// Destination address of its first datagram.
    pub local: IpAddr,
    /// Handler of its protocol; `None` when a test expects the flow.
    pub speaker: Option<&'static Speaker>,
    /// Permit of a client whose address is not validated.
    pub stranger: Option<Stranger>,
    /// Expectation of a running test that the flow matches.
    wanted: Option<Wanted>,
}

/// Opens the connected socket of a flow, given local address, peer and interface.
type Connect = fn(SocketAddr, SocketAddr, Option<&str>) -> io::Result<Socket>;

/// UDP flows that start in one poll.
pub struct Porch {
    knocks: HashMap<SocketAddr, Knock>,
    order: Vec<SocketAddr>,
    waiting_bytes: usize,
    handed: Vec<Knock>,
    /// Datagrams of other peers that a new socket received before it was connected.
    others: VecDeque<(SocketAddr, Box<[u8]>)>,
    room: Vec<u8>,
    connect: Connect,
}

impl Porch {
    pub fn new() -> Self {
        Self {
            knocks: HashMap::new(),
            order: Vec::new(),
            waiting_bytes: 0,
            handed: Vec::new(),
            others: VecDeque::new(),
            room: vec![0; DATAGRAM_BYTES],
            connect: connect_flow,
        }
    }

    /// Returns whether no further flow may start in this poll.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.knocks.len() >= KNOCK_LIMIT || self.waiting_bytes + DATAGRAM_BYTES > WAITING_BYTES
    }

    /// Handles a datagram that a listening socket received at `local`.
    pub fn knock(
        &mut self,
        house: &House,
        from: SocketAddr,
        local: SocketAddr,
        forced: Option<&'static Speaker>,
        datagram: &[u8],
    ) {
        self.begin(house, from, local, forced, datagram);
        // Each flow that starts with one of these may queue others: a loop, so that stack depth is
        // bounded.
        while let Some((from, datagram)) = self.others.pop_front() {
            self.waiting_bytes -= datagram.len() + OVERHEAD_BYTES;
            self.begin(house, from, local, forced, &datagram);
        }
    }

    /// Handles one datagram; datagrams of other peers that its new socket received are queued.
    fn begin(
        &mut self,
        house: &House,
        from: SocketAddr,
        local: SocketAddr,
        forced: Option<&'static Speaker>,
        datagram: &[u8],
    ) {
        let from = canonical(from);
        // A datagram that does not fit is lost, as with a full socket buffer.
        if self.is_early(from, datagram) || self.knocks.len() >= KNOCK_LIMIT {
            return;
        }
        let Some((speaker, wanted)) = whose(house, from, local.port(), forced, datagram) else {
            // The port is forced to a protocol without UDP: other protocols still get the
            // rejection.
            tell_misplaced(house, from, local.port(), forced, datagram);
            return;
        };
        if forced.is_some_and(|forced| protocols::only_asks(forced, datagram)) {
            return;
        }
        if wanted.is_none() && tell_misplaced(house, from, local.port(), forced, datagram) {
            return;
        }
        if let Some(speaker) = speaker
            && !house.hall.speaks(speaker.name)
        {
            house.hall.refuse_dialect(speaker.name, from);
            return;
        }
        if let Some(turns_away) = speaker.and_then(|speaker| speaker.turns_away)
            && turns_away(&house.hall, from, datagram)
        {
            return;
        }
        // Source addresses can be forged: unvalidated clients have a smaller limit.
        let plain = |speaker: &Speaker| forced.is_none() && speaker.name == protocols::plain().name;
        let stranger = match speaker {
            Some(speaker) if plain(speaker) || !house.hall.is_known(from.ip()) => {
                match house.hall.stranger() {
                    None => {
                        house.hall.refuse_stranger(speaker.name, from);
                        return;
                    }
                    some => some,
                }
            }
            _ => None,
        };
        // The flow exists already: this datagram arrived before its socket was connected.
        let Some(key) = house.hall.open(local.port(), from) else {
            return;
        };
        if !has_room(&mut self.waiting_bytes, datagram) {
            return;
        }
        // On an error the datagram is lost, as with a full socket buffer.
        let Ok(socket) = (self.connect)(local, from, house.interface.as_deref()) else {
            return;
        };
        let _ = socket.set_recv_buffer_size(FLOW_BUFFER_BYTES);
        let knock = Knock {
            arrived: Arrived {
                socket,
                from,
                early: vec![(clock::now(), datagram.into())],
                key: Some(key),
            },
            local: local.ip(),
            speaker,
            stranger,
            wanted,
        };
        self.knocks.insert(from, knock);
        self.order.push(from);
        self.sort_out(from);
    }

    /// Queues a datagram of a flow that started in this poll; false when it belongs to none.
    fn is_early(&mut self, from: SocketAddr, datagram: &[u8]) -> bool {
        let Some(knock) = self.knocks.get_mut(&from) else {
            return false;
        };
        if has_room(&mut self.waiting_bytes, datagram) {
            knock.arrived.early.push((clock::now(), datagram.into()));
        }
        true
    }

    /// Reads what a new socket received before it was connected: until then it also matched
    /// datagrams of other peers, which are queued for their own flows.
    fn sort_out(&mut self, own: SocketAddr) {
        for _ in 0..MIXED_LIMIT {
            let Some(knock) = self.knocks.get_mut(&own) else {
                return;
            };
            let received = datagram::receive_addressed(&knock.arrived.socket, &mut self.room);
            let Ok(received) = received else {
                break;
            };
            let datagram = &self.room[..received.bytes];
            if !has_room(&mut self.waiting_bytes, datagram) {
                continue;
            }
            if canonical(received.from) == own {
                knock.arrived.early.push((clock::now(), datagram.into()));
            } else {
                self.others.push_back((received.from, datagram.into()));
            }
        }
    }

    /// Returns the new flows in order of arrival; expected flows are delivered to their tests.
    pub fn leave(mut self, house: &House) -> Vec<Knock> {
        for from in std::mem::take(&mut self.order) {
            let Some(knock) = self.knocks.remove(&from) else {
                continue;
            };
            match &knock.wanted {
                Some(wanted) => {
                    let wanted = wanted.clone();
                    house.hall.admit(&wanted, from, || Some(knock.arrived));
                }
                None => self.handed.push(knock),
            }
        }
        self.handed
    }
}

/// Reserves queue space for a datagram; false when the limit is reached.
fn has_room(waiting_bytes: &mut usize, datagram: &[u8]) -> bool {
    let bytes = datagram.len() + OVERHEAD_BYTES;
    let fits = *waiting_bytes + bytes <= WAITING_BYTES;
    if fits {
        *waiting_bytes += bytes;
    }
    fits
}

/// Rejects a datagram that certainly belongs to another protocol than the port's; true if it did.
fn tell_misplaced(
    house: &House,
    from: SocketAddr,
    port: u16,
    forced: Option<&'static Speaker>,
    datagram: &[u8],
) -> bool {
    let Some(owner) = forced else {
        return false;
    };
    let Classification::Known(other) = protocols::misplaced(owner, Carrier::Datagram, datagram)
    else {
        return false;
    };
    house
        .hall
        .refuse_misplaced(other.name, from, (port, owner.name));
    true
}

/// Classifies a first datagram: the handler of its protocol, or the test that expects it.
fn whose(
    house: &House,
    from: SocketAddr,
    port: u16,
    forced: Option<&'static Speaker>,
    datagram: &[u8],
) -> Option<(Option<&'static Speaker>, Option<Wanted>)> {
    let waits = Wanted::Datagrams { port };
    if house.hall.expects(&waits, from) {
        return Some((None, Some(waits)));
    }
    let is_hello = linerate_dialect::iperf3::udp::Hello::read(datagram).is_some();
    let hello = Wanted::Hello { port };
    if is_hello && house.hall.expects(&hello, from) {
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
    match speaker(Carrier::Datagram, datagram) {
        Classification::Known(dialect) => Some((protocols::speaker_named(dialect.name), None))
            .filter(|(speaker, _)| speaker.is_some_and(|speaker| speaker.datagrams.is_some())),
        Classification::NeedMore | Classification::Unknown => {
            Some((Some(protocols::plain()), None))
        }
    }
}

/// Opens the socket of one of our UDP flows on the server's port, bound to the address that the
/// client used, and confirms the opening. The kernel prefers a socket connected to the sender.
///
/// The opening must come from the host of the control connection. A source address can be forged,
/// and a test towards it would flood the real owner.
pub fn open_flow(
    waiting: &Waiting,
    from: SocketAddr,
    token: Token,
    interface: Option<&str>,
) -> Option<Socket> {
    let from = canonical(from);
    if waiting.protocol != Protocol::Udp || from.ip() != waiting.peer {
        return None;
    }
    // On an error the flow stays announced: the client repeats its opening.
    let socket = connect_flow(waiting.local, from, interface).ok()?;
    // Datagrams received between bind and connect may open other flows: their clients repeat them.
    drain(&socket, MIXED_LIMIT);
    socket.set_nonblocking(false).ok()?;
    socket.send(&answer(token)).ok()?;
    Some(socket)
}

/// Discards up to `limit` queued datagrams: the sender may continue meanwhile.
fn drain(socket: &Socket, limit: usize) {
    let mut room = [std::mem::MaybeUninit::uninit(); 1];
    for _ in 0..limit {
        if socket.recv(&mut room).is_err() {
            return;
        }
    }
}

/// Opens a non-blocking socket that is bound to `local` and connected to the peer of a flow.
fn connect_flow(
    local: SocketAddr,
    from: SocketAddr,
    interface: Option<&str>,
) -> io::Result<Socket> {
    let from = canonical(from);
    let local_ip = local.ip().to_canonical();
    let socket = Socket::new(Domain::for_address(from), Type::DGRAM, None)?;
    socket.set_reuse_address(true)?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    // Bound to the unspecified IPv4 address, the kernel chooses the source address itself.
    let local_ip = match (local_ip, from) {
        (IpAddr::V6(any), SocketAddr::V4(_)) if any.is_unspecified() => {
            IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)
        }
        (ip, _) => ip,
    };
    let mut bound = SocketAddr::new(local_ip, local.port());
    if let (SocketAddr::V6(bound), SocketAddr::V6(from)) = (&mut bound, from) {
        bound.set_scope_id(from.scope_id());
    }
    socket.bind(&SockAddr::from(bound))?;
    socket.connect(&SockAddr::from(from))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::Arc;

    use linerate_dialect::iperf2::{Settings, Way};

    use super::*;
    use crate::session::ServerOptions;

    /// A distinct sender for each number.
    fn sender(number: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1 + number))
    }

    fn house() -> House {
        let house = House::new(
            ServerOptions::default(),
            Arc::new(|_| {}),
            Arc::default(),
            None,
        );
        // Unvalidated clients have a smaller limit.
        house.hall.prove(sender(0).ip());
        house
    }

    /// An iperf2 header and some payload.
    fn first(bytes: usize) -> Vec<u8> {
        let mut datagram = vec![b'1'; bytes];
        datagram[..16].fill(0);
        datagram[3] = 1;
        datagram
    }

    /// A socket that received datagrams of two other peers before it was connected.
    fn mixed(_: SocketAddr, _: SocketAddr, _: Option<&str>) -> io::Result<Socket> {
        let own = UdpSocket::bind("127.0.0.1:0")?;
        own.set_nonblocking(true)?;
        for _ in 0..2 {
            UdpSocket::bind("127.0.0.1:0")?.send_to(&first(60), own.local_addr()?)?;
        }
        Ok(own.into())
    }

    #[test]
    fn flows_that_bring_others_come_to_an_end() {
        let (house, mut porch) = (house(), Porch::new());
        porch.connect = mixed;
        let local = SocketAddr::from(([127, 0, 0, 1], 5201));
        porch.knock(&house, sender(0), local, None, &first(60));
        assert!(porch.others.is_empty());
        assert_eq!(porch.order.len(), KNOCK_LIMIT);
    }

    #[test]
    fn what_waits_in_a_turn_is_bounded() {
        let (house, mut porch) = (house(), Porch::new());
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        for number in 0..1_000 {
            porch.knock(&house, sender(number), local, None, &first(60_000));
        }
        let waiting = porch.knocks.values().flat_map(|knock| &knock.arrived.early);
        let bytes: usize = waiting.map(|(_, datagram)| datagram.len()).sum();
        assert!(
            bytes <= WAITING_BYTES && bytes > WAITING_BYTES / 2,
            "{bytes}"
        );
        assert!(porch.is_full());
    }

    #[test]
    fn who_is_turned_away_gets_no_socket() {
        let house = house();
        let local = SocketAddr::from(([127, 0, 0, 1], 5201));
        let unproved = SocketAddr::from(([127, 0, 0, 2], 4_000));
        let mut reverse = first(200);
        let wanted = Settings {
            way: Way::Reverse,
            ..Settings::client(5201)
        };
        wanted.write(&mut reverse[16..], 16).unwrap();
        let mut end = first(60);
        end[..4].fill(0xff);
        for (from, forced, datagram, begins) in [
            (unproved, None, &first(60), true),
            (unproved, None, &reverse, false),
            (sender(4_000), None, &reverse, true),
            (unproved, Some("iperf2"), &vec![b'x'; 7], false),
            (unproved, Some("iperf2"), &end, false),
            (unproved, Some("echo"), &vec![b'x'; 7], true),
            (sender(6), Some("echo"), &vec![b'x'; 7], false),
            (sender(6), Some("chargen"), &vec![b'x'; 7], false),
            (sender(6), Some("discard"), &vec![b'x'; 7], true),
        ] {
            let mut porch = Porch::new();
            porch.connect = |_, _, _| Socket::new(Domain::IPV4, Type::DGRAM, None);
            let forced = forced.and_then(protocols::speaker_named);
            porch.knock(&house, from, local, forced, datagram);
            let told = format!("{from} {:?} {datagram:?}", forced.map(|forced| forced.name));
            assert_eq!(porch.order.len(), usize::from(begins), "{told}");
        }
    }

    #[test]
    fn whoever_floods_his_own_flow_is_not_read_for_ever() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        for number in 0..20 {
            socket
                .send_to(&[number], socket.local_addr().unwrap())
                .unwrap();
        }
        let socket = Socket::from(socket);
        drain(&socket, 8);
        let mut room = [0; 1];
        let next = datagram::receive_addressed(&socket, &mut room).unwrap();
        assert_eq!((next.bytes, room), (1, [8]));
    }
}
