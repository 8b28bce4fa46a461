//! A stream: a receive queue, the transmit queue that its frames go to, and the burst between them.

use std::collections::BTreeMap;

use linerate_host::sys::clock;
use linerate_port::{Burst, Memory, Pool, Receive, Transmit};

use super::frame::Mac;
use super::settings::Retry;

/// What a mode may know of its stream before it starts.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Number of the stream, from 0.
    pub number: u32,
    /// Port and queue that frames come from.
    pub from: [u32; 2],
    /// Port and queue that they go to.
    pub to: [u32; 2],
    /// Address of the port that it sends from.
    pub address: Mac,
    /// Address behind that port.
    pub peer: Mac,
    /// Bytes of the largest frame that may be sent.
    pub frame_bytes: u16,
    /// Descriptors of the ring that it sends into, as obtained or as it would have by default.
    pub descriptors: u32,
    /// Frames of the memory for each stream: what a mode may hold back, with some to spare.
    pub share: u32,
    /// Whether frames that go on go nowhere, and no file says how many there will be: nobody waits for its end.
    pub is_aimless: bool,
}

/// One stream, owned by one thread.
pub struct Stream<R, T> {
    /// Where frames come from.
    pub receive: R,
    /// Where they go.
    pub transmit: T,
    /// Frames in the loop's hands.
    pub burst: Burst,
    /// What modes know of it.
    pub facts: Facts,
    /// Frames that the mode took out for good.
    pub taken: u64,
    retry: Option<Retry>,
}

impl<R: Receive, T: Transmit> Stream<R, T> {
    /// A stream with nothing in hand.
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

    /// The same with its queues as another type.
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

    /// Moves what has arrived on, unread, where the two queues have a way of their own for that.
    #[inline(always)]
    pub fn pass(&mut self) -> Option<usize> {
        let most = self.burst.room();
        self.receive.pass(&mut self.transmit, most)
    }

    /// Takes what has arrived into the burst; returns how many frames.
    #[inline(always)]
    pub fn receive(&mut self, pool: &mut Pool) -> usize {
        self.receive.receive(pool, &mut self.burst)
    }

    /// Sends the burst; what the far ring has no room for is tried again, then dropped and counted.
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

    /// Changes the bytes of every frame in hand.
    #[inline(always)]
    pub fn change(&mut self, memory: &Memory, change: impl FnMut(&mut [u8])) {
        self.burst.change(memory, change);
    }

    /// Frees the burst: its frames end here.
    #[inline]
    pub fn take(&mut self, pool: &mut Pool) {
        self.taken += pool.free_all(&mut self.burst) as u64;
    }

    /// Fills the burst with fresh frames of `bytes`; returns how many there are to fill.
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

/// The count of frames that a mode held when the run ended: they came, and never left.
pub const HELD_AT_THE_STOP: &str = "held-at-the-stop";

/// What a mode does with a stream.
pub trait Mode: Send + Sized {
    /// Its options, read from what stands behind its name.
    type Plan: Clone + std::fmt::Debug + PartialEq + std::fmt::Display + FromOptions + Send + Sync;
    /// What it does, in a line.
    const ABOUT: &'static str;
    /// Whether answers leave by the port that the question came in by.
    const OWN_PORT: bool = false;

    /// Whether it makes frames of its own.
    const MAKES_FRAMES: bool = false;

    /// The mode for one stream.
    fn new(plan: &Self::Plan, facts: &Facts, setting: &super::settings::Settings) -> Self;

    /// One poll; returns how many frames it handled (0: nothing to do).
    fn step<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize;

    /// Gives back what it holds, when the run ends.
    fn end(&mut self, pool: &mut Pool) {
        let _ = pool;
    }

    /// Whether it holds frames whose time has yet to come.
    fn holds(&self) -> bool {
        false
    }

    /// When the first of these frames is due; none where it is not known.
    fn due(&self) -> Option<u64> {
        None
    }

    /// What it counted, by name.
    fn counts(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}

/// Options of a mode, as they stand behind its name and a colon.
pub trait FromOptions: Sized {
    /// The options and what they do, for help; empty: none.
    const HELP: &'static [(&'static str, &'static str)];

    /// Reads `key=value,…`.
    ///
    /// # Errors
    /// What is wrong, with an example.
    fn from_options(text: &str) -> Result<Self, String>;
}

/// A mode without options.
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
            _ => Err(format!("this mode has no options, but `{text}` is given")),
        }
    }
}

/// Splits `key=value,…` and hands each pair to `set`.
///
/// # Errors
/// What `set` says, or that a part has no value.
pub(crate) fn each_option(
    text: &str,
    mut set: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<(), String> {
    let mut known: Vec<&str> = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` has no value: write {part}=VALUE"))?;
        let key = key.trim();
        if known.contains(&key) {
            return Err(format!("`{key}` is given twice: leave one out"));
        }
        set(key, value.trim())?;
        known.push(key);
    }
    Ok(())
}
