//! The stack: one port, owned by one thread, driven by [`Stack::poll`].

mod datagrams;
mod input;
mod plan;
mod sockets;
mod streams;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use linerate_port::{
    AnyPort, AnyReceive, DropCause, PeerState, PortCapabilities, QueueCounters, RxQueue, TxQueue,
};
use linerate_record::device_timestamps::DeviceTimestamps;
use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
use linerate_sys::frames::frame_memory::FrameRegion;
use plan::{check_port, max_queued_frames};

use crate::Nanos;
use crate::addressing::StackAddressing;
use crate::config::{ChecksumMode, StackConfig};
use crate::counters::Counters;
use crate::error::StackError;
use crate::link::LinkLayer;
use crate::socket::SocketId;
use crate::stage_watch::FrameDeparture;
use crate::tcp::TcpLayer;
use crate::udp::UdpLayer;

pub(crate) use plan::frames_needed;
pub use plan::{memory_plan, port_url, ring_url};

/// Result of one poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollOutcome {
    /// Frames received from the port.
    pub received: usize,
    /// True if the poll received as many frames as it may: more may be waiting.
    pub may_have_more: bool,
}

/// A host on a port: addresses, neighbours and sockets. The [crate](crate) documentation has an
/// example.
///
/// Socket calls return [`Poll::Pending`](std::task::Poll::Pending) when they cannot proceed now:
/// poll the stack, then retry.
pub struct Stack {
    receive: AnyReceive,
    /// Frames received by [`Stack::prefetch`] between two polls, in reverse order.
    prefetched: Burst,
    memory: FrameRegion,
    link: LinkLayer,
    udp: UdpLayer,
    tcp: TcpLayer,
    capabilities: PortCapabilities,
    config: StackConfig,
    mtu: usize,
    verifies_checksums: bool,
    /// Timers and connections are left to the next poll.
    timers_postponed: bool,
    /// Drop counters of the port: receive, transmit.
    drop_counters: [Arc<QueueCounters>; 2],
}
impl Stack {
    /// Creates a stack over a port and allocates all memory that it will ever use. `memory` is the
    /// one that the port was opened with, sized by [`memory_plan`].
    ///
    /// # Errors
    /// [`StackError::Contradiction`] when the configuration requires what the port cannot do.
    pub fn new(
        port: AnyPort,
        memory: &FrameRegion,
        config: &StackConfig,
        addressing: &StackAddressing,
    ) -> Result<Self, StackError> {
        addressing.check()?;
        let capabilities = port.capabilities;
        let vnet = usize::from(capabilities.vnet_header);
        check_port(config, &capabilities, memory)?;
        let ethernet = addressing
            .ethernet
            .or(capabilities.address)
            .unwrap_or_else(|| addressing.derived_ethernet());
        let verify = config.checksum == ChecksumMode::Software || vnet > 0;
        let checksum_options = (verify, capabilities.unmarked_partial_checksums);
        let drops = [port.receive.counters(), port.transmit.counters()].map(Arc::clone);
        let queue_limit = max_queued_frames(config, memory.frame_bytes());
        let frame_bytes = usize::from(capabilities.frame_bytes.min(memory.frame_bytes()));
        Ok(Self {
            receive: port.receive,
            prefetched: Burst::with_limit(config.rx_descriptors as usize),
            link: LinkLayer::new(
                memory,
                port.transmit,
                vnet,
                addressing.with_full_capacity(),
                ethernet,
                config,
            ),
            udp: UdpLayer::new(config, queue_limit, checksum_options, addressing),
            tcp: TcpLayer::new(config, addressing, checksum_options, (vnet, frame_bytes)),
            timers_postponed: false,
            drop_counters: drops,
            memory: memory.clone(),
            mtu: config.mtu.into(),
            config: config.clone(),
            capabilities,
            verifies_checksums: verify,
        })
    }

