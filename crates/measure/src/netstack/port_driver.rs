//! Driver thread: polls the port and exchanges frames with the stack's thread through one ring per
//! direction, like the driver task of an embedded system.
//!
//! Only frame handles are passed, nothing is copied. When the application thread is too slow, the
//! ring
//! fills, then the port's descriptors; further frames are dropped and counted at the port.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::{cpu, thread, tick_clock};
use linerate_port::{AnyPort, Burst, Memory, Port, Receive};
use linerate_stack::config::{Config, Thread};

use super::port_state::PortState;
use crate::error::MeasureError;
use crate::worker::schedule;

/// Interval at which the port's state and its kernel counters are refreshed: the age of the
/// counters is
/// at most this.
const REFRESH_NS: Nanos = 10_000_000;

/// Rounds with frames after which the clock is read all the same: more of them take milliseconds.
const BUSY_ROUNDS: u32 = 1_024;

/// Longest time for the transmission of the last frames at the end.
const FAREWELL_NS: Nanos = 100_000_000;

/// The driver thread. Dropping it ends the thread once the waiting frames are transmitted.
pub struct Driver {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Applies the processors and scheduling class of `threads.WHOSE` to the calling thread.
///
/// # Errors
/// When the kernel or the user's permissions reject one of them.
pub fn place(whose: &str, place: &Thread) -> Result<(), MeasureError> {
    // The value may come from the profile, so leaving the option out may be no remedy.
    let refused = |key: &str, value: String, remedy: &str, without: &str, error: io::Error| {
        MeasureError::OptionRefused {
            option: format!("--set threads.{whose}.{key}={value}"),
            why: format!("the kernel rejects it for this thread ({error})"),
            next_step: format!("{remedy}, or --set threads.{whose}.{key}={without}"),
        }
    };
    if !place.cpus.0.is_empty() {
        cpu::pin(&place.cpus.0).map_err(|error| {
            let remedy = "use processors that this process may run on";
            refused("cpus", place.cpus.to_string(), remedy, "any", error)
        })?;
    }
    schedule(place.sched).map_err(|error| {
        let sched = place.sched.to_string();
        refused("sched", sched, "run as root", "inherited", error)
    })
}

impl Driver {
    /// Starts the thread between a port and the driver's end of the stack's ring.
    ///
    /// # Errors
    /// When the thread's settings are rejected, or no thread can be created.
    pub fn start(
        port: AnyPort,
        ring: AnyPort,
        memory: &Memory,
        config: &Config,
        state: Arc<PortState>,
    ) -> Result<Self, MeasureError> {
        let stop: Arc<AtomicBool> = Arc::default();
        let (stopped, memory, own) = (Arc::clone(&stop), memory.clone(), config.driver.clone());
        let interval = config
            .poll_interval
            .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let (say, said) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("driver".to_owned())
            .spawn(move || {
                if interval.is_some() {
                    thread::keep_time();
                }
                let placed = place("driver", &own);
                let stands = placed.is_ok();
                // The starting thread waits for this.
                let _ = say.send(placed);
                if stands {
                    run(port, ring, &memory, interval, &stopped, &state);
                }
            })
            .map_err(|error| MeasureError::system("new thread", error))?;
        let driver = Self {
            stop,
            thread: Some(thread),
        };
        let died = |_| MeasureError::system("driver thread", io::Error::other("it ended early"));
        said.recv().map_err(died)??;
        Ok(driver)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic is a bug and has been reported by its hook.
            let _ = thread.join();
        }
    }
}

/// Moves frames in both directions until `stop` is set.
fn run(
    mut port: AnyPort,
    mut ring: AnyPort,
    memory: &Memory,
    interval: Option<Nanos>,
    stop: &AtomicBool,
    state: &PortState,
) {
    let mut pool = memory.pool();
    let (mut came, mut goes) = (Burst::new(), Burst::new());
    let mut turn_ns = tick_clock::now();
    let mut refresh_ns = turn_ns;
    let mut ends_ns = None;
    let mut busy = 0;
    loop {
        // Repeats while there are frames; the poll interval starts after an empty round.
        let mut moved = 0;
        if came.is_empty() {
            port.receive(&mut pool, &mut came);
        }
        if !came.is_empty() {
            moved += ring.transmit(&mut pool, &mut came);
        }
        if goes.is_empty() {
            ring.receive(&mut pool, &mut goes);
        }
        if goes.is_empty() {
            port.reclaim(&mut pool);
        } else {
            moved += port.transmit(&mut pool, &mut goes);
        }
        if moved > 0 {
            busy += 1;
            // The clock is read rarely while frames move: it would cost as much as moving one.
            if busy < BUSY_ROUNDS {
                continue;
            }
        }
        busy = 0;
        let now = tick_clock::now();
        if stop.load(Relaxed) {
            let ends = *ends_ns.get_or_insert(now + FAREWELL_NS);
            if goes.is_empty() || now >= ends {
                break;
            }
        }
        if now >= refresh_ns {
            refresh_ns = now + REFRESH_NS;
            if let Err(error) = port.refresh() {
                state.fail(error.into());
            }
            state.see(port.receive.partner(), now);
        }
        match interval {
            _ if moved > 0 => {}
            None => std::hint::spin_loop(),
            Some(interval) => {
                // Missed polls are not made up for.
                turn_ns = (turn_ns + interval).max(now);
                clock::sleep_until(turn_ns);
            }
        }
    }
    pool.free_all(&mut came);
    pool.free_all(&mut goes);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use linerate_port::{PortUrl, memory_plan, open};

    use super::*;

    /// Frames sent at one end of the cable arrive at the stack's ring, and the reverse; none is
    /// lost, and
    /// all return to the pool.
    #[test]
    fn frames_pass_both_ways_and_come_home() {
        let urls: Vec<PortUrl> = [
            "ring:wire,end=a",
            "ring:wire,end=b",
            "ring:in,end=a",
            "ring:in,end=b",
        ]
        .map(|text| text.parse().unwrap())
        .into();
        let memory = Memory::new(memory_plan(&urls)).unwrap();
        let mut ports: Vec<AnyPort> = (urls.iter())
            .map(|url| open(url, &memory).unwrap().remove(0))
            .collect();
        let (far_ring, mut near_ring) = (ports.pop().unwrap(), ports.pop().unwrap());
        let (port, mut wire) = (ports.pop().unwrap(), ports.pop().unwrap());
        let mut config = Config::profile("default").unwrap();
        config.poll_interval = Some(Duration::from_micros(125));
        let state = Arc::default();
        let driver = Driver::start(port, far_ring, &memory, &config, state).unwrap();
        let mut pool = memory.pool();
        let give_up = Instant::now() + Duration::from_secs(60);
        for (number, ways) in [(1, true), (2, false), (3, true)] {
            let (from, to) = match ways {
                true => (&mut wire, &mut near_ring),
                false => (&mut near_ring, &mut wire),
            };
            let mut burst = Burst::new();
            let mut frame = pool.allocate().unwrap();
            frame.set_len(60);
            memory.bytes_mut(&mut frame).fill(number);
            burst.push(frame).unwrap();
            from.transmit(&mut pool, &mut burst);
            let mut got = Burst::new();
            while to.receive(&mut pool, &mut got) == 0 {
                assert!(Instant::now() < give_up, "{number}");
                std::thread::yield_now();
            }
            assert_eq!(memory.bytes(&got.frames()[0]), [number; 60]);
            pool.free_all(&mut got);
        }
        drop((driver, wire, near_ring));
        let all = std::iter::from_fn(|| pool.allocate()).count();
        assert_eq!(all, memory.frames() as usize);
    }
}
