//! UDP between two stacks in simulated time: fragments, queues, stamps, neighbours.

mod common;

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Poll;

use common::packets::{self, EVERYBODY, FRAGMENT, ICMP, UDP};
use common::{FAR, FAR_V6, Link, NEAR, World, any, at, byte, ready};
use linerate_port::checksum::Sum;
use linerate_stack::{Addressing, SocketId, StackError};

fn pair(world: &mut World) -> (SocketId, SocketId) {
    pair_at(world, FAR)
}

fn pair_at(world: &mut World, far: &str) -> (SocketId, SocketId) {
    let server = world.far.udp_bind(any(7)).unwrap();
    let client = world.near.udp_bind(any(0)).unwrap();
    world.near.udp_connect(client, at(far, 7)).unwrap();
    // Both neighbours are resolved from here on.
    ready(world.near.udp_send(client, None, 1, |_| ()));
    world.until(3, |world| world.far.udp_waiting(server).unwrap() == 1);
    ready(world.far.udp_receive(server, |_, _| ()));
    (client, server)
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(byte).collect()
}

fn send(world: &mut World, client: SocketId, bytes: usize) {
    world.until(3, |world| {
        let fill = |payload: &mut [u8]| payload.copy_from_slice(&content(bytes));
        match world.near.udp_send(client, None, bytes, fill) {
            Poll::Ready(sent) => {
                assert_eq!(sent.unwrap(), bytes);
                true
            }
            Poll::Pending => false,
        }
    });
}

fn take(world: &mut World, server: SocketId) -> Option<Vec<u8>> {
    match world.far.udp_receive(server, |payload, _| payload.to_vec()) {
        Poll::Ready(payload) => Some(payload.unwrap()),
        Poll::Pending => None,
    }
}

#[test]
fn long_datagrams_arrive_whole_at_any_mtu() {
    let cases = [576, 1500, 4000, 9000].map(|mtu| [(mtu, FAR, 65_507), (mtu, FAR_V6, 65_527)]);
    for (mtu, far, most) in cases.into_iter().flatten() {
        let mut world = World::alike(&[&format!("mtu={mtu}")], Link::CLEAN);
        let (client, server) = pair_at(&mut world, far);
        for bytes in [
            0, 1, 528, 529, 547, 548, 549, 1452, 1453, 1472, 1473, 5888, 32_768, most,
        ] {
            send(&mut world, client, bytes);
            let mut got = None;
            world.until(3, |world| {
                got = take(world, server);
                got.is_some()
            });
            assert!(
                got.unwrap() == content(bytes),
                "{bytes} B to {far} at {mtu}"
            );
        }
        assert_eq!(world.far.counters().ip.reassembly_errors, 0);
        assert!(matches!(
            world.near.udp_send(client, None, most + 1, |_| ()),
            Poll::Ready(Err(StackError::TooLong { limit, .. })) if limit == most
        ));
    }
}

