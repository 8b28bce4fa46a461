//! Tests of the forwarder over rings, with real threads.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_packet::mac_address::MacAddress;
use linerate_port::{FrameRunError, PortUrl, RxQueue, TxQueue, memory_plan, open};
use linerate_record::forward::{IdleStrategy, PortTopology};
use linerate_record::ids::CaveatId;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use proptest::prelude::*;

use crate::mode::io::Io;
use crate::settings::ForwardSettings;
use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};
use crate::{ForwardEvent, Forwarder, FrameMemoryRequest, RunTimes, record, run};

fn urls(texts: &[&str]) -> Vec<PortUrl> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn forwarder(texts: &[&str]) -> Forwarder {
    Forwarder::open(&urls(texts), FrameMemoryRequest::default()).unwrap()
}

fn settings(mode: &str) -> ForwardSettings {
    ForwardSettings {
        mode: mode.parse().unwrap(),
        // Yield: there may be more threads than processors.
        idle: IdleStrategy::Yield,
        ..ForwardSettings::default()
    }
}

fn forward(forwarder: &mut Forwarder, settings: &ForwardSettings) -> super::ForwardResults {
    forwarder.start(settings, Duration::ZERO).unwrap();
    // On a busy host the first frames take long.
    while forwarder.primed().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(30));
    forwarder.stop().unwrap()
}

/// A port error ends a run at once, also with long intervals.
#[test]
fn port_error_ends_the_run_at_once() {
    let file = std::env::temp_dir().join(format!("linerate-damaged-{}", std::process::id()));
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // Snapshot length 65,535 bytes, Ethernet; one record of 60 bytes whose data is missing.
    bytes.extend([0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0]);
    std::fs::write(&file, bytes).unwrap();
    // The other port delivers frames without end.
    let names = [&format!("pcap:rx={}", file.display()), "null:"];
    let mut forwarder = forwarder(&names);
    let times = RunTimes {
        duration: Some(Duration::from_secs(60)),
        interval: Duration::from_secs(60),
        flush_quiet: Duration::ZERO,
    };
    let (stop, settings) = (AtomicBool::new(false), settings("io"));
    let run_result = run(&mut forwarder, &settings, &times, &stop, &mut |_| {}).unwrap();
    std::fs::remove_file(&file).unwrap();
    let lasted_ns = run_result.figures.duration_ns;
    assert!(lasted_ns < 30_000_000_000, "{lasted_ns} ns");
    // The record contains the error with its remedy.
    let record = record(&urls(&names), &settings, &times, run_result);
    let caveats = record.validity.iter();
    let mut caveats = caveats.filter(|caveat| caveat.id == CaveatId::PortStopped);
    let why = &caveats.next().expect("it stopped").reason;
    assert!(
        why.contains("damaged") && why.contains("give rx= a complete"),
        "{why}"
    );
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
        let options = ForwardSettings {
            cores,
            topology,
            tx_first: 3,
            ..settings("io")
        };
        for round in 0..3 {
            let figures = forward(&mut forwarder, &options).figures;
            let streams = figures.streams.len() as u64;
            assert_eq!(figures.primed, 3 * 32 * streams, "{ports:?}");
            // Frames left in the rings are exactly those put into circulation before.
            assert_eq!(figures.flushed, if round == 0 { 0 } else { figures.primed });
            let sum = |read: fn(&linerate_record::forward::ForwardPort) -> u64| {
                figures.ports.iter().map(read).sum::<u64>()
            };
            assert!(sum(|port| port.receive.packets) > 0, "{ports:?}");
            assert_eq!(
                sum(|port| port.transmit.packets),
                sum(|port| port.receive.packets) + figures.primed
            );
            assert_eq!(sum(|port| port.transmit.dropped + port.receive.dropped), 0);
            assert_eq!(
                sum(|port| port.transmit.bytes),
                64 * sum(|port| port.transmit.packets)
            );
            assert_eq!(figures.cores.len(), cores as usize);
        }
    }
}

