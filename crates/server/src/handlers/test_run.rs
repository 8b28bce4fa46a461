//! Test of another tool's client on the server: keeps time while its workers move payload, emits
//! each interval, and builds the record.

mod intervals;
mod record;
mod stop;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Timestamp;
use linerate_host::snapshot::cpu_quota::read_cpu_throttling;
use linerate_record::event::{Event, EventKind};
use linerate_record::facts::Role;
use linerate_record::plan::{CpuList, Direction, PerEnd, Plan, RunKind, WaitMode};
use linerate_record::record::{Caveat, Interval};
use linerate_record::throttling::CpuThrottling;
use linerate_session::error::SessionError;
use linerate_session::tcp_info_sums::TcpSums;
use linerate_session::third_party_record::flow_direction;
use linerate_sys::clock::Nanos;
use linerate_sys::cpu::ThreadUsage;
use linerate_sys::{clock, socket};
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow_counters::PayloadTotals;
use socket2::Socket;

use self::intervals::SilentIntervals;
use super::AcceptedClient;
use super::worker::{FlowWorkerContext, FlowWorkerResult, StopSignals, run_worker};
use crate::interop_limits::InteropLimits;
use crate::interop_state::{OpenFlowEntry, UnvalidatedPermit};
use crate::limits::SILENT_TEST_NS;
use crate::server_state::{ServerState, TestReservation};
use crate::timeouts::Timeouts;
pub use stop::StopReason;

/// Length of an interval of the series.
const INTERVAL_NS: Nanos = 1_000_000_000;

/// Minimum length of the last interval, unless it is the only one. A rate over less time is noise,
/// and its payload counts in the total; clients end some milliseconds late.
const MIN_LAST_INTERVAL_NS: Nanos = INTERVAL_NS / 10;

/// Minimum length of an only interval.
const MIN_ONLY_INTERVAL_NS: Nanos = 20_000_000;

/// Memory reserved for a worker: stack as far as it is used, buffer, window of sequence numbers.
const WORKER_BYTES: u64 = 512 << 10;

/// Running test.
pub struct TestRun {
    server: Arc<ServerState>,
    reservation: TestReservation,
    protocol: &'static str,
    peer: SocketAddr,
    /// Name and version of the client.
    agent: String,
    plan: Plan,
    /// Stop signals to its workers.
    pub signals: Arc<StopSignals>,
    workers: Vec<TestWorker>,
    /// Indices of workers that have ended.
    finished_workers: mpsc::Receiver<usize>,
    worker_finished: mpsc::Sender<usize>,
    started: Timestamp,
    start_ns: Nanos,
    /// Stops by a CPU quota until the start.
    throttling_at_start: Option<CpuThrottling>,
    /// True until the first payload, with which the time starts.
    awaits_payload: bool,
    /// First worker of the current phase; the workers before it belong to phases that are over.
    phase_start: usize,
    between_phases: bool,
    /// Start of counting, and the totals of each flow at that time.
    counting_start_ns: Nanos,
    omitted_totals: Option<BTreeMap<u32, PayloadTotals>>,
    /// Time at which both ends have agreed that the test is over.
    agreed_end_ns: Option<Nanos>,
    interval_start_ns: Nanos,
    interval_number: u64,
    last_totals: BTreeMap<Direction, (PayloadTotals, TcpSums)>,
    /// Sum of bytes and packets at the last change, and the time of that change.
    progress: (u64, Nanos),
    intervals: Vec<Interval>,
    dropped_intervals: u64,
    /// Intervals that end in silence, which may be the silence after the end.
    silent_intervals: SilentIntervals,
    /// True if silence ends the test.
    ends_by_silence: bool,
    /// True if the protocol has no end marker, so that only silence shows the end.
    has_no_end_marker: bool,
    /// True if sequence numbers on its datagrams show losses.
    has_sequence_numbers: bool,
    /// True if the datagram size is taken from the payload instead of an agreement.
    sized_by_payload: bool,
    caveats: Vec<Caveat>,
    interrupted: bool,
    /// Flow entries, held until the end.
    open_flows: Vec<OpenFlowEntry>,
    unvalidated_permit: Option<UnvalidatedPermit>,
}

