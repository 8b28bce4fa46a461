//! Half-open connections, and closed connections with unsent data.

use std::task::Poll;

use crate::common::packets::{ETHERNET_BYTES, complete};
use crate::common::segments::{self, RST, SYN, TCP_OFFSET};
use crate::common::{
    LOCAL, LinkModel, REMOTE, TwoStackSim, any_address, expect_ready, socket_address,
};
use linerate_stack::{SocketId, TcpState};

const MILLISECOND_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000 * MILLISECOND_NS;

/// SYNs of a host that never sends anything else: one of its segments, and the last byte of its
/// address.
struct SynFlooder(Vec<u8>, u8);

impl SynFlooder {
    fn new(sim: &mut TwoStackSim) -> Self {
        let captured = sim.capture(|end, frame| end == 0 && segments::is_tcp(frame));
        // A rejected SYN serves as a template.
        let client = sim
            .local
            .tcp_connect(socket_address(REMOTE, 9), None)
            .unwrap();
        sim.run_until(5, |sim| {
            sim.local.tcp_state(client).unwrap() == TcpState::Closed
        });
        sim.local.close(client).unwrap();
        sim.wire.filter = Box::new(|_, _| true);
        let frame = captured.borrow()[0].clone();
        Self(frame, 77)
    }

    fn send_syns(&mut self, sim: &mut TwoStackSim, ports: std::ops::Range<u16>, port: u16) {
        for from in ports {
            self.send_segment(sim, (from, port), u32::from(from), SYN);
        }
    }

    /// Resets a SYN.
    fn send_reset(&mut self, sim: &mut TwoStackSim, from: u16, port: u16) {
        self.send_segment(sim, (from, port), u32::from(from) + 1, RST);
    }

    fn send_segment(
        &mut self,
        sim: &mut TwoStackSim,
        (from, port): (u16, u16),
        sequence: u32,
        flags: u8,
    ) {
        let mut frame = segments::segment_like(&self.0, sequence, flags, &[]);
        frame[ETHERNET_BYTES + 12..ETHERNET_BYTES + 16].copy_from_slice(&[10, 0, 0, self.1]);
        frame[TCP_OFFSET..TCP_OFFSET + 2].copy_from_slice(&from.to_be_bytes());
        frame[TCP_OFFSET + 2..TCP_OFFSET + 4].copy_from_slice(&port.to_be_bytes());
        complete(&mut frame);
        sim.wire.deliver(1, &frame);
    }
}

fn run_for(sim: &mut TwoStackSim, ns: u64) {
    let end = sim.now + ns;
    while sim.now < end {
        sim.poll();
        sim.advance();
    }
}

fn is_established(sim: &mut TwoStackSim, client: SocketId) -> bool {
    sim.local.tcp_state(client).unwrap() == TcpState::Established
}

/// No socket is free: they are half-open for an absent host; a client that exists gets one with its
/// next SYN.
#[test]
fn half_open_connections_are_replaced_by_others() {
    let settings = ["sockets.tcp=32", "tcp.min_rto=200ms"];
    let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
    let mut flooder = SynFlooder::new(&mut sim);
    let listeners = [80, 81].map(|port| sim.remote.tcp_listen(any_address(port), 64).unwrap());
    flooder.send_syns(&mut sim, 1_000..1_040, 80);
    run_for(&mut sim, 10 * MILLISECOND_NS);
    // One listener does not get all of them.
    assert_eq!(sim.remote.connection_count(), 28);
    assert_eq!(sim.remote.counters().tcp.listen_overflows, 12);
    flooder.send_syns(&mut sim, 2_000..2_010, 81);
    run_for(&mut sim, 10 * MILLISECOND_NS);
    assert_eq!(sim.remote.connection_count(), 32);
    assert_eq!(sim.remote.counters().tcp.no_sockets, 6);
    // None is replaced while its handshake may still be in progress.
    let fails = sim.remote.counters().tcp.attempt_fails;
    assert!(
        sim.remote
            .tcp_connect(socket_address(LOCAL, 9), None)
            .is_err()
    );
    assert_eq!(sim.remote.counters().tcp.attempt_fails, fails);
    run_for(&mut sim, 1_030 * MILLISECOND_NS);
    let start = sim.now;
    let clients = [80, 81].map(|port| {
        sim.local
            .tcp_connect(socket_address(REMOTE, port), None)
            .unwrap()
    });
    sim.run_until(1, |sim| {
        clients.iter().all(|client| is_established(sim, *client))
    });
    assert!(
        sim.now - start < 10 * MILLISECOND_NS,
        "with their first request"
    );
    sim.run(10);
    for listener in listeners {
        assert!(matches!(
            sim.remote.tcp_accept(listener),
            Poll::Ready(Ok(_))
        ));
    }
    assert_eq!(sim.remote.counters().tcp.attempt_fails, fails + 2);
    // An outgoing connection gets one, too.
    assert!(
        sim.remote
            .tcp_connect(socket_address(LOCAL, 9), None)
            .is_ok()
    );
    assert_eq!(sim.remote.counters().tcp.attempt_fails, fails + 3);
}

