//! View of one direction of a run.

use std::net::IpAddr;

use linerate_record::facts::{HostFacts, InterfaceFacts, Role};
use linerate_record::ids::LossPoint;
use linerate_record::plan::{Direction, Plan, TransportProtocol, WaitMode};
use linerate_record::record::{
    DirectionFigures, FlowEnd, Interval, Record, SocketFacts, StreamFigures, Summary, TcpFacts,
};

use linerate_record::stack::STACK_NAME;

use super::ThreadTime;

/// Ethernet header in bytes per frame.
const ETHERNET_HEADER_BYTES: f64 = 14.0;

/// TCP header, and the timestamp option (RFC 7323) if both ends send it.
const TCP_HEADER_BYTES: f64 = 20.0;
const TCP_TIMESTAMPS_BYTES: f64 = 12.0;

/// Share of reordered segments from which the minimum round-trip time is too low for the path: with
/// 5 % of the segments ahead of others, 0.1 ms was measured on a path of 4 ms. Streams with queue
/// losses report 0.03 %.
pub(crate) const REORDERED_SHARE: f64 = 0.005;

/// UDP header in bytes.
const UDP_HEADER_BYTES: f64 = 8.0;

/// IPv6 fragment header (RFC 8200, section 4.5).
const FRAGMENT_HEADER_BYTES: f64 = 8.0;

/// Unit of fragment sizes: all fragments but the last carry a multiple of it (RFC 791, RFC 8200).
const FRAGMENT_UNIT_BYTES: f64 = 8.0;

/// Counters of frames that our stack's port received and that were not packets for the stack.
const NON_PACKET_COUNTERS: &[&str] = &[
    "in_not_ours",
    "in_unknown_protocols",
    "in_neighbor_requests",
    "in_neighbor_replies",
];

/// Bytes of a frame on the wire in addition to header and payload: preamble, FCS and gap (IEEE
/// 802.3).
const WIRE_OVERHEAD_BYTES: f64 = 8.0 + 4.0 + 12.0;

/// Read-only view of one direction of a run.
pub struct DirectionView<'a> {
    pub(super) record: &'a Record,
    /// Direction of the payload.
    pub direction: Direction,
    /// Figures of the direction.
    pub figures: &'a DirectionFigures,
    /// End that sends the payload, or the requests.
    pub sender: Role,
    /// End that receives the payload, or sends the responses.
    pub receiver: Role,
}

/// TCP_INFO of a direction's senders, over the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TcpSummary {
    /// Share of the time with data to send; absent: not reported.
    pub busy_share: Option<f64>,
    /// Share of the time limited by the receiver's window.
    pub receive_window_limited: f64,
    /// Share of the time limited by the send buffer, as far as the kernel detects it.
    pub send_buffer_limited: f64,
    /// Mean smoothed round-trip time.
    pub rtt_ns: f64,
    /// Minimum round-trip time.
    pub min_rtt_ns: f64,
    /// Congestion window of all flows, in bytes.
    pub cwnd_bytes: f64,
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Retransmitted segments that the receiver already had.
    pub spurious_retransmits: u64,
    /// Detected reordering events.
    pub reordering_events: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Congestion marks (ECN).
    pub marked: u64,
    /// Maximum segment size in bytes.
    pub mss_bytes: f64,
    /// Number of payload segments, from the bytes and the segment size.
    pub segments: f64,
}

impl TcpSummary {
    /// Returns the share of lost segments: retransmitted ones that the receiver did not have.
    #[must_use]
    pub fn loss_share(&self) -> f64 {
        let lost = self.retransmits.saturating_sub(self.spurious_retransmits) as f64;
        lost / (self.segments + lost).max(1.0)
    }

    /// Returns the share of retransmitted segments.
    #[must_use]
    pub fn retransmit_share(&self) -> f64 {
        self.retransmits as f64 / (self.segments + self.retransmits as f64).max(1.0)
    }

    /// Returns true if the sender had data in flight all the time, and no window or buffer limited
    /// it.
    #[must_use]
    pub fn is_network_limited(&self) -> bool {
        let busy = self.busy_share.is_some_and(|busy| busy > MIN_BUSY_SHARE);
        busy && self.receive_window_limited < MAX_WINDOW_LIMITED_SHARE
            && self.send_buffer_limited < MAX_WINDOW_LIMITED_SHARE
    }

