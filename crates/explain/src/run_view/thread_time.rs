//! Use of time by threads.

use linerate_record::cost::{EMPTY_CALL_NS, RunDelay, ThreadCost};

/// Empty calls per sleep from which a thread counts as spinning: one that blocks has one or two.
const SPINNING_CALLS_PER_SLEEP: u64 = 16;

/// Smallest share of a thread's time that must remain for a statement about it.
const MIN_REMAINING_SHARE: f64 = 0.1;

/// Largest share of idle time, and smallest share of work, of saturated threads: the rest is
/// waiting for a core.
pub(crate) const MAX_SATURATED_IDLE_SHARE: f64 = 0.15;
pub(crate) const MIN_SATURATED_WORK_SHARE: f64 = 0.5;

/// Share of empty calls up to which the load of polling threads carries information.
pub(crate) const MAX_EMPTY_SHARE: f64 = 0.1;

/// Use of the threads' time, as shares from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadTime {
    /// On a processor, without [`ThreadTime::spinning`].
    pub working: f64,
    /// On a processor in empty calls: an estimate.
    pub spinning: f64,
    /// Runnable and waiting for a core, without [`ThreadTime::wakeup`].
    pub core_wait: f64,
    /// Wake-up latency after sleeps: the kernel counts it as waiting for a processor.
    pub wakeup: f64,
    /// Asleep.
    pub blocked: f64,
    /// Voluntary context switches, all threads.
    pub sleeps: u64,
    /// Involuntary context switches, all threads.
    pub preemptions: u64,
    /// Longest wall time of a thread, ns.
    pub wall_ns: u64,
    /// Number of threads.
    pub threads: usize,
    /// True if the threads poll and their empty calls were not counted: then their load carries no
    /// information.
    pub is_polling: bool,
    /// Calls that moved data, all threads; 0 if they were not counted.
    pub calls: u64,
    /// Share of empty calls, if they were counted.
    pub empty_share: Option<f64>,
}

impl ThreadTime {
    /// Returns the sum over threads; `None` without threads, or without scheduler statistics.
    #[must_use]
    pub fn sum<'a>(threads: impl Iterator<Item = &'a ThreadCost>) -> Option<Self> {
        let (mut wall, mut cpu, mut blocked) = (0.0, 0.0, 0.0);
        let (mut calls, mut empty) = (0, 0);
        let mut delay = RunDelay::default();
        let mut time = Self::default();
        for thread in threads.filter(|thread| !is_counted_elsewhere(thread)) {
            wall += thread.wall_ns as f64;
            cpu += thread.cpu_ns as f64;
            let thread_delay = thread.run_delay()?;
            delay.wakeup_ns += thread_delay.wakeup_ns;
            delay.core_wait_ns += thread_delay.core_wait_ns;
            blocked += thread.blocked_ns? as f64;
            calls += thread.calls.unwrap_or(0);
            empty += thread.empty_calls.unwrap_or(0);
            time.sleeps += thread.voluntary_switches;
            time.preemptions += thread.involuntary_switches;
            time.wall_ns = time.wall_ns.max(thread.wall_ns);
            time.threads += 1;
        }
        if wall <= 0.0 {
            return None;
        }
        let running = (cpu / wall).min(1.0);
        // The empty calls of a blocking thread lie between two sleeps: they are not idle time. A
        // spinning thread may have been stalled before the first payload.
        let spins = empty > SPINNING_CALLS_PER_SLEEP * time.sleeps.max(1);
        let spinning = match blocked / wall < 0.02 || spins {
            true => ((empty * EMPTY_CALL_NS) as f64 / wall).min(running),
            false => 0.0,
        };
        time.working = running - spinning;
        time.spinning = spinning;
        time.wakeup = (delay.wakeup_ns as f64 / wall).min(1.0);
        time.core_wait = (delay.core_wait_ns as f64 / wall).min(1.0);
        time.blocked = (blocked / wall).min(1.0);
        time.calls = calls.saturating_sub(empty);
        time.empty_share = (calls > 0).then(|| empty as f64 / calls as f64);
        Some(time)
    }

    /// Adjusts the time of threads that poll a port: their load carries no information unless
    /// nearly every call moved data.
    #[must_use]
    pub fn of_polling_threads(mut self) -> Self {
        self.is_polling = self.empty_share.is_none_or(|empty| empty > MAX_EMPTY_SHARE);
        self
    }

    /// Removes a time in which no payload could arrive: it is not idle time, and its share depends
    /// on the requested duration.
    #[must_use]
    pub fn without_silence(mut self, silence_ns: u64) -> Self {
        let share = silence_ns as f64 / self.wall_ns.max(1) as f64;
        let asleep = share.min(self.blocked);
        let spinning = (share - asleep).min(self.spinning);
        let rest = 1.0 - asleep - spinning;
        if rest < MIN_REMAINING_SHARE {
            return self;
        }
        self.blocked -= asleep;
        self.spinning -= spinning;
        for part in [
            &mut self.working,
            &mut self.spinning,
            &mut self.core_wait,
            &mut self.wakeup,
            &mut self.blocked,
        ] {
            *part /= rest;
        }
        self.wall_ns = (self.wall_ns as f64 * rest) as u64;
        self
    }

    /// Returns the share of time in which the threads had nothing to do.
    #[must_use]
    pub fn free_share(&self) -> f64 {
        (self.blocked + self.spinning + self.wakeup).min(1.0)
    }

    /// Returns true if the threads had almost no idle time: they worked or waited for a processor.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        !self.is_polling
            && self.free_share() < MAX_SATURATED_IDLE_SHARE
            && self.working > MIN_SATURATED_WORK_SHARE
    }
}

