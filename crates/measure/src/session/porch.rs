//! Datagrams of flows that have no socket yet.
//!
//! A flow of another program begins with its payload: nobody asks for leave. Its first datagram gets
//! it a socket of its own, to which the kernel gives all that come from then on. What came in between
//! waits here, so that nothing of it is lost.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use linerate_dialect::control::Token;
use linerate_dialect::control::flow::answer;
use linerate_dialect::sniff::{Carrier, Speaker as Told, speaker};
use linerate_dialect::stray;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::datagram;
use linerate_metric::plan::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};

use super::house::{House, Waiting};
use super::limits::TEST_LIMIT;
use super::lobby::canonical;
use crate::peers::serve::{self as foreign, FlowKey, Speaker, Stranger, Wanted};

/// Bytes of early datagrams that wait at once, of all flows that begin together.
const WAITING_BYTES: usize = 8 << 20;

/// What a datagram that waits takes beside its bytes.
const OVERHEAD_BYTES: usize = 64;

/// Flows that begin in one turn: as many as there are tests. The others wait in the server's own queue.
const KNOCK_LIMIT: usize = TEST_LIMIT;

/// Room for one datagram.
const DATAGRAM_BYTES: usize = 1 << 16;

/// Receive buffer of a flow that begins with its payload: until its thread runs, all of it waits there.
/// The kernel gives as much of it as net.core.rmem_max allows.
const FLOW_BUFFER_BYTES: usize = 1 << 20;

/// Datagrams that a new socket may have taken before it was connected.
const MIXED_LIMIT: usize = 1_024;

/// Something that came to a test: a connection, or a flow of datagrams.
pub struct Arrived {
    /// Its socket, connected to the sender.
    pub socket: Socket,
    /// The sender.
    pub from: SocketAddr,
    /// Datagrams that came before the socket was there, and when.
    pub early: Vec<(Nanos, Box<[u8]>)>,
    /// Keeps others from opening the same flow again.
    pub key: Option<FlowKey>,
}

impl Arrived {
    /// A connection.
    pub fn stream(stream: TcpStream, from: SocketAddr) -> Self {
        Self {
            socket: stream.into(),
            from,
            early: Vec::new(),
            key: None,
        }
    }

    /// Bytes of the largest datagram that has come so far.
    pub fn largest(&self) -> u64 {
        let sizes = self.early.iter().map(|(_, datagram)| datagram.len());
        sizes.max().unwrap_or(0) as u64
    }
}

/// A flow that begins.
pub struct Knock {
    /// Its socket, and what came before.
    pub arrived: Arrived,
    /// The address of this host that it was sent to.
    pub local: IpAddr,
    /// The dialect that it speaks; `None` when it went to a test that waited for it.
    pub speaker: Option<&'static Speaker>,
    /// Leave for those whom nobody knows.
    pub stranger: Option<Stranger>,
    /// Whom it goes to, where a test waits for it.
    wanted: Option<Wanted>,
}

/// Makes the socket of a flow, from this end's address and its sender.
type Connect = fn(SocketAddr, SocketAddr, Option<&str>) -> io::Result<Socket>;

/// Flows that begin in one turn.
pub struct Porch {
    knocks: HashMap<SocketAddr, Knock>,
    order: Vec<SocketAddr>,
    waiting_bytes: usize,
    handed: Vec<Knock>,
    /// Datagrams that other flows' sockets took before they were connected, and their senders.
    others: VecDeque<(SocketAddr, Box<[u8]>)>,
    room: Vec<u8>,
    connect: Connect,
}

impl Porch {
    /// Nobody is there.
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

