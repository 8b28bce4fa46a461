//! Requests of a flow and the figures of their responses, for all ways of sending.

use std::io;
use std::sync::Arc;

use linerate_protocol::control::flow as wire;
use linerate_protocol::iperf2::bounceback;
use linerate_protocol::sockperf;
use linerate_record::device_timestamps::{DeviceTimestamps, TimestampPair};
use linerate_record::plan::TransportProtocol;
use linerate_stats::histogram::Histogram;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::Transport;

use super::open_loop::MAX_DRAIN_NS;
use super::rt_yield::RtYield;
use super::slow_responses::{SlowResponseEvent, SlowResponseWatch};
use crate::device_timestamps::DeviceTimeCollector;
use crate::flow::{
    FlowEndResults, FlowShared, RequestResults, TimingHistograms, is_opening_datagram,
};
use crate::flow_counters::PayloadTotals;
use crate::framing::{Framing, write_bounceback};
use crate::probes::{is_echo_reply, is_sockperf_reply};
use crate::sequence_tracker::SequenceTracker;
use crate::{OpenFlow, WorkerContext, device_timestamps};

/// Round trips in the time-out after a late one, because queues grow further.
const LATE_ROUND_TRIPS: Nanos = 2;

/// Result of comparing a response with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseCheck {
    /// Every byte equals the request's, or verification is off.
    Correct,
    /// Longer or shorter than the request.
    WrongLength,
    /// Length of the request, but other content.
    WrongContent,
    /// Wrong content, but only in the bytes where the C file for devices writes its timestamps.
    DeviceTimestamps,
}

/// Kind of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// Response to the outstanding request.
    Current(ResponseCheck),
    /// Response to an earlier request, with its number.
    Earlier(u64),
    /// Datagram of the setup: a repeated opening of the flow, or a late reply to a probe.
    SetupDatagram,
}

/// Request message of a flow, and the figures of its responses.
pub struct RequestTracker<'a> {
    pub worker: &'a WorkerContext<'a>,
    id: u32,
    shared: Arc<FlowShared>,
    pub message: Vec<u8>,
    /// Header format of the requests.
    pub framing: Framing,
    /// Generator of iperf2 bounceback requests.
    bounceback: Option<bounceback::BouncebackClient>,
    pub remaining: u64,
    pub timeout_ns: Nanos,
    /// True if the time-out follows from the path, which may become longer during the run.
    is_path_timeout: bool,
    /// Number and send time of the last request that was given up.
    given_up: Option<(u64, Nanos)>,
    /// True if responses are compared with their requests.
    pub verify: bool,
    totals: PayloadTotals,
    wrong_length: u64,
    wrong_content: u64,
    device_timestamps: u64,
    end_ns: Nanos,
    times: Histogram,
    /// Times of the current interval, handed over at its end.
    interval_times: Histogram,
    completed_intervals: u64,
    interval_end_ns: Nanos,
    /// Numbers of received responses, where these carry numbers.
    pub numbers: Option<SequenceTracker>,
    slow_watch: Option<SlowResponseWatch>,
    rt_yield: Option<RtYield>,
    /// Timestamps that the device writes into its responses.
    device_times: Option<DeviceTimeCollector>,
    /// Further histograms, by name.
    pub more_histograms: Vec<(&'static str, Histogram)>,
    /// Open loop: requests that were due and never sent.
    pub unsent_due: Option<u64>,
    /// Open loop: requests without a response, counted with their age at the end.
    pub without_response: u64,
    /// Number of waits for a free local port.
    pub port_waits: u64,
    pub broken_connections: u64,
}

