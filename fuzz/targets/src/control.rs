//! linerate's control protocol, and classification of protocols.

use linerate_dialect::control::{
    Connection, ControlError, Frame, Heartbeat, Hello, KEY_BYTES, Key, Proof, READ_AHEAD_BYTES,
    flow,
};
use linerate_dialect::sniff::{Carrier, DIALECTS, Speaker, Verdict, speaker};

use crate::Pieces;

/// Server: reads pieces of a stream; the parsed frames are encoded again and parse as the same.
pub fn control(data: &[u8]) {
    let mut server = connection();
    let mut frames = Vec::new();
    let mut failed = None;
    for piece in Pieces(data) {
        match read(&mut server, piece, &mut frames) {
            Ok(()) => assert!(server.outgoing().len() <= READ_AHEAD_BYTES),
            Err(error) => {
                failed = Some(error.to_string());
                break;
            }
        }
    }
    // The same bytes as one piece.
    let whole: Vec<u8> = Pieces(data).flatten().copied().collect();
    let mut at_once = connection();
    let mut same = Vec::new();
    let mut error = None;
    for piece in whole.chunks(READ_AHEAD_BYTES) {
        if let Err(failure) = read(&mut at_once, piece, &mut same) {
            error = Some(failure.to_string());
            break;
        }
    }
    assert_eq!(format!("{frames:?}"), format!("{same:?}"));
    assert_eq!(failed, error);

    let Ok(mut client) = Connection::client(Hello::new("client")) else {
        return;
    };
    let mut far = connection();
    let _ = far.receive(client.outgoing());
    client.sent(client.outgoing().len());
    let _ = far.next_frame();
    for frame in frames {
        if far.send(&frame).is_err() {
            continue;
        }
        let sent = far.outgoing().to_vec();
        far.sent(sent.len());
        let mut back = Vec::new();
        for piece in sent.chunks(READ_AHEAD_BYTES) {
            read(&mut client, piece, &mut back).expect("what was sent can be read");
        }
        let last = back.pop().expect("a whole frame was sent");
        assert_eq!(format!("{last:?}"), format!("{frame:?}"));
    }
    let _ = (
        flow::read_opening(data),
        flow::read_answer(data),
        flow::read_header(data),
    );
}

/// Encrypted server: bytes from a peer without the key have no effect, as a stream or as changes to
/// one.
pub fn sealed(data: &[u8]) {
    let proof = |random| Proof {
        key: Key::new(b"a secret of this target").expect("it is long enough"),
        random: [random; KEY_BYTES],
    };
    let fits = "HELLO fits";
    let server = || Connection::proving_server(Hello::new("server"), proof(2)).expect(fits);
    let mut stranger = server();
    let mut frames = Vec::new();
    for piece in Pieces(data) {
        if read(&mut stranger, piece, &mut frames).is_err() {
            break;
        }
    }
    assert!(frames.is_empty() && stranger.peer().is_none());

    let (mut client, mut far) = (
        Connection::proving_client(Hello::new("client"), proof(1)).expect(fits),
        server(),
    );
    for _ in 0..2 {
        let (out, mut heard) = (client.outgoing().to_vec(), Vec::new());
        client.sent(out.len());
        read(&mut far, &out, &mut heard).expect("both have the key");
        let back = far.outgoing().to_vec();
        far.sent(back.len());
        read(&mut client, &back, &mut heard).expect("both have the key");
    }
    let mut ends = Vec::new();
    for _ in 0..4 {
        client
            .send(&Heartbeat {}.into())
            .expect("both have exchanged HELLO");
        ends.push(client.outgoing().len());
    }
    let mut stream = client.outgoing().to_vec();
    for (byte, change) in stream.iter_mut().zip(data) {
        *byte ^= change;
    }
    let changed = data
        .iter()
        .take(stream.len())
        .position(|&change| change != 0);
    let whole = ends
        .iter()
        .filter(|&&end| changed.is_none_or(|at| end <= at));
    let mut heard = Vec::new();
    let done = read(&mut far, &stream, &mut heard);
    assert!(heard.len() <= whole.count());
    assert!(done.is_ok() || changed.is_some());
}

fn connection() -> Connection {
    Connection::server(Hello::new("server")).expect("HELLO fits")
}

fn read(
    connection: &mut Connection,
    piece: &[u8],
    frames: &mut Vec<Frame>,
) -> Result<(), ControlError> {
    for part in piece.chunks(READ_AHEAD_BYTES) {
        connection.receive(part)?;
        while let Some(frame) = connection.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(())
}

/// Classification: more bytes do not change a result, and a datagram is classified at once.
pub fn sniff(data: &[u8]) {
    let mut told = None;
    for length in 0..=data.len().min(256) {
        let now = match speaker(Carrier::Stream, &data[..length]) {
            Speaker::Known(dialect) => Some(dialect.name),
            Speaker::Unknown => Some("plain"),
            Speaker::NeedMore => None,
        };
        if told.is_some() {
            assert_eq!(now, told, "{length} of {data:02x?}");
        }
        told = now;
    }
    assert!(!matches!(
        speaker(Carrier::Datagram, data),
        Speaker::NeedMore
    ));
    for dialect in DIALECTS {
        let verdict = (dialect.recognise)(Carrier::Datagram, data);
        assert_ne!(verdict, Verdict::NeedMore, "{}", dialect.name);
        if data.starts_with(b"\x01lr\xC0\xFF") && dialect.name != "linerate" {
            assert_eq!(verdict, Verdict::No, "{} detects ours", dialect.name);
        }
    }
}
