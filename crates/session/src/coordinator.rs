//! Coordinator of one end of a run, from the start to the exchange of results.
//!
//! Both ends do the same here: they keep the time, report intervals, send their totals and exchange
//! results. The threads that move payload are [`worker`](linerate_workload::worker)s; their results
//! become figures in [`result_builder`](crate::result_builder).
//!
//! A run ends here, in one of these ways:
//!
//! | reason | phase of its threads |
//! |---|---|
//! | planned time or amount | [ending](linerate_workload::flow::RunPhase::end): receivers drain payload in flight |
//! | Ctrl-C, or a limit of the server | [interrupted](linerate_workload::flow::RunPhase::interrupt): as above, with a short drain time |
//! | the peer is silent or has gone | [aborted](linerate_workload::flow::RunPhase::abort); the record has the figures until then |

mod control_channel;
mod exchange;
mod interval;
mod send_queue;

use std::collections::BTreeMap;
use std::io;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_host::processor_time::{
    machine_time_since, processor_times_since, read_machine_time, read_processor_times,
};
use linerate_host::snapshot::cpu_quota::read_cpu_throttling;
use linerate_host::steal::StealTicks;
use linerate_protocol::control::{EndResults, StopRun as StopFrame};
use linerate_record::cost::{MachineTime, ProcessorTime};
use linerate_record::event::EventKind;
use linerate_record::facts::{HostFacts, Role};
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, Plan, RunKind, SchedPolicy, TransportProtocol};
use linerate_record::record::{Caveat, Interval};
use linerate_record::throttling::CpuThrottling;
use linerate_sys::clock::Nanos;
use linerate_sys::cpu::ThreadUsage;
use linerate_sys::readiness::Readiness;
use linerate_sys::scheduling::PriorityBoost;
use linerate_sys::socket::TcpInfo;
use linerate_sys::thread::install_wake_handler;
use linerate_sys::{clock, readiness, scheduling};
use linerate_transport::call_times::{CallStats, merge_call_stats};
use linerate_transport::flow_role::FlowRole;
use linerate_transport::stack_thread::{stack_caveats, thread_schedule};
use linerate_transport::{RunClock, SocketWatch};
use linerate_workload::flow::{FlowEndResults, RunPhase};
use linerate_workload::timestamps::{TimestampLog, TimestampPass};
use linerate_workload::worker::WorkerHandle;

use self::exchange::ExchangeState;
use self::send_queue::SendQueue;
use crate::error::SessionError;
use crate::flow_handle::{CounterReading, FlowHandle};
use crate::flow_memory::FlowMemory;
use crate::interval_series::MergedSeries;
use crate::loss::{CounterSnapshot, netstack_counters};
use crate::result_builder::ResultBuilder;
use crate::setup::ReadyWorkers;
use crate::tcp_info_sums::TcpSums;
use crate::worker_costs::WorkerCosts;
pub use control_channel::ControlChannel;

/// Longest sleep of the coordinator: the delay until Ctrl-C is noticed.
const STOP_POLL_NS: Nanos = 250_000_000;

/// Time without an acknowledgement of a stream, besides the round trip, from which the run says so:
/// three readings, the last a second after the first. A retransmission after its first time-outs (0.2 and
/// 0.4 s on a short path) takes less.
const PEER_STALL_NS: Nanos = 3 * send_queue::READ_INTERVAL_NS / 2;

/// Drain time: longest wait of a receiver for payload in flight, in a run that ends by time.
const DRAIN_TIMEOUT_NS: Nanos = 3_000_000_000;

/// Time without progress after its end at which a run is aborted.
const STALL_TIMEOUT_NS: Nanos = 10_000_000_000;

/// Longest wait for the other end's results, even while frames or payload arrive: a receiver may
/// have to drain the buffers of the path, 4 MB at 64 kb/s.
pub(crate) const MAX_RESULT_WAIT_NS: Nanos = 600_000_000_000;

/// Time after the start in which rejected datagrams (ICMP port unreachable) abort the run.
const REJECTION_WINDOW_NS: Nanos = 3_000_000_000;

/// Longest wait of an interval for its requesting thread, or for the other end's half.
const INTERVAL_GRACE_NS: Nanos = 150_000_000;

/// Time after the start of the first memory sample: all flows have their buffers by then.
const MEMORY_SAMPLE_DELAY_NS: Nanos = 200_000_000;

/// Interval of progress checks of request/response flows.
const WAKE_INTERVAL_NS: Nanos = 200_000_000;

/// The interval once the run is to end: a wake-up just before a thread sleeps is lost.
const WAKE_INTERVAL_AT_END_NS: Nanos = 10_000_000;

