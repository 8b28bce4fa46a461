//! iperf2 and iperf3.

use linerate_dialect::iperf2::{
    self, Settings, TcpServer, UdpClient, UdpServer, WriteTimes, bounceback,
};
use linerate_dialect::iperf3::{self, Cookie, Params, Results};

use crate::Pieces;

/// iperf2: any bytes to a TCP server, a UDP flow and a client.
pub fn iperf2(data: &[u8]) {
    let jobs = [
        {
            let whole: Vec<u8> = Pieces(data).flatten().copied().collect();
            TcpServer::new().receive(&whole, 1).map(|(_, job)| job)
        },
        {
            let mut server = TcpServer::new();
            let mut job = Ok(None);
            for piece in Pieces(data) {
                job = server.receive(piece, 1).map(|(_, job)| job);
                if !matches!(job, Ok(None)) {
                    break;
                }
            }
            job
        },
    ];
    assert_eq!(format!("{:?}", jobs[0]), format!("{:?}", jobs[1]));

    let whole: Vec<u8> = Pieces(data).flatten().copied().collect();
    let delays = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut writes, mut told) = (WriteTimes::new(), Vec::new());
        pieces.for_each(|piece| writes.receive(piece, 1, |delay| told.push(delay)));
        (told, writes.is_lost())
    };
    let cut = delays(&mut Pieces(data));
    assert_eq!(cut, delays(&mut std::iter::once(&whole[..])));

    let mut pieces = Pieces(data);
    if let Some(first) = pieces.next()
        && let Some(mut server) = UdpServer::open(first, 1)
    {
        for (now, datagram) in (2..).zip(pieces) {
            server.receive(datagram, now);
            assert!(
                server
                    .answer(datagram.len())
                    .is_none_or(|answer| answer.len() <= datagram.len())
            );
        }
        let _ = (server.report(), server.client_sent());
    }
    if let Ok(mut client) = UdpClient::new(Settings::client(5_001), 1_470) {
        client.finish(1);
        let reported = Pieces(data)
            .filter(|datagram| client.receive(datagram))
            .count();
        assert_eq!(client.far_report().flows.len(), reported.min(1));
    }
    if data.len() >= 60
        && let Ok(mut server) = bounceback::Server::new(data)
    {
        for piece in Pieces(data) {
            let mut rest = piece;
            while !rest.is_empty() && !server.is_over() {
                let taken = server.receive(rest, 1);
                rest = &rest[taken..];
                if server.is_due() {
                    assert!(server.answer(2).len() <= server.message_bytes());
                    server.answered();
                } else {
                    assert!(rest.is_empty() || server.is_over());
                }
            }
        }
    }
    let _ = (
        Settings::read(data, 0),
        iperf2::Report::read(data),
        iperf2::Ack::read(data),
    );
}

/// Longest input whose splits are compared: the ends reject bytes that are read too far ahead.
const COMPARED_BYTES: usize = 16 << 10;

/// iperf3: any bytes to both ends of the control connection; splitting changes nothing.
pub fn iperf3(data: &[u8]) {
    let whole: Vec<u8> = Pieces(data).flatten().copied().collect();
    let pieces: Vec<&[u8]> = Pieces(data).collect();
    let (cut, joined) = (iperf3_server(&pieces), iperf3_server(&[&whole]));
    if whole.len() <= COMPARED_BYTES {
        assert_eq!(cut, joined);
    }
    let (cut, joined) = (iperf3_client(&pieces), iperf3_client(&[&whole]));
    if whole.len() <= COMPARED_BYTES {
        assert_eq!(cut, joined);
    }
    for piece in pieces {
        let hello = iperf3::udp::Hello::read(piece);
        assert!(hello.is_none_or(|hello| hello.answer().len() <= piece.len()));
        for counters in [iperf3::Counters::Bits32, iperf3::Counters::Bits64] {
            let _ = iperf3::udp::read_header(piece, counters);
        }
    }
    let _ = Cookie::read(data);
}

/// Runs a server; returns its events, its output and whether it failed.
fn iperf3_server(pieces: &[&[u8]]) -> (Vec<String>, Vec<u8>, bool) {
    let mut server = iperf3::Server::new(0);
    let mut events = Vec::new();
    let mut step = |server: &mut iperf3::Server| {
        while let Some(event) = server.next_event(1)? {
            match &event {
                iperf3::ServerEvent::Asked(params) if params.check().is_ok() => {
                    server.accept(1)?;
                    while server.waits_for_flows() {
                        assert!(server.flow_arrived().is_some());
                    }
                    server.start(1)?;
                }
                iperf3::ServerEvent::Asked(_) => server.refuse(iperf3::Refusal::PARALLEL, 0),
                iperf3::ServerEvent::Results(theirs) => {
                    let _ = iperf3::far_report(&Params::default(), false, theirs);
                    server.results(&Results::default(), 1)?;
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
    let said = server.outgoing().to_vec();
    assert!(said.len() < 64 << 10);
    let _ = server.closed();
    (events, said, done.is_err())
}

/// Runs a client; returns its events, its output and whether it failed.
fn iperf3_client(pieces: &[&[u8]]) -> (Vec<String>, Vec<u8>, bool) {
    let mut client = iperf3::Client::new(Cookie::new([7; 36]), Params::default(), 0);
    let mut events = Vec::new();
    let mut step = |client: &mut iperf3::Client| {
        while let Some(event) = client.next_event(1)? {
            match &event {
                iperf3::ClientEvent::Started => client.finish(1)?,
                iperf3::ClientEvent::WantsResults => client.results(&Results::default(), 1)?,
                iperf3::ClientEvent::Results(theirs) => {
                    let _ = iperf3::far_report(&Params::default(), true, theirs);
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
    let said = client.outgoing().to_vec();
    let _ = client.closed();
    (events, said, done.is_err())
}
