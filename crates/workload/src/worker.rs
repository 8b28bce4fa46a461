//! Worker thread: opens its flows, waits for the start, runs its workload, ends.

mod netstack;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_host::processor_time::SchedStats;
use linerate_protocol::control::FlowToken;
use linerate_protocol::control::flow::{opening, read_reply};
use linerate_record::plan::{
    CopyModes, DEFAULT_BUSY_POLL_NS, Direction, Plan, ReceiveCopy, RunKind, SchedPolicy, SendCopy,
    TransportProtocol, WaitMode,
};
use linerate_record::round_trip::SocketMode;
use linerate_record::stack::StackFacts;
use linerate_stack::SocketId;
use linerate_sys::clock::Nanos;
use linerate_sys::cpu::ThreadUsage;
use linerate_sys::hardware_counters::{HardwareCounters, HardwareCounts};
use linerate_sys::thread::ThreadId;
use linerate_sys::{clock, cpu, fd_table, scheduling};
use linerate_transport::call_times::{CallStats, CallTimer, CallTracer, NoRecorder};
use linerate_transport::flow_role::FlowRole;
use linerate_transport::payload_pattern::PayloadPattern;
use linerate_transport::{
    BlockingWait, CallAttempts, EpollWait, FlowOptions, KernelTransport, MAX_IDLE_NS, PollCall,
    RunClock, SelectWait, SocketWait, SocketWatch, SpinWait, Transport, TransportSetup,
    UringTransport, WorkerTransport,
};
use socket2::{Domain, Type};

use crate::flow::{FlowEndResults, FlowShared, RunPhase};
use crate::framing::Framing;
use crate::histogram_pool::HistogramPool;
use crate::{OpenFlow, ReconnectOptions, WorkerContext};
pub use netstack::start_on_netstack;

/// Time for which the opening of a UDP flow is repeated.
const UDP_OPENING_TIMEOUT_NS: Nanos = 5_000_000_000;

/// Poll interval while an opening is unconfirmed.
const CONFIRMATION_POLL_NS: Nanos = 50_000;

/// Source of a flow's socket.
pub enum FlowOpening {
    /// Opened towards the other end.
    Connect {
        remote: SocketAddr,
        /// Token that links the flow to the control connection.
        token: FlowToken,
    },
    /// Accepted socket.
    Adopt(OwnedFd),
    /// Accepted socket of the user-space stack.
    AdoptNetstack(SocketId),
}

/// Flow to run.
pub struct FlowSpec {
    pub id: u32,
    pub opening: FlowOpening,
    pub options: FlowOptions,
    /// State shared with the coordinator.
    pub shared: Arc<FlowShared>,
    /// Payload content, where it is verified.
    pub payload_pattern: Option<PayloadPattern>,
    /// Framing in front of the payload.
    pub framing: Framing,
}

/// Worker thread to start.
pub struct WorkerSpec {
    pub plan: Arc<Plan>,
    pub direction: Direction,
    pub role: FlowRole,
    pub wait: WaitMode,
    /// CPU of the thread; `None`: chosen by the scheduler.
    pub cpu: Option<u32>,
    pub sched: SchedPolicy,
    /// Count cycles and instructions: not where each round trip would switch the counters, and not
    /// beyond the number of threads that are listed.
    pub counts_cycles: bool,
    pub flows: Vec<FlowSpec>,
}

/// Start barrier of all threads of a run, with the phase of the run.
#[derive(Default)]
pub struct StartBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
    pub phase: RunPhase,
}

#[derive(Default)]
enum BarrierState {
    #[default]
    Closed,
    Open(RunClock),
    /// The run was cancelled before its start.
    Cancelled,
}

impl StartBarrier {
    /// Starts all threads.
    pub fn start_all(&self, run_clock: RunClock) {
        self.set(BarrierState::Open(run_clock));
    }