#[test]
fn streams_go_where_the_topology_says() {
    let forwarder = forwarder(&["ring:0,queues=2", "ring:1,queues=2"]);
    let options = ForwardSettings {
        cores: 2,
        cpus: Vec::new(),
        ..settings("io")
    };
    let routes = forwarder.routes(&options).unwrap();
    let texts: Vec<_> = routes
        .iter()
        .map(|p| (p.rx_port, p.rx_queue, p.tx_port, p.tx_queue, p.core))
        .collect();
    assert_eq!(
        texts,
        [
            (0, 0, 1, 0, 0),
            (0, 1, 1, 1, 0),
            (1, 0, 0, 0, 1),
            (1, 1, 0, 1, 1)
        ]
    );
    assert_eq!(routes[0].peer, "02:00:00:00:00:01");
    // Replies leave by the port of the request.
    let routes = forwarder.routes(&settings("icmpecho")).unwrap();
    assert!(routes.iter().all(|place| place.rx_port == place.tx_port));
    // At most one thread per stream is started.
    let many_threads = ForwardSettings {
        cores: 99,
        ..settings("io")
    };
    let cores = forwarder
        .routes(&many_threads)
        .unwrap()
        .iter()
        .map(|p| p.core + 1)
        .max();
    assert_eq!(cores, Some(4));
}

#[test]
fn unfit_settings_are_rejected() {
    let mut forwarder = forwarder(&["ring:0", "ring:1,queues=2"]);
    let error_of = |result: Result<_, FrameRunError>| result.map(|_: Vec<_>| ()).unwrap_err();
    let uneven = error_of(forwarder.routes(&settings("io")));
    assert!(uneven.to_string().contains("1 and 2 queues"), "{uneven}");
    let unknown_port = ForwardSettings {
        ports: vec![7],
        ..settings("io")
    };
    assert_eq!(error_of(forwarder.routes(&unknown_port)).exit_code(), 2);
    let waiting = ForwardSettings {
        idle: IdleStrategy::Interrupt,
        ports: vec![0],
        ..settings("io")
    };
    let error_of = error_of(forwarder.start(&waiting, Duration::ZERO));
    assert_eq!(error_of.exit_code(), 4);
    forwarder.stop_port(None).unwrap();
    assert!(forwarder.routes(&settings("io")).is_err());
    forwarder.start_port(Some(0)).unwrap();
    assert_eq!(forwarder.routes(&settings("io")).unwrap().len(), 1);
}

#[test]
fn sinks_and_sources_and_records() {
    let mut sink = forwarder(&["null:size=100"]);
    let options = ForwardSettings {
        record_cycles: true,
        ..settings("rxonly")
    };
    let times = RunTimes {
        duration: Some(Duration::from_millis(60)),
        interval: Duration::from_millis(20),
        flush_quiet: Duration::ZERO,
    };
    let mut intervals = 0;
    let mut on_event = |action: ForwardEvent<'_>| {
        intervals += u32::from(matches!(action, ForwardEvent::Interval(_)))
    };
    let run_result = run(
        &mut sink,
        &options,
        &times,
        &AtomicBool::new(false),
        &mut on_event,
    )
    .unwrap();
    assert!(intervals >= 1 && !run_result.interrupted);
    let record = record(&urls(&["null:size=100"]), &options, &times, run_result);
    let figures = record.forward.as_ref().unwrap();
    let port = &figures.ports[0];
    assert_eq!(port.receive.bytes, port.receive.packets * 100);
    assert_eq!(figures.streams[0].consumed, port.receive.packets);
    assert_eq!(port.transmit.packets, 0);
    assert!(figures.streams[0].cycles_per_packet > Some(0.0));
    assert!(record.summary.packets_per_second > Some(0.0));
    assert_eq!(record.plan.forward.as_ref().unwrap().mode, "rxonly");
    let counted: u64 = record.intervals.iter().filter_map(|i| i.packets).sum();
    assert_eq!(counted, port.receive.packets, "intervals add up to the run");

    let mut source = forwarder(&["null:silent"]);
    let figures = forward(&mut source, &settings("txonly")).figures;
    assert!(figures.ports[0].transmit.packets > 0);
    assert_eq!(figures.ports[0].receive.packets, 0);
}

