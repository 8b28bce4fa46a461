//! Round trips with timestamps at every stage, to explain those of
//! [`round_trip`](super::round_trip).
//!
//! One flow, one outstanding request, the same calls in the same order. Timestamps are collected
//! between round trips where possible, and their cost is reported with the figures.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use linerate_dialect::control::flow as wire;
use linerate_host::sys::clock::Nanos;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::Protocol;

use super::round_trip::device_timestamps;
use super::send_schedule::Schedule;
use super::{Lane, Opened, Progress, Workload, drive};
use crate::flow::{FlowOutcome, Part, Shared, Timing, is_greeting};
use crate::flow_counters::Totals;
use crate::timestamps::{COLD_TRIPS, GivenUp, Instruments, Log};
use crate::transport::{Place, Transport};

/// Number of round trips after the slow one that ends the run.
const AFTERMATH_TRIPS: u64 = 64;

/// Runs the flows of one thread.
pub fn run<T: Transport>(
    lane: &Lane<'_>,
    transport: &mut T,
    flows: Vec<Opened<T::Socket>>,
) -> Vec<FlowOutcome> {
    match lane.part {
        Part::Source => {
            let flows = flows.into_iter().map(|flow| Asker::new(lane, flow));
            drive(transport, flows.collect())
        }
        Part::Sink => {
            let flows = flows.into_iter().map(|flow| Responder::new(lane, flow));
            drive(transport, flows.collect())
        }
    }
}

/// Returns the name of an end in warnings.
fn end_name(part: Part) -> &'static str {
    match part {
        Part::Source => "client",
        Part::Sink => "server",
    }
}

/// State and figures of either end of a flow.
struct Notes<'a, S> {
    lane: &'a Lane<'a>,
    id: u32,
    socket: S,
    shared: Arc<Shared>,
    totals: Totals,
    message: Vec<u8>,
    log: Box<Log>,
    instruments: Instruments,
    stamping: bool,
    /// True if timestamps are collected before each further wait for payload.
    settles_in_waits: bool,
    ended_ns: Nanos,
}

impl<'a, S: Copy> Notes<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        let plan = lane.plan;
        let mut log = Box::new(Log::new());
        let instruments = Instruments::new(plan.stamps, end_name(lane.part), &mut log);
        let mut message: Vec<u8> = (0..plan.payload_bytes).map(|n| (n % 251) as u8).collect();
        if let Some(stamps) = plan.round_trip.device_stamps {
            device_timestamps::clear(&mut message, stamps);
        }
        Self {
            lane,
            id: flow.id,
            socket: flow.socket,
            shared: flow.shared,
            totals: Totals::default(),
            message,
            log,
            instruments,
            stamping: false,
            settles_in_waits: false,
            ended_ns: lane.timeline.start_ns,
        }
    }

    /// Enables timestamps in the first step.
    fn start<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<()> {
        if !self.stamping {
            let notes = transport.stamp(self.socket, self.lane.plan.protocol)?;
            let name = end_name(self.lane.part);
            let notes = notes.into_iter().map(|note| format!("{name}: {note}"));
            self.log.notes.extend(notes);
            self.stamping = true;
            self.settles_in_waits = transport.capabilities().stamps_end_waits;
        }
        Ok(())
    }

    /// Called when nothing arrived. Where a separate call waits, a returned timestamp ends that
    /// wait
    /// and every further one until it is read.
    fn starved<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<Progress> {
        if self.settles_in_waits {
            self.settle(transport)?;
        }
        Ok(Progress::Starved(None))
    }

    /// Collects the timestamps so far; not within a round trip, if avoidable.
    fn settle<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<()> {
        let stream = self.lane.plan.protocol == Protocol::Tcp;
        let bytes = self.message.len() as u64;
        let log = &mut self.log;
        transport.departures(self.socket, |departure| {
            let send = if stream {
                log.send_of_byte(departure.id, bytes)
            } else {
                log.send_of(departure.id)
            };
            let Some(half) = send.and_then(|send| log.trip_of_send(send)) else {
                return;
            };
            if departure.by_device {
                let number = half.number;
                return log.left_device(number, departure.at_ns);
            }
            match departure.place {
                // Of the first fragment or copy: a retransmission is late anyway.
                Place::Queued if half.queued_ns == 0 => half.queued_ns = departure.at_ns,
                Place::Driver if half.driver_ns == 0 => half.driver_ns = departure.at_ns,
                _ => {}
            }
        })?;
        self.instruments.look(&mut self.log);
        Ok(())
    }

    fn close<T: Transport<Socket = S>>(
        mut self,
        transport: &T,
        times: Option<Histogram>,
        mismatched: u64,
        error: Option<io::Error>,
    ) -> FlowOutcome {
        /// Above what clock slewing explains: the clock was stepped.
        const MOVED_NS: Nanos = 1_000;
        self.instruments.finish(&mut self.log);
        self.log.device_error_ns = transport.device_error_ns();
        let moved = transport.moved_clock_ns();
        if moved > MOVED_NS {
            self.log.notes.push(format!(
                "the system time was set during the pass: timestamps before and after differ by {moved} ns"
            ));
        }
        FlowOutcome {
            timing: Timing::default(),
            id: self.id,
            direction: self.lane.direction,
            part: self.lane.part,
            totals: self.totals,
            sequence: None,
            times,
            mismatched,
            first_mismatch: None,
            asking: None,
            log: Some(self.log),
            facts: transport.facts(self.socket),
            ended_ns: match error {
                Some(_) => transport.now(),
                None => self.ended_ns,
            },
            error,
        }
    }
}

