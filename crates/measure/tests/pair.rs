//! Both ends in this process, over loopback: every way a run can go.

use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_measure::{Client, Family, Grant, MeasureError, Server, ServerOptions};
use linerate_metric::event::{Event, What};
use linerate_metric::exit;
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol, Sched, UdpOffload, Wait};
use linerate_metric::record::Record;
use linerate_metric::round_trip::Attachment;

struct Far {
    port: u16,
    stop: Arc<AtomicBool>,
    events: Arc<Mutex<Vec<Event>>>,
    thread: Option<JoinHandle<Result<(), MeasureError>>>,
}

impl Far {
    fn start(once: bool) -> Self {
        Self::granting(once, Vec::new())
    }

    fn granting(once: bool, grants: Vec<Grant>) -> Self {
        let server = Server::bind(&ServerOptions {
            port: 0,
            address: Some(Ipv4Addr::LOCALHOST.into()),
            interface: None,
            family: Family::Any,
            once,
            grants,
            ..ServerOptions::default()
        })
        .unwrap();
        let port = server.port();
        let stop = Arc::new(AtomicBool::new(false));
        let events = Arc::new(Mutex::new(Vec::new()));
        let (flag, log) = (Arc::clone(&stop), Arc::clone(&events));
        let emit = Arc::new(move |event| log.lock().unwrap().push(event));
        let thread = std::thread::spawn(move || server.run(flag, emit));
        Self {
            port,
            stop,
            events,
            thread: Some(thread),
        }
    }

    fn plan(&self, kind: Kind, protocol: Protocol) -> Plan {
        let mut plan = Plan::new(kind, protocol, "127.0.0.1");
        plan.port = self.port;
        plan.duration_ns = Some(300_000_000);
        plan.interval_ns = Some(100_000_000);
        plan
    }

