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
use crate::addressing::StackAddressing;
use crate::config::{ChecksumMode, CongestionAlgorithm, PshPolicy, StackConfig};
use crate::error::StackError;
use crate::index_queue::IndexQueue;
use crate::index_table::{IndexTable, pair_hash};
use crate::link::LinkLayer;
use crate::segmentation::{MaxSegmentPayload, SegmentSplit};
use crate::socket::{FIRST_FREE_PORT, SocketId, SocketKind, UnreachableReason};
use crate::timer_heap::TimerHeap;
use connection::ConnectionOwner;
pub(crate) use connection::TcpConnection;
pub(crate) use listen_socket::ListenSocket;
use super_segment::SuperSegmentSender;

/// Listening sockets of a stack: a linerate server has a port for each of its protocols.
pub(crate) const MAX_LISTENERS: usize = 64;

/// TCP side of a stack.
pub(crate) struct TcpLayer {
    interface: Interface,
    /// Interface that makes super-segments, to be split here; `None` if the port's other side
    /// segments, or none would be long enough.
    super_segments: Option<SuperSegmentSender>,
    format: SegmentFormat,
    connections: Vec<TcpConnection>,
    free: Vec<u32>,
    /// Position of the search for a connection in TIME-WAIT that can be freed, and time of the last
    /// search without result.
    reclaim_position: u32,
    reclaim_failed_at: Option<Nanos>,
    listeners: Vec<ListenSocket>,
    table: IndexTable,
    /// Connection of the last segment, which is likely that of the next one.
    last_connection: u32,
    seed: u64,
    timers: TimerHeap,
    /// Connections that may have something to send.
    dirty: IndexQueue,
    /// Half-open connections whose SYN-ACK waits: SYN-ACKs have a share of the frames of a poll.
    waiting_syn_acks: IndexQueue,
    /// Connections and, after them, listeners with an event.
    pub(crate) ready: IndexQueue,
    /// Socket set without sockets: smoltcp answers a segment given to it with a reset.
    empty_set: SocketSet<'static>,
    clock: SmoltcpClock,
    next_port: u16,
    settings: TcpSettings,
}

/// Format of outgoing segments.
pub(crate) struct SegmentFormat {
    capabilities: DeviceCapabilities,
    psh: PshPolicy,
    /// The stack computes checksums.
    software_checksum: bool,
    /// The port's other side computes checksums.
    checksum_offload: bool,
    /// Type of service or traffic class.
    tos: u8,
    /// Maximum payload of a segment.
    max_payload: MaxSegmentPayload,
}

impl SegmentFormat {
    /// Returns whether the port's other side splits packets into segments.
    #[inline]
    fn offloads_segmentation(&self) -> bool {
        self.capabilities.segmentation.tcpv4.is_some()
    }
}

struct TcpSettings {
    delayed_ack: Option<Duration>,
    nagle: bool,
    congestion_control: CongestionAlgorithm,
    verifies_checksums: bool,
    /// Partial checksums are accepted.
    accepts_partial_checksum: bool,
    /// Time that a tail loss probe waits beyond two round trips.
    tail_probe: Option<Nanos>,
    sockets: u32,
}

/// Clock of smoltcp. Its minimum retransmission timeout is fixed at one second; for any other
/// setting its clock runs at another speed, and delays given to it are scaled.
struct SmoltcpClock {
    start: Option<Nanos>,
    /// Configured minimum timeout in microseconds of the stack's time: one second on smoltcp's
    /// clock.
    min_rto_us: u64,
}

impl SmoltcpClock {
    /// Converts the stack's time; the result is never zero.
    fn smoltcp_instant(&mut self, now: Nanos) -> Instant {
        let start = *self.start.get_or_insert(now);
        let ns = u128::from(now.saturating_sub(start));
        let us = ns * 1_000 / u128::from(self.min_rto_us);
        Instant::from_micros(us as i64 + 1)
    }

    /// Returns the stack's time at which smoltcp's clock shows `instant`.
    fn stack_time(&self, instant: Instant) -> Nanos {
        let us = instant.total_micros().max(1) as u128 - 1;
        let ns = (us * u128::from(self.min_rto_us)).div_ceil(1_000);
        self.start.unwrap_or(0) + ns as u64
    }

