//! Test of another tool's client on the server: keeps time while its workers move payload, emits
//! each interval, and builds the record.

mod intervals;
mod record;
mod stop;

pub use stop::Limit;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Timestamp;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::cpu::ThreadUsage;
use linerate_host::sys::socket;
use linerate_metric::event::{Event, What};
use linerate_metric::facts::Role;
use linerate_metric::plan::{Cpus, Direction, Ends, Kind, Plan, Wait};
use linerate_metric::record::{Doubt, Interval};
use socket2::Socket;

use self::intervals::Held;
use super::limits::Limits;
use super::worker::{Context, Moved, Signals, lived};
use super::{Caller, FlowKey, Stranger};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::interop::record::direction;
use crate::session::server_state::{Claim, House};
use crate::tcp_info_sums::TcpSums;

/// Length of an interval of the series.
const INTERVAL_NS: Nanos = 1_000_000_000;

/// Minimum length of the last interval, unless it is the only one. A rate over less time is noise,
/// and its payload counts in the total; clients end some milliseconds late.
const SHORTEST_NS: Nanos = INTERVAL_NS / 10;

/// Minimum length of an only interval.
const SHORTEST_ALONE_NS: Nanos = 20_000_000;

/// Time without payload after which a client of a running test counts as gone.
pub const IDLE: Duration = Duration::from_secs(30);

/// Idle timeout of protocols without a control channel.
pub const PLAIN_IDLE: Duration = Duration::from_secs(10);

/// Silence that ends a flow of datagrams without an end marker: its client may have been stopped
/// for a while.
pub const FLOW_SILENCE: Duration = Duration::from_secs(12);

/// Memory reserved for a worker: stack as far as it is used, buffer, window of sequence numbers.
const LANE_BYTES: u64 = 512 << 10;

/// Running test.
pub struct Test {
    house: Arc<House>,
    claim: Claim,
    dialect: &'static str,
    peer: SocketAddr,
    /// Name and version of the client.
    agent: String,
    plan: Plan,
    /// Stop signals to its workers.
    pub signals: Arc<Signals>,
    lanes: Vec<Lane>,
    /// Indices of workers that have ended.
    ended: mpsc::Receiver<usize>,
    ends: mpsc::Sender<usize>,
    started: Timestamp,
    start_ns: Nanos,
    /// True until the first payload, with which the time starts.
    waits: bool,
    /// First worker of the current phase; the workers before it belong to phases that are over.
    part: usize,
    pauses: bool,
    /// Start of counting, and the totals of each flow at that time.
    counts_ns: Nanos,
    base: Option<BTreeMap<u32, Totals>>,
    /// Time at which both ends have agreed that the test is over.
    over_ns: Option<Nanos>,
    from_ns: Nanos,
    number: u64,
    last: BTreeMap<Direction, (Totals, TcpSums)>,
    /// Sum of bytes and packets at the last change, and the time of that change.
    moved_ns: (u64, Nanos),
    intervals: Vec<Interval>,
    left_out: u64,
    /// Intervals that end in silence, which may be the silence after the end.
    held: Held,
    /// True if silence ends the test.
    ends_by_silence: bool,
    /// True if the protocol has no end marker, so that only silence shows the end.
    says_no_end: bool,
    /// True if sequence numbers on its datagrams show losses.
    numbered: bool,
    /// True if the datagram size is taken from the payload instead of an agreement.
    sized_by_payload: bool,
    doubts: Vec<Doubt>,
    interrupted: bool,
    /// Flow entries, held until the end.
    keys: Vec<FlowKey>,
    stranger: Option<Stranger>,
}

struct Lane {
    id: u32,
    part: Part,
    context: Context,
    /// Duplicate of the socket, to query it and to wake its thread.
    watch: Option<OwnedFd>,
    thread: Option<JoinHandle<Moved>>,
    moved: Option<Moved>,
}