    fn end(mut self) -> Result<(), MeasureError> {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn client(plan: Plan) -> Client {
    Client {
        plan,
        family: Family::Any,
        retry: Duration::ZERO,
        key: None,
    }
}

fn run(plan: Plan) -> Record {
    let stop = AtomicBool::new(false);
    let (record, failure) = client(plan).run(&stop, &mut |_| {}).unwrap();
    assert!(failure.is_none(), "{failure:?}");
    let read = Record::from_json(&record.to_json()).unwrap();
    assert_eq!(read, record, "a record round-trips exactly");
    record
}

/// `None`, with a word about it, where the kernel does not let this user have what is asked for.
fn run_if_possible(plan: Plan) -> Option<Record> {
    let stop = AtomicBool::new(false);
    match client(plan).run(&stop, &mut |_| {}) {
        Ok((record, failure)) => {
            assert!(failure.is_none(), "{failure:?}");
            Some(record)
        }
        Err(error) if error.exit_code() == exit::MISSING => {
            println!("not to be had here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn io_uring_moves_whatever_the_others_do() {
    let far = Far::start(false);
    for (protocol, streams, bytes, offload, wait) in [
        (Protocol::Tcp, 1, 1 << 20, false, "io-uring"),
        (Protocol::Tcp, 1, 100, false, "io-uring/block"),
        (Protocol::Tcp, 5, 70_000, false, "block/io-uring"),
        (Protocol::Udp, 1, 1_472, true, "io-uring"),
        (Protocol::Udp, 1, 16, false, "io-uring"),
        (Protocol::Udp, 4, 1_000, true, "io-uring"),
        (Protocol::Udp, 1, 9_000, false, "io-uring/spin"),
    ] {
        for direction in [Direction::Send, Direction::Receive] {
            for calls in [false, true] {
                let mut plan = far.plan(Kind::Throughput, protocol);
                plan.duration_ns = Some(150_000_000);
                plan.directions = vec![direction];
                plan.streams = streams;
                plan.payload_bytes = bytes;
                plan.verify = true;
                plan.calls = calls;
                plan.udp_offload = UdpOffload {
                    gso: Some(offload),
                    gro: Some(offload),
                    asked: true,
                };
                plan.wait = Some(wait.parse().unwrap());
                let context = format!("{protocol} {streams} {bytes} {wait} {direction} {calls}");
                let Some(record) = run_if_possible(plan) else {
                    return;
                };
                let summary = &record.summary;
                assert_eq!(summary.mismatched, Some(0), "{context}: {summary:?}");
                assert!(summary.bytes_received > Some(0), "{context}");
                match protocol {
                    Protocol::Tcp => {
                        assert_eq!(summary.bytes_sent, summary.bytes_received, "{context}");
                    }
                    Protocol::Udp => {
                        let sent = summary.packets_sent.unwrap();
                        let received = summary.packets_received.unwrap();
                        assert_eq!(sent, received + summary.lost.unwrap(), "{context}");
                    }
                }
                if calls {
                    let by_ring = [&record.calls, &record.far_calls];
                    let named = by_ring.iter().any(|c| c.contains_key("io_uring_enter"));
                    assert!(named, "{context}");
                }
            }
        }
    }
    far.end().unwrap();
}

#[test]
fn buffers_are_forced_only_where_that_is_granted() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Throughput, Protocol::Tcp);
    plan.window_bytes = Some(100 << 20);
    let stop = AtomicBool::new(false);
    match client(plan).run(&stop, &mut |_| {}) {
        // Only where the system's limit allows as much to everybody.
        Ok((record, _)) => assert!(!record.plan.forced_buffers.far),
        Err(error) => {
            assert_eq!(error.exit_code(), exit::MISSING, "{error}");
            println!("{error}: {}", error.problem());
        }
    }
    far.end().unwrap();
    let far = Far::granting(false, vec![Grant::Buffers]);
    let mut plan = far.plan(Kind::Throughput, Protocol::Tcp);
    plan.window_bytes = Some(100 << 20);
    if let Some(record) = run_if_possible(plan)
        && record.plan.forced_buffers.near
    {
        assert!(record.plan.forced_buffers.far);
        let stream = &record.directions[0].streams[0];
        let sender = stream.sender.as_ref().unwrap().send_buffer_bytes;
        let receiver = stream.receiver.as_ref().unwrap().receive_buffer_bytes;
        assert!(sender >= Some(100 << 20) && receiver >= Some(100 << 20));
    }
    // More than the server has for all its tests together.
    let mut plan = far.plan(Kind::Throughput, Protocol::Tcp);
    plan.window_bytes = Some(900 << 20);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    println!("{error}: {}", error.problem());
    far.end().unwrap();
}

#[test]
fn tcp_both_ways_counts_the_same_bytes_at_both_ends() {
    let far = Far::start(false);
    for directions in [
        vec![Direction::Send],
        vec![Direction::Receive],
        vec![Direction::Send, Direction::Receive],
    ] {
        let mut plan = far.plan(Kind::Throughput, Protocol::Tcp);
        plan.directions.clone_from(&directions);
        plan.streams = 2;
        let record = run(plan);
        assert_eq!(record.directions.len(), directions.len());
        for direction in &record.directions {
            let summary = &direction.summary;
            assert_eq!(summary.bytes_sent, summary.bytes_received, "{summary:?}");
            assert!(summary.goodput_bps.unwrap() > 1e6);
            assert_eq!(direction.streams.len(), 2);
            assert!(
                direction
                    .streams
                    .iter()
                    .all(|s| s.sender.is_some() && s.receiver.is_some())
            );
        }
        assert!(
            record.intervals.len() >= 2 * directions.len(),
            "{:?}",
            record.intervals
        );
        let sum: u64 = record.intervals.iter().map(|interval| interval.bytes).sum();
        assert_eq!(Some(sum), record.summary.bytes_received);
        assert_eq!(record.hosts.len(), 2);
        assert_eq!(record.summary.cpu.len(), 2);
    }
    far.end().unwrap();
}

#[test]
fn udp_accounts_for_every_datagram() {
    let far = Far::start(false);
    for (direction, wait) in [
        (Direction::Send, Wait::Block),
        (Direction::Receive, Wait::Block),
        (Direction::Send, Wait::Spin),
        (Direction::Receive, Wait::Spin),
    ] {
        let mut plan = far.plan(Kind::Throughput, Protocol::Udp);
        plan.directions = vec![direction];
        plan.payload_bytes = 1000;
        plan.rate_bps = Some(40_000_000);
        plan.wait = Some(Ends::both(wait));
        let record = run(plan);
        let summary = &record.summary;
        let (sent, received) = (
            summary.packets_sent.unwrap(),
            summary.packets_received.unwrap(),
        );
        assert_eq!(sent, received + summary.lost.unwrap(), "{summary:?}");
        assert_eq!(summary.bytes_received.unwrap(), received * 1000);
        // 40 Mb/s for 0.3 s are 1500 datagrams; a busy machine may take away some of that time.
        assert!((500..=1_600).contains(&sent), "{sent}");
        assert!(summary.ipdv_ns.is_some());
        let placed: u64 = record.losses.iter().map(|loss| loss.packets).sum();
        assert_eq!(placed, summary.lost.unwrap());
    }
    far.end().unwrap();
}

#[test]
fn udp_in_bursts_counts_datagrams() {
    let far = Far::start(false);
    for (gso, gro, wait) in [
        (true, true, "spin"),
        (true, true, "block"),
        (true, false, "spin"),
        (false, true, "epoll"),
        (false, false, "poll"),
    ] {
        // Small ones meet the kernel's limit of datagrams in one send, not that of its bytes.
        for bytes in [1, 16, 64, 100, 1472] {
            let mut plan = far.plan(Kind::Throughput, Protocol::Udp);
            plan.duration_ns = Some(150_000_000);
            plan.payload_bytes = bytes;
            plan.udp_offload = UdpOffload {
                gso: Some(gso),
                gro: Some(gro),
                asked: true,
            };
            plan.wait = Some(wait.parse().unwrap());
            let record = run(plan);
            let summary = &record.summary;
            let (sent, received) = (
                summary.packets_sent.unwrap(),
                summary.packets_received.unwrap(),
            );
            assert_eq!(
                sent,
                received + summary.lost.unwrap(),
                "{gso} {gro} {wait} {bytes}"
            );
            assert_eq!(summary.bytes_received.unwrap(), received * bytes);
            assert_eq!(summary.bytes_sent.unwrap(), sent * bytes);
            assert_eq!(summary.out_of_order, (bytes >= 16).then_some(0));
            let sender = record.directions[0].streams[0].sender.as_ref().unwrap();
            assert_eq!(sender.datagrams_per_call.is_some(), gso);
        }
    }
    far.end().unwrap();
}

#[test]
fn udp_in_batches_counts_datagrams() {
    let far = Far::start(false);
    for (batch, wait) in [
        (1, "block"),
        (7, "spin"),
        (64, "block/spin"),
        (1024, "epoll"),
    ] {
        for bytes in [1, 16, 1472] {
            for direction in [Direction::Send, Direction::Receive] {
                let mut plan = far.plan(Kind::Throughput, Protocol::Udp);
                plan.duration_ns = Some(100_000_000);
                plan.directions = vec![direction];
                plan.payload_bytes = bytes;
                plan.batch = Some(batch);
                plan.wait = Some(wait.parse().unwrap());
                let record = run(plan);
                let summary = &record.summary;
                let context = format!("{batch} {wait} {bytes} {direction}: {summary:?}");
                let (sent, received) = (
                    summary.packets_sent.unwrap(),
                    summary.packets_received.unwrap(),
                );
                assert_eq!(sent, received + summary.lost.unwrap(), "{context}");
                assert!(received > 0, "{context}");
                assert_eq!(
                    summary.bytes_received.unwrap(),
                    received * bytes,
                    "{context}"
                );
                assert_eq!(summary.bytes_sent.unwrap(), sent * bytes, "{context}");
                assert_eq!(record.plan.udp_offload.gso, Some(false));
                assert_eq!(record.plan.udp_offload.gro, Some(false));
            }
        }
    }
    far.end().unwrap();
}

#[test]
fn calls_are_timed_at_both_ends() {
    let far = Far::start(false);
    for (kind, protocol, wait) in [
        (Kind::Throughput, Protocol::Tcp, "block"),
        (Kind::Throughput, Protocol::Tcp, "spin"),
        (Kind::Throughput, Protocol::Udp, "block"),
        (Kind::Latency, Protocol::Udp, "block"),
        (Kind::Latency, Protocol::Udp, "spin"),
        (Kind::Latency, Protocol::Tcp, "poll"),
        (Kind::Latency, Protocol::Udp, "select:50us"),
        (Kind::Latency, Protocol::Udp, "epoll"),
    ] {
        let mut plan = far.plan(kind, protocol);
        plan.calls = true;
        plan.wait = Some(wait.parse().unwrap());
        let began = Instant::now();
        let record = run(plan);
        let took = began.elapsed().as_nanos() as u64;
        let context = format!("{kind} {protocol} {wait}");
        assert_eq!(record.call_clocks.len(), 2, "{context}");
        assert!(
            !record.calls.is_empty() && !record.far_calls.is_empty(),
            "{context}"
        );
        for calls in [&record.calls, &record.far_calls] {
            for (name, call) in calls {
                for (found, times) in call.kinds() {
                    assert_eq!(times.times.count, times.histogram.count);
                    // One thread at each end: its calls do not overlap.
                    assert!(
                        times.total_ns <= took,
                        "{context}: {name} {found} {} of {took}",
                        times.total_ns
                    );
                }
            }
        }
        let count = |calls: &linerate_metric::calls::Calls, name: &str| -> u64 {
            let call = calls
                .get(name)
                .unwrap_or_else(|| panic!("{context}: no {name}"));
            call.kinds().map(|(_, times)| times.times.count).sum()
        };
        let waits = match wait {
            "poll" => Some("poll"),
            "select:50us" => Some("select"),
            "epoll" => Some("epoll_wait"),
            _ => None,
        };
        if let Some(name) = waits {
            assert!(count(&record.far_calls, name) > 0, "{context}");
        }
        if kind == Kind::Latency {
            let trips = record.summary.round_trips.unwrap();
            for calls in [&record.calls, &record.far_calls] {
                for name in ["sendto", "recvfrom"] {
                    assert!(count(calls, name) >= trips, "{context}: {name}");
                }
                assert!(calls["sendto"].room.is_some(), "{context}");
            }
            let ready = record.far_calls["recvfrom"].ready.as_ref();
            let waited = record.far_calls["recvfrom"].waited.as_ref();
            assert!(ready.or(waited).is_some(), "{context}");
        }
    }
    // Nobody asked: nothing is there.
    let record = run(far.plan(Kind::Throughput, Protocol::Tcp));
    assert!(record.calls.is_empty() && record.call_clocks.is_empty());
    far.end().unwrap();
}

#[test]
fn throughput_flows_under_every_way_of_waiting() {
    let far = Far::start(false);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for wait in [
            "block",
            "spin",
            "poll",
            "select",
            "select:50us",
            "epoll",
            "io-uring",
            "busy-poll",
        ] {
            let mut plan = far.plan(Kind::Throughput, protocol);
            plan.wait = Some(wait.parse().unwrap());
            plan.streams = 3;
            let Some(record) = run_if_possible(plan) else {
                continue;
            };
            assert!(
                record.summary.bytes_received.unwrap() > 0,
                "{protocol} {wait}"
            );
        }
    }
    far.end().unwrap();
}

#[test]
fn the_default_datagram_fills_a_packet() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Throughput, Protocol::Udp);
    plan.rate_bps = Some(10_000_000);
    let record = run(plan);
    // Loopback's MTU is larger than a datagram can be.
    assert_eq!(record.plan.payload_bytes, 65_507);
    far.end().unwrap();
}

