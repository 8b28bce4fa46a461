//! Lifetime of the path MTU cache, and probing for larger MTUs.

mod common;

use std::task::Poll;

use common::packets::{ETHERNET, V6, complete, ping};
use common::router::{CUTTERS, changing, cut_by, deliver, router, too_long};
use common::{FAR, FAR_V6, Frames, Link, NEAR_V6, World, any, at, byte, ready};
use linerate_stack::{SocketId, StackError};

const SECOND: u64 = 1_000_000_000;

/// Lifetime of a reported or guessed path MTU.
const HOLDS: u64 = 600 * SECOND;

/// Sends `bytes` over an open connection, until everything has arrived and is acknowledged.
fn carry(world: &mut World, said: &Frames, pair: (SocketId, SocketId), bytes: usize) {
    let (client, server) = pair;
    let (mut sent, mut got) = (0, 0);
    world.until(60, |world| {
        deliver(world, said);
        while sent < bytes {
            match (world.near).tcp_send(client, |room| room.len().min(bytes - sent)) {
                Poll::Ready(more) => sent += more.unwrap(),
                Poll::Pending => break,
            }
        }
        let take = |bytes: &[u8]| (bytes.len(), bytes.len());
        while let Poll::Ready(more) = world.far.tcp_receive(server, take) {
            got += more.unwrap();
        }
        got >= bytes && world.near.tcp_queued(client).unwrap().0 == 0
    });
}

/// The path may have changed, or the link may only have been down.
#[test]
fn longer_segments_are_tried_once_in_ten_minutes() {
    for (v6, says) in [(false, Some(1_300)), (false, None), (true, Some(1_300))] {
        for cutter in CUTTERS {
            let settings = ["tcp.min_rto=100ms", "tcp.send_buffer=64K"];
            let mut world = cut_by(cutter, &settings);
            let (said, mtu, longs) = changing(&mut world, 1_300, says);
            let listener = world.far.tcp_listen(any(80), 1).unwrap();
            let pair = world.connect_to(listener, at(if v6 { FAR_V6 } else { FAR }, 80));
            let case = format!("IPv6 {v6}, {says:?} reported, {cutter}");
            let found = |world: &World| {
                let tcp = world.near.counters().tcp;
                tcp.path_mtu_told + tcp.path_mtu_guesses
            };
            carry(&mut world, &said, pair, 100_000);
            assert_eq!(found(&world), 1, "{case}");
            let start = world.now;
            // Not before the lifetime is over.
            world.now += HOLDS - 60 * SECOND;
            longs.set(0);
            carry(&mut world, &said, pair, 100_000);
            assert_eq!(longs.get(), 0, "{case}");
            // The path is unchanged: one probe is lost, which does not count as a black hole.
            world.now = start + HOLDS + SECOND;
            let again = world.near.counters().tcp.retransmitted_segments;
            carry(&mut world, &said, pair, 100_000);
            assert_eq!(longs.get(), 1, "{case}");
            let told = u64::from(says.is_some());
            assert_eq!(found(&world), 1 + told, "{case}");
            let again = world.near.counters().tcp.retransmitted_segments - again;
            assert!((1..120).contains(&again), "{case}: {again}");
            let start = world.now;
            carry(&mut world, &said, pair, 100_000);
            assert_eq!(longs.get(), 1, "{case}");
            // Now the path is wider.
            mtu.set(1_500);
            world.now = start + HOLDS + SECOND;
            let again = world.near.counters().tcp.retransmitted_segments;
            carry(&mut world, &said, pair, 300_000);
            assert!(longs.get() > 100, "{case}: {}", longs.get());
            assert_eq!(found(&world), 1 + told, "{case}");
            let now = world.near.counters().tcp.retransmitted_segments;
            assert_eq!(now, again, "{case}");
        }
    }
}