    /// Returns true if so many segments are reordered that the minimum round-trip time is theirs.
    #[must_use]
    pub fn is_reordered(&self) -> bool {
        self.reordering_events > 0
            && self.reordering_events as f64 >= REORDERED_SHARE * self.segments
    }

    /// Returns the share of queueing in the round-trip time: from 0 (none or unknown) towards 1.
    #[must_use]
    pub fn queueing_share(&self) -> f64 {
        match self.rtt_ns > 0.0 && !self.is_reordered() {
            true => (1.0 - self.min_rtt_ns / self.rtt_ns).clamp(0.0, 1.0),
            false => 0.0,
        }
    }
}

impl<'a> DirectionView<'a> {
    pub(super) fn new(record: &'a Record, figures: &'a DirectionFigures) -> Self {
        let (sender, receiver) = super::roles_of(record.plan.kind, figures.direction);
        Self {
            record,
            direction: figures.direction,
            figures,
            sender,
            receiver,
        }
    }

    /// Returns the plan of the run.
    #[must_use]
    pub fn plan(&self) -> &'a Plan {
        &self.record.plan
    }

    /// Returns the network stack of an end.
    #[must_use]
    pub fn stack_name(&self, role: Role) -> &'a str {
        match role {
            Role::Client => &self.record.plan.stack.client,
            Role::Server => &self.record.plan.stack.server,
        }
    }

    /// Returns the figures without the flows.
    #[must_use]
    pub fn summary(&self) -> &'a Summary {
        &self.figures.summary
    }

    /// Returns the goodput in bit/s.
    #[must_use]
    pub fn goodput(&self) -> Option<f64> {
        self.summary().goodput_bps
    }

    /// Returns the measured time in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.summary().duration_ns.unwrap_or(0) as f64 / 1e9
    }

    /// Returns the time of the sender in seconds.
    #[must_use]
    pub fn send_seconds(&self) -> f64 {
        self.figures.send_duration_ns().unwrap_or(0) as f64 / 1e9
    }

    /// Returns the host of an end.
    #[must_use]
    pub fn host(&self, role: Role) -> Option<&'a HostFacts> {
        super::host(self.record, role)
    }

    /// Returns the sending host's interface towards the other end; `None` for our stack.
    #[must_use]
    pub fn sender_interface(&self) -> Option<&'a InterfaceFacts> {
        self.kernel_host(self.sender)?.interface.as_ref()
    }

    /// Returns the receiving host's interface towards the other end; `None` for our stack.
    #[must_use]
    pub fn receiver_interface(&self) -> Option<&'a InterfaceFacts> {
        self.kernel_host(self.receiver)?.interface.as_ref()
    }

    /// Returns true if our stack carries the payload at an end.
    #[must_use]
    pub fn uses_netstack(&self, role: Role) -> bool {
        self.stack_name(role) == STACK_NAME
    }

    fn kernel_host(&self, role: Role) -> Option<&'a HostFacts> {
        self.host(role).filter(|_| !self.uses_netstack(role))
    }

    /// Returns the time of the threads at one end of this direction.
    #[must_use]
    pub fn thread_time(&self, part: FlowEnd) -> Option<ThreadTime> {
        let role = match part {
            FlowEnd::Sender => self.sender,
            FlowEnd::Receiver => self.receiver,
        };
        let cost = super::cpu(self.record, role)?;
        let own_threads = cost.threads.iter();
        let own_threads = own_threads
            .filter(|thread| thread.direction == self.direction && thread.flow_end == part);
        let time = ThreadTime::sum(own_threads)?;
        // A UDP receiver keeps listening for late datagrams after the last one.
        let silence = match (part, self.plan().protocol) {
            (FlowEnd::Receiver, TransportProtocol::Udp) => self
                .thread_time(FlowEnd::Sender)
                .map_or(0, |sender| time.wall_ns.saturating_sub(sender.wall_ns)),
            _ => 0,
        };
        let time = time.without_silence(silence);
        Some(match self.uses_netstack(role) {
            true => time.of_polling_threads(),
            false => time,
        })
    }

    /// Returns true if an end polls instead of sleeping: then its load carries no information.
    #[must_use]
    pub fn is_polling(&self, role: Role) -> bool {
        let polls = matches!(
            super::wait(self.plan(), role),
            Some(WaitMode::Spin | WaitMode::Interval { .. })
        );
        polls || self.uses_netstack(role)
    }

    /// Returns true if an end blocks when it can, and moves so much data per sleep and per call
    /// that its processor time is that of the bytes.
    #[must_use]
    pub fn has_large_chunks(&self, part: FlowEnd) -> bool {
        let role = match part {
            FlowEnd::Sender => self.sender,
            FlowEnd::Receiver => self.receiver,
        };
        let Some(time) = self.thread_time(part).filter(|_| !self.is_polling(role)) else {
            return false;
        };
        // Small buffers make small chunks, whatever the size of the calls.
        let capacity_bytes = [self.send_buffer(), self.receive_buffer()];
        if capacity_bytes
            .into_iter()
            .flatten()
            .any(|capacity_bytes| capacity_bytes < 2 * LARGE_CHUNK_BYTES)
        {
            return false;
        }
        let summary = self.summary();
        let bytes = summary.bytes_received.or(summary.bytes_sent).unwrap_or(0);
        let chunks = time.sleeps.max(time.calls).max(1);
        bytes / chunks >= LARGE_CHUNK_BYTES
    }

    /// Returns the flows.
    #[must_use]
    pub fn streams(&self) -> &'a [StreamFigures] {
        &self.figures.streams
    }

    /// Returns the recorded sending sockets.
    pub fn senders(&self) -> impl Iterator<Item = &'a SocketFacts> {
        self.figures
            .streams
            .iter()
            .filter_map(|stream| stream.sender.as_ref())
    }

    /// Returns the recorded receiving sockets.
    pub fn receivers(&self) -> impl Iterator<Item = &'a SocketFacts> {
        self.figures
            .streams
            .iter()
            .filter_map(|stream| stream.receiver.as_ref())
    }

    /// Returns the smallest send buffer granted to a flow.
    #[must_use]
    pub fn send_buffer(&self) -> Option<u64> {
        self.senders()
            .filter_map(|socket| socket.send_buffer_bytes)
            .min()
    }

    /// Returns the smallest receive buffer granted to a flow.
    #[must_use]
    pub fn receive_buffer(&self) -> Option<u64> {
        self.receivers()
            .filter_map(|socket| socket.receive_buffer_bytes)
            .min()
    }

    /// Returns the congestion control of the flows.
    #[must_use]
    pub fn congestion_control(&self) -> Option<&'a str> {
        self.senders()
            .find_map(|socket| socket.congestion_control.as_deref())
            .or(self.record.plan.congestion_control.as_deref())
    }

    /// Returns the intervals after the omitted time.
    pub fn intervals(&self) -> impl Iterator<Item = &'a Interval> {
        let direction = self.direction;
        let intervals = self.record.intervals.iter();
        intervals.filter(move |interval| {
            interval.direction == direction
                && !interval.omitted
                && interval.end_ns > interval.start_ns
        })
    }

    /// Returns TCP_INFO; `None` if it was not recorded.
    #[must_use]
    pub fn tcp(&self) -> Option<TcpSummary> {
        let values: Vec<(&Interval, _)> = self
            .intervals()
            .filter_map(|interval| Some((interval, interval.tcp.as_ref()?)))
            .collect();
        let last: Vec<&TcpFacts> = self
            .senders()
            .filter_map(|socket| socket.tcp.as_ref())
            .collect();
        let mut tcp = match values.is_empty() {
            false => tcp_from_intervals(&values),
            true => {
                // TCP_INFO counts from the connection on.
                let omitted = self.plan().omit_ns as f64 / 1e9;
                tcp_from_sockets(&last, self.send_seconds() + omitted)?
            }
        };
        let mss = last.iter().map(|state| state.mss_bytes).min();
        tcp.mss_bytes = mss.filter(|&mss| mss > 0).unwrap_or(1448) as f64;
        if let Some(retransmits) = self.summary().retransmits {
            tcp.retransmits = retransmits;
            tcp.spurious_retransmits = tcp.spurious_retransmits.min(retransmits);
        }
        let bytes = self.summary().bytes_received.or(self.summary().bytes_sent);
        tcp.segments = bytes.unwrap_or(0) as f64 / tcp.mss_bytes;
        Some(tcp)
    }

    /// Returns the segments that our stack sent on a stream, and those that it retransmitted.
    #[must_use]
    pub fn netstack_segments(&self) -> Option<(u64, u64)> {
        let is_netstack_tcp =
            self.uses_netstack(self.sender) && self.plan().protocol == TransportProtocol::Tcp;
        let stack = self
            .host(self.sender)?
            .stack
            .as_ref()
            .filter(|_| is_netstack_tcp)?;
        let count = |name| stack.counter("tcp", name);
        Some((count("out_segments"), count("retransmitted_segments")))
    }

    /// Returns the frames dropped at our stack's port for lack of a free descriptor or buffer, if
    /// our stack receives.
    #[must_use]
    pub fn ring_full_frames(&self) -> u64 {
        self.netstack_link_counter("port_ring_full") + self.netstack_link_counter("port_no_buffer")
    }

    /// Returns the frames that our stack's port dropped because they were too long, if our stack
    /// receives. The stack reports a caveat for them.
    #[must_use]
    pub fn oversize_frames(&self) -> u64 {
        self.netstack_link_counter("port_too_long")
    }

    /// Returns a link counter of our stack, if it receives.
    fn netstack_link_counter(&self, counter: &str) -> u64 {
        let host = self.host(self.receiver);
        let stack = host.and_then(|host| host.stack.as_ref());
        let stack = stack.filter(|_| self.uses_netstack(self.receiver));
        stack.map_or(0, |stack| stack.counter("link", counter))
    }

    /// Returns the frames that the sending kernel's interface transmitted and our stack's port did
    /// not receive. `None` if one of them has no counter, if a frame may have several segments, or
    /// if the ends are two machines, whose link carries other traffic as well. Also `None` if the
    /// received frames exceed the sent ones by more than half of the `lost` ones: then frames of
    /// other senders are included.
    #[must_use]
    pub fn missing_frames(&self, lost: u64) -> Option<u64> {
        if !self.is_one_machine() {
            return None;
        }
        let stack = self.host(self.receiver)?.stack.as_ref();
        let stack = stack.filter(|_| self.uses_netstack(self.receiver))?;
        let sends = self.sender_interface()?;
        let is_segmented = sends.offloads.get(self.segmentation_offload()) == Some(&false);
        let host = self.sender.as_str();
        let mut counters = self.record.counters.iter();
        let sent = counters.find(|entry| {
            entry.counter == "tx_packets"
                && entry.host == host
                && entry.interface.as_deref() == Some(sends.name.as_str())
        })?;
        let non_packets = NON_PACKET_COUNTERS
            .iter()
            .map(|name| stack.counter("link", name));
        let arrived = stack.counter("link", "in_frames");
        let arrived = arrived.saturating_sub(non_packets.sum());
        let is_only_this_run = arrived <= sent.increase() + lost / 2;
        (is_segmented && is_only_this_run).then(|| sent.increase().saturating_sub(arrived))
    }

    /// Returns the MTU of the sending interface in bytes.
    #[must_use]
    pub fn mtu(&self) -> f64 {
        let mtu = self.sender_interface().and_then(|interface| interface.mtu);
        f64::from(mtu.unwrap_or(1500))
    }

    /// Returns true if the packets are IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        let mut sockets = self.senders().chain(self.receivers());
        let values =
            sockets.find_map(|socket| socket.remote.as_deref().or(socket.local.as_deref()));
        let address = super::strip_port(values.unwrap_or(&self.plan().host));
        // The standard library does not parse addresses with a zone.
        let address = address.split('%').next().unwrap_or(address);
        let parsed = address.parse::<IpAddr>();
        parsed.is_ok_and(|address| address.to_canonical().is_ipv6())
    }

    /// Returns the offload that segments TCP of the direction's family.
    #[must_use]
    pub fn segmentation_offload(&self) -> &'static str {
        match self.is_ipv6() {
            true => "tx-tcp6-segmentation",
            false => "tx-tcp-segmentation",
        }
    }

    /// Returns the size of the IP header in bytes.
    fn ip_header(&self) -> f64 {
        if self.is_ipv6() { 40.0 } else { 20.0 }
    }

    /// Returns the size of the TCP header with options in bytes: kernels send timestamps unless one
    /// of them has them disabled.
    fn tcp_header(&self) -> f64 {
        let is_off = |role| {
            let host = self.kernel_host(role);
            let stamps = host.and_then(|host| host.sysctls.get("net.ipv4.tcp_timestamps"));
            stamps.is_some_and(|stamps| stamps == "0")
        };
        match is_off(Role::Client) || is_off(Role::Server) {
            true => TCP_HEADER_BYTES,
            false => TCP_HEADER_BYTES + TCP_TIMESTAMPS_BYTES,
        }
    }

    /// Returns the size of a TCP frame without payload in bytes.
    pub(super) fn empty_frame(&self) -> f64 {
        ETHERNET_HEADER_BYTES + self.ip_header() + self.tcp_header()
    }

    /// Returns the size of a frame full of payload in bytes.
    pub(super) fn full_frame(&self) -> f64 {
        match self.packet_bytes() {
            Some(packet) => ETHERNET_HEADER_BYTES + packet,
            None => self.empty_frame() + self.tcp().map_or(1448.0, |tcp| tcp.mss_bytes),
        }
    }

    /// Returns the largest UDP packet in bytes; `None` for TCP, whose segment size depends on the
    /// peer.
    #[must_use]
    pub fn packet_bytes(&self) -> Option<f64> {
        let plan = self.plan();
        let full_bytes = plan.payload_bytes as f64 + UDP_HEADER_BYTES + self.ip_header();
        (plan.protocol == TransportProtocol::Udp).then(|| full_bytes.min(self.mtu()))
    }

    /// Returns the number of IP packets per datagram; 1 for TCP.
    #[must_use]
    pub fn fragments(&self) -> f64 {
        let plan = self.plan();
        let full_bytes = plan.payload_bytes as f64 + UDP_HEADER_BYTES;
        let capacity_bytes = self.mtu() - self.ip_header();
        if plan.protocol == TransportProtocol::Tcp || full_bytes <= capacity_bytes {
            return 1.0;
        }
        let capacity_bytes = if self.is_ipv6() {
            capacity_bytes - FRAGMENT_HEADER_BYTES
        } else {
            capacity_bytes
        };
        let each = (capacity_bytes / FRAGMENT_UNIT_BYTES).floor().max(1.0) * FRAGMENT_UNIT_BYTES;
        // The last fragment need not be a multiple of the unit.
        1.0 + ((full_bytes - capacity_bytes) / each).ceil().max(1.0)
    }

    /// Returns the bits on the wire per payload bit: headers included, plus `wire` bytes per frame.
    fn overhead(&self, wire: f64) -> f64 {
        let plan = self.plan();
        let headers = ETHERNET_HEADER_BYTES + self.ip_header();
        match plan.protocol {
            TransportProtocol::Tcp => {
                let mss = self.tcp().map_or(1448.0, |tcp| tcp.mss_bytes);
                // A write below the segment size may be sent alone; most are coalesced.
                (mss + headers + self.tcp_header() + wire) / mss
            }
            TransportProtocol::Udp => {
                let payload = (plan.payload_bytes as f64).max(1.0);
                let packets = self.fragments();
                let fragment = if packets > 1.0 && self.is_ipv6() {
                    FRAGMENT_HEADER_BYTES
                } else {
                    0.0
                };
                let frame = payload + UDP_HEADER_BYTES + packets * (headers + fragment + wire);
                // Frames have at least 60 bytes (IEEE 802.3), 64 with FCS.
                frame.max(60.0 + wire) / payload
            }
        }
    }

    /// Returns the received rate in bit/s with Ethernet headers, as token buckets count.
    #[must_use]
    pub fn l2_bps(&self) -> Option<f64> {
        Some(self.goodput()? * self.overhead(0.0))
    }

    /// Returns the received rate in bit/s on the wire.
    #[must_use]
    pub fn l1_bps(&self) -> Option<f64> {
        Some(self.goodput()? * self.overhead(WIRE_OVERHEAD_BYTES))
    }

    /// Returns the speed of the slower link in bit/s.
    #[must_use]
    pub fn line_bps(&self) -> Option<u64> {
        let speed = |interface: Option<&InterfaceFacts>| interface?.speed_bps;
        match (
            speed(self.sender_interface()),
            speed(self.receiver_interface()),
        ) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Returns the received rate over the speed of the slower link.
    #[must_use]
    pub fn line_share(&self) -> Option<f64> {
        Some(self.l1_bps()? / self.line_bps()? as f64)
    }

    /// Returns true if the path is saturated: a known rate is used up, or its queues are full while
    /// both ends have idle time.
    #[must_use]
    pub fn fills_path(&self) -> bool {
        self.line_share().is_some_and(|share| share >= FULL_SHARE)
            || self.shaper_share().is_some_and(|share| share >= FULL_SHARE)
            || self.hidden_bottleneck_bps().is_some()
    }

    /// Returns true if almost only a full congestion window limited the sender, and its data was
    /// acknowledged as fast as a long path permits. Then no thread delayed it, however long one
    /// waited for a core. TCP_INFO counts a sender as busy whenever data is in flight, even with a
    /// window that is not full.
    #[must_use]
    pub fn is_cwnd_limited(&self) -> bool {
        let is_limited = |tcp: TcpSummary| {
            let limited_share = tcp.busy_share.unwrap_or(0.0)
                - tcp.receive_window_limited
                - tcp.send_buffer_limited;
            let prompt = !tcp.is_reordered() && tcp.rtt_ns <= PROMPT_ACK_RATIO * tcp.min_rtt_ns;
            let in_flight = self.goodput().unwrap_or(0.0) / 8.0 * tcp.rtt_ns / 1e9;
            let is_full = in_flight >= FULL_WINDOW_SHARE * tcp.cwnd_bytes;
            limited_share >= CWND_LIMITED_SHARE
                && is_full
                && prompt
                && tcp.min_rtt_ns > STANDING_QUEUE_NS
        };
        self.plan().protocol == TransportProtocol::Tcp && self.tcp().is_some_and(is_limited)
    }

    /// Returns the payload rate of a hidden bottleneck in bit/s: TCP has a standing queue, its rate
    /// is steady, and both ends have idle time.
    #[must_use]
    pub fn hidden_bottleneck_bps(&self) -> Option<f64> {
        if self.plan().protocol != TransportProtocol::Tcp || self.plan().rate_bps.is_some() {
            return None;
        }
        let tcp = self.tcp()?;
        let free = |part| {
            self.thread_time(part)
                .is_some_and(|time| time.free_share() > MIN_IDLE_END_SHARE)
        };
        // A saturated receiver causes a steady rate as well; the times of another tool are unknown.
        let reads = self.thread_time(FlowEnd::Receiver).is_none() || free(FlowEnd::Receiver);
        let waiting = tcp.rtt_ns - tcp.min_rtt_ns;
        let queue = tcp.queueing_share() > MIN_STANDING_QUEUE_SHARE && waiting > STANDING_QUEUE_NS;
        // A steady rate needs more than one interval.
        let steady = self.interval_rates().len() > PLATEAU_INTERVALS
            && self.rate_spread()? < MAX_QUEUED_RATE_SPREAD;
        // Between two ends of one machine every rate limiter of this size is visible.
        let one_machine = self.is_one_machine();
        if one_machine && self.goodput()? > MAX_HIDDEN_SHAPER_BPS || self.is_loss_limited() {
            return None;
        }
        (queue && tcp.is_network_limited() && free(FlowEnd::Sender) && reads && steady)
            .then(|| self.goodput())
            .flatten()
    }

    /// Returns the spread of the interval rates without the first: interquartile range over median.
    #[must_use]
    pub fn rate_spread(&self) -> Option<f64> {
        let mut rates: Vec<f64> = self.interval_rates().into_iter().skip(1).collect();
        if rates.len() < 2 {
            return Some(0.0);
        }
        rates.sort_by(f64::total_cmp);
        // Too few intervals for quartiles: half of their full range.
        if let (Some(least), Some(most), true) = (rates.first(), rates.last(), rates.len() < 8) {
            let middle = rates[rates.len() / 2].max(1.0);
            return Some((most - least) / 2.0 / middle);
        }
        let at = |share: f64| rates[((rates.len() - 1) as f64 * share).round() as usize];
        Some((at(0.75) - at(0.25)) / at(0.5).max(1.0))
    }

    /// Returns the payload rate of each interval in bit/s.
    #[must_use]
    pub fn interval_rates(&self) -> Vec<f64> {
        let rate = |interval: &Interval| {
            interval.bytes as f64 * 8e9 / (interval.end_ns - interval.start_ns) as f64
        };
        self.intervals().map(rate).collect()
    }

    /// Returns the datagrams of this direction that were lost at a place.
    #[must_use]
    pub fn lost_at(&self, point: LossPoint) -> u64 {
        let losses = self.record.losses.iter();
        losses
            .filter(|loss| loss.direction == self.direction && loss.place == point)
            .map(|loss| loss.packets)
            .sum()
    }

    /// Returns the sends for which the kernel had no route to the peer.
    #[must_use]
    pub fn unroutable(&self) -> u64 {
        let values = self.senders().filter_map(|socket| socket.unroutable);
        values.map(u64::from).sum()
    }

    /// Returns the datagrams dropped because the socket buffer was full. Those that waited for a
    /// missing route are not included.
    #[must_use]
    pub fn sender_socket_drops(&self) -> u64 {
        match self.unroutable() {
            0 => self.lost_at(LossPoint::SenderSocket),
            _ => 0,
        }
    }

    /// Returns the datagrams that got a sequence number.
    #[must_use]
    pub fn packets_sent(&self) -> f64 {
        let summary = self.summary();
        let sent = summary.packets_sent.or(summary.packets_received);
        sent.unwrap_or(0).max(1) as f64
    }

    /// Returns the datagrams that left the sender's socket: those with a number, without those for
    /// which it was full.
    fn packets_on_path(&self) -> f64 {
        (self.packets_sent() - self.summary().unsent.unwrap_or(0) as f64).max(1.0)
    }

    /// Returns the share of the datagrams lost at a place.
    #[must_use]
    pub fn lost_share(&self, point: LossPoint) -> f64 {
        let reached = match point {
            LossPoint::SenderSocket => self.packets_sent(),
            _ => self.packets_on_path(),
        };
        self.lost_at(point) as f64 / reached
    }

    /// Returns the approximate number of packets that crossed the path in this direction.
    #[must_use]
    pub fn path_packets(&self) -> f64 {
        match self.plan().protocol {
            TransportProtocol::Udp => self.packets_on_path() * self.fragments(),
            TransportProtocol::Tcp => {
                let bytes = self.summary().bytes_received.unwrap_or(0) as f64;
                bytes / self.tcp().map_or(1448.0, |tcp| tcp.mss_bytes)
            }
        }
    }
}