#[test]
fn an_amount_arrives_whole() {
    let far = Far::start(false);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let mut plan = far.plan(Kind::Throughput, protocol);
        plan.duration_ns = None;
        plan.amount_bytes = Some(3_000_000);
        plan.streams = 3;
        if protocol == Protocol::Udp {
            plan.payload_bytes = 1000;
            plan.rate_bps = Some(100_000_000);
        }
        let record = run(plan);
        assert_eq!(record.summary.bytes_sent, Some(3_000_000), "{protocol}");
        let received = record.summary.bytes_received.unwrap();
        let lost = record.summary.lost.unwrap_or(0) * 1000;
        assert_eq!(received + lost, 3_000_000, "{protocol}");
    }
    far.end().unwrap();
}

#[test]
fn round_trips_are_answered_right() {
    let far = Far::start(false);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for wait in [
            "block",
            "spin",
            "block/spin",
            "poll",
            "select",
            "select:50us",
            "epoll",
            "io-uring",
            "busy-poll:20us",
        ] {
            for bytes in [1, 14, 64, 20_000] {
                let mut plan = far.plan(Kind::Latency, protocol);
                plan.payload_bytes = bytes;
                plan.wait = Some(wait.parse().unwrap());
                plan.duration_ns = None;
                plan.round_trips = Some(200);
                plan.interval_ns = Some(10_000_000);
                let Some(record) = run_if_possible(plan) else {
                    continue;
                };
                let summary = &record.summary;
                let context = format!("{protocol} {wait} {bytes}: {summary:?}");
                assert_eq!(summary.round_trips, Some(200), "{context}");
                assert_eq!(summary.mismatched, Some(0), "{context}");
                assert_eq!(summary.lost, Some(0), "{context}");
                let rtt = summary.rtt_ns.unwrap();
                assert!(
                    rtt.min > 500 && rtt.min <= rtt.p50 && rtt.p50 <= rtt.max,
                    "{context}"
                );
                assert_eq!(record.histograms["rtt_ns"].count, 200);
                let counted: u64 = record.intervals.iter().filter_map(|i| i.packets).sum();
                assert_eq!(counted, 200, "{context}");
                let timed: u64 = (record.intervals.iter())
                    .filter_map(|interval| Some(interval.rtt_ns?.count))
                    .sum();
                assert_eq!(timed, 200, "{context}");
            }
        }
    }
    far.end().unwrap();
}

