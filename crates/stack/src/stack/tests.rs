//! Super-segments split by the stack are equivalent to single segments, on the wire and in
//! counters.

#[path = "../../tests/common/mod.rs"]
mod common;

use common::{
    BulkTransfer, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, any_address, socket_address,
};

use crate::Nanos;
use crate::wire::{ETHERNET_BYTES, ETHERTYPE_IPV4, ip, read_u16};

/// Ring with more descriptors than a poll uses.
const RING_SLOTS: u32 = 4_096;

/// Returns a link that loses `parts` of a thousand frames.
fn lossy_link(parts: u32) -> LinkModel {
    LinkModel {
        loss: parts * 1_000,
        delay_ns: 300_000,
        seed: 5,
        ..LinkModel::CLEAN
    }
}

/// Observable result of a stream in each direction.
#[derive(Default, PartialEq, Eq)]
struct StreamTrace {
    /// Frames of both stacks, each with the time at which it was on the wire.
    sent: Vec<(Nanos, Vec<u8>)>,
    /// Numbers of the departures that the first stack reports.
    departures: Vec<u32>,
    /// TCP counters of the first stack.
    counters: String,
}

/// Runs both streams, and counts the polls in which the first stack wrote a packet longer than the
/// MTU.
fn run_streams(
    to: &str,
    settings: &[&str],
    (ring, loss): (u32, u32),
    single_segments: bool,
) -> (StreamTrace, u32) {
    let mut sim = TwoStackSim::with_descriptors(settings, lossy_link(loss), ring);
    if single_segments {
        sim.local.tcp.disable_super_segments();
        sim.remote.tcp.disable_super_segments();
    }
    sim.local.watch_stages(|| 7, 1_000);
    let listener = sim.remote.tcp_listen(any_address(80), 1).unwrap();
    let (client, server) = sim.connect_to(listener, socket_address(to, 80));
    let frames = sim.capture(|_, _| true);
    let mut sides = [
        BulkTransfer::new(client, 500_000),
        BulkTransfer::new(server, 50_000),
    ];
    let mut trace = StreamTrace::default();
    let (mut super_segments, mut write_sizes) = (0, fastrand::Rng::with_seed(3));
    let mtu = sim.local.mtu;
    sim.run_until(120, |sim| {
        for (side, end) in sides.iter_mut().zip([&mut sim.local, &mut sim.remote]) {
            side.max_write = write_sizes.usize(1..60_000);
            side.step(end);
        }
        for bytes in frames.borrow_mut().drain(..) {
            assert!(bytes.len() <= ETHERNET_BYTES + mtu);
            trace.sent.push((sim.now, bytes));
        }
        super_segments += u32::from(take_written_length(&mut sim.local.link.scratch) > mtu);
        let missed_departures =
            (sim.local).take_departures(|departure| trace.departures.push(departure.number));
        assert_eq!(missed_departures, 0);
        sides.iter().all(|side| side.has_received_end)
    });
    assert_eq!(sides.map(|side| side.received), [50_000, 500_000]);
    let counters = sim.local.counters();
    assert_eq!(counters.link.out_ring_full, 0);
    trace.counters = format!("{:?}", counters.tcp);
    (trace, super_segments)
}

/// Returns the length of the packet written here since the last call; zero for none.
fn take_written_length(scratch: &mut [u8]) -> usize {
    let bytes = match scratch[0] >> 4 {
        4 => read_u16(scratch, 2).into(),
        6 => ip::V6_BYTES + usize::from(read_u16(scratch, 4)),
        _ => 0,
    };
    scratch[..6].fill(0);
    bytes
}

/// Returns whether a frame carries payload of the first stack over IPv4.
fn has_client_payload(frame: &[u8]) -> bool {
    let packet = &frame[ETHERNET_BYTES..];
    if read_u16(frame, 12) != ETHERTYPE_IPV4 || packet[12..16] != [10, 0, 0, 1] {
        return false;
    }
    let head = usize::from(read_u16(packet, ip::V4_BYTES + 12) >> 12) * 4;
    usize::from(read_u16(packet, 2)) > ip::V4_BYTES + head
}

#[test]
fn super_segments_equal_single_segments_on_the_wire() {
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
            let (super_trace, super_segments) =
                run_streams(REMOTE, settings, (RING_SLOTS, loss), false);
            let (single_trace, single_super_segments) =
                run_streams(REMOTE, settings, (RING_SLOTS, loss), true);
            let name = format!("{settings:?}, loss {loss}");
            assert_eq!(single_super_segments, 0, "{name}");
            // With much loss there are few: retransmissions are never super-segments.
            let least = if loss == 0 { 3 } else { 1 };
            assert!(super_segments >= least, "{name}: {super_segments}");
            let mut pairs = super_trace.sent.iter().zip(&single_trace.sent);
            let differs = pairs.position(|(super_frame, single_frame)| super_frame != single_frame);
            let frames = (super_trace.sent.len(), single_trace.sent.len());
            assert_eq!((differs, frames.0), (None, frames.1), "{name}");
            assert_eq!(super_trace.counters, single_trace.counters, "{name}");
            assert!(super_trace.departures == single_trace.departures, "{name}");
            let payloads = single_trace
                .sent
                .iter()
                .filter(|(_, frame)| has_client_payload(frame));
            assert_eq!(super_trace.departures.len(), payloads.count(), "{name}");
        }
    }
}

/// Segments that do not fit wait, or are made later.
#[test]
fn a_short_ring_loses_no_segment() {
    for (ring, expects_super_segments) in [(4, false), (64, true)] {
        let (_, super_segments) = run_streams(REMOTE, &["tx_descriptors=200"], (ring, 0), false);
        assert_eq!(
            super_segments > 0,
            expects_super_segments,
            "{ring}: {super_segments}"
        );
    }
}

/// The conditions for super-segments do not hold, or the port splits them.
#[test]
fn unsuitable_settings_make_no_super_segment() {
    for (to, settings) in [
        (REMOTE_V6, &[][..]),
        (REMOTE, &["tx_descriptors=7"]),
        (REMOTE, &["tcp.send_buffer=16K"]),
        (REMOTE, &["tcp.receive_window=8K"]),
        (REMOTE, &["mtu=9000"]),
    ] {
        assert_eq!(
            run_streams(to, settings, (RING_SLOTS, 0), false).1,
            0,
            "{to} {settings:?}"
        );
    }
}
