//! Driver of many flows on one thread by readiness, instead of polling each in rotation.

use std::time::Duration;

use linerate_sys::clock::Nanos;
use linerate_sys::readiness::Readiness;
use linerate_transport::{MAX_IDLE_NS, Transport};

use super::{Progress, Workload};
use crate::flow::FlowEndResults;

/// Largest number of flows stepped between two readiness checks.
const KEYS_PER_WAIT: usize = 256;

/// Number of flows from which readiness is worth its cost; a single flow can be polled.
pub const MIN_FLOWS: usize = 2;

/// Steps flows when their sockets are ready, until all are finished.
///
/// Each ready flow makes one step before any makes a second, so that none starves. Flows that were
/// not ready are stepped ten times a second while `should_sweep` returns true, so that they notice
/// the end of the run. Not for workloads that wait for departures.
///
/// Returns the flows unchanged when the transport does not support registration.
pub fn drive<T: Transport, W: Workload<T>>(
    transport: &mut T,
    flows: Vec<W>,
    ready: Readiness,
    should_sweep: impl Fn() -> bool,
) -> Result<Vec<FlowEndResults>, Vec<W>> {
    for (key, flow) in flows.iter().enumerate() {
        let registered = flow
            .socket()
            .map(|socket| transport.register(socket, ready, key));
        // Sockets registered so far stay registered, which does no harm.
        if !matches!(registered, Some(Ok(true))) {
            return Err(flows);
        }
    }
    let mut results = Vec::with_capacity(flows.len());
    let mut slots: Vec<Option<W>> = flows.into_iter().map(Some).collect();
    let mut stepped = vec![false; slots.len()];
    let mut keys = Vec::with_capacity(KEYS_PER_WAIT);
    let mut next_sweep_ns = transport.now() + MAX_IDLE_NS;
    while results.len() < slots.len() {
        keys.clear();
        transport.poll();
        transport.wait_ready(&mut keys, MAX_IDLE);
        for &key in &keys {
            stepped[key] = true;
            step(transport, &mut slots[key], &mut results);
        }
        if transport.now() >= next_sweep_ns && should_sweep() {
            for (slot, stepped) in slots.iter_mut().zip(&mut stepped) {
                if !std::mem::take(stepped) {
                    step(transport, slot, &mut results);
                }
            }
            next_sweep_ns = transport.now() + MAX_IDLE_NS;
        }
    }
    Ok(results)
}

const MAX_IDLE: Duration = Duration::from_nanos(MAX_IDLE_NS as Nanos);

#[inline]
fn step<T: Transport, W: Workload<T>>(
    transport: &mut T,
    slot: &mut Option<W>,
    results: &mut Vec<FlowEndResults>,
) {
    let Some(flow) = slot else { return };
    let error = match flow.step(transport) {
        Ok(Progress::Worked | Progress::Starved(_)) => return,
        Ok(Progress::Done) => None,
        Err(error) => Some(error),
    };
    let flow = slot.take().expect("it was just stepped");
    if let Some(socket) = flow.socket() {
        transport.deregister(socket);
    }
    results.push(flow.finish(transport, error));
}
