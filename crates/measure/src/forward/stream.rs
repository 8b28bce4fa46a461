//! Stream: a receive queue, the transmit queue that its frames go to, and the burst between them.

use std::collections::BTreeMap;

use linerate_host::sys::clock;
use linerate_port::{Burst, Memory, Pool, Receive, Transmit};

use super::frame::Mac;
use super::settings::Retry;

/// Properties of a stream that its mode receives before the start.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Number of the stream, from 0.
    pub number: u32,
    /// Receive port and queue.
    pub from: [u32; 2],
    /// Transmit port and queue.
    pub to: [u32; 2],
    /// Ethernet address of the transmit port.
    pub address: Mac,
    /// Ethernet address of the peer behind that port.
    pub peer: Mac,
    /// Length of the longest frame that may be sent.
    pub frame_bytes: u16,
    /// Descriptors of the transmit ring, as obtained or by default.
    pub descriptors: u32,
    /// Maximum number of frames that a mode may hold back in this stream.
    pub share: u32,
    /// True if the transmit port discards frames and no capture bounds their number: a run does not
    /// wait for its end.
    pub is_aimless: bool,
}

/// Stream of one thread.
pub struct Stream<R, T> {
    pub receive: R,
    pub transmit: T,
    /// Frames between the two queues.
    pub burst: Burst,
    pub facts: Facts,
    /// Number of frames that the mode consumed.
    pub taken: u64,
    retry: Option<Retry>,
}

impl<R: Receive, T: Transmit> Stream<R, T> {
    /// Creates a stream without frames.
    pub fn new(receive: R, transmit: T, burst: usize, retry: Option<Retry>, facts: Facts) -> Self {
        Self {
            receive,
            transmit,
            burst: Burst::with_limit(burst),
            facts,
            taken: 0,
            retry,
        }
    }

    /// Converts the queues to other types.
    pub fn map<R2, T2>(self, queues: impl FnOnce(&Facts, R, T) -> (R2, T2)) -> Stream<R2, T2> {
        let (receive, transmit) = queues(&self.facts, self.receive, self.transmit);
        Stream {
            receive,
            transmit,
            burst: self.burst,
            facts: self.facts,
            taken: self.taken,
            retry: self.retry,
        }
    }

    /// Forwards the received frames unread, if the two queues have a direct path for that.
    #[inline(always)]
    pub fn pass(&mut self) -> Option<usize> {
        let most = self.burst.room();
        self.receive.pass(&mut self.transmit, most)
    }

    /// Receives frames into the burst; returns their number.
    #[inline(always)]
    pub fn receive(&mut self, pool: &mut Pool) -> usize {
        self.receive.receive(pool, &mut self.burst)
    }

    /// Sends the burst. Frames that a full ring rejects are retried, then dropped and counted.
    #[inline(always)]
    pub fn transmit(&mut self, pool: &mut Pool) {
        self.transmit.transmit(pool, &mut self.burst);
        if !self.burst.is_empty() {
            self.left(pool);
        }
    }

    #[cold]
    #[inline(never)]
    fn left(&mut self, pool: &mut Pool) {
        let Retry { times, delay_us } = self.retry.unwrap_or(Retry {
            times: 0,
            delay_us: 0,
        });
        for _ in 0..times {
            let until = clock::now() + u64::from(delay_us) * 1000;
            while clock::now() < until {
                std::hint::spin_loop();
            }
            self.transmit.transmit(pool, &mut self.burst);
            if self.burst.is_empty() {
                return;
            }
        }
        self.transmit.refuse(pool, &mut self.burst);
    }

    /// Changes the bytes of each frame of the burst.
    #[inline(always)]
    pub fn change(&mut self, memory: &Memory, change: impl FnMut(&mut [u8])) {
        self.burst.change(memory, change);
    }

    /// Frees the burst and counts its frames as consumed.
    #[inline]
    pub fn take(&mut self, pool: &mut Pool) {
        self.taken += pool.free_all(&mut self.burst) as u64;
    }

    /// Fills the burst with new frames of `bytes`; returns their number.
    #[inline]
    pub fn fill(&mut self, pool: &mut Pool, bytes: u16) -> usize {
        let held = self.burst.len();
        let fresh = pool.allocate_burst(&mut self.burst, usize::MAX);
        for frame in &mut self.burst.frames_mut()[held..] {
            frame.set_len(bytes);
        }
        fresh
    }
}

/// Name of the count of frames that a mode held at the end of the run: received but never sent.
pub const HELD_AT_THE_STOP: &str = "held-at-the-stop";

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
    fn new(plan: &Self::Plan, facts: &Facts, setting: &super::settings::Settings) -> Self;

    /// Performs one poll; returns the number of frames handled (0: no work).
    fn step<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize;

    /// Frees the held frames at the end of the run.
    fn end(&mut self, pool: &mut Pool) {
        let _ = pool;
    }

    /// Returns whether the mode holds frames with a deadline in the future.
    fn holds(&self) -> bool {
        false
    }

    /// Returns the first deadline of the held frames; `None` if unknown.
    fn due(&self) -> Option<u64> {
        None
    }

    /// Returns the counts of the mode by name.
    fn counts(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
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
pub struct NoPlan;

impl std::fmt::Display for NoPlan {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

impl FromOptions for NoPlan {
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
pub(crate) fn each_option(
    text: &str,
    mut set: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<(), String> {
    let mut known: Vec<&str> = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` has no value: use {part}=VALUE"))?;
        let key = key.trim();
        if known.contains(&key) {
            return Err(format!("`{key}` is given twice: leave one out"));
        }
        set(key, value.trim())?;
        known.push(key);
    }
    Ok(())
}
