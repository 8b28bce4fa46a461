//! Workers on the thread of the user-space stack, in both directions.

use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, mpsc};

use linerate_host::processor_time::SchedStats;
use linerate_sys::cpu::ThreadUsage;
use linerate_sys::thread::ThreadId;
use linerate_sys::{clock, cpu};
use linerate_transport::call_times::{CallTimer, CallTracer};
use linerate_transport::flow_role::FlowRole;
use linerate_transport::stack_thread::StackThread;
use linerate_transport::{NetstackTransport, RecordingNetstack, WorkerTransport};

use super::{
    EndSignal, SocketWatches, StartBarrier, WorkerError, WorkerHandle, WorkerResults, WorkerSpec,
    WorkerThread, open_flows, run_on_netstack_thread,
};
use crate::WorkerContext;
use crate::flow::FlowEndResults;

/// Runs workers on the thread of the user-space stack; they report as separate threads would.
///
/// # Errors
/// When that thread has ended.
pub fn start_on_netstack(
    stack: &StackThread,
    specs: Vec<WorkerSpec>,
    barrier: &Arc<StartBarrier>,
    ready: mpsc::Sender<Result<SocketWatches, WorkerError>>,
    done: &Arc<UnixStream>,
) -> std::io::Result<Vec<WorkerHandle>> {
    let mut handles = Vec::with_capacity(specs.len());
    let mut senders = Vec::with_capacity(specs.len());
    let id = Arc::new(OnceLock::new());
    let reporter = reporting_worker(&specs);
    for (number, spec) in specs.iter().enumerate() {
        let ended = Arc::new(AtomicBool::new(false));
        let end_signal = EndSignal {
            ended: Arc::clone(&ended),
            done: Arc::clone(done),
        };
        let (sender, results) = mpsc::channel();
        senders.push(Some((sender, end_signal)));
        handles.push(WorkerHandle {
            direction: spec.direction,
            role: spec.role,
            flows: spec.flows.len(),
            running: WorkerThread::Netstack { ended, results },
            // The cost of the thread is reported once.
            id: match number == reporter {
                true => Arc::clone(&id),
                false => Arc::default(),
            },
            _wake_up: Arc::clone(done),
        });
    }
    let (barrier, wake_up) = (Arc::clone(barrier), Arc::clone(done));
    stack.run_work(Box::new(move |transport: &mut NetstackTransport| {
        let _ = id.set(ThreadId::current());
        let sender = |number: usize, results: WorkerResults| {
            if let Some((sender, _end_signal)) = senders.get_mut(number).and_then(Option::take) {
                // The coordinator may have ended; then the results are not needed.
                let _ = sender.send(results);
            }
        };
        let plan = specs.first().map(|spec| Arc::clone(&spec.plan));
        if plan.as_ref().is_some_and(|plan| plan.trace) {
            let transport = &mut RecordingNetstack::<CallTracer>::with_stack(transport);
            run_workers(transport, specs, &barrier, ready, &wake_up, sender);
        } else if plan.is_some_and(|plan| plan.calls) {
            let transport = &mut RecordingNetstack::<CallTimer>::with_stack(transport);
            run_workers(transport, specs, &barrier, ready, &wake_up, sender);
        } else {
            run_workers(transport, specs, &barrier, ready, &wake_up, sender);
        }
    }))?;
    Ok(handles)
}

/// Returns the worker that reports the cost of the thread: a receiver, which ends last.
fn reporting_worker(specs: &[WorkerSpec]) -> usize {
    let sink = specs
        .iter()
        .position(|spec| spec.role == FlowRole::Receiver);
    sink.unwrap_or(0)
}

/// Runs the workers of a run, and calls the callback with the number and results of each that has
/// ended. Compiled with and without the call recorder.
fn run_workers<T: WorkerTransport>(
    transport: &mut T,
    mut specs: Vec<WorkerSpec>,
    barrier: &StartBarrier,
    ready: mpsc::Sender<Result<SocketWatches, WorkerError>>,
    wake_up: &UnixStream,
    mut on_end: impl FnMut(usize, WorkerResults),
) {
    match (specs.pop(), specs.is_empty()) {
        (Some(only), true) => on_end(
            0,
            run_on_netstack_thread(transport, only, barrier, ready, wake_up),
        ),
        (Some(last), false) => {
            specs.push(last);
            run_concurrently(transport, specs, barrier, ready, on_end);
        }
        (None, _) => {}
    }
}

/// Runs several workers concurrently.
fn run_concurrently<T: WorkerTransport>(
    transport: &mut T,
    specs: Vec<WorkerSpec>,
    barrier: &StartBarrier,
    ready: mpsc::Sender<Result<SocketWatches, WorkerError>>,
    mut on_end: impl FnMut(usize, WorkerResults),
) {
    let reporter = reporting_worker(&specs);
    let mut prepared = Vec::with_capacity(specs.len());
    for spec in specs {
        let (plan, direction, role) = (Arc::clone(&spec.plan), spec.direction, spec.role);
        match super::pin_and_schedule(&spec).and_then(|()| open_flows(transport, spec, barrier)) {
            Ok((flows, watches)) => {
                let _ = ready.send(Ok(watches));
                prepared.push((plan, direction, role, flows));
            }
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        }
    }
    drop(ready);
    let Some(run_clock) = barrier.wait(|| transport.poll_background()) else {
        return;
    };
    let (mut workers, mut flows) = (Vec::new(), Vec::new());
    for (plan, direction, role, opened) in &mut prepared {
        workers.push(WorkerContext {
            plan,
            direction: *direction,
            role: *role,
            run_clock,
            phase: &barrier.phase,
        });
        flows.push(std::mem::take(opened));
    }
    let mut open_flows: Vec<usize> = flows.iter().map(Vec::len).collect();
    let mut results_by_worker: Vec<Vec<FlowEndResults>> =
        workers.iter().map(|_| Vec::new()).collect();
    let attempts_before = transport.call_attempts();
    transport.start(&run_clock);
    let before = ThreadUsage::read();
    crate::run_bidirectional(&workers, transport, flows, |flow| {
        let worker = workers
            .iter()
            .position(|worker| worker.direction == flow.direction);
        let worker = worker.unwrap_or(reporter);
        results_by_worker[worker].push(flow);
        open_flows[worker] = open_flows[worker].saturating_sub(1);
        // The other end needs the sent total while this one still receives.
        if open_flows[worker] == 0 && worker != reporter {
            let results = WorkerResults {
                flows: std::mem::take(&mut results_by_worker[worker]),
                ended_ns: clock::now(),
                ..WorkerResults::default()
            };
            on_end(worker, results);
        }
    });
    let usage = ThreadUsage::read().since(&before);
    let attempts = transport.call_attempts().zip(attempts_before);
    let results = WorkerResults {
        flows: std::mem::take(&mut results_by_worker[reporter]),
        usage,
        calls: transport.call_stats(),
        scheduled: SchedStats::read(ThreadId::current()),
        ended_ns: clock::now(),
        cpu: Some(cpu::current()),
        attempts: attempts.map(|(now, before)| now.since(&before)),
        stack: transport.netstack_facts(),
        ..WorkerResults::default()
    };
    on_end(reporter, results);
}
