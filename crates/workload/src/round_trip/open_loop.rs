//! Several outstanding requests: on a fixed schedule regardless of the responses (open loop), or as
//! many as may be outstanding.
//!
//! A request has two send times: the intended and the actual one. Measured from the intended time,
//! a delayed request counts with its delay, which a closed loop hides (coordinated omission).

use std::io;
use std::task::Poll;
use std::time::Duration;

use linerate_protocol::control::flow as wire;
use linerate_record::plan::TransportProtocol;
use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;
use linerate_transport::{MAX_IDLE_NS, SPIN_BEFORE_DEPARTURE_NS, Transport};

use super::in_flight::{OutstandingRequest, OutstandingRequests};
use super::request_tracker::{RequestTracker, ResponseCheck, write_short_number};
use crate::device_timestamps::{TARGET_CODE_FORMAT, equals_outside};
use crate::flow::{FlowEndResults, is_opening_datagram};
use crate::send_schedule::SendSchedule;
use crate::{OpenFlow, Progress, WorkerContext, Workload};

/// Time for which an interrupted run waits for outstanding responses.
const INTERRUPTED_DRAIN_NS: Nanos = 20_000_000;

/// Longest time for which a run that is over waits for them, whatever the timeout: the remote end
/// does not stay forever.
pub(super) const MAX_DRAIN_NS: Nanos = 10_000_000_000;

/// Number of groups in which the ages of unsent requests are counted.
const AGE_GROUPS: u64 = 10_000;

/// Sends requests with several outstanding.
pub struct OpenLoopSender<'a, S> {
    requests: RequestTracker<'a>,
    protocol: TransportProtocol,
    socket: S,
    schedule: Option<SendSchedule>,
    max_outstanding: usize,
    /// Latest send time of a request; `None`: an amount ends the run.
    end_ns: Option<Nanos>,
    outstanding: OutstandingRequests,
    /// Number of the next request.
    next_number: u64,
    /// TCP: number of the next response on the stream.
    next_response: u64,
    remaining: u64,
    /// Time of the last response.
    last_response_ns: Nanos,
    /// TCP: bytes sent of the newest request, while it is incomplete.
    partly_sent_bytes: Option<usize>,
    /// TCP: bytes received of the oldest response, and whether they were correct.
    received_bytes: usize,
    is_correct: bool,
    intended_times: Histogram,
    /// Time from which no more requests are sent.
    stopped_ns: Option<Nanos>,
}

impl<'a, S: Copy> OpenLoopSender<'a, S> {
    pub fn new(worker: &'a WorkerContext<'a>, mut flow: OpenFlow<S>) -> Self {
        let plan = worker.plan;
        let options = &plan.round_trip;
        let requests = RequestTracker::new(worker, &mut flow);
        let schedule = options.rate_per_second.map(|per_second| {
            // Flows are offset within a period.
            let streams = u64::from(plan.streams.max(1));
            let offset = u64::from(flow.id.saturating_sub(1)) % streams;
            SendSchedule {
                start_ns: worker.run_clock.start_ns + offset * 1_000_000_000 / per_second / streams,
                per_second,
            }
        });
        let outstanding = options.outstanding.max(1) as usize;
        let ends_ns = (plan.duration_ns)
            .map(|duration| worker.run_clock.count_from_ns.saturating_add(duration));
        // Requests due after the end are not sent.
        let due_count = (schedule.zip(ends_ns))
            .map_or(u64::MAX, |(schedule, end_ns)| schedule.count_before(end_ns));
        Self {
            remaining: requests.remaining.min(due_count),
            requests: match plan.protocol {
                TransportProtocol::Udp => requests.with_numbers(),
                TransportProtocol::Tcp => requests,
            },
            protocol: plan.protocol,
            socket: flow.socket,
            schedule,
            max_outstanding: outstanding,
            end_ns: ends_ns,
            outstanding: OutstandingRequests::with_capacity(outstanding),
            next_number: 0,
            next_response: 0,
            last_response_ns: worker.run_clock.start_ns,
            partly_sent_bytes: None,
            received_bytes: 0,
            is_correct: true,
            intended_times: flow.histograms.take_full_run(),
            stopped_ns: None,
        }
    }