#[test]
fn omitted_time_is_not_counted() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Throughput, Protocol::Tcp);
    plan.omit_ns = 150_000_000;
    let record = run(plan);
    let duration = record.summary.duration_ns.unwrap();
    assert!((100_000_000..600_000_000).contains(&duration), "{duration}");
    assert!(record.intervals.iter().any(|interval| interval.omitted));
    let counted: u64 = (record.intervals.iter())
        .filter(|interval| !interval.omitted)
        .map(|interval| interval.bytes)
        .sum();
    let received = record.summary.bytes_received.unwrap();
    // The base is read a moment after the interval ends.
    assert!(
        counted.abs_diff(received) <= received / 5,
        "{counted} {received}"
    );
    far.end().unwrap();
}

#[test]
fn many_tests_at_a_time() {
    let far = Far::start(false);
    let plans: Vec<_> = (0..6)
        .map(|number| {
            let protocol = if number % 2 == 0 {
                Protocol::Udp
            } else {
                Protocol::Tcp
            };
            let mut plan = far.plan(Kind::Latency, protocol);
            plan.streams = 2;
            plan
        })
        .collect();
    let threads: Vec<_> = plans
        .into_iter()
        .map(|plan| std::thread::spawn(move || run(plan)))
        .collect();
    for thread in threads {
        let record = thread.join().unwrap();
        assert!(record.summary.round_trips.unwrap() > 100);
        assert_eq!(record.summary.mismatched, Some(0));
    }
    let events = far.events.lock().unwrap().clone();
    let finished = events
        .iter()
        .filter(|e| matches!(e.what, What::Finished { .. }));
    assert_eq!(finished.count(), 6);
    far.end().unwrap();
}

