//! Setup between an accepted plan and the start: assigns flows to threads, and starts these.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use linerate_dialect::control::Token;
use linerate_host::settings::idle_hold::{self, IdleHold, idle_hold};
use linerate_host::sys::locked_memory::{self, LockedMemory};
use linerate_metric::cost::THREADS_LISTED;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, ReceiveCopy, SendCopy};
use rustix::io::Errno;

use super::checks;
use super::thread_plan::Manner;
use crate::coordinator::FlowHandle;
use crate::error::MeasureError;
use crate::flow::{Part, Shared};
use crate::interop::framing::Framing;
use crate::netstack::StackThread;
use crate::payload_pattern::Pattern;
use crate::transport::{Correspondent, FlowOptions};
use crate::worker::{self, FlowSpec, GateKeeper, LaneError, LaneHandle, LaneSpec, Opening};
use crate::workload::PATIENCE_NS;

/// Returns the role of an end in a direction; directions are named from the client's side.
#[must_use]
pub fn part(role: Role, direction: Direction) -> Part {
    match (role, direction) {
        (Role::Client, Direction::Send) | (Role::Server, Direction::Receive) => Part::Source,
        (Role::Client, Direction::Receive) | (Role::Server, Direction::Send) => Part::Sink,
    }
}

/// Default receive buffer of a UDP receiver: the kernel's default of 208 KiB holds three large
/// datagrams, and drops there look like loss on the path. The kernel grants at most
/// net.core.rmem_max.
const UDP_RECEIVE_BUFFER_BYTES: u64 = 4 << 20;

/// Returns the socket options of a flow at this end.
///
/// An accepted TCP socket gets its buffers after the handshake, which has fixed the window scale
/// from the kernel's defaults. A connecting socket gets them before.
#[must_use]
pub fn flow_options(plan: &Plan, part: Part) -> FlowOptions {
    let patience = match (plan.kind, part) {
        // A requesting end sleeps until its response is overdue.
        (Kind::Latency, Part::Source) => plan
            .answer_timeout_ns
            .map_or(PATIENCE_NS, |timeout| timeout.min(PATIENCE_NS)),
        _ => PATIENCE_NS,
    };
    let mut socket = plan.socket.clone();
    socket.send_buffer_bytes = socket.send_buffer_bytes.or(plan.window_bytes);
    socket.receive_buffer_bytes = socket.receive_buffer_bytes.or(plan.window_bytes);
    if plan.kind == Kind::Throughput && plan.protocol == Protocol::Udp && part == Part::Sink {
        socket
            .receive_buffer_bytes
            .get_or_insert(UDP_RECEIVE_BUFFER_BYTES);
    }
    socket.no_delay |= plan.kind == Kind::Latency;
    FlowOptions {
        protocol: plan.protocol,
        local: None,
        interface: None,
        socket,
        congestion_control: plan
            .congestion_control
            .clone()
            .filter(|_| plan.congestion_control_asked)
            .filter(|name| part == Part::Source || name != checks::OWN_STACK_ONLY),
        segment_bytes: (part == Part::Source && plan.udp_offload.gso == Some(true))
            .then(|| u16::try_from(plan.payload_bytes).ok())
            .flatten(),
        coalesce: part == Part::Sink && plan.udp_offload.gro == Some(true),
        batch: plan.batch,
        force_buffers: false,
        busy_poll: None,
        zero_copy: part == Part::Source && plan.copies.send == SendCopy::ZeroCopy,
        discard: part == Part::Sink && plan.copies.receive == ReceiveCopy::Discarded,
        paced: false,
        max_rate: None,
        departure_clock: None,
        patience: Duration::from_nanos(patience),
        correspondent: Correspondent::Connected,
        group_hops: plan.round_trip.group.as_ref().map_or(1, |group| group.ttl),
    }
}

/// Flow that both ends have agreed on, at this end.
pub struct AgreedFlow {
    pub id: u32,
    pub direction: Direction,
    /// Source of its socket: connected, or taken from the acceptor.
    pub opening: Opening,
    pub options: FlowOptions,
    /// Token of its opening; seeds the payload pattern.
    pub token: Token,
    /// Framing in front of its payload.
    pub framing: Framing,
}

/// Threads that are ready to start.
pub struct Ready {
    /// Start barrier of the threads; cancels them on drop.
    pub keeper: GateKeeper,
    pub lanes: Vec<LaneHandle>,
    pub flows: Vec<FlowHandle>,
    /// Readable when a thread has ended.
    pub done: UnixStream,
}

/// Interval of [`prepare`]'s calls to `idle`.
const IDLE_EVERY: Duration = Duration::from_millis(50);

