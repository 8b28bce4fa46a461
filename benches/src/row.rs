//! What is compared, as a table.

use std::fmt;

use crate::ground::{Control, Ground};
use crate::rows::{forward, growth, guard, latency, memory, stack, throughput, xdp};
use crate::trouble::Trouble;

/// Measures one side once; gives the figure in the row's unit.
pub type Run = fn(&Ground) -> Result<f64, Trouble>;

/// One comparison.
pub struct Row {
    /// Spells the setting; stable for scripts.
    pub name: &'static str,
    /// What ours is compared with.
    pub against: &'static str,
    /// Unit of both figures.
    pub unit: &'static str,
    /// What the ratio ours / theirs is to be.
    pub mark: Mark,
    /// Whether it is about speed: a pair counts only when the machine stayed in one state.
    pub speed: bool,
    /// Whether its mark is of the near state alone: elsewhere it is measured and not judged.
    pub near: bool,
    /// Whether idle states are held off for both sides; otherwise cores halt as the machine has it.
    pub held: bool,
    /// The congestion control of programs that ask for none.
    pub control: Control,
    /// Whether it is left out unless LONG=1.
    pub long: bool,
    /// Pairs at most, where more tell nothing.
    pub most_pairs: Option<usize>,
    /// Short runs of each side, in turn, that make one pair: of loops in this process, which need not be long. The shorter
    /// they are, the seldomer the machine's pace changes between one and the other.
    pub slices: usize,
    /// Fails with [`Trouble::Skip`] where something that the row needs is not installed.
    pub needs: fn(&Ground) -> Result<(), Trouble>,
    /// Measures ours.
    pub ours: Run,
    /// What it is compared with: the best of these, found in a round of its own before.
    pub theirs: &'static [Peer],
}

/// One of those that ours is compared with.
pub struct Peer {
    /// Its name, for the table.
    pub name: &'static str,
    /// Fails with [`Trouble::Skip`] where it cannot take part.
    pub needs: fn(&Ground) -> Result<(), Trouble>,
    /// Measures it once.
    pub run: Run,
}

impl Peer {
    /// The only one.
    pub const fn only(run: Run) -> Self {
        Self {
            name: "",
            needs: |_| Ok(()),
            run,
        }
    }
}

/// Every row, in the order it runs.
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
    /// Whether `name` means this row: its name, or a folder of it.
    pub fn is(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// What a ratio ours / theirs is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mark {
    /// More is better.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
    /// Neither more nor less.
    Within(f64, f64),
    /// Only to be seen.
    Shown,
}

/// How far the interval may reach beyond the mark, as a share of it.
const TOLERANCE: f64 = 0.02;

impl Mark {
    /// Whether more is better, for what ours is compared with as well.
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::AtLeast(_) | Self::Shown)
    }

    /// Whether a median with its interval meets it.
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
