//! Adapter that presents another tool's server to the coordinator as a control channel of ours.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_dialect::control::{FlowTotal, Frame, Outcome, Sent};
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{Ready, poll_any};
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use super::Speech;
use super::setup_context::foreign;
use crate::coordinator::Correspondence;
use crate::error::MeasureError;
use crate::flow::Shared;
use crate::interop::record::own_half;
use crate::netstack::StackThread;

/// Time without progress after which the server counts as gone.
const STALL_NS: Nanos = 10_000_000_000;

/// Silence after the end of the run that ends the server's datagrams, if it reported no end.
const SILENCE_NS: Nanos = 1_000_000_000;

/// Silence that ends the server's datagrams after this end was stopped and receives nothing more.
const CUT_OFF_SILENCE_NS: Nanos = 200_000_000;

/// Time before its planned end at which a server may stop sending: its clock started at another
/// moment.
const EARLY_NS: Nanos = 300_000_000;

/// Bytes below which a received stream, without a requested amount, is no payload: other servers
/// send a greeting (iperf3 one byte) and wait.
const GREETING_BYTES: u64 = 64;

/// Silence at the end of a run, beyond the gaps of its rate, from which a server counts as gone
/// whose connection did not break, or that has none.
const GONE_NS: Nanos = 2_000_000_000;

/// Rejected datagrams of a flow after which the port counts as closed: a receiver may start a
/// moment later than its sender. Kernels send six ICMP errors at once and then one per second
/// (Linux: net.ipv4.icmp_ratelimit).
const REFUSED_LIMIT: u32 = 3;

/// Protocols without a control connection over UDP.
const WITHOUT_CONNECTION: [&str; 6] = [
    "ttcp",
    "discard",
    "iperf2",
    "iperf2-legacy",
    "sockperf",
    "echo",
];

/// Returns whether ICMP rejections end the run: nothing else shows that the port is closed. With
/// `--far-report` the count may be taken in front of that port.
fn refuses_for_good(plan: &Plan) -> bool {
    let dialect = plan.dialect.as_deref().unwrap_or_default();
    WITHOUT_CONNECTION.contains(&dialect) && plan.far_report.is_none()
}

/// Returns the error for datagrams to a closed port, reported by the remote kernel only.
pub fn unheard(far: SocketAddr) -> MeasureError {
    foreign(
        far,
        "no receiver on that port: start one, or name its port with -p",
    )
}

/// Control channel over the protocol of another tool's server.
pub struct Talk<'a> {
    speech: &'a mut dyn Speech,
    plan: Arc<Plan>,
    peer: SocketAddr,
    shared: Vec<(Direction, Arc<Shared>)>,
    /// User-space stack that carries the payload, if any.
    stack: Option<&'a StackThread>,
    started_ns: Nanos,
    /// Totals that this end has sent, until the protocol driver takes them.
    sent: Option<Vec<FlowTotal>>,
    stopped: bool,
    early: bool,
    /// True once the coordinator was notified that the server has sent everything.
    told: bool,
    /// True if only silence showed that end.
    by_silence: bool,
    ended: bool,
    over: bool,
    /// Bytes or transactions so far, and the time of the last change or control event.
    moved: Cell<(u64, Nanos)>,
    /// Time of the last change alone.
    alive_ns: Cell<Nanos>,
}

impl<'a> Talk<'a> {
    /// Starts the test.
    ///
    /// # Errors
    /// If the server rejects it.
    pub fn new(
        speech: &'a mut dyn Speech,
        plan: &Arc<Plan>,
        peer: SocketAddr,
        shared: Vec<(Direction, Arc<Shared>)>,
        stack: Option<&'a StackThread>,
        stop: &AtomicBool,
    ) -> Result<Self, MeasureError> {
        speech.started(clock::now(), stop)?;
        let now = clock::now();
        Ok(Self {
            speech,
            plan: Arc::clone(plan),
            peer,
            shared,
            stack,
            started_ns: now,
            sent: None,
            stopped: false,
            early: false,
            told: false,
            by_silence: false,
            ended: false,
            over: false,
            moved: Cell::new((0, now)),
            alive_ns: Cell::new(now),
        })
    }

    /// Returns whether this end has stopped a server that only sends: later socket errors are a
    /// result of that.
    pub fn has_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the bytes moved in a direction.
    fn bytes(&self, direction: Direction) -> u64 {
        let flows = self.shared.iter().filter(|(way, _)| *way == direction);
        flows.map(|(_, shared)| shared.meter.read().bytes).sum()
    }