/// Highest rate of a hidden limit between two ends of one machine without a qdisc, bit/s: programs
/// that emulate a link carry less.
pub(crate) const MAX_HIDDEN_SHAPER_BPS: f64 = 5e9;

/// Chunk size in bytes from which the bytes cost more than the fixed cost of a chunk.
pub(crate) const LARGE_CHUNK_BYTES: u64 = 32 << 10;

/// Intervals after the first one that must have equal rates for a plateau.
pub(crate) const PLATEAU_INTERVALS: usize = 2;

/// Share of a known rate from which the path is saturated; the rest is start and end of the run.
pub(crate) const FULL_SHARE: f64 = 0.9;

/// Share of the time limited by the congestion window alone from which nothing else limits the
/// sender.
pub(crate) const CWND_LIMITED_SHARE: f64 = 0.85;

/// Data in flight over congestion window from which the window is full: 0.99 to 1.01 was measured
/// for streams limited by it, 0.42 to 0.48 for others.
pub(crate) const FULL_WINDOW_SHARE: f64 = 0.8;

/// Mean over minimum round-trip time up to which acknowledgements are prompt: 1.02 was measured
/// over 60 ms with a spinning receiver that waited for its core half of the time.
pub(crate) const PROMPT_ACK_RATIO: f64 = 1.25;

