//! Several outstanding requests: on a fixed schedule regardless of the responses (open loop), or as
//! many as may be outstanding.
//!
//! A request has two send times: the intended and the actual one. Measured from the intended time,
//! a
//! delayed request counts with its delay, which a closed loop hides (coordinated omission).

use std::io;
use std::task::Poll;
use std::time::Duration;

use linerate_dialect::control::flow as wire;
use linerate_host::sys::clock::Nanos;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::Protocol;

use super::device_timestamps::{TARGET, same_outside};
use super::in_flight::{Open, Question};
use super::request_tracker::{Questions, Verdict, write_short};
use crate::flow::{FlowOutcome, is_greeting};
use crate::transport::Transport;
use crate::workload::send_schedule::Schedule;
use crate::workload::{AWAKE_NS, Lane, Opened, PATIENCE_NS, Progress, Workload};

/// Time for which an interrupted run waits for outstanding responses.
const LAST_ANSWERS_NS: Nanos = 20_000_000;

/// Longest time for which a run that is over waits for them, whatever the timeout: the remote end
/// does not stay forever.
pub(super) const LAST_ANSWERS_LIMIT_NS: Nanos = 10_000_000_000;

/// Number of groups in which the ages of unsent requests are counted.
const AGES: u64 = 10_000;

/// Sends requests with several outstanding.
pub struct OpenLoop<'a, S> {
    questions: Questions<'a>,
    protocol: Protocol,
    socket: S,
    schedule: Option<Schedule>,
    outstanding: usize,
    /// Latest send time of a request; `None`: an amount ends the run.
    ends_ns: Option<Nanos>,
    open: Open,
    /// Number of the next request.
    next: u64,
    /// TCP: number of the next response on the stream.
    first: u64,
    to_ask: u64,
    /// Time of the last response.
    answered_ns: Nanos,
    /// TCP: bytes sent of the newest request, while it is incomplete.
    leaving: Option<usize>,
    /// TCP: bytes received of the oldest response, and whether they were correct.
    received: usize,
    right: bool,
    intended: Histogram,
    /// Time from which no more requests are sent.
    over_ns: Option<Nanos>,
}

impl<'a, S: Copy> OpenLoop<'a, S> {
    pub fn new(lane: &'a Lane<'a>, mut flow: Opened<S>) -> Self {
        let plan = lane.plan;
        let asked = &plan.round_trip;
        let questions = Questions::new(lane, &mut flow);
        let schedule = asked.rate_per_second.map(|per_second| {
            // Flows are offset within a period.
            let streams = u64::from(plan.streams.max(1));
            let turn = u64::from(flow.id.saturating_sub(1)) % streams;
            Schedule {
                start_ns: lane.timeline.start_ns + turn * 1_000_000_000 / per_second / streams,
                per_second,
            }
        });
        let outstanding = asked.outstanding.max(1) as usize;
        let ends_ns =
            (plan.duration_ns).map(|duration| lane.timeline.count_from_ns.saturating_add(duration));
        // Requests due after the end are not sent.
        let due_count =
            (schedule.zip(ends_ns)).map_or(u64::MAX, |(schedule, ends)| schedule.due_before(ends));
        Self {
            to_ask: questions.left.min(due_count),
            questions: match plan.protocol {
                Protocol::Udp => questions.with_numbers(),
                Protocol::Tcp => questions,
            },
            protocol: plan.protocol,
            socket: flow.socket,
            schedule,
            outstanding,
            ends_ns,
            open: Open::with_room(outstanding),
            next: 0,
            first: 0,
            answered_ns: lane.timeline.start_ns,
            leaving: None,
            received: 0,
            right: true,
            intended: flow.room.whole(),
            over_ns: None,
        }
    }

    fn may_ask(&self) -> bool {
        // TCP: a request that was given up stays on the stream until its response is read.
        let on_stream = self.next - self.first;
        self.over_ns.is_none()
            && self.to_ask > 0
            && self.open.len() < self.outstanding
            && (self.protocol == Protocol::Udp || on_stream < self.outstanding as u64)
    }

    /// Gives up requests whose timeout expired. On a stream their responses still arrive; they are
    /// read and not counted.
    fn expire(&mut self, now: Nanos) {
        self.questions.passed(now);
        while let Some(&oldest) = self.open.oldest() {
            if now < oldest.sent_ns.saturating_add(self.questions.timeout_ns) {
                return;
            }
            self.open.take(oldest.number);
            self.questions.missed(oldest.number, now);
        }
    }