    /// Returns the planned end of the run; never for an amount.
    fn ends_ns(&self) -> Nanos {
        let whole = self.plan.duration_ns.map(|time| time + self.plan.omit_ns);
        whole.map_or(Nanos::MAX, |time| self.started_ns.saturating_add(time))
    }

    fn receives(&self) -> bool {
        self.plan.kind == Kind::Throughput && self.plan.flows(Direction::Receive)
    }

    /// Fails once nothing has moved for too long.
    fn watch(&self, now: Nanos) -> Result<(), MeasureError> {
        if !self.ended && self.stack.is_some_and(StackThread::is_over) {
            return Err(MeasureError::Vanished {
                peer: self.peer,
                how: "the port delivers no more frames".to_owned(),
            });
        }
        let moved = self.shared.iter().map(|(_, shared)| {
            let totals = shared.meter.read();
            match self.plan.kind {
                Kind::Throughput | Kind::Generate | Kind::Stack => totals.bytes,
                // Missed responses are not progress.
                Kind::Latency | Kind::Forward => totals.packets,
            }
        });
        let moved = moved.sum();
        let (before, since) = self.moved.get();
        if moved != before {
            self.moved.set((moved, now));
            self.alive_ns.set(now);
            return Ok(());
        }
        if self.ended || now < since.saturating_add(STALL_NS + self.gap_ns()) {
            return Ok(());
        }
        let what = match self.plan.kind {
            Kind::Throughput | Kind::Forward | Kind::Generate | Kind::Stack => "no payload moved",
            Kind::Latency => "no response arrived",
        };
        Err(foreign(
            self.peer,
            format!(
                "{what} for {} s: the server hangs, or the path to it is down; look at its process",
                STALL_NS / 1_000_000_000
            ),
        ))
    }

    /// Returns the longest gap that the plan's rate makes.
    fn gap_ns(&self) -> Nanos {
        let gap = self.plan.rate_bps.map_or(0, |rate| {
            self.plan.payload_bytes.saturating_mul(16_000_000_000) / rate.max(1)
        });
        let rate = self.plan.round_trip.rate_per_second;
        gap.max(rate.map_or(0, |rate| 2_000_000_000 / rate.max(1)))
    }

    /// Returns whether all received flows had an explicit end.
    fn has_heard_end(&self) -> bool {
        let mut flows = self.shared.iter();
        flows.all(|(way, shared)| *way == Direction::Send || shared.is_over())
    }

    /// Fails if the server was silent for the last part of the run and sent no end: it has gone or
    /// hangs, or the path from it is down.
    fn went_silent(&self, now: Nanos) -> Result<(), MeasureError> {
        let asks = self.plan.kind == Kind::Latency;
        // A stream that ends has an explicit end; a stalled one does not.
        let unsaid = match self.plan.protocol {
            Protocol::Udp => self.by_silence,
            Protocol::Tcp => self.plan.duration_ns.is_some(),
        };
        let receives = self.receives() && unsaid;
        // Payload sent in the other direction keeps the count moving.
        if self.early || !(asks || receives) || self.plan.directions.len() > 1 {
            return Ok(());
        }
        let silent = now.min(self.ends_ns()).saturating_sub(self.alive_ns.get());
        let patience = match asks {
            true => self.plan.answer_timeout_ns.unwrap_or(0),
            false => 0,
        };
        let had = self.bytes(Direction::Receive);
        let amount = self
            .plan
            .amount_bytes
            .filter(|_| receives && self.by_silence);
        let lacks = amount.is_some_and(|amount| had < amount - amount / 20);
        if silent < GONE_NS + patience + self.gap_ns() && !lacks {
            return Ok(());
        }
        let what = match asks {
            true => "no response arrived".to_owned(),
            false => format!("after {had} B nothing was received from the server"),
        };
        Err(foreign(
            self.peer,
            format!(
                "{what} in the last {:.1} s of the run: it was stopped, or the path to it is down; look at \
                 its process",
                silent as f64 / 1e9
            ),
        ))
    }

    /// Stops a server that only sends, and would not stop by itself.
    fn stop_in_time(&mut self, now: Nanos) {
        if self.stopped || self.plan.flows(Direction::Send) || !self.receives() {
            return;
        }
        let amount = self.plan.amount_bytes;
        let enough = amount.is_some_and(|amount| self.bytes(Direction::Receive) >= amount);
        // Of an amount of datagrams some may never arrive.
        let lost = self.plan.protocol == Protocol::Udp
            && amount.is_some()
            && self.moved.get().0 > 0
            && now >= self.moved.get().1 + SILENCE_NS;
        if enough || lost || now >= self.ends_ns() {
            self.stopped = true;
            self.speech.stop(now, false);
        }
    }

