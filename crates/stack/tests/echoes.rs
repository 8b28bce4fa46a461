//! Datagrams returned in the frames in which they arrived.

mod common;

use std::net::SocketAddr;
use std::task::Poll;

use common::{FAR, FAR_V6, Link, NEAR, World, addressing, any, at, byte, config, packets, ready};
use linerate_port::vnet::{Segmentation, VnetHeader};
use linerate_stack::{Addressing, Echo, SocketId, StackError};

/// Returns a client of the local stack and a server of the remote one; both neighbours are
/// resolved.
fn pair(world: &mut World, far: &str) -> (SocketId, SocketId) {
    let server = world.far.udp_bind(any(7)).unwrap();
    let client = world.near.udp_bind(any(0)).unwrap();
    ask(world, (client, server), at(far, 7), 1);
    let from = ready(world.far.udp_receive(server, |_, meta| meta.from));
    ready(world.far.udp_send(server, Some(from), 1, |_| ()));
    world.until(3, |world| world.near.udp_waiting(client).unwrap() == 1);
    ready(world.near.udp_receive(client, |_, _| ()));
    (client, server)
}

/// Sends a request of this length to the server.
fn ask(
    world: &mut World,
    (client, server): (SocketId, SocketId),
    to: SocketAddr,
    bytes: usize,
) -> SocketAddr {
    let before = world.far.udp_waiting(server).unwrap();
    ready(world.near.udp_send(client, Some(to), bytes, |payload| {
        payload.copy_from_slice(&content(bytes));
    }));
    world.until(3, |world| world.far.udp_waiting(server).unwrap() > before);
    at(NEAR, world.near.local(client).unwrap().port())
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(byte).collect()
}

/// Echoes the first datagram of the queue.
fn echo(world: &mut World, server: SocketId) -> Echo {
    ready((world.far).udp_echo(server, None, |payload, _| Some(payload.len())))
}

/// Returns the reply and its source.
fn answer(world: &mut World, client: SocketId) -> (Vec<u8>, SocketAddr) {
    world.until(3, |world| world.near.udp_waiting(client).unwrap() > 0);
    ready((world.near).udp_receive(client, |payload, meta| (payload.to_vec(), meta.from)))
}

/// Receives and sends with a copy, for datagrams that cannot be echoed in place.
fn answer_elsewhere(world: &mut World, server: SocketId) {
    let (payload, from) =
        ready((world.far).udp_receive(server, |payload, meta| (payload.to_vec(), meta.from)));
    ready(
        (world.far).udp_send(server, Some(from), payload.len(), |out| {
            out.copy_from_slice(&payload);
        }),
    );
}

#[test]
fn questions_of_any_length_come_back_as_they_were() {
    type Made = fn() -> World;
    let worlds: [(Made, [usize; 2]); 3] = [
        (|| World::alike(&[], Link::CLEAN), [1_472, 1_452]),
        (
            || World::alike(&["mtu=576", "ip.tos=184"], Link::CLEAN),
            [548, 528],
        ),
        (|| World::with_devices(&[], Link::CLEAN), [1_472, 1_452]),
    ];
    for (made, most) in worlds {
        for (far, most) in [FAR, FAR_V6].into_iter().zip(most) {
            let mut world = made();
            let (client, server) = pair(&mut world, far);
            for bytes in [0, 1, 2, 63, 64, 65, most - 1, most] {
                ask(&mut world, (client, server), at(far, 7), bytes);
                let echoed = echo(&mut world, server);
                assert_eq!(echoed, Echo::Sent(bytes), "{bytes} B to {far}");
                assert_eq!(
                    answer(&mut world, client),
                    (content(bytes), at(far, 7)),
                    "{bytes} B to {far}"
                );
            }
            let counters = world.far.counters();
            assert_eq!(counters.udp.out_datagrams, 9);
            assert_eq!(world.near.counters().udp.in_checksum_errors, 0);
            assert_eq!(world.near.counters().ip.in_header_errors, 0);
            assert_eq!(world.lost_frames(), 0);
        }
    }
}

