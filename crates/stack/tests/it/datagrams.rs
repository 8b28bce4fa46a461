//! UDP between two stacks in simulated time: fragments, queues, stamps, neighbours.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Poll;

use crate::common::packets::{BROADCAST, FRAGMENT, ICMP, UDP};
use crate::common::{
    LOCAL, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, any_address, expect_ready, packets,
    pattern_byte, socket_address,
};
use linerate_packet::checksum::UnfoldedSum;
use linerate_stack::{SocketId, StackAddressing, StackError};

fn connected_pair(sim: &mut TwoStackSim) -> (SocketId, SocketId) {
    connected_pair_at(sim, REMOTE)
}

fn connected_pair_at(sim: &mut TwoStackSim, address: &str) -> (SocketId, SocketId) {
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    sim.local
        .udp_connect(client, socket_address(address, 7))
        .unwrap();
    // Both neighbours are resolved from here on.
    expect_ready(sim.local.udp_send(client, None, 1, |_| ()));
    sim.run_until(3, |sim| sim.remote.udp_queued(server).unwrap() == 1);
    expect_ready(sim.remote.udp_receive(server, |_, _| ()));
    (client, server)
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(pattern_byte).collect()
}

fn send(sim: &mut TwoStackSim, client: SocketId, bytes: usize) {
    sim.run_until(3, |sim| {
        let fill = |payload: &mut [u8]| payload.copy_from_slice(&content(bytes));
        match sim.local.udp_send(client, None, bytes, fill) {
            Poll::Ready(sent) => {
                assert_eq!(sent.unwrap(), bytes);
                true
            }
            Poll::Pending => false,
        }
    });
}

fn receive_one(sim: &mut TwoStackSim, server: SocketId) -> Option<Vec<u8>> {
    match sim
        .remote
        .udp_receive(server, |payload, _| payload.to_vec())
    {
        Poll::Ready(payload) => Some(payload.unwrap()),
        Poll::Pending => None,
    }
}

#[test]
fn long_datagrams_arrive_complete_at_any_mtu() {
    let cases =
        [576, 1500, 4000, 9000].map(|mtu| [(mtu, REMOTE, 65_507), (mtu, REMOTE_V6, 65_527)]);
    for (mtu, address, max_bytes) in cases.into_iter().flatten() {
        let mut sim = TwoStackSim::symmetric(&[&format!("mtu={mtu}")], LinkModel::CLEAN);
        let (client, server) = connected_pair_at(&mut sim, address);
        for bytes in [
            0, 1, 528, 529, 547, 548, 549, 1452, 1453, 1472, 1473, 5888, 32_768, max_bytes,
        ] {
            send(&mut sim, client, bytes);
            let mut got = None;
            sim.run_until(3, |sim| {
                got = receive_one(sim, server);
                got.is_some()
            });
            assert!(
                got.unwrap() == content(bytes),
                "{bytes} B to {address} at {mtu}"
            );
        }
        assert_eq!(sim.remote.counters().ip.reassembly_errors, 0);
        assert!(matches!(
            sim.local.udp_send(client, None, max_bytes + 1, |_| ()),
            Poll::Ready(Err(StackError::TooLong { limit, .. })) if limit == max_bytes
        ));
    }
}