    /// Fails if a sending server stopped before its time, even if it closed in order.
    fn came_short(&self, now: Nanos) -> Result<(), MeasureError> {
        if self.early || !self.receives() {
            return Ok(());
        }
        let late = self.ends_ns().saturating_sub(now);
        let time = self.plan.duration_ns.unwrap_or(0);
        let had = self.bytes(Direction::Receive);
        let wanted = self.plan.amount_bytes.unwrap_or(0);
        let tcp = self.plan.protocol == Protocol::Tcp;
        let early = self.plan.duration_ns.is_some() && late > EARLY_NS && late > time / 20;
        let short = tcp && had < wanted;
        let greeted =
            tcp && wanted == 0 && had < GREETING_BYTES && !self.plan.flows(Direction::Send);
        if !early && !short && !greeted && had > 0 {
            return Ok(());
        }
        if greeted && had > 0 && !early {
            return Err(foreign(
                self.peer,
                format!(
                    "{had} B were received and then nothing, as from a server that waits for a message of another \
                     protocol: --peer auto detects the protocol"
                ),
            ));
        }
        let said = self.speech.complaint();
        let said = said.map_or_else(String::new, |said| format!(" (its message: {said})"));
        Err(foreign(
            self.peer,
            format!(
                "the server stopped sending before the end, after {had} B{said}: see its own messages, \
                 and whether it was stopped"
            ),
        ))
    }

    /// Returns the server's totals once it has sent everything, as far as that is known.
    fn far_sent(&mut self, now: Nanos) -> Option<Vec<FlowTotal>> {
        if self.told || !self.receives() {
            return None;
        }
        let said = self.speech.far_sent();
        self.by_silence = said.is_none() && !self.has_heard_end();
        let udp = self.plan.protocol == Protocol::Udp;
        let silence = match self.early {
            true => CUT_OFF_SILENCE_NS,
            false => SILENCE_NS,
        };
        let silent = now >= self.moved.get().1.saturating_add(silence);
        let time = now >= self.ends_ns().saturating_add(SILENCE_NS) || self.early;
        said.or_else(|| (udp && silent && time).then(Vec::new))
    }
}