#[test]
fn an_answer_may_be_another_one_or_none() {
    let mut world = World::alike(&[], Link::CLEAN);
    let (client, server) = pair(&mut world, FAR);
    let own = ask(&mut world, (client, server), at(FAR, 7), 64);
    let echoed = world.far.udp_echo(server, None, |payload, meta| {
        assert_eq!((&*payload, meta.from), (&content(64)[..], own));
        payload[..20].fill(9);
        Some(20)
    });
    assert_eq!(ready(echoed), Echo::Sent(20));
    assert_eq!(answer(&mut world, client).0, [9; 20]);
    // Not more than its length.
    ask(&mut world, (client, server), at(FAR, 7), 64);
    let echoed = world.far.udp_echo(server, None, |_, _| Some(9_000));
    assert_eq!(ready(echoed), Echo::Sent(64));
    assert_eq!(answer(&mut world, client).0, content(64));
    ask(&mut world, (client, server), at(FAR, 7), 64);
    let echoed = world.far.udp_echo(server, None, |_, _| None);
    assert_eq!(ready(echoed), Echo::Ignored);
    assert!(world.far.udp_echo(server, None, |_, _| None).is_pending());
    world.run(100);
    assert_eq!(world.near.udp_waiting(client).unwrap(), 0);
    assert_eq!(world.near.counters().udp.in_checksum_errors, 0);
    assert_eq!(world.lost_frames(), 0);
}

/// A datagram that cannot be echoed in its frame stays in the queue, and is answered with a copy.
#[test]
fn what_does_not_suit_the_last_answer_goes_elsewhere() {
    let own = Addressing::new(&["10.0.0.2/24", "10.0.0.3/24", "fd00::2/64"]).unwrap();
    let (near, far) = (config(&[]), config(&["tx_descriptors=2"]));
    let mut world = World::between(&near, &far, Link::CLEAN, &own);
    let server = world.far.udp_bind(any(7)).unwrap();
    let clients = [(); 2].map(|()| world.near.udp_bind(any(0)).unwrap());
    let other = "10.0.0.3";
    for (who, to, bytes, in_place) in [
        // Nothing was sent before: there are no headers yet.
        (0, FAR, 64, false),
        (0, FAR, 64, true),
        (1, FAR, 64, false),
        (1, FAR, 64, true),
        // From the address of the request.
        (1, other, 64, false),
        (1, other, 64, true),
        (1, FAR, 64, false),
        // In fragments.
        (1, FAR, 3_000, false),
        (1, FAR, 64, true),
        (1, FAR_V6, 64, false),
        (1, FAR_V6, 64, true),
    ] {
        let client = clients[who];
        ask(&mut world, (client, server), at(to, 7), bytes);
        match echo(&mut world, server) {
            Echo::Sent(sent) => assert!(in_place && sent == bytes, "{who} {to}"),
            Echo::Elsewhere => {
                assert!(!in_place, "{who} {to}");
                assert_eq!(world.far.udp_waiting(server).unwrap(), 1);
                answer_elsewhere(&mut world, server);
            }
            Echo::Ignored => panic!("the closure never returns None"),
        }
        assert_eq!(answer(&mut world, client), (content(bytes), at(to, 7)));
    }
    // With an explicit destination no other sender is answered.
    let [first, second] = clients;
    let from = ask(&mut world, (second, server), at(FAR_V6, 7), 64);
    let somebody = Some(at(NEAR, 9));
    assert_ne!(somebody, Some(from));
    let echoed = (world.far).udp_echo(server, somebody, |_, _| Some(64));
    assert_eq!(ready(echoed), Echo::Elsewhere);
    answer_elsewhere(&mut world, server);
    answer(&mut world, second);
    // Two frames may leave before the next poll.
    for _ in 0..3 {
        ask(&mut world, (first, server), at(FAR, 7), 64);
    }
    answer_elsewhere(&mut world, server);
    assert_eq!(echo(&mut world, server), Echo::Sent(64));
    assert_eq!(echo(&mut world, server), Echo::Elsewhere);
    world.turn();
    assert_eq!(echo(&mut world, server), Echo::Sent(64));
    world.run(200);
    assert_eq!(world.near.udp_waiting(first).unwrap(), 3);
    assert_eq!(world.lost_frames(), 0);
}

/// An echoed datagram frees its packet buffer.
#[test]
fn buffers_are_free_again() {
    let mut world = World::alike(&["udp.buffers=2"], Link::CLEAN);
    let (client, server) = pair(&mut world, FAR);
    for round in 0..6 {
        ask(&mut world, (client, server), at(FAR, 7), 64);
        let ignored = round % 2 == 0;
        let echoed = (world.far).udp_echo(server, None, |_, _| (!ignored).then_some(64));
        assert_eq!(ready(echoed) == Echo::Ignored, ignored);
        assert!(world.far.udp_none_waits());
    }
    assert_eq!(world.far.counters().udp.no_buffer, 0);
}

