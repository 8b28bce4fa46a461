//! What both ends do between an agreed plan and the start: choose how to wait, deal flows to
//! threads, start them.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use linerate_host::knob::idle::{IdleHold, idle_hold};
use linerate_host::sys::cpu;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{Cpus, Direction, Kind, Plan, Protocol, UdpOffload, Wait};
use linerate_metric::record::Doubt;

use crate::choose::{self, Situation};
use crate::end::FlowHandle;
use crate::error::MeasureError;
use crate::flow::{Part, Shared};
use crate::lane::{self, FlowSpec, Gate, LaneError, LaneHandle, LaneSpec, Opening};
use crate::transport::FlowOptions;
use crate::workload::PATIENCE_NS;

/// What an end does in a direction, seen from the near end's point of view.
#[must_use]
pub fn part(role: Role, direction: Direction) -> Part {
    match (role, direction) {
        (Role::Client, Direction::Send) | (Role::Server, Direction::Receive) => Part::Source,
        (Role::Client, Direction::Receive) | (Role::Server, Direction::Send) => Part::Sink,
    }
}

/// How an end waits, on which processors, and why.
#[derive(Clone, Debug)]
pub struct Manner {
    /// How its sinks, or all its threads when that was asked for, wait.
    pub wait: Wait,
    /// Whether that was asked for.
    pub asked: bool,
    /// Where its threads run; empty: wherever the scheduler puts them.
    pub cpus: Cpus,
    /// Why it waits like that, when nobody asked.
    pub because: Option<String>,
}

impl Manner {
    /// Settles it for one end. `shared` says that both ends use the same processors.
    pub fn settle(
        plan: &Plan,
        role: Role,
        asked: Option<Wait>,
        cpus: Cpus,
        shared: bool,
    ) -> Result<Self, MeasureError> {
        let usable = cpu::usable().map_err(|error| MeasureError::system("affinity", error))?;
        if let Some(cpu) = cpus.0.iter().find(|cpu| !usable.contains(cpu)) {
            return Err(MeasureError::OptionRefused {
                option: format!("--cpu {cpu}"),
                why: "this process may not run on that processor".to_owned(),
                next_step: format!("choose among {}", Cpus(usable)),
            });
        }
        if let Some(wait) = asked {
            return Ok(Self {
                wait,
                asked: true,
                cpus,
                because: None,
            });
        }
        let threads_here = plan.streams as usize * plan.directions.len();
        let receives = (plan.directions.iter())
            .any(|&direction| part(role, direction) == Part::Sink)
            && plan.kind == Kind::Throughput;
        let (wait, because) = choose::wait(&Situation {
            kind: plan.kind,
            receives,
            congestion_control: plan.congestion_control.as_deref(),
            busy_threads: if shared {
                2 * threads_here
            } else {
                threads_here
            },
            processors: usable.len(),
        });
        Ok(Self {
            wait,
            asked: false,
            cpus,
            because: Some(because),
        })
    }

    /// How a thread with this part waits: a sender that nobody told to spin blocks.
    fn of(&self, part: Part, kind: Kind) -> Wait {
        if !self.asked && part == Part::Source && kind == Kind::Throughput {
            Wait::Block
        } else {
            self.wait
        }
    }
}

/// How sockets of a flow are set up at this end.
#[must_use]
pub fn flow_options(plan: &Plan, part: Part) -> FlowOptions {
    let patience = match (plan.kind, part) {
        // An asking end sleeps until its answer is too late.
        (Kind::Latency, Part::Source) => plan
            .answer_timeout_ns
            .map_or(PATIENCE_NS, |timeout| timeout.min(PATIENCE_NS)),
        _ => PATIENCE_NS,
    };
    let mut socket = plan.socket.clone();
    socket.send_buffer_bytes = socket.send_buffer_bytes.or(plan.window_bytes);
    socket.receive_buffer_bytes = socket.receive_buffer_bytes.or(plan.window_bytes);
    socket.no_delay |= plan.kind == Kind::Latency;
    FlowOptions {
        protocol: plan.protocol,
        local: None,
        interface: None,
        socket,
        congestion_control: plan
            .congestion_control
            .clone()
            .filter(|_| plan.congestion_control_asked),
        segment_bytes: (part == Part::Source && plan.udp_offload.gso == Some(true))
            .then(|| u16::try_from(plan.payload_bytes).ok())
            .flatten(),
        coalesce: part == Part::Sink && plan.udp_offload.gro == Some(true),
        patience: Duration::from_nanos(patience),
    }
}

