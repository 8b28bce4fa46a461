//! What looks at a measuring thread from outside while it makes round trips: its wake-ups, and the
//! kernel's receive work.

use std::collections::BTreeMap;
use std::io;

use linerate_host::sys::clock::Nanos;
use linerate_host::sys::perf::{RING_BYTES, Switches, Tracepoint, Tracepoints, tracepoint_ids};
use linerate_host::sys::{cpu, thread};
use linerate_metric::plan::Stamping;

use super::log::{Log, Work};

/// Trips between two looks at the kernel's rings, which hold far more.
const EVERY: u32 = 64;

/// The vector of network receive work among the soft interrupts (linux/interrupt.h).
const NET_RX: &str = "vec == 3";

/// What instruments take of their end, where the kernel lets them have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Open files.
    pub files: usize,
    /// Memory of the kernel's rings.
    pub bytes: u64,
}

/// What a level takes on a machine with so many processors.
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
        // And a page about each ring, of any size that there is.
        bytes: processors as u64 * (RING_BYTES + (64 << 10)) as u64,
    }
}

/// Processors that are watched.
#[must_use]
pub fn processors() -> usize {
    cpu::online().map_or(1, |cpus| cpus.len())
}

/// What tells when a thread was woken and when it was switched in.
const SCHEDULER: [&str; 2] = ["sched/sched_waking", "sched/sched_switch"];

/// What tells when a processor begins and ends its receive work.
const RECEIVE_WORK: [&str; 2] = ["irq/softirq_entry", "irq/softirq_exit"];

/// Learns what only the superuser may read, for a process that is about to give up being one.
pub fn remember_tracepoints() {
    // Whoever may not read it says so when it is asked for.
    for names in [SCHEDULER, RECEIVE_WORK] {
        let _ = tracepoint_ids(&names);
    }
}

/// The instruments of one thread.
pub struct Instruments {
    switches: Option<Switches>,
    tracepoints: Option<Tracepoints>,
    /// When each processor's receive work began, while it goes on.
    began: BTreeMap<u32, Nanos>,
    since: u32,
    lost: u64,
}

impl Instruments {
    /// Sets up what `level` asks for, for the calling thread; what is not to be had is noted.
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
                    "{name}: when its thread was woken is not known ({error}; tracepoints need \
                     root, or CAP_PERFMON and tracefs)"
                ));
                // An ordinary user may still watch their own threads, for some more time each.
                match Switches::of_this_thread() {
                    Ok(switches) => own.switches = Some(switches),
                    Err(error) => log.notes.push(format!(
                        "{name}: when its thread was switched in is not known ({error}; perf \
                         events need kernel.perf_event_paranoid <= 2)"
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
        // The kernel's numbers of threads are not ours in a namespace: it is found by a name of its
        // own.
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
        // Receive work may be done on any processor.
        let processors = cpu::online();
        let processors =
            processors.ok_or_else(|| io::Error::other("the processors are not known"))?;
        let tracepoints = Tracepoints::open(&wanted, &processors)?;
        thread::rename(&name)?;
        Ok(tracepoints)
    }

    /// Looks at the rings every now and then. Not within a trip.
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

    /// Takes out the rest.
    pub fn finish(&mut self, log: &mut Log) {
        self.drain(log);
        if self.lost > 0 {
            let lost = self.lost;
            log.notes.push(format!(
                "the kernel's event rings had no room for {lost} events"
            ));
        }
    }
}