/// Returns the identification numbers of packets sent to two addresses alternately; `number`
/// extracts them.
fn numbers(
    ends: [&'static str; 2],
    bytes: usize,
    number: fn(&[u8]) -> Option<u32>,
) -> [Vec<u32>; 2] {
    let own = ["10.0.0.2/24", "10.0.0.3/24", "fd00::2/64", "fd00::3/64"];
    let config = common::config(&[]);
    let mut world = World::between(
        &config,
        &config,
        Link::CLEAN,
        &Addressing::new(&own).unwrap(),
    );
    let (client, _) = pair_at(&mut world, ends[0]);
    let meant = world.kept(move |end, frame| end == 0 && number(frame).is_some());
    for turn in [0, 1, 1, 0, 1, 0] {
        let to = Some(at(ends[turn], 7));
        let sent = world.near.udp_send(client, to, bytes, |_| ());
        assert!(sent.is_ready());
        world.run(100);
    }
    let meant = meant.borrow();
    ends.map(|end| {
        let end: IpAddr = end.parse().unwrap();
        let to_it = meant
            .iter()
            .filter(|frame| packets::addressee(frame) == end);
        to_it.filter_map(|frame| number(frame)).collect()
    })
}

/// Numbers from one counter for all hosts reveal the traffic of others, and allow an attacker to
/// disturb reassembly (RFC 7739).
#[test]
fn numbers_of_packets_say_nothing_of_those_to_others() {
    const OTHER: &str = "10.0.0.3";
    const OTHER_V6: &str = "fd00::3";
    // Of first fragments, and of packets that a router may fragment.
    let v4 = |frame: &[u8]| {
        let meant =
            packets::is_v4(frame) && frame[23] == UDP && frame[21] == 0 && frame[20] & 0x1f == 0;
        meant.then(|| u16::from_be_bytes([frame[18], frame[19]]).into())
    };
    let v6 = |frame: &[u8]| {
        let first = frame[20] == FRAGMENT && frame[56..58] == [0, 1];
        first.then(|| u32::from_be_bytes(frame[58..62].try_into().unwrap()))
    };
    for (bits, all) in [
        (16, numbers([FAR, OTHER], 100, v4)),
        (16, numbers([FAR, OTHER], 3_000, v4)),
        (32, numbers([FAR_V6, OTHER_V6], 3_000, v6)),
    ] {
        let less = |one: u32, other: u32| one.wrapping_sub(other) << (32 - bits) >> (32 - bits);
        let [ones, others] = &all;
        assert_eq!((ones.len(), others.len()), (3, 3));
        for numbers in &all {
            // None repeats soon.
            let mut each = numbers.windows(2).map(|two| less(two[1], two[0]));
            assert!(each.all(|more| (1..10).contains(&more)), "{numbers:?}");
        }
        let apart = less(ones[0], others[0]).min(less(others[0], ones[0]));
        assert!(apart > 1_000, "{all:?}");
    }
}

/// smoltcp's fragmenter kept only the last datagram of a burst; ours sends one at a time.
#[test]
fn a_burst_of_long_datagrams_loses_none() {
    let mut world = World::alike(&["tx_descriptors=4", "rx_descriptors=4"], Link::CLEAN);
    let (client, server) = pair(&mut world);
    let mut got = 0;
    for _ in 0..40 {
        for _ in 0..8 {
            send(&mut world, client, 8_000);
            while let Some(payload) = take(&mut world, server) {
                assert!(payload == content(8_000));
                got += 1;
            }
        }
    }
    world.until(3, |world| {
        while take(world, server).is_some() {
            got += 1;
        }
        got == 320
    });
    assert_eq!(world.near.counters().ip.fragmented_ok, 320);
    assert_eq!(world.near.counters().ip.fragments_created, 320 * 6);
}

#[test]
fn fragments_arrive_in_any_order_or_not_at_all() {
    let link = Link {
        reorder: 500_000,
        duplicate: 100_000,
        shuffle_ns: 400_000,
        ..Link::CLEAN
    };
    let mut world = World::alike(&[], link);
    let (client, server) = pair(&mut world);
    for _ in 0..50 {
        send(&mut world, client, 20_000);
        let mut got = None;
        world.until(3, |world| {
            got = take(world, server);
            got.is_some()
        });
        assert!(got.unwrap() == content(20_000));
    }
    // Duplicates that arrive after completion take no buffer.
    world.run(3_000);
    let counters = world.far.counters().ip;
    assert_eq!(counters.reassembly_timeouts, 0);
    assert!(counters.reassembly_late > 0);

    let mut world = World::alike(&["ip.reassembly_buffers.count=2"], Link::CLEAN);
    let (client, server) = pair(&mut world);
    let lost = Rc::new(Cell::new(0));
    let count = lost.clone();
    world.wire.watch = Box::new(move |_, frame| {
        // The second fragment of each datagram.
        let second = frame[12..14] == [8, 0] && frame[20..22] == [0x20, 185];
        count.set(count.get() + u32::from(second));
        !second
    });
    for _ in 0..4 {
        send(&mut world, client, 5_000);
    }
    world.run(40);
    assert_eq!(lost.get(), 4);
    let counters = world.far.counters().ip;
    // Each datagram evicts the one before the last.
    assert_eq!(
        (counters.reassembly_ok, counters.reassembly_evicted),
        (0, 2)
    );
    world.wire.watch = Box::new(|_, _| true);
    // Everything works again at once.
    send(&mut world, client, 5_000);
    let mut got = None;
    world.until(3, |world| {
        got = take(world, server);
        got.is_some()
    });
    assert!(got.unwrap() == content(5_000));
    let counters = world.far.counters().ip;
    assert_eq!(
        (counters.reassembly_ok, counters.reassembly_timeouts),
        (1, 0)
    );
}

#[test]
fn fragments_are_refused_where_they_are_off() {
    let mut world = World::alike(&["ip.fragmentation=off", "ip.reassembly=off"], Link::CLEAN);
    let (client, _) = pair(&mut world);
    for (to, most) in [(FAR, 1_472), (FAR_V6, 1_452)] {
        let refused = (world.near).udp_send(client, Some(at(to, 7)), most + 1, |_| ());
        assert!(matches!(
            refused,
            Poll::Ready(Err(StackError::TooLong { limit, .. })) if limit == most
        ));
    }
    let (near, far) = (common::config(&[]), common::config(&["ip.reassembly=off"]));
    let mut world = World::new(&near, &far, Link::CLEAN);
    let (client, server) = pair(&mut world);
    send(&mut world, client, 3_000);
    world.run(100);
    assert_eq!(world.far.udp_waiting(server).unwrap(), 0);
    assert_eq!(world.far.counters().ip.reassembly_errors, 3);
}

/// Bursts of 64 for a queue of this length, with an application that reads after all have arrived,
/// and with one that reads after each poll.
#[test]
fn a_queue_loses_what_it_cannot_hold() {
    for (queue, late, at_once) in [
        (1, 63, 48),
        (4, 60, 0),
        (16, 48, 0),
        (64, 0, 0),
        (255, 0, 0),
    ] {
        for (eager, wanted) in [(false, late), (true, at_once)] {
            let setting = format!("udp.receive_queue={queue}");
            // A poll receives four frames: with a queue of one, one of them is kept.
            let mut world = World::alike(&[&setting, "rx_descriptors=4"], Link::CLEAN);
            let (client, server) = pair(&mut world);
            for _ in 0..64 {
                send(&mut world, client, 64);
            }
            let mut got = 0;
            for _ in 0..200 {
                while eager && take(&mut world, server).is_some() {
                    got += 1;
                }
                world.turn();
                world.pass();
            }
            let mut drops = 0;
            while let Poll::Ready(meta) = world.far.udp_receive(server, |_, meta| meta) {
                drops = meta.unwrap().queue_drops;
                got += 1;
            }
            assert_eq!(64 - got, wanted, "queue {queue}, eager {eager}");
            let counters = world.far.counters().udp;
            assert_eq!(counters.receive_queue_full, wanted);
            if !eager {
                assert_eq!(u64::from(drops), wanted);
            }
        }
    }
}

#[test]
fn packets_of_all_sockets_share_the_buffers() {
    let mut world = World::alike(&["udp.buffers=10", "udp.receive_queue=100"], Link::CLEAN);
    let (client, server) = pair(&mut world);
    for _ in 0..30 {
        send(&mut world, client, 64);
    }
    world.run(200);
    assert_eq!(world.far.udp_waiting(server).unwrap(), 10);
    assert_eq!(world.far.counters().udp.no_buffer, 20);
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
fn stages_are_in_order_and_answers_carry_them() {
    for (far, text) in [
        (FAR, "16,width=8,order=be"),
        (FAR_V6, "17,width=4,order=le,hz=1M"),
    ] {
        let mut world = World::alike(&[], Link::CLEAN);
        let stamps: linerate_metric::device_timestamps::DeviceStamps = text.parse().unwrap();
        world.far.stamp_payload(stamps, clock);
        world.far.watch_stages(clock, 16);
        let server = world.far.udp_bind(any(7)).unwrap();
        let client = world.near.udp_bind(any(0)).unwrap();
        world.near.udp_connect(client, at(far, 7)).unwrap();
        for round in 0..20 {
            ready(
                world
                    .near
                    .udp_send(client, None, 64, |payload| payload.fill(9)),
            );
            world.until(3, |world| world.far.udp_waiting(server).unwrap() == 1);
            let (from, meta) = ready(world.far.udp_receive(server, |_, meta| (meta.from, meta)));
            let application = clock();
            ready(
                world
                    .far
                    .udp_send(server, Some(from), 64, |payload| payload.fill(9)),
            );
            let mut answer = None;
            world.until(3, |world| {
                if let Poll::Ready(got) = world
                    .near
                    .udp_receive(client, |payload, _| payload.to_vec())
                {
                    answer = Some(got.unwrap());
                }
                answer.is_some()
            });
            let mut left = None;
            assert_eq!(world.far.departures(|departure| left = Some(departure)), 0);
            let left = left.unwrap();
            assert_eq!((left.socket, left.number), (server, round));
            let queued = meta.queued_ns.unwrap();
            assert!(meta.arrived_ns < queued && queued < application);
            assert!(application < left.handed_ns && left.handed_ns < left.left_ns);
            let mut answer = answer.unwrap();
            let counts = stamps.read(&answer).unwrap();
            assert_eq!(stamps.between_ns(counts), left.left_ns - meta.arrived_ns);
            answer.drain(stamps.range());
            assert!(answer.iter().all(|&byte| byte == 9));
        }
        assert_eq!(world.near.counters().udp.in_checksum_errors, 0);
    }
}

/// Reading the clock is a considerable part of a reply's time.
#[test]
fn an_answer_with_times_costs_two_looks_at_the_clock() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    world.far.stamp_payload("16".parse().unwrap(), clock);
    let server = world.far.udp_bind(any(7)).unwrap();
    let client = world.near.udp_bind(any(0)).unwrap();
    world.near.udp_connect(client, at(FAR, 7)).unwrap();
    // Both neighbours are resolved from here on.
    ready((world.near).udp_send(client, None, 64, |_| ()));
    world.run(200);
    ready(world.far.udp_receive(server, |_, _| ()));
    for _ in 0..3 {
        ready((world.near).udp_send(client, None, 64, |payload| payload.fill(9)));
        world.near.flush();
        world.wire.carry(world.now);
        world.now += Link::CLEAN.delay_ns;
        world.wire.carry(world.now);
        let before = CLOCK.get();
        assert!(world.far.look());
        // A poll can use their arrival time as its own.
        assert_eq!(world.far.found_at(), Some(before + 1_000));
        world.far.turn(world.now);
        assert_eq!(world.far.found_at(), None);
        let from = ready(world.far.udp_receive(server, |_, meta| meta.from));
        ready((world.far).udp_send(server, Some(from), 64, |payload| payload.fill(9)));
        world.far.send_made();
        assert_eq!(CLOCK.get() - before, 2_000);
    }
}

/// A reply does not wait for timers, and no timer is postponed for ever.
#[test]
fn an_answer_leaves_before_what_is_due_by_the_time() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let server = world.far.udp_bind(any(7)).unwrap();
    let client = world.near.udp_bind(any(0)).unwrap();
    world.near.udp_connect(client, at(FAR, 7)).unwrap();
    ready((world.near).udp_send(client, None, 64, |_| ()));
    world.run(200);
    ready(world.far.udp_receive(server, |_, _| ()));
    // A silent neighbour is requested once a second.
    let silent = Some(at("10.0.0.77", 7));
    ready((world.far).udp_send(server, silent, 1, |_| ()));
    world.far.flush();
    let asked = |world: &World| world.far.counters().link.out_neighbor_requests;
    for requests in 1..=3 {
        assert_eq!(asked(&world), requests);
        ready((world.near).udp_send(client, None, 64, |_| ()));
        world.near.flush();
        world.wire.carry(world.now);
        world.now += 1_000_000_000;
        world.wire.carry(world.now);
        let left = world.far.counters().link.out_frames;
        assert_eq!(world.far.turn(world.now).received, 1);
        assert_eq!(asked(&world), requests, "it is due, and waits");
        let from = ready(world.far.udp_receive(server, |_, meta| meta.from));
        ready((world.far).udp_send(server, Some(from), 64, |_| ()));
        world.far.send_made();
        assert_eq!(world.far.counters().link.out_frames, left + 1);
        assert!(world.far.next_deadline() <= Some(world.now));
        // Datagrams in each poll hold nothing back for good.
        ready((world.near).udp_send(client, None, 64, |_| ()));
        world.near.flush();
        world.wire.carry(world.now);
        world.now += Link::CLEAN.delay_ns;
        world.wire.carry(world.now);
        assert_eq!(world.far.turn(world.now).received, 1);
        ready(world.far.udp_receive(server, |_, _| ()));
    }
    assert_eq!(world.far.counters().link.out_unresolved, 1);
}