/// Share of the time with data in flight, and largest share limited by a window or buffer, of a
/// sender that the network limits.
pub(crate) const MIN_BUSY_SHARE: f64 = 0.85;
pub(crate) const MAX_WINDOW_LIMITED_SHARE: f64 = 0.3;

/// Idle time of an end from which it is not the limit.
pub(crate) const MIN_IDLE_END_SHARE: f64 = 0.3;

/// Share of queueing in the round-trip time of a standing queue, and largest spread of the rates in
/// front of a hidden bottleneck.
pub(crate) const MIN_STANDING_QUEUE_SHARE: f64 = 0.6;
pub(crate) const MAX_QUEUED_RATE_SPREAD: f64 = 0.15;

/// Queueing delay from which a standing queue is in the network: the queues of both ends on a
/// 2-core VM stay below it.
pub(crate) const STANDING_QUEUE_NS: f64 = 700_000.0;

fn tcp_from_intervals(
    intervals: &[(&Interval, &linerate_record::cost::TcpInterval)],
) -> TcpSummary {
    let length = |interval: &Interval| (interval.end_ns - interval.start_ns) as f64;
    let total_ns: f64 = intervals.iter().map(|(interval, _)| length(interval)).sum();
    let mean = |read: &dyn Fn(&linerate_record::cost::TcpInterval) -> Option<f64>| {
        let sum = intervals
            .iter()
            .map(|(interval, tcp)| Some(read(tcp)? * length(interval)));
        let sum: Option<f64> = sum.sum();
        Some(sum? / total_ns.max(1.0))
    };
    let sum = |read: &dyn Fn(&linerate_record::cost::TcpInterval) -> Option<u64>| {
        intervals.iter().filter_map(|(_, tcp)| read(tcp)).sum()
    };
    let least = intervals.iter().filter_map(|(_, tcp)| tcp.min_rtt_ns).min();
    let rtt_ns = mean(&|tcp| Some(tcp.rtt_ns as f64)).unwrap_or(0.0);
    TcpSummary {
        busy_share: mean(&|tcp| tcp.busy),
        receive_window_limited: mean(&|tcp| tcp.receive_window_limited).unwrap_or(0.0),
        send_buffer_limited: mean(&|tcp| tcp.send_buffer_limited).unwrap_or(0.0),
        rtt_ns,
        min_rtt_ns: least.map_or(rtt_ns, |least| least as f64),
        cwnd_bytes: mean(&|tcp| Some(tcp.cwnd_bytes as f64)).unwrap_or(0.0),
        retransmits: sum(&|tcp| Some(tcp.retransmits)),
        spurious_retransmits: sum(&|tcp| tcp.spurious_retransmits),
        reordering_events: sum(&|tcp| tcp.reordering_seen),
        timeouts: sum(&|tcp| tcp.timeouts),
        marked: sum(&|tcp| tcp.marked),
        mss_bytes: 0.0,
        segments: 0.0,
    }
}

