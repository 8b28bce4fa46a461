//! Echo of the same bytes, and source ports that get no reply.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use linerate_protocol::echo::{BACKLOG_LIMIT_BYTES, EchoStream, FIRST_CLIENT_PORT, may_reply_to};
use proptest::prelude::*;

#[test]
fn some_source_ports_get_no_reply() {
    let local_ports = [7, 5_201, 5_001];
    for (source, expected, why) in [
        (0, false, "no reply is expected"),
        (7, false, "echo"),
        (9, false, "no port of a client"),
        (13, false, "daytime"),
        (17, false, "quote of the day"),
        (19, false, "chargen"),
        (37, false, "time"),
        (5_201, false, "itself, or another server of this kind"),
        (5_001, false, "another local port"),
        (5_202, true, "any other port"),
        (53, false, "DNS"),
        (123, false, "NTP"),
        (1_023, false, "the last port of services"),
        (1_024, true, "the first port of clients"),
        (49_152, true, "any other port"),
        (65_535, true, "any other port"),
    ] {
        assert_eq!(
            may_reply_to(source, &local_ports),
            expected,
            "{source}: {why}"
        );
    }
    for source in 0..=u16::MAX {
        let is_client = source >= FIRST_CLIENT_PORT;
        assert_eq!(may_reply_to(source, &[]), is_client, "{source}");
    }
}

#[test]
fn a_client_that_does_not_read_costs_no_more_than_the_limit() {
    let mut stream = EchoStream::default();
    let much = vec![1; 64 << 10];
    let mut accepted = 0;
    loop {
        match stream.receive(&much) {
            0 => break,
            bytes => accepted += bytes,
        }
    }
    assert_eq!(accepted, BACKLOG_LIMIT_BYTES);
    stream.mark_sent(10);
    assert_eq!(stream.receive(&much), 10);
    stream.close_input();
    assert!(!stream.is_over());
    stream.mark_sent(stream.outgoing().len());
    assert!(stream.is_over());
    let all = BACKLOG_LIMIT_BYTES as u64 + 10;
    assert_eq!(stream.totals(), (all, all));
}

proptest! {
    /// Splits a stream and drains its replies in any steps: the same bytes come back.
    #[test]
    fn splits_change_nothing(
        bytes in prop::collection::vec(any::<u8>(), 0..3_000),
        splits in prop::collection::vec((1usize..700, 0usize..700), 1..60),
    ) {
        let mut stream = EchoStream::default();
        let (mut rest, mut back) = (&bytes[..], Vec::new());
        for (read, write) in splits.iter().cycle() {
            let taken = stream.receive(&rest[..rest.len().min(*read)]);
            rest = &rest[taken..];
            let ready = stream.outgoing().len().min(write + usize::from(rest.is_empty()));
            back.extend_from_slice(&stream.outgoing()[..ready]);
            stream.mark_sent(ready);
            if rest.is_empty() {
                stream.close_input();
            }
            if stream.is_over() {
                break;
            }
        }
        prop_assert_eq!(back, bytes);
    }
}

/// Runs a server over both transports, and a client that compares.
#[test]
fn the_same_comes_back_over_loopback() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut stream = EchoStream::default();
        let mut buffer = [0; 4_096];
        while !stream.is_over() {
            match socket.read(&mut buffer).unwrap() {
                0 => stream.close_input(),
                bytes => {
                    // This driver writes everything before the next read, so there is always space.
                    assert_eq!(stream.receive(&buffer[..bytes]), bytes);
                }
            }
            socket.write_all(stream.outgoing()).unwrap();
            stream.mark_sent(stream.outgoing().len());
        }
        stream.totals()
    });
    let mut client = TcpStream::connect(address).unwrap();
    client.set_nodelay(true).unwrap();
    for number in 0..100 {
        let request = [number; 1_024];
        client.write_all(&request).unwrap();
        let mut reply = [0; 1_024];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(reply, request);
    }
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(server.join().unwrap(), (102_400, 102_400));

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut buffer = [0; 4_096];
        for _ in 0..50 {
            let (bytes, from) = socket.recv_from(&mut buffer).unwrap();
            assert!(may_reply_to(from.port(), &[address.port()]));
            socket.send_to(&buffer[..bytes], from).unwrap();
        }
    });
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    client.connect(address).unwrap();
    let mut buffer = [0; 4_096];
    for number in 0..50 {
        let request = [number; 64];
        client.send(&request).unwrap();
        let bytes = client.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..bytes], request);
    }
    server.join().unwrap();
}
