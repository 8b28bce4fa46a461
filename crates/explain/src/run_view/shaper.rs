//! Rate limits of visible qdiscs on a direction.

use linerate_record::facts::Role;
use linerate_record::record::CounterDelta;

use super::DirectionView;

/// Rate limit of a qdisc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QdiscShaper<'a> {
    /// Kind of the qdisc.
    pub kind: &'a str,
    /// Rate in bit/s, Ethernet headers included.
    pub rate_bps: u64,
    /// Bytes that may be sent at once after a pause.
    pub burst_bytes: Option<u64>,
    /// True for a child of `mq`.
    pub is_below_mq: bool,
}

impl<'a> DirectionView<'a> {
    /// Returns the rate limit of the sending interface. Below `mq`, where every queue has a limit,
    /// that of one queue for one flow, and their sum for several flows.
    #[must_use]
    pub fn sender_shaper(&self) -> Option<QdiscShaper<'a>> {
        let interface = self.sender_interface()?;
        if let Some(rate_bps) = interface.qdisc_rate_bps {
            return Some(QdiscShaper {
                kind: interface.qdisc.as_deref().unwrap_or("its discipline"),
                rate_bps,
                burst_bytes: interface.qdisc_burst_bytes,
                is_below_mq: false,
            });
        }
        // With other classful qdiscs, the class of a flow is unknown.
        let queues = &interface.qdisc_children;
        let first = queues
            .first()
            .filter(|_| interface.qdisc.as_deref() == Some("mq"))?;
        let rates = queues
            .iter()
            .map(|queue| Some(queue.rate_bps? * u64::from(queue.count)));
        let all: u64 = rates.sum::<Option<u64>>()?;
        let rate_bps = match (self.streams().len(), queues.len()) {
            (..=1, 1) => first.rate_bps?,
            // The queue of the flow is unknown.
            (..=1, _) => return None,
            _ => all,
        };
        Some(QdiscShaper {
            kind: &first.kind,
            rate_bps,
            burst_bytes: first.burst_bytes,
            is_below_mq: true,
        })
    }

    /// Returns the received rate over the lowest visible rate limit.
    #[must_use]
    pub fn shaper_share(&self) -> Option<f64> {
        let l2_bps = self.l2_bps()?;
        let rate = (self.sender_shaper().map(|shape| shape.rate_bps))
            .into_iter()
            .chain(self.path_shaper().map(|at| at.after))
            .min()?;
        Some(l2_bps / rate as f64)
    }

    /// Returns the rate limit of the receiving interface for acknowledgements, and the share of it
    /// that they used: frames without payload, from the interface's transmit counter.
    #[must_use]
    pub fn ack_path_use(&self) -> Option<(u64, f64)> {
        let interface = self.receiver_interface()?;
        let rate = interface.qdisc_rate_bps?;
        let host = self.receiver.as_str();
        let sent = self.record.counters.iter().find(|at| {
            at.counter == "tx_packets"
                && at.host == host
                && at.interface.as_deref() == Some(interface.name.as_str())
        })?;
        let bits = sent.increase() as f64 * self.empty_frame() * 8.0;
        Some((rate, bits / self.seconds().max(1e-9) / rate as f64))
    }

    /// Returns the slowest rate limit between the ends on this direction, among those that the
    /// received rate does not exceed.
    #[must_use]
    pub fn path_shaper(&self) -> Option<&'a CounterDelta> {
        let l2_bps = self.l2_bps()?;
        let end_names = [Role::Client, Role::Server].map(Role::as_str);
        let one_flow = self.streams().len() <= 1;
        let between = self.record.counters.iter().filter(|at| {
            let is_rate =
                at.counter == "qdisc_rate_bps" || one_flow && at.counter == "qdisc_queue_rate_bps";
            let is_on_path = is_rate && !end_names.contains(&at.host.as_str());
            is_on_path
                && at.after > 0
                && self.leaves_through(&at.host, at.interface.as_deref())
                && l2_bps <= at.after as f64 * 1.05
        });
        between.min_by_key(|at| at.after)
    }

    /// Returns the share of the slowest rate limit between the ends that packets of any origin
    /// used: the interface's transmit counter times the full frame size, and at least the received
    /// rate. `None` without a counter.
    #[must_use]
    pub fn path_shaper_use(&self) -> Option<f64> {
        let at = self.path_shaper()?;
        let mut counters = self.record.counters.iter();
        let sent = counters.find(|candidate| {
            candidate.counter == "tx_packets"
                && (&candidate.host, &candidate.interface) == (&at.host, &at.interface)
        })?;
        // The counter includes the omitted time.
        let seconds = self.seconds() + self.plan().omit_ns as f64 / 1e9;
        let bits = sent.increase() as f64 * self.full_frame() * 8.0 / seconds.max(1e-9);
        Some(bits.max(self.l2_bps()?) / at.after as f64)
    }

    /// Returns true if payload of this direction leaves a host between the ends through this
    /// interface. Both interfaces of such hosts are recorded, the one towards the client first.
    #[must_use]
    pub fn leaves_through(&self, host: &str, interface: Option<&str>) -> bool {
        let of_host = self.record.counters.iter().filter(|at| at.host == host);
        let mut interfaces = of_host.filter_map(|at| at.interface.as_deref());
        let Some(first) = interfaces.next() else {
            return true;
        };
        let Some(last) = interfaces.rfind(|&candidate| candidate != first) else {
            return true;
        };
        let outgoing = match self.sender {
            Role::Client => last,
            Role::Server => first,
        };
        interface.is_none_or(|interface| interface == outgoing)
    }
}