impl<'a> RequestTracker<'a> {
    pub fn new<S>(worker: &'a WorkerContext<'a>, flow: &mut OpenFlow<S>) -> Self {
        let plan = worker.plan;
        let mut interval_slot = flow.shared.interval_times.lock().expect("no holder panics");
        interval_slot.times = Some(flow.histograms.take_auxiliary());
        drop(interval_slot);
        // Content that differs from byte to byte, so that a shifted response is detected.
        let mut message: Vec<u8> = (0..plan.payload_bytes).map(|n| (n % 251) as u8).collect();
        let device = plan
            .round_trip
            .device_timestamps
            .map(DeviceTimeCollector::new);
        if let Some(watch) = &device {
            device_timestamps::clear_timestamps(&mut message, watch.format());
        }
        let bounces = match flow.framing {
            Framing::Bounceback { .. } => {
                let bytes = u32::try_from(plan.payload_bytes).unwrap_or(u32::MAX);
                // The size was validated when the plan was made.
                bounceback::BouncebackClient::new(bytes, 0).ok()
            }
            _ => None,
        };
        if let Framing::Sockperf = flow.framing
            && let Some(head) = message.get_mut(..sockperf::HEADER_BYTES)
        {
            let length = u32::try_from(plan.payload_bytes).unwrap_or(u32::MAX);
            sockperf::SockperfHeader::request(1, length)
                .to_reply()
                .write(head);
        }
        Self {
            framing: flow.framing.clone(),
            bounceback: bounces,
            worker,
            id: flow.id,
            shared: Arc::clone(&flow.shared),
            message,
            remaining: (plan.round_trips).map_or(u64::MAX, |round_trips| {
                worker.share_of(round_trips, flow.id)
            }),
            timeout_ns: plan.response_timeout_ns.unwrap_or(1_000_000_000),
            is_path_timeout: !plan.response_timeout_requested,
            given_up: None,
            verify: plan.round_trip.verify,
            totals: PayloadTotals::default(),
            wrong_length: 0,
            wrong_content: 0,
            device_timestamps: 0,
            end_ns: worker.run_clock.start_ns,
            times: flow.histograms.take_full_run(),
            interval_times: flow.histograms.take_auxiliary(),
            completed_intervals: 0,
            interval_end_ns: worker
                .run_clock
                .interval_end(worker.run_clock.start_ns)
                .unwrap_or(Nanos::MAX),
            numbers: None,
            slow_watch: (plan.round_trip.limit_ns).map(|limit| {
                SlowResponseWatch::new(limit, plan.streams, !plan.round_trip.is_pipelined())
            }),
            rt_yield: RtYield::for_worker(worker),
            device_times: device,
            more_histograms: Vec::new(),
            unsent_due: None,
            without_response: 0,
            port_waits: 0,
            broken_connections: 0,
        }
    }

    /// Enables the tracking of response numbers.
    pub fn with_numbers(mut self) -> Self {
        self.numbers = Some(SequenceTracker::new());
        self
    }

    pub fn is_over(&self) -> bool {
        self.remaining == 0 || self.worker.phase.is_ending()
    }

    /// Returns whether a request counts as missing. A stream loses no response while it is open: a
    /// late one has its time, unless the user set a limit, or the run is over.
    pub fn is_missing(&self, sent_ns: Nanos, now: Nanos) -> bool {
        now >= sent_ns.saturating_add(self.timeout_ns)
            && (!self.is_path_timeout
                || self.is_over()
                || self.worker.plan.protocol == TransportProtocol::Udp)
    }

    /// Returns whether a response is no longer awaited because the run is over. An interrupted run
    /// does not wait; at the regular end the usual timeout applies, up to a limit.
    pub fn stops_waiting(&self, sent_ns: Nanos, now: Nanos) -> bool {
        let phase = self.worker.phase;
        let wait_ns = self.timeout_ns.min(MAX_DRAIN_NS);
        phase.is_interrupted() || phase.is_ending() && now >= sent_ns.saturating_add(wait_ns)
    }

    /// Prepares a request on a socket that stays open.
    #[inline]
    pub fn before_request<T: Transport>(&mut self, transport: &T, socket: T::Socket) {
        if let Some(slow) = &mut self.slow_watch {
            slow.before_request(|| {
                transport.track_arrivals(socket);
                transport.retransmits(socket)
            });
        }
    }

    /// Returns where the device writes its timestamps.
    #[inline]
    pub fn device_format(&self) -> Option<DeviceTimestamps> {
        self.device_times.as_ref().map(DeviceTimeCollector::format)
    }