/// Only the probe is retransmitted, at once, without waiting for a timeout.
#[test]
fn a_longer_segment_that_a_router_drops_costs_itself_alone() {
    // The first of many segments, a single one, and behind others.
    for writes in [
        &[50_000][..],
        &[1_400],
        &[500, 500, 1_400],
        &[500, 500, 20_000],
    ] {
        for v6 in [false, true] {
            let settings = [
                "tcp.min_rto=1s",
                "tcp.send_buffer=64K",
                "tcp.nagle=off",
                "tcp.delayed_ack=off",
            ];
            let mut world = World::alike(&settings, Link::CLEAN);
            let (said, _, longs) = changing(&mut world, 1_300, Some(1_300));
            let listener = world.far.tcp_listen(any(80), 1).unwrap();
            let to = at(if v6 { FAR_V6 } else { FAR }, 80);
            let (client, server) = world.connect_to(listener, to);
            carry(&mut world, &said, (client, server), 200_000);
            world.now += HOLDS + SECOND;
            longs.set(0);
            let (before, start) = (world.near.counters(), world.now);
            for &bytes in writes {
                let mut left = bytes;
                while left > 0 {
                    left -= ready(world.near.tcp_send(client, |room| room.len().min(left)));
                }
                world.near.turn(world.now);
            }
            carry(&mut world, &said, (client, server), 0);
            let took_ms = (world.now - start) / 1_000_000;
            let tcp = world.near.counters().since(&before).tcp;
            let case = format!("{writes:?}, IPv6 {v6}: {took_ms} ms, {tcp:#?}");
            assert_eq!((longs.get(), tcp.path_mtu_told), (1, 1), "{case}");
            // In two segments.
            assert_eq!(tcp.retransmitted_segments, 2, "{case}");
            assert!(took_ms < 20, "{case}");
        }
    }
}

/// From the smallest guess, larger MTUs are probed in steps.
#[test]
fn the_next_length_is_tried_at_once() {
    let settings = ["tcp.min_rto=100ms", "tcp.send_buffer=16K"];
    let mut world = World::alike(&settings, Link::CLEAN);
    let (said, mtu, longs) = changing(&mut world, 600, None);
    let pair = world.connected(80);
    carry(&mut world, &said, pair, 20_000);
    assert_eq!(world.near.counters().tcp.path_mtu_guesses, 2);
    mtu.set(1_300);
    world.now += HOLDS + SECOND;
    let before = world.near.counters().tcp.out_segments;
    longs.set(0);
    carry(&mut world, &said, pair, 1_000_000);
    let sent = world.near.counters().tcp.out_segments - before;
    // A packet of 1460 B by smoltcp leaves in two segments of at most 1240 B, which takes 1370, or
    // in three of 512 B.
    assert!((1_370..1_450).contains(&sent), "{sent}");
    // A longer one did not arrive.
    assert_eq!(longs.get(), 1);
    assert_eq!(world.near.counters().tcp.path_mtu_guesses, 2);
}

/// A router reports the MTU to the first connection; the second one needs no report.
#[test]
fn connections_begin_with_what_is_known_of_a_path() {
    for v6 in [false, true] {
        for cutter in CUTTERS {
            let mut world = cut_by(cutter, &["tcp.send_buffer=64K"]);
            let (said, _, longs) = changing(&mut world, 1_300, Some(1_300));
            let listener = world.far.tcp_listen(any(80), 4).unwrap();
            let to = at(if v6 { FAR_V6 } else { FAR }, 80);
            let first = world.connect_to(listener, to);
            carry(&mut world, &said, first, 50_000);
            longs.set(0);
            let before = world.near.counters();
            let second = world.connect_to(listener, to);
            carry(&mut world, &said, second, 50_000);
            let case = format!("IPv6 {v6}, {cutter}");
            assert_eq!(longs.get(), 0, "{case}");
            let since = world.near.counters().since(&before).tcp;
            let again = (since.path_mtu_told, since.retransmitted_segments);
            assert_eq!(again, (0, 0), "{case}");
        }
    }
}

fn sockets(world: &mut World, connected: bool) -> (SocketId, SocketId) {
    let server = world.far.udp_bind(any(7)).unwrap();
    let client = world.near.udp_bind(any(0)).unwrap();
    if connected {
        world.near.udp_connect(client, at(FAR_V6, 7)).unwrap();
    }
    (client, server)
}