/// Returns the identification numbers of packets sent to two addresses alternately; `ip_id`
/// extracts them.
fn capture_ip_ids(
    addresses: [&'static str; 2],
    bytes: usize,
    ip_id: fn(&[u8]) -> Option<u32>,
) -> [Vec<u32>; 2] {
    let networks = ["10.0.0.2/24", "10.0.0.3/24", "fd00::2/64", "fd00::3/64"];
    let config = crate::common::config(&[]);
    let mut sim = TwoStackSim::with_remote_addressing(
        &config,
        &config,
        LinkModel::CLEAN,
        &StackAddressing::new(&networks).unwrap(),
    );
    let (client, _) = connected_pair_at(&mut sim, addresses[0]);
    let captured = sim.capture(move |address, frame| address == 0 && ip_id(frame).is_some());
    for index in [0, 1, 1, 0, 1, 0] {
        let to = Some(socket_address(addresses[index], 7));
        let sent = sim.local.udp_send(client, to, bytes, |_| ());
        assert!(sent.is_ready());
        sim.run(100);
    }
    let captured = captured.borrow();
    addresses.map(|address| {
        let address: IpAddr = address.parse().unwrap();
        let to_it = captured
            .iter()
            .filter(|frame| packets::destination(frame) == address);
        to_it.filter_map(|frame| ip_id(frame)).collect()
    })
}

/// Numbers from one counter for all hosts reveal the traffic of others, and allow an attacker to
/// disturb reassembly (RFC 7739).
#[test]
fn ip_ids_reveal_nothing_about_other_hosts() {
    const SECOND_ADDRESS: &str = "10.0.0.3";
    const SECOND_ADDRESS_V6: &str = "fd00::3";
    // Of first fragments, and of packets that a router may fragment.
    let v4 = |frame: &[u8]| {
        let is_first =
            packets::is_v4(frame) && frame[23] == UDP && frame[21] == 0 && frame[20] & 0x1f == 0;
        is_first.then(|| u16::from_be_bytes([frame[18], frame[19]]).into())
    };
    let v6 = |frame: &[u8]| {
        let first = frame[20] == FRAGMENT && frame[56..58] == [0, 1];
        first.then(|| u32::from_be_bytes(frame[58..62].try_into().unwrap()))
    };
    for (bits, all) in [
        (16, capture_ip_ids([REMOTE, SECOND_ADDRESS], 100, v4)),
        (16, capture_ip_ids([REMOTE, SECOND_ADDRESS], 3_000, v4)),
        (
            32,
            capture_ip_ids([REMOTE_V6, SECOND_ADDRESS_V6], 3_000, v6),
        ),
    ] {
        let difference = |minuend: u32, subtrahend: u32| {
            minuend.wrapping_sub(subtrahend) << (32 - bits) >> (32 - bits)
        };
        let [first_ids, second_ids] = &all;
        assert_eq!((first_ids.len(), second_ids.len()), (3, 3));
        for numbers in &all {
            // None repeats soon.
            let mut each = numbers.windows(2).map(|two| difference(two[1], two[0]));
            assert!(each.all(|more| (1..10).contains(&more)), "{numbers:?}");
        }
        let distance =
            difference(first_ids[0], second_ids[0]).min(difference(second_ids[0], first_ids[0]));
        assert!(distance > 1_000, "{all:?}");
    }
}

/// smoltcp's fragmenter kept only the last datagram of a burst; ours sends one at a time.
#[test]
fn a_burst_of_long_datagrams_loses_none() {
    let mut sim =
        TwoStackSim::symmetric(&["tx_descriptors=4", "rx_descriptors=4"], LinkModel::CLEAN);
    let (client, server) = connected_pair(&mut sim);
    let mut got = 0;
    for _ in 0..40 {
        for _ in 0..8 {
            send(&mut sim, client, 8_000);
            while let Some(payload) = receive_one(&mut sim, server) {
                assert!(payload == content(8_000));
                got += 1;
            }
        }
    }
    sim.run_until(3, |sim| {
        while receive_one(sim, server).is_some() {
            got += 1;
        }
        got == 320
    });
    assert_eq!(sim.local.counters().ip.fragmented_ok, 320);
    assert_eq!(sim.local.counters().ip.fragments_created, 320 * 6);
}

#[test]
fn fragments_arrive_in_any_order_or_not_at_all() {
    let link = LinkModel {
        reorder: 500_000,
        duplicate: 100_000,
        shuffle_ns: 400_000,
        ..LinkModel::CLEAN
    };
    let mut sim = TwoStackSim::symmetric(&[], link);
    let (client, server) = connected_pair(&mut sim);
    for _ in 0..50 {
        send(&mut sim, client, 20_000);
        let mut got = None;
        sim.run_until(3, |sim| {
            got = receive_one(sim, server);
            got.is_some()
        });
        assert!(got.unwrap() == content(20_000));
    }
    // Duplicates that arrive after completion take no buffer.
    sim.run(3_000);
    let counters = sim.remote.counters().ip;
    assert_eq!(counters.reassembly_timeouts, 0);
    assert!(counters.reassembly_late > 0);

    let mut sim = TwoStackSim::symmetric(&["ip.reassembly_buffers.count=2"], LinkModel::CLEAN);
    let (client, server) = connected_pair(&mut sim);
    let lost = Rc::new(Cell::new(0));
    let count = lost.clone();
    sim.wire.filter = Box::new(move |_, frame| {
        // The second fragment of each datagram.
        let second = frame[12..14] == [8, 0] && frame[20..22] == [0x20, 185];
        count.set(count.get() + u32::from(second));
        !second
    });
    for _ in 0..4 {
        send(&mut sim, client, 5_000);
    }
    sim.run(40);
    assert_eq!(lost.get(), 4);
    let counters = sim.remote.counters().ip;
    // Each datagram evicts the one before the last.
    assert_eq!(
        (counters.reassembly_ok, counters.reassembly_evicted),
        (0, 2)
    );
    sim.wire.filter = Box::new(|_, _| true);
    // Everything works again at once.
    send(&mut sim, client, 5_000);
    let mut got = None;
    sim.run_until(3, |sim| {
        got = receive_one(sim, server);
        got.is_some()
    });
    assert!(got.unwrap() == content(5_000));
    let counters = sim.remote.counters().ip;
    assert_eq!(
        (counters.reassembly_ok, counters.reassembly_timeouts),
        (1, 0)
    );
}

#[test]
fn fragments_are_rejected_if_disabled() {
    let mut sim = TwoStackSim::symmetric(
        &["ip.fragmentation=off", "ip.reassembly=off"],
        LinkModel::CLEAN,
    );
    let (client, _) = connected_pair(&mut sim);
    for (to, max_bytes) in [(REMOTE, 1_472), (REMOTE_V6, 1_452)] {
        let result =
            (sim.local).udp_send(client, Some(socket_address(to, 7)), max_bytes + 1, |_| ());
        assert!(matches!(
            result,
            Poll::Ready(Err(StackError::TooLong { limit, .. })) if limit == max_bytes
        ));
    }
    let (local, remote) = (
        crate::common::config(&[]),
        crate::common::config(&["ip.reassembly=off"]),
    );
    let mut sim = TwoStackSim::new(&local, &remote, LinkModel::CLEAN);
    let (client, server) = connected_pair(&mut sim);
    send(&mut sim, client, 3_000);
    sim.run(100);
    assert_eq!(sim.remote.udp_queued(server).unwrap(), 0);
    assert_eq!(sim.remote.counters().ip.reassembly_errors, 3);
}

/// Bursts of 64 for a queue of this length, with an application that reads after all have arrived,
/// and with one that reads after each poll.
#[test]
fn a_queue_loses_what_it_cannot_hold() {
    for (queue, late_drops, eager_drops) in [
        (1, 63, 48),
        (4, 60, 0),
        (16, 48, 0),
        (64, 0, 0),
        (255, 0, 0),
    ] {
        for (eager, expected) in [(false, late_drops), (true, eager_drops)] {
            let setting = format!("udp.receive_queue={queue}");
            // A poll receives four frames: with a queue of one, one of them is kept.
            let mut sim = TwoStackSim::symmetric(&[&setting, "rx_descriptors=4"], LinkModel::CLEAN);
            let (client, server) = connected_pair(&mut sim);
            for _ in 0..64 {
                send(&mut sim, client, 64);
            }
            let mut got = 0;
            for _ in 0..200 {
                while eager && receive_one(&mut sim, server).is_some() {
                    got += 1;
                }
                sim.poll();
                sim.advance();
            }
            let mut drops = 0;
            while let Poll::Ready(meta) = sim.remote.udp_receive(server, |_, meta| meta) {
                drops = meta.unwrap().queue_drops;
                got += 1;
            }
            assert_eq!(64 - got, expected, "queue {queue}, eager {eager}");
            let counters = sim.remote.counters().udp;
            assert_eq!(counters.receive_queue_full, expected);
            if !eager {
                assert_eq!(u64::from(drops), expected);
            }
        }
    }
}

#[test]
fn packets_of_all_sockets_share_the_buffers() {
    let mut sim = TwoStackSim::symmetric(
        &["udp.buffers=10", "udp.receive_queue=100"],
        LinkModel::CLEAN,
    );
    let (client, server) = connected_pair(&mut sim);
    for _ in 0..30 {
        send(&mut sim, client, 64);
    }
    sim.run(200);
    assert_eq!(sim.remote.udp_queued(server).unwrap(), 10);
    assert_eq!(sim.remote.counters().udp.no_buffer, 20);
}

thread_local! {
    static CLOCK: Cell<u64> = const { Cell::new(1_000) };
}

/// Clock that advances by a microsecond with each reading.
fn clock() -> u64 {
    CLOCK.with(|clock| {
        clock.set(clock.get() + 1_000);
        clock.get()
    })
}

#[test]
fn stages_are_in_order_and_replies_carry_them() {
    for (address, text) in [
        (REMOTE, "16,width=8,order=be"),
        (REMOTE_V6, "17,width=4,order=le,hz=1M"),
    ] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
        let stamps: linerate_record::device_timestamps::DeviceTimestamps = text.parse().unwrap();
        sim.remote.stamp_payload(stamps, clock);
        sim.remote.watch_stages(clock, 16);
        let server = sim.remote.udp_bind(any_address(7)).unwrap();
        let client = sim.local.udp_bind(any_address(0)).unwrap();
        sim.local
            .udp_connect(client, socket_address(address, 7))
            .unwrap();
        for round in 0..20 {
            expect_ready(
                sim.local
                    .udp_send(client, None, 64, |payload| payload.fill(9)),
            );
            sim.run_until(3, |sim| sim.remote.udp_queued(server).unwrap() == 1);
            let (from, meta) =
                expect_ready(sim.remote.udp_receive(server, |_, meta| (meta.from, meta)));
            let application = clock();
            expect_ready(
                sim.remote
                    .udp_send(server, Some(from), 64, |payload| payload.fill(9)),
            );
            let mut reply = None;
            sim.run_until(3, |sim| {
                if let Poll::Ready(got) =
                    sim.local.udp_receive(client, |payload, _| payload.to_vec())
                {
                    reply = Some(got.unwrap());
                }
                reply.is_some()
            });
            let mut left = None;
            assert_eq!(
                sim.remote
                    .take_departures(|departure| left = Some(departure)),
                0
            );
            let left = left.unwrap();
            assert_eq!((left.socket, left.number), (server, round));
            let queued = meta.queued_ns.unwrap();
            assert!(meta.arrived_ns < queued && queued < application);
            assert!(application < left.finished_ns && left.finished_ns < left.sent_ns);
            let mut reply = reply.unwrap();
            let counts = stamps.read(&reply).unwrap();
            assert_eq!(stamps.elapsed_ns(counts), left.sent_ns - meta.arrived_ns);
            reply.drain(stamps.byte_range());
            assert!(reply.iter().all(|&pattern_byte| pattern_byte == 9));
        }
        assert_eq!(sim.local.counters().udp.in_checksum_errors, 0);
    }
}

