//! The data of a test, for either transmitter and either connecting end.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linerate_protocol::nuttcp::{
    CONNECT_DELAY_NS, NuttcpCounts, NuttcpDirection, NuttcpInterval, NuttcpSendAction, NuttcpTest,
    NuttcpUdpReceiver, NuttcpUdpSender,
};
use linerate_protocol::sniff::TransportKind;

/// Which end this is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// Sockets that stand before the test is agreed on.
pub enum Ready {
    Listeners(Vec<TcpListener>),
    Sockets(Vec<UdpSocket>),
    Nothing,
}

impl Ready {
    /// What this end needs to be connected to.
    pub fn new(test: &NuttcpTest, side: Side) -> Self {
        let connects = test.client_connects() == (side == Side::Client);
        let address = |port| (IpAddr::from([127, 0, 0, 1]), port);
        match test.transport {
            _ if connects => Self::Nothing,
            TransportKind::Stream => Self::Listeners(
                test.ports()
                    .map(|port| TcpListener::bind(address(port)).unwrap())
                    .collect(),
            ),
            TransportKind::Datagram => Self::Sockets(
                test.ports()
                    .map(|port| UdpSocket::bind(address(port)).unwrap())
                    .collect(),
            ),
        }
    }
}

/// Moves the data; what this end counted, and what a UDP receiver misses.
pub fn move_data(
    test: &NuttcpTest,
    side: Side,
    peer: IpAddr,
    ready: Ready,
    gone: &mut dyn FnMut() -> bool,
    interval: &mut dyn FnMut(&NuttcpInterval),
) -> (NuttcpCounts, Option<u64>) {
    let transmits = (test.direction == NuttcpDirection::ToServer) == (side == Side::Client);
    match (test.transport, transmits, ready) {
        (TransportKind::Stream, _, ready) => {
            let streams = match ready {
                Ready::Listeners(listeners) => listeners
                    .iter()
                    .map(|listener| listener.accept().unwrap().0)
                    .collect(),
                _ => connect(test, peer),
            };
            if transmits {
                (write_alternately(test, streams), None)
            } else {
                (read_all(test, streams, interval), None)
            }
        }
        (TransportKind::Datagram, true, _) => (send(test, peer), None),
        (TransportKind::Datagram, false, Ready::Sockets(sockets)) => {
            receive(test, &sockets, gone, interval)
        }
        (TransportKind::Datagram, false, _) => unreachable!("a UDP receiver has sockets"),
    }
}

