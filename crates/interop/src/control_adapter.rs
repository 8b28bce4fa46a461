//! Adapter that presents another tool's server to the coordinator as a control channel of ours.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_protocol::control::{EndResults, FlowTotal, Frame, SenderTotals};
use linerate_record::facts::Role;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_session::coordinator::ControlChannel;
use linerate_session::error::SessionError;
use linerate_session::third_party_record::local_results;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::{Readiness, poll_any};
use linerate_transport::stack_thread::StackThread;
use linerate_workload::flow::FlowShared;

use super::ClientProtocol;
use super::setup_context::protocol_error;

/// Time without progress after which the server counts as gone.
const STALL_TIMEOUT_NS: Nanos = 10_000_000_000;

/// Silence after the end of the run that ends the server's datagrams, if it reported no end.
const SILENCE_TIMEOUT_NS: Nanos = 1_000_000_000;

/// Silence that ends the server's datagrams after this end was stopped and receives nothing more.
const STOPPED_SILENCE_TIMEOUT_NS: Nanos = 200_000_000;

/// Time before its planned end at which a server may stop sending: its clock started at another
/// moment.
const EARLY_END_TOLERANCE_NS: Nanos = 300_000_000;

/// Bytes below which a received stream, without a requested amount, is no payload: other servers
/// send a greeting (iperf3 one byte) and wait.
const GREETING_LIMIT_BYTES: u64 = 64;

/// Silence at the end of a run, beyond the gaps of its rate, from which a server counts as lost
/// without a broken connection: the run divided by this number, within the bounds below.
const LOST_SERVER_RUN_DIVISOR: Nanos = 4;

/// Bounds of that silence. A retransmission after its first time-outs (0.2 and 0.4 s on a short
/// path) is shorter.
const LOST_SERVER_RANGE_NS: (Nanos, Nanos) = (500_000_000, 1_000_000_000);

/// Silence beyond the response time-out from which a responder counts as lost.
const LOST_RESPONDER_NS: Nanos = 100_000_000;

/// Multiple of the longest gap so far that is no silence either: retransmission time-outs double
/// (RFC 6298 section 5.5).
const LONGEST_GAP_FACTOR: Nanos = 2;

/// Poll interval of a run in which payload arrives: the resolution of its gaps.
const GAP_POLL_NS: Nanos = 50_000_000;

/// Rejected datagrams of a flow after which the port counts as closed: a receiver may start a
/// moment later than its sender. Kernels send six ICMP errors at once and then one per second
/// (Linux: net.ipv4.icmp_ratelimit).
const REJECTED_DATAGRAM_LIMIT: u32 = 3;

/// Protocols without a control connection over UDP.
const UDP_ONLY_PROTOCOLS: [&str; 6] = [
    "ttcp",
    "discard",
    "iperf2",
    "iperf2-legacy",
    "sockperf",
    "echo",
];

/// Returns whether ICMP rejections end the run: nothing else shows that the port is closed. With
/// `--far-report` the count may be taken in front of that port.
fn rejections_end_run(plan: &Plan) -> bool {
    let protocol = plan.peer_protocol.as_deref().unwrap_or_default();
    UDP_ONLY_PROTOCOLS.contains(&protocol) && plan.server_report_command.is_none()
}

/// Returns the error for datagrams to a closed port, reported by the remote kernel only.
pub fn closed_port_error(remote: SocketAddr) -> SessionError {
    protocol_error(
        remote,
        "no receiver on that port: start one, or name its port with -p",
    )
}

/// Control channel over the protocol of another tool's server.
pub struct ControlAdapter<'a> {
    driver: &'a mut dyn ClientProtocol,
    plan: Arc<Plan>,
    peer: SocketAddr,
    shared: Vec<(Direction, Arc<FlowShared>)>,
    /// User-space stack that carries the payload, if any.
    netstack: Option<&'a StackThread>,
    started_ns: Nanos,
    /// Totals that this end has sent, until the protocol driver takes them.
    sent_totals: Option<Vec<FlowTotal>>,
    stopped: bool,
    early: bool,
    /// True once the coordinator was notified that the server has sent everything.
    end_notified: bool,
    /// True if only silence showed that end.
    ended_by_silence: bool,
    local_ended: bool,
    finished: bool,
    /// Bytes or transactions so far, and the time of the last change or control event.
    progress: Cell<(u64, Nanos)>,
    /// What arrived from the server so far.
    arrivals: Cell<Arrivals>,
}

