//! Worker thread: opens its flows, waits for the start, runs its workload, ends.

mod netstack;

pub use netstack::start_on;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_dialect::control::Token;
use linerate_dialect::control::flow::{opening, read_answer};
use linerate_host::processor_time::Scheduled;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::cpu::{self, ThreadUsage};
use linerate_host::sys::hardware_counters::{Counted, Counters};
use linerate_host::sys::thread::ThreadId;
use linerate_host::sys::{fd_table, scheduling};
use linerate_metric::plan::{
    BUSY_POLL_NS, Copies, Direction, Kind, Plan, Protocol, ReceiveCopy, Sched, SendCopy, Wait,
};
use linerate_metric::round_trip::Attachment;
use linerate_metric::stack::StackFacts;
use linerate_stack::SocketId;
use socket2::{Domain, Type};

use crate::flow::{FlowOutcome, Part, Phase, Shared, Timeline};
use crate::interop::framing::Framing;
use crate::payload_pattern::Pattern;
use crate::transport::call_times::{CallTally, Silent, Stopwatch, Tracer};
use crate::transport::{
    Adapter, Attempts, Block, Epoll, FlowOptions, Kernel, PollCall, Select, Setup, Spin, Transport,
    Uring, Waiting, Watch,
};
use crate::workload::histogram_pool::Room;
use crate::workload::{self, Lane, Opened, PATIENCE_NS, Reopening};

/// Time for which the opening of a UDP flow is repeated.
const UDP_OPENING_NS: Nanos = 5_000_000_000;

/// Poll interval while an opening is unconfirmed.
const GLANCE_NS: Nanos = 50_000;

/// Source of a flow's socket.
pub enum Opening {
    /// Opened towards the other end.
    Connect {
        remote: SocketAddr,
        /// Token that links the flow to the control connection.
        token: Token,
    },
    /// Accepted socket.
    Adopt(OwnedFd),
    /// Accepted socket of the user-space stack.
    Take(SocketId),
}

/// Flow to run.
pub struct FlowSpec {
    pub id: u32,
    pub opening: Opening,
    pub options: FlowOptions,
    /// State shared with the coordinator.
    pub shared: Arc<Shared>,
    /// Payload content, where it is verified.
    pub pattern: Option<Pattern>,
    /// Framing in front of the payload.
    pub framing: Framing,
}

/// Worker thread to start.
pub struct LaneSpec {
    pub plan: Arc<Plan>,
    pub direction: Direction,
    pub part: Part,
    pub wait: Wait,
    /// CPU of the thread; `None`: chosen by the scheduler.
    pub cpu: Option<u32>,
    pub sched: Sched,
    /// Count cycles and instructions: not where each round trip would switch the counters, and not
    /// beyond the number of threads that are listed.
    pub counts: bool,
    pub flows: Vec<FlowSpec>,
}

/// Start barrier of all threads of a run, with the phase of the run.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
    pub phase: Phase,
}

#[derive(Default)]
enum GateState {
    #[default]
    Closed,
    Open(Timeline),
    /// The run was cancelled before its start.
    Cancelled,
}

impl Gate {
    /// Starts all threads.
    pub fn open(&self, timeline: Timeline) {
        self.set(GateState::Open(timeline));
    }

    /// Releases all threads without starting the run.
    pub fn cancel(&self) {
        self.phase.abort();
        self.set(GateState::Cancelled);
    }

    /// Returns whether the run was cancelled.
    fn is_cancelled(&self) -> bool {
        self.phase.is_aborted()
    }

    fn set(&self, state: GateState) {
        *self.state.lock().expect("no holder panics") = state;
        self.changed.notify_all();
    }

    /// Waits for the start; `None` when the run was cancelled. Calls `tend` meanwhile, which
    /// returns whether the transport needs background polls.
    fn wait(&self, mut tend: impl FnMut() -> bool) -> Option<Timeline> {
        let mut state = self.state.lock().expect("no holder panics");
        loop {
            match *state {
                GateState::Open(timeline) => return Some(timeline),
                GateState::Cancelled => return None,
                GateState::Closed => {}
            }
            drop(state);
            let tended = tend();
            state = self.state.lock().expect("no holder panics");
            if !tended && matches!(*state, GateState::Closed) {
                state = self.changed.wait(state).expect("no holder panics");
            }
        }
    }
}