/// Wait for threads that are cancelled before the start. Those in a blocking kernel call end later.
const HOME_PATIENCE: Duration = Duration::from_millis(300);

/// Assigns flows to threads, starts these, and returns once all sockets are open. Calls `idle`
/// meanwhile, whose error ends the wait.
///
/// # Errors
/// The error of the first flow that cannot be opened; the other threads are cancelled.
pub fn prepare(
    plan: &Arc<Plan>,
    role: Role,
    manner: &Manner,
    stack: Option<&StackThread>,
    flows: Vec<AgreedFlow>,
    idle: &mut dyn FnMut() -> Result<(), MeasureError>,
) -> Result<Ready, MeasureError> {
    let system = |doing: &str| {
        let doing = doing.to_owned();
        move |error: io::Error| MeasureError::system(doing, error)
    };
    let (done, bell) = UnixStream::pair().map_err(system("socket pair"))?;
    done.set_nonblocking(true).map_err(system("socket pair"))?;
    bell.set_nonblocking(true).map_err(system("socket pair"))?;
    let bell = Arc::new(bell);
    let keeper = GateKeeper::new();
    let (report, reports) = mpsc::channel();
    let mut handles: Vec<FlowHandle> = Vec::new();
    let mut lanes = Vec::new();
    let mut result = Ok(());
    let dealt = deal(manner, flows);
    // The user-space stack runs all of them on one thread.
    let mut lent = Vec::new();
    let threads = dealt.len();
    for (number, (direction, flows)) in dealt.into_iter().enumerate() {
        let part = part(role, direction);
        let cpus = &manner.cpus.0;
        let mut specs = Vec::new();
        for flow in flows {
            let shared = Arc::new(Shared::default());
            handles.push(FlowHandle {
                id: flow.id,
                direction,
                part,
                shared: Arc::clone(&shared),
                watch: None,
            });
            specs.push(FlowSpec {
                id: flow.id,
                opening: flow.opening,
                options: flow.options,
                shared,
                pattern: plan.verify.then(|| Pattern::of(flow.token)),
                framing: flow.framing,
            });
        }
        let spec = LaneSpec {
            plan: Arc::clone(plan),
            direction,
            part,
            wait: manner.of(part, plan.kind),
            cpu: (!cpus.is_empty()).then(|| cpus[number % cpus.len()]),
            sched: match role {
                Role::Client => plan.sched.near,
                Role::Server => plan.sched.far,
            },
            counts: plan.kind == Kind::Throughput && threads <= THREADS_LISTED,
            flows: specs,
        };
        if stack.is_some() {
            lent.push(spec);
            continue;
        }
        match worker::start(spec, keeper.gate(), report.clone(), Arc::clone(&bell)) {
            Ok(lane) => lanes.push(lane),
            Err(error) => {
                result = Err(MeasureError::system("new thread", error));
                break;
            }
        }
    }
    if let Some(stack) = stack {
        match worker::start_on(stack, lent, keeper.gate(), report.clone(), &bell) {
            Ok(lent) => lanes = lent,
            Err(error) => result = Err(MeasureError::system("the stack's thread", error)),
        }
    }
    handles.sort_unstable_by_key(|flow| flow.id);
    // Each thread has its own sender: the channel closes when all have reported or died.
    drop(report);
    let mut reported = 0;
    while result.is_ok() {
        match reports.recv_timeout(IDLE_EVERY) {
            Ok(Ok(watches)) => {
                reported += 1;
                for (id, watch) in watches {
                    if let Ok(place) = handles.binary_search_by_key(&id, |flow| flow.id) {
                        handles[place].watch = Some(watch);
                    }
                }
            }
            Ok(Err(error)) => result = Err(lane_error(error, plan)),
            Err(RecvTimeoutError::Timeout) => result = idle(),
            Err(RecvTimeoutError::Disconnected) if reported == lanes.len() => break,
            Err(RecvTimeoutError::Disconnected) => {
                let died = io::Error::other("it ended before its flows were open");
                result = Err(MeasureError::system("a worker thread", died));
            }
        }
    }
    if let Err(error) = result {
        keeper.gate().cancel();
        let until = std::time::Instant::now() + HOME_PATIENCE;
        while std::time::Instant::now() < until && !lanes.iter().all(LaneHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(1));
        }
        return Err(error);
    }
    Ok(Ready {
        keeper,
        lanes,
        flows: handles,
        done,
    })
}