fn tcp_from_sockets(last: &[&TcpFacts], seconds: f64) -> Option<TcpSummary> {
    if last.is_empty() {
        return None;
    }
    let flows = last.len() as f64;
    let total_ns = (seconds * 1e9).max(1.0);
    let share = |read: fn(&TcpFacts) -> Option<u64>| {
        let sum: Option<u64> = last.iter().map(|state| read(state)).sum();
        sum.map(|sum| (sum as f64 / total_ns / flows).min(1.0))
    };
    let sum =
        |read: fn(&TcpFacts) -> Option<u64>| last.iter().filter_map(|state| read(state)).sum();
    let rtt_ns = last.iter().map(|state| state.rtt_ns as f64).sum::<f64>() / flows;
    let least = last.iter().filter_map(|state| state.min_rtt_ns).min();
    Some(TcpSummary {
        busy_share: share(|state| state.busy_ns),
        receive_window_limited: share(|state| state.receive_window_limited_ns).unwrap_or(0.0),
        send_buffer_limited: share(|state| state.send_buffer_limited_ns).unwrap_or(0.0),
        rtt_ns,
        min_rtt_ns: least.map_or(rtt_ns, |least| least as f64),
        cwnd_bytes: (last.iter())
            .map(|state| (state.cwnd_segments * state.mss_bytes) as f64)
            .sum(),
        retransmits: sum(|state| Some(state.retransmits)),
        spurious_retransmits: sum(|state| state.spurious_retransmits),
        reordering_events: sum(|state| state.reordering_seen),
        timeouts: sum(|state| state.timeouts),
        marked: sum(|state| state.marked),
        mss_bytes: 0.0,
        segments: 0.0,
    })
}
