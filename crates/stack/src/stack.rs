//! The stack: one port, one thread, and turns.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::task::Poll;

use linerate_metric::device_stamps::DeviceStamps;
use linerate_port::vnet::{VNET_HEADER_BYTES, VnetHeader};
use linerate_port::{
    AnyPort, AnyReceive, BURST_FRAMES, Burst, Capabilities, Frame, Memory, MemoryPlan, PortError,
    PortUrl, Receive, Transmit,
};

use crate::Nanos;
use crate::addressing::Addressing;
use crate::config::{Checksum, Config};
use crate::counters::Counters;
use crate::error::StackError;
use crate::icmp;
use crate::link::Link;
use crate::neighbors::WAITING;
use crate::socket::{Meta, SocketId, SocketKind, TcpState};
use crate::tcp::Tcp;
use crate::udp::reassembly::Outcome;
use crate::udp::{Fate, Udp};
use crate::watch::Departure;
use crate::wire::ip::{self, Header};
use crate::wire::{
    ETHERNET_BYTES, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, TCP, UDP, word,
};

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Frames taken from the port.
    pub received: usize,
    /// As many were taken as a turn may: there may be more.
    pub more: bool,
}

/// A host on a port: its addresses, neighbours and sockets. See the [crate's](crate) example.
///
/// Calls on sockets give [`Poll::Pending`] when nothing can be done now: turn, and try again.
pub struct Stack {
    receive: AnyReceive,
    memory: Memory,
    link: Link,
    udp: Udp,
    tcp: Tcp,
    capabilities: Capabilities,
    config: Config,
    mtu: usize,
    verify: bool,
}

/// Frames of 64 KiB, which a port with a vnet header has, are few at a time.
const LONG_FRAME_BYTES: usize = 16 << 10;
const LONG_FRAMES_HELD: u32 = 256;

/// Frames that wait in queues of sockets at most.
pub(crate) fn held_frames(config: &Config, frame_bytes: u16) -> u32 {
    let all = config
        .udp
        .receive_queue
        .saturating_mul(config.udp_sockets)
        .min(config.udp.buffers);
    if usize::from(frame_bytes) > LONG_FRAME_BYTES {
        all.min(LONG_FRAMES_HELD)
    } else {
        all
    }
}

/// Frames that a stack may hold beside those that its port does.
pub(crate) fn frames_of_its_own(config: &Config, frame_bytes: u16) -> u32 {
    // A burst each way, one that a pool holds back (`Pool` shares what is beyond), those that wait.
    held_frames(config, frame_bytes) + WAITING as u32 + 2 * BURST_FRAMES as u32
}

/// The memory that a stack with this configuration and its port need; add others' with
/// [`MemoryPlan::joined`] where they share one.
#[must_use]
pub fn memory_plan(config: &Config, url: &PortUrl) -> MemoryPlan {
    let mut plan = url.memory_plan();
    plan.frames = plan
        .frames
        .saturating_add(frames_of_its_own(config, plan.frame_bytes));
    plan
}

/// Reads a port's URL as the configuration completes it: descriptors and MTU where the text says nothing.
///
/// # Errors
/// What the URL says wrong.
pub fn port_url(config: &Config, text: &str) -> Result<PortUrl, PortError> {
    let plain: PortUrl = text.parse()?;
    let common = plain.common();
    let mut full = text.to_owned();
    if common.rxd.is_none() {
        full += &format!(",rxd={}", config.rx_descriptors);
    }
    if common.txd.is_none() {
        full += &format!(",txd={}", config.tx_descriptors);
    }
    if common.mtu.is_none() {
        full += &format!(",mtu={}", config.mtu);
    }
    full.parse()
}

