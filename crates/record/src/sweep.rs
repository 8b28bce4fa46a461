//! Result of `sweep`: a matrix of settings with the figure measured at each.

use linerate_stats::statistics::Estimate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::comparison::BetterWhen;
use crate::experiment::{KnobAxis, KnobValues};
use crate::record::{Record, SocketFacts};

/// Result of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// Measuring command without the varied options.
    pub command: String,
    /// Name of the figure for `--figure`.
    pub figure: String,
    /// Direction in which the figure improves.
    pub better: BetterWhen,
    /// Seed of the random order.
    pub seed: u64,
    /// Planned runs per point.
    pub repeats: u32,
    /// Varied knobs with their values in order.
    pub axes: Vec<KnobAxis>,
    /// Points of the matrix; the last axis varies fastest.
    pub points: Vec<SweepPoint>,
    /// Index of the best point, from 0; absent if no point has the figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<usize>,
}

/// Point of the matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SweepPoint {
    /// Value of each axis.
    pub setting: KnobValues,
    /// Median and interval of the figure; absent if no run gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Estimate>,
    /// Bytes of the socket buffers of the payload, as the kernel granted them: send buffers of the
    /// senders and receive buffers of the receivers, all flows. With the user-space stack at an end: all of
    /// its memory instead. Includes the memory that knobs declare. Median of the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
    /// Processor time of both ends per byte or per round trip, ns. Median of the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<f64>,
    /// True if the point is Pareto-optimal: no other point is as good with less memory (or less
    /// processor time, if memory is unknown).
    pub pareto: bool,
    /// Reason for a missing figure, or for fewer runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Ids of its records.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<String>,
}

/// Returns the buffer bytes of a run's payload. With the user-space stack at an end this is all of the stack's
/// memory, because an embedded host needs as much; else it is the buffers of both ends' sockets.
/// `None` if an end did not report them.
#[must_use]
pub fn buffer_bytes(run: &Record) -> Option<f64> {
    let stacks = run.hosts.iter().filter_map(|host| host.stack.as_ref());
    let stacks: Vec<u64> = stacks.map(|stack| stack.memory.bytes).collect();
    if !stacks.is_empty() {
        return Some(stacks.iter().sum::<u64>() as f64);
    }
    let streams = run
        .directions
        .iter()
        .flat_map(|direction| &direction.streams);
    let bytes = streams.map(|stream| {
        let buffer_of = |socket: &Option<SocketFacts>, read: fn(&SocketFacts) -> Option<u64>| {
            socket.as_ref().and_then(read)
        };
        let sent = buffer_of(&stream.sender, |socket| socket.send_buffer_bytes)?;
        let received = buffer_of(&stream.receiver, |socket| socket.receive_buffer_bytes)?;
        Some(sent + received)
    });
    let bytes: Option<Vec<u64>> = bytes.collect();
    bytes
        .filter(|bytes| !bytes.is_empty())
        .map(|bytes| bytes.iter().sum::<u64>() as f64)
}
