//! What the flows of an end take in memory, looked at when intervals end.

use linerate_host::processor_time::resident_bytes;
use linerate_host::sys::clock::Nanos;
use linerate_metric::cost::MemoryCost;
use linerate_metric::facts::Role;

use crate::end::FlowHandle;
use crate::transport::Watch;

/// Sockets that are asked at a time: 0.4 us each, spread over all flows.
const ASKED: usize = 64;

/// Time between two looks, at least: one takes some 50 us.
const AGAIN_NS: Nanos = 100_000_000;

/// Memory that programs can have before others lose theirs: `MemAvailable` of `/proc/meminfo`.
#[must_use]
pub fn available() -> Option<u64> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The most that was seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Resident memory before the flows were opened.
    before: Option<u64>,
    resident: Option<u64>,
    by_socket: Option<f64>,
    looked_ns: Nanos,
}

impl Memory {
    /// Begins with what the process has before its flows are opened.
    #[must_use]
    pub fn before_flows() -> Self {
        Self {
            before: resident_bytes(),
            ..Self::default()
        }
    }

    /// Looks, unless it has just done so.
    pub fn look(&mut self, flows: &[FlowHandle], now: Nanos) {
        if now < self.looked_ns + AGAIN_NS {
            return;
        }
        self.looked_ns = now;
        self.resident = self.resident.max(resident_bytes());
        let step = flows.len().div_ceil(ASKED).max(1);
        let held: Vec<u64> = flows
            .iter()
            .step_by(step)
            .filter_map(|flow| flow.watch.as_ref().and_then(Watch::queued_memory))
            .collect();
        if !held.is_empty() {
            let mean = held.iter().sum::<u64>() as f64 / held.len() as f64;
            self.by_socket = Some(self.by_socket.map_or(mean, |most| most.max(mean)));
        }
    }

    /// What it comes to; `None` when nobody looked.
    #[must_use]
    pub fn cost(&self, role: Role, flows: usize) -> Option<MemoryCost> {
        let streams = u32::try_from(flows).ok().filter(|&streams| streams > 0)?;
        let grown = self.resident.zip(self.before);
        // A server that served before has its memory already: then what these streams take is not
        // known, which is not nothing.
        let grown = grown.map(|(now, before)| now.saturating_sub(before) as f64);
        let grown = grown.filter(|&grown| grown > 0.0);
        let cost = MemoryCost {
            role,
            streams,
            process_bytes_per_stream: grown.map(|grown| grown / f64::from(streams)),
            socket_bytes_per_stream: self.by_socket,
        };
        let known = cost
            .process_bytes_per_stream
            .or(cost.socket_bytes_per_stream);
        known.map(|_| cost)
    }
}
