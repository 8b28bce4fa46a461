//! Two stacks over rings in simulated time.

mod common;

use std::task::Poll;

use common::{Bulk, FAR, FAR_V6, Link, NEAR, World, any, at, config, ready};
use linerate_stack::{StackError, TcpState};

#[test]
fn datagrams_go_both_ways() {
    for far in [FAR, FAR_V6] {
        let mut world = World::alike(&[], Link::CLEAN).announced();
        let asked_before = world.far.counters().link.in_neighbor_requests;
        let server = world.far.udp_bind(any(7)).unwrap();
        let client = world.near.udp_bind(any(0)).unwrap();
        world.near.udp_connect(client, at(far, 7)).unwrap();
        for round in 0..100u8 {
            let size = usize::from(round) * 14;
            ready(
                world
                    .near
                    .udp_send(client, None, size, |payload| payload.fill(round)),
            );
            let mut answered = false;
            world.until(3, |world| {
                let mut question = None;
                if let Poll::Ready(got) = world.far.udp_receive(server, |payload, meta| {
                    question = Some((payload.to_vec(), meta.from));
                }) {
                    got.unwrap();
                    let (payload, from) = question.unwrap();
                    assert_eq!(payload, vec![round; size]);
                    ready(world.far.udp_send(server, Some(from), size, |answer| {
                        answer.copy_from_slice(&payload);
                    }));
                }
                if let Poll::Ready(got) = world.near.udp_receive(client, |payload, meta| {
                    assert_eq!((payload, meta.from), (&vec![round; size][..], at(far, 7)));
                }) {
                    got.unwrap();
                    answered = true;
                }
                answered
            });
        }
        let counters = world.far.counters();
        assert_eq!(
            (counters.udp.in_datagrams, counters.udp.out_datagrams),
            (100, 100)
        );
        assert_eq!(
            counters.link.in_neighbor_requests - asked_before,
            1,
            "{far}: {counters:#?}"
        );
    }
}

/// In order, up to the limit of a poll, and without holding anything back.
#[test]
fn what_a_look_finds_is_the_next_turns() {
    let mut world = World::alike(&["rx_descriptors=8"], Link::CLEAN).announced();
    let server = world.far.udp_bind(any(7)).unwrap();
    let client = world.near.udp_bind(any(0)).unwrap();
    world.near.udp_connect(client, at(FAR, 7)).unwrap();
    let send = |world: &mut World, number: u8| {
        ready(
            world
                .near
                .udp_send(client, None, 9, |payload| payload.fill(number)),
        );
    };
    // Both neighbours are resolved from here on.
    send(&mut world, 99);
    world.run(200);
    ready(world.far.udp_receive(server, |_, _| ()));
    assert!(!world.far.look(), "nothing is there");
    for number in 0..20 {
        send(&mut world, number);
    }
    world.near.flush();
    world.wire.carry(world.now);
    world.now += Link::CLEAN.delay_ns;
    world.wire.carry(world.now);
    let mut came = Vec::new();
    for received in [8, 8, 4, 0] {
        assert_eq!(world.far.look(), received > 0);
        assert_eq!(world.far.look(), received > 0, "it is still there");
        let due = world.far.next_deadline();
        assert_eq!(due.is_some(), received > 0, "a deadline is due");
        assert_eq!(world.far.counters().udp.in_datagrams, 1 + came.len() as u64);
        let turn = world.far.turn(world.now);
        assert_eq!((turn.received, turn.more), (received, received == 8));
        while let Poll::Ready(number) = world.far.udp_receive(server, |payload, meta| {
            assert_eq!(meta.arrived_ns, world.now);
            payload[0]
        }) {
            came.push(number.unwrap());
        }
    }
    assert_eq!(came, (0..20).collect::<Vec<u8>>());
    // Prefetched frames that were not processed are freed with the stack.
    send(&mut world, 20);
    world.near.flush();
    world.wire.carry(world.now);
    world.now += Link::CLEAN.delay_ns;
    world.wire.carry(world.now);
    assert!(world.far.look());
    assert_eq!(world.lost_frames(), 0);
}