impl Test {
    /// Starts the test and emits its first events.
    pub fn begin(
        caller: &mut Caller,
        mut claim: Claim,
        dialect: &'static str,
        agent: &str,
        plan: Plan,
    ) -> Self {
        claim.began = true;
        let (ends, ended) = mpsc::channel();
        let start_ns = clock::now();
        let counts_ns = start_ns.saturating_add(plan.omit_ns);
        let mut test = Self {
            house: Arc::clone(&caller.house),
            claim,
            dialect,
            peer: caller.peer,
            agent: agent.to_owned(),
            signals: Arc::default(),
            lanes: Vec::new(),
            ended,
            ends,
            started: Timestamp::now(),
            start_ns,
            waits: true,
            part: 0,
            pauses: false,
            counts_ns,
            base: (plan.omit_ns == 0).then(BTreeMap::new),
            over_ns: None,
            from_ns: start_ns,
            number: 0,
            last: BTreeMap::new(),
            moved_ns: (0, start_ns),
            intervals: Vec::new(),
            left_out: 0,
            held: Held::default(),
            ends_by_silence: false,
            says_no_end: false,
            numbered: false,
            sized_by_payload: false,
            doubts: Vec::new(),
            interrupted: false,
            plan,
            keys: Vec::new(),
            stranger: caller.stranger.take(),
        };
        test.emit(What::Connected {
            peer: test.peer.to_string(),
            agent: agent.to_owned(),
        });
        let mut plan = test.plan.clone();
        plan.dialect = Some(dialect.to_owned());
        test.emit(What::Started {
            plan: Box::new(plan),
            wait: Ends::both(Wait::Block),
            cpu: Ends::both(Cpus::default()),
            because: None,
        });
        for doubt in test.limits().held_back(&test.plan) {
            test.doubt(doubt);
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
    pub fn without_an_end(mut self) -> Self {
        self.says_no_end = true;
        self.ending_by_silence()
    }

    /// Starts the time at `now`, a moment that both ends agree on, instead of at the first payload.
    pub fn start_at(&mut self, now: Nanos) {
        if self.waits {
            let omit = self.counts_ns.saturating_sub(self.start_ns);
            let late = clock::now().saturating_sub(now);
            self.started = Timestamp::now()
                .checked_sub(Duration::from_nanos(late))
                .unwrap_or(self.started);
            (self.waits, self.start_ns, self.from_ns) = (false, now, now);
            self.counts_ns = now.saturating_add(omit);
        }
    }

    #[must_use]
    pub fn has_begun(&self) -> bool {
        !self.waits
    }

    /// Starts the time with the first payload, or resumes it with the first payload of the next
    /// phase.
    fn start_with_payload(&mut self) {
        let lanes = self.lanes[self.part..].iter();
        let spans = lanes.filter_map(|lane| lane.context.span());
        let Some(first) = spans.map(|(first, _)| first).min() else {
            return;
        };
        if self.plan.kind == Kind::Latency && self.number == 0 && first > self.start_ns {
            // A first request may turn out later to be a probe that is not part of the test.
            self.waits = true;
        }
        self.start_at(first);
        if std::mem::take(&mut self.pauses) {
            self.from_ns = first.max(self.from_ns);
        }
    }

    /// Sets the time at which both ends agree that the test is over. Payload still in flight
    /// counts; time after that does not.
    pub fn over_at(&mut self, now: Nanos) {
        self.over_ns.get_or_insert(now);
    }

    /// Returns the time of the first payload of an ended worker, and the end of its time.
    fn span(&self, lane: &Lane) -> Option<(Nanos, Nanos)> {
        let moved = lane.moved.as_ref()?;
        let (first, last) = moved.span?;
        let last = match self.over_ns {
            Some(over) if moved.broke.is_none() => {
                lane.context.span().map_or(over, |(_, last)| last.max(over))
            }
            _ => last,
        };
        Some((first, last.max(first)))
    }

    /// Returns the duration of an ended worker, without omitted time.
    fn lane_ns(&self, lane: &Lane) -> Option<Nanos> {
        let (first, last) = self.span(lane)?;
        // A flow that ends before counting starts has no other figures than those.
        let from = match self.base {
            Some(_) if self.plan.omit_ns > 0 => first.max(self.counts_ns),
            _ => first,
        };
        Some(last.saturating_sub(from))
    }

    /// Returns the counted duration of a flow, once it has ended.
    #[must_use]
    pub fn duration_ns(&self, id: u32) -> Option<Nanos> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        self.lane_ns(lane)
    }

    /// Starts a new phase after all workers have ended. Until its first payload, no interval is
    /// emitted.
    pub fn next_part(&mut self) {
        self.end_intervals();
        self.last.clear();
        (self.part, self.pauses) = (self.lanes.len(), true);
    }

    /// Sets whether datagrams carry sequence numbers that show losses.
    pub fn with_numbers(&mut self, numbered: bool) {
        self.numbered = numbered;
    }

    /// Takes the datagram size from the payload: nothing announced it.
    pub fn takes_size_from_payload(&mut self) {
        self.sized_by_payload = true;
    }

    /// Holds the entry of an open flow until the end, and with `lingers` for a moment longer, where
    /// the client may still be sending.
    pub fn keep(&mut self, key: Option<FlowKey>, lingers: bool) {
        if let Some(mut key) = key {
            if lingers {
                key.linger();
            }
            self.keys.push(key);
        }
    }

    fn emit(&self, what: What) {
        (self.house.emit)(Event {
            test: self.claim.test,
            what,
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
    pub fn doubt(&mut self, doubt: Doubt) {
        self.emit(What::Doubted {
            doubt: doubt.clone(),
        });
        self.doubts.push(doubt);
    }

    /// Starts a worker for one direction of one flow.
    ///
    /// # Errors
    /// If no thread, memory or descriptor is available.
    pub fn spawn(
        &mut self,
        id: u32,
        part: Part,
        socket: Socket,
        work: impl FnOnce(&Context, &Socket) -> Moved + Send + 'static,
    ) -> Result<(), MeasureError> {
        self.take_room(LANE_BYTES, 1)?;
        let context = Context {
            meter: Arc::default(),
            times: Arc::default(),
            signals: Arc::clone(&self.signals),
        };
        let watch = socket::watch(&socket).ok();
        let thread = {
            let (context, ends, place) = (context.clone(), self.ends.clone(), self.lanes.len());
            std::thread::Builder::new()
                .name(format!("{}-{id}", self.dialect))
                .spawn(move || {
                    let moved = lived(&socket, || work(&context, &socket));
                    // The receiver lives in the test, which outlives this thread.
                    let _ = ends.send(place);
                    moved
                })
                .map_err(|error| MeasureError::system("new thread", error))?
        };
        self.lanes.push(Lane {
            id,
            part,
            context,
            watch,
            thread: Some(thread),
            moved: None,
        });
        Ok(())
    }

    /// Reserves memory for a buffer whose size the client chose.
    ///
    /// # Errors
    /// If all tests together would exceed the server's limit.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), MeasureError> {
        self.take_room(bytes, 0)
    }

    fn take_room(&mut self, bytes: u64, threads: usize) -> Result<(), MeasureError> {
        let taken = self.claim.reserve(Some(bytes), threads);
        taken.map_err(|refuse| MeasureError::PeerBusy {
            peer: self.peer,
            problem: Box::new(refuse.problem),
        })
    }

    /// Returns the totals of a flow so far, omitted payload included.
    #[must_use]
    pub fn totals(&self, id: u32) -> Totals {
        let lane = self.lanes.iter().find(|lane| lane.id == id);
        lane.map_or(Totals::default(), |lane| lane.context.meter.read())
    }

    /// Returns the totals of a flow in the omitted time.
    #[must_use]
    pub fn omitted(&self, id: u32) -> Totals {
        let base = self.base.as_ref().and_then(|base| base.get(&id));
        base.copied().unwrap_or_default()
    }

    /// Returns the result of a flow, once its worker has ended.
    #[must_use]
    pub fn moved(&self, id: u32) -> Option<&Moved> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        lane.moved.as_ref()
    }

    /// Returns whether the test is a single datagram from an unvalidated address, which may be
    /// forged. It was answered where the protocol answers, but there is nothing to measure.
    fn is_crumbs(&self) -> bool {
        let sum = self.sum();
        self.ends_by_silence && self.stranger.is_some() && sum.packets <= 1 && sum.calls <= 1
    }

    /// Returns the totals of all workers so far.
    #[must_use]
    pub fn sum(&self) -> Totals {
        let mut sum = Totals::default();
        for lane in &self.lanes {
            sum += lane.context.meter.read();
        }
        sum
    }

    /// Returns the time of the last change of the totals, as of the last poll.
    #[must_use]
    pub fn last_moved_ns(&self) -> Nanos {
        self.moved_ns.1
    }

    /// Returns the congestion control of its connections, once a worker has ended.
    #[must_use]
    pub fn congestion_control(&self) -> Option<String> {
        let moved = self.lanes.iter().filter_map(|lane| lane.moved.as_ref());
        let mut sockets = moved.filter_map(|moved| moved.socket.as_ref());
        sockets.find_map(|socket| socket.congestion_control.clone())
    }

    /// Returns the time from the first payload to the last, over all ended workers.
    #[must_use]
    pub fn span_ns(&self) -> Nanos {
        let spans = self
            .lanes
            .iter()
            .filter_map(|lane| lane.moved.as_ref()?.span);
        let whole = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        whole.map_or(0, |(first, last)| last.saturating_sub(first))
    }

    /// Returns whether all workers have ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.lanes.iter().all(|lane| lane.moved.is_some())
    }

    /// Emits intervals that are over and joins workers that have ended.
    pub fn look(&mut self) {
        self.start_with_payload();
        let now = clock::now();
        if self.base.is_none() && now >= self.counts_ns {
            let base = self
                .lanes
                .iter()
                .map(|lane| (lane.id, lane.context.meter.read()));
            self.base = Some(base.collect());
        }
        let moved = self.sum();
        let moved = moved.bytes.wrapping_add(moved.packets);
        if moved != self.moved_ns.0 {
            self.moved_ns = (moved, now);
        }
        while now >= self.interval_end() && self.reaches(self.interval_end()) {
            self.interval(self.interval_end());
        }
        for lane in &mut self.lanes {
            if lane.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                lane.end();
            }
        }
    }

