//! A measuring thread: opens its flows, waits for the start, runs its workload, ends.

mod together;

pub use together::start_on;

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
use linerate_host::sys::counter::{Counted, Counters};
use linerate_host::sys::cpu::{self, ThreadUsage};
use linerate_host::sys::thread::ThreadId;
use linerate_host::sys::{descriptors, sched};
use linerate_metric::plan::{
    BUSY_POLL_NS, Copies, Direction, Kind, Plan, Protocol, ReceiveCopy, Sched, SendCopy, Wait,
};
use linerate_metric::round_trip::Attachment;
use linerate_metric::stack::StackFacts;
use linerate_stack::SocketId;
use socket2::{Domain, Type};

use crate::flow::{FlowOutcome, Part, Phase, Shared, Timeline};
use crate::pattern::Pattern;
use crate::peers::framing::Framing;
use crate::transport::calls::{CallTally, Silent, Stopwatch, Tracer};
use crate::transport::{
    Adapter, Attempts, Block, Epoll, FlowOptions, Kernel, PollCall, Select, Setup, Spin, Transport,
    Uring, Waiting, Watch,
};
use crate::workload::room::Room;
use crate::workload::{self, Lane, Opened, PATIENCE_NS, Reopening};

/// How long the opening of a UDP flow is repeated.
const UDP_OPENING_NS: Nanos = 5_000_000_000;

/// Pause between two looks for such an answer.
const GLANCE_NS: Nanos = 50_000;

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
    /// The same on our own stack.
    Take(SocketId),
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
    /// What its payload holds, where that is verified.
    pub pattern: Option<Pattern>,
    /// What stands in front of its payload.
    pub framing: Framing,
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
    /// Whether its cycles and instructions are counted: not where the processor would switch its
    /// counters for each round trip, and not where nobody would list so many threads.
    pub counts: bool,
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

    /// Waits until it opens; `None` when the run does not take place. A transport that has to be tended
    /// meanwhile is: then `tend` says so.
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
    /// How long its system calls took, where they were recorded.
    pub calls: Option<CallTally>,
    /// The scheduler's notes of the thread at its end.
    pub scheduled: Option<Scheduled>,
    /// When it ended.
    pub ended_ns: Nanos,
    /// Its calls on sockets from the start on.
    pub attempts: Option<Attempts>,
    /// Cycles and instructions from the start on, or why they were not counted.
    pub counted: Option<Result<Counted, String>>,
    /// What our own stack counted from the start on, where it moved the payload.
    pub stack: Option<Box<StackFacts>>,
    /// Files that the coordinator closes: it has them open too, and this thread may have had a
    /// table of its own.
    _counters: Option<Counters>,
}

/// A started thread.
pub struct LaneHandle {
    /// Which way its flows go.
    pub direction: Direction,
    /// What its flows do at this end.
    pub part: Part,
    /// How many there are.
    pub flows: usize,
    running: Running,
    id: Arc<OnceLock<ThreadId>>,
    /// The thread has it too, and must not be the last one to close it.
    _bell: Arc<UnixStream>,
}

/// What runs a lane.
enum Running {
    /// A thread of its own.
    Thread {
        over: Arc<AtomicBool>,
        thread: JoinHandle<LaneOutcome>,
    },
    /// The thread that owns our stack, which has other things to do before and after.
    Lent {
        over: Arc<AtomicBool>,
        outcome: mpsc::Receiver<LaneOutcome>,
    },
    /// Nothing any more.
    Joined,
}

impl LaneHandle {
    /// Wakes it from a call that it sleeps in, so that it looks whether the run goes on.
    pub fn wake(&self) {
        if let Some(id) = self.id.get().filter(|_| !self.is_finished()) {
            id.wake();
        }
    }

    /// The thread as the kernel numbers it, once it runs.
    #[must_use]
    pub fn thread_id(&self) -> Option<ThreadId> {
        self.id.get().copied()
    }

