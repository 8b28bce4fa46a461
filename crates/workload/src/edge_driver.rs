//! Driver of many flows on one thread that replace their sockets during the run.

use std::collections::VecDeque;
use std::time::Duration;

use linerate_sys::clock::Nanos;
use linerate_transport::{MAX_IDLE_NS, Transport};

use super::{Progress, Workload};
use crate::flow::FlowEndResults;

/// Largest number of flows stepped between two readiness checks.
const KEYS_PER_WAIT: usize = 256;

/// A flow and its scheduling state.
struct FlowSlot<W> {
    flow: Option<W>,
    /// Number of sockets the flow had had when its newest was registered.
    registered_sockets: u64,
    is_queued: bool,
    was_stepped: bool,
}

/// Steps flows until all are finished, each when its newest socket changes.
///
/// A flow that made progress goes to the end of the queue. Flows without changes are stepped ten
/// times a second, and when the thread is woken, so that they notice timeouts and the end of the
/// run.
pub fn drive<T: Transport, W: Workload<T>>(
    transport: &mut T,
    flows: Vec<W>,
) -> Vec<FlowEndResults> {
    let count = flows.len();
    let mut results = Vec::with_capacity(count);
    let mut slots: Vec<_> = (flows.into_iter())
        .map(|flow| FlowSlot {
            flow: Some(flow),
            registered_sockets: 0,
            is_queued: true,
            was_stepped: false,
        })
        .collect();
    for (key, slot) in slots.iter_mut().enumerate() {
        if let Some(flow) = &slot.flow {
            // A failure shows at the first step.
            let _ = register_newest(transport, flow, &mut slot.registered_sockets, key);
        }
    }
    let mut queue: VecDeque<usize> = (0..count).collect();
    // Flows that wait for a time, which is rare.
    let mut timers: Vec<(Nanos, usize)> = Vec::with_capacity(count);
    let mut keys = Vec::with_capacity(KEYS_PER_WAIT);
    let mut next_sweep_ns = transport.now() + MAX_IDLE_NS;
    while results.len() < count {
        let now = transport.now();
        let first_timer_ns = timers.iter().map(|&(at, _)| at).min().unwrap_or(Nanos::MAX);
        let timeout = match queue.is_empty() {
            true => first_timer_ns.saturating_sub(now).min(MAX_IDLE_NS),
            false => 0,
        };
        keys.clear();
        transport.poll();
        transport.wait_ready(&mut keys, Duration::from_nanos(timeout));
        let now = transport.now();
        timers.retain(|&(at, key)| {
            if at <= now {
                keys.push(key);
            }
            at > now
        });
        if now >= next_sweep_ns || (keys.is_empty() && queue.is_empty()) {
            let unstepped = |(key, slot): (usize, &mut FlowSlot<W>)| {
                (!std::mem::take(&mut slot.was_stepped)).then_some(key)
            };
            keys.extend(slots.iter_mut().enumerate().filter_map(unstepped));
            next_sweep_ns = now + MAX_IDLE_NS;
        }
        for &key in &keys {
            if !std::mem::replace(&mut slots[key].is_queued, true) {
                queue.push_back(key);
            }
        }
        for _ in 0..queue.len().min(KEYS_PER_WAIT) {
            let Some(key) = queue.pop_front() else { break };
            let slot = &mut slots[key];
            slot.is_queued = false;
            slot.was_stepped = true;
            let Some(flow) = &mut slot.flow else { continue };
            let error = match flow.step(transport) {
                Ok(Progress::Worked) => {
                    slot.is_queued = true;
                    queue.push_back(key);
                    continue;
                }
                Ok(Progress::Starved(until)) => {
                    timers.extend(until.map(|at| (at, key)));
                    match register_newest(transport, flow, &mut slot.registered_sockets, key) {
                        Ok(()) => continue,
                        Err(error) => Some(error),
                    }
                }
                Ok(Progress::Done) => None,
                Err(error) => Some(error),
            };
            let flow = slot.flow.take().expect("it was just stepped");
            if let Some(socket) = flow.socket() {
                transport.deregister(socket);
            }
            results.push(flow.finish(transport, error));
        }
    }
    results
}

