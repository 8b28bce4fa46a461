//! One test with a program of another kind, as the server sees it: it keeps time while its threads move
//! payload, tells of each interval, and makes the record.

mod ending;
mod record;
mod series;

pub use ending::Limit;

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

use self::series::Held;
use super::lane::{Context, Moved, Signals, lived};
use super::limits::Limits;
use super::{Caller, FlowKey, Stranger};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::meter::Totals;
use crate::peers::record::direction;
use crate::session::house::{Claim, House};
use crate::tcp_series::TcpSums;

/// Time between two lines about a test.
const INTERVAL_NS: Nanos = 1_000_000_000;

/// A last interval that is shorter is not told, unless it is the only one: a rate over less time is
/// noise, and its figures are in the whole. Ends of clients come some milliseconds late.
const SHORTEST_NS: Nanos = INTERVAL_NS / 10;

/// The same of the only one.
const SHORTEST_ALONE_NS: Nanos = 20_000_000;

/// How long a client may move nothing in a test that has begun.
pub const IDLE: Duration = Duration::from_secs(30);

/// The same where nothing but payload comes: who is silent so long has gone.
pub const PLAIN_IDLE: Duration = Duration::from_secs(10);

/// The same of a flow of datagrams whose end was not heard: its client may have been stopped for a while.
pub const FLOW_SILENCE: Duration = Duration::from_secs(12);

/// What a thread takes: its stack as far as it is used, its buffer, the window of numbers.
const LANE_BYTES: u64 = 512 << 10;

/// One test.
pub struct Test {
    house: Arc<House>,
    claim: Claim,
    dialect: &'static str,
    peer: SocketAddr,
    /// What its client calls itself.
    agent: String,
    plan: Plan,
    /// What its threads are told.
    pub signals: Arc<Signals>,
    lanes: Vec<Lane>,
    /// Places of threads that have nothing left to do.
    ended: mpsc::Receiver<usize>,
    ends: mpsc::Sender<usize>,
    started: Timestamp,
    start_ns: Nanos,
    /// No payload has moved yet, and with it time begins.
    waits: bool,
    /// The threads before this one belong to a part that is over, and the next part has no payload yet.
    part: usize,
    pauses: bool,
    /// When counting begins, and what was there then, by lane.
    counts_ns: Nanos,
    base: Option<BTreeMap<u32, Totals>>,
    /// Since when both ends know that it is over.
    over_ns: Option<Nanos>,
    from_ns: Nanos,
    number: u64,
    last: BTreeMap<Direction, (Totals, TcpSums)>,
    /// What had moved when it was looked at last that something did, and when that was.
    moved_ns: (u64, Nanos),
    intervals: Vec<Interval>,
    left_out: u64,
    /// Intervals that end in silence, which may be the one after the end.
    held: Held,
    /// Whether silence ends it.
    ends_by_silence: bool,
    /// Whether its clients say no end: silence is all that there is of one.
    says_no_end: bool,
    /// Whether numbers on its datagrams tell what is missing.
    numbered: bool,
    /// Whether the size of its datagrams is the one that came, and not one that was agreed on.
    sized_by_payload: bool,
    doubts: Vec<Doubt>,
    interrupted: bool,
    /// Held until its end.
    keys: Vec<FlowKey>,
    stranger: Option<Stranger>,
}

struct Lane {
    id: u32,
    part: Part,
    context: Context,
    /// Its socket to look at, and to wake it by.
    watch: Option<OwnedFd>,
    thread: Option<JoinHandle<Moved>>,
    moved: Option<Moved>,
}

impl Test {
    /// Begins it: tells who it is and what it does.
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

    /// Nothing but silence tells its end.
    #[must_use]
    pub fn ending_by_silence(mut self) -> Self {
        self.ends_by_silence = true;
        self
    }

    /// The same where its clients never say one.
    #[must_use]
    pub fn without_an_end(mut self) -> Self {
        self.says_no_end = true;
        self.ending_by_silence()
    }

    /// Time begins at a moment that both ends know, and not with the first payload.
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

