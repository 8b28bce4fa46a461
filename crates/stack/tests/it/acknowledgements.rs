//! Timing of acknowledgements (RFC 1122, section 4.2.3.2).

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{LinkModel, TwoStackSim, config, expect_ready};

const MS: u64 = 1_000_000;

/// Length of the IPv4 and TCP headers.
const HEADERS: usize = 20 + 20;

/// Returns the acknowledgements that the receiver has sent after these segments arrived, a
/// millisecond apart, and after the delayed-acknowledgement timer.
fn count_acknowledgements(mtus: [usize; 2], writes: &[usize]) -> (usize, usize) {
    let [sender, receiver] = mtus.map(|mtu| {
        let mtu = format!("mtu={mtu}");
        config(&[
            &mtu,
            "tcp.delayed_ack=200ms",
            "tcp.min_rto=1s",
            // Written data leaves at once.
            "tcp.nagle=off",
            "tcp.congestion_control=none",
        ])
    });
    let mut sim = TwoStackSim::new(&sender, &receiver, LinkModel::CLEAN).after_announcements();
    let (client, server) = sim.connect(80);
    let count = Rc::new(Cell::new(0));
    let counter = Rc::clone(&count);
    sim.wire.filter = Box::new(move |end, _| {
        counter.set(counter.get() + usize::from(end == 1));
        true
    });
    let until = |sim: &mut TwoStackSim, ns: u64| {
        let until = sim.now + ns;
        sim.run_until(5, |sim| sim.now >= until);
        count.get()
    };
    let before = until(&mut sim, 300 * MS);
    for &bytes in writes {
        let sent = expect_ready(sim.local.tcp_send(client, |space| space.len().min(bytes)));
        assert_eq!(sent, bytes);
        until(&mut sim, MS);
    }
    let immediate = until(&mut sim, 50 * MS) - before;
    assert_eq!(
        sim.remote.tcp_queued(server).unwrap().1,
        writes.iter().sum::<usize>()
    );
    (immediate, until(&mut sim, 300 * MS) - before)
}

#[test]
fn the_second_full_segment_is_acknowledged_at_once_whatever_the_peers_mtu() {
    for mtus in [[1_500, 1_500], [9_000, 1_500], [1_500, 9_000], [1_500, 576]] {
        let full = mtus[0].min(mtus[1]) - HEADERS;
        for (writes, immediate, total) in [
            (&[full][..], 0, 1),
            (&[full, full], 1, 1),
            (&[full, full, full], 1, 2),
            (&[full; 4], 2, 2),
            // Short ones are delayed until they exceed a segment.
            (&[10, 10], 0, 1),
            (&[full - 5, 10], 1, 1),
            // A burst is acknowledged once.
            (&[6 * full], 1, 1),
        ] {
            let counts = count_acknowledgements(mtus, writes);
            assert_eq!(
                counts,
                (immediate, total),
                "MTUs {mtus:?}, pieces {writes:?}"
            );
        }
    }
}