    fn may_send(&self) -> bool {
        // TCP: a request that was given up stays on the stream until its response is read.
        let on_stream = self.next_number - self.next_response;
        self.stopped_ns.is_none()
            && self.remaining > 0
            && self.outstanding.len() < self.max_outstanding
            && (self.protocol == TransportProtocol::Udp || on_stream < self.max_outstanding as u64)
    }

    /// Gives up requests whose timeout expired. On a stream their responses still arrive; they are
    /// read and not counted.
    fn expire(&mut self, now: Nanos) {
        self.requests.advance_time(now);
        while let Some(&oldest) = self.outstanding.oldest() {
            if !self.requests.is_missing(oldest.sent_ns, now) {
                return;
            }
            self.outstanding.take(oldest.number);
            self.requests.give_up(oldest.number, oldest.sent_ns, now);
        }
    }

    /// Returns whether no more requests are to be sent.
    fn is_over(&self, now: Nanos) -> bool {
        let is_all_sent = self.remaining == 0 && self.partly_sent_bytes.is_none();
        // With a duration the run lasts until its end, not only until the last request.
        let in_time = self.end_ns.is_some_and(|end_ns| now < end_ns);
        (is_all_sent && !in_time) || self.requests.worker.phase.is_ending()
    }

    /// Returns when a run that is over stops waiting for responses.
    fn drain_end_ns(&self) -> Option<Nanos> {
        let stopped_ns = self.stopped_ns?;
        let phase = self.requests.worker.phase;
        let wait = if phase.is_interrupted() {
            INTERRUPTED_DRAIN_NS.min(self.requests.timeout_ns)
        } else if phase.is_ending() || self.end_ns.is_some() {
            self.requests.timeout_ns.min(MAX_DRAIN_NS)
        } else {
            // With an amount, the last response or its timeout ends the run.
            return None;
        };
        Some(stopped_ns.saturating_add(wait))
    }

    /// Counts requests that were due and have no response with their age: a lower bound of their
    /// time.
    fn count_unanswered(&mut self, now: Nanos) {
        let Some(schedule) = self.schedule else {
            return;
        };
        let counted = now >= self.requests.worker.run_clock.count_from_ns;
        let mut ages = 0;
        for request in self.outstanding.iter().filter(|_| counted) {
            self.intended_times
                .record(now.saturating_sub(request.intended_ns));
            ages += 1;
        }
        let unsent = self.requests.unsent_due.filter(|_| counted).unwrap_or(0);
        // Counted in a bounded number of groups, so that the time for this is bounded.
        let groups = unsent.min(AGE_GROUPS);
        for group in 0..groups {
            let at =
                |group: u64| (u128::from(unsent) * u128::from(group) / u128::from(groups)) as u64;
            let (from, to) = (at(group), at(group + 1));
            // The youngest of a group gives a lower bound for all of it.
            let due_ns = schedule.send_time_ns(self.next_number + to - 1);
            self.intended_times
                .record_many(now.saturating_sub(due_ns), to - from);
        }
        self.requests.without_response = ages + unsent;
    }