/// An application that sleeps until a frame arrives closes a connection at the time of the poll
/// that woke it.
#[test]
fn what_is_closed_after_a_datagram_is_closed_now() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let (near, far) = world.connected(80);
    let server = world.near.udp_bind(any(7)).unwrap();
    let client = world.far.udp_bind(any(0)).unwrap();
    world.far.udp_connect(client, at(NEAR, 7)).unwrap();
    world.run(200);
    world.now += 61_000_000_000;
    ready((world.far).udp_send(client, None, 1, |_| ()));
    world.far.flush();
    world.wire.carry(world.now);
    world.now += Link::CLEAN.delay_ns;
    world.wire.carry(world.now);
    assert_eq!(world.near.turn(world.now).received, 1);
    ready(world.near.udp_receive(server, |_, _| ()));
    world.near.close(near).unwrap();
    world.near.flush();
    world.run(200);
    world.far.close(far).unwrap();
    world.run(200);
    let ends = [&world.near, &world.far].map(|stack| stack.counters().tcp.out_resets);
    assert_eq!(ends, [0, 0]);
}

/// If stages are watched from between a prefetch and its poll, the arrival time is the start of
/// watching.
#[test]
fn what_was_found_before_a_watch_began_came_no_earlier() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let server = world.far.udp_bind(any(7)).unwrap();
    let client = world.near.udp_bind(any(0)).unwrap();
    world.near.udp_connect(client, at(FAR, 7)).unwrap();
    ready((world.near).udp_send(client, None, 64, |_| ()));
    world.run(200);
    ready(world.far.udp_receive(server, |_, _| ()));
    ready((world.near).udp_send(client, None, 64, |_| ()));
    world.near.flush();
    world.wire.carry(world.now);
    world.now += Link::CLEAN.delay_ns;
    world.wire.carry(world.now);
    assert!(world.far.look());
    assert_eq!(world.far.found_at(), None);
    let before = CLOCK.get();
    world.far.watch_stages(clock, 4);
    assert_eq!(world.far.found_at(), Some(before + 1_000));
}

