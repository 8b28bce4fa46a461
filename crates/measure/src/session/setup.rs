//! What both ends do between an agreed plan and the start: choose how to wait, deal flows to
//! threads, start them.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use linerate_host::knob::idle::{IdleHold, idle_hold};
use linerate_host::sys::cpu;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{Cpus, Direction, Kind, Plan, Protocol, UdpOffload, Wait};
use linerate_metric::record::Doubt;
use linerate_metric::units::format_bytes;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use crate::choose::{self, Situation};
use crate::end::FlowHandle;
use crate::error::MeasureError;
use crate::flow::{Part, Shared};
use crate::lane::{self, FlowSpec, GateKeeper, LaneError, LaneHandle, LaneSpec, Opening};
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
    /// Settles it for one end. `shared` says that both ends use the same machine, `others` how many
    /// threads of other runs are busy on it.
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
        // Both ends may have been given processors of their own.
        let meet = cpus.0.is_empty()
            || their_cpus.0.is_empty()
            || cpus.0.iter().any(|cpu| their_cpus.0.contains(cpu));
        let (wait, because) = choose::wait(&Situation {
            kind: plan.kind,
            receives,
            paced: plan.rate_bps.is_some(),
            congestion_control: plan.congestion_control.as_deref(),
            busy_threads: others + threads_here * if shared && meet { 2 } else { 1 },
            processors: if cpus.0.is_empty() {
                usable.len()
            } else {
                cpus.0.len()
            },
        });
        Ok(Self {
            wait,
            asked: false,
            cpus,
            because: Some(because),
        })
    }

    /// How many threads the flows of a direction get at most: one each where calls sleep; where
    /// they do not, as many as there are processors for them.
    fn thread_limit(&self, part: Part, kind: Kind) -> Result<usize, MeasureError> {
        match self.of(part, kind) {
            Wait::Block | Wait::Poll | Wait::Select { .. } => Ok(usize::MAX),
            Wait::Spin | Wait::Epoll if !self.cpus.0.is_empty() => Ok(self.cpus.0.len()),
            Wait::Spin | Wait::Epoll => {
                let usable =
                    cpu::usable().map_err(|error| MeasureError::system("affinity", error))?;
                Ok(usable.len().max(1))
            }
        }
    }

    /// How many threads each direction of a plan gets at this end, and what they do.
    pub fn threads(&self, plan: &Plan, role: Role) -> Result<Vec<(Part, usize)>, MeasureError> {
        let threads = |&direction: &Direction| {
            let part = part(role, direction);
            let limit = self.thread_limit(part, plan.kind)?;
            Ok((part, limit.min(plan.streams as usize)))
        };
        plan.directions.iter().map(threads).collect()
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

/// Receive buffer that a UDP sink asks for when nobody asked for another: the kernel's default of
/// 208 KiB holds three large datagrams, and what it refuses looks like loss on the path. The kernel
/// grants what net.core.rmem_max allows.
const UDP_RECEIVE_BUFFER_BYTES: u64 = 4 << 20;

/// How sockets of a flow are set up at this end.
///
/// An accepted TCP socket gets its buffers after the handshake, in which its window scale was
/// settled from the kernel's defaults; a connecting one gets them before.
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
    /// Holds and tells them, and sends them home when it goes.
    pub keeper: GateKeeper,
    /// The threads.
    pub lanes: Vec<LaneHandle>,
    /// Their flows.
    pub flows: Vec<FlowHandle>,
    /// Readable when one has ended.
    pub done: UnixStream,
}

/// How often [`prepare`] calls `idle`.
const IDLE_EVERY: Duration = Duration::from_millis(50);

/// How long threads that are sent home before the start are waited for. Those that still wait for
/// an answer of the kernel go by themselves later.
const HOME_PATIENCE: Duration = Duration::from_millis(300);

