//! Requests of a flow and the figures of their responses, for all ways of sending.

use std::io;
use std::sync::Arc;

use linerate_dialect::control::flow as wire;
use linerate_dialect::iperf2::bounceback;
use linerate_dialect::sockperf;
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::device_timestamps::{DeviceStamps, Stamped};
use linerate_metric::histogram::Histogram;

use super::device_timestamps::{self, DeviceWatch};
use super::open_loop::LAST_ANSWERS_LIMIT_NS;
use super::rt_yield::Breath;
use super::slow_responses::{Late, SlowWatch};
use crate::flow::{AskingOutcome, FlowOutcome, Shared, Timing, is_greeting};
use crate::flow_counters::Totals;
use crate::interop::framing::{Framing, bounce};
use crate::interop::probes::MARK;
use crate::sequence_tracker::Sequence;
use crate::transport::Transport;
use crate::workload::{Lane, Opened};

/// Result of comparing a response with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every byte equals the request's, or verification is off.
    Right,
    /// Longer or shorter than the request.
    WrongLength,
    /// Length of the request, but other content.
    WrongContent,
    /// Wrong content, but only in the bytes where the C file for devices writes its timestamps.
    Stamped,
}

/// Kind of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Response to the outstanding request.
    Due(Verdict),
    /// Response to an earlier request, with its number.
    Earlier(u64),
    /// No response, but a repeated opening of the flow.
    Greeting,
}

/// Request message of a flow, and the figures of its responses.
pub struct Questions<'a> {
    pub lane: &'a Lane<'a>,
    id: u32,
    shared: Arc<Shared>,
    pub message: Vec<u8>,
    /// Header format of the requests.
    pub framing: Framing,
    /// Generator of iperf2 bounceback requests.
    bounces: Option<bounceback::Client>,
    pub left: u64,
    pub timeout_ns: Nanos,
    /// True if responses are compared with their requests.
    pub verify: bool,
    totals: Totals,
    wrong_length: u64,
    wrong_content: u64,
    stamped: u64,
    ended_ns: Nanos,
    times: Histogram,
    /// Times of the current interval, handed over at its end.
    recent: Histogram,
    intervals_ended: u64,
    interval_ends_ns: Nanos,
    /// Numbers of received responses, where these carry numbers.
    pub numbers: Option<Sequence>,
    slow: Option<SlowWatch>,
    breath: Option<Breath>,
    /// Timestamps that the device writes into its responses.
    device: Option<DeviceWatch>,
    /// Further histograms, by name.
    pub more: Vec<(&'static str, Histogram)>,
    /// Open loop: requests that were due and never sent.
    pub unsent: Option<u64>,
    /// Open loop: requests without a response, counted with their age at the end.
    pub unanswered: u64,
    /// Number of waits for a free local port.
    pub ports_waited: u64,
    pub broken: u64,
}

impl<'a> Questions<'a> {
    pub fn new<S>(lane: &'a Lane<'a>, flow: &mut Opened<S>) -> Self {
        let plan = lane.plan;
        let mut mailbox = flow.shared.mailbox.lock().expect("no holder panics");
        mailbox.times = Some(flow.room.beside());
        drop(mailbox);
        // Content that differs from byte to byte, so that a shifted response is detected.
        let mut message: Vec<u8> = (0..plan.payload_bytes).map(|n| (n % 251) as u8).collect();
        let device = plan.round_trip.device_stamps.map(DeviceWatch::new);
        if let Some(watch) = &device {
            device_timestamps::clear(&mut message, watch.stamps());
        }
        let bounces = match flow.framing {
            Framing::Bounceback { .. } => {
                let bytes = u32::try_from(plan.payload_bytes).unwrap_or(u32::MAX);
                // The size was validated when the plan was made.
                bounceback::Client::new(bytes, 0).ok()
            }
            _ => None,
        };
        if let Framing::Sockperf = flow.framing
            && let Some(head) = message.get_mut(..sockperf::HEADER_BYTES)
        {
            let length = u32::try_from(plan.payload_bytes).unwrap_or(u32::MAX);
            sockperf::Header::question(1, length).answered().write(head);
        }
        Self {
            framing: flow.framing.clone(),
            bounces,
            lane,
            id: flow.id,
            shared: Arc::clone(&flow.shared),
            message,
            left: (plan.round_trips).map_or(u64::MAX, |trips| lane.share(trips, flow.id)),
            timeout_ns: plan.answer_timeout_ns.unwrap_or(1_000_000_000),
            verify: plan.round_trip.verify,
            totals: Totals::default(),
            wrong_length: 0,
            wrong_content: 0,
            stamped: 0,
            ended_ns: lane.timeline.start_ns,
            times: flow.room.whole(),
            recent: flow.room.beside(),
            intervals_ended: 0,
            interval_ends_ns: lane
                .timeline
                .interval_end(lane.timeline.start_ns)
                .unwrap_or(Nanos::MAX),
            numbers: None,
            slow: (plan.round_trip.limit_ns)
                .map(|limit| SlowWatch::new(limit, plan.streams, !plan.round_trip.is_open())),
            breath: Breath::of(lane),
            device,
            more: Vec::new(),
            unsent: None,
            unanswered: 0,
            ports_waited: 0,
            broken: 0,
        }
    }