    /// Returns whether no more requests are to be sent.
    fn is_over(&self, now: Nanos) -> bool {
        let all_asked = self.to_ask == 0 && self.leaving.is_none();
        // With a duration the run lasts until its end, not only until the last request.
        let in_time = self.ends_ns.is_some_and(|ends| now < ends);
        (all_asked && !in_time) || self.questions.lane.phase.is_ending()
    }

    /// Returns when a run that is over stops waiting for responses.
    fn last_look_ns(&self) -> Option<Nanos> {
        let over = self.over_ns?;
        let phase = self.questions.lane.phase;
        let wait = if phase.is_interrupted() {
            LAST_ANSWERS_NS.min(self.questions.timeout_ns)
        } else if phase.is_ending() || self.ends_ns.is_some() {
            self.questions.timeout_ns.min(LAST_ANSWERS_LIMIT_NS)
        } else {
            // With an amount, the last response or its timeout ends the run.
            return None;
        };
        Some(over.saturating_add(wait))
    }

    /// Counts requests that were due and have no response with their age: a lower bound of their
    /// time.
    fn count_unanswered(&mut self, now: Nanos) {
        let Some(schedule) = self.schedule else {
            return;
        };
        let counted = now >= self.questions.lane.timeline.count_from_ns;
        let mut ages = 0;
        for question in self.open.iter().filter(|_| counted) {
            self.intended
                .record(now.saturating_sub(question.intended_ns));
            ages += 1;
        }
        let unsent = self.questions.unsent.filter(|_| counted).unwrap_or(0);
        // Counted in a bounded number of groups, so that the time for this is bounded.
        let groups = unsent.min(AGES);
        for group in 0..groups {
            let at =
                |group: u64| (u128::from(unsent) * u128::from(group) / u128::from(groups)) as u64;
            let (from, to) = (at(group), at(group + 1));
            // The youngest of a group gives a lower bound for all of it.
            let due = schedule.due(self.next + to - 1);
            self.intended
                .record_many(now.saturating_sub(due), to - from);
        }
        self.questions.unanswered = ages + unsent;
    }

    /// Sends the next request, or the rest of it; returns whether anything was sent.
    fn ask<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<bool> {
        let (number, already) = match self.leaving {
            Some(bytes) => (self.next - 1, bytes),
            None => (self.next, 0),
        };
        if already == 0 {
            self.questions.begin(transport, self.socket);
            let message = &mut self.questions.message;
            if message.len() >= wire::HEADER_BYTES {
                wire::write_header(message, number, 0);
            } else {
                write_short(message, number);
            }
        }
        let rest = &self.questions.message[already..];
        let mut sent_ns = 0;
        let taken = match self.protocol {
            Protocol::Udp => transport.udp_send(self.socket, rest.len(), |payload| {
                payload.copy_from_slice(rest);
                sent_ns = T::clock();
                wire::write_header(payload, number, sent_ns);
            }),
            Protocol::Tcp => transport.tcp_send(self.socket, rest.len(), |payload| {
                payload.copy_from_slice(&rest[..payload.len()]);
                sent_ns = T::clock();
            }),
        };
        let Poll::Ready(taken) = taken else {
            return Ok(false);
        };
        let already_now = already + taken?;
        if self.leaving.is_none() {
            let due = self.schedule.map(|schedule| schedule.due(number));
            self.open.push(Question {
                number,
                intended_ns: due.unwrap_or(sent_ns).min(sent_ns),
                sent_ns,
            });
            self.next += 1;
            self.to_ask -= 1;
        }
        let whole = self.protocol == Protocol::Udp || already_now >= self.questions.message.len();
        self.leaving = (!whole).then_some(already_now);
        Ok(true)
    }

    /// Counts the response to a request, if that is outstanding.
    fn count<T: Transport<Socket = S>>(
        &mut self,
        transport: &T,
        number: u64,
        now: Nanos,
        verdict: Verdict,
    ) {
        let Some(question) = self.open.take(number) else {
            return;
        };
        self.answered_ns = now;
        if now >= self.questions.lane.timeline.count_from_ns {
            self.intended
                .record(now.saturating_sub(question.intended_ns));
        }
        let socket = Some(self.socket);
        self.questions
            .answered(transport, socket, number, question.sent_ns, now, verdict);
    }