    /// Records the time inside the device from a response's timestamps.
    #[inline]
    pub fn record_device_time(
        &mut self,
        timestamps: Option<TimestampPair>,
        sent_ns: Nanos,
        now: Nanos,
    ) {
        if let Some(watch) = &mut self.device_times
            && now >= self.worker.run_clock.count_from_ns
        {
            watch.record(timestamps, now.saturating_sub(sent_ns));
        }
    }

    /// Pauses between two requests if it is time (see `rt_yield`).
    #[inline]
    pub fn pause_if_due(&mut self) {
        if let Some(rt_yield) = &mut self.rt_yield {
            rt_yield.pause_if_due();
        }
    }

    /// Sets the end time of the flow.
    pub fn set_end(&mut self, now: Nanos) {
        self.end_ns = now;
    }

    /// Number of requests responded to or given up, and number of the next request of a closed
    /// loop.
    pub fn completed_requests(&self) -> u64 {
        self.totals.calls
    }

    /// Writes the number of the next request into the message; returns it.
    pub fn write_next_number(&mut self) -> u64 {
        let number = self.totals.calls;
        if let (Framing::Bounceback { wall_ahead_ns }, Some(bounceback)) =
            (&self.framing, &mut self.bounceback)
        {
            let now_wall_ns = clock::now().wrapping_add(*wall_ahead_ns);
            write_bounceback(bounceback, &mut self.message, now_wall_ns);
        } else if let Framing::Sockperf = self.framing {
            if let Some(number_bytes) = self.message.get_mut(..8) {
                number_bytes.copy_from_slice(&(number + 1).to_be_bytes());
            }
        } else if self.message.len() >= wire::HEADER_BYTES {
            // The send time is written when the datagram is sent.
            wire::write_header(&mut self.message, number, 0);
        } else {
            write_short_number(&mut self.message, number);
        }
        number
    }

    /// Ends intervals that are over.
    #[inline]
    pub fn advance_time(&mut self, now: Nanos) {
        if now >= self.interval_end_ns {
            self.hand_over_intervals(now);
        }
    }

    /// Hands over the times of intervals that have ended.
    fn hand_over_intervals(&mut self, now: Nanos) {
        while now >= self.interval_end_ns {
            let next = self.worker.run_clock.interval_end(self.interval_end_ns);
            self.interval_end_ns = next.unwrap_or(Nanos::MAX);
            self.completed_intervals += 1;
        }
        let mut interval_slot = self.shared.interval_times.lock().expect("no holder panics");
        interval_slot.intervals_ended = self.completed_intervals;
        if let Some(times) = &mut interval_slot.times {
            times.add(&self.interval_times);
        }
        drop(interval_slot);
        self.interval_times.clear();
    }

    /// Records a response that arrived in time.
    #[inline]
    pub fn record_response<T: Transport>(
        &mut self,
        transport: &T,
        socket: Option<T::Socket>,
        number: u64,
        sent_ns: Nanos,
        received_ns: Nanos,
        verdict: ResponseCheck,
    ) {
        self.advance_time(received_ns);
        let rtt_ns = received_ns.saturating_sub(sent_ns);
        self.interval_times.record(rtt_ns);
        let counts = received_ns >= self.worker.run_clock.count_from_ns;
        if counts {
            self.times.record(rtt_ns);
            match verdict {
                ResponseCheck::Correct => {}
                ResponseCheck::WrongLength => self.wrong_length += 1,
                ResponseCheck::WrongContent => self.wrong_content += 1,
                ResponseCheck::DeviceTimestamps => {
                    self.wrong_content += 1;
                    self.device_timestamps += 1;
                }
            }
        }
        if let Some(numbers) = &mut self.numbers {
            numbers.record(number);
        }
        self.totals.packets += 1;
        self.totals.bytes += self.message.len() as u64;
        self.complete_request(received_ns);
        if let Some(slow) = &mut self.slow_watch {
            let start_ns = self.worker.run_clock.start_ns;
            let retransmits = || transport.retransmits(socket?);
            let is_slow = rtt_ns > slow.limit_ns();
            if !is_slow || !counts {
                slow.record(sent_ns, received_ns, counts, is_slow, retransmits);
            } else {
                let waited_ns = socket.and_then(|socket| {
                    let since = transport.since_arrival_ns(socket)?;
                    let wait_ns = since.saturating_sub(T::read_clock().saturating_sub(received_ns));
                    // A packet cannot arrive before its request was sent: then the system time was
                    // set. Without a timestamp the kernel reports that of the request.
                    (wait_ns > 0 && wait_ns <= rtt_ns).then_some(wait_ns)
                });
                let response = SlowResponseEvent {
                    number,
                    at_ns: received_ns - start_ns,
                    received_ns,
                    rtt_ns,
                    waited_ns,
                };
                slow.record_slow(response, &self.times, retransmits);
            }
        }
    }

