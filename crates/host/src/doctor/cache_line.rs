//! Round-trip time of a cache line between two processors.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use linerate_sys::{clock, cpu};

/// Round trips below this count as "near".
///
/// Lies between the two states seen on virtual machines: 110 ns while both virtual processors share
/// a cache, 500 ns while they do not.
pub const NEAR_LIMIT: Duration = Duration::from_nanos(250);

/// Duration of one measurement.
const MEASURE_NS: u64 = 50_000_000;
/// Longest wait until both threads run at the same time.
const START_TIMEOUT_NS: u64 = 250_000_000;
/// Round trips timed together. The two clock reads (20 ns each) are small against a batch, and a
/// batch is far shorter than a scheduler tick.
const BATCH_ROUND_TRIPS: u32 = 128;
/// Most batches in one measurement, at 10 ns a round trip.
const MAX_BATCHES: usize = (MEASURE_NS / (BATCH_ROUND_TRIPS as u64 * 10)) as usize;

/// Value aligned to two cache lines, because processors prefetch lines in pairs. Keeps shared data
/// apart from data of a single thread.
#[repr(align(128))]
struct CacheAligned<T>(T);

/// Measures the median time for a cache line to go from processor `a` to `b` and back, over 50 ms.
///
/// Both processors are busy meanwhile. `None` when they are the same, when one of them may not be
/// used, or when they did not run at the same time.
#[must_use]
pub fn measure_cache_line(a: u32, b: u32) -> Option<Duration> {
    if a == b {
        return None;
    }
    let counter = CacheAligned(AtomicU32::new(0));
    let stop = CacheAligned(AtomicBool::new(false));
    let (counter, stop) = (&counter.0, &stop.0);
    thread::scope(|scope| {
        let responder = scope.spawn(move || {
            let pinned = cpu::pin(&[b]).is_ok();
            while pinned && !stop.load(Ordering::Relaxed) {
                reply_once(counter);
            }
            pinned
        });
        let initiator = scope.spawn(move || {
            // Stops the other thread on every return path.
            let _stop_on_drop = StopOnDrop(stop);
            cpu::pin(&[a]).ok()?;
            measure_batches(counter)
        });
        let median = initiator
            .join()
            .expect("the bouncing thread does not panic");
        let pinned = responder
            .join()
            .expect("the answering thread does not panic");
        median.filter(|_| pinned)
    })
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Replaces an odd number by the next even one.
#[inline]
fn reply_once(counter: &AtomicU32) {
    let number = counter.load(Ordering::Acquire);
    if number & 1 == 1 {
        counter.store(number.wrapping_add(1), Ordering::Release);
    }
}

/// Sends odd numbers and waits for even ones; returns the median of the batches.
fn measure_batches(counter: &AtomicU32) -> Option<Duration> {
    let mut number = 0;
    // The first batch waits for the other thread to start; on a busy machine that takes time
    // slices.
    run_batch(counter, &mut number, clock::now() + START_TIMEOUT_NS)?;
    let deadline = clock::now() + MEASURE_NS;
    let mut batch_times_ns = Vec::with_capacity(MAX_BATCHES);
    let mut before = clock::now();
    while before < deadline && batch_times_ns.len() < MAX_BATCHES {
        if run_batch(counter, &mut number, deadline).is_none() {
            break;
        }
        let after = clock::now();
        batch_times_ns.push(after - before);
        before = after;
    }
    let middle = batch_times_ns.len() / 2;
    if batch_times_ns.is_empty() {
        return None;
    }
    let (_, median, _) = batch_times_ns.select_nth_unstable(middle);
    Some(Duration::from_nanos(*median / u64::from(BATCH_ROUND_TRIPS)))
}

/// Runs one batch; `None` when the deadline passed while waiting.
fn run_batch(counter: &AtomicU32, number: &mut u32, deadline: u64) -> Option<()> {
    // Polls between two clock reads: about a millisecond.
    const POLLS_PER_CLOCK_READ: u32 = 1 << 20;
    for _ in 0..BATCH_ROUND_TRIPS {
        counter.store(number.wrapping_add(1), Ordering::Release);
        *number = number.wrapping_add(2);
        let mut polls = 0_u32;
        // No pause instruction: on some processors it takes as long as the round trip itself.
        while counter.load(Ordering::Acquire) != *number {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS_PER_CLOCK_READ) && clock::now() > deadline {
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
    fn two_processors_are_measured() {
        let usable = cpu::list_usable().unwrap();
        let [first, .., last] = usable[..] else {
            println!("needs two processors");
            return;
        };
        // Other tests keep the processors busy, so only wide bounds are checked: a round trip takes
        // more than a nanosecond, and an interrupted batch is not the median.
        let time = measure_cache_line(first, last);
        println!("{time:?}");
        if let Some(time) = time {
            assert!(time > Duration::from_nanos(1), "{time:?}");
            assert!(time < Duration::from_millis(10), "{time:?}");
        }
    }

    #[test]
    fn one_processor_cannot_measure() {
        let usable = cpu::list_usable().unwrap();
        assert_eq!(measure_cache_line(usable[0], usable[0]), None);
        assert_eq!(measure_cache_line(usable[0], 100_000), None);
        assert_eq!(measure_cache_line(100_000, usable[0]), None);
    }
}
