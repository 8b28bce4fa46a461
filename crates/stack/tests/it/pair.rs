//! Two stacks over rings in simulated time.

use std::task::Poll;

use crate::common::{
    BulkTransfer, LOCAL, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, any_address, config,
    expect_ready, socket_address,
};
use linerate_stack::{StackError, TcpState};

#[test]
fn datagrams_in_both_directions() {
    for remote_address in [REMOTE, REMOTE_V6] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
        let requests_before = sim.remote.counters().link.in_neighbor_requests;
        let server = sim.remote.udp_bind(any_address(7)).unwrap();
        let client = sim.local.udp_bind(any_address(0)).unwrap();
        sim.local
            .udp_connect(client, socket_address(remote_address, 7))
            .unwrap();
        for round in 0..100u8 {
            let size = usize::from(round) * 14;
            expect_ready(
                sim.local
                    .udp_send(client, None, size, |payload| payload.fill(round)),
            );
            let mut has_reply = false;
            sim.run_until(3, |sim| {
                let mut request = None;
                if let Poll::Ready(result) = sim.remote.udp_receive(server, |payload, meta| {
                    request = Some((payload.to_vec(), meta.from));
                }) {
                    result.unwrap();
                    let (payload, from) = request.unwrap();
                    assert_eq!(payload, vec![round; size]);
                    expect_ready(sim.remote.udp_send(server, Some(from), size, |reply| {
                        reply.copy_from_slice(&payload);
                    }));
                }
                if let Poll::Ready(result) = sim.local.udp_receive(client, |payload, meta| {
                    assert_eq!(
                        (payload, meta.from),
                        (&vec![round; size][..], socket_address(remote_address, 7))
                    );
                }) {
                    result.unwrap();
                    has_reply = true;
                }
                has_reply
            });
        }
        let counters = sim.remote.counters();
        assert_eq!(
            (counters.udp.in_datagrams, counters.udp.out_datagrams),
            (100, 100)
        );
        assert_eq!(
            counters.link.in_neighbor_requests - requests_before,
            1,
            "{remote_address}: {counters:#?}"
        );
    }
}

/// In order, up to the limit of a poll, and without holding anything back.
#[test]
fn prefetched_frames_belong_to_the_next_poll() {
    let mut sim =
        TwoStackSim::symmetric(&["rx_descriptors=8"], LinkModel::CLEAN).after_announcements();
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    sim.local
        .udp_connect(client, socket_address(REMOTE, 7))
        .unwrap();
    let send = |sim: &mut TwoStackSim, number: u8| {
        expect_ready(
            sim.local
                .udp_send(client, None, 9, |payload| payload.fill(number)),
        );
    };
    // Both neighbours are resolved from here on.
    send(&mut sim, 99);
    sim.run(200);
    expect_ready(sim.remote.udp_receive(server, |_, _| ()));
    assert!(!sim.remote.prefetch(), "nothing is there");
    for number in 0..20 {
        send(&mut sim, number);
    }
    sim.local.flush();
    sim.wire.transfer(sim.now);
    sim.now += LinkModel::CLEAN.delay_ns;
    sim.wire.transfer(sim.now);
    let mut numbers = Vec::new();
    for received in [8, 8, 4, 0] {
        assert_eq!(sim.remote.prefetch(), received > 0);
        assert_eq!(sim.remote.prefetch(), received > 0, "it is still there");
        let deadline = sim.remote.next_deadline();
        assert_eq!(deadline.is_some(), received > 0, "a deadline is due");
        assert_eq!(
            sim.remote.counters().udp.in_datagrams,
            1 + numbers.len() as u64
        );
        let outcome = sim.remote.poll(sim.now);
        assert_eq!(
            (outcome.received, outcome.may_have_more),
            (received, received == 8)
        );
        while let Poll::Ready(number) = sim.remote.udp_receive(server, |payload, meta| {
            assert_eq!(meta.arrived_ns, sim.now);
            payload[0]
        }) {
            numbers.push(number.unwrap());
        }
    }
    assert_eq!(numbers, (0..20).collect::<Vec<u8>>());
    // Prefetched frames that were not processed are freed with the stack.
    send(&mut sim, 20);
    sim.local.flush();
    sim.wire.transfer(sim.now);
    sim.now += LinkModel::CLEAN.delay_ns;
    sim.wire.transfer(sim.now);
    assert!(sim.remote.prefetch());
    assert_eq!(sim.leaked_frames(), 0);
}

