//! sockperf, ttcp, and the small services: echo, discard and chargen.

use super::*;

#[test]
fn sockperf_over_udp_in_all_modes() {
    run_sockperf("");
}

#[test]
fn sockperf_over_tcp_in_all_modes() {
    run_sockperf("--tcp");
}

/// Runs sockperf in each of its modes.
fn run_sockperf(tcp: &str) {
    if !is_installed("sockperf", "--version") {
        return;
    }
    // Over UDP its tests end by silence. Over TCP it sends nothing in the first two seconds.
    let timeouts = match tcp {
        "" => Timeouts::short(),
        _ => Timeouts::default(),
    };
    let (_alone, host) = (alone(), InteropServer::with_timeouts(timeouts));
    let args = format!("ping-pong -i 127.0.0.1 -p {} -t 1 {tcp}", host.port);
    let text = run("sockperf", &args);
    let record = host.record();
    assert_eq!(record.kind, RunKind::Latency, "{text}");
    let answered = record.summary.round_trips.unwrap();
    let (_, rest) = text
        .split_once("[Total Run]")
        .unwrap_or_else(|| panic!("{text}"));
    let (_, rest) = rest.split_once("SentMessages=").unwrap();
    let sent: u64 = rest.split(';').next().unwrap().parse().unwrap();
    assert!(!record.interrupted, "its end is no failure: {text}");
    // The response to the last request may arrive after the client has stopped reading.
    assert!(answered.abs_diff(sent) <= 2, "{answered} of {sent}: {text}");

    let args = format!(
        "throughput -i 127.0.0.1 -p {} -t 1 -m 1000 --mps 2000 {tcp}",
        host.port
    );
    let text = run("sockperf", &args);
    let record = host.record();
    assert_eq!(record.kind, RunKind::Throughput, "{text}");
    assert!(
        direction_summary(&record, Direction::Send)
            .bytes_received
            .unwrap()
            > 500_000,
        "{text}"
    );

    let args = format!(
        "under-load -i 127.0.0.1 -p {} -t 1 --mps 2000 {tcp}",
        host.port
    );
    let text = run("sockperf", &args);
    assert!(text.contains("Latency is"), "{text}");
    host.record();
}

#[test]
fn tools_without_an_identification() {
    let (_alone, host) = (
        alone(),
        InteropServer::with_ports(&["echo", "discard", "chargen"]),
    );
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream, UdpSocket};
    let timeout = Some(Duration::from_secs(20));

    // Classic ttcp over TCP is a stream of characters.
    let mut stream = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    let payload: Vec<u8> = (b' '..=b'~').cycle().take(8192).collect();
    for _ in 0..256 {
        stream.write_all(&payload).unwrap();
    }
    drop(stream);
    let record = host.record();
    assert_eq!(record.summary.bytes_received, Some(8192 * 256));
    assert_eq!(record.plan.peer_protocol.as_deref(), Some("ttcp"));
    // Its pattern identifies it. Without that, the payload is plain.
    let mut stream = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    stream.write_all(&[b' '; 100_000]).unwrap();
    drop(stream);
    assert_eq!(host.record().plan.peer_protocol.as_deref(), Some("plain"));

    // Over UDP it has markers; datagrams without any end by silence.
    for (protocol, markers) in [("ttcp", true), ("plain", false)] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", host.port)).unwrap();
        if markers {
            socket.send(&[0; 4]).unwrap();
        }
        for _ in 0..50 {
            socket.send(&payload[..1000]).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        for _ in 0..5 * u32::from(markers) {
            socket.send(&[0; 4]).unwrap();
        }
        let record = host.record();
        assert_eq!(record.plan.peer_protocol.as_deref(), Some(protocol));
        assert_eq!(record.summary.bytes_received, Some(50_000));
        assert_eq!(record.summary.packets_received, Some(50));
        assert_eq!(record.plan.payload_bytes, 1000, "markers are none of it");
        assert_eq!(
            (record.summary.lost, record.summary.loss_fraction),
            (None, None)
        );
        let seconds = record.summary.duration_ns.unwrap() as f64 / 1e9;
        assert!(
            (0.05..0.9).contains(&seconds),
            "silence is not counted: {seconds}"
        );
    }

    let mut echo = TcpStream::connect(("127.0.0.1", host.also[0])).unwrap();
    echo.set_read_timeout(timeout).unwrap();
    echo.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    echo.read_exact(&mut back).unwrap();
    echo.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&back, echo.read(&mut [0; 1]).unwrap()), (b"hello", 0));
    let record = host.record();
    // The bytes are known, the number of requests is not.
    assert_eq!(record.summary.bytes_received, Some(5));
    assert_eq!(
        (record.kind, record.summary.round_trips),
        (RunKind::Throughput, None)
    );

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(timeout).unwrap();
    let mut buffer = [0; 2000];
    for (port, size) in [(host.also[0], 700), (host.also[2], 300)] {
        socket
            .send_to(&payload[..size], ("127.0.0.1", port))
            .unwrap();
        assert_eq!(
            socket.recv(&mut buffer).unwrap(),
            size,
            "no larger than the question"
        );
    }
    assert!(
        buffer[..300].starts_with(b" !\"#"),
        "characters of the first line"
    );
    for _ in 0..2 {
        let record = host.record();
        assert_eq!(record.summary.round_trips, Some(1));
        assert!(
            [300, 700].contains(&record.plan.payload_bytes),
            "{}",
            record.plan.payload_bytes
        );
    }

    let mut discard = TcpStream::connect(("127.0.0.1", host.also[1])).unwrap();
    // Bytes of another protocol have no meaning there.
    discard.write_all(b"HELO nuttcp v6.1.2\n").unwrap();
    drop(discard);
    assert_eq!(host.record().plan.peer_protocol.as_deref(), Some("discard"));

    let mut chargen = TcpStream::connect(("127.0.0.1", host.also[2])).unwrap();
    let mut line = [0; 74];
    chargen.read_exact(&mut line).unwrap();
    assert!(line.ends_with(b"\r\n"));
    drop(chargen);
    assert_eq!(host.record().plan.peer_protocol.as_deref(), Some("chargen"));
}

