//! The characters of RFC 864, compared with those of an upstream server.

use linerate_protocol::chargen::{LINE_BYTES, PERIOD_BYTES, REPLY_LIMIT_BYTES, fill, reply};
use proptest::prelude::*;

/// The first hundred lines that inetutils' inetd 2.4 sends over TCP.
const UPSTREAM: &[u8] = include_bytes!("../fixtures/chargen-inetutils-2.4.txt");

#[test]
fn the_stream_is_that_of_an_upstream_server() {
    assert_eq!(UPSTREAM.len(), 100 * LINE_BYTES);
    let mut ours = vec![0; UPSTREAM.len()];
    fill(0, &mut ours);
    assert_eq!(ours, UPSTREAM);
    assert_eq!(PERIOD_BYTES, 95 * LINE_BYTES);
}

#[test]
fn a_reply_is_no_larger_than_the_request() {
    let mut out = [0; 2_000];
    for (request, size) in [
        (0, 0),
        (1, 1),
        (74, 74),
        (300, 300),
        (512, REPLY_LIMIT_BYTES),
        (1_472, REPLY_LIMIT_BYTES),
        (65_507, REPLY_LIMIT_BYTES),
    ] {
        assert_eq!(reply(request, 0, &mut out), size, "{request}");
        assert_eq!(out[..size], UPSTREAM[..size], "{request}");
    }
    // The second reply of an upstream server is the second line.
    assert_eq!(reply(74, 1, &mut out), 74);
    assert_eq!(out[..74], UPSTREAM[74..148]);
    assert_eq!(reply(500, 0, &mut [0; 10]), 10, "limited by the buffer");
}

proptest! {
    #[test]
    fn fragments_make_the_stream(offset: u64, sizes in prop::collection::vec(0usize..300, 1..10)) {
        // The stream repeats only below 2^64: the sum of offset and period must not overflow.
        let offset = offset / 2;
        let total: usize = sizes.iter().sum();
        let mut whole = vec![0; total];
        fill(offset, &mut whole);
        let mut split = Vec::new();
        for size in sizes {
            let mut piece = vec![0; size];
            fill(offset + split.len() as u64, &mut piece);
            split.extend(piece);
        }
        prop_assert_eq!(&split, &whole);
        let after = offset + PERIOD_BYTES as u64;
        let (mut first, mut again) = ([0; 50], [0; 50]);
        fill(offset, &mut first);
        fill(after, &mut again);
        prop_assert_eq!(first, again);
    }

    #[test]
    fn no_request_panics(request: usize, line: u64, room in 0usize..1_000) {
        let mut out = vec![0; room];
        prop_assert!(reply(request, line, &mut out) <= request.min(room));
    }
}