impl Stack {
    /// Makes a stack over a port, with all the memory that it will ever use. `memory` is the one that the
    /// port was opened with, planned by [`memory_plan`].
    ///
    /// # Errors
    /// [`StackError::Contradiction`] when the configuration asks for what the port cannot do.
    pub fn new(
        port: AnyPort,
        memory: &Memory,
        config: &Config,
        addressing: &Addressing,
    ) -> Result<Self, StackError> {
        addressing.check()?;
        let capabilities = port.capabilities;
        let vnet = usize::from(capabilities.vnet_header);
        check(config, &capabilities, memory)?;
        let ethernet = addressing
            .ethernet
            .or(capabilities.address)
            .unwrap_or_else(|| addressing.made_ethernet());
        let verify = config.checksum == Checksum::Software || vnet > 0;
        let limit = held_frames(config, memory.frame_bytes());
        let frame_bytes = usize::from(capabilities.frame_bytes.min(memory.frame_bytes()));
        Ok(Self {
            receive: port.receive,
            link: Link::new(
                memory,
                port.transmit,
                vnet,
                addressing.copied(),
                ethernet,
                (config.tx_descriptors, config.arp_cache),
            ),
            udp: Udp::new(config, limit, verify, addressing.seed),
            tcp: Tcp::new(config, addressing, verify, (vnet, frame_bytes)),
            memory: memory.clone(),
            mtu: config.mtu.into(),
            config: config.clone(),
            capabilities,
            verify,
        })
    }

    /// Lets the stack work: what waits goes out, frames come in as far as there are descriptors, timers
    /// run, connections send. `now` is read once for all of it and never goes back.
    #[inline]
    pub fn turn(&mut self, now: Nanos) -> Turn {
        self.link.begin(now);
        let budget = self.config.rx_descriptors as usize;
        let mut turn = Turn::default();
        while turn.received < budget {
            let wanted = (budget - turn.received).min(BURST_FRAMES);
            let mut burst = Burst::with_limit(wanted);
            let count = self.receive.receive(&mut self.link.pool, &mut burst);
            if count == 0 {
                break;
            }
            turn.received += count;
            self.link.came = self
                .link
                .watch
                .as_ref()
                .map_or(now, |watch| (watch.clock)());
            burst.take_front(|frame| {
                self.input(frame);
                Ok(())
            });
            if count < wanted {
                break;
            }
        }
        turn.more = turn.received >= budget;
        self.link.counters.link.in_frames += turn.received as u64;
        self.link.check_neighbors();
        self.udp.reassembly.expire(now, &mut self.link.counters);
        self.udp.fragmenter.work(&mut self.link);
        self.tcp.work(&mut self.link);
        if self.link.is_behind() {
            self.link.flush();
        } else if turn.received == 0 {
            self.link.reclaim();
        }
        turn
    }

    /// Gives what sockets have sent since the turn to the port: for an application that will not turn
    /// again at once.
    pub fn flush(&mut self) {
        self.udp.fragmenter.work(&mut self.link);
        self.tcp.work(&mut self.link);
        self.link.flush();
    }