#[test]
fn bulk_goes_both_ways() {
    for far in [FAR, FAR_V6] {
        let mut world = World::alike(&[], Link::CLEAN);
        let listener = world.far.tcp_listen(any(80), 4).unwrap();
        let (client, server) = world.connect_to(listener, at(far, 80));
        let mut near = Bulk::new(client, 3_000_000);
        let mut far = Bulk::new(server, 2_000_000);
        world.until(60, |world| {
            near.step(&mut world.near);
            far.step(&mut world.far);
            near.ended && far.ended
        });
        assert_eq!((near.received, far.received), (2_000_000, 3_000_000));
        assert_eq!(world.near.counters().tcp.retransmitted_segments, 0);
        world.near.close(client).unwrap();
        world.far.close(server).unwrap();
        world.until(60, |world| {
            world.near.connections() + world.far.connections() == 0
        });
    }
}

#[test]
fn a_port_that_nobody_has() {
    let mut world = World::alike(&[], Link::CLEAN);
    let client = world.near.udp_bind(any(0)).unwrap();
    world.near.udp_connect(client, at(FAR, 9)).unwrap();
    ready(world.near.udp_send(client, None, 10, |_| ()));
    let mut refused = None;
    world.until(3, |world| {
        if let Poll::Ready(got) = world.near.udp_receive(client, |_, _| ()) {
            refused = Some(got);
        }
        refused.is_some()
    });
    assert!(matches!(refused, Some(Err(StackError::Refused { .. }))));
    assert_eq!(world.far.counters().udp.no_ports, 1);

    let client = world.near.tcp_connect(at(FAR, 9), None).unwrap();
    world.until(3, |world| {
        world.near.tcp_state(client).unwrap() == TcpState::Closed
    });
    let sent = world.near.tcp_send(client, |_| 0);
    assert!(matches!(sent, Poll::Ready(Err(StackError::Refused { .. }))));
    assert_eq!(world.far.counters().tcp.out_resets, 1);
}

#[test]
fn sockets_are_told_of_and_names_go_stale() {
    let mut world = World::alike(&["sockets.udp=2"], Link::CLEAN);
    let server = world.far.udp_bind(any(7)).unwrap();
    assert!(matches!(
        world.far.udp_bind(any(7)),
        Err(StackError::PortTaken { port: 7 })
    ));
    let other = world.far.udp_bind(any(8)).unwrap();
    assert!(matches!(
        world.far.udp_bind(any(9)),
        Err(StackError::TooManySockets { .. })
    ));
    assert!(matches!(
        world.near.udp_bind(at(FAR, 1)),
        Err(StackError::NotLocal { .. })
    ));
    let client = world.near.udp_bind(any(0)).unwrap();
    ready(world.near.udp_send(client, Some(at(FAR, 7)), 1, |_| ()));
    ready(world.near.udp_send(client, Some(at(FAR, 7)), 1, |_| ()));
    let mut told = None;
    world.until(3, |world| {
        told = told.or(world.far.ready());
        told.is_some()
    });
    assert_eq!(told, Some(server));
    world.run(20);
    world.far.close(server).unwrap();
    assert!(matches!(
        world.far.udp_receive(server, |_, _| ()),
        Poll::Ready(Err(StackError::Stale))
    ));
    let again = world.far.udp_bind(any(7)).unwrap();
    assert_ne!(again, server);
    assert_eq!(world.far.udp_waiting(again).unwrap(), 0);
    assert_eq!(world.far.local(other).unwrap(), at(FAR, 8));
    assert!(matches!(
        world
            .near
            .udp_send(client, Some(at("192.168.1.1", 1)), 1, |_| ()),
        Poll::Ready(Err(StackError::NoRoute { .. }))
    ));
    assert!(matches!(
        world.near.tcp_state(client),
        Err(StackError::WrongKind { .. })
    ));
}

#[test]
fn what_the_port_cannot_do_is_refused() {
    let small = config(&["mtu=9000"]);
    let url: linerate_port::PortUrl = "ring:0".parse().unwrap();
    let memory = linerate_port::Memory::new(linerate_stack::memory_plan(&small, &url)).unwrap();
    let port = linerate_port::open(&url, &memory).unwrap().remove(0);
    let own = common::addressing(NEAR, "fd00::1");
    let refused = linerate_stack::Stack::new(port, &memory, &small, &own);
    let text = refused.err().unwrap().to_string();
    assert!(text.contains("mtu=9000"), "{text}");
    let full = linerate_stack::port_url(&small, "ring:0,rxd=7").unwrap();
    assert_eq!(
        (full.mtu(), full.common().rxd, full.common().txd),
        (9000, Some(7), Some(256))
    );
}
