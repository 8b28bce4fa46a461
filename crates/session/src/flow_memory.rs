//! Memory of an end's flows, sampled at the end of intervals.

use linerate_host::processor_time::resident_bytes;
use linerate_record::cost::MemoryCost;
use linerate_record::facts::Role;
use linerate_sys::clock::Nanos;
use linerate_transport::SocketWatch;

use crate::flow_handle::FlowHandle;

/// Sockets per sample, spread over all flows: each query takes 0.4 us.
const SOCKETS_PER_SAMPLE: usize = 64;

/// Shortest time between two samples: each takes some 50 us.
const SAMPLE_INTERVAL_NS: Nanos = 100_000_000;

/// Peak memory of the flows so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowMemory {
    /// Resident memory before the flows were opened.
    bytes_before: Option<u64>,
    peak_bytes: Option<u64>,
    peak_socket_bytes: Option<f64>,
    sampled_ns: Nanos,
}

impl FlowMemory {
    /// Samples the memory of the process before its flows are opened.
    #[must_use]
    pub fn before_flows() -> Self {
        Self {
            bytes_before: resident_bytes(),
            ..Self::default()
        }
    }

    /// Takes a sample, unless the last one is recent.
    pub fn sample(&mut self, flows: &[FlowHandle], now: Nanos) {
        if now < self.sampled_ns + SAMPLE_INTERVAL_NS {
            return;
        }
        self.sampled_ns = now;
        self.peak_bytes = self.peak_bytes.max(resident_bytes());
        let step = flows.len().div_ceil(SOCKETS_PER_SAMPLE).max(1);
        let socket_bytes: Vec<u64> = flows
            .iter()
            .step_by(step)
            .filter_map(|flow| {
                flow.socket_watch
                    .as_ref()
                    .and_then(SocketWatch::queued_memory)
            })
            .collect();
        if !socket_bytes.is_empty() {
            let mean = socket_bytes.iter().sum::<u64>() as f64 / socket_bytes.len() as f64;
            self.peak_socket_bytes =
                Some(self.peak_socket_bytes.map_or(mean, |peak| peak.max(mean)));
        }
    }

    /// Returns the memory cost; `None` without a sample.
    #[must_use]
    pub fn cost(&self, role: Role, flows: usize) -> Option<MemoryCost> {
        let streams = u32::try_from(flows).ok().filter(|&streams| streams > 0)?;
        let growth = self.peak_bytes.zip(self.bytes_before);
        // A server keeps the memory of earlier tests, so the growth may be 0: then the cost of
        // these streams is unknown.
        let growth = growth.map(|(now, before)| now.saturating_sub(before) as f64);
        let growth = growth.filter(|&growth| growth > 0.0);
        let cost = MemoryCost {
            role,
            streams,
            process_bytes_per_stream: growth.map(|growth| growth / f64::from(streams)),
            socket_bytes_per_stream: self.peak_socket_bytes,
        };
        let any_figure = cost
            .process_bytes_per_stream
            .or(cost.socket_bytes_per_stream);
        any_figure.map(|_| cost)
    }
}