/// Cancels the run on drop: after an early return, a panic, or the end of the run.
pub struct GateKeeper(Arc<Gate>);

impl GateKeeper {
    /// Creates a barrier that is closed.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Returns the barrier.
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

/// Reason why a thread could not open its flows.
#[derive(Debug)]
pub enum LaneError {
    /// The CPU cannot be used.
    Cpu(u32, io::Error),
    /// The scheduling class cannot be set.
    Sched(Sched, io::Error),
    /// A flow cannot be opened.
    Open(io::Error),
    /// The server does not confirm the opening over UDP.
    UdpBlocked(SocketAddr),
    /// The descriptor is beyond the limit of `select`.
    Descriptor(RawFd),
    /// The run was cancelled meanwhile.
    Cancelled,
}

/// Results of a worker thread.
#[derive(Default)]
pub struct LaneOutcome {
    pub flows: Vec<FlowOutcome>,
    /// CPU time and context switches from the start on.
    pub usage: ThreadUsage,
    /// Durations of its system calls, where they were recorded.
    pub calls: Option<CallTally>,
    /// Scheduler statistics of the thread at its end.
    pub scheduled: Option<Scheduled>,
    pub ended_ns: Nanos,
    /// Socket calls from the start on.
    pub attempts: Option<Attempts>,
    /// Cycles and instructions from the start on, or the reason why they are missing.
    pub counted: Option<Result<Counted, String>>,
    /// Counters of the user-space stack, where it moved the payload.
    pub stack: Option<Box<StackFacts>>,
    /// Descriptors that the coordinator must close: it has them open too, and this thread may have
    /// had a private descriptor table.
    _counters: Option<Counters>,
}

/// Started worker thread.
pub struct LaneHandle {
    pub direction: Direction,
    pub part: Part,
    /// Number of its flows.
    pub flows: usize,
    running: Running,
    id: Arc<OnceLock<ThreadId>>,
    /// Keeps the descriptor open: the worker thread must not be the last to close it.
    _bell: Arc<UnixStream>,
}

/// Thread that runs the worker.
enum Running {
    /// A thread of its own.
    Thread {
        over: Arc<AtomicBool>,
        thread: JoinHandle<LaneOutcome>,
    },
    /// The thread of the user-space stack, which has other tasks before and after.
    Lent {
        over: Arc<AtomicBool>,
        outcome: mpsc::Receiver<LaneOutcome>,
    },
    Joined,
}

impl LaneHandle {
    /// Wakes the thread from a blocking call, so that it checks the phase of the run.
    pub fn wake(&self) {
        if let Some(id) = self.id.get().filter(|_| !self.is_finished()) {
            id.wake();
        }
    }

    /// Returns the kernel's thread id, once the thread runs.
    #[must_use]
    pub fn thread_id(&self) -> Option<ThreadId> {
        self.id.get().copied()
    }

    /// Returns whether the thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match &self.running {
            Running::Thread { over, .. } | Running::Lent { over, .. } => over.load(Acquire),
            Running::Joined => true,
        }
    }

    /// Waits for the end of the thread and returns its results; later calls return empty ones.
    pub fn join(&mut self) -> LaneOutcome {
        match std::mem::replace(&mut self.running, Running::Joined) {
            Running::Thread { thread, .. } => match thread.join() {
                Ok(outcome) => outcome,
                // A panic is a bug: it continues in the caller.
                Err(panic) => std::panic::resume_unwind(panic),
            },
            // A thread that died has no results; its owner reports the reason.
            Running::Lent { outcome, .. } => outcome.recv().unwrap_or_default(),
            Running::Joined => LaneOutcome::default(),
        }
    }
}

/// Socket observers of a thread for the coordinator, by flow number.
pub type Watches = Vec<(u32, Watch)>;

