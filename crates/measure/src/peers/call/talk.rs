//! Puts a dialect into the words of our own conversation, for the coordinator.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_dialect::control::{FlowTotal, Frame, Outcome, Sent};
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::wait::{Ready, poll_any};
use linerate_metric::facts::Role;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use super::Speech;
use super::context::foreign;
use crate::end::Correspondence;
use crate::error::MeasureError;
use crate::flow::Shared;
use crate::peers::record::own_half;
use crate::stack::StackThread;

/// Without any progress for so long, the far end is gone.
const STALL_NS: Nanos = 10_000_000_000;

/// Silence after its time after which datagrams of the far end are over, if it did not say so.
const SILENCE_NS: Nanos = 1_000_000_000;

/// The same where this end was told to stop, and takes nothing more.
const CUT_OFF_SILENCE_NS: Nanos = 200_000_000;

/// How much before its time a far end may stop sending: its clock runs from a moment of its own.
const EARLY_NS: Nanos = 300_000_000;

/// A stream of fewer bytes, without an amount that was asked for, is no payload: other programs' servers greet
/// with some (iperf3 with one) and wait.
const GREETING_BYTES: u64 = 64;

/// Silence at the end of a run, beyond what its rate makes, from which a far end has gone whose connection did
/// not break, or that has none.
const GONE_NS: Nanos = 2_000_000_000;

/// Refused datagrams of a flow after which nobody is there: a receiver may come a moment later than its
/// sender. Kernels tell six at once and one a second then (Linux's net.ipv4.icmp_ratelimit).
const REFUSED_LIMIT: u32 = 3;

/// Dialects that have nothing but datagrams over UDP.
const WITHOUT_CONNECTION: [&str; 6] = [
    "ttcp",
    "discard",
    "iperf2",
    "iperf2-legacy",
    "sockperf",
    "echo",
];

/// Whether a far port that refuses ends the run: nothing else tells that nobody has it. Where a command tells
/// what arrived, it may count in front of that port.
fn refuses_for_good(plan: &Plan) -> bool {
    let dialect = plan.dialect.as_deref().unwrap_or_default();
    WITHOUT_CONNECTION.contains(&dialect) && plan.far_report.is_none()
}

/// Datagrams that nobody takes, where nobody says so but the far kernel.
pub fn unheard(far: SocketAddr) -> MeasureError {
    foreign(
        far,
        "nobody takes datagrams on that port: start the receiver, or name its port with -p",
    )
}

/// A foreign far end, as the coordinator talks with it.
pub struct Talk<'a> {
    speech: &'a mut dyn Speech,
    plan: Arc<Plan>,
    peer: SocketAddr,
    shared: Vec<(Direction, Arc<Shared>)>,
    /// Our own stack, where it is what the payload goes over.
    stack: Option<&'a StackThread>,
    started_ns: Nanos,
    /// What this end has sent, from when that is known until the dialect knows it.
    sent: Option<Vec<FlowTotal>>,
    stopped: bool,
    early: bool,
    /// It was said that the far end has sent all.
    told: bool,
    /// Nobody said so but its silence.
    by_silence: bool,
    ended: bool,
    over: bool,
    /// What has moved, and when that last changed.
    moved: Cell<(u64, Nanos)>,
    /// When anything moved last, whatever was said meanwhile.
    alive_ns: Cell<Nanos>,
}

impl<'a> Talk<'a> {
    /// A conversation that begins now.
    ///
    /// # Errors
    /// When the far end does not go along.
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

    /// Whether this end has stopped a far end that only sends: what breaks then was cut off by us.
    pub fn has_stopped(&self) -> bool {
        self.stopped
    }

    /// What moves in a direction.
    fn bytes(&self, direction: Direction) -> u64 {
        let flows = self.shared.iter().filter(|(way, _)| *way == direction);
        flows.map(|(_, shared)| shared.meter.read().bytes).sum()
    }

    /// When the time of the run is over; never for an amount.
    fn ends_ns(&self) -> Nanos {
        let whole = self.plan.duration_ns.map(|time| time + self.plan.omit_ns);
        whole.map_or(Nanos::MAX, |time| self.started_ns.saturating_add(time))
    }

    fn receives(&self) -> bool {
        self.plan.kind == Kind::Throughput && self.plan.flows(Direction::Receive)
    }

