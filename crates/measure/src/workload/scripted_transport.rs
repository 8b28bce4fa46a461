//! Scripted transport for tests: responses arrive after a fixed delay, and simulated time advances
//! only in calls that wait.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Plan, Protocol};
use linerate_metric::record::Socket as SocketFacts;

use super::{Lane, Opened};
use crate::flow::{FlowOutcome, Part, Phase, Timeline};
use crate::transport::{Capabilities, Departure, FlowOptions, Meta, Transport};

/// Start time of scripted runs.
pub const START_NS: Nanos = 1_000_000_000;

/// Simulated time of one call.
const CALL_NS: Nanos = 500;

thread_local! {
    static NOW: Cell<Nanos> = const { Cell::new(START_NS) };
}

/// Responds to each datagram after the same delay, and can lose one.
pub struct Far {
    answer_ns: Nanos,
    lost: Option<usize>,
    sent: usize,
    answers: VecDeque<(Nanos, Vec<u8>)>,
    patience_ns: Nanos,
    /// Time for which the socket is full after each send.
    full_for_ns: Nanos,
    room_from_ns: Nanos,
    ends: Option<(Nanos, &'static Phase)>,
    interrupted_ns: Option<Nanos>,
}

impl Far {
    pub fn after(answer_ns: Nanos) -> Self {
        Self {
            answer_ns,
            lost: None,
            sent: 0,
            answers: VecDeque::new(),
            patience_ns: 0,
            full_for_ns: 0,
            room_from_ns: 0,
            ends: None,
            interrupted_ns: None,
        }
    }

    pub fn losing(mut self, number: usize) -> Self {
        self.lost = Some(number);
        self
    }

    pub fn with_room_each(mut self, full_for_ns: Nanos) -> Self {
        self.full_for_ns = full_for_ns;
        self
    }

    /// Advances the time and ends the run as the coordinator would.
    fn pass(&self, until: Nanos) {
        let now = NOW.get().max(until);
        NOW.set(now);
        if let Some((ends, phase)) = self.ends {
            if now >= ends {
                phase.end();
            }
            if self.interrupted_ns.is_some_and(|at| now >= at) {
                phase.interrupt();
            }
        }
    }
}

/// Runs the request sender of one flow over a scripted transport.
pub fn asked(plan: &Plan, mut far: Far, interrupted_ns: Option<Nanos>) -> FlowOutcome {
    NOW.set(START_NS);
    let phase: &'static Phase = Box::leak(Box::default());
    let lasts = plan.duration_ns.unwrap_or(Nanos::MAX / 2);
    far.ends = Some((START_NS + plan.omit_ns + lasts, phase));
    far.interrupted_ns = interrupted_ns;
    let lane = Lane {
        plan,
        direction: Direction::Send,
        part: Part::Source,
        timeline: Timeline {
            start_ns: START_NS,
            count_from_ns: START_NS + plan.omit_ns,
            interval_ns: None,
            trace_on_ns: None,
        },
        phase,
    };
    let flow = Opened {
        room: Default::default(),
        id: 1,
        socket: (),
        shared: Default::default(),
        pattern: None,
        framing: Default::default(),
        reopening: None,
    };
    let mut outcomes = super::run(&lane, &mut far, vec![flow]);
    outcomes.pop().expect("each flow has an outcome")
}

const UNUSED: &str = "not used by any test";

impl Transport for Far {
    type Socket = ();

    fn turn(&mut self) {}

    fn now(&self) -> Nanos {
        NOW.get()
    }

    fn clock() -> Nanos {
        NOW.get()
    }

    fn idle(&mut self, until: Option<Nanos>) {
        self.pass(until.unwrap_or(NOW.get() + CALL_NS));
    }

    fn connect(&mut self, _: SocketAddr, _: &FlowOptions) -> io::Result<()> {
        Ok(())
    }

    fn accept(&mut self, (): (), _: &FlowOptions) -> Poll<io::Result<()>> {
        // No client connects.
        self.pass(NOW.get() + CALL_NS);
        Poll::Pending
    }

    fn be_patient(&mut self, (): (), patience: Duration) {
        self.patience_ns = patience.as_nanos() as Nanos;
    }

    fn udp_send(
        &mut self,
        (): (),
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        if NOW.get() < self.room_from_ns {
            self.pass(NOW.get() + CALL_NS);
            return Poll::Pending;
        }
        self.room_from_ns = NOW.get() + self.full_for_ns;
        let mut payload = vec![0; bytes];
        fill(&mut payload);
        self.pass(NOW.get() + CALL_NS);
        if self.lost != Some(self.sent) {
            self.answers
                .push_back((NOW.get() + self.answer_ns, payload));
        }
        self.sent += 1;
        Poll::Ready(Ok(bytes))
    }

    fn udp_receive<R>(
        &mut self,
        (): (),
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<io::Result<R>> {
        let limit = NOW.get() + self.patience_ns.max(CALL_NS);
        let next = self.answers.front().map(|(at, _)| *at);
        let Some(at) = next.filter(|&at| at <= limit) else {
            self.pass(limit);
            return Poll::Pending;
        };
        self.pass(at);
        let (_, payload) = self.answers.pop_front().expect("it was just seen");
        Poll::Ready(Ok(take(&payload, Meta::default())))
    }

    fn stamp(&mut self, (): (), _: Protocol) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn receive_stamped<R>(
        &mut self,
        (): (),
        _: usize,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<io::Result<R>> {
        self.udp_receive((), take)
    }

    fn departures(&mut self, (): (), _: impl FnMut(Departure)) -> io::Result<()> {
        Ok(())
    }

    fn burst(&self, (): (), _: usize) -> usize {
        1
    }

    fn udp_send_burst(
        &mut self,
        (): (),
        _: usize,
        _: usize,
        _: impl FnMut(usize, &mut [u8]),
    ) -> Poll<io::Result<usize>> {
        unimplemented!("{UNUSED}")
    }

    fn udp_receive_burst(&mut self, (): (), _: impl FnMut(&[u8], Meta)) -> Poll<io::Result<usize>> {
        unimplemented!("{UNUSED}")
    }

    fn tcp_send(&mut self, (): (), _: usize, _: impl FnOnce(&mut [u8])) -> Poll<io::Result<usize>> {
        unimplemented!("{UNUSED}")
    }

    fn tcp_receive<R>(
        &mut self,
        (): (),
        _: usize,
        _: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<R>> {
        unimplemented!("{UNUSED}")
    }

    fn finish_sending(&mut self, (): ()) -> io::Result<()> {
        Ok(())
    }

    fn release(&mut self, (): ()) {}

    fn facts(&self, (): ()) -> SocketFacts {
        SocketFacts::default()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sleeps_in_calls: true,
            stamps_end_waits: false,
            tells_changes: false,
        }
    }
}