struct TestWorker {
    id: u32,
    role: FlowRole,
    context: FlowWorkerContext,
    /// Duplicate of the socket, to query it and to wake its thread.
    watch: Option<OwnedFd>,
    thread: Option<JoinHandle<FlowWorkerResult>>,
    result: Option<FlowWorkerResult>,
}

impl TestRun {
    /// Starts the test and emits its first events.
    pub fn begin(
        client: &mut AcceptedClient,
        mut reservation: TestReservation,
        protocol: &'static str,
        agent: &str,
        plan: Plan,
    ) -> Self {
        reservation.started = true;
        let (worker_finished, finished_workers) = mpsc::channel();
        let start_ns = clock::now();
        let counts_ns = start_ns.saturating_add(plan.omit_ns);
        let mut test = Self {
            server: Arc::clone(&client.server),
            reservation,
            protocol,
            peer: client.peer,
            agent: agent.to_owned(),
            signals: Arc::default(),
            workers: Vec::new(),
            finished_workers,
            worker_finished,
            started: Timestamp::now(),
            start_ns,
            throttling_at_start: read_cpu_throttling(),
            awaits_payload: true,
            phase_start: 0,
            between_phases: false,
            counting_start_ns: counts_ns,
            omitted_totals: (plan.omit_ns == 0).then(BTreeMap::new),
            agreed_end_ns: None,
            interval_start_ns: start_ns,
            interval_number: 0,
            last_totals: BTreeMap::new(),
            progress: (0, start_ns),
            intervals: Vec::new(),
            dropped_intervals: 0,
            silent_intervals: SilentIntervals::default(),
            ends_by_silence: false,
            has_no_end_marker: false,
            has_sequence_numbers: false,
            sized_by_payload: false,
            caveats: Vec::new(),
            interrupted: false,
            plan,
            open_flows: Vec::new(),
            unvalidated_permit: client.unvalidated_permit.take(),
        };
        test.emit(EventKind::Connected {
            peer: test.peer.to_string(),
            agent: agent.to_owned(),
            accepted: true,
        });
        let mut plan = test.plan.clone();
        plan.peer_protocol = Some(protocol.to_owned());
        test.emit(EventKind::Started {
            plan: Box::new(plan),
            wait: PerEnd::same(WaitMode::Block),
            cpu: PerEnd::same(CpuList::default()),
            wait_reason: None,
        });
        for caveat in test.limits().limit_caveats(&test.plan) {
            test.add_caveat(caveat);
        }
        test
    }

    /// Lets silence end the test.
    #[must_use]
    pub fn ending_by_silence(mut self) -> Self {
        self.ends_by_silence = true;
        self
    }

    /// Lets silence end the test of a protocol without an end marker.
    #[must_use]
    pub fn without_end_marker(mut self) -> Self {
        self.has_no_end_marker = true;
        self.ending_by_silence()
    }

    /// Starts the time at `now`, a moment that both ends agree on, instead of at the first payload.
    pub fn start_at(&mut self, now: Nanos) {
        if self.awaits_payload {
            let omit = self.counting_start_ns.saturating_sub(self.start_ns);
            let elapsed_ns = clock::now().saturating_sub(now);
            self.started = Timestamp::now()
                .checked_sub(Duration::from_nanos(elapsed_ns))
                .unwrap_or(self.started);
            (self.awaits_payload, self.start_ns, self.interval_start_ns) = (false, now, now);
            self.counting_start_ns = now.saturating_add(omit);
        }
    }

    #[must_use]
    pub fn has_started(&self) -> bool {
        !self.awaits_payload
    }

