//! Both ends in this process, over loopback: every way a run can go.

use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_measure::{Client, Family, MeasureError, Server, ServerOptions};
use linerate_metric::event::{Event, What};
use linerate_metric::exit;
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol, Sched, UdpOffload, Wait};
use linerate_metric::record::Record;

struct Far {
    port: u16,
    stop: Arc<AtomicBool>,
    events: Arc<Mutex<Vec<Event>>>,
    thread: Option<JoinHandle<Result<(), MeasureError>>>,
}

impl Far {
    fn start(once: bool) -> Self {
        let server = Server::bind(&ServerOptions {
            port: 0,
            address: Some(Ipv4Addr::LOCALHOST.into()),
            interface: None,
            family: Family::Any,
            once,
            grants: Vec::new(),
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
        for bytes in [16, 100, 1472] {
            let mut plan = far.plan(Kind::Throughput, Protocol::Udp);
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
            assert_eq!(summary.out_of_order, Some(0));
            let sender = record.directions[0].streams[0].sender.as_ref().unwrap();
            assert_eq!(sender.datagrams_per_call.is_some(), gso);
        }
    }
    far.end().unwrap();
}

#[test]
fn throughput_flows_under_every_way_of_waiting() {
    let far = Far::start(false);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for wait in ["block", "spin", "poll", "select", "select:50us", "epoll"] {
            let mut plan = far.plan(Kind::Throughput, protocol);
            plan.wait = Some(wait.parse().unwrap());
            plan.streams = 3;
            let record = run(plan);
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
        ] {
            for bytes in [1, 14, 64, 20_000] {
                let mut plan = far.plan(Kind::Latency, protocol);
                plan.payload_bytes = bytes;
                plan.wait = Some(wait.parse().unwrap());
                plan.duration_ns = None;
                plan.round_trips = Some(200);
                plan.interval_ns = Some(10_000_000);
                let record = run(plan);
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
        let began = Instant::now();
        let client = client(plan);
        let (record, failure) = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                stop.store(true, Relaxed);
            });
            client.run(&stop, &mut |_| {}).unwrap()
        });
        assert!(failure.is_none(), "{failure:?}");
        assert!(record.interrupted);
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{:?}",
            began.elapsed()
        );
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
    std::thread::sleep(Duration::from_millis(400));
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
    let deadline = Instant::now() + Duration::from_secs(5);
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
    assert!(matches!(wrong, MeasureError::NoAddress { .. }), "{wrong}");
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
    assert!(matches!(error, MeasureError::Vanished { .. }), "{error}");
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
