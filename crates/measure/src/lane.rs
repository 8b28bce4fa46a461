//! A measuring thread: opens its flows, waits for the start, runs its workload, ends.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;

use linerate_dialect::control::Token;
use linerate_dialect::control::flow::{opening, read_answer};
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::cpu::{self, ThreadUsage};
use linerate_host::sys::sched;
use linerate_host::sys::thread::ThreadId;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, Sched, Wait};
use socket2::{Domain, Type};

use crate::flow::{FlowOutcome, Part, Phase, Shared, Timeline};
use crate::transport::{
    Block, Epoll, FlowOptions, Kernel, PollCall, Select, Spin, Transport, Waiting, Watch,
};
use crate::workload::{self, Lane, Opened, PATIENCE_NS};

/// How long the opening of a UDP flow is repeated.
const UDP_OPENING_NS: Nanos = 5_000_000_000;

/// How a flow comes to its socket.
pub enum Opening {
    /// By opening it towards the far end.
    Connect {
        /// Where to.
        remote: SocketAddr,
        /// What ties it to the control connection.
        token: Token,
    },
    /// By taking over what was accepted.
    Adopt(OwnedFd),
}

/// A flow to be run.
pub struct FlowSpec {
    /// Its number.
    pub id: u32,
    /// How it comes to its socket.
    pub opening: Opening,
    /// How its socket is set up.
    pub options: FlowOptions,
    /// What its thread and the coordinator share.
    pub shared: Arc<Shared>,
}

/// A thread to be started.
pub struct LaneSpec {
    /// What the run does.
    pub plan: Arc<Plan>,
    /// Which way its flows go.
    pub direction: Direction,
    /// What this end does in them.
    pub part: Part,
    /// How it waits.
    pub wait: Wait,
    /// The processor it stays on; `None`: wherever the scheduler puts it.
    pub cpu: Option<u32>,
    /// Its scheduling class and priority.
    pub sched: Sched,
    /// Its flows.
    pub flows: Vec<FlowSpec>,
}

/// Holds all threads of a run until it starts, and tells them how it goes on.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
    /// How the run goes on.
    pub phase: Phase,
}

#[derive(Default)]
enum GateState {
    #[default]
    Closed,
    Open(Timeline),
    /// The run does not take place.
    Cancelled,
}

impl Gate {
    /// Lets everybody run.
    pub fn open(&self, timeline: Timeline) {
        self.set(GateState::Open(timeline));
    }

    /// Sends everybody home.
    pub fn cancel(&self) {
        self.phase.abort();
        self.set(GateState::Cancelled);
    }

    /// Whether everybody was sent home.
    fn is_cancelled(&self) -> bool {
        self.phase.is_aborted()
    }

    fn set(&self, state: GateState) {
        *self.state.lock().expect("no holder panics") = state;
        self.changed.notify_all();
    }

    fn wait(&self) -> Option<Timeline> {
        let mut state = self.state.lock().expect("no holder panics");
        loop {
            match *state {
                GateState::Open(timeline) => return Some(timeline),
                GateState::Cancelled => return None,
                GateState::Closed => {
                    state = self.changed.wait(state).expect("no holder panics");
                }
            }
        }
    }
}

/// Sends everybody home when it goes, whatever the reason: an early return, a panic, or the end of
/// a run, after which nobody is there any more.
pub struct GateKeeper(Arc<Gate>);

impl GateKeeper {
    /// Keeps a gate that nobody has passed yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// The gate.
    #[must_use]
    pub fn gate(&self) -> &Arc<Gate> {
        &self.0
    }
}

impl Drop for GateKeeper {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Why a thread could not open its flows.
#[derive(Debug)]
pub enum LaneError {
    /// It cannot run on that processor.
    Cpu(u32, io::Error),
    /// It cannot be scheduled like that.
    Sched(Sched, io::Error),
    /// A flow does not open.
    Open(io::Error),
    /// The far end does not answer over UDP.
    UdpBlocked(SocketAddr),
    /// `select` takes no descriptor as high as this.
    Descriptor(RawFd),
    /// The run was called off meanwhile.
    Cancelled,
}

/// What a thread came to.
#[derive(Default)]
pub struct LaneOutcome {
    /// Its flows.
    pub flows: Vec<FlowOutcome>,
    /// What it cost from the start on.
    pub usage: ThreadUsage,
}

/// A started thread.
pub struct LaneHandle {
    /// What its flows do at this end.
    pub part: Part,
    thread: Option<JoinHandle<LaneOutcome>>,
    id: Arc<OnceLock<ThreadId>>,
}

impl LaneHandle {
    /// Wakes it from a call that it sleeps in, so that it looks whether the run goes on.
    pub fn wake(&self) {
        if let Some(id) = self.id.get().filter(|_| !self.is_finished()) {
            id.wake();
        }
    }