/// Returns whether a datagram of this length arrives.
fn arrives(world: &mut World, said: &Frames, pair: (SocketId, SocketId), bytes: usize) -> bool {
    let (client, server) = pair;
    let fill = |payload: &mut [u8]| {
        for (number, place) in payload.iter_mut().enumerate() {
            *place = byte(number);
        }
    };
    let to = Some(at(FAR_V6, 7));
    assert_eq!(ready(world.near.udp_send(client, to, bytes, fill)), bytes);
    for _ in 0..200 {
        world.turn();
        world.pass();
        deliver(world, said);
    }
    match world.far.udp_receive(server, |payload, _| payload.to_vec()) {
        Poll::Ready(got) => {
            let want: Vec<u8> = (0..bytes).map(byte).collect();
            assert!(got.unwrap() == want, "{bytes} B are others");
            true
        }
        Poll::Pending => false,
    }
}

/// IPv6 routers do not fragment: without this, no datagram would reach a destination behind a link
/// with a smaller MTU.
#[test]
fn datagrams_leave_in_fragments_that_a_path_takes() {
    for connected in [false, true] {
        // One that fits the local link, and one that is fragmented anyway.
        for first in [1_400, 5_000] {
            let mut world = World::alike(&[], Link::CLEAN).announced();
            let said = router(&mut world, 1_300, Some(1_300));
            let pair = sockets(&mut world, connected);
            let told = |world: &World| world.near.counters().ip.path_mtu_told;
            assert!(arrives(&mut world, &said, pair, 100));
            assert!(!arrives(&mut world, &said, pair, first));
            assert_eq!(told(&world), 1);
            for bytes in [first, 1_252, 1_253, 1_400, 1_452, 1_453, 20_000] {
                assert!(arrives(&mut world, &said, pair, bytes), "{bytes} B");
            }
            assert_eq!(told(&world), 1);
            assert!(said.borrow().is_empty());
            // The entry expires, and is learned again.
            world.now += HOLDS;
            world.turn();
            assert!(!arrives(&mut world, &said, pair, first));
            assert_eq!(told(&world), 2);
            assert!(arrives(&mut world, &said, pair, first));
        }
    }
}

#[test]
fn a_datagram_that_may_not_be_cut_is_refused_once_a_path_is_known() {
    let mut world = World::alike(&["ip.fragmentation=off"], Link::CLEAN).announced();
    let said = router(&mut world, 1_300, Some(1_300));
    let pair = sockets(&mut world, true);
    assert!(!arrives(&mut world, &said, pair, 1_400));
    let refused = world.near.udp_send(pair.0, None, 1_400, |_| ());
    assert!(
        matches!(
            refused,
            Poll::Ready(Err(StackError::TooLong { limit: 1_252, .. }))
        ),
        "{refused:?}"
    );
    assert!(arrives(&mut world, &said, pair, 1_252));
    // The limit of the local link applies to other destinations.
    let other = at("fd00::77", 7);
    assert!(
        world
            .near
            .udp_send(pair.0, Some(other), 1_452, |_| ())
            .is_ready()
    );
}