fn connect(test: &NuttcpTest, peer: IpAddr) -> Vec<TcpStream> {
    std::thread::sleep(Duration::from_nanos(CONNECT_DELAY_NS));
    let connect = |port| {
        let begun = Instant::now();
        loop {
            match TcpStream::connect((peer, port)) {
                Ok(stream) => return stream,
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(5), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    test.ports().map(connect).collect()
}

fn counts(bytes: u64, calls: u64, duration: Duration) -> NuttcpCounts {
    NuttcpCounts {
        bytes,
        duration_ns: u64::try_from(duration.as_nanos()).unwrap(),
        calls: Some(calls),
        ..NuttcpCounts::default()
    }
}

/// One whole buffer to each stream in turn.
fn write_alternately(test: &NuttcpTest, mut streams: Vec<TcpStream>) -> NuttcpCounts {
    let buffer = vec![0; test.buffer_bytes];
    let begun = Instant::now();
    let limit = test.duration_ns.map(Duration::from_nanos);
    let mut sent = 0;
    'data: loop {
        for stream in &mut streams {
            let over = test.buffer_limit.is_some_and(|buffers| sent == buffers)
                || limit.is_some_and(|limit| begun.elapsed() >= limit);
            if over || stream.write_all(&buffer).is_err() {
                break 'data;
            }
            sent += 1;
        }
    }
    let bytes = sent * test.buffer_bytes as u64;
    counts(bytes, sent, begun.elapsed())
}

/// Each stream to its end, by a thread of its own.
fn read_all(
    test: &NuttcpTest,
    streams: Vec<TcpStream>,
    interval: &mut dyn FnMut(&NuttcpInterval),
) -> NuttcpCounts {
    let begun = Instant::now();
    let bytes = AtomicU64::new(0);
    let calls = AtomicU64::new(0);
    let left = AtomicUsize::new(streams.len());
    std::thread::scope(|scope| {
        for mut stream in streams {
            let (bytes, calls, left) = (&bytes, &calls, &left);
            scope.spawn(move || {
                let mut buffer = vec![0; 1 << 18];
                while let Ok(got @ 1..) = stream.read(&mut buffer) {
                    bytes.fetch_add(got as u64, Relaxed);
                    calls.fetch_add(1, Relaxed);
                }
                left.fetch_sub(1, Relaxed);
            });
        }
        let mut reported = 0;
        let mut since = Instant::now();
        while left.load(Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(2));
            let passed = u64::try_from(since.elapsed().as_nanos()).unwrap();
            if test.interval_ns.is_some_and(|each| passed >= each) {
                let now = bytes.load(Relaxed);
                interval(&NuttcpInterval {
                    bytes: now - reported,
                    duration_ns: passed,
                    ..NuttcpInterval::default()
                });
                reported = now;
                since = Instant::now();
            }
        }
    });
    counts(bytes.load(Relaxed), calls.load(Relaxed), begun.elapsed())
}

fn send(test: &NuttcpTest, peer: IpAddr) -> NuttcpCounts {
    let sockets: Vec<_> = test
        .ports()
        .map(|port| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect((peer, port)).unwrap();
            socket
        })
        .collect();
    // A transmitter that is the server waits for its client to stand.
    std::thread::sleep(Duration::from_nanos(CONNECT_DELAY_NS));
    let begun = Instant::now();
    let now = || u64::try_from(begun.elapsed().as_nanos()).unwrap();
    let mut buffer = vec![0; test.buffer_bytes];

    let mut sender = NuttcpUdpSender::new(test);
    let mut span = (None, 0);
    loop {
        match sender.next_action(now()) {
            // The receiver may be gone after the first end marker.
            NuttcpSendAction::Marker { bytes, stream } => {
                drop(sockets[usize::from(stream)].send(&bytes))
            }
            NuttcpSendAction::Data { stream } => {
                span = (span.0.or(Some(now())), now());
                sender.write_count(&mut buffer);
                sockets[usize::from(stream)].send(&buffer).unwrap();
            }
            NuttcpSendAction::Wait { until_ns } => {
                std::thread::sleep(Duration::from_nanos(until_ns.saturating_sub(now())));
            }
            NuttcpSendAction::Finished => break,
        }
    }
    let duration = Duration::from_nanos(span.1 - span.0.unwrap_or(span.1));
    counts(sender.sent_bytes(), sender.sent_datagrams(), duration)
}

fn receive(
    test: &NuttcpTest,
    sockets: &[UdpSocket],
    gone: &mut dyn FnMut() -> bool,
    interval: &mut dyn FnMut(&NuttcpInterval),
) -> (NuttcpCounts, Option<u64>) {
    let begun = Instant::now();
    let now = || u64::try_from(begun.elapsed().as_nanos()).unwrap();
    let mut receiver = NuttcpUdpReceiver::new(test, now());
    let mut buffer = vec![0; 65_536];
    for socket in sockets {
        socket.set_nonblocking(true).unwrap();
    }
    let (mut since, mut reported) = (0, 0);
    while !receiver.is_over(now()) {
        let mut idle = true;
        for socket in sockets {
            if let Ok(bytes) = socket.recv(&mut buffer) {
                receiver.receive(now(), &buffer[..bytes]);
                idle = false;
            }
        }
        if receiver.totals().packets == 0 {
            since = now();
        }
        if test.interval_ns.is_some_and(|each| now() - since >= each) {
            let bytes = receiver.totals().bytes;
            let packets = (bytes - reported) / test.buffer_bytes as u64;
            interval(&NuttcpInterval {
                bytes: bytes - reported,
                duration_ns: now() - since,
                lost_of: receiver.lost().map(|lost| (lost, packets + lost)),
                retransmits: None,
            });
            (since, reported) = (now(), bytes);
        }
        if idle {
            if gone() {
                receiver.control_closed(now());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    let totals = receiver.totals();
    let duration = Duration::from_nanos(totals.duration_ns.unwrap_or(0));
    (
        counts(totals.bytes, totals.packets, duration),
        receiver.lost(),
    )
}