/// SYNs from absent hosts of the link: no neighbour that sockets send to is evicted.
#[test]
fn syns_from_absent_hosts_evict_no_neighbor() {
    let mut sim = TwoStackSim::symmetric(&["arp.cache=4", "sockets.tcp=64"], LinkModel::CLEAN)
        .after_announcements();
    let mut flooder = SynFlooder::new(&mut sim);
    sim.remote.tcp_listen(any_address(80), 64).unwrap();
    let socket = sim.remote.udp_bind(any_address(7)).unwrap();
    expect_ready(
        sim.remote
            .udp_send(socket, Some(socket_address(LOCAL, 7)), 10, |_| ()),
    );
    run_for(&mut sim, MILLISECOND_NS);
    for host in 100..140 {
        flooder.1 = host;
        flooder.send_syns(&mut sim, 1_000..1_001, 80);
        run_for(&mut sim, MILLISECOND_NS);
    }
    assert_eq!(sim.remote.connection_count(), 40);
    let (_, is_known) = sim.remote.resolve_next_hop(LOCAL.parse().unwrap()).unwrap();
    assert!(is_known);
}

/// The backlog of a listener is full of them, though sockets are free.
#[test]
fn a_backlog_of_half_open_connections_regains_space() {
    let mut sim =
        TwoStackSim::symmetric(&["sockets.tcp=32", "tcp.min_rto=200ms"], LinkModel::CLEAN);
    let mut flooder = SynFlooder::new(&mut sim);
    let listener = sim.remote.tcp_listen(any_address(80), 4).unwrap();
    let other_listener = sim.remote.tcp_listen(any_address(81), 4).unwrap();
    flooder.send_syns(&mut sim, 3_000..3_004, 81);
    run_for(&mut sim, 1_050 * MILLISECOND_NS);
    flooder.send_syns(&mut sim, 1_000..1_004, 80);
    run_for(&mut sim, 1_050 * MILLISECOND_NS);
    let client = sim
        .local
        .tcp_connect(socket_address(REMOTE, 80), None)
        .unwrap();
    sim.run_until(1, |sim| is_established(sim, client));
    sim.run(10);
    assert!(matches!(
        sim.remote.tcp_accept(listener),
        Poll::Ready(Ok(_))
    ));
    assert_eq!(sim.remote.counters().tcp.attempt_fails, 1);
    sim.remote.close(other_listener).unwrap();
}

/// A connection that reuses a freed socket is queued behind older half-open ones.
#[test]
fn the_oldest_half_open_connection_is_replaced() {
    for rto in ["tcp.min_rto=1s", "tcp.min_rto=10ms"] {
        let mut sim = TwoStackSim::symmetric(&["sockets.tcp=32", rto], LinkModel::CLEAN);
        let mut flooder = SynFlooder::new(&mut sim);
        sim.remote.tcp_listen(any_address(80), 3).unwrap();
        flooder.send_syns(&mut sim, 1_000..1_003, 80);
        run_for(&mut sim, 10 * MILLISECOND_NS);
        flooder.send_reset(&mut sim, 1_001, 80);
        run_for(&mut sim, 600 * MILLISECOND_NS);
        assert_eq!(sim.remote.connection_count(), 2, "{rto}");
        flooder.send_syns(&mut sim, 1_003..1_004, 80);
        run_for(&mut sim, 200 * MILLISECOND_NS);
        // Within a second a reply may be in flight, however short the configured minimum timeout
        // is.
        let overflows = sim.remote.counters().tcp.listen_overflows;
        flooder.send_syns(&mut sim, 1_004..1_005, 80);
        run_for(&mut sim, MILLISECOND_NS);
        let since = sim.remote.counters().tcp.listen_overflows - overflows;
        assert_eq!(since, 1, "{rto}");
        run_for(&mut sim, 300 * MILLISECOND_NS);
        for _ in 0..2 {
            let start = sim.now;
            let client = sim
                .local
                .tcp_connect(socket_address(REMOTE, 80), None)
                .unwrap();
            sim.run_until(1, |sim| is_established(sim, client));
            let elapsed = sim.now - start;
            assert!(elapsed < 5 * MILLISECOND_NS, "{rto}: {elapsed} ns");
        }
        sim.run(5);
        // The two established ones, and the newest half-open one.
        assert_eq!(sim.remote.connection_count(), 3, "{rto}");
    }
}

