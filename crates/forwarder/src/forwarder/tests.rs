//! Threads that end by a panic.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_port::{PortError, TxQueue};
use linerate_record::forward::IdleStrategy;
use linerate_record::ids::CaveatId;
use linerate_sys::frames::burst::Burst;

use crate::{ForwardSettings, Forwarder, FrameMemoryRequest, RunTimes, record, run};

/// Two rings, the first of which contains a frame longer than its slot: its bytes cannot be
/// accessed.
fn poisoned_forwarder() -> Forwarder {
    let urls = ["ring:0", "ring:1"].map(|url| url.parse().unwrap());
    let mut forwarder = Forwarder::open(&urls, FrameMemoryRequest::default()).unwrap();
    put_invalid_frame(&mut forwarder);
    forwarder
}

fn put_invalid_frame(forwarder: &mut Forwarder) {
    let mut pool = forwarder.memory.pool();
    let (mut frame, mut burst) = (pool.allocate().unwrap(), Burst::new());
    frame.set_len(u16::MAX);
    burst.push(frame).unwrap();
    let transmit = forwarder.ports[0].queues[0].transmit.as_mut();
    assert_eq!(transmit.unwrap().transmit(&mut pool, &mut burst), 1);
}

fn settings(cores: u32) -> ForwardSettings {
    ForwardSettings {
        mode: "macswap".parse().unwrap(),
        cores,
        tx_first: 1,
        idle: IdleStrategy::Yield,
        // The frame must stay in the ring.
        flush: false,
        ..ForwardSettings::default()
    }
}

/// The run ends at once, with the figures so far and the error; the ports can be reopened.
#[test]
fn a_panicked_thread_ends_the_run() {
    for cores in [1, 2] {
        let (mut forwarder, settings) = (poisoned_forwarder(), settings(cores));
        let times = RunTimes {
            duration: Some(Duration::from_secs(600)),
            interval: Duration::from_secs(600),
            flush_quiet: Duration::ZERO,
        };
        let stop = AtomicBool::new(false);
        let started_at = std::time::Instant::now();
        let run_result = run(&mut forwarder, &settings, &times, &stop, &mut |_| {}).unwrap();
        assert!(started_at.elapsed() < Duration::from_secs(300));
        let Some(PortError::Fault { port }) = &run_result.port_error else {
            panic!("{:?}", run_result.port_error);
        };
        assert!(port.contains("ring:0"), "{port}");
        assert_eq!(run_result.figures.streams.len(), 2);
        assert_eq!(run_result.figures.cores.len(), cores as usize - 1);
        assert!(run_result.figures.ports[0].receive.packets > 0);
        let record = record(&forwarder.urls(), &settings, &times, run_result);
        // Number of threads started, not of those that survived.
        let plan = record.plan.forward.as_ref().unwrap();
        assert_eq!((plan.cores, record.plan.streams), (cores, 2));
        let mut caveats = record.validity.iter();
        let caveat = caveats
            .find(|caveat| caveat.id == CaveatId::PortStopped)
            .unwrap();
        assert!(
            caveat.reason.contains("bug in this program"),
            "{}",
            caveat.reason
        );

        // The queues of the thread are gone until the ports are reopened.
        assert!(forwarder.start(&settings, Duration::ZERO).is_err());
        forwarder.start_port(None).unwrap();
        forwarder.start(&settings, Duration::ZERO).unwrap();
        let results = forwarder.stop().unwrap();
        assert!(results.port_error.is_none());
        assert_eq!(results.figures.cores.len(), cores as usize);
    }
}

/// A thread that cannot be spawned is named, no other thread waits for it, and the ports keep their
/// queues.
#[test]
fn thread_that_cannot_be_spawned_blocks_no_other() {
    let urls = ["ring:0", "ring:1"].map(|url| url.parse().unwrap());
    let mut forwarder = Forwarder::open(&urls, FrameMemoryRequest::default()).unwrap();
    let settings = settings(2);
    let mut started = 0;
    let error = forwarder.start_with(&settings, Duration::ZERO, &mut |builder, job| {
        if started == 1 {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        started += 1;
        builder.spawn(job)
    });
    let problem = error.unwrap_err().to_report();
    assert_eq!(problem.object, "forwarding thread 2 of 2");
    assert!(
        problem.next_step.contains("ulimit -u"),
        "{}",
        problem.next_step
    );
    assert!(!forwarder.is_running() && forwarder.stop().is_none());

    forwarder.start(&settings, Duration::ZERO).unwrap();
    let results = forwarder.stop().unwrap();
    assert!(results.port_error.is_none());
    assert_eq!(results.figures.cores.len(), 2);
}

/// A thread that panics before the barrier does not block the others.
#[test]
fn panicked_thread_does_not_block_the_barrier() {
    use std::sync::{Arc, Barrier};

    use crate::worker::{StartBarrierGuard, WorkerControl};

    let (control, barrier) = (
        Arc::new(WorkerControl::default()),
        Arc::new(Barrier::new(2)),
    );
    let guard = StartBarrierGuard::new(&control, &barrier, "ring:0".to_owned());
    let panicking = std::thread::spawn(move || {
        let _presence = guard;
        panic!("as requested");
    });
    barrier.wait();
    barrier.wait();
    assert!(panicking.join().is_err());
    assert!(control.port_error.lock().unwrap().is_some());
}
