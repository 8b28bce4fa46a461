//! Rate limits of visible qdiscs on a direction.

use linerate_metric::facts::Role;
use linerate_metric::record::PlaceCounter;

use super::Way;

/// Rate limit of a qdisc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape<'a> {
    /// Kind of the qdisc.
    pub kind: &'a str,
    /// Rate in bit/s, Ethernet headers included.
    pub rate_bps: u64,
    /// Bytes that may be sent at once after a pause.
    pub burst_bytes: Option<u64>,
    /// True for a child of `mq`.
    pub below: bool,
}

impl<'a> Way<'a> {
    /// Returns the rate limit of the sending interface. Below `mq`, where every queue has a limit,
    /// that of one queue for one flow, and their sum for several flows.
    #[must_use]
    pub fn own_shape(&self) -> Option<Shape<'a>> {
        let interface = self.sends_by()?;
        if let Some(rate_bps) = interface.qdisc_rate_bps {
            return Some(Shape {
                kind: interface.qdisc.as_deref().unwrap_or("its discipline"),
                rate_bps,
                burst_bytes: interface.qdisc_burst_bytes,
                below: false,
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
        Some(Shape {
            kind: &first.kind,
            rate_bps,
            burst_bytes: first.burst_bytes,
            below: true,
        })
    }

    /// Returns the received rate over the lowest visible rate limit.
    #[must_use]
    pub fn share_of_shape(&self) -> Option<f64> {
        let moved = self.l2_bps()?;
        let rate = (self.own_shape().map(|shape| shape.rate_bps))
            .into_iter()
            .chain(self.shape_on_the_way().map(|at| at.after))
            .min()?;
        Some(moved / rate as f64)
    }

    /// Returns the rate limit of the receiving interface for acknowledgements, and the share of it
    /// that they used: frames without payload, from the interface's transmit counter.
    #[must_use]
    pub fn answers(&self) -> Option<(u64, f64)> {
        let interface = self.receives_by()?;
        let rate = interface.qdisc_rate_bps?;
        let host = super::name(self.receiver);
        let sent = self.record.counters.iter().find(|at| {
            at.counter == "tx_packets"
                && at.host == host
                && at.interface.as_deref() == Some(interface.name.as_str())
        })?;
        let bits = sent.added() as f64 * self.empty_frame() * 8.0;
        Some((rate, bits / self.seconds().max(1e-9) / rate as f64))
    }

    /// Returns the slowest rate limit between the ends on this direction, among those that the
    /// received rate does not exceed.
    #[must_use]
    pub fn shape_on_the_way(&self) -> Option<&'a PlaceCounter> {
        let moved = self.l2_bps()?;
        let ends = [Role::Client, Role::Server].map(super::name);
        let one_flow = self.streams().len() <= 1;
        let between = self.record.counters.iter().filter(|at| {
            let is_rate =
                at.counter == "qdisc_rate_bps" || one_flow && at.counter == "qdisc_queue_rate_bps";
            let of_way = is_rate && !ends.contains(&at.host.as_str());
            of_way
                && at.after > 0
                && self.leaves_by(&at.host, at.interface.as_deref())
                && moved <= at.after as f64 * 1.05
        });
        between.min_by_key(|at| at.after)
    }

    /// Returns the share of the slowest rate limit between the ends that packets of any origin
    /// used: the interface's transmit counter times the full frame size, and at least the received
    /// rate. `None` without a counter.
    #[must_use]
    pub fn use_on_the_way(&self) -> Option<f64> {
        let at = self.shape_on_the_way()?;
        let mut counters = self.record.counters.iter();
        let sent = counters.find(|other| {
            other.counter == "tx_packets"
                && (&other.host, &other.interface) == (&at.host, &at.interface)
        })?;
        // The counter includes the omitted time.
        let seconds = self.seconds() + self.plan().omit_ns as f64 / 1e9;
        let bits = sent.added() as f64 * self.full_frame() * 8.0 / seconds.max(1e-9);
        Some(bits.max(self.l2_bps()?) / at.after as f64)
    }

    /// Returns true if payload of this direction leaves a host between the ends through this
    /// interface. Both interfaces of such hosts are recorded, the one towards the client first.
    #[must_use]
    pub fn leaves_by(&self, host: &str, interface: Option<&str>) -> bool {
        let of_host = self.record.counters.iter().filter(|at| at.host == host);
        let mut there = of_host.filter_map(|at| at.interface.as_deref());
        let Some(first) = there.next() else {
            return true;
        };
        let Some(last) = there.rfind(|&other| other != first) else {
            return true;
        };
        let leaves = match self.sender {
            Role::Client => last,
            Role::Server => first,
        };
        interface.is_none_or(|interface| interface == leaves)
    }
}