impl Correspondence for Talk<'_> {
    fn hear(&mut self) -> Result<Option<Frame>, MeasureError> {
        let now = clock::now();
        if let Some(flows) = self.sent.take() {
            self.moved.set((self.moved.get().0, now));
            self.speech.sent(now, &flows);
        }
        self.speech.turn(now)?;
        self.watch(now)?;
        self.stop_in_time(now);
        if let Some(totals) = self.far_sent(now) {
            self.told = true;
            for (_, shared) in self
                .shared
                .iter()
                .filter(|(way, _)| *way == Direction::Receive)
            {
                shared.expect_no_more();
            }
            return Ok(Some(Sent { flows: totals }.into()));
        }
        if self.ended && !self.over && self.speech.is_over() {
            self.over = true;
            let host = linerate_metric::facts::Host::default();
            return Ok(Some(own_half(Role::Server, host, &self.plan, &[]).into()));
        }
        Ok(None)
    }

    fn say(&mut self, frame: Frame) -> Result<(), MeasureError> {
        let now = clock::now();
        match frame {
            // The frames of several flows come one after another: the next poll takes them all.
            Frame::Sent(said) => self.sent.get_or_insert_default().extend(said.flows),
            Frame::Stop(_) => {
                self.early = true;
                self.stopped = true;
                self.speech.stop(now, true);
            }
            Frame::Outcome(outcome) => {
                self.ended = true;
                let outcome: Outcome = *outcome;
                self.speech.ended(now, &outcome);
                self.came_short(now)?;
                self.went_silent(now)?;
            }
            _ => {}
        }
        self.speech.turn(now)
    }

    fn beat(&mut self) -> Result<(), MeasureError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MeasureError> {
        Ok(())
    }

    fn wait(&self, other: Option<BorrowedFd<'_>>, deadline: Nanos) -> Result<(), MeasureError> {
        let left = Duration::from_nanos(deadline.saturating_sub(clock::now()));
        let mut wanted: Vec<_> = (self.speech.listens().into_iter())
            .map(|fd| (fd, Ready::Receive))
            .collect();
        wanted.extend(other.map(|fd| (fd, Ready::Receive)));
        poll_any(&wanted, left)
            .map(|_| ())
            .map_err(|error| MeasureError::system("poll", error))
    }

    fn refused(&self, datagrams: u32) -> Result<(), MeasureError> {
        match datagrams < REFUSED_LIMIT || self.ended || !refuses_for_good(&self.plan) {
            true => Ok(()),
            false => Err(unheard(self.peer)),
        }
    }

    fn due_ns(&self) -> Nanos {
        let now = clock::now();
        let due = self.speech.due_ns(now);
        let due = match self.receives() && self.plan.amount_bytes.is_some() && !self.stopped {
            true => due.min(now + 5_000_000),
            false => due,
        };
        if self.sent.is_some() {
            return now;
        }
        match self.ends_ns() {
            ends if !self.stopped && ends > now => due.min(ends),
            _ => due,
        }
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_counters::Totals;
    use crate::interop::client::CalledFlow;

    /// Server that sends no control message.
    struct Mute;

    impl Speech for Mute {
        fn flows(&mut self) -> Vec<CalledFlow> {
            Vec::new()
        }

        fn turn(&mut self, _: Nanos) -> Result<(), MeasureError> {
            Ok(())
        }

        fn stop(&mut self, _: Nanos, _early: bool) {}

        fn is_over(&self) -> bool {
            true
        }

        fn agent(&self) -> String {
            "mute".to_owned()
        }
    }

    const SECOND: Nanos = 1_000_000_000;

    /// Returns whether a run of 10 s reports a lost server that moved payload last at
    /// `last_progress_ns`.
    fn told(
        kind: Kind,
        direction: Direction,
        alive: Nanos,
        change: impl FnOnce(&mut Talk<'_>),
    ) -> bool {
        let mut plan = Plan::new(kind, Protocol::Udp, "far");
        plan.duration_ns = Some(10 * SECOND);
        plan.directions = vec![direction];
        let shared = Arc::new(Shared::default());
        shared.meter.publish(&Totals {
            bytes: 1_000,
            packets: 1,
            ..Totals::default()
        });
        let mut mute = Mute;
        let peer = SocketAddr::from(([192, 0, 2, 1], 5001));
        let (flows, stop) = (vec![(direction, shared)], AtomicBool::new(false));
        let mut talk = Talk::new(&mut mute, &Arc::new(plan), peer, flows, None, &stop).unwrap();
        let start = talk.started_ns;
        talk.alive_ns.set(start + alive);
        talk.by_silence = true;
        change(&mut talk);
        talk.went_silent(start + 11 * SECOND).is_err()
    }

    #[test]
    fn a_far_end_without_a_connection_is_missed_at_the_end() {
        use Direction::{Receive, Send};
        let none = |_: &mut Talk<'_>| {};
        assert!(told(Kind::Throughput, Receive, 4 * SECOND, none));
        assert!(!told(Kind::Throughput, Receive, 9 * SECOND, none));
        // A stream too; a regular end in time is no silence.
        assert!(told(Kind::Throughput, Receive, 4 * SECOND, |talk| {
            Arc::make_mut(&mut talk.plan).protocol = Protocol::Tcp;
            talk.by_silence = false;
        }));
        // A server that sent its end was there, and a sending client receives nothing anyway.
        assert!(!told(Kind::Throughput, Receive, 4 * SECOND, |talk| talk
            .by_silence =
            false));
        assert!(!told(Kind::Throughput, Receive, 4 * SECOND, |talk| talk
            .early =
            true));
        assert!(!told(Kind::Throughput, Send, 4 * SECOND, none));
        assert!(told(Kind::Latency, Send, 4 * SECOND, none));
        // A request has one second for its response.
        assert!(!told(Kind::Latency, Send, 7_500_000_000, none));
        assert!(told(Kind::Throughput, Receive, 10 * SECOND, |talk| {
            let plan = Arc::make_mut(&mut talk.plan);
            (plan.duration_ns, plan.amount_bytes) = (None, Some(1_000_000));
        }));
    }

    #[test]
    fn an_end_that_came_with_payload_is_no_silence() {
        let plan = |_: &mut Talk<'_>| {};
        assert!(told(Kind::Throughput, Direction::Receive, SECOND, plan));
        let heard = told(Kind::Throughput, Direction::Receive, SECOND, |talk| {
            talk.shared[0].1.expect_no_more();
            let _ = talk.far_sent(talk.started_ns + 20 * SECOND);
        });
        assert!(!heard);
        let unheard = told(Kind::Throughput, Direction::Receive, SECOND, |talk| {
            assert!(talk.far_sent(talk.started_ns + 20 * SECOND).is_some());
        });
        assert!(unheard);
    }
}
