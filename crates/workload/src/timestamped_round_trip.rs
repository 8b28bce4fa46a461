//! Round trips with timestamps at every stage, to explain those of
//! [`round_trip`](super::round_trip).
//!
//! One flow, one outstanding request, the same calls in the same order. Timestamps are collected
//! between round trips where possible, and their cost is reported with the figures.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use linerate_protocol::control::flow as wire;
use linerate_record::plan::TransportProtocol;
use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;
use linerate_sys::packet_timestamps::TxTimestampPoint;
use linerate_transport::Transport;
use linerate_transport::flow_role::FlowRole;

use crate::flow::{FlowEndResults, FlowShared, TimingHistograms, is_opening_datagram};
use crate::flow_counters::PayloadTotals;
use crate::send_schedule::SendSchedule;
use crate::timestamps::{LostRequest, SchedulerTracer, TimestampRing, WARM_UP_ROUND_TRIPS};
use crate::{OpenFlow, Progress, WorkerContext, Workload, device_timestamps, drive};

/// Number of round trips after the slow one that ends the run.
const ROUND_TRIPS_AFTER_SLOW: u64 = 64;

/// Runs the flows of one thread.
pub fn run<T: Transport>(
    worker: &WorkerContext<'_>,
    transport: &mut T,
    flows: Vec<OpenFlow<T::Socket>>,
) -> Vec<FlowEndResults> {
    match worker.role {
        FlowRole::Sender => {
            let flows = flows
                .into_iter()
                .map(|flow| TimestampedSender::new(worker, flow));
            drive(transport, flows.collect())
        }
        FlowRole::Receiver => {
            let flows = flows
                .into_iter()
                .map(|flow| TimestampedResponder::new(worker, flow));
            drive(transport, flows.collect())
        }
    }
}

/// Returns the name of an end in warnings.
fn role_name(role: FlowRole) -> &'static str {
    match role {
        FlowRole::Sender => "client",
        FlowRole::Receiver => "server",
    }
}

/// State and figures of either end of a flow.
struct FlowRecorder<'a, S> {
    worker: &'a WorkerContext<'a>,
    id: u32,
    socket: S,
    shared: Arc<FlowShared>,
    totals: PayloadTotals,
    message: Vec<u8>,
    ring: Box<TimestampRing>,
    tracer: SchedulerTracer,
    has_timestamps: bool,
    /// True if timestamps are collected before each further wait for payload.
    drains_in_waits: bool,
    end_ns: Nanos,
}

impl<'a, S: Copy> FlowRecorder<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, flow: OpenFlow<S>) -> Self {
        let plan = worker.plan;
        let mut log = Box::new(TimestampRing::new());
        let tracer = SchedulerTracer::new(plan.timestamps, role_name(worker.role), &mut log);
        let mut message: Vec<u8> = (0..plan.payload_bytes).map(|n| (n % 251) as u8).collect();
        if let Some(format) = plan.round_trip.device_timestamps {
            device_timestamps::clear_timestamps(&mut message, format);
        }
        Self {
            worker,
            id: flow.id,
            socket: flow.socket,
            shared: flow.shared,
            totals: PayloadTotals::default(),
            message,
            ring: log,
            tracer,
            has_timestamps: false,
            drains_in_waits: false,
            end_ns: worker.run_clock.start_ns,
        }
    }

    /// Enables timestamps in the first step.
    fn enable_timestamps<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<()> {
        if !self.has_timestamps {
            let warnings = transport.enable_timestamps(self.socket, self.worker.plan.protocol)?;
            let name = role_name(self.worker.role);
            let warnings = warnings
                .into_iter()
                .map(|warning| format!("{name}: {warning}"));
            self.ring.warnings.extend(warnings);
            self.has_timestamps = true;
            self.drains_in_waits = transport.capabilities().timestamps_end_waits;
        }
        Ok(())
    }

    /// Called when nothing arrived. Where a separate call waits, a returned timestamp ends that
    /// wait and every further one until it is read.
    fn on_starved<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<Progress> {
        if self.drains_in_waits {
            self.drain_timestamps(transport)?;
        }
        Ok(Progress::Starved(None))
    }

    /// Collects the timestamps so far; not within a round trip, if avoidable.
    fn drain_timestamps<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<()> {
        let stream = self.worker.plan.protocol == TransportProtocol::Tcp;
        let bytes = self.message.len() as u64;
        let log = &mut self.ring;
        transport.take_tx_timestamps(self.socket, |departure| {
            let send = if stream {
                log.send_of_byte_id(departure.id, bytes)
            } else {
                log.send_of_id(departure.id)
            };
            let Some(entry) = send.and_then(|send| log.entry_of_send(send)) else {
                return;
            };
            if departure.is_hardware {
                let number = entry.number;
                return log.record_hardware_departure(number, departure.at_ns);
            }
            match departure.point {
                // Of the first fragment or copy: a retransmission is late anyway.
                TxTimestampPoint::Scheduled if entry.queued_ns == 0 => {
                    entry.queued_ns = departure.at_ns
                }
                TxTimestampPoint::Driver if entry.driver_ns == 0 => {
                    entry.driver_ns = departure.at_ns
                }
                _ => {}
            }
        })?;
        self.tracer.drain_if_due(&mut self.ring);
        Ok(())
    }

    fn finish<T: Transport<Socket = S>>(
        mut self,
        transport: &T,
        times: Option<Histogram>,
        mismatched: u64,
        error: Option<io::Error>,
    ) -> FlowEndResults {
        /// Above what clock slewing explains: the clock was stepped.
        const MIN_CLOCK_STEP_NS: Nanos = 1_000;
        self.tracer.finish(&mut self.ring);
        self.ring.hardware_error_ns = transport.hardware_error_ns();
        let step_ns = transport.clock_step_ns();
        if step_ns > MIN_CLOCK_STEP_NS {
            self.ring.warnings.push(format!(
                "the system time was set during the pass: timestamps before and after differ by {step_ns} ns"
            ));
        }
        FlowEndResults {
            timing: TimingHistograms::default(),
            id: self.id,
            direction: self.worker.direction,
            role: self.worker.role,
            totals: self.totals,
            sequence: None,
            times,
            mismatched,
            first_mismatch: None,
            requests: None,
            log: Some(self.ring),
            facts: transport.socket_facts(self.socket),
            first_ns: None,
            ended_ns: match error {
                Some(_) => transport.now(),
                None => self.end_ns,
            },
            error,
        }
    }
}

