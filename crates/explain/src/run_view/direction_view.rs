//! View of one direction of a run.

use std::net::IpAddr;

use linerate_metric::facts::{Host, Interface, Role};
use linerate_metric::plan::{Direction, Plan, Protocol, Wait};
use linerate_metric::record::{
    CountedAt, DirectionFigures, Interval, Record, Socket, Stream, Summary, TcpState,
};

use linerate_metric::stack::STACK_NAME;

use super::Time;

/// Ethernet header in bytes per frame.
const ETHERNET: f64 = 14.0;

/// TCP header, and the timestamp option (RFC 7323) if both ends send it.
const TCP_HEADER: f64 = 20.0;
const TIME_STAMPS: f64 = 12.0;

/// Share of reordered segments from which the minimum round-trip time is too low for the path: with
/// 5 % of the segments ahead of others, 0.1 ms was measured on a path of 4 ms. Streams with queue
/// losses report 0.03 %.
const OVERTAKING: f64 = 0.005;

/// UDP header in bytes.
const UDP_HEADER: f64 = 8.0;

/// IPv6 fragment header (RFC 8200, section 4.5).
const FRAGMENT_HEADER: f64 = 8.0;

/// Unit of fragment sizes: all fragments but the last carry a multiple of it (RFC 791, RFC 8200).
const FRAGMENT_UNIT: f64 = 8.0;

/// Counters of frames that our stack's port received and that were not packets for the stack.
const OTHERS: &[&str] = &[
    "in_not_ours",
    "in_unknown_protocols",
    "in_neighbor_requests",
    "in_neighbor_replies",
];

/// Bytes of a frame on the wire in addition to header and payload: preamble, FCS and gap (IEEE
/// 802.3).
const WIRE: f64 = 8.0 + 4.0 + 12.0;

/// Read-only view of one direction of a run.
pub struct Way<'a> {
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
pub struct Tcp {
    /// Share of the time with data to send; absent: not reported.
    pub busy: Option<f64>,
    /// Share of the time limited by the receiver's window.
    pub receive_window: f64,
    /// Share of the time limited by the send buffer, as far as the kernel detects it.
    pub send_buffer: f64,
    /// Mean smoothed round-trip time.
    pub rtt_ns: f64,
    /// Minimum round-trip time.
    pub min_rtt_ns: f64,
    /// Congestion window of all flows, in bytes.
    pub cwnd_bytes: f64,
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Retransmitted segments that the receiver already had.
    pub spurious: u64,
    /// Detected reordering events.
    pub reordering: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Congestion marks (ECN).
    pub marked: u64,
    /// Maximum segment size in bytes.
    pub mss: f64,
    /// Number of payload segments, from the bytes and the segment size.
    pub segments: f64,
}

impl Tcp {
    /// Returns the share of lost segments: retransmitted ones that the receiver did not have.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let lost = self.retransmits.saturating_sub(self.spurious) as f64;
        lost / (self.segments + lost).max(1.0)
    }

    /// Returns the share of retransmitted segments.
    #[must_use]
    pub fn repeated(&self) -> f64 {
        self.retransmits as f64 / (self.segments + self.retransmits as f64).max(1.0)
    }

    /// Returns true if the sender had data in flight all the time, and no window or buffer limited
    /// it.
    #[must_use]
    pub fn pushes(&self) -> bool {
        let busy = self.busy.is_some_and(|busy| busy > 0.85);
        busy && self.receive_window < 0.3 && self.send_buffer < 0.3
    }

    /// Returns true if so many segments are reordered that the minimum round-trip time is theirs.
    #[must_use]
    pub fn is_overtaking(&self) -> bool {
        self.reordering > 0 && self.reordering as f64 >= OVERTAKING * self.segments
    }

    /// Returns the share of queueing in the round-trip time: from 0 (none or unknown) towards 1.
    #[must_use]
    pub fn queueing(&self) -> f64 {
        match self.rtt_ns > 0.0 && !self.is_overtaking() {
            true => (1.0 - self.min_rtt_ns / self.rtt_ns).clamp(0.0, 1.0),
            false => 0.0,
        }
    }
}

