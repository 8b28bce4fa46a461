//! Payload without a header: counters, and the silence that ends a flow.

use linerate_protocol::plain::{PlainSink, ReceivedTotals, SILENCE_NS};
use linerate_protocol::sniff;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

#[test]
fn a_flow_of_datagrams_ends_after_a_second_of_silence() {
    let mut sink = PlainSink::default();
    assert!(!sink.is_over(u64::MAX), "no datagram yet");
    for number in 0..100 {
        sink.receive(number * 10 * MS, 1_472);
        assert!(!sink.is_over(number * 10 * MS + SILENCE_NS - 1));
    }
    assert!(sink.is_over(990 * MS + SILENCE_NS));
    assert_eq!(
        sink.totals(),
        ReceivedTotals {
            bytes: 147_200,
            packets: 100,
            duration_ns: Some(990 * MS),
        }
    );
}

#[test]
fn one_datagram_has_no_duration_and_empty_ones_count() {
    let mut sink = PlainSink::default();
    sink.receive(5, 0);
    assert_eq!(
        sink.totals(),
        ReceivedTotals {
            bytes: 0,
            packets: 1,
            duration_ns: None,
        }
    );
}

#[test]
fn a_stream_ends_with_its_close_however_silent() {
    let mut sink = PlainSink::default();
    sink.receive(0, 10);
    assert!(!sink.is_closed());
    sink.close(5_000 * MS);
    sink.close(9_000 * MS);
    assert!(sink.is_closed());
    assert_eq!(sink.totals().duration_ns, Some(5_000 * MS));
}

#[test]
fn each_of_them_is_in_the_table() {
    for name in ["plain", "discard", "echo", "chargen", "ttcp"] {
        assert!(
            sniff::PROTOCOLS.iter().any(|dialect| dialect.name == name),
            "{name}"
        );
    }
}

proptest! {
    /// Sums are correct for any size, and a clock that steps back causes no panic.
    #[test]
    fn sums_are_sums(arrivals in prop::collection::vec((any::<u32>(), 0usize..65_536), 0..50)) {
        let mut sink = PlainSink::default();
        for &(at, bytes) in &arrivals {
            sink.receive(u64::from(at), bytes);
        }
        prop_assert_eq!(sink.totals().packets, arrivals.len() as u64);
        let bytes: u64 = arrivals.iter().map(|&(_, bytes)| bytes as u64).sum();
        prop_assert_eq!(sink.totals().bytes, bytes);
    }

    /// Splitting the bytes of a stream changes only the number of calls.
    #[test]
    fn splits_change_nothing(sizes in prop::collection::vec(1usize..5_000, 1..40)) {
        let mut cut = PlainSink::default();
        for (at, &bytes) in (0..).zip(&sizes) {
            cut.receive(at, bytes);
        }
        cut.close(1_000);
        let mut whole = PlainSink::default();
        whole.receive(0, sizes.iter().sum());
        whole.close(1_000);
        prop_assert_eq!(cut.totals().bytes, whole.totals().bytes);
        prop_assert_eq!(cut.totals().duration_ns, whole.totals().duration_ns);
    }
}