#[test]
fn bulk_transfers_in_both_directions() {
    for remote in [REMOTE, REMOTE_V6] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
        let listener = sim.remote.tcp_listen(any_address(80), 4).unwrap();
        let (client, server) = sim.connect_to(listener, socket_address(remote, 80));
        let mut local = BulkTransfer::new(client, 3_000_000);
        let mut remote = BulkTransfer::new(server, 2_000_000);
        sim.run_until(60, |sim| {
            local.step(&mut sim.local);
            remote.step(&mut sim.remote);
            local.has_received_end && remote.has_received_end
        });
        assert_eq!((local.received, remote.received), (2_000_000, 3_000_000));
        assert_eq!(sim.local.counters().tcp.retransmitted_segments, 0);
        sim.local.close(client).unwrap();
        sim.remote.close(server).unwrap();
        sim.run_until(60, |sim| {
            sim.local.connection_count() + sim.remote.connection_count() == 0
        });
    }
}

#[test]
fn closed_ports_reject() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    sim.local
        .udp_connect(client, socket_address(REMOTE, 9))
        .unwrap();
    expect_ready(sim.local.udp_send(client, None, 10, |_| ()));
    let mut rejected = None;
    sim.run_until(3, |sim| {
        if let Poll::Ready(result) = sim.local.udp_receive(client, |_, _| ()) {
            rejected = Some(result);
        }
        rejected.is_some()
    });
    assert!(matches!(
        rejected,
        Some(Err(StackError::ConnectionRefused { .. }))
    ));
    assert_eq!(sim.remote.counters().udp.no_ports, 1);

    let client = sim
        .local
        .tcp_connect(socket_address(REMOTE, 9), None)
        .unwrap();
    sim.run_until(3, |sim| {
        sim.local.tcp_state(client).unwrap() == TcpState::Closed
    });
    let sent = sim.local.tcp_send(client, |_| 0);
    assert!(matches!(
        sent,
        Poll::Ready(Err(StackError::ConnectionRefused { .. }))
    ));
    assert_eq!(sim.remote.counters().tcp.out_resets, 1);
}

#[test]
fn events_are_reported_and_ids_go_stale() {
    let mut sim = TwoStackSim::symmetric(&["sockets.udp=2"], LinkModel::CLEAN);
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    assert!(matches!(
        sim.remote.udp_bind(any_address(7)),
        Err(StackError::PortInUse { port: 7 })
    ));
    let other_socket = sim.remote.udp_bind(any_address(8)).unwrap();
    assert!(matches!(
        sim.remote.udp_bind(any_address(9)),
        Err(StackError::TooManySockets { .. })
    ));
    assert!(matches!(
        sim.local.udp_bind(socket_address(REMOTE, 1)),
        Err(StackError::NotLocal { .. })
    ));
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    expect_ready(
        sim.local
            .udp_send(client, Some(socket_address(REMOTE, 7)), 1, |_| ()),
    );
    expect_ready(
        sim.local
            .udp_send(client, Some(socket_address(REMOTE, 7)), 1, |_| ()),
    );
    let mut ready_socket = None;
    sim.run_until(3, |sim| {
        ready_socket = ready_socket.or(sim.remote.next_ready());
        ready_socket.is_some()
    });
    assert_eq!(ready_socket, Some(server));
    sim.run(20);
    sim.remote.close(server).unwrap();
    assert!(matches!(
        sim.remote.udp_receive(server, |_, _| ()),
        Poll::Ready(Err(StackError::SocketClosed))
    ));
    let reopened = sim.remote.udp_bind(any_address(7)).unwrap();
    assert_ne!(reopened, server);
    assert_eq!(sim.remote.udp_queued(reopened).unwrap(), 0);
    assert_eq!(
        sim.remote.local(other_socket).unwrap(),
        socket_address(REMOTE, 8)
    );
    assert!(matches!(
        sim.local
            .udp_send(client, Some(socket_address("192.168.1.1", 1)), 1, |_| ()),
        Poll::Ready(Err(StackError::NoRoute { .. }))
    ));
    assert!(matches!(
        sim.local.tcp_state(client),
        Err(StackError::WrongKind { .. })
    ));
}

#[test]
fn unsupported_settings_are_rejected() {
    let small = config(&["mtu=9000"]);
    let url: linerate_port::PortUrl = "ring:0".parse().unwrap();
    let memory = linerate_sys::frames::frame_memory::FrameRegion::new(linerate_stack::memory_plan(
        &small, &url,
    ))
    .unwrap();
    let port = linerate_port::open(&url, &memory).unwrap().remove(0);
    let own = crate::common::addressing(LOCAL, "fd00::1");
    let result = linerate_stack::Stack::new(port, &memory, &small, &own);
    let text = result.err().unwrap().to_string();
    assert!(text.contains("mtu=9000"), "{text}");
    let full = linerate_stack::port_url(&small, "ring:0,rxd=7").unwrap();
    assert_eq!(
        (full.mtu(), full.common().rxd, full.common().txd),
        (9000, Some(7), Some(256))
    );
}
