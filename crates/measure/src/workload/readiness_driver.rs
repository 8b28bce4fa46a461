//! Driver of many flows on one thread by readiness, instead of polling each in rotation.

use std::time::Duration;

use linerate_host::sys::clock::Nanos;

use super::{PATIENCE_NS, Progress, Workload};
use crate::flow::FlowOutcome;
use crate::transport::{Ready, Transport};

/// Largest number of flows stepped between two readiness checks.
const AT_ONCE: usize = 256;

/// Number of flows from which readiness is worth its cost; a single flow can be polled.
pub const FLOWS_FROM: usize = 2;

/// Steps flows when their sockets are ready, until all are finished.
///
/// Each ready flow makes one step before any makes a second, so that none starves. Flows that were
/// not ready are stepped ten times a second while `looks` returns true, so that they notice the end
/// of the run. Not for workloads that wait for departures.
///
/// Returns the flows unchanged when the transport does not support registration.
pub fn drive<T: Transport, W: Workload<T>>(
    transport: &mut T,
    flows: Vec<W>,
    ready: Ready,
    looks: impl Fn() -> bool,
) -> Result<Vec<FlowOutcome>, Vec<W>> {
    for (key, flow) in flows.iter().enumerate() {
        let enrolled = flow
            .socket()
            .map(|socket| transport.enrol(socket, ready, key));
        // Sockets registered so far stay registered, which does no harm.
        if !matches!(enrolled, Some(Ok(true))) {
            return Err(flows);
        }
    }
    let mut outcomes = Vec::with_capacity(flows.len());
    let mut slots: Vec<Option<W>> = flows.into_iter().map(Some).collect();
    let mut stepped = vec![false; slots.len()];
    let mut keys = Vec::with_capacity(AT_ONCE);
    let mut look_ns = transport.now() + PATIENCE_NS;
    while outcomes.len() < slots.len() {
        keys.clear();
        transport.turn();
        transport.ready(&mut keys, PATIENCE);
        for &key in &keys {
            stepped[key] = true;
            step(transport, &mut slots[key], &mut outcomes);
        }
        if transport.now() >= look_ns && looks() {
            for (slot, stepped) in slots.iter_mut().zip(&mut stepped) {
                if !std::mem::take(stepped) {
                    step(transport, slot, &mut outcomes);
                }
            }
            look_ns = transport.now() + PATIENCE_NS;
        }
    }
    Ok(outcomes)
}

const PATIENCE: Duration = Duration::from_nanos(PATIENCE_NS as Nanos);

#[inline]
fn step<T: Transport, W: Workload<T>>(
    transport: &mut T,
    slot: &mut Option<W>,
    outcomes: &mut Vec<FlowOutcome>,
) {
    let Some(flow) = slot else { return };
    let error = match flow.step(transport) {
        Ok(Progress::Worked | Progress::Starved(_)) => return,
        Ok(Progress::Done) => None,
        Err(error) => Some(error),
    };
    let flow = slot.take().expect("it was just stepped");
    if let Some(socket) = flow.socket() {
        transport.release(socket);
    }
    outcomes.push(flow.outcome(transport, error));
}
