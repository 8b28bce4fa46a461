//! Datagrams returned in the frames in which they arrived.

use std::net::SocketAddr;
use std::task::Poll;

use crate::common::{
    LOCAL, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, addressing, any_address, config,
    expect_ready, packets, pattern_byte, socket_address,
};
use linerate_packet::vnet::{Segmentation, VnetHeader};
use linerate_stack::{EchoResult, SocketId, StackAddressing, StackError};

/// Returns a client of the local stack and a server of the remote one; both neighbours are
/// resolved.
fn resolved_pair(sim: &mut TwoStackSim, address: &str) -> (SocketId, SocketId) {
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    send_request(sim, (client, server), socket_address(address, 7), 1);
    let from = expect_ready(sim.remote.udp_receive(server, |_, meta| meta.from));
    expect_ready(sim.remote.udp_send(server, Some(from), 1, |_| ()));
    sim.run_until(3, |sim| sim.local.udp_queued(client).unwrap() == 1);
    expect_ready(sim.local.udp_receive(client, |_, _| ()));
    (client, server)
}

/// Sends a request of this length to the server.
fn send_request(
    sim: &mut TwoStackSim,
    (client, server): (SocketId, SocketId),
    to: SocketAddr,
    bytes: usize,
) -> SocketAddr {
    let before = sim.remote.udp_queued(server).unwrap();
    expect_ready(sim.local.udp_send(client, Some(to), bytes, |payload| {
        payload.copy_from_slice(&content(bytes));
    }));
    sim.run_until(3, |sim| sim.remote.udp_queued(server).unwrap() > before);
    socket_address(LOCAL, sim.local.local(client).unwrap().port())
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(pattern_byte).collect()
}

/// Echoes the first datagram of the queue.
fn echo_first(sim: &mut TwoStackSim, server: SocketId) -> EchoResult {
    expect_ready((sim.remote).udp_echo(server, None, |payload, _| Some(payload.len())))
}

/// Returns the reply and its source.
fn receive_reply(sim: &mut TwoStackSim, client: SocketId) -> (Vec<u8>, SocketAddr) {
    sim.run_until(3, |sim| sim.local.udp_queued(client).unwrap() > 0);
    expect_ready((sim.local).udp_receive(client, |payload, meta| (payload.to_vec(), meta.from)))
}

/// Receives and sends with a copy, for datagrams that cannot be echoed in place.
fn reply_with_copy(sim: &mut TwoStackSim, server: SocketId) {
    let (payload, from) = expect_ready(
        (sim.remote).udp_receive(server, |payload, meta| (payload.to_vec(), meta.from)),
    );
    expect_ready(
        (sim.remote).udp_send(server, Some(from), payload.len(), |reply| {
            reply.copy_from_slice(&payload);
        }),
    );
}

#[test]
fn requests_of_any_length_are_echoed() {
    type SimFactory = fn() -> TwoStackSim;
    let sims: [(SimFactory, [usize; 2]); 3] = [
        (
            || TwoStackSim::symmetric(&[], LinkModel::CLEAN),
            [1_472, 1_452],
        ),
        (
            || TwoStackSim::symmetric(&["mtu=576", "ip.tos=184"], LinkModel::CLEAN),
            [548, 528],
        ),
        (
            || TwoStackSim::with_devices(&[], LinkModel::CLEAN),
            [1_472, 1_452],
        ),
    ];
    for (new_sim, max_bytes) in sims {
        for (address, max_bytes) in [REMOTE, REMOTE_V6].into_iter().zip(max_bytes) {
            let mut sim = new_sim();
            let (client, server) = resolved_pair(&mut sim, address);
            for bytes in [0, 1, 2, 63, 64, 65, max_bytes - 1, max_bytes] {
                send_request(
                    &mut sim,
                    (client, server),
                    socket_address(address, 7),
                    bytes,
                );
                let echoed = echo_first(&mut sim, server);
                assert_eq!(echoed, EchoResult::Sent(bytes), "{bytes} B to {address}");
                assert_eq!(
                    receive_reply(&mut sim, client),
                    (content(bytes), socket_address(address, 7)),
                    "{bytes} B to {address}"
                );
            }
            let counters = sim.remote.counters();
            assert_eq!(counters.udp.out_datagrams, 9);
            assert_eq!(sim.local.counters().udp.in_checksum_errors, 0);
            assert_eq!(sim.local.counters().ip.in_header_errors, 0);
            assert_eq!(sim.leaked_frames(), 0);
        }
    }
}