    /// Enables the tracking of response numbers.
    pub fn with_numbers(mut self) -> Self {
        self.numbers = Some(Sequence::new());
        self
    }

    pub fn is_over(&self) -> bool {
        self.left == 0 || self.lane.phase.is_ending()
    }

    /// Returns whether a response is no longer awaited because the run is over. An interrupted run
    /// does
    /// not wait; at the regular end the usual timeout applies, up to a limit.
    pub fn lets_go(&self, asked_ns: Nanos, now: Nanos) -> bool {
        let phase = self.lane.phase;
        let patience = self.timeout_ns.min(LAST_ANSWERS_LIMIT_NS);
        phase.is_interrupted() || phase.is_ending() && now >= asked_ns.saturating_add(patience)
    }

    /// Prepares a request on a socket that stays open.
    #[inline]
    pub fn begin<T: Transport>(&mut self, transport: &T, socket: T::Socket) {
        if let Some(slow) = &mut self.slow {
            slow.begin(|| {
                transport.note_arrivals(socket);
                transport.retransmits(socket)
            });
        }
    }

    /// Returns where the device writes its timestamps.
    #[inline]
    pub fn device_stamps(&self) -> Option<DeviceStamps> {
        self.device.as_ref().map(DeviceWatch::stamps)
    }

    /// Records the time inside the device from a response's timestamps.
    #[inline]
    pub fn was_inside(&mut self, stamped: Option<Stamped>, asked_ns: Nanos, now: Nanos) {
        if let Some(watch) = &mut self.device
            && now >= self.lane.timeline.count_from_ns
        {
            watch.note(stamped, now.saturating_sub(asked_ns));
        }
    }

    /// Pauses between two requests if it is time (see `breath`).
    #[inline]
    pub fn breathe(&mut self) {
        if let Some(breath) = &mut self.breath {
            breath.pause();
        }
    }

    /// Sets the end time of the flow.
    pub fn end_at(&mut self, now: Nanos) {
        self.ended_ns = now;
    }

    /// Number of requests responded to or given up, and number of the next request of a closed
    /// loop.
    pub fn asked(&self) -> u64 {
        self.totals.calls
    }

    /// Writes the number of the next request into the message; returns it.
    pub fn number_message(&mut self) -> u64 {
        let number = self.totals.calls;
        if let (Framing::Bounceback { wall_ahead_ns }, Some(bounces)) =
            (&self.framing, &mut self.bounces)
        {
            let now_wall_ns = clock::now().wrapping_add(*wall_ahead_ns);
            bounce(bounces, &mut self.message, now_wall_ns);
        } else if let Framing::Sockperf = self.framing {
            if let Some(room) = self.message.get_mut(..8) {
                room.copy_from_slice(&(number + 1).to_be_bytes());
            }
        } else if self.message.len() >= wire::HEADER_BYTES {
            // The send time is written when the datagram is sent.
            wire::write_header(&mut self.message, number, 0);
        } else {
            write_short(&mut self.message, number);
        }
        number
    }

    /// Ends intervals that are over.
    #[inline]
    pub fn passed(&mut self, now: Nanos) {
        if now >= self.interval_ends_ns {
            self.end_intervals(now);
        }
    }

