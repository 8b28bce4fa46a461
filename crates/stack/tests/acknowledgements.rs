//! Timing of acknowledgements (RFC 1122, section 4.2.3.2).

mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::{Link, World, config, ready};

const MS: u64 = 1_000_000;

/// Length of the IPv4 and TCP headers.
const HEADERS: usize = 20 + 20;

/// Returns the acknowledgements that the receiver has sent after these segments arrived, a
/// millisecond apart, and after the delayed-acknowledgement timer.
fn acknowledged(mtus: [usize; 2], pieces: &[usize]) -> (usize, usize) {
    let [near, far] = mtus.map(|mtu| {
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
    let mut world = World::new(&near, &far, Link::CLEAN).announced();
    let (client, server) = world.connected(80);
    let count = Rc::new(Cell::new(0));
    let seen = Rc::clone(&count);
    world.wire.watch = Box::new(move |end, _| {
        seen.set(seen.get() + usize::from(end == 1));
        true
    });
    let until = |world: &mut World, ns: u64| {
        let until = world.now + ns;
        world.until(5, |world| world.now >= until);
        count.get()
    };
    let before = until(&mut world, 300 * MS);
    for &bytes in pieces {
        let sent = ready(world.near.tcp_send(client, |room| room.len().min(bytes)));
        assert_eq!(sent, bytes);
        until(&mut world, MS);
    }
    let at_once = until(&mut world, 50 * MS) - before;
    assert_eq!(
        world.far.tcp_queued(server).unwrap().1,
        pieces.iter().sum::<usize>()
    );
    (at_once, until(&mut world, 300 * MS) - before)
}

#[test]
fn the_second_full_segment_is_acknowledged_at_once_whatever_the_far_end_could_take() {
    for mtus in [[1_500, 1_500], [9_000, 1_500], [1_500, 9_000], [1_500, 576]] {
        let full = mtus[0].min(mtus[1]) - HEADERS;
        for (pieces, at_once, later) in [
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
            let told = acknowledged(mtus, pieces);
            assert_eq!(told, (at_once, later), "MTUs {mtus:?}, pieces {pieces:?}");
        }
    }
}