    /// Whether the thread has come to its end.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for its end; later calls give nothing.
    pub fn join(&mut self) -> LaneOutcome {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            // A panic is our bug: it goes on in the thread that asked.
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => LaneOutcome::default(),
        }
    }
}

/// The sockets of a thread for the coordinator to look at, by flow number.
pub type Watches = Vec<(u32, Watch)>;

/// Starts a thread; it reports on `ready` once its flows stand, and writes a byte to `done` at its
/// end.
///
/// # Errors
/// When the system gives no thread.
pub fn start(
    spec: LaneSpec,
    gate: &Arc<Gate>,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
    done: Arc<UnixStream>,
) -> io::Result<LaneHandle> {
    let part = spec.part;
    let gate = Arc::clone(gate);
    let id = Arc::new(OnceLock::new());
    let own_id = Arc::clone(&id);
    let body = move || {
        let _ = own_id.set(ThreadId::current());
        let outcome = match spec.wait {
            Wait::Block => run::<Block>(spec, &gate, ready),
            Wait::Spin => run::<Spin>(spec, &gate, ready),
            Wait::Poll => run::<PollCall>(spec, &gate, ready),
            Wait::Select { .. } => run::<Select>(spec, &gate, ready),
            Wait::Epoll => run::<Epoll>(spec, &gate, ready),
        };
        // Whoever listened may be gone; then nobody waits for this byte.
        let _ = io::Write::write(&mut &*done, &[1]);
        outcome
    };
    let thread = std::thread::Builder::new()
        .name(match part {
            Part::Source => "source".to_owned(),
            Part::Sink => "sink".to_owned(),
        })
        // The workload keeps its memory on the heap; 10,000 threads are to fit.
        .stack_size(256 << 10)
        .spawn(body)?;
    Ok(LaneHandle {
        part,
        thread: Some(thread),
        id,
    })
}

fn run<W: Waiting>(
    spec: LaneSpec,
    gate: &Gate,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
) -> LaneOutcome {
    let plan = Arc::clone(&spec.plan);
    let (direction, part, wait) = (spec.direction, spec.part, spec.wait);
    let (mut transport, flows) = match prepare::<W>(spec, gate) {
        Ok((transport, flows, watches)) => {
            let _ = ready.send(Ok(watches));
            (transport, flows)
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return LaneOutcome::default();
        }
    };
    // Once all have said so the channel closes: that is how a thread that never will is noticed.
    drop(ready);
    let Some(timeline) = gate.wait() else {
        return LaneOutcome::default();
    };
    let lane = Lane {
        plan: &plan,
        direction,
        part,
        timeline,
        phase: &gate.phase,
    };
    if relies_on_wakes(&plan, wait) {
        for flow in &flows {
            // Refused, it keeps its time-out: slower by a timer, and as right.
            let _ = transport.sleep_without_limit(flow.socket);
        }
    }
    let before = ThreadUsage::now();
    let flows = workload::run(&lane, &mut transport, flows);
    LaneOutcome {
        flows,
        usage: ThreadUsage::now().since(&before),
    }
}

/// Shortest answer time-out for which the coordinator's look is soon enough.
const WAKES_IN_TIME_NS: u64 = 500_000_000;

/// Whether threads sleep without a time-out of their own, and are woken by the coordinator.
#[must_use]
pub fn relies_on_wakes(plan: &Plan, wait: Wait) -> bool {
    let soon_enough = plan
        .answer_timeout_ns
        .is_some_and(|timeout| timeout >= WAKES_IN_TIME_NS);
    plan.kind == Kind::Latency && wait == Wait::Block && soon_enough
}

/// The largest payload that a thread sends and receives in one call. What only sends needs no room
/// to receive, and the reverse: with thousands of threads this is what their memory is.
pub fn call_bytes(plan: &Plan, part: Part) -> (usize, usize) {
    let payload = plan.payload_bytes as usize;
    let room = match plan.protocol {
        // Datagrams up to the largest come whole; a stream offers the room it was told to.
        Protocol::Udp => payload.max(LARGEST_DATAGRAM),
        Protocol::Tcp => plan.receive_bytes.unwrap_or(plan.payload_bytes) as usize,
    };
    let sent = match plan.udp_offload.gso {
        Some(true) => LARGEST_DATAGRAM,
        _ => payload,
    };
    let (sent, room) = match (plan.kind, part) {
        (Kind::Latency, _) => (sent, room),
        (Kind::Throughput, Part::Source) => (sent, 0),
        (Kind::Throughput, Part::Sink) => (0, room),
    };
    (sent.max(OPENING_ROOM), room.max(OPENING_ROOM))
}

/// Room of a datagram of any size.
const LARGEST_DATAGRAM: usize = 1 << 16;

/// Room for the opening of a flow and its answer.
const OPENING_ROOM: usize = 64;

type Prepared<W> = (
    Kernel<W>,
    Vec<Opened<<Kernel<W> as Transport>::Socket>>,
    Watches,
);

