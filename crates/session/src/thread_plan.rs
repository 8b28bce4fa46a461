//! Thread plan of an end: wait mode, CPUs and number of threads, with the reason.

use linerate_host::snapshot::cpu_quota::read_cpu_quota;
use linerate_record::facts::Role;
use linerate_record::plan::{
    CpuList, Direction, PerEnd, Plan, RunKind, TransportProtocol, WaitMode,
};
use linerate_sys::cpu;
use linerate_transport::flow_role::FlowRole;

use crate::error::SessionError;
use crate::flow_handle::flow_role;
use crate::wait_policy;
use crate::wait_policy::WaitContext;

/// Wait mode, CPUs and number of threads of one end.
#[derive(Clone, Debug)]
pub struct ThreadPlan {
    /// Wait mode of the receivers; of all threads when it was requested.
    pub wait: WaitMode,
    /// The wait mode was requested.
    pub wait_requested: bool,
    /// CPUs of the threads; empty: chosen by the scheduler.
    pub cpus: CpuList,
    /// Reason of the wait mode; absent when it was requested.
    pub reason: Option<String>,
    /// Threads of each direction.
    pub threads_per_direction: usize,
    /// Some threads have several flows.
    pub shares_threads: bool,
}

impl ThreadPlan {
    /// Chooses the plan of one end. `same_machine`: both ends use the same machine. `busy_threads`:
    /// threads of other tests that are busy on it.
    pub fn choose(
        plan: &Plan,
        role: Role,
        requested_wait: Option<WaitMode>,
        same_machine: bool,
        busy_threads: usize,
    ) -> Result<Self, SessionError> {
        let (cpus, their_cpus) = match role {
            Role::Client => (plan.cpu.client.clone(), &plan.cpu.server),
            Role::Server => (plan.cpu.server.clone(), &plan.cpu.client),
        };
        let usable = usable_cpus(plan, role)?;
        let cpu_quota = read_cpu_quota().map(|quota| quota.cpus());
        let processors = if cpus.0.is_empty() {
            usable.len().max(1)
        } else {
            cpus.0.len()
        };
        let processors = within_quota(processors, cpu_quota);
        let streams = plan.streams as usize;
        let requested_threads = plan.threads.as_ref().map(|threads| match role {
            Role::Client => threads.client,
            Role::Server => threads.server,
        });
        let threads = match requested_threads {
            Some(threads) => (threads as usize).clamp(1, streams.max(1)),
            None => wait_policy::choose_threads(
                plan.kind,
                requested_wait,
                streams,
                processors,
                plan.round_trip.connections,
            ),
        };
        let several = streams > threads;
        let open_loop = role == Role::Client && plan.round_trip.rate_per_second.is_some();
        if open_loop && !matches!(requested_wait, None | Some(WaitMode::Poll | WaitMode::Spin)) {
            return Err(SessionError::OptionRejected {
                option: format!(
                    "--wait {} with --rate",
                    requested_wait.unwrap_or(WaitMode::Block)
                ),
                why: "a sleeping thread would miss the send time of its next request".to_owned(),
                next_step: "use poll or spin at this end: --wait poll/block".to_owned(),
            });
        }
        if open_loop && requested_wait.is_none() {
            return Ok(Self {
                wait: WaitMode::Poll,
                wait_requested: false,
                cpus,
                reason: Some("one call waits for responses and for the next send time".to_owned()),
                threads_per_direction: streams,
                shares_threads: false,
            });
        }
        if let Some(wait) = requested_wait {
            if several && blocks_in_calls(wait) {
                return Err(SessionError::OptionRejected {
                    option: format!("--wait {wait} with --threads {threads}"),
                    why: format!("a blocking call serves only one of {streams} flows"),
                    next_step: "use --wait epoll or spin, or leave --threads out".to_owned(),
                });
            }
            return Ok(Self {
                wait,
                wait_requested: true,
                cpus,
                reason: None,
                threads_per_direction: threads,
                shares_threads: several,
            });
        }
        let threads_here = threads * plan.directions.len();
        let receives = (plan.directions.iter())
            .any(|&direction| flow_role(role, direction) == FlowRole::Receiver)
            && plan.kind == RunKind::Throughput;
        // With separate CPUs for each end, they do not compete.
        let may_compete = cpus.0.is_empty()
            || their_cpus.0.is_empty()
            || cpus.0.iter().any(|cpu| their_cpus.0.contains(cpu));
        let (wait, reason) = wait_policy::choose_wait(&WaitContext {
            kind: plan.kind,
            receives,
            is_paced: plan.rate_bps.is_some(),
            congestion_control: plan.congestion_control.as_deref(),
            is_sender_unknown: plan.peer_protocol.is_some()
                && plan.protocol == TransportProtocol::Tcp,
            busy_threads: busy_threads
                + threads_here * if same_machine && may_compete { 2 } else { 1 },
            cpus: processors,
            cpu_quota,
            streams,
            threads,
            connections: plan.round_trip.connections,
        });
        Ok(Self {
            wait,
            wait_requested: false,
            cpus,
            reason: Some(reason),
            threads_per_direction: threads,
            shares_threads: several,
        })
    }