#[test]
fn an_interrupted_run_keeps_what_it_has() {
    let far = Far::start(false);
    for (kind, protocol) in [
        (Kind::Throughput, Protocol::Tcp),
        (Kind::Throughput, Protocol::Udp),
        (Kind::Latency, Protocol::Udp),
        (Kind::Latency, Protocol::Tcp),
    ] {
        let mut plan = far.plan(kind, protocol);
        plan.duration_ns = Some(60_000_000_000);
        let stop = AtomicBool::new(false);
        let started = AtomicBool::new(false);
        let client = client(plan);
        let ran = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !started.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                std::thread::sleep(Duration::from_millis(500));
                stop.store(true, Relaxed);
            });
            let ran = client.run(&stop, &mut |what| {
                if matches!(what, What::Started { .. }) {
                    started.store(true, Relaxed);
                }
            });
            // However it ended, nobody waits for it any more.
            started.store(true, Relaxed);
            ran
        });
        let (record, failure) = ran.unwrap();
        assert!(failure.is_none(), "{failure:?}");
        assert!(record.interrupted);
        assert!(record.summary.duration_ns < Some(50_000_000_000));
        let moved = record.summary.bytes_received.unwrap();
        assert!(moved > 0, "{kind} {protocol}");
    }
    far.end().unwrap();
}

#[test]
fn a_server_that_ends_ends_its_tests_in_order() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Throughput, Protocol::Tcp);
    plan.duration_ns = Some(60_000_000_000);
    let thread = std::thread::spawn(move || {
        let stop = AtomicBool::new(false);
        client(plan).run(&stop, &mut |_| {}).unwrap()
    });
    let is_started = |event: &Event| matches!(event.what, What::Started { .. });
    while !far.events.lock().unwrap().iter().any(is_started) {
        assert!(!thread.is_finished(), "it ended before it began");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    far.end().unwrap();
    let (record, _) = thread.join().unwrap();
    assert!(record.interrupted);
    assert!(record.summary.bytes_received.unwrap() > 0);
}

#[test]
fn one_test_and_no_more() {
    let far = Far::start(true);
    let record = run(far.plan(Kind::Throughput, Protocol::Tcp));
    assert!(record.summary.goodput_bps.is_some());
    let deadline = Instant::now() + Duration::from_secs(90);
    while !far.thread.as_ref().unwrap().is_finished() {
        assert!(Instant::now() < deadline, "the server goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    far.end().unwrap();
}

#[test]
fn nobody_there_is_told_apart() {
    let stop = AtomicBool::new(false);
    let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "127.0.0.1");
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    plan.port = free.local_addr().unwrap().port();
    drop(free);
    let refused = client(plan.clone()).run(&stop, &mut |_| {}).unwrap_err();
    assert!(matches!(refused, MeasureError::Refused { .. }), "{refused}");
    assert_eq!(refused.exit_code(), exit::PEER);

    plan.host = "no-such-host.invalid".to_owned();
    let unknown = client(plan.clone()).run(&stop, &mut |_| {}).unwrap_err();
    assert!(
        matches!(unknown, MeasureError::UnknownName { .. }),
        "{unknown}"
    );

    plan.host = "127.0.0.1".to_owned();
    let mut wrong = client(plan);
    wrong.family = Family::V6;
    let wrong = wrong.run(&stop, &mut |_| {}).unwrap_err();
    assert!(matches!(wrong, MeasureError::OtherFamily { .. }), "{wrong}");
}

#[test]
fn retrying_waits_for_the_server() {
    let stop = AtomicBool::new(false);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        let server = Server::bind(&ServerOptions {
            port,
            address: Some(Ipv4Addr::LOCALHOST.into()),
            interface: None,
            family: Family::Any,
            once: true,
            grants: Vec::new(),
            ..ServerOptions::default()
        });
        server.unwrap().run(Arc::default(), Arc::new(|_| {}))
    });
    let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "localhost");
    plan.port = port;
    plan.duration_ns = None;
    plan.round_trips = Some(10);
    let mut client = client(plan);
    client.retry = Duration::from_secs(10);
    let (record, _) = client.run(&stop, &mut |_| {}).unwrap();
    assert_eq!(record.summary.round_trips, Some(10));
    late.join().unwrap().unwrap();
}

