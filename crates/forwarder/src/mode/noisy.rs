//! `noisy`: forwards like a network function with a workload: frames are delayed, and each causes
//! accesses to a table in memory.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use linerate_port::{RxQueue, TxQueue};
use linerate_stats::units::{ByteSize, format_exact_duration, parse_duration};
use linerate_sys::clock;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::stream::{
    ForwardMode, FromOptions, FwdStream, HELD_AT_STOP, ModeSettings, StreamFacts, parse_options,
};

/// Cost of each frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoisyPlan {
    /// Delay of each frame.
    pub delay_ns: u64,
    /// Size of the table.
    pub memory_bytes: u64,
    /// Number of words read at random positions of the table per frame.
    pub reads: u32,
    /// Number of words written at random positions of the table per frame.
    pub writes: u32,
}

impl Default for NoisyPlan {
    fn default() -> Self {
        Self {
            delay_ns: 0,
            memory_bytes: 16 << 20,
            reads: 4,
            writes: 0,
        }
    }
}

/// Largest table, limited by the memory of typical test hosts.
const MAX_TABLE_BYTES: u64 = 4 << 30;

impl FromOptions for NoisyPlan {
    const HELP: &'static [(&'static str, &'static str)] = &[
        ("delay=TIME", "delay of each frame (0)"),
        ("memory=SIZE", "size of the table (16M)"),
        (
            "reads=N",
            "words read at random positions of the table per frame (4)",
        ),
        (
            "writes=N",
            "words written at random positions per frame (0)",
        ),
    ];

    fn from_options(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        parse_options(text, |key, value| {
            let number = || {
                let number = value.parse::<u32>().ok().filter(|&n| n <= 100_000);
                number.ok_or_else(|| format!("`{key}={value}` is not within 0 and 100000"))
            };
            match key {
                "delay" => {
                    let delay = parse_duration(value).map_err(|error| error.to_string())?;
                    plan.delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
                }
                "memory" => {
                    let ByteSize(bytes) = value.parse().map_err(|error| format!("{error}"))?;
                    if !(8..=MAX_TABLE_BYTES).contains(&bytes) {
                        return Err(format!("`memory={value}` is not within 8 and 4G"));
                    }
                    plan.memory_bytes = bytes;
                }
                "reads" => plan.reads = number()?,
                "writes" => plan.writes = number()?,
                _ => {
                    return Err(format!(
                        "noisy has no option `{key}`: use delay, memory, reads or writes"
                    ));
                }
            }
            Ok(())
        })?;
        Ok(plan)
    }
}

impl fmt::Display for NoisyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "delay={},memory={},reads={},writes={}",
            format_exact_duration(self.delay_ns),
            self.memory_bytes,
            self.reads,
            self.writes
        )
    }
}

/// Delays frames and accesses memory for each.
pub struct Noisy {
    plan: NoisyPlan,
    table: Vec<u64>,
    random: fastrand::Rng,
    waiting: VecDeque<(u64, Frame)>,
    max_waiting: usize,
    /// Number of frames that waited when the run ended.
    unsent: u64,
    /// Sum of the words read, which keeps the reads from being optimised away.
    read_sum: u64,
}

impl Noisy {
    fn access_memory(&mut self) {
        let table_words = self.table.len();
        for _ in 0..self.plan.reads {
            let index = self.random.usize(..table_words);
            self.read_sum = self.read_sum.wrapping_add(self.table[index]);
        }
        for _ in 0..self.plan.writes {
            let index = self.random.usize(..table_words);
            self.table[index] = self.read_sum ^ index as u64;
        }
    }
}

impl ForwardMode for Noisy {
    type Plan = NoisyPlan;
    const ABOUT: &'static str = "like io, but delays each frame and accesses memory for it";

    fn new(plan: &NoisyPlan, facts: &StreamFacts, settings: &ModeSettings) -> Self {
        let table_words = usize::try_from(plan.memory_bytes / 8).unwrap_or(1).max(1);
        let mut random =
            fastrand::Rng::with_seed(settings.seed.wrapping_add(u64::from(facts.number)));
        Self {
            plan: plan.clone(),
            // Written once, so that all pages are mapped before the first frame.
            table: (0..table_words).map(|_| random.u64(..)).collect(),
            random,
            waiting: VecDeque::with_capacity(facts.max_held_frames as usize),
            max_waiting: facts.max_held_frames as usize,
            unsent: 0,
            read_sum: 0,
        }
    }

    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        _: &FrameRegion,
    ) -> usize {
        if self.plan.delay_ns == 0 {
            let received = stream.receive(pool);
            for _ in 0..received {
                self.access_memory();
            }
            if received > 0 {
                stream.transmit(pool);
            }
            return received;
        }
        let now = clock::now();
        let mut handled = 0;
        if self.waiting.len() + stream.burst.remaining() <= self.max_waiting {
            handled = stream.receive(pool);
            for _ in 0..handled {
                self.access_memory();
            }
            let (waiting, deadline) = (&mut self.waiting, now + self.plan.delay_ns);
            stream.burst.take_front(|frame| {
                waiting.push_back((deadline, frame));
                Ok(())
            });
        }
        while !stream.burst.is_full()
            && self
                .waiting
                .front()
                .is_some_and(|(deadline, _)| *deadline <= now)
        {
            if let Some((_, frame)) = self.waiting.pop_front() {
                let pushed = stream.burst.push(frame);
                debug_assert!(pushed.is_ok(), "the burst is not full");
            }
        }
        if !stream.burst.is_empty() {
            handled += stream.burst.len();
            stream.transmit(pool);
        }
        handled
    }

    fn release_held(&mut self, pool: &mut FramePool) {
        std::hint::black_box(self.read_sum);
        self.unsent = self.waiting.len() as u64;
        for (_, frame) in self.waiting.drain(..) {
            pool.free(frame);
        }
    }

    fn holds_frames(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn next_deadline(&self) -> Option<u64> {
        self.waiting.front().map(|(deadline, _)| *deadline)
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let unsent = (self.unsent > 0).then(|| (HELD_AT_STOP.to_owned(), self.unsent));
        unsent.into_iter().collect()
    }
}
