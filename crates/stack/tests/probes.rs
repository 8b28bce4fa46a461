//! Choice of the tail probe's delay (`tcp.tail_probe`): its cost when segments are lost, and its
//! benefit when a receiver in user space only waits for its processor. All in simulated time, over
//! a path of 1 ms.

mod common;

use std::fmt::Write;
use std::task::Poll;

use common::{Link, World, ready};

const MS: u64 = 1_000_000;

/// Round-trip time of the path.
const ROUND_TRIP: u64 = MS;

fn world(probe: &str) -> World {
    let key = format!("tcp.tail_probe={probe}");
    let settings = [&key, "tcp.send_buffer=256K", "tcp.receive_window=256K"];
    let link = Link {
        delay_ns: ROUND_TRIP / 2,
        ..Link::CLEAN
    };
    World::alike(&settings, link)
}

/// Returns the goodput in Mb/s of a stream whose receiver pauses about every 40 ms for `wait_ms`,
/// and the spurious retransmissions.
fn waiting(probe: &str, wait_ms: u64) -> (u64, u64) {
    const TIME: u64 = 400 * MS;
    let mut world = world(probe);
    let (client, server) = world.connected(80);
    let mut random = fastrand::Rng::with_seed(7);
    let end = world.now + TIME;
    let (mut stands, mut goes_on, mut received) = (world.now + 10 * MS, 0, 0);
    while world.now < end {
        while let Poll::Ready(sent) = world.near.tcp_send(client, |room| room.len()) {
            sent.unwrap();
        }
        world.near.turn(world.now);
        if world.now >= stands {
            goes_on = world.now + wait_ms * MS;
            stands = goes_on + random.u64(20 * MS..60 * MS);
        }
        if world.now >= goes_on {
            world.far.turn(world.now);
            while let Poll::Ready(got) = world
                .far
                .tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
            {
                received += got.unwrap() as u64;
            }
            world.far.flush();
        }
        world.wire.carry(world.now);
        match world.now < goes_on {
            true => world.now += MS / 10,
            false => world.pass(),
        }
    }
    let again = world.near.counters().tcp.retransmitted_segments;
    (received * 8_000 / TIME, again)
}

/// Returns the time in ms until the last of 20 segments arrives when the last three are lost.
fn lost_tail(probe: &str) -> u64 {
    const BYTES: usize = 20 * 1_460;
    let mut world = world(probe);
    let (client, server) = world.connected(80);
    let mut took = 0;
    for turn in 0..6 {
        // The round-trip time is measured by then.
        let loses = turn >= 3;
        let mut count = 0;
        world.wire.watch = Box::new(move |end, frame| {
            count += u32::from(end == 0 && frame.len() > 1_000);
            !(loses && (18..=20).contains(&count) && end == 0)
        });
        let (start, mut written, mut received) = (world.now, 0, 0);
        while written < BYTES {
            let rest = BYTES - written;
            written += ready(world.near.tcp_send(client, |room| room.len().min(rest)));
        }
        world.until(10, |world| {
            while let Poll::Ready(got) = world
                .far
                .tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
            {
                received += got.unwrap();
            }
            received == BYTES
        });
        took = world.now - start;
        world.run(200);
    }
    took / MS
}

/// A thread that shares its processor with one, two or three others of its class waits 4, 8 or 12
/// ms for it: one tick for each, in a kernel with 250 ticks a second, as distributions build it
/// (measured, to the tenth of a millisecond). So `on` means 10 ms: more than two ticks and less
/// than three.
#[test]
fn a_probe_waits_out_two_ticks() {
    let mut table =
        String::from("probe  lost tail  Mb/s/retransmissions, for receiver pauses of\n");
    table.push_str("                  0 ms      4 ms      8 ms      12 ms\n");
    let mut rows = Vec::new();
    for probe in ["1us", "2ms", "6ms", "on", "20ms", "off"] {
        let tail = lost_tail(probe);
        let rates = [0, 4, 8, 12].map(|wait| waiting(probe, wait));
        write!(table, "{probe:5} {tail:4} ms").unwrap();
        for (rate, again) in rates {
            write!(table, "{rate:7}/{again:<2}").unwrap();
        }
        table.push('\n');
        rows.push((tail, rates));
    }
    insta::assert_snapshot!(table);
    let [.., six, on, twenty, off] = &rows[..] else {
        panic!("there are six rows");
    };
    let rate = |row: &(u64, [(u64, u64); 4]), place: usize| row.1[place].0 as f64;
    // Two ticks cost nothing; with a shorter delay they would.
    assert_eq!(on.1[2].1, 0, "{table}");
    assert!(rate(on, 2) > 0.98 * rate(off, 2), "{table}");
    assert!(rate(six, 2) < 0.85 * rate(on, 2), "{table}");
    // Three ticks would need a longer delay, by which each lost tail would be recovered later.
    assert!(on.1[3].1 > 0 && twenty.1[3].1 == 0, "{table}");
    assert!(on.0 < twenty.0 && 2 * on.0 < off.0, "{table}");
}

/// More data than leaves at a time: no acknowledgement of the first segments can have arrived when
/// the next ones leave.
#[test]
fn a_burst_after_a_pause_is_not_probed() {
    let mut world = world("on");
    let (client, server) = world.connected(80);
    for pause in [0, 20 * MS, 60_000 * MS] {
        world.now += pause;
        let mut received = 0;
        for _ in 0..4 {
            ready(world.near.tcp_send(client, |room| room.len().min(20_000)));
        }
        world.until(10, |world| {
            while let Poll::Ready(got) = world
                .far
                .tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
            {
                received += got.unwrap();
            }
            received == 80_000 && world.near.tcp_queued(client).unwrap().0 == 0
        });
        let again = world.near.counters().tcp.retransmitted_segments;
        assert_eq!(again, 0, "after {} ms", pause / MS);
    }
}