    fn scale_delay(&self, delay: Duration) -> smoltcp::time::Duration {
        let us = delay.as_micros() * 1_000_000 / u128::from(self.min_rto_us);
        smoltcp::time::Duration::from_micros(us as u64)
    }
}

/// Returns the size of the super-segments that the port's other side splits, if it does.
fn offloaded_segment_bytes(config: &StackConfig, vnet: usize, frame_bytes: usize) -> Option<usize> {
    let segment_bytes = frame_bytes.min(65_000);
    (config.checksum == ChecksumMode::Offload
        && vnet > 0
        && segment_bytes > 2 * usize::from(config.mtu))
    .then_some(segment_bytes - vnet - crate::wire::ETHERNET_BYTES)
}

/// Returns a smoltcp interface with the stack's addresses, over a device with these capabilities.
fn new_interface(
    addressing: &StackAddressing,
    capabilities: &DeviceCapabilities,
    start: Instant,
) -> Interface {
    let mut config = InterfaceConfig::new(HardwareAddress::Ip);
    config.random_seed = addressing.seed;
    let mut engine = Interface::new(
        config,
        &mut smoltcp_device::CapabilityDevice(capabilities),
        start,
    );
    engine.update_ip_addrs(|list| {
        for network in &addressing.networks {
            // Cannot fail: `StackAddressing` allows as many addresses as smoltcp does.
            let _ = list.push(IpCidr::new(network.address.into(), network.prefix));
        }
    });
    engine
}

impl TcpLayer {
    pub(crate) fn new(
        config: &StackConfig,
        addressing: &StackAddressing,
        (verifies_checksums, accepts_partial_checksum): (bool, bool),
        (vnet, frame_bytes): (usize, usize),
    ) -> Self {
        let offload = config.checksum == ChecksumMode::Offload;
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        // Received checksums are verified before smoltcp sees a packet; sent ones are computed,
        // faster, once the segment is final.
        capabilities.checksum.ipv4 = Sums::None;
        capabilities.checksum.tcp = Sums::None;
        let offloaded_bytes = offloaded_segment_bytes(config, vnet, frame_bytes);
        let offloaded_bytes = offloaded_bytes.and_then(std::num::NonZeroUsize::new);
        capabilities.segmentation.tcpv4 = offloaded_bytes;
        capabilities.segmentation.tcpv6 = offloaded_bytes;
        // smoltcp limits IPv6 packets to the MTU even if the port segments them. So it is given a
        // larger MTU, and the true segment size is written into SYNs in both directions.
        let link_mtu = usize::from(config.mtu);
        capabilities.max_transmission_unit = offloaded_bytes.map_or(link_mtu, |offloaded_bytes| {
            offloaded_bytes.get().max(link_mtu)
        });
        let format = SegmentFormat {
            capabilities,
            psh: config.tcp.psh,
            software_checksum: !offload,
            checksum_offload: offload && vnet > 0,
            tos: config.ip.tos,
            max_payload: MaxSegmentPayload::new(config.mtu, config.tcp.mss),
        };
        let mut clock = SmoltcpClock {
            start: None,
            min_rto_us: config.tcp.min_rto.as_micros() as u64,
        };
        let start = clock.smoltcp_instant(0);
        clock.start = None;
        let interface = new_interface(addressing, &format.capabilities, start);
        let split = SegmentSplit::for_config(config).filter(|_| !format.offloads_segmentation());
        let offloaded_bytes = split.map(|split| {
            let capabilities = SuperSegmentSender::capabilities(split, &format.capabilities);
            SuperSegmentSender::new(split, new_interface(addressing, &capabilities, start))
        });
        let count = config.tcp_sockets as usize;
        let mut connections = Vec::with_capacity(count);
        connections.extend(
            (0..count)
                .map(|_| TcpConnection::new(config.tcp.receive_window, config.tcp.send_buffer)),
        );
        let mut free = Vec::with_capacity(count);
        free.extend((0..config.tcp_sockets).rev());
        let mut listeners = Vec::with_capacity(MAX_LISTENERS);
        listeners.extend((0..MAX_LISTENERS).map(|_| ListenSocket::default()));
        Self {
            interface,
            super_segments: offloaded_bytes,
            format,
            connections,
            free,
            reclaim_position: 0,
            reclaim_failed_at: None,
            listeners,
            table: IndexTable::new(count),
            last_connection: 0,
            seed: addressing.seed,
            timers: TimerHeap::new(count),
            dirty: IndexQueue::new(count),
            waiting_syn_acks: IndexQueue::new(count),
            ready: IndexQueue::new(count + MAX_LISTENERS),
            empty_set: SocketSet::new(Vec::new()),
            clock,
            next_port: FIRST_FREE_PORT + ((addressing.seed >> 16) as u16 & 0x3fff),
            settings: TcpSettings {
                delayed_ack: config.tcp.delayed_ack,
                nagle: config.tcp.nagle,
                congestion_control: config.tcp.congestion_control,
                verifies_checksums,
                accepts_partial_checksum,
                tail_probe: (config.tcp.tail_probe).map(|slack| slack.as_nanos() as Nanos),
                sockets: config.tcp_sockets,
            },
        }
    }