/// Sends requests and records timestamps.
struct TimestampedSender<'a, S> {
    recorder: FlowRecorder<'a, S>,
    remaining: u64,
    timeout_ns: Nanos,
    /// Round-trip time above which the run ends soon.
    stop_above_ns: Option<Nanos>,
    times: Histogram,
    mismatched: u64,
    state: TimestampedRequestState,
    /// Time of the first request: the kernel starts to timestamp arrivals a little after it is
    /// enabled.
    first_request_ns: Nanos,
    /// Send times of requests at a rate.
    schedule: Option<SendSchedule>,
}

/// Time in which the kernel starts to timestamp arrivals at both ends, with a reserve.
const WARM_UP_NS: Nanos = 50_000_000;

#[derive(Clone, Copy)]
enum TimestampedRequestState {
    Idle,
    /// A stream may accept a long message in parts.
    Sending {
        sent_bytes: usize,
    },
    Waiting {
        received_bytes: usize,
        is_correct: bool,
    },
}

impl<'a, S: Copy> TimestampedSender<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, flow: OpenFlow<S>) -> Self {
        let plan = worker.plan;
        let mut interval_slot = flow.shared.interval_times.lock().expect("no holder panics");
        interval_slot.intervals_ended = u64::MAX;
        drop(interval_slot);
        let first_request_ns = worker.run_clock.start_ns + WARM_UP_NS;
        let mut recorder = FlowRecorder::new(worker, flow);
        if plan.round_trip.is_pipelined() {
            recorder.ring.warnings.push(
                "client: the timestamp passes keep the rate with one request at a time".to_owned(),
            );
        }
        Self {
            remaining: plan.round_trips.unwrap_or(u64::MAX),
            timeout_ns: plan.response_timeout_ns.unwrap_or(1_000_000_000),
            stop_above_ns: plan.trace_on_ns,
            times: Histogram::new(),
            mismatched: 0,
            state: TimestampedRequestState::Idle,
            first_request_ns,
            schedule: (plan.round_trip.rate_per_second).map(|per_second| SendSchedule {
                start_ns: first_request_ns,
                per_second,
            }),
            recorder,
        }
    }

    fn is_stream(&self) -> bool {
        self.recorder.worker.plan.protocol == TransportProtocol::Tcp
    }

    /// Returns when the next request is sent, unless at once.
    fn next_send_ns(&self) -> Option<Nanos> {
        let completed = self.recorder.totals.calls;
        match &self.schedule {
            Some(schedule) => Some(schedule.send_time_ns(completed)),
            None => (completed == 0).then_some(self.first_request_ns),
        }
    }

    fn is_over(&self) -> bool {
        self.remaining == 0 || self.recorder.worker.phase.is_ending()
    }

    fn complete_request(&mut self, now: Nanos) {
        self.recorder.totals.calls += 1;
        self.recorder.end_ns = now;
        self.remaining = self.remaining.saturating_sub(1);
        self.recorder.shared.counters.publish(&self.recorder.totals);
        self.state = TimestampedRequestState::Idle;
    }

    /// Ends the run soon if this round trip is the slow one awaited; returns whether it is.
    fn stop_if_slow(&mut self, number: u64, time_ns: Nanos) -> bool {
        let is_warm = number >= WARM_UP_ROUND_TRIPS;
        let is_trigger = is_warm && self.stop_above_ns.is_some_and(|limit| time_ns > limit);
        if is_trigger {
            self.stop_above_ns = None;
            // A few more round trips show what followed.
            self.remaining = self.remaining.min(ROUND_TRIPS_AFTER_SLOW);
        }
        is_trigger
    }

    fn send<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        sent: usize,
    ) -> io::Result<Progress> {
        let stream = self.is_stream();
        let recorder = &mut self.recorder;
        let number = recorder.totals.calls;
        let rest = &recorder.message[sent..];
        let mut handed_ns = 0;
        let fill = |payload: &mut [u8]| {
            payload.copy_from_slice(&rest[..payload.len()]);
            handed_ns = T::read_clock();
        };
        let accepted = if stream {
            transport.tcp_send(recorder.socket, rest.len(), fill)
        } else {
            transport.udp_send(recorder.socket, rest.len(), fill)
        };
        let returned_ns = T::read_clock();
        match accepted {
            Poll::Pending if recorder.worker.phase.is_ending() => Ok(Progress::Done),
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(accepted) => {
                let accepted = accepted?;
                let entry = recorder.ring.entry(number);
                if sent == 0 {
                    entry.send_call_ns = handed_ns;
                }
                entry.send_returned_ns = returned_ns;
                let sent = sent + accepted;
                if sent < recorder.message.len() {
                    self.state = TimestampedRequestState::Sending { sent_bytes: sent };
                } else {
                    recorder.ring.record_send(number);
                    self.state = TimestampedRequestState::Waiting {
                        received_bytes: 0,
                        is_correct: true,
                    };
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn send_request<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
    ) -> io::Result<Progress> {
        if self.is_over() {
            if self.is_stream() {
                // An error means that the connection is closed already.
                let _ = transport.shutdown_send(self.recorder.socket);
            }
            return Ok(Progress::Done);
        }
        self.recorder.drain_timestamps(transport)?;
        let number = self.recorder.totals.calls;
        wire::write_header(&mut self.recorder.message, number, 0);
        self.send(transport, 0)
    }

    fn receive<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        received: usize,
        is_correct: bool,
    ) -> io::Result<Progress> {
        let stream = self.is_stream();
        let recorder = &mut self.recorder;
        let number = recorder.totals.calls;
        let request = &recorder.message;
        let format = recorder.worker.plan.round_trip.device_timestamps;
        let max_bytes = if stream {
            request.len() - received
        } else {
            usize::MAX
        };
        let response =
            transport.receive_with_timestamp(recorder.socket, max_bytes, |payload, meta| {
                let now = T::read_clock();
                let is_equal = match (stream, format) {
                    (true, _) => payload == &request[received..received + payload.len()],
                    (false, None) => payload == request.as_slice(),
                    (false, Some(format)) => {
                        device_timestamps::equals_outside(payload, request, format)
                    }
                };
                // The response to a request that was given up, or a repeated flow opening.
                let is_stale = !stream
                    && (is_opening_datagram(payload)
                        || wire::read_header(payload)
                            .is_some_and(|header| header.sequence < number));
                (now, payload.len(), is_equal, is_stale, meta)
            });
        match response {
            Poll::Ready(response) => {
                let (now, bytes, is_equal, is_stale, meta) = response?;
                if is_stale {
                    return Ok(Progress::Worked);
                }
                if stream && bytes == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let received = received + bytes;
                let is_correct = is_correct && is_equal;
                if stream && received < request.len() {
                    self.state = TimestampedRequestState::Waiting {
                        received_bytes: received,
                        is_correct,
                    };
                    return Ok(Progress::Worked);
                }
                let entry = recorder.ring.entry(number);
                entry.received_ns = now;
                entry.arrived_ns = meta.timestamp_ns.unwrap_or(0);
                entry.woken_ns = meta.queued_ns.unwrap_or(0);
                let handed_ns = entry.send_call_ns;
                if let Some(at_ns) = meta.hardware_ns {
                    recorder.ring.record_hardware_arrival(number, at_ns);
                }
                let time = now.saturating_sub(handed_ns);
                if now >= recorder.worker.run_clock.count_from_ns {
                    self.times.record(time);
                    self.mismatched += u64::from(!is_correct);
                }
                recorder.totals.packets += 1;
                recorder.totals.bytes += request.len() as u64;
                self.stop_if_slow(number, time);
                self.complete_request(now);
                Ok(Progress::Worked)
            }
            Poll::Pending => {
                let now = T::read_clock();
                let handed_ns = recorder.ring.entry(number).send_call_ns;
                let is_late = now >= handed_ns.saturating_add(self.timeout_ns);
                if recorder.worker.phase.is_ending() {
                    return Ok(Progress::Done);
                }
                if is_late && !stream {
                    // A lost response is slower than any limit below the timeout.
                    recorder.totals.missing += 1;
                    if self.stop_if_slow(number, now.saturating_sub(handed_ns)) {
                        self.recorder.ring.lost_request = Some(LostRequest {
                            number,
                            send_call_ns: handed_ns,
                            given_up_ns: now,
                        });
                    }
                    self.complete_request(now);
                    return Ok(Progress::Worked);
                }
                self.recorder.on_starved(transport)
            }
        }
    }
}

impl<T: Transport> Workload<T> for TimestampedSender<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        self.recorder.enable_timestamps(transport)?;
        match self.state {
            TimestampedRequestState::Idle => {
                if let Some(send_at) = self.next_send_ns()
                    && T::read_clock() < send_at
                    && !self.is_over()
                {
                    return Ok(Progress::Starved(Some(send_at)));
                }
                let progress = self.send_request(transport)?;
                // The response is received at once, as in a run without timestamps.
                match self.state {
                    TimestampedRequestState::Waiting {
                        received_bytes: received,
                        is_correct,
                    } => self.receive(transport, received, is_correct),
                    _ => Ok(progress),
                }
            }
            TimestampedRequestState::Sending { sent_bytes: sent } => self.send(transport, sent),
            TimestampedRequestState::Waiting {
                received_bytes: received,
                is_correct,
            } => self.receive(transport, received, is_correct),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.recorder.socket)
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        self.recorder
            .finish(transport, Some(self.times), self.mismatched, error)
    }
}

