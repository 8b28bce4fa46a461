//! What waking a sleeping thread on another core costs this machine.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;

use crate::sys::clock::{self, Nanos};
use crate::sys::cpu;

/// Round trips that are enough for a median.
const ENOUGH: u32 = 200;

/// What the other thread does when it is told to end.
const END: u32 = 2;

/// Time in which a thread wakes another one on another core and is woken by it, both asleep
/// until then: two wake-ups, and the cores leaving their idle states. A quarter of the tries were faster.
///
/// Takes `limit_ns` at most. `None` where this thread may run on one core only, or where fewer than
/// ten round trips fit into the limit. The calling thread may be on any core: it starts two.
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
                            // Where it cannot go there, both share a core, and nothing is measured.
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
        // Others who want the cores make some of them slower: the lower quartile is this machine's own.
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
