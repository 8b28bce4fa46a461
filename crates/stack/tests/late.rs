//! Reordered segments, segments behind extension headers, and fragmented segments.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::{Bulk, FAR, FAR_V6, Link, World, any, at, packets, ready};

/// The acknowledgement is outdated, and the payload is new.
#[test]
fn payload_that_left_before_an_acknowledgement_is_taken() {
    let mut world = World::alike(&["tcp.min_rto=1s"], Link::CLEAN);
    let (client, server) = world.connected(80);
    let late = Rc::new(RefCell::new(None));
    let held = Rc::clone(&late);
    world.wire.watch = Box::new(move |end, frame| {
        let first = end == 0 && held.borrow().is_none() && frame.len() > 600;
        if first {
            *held.borrow_mut() = Some(frame.clone());
        }
        !first
    });
    ready(world.near.tcp_send(client, |room| {
        room[..600].fill(7);
        600
    }));
    world.run(2);
    let late = late.take().expect("a segment with payload");
    ready(world.far.tcp_send(server, |room| room.len().min(5_000)));
    world.until(1, |world| {
        world.far.tcp_queued(server).unwrap().0 == 0
            && world.near.tcp_queued(client).unwrap().1 == 5_000
    });
    assert_eq!(world.far.tcp_queued(server).unwrap().1, 0);
    world.wire.put(1, &late);
    world.run(3);
    let content = ready(world.far.tcp_receive(server, |bytes| (600, bytes.to_vec())));
    assert_eq!(content, [7; 600]);
    world.until(1, |world| world.near.tcp_queued(client).unwrap().0 == 0);
    assert_eq!(world.near.counters().tcp.retransmitted_segments, 0);
}

/// Destination options in front of each segment, or hop-by-hop and destination options.
#[test]
fn segments_behind_headers_of_ipv6_are_taken() {
    for kinds in [&[60u8][..], &[0, 60]] {
        let mut world = World::alike(&["tcp.mss=1000"], Link::CLEAN);
        let answers = Rc::new(RefCell::new(0));
        let count = Rc::clone(&answers);
        world.wire.watch = Box::new(move |end, frame| {
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
            let headers = kinds.iter().enumerate().flat_map(|(place, _)| {
                let next = kinds.get(place + 1).copied().unwrap_or(6);
                // Four bytes of padding.
                [next, 0, 1, 4, 0, 0, 0, 0]
            });
            let headers: Vec<u8> = headers.collect();
            packets::insert_headers(frame, kinds[0], &headers);
            true
        });
        let listener = world.far.tcp_listen(any(80), 1).unwrap();
        let (client, server) = world.connect_to(listener, at(FAR_V6, 80));
        let (mut near, mut far) = (Bulk::new(client, 60_000), Bulk::new(server, 50_000));
        world.until(5, |world| {
            near.step(&mut world.near);
            far.step(&mut world.far);
            near.ended && far.ended
        });
        assert_eq!((near.received, far.received), (50_000, 60_000));
        assert!(*answers.borrow() > 50);
        // A closed port rejects the connection as without these headers.
        let refused = world.near.tcp_connect(at(FAR_V6, 9), None).unwrap();
        world.until(5, |world| {
            world.near.tcp_state(refused).unwrap() == linerate_stack::TcpState::Closed
        });
    }
}

/// Returns the fragments of a packet, the last one first.
fn cut(frame: &[u8], id: u16) -> [Vec<u8>; 2] {
    const FIRST: usize = 512;
    let end = frame.len() - packets::body(frame);
    [FIRST..end, 0..FIRST].map(|bytes| packets::piece(frame, id, bytes))
}

/// A router in front of a link with a smaller MTU fragments the segments.
#[test]
fn segments_in_pieces_are_taken() {
    for far in [FAR, FAR_V6] {
        let mut world = World::alike(&["tcp.congestion_control=none"], Link::CLEAN);
        let held = Rc::new(RefCell::new(Vec::new()));
        let hold = Rc::clone(&held);
        world.wire.watch = Box::new(move |end, frame| {
            let long = end == 0 && frame.len() > 900;
            if long {
                hold.borrow_mut().push(frame.clone());
            }
            !long
        });
        let listener = world.far.tcp_listen(any(80), 1).unwrap();
        let (client, server) = world.connect_to(listener, at(far, 80));
        let (mut near, mut far) = (Bulk::new(client, 60_000), Bulk::new(server, 5_000));
        let mut id = 0;
        world.until(5, |world| {
            near.step(&mut world.near);
            far.step(&mut world.far);
            for frame in held.take() {
                for piece in cut(&frame, id) {
                    world.wire.put(1, &piece);
                }
                id += 1;
            }
            near.ended && far.ended
        });
        assert_eq!((near.received, far.received), (5_000, 60_000));
        assert_eq!(world.near.counters().tcp.retransmitted_segments, 0);
        let ip = world.far.counters().ip;
        assert!(ip.reassembly_ok > 40, "{ip:#?}");
        assert_eq!(ip.in_unknown_protocols, 0);
    }
}