#[test]
fn something_else_on_the_port_is_told() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(200));
    });
    let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "127.0.0.1");
    plan.port = port;
    let stop = AtomicBool::new(false);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert!(matches!(error, MeasureError::Protocol { .. }), "{error}");
    other.join().unwrap();
}

#[test]
fn strangers_do_not_disturb() {
    let far = Far::start(false);
    let address = ("127.0.0.1", far.port);
    let silent: Vec<_> = (0..50)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let mut rude = TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut rude, &[0xff; 4096]).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(address).unwrap();
    for _ in 0..100 {
        udp.send(b"\x01lr\xC0\xFFdat0123456789abcdef").unwrap();
        udp.send(&[7; 1000]).unwrap();
    }
    let mut plan = far.plan(Kind::Latency, Protocol::Udp);
    plan.duration_ns = None;
    plan.round_trips = Some(500);
    assert_eq!(run(plan).summary.lost, Some(0));
    drop(silent);
    far.end().unwrap();
}

#[test]
fn a_taken_port_is_told() {
    let far = Far::start(false);
    let error = Server::bind(&ServerOptions {
        port: far.port,
        address: Some(Ipv4Addr::LOCALHOST.into()),
        interface: None,
        family: Family::Any,
        once: false,
        grants: Vec::new(),
        ..ServerOptions::default()
    })
    .err()
    .unwrap();
    assert!(matches!(error, MeasureError::PortTaken { .. }), "{error}");
    assert_eq!(error.exit_code(), exit::FAILED);
    far.end().unwrap();
}

#[test]
fn an_unknown_congestion_control_is_refused_before_any_traffic() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Throughput, Protocol::Tcp);
    plan.congestion_control = Some("nonesuch".to_owned());
    plan.congestion_control_asked = true;
    let stop = AtomicBool::new(false);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), exit::MISSING, "{error}");
    far.end().unwrap();
}

#[test]
fn a_peer_that_dies_is_noticed() {
    // A server that accepts, grants nothing, and closes.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "127.0.0.1");
    plan.port = port;
    let stop = AtomicBool::new(false);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert!(matches!(error, MeasureError::Foreign { .. }), "{error}");
    assert_eq!(error.exit_code(), exit::PEER);
    other.join().unwrap();
}

#[test]
fn idle_states_are_held_only_where_they_may_be() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Latency, Protocol::Udp);
    plan.duration_ns = None;
    plan.round_trips = Some(100);
    plan.hold_latency = true;
    let stop = AtomicBool::new(false);
    // Both ends share this machine, so this end's hold is enough and the server is not asked.
    match client(plan).run(&stop, &mut |_| {}) {
        Ok((record, _)) => assert!(record.plan.hold_latency),
        Err(error) => {
            println!("no /dev/cpu_dma_latency for this user: {error}");
            assert_eq!(error.exit_code(), exit::MISSING);
        }
    }
    far.end().unwrap();
}

#[test]
fn sockets_get_what_was_asked_for() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Throughput, Protocol::Tcp);
    plan.socket.send_buffer_bytes = Some(50_000);
    plan.socket.receive_buffer_bytes = Some(60_000);
    plan.socket.mss_bytes = Some(1_000);
    plan.socket.tos = Some(0xb8);
    plan.socket.no_delay = true;
    plan.socket.receive_low_water_bytes = Some(10_000);
    let record = run(plan);
    let stream = &record.directions[0].streams[0];
    let (sender, receiver) = (
        stream.sender.as_ref().unwrap(),
        stream.receiver.as_ref().unwrap(),
    );
    // The kernel doubles what is asked for, for its own overhead (socket(7)).
    assert_eq!(sender.send_buffer_bytes, Some(100_000));
    assert_eq!(receiver.receive_buffer_bytes, Some(120_000));
    let mss = sender.tcp.as_ref().unwrap().mss_bytes;
    assert!((900..=1_000).contains(&mss), "{mss}");
    far.end().unwrap();
}

#[test]
fn scheduling_needs_a_grant_at_the_far_end() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Latency, Protocol::Udp);
    plan.sched = Ends::both(Sched::Fifo(1));
    let stop = AtomicBool::new(false);
    let error = client(plan.clone()).run(&stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), exit::MISSING, "{error}");
    plan.sched = Ends::both(Sched::Nice(5));
    assert!(run(plan).summary.round_trips.unwrap() > 0);
    far.end().unwrap();
}