    /// When the stack has something to do though nothing comes; `None`: nothing. To be asked before
    /// sleeping, not in each turn.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        if self.link.is_behind() || !self.udp.fragmenter.is_idle() {
            return Some(self.link.now);
        }
        [
            self.tcp.next_deadline(self.link.now),
            self.link.neighbors.next_deadline(),
            self.udp.reassembly.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// What to wait on (readable) instead of spinning, where the port offers something.
    #[must_use]
    pub fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.receive.wait_handle()
    }

    /// The time of the last turn.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.link.now
    }

    /// Takes over what only the kernel counts of the port, and says whether it still works. Once an
    /// interval, and at the end.
    ///
    /// # Errors
    /// Why no frame will come or leave any more.
    pub fn refresh(&mut self) -> Result<(), StackError> {
        self.receive.refresh()?;
        self.link.transmit_mut().refresh()?;
        Ok(())
    }

    /// Everything counted so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.link.counters
    }

    /// Has the stages of datagrams watched from now on, by this clock, which is read once for each burst
    /// and once or twice for each datagram: [`Meta::arrived_ns`] becomes exact, [`Meta::queued_ns`] known,
    /// and [`Stack::departures`] tells of what left, `room` datagrams between two looks at most.
    pub fn watch_stages(&mut self, clock: fn() -> Nanos, room: usize) {
        self.link.watched_by(clock).keep(room);
    }

    /// Shows the departures since the last look; returns how many more there were than room.
    pub fn departures(&mut self, take: impl FnMut(Departure)) -> u64 {
        let watch = self.link.watch.as_mut();
        watch.map_or(0, |watch| watch.fetch(take))
    }

    /// Writes two times into every UDP datagram that a socket sends after it received one: when that one
    /// came from the port, and when this one goes to it. Of an answer in fragments the second is when it
    /// was cut.
    pub fn stamp_payload(&mut self, stamps: DeviceStamps, clock: fn() -> Nanos) {
        self.link.watched_by(clock).stamps = Some(stamps);
    }

    /// What the port can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its addresses.
    #[must_use]
    pub fn addressing(&self) -> &Addressing {
        &self.link.own
    }

    /// Its Ethernet address.
    #[must_use]
    pub fn ethernet(&self) -> [u8; 6] {
        self.link.ethernet
    }

    /// TCP connections that are in use, also those on their way to their end.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.tcp.in_use()
    }

    /// The next socket at which something changed since it was last given here: something came, there is
    /// room again, it stands, it ended. Of a socket that is told of everything is to be tried; a socket may
    /// be told of for nothing.
    pub fn ready(&mut self) -> Option<SocketId> {
        self.udp.next_ready().or_else(|| self.tcp.next_ready())
    }

    fn input(&mut self, frame: Frame) {
        if let Some(frame) = self.sort(frame) {
            self.link.pool.free(frame);
        }
    }

    /// Looks at a frame and hands it on; gives it back unless a queue holds it.
    #[inline]
    fn sort(&mut self, frame: Frame) -> Option<Frame> {
        let bytes = self.memory.bytes(&frame);
        let mut at = self.link.vnet;
        let vnet = if at > 0 {
            VnetHeader::read(bytes).unwrap_or_default()
        } else {
            VnetHeader::default()
        };
        let Some(ethernet) = bytes.get(at..).filter(|rest| rest.len() >= ETHERNET_BYTES) else {
            self.link.counters.link.in_errors += 1;
            return Some(frame);
        };
        if ethernet[..6] != self.link.ethernet && ethernet[0] & 1 == 0 {
            self.link.counters.link.in_not_ours += 1;
            return Some(frame);
        }
        at += ETHERNET_BYTES;
        let v4 = match word(ethernet, 12) {
            ETHERTYPE_IPV4 => true,
            ETHERTYPE_IPV6 => false,
            ETHERTYPE_ARP => {
                self.link.input_arp(&bytes[at..]);
                return Some(frame);
            }
            _ => {
                self.link.counters.link.in_unknown_protocols += 1;
                return Some(frame);
            }
        };
        self.link.counters.ip.in_receives += 1;
        let packet = &bytes[at..];
        let Some(header) = ip::parse(packet, v4, self.verify) else {
            self.link.counters.ip.in_header_errors += 1;
            return Some(frame);
        };
        if !self.link.own.accepts(header.to) {
            self.link.counters.ip.in_address_errors += 1;
            return Some(frame);
        }
        if let Some(piece) = header.piece {
            let payload = &packet[header.body..header.end];
            let counters = &mut self.link.counters;
            let now = self.link.now;
            let outcome = self
                .udp
                .reassembly
                .input(&header, piece, payload, now, counters);
            if let Outcome::Whole(buffer, length) = outcome {
                self.input_whole(&header, buffer, length);
            }
            return Some(frame);
        }
        if header.protocol == UDP {
            self.link.counters.ip.in_delivers += 1;
            return match self.udp.input(&mut self.link, frame, &header, at, vnet) {
                Fate::Queued => None,
                Fate::Done(frame) => Some(frame),
                Fate::NoPort(frame) => {
                    self.no_port(&header, &self.memory.clone().bytes(&frame)[at..]);
                    Some(frame)
                }
            };
        }
        match header.protocol {
            TCP => {
                self.link.counters.ip.in_delivers += 1;
                self.tcp.input(&mut self.link, &header, packet, vnet);
            }
            ICMP | ICMPV6 if (header.protocol == ICMP) == v4 => {
                self.link.counters.ip.in_delivers += 1;
                let message = &packet[header.body..header.end];
                let refused = icmp::input(
                    &mut self.link,
                    &mut self.udp.fragmenter,
                    &header,
                    message,
                    self.mtu,
                );
                if let Some((port, remote)) = refused {
                    self.udp.unreachable(port, remote);
                }
            }
            _ => self.link.counters.ip.in_unknown_protocols += 1,
        }
        Some(frame)
    }

    #[cold]
    fn no_port(&mut self, header: &Header, packet: &[u8]) {
        self.link.counters.udp.no_ports += 1;
        icmp::port_unreachable(&mut self.link, header, packet);
    }

    /// A datagram was put together.
    fn input_whole(&mut self, header: &Header, buffer: u32, length: usize) {
        self.link.counters.ip.in_delivers += 1;
        match header.protocol {
            UDP => {
                let known = self.udp.input_whole(&mut self.link, header, buffer, length);
                self.link.counters.udp.no_ports += u64::from(!known);
                return;
            }
            ICMP => {
                let message = &self.udp.reassembly.bytes(buffer)[..length];
                icmp::input(
                    &mut self.link,
                    &mut self.udp.fragmenter,
                    header,
                    message,
                    self.mtu,
                );
            }
            // A segment of TCP is never cut by who knows the path; the engine takes whole packets.
            _ => self.link.counters.ip.in_unknown_protocols += 1,
        }
        self.udp.reassembly.free(buffer);
    }
}