    /// Starts the time with the first payload, or resumes it with the first payload of the next
    /// phase.
    fn start_with_payload(&mut self) {
        let workers = self.workers[self.phase_start..].iter();
        let spans = workers.filter_map(|worker| worker.context.payload_times());
        let Some(first) = spans.map(|(first, _)| first).min() else {
            return;
        };
        if self.plan.kind == RunKind::Latency && self.interval_number == 0 && first > self.start_ns
        {
            // A first request may turn out later to be a probe that is not part of the test.
            self.awaits_payload = true;
        }
        self.start_at(first);
        if std::mem::take(&mut self.between_phases) {
            self.interval_start_ns = first.max(self.interval_start_ns);
        }
    }

    /// Sets the time at which both ends agree that the test is over. Payload still in flight
    /// counts; time after that does not.
    pub fn set_agreed_end(&mut self, now: Nanos) {
        self.agreed_end_ns.get_or_insert(now);
    }

    /// Returns the time of the first payload of an ended worker, and the end of its time.
    fn payload_times(&self, worker: &TestWorker) -> Option<(Nanos, Nanos)> {
        let result = worker.result.as_ref()?;
        let (first, last) = result.payload_times?;
        let last = match self.agreed_end_ns {
            Some(over) if result.failure.is_none() => worker
                .context
                .payload_times()
                .map_or(over, |(_, last)| last.max(over)),
            _ => last,
        };
        let first = first.max(self.start_ns);
        Some((first, last.max(first)))
    }

    /// Returns the duration of an ended worker, without omitted time.
    fn worker_duration_ns(&self, worker: &TestWorker) -> Option<Nanos> {
        let (first, last) = self.payload_times(worker)?;
        // A flow that ends before counting starts has no other figures than those.
        let from = match self.omitted_totals {
            Some(_) if self.plan.omit_ns > 0 => first.max(self.counting_start_ns),
            _ => first,
        };
        Some(last.saturating_sub(from))
    }

    /// Returns the counted duration of a flow, once it has ended.
    #[must_use]
    pub fn duration_ns(&self, id: u32) -> Option<Nanos> {
        let worker = self.workers.iter().find(|worker| worker.id == id)?;
        self.worker_duration_ns(worker)
    }

    /// Starts a new phase after all workers have ended. Until its first payload, no interval is
    /// emitted.
    pub fn start_next_phase(&mut self) {
        self.end_intervals();
        self.last_totals.clear();
        (self.phase_start, self.between_phases) = (self.workers.len(), true);
    }

    /// Sets whether datagrams carry sequence numbers that show losses.
    pub fn set_sequence_numbers(&mut self, has_sequence_numbers: bool) {
        self.has_sequence_numbers = has_sequence_numbers;
    }

    /// Takes the datagram size from the payload: nothing announced it.
    pub fn use_payload_size(&mut self) {
        self.sized_by_payload = true;
    }

    /// Holds the entry of an open flow until the end, and with `lingers` for a moment longer, where
    /// the client may still be sending.
    pub fn hold_open_flow(&mut self, key: Option<OpenFlowEntry>, lingers: bool) {
        if let Some(mut key) = key {
            if lingers {
                key.linger();
            }
            self.open_flows.push(key);
        }
    }

    fn emit(&self, event: EventKind) {
        (self.server.emit)(Event {
            test: self.reservation.number,
            kind: event,
        });
    }

    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    #[must_use]
    pub fn start_ns(&self) -> Nanos {
        self.start_ns
    }

    /// Adds a caveat to the record and emits it.
    pub fn add_caveat(&mut self, caveat: Caveat) {
        self.emit(EventKind::CaveatRaised {
            caveat: caveat.clone(),
        });
        self.caveats.push(caveat);
    }