    /// Returns the role and number of threads for each direction of the plan at this end.
    #[must_use]
    pub fn threads_by_role(&self, plan: &Plan, role: Role) -> Vec<(FlowRole, usize)> {
        let threads =
            |&direction: &Direction| (flow_role(role, direction), self.threads_per_direction);
        plan.directions.iter().map(threads).collect()
    }

    /// Returns the number of threads of one direction, as in a plan.
    #[must_use]
    pub fn thread_count(&self) -> u32 {
        u32::try_from(self.threads_per_direction).unwrap_or(u32::MAX)
    }

    /// Returns the wait mode of a thread. A sender blocks, unless the wait mode was requested.
    pub(super) fn wait_of(&self, flow_role: FlowRole, kind: RunKind) -> WaitMode {
        if !self.wait_requested && flow_role == FlowRole::Sender && kind == RunKind::Throughput {
            if self.shares_threads {
                WaitMode::Epoll
            } else {
                WaitMode::Block
            }
        } else {
            self.wait
        }
    }
}

/// Returns the wait mode of threads that sleep: blocking calls, or epoll where a thread has several
/// flows.
#[must_use]
pub fn sleeping_wait(plan: &Plan) -> WaitMode {
    let streams = plan.streams as usize;
    let threads = match &plan.threads {
        Some(threads) => threads.client.min(threads.server) as usize,
        None => {
            let cpus = count_usable_cpus();
            wait_policy::choose_threads(plan.kind, None, streams, cpus, false)
        }
    };
    wait_policy::sleeping_wait(streams, threads)
}

/// Returns the number of CPUs that a quota permits to be busy at the same time, at least one.
fn within_quota(cpus: usize, quota: Option<f64>) -> usize {
    // Rounded up: a part of a CPU is enough for a thread that sleeps at times.
    quota.map_or(cpus, |quota| cpus.min(quota.ceil() as usize).max(1))
}

/// Returns the number of CPUs that this process may use at the same time, by affinity and quota.
#[must_use]
pub fn count_usable_cpus() -> usize {
    let usable = cpu::list_usable().map_or(1, |cpus| cpus.len());
    within_quota(usable, read_cpu_quota().map(|quota| quota.cpus()))
}

/// Returns the CPUs that this process may use.
///
/// # Errors
/// The first requested CPU that is not among them.
pub fn usable_cpus(plan: &Plan, role: Role) -> Result<Vec<u32>, SessionError> {
    let usable = cpu::list_usable().map_err(|error| SessionError::system("affinity", error))?;
    let requested = match role {
        Role::Client => &plan.cpu.client,
        Role::Server => &plan.cpu.server,
    };
    let Some(cpu) = requested.0.iter().find(|cpu| !usable.contains(cpu)) else {
        return Ok(usable);
    };
    let first = usable.first().copied().unwrap_or_default();
    let known = cpu::list_online().unwrap_or_default();
    let PerEnd { client, server } = &plan.cpu;
    // One list applies to both ends, or the remote end cannot be configured.
    let same_list = server == client || server.0.is_empty() || plan.peer_protocol.is_some();
    let machine = match role {
        Role::Client => "this machine",
        Role::Server => "the server's machine",
    };
    let why = match known.is_empty() || known.contains(cpu) {
        true => format!("the process may not run on CPU {cpu} of {machine}"),
        false => format!("{machine} has no CPU {cpu}"),
    };
    let choices = CpuList(usable);
    Err(SessionError::OptionRejected {
        option: format!("--cpu {}", plan.cpu),
        why,
        next_step: match role {
            Role::Client if same_list => format!("choose among {choices}: --cpu {first}"),
            Role::Client => format!(
                "choose among {choices}; the list after the slash is the server's: --cpu {first}/{server}"
            ),
            Role::Server => {
                format!("choose among {choices} for the server: --cpu {client}/{first}")
            }
        },
    })
}

