//! Stream: a receive queue, the transmit queue that its frames go to, and the burst between them.

use std::collections::BTreeMap;

use linerate_packet::frame::{FlowAddress, FlowFrames, FrameSpec};
use linerate_packet::mac_address::MacAddress;
use linerate_port::{RxQueue, TxQueue};
use linerate_sys::clock;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

/// Properties of a stream that its mode receives before the start.
#[derive(Clone, Debug)]
pub struct StreamFacts {
    /// Number of the stream, from 0.
    pub number: u32,
    /// Ethernet address of the transmit port.
    pub address: MacAddress,
    /// Ethernet address of the peer behind that port.
    pub peer: MacAddress,
    /// Length of the longest frame that may be sent.
    pub frame_bytes: u16,
    /// Maximum number of frames that a mode may hold back in this stream.
    pub max_held_frames: u32,
    /// True if the transmit port discards frames and no capture bounds their number: a run does not
    /// wait for its end.
    pub is_discarded: bool,
}

/// Retries for frames that a full transmit ring rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitRetry {
    /// Number of retries.
    pub times: u32,
    /// Microseconds before each retry.
    pub delay_us: u32,
}

impl Default for TransmitRetry {
    fn default() -> Self {
        Self {
            times: 64,
            delay_us: 1,
        }
    }
}

/// Stream of one thread.
pub struct FwdStream<R, T> {
    pub receive: R,
    pub transmit: T,
    /// Frames between the two queues.
    pub burst: Burst,
    pub facts: StreamFacts,
    /// Number of frames that the mode consumed.
    pub consumed: u64,
    retry: Option<TransmitRetry>,
}

impl<R: RxQueue, T: TxQueue> FwdStream<R, T> {
    /// Creates a stream without frames.
    pub fn new(
        receive: R,
        transmit: T,
        burst: usize,
        retry: Option<TransmitRetry>,
        facts: StreamFacts,
    ) -> Self {
        Self {
            receive,
            transmit,
            burst: Burst::with_limit(burst),
            facts,
            consumed: 0,
            retry,
        }
    }

    /// Converts the queues to other types.
    pub fn map<R2, T2>(self, queues: impl FnOnce(R, T) -> (R2, T2)) -> FwdStream<R2, T2> {
        let (receive, transmit) = queues(self.receive, self.transmit);
        FwdStream {
            receive,
            transmit,
            burst: self.burst,
            facts: self.facts,
            consumed: self.consumed,
            retry: self.retry,
        }
    }

    /// Forwards the received frames unread, if the two queues have a direct path for that.
    #[inline(always)]
    pub fn pass_through(&mut self) -> Option<usize> {
        let max_frames = self.burst.remaining();
        self.receive.forward_direct(&mut self.transmit, max_frames)
    }

    /// Receives frames into the burst; returns their number.
    #[inline(always)]
    pub fn receive(&mut self, pool: &mut FramePool) -> usize {
        self.receive.receive(pool, &mut self.burst)
    }

    /// Sends the burst. Frames that a full ring rejects are retried, then dropped and counted.
    #[inline(always)]
    pub fn transmit(&mut self, pool: &mut FramePool) {
        self.transmit.transmit(pool, &mut self.burst);
        if !self.burst.is_empty() {
            self.retry_or_drop(pool);
        }
    }

    #[cold]
    #[inline(never)]
    fn retry_or_drop(&mut self, pool: &mut FramePool) {
        let TransmitRetry { times, delay_us } = self.retry.unwrap_or(TransmitRetry {
            times: 0,
            delay_us: 0,
        });
        for _ in 0..times {
            let deadline = clock::now() + u64::from(delay_us) * 1000;
            while clock::now() < deadline {
                std::hint::spin_loop();
            }
            self.transmit.transmit(pool, &mut self.burst);
            if self.burst.is_empty() {
                return;
            }
        }
        self.transmit.drop_unsent(pool, &mut self.burst);
    }

    /// Changes the bytes of each frame of the burst.
    #[inline(always)]
    pub fn modify(&mut self, memory: &FrameRegion, change: impl FnMut(&mut [u8])) {
        self.burst.for_each_mut(memory, change);
    }

    /// Receives a burst, changes the bytes of each frame and sends it; returns the number of frames
    /// received.
    #[inline(always)]
    pub fn forward_modified(
        &mut self,
        pool: &mut FramePool,
        memory: &FrameRegion,
        change: impl FnMut(&mut [u8]),
    ) -> usize {
        let received = self.receive(pool);
        if received > 0 {
            self.modify(memory, change);
            self.transmit(pool);
        }
        received
    }