#[test]
fn a_reply_may_differ_or_be_omitted() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let (client, server) = resolved_pair(&mut sim, REMOTE);
    let client_address = send_request(&mut sim, (client, server), socket_address(REMOTE, 7), 64);
    let echoed = sim.remote.udp_echo(server, None, |payload, meta| {
        assert_eq!((&*payload, meta.from), (&content(64)[..], client_address));
        payload[..20].fill(9);
        Some(20)
    });
    assert_eq!(expect_ready(echoed), EchoResult::Sent(20));
    assert_eq!(receive_reply(&mut sim, client).0, [9; 20]);
    // Not more than its length.
    send_request(&mut sim, (client, server), socket_address(REMOTE, 7), 64);
    let echoed = sim.remote.udp_echo(server, None, |_, _| Some(9_000));
    assert_eq!(expect_ready(echoed), EchoResult::Sent(64));
    assert_eq!(receive_reply(&mut sim, client).0, content(64));
    send_request(&mut sim, (client, server), socket_address(REMOTE, 7), 64);
    let echoed = sim.remote.udp_echo(server, None, |_, _| None);
    assert_eq!(expect_ready(echoed), EchoResult::Ignored);
    assert!(sim.remote.udp_echo(server, None, |_, _| None).is_pending());
    sim.run(100);
    assert_eq!(sim.local.udp_queued(client).unwrap(), 0);
    assert_eq!(sim.local.counters().udp.in_checksum_errors, 0);
    assert_eq!(sim.leaked_frames(), 0);
}

/// A datagram that cannot be echoed in its frame stays in the queue, and is answered with a copy.
#[test]
fn datagrams_that_do_not_fit_the_prepared_headers_stay_queued() {
    let addressing = StackAddressing::new(&["10.0.0.2/24", "10.0.0.3/24", "fd00::2/64"]).unwrap();
    let (local, remote) = (config(&[]), config(&["tx_descriptors=2"]));
    let mut sim =
        TwoStackSim::with_remote_addressing(&local, &remote, LinkModel::CLEAN, &addressing);
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let clients = [(); 2].map(|()| sim.local.udp_bind(any_address(0)).unwrap());
    let second_address = "10.0.0.3";
    for (index, to, bytes, fits) in [
        // Nothing was sent before: there are no headers yet.
        (0, REMOTE, 64, false),
        (0, REMOTE, 64, true),
        (1, REMOTE, 64, false),
        (1, REMOTE, 64, true),
        // From the address of the request.
        (1, second_address, 64, false),
        (1, second_address, 64, true),
        (1, REMOTE, 64, false),
        // In fragments.
        (1, REMOTE, 3_000, false),
        (1, REMOTE, 64, true),
        (1, REMOTE_V6, 64, false),
        (1, REMOTE_V6, 64, true),
    ] {
        let client = clients[index];
        send_request(&mut sim, (client, server), socket_address(to, 7), bytes);
        match echo_first(&mut sim, server) {
            EchoResult::Sent(sent) => assert!(fits && sent == bytes, "{index} {to}"),
            EchoResult::StillQueued => {
                assert!(!fits, "{index} {to}");
                assert_eq!(sim.remote.udp_queued(server).unwrap(), 1);
                reply_with_copy(&mut sim, server);
            }
            EchoResult::Ignored => panic!("the closure never returns None"),
        }
        assert_eq!(
            receive_reply(&mut sim, client),
            (content(bytes), socket_address(to, 7))
        );
    }
    // With an explicit destination no other sender is answered.
    let [first, second] = clients;
    let from = send_request(&mut sim, (second, server), socket_address(REMOTE_V6, 7), 64);
    let third_party = Some(socket_address(LOCAL, 9));
    assert_ne!(third_party, Some(from));
    let echoed = (sim.remote).udp_echo(server, third_party, |_, _| Some(64));
    assert_eq!(expect_ready(echoed), EchoResult::StillQueued);
    reply_with_copy(&mut sim, server);
    receive_reply(&mut sim, second);
    // Two frames may leave before the next poll.
    for _ in 0..3 {
        send_request(&mut sim, (first, server), socket_address(REMOTE, 7), 64);
    }
    reply_with_copy(&mut sim, server);
    assert_eq!(echo_first(&mut sim, server), EchoResult::Sent(64));
    assert_eq!(echo_first(&mut sim, server), EchoResult::StillQueued);
    sim.poll();
    assert_eq!(echo_first(&mut sim, server), EchoResult::Sent(64));
    sim.run(200);
    assert_eq!(sim.local.udp_queued(first).unwrap(), 3);
    assert_eq!(sim.leaked_frames(), 0);
}