/// UDP.
impl Stack {
    /// Opens a UDP socket on a local address and port; unspecified is any address, 0 any free port.
    ///
    /// # Errors
    /// [`StackError::PortTaken`], [`StackError::NotLocal`], [`StackError::TooManySockets`].
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<SocketId, StackError> {
        let address = local.ip();
        if !address.is_unspecified() && !self.link.own.is_own(address) {
            return Err(StackError::NotLocal { address });
        }
        self.udp.open(local, self.config.udp_sockets)
    }

    /// Takes datagrams of this peer alone from now on, and sends to it when no addressee is named.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::NoRoute`].
    pub fn udp_connect(&mut self, socket: SocketId, peer: SocketAddr) -> Result<(), StackError> {
        let address = peer.ip();
        self.link
            .hop(address)
            .ok_or(StackError::NoRoute { address })?;
        self.udp.connect(socket, peer)
    }

    /// Sends a datagram of `bytes`, written by `fill`, to `to` or to whom the socket is connected to.
    ///
    /// It leaves with the next [`Stack::turn`] or [`Stack::flush`]. Pending when the ring is full, or while
    /// a longer datagram leaves in fragments. What the buffer holds before is undefined.
    ///
    /// # Errors
    /// [`StackError::TooLong`], [`StackError::NotConnected`], [`StackError::NoRoute`],
    /// [`StackError::Stale`].
    #[inline]
    pub fn udp_send(
        &mut self,
        socket: SocketId,
        to: Option<SocketAddr>,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        self.udp.send(&mut self.link, socket, to, bytes, fill)
    }

    /// Sends up to `count` datagrams of `bytes`, the nth written by `fill(n, …)`; returns how many.
    ///
    /// # Errors
    /// As [`Stack::udp_send`], when it is the first that fails.
    #[inline]
    pub fn udp_send_burst(
        &mut self,
        socket: SocketId,
        to: Option<SocketAddr>,
        bytes: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        for number in 0..count {
            let sent = self.udp.send(&mut self.link, socket, to, bytes, |room| {
                fill(number, room);
            });
            match sent {
                Poll::Ready(Ok(_)) => {}
                _ if number > 0 => return Poll::Ready(Ok(number)),
                failed => return failed,
            }
        }
        Poll::Ready(Ok(count))
    }

