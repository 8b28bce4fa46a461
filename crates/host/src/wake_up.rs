//! Time to wake a sleeping thread on another core of this machine.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;

use crate::sys::clock::{self, Nanos};
use crate::sys::cpu;

/// Most round trips of one measurement; enough for a quartile.
const ENOUGH: u32 = 200;

/// State that ends the second thread.
const END: u32 = 2;

/// Measures the time in which a thread wakes a sleeping thread on another core and is woken by it.
/// That is two wake-ups, with the exit of both cores from their idle states. Returns the lower
/// quartile.
///
/// Takes at most `limit_ns`. `None` where this thread may run on one core only, or where fewer than
/// ten round trips fit into the limit. Runs on two threads of its own; the caller's core does not
/// matter.
#[must_use]
pub fn round_trip(limit_ns: Nanos) -> Option<Nanos> {
    let cpus = cpu::usable().ok()?;
    let (&first, &last) = (cpus.first()?, cpus.last()?);
    if first == last {
        return None;
    }
    let asked = AtomicU32::new(0);
    let asked = &asked;
    thread::scope(|scope| {
        let asker = thread::Builder::new()
            .name("wake-up".to_owned())
            .spawn_scoped(scope, move || {
                cpu::pin(&[first]).ok()?;
                let asker = thread::current();
                thread::scope(|scope| {
                    let other = thread::Builder::new()
                        .name("woken".to_owned())
                        .spawn_scoped(scope, move || {
                            // If pinning fails, both threads may share a core and the result is
                            // dropped.
                            let there = cpu::pin(&[last]).is_ok();
                            loop {
                                match asked.load(SeqCst) {
                                    END => return there,
                                    1 => {
                                        asked.store(0, SeqCst);
                                        asker.unpark();
                                    }
                                    _ => thread::park(),
                                }
                            }
                        })
                        .ok()?;
                    let times = ask(asked, other.thread(), limit_ns);
                    asked.store(END, SeqCst);
                    other.thread().unpark();
                    other.join().ok()?.then_some(times)
                })
            })
            .ok()?;
        let mut times = asker.join().ok()??;
        times.sort_unstable();
        // Other load slows some of them down: the lower quartile is closest to the machine's own
        // time.
        (times.len() >= 10).then(|| times[times.len() / 4])
    })
}

fn ask(asked: &AtomicU32, other: &thread::Thread, limit_ns: Nanos) -> Vec<Nanos> {
    let started = clock::now();
    let mut times = Vec::with_capacity(ENOUGH as usize);
    for _ in 0..ENOUGH {
        let before = clock::now();
        if before.saturating_sub(started) > limit_ns {
            break;
        }
        asked.store(1, SeqCst);
        other.unpark();
        while asked.load(SeqCst) == 1 {
            thread::park();
        }
        times.push(clock::now().saturating_sub(before));
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_takes_time() {
        match round_trip(200_000_000) {
            Some(time) => assert!(time > 100, "{time}"),
            None => println!("skipped: two cores, and time on both"),
        }
    }
}
