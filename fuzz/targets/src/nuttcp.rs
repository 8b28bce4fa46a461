//! nuttcp's control connection and datagrams.

use linerate_dialect::nuttcp::{
    Client, ClientEvent, Counts, Interval, Server, ServerEvent, Test, UdpReceiver, UdpSender, Way,
};
use linerate_dialect::sniff::Carrier;

use crate::Pieces;

/// nuttcp server: any bytes on the control connection.
pub fn nuttcp_server(data: &[u8]) {
    let mut events = [Vec::new(), Vec::new()];
    let mut said = [Vec::new(), Vec::new()];
    let whole: Vec<u8> = Pieces(data).flatten().copied().collect();
    let at_once = [&whole[..]];
    let pieces: Vec<_> = Pieces(data).collect();
    for (way, pieces) in [&at_once[..], &pieces].into_iter().enumerate() {
        let mut server = Server::default();
        for piece in pieces {
            let failed = server.receive(piece).is_err();
            while let Some(event) = server.poll() {
                match &event {
                    ServerEvent::Prepare(_) => server.ready(),
                    ServerEvent::Run(test) => {
                        assert!(test.streams > 0 && test.first_port >= 5_000);
                        assert!(test.ports().count() == usize::from(test.streams));
                        server.interval(&Interval::default());
                        server.finish(&Counts::default());
                    }
                    ServerEvent::ClientClosed | ServerEvent::Close => {}
                }
                events[way].push(event);
            }
            said[way].extend_from_slice(server.outgoing());
            server.sent(server.outgoing().len());
            assert!(said[way].len() < 4_096, "too much output");
            if failed {
                break;
            }
        }
        let _ = server.closed();
    }
    assert_eq!(events[0], events[1]);
    assert_eq!(said[0], said[1]);
}

/// nuttcp client: any bytes on the control connection.
pub fn nuttcp_client(data: &[u8]) {
    for carrier in [Carrier::Stream, Carrier::Datagram] {
        let mut client =
            Client::new(Test::new(Way::ToServer, carrier, 5_001)).expect("a valid test");
        for piece in Pieces(data) {
            let failed = client.receive(piece).is_err();
            while let Some(event) = client.poll() {
                if let ClientEvent::Prepare(_) = event {
                    client.ready();
                }
            }
            if failed {
                break;
            }
        }
        let _ = client.closed();
        // 2,000 interval lines and 64 others are stored.
        assert!(client.report().text.len() <= 2_000 + 64);
        let _ = client.far_report();
    }
}

/// nuttcp datagrams: the first bytes are a test, the others datagrams; a sender of this test ends.
pub fn nuttcp_udp(data: &[u8]) {
    let Some((&[intervals, streams, size, buffers], data)) = data.split_first_chunk() else {
        return;
    };
    let test = Test {
        interval_ns: (intervals & 1 == 1).then_some(1_000_000),
        streams: u16::from(streams % 8) + 1,
        buffer_bytes: usize::from(size) + 5,
        buffers: Some(u64::from(buffers)),
        rate_kbps: (intervals & 2 == 2).then_some(u64::from(size)),
        time_ns: (intervals & 4 == 4).then_some(u64::from(size) << 20),
        ..Test::new(Way::ToServer, Carrier::Datagram, 5_001)
    };
    let mut receiver = UdpReceiver::new(&test, 0);
    let (mut bytes, mut packets, mut now) = (0, 0, 0u64);
    for piece in Pieces(data) {
        now = now.wrapping_add(piece.first().map_or(1, |&step| u64::from(step) << 22));
        receiver.receive(now, piece);
        if piece.len() > 4 {
            bytes += piece.len() as u64;
            packets += 1;
        }
        let totals = receiver.totals();
        assert_eq!((totals.bytes, totals.packets), (bytes, packets));
        let _ = (receiver.lost(), receiver.is_over(now));
    }
    let mut sender = UdpSender::new(&test);
    let mut buffer = vec![0; test.buffer_bytes];
    let mut now = 0;
    for _ in 0..2_000 {
        match sender.step(now) {
            linerate_dialect::nuttcp::Send::Wait { until_ns } => {
                assert!(until_ns > now);
                now = until_ns;
            }
            linerate_dialect::nuttcp::Send::Nothing => {
                assert!(sender.sent() <= u64::from(buffers));
                return;
            }
            linerate_dialect::nuttcp::Send::Data { stream } => {
                assert!(stream < test.streams);
                sender.stamp(&mut buffer);
            }
            linerate_dialect::nuttcp::Send::Marker { .. } => {}
        }
    }
    panic!("the sender does not end");
}
