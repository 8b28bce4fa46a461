//! The stack: one port, one thread, and turns.

mod datagrams;
mod input;
mod plan;
mod sockets;
mod streams;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use linerate_metric::device_stamps::DeviceStamps;
use linerate_port::{
    AnyPort, AnyReceive, BURST_FRAMES, Burst, Capabilities, Cause, Memory, Partner, QueueCounters,
    Receive, Transmit,
};

use crate::Nanos;
use crate::addressing::Addressing;
use crate::config::{Checksum, Config};
use crate::counters::Counters;
use crate::error::StackError;
use crate::link::Link;
use crate::socket::SocketId;
use crate::tcp::Tcp;
use crate::udp::Udp;
use crate::watch::Departure;
pub(crate) use plan::{LONG_FRAME_BYTES, frames_of_its_own};
use plan::{check, held_frames};
pub use plan::{memory_plan, port_url, ring_url};

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
/// Calls on sockets give [`Poll::Pending`](std::task::Poll::Pending) when nothing can be done now: turn, and try again.
pub struct Stack {
    receive: AnyReceive,
    /// Frames that were found between two turns, the first one at the end.
    found: Burst,
    memory: Memory,
    link: Link,
    udp: Udp,
    tcp: Tcp,
    capabilities: Capabilities,
    config: Config,
    mtu: usize,
    verify: bool,
    /// Timers and connections wait for the next turn.
    postponed: bool,
    /// What the port lost of what came, and of what was to leave.
    drops: [Arc<QueueCounters>; 2],
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
        let sums = (verify, capabilities.leaves_checksums);
        let drops = [port.receive.counters(), port.transmit.counters()].map(Arc::clone);
        let limit = held_frames(config, memory.frame_bytes());
        let frame_bytes = usize::from(capabilities.frame_bytes.min(memory.frame_bytes()));
        Ok(Self {
            receive: port.receive,
            found: Burst::with_limit(config.rx_descriptors as usize),
            link: Link::new(
                memory,
                port.transmit,
                vnet,
                addressing.copied(),
                ethernet,
                config,
            ),
            udp: Udp::new(config, limit, sums, addressing),
            tcp: Tcp::new(config, addressing, sums, (vnet, frame_bytes)),
            postponed: false,
            drops,
            memory: memory.clone(),
            mtu: config.mtu.into(),
            config: config.clone(),
            capabilities,
            verify,
        })
    }

    /// Lets the stack work: what waits goes out, frames come in as far as there are descriptors, timers
    /// run, connections send. `now` is read once for all of it and never goes back.
    ///
    /// Where datagrams came for sockets and nothing else, timers wait until the next turn has sent what was made of them:
    /// an answer leaves sooner by the time that they take.
    #[inline]
    pub fn turn(&mut self, now: Nanos) -> Turn {
        self.link.begin(now);
        if std::mem::take(&mut self.postponed) {
            self.look_after();
        }
        let datagrams = self.link.counters.udp.in_datagrams;
        let budget = self.config.rx_descriptors as usize;
        let mut turn = Turn {
            received: self.found.len(),
            more: false,
        };
        // A look that found fewer than it had room for has left nothing.
        let mut waits = turn.received == 0 || self.found.is_full();
        self.link.answering = true;
        while let Some(frame) = self.found.pop() {
            self.input(frame);
        }
        while waits && turn.received < budget {
            let wanted = (budget - turn.received).min(BURST_FRAMES);
            let mut burst = Burst::with_limit(wanted);
            let count = self.receive.receive(&mut self.link.pool, &mut burst);
            if count == 0 {
                break;
            }
            turn.received += count;
            self.link.arrived();
            burst.take_front(|frame| {
                self.input(frame);
                Ok(())
            });
            waits = count == wanted;
        }
        self.link.answering = false;
        turn.more = turn.received >= budget;
        self.link.counters.link.in_frames += turn.received as u64;
        let datagrams = self.link.counters.udp.in_datagrams - datagrams;
        if turn.received > 0 && datagrams == turn.received as u64 && !self.has_unsent() {
            self.postponed = true;
            return turn;
        }
        self.look_after();
        if self.link.is_behind() {
            self.link.flush();
        } else if turn.received == 0 {
            self.link.reclaim();
        }
        turn
    }

    /// What a turn does by the time, and for whatever has something to send.
    fn look_after(&mut self) {
        while let Some(lost) = self.link.check_neighbors() {
            self.udp.unreached(&lost);
        }
        let now = self.link.now;
        self.udp.reassembly.expire(now, &mut self.link.counters);
        self.link.forget_paths();
        self.udp.fragmenter.work(&mut self.link);
        self.tcp.work(&mut self.link);
    }

    /// Whether the next turn has something to do that no timer asks for. What the port has is fetched for it.
    ///
    /// For an application that spins: a look costs less than a turn, so a frame is found sooner by a few of them in
    /// place of each turn. Time passes for the stack in turns alone.
    #[inline]
    pub fn look(&mut self) -> bool {
        if !self.found.is_empty() || self.has_unsent() {
            return true;
        }
        if self.receive.receive(&mut self.link.pool, &mut self.found) == 0 {
            return false;
        }
        self.link.arrived();
        // The first one is taken first.
        self.found.frames_mut().reverse();
        true
    }

    /// When the frames came that a look has found, where stages are watched and the clock was read then: a turn may go
    /// on with it.
    #[inline]
    #[must_use]
    pub fn found_at(&self) -> Option<Nanos> {
        (!self.found.is_empty() && self.link.watch.is_some()).then_some(self.link.came)
    }

    /// Whether something waits to be sent.
    fn has_unsent(&self) -> bool {
        self.link.is_behind() || !self.udp.fragmenter.is_idle() || self.tcp.has_work()
    }

    /// Gives frames that have been made since the turn to the port: datagrams and not what connections are to send, which
    /// the turn makes of all that it finds.
    #[inline]
    pub fn send_made(&mut self) {
        self.link.flush();
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
        if !self.found.is_empty() || self.has_unsent() {
            return Some(self.link.now);
        }
        [
            self.tcp.next_deadline(),
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

    /// Who is at the port's other end, where that is another process.
    #[must_use]
    pub fn partner(&self) -> Option<Partner> {
        self.receive.partner()
    }

    /// Everything counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.link.counters;
        counters.ip.out_requests =
            counters.udp.out_datagrams + counters.tcp.out_segments + counters.icmp.out_messages;
        let [drops, unsent] = [&self.drops[0], &self.drops[1]].map(|queue| queue.read());
        let link = &mut counters.link;
        // The stack counted what the port took.
        link.port_out_dropped = unsent.all_dropped();
        link.out_frames = link.out_frames.saturating_sub(link.port_out_dropped);
        link.port_ring_full = drops.dropped(Cause::RingFull);
        link.port_no_buffer = drops.dropped(Cause::NoBuffer);
        link.port_too_long = drops.dropped(Cause::TooLong);
        link.port_bad = drops.dropped(Cause::Bad);
        counters
    }

    /// Counts what these queues drop, receive and transmit, in place of the port that the stack was made with: of a port
    /// that another thread polls.
    pub fn count_drops_of(&mut self, queues: [Arc<QueueCounters>; 2]) {
        self.drops = queues;
    }

    /// Has the stages of datagrams and segments watched from now on, by this clock, which is read once for
    /// each burst and once or twice for each of them: [`Meta::arrived_ns`](crate::Meta::arrived_ns) becomes
    /// exact, [`Meta::queued_ns`](crate::Meta::queued_ns) known, and [`Stack::departures`] tells of what
    /// left, `room` between two looks at most.
    pub fn watch_stages(&mut self, clock: fn() -> Nanos, room: usize) {
        self.link.watched_by(clock).keep(room);
    }

    /// Ends what [`Stack::watch_stages`] began.
    pub fn unwatch_stages(&mut self) {
        match &mut self.link.watch {
            // Times that go into answers are still to be read.
            Some(watch) if watch.stamps.is_some() => watch.keep(0),
            watch => *watch = None,
        }
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

    /// Whose Ethernet address packets to an address need, a host's on the link or the gateway's, and whether
    /// it is known; where it is not it is asked for, once a second.
    ///
    /// # Errors
    /// [`StackError::NoRoute`].
    pub fn neighbor_towards(&mut self, address: IpAddr) -> Result<(IpAddr, bool), StackError> {
        let hop = (self.link.hop(address)).ok_or(StackError::NoRoute { address })?;
        Ok((hop, self.link.neighbor(hop).is_some()))
    }

    /// How many networks packets to a group may cross from now on; one without this (RFC 1112).
    pub fn limit_group_hops(&mut self, hops: u8) {
        self.link.group_hops = hops;
    }

    /// The next socket at which something changed since it was last given here: something came, there is
    /// room again, it stands, it ended. Of a socket that is told of everything is to be tried; a socket may
    /// be told of for nothing.
    pub fn ready(&mut self) -> Option<SocketId> {
        self.udp.next_ready().or_else(|| self.tcp.next_ready())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.udp.drain(&mut self.link);
        self.link.pool.free_all(&mut self.found);
    }
}
