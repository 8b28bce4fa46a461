//! Traces a measuring thread while it makes round trips: its wake-ups, and the kernel's receive
//! work.

use std::collections::BTreeMap;
use std::io;

use linerate_record::plan::TimestampLevel;
use linerate_sys::clock::Nanos;
use linerate_sys::perf_events::{
    ContextSwitchRecorder, RING_BYTES, Tracepoint, TracepointRecorder, find_tracepoint_ids,
};
use linerate_sys::{cpu, thread};

use super::ring::{ReceiveWork, TimestampRing};

/// Round trips between two reads of the kernel's event rings, which hold far more.
const ROUND_TRIPS_PER_DRAIN: u32 = 64;

/// Filter for the softirq vector of network receive work (linux/interrupt.h).
const NET_RX_FILTER: &str = "vec == 3";

/// Resources of the tracer at one end, if the kernel permits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracerResources {
    pub files: usize,
    /// Memory of the kernel's event rings.
    pub bytes: u64,
}

/// Returns the resources of a stamping level on a machine with this number of processors.
#[must_use]
pub fn required_resources(level: TimestampLevel, processors: usize) -> TracerResources {
    let per_processor = match level {
        TimestampLevel::None | TimestampLevel::Packets => return TracerResources::default(),
        TimestampLevel::Scheduler => 2,
        TimestampLevel::Driver => 4,
    };
    let processors = processors.max(1);
    TracerResources {
        files: per_processor * processors,
        // Plus one page around each ring, for any page size.
        bytes: processors as u64 * (RING_BYTES + (64 << 10)) as u64,
    }
}

/// Returns the number of traced processors.
#[must_use]
pub fn traced_processors() -> usize {
    cpu::list_online().map_or(1, |cpus| cpus.len())
}

/// Tracepoints of thread wake-ups and switch-ins.
const SCHEDULER: [&str; 2] = ["sched/sched_waking", "sched/sched_switch"];

/// Tracepoints of the start and end of receive work.
const RECEIVE_WORK: [&str; 2] = ["irq/softirq_entry", "irq/softirq_exit"];

/// Caches the tracepoint ids, which only root may read, for a process about to drop its privileges.
pub fn cache_tracepoint_ids() {
    // An error is reported when the tracepoints are used.
    for names in [SCHEDULER, RECEIVE_WORK] {
        let _ = find_tracepoint_ids(&names);
    }
}

/// Tracer of one thread.
pub struct SchedulerTracer {
    switches: Option<ContextSwitchRecorder>,
    tracepoints: Option<TracepointRecorder>,
    /// Start of each processor's current receive work.
    work_started: BTreeMap<u32, Nanos>,
    round_trips_since_drain: u32,
    lost_events: u64,
}

impl SchedulerTracer {
    /// Starts the tracing of `level` for the calling thread; what is not permitted becomes a
    /// warning.
    #[must_use]
    pub fn new(level: TimestampLevel, name: &str, ring: &mut TimestampRing) -> Self {
        let mut tracer = Self {
            switches: None,
            tracepoints: None,
            work_started: BTreeMap::new(),
            round_trips_since_drain: 0,
            lost_events: 0,
        };
        if level < TimestampLevel::Scheduler {
            return tracer;
        }
        match Self::open_tracepoints(level) {
            Ok(tracepoints) => tracer.tracepoints = Some(tracepoints),
            Err(error) => {
                let tracing = "tracepoints need root, or CAP_PERFMON and tracefs";
                // An ordinary user may still trace their own threads, at more cost per event.
                ring.warnings.push(match ContextSwitchRecorder::start() {
                    Ok(switches) => {
                        tracer.switches = Some(switches);
                        format!(
                            "{name}: the wake-up stage contains the softirq ({error}; {tracing})"
                        )
                    }
                    Err(switch_error) => format!(
                        "{name}: wake-up times are unknown ({error}; {tracing}; {switch_error}; \
                         perf events need kernel.perf_event_paranoid <= 2)"
                    ),
                });
            }
        }
        if level >= TimestampLevel::Driver && tracer.tracepoints.is_some() {
            ring.reserve_receive_work();
        }
        tracer
    }

    fn open_tracepoints(level: TimestampLevel) -> io::Result<TracepointRecorder> {
        // Thread ids differ in a PID namespace, so the filters use a unique thread name.
        let name = format!("lr-{:08x}", fastrand::u32(..));
        let mut names = SCHEDULER.to_vec();
        let mut filters = vec![
            format!("comm == \"{name}\""),
            format!("next_comm == \"{name}\""),
        ];
        if level >= TimestampLevel::Driver {
            names.extend(RECEIVE_WORK);
            filters.extend([NET_RX_FILTER.to_owned(), NET_RX_FILTER.to_owned()]);
        }
        let ids = find_tracepoint_ids(&names)?;
        let tracepoint_specs: Vec<_> = (ids.into_iter().zip(filters))
            .map(|(id, filter)| Tracepoint { id, filter })
            .collect();
        // Receive work may run on any processor.
        let processors = cpu::list_online();
        let processors =
            processors.ok_or_else(|| io::Error::other("the online CPUs are unknown"))?;
        let tracepoints = TracepointRecorder::start(&tracepoint_specs, &processors)?;
        thread::set_name(&name)?;
        Ok(tracepoints)
    }

    /// Reads the event rings from time to time; not within a round trip.
    #[inline]
    pub fn drain_if_due(&mut self, ring: &mut TimestampRing) {
        self.round_trips_since_drain += 1;
        if self.round_trips_since_drain >= ROUND_TRIPS_PER_DRAIN {
            self.drain(ring);
        }
    }

    fn drain(&mut self, ring: &mut TimestampRing) {
        self.round_trips_since_drain = 0;
        if let Some(switches) = &mut self.switches {
            self.lost_events += switches.drain(|switch| {
                if switch.switched_in {
                    ring.record_switch_in(switch.at_ns);
                }
            });
        }
        if let Some(tracepoints) = &mut self.tracepoints {
            let work_started = &mut self.work_started;
            self.lost_events += tracepoints.drain(|event| match event.tracepoint {
                0 => ring.record_wake_up(event.at_ns),
                1 => ring.record_switch_in(event.at_ns),
                2 => {
                    work_started.insert(event.cpu, event.at_ns);
                }
                _ => {
                    if let Some(from_ns) = work_started.remove(&event.cpu) {
                        ring.record_receive_work(ReceiveWork {
                            from_ns,
                            to_ns: event.at_ns,
                            cpu: event.cpu,
                        });
                    }
                }
            });
        }
    }

    /// Reads the remaining events.
    pub fn finish(&mut self, ring: &mut TimestampRing) {
        self.drain(ring);
        if self.lost_events > 0 {
            let lost = self.lost_events;
            ring.warnings
                .push(format!("the kernel's event rings dropped {lost} events"));
        }
    }
}