/// Returns true for a direction's entry of a thread whose time is counted in the other direction:
/// our stack serves both with one thread.
fn is_counted_elsewhere(thread: &ThreadCost) -> bool {
    let has_no_delay = thread.runnable_ns.is_none() && thread.blocked_ns.is_none();
    has_no_delay && thread.cpu_ns == 0 && thread.involuntary_switches == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_record::plan::Direction;
    use linerate_record::record::FlowEnd;

    fn thread(cpu_ns: u64, runnable_ns: u64, empty: u64) -> ThreadCost {
        ThreadCost {
            direction: Direction::Send,
            flow_end: FlowEnd::Sender,
            flows: 1,
            wall_ns: 1_000_000,
            cpu_ns,
            user_ns: 0,
            system_ns: 0,
            runnable_ns: Some(runnable_ns),
            blocked_ns: Some(1_000_000 - cpu_ns - runnable_ns),
            voluntary_switches: 0,
            involuntary_switches: 2,
            cpus: None,
            calls: Some(4_000),
            empty_calls: Some(empty),
            cycles: None,
            instructions: None,
        }
    }

    /// `linerate throughput --bidir` to our stack: one thread, counted in its receiving direction.
    #[test]
    fn a_thread_of_two_directions_is_counted_once() {
        let full = thread(600_000, 300_000, 0);
        let mut share = full.clone();
        (share.cpu_ns, share.involuntary_switches) = (0, 0);
        (share.runnable_ns, share.blocked_ns) = (None, None);
        let two_threads = ThreadTime::sum([share.clone(), full.clone()].iter());
        assert_eq!(two_threads, ThreadTime::sum([full.clone()].iter()));
        assert_eq!(ThreadTime::sum([share].iter()), None);
        // If the scheduler reports nothing about a working thread, the sum is unknown.
        let mut unreported = full.clone();
        (unreported.runnable_ns, unreported.blocked_ns) = (None, None);
        assert_eq!(ThreadTime::sum([unreported, full].iter()), None);
    }

    #[test]
    fn silence_after_the_end_is_no_free_time() {
        for (cpu_ns, empty) in [(750_000, 0), (1_000_000, 1_250)] {
            // The thread slept or spun for a quarter of the time, after the sender had stopped.
            let full = ThreadTime::sum([thread(cpu_ns, 0, empty)].iter()).unwrap();
            assert!((full.free_share() - 0.25).abs() < 1e-9 && !full.is_saturated());
            let trimmed = full.without_silence(250_000);
            assert!(
                trimmed.free_share() < 1e-9 && trimmed.is_saturated(),
                "{trimmed:?}"
            );
            assert!((trimmed.working - 1.0).abs() < 1e-9 && trimmed.wall_ns == 750_000);
        }
        // A thread that processed a backlog meanwhile: only its real idle time is removed.
        let backlog = ThreadTime::sum([thread(900_000, 50_000, 0)].iter()).unwrap();
        let trimmed = backlog.without_silence(250_000);
        assert!(trimmed.blocked.abs() < 1e-9 && (trimmed.working - 0.9 / 0.95).abs() < 1e-9);
        assert_eq!(backlog.without_silence(0), backlog);
    }

    #[test]
    fn free_time_is_sleep_or_calls_that_find_nothing() {
        let busy = ThreadTime::sum([thread(950_000, 40_000, 0)].iter()).unwrap();
        assert!(busy.is_saturated() && busy.free_share() < 0.02);
        let asleep = ThreadTime::sum([thread(200_000, 0, 0)].iter()).unwrap();
        assert!(!asleep.is_saturated() && (asleep.free_share() - 0.8).abs() < 1e-9);
        let spinning = ThreadTime::sum([thread(1_000_000, 0, 2_500)].iter()).unwrap();
        assert!((spinning.spinning - 0.5).abs() < 1e-9 && !spinning.is_saturated());
        // A thread that stalled first and spun afterwards: 99.6 % of its calls were empty.
        let late_spinner = ThreadTime::sum([thread(920_000, 0, 3_980)].iter()).unwrap();
        assert!(
            (late_spinner.working - 0.124).abs() < 1e-9 && !late_spinner.is_saturated(),
            "{late_spinner:?}"
        );
        let mut blocks = thread(920_000, 0, 1_000);
        blocks.voluntary_switches = 900;
        let blocks = ThreadTime::sum([blocks].iter()).unwrap();
        assert!((blocks.working - 0.92).abs() < 1e-9 && blocks.is_saturated());
        let two_threads =
            ThreadTime::sum([thread(1_000_000, 0, 0), thread(0, 0, 0)].iter()).unwrap();
        assert_eq!(two_threads.threads, 2);
        assert!((two_threads.blocked - 0.5).abs() < 1e-9);
        // Ten wake-ups of at most 30 us do not count as waiting for a core.
        let mut woken = thread(200_000, 400_000, 0);
        woken.voluntary_switches = 10;
        let woken = ThreadTime::sum([woken].iter()).unwrap();
        assert!((woken.wakeup - 0.3).abs() < 1e-9 && (woken.core_wait - 0.1).abs() < 1e-9);
        let mut unknown = thread(1, 0, 0);
        unknown.blocked_ns = None;
        assert_eq!(ThreadTime::sum([unknown].iter()), None);
        assert_eq!(ThreadTime::sum([].iter()), None);
    }
}
