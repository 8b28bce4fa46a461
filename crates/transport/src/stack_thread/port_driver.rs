//! Driver thread: polls the port and exchanges frames with the stack's thread through one ring per
//! direction, like the driver task of an embedded system.
//!
//! Only frame handles are passed, nothing is copied. When the application thread is too slow, the
//! ring fills, then the port's descriptors; further frames are dropped and counted at the port.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use linerate_port::{AnyPort, Port, RxQueue};
use linerate_stack::config::{StackConfig, ThreadConfig};
use linerate_sys::clock::Nanos;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::{clock, cpu, scheduling, thread, tick_clock};

use super::port_state::PortState;
use crate::TransportError;

/// Interval at which the port's state and its kernel counters are refreshed: the age of the
/// counters is at most this.
const REFRESH_NS: Nanos = 10_000_000;

/// Rounds with frames after which the clock is read all the same: more of them take milliseconds.
const BUSY_ROUNDS: u32 = 1_024;

/// Longest time for the transmission of the last frames at the end.
const DRAIN_NS: Nanos = 100_000_000;

/// The driver thread. Dropping it ends the thread once the waiting frames are transmitted.
pub struct PortDriver {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Applies the processors and scheduling class of `threads.{thread_name}` to the calling thread.
///
/// # Errors
/// When the kernel or the user's permissions reject one of them.
pub fn apply_thread_config(thread_name: &str, config: &ThreadConfig) -> Result<(), TransportError> {
    // The value may come from the profile, so leaving the option out may be no remedy.
    let rejected = |key: &str, value: String, remedy: &str, without: &str, error: io::Error| {
        TransportError::OptionRejected {
            option: format!("--set threads.{thread_name}.{key}={value}"),
            why: format!("the kernel rejects it for this thread ({error})"),
            next_step: format!("{remedy}, or --set threads.{thread_name}.{key}={without}"),
        }
    };
    if !config.cpus.0.is_empty() {
        cpu::pin(&config.cpus.0).map_err(|error| {
            let remedy = "use processors that this process may run on";
            rejected("cpus", config.cpus.to_string(), remedy, "any", error)
        })?;
    }
    scheduling::apply_policy(config.sched).map_err(|error| {
        let sched = config.sched.to_string();
        rejected("sched", sched, "run as root", "inherited", error)
    })
}

impl PortDriver {
    /// Starts the thread between a port and the driver's end of the stack's ring.
    ///
    /// # Errors
    /// When the thread's settings are rejected, or no thread can be created.
    pub fn start(
        port: AnyPort,
        ring: AnyPort,
        memory: &FrameRegion,
        config: &StackConfig,
        state: Arc<PortState>,
    ) -> Result<Self, TransportError> {
        let stop: Arc<AtomicBool> = Arc::default();
        let (stop_flag, memory, thread_config) =
            (Arc::clone(&stop), memory.clone(), config.driver.clone());
        let interval = config
            .poll_interval
            .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("driver".to_owned())
            .spawn(move || {
                if interval.is_some() {
                    thread::disable_timer_slack();
                }
                let applied = apply_thread_config("driver", &thread_config);
                let is_ready = applied.is_ok();
                // The starting thread waits for this.
                let _ = sender.send(applied);
                if is_ready {
                    run_driver(port, ring, &memory, interval, &stop_flag, &state);
                }
            })
            .map_err(|error| TransportError::system("new thread", error))?;
        let driver = Self {
            stop,
            thread: Some(thread),
        };
        let ended_early =
            |_| TransportError::system("driver thread", io::Error::other("it ended early"));
        receiver.recv().map_err(ended_early)??;
        Ok(driver)
    }
}

impl Drop for PortDriver {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic is a bug and has been reported by its hook.
            let _ = thread.join();
        }
    }
}

