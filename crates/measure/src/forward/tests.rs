//! The forwarder over rings, with real threads.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_metric::forward::{Idle, PortTopology};
use linerate_port::{Burst, Memory, Pool, PortUrl, Receive, Transmit, memory_plan, open};
use proptest::prelude::*;

use super::mode::io::Io;
use super::settings::Settings;
use super::stream::{Facts, Mode, NoPlan, Stream};
use super::{Forwarder, Times, Told, record, run};
use crate::MeasureError;
use crate::forward::frame::Mac;

fn urls(texts: &[&str]) -> Vec<PortUrl> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn forwarder(texts: &[&str]) -> Forwarder {
    Forwarder::open(&urls(texts), None).unwrap()
}

fn settings(mode: &str) -> Settings {
    Settings {
        mode: mode.parse().unwrap(),
        // As many threads as the test asks for, wherever they run.
        idle: Idle::Yield,
        ..Settings::default()
    }
}

fn forward(forwarder: &mut Forwarder, settings: &Settings) -> super::Outcome {
    forwarder.start(settings, Duration::ZERO).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    forwarder.stop().unwrap()
}

#[test]
fn frames_circulate_and_none_is_lost() {
    for (ports, cores, topology) in [
        (&["ring:0"][..], 1, PortTopology::Paired),
        (&["ring:0", "ring:1"], 1, PortTopology::Paired),
        (&["ring:0", "ring:1"], 2, PortTopology::Paired),
        (&["ring:0", "ring:1", "ring:2"], 2, PortTopology::Chained),
        (
            &["ring:0,queues=2", "ring:1,queues=2"],
            2,
            PortTopology::Loop,
        ),
    ] {
        let mut forwarder = forwarder(ports);
        let wish = Settings {
            cores,
            topology,
            tx_first: 3,
            ..settings("io")
        };
        for round in 0..3 {
            let found = forward(&mut forwarder, &wish).figures;
            let streams = found.streams.len() as u64;
            assert_eq!(found.primed, 3 * 32 * streams, "{ports:?}");
            // What is left over in rings is exactly what was put into circulation before.
            assert_eq!(found.flushed, if round == 0 { 0 } else { found.primed });
            let sum = |read: fn(&linerate_metric::forward::ForwardPort) -> u64| {
                found.ports.iter().map(read).sum::<u64>()
            };
            assert!(sum(|port| port.receive.packets) > 0, "{ports:?}");
            assert_eq!(
                sum(|port| port.transmit.packets),
                sum(|port| port.receive.packets) + found.primed
            );
            assert_eq!(sum(|port| port.transmit.dropped + port.receive.dropped), 0);
            assert_eq!(
                sum(|port| port.transmit.bytes),
                64 * sum(|port| port.transmit.packets)
            );
            assert_eq!(found.cores.len(), cores as usize);
        }
    }
}

