//! Setup between an accepted plan and the start: assigns flows to threads, and starts these.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use linerate_host::settings::idle_hold;
use linerate_host::settings::idle_hold::IdleHold;
use linerate_protocol::control::FlowToken;
use linerate_record::cost::MAX_LISTED_THREADS;
use linerate_record::facts::{HostFacts, Role};
use linerate_record::plan::{Direction, Plan, RunKind};
use linerate_sys::locked_memory;
use linerate_sys::locked_memory::LockedMemory;
use linerate_transport::FlowOptions;
use linerate_transport::payload_pattern::PayloadPattern;
use linerate_transport::stack_thread::StackThread;
use linerate_workload::flow::FlowShared;
use linerate_workload::framing::Framing;
use linerate_workload::worker;
use linerate_workload::worker::{
    CancelOnDrop, FlowOpening, FlowSpec, WorkerError, WorkerHandle, WorkerSpec,
};
use rustix::io::Errno;

use crate::error::SessionError;
use crate::flow_handle::{FlowHandle, flow_role};
use crate::thread_plan::ThreadPlan;

/// Flow that both ends have agreed on, at this end.
pub struct AgreedFlow {
    pub id: u32,
    pub direction: Direction,
    /// Source of its socket: connected, or taken from the acceptor.
    pub opening: FlowOpening,
    pub options: FlowOptions,
    /// Token of its opening; seeds the payload pattern.
    pub token: FlowToken,
    /// Framing in front of its payload.
    pub framing: Framing,
}

/// Threads that are ready to start.
pub struct ReadyWorkers {
    /// Start barrier of the threads; cancels them on drop.
    pub cancel_guard: CancelOnDrop,
    pub workers: Vec<WorkerHandle>,
    /// Flows of all threads, sorted by number.
    pub flows: Vec<FlowHandle>,
    /// Readable when a thread has ended.
    pub done: UnixStream,
}

/// Interval of [`start_workers`]'s calls to `idle`.
const IDLE_INTERVAL: Duration = Duration::from_millis(50);

/// Wait for threads that are cancelled before the start. Those in a blocking kernel call end later.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(300);