/// Sends requests and records timestamps.
struct Asker<'a, S> {
    notes: Notes<'a, S>,
    left: u64,
    timeout_ns: Nanos,
    /// Round-trip time above which the run ends soon.
    ends_above_ns: Option<Nanos>,
    times: Histogram,
    mismatched: u64,
    state: Asking,
    /// Time of the first request: the kernel starts to timestamp arrivals a little after it is
    /// enabled.
    warm_ns: Nanos,
    /// Send times of requests at a rate.
    schedule: Option<Schedule>,
}

/// Time in which the kernel starts to timestamp arrivals at both ends, with a reserve.
const WARM_UP_NS: Nanos = 50_000_000;

#[derive(Clone, Copy)]
enum Asking {
    Nothing,
    /// A stream may accept a long message in parts.
    Sending {
        sent: usize,
    },
    Waiting {
        received: usize,
        right: bool,
    },
}

impl<'a, S: Copy> Asker<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        let plan = lane.plan;
        let mut mailbox = flow.shared.mailbox.lock().expect("no holder panics");
        mailbox.intervals_ended = u64::MAX;
        drop(mailbox);
        let warm_ns = lane.timeline.start_ns + WARM_UP_NS;
        let mut notes = Notes::new(lane, flow);
        if plan.round_trip.is_open() {
            notes.log.notes.push(
                "client: the timestamp passes keep the rate with one request at a time".to_owned(),
            );
        }
        Self {
            left: plan.round_trips.unwrap_or(u64::MAX),
            timeout_ns: plan.answer_timeout_ns.unwrap_or(1_000_000_000),
            ends_above_ns: plan.trace_on_ns,
            times: Histogram::new(),
            mismatched: 0,
            state: Asking::Nothing,
            warm_ns,
            schedule: (plan.round_trip.rate_per_second).map(|per_second| Schedule {
                start_ns: warm_ns,
                per_second,
            }),
            notes,
        }
    }

    fn is_stream(&self) -> bool {
        self.notes.lane.plan.protocol == Protocol::Tcp
    }

    /// Returns when the next request is sent, unless at once.
    fn due(&self) -> Option<Nanos> {
        let asked = self.notes.totals.calls;
        match &self.schedule {
            Some(schedule) => Some(schedule.due(asked)),
            None => (asked == 0).then_some(self.warm_ns),
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0 || self.notes.lane.phase.is_ending()
    }

    fn over(&mut self, now: Nanos) {
        self.notes.totals.calls += 1;
        self.notes.ended_ns = now;
        self.left = self.left.saturating_sub(1);
        self.notes.shared.meter.publish(&self.notes.totals);
        self.state = Asking::Nothing;
    }

    /// Ends the run soon if this round trip is the slow one awaited; returns whether it is.
    fn note_slow(&mut self, number: u64, time_ns: Nanos) -> bool {
        let warm = number >= COLD_TRIPS;
        let fires = warm && self.ends_above_ns.is_some_and(|limit| time_ns > limit);
        if fires {
            self.ends_above_ns = None;
            // A few more round trips show what followed.
            self.left = self.left.min(AFTERMATH_TRIPS);
        }
        fires
    }

    fn send<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        sent: usize,
    ) -> io::Result<Progress> {
        let stream = self.is_stream();
        let notes = &mut self.notes;
        let number = notes.totals.calls;
        let rest = &notes.message[sent..];
        let mut handed_ns = 0;
        let fill = |payload: &mut [u8]| {
            payload.copy_from_slice(&rest[..payload.len()]);
            handed_ns = T::clock();
        };
        let taken = if stream {
            transport.tcp_send(notes.socket, rest.len(), fill)
        } else {
            transport.udp_send(notes.socket, rest.len(), fill)
        };
        let returned_ns = T::clock();
        match taken {
            Poll::Pending if notes.lane.phase.is_ending() => Ok(Progress::Done),
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(taken) => {
                let taken = taken?;
                let half = notes.log.trip(number);
                if sent == 0 {
                    half.handed_ns = handed_ns;
                }
                half.returned_ns = returned_ns;
                let sent = sent + taken;
                if sent < notes.message.len() {
                    self.state = Asking::Sending { sent };
                } else {
                    notes.log.sends(number);
                    self.state = Asking::Waiting {
                        received: 0,
                        right: true,
                    };
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn ask<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<Progress> {
        if self.is_over() {
            if self.is_stream() {
                // An error means that the connection is closed already.
                let _ = transport.finish_sending(self.notes.socket);
            }
            return Ok(Progress::Done);
        }
        self.notes.settle(transport)?;
        let number = self.notes.totals.calls;
        wire::write_header(&mut self.notes.message, number, 0);
        self.send(transport, 0)
    }

    fn hear<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        received: usize,
        right: bool,
    ) -> io::Result<Progress> {
        let stream = self.is_stream();
        let notes = &mut self.notes;
        let number = notes.totals.calls;
        let question = &notes.message;
        let stamps = notes.lane.plan.round_trip.device_stamps;
        let room = if stream {
            question.len() - received
        } else {
            usize::MAX
        };
        let answer = transport.receive_stamped(notes.socket, room, |payload, meta| {
            let now = T::clock();
            let same = match (stream, stamps) {
                (true, _) => payload == &question[received..received + payload.len()],
                (false, None) => payload == question.as_slice(),
                (false, Some(stamps)) => device_timestamps::same_outside(payload, question, stamps),
            };
            // The response to a request that was given up, or a repeated flow opening.
            let stale = !stream
                && (is_greeting(payload)
                    || wire::read_header(payload).is_some_and(|header| header.sequence < number));
            (now, payload.len(), same, stale, meta)
        });
        match answer {
            Poll::Ready(answer) => {
                let (now, bytes, same, stale, meta) = answer?;
                if stale {
                    return Ok(Progress::Worked);
                }
                if stream && bytes == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let received = received + bytes;
                let right = right && same;
                if stream && received < question.len() {
                    self.state = Asking::Waiting { received, right };
                    return Ok(Progress::Worked);
                }
                let half = notes.log.trip(number);
                half.received_ns = now;
                half.arrived_ns = meta.stamp_ns.unwrap_or(0);
                half.woken_ns = meta.queued_ns.unwrap_or(0);
                let handed_ns = half.handed_ns;
                if let Some(at_ns) = meta.device_ns {
                    notes.log.arrived_at_device(number, at_ns);
                }
                let time = now.saturating_sub(handed_ns);
                if now >= notes.lane.timeline.count_from_ns {
                    self.times.record(time);
                    self.mismatched += u64::from(!right);
                }
                notes.totals.packets += 1;
                notes.totals.bytes += question.len() as u64;
                self.note_slow(number, time);
                self.over(now);
                Ok(Progress::Worked)
            }
            Poll::Pending => {
                let now = T::clock();
                let handed_ns = notes.log.trip(number).handed_ns;
                let late = now >= handed_ns.saturating_add(self.timeout_ns);
                if notes.lane.phase.is_ending() {
                    return Ok(Progress::Done);
                }
                if late && !stream {
                    // A lost response is slower than any limit below the timeout.
                    notes.totals.missing += 1;
                    if self.note_slow(number, now.saturating_sub(handed_ns)) {
                        self.notes.log.given_up = Some(GivenUp {
                            number,
                            handed_ns,
                            at_ns: now,
                        });
                    }
                    self.over(now);
                    return Ok(Progress::Worked);
                }
                self.notes.starved(transport)
            }
        }
    }
}

impl<T: Transport> Workload<T> for Asker<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        self.notes.start(transport)?;
        match self.state {
            Asking::Nothing => {
                if let Some(due) = self.due()
                    && T::clock() < due
                    && !self.is_over()
                {
                    return Ok(Progress::Starved(Some(due)));
                }
                let progress = self.ask(transport)?;
                // The response is received at once, as in a run without timestamps.
                match self.state {
                    Asking::Waiting { received, right } => self.hear(transport, received, right),
                    _ => Ok(progress),
                }
            }
            Asking::Sending { sent } => self.send(transport, sent),
            Asking::Waiting { received, right } => self.hear(transport, received, right),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.notes.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.notes
            .close(transport, Some(self.times), self.mismatched, error)
    }
}

/// Echoes requests and records timestamps.
struct Responder<'a, S> {
    notes: Notes<'a, S>,
    received: usize,
    sent: usize,
    /// Bytes and number of the response being sent.
    open: Option<(usize, u64)>,
}

