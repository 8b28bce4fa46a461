//! Half-open connections, and closed connections with unsent data.

mod common;

use std::task::Poll;

use common::packets::{ETHERNET, complete};
use common::segments::{self, AT, RST, SYN};
use common::{FAR, Link, NEAR, World, any, at, ready};
use linerate_stack::{SocketId, TcpState};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;

/// SYNs of a host that never sends anything else: one of its segments, and the last byte of its
/// address.
struct Ghost(Vec<u8>, u8);

impl Ghost {
    fn new(world: &mut World) -> Self {
        let seen = world.kept(|end, frame| end == 0 && segments::is_tcp(frame));
        // A rejected SYN serves as a template.
        let asks = world.near.tcp_connect(at(FAR, 9), None).unwrap();
        world.until(5, |world| {
            world.near.tcp_state(asks).unwrap() == TcpState::Closed
        });
        world.near.close(asks).unwrap();
        world.wire.watch = Box::new(|_, _| true);
        let frame = seen.borrow()[0].clone();
        Self(frame, 77)
    }

    fn ask(&mut self, world: &mut World, ports: std::ops::Range<u16>, port: u16) {
        for from in ports {
            self.say(world, (from, port), u32::from(from), SYN);
        }
    }

    /// Resets a SYN.
    fn reset(&mut self, world: &mut World, from: u16, port: u16) {
        self.say(world, (from, port), u32::from(from) + 1, RST);
    }

    fn say(&mut self, world: &mut World, (from, port): (u16, u16), sequence: u32, flags: u8) {
        let mut frame = segments::like(&self.0, sequence, flags, &[]);
        frame[ETHERNET + 12..ETHERNET + 16].copy_from_slice(&[10, 0, 0, self.1]);
        frame[AT..AT + 2].copy_from_slice(&from.to_be_bytes());
        frame[AT + 2..AT + 4].copy_from_slice(&port.to_be_bytes());
        complete(&mut frame);
        world.wire.put(1, &frame);
    }
}

fn wait(world: &mut World, ns: u64) {
    let end = world.now + ns;
    while world.now < end {
        world.turn();
        world.pass();
    }
}

fn stands(world: &mut World, client: SocketId) -> bool {
    world.near.tcp_state(client).unwrap() == TcpState::Established
}

/// No socket is free: they are half-open for an absent host; a client that exists gets one with its
/// next SYN.
#[test]
fn requests_that_nobody_follows_up_make_room_for_others() {
    let settings = ["sockets.tcp=32", "tcp.min_rto=200ms"];
    let mut world = World::alike(&settings, Link::CLEAN);
    let mut ghost = Ghost::new(&mut world);
    let listeners = [80, 81].map(|port| world.far.tcp_listen(any(port), 64).unwrap());
    ghost.ask(&mut world, 1_000..1_040, 80);
    wait(&mut world, 10 * MILLISECOND);
    // One listener does not get all of them.
    assert_eq!(world.far.connections(), 28);
    assert_eq!(world.far.counters().tcp.listen_overflows, 12);
    ghost.ask(&mut world, 2_000..2_010, 81);
    wait(&mut world, 10 * MILLISECOND);
    assert_eq!(world.far.connections(), 32);
    assert_eq!(world.far.counters().tcp.no_sockets, 6);
    // None is replaced while its handshake may still be in progress.
    let fails = world.far.counters().tcp.attempt_fails;
    assert!(world.far.tcp_connect(at(NEAR, 9), None).is_err());
    assert_eq!(world.far.counters().tcp.attempt_fails, fails);
    wait(&mut world, 1_030 * MILLISECOND);
    let start = world.now;
    let clients = [80, 81].map(|port| world.near.tcp_connect(at(FAR, port), None).unwrap());
    world.until(1, |world| {
        clients.iter().all(|client| stands(world, *client))
    });
    assert!(
        world.now - start < 10 * MILLISECOND,
        "with their first request"
    );
    world.run(10);
    for listener in listeners {
        assert!(matches!(world.far.tcp_accept(listener), Poll::Ready(Ok(_))));
    }
    assert_eq!(world.far.counters().tcp.attempt_fails, fails + 2);
    // An outgoing connection gets one, too.
    assert!(world.far.tcp_connect(at(NEAR, 9), None).is_ok());
    assert_eq!(world.far.counters().tcp.attempt_fails, fails + 3);
}

/// SYNs from absent hosts of the link: no neighbour that sockets send to is evicted.
#[test]
fn requests_of_nobody_drive_no_neighbor_out() {
    let mut world = World::alike(&["arp.cache=4", "sockets.tcp=64"], Link::CLEAN).announced();
    let mut ghost = Ghost::new(&mut world);
    world.far.tcp_listen(any(80), 64).unwrap();
    let socket = world.far.udp_bind(any(7)).unwrap();
    ready(world.far.udp_send(socket, Some(at(NEAR, 7)), 10, |_| ()));
    wait(&mut world, MILLISECOND);
    for host in 100..140 {
        ghost.1 = host;
        ghost.ask(&mut world, 1_000..1_001, 80);
        wait(&mut world, MILLISECOND);
    }
    assert_eq!(world.far.connections(), 40);
    let (_, known) = world.far.neighbor_towards(NEAR.parse().unwrap()).unwrap();
    assert!(known);
}