    /// Receives one datagram and shows it to `take`.
    ///
    /// # Errors
    /// [`StackError::Refused`] once after nobody had the port that a connected socket sent to;
    /// [`StackError::Stale`].
    #[inline]
    pub fn udp_receive<R>(
        &mut self,
        socket: SocketId,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<Result<R, StackError>> {
        self.udp.receive(&mut self.link, socket, take)
    }

    /// Receives what is there, up to `most` datagrams, and shows each to `take`; returns how many.
    ///
    /// # Errors
    /// As [`Stack::udp_receive`], when it is the first that fails.
    #[inline]
    pub fn udp_receive_burst(
        &mut self,
        socket: SocketId,
        most: usize,
        mut take: impl FnMut(&[u8], Meta),
    ) -> Poll<Result<usize, StackError>> {
        for number in 0..most {
            let got = self.udp.receive(&mut self.link, socket, |bytes, meta| {
                take(bytes, meta);
            });
            match got {
                Poll::Ready(Ok(())) => {}
                _ if number > 0 => return Poll::Ready(Ok(number)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(most))
    }

    /// Packets that wait at a socket.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn udp_waiting(&mut self, socket: SocketId) -> Result<usize, StackError> {
        self.udp.waiting(socket)
    }
}

/// TCP.
impl Stack {
    /// Listens on a local address and port, for at most `backlog` connections not yet accepted; requests
    /// beyond are not answered, so that they come again.
    ///
    /// # Errors
    /// [`StackError::PortTaken`] (also for port 0), [`StackError::NotLocal`],
    /// [`StackError::TooManySockets`].
    pub fn tcp_listen(&mut self, local: SocketAddr, backlog: u32) -> Result<SocketId, StackError> {
        let address = local.ip();
        if !address.is_unspecified() && !self.link.own.is_own(address) {
            return Err(StackError::NotLocal { address });
        }
        self.tcp.listen(local, backlog)
    }

    /// Takes the next connection of a listening socket.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_accept(&mut self, listener: SocketId) -> Poll<Result<SocketId, StackError>> {
        self.tcp.accept(listener)
    }

    /// Begins a connection; it stands once [`Stack::tcp_state`] says so. `local`: address and port to come
    /// from, where unspecified and 0 are chosen. There is no time limit but the caller's.
    ///
    /// # Errors
    /// [`StackError::NoRoute`], [`StackError::NotLocal`], [`StackError::PortTaken`],
    /// [`StackError::TooManySockets`].
    pub fn tcp_connect(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<SocketId, StackError> {
        self.tcp.connect(remote, &self.link.own, local)
    }

    /// Where a connection stands.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_state(&mut self, socket: SocketId) -> Result<TcpState, StackError> {
        self.tcp.state(socket)
    }

    /// Offers room in the send buffer to `fill`, which says how many bytes it wrote from its start.
    ///
    /// The room is never empty, and may be less than all that is free: where the buffer wraps, call again.
    /// Payload leaves with the next [`Stack::turn`] or [`Stack::flush`].
    ///
    /// # Errors
    /// [`StackError::Refused`], [`StackError::Reset`], [`StackError::Finished`], [`StackError::Stale`].
    #[inline]
    pub fn tcp_send(
        &mut self,
        socket: SocketId,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Poll<Result<usize, StackError>> {
        self.tcp.send(socket, fill)
    }

    /// Shows what has come to `take`, which says how many bytes it took from the front; the rest is shown
    /// again. Nothing is shown once, and from then on, when the far end has finished sending.
    ///
    /// # Errors
    /// [`StackError::Refused`], [`StackError::Reset`], [`StackError::Stale`].
    #[inline]
    pub fn tcp_receive<R>(
        &mut self,
        socket: SocketId,
        take: impl FnOnce(&[u8]) -> (usize, R),
    ) -> Poll<Result<R, StackError>> {
        self.tcp.receive(socket, take)
    }

    /// Says that nothing more will be sent; the other direction stays open.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_finish(&mut self, socket: SocketId) -> Result<(), StackError> {
        self.tcp.finish(socket)
    }

    /// Bytes that wait at a connection: sent or to be sent and not acknowledged; received and not fetched.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_queued(&mut self, socket: SocketId) -> Result<(usize, usize), StackError> {
        self.tcp.queued(socket)
    }
}

