//! TCP: smoltcp's sockets, each in a socket set of its own, found by a hash of both addresses.
//!
//! smoltcp visits every socket of a set for each segment and each poll. Here each set holds one
//! socket, so that a thousand idle connections cost nothing. This module selects the socket, keeps
//! its timers, and queues connections to be accepted.

mod challenge_ack;
mod connection;
mod icmp_error;
mod listen_socket;
mod path_mtu;
mod recovery;
mod smoltcp_device;
mod smoltcp_driver;
mod super_segment;
mod window_edge;

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
use crate::index_queue::IndexQueue;
use crate::index_table::{Table, pair_hash};
use crate::link::Link;
use crate::socket::{SocketId, SocketKind, Unreachable};
use crate::timer_heap::Timers;
use crate::udp::FIRST_FREE_PORT;
use crate::wire::ip;
pub(crate) use connection::Connection;
use connection::Owner;
pub(crate) use listen_socket::Listener;
pub(crate) use super_segment::Cut;
use super_segment::Long;

/// Listening sockets of a stack: a linerate server has a port for each of its protocols.
pub(crate) const LISTENERS: usize = 64;

/// TCP side of a stack.
pub(crate) struct Tcp {
    interface: Interface,
    /// Interface that makes super-segments, to be split here; `None` if the port's other side
    /// segments, or none would be long enough.
    long: Option<Long>,
    wire: Wire,
    connections: Vec<Connection>,
    free: Vec<u32>,
    /// Position of the search for a connection in TIME-WAIT that can be freed, and time of the last
    /// search without result.
    sweep: u32,
    swept: Option<Nanos>,
    listeners: Vec<Listener>,
    table: Table,
    /// Connection of the last segment, which is likely that of the next one.
    latest: u32,
    seed: u64,
    timers: Timers,
    /// Connections that may have something to send.
    dirty: IndexQueue,
    /// Half-open connections whose SYN-ACK waits: SYN-ACKs have a share of the frames of a poll.
    unanswered: IndexQueue,
    /// Connections and, after them, listeners with an event.
    pub(crate) ready: IndexQueue,
    /// Socket set without sockets: smoltcp answers a segment given to it with a reset.
    nobody: SocketSet<'static>,
    clock: Clock,
    next_port: u16,
    settings: Settings,
}

/// Format of outgoing segments.
pub(crate) struct Wire {
    capabilities: DeviceCapabilities,
    psh: Psh,
    /// The stack computes checksums.
    sums: bool,
    /// The port's other side computes checksums.
    offload: bool,
    /// Type of service or traffic class.
    tos: u8,
    /// Maximum payload of a segment.
    longest: Longest,
}

/// Maximum payload of a segment for each IP version, in bytes. It may be less than follows from the
/// MTU given to smoltcp.
#[derive(Clone, Copy)]
struct Longest {
    v4: u16,
    v6: u16,
}

impl Longest {
    /// Derives the limits from the MTU and the configured maximum segment size.
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
    /// Returns whether the port's other side splits packets into segments.
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
    /// Partial checksums are accepted.
    takes_open: bool,
    /// Time that a tail loss probe waits beyond two round trips.
    tail_probe: Option<Nanos>,
    sockets: u32,
}

/// Clock of smoltcp. Its minimum retransmission timeout is fixed at one second; for any other
/// setting its clock runs at another speed, and delays given to it are scaled.
struct Clock {
    start: Option<Nanos>,
    /// Configured minimum timeout in microseconds of the stack's time: one second on smoltcp's
    /// clock.
    second_us: u64,
}

impl Clock {
    /// Converts the stack's time; the result is never zero.
    fn instant(&mut self, now: Nanos) -> Instant {
        let start = *self.start.get_or_insert(now);
        let ns = u128::from(now.saturating_sub(start));
        let us = ns * 1_000 / u128::from(self.second_us);
        Instant::from_micros(us as i64 + 1)
    }