#[test]
fn short_intervals_add_up_to_the_whole() {
    let far = Far::start(false);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let mut plan = far.plan(Kind::Throughput, protocol);
        plan.interval_ns = Some(10_000_000);
        plan.duration_ns = Some(1_000_000_000);
        plan.directions = vec![Direction::Send, Direction::Receive];
        let record = run(plan);
        for direction in &record.directions {
            let intervals = record.intervals.iter();
            let of_it = intervals.filter(|interval| interval.direction == direction.direction);
            let sum: u64 = of_it.clone().map(|interval| interval.bytes).sum();
            assert_eq!(Some(sum), direction.summary.bytes_received, "{protocol}");
            let sent: u64 = of_it
                .clone()
                .filter_map(|interval| interval.bytes_sent)
                .sum();
            assert_eq!(Some(sent), direction.summary.bytes_sent, "{protocol}");
            let numbers: Vec<u64> = of_it.map(|interval| interval.number).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            assert!(numbers.last().unwrap().abs_diff(99) <= 1, "{numbers:?}");
        }
    }
    far.end().unwrap();
}

#[test]
fn a_paced_flow_is_as_fast_as_asked_and_no_faster() {
    let far = Far::start(false);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        // One datagram every half second: the window is the run, not the time between payloads.
        let mut plan = far.plan(Kind::Throughput, protocol);
        plan.payload_bytes = 1000;
        plan.rate_bps = Some(16_000);
        plan.duration_ns = Some(1_200_000_000);
        let record = run(plan);
        assert_eq!(record.summary.bytes_received, Some(3_000), "{protocol}");
        let seconds = record.summary.duration_ns.unwrap() as f64 / 1e9;
        assert!((1.19..1.6).contains(&seconds), "{protocol}: {seconds}");
    }
    far.end().unwrap();
}

#[test]
fn slow_answers_are_listed_with_their_causes() {
    let far = Far::start(false);
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let mut plan = far.plan(Kind::Latency, protocol);
        plan.duration_ns = None;
        plan.round_trips = Some(3_000);
        plan.streams = 2;
        // Every answer is above it.
        plan.round_trip.limit_ns = Some(1);
        let record = run(plan);
        assert_eq!(record.summary.slow, Some(3_000));
        assert_eq!(record.slow.len(), 1_000, "the list is bounded");
        assert!(record.slow.is_sorted_by_key(|slow| slow.at_ns));
        for slow in &record.slow {
            assert!(slow.time_ns > 1 && slow.number < 1_500, "{slow:?}");
            assert!(!slow.cause.is_empty());
        }
        assert_eq!(record.summary.mismatched, Some(0));
    }
    // Without a limit nothing is said of it, and without a comparison nothing of that.
    let mut plan = far.plan(Kind::Latency, Protocol::Udp);
    plan.round_trip.verify = false;
    let record = run(plan);
    assert_eq!((record.summary.slow, record.slow.len()), (None, 0));
    assert_eq!(record.summary.mismatched, None);
    assert_eq!(record.summary.duplicates, Some(0));
    far.end().unwrap();
}

#[test]
fn a_socket_for_each_question_and_its_steps() {
    let far = Far::start(false);
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        for wait in ["block", "spin", "poll", "epoll", "select"] {
            let mut plan = far.plan(Kind::Latency, protocol);
            plan.duration_ns = None;
            plan.round_trips = Some(100);
            plan.streams = 2;
            plan.wait = Some(wait.parse().unwrap());
            plan.round_trip.attachment = Attachment::Reopened;
            let record = run(plan);
            let summary = &record.summary;
            let context = format!("{protocol} {wait}: {summary:?} {:?}", record.validity);
            assert_eq!(summary.round_trips, Some(100), "{context}");
            assert_eq!(
                (summary.lost, summary.mismatched),
                (Some(0), Some(0)),
                "{context}"
            );
            let whole = summary.whole_ns.unwrap();
            assert!(whole.p50 > summary.rtt_ns.unwrap().p50, "{context}");
            for step in ["open_ns", "connect_ns", "send_ns", "receive_ns", "close_ns"] {
                assert_eq!(record.histograms[step].count, 100, "{step} {context}");
            }
            let binds = record.histograms.contains_key("bind_ns");
            assert_eq!(binds, protocol == Protocol::Udp, "{context}");
            let connections = summary.connections_per_second.is_some();
            assert_eq!(connections, protocol == Protocol::Tcp, "{context}");
        }
    }
    far.end().unwrap();
}