/// Reading the clock is a considerable part of a reply's time.
#[test]
fn a_timestamped_reply_costs_two_clock_readings() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    sim.remote.stamp_payload("16".parse().unwrap(), clock);
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    sim.local
        .udp_connect(client, socket_address(REMOTE, 7))
        .unwrap();
    // Both neighbours are resolved from here on.
    expect_ready((sim.local).udp_send(client, None, 64, |_| ()));
    sim.run(200);
    expect_ready(sim.remote.udp_receive(server, |_, _| ()));
    for _ in 0..3 {
        expect_ready((sim.local).udp_send(client, None, 64, |payload| payload.fill(9)));
        sim.local.flush();
        sim.wire.transfer(sim.now);
        sim.now += LinkModel::CLEAN.delay_ns;
        sim.wire.transfer(sim.now);
        let before = CLOCK.get();
        assert!(sim.remote.prefetch());
        // A poll can use their arrival time as its own.
        assert_eq!(sim.remote.prefetched_at(), Some(before + 1_000));
        sim.remote.poll(sim.now);
        assert_eq!(sim.remote.prefetched_at(), None);
        let from = expect_ready(sim.remote.udp_receive(server, |_, meta| meta.from));
        expect_ready((sim.remote).udp_send(server, Some(from), 64, |payload| payload.fill(9)));
        sim.remote.flush_frames();
        assert_eq!(CLOCK.get() - before, 2_000);
    }
}