    /// Returns the stack's time at which smoltcp's clock shows `instant`.
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

/// Returns the size of the super-segments that the port's other side splits, if it does.
fn segmentation(config: &Config, vnet: usize, frame_bytes: usize) -> Option<usize> {
    let long = frame_bytes.min(65_000);
    (config.checksum == Checksum::Offload && vnet > 0 && long > 2 * usize::from(config.mtu))
        .then_some(long - vnet - crate::wire::ETHERNET_BYTES)
}

/// Returns a smoltcp interface with the stack's addresses, over a device with these capabilities.
fn engine(own: &Addressing, capabilities: &DeviceCapabilities, start: Instant) -> Interface {
    let mut config = InterfaceConfig::new(HardwareAddress::Ip);
    config.random_seed = own.seed;
    let mut engine = Interface::new(config, &mut smoltcp_device::Still(capabilities), start);
    engine.update_ip_addrs(|list| {
        for network in &own.networks {
            // Cannot fail: `StackAddressing` allows as many addresses as smoltcp does.
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
        // Received checksums are verified before smoltcp sees a packet; sent ones are computed,
        // faster, once the segment is final.
        capabilities.checksum.ipv4 = Sums::None;
        capabilities.checksum.tcp = Sums::None;
        let long = segmentation(config, vnet, frame_bytes);
        let long = long.and_then(std::num::NonZeroUsize::new);
        capabilities.segmentation.tcpv4 = long;
        capabilities.segmentation.tcpv6 = long;
        // smoltcp limits IPv6 packets to the MTU even if the port segments them. So it is given a
        // larger MTU, and the true segment size is written into SYNs in both directions.
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

    /// Returns the heap memory in bytes: connections without buffers, and tables; then buffers.
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

    /// Turns super-segments off.
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

    /// Finds the connection of a segment, first at the position of the last one: segments arrive in
    /// trains.
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

    /// Starts a connection; its state reports when it is established.
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

    /// Takes a free connection and configures its socket.
    fn take(&mut self, link: &mut Link) -> Result<u32, StackError> {
        if self.free.is_empty() && !self.give_one_up(link.now) {
            self.give_up_half_open(link, None);
        }
        let index = self.free.pop().ok_or(StackError::TooManySockets {
            kind: "TCP",
            limit: self.settings.sockets,
            key: "set sockets.tcp higher",
        })?;
        let delay = self
            .settings
            .delayed_ack
            .map(|delay| self.clock.stretched(delay));
        let socket = self.connections[index as usize].socket();
        socket.set_ack_delay(delay);
        socket.set_nagle_enabled(self.settings.nagle);
        // This also resets the congestion window left by the last connection.
        socket.set_congestion_control(match self.settings.control {
            CongestionControl::None => tcp::CongestionControl::None,
            CongestionControl::Reno => tcp::CongestionControl::Reno,
            CongestionControl::Cubic => tcp::CongestionControl::Cubic,
        });
        Ok(index)
    }

    /// Frees a connection in TIME-WAIT (RFC 6191 allows that for new connections); returns whether
    /// there was one.
    fn give_one_up(&mut self, now: Nanos) -> bool {
        // Limits a flood of SYNs to one search of all connections a poll.
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

    /// Passes free space of the send buffer to `fill`, which returns how many bytes it wrote.
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

    /// Passes received payload to `take`, which returns how many bytes it consumed; an empty slice
    /// at the end of the stream.
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
                    // The window has grown: a window update may be due.
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

    /// Returns local and remote address of a connection.
    pub(crate) fn ends(&self, id: SocketId) -> Result<(SocketAddr, SocketAddr), StackError> {
        let connection = &self.connections[self.index(id, "ends")?];
        Ok((connection.local, connection.remote))
    }

    /// Returns the bytes in the send buffer and in the receive buffer.
    pub(crate) fn queued(&mut self, id: SocketId) -> Result<(usize, usize), StackError> {
        let index = self.index(id, "queued")?;
        let socket = self.connections[index].socket();
        Ok((socket.send_queue(), socket.recv_queue()))
    }

    /// Returns when payload last arrived: at the port, and in the buffer.
    pub(crate) fn came(&self, id: SocketId) -> Result<Option<(Nanos, Nanos)>, StackError> {
        Ok(self.connections[self.index(id, "tcp_came")?].came)
    }

    /// Returns the last ICMP error about the connection, and its sender.
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

    /// Finishes sending; what is in the send buffer is still delivered.
    pub(crate) fn finish(&mut self, id: SocketId) -> Result<(), StackError> {
        let index = self.index(id, "tcp_finish")?;
        let connection = &mut self.connections[index];
        connection.finished = true;
        connection.end();
        self.dirty.push(index as u32);
        Ok(())
    }

    /// Closes a connection: with a FIN, or with a reset if `abort` is set or received payload is
    /// unread.
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
        // Unread payload was not delivered, which calls for a reset (RFC 2525, section 2.17).
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
            // `nanos` is exact: the deadline has passed at that time, and not 10 us earlier.
            let deadline = Instant::from_micros(1_000_001);
            let at = clock.nanos(deadline);
            assert_eq!(at, start + rto_ms * 1_000_000);
            assert!(clock.instant(at) >= deadline);
            assert!(clock.instant(at - 10_000) < deadline);
        }
    }
}
