//! Encrypted control connections.

mod samples;

use linerate_dialect::control::{
    Bye, Connection, ControlError, Frame, Heartbeat, Hello, KEY_BYTES, Key, Proof,
};
use proptest::prelude::*;
use samples::Source;

const OURS: &[u8] = b"a secret of some length";
const OTHER: &[u8] = b"another secret of some length";

fn proof(secret: &[u8], random: u8) -> Proof {
    Proof {
        key: Key::new(secret).unwrap(),
        random: [random; KEY_BYTES],
    }
}

fn client(secret: Option<&[u8]>) -> Connection {
    let hello = Hello::new("client");
    match secret {
        Some(secret) => Connection::proving_client(hello, proof(secret, 1)),
        None => Connection::client(hello),
    }
    .unwrap()
}

fn server(secret: Option<&[u8]>) -> Connection {
    let hello = Hello::new("server");
    match secret {
        Some(secret) => Connection::proving_server(hello, proof(secret, 2)),
        None => Connection::server(hello),
    }
    .unwrap()
}

fn take(connection: &mut Connection) -> Vec<u8> {
    let bytes = connection.outgoing().to_vec();
    connection.sent(bytes.len());
    bytes
}

fn feed(to: &mut Connection, bytes: &[u8], piece: usize) -> Result<Vec<Frame>, ControlError> {
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
fn talk(
    client: &mut Connection,
    server: &mut Connection,
    piece: usize,
) -> (Result<(), ControlError>, Result<(), ControlError>) {
    let (mut near, mut far) = (Ok(()), Ok(()));
    loop {
        let (out, back) = (take(client), take(server));
        if out.is_empty() && back.is_empty() {
            return (near, far);
        }
        if far.is_ok() {
            far = feed(server, &out, piece).map(|_| ());
        }
        if near.is_ok() {
            near = feed(client, &back, piece).map(|_| ());
        }
    }
}

fn pair() -> (Connection, Connection) {
    let (mut near, mut far) = (client(Some(OURS)), server(Some(OURS)));
    let (a, b) = talk(&mut near, &mut far, 1000);
    a.unwrap();
    b.unwrap();
    (near, far)
}

/// The wire format does not drift: the same secret and random bytes give the same messages.
#[test]
fn the_handshake_does_not_drift() {
    let (mut near, mut far) = (client(Some(OURS)), server(Some(OURS)));
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
fn whoever_has_no_key_or_another_learns_what_to_do() {
    type Check = fn(&ControlError) -> bool;
    type Secret = Option<&'static [u8]>;
    let cases: [(Secret, Secret, Check, Check); 3] = [
        (
            None,
            Some(OURS),
            |near| matches!(near, ControlError::KeyDemanded),
            |far| matches!(far, ControlError::KeyMissing),
        ),
        (
            Some(OURS),
            None,
            |near| matches!(near, ControlError::KeyUnused),
            |far| matches!(far, ControlError::KeyUnknown),
        ),
        (
            Some(OTHER),
            Some(OURS),
            |near| matches!(near, ControlError::KeyDiffers),
            |far| matches!(far, ControlError::KeyDiffers),
        ),
    ];
    for (ours, theirs, near_is, far_is) in cases {
        for piece in [1, 7, 1000] {
            let (mut near, mut far) = (client(ours), server(theirs));
            let (near_end, far_end) = talk(&mut near, &mut far, piece);
            let near_end = near_end.unwrap_err();
            assert!(near_is(&near_end), "{near_end:?}");
            let far_end = far_end.unwrap_err();
            assert!(far_is(&far_end), "{far_end:?}");
            assert!(near.peer().is_none() && far.peer().is_none());
        }
    }
}

#[test]
fn nothing_is_said_in_clear() {
    let (mut near, mut far) = pair();
    let secret = "eavesdropper";
    near.send(&Frame::from(Bye {})).unwrap();
    far.send(
        &linerate_dialect::control::Refuse {
            problem: linerate_metric::event::Problem::new(secret, secret, secret),
            exit_code: 5,
            may_pass: false,
        }
        .into(),
    )
    .unwrap();
    let sealed = far.outgoing();
    let find = |needle: &[u8]| sealed.windows(needle.len()).any(|bytes| bytes == needle);
    assert!(!find(secret.as_bytes()));
    let back = take(&mut far);
    assert!(matches!(
        feed(&mut near, &back, 3).unwrap()[..],
        [Frame::Refuse(_)]
    ));
}

/// A recording cannot be replayed: the server's random bytes differ.
#[test]
fn a_recording_is_worth_nothing() {
    let (mut near, mut far) = (client(Some(OURS)), server(Some(OURS)));
    let first = take(&mut near);
    feed(&mut far, &first, 1000).unwrap();
    let second = take(&mut far);
    feed(&mut near, &second, 1000).unwrap();
    let third = take(&mut near);
    assert_eq!(feed(&mut far, &third, 1000).unwrap().len(), 1);

    let again = Proof {
        random: [3; KEY_BYTES],
        ..proof(OURS, 0)
    };
    let mut other = Connection::proving_server(Hello::new("server"), again).unwrap();
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
    fn pieces_change_nothing(seed: u64, piece in 1usize..2000) {
        let mut source = Source::Random(fastrand::Rng::with_seed(seed));
        let (mut near, mut far) = (client(Some(OURS)), server(Some(OURS)));
        let (a, b) = talk(&mut near, &mut far, piece);
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
        let (mut near, mut far) = (client(Some(OURS)), server(Some(OURS)));
        let mut first = take(&mut near);
        let at = place.index(first.len());
        first[at] ^= 1 << bit;
        let done = feed(&mut far, &first, 1000);
        prop_assert!(done.is_err() || far.outgoing().is_empty(), "{:?}", done);
        prop_assert!(far.peer().is_none());
    }

    #[test]
    fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut far = server(Some(OURS));
        let opening = take(&mut client(Some(OURS)))[..9].to_vec();
        let _ = feed(&mut far, &[&opening[..], &bytes].concat(), 64);
        prop_assert!(far.peer().is_none());
    }
}