/// Starts a thread. It reports on `ready` once its flows are open, and writes a byte to `done` at
/// its end.
///
/// # Errors
/// When the thread cannot be started.
pub fn start(
    spec: LaneSpec,
    gate: &Arc<Gate>,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
    done: Arc<UnixStream>,
) -> io::Result<LaneHandle> {
    let (direction, part, flows) = (spec.direction, spec.part, spec.flows.len());
    let gate = Arc::clone(gate);
    let id = Arc::new(OnceLock::new());
    let own_id = Arc::clone(&id);
    let bell = Arc::clone(&done);
    let over = Arc::new(AtomicBool::new(false));
    let ends = Over {
        over: Arc::clone(&over),
        done: Arc::clone(&done),
    };
    let body = move || {
        // `over` is set before the byte is written: a coordinator that is woken must see the thread
        // as ended.
        let _ends = ends;
        let _ = own_id.set(ThreadId::current());
        match spec.wait {
            Wait::Block => run_kernel::<Block>(spec, &gate, ready, &done),
            Wait::Spin => run_kernel::<Spin>(spec, &gate, ready, &done),
            Wait::Poll => run_kernel::<PollCall>(spec, &gate, ready, &done),
            Wait::Select { .. } => run_kernel::<Select>(spec, &gate, ready, &done),
            Wait::Epoll => run_kernel::<Epoll>(spec, &gate, ready, &done),
            // Blocking calls; busy polling is an option of the sockets.
            Wait::BusyPoll { .. } => run_kernel::<Block>(spec, &gate, ready, &done),
            // Rejected by the checks: only the user-space stack polls at intervals, on its own
            // thread.
            Wait::Interval { .. } => {
                let _ = ready.send(Err(LaneError::Open(io::ErrorKind::Unsupported.into())));
                LaneOutcome::default()
            }
            Wait::IoUring if spec.plan.calls => run::<Uring<Stopwatch>>(spec, &gate, ready, &done),
            Wait::IoUring => run::<Uring<Silent>>(spec, &gate, ready, &done),
        }
    };
    let thread = std::thread::Builder::new()
        .name(match part {
            Part::Source => "source".to_owned(),
            Part::Sink => "sink".to_owned(),
        })
        // The workload keeps its memory on the heap: 10,000 threads must fit.
        .stack_size(256 << 10)
        .spawn(body)?;
    Ok(LaneHandle {
        direction,
        part,
        flows,
        running: Running::Thread { over, thread },
        id,
        _bell: bell,
    })
}

/// Signals the end of a worker on drop.
struct Over {
    over: Arc<AtomicBool>,
    done: Arc<UnixStream>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.over.store(true, Release);
        // The receiver may be closed; then the byte is not needed.
        let _ = io::Write::write(&mut &*self.done, &[1]);
    }
}

/// Runs a worker over kernel sockets; compiled with and without the call recorder.
fn run_kernel<W: Waiting>(
    spec: LaneSpec,
    gate: &Gate,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
    bell: &UnixStream,
) -> LaneOutcome {
    if spec.plan.trace {
        run::<Kernel<W, Tracer>>(spec, gate, ready, bell)
    } else if spec.plan.calls {
        run::<Kernel<W, Stopwatch>>(spec, gate, ready, bell)
    } else {
        run::<Kernel<W, Silent>>(spec, gate, ready, bell)
    }
}

fn run<T: Adapter>(
    spec: LaneSpec,
    gate: &Gate,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
    bell: &UnixStream,
) -> LaneOutcome {
    // Pinned before the transport exists, so that its buffers are local to the CPU (NUMA).
    let made = place(&spec).and_then(|()| make::<T>(&spec));
    match made {
        Ok(mut transport) => run_on(&mut transport, spec, gate, ready, bell),
        Err(error) => {
            let _ = ready.send(Err(error));
            LaneOutcome::default()
        }
    }
}