/// Assigns the flows of each direction to its threads, round robin.
fn deal(manner: &Manner, flows: Vec<AgreedFlow>) -> Vec<(Direction, Vec<AgreedFlow>)> {
    let mut lanes: Vec<(Direction, Vec<AgreedFlow>)> = Vec::new();
    let mut counts = [0usize; 2];
    // Indices of the threads of each direction.
    let mut places: [Vec<usize>; 2] = Default::default();
    for flow in flows {
        let side = usize::from(flow.direction == Direction::Receive);
        let place = counts[side] % manner.threads.max(1);
        counts[side] += 1;
        match places[side].get(place) {
            Some(&lane) => lanes[lane].1.push(flow),
            None => {
                places[side].push(lanes.len());
                lanes.push((flow.direction, vec![flow]));
            }
        }
    }
    lanes
}

fn lane_error(error: LaneError, plan: &Plan) -> MeasureError {
    match error {
        LaneError::UdpBlocked(address) => match &plan.round_trip.group {
            Some(group) => MeasureError::GroupSilent {
                loopback: address.ip().is_loopback(),
                group: group.clone(),
            },
            None => MeasureError::UdpBlocked { address },
        },
        LaneError::Cpu(cpu, error) => MeasureError::OptionRefused {
            option: format!("--cpu {cpu}"),
            why: format!("the thread cannot run there ({error})"),
            next_step: "choose another CPU".to_owned(),
        },
        LaneError::Sched(sched, error) => MeasureError::OptionRefused {
            option: format!("--sched {sched}"),
            why: format!("not permitted for this user ({error})"),
            next_step:
                "run as root, or give the user limits in /etc/security/limits.conf (rtprio, nice)"
                    .to_owned(),
        },
        LaneError::Descriptor(fd) => MeasureError::OptionRefused {
            option: "--wait select".to_owned(),
            why: format!("select supports descriptors up to 1023, and a flow would have {fd}"),
            next_step: "use fewer streams (-P), or --wait poll".to_owned(),
        },
        LaneError::Cancelled => MeasureError::Interrupted,
        LaneError::Open(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::ACCESS) if plan.source_port.is_some_and(|port| port < 1024) => {
                MeasureError::OptionRefused {
                    option: format!("--source-port {}", plan.source_port.unwrap_or_default()),
                    why: "ports below 1024 need a privilege".to_owned(),
                    next_step: "run as root, or choose a port above 1023".to_owned(),
                }
            }
            Some(Errno::NODEV | Errno::NETUNREACH) if plan.round_trip.group.is_some() => {
                let group = plan.round_trip.group.as_ref();
                MeasureError::OptionRefused {
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
                io::ErrorKind::AddrInUse if plan.source_port.is_some() => MeasureError::PortTaken {
                    port: plan.source_port.unwrap_or_default(),
                    source: error,
                },
                io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
                    if plan.source_port.is_some() || plan.bind.is_some() =>
                {
                    MeasureError::LocalAddress {
                        address: format!(
                            "{} port {}",
                            plan.bind.as_deref().unwrap_or("any address"),
                            plan.source_port
                                .map_or("any".to_owned(), |port| port.to_string())
                        ),
                        source: error,
                    }
                }
                _ => MeasureError::system(format!("opening a {} flow", plan.protocol), error),
            },
        },
    }
}

/// Keeps this machine's CPUs out of idle states until dropped, if the plan requests it.
///
/// # Errors
/// [`MeasureError::OptionRefused`] where the kernel or its permissions do not allow it.
pub fn hold_idle(plan: &Plan) -> Result<Option<IdleHold>, MeasureError> {
    if !plan.hold_latency {
        return Ok(None);
    }
    idle_hold()
        .map(Some)
        .map_err(|error| MeasureError::OptionRefused {
            option: "--hold-latency".to_owned(),
            why: error.to_string(),
            next_step: idle_hold::next_step(&error),
        })
}

/// Locks this process's memory until dropped, if the plan requests it.
///
/// # Errors
/// [`MeasureError::OptionRefused`] where this user may not.
pub fn lock_memory(plan: &Plan) -> Result<Option<LockedMemory>, MeasureError> {
    if !plan.round_trip.lock_memory {
        return Ok(None);
    }
    locked_memory::lock()
        .map(Some)
        .map_err(|error| MeasureError::OptionRefused {
            option: "--lock-memory".to_owned(),
            why: format!("this user may not lock so much memory ({error})"),
            next_step: "run as root, or raise the limit: `ulimit -l unlimited`".to_owned(),
        })
}

/// Returns the facts of this host for the record, with the interface towards the other end.
#[must_use]
pub fn host_facts(role: Role, peer: std::net::IpAddr) -> Host {
    let mut host = linerate_host::snapshot::host();
    host.role = Some(role);
    host.interface = linerate_host::snapshot::interface_towards(peer)
        .and_then(|name| linerate_host::snapshot::interface(&name));
    host
}