impl<'a, S: Copy> Responder<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
            notes: Notes::new(lane, flow),
            received: 0,
            sent: 0,
            open: None,
        }
    }

    fn hear<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<Progress> {
        let notes = &mut self.notes;
        let stream = notes.lane.plan.protocol == Protocol::Tcp;
        let (room, at) = if stream {
            (notes.message.len() - self.received, self.received)
        } else {
            (usize::MAX, 0)
        };
        let message = &mut notes.message;
        let heard = transport.receive_stamped(notes.socket, room, |payload, meta| {
            let now = T::clock();
            let bytes = payload.len().min(message.len() - at);
            message[at..at + bytes].copy_from_slice(&payload[..bytes]);
            (now, bytes, meta)
        });
        let (now, bytes, meta) = match heard {
            Poll::Ready(heard) => heard?,
            Poll::Pending => {
                let phase = notes.lane.phase;
                let over = phase.is_aborted() || (!stream && notes.shared.is_over());
                return match over {
                    true => Ok(Progress::Done),
                    false => notes.starved(transport),
                };
            }
        };
        if stream && bytes == 0 {
            return Ok(Progress::Done);
        }
        if !stream && is_greeting(&notes.message[..bytes]) {
            // A repeated flow opening was answered when the flow opened.
            return Ok(Progress::Worked);
        }
        self.received = at + bytes;
        if stream && self.received < notes.message.len() {
            return Ok(Progress::Worked);
        }
        let header = wire::read_header(&notes.message[..self.received]);
        let number = header.map_or(notes.totals.packets, |header| header.sequence);
        let half = notes.log.trip(number);
        half.arrived_ns = meta.stamp_ns.unwrap_or(0);
        half.woken_ns = meta.queued_ns.unwrap_or(0);
        half.received_ns = now;
        if let Some(at_ns) = meta.device_ns {
            notes.log.arrived_at_device(number, at_ns);
        }
        self.open = Some((self.received, number));
        (self.received, self.sent) = (0, 0);
        Ok(Progress::Worked)
    }

    fn answer<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        bytes: usize,
        number: u64,
    ) -> io::Result<Progress> {
        let notes = &mut self.notes;
        let stream = notes.lane.plan.protocol == Protocol::Tcp;
        let rest = &notes.message[self.sent..bytes];
        let mut handed_ns = 0;
        let fill = |payload: &mut [u8]| {
            payload.copy_from_slice(&rest[..payload.len()]);
            handed_ns = T::clock();
        };
        let taken = if stream {
            transport.tcp_send(notes.socket, rest.len(), fill)
        } else {
            transport.udp_send(notes.socket, rest.len(), fill)
        };
        let returned_ns = T::clock();
        let taken = match taken {
            Poll::Pending if notes.lane.phase.is_aborted() => return Ok(Progress::Done),
            Poll::Pending => return Ok(Progress::Starved(None)),
            Poll::Ready(taken) => taken?,
        };
        let half = notes.log.trip(number);
        if self.sent == 0 {
            half.handed_ns = handed_ns;
        }
        half.returned_ns = returned_ns;
        self.sent += taken;
        if self.sent < bytes {
            return Ok(Progress::Worked);
        }
        notes.log.sends(number);
        self.open = None;
        notes.totals.packets += 1;
        notes.totals.calls += 1;
        notes.totals.bytes += bytes as u64;
        notes.ended_ns = returned_ns;
        notes.shared.meter.publish(&notes.totals);
        notes.settle(transport)?;
        Ok(if notes.lane.phase.is_aborted() {
            Progress::Done
        } else {
            Progress::Worked
        })
    }
}