/// Any socket.
impl Stack {
    /// Closes a socket. A connection goes on in the background until its payload has arrived; with payload
    /// unread it is reset.
    ///
    /// # Errors
    /// [`StackError::Stale`].
    pub fn close(&mut self, socket: SocketId) -> Result<(), StackError> {
        match socket.kind() {
            SocketKind::Udp => self.udp.close(socket, &mut self.link),
            SocketKind::Tcp => self.tcp.close(socket, false),
            SocketKind::Listener => self.tcp.unlisten(socket),
        }
    }

    /// Breaks a connection off with a reset; closes any other socket.
    ///
    /// # Errors
    /// [`StackError::Stale`].
    pub fn abort(&mut self, socket: SocketId) -> Result<(), StackError> {
        match socket.kind() {
            SocketKind::Tcp => self.tcp.close(socket, true),
            _ => self.close(socket),
        }
    }

    /// The local end: of a socket bound to any address, the one that it would send from.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`] for a listener.
    pub fn local(&mut self, socket: SocketId) -> Result<SocketAddr, StackError> {
        if socket.kind() == SocketKind::Tcp {
            return Ok(self.tcp.ends(socket)?.0);
        }
        let (bound, port) = self.udp.local(socket)?;
        let peer = self.udp.peer(socket)?;
        let toward = |peer: SocketAddr| self.link.own.source_for(peer.ip());
        let first: IpAddr = self.link.own.networks[0].address;
        let address = bound.or_else(|| peer.and_then(toward)).unwrap_or(first);
        Ok(SocketAddr::new(address, port))
    }

    /// The far end; `None` for a socket that is not connected.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`] for a listener.
    pub fn remote(&mut self, socket: SocketId) -> Result<Option<SocketAddr>, StackError> {
        if socket.kind() == SocketKind::Tcp {
            return Ok(Some(self.tcp.ends(socket)?.1));
        }
        self.udp.peer(socket)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.udp.drain(&mut self.link);
    }
}

/// Refuses what the port cannot do.
fn check(config: &Config, capabilities: &Capabilities, memory: &Memory) -> Result<(), StackError> {
    let vnet = usize::from(capabilities.vnet_header);
    if vnet != 0 && vnet != VNET_HEADER_BYTES {
        return Err(StackError::Contradiction {
            why: format!(
                "{} has a header of {vnet} B that the stack does not know",
                capabilities.name
            ),
            remedy: "open the port without it".to_owned(),
        });
    }
    let needed = vnet + ETHERNET_BYTES + usize::from(config.mtu);
    let has = usize::from(capabilities.frame_bytes.min(memory.frame_bytes()));
    if has < needed {
        return Err(StackError::Contradiction {
            why: format!(
                "frames of {} hold {has} B, and an mtu of {} needs {needed}",
                capabilities.name, config.mtu
            ),
            remedy: format!("add mtu={} to its URL, or set mtu lower", config.mtu),
        });
    }
    // Where frames stay in memory nobody needs a sum; everybody else drops frames without one.
    let inside = ["ring:", "shm:", "null:"]
        .iter()
        .any(|kind| capabilities.name.starts_with(kind));
    if config.checksum == Checksum::Offload && vnet == 0 && !inside {
        return Err(StackError::Contradiction {
            why: format!(
                "{} has no way to leave checksums to its other side",
                capabilities.name
            ),
            remedy: "set checksum=software, or open the port with a vnet header (tap:NAME,vnet)"
                .to_owned(),
        });
    }
    Ok(())
}
