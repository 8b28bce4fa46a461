//! Driver of many flows on one thread that replace their sockets during the run.

use std::collections::VecDeque;
use std::time::Duration;

use linerate_host::sys::clock::Nanos;

use super::{PATIENCE_NS, Progress, Workload};
use crate::flow::FlowOutcome;
use crate::transport::Transport;

/// Largest number of flows stepped between two readiness checks.
const AT_ONCE: usize = 256;

/// A flow and its scheduling state.
struct Slot<W> {
    flow: Option<W>,
    /// Number of sockets the flow had had when its newest was registered.
    enrolled: u64,
    queued: bool,
    stepped: bool,
}

/// Steps flows until all are finished, each when its newest socket changes.
///
/// A flow that made progress goes to the end of the queue. Flows without changes are stepped ten
/// times a second, and when the thread is woken, so that they notice timeouts and the end of the
/// run.
pub fn drive<T: Transport, W: Workload<T>>(transport: &mut T, flows: Vec<W>) -> Vec<FlowOutcome> {
    let count = flows.len();
    let mut outcomes = Vec::with_capacity(count);
    let mut slots: Vec<_> = (flows.into_iter())
        .map(|flow| Slot {
            flow: Some(flow),
            enrolled: 0,
            queued: true,
            stepped: false,
        })
        .collect();
    for (key, slot) in slots.iter_mut().enumerate() {
        if let Some(flow) = &slot.flow {
            // A failure shows at the first step.
            let _ = enrol(transport, flow, &mut slot.enrolled, key);
        }
    }
    let mut queue: VecDeque<usize> = (0..count).collect();
    // Flows that wait for a time, which is rare.
    let mut due: Vec<(Nanos, usize)> = Vec::with_capacity(count);
    let mut keys = Vec::with_capacity(AT_ONCE);
    let mut look_ns = transport.now() + PATIENCE_NS;
    while outcomes.len() < count {
        let now = transport.now();
        let first = due.iter().map(|&(at, _)| at).min().unwrap_or(Nanos::MAX);
        let patience = match queue.is_empty() {
            true => first.saturating_sub(now).min(PATIENCE_NS),
            false => 0,
        };
        keys.clear();
        transport.turn();
        transport.ready(&mut keys, Duration::from_nanos(patience));
        let now = transport.now();
        due.retain(|&(at, key)| {
            if at <= now {
                keys.push(key);
            }
            at > now
        });
        if now >= look_ns || (keys.is_empty() && queue.is_empty()) {
            let silent = |(key, slot): (usize, &mut Slot<W>)| {
                (!std::mem::take(&mut slot.stepped)).then_some(key)
            };
            keys.extend(slots.iter_mut().enumerate().filter_map(silent));
            look_ns = now + PATIENCE_NS;
        }
        for &key in &keys {
            if !std::mem::replace(&mut slots[key].queued, true) {
                queue.push_back(key);
            }
        }
        for _ in 0..queue.len().min(AT_ONCE) {
            let Some(key) = queue.pop_front() else { break };
            let slot = &mut slots[key];
            slot.queued = false;
            slot.stepped = true;
            let Some(flow) = &mut slot.flow else { continue };
            let error = match flow.step(transport) {
                Ok(Progress::Worked) => {
                    slot.queued = true;
                    queue.push_back(key);
                    continue;
                }
                Ok(Progress::Starved(until)) => {
                    due.extend(until.map(|at| (at, key)));
                    match enrol(transport, flow, &mut slot.enrolled, key) {
                        Ok(()) => continue,
                        Err(error) => Some(error),
                    }
                }
                Ok(Progress::Done) => None,
                Err(error) => Some(error),
            };
            let flow = slot.flow.take().expect("it was just stepped");
            if let Some(socket) = flow.socket() {
                transport.release(socket);
            }
            outcomes.push(flow.outcome(transport, error));
        }
    }
    outcomes
}