/// The backlog of a listener is full of them, though sockets are free.
#[test]
fn a_backlog_of_requests_that_nobody_follows_up_has_room_again() {
    let mut world = World::alike(&["sockets.tcp=32", "tcp.min_rto=200ms"], Link::CLEAN);
    let mut ghost = Ghost::new(&mut world);
    let listener = world.far.tcp_listen(any(80), 4).unwrap();
    let other = world.far.tcp_listen(any(81), 4).unwrap();
    ghost.ask(&mut world, 3_000..3_004, 81);
    wait(&mut world, 1_050 * MILLISECOND);
    ghost.ask(&mut world, 1_000..1_004, 80);
    wait(&mut world, 1_050 * MILLISECOND);
    let client = world.near.tcp_connect(at(FAR, 80), None).unwrap();
    world.until(1, |world| stands(world, client));
    world.run(10);
    assert!(matches!(world.far.tcp_accept(listener), Poll::Ready(Ok(_))));
    assert_eq!(world.far.counters().tcp.attempt_fails, 1);
    world.far.close(other).unwrap();
}

/// A connection that reuses a freed socket is queued behind older half-open ones.
#[test]
fn the_oldest_request_gives_way_whatever_became_of_others() {
    for rto in ["tcp.min_rto=1s", "tcp.min_rto=10ms"] {
        let mut world = World::alike(&["sockets.tcp=32", rto], Link::CLEAN);
        let mut ghost = Ghost::new(&mut world);
        world.far.tcp_listen(any(80), 3).unwrap();
        ghost.ask(&mut world, 1_000..1_003, 80);
        wait(&mut world, 10 * MILLISECOND);
        ghost.reset(&mut world, 1_001, 80);
        wait(&mut world, 600 * MILLISECOND);
        assert_eq!(world.far.connections(), 2, "{rto}");
        ghost.ask(&mut world, 1_003..1_004, 80);
        wait(&mut world, 200 * MILLISECOND);
        // Within a second a reply may be in flight, however short the configured minimum timeout
        // is.
        let overflows = world.far.counters().tcp.listen_overflows;
        ghost.ask(&mut world, 1_004..1_005, 80);
        wait(&mut world, MILLISECOND);
        let since = world.far.counters().tcp.listen_overflows - overflows;
        assert_eq!(since, 1, "{rto}");
        wait(&mut world, 300 * MILLISECOND);
        for _ in 0..2 {
            let start = world.now;
            let client = world.near.tcp_connect(at(FAR, 80), None).unwrap();
            world.until(1, |world| stands(world, client));
            let took = world.now - start;
            assert!(took < 5 * MILLISECOND, "{rto}: {took} ns");
        }
        world.run(5);
        // The two established ones, and the newest half-open one.
        assert_eq!(world.far.connections(), 3, "{rto}");
    }
}

#[test]
fn requests_that_nobody_follows_up_are_given_up_in_a_quarter_of_a_minute() {
    for rto in ["tcp.min_rto=1s", "tcp.min_rto=200ms"] {
        let mut world = World::alike(&[rto], Link::CLEAN);
        let mut ghost = Ghost::new(&mut world);
        world.far.tcp_listen(any(80), 8).unwrap();
        let fails = world.far.counters().tcp.attempt_fails;
        ghost.ask(&mut world, 1_000..1_004, 80);
        wait(&mut world, 14 * SECOND);
        assert_eq!(world.far.connections(), 4, "{rto}");
        wait(&mut world, 2 * SECOND);
        assert_eq!(world.far.connections(), 0, "{rto}");
        assert_eq!(world.far.counters().tcp.attempt_fails, fails + 4);
        assert_eq!(
            world.far.counters().tcp.out_resets,
            1,
            "for the rejected SYN"
        );
    }
}

/// Closed with much unsent data, while the peer reads slowly; then while it does not read at all.
#[test]
fn a_closed_connection_lasts_as_long_as_it_moves() {
    let settings = ["tcp.receive_window=4096", "tcp.send_buffer=32K"];
    let mut world = World::alike(&settings, Link::CLEAN);
    let (client, server) = world.connected(80);
    let mut written = 0;
    while let Poll::Ready(sent) = world.near.tcp_send(client, |room| room.len()) {
        written += sent.unwrap();
    }
    world.near.close(client).unwrap();
    let (mut read, start) = (0, world.now);
    while read < written {
        wait(&mut world, 10 * SECOND);
        let take = |bytes: &[u8]| (bytes.len().min(2_048), bytes.len().min(2_048));
        read += ready(world.far.tcp_receive(server, take));
    }
    assert!(world.now - start > 120 * SECOND);
    wait(&mut world, SECOND);
    assert_eq!(world.far.tcp_state(server).unwrap(), TcpState::FarFinished);
    assert_eq!(world.near.counters().tcp.out_resets, 0);
    world.far.close(server).unwrap();
    world.until(30, |world| world.near.connections() == 0);

    let (client, server) = world.connected(81);
    while world.near.tcp_send(client, |room| room.len()).is_ready() {}
    world.near.close(client).unwrap();
    wait(&mut world, 70 * SECOND);
    assert_eq!(world.far.tcp_state(server).unwrap(), TcpState::Closed);
    assert_eq!(world.near.counters().tcp.out_resets, 1);
}

/// More SYNs arrive in each poll than are answered: those that wait are answered before later ones.
#[test]
fn who_asked_before_a_flood_is_answered_while_it_lasts() {
    // Two are answered in a poll.
    let settings = ["tx_descriptors=8", "rx_descriptors=64", "sockets.tcp=1000"];
    let mut world = World::alike(&settings, Link::CLEAN);
    let mut ghost = Ghost::new(&mut world);
    world.far.tcp_listen(any(80), 1_000).unwrap();
    let clients = [(); 4].map(|()| world.near.tcp_connect(at(FAR, 80), None).unwrap());
    for turn in 0..250 {
        let from = 1_000 + turn * 3;
        ghost.ask(&mut world, from..from + 3, 80);
        world.turn();
        world.pass();
    }
    assert_eq!(clients.map(|client| stands(&mut world, client)), [true; 4]);
    // The flood itself was not answered completely.
    assert!(world.far.counters().tcp.out_segments < 600);
}
