//! Table of the comparisons.

use std::fmt;

use crate::bench_env::{BenchEnv, DefaultCongestion};
use crate::error::BenchError;
use crate::rows::{forward, growth, guard, latency, memory, stack, throughput, xdp};

/// Function that measures one side once and returns the figure in the row's unit.
pub type MeasureFn = fn(&BenchEnv) -> Result<f64, BenchError>;

/// Comparison.
pub struct BenchRow {
    /// Name that spells the setting; stable for scripts.
    pub name: &'static str,
    /// Description of the other side.
    pub against: &'static str,
    /// Unit of both figures.
    pub unit: &'static str,
    /// Goal for the ratio ours / theirs.
    pub mark: RatioMark,
    /// True if the row is about speed: a pair is valid only if the machine stayed in one state.
    pub is_speed: bool,
    /// True if the mark applies to the near state only: in the far state the row is measured but
    /// not judged.
    pub needs_near_state: bool,
    /// True to disable idle states for both sides; otherwise cores halt as the machine is
    /// configured.
    pub holds_idle_states: bool,
    /// Congestion control of programs that request none.
    pub default_congestion: DefaultCongestion,
    /// True if the row is skipped unless LONG=1.
    pub is_long: bool,
    /// Maximum number of pairs, if more add no information.
    pub max_pairs: Option<usize>,
    /// Number of short alternating runs of each side that form one pair.
    ///
    /// Used for loops in this process: with short runs the machine's speed rarely changes in
    /// between.
    pub slices_per_pair: usize,
    /// Returns [`BenchError::Skip`] if a requirement of the row is not installed.
    pub check_requirements: fn(&BenchEnv) -> Result<(), BenchError>,
    /// Measures linerate.
    pub measure: MeasureFn,
    /// Programs to compare with; the best one, found in a separate round before, is used.
    pub peers: &'static [BenchPeer],
}

/// Program to compare with.
pub struct BenchPeer {
    /// Name in the table.
    pub name: &'static str,
    /// Returns [`BenchError::Skip`] if the peer cannot run.
    pub check_requirements: fn(&BenchEnv) -> Result<(), BenchError>,
    pub measure: MeasureFn,
}

impl BenchPeer {
    /// Single peer of a row.
    pub const fn single(run: MeasureFn) -> Self {
        Self {
            name: "",
            check_requirements: |_| Ok(()),
            measure: run,
        }
    }
}

/// Rows in the order in which they run.
pub const ROWS: &[BenchRow] = &[
    throughput::TCP_TUNED,
    throughput::TCP_TUNED_FOUND,
    throughput::TCP_BARE,
    throughput::TCP_BARE_PEERS,
    throughput::TCP_DEFAULTS,
    throughput::TCP_DEFAULTS_FOUND,
    throughput::TCP_AS_IT_COMES,
    throughput::TCP_NO_RECEIVE_COPY,
    throughput::TCP_128K,
    throughput::UDP_1472B_BURSTS,
    throughput::UDP_64B_BURSTS,
    throughput::UDP_1472B,
    throughput::UDP_64B,
    throughput::CALLS,
    throughput::CALL_RECORD,
    growth::STREAMS_10,
    growth::STREAMS_100,
    growth::STREAMS_1000,
    growth::STREAMS_10000,
    growth::STREAMS_10000_BARE,
    growth::STREAMS_BARE_GROWTH,
    latency::UDP_64B_BLOCKING,
    latency::UDP_BLOCKING,
    latency::UDP_32K_BLOCKING,
    latency::UDP_64B_SPINNING,
    latency::UDP_SPINNING,
    latency::UDP_64B_FOUND,
    latency::HOLD_LATENCY,
    latency::HOLD_LATENCY_BARE,
    latency::STAMPS,
    latency::STAGE_SUM,
    guard::RESPONSE,
    guard::DECISION,
    forward::RING_IO,
    forward::DPDK_RING,
    forward::RING_IO_2_CORES,
    forward::RING_MACSWAP_1,
    forward::RING_MACSWAP_16,
    forward::SHM_64B,
    forward::SHM_1500B,
    forward::SHM_64B_BARE,
    forward::SHM_1500B_BARE,
    forward::SHM_BARE_MEMIF_64B,
    forward::SHM_BARE_MEMIF_1500B,
    forward::PACKET_TX,
    forward::PACKET_RX,
    forward::PACKET_IO,
    forward::TAP_TX,
    forward::TAP_TX_BARE,
    forward::TAP_TX_LIMIT,
    stack::UDP_BURST,
    stack::TCP_STREAM,
    stack::TCP_STREAM_LIMIT,
    stack::IDLE_UDP,
    stack::IDLE_TCP,
    stack::ECHO_SPINNING,
    stack::ECHO_BARE,
    stack::ECHO_BLOCKING,
    stack::ECHO_BLOCKING_LIMIT,
    stack::ECHO_LIMIT,
    stack::ECHO_SHM,
    stack::ECHO_SHM_BARE,
    stack::ECHO_SHM_LIMIT,
    stack::IN_BBR,
    stack::IN_PLACE,
    stack::IN_BARE,
    stack::IN_CUBIC,
    stack::IN_LIMIT,
    stack::OUT_BBR,
    stack::OUT_BARE,
    stack::OUT_CUBIC,
    stack::OUT_PLACE,
    stack::OUT_LIMIT,
    stack::OUT_COPIES,
    stack::BUFFER,
    stack::QUEUE_1,
    stack::QUEUE_64,
    stack::QUEUE_255,
    stack::MEMORY_DEFAULT,
    stack::MEMORY_TUNED,
    xdp::TX,
    xdp::RX,
    xdp::IO,
    xdp::IO_BARE,
    xdp::IO_LIMIT,
    xdp::TWO_QUEUES,
    xdp::ECHO_BLOCKING,
    xdp::ECHO_BLOCKING_LIMIT,
    xdp::ECHO_BLOCKING_HELD,
    xdp::ECHO_ASLEEP,
    xdp::ECHO_SPINNING,
    xdp::ECHO_BARE,
    memory::HISTOGRAM_ROW,
    memory::ROUND_TRIPS_ROW,
    memory::TEN_MINUTES_CLIENT,
    memory::TEN_MINUTES_SERVER,
];