#[test]
fn streams_go_where_the_topology_says() {
    let forwarder = forwarder(&["ring:0,queues=2", "ring:1,queues=2"]);
    let wish = Settings {
        cores: 2,
        cpus: Vec::new(),
        ..settings("io")
    };
    let places = forwarder.places(&wish).unwrap();
    let said: Vec<_> = places
        .iter()
        .map(|p| (p.rx_port, p.rx_queue, p.tx_port, p.tx_queue, p.core))
        .collect();
    assert_eq!(
        said,
        [
            (0, 0, 1, 0, 0),
            (0, 1, 1, 1, 0),
            (1, 0, 0, 0, 1),
            (1, 1, 0, 1, 1)
        ]
    );
    assert_eq!(places[0].peer, "02:00:00:00:00:01");
    // Answers leave by the port of the question.
    let places = forwarder.places(&settings("icmpecho")).unwrap();
    assert!(places.iter().all(|place| place.rx_port == place.tx_port));
    // More threads than streams are not started.
    let many = Settings {
        cores: 99,
        ..settings("io")
    };
    let cores = forwarder
        .places(&many)
        .unwrap()
        .iter()
        .map(|p| p.core + 1)
        .max();
    assert_eq!(cores, Some(4));
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut forwarder = forwarder(&["ring:0", "ring:1,queues=2"]);
    let refused = |found: Result<_, MeasureError>| found.map(|_: Vec<_>| ()).unwrap_err();
    let uneven = refused(forwarder.places(&settings("io")));
    assert!(uneven.to_string().contains("1 and 2 queues"), "{uneven}");
    let unknown = Settings {
        ports: vec![7],
        ..settings("io")
    };
    assert_eq!(refused(forwarder.places(&unknown)).exit_code(), 2);
    let waiting = Settings {
        idle: Idle::Interrupt,
        ports: vec![0],
        ..settings("io")
    };
    let refused = refused(forwarder.start(&waiting, Duration::ZERO));
    assert_eq!(refused.exit_code(), 4);
    forwarder.stop_port(None).unwrap();
    assert!(forwarder.places(&settings("io")).is_err());
    forwarder.start_port(Some(0)).unwrap();
    assert_eq!(forwarder.places(&settings("io")).unwrap().len(), 1);
}

#[test]
fn sinks_and_sources_and_records() {
    let mut sink = forwarder(&["null:size=100"]);
    let wish = Settings {
        record_bursts: true,
        record_cycles: true,
        ..settings("rxonly")
    };
    let times = Times {
        duration: Some(Duration::from_millis(60)),
        interval: Duration::from_millis(20),
        quiet: Duration::ZERO,
    };
    let mut told = 0;
    let mut tell = |what: Told<'_>| told += u32::from(matches!(what, Told::Interval(_)));
    let ran = run(&mut sink, &wish, &times, &AtomicBool::new(false), &mut tell).unwrap();
    assert!(told >= 1 && !ran.interrupted);
    let record = record(&urls(&["null:size=100"]), &wish, &times, ran);
    let found = record.forward.as_ref().unwrap();
    let port = &found.ports[0];
    assert_eq!(port.receive.bytes, port.receive.packets * 100);
    assert_eq!(found.streams[0].taken, port.receive.packets);
    assert_eq!(port.transmit.packets, 0);
    assert!(found.streams[0].bursts[31] > 0);
    assert!(found.streams[0].cycles_per_packet > Some(0.0));
    assert!(record.summary.packets_per_second > Some(0.0));
    assert_eq!(record.plan.forward.as_ref().unwrap().mode, "rxonly");
    let counted: u64 = record.intervals.iter().filter_map(|i| i.packets).sum();
    assert_eq!(counted, port.receive.packets, "intervals add up to the run");

    let mut source = forwarder(&["null:silent"]);
    let found = forward(&mut source, &settings("txonly")).figures;
    assert!(found.ports[0].transmit.packets > 0);
    assert_eq!(found.ports[0].receive.packets, 0);
}

#[test]
fn every_mode_starts_and_stops_with_all_frames_free() {
    for line in super::MODES {
        let mut forwarder = forwarder(&["ring:0", "ring:1"]);
        let wish = Settings {
            tx_first: 1,
            cores: 2,
            ..settings(line.name)
        };
        let before = forward(&mut forwarder, &wish).figures;
        assert!(before.streams.len() == 2, "{}", line.name);
        // Whatever a mode held is free again, or the second run would find fewer frames.
        let again = forward(&mut forwarder, &wish).figures;
        assert_eq!(before.primed, again.primed, "{}", line.name);
    }
}

#[test]
fn a_run_that_is_stopped_says_so() {
    let mut forwarder = forwarder(&["ring:0"]);
    let times = Times {
        duration: Some(Duration::from_secs(600)),
        interval: Duration::from_secs(1),
        quiet: Duration::ZERO,
    };
    let stop = AtomicBool::new(true);
    let ran = run(&mut forwarder, &settings("io"), &times, &stop, &mut |_| {}).unwrap();
    assert!(ran.interrupted && !forwarder.is_running());
}

