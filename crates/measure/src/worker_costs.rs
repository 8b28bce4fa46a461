//! Cost of the worker threads as seen by the coordinator: CPUs, waiting times, CPU time. It reads
//! files of the kernel about them, so that their loops pay nothing.

use std::collections::BTreeSet;

use linerate_host::processor_time::{Scheduled, processor_of};
use linerate_host::sys::clock::Nanos;
use linerate_metric::cost::{THREADS_LISTED, ThreadCost, ThreadShares};
use linerate_metric::plan::{Cpus, Direction};
use linerate_metric::record::CountedAt;

use crate::flow::Part;
use crate::worker::{LaneHandle, LaneOutcome};

/// Costs of all worker threads of one end.
#[derive(Default)]
pub struct Threads {
    watched: Vec<Watched>,
    /// Costs of threads that have ended.
    ended: Vec<ThreadCost>,
    /// Reason why cycles and instructions are missing.
    uncounted: Option<String>,
}

struct Watched {
    direction: Direction,
    part: Part,
    flows: u32,
    started_ns: Nanos,
    /// Scheduler statistics at the start; `None` where they are not available.
    base: Option<Scheduled>,
    /// Scheduler statistics at the end of the last interval, with the time.
    last: Option<(Scheduled, Nanos)>,
    /// Scheduler statistics at the end of the thread.
    last_of_all: Option<(Scheduled, Nanos)>,
    cpus: BTreeSet<u32>,
}

impl Threads {
    /// Samples the threads before their start. Threads beyond [`THREADS_LISTED`] are not sampled
    /// while they run, because records do not list them.
    #[must_use]
    pub fn new(lanes: &[LaneHandle], start_ns: Nanos) -> Self {
        let watched = lanes.iter().enumerate().map(|(place, lane)| {
            let id = lane.thread_id().filter(|_| place < THREADS_LISTED);
            let base = id.and_then(Scheduled::of);
            Watched {
                direction: lane.direction,
                part: lane.part,
                flows: u32::try_from(lane.flows).unwrap_or(u32::MAX),
                started_ns: start_ns,
                base,
                last: base.map(|base| (base, start_ns)),
                last_of_all: None,
                cpus: BTreeSet::new(),
            }
        });
        Self {
            watched: watched.collect(),
            ..Self::default()
        }
    }

    /// Returns the thread times of a direction in the interval that ends now; `None` when they are
    /// unknown.
    pub fn interval(
        &mut self,
        lanes: &[LaneHandle],
        direction: Direction,
        now: Nanos,
    ) -> Option<ThreadShares> {
        let mut sum = ThreadShares::default();
        let mut count = 0.0;
        for (watched, lane) in self.watched.iter_mut().zip(lanes) {
            let Some((before, since)) = watched.last.filter(|_| watched.direction == direction)
            else {
                continue;
            };
            let (scheduled, until) = match (watched.last_of_all, lane.thread_id()) {
                (Some(last), _) => last,
                (None, Some(id)) => {
                    let Some(scheduled) = Scheduled::of(id) else {
                        continue;
                    };
                    watched.cpus.extend(processor_of(id));
                    (scheduled, now)
                }
                (None, None) => continue,
            };
            let Some(wall) = until.checked_sub(since).filter(|&wall| wall > 0) else {
                continue;
            };
            let spent = scheduled.since(&before);
            let running = (spent.running_ns as f64 / wall as f64).min(1.0);
            let runnable = (spent.runnable_ns as f64 / wall as f64).min(1.0 - running);
            sum.running += running;
            sum.runnable += runnable;
            sum.blocked += 1.0 - running - runnable;
            count += 1.0;
            watched.last = Some((scheduled, until));
        }
        (count > 0.0).then(|| ThreadShares {
            running: sum.running / count,
            runnable: sum.runnable / count,
            blocked: sum.blocked / count,
        })
    }

    /// Records the results of a thread, by its index among the workers.
    pub fn ended(&mut self, place: usize, outcome: &LaneOutcome) {
        let Some(watched) = self.watched.get_mut(place) else {
            return;
        };
        watched.last_of_all = outcome.scheduled.map(|s| (s, outcome.ended_ns));
        let wall_ns = outcome.ended_ns.saturating_sub(watched.started_ns);
        let runnable_ns = (outcome.scheduled.zip(watched.base))
            .map(|(end, base)| end.since(&base).runnable_ns.min(wall_ns));
        let cpu_ns = outcome.usage.cpu_ns;
        let counted = match &outcome.counted {
            Some(Ok(counted)) => Some(*counted),
            Some(Err(why)) => {
                self.uncounted.get_or_insert_with(|| why.clone());
                None
            }
            None => None,
        };
        self.ended.push(ThreadCost {
            direction: watched.direction,
            part: match watched.part {
                Part::Source => CountedAt::Sender,
                Part::Sink => CountedAt::Receiver,
            },
            flows: watched.flows,
            wall_ns,
            cpu_ns,
            user_ns: outcome.usage.user_ns,
            system_ns: outcome.usage.system_ns,
            runnable_ns,
            blocked_ns: runnable_ns
                .map(|runnable| wall_ns.saturating_sub(cpu_ns).saturating_sub(runnable)),
            voluntary_switches: outcome.usage.voluntary_switches,
            involuntary_switches: outcome.usage.involuntary_switches,
            cpus: (!watched.cpus.is_empty()).then(|| Cpus(watched.cpus.iter().copied().collect())),
            calls: outcome.attempts.map(|attempts| attempts.calls),
            empty_calls: outcome.attempts.map(|attempts| attempts.empty),
            cycles: counted.map(|counted| counted.cycles),
            instructions: counted.map(|counted| counted.instructions),
        });
    }

    /// Returns the costs of threads that have ended.
    #[must_use]
    pub fn costs(&self) -> &[ThreadCost] {
        &self.ended
    }

    /// Returns the reason why cycles and instructions are missing.
    #[must_use]
    pub fn uncounted(&self) -> Option<&str> {
        self.uncounted.as_deref()
    }
}