#[test]
fn a_silent_neighbour_is_asked_again_and_given_up() {
    let mut world = World::alike(&["arp.cache=2"], Link::CLEAN);
    let client = world.near.udp_bind(any(0)).unwrap();
    ready(
        world
            .near
            .udp_send(client, Some(at("10.0.0.77", 7)), 1, |_| ()),
    );
    world.until(10, |world| world.near.counters().link.out_unresolved == 1);
    assert_eq!(world.near.counters().link.out_neighbor_requests, 3);
    assert_eq!(world.near.next_deadline(), None);
    // Later packets wait no longer, whenever they are sent, and a connected socket gets an error.
    for lost in 2..6 {
        world.run(300);
        let connected = world.near.udp_bind(any(0)).unwrap();
        (world.near.udp_connect(connected, at("10.0.0.77", 7))).unwrap();
        ready(world.near.udp_send(connected, None, 1, |_| ()));
        world.until(10, |world| {
            world.near.counters().link.out_unresolved == lost
        });
        let told = world.near.udp_receive(connected, |_, _| ());
        assert!(
            matches!(told, Poll::Ready(Err(StackError::NeighborSilent { .. }))),
            "{told:?}"
        );
        assert!(world.near.udp_receive(connected, |_, _| ()).is_pending());
        world.near.close(connected).unwrap();
    }
    // A small cache evicts the least recently used entry, and everything still works.
    let server = world.far.udp_bind(any(7)).unwrap();
    for _ in 0..5 {
        for silent in ["10.0.0.78", "10.0.0.79", FAR] {
            ready(world.near.udp_send(client, Some(at(silent, 7)), 1, |_| ()));
            world.run(10);
        }
    }
    world.until(5, |world| world.far.udp_waiting(server).unwrap() == 5);
}

