//! Segments that were lost where no counter in view has them, and whether they are what holds a sender.

use super::{Tcp, Way};
use linerate_metric::facts::Role;
use linerate_metric::record::Interval;

/// Share of the segments from which loss matters: with Mathis' formula it holds a stream of 1448 B segments on a
/// path of 1 ms to 630 Mb/s.
const MATTERS: f64 = 0.0005;

/// Segments that must be lost: fewer are an accident.
const FEW: u64 = 10;

/// The same where they were lost again and again, each time in an interval of its own, and how many of those it takes:
/// over a long path few segments move in a run, and few of them are lost. Only where every queue is in view: a queue out
/// of it loses as many at the tops of an ordinary sawtooth.
const FEW_APART: u64 = 4;
const APART: usize = 3;

/// Window over Mathis' from which it is not loss that bounds it: losses that come together, as at the end of slow
/// start, cut a window once for all of them. Cubic's is up to twice that of Reno's on long paths.
const BOUND: f64 = 4.0;

/// Mathis, Semke, Mahdavi, Ott (CCR 1997): the window of a stream that loses this share is 1.22 / sqrt(p) segments.
pub(crate) const MATHIS: f64 = 1.22;

/// Counters of packets that were dropped on the way.
pub(crate) const DROPS: &[&str] = &[
    "qdisc_drops",
    "tx_dropped",
    "rx_dropped",
    "rx_missed",
    "rx_errors",
    "backlog_drops",
];

/// The largest packet of many segments, bytes, where an interface does not tell.
const GSO: u32 = 65_536;

/// Loss that no counter in view has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unseen {
    /// Segments.
    pub segments: u64,
    /// Share of all segments.
    pub share: f64,
}

impl Way<'_> {
    /// Packets that counters on the way saw dropped.
    fn dropped(&self) -> u64 {
        let counters = self.record.counters.iter();
        let drops = counters.filter(|found| DROPS.contains(&found.counter.as_str()));
        drops.map(|found| found.added()).sum()
    }

    /// The segments that were lost without a trace in any counter; none where few were, where most had arrived all
    /// the same, and where next to nothing arrived.
    #[must_use]
    pub fn unseen_loss(&self) -> Option<Unseen> {
        let tcp = self.tcp()?;
        let lost = tcp.retransmits.saturating_sub(tcp.spurious);
        let share = tcp.loss();
        // A receiver does not report each of the segments that it had already: many reported ones are reordering.
        if share < MATTERS || lost < self.few() || tcp.spurious * 3 >= tcp.retransmits {
            return None;
        }
        // What a discipline drops may be a packet of many segments.
        let sends = self.sends_by();
        let joined =
            sends.is_some_and(|sends| sends.offloads.get("tx-tcp-segmentation") == Some(&true));
        let largest = sends
            .and_then(|sends| sends.gso_ipv4_max_bytes)
            .unwrap_or(GSO);
        let each = if joined {
            (f64::from(largest) / tcp.mss).max(1.0)
        } else {
            1.0
        };
        // Fewer are told by nobody else.
        let many = |frames: u64| if frames >= FEW { frames } else { 0 };
        // What was too long for a port may be many segments as well.
        let whole = self.dropped() + many(self.too_long_at_port());
        let in_view = whole as f64 * each + many(self.ring_was_full()) as f64;
        // What all came to our own stack was sent again because its answer was late.
        let arrived = |missing| missing < lost / 2;
        let seen = in_view >= lost as f64 / 2.0 || self.missing_frames(lost).is_some_and(arrived);
        (!seen && self.goodput()? >= 1e5).then_some(Unseen {
            segments: lost,
            share,
        })
    }

    /// Lost segments from which it is no accident.
    fn few(&self) -> u64 {
        let lossy = |interval: &&Interval| {
            let tcp = interval.tcp.as_ref();
            tcp.is_some_and(|tcp| tcp.retransmits > tcp.spurious_retransmits.unwrap_or(0))
        };
        match self.is_in_view() && self.intervals().filter(lossy).count() >= APART {
            true => FEW_APART,
            false => FEW,
        }
    }

    /// Whether both ends were one machine, so that every queue between them is in view.
    #[must_use]
    pub fn is_in_view(&self) -> bool {
        let boot = |role| self.host(role)?.boot_id.as_deref();
        boot(Role::Client).is_some() && boot(Role::Client) == boot(Role::Server)
    }

    /// Whether the congestion control takes loss for congestion.
    #[must_use]
    pub fn heeds_loss(&self) -> bool {
        let control = self.congestion_control();
        !control.is_some_and(|control| control.starts_with("bbr") || control == "none")
    }

    /// Whether what is on its way is no more than what such loss leaves of a congestion window.
    #[must_use]
    pub fn is_cut_by(&self, tcp: &Tcp, loss: f64) -> bool {
        let flows = self.streams().len().max(1) as f64;
        // A window may be larger than what is on its way.
        let on_its_way = self.goodput().unwrap_or(0.0) / 8.0 * tcp.rtt_ns / 1e9;
        let window = tcp.cwnd_bytes.min(on_its_way) / tcp.mss / flows;
        self.heeds_loss() && window <= BOUND * MATHIS / loss.max(1e-9).sqrt()
    }

    /// Whether loss on the way is what keeps the rate where it is: then a steady rate, a queue of its own making and
    /// ends with time to spare prove nothing else.
    #[must_use]
    pub fn is_held_by_loss(&self) -> bool {
        let (Some(unseen), Some(tcp)) = (self.unseen_loss(), self.tcp()) else {
            return false;
        };
        self.is_in_view() && (!self.heeds_loss() || self.is_cut_by(&tcp, unseen.share))
    }
}