    /// Whether its time has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        !self.waits
    }

    /// Time begins with the first payload, and goes on with that of the next part.
    fn start_with_payload(&mut self) {
        let lanes = self.lanes[self.part..].iter();
        let spans = lanes.filter_map(|lane| lane.context.span());
        let Some(first) = spans.map(|(first, _)| first).min() else {
            return;
        };
        if self.plan.kind == Kind::Latency && self.number == 0 && first > self.start_ns {
            // What came before was no part of it, as it shows later.
            self.waits = true;
        }
        self.start_at(first);
        if std::mem::take(&mut self.pauses) {
            self.from_ns = first.max(self.from_ns);
        }
    }

    /// Both ends know from now on that it is over. What is still on its way belongs to it; ends that are heard
    /// later do not.
    pub fn over_at(&mut self, now: Nanos) {
        self.over_ns.get_or_insert(now);
    }

    /// When a thread that has ended moved payload first, and when its time was over.
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

    /// The time of a thread that has ended, without what was omitted.
    fn lane_ns(&self, lane: &Lane) -> Option<Nanos> {
        let (first, last) = self.span(lane)?;
        // One that ends before counting begins has no other figures than those.
        let from = match self.base {
            Some(_) if self.plan.omit_ns > 0 => first.max(self.counts_ns),
            _ => first,
        };
        Some(last.saturating_sub(from))
    }

    /// The time that a flow counts, once it has ended.
    #[must_use]
    pub fn duration_ns(&self, id: u32) -> Option<Nanos> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        self.lane_ns(lane)
    }

    /// All threads have ended, and those that come are a part of their own: between the two nothing is to
    /// move, and no interval tells that it did not.
    pub fn next_part(&mut self) {
        self.end_intervals();
        self.last.clear();
        (self.part, self.pauses) = (self.lanes.len(), true);
    }

    /// Its datagrams carry numbers that tell what is missing.
    pub fn with_numbers(&mut self, numbered: bool) {
        self.numbered = numbered;
    }

    /// Nobody said how large its datagrams would be.
    pub fn takes_size_from_payload(&mut self) {
        self.sized_by_payload = true;
    }

    /// Keeps a flow from being opened again until the end, and for a moment longer where its client
    /// may go on meanwhile.
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

    /// What it does.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// When it began.
    #[must_use]
    pub fn start_ns(&self) -> Nanos {
        self.start_ns
    }

    /// Adds something that speaks against its figures.
    pub fn doubt(&mut self, doubt: Doubt) {
        self.emit(What::Doubted {
            doubt: doubt.clone(),
        });
        self.doubts.push(doubt);
    }

    /// Starts a thread for one direction of one flow.
    ///
    /// # Errors
    /// When there is no thread, memory or descriptor to be had.
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
                    // Its test lives longer than it does.
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

    /// Takes room for a buffer that its client chose the size of.
    ///
    /// # Errors
    /// When all tests together would have too much.
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

    /// What a lane has moved so far, omitted payload included.
    #[must_use]
    pub fn totals(&self, id: u32) -> Totals {
        let lane = self.lanes.iter().find(|lane| lane.id == id);
        lane.map_or(Totals::default(), |lane| lane.context.meter.read())
    }

    /// What a lane moved in the omitted time.
    #[must_use]
    pub fn omitted(&self, id: u32) -> Totals {
        let base = self.base.as_ref().and_then(|base| base.get(&id));
        base.copied().unwrap_or_default()
    }

    /// What a lane came to, once it has ended.
    #[must_use]
    pub fn moved(&self, id: u32) -> Option<&Moved> {
        let lane = self.lanes.iter().find(|lane| lane.id == id)?;
        lane.moved.as_ref()
    }

    /// Whether it is one datagram from an address that proved nothing, which anybody may have sent. It was
    /// answered where its dialect answers; of a measurement it has nothing.
    fn is_crumbs(&self) -> bool {
        let sum = self.sum();
        self.ends_by_silence && self.stranger.is_some() && sum.packets <= 1 && sum.calls <= 1
    }

    /// All that its threads have moved, to see whether anything moves.
    #[must_use]
    pub fn sum(&self) -> Totals {
        let mut sum = Totals::default();
        for lane in &self.lanes {
            sum += lane.context.meter.read();
        }
        sum
    }

    /// When payload moved last, as far as was looked.
    #[must_use]
    pub fn last_moved_ns(&self) -> Nanos {
        self.moved_ns.1
    }

    /// The congestion control of its connections, as far as one has ended.
    #[must_use]
    pub fn congestion_control(&self) -> Option<String> {
        let moved = self.lanes.iter().filter_map(|lane| lane.moved.as_ref());
        let mut sockets = moved.filter_map(|moved| moved.socket.as_ref());
        sockets.find_map(|socket| socket.congestion_control.clone())
    }

    /// From the first payload to the last, of all threads that have ended.
    #[must_use]
    pub fn span_ns(&self) -> Nanos {
        let spans = self
            .lanes
            .iter()
            .filter_map(|lane| lane.moved.as_ref()?.span);
        let whole = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        whole.map_or(0, |(first, last)| last.saturating_sub(first))
    }

    /// Whether all threads have ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.lanes.iter().all(|lane| lane.moved.is_some())
    }

    /// Tells of intervals that are over, and takes in threads that have ended.
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

    /// Whether it went on until then: the wait for what is missing at the end is no time of it.
    fn reaches(&self, end: Nanos) -> bool {
        let spans = self.lanes.iter().filter_map(|lane| lane.context.span());
        let went_on = || spans.map(|(_, last)| last).max() > Some(end);
        self.over_ns.is_none_or(|over| end <= over || went_on())
    }

    /// When the interval that goes on is over.
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

    /// Waits until `until`, until a thread ends, or until there is something to tell.
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

    /// What its client is given at most.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.house.hall.limits()
    }

    /// Processor time of its threads so far: of all that have ended, user and system, in ns. The sum is
    /// exact; where its parts are not known all of it is the system's, as nearly all of moving payload is.
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

    /// Takes in its thread, which ends by itself.
    fn end(&mut self) {
        self.join();
        if self.part == Part::Sink {
            // A client that has sent all waits for this end to close, and counts that time as its own.
            self.watch = None;
        }
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic is a bug of ours and has been told; the others go on.
            self.moved = Some(thread.join().unwrap_or_default());
        }
    }
}