/// Runs a worker as [`run_on`] does, on the thread of the user-space stack.
fn run_lent<T: Adapter>(
    transport: &mut T,
    spec: LaneSpec,
    gate: &Gate,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
    bell: &UnixStream,
) -> LaneOutcome {
    match place(&spec) {
        Ok(()) => run_on(transport, spec, gate, ready, bell),
        Err(error) => {
            let _ = ready.send(Err(error));
            LaneOutcome::default()
        }
    }
}

fn run_on<T: Adapter>(
    transport: &mut T,
    spec: LaneSpec,
    gate: &Gate,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
    bell: &UnixStream,
) -> LaneOutcome {
    let plan = Arc::clone(&spec.plan);
    let (direction, part, wait) = (spec.direction, spec.part, spec.wait);
    let counters = spec.counts.then(Counters::of_this_thread);
    let flows = match prepare(transport, spec, gate) {
        Ok((flows, watches)) => {
            let _ = ready.send(Ok(watches));
            flows
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return LaneOutcome::default();
        }
    };
    // The channel closes once all threads have reported: this detects a thread that dies before.
    drop(ready);
    let Some(timeline) = gate.wait(|| transport.tend()) else {
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
            // On an error the timeout stays: correct, but slower by a timer per call.
            let _ = transport.sleep_without_limit(flow.socket);
        }
    }
    // With one socket per request, a thread closes sockets that were opened for it.
    let keeps_sockets = !plan.round_trip.needs_service();
    if flows.len() <= OWN_TABLE_FLOWS
        && keeps_sockets
        && let Some(mut files) = transport.descriptors()
    {
        files.extend(counters.iter().flatten().flat_map(Counters::descriptors));
        files.push(bell.as_raw_fd());
        // On an error the table stays shared, which costs two atomic operations per call.
        let _ = fd_table::own_table(&files);
    }
    let counted_before = counters.as_ref().map(count);
    let attempts_before = transport.attempts();
    transport.start(&timeline);
    let before = ThreadUsage::now();
    let flows = workload::run(&lane, transport, flows);
    let usage = ThreadUsage::now().since(&before);
    let ended_ns = clock::now();
    let attempts = transport.attempts().zip(attempts_before);
    let attempts = attempts.map(|(now, before)| now.since(&before));
    let counted = counters.as_ref().map(count).zip(counted_before);
    LaneOutcome {
        flows,
        calls: transport.tally(),
        stack: transport.stack_facts(),
        usage,
        scheduled: Scheduled::of(ThreadId::current()),
        ended_ns,
        attempts,
        counted: counted.map(|(now, before)| {
            let (now, before) = (now?, before?);
            Ok(Counted {
                cycles: now.cycles.saturating_sub(before.cycles),
                instructions: now.instructions.saturating_sub(before.instructions),
            })
        }),
        _counters: counters.and_then(Result::ok),
    }
}

/// Most flows of a thread with a private descriptor table: with more flows, the calls are too few
/// for it to matter.
///
/// A descriptor that such a thread opens before the start and uses later must be in the list that
/// it keeps, and is closed by the coordinator.
const OWN_TABLE_FLOWS: usize = 16;

/// Reads the hardware counters.
fn count(counters: &Result<Counters, String>) -> Result<Counted, String> {
    let counters = counters.as_ref().map_err(Clone::clone)?;
    counters
        .read()
        .ok_or_else(|| "no hardware counter was free".to_owned())
}

/// Shortest response timeout for which the coordinator's wake-ups are frequent enough.
const WAKES_IN_TIME_NS: u64 = 500_000_000;

/// Returns whether threads sleep without a timeout of their own, and are woken by the coordinator.
#[must_use]
pub fn relies_on_wakes(plan: &Plan, wait: Wait) -> bool {
    let soon_enough = plan
        .answer_timeout_ns
        .is_some_and(|timeout| timeout >= WAKES_IN_TIME_NS);
    plan.kind == Kind::Latency && wait == Wait::Block && soon_enough
}