/// Payload or responses that arrived from the server.
#[derive(Clone, Copy, Default)]
struct Arrivals {
    /// Bytes or responses.
    count: u64,
    /// Time of the last change, as polled.
    last_ns: Nanos,
    /// Longest time without a change before that.
    longest_gap_ns: Nanos,
}

impl Arrivals {
    fn update(self, count: u64, now: Nanos) -> Self {
        if count == self.count {
            return self;
        }
        Self {
            count,
            last_ns: now,
            longest_gap_ns: self.longest_gap_ns.max(now.saturating_sub(self.last_ns)),
        }
    }
}

impl<'a> ControlAdapter<'a> {
    /// Starts the test.
    ///
    /// # Errors
    /// If the server rejects it.
    pub fn new(
        driver: &'a mut dyn ClientProtocol,
        plan: &Arc<Plan>,
        peer: SocketAddr,
        shared: Vec<(Direction, Arc<FlowShared>)>,
        netstack: Option<&'a StackThread>,
        stop: &AtomicBool,
    ) -> Result<Self, SessionError> {
        driver.start(clock::now(), stop)?;
        let now = clock::now();
        Ok(Self {
            driver,
            plan: Arc::clone(plan),
            peer,
            shared,
            netstack,
            started_ns: now,
            sent_totals: None,
            stopped: false,
            early: false,
            end_notified: false,
            ended_by_silence: false,
            local_ended: false,
            finished: false,
            progress: Cell::new((0, now)),
            arrivals: Cell::new(Arrivals {
                last_ns: now,
                ..Arrivals::default()
            }),
        })
    }

    /// Returns whether this end has stopped a server that only sends: later socket errors are a
    /// result of that.
    pub fn has_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the bytes moved in a direction.
    fn bytes(&self, direction: Direction) -> u64 {
        let flows = self
            .shared
            .iter()
            .filter(|(flow_direction, _)| *flow_direction == direction);
        flows.map(|(_, shared)| shared.counters.read().bytes).sum()
    }

    /// Returns the planned end of the run; never for an amount.
    fn planned_end_ns(&self) -> Nanos {
        let total_ns = self.plan.duration_ns.map(|time| time + self.plan.omit_ns);
        total_ns.map_or(Nanos::MAX, |time| self.started_ns.saturating_add(time))
    }

    fn receives(&self) -> bool {
        self.plan.kind == RunKind::Throughput && self.plan.has_direction(Direction::Receive)
    }

