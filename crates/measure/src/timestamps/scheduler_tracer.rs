//! Traces a measuring thread while it makes round trips: its wake-ups, and the kernel's receive
//! work.

use std::collections::BTreeMap;
use std::io;

use linerate_host::sys::clock::Nanos;
use linerate_host::sys::perf_events::{
    RING_BYTES, Switches, Tracepoint, Tracepoints, tracepoint_ids,
};
use linerate_host::sys::{cpu, thread};
use linerate_metric::plan::Stamping;

use super::ring::{Log, Work};

/// Round trips between two reads of the kernel's event rings, which hold far more.
const EVERY: u32 = 64;

/// Filter for the softirq vector of network receive work (linux/interrupt.h).
const NET_RX: &str = "vec == 3";

/// Resources of the tracer at one end, if the kernel permits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub files: usize,
    /// Memory of the kernel's event rings.
    pub bytes: u64,
}

/// Returns the resources of a stamping level on a machine with this number of processors.
#[must_use]
pub fn needs(level: Stamping, processors: usize) -> Needs {
    let each = match level {
        Stamping::None | Stamping::Packets => return Needs::default(),
        Stamping::Scheduler => 2,
        Stamping::Driver => 4,
    };
    let processors = processors.max(1);
    Needs {
        files: each * processors,
        // Plus one page around each ring, for any page size.
        bytes: processors as u64 * (RING_BYTES + (64 << 10)) as u64,
    }
}

/// Returns the number of traced processors.
#[must_use]
pub fn processors() -> usize {
    cpu::online().map_or(1, |cpus| cpus.len())
}

/// Tracepoints of thread wake-ups and switch-ins.
const SCHEDULER: [&str; 2] = ["sched/sched_waking", "sched/sched_switch"];

/// Tracepoints of the start and end of receive work.
const RECEIVE_WORK: [&str; 2] = ["irq/softirq_entry", "irq/softirq_exit"];

/// Caches the tracepoint ids, which only root may read, for a process about to drop its privileges.
pub fn remember_tracepoints() {
    // An error is reported when the tracepoints are used.
    for names in [SCHEDULER, RECEIVE_WORK] {
        let _ = tracepoint_ids(&names);
    }
}

/// Tracer of one thread.
pub struct Instruments {
    switches: Option<Switches>,
    tracepoints: Option<Tracepoints>,
    /// Start of each processor's current receive work.
    began: BTreeMap<u32, Nanos>,
    since: u32,
    lost: u64,
}

impl Instruments {
    /// Starts the tracing of `level` for the calling thread; what is not permitted becomes a
    /// warning.
    #[must_use]
    pub fn new(level: Stamping, name: &str, log: &mut Log) -> Self {
        let mut own = Self {
            switches: None,
            tracepoints: None,
            began: BTreeMap::new(),
            since: 0,
            lost: 0,
        };
        if level < Stamping::Scheduler {
            return own;
        }
        match Self::watch_kernel(level) {
            Ok(tracepoints) => own.tracepoints = Some(tracepoints),
            Err(error) => {
                log.notes.push(format!(
                    "{name}: wake-up times are unknown ({error}; tracepoints need root, or \
                     CAP_PERFMON and tracefs)"
                ));
                // An ordinary user may still trace their own threads, at more cost per event.
                match Switches::of_this_thread() {
                    Ok(switches) => own.switches = Some(switches),
                    Err(error) => log.notes.push(format!(
                        "{name}: switch-in times are unknown ({error}; perf events need \
                         kernel.perf_event_paranoid <= 2)"
                    )),
                }
            }
        }
        if level >= Stamping::Driver && own.tracepoints.is_some() {
            log.expect_work();
        }
        own
    }

    fn watch_kernel(level: Stamping) -> io::Result<Tracepoints> {
        // Thread ids differ in a PID namespace, so the filters use a unique thread name.
        let name = format!("lr-{:08x}", fastrand::u32(..));
        let mut names = SCHEDULER.to_vec();
        let mut filters = vec![
            format!("comm == \"{name}\""),
            format!("next_comm == \"{name}\""),
        ];
        if level >= Stamping::Driver {
            names.extend(RECEIVE_WORK);
            filters.extend([NET_RX.to_owned(), NET_RX.to_owned()]);
        }
        let ids = tracepoint_ids(&names)?;
        let wanted: Vec<_> = (ids.into_iter().zip(filters))
            .map(|(id, filter)| Tracepoint { id, filter })
            .collect();
        // Receive work may run on any processor.
        let processors = cpu::online();
        let processors =
            processors.ok_or_else(|| io::Error::other("the online processors are unknown"))?;
        let tracepoints = Tracepoints::open(&wanted, &processors)?;
        thread::rename(&name)?;
        Ok(tracepoints)
    }

    /// Reads the event rings from time to time; not within a round trip.
    #[inline]
    pub fn look(&mut self, log: &mut Log) {
        self.since += 1;
        if self.since >= EVERY {
            self.drain(log);
        }
    }

    fn drain(&mut self, log: &mut Log) {
        self.since = 0;
        if let Some(switches) = &mut self.switches {
            self.lost += switches.drain(|switch| {
                if switch.on {
                    log.ran(switch.at_ns);
                }
            });
        }
        if let Some(tracepoints) = &mut self.tracepoints {
            let began = &mut self.began;
            self.lost += tracepoints.drain(|passage| match passage.tracepoint {
                0 => log.woken(passage.at_ns),
                1 => log.ran(passage.at_ns),
                2 => {
                    began.insert(passage.cpu, passage.at_ns);
                }
                _ => {
                    if let Some(from_ns) = began.remove(&passage.cpu) {
                        log.worked(Work {
                            from_ns,
                            to_ns: passage.at_ns,
                            cpu: passage.cpu,
                        });
                    }
                }
            });
        }
    }

    /// Reads the remaining events.
    pub fn finish(&mut self, log: &mut Log) {
        self.drain(log);
        if self.lost > 0 {
            let lost = self.lost;
            log.notes
                .push(format!("the kernel's event rings dropped {lost} events"));
        }
    }
}