/// Returns the buffer sizes for send and receive calls of a thread, in bytes. A thread that only
/// sends has no receive buffer, and vice versa: with thousands of threads, these buffers are most
/// of their memory.
pub fn call_bytes(plan: &Plan, part: Part) -> (usize, usize) {
    let payload = plan.payload_bytes as usize;
    let batch = plan.batch.map(|batch| batch as usize);
    let room = match plan.protocol {
        // In a batch each datagram has a slot of its own, of the size in the plan.
        Protocol::Udp if batch.is_some() => batch_room(payload).saturating_mul(batch.unwrap_or(1)),
        // Datagrams up to the largest are received completely; a stream gets the requested size.
        Protocol::Udp => payload.max(LARGEST_DATAGRAM),
        Protocol::Tcp => plan.receive_bytes.unwrap_or(plan.payload_bytes) as usize,
    };
    let sent = match plan.udp_offload.gso {
        Some(true) => LARGEST_DATAGRAM,
        _ => payload.saturating_mul(batch.unwrap_or(1)),
    };
    let (sent, room) = match (plan.kind, part) {
        (Kind::Latency, _) => (sent, room),
        (Kind::Throughput | Kind::Forward | Kind::Generate | Kind::Stack, Part::Source) => {
            (sent, 0)
        }
        (Kind::Throughput | Kind::Forward | Kind::Generate | Kind::Stack, Part::Sink) => (0, room),
    };
    (sent.max(OPENING_ROOM), room.max(OPENING_ROOM))
}

/// Size of a datagram's slot in a batch: full cache lines, with space for the opening of a flow.
/// Longer datagrams are truncated.
fn batch_room(payload: usize) -> usize {
    const CACHE_LINE: usize = 64;
    payload.max(OPENING_ROOM).next_multiple_of(CACHE_LINE)
}

/// Buffer for a datagram of any size, in bytes.
const LARGEST_DATAGRAM: usize = 1 << 16;

/// Buffer for the opening of a flow and its confirmation, in bytes.
const OPENING_ROOM: usize = 64;

type Prepared<T> = (Vec<Opened<<T as Transport>::Socket>>, Watches);

/// Pins the thread to its CPU and sets its scheduling class.
fn place(spec: &LaneSpec) -> Result<(), LaneError> {
    if let Some(cpu) = spec.cpu {
        cpu::pin(&[cpu]).map_err(|error| LaneError::Cpu(cpu, error))?;
    }
    schedule(spec.sched).map_err(|error| LaneError::Sched(spec.sched, error))
}

/// Sets the scheduling class and priority of this thread.
///
/// # Errors
/// Errors of the kernel.
pub fn schedule(sched: Sched) -> io::Result<()> {
    match sched {
        Sched::Inherited => Ok(()),
        Sched::Nice(value) => scheduling::nice(value),
        Sched::Fifo(priority) => scheduling::fifo(priority),
        Sched::RoundRobin(priority) => scheduling::round_robin(priority),
    }
}

fn make<T: Adapter>(spec: &LaneSpec) -> Result<T, LaneError> {
    let plan = &spec.plan;
    let (send_bytes, receive_bytes) = call_bytes(plan, spec.part);
    T::new(&Setup {
        wait: spec.wait,
        send_bytes,
        receive_bytes,
        batch: plan.batch.map(|batch| batch as usize),
        copies: match spec.part {
            Part::Source => Copies {
                receive: ReceiveCopy::Copied,
                ..plan.copies
            },
            Part::Sink => Copies {
                send: SendCopy::Copied,
                ..plan.copies
            },
        },
    })
    .map_err(LaneError::Open)
}

