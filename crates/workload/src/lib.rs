//! Workloads over a transport, as state machines.
//!
//! Start at [`Workload`]: a step does one thing that may be possible now and returns the progress;
//! it never blocks and never loops. One driver polls the transport, steps every flow of the thread,
//! and idles when none can continue. [`worker`] starts the threads. A workload is one file and one
//! line in [`run`].
//!
//! A step never calls a socket: each call goes through the [`Transport`].
#![forbid(unsafe_code)]

mod throughput;

pub mod flow;
pub mod worker;

mod round_trip;
mod timestamped_round_trip;

mod edge_driver;
mod readiness_driver;

mod delay_variation;
mod device_timestamps;
pub mod flow_counters;
pub mod framing;
pub mod histogram_pool;
pub mod pacer;
pub mod probes;
mod send_schedule;
pub mod sequence_tracker;
pub mod timestamps;

#[cfg(test)]
mod scripted_transport;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use linerate_record::plan::{Direction, Plan, RunKind};
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;
use linerate_transport::payload_pattern::PayloadPattern;
use linerate_transport::{FlowOptions, MAX_IDLE_NS, RunClock, Transport};

use self::histogram_pool::HistogramPool;
use crate::flow::{FlowEndResults, FlowShared, RunPhase};
use crate::framing::Framing;

/// Progress of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The flow is finished.
    Done,
    /// Something was sent or received.
    Worked,
    /// No step was possible; with the time of the next departure, if the flow waits for one.
    Starved(Option<Nanos>),
}

/// A flow of a workload at one end.
pub trait Workload<T: Transport> {
    /// Makes one step.
    ///
    /// # Errors
    /// When the flow failed; it is not stepped again.
    fn step(&mut self, transport: &mut T) -> io::Result<Progress>;

    /// Returns the flow's socket, if it has one now.
    fn socket(&self) -> Option<T::Socket>;

    /// Returns the newest socket that the flow waits for, and the number of sockets so far. Only
    /// for flows that replace their sockets.
    fn newest_socket(&self) -> Option<(u64, T::Socket)> {
        None
    }

    /// Finishes the flow and returns its figures.
    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults;
}

/// An open flow, before its workload starts.
pub struct OpenFlow<S> {
    /// Flow number, from 1.
    pub id: u32,
    pub socket: S,
    /// State shared with the coordinator.
    pub shared: Arc<FlowShared>,
    /// Payload content to send or verify, if any.
    pub pattern: Option<PayloadPattern>,
    /// Headers in front of the payload.
    pub framing: Framing,
    /// Options of the sockets to open or accept, for flows with a socket per request.
    pub reconnect: Option<Box<ReconnectOptions>>,
    /// Histograms that the flow fills.
    pub histograms: HistogramPool,
}

/// Options to open sockets during the run.
#[derive(Clone, Debug)]
pub struct ReconnectOptions {
    pub remote: SocketAddr,
    /// Socket options; a timeout of zero sets no limit.
    pub options: FlowOptions,
}

/// Context shared by all flows of one worker thread.
pub struct WorkerContext<'a> {
    pub plan: &'a Plan,
    pub direction: Direction,
    /// Role of this end in the flows.
    pub role: FlowRole,
    /// Start of the run and of its counted part.
    pub run_clock: RunClock,
    /// Phase of the run, set by the coordinator.
    pub phase: &'a RunPhase,
}

impl WorkerContext<'_> {
    /// Returns one flow's share of an amount that all flows of its direction move together.
    ///
    /// Flows of a direction have consecutive numbers; the first ones carry the remainder.
    fn share_of(&self, amount: u64, id: u32) -> u64 {
        let streams = u64::from(self.plan.streams.max(1));
        let position = u64::from(id.saturating_sub(1)) % streams;
        amount / streams + u64::from(position < amount % streams)
    }
}

/// Runs the flows of one thread; compiled once for each transport.
pub fn run<T: Transport>(
    worker: &WorkerContext<'_>,
    transport: &mut T,
    flows: Vec<OpenFlow<T::Socket>>,
) -> Vec<FlowEndResults> {
    match worker.plan.kind {
        RunKind::Throughput => throughput::run(worker, transport, flows),
        RunKind::Latency => round_trip::run(worker, transport, flows),
        // These have no flows; the server rejects such a plan earlier.
        RunKind::Forward | RunKind::Generate | RunKind::Stack => Vec::new(),
    }
}

/// Runs the flows of both directions of a throughput test on one thread. `on_finished` receives the
/// figures of each flow when it ends.
pub fn run_bidirectional<T: Transport>(
    workers: &[WorkerContext<'_>],
    transport: &mut T,
    flows: Vec<Vec<OpenFlow<T::Socket>>>,
    on_finished: impl FnMut(FlowEndResults),
) {
    throughput::run_bidirectional(workers, transport, flows, on_finished);
}

/// Steps all flows until all are finished.
fn drive<T: Transport, W: Workload<T>>(transport: &mut T, flows: Vec<W>) -> Vec<FlowEndResults> {
    drive_with_idle_hook(transport, flows, || {})
}

/// Steps all flows until all are finished; calls `on_starved` when none could continue.
fn drive_with_idle_hook<T: Transport, W: Workload<T>>(
    transport: &mut T,
    flows: Vec<W>,
    on_starved: impl FnMut(),
) -> Vec<FlowEndResults> {
    let mut results = Vec::with_capacity(flows.len());
    drive_reporting(transport, flows, on_starved, |result| results.push(result));
    results
}

/// Steps all flows until all are finished; passes the figures of each to `on_finished`.
fn drive_reporting<T: Transport, W: Workload<T>>(
    transport: &mut T,
    flows: Vec<W>,
    mut on_starved: impl FnMut(),
    mut on_finished: impl FnMut(FlowEndResults),
) {
    let mut running = flows;
    while !running.is_empty() {
        transport.poll();
        let mut worked = false;
        let mut departure: Option<Nanos> = None;
        let mut index = 0;
        while index < running.len() {
            let finished = match running[index].step(transport) {
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
            match finished {
                None => index += 1,
                Some(error) => {
                    let flow = running.swap_remove(index);
                    if let Some(socket) = flow.socket() {
                        transport.deregister(socket);
                    }
                    on_finished(flow.finish(transport, error));
                }
            }
        }
        if !worked && !running.is_empty() {
            on_starved();
            let idle_until = departure.map(|send_at| send_at.min(transport.now() + MAX_IDLE_NS));
            transport.idle(idle_until);
        }
    }
}