/// A reply does not wait for timers, and no timer is postponed for ever.
#[test]
fn a_reply_leaves_before_timers_run() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    sim.local
        .udp_connect(client, socket_address(REMOTE, 7))
        .unwrap();
    expect_ready((sim.local).udp_send(client, None, 64, |_| ()));
    sim.run(200);
    expect_ready(sim.remote.udp_receive(server, |_, _| ()));
    // A silent neighbour is requested once a second.
    let silent = Some(socket_address("10.0.0.77", 7));
    expect_ready((sim.remote).udp_send(server, silent, 1, |_| ()));
    sim.remote.flush();
    let request_count = |sim: &TwoStackSim| sim.remote.counters().link.out_neighbor_requests;
    for requests in 1..=3 {
        assert_eq!(request_count(&sim), requests);
        expect_ready((sim.local).udp_send(client, None, 64, |_| ()));
        sim.local.flush();
        sim.wire.transfer(sim.now);
        sim.now += 1_000_000_000;
        sim.wire.transfer(sim.now);
        let sent_before = sim.remote.counters().link.out_frames;
        assert_eq!(sim.remote.poll(sim.now).received, 1);
        assert_eq!(request_count(&sim), requests, "it is due, and waits");
        let from = expect_ready(sim.remote.udp_receive(server, |_, meta| meta.from));
        expect_ready((sim.remote).udp_send(server, Some(from), 64, |_| ()));
        sim.remote.flush_frames();
        assert_eq!(sim.remote.counters().link.out_frames, sent_before + 1);
        assert!(sim.remote.next_deadline() <= Some(sim.now));
        // Datagrams in each poll hold nothing back for good.
        expect_ready((sim.local).udp_send(client, None, 64, |_| ()));
        sim.local.flush();
        sim.wire.transfer(sim.now);
        sim.now += LinkModel::CLEAN.delay_ns;
        sim.wire.transfer(sim.now);
        assert_eq!(sim.remote.poll(sim.now).received, 1);
        expect_ready(sim.remote.udp_receive(server, |_, _| ()));
    }
    assert_eq!(sim.remote.counters().link.out_unresolved, 1);
}