/// A client may send one probe for a responder, and measure a moment later.
#[test]
fn an_early_probe_does_not_start_the_time() {
    use std::net::UdpSocket;
    let (_alone, host) = (
        alone(),
        InteropServer::with_ports_and_timeouts(&["echo"], Timeouts::short()),
    );
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", host.also[0])).unwrap();
    let request = || {
        socket.send(&[0; 64]).unwrap();
        socket.recv(&mut [0; 100]).unwrap();
    };
    request();
    std::thread::sleep(Duration::from_millis(400));
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1_500) {
        request();
    }
    let elapsed_ns = started.elapsed().as_nanos() as u64;
    let record = host.record();
    let covered = record.summary.duration_ns.unwrap();
    let trips: Option<u64> = record.intervals.iter().map(|it| it.packets).sum();
    assert_eq!(trips, record.summary.round_trips);
    // The server receives the first request after its time was read here, and the last one before.
    // With the probe, the time would be longer.
    let times = format!("{covered} of {elapsed_ns} ns");
    assert!((elapsed_ns / 2..=elapsed_ns).contains(&covered), "{times}");
    // The intervals cover the same time.
    let ends = record.intervals.iter().map(|it| it.end_ns).max().unwrap();
    assert!(ends.abs_diff(covered) < 10_000_000, "{ends}, {times}");
}

/// Requests without a response are no round trips, in any interval.
#[test]
fn requests_without_responses_are_no_round_trips() {
    use std::net::UdpSocket;
    const REMOTE: &str = "198.51.100.7";
    let Some(lab) = lab() else {
        return;
    };
    let _alone = alone();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let ip = |args: &str| {
        let done = Command::new("ip").args(args.split(' ')).status();
        assert!(done.unwrap().success(), "{args}");
    };
    let back = format!("route add {REMOTE} via {}", client.address());
    server.run(|| ip(&back)).unwrap();
    let options = ServerOptions {
        port: 0,
        interop: InteropOptions {
            extra_ports: vec!["7".parse().unwrap()],
            ..InteropOptions::default()
        },
        ..ServerOptions::default()
    };
    let host = server.run(|| InteropServer::of(&options).unwrap()).unwrap();
    let to = (server.address(), 7);
    let request = || {
        ip(&format!("addr add {REMOTE}/32 dev lo"));
        let socket = UdpSocket::bind((REMOTE, 0)).unwrap();
        for _ in 0..3 {
            socket.send_to(&[0; 64], to).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
    };
    client.run(request).unwrap();
    assert!(host.take_rejection("").is_some());
    let interval = host.interval().unwrap();
    assert_eq!((interval.bytes, interval.packets), (192, Some(0)));
}
