//! Threads that end by a panic.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_metric::forward::Idle;
use linerate_port::{Burst, PortError, Transmit};

use crate::forward::{Forwarder, MemoryWish, Settings, Times, record, run};

/// Two rings, the first of which contains a frame longer than its slot: its bytes cannot be
/// accessed.
fn poisoned() -> Forwarder {
    let urls = ["ring:0", "ring:1"].map(|url| url.parse().unwrap());
    let mut forwarder = Forwarder::open(&urls, MemoryWish::default()).unwrap();
    poison(&mut forwarder);
    forwarder
}

fn poison(forwarder: &mut Forwarder) {
    let mut pool = forwarder.memory.pool();
    let (mut frame, mut burst) = (pool.allocate().unwrap(), Burst::new());
    frame.set_len(u16::MAX);
    burst.push(frame).unwrap();
    let transmit = forwarder.ports[0].queues[0].transmit.as_mut();
    assert_eq!(transmit.unwrap().transmit(&mut pool, &mut burst), 1);
}

fn settings(cores: u32) -> Settings {
    Settings {
        mode: "macswap".parse().unwrap(),
        cores,
        tx_first: 1,
        idle: Idle::Yield,
        // The frame must stay in the ring.
        flush: false,
        ..Settings::default()
    }
}

/// The run ends at once, with the figures so far and the error; the ports can be reopened.
#[test]
fn a_thread_that_dies_ends_the_run() {
    for cores in [1, 2] {
        let (mut forwarder, settings) = (poisoned(), settings(cores));
        let times = Times {
            duration: Some(Duration::from_secs(600)),
            interval: Duration::from_secs(600),
            quiet: Duration::ZERO,
        };
        let stop = AtomicBool::new(false);
        let began = std::time::Instant::now();
        let ran = run(&mut forwarder, &settings, &times, &stop, &mut |_| {}).unwrap();
        assert!(began.elapsed() < Duration::from_secs(300));
        let Some(PortError::Fault { port }) = &ran.trouble else {
            panic!("{:?}", ran.trouble);
        };
        assert!(port.contains("ring:0"), "{port}");
        assert_eq!(ran.figures.streams.len(), 2);
        assert_eq!(ran.figures.cores.len(), cores as usize - 1);
        assert!(ran.figures.ports[0].receive.packets > 0);
        let record = record(&forwarder.urls(), &settings, &times, ran);
        // Number of threads started, not of those that survived.
        let plan = record.plan.forward.as_ref().unwrap();
        assert_eq!((plan.cores, record.plan.streams), (cores, 2));
        let mut doubts = record.validity.iter();
        let doubt = doubts.find(|doubt| doubt.doubt == "port-stopped").unwrap();
        assert!(doubt.why.contains("fault of this program"), "{}", doubt.why);

        // The queues of the thread are gone until the ports are reopened.
        assert!(forwarder.start(&settings, Duration::ZERO).is_err());
        forwarder.start_port(None).unwrap();
        forwarder.start(&settings, Duration::ZERO).unwrap();
        let outcome = forwarder.stop().unwrap();
        assert!(outcome.trouble.is_none());
        assert_eq!(outcome.figures.cores.len(), cores as usize);
    }
}

/// A thread that cannot be spawned is named, no other thread waits for it, and the ports keep their
/// queues.
#[test]
fn a_thread_that_cannot_be_started_keeps_nobody_waiting() {
    let urls = ["ring:0", "ring:1"].map(|url| url.parse().unwrap());
    let mut forwarder = Forwarder::open(&urls, MemoryWish::default()).unwrap();
    let settings = settings(2);
    let mut started = 0;
    let refused = forwarder.start_by(&settings, Duration::ZERO, &mut |builder, job| {
        if started == 1 {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        started += 1;
        builder.spawn(job)
    });
    let problem = refused.unwrap_err().problem();
    assert_eq!(problem.object, "forwarding thread 2 of 2");
    assert!(
        problem.next_step.contains("ulimit -u"),
        "{}",
        problem.next_step
    );
    assert!(!forwarder.is_running() && forwarder.stop().is_none());

    forwarder.start(&settings, Duration::ZERO).unwrap();
    let outcome = forwarder.stop().unwrap();
    assert!(outcome.trouble.is_none());
    assert_eq!(outcome.figures.cores.len(), 2);
}

/// A thread that panics before the barrier does not block the others.
#[test]
fn nobody_waits_for_a_thread_that_is_gone() {
    use std::sync::{Arc, Barrier};

    use crate::forward::worker::{Control, Presence};

    let (control, barrier) = (Arc::new(Control::default()), Arc::new(Barrier::new(2)));
    let presence = Presence::new(&control, &barrier, "ring:0".to_owned());
    let dies = std::thread::spawn(move || {
        let _presence = presence;
        panic!("as asked");
    });
    barrier.wait();
    barrier.wait();
    assert!(dies.join().is_err());
    assert!(control.trouble.lock().unwrap().is_some());
}