    /// Returns the heap memory in bytes: connections without buffers, and tables; then buffers.
    pub(crate) const fn heap_bytes(config: &StackConfig) -> (usize, usize) {
        let count = config.tcp_sockets as usize;
        let queues = (3 * count + MAX_LISTENERS) * (size_of::<u32>() + size_of::<bool>());
        let timers = count * (2 * size_of::<u32>() + size_of::<Nanos>());
        let connection_bytes =
            size_of::<TcpConnection>() + TcpConnection::SET_BYTES + size_of::<u32>();
        let table = IndexTable::slots_for(count) * size_of::<u32>();
        let listeners = MAX_LISTENERS * size_of::<ListenSocket>();
        (
            count * connection_bytes + queues + timers + table + listeners,
            count * (config.tcp.send_buffer + config.tcp.receive_window),
        )
    }

    /// Turns super-segments off.
    #[cfg(test)]
    pub(crate) fn disable_super_segments(&mut self) {
        self.super_segments = None;
    }

    fn pair_hash(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        pair_hash(self.seed, local, remote)
    }

    fn find_connection(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        self.table.find(self.pair_hash(local, remote), |index| {
            let connection = &self.connections[index as usize];
            connection.remote == remote && connection.local == local
        })
    }

    /// Finds the connection of a segment, first at the position of the last one: segments arrive in
    /// trains.
    #[inline]
    fn find_connection_cached(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        let last = self.connections.get(self.last_connection as usize);
        let is_match = |connection: &TcpConnection| {
            connection.owner != ConnectionOwner::Free
                && connection.remote == remote
                && connection.local == local
        };
        if last.is_some_and(is_match) {
            return Some(self.last_connection);
        }
        let index = self.find_connection(local, remote)?;
        self.last_connection = index;
        Some(index)
    }

    #[inline]
    fn connection_index(&self, id: SocketId, call: &'static str) -> Result<usize, StackError> {
        if id.kind != SocketKind::Tcp {
            return Err(StackError::WrongKind {
                kind: id.kind.name(),
                call,
            });
        }
        let index = id.index as usize;
        let connection = self.connections.get(index);
        connection
            .filter(|entry| {
                entry.owner == ConnectionOwner::Application && entry.generation == id.generation
            })
            .map(|_| index)
            .ok_or(StackError::SocketClosed)
    }