    /// Records a response with the number of an earlier request of a closed loop. A number that was
    /// never sent is ignored.
    pub fn record_earlier_response(&mut self, number: u64, now: Nanos) {
        if number < self.totals.calls {
            self.record_late_response(number, now);
        }
    }

    /// Records a response to a request that was given up. The queues of the path have become longer:
    /// without a requested time-out, the next requests have more time.
    pub fn record_late_response(&mut self, number: u64, now: Nanos) {
        if let Some((_, sent_ns)) = (self.given_up).filter(|&(given_up, _)| number <= given_up)
            && self.is_path_timeout
        {
            // That of an earlier request took longer still.
            let rtt_ns = now.saturating_sub(sent_ns);
            self.timeout_ns = self.timeout_ns.max(LATE_ROUND_TRIPS * rtt_ns);
        }
        if let Some(numbers) = &mut self.numbers {
            numbers.record(number);
        }
    }

    /// Records that no response to the request that was sent at `sent_ns` arrived in time.
    pub fn give_up(&mut self, number: u64, sent_ns: Nanos, now: Nanos) {
        self.given_up = Some((number, sent_ns));
        self.record_missing(number, now);
    }

    /// Records that no response arrived in time.
    pub fn record_missing(&mut self, number: u64, now: Nanos) {
        if let Some(numbers) = &mut self.numbers {
            numbers.skip(number);
        }
        self.advance_time(now);
        self.totals.missing += 1;
        let end_ns = self.end_ns;
        self.complete_request(now);
        if self.worker.phase.is_ending() {
            // The wait after the end of the run must not lower the rate.
            self.end_ns = end_ns;
        }
    }

    #[inline]
    fn complete_request(&mut self, now: Nanos) {
        self.totals.calls += 1;
        self.remaining = self.remaining.saturating_sub(1);
        self.end_ns = now;
        self.shared.counters.publish(&self.totals);
    }

    pub fn finish<T: Transport>(
        mut self,
        transport: &T,
        socket: Option<T::Socket>,
        error: Option<io::Error>,
    ) -> FlowEndResults {
        // Hands over the last, shortened interval as well.
        let mut interval_slot = self.shared.interval_times.lock().expect("no holder panics");
        if let Some(times) = &mut interval_slot.times {
            times.add(&self.interval_times);
        }
        interval_slot.intervals_ended = u64::MAX;
        drop(interval_slot);
        self.interval_times.clear();
        let device = self.device_times.take().map(|watch| {
            let (device_counts, times) = watch.finish();
            self.more_histograms.extend(times);
            device_counts
        });
        FlowEndResults {
            timing: TimingHistograms::default(),
            id: self.id,
            direction: self.worker.direction,
            role: self.worker.role,
            totals: self.totals,
            sequence: self.numbers,
            times: Some(self.times),
            mismatched: self.wrong_length + self.wrong_content,
            first_mismatch: None,
            log: None,
            facts: socket
                .map(|socket| transport.socket_facts(socket))
                .unwrap_or_default(),
            first_ns: None,
            ended_ns: match error {
                Some(_) => transport.now(),
                None => self.end_ns,
            },
            error,
            requests: Some(RequestResults {
                wrong_length: self.wrong_length,
                wrong_content: self.wrong_content,
                differs_in_device_time: self.device_timestamps,
                slow: self.slow_watch.map(|slow| slow.finish(self.id)),
                histograms: self.more_histograms,
                unsent: self.unsent_due,
                without_response: self.without_response,
                port_waits: self.port_waits,
                broken: self.broken_connections,
                device,
            }),
        }
    }
}

