//! Settings of a start of the forwarder.

use std::str::FromStr;

use linerate_packet::mac_address::MacAddress;
use linerate_record::forward::{IdleStrategy, PortTopology};
use linerate_sys::frames::burst::BURST_FRAMES;

use crate::mode_table::ModeSpec;
use crate::stream::{ModeSettings, TransmitRetry};

/// Settings of a start, as the shell's `set` command changes them.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardSettings {
    pub mode: ModeSpec,
    /// Number of threads; at most one per stream is started.
    pub cores: u32,
    /// Processors of the threads, in their order; empty: the last ones that this process may use.
    pub cpus: Vec<u32>,
    /// True if each thread is pinned to one processor.
    pub is_pinned: bool,
    /// Assignment of transmit ports to receive ports.
    pub topology: PortTopology,
    /// Numbers of the ports that take part; empty: all.
    pub ports: Vec<u32>,
    /// Maximum frames moved by one poll, 1 to 32.
    pub burst: usize,
    /// Bursts that each stream sends before it forwards.
    pub tx_first: u64,
    /// Generated frames, and the seed of random values.
    pub mode_settings: ModeSettings,
    /// Ethernet addresses of the peers behind ports, where given.
    pub peers: Vec<PeerAddress>,
    /// Retries for frames that a full transmit ring rejects; `None`: they are dropped.
    pub retry: Option<TransmitRetry>,
    /// Transmit queues with a limited bit rate.
    pub rates: Vec<QueueRate>,
    /// Behaviour of a thread without work.
    pub idle: IdleStrategy,
    /// True if receive queues are emptied before the start.
    pub flush: bool,
    /// True if the cycles of polls that returned frames are counted.
    pub record_cycles: bool,
    /// True if the residence time of frames in the forwarder is measured.
    pub record_residence: bool,
    /// True if the bit rates of ports are sampled each second.
    pub record_bit_rates: bool,
    /// Frames that are described one by one.
    pub verbose: VerboseLevel,
}

impl Default for ForwardSettings {
    fn default() -> Self {
        Self {
            mode: ModeSpec::default(),
            cores: 1,
            cpus: Vec::new(),
            is_pinned: true,
            topology: PortTopology::default(),
            ports: Vec::new(),
            burst: BURST_FRAMES,
            tx_first: 0,
            mode_settings: ModeSettings::default(),
            peers: Vec::new(),
            retry: None,
            rates: Vec::new(),
            idle: IdleStrategy::default(),
            flush: true,
            record_cycles: false,
            record_residence: false,
            record_bit_rates: false,
            verbose: VerboseLevel::default(),
        }
    }
}

impl ForwardSettings {
    /// Returns the Ethernet address of the peer behind a port: as configured, or derived from the
    /// port number.
    #[must_use]
    pub fn peer_address(&self, port: u32) -> MacAddress {
        let configured = self.peers.iter().rev().find(|peer| peer.port == port);
        configured.map_or(MacAddress::of_port(port), |peer| peer.address)
    }

    /// Returns the number of frames that each stream sends before it forwards.
    #[must_use]
    pub fn first_frames(&self) -> u64 {
        self.tx_first.saturating_mul(self.burst as u64)
    }

    /// Returns the bit rate limit of a transmit queue, as set last; `None` without a limit.
    #[must_use]
    pub fn queue_rate(&self, port: u32, queue: u32) -> Option<u64> {
        let limits = self.rates.iter().rev();
        let mut limits = limits.filter(|rate| (rate.port, rate.queue) == (port, queue));
        limits
            .next()
            .map(|rate| rate.l2_bps)
            .filter(|&rate| rate > 0)
    }
}

/// Ethernet address of the peer behind a port, written `PORT,ADDRESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    pub port: u32,
    pub address: MacAddress,
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, address) = text
            .split_once(',')
            .ok_or_else(|| format!("`{text}` is not PORT,ADDRESS: use 0,02:00:00:00:00:01"))?;
        let port = port
            .parse()
            .map_err(|_| format!("`{port}` is not a port number"))?;
        Ok(Self {
            port,
            address: address.parse()?,
        })
    }
}

/// Bit rate limit of a transmit queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRate {
    pub port: u32,
    pub queue: u32,
    /// Bits per second of frames as counted: from the Ethernet header on, without FCS.
    pub l2_bps: u64,
}

/// Frames that are described one by one, by the levels of testpmd's `set verbose`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerboseLevel(pub u16);

impl VerboseLevel {
    /// Returns whether received frames are described: level 1, or above 2.
    #[must_use]
    pub const fn received(self) -> bool {
        self.0 == 1 || self.0 > 2
    }

    /// Returns whether sent frames are described: level 2 or above.
    #[must_use]
    pub const fn sent(self) -> bool {
        self.0 >= 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_rate_applies() {
        let rate = |port, queue, l2_bps| QueueRate {
            port,
            queue,
            l2_bps,
        };
        let settings = ForwardSettings {
            rates: vec![rate(0, 0, 5), rate(0, 1, 6), rate(0, 0, 7), rate(0, 1, 0)],
            ..ForwardSettings::default()
        };
        assert_eq!(settings.queue_rate(0, 0), Some(7));
        assert_eq!(
            (settings.queue_rate(0, 1), settings.queue_rate(1, 0)),
            (None, None)
        );
    }

    #[test]
    fn levels_select_directions() {
        let directions = |level| (VerboseLevel(level).received(), VerboseLevel(level).sent());
        let all: Vec<_> = (0..5).map(directions).collect();
        let (neither, both) = ((false, false), (true, true));
        assert_eq!(all, [neither, (true, false), (false, true), both, both]);
    }
}