    /// Hands over the times of intervals that have ended.
    fn end_intervals(&mut self, now: Nanos) {
        while now >= self.interval_ends_ns {
            let next = self.lane.timeline.interval_end(self.interval_ends_ns);
            self.interval_ends_ns = next.unwrap_or(Nanos::MAX);
            self.intervals_ended += 1;
        }
        let mut mailbox = self.shared.mailbox.lock().expect("no holder panics");
        mailbox.intervals_ended = self.intervals_ended;
        if let Some(times) = &mut mailbox.times {
            times.add(&self.recent);
        }
        drop(mailbox);
        self.recent.clear();
    }

    /// Records a response that arrived in time.
    #[inline]
    pub fn answered<T: Transport>(
        &mut self,
        transport: &T,
        socket: Option<T::Socket>,
        number: u64,
        asked_ns: Nanos,
        answered_ns: Nanos,
        verdict: Verdict,
    ) {
        self.passed(answered_ns);
        let time = answered_ns.saturating_sub(asked_ns);
        self.recent.record(time);
        let counts = answered_ns >= self.lane.timeline.count_from_ns;
        if counts {
            self.times.record(time);
            match verdict {
                Verdict::Right => {}
                Verdict::WrongLength => self.wrong_length += 1,
                Verdict::WrongContent => self.wrong_content += 1,
                Verdict::Stamped => {
                    self.wrong_content += 1;
                    self.stamped += 1;
                }
            }
        }
        if let Some(numbers) = &mut self.numbers {
            numbers.take(number);
        }
        self.totals.packets += 1;
        self.totals.bytes += self.message.len() as u64;
        self.done(answered_ns);
        if let Some(slow) = &mut self.slow {
            let start_ns = self.lane.timeline.start_ns;
            let retransmits = || transport.retransmits(socket?);
            let is_slow = time > slow.limit_ns();
            if !is_slow || !counts {
                slow.passed(asked_ns, answered_ns, counts, is_slow, retransmits);
            } else {
                let waited_ns = socket.and_then(|socket| {
                    let since = transport.since_arrival(socket)?;
                    let waited = since.saturating_sub(T::clock().saturating_sub(answered_ns));
                    // A packet cannot arrive before its request was sent: then the system time was
                    // set. Without a timestamp the kernel reports that of the request.
                    (waited > 0 && waited <= time).then_some(waited)
                });
                let answer = Late {
                    number,
                    at_ns: answered_ns - start_ns,
                    answered_ns,
                    time_ns: time,
                    waited_ns,
                };
                slow.note(answer, &self.times, retransmits);
            }
        }
    }

    /// Records a response to a request that was given up.
    pub fn came_again(&mut self, number: u64) {
        // A number that was never sent is ignored.
        if let Some(numbers) = self.numbers.as_mut().filter(|_| number < self.totals.calls) {
            numbers.take(number);
        }
    }

    /// Records that no response arrived in time.
    pub fn missed(&mut self, number: u64, now: Nanos) {
        if let Some(numbers) = &mut self.numbers {
            numbers.give_up(number);
        }
        self.passed(now);
        self.totals.missing += 1;
        let ended_ns = self.ended_ns;
        self.done(now);
        if self.lane.phase.is_ending() {
            // The wait after the end of the run must not lower the rate.
            self.ended_ns = ended_ns;
        }
    }

    #[inline]
    fn done(&mut self, now: Nanos) {
        self.totals.calls += 1;
        self.left = self.left.saturating_sub(1);
        self.ended_ns = now;
        self.shared.meter.publish(&self.totals);
    }