    /// Gives up a far end that lets nothing move.
    fn watch(&self, now: Nanos) -> Result<(), MeasureError> {
        if !self.ended && self.stack.is_some_and(StackThread::is_over) {
            return Err(MeasureError::Vanished {
                peer: self.peer,
                how: "nothing comes from the port any more".to_owned(),
            });
        }
        let moved = self.shared.iter().map(|(_, shared)| {
            let totals = shared.meter.read();
            match self.plan.kind {
                Kind::Throughput | Kind::Generate | Kind::Stack => totals.bytes,
                // Missed answers move nothing.
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
            Kind::Latency => "no question was answered",
        };
        Err(foreign(
            self.peer,
            format!(
                "{what} for {} s: the far end hangs, or the way to it is down; look at its process",
                STALL_NS / 1_000_000_000
            ),
        ))
    }

    /// Silence that belongs to the plan: at a low rate, payload is not due all the time.
    fn gap_ns(&self) -> Nanos {
        let gap = self.plan.rate_bps.map_or(0, |rate| {
            self.plan.payload_bytes.saturating_mul(16_000_000_000) / rate.max(1)
        });
        let rate = self.plan.round_trip.rate_per_second;
        gap.max(rate.map_or(0, |rate| 2_000_000_000 / rate.max(1)))
    }

    /// Whether the end of all that comes was said with it.
    fn has_heard_end(&self) -> bool {
        let mut flows = self.shared.iter();
        flows.all(|(way, shared)| *way == Direction::Send || shared.is_over())
    }

    /// A far end that was silent for the last part of the run, and said no end: it went away or stands still,
    /// or the way from it is down.
    fn went_silent(&self, now: Nanos) -> Result<(), MeasureError> {
        let asks = self.plan.kind == Kind::Latency;
        // A stream that ends says so; one that stands still at the end of its time does not.
        let unsaid = match self.plan.protocol {
            Protocol::Udp => self.by_silence,
            Protocol::Tcp => self.plan.duration_ns.is_some(),
        };
        let receives = self.receives() && unsaid;
        // What is sent beside it keeps the count moving.
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
            true => "no question was answered".to_owned(),
            false => format!("after {had} B nothing came from the far end"),
        };
        Err(foreign(
            self.peer,
            format!(
                "{what} in the last {:.1} s of the run: it was stopped, or the way to it is down; look at \
                 its process",
                silent as f64 / 1e9
            ),
        ))
    }

    /// Stops a far end that only sends, and would not stop by itself.
    fn stop_in_time(&mut self, now: Nanos) {
        if self.stopped || self.plan.flows(Direction::Send) || !self.receives() {
            return;
        }
        let amount = self.plan.amount_bytes;
        let enough = amount.is_some_and(|amount| self.bytes(Direction::Receive) >= amount);
        // Of an amount of datagrams some may never come.
        let lost = self.plan.protocol == Protocol::Udp
            && amount.is_some()
            && self.moved.get().0 > 0
            && now >= self.moved.get().1 + SILENCE_NS;
        if enough || lost || now >= self.ends_ns() {
            self.stopped = true;
            self.speech.stop(now, false);
        }
    }

    /// A far end that sends and stops before its time broke off, even if it closed in order.
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
                    "{had} B came and then nothing, as from a server that waits for words of another \
                     dialect: --peer auto finds out which"
                ),
            ));
        }
        let said = self.speech.complaint();
        let said = said.map_or_else(String::new, |said| format!(" (it said: {said})"));
        Err(foreign(
            self.peer,
            format!(
                "the far end stopped sending before the end, after {had} B{said}: look at its own messages, \
                 and whether it was stopped"
            ),
        ))
    }

    /// That the far end has sent all, where that is known by now.
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
            // The frames of many flows come one after another: the next look has them all.
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
    use crate::meter::Totals;
    use crate::peers::call::CalledFlow;

    /// A far end that says nothing.
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

    /// Whether a run of 10 s is told to have lost its far end that moved something last at `alive`.
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
        // A stream too; its end in time is not silent.
        assert!(told(Kind::Throughput, Receive, 4 * SECOND, |talk| {
            Arc::make_mut(&mut talk.plan).protocol = Protocol::Tcp;
            talk.by_silence = false;
        }));
        // Whoever said the end was there, and whoever sends hears nothing anyway.
        assert!(!told(Kind::Throughput, Receive, 4 * SECOND, |talk| talk
            .by_silence =
            false));
        assert!(!told(Kind::Throughput, Receive, 4 * SECOND, |talk| talk
            .early =
            true));
        assert!(!told(Kind::Throughput, Send, 4 * SECOND, none));
        assert!(told(Kind::Latency, Send, 4 * SECOND, none));
        // A question has a second for its answer.
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