impl<T: Transport> Workload<T> for Responder<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        self.notes.start(transport)?;
        if self.open.is_none() {
            let progress = self.hear(transport)?;
            if self.open.is_none() {
                return Ok(progress);
            }
        }
        match self.open {
            Some((bytes, number)) => self.answer(transport, bytes, number),
            None => Ok(Progress::Worked),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.notes.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.notes.close(transport, None, 0, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::scripted_transport::{Far, asked};
    use linerate_metric::plan::{Kind, Plan, Stamping};

    #[test]
    fn a_lost_answer_is_what_a_slow_one_is() {
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "far".to_owned());
        plan.stamps = Stamping::Packets;
        plan.duration_ns = None;
        plan.round_trips = Some(1_000);
        plan.payload_bytes = 64;
        plan.trace_on_ns = Some(100_000);
        plan.answer_timeout_ns = Some(20_000_000);
        let lost = COLD_TRIPS + 4;
        let far = Far::after(10_000).losing(lost as usize);
        let outcome = asked(&plan, far, None);
        assert_eq!(outcome.totals.missing, 1);
        assert_eq!(outcome.totals.calls, lost + AFTERMATH_TRIPS);
        let given_up = outcome.log.and_then(|log| log.given_up).expect("it fired");
        assert_eq!(given_up.number, lost);
        let waited_ns = given_up.at_ns - given_up.handed_ns;
        assert!((20_000_000..40_000_000).contains(&waited_ns), "{waited_ns}");

        // A slow round trip during warm-up does not end the run.
        let outcome = asked(&plan, Far::after(10_000).losing(3), None);
        assert_eq!((outcome.totals.calls, outcome.totals.missing), (1_000, 1));
        assert_eq!(outcome.log.and_then(|log| log.given_up), None);
    }
}
