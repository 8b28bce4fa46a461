//! Workers on the thread of the user-space stack, in both directions.

use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, mpsc};

use super::{
    Gate, LaneError, LaneHandle, LaneOutcome, LaneSpec, Over, Running, Watches, prepare, run_lent,
};
use crate::flow::{FlowOutcome, Part};
use crate::netstack::StackThread;
use crate::transport::call_times::{Stopwatch, Tracer};
use crate::transport::{Adapter, OnStack, Recorded};
use crate::workload::{self, Lane};
use linerate_host::processor_time::Scheduled;
use linerate_host::sys::clock;
use linerate_host::sys::cpu::ThreadUsage;
use linerate_host::sys::thread::ThreadId;

/// Runs workers on the thread of the user-space stack; they report as separate threads would.
///
/// # Errors
/// When that thread has ended.
pub fn start_on(
    stack: &StackThread,
    specs: Vec<LaneSpec>,
    gate: &Arc<Gate>,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
    done: &Arc<UnixStream>,
) -> std::io::Result<Vec<LaneHandle>> {
    let mut handles = Vec::with_capacity(specs.len());
    let mut tellers = Vec::with_capacity(specs.len());
    let id = Arc::new(OnceLock::new());
    let payer = payer(&specs);
    for (number, spec) in specs.iter().enumerate() {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Over {
            over: Arc::clone(&over),
            done: Arc::clone(done),
        };
        let (tell, outcome) = mpsc::channel();
        tellers.push(Some((tell, ends)));
        handles.push(LaneHandle {
            direction: spec.direction,
            part: spec.part,
            flows: spec.flows.len(),
            running: Running::Lent { over, outcome },
            // The cost of the thread is reported once.
            id: match number == payer {
                true => Arc::clone(&id),
                false => Arc::default(),
            },
            _bell: Arc::clone(done),
        });
    }
    let (gate, bell) = (Arc::clone(gate), Arc::clone(done));
    stack.lend(Box::new(move |transport: &mut OnStack| {
        let _ = id.set(ThreadId::current());
        let tell = |number: usize, outcome: LaneOutcome| {
            if let Some((tell, _ends)) = tellers.get_mut(number).and_then(Option::take) {
                // The coordinator may have ended; then the results are not needed.
                let _ = tell.send(outcome);
            }
        };
        let plan = specs.first().map(|spec| Arc::clone(&spec.plan));
        if plan.as_ref().is_some_and(|plan| plan.trace) {
            let transport = &mut Recorded::<Tracer>::of(transport);
            run_all(transport, specs, &gate, ready, &bell, tell);
        } else if plan.is_some_and(|plan| plan.calls) {
            let transport = &mut Recorded::<Stopwatch>::of(transport);
            run_all(transport, specs, &gate, ready, &bell, tell);
        } else {
            run_all(transport, specs, &gate, ready, &bell, tell);
        }
    }))?;
    Ok(handles)
}

/// Returns the worker that reports the cost of the thread: a receiver, which ends last.
fn payer(specs: &[LaneSpec]) -> usize {
    let sink = specs.iter().position(|spec| spec.part == Part::Sink);
    sink.unwrap_or(0)
}

/// Runs the workers of a run, and calls the callback with the number and results of each that has
/// ended. Compiled with and without the call recorder.
fn run_all<T: Adapter>(
    transport: &mut T,
    mut specs: Vec<LaneSpec>,
    gate: &Gate,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
    bell: &UnixStream,
    mut tell: impl FnMut(usize, LaneOutcome),
) {
    match (specs.pop(), specs.is_empty()) {
        (Some(only), true) => tell(0, run_lent(transport, only, gate, ready, bell)),
        (Some(last), false) => {
            specs.push(last);
            run_together(transport, specs, gate, ready, tell);
        }
        (None, _) => {}
    }
}

/// Runs several workers concurrently.
fn run_together<T: Adapter>(
    transport: &mut T,
    specs: Vec<LaneSpec>,
    gate: &Gate,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
    mut tell: impl FnMut(usize, LaneOutcome),
) {
    let payer = payer(&specs);
    let mut prepared = Vec::with_capacity(specs.len());
    for spec in specs {
        let (plan, direction, part) = (Arc::clone(&spec.plan), spec.direction, spec.part);
        match super::place(&spec).and_then(|()| prepare(transport, spec, gate)) {
            Ok((flows, watches)) => {
                let _ = ready.send(Ok(watches));
                prepared.push((plan, direction, part, flows));
            }
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        }
    }
    drop(ready);
    let Some(timeline) = gate.wait(|| transport.tend()) else {
        return;
    };
    let (mut lanes, mut flows) = (Vec::new(), Vec::new());
    for (plan, direction, part, opened) in &mut prepared {
        lanes.push(Lane {
            plan,
            direction: *direction,
            part: *part,
            timeline,
            phase: &gate.phase,
        });
        flows.push(std::mem::take(opened));
    }
    let mut left: Vec<usize> = flows.iter().map(Vec::len).collect();
    let mut moved: Vec<Vec<FlowOutcome>> = lanes.iter().map(|_| Vec::new()).collect();
    let attempts_before = transport.attempts();
    transport.start(&timeline);
    let before = ThreadUsage::now();
    workload::run_together(&lanes, transport, flows, |flow| {
        let lane = lanes
            .iter()
            .position(|lane| lane.direction == flow.direction);
        let lane = lane.unwrap_or(payer);
        moved[lane].push(flow);
        left[lane] = left[lane].saturating_sub(1);
        // The other end needs the sent total while this one still receives.
        if left[lane] == 0 && lane != payer {
            let outcome = LaneOutcome {
                flows: std::mem::take(&mut moved[lane]),
                ended_ns: clock::now(),
                ..LaneOutcome::default()
            };
            tell(lane, outcome);
        }
    });
    let usage = ThreadUsage::now().since(&before);
    let attempts = transport.attempts().zip(attempts_before);
    let outcome = LaneOutcome {
        flows: std::mem::take(&mut moved[payer]),
        usage,
        calls: transport.tally(),
        scheduled: Scheduled::of(ThreadId::current()),
        ended_ns: clock::now(),
        attempts: attempts.map(|(now, before)| now.since(&before)),
        stack: transport.stack_facts(),
        ..LaneOutcome::default()
    };
    tell(payer, outcome);
}
