//! The stack: one port, owned by one thread, driven by [`Stack::turn`].

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

use linerate_metric::device_timestamps::DeviceStamps;
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
use crate::stage_watch::Departure;
use crate::tcp::Tcp;
use crate::udp::Udp;
pub(crate) use plan::{LONG_FRAME_BYTES, frames_of_its_own};
use plan::{check, held_frames};
pub use plan::{memory_plan, port_url, ring_url};

/// Result of one poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Frames received from the port.
    pub received: usize,
    /// True if the poll received as many frames as it may: more may be waiting.
    pub more: bool,
}

/// A host on a port: addresses, neighbours and sockets. The [crate](crate) documentation has an
/// example.
///
/// Socket calls return [`Poll::Pending`](std::task::Poll::Pending) when they cannot proceed now:
/// poll the stack, then retry.
pub struct Stack {
    receive: AnyReceive,
    /// Frames received by [`Stack::look`] between two polls, in reverse order.
    found: Burst,
    memory: Memory,
    link: Link,
    udp: Udp,
    tcp: Tcp,
    capabilities: Capabilities,
    config: Config,
    mtu: usize,
    verify: bool,
    /// Timers and connections are left to the next poll.
    postponed: bool,
    /// Drop counters of the port: receive, transmit.
    drops: [Arc<QueueCounters>; 2],
}
impl Stack {
    /// Creates a stack over a port and allocates all memory that it will ever use. `memory` is the
    /// one that the port was opened with, sized by [`memory_plan`].
    ///
    /// # Errors
    /// [`StackError::Contradiction`] when the configuration requires what the port cannot do.
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

    /// Does the stack's work: transmits waiting frames, receives up to `rx_descriptors` frames,
    /// runs timers and sends for connections. `now` is the time of the whole poll and must not
    /// decrease.
    ///
    /// When a poll received only datagrams for sockets, timers wait for the next poll, so that the
    /// application's replies leave earlier by the time that the timers take.
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
        // A prefetch that did not fill its burst has emptied the port.
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

    /// Runs timers, and sends for whatever has something to send.
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

    /// Returns whether the next poll has work that no timer announces; frames of the port are
    /// received for it.
    ///
    /// For an application that spins: this call costs less than a poll, so that a frame is noticed
    /// sooner. The stack's clock advances in polls only.
    #[inline]
    pub fn look(&mut self) -> bool {
        if !self.found.is_empty() || self.has_unsent() {
            return true;
        }
        if self.receive.receive(&mut self.link.pool, &mut self.found) == 0 {
            return false;
        }
        self.link.arrived();
        // `pop` takes from the end, so the oldest frame goes there.
        self.found.frames_mut().reverse();
        true
    }

    /// Returns the arrival time of the frames that [`Stack::look`] received, if stages are watched:
    /// the next poll may use it as its time.
    #[inline]
    #[must_use]
    pub fn found_at(&self) -> Option<Nanos> {
        (!self.found.is_empty() && self.link.watch.is_some()).then_some(self.link.came)
    }

    /// Returns whether something waits to be sent.
    fn has_unsent(&self) -> bool {
        self.link.is_behind() || !self.udp.fragmenter.is_idle() || self.tcp.has_work()
    }

    /// Hands the port the frames made since the poll: datagrams only. Segments that connections
    /// still have to send are made by the next poll.
    #[inline]
    pub fn send_made(&mut self) {
        self.link.flush();
    }

    /// Hands the port everything that sockets have sent since the poll: for an application that
    /// does not poll again at once.
    pub fn flush(&mut self) {
        self.udp.fragmenter.work(&mut self.link);
        self.tcp.work(&mut self.link);
        self.link.flush();
    }

    /// Returns when the stack has work even if no frame arrives; `None`: never. The search costs
    /// time: call it before sleeping, not in each poll.
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