    /// Whether no other flow begins in this turn.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.knocks.len() >= KNOCK_LIMIT || self.waiting_bytes + DATAGRAM_BYTES > WAITING_BYTES
    }

    /// Takes a datagram that came to a listening socket at `local`.
    pub fn knock(
        &mut self,
        house: &House,
        from: SocketAddr,
        local: SocketAddr,
        forced: Option<&'static Speaker>,
        datagram: &[u8],
    ) {
        self.begin(house, from, local, forced, datagram);
        // Each flow that begins with one of these may bring others: they stand behind each other.
        while let Some((from, datagram)) = self.others.pop_front() {
            self.waiting_bytes -= datagram.len() + OVERHEAD_BYTES;
            self.begin(house, from, local, forced, &datagram);
        }
    }

    /// The same of one datagram; what its new socket took of others waits.
    fn begin(
        &mut self,
        house: &House,
        from: SocketAddr,
        local: SocketAddr,
        forced: Option<&'static Speaker>,
        datagram: &[u8],
    ) {
        let from = canonical(from);
        // What there is no room for is lost, as on a full queue.
        if self.is_early(from, datagram) || self.knocks.len() >= KNOCK_LIMIT {
            return;
        }
        let Some((speaker, wanted)) = whose(house, from, local.port(), forced, datagram) else {
            // A dialect that takes no datagrams by itself has the port: others are told so all the same.
            tell_misplaced(house, from, local.port(), forced, datagram);
            return;
        };
        if forced.is_some_and(|forced| foreign::only_asks(forced, datagram)) {
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
        // Anybody can send anything, from any address: there is less room for who proved nothing.
        let plain = |speaker: &Speaker| forced.is_none() && speaker.name == foreign::plain().name;
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
        // The flow is there already: this one came before its socket was connected, and too late.
        let Some(key) = house.hall.open(local.port(), from) else {
            return;
        };
        if !has_room(&mut self.waiting_bytes, datagram) {
            return;
        }
        // What fails here is lost, as on a full queue.
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

    /// Whether it belongs to a flow that began in this turn; then it waits with the others.
    fn is_early(&mut self, from: SocketAddr, datagram: &[u8]) -> bool {
        let Some(knock) = self.knocks.get_mut(&from) else {
            return false;
        };
        if has_room(&mut self.waiting_bytes, datagram) {
            knock.arrived.early.push((clock::now(), datagram.into()));
        }
        true
    }

    /// Until it was connected, the new socket was the nearest to whoever sends to this address: what
    /// others sent meanwhile is sorted out.
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

    /// Those who came, in their order; those whom a test waited for have gone there.
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

/// Takes room for a datagram that waits, if there is any.
fn has_room(waiting_bytes: &mut usize, datagram: &[u8]) -> bool {
    let bytes = datagram.len() + OVERHEAD_BYTES;
    let fits = *waiting_bytes + bytes <= WAITING_BYTES;
    if fits {
        *waiting_bytes += bytes;
    }
    fits
}

/// Whether it is for certain of another dialect than the one that the port was given to, which is told.
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
    let Told::Known(other) = foreign::misplaced(owner, Carrier::Datagram, datagram) else {
        return false;
    };
    house
        .hall
        .refuse_misplaced(other.name, from, (port, owner.name));
    true
}

/// Whose datagram it is: a dialect's, or that of a test that waits for it.
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
        // Without a test that waits for it, a hello means nothing.
        return None;
    }
    if stray::is_nuttcp_marker(datagram) {
        // Of a test that is over, or none.
        return None;
    }
    match speaker(Carrier::Datagram, datagram) {
        Told::Known(dialect) => Some((foreign::speaker_named(dialect.name), None))
            .filter(|(speaker, _)| speaker.is_some_and(|speaker| speaker.datagrams.is_some())),
        Told::NeedMore | Told::Unknown => Some((Some(foreign::plain()), None)),
    }
}

/// A socket for one UDP flow of ours on the server's port, answered from the address that the client
/// knows. The kernel gives a datagram to the socket that is connected to its sender first.
///
/// The opening must come from the host that holds the control connection: an address in a datagram
/// proves nothing, and a run towards it would flood whoever has it.
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
    // What fails here is tried again: the client repeats its opening.
    let socket = connect_flow(waiting.local, from, interface).ok()?;
    // What came between binding and connecting may be other flows' openings: they are repeated.
    drain(&socket, MIXED_LIMIT);
    socket.set_nonblocking(false).ok()?;
    socket.send(&answer(token)).ok()?;
    Some(socket)
}

/// Takes what waits in a socket, no more than so many datagrams: its sender may go on meanwhile.
fn drain(socket: &Socket, limit: usize) {
    let mut room = [std::mem::MaybeUninit::uninit(); 1];
    for _ in 0..limit {
        if socket.recv(&mut room).is_err() {
            return;
        }
    }
}

/// A socket that is connected to the sender of a flow, and does not wait.
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
    // Bound to no address, the kernel would choose one of this family itself.
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

    /// A sender of its own for each number.
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
        // Of those who proved nothing there are fewer.
        house.hall.prove(sender(0).ip());
        house
    }

    /// The header of iperf2 and some payload.
    fn first(bytes: usize) -> Vec<u8> {
        let mut datagram = vec![b'1'; bytes];
        datagram[..16].fill(0);
        datagram[3] = 1;
        datagram
    }

    /// A socket that took datagrams of two others before it was connected.
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
            let forced = forced.and_then(foreign::speaker_named);
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
