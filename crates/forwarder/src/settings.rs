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
            idle: IdleStrategy::default(),
            flush: true,
            record_cycles: false,
            record_residence: false,
            record_bit_rates: false,
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
