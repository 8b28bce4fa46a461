//! nuttcp's control connection and datagrams.

use linerate_protocol::nuttcp::{NuttcpClient, NuttcpClientEvent, NuttcpCounts, NuttcpDirection, NuttcpInterval, NuttcpServer, NuttcpServerEvent, NuttcpTest, NuttcpUdpReceiver, NuttcpUdpSender};
use linerate_protocol::sniff::TransportKind;

use crate::InputPieces;

/// nuttcp server: any bytes on the control connection.
pub fn nuttcp_server(data: &[u8]) {
    let mut events = [Vec::new(), Vec::new()];
    let mut output = [Vec::new(), Vec::new()];
    let joined_bytes: Vec<u8> = InputPieces(data).flatten().copied().collect();
    let joined = [&joined_bytes[..]];
    let pieces: Vec<_> = InputPieces(data).collect();
    for (run, pieces) in [&joined[..], &pieces].into_iter().enumerate() {
        let mut server = NuttcpServer::default();
        for piece in pieces {
            let failed = server.receive(piece).is_err();
            while let Some(event) = server.poll() {
                match &event {
                    NuttcpServerEvent::Prepare(_) => server.mark_ready(),
                    NuttcpServerEvent::Run(test) => {
                        assert!(test.streams > 0 && test.first_port >= 5_000);
                        assert!(test.ports().count() == usize::from(test.streams));
                        server.report_interval(&NuttcpInterval::default());
                        server.finish(&NuttcpCounts::default());
                    }
                    NuttcpServerEvent::ClientClosed | NuttcpServerEvent::Close => {}
                }
                events[run].push(event);
            }
            output[run].extend_from_slice(server.outgoing());
            server.mark_sent(server.outgoing().len());
            assert!(output[run].len() < 4_096, "too much output");
            if failed {
                break;
            }
        }
        let _ = server.mark_closed();
    }
    assert_eq!(events[0], events[1]);
    assert_eq!(output[0], output[1]);
}

/// nuttcp client: any bytes on the control connection.
pub fn nuttcp_client(data: &[u8]) {
    for transport in [TransportKind::Stream, TransportKind::Datagram] {
        let mut client =
            NuttcpClient::new(NuttcpTest::new(NuttcpDirection::ToServer, transport, 5_001))
                .expect("a valid test");
        for piece in InputPieces(data) {
            let failed = client.receive(piece).is_err();
            while let Some(event) = client.poll() {
                if let NuttcpClientEvent::Prepare(_) = event {
                    client.mark_ready();
                }
            }
            if failed {
                break;
            }
        }
        let _ = client.mark_closed();
        // 2,000 interval lines and 64 others are stored.
        assert!(client.report().text.len() <= 2_000 + 64);
        let _ = client.remote_report();
    }
}

/// nuttcp datagrams: the first bytes are a test, the others datagrams; a sender of this test ends.
pub fn nuttcp_udp(data: &[u8]) {
    let Some((&[intervals, streams, size, buffers], data)) = data.split_first_chunk() else {
        return;
    };
    let test = NuttcpTest {
        interval_ns: (intervals & 1 == 1).then_some(1_000_000),
        streams: u16::from(streams % 8) + 1,
        buffer_bytes: usize::from(size) + 5,
        buffer_limit: Some(u64::from(buffers)),
        rate_kbps: (intervals & 2 == 2).then_some(u64::from(size)),
        duration_ns: (intervals & 4 == 4).then_some(u64::from(size) << 20),
        ..NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Datagram, 5_001)
    };
    let mut receiver = NuttcpUdpReceiver::new(&test, 0);
    let (mut bytes, mut packets, mut now) = (0, 0, 0u64);
    for piece in InputPieces(data) {
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
    let mut sender = NuttcpUdpSender::new(&test);
    let mut buffer = vec![0; test.buffer_bytes];
    let mut now = 0;
    for _ in 0..2_000 {
        match sender.next_action(now) {
            linerate_protocol::nuttcp::NuttcpSendAction::Wait { until_ns } => {
                assert!(until_ns > now);
                now = until_ns;
            }
            linerate_protocol::nuttcp::NuttcpSendAction::Finished => {
                assert!(sender.sent_datagrams() <= u64::from(buffers));
                return;
            }
            linerate_protocol::nuttcp::NuttcpSendAction::Data { stream } => {
                assert!(stream < test.streams);
                sender.write_count(&mut buffer);
            }
            linerate_protocol::nuttcp::NuttcpSendAction::Marker { .. } => {}
        }
    }
    panic!("the sender does not end");
}