    /// Releases all threads without starting the run.
    pub fn cancel(&self) {
        self.phase.abort();
        self.set(BarrierState::Cancelled);
    }

    /// Returns whether the run was cancelled.
    fn is_cancelled(&self) -> bool {
        self.phase.is_aborted()
    }

    fn set(&self, state: BarrierState) {
        *self.state.lock().expect("no holder panics") = state;
        self.changed.notify_all();
    }

    /// Waits for the start; `None` when the run was cancelled. Calls `poll_background` meanwhile,
    /// which returns whether the transport needs background polls.
    fn wait(&self, mut poll_background: impl FnMut() -> bool) -> Option<RunClock> {
        let mut state = self.state.lock().expect("no holder panics");
        loop {
            match *state {
                BarrierState::Open(run_clock) => return Some(run_clock),
                BarrierState::Cancelled => return None,
                BarrierState::Closed => {}
            }
            drop(state);
            let polled = poll_background();
            state = self.state.lock().expect("no holder panics");
            if !polled && matches!(*state, BarrierState::Closed) {
                state = self.changed.wait(state).expect("no holder panics");
            }
        }
    }
}

/// Cancels the run on drop: after an early return, a panic, or the end of the run.
#[derive(Default)]
pub struct CancelOnDrop(Arc<StartBarrier>);

impl CancelOnDrop {
    /// Returns the barrier.
    #[must_use]
    pub fn barrier(&self) -> &Arc<StartBarrier> {
        &self.0
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Reason why a thread could not open its flows.
#[derive(Debug)]
pub enum WorkerError {
    /// The CPU cannot be used.
    Cpu(u32, io::Error),
    /// The scheduling class cannot be set.
    Sched(SchedPolicy, io::Error),
    /// A flow cannot be opened.
    FlowOpen(io::Error),
    /// The server does not confirm the opening over UDP.
    UdpBlocked(SocketAddr),
    /// The descriptor is beyond the limit of `select`.
    Descriptor(RawFd),
    /// The run was cancelled meanwhile.
    Cancelled,
}

/// Results of a worker thread.
#[derive(Default)]
pub struct WorkerResults {
    pub flows: Vec<FlowEndResults>,
    /// CPU time and context switches from the start on.
    pub usage: ThreadUsage,
    /// Durations of its system calls, where they were recorded.
    pub calls: Option<CallStats>,
    /// Scheduler statistics of the thread at its end.
    pub scheduled: Option<SchedStats>,
    pub ended_ns: Nanos,
    /// CPU that it ran on last.
    pub cpu: Option<u32>,
    /// Socket calls from the start on.
    pub attempts: Option<CallAttempts>,
    /// Cycles and instructions from the start on, or the reason why they are missing.
    pub cycles: Option<Result<HardwareCounts, String>>,
    /// Counters of the user-space stack, where it moved the payload.
    pub stack: Option<Box<StackFacts>>,
    /// Descriptors that the coordinator must close: it has them open too, and this thread may have
    /// had a private descriptor table.
    _counters: Option<HardwareCounters>,
}

/// Started worker thread.
pub struct WorkerHandle {
    pub direction: Direction,
    pub role: FlowRole,
    /// Number of its flows.
    pub flows: usize,
    running: WorkerThread,
    id: Arc<OnceLock<ThreadId>>,
    /// Keeps the descriptor open: the worker thread must not be the last to close it.
    _wake_up: Arc<UnixStream>,
}

/// Thread that runs the worker.
enum WorkerThread {
    /// A thread of its own.
    Own {
        ended: Arc<AtomicBool>,
        thread: JoinHandle<WorkerResults>,
    },
    /// The thread of the user-space stack, which has other tasks before and after.
    Netstack {
        ended: Arc<AtomicBool>,
        results: mpsc::Receiver<WorkerResults>,
    },
    Joined,
}

impl WorkerHandle {
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
            WorkerThread::Own { ended: over, .. } | WorkerThread::Netstack { ended: over, .. } => {
                over.load(Acquire)
            }
            WorkerThread::Joined => true,
        }
    }