    /// Returns the descriptor to wait on (readable) instead of spinning, if the port has one.
    #[must_use]
    pub fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.receive.wait_handle()
    }

    /// Returns the time of the last poll.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.link.now
    }

    /// Reads the port's counters that only the kernel has, and checks that the port still works.
    /// Call it once an interval, and at the end.
    ///
    /// # Errors
    /// The reason why no frame will be received or sent any more.
    pub fn refresh(&mut self) -> Result<(), StackError> {
        self.receive.refresh()?;
        self.link.transmit_mut().refresh()?;
        Ok(())
    }

    /// Returns the state of the peer at the port's other end, if that is another process.
    #[must_use]
    pub fn partner(&self) -> Option<Partner> {
        self.receive.partner()
    }

    /// Returns a snapshot of all counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.link.counters;
        counters.ip.out_requests =
            counters.udp.out_datagrams + counters.tcp.out_segments + counters.icmp.out_messages;
        let [drops, unsent] = [&self.drops[0], &self.drops[1]].map(|queue| queue.read());
        let link = &mut counters.link;
        // The stack counts a frame as sent when the port takes it.
        link.port_out_dropped = unsent.all_dropped();
        link.out_frames = link.out_frames.saturating_sub(link.port_out_dropped);
        link.port_ring_full = drops.dropped(Cause::RingFull);
        link.port_no_buffer = drops.dropped(Cause::NoBuffer);
        link.port_too_long = drops.dropped(Cause::TooLong);
        link.port_bad = drops.dropped(Cause::Bad);
        counters
    }

    /// Reads drops from these queues, receive and transmit, instead of the stack's own port: for a
    /// port that another thread polls.
    pub fn count_drops_of(&mut self, queues: [Arc<QueueCounters>; 2]) {
        self.drops = queues;
    }

    /// Starts recording the stages of datagrams and segments, with a clock that is read once for
    /// each burst and once or twice for each of them. [`Meta::arrived_ns`](crate::Meta::arrived_ns)
    /// becomes exact, [`Meta::queued_ns`](crate::Meta::queued_ns) is set, and [`Stack::departures`]
    /// reports up to `room` departures between two calls.
    pub fn watch_stages(&mut self, clock: fn() -> Nanos, room: usize) {
        self.link.watched_by(clock).keep(room);
    }

    /// Stops what [`Stack::watch_stages`] started.
    pub fn unwatch_stages(&mut self) {
        match &mut self.link.watch {
            // Stamps for replies still need the clock.
            Some(watch) if watch.stamps.is_some() => watch.keep(0),
            watch => *watch = None,
        }
    }

    /// Passes the departures since the last call to `take`; returns the number that did not fit.
    pub fn departures(&mut self, take: impl FnMut(Departure)) -> u64 {
        let watch = self.link.watch.as_mut();
        watch.map_or(0, |watch| watch.fetch(take))
    }

    /// Writes two times into every UDP datagram that a socket sends after it received one: arrival
    /// of the received datagram at the port, and departure of this one. In a fragmented reply the
    /// second time is that of fragmentation.
    pub fn stamp_payload(&mut self, stamps: DeviceStamps, clock: fn() -> Nanos) {
        self.link.watched_by(clock).stamps = Some(stamps);
    }

    /// Returns the port's capabilities.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the configuration that the stack was created with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the stack's addresses.
    #[must_use]
    pub fn addressing(&self) -> &Addressing {
        &self.link.own
    }

    /// Returns the stack's Ethernet address.
    #[must_use]
    pub fn ethernet(&self) -> [u8; 6] {
        self.link.ethernet
    }

    /// Returns the number of TCP connections in use, those that are closing included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.tcp.in_use()
    }

    /// Returns the next hop towards an address and whether its Ethernet address is known. If it is
    /// not, a request is sent, at most once a second.
    ///
    /// # Errors
    /// [`StackError::NoRoute`].
    pub fn neighbor_towards(&mut self, address: IpAddr) -> Result<(IpAddr, bool), StackError> {
        let hop = (self.link.hop(address)).ok_or(StackError::NoRoute { address })?;
        Ok((hop, self.link.neighbor(hop).is_some()))
    }

    /// Sets the TTL or hop limit of packets to multicast groups; the default is 1 (RFC 1112).
    pub fn limit_group_hops(&mut self, hops: u8) {
        self.link.group_hops = hops;
    }

    /// Returns the next socket with an event since it was last returned here: data received, buffer
    /// space free again, connection established or ended. Try all operations of interest on it;
    /// spurious events are possible.
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
