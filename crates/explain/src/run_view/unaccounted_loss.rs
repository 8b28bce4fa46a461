//! Segments that were lost without a trace in any counter, and their effect on the sender.

use super::{DirectionView, TcpSummary};
use linerate_record::facts::Role;
use linerate_record::record::Interval;

/// Smallest loss share that matters: by Mathis' formula it limits a stream of 1448 B segments on a
/// path of 1 ms to 630 Mb/s.
pub(crate) const MIN_UNACCOUNTED_SHARE: f64 = 0.0005;

/// Fewest lost segments; fewer are noise.
pub(crate) const MIN_LOST_SEGMENTS: u64 = 10;

/// Fewest lost segments if they were lost in several intervals, and the number of these intervals:
/// on a long path few segments are sent in a run, and few of them are lost. Valid only if every
/// queue is visible: a hidden queue loses as many at the peaks of a normal sawtooth.
pub(crate) const MIN_REPEATED_LOSSES: u64 = 4;
pub(crate) const MIN_LOSSY_INTERVALS: usize = 3;

/// Part of the retransmits from which unnecessary ones indicate reordering: one in three.
pub(crate) const UNNECESSARY_PART: u64 = 3;

/// Part of the lost segments from which counters account for the loss: one in two.
pub(crate) const UNACCOUNTED_PART: u64 = 2;

/// Window over that of Mathis' formula from which the loss does not limit it: losses that occur
/// together, as at the end of slow start, reduce the window only once. Cubic's window is up to
/// twice Reno's on long paths.
pub(crate) const LOSS_BOUND_RATIO: f64 = 4.0;

/// Mathis, Semke, Mahdavi, Ott (CCR 1997): the window of a stream with loss share p is 1.22 /
/// sqrt(p) segments.
pub(crate) const MATHIS_FACTOR: f64 = 1.22;

/// Goodput in bit/s below which almost nothing arrives.
pub(crate) const MIN_GOODPUT_BPS: f64 = 1e5;

/// Counters of packets dropped on the path.
pub(crate) const DROP_COUNTERS: &[&str] = &[
    "qdisc_drops",
    "tx_dropped",
    "rx_dropped",
    "rx_missed",
    "rx_errors",
    "backlog_drops",
];

/// Largest GSO packet in bytes, if the interface does not report it.
const DEFAULT_GSO_BYTES: u32 = 65_536;

/// Loss that appears in no counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnaccountedLoss {
    /// Lost segments.
    pub segments: u64,
    /// Share of all segments.
    pub share: f64,
}

impl DirectionView<'_> {
    /// Returns the packets that counters on the path report as dropped.
    fn counted_drops(&self) -> u64 {
        let counters = self.record.counters.iter();
        let drops = counters.filter(|counter| DROP_COUNTERS.contains(&counter.counter.as_str()));
        drops.map(|counter| counter.increase()).sum()
    }

    /// Returns the segments that were lost without a trace in any counter. `None` for few losses,
    /// for retransmits that were mostly unnecessary, and if almost no payload arrived.
    #[must_use]
    pub fn unaccounted_loss(&self) -> Option<UnaccountedLoss> {
        let tcp = self.tcp()?;
        let lost = tcp.retransmits.saturating_sub(tcp.spurious_retransmits);
        let share = tcp.loss_share();
        // A receiver does not report every duplicate segment: many reports indicate reordering.
        if share < MIN_UNACCOUNTED_SHARE
            || lost < self.min_lost_segments()
            || tcp.spurious_retransmits * UNNECESSARY_PART >= tcp.retransmits
        {
            return None;
        }
        // A packet that a qdisc drops may have many segments.
        let sends = self.sender_interface();
        let has_tso = sends
            .is_some_and(|sends| sends.offloads.get(self.segmentation_offload()) == Some(&true));
        let largest = sends
            .and_then(|sends| sends.gso_bytes(self.is_ipv6()))
            .unwrap_or(DEFAULT_GSO_BYTES);
        let each = if has_tso {
            (f64::from(largest) / tcp.mss_bytes).max(1.0)
        } else {
            1.0
        };
        // Fewer ring drops are noise.
        let many = |frames: u64| {
            if frames >= MIN_LOST_SEGMENTS {
                frames
            } else {
                0
            }
        };
        // Frames that were too long for a port may have many segments as well.
        let dropped_frames = self.counted_drops() + many(self.oversize_frames());
        let in_view = dropped_frames as f64 * each + many(self.ring_full_frames()) as f64;
        // If our stack received all frames, segments were retransmitted because the acknowledgement
        // was late.
        let arrived = |missing| missing < lost / UNACCOUNTED_PART;
        let is_accounted = in_view >= lost as f64 / UNACCOUNTED_PART as f64
            || self.missing_frames(lost).is_some_and(arrived);
        (!is_accounted && self.goodput()? >= MIN_GOODPUT_BPS).then_some(UnaccountedLoss {
            segments: lost,
            share,
        })
    }

    /// Returns the smallest number of lost segments that is not noise.
    fn min_lost_segments(&self) -> u64 {
        let lossy = |interval: &&Interval| {
            let tcp = interval.tcp.as_ref();
            tcp.is_some_and(|tcp| tcp.retransmits > tcp.spurious_retransmits.unwrap_or(0))
        };
        match self.is_one_machine() && self.intervals().filter(lossy).count() >= MIN_LOSSY_INTERVALS
        {
            true => MIN_REPEATED_LOSSES,
            false => MIN_LOST_SEGMENTS,
        }
    }

    /// Returns true if both ends ran on one machine, so that every queue between them is visible.
    #[must_use]
    pub fn is_one_machine(&self) -> bool {
        let boot = |role| self.host(role)?.boot_id.as_deref();
        boot(Role::Client).is_some() && boot(Role::Client) == boot(Role::Server)
    }

    /// Returns true if the congestion control reacts to loss.
    #[must_use]
    pub fn reacts_to_loss(&self) -> bool {
        let control = self.congestion_control();
        !control.is_some_and(|control| control.starts_with("bbr") || control == "none")
    }

    /// Returns true if the data in flight is no more than this loss leaves of a congestion window.
    #[must_use]
    pub fn is_loss_bound(&self, tcp: &TcpSummary, loss: f64) -> bool {
        let flows = self.streams().len().max(1) as f64;
        // The window may be larger than the data in flight.
        let in_flight = self.goodput().unwrap_or(0.0) / 8.0 * tcp.rtt_ns / 1e9;
        let window = tcp.cwnd_bytes.min(in_flight) / tcp.mss_bytes / flows;
        self.reacts_to_loss() && window <= LOSS_BOUND_RATIO * MATHIS_FACTOR / loss.max(1e-9).sqrt()
    }

    /// Returns true if unaccounted loss limits the rate: then a steady rate, a standing queue and
    /// idle ends are no evidence of another limit.
    #[must_use]
    pub fn is_loss_limited(&self) -> bool {
        let (Some(unaccounted), Some(tcp)) = (self.unaccounted_loss(), self.tcp()) else {
            return false;
        };
        self.is_one_machine()
            && (!self.reacts_to_loss() || self.is_loss_bound(&tcp, unaccounted.share))
    }
}
