//! Encrypted control connections.

use crate::samples::Source;
use linerate_protocol::control::{
    Bye, ControlCodec, ControlError, FIRST_FRAME_LIMIT_BYTES, Frame, Heartbeat, Hello, KEY_BYTES,
    NoiseCredentials, PresharedKey, is_first_frame_complete,
};
use proptest::prelude::*;

const SECRET: &[u8] = b"a secret of some length";
const OTHER_SECRET: &[u8] = b"another secret of some length";

fn credentials(secret: &[u8], random: u8) -> NoiseCredentials {
    NoiseCredentials {
        key: PresharedKey::new(secret).unwrap(),
        random: [random; KEY_BYTES],
    }
}

fn client(secret: Option<&[u8]>) -> ControlCodec {
    let hello = Hello::new("client");
    match secret {
        Some(secret) => ControlCodec::authenticated_client(hello, credentials(secret, 1)),
        None => ControlCodec::client(hello),
    }
    .unwrap()
}

fn server(secret: Option<&[u8]>) -> ControlCodec {
    let hello = Hello::new("server");
    match secret {
        Some(secret) => ControlCodec::authenticated_server(hello, credentials(secret, 2)),
        None => ControlCodec::server(hello),
    }
    .unwrap()
}

fn take(connection: &mut ControlCodec) -> Vec<u8> {
    let bytes = connection.outgoing().to_vec();
    connection.mark_sent(bytes.len());
    bytes
}