#[test]
fn every_mode_starts_and_stops_with_all_frames_free() {
    for mode_help in super::MODES {
        let mut forwarder = forwarder(&["ring:0", "ring:1"]);
        let options = ForwardSettings {
            tx_first: 1,
            cores: 2,
            ..settings(mode_help.name)
        };
        let before = forward(&mut forwarder, &options).figures;
        assert!(before.streams.len() == 2, "{}", mode_help.name);
        // Frames held by a mode are free again, or the second run would have fewer frames.
        let second = forward(&mut forwarder, &options).figures;
        assert_eq!(before.primed, second.primed, "{}", mode_help.name);
    }
}

#[test]
fn stopped_run_is_marked() {
    let mut forwarder = forwarder(&["ring:0"]);
    let times = RunTimes {
        duration: Some(Duration::from_secs(600)),
        interval: Duration::from_secs(1),
        flush_quiet: Duration::ZERO,
    };
    let stop = AtomicBool::new(true);
    let run_result = run(&mut forwarder, &settings("io"), &times, &stop, &mut |_| {}).unwrap();
    assert!(run_result.interrupted && !forwarder.is_running());
}

#[test]
fn counters_are_cleared_for_ports_and_streams() {
    let mut forwarder = forwarder(&["ring:0"]);
    let options = ForwardSettings {
        tx_first: 1,
        ..settings("io")
    };
    forwarder.start(&options, Duration::ZERO).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    forwarder.stop().unwrap();
    assert!(forwarder.totals_since_clear()[0].receive.frames > 0);
    forwarder.clear(Some(0));
    assert_eq!(forwarder.totals_since_clear()[0].receive.frames, 0);
    assert!(forwarder.totals()[0].receive.frames > 0);
}

