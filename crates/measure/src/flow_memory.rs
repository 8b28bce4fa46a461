//! Memory of an end's flows, sampled at the end of intervals.

use linerate_host::processor_time::resident_bytes;
use linerate_host::sys::clock::Nanos;
use linerate_metric::cost::MemoryCost;
use linerate_metric::facts::Role;

use crate::coordinator::FlowHandle;
use crate::transport::Watch;

/// Sockets per sample, spread over all flows: each query takes 0.4 us.
const ASKED: usize = 64;

/// Shortest time between two samples: each takes some 50 us.
const AGAIN_NS: Nanos = 100_000_000;

/// Returns `MemAvailable` of `/proc/meminfo` in bytes: memory for new programs without swapping.
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

/// Peak memory of the flows so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Resident memory before the flows were opened.
    before: Option<u64>,
    resident: Option<u64>,
    by_socket: Option<f64>,
    looked_ns: Nanos,
}

impl Memory {
    /// Samples the memory of the process before its flows are opened.
    #[must_use]
    pub fn before_flows() -> Self {
        Self {
            before: resident_bytes(),
            ..Self::default()
        }
    }

    /// Takes a sample, unless the last one is recent.
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

    /// Returns the memory cost; `None` without a sample.
    #[must_use]
    pub fn cost(&self, role: Role, flows: usize) -> Option<MemoryCost> {
        let streams = u32::try_from(flows).ok().filter(|&streams| streams > 0)?;
        let grown = self.resident.zip(self.before);
        // A server keeps the memory of earlier tests, so the growth may be 0: then the cost of
        // these streams is unknown.
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
