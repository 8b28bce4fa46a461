//! Super-segments split by the stack are equivalent to single segments, on the wire and in
//! counters.

#[path = "../../tests/common/mod.rs"]
mod common;

use common::{Bulk, FAR, FAR_V6, Link, World, any, at};

use crate::Nanos;
use crate::wire::{ETHERNET_BYTES, ETHERTYPE_IPV4, ip, word};

/// Ring with more descriptors than a poll uses.
const RING: u32 = 4_096;

/// Returns a link that loses `parts` of a thousand frames.
fn losing(parts: u32) -> Link {
    Link {
        loss: parts * 1_000,
        delay_ns: 300_000,
        seed: 5,
        ..Link::CLEAN
    }
}

/// Observable result of a stream in each direction.
#[derive(Default, PartialEq, Eq)]
struct Carried {
    /// Frames of both stacks, each with the time at which it was on the wire.
    sent: Vec<(Nanos, Vec<u8>)>,
    /// Numbers of the departures that the first stack reports.
    departures: Vec<u32>,
    /// TCP counters of the first stack.
    counters: String,
}

/// Runs both streams, and counts the polls in which the first stack wrote a packet longer than the
/// MTU.
fn carry(to: &str, settings: &[&str], (ring, loss): (u32, u32), single: bool) -> (Carried, u32) {
    let mut world = World::on_rings(settings, losing(loss), ring);
    if single {
        world.near.tcp.make_single();
        world.far.tcp.make_single();
    }
    world.near.watch_stages(|| 7, 1_000);
    let listener = world.far.tcp_listen(any(80), 1).unwrap();
    let (client, server) = world.connect_to(listener, at(to, 80));
    let frames = world.kept(|_, _| true);
    let mut sides = [Bulk::new(client, 500_000), Bulk::new(server, 50_000)];
    let mut carried = Carried::default();
    let (mut longs, mut writes) = (0, fastrand::Rng::with_seed(3));
    let mtu = world.near.mtu;
    world.until(120, |world| {
        for (side, end) in sides.iter_mut().zip([&mut world.near, &mut world.far]) {
            side.most = writes.usize(1..60_000);
            side.step(end);
        }
        for bytes in frames.borrow_mut().drain(..) {
            assert!(bytes.len() <= ETHERNET_BYTES + mtu);
            carried.sent.push((world.now, bytes));
        }
        longs += u32::from(written(&mut world.near.link.scratch) > mtu);
        let missed = (world.near).departures(|departure| carried.departures.push(departure.number));
        assert_eq!(missed, 0);
        sides.iter().all(|side| side.ended)
    });
    assert_eq!(sides.map(|side| side.received), [50_000, 500_000]);
    let counters = world.near.counters();
    assert_eq!(counters.link.out_ring_full, 0);
    carried.counters = format!("{:?}", counters.tcp);
    (carried, longs)
}

/// Returns the length of the packet written here since the last call; zero for none.
fn written(scratch: &mut [u8]) -> usize {
    let bytes = match scratch[0] >> 4 {
        4 => word(scratch, 2).into(),
        6 => ip::V6_BYTES + usize::from(word(scratch, 4)),
        _ => 0,
    };
    scratch[..6].fill(0);
    bytes
}

/// Returns whether a frame carries payload of the first stack over IPv4.
fn carries(frame: &[u8]) -> bool {
    let packet = &frame[ETHERNET_BYTES..];
    if word(frame, 12) != ETHERTYPE_IPV4 || packet[12..16] != [10, 0, 0, 1] {
        return false;
    }
    let head = usize::from(word(packet, ip::V4_BYTES + 12) >> 12) * 4;
    usize::from(word(packet, 2)) > ip::V4_BYTES + head
}

#[test]
fn on_the_wire_long_segments_are_what_single_ones_are() {
    for settings in [
        &[][..],
        &["tcp.congestion_control=none"],
        &["tcp.congestion_control=reno", "tcp.nagle=off"],
        &["tcp.send_buffer=64K", "tcp.receive_window=64K"],
        &[
            "tcp.send_buffer=30000",
            "tcp.receive_window=99991",
            "tcp.congestion_control=none",
        ],
        &["tcp.psh=always", "tcp.delayed_ack=off"],
        &["tcp.psh=never", "mtu=576", "tcp.send_buffer=100000"],
        &["mtu=3000", "ip.tos=8"],
        &["tcp.mss=1000", "tcp.nagle=off"],
        &["tx_descriptors=13", "rx_descriptors=50"],
        &["checksum=offload", "tcp.congestion_control=none"],
    ] {
        for loss in [0, 10, 50] {
            let (long, made) = carry(FAR, settings, (RING, loss), false);
            let (single, never) = carry(FAR, settings, (RING, loss), true);
            let case = format!("{settings:?}, loss {loss}");
            assert_eq!(never, 0, "{case}");
            // With much loss there are few: retransmissions are never super-segments.
            let least = if loss == 0 { 3 } else { 1 };
            assert!(made >= least, "{case}: {made}");
            let mut pairs = long.sent.iter().zip(&single.sent);
            let differs = pairs.position(|(one, other)| one != other);
            let frames = (long.sent.len(), single.sent.len());
            assert_eq!((differs, frames.0), (None, frames.1), "{case}");
            assert_eq!(long.counters, single.counters, "{case}");
            assert!(long.departures == single.departures, "{case}");
            let payloads = single.sent.iter().filter(|(_, frame)| carries(frame));
            assert_eq!(long.departures.len(), payloads.count(), "{case}");
        }
    }
}

/// Segments that do not fit wait, or are made later.
#[test]
fn a_short_ring_loses_no_piece() {
    for (ring, makes) in [(4, false), (64, true)] {
        let (_, made) = carry(FAR, &["tx_descriptors=200"], (ring, 0), false);
        assert_eq!(made > 0, makes, "{ring}: {made}");
    }
}

/// The conditions for super-segments do not hold, or the port splits them.
#[test]
fn where_single_segments_are_called_for_none_is_long() {
    for (to, settings) in [
        (FAR_V6, &[][..]),
        (FAR, &["tx_descriptors=7"]),
        (FAR, &["tcp.send_buffer=16K"]),
        (FAR, &["tcp.receive_window=8K"]),
        (FAR, &["mtu=9000"]),
    ] {
        assert_eq!(
            carry(to, settings, (RING, 0), false).1,
            0,
            "{to} {settings:?}"
        );
    }
}