/// An echoed datagram frees its packet buffer.
#[test]
fn echoed_datagrams_free_their_buffers() {
    let mut sim = TwoStackSim::symmetric(&["udp.buffers=2"], LinkModel::CLEAN);
    let (client, server) = resolved_pair(&mut sim, REMOTE);
    for round in 0..6 {
        send_request(&mut sim, (client, server), socket_address(REMOTE, 7), 64);
        let ignored = round % 2 == 0;
        let echoed = (sim.remote).udp_echo(server, None, |_, _| (!ignored).then_some(64));
        assert_eq!(expect_ready(echoed) == EchoResult::Ignored, ignored);
        assert!(sim.remote.udp_queues_are_empty());
    }
    assert_eq!(sim.remote.counters().udp.no_buffer, 0);
}

/// A device that coalesced several datagrams delivers them as one, and each gets a reply.
#[test]
fn coalesced_datagrams_are_echoed_separately() {
    let mut sim = TwoStackSim::with_devices(&[], LinkModel::CLEAN);
    let (client, server) = resolved_pair(&mut sim, REMOTE);
    let from = sim.local.local(client).unwrap().port();
    let ethernet = sim.remote.ethernet_address();
    let datagram = packets::datagram(from, 7, &content(250));
    let frame = packets::packet(ethernet, (LOCAL, REMOTE), packets::UDP, &datagram);
    let header = VnetHeader {
        segmentation: Segmentation::Udp,
        segment_bytes: 100,
        ..VnetHeader::default()
    };
    let joined = [&header.to_bytes()[..], &frame].concat();
    sim.wire.deliver_raw(1, &joined);
    sim.run_until(3, |sim| sim.remote.udp_queued(server).unwrap() == 1);
    let mut replies = Vec::new();
    for _ in 0..3 {
        match echo_first(&mut sim, server) {
            EchoResult::StillQueued => reply_with_copy(&mut sim, server),
            echoed => assert_eq!(echoed, EchoResult::Sent(50)),
        }
        replies.push(receive_reply(&mut sim, client).0);
    }
    let sent = content(250);
    assert_eq!(replies, [&sent[..100], &sent[100..200], &sent[200..]]);
}

/// The next datagram to a client comes from the address of its request, however that was answered.
#[test]
fn an_echo_in_place_sets_the_reply_address() {
    let addressing = StackAddressing::new(&["10.0.0.2/24", "10.0.0.3/24"]).unwrap();
    let mut sim = TwoStackSim::with_remote_addressing(
        &config(&[]),
        &config(&[]),
        LinkModel::CLEAN,
        &addressing,
    );
    let (client, server) = resolved_pair(&mut sim, REMOTE);
    let from = send_request(
        &mut sim,
        (client, server),
        socket_address("10.0.0.3", 7),
        64,
    );
    expect_ready(sim.remote.udp_receive(server, |_, _| ()));
    send_request(&mut sim, (client, server), socket_address(REMOTE, 7), 64);
    assert_eq!(echo_first(&mut sim, server), EchoResult::Sent(64));
    receive_reply(&mut sim, client);
    expect_ready(sim.remote.udp_send(server, Some(from), 1, |_| ()));
    assert_eq!(receive_reply(&mut sim, client).1, socket_address(REMOTE, 7));
}

