//! sockperf's messages.

use linerate_dialect::sockperf::{Asks, BACKLOG_LIMIT_BYTES, Client, HEADER_BYTES, Server, Step};

use crate::Pieces;

/// A server and a client read pieces of streams and datagrams.
pub fn sockperf(data: &[u8]) {
    let mut server = Server::default();
    let mut came = 0;
    let mut failed = false;
    'stream: for piece in Pieces(data) {
        let mut rest = piece;
        while !rest.is_empty() {
            match server.receive(rest) {
                Ok(taken) => {
                    came += taken;
                    rest = &rest[taken..];
                    assert!(server.outgoing().len() <= came);
                    assert!(server.outgoing().len() <= BACKLOG_LIMIT_BYTES + HEADER_BYTES);
                    if taken == 0 {
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
    let whole: Vec<u8> = Pieces(data).flatten().copied().collect();
    if whole.len() < BACKLOG_LIMIT_BYTES {
        let mut at_once = Server::default();
        assert_eq!(at_once.receive(&whole).is_err(), failed);
        assert_eq!(at_once.outgoing(), server.outgoing());
        assert_eq!(at_once.totals(), server.totals());
    }

    let mut server = Server::default();
    let mut client = Client::new(Asks::Every(1), 14, 0, 1_000, 0);
    for (now, piece) in (0..).zip(Pieces(data)) {
        let mut datagram = piece.to_vec();
        server.datagram(&mut datagram);
        // Only flags change.
        assert_eq!(datagram.len(), piece.len());
        assert!(
            datagram
                .iter()
                .zip(piece)
                .enumerate()
                .all(|(at, (a, b))| a == b || at == 9)
        );
        if let Step::Send(header) = client.step(now) {
            assert!(header.is_plausible());
        }
        client.datagram(now, piece);
        let (taken, _) = client.receive(now, piece).unwrap_or((0, None));
        assert!(taken <= piece.len());
        assert!(client.answered() + client.lost() <= client.sent());
    }
}