    /// Sends the next request, or the rest of it; returns whether anything was sent.
    fn send_request<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<bool> {
        let (number, sent_before) = match self.partly_sent_bytes {
            Some(bytes) => (self.next_number - 1, bytes),
            None => (self.next_number, 0),
        };
        if sent_before == 0 {
            self.requests.before_request(transport, self.socket);
            let message = &mut self.requests.message;
            if message.len() >= wire::HEADER_BYTES {
                wire::write_header(message, number, 0);
            } else {
                write_short_number(message, number);
            }
        }
        let rest = &self.requests.message[sent_before..];
        let mut sent_ns = 0;
        let accepted = match self.protocol {
            TransportProtocol::Udp => transport.udp_send(self.socket, rest.len(), |payload| {
                payload.copy_from_slice(rest);
                sent_ns = T::read_clock();
                wire::write_header(payload, number, sent_ns);
            }),
            TransportProtocol::Tcp => transport.tcp_send(self.socket, rest.len(), |payload| {
                payload.copy_from_slice(&rest[..payload.len()]);
                sent_ns = T::read_clock();
            }),
        };
        let Poll::Ready(accepted) = accepted else {
            return Ok(false);
        };
        let sent_bytes = sent_before + accepted?;
        if self.partly_sent_bytes.is_none() {
            let due_ns = self.schedule.map(|schedule| schedule.send_time_ns(number));
            self.outstanding.push(OutstandingRequest {
                number,
                intended_ns: due_ns.unwrap_or(sent_ns).min(sent_ns),
                sent_ns,
            });
            self.next_number += 1;
            self.remaining -= 1;
        }
        let is_complete =
            self.protocol == TransportProtocol::Udp || sent_bytes >= self.requests.message.len();
        self.partly_sent_bytes = (!is_complete).then_some(sent_bytes);
        Ok(true)
    }

    /// Counts the response to a request, if that is outstanding.
    fn count_response<T: Transport<Socket = S>>(
        &mut self,
        transport: &T,
        number: u64,
        now: Nanos,
        verdict: ResponseCheck,
    ) {
        let Some(request) = self.outstanding.take(number) else {
            return;
        };
        self.last_response_ns = now;
        if now >= self.requests.worker.run_clock.count_from_ns {
            self.intended_times
                .record(now.saturating_sub(request.intended_ns));
        }
        let socket = Some(self.socket);
        self.requests
            .record_response(transport, socket, number, request.sent_ns, now, verdict);
    }

    /// Receives a response, if one is waiting.
    fn receive<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<bool> {
        match self.protocol {
            TransportProtocol::Udp => self.receive_udp(transport),
            TransportProtocol::Tcp => self.receive_tcp(transport),
        }
    }

