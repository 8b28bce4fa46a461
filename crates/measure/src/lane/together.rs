//! Lanes of one thread: all that moves over our own stack, whichever way it goes.

use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, mpsc};

use super::{
    Gate, LaneError, LaneHandle, LaneOutcome, LaneSpec, Over, Running, Watches, prepare, run_lent,
};
use crate::flow::{FlowOutcome, Part};
use crate::stack::StackThread;
use crate::transport::calls::{Stopwatch, Tracer};
use crate::transport::{Adapter, OnStack, Recorded};
use crate::workload::{self, Lane};
use linerate_host::processor_time::Scheduled;
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
            // What the thread costs is told once.
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
                // Whoever asked may be gone; then nobody wants to know.
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

/// The lane that has what the thread cost: one that receives, which ends last.
fn payer(specs: &[LaneSpec]) -> usize {
    let sink = specs.iter().position(|spec| spec.part == Part::Sink);
    sink.unwrap_or(0)
}

/// Runs the lanes of a run, and tells what each came to, by its number, once it is over. Compiled with the
/// call recorder and without.
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

/// Runs several lanes side by side.
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
        // That all was sent is news for the far end while this one still receives.
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
