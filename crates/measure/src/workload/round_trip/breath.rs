//! Pauses of real-time threads that spin, in round trips and in throughput runs.
//!
//! The kernel lets real-time threads have 95 % of each second (sched_rt_runtime_us) and then takes the
//! processor away for the rest of it: a hole of 50 ms. A thread that gives up more than that by
//! itself, in small parts between two questions, never gets there.

use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::{Direction, Sched, Wait};

use crate::flow::Part;
use crate::workload::Lane;

/// Time between two pauses' beginnings.
const TURN_NS: Nanos = 10_000_000;

/// Pause of the asking thread: 8 % of its time.
const ASKER_PAUSE_NS: Nanos = 800_000;

/// Pause of the answering thread, 6 % of its time: within the other's, so that no question waits.
const ANSWERER_PAUSE_NS: Nanos = 600_000;

/// Without a question for so long, the asking thread pauses: longer than a spinning round trip on
/// one machine takes at its p99.
const QUIET_NS: Nanos = 30_000;

/// When a thread pauses next.
#[derive(Clone, Copy, Debug)]
pub struct Breath {
    next_ns: Nanos,
}

impl Breath {
    /// Of a thread that needs pauses and was told to make them.
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

    /// The thread has nothing to do just now: an asking one is between two questions.
    pub fn pause(&mut self) {
        if clock::now() >= self.next_ns {
            let until = clock::now() + ASKER_PAUSE_NS;
            clock::sleep_until(until);
            self.next_ns = clock::now() + TURN_NS - ASKER_PAUSE_NS;
        }
    }

    /// The answering thread found no question; the last one was answered at `answered_ns`.
    pub fn without_question(&mut self, answered_ns: Nanos) {
        let now = clock::now();
        // Whenever the other one pauses, this one does too, however far apart their turns are.
        let due = now + TURN_NS / 2 >= self.next_ns;
        if due && now >= answered_ns + QUIET_NS {
            clock::sleep_until(now + ANSWERER_PAUSE_NS - QUIET_NS);
            self.next_ns = clock::now() + TURN_NS - ANSWERER_PAUSE_NS;
        }
    }
}