    /// Starts a worker for one direction of one flow.
    ///
    /// # Errors
    /// If no thread, memory or descriptor is available.
    pub fn spawn(
        &mut self,
        id: u32,
        role: FlowRole,
        socket: Socket,
        work: impl FnOnce(&FlowWorkerContext, &Socket) -> FlowWorkerResult + Send + 'static,
    ) -> Result<(), SessionError> {
        self.reserve_resources(WORKER_BYTES, 1)?;
        let context = FlowWorkerContext {
            counters: Arc::default(),
            times: Arc::default(),
            signals: Arc::clone(&self.signals),
        };
        let (shared, started_ns) = (context.clone(), clock::now());
        self.reservation.set_end(move |now| {
            let last_ns = shared.payload_times().map_or(started_ns, |(_, last)| last);
            let is_silent = now.saturating_sub(last_ns) >= SILENT_TEST_NS;
            if is_silent {
                shared.signals.end_sending();
                shared.signals.closed.store(true, Relaxed);
            }
            is_silent
        });
        let watch = socket::clone_handle(&socket).ok();
        let thread = {
            let (context, worker_finished, index) = (
                context.clone(),
                self.worker_finished.clone(),
                self.workers.len(),
            );
            std::thread::Builder::new()
                .name(format!("{}-{id}", self.protocol))
                .spawn(move || {
                    let result = run_worker(&socket, || work(&context, &socket));
                    // The receiver lives in the test, which outlives this thread.
                    let _ = worker_finished.send(index);
                    result
                })
                .map_err(|error| SessionError::system("new thread", error))?
        };
        self.workers.push(TestWorker {
            id,
            role,
            context,
            watch,
            thread: Some(thread),
            result: None,
        });
        Ok(())
    }

