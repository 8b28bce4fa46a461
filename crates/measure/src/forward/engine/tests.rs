//! Threads that end by a fault of ours.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_metric::forward::Idle;
use linerate_port::{Burst, PortError, Transmit};

use crate::forward::{Forwarder, MemoryWish, Settings, Times, record, run};

/// Two rings, in the first of which lies a frame that nobody may touch: it reaches beyond its slot.
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
        // What lies in the ring stays there.
        flush: false,
        ..Settings::default()
    }
}

/// The run ends at once, with what was moved and the reason; the ports can be opened again.
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
        // As many threads as there were, not as have lived.
        let plan = record.plan.forward.as_ref().unwrap();
        assert_eq!((plan.cores, record.plan.streams), (cores, 2));
        let mut doubts = record.validity.iter();
        let doubt = doubts.find(|doubt| doubt.doubt == "port-stopped").unwrap();
        assert!(doubt.why.contains("fault of this program"), "{}", doubt.why);

        // Its queues are gone, and come with new ports.
        assert!(forwarder.start(&settings, Duration::ZERO).is_err());
        forwarder.start_port(None).unwrap();
        forwarder.start(&settings, Duration::ZERO).unwrap();
        let outcome = forwarder.stop().unwrap();
        assert!(outcome.trouble.is_none());
        assert_eq!(outcome.figures.cores.len(), cores as usize);
    }
}

/// A thread that cannot be had is named, nobody waits for it, and the ports have all their queues.
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

/// One that dies before all have met does not keep the others waiting.
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