#[test]
fn half_open_connections_are_dropped_after_fifteen_seconds() {
    for rto in ["tcp.min_rto=1s", "tcp.min_rto=200ms"] {
        let mut sim = TwoStackSim::symmetric(&[rto], LinkModel::CLEAN);
        let mut flooder = SynFlooder::new(&mut sim);
        sim.remote.tcp_listen(any_address(80), 8).unwrap();
        let fails = sim.remote.counters().tcp.attempt_fails;
        flooder.send_syns(&mut sim, 1_000..1_004, 80);
        run_for(&mut sim, 14 * SECOND_NS);
        assert_eq!(sim.remote.connection_count(), 4, "{rto}");
        run_for(&mut sim, 2 * SECOND_NS);
        assert_eq!(sim.remote.connection_count(), 0, "{rto}");
        assert_eq!(sim.remote.counters().tcp.attempt_fails, fails + 4);
        assert_eq!(
            sim.remote.counters().tcp.out_resets,
            1,
            "for the rejected SYN"
        );
    }
}

/// Closed with much unsent data, while the peer reads slowly; then while it does not read at all.
#[test]
fn an_orphan_lasts_while_it_makes_progress() {
    let settings = ["tcp.receive_window=4096", "tcp.send_buffer=32K"];
    let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    let mut written = 0;
    while let Poll::Ready(sent) = sim.local.tcp_send(client, |space| space.len()) {
        written += sent.unwrap();
    }
    sim.local.close(client).unwrap();
    let (mut read, start) = (0, sim.now);
    while read < written {
        run_for(&mut sim, 10 * SECOND_NS);
        let take = |bytes: &[u8]| (bytes.len().min(2_048), bytes.len().min(2_048));
        read += expect_ready(sim.remote.tcp_receive(server, take));
    }
    assert!(sim.now - start > 120 * SECOND_NS);
    run_for(&mut sim, SECOND_NS);
    assert_eq!(
        sim.remote.tcp_state(server).unwrap(),
        TcpState::RemoteFinished
    );
    assert_eq!(sim.local.counters().tcp.out_resets, 0);
    sim.remote.close(server).unwrap();
    sim.run_until(30, |sim| sim.local.connection_count() == 0);

    let (client, server) = sim.connect(81);
    while sim.local.tcp_send(client, |space| space.len()).is_ready() {}
    sim.local.close(client).unwrap();
    run_for(&mut sim, 70 * SECOND_NS);
    assert_eq!(sim.remote.tcp_state(server).unwrap(), TcpState::Closed);
    assert_eq!(sim.local.counters().tcp.out_resets, 1);
}

/// More SYNs arrive in each poll than are answered: those that wait are answered before later ones.
#[test]
fn earlier_syns_get_replies_during_a_flood() {
    // Two are answered in a poll.
    let settings = ["tx_descriptors=8", "rx_descriptors=64", "sockets.tcp=1000"];
    let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
    let mut flooder = SynFlooder::new(&mut sim);
    sim.remote.tcp_listen(any_address(80), 1_000).unwrap();
    let clients = [(); 4].map(|()| {
        sim.local
            .tcp_connect(socket_address(REMOTE, 80), None)
            .unwrap()
    });
    for poll in 0..250 {
        let from = 1_000 + poll * 3;
        flooder.send_syns(&mut sim, from..from + 3, 80);
        sim.poll();
        sim.advance();
    }
    assert_eq!(
        clients.map(|client| is_established(&mut sim, client)),
        [true; 4]
    );
    // The flood itself was not answered completely.
    assert!(sim.remote.counters().tcp.out_segments < 600);
}