    /// Whether the thread has come to its end.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match &self.running {
            Running::Thread { over, .. } | Running::Lent { over, .. } => over.load(Acquire),
            Running::Joined => true,
        }
    }

    /// Waits for its end; later calls give nothing.
    pub fn join(&mut self) -> LaneOutcome {
        match std::mem::replace(&mut self.running, Running::Joined) {
            Running::Thread { thread, .. } => match thread.join() {
                Ok(outcome) => outcome,
                // A panic is our bug: it goes on in the thread that asked.
                Err(panic) => std::panic::resume_unwind(panic),
            },
            // A thread that died has no outcome; whoever owns it says so.
            Running::Lent { outcome, .. } => outcome.recv().unwrap_or_default(),
            Running::Joined => LaneOutcome::default(),
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
        // Said before the bell rings: whoever hears it must not find the thread on its way out, and wait on.
        let _ends = ends;
        let _ = own_id.set(ThreadId::current());
        match spec.wait {
            Wait::Block => run_kernel::<Block>(spec, &gate, ready, &done),
            Wait::Spin => run_kernel::<Spin>(spec, &gate, ready, &done),
            Wait::Poll => run_kernel::<PollCall>(spec, &gate, ready, &done),
            Wait::Select { .. } => run_kernel::<Select>(spec, &gate, ready, &done),
            Wait::Epoll => run_kernel::<Epoll>(spec, &gate, ready, &done),
            // The same calls; what differs is an option of the sockets.
            Wait::BusyPoll { .. } => run_kernel::<Block>(spec, &gate, ready, &done),
            // The checks refuse it: only our own stack waits so, and it has a thread already.
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
        // The workload keeps its memory on the heap; 10,000 threads are to fit.
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

/// Says that a lane is over, however it ended.
struct Over {
    over: Arc<AtomicBool>,
    done: Arc<UnixStream>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.over.store(true, Release);
        // Whoever listened may be gone; then nobody waits for this byte.
        let _ = io::Write::write(&mut &*self.done, &[1]);
    }
}

/// The loop is compiled with the call recorder and without.
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
    // Before there is a transport: its buffers are to lie where the thread runs.
    let made = place(&spec).and_then(|()| make::<T>(&spec));
    match made {
        Ok(mut transport) => run_on(&mut transport, spec, gate, ready, bell),
        Err(error) => {
            let _ = ready.send(Err(error));
            LaneOutcome::default()
        }
    }
}

/// As [`run_on`], on a thread that is somebody else's until now.
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
    // Once all have said so the channel closes: that is how a thread that never will is noticed.
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
            // Refused, it keeps its time-out: slower by a timer, and as right.
            let _ = transport.sleep_without_limit(flow.socket);
        }
    }
    // With a socket for each question a thread closes some that were opened for it.
    let keeps_sockets = !plan.round_trip.needs_service();
    if flows.len() <= OWN_TABLE_FLOWS
        && keeps_sockets
        && let Some(mut files) = transport.descriptors()
    {
        files.extend(counters.iter().flatten().flat_map(Counters::descriptors));
        files.push(bell.as_raw_fd());
        // Refused, it shares the table with all others: slower by two atomic operations a call.
        let _ = descriptors::own_table(&files);
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

/// Flows of a thread up to which it gets a table of open files of its own: with more of them the
/// calls are too few for each to matter.
///
/// What such a thread opens before the start and uses later belongs among the files that it keeps,
/// and is closed by the coordinator.
const OWN_TABLE_FLOWS: usize = 16;

/// What was counted so far.
fn count(counters: &Result<Counters, String>) -> Result<Counted, String> {
    let counters = counters.as_ref().map_err(Clone::clone)?;
    counters
        .read()
        .ok_or_else(|| "the processor had no counter free".to_owned())
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
    let batch = plan.batch.map(|batch| batch as usize);
    let room = match plan.protocol {
        // In a batch each has a place of its own, as large as what the plan says of them.
        Protocol::Udp if batch.is_some() => batch_room(payload).saturating_mul(batch.unwrap_or(1)),
        // Datagrams up to the largest come whole; a stream offers the room it was told to.
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

/// Room of a datagram in a batch: whole cache lines, and the opening of a flow fits too. A datagram
/// that is longer than the plan says is cut to it.
fn batch_room(payload: usize) -> usize {
    const CACHE_LINE: usize = 64;
    payload.max(OPENING_ROOM).next_multiple_of(CACHE_LINE)
}

/// Room of a datagram of any size.
const LARGEST_DATAGRAM: usize = 1 << 16;

/// Room for the opening of a flow and its answer.
const OPENING_ROOM: usize = 64;

type Prepared<T> = (Vec<Opened<<T as Transport>::Socket>>, Watches);

/// Puts the thread where it is to run.
fn place(spec: &LaneSpec) -> Result<(), LaneError> {
    if let Some(cpu) = spec.cpu {
        cpu::pin(&[cpu]).map_err(|error| LaneError::Cpu(cpu, error))?;
    }
    schedule(spec.sched).map_err(|error| LaneError::Sched(spec.sched, error))
}

/// Gives this thread a scheduling class and priority.
///
/// # Errors
/// What the kernel says.
pub fn schedule(sched: Sched) -> io::Result<()> {
    match sched {
        Sched::Inherited => Ok(()),
        Sched::Nice(value) => sched::nice(value),
        Sched::Fifo(priority) => sched::fifo(priority),
        Sched::RoundRobin(priority) => sched::round_robin(priority),
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
            // A socket that its thread closes is nobody else's to hold open.
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

/// How the sockets of a flow come and go while payload moves.
fn reopening(flow: &FlowSpec, plan: &Plan, wait: Wait) -> Box<Reopening> {
    let mut options = flow.options.clone();
    let remote = match flow.opening {
        Opening::Connect { remote, .. } => {
            if relies_on_wakes(plan, wait) {
                // Two calls to set time-outs would be a part of every opening.
                options.patience = Duration::ZERO;
            }
            remote
        }
        // Whoever connects.
        Opening::Adopt(_) | Opening::Take(_) => SocketAddr::from(([0; 4], 0)),
    };
    Box::new(Reopening { remote, options })
}

/// Connections that a thread opens side by side: with 2 x 128 of them a round trip of 10 ms opens
/// 25,000 in a second, and any listening queue holds them.
const OPENED_AT_ONCE: usize = 128;

/// Opens TCP connections side by side and says whose they are; nothing for flows that come to
/// their sockets in another way.
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
                // The kernel gives the lowest free number, and so it will to the flow.
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
        // A socket of the flow's own knows whose it is, and each connection to it is a question.
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
                // A full queue loses one copy of many; the next one is due soon.
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

/// Says on a stream whose it is.
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
            Poll::Pending => {
                transport.idle(Some(clock::now() + PATIENCE_NS / 100));
                // Nothing is measured yet, and where this thread is real-time its processor may be the one on which the
                // answer is made.
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
    use crate::transport::stack::alone::on_stack;

    /// Two real-time threads of a stack that spins left a far end on the same machine what the kernel's throttle leaves: a
    /// run over UDP began up to a second late.
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
        assert!(!heard, "nobody is there");
        assert!(sleeps >= 10, "{sleeps}");
    }
}