/// Poll interval while datagrams that were sent wait below their sockets: where the other end counts
/// until its end message, that time is part of its result.
const SEND_QUEUE_POLL_NS: Nanos = 1_000_000;

/// Lower bound per thread of the interval between two wake-ups of all threads. One wake-up takes
/// some 10 us of CPU time on the 2-core VM, at either side of the signal. Without this bound,
/// hundreds of threads that are woken whenever one of them ends would do nothing else.
const WAKE_INTERVAL_PER_THREAD_NS: Nanos = 100_000;

/// Coordinator of one end of a run, ready to start.
pub struct Coordinator<'a> {
    pub role: Role,
    pub plan: Arc<Plan>,
    pub host: HostFacts,
    pub control: &'a mut dyn ControlChannel,
    pub ready: ReadyWorkers,
    /// Memory of the process before the flows were opened.
    pub memory: FlowMemory,
    /// Set by Ctrl-C.
    pub stop_requested: &'a AtomicBool,
    /// Callback for events.
    pub emit: &'a mut dyn FnMut(EventKind),
    /// Warnings about the figures that are known before the start.
    pub caveats: Vec<Caveat>,
    /// This end measures steal time; of two ends on one machine, one does.
    pub measures_steal: bool,
    /// Reasons where timestamping is less than requested.
    pub timestamp_warnings: Vec<String>,
    /// Loss counters of this host.
    pub local_counters: CounterSnapshot,
    /// Longest run that this end permits, measured from its start, with the warning for a run that
    /// was stopped by it; `None`: no limit.
    pub time_limit: Option<(Nanos, Caveat)>,
}

/// Results of a run at one end.
pub struct RunResults {
    /// Results of this end.
    pub local: EndResults,
    /// Results of the other end; `None` when it was lost before.
    pub peer: Option<EndResults>,
    /// Intervals, both halves joined.
    pub intervals: Vec<Interval>,
    /// Number of intervals beyond the storage limit.
    pub intervals_omitted: u64,
    /// Timestamps of both ends, where they were requested.
    pub timestamps: Option<Box<TimestampPass>>,
    /// Stopped early by a user at either end.
    pub interrupted: bool,
    /// Time from which this end counted.
    pub counted_from_ns: Nanos,
    /// A flow of this end broke because the other end has no open port for it.
    pub connection_refused: bool,
    /// Error that ended the run before the exchange of results.
    pub failure: Option<SessionError>,
}

struct RunState<'a> {
    coordinator: Coordinator<'a>,
    run_clock: RunClock,
    /// Time when senders stop; `None` when an amount ends the run.
    end_ns: Option<Nanos>,
    /// Counters by flow at the start of counting, after the omitted time.
    baseline: BTreeMap<u32, CounterReading>,
    counted_from_ns: Nanos,
    has_baseline: bool,
    series: MergedSeries,
    /// Counters by direction at the end of the last interval.
    last_readings: BTreeMap<Direction, CounterReading>,
    /// Counters by flow at the same time, where the series has them.
    last_flow_readings: BTreeMap<u32, CounterReading>,
    /// Last TCP_INFO sums by direction, with their time.
    tcp_sums: BTreeMap<Direction, (TcpSums, Nanos)>,
    /// Start of the running interval on the grid; `interval_start_ns` is the real one.
    slot_start_ns: Nanos,
    interval_start_ns: Nanos,
    interval_number: u64,
    exchange: ExchangeState,
    finished_flows: Vec<FlowEndResults>,
    /// Figures of the other end's flows that arrived before its results.
    peer_figures: Vec<linerate_protocol::control::FlowFigures>,
    thread_usage: ThreadUsage,
    /// Durations of all system calls, where they are recorded.
    call_tally: Option<CallStats>,
    thread_costs: WorkerCosts,
    /// CPU time of the machine at the start.
    machine_at_start: MachineCounters,
    /// CPU time of the machine when the last thread ended: later time is not part of the run.
    machine_at_end: Option<MachineCounters>,
    /// End time of the last thread.
    workers_ended_ns: Nanos,
    steal_ticks: Option<StealTicks>,
    /// The memory of the flows was sampled.
    memory_sampled: bool,
    /// Time of the last progress check; `last_calls` has the flows' counters then.
    progress_checked_ns: Nanos,
    /// Time when this end was requested to stop.
    stop_requested_ns: Option<Nanos>,
    last_calls: Vec<u64>,
    /// Queue below the sockets that this end sends on.
    send_queue: SendQueue,
    /// Bytes that arrived here, or responses.
    arrived: u64,
    /// Every thread was woken for the end of the run.
    woken_at_end: bool,
}