/// Writes a number into a message too short for a header: as many low bytes as fit.
pub fn write_short_number(message: &mut [u8], number: u64) {
    let len = message.len().min(8);
    message[..len].copy_from_slice(&number.to_be_bytes()[8 - len..]);
}

/// Largest distance of an earlier request whose number is recognised in a short message.
const SHORT_WINDOW: u64 = 64;

/// Finds the number of the earlier request to which a payload without a header responds.
fn find_earlier_number(payload: &[u8], request: &[u8], number: u64) -> Option<u64> {
    let len = request.len().min(8);
    if payload.len() != request.len() || payload[len..] != request[len..] {
        return None;
    }
    (1..=number.min(SHORT_WINDOW))
        .map(|back| number - back)
        .find(|earlier| payload[..len] == earlier.to_be_bytes()[8 - len..])
}

/// Classifies a datagram against the request with this number.
#[inline]
pub fn classify(payload: &[u8], request: &[u8], number: u64, verify: bool) -> ResponseKind {
    if verify && payload == request {
        return ResponseKind::Current(ResponseCheck::Correct);
    }
    classify_unequal(payload, request, number, verify)
}

fn classify_unequal(payload: &[u8], request: &[u8], number: u64, verify: bool) -> ResponseKind {
    // An echo server is probed until it responds; a slow one responds to each probe, possibly late.
    if (is_opening_datagram(payload) || is_echo_reply(payload)) && payload != request {
        return ResponseKind::SetupDatagram;
    }
    if request.len() < wire::HEADER_BYTES {
        let len = request.len().min(8);
        if payload.get(..len) != request.get(..len)
            && let Some(earlier) = find_earlier_number(payload, request, number)
        {
            return ResponseKind::Earlier(earlier);
        }
    } else if let Some(header) = wire::read_header(payload).filter(|h| h.sequence < number) {
        return ResponseKind::Earlier(header.sequence);
    }
    ResponseKind::Current(compare(payload, request, verify))
}

/// Classifies like [`classify`], for headers of another tool's protocol.
pub fn classify_framed(
    framing: &Framing,
    payload: &[u8],
    request: &[u8],
    number: u64,
    verify: bool,
) -> ResponseKind {
    if let Framing::Linerate | Framing::NoHeader = framing {
        return classify(payload, request, number, verify);
    }
    if payload == request {
        return ResponseKind::Current(ResponseCheck::Correct);
    }
    if matches!(framing, Framing::Sockperf) && is_sockperf_reply(payload) {
        return ResponseKind::SetupDatagram;
    }
    match framing
        .reply_number(payload)
        .filter(|&earlier| earlier < number)
    {
        Some(earlier) => ResponseKind::Earlier(earlier),
        None => ResponseKind::Current(compare(payload, request, verify)),
    }
}

/// Classifies like [`classify`], but ignores the bytes in which the device writes its timestamps.
pub fn classify_outside_timestamps(
    payload: &[u8],
    request: &[u8],
    number: u64,
    verify: bool,
    format: DeviceTimestamps,
) -> ResponseKind {
    if verify && device_timestamps::equals_outside(payload, request, format) {
        return ResponseKind::Current(ResponseCheck::Correct);
    }
    classify_unequal(payload, request, number, verify)
}