/// Registers a flow's newest socket; its present state is reported at once.
#[inline]
fn enrol<T: Transport, W: Workload<T>>(
    transport: &mut T,
    flow: &W,
    enrolled: &mut u64,
    key: usize,
) -> std::io::Result<()> {
    if let Some((number, socket)) = flow.newest().filter(|(number, _)| number > enrolled) {
        transport.enrol_changes(socket, key)?;
        *enrolled = number;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Instant;

    use linerate_metric::plan::{Direction, Kind, Plan, Protocol, Wait};
    use linerate_metric::round_trip::Attachment;

    use crate::flow::{Part, Phase, Shared, Timeline};
    use crate::session::setup::flow_options;
    use crate::transport::call_times::Silent;
    use crate::transport::{Adapter, Epoll, Kernel, Setup, Transport};
    use crate::workload::{Lane, Opened, Reopening, run};

    /// Flows of one thread: more than are stepped between two readiness checks.
    const FLOWS: u32 = 300;

    fn transport() -> Kernel<Epoll, Silent> {
        let setup = Setup {
            wait: Wait::Epoll,
            send_bytes: 64,
            receive_bytes: 64,
            batch: None,
            copies: Default::default(),
        };
        Adapter::new(&setup).expect("a few files are free")
    }

    #[test]
    fn one_thread_an_end_keeps_hundreds_of_connections_going() {
        let mut plan = Plan::new(Kind::Latency, Protocol::Tcp, "127.0.0.1");
        plan.payload_bytes = 64;
        plan.streams = FLOWS;
        plan.round_trips = Some(u64::from(FLOWS) * 3);
        plan.round_trip.attachment = Attachment::Reopened;
        plan.round_trip.connections = true;
        plan.round_trip.verify = true;
        let timeline = Timeline {
            start_ns: 0,
            count_from_ns: 0,
            interval_ns: None,
            trace_on_ns: None,
        };
        let listeners: Vec<_> = (0..FLOWS)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free"))
            .collect();
        let addresses: Vec<SocketAddr> = (listeners.iter())
            .map(|listener| listener.local_addr().expect("it is bound"))
            .collect();
        let shared: Vec<Arc<Shared>> = (0..FLOWS).map(|_| Arc::default()).collect();
        let begun = Instant::now();
        let outcomes = std::thread::scope(|scope| {
            let (plan, shared) = (&plan, &shared);
            let far = scope.spawn(move || {
                let phase = Phase::default();
                let lane = Lane {
                    plan,
                    direction: Direction::Send,
                    part: Part::Sink,
                    timeline,
                    phase: &phase,
                };
                let mut transport = transport();
                let options = flow_options(plan, Part::Sink);
                let flows = (1..)
                    .zip(listeners)
                    .zip(shared)
                    .map(|((id, listener), shared)| Opened {
                        room: Default::default(),
                        id,
                        socket: transport.adopt(listener.into(), &options).expect("adopts"),
                        shared: Arc::clone(shared),
                        pattern: None,
                        framing: Default::default(),
                        reopening: Some(Box::new(Reopening {
                            remote: SocketAddr::from(([0; 4], 0)),
                            options: options.clone(),
                        })),
                    })
                    .collect();
                run(&lane, &mut transport, flows)
            });
            let phase = Phase::default();
            let lane = Lane {
                plan,
                direction: Direction::Send,
                part: Part::Source,
                timeline,
                phase: &phase,
            };
            let mut transport = transport();
            let options = flow_options(plan, Part::Source);
            let flows = (1..)
                .zip(&addresses)
                .map(|(id, &remote)| Opened {
                    room: Default::default(),
                    id,
                    socket: transport.connect(remote, &options).expect("connects"),
                    shared: Arc::default(),
                    pattern: None,
                    framing: Default::default(),
                    reopening: Some(Box::new(Reopening {
                        remote,
                        options: options.clone(),
                    })),
                })
                .collect();
            let outcomes = run(&lane, &mut transport, flows);
            for shared in shared {
                shared.expect(0);
            }
            let far = far.join().expect("it does not panic");
            assert_eq!(far.len(), FLOWS as usize);
            outcomes
        });
        assert_eq!(outcomes.len(), FLOWS as usize);
        for outcome in &outcomes {
            assert!(outcome.error.is_none(), "{:?}", outcome.error);
            let asking = outcome.asking.as_ref().expect("it asked");
            let done = (outcome.totals.packets, outcome.totals.missing);
            assert_eq!(done, (3, 0), "flow {}", outcome.id);
            assert_eq!((asking.wrong_length, asking.wrong_content), (0, 0));
        }
        // Each step of each round trip is counted once, in the figures of one flow of the thread.
        let steps = outcomes
            .iter()
            .filter_map(|outcome| outcome.asking.as_ref());
        let whole: u64 = steps
            .flat_map(|asking| &asking.histograms)
            .filter(|(name, _)| *name == "whole_ns")
            .map(|(_, times)| times.count())
            .sum();
        assert_eq!(whole, u64::from(FLOWS) * 3);
        // If the flows only progressed with the sweep every 0.1 s, each round would take 300 ms.
        assert!(begun.elapsed().as_secs() < 60);
    }
}