/// Returns whether a thread with this wait mode can have only one flow.
fn blocks_in_calls(wait: WaitMode) -> bool {
    matches!(
        wait,
        WaitMode::Block | WaitMode::Poll | WaitMode::Select { .. } | WaitMode::BusyPoll { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_cpu_is_reported_for_its_end() {
        let usable = cpu::list_usable().unwrap();
        let (first, all) = (usable[0], CpuList(usable));
        let problems = |client: u32, server: u32| {
            let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
            (plan.cpu.client, plan.cpu.server) = (CpuList(vec![client]), CpuList(vec![server]));
            [Role::Client, Role::Server].map(|role| {
                let problem = usable_cpus(&plan, role)
                    .err()
                    .map(|error| error.to_report());
                problem
                    .map(|problem| (problem.object.clone(), problem.situation, problem.next_step))
            })
        };
        let [client, server] = problems(first, 8000);
        assert_eq!(client, None);
        let (option, why, next) = server.unwrap();
        assert_eq!(option, format!("--cpu {first}/8000"));
        assert_eq!(why, "the server's machine has no CPU 8000");
        let expected = format!("choose among {all} for the server: --cpu {first}/{first}");
        assert_eq!(next, expected);
        let [client, _] = problems(8000, 8000);
        let (option, why, next) = client.unwrap();
        assert_eq!(option, "--cpu 8000");
        assert_eq!(why, "this machine has no CPU 8000");
        assert_eq!(next, format!("choose among {all}: --cpu {first}"));
        let next_of = |server: &[u32], protocol: Option<&str>| {
            let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
            (plan.cpu.client, plan.cpu.server) = (CpuList(vec![8000]), CpuList(server.to_vec()));
            plan.peer_protocol = protocol.map(str::to_owned);
            usable_cpus(&plan, Role::Client)
                .unwrap_err()
                .to_report()
                .next_step
        };
        for (server, protocol, suffix) in [
            (&[8001][..], None, format!(": --cpu {first}/8001")),
            // `any` is no valid argument, and other tools cannot be configured.
            (&[], None, format!(": --cpu {first}")),
            (&[8001], Some("iperf3"), format!(": --cpu {first}")),
        ] {
            let next = next_of(server, protocol);
            assert!(next.ends_with(&suffix), "{next}");
        }
    }

    #[test]
    fn sleeping_threads_block_unless_they_share() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
        assert_eq!(sleeping_wait(&plan), WaitMode::Block);
        plan.streams = 5;
        for (threads, wait) in [(5, WaitMode::Block), (2, WaitMode::Epoll)] {
            plan.threads = Some(PerEnd {
                client: 5,
                server: threads,
            });
            assert_eq!(sleeping_wait(&plan), wait, "{threads}");
        }
        (plan.threads, plan.streams) = (None, 100_000);
        assert_eq!(sleeping_wait(&plan), WaitMode::Epoll);
    }

    /// The congestion control of a sender is known where our own program is there.
    #[test]
    fn a_receiver_from_another_tools_stream_blocks() {
        let first = cpu::list_usable().unwrap()[0];
        for (protocol, peer, want) in [
            (TransportProtocol::Tcp, Some("iperf3"), WaitMode::Block),
            (TransportProtocol::Tcp, None, WaitMode::Spin),
            (TransportProtocol::Udp, Some("iperf3"), WaitMode::Spin),
        ] {
            let mut plan = Plan::new(RunKind::Throughput, protocol, "host");
            plan.directions = vec![Direction::Receive];
            plan.peer_protocol = peer.map(str::to_owned);
            plan.congestion_control = Some("cubic".to_owned());
            plan.cpu.client = CpuList(vec![first]);
            let chosen = ThreadPlan::choose(&plan, Role::Client, None, false, 0).unwrap();
            assert_eq!(chosen.wait, want, "{protocol:?} {peer:?}");
            let reason = chosen.reason.unwrap_or_default();
            let names_the_sender = reason.contains("sender's unknown");
            assert_eq!(names_the_sender, want == WaitMode::Block, "{reason}");
        }
    }

    #[test]
    fn requested_cpus_limit_the_threads() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
        plan.streams = 5;
        let first = cpu::list_usable().unwrap()[0];
        plan.cpu = PerEnd::same(CpuList(vec![first]));
        let spin = Some(WaitMode::Spin);
        let plan_of_threads = ThreadPlan::choose(&plan, Role::Server, spin, false, 0).unwrap();
        assert_eq!(
            plan_of_threads.threads_by_role(&plan, Role::Server),
            [(FlowRole::Receiver, 1)]
        );
        let block = Some(WaitMode::Block);
        let plan_of_threads = ThreadPlan::choose(&plan, Role::Server, block, false, 0).unwrap();
        assert_eq!(plan_of_threads.threads_per_direction, 5);
        plan.threads = Some(PerEnd {
            client: 5,
            server: 2,
        });
        assert!(ThreadPlan::choose(&plan, Role::Server, block, false, 0).is_err());
        let plan_of_threads = ThreadPlan::choose(&plan, Role::Server, None, false, 0).unwrap();
        assert_eq!(
            (plan_of_threads.wait, plan_of_threads.threads_per_direction),
            (WaitMode::Epoll, 2)
        );
        plan.threads = None;
        // One receiver, one CPU: free for it alone, not while another test runs.
        plan.streams = 1;
        for (busy_threads, want) in [(0, WaitMode::Spin), (1, WaitMode::Block)] {
            let plan_of_threads =
                ThreadPlan::choose(&plan, Role::Server, None, false, busy_threads).unwrap();
            assert_eq!(plan_of_threads.wait, want, "{busy_threads}");
        }
    }
}