    /// Starts a connection; its state reports when it is established.
    pub(crate) fn connect(
        &mut self,
        remote: SocketAddr,
        link: &mut LinkLayer,
        local: Option<SocketAddr>,
    ) -> Result<SocketId, StackError> {
        let address = remote.ip();
        let addressing = &link.addressing;
        addressing
            .next_hop(address)
            .ok_or(StackError::NoRoute { address })?;
        let given_address = local
            .map(|local| local.ip())
            .filter(|ip| !ip.is_unspecified());
        if let Some(address) = given_address
            && !addressing.is_local(address)
        {
            return Err(StackError::NotLocal { address });
        }
        let from = given_address.or_else(|| addressing.source_for(address));
        let from = from.ok_or(StackError::NoRoute { address })?;
        let port = match local.map_or(0, |local| local.port()) {
            0 => self.free_port(from, remote)?,
            port if self
                .find_connection(SocketAddr::new(from, port), remote)
                .is_some() =>
            {
                return Err(StackError::PortInUse { port });
            }
            port => port,
        };
        let local = SocketAddr::new(from, port);
        let index = self.allocate_connection(link)?;
        let connection = &mut self.connections[index as usize];
        let socket = connection.socket();
        let result = socket.connect(
            self.interface.context(),
            (remote.ip(), remote.port()),
            (local.ip(), local.port()),
        );
        if result.is_err() {
            self.free.push(index);
            return Err(StackError::NoRoute { address });
        }
        connection.reset_for(local, remote, ConnectionOwner::Application, link.now);
        connection.state = tcp::State::SynSent;
        let generation = connection.generation;
        self.table.insert(self.pair_hash(local, remote), index);
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
            if self
                .find_connection(SocketAddr::new(from, port), remote)
                .is_none()
            {
                return Ok(port);
            }
        }
        Err(StackError::PortInUse { port: 0 })
    }

    /// Takes a free connection and configures its socket.
    fn allocate_connection(&mut self, link: &mut LinkLayer) -> Result<u32, StackError> {
        if self.free.is_empty() && !self.reclaim_time_wait(link.now) {
            self.evict_half_open(link, None);
        }
        let index = self.free.pop().ok_or(StackError::TooManySockets {
            kind: "TCP",
            limit: self.settings.sockets,
            remedy: "set sockets.tcp higher",
        })?;
        let delay = self
            .settings
            .delayed_ack
            .map(|delay| self.clock.scale_delay(delay));
        let socket = self.connections[index as usize].socket();
        socket.set_ack_delay(delay);
        socket.set_nagle_enabled(self.settings.nagle);
        // This also resets the congestion window left by the last connection.
        socket.set_congestion_control(match self.settings.congestion_control {
            CongestionAlgorithm::None => tcp::CongestionControl::None,
            CongestionAlgorithm::Reno => tcp::CongestionControl::Reno,
            CongestionAlgorithm::Cubic => tcp::CongestionControl::Cubic,
        });
        Ok(index)
    }

    /// Frees a connection in TIME-WAIT (RFC 6191 allows that for new connections); returns whether
    /// there was one.
    fn reclaim_time_wait(&mut self, now: Nanos) -> bool {
        // Limits a flood of SYNs to one search of all connections a poll.
        if self.reclaim_failed_at == Some(now) {
            return false;
        }
        let count = self.connections.len() as u32;
        for step in 0..count {
            let index = (self.reclaim_position + step) % count;
            let connection = &mut self.connections[index as usize];
            if connection.owner == ConnectionOwner::Orphaned
                && connection.socket().state() == tcp::State::TimeWait
            {
                self.reclaim_position = index + 1;
                self.free_connection(index);
                return true;
            }
        }
        self.reclaim_failed_at = Some(now);
        false
    }

    /// Passes free space of the send buffer to `fill`, which returns how many bytes it wrote.
    #[inline]
    pub(crate) fn send(
        &mut self,
        id: SocketId,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Poll<Result<usize, StackError>> {
        let index = match self.connection_index(id, "tcp_send") {
            Ok(index) => index,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let connection = &mut self.connections[index];
        let finished = connection.send_finished;
        let socket = connection.socket();
        if finished || !socket.may_send() {
            return connection.send_error();
        }
        if !socket.can_send() {
            return Poll::Pending;
        }
        let sent = socket
            .send(|space| {
                let written = fill(space).min(space.len());
                (written, written)
            })
            .expect("it may send");
        if sent > 0 {
            connection.written_bytes = connection.written_bytes.wrapping_add(sent as u32);
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
        let index = match self.connection_index(id, "tcp_receive") {
            Ok(index) => index,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let connection = &mut self.connections[index];
        let socket = connection.socket();
        if socket.can_recv() {
            let mut count = 0;
            let consumed = socket.recv(|bytes| {
                let (consumed, result) = take(bytes);
                count = consumed.min(bytes.len());
                (count, result)
            });
            return match consumed {
                Ok(result) => {
                    connection.read_sequence = connection.read_sequence.wrapping_add(count as u32);
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
            Err(tcp::RecvError::InvalidState) => connection.receive_error(),
        }
    }

    /// Returns local and remote address of a connection.
    pub(crate) fn endpoints(&self, id: SocketId) -> Result<(SocketAddr, SocketAddr), StackError> {
        let connection = &self.connections[self.connection_index(id, "ends")?];
        Ok((connection.local, connection.remote))
    }

    /// Returns the bytes in the send buffer and in the receive buffer.
    pub(crate) fn buffered_bytes(&mut self, id: SocketId) -> Result<(usize, usize), StackError> {
        let index = self.connection_index(id, "queued")?;
        let socket = self.connections[index].socket();
        Ok((socket.send_queue(), socket.recv_queue()))
    }

    /// Returns when payload last arrived: at the port, and in the buffer.
    pub(crate) fn arrival_times(&self, id: SocketId) -> Result<Option<(Nanos, Nanos)>, StackError> {
        Ok(self.connections[self.connection_index(id, "tcp_came")?].arrival_times)
    }

    /// Returns the last ICMP error about the connection, and its sender.
    pub(crate) fn icmp_error(
        &self,
        id: SocketId,
    ) -> Result<Option<(UnreachableReason, IpAddr)>, StackError> {
        Ok(self.connections[self.connection_index(id, "tcp_trouble")?].icmp_error)
    }

    pub(crate) fn state(&mut self, id: SocketId) -> Result<crate::TcpState, StackError> {
        let index = self.connection_index(id, "tcp_state")?;
        Ok(self.connections[index].public_state())
    }

    /// Finishes sending; what is in the send buffer is still delivered.
    pub(crate) fn finish(&mut self, id: SocketId) -> Result<(), StackError> {
        let index = self.connection_index(id, "tcp_finish")?;
        let connection = &mut self.connections[index];
        connection.send_finished = true;
        connection.end_stream();
        self.dirty.push(index as u32);
        Ok(())
    }

    /// Closes a connection: with a FIN, or with a reset if `abort` is set or received payload is
    /// unread.
    pub(crate) fn close(
        &mut self,
        link: &mut LinkLayer,
        id: SocketId,
        abort: bool,
    ) -> Result<(), StackError> {
        let index = self.connection_index(id, "close")?;
        self.reclaim_failed_at = None;
        let connection = &mut self.connections[index];
        connection.orphan(link.now);
        // Unread payload was not delivered, which calls for a reset (RFC 2525, section 2.17).
        let is_connecting = connection.socket().state() == tcp::State::SynSent;
        if abort || is_connecting || connection.socket().can_recv() {
            connection.reset(&mut link.counters);
        } else {
            connection.end_stream();
        }
        self.dirty.push(index as u32);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoltcps_clock_runs_at_the_inverse_of_the_minimum_timeout() {
        for (rto_ms, factor) in [(1_000u64, 1), (200, 5), (1, 1_000), (333, 3)] {
            let mut clock = SmoltcpClock {
                start: None,
                min_rto_us: rto_ms * 1_000,
            };
            let start = 77_000_000;
            assert_eq!(clock.smoltcp_instant(start).total_micros(), 1);
            let elapsed_us = clock.smoltcp_instant(start + 6_000_000).total_micros() - 1;
            assert!(
                (elapsed_us - 6_000 * factor).abs() < 20,
                "{rto_ms}: {elapsed_us}"
            );
            // `stack_time` is exact: the deadline has passed at that time, and not 10 us earlier.
            let deadline = Instant::from_micros(1_000_001);
            let at = clock.stack_time(deadline);
            assert_eq!(at, start + rto_ms * 1_000_000);
            assert!(clock.smoltcp_instant(at) >= deadline);
            assert!(clock.smoltcp_instant(at - 10_000) < deadline);
        }
    }
}
