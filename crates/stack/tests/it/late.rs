//! Reordered segments, segments behind extension headers, and fragmented segments.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{
    BulkTransfer, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, any_address, expect_ready, packets,
    socket_address,
};

/// The acknowledgement is outdated, and the payload is new.
#[test]
fn reordered_payload_is_accepted() {
    let mut sim = TwoStackSim::symmetric(&["tcp.min_rto=1s"], LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    let held_frame = Rc::new(RefCell::new(None));
    let holder = Rc::clone(&held_frame);
    sim.wire.filter = Box::new(move |end, frame| {
        let first = end == 0 && holder.borrow().is_none() && frame.len() > 600;
        if first {
            *holder.borrow_mut() = Some(frame.clone());
        }
        !first
    });
    expect_ready(sim.local.tcp_send(client, |space| {
        space[..600].fill(7);
        600
    }));
    sim.run(2);
    let held_frame = held_frame.take().expect("a segment with payload");
    expect_ready(sim.remote.tcp_send(server, |space| space.len().min(5_000)));
    sim.run_until(1, |sim| {
        sim.remote.tcp_queued(server).unwrap().0 == 0
            && sim.local.tcp_queued(client).unwrap().1 == 5_000
    });
    assert_eq!(sim.remote.tcp_queued(server).unwrap().1, 0);
    sim.wire.deliver(1, &held_frame);
    sim.run(3);
    let content = expect_ready(
        sim.remote
            .tcp_receive(server, |bytes| (600, bytes.to_vec())),
    );
    assert_eq!(content, [7; 600]);
    sim.run_until(1, |sim| sim.local.tcp_queued(client).unwrap().0 == 0);
    assert_eq!(sim.local.counters().tcp.retransmitted_segments, 0);
}

/// Destination options in front of each segment, or hop-by-hop and destination options.
#[test]
fn segments_behind_extension_headers_are_accepted() {
    for kinds in [&[60u8][..], &[0, 60]] {
        let mut sim = TwoStackSim::symmetric(&["tcp.mss=1000"], LinkModel::CLEAN);
        let answers = Rc::new(RefCell::new(0));
        let count = Rc::clone(&answers);
        sim.wire.filter = Box::new(move |end, frame| {
            if frame[12..14] != [0x86, 0xdd] {
                return true;
            }
            if end == 1 {
                // TCP, or neighbour discovery.
                assert!([6, 58].contains(&frame[20]), "{}", frame[20]);
                *count.borrow_mut() += u32::from(frame[20] == 6);
                return true;
            }
            if frame[20] != 6 {
                return true;
            }
            let headers = kinds.iter().enumerate().flat_map(|(index, _)| {
                let next = kinds.get(index + 1).copied().unwrap_or(6);
                // Four bytes of padding.
                [next, 0, 1, 4, 0, 0, 0, 0]
            });
            let headers: Vec<u8> = headers.collect();
            packets::insert_headers(frame, kinds[0], &headers);
            true
        });
        let listener = sim.remote.tcp_listen(any_address(80), 1).unwrap();
        let (client, server) = sim.connect_to(listener, socket_address(REMOTE_V6, 80));
        let (mut local, mut remote) = (
            BulkTransfer::new(client, 60_000),
            BulkTransfer::new(server, 50_000),
        );
        sim.run_until(5, |sim| {
            local.step(&mut sim.local);
            remote.step(&mut sim.remote);
            local.has_received_end && remote.has_received_end
        });
        assert_eq!((local.received, remote.received), (50_000, 60_000));
        assert!(*answers.borrow() > 50);
        // A closed port rejects the connection as without these headers.
        let rejected = sim
            .local
            .tcp_connect(socket_address(REMOTE_V6, 9), None)
            .unwrap();
        sim.run_until(5, |sim| {
            sim.local.tcp_state(rejected).unwrap() == linerate_stack::TcpState::Closed
        });
    }
}

/// Returns the fragments of a packet, the last one first.
fn fragments_reversed(frame: &[u8], id: u16) -> [Vec<u8>; 2] {
    const FIRST: usize = 512;
    let end = frame.len() - packets::payload_offset(frame);
    [FIRST..end, 0..FIRST].map(|bytes| packets::fragment(frame, id, bytes))
}

/// A router in front of a link with a smaller MTU fragments the segments.
#[test]
fn fragmented_segments_are_accepted() {
    for remote_address in [REMOTE, REMOTE_V6] {
        let mut sim = TwoStackSim::symmetric(&["tcp.congestion_control=none"], LinkModel::CLEAN);
        let held_frames = Rc::new(RefCell::new(Vec::new()));
        let captured = Rc::clone(&held_frames);
        sim.wire.filter = Box::new(move |end, frame| {
            let is_long = end == 0 && frame.len() > 900;
            if is_long {
                captured.borrow_mut().push(frame.clone());
            }
            !is_long
        });
        let listener = sim.remote.tcp_listen(any_address(80), 1).unwrap();
        let (client, server) = sim.connect_to(listener, socket_address(remote_address, 80));
        let (mut local, mut remote_address) = (
            BulkTransfer::new(client, 60_000),
            BulkTransfer::new(server, 5_000),
        );
        let mut id = 0;
        sim.run_until(5, |sim| {
            local.step(&mut sim.local);
            remote_address.step(&mut sim.remote);
            for frame in held_frames.take() {
                for fragment in fragments_reversed(&frame, id) {
                    sim.wire.deliver(1, &fragment);
                }
                id += 1;
            }
            local.has_received_end && remote_address.has_received_end
        });
        assert_eq!((local.received, remote_address.received), (5_000, 60_000));
        assert_eq!(sim.local.counters().tcp.retransmitted_segments, 0);
        let ip = sim.remote.counters().ip;
        assert!(ip.reassembly_ok > 40, "{ip:#?}");
        assert_eq!(ip.in_unknown_protocols, 0);
    }
}