#[test]
fn a_lost_question_for_an_address_is_asked_again() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let server = world.far.udp_bind(any(7)).unwrap();
    let client = world.near.udp_bind(any(0)).unwrap();
    let mut lost = false;
    world.wire.watch = Box::new(move |_, frame| {
        let first = frame[12..14] == [8, 6] && !lost;
        lost |= first;
        !first
    });
    for _ in 0..3 {
        ready(world.near.udp_send(client, Some(at(FAR, 7)), 1, |_| ()));
    }
    world.until(3, |world| world.far.udp_waiting(server).unwrap() == 3);
    assert_eq!(world.near.counters().link.out_neighbor_requests, 2);
}

#[test]
fn bad_frames_are_counted_by_what_is_wrong() {
    let mut world = World::alike(&[], Link::CLEAN);
    let (client, server) = pair(&mut world);
    let seen = world.kept(|end, frame| end == 0 && frame[12..14] == [8, 0]);
    send(&mut world, client, 20);
    world.until(3, |world| world.far.udp_waiting(server).unwrap() == 1);
    let good = seen.borrow()[0].clone();
    let before = world.far.counters();
    let mut put = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        world.wire.put(1, &frame);
        world.run(5);
    };
    put(&|frame| frame[50] ^= 1);
    put(&|frame| frame[22] ^= 1);
    put(&|frame| frame[0] ^= 2);
    put(&|frame| frame[12] = 0x99);
    put(&|frame| frame.truncate(13));
    put(&|frame| frame.truncate(40));
    put(&|frame| frame.extend([0; 18]));
    let after = world.far.counters().since(&before);
    assert_eq!(after.udp.in_checksum_errors, 1);
    assert_eq!(after.ip.in_header_errors, 2);
    assert_eq!(after.link.in_not_ours, 1);
    assert_eq!(after.link.in_unknown_protocols, 1);
    assert_eq!(after.link.in_errors, 1);
    // Padding of a frame is not part of the packet.
    assert_eq!(after.udp.in_datagrams, 1);
    let names: Vec<_> = after
        .rows()
        .into_iter()
        .filter(|row| row.2 > 0)
        .map(|row| row.1)
        .collect();
    assert!(names.contains(&"in_checksum_errors") && !names.contains(&"no_ports"));
    assert_eq!(world.far.addressing().networks[0].address.to_string(), FAR);
}

