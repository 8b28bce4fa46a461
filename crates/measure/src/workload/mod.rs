//! What is done over a transport, as step machines.
//!
//! A step does one thing that may be possible now and says how it went; it never sleeps and never
//! loops. One driver turns the transport, steps every flow of the thread, and idles when all starve.
//! A workload is one file and one line in [`WORKLOADS`].

mod readiness;
pub mod room;
mod round_trip;
mod schedule;
#[cfg(test)]
mod scripted;
mod stamped;
mod stream;
mod turnover;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Kind, Plan};

use self::room::Room;
use crate::flow::{FlowOutcome, Part, Phase, Shared, Timeline};
use crate::pattern::Pattern;
use crate::peers::framing::Framing;
use crate::transport::{FlowOptions, Transport};

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is left to do.
    Done,
    /// Something moved.
    Worked,
    /// Nothing could move now; with a time when it was a departure that is not due before.
    Starved(Option<Nanos>),
}

/// One flow of a workload at one end.
pub trait Workload<T: Transport> {
    /// Does one thing.
    ///
    /// # Errors
    /// When the flow is broken; it is not stepped again.
    fn step(&mut self, transport: &mut T) -> io::Result<Progress>;

    /// Its socket, if it has one now.
    fn socket(&self) -> Option<T::Socket>;

    /// The newest socket that it waits for, and how many it has waited for until then, where they come
    /// and go.
    fn newest(&self) -> Option<(u64, T::Socket)> {
        None
    }

    /// What it came to.
    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome;
}

/// A flow that stands, before its workload.
pub struct Opened<S> {
    /// Number of the flow.
    pub id: u32,
    /// Its socket.
    pub socket: S,
    /// What its thread and the coordinator share.
    pub shared: Arc<Shared>,
    /// What its payload holds, where that is verified.
    pub pattern: Option<Pattern>,
    /// What stands in front of its payload.
    pub framing: Framing,
    /// For flows with a socket for each question: how these are opened, or accepted.
    pub reopening: Option<Box<Reopening>>,
    /// The distributions that it will fill.
    pub room: Room,
}

/// How the sockets of a flow are opened while payload moves.
#[derive(Clone, Debug)]
pub struct Reopening {
    /// Towards whom.
    pub remote: SocketAddr,
    /// How they are set up; a patience of zero sets no time-out.
    pub options: FlowOptions,
}

/// What all flows of a thread have in common.
pub struct Lane<'a> {
    /// What the run does.
    pub plan: &'a Plan,
    /// Which way the flows go.
    pub direction: Direction,
    /// What this end does in them.
    pub part: Part,
    /// When the run counts.
    pub timeline: Timeline,
    /// How it goes on.
    pub phase: &'a Phase,
}

impl Lane<'_> {
    /// What one flow has of an amount that all flows of its direction move together.
    ///
    /// Flows of a direction are numbered in a row; the first ones carry the remainder.
    fn share(&self, amount: u64, id: u32) -> u64 {
        let streams = u64::from(self.plan.streams.max(1));
        let place = u64::from(id.saturating_sub(1)) % streams;
        amount / streams + u64::from(place < amount % streams)
    }
}

/// A kind of measurement.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadSpec {
    /// Its name on the command line.
    pub kind: Kind,
    /// What it finds out.
    pub about: &'static str,
}

/// The table of workloads: kind, module, what it finds out.
macro_rules! workloads {
    ($($kind:ident $module:ident $about:literal,)+) => {
        /// Every workload.
        pub const WORKLOADS: &[WorkloadSpec] =
            &[$(WorkloadSpec { kind: Kind::$kind, about: $about },)+];

        /// Runs the flows of one thread; compiled once for each transport.
        pub fn run<T: Transport>(
            lane: &Lane<'_>,
            transport: &mut T,
            flows: Vec<Opened<T::Socket>>,
        ) -> Vec<FlowOutcome> {
            match lane.plan.kind {
                $(Kind::$kind => $module::run(lane, transport, flows),)+
                // Not between two ends: such a plan is refused before it has flows (session::limits).
                Kind::Forward | Kind::Generate | Kind::Stack => Vec::new(),
            }
        }
    };
}

workloads! {
    Throughput stream "how much payload arrives in a second",
    Latency round_trip "how long a question takes to be answered",
}

/// Runs the flows of several lanes on one thread: those of a throughput that goes both ways. What each came
/// to is told when it ends.
pub fn run_together<T: Transport>(
    lanes: &[Lane<'_>],
    transport: &mut T,
    flows: Vec<Vec<Opened<T::Socket>>>,
    ended: impl FnMut(FlowOutcome),
) {
    stream::run_together(lanes, transport, flows, ended);
}

/// How long a thread idles at most before it looks whether the run goes on.
pub const PATIENCE_NS: Nanos = 100_000_000;

/// Below this the next departure of a schedule is waited for awake: a sleep ends up to 70 us late.
pub const AWAKE_NS: Nanos = 150_000;

/// Steps all flows until each is done.
fn drive<T: Transport, W: Workload<T>>(transport: &mut T, flows: Vec<W>) -> Vec<FlowOutcome> {
    drive_with(transport, flows, || {})
}

/// The same; `starved` is called when nothing could move.
fn drive_with<T: Transport, W: Workload<T>>(
    transport: &mut T,
    flows: Vec<W>,
    starved: impl FnMut(),
) -> Vec<FlowOutcome> {
    let mut outcomes = Vec::with_capacity(flows.len());
    drive_each(transport, flows, starved, |outcome| outcomes.push(outcome));
    outcomes
}

/// The same; `ended` is told what each flow came to.
fn drive_each<T: Transport, W: Workload<T>>(
    transport: &mut T,
    flows: Vec<W>,
    mut starved: impl FnMut(),
    mut ended: impl FnMut(FlowOutcome),
) {
    let mut running = flows;
    while !running.is_empty() {
        transport.turn();
        let mut worked = false;
        let mut departure: Option<Nanos> = None;
        let mut index = 0;
        while index < running.len() {
            let over = match running[index].step(transport) {
                Ok(Progress::Worked) => {
                    worked = true;
                    None
                }
                Ok(Progress::Starved(until)) => {
                    departure = match (departure, until) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    };
                    None
                }
                Ok(Progress::Done) => Some(None),
                Err(error) => Some(Some(error)),
            };
            match over {
                None => index += 1,
                Some(error) => {
                    let flow = running.swap_remove(index);
                    if let Some(socket) = flow.socket() {
                        transport.release(socket);
                    }
                    ended(flow.outcome(transport, error));
                }
            }
        }
        if !worked && !running.is_empty() {
            starved();
            let limit = departure.map(|due| due.min(transport.now() + PATIENCE_NS));
            transport.idle(limit);
        }
    }
}