    /// Reserves memory for a buffer whose size the client chose.
    ///
    /// # Errors
    /// If all tests together would exceed the server's limit.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), SessionError> {
        self.reserve_resources(bytes, 0)
    }

    fn reserve_resources(&mut self, bytes: u64, threads: usize) -> Result<(), SessionError> {
        let reserved = self.reservation.reserve(Some(bytes), threads);
        reserved.map_err(|reply| SessionError::PeerBusy {
            peer: self.peer,
            problem: Box::new(reply.problem),
        })
    }

    /// Returns the totals of a flow so far, omitted payload included.
    #[must_use]
    pub fn totals(&self, id: u32) -> PayloadTotals {
        let worker = self.workers.iter().find(|worker| worker.id == id);
        worker.map_or(PayloadTotals::default(), |worker| {
            worker.context.counters.read()
        })
    }

    /// Returns the totals of a flow in the omitted time.
    #[must_use]
    pub fn omitted_totals(&self, id: u32) -> PayloadTotals {
        let base = self.omitted_totals.as_ref().and_then(|base| base.get(&id));
        base.copied().unwrap_or_default()
    }

    /// Returns the result of a flow, once its worker has ended.
    #[must_use]
    pub fn result(&self, id: u32) -> Option<&FlowWorkerResult> {
        let worker = self.workers.iter().find(|worker| worker.id == id)?;
        worker.result.as_ref()
    }

    /// Returns whether the test is a single datagram from an unvalidated address, which may be
    /// forged. It was answered where the protocol answers, but there is nothing to measure.
    fn is_short_flow(&self) -> bool {
        let sum = self.total();
        self.ends_by_silence
            && self.unvalidated_permit.is_some()
            && sum.packets <= 1
            && sum.calls <= 1
    }

    /// Returns the totals of all workers so far.
    #[must_use]
    pub fn total(&self) -> PayloadTotals {
        let mut sum = PayloadTotals::default();
        for worker in &self.workers {
            sum += worker.context.counters.read();
        }
        sum
    }

    /// Returns the time of the last change of the totals, as of the last poll.
    #[must_use]
    pub fn last_progress_ns(&self) -> Nanos {
        self.progress.1
    }

    /// Returns the congestion control of its connections, once a worker has ended.
    #[must_use]
    pub fn congestion_control(&self) -> Option<String> {
        let result = self
            .workers
            .iter()
            .filter_map(|worker| worker.result.as_ref());
        let mut sockets = result.filter_map(|result| result.socket.as_ref());
        sockets.find_map(|socket| socket.congestion_control.clone())
    }

    /// Returns the time from the first payload to the last, over all ended workers.
    #[must_use]
    pub fn payload_duration_ns(&self) -> Nanos {
        let spans = self
            .workers
            .iter()
            .filter_map(|worker| worker.result.as_ref()?.payload_times);
        let total = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        total.map_or(0, |(first, last)| last.saturating_sub(first))
    }

    /// Returns whether all workers have ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.workers.iter().all(|worker| worker.result.is_some())
    }

    /// Emits intervals that are over and joins workers that have ended.
    pub fn poll(&mut self) {
        self.start_with_payload();
        let now = clock::now();
        if self.omitted_totals.is_none() && now >= self.counting_start_ns {
            let base = self
                .workers
                .iter()
                .map(|worker| (worker.id, worker.context.counters.read()));
            self.omitted_totals = Some(base.collect());
        }
        let progress = self.total();
        let progress = progress.bytes.wrapping_add(progress.packets);
        if progress != self.progress.0 {
            self.progress = (progress, now);
        }
        while now >= self.interval_end_ns() && self.lasts_until(self.interval_end_ns()) {
            self.close_interval(self.interval_end_ns());
        }
        for worker in &mut self.workers {
            if worker.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                worker.finish();
            }
        }
    }

    /// Returns whether the test lasted until `end`: waiting for missing payload at the end is not
    /// test time.
    fn lasts_until(&self, end: Nanos) -> bool {
        let spans = self
            .workers
            .iter()
            .filter_map(|worker| worker.context.payload_times());
        let moved_later = || spans.map(|(_, last)| last).max() > Some(end);
        self.agreed_end_ns
            .is_none_or(|over| end <= over || moved_later())
    }

    /// Returns the end of the current interval; `Nanos::MAX` while the time does not run.
    #[must_use]
    pub fn interval_end_ns(&self) -> Nanos {
        if self.awaits_payload || self.between_phases {
            return Nanos::MAX;
        }
        let end = self.interval_start_ns + INTERVAL_NS;
        if self.interval_start_ns < self.counting_start_ns {
            return end.min(self.counting_start_ns);
        }
        end
    }

    /// Waits until `until`, until a worker ends, or until the next interval is over.
    pub fn wait(&mut self, until: Nanos) {
        let until = until.min(self.next_poll_ns());
        let timeout = Duration::from_nanos(until.saturating_sub(clock::now()));
        if let Ok(index) = self.finished_workers.recv_timeout(timeout)
            && let Some(worker) = self.workers.get_mut(index)
        {
            worker.finish();
        }
        self.poll();
    }

    /// Returns the silence limits of the server.
    #[must_use]
    pub fn timeouts(&self) -> &Timeouts {
        self.server.interop.timeouts()
    }

    /// Returns the limits of the server for one test.
    #[must_use]
    pub fn limits(&self) -> &InteropLimits {
        self.server.interop.limits()
    }

    /// Returns the processor time of all ended workers, user and system, in ns. The sum is exact.
    /// Where the split is not available all of it counts as system time, which is where nearly all
    /// the work of moving payload is done.
    #[must_use]
    pub fn processor_time(&self) -> (u64, u64) {
        let result = self
            .workers
            .iter()
            .filter_map(|worker| worker.result.as_ref());
        let sum = result.fold(ThreadUsage::default(), |sum, result| ThreadUsage {
            cpu_ns: sum.cpu_ns + result.usage.cpu_ns,
            user_ns: sum.user_ns + result.usage.user_ns,
            ..sum
        });
        let user_ns = match sum.has_reliable_split() {
            true => sum.user_ns.min(sum.cpu_ns),
            false => 0,
        };
        (user_ns, sum.cpu_ns - user_ns)
    }
}

impl Drop for TestRun {
    fn drop(&mut self) {
        self.join();
    }
}

impl TestWorker {
    fn direction(&self) -> Direction {
        flow_direction(Role::Server, self.role)
    }

    fn is_running(&self) -> bool {
        (self.thread.as_ref()).is_some_and(|thread| !thread.is_finished())
    }

    /// Joins a worker that ends by itself.
    fn finish(&mut self) {
        self.join();
        if self.role == FlowRole::Receiver {
            // A client that has sent everything waits for this end to close, and counts that time
            // as its own.
            self.watch = None;
        }
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic is a bug of ours and has been reported; the other workers go on.
            self.result = Some(thread.join().unwrap_or_default());
        }
    }
}
