//! Peers that are silent, slow, confused, killed or stopped, during a measurement of another
//! client.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::third_party::{InteropServer, free_port};
use linerate_interop::run_client;
use linerate_protocol::iperf2::datagram::HEADER_BYTES;
use linerate_protocol::iperf2::{Iperf2Direction, Iperf2Settings};
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_record::record::Record;
use linerate_server::options::InteropOptions;
use linerate_server::timeouts::Timeouts;
use linerate_session::client::Client;
use linerate_session::dial::AddressFamily;
use linerate_session::error::SessionError;

/// Memory that so many connections may add to this process, at both ends: the bound is 64 MiB of
/// pending connections and 128 tests of unvalidated clients.
const MEMORY_BYTES: u64 = 256 << 20;

/// Serialises the tests: memory is the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Measurement at a fixed rate, during which something else happens.
struct BackgroundRun(JoinHandle<Record>);

impl BackgroundRun {
    fn start(port: u16, seconds: u64) -> Self {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "127.0.0.1");
        plan.port = port;
        plan.duration_ns = Some(seconds * 1_000_000_000);
        plan.rate_bps = Some(50_000_000);
        Self(std::thread::spawn(move || {
            let client = Client {
                plan,
                family: AddressFamily::Any,
                retry_timeout: Duration::ZERO,
                key: None,
            };
            let (record, failure) =
                run_client(&client, None, &AtomicBool::new(false), &mut |_| {}).unwrap();
            assert!(failure.is_none(), "{failure:?}");
            record
        }))
    }

    /// Checks that its result is undisturbed.
    fn check(self) {
        let record = self.0.join().unwrap();
        let rate = record.summary.goodput_bps.unwrap();
        // A busy machine may make it a little late; a disturbance would halve it.
        assert!((40e6..60e6).contains(&rate), "{rate}");
        assert!(!record.interrupted);
    }
}

/// Opens many connections.
fn crowd(port: u16, count: usize) -> Vec<TcpStream> {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut all = Vec::new();
    for _ in 0..count {
        match TcpStream::connect_timeout(&to, Duration::from_secs(10)) {
            Ok(stream) => all.push(stream),
            Err(error) if error.raw_os_error() == Some(24) => {
                println!("only {}: the limit of open files", all.len());
                break;
            }
            Err(error) => panic!("connection {}: {error}", all.len()),
        }
    }
    all
}

/// Returns the number of connections that this process may have at both ends.
fn many() -> usize {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let hard: usize = line
        .split_whitespace()
        .nth(4)
        .unwrap()
        .parse()
        .unwrap_or(1 << 20);
    // Both ends are in this process, and the server keeps half of the descriptors for tests.
    10_000.min(hard / 4)
}

/// Checks that an ordinary client is served now.
fn serves(host: &InteropServer) {
    let mut stream = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    // The header of iperf2's client, and some payload.
    stream.write_all(&iperf2_header()).unwrap();
    stream.write_all(&[b'1'; 100_000]).unwrap();
    // The server acknowledges the header: unread bytes would make the close a reset, and discard
    // what the server has not read.
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    loop {
        let record = host.record();
        if record.plan.peer_protocol.as_deref() == Some("iperf2") {
            assert_eq!(record.summary.bytes_received, Some(100_060));
            return;
        }
    }
}

fn iperf2_header() -> Vec<u8> {
    let mut header = vec![0; 60];
    for (at, byte) in [
        (0, 0x4001_0078_u32),
        (4, 1),
        (8, 5001),
        (20, 100_000),
        (36, 0x0002_0001),
        (40, 0x0008_0003),
    ] {
        header[at..at + 4].copy_from_slice(&byte.to_be_bytes());
    }
    header
}

#[test]
fn ten_thousand_silent_connections() {
    let (_alone, host) = (alone(), InteropServer::start());
    let before = resident();
    let background = BackgroundRun::start(host.port, 3);
    let silent = crowd(host.port, many());
    serves(&host);
    background.check();
    let grown = resident().saturating_sub(before);
    assert!(
        grown < MEMORY_BYTES,
        "{grown} B for {} connections",
        silent.len()
    );
}

