//! Lanes of one thread: all that moves over our own stack, whichever way it goes.

use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, mpsc};

use super::{
    Gate, LaneError, LaneHandle, LaneOutcome, LaneSpec, Over, Running, Watches, prepare, run_lent,
};
use crate::flow::FlowOutcome;
use crate::stack::StackThread;
use crate::transport::{Adapter, OnStack};
use crate::workload::{self, Lane};
use linerate_host::sys::clock;
use linerate_host::sys::cpu::ThreadUsage;
use linerate_host::sys::thread::ThreadId;

/// Has the thread that owns our stack move payload; it reports as threads of their own would.
///
/// # Errors
/// When that thread is gone.
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
    for (number, spec) in specs.iter().enumerate() {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Over {
            over: Arc::clone(&over),
            done: Arc::clone(done),
        };
        let (tell, outcome) = mpsc::channel();
        tellers.push((tell, ends));
        handles.push(LaneHandle {
            direction: spec.direction,
            part: spec.part,
            flows: spec.flows.len(),
            running: Running::Lent { over, outcome },
            // What the thread costs is told once.
            id: match number {
                0 => Arc::clone(&id),
                _ => Arc::default(),
            },
            _bell: Arc::clone(done),
        });
    }
    let gate = Arc::clone(gate);
    stack.lend(Box::new(move |transport: &mut OnStack| {
        let _ = id.set(ThreadId::current());
        let Some((_, ends)) = tellers.first() else {
            return;
        };
        let bell = Arc::clone(&ends.done);
        let mut specs = specs;
        let outcomes = match (specs.pop(), specs.is_empty()) {
            (Some(only), true) => vec![run_lent(transport, only, &gate, ready, &bell)],
            (Some(last), false) => {
                specs.push(last);
                run_together(transport, specs, &gate, ready)
            }
            (None, _) => Vec::new(),
        };
        for (outcome, (tell, _ends)) in outcomes.into_iter().zip(tellers) {
            // Whoever asked may be gone; then nobody wants to know.
            let _ = tell.send(outcome);
        }
    }))?;
    Ok(handles)
}

/// Runs several lanes side by side; gives their outcomes in the same order, of which the first has what
/// the thread cost.
fn run_together(
    transport: &mut OnStack,
    specs: Vec<LaneSpec>,
    gate: &Gate,
    ready: mpsc::Sender<Result<Watches, LaneError>>,
) -> Vec<LaneOutcome> {
    let nothing = |specs: usize| (0..specs).map(|_| LaneOutcome::default()).collect();
    let count = specs.len();
    let mut prepared = Vec::with_capacity(count);
    for spec in specs {
        let (plan, direction, part) = (Arc::clone(&spec.plan), spec.direction, spec.part);
        match super::place(&spec).and_then(|()| prepare(transport, spec, gate)) {
            Ok((flows, watches)) => {
                let _ = ready.send(Ok(watches));
                prepared.push((plan, direction, part, flows));
            }
            Err(error) => {
                let _ = ready.send(Err(error));
                return nothing(count);
            }
        }
    }
    drop(ready);
    let Some(timeline) = gate.wait(|| transport.tend()) else {
        return nothing(count);
    };
    let (mut lanes, mut flows) = (Vec::with_capacity(count), Vec::with_capacity(count));
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
    let attempts_before = transport.attempts_so_far();
    transport.start(&timeline);
    let before = ThreadUsage::now();
    let moved = workload::run_together(&lanes, transport, flows);
    let usage = ThreadUsage::now().since(&before);
    let ended_ns = clock::now();
    let mut moved: Vec<FlowOutcome> = moved;
    let mut outcomes: Vec<LaneOutcome> = Vec::with_capacity(count);
    for (number, lane) in lanes.iter().enumerate() {
        let (own, rest) = (moved.into_iter()).partition(|flow| flow.direction == lane.direction);
        moved = rest;
        let mut outcome = LaneOutcome {
            flows: own,
            ended_ns,
            ..LaneOutcome::default()
        };
        if number == 0 {
            outcome.usage = usage;
            outcome.stack = transport.stack_facts();
            outcome.scheduled = linerate_host::processor_time::Scheduled::of(ThreadId::current());
            outcome.attempts = Some(transport.attempts_so_far().since(&attempts_before));
        }
        outcomes.push(outcome);
    }
    outcomes
}
