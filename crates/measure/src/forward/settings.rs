//! What a start of the forwarder is told.

use std::str::FromStr;

use linerate_metric::forward::{Idle, PortTopology};
use linerate_port::BURST_FRAMES;

use super::frame::{FrameSpec, Mac};
use super::modes::ModeSpec;

/// Settings of a start; what the shell's `set` changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What happens to frames.
    pub mode: ModeSpec,
    /// Threads, at most as many as there are streams.
    pub cores: u32,
    /// Processors for the threads, in their order; empty: the last ones that this process may use.
    pub cpus: Vec<u32>,
    /// Whether threads stay on one processor each.
    pub pinned: bool,
    /// Where streams send.
    pub topology: PortTopology,
    /// Ports that take part; empty: all.
    pub ports: Vec<u32>,
    /// Frames moved by one poll, 1 to 32.
    pub burst: usize,
    /// Bursts that each stream sends before it forwards.
    pub tx_first: u64,
    /// Frames that are made here.
    pub frame: FrameSpec,
    /// Flows that `txonly` sends (by source address), 1 or more.
    pub transmit_flows: u32,
    /// Flows that `flowgen` sends (by destination address).
    pub generated_flows: u32,
    /// Copies of each frame that `flowgen` sends behind it, before the next flow's turn.
    pub flow_clones: u32,
    /// Addresses behind ports, where they were named.
    pub peers: Vec<Peer>,
    /// What is tried for frames that the far ring has no room for; none: they are dropped.
    pub retry: Option<Retry>,
    /// Transmit queues that are held to a bit rate.
    pub rates: Vec<QueueRate>,
    /// What a thread does when there is nothing to do.
    pub idle: Idle,
    /// Whether receive queues are emptied before the start.
    pub flush: bool,
    /// Whether the sizes of bursts are counted.
    pub record_bursts: bool,
    /// Whether cycles of polls that gave frames are counted.
    pub record_cycles: bool,
    /// Whether the time that frames spend in the forwarder is measured.
    pub record_residence: bool,
    /// Whether ports' bit rates are looked at each second.
    pub record_bit_rates: bool,
    /// Which frames are described one by one.
    pub verbose: Verbose,
    /// Seed of everything drawn.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: ModeSpec::default(),
            cores: 1,
            cpus: Vec::new(),
            pinned: true,
            topology: PortTopology::default(),
            ports: Vec::new(),
            burst: BURST_FRAMES,
            tx_first: 0,
            frame: FrameSpec::default(),
            transmit_flows: 1,
            generated_flows: 1024,
            flow_clones: 0,
            peers: Vec::new(),
            retry: None,
            rates: Vec::new(),
            idle: Idle::default(),
            flush: true,
            record_bursts: false,
            record_cycles: false,
            record_residence: false,
            record_bit_rates: false,
            verbose: Verbose::default(),
            seed: 1,
        }
    }
}

impl Settings {
    /// The address behind a port: as it was named, or made from the port's number.
    #[must_use]
    pub fn peer(&self, port: u32) -> Mac {
        let named = self.peers.iter().rev().find(|peer| peer.port == port);
        named.map_or(Mac::of_port(port), |peer| peer.address)
    }

    /// Frames that each stream sends before it forwards.
    #[must_use]
    pub fn first_frames(&self) -> u64 {
        self.tx_first.saturating_mul(self.burst as u64)
    }

    /// The bit rate that a transmit queue is held to: the one that was said last; none where it is not.
    #[must_use]
    pub fn rate(&self, port: u32, queue: u32) -> Option<u64> {
        let said = self.rates.iter().rev();
        let mut said = said.filter(|rate| (rate.port, rate.queue) == (port, queue));
        said.next().map(|rate| rate.l2_bps).filter(|&rate| rate > 0)
    }
}

/// The address behind a port: `PORT,ADDRESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The port.
    pub port: u32,
    /// The address.
    pub address: Mac,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, address) = text
            .split_once(',')
            .ok_or_else(|| format!("`{text}` is no PORT,ADDRESS: write 0,02:00:00:00:00:01"))?;
        let port = port
            .parse()
            .map_err(|_| format!("`{port}` is no number of a port"))?;
        Ok(Self {
            port,
            address: address.parse()?,
        })
    }
}

/// A transmit queue that is held to a bit rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRate {
    /// The port.
    pub port: u32,
    /// Its queue.
    pub queue: u32,
    /// Bits per second, of frames as they are counted: from the Ethernet header on, without check sequence.
    pub l2_bps: u64,
}

/// Which frames are described one by one, by the levels of testpmd's `set verbose`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbose(pub u16);

impl Verbose {
    /// Frames that are received: 1, or more than 2.
    #[must_use]
    pub const fn received(self) -> bool {
        self.0 == 1 || self.0 > 2
    }

    /// Frames that are sent: 2 or more.
    #[must_use]
    pub const fn sent(self) -> bool {
        self.0 >= 2
    }
}

/// What is tried for frames that the far ring has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Times.
    pub times: u32,
    /// Microseconds before each.
    pub delay_us: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            times: 64,
            delay_us: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_that_was_said_last_holds() {
        let rate = |port, queue, l2_bps| QueueRate {
            port,
            queue,
            l2_bps,
        };
        let settings = Settings {
            rates: vec![rate(0, 0, 5), rate(0, 1, 6), rate(0, 0, 7), rate(0, 1, 0)],
            ..Settings::default()
        };
        assert_eq!(settings.rate(0, 0), Some(7));
        assert_eq!((settings.rate(0, 1), settings.rate(1, 0)), (None, None));
    }

    #[test]
    fn levels_tell_directions_apart() {
        let of = |level| (Verbose(level).received(), Verbose(level).sent());
        let all: Vec<_> = (0..5).map(of).collect();
        let (no, both) = ((false, false), (true, true));
        assert_eq!(all, [no, (true, false), (false, true), both, both]);
    }
}