/// An application that sleeps until a frame arrives closes a connection at the time of the poll
/// that woke it.
#[test]
fn a_close_after_a_datagram_uses_the_present_time() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let (local_connection, remote_connection) = sim.connect(80);
    let server = sim.local.udp_bind(any_address(7)).unwrap();
    let client = sim.remote.udp_bind(any_address(0)).unwrap();
    sim.remote
        .udp_connect(client, socket_address(LOCAL, 7))
        .unwrap();
    sim.run(200);
    sim.now += 61_000_000_000;
    expect_ready((sim.remote).udp_send(client, None, 1, |_| ()));
    sim.remote.flush();
    sim.wire.transfer(sim.now);
    sim.now += LinkModel::CLEAN.delay_ns;
    sim.wire.transfer(sim.now);
    assert_eq!(sim.local.poll(sim.now).received, 1);
    expect_ready(sim.local.udp_receive(server, |_, _| ()));
    sim.local.close(local_connection).unwrap();
    sim.local.flush();
    sim.run(200);
    sim.remote.close(remote_connection).unwrap();
    sim.run(200);
    let resets = [&sim.local, &sim.remote].map(|stack| stack.counters().tcp.out_resets);
    assert_eq!(resets, [0, 0]);
}

/// If stages are watched from between a prefetch and its poll, the arrival time is the start of
/// watching.
#[test]
fn prefetched_frames_arrive_when_watching_starts() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    sim.local
        .udp_connect(client, socket_address(REMOTE, 7))
        .unwrap();
    expect_ready((sim.local).udp_send(client, None, 64, |_| ()));
    sim.run(200);
    expect_ready(sim.remote.udp_receive(server, |_, _| ()));
    expect_ready((sim.local).udp_send(client, None, 64, |_| ()));
    sim.local.flush();
    sim.wire.transfer(sim.now);
    sim.now += LinkModel::CLEAN.delay_ns;
    sim.wire.transfer(sim.now);
    assert!(sim.remote.prefetch());
    assert_eq!(sim.remote.prefetched_at(), None);
    let before = CLOCK.get();
    sim.remote.watch_stages(clock, 4);
    assert_eq!(sim.remote.prefetched_at(), Some(before + 1_000));
}

#[test]
fn resolution_of_a_silent_neighbor_is_retried_and_fails() {
    let mut sim = TwoStackSim::symmetric(&["arp.cache=2"], LinkModel::CLEAN);
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    expect_ready(
        sim.local
            .udp_send(client, Some(socket_address("10.0.0.77", 7)), 1, |_| ()),
    );
    sim.run_until(10, |sim| sim.local.counters().link.out_unresolved == 1);
    assert_eq!(sim.local.counters().link.out_neighbor_requests, 3);
    assert_eq!(sim.local.next_deadline(), None);
    // Later packets wait no longer, whenever they are sent, and a connected socket gets an error.
    for lost in 2..6 {
        sim.run(300);
        let connected = sim.local.udp_bind(any_address(0)).unwrap();
        (sim.local
            .udp_connect(connected, socket_address("10.0.0.77", 7)))
        .unwrap();
        expect_ready(sim.local.udp_send(connected, None, 1, |_| ()));
        sim.run_until(10, |sim| sim.local.counters().link.out_unresolved == lost);
        let result = sim.local.udp_receive(connected, |_, _| ());
        assert!(
            matches!(result, Poll::Ready(Err(StackError::NeighborSilent { .. }))),
            "{result:?}"
        );
        assert!(sim.local.udp_receive(connected, |_, _| ()).is_pending());
        sim.local.close(connected).unwrap();
    }
    // A small cache evicts the least recently used entry, and everything still works.
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    for _ in 0..5 {
        for silent in ["10.0.0.78", "10.0.0.79", REMOTE] {
            expect_ready(
                sim.local
                    .udp_send(client, Some(socket_address(silent, 7)), 1, |_| ()),
            );
            sim.run(10);
        }
    }
    sim.run_until(5, |sim| sim.remote.udp_queued(server).unwrap() == 5);
}