/// Any host can send Packet Too Big: a message about a packet that no socket sent is ignored, and
/// none reduces packets below the minimum MTU.
#[test]
fn what_quotes_no_datagram_of_ours_is_not_heeded() {
    // Offsets in the frame.
    const FROM: usize = ETHERNET + 8 + 15;
    const TO: usize = ETHERNET + 24 + 15;
    const PORTS: usize = ETHERNET + V6;
    let cases = [
        ("as it is", 1_300, None, 1_300),
        ("hardly any MTU", 68, None, 1_280),
        ("a link that takes it", 1_448, None, 1_500),
        ("another host", 1_300, Some(TO), 1_500),
        ("from another one", 1_300, Some(FROM), 1_500),
        ("a port without a socket", 1_300, Some(PORTS + 1), 1_500),
        ("a port that was not sent to", 1_300, Some(PORTS + 3), 1_500),
        ("an unknown protocol", 1_300, Some(ETHERNET + 6), 1_500),
    ];
    // Also for an unconnected socket.
    let cases = cases.map(|case| [(true, case), (false, case)]);
    for (connected, (what, mtu, place, mtu_then)) in cases.into_iter().flatten() {
        let mut world = World::alike(&[], Link::CLEAN).announced();
        let seen = world.kept(|end, frame| end == 0 && frame.len() > 1_000);
        let pair = sockets(&mut world, connected);
        let nothing = Frames::default();
        assert!(arrives(&mut world, &nothing, pair, 1_400), "{what}");
        let mut frame = seen.take().remove(0);
        if let Some(place) = place {
            frame[place] ^= 0x40;
        }
        let mut said = too_long(&frame, mtu);
        // Addressed to the local stack whatever the quoted sender is.
        said[..6].copy_from_slice(&world.near.ethernet());
        let near: std::net::Ipv6Addr = NEAR_V6.parse().unwrap();
        said[ETHERNET + 24..ETHERNET + V6].copy_from_slice(&near.octets());
        complete(&mut said);
        world.wire.put(0, &said);
        world.run(3);
        assert!(arrives(&mut world, &nothing, pair, 1_452), "{what}");
        let longest = seen.borrow().iter().map(Vec::len).max().unwrap() - ETHERNET;
        // All fragments but the last hold a multiple of eight bytes.
        let want = if mtu_then == 1_500 {
            1_500
        } else {
            48 + (mtu_then - 48) / 8 * 8
        };
        assert_eq!(longest, want, "{what}");
        let told = world.near.counters().ip.path_mtu_told;
        assert_eq!(told, u64::from(mtu_then != 1_500), "{what}");
        assert_eq!(world.near.counters().icmp.in_checksum_errors, 0, "{what}");
    }
}

#[test]
fn answers_to_pings_leave_in_fragments_that_a_path_takes() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let said = router(&mut world, 1_300, Some(1_300));
    let mut answered = Vec::new();
    for _ in 0..3 {
        let before = world.far.counters();
        let question = ping(world.near.ethernet(), (FAR_V6, NEAR_V6), 1_400);
        world.wire.put(0, &question);
        for _ in 0..200 {
            world.turn();
            world.pass();
            deliver(&mut world, &said);
        }
        let since = world.far.counters().since(&before);
        answered.push(since.ip.reassembly_ok);
    }
    // The first reply taught the path MTU.
    assert_eq!(answered, [0, 1, 1]);
    assert_eq!(world.near.counters().ip.path_mtu_told, 1);
    assert_eq!(world.near.counters().icmp.out_echo_replies, 3);
    assert_eq!(world.far.counters().icmp.in_checksum_errors, 0);
    // A reply to another host is not one of ours; a valid one may be older than later replies.
    for (other, told) in [(0x40, 0), (0, 1)] {
        let mut world = World::alike(&[], Link::CLEAN).announced();
        let seen = world.kept(|end, frame| end == 0 && frame.len() > 1_000);
        let near = world.near.ethernet();
        for host in [FAR_V6, "fd00::77"] {
            (world.wire).put(0, &ping(near, (host, NEAR_V6), 1_400));
            world.run(50);
        }
        let mut answer = seen.take().remove(0);
        answer[ETHERNET + 24 + 15] ^= other;
        world.wire.put(0, &too_long(&answer, 1_300));
        world.run(3);
        assert_eq!(world.near.counters().ip.path_mtu_told, told);
    }
}

/// No router reports a packet of the minimum MTU as too long.
#[test]
fn what_quotes_a_datagram_that_was_short_is_not_heeded() {
    for (bytes, told) in [(1_232, 0), (1_233, 1)] {
        let mut world = World::alike(&[], Link::CLEAN).announced();
        let seen = world.kept(|end, frame| end == 0 && frame.len() > 1_000);
        let pair = sockets(&mut world, true);
        assert!(arrives(&mut world, &Frames::default(), pair, bytes));
        // The message claims that it was longer.
        let mut frame = seen.take().remove(0);
        frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&1_450u16.to_be_bytes());
        world.wire.put(0, &too_long(&frame, 1_300));
        world.run(3);
        assert_eq!(world.near.counters().ip.path_mtu_told, told, "{bytes} B");
    }
}