/// Sends and polls in any order and number: the frames that come out are those that went in, once
/// and in order, except those counted as dropped at a full ring.
fn passes(capacity: usize, steps: &[(u8, usize)]) -> Result<(), TestCaseError> {
    let names = [
        format!("ring:in,end=a,rxd={capacity}"),
        format!("ring:in,end=b,rxd={capacity}"),
        format!("ring:out,end=a,rxd={capacity}"),
        format!("ring:out,end=b,rxd={capacity}"),
    ];
    let texts: Vec<&str> = names.iter().map(String::as_str).collect();
    let urls = urls(&texts);
    let memory = FrameRegion::new(memory_plan(&urls)).unwrap();
    let mut ports: Vec<_> = urls
        .iter()
        .map(|url| open(url, &memory).unwrap().remove(0))
        .collect();
    let mut sink = ports.remove(3);
    let tx_port = ports.remove(2);
    let rx_port = ports.remove(1);
    let mut source = ports.remove(0);
    let facts = StreamFacts {
        number: 0,
        address: MacAddress::default(),
        peer: MacAddress::default(),
        frame_bytes: 1518,
        max_held_frames: 100,
        is_discarded: false,
    };
    let mut pool = memory.pool();
    let mut stream = FwdStream::new(rx_port.receive, tx_port.transmit, 32, None, facts);
    let (mut next, mut arrived) = (0u32, Vec::new());
    let mut drain = |pool: &mut FramePool| {
        let mut burst = Burst::new();
        sink.receive.receive(pool, &mut burst);
        for frame in burst.frames() {
            arrived.push(u32::from_be_bytes(memory.bytes(frame).try_into().unwrap()));
        }
        pool.free_all(&mut burst)
    };
    for &(action, count) in steps {
        match action {
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
                Io::new(&NoOptions, &stream.facts.clone(), &ModeSettings::default()).step(
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
    let dropped = stream.transmit.counters().read().total_drops();
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

#[test]
fn residence_times_are_measured() {
    let mut timed = forwarder(&["ring:0"]);
    let options = ForwardSettings {
        tx_first: 1,
        record_residence: true,
        record_bit_rates: true,
        ..settings("macswap")
    };
    let figures = forward(&mut timed, &options).figures;
    let residence = figures.streams[0].residence.unwrap();
    assert!(residence.polls > 0 && residence.min_ns > 0 && residence.min_ns <= residence.mean_ns);
    assert!(residence.mean_ns <= residence.max_ns);
    let rates = figures.ports[0].bit_rates.unwrap();
    let mean_bps = figures.ports[0].transmit.bytes as f64 * 8e9 / figures.duration_ns as f64;
    assert!(
        rates.transmit.peak_l2_bps > mean_bps / 10.0,
        "{rates:?} and {mean_bps}"
    );
    for mode in [
        "rxonly",
        "txonly",
        "flowgen",
        "link:delay=1ms",
        "noisy:delay=1ms",
    ] {
        let options = ForwardSettings {
            record_residence: true,
            ..settings(mode)
        };
        let error = timed.start(&options, Duration::ZERO).unwrap_err();
        assert!(
            error.to_report().to_string().contains("straight through"),
            "{mode}"
        );
    }
}

#[test]
fn full_ring_is_reported_before_forwarding() {
    let mut forwarder = forwarder(&["ring:0,rxd=256", "ring:1,rxd=256"]);
    let options = ForwardSettings {
        tx_first: 1000,
        ..settings("io")
    };
    forwarder.start(&options, Duration::ZERO).unwrap();
    let primed = loop {
        match forwarder.primed() {
            Some(primed) => break primed,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(primed.requested, 64_000);
    assert!((32..4096).contains(&primed.sent), "{primed:?}");
    let figures = forwarder.stop().unwrap().figures;
    assert_eq!(figures.primed, primed.sent);
    assert_eq!(forwarder.primed(), None);
}

#[test]
fn clear_resets_the_display_but_not_the_record() {
    let mut forwarder = forwarder(&["ring:0"]);
    let options = ForwardSettings {
        tx_first: 1,
        ..settings("io")
    };
    forwarder.start(&options, Duration::ZERO).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    let before = forwarder.figures();
    forwarder.clear_streams();
    let results = forwarder.stop().unwrap();
    let cleared_figures = results.since_cleared.unwrap();
    for (totals, since_clear, earlier) in [
        (
            &results.figures.ports[0].receive,
            &cleared_figures.ports[0].receive,
            &before.ports[0].receive,
        ),
        (
            &results.figures.streams[0].receive,
            &cleared_figures.streams[0].receive,
            &before.streams[0].receive,
        ),
    ] {
        assert!(earlier.packets > 0 && totals.packets >= earlier.packets + since_clear.packets);
    }
    assert_eq!(forwarder.figures().ports[0].receive.packets, 0);
}

/// Cycles and residence times are available during a run, and restart after a clear.
#[test]
fn recorded_figures_are_readable_during_a_run() {
    let mut forwarder = forwarder(&["ring:0"]);
    let options = ForwardSettings {
        tx_first: 1,
        record_cycles: true,
        record_residence: true,
        ..settings("io")
    };
    forwarder.start(&options, Duration::ZERO).unwrap();
    let polls = |stream: &linerate_record::forward::ForwardStream| {
        stream.residence.map_or(0, |residence| residence.polls)
    };
    while polls(&forwarder.streams()[0]) < 100 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = forwarder.streams().remove(0);
    assert!(before.cycles_per_packet > Some(0.0));
    forwarder.clear_streams();
    // The times are those of frames since the clear.
    while forwarder.streams()[0].residence.is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let results = forwarder.stop().unwrap();
    let (all, shown) = (
        &results.figures.streams[0],
        &results.since_cleared.unwrap().streams[0],
    );
    assert!(polls(all) >= polls(&before) + polls(shown), "{all:?}");
    let (all, shown) = (all.residence.unwrap(), shown.residence.unwrap());
    assert!(all.min_ns <= shown.min_ns && shown.max_ns <= all.max_ns);
}

#[test]
fn ports_come_and_go_and_keep_their_numbers() {
    let mut forwarder = forwarder(&["ring:0", "ring:1"]);
    let options = ForwardSettings {
        tx_first: 1,
        ..settings("io")
    };
    let url = |text: &str| text.parse::<PortUrl>().unwrap();
    // Larger than the memory allows: the other ports are reopened over a larger one.
    assert_eq!(forwarder.attach(&url("ring:2,mtu=9000")).unwrap(), 2);
    assert_eq!(forwarder.take_reopened(), [0, 1]);
    assert!(forwarder.take_reopened().is_empty());
    assert_eq!(forward(&mut forwarder, &options).figures.ports.len(), 3);
    forwarder.detach(0).unwrap();
    assert_eq!(forwarder.numbers(), [1, 2]);
    let found = forward(&mut forwarder, &options).figures;
    let numbers: Vec<_> = found.ports.iter().map(|port| port.port).collect();
    assert_eq!(numbers, [1, 2]);
    assert!(found.ports.iter().all(|port| port.receive.packets > 0));
    assert!(forwarder.detach(0).is_err() && forwarder.detach(9).is_err());
    // The next port gets the free number.
    assert_eq!(forwarder.attach(&url("null:")).unwrap(), 0);
    assert_eq!(forwarder.urls()[0].to_string(), "null:");
    forwarder.detach(0).unwrap();
    forwarder.detach(1).unwrap();
    let error = forwarder.detach(2).unwrap_err();
    assert!(error.to_report().to_string().contains("last one"));
    // A port that cannot be opened changes nothing.
    assert!(forwarder.attach(&url("packet:none-such")).is_err());
    assert_eq!(forwarder.numbers(), [2]);
    // If the memory grew first, the reopened ports are reported all the same.
    forwarder.take_reopened();
    assert!(
        forwarder
            .attach(&url("packet:none-such,mtu=20000"))
            .is_err()
    );
    assert_eq!(forwarder.take_reopened(), [2]);
    assert_eq!(forwarder.numbers(), [2]);
}

/// Neighbours in the list of ports are a pair, as in testpmd, whatever their numbers.
#[test]
fn port_list_determines_the_pairs() {
    let forwarder = forwarder(&["ring:0", "ring:1", "ring:2", "ring:3"]);
    for (ports, expected) in [
        (&[][..], &[(0, 1), (1, 0), (2, 3), (3, 2)][..]),
        (&[0, 2, 1, 3], &[(0, 2), (2, 0), (1, 3), (3, 1)]),
        (&[3, 0], &[(3, 0), (0, 3)]),
    ] {
        let options = ForwardSettings {
            ports: ports.to_vec(),
            ..settings("io")
        };
        let routes = forwarder.routes(&options).unwrap();
        let pairs: Vec<_> = (routes.iter())
            .map(|route| (route.rx_port, route.tx_port))
            .collect();
        assert_eq!(pairs, expected, "{ports:?}");
    }
}

/// A capture is sent to a port whose received frames are discarded: the run ends with the capture.
/// If a second capture records them, the run does not end.
#[test]
fn end_of_a_capture_ends_a_run_with_discarded_replies() {
    const FRAMES: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    // Frames sent into the ring come back out of it.
    let capture_url = format!("pcap:tx={}", path("in.pcapng"));
    let mut writer = forwarder(&[&capture_url]);
    forward(
        &mut writer,
        &ForwardSettings {
            tx_first: FRAMES / 2,
            burst: 2,
            ..settings("io")
        },
    );
    drop(writer);
    for cores in [1, 2] {
        for (recording, expect_end) in [
            (String::new(), true),
            (format!(",tx={}", path("out.pcapng")), false),
        ] {
            let capture = format!("pcap:rx={}{recording}", path("in.pcapng"));
            let mut forwarder = forwarder(&[&capture, "ring:0"]);
            let options = ForwardSettings {
                cores,
                ..settings("io")
            };
            forwarder.start(&options, Duration::ZERO).unwrap();
            let polls = if expect_end { 30_000 } else { 100 };
            for _ in 0..polls {
                if forwarder.has_ended() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(forwarder.has_ended(), expect_end, "{cores} {capture}");
            let ports = forwarder.stop().unwrap().figures.ports;
            if expect_end {
                assert_eq!(
                    (ports[0].receive.packets, ports[1].transmit.packets),
                    (FRAMES, FRAMES)
                );
            }
        }
    }
}

/// When the memory grows, open ports are reopened. A port that fails is named and can be started
/// later; the others are not affected.
#[test]
fn a_port_that_does_not_come_back_is_named_and_can_be_started() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("frames.pcap");
    // The header of a capture without frames.
    let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1];
    let header: Vec<u8> = header
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    std::fs::write(&file, &header).unwrap();
    let capture = format!("pcap:rx={}", file.display());
    let url = |text: &str| text.parse::<PortUrl>().unwrap();
    let mut forwarder = forwarder(&["ring:0", &capture, "ring:1"]);
    std::fs::remove_file(&file).unwrap();
    let error = forwarder.attach(&url("ring:2,mtu=9000")).unwrap_err();
    let problem = error.to_report();
    assert_eq!(problem.object, "port 1");
    assert!(problem.situation.contains("stopped"), "{problem:?}");
    assert!(problem.next_step.contains("`port start 1`"), "{problem:?}");
    let open = |forwarder: &Forwarder| [0, 1, 2].map(|port| forwarder.is_started(port));
    assert_eq!(open(&forwarder), [true, false, true]);
    assert_eq!(forwarder.numbers(), [0, 1, 2]);
    let options = ForwardSettings {
        tx_first: 1,
        ..settings("io")
    };
    assert_eq!(forward(&mut forwarder, &options).figures.primed, 64);
    // It is retried and reports its error again; the other ports are started.
    forwarder.stop_port(Some(2)).unwrap();
    let error = forwarder.start_port(None).unwrap_err();
    assert!(error.to_report().situation.contains("stopped"), "{error}");
    assert_eq!(open(&forwarder), [true, false, true]);
    std::fs::write(&file, &header).unwrap();
    forwarder.start_port(Some(1)).unwrap();
    assert_eq!(open(&forwarder), [true, true, true]);
    assert_eq!(forwarder.attach(&url("ring:2,mtu=9000")).unwrap(), 3);
}

#[test]
fn closed_ports_are_configured() {
    let mut forwarder = forwarder(&["ring:0", "ring:1"]);
    let error = forwarder.configure(None, "queues", "2").unwrap_err();
    assert!(error.to_report().to_string().contains("open"), "{error}");
    forwarder.stop_port(None).unwrap();
    assert_eq!(forwarder.configure(None, "queues", "4").unwrap(), 2);
    assert_eq!(forwarder.configure(Some(1), "mtu", "9000").unwrap(), 1);
    assert!(forwarder.configure(None, "rxd", "0").is_err());
    forwarder.start_port(None).unwrap();
    let facts = forwarder.port_facts();
    assert_eq!((facts[0].queues, facts[1].queues), (4, 4));
    assert_eq!(
        (facts[0].frame_bytes, facts[1].frame_bytes),
        (Some(1518), Some(9018))
    );
    let options = ForwardSettings {
        tx_first: 1,
        ..settings("io")
    };
    assert_eq!(forward(&mut forwarder, &options).figures.streams.len(), 8);
    assert_eq!(forwarder.queue_totals_since_clear(1).len(), 4);
    assert!(
        forwarder
            .queue_totals_since_clear(1)
            .iter()
            .all(|queue| queue.receive.frames > 0)
    );
    forwarder.clear(Some(1));
    assert!(
        forwarder
            .queue_totals_since_clear(1)
            .iter()
            .all(|queue| queue.receive.frames == 0)
    );
    // Rings have no promiscuous mode.
    assert!(!forwarder.set_promiscuous(0, false).unwrap());
}

#[test]
fn memory_is_as_requested() {
    let open = |slot_bytes, cached_frames| {
        let options = FrameMemoryRequest {
            frames: Some(5000),
            slot_bytes,
            cached_frames,
        };
        Forwarder::open(&urls(&["ring:0"]), options)
    };
    let memory =
        |forwarder: &mut Forwarder| forward(forwarder, &settings("io")).figures.memory.unwrap();
    let small = memory(&mut open(None, None).unwrap());
    let large = memory(&mut open(Some(4096), Some(32)).unwrap());
    assert!(small.slot_bytes < 2048 && large.slot_bytes >= 4096);
    assert!(small.frames >= 5000 && large.frames == small.frames);
    for wrong in [1000, 70_000] {
        assert!(open(Some(wrong), None).is_err(), "{wrong}");
    }
}
