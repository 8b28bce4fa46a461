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
    /// Addresses behind ports, where they were named.
    pub peers: Vec<Peer>,
    /// What is tried for frames that the far ring has no room for; none: they are dropped.
    pub retry: Option<Retry>,
    /// What a thread does when there is nothing to do.
    pub idle: Idle,
    /// Whether receive queues are emptied before the start.
    pub flush: bool,
    /// Whether the sizes of bursts are counted.
    pub record_bursts: bool,
    /// Whether cycles of polls that gave frames are counted.
    pub record_cycles: bool,
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
            peers: Vec::new(),
            retry: None,
            idle: Idle::default(),
            flush: true,
            record_bursts: false,
            record_cycles: false,
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
