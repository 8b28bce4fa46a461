//! Round-trip time of a cache line between two processors.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::sys::{clock, cpu};

/// Round trips below this count as "near".
///
/// Lies between the two states seen on virtual machines: 110 ns while both virtual processors share
/// a cache, 500 ns while they do not.
pub const NEAR_BELOW: Duration = Duration::from_nanos(250);

/// Duration of one measurement.
const SPAN_NS: u64 = 50_000_000;
/// Longest wait until both threads run at the same time.
const START_NS: u64 = 250_000_000;
/// Round trips timed together. The two clock reads (20 ns each) are small against a batch, and a
/// batch is far shorter than a scheduler tick.
const BATCH: u32 = 128;
/// Most batches in one measurement, at 10 ns a round trip.
const MOST_BATCHES: usize = (SPAN_NS / (BATCH as u64 * 10)) as usize;

/// Value aligned to two cache lines, because processors prefetch lines in pairs. Keeps shared data
/// apart from data of a single thread.
#[repr(align(128))]
struct Line<T>(T);

/// Measures the median time for a cache line to go from processor `a` to `b` and back, over 50 ms.
///
/// Both processors are busy meanwhile. `None` when they are the same, when one of them may not be
/// used, or when they did not run at the same time.
#[must_use]
pub fn cache_line_round_trip(a: u32, b: u32) -> Option<Duration> {
    if a == b {
        return None;
    }
    let ball = Line(AtomicU32::new(0));
    let over = Line(AtomicBool::new(false));
    let (ball, over) = (&ball.0, &over.0);
    thread::scope(|scope| {
        let far = scope.spawn(move || {
            let pinned = cpu::pin(&[b]).is_ok();
            while pinned && !over.load(Ordering::Relaxed) {
                answer(ball);
            }
            pinned
        });
        let near = scope.spawn(move || {
            // Stops the other thread on every return path.
            let _end = End(over);
            cpu::pin(&[a]).ok()?;
            bounce(ball)
        });
        let median = near.join().expect("the bouncing thread does not panic");
        let pinned = far.join().expect("the answering thread does not panic");
        median.filter(|_| pinned)
    })
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Replaces an odd number by the next even one.
#[inline]
fn answer(ball: &AtomicU32) {
    let number = ball.load(Ordering::Acquire);
    if number & 1 == 1 {
        ball.store(number.wrapping_add(1), Ordering::Release);
    }
}

/// Sends odd numbers and waits for even ones; returns the median of the batches.
fn bounce(ball: &AtomicU32) -> Option<Duration> {
    let mut number = 0;
    // The first batch waits for the other thread to start; on a busy machine that takes time
    // slices.
    throw(ball, &mut number, clock::now() + START_NS)?;
    let deadline = clock::now() + SPAN_NS;
    let mut batches = Vec::with_capacity(MOST_BATCHES);
    let mut before = clock::now();
    while before < deadline && batches.len() < MOST_BATCHES {
        if throw(ball, &mut number, deadline).is_none() {
            break;
        }
        let after = clock::now();
        batches.push(after - before);
        before = after;
    }
    let middle = batches.len() / 2;
    if batches.is_empty() {
        return None;
    }
    let (_, median, _) = batches.select_nth_unstable(middle);
    Some(Duration::from_nanos(*median / u64::from(BATCH)))
}

/// Runs one batch; `None` when the deadline passed while waiting.
fn throw(ball: &AtomicU32, number: &mut u32, deadline: u64) -> Option<()> {
    // Polls between two clock reads: about a millisecond.
    const PATIENCE: u32 = 1 << 20;
    for _ in 0..BATCH {
        ball.store(number.wrapping_add(1), Ordering::Release);
        *number = number.wrapping_add(2);
        let mut waits = 0_u32;
        // No pause instruction: on some processors it takes as long as the round trip itself.
        while ball.load(Ordering::Acquire) != *number {
            waits = waits.wrapping_add(1);
            if waits.is_multiple_of(PATIENCE) && clock::now() > deadline {
                return None;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processors_answer_each_other() {
        let usable = cpu::usable().unwrap();
        let [first, .., last] = usable[..] else {
            println!("needs two processors");
            return;
        };
        // Other tests keep the processors busy, so only wide bounds are checked: a round trip takes
        // more than a nanosecond, and an interrupted batch is not the median.
        let time = cache_line_round_trip(first, last);
        println!("{time:?}");
        if let Some(time) = time {
            assert!(time > Duration::from_nanos(1), "{time:?}");
            assert!(time < Duration::from_millis(10), "{time:?}");
        }
    }

    #[test]
    fn one_processor_cannot_measure() {
        let usable = cpu::usable().unwrap();
        assert_eq!(cache_line_round_trip(usable[0], usable[0]), None);
        assert_eq!(cache_line_round_trip(usable[0], 100_000), None);
        assert_eq!(cache_line_round_trip(100_000, usable[0]), None);
    }
}
