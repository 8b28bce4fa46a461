//! A matrix of settings and what came out at each: what `sweep` finds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::comparison::Better;
use crate::experiment::{Knob, Setting};
use crate::record::{Record, Socket};
use crate::statistics::Estimate;

/// What a sweep found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// The measuring command without what is varied.
    pub command: String,
    /// The figure, by the name that `--figure` knows.
    pub figure: String,
    /// Which way it is better.
    pub better: Better,
    /// The seed of the random order.
    pub seed: u64,
    /// How often each point was to be measured.
    pub repeats: u32,
    /// What was varied, with its values in their order.
    pub axes: Vec<Knob>,
    /// Every point, the last axis the fastest.
    pub points: Vec<SweepPoint>,
    /// Number of the best point from 0; absent when none has the figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<usize>,
}

/// One setting of everything that is varied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SweepPoint {
    /// The value of each axis.
    pub setting: Setting,
    /// Median and interval of the figure; absent when no run gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Estimate>,
    /// Bytes of the socket buffers that the payload went through, as the kernel granted them: the senders'
    /// send buffers and the receivers' receive buffers of all flows. With our own stack at an end: all that
    /// it has instead. For knobs that say what they take, that is added. The median of the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
    /// Processor time of both ends for what was moved: ns per byte, or per round trip. The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<f64>,
    /// Whether no other point is as good with less memory (with less processor time, where memory is not
    /// known).
    pub pareto: bool,
    /// Why it has no figure, or fewer runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Ids of its records.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<String>,
}

/// Bytes that a run's payload went through: where our own stack stood at an end, all that it has, as that
/// is what an embedded host has to find; else the buffers of both ends' sockets. `None` where an end did
/// not tell.
#[must_use]
pub fn buffer_bytes(run: &Record) -> Option<f64> {
    let stacks = run.hosts.iter().filter_map(|host| host.stack.as_ref());
    let stacks: Vec<u64> = stacks.map(|stack| stack.memory.bytes).collect();
    if !stacks.is_empty() {
        return Some(stacks.iter().sum::<u64>() as f64);
    }
    let streams = run.directions.iter().flat_map(|way| &way.streams);
    let bytes = streams.map(|stream| {
        let of = |socket: &Option<Socket>, read: fn(&Socket) -> Option<u64>| {
            socket.as_ref().and_then(read)
        };
        let sent = of(&stream.sender, |socket| socket.send_buffer_bytes)?;
        let received = of(&stream.receiver, |socket| socket.receive_buffer_bytes)?;
        Some(sent + received)
    });
    let bytes: Option<Vec<u64>> = bytes.collect();
    bytes
        .filter(|bytes| !bytes.is_empty())
        .map(|bytes| bytes.iter().sum::<u64>() as f64)
}