/// A group's address is never a source.
#[test]
fn broadcast_requests_are_answered_from_a_unicast_address() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let (client, server) = resolved_pair(&mut sim, REMOTE);
    for to in ["10.0.0.255", "224.0.0.1"] {
        send_request(&mut sim, (client, server), socket_address(to, 7), 64);
        assert_eq!(echo_first(&mut sim, server), EchoResult::StillQueued);
        reply_with_copy(&mut sim, server);
        assert_eq!(
            receive_reply(&mut sim, client),
            (content(64), socket_address(REMOTE, 7))
        );
    }
}

#[test]
fn echo_reports_socket_errors() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    // No socket has that port.
    sim.local
        .udp_connect(client, socket_address(REMOTE, 9))
        .unwrap();
    expect_ready(sim.local.udp_send(client, None, 1, |_| ()));
    sim.run(300);
    let echoed = sim.local.udp_echo(client, None, |_, _| None);
    assert!(matches!(
        echoed,
        Poll::Ready(Err(StackError::ConnectionRefused { remote })) if remote == socket_address(REMOTE, 9)
    ));
    assert!(sim.local.udp_echo(client, None, |_, _| None).is_pending());
    sim.local.close(client).unwrap();
    let echoed = sim.local.udp_echo(client, None, |_, _| None);
    assert!(matches!(echoed, Poll::Ready(Err(StackError::SocketClosed))));
}

thread_local! {
    static CLOCK: std::cell::Cell<u64> = const { std::cell::Cell::new(1_000) };
}

fn clock() -> u64 {
    CLOCK.with(|clock| {
        clock.set(clock.get() + 1_000);
        clock.get()
    })
}

#[test]
fn replies_in_place_carry_timestamps() {
    for (address, text) in [
        (REMOTE, "16,width=8,order=be"),
        (REMOTE_V6, "17,width=4,order=le,hz=1M"),
    ] {
        let mut sim = TwoStackSim::with_remote_addressing(
            &config(&[]),
            &config(&[]),
            LinkModel::CLEAN,
            &addressing(REMOTE, REMOTE_V6),
        );
        let stamps: linerate_record::device_timestamps::DeviceTimestamps = text.parse().unwrap();
        sim.remote.stamp_payload(stamps, clock);
        sim.remote.watch_stages(clock, 16);
        let (client, server) = resolved_pair(&mut sim, address);
        sim.remote.take_departures(|_| ());
        for round in 1..20 {
            send_request(&mut sim, (client, server), socket_address(address, 7), 64);
            let mut arrived_ns = 0;
            let echoed = sim.remote.udp_echo(server, None, |payload, meta| {
                arrived_ns = meta.arrived_ns;
                Some(payload.len())
            });
            assert_eq!(expect_ready(echoed), EchoResult::Sent(64));
            let (mut got, _) = receive_reply(&mut sim, client);
            let mut last_departure = None;
            sim.remote
                .take_departures(|departure| last_departure = Some(departure));
            let last_departure = last_departure.unwrap();
            assert_eq!(
                (last_departure.socket, last_departure.number),
                (server, round)
            );
            let counts = stamps.read(&got).unwrap();
            assert_eq!(
                stamps.elapsed_ns(counts),
                last_departure.sent_ns - arrived_ns
            );
            let mut sent = content(64);
            sent.drain(stamps.byte_range());
            got.drain(stamps.byte_range());
            assert_eq!(got, sent);
        }
        assert_eq!(sim.local.counters().udp.in_checksum_errors, 0);
    }
}
