//! Behaviour of a thread when none of its streams had a frame.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use linerate_record::forward::IdleStrategy;
use linerate_sys::readiness::{EpollSet, Readiness};
use linerate_sys::{clock, readiness};

/// Maximum time for which a thread waits in the kernel before it checks for a stop.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Frames due sooner than this are waited for without sleeping, because a sleep would take longer.
const AWAKE_WITHIN_NS: u64 = 80_000;

/// Prepared method of idling.
pub(super) enum IdleMethod {
    Spin,
    Yield,
    Sleep(u64),
    Interrupt(EpollSet),
}

/// Idling method with statistics of the time spent in it.
pub(super) struct IdlePolicy {
    method: IdleMethod,
    /// Number, sum and maximum of the times during which ports were not polled.
    idle_count: u64,
    idle_sum_ns: u64,
    longest_idle_ns: u64,
}

/// Delay that idling adds to frames which arrive meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleDelay {
    pub(super) gap_ns: Option<u64>,
    pub(super) gap_max_ns: Option<u64>,
    pub(super) wake_ns: Option<u64>,
}

impl IdlePolicy {
    /// Prepares the method for these ports.
    ///
    /// # Errors
    /// Error of the kernel. The caller has checked that each port has a handle to wait on.
    pub(super) fn new<'a>(
        idle: IdleStrategy,
        handles: impl Iterator<Item = Option<BorrowedFd<'a>>>,
    ) -> std::io::Result<Self> {
        Ok(Self::with_method(match idle {
            IdleStrategy::Spin => IdleMethod::Spin,
            IdleStrategy::Yield => IdleMethod::Yield,
            IdleStrategy::Sleep { time_ns } => IdleMethod::Sleep(time_ns),
            IdleStrategy::Interrupt => {
                let epoll = EpollSet::new()?;
                for (key, handle) in (0..).zip(handles.flatten()) {
                    epoll.register(&handle, Readiness::Receive, key)?;
                }
                IdleMethod::Interrupt(epoll)
            }
        }))
    }

    pub(super) fn with_method(method: IdleMethod) -> Self {
        Self {
            method,
            idle_count: 0,
            idle_sum_ns: 0,
            longest_idle_ns: 0,
        }
    }

    /// Returns whether the thread keeps its core busy while idle.
    pub(super) fn spins(&self) -> bool {
        matches!(self.method, IdleMethod::Spin)
    }

    /// Idles once, at most until `deadline`, the deadline of the first held frame. `holds_frames`
    /// without `deadline` means a held frame with an unknown deadline.
    pub(super) fn idle(&mut self, from: u64, holds_frames: bool, deadline: Option<u64>) {
        let wake_at = match deadline {
            Some(deadline) if deadline <= from + AWAKE_WITHIN_NS => Some(from),
            Some(deadline) => Some(deadline - AWAKE_WITHIN_NS / 2),
            None if holds_frames => Some(from),
            None => None,
        };
        match &self.method {
            IdleMethod::Spin => {}
            IdleMethod::Yield => std::thread::yield_now(),
            IdleMethod::Sleep(_) | IdleMethod::Interrupt(_)
                if wake_at.is_some_and(|wake_at| wake_at <= from) =>
            {
                std::thread::yield_now();
            }
            IdleMethod::Sleep(time_ns) => {
                clock::sleep_until((from + time_ns).min(wake_at.unwrap_or(u64::MAX)));
            }
            // An error shows at the next receive, and only shortens this wait.
            IdleMethod::Interrupt(epoll) => {
                let timeout = wake_at.map_or(MAX_WAIT, |wake_at| {
                    MAX_WAIT.min(Duration::from_nanos(wake_at - from))
                });
                drop(readiness::poll(epoll, Readiness::Receive, timeout));
            }
        }
        let idle_ns = clock::now().saturating_sub(from);
        self.idle_count += 1;
        self.idle_sum_ns += idle_ns;
        self.longest_idle_ns = self.longest_idle_ns.max(idle_ns);
    }

    /// Returns the delay; `wake_ns` is the result of [`wake_ns`] before the start.
    pub(super) fn delay(&self, wake_ns: Option<u64>) -> IdleDelay {
        // A thread that waits in the kernel is woken by arriving frames: its waiting time adds no
        // delay.
        let is_counted = self.idle_count > 0 && !matches!(self.method, IdleMethod::Interrupt(_));
        IdleDelay {
            gap_ns: is_counted.then(|| self.idle_sum_ns / self.idle_count),
            gap_max_ns: is_counted.then_some(self.longest_idle_ns),
            wake_ns,
        }
    }
}

/// Number of measured wake-ups, and the sleep before each.
const WAKE_SAMPLES: usize = 9;
const SLEEP_BEFORE_WAKE: Duration = Duration::from_millis(1);

/// Measures the time from a write by another thread until this thread, asleep in the kernel, runs:
/// the median of several wake-ups. Returns `None` if the kernel provides no pipe or thread.
pub(super) fn measure_wake_ns() -> Option<u64> {
    let (reader, mut writer) = std::io::pipe().ok()?;
    let written_at = AtomicU64::new(0);
    let mut samples_ns: Vec<u64> = Vec::with_capacity(WAKE_SAMPLES);
    std::thread::scope(|scope| {
        let written_at = &written_at;
        let spawned = std::thread::Builder::new()
            .name("waker".to_owned())
            .spawn_scoped(scope, move || {
                for _ in 0..WAKE_SAMPLES {
                    std::thread::sleep(SLEEP_BEFORE_WAKE);
                    written_at.store(clock::now(), Relaxed);
                    if writer.write_all(&[0]).is_err() {
                        return;
                    }
                }
            });
        let mut byte = [0];
        while spawned.is_ok() && samples_ns.len() < WAKE_SAMPLES {
            match readiness::poll(&reader, Readiness::Receive, MAX_WAIT) {
                Ok(true) => {
                    let now = clock::now();
                    samples_ns.push(now.saturating_sub(written_at.load(Relaxed)));
                    if std::io::Read::read_exact(&mut &reader, &mut byte).is_err() {
                        return;
                    }
                }
                Ok(false) => {}
                Err(_) => return,
            }
        }
    });
    samples_ns.sort_unstable();
    samples_ns.get(samples_ns.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_times_are_counted() {
        let mut policy = IdlePolicy::with_method(IdleMethod::Sleep(200_000));
        for _ in 0..3 {
            policy.idle(clock::now(), false, None);
        }
        let delay = policy.delay(None);
        assert!(delay.gap_ns >= Some(200_000) && delay.gap_max_ns >= delay.gap_ns);
        // The deadline of a frame ends a sleep.
        let mut policy = IdlePolicy::with_method(IdleMethod::Sleep(10_000_000_000));
        policy.idle(clock::now(), true, Some(clock::now() + 1_000_000));
        policy.idle(clock::now(), true, None);
        assert!(policy.delay(None).gap_max_ns < Some(9_000_000_000));
        let policy = IdlePolicy::with_method(IdleMethod::Spin);
        assert_eq!(policy.delay(None).gap_ns, None);
    }

    #[test]
    fn wake_up_takes_time() {
        assert!(measure_wake_ns().is_some_and(|ns| ns > 0));
    }
}