    /// Returns whether the test lasted until `end`: waiting for missing payload at the end is not
    /// test time.
    fn reaches(&self, end: Nanos) -> bool {
        let spans = self.lanes.iter().filter_map(|lane| lane.context.span());
        let went_on = || spans.map(|(_, last)| last).max() > Some(end);
        self.over_ns.is_none_or(|over| end <= over || went_on())
    }

    /// Returns the end of the current interval; `Nanos::MAX` while the time does not run.
    #[must_use]
    pub fn interval_end(&self) -> Nanos {
        if self.waits || self.pauses {
            return Nanos::MAX;
        }
        let end = self.from_ns + INTERVAL_NS;
        if self.from_ns < self.counts_ns {
            return end.min(self.counts_ns);
        }
        end
    }

    /// Waits until `until`, until a worker ends, or until the next interval is over.
    pub fn wait(&mut self, until: Nanos) {
        let until = until.min(self.next_look());
        let patience = Duration::from_nanos(until.saturating_sub(clock::now()));
        if let Ok(place) = self.ended.recv_timeout(patience)
            && let Some(lane) = self.lanes.get_mut(place)
        {
            lane.end();
        }
        self.look();
    }

    /// Returns the limits of the server for one test.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.house.hall.limits()
    }

    /// Returns the processor time of all ended workers, user and system, in ns. The sum is exact.
    /// Where the split is not available all of it counts as system time, which is where nearly all
    /// the work of moving payload is done.
    #[must_use]
    pub fn processor_time(&self) -> (u64, u64) {
        let moved = self.lanes.iter().filter_map(|lane| lane.moved.as_ref());
        let sum = moved.fold(ThreadUsage::default(), |sum, moved| ThreadUsage {
            cpu_ns: sum.cpu_ns + moved.usage.cpu_ns,
            user_ns: sum.user_ns + moved.usage.user_ns,
            ..sum
        });
        let user_ns = match sum.knows_parts() {
            true => sum.user_ns.min(sum.cpu_ns),
            false => 0,
        };
        (user_ns, sum.cpu_ns - user_ns)
    }
}

impl Drop for Test {
    fn drop(&mut self) {
        self.join();
    }
}

impl Lane {
    fn direction(&self) -> Direction {
        direction(Role::Server, self.part)
    }

    fn goes_on(&self) -> bool {
        (self.thread.as_ref()).is_some_and(|thread| !thread.is_finished())
    }

    /// Joins a worker that ends by itself.
    fn end(&mut self) {
        self.join();
        if self.part == Part::Sink {
            // A client that has sent everything waits for this end to close, and counts that time
            // as its own.
            self.watch = None;
        }
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic is a bug of ours and has been reported; the other workers go on.
            self.moved = Some(thread.join().unwrap_or_default());
        }
    }
}