/// Pause between two bytes of a slow client: a tenth of the time for a request.
const SLOW_CLIENT_PAUSE: Duration = Duration::from_millis(200);

/// Total time of slow clients: for the first bytes of a protocol, and then for a request. A busy
/// machine makes it longer.
const SLOW_CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn clients_that_send_single_bytes() {
    let alone = alone();
    let host = InteropServer::with_ports_and_timeouts(&["iperf3", "nuttcp"], Timeouts::short());
    let before = resident();
    let background = BackgroundRun::start(host.port, 4);
    // The first bytes of a protocol that never arrives; on a dedicated port, bytes of none.
    let mut slow: Vec<_> = crowd(host.port, many().min(1_000))
        .into_iter()
        .map(|stream| (stream, &b"HEL"[..]))
        .collect();
    for &port in &host.also {
        slow.extend(
            crowd(port, 20)
                .into_iter()
                .map(|stream| (stream, &b"?"[..])),
        );
    }
    for (stream, _) in &slow {
        stream.set_nonblocking(true).unwrap();
    }
    let started = Instant::now();
    for step in 0.. {
        slow.retain_mut(|(stream, pattern)| {
            let byte = &pattern[step % pattern.len()..][..1];
            // The server sends them nothing: only the end can be read.
            let open = |result: std::io::Result<usize>| match result {
                Ok(bytes) => bytes > 0,
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            };
            let is_open = step >= pattern.len() && pattern.len() > 1 || open(stream.write(byte));
            let mut buffer = [0; 512];
            is_open && open(stream.read(&mut buffer))
        });
        if slow.is_empty() {
            break;
        }
        if step == 3 {
            serves(&host);
        }
        assert!(
            started.elapsed() < SLOW_CLIENT_TIMEOUT,
            "{} are left",
            slow.len()
        );
        std::thread::sleep(SLOW_CLIENT_PAUSE);
    }
    background.check();
    assert!(resident().saturating_sub(before) < MEMORY_BYTES);
    drop(alone);
}

#[test]
fn clients_in_a_handshake_do_not_block_the_server_stop() {
    let alone = alone();
    let host = InteropServer::with_ports(&["iperf3", "nuttcp", "iperf2"]);
    let mut streams: Vec<_> = (host.also.iter())
        .flat_map(|&port| crowd(port, 5))
        .collect();
    for stream in &mut streams {
        stream.write_all(b"?").unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    let started = Instant::now();
    drop(host);
    let elapsed = started.elapsed();
    // Well below the timeouts.
    assert!(elapsed < Duration::from_secs(8), "{elapsed:?}");
    drop(alone);
}

#[test]
fn a_pending_connect_does_not_block_the_server_stop() {
    let alone = alone();
    let host = InteropServer::start();
    // A full accept queue: the kernel answers no more connections.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
        .unwrap();
    full.listen(0).unwrap();
    let to = full.local_addr().unwrap().as_socket().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&to, Duration::from_millis(300)) {
        waiting.push(stream);
    }
    let mut client = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    client.write_all(b"HELO nuttcp v6.1.2\n").unwrap();
    let mut hello = [0; 19];
    client.read_exact(&mut hello).unwrap();
    let port = to.port();
    let parameters = format!(
        "buflen = 65536, nbuf = 2147483647, win = 0, nstream = 1, rate = 4294967295, port = {port}, \
         trans = 0, braindead = 0, timeout = 9.000000, udp = 0, vers = 6.1.2, interval = 0.000000, \
         reverse = 0, format = 2048, traceroute = 0, irate = 0, thirdparty = _NULL_ , multicast = 0 , \
         datamss = 0 , tos = 0 , nbuf_bytes = 0 , rate_pps = 0 , nodelay = 0\n"
    );
    client.write_all(parameters.as_bytes()).unwrap();
    client.read_exact(&mut [0; 3]).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let started = Instant::now();
    drop(host);
    let elapsed = started.elapsed();
    // Its connection timeout is 5 s.
    assert!(elapsed < Duration::from_millis(4_300), "{elapsed:?}");
    drop((alone, full, waiting));
}