    /// Does the stack's work: transmits waiting frames, receives up to `rx_descriptors` frames,
    /// runs timers and sends for connections. `now` is the time of the whole poll and must not
    /// decrease.
    ///
    /// When a poll received only datagrams for sockets, timers wait for the next poll, so that the
    /// application's replies leave earlier by the time that the timers take.
    #[inline]
    pub fn poll(&mut self, now: Nanos) -> PollOutcome {
        self.link.begin_poll(now);
        if std::mem::take(&mut self.timers_postponed) {
            self.run_timers();
        }
        let datagrams = self.link.counters.udp.in_datagrams;
        let budget = self.config.rx_descriptors as usize;
        let mut outcome = PollOutcome {
            received: self.prefetched.len(),
            may_have_more: false,
        };
        // A prefetch that did not fill its burst has emptied the port.
        let mut may_have_frames = outcome.received == 0 || self.prefetched.is_full();
        self.link.is_replying = true;
        while let Some(frame) = self.prefetched.pop() {
            self.input_frame(frame);
        }
        while may_have_frames && outcome.received < budget {
            let limit = (budget - outcome.received).min(BURST_FRAMES);
            let mut burst = Burst::with_limit(limit);
            let count = self.receive.receive(&mut self.link.pool, &mut burst);
            if count == 0 {
                break;
            }
            outcome.received += count;
            self.link.record_arrival();
            burst.take_front(|frame| {
                self.input_frame(frame);
                Ok(())
            });
            may_have_frames = count == limit;
        }
        self.link.is_replying = false;
        outcome.may_have_more = outcome.received >= budget;
        self.link.counters.link.in_frames += outcome.received as u64;
        let datagrams = self.link.counters.udp.in_datagrams - datagrams;
        if outcome.received > 0 && datagrams == outcome.received as u64 && !self.has_unsent() {
            self.timers_postponed = true;
            return outcome;
        }
        self.run_timers();
        if self.link.has_unsent() {
            self.link.flush();
        } else if outcome.received == 0 {
            self.link.reclaim();
        }
        outcome
    }

    /// Runs timers, and sends for whatever has something to send.
    fn run_timers(&mut self) {
        while let Some(unreachable) = self.link.poll_neighbors() {
            self.udp.report_neighbor_silent(&unreachable);
        }
        let now = self.link.now;
        self.udp.reassembly.expire(now, &mut self.link.counters);
        self.link.expire_path_mtus();
        self.udp.fragmenter.poll(&mut self.link);
        self.tcp.poll(&mut self.link);
    }

    /// Returns whether the next poll has work that no timer announces; frames of the port are
    /// received for it.
    ///
    /// For an application that spins: this call costs less than a poll, so that a frame is noticed
    /// sooner. The stack's clock advances in polls only.
    #[inline]
    pub fn prefetch(&mut self) -> bool {
        if !self.prefetched.is_empty() || self.has_unsent() {
            return true;
        }
        if self
            .receive
            .receive(&mut self.link.pool, &mut self.prefetched)
            == 0
        {
            return false;
        }
        self.link.record_arrival();
        // `pop` takes from the end, so the oldest frame goes there.
        self.prefetched.frames_mut().reverse();
        true
    }

    /// Returns the arrival time of the frames that [`Stack::prefetch`] received, if stages are
    /// watched: the next poll may use it as its time.
    #[inline]
    #[must_use]
    pub fn prefetched_at(&self) -> Option<Nanos> {
        (!self.prefetched.is_empty() && self.link.stage_watch.is_some())
            .then_some(self.link.arrived_at)
    }

    /// Returns whether something waits to be sent.
    fn has_unsent(&self) -> bool {
        self.link.has_unsent() || !self.udp.fragmenter.is_idle() || self.tcp.has_work()
    }

    /// Hands the port the frames made since the poll: datagrams only. Segments that connections
    /// still have to send are made by the next poll.
    #[inline]
    pub fn flush_frames(&mut self) {
        self.link.flush();
    }

    /// Hands the port everything that sockets have sent since the poll: for an application that
    /// does not poll again at once.
    pub fn flush(&mut self) {
        self.udp.fragmenter.poll(&mut self.link);
        self.tcp.poll(&mut self.link);
        self.link.flush();
    }

    /// Returns when the stack has work even if no frame arrives; `None`: never. The search costs
    /// time: call it before sleeping, not in each poll.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        if !self.prefetched.is_empty() || self.has_unsent() {
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
    pub fn peer_state(&self) -> Option<PeerState> {
        self.receive.peer_state()
    }