    /// Waits for the end of the thread and returns its results; later calls return empty ones.
    pub fn join(&mut self) -> WorkerResults {
        match std::mem::replace(&mut self.running, WorkerThread::Joined) {
            WorkerThread::Own { thread, .. } => match thread.join() {
                Ok(results) => results,
                // A panic is a bug: it continues in the caller.
                Err(panic) => std::panic::resume_unwind(panic),
            },
            // A thread that died has no results; its owner reports the reason.
            WorkerThread::Netstack { results, .. } => results.recv().unwrap_or_default(),
            WorkerThread::Joined => WorkerResults::default(),
        }
    }
}

/// Socket observers of a thread for the coordinator, by flow number.
pub type SocketWatches = Vec<(u32, SocketWatch)>;

/// Starts a thread. It reports on `ready` once its flows are open, and writes a byte to `done` at
/// its end.
///
/// # Errors
/// When the thread cannot be started.
pub fn start_worker(
    spec: WorkerSpec,
    barrier: &Arc<StartBarrier>,
    ready: mpsc::Sender<Result<SocketWatches, WorkerError>>,
    done: Arc<UnixStream>,
) -> io::Result<WorkerHandle> {
    let (direction, role, flows) = (spec.direction, spec.role, spec.flows.len());
    let barrier = Arc::clone(barrier);
    let id = Arc::new(OnceLock::new());
    let worker_id = Arc::clone(&id);
    let wake_up = Arc::clone(&done);
    let ended = Arc::new(AtomicBool::new(false));
    let end_signal = EndSignal {
        ended: Arc::clone(&ended),
        done: Arc::clone(&done),
    };
    let body = move || {
        // `over` is set before the byte is written: a coordinator that is woken must see the thread
        // as ended.
        let _end_signal = end_signal;
        let _ = worker_id.set(ThreadId::current());
        match spec.wait {
            WaitMode::Block => run_kernel::<BlockingWait>(spec, &barrier, ready, &done),
            WaitMode::Spin => run_kernel::<SpinWait>(spec, &barrier, ready, &done),
            WaitMode::Poll => run_kernel::<PollCall>(spec, &barrier, ready, &done),
            WaitMode::Select { .. } => run_kernel::<SelectWait>(spec, &barrier, ready, &done),
            WaitMode::Epoll => run_kernel::<EpollWait>(spec, &barrier, ready, &done),
            // Blocking calls; busy polling is an option of the sockets.
            WaitMode::BusyPoll { .. } => run_kernel::<BlockingWait>(spec, &barrier, ready, &done),
            // Rejected by the checks: only the user-space stack polls at intervals, on its own
            // thread.
            WaitMode::Interval { .. } => {
                let _ = ready.send(Err(WorkerError::FlowOpen(
                    io::ErrorKind::Unsupported.into(),
                )));
                WorkerResults::default()
            }
            WaitMode::IoUring if spec.plan.calls => {
                run_worker::<UringTransport<CallTimer>>(spec, &barrier, ready, &done)
            }
            WaitMode::IoUring => {
                run_worker::<UringTransport<NoRecorder>>(spec, &barrier, ready, &done)
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name(match role {
            FlowRole::Sender => "source".to_owned(),
            FlowRole::Receiver => "sink".to_owned(),
        })
        // The workload keeps its memory on the heap: 10,000 threads must fit.
        .stack_size(256 << 10)
        .spawn(body)?;
    Ok(WorkerHandle {
        direction,
        role,
        flows,
        running: WorkerThread::Own { ended, thread },
        id,
        _wake_up: wake_up,
    })
}

/// Signals the end of a worker on drop.
struct EndSignal {
    ended: Arc<AtomicBool>,
    done: Arc<UnixStream>,
}

impl Drop for EndSignal {
    fn drop(&mut self) {
        self.ended.store(true, Release);
        // The receiver may be closed; then the byte is not needed.
        let _ = io::Write::write(&mut &*self.done, &[1]);
    }
}

/// Runs a worker over kernel sockets; compiled with and without the call recorder.
fn run_kernel<W: SocketWait>(
    spec: WorkerSpec,
    barrier: &StartBarrier,
    ready: mpsc::Sender<Result<SocketWatches, WorkerError>>,
    wake_up: &UnixStream,
) -> WorkerResults {
    if spec.plan.trace {
        run_worker::<KernelTransport<W, CallTracer>>(spec, barrier, ready, wake_up)
    } else if spec.plan.calls {
        run_worker::<KernelTransport<W, CallTimer>>(spec, barrier, ready, wake_up)
    } else {
        run_worker::<KernelTransport<W, NoRecorder>>(spec, barrier, ready, wake_up)
    }
}

fn run_worker<T: WorkerTransport>(
    spec: WorkerSpec,
    barrier: &StartBarrier,
    ready: mpsc::Sender<Result<SocketWatches, WorkerError>>,
    wake_up: &UnixStream,
) -> WorkerResults {
    // Pinned before the transport exists, so that its buffers are local to the CPU (NUMA).
    let transport_result = pin_and_schedule(&spec).and_then(|()| new_transport::<T>(&spec));
    match transport_result {
        Ok(mut transport) => run_on_transport(&mut transport, spec, barrier, ready, wake_up),
        Err(error) => {
            let _ = ready.send(Err(error));
            WorkerResults::default()
        }
    }
}

/// Runs a worker as [`run_on_transport`] does, on the thread of the user-space stack.
fn run_on_netstack_thread<T: WorkerTransport>(
    transport: &mut T,
    spec: WorkerSpec,
    barrier: &StartBarrier,
    ready: mpsc::Sender<Result<SocketWatches, WorkerError>>,
    wake_up: &UnixStream,
) -> WorkerResults {
    match pin_and_schedule(&spec) {
        Ok(()) => run_on_transport(transport, spec, barrier, ready, wake_up),
        Err(error) => {
            let _ = ready.send(Err(error));
            WorkerResults::default()
        }
    }
}

fn run_on_transport<T: WorkerTransport>(
    transport: &mut T,
    spec: WorkerSpec,
    barrier: &StartBarrier,
    ready: mpsc::Sender<Result<SocketWatches, WorkerError>>,
    wake_up: &UnixStream,
) -> WorkerResults {
    let plan = Arc::clone(&spec.plan);
    let (direction, role, wait) = (spec.direction, spec.role, spec.wait);
    let counters = spec
        .counts_cycles
        .then(HardwareCounters::open_for_current_thread);
    let flows = match open_flows(transport, spec, barrier) {
        Ok((flows, watches)) => {
            let _ = ready.send(Ok(watches));
            flows
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return WorkerResults::default();
        }
    };
    // The channel closes once all threads have reported: this detects a thread that dies before.
    drop(ready);
    let Some(run_clock) = barrier.wait(|| transport.poll_background()) else {
        return WorkerResults::default();
    };
    let worker = WorkerContext {
        plan: &plan,
        direction,
        role,
        run_clock,
        phase: &barrier.phase,
    };
    if relies_on_wakes(&plan, wait) {
        for flow in &flows {
            // On an error the timeout stays: correct, but slower by a timer per call.
            let _ = transport.clear_receive_timeout(flow.socket);
        }
    }
    // With one socket per request, a thread closes sockets that were opened for it.
    let single_socket = !plan.round_trip.needs_flow_socket();
    if flows.len() <= PRIVATE_TABLE_MAX_FLOWS
        && single_socket
        && let Some(mut files) = transport.descriptors()
    {
        files.extend(
            counters
                .iter()
                .flatten()
                .flat_map(HardwareCounters::descriptors),
        );
        files.push(wake_up.as_raw_fd());
        // On an error the table stays shared, which costs two atomic operations per call.
        let _ = fd_table::unshare_table(&files);
    }
    let counted_before = counters.as_ref().map(read_cycles);
    let attempts_before = transport.call_attempts();
    transport.start(&run_clock);
    let before = ThreadUsage::read();
    let flows = crate::run(&worker, transport, flows);
    let usage = ThreadUsage::read().since(&before);
    let ended_ns = clock::now();
    let attempts = transport.call_attempts().zip(attempts_before);
    let attempts = attempts.map(|(now, before)| now.since(&before));
    let counted = counters.as_ref().map(read_cycles).zip(counted_before);
    WorkerResults {
        flows,
        calls: transport.call_stats(),
        stack: transport.netstack_facts(),
        usage,
        scheduled: SchedStats::read(ThreadId::current()),
        ended_ns,
        cpu: Some(cpu::current()),
        attempts,
        cycles: counted.map(|(now, before)| {
            let (now, before) = (now?, before?);
            Ok(HardwareCounts {
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
const PRIVATE_TABLE_MAX_FLOWS: usize = 16;

/// Reads the hardware counters.
fn read_cycles(counters: &Result<HardwareCounters, String>) -> Result<HardwareCounts, String> {
    let counters = counters.as_ref().map_err(Clone::clone)?;
    counters
        .read()
        .ok_or_else(|| "no hardware counter was free".to_owned())
}

/// Shortest response timeout for which the coordinator's wake-ups are frequent enough.
const MIN_TIMEOUT_FOR_WAKES_NS: u64 = 500_000_000;

/// Returns whether threads sleep without a timeout of their own, and are woken by the coordinator.
#[must_use]
pub fn relies_on_wakes(plan: &Plan, wait: WaitMode) -> bool {
    let wakes_suffice = plan
        .response_timeout_ns
        .is_some_and(|timeout| timeout >= MIN_TIMEOUT_FOR_WAKES_NS);
    plan.kind == RunKind::Latency && wait == WaitMode::Block && wakes_suffice
}

/// Returns the buffer sizes for send and receive calls of a thread, in bytes. A thread that only
/// sends has no receive buffer, and vice versa: with thousands of threads, these buffers are most
/// of their memory.
pub fn call_buffer_bytes(plan: &Plan, role: FlowRole) -> (usize, usize) {
    let payload = plan.payload_bytes as usize;
    let batch = plan.batch.map(|batch| batch as usize);
    let receive_bytes = match plan.protocol {
        // In a batch each datagram has a slot of its own, of the size in the plan.
        TransportProtocol::Udp if batch.is_some() => {
            batch_slot_bytes(payload).saturating_mul(batch.unwrap_or(1))
        }
        // Datagrams up to the largest are received completely; a stream gets the requested size.
        TransportProtocol::Udp => payload.max(DATAGRAM_BUFFER_BYTES),
        TransportProtocol::Tcp => plan.receive_bytes.unwrap_or(plan.payload_bytes) as usize,
    };
    let send_bytes = match plan.udp_offload.gso {
        Some(true) => DATAGRAM_BUFFER_BYTES,
        _ => payload.saturating_mul(batch.unwrap_or(1)),
    };
    let (send_bytes, receive_bytes) = match (plan.kind, role) {
        (RunKind::Latency, _) => (send_bytes, receive_bytes),
        (
            RunKind::Throughput | RunKind::Forward | RunKind::Generate | RunKind::Stack,
            FlowRole::Sender,
        ) => (send_bytes, 0),
        (
            RunKind::Throughput | RunKind::Forward | RunKind::Generate | RunKind::Stack,
            FlowRole::Receiver,
        ) => (0, receive_bytes),
    };
    (
        send_bytes.max(OPENING_BUFFER_BYTES),
        receive_bytes.max(OPENING_BUFFER_BYTES),
    )
}

/// Size of a datagram's slot in a batch: full cache lines, with space for the opening of a flow.
/// Longer datagrams are truncated.
fn batch_slot_bytes(payload: usize) -> usize {
    const CACHE_LINE: usize = 64;
    payload
        .max(OPENING_BUFFER_BYTES)
        .next_multiple_of(CACHE_LINE)
}

/// Buffer for a datagram of any size, in bytes.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 16;

/// Buffer for the opening of a flow and its confirmation, in bytes.
const OPENING_BUFFER_BYTES: usize = 64;

type OpenedFlows<T> = (Vec<OpenFlow<<T as Transport>::Socket>>, SocketWatches);

/// Pins the thread to its CPU and sets its scheduling class.
fn pin_and_schedule(spec: &WorkerSpec) -> Result<(), WorkerError> {
    if let Some(cpu) = spec.cpu {
        cpu::pin(&[cpu]).map_err(|error| WorkerError::Cpu(cpu, error))?;
    }
    scheduling::apply_policy(spec.sched).map_err(|error| WorkerError::Sched(spec.sched, error))
}

fn new_transport<T: WorkerTransport>(spec: &WorkerSpec) -> Result<T, WorkerError> {
    let plan = &spec.plan;
    let (send_bytes, receive_bytes) = call_buffer_bytes(plan, spec.role);
    T::new(&TransportSetup {
        wait: spec.wait,
        send_bytes,
        receive_bytes,
        batch: plan.batch.map(|batch| batch as usize),
        copies: match spec.role {
            FlowRole::Sender => CopyModes {
                receive: ReceiveCopy::Copied,
                ..plan.copies
            },
            FlowRole::Receiver => CopyModes {
                send: SendCopy::Copied,
                ..plan.copies
            },
        },
    })
    .map_err(WorkerError::FlowOpen)
}

fn open_flows<T: WorkerTransport>(
    transport: &mut T,
    mut spec: WorkerSpec,
    barrier: &StartBarrier,
) -> Result<OpenedFlows<T>, WorkerError> {
    if let WaitMode::BusyPoll { time_ns } = spec.wait {
        let time = Duration::from_nanos(time_ns.unwrap_or(DEFAULT_BUSY_POLL_NS));
        for flow in &mut spec.flows {
            flow.options.busy_poll = Some(time);
        }
    }
    let plan = &spec.plan;
    let mut flows = Vec::with_capacity(spec.flows.len());
    let mut watches = Vec::with_capacity(spec.flows.len());
    let reopens = plan.round_trip.socket_mode == SocketMode::Reopened;
    let mut remaining = spec.flows.into_iter().peekable();
    while remaining.peek().is_some() {
        // A thread that sleeps in `select` has one flow.
        let chunk: Vec<FlowSpec> = remaining.by_ref().take(MAX_PARALLEL_CONNECTS).collect();
        let sockets = connect_all(transport, spec.wait, &chunk, barrier, reopens)?;
        for (flow, socket) in chunk.into_iter().zip(sockets) {
            let reopening = reopens.then(|| reopen_options(&flow, plan, spec.wait));
            let socket = match (socket, flow.opening) {
                (Some(socket), _) => socket,
                (None, FlowOpening::Adopt(fd)) => {
                    check_descriptor(spec.wait, fd.as_raw_fd())?;
                    transport
                        .adopt(fd, &flow.options)
                        .map_err(WorkerError::FlowOpen)?
                }
                (None, FlowOpening::AdoptNetstack(socket)) => transport
                    .adopt_netstack(socket, &flow.options)
                    .map_err(WorkerError::FlowOpen)?,
                (None, FlowOpening::Connect { remote, token }) => {
                    open_flow(transport, remote, token, &flow.options, barrier, reopens)?
                }
            };
            // A socket that its thread closes must not be held open by an observer.
            if !reopens {
                watches.extend(transport.watch(socket).map(|watch| (flow.id, watch)));
            }
            flows.push(OpenFlow {
                id: flow.id,
                socket,
                shared: flow.shared,
                pattern: flow.payload_pattern,
                framing: flow.framing,
                reconnect: reopening,
                histograms: HistogramPool::for_flow(plan, spec.role, flows.is_empty()),
            });
        }
    }
    Ok((flows, watches))
}

/// Returns the options of sockets that are opened while payload moves.
fn reopen_options(flow: &FlowSpec, plan: &Plan, wait: WaitMode) -> Box<ReconnectOptions> {
    let mut options = flow.options.clone();
    let remote = match flow.opening {
        FlowOpening::Connect { remote, .. } => {
            if relies_on_wakes(plan, wait) {
                // Two calls to set timeouts would be part of every connect.
                options.timeout = Duration::ZERO;
            }
            remote
        }
        // Accepts from any address.
        FlowOpening::Adopt(_) | FlowOpening::AdoptNetstack(_) => SocketAddr::from(([0; 4], 0)),
    };
    Box::new(ReconnectOptions { remote, options })
}

/// Connects in flight per thread: with 2 x 128 of them, a round trip of 10 ms gives 25,000 connects
/// a second, and every listen queue can hold them.
const MAX_PARALLEL_CONNECTS: usize = 128;

/// Opens TCP connections in parallel and sends their tokens; empty for flows that get their sockets
/// in another way.
fn connect_all<T: WorkerTransport>(
    transport: &mut T,
    wait: WaitMode,
    flows: &[FlowSpec],
    barrier: &StartBarrier,
    reopens: bool,
) -> Result<Vec<Option<T::Socket>>, WorkerError> {
    let mut targets = Vec::with_capacity(flows.len());
    for flow in flows {
        if let FlowOpening::Connect { remote, .. } = flow.opening {
            if matches!(wait, WaitMode::Select { .. }) {
                // The kernel assigns the lowest free descriptor, so the flow will get the same one.
                let probe = socket2::Socket::new(Domain::UNIX, Type::DGRAM, None);
                let probe = probe.map_err(WorkerError::FlowOpen)?;
                check_descriptor(wait, probe.as_raw_fd())?;
            }
            if flow.options.protocol == TransportProtocol::Tcp && !reopens {
                targets.push((remote, &flow.options));
            }
        }
    }
    if targets.len() < flows.len() {
        return Ok(flows.iter().map(|_| None).collect());
    }
    if barrier.is_cancelled() {
        return Err(WorkerError::Cancelled);
    }
    let sockets = transport
        .connect_many(&targets, &|| barrier.is_cancelled())
        .map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => WorkerError::Cancelled,
            _ => WorkerError::FlowOpen(error),
        })?;
    for (flow, &socket) in flows.iter().zip(&sockets) {
        if let FlowOpening::Connect { token, .. } = flow.opening {
            send_token(transport, socket, token, barrier)?;
        }
    }
    Ok(sockets.into_iter().map(Some).collect())
}

/// First descriptor beyond the sets of `select` (FD_SETSIZE, in glibc and musl).
const SELECT_FD_LIMIT: RawFd = 1024;

fn check_descriptor(wait: WaitMode, fd: RawFd) -> Result<(), WorkerError> {
    if matches!(wait, WaitMode::Select { .. }) && fd >= SELECT_FD_LIMIT {
        return Err(WorkerError::Descriptor(fd));
    }
    Ok(())
}

/// Opens one flow and sends its token.
fn open_flow<T: Transport>(
    transport: &mut T,
    remote: SocketAddr,
    token: FlowToken,
    options: &FlowOptions,
    barrier: &StartBarrier,
    is_service: bool,
) -> Result<T::Socket, WorkerError> {
    if barrier.is_cancelled() {
        return Err(WorkerError::Cancelled);
    }
    let socket = transport
        .connect(remote, options)
        .map_err(WorkerError::FlowOpen)?;
    let opening_bytes = opening(token);
    match options.protocol {
        // A service socket belongs to one flow, and each connection to it is a request.
        TransportProtocol::Tcp if is_service => Ok(socket),
        TransportProtocol::Tcp => {
            send_token(transport, socket, token, barrier)?;
            Ok(socket)
        }
        TransportProtocol::Udp => {
            let deadline_ns = clock::now() + UDP_OPENING_TIMEOUT_NS;
            while clock::now() < deadline_ns {
                if barrier.is_cancelled() {
                    return Err(WorkerError::Cancelled);
                }
                // A full queue loses one of many copies; the next follows soon.
                let _ = transport.udp_send(socket, opening_bytes.len(), |payload| {
                    payload.copy_from_slice(&opening_bytes);
                });
                if is_confirmed(transport, socket, token).map_err(WorkerError::FlowOpen)? {
                    transport.connect_to_last_sender(socket);
                    return Ok(socket);
                }
            }
            Err(WorkerError::UdpBlocked(remote))
        }
    }
}

/// Sends the token of a flow on its connection.
fn send_token<T: Transport>(
    transport: &mut T,
    socket: T::Socket,
    token: FlowToken,
    barrier: &StartBarrier,
) -> Result<(), WorkerError> {
    let opening_bytes = opening(token);
    let mut sent = 0;
    while sent < opening_bytes.len() {
        let remaining = &opening_bytes[sent..];
        let sent_now = transport.tcp_send(socket, remaining.len(), |payload| {
            payload.copy_from_slice(&remaining[..payload.len()]);
        });
        match sent_now {
            Poll::Ready(sent_now) => sent += sent_now.map_err(WorkerError::FlowOpen)?,
            Poll::Pending if barrier.is_cancelled() => return Err(WorkerError::Cancelled),
            Poll::Pending => transport.idle(None),
        }
    }
    Ok(())
}

/// Waits briefly for the confirmation of a UDP opening.
fn is_confirmed<T: Transport>(
    transport: &mut T,
    socket: T::Socket,
    token: FlowToken,
) -> io::Result<bool> {
    let deadline_ns = clock::now() + MAX_IDLE_NS;
    while clock::now() < deadline_ns {
        transport.poll();
        match transport.udp_receive(socket, |payload, _| read_reply(payload) == Some(token)) {
            Poll::Ready(Ok(true)) => return Ok(true),
            Poll::Ready(Ok(false)) => {}
            // Port unreachable for a moment: the server may be replacing its socket.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                transport.idle(Some(clock::now() + MAX_IDLE_NS / 10));
            }
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => {
                transport.idle(Some(clock::now() + MAX_IDLE_NS / 100));
                // Nothing is measured yet. If this thread is real-time, its CPU may be the one that
                // has to make the confirmation.
                clock::sleep_until(clock::now() + CONFIRMATION_POLL_NS);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Plan, RunKind};
    use linerate_transport::flow_options::flow_options;
    use linerate_transport::test_support::run_on_stack;

    use super::*;
    /// Regression: two real-time threads of a spinning stack left a server on the same machine only
    /// the time of the kernel's RT throttle, and a UDP run started up to a second late.
    #[test]
    fn waiting_for_a_confirmation_sleeps() {
        let (confirmed, sleeps) = run_on_stack("null:", &[], |stack| {
            let plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "10.9.0.1");
            let options = flow_options(&plan, FlowRole::Sender);
            let remote = "10.9.0.1:5201".parse().unwrap();
            let socket = stack.connect(remote, &options).unwrap();
            let before = ThreadUsage::read();
            let confirmed = is_confirmed(stack, socket, FlowToken([7; 16])).unwrap();
            (
                confirmed,
                ThreadUsage::read().since(&before).voluntary_switches,
            )
        });
        assert!(!confirmed, "no peer exists");
        assert!(sleeps >= 10, "{sleeps}");
    }
}
