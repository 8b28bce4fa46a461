//! sockperf's messages.

use linerate_protocol::sockperf::{BACKLOG_LIMIT_BYTES, HEADER_BYTES, SockperfDatagram, SockperfHeader, SockperfServer};

use crate::InputPieces;

/// sockperf server: pieces of streams, and datagrams.
pub fn sockperf(data: &[u8]) {
    let mut server = SockperfServer::default();
    let mut received_bytes = 0;
    let mut failed = false;
    'stream: for piece in InputPieces(data) {
        let mut rest = piece;
        while !rest.is_empty() {
            match server.receive_stream(rest) {
                Ok(accepted) => {
                    received_bytes += accepted;
                    rest = &rest[accepted..];
                    assert!(server.outgoing().len() <= received_bytes);
                    assert!(server.outgoing().len() <= BACKLOG_LIMIT_BYTES + HEADER_BYTES);
                    if accepted == 0 {
                        break 'stream;
                    }
                }
                Err(_) => {
                    failed = true;
                    break 'stream;
                }
            }
        }
    }
    let joined_bytes: Vec<u8> = InputPieces(data).flatten().copied().collect();
    if joined_bytes.len() < BACKLOG_LIMIT_BYTES {
        let mut joined = SockperfServer::default();
        assert_eq!(joined.receive_stream(&joined_bytes).is_err(), failed);
        assert_eq!(joined.outgoing(), server.outgoing());
        assert_eq!(joined.totals(), server.totals());
    }

    let mut server = SockperfServer::default();
    for piece in InputPieces(data) {
        let mut datagram = piece.to_vec();
        if let SockperfDatagram::Reply(request) = server.receive_datagram(&mut datagram) {
            assert_eq!(SockperfHeader::read(piece), Some(request));
            assert_eq!(SockperfHeader::read(&datagram), Some(request.to_reply()));
        }
        // Only flags change.
        assert_eq!(datagram.len(), piece.len());
        assert!(
            datagram
                .iter()
                .zip(piece)
                .enumerate()
                .all(|(at, (a, b))| a == b || at == 9)
        );
    }
}