/// Assigns flows to threads, starts these, and returns once all sockets are open. Calls `idle`
/// meanwhile, whose error ends the wait.
///
/// # Errors
/// The error of the first flow that cannot be opened; the other threads are cancelled.
pub fn start_workers(
    plan: &Arc<Plan>,
    role: Role,
    thread_plan: &ThreadPlan,
    stack: Option<&StackThread>,
    flows: Vec<AgreedFlow>,
    idle: &mut dyn FnMut() -> Result<(), SessionError>,
) -> Result<ReadyWorkers, SessionError> {
    let system = |action: &str| {
        let action = action.to_owned();
        move |error: io::Error| SessionError::system(action, error)
    };
    let (done, wake_up) = UnixStream::pair().map_err(system("socket pair"))?;
    done.set_nonblocking(true).map_err(system("socket pair"))?;
    wake_up
        .set_nonblocking(true)
        .map_err(system("socket pair"))?;
    let wake_up = Arc::new(wake_up);
    let cancel_guard = CancelOnDrop::default();
    let (reporter, reports) = mpsc::channel();
    let mut handles: Vec<FlowHandle> = Vec::new();
    let mut workers = Vec::new();
    let mut result = Ok(());
    let assigned = assign_flows(thread_plan, flows);
    // The user-space stack runs all of them on one thread.
    let mut netstack_specs = Vec::new();
    let threads = assigned.len();
    for (number, (direction, flows)) in assigned.into_iter().enumerate() {
        let flow_role = flow_role(role, direction);
        let cpus = &thread_plan.cpus.0;
        let mut specs = Vec::new();
        for flow in flows {
            let shared = Arc::new(FlowShared::default());
            handles.push(FlowHandle {
                id: flow.id,
                direction,
                role: flow_role,
                shared: Arc::clone(&shared),
                socket_watch: None,
            });
            specs.push(FlowSpec {
                id: flow.id,
                opening: flow.opening,
                options: flow.options,
                shared,
                payload_pattern: plan.verify.then(|| PayloadPattern::from_token(flow.token)),
                framing: flow.framing,
            });
        }
        let spec = WorkerSpec {
            plan: Arc::clone(plan),
            direction,
            role: flow_role,
            wait: thread_plan.wait_of(flow_role, plan.kind),
            cpu: (!cpus.is_empty()).then(|| cpus[number % cpus.len()]),
            sched: match role {
                Role::Client => plan.sched.client,
                Role::Server => plan.sched.server,
            },
            counts_cycles: plan.kind == RunKind::Throughput && threads <= MAX_LISTED_THREADS,
            flows: specs,
        };
        if stack.is_some() {
            netstack_specs.push(spec);
            continue;
        }
        match worker::start_worker(
            spec,
            cancel_guard.barrier(),
            reporter.clone(),
            Arc::clone(&wake_up),
        ) {
            Ok(worker) => workers.push(worker),
            Err(error) => {
                result = Err(SessionError::system("new thread", error));
                break;
            }
        }
    }
    if let Some(stack) = stack {
        match worker::start_on_netstack(
            stack,
            netstack_specs,
            cancel_guard.barrier(),
            reporter.clone(),
            &wake_up,
        ) {
            Ok(netstack_specs) => workers = netstack_specs,
            Err(error) => result = Err(SessionError::system("the stack's thread", error)),
        }
    }
    handles.sort_unstable_by_key(|flow| flow.id);
    // Each thread has its own sender: the channel closes when all have reported or died.
    drop(reporter);
    let mut reported = 0;
    while result.is_ok() {
        match reports.recv_timeout(IDLE_INTERVAL) {
            Ok(Ok(watches)) => {
                reported += 1;
                for (id, watch) in watches {
                    if let Ok(index) = handles.binary_search_by_key(&id, |flow| flow.id) {
                        handles[index].socket_watch = Some(watch);
                    }
                }
            }
            Ok(Err(error)) => result = Err(worker_error(error, plan)),
            Err(RecvTimeoutError::Timeout) => result = idle(),
            Err(RecvTimeoutError::Disconnected) if reported == workers.len() => break,
            Err(RecvTimeoutError::Disconnected) => {
                let error = io::Error::other("it ended before its flows were open");
                result = Err(SessionError::system("a worker thread", error));
            }
        }
    }
    if let Err(error) = result {
        cancel_guard.barrier().cancel();
        let deadline = std::time::Instant::now() + CANCEL_TIMEOUT;
        while std::time::Instant::now() < deadline && !workers.iter().all(WorkerHandle::is_finished)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        return Err(error);
    }
    Ok(ReadyWorkers {
        cancel_guard,
        workers,
        flows: handles,
        done,
    })
}

/// Assigns the flows of each direction to its threads, round robin.
fn assign_flows(
    thread_plan: &ThreadPlan,
    flows: Vec<AgreedFlow>,
) -> Vec<(Direction, Vec<AgreedFlow>)> {
    let mut threads: Vec<(Direction, Vec<AgreedFlow>)> = Vec::new();
    let mut counts = [0usize; 2];
    // Indices of the threads of each direction.
    let mut thread_indices: [Vec<usize>; 2] = Default::default();
    for flow in flows {
        let side = usize::from(flow.direction == Direction::Receive);
        let slot = counts[side] % thread_plan.threads_per_direction.max(1);
        counts[side] += 1;
        match thread_indices[side].get(slot) {
            Some(&index) => threads[index].1.push(flow),
            None => {
                thread_indices[side].push(threads.len());
                threads.push((flow.direction, vec![flow]));
            }
        }
    }
    threads
}