/// A flow that both ends have agreed on, at this end.
pub struct AgreedFlow {
    /// Its number.
    pub id: u32,
    /// Which way it goes.
    pub direction: Direction,
    /// How it comes to its socket.
    pub opening: Opening,
    /// How its socket is set up.
    pub options: FlowOptions,
}

/// Threads that stand ready.
pub struct Ready {
    /// Holds and tells them.
    pub gate: Arc<Gate>,
    /// The threads.
    pub lanes: Vec<LaneHandle>,
    /// Their flows.
    pub flows: Vec<FlowHandle>,
    /// Readable when one has ended.
    pub done: UnixStream,
}

/// Deals flows to threads, starts these, and returns once all their sockets stand.
///
/// # Errors
/// What keeps a flow from opening; the threads that stand already are sent home.
pub fn prepare(
    plan: &Arc<Plan>,
    role: Role,
    manner: &Manner,
    flows: Vec<AgreedFlow>,
) -> Result<Ready, MeasureError> {
    let system = |doing: &str| {
        let doing = doing.to_owned();
        move |error: io::Error| MeasureError::system(doing, error)
    };
    let (done, bell) = UnixStream::pair().map_err(system("socket pair"))?;
    done.set_nonblocking(true).map_err(system("socket pair"))?;
    bell.set_nonblocking(true).map_err(system("socket pair"))?;
    let gate = Arc::new(Gate::default());
    let (report, reports) = mpsc::channel();
    let mut handles = Vec::new();
    let mut lanes = Vec::new();
    let mut expected = 0;
    let start = |spec: LaneSpec, lanes: &mut Vec<LaneHandle>| -> Result<(), MeasureError> {
        let bell = bell.try_clone().map_err(system("socket pair"))?;
        let lane = lane::start(spec, &gate, report.clone(), bell).map_err(system("new thread"))?;
        lanes.push(lane);
        Ok(())
    };
    let mut result = Ok(());
    for (number, (direction, flows)) in deal(plan, role, manner, flows)?.into_iter().enumerate() {
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
            flows: specs,
        };
        result = start(spec, &mut lanes);
        if result.is_err() {
            break;
        }
        expected += 1;
    }
    for _ in 0..expected {
        match reports.recv() {
            Ok(Ok(watches)) => {
                for (id, watch) in watches {
                    if let Some(flow) = handles.iter_mut().find(|flow| flow.id == id) {
                        flow.watch = Some(watch);
                    }
                }
            }
            Ok(Err(error)) => result = result.and(Err(lane_error(error, plan))),
            Err(_) => break,
        }
    }
    if let Err(error) = result {
        gate.cancel();
        for lane in &mut lanes {
            lane.join();
        }
        return Err(error);
    }
    Ok(Ready {
        gate,
        lanes,
        flows: handles,
        done,
    })
}

/// One thread a flow where calls sleep; where they do not, as many threads as there are processors.
fn deal(
    plan: &Plan,
    role: Role,
    manner: &Manner,
    flows: Vec<AgreedFlow>,
) -> Result<Vec<(Direction, Vec<AgreedFlow>)>, MeasureError> {
    let usable = cpu::usable().map_err(|error| MeasureError::system("affinity", error))?;
    let mut lanes: Vec<(Direction, Vec<AgreedFlow>)> = Vec::new();
    let mut counts = [0usize; 2];
    for flow in flows {
        let side = usize::from(flow.direction == Direction::Receive);
        let wait = manner.of(part(role, flow.direction), plan.kind);
        let limit = match wait {
            Wait::Block | Wait::Poll | Wait::Select { .. } => usize::MAX,
            Wait::Spin | Wait::Epoll => usable.len().max(1),
        };
        let place = counts[side] % limit;
        counts[side] += 1;
        let direction = flow.direction;
        let mut own = lanes.iter_mut().filter(|(d, _)| *d == direction);
        match own.nth(place) {
            Some((_, flows)) => flows.push(flow),
            None => lanes.push((direction, vec![flow])),
        }
    }
    Ok(lanes)
}