/// Counters of the machine's CPU time since boot.
#[derive(Clone)]
struct MachineCounters {
    machine: Option<MachineTime>,
    processors: Vec<ProcessorTime>,
    throttling: Option<CpuThrottling>,
}

impl MachineCounters {
    fn read() -> Self {
        Self {
            machine: read_machine_time(),
            processors: read_processor_times(),
            throttling: read_cpu_throttling(),
        }
    }
}

impl Coordinator<'_> {
    /// Returns the phase of the threads.
    fn phase(&self) -> &RunPhase {
        &self.ready.cancel_guard.barrier().phase
    }

    /// Starts the threads, coordinates the run and exchanges results.
    ///
    /// A failure is returned in [`RunResults::failure`], together with the figures until then.
    pub fn run(self) -> RunResults {
        let start_ns = clock::now();
        let plan = Arc::clone(&self.plan);
        let run_clock = RunClock {
            start_ns,
            count_from_ns: start_ns.saturating_add(plan.omit_ns),
            interval_ns: plan.interval_ns,
            trace_stop_call_ns: plan.trace_on_ns,
        };
        // Without it, a sleeping thread notices the end only when data arrives.
        let _ = install_wake_handler();
        // Real-time threads that spin on all CPUs would starve the coordinator, which has to end
        // them.
        let sched = match self.role {
            Role::Client => plan.sched.client,
            Role::Server => plan.sched.server,
        };
        // With `chrt -f 10 linerate …` all threads have the same priority, so spinning ones would
        // not yield either.
        let inherited_priority =
            (sched == SchedPolicy::Inherited).then(scheduling::current_real_time_priority);
        // Threads of the user-space stack have a class of their own.
        let netstack = self.host.stack.as_deref();
        let _priority_guard = (sched.real_time_priority())
            .or_else(|| inherited_priority.flatten())
            .max(netstack.and_then(thread_schedule::real_time_priority))
            .and_then(PriorityBoost::above);
        let threads = WorkerCosts::new(&self.ready.workers, start_ns);
        let machine = MachineCounters::read();
        self.ready.cancel_guard.barrier().start_all(run_clock);
        let mut run = RunState {
            run_clock,
            end_ns: plan
                .duration_ns
                .map(|duration| run_clock.count_from_ns.saturating_add(duration)),
            baseline: BTreeMap::new(),
            counted_from_ns: start_ns,
            has_baseline: plan.omit_ns == 0,
            series: MergedSeries::default(),
            last_readings: BTreeMap::new(),
            last_flow_readings: BTreeMap::new(),
            tcp_sums: BTreeMap::new(),
            slot_start_ns: start_ns,
            interval_start_ns: start_ns,
            interval_number: 0,
            exchange: ExchangeState {
                progress: (0, start_ns),
                ..ExchangeState::default()
            },
            finished_flows: Vec::new(),
            peer_figures: Vec::new(),
            thread_usage: ThreadUsage::default(),
            call_tally: None,
            thread_costs: threads,
            machine_at_start: machine,
            machine_at_end: None,
            workers_ended_ns: start_ns,
            steal_ticks: self.measures_steal.then(StealTicks::read).flatten(),
            memory_sampled: false,
            progress_checked_ns: start_ns,
            stop_requested_ns: None,
            last_calls: Vec::new(),
            send_queue: SendQueue::default(),
            arrived: 0,
            woken_at_end: false,
            coordinator: self,
        };
        let failure = run.run_loop().err();
        if failure.is_none() && run.coordinator.role == Role::Server {
            run.wait_for_farewell();
        }
        run.finish(failure)
    }
}

/// Longest wait for the other end's results, even while frames arrive.
#[derive(Clone, Copy, Debug)]
struct ResultTimeout {
    /// End of the run by time: payload in flight arrives soon after it, or never.
    end_ns: Option<Nanos>,
    /// Time of the last progress: payload moved at this end, or its send queue becomes empty (which
    /// may be in the future).
    moved_ns: Nanos,
    /// Time when this end was requested to stop.
    stop_requested_ns: Option<Nanos>,
}

impl ResultTimeout {
    /// Returns the deadline for an end that sent its own results at `sent_ns`, on a path whose queues
    /// take `path_ns`.
    fn deadline_ns(self, sent_ns: Nanos, path_ns: Nanos) -> Nanos {
        let deadline_ns = match self.end_ns {
            Some(end_ns) => sent_ns
                .max(end_ns)
                .max(self.moved_ns)
                .saturating_add(STALL_TIMEOUT_NS + DRAIN_TIMEOUT_NS + path_ns)
                .min(sent_ns.max(end_ns).saturating_add(MAX_RESULT_WAIT_NS)),
            None => sent_ns.saturating_add(MAX_RESULT_WAIT_NS),
        };
        match self.stop_requested_ns {
            Some(stop_ns) => deadline_ns.min(sent_ns.max(stop_ns) + 2 * DRAIN_TIMEOUT_NS),
            None => deadline_ns,
        }
    }
}