    /// Returns a snapshot of all counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.link.counters;
        counters.ip.out_requests =
            counters.udp.out_datagrams + counters.tcp.out_segments + counters.icmp.out_messages;
        let [rx_drops, tx_drops] =
            [&self.drop_counters[0], &self.drop_counters[1]].map(|queue| queue.read());
        let link = &mut counters.link;
        // The stack counts a frame as sent when the port takes it.
        link.port_out_dropped = tx_drops.total_drops();
        link.out_frames = link.out_frames.saturating_sub(link.port_out_dropped);
        link.port_ring_full = rx_drops.drops_by(DropCause::RingFull);
        link.port_no_buffer = rx_drops.drops_by(DropCause::NoBuffer);
        link.port_too_long = rx_drops.drops_by(DropCause::TooLong);
        link.port_bad = rx_drops.drops_by(DropCause::Invalid);
        counters
    }

    /// Reads drops from these queues, receive and transmit, instead of the stack's own port: for a
    /// port that another thread polls.
    pub fn set_drop_counters(&mut self, queues: [Arc<QueueCounters>; 2]) {
        self.drop_counters = queues;
    }

    /// Starts recording the stages of datagrams and segments, with a clock that is read once for
    /// each burst and once or twice for each of them.
    /// [`DatagramMeta::arrived_ns`](crate::DatagramMeta::arrived_ns) becomes exact,
    /// [`DatagramMeta::queued_ns`](crate::DatagramMeta::queued_ns) is set, and
    /// [`Stack::take_departures`] reports up to `capacity` departures between two calls.
    pub fn watch_stages(&mut self, clock: fn() -> Nanos, capacity: usize) {
        self.link.start_watch(clock).set_capacity(capacity);
    }

    /// Stops what [`Stack::watch_stages`] started.
    pub fn unwatch_stages(&mut self) {
        match &mut self.link.stage_watch {
            // Stamps for replies still need the clock.
            Some(watch) if watch.stamps.is_some() => watch.set_capacity(0),
            watch => *watch = None,
        }
    }

    /// Passes the departures since the last call to `take`; returns the number that did not fit.
    pub fn take_departures(&mut self, take: impl FnMut(FrameDeparture)) -> u64 {
        let watch = self.link.stage_watch.as_mut();
        watch.map_or(0, |watch| watch.take_departures(take))
    }

    /// Writes two times into every UDP datagram that a socket sends after it received one: arrival
    /// of the received datagram at the port, and departure of this one. In a fragmented reply the
    /// second time is that of fragmentation.
    pub fn stamp_payload(&mut self, stamps: DeviceTimestamps, clock: fn() -> Nanos) {
        self.link.start_watch(clock).stamps = Some(stamps);
    }

    /// Returns the bytes of a reply in which [`Stack::stamp_payload`] writes times.
    #[must_use]
    pub fn stamped_bytes(&self) -> Option<Range<usize>> {
        let watch = self.link.stage_watch.as_ref()?;
        watch.stamps.as_ref().map(DeviceTimestamps::byte_range)
    }

    /// Returns the port's capabilities.
    #[must_use]
    pub fn capabilities(&self) -> &PortCapabilities {
        &self.capabilities
    }

    /// Returns the configuration that the stack was created with.
    #[must_use]
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Returns the stack's addresses.
    #[must_use]
    pub fn addressing(&self) -> &StackAddressing {
        &self.link.addressing
    }

    /// Returns the stack's Ethernet address.
    #[must_use]
    pub fn ethernet_address(&self) -> [u8; 6] {
        self.link.ethernet
    }

    /// Returns the number of TCP connections in use, those that are closing included.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.tcp.connections_in_use()
    }

    /// Returns the next hop towards an address and whether its Ethernet address is known. If it is
    /// not, a request is sent, at most once a second.
    ///
    /// # Errors
    /// [`StackError::NoRoute`].
    pub fn resolve_next_hop(&mut self, address: IpAddr) -> Result<(IpAddr, bool), StackError> {
        let hop = (self.link.next_hop(address)).ok_or(StackError::NoRoute { address })?;
        Ok((hop, self.link.resolve_neighbor(hop).is_some()))
    }

    /// Sets the TTL or hop limit of packets to multicast groups; the default is 1 (RFC 1112).
    pub fn set_group_hops(&mut self, hops: u8) {
        self.link.group_hops = hops;
    }

    /// Returns the next socket with an event since it was last returned here: data received, buffer
    /// space free again, connection established or ended. Try all operations of interest on it;
    /// spurious events are possible.
    pub fn next_ready(&mut self) -> Option<SocketId> {
        self.udp.next_ready().or_else(|| self.tcp.next_ready())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.udp.free_queued(&mut self.link);
        self.link.pool.free_all(&mut self.prefetched);
    }
}