/// Compares a response with its request.
fn compare(payload: &[u8], request: &[u8], verify: bool) -> ResponseCheck {
    if !verify {
        ResponseCheck::Correct
    } else if payload.len() != request.len() {
        ResponseCheck::WrongLength
    } else if device_timestamps::equals_outside(
        payload,
        request,
        device_timestamps::TARGET_CODE_FORMAT,
    ) {
        ResponseCheck::DeviceTimestamps
    } else {
        ResponseCheck::WrongContent
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Direction, Plan, RunKind};
    use linerate_transport::RunClock;
    use linerate_transport::flow_role::FlowRole;

    use super::*;
    use crate::flow::RunPhase;
    use crate::probes::{RESPONDER_PROBES, echo_probe, sockperf_probe};
    use crate::scripted_transport::ScriptedTransport;
    fn request(bytes: usize, number: u64) -> Vec<u8> {
        let mut message: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
        if bytes >= wire::HEADER_BYTES {
            wire::write_header(&mut message, number, 77);
        } else {
            write_short_number(&mut message, number);
        }
        message
    }

    fn flow() -> OpenFlow<()> {
        OpenFlow {
            histograms: Default::default(),
            id: 1,
            socket: (),
            shared: Arc::default(),
            pattern: None,
            framing: Framing::default(),
            reconnect: None,
        }
    }

    fn context<'a>(
        plan: &'a Plan,
        phase: &'a RunPhase,
        interval_ns: Option<Nanos>,
    ) -> WorkerContext<'a> {
        WorkerContext {
            plan,
            direction: Direction::Send,
            role: FlowRole::Sender,
            run_clock: RunClock {
                start_ns: 0,
                count_from_ns: 0,
                interval_ns,
                trace_stop_call_ns: None,
            },
            phase,
        }
    }

    #[test]
    fn a_number_that_was_never_sent_is_ignored() {
        let plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far");
        let phase = RunPhase::default();
        let (worker, mut flow) = (context(&plan, &phase, None), flow());
        let mut tracker = RequestTracker::new(&worker, &mut flow);
        tracker.numbers = Some(SequenceTracker::default());
        let timeout_ns = tracker.timeout_ns;
        tracker.give_up(0, 10, timeout_ns);
        tracker.record_earlier_response(7, 5 * timeout_ns);
        assert_eq!(tracker.timeout_ns, timeout_ns);
        tracker.record_earlier_response(0, 5 * timeout_ns);
        assert_eq!(tracker.timeout_ns, LATE_ROUND_TRIPS * (5 * timeout_ns - 10));
    }

    /// A late response counts in the interval in which it arrives, and does not delay earlier ones.
    #[test]
    fn intervals_end_while_a_response_is_awaited() {
        const MS: Nanos = 1_000_000;
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far");
        plan.duration_ns = Some(1_000 * MS);
        let phase = RunPhase::default();
        let worker = context(&plan, &phase, Some(100 * MS));
        let mut flow = flow();
        let shared = Arc::clone(&flow.shared);
        let handed_over = || {
            let interval_slot = shared.interval_times.lock().unwrap();
            let times = interval_slot.times.as_ref().map_or(0, Histogram::count);
            (interval_slot.intervals_ended, times)
        };
        let mut tracker = RequestTracker::new(&worker, &mut flow);
        let transport = ScriptedTransport::with_delay(0);
        for sent_ns in [10 * MS, 20 * MS] {
            tracker.record_response(
                &transport,
                None,
                0,
                sent_ns,
                sent_ns + MS,
                ResponseCheck::Correct,
            );
        }
        tracker.advance_time(99 * MS);
        assert_eq!(handed_over(), (0, 0));
        tracker.advance_time(101 * MS);
        assert_eq!(handed_over(), (1, 2));
        tracker.advance_time(330 * MS);
        assert_eq!(handed_over(), (3, 2));
        tracker.record_response(
            &transport,
            None,
            1,
            30 * MS,
            340 * MS,
            ResponseCheck::Correct,
        );
        tracker.advance_time(400 * MS);
        assert_eq!(handed_over(), (4, 3));
    }

    #[test]
    fn a_stream_gives_up_a_request_at_the_end_or_at_the_users_limit() {
        const SECOND: Nanos = 1_000_000_000;
        use TransportProtocol::{Tcp, Udp};
        for (protocol, requested, ending, after, missing) in [
            (Udp, false, false, 1, true),
            (Udp, false, false, 0, false),
            (Tcp, false, false, 1, false),
            (Tcp, false, false, 100, false),
            (Tcp, false, true, 1, true),
            (Tcp, false, true, 0, false),
            (Tcp, true, false, 1, true),
            (Tcp, true, false, 0, false),
        ] {
            let mut plan = Plan::new(RunKind::Latency, protocol, "far");
            plan.response_timeout_requested = requested;
            let phase = RunPhase::default();
            if ending {
                phase.end();
            }
            let worker = context(&plan, &phase, None);
            let mut flow = flow();
            let tracker = RequestTracker::new(&worker, &mut flow);
            let context = format!("{protocol:?} {requested} {ending} {after}");
            assert_eq!(
                tracker.is_missing(SECOND, (1 + after) * SECOND),
                missing,
                "{context}"
            );
        }
    }

    #[test]
    fn every_kind_of_response_is_recognised() {
        for bytes in [1, 4, 8, 14, 16, 64, 1472] {
            let sent = request(bytes, 9);
            let of = |payload: &[u8]| classify(payload, &sent, 9, true);
            assert_eq!(
                of(&sent),
                ResponseKind::Current(ResponseCheck::Correct),
                "{bytes}"
            );
            assert_eq!(of(&request(bytes, 7)), ResponseKind::Earlier(7), "{bytes}");
            let longer = [&sent[..], &[1]].concat();
            assert_eq!(
                of(&longer),
                ResponseKind::Current(ResponseCheck::WrongLength),
                "{bytes}"
            );
            if bytes > 1 {
                let shorter = &sent[..bytes - 1];
                let got = classify(shorter, &sent, 9, true);
                assert_eq!(
                    got,
                    ResponseKind::Current(ResponseCheck::WrongLength),
                    "{bytes}"
                );
            }
            if bytes > 16 {
                let mut other = sent.clone();
                other[bytes - 1] ^= 1;
                assert_eq!(
                    of(&other),
                    ResponseKind::Current(ResponseCheck::WrongContent),
                    "{bytes}"
                );
                other.clone_from(&sent);
                other[16..32].fill(0xee);
                assert_eq!(
                    of(&other),
                    ResponseKind::Current(ResponseCheck::DeviceTimestamps),
                    "{bytes}"
                );
                let unverified = classify(&other, &sent, 9, false);
                assert_eq!(
                    unverified,
                    ResponseKind::Current(ResponseCheck::Correct),
                    "not verified"
                );
            }
            let earlier = classify(&request(bytes, 7), &sent, 9, false);
            assert_eq!(earlier, ResponseKind::Earlier(7), "{bytes} unverified");
        }
    }

    #[test]
    fn a_request_of_the_size_of_an_opening_is_no_opening() {
        let greeting = wire::opening(linerate_protocol::control::FlowToken([3; 16]));
        let sent = request(greeting.len(), 9);
        assert_eq!(
            classify(&greeting, &sent, 9, true),
            ResponseKind::SetupDatagram
        );
        assert_eq!(
            classify(&greeting, &sent, 9, false),
            ResponseKind::SetupDatagram
        );
    }

    #[test]
    fn a_late_response_to_a_probe_is_no_response() {
        for bytes in [1, 8, 9, 10, 64] {
            let sent = request(bytes, 9);
            for verify in [true, false] {
                for attempt in 0..RESPONDER_PROBES {
                    assert_eq!(
                        classify(&echo_probe(attempt), &sent, 9, verify),
                        ResponseKind::SetupDatagram,
                        "{bytes}"
                    );
                }
            }
        }
        // The numbers of sockperf begin with 1.
        for (number, bytes) in [(0, sockperf::HEADER_BYTES), (0, 64), (7, 64)] {
            let mut sent = request(bytes, 0);
            let header = sockperf::SockperfHeader::request(number + 1, bytes as u32).to_reply();
            header.write(&mut sent);
            let of = |payload: &[u8]| {
                [true, false].map(|verify| {
                    classify_framed(&Framing::Sockperf, payload, &sent, number, verify)
                })
            };
            for attempt in 0..RESPONDER_PROBES {
                let late = sockperf_probe(attempt).to_reply().to_bytes();
                assert_eq!(
                    of(&late),
                    [ResponseKind::SetupDatagram; 2],
                    "{number} {bytes}"
                );
            }
            assert_eq!(
                of(&sent.clone()),
                [ResponseKind::Current(ResponseCheck::Correct); 2],
                "{number} {bytes}"
            );
        }
    }
}
