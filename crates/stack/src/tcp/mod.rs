//! TCP: smoltcp's sockets, each in a set of its own, found by a hash of both ends.
//!
//! smoltcp looks at every socket of a set for each segment and each turn. Here the set that is handed to
//! it holds one socket, so that a thousand idle connections cost nothing; which one it is, when it has to
//! be looked at again and who waits to be accepted is decided here.

mod challenge;
mod connection;
mod device;
mod edge;
mod listen;
mod long;
mod path;
mod recovery;
mod trouble;
mod work;

use std::net::{IpAddr, SocketAddr};
use std::task::Poll;
use std::time::Duration;

use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketSet};
use smoltcp::phy::{Checksum as Sums, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use crate::Nanos;
use crate::addressing::Addressing;
use crate::config::{Checksum, Config, CongestionControl, Psh};
use crate::error::StackError;
use crate::link::Link;
use crate::queue::IndexQueue;
use crate::socket::{SocketId, SocketKind, Unreachable};
use crate::table::{Table, pair_hash};
use crate::timers::Timers;
use crate::udp::FIRST_FREE_PORT;
use crate::wire::ip;
pub(crate) use connection::Connection;
use connection::Owner;
pub(crate) use listen::Listener;
pub(crate) use long::Cut;
use long::Long;

/// Listening sockets of a stack: a server of this program has a port for each of its dialects.
pub(crate) const LISTENERS: usize = 64;

/// All of TCP.
pub(crate) struct Tcp {
    interface: Interface,
    /// The same for segments that are cut here; none where the port's other side cuts, or nothing is long enough.
    long: Option<Long>,
    wire: Wire,
    connections: Vec<Connection>,
    free: Vec<u32>,
    /// Where the search for a connection that can be given up goes on, and when it last found none.
    sweep: u32,
    swept: Option<Nanos>,
    listeners: Vec<Listener>,
    table: Table,
    /// Whose the last segment was, so likely the next one's.
    latest: u32,
    seed: u64,
    timers: Timers,
    /// Connections that may have something to send.
    dirty: IndexQueue,
    /// Those of them that were asked for and not agreed to yet, as agreements have a share of what a turn sends.
    unanswered: IndexQueue,
    /// Connections and, behind them, listeners that changed.
    pub(crate) ready: IndexQueue,
    /// A set without sockets: what is given to it is answered by a reset.
    nobody: SocketSet<'static>,
    clock: Clock,
    next_port: u16,
    settings: Settings,
}

/// What segments look like on their way out.
pub(crate) struct Wire {
    capabilities: DeviceCapabilities,
    psh: Psh,
    /// The stack sums.
    sums: bool,
    /// The port's other side sums.
    offload: bool,
    /// Type of service or traffic class.
    tos: u8,
    /// Payload of the longest segments.
    longest: Longest,
}

/// Payload of the longest segments of each protocol, which may be less than follows from the MTU that the engine is
/// told of.
#[derive(Clone, Copy)]
struct Longest {
    v4: u16,
    v6: u16,
}

impl Longest {
    /// With this MTU, where so much was asked for.
    fn new(mtu: u16, asked: Option<u16>) -> Self {
        let of = |headers: usize| {
            let fits = mtu.saturating_sub((headers + crate::wire::TCP_BYTES) as u16);
            asked.map_or(fits, |asked| asked.min(fits))
        };
        Self {
            v4: of(ip::V4_BYTES),
            v6: of(ip::V6_BYTES),
        }
    }

    #[inline]
    fn of(&self, v4: bool) -> u16 {
        if v4 { self.v4 } else { self.v6 }
    }
}

impl Wire {
    /// Whether the port's other side cuts packets into segments.
    #[inline]
    fn cuts(&self) -> bool {
        self.capabilities.segmentation.tcpv4.is_some()
    }
}

struct Settings {
    delayed_ack: Option<Duration>,
    nagle: bool,
    control: CongestionControl,
    verify: bool,
    /// Whether a checksum that was left to a device does for one.
    takes_open: bool,
    /// How long a probe waits beyond two round trips.
    tail_probe: Option<Nanos>,
    sockets: u32,
}

/// The engine's time. Its shortest retransmission time-out is a second; where another was asked for its
/// clock runs faster than ours, and delays that are given to it are stretched as much.
struct Clock {
    start: Option<Nanos>,
    /// The shortest time-out asked for, in microseconds: this much of ours is a second of the engine's.
    second_us: u64,
}

impl Clock {
    /// Our time as the engine's, in microseconds; it never sees zero.
    fn instant(&mut self, now: Nanos) -> Instant {
        let start = *self.start.get_or_insert(now);
        let ns = u128::from(now.saturating_sub(start));
        let us = ns * 1_000 / u128::from(self.second_us);
        Instant::from_micros(us as i64 + 1)
    }

    /// When the engine's clock will show `instant`.
    fn nanos(&self, instant: Instant) -> Nanos {
        let us = instant.total_micros().max(1) as u128 - 1;
        let ns = (us * u128::from(self.second_us)).div_ceil(1_000);
        self.start.unwrap_or(0) + ns as u64
    }

    fn stretched(&self, delay: Duration) -> smoltcp::time::Duration {
        let us = delay.as_micros() * 1_000_000 / u128::from(self.second_us);
        smoltcp::time::Duration::from_micros(us as u64)
    }
}

/// Segments that a port takes whole, to be cut by its other side.
fn segmentation(config: &Config, vnet: usize, frame_bytes: usize) -> Option<usize> {
    let long = frame_bytes.min(65_000);
    (config.checksum == Checksum::Offload && vnet > 0 && long > 2 * usize::from(config.mtu))
        .then_some(long - vnet - crate::wire::ETHERNET_BYTES)
}

/// The engine of a host, over a device that can do this.
fn engine(own: &Addressing, capabilities: &DeviceCapabilities, start: Instant) -> Interface {
    let mut config = InterfaceConfig::new(HardwareAddress::Ip);
    config.random_seed = own.seed;
    let mut engine = Interface::new(config, &mut device::Still(capabilities), start);
    engine.update_ip_addrs(|list| {
        for network in &own.networks {
            // The bound is the stack's own: eight addresses at most.
            let _ = list.push(IpCidr::new(network.address.into(), network.prefix));
        }
    });
    engine
}

impl Tcp {
    pub(crate) fn new(
        config: &Config,
        own: &Addressing,
        (verify, takes_open): (bool, bool),
        (vnet, frame_bytes): (usize, usize),
    ) -> Self {
        let offload = config.checksum == Checksum::Offload;
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        // What comes has been checked and counted before the engine sees it; what leaves is summed once all of it
        // is as it leaves, and faster.
        capabilities.checksum.ipv4 = Sums::None;
        capabilities.checksum.tcp = Sums::None;
        let long = segmentation(config, vnet, frame_bytes);
        let long = long.and_then(std::num::NonZeroUsize::new);
        capabilities.segmentation.tcpv4 = long;
        capabilities.segmentation.tcpv6 = long;
        // Of IPv6 the engine sends no packet above its MTU, also none that a port would cut: it is told of a longer
        // one, and what segments may hold is said in greetings, both ways.
        let usual = usize::from(config.mtu);
        capabilities.max_transmission_unit = long.map_or(usual, |long| long.get().max(usual));
        let wire = Wire {
            capabilities,
            psh: config.tcp.psh,
            sums: !offload,
            offload: offload && vnet > 0,
            tos: config.ip.tos,
            longest: Longest::new(config.mtu, config.tcp.mss),
        };
        let mut clock = Clock {
            start: None,
            second_us: config.tcp.min_rto.as_micros() as u64,
        };
        let start = clock.instant(0);
        clock.start = None;
        let interface = engine(own, &wire.capabilities, start);
        let cut = Cut::of(config).filter(|_| !wire.cuts());
        let long = cut.map(|cut| {
            let capabilities = Long::capabilities(cut, &wire.capabilities);
            Long::new(cut, engine(own, &capabilities, start))
        });
        let count = config.tcp_sockets as usize;
        let mut connections = Vec::with_capacity(count);
        connections.extend(
            (0..count).map(|_| Connection::new(config.tcp.receive_window, config.tcp.send_buffer)),
        );
        let mut free = Vec::with_capacity(count);
        free.extend((0..config.tcp_sockets).rev());
        let mut listeners = Vec::with_capacity(LISTENERS);
        listeners.extend((0..LISTENERS).map(|_| Listener::default()));
        Self {
            interface,
            long,
            wire,
            connections,
            free,
            sweep: 0,
            swept: None,
            listeners,
            table: Table::new(count),
            latest: 0,
            seed: own.seed,
            timers: Timers::new(count),
            dirty: IndexQueue::new(count),
            unanswered: IndexQueue::new(count),
            ready: IndexQueue::new(count + LISTENERS),
            nobody: SocketSet::new(Vec::new()),
            clock,
            next_port: FIRST_FREE_PORT + ((own.seed >> 16) as u16 & 0x3fff),
            settings: Settings {
                delayed_ack: config.tcp.delayed_ack,
                nagle: config.tcp.nagle,
                control: config.tcp.congestion_control,
                verify,
                takes_open,
                tail_probe: (config.tcp.tail_probe).map(|slack| slack.as_nanos() as Nanos),
                sockets: config.tcp_sockets,
            },
        }
    }

    /// Bytes from the heap: connections without buffers, and tables; then buffers.
    pub(crate) const fn heap_bytes(config: &Config) -> (usize, usize) {
        let count = config.tcp_sockets as usize;
        let queues = (3 * count + LISTENERS) * (size_of::<u32>() + size_of::<bool>());
        let timers = count * (2 * size_of::<u32>() + size_of::<Nanos>());
        let each = size_of::<Connection>() + Connection::SET_BYTES + size_of::<u32>();
        let table = Table::slots_for(count) * size_of::<u32>();
        let listeners = LISTENERS * size_of::<Listener>();
        (
            count * each + queues + timers + table + listeners,
            count * (config.tcp.send_buffer + config.tcp.receive_window),
        )
    }

    /// Has every segment made alone.
    #[cfg(test)]
    pub(crate) fn make_single(&mut self) {
        self.long = None;
    }

    fn hash(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        pair_hash(self.seed, local, remote)
    }

    fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        self.table.find(self.hash(local, remote), |index| {
            let connection = &self.connections[index as usize];
            connection.remote == remote && connection.local == local
        })
    }

    /// The same for segments, of which most come in rows.
    #[inline]
    fn find_again(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        let latest = self.connections.get(self.latest as usize);
        let is = |connection: &Connection| {
            connection.owner != Owner::Free
                && connection.remote == remote
                && connection.local == local
        };
        if latest.is_some_and(is) {
            return Some(self.latest);
        }
        let found = self.find(local, remote)?;
        self.latest = found;
        Some(found)
    }

    #[inline]
    fn index(&self, id: SocketId, call: &'static str) -> Result<usize, StackError> {
        if id.kind != SocketKind::Tcp {
            return Err(StackError::WrongKind {
                kind: id.kind.name(),
                call,
            });
        }
        let index = id.index as usize;
        let connection = self.connections.get(index);
        connection
            .filter(|found| found.owner == Owner::Application && found.generation == id.generation)
            .map(|_| index)
            .ok_or(StackError::Stale)
    }

    /// Opens a connection; it stands once its state says so.
    pub(crate) fn connect(
        &mut self,
        remote: SocketAddr,
        link: &mut Link,
        local: Option<SocketAddr>,
    ) -> Result<SocketId, StackError> {
        let address = remote.ip();
        let own = &link.own;
        own.next_hop(address)
            .ok_or(StackError::NoRoute { address })?;
        let named = local
            .map(|local| local.ip())
            .filter(|ip| !ip.is_unspecified());
        if let Some(address) = named
            && !own.is_own(address)
        {
            return Err(StackError::NotLocal { address });
        }
        let from = named.or_else(|| own.source_for(address));
        let from = from.ok_or(StackError::NoRoute { address })?;
        let port = match local.map_or(0, |local| local.port()) {
            0 => self.free_port(from, remote)?,
            port if self.find(SocketAddr::new(from, port), remote).is_some() => {
                return Err(StackError::PortTaken { port });
            }
            port => port,
        };
        let local = SocketAddr::new(from, port);
        let index = self.take(link)?;
        let connection = &mut self.connections[index as usize];
        let socket = connection.socket();
        let opened = socket.connect(
            self.interface.context(),
            (remote.ip(), remote.port()),
            (local.ip(), local.port()),
        );
        if opened.is_err() {
            self.free.push(index);
            return Err(StackError::NoRoute { address });
        }
        connection.begin(local, remote, Owner::Application, link.now);
        connection.state = tcp::State::SynSent;
        let generation = connection.generation;
        self.table.insert(self.hash(local, remote), index);
        self.dirty.push(index);
        Ok(SocketId {
            kind: SocketKind::Tcp,
            index,
            generation,
        })
    }

    fn free_port(&mut self, from: IpAddr, remote: SocketAddr) -> Result<u16, StackError> {
        for _ in FIRST_FREE_PORT..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_FREE_PORT);
            if self.find(SocketAddr::new(from, port), remote).is_none() {
                return Ok(port);
            }
        }
        Err(StackError::PortTaken { port: 0 })
    }

    /// A connection that nobody uses, set up as configured.
    fn take(&mut self, link: &mut Link) -> Result<u32, StackError> {
        if self.free.is_empty() && !self.give_one_up(link.now) {
            self.give_up_half_open(link, None);
        }
        let index = self.free.pop().ok_or(StackError::TooManySockets {
            kind: "TCP",
            limit: self.settings.sockets,
            key: "sockets.tcp",
        })?;
        let delay = self
            .settings
            .delayed_ack
            .map(|delay| self.clock.stretched(delay));
        let socket = self.connections[index as usize].socket();
        socket.set_ack_delay(delay);
        socket.set_nagle_enabled(self.settings.nagle);
        // Also what makes a used socket forget its last connection's congestion window.
        socket.set_congestion_control(match self.settings.control {
            CongestionControl::None => tcp::CongestionControl::None,
            CongestionControl::Reno => tcp::CongestionControl::Reno,
            CongestionControl::Cubic => tcp::CongestionControl::Cubic,
        });
        Ok(index)
    }

    /// Gives up a connection that only waits for stray segments (RFC 6191 allows it for new ones); whether there was
    /// one.
    fn give_one_up(&mut self, now: Nanos) -> bool {
        // A flood of requests has it search all connections once a turn.
        if self.swept == Some(now) {
            return false;
        }
        let count = self.connections.len() as u32;
        for step in 0..count {
            let index = (self.sweep + step) % count;
            let connection = &mut self.connections[index as usize];
            if connection.owner == Owner::Nobody
                && connection.socket().state() == tcp::State::TimeWait
            {
                self.sweep = index + 1;
                self.drop_connection(index);
                return true;
            }
        }
        self.swept = Some(now);
        false
    }

    /// Offers room in the send buffer to `fill`, which says how much it wrote.
    #[inline]
    pub(crate) fn send(
        &mut self,
        id: SocketId,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Poll<Result<usize, StackError>> {
        let index = match self.index(id, "tcp_send") {
            Ok(index) => index,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let connection = &mut self.connections[index];
        let finished = connection.finished;
        let socket = connection.socket();
        if finished || !socket.may_send() {
            return connection.why_no_sending();
        }
        if !socket.can_send() {
            return Poll::Pending;
        }
        let sent = socket
            .send(|room| {
                let wrote = fill(room).min(room.len());
                (wrote, wrote)
            })
            .expect("it may send");
        if sent > 0 {
            connection.written = connection.written.wrapping_add(sent as u32);
            self.dirty.push(index as u32);
        }
        Poll::Ready(Ok(sent))
    }

    /// Shows what has come to `take`, which says how much it took; nothing at the stream's end.
    #[inline]
    pub(crate) fn receive<R>(
        &mut self,
        id: SocketId,
        take: impl FnOnce(&[u8]) -> (usize, R),
    ) -> Poll<Result<R, StackError>> {
        let index = match self.index(id, "tcp_receive") {
            Ok(index) => index,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let connection = &mut self.connections[index];
        let socket = connection.socket();
        if socket.can_recv() {
            let mut count = 0;
            let taken = socket.recv(|bytes| {
                let (taken, result) = take(bytes);
                count = taken.min(bytes.len());
                (count, result)
            });
            return match taken {
                Ok(result) => {
                    connection.far_base = connection.far_base.wrapping_add(count as u32);
                    // The window is larger now: that may have to be told.
                    self.dirty.push(index as u32);
                    Poll::Ready(Ok(result))
                }
                Err(_) => Poll::Pending,
            };
        }
        match socket.recv(|_| (0, ())) {
            Ok(()) => Poll::Pending,
            Err(tcp::RecvError::Finished) => Poll::Ready(Ok(take(&[]).1)),
            Err(tcp::RecvError::InvalidState) => connection.why_no_receiving(),
        }
    }

    /// Both ends of a connection: local, far.
    pub(crate) fn ends(&self, id: SocketId) -> Result<(SocketAddr, SocketAddr), StackError> {
        let connection = &self.connections[self.index(id, "ends")?];
        Ok((connection.local, connection.remote))
    }

    /// Bytes that wait: unacknowledged and unsent, received and not fetched.
    pub(crate) fn queued(&mut self, id: SocketId) -> Result<(usize, usize), StackError> {
        let index = self.index(id, "queued")?;
        let socket = self.connections[index].socket();
        Ok((socket.send_queue(), socket.recv_queue()))
    }

    /// When payload came last to a connection: to the port, and into its buffer.
    pub(crate) fn came(&self, id: SocketId) -> Result<Option<(Nanos, Nanos)>, StackError> {
        Ok(self.connections[self.index(id, "tcp_came")?].came)
    }

    /// Who said last that packets do not reach the far end, and what.
    pub(crate) fn trouble(
        &self,
        id: SocketId,
    ) -> Result<Option<(Unreachable, IpAddr)>, StackError> {
        Ok(self.connections[self.index(id, "tcp_trouble")?].trouble)
    }

    pub(crate) fn state(&mut self, id: SocketId) -> Result<crate::TcpState, StackError> {
        let index = self.index(id, "tcp_state")?;
        Ok(self.connections[index].shown_state())
    }

    /// Says that nothing more will be sent; what was sent still arrives.
    pub(crate) fn finish(&mut self, id: SocketId) -> Result<(), StackError> {
        let index = self.index(id, "tcp_finish")?;
        let connection = &mut self.connections[index];
        connection.finished = true;
        connection.end();
        self.dirty.push(index as u32);
        Ok(())
    }

    /// Gives a connection up: gently, or with a reset when something is left unread or `abort` says so.
    pub(crate) fn close(
        &mut self,
        link: &mut Link,
        id: SocketId,
        abort: bool,
    ) -> Result<(), StackError> {
        let index = self.index(id, "close")?;
        self.swept = None;
        let connection = &mut self.connections[index];
        connection.disown(link.now);
        // Payload that nobody will read was not delivered: RFC 2525, section 2.17 asks for a reset.
        let opens = connection.socket().state() == tcp::State::SynSent;
        if abort || opens || connection.socket().can_recv() {
            connection.break_off(&mut link.counters);
        } else {
            connection.end();
        }
        self.dirty.push(index as u32);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_clock_runs_as_fast_as_its_time_out_is_short() {
        for (rto_ms, factor) in [(1_000u64, 1), (200, 5), (1, 1_000), (333, 3)] {
            let mut clock = Clock {
                start: None,
                second_us: rto_ms * 1_000,
            };
            let start = 77_000_000;
            assert_eq!(clock.instant(start).total_micros(), 1);
            let later = clock.instant(start + 6_000_000).total_micros() - 1;
            assert!((later - 6_000 * factor).abs() < 20, "{rto_ms}: {later}");
            // A deadline is met by our time for it, and not long before.
            let deadline = Instant::from_micros(1_000_001);
            let at = clock.nanos(deadline);
            assert_eq!(at, start + rto_ms * 1_000_000);
            assert!(clock.instant(at) >= deadline);
            assert!(clock.instant(at - 10_000) < deadline);
        }
    }
}