/// Deals flows to threads, starts these, and returns once all their sockets stand; calls `idle`
/// meanwhile, whose error ends it.
///
/// # Errors
/// What keeps a flow from opening; the threads that stand already are sent home.
pub fn prepare(
    plan: &Arc<Plan>,
    role: Role,
    manner: &Manner,
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
    let mut handles = Vec::new();
    let mut lanes = Vec::new();
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
        match lane::start(spec, keeper.gate(), report.clone(), Arc::clone(&bell)) {
            Ok(lane) => lanes.push(lane),
            Err(error) => {
                result = Err(MeasureError::system("new thread", error));
                break;
            }
        }
    }
    // Each thread has its own: when all have reported, or died, the channel closes.
    drop(report);
    let mut reported = 0;
    while result.is_ok() {
        match reports.recv_timeout(IDLE_EVERY) {
            Ok(Ok(watches)) => {
                reported += 1;
                for (id, watch) in watches {
                    if let Some(flow) = handles.iter_mut().find(|flow| flow.id == id) {
                        flow.watch = Some(watch);
                    }
                }
            }
            Ok(Err(error)) => result = Err(lane_error(error, plan)),
            Err(RecvTimeoutError::Timeout) => result = idle(),
            Err(RecvTimeoutError::Disconnected) if reported == lanes.len() => break,
            Err(RecvTimeoutError::Disconnected) => {
                let died = io::Error::other("it ended before its flows were open");
                result = Err(MeasureError::system("a measuring thread", died));
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

/// Deals the flows of each direction in turn to its threads.
fn deal(
    plan: &Plan,
    role: Role,
    manner: &Manner,
    flows: Vec<AgreedFlow>,
) -> Result<Vec<(Direction, Vec<AgreedFlow>)>, MeasureError> {
    let mut lanes: Vec<(Direction, Vec<AgreedFlow>)> = Vec::new();
    let mut counts = [0usize; 2];
    for flow in flows {
        let side = usize::from(flow.direction == Direction::Receive);
        let limit = manner.thread_limit(part(role, flow.direction), plan.kind)?;
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
        LaneError::Descriptor(fd) => MeasureError::OptionRefused {
            option: "--wait select".to_owned(),
            why: format!("select takes no descriptor above 1023, and a flow would have {fd}"),
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
            Some(Errno::ADDRINUSE) if plan.source_port.is_some() => MeasureError::PortTaken {
                port: plan.source_port.unwrap_or_default(),
                source: error,
            },
            Some(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL)
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
    }
}

/// Refuses a congestion control that this process cannot use, before any traffic.
///
/// The server takes only what the kernel has loaded already: to ask the kernel for another makes
/// it load a module when root asks, and the name is the client's.
///
/// # Errors
/// [`MeasureError::OptionRefused`] with the kernel's list.
pub fn check_congestion_control(plan: &Plan, role: Role) -> Result<(), MeasureError> {
    let Some(name) = plan
        .congestion_control
        .as_deref()
        .filter(|_| plan.congestion_control_asked && plan.protocol == Protocol::Tcp)
    else {
        return Ok(());
    };
    let refused = |why: String| {
        MeasureError::OptionRefused {
        option: format!("-C {name}"),
        why,
        next_step: "see `sysctl net.ipv4.tcp_available_congestion_control \
                    net.ipv4.tcp_allowed_congestion_control`; `modprobe tcp_NAME` and root add to them"
            .to_owned(),
    }
    };
    if role == Role::Server && !is_listed(name, &loaded_congestion_controls()) {
        return Err(refused("not loaded in the kernel there".to_owned()));
    }
    let socket = probe_socket(Protocol::Tcp)?;
    socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
        refused(match error.kind() {
            io::ErrorKind::NotFound => "the kernel has no such congestion control".to_owned(),
            io::ErrorKind::PermissionDenied => "not allowed for ordinary users".to_owned(),
            _ => error.to_string(),
        })
    })
}

/// The kernel's own list, names between blanks.
fn loaded_congestion_controls() -> String {
    linerate_host::snapshot::Files::machine()
        .text("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default()
}

fn is_listed(name: &str, list: &str) -> bool {
    list.split_whitespace().any(|listed| listed == name)
}

/// Refuses what the kernel does not let this process set on a socket, by the option's name and
/// before any traffic.
///
/// # Errors
/// [`MeasureError::OptionRefused`].
pub fn check_socket_options(plan: &Plan) -> Result<(), MeasureError> {
    let asked = &plan.socket;
    let socket = probe_socket(plan.protocol)?;
    let refused = |option: String, next_step: &'static str| {
        move |error: io::Error| MeasureError::OptionRefused {
            option,
            why: format!("the kernel refuses it ({error})"),
            next_step: next_step.to_owned(),
        }
    };
    if let Some(priority) = asked.priority {
        socket.set_priority(priority).map_err(refused(
            format!("--socket-priority {priority}"),
            "priorities above 6 need CAP_NET_ADMIN: use 0 to 6, or run as root",
        ))?;
    }
    if let Some(bytes) = asked.mss_bytes.filter(|_| plan.protocol == Protocol::Tcp) {
        socket.set_tcp_mss(bytes).map_err(refused(
            format!("-M {bytes}"),
            "use 88 to 32767 bytes, and no more than the path's MTU leaves",
        ))?;
    }
    for (option, bytes, limit) in [
        (
            "-w or --sndbuf",
            asked.send_buffer_bytes.or(plan.window_bytes),
            "wmem_max",
        ),
        (
            "-w or --rcvbuf",
            asked.receive_buffer_bytes.or(plan.window_bytes),
            "rmem_max",
        ),
    ] {
        let Some(bytes) = bytes else { continue };
        let granted = granted_buffer(&socket, bytes, limit == "wmem_max");
        let granted = granted.map_err(|error| MeasureError::system("socket buffer", error))?;
        if granted < bytes {
            return Err(MeasureError::OptionRefused {
                option: format!("{option} {}", format_bytes(bytes)),
                why: format!("the kernel grants {} at most", format_bytes(granted)),
                next_step: format!(
                    "ask for less, or allow more with `sysctl -w net.core.{limit}={bytes}`"
                ),
            });
        }
    }
    if let Some(bytes) = asked.receive_low_water_bytes {
        linerate_host::sys::socket::set_receive_low_water(&socket, bytes)
            .map_err(refused(format!("--rcvlowat {bytes}"), "leave it out"))?;
    }
    Ok(())
}

/// The payload that a socket buffer holds when `bytes` are asked for. The kernel doubles what is
/// asked for, for its own overhead, and cuts it at a limit without a word (socket(7)).
fn granted_buffer(socket: &Socket, bytes: u64, send: bool) -> io::Result<u64> {
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let granted = if send {
        socket.set_send_buffer_size(size)?;
        socket.send_buffer_size()?
    } else {
        socket.set_recv_buffer_size(size)?;
        socket.recv_buffer_size()?
    };
    Ok(granted as u64 / 2)
}

/// The congestion control that a new socket of this process gets.
#[must_use]
pub fn default_congestion_control() -> Option<String> {
    let socket = probe_socket(Protocol::Tcp).ok()?;
    crate::transport::congestion_control(&socket2::SockRef::from(&socket))
}

/// A socket to try things on; IPv4 may be switched off.
fn probe_socket(protocol: Protocol) -> Result<Socket, MeasureError> {
    let kind = match protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    Socket::new(Domain::IPV4, kind, None)
        .or_else(|_| Socket::new(Domain::IPV6, kind, None))
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
    let socket = probe_socket(Protocol::Udp)?;
    let mut refused = Vec::new();
    let bytes = u16::try_from(plan.payload_bytes).unwrap_or(u16::MAX);
    if parts.contains(&Part::Source)
        && plan.udp_offload.gso == Some(true)
        && let Err(error) = linerate_host::sys::socket::set_udp_segment(&socket, bytes)
    {
        plan.udp_offload.gso = Some(false);
        refused.push(("gso", error));
    }
    if parts.contains(&Part::Sink)
        && plan.udp_offload.gro == Some(true)
        && let Err(error) = linerate_host::sys::socket::set_udp_coalescing(&socket)
    {
        plan.udp_offload.gro = Some(false);
        refused.push(("gro", error));
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

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::plan::Ends;

    #[test]
    fn only_whole_names_are_listed() {
        let list = "reno cubic bbr\n";
        assert!(is_listed("bbr", list) && is_listed("reno", list));
        for name in ["bb", "", "reno cubic", "dctcp"] {
            assert!(!is_listed(name, list), "{name:?}");
        }
    }

    #[test]
    fn a_server_takes_only_what_is_loaded() {
        let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "host");
        plan.congestion_control_asked = true;
        plan.congestion_control = Some("nonesuch".to_owned());
        assert!(check_congestion_control(&plan, Role::Server).is_err());
        plan.congestion_control = default_congestion_control();
        check_congestion_control(&plan, Role::Server).unwrap();
    }

    #[test]
    fn refused_socket_options_are_named() {
        let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "host");
        plan.socket.mss_bytes = Some(10);
        let error = check_socket_options(&plan).unwrap_err();
        assert_eq!(error.exit_code(), linerate_metric::exit::MISSING);
        assert!(error.to_string().starts_with("-M 10"), "{error}");
        plan.protocol = Protocol::Udp;
        check_socket_options(&plan).unwrap();
        // More than any kernel grants without being told to.
        plan.window_bytes = Some(2_000_000_000);
        let error = check_socket_options(&plan).unwrap_err();
        assert!(error.to_string().contains("grants"), "{error}");
    }

    #[test]
    fn processors_that_were_given_bound_the_threads() {
        let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "host");
        plan.streams = 5;
        let first = cpu::usable().unwrap()[0];
        plan.cpu = Ends::both(Cpus(vec![first]));
        let spin = Some(Wait::Spin);
        let manner = Manner::settle(&plan, Role::Server, spin, false, 0).unwrap();
        let threads = manner.threads(&plan, Role::Server).unwrap();
        assert_eq!(threads, [(Part::Sink, 1)]);
        let block = Some(Wait::Block);
        let manner = Manner::settle(&plan, Role::Server, block, false, 0).unwrap();
        assert_eq!(manner.threads(&plan, Role::Server).unwrap()[0].1, 5);
        // One receiver, one processor: free for it alone, not beside another run.
        plan.streams = 1;
        for (others, want) in [(0, Wait::Spin), (1, Wait::Block)] {
            let manner = Manner::settle(&plan, Role::Server, None, false, others).unwrap();
            assert_eq!(manner.wait, want, "{others}");
        }
    }
}