fn prepare<W: Waiting>(spec: LaneSpec, gate: &Gate) -> Result<Prepared<W>, LaneError> {
    if let Some(cpu) = spec.cpu {
        cpu::pin(&[cpu]).map_err(|error| LaneError::Cpu(cpu, error))?;
    }
    let sched = match spec.sched {
        Sched::Inherited => Ok(()),
        Sched::Nice(value) => sched::nice(value),
        Sched::Fifo(priority) => sched::fifo(priority),
        Sched::RoundRobin(priority) => sched::round_robin(priority),
    };
    sched.map_err(|error| LaneError::Sched(spec.sched, error))?;
    let plan = &spec.plan;
    let (sent, room) = call_bytes(plan, spec.part);
    let mut transport = Kernel::<W>::new(spec.wait, sent, room).map_err(LaneError::Open)?;
    let mut flows = Vec::with_capacity(spec.flows.len());
    let mut watches = Vec::with_capacity(spec.flows.len());
    for flow in spec.flows {
        let socket = match flow.opening {
            Opening::Adopt(fd) => {
                check_descriptor(spec.wait, fd.as_raw_fd())?;
                transport
                    .adopt(fd, &flow.options)
                    .map_err(LaneError::Open)?
            }
            Opening::Connect { remote, token } => {
                if matches!(spec.wait, Wait::Select { .. }) {
                    // The kernel gives the lowest free number, and so it will to the flow.
                    let next = socket2::Socket::new(Domain::UNIX, Type::DGRAM, None);
                    let next = next.map_err(LaneError::Open)?;
                    check_descriptor(spec.wait, next.as_raw_fd())?;
                }
                connect(&mut transport, remote, token, &flow.options, gate)?
            }
        };
        // Nobody looks at the sockets of sinks.
        if plan.protocol == Protocol::Tcp && spec.part == Part::Source {
            watches.push((flow.id, transport.watch(socket).map_err(LaneError::Open)?));
        }
        flows.push(Opened {
            id: flow.id,
            socket,
            shared: flow.shared,
        });
    }
    Ok((transport, flows, watches))
}

/// The first descriptor that does not fit the sets of `select` (FD_SETSIZE, in glibc and musl).
const SELECT_LIMIT: RawFd = 1024;

fn check_descriptor(wait: Wait, fd: RawFd) -> Result<(), LaneError> {
    if matches!(wait, Wait::Select { .. }) && fd >= SELECT_LIMIT {
        return Err(LaneError::Descriptor(fd));
    }
    Ok(())
}

/// Opens a flow and says whose it is.
fn connect<T: Transport>(
    transport: &mut T,
    remote: SocketAddr,
    token: Token,
    options: &FlowOptions,
    gate: &Gate,
) -> Result<T::Socket, LaneError> {
    if gate.is_cancelled() {
        return Err(LaneError::Cancelled);
    }
    let socket = transport
        .connect(remote, options)
        .map_err(LaneError::Open)?;
    let greeting = opening(token);
    match options.protocol {
        Protocol::Tcp => {
            let mut sent = 0;
            while sent < greeting.len() {
                let rest = &greeting[sent..];
                let taken = transport.tcp_send(socket, rest.len(), |payload| {
                    payload.copy_from_slice(&rest[..payload.len()]);
                });
                match taken {
                    Poll::Ready(taken) => sent += taken.map_err(LaneError::Open)?,
                    Poll::Pending if gate.is_cancelled() => return Err(LaneError::Cancelled),
                    Poll::Pending => transport.idle(None),
                }
            }
            Ok(socket)
        }
        Protocol::Udp => {
            let give_up = clock::now() + UDP_OPENING_NS;
            while clock::now() < give_up {
                if gate.is_cancelled() {
                    return Err(LaneError::Cancelled);
                }
                // A full queue loses one copy of many; the next one is due soon.
                let _ = transport.udp_send(socket, greeting.len(), |payload| {
                    payload.copy_from_slice(&greeting);
                });
                if answered(transport, socket, token).map_err(LaneError::Open)? {
                    return Ok(socket);
                }
            }
            Err(LaneError::UdpBlocked(remote))
        }
    }
}

/// Waits a moment for the answer to the opening of a UDP flow.
fn answered<T: Transport>(transport: &mut T, socket: T::Socket, token: Token) -> io::Result<bool> {
    let until = clock::now() + PATIENCE_NS;
    while clock::now() < until {
        transport.turn();
        match transport.udp_receive(socket, |payload, _| read_answer(payload) == Some(token)) {
            Poll::Ready(Ok(true)) => return Ok(true),
            Poll::Ready(Ok(false)) => {}
            // Nobody had the port for a moment: the server's own socket may just be changing.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                transport.idle(Some(clock::now() + PATIENCE_NS / 10));
            }
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => transport.idle(Some(clock::now() + PATIENCE_NS / 100)),
        }
    }
    Ok(false)
}
