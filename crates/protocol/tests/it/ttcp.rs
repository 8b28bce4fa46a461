//! Classic ttcp: markers and payload.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use linerate_protocol::plain::{ReceivedTotals, SILENCE_NS};
use linerate_protocol::sniff::{Classification, TransportKind, classify};
use linerate_protocol::ttcp::{BUFFER_BYTES, END_MARKERS, MARKER, TtcpDatagram, TtcpReceiver};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// Checks datagrams as (milliseconds, size): kind of each, bytes, packets, duration in
/// milliseconds.
#[test]
fn markers_delimit_start_and_end() {
    use TtcpDatagram::{Data, End, RepeatedMarker, Start};
    type Case<'a> = (
        &'a str,
        &'a [(u64, usize)],
        &'a [TtcpDatagram],
        (u64, u64, Option<u64>),
    );
    let cases: &[Case<'_>] = &[
        (
            "all there",
            &[(0, 4), (1, 8_192), (9, 8_192), (10, 4), (10, 4)],
            &[Start, Data, Data, End, RepeatedMarker],
            (16_384, 2, Some(9)),
        ),
        (
            "the start was lost: the first end marker ends it",
            &[(1, 8_192), (9, 8_192), (10, 4), (11, 4)],
            &[Data, Data, End, RepeatedMarker],
            (16_384, 2, Some(8)),
        ),
        (
            "the end was lost four times",
            &[(0, 1), (5, 100), (7, 1)],
            &[Start, Data, End],
            (100, 1, Some(5)),
        ),
        (
            "the whole end was lost: silence ends it",
            &[(0, 4), (5, 100)],
            &[Start, Data],
            (100, 1, Some(5)),
        ),
        (
            "the start came twice",
            &[(0, 4), (1, 4), (5, 100), (6, 4)],
            &[Start, RepeatedMarker, Data, End],
            (100, 1, Some(5)),
        ),
        (
            "late payload counts too",
            &[(0, 4), (5, 100), (6, 4), (7, 100)],
            &[Start, Data, End, Data],
            (200, 2, Some(7)),
        ),
        (
            "small datagrams only: not ttcp, but they count",
            &[(0, 3), (1, 3), (2, 3)],
            &[Start, RepeatedMarker, RepeatedMarker],
            (9, 3, Some(2)),
        ),
        ("a start alone", &[(0, 4)], &[Start], (0, 0, None)),
    ];
    for (name, datagrams, kinds, (bytes, packets, duration_ms)) in cases {
        let mut receiver = TtcpReceiver::default();
        let is: Vec<_> = datagrams
            .iter()
            .map(|&(at, size)| receiver.receive(at * MS, size))
            .collect();
        assert_eq!(&is, kinds, "{name}");
        assert_eq!(
            receiver.totals(),
            ReceivedTotals {
                bytes: *bytes,
                packets: *packets,
                duration_ns: duration_ms.map(|ms| ms * MS)
            },
            "{name}"
        );
        let last = datagrams.last().unwrap().0 * MS;
        assert_eq!(receiver.is_over(last), kinds.contains(&End), "{name}");
        assert!(receiver.is_over(last + SILENCE_NS), "{name}");
    }
    assert!(!TtcpReceiver::default().is_over(u64::MAX));
}

#[test]
fn small_datagrams_of_no_other_protocol_are_markers() {
    let name = |bytes: &[u8]| match classify(TransportKind::Datagram, bytes) {
        Classification::Known(dialect) => dialect.name,
        _ => "none",
    };
    for (bytes, expected) in [
        (&b"\0\0\0\0"[..], "ttcp"),
        (b" ", "ttcp"),
        (b" !\"#", "ttcp"),
        (&MARKER, "ttcp"),
        // A marker of a nuttcp test that is over.
        (b"EOD1", "none"),
        (b"", "none"),
        (b"12345", "none"),
        (b"BOD0", "nuttcp"),
        (b"9876", "iperf3"),
        (b"\x15\xcd\x5b\x07", "iperf3"),
    ] {
        assert_eq!(name(bytes), expected, "{bytes:02x?}");
    }
}

/// Returns the sizes of the datagrams of a transmitter: markers, and `buffers` between them.
fn datagrams(buffers: u64, size: usize) -> Vec<usize> {
    let mut sizes = vec![MARKER.len()];
    sizes.extend((0..buffers).map(|_| size));
    sizes.extend([MARKER.len(); END_MARKERS as usize]);
    sizes
}

proptest! {
    /// Loses any single markers: the payload is counted.
    #[test]
    fn our_ends_interoperate(buffers in 1u64..50, lost in prop::collection::vec(0usize..6, 0..5), size in 5usize..9_000) {
        let mut receiver = TtcpReceiver::default();
        let (mut marker, mut now) = (0, 0);
        for datagram in datagrams(buffers, size) {
            now += MS;
            if datagram == MARKER.len() {
                marker += 1;
                if lost.contains(&(marker - 1)) {
                    continue;
                }
            }
            receiver.receive(now, datagram);
        }
        let totals = receiver.totals();
        prop_assert_eq!((totals.bytes, totals.packets), (buffers * size as u64, buffers));
        prop_assert!(receiver.is_over(now + SILENCE_NS));
    }

    #[test]
    fn no_datagrams_panic(datagrams in prop::collection::vec((any::<u64>(), 0usize..10), 0..50)) {
        let mut receiver = TtcpReceiver::default();
        for (now, size) in datagrams {
            receiver.receive(now, size);
            let _ = receiver.is_over(now);
        }
        let _ = receiver.totals();
    }
}

/// Sends our markers to our receiver over UDP.
#[test]
fn datagrams_over_loopback() {
    let start = Instant::now();
    let now = move || u64::try_from(start.elapsed().as_nanos()).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let receiving = std::thread::spawn(move || {
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let mut receiver = TtcpReceiver::default();
        let mut buffer = vec![0; BUFFER_BYTES];
        while !receiver.is_over(now()) {
            if let Ok(bytes) = socket.recv(&mut buffer) {
                receiver.receive(now(), bytes);
            }
        }
        receiver.totals()
    });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.send(&MARKER).unwrap();
    for _ in 0..10 {
        socket.send(&[7; BUFFER_BYTES]).unwrap();
    }
    for _ in 0..END_MARKERS {
        // The receiver may end after the first.
        let _ = socket.send(&MARKER);
    }
    let totals = receiving.join().unwrap();
    assert_eq!((totals.bytes, totals.packets), (10 * 8_192, 10));
}