impl BenchRow {
    /// Returns whether `name` selects this row: its full name, or a prefix that ends at a slash.
    pub fn is_selected_by(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Goal for a ratio ours / theirs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RatioMark {
    /// Minimum; more is better.
    AtLeast(f64),
    /// Maximum; less is better.
    AtMost(f64),
    /// Range with both limits.
    Within(f64, f64),
    /// No goal; the row is informational.
    Informational,
}

/// Share of the mark by which the interval may exceed it.
const MARK_TOLERANCE: f64 = 0.02;

impl RatioMark {
    /// Returns whether more is better, also for the selection of the best peer.
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::AtLeast(_) | Self::Informational)
    }

    /// Returns whether a median with its interval meets the mark.
    pub fn is_met(self, median: f64, low: f64, high: f64) -> bool {
        match self {
            Self::AtLeast(mark) => median >= mark && low >= mark * (1.0 - MARK_TOLERANCE),
            Self::AtMost(mark) => median <= mark && high <= mark * (1.0 + MARK_TOLERANCE),
            Self::Within(min, max) => {
                Self::AtLeast(min).is_met(median, low, high)
                    && Self::AtMost(max).is_met(median, low, high)
            }
            Self::Informational => true,
        }
    }
}

impl fmt::Display for RatioMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(mark) => write!(f, ">={mark:.2}"),
            Self::AtMost(mark) => write!(f, "<={mark:.2}"),
            Self::Within(min, max) => write!(f, "{min:.2} to {max:.2}"),
            Self::Informational => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_requires_the_median_and_tolerates_a_wider_interval() {
        for (mark, median, low, high, expected) in [
            (RatioMark::AtLeast(1.0), 1.00, 0.99, 1.30, true),
            (RatioMark::AtLeast(1.0), 1.10, 0.97, 1.30, false),
            (RatioMark::AtLeast(1.0), 0.999, 0.998, 1.30, false),
            (RatioMark::AtMost(1.03), 1.03, 0.50, 1.05, true),
            (RatioMark::AtMost(1.03), 1.01, 1.00, 1.06, false),
            (RatioMark::AtMost(1.03), 1.04, 1.04, 1.04, false),
            (RatioMark::Within(0.97, 1.03), 1.00, 0.96, 1.04, true),
            (RatioMark::Within(0.97, 1.03), 1.00, 0.94, 1.04, false),
            (RatioMark::Within(0.97, 1.03), 1.04, 1.03, 1.05, false),
            (RatioMark::Informational, 7.0, 1.0, 9.0, true),
        ] {
            let holds = mark.is_met(median, low, high);
            assert_eq!(holds, expected, "{mark} {median} [{low}, {high}]");
        }
    }

    #[test]
    fn names_are_unique_and_select_their_row() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|other| other.name != row.name));
            assert!(
                row.is_selected_by(row.name)
                    && !row.is_selected_by(&row.name[..row.name.len() - 1])
            );
        }
    }
}