    /// Fails once nothing has moved for too long.
    fn check_stall(&self, now: Nanos) -> Result<(), SessionError> {
        if !self.local_ended && self.netstack.is_some_and(StackThread::is_unusable) {
            return Err(SessionError::PeerLost {
                peer: self.peer,
                reason: "the port delivers no more frames".to_owned(),
            });
        }
        let is_latency = self.plan.kind == RunKind::Latency;
        let (mut progress, mut arrived) = (0, 0);
        for (direction, shared) in &self.shared {
            let totals = shared.counters.read();
            let moved = match self.plan.kind {
                RunKind::Throughput | RunKind::Generate | RunKind::Stack => totals.bytes,
                // Missed responses are not progress.
                RunKind::Latency | RunKind::Forward => totals.packets,
            };
            progress += moved;
            if is_latency || *direction == Direction::Receive {
                arrived += moved;
            }
        }
        self.arrivals.set(self.arrivals.get().update(arrived, now));
        let (before, since) = self.progress.get();
        if progress != before {
            self.progress.set((progress, now));
            return Ok(());
        }
        if self.local_ended || now < since.saturating_add(STALL_TIMEOUT_NS + self.gap_ns()) {
            return Ok(());
        }
        let situation = match self.plan.kind {
            RunKind::Throughput | RunKind::Forward | RunKind::Generate | RunKind::Stack => {
                "no payload moved"
            }
            RunKind::Latency => "no response arrived",
        };
        Err(protocol_error(
            self.peer,
            format!(
                "{situation} for {} s: the server hangs, or the path to it is down; look at its process",
                STALL_TIMEOUT_NS / 1_000_000_000
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
    fn has_received_end(&self) -> bool {
        let mut flows = self.shared.iter();
        flows.all(|(flow_direction, shared)| {
            *flow_direction == Direction::Send || shared.has_sender_ended()
        })
    }

    /// Returns the longest silence at the end of the run that this path and this run explain.
    fn silence_limit_ns(&self) -> Nanos {
        let (shortest, longest) = LOST_SERVER_RANGE_NS;
        let run_ns = self.plan.duration_ns.unwrap_or(Nanos::MAX);
        let (pause_ns, response_ns) = match self.plan.kind {
            RunKind::Latency => (
                LOST_RESPONDER_NS,
                self.plan.response_timeout_ns.unwrap_or(0),
            ),
            _ => (
                (run_ns / LOST_SERVER_RUN_DIVISOR).clamp(shortest, longest),
                0,
            ),
        };
        // The first gap begins with the run and has the round trip of the path in it.
        pause_ns.max(LONGEST_GAP_FACTOR * self.arrivals.get().longest_gap_ns)
            + response_ns
            + self.gap_ns()
    }

    /// Fails if the server was silent for the last part of the run and sent no end: it has gone or
    /// hangs, or the path from it is down.
    fn check_silence(&self, now: Nanos) -> Result<(), SessionError> {
        let sends_requests = self.plan.kind == RunKind::Latency;
        // A stream that ends has an explicit end; a stalled one does not.
        let lacks_end = match self.plan.protocol {
            TransportProtocol::Udp => self.ended_by_silence,
            TransportProtocol::Tcp => self.plan.duration_ns.is_some(),
        };
        let receives = self.receives() && lacks_end;
        if self.early || !(sends_requests || receives) {
            return Ok(());
        }
        let silent = now
            .min(self.planned_end_ns())
            .saturating_sub(self.arrivals.get().last_ns);
        let received_bytes = self.bytes(Direction::Receive);
        let amount = self
            .plan
            .amount_bytes
            .filter(|_| receives && self.ended_by_silence);
        let is_incomplete = amount.is_some_and(|amount| received_bytes < amount - amount / 20);
        if silent <= self.silence_limit_ns() && !is_incomplete {
            return Ok(());
        }
        let situation = match sends_requests {
            true => "no response arrived".to_owned(),
            false => format!("after {received_bytes} B nothing was received from the server"),
        };
        Err(protocol_error(
            self.peer,
            format!(
                "{situation} in the last {:.1} s of the run: it was stopped, or the path to it is down; look at \
                 its process",
                silent as f64 / 1e9
            ),
        ))
    }

    /// Stops a server that only sends, and would not stop by itself.
    fn stop_in_time(&mut self, now: Nanos) {
        if self.stopped || self.plan.has_direction(Direction::Send) || !self.receives() {
            return;
        }
        let amount = self.plan.amount_bytes;
        let enough = amount.is_some_and(|amount| self.bytes(Direction::Receive) >= amount);
        // Of an amount of datagrams some may never arrive.
        let lost = self.plan.protocol == TransportProtocol::Udp
            && amount.is_some()
            && self.progress.get().0 > 0
            && now >= self.progress.get().1 + self.end_silence_ns();
        if enough || lost || now >= self.planned_end_ns() {
            self.stopped = true;
            self.driver.stop(now, false);
        }
    }

    /// Returns the silence that ends the server's datagrams: longer than a gap of this run, of which
    /// the first has the round trip of the path in it.
    fn end_silence_ns(&self) -> Nanos {
        let gap_ns = self.gap_ns().max(self.arrivals.get().longest_gap_ns);
        SILENCE_TIMEOUT_NS.max((LONGEST_GAP_FACTOR * gap_ns).min(STALL_TIMEOUT_NS))
    }

    /// Fails if a sending server stopped before its time, even if it closed in order.
    fn check_early_end(&self, now: Nanos) -> Result<(), SessionError> {
        if self.early || !self.receives() {
            return Ok(());
        }
        let missing_ns = self.planned_end_ns().saturating_sub(now);
        let time = self.plan.duration_ns.unwrap_or(0);
        let received_bytes = self.bytes(Direction::Receive);
        let interests = self.plan.amount_bytes.unwrap_or(0);
        let tcp = self.plan.protocol == TransportProtocol::Tcp;
        let early = self.plan.duration_ns.is_some()
            && missing_ns > EARLY_END_TOLERANCE_NS
            && missing_ns > time / 20;
        let short = tcp && received_bytes < interests;
        let greeted = tcp
            && interests == 0
            && received_bytes < GREETING_LIMIT_BYTES
            && !self.plan.has_direction(Direction::Send);
        if !early && !short && !greeted && received_bytes > 0 {
            return Ok(());
        }
        if greeted && received_bytes > 0 && !early {
            return Err(protocol_error(
                self.peer,
                format!(
                    "{received_bytes} B were received and then nothing, as from a server that waits for a message of another \
                     protocol: --peer auto detects the protocol"
                ),
            ));
        }
        let message = self.driver.remote_error();
        let message =
            message.map_or_else(String::new, |message| format!(" (its message: {message})"));
        Err(protocol_error(
            self.peer,
            format!(
                "the server stopped sending before the end, after {received_bytes} B{message}: see its own messages, \
                 and whether it was stopped"
            ),
        ))
    }

    /// Returns the server's totals once it has sent everything, as far as that is known.
    fn remote_totals(&mut self, now: Nanos) -> Option<Vec<FlowTotal>> {
        if self.end_notified || !self.receives() {
            return None;
        }
        let message = self.driver.remote_totals();
        self.ended_by_silence = message.is_none() && !self.has_received_end();
        let udp = self.plan.protocol == TransportProtocol::Udp;
        let silence = match self.early {
            true => STOPPED_SILENCE_TIMEOUT_NS,
            false => self.end_silence_ns(),
        };
        let silent = now >= self.progress.get().1.saturating_add(silence);
        let time = now >= self.planned_end_ns().saturating_add(silence) || self.early;
        message.or_else(|| (udp && silent && time).then(Vec::new))
    }
}

impl ControlChannel for ControlAdapter<'_> {
    fn receive(&mut self) -> Result<Option<Frame>, SessionError> {
        let now = clock::now();
        if let Some(flows) = self.sent_totals.take() {
            self.progress.set((self.progress.get().0, now));
            self.driver.payload_sent(now, &flows);
        }
        self.driver.poll(now)?;
        self.check_stall(now)?;
        // A stream from a server that hangs has no end: the figures would cover the wait for it.
        if self.plan.protocol == TransportProtocol::Tcp
            && self.receives()
            && !self.local_ended
            && now >= self.planned_end_ns()
        {
            self.check_silence(now)?;
        }
        self.stop_in_time(now);
        if let Some(totals) = self.remote_totals(now) {
            self.end_notified = true;
            for (_, shared) in self
                .shared
                .iter()
                .filter(|(flow_direction, _)| *flow_direction == Direction::Receive)
            {
                shared.set_sender_ended();
            }
            return Ok(Some(SenderTotals { flows: totals }.into()));
        }
        if self.local_ended && !self.finished && self.driver.is_finished() {
            self.finished = true;
            let host = linerate_record::facts::HostFacts::default();
            return Ok(Some(
                local_results(Role::Server, host, &self.plan, &[]).into(),
            ));
        }
        Ok(None)
    }

    fn send(&mut self, frame: Frame) -> Result<(), SessionError> {
        let now = clock::now();
        match frame {
            // The frames of several flows come one after another: the next poll takes them all.
            Frame::Sent(message) => self
                .sent_totals
                .get_or_insert_default()
                .extend(message.flows),
            Frame::Stop(_) => {
                self.early = true;
                self.stopped = true;
                self.driver.stop(now, true);
            }
            Frame::Results(outcome) => {
                self.local_ended = true;
                let outcome: EndResults = *outcome;
                self.driver.flows_ended(now, &outcome);
                self.check_early_end(now)?;
                self.check_silence(now)?;
            }
            _ => {}
        }
        self.driver.poll(now)
    }

    fn send_heartbeat(&mut self) -> Result<(), SessionError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SessionError> {
        Ok(())
    }

    fn wait(&self, other_fd: Option<BorrowedFd<'_>>, deadline: Nanos) -> Result<(), SessionError> {
        let remaining = Duration::from_nanos(deadline.saturating_sub(clock::now()));
        let mut interests: Vec<_> = (self.driver.readable_fds().into_iter())
            .map(|fd| (fd, Readiness::Receive))
            .collect();
        interests.extend(other_fd.map(|fd| (fd, Readiness::Receive)));
        poll_any(&interests, remaining)
            .map(|_| ())
            .map_err(|error| SessionError::system("poll", error))
    }

    fn on_rejected_datagrams(&self, datagrams: u32) -> Result<(), SessionError> {
        match datagrams < REJECTED_DATAGRAM_LIMIT
            || self.local_ended
            || !rejections_end_run(&self.plan)
        {
            true => Ok(()),
            false => Err(closed_port_error(self.peer)),
        }
    }

    fn on_send_delay(&mut self, now: Nanos, delay_ns: Nanos) {
        if delay_ns > 0 {
            self.progress.set((self.progress.get().0, now));
        }
    }

    fn path_delay_ns(&self) -> Nanos {
        self.driver.path_delay_ns()
    }

    fn next_deadline_ns(&self) -> Nanos {
        let now = clock::now();
        let next_deadline = self.driver.next_deadline_ns(now);
        let next_deadline =
            match self.receives() && self.plan.amount_bytes.is_some() && !self.stopped {
                true => next_deadline.min(now + 5_000_000),
                false => next_deadline,
            };
        if self.sent_totals.is_some() {
            return now;
        }
        let next_deadline = match self.receives() && !self.local_ended {
            true => next_deadline.min(now + GAP_POLL_NS),
            false => next_deadline,
        };
        match self.planned_end_ns() {
            end_ns if !self.stopped && end_ns > now => next_deadline.min(end_ns),
            _ => next_deadline,
        }
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }
}

#[cfg(test)]
mod tests {
    use linerate_workload::flow_counters::PayloadTotals;

    use super::*;
    use crate::ConnectedFlow;
    /// Server that sends no control message.
    struct SilentDriver;

    impl ClientProtocol for SilentDriver {
        fn flows(&mut self) -> Vec<ConnectedFlow> {
            Vec::new()
        }

        fn poll(&mut self, _: Nanos) -> Result<(), SessionError> {
            Ok(())
        }

        fn stop(&mut self, _: Nanos, _early: bool) {}

        fn is_finished(&self) -> bool {
            true
        }

        fn agent(&self) -> String {
            "mute".to_owned()
        }
    }

    const SECOND: Nanos = 1_000_000_000;

    /// Returns whether a run of 10 s reports a lost server that moved payload last at
    /// `last_progress_ns`.
    fn reports_loss(
        kind: RunKind,
        direction: Direction,
        last_progress_ns: Nanos,
        change: impl FnOnce(&mut ControlAdapter<'_>),
    ) -> bool {
        let mut plan = Plan::new(kind, TransportProtocol::Udp, "far");
        plan.duration_ns = Some(10 * SECOND);
        plan.directions = vec![direction];
        let shared = Arc::new(FlowShared::default());
        shared.counters.publish(&PayloadTotals {
            bytes: 1_000,
            packets: 1,
            ..PayloadTotals::default()
        });
        let mut driver = SilentDriver;
        let peer = SocketAddr::from(([192, 0, 2, 1], 5001));
        let (flows, stop) = (vec![(direction, shared)], AtomicBool::new(false));
        let mut adapter =
            ControlAdapter::new(&mut driver, &Arc::new(plan), peer, flows, None, &stop).unwrap();
        let start = adapter.started_ns;
        adapter.arrivals.set(Arrivals {
            last_ns: start + last_progress_ns,
            ..Arrivals::default()
        });
        adapter.ended_by_silence = true;
        change(&mut adapter);
        adapter.check_silence(start + 11 * SECOND).is_err()
    }

    #[test]
    fn a_silent_server_without_a_connection_is_reported_at_the_end() {
        use Direction::{Receive, Send};
        let unchanged = |_: &mut ControlAdapter<'_>| {};
        assert!(reports_loss(
            RunKind::Throughput,
            Receive,
            4 * SECOND,
            unchanged
        ));
        assert!(!reports_loss(
            RunKind::Throughput,
            Receive,
            9 * SECOND,
            unchanged
        ));
        // A stream too; a regular end in time is no silence.
        assert!(reports_loss(
            RunKind::Throughput,
            Receive,
            4 * SECOND,
            |talk| {
                Arc::make_mut(&mut talk.plan).protocol = TransportProtocol::Tcp;
                talk.ended_by_silence = false;
            }
        ));
        // A server that sent its end was there, and a sending client receives nothing anyway.
        assert!(!reports_loss(
            RunKind::Throughput,
            Receive,
            4 * SECOND,
            |talk| talk.ended_by_silence = false
        ));
        assert!(!reports_loss(
            RunKind::Throughput,
            Receive,
            4 * SECOND,
            |talk| talk.early = true
        ));
        assert!(!reports_loss(
            RunKind::Throughput,
            Send,
            4 * SECOND,
            unchanged
        ));
        assert!(reports_loss(RunKind::Latency, Send, 4 * SECOND, unchanged));
        // A request has one second for its response.
        assert!(!reports_loss(RunKind::Latency, Send, 9 * SECOND, |talk| {
            Arc::make_mut(&mut talk.plan).response_timeout_ns = Some(SECOND);
        }));
        assert!(reports_loss(
            RunKind::Throughput,
            Receive,
            10 * SECOND,
            |talk| {
                let plan = Arc::make_mut(&mut talk.plan);
                (plan.duration_ns, plan.amount_bytes) = (None, Some(1_000_000));
            }
        ));
    }

    #[test]
    fn silence_is_judged_by_the_run_and_its_own_gaps() {
        use Direction::{Receive, Send};
        use TransportProtocol::Tcp;
        const MS: Nanos = 1_000_000;
        let both: &[Direction] = &[Send, Receive];
        for (kind, directions, run_ms, silent_ms, gap_ms, lost) in [
            // A server that stops after 40 % of the run, however short it is.
            (RunKind::Throughput, &[Receive][..], 1_000, 600, 50, true),
            (RunKind::Throughput, &[Receive], 3_000, 1_800, 50, true),
            (RunKind::Throughput, &[Receive], 10_000, 6_000, 50, true),
            (RunKind::Throughput, both, 3_000, 1_800, 50, true),
            (RunKind::Latency, &[Send], 3_000, 1_800, 1, true),
            // A pause of a retransmission.
            (RunKind::Throughput, &[Receive], 1_000, 200, 50, false),
            (RunKind::Throughput, &[Receive], 3_000, 600, 50, false),
            (RunKind::Throughput, &[Receive], 10_000, 1_000, 50, false),
            // A path of 1.4 s, on which the payload comes in a burst each round trip.
            (RunKind::Throughput, &[Receive], 5_000, 1_400, 1_400, false),
            (RunKind::Throughput, &[Receive], 5_000, 3_000, 1_400, true),
            // One request without a response.
            (RunKind::Latency, &[Send], 3_000, 1_000, 1, false),
        ] {
            let context = format!("{kind:?} {directions:?} {run_ms} {silent_ms} {gap_ms}");
            let last_ns = (run_ms - silent_ms) * MS;
            let result = reports_loss(kind, directions[0], last_ns, |adapter| {
                let plan = Arc::make_mut(&mut adapter.plan);
                plan.protocol = Tcp;
                plan.directions = directions.to_vec();
                plan.duration_ns = Some(run_ms * MS);
                plan.response_timeout_ns = Some(SECOND);
                let mut arrivals = adapter.arrivals.get();
                arrivals.longest_gap_ns = gap_ms * MS;
                adapter.arrivals.set(arrivals);
            });
            assert_eq!(result, lost, "{context}");
        }
    }

    #[test]
    fn gaps_between_arrivals_are_counted() {
        let start = Arrivals {
            last_ns: SECOND,
            ..Arrivals::default()
        };
        let polls = [(0, 2), (5, 3), (5, 4), (9, 6), (10, 7)];
        let end = polls.iter().fold(start, |arrivals, &(count, second)| {
            arrivals.update(count, second * SECOND)
        });
        assert_eq!(
            (end.count, end.last_ns, end.longest_gap_ns),
            (10, 7 * SECOND, 3 * SECOND)
        );
    }

    #[test]
    fn an_end_that_came_with_payload_is_no_silence() {
        let unchanged = |_: &mut ControlAdapter<'_>| {};
        assert!(reports_loss(
            RunKind::Throughput,
            Direction::Receive,
            SECOND,
            unchanged
        ));
        let with_end = reports_loss(RunKind::Throughput, Direction::Receive, SECOND, |adapter| {
            adapter.shared[0].1.set_sender_ended();
            let _ = adapter.remote_totals(adapter.started_ns + 20 * SECOND);
        });
        assert!(!with_end);
        let without_end =
            reports_loss(RunKind::Throughput, Direction::Receive, SECOND, |adapter| {
                assert!(
                    adapter
                        .remote_totals(adapter.started_ns + 20 * SECOND)
                        .is_some()
                );
            });
        assert!(without_end);
    }
}