fn lane_error(error: LaneError, plan: &Plan) -> MeasureError {
    match error {
        LaneError::UdpBlocked(address) => MeasureError::UdpBlocked { address },
        LaneError::Cpu(cpu, error) => MeasureError::OptionRefused {
            option: format!("--cpu {cpu}"),
            why: format!("the thread cannot run there ({error})"),
            next_step: "choose another processor".to_owned(),
        },
        LaneError::Sched(sched, error) => MeasureError::OptionRefused {
            option: format!("--sched {sched}"),
            why: format!("this user may not have that ({error})"),
            next_step:
                "run as root, or give the user limits in /etc/security/limits.conf (rtprio, nice)"
                    .to_owned(),
        },
        LaneError::Open(error) => match error.raw_os_error() {
            // "Address already in use", "cannot assign".
            Some(98 | 99) if plan.source_port.is_some() || plan.bind.is_some() => {
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
    }
}

/// Refuses a congestion control that this process cannot use, before any traffic.
///
/// # Errors
/// [`MeasureError::OptionRefused`] with the kernel's list.
pub fn check_congestion_control(plan: &Plan) -> Result<(), MeasureError> {
    let Some(name) = plan
        .congestion_control
        .as_deref()
        .filter(|_| plan.congestion_control_asked && plan.protocol == Protocol::Tcp)
    else {
        return Ok(());
    };
    let socket = probe_socket()?;
    socket
        .set_tcp_congestion(name.as_bytes())
        .map_err(|error| MeasureError::OptionRefused {
            option: format!("-C {name}"),
            why: match error.kind() {
                io::ErrorKind::NotFound => "the kernel has no such congestion control".to_owned(),
                io::ErrorKind::PermissionDenied => "not allowed for ordinary users".to_owned(),
                _ => error.to_string(),
            },
            next_step: "see `sysctl net.ipv4.tcp_available_congestion_control \
                        net.ipv4.tcp_allowed_congestion_control`; `modprobe tcp_NAME` and root add to them"
                .to_owned(),
        })
}

/// The congestion control that a new socket of this process gets.
#[must_use]
pub fn default_congestion_control() -> Option<String> {
    let socket = probe_socket().ok()?;
    crate::transport::congestion_control(&socket2::SockRef::from(&socket))
}

fn probe_socket() -> Result<socket2::Socket, MeasureError> {
    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
        .or_else(|_| socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None))
        .map_err(|error| MeasureError::system("new socket", error))
}

/// Settles what the kernel does for many datagrams in one call, as far as this end can know.
///
/// What was asked for is refused where it is not to be had; a default is given up, with a doubt.
///
/// # Errors
/// [`MeasureError::OptionRefused`].
pub fn settle_udp_offload(plan: &mut Plan, role: Role) -> Result<Option<Doubt>, MeasureError> {
    if plan.protocol != Protocol::Udp || plan.kind != Kind::Throughput {
        plan.udp_offload = UdpOffload::default();
        return Ok(None);
    }
    let parts: Vec<Part> = (plan.directions.iter())
        .map(|&direction| part(role, direction))
        .collect();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)
        .map_err(|error| MeasureError::system("new socket", error))?;
    let mut refused = Vec::new();
    let bytes = u16::try_from(plan.payload_bytes).unwrap_or(u16::MAX);
    if parts.contains(&Part::Source) && plan.udp_offload.gso == Some(true) {
        if let Err(error) = linerate_host::sys::socket::set_udp_segment(&socket, bytes) {
            plan.udp_offload.gso = Some(false);
            refused.push(("gso", error));
        }
    }
    if parts.contains(&Part::Sink) && plan.udp_offload.gro == Some(true) {
        if let Err(error) = linerate_host::sys::socket::set_udp_coalescing(&socket) {
            plan.udp_offload.gro = Some(false);
            refused.push(("gro", error));
        }
    }
    let Some((name, error)) = refused.pop() else {
        return Ok(None);
    };
    if plan.udp_offload.asked {
        return Err(MeasureError::OptionRefused {
            option: format!("--offload {name}"),
            why: format!("the kernel does not do it ({error})"),
            next_step: "leave it out: UDP GSO needs Linux 4.18, GRO 5.0".to_owned(),
        });
    }
    Ok(Some(Doubt::new(
        "offload-refused",
        format!("UDP {name} is not to be had on this kernel ({error}): one datagram a call"),
    )))
}

/// Keeps this machine's cores from halting while it lives, if the plan asks for that.
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
            next_step: "run as root, or leave --hold-latency out".to_owned(),
        })
}

/// This host as the record has it, with the interface that leads to the other end.
#[must_use]
pub fn host_facts(role: Role, peer: std::net::IpAddr) -> Host {
    let mut host = linerate_host::snapshot::host();
    host.role = Some(role);
    host.interface = linerate_host::snapshot::interface_towards(peer)
        .and_then(|name| linerate_host::snapshot::interface(&name));
    host
}