fn prepare<T: Adapter>(
    transport: &mut T,
    mut spec: LaneSpec,
    gate: &Gate,
) -> Result<Prepared<T>, LaneError> {
    if let Wait::BusyPoll { time_ns } = spec.wait {
        let time = Duration::from_nanos(time_ns.unwrap_or(BUSY_POLL_NS));
        for flow in &mut spec.flows {
            flow.options.busy_poll = Some(time);
        }
    }
    let plan = &spec.plan;
    let mut flows = Vec::with_capacity(spec.flows.len());
    let mut watches = Vec::with_capacity(spec.flows.len());
    let reopens = plan.round_trip.attachment == Attachment::Reopened;
    let mut rest = spec.flows.into_iter().peekable();
    while rest.peek().is_some() {
        // A thread that sleeps in `select` has one flow.
        let several: Vec<FlowSpec> = rest.by_ref().take(OPENED_AT_ONCE).collect();
        let sockets = open(transport, spec.wait, &several, gate, reopens)?;
        for (flow, socket) in several.into_iter().zip(sockets) {
            let reopening = reopens.then(|| reopening(&flow, plan, spec.wait));
            let socket = match (socket, flow.opening) {
                (Some(socket), _) => socket,
                (None, Opening::Adopt(fd)) => {
                    check_descriptor(spec.wait, fd.as_raw_fd())?;
                    transport
                        .adopt(fd, &flow.options)
                        .map_err(LaneError::Open)?
                }
                (None, Opening::Take(socket)) => transport
                    .take(socket, &flow.options)
                    .map_err(LaneError::Open)?,
                (None, Opening::Connect { remote, token }) => {
                    connect(transport, remote, token, &flow.options, gate, reopens)?
                }
            };
            // A socket that its thread closes must not be held open by an observer.
            if !reopens {
                watches.extend(transport.watch(socket).map(|watch| (flow.id, watch)));
            }
            flows.push(Opened {
                id: flow.id,
                socket,
                shared: flow.shared,
                pattern: flow.pattern,
                framing: flow.framing,
                reopening,
                room: Room::of(plan, spec.part, flows.is_empty()),
            });
        }
    }
    Ok((flows, watches))
}

/// Returns the options of sockets that are opened while payload moves.
fn reopening(flow: &FlowSpec, plan: &Plan, wait: Wait) -> Box<Reopening> {
    let mut options = flow.options.clone();
    let remote = match flow.opening {
        Opening::Connect { remote, .. } => {
            if relies_on_wakes(plan, wait) {
                // Two calls to set timeouts would be part of every connect.
                options.patience = Duration::ZERO;
            }
            remote
        }
        // Accepts from any address.
        Opening::Adopt(_) | Opening::Take(_) => SocketAddr::from(([0; 4], 0)),
    };
    Box::new(Reopening { remote, options })
}

/// Connects in flight per thread: with 2 x 128 of them, a round trip of 10 ms gives 25,000 connects
/// a second, and every listen queue can hold them.
const OPENED_AT_ONCE: usize = 128;

/// Opens TCP connections in parallel and sends their tokens; empty for flows that get their sockets
/// in another way.
fn open<T: Adapter>(
    transport: &mut T,
    wait: Wait,
    flows: &[FlowSpec],
    gate: &Gate,
    reopens: bool,
) -> Result<Vec<Option<T::Socket>>, LaneError> {
    let mut wanted = Vec::with_capacity(flows.len());
    for flow in flows {
        if let Opening::Connect { remote, .. } = flow.opening {
            if matches!(wait, Wait::Select { .. }) {
                // The kernel assigns the lowest free descriptor, so the flow will get the same one.
                let next = socket2::Socket::new(Domain::UNIX, Type::DGRAM, None);
                let next = next.map_err(LaneError::Open)?;
                check_descriptor(wait, next.as_raw_fd())?;
            }
            if flow.options.protocol == Protocol::Tcp && !reopens {
                wanted.push((remote, &flow.options));
            }
        }
    }
    if wanted.len() < flows.len() {
        return Ok(flows.iter().map(|_| None).collect());
    }
    if gate.is_cancelled() {
        return Err(LaneError::Cancelled);
    }
    let sockets = transport
        .connect_many(&wanted, &|| gate.is_cancelled())
        .map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => LaneError::Cancelled,
            _ => LaneError::Open(error),
        })?;
    for (flow, &socket) in flows.iter().zip(&sockets) {
        if let Opening::Connect { token, .. } = flow.opening {
            introduce(transport, socket, token, gate)?;
        }
    }
    Ok(sockets.into_iter().map(Some).collect())
}