/// A checksum with only the pseudo header's sum was left to a device; there is none here.
#[test]
fn an_open_checksum_is_a_cause_of_its_own() {
    for (far, head) in [(FAR, 20), (FAR_V6, 40)] {
        let mut world = World::alike(&[], Link::CLEAN);
        let _server = world.far.udp_bind(any(7)).unwrap();
        let client = world.near.udp_bind(any(0)).unwrap();
        world.near.udp_connect(client, at(far, 7)).unwrap();
        world.wire.watch = Box::new(move |end, frame| {
            let (kind, protocol) = if head == 20 {
                ([8, 0], 23)
            } else {
                ([0x86, 0xdd], 20)
            };
            if end == 0 && frame[12..14] == kind && frame[protocol] == 17 {
                let body = 14 + head;
                let addresses = if head == 20 { 26..34 } else { 22..54 };
                let length = u16::from_be_bytes([frame[body + 4], frame[body + 5]]);
                let pseudo = Sum::of(&frame[addresses]) + Sum::word(17) + Sum::word(length);
                frame[body + 6..body + 8].copy_from_slice(&pseudo.folded().to_be_bytes());
            }
            true
        });
        ready(
            world
                .near
                .udp_send(client, None, 10, |payload| payload.fill(3)),
        );
        world.run(200);
        let counters = world.far.counters().udp;
        assert_eq!(
            (counters.open_checksum_drops, counters.in_checksum_errors),
            (1, 0),
            "{far}: {counters:#?}"
        );
        assert_eq!(counters.in_datagrams, 0);
    }
}