/// Moves frames in both directions until `stop` is set.
fn run_driver(
    mut port: AnyPort,
    mut ring: AnyPort,
    memory: &FrameRegion,
    interval: Option<Nanos>,
    stop: &AtomicBool,
    state: &PortState,
) {
    let mut pool = memory.pool();
    let (mut received, mut outgoing) = (Burst::new(), Burst::new());
    let mut next_poll_ns = tick_clock::interpolated_now();
    let mut next_refresh_ns = next_poll_ns;
    let mut drain_end_ns = None;
    let mut busy_rounds = 0;
    loop {
        // Repeats while there are frames; the poll interval starts after an empty round.
        let mut moved_frames = 0;
        if received.is_empty() {
            port.receive(&mut pool, &mut received);
        }
        if !received.is_empty() {
            moved_frames += ring.transmit(&mut pool, &mut received);
        }
        if outgoing.is_empty() {
            ring.receive(&mut pool, &mut outgoing);
        }
        if outgoing.is_empty() {
            port.reclaim(&mut pool);
        } else {
            moved_frames += port.transmit(&mut pool, &mut outgoing);
        }
        if moved_frames > 0 {
            busy_rounds += 1;
            // The clock is read rarely while frames move: it would cost as much as moving one.
            if busy_rounds < BUSY_ROUNDS {
                continue;
            }
        }
        busy_rounds = 0;
        let now = tick_clock::interpolated_now();
        if stop.load(Relaxed) {
            let end_ns = *drain_end_ns.get_or_insert(now + DRAIN_NS);
            if outgoing.is_empty() || now >= end_ns {
                break;
            }
        }
        if now >= next_refresh_ns {
            next_refresh_ns = now + REFRESH_NS;
            if let Err(error) = port.refresh() {
                state.fail(error.into());
            }
            state.record_peer(port.receive.peer_state(), now);
        }
        match interval {
            _ if moved_frames > 0 => {}
            None => std::hint::spin_loop(),
            Some(interval) => {
                // Missed polls are not made up for.
                next_poll_ns = (next_poll_ns + interval).max(now);
                clock::sleep_until(next_poll_ns);
            }
        }
    }
    pool.free_all(&mut received);
    pool.free_all(&mut outgoing);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use linerate_port::{PortUrl, memory_plan, open};

    use super::*;

    /// Frames sent at one end of the cable arrive at the stack's ring, and the reverse; none is
    /// lost, and all return to the pool.
    #[test]
    fn frames_pass_in_both_directions_and_return_to_the_pool() {
        let urls: Vec<PortUrl> = [
            "ring:wire,end=a",
            "ring:wire,end=b",
            "ring:in,end=a",
            "ring:in,end=b",
        ]
        .map(|text| text.parse().unwrap())
        .into();
        let memory = FrameRegion::new(memory_plan(&urls)).unwrap();
        let mut ports: Vec<AnyPort> = (urls.iter())
            .map(|url| open(url, &memory).unwrap().remove(0))
            .collect();
        let (driver_ring, mut stack_ring) = (ports.pop().unwrap(), ports.pop().unwrap());
        let (port, mut wire) = (ports.pop().unwrap(), ports.pop().unwrap());
        let mut config = StackConfig::profile("default").unwrap();
        config.poll_interval = Some(Duration::from_micros(125));
        let state = Arc::default();
        let driver = PortDriver::start(port, driver_ring, &memory, &config, state).unwrap();
        let mut pool = memory.pool();
        let deadline = Instant::now() + Duration::from_secs(60);
        for (number, is_inbound) in [(1, true), (2, false), (3, true)] {
            let (from, to) = match is_inbound {
                true => (&mut wire, &mut stack_ring),
                false => (&mut stack_ring, &mut wire),
            };
            let mut burst = Burst::new();
            let mut frame = pool.allocate().unwrap();
            frame.set_len(60);
            memory.bytes_mut(&mut frame).fill(number);
            burst.push(frame).unwrap();
            from.transmit(&mut pool, &mut burst);
            let mut got = Burst::new();
            while to.receive(&mut pool, &mut got) == 0 {
                assert!(Instant::now() < deadline, "{number}");
                std::thread::yield_now();
            }
            assert_eq!(memory.bytes(&got.frames()[0]), [number; 60]);
            pool.free_all(&mut got);
        }
        drop((driver, wire, stack_ring));
        let free_frames = std::iter::from_fn(|| pool.allocate()).count();
        assert_eq!(free_frames, memory.frames() as usize);
    }
}
