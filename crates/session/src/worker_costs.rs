//! Cost of the worker threads as seen by the coordinator: CPUs, waiting times, CPU time. It reads
//! files of the kernel about them, so that their loops pay nothing.

use std::collections::BTreeSet;

use linerate_host::processor_time::{SchedStats, last_processor};
use linerate_record::cost::{MAX_LISTED_THREADS, ThreadCost, ThreadShares};
use linerate_record::plan::{CpuList, Direction};
use linerate_record::record::FlowEnd;
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::worker::{WorkerHandle, WorkerResults};

/// Costs of all worker threads of one end.
#[derive(Default)]
pub struct WorkerCosts {
    workers: Vec<WorkerSamples>,
    /// Costs of threads that have ended.
    finished_costs: Vec<ThreadCost>,
    /// Time of the last sample of the CPUs.
    cpus_sampled_ns: Nanos,
    /// Reason why cycles and instructions are missing.
    uncounted_reason: Option<String>,
}

struct WorkerSamples {
    direction: Direction,
    role: FlowRole,
    flows: u32,
    started_ns: Nanos,
    /// Scheduler statistics at the start; `None` where they are not available.
    at_start: Option<SchedStats>,
    /// Scheduler statistics at the end of the last interval, with the time.
    at_interval_end: Option<(SchedStats, Nanos)>,
    /// Scheduler statistics at the end of the thread.
    at_end: Option<(SchedStats, Nanos)>,
    cpus: BTreeSet<u32>,
}

/// Shortest time between two samples of the threads' CPUs: reading one takes some 10 us.
const CPU_SAMPLE_INTERVAL_NS: Nanos = 250_000_000;

impl WorkerCosts {
    /// Samples the threads before their start. Threads beyond [`MAX_LISTED_THREADS`] are not
    /// sampled while they run, because records do not list them.
    #[must_use]
    pub fn new(handles: &[WorkerHandle], start_ns: Nanos) -> Self {
        let samples = handles.iter().enumerate().map(|(index, handle)| {
            let id = handle.thread_id().filter(|_| index < MAX_LISTED_THREADS);
            let base = id.and_then(SchedStats::read);
            WorkerSamples {
                direction: handle.direction,
                role: handle.role,
                flows: u32::try_from(handle.flows).unwrap_or(u32::MAX),
                started_ns: start_ns,
                at_start: base,
                at_interval_end: base.map(|base| (base, start_ns)),
                at_end: None,
                cpus: BTreeSet::new(),
            }
        });
        Self {
            workers: samples.collect(),
            // Threads may still move to another CPU at their start.
            cpus_sampled_ns: start_ns,
            ..Self::default()
        }
    }

    /// Samples the CPUs of the threads, unless the last sample is recent. Runs without intervals have
    /// no other samples.
    pub fn sample_cpus(&mut self, handles: &[WorkerHandle], now: Nanos) {
        if now < self.cpus_sampled_ns + CPU_SAMPLE_INTERVAL_NS {
            return;
        }
        self.cpus_sampled_ns = now;
        let running = self.workers.iter_mut().zip(handles);
        for (samples, handle) in running.filter(|(_, handle)| !handle.is_finished()) {
            // Threads that are not listed have no statistics.
            if let (Some(_), Some(id)) = (samples.at_start, handle.thread_id()) {
                samples.cpus.extend(last_processor(id));
            }
        }
    }

    /// Returns the thread times of a direction in the interval that ends now; `None` when they are
    /// unknown.
    pub fn interval_times(
        &mut self,
        handles: &[WorkerHandle],
        direction: Direction,
        now: Nanos,
    ) -> Option<ThreadShares> {
        let mut sum = ThreadShares::default();
        let mut count = 0.0;
        for (samples, handle) in self.workers.iter_mut().zip(handles) {
            let Some((before, start_ns)) = samples
                .at_interval_end
                .filter(|_| samples.direction == direction)
            else {
                continue;
            };
            let (scheduled, end_ns) = match (samples.at_end, handle.thread_id()) {
                (Some(last), _) => last,
                (None, Some(id)) => {
                    let Some(scheduled) = SchedStats::read(id) else {
                        continue;
                    };
                    (scheduled, now)
                }
                (None, None) => continue,
            };
            let Some(wall) = end_ns.checked_sub(start_ns).filter(|&wall| wall > 0) else {
                continue;
            };
            let spent = scheduled.since(&before);
            let running = (spent.running_ns as f64 / wall as f64).min(1.0);
            let runnable = (spent.runnable_ns as f64 / wall as f64).min(1.0 - running);
            sum.running += running;
            sum.runnable += runnable;
            sum.blocked += 1.0 - running - runnable;
            count += 1.0;
            samples.at_interval_end = Some((scheduled, end_ns));
        }
        (count > 0.0).then(|| ThreadShares {
            running: sum.running / count,
            runnable: sum.runnable / count,
            blocked: sum.blocked / count,
        })
    }

    /// Records the results of a thread, by its index among the workers.
    pub fn record_end(&mut self, index: usize, results: &WorkerResults) {
        let Some(samples) = self.workers.get_mut(index) else {
            return;
        };
        samples.cpus.extend(results.cpu);
        samples.at_end = results.scheduled.map(|s| (s, results.ended_ns));
        let wall_ns = results.ended_ns.saturating_sub(samples.started_ns);
        let runnable_ns = (results.scheduled.zip(samples.at_start))
            .map(|(end, base)| end.since(&base).runnable_ns.min(wall_ns));
        let cpu_ns = results.usage.cpu_ns;
        let cycles = match &results.cycles {
            Some(Ok(cycles)) => Some(*cycles),
            Some(Err(reason)) => {
                self.uncounted_reason.get_or_insert_with(|| reason.clone());
                None
            }
            None => None,
        };
        self.finished_costs.push(ThreadCost {
            direction: samples.direction,
            flow_end: match samples.role {
                FlowRole::Sender => FlowEnd::Sender,
                FlowRole::Receiver => FlowEnd::Receiver,
            },
            flows: samples.flows,
            wall_ns,
            cpu_ns,
            user_ns: results.usage.user_ns,
            system_ns: results.usage.system_ns,
            runnable_ns,
            blocked_ns: runnable_ns
                .map(|runnable| wall_ns.saturating_sub(cpu_ns).saturating_sub(runnable)),
            voluntary_switches: results.usage.voluntary_switches,
            involuntary_switches: results.usage.involuntary_switches,
            cpus: (!samples.cpus.is_empty())
                .then(|| CpuList(samples.cpus.iter().copied().collect())),
            calls: results.attempts.map(|attempts| attempts.calls),
            empty_calls: results.attempts.map(|attempts| attempts.empty),
            cycles: cycles.map(|cycles| cycles.cycles),
            instructions: cycles.map(|cycles| cycles.instructions),
        });
    }

    /// Returns the costs of threads that have ended.
    #[must_use]
    pub fn costs(&self) -> &[ThreadCost] {
        &self.finished_costs
    }

    /// Returns the reason why cycles and instructions are missing.
    #[must_use]
    pub fn uncounted_because(&self) -> Option<&str> {
        self.uncounted_reason.as_deref()
    }
}