#[test]
fn ctrl_c_works_while_an_iperf3_server_is_silent() {
    let _alone = alone();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The server requests flows, and never replies to their hellos.
    let mute = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    let server = std::thread::spawn(move || {
        let (mut control, _) = listener.accept().unwrap();
        control.read_exact(&mut [0; 37]).unwrap();
        control.write_all(&[9]).unwrap();
        let mut length = [0; 4];
        control.read_exact(&mut length).unwrap();
        let mut params = vec![0; u32::from_be_bytes(length) as usize];
        control.read_exact(&mut params).unwrap();
        control.write_all(&[10]).unwrap();
        let mut received = Vec::new();
        control.read_to_end(&mut received).unwrap();
        received
    });
    let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "127.0.0.1");
    (plan.port, plan.peer_protocol, plan.streams) = (port, Some("iperf3".to_owned()), 4);
    plan.duration_ns = Some(1_000_000_000);
    let client = Client {
        plan,
        family: AddressFamily::Any,
        retry_timeout: Duration::ZERO,
        key: None,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let finger = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        flag.store(true, Relaxed);
    });
    // Without the check for a stop, the error would be the server's silence.
    let error = run_client(&client, None, &stop, &mut |_| {}).unwrap_err();
    assert!(matches!(error, SessionError::Interrupted), "{error}");
    finger.join().unwrap();
    // The client announces that it stops.
    assert_eq!(server.join().unwrap(), [12]);
    drop(mute);
}