    pub fn outcome<T: Transport>(
        mut self,
        transport: &T,
        socket: Option<T::Socket>,
        error: Option<io::Error>,
    ) -> FlowOutcome {
        // Hands over the last, shortened interval as well.
        let mut mailbox = self.shared.mailbox.lock().expect("no holder panics");
        if let Some(times) = &mut mailbox.times {
            times.add(&self.recent);
        }
        mailbox.intervals_ended = u64::MAX;
        drop(mailbox);
        self.recent.clear();
        let device = self.device.take().map(|watch| {
            let (account, times) = watch.finish();
            self.more.extend(times);
            account
        });
        FlowOutcome {
            timing: Timing::default(),
            id: self.id,
            direction: self.lane.direction,
            part: self.lane.part,
            totals: self.totals,
            sequence: self.numbers,
            times: Some(self.times),
            mismatched: self.wrong_length + self.wrong_content,
            first_mismatch: None,
            log: None,
            facts: socket
                .map(|socket| transport.facts(socket))
                .unwrap_or_default(),
            ended_ns: match error {
                Some(_) => transport.now(),
                None => self.ended_ns,
            },
            error,
            asking: Some(AskingOutcome {
                wrong_length: self.wrong_length,
                wrong_content: self.wrong_content,
                stamped: self.stamped,
                slow: self.slow.map(|slow| slow.finish(self.id)),
                histograms: self.more,
                unsent: self.unsent,
                unanswered: self.unanswered,
                ports_waited: self.ports_waited,
                broken: self.broken,
                device,
            }),
        }
    }
}

/// Writes a number into a message too short for a header: as many low bytes as fit.
pub fn write_short(message: &mut [u8], number: u64) {
    let len = message.len().min(8);
    message[..len].copy_from_slice(&number.to_be_bytes()[8 - len..]);
}

/// Largest distance of an earlier request whose number is recognised in a short message.
const SHORT_WINDOW: u64 = 64;

/// Finds the number of the earlier request to which a payload without a header responds.
fn earlier_short(payload: &[u8], question: &[u8], number: u64) -> Option<u64> {
    let len = question.len().min(8);
    if payload.len() != question.len() || payload[len..] != question[len..] {
        return None;
    }
    (1..=number.min(SHORT_WINDOW))
        .map(|back| number - back)
        .find(|earlier| payload[..len] == earlier.to_be_bytes()[8 - len..])
}

/// Classifies a datagram against the request with this number.
#[inline]
pub fn judge(payload: &[u8], question: &[u8], number: u64, verify: bool) -> Answer {
    if verify && payload == question {
        return Answer::Due(Verdict::Right);
    }
    judge_unequal(payload, question, number, verify)
}

fn judge_unequal(payload: &[u8], question: &[u8], number: u64, verify: bool) -> Answer {
    // An echo server is probed until it responds; a slow one responds to each probe, possibly late.
    if (is_greeting(payload) || payload == MARK) && payload != question {
        return Answer::Greeting;
    }
    if question.len() < wire::HEADER_BYTES {
        let len = question.len().min(8);
        if payload.get(..len) != question.get(..len)
            && let Some(earlier) = earlier_short(payload, question, number)
        {
            return Answer::Earlier(earlier);
        }
    } else if let Some(header) = wire::read_header(payload).filter(|h| h.sequence < number) {
        return Answer::Earlier(header.sequence);
    }
    Answer::Due(differs(payload, question, verify))
}

/// Classifies like [`judge`], for headers of another tool's protocol.
pub fn judge_framed(
    framing: &Framing,
    payload: &[u8],
    question: &[u8],
    number: u64,
    verify: bool,
) -> Answer {
    if let Framing::Own | Framing::Bare = framing {
        return judge(payload, question, number, verify);
    }
    if payload == question {
        return Answer::Due(Verdict::Right);
    }
    match framing.answers(payload).filter(|&earlier| earlier < number) {
        Some(earlier) => Answer::Earlier(earlier),
        None => Answer::Due(differs(payload, question, verify)),
    }
}

/// Classifies like [`judge`], but ignores the bytes in which the device writes its timestamps.
pub fn judge_around(
    payload: &[u8],
    question: &[u8],
    number: u64,
    verify: bool,
    stamps: DeviceStamps,
) -> Answer {
    if verify && device_timestamps::same_outside(payload, question, stamps) {
        return Answer::Due(Verdict::Right);
    }
    judge_unequal(payload, question, number, verify)
}