fn worker_error(error: WorkerError, plan: &Plan) -> SessionError {
    match error {
        WorkerError::UdpBlocked(address) => match &plan.round_trip.group {
            Some(group) => SessionError::NoGroupResponse {
                loopback: address.ip().is_loopback(),
                group: group.clone(),
            },
            None => SessionError::UdpBlocked { address },
        },
        WorkerError::Cpu(cpu, error) => SessionError::OptionRejected {
            option: format!("--cpu {cpu}"),
            why: format!("the thread cannot run there ({error})"),
            next_step: "choose another CPU".to_owned(),
        },
        WorkerError::Sched(sched, error) => SessionError::OptionRejected {
            option: format!("--sched {sched}"),
            why: format!("not permitted for this user ({error})"),
            next_step:
                "run as root, or give the user limits in /etc/security/limits.conf (rtprio, nice)"
                    .to_owned(),
        },
        WorkerError::Descriptor(fd) => SessionError::OptionRejected {
            option: "--wait select".to_owned(),
            why: format!("select supports descriptors up to 1023, and a flow would have {fd}"),
            next_step: "use fewer flows (-P), or --wait poll".to_owned(),
        },
        WorkerError::Cancelled => SessionError::Interrupted,
        WorkerError::FlowOpen(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::ACCESS) if plan.source_port.is_some_and(|port| port < 1024) => {
                SessionError::OptionRejected {
                    option: format!("--source-port {}", plan.source_port.unwrap_or_default()),
                    why: "ports below 1024 need a privilege".to_owned(),
                    next_step: "run as root, or choose a port above 1023".to_owned(),
                }
            }
            Some(Errno::NODEV | Errno::NETUNREACH) if plan.round_trip.group.is_some() => {
                let group = plan.round_trip.group.as_ref();
                SessionError::OptionRejected {
                    option: format!(
                        "--multicast {}",
                        group.map_or_else(String::new, ToString::to_string)
                    ),
                    why: format!("requests to the group cannot be sent ({error})"),
                    next_step: "add an interface after a %, as listed by `ip link`".to_owned(),
                }
            }
            // Errors of the kernel have a number, those of the user-space stack do not.
            _ => match error.kind() {
                io::ErrorKind::AddrInUse if plan.source_port.is_some() => SessionError::PortInUse {
                    port: plan.source_port.unwrap_or_default(),
                    source: error,
                },
                io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
                    if plan.source_port.is_some() || plan.bind.is_some() =>
                {
                    SessionError::LocalAddress {
                        address: format!(
                            "{} port {}",
                            plan.bind.as_deref().unwrap_or("any address"),
                            plan.source_port
                                .map_or("any".to_owned(), |port| port.to_string())
                        ),
                        source: error,
                    }
                }
                _ => SessionError::system(format!("opening a {} flow", plan.protocol), error),
            },
        },
    }
}

/// Keeps this machine's CPUs out of idle states until dropped, if the plan requests it.
///
/// # Errors
/// [`SessionError::OptionRejected`] where the kernel or its permissions do not allow it.
pub fn hold_idle_states(plan: &Plan) -> Result<Option<IdleHold>, SessionError> {
    if !plan.hold_latency {
        return Ok(None);
    }
    idle_hold::hold_idle_states()
        .map(Some)
        .map_err(|error| SessionError::OptionRejected {
            option: "--hold-latency".to_owned(),
            why: error.to_string(),
            next_step: idle_hold::remedy(&error),
        })
}

/// Locks this process's memory until dropped, if the plan requests it.
///
/// # Errors
/// [`SessionError::OptionRejected`] where this user may not.
pub fn lock_memory(plan: &Plan) -> Result<Option<LockedMemory>, SessionError> {
    if !plan.round_trip.lock_memory {
        return Ok(None);
    }
    locked_memory::lock_all()
        .map(Some)
        .map_err(|error| SessionError::OptionRejected {
            option: "--lock-memory".to_owned(),
            why: format!("this user may not lock so much memory ({error})"),
            next_step: "run as root, or raise the limit: `ulimit -l unlimited`".to_owned(),
        })
}

/// Returns the facts of this host for the record, with the interface towards the other end.
#[must_use]
pub fn host_facts(role: Role, peer: std::net::IpAddr) -> HostFacts {
    let mut host = linerate_host::snapshot::read_host();
    host.role = Some(role);
    host.interface = linerate_host::snapshot::egress_interface(peer)
        .and_then(|name| linerate_host::snapshot::read_interface(&name));
    host
}
