//! Payload content and copy modes: both ends in this process, over loopback, with a proxy between
//! them that changes one byte.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;

use crate::common::{TestServer, caveats, run, try_run};
use linerate_record::ids::CaveatId;
use linerate_record::plan::{
    CopyModes, Direction, PerEnd, Plan, ReceiveCopy, RunKind, SendCopy, TransportProtocol,
    UdpOffload,
};
use linerate_session::error::SessionError;

fn plan(port: u16, protocol: TransportProtocol) -> Plan {
    let mut plan = Plan::new(RunKind::Throughput, protocol, "127.0.0.1");
    plan.port = port;
    plan.duration_ns = Some(200_000_000);
    plan.interval_ns = Some(100_000_000);
    plan
}

#[test]
fn unchanged_payload_is_verified() {
    let server = TestServer::start();
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        for (wait, bytes, gso, batch) in [
            ("block", 1_000_003, true, None),
            ("spin", 4_096, true, None),
            ("poll", 1_472, false, None),
            ("epoll", 17, true, None),
            ("block/spin", 7, false, None),
            ("block", 999, false, Some(16)),
        ] {
            for direction in [Direction::Send, Direction::Receive] {
                let mut plan = plan(server.port, protocol);
                plan.verify = true;
                plan.directions = vec![direction];
                plan.streams = 2;
                plan.wait = Some(wait.parse().unwrap());
                plan.payload_bytes = bytes;
                if protocol == TransportProtocol::Udp {
                    plan.payload_bytes = bytes.min(9_000);
                    plan.batch = batch;
                    plan.udp_offload = UdpOffload {
                        gso: Some(gso),
                        gro: Some(gso),
                        requested: true,
                    };
                }
                let record = run(plan);
                let context = format!("{protocol} {wait} {bytes} {direction}");
                assert_eq!(record.summary.mismatched, Some(0), "{context}");
                assert!(record.summary.bytes_received > Some(0), "{context}");
                assert!(!caveats(&record).contains(&"content-mismatch"), "{context}");
                assert_eq!(record.verification.len(), 2, "{context}");
            }
        }
    }
    let record = run(plan(server.port, TransportProtocol::Tcp));
    assert_eq!(record.summary.mismatched, None, "nobody looked");
    assert!(record.verification.is_empty());
}

/// First bytes of a flow's opening, before its token.
const OPENING: &[u8] = b"\x01lr\xC0\xFFdat";
const OPENING_BYTES: usize = 24;

/// Forwards a stream; in a flow's payload, the byte at `flip` is changed.
fn pass(mut from: TcpStream, mut to: TcpStream, flip: usize) {
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    let mut is_flow = false;
    loop {
        let bytes = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(bytes) => bytes,
        };
        if passed == 0 {
            is_flow = buffer[..bytes].starts_with(OPENING);
        }
        let at = OPENING_BYTES + flip;
        if is_flow && (passed..passed + bytes).contains(&at) {
            buffer[at - passed] ^= 0x10;
        }
        passed += bytes;
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// Proxy in front of a server, for TCP and UDP on one port. It changes one byte of each flow from
/// the client: byte `flip` of a stream, or of datagram number 5.
fn proxy(server: u16, flip: usize) -> u16 {
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            break (tcp, udp);
        }
    };
    let port = tcp.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in tcp.incoming().flatten() {
            let Ok(upstream) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
                return;
            };
            let client_ends = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
            std::thread::spawn(move || pass(client, upstream, flip));
            std::thread::spawn(move || pass(client_ends.1, client_ends.0, usize::MAX >> 1));
        }
    });
    std::thread::spawn(move || {
        let udp = Arc::new(udp);
        let mut recorded: Vec<(SocketAddr, Arc<UdpSocket>)> = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        while let Ok((bytes, from)) = udp.recv_from(&mut buffer) {
            let mismatch = recorded.iter().find(|(address, _)| *address == from);
            let upstream = match mismatch {
                Some((_, upstream)) => Arc::clone(upstream),
                None => {
                    let upstream = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
                    upstream.connect((Ipv4Addr::LOCALHOST, server)).unwrap();
                    recorded.push((from, Arc::clone(&upstream)));
                    let (back, upstream) = (Arc::clone(&udp), Arc::clone(&upstream));
                    std::thread::spawn({
                        let upstream = Arc::clone(&upstream);
                        move || {
                            let mut buffer = vec![0; 64 << 10];
                            while let Ok(bytes) = upstream.recv(&mut buffer) {
                                let _ = back.send_to(&buffer[..bytes], from);
                            }
                        }
                    });
                    upstream
                }
            };
            let payload = &mut buffer[..bytes];
            let number = payload.first_chunk().map(|n| u64::from_be_bytes(*n));
            if !payload.starts_with(OPENING) && number == Some(5) && flip < bytes {
                payload[flip] ^= 0x10;
            }
            let _ = upstream.send(payload);
        }
    });
    port
}

#[test]
fn one_changed_byte_of_a_stream_is_located() {
    const AT: usize = 1_234_567;
    let server = TestServer::start();
    let mut plan = plan(proxy(server.port, AT), TransportProtocol::Tcp);
    plan.verify = true;
    plan.duration_ns = None;
    plan.amount_bytes = Some(4 << 20);
    let record = run(plan);
    assert_eq!(record.summary.bytes_received, Some(4 << 20));
    assert_eq!(record.summary.mismatched, Some(1));
    let mismatch = record.directions[0].streams[0].mismatch.clone().unwrap();
    assert_eq!((mismatch.offset, mismatch.datagram), (AT as u64, None));
    let byte = |text: &str| u8::from_str_radix(&text[..2], 16).unwrap();
    assert_eq!(byte(&mismatch.expected) ^ byte(&mismatch.received), 0x10);
    assert_eq!(mismatch.expected[2..], mismatch.received[2..]);
    let caveat = record
        .validity
        .iter()
        .find(|d| d.id == CaveatId::ContentMismatch);
    let why = &caveat.unwrap().reason;
    assert!(
        why.contains("1 B") && why.contains("offset 1234567"),
        "{why}"
    );
}