fn feed(to: &mut ControlCodec, bytes: &[u8], piece: usize) -> Result<Vec<Frame>, ControlError> {
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece) {
        to.receive(piece)?;
        while let Some(frame) = to.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

/// Moves bytes between two ends until neither sends any; returns the result of each end.
fn exchange(
    client: &mut ControlCodec,
    server: &mut ControlCodec,
    piece: usize,
) -> (Result<(), ControlError>, Result<(), ControlError>) {
    let (mut client_result, mut server_result) = (Ok(()), Ok(()));
    loop {
        let (out, back) = (take(client), take(server));
        if out.is_empty() && back.is_empty() {
            return (client_result, server_result);
        }
        if server_result.is_ok() {
            server_result = feed(server, &out, piece).map(|_| ());
        }
        if client_result.is_ok() {
            client_result = feed(client, &back, piece).map(|_| ());
        }
    }
}

fn pair() -> (ControlCodec, ControlCodec) {
    let (mut client_end, mut server_end) = (client(Some(SECRET)), server(Some(SECRET)));
    let (a, b) = exchange(&mut client_end, &mut server_end, 1000);
    a.unwrap();
    b.unwrap();
    (client_end, server_end)
}

/// The wire format does not drift: the same secret and random bytes give the same messages.
#[test]
fn the_handshake_does_not_drift() {
    let (mut near, mut far) = (client(Some(SECRET)), server(Some(SECRET)));
    let mut lines = String::new();
    for _ in 0..3 {
        let out = take(&mut near);
        lines += &format!("client {}\n", hex(&out));
        feed(&mut far, &out, 1000).unwrap();
        let back = take(&mut far);
        lines += &format!("server {}\n", hex(&back));
        feed(&mut near, &back, 1000).unwrap();
    }
    insta::assert_snapshot!(lines);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_missing_or_different_key_is_reported_at_both_ends() {
    type Check = fn(&ControlError) -> bool;
    type Secret = Option<&'static [u8]>;
    let cases: [(Secret, Secret, Check, Check); 3] = [
        (
            None,
            Some(SECRET),
            |client_end| matches!(client_end, ControlError::ServerRequiresKey),
            |server_end| matches!(server_end, ControlError::ClientHasNoKey),
        ),
        (
            Some(SECRET),
            None,
            |client_end| matches!(client_end, ControlError::ServerHasNoKey),
            |server_end| matches!(server_end, ControlError::UnexpectedClientKey),
        ),
        (
            Some(OTHER_SECRET),
            Some(SECRET),
            |client_end| matches!(client_end, ControlError::KeyMismatch),
            |server_end| matches!(server_end, ControlError::KeyMismatch),
        ),
    ];
    for (client_secret, server_secret, client_check, server_check) in cases {
        for piece in [1, 7, 1000] {
            let (mut client_end, mut server_end) = (client(client_secret), server(server_secret));
            let (client_error, server_error) = exchange(&mut client_end, &mut server_end, piece);
            let client_error = client_error.unwrap_err();
            assert!(client_check(&client_error), "{client_error:?}");
            let server_error = server_error.unwrap_err();
            assert!(server_check(&server_error), "{server_error:?}");
            assert!(client_end.peer_hello().is_none() && server_end.peer_hello().is_none());
        }
    }
}

#[test]
fn frames_are_encrypted() {
    let (mut client, mut server) = pair();
    let secret = "eavesdropper";
    client.send(&Frame::from(Bye {})).unwrap();
    server
        .send(
            &linerate_protocol::control::Reject {
                problem: linerate_record::event::ErrorReport::new(secret, secret, secret),
                exit_code: 5,
                retryable: false,
            }
            .into(),
        )
        .unwrap();
    let encrypted = server.outgoing();
    let find = |needle: &[u8]| encrypted.windows(needle.len()).any(|bytes| bytes == needle);
    assert!(!find(secret.as_bytes()));
    let back = take(&mut server);
    assert!(matches!(
        feed(&mut client, &back, 3).unwrap()[..],
        [Frame::Reject(_)]
    ));
}

/// A recording cannot be replayed: the server's random bytes differ.
#[test]
fn a_recording_cannot_be_replayed() {
    let (mut near, mut far) = (client(Some(SECRET)), server(Some(SECRET)));
    let first = take(&mut near);
    feed(&mut far, &first, 1000).unwrap();
    let second = take(&mut far);
    feed(&mut near, &second, 1000).unwrap();
    let third = take(&mut near);
    assert_eq!(feed(&mut far, &third, 1000).unwrap().len(), 1);

    let other_credentials = NoiseCredentials {
        random: [3; KEY_BYTES],
        ..credentials(SECRET, 0)
    };
    let mut other =
        ControlCodec::authenticated_server(Hello::new("server"), other_credentials).unwrap();
    feed(&mut other, &first, 1000).unwrap();
    let error = feed(&mut other, &third, 1000).unwrap_err();
    assert!(matches!(error, ControlError::Tampered), "{error:?}");
    // A message must not be repeated or left out.
    let error = feed(&mut far, &third, 1000).unwrap_err();
    assert!(matches!(error, ControlError::Tampered), "{error:?}");
    let (mut near, mut far) = pair();
    near.send(&Heartbeat {}.into()).unwrap();
    take(&mut near);
    near.send(&Heartbeat {}.into()).unwrap();
    let second = take(&mut near);
    assert!(feed(&mut far, &second, 1000).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn fragments_change_nothing(seed: u64, piece in 1usize..2000) {
        let mut source = Source::Random(fastrand::Rng::with_seed(seed));
        let (mut near, mut far) = (client(Some(SECRET)), server(Some(SECRET)));
        let (a, b) = exchange(&mut near, &mut far, piece);
        prop_assert!(a.is_ok() && b.is_ok());
        for frame in source.frames() {
            near.send(&frame).unwrap();
            let bytes = take(&mut near);
            let frames = feed(&mut far, &bytes, piece).unwrap();
            prop_assert_eq!(frames.len(), 1);
            prop_assert_eq!(&frames[0], &frame);
        }
    }

    /// Changes a single bit on the path: nothing gets through.
    #[test]
    fn no_bit_can_be_changed(place: prop::sample::Index, bit in 0u8..8) {
        let (mut near, mut far) = pair();
        near.send(&Heartbeat {}.into()).unwrap();
        let mut bytes = take(&mut near);
        let at = place.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // A larger length waits for more bytes; nothing gets through then either.
        match feed(&mut far, &bytes, 1000) {
            Ok(frames) => prop_assert!(frames.is_empty()),
            Err(error) => prop_assert!(matches!(error, ControlError::Tampered)),
        }
    }

    /// Changes a single bit in the first bytes of a connection.
    #[test]
    fn no_bit_of_the_handshake_can_be_changed(place: prop::sample::Index, bit in 0u8..8) {
        let (mut near, mut far) = (client(Some(SECRET)), server(Some(SECRET)));
        let mut first = take(&mut near);
        let at = place.index(first.len());
        first[at] ^= 1 << bit;
        let done = feed(&mut far, &first, 1000);
        prop_assert!(done.is_err() || far.outgoing().is_empty(), "{:?}", done);
        prop_assert!(far.peer_hello().is_none());
    }

    #[test]
    fn garbage_is_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut far = server(Some(SECRET));
        let opening = take(&mut client(Some(SECRET)))[..9].to_vec();
        let _ = feed(&mut far, &[&opening[..], &bytes].concat(), 64);
        prop_assert!(far.peer_hello().is_none());
    }
}

/// A server spends nothing on a connection until its first message is complete.
#[test]
fn the_first_message_of_a_client_is_recognised_as_complete() {
    for secret in [None, Some(SECRET)] {
        let client = client(secret);
        let first = client.outgoing();
        for bytes in 0..first.len() {
            assert!(!is_first_frame_complete(&first[..bytes]), "{bytes}");
        }
        assert!(is_first_frame_complete(first));
        assert!(first.len() <= FIRST_FRAME_LIMIT_BYTES);
    }
    // What is rejected anyway does not wait for more.
    for rejected in [
        &b"\x01lr\xC0\xFFctl\x02"[..],
        b"\x01lr\xC0\xFFctl\0\xff\xff\xff\xff",
        b"\x01lr\xC0\xFFctl\x01\xff\xff",
    ] {
        assert!(is_first_frame_complete(rejected), "{rejected:?}");
    }
}