    /// Frees the burst and counts its frames as consumed.
    #[inline]
    pub fn consume(&mut self, pool: &mut FramePool) {
        self.consumed += pool.free_all(&mut self.burst) as u64;
    }

    /// Fills the burst with new frames of `bytes`; returns their number.
    #[inline]
    pub fn fill(&mut self, pool: &mut FramePool, bytes: u16) -> usize {
        let present = self.burst.len();
        let new_frames = pool.allocate_burst(&mut self.burst, usize::MAX);
        for frame in &mut self.burst.frames_mut()[present..] {
            frame.set_len(bytes);
        }
        new_frames
    }
}

/// Name of the count of frames that a mode held at the end of the run: received but never sent.
pub const HELD_AT_STOP: &str = "held-at-the-stop";

/// Settings that modes read at a start.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeSettings {
    /// Contents of generated frames.
    pub frame: FrameSpec,
    /// Flows that `txonly` sends (by source address), at least 1.
    pub transmit_flows: u32,
    /// Flows that `flowgen` sends (by destination address).
    pub generated_flows: u32,
    /// Copies of each frame that `flowgen` sends after it, before the next flow.
    pub flow_clones: u32,
    /// Seed of all random values.
    pub seed: u64,
}

impl ModeSettings {
    /// Returns generated frames of `flows` flows, which differ in one address, for a stream. They
    /// are no longer than its ports allow.
    #[must_use]
    pub fn flow_frames(
        &self,
        facts: &StreamFacts,
        flows: u32,
        varied_address: FlowAddress,
    ) -> FlowFrames {
        let spec = FrameSpec {
            bytes: self.frame.bytes.min(facts.frame_bytes),
            ..self.frame.clone()
        };
        FlowFrames::new(&spec, facts.address, facts.peer, flows, varied_address)
    }
}

impl Default for ModeSettings {
    fn default() -> Self {
        Self {
            frame: FrameSpec::default(),
            transmit_flows: 1,
            generated_flows: 1024,
            flow_clones: 0,
            seed: 1,
        }
    }
}

/// Forwarding mode: the treatment of the frames of a stream.
pub trait ForwardMode: Send + Sized {
    /// Options of the mode, parsed from the text after its name.
    type Plan: Clone + std::fmt::Debug + PartialEq + std::fmt::Display + FromOptions + Send + Sync;
    /// Description in one line.
    const ABOUT: &'static str;
    /// True if replies leave by the port that received the request.
    const REPLIES_ON_RX_PORT: bool = false;

    /// True if the mode generates frames.
    const MAKES_FRAMES: bool = false;

    /// Creates the mode for one stream.
    fn new(plan: &Self::Plan, facts: &StreamFacts, settings: &ModeSettings) -> Self;

    /// Performs one poll; returns the number of frames handled (0: no work).
    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize;

    /// Frees the held frames at the end of the run.
    fn release_held(&mut self, pool: &mut FramePool) {
        let _ = pool;
    }

    /// Returns whether the mode holds frames with a deadline in the future.
    fn holds_frames(&self) -> bool {
        false
    }

    /// Returns the first deadline of the held frames; `None` if unknown.
    fn next_deadline(&self) -> Option<u64> {
        None
    }

    /// Returns the counts of the mode by name.
    fn counts(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}

/// Work that is compiled for each mode.
pub trait ModeTask {
    type Result;

    /// Runs in mode `M` with these options.
    fn run<M: ForwardMode>(self, plan: &M::Plan) -> Self::Result;
}

/// Options of a mode, parsed from the text after its name and a colon.
pub trait FromOptions: Sized {
    /// Options and their descriptions for the help.
    const HELP: &'static [(&'static str, &'static str)];

    /// Parses `key=value,…`.
    ///
    /// # Errors
    /// Text of the error, with an example.
    fn from_options(text: &str) -> Result<Self, String>;
}

/// Options of a mode that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoOptions;

impl std::fmt::Display for NoOptions {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

impl FromOptions for NoOptions {
    const HELP: &'static [(&'static str, &'static str)] = &[];

    fn from_options(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self),
            _ => Err(format!("this mode has no options, but `{text}` was given")),
        }
    }
}

/// Splits `key=value,…` and passes each pair to `set`.
///
/// # Errors
/// The error of `set`, or a part without a value.
pub fn parse_options(
    text: &str,
    mut set: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<(), String> {
    let mut seen_keys: Vec<&str> = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` has no value: use {part}=VALUE"))?;
        let key = key.trim();
        if seen_keys.contains(&key) {
            return Err(format!("`{key}` is given twice: leave one out"));
        }
        set(key, value.trim())?;
        seen_keys.push(key);
    }
    Ok(())
}