impl RunState<'_> {
    fn run_loop(&mut self) -> Result<(), SessionError> {
        loop {
            self.receive_frames()?;
            let now = clock::now();
            self.handle_time(now)?;
            self.collect_finished();
            self.send_pending(now)?;
            if self.exchange.local_results.is_some() && self.exchange.peer_results.is_some() {
                return Ok(());
            }
            let wake_up_ns = self.next_wake_up_ns(now);
            if self.exchange.peer_closed {
                let timeout = Duration::from_nanos(wake_up_ns.saturating_sub(now));
                let has_waited =
                    readiness::poll(&self.coordinator.ready.done, Readiness::Receive, timeout);
                has_waited.map_err(|error| SessionError::system("poll", error))?;
            } else {
                self.coordinator.control.send_heartbeat()?;
                self.coordinator.control.flush()?;
                self.coordinator
                    .control
                    .wait(Some(self.coordinator.ready.done.as_fd()), wake_up_ns)?;
            }
            // The bytes only wake the poll; the thread handles show which thread ended.
            let _ = (&self.coordinator.ready.done).read(&mut [0; 64]);
        }
    }

    /// Returns the time of the next action that no event triggers.
    fn next_wake_up_ns(&self, now: Nanos) -> Nanos {
        let mut wake_up_ns = now + STOP_POLL_NS;
        if !self.exchange.peer_closed {
            wake_up_ns = wake_up_ns.min(self.coordinator.control.next_deadline_ns());
        }
        if !self.has_baseline {
            wake_up_ns = wake_up_ns.min(self.run_clock.count_from_ns);
        }
        if let Some(run_end_ns) = self
            .end_ns
            .filter(|_| !self.coordinator.phase().is_ending())
        {
            wake_up_ns = wake_up_ns.min(run_end_ns);
        }
        if let Some(&(limit_ns, _)) = self
            .coordinator
            .time_limit
            .as_ref()
            .filter(|_| !self.exchange.stop_exchanged)
        {
            let end = self.run_clock.start_ns.saturating_add(limit_ns);
            wake_up_ns = wake_up_ns.min(if end > now { end } else { now + STOP_POLL_NS });
        }
        if let Some(end) = self.next_interval_end() {
            // Past its end, the interval waits for the requesting thread.
            wake_up_ns = wake_up_ns.min(if end > now { end } else { now + 2_000_000 });
        }
        if let Some(drain_deadline_ns) = self.exchange.drain_deadline_ns {
            wake_up_ns = wake_up_ns.min(drain_deadline_ns.max(now + 1_000_000));
        }
        if self.awaits_send_queue(now) {
            wake_up_ns = wake_up_ns.min(now + SEND_QUEUE_POLL_NS);
        }
        let ending = self.coordinator.phase().is_ending() || self.exchange.peer_totals_ns.is_some();
        if ending && self.coordinator.plan.kind == RunKind::Latency {
            wake_up_ns = wake_up_ns.min(
                self.progress_checked_ns
                    .saturating_add(self.wake_interval_ns(WAKE_INTERVAL_AT_END_NS))
                    .max(now),
            );
        }
        wake_up_ns
    }

    /// Ends the run now, on request of a user at either end.
    fn interrupt(&mut self, now: Nanos) {
        self.exchange.interrupted = true;
        self.coordinator.phase().interrupt();
        self.end_ns = Some(self.end_ns.map_or(now, |run_end_ns| run_end_ns.min(now)));
        if self.exchange.peer_totals_ns.is_some() {
            self.exchange
                .drain_deadline_ns
                .get_or_insert(now + DRAIN_TIMEOUT_NS);
        }
    }

    /// Ends the run before its time and notifies the other end.
    fn stop_early(&mut self, now: Nanos, why: String) -> Result<(), SessionError> {
        self.exchange.stop_exchanged = true;
        self.interrupt(now);
        self.send(StopFrame { reason: why })
    }

    fn handle_time(&mut self, now: Nanos) -> Result<(), SessionError> {
        if self.coordinator.stop_requested.load(Relaxed) && !self.exchange.stop_exchanged {
            self.stop_early(now, "interrupted".to_owned())?;
        }
        if let Some((limit_ns, caveat)) = self.coordinator.time_limit.clone()
            && now >= self.run_clock.start_ns.saturating_add(limit_ns)
            && !self.exchange.stop_exchanged
            && !self.coordinator.phase().is_ending()
        {
            self.stop_early(now, caveat.reason.clone())?;
            self.coordinator.caveats.push(caveat);
        }
        if !self.has_baseline && now >= self.run_clock.count_from_ns {
            self.has_baseline = true;
            self.counted_from_ns = now;
            self.baseline = (self.coordinator.ready.flows.iter())
                .map(|flow| (flow.id, read_counters(flow)))
                .collect();
        }
        if !self.memory_sampled && now >= self.run_clock.start_ns + MEMORY_SAMPLE_DELAY_NS {
            // A run may end without an interval.
            self.memory_sampled = true;
            self.sample_memory(now);
        }
        if self.end_ns.is_some_and(|run_end_ns| now >= run_end_ns) {
            if !self.coordinator.phase().is_ending() {
                self.sample_memory(now);
            }
            self.coordinator.phase().end();
        }
        while let Some(end) = self.next_interval_end().filter(|&end| now >= end) {
            if !self.requesters_passed(self.interval_number) && now < end + INTERVAL_GRACE_NS {
                break;
            }
            self.close_interval(end, now)?;
        }
        if (self.exchange.drain_deadline_ns)
            .is_some_and(|drain_deadline_ns| now >= drain_deadline_ns)
            && !self
                .coordinator
                .ready
                .workers
                .iter()
                .all(WorkerHandle::is_finished)
        {
            self.exchange.drain_incomplete = true;
            self.coordinator.phase().abort();
        }
        self.check_rejected_datagrams(now)?;
        self.watch_send_queue(now);
        self.check_stall(now)?;
        self.wake_sleepers(now);
        self.thread_costs
            .sample_cpus(&self.coordinator.ready.workers, now);
        self.emit_ready_intervals();
        Ok(())
    }

    /// Wakes threads that sleep without a timeout: at the end of the run, and when a flow has made
    /// no call since the last check.
    fn wake_sleepers(&mut self, now: Nanos) {
        if self.coordinator.plan.kind != RunKind::Latency {
            return;
        }
        let ending = self.coordinator.phase().is_ending() || self.exchange.peer_totals_ns.is_some();
        let first_at_end = ending && !std::mem::replace(&mut self.woken_at_end, ending);
        let pause_ns = self.wake_interval_ns(if ending {
            WAKE_INTERVAL_AT_END_NS
        } else {
            WAKE_INTERVAL_NS
        });
        if !first_at_end && now < self.progress_checked_ns.saturating_add(pause_ns) {
            return;
        }
        self.progress_checked_ns = now;
        let mut calls = Vec::with_capacity(self.coordinator.ready.flows.len());
        calls.extend(
            self.coordinator
                .ready
                .flows
                .iter()
                .map(|f| f.shared.counters.read().calls),
        );
        let has_stalled = calls
            .iter()
            .zip(&self.last_calls)
            .any(|(now, before)| now == before);
        self.last_calls = calls;
        if ending || has_stalled {
            for worker in &self.coordinator.ready.workers {
                worker.wake();
            }
        }
    }

    /// Returns the interval between two wake-ups of all threads; `shortest_ns` with few threads.
    fn wake_interval_ns(&self, shortest_ns: Nanos) -> Nanos {
        let running = self
            .coordinator
            .ready
            .workers
            .iter()
            .filter(|worker| !worker.is_finished());
        shortest_ns.max(WAKE_INTERVAL_PER_THREAD_NS * running.count() as Nanos)
    }

    /// Samples the memory of the flows.
    fn sample_memory(&mut self, now: Nanos) {
        if !self
            .coordinator
            .ready
            .workers
            .iter()
            .all(WorkerHandle::is_finished)
        {
            self.coordinator
                .memory
                .sample(&self.coordinator.ready.flows, now);
        }
    }

    /// Passes the number of rejected datagrams to the control channel, early in the run.
    fn check_rejected_datagrams(&self, now: Nanos) -> Result<(), SessionError> {
        // After the start phase, a lost peer ends the run with the figures that exist.
        let is_early = now < self.run_clock.start_ns.saturating_add(REJECTION_WINDOW_NS);
        let is_udp = self.coordinator.plan.protocol == TransportProtocol::Udp;
        if !is_udp || !is_early || self.coordinator.phase().is_ending() {
            return Ok(());
        }
        let watches =
            (self.coordinator.ready.flows.iter()).filter_map(|flow| flow.socket_watch.as_ref());
        match watches.map(SocketWatch::port_unreachable).max() {
            Some(rejected) if rejected > 0 => {
                self.coordinator.control.on_rejected_datagrams(rejected)
            }
            _ => Ok(()),
        }
    }

    /// Reads the queue below the sockets that this end sends on: what waits there delays the frames
    /// of both ends, because acknowledgements wait too.
    fn watch_send_queue(&mut self, now: Nanos) {
        if !self.send_queue.is_due(now) {
            return;
        }
        let senders = self.senders().map(|flow| flow.shared.counters.read().bytes);
        let sent = senders.sum();
        let delay_ns = self.send_queue.update(now, self.unsent_bytes(), sent);
        if self.send_queue.may_stand_still() && self.sends_stream() {
            let infos = self.sender_tcp_infos();
            let acknowledged = infos.filter_map(|info| info.acknowledged_bytes).sum();
            self.send_queue.acknowledged(now, acknowledged);
        }
        self.coordinator.control.on_send_delay(now, delay_ns);
    }

    /// Returns the caveat about a remote end that accepted nothing of a stream for a part of the run.
    fn peer_stall(&self) -> Option<Caveat> {
        let (since_ns, length_ns) = self.send_queue.longest_standstill();
        // The first segments of a connection are all in flight for a round trip of the path.
        let infos = self.sender_tcp_infos();
        let round_trips = infos.map(|info| info.min_rtt_us.unwrap_or(info.rtt_us));
        let limit_ns = PEER_STALL_NS + 1_000 * u64::from(round_trips.max().unwrap_or(0));
        (length_ns >= limit_ns).then(|| {
            Caveat::new(
                CaveatId::PeerStalled,
                format!(
                    "the other end accepted nothing for {:.1} s or more, from {:.1} s after the start on: \
                     its process, its host or the path stood still. The averages include that time",
                    length_ns as f64 / 1e9,
                    since_ns.saturating_sub(self.run_clock.start_ns) as f64 / 1e9,
                ),
            )
        })
    }

    fn sends_stream(&self) -> bool {
        let plan = &self.coordinator.plan;
        plan.kind == RunKind::Throughput && plan.protocol == TransportProtocol::Tcp
    }

    fn sender_tcp_infos(&self) -> impl Iterator<Item = TcpInfo> {
        let watches = self.senders().filter_map(|flow| flow.socket_watch.as_ref());
        watches.filter_map(SocketWatch::tcp_info)
    }

    fn senders(&self) -> impl Iterator<Item = &FlowHandle> {
        let flows = self.coordinator.ready.flows.iter();
        flows.filter(|flow| flow.role == FlowRole::Sender)
    }

    fn unsent_bytes(&self) -> u64 {
        let watches = self.senders().filter_map(|flow| flow.socket_watch.as_ref());
        watches.filter_map(SocketWatch::unsent_bytes).sum()
    }

    /// Returns whether datagrams of this end still wait below its sockets, so that its totals wait
    /// too: totals that overtake datagrams start the other end's timeout for the last of them, and
    /// totals queued behind them start the response timeout of another tool's protocol too early. A
    /// stream needs no such wait, because its end follows all of its payload.
    fn awaits_send_queue(&self, now: Nanos) -> bool {
        self.coordinator.plan.protocol == TransportProtocol::Udp
            && self.send_queue.is_draining(now)
            && !self.exchange.totals_sent
            && !self.exchange.interrupted
            && self.senders_done()
            && self.unsent_bytes() > 0
    }

    /// Aborts a run that makes no progress any more.
    fn check_stall(&mut self, now: Nanos) -> Result<(), SessionError> {
        let is_latency = self.coordinator.plan.kind == RunKind::Latency;
        let (mut bytes, mut arrived) = (0, 0);
        for flow in &self.coordinator.ready.flows {
            let moved = flow.shared.counters.read().bytes;
            bytes += moved;
            if is_latency || flow.role == FlowRole::Receiver {
                arrived += moved;
            }
        }
        if bytes != self.exchange.progress.0 {
            self.exchange.progress = (bytes, now);
        }
        if arrived != self.arrived {
            self.arrived = arrived;
            self.coordinator.control.on_arrival(now);
        }
        let moved_ns = self.exchange.progress.1.max(self.send_queue.empty_ns());
        let stalled_ns = now.saturating_sub(moved_ns);
        // A receiver of an amount has no end time: it ends when all was sent and no payload
        // arrives.
        let all_sent = self.senders_done() && self.exchange.peer_totals_ns.is_some();
        if all_sent && self.end_ns.is_none() && stalled_ns >= STALL_TIMEOUT_NS {
            self.coordinator.phase().abort();
        }
        // A run that ends by time is aborted some time after it, or after the last payload,
        // whatever the other end does.
        let is_overdue = |run_end_ns: Nanos| {
            now >= (run_end_ns.max(moved_ns)).saturating_add(STALL_TIMEOUT_NS + DRAIN_TIMEOUT_NS)
                || now >= run_end_ns.saturating_add(MAX_RESULT_WAIT_NS)
        };
        if self.end_ns.is_some_and(is_overdue) {
            self.coordinator.phase().abort();
        }
        // The other end may be alive and still never send its results.
        if self.coordinator.stop_requested.load(Relaxed) {
            self.stop_requested_ns.get_or_insert(now);
        }
        let timeout = ResultTimeout {
            end_ns: self.end_ns,
            moved_ns,
            stop_requested_ns: self.stop_requested_ns,
        };
        let times_out = |sent_ns: Nanos, path_ns: Nanos| {
            let silence_ns = STALL_TIMEOUT_NS + DRAIN_TIMEOUT_NS + path_ns;
            let has_waited = now >= sent_ns + silence_ns;
            let is_silent = self.run_clock.interval_ns.is_some() && stalled_ns >= silence_ns;
            now >= timeout.deadline_ns(sent_ns, path_ns) || has_waited && is_silent
        };
        let sent_ns = self
            .exchange
            .local_results
            .as_ref()
            .map(|&(_, sent_ns)| sent_ns);
        // The path is read once the rest does not explain the wait.
        let path_delay = || self.coordinator.control.path_delay_ns();
        if sent_ns.is_some_and(|sent| times_out(sent, 0) && times_out(sent, path_delay())) {
            return Err(SessionError::PeerLost {
                peer: self.coordinator.control.peer(),
                reason: "it responds, but sends no results".to_owned(),
            });
        }
        Ok(())
    }

    fn senders_done(&self) -> bool {
        (self.coordinator.ready.workers.iter())
            .filter(|worker| worker.role == FlowRole::Sender)
            .all(WorkerHandle::is_finished)
    }

    /// Collects the results of threads that have ended.
    fn collect_finished(&mut self) {
        for (index, worker) in self.coordinator.ready.workers.iter_mut().enumerate() {
            if !worker.is_finished() {
                continue;
            }
            let results = worker.join();
            if results.flows.is_empty() {
                continue;
            }
            self.thread_costs.record_end(index, &results);
            if results.stack.is_some() {
                self.coordinator.host.stack.clone_from(&results.stack);
            }
            self.workers_ended_ns = self.workers_ended_ns.max(results.ended_ns);
            self.finished_flows.extend(results.flows);
            merge_call_stats(&mut self.call_tally, results.calls);
            self.thread_usage.cpu_ns += results.usage.cpu_ns;
            self.thread_usage.user_ns += results.usage.user_ns;
            self.thread_usage.system_ns += results.usage.system_ns;
            self.thread_usage.voluntary_switches += results.usage.voluntary_switches;
            self.thread_usage.involuntary_switches += results.usage.involuntary_switches;
        }
        if self.machine_at_end.is_none()
            && self
                .coordinator
                .ready
                .workers
                .iter()
                .all(WorkerHandle::is_finished)
        {
            self.machine_at_end = Some(MachineCounters::read());
        }
    }

    /// Returns the time until which a receiver counts at least, even if no payload arrives: a dead
    /// path has a low rate.
    fn window_end_ns(&self) -> Option<Nanos> {
        self.end_ns.or(self.exchange.peer_totals_ns)
    }

    fn result_builder(&self) -> ResultBuilder<'_> {
        let mut caveats = self.coordinator.caveats.clone();
        let stack = self.coordinator.host.stack.as_deref();
        for caveat in stack.map(stack_caveats::stack_warnings).unwrap_or_default() {
            // Warnings about all threads of this end are in the list already.
            if caveats.iter().all(|known| known.id != caveat.id) {
                caveats.push(caveat);
            }
        }
        if self.exchange.drain_incomplete {
            caveats.push(Caveat::new(
                CaveatId::DrainCut,
                format!(
                    "payload was still in flight {} s after the end and is not counted",
                    DRAIN_TIMEOUT_NS / 1_000_000_000
                ),
            ));
        }
        caveats.extend(self.peer_stall());
        let before = &self.machine_at_start;
        let now = self
            .machine_at_end
            .clone()
            .unwrap_or_else(MachineCounters::read);
        ResultBuilder {
            role: self.coordinator.role,
            plan: &self.coordinator.plan,
            host: &self.coordinator.host,
            flows: &self.coordinator.ready.flows,
            finished_flows: &self.finished_flows,
            baseline: &self.baseline,
            start_ns: self.run_clock.start_ns,
            counted_from_ns: self.counted_from_ns,
            window_end_ns: self.window_end_ns(),
            thread_count: self.coordinator.ready.workers.len(),
            thread_costs: &self.thread_costs,
            memory: self
                .coordinator
                .memory
                .cost(self.coordinator.role, self.coordinator.ready.flows.len()),
            throttling: (now.throttling.zip(before.throttling))
                .map(|(now, before)| now.since(&before)),
            machine: (now.machine.zip(before.machine))
                .map(|(now, before)| machine_time_since(&now, &before)),
            cpu_times: processor_times_since(&now.processors, &before.processors),
            workers_ended_ns: self.workers_ended_ns,
            thread_usage: self.thread_usage,
            call_tally: self.call_tally.as_ref(),
            steal_ticks: self.steal_ticks.as_ref(),
            interrupted: self.exchange.interrupted,
            caveats,
            counters: match &self.coordinator.host.stack {
                None => self.coordinator.local_counters.read_again(),
                Some(stack) => netstack_counters(self.coordinator.role, stack),
            },
        }
    }

    /// Ends the threads after a failure, and returns all results.
    fn finish(mut self, failure: Option<SessionError>) -> RunResults {
        if failure.is_some() {
            self.coordinator.phase().abort();
            // A receiver's figures do not cover the time after the failure.
            let now = clock::now();
            self.end_ns = self.end_ns.map(|run_end_ns| run_end_ns.min(now));
        }
        while !self
            .coordinator
            .ready
            .workers
            .iter()
            .all(WorkerHandle::is_finished)
        {
            for worker in &self.coordinator.ready.workers {
                worker.wake();
            }
            clock::sleep_until(clock::now() + self.wake_interval_ns(1_000_000));
        }
        self.collect_finished();
        let local_results = match self.exchange.local_results.take() {
            Some((results, _)) => results,
            None => self.result_builder().build(),
        };
        for interval in self.series.take_ready(Nanos::MAX, 0) {
            (self.coordinator.emit)(EventKind::Interval {
                interval: Box::new(interval),
            });
        }
        let (intervals, intervals_omitted) = self.series.finish();
        let connection_refused = self.finished_flows.iter().any(|flow| {
            let error = flow.error.as_ref();
            error.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        });
        let local_log = self
            .finished_flows
            .iter_mut()
            .find_map(|flow| flow.log.take());
        let calls = self.call_tally.as_mut().map(CallStats::take_latest);
        let local_timestamps = match (local_log, calls) {
            (Some(log), _) => Some(TimestampLog::from_ring(*log)),
            (None, Some(calls)) if !calls.is_empty() => Some(TimestampLog::from_calls(calls)),
            _ => None,
        };
        let timestamps = local_timestamps.map(|local_timestamps| {
            Box::new(TimestampPass {
                start_ns: self.run_clock.start_ns,
                client: local_timestamps,
                server: self.exchange.peer_timestamps,
            })
        });
        RunResults {
            local: local_results,
            peer: self.exchange.peer_results,
            timestamps,
            intervals,
            intervals_omitted,
            interrupted: self.exchange.interrupted,
            counted_from_ns: self.counted_from_ns,
            connection_refused,
            failure,
        }
    }
}