#[test]
fn one_changed_byte_of_a_datagram_is_located() {
    let server = TestServer::start();
    for (at, expected) in [(700, 700), (16, 16), (999, 999)] {
        let mut plan = plan(proxy(server.port, at), TransportProtocol::Udp);
        plan.verify = true;
        plan.payload_bytes = 1_000;
        plan.rate_bps = Some(4_000_000);
        let record = run(plan);
        let mismatch = record.directions[0].streams[0].mismatch.clone().unwrap();
        assert_eq!((mismatch.offset, mismatch.datagram), (expected, Some(5)));
        assert_eq!(record.summary.mismatched, Some(1));
    }
    // In the time of the header: the content after it does not match.
    let mut plan = plan(proxy(server.port, 12), TransportProtocol::Udp);
    plan.verify = true;
    plan.payload_bytes = 1_000;
    plan.rate_bps = Some(4_000_000);
    let record = run(plan);
    let mismatch = record.directions[0].streams[0].mismatch.clone().unwrap();
    assert!((16..24).contains(&mismatch.offset), "{mismatch:?}");
    assert!(record.summary.mismatched > Some(400));
}

#[test]
fn streams_go_around_copies() {
    let server = TestServer::start();
    for send in [SendCopy::ZeroCopy, SendCopy::SendFile, SendCopy::Splice] {
        for receive in [ReceiveCopy::Copied, ReceiveCopy::Discarded] {
            for wait in ["block", "spin", "epoll", "poll", "select"] {
                let mut plan = plan(server.port, TransportProtocol::Tcp);
                plan.copies = CopyModes { send, receive };
                plan.streams = 2;
                plan.calls = wait == "block";
                plan.wait = Some(PerEnd::same(wait.parse().unwrap()));
                plan.directions = vec![Direction::Send, Direction::Receive];
                plan.duration_ns = None;
                plan.amount_bytes = Some(5_000_001);
                let context = format!("{send:?} {receive:?} {wait}");
                let record = match try_run(plan) {
                    Ok(record) => record,
                    Err(error @ SessionError::OptionRejected { .. }) => {
                        println!("not to be had here: {error}");
                        continue;
                    }
                    Err(error) => panic!("{context}: {error}"),
                };
                assert_eq!(record.summary.bytes_received, Some(10_000_002), "{context}");
                assert_eq!(record.plan.copies, CopyModes { send, receive });
                for stream in record
                    .directions
                    .iter()
                    .flat_map(|copy_mode| &copy_mode.streams)
                {
                    let facts = stream.sender.as_ref().unwrap().zero_copy;
                    assert_eq!(facts.is_some(), send == SendCopy::ZeroCopy, "{context}");
                    if let Some(facts) = facts {
                        assert!(facts.sends > 0 && facts.copied <= facts.sends, "{facts:?}");
                        // On loopback the kernel copies all of them.
                        assert_eq!(facts.copied + facts.unconfirmed, facts.sends, "{context}");
                    }
                }
                let copied = caveats(&record).contains(&"zero-copy-copied");
                assert_eq!(copied, send == SendCopy::ZeroCopy, "{context}");
            }
        }
    }
}

#[test]
fn datagrams_without_a_copy_keep_their_numbers() {
    let server = TestServer::start();
    for (gso, wait) in [(true, "block"), (true, "spin"), (false, "epoll")] {
        let mut plan = plan(server.port, TransportProtocol::Udp);
        plan.payload_bytes = 1_000;
        plan.copies.send = SendCopy::ZeroCopy;
        plan.wait = Some(PerEnd::same(wait.parse().unwrap()));
        plan.udp_offload = UdpOffload {
            gso: Some(gso),
            gro: Some(gso),
            requested: true,
        };
        let record = match try_run(plan) {
            Ok(record) => record,
            Err(error) => {
                println!("not to be had here: {error}");
                return;
            }
        };
        let summary = &record.summary;
        let context = format!("{gso} {wait}: {summary:?}");
        let sent = summary.packets_sent.unwrap();
        let received = summary.packets_received.unwrap();
        assert_eq!(sent, received + summary.lost.unwrap(), "{context}");
        assert_eq!(
            (summary.out_of_order, summary.duplicates),
            (Some(0), Some(0)),
            "{context}"
        );
        let sender = record.directions[0].streams[0].sender.as_ref().unwrap();
        assert!(sender.zero_copy.unwrap().sends > 0, "{context}");
    }
}

#[test]
fn uncopied_payload_is_not_verified() {
    let server = TestServer::start();
    for copies in [
        CopyModes {
            send: SendCopy::SendFile,
            ..CopyModes::default()
        },
        CopyModes {
            receive: ReceiveCopy::Discarded,
            ..CopyModes::default()
        },
    ] {
        let mut plan = plan(server.port, TransportProtocol::Tcp);
        plan.verify = true;
        plan.copies = copies;
        let error = try_run(plan).unwrap_err();
        assert_eq!(
            error.exit_code(),
            linerate_record::exit_codes::USAGE,
            "{error}"
        );
    }
}
