//! Pauses of real-time threads that spin, to avoid RT throttling.
//!
//! The kernel lets real-time threads run for 95 % of each second (sched_rt_runtime_us) and then
//! takes the processor away for the remaining 50 ms. A thread that yields more than that in short
//! pauses between requests is never throttled.

use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::{Direction, Sched, Wait};

use crate::flow::Part;
use crate::workload::Lane;

/// Time from the start of one pause to the next.
const TURN_NS: Nanos = 10_000_000;

/// Pause of the requesting thread: 8 % of its time.
const ASKER_PAUSE_NS: Nanos = 800_000;

/// Pause of the responding thread, 6 % of its time: within the other pause, so that no request
/// waits.
const ANSWERER_PAUSE_NS: Nanos = 600_000;

/// Time without a request from which the requesting thread is taken to pause: longer than the p99
/// of
/// a spinning round trip within one machine.
const QUIET_NS: Nanos = 30_000;

/// Schedule of a thread's pauses.
#[derive(Clone, Copy, Debug)]
pub struct Breath {
    next_ns: Nanos,
}

impl Breath {
    /// Returns a schedule if pauses are enabled and the thread is real-time and spins.
    pub fn of(lane: &Lane<'_>) -> Option<Self> {
        let plan = lane.plan;
        let wait = plan.wait.as_ref();
        let near = matches!(
            (lane.part, lane.direction),
            (Part::Source, Direction::Send) | (Part::Sink, Direction::Receive)
        );
        let (sched, wait): (Sched, _) = match near {
            true => (plan.sched.near, wait.map(|wait| wait.near)),
            false => (plan.sched.far, wait.map(|wait| wait.far)),
        };
        let needs = sched.is_real_time() && wait == Some(Wait::Spin);
        (plan.round_trip.rt_yield && needs).then(|| Self {
            next_ns: clock::now() + TURN_NS - ASKER_PAUSE_NS,
        })
    }

    /// Pauses if it is time; called by a requesting thread between two requests.
    pub fn pause(&mut self) {
        if clock::now() >= self.next_ns {
            let until = clock::now() + ASKER_PAUSE_NS;
            clock::sleep_until(until);
            self.next_ns = clock::now() + TURN_NS - ASKER_PAUSE_NS;
        }
    }

    /// Pauses a responding thread that found no request; the last response was sent at
    /// `answered_ns`.
    pub fn without_question(&mut self, answered_ns: Nanos) {
        let now = clock::now();
        // Follows the pauses of the requesting thread, whatever the phase between both schedules.
        let due = now + TURN_NS / 2 >= self.next_ns;
        if due && now >= answered_ns + QUIET_NS {
            clock::sleep_until(now + ANSWERER_PAUSE_NS - QUIET_NS);
            self.next_ns = clock::now() + TURN_NS - ANSWERER_PAUSE_NS;
        }
    }
}
