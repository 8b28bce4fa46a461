//! Table of the comparisons.

use std::fmt;

use crate::bench_env::{Control, Ground};
use crate::error::Trouble;
use crate::rows::{forward, growth, guard, latency, memory, stack, throughput, xdp};

/// Function that measures one side once and returns the figure in the row's unit.
pub type Run = fn(&Ground) -> Result<f64, Trouble>;

/// Comparison.
pub struct Row {
    /// Name that spells the setting; stable for scripts.
    pub name: &'static str,
    /// Description of the other side.
    pub against: &'static str,
    /// Unit of both figures.
    pub unit: &'static str,
    /// Goal for the ratio ours / theirs.
    pub mark: Mark,
    /// True if the row is about speed: a pair is valid only if the machine stayed in one state.
    pub speed: bool,
    /// True if the mark applies to the near state only: in the far state the row is measured but
    /// not judged.
    pub near: bool,
    /// True to disable idle states for both sides; otherwise cores halt as the machine is
    /// configured.
    pub held: bool,
    /// Congestion control of programs that request none.
    pub control: Control,
    /// True if the row is skipped unless LONG=1.
    pub long: bool,
    /// Maximum number of pairs, if more add no information.
    pub most_pairs: Option<usize>,
    /// Number of short alternating runs of each side that form one pair.
    ///
    /// Used for loops in this process: with short runs the machine's speed rarely changes in
    /// between.
    pub slices: usize,
    /// Returns [`Trouble::Skip`] if a requirement of the row is not installed.
    pub needs: fn(&Ground) -> Result<(), Trouble>,
    /// Measures linerate.
    pub ours: Run,
    /// Programs to compare with; the best one, found in a separate round before, is used.
    pub theirs: &'static [Peer],
}

/// Program to compare with.
pub struct Peer {
    /// Name in the table.
    pub name: &'static str,
    /// Returns [`Trouble::Skip`] if the peer cannot run.
    pub needs: fn(&Ground) -> Result<(), Trouble>,
    pub run: Run,
}

impl Peer {
    /// Single peer of a row.
    pub const fn only(run: Run) -> Self {
        Self {
            name: "",
            needs: |_| Ok(()),
            run,
        }
    }
}

/// Rows in the order in which they run.
pub const ROWS: &[Row] = &[
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
    guard::ANSWER,
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
    memory::HISTOGRAM,
    memory::ROUND_TRIPS,
    memory::TEN_MINUTES_CLIENT,
    memory::TEN_MINUTES_SERVER,
];

impl Row {
    /// Returns whether `name` selects this row: its full name, or a prefix that ends at a slash.
    pub fn is(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Goal for a ratio ours / theirs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mark {
    /// Minimum; more is better.
    AtLeast(f64),
    /// Maximum; less is better.
    AtMost(f64),
    /// Range with both limits.
    Within(f64, f64),
    /// No goal; the row is informational.
    Shown,
}

/// Share of the mark by which the interval may exceed it.
const TOLERANCE: f64 = 0.02;

impl Mark {
    /// Returns whether more is better, also for the selection of the best peer.
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::AtLeast(_) | Self::Shown)
    }

    /// Returns whether a median with its interval meets the mark.
    pub fn holds(self, median: f64, low: f64, high: f64) -> bool {
        match self {
            Self::AtLeast(mark) => median >= mark && low >= mark * (1.0 - TOLERANCE),
            Self::AtMost(mark) => median <= mark && high <= mark * (1.0 + TOLERANCE),
            Self::Within(least, most) => {
                Self::AtLeast(least).holds(median, low, high)
                    && Self::AtMost(most).holds(median, low, high)
            }
            Self::Shown => true,
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(mark) => write!(f, ">={mark:.2}"),
            Self::AtMost(mark) => write!(f, "<={mark:.2}"),
            Self::Within(least, most) => write!(f, "{least:.2} to {most:.2}"),
            Self::Shown => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_wants_the_median_and_leaves_the_interval_a_little() {
        for (mark, median, low, high, want) in [
            (Mark::AtLeast(1.0), 1.00, 0.99, 1.30, true),
            (Mark::AtLeast(1.0), 1.10, 0.97, 1.30, false),
            (Mark::AtLeast(1.0), 0.999, 0.998, 1.30, false),
            (Mark::AtMost(1.03), 1.03, 0.50, 1.05, true),
            (Mark::AtMost(1.03), 1.01, 1.00, 1.06, false),
            (Mark::AtMost(1.03), 1.04, 1.04, 1.04, false),
            (Mark::Within(0.97, 1.03), 1.00, 0.96, 1.04, true),
            (Mark::Within(0.97, 1.03), 1.00, 0.94, 1.04, false),
            (Mark::Within(0.97, 1.03), 1.04, 1.03, 1.05, false),
            (Mark::Shown, 7.0, 1.0, 9.0, true),
        ] {
            let holds = mark.holds(median, low, high);
            assert_eq!(holds, want, "{mark} {median} [{low}, {high}]");
        }
    }

    #[test]
    fn names_are_unique_and_no_row_is_a_folder_of_itself_only() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|other| other.name != row.name));
            assert!(row.is(row.name) && !row.is(&row.name[..row.name.len() - 1]));
        }
    }
}