#[test]
fn clients_that_send_random_bytes() {
    let (_alone, host) = (alone(), InteropServer::start());
    let before = resident();
    let background = BackgroundRun::start(host.port, 4);
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |bytes: &mut [u8]| {
        for byte in bytes {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *byte = seed as u8;
        }
    };
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut buffer = [0; 1000];
    let mut crowd = crowd(host.port, many().min(2_000));
    for (number, stream) in crowd.iter_mut().enumerate() {
        random(&mut buffer);
        let beginnings: [&[u8]; 6] = [
            b"",
            b"HELO nuttcp v6.1.2\nbuflen = ",
            b"\x40\x01\x00\x78",
            b"\x00\x80\x00\x00",
            b"abcdefghijklmnopqrstuvwxyz234567abcd\x00",
            b"\x00\x00\x00\x00\x00\x00\x00\x01\x00\x03",
        ];
        let beginning = beginnings[number % beginnings.len()];
        buffer[..beginning.len()].copy_from_slice(beginning);
        let size = 1 + number % buffer.len();
        let _ = stream.write(&buffer[..size]);
        let _ = datagrams.send_to(&buffer[..size], ("127.0.0.1", host.port));
    }
    for stream in crowd.iter().step_by(2) {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    drop(crowd);
    serves(&host);
    background.check();
    assert!(resident().saturating_sub(before) < MEMORY_BYTES);
}

fn start(program: &str, args: &str) -> Option<Child> {
    let child = Command::new(program)
        .args(args.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if child.is_err() {
        println!("skipped: {program} is not installed");
    }
    child.ok()
}

/// Sends a signal to all clients at once.
fn signal(clients: &[(Child, &str, &String)], name: &str) {
    let ids = clients.iter().map(|(child, ..)| child.id().to_string());
    let status = Command::new("kill").arg(name).args(ids).status();
    assert!(status.unwrap().success());
}

#[test]
fn a_killed_client_of_each_protocol() {
    // sockperf sends nothing in the first two seconds of a connection.
    let timeouts = Timeouts {
        classify: Timeouts::DEFAULT.classify,
        ..Timeouts::short()
    };
    let (_alone, host) = (alone(), InteropServer::with_timeouts(timeouts));
    let port = host.port;
    let clients = [
        ("iperf3", format!("-c 127.0.0.1 -p {port} -t 600 -b 20M")),
        ("iperf3", format!("-c 127.0.0.1 -p {port} -t 600 -b 20M -R")),
        ("iperf3", format!("-c 127.0.0.1 -p {port} -t 600 -u -b 2M")),
        // Where the server sends over UDP, only ICMP errors and the control connection show the
        // end.
        (
            "iperf3",
            format!("-c 127.0.0.1 -p {port} -t 600 -u -b 2M -R"),
        ),
        (
            "iperf3",
            format!("-c 127.0.0.1 -p {port} -t 600 -u -b 2M --bidir"),
        ),
        ("iperf", format!("-c 127.0.0.1 -p {port} -t 600 -b 20M")),
        (
            "iperf",
            format!("-c 127.0.0.1 -p {port} -t 600 -u -b 2M -R"),
        ),
        ("iperf", format!("-c 127.0.0.1 -p {port} -t 600 -b 20M -R")),
        ("iperf", format!("-c 127.0.0.1 -p {port} -t 600 -u -b 2M")),
        (
            "nuttcp",
            format!("-P {port} -p {} -T 600 -R 20m 127.0.0.1", free_port()),
        ),
        (
            "nuttcp",
            format!("-P {port} -p {} -r -T 600 -R 20m 127.0.0.1", free_port()),
        ),
        (
            "nuttcp",
            format!("-P {port} -p {} -u -T 600 -R 2m 127.0.0.1", free_port()),
        ),
        (
            "nuttcp",
            format!("-P {port} -p {} -u -r -T 600 -R 2m 127.0.0.1", free_port()),
        ),
        (
            "iperf",
            format!("-c 127.0.0.1 -p {port} -t 600 --bounceback"),
        ),
        (
            "iperf",
            format!("-c 127.0.0.1 -p {port} -t 600 --full-duplex -b 20M"),
        ),
        // sockperf allocates the samples of all messages at its start: gigabytes for ten minutes.
        (
            "sockperf",
            format!("ping-pong -i 127.0.0.1 -p {port} -t 60 --tcp"),
        ),
        (
            "sockperf",
            format!("throughput -i 127.0.0.1 -p {port} -t 60 --mps 1000"),
        ),
    ];
    let background = BackgroundRun::start(port, 4);
    let mut started = 0;
    let mut children = Vec::new();
    for (program, args) in &clients {
        let Some(child) = start(program, args) else {
            continue;
        };
        children.push(child);
        started += 1;
    }
    host.wait_for_tests(started + 1);
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    background.check();
    // Each leaves what was measured until then; ours is one more.
    let mut records = 0;
    let until = Instant::now() + Duration::from_secs(60);
    while records < started + 1 && Instant::now() < until {
        let record = host.record();
        assert!(record.summary.duration_ns.is_some());
        if record.plan.peer_protocol.as_deref() == Some("nuttcp") {
            assert!(record.interrupted, "{:?}", record.plan);
        }
        records += 1;
    }
    assert_eq!(records, started + 1);
    serves(&host);
}

#[test]
fn a_client_that_is_stopped_for_a_while_goes_on() {
    stop_clients(Timeouts::short(), Duration::from_millis(1_500));
}

#[test]
fn a_client_that_is_stopped_for_ten_seconds_goes_on() {
    stop_clients(Timeouts::default(), Duration::from_secs(10));
}

/// Stops clients of each protocol for a while, which is below the timeouts of the server, and
/// checks that their tests go on.
fn stop_clients(timeouts: Timeouts, pause: Duration) {
    let (_alone, host) = (alone(), InteropServer::with_timeouts(timeouts));
    let port = host.port;
    let background = BackgroundRun::start(port, 6);
    let clients = [
        ("iperf3", format!("-c 127.0.0.1 -p {port} -n 20M -b 40M")),
        ("iperf3", format!("-c 127.0.0.1 -p {port} -n 20M -b 40M -R")),
        ("iperf", format!("-c 127.0.0.1 -p {port} -n 20M -b 40M")),
        ("iperf", format!("-c 127.0.0.1 -p {port} -u -n 20M -b 40M")),
        (
            "nuttcp",
            format!(
                "-P {port} -p {} -n 20m -l 64k -R 40m 127.0.0.1",
                free_port()
            ),
        ),
        (
            "nuttcp",
            format!(
                "-P {port} -p {} -u -n 20m -l 8k -R 40m 127.0.0.1",
                free_port()
            ),
        ),
        // Its time goes on in the meantime.
        (
            "sockperf",
            format!(
                "ping-pong -i 127.0.0.1 -p {port} -t {} --mps=1000",
                pause.as_secs() + 4
            ),
        ),
    ];
    let mut children: Vec<_> = (clients.iter())
        .filter_map(|(program, args)| Some((start(program, args)?, *program, args)))
        .collect();
    // A flow of few requests has a shorter timeout: each test has moved payload for a second.
    host.wait_for_intervals(children.len());
    signal(&children, "-STOP");
    std::thread::sleep(pause);
    signal(&children, "-CONT");
    for (child, program, args) in &mut children {
        assert!(child.wait().unwrap().success(), "{program} {args}");
    }
    background.check();
    // One record each: a resumed client is no new test.
    for _ in 0..=children.len() {
        let record = host.record();
        assert!(!record.interrupted, "{:?}", record.validity);
        if record.plan.peer_protocol.is_none() {
            continue;
        }
        let bytes = record.summary.bytes_received.or(record.summary.bytes_sent);
        match record.plan.protocol {
            TransportProtocol::Tcp => assert!(bytes.unwrap() >= 20 << 20, "{:?}", record.plan),
            // A client may send all missed datagrams at once, more than any socket buffer holds;
            // but datagrams arrived before and after.
            TransportProtocol::Udp => {
                let lasted = record.summary.duration_ns.unwrap();
                assert!(
                    u128::from(lasted) > pause.as_nanos(),
                    "{lasted} {:?}",
                    record.plan
                );
            }
        }
    }
}

#[test]
fn a_silent_client_is_sent_nothing_more() {
    let (_alone, host) = (alone(), InteropServer::with_short_timeouts());
    // A connection validates the address.
    serves(&host);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", host.port)).unwrap();
    let mut datagram = vec![b'1'; 500];
    datagram[..HEADER_BYTES].fill(0);
    datagram[3] = 1;
    let settings = Iperf2Settings {
        direction: Iperf2Direction::Both,
        rate: Some(1_000_000),
        ..Iperf2Settings::client(host.port)
    };
    settings
        .write(&mut datagram[HEADER_BYTES..], HEADER_BYTES)
        .unwrap();
    client.send(&datagram).unwrap();
    // The client keeps the port open: no ICMP error shows that it is gone.
    let started = Instant::now();
    client
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let mut received = 0;
    while client.recv(&mut datagram).is_ok() {
        received += 1;
        assert!(started.elapsed() < Duration::from_secs(90), "it goes on");
    }
    // 250 datagrams a second, for the silence of 2.4 s.
    assert!(received > 200, "{received}");
}

#[test]
fn one_forged_datagram_holds_no_place_for_long() {
    let (_alone, host) = (alone(), InteropServer::start());
    let forged = UdpSocket::bind("127.0.0.1:0").unwrap();
    let first = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1];
    let started = Instant::now();
    forged.send_to(&first, ("127.0.0.1", host.port)).unwrap();
    while host.take_rejection("one datagram of 12 B").is_none() {
        assert!(
            started.elapsed() < Duration::from_secs(11),
            "its place is held"
        );
    }
    assert_eq!(host.started_tests(), 0);
}

#[test]
fn a_client_that_stops_reading_holds_up_no_other() {
    let (_alone, host) = (alone(), InteropServer::with_ports(&["echo", "chargen"]));
    let background = BackgroundRun::start(host.port, 4);
    let mut client = TcpStream::connect(("127.0.0.1", host.also[0])).unwrap();
    client
        .set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    // Far more than the server accepts while its replies are unread.
    let mut sent = 0;
    while let Ok(bytes) = client.write(&[7; 65_536]) {
        sent += bytes;
        assert!(sent < 64 << 20, "echo accepts bytes without limit");
    }
    let _listens_not = TcpStream::connect(("127.0.0.1", host.also[1])).unwrap();
    background.check();
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert_eq!(back.len(), sent);
}

#[test]
fn limits_are_enforced_and_logged() {
    let _alone = alone();
    let host = InteropServer::with(InteropOptions {
        max_tests: Some(1),
        max_time_ns: Some(2_000_000_000),
        protocols: Some(vec!["iperf2".to_owned(), "plain".to_owned()]),
        ..InteropOptions::default()
    });
    // Without the limit it would go on for ever.
    let mut endless = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    endless.write_all(&iperf2_header()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let sender = std::thread::spawn(move || {
        while !flag.load(Relaxed) && endless.write_all(&[b'x'; 10_000]).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let started = Instant::now();
    while host.started_tests() == 0 {
        assert!(started.elapsed() < Duration::from_secs(90), "it begins");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut second = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    let _ = second.write_all(b"any payload at all, of an unidentified client");
    let rejection = host
        .take_rejection("it already runs a test")
        .expect("it is logged");
    let client = second.local_addr().unwrap().to_string();
    assert!(rejection.situation.contains(&client), "{rejection:?}");
    assert!(rejection.next_step.contains("--max-tests"), "{rejection:?}");
    // Our own client receives the rejection, and the server logs it, too.
    let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "127.0.0.1");
    plan.port = host.port;
    let client = Client {
        plan,
        family: AddressFamily::Any,
        retry_timeout: Duration::ZERO,
        key: None,
    };
    assert!(run_client(&client, None, &AtomicBool::new(false), &mut |_| {}).is_err());
    let rejection = host
        .take_rejection("it already runs a test")
        .expect("it is logged");
    assert_eq!(rejection.object, "a test (linerate)");
    assert!(rejection.next_step.contains("--max-tests"), "{rejection:?}");
    let record = host.record();
    stop.store(true, Relaxed);
    sender.join().unwrap();
    assert!(record.interrupted);
    assert!(
        record
            .validity
            .iter()
            .any(|caveat| caveat.id == CaveatId::CutShort)
    );
    assert!(record.summary.duration_ns.unwrap() < 10_000_000_000);
    assert_eq!(record.directions[0].direction, Direction::Send);

    let mut unidentified = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    unidentified.write_all(b"HELO nuttcp v6.1.2\n").unwrap();
    let rejection = host.take_rejection("uses nuttcp").expect("it is logged");
    assert!(rejection.next_step.contains("--allow-dialect nuttcp"));
    assert_eq!(
        unidentified.read(&mut [0; 8]).unwrap_or(0),
        0,
        "nothing is sent"
    );
}

#[test]
fn linerate_clients_are_subject_to_the_servers_limits() {
    let _alone = alone();
    let host = InteropServer::with(InteropOptions {
        max_time_ns: Some(1_000_000_000),
        max_rate_bps: Some(20_000_000),
        ..InteropOptions::default()
    });
    let run = |change: fn(&mut Plan)| {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "127.0.0.1");
        plan.port = host.port;
        plan.duration_ns = Some(1_000_000_000);
        change(&mut plan);
        let client = Client {
            plan,
            family: AddressFamily::Any,
            retry_timeout: Duration::ZERO,
            key: None,
        };
        run_client(&client, None, &AtomicBool::new(false), &mut |_| {})
    };
    for (change, expected) in [
        (
            (|plan| plan.duration_ns = Some(2_000_000_000)) as fn(&mut Plan),
            "the server ends tests after 1",
        ),
        (
            |plan| plan.directions = vec![Direction::Receive],
            "the server sends no more than 20.0 Mb/s",
        ),
    ] {
        let problem = run(change).expect_err(expected).to_report();
        assert!(problem.situation.contains(expected), "{problem:?}");
    }
    let (record, failure) = run(|plan| {
        plan.directions = vec![Direction::Receive];
        plan.rate_bps = Some(20_000_000);
    })
    .unwrap();
    assert!(failure.is_none() && !record.interrupted, "{failure:?}");
    // An amount has no time limit: the server ends it, at both ends.
    let (record, _) = run(|plan| {
        (plan.duration_ns, plan.amount_bytes) = (None, Some(1 << 40));
        plan.rate_bps = Some(50_000_000);
    })
    .unwrap();
    let is_cut_short = |record: &Record| record.validity.iter().any(|d| d.id == CaveatId::CutShort);
    assert!(
        record.interrupted && is_cut_short(&record),
        "{:?}",
        record.validity
    );
    let covered = record.summary.duration_ns.unwrap();
    assert!((500_000_000..3_000_000_000).contains(&covered), "{covered}");
    host.record();
    let own_record = host.record();
    assert!(
        own_record.interrupted && is_cut_short(&own_record),
        "{:?}",
        own_record.validity
    );
}

#[test]
fn traffic_without_a_test_is_logged_and_not_recorded() {
    let (_alone, host) = (alone(), InteropServer::start());
    let to = ("127.0.0.1", host.port);
    for (bytes, expected) in [
        (
            &b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..],
            "HTTP is not a test protocol",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH is not a test protocol"),
        (
            b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\xfc",
            "TLS is not a test protocol",
        ),
        (b"\x9c\xfe\x81\x17\x05\xd3", "sent 6 B"),
    ] {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(bytes).unwrap();
        // It may be closed already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let problem = host
            .take_rejection(expected)
            .unwrap_or_else(|| panic!("{expected}"));
        let client = stream.local_addr().unwrap().to_string();
        assert!(problem.to_string().contains(&client), "{problem:?}");
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "{expected}");
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(&[0x80; 48], to).unwrap();
    // Markers of an earlier nuttcp test.
    for marker in [b"BOD0", b"EOD0", b"EOD1", b"EOD4"] {
        let other_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        other_socket.send_to(marker, to).unwrap();
    }
    let problem = host.take_rejection("one datagram of 48 B").or_else(|| {
        // It is logged after a second of silence.
        host.take_rejection("one datagram of 48 B")
    });
    assert!(problem.is_some());
    // The next connection makes the first record.
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(&[b'x'; 50_000]).unwrap();
    drop(stream);
    let record = host.record();
    assert_eq!(record.plan.peer_protocol.as_deref(), Some("plain"));
    assert_eq!(record.summary.bytes_received, Some(50_000));
    assert_eq!(host.failures(), 0);
}

#[test]
fn reply_loops_are_prevented() {
    let (_alone, host) = (alone(), InteropServer::with_ports(&["echo", "chargen"]));
    // The other service of the same server, as a forged sender would use it.
    let Ok(sender) = UdpSocket::bind(("127.0.0.1", 13)) else {
        println!("skipped: ports below 1024 need a privilege");
        return;
    };
    sender
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    // The smallest request of sockperf, which the port recognises by its bytes.
    let sockperf: &[u8] = b"\0\0\0\0\0\0\0\x01\0\x03\0\0\0\x0e";
    for (request, port) in [
        (&b"hello"[..], host.also[0]),
        (b"hello", host.also[1]),
        (sockperf, host.port),
    ] {
        sender.send_to(request, ("127.0.0.1", port)).unwrap();
        assert!(sender.recv(&mut [0; 16]).is_err(), "{port}");
        assert!(
            host.take_rejection("would reply to every reply").is_some(),
            "{port}"
        );
    }
}

/// A service on a port of its own choice returns every reply: it is found, and gets no more. Clients
/// are replied to meanwhile, also one that sends the same datagram each time.
#[test]
fn a_returned_reply_gets_no_reply_for_ever() {
    let (_alone, host) = (alone(), InteropServer::with_ports(&["echo", "chargen"]));
    let mut buffer = [0; 2_048];
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", host.also[0])).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    for _ in 0..3_000 {
        client.send(b"the same").unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 8);
    }
    // The address of the client was checked; the next check is in this loop.
    let mut replies = 0;
    for port in [host.also[0], host.also[0], host.also[1]] {
        let service = UdpSocket::bind("127.0.0.1:0").unwrap();
        service
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        service.send_to(&[b'x'; 500], ("127.0.0.1", port)).unwrap();
        while let Ok((bytes, from)) = service.recv_from(&mut buffer) {
            replies += 1;
            assert!(replies < 1_000_000, "without end");
            service.send_to(&buffer[..bytes], from).unwrap();
        }
    }
    assert!(replies >= 1_000, "{replies}");
    assert!(host.take_rejection("replies unchanged").is_some());
    for number in 0..2_000_u32 {
        let request = number.to_be_bytes();
        client.send(&request).unwrap();
        let bytes = client.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..bytes], request);
    }
}