/// Echoes requests and records timestamps.
struct TimestampedResponder<'a, S> {
    recorder: FlowRecorder<'a, S>,
    received_bytes: usize,
    sent_bytes: usize,
    /// Bytes and number of the response being sent.
    response: Option<(usize, u64)>,
}

impl<'a, S: Copy> TimestampedResponder<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, flow: OpenFlow<S>) -> Self {
        Self {
            recorder: FlowRecorder::new(worker, flow),
            received_bytes: 0,
            sent_bytes: 0,
            response: None,
        }
    }

    fn receive<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<Progress> {
        let recorder = &mut self.recorder;
        let stream = recorder.worker.plan.protocol == TransportProtocol::Tcp;
        let (max_bytes, at) = if stream {
            (
                recorder.message.len() - self.received_bytes,
                self.received_bytes,
            )
        } else {
            (usize::MAX, 0)
        };
        let message = &mut recorder.message;
        let received =
            transport.receive_with_timestamp(recorder.socket, max_bytes, |payload, meta| {
                let now = T::read_clock();
                let bytes = payload.len().min(message.len() - at);
                message[at..at + bytes].copy_from_slice(&payload[..bytes]);
                (now, bytes, meta)
            });
        let (now, bytes, meta) = match received {
            Poll::Ready(received) => received?,
            Poll::Pending => {
                let phase = recorder.worker.phase;
                let is_over = phase.is_aborted() || (!stream && recorder.shared.has_sender_ended());
                return match is_over {
                    true => Ok(Progress::Done),
                    false => recorder.on_starved(transport),
                };
            }
        };
        if stream && bytes == 0 {
            return Ok(Progress::Done);
        }
        if !stream && is_opening_datagram(&recorder.message[..bytes]) {
            // A repeated flow opening was answered when the flow opened.
            return Ok(Progress::Worked);
        }
        self.received_bytes = at + bytes;
        if stream && self.received_bytes < recorder.message.len() {
            return Ok(Progress::Worked);
        }
        let header = wire::read_header(&recorder.message[..self.received_bytes]);
        let number = header.map_or(recorder.totals.packets, |header| header.sequence);
        let entry = recorder.ring.entry(number);
        entry.arrived_ns = meta.timestamp_ns.unwrap_or(0);
        entry.woken_ns = meta.queued_ns.unwrap_or(0);
        entry.received_ns = now;
        if let Some(at_ns) = meta.hardware_ns {
            recorder.ring.record_hardware_arrival(number, at_ns);
        }
        self.response = Some((self.received_bytes, number));
        (self.received_bytes, self.sent_bytes) = (0, 0);
        Ok(Progress::Worked)
    }

    fn respond<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        bytes: usize,
        number: u64,
    ) -> io::Result<Progress> {
        let recorder = &mut self.recorder;
        let stream = recorder.worker.plan.protocol == TransportProtocol::Tcp;
        let rest = &recorder.message[self.sent_bytes..bytes];
        let mut handed_ns = 0;
        let fill = |payload: &mut [u8]| {
            payload.copy_from_slice(&rest[..payload.len()]);
            handed_ns = T::read_clock();
        };
        let accepted = if stream {
            transport.tcp_send(recorder.socket, rest.len(), fill)
        } else {
            transport.udp_send(recorder.socket, rest.len(), fill)
        };
        let returned_ns = T::read_clock();
        let accepted = match accepted {
            Poll::Pending if recorder.worker.phase.is_aborted() => return Ok(Progress::Done),
            Poll::Pending => return Ok(Progress::Starved(None)),
            Poll::Ready(accepted) => accepted?,
        };
        let entry = recorder.ring.entry(number);
        if self.sent_bytes == 0 {
            entry.send_call_ns = handed_ns;
        }
        entry.send_returned_ns = returned_ns;
        self.sent_bytes += accepted;
        if self.sent_bytes < bytes {
            return Ok(Progress::Worked);
        }
        recorder.ring.record_send(number);
        self.response = None;
        recorder.totals.packets += 1;
        recorder.totals.calls += 1;
        recorder.totals.bytes += bytes as u64;
        recorder.end_ns = returned_ns;
        recorder.shared.counters.publish(&recorder.totals);
        recorder.drain_timestamps(transport)?;
        Ok(if recorder.worker.phase.is_aborted() {
            Progress::Done
        } else {
            Progress::Worked
        })
    }
}

