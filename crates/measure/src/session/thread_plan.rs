//! Thread plan of an end: wait mode, CPUs and number of threads, with the reason.

use linerate_host::sys::cpu;
use linerate_metric::facts::Role;
use linerate_metric::plan::{Cpus, Direction, Ends, Kind, Plan, Wait};

use super::setup::part;
use crate::error::MeasureError;
use crate::flow::Part;
use crate::wait_policy::{self, Situation};

/// Wait mode, CPUs and number of threads of one end.
#[derive(Clone, Debug)]
pub struct Manner {
    /// Wait mode of the receivers; of all threads when it was requested.
    pub wait: Wait,
    /// The wait mode was requested.
    pub asked: bool,
    /// CPUs of the threads; empty: chosen by the scheduler.
    pub cpus: Cpus,
    /// Reason of the wait mode; absent when it was requested.
    pub because: Option<String>,
    /// Threads of each direction.
    pub threads: usize,
    /// Some threads have several flows.
    pub shared: bool,
}

impl Manner {
    /// Chooses the plan of one end. `shared`: both ends use the same machine. `others`: threads of
    /// other tests that are busy on it.
    pub fn settle(
        plan: &Plan,
        role: Role,
        asked: Option<Wait>,
        shared: bool,
        others: usize,
    ) -> Result<Self, MeasureError> {
        let (cpus, their_cpus) = match role {
            Role::Client => (plan.cpu.near.clone(), &plan.cpu.far),
            Role::Server => (plan.cpu.far.clone(), &plan.cpu.near),
        };
        let usable = may_run(plan, role)?;
        let processors = if cpus.0.is_empty() {
            usable.len().max(1)
        } else {
            cpus.0.len()
        };
        let streams = plan.streams as usize;
        let wished = plan.threads.as_ref().map(|threads| match role {
            Role::Client => threads.near,
            Role::Server => threads.far,
        });
        let threads = match wished {
            Some(threads) => (threads as usize).clamp(1, streams.max(1)),
            None => wait_policy::threads(
                plan.kind,
                asked,
                streams,
                processors,
                plan.round_trip.connections,
            ),
        };
        let several = streams > threads;
        let keeps_schedule = role == Role::Client && plan.round_trip.rate_per_second.is_some();
        if keeps_schedule && !matches!(asked, None | Some(Wait::Poll | Wait::Spin)) {
            return Err(MeasureError::OptionRefused {
                option: format!("--wait {} with --rate", asked.unwrap_or(Wait::Block)),
                why: "a sleeping thread would miss the send time of its next request".to_owned(),
                next_step: "use poll or spin at this end: --wait poll/block".to_owned(),
            });
        }
        if keeps_schedule && asked.is_none() {
            return Ok(Self {
                wait: Wait::Poll,
                asked: false,
                cpus,
                because: Some("one call waits for responses and for the next send time".to_owned()),
                threads: streams,
                shared: false,
            });
        }
        if let Some(wait) = asked {
            if several && sleeps_in_calls(wait) {
                return Err(MeasureError::OptionRefused {
                    option: format!("--wait {wait} with --threads {threads}"),
                    why: format!("a blocking call serves only one of {streams} streams"),
                    next_step: "use --wait epoll or spin, or leave --threads out".to_owned(),
                });
            }
            return Ok(Self {
                wait,
                asked: true,
                cpus,
                because: None,
                threads,
                shared: several,
            });
        }
        let threads_here = threads * plan.directions.len();
        let receives = (plan.directions.iter())
            .any(|&direction| part(role, direction) == Part::Sink)
            && plan.kind == Kind::Throughput;
        // With separate CPUs for each end, they do not compete.
        let meet = cpus.0.is_empty()
            || their_cpus.0.is_empty()
            || cpus.0.iter().any(|cpu| their_cpus.0.contains(cpu));
        let (wait, because) = wait_policy::wait(&Situation {
            kind: plan.kind,
            receives,
            paced: plan.rate_bps.is_some(),
            congestion_control: plan.congestion_control.as_deref(),
            busy_threads: others + threads_here * if shared && meet { 2 } else { 1 },
            processors,
            streams,
            threads,
            connections: plan.round_trip.connections,
        });
        Ok(Self {
            wait,
            asked: false,
            cpus,
            because: Some(because),
            threads,
            shared: several,
        })
    }

    /// Returns the role and number of threads for each direction of the plan at this end.
    #[must_use]
    pub fn threads(&self, plan: &Plan, role: Role) -> Vec<(Part, usize)> {
        let threads = |&direction: &Direction| (part(role, direction), self.threads);
        plan.directions.iter().map(threads).collect()
    }

    /// Returns the number of threads of one direction, as in a plan.
    #[must_use]
    pub fn thread_count(&self) -> u32 {
        u32::try_from(self.threads).unwrap_or(u32::MAX)
    }

    /// Returns the wait mode of a thread. A sender blocks, unless the wait mode was requested.
    pub(super) fn of(&self, part: Part, kind: Kind) -> Wait {
        if !self.asked && part == Part::Source && kind == Kind::Throughput {
            if self.shared {
                Wait::Epoll
            } else {
                Wait::Block
            }
        } else {
            self.wait
        }
    }
}