    /// Receives a response, if one is waiting.
    fn listen<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<bool> {
        match self.protocol {
            Protocol::Udp => self.listen_udp(transport),
            Protocol::Tcp => self.listen_tcp(transport),
        }
    }

    fn listen_udp<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<bool> {
        let (next, verify) = (self.next, self.questions.verify);
        let (open, message) = (&self.open, &self.questions.message);
        let stamps = self.questions.device_stamps();
        let received = transport.udp_receive(self.socket, |payload, _| {
            let now = T::clock();
            let stamped = stamps.and_then(|stamps| stamps.read(payload));
            let number = if is_greeting(payload) {
                None
            } else if message.len() >= wire::HEADER_BYTES {
                wire::read_header(payload).map(|header| header.sequence)
            } else {
                // Such a message holds a complete number: shorter ones are rejected earlier.
                payload
                    .first_chunk()
                    .map(|number| u64::from_be_bytes(*number))
            };
            let number = number.filter(|&number| number < next)?;
            let Some(question) = open.get(number) else {
                return Some((now, number, None, stamped));
            };
            let verdict = if !verify {
                Verdict::Right
            } else if payload.len() != message.len() {
                Verdict::WrongLength
            } else {
                let own = message.len().min(if message.len() >= wire::HEADER_BYTES {
                    wire::HEADER_BYTES
                } else {
                    8
                });
                let timed = wire::read_header(payload)
                    .filter(|_| message.len() >= wire::HEADER_BYTES)
                    .is_none_or(|header| header.sent_ns == question.sent_ns);
                let same = match stamps {
                    None => payload[own..] == message[own..],
                    Some(stamps) => {
                        same_outside(&payload[own..], &message[own..], stamps.behind(own))
                    }
                };
                match timed && same {
                    true => Verdict::Right,
                    false
                        if timed
                            && same_outside(
                                &payload[own..],
                                &message[own..],
                                TARGET.behind(own),
                            ) =>
                    {
                        Verdict::Stamped
                    }
                    false => Verdict::WrongContent,
                }
            };
            Some((now, number, Some(verdict), stamped))
        });
        match received {
            Poll::Pending => Ok(false),
            Poll::Ready(received) => {
                match received? {
                    Some((now, number, Some(verdict), stamped)) => {
                        if let Some(question) = self.open.get(number) {
                            let sent_ns = question.sent_ns;
                            self.questions.was_inside(stamped, sent_ns, now);
                        }
                        self.count(transport, number, now, verdict);
                    }
                    Some((_, number, None, _)) => {
                        if let Some(numbers) = &mut self.questions.numbers {
                            numbers.take(number);
                        }
                    }
                    None => {}
                }
                Ok(true)
            }
        }
    }

    fn listen_tcp<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<bool> {
        let bytes = self.questions.message.len();
        let (received, number) = (self.received, self.first);
        let (message, verify) = (&self.questions.message, self.questions.verify);
        let answer = transport.tcp_receive(self.socket, bytes - received, |payload| {
            let now = T::clock();
            let same = !verify || matches_stream(payload, received, message, number);
            (now, payload.len(), same)
        });
        let Poll::Ready(answer) = answer else {
            return Ok(false);
        };
        let (now, more, same) = answer?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received += more;
        self.right &= same;
        if self.received == bytes {
            let verdict = match self.right {
                true => Verdict::Right,
                false => Verdict::WrongContent,
            };
            (self.received, self.right) = (0, true);
            self.count(transport, number, now, verdict);
            self.first += 1;
        }
        Ok(true)
    }
}

/// Returns whether a part of a response on a stream matches the request with this number.
fn matches_stream(payload: &[u8], from: usize, message: &[u8], number: u64) -> bool {
    let mut head = [0; wire::HEADER_BYTES];
    let own = if message.len() >= wire::HEADER_BYTES {
        wire::write_header(&mut head, number, 0);
        wire::HEADER_BYTES
    } else {
        let own = message.len().min(8);
        write_short(&mut head[..own], number);
        own
    };
    let in_head = own.saturating_sub(from).min(payload.len());
    payload[..in_head] == head[from.min(own)..from.min(own) + in_head]
        && payload[in_head..] == message[from + in_head..from + payload.len()]
}