/// Compares a response with its request.
fn differs(payload: &[u8], question: &[u8], verify: bool) -> Verdict {
    if !verify {
        Verdict::Right
    } else if payload.len() != question.len() {
        Verdict::WrongLength
    } else if device_timestamps::same_outside(payload, question, device_timestamps::TARGET) {
        Verdict::Stamped
    } else {
        Verdict::WrongContent
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

    use super::*;
    use crate::flow::{Part, Phase, Timeline};
    use crate::workload::scripted_transport::Far;

    fn question(bytes: usize, number: u64) -> Vec<u8> {
        let mut message: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
        if bytes >= wire::HEADER_BYTES {
            wire::write_header(&mut message, number, 77);
        } else {
            write_short(&mut message, number);
        }
        message
    }

    /// A late response counts in the interval in which it arrives, and does not delay earlier ones.
    #[test]
    fn intervals_end_while_an_answer_is_waited_for() {
        const MS: Nanos = 1_000_000;
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "far");
        plan.duration_ns = Some(1_000 * MS);
        let phase = Phase::default();
        let lane = Lane {
            plan: &plan,
            direction: Direction::Send,
            part: Part::Source,
            timeline: Timeline {
                start_ns: 0,
                count_from_ns: 0,
                interval_ns: Some(100 * MS),
                trace_on_ns: None,
            },
            phase: &phase,
        };
        let mut flow = Opened {
            room: Default::default(),
            id: 1,
            socket: (),
            shared: Arc::default(),
            pattern: None,
            framing: Framing::default(),
            reopening: None,
        };
        let shared = Arc::clone(&flow.shared);
        let handed = || {
            let mailbox = shared.mailbox.lock().unwrap();
            let times = mailbox.times.as_ref().map_or(0, Histogram::count);
            (mailbox.intervals_ended, times)
        };
        let mut questions = Questions::new(&lane, &mut flow);
        let far = Far::after(0);
        for asked in [10 * MS, 20 * MS] {
            questions.answered(&far, None, 0, asked, asked + MS, Verdict::Right);
        }
        questions.passed(99 * MS);
        assert_eq!(handed(), (0, 0));
        questions.passed(101 * MS);
        assert_eq!(handed(), (1, 2));
        questions.passed(330 * MS);
        assert_eq!(handed(), (3, 2));
        questions.answered(&far, None, 1, 30 * MS, 340 * MS, Verdict::Right);
        questions.passed(400 * MS);
        assert_eq!(handed(), (4, 3));
    }

    #[test]
    fn every_kind_of_answer_is_told_apart() {
        for bytes in [1, 4, 8, 14, 16, 64, 1472] {
            let asked = question(bytes, 9);
            let of = |payload: &[u8]| judge(payload, &asked, 9, true);
            assert_eq!(of(&asked), Answer::Due(Verdict::Right), "{bytes}");
            assert_eq!(of(&question(bytes, 7)), Answer::Earlier(7), "{bytes}");
            let longer = [&asked[..], &[1]].concat();
            assert_eq!(of(&longer), Answer::Due(Verdict::WrongLength), "{bytes}");
            if bytes > 1 {
                let shorter = &asked[..bytes - 1];
                let got = judge(shorter, &asked, 9, true);
                assert_eq!(got, Answer::Due(Verdict::WrongLength), "{bytes}");
            }
            if bytes > 16 {
                let mut other = asked.clone();
                other[bytes - 1] ^= 1;
                assert_eq!(of(&other), Answer::Due(Verdict::WrongContent), "{bytes}");
                other.clone_from(&asked);
                other[16..32].fill(0xee);
                assert_eq!(of(&other), Answer::Due(Verdict::Stamped), "{bytes}");
                let unseen = judge(&other, &asked, 9, false);
                assert_eq!(unseen, Answer::Due(Verdict::Right), "not verified");
            }
            let earlier = judge(&question(bytes, 7), &asked, 9, false);
            assert_eq!(earlier, Answer::Earlier(7), "{bytes} unverified");
        }
    }

    #[test]
    fn a_question_that_looks_like_a_greeting_is_still_answered() {
        let greeting = wire::opening(linerate_dialect::control::Token([3; 16]));
        let asked = question(greeting.len(), 9);
        assert_eq!(judge(&greeting, &asked, 9, true), Answer::Greeting);
        assert_eq!(judge(&greeting, &asked, 9, false), Answer::Greeting);
    }

    #[test]
    fn a_late_answer_to_what_echo_was_asked_first_is_none_to_a_question() {
        for bytes in [1, 8, 9, 64] {
            let asked = question(bytes, 9);
            for verify in [true, false] {
                assert_eq!(judge(MARK, &asked, 9, verify), Answer::Greeting, "{bytes}");
            }
        }
    }
}
