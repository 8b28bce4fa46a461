//! Pauses of real-time threads that spin, to avoid RT throttling.
//!
//! The kernel lets real-time threads run for 95 % of each second (sched_rt_runtime_us) and then
//! takes the processor away for the remaining 50 ms. A thread that yields more than that in short
//! pauses between requests is never throttled.

use linerate_record::plan::{Direction, SchedPolicy, WaitMode};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;

use crate::WorkerContext;

/// Time from the start of one pause to the next.
const PERIOD_NS: Nanos = 10_000_000;

/// Pause of the requesting thread: 8 % of its time.
const REQUEST_PAUSE_NS: Nanos = 800_000;

/// Pause of the responding thread, 6 % of its time: within the other pause, so that no request
/// waits.
const RESPONSE_PAUSE_NS: Nanos = 600_000;

/// Time without a request from which the requesting thread is taken to pause: longer than the p99
/// of a spinning round trip within one machine.
const QUIET_NS: Nanos = 30_000;

/// Schedule of a thread's pauses.
#[derive(Clone, Copy, Debug)]
pub struct RtYield {
    next_ns: Nanos,
}

impl RtYield {
    /// Returns a schedule if pauses are enabled and the thread is real-time and spins.
    pub fn for_worker(worker: &WorkerContext<'_>) -> Option<Self> {
        let plan = worker.plan;
        let wait = plan.wait.as_ref();
        let is_client = matches!(
            (worker.role, worker.direction),
            (FlowRole::Sender, Direction::Send) | (FlowRole::Receiver, Direction::Receive)
        );
        let (sched, wait): (SchedPolicy, _) = match is_client {
            true => (plan.sched.client, wait.map(|wait| wait.client)),
            false => (plan.sched.server, wait.map(|wait| wait.server)),
        };
        let is_spinning_real_time = sched.is_real_time() && wait == Some(WaitMode::Spin);
        (plan.round_trip.rt_yield && is_spinning_real_time).then(|| Self {
            next_ns: clock::now() + PERIOD_NS - REQUEST_PAUSE_NS,
        })
    }

    /// Pauses if it is time; called by a requesting thread between two requests.
    pub fn pause_if_due(&mut self) {
        if clock::now() >= self.next_ns {
            let until = clock::now() + REQUEST_PAUSE_NS;
            clock::sleep_until(until);
            self.next_ns = clock::now() + PERIOD_NS - REQUEST_PAUSE_NS;
        }
    }

    /// Pauses a responding thread that found no request; the last response was sent at
    /// `responded_ns`.
    pub fn pause_without_request(&mut self, responded_ns: Nanos) {
        let now = clock::now();
        // Follows the pauses of the requesting thread, whatever the phase between both schedules.
        let is_due = now + PERIOD_NS / 2 >= self.next_ns;
        if is_due && now >= responded_ns + QUIET_NS {
            clock::sleep_until(now + RESPONSE_PAUSE_NS - QUIET_NS);
            self.next_ns = clock::now() + PERIOD_NS - RESPONSE_PAUSE_NS;
        }
    }
}