    fn receive_udp<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<bool> {
        let (next, verify) = (self.next_number, self.requests.verify);
        let (open, message) = (&self.outstanding, &self.requests.message);
        let format = self.requests.device_format();
        let received = transport.udp_receive(self.socket, |payload, _| {
            let now = T::read_clock();
            let timestamps = format.and_then(|format| format.read(payload));
            let number = if is_opening_datagram(payload) {
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
            let Some(request) = open.get(number) else {
                return Some((now, number, None, timestamps));
            };
            let verdict = if !verify {
                ResponseCheck::Correct
            } else if payload.len() != message.len() {
                ResponseCheck::WrongLength
            } else {
                let header_bytes = message.len().min(if message.len() >= wire::HEADER_BYTES {
                    wire::HEADER_BYTES
                } else {
                    8
                });
                let has_send_time = wire::read_header(payload)
                    .filter(|_| message.len() >= wire::HEADER_BYTES)
                    .is_none_or(|header| header.sent_ns == request.sent_ns);
                let is_equal = match format {
                    None => payload[header_bytes..] == message[header_bytes..],
                    Some(format) => equals_outside(
                        &payload[header_bytes..],
                        &message[header_bytes..],
                        format.after_prefix(header_bytes),
                    ),
                };
                match has_send_time && is_equal {
                    true => ResponseCheck::Correct,
                    false
                        if has_send_time
                            && equals_outside(
                                &payload[header_bytes..],
                                &message[header_bytes..],
                                TARGET_CODE_FORMAT.after_prefix(header_bytes),
                            ) =>
                    {
                        ResponseCheck::DeviceTimestamps
                    }
                    false => ResponseCheck::WrongContent,
                }
            };
            Some((now, number, Some(verdict), timestamps))
        });
        match received {
            Poll::Pending => Ok(false),
            Poll::Ready(received) => {
                match received? {
                    Some((now, number, Some(verdict), timestamps)) => {
                        if let Some(request) = self.outstanding.get(number) {
                            let sent_ns = request.sent_ns;
                            self.requests.record_device_time(timestamps, sent_ns, now);
                        }
                        self.count_response(transport, number, now, verdict);
                    }
                    Some((now, number, None, _)) => {
                        self.requests.record_late_response(number, now);
                    }
                    None => {}
                }
                Ok(true)
            }
        }
    }

    fn receive_tcp<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<bool> {
        let bytes = self.requests.message.len();
        let (received, number) = (self.received_bytes, self.next_response);
        let (message, verify) = (&self.requests.message, self.requests.verify);
        let response = transport.tcp_receive(self.socket, bytes - received, |payload| {
            let now = T::read_clock();
            let is_equal = !verify || matches_stream(payload, received, message, number);
            (now, payload.len(), is_equal)
        });
        let Poll::Ready(response) = response else {
            return Ok(false);
        };
        let (now, received_bytes, is_equal) = response?;
        if received_bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received_bytes += received_bytes;
        self.is_correct &= is_equal;
        if self.received_bytes == bytes {
            let verdict = match self.is_correct {
                true => ResponseCheck::Correct,
                false => ResponseCheck::WrongContent,
            };
            (self.received_bytes, self.is_correct) = (0, true);
            self.count_response(transport, number, now, verdict);
            self.next_response += 1;
        }
        Ok(true)
    }
}

/// Returns whether a part of a response on a stream matches the request with this number.
fn matches_stream(payload: &[u8], from: usize, message: &[u8], number: u64) -> bool {
    let mut head = [0; wire::HEADER_BYTES];
    let header_bytes = if message.len() >= wire::HEADER_BYTES {
        wire::write_header(&mut head, number, 0);
        wire::HEADER_BYTES
    } else {
        let header_bytes = message.len().min(8);
        write_short_number(&mut head[..header_bytes], number);
        header_bytes
    };
    let in_head = header_bytes.saturating_sub(from).min(payload.len());
    payload[..in_head] == head[from.min(header_bytes)..from.min(header_bytes) + in_head]
        && payload[in_head..] == message[from + in_head..from + payload.len()]
}

impl<T: Transport> Workload<T> for OpenLoopSender<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let now = T::read_clock();
        self.expire(now);
        if self.stopped_ns.is_none() && self.is_over(now) {
            self.stopped_ns = Some(now);
            if let Some(schedule) = self
                .schedule
                .filter(|_| self.end_ns.is_some() || self.remaining > 0)
            {
                let schedule_end_ns = self.end_ns.map_or(now, |end_ns| end_ns.min(now));
                self.requests.unsent_due = Some(
                    schedule
                        .count_before(schedule_end_ns)
                        .saturating_sub(self.next_number),
                );
            }
        }
        let is_drained = self.drain_end_ns().is_some_and(|last_ns| now >= last_ns);
        if self.stopped_ns.is_some() && (self.outstanding.len() == 0 || is_drained) {
            if self.protocol == TransportProtocol::Tcp && self.partly_sent_bytes.is_none() {
                transport.shutdown_send(self.socket)?;
            }
            self.count_unanswered(now);
            return Ok(Progress::Done);
        }
        let due_ns = match (self.partly_sent_bytes, self.may_send(), self.schedule) {
            (Some(_), _, _) | (None, true, None) => Some(now),
            (None, true, Some(schedule)) => Some(schedule.send_time_ns(self.next_number)),
            (None, false, _) => None,
        };
        let mut worked = false;
        if due_ns.is_some_and(|due_ns| due_ns <= now) {
            worked = self.send_request(transport)?;
        }
        // Longest time for which there is nothing to do but receive.
        let quiet_ns = if worked {
            0
        } else {
            let next_timeout = (self.outstanding.oldest())
                .map(|oldest| oldest.sent_ns.saturating_add(self.requests.timeout_ns))
                .filter(|&expires_ns| expires_ns > now);
            let last_ns = match self.stopped_ns {
                Some(_) => self.drain_end_ns(),
                // Every request was sent, and the duration is not over.
                None => self.end_ns.filter(|_| self.remaining == 0),
            };
            let next = due_ns
                .filter(|&due_ns| due_ns > now)
                .map(|due_ns| due_ns.saturating_sub(SPIN_BEFORE_DEPARTURE_NS));
            let until = [next_timeout, last_ns, next].into_iter().flatten().min();
            let quiet = until.map_or(MAX_IDLE_NS, |until| until.saturating_sub(now));
            quiet.min(MAX_IDLE_NS)
        };
        if worked && self.schedule.is_none() && self.may_send() {
            // More requests are sent before the first response is received.
            return Ok(Progress::Worked);
        }
        transport.set_receive_timeout(self.socket, Duration::from_nanos(quiet_ns));
        let has_received = self.receive(transport)?;
        Ok(match worked || has_received {
            true => Progress::Worked,
            // The receive call has waited already, or the next departure is too near to sleep.
            false if self.schedule.is_some() => Progress::Worked,
            false => Progress::Starved(None),
        })
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.socket)
    }

    fn finish(mut self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        if let Some((end_ns, stopped_ns)) = self.end_ns.zip(self.stopped_ns) {
            // The time for which requests were sent, or until the last response; without the
            // wait for missing responses.
            self.requests
                .set_end(self.last_response_ns.max(stopped_ns.min(end_ns)));
        }
        if self.schedule.is_some() {
            self.requests
                .more_histograms
                .push(("rtt_intended_ns", self.intended_times));
        }
        let socket = Some(self.socket);
        self.requests.finish(transport, socket, error)
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Plan, RunKind};
    use proptest::prelude::*;

    use super::*;
    use crate::scripted_transport::{START_NS, ScriptedTransport, run_scripted};
    #[test]
    fn parts_of_a_stream_are_compared_in_their_place() {
        for bytes in [8usize, 14, 16, 40] {
            let mut message: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
            let mut full_message = message.clone();
            if bytes >= wire::HEADER_BYTES {
                wire::write_header(&mut full_message, 5, 0);
                wire::write_header(&mut message, 9, 0);
            } else {
                write_short_number(&mut full_message, 5);
                write_short_number(&mut message, 9);
            }
            for from in 0..bytes {
                for to in from + 1..=bytes {
                    assert!(matches_stream(&full_message[from..to], from, &message, 5));
                    let mut wrong = full_message[from..to].to_vec();
                    wrong[0] ^= 0x80;
                    assert!(!matches_stream(&wrong, from, &message, 5));
                }
            }
        }
    }

    fn plan(rate: Option<u64>, outstanding: u32) -> Plan {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far".to_owned());
        plan.duration_ns = Some(1_000_000_000);
        plan.interval_ns = None;
        plan.round_trip.rate_per_second = rate;
        plan.round_trip.outstanding = outstanding;
        plan
    }

    #[test]
    fn a_lost_datagram_does_not_hold_up_the_others() {
        let transport = ScriptedTransport::with_delay(10_000).with_lost(5);
        let result = run_scripted(&plan(None, 4), transport, None);
        // Three slots carry 100,000 requests per second each while one request times out.
        assert!(result.totals.packets > 200_000, "{:?}", result.totals);
        assert_eq!(result.totals.missing, 1);
    }

    #[test]
    fn all_due_requests_are_sent() {
        for (rate, response_delay_ns) in [
            (1_000, 50_000),
            (1_000, 5_000),
            (3, 1_000),
            (2_000, 400_000),
        ] {
            let result = run_scripted(
                &plan(Some(rate), 64),
                ScriptedTransport::with_delay(response_delay_ns),
                None,
            );
            assert_eq!(result.totals.packets, rate);
            let requests = result.requests.unwrap();
            assert_eq!((requests.unsent, requests.without_response), (Some(0), 0));
            assert_eq!(result.ended_ns, START_NS + 1_000_000_000, "full duration");
        }
    }

    #[test]
    fn responses_outstanding_at_the_end_are_awaited() {
        const LAST_DUE_NS: Nanos = START_NS + 990_000_000;
        // Each response takes 0.3 s: the last ones arrive after the end.
        let result = run_scripted(
            &plan(Some(100), 64),
            ScriptedTransport::with_delay(300_000_000),
            None,
        );
        assert_eq!((result.totals.packets, result.totals.missing), (100, 0));
        assert_eq!(result.times.unwrap().count(), 100);
        assert_eq!(result.ended_ns, LAST_DUE_NS + 300_000_000 + 500);
        // One lost response does not extend the run.
        let result = run_scripted(
            &plan(Some(100), 64),
            ScriptedTransport::with_delay(1_000).with_lost(99),
            None,
        );
        assert_eq!((result.totals.packets, result.totals.missing), (99, 1));
        assert_eq!(result.ended_ns, START_NS + 1_000_000_000);
        // An interrupted run waits for 20 ms only.
        let transport = ScriptedTransport::with_delay(300_000_000);
        let result = run_scripted(
            &plan(Some(100), 64),
            transport,
            Some(START_NS + 500_000_000),
        );
        let schedule_end_ns = result.ended_ns - START_NS;
        assert!(
            (500_000_000..530_000_000).contains(&schedule_end_ns),
            "{schedule_end_ns}"
        );
        let requests = result.requests.unwrap();
        assert!(
            requests.without_response > 0 && requests.without_response < 35,
            "{}",
            requests.without_response
        );
    }

    #[test]
    fn responses_after_the_timeout_are_late() {
        for rate in [Some(100), None] {
            let mut plan = plan(rate, if rate.is_some() { 64 } else { 1 });
            plan.response_timeout_ns = Some(20_000_000);
            // A path that becomes longer: the first late response shows it.
            let result = run_scripted(&plan, ScriptedTransport::with_delay(100_000_000), None);
            assert!(
                result.totals.packets > 60 || rate.is_none(),
                "{:?}",
                result.totals
            );
            assert!(result.totals.packets >= 8, "{:?}", result.totals);
            assert!(
                (1..=25).contains(&result.totals.missing),
                "{:?}",
                result.totals
            );
            // A limit of the user stays.
            plan.response_timeout_requested = true;
            let result = run_scripted(&plan, ScriptedTransport::with_delay(100_000_000), None);
            assert_eq!(result.totals.packets, 0);
            let numbers = result.sequence.unwrap();
            // All but those that were outstanding at the end.
            assert!(result.totals.missing >= 45, "{:?}", result.totals);
            let out_of_order = numbers.out_of_order();
            assert!(out_of_order + 12 >= result.totals.missing, "{out_of_order}");
            assert_eq!(numbers.duplicates(), 0);
        }
    }

    #[test]
    fn unsent_due_requests_count_with_their_age() {
        // One at a time, 10 ms each: of 1,000 due requests 100 are sent.
        let result = run_scripted(
            &plan(Some(1_000), 1),
            ScriptedTransport::with_delay(10_000_000),
            None,
        );
        let requests = result.requests.unwrap();
        let sent = result.totals.packets;
        assert!((90..=101).contains(&sent), "{sent}");
        assert_eq!(requests.unsent, Some(1_000 - sent));
        assert_eq!(requests.without_response, 1_000 - sent);
        let (name, intended) = &requests.histograms[0];
        assert_eq!((*name, intended.count()), ("rtt_intended_ns", 1_000));
        // The median request was due in the middle. Its age at the end, or its response time, is
        // about half of the run.
        let median = intended.quantile(0.5).unwrap();
        assert!((400_000_000..600_000_000).contains(&median), "{median}");
        assert!(intended.max().unwrap() >= 890_000_000);
    }

    proptest! {
        #[test]
        fn a_schedule_neither_gains_nor_loses(per_second in 1u64..10_000_000, number in 0u64..1_000_000_000) {
            let schedule = SendSchedule { start_ns: 77, per_second };
            let due = schedule.send_time_ns(number);
            prop_assert!(schedule.send_time_ns(number + 1) >= due);
            let exact = number as f64 / per_second as f64 * 1e9;
            prop_assert!(((due - 77) as f64 - exact).abs() <= 1.0 + exact * 1e-12);
            // All requests before it were due earlier, by more than a nanosecond each.
            if per_second <= 1_000_000 {
                prop_assert_eq!(schedule.count_before(due + 1), number + 1);
            }
        }
    }
}
