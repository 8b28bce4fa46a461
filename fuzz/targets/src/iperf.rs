//! iperf2 and iperf3.

use linerate_protocol::iperf2;
use linerate_protocol::iperf2::{Iperf2Settings, Iperf2TcpServer, Iperf2UdpClient, Iperf2UdpServer, WriteDelayReader, bounceback};
use linerate_protocol::iperf3;
use linerate_protocol::iperf3::{Cookie, Iperf3Params, Iperf3Results};

use crate::InputPieces;

/// iperf2: any bytes to a TCP server, a UDP flow and a client.
pub fn iperf2(data: &[u8]) {
    let jobs = [
        {
            let joined_bytes: Vec<u8> = InputPieces(data).flatten().copied().collect();
            Iperf2TcpServer::new()
                .receive(&joined_bytes, 1)
                .map(|(_, job)| job)
        },
        {
            let mut server = Iperf2TcpServer::new();
            let mut job = Ok(None);
            for piece in InputPieces(data) {
                job = server.receive(piece, 1).map(|(_, job)| job);
                if !matches!(job, Ok(None)) {
                    break;
                }
            }
            job
        },
    ];
    assert_eq!(format!("{:?}", jobs[0]), format!("{:?}", jobs[1]));

    let joined_bytes: Vec<u8> = InputPieces(data).flatten().copied().collect();
    let delays = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut writes, mut delays_ns) = (WriteDelayReader::new(), Vec::new());
        pieces.for_each(|piece| writes.receive(piece, 1, |delay| delays_ns.push(delay)));
        (delays_ns, writes.is_out_of_sync())
    };
    let split = delays(&mut InputPieces(data));
    assert_eq!(split, delays(&mut std::iter::once(&joined_bytes[..])));

    let mut pieces = InputPieces(data);
    if let Some(first) = pieces.next()
        && let Some(mut server) = Iperf2UdpServer::open(first, 1)
    {
        for (now, datagram) in (2..).zip(pieces) {
            server.receive(datagram, now);
            assert!(
                server
                    .reply(datagram.len())
                    .is_none_or(|reply| reply.len() <= datagram.len())
            );
        }
        let _ = (server.report(), server.client_sent());
    }
    if let Ok(mut client) = Iperf2UdpClient::new(Iperf2Settings::client(5_001), 1_470) {
        client.finish(1);
        let reported = InputPieces(data)
            .filter(|datagram| client.receive(datagram))
            .count();
        assert_eq!(client.remote_report().flows.len(), reported.min(1));
    }
    if data.len() >= 60
        && let Ok(mut server) = bounceback::BouncebackServer::new(data)
    {
        for piece in InputPieces(data) {
            let mut rest = piece;
            while !rest.is_empty() && !server.is_over() {
                let consumed = server.receive(rest, 1);
                rest = &rest[consumed..];
                if server.has_request() {
                    assert!(server.reply(2).len() <= server.message_bytes());
                    server.mark_replied();
                } else {
                    assert!(rest.is_empty() || server.is_over());
                }
            }
        }
    }
    let _ = (
        Iperf2Settings::read(data, 0),
        iperf2::Iperf2Report::read(data),
        iperf2::VersionAck::read(data),
    );
}

/// Longest input whose splits are compared: the ends reject bytes that are read too far ahead.
const COMPARED_BYTES: usize = 16 << 10;

/// iperf3: any bytes to both ends of the control connection; splitting changes nothing.
pub fn iperf3(data: &[u8]) {
    let joined_bytes: Vec<u8> = InputPieces(data).flatten().copied().collect();
    let pieces: Vec<&[u8]> = InputPieces(data).collect();
    let (split, joined) = (iperf3_server(&pieces), iperf3_server(&[&joined_bytes]));
    if joined_bytes.len() <= COMPARED_BYTES {
        assert_eq!(split, joined);
    }
    let (split, joined) = (iperf3_client(&pieces), iperf3_client(&[&joined_bytes]));
    if joined_bytes.len() <= COMPARED_BYTES {
        assert_eq!(split, joined);
    }
    for piece in pieces {
        let hello = iperf3::udp::UdpHello::read(piece);
        assert!(hello.is_none_or(|hello| hello.reply().len() <= piece.len()));
        for counters in [iperf3::CounterWidth::Bits32, iperf3::CounterWidth::Bits64] {
            let _ = iperf3::udp::read_header(piece, counters);
        }
    }
    let _ = Cookie::read(data);
}

/// Runs a server; returns its events, its output and whether it failed.
fn iperf3_server(pieces: &[&[u8]]) -> (Vec<String>, Vec<u8>, bool) {
    let mut server = iperf3::Iperf3Server::new(0);
    let mut events = Vec::new();
    let mut step = |server: &mut iperf3::Iperf3Server| {
        while let Some(event) = server.next_event(1)? {
            match &event {
                iperf3::Iperf3ServerEvent::TestRequested(params) if params.validate().is_ok() => {
                    server.accept(1)?;
                    while server.waits_for_flows() {
                        assert!(server.assign_flow().is_some());
                    }
                    server.start(1)?;
                }
                iperf3::Iperf3ServerEvent::TestRequested(_) => {
                    server.reject(iperf3::Iperf3ErrorCode::PARALLEL, 0)
                }
                iperf3::Iperf3ServerEvent::Results(results) => {
                    let _ = iperf3::remote_report(&Iperf3Params::default(), false, results);
                    server.send_results(&Iperf3Results::default(), 1)?;
                }
                _ => {}
            }
            events.push(format!("{event:?}"));
        }
        Ok::<(), iperf3::Iperf3Error>(())
    };
    let done = pieces
        .iter()
        .try_for_each(|piece| server.receive(piece).and_then(|()| step(&mut server)));
    let output = server.outgoing().to_vec();
    assert!(output.len() < 64 << 10);
    let _ = server.mark_closed();
    (events, output, done.is_err())
}

/// Runs a client; returns its events, its output and whether it failed.
fn iperf3_client(pieces: &[&[u8]]) -> (Vec<String>, Vec<u8>, bool) {
    let mut client = iperf3::Iperf3Client::new(Cookie::new([7; 36]), Iperf3Params::default(), 0);
    let mut events = Vec::new();
    let mut step = |client: &mut iperf3::Iperf3Client| {
        while let Some(event) = client.next_event(1)? {
            match &event {
                iperf3::Iperf3ClientEvent::Started => client.finish(1)?,
                iperf3::Iperf3ClientEvent::SendResults => {
                    client.send_results(&Iperf3Results::default(), 1)?
                }
                iperf3::Iperf3ClientEvent::Results(results) => {
                    let _ = iperf3::remote_report(&Iperf3Params::default(), true, results);
                }
                _ => {}
            }
            events.push(format!("{event:?}"));
        }
        Ok::<(), iperf3::Iperf3Error>(())
    };
    let done = pieces
        .iter()
        .try_for_each(|piece| client.receive(piece).and_then(|()| step(&mut client)));
    let output = client.outgoing().to_vec();
    let _ = client.mark_closed();
    (events, output, done.is_err())
}
