//! linerate's control protocol, and classification of protocols.

use linerate_protocol::control::{ControlCodec, ControlError, Frame, Heartbeat, Hello, KEY_BYTES, NoiseCredentials, PresharedKey, READ_AHEAD_BYTES, flow};
use linerate_protocol::sniff::{Classification, PROTOCOLS, ProtocolMatch, TransportKind, classify};

use crate::InputPieces;

/// Server: reads pieces of a stream; the parsed frames are encoded again and parse as the same.
pub fn control(data: &[u8]) {
    let mut server = server_codec();
    let mut frames = Vec::new();
    let mut failed = None;
    for piece in InputPieces(data) {
        match read(&mut server, piece, &mut frames) {
            Ok(()) => assert!(server.outgoing().len() <= READ_AHEAD_BYTES),
            Err(error) => {
                failed = Some(error.to_string());
                break;
            }
        }
    }
    // The same bytes as one piece.
    let joined_bytes: Vec<u8> = InputPieces(data).flatten().copied().collect();
    let mut joined = server_codec();
    let mut joined_frames = Vec::new();
    let mut error = None;
    for piece in joined_bytes.chunks(READ_AHEAD_BYTES) {
        if let Err(failure) = read(&mut joined, piece, &mut joined_frames) {
            error = Some(failure.to_string());
            break;
        }
    }
    assert_eq!(format!("{frames:?}"), format!("{joined_frames:?}"));
    assert_eq!(failed, error);

    let Ok(mut client) = ControlCodec::client(Hello::new("client")) else {
        return;
    };
    let mut server_end = server_codec();
    let _ = server_end.receive(client.outgoing());
    client.mark_sent(client.outgoing().len());
    let _ = server_end.next_frame();
    for frame in frames {
        if server_end.send(&frame).is_err() {
            continue;
        }
        let sent = server_end.outgoing().to_vec();
        server_end.mark_sent(sent.len());
        let mut back = Vec::new();
        for piece in sent.chunks(READ_AHEAD_BYTES) {
            read(&mut client, piece, &mut back).expect("what was sent can be read");
        }
        let last = back.pop().expect("a whole frame was sent");
        assert_eq!(format!("{last:?}"), format!("{frame:?}"));
    }
    let _ = (
        flow::read_opening(data),
        flow::read_reply(data),
        flow::read_header(data),
    );
}

/// Encrypted server: bytes from a peer without the key have no effect, as a stream or as changes to
/// one.
pub fn control_encrypted(data: &[u8]) {
    let credentials = |random| NoiseCredentials {
        key: PresharedKey::new(b"a secret of this target").expect("it is long enough"),
        random: [random; KEY_BYTES],
    };
    let fits = "HELLO fits";
    let server =
        || ControlCodec::authenticated_server(Hello::new("server"), credentials(2)).expect(fits);
    let mut unauthenticated = server();
    let mut frames = Vec::new();
    for piece in InputPieces(data) {
        if read(&mut unauthenticated, piece, &mut frames).is_err() {
            break;
        }
    }
    assert!(frames.is_empty() && unauthenticated.peer_hello().is_none());

    let (mut client, mut server_end) = (
        ControlCodec::authenticated_client(Hello::new("client"), credentials(1)).expect(fits),
        server(),
    );
    for _ in 0..2 {
        let (out, mut received) = (client.outgoing().to_vec(), Vec::new());
        client.mark_sent(out.len());
        read(&mut server_end, &out, &mut received).expect("both have the key");
        let back = server_end.outgoing().to_vec();
        server_end.mark_sent(back.len());
        read(&mut client, &back, &mut received).expect("both have the key");
    }
    let mut frame_ends = Vec::new();
    for _ in 0..4 {
        client
            .send(&Heartbeat {}.into())
            .expect("both have exchanged HELLO");
        frame_ends.push(client.outgoing().len());
    }
    let mut stream = client.outgoing().to_vec();
    for (byte, change) in stream.iter_mut().zip(data) {
        *byte ^= change;
    }
    let changed = data
        .iter()
        .take(stream.len())
        .position(|&change| change != 0);
    let unchanged = frame_ends
        .iter()
        .filter(|&&end| changed.is_none_or(|at| end <= at));
    let mut received = Vec::new();
    let done = read(&mut server_end, &stream, &mut received);
    assert!(received.len() <= unchanged.count());
    assert!(done.is_ok() || changed.is_some());
}

fn server_codec() -> ControlCodec {
    ControlCodec::server(Hello::new("server")).expect("HELLO fits")
}

fn read(
    connection: &mut ControlCodec,
    chunk: &[u8],
    frames: &mut Vec<Frame>,
) -> Result<(), ControlError> {
    for part in chunk.chunks(READ_AHEAD_BYTES) {
        connection.receive(part)?;
        while let Some(frame) = connection.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(())
}

/// Classification: more bytes do not change a result, and a datagram is classified at once.
pub fn sniff(data: &[u8]) {
    let mut result = None;
    for length in 0..=data.len().min(256) {
        let current = match classify(TransportKind::Stream, &data[..length]) {
            Classification::Known(protocol) => Some(protocol.name),
            Classification::Unknown => Some("plain"),
            Classification::NeedMore => None,
        };
        if result.is_some() {
            assert_eq!(current, result, "{length} of {data:02x?}");
        }
        result = current;
    }
    assert!(!matches!(
        classify(TransportKind::Datagram, data),
        Classification::NeedMore
    ));
    for protocol in PROTOCOLS {
        let verdict = (protocol.detect)(TransportKind::Datagram, data);
        assert_ne!(verdict, ProtocolMatch::NeedMore, "{}", protocol.name);
        if data.starts_with(b"\x01lr\xC0\xFF") && protocol.name != "linerate" {
            assert_eq!(verdict, ProtocolMatch::No, "{} detects ours", protocol.name);
        }
    }
}