#[test]
fn hundreds_of_sleeping_threads_come_to_their_end() {
    // 300 threads on the processors of a busy machine: the far end may get to its results after our patience.
    let ran = (0..4).find_map(|_| {
        let far = Far::start(true);
        let mut plan = far.plan(Kind::Latency, Protocol::Tcp);
        plan.streams = 150;
        plan.payload_bytes = 64;
        plan.wait = Some(Ends::both(Wait::Block));
        plan.interval_ns = None;
        plan.round_trip.attachment = Attachment::Reopened;
        plan.round_trip.connections = true;
        plan.answer_timeout_ns = Some(8_000_000_000);
        let ran = client(plan).run(&AtomicBool::new(false), &mut |_| {});
        let (record, failure) = ran.unwrap();
        far.end().unwrap();
        match failure {
            None => Some(record),
            Some(MeasureError::Vanished { .. }) => None,
            Some(other) => panic!("{other}"),
        }
    });
    let record = ran.expect("one of four is heard in time");
    let summary = &record.summary;
    assert!(summary.round_trips.unwrap() > 150, "{summary:?}");
    assert_eq!((summary.lost, summary.mismatched), (Some(0), Some(0)));
}

#[test]
fn unconnected_sockets_ask_too() {
    let far = Far::start(false);
    for wait in ["block", "spin", "poll", "epoll"] {
        for bytes in [14, 20_000] {
            let mut plan = far.plan(Kind::Latency, Protocol::Udp);
            plan.duration_ns = None;
            plan.round_trips = Some(100);
            plan.payload_bytes = bytes;
            plan.wait = Some(wait.parse().unwrap());
            plan.round_trip.attachment = Attachment::Unconnected;
            let record = run(plan);
            assert_eq!(record.summary.round_trips, Some(100), "{wait}");
            assert_eq!(record.summary.mismatched, Some(0), "{wait}");
            let asking = record.directions[0].streams[0].sender.as_ref().unwrap();
            assert_eq!(asking.remote, None, "it is connected to nobody");
        }
    }
    far.end().unwrap();
}

#[test]
fn a_schedule_is_kept_whatever_the_answers_do() {
    let far = Far::start(false);
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        for (wait, bytes) in [
            (None, 64),
            (Some("spin/block"), 14),
            (Some("poll/epoll"), 9_000),
        ] {
            let mut plan = far.plan(Kind::Latency, protocol);
            plan.payload_bytes = bytes;
            plan.streams = 2;
            plan.wait = wait.map(|wait| wait.parse().unwrap());
            plan.round_trip.rate_per_second = Some(1_000);
            plan.round_trip.outstanding = 32;
            let plan_ns = plan.duration_ns.unwrap();
            let record = run(plan);
            let summary = &record.summary;
            let context = format!("{protocol} {wait:?} {bytes}: {summary:?}");
            let asked = summary.round_trips.unwrap() + summary.lost.unwrap();
            // 1,000 a second on each of two flows, for as long as the run was to be, to the question.
            let due = plan_ns * 2_000 / 1_000_000_000;
            assert_eq!(asked + summary.unsent.unwrap(), due, "{context}");
            assert_eq!(summary.mismatched, Some(0), "{context}");
            let (intended, actual) = (summary.rtt_intended_ns.unwrap(), summary.rtt_ns.unwrap());
            assert!(intended.count >= actual.count, "{context}");
            assert!(intended.mean >= actual.mean, "{context}");
        }
        // As many as may be open, without a schedule.
        let mut plan = far.plan(Kind::Latency, protocol);
        plan.duration_ns = None;
        plan.round_trips = Some(500);
        plan.round_trip.outstanding = 8;
        let record = run(plan);
        assert_eq!(record.summary.round_trips, Some(500), "{protocol}");
        assert_eq!(record.summary.mismatched, Some(0), "{protocol}");
        assert_eq!(record.summary.rtt_intended_ns, None);
    }
    far.end().unwrap();
}

#[test]
fn questions_to_a_group_are_answered() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Latency, Protocol::Udp);
    plan.duration_ns = None;
    plan.round_trips = Some(50);
    plan.round_trip.group = Some("239.77.1.2".parse().unwrap());
    let stop = AtomicBool::new(false);
    match client(plan.clone()).run(&stop, &mut |_| {}) {
        Ok((record, failure)) => {
            assert!(failure.is_none(), "{failure:?}");
            assert_eq!(record.summary.round_trips, Some(50));
            assert_eq!(record.summary.mismatched, Some(0));
        }
        Err(error) => println!("needs multicast on the loopback interface: {error}"),
    }
    plan.round_trip.group = Some("ff12::77".parse().unwrap());
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), exit::MISSING, "{error}");
    far.end().unwrap();
}

#[test]
fn processors_are_kept_busy_only_where_that_is_granted() {
    let far = Far::start(false);
    let mut plan = far.plan(Kind::Latency, Protocol::Udp);
    plan.round_trip.burn = Ends { near: 1, far: 0 };
    assert!(run(plan.clone()).summary.round_trips.unwrap() > 0);
    plan.round_trip.burn = Ends { near: 0, far: 1 };
    let stop = AtomicBool::new(false);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), exit::MISSING, "{error}");
    far.end().unwrap();
}