#[test]
fn counters_are_cleared_for_ports_and_streams() {
    let mut forwarder = forwarder(&["ring:0"]);
    let wish = Settings {
        tx_first: 1,
        ..settings("io")
    };
    forwarder.start(&wish, Duration::ZERO).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    forwarder.stop().unwrap();
    assert!(forwarder.shown()[0].receive.frames > 0);
    forwarder.clear(Some(0));
    assert_eq!(forwarder.shown()[0].receive.frames, 0);
    assert!(forwarder.totals()[0].receive.frames > 0);
}

/// Sends and polls in any order and number: what comes out is what went in, once and in order, or was
/// counted as dropped at a full ring.
fn passes(capacity: usize, steps: &[(u8, usize)]) -> Result<(), TestCaseError> {
    let names = [
        format!("ring:in,end=a,rxd={capacity}"),
        format!("ring:in,end=b,rxd={capacity}"),
        format!("ring:out,end=a,rxd={capacity}"),
        format!("ring:out,end=b,rxd={capacity}"),
    ];
    let texts: Vec<&str> = names.iter().map(String::as_str).collect();
    let urls = urls(&texts);
    let memory = Memory::new(memory_plan(&urls)).unwrap();
    let mut ports: Vec<_> = urls
        .iter()
        .map(|url| open(url, &memory).unwrap().remove(0))
        .collect();
    let mut sink = ports.remove(3);
    let far = ports.remove(2);
    let near = ports.remove(1);
    let mut source = ports.remove(0);
    let facts = Facts {
        number: 0,
        address: Mac::default(),
        peer: Mac::default(),
        frame_bytes: 1518,
        share: 100,
    };
    let mut pool = memory.pool();
    let mut stream = Stream::new(near.receive, far.transmit, 32, None, facts);
    let (mut next, mut arrived) = (0u32, Vec::new());
    let mut drain = |pool: &mut Pool| {
        let mut burst = Burst::new();
        sink.receive.receive(pool, &mut burst);
        for frame in burst.frames() {
            arrived.push(u32::from_be_bytes(memory.bytes(frame).try_into().unwrap()));
        }
        pool.free_all(&mut burst)
    };
    for &(what, count) in steps {
        match what {
            0 => {
                let mut burst = Burst::new();
                for _ in 0..count {
                    let mut frame = pool.allocate().unwrap();
                    frame.set_len(4);
                    memory
                        .bytes_mut(&mut frame)
                        .copy_from_slice(&next.to_be_bytes());
                    burst.push(frame).unwrap();
                    next += 1;
                }
                source.transmit.transmit(&mut pool, &mut burst);
                next -= burst.len() as u32;
                pool.free_all(&mut burst);
            }
            1 => drop(
                Io::new(&NoPlan, &stream.facts.clone(), &Settings::default()).step(
                    &mut stream,
                    &mut pool,
                    &memory,
                ),
            ),
            _ => drop(drain(&mut pool)),
        }
    }
    for _ in 0..200 {
        Io.step(&mut stream, &mut pool, &memory);
        drain(&mut pool);
    }
    let dropped = stream.transmit.counters().read().all_dropped();
    prop_assert_eq!(arrived.len() as u64 + dropped, u64::from(next));
    prop_assert!(arrived.is_sorted_by(|a, b| a < b));
    if dropped == 0 {
        prop_assert_eq!(arrived, (0..next).collect::<Vec<_>>());
    }
    Ok(())
}

proptest! {
    #[test]
    fn io_loses_and_repeats_nothing(
        capacity in 33usize..200,
        steps in prop::collection::vec((0u8..3, 0usize..=32), 0..100),
    ) {
        passes(capacity, &steps)?;
    }
}