#[test]
fn a_lost_address_request_is_repeated() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    let mut lost = false;
    sim.wire.filter = Box::new(move |_, frame| {
        let first = frame[12..14] == [8, 6] && !lost;
        lost |= first;
        !first
    });
    for _ in 0..3 {
        expect_ready(
            sim.local
                .udp_send(client, Some(socket_address(REMOTE, 7)), 1, |_| ()),
        );
    }
    sim.run_until(3, |sim| sim.remote.udp_queued(server).unwrap() == 3);
    assert_eq!(sim.local.counters().link.out_neighbor_requests, 2);
}

#[test]
fn bad_frames_are_counted_by_what_is_wrong() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let (client, server) = connected_pair(&mut sim);
    let captured = sim.capture(|end, frame| end == 0 && frame[12..14] == [8, 0]);
    send(&mut sim, client, 20);
    sim.run_until(3, |sim| sim.remote.udp_queued(server).unwrap() == 1);
    let good = captured.borrow()[0].clone();
    let before = sim.remote.counters();
    let mut put = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        sim.wire.deliver(1, &frame);
        sim.run(5);
    };
    put(&|frame| frame[50] ^= 1);
    put(&|frame| frame[22] ^= 1);
    put(&|frame| frame[0] ^= 2);
    put(&|frame| frame[12] = 0x99);
    put(&|frame| frame.truncate(13));
    put(&|frame| frame.truncate(40));
    put(&|frame| frame.extend([0; 18]));
    let after = sim.remote.counters().since(&before);
    assert_eq!(after.udp.in_checksum_errors, 1);
    assert_eq!(after.ip.in_header_errors, 2);
    assert_eq!(after.link.in_not_ours, 1);
    assert_eq!(after.link.in_unknown_protocols, 1);
    assert_eq!(after.link.in_errors, 1);
    // Padding of a frame is not part of the packet.
    assert_eq!(after.udp.in_datagrams, 1);
    let names: Vec<_> = after
        .entries()
        .into_iter()
        .filter(|row| row.2 > 0)
        .map(|row| row.1)
        .collect();
    assert!(names.contains(&"in_checksum_errors") && !names.contains(&"no_ports"));
    assert_eq!(
        sim.remote.addressing().networks[0].address.to_string(),
        REMOTE
    );
}

/// A checksum with only the pseudo header's sum was left to a device; there is none here.
#[test]
fn partial_checksums_are_counted_separately() {
    for (address, head) in [(REMOTE, 20), (REMOTE_V6, 40)] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
        let _server = sim.remote.udp_bind(any_address(7)).unwrap();
        let client = sim.local.udp_bind(any_address(0)).unwrap();
        sim.local
            .udp_connect(client, socket_address(address, 7))
            .unwrap();
        sim.wire.filter = Box::new(move |end, frame| {
            let (kind, protocol) = if head == 20 {
                ([8, 0], 23)
            } else {
                ([0x86, 0xdd], 20)
            };
            if end == 0 && frame[12..14] == kind && frame[protocol] == 17 {
                let body = 14 + head;
                let addresses = if head == 20 { 26..34 } else { 22..54 };
                let length = u16::from_be_bytes([frame[body + 4], frame[body + 5]]);
                let pseudo = UnfoldedSum::from_bytes(&frame[addresses])
                    + UnfoldedSum::from_u16(17)
                    + UnfoldedSum::from_u16(length);
                frame[body + 6..body + 8].copy_from_slice(&pseudo.to_u16().to_be_bytes());
            }
            true
        });
        expect_ready(
            sim.local
                .udp_send(client, None, 10, |payload| payload.fill(3)),
        );
        sim.run(200);
        let counters = sim.remote.counters().udp;
        assert_eq!(
            (counters.open_checksum_drops, counters.in_checksum_errors),
            (1, 0),
            "{address}: {counters:#?}"
        );
        assert_eq!(counters.in_datagrams, 0);
    }
}