impl<'a> Way<'a> {
    pub(super) fn new(record: &'a Record, figures: &'a DirectionFigures) -> Self {
        let (sender, receiver) = super::ends(record.plan.kind, figures.direction);
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
    pub fn stack(&self, role: Role) -> &'a str {
        match role {
            Role::Client => &self.record.plan.stack.near,
            Role::Server => &self.record.plan.stack.far,
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

    /// Returns the host of an end.
    #[must_use]
    pub fn host(&self, role: Role) -> Option<&'a Host> {
        super::host(self.record, role)
    }

    /// Returns the sending host's interface towards the other end; `None` for our stack.
    #[must_use]
    pub fn sends_by(&self) -> Option<&'a Interface> {
        self.by_kernel(self.sender)?.interface.as_ref()
    }

    /// Returns the receiving host's interface towards the other end; `None` for our stack.
    #[must_use]
    pub fn receives_by(&self) -> Option<&'a Interface> {
        self.by_kernel(self.receiver)?.interface.as_ref()
    }

    /// Returns true if our stack carries the payload at an end.
    #[must_use]
    pub fn is_own_stack(&self, role: Role) -> bool {
        self.stack(role) == STACK_NAME
    }

    fn by_kernel(&self, role: Role) -> Option<&'a Host> {
        self.host(role).filter(|_| !self.is_own_stack(role))
    }

    /// Returns the time of the threads at one end of this direction.
    #[must_use]
    pub fn time(&self, part: CountedAt) -> Option<Time> {
        let role = match part {
            CountedAt::Sender => self.sender,
            CountedAt::Receiver => self.receiver,
        };
        let cost = super::cpu(self.record, role)?;
        let own = cost.threads.iter();
        let own = own.filter(|thread| thread.direction == self.direction && thread.part == part);
        let time = Time::of(own)?;
        // A UDP receiver keeps listening for late datagrams after the last one.
        let silence = match (part, self.plan().protocol) {
            (CountedAt::Receiver, Protocol::Udp) => self
                .time(CountedAt::Sender)
                .map_or(0, |sender| time.wall_ns.saturating_sub(sender.wall_ns)),
            _ => 0,
        };
        let time = time.without_silence(silence);
        Some(match self.is_own_stack(role) {
            true => time.of_polling(),
            false => time,
        })
    }

    /// Returns true if an end polls instead of sleeping: then its load carries no information.
    #[must_use]
    pub fn polls(&self, role: Role) -> bool {
        let polls = matches!(
            super::wait(self.plan(), role),
            Some(Wait::Spin | Wait::Interval { .. })
        );
        polls || self.is_own_stack(role)
    }

    /// Returns true if an end blocks when it can, and moves so much data per sleep and per call
    /// that its processor time is that of the bytes.
    #[must_use]
    pub fn works_in_large_pieces(&self, part: CountedAt) -> bool {
        let role = match part {
            CountedAt::Sender => self.sender,
            CountedAt::Receiver => self.receiver,
        };
        let Some(time) = self.time(part).filter(|_| !self.polls(role)) else {
            return false;
        };
        // Small buffers make small chunks, whatever the size of the calls.
        let room = [self.send_buffer(), self.receive_buffer()];
        if room
            .into_iter()
            .flatten()
            .any(|room| room < 2 * LARGE_PIECE)
        {
            return false;
        }
        let summary = self.summary();
        let bytes = summary.bytes_received.or(summary.bytes_sent).unwrap_or(0);
        let pieces = time.sleeps.max(time.calls).max(1);
        bytes / pieces >= LARGE_PIECE
    }

    /// Returns the flows.
    #[must_use]
    pub fn streams(&self) -> &'a [Stream] {
        &self.figures.streams
    }

    /// Returns the recorded sending sockets.
    pub fn senders(&self) -> impl Iterator<Item = &'a Socket> {
        self.figures
            .streams
            .iter()
            .filter_map(|stream| stream.sender.as_ref())
    }

    /// Returns the recorded receiving sockets.
    pub fn receivers(&self) -> impl Iterator<Item = &'a Socket> {
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
    pub fn tcp(&self) -> Option<Tcp> {
        let told: Vec<(&Interval, _)> = self
            .intervals()
            .filter_map(|interval| Some((interval, interval.tcp.as_ref()?)))
            .collect();
        let last: Vec<&TcpState> = self
            .senders()
            .filter_map(|socket| socket.tcp.as_ref())
            .collect();
        let mut tcp = match told.is_empty() {
            false => over_intervals(&told),
            true => at_the_end(&last, self.seconds())?,
        };
        let mss = last.iter().map(|state| state.mss_bytes).min();
        tcp.mss = mss.filter(|&mss| mss > 0).unwrap_or(1448) as f64;
        if let Some(retransmits) = self.summary().retransmits {
            tcp.retransmits = retransmits;
            tcp.spurious = tcp.spurious.min(retransmits);
        }
        let bytes = self.summary().bytes_received.or(self.summary().bytes_sent);
        tcp.segments = bytes.unwrap_or(0) as f64 / tcp.mss;
        Some(tcp)
    }

    /// Returns the segments that our stack sent on a stream, and those that it retransmitted.
    #[must_use]
    pub fn sent_by_own_stack(&self) -> Option<(u64, u64)> {
        let is_own = self.is_own_stack(self.sender) && self.plan().protocol == Protocol::Tcp;
        let stack = self.host(self.sender)?.stack.as_ref().filter(|_| is_own)?;
        let count = |name| stack.counter("tcp", name);
        Some((count("out_segments"), count("retransmitted_segments")))
    }

    /// Returns the frames dropped at our stack's port for lack of a free descriptor or buffer, if
    /// our stack receives.
    #[must_use]
    pub fn ring_was_full(&self) -> u64 {
        self.at_own_port("port_ring_full") + self.at_own_port("port_no_buffer")
    }

    /// Returns the frames that our stack's port dropped because they were too long, if our stack
    /// receives. The stack reports a caveat for them.
    #[must_use]
    pub fn too_long_at_port(&self) -> u64 {
        self.at_own_port("port_too_long")
    }

    /// Returns a link counter of our stack, if it receives.
    fn at_own_port(&self, counter: &str) -> u64 {
        let host = self.host(self.receiver);
        let stack = host.and_then(|host| host.stack.as_ref());
        let stack = stack.filter(|_| self.is_own_stack(self.receiver));
        stack.map_or(0, |stack| stack.counter("link", counter))
    }

    /// Returns the frames that the sending kernel's interface transmitted and our stack's port did
    /// not receive. `None` if one of them has no counter, if a frame may have several segments, or
    /// if the ends are two machines, whose link carries other traffic as well. Also `None` if the
    /// received frames exceed the sent ones by more than half of the `lost` ones: then frames of
    /// other senders are included.
    #[must_use]
    pub fn missing_frames(&self, lost: u64) -> Option<u64> {
        if !self.is_in_view() {
            return None;
        }
        let stack = self.host(self.receiver)?.stack.as_ref();
        let stack = stack.filter(|_| self.is_own_stack(self.receiver))?;
        let sends = self.sends_by()?;
        let cut = sends.offloads.get("tx-tcp-segmentation") == Some(&false);
        let host = super::name(self.sender);
        let mut counters = self.record.counters.iter();
        let sent = counters.find(|found| {
            found.counter == "tx_packets"
                && found.host == host
                && found.interface.as_deref() == Some(sends.name.as_str())
        })?;
        let others = OTHERS.iter().map(|name| stack.counter("link", name));
        let arrived = stack.counter("link", "in_frames");
        let arrived = arrived.saturating_sub(others.sum());
        let is_ours = arrived <= sent.added() + lost / 2;
        (cut && is_ours).then(|| sent.added().saturating_sub(arrived))
    }

    /// Returns the MTU of the sending interface in bytes.
    #[must_use]
    pub fn mtu(&self) -> f64 {
        let mtu = self.sends_by().and_then(|interface| interface.mtu);
        f64::from(mtu.unwrap_or(1500))
    }

    /// Returns true if the packets are IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        let mut sockets = self.senders().chain(self.receivers());
        let told = sockets.find_map(|socket| socket.remote.as_deref().or(socket.local.as_deref()));
        let address = super::bare(told.unwrap_or(&self.plan().host));
        // The standard library does not parse addresses with a zone.
        let address = address.split('%').next().unwrap_or(address);
        let parsed = address.parse::<IpAddr>();
        parsed.is_ok_and(|address| address.to_canonical().is_ipv6())
    }

    /// Returns the size of the IP header in bytes.
    fn ip_header(&self) -> f64 {
        if self.is_ipv6() { 40.0 } else { 20.0 }
    }

    /// Returns the size of the TCP header with options in bytes: kernels send timestamps unless one
    /// of them has them disabled.
    fn tcp_header(&self) -> f64 {
        let is_off = |role| {
            let host = self.by_kernel(role);
            let stamps = host.and_then(|host| host.sysctls.get("net.ipv4.tcp_timestamps"));
            stamps.is_some_and(|stamps| stamps == "0")
        };
        match is_off(Role::Client) || is_off(Role::Server) {
            true => TCP_HEADER,
            false => TCP_HEADER + TIME_STAMPS,
        }
    }

    /// Returns the size of a TCP frame without payload in bytes.
    pub(super) fn empty_frame(&self) -> f64 {
        ETHERNET + self.ip_header() + self.tcp_header()
    }

    /// Returns the size of a frame full of payload in bytes.
    pub(super) fn full_frame(&self) -> f64 {
        match self.packet_bytes() {
            Some(packet) => ETHERNET + packet,
            None => self.empty_frame() + self.tcp().map_or(1448.0, |tcp| tcp.mss),
        }
    }

    /// Returns the largest UDP packet in bytes; `None` for TCP, whose segment size depends on the
    /// peer.
    #[must_use]
    pub fn packet_bytes(&self) -> Option<f64> {
        let plan = self.plan();
        let whole = plan.payload_bytes as f64 + UDP_HEADER + self.ip_header();
        (plan.protocol == Protocol::Udp).then(|| whole.min(self.mtu()))
    }

    /// Returns the number of IP packets per datagram; 1 for TCP.
    #[must_use]
    pub fn fragments(&self) -> f64 {
        let plan = self.plan();
        let whole = plan.payload_bytes as f64 + UDP_HEADER;
        let room = self.mtu() - self.ip_header();
        if plan.protocol == Protocol::Tcp || whole <= room {
            return 1.0;
        }
        let room = if self.is_ipv6() {
            room - FRAGMENT_HEADER
        } else {
            room
        };
        let each = (room / FRAGMENT_UNIT).floor().max(1.0) * FRAGMENT_UNIT;
        // The last fragment need not be a multiple of the unit.
        1.0 + ((whole - room) / each).ceil().max(1.0)
    }

    /// Returns the bits on the wire per payload bit: headers included, plus `wire` bytes per frame.
    fn overhead(&self, wire: f64) -> f64 {
        let plan = self.plan();
        let headers = ETHERNET + self.ip_header();
        match plan.protocol {
            Protocol::Tcp => {
                let mss = self.tcp().map_or(1448.0, |tcp| tcp.mss);
                // A write below the segment size may be sent alone; most are coalesced.
                (mss + headers + self.tcp_header() + wire) / mss
            }
            Protocol::Udp => {
                let payload = (plan.payload_bytes as f64).max(1.0);
                let packets = self.fragments();
                let fragment = if packets > 1.0 && self.is_ipv6() {
                    FRAGMENT_HEADER
                } else {
                    0.0
                };
                let frame = payload + UDP_HEADER + packets * (headers + fragment + wire);
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
        Some(self.goodput()? * self.overhead(WIRE))
    }

    /// Returns the speed of the slower link in bit/s.
    #[must_use]
    pub fn line_bps(&self) -> Option<u64> {
        let speed = |interface: Option<&Interface>| interface?.speed_bps;
        match (speed(self.sends_by()), speed(self.receives_by())) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Returns the received rate over the speed of the slower link.
    #[must_use]
    pub fn share_of_line(&self) -> Option<f64> {
        Some(self.l1_bps()? / self.line_bps()? as f64)
    }

    /// Returns true if the path is saturated: a known rate is used up, or its queues are full while
    /// both ends have idle time.
    #[must_use]
    pub fn fills_path(&self) -> bool {
        self.share_of_line().is_some_and(|share| share >= FULL)
            || self.share_of_shape().is_some_and(|share| share >= FULL)
            || self.shaped_elsewhere().is_some()
    }

    /// Returns true if almost only a full congestion window limited the sender, and its data was
    /// acknowledged as fast as a long path permits. Then no thread delayed it, however long one
    /// waited for a core. TCP_INFO counts a sender as busy whenever data is in flight, even with a
    /// window that is not full.
    #[must_use]
    pub fn waits_for_path(&self) -> bool {
        let waits = |tcp: Tcp| {
            let held = tcp.busy.unwrap_or(0.0) - tcp.receive_window - tcp.send_buffer;
            let prompt = !tcp.is_overtaking() && tcp.rtt_ns <= PROMPT * tcp.min_rtt_ns;
            let under_way = self.goodput().unwrap_or(0.0) / 8.0 * tcp.rtt_ns / 1e9;
            let is_full = under_way >= WINDOW_FULL * tcp.cwnd_bytes;
            held >= HELD && is_full && prompt && tcp.min_rtt_ns > STANDING_NS
        };
        self.plan().protocol == Protocol::Tcp && self.tcp().is_some_and(waits)
    }

    /// Returns the payload rate of a hidden bottleneck in bit/s: TCP has a standing queue, its rate
    /// is steady, and both ends have idle time.
    #[must_use]
    pub fn shaped_elsewhere(&self) -> Option<f64> {
        if self.plan().protocol != Protocol::Tcp || self.plan().rate_bps.is_some() {
            return None;
        }
        let tcp = self.tcp()?;
        let free = |part| self.time(part).is_some_and(|time| time.free() > 0.3);
        // A saturated receiver causes a steady rate as well; the times of another tool are unknown.
        let reads = self.time(CountedAt::Receiver).is_none() || free(CountedAt::Receiver);
        let waiting = tcp.rtt_ns - tcp.min_rtt_ns;
        let queue = tcp.queueing() > 0.6 && waiting > STANDING_NS;
        // A steady rate needs more than one interval.
        let steady = self.rates().len() > PLATEAU && self.spread()? < 0.15;
        // Between two ends of one machine every rate limiter of this size is visible.
        let one_machine = self.is_in_view();
        if one_machine && self.goodput()? > LARGEST_OUT_OF_VIEW || self.is_held_by_loss() {
            return None;
        }
        (queue && tcp.pushes() && free(CountedAt::Sender) && reads && steady)
            .then(|| self.goodput())
            .flatten()
    }

    /// Returns the spread of the interval rates without the first: interquartile range over median.
    #[must_use]
    pub fn spread(&self) -> Option<f64> {
        let mut rates: Vec<f64> = self.rates().into_iter().skip(1).collect();
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
    pub fn rates(&self) -> Vec<f64> {
        let rate = |interval: &Interval| {
            interval.bytes as f64 * 8e9 / (interval.end_ns - interval.start_ns) as f64
        };
        self.intervals().map(rate).collect()
    }

    /// Returns the datagrams of this direction that were lost at a place.
    #[must_use]
    pub fn lost_at(&self, place: &str) -> u64 {
        let losses = self.record.losses.iter();
        losses
            .filter(|loss| loss.direction == self.direction && loss.place == place)
            .map(|loss| loss.packets)
            .sum()
    }

    /// Returns the sends for which the kernel had no route to the peer.
    #[must_use]
    pub fn unroutable(&self) -> u64 {
        let told = self.senders().filter_map(|socket| socket.unroutable);
        told.map(u64::from).sum()
    }

    /// Returns the datagrams dropped because the socket buffer was full. Those that waited for a
    /// missing route are not included.
    #[must_use]
    pub fn lost_for_room(&self) -> u64 {
        match self.unroutable() {
            0 => self.lost_at("sender-socket"),
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

    /// Returns the share of the datagrams lost at a place.
    #[must_use]
    pub fn lost_share(&self, place: &str) -> f64 {
        self.lost_at(place) as f64 / self.packets_sent()
    }

    /// Returns the approximate number of packets that crossed the path in this direction.
    #[must_use]
    pub fn packets(&self) -> f64 {
        match self.plan().protocol {
            Protocol::Udp => self.packets_sent() * self.fragments(),
            Protocol::Tcp => {
                let bytes = self.summary().bytes_received.unwrap_or(0) as f64;
                bytes / self.tcp().map_or(1448.0, |tcp| tcp.mss)
            }
        }
    }
}

/// Highest rate of a hidden limit between two ends of one machine without a qdisc, bit/s: programs
/// that emulate a link carry less.
const LARGEST_OUT_OF_VIEW: f64 = 5e9;

/// Chunk size in bytes from which the bytes cost more than the fixed cost of a chunk.
const LARGE_PIECE: u64 = 32 << 10;

/// Intervals after the first one that must have equal rates for a plateau.
pub(crate) const PLATEAU: usize = 2;

/// Share of a known rate from which the path is saturated; the rest is start and end of the run.
pub(crate) const FULL: f64 = 0.9;

/// Share of the time limited by the congestion window alone from which nothing else limits the
/// sender.
const HELD: f64 = 0.85;

/// Data in flight over congestion window from which the window is full: 0.99 to 1.01 was measured
/// for streams limited by it, 0.42 to 0.48 for others.
const WINDOW_FULL: f64 = 0.8;

/// Mean over minimum round-trip time up to which acknowledgements are prompt: 1.02 was measured
/// over 60 ms with a spinning receiver that waited for its core half of the time.
const PROMPT: f64 = 1.25;

/// Queueing delay from which a standing queue is in the network: the queues of both ends on a
/// 2-core VM stay below it.
pub(crate) const STANDING_NS: f64 = 700_000.0;

fn over_intervals(told: &[(&Interval, &linerate_metric::cost::TcpInterval)]) -> Tcp {
    let length = |interval: &Interval| (interval.end_ns - interval.start_ns) as f64;
    let whole: f64 = told.iter().map(|(interval, _)| length(interval)).sum();
    let mean = |read: &dyn Fn(&linerate_metric::cost::TcpInterval) -> Option<f64>| {
        let sum = told
            .iter()
            .map(|(interval, tcp)| Some(read(tcp)? * length(interval)));
        let sum: Option<f64> = sum.sum();
        Some(sum? / whole.max(1.0))
    };
    let sum = |read: &dyn Fn(&linerate_metric::cost::TcpInterval) -> Option<u64>| {
        told.iter().filter_map(|(_, tcp)| read(tcp)).sum()
    };
    let least = told.iter().filter_map(|(_, tcp)| tcp.min_rtt_ns).min();
    let rtt_ns = mean(&|tcp| Some(tcp.rtt_ns as f64)).unwrap_or(0.0);
    Tcp {
        busy: mean(&|tcp| tcp.busy),
        receive_window: mean(&|tcp| tcp.receive_window_limited).unwrap_or(0.0),
        send_buffer: mean(&|tcp| tcp.send_buffer_limited).unwrap_or(0.0),
        rtt_ns,
        min_rtt_ns: least.map_or(rtt_ns, |least| least as f64),
        cwnd_bytes: mean(&|tcp| Some(tcp.cwnd_bytes as f64)).unwrap_or(0.0),
        retransmits: sum(&|tcp| Some(tcp.retransmits)),
        spurious: sum(&|tcp| tcp.spurious_retransmits),
        reordering: sum(&|tcp| tcp.reordering_seen),
        timeouts: sum(&|tcp| tcp.timeouts),
        marked: sum(&|tcp| tcp.marked),
        mss: 0.0,
        segments: 0.0,
    }
}

fn at_the_end(last: &[&TcpState], seconds: f64) -> Option<Tcp> {
    if last.is_empty() {
        return None;
    }
    let flows = last.len() as f64;
    let whole = (seconds * 1e9).max(1.0);
    let share = |read: fn(&TcpState) -> Option<u64>| {
        let sum: Option<u64> = last.iter().map(|state| read(state)).sum();
        sum.map(|sum| (sum as f64 / whole / flows).min(1.0))
    };
    let sum =
        |read: fn(&TcpState) -> Option<u64>| last.iter().filter_map(|state| read(state)).sum();
    let rtt_ns = last.iter().map(|state| state.rtt_ns as f64).sum::<f64>() / flows;
    let least = last.iter().filter_map(|state| state.min_rtt_ns).min();
    Some(Tcp {
        busy: share(|state| state.busy_ns),
        receive_window: share(|state| state.receive_window_limited_ns).unwrap_or(0.0),
        send_buffer: share(|state| state.send_buffer_limited_ns).unwrap_or(0.0),
        rtt_ns,
        min_rtt_ns: least.map_or(rtt_ns, |least| least as f64),
        cwnd_bytes: (last.iter())
            .map(|state| (state.cwnd_segments * state.mss_bytes) as f64)
            .sum(),
        retransmits: sum(|state| Some(state.retransmits)),
        spurious: sum(|state| state.spurious_retransmits),
        reordering: sum(|state| state.reordering_seen),
        timeouts: sum(|state| state.timeouts),
        marked: sum(|state| state.marked),
        mss: 0.0,
        segments: 0.0,
    })
}