impl<T: Transport> Workload<T> for OpenLoop<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let now = T::clock();
        self.expire(now);
        if self.over_ns.is_none() && self.is_over(now) {
            self.over_ns = Some(now);
            if let Some(schedule) = self
                .schedule
                .filter(|_| self.ends_ns.is_some() || self.to_ask > 0)
            {
                let ended = self.ends_ns.map_or(now, |ends| ends.min(now));
                self.questions.unsent = Some(schedule.due_before(ended).saturating_sub(self.next));
            }
        }
        let waited = self.last_look_ns().is_some_and(|last| now >= last);
        if self.over_ns.is_some() && (self.open.len() == 0 || waited) {
            if self.protocol == Protocol::Tcp && self.leaving.is_none() {
                transport.finish_sending(self.socket)?;
            }
            self.count_unanswered(now);
            return Ok(Progress::Done);
        }
        let due = match (self.leaving, self.may_ask(), self.schedule) {
            (Some(_), _, _) | (None, true, None) => Some(now),
            (None, true, Some(schedule)) => Some(schedule.due(self.next)),
            (None, false, _) => None,
        };
        let mut worked = false;
        if due.is_some_and(|due| due <= now) {
            worked = self.ask(transport)?;
        }
        // Longest time for which there is nothing to do but receive.
        let quiet_ns = if worked {
            0
        } else {
            let given_up = (self.open.oldest())
                .map(|oldest| oldest.sent_ns.saturating_add(self.questions.timeout_ns));
            let last = match self.over_ns {
                Some(_) => self.last_look_ns(),
                // Every request was sent, and the duration is not over.
                None => self.ends_ns.filter(|_| self.to_ask == 0),
            };
            let next = due
                .filter(|&due| due > now)
                .map(|due| due.saturating_sub(AWAKE_NS));
            let until = [given_up, last, next].into_iter().flatten().min();
            let quiet = until.map_or(PATIENCE_NS, |until| until.saturating_sub(now));
            quiet.min(PATIENCE_NS)
        };
        if worked && self.schedule.is_none() && self.may_ask() {
            // More requests are sent before the first response is received.
            return Ok(Progress::Worked);
        }
        transport.be_patient(self.socket, Duration::from_nanos(quiet_ns));
        let heard = self.listen(transport)?;
        Ok(match worked || heard {
            true => Progress::Worked,
            // The receive call has waited already, or the next departure is too near to sleep.
            false if self.schedule.is_some() => Progress::Worked,
            false => Progress::Starved(None),
        })
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.socket)
    }

    fn outcome(mut self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        if let Some((ends, over)) = self.ends_ns.zip(self.over_ns) {
            // The time for which requests were sent, or until the last response; without the
            // wait for missing responses.
            self.questions.end_at(self.answered_ns.max(over.min(ends)));
        }
        if self.schedule.is_some() {
            self.questions.more.push(("rtt_intended_ns", self.intended));
        }
        let socket = Some(self.socket);
        self.questions.outcome(transport, socket, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::scripted_transport::{Far, START_NS, asked};
    use linerate_metric::plan::{Kind, Plan};
    use proptest::prelude::*;

    #[test]
    fn parts_of_a_stream_are_compared_in_their_place() {
        for bytes in [8usize, 14, 16, 40] {
            let mut message: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
            let mut whole = message.clone();
            if bytes >= wire::HEADER_BYTES {
                wire::write_header(&mut whole, 5, 0);
                wire::write_header(&mut message, 9, 0);
            } else {
                write_short(&mut whole, 5);
                write_short(&mut message, 9);
            }
            for from in 0..bytes {
                for to in from + 1..=bytes {
                    assert!(matches_stream(&whole[from..to], from, &message, 5));
                    let mut wrong = whole[from..to].to_vec();
                    wrong[0] ^= 0x80;
                    assert!(!matches_stream(&wrong, from, &message, 5));
                }
            }
        }
    }

    fn plan(rate: Option<u64>, outstanding: u32) -> Plan {
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "far".to_owned());
        plan.duration_ns = Some(1_000_000_000);
        plan.interval_ns = None;
        plan.round_trip.rate_per_second = rate;
        plan.round_trip.outstanding = outstanding;
        plan
    }

    #[test]
    fn a_lost_datagram_does_not_hold_up_the_others() {
        let far = Far::after(10_000).losing(5);
        let outcome = asked(&plan(None, 4), far, None);
        // Three slots carry 100,000 requests per second each while one request times out.
        assert!(outcome.totals.packets > 200_000, "{:?}", outcome.totals);
        assert_eq!(outcome.totals.missing, 1);
    }

    #[test]
    fn as_many_are_asked_as_are_due() {
        for (rate, answer_ns) in [
            (1_000, 50_000),
            (1_000, 5_000),
            (3, 1_000),
            (2_000, 400_000),
        ] {
            let outcome = asked(&plan(Some(rate), 64), Far::after(answer_ns), None);
            assert_eq!(outcome.totals.packets, rate);
            let asking = outcome.asking.unwrap();
            assert_eq!((asking.unsent, asking.unanswered), (Some(0), 0));
            assert_eq!(outcome.ended_ns, START_NS + 1_000_000_000, "full duration");
        }
    }

    #[test]
    fn what_is_open_at_the_end_is_waited_for() {
        const LAST_DUE_NS: Nanos = START_NS + 990_000_000;
        // Each response takes 0.3 s: the last ones arrive after the end.
        let outcome = asked(&plan(Some(100), 64), Far::after(300_000_000), None);
        assert_eq!((outcome.totals.packets, outcome.totals.missing), (100, 0));
        assert_eq!(outcome.times.unwrap().count(), 100);
        assert_eq!(outcome.ended_ns, LAST_DUE_NS + 300_000_000 + 500);
        // One lost response does not extend the run.
        let outcome = asked(&plan(Some(100), 64), Far::after(1_000).losing(99), None);
        assert_eq!((outcome.totals.packets, outcome.totals.missing), (99, 1));
        assert_eq!(outcome.ended_ns, START_NS + 1_000_000_000);
        // An interrupted run waits for 20 ms only.
        let far = Far::after(300_000_000);
        let outcome = asked(&plan(Some(100), 64), far, Some(START_NS + 500_000_000));
        let ended = outcome.ended_ns - START_NS;
        assert!((500_000_000..530_000_000).contains(&ended), "{ended}");
        let asking = outcome.asking.unwrap();
        assert!(
            asking.unanswered > 0 && asking.unanswered < 35,
            "{}",
            asking.unanswered
        );
    }

    #[test]
    fn answers_to_what_was_given_up_came_late() {
        for rate in [Some(100), None] {
            let mut plan = plan(rate, if rate.is_some() { 64 } else { 1 });
            plan.answer_timeout_ns = Some(20_000_000);
            let outcome = asked(&plan, Far::after(100_000_000), None);
            assert_eq!(outcome.totals.packets, 0);
            let numbers = outcome.sequence.unwrap();
            // All but those that were outstanding at the end.
            assert!(outcome.totals.missing >= 45, "{:?}", outcome.totals);
            let late = numbers.out_of_order();
            assert!(late + 12 >= outcome.totals.missing, "{late}");
            assert_eq!(numbers.duplicates(), 0);
        }
    }

    #[test]
    fn what_was_due_and_never_left_counts_with_its_age() {
        // One at a time, 10 ms each: of 1,000 due requests 100 are sent.
        let outcome = asked(&plan(Some(1_000), 1), Far::after(10_000_000), None);
        let asking = outcome.asking.unwrap();
        let sent = outcome.totals.packets;
        assert!((90..=101).contains(&sent), "{sent}");
        assert_eq!(asking.unsent, Some(1_000 - sent));
        assert_eq!(asking.unanswered, 1_000 - sent);
        let (name, intended) = &asking.histograms[0];
        assert_eq!((*name, intended.count()), ("rtt_intended_ns", 1_000));
        // The median request was due in the middle. Its age at the end, or its response time, is
        // about
        // half of the run.
        let median = intended.quantile(0.5).unwrap();
        assert!((400_000_000..600_000_000).contains(&median), "{median}");
        assert!(intended.max().unwrap() >= 890_000_000);
    }

    proptest! {
        #[test]
        fn a_schedule_neither_gains_nor_loses(per_second in 1u64..10_000_000, number in 0u64..1_000_000_000) {
            let schedule = Schedule { start_ns: 77, per_second };
            let due = schedule.due(number);
            prop_assert!(schedule.due(number + 1) >= due);
            let exact = number as f64 / per_second as f64 * 1e9;
            prop_assert!(((due - 77) as f64 - exact).abs() <= 1.0 + exact * 1e-12);
            // All requests before it were due earlier, by more than a nanosecond each.
            if per_second <= 1_000_000 {
                prop_assert_eq!(schedule.due_before(due + 1), number + 1);
            }
        }
    }
}