/// First descriptor beyond the sets of `select` (FD_SETSIZE, in glibc and musl).
const SELECT_LIMIT: RawFd = 1024;

fn check_descriptor(wait: Wait, fd: RawFd) -> Result<(), LaneError> {
    if matches!(wait, Wait::Select { .. }) && fd >= SELECT_LIMIT {
        return Err(LaneError::Descriptor(fd));
    }
    Ok(())
}

/// Opens one flow and sends its token.
fn connect<T: Transport>(
    transport: &mut T,
    remote: SocketAddr,
    token: Token,
    options: &FlowOptions,
    gate: &Gate,
    is_service: bool,
) -> Result<T::Socket, LaneError> {
    if gate.is_cancelled() {
        return Err(LaneError::Cancelled);
    }
    let socket = transport
        .connect(remote, options)
        .map_err(LaneError::Open)?;
    let greeting = opening(token);
    match options.protocol {
        // A service socket belongs to one flow, and each connection to it is a request.
        Protocol::Tcp if is_service => Ok(socket),
        Protocol::Tcp => {
            introduce(transport, socket, token, gate)?;
            Ok(socket)
        }
        Protocol::Udp => {
            let give_up = clock::now() + UDP_OPENING_NS;
            while clock::now() < give_up {
                if gate.is_cancelled() {
                    return Err(LaneError::Cancelled);
                }
                // A full queue loses one of many copies; the next follows soon.
                let _ = transport.udp_send(socket, greeting.len(), |payload| {
                    payload.copy_from_slice(&greeting);
                });
                if answered(transport, socket, token).map_err(LaneError::Open)? {
                    transport.recognise(socket);
                    return Ok(socket);
                }
            }
            Err(LaneError::UdpBlocked(remote))
        }
    }
}

/// Sends the token of a flow on its connection.
fn introduce<T: Transport>(
    transport: &mut T,
    socket: T::Socket,
    token: Token,
    gate: &Gate,
) -> Result<(), LaneError> {
    let greeting = opening(token);
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
    Ok(())
}

/// Waits briefly for the confirmation of a UDP opening.
fn answered<T: Transport>(transport: &mut T, socket: T::Socket, token: Token) -> io::Result<bool> {
    let until = clock::now() + PATIENCE_NS;
    while clock::now() < until {
        transport.turn();
        match transport.udp_receive(socket, |payload, _| read_answer(payload) == Some(token)) {
            Poll::Ready(Ok(true)) => return Ok(true),
            Poll::Ready(Ok(false)) => {}
            // Port unreachable for a moment: the server may be replacing its socket.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                transport.idle(Some(clock::now() + PATIENCE_NS / 10));
            }
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => {
                transport.idle(Some(clock::now() + PATIENCE_NS / 100));
                // Nothing is measured yet. If this thread is real-time, its CPU may be the one that
                // has to make the confirmation.
                clock::sleep_until(clock::now() + GLANCE_NS);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Kind, Plan};

    use super::*;
    use crate::session::setup::flow_options;
    use crate::transport::netstack::test_stack::on_stack;

    /// Regression: two real-time threads of a spinning stack left a server on the same machine only
    /// the time of the kernel's RT throttle, and a UDP run started up to a second late.
    #[test]
    fn who_waits_for_an_opening_to_be_answered_sleeps() {
        let (heard, sleeps) = on_stack("null:", &[], |stack| {
            let plan = Plan::new(Kind::Throughput, Protocol::Udp, "10.9.0.1");
            let options = flow_options(&plan, Part::Source);
            let remote = "10.9.0.1:5201".parse().unwrap();
            let socket = stack.connect(remote, &options).unwrap();
            let before = ThreadUsage::now();
            let heard = answered(stack, socket, Token([7; 16])).unwrap();
            (heard, ThreadUsage::now().since(&before).voluntary_switches)
        });
        assert!(!heard, "no peer exists");
        assert!(sleeps >= 10, "{sleeps}");
    }
}
