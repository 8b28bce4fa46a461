//! Echo, chargen, ttcp and plain payload.

use linerate_protocol::echo::{BACKLOG_LIMIT_BYTES, EchoStream, may_reply_to};
use linerate_protocol::plain::{PlainSink, SILENCE_NS};
use linerate_protocol::{chargen as characters, ttcp as classic};

use crate::InputPieces;

/// Echo: exactly the received bytes are returned.
pub fn echo(data: &[u8]) {
    let mut stream = EchoStream::default();
    let (mut received, mut back) = (Vec::new(), Vec::new());
    for piece in InputPieces(data) {
        let accepted = stream.receive(piece);
        received.extend_from_slice(&piece[..accepted]);
        assert!(stream.outgoing().len() <= BACKLOG_LIMIT_BYTES);
        let returned = stream.outgoing().len() / 2;
        back.extend_from_slice(&stream.outgoing()[..returned]);
        stream.mark_sent(returned);
        if let [high, low, ..] = piece {
            let port = u16::from_be_bytes([*high, *low]);
            assert!(!may_reply_to(port, &[port]));
        }
    }
    stream.close_input();
    back.extend_from_slice(stream.outgoing());
    stream.mark_sent(stream.outgoing().len());
    assert!(stream.is_over());
    assert_eq!(received, back);
}

/// Chargen: no reply is larger than its request, and sections of the stream fit together.
pub fn chargen(data: &[u8]) {
    let Some((offset, rest)) = data.split_first_chunk() else {
        return;
    };
    let offset = u64::from_be_bytes(*offset) / 2;
    let mut expected = vec![0; rest.len()];
    characters::fill(offset, &mut expected);
    let mut at = 0;
    for piece in InputPieces(rest) {
        let mut out = piece.to_vec();
        let size = characters::reply(piece.len(), offset, &mut out);
        assert!(size <= piece.len());
        assert_eq!(out[size..], piece[size..]);
        characters::fill(offset + at as u64, &mut out);
        assert_eq!(out[..], expected[at..at + out.len()]);
        at += out.len();
    }
}

/// Classic ttcp: datagrams of any size, each after some time.
pub fn ttcp(data: &[u8]) {
    let mut receiver = classic::TtcpReceiver::default();
    let (mut now, mut payload) = (0u64, 0);
    for piece in InputPieces(data) {
        now += piece.first().map_or(0, |&step| u64::from(step) << 20);
        if receiver.receive(now, piece.len()) == classic::TtcpDatagram::Data {
            payload += piece.len() as u64;
        }
        assert!(receiver.is_over(now + SILENCE_NS));
    }
    let totals = receiver.totals();
    assert!(payload == 0 || totals.bytes == payload);
}

/// Plain payload: arrivals at any times, also decreasing ones.
pub fn plain(data: &[u8]) {
    let mut sink = PlainSink::default();
    let mut bytes = 0;
    for piece in InputPieces(data) {
        let now = piece
            .first_chunk()
            .map_or(0, |&time| u64::from_be_bytes(time));
        sink.receive(now, piece.len());
        bytes += piece.len() as u64;
        assert_eq!(sink.totals().bytes, bytes);
        assert!(sink.is_over(u64::MAX));
    }
}