#[test]
fn datagrams_carry_the_class_of_service_of_their_stack() {
    for (far, bytes) in [(FAR, 64), (FAR, 5_000), (FAR_V6, 64), (FAR_V6, 5_000)] {
        let mut world = World::alike(&["ip.tos=184"], Link::CLEAN);
        let server = world.far.udp_bind(any(7)).unwrap();
        let client = world.near.udp_bind(any(0)).unwrap();
        world.near.udp_connect(client, at(far, 7)).unwrap();
        send(&mut world, client, bytes);
        world.until(3, |world| world.far.udp_waiting(server).unwrap() == 1);
        let tos = ready(world.far.udp_receive(server, |_, meta| meta.tos));
        assert_eq!(tos, 184, "{bytes} B to {far}");
    }
}

#[test]
fn datagrams_to_a_group_go_as_far_as_they_may() {
    for (group, ethernet, hops_at) in [
        ("239.129.2.3", [0x01, 0x00, 0x5e, 0x01, 2, 3], 14 + 8),
        ("ff12::1:77", [0x33, 0x33, 0, 1, 0, 0x77], 14 + 7),
    ] {
        for (limit, hops) in [(None, 1), (Some(7), 7)] {
            let mut world = World::alike(&[], Link::CLEAN).announced();
            if let Some(limit) = limit {
                world.near.limit_group_hops(limit);
            }
            let frames = world.kept(|_, _| true);
            let socket = world.near.udp_bind(any(0)).unwrap();
            let to = Some(at(group, 9));
            ready(
                world
                    .near
                    .udp_send(socket, to, 3, |payload| payload.fill(1)),
            );
            world.run(3);
            // No address request was sent for the group.
            let frames = frames.borrow();
            assert_eq!(frames.len(), 1, "{group}");
            assert_eq!(frames[0][..6], ethernet, "{group}");
            assert_eq!(frames[0][hops_at], hops, "{group}");
            assert_eq!(world.far.counters().ip.in_header_errors, 0);
        }
    }
}

#[test]
fn fragments_of_ipv6_are_taken_as_the_rfcs_say() {
    let payload = content(30);
    let ends = (common::NEAR_V6, FAR_V6);
    let datagram = packets::datagram(0xc001, 7, &payload);
    let plain = packets::packet(EVERYBODY, ends, UDP, &datagram);
    // Extension headers in front of the datagram are fragmented with it.
    let mut options = plain.clone();
    packets::insert_headers(&mut options, 60, &[UDP, 0, 1, 4, 0, 0, 0, 0]);
    let piece = |bytes| packets::piece(&plain, 9, bytes);
    let cut = |frame: &[u8]| {
        let end = frame.len() - packets::body(frame);
        let [first, mut second] = [0..16, 16..end].map(|bytes| packets::piece(frame, 9, bytes));
        // The protocol in later fragments is ignored (RFC 8200, section 4.5).
        second[packets::body(frame)] = 99;
        [first, second]
    };
    let whole = piece(0..datagram.len());
    let [first, second] = cut(&plain);
    let [options_first, options_second] = cut(&options);
    for (name, frames, taken, errors) in [
        ("in order", vec![&first, &second], 1, 0),
        ("reversed", vec![&second, &first], 1, 0),
        ("twice", vec![&first, &first, &second], 1, 0),
        ("with options", vec![&options_first, &options_second], 1, 0),
        // A complete datagram in one fragment, with others of the same number (RFC 6946).
        ("atomic", vec![&first, &whole, &second], 2, 0),
        // Dropped completely, with its later fragments (RFC 5722).
        (
            "overlapping",
            vec![&first, &piece(8..24), &second, &first],
            0,
            1,
        ),
        ("no eights", vec![&piece(0..15)], 0, 1),
    ] {
        let mut world = World::alike(&[], Link::CLEAN);
        let server = world.far.udp_bind(any(7)).unwrap();
        for frame in frames {
            world.wire.put(1, frame);
        }
        world.run(5);
        let mut got = 0;
        while let Some(bytes) = take(&mut world, server) {
            assert!(bytes == payload, "{name}");
            got += 1;
        }
        let ip = world.far.counters().ip;
        assert_eq!(
            (got, ip.reassembly_errors),
            (taken, errors),
            "{name}: {ip:#?}"
        );
    }
}

