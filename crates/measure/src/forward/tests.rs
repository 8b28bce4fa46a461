//! Tests of the forwarder over rings, with real threads.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_metric::forward::{Idle, PortTopology};
use linerate_port::{Burst, Memory, Pool, PortUrl, Receive, Transmit, memory_plan, open};
use proptest::prelude::*;

use super::mode::io::Io;
use super::settings::Settings;
use super::stream::{Facts, ForwardMode, NoPlan, Stream};
use super::{Forwarder, MemoryWish, Times, Told, record, run};
use crate::MeasureError;
use crate::forward::frame::Mac;

fn urls(texts: &[&str]) -> Vec<PortUrl> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn forwarder(texts: &[&str]) -> Forwarder {
    Forwarder::open(&urls(texts), MemoryWish::default()).unwrap()
}

fn settings(mode: &str) -> Settings {
    Settings {
        mode: mode.parse().unwrap(),
        // Yield: there may be more threads than processors.
        idle: Idle::Yield,
        ..Settings::default()
    }
}

fn forward(forwarder: &mut Forwarder, settings: &Settings) -> super::Outcome {
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
fn trouble_waits_for_no_interval() {
    let file = std::env::temp_dir().join(format!("linerate-damaged-{}", std::process::id()));
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // Snapshot length 65,535 bytes, Ethernet; one record of 60 bytes whose data is missing.
    bytes.extend([0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0]);
    std::fs::write(&file, bytes).unwrap();
    // The other port delivers frames without end.
    let names = [&format!("pcap:rx={}", file.display()), "null:"];
    let mut forwarder = forwarder(&names);
    let times = Times {
        duration: Some(Duration::from_secs(60)),
        interval: Duration::from_secs(60),
        quiet: Duration::ZERO,
    };
    let (stop, settings) = (AtomicBool::new(false), settings("io"));
    let ran = run(&mut forwarder, &settings, &times, &stop, &mut |_| {}).unwrap();
    std::fs::remove_file(&file).unwrap();
    let lasted = ran.figures.duration_ns;
    assert!(lasted < 30_000_000_000, "{lasted} ns");
    // The record contains the error with its remedy.
    let record = record(&urls(&names), &settings, &times, ran);
    let doubts = record.validity.iter();
    let mut doubts = doubts.filter(|doubt| doubt.doubt == "port-stopped");
    let why = &doubts.next().expect("it stopped").why;
    assert!(
        why.contains("damaged") && why.contains("give rx= a whole"),
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
            // Frames left in the rings are exactly those put into circulation before.
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
    // Replies leave by the port of the request.
    let places = forwarder.places(&settings("icmpecho")).unwrap();
    assert!(places.iter().all(|place| place.rx_port == place.tx_port));
    // At most one thread per stream is started.
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
        // Frames held by a mode are free again, or the second run would have fewer frames.
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
        from: [0, 0],
        to: [1, 0],
        number: 0,
        address: Mac::default(),
        peer: Mac::default(),
        frame_bytes: 1518,
        descriptors: 512,
        share: 100,
        is_aimless: false,
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

#[test]
fn a_queue_is_held_to_its_rate() {
    let mut forwarder = forwarder(&["null:size=100"]);
    let rate = |l2_bps| super::QueueRate {
        port: 0,
        queue: 0,
        l2_bps,
    };
    // 100 Mbit/s of 100 bytes: 125 000 frames per second, of many millions possible.
    let wish = Settings {
        rates: vec![rate(100_000_000)],
        ..settings("txonly")
    };
    let found = forward(&mut forwarder, &wish).figures;
    let bits = found.ports[0].transmit.bytes as f64 * 8.0;
    let rate_found = bits * 1e9 / found.duration_ns as f64;
    // At most the limit plus catch-up and one burst; less if the thread had to wait for a
    // processor.
    let (seconds, burst) = (found.duration_ns as f64 / 1e9, 32.0 * 800.0);
    let most = 100e6 * (1.0 + 0.002 / seconds) + burst / seconds;
    assert!(
        rate_found > 0.0 && rate_found <= most,
        "{rate_found} of {most}"
    );
    let unknown = Settings {
        rates: vec![super::QueueRate {
            queue: 4,
            ..rate(1)
        }],
        ..settings("io")
    };
    let refused = forwarder.start(&unknown, Duration::ZERO).unwrap_err();
    assert!(
        refused.problem().to_string().contains("has 1 queue"),
        "{refused}"
    );
}

/// Returns the maximum bits that a queue may have sent since a time at this rate, with the catch-up
/// and the frame that crosses the end.
fn most_bits(since: std::time::Instant, l2_bps: u64, frame_bytes: u64) -> f64 {
    (since.elapsed().as_secs_f64() + 0.001) * l2_bps as f64 + frame_bytes as f64 * 8.0
}

#[test]
fn frames_wait_for_their_time_at_a_queue_that_is_held() {
    let mut forwarder = forwarder(&["ring:0", "ring:1"]);
    let l2_bps = 1_000_000;
    let wish = Settings {
        rates: vec![super::QueueRate {
            port: 1,
            queue: 0,
            l2_bps,
        }],
        tx_first: 3,
        ..settings("io")
    };
    let began = std::time::Instant::now();
    let found = forward(&mut forwarder, &wish).figures;
    let port = &found.ports[1];
    // One frame of 64 bytes per 0.5 ms, in bursts of 32: nearly all of them must wait.
    let sent = port.transmit.bytes as f64 * 8.0;
    assert!(
        sent > 0.0 && sent <= most_bits(began, l2_bps, 64),
        "{port:?}"
    );
    let dropped = |port: &linerate_metric::forward::ForwardPort| port.transmit.dropped;
    assert_eq!(found.ports.iter().map(dropped).sum::<u64>(), 0);
    assert_eq!(found.primed, 2 * 96);
    let stream = found.streams.iter().find(|stream| stream.tx_port == 1);
    let stream = stream.unwrap();
    let waiting = stream.counts["held-to-the-rate-at-the-stop"];
    assert_eq!(
        stream.transmit.packets + waiting,
        stream.receive.packets + 96
    );
}

/// First frames rejected by a full ring are not paced: the circulating frames keep the rate.
#[test]
fn first_frames_that_find_no_room_leave_the_rate_as_it_is() {
    let mut forwarder = forwarder(&["ring:0"]);
    let l2_bps = 1_000_000;
    let wish = Settings {
        rates: vec![super::QueueRate {
            port: 0,
            queue: 0,
            l2_bps,
        }],
        tx_first: 1000,
        ..settings("io")
    };
    let began = std::time::Instant::now();
    let found = forward(&mut forwarder, &wish).figures;
    let sent = found.ports[0].transmit.bytes as f64 * 8.0;
    assert!(sent <= most_bits(began, l2_bps, 64), "{sent}");
    // As many as the ring of the rate limit has descriptors, plus those that left meanwhile.
    assert!((1024..1100).contains(&found.primed), "{}", found.primed);
    // The frames rejected in priming, and frames that arrived at the full ring since.
    assert!(found.ports[0].transmit.dropped > 0);
}

#[test]
fn frames_are_described_as_they_pass() {
    for (verbose, received, sent) in [(1, true, false), (2, false, true), (3, true, true)] {
        let mut forwarder = forwarder(&["ring:0"]);
        let wish = Settings {
            verbose: super::Verbose(verbose),
            tx_first: 1,
            ..settings("io")
        };
        forwarder.start(&wish, Duration::ZERO).unwrap();
        // More bursts than the description channel holds, also on a busy host.
        while forwarder.totals()[0].receive.frames < 100 * 32 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let found = forwarder.stop().unwrap();
        let said = found.described.join("\n");
        assert_eq!(
            said.contains("port 0/queue 0: received 32 packets"),
            received,
            "{said}"
        );
        assert_eq!(
            said.contains("port 0/queue 0: sent 32 packets"),
            sent,
            "{said}"
        );
        // The forwarding thread does not wait for the reader: skipped descriptions are counted.
        assert!(said.contains("packets skipped"), "{said}");
        assert!(found.figures.primed == 32 && found.figures.ports[0].receive.packets > 32);
    }
}

#[test]
fn times_in_the_forwarder_are_found() {
    let mut timed = forwarder(&["ring:0"]);
    let wish = Settings {
        tx_first: 1,
        record_residence: true,
        record_bit_rates: true,
        ..settings("macswap")
    };
    let found = forward(&mut timed, &wish).figures;
    let times = found.streams[0].residence.unwrap();
    assert!(times.polls > 0 && times.min_ns > 0 && times.min_ns <= times.mean_ns);
    assert!(times.mean_ns <= times.max_ns);
    let rates = found.ports[0].bit_rates.unwrap();
    let whole = found.ports[0].transmit.bytes as f64 * 8e9 / found.duration_ns as f64;
    assert!(
        rates.transmit.peak_l2_bps > whole / 10.0,
        "{rates:?} and {whole}"
    );
    for mode in [
        "rxonly",
        "txonly",
        "flowgen",
        "link:delay=1ms",
        "noisy:delay=1ms",
    ] {
        let wish = Settings {
            record_residence: true,
            ..settings(mode)
        };
        let refused = timed.start(&wish, Duration::ZERO).unwrap_err();
        assert!(
            refused.problem().to_string().contains("straight through"),
            "{mode}"
        );
    }
}

#[test]
fn a_full_ring_is_told_before_anybody_forwards() {
    let mut forwarder = forwarder(&["ring:0,rxd=256", "ring:1,rxd=256"]);
    let wish = Settings {
        tx_first: 1000,
        ..settings("io")
    };
    forwarder.start(&wish, Duration::ZERO).unwrap();
    let primed = loop {
        match forwarder.primed() {
            Some(primed) => break primed,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(primed.wanted, 64_000);
    assert!((32..4096).contains(&primed.sent), "{primed:?}");
    let found = forwarder.stop().unwrap().figures;
    assert_eq!(found.primed, primed.sent);
    assert_eq!(forwarder.primed(), None);
}

#[test]
fn who_clears_sees_zeros_and_the_record_all() {
    let mut forwarder = forwarder(&["ring:0"]);
    let wish = Settings {
        tx_first: 1,
        ..settings("io")
    };
    forwarder.start(&wish, Duration::ZERO).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    let before = forwarder.figures();
    forwarder.clear_streams();
    let outcome = forwarder.stop().unwrap();
    let shown = outcome.since_cleared.unwrap();
    for (all, since, early) in [
        (
            &outcome.figures.ports[0].receive,
            &shown.ports[0].receive,
            &before.ports[0].receive,
        ),
        (
            &outcome.figures.streams[0].receive,
            &shown.streams[0].receive,
            &before.streams[0].receive,
        ),
    ] {
        assert!(early.packets > 0 && all.packets >= early.packets + since.packets);
    }
    assert_eq!(forwarder.figures().ports[0].receive.packets, 0);
}

/// Burst sizes, cycles and residence times are available during a run, and restart after a clear.
#[test]
fn what_is_recorded_is_known_meanwhile() {
    let mut forwarder = forwarder(&["ring:0"]);
    let wish = Settings {
        tx_first: 1,
        record_bursts: true,
        record_cycles: true,
        record_residence: true,
        ..settings("io")
    };
    forwarder.start(&wish, Duration::ZERO).unwrap();
    let polls =
        |stream: &linerate_metric::forward::ForwardStream| stream.bursts.iter().sum::<u64>();
    while forwarder.streams().iter().all(|stream| polls(stream) < 100) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = forwarder.streams().remove(0);
    assert!(before.cycles_per_packet > Some(0.0) && before.residence.is_some());
    forwarder.clear_streams();
    // The times are those of frames since the clear.
    while forwarder.streams()[0].residence.is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let outcome = forwarder.stop().unwrap();
    let (all, shown) = (
        &outcome.figures.streams[0],
        &outcome.since_cleared.unwrap().streams[0],
    );
    assert!(polls(all) >= polls(&before) + polls(shown), "{all:?}");
    assert!(polls(shown) < polls(all));
    let (all, shown) = (all.residence.unwrap(), shown.residence.unwrap());
    assert!(shown.polls < all.polls, "{shown:?} {all:?}");
    assert!(all.min_ns <= shown.min_ns && shown.max_ns <= all.max_ns);
}

#[test]
fn ports_come_and_go_and_keep_their_numbers() {
    let mut forwarder = forwarder(&["ring:0", "ring:1"]);
    let wish = Settings {
        tx_first: 1,
        ..settings("io")
    };
    let url = |text: &str| text.parse::<PortUrl>().unwrap();
    // Larger than the memory allows: the other ports are reopened over a larger one.
    assert_eq!(forwarder.attach(&url("ring:2,mtu=9000")).unwrap(), 2);
    assert_eq!(forwarder.take_reopened(), [0, 1]);
    assert!(forwarder.take_reopened().is_empty());
    assert_eq!(forward(&mut forwarder, &wish).figures.ports.len(), 3);
    forwarder.detach(0).unwrap();
    assert_eq!(forwarder.numbers(), [1, 2]);
    let found = forward(&mut forwarder, &wish).figures;
    let numbers: Vec<_> = found.ports.iter().map(|port| port.port).collect();
    assert_eq!(numbers, [1, 2]);
    assert!(found.ports.iter().all(|port| port.receive.packets > 0));
    assert!(forwarder.detach(0).is_err() && forwarder.detach(9).is_err());
    // The next port gets the free number.
    assert_eq!(forwarder.attach(&url("null:")).unwrap(), 0);
    assert_eq!(forwarder.urls()[0].to_string(), "null:");
    forwarder.detach(0).unwrap();
    forwarder.detach(1).unwrap();
    let refused = forwarder.detach(2).unwrap_err();
    assert!(refused.problem().to_string().contains("last one"));
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
fn a_list_of_ports_says_who_is_paired() {
    let forwarder = forwarder(&["ring:0", "ring:1", "ring:2", "ring:3"]);
    for (ports, want) in [
        (&[][..], &[(0, 1), (1, 0), (2, 3), (3, 2)][..]),
        (&[0, 2, 1, 3], &[(0, 2), (2, 0), (1, 3), (3, 1)]),
        (&[3, 0], &[(3, 0), (0, 3)]),
    ] {
        let wish = Settings {
            ports: ports.to_vec(),
            ..settings("io")
        };
        let places = forwarder.places(&wish).unwrap();
        let pairs: Vec<_> = (places.iter())
            .map(|place| (place.rx_port, place.tx_port))
            .collect();
        assert_eq!(pairs, want, "{ports:?}");
    }
}

/// A capture is sent to a port whose received frames are discarded: the run ends with the capture.
/// If a second capture records them, the run does not end.
#[test]
fn a_file_at_its_end_ends_a_run_whose_answers_go_nowhere() {
    const FRAMES: u64 = 100;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    // Frames sent into the ring come back out of it.
    let made = format!("pcap:tx={}", path("in.pcapng"));
    let mut forwarder_of = forwarder(&[&made]);
    forward(
        &mut forwarder_of,
        &Settings {
            tx_first: FRAMES / 2,
            burst: 2,
            ..settings("io")
        },
    );
    drop(forwarder_of);
    for cores in [1, 2] {
        for (kept, ends) in [
            (String::new(), true),
            (format!(",tx={}", path("out.pcapng")), false),
        ] {
            let capture = format!("pcap:rx={}{kept}", path("in.pcapng"));
            let mut forwarder = forwarder(&[&capture, "ring:0"]);
            let wish = Settings {
                cores,
                ..settings("io")
            };
            forwarder.start(&wish, Duration::ZERO).unwrap();
            let patience = if ends { 30_000 } else { 100 };
            for _ in 0..patience {
                if forwarder.has_ended() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(forwarder.has_ended(), ends, "{cores} {capture}");
            let ports = forwarder.stop().unwrap().figures.ports;
            if ends {
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
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("frames.pcap");
    // The header of a capture without frames.
    let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1];
    let header: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&file, &header).unwrap();
    let capture = format!("pcap:rx={}", file.display());
    let url = |text: &str| text.parse::<PortUrl>().unwrap();
    let mut forwarder = forwarder(&["ring:0", &capture, "ring:1"]);
    std::fs::remove_file(&file).unwrap();
    let refused = forwarder.attach(&url("ring:2,mtu=9000")).unwrap_err();
    let problem = refused.problem();
    assert_eq!(problem.object, "port 1");
    assert!(problem.situation.contains("stopped"), "{problem:?}");
    assert!(problem.next_step.contains("`port start 1`"), "{problem:?}");
    let open = |forwarder: &Forwarder| [0, 1, 2].map(|port| forwarder.is_started(port));
    assert_eq!(open(&forwarder), [true, false, true]);
    assert_eq!(forwarder.numbers(), [0, 1, 2]);
    let wish = Settings {
        tx_first: 1,
        ..settings("io")
    };
    assert_eq!(forward(&mut forwarder, &wish).figures.primed, 64);
    // It is retried and reports its error again; the other ports are started.
    forwarder.stop_port(Some(2)).unwrap();
    let refused = forwarder.start_port(None).unwrap_err();
    assert!(refused.problem().situation.contains("stopped"), "{refused}");
    assert_eq!(open(&forwarder), [true, false, true]);
    std::fs::write(&file, &header).unwrap();
    forwarder.start_port(Some(1)).unwrap();
    assert_eq!(open(&forwarder), [true, true, true]);
    assert_eq!(forwarder.attach(&url("ring:2,mtu=9000")).unwrap(), 3);
}

#[test]
fn closed_ports_are_configured() {
    let mut forwarder = forwarder(&["ring:0", "ring:1"]);
    let refused = forwarder.configure(None, "queues", "2").unwrap_err();
    assert!(refused.problem().to_string().contains("open"), "{refused}");
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
    let wish = Settings {
        tx_first: 1,
        ..settings("io")
    };
    assert_eq!(forward(&mut forwarder, &wish).figures.streams.len(), 8);
    assert_eq!(forwarder.queues_shown(1).len(), 4);
    assert!(
        forwarder
            .queues_shown(1)
            .iter()
            .all(|queue| queue.receive.frames > 0)
    );
    forwarder.clear(Some(1));
    assert!(
        forwarder
            .queues_shown(1)
            .iter()
            .all(|queue| queue.receive.frames == 0)
    );
    // Rings have no promiscuous mode.
    assert!(!forwarder.set_promiscuous(0, false).unwrap());
}

#[test]
fn the_memory_is_as_wished() {
    let open = |slot_bytes, cached_frames| {
        let wish = MemoryWish {
            frames: Some(5000),
            slot_bytes,
            cached_frames,
        };
        Forwarder::open(&urls(&["ring:0"]), wish)
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
