//! sockperf's messages.

use linerate_dialect::sockperf::{BACKLOG_LIMIT_BYTES, HEADER_BYTES, Header, Server, Took};

use crate::Pieces;

/// sockperf server: pieces of streams, and datagrams.
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
    for piece in Pieces(data) {
        let mut datagram = piece.to_vec();
        if let Took::Answer(asked) = server.datagram(&mut datagram) {
            assert_eq!(Header::read(piece), Some(asked));
            assert_eq!(Header::read(&datagram), Some(asked.answered()));
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
