//! Time to wake a sleeping thread on another core of this machine.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;

use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::cpu;

/// Most round trips of one measurement; enough for a quartile.
const MAX_ROUND_TRIPS: u32 = 200;

/// State that ends the second thread.
const STATE_EXIT: u32 = 2;

/// Measures the time in which a thread wakes a sleeping thread on another core and is woken by it.
/// That is two wake-ups, with the exit of both cores from their idle states. Returns the lower
/// quartile.
///
/// Takes at most `limit_ns`. `None` where this thread may run on one core only, or where fewer than
/// ten round trips fit into the limit. Runs on two threads of its own; the caller's core does not
/// matter.
#[must_use]
pub fn measure_round_trip(limit_ns: Nanos) -> Option<Nanos> {
    let cpus = cpu::list_usable().ok()?;
    let (&first, &last) = (cpus.first()?, cpus.last()?);
    if first == last {
        return None;
    }
    let state = AtomicU32::new(0);
    let state = &state;
    thread::scope(|scope| {
        let waker = thread::Builder::new()
            .name("wake-up".to_owned())
            .spawn_scoped(scope, move || {
                cpu::pin(&[first]).ok()?;
                let waker = thread::current();
                thread::scope(|scope| {
                    let sleeper = thread::Builder::new()
                        .name("woken".to_owned())
                        .spawn_scoped(scope, move || {
                            // If pinning fails, both threads may share a core and the result is
                            // dropped.
                            let is_pinned = cpu::pin(&[last]).is_ok();
                            loop {
                                match state.load(SeqCst) {
                                    STATE_EXIT => return is_pinned,
                                    1 => {
                                        state.store(0, SeqCst);
                                        waker.unpark();
                                    }
                                    _ => thread::park(),
                                }
                            }
                        })
                        .ok()?;
                    let times_ns = time_round_trips(state, sleeper.thread(), limit_ns);
                    state.store(STATE_EXIT, SeqCst);
                    sleeper.thread().unpark();
                    sleeper.join().ok()?.then_some(times_ns)
                })
            })
            .ok()?;
        let mut times_ns = waker.join().ok()??;
        times_ns.sort_unstable();
        // Other load slows some of them down: the lower quartile is closest to the machine's own
        // time.
        (times_ns.len() >= 10).then(|| times_ns[times_ns.len() / 4])
    })
}

fn time_round_trips(state: &AtomicU32, sleeper: &thread::Thread, limit_ns: Nanos) -> Vec<Nanos> {
    let started = clock::now();
    let mut times_ns = Vec::with_capacity(MAX_ROUND_TRIPS as usize);
    for _ in 0..MAX_ROUND_TRIPS {
        let before = clock::now();
        if before.saturating_sub(started) > limit_ns {
            break;
        }
        state.store(1, SeqCst);
        sleeper.unpark();
        while state.load(SeqCst) == 1 {
            thread::park();
        }
        times_ns.push(clock::now().saturating_sub(before));
    }
    times_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_takes_time() {
        match measure_round_trip(200_000_000) {
            Some(time) => assert!(time > 100, "{time}"),
            None => println!("skipped: two cores, and time on both"),
        }
    }
}