#[test]
fn datagrams_carry_the_class_of_service_of_their_stack() {
    for (address, bytes) in [
        (REMOTE, 64),
        (REMOTE, 5_000),
        (REMOTE_V6, 64),
        (REMOTE_V6, 5_000),
    ] {
        let mut sim = TwoStackSim::symmetric(&["ip.tos=184"], LinkModel::CLEAN);
        let server = sim.remote.udp_bind(any_address(7)).unwrap();
        let client = sim.local.udp_bind(any_address(0)).unwrap();
        sim.local
            .udp_connect(client, socket_address(address, 7))
            .unwrap();
        send(&mut sim, client, bytes);
        sim.run_until(3, |sim| sim.remote.udp_queued(server).unwrap() == 1);
        let tos = expect_ready(sim.remote.udp_receive(server, |_, meta| meta.tos));
        assert_eq!(tos, 184, "{bytes} B to {address}");
    }
}

#[test]
fn datagrams_to_a_group_have_the_configured_hop_limit() {
    for (group, ethernet, hops_at) in [
        ("239.129.2.3", [0x01, 0x00, 0x5e, 0x01, 2, 3], 14 + 8),
        ("ff12::1:77", [0x33, 0x33, 0, 1, 0, 0x77], 14 + 7),
    ] {
        for (limit, hops) in [(None, 1), (Some(7), 7)] {
            let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
            if let Some(limit) = limit {
                sim.local.set_group_hops(limit);
            }
            let frames = sim.capture(|_, _| true);
            let socket = sim.local.udp_bind(any_address(0)).unwrap();
            let to = Some(socket_address(group, 9));
            expect_ready(sim.local.udp_send(socket, to, 3, |payload| payload.fill(1)));
            sim.run(3);
            // No address request was sent for the group.
            let frames = frames.borrow();
            assert_eq!(frames.len(), 1, "{group}");
            assert_eq!(frames[0][..6], ethernet, "{group}");
            assert_eq!(frames[0][hops_at], hops, "{group}");
            assert_eq!(sim.remote.counters().ip.in_header_errors, 0);
        }
    }
}

#[test]
fn ipv6_fragments_follow_the_rfcs() {
    let payload = content(30);
    let addresses = (crate::common::LOCAL_V6, REMOTE_V6);
    let datagram = packets::datagram(0xc001, 7, &payload);
    let plain = packets::packet(BROADCAST, addresses, UDP, &datagram);
    // Extension headers in front of the datagram are fragmented with it.
    let mut options = plain.clone();
    packets::insert_headers(&mut options, 60, &[UDP, 0, 1, 4, 0, 0, 0, 0]);
    let make_fragment = |bytes| packets::fragment(&plain, 9, bytes);
    let fragment_twice = |frame: &[u8]| {
        let end = frame.len() - packets::payload_offset(frame);
        let [first, mut second] = [0..16, 16..end].map(|bytes| packets::fragment(frame, 9, bytes));
        // The protocol in later fragments is ignored (RFC 8200, section 4.5).
        second[packets::payload_offset(frame)] = 99;
        [first, second]
    };
    let atomic = make_fragment(0..datagram.len());
    let [first, second] = fragment_twice(&plain);
    let [options_first, options_second] = fragment_twice(&options);
    for (name, frames, expected, errors) in [
        ("in order", vec![&first, &second], 1, 0),
        ("reversed", vec![&second, &first], 1, 0),
        ("twice", vec![&first, &first, &second], 1, 0),
        ("with options", vec![&options_first, &options_second], 1, 0),
        // A complete datagram in one fragment, with others of the same number (RFC 6946).
        ("atomic", vec![&first, &atomic, &second], 2, 0),
        // Dropped completely, with its later fragments (RFC 5722).
        (
            "overlapping",
            vec![&first, &make_fragment(8..24), &second, &first],
            0,
            1,
        ),
        ("no eights", vec![&make_fragment(0..15)], 0, 1),
    ] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
        let server = sim.remote.udp_bind(any_address(7)).unwrap();
        for frame in frames {
            sim.wire.deliver(1, frame);
        }
        sim.run(5);
        let mut got = 0;
        while let Some(bytes) = receive_one(&mut sim, server) {
            assert!(bytes == payload, "{name}");
            got += 1;
        }
        let ip = sim.remote.counters().ip;
        assert_eq!(
            (got, ip.reassembly_errors),
            (expected, errors),
            "{name}: {ip:#?}"
        );
    }
}

