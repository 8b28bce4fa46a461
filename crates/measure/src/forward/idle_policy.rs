//! Behaviour of a thread when none of its streams had a frame.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use linerate_host::sys::clock;
use linerate_host::sys::readiness::{self, Epoll, Ready};
use linerate_metric::forward::Idle;

/// Maximum time for which a thread waits in the kernel before it checks for a stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// Frames due sooner than this are waited for without sleeping, because a sleep would take longer.
const NEAR_NS: u64 = 80_000;

/// Prepared method of idling.
pub(super) enum Way {
    Spin,
    Yield,
    Sleep(u64),
    Interrupt(Epoll),
}

/// Idling method with statistics of the time spent in it.
pub(super) struct Idling {
    way: Way,
    /// Number, sum and maximum of the times during which ports were not polled.
    away: u64,
    away_ns: u64,
    longest_ns: u64,
}

/// Delay that idling adds to frames which arrive meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub(super) gap_ns: Option<u64>,
    pub(super) gap_max_ns: Option<u64>,
    pub(super) wake_ns: Option<u64>,
}

impl Idling {
    /// Prepares the method for these ports.
    ///
    /// # Errors
    /// Error of the kernel. The caller has checked that each port has a handle to wait on.
    pub(super) fn new<'a>(
        idle: Idle,
        handles: impl Iterator<Item = Option<BorrowedFd<'a>>>,
    ) -> std::io::Result<Self> {
        Ok(Self::of(match idle {
            Idle::Spin => Way::Spin,
            Idle::Yield => Way::Yield,
            Idle::Sleep { time_ns } => Way::Sleep(time_ns),
            Idle::Interrupt => {
                let epoll = Epoll::new()?;
                for (key, handle) in (0..).zip(handles.flatten()) {
                    epoll.enrol(&handle, Ready::Receive, key)?;
                }
                Way::Interrupt(epoll)
            }
        }))
    }

    pub(super) fn of(way: Way) -> Self {
        Self {
            way,
            away: 0,
            away_ns: 0,
            longest_ns: 0,
        }
    }

    /// Returns whether the thread keeps its core busy while idle.
    pub(super) fn spins(&self) -> bool {
        matches!(self.way, Way::Spin)
    }

    /// Idles once, at most until `due`, the deadline of the first held frame. `holds` without `due`
    /// means a held frame with an unknown deadline.
    pub(super) fn idle(&mut self, from: u64, holds: bool, due: Option<u64>) {
        let until = match due {
            Some(due) if due <= from + NEAR_NS => Some(from),
            Some(due) => Some(due - NEAR_NS / 2),
            None if holds => Some(from),
            None => None,
        };
        match &self.way {
            Way::Spin => {}
            Way::Yield => std::thread::yield_now(),
            Way::Sleep(_) | Way::Interrupt(_) if until.is_some_and(|until| until <= from) => {
                std::thread::yield_now();
            }
            Way::Sleep(time_ns) => {
                clock::sleep_until((from + time_ns).min(until.unwrap_or(u64::MAX)));
            }
            // An error shows at the next receive, and only shortens this wait.
            Way::Interrupt(epoll) => {
                let patience = until.map_or(PATIENCE, |until| {
                    PATIENCE.min(Duration::from_nanos(until - from))
                });
                drop(readiness::poll(epoll, Ready::Receive, patience));
            }
        }
        let away = clock::now().saturating_sub(from);
        self.away += 1;
        self.away_ns += away;
        self.longest_ns = self.longest_ns.max(away);
    }

    /// Returns the delay; `wake_ns` is the result of [`wake_ns`] before the start.
    pub(super) fn cost(&self, wake_ns: Option<u64>) -> Cost {
        // A thread that waits in the kernel is woken by arriving frames: its waiting time adds no
        // delay.
        let counts = self.away > 0 && !matches!(self.way, Way::Interrupt(_));
        Cost {
            gap_ns: counts.then(|| self.away_ns / self.away),
            gap_max_ns: counts.then_some(self.longest_ns),
            wake_ns,
        }
    }
}

/// Number of measured wake-ups, and the sleep before each.
const WAKES: usize = 9;
const ASLEEP: Duration = Duration::from_millis(1);

/// Measures the time from a write by another thread until this thread, asleep in the kernel, runs:
/// the median of several wake-ups. Returns `None` if the kernel provides no pipe or thread.
pub(super) fn wake_ns() -> Option<u64> {
    let (reader, mut writer) = std::io::pipe().ok()?;
    let written = AtomicU64::new(0);
    let mut taken: Vec<u64> = Vec::with_capacity(WAKES);
    std::thread::scope(|scope| {
        let written = &written;
        let spawned = std::thread::Builder::new()
            .name("waker".to_owned())
            .spawn_scoped(scope, move || {
                for _ in 0..WAKES {
                    std::thread::sleep(ASLEEP);
                    written.store(clock::now(), Relaxed);
                    if writer.write_all(&[0]).is_err() {
                        return;
                    }
                }
            });
        let mut byte = [0];
        while spawned.is_ok() && taken.len() < WAKES {
            match readiness::poll(&reader, Ready::Receive, PATIENCE) {
                Ok(true) => {
                    let now = clock::now();
                    taken.push(now.saturating_sub(written.load(Relaxed)));
                    if std::io::Read::read_exact(&mut &reader, &mut byte).is_err() {
                        return;
                    }
                }
                Ok(false) => {}
                Err(_) => return,
            }
        }
    });
    taken.sort_unstable();
    taken.get(taken.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_away_are_counted() {
        let mut idling = Idling::of(Way::Sleep(200_000));
        for _ in 0..3 {
            idling.idle(clock::now(), false, None);
        }
        let cost = idling.cost(None);
        assert!(cost.gap_ns >= Some(200_000) && cost.gap_max_ns >= cost.gap_ns);
        // The deadline of a frame ends a sleep.
        let mut idling = Idling::of(Way::Sleep(10_000_000_000));
        idling.idle(clock::now(), true, Some(clock::now() + 1_000_000));
        idling.idle(clock::now(), true, None);
        assert!(idling.cost(None).gap_max_ns < Some(9_000_000_000));
        let idling = Idling::of(Way::Spin);
        assert_eq!(idling.cost(None).gap_ns, None);
    }

    #[test]
    fn a_wake_takes_time() {
        assert!(wake_ns().is_some_and(|ns| ns > 0));
    }
}