/// Registers a flow's newest socket; its present state is reported at once.
#[inline]
fn register_newest<T: Transport, W: Workload<T>>(
    transport: &mut T,
    flow: &W,
    registered_sockets: &mut u64,
    key: usize,
) -> std::io::Result<()> {
    if let Some((number, socket)) = flow
        .newest_socket()
        .filter(|(number, _)| number > registered_sockets)
    {
        transport.register_edge_triggered(socket, key)?;
        *registered_sockets = number;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Instant;

    use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol, WaitMode};
    use linerate_record::round_trip::SocketMode;
    use linerate_transport::call_times::NoRecorder;
    use linerate_transport::flow_options::flow_options;
    use linerate_transport::flow_role::FlowRole;
    use linerate_transport::{
        EpollWait, KernelTransport, RunClock, Transport, TransportSetup, WorkerTransport,
    };

    use crate::flow::{FlowShared, RunPhase};
    use crate::{OpenFlow, ReconnectOptions, WorkerContext, run};
    /// Flows of one thread: more than are stepped between two readiness checks.
    const FLOWS: u32 = 300;

    fn transport() -> KernelTransport<EpollWait, NoRecorder> {
        let setup = TransportSetup {
            wait: WaitMode::Epoll,
            send_bytes: 64,
            receive_bytes: 64,
            batch: None,
            copies: Default::default(),
        };
        WorkerTransport::new(&setup).expect("a few files are free")
    }

    #[test]
    fn one_thread_an_end_keeps_hundreds_of_connections_going() {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Tcp, "127.0.0.1");
        plan.payload_bytes = 64;
        plan.streams = FLOWS;
        plan.round_trips = Some(u64::from(FLOWS) * 3);
        plan.round_trip.socket_mode = SocketMode::Reopened;
        plan.round_trip.connections = true;
        plan.round_trip.verify = true;
        let run_clock = RunClock {
            start_ns: 0,
            count_from_ns: 0,
            interval_ns: None,
            trace_stop_call_ns: None,
        };
        let listeners: Vec<_> = (0..FLOWS)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free"))
            .collect();
        let addresses: Vec<SocketAddr> = (listeners.iter())
            .map(|listener| listener.local_addr().expect("it is bound"))
            .collect();
        let shared: Vec<Arc<FlowShared>> = (0..FLOWS).map(|_| Arc::default()).collect();
        let start = Instant::now();
        let results = std::thread::scope(|scope| {
            let (plan, shared) = (&plan, &shared);
            let server = scope.spawn(move || {
                let phase = RunPhase::default();
                let worker = WorkerContext {
                    plan,
                    direction: Direction::Send,
                    role: FlowRole::Receiver,
                    run_clock,
                    phase: &phase,
                };
                let mut transport = transport();
                let options = flow_options(plan, FlowRole::Receiver);
                let flows = (1..)
                    .zip(listeners)
                    .zip(shared)
                    .map(|((id, listener), shared)| OpenFlow {
                        histograms: Default::default(),
                        id,
                        socket: transport.adopt(listener.into(), &options).expect("adopts"),
                        shared: Arc::clone(shared),
                        pattern: None,
                        framing: Default::default(),
                        reconnect: Some(Box::new(ReconnectOptions {
                            remote: SocketAddr::from(([0; 4], 0)),
                            options: options.clone(),
                        })),
                    })
                    .collect();
                run(&worker, &mut transport, flows)
            });
            let phase = RunPhase::default();
            let worker = WorkerContext {
                plan,
                direction: Direction::Send,
                role: FlowRole::Sender,
                run_clock,
                phase: &phase,
            };
            let mut transport = transport();
            let options = flow_options(plan, FlowRole::Sender);
            let flows = (1..)
                .zip(&addresses)
                .map(|(id, &remote)| OpenFlow {
                    histograms: Default::default(),
                    id,
                    socket: transport.connect(remote, &options).expect("connects"),
                    shared: Arc::default(),
                    pattern: None,
                    framing: Default::default(),
                    reconnect: Some(Box::new(ReconnectOptions {
                        remote,
                        options: options.clone(),
                    })),
                })
                .collect();
            let results = run(&worker, &mut transport, flows);
            for shared in shared {
                shared.set_expected(0);
            }
            let server = server.join().expect("it does not panic");
            assert_eq!(server.len(), FLOWS as usize);
            results
        });
        assert_eq!(results.len(), FLOWS as usize);
        for result in &results {
            assert!(result.error.is_none(), "{:?}", result.error);
            let requests = result.requests.as_ref().expect("it sent requests");
            let done = (result.totals.packets, result.totals.missing);
            assert_eq!(done, (3, 0), "flow {}", result.id);
            assert_eq!((requests.wrong_length, requests.wrong_content), (0, 0));
        }
        // Each step of each round trip is counted once, in the figures of one flow of the thread.
        let steps = results.iter().filter_map(|result| result.requests.as_ref());
        let total_times: u64 = steps
            .flat_map(|requests| &requests.histograms)
            .filter(|(name, _)| *name == "whole_ns")
            .map(|(_, times)| times.count())
            .sum();
        assert_eq!(total_times, u64::from(FLOWS) * 3);
        // If the flows only progressed with the sweep every 0.1 s, each round would take 300 ms.
        assert!(start.elapsed().as_secs() < 60);
    }
}