#[test]
fn invalid_requests_get_no_reply() {
    let ping = [8, 0, 0, 0, 0, 0, 0, 0];
    let closed_port = packets::datagram(0xc001, 8_080, &[]);
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let ethernet = sim.remote.ethernet_address();
    for (name, (from, to), (kind, payload), is_unicast, expected) in [
        ("a ping", (LOCAL, REMOTE), (ICMP, &ping[..]), true, (1, 0)),
        (
            "from a group",
            ("224.0.0.9", REMOTE),
            (ICMP, &ping),
            true,
            (0, 1),
        ),
        (
            "from a broadcast address",
            ("10.0.0.255", REMOTE),
            (ICMP, &ping),
            true,
            (0, 1),
        ),
        (
            "from loopback",
            ("127.0.0.1", REMOTE),
            (UDP, &closed_port),
            true,
            (0, 1),
        ),
        (
            "to a broadcast address",
            (LOCAL, "10.0.0.255"),
            (ICMP, &ping),
            false,
            (0, 1),
        ),
        (
            "to all hosts",
            (LOCAL, "224.0.0.1"),
            (ICMP, &ping),
            false,
            (0, 1),
        ),
        (
            "no port",
            (LOCAL, REMOTE),
            (UDP, &closed_port),
            true,
            (1, 0),
        ),
        (
            "in a frame to all",
            (LOCAL, REMOTE),
            (UDP, &closed_port),
            false,
            (0, 0),
        ),
    ] {
        let frame_destination = if is_unicast { ethernet } else { BROADCAST };
        let before = sim.remote.counters();
        (sim.wire).deliver(
            1,
            &packets::packet(frame_destination, (from, to), kind, payload),
        );
        sim.run(20);
        let since = sim.remote.counters().since(&before);
        let errors = since.ip.in_source_errors + since.icmp.in_echos_ignored;
        assert_eq!((since.icmp.out_messages, errors), expected, "{name}");
    }
}

#[test]
fn packets_of_all_protocols_are_counted() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    sim.connect(80);
    let (client, _) = connected_pair(&mut sim);
    send(&mut sim, client, 5_000);
    sim.run(100);
    let counters = sim.local.counters();
    let (udp, tcp, icmp) = (counters.udp, counters.tcp, counters.icmp);
    assert_eq!(udp.out_datagrams, 2);
    assert!(
        tcp.out_segments > 1 && icmp.out_messages > 0,
        "{counters:#?}"
    );
    let all = udp.out_datagrams + tcp.out_segments + icmp.out_messages;
    assert_eq!(counters.ip.out_requests, all);
}

/// A stack with two addresses in a network replied from the first one, and a connected client
/// dropped the reply.
#[test]
fn a_reply_comes_from_the_address_of_the_request() {
    const SECOND_ADDRESS: &str = "10.0.0.3";
    for bytes in [64, 3_000] {
        let addressing =
            StackAddressing::new(&["10.0.0.2/24", "10.0.0.3/24", "fd00::2/64"]).unwrap();
        let config = crate::common::config(&[]);
        let mut sim =
            TwoStackSim::with_remote_addressing(&config, &config, LinkModel::CLEAN, &addressing);
        let server = sim.remote.udp_bind(any_address(7)).unwrap();
        let client = sim.local.udp_bind(any_address(0)).unwrap();
        for address in [REMOTE, SECOND_ADDRESS, SECOND_ADDRESS, REMOTE] {
            expect_ready(sim.local.udp_send(
                client,
                Some(socket_address(address, 7)),
                bytes,
                |_| (),
            ));
            sim.run_until(3, |sim| sim.remote.udp_queued(server).unwrap() == 1);
            let from = expect_ready(sim.remote.udp_receive(server, |_, meta| meta.from));
            expect_ready(sim.remote.udp_send(server, Some(from), bytes, |_| ()));
            sim.run_until(3, |sim| sim.local.udp_queued(client).unwrap() == 1);
            let from = expect_ready(sim.local.udp_receive(client, |_, meta| meta.from));
            assert_eq!(from, socket_address(address, 7), "{bytes} B");
        }
    }
}