/// Returns the CPUs that this process may use.
///
/// # Errors
/// The first requested CPU that is not among them.
pub fn may_run(plan: &Plan, role: Role) -> Result<Vec<u32>, MeasureError> {
    let usable = cpu::usable().map_err(|error| MeasureError::system("affinity", error))?;
    let asked = match role {
        Role::Client => &plan.cpu.near,
        Role::Server => &plan.cpu.far,
    };
    let Some(cpu) = asked.0.iter().find(|cpu| !usable.contains(cpu)) else {
        return Ok(usable);
    };
    let first = usable.first().copied().unwrap_or_default();
    let known = cpu::online().unwrap_or_default();
    let Ends { near, far } = &plan.cpu;
    // One list applies to both ends, or the remote end cannot be configured.
    let is_one = far == near || far.0.is_empty() || plan.dialect.is_some();
    let whose = match role {
        Role::Client => "this machine",
        Role::Server => "the server's machine",
    };
    let why = match known.is_empty() || known.contains(cpu) {
        true => format!("the process may not run on CPU {cpu} of {whose}"),
        false => format!("{whose} has no CPU {cpu}"),
    };
    let which = Cpus(usable);
    Err(MeasureError::OptionRefused {
        option: format!("--cpu {}", plan.cpu),
        why,
        next_step: match role {
            Role::Client if is_one => format!("choose among {which}: --cpu {first}"),
            Role::Client => format!(
                "choose among {which}; the list after the slash is the server's: --cpu {first}/{far}"
            ),
            Role::Server => format!("choose among {which} for the server: --cpu {near}/{first}"),
        },
    })
}

/// Returns whether a thread with this wait mode can have only one flow.
fn sleeps_in_calls(wait: Wait) -> bool {
    matches!(
        wait,
        Wait::Block | Wait::Poll | Wait::Select { .. } | Wait::BusyPoll { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::plan::Protocol;

    #[test]
    fn a_processor_that_an_end_does_not_have_is_told_of_that_end() {
        let usable = cpu::usable().unwrap();
        let (first, all) = (usable[0], Cpus(usable));
        let given = |near: u32, far: u32| {
            let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "host");
            (plan.cpu.near, plan.cpu.far) = (Cpus(vec![near]), Cpus(vec![far]));
            [Role::Client, Role::Server].map(|role| {
                let told = may_run(&plan, role).err().map(|error| error.problem());
                told.map(|told| (told.object.clone(), told.situation, told.next_step))
            })
        };
        let [near, far] = given(first, 8000);
        assert_eq!(near, None);
        let (option, why, next) = far.unwrap();
        assert_eq!(option, format!("--cpu {first}/8000"));
        assert_eq!(why, "the server's machine has no CPU 8000");
        let wanted = format!("choose among {all} for the server: --cpu {first}/{first}");
        assert_eq!(next, wanted);
        let [near, _] = given(8000, 8000);
        let (option, why, next) = near.unwrap();
        assert_eq!(option, "--cpu 8000");
        assert_eq!(why, "this machine has no CPU 8000");
        assert_eq!(next, format!("choose among {all}: --cpu {first}"));
        let next_of = |far: &[u32], dialect: Option<&str>| {
            let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "host");
            (plan.cpu.near, plan.cpu.far) = (Cpus(vec![8000]), Cpus(far.to_vec()));
            plan.dialect = dialect.map(str::to_owned);
            may_run(&plan, Role::Client)
                .unwrap_err()
                .problem()
                .next_step
        };
        for (far, dialect, ends) in [
            (&[8001][..], None, format!(": --cpu {first}/8001")),
            // `any` is no valid argument, and other tools cannot be configured.
            (&[], None, format!(": --cpu {first}")),
            (&[8001], Some("iperf3"), format!(": --cpu {first}")),
        ] {
            let next = next_of(far, dialect);
            assert!(next.ends_with(&ends), "{next}");
        }
    }

    #[test]
    fn processors_that_were_given_bound_the_threads() {
        let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "host");
        plan.streams = 5;
        let first = cpu::usable().unwrap()[0];
        plan.cpu = Ends::both(Cpus(vec![first]));
        let spin = Some(Wait::Spin);
        let manner = Manner::settle(&plan, Role::Server, spin, false, 0).unwrap();
        assert_eq!(manner.threads(&plan, Role::Server), [(Part::Sink, 1)]);
        let block = Some(Wait::Block);
        let manner = Manner::settle(&plan, Role::Server, block, false, 0).unwrap();
        assert_eq!(manner.threads, 5);
        plan.threads = Some(Ends { near: 5, far: 2 });
        assert!(Manner::settle(&plan, Role::Server, block, false, 0).is_err());
        let manner = Manner::settle(&plan, Role::Server, None, false, 0).unwrap();
        assert_eq!((manner.wait, manner.threads), (Wait::Epoll, 2));
        plan.threads = None;
        // One receiver, one CPU: free for it alone, not while another test runs.
        plan.streams = 1;
        for (others, want) in [(0, Wait::Spin), (1, Wait::Block)] {
            let manner = Manner::settle(&plan, Role::Server, None, false, others).unwrap();
            assert_eq!(manner.wait, want, "{others}");
        }
    }
}