/// A device that coalesced several datagrams delivers them as one, and each gets a reply.
#[test]
fn datagrams_that_came_as_one_go_back_as_they_were() {
    let mut world = World::with_devices(&[], Link::CLEAN);
    let (client, server) = pair(&mut world, FAR);
    let from = world.near.local(client).unwrap().port();
    let ethernet = world.far.ethernet();
    let datagram = packets::datagram(from, 7, &content(250));
    let frame = packets::packet(ethernet, (NEAR, FAR), packets::UDP, &datagram);
    let header = VnetHeader {
        segmentation: Segmentation::Udp,
        segment_bytes: 100,
        ..VnetHeader::default()
    };
    let joined = [&header.bytes()[..], &frame].concat();
    world.wire.put_as_is(1, &joined);
    world.until(3, |world| world.far.udp_waiting(server).unwrap() == 1);
    let mut answers = Vec::new();
    for _ in 0..3 {
        match echo(&mut world, server) {
            Echo::Elsewhere => answer_elsewhere(&mut world, server),
            echoed => assert_eq!(echoed, Echo::Sent(50)),
        }
        answers.push(answer(&mut world, client).0);
    }
    let sent = content(250);
    assert_eq!(answers, [&sent[..100], &sent[100..200], &sent[200..]]);
}

/// The next datagram to a client comes from the address of its request, however that was answered.
#[test]
fn an_answer_in_place_is_heard_of() {
    let own = Addressing::new(&["10.0.0.2/24", "10.0.0.3/24"]).unwrap();
    let mut world = World::between(&config(&[]), &config(&[]), Link::CLEAN, &own);
    let (client, server) = pair(&mut world, FAR);
    let from = ask(&mut world, (client, server), at("10.0.0.3", 7), 64);
    ready(world.far.udp_receive(server, |_, _| ()));
    ask(&mut world, (client, server), at(FAR, 7), 64);
    assert_eq!(echo(&mut world, server), Echo::Sent(64));
    answer(&mut world, client);
    ready(world.far.udp_send(server, Some(from), 1, |_| ()));
    assert_eq!(answer(&mut world, client).1, at(FAR, 7));
}

/// A group's address is never a source.
#[test]
fn what_was_for_all_is_answered_by_one() {
    let mut world = World::alike(&[], Link::CLEAN);
    let (client, server) = pair(&mut world, FAR);
    for to in ["10.0.0.255", "224.0.0.1"] {
        ask(&mut world, (client, server), at(to, 7), 64);
        assert_eq!(echo(&mut world, server), Echo::Elsewhere);
        answer_elsewhere(&mut world, server);
        assert_eq!(answer(&mut world, client), (content(64), at(FAR, 7)));
    }
}

#[test]
fn what_a_socket_is_told_of_is_told_here_too() {
    let mut world = World::alike(&[], Link::CLEAN);
    let client = world.near.udp_bind(any(0)).unwrap();
    // No socket has that port.
    world.near.udp_connect(client, at(FAR, 9)).unwrap();
    ready(world.near.udp_send(client, None, 1, |_| ()));
    world.run(300);
    let echoed = world.near.udp_echo(client, None, |_, _| None);
    assert!(matches!(
        echoed,
        Poll::Ready(Err(StackError::Refused { remote })) if remote == at(FAR, 9)
    ));
    assert!(world.near.udp_echo(client, None, |_, _| None).is_pending());
    world.near.close(client).unwrap();
    let echoed = world.near.udp_echo(client, None, |_, _| None);
    assert!(matches!(echoed, Poll::Ready(Err(StackError::Stale))));
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
fn answers_in_place_carry_times_too() {
    for (far, text) in [
        (FAR, "16,width=8,order=be"),
        (FAR_V6, "17,width=4,order=le,hz=1M"),
    ] {
        let mut world = World::between(
            &config(&[]),
            &config(&[]),
            Link::CLEAN,
            &addressing(FAR, FAR_V6),
        );
        let stamps: linerate_metric::device_timestamps::DeviceStamps = text.parse().unwrap();
        world.far.stamp_payload(stamps, clock);
        world.far.watch_stages(clock, 16);
        let (client, server) = pair(&mut world, far);
        world.far.departures(|_| ());
        for round in 1..20 {
            ask(&mut world, (client, server), at(far, 7), 64);
            let mut came = 0;
            let echoed = world.far.udp_echo(server, None, |payload, meta| {
                came = meta.arrived_ns;
                Some(payload.len())
            });
            assert_eq!(ready(echoed), Echo::Sent(64));
            let (mut got, _) = answer(&mut world, client);
            let mut left = None;
            world.far.departures(|departure| left = Some(departure));
            let left = left.unwrap();
            assert_eq!((left.socket, left.number), (server, round));
            let counts = stamps.read(&got).unwrap();
            assert_eq!(stamps.between_ns(counts), left.left_ns - came);
            let mut sent = content(64);
            sent.drain(stamps.range());
            got.drain(stamps.range());
            assert_eq!(got, sent);
        }
        assert_eq!(world.near.counters().udp.in_checksum_errors, 0);
    }
}