fn read_counters(flow: &FlowHandle) -> CounterReading {
    let tcp = flow.socket_watch.as_ref().and_then(SocketWatch::tcp_info);
    CounterReading {
        totals: flow.shared.counters.read(),
        retransmits: tcp.map_or(0, |tcp| u64::from(tcp.retransmits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_peer_results_is_bounded() {
        let second = 1_000_000_000;
        for (end, moved, stopped, sent, path, expected) in [
            (Some(10), 0, None, 10, 0, 23),
            // Interrupted long after this end had sent everything.
            (Some(60), 0, None, 10, 0, 73),
            // The payload of this end leaves until then, or arrives there.
            (Some(10), 35, None, 10, 0, 48),
            (Some(10), 9_000, None, 10, 0, 610),
            // The queue of a modem.
            (Some(10), 0, None, 10, 25, 48),
            (None, 35, None, 10, 25, 610),
            (None, 0, Some(100), 10, 0, 106),
            (Some(10), 0, Some(11), 10, 0, 17),
            (Some(10), 35, Some(5), 12, 25, 18),
        ] {
            let timeout = ResultTimeout {
                end_ns: end.map(|end| end * second),
                moved_ns: moved * second,
                stop_requested_ns: stopped.map(|stopped| stopped * second),
            };
            let context = format!("{timeout:?} {sent}");
            assert_eq!(
                timeout.deadline_ns(sent * second, path * second),
                expected * second,
                "{context}"
            );
        }
    }
}