impl<T: Transport> Workload<T> for TimestampedResponder<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        self.recorder.enable_timestamps(transport)?;
        if self.response.is_none() {
            let progress = self.receive(transport)?;
            if self.response.is_none() {
                return Ok(progress);
            }
        }
        match self.response {
            Some((bytes, number)) => self.respond(transport, bytes, number),
            None => Ok(Progress::Worked),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.recorder.socket)
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        self.recorder.finish(transport, None, 0, error)
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Plan, RunKind, TimestampLevel};

    use super::*;
    use crate::scripted_transport::{ScriptedTransport, run_scripted};

    #[test]
    fn a_lost_response_ends_the_run_like_a_slow_one() {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far".to_owned());
        plan.timestamps = TimestampLevel::Packets;
        plan.duration_ns = None;
        plan.round_trips = Some(1_000);
        plan.payload_bytes = 64;
        plan.trace_on_ns = Some(100_000);
        plan.response_timeout_ns = Some(20_000_000);
        let lost_number = WARM_UP_ROUND_TRIPS + 4;
        let transport = ScriptedTransport::with_delay(10_000).with_lost(lost_number as usize);
        let result = run_scripted(&plan, transport, None);
        assert_eq!(result.totals.missing, 1);
        assert_eq!(result.totals.calls, lost_number + ROUND_TRIPS_AFTER_SLOW);
        let lost_request = result
            .log
            .and_then(|log| log.lost_request)
            .expect("it fired");
        assert_eq!(lost_request.number, lost_number);
        let waited_ns = lost_request.given_up_ns - lost_request.send_call_ns;
        assert!((20_000_000..40_000_000).contains(&waited_ns), "{waited_ns}");

        // A slow round trip during warm-up does not end the run.
        let result = run_scripted(
            &plan,
            ScriptedTransport::with_delay(10_000).with_lost(3),
            None,
        );
        assert_eq!((result.totals.calls, result.totals.missing), (1_000, 1));
        assert_eq!(result.log.and_then(|log| log.lost_request), None);
    }
}