#[test]
fn what_no_host_can_have_asked_is_not_answered() {
    let ping = [8, 0, 0, 0, 0, 0, 0, 0];
    let stray = packets::datagram(0xc001, 8_080, &[]);
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let ethernet = world.far.ethernet();
    for (name, (from, to), (kind, payload), to_one, wanted) in [
        ("a ping", (NEAR, FAR), (ICMP, &ping[..]), true, (1, 0)),
        (
            "from a group",
            ("224.0.0.9", FAR),
            (ICMP, &ping),
            true,
            (0, 1),
        ),
        (
            "from a broadcast address",
            ("10.0.0.255", FAR),
            (ICMP, &ping),
            true,
            (0, 1),
        ),
        (
            "from loopback",
            ("127.0.0.1", FAR),
            (UDP, &stray),
            true,
            (0, 1),
        ),
        (
            "to a broadcast address",
            (NEAR, "10.0.0.255"),
            (ICMP, &ping),
            false,
            (0, 1),
        ),
        (
            "to all hosts",
            (NEAR, "224.0.0.1"),
            (ICMP, &ping),
            false,
            (0, 1),
        ),
        ("no port", (NEAR, FAR), (UDP, &stray), true, (1, 0)),
        (
            "in a frame to all",
            (NEAR, FAR),
            (UDP, &stray),
            false,
            (0, 0),
        ),
    ] {
        let to_whom = if to_one { ethernet } else { EVERYBODY };
        let before = world.far.counters();
        (world.wire).put(1, &packets::packet(to_whom, (from, to), kind, payload));
        world.run(20);
        let since = world.far.counters().since(&before);
        let errors = since.ip.in_source_errors + since.icmp.in_echos_ignored;
        assert_eq!((since.icmp.out_messages, errors), wanted, "{name}");
    }
}

#[test]
fn packets_of_all_protocols_are_counted() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    world.connected(80);
    let (client, _) = pair(&mut world);
    send(&mut world, client, 5_000);
    world.run(100);
    let counters = world.near.counters();
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
fn an_answer_comes_from_the_address_that_was_asked() {
    const OTHER: &str = "10.0.0.3";
    for bytes in [64, 3_000] {
        let own = Addressing::new(&["10.0.0.2/24", "10.0.0.3/24", "fd00::2/64"]).unwrap();
        let config = common::config(&[]);
        let mut world = World::between(&config, &config, Link::CLEAN, &own);
        let server = world.far.udp_bind(any(7)).unwrap();
        let client = world.near.udp_bind(any(0)).unwrap();
        for far in [FAR, OTHER, OTHER, FAR] {
            ready(world.near.udp_send(client, Some(at(far, 7)), bytes, |_| ()));
            world.until(3, |world| world.far.udp_waiting(server).unwrap() == 1);
            let from = ready(world.far.udp_receive(server, |_, meta| meta.from));
            ready(world.far.udp_send(server, Some(from), bytes, |_| ()));
            world.until(3, |world| world.near.udp_waiting(client).unwrap() == 1);
            let from = ready(world.near.udp_receive(client, |_, meta| meta.from));
            assert_eq!(from, at(far, 7), "{bytes} B");
        }
    }
}
