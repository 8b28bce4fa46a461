//! Address announcements at start, and address conflicts (RFC 5227, RFC 4861).

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::packets::{ETHERNET, FRAGMENT, V6, complete, insert_headers};
use common::{FAR, FAR_V6, Link, NEAR, NEAR_V6, World, addressing, at, config};
use linerate_port::{Memory, PortUrl, open};
use linerate_stack::{Addressing, Config, Stack, memory_plan};

/// Returns the frames that an idle stack sends on its own, each with its time in milliseconds.
fn of_its_own(config: &Config, own: &Addressing, seconds: u64) -> (Vec<(u64, Vec<u8>)>, Stack) {
    let urls: [PortUrl; 2] = ["ring:x,end=a", "ring:x,end=b"].map(|url| url.parse().unwrap());
    let plan = memory_plan(config, &urls[0]).joined(memory_plan(config, &urls[1]));
    let memory = Memory::new(plan).unwrap();
    let [port, mut far] = urls.map(|url| open(&url, &memory).unwrap().remove(0));
    let mut stack = Stack::new(port, &memory, config, own).unwrap();
    let (mut pool, mut frames) = (memory.pool(), Vec::new());
    for ms in 1..seconds * 1_000 {
        stack.turn(ms * 1_000_000);
        let mut burst = linerate_port::Burst::new();
        while linerate_port::Receive::receive(&mut far.receive, &mut pool, &mut burst) > 0 {
            let came = burst.frames().iter();
            frames.extend(came.map(|frame| (ms, memory.bytes(frame).to_vec())));
            pool.free_all(&mut burst);
        }
    }
    (frames, stack)
}

fn of(address: &str, address_v6: &str, ethernet: u8) -> Addressing {
    let mut own = addressing(address, address_v6);
    own.ethernet = Some([2, 0, 0, 0, 0, ethernet]);
    own
}

#[test]
fn a_stack_that_starts_says_who_it_is_twice() {
    let (frames, stack) = of_its_own(&config(&[]), &of(NEAR, NEAR_V6, 9), 8);
    let shown = frames.iter().map(|(ms, frame)| {
        let bytes = frame.iter().map(|byte| format!("{byte:02x}"));
        let words: Vec<String> = bytes.collect();
        let lines = words.chunks(16).map(|line| line.join(" "));
        format!("{ms} ms\n{}\n", lines.collect::<Vec<_>>().join("\n"))
    });
    insta::assert_snapshot!(shown.collect::<String>());
    let link = stack.counters().link;
    assert_eq!((link.out_announcements, link.out_frames), (4, 4));
    assert_eq!(
        (link.out_neighbor_requests, link.out_neighbor_replies),
        (0, 0)
    );
    // After that it is idle.
    assert_eq!(stack.next_deadline(), None);
}

/// A poll sends as many as there are descriptors; the rest follows in later polls.
#[test]
fn a_short_ring_takes_them_one_by_one() {
    let config = config(&["tx_descriptors=1"]);
    let (frames, stack) = of_its_own(&config, &of(NEAR, NEAR_V6, 9), 8);
    assert_eq!(frames.len(), 4);
    assert_eq!(stack.counters().link.out_ring_full, 0);
}

/// Returns the announcements of a stack with these addresses.
fn announcements(own: &Addressing) -> Vec<Vec<u8>> {
    let (frames, _) = of_its_own(&config(&[]), own, 2);
    frames.into_iter().map(|(_, frame)| frame).collect()
}

#[test]
fn who_knew_the_last_stack_of_an_address_sends_to_the_new_one() {
    let mut world = World::alike(&[], Link::CLEAN);
    world.run(20);
    for far in [FAR, FAR_V6] {
        let family = if far == FAR { "0.0.0.0" } else { "::" };
        let socket = world.near.udp_bind(at(family, 0)).unwrap();
        let heard = world.kept(|end, _| end == 0);
        let to = |world: &mut World| {
            heard.borrow_mut().clear();
            let sent = world
                .near
                .udp_send(socket, Some(at(far, 9)), 4, |room| room.fill(1));
            assert!(sent.is_ready());
            world.run(20);
            // The last frame: an address request may precede the datagram.
            heard.borrow().last().unwrap()[..6].to_vec()
        };
        let before = to(&mut world);
        assert_ne!(before, [2, 0, 0, 0, 0, 9], "{far}");
        for frame in announcements(&of(FAR, FAR_V6, 9)) {
            world.wire.put(0, &frame);
        }
        world.run(2);
        assert_eq!(to(&mut world), [2, 0, 0, 0, 0, 9], "{far}");
        // Announcements of unknown hosts are not stored.
        let asked = world.near.counters().link.out_neighbor_requests;
        for frame in announcements(&of("10.0.0.9", "fd00::9", 9)) {
            world.wire.put(0, &frame);
        }
        world.run(2);
        let stranger = if far == FAR { "10.0.0.9" } else { "fd00::9" };
        let (_, known) = world
            .near
            .neighbor_towards(stranger.parse().unwrap())
            .unwrap();
        assert!(!known);
        assert_eq!(world.near.counters().link.out_neighbor_requests, asked + 1);
    }
}

#[test]
fn another_one_with_the_same_address_is_counted_and_not_answered() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    for (ethernet, conflicts) in [(9, 2), (0, 0)] {
        let mut own = of(NEAR, NEAR_V6, ethernet);
        if ethernet == 0 {
            // Frames of its own that are looped back.
            own.ethernet = Some(world.near.ethernet());
        }
        let before = world.near.counters().link;
        for frame in announcements(&own) {
            world.wire.put(0, &frame);
        }
        world.run(20);
        let link = world.near.counters().link;
        let counted = link.in_address_conflicts - before.in_address_conflicts;
        assert_eq!(counted, conflicts, "{ethernet}");
        assert_eq!(link.out_frames, before.out_frames, "{ethernet}");
    }
}

/// Returns the remote stack's requests for the local addresses (ARP and neighbour solicitation),
/// which did not arrive.
fn questions(world: &mut World) -> [Vec<u8>; 2] {
    // A datagram that follows the request needs a socket.
    world.near.udp_bind(at("0.0.0.0", 9)).unwrap();
    [(NEAR, "0.0.0.0"), (NEAR_V6, "::")].map(|(near, family)| {
        let asked = Rc::new(RefCell::new(None));
        let keep = Rc::clone(&asked);
        world.wire.watch = Box::new(move |end, frame| {
            if end == 1 {
                keep.borrow_mut().get_or_insert(frame.clone());
            }
            end != 1
        });
        let socket = world.far.udp_bind(at(family, 0)).unwrap();
        let sent = world
            .far
            .udp_send(socket, Some(at(near, 9)), 4, |room| room.fill(1));
        assert!(sent.is_ready());
        world.run(3);
        asked.take().unwrap()
    })
}

/// Offset of an ICMPv6 message.
const MESSAGE: usize = ETHERNET + V6;

/// Linux sends such a solicitation to verify that a known neighbour is reachable.
#[test]
fn who_asks_from_an_address_of_the_link_is_answered() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let [_, mut solicitation] = questions(&mut world);
    let mut from = [0; 16];
    (from[0], from[1], from[15]) = (0xfe, 0x80, 5);
    solicitation[ETHERNET + 8..ETHERNET + 24].copy_from_slice(&from);
    complete(&mut solicitation);
    let heard = world.kept(|end, _| end == 0);
    world.wire.put(0, &solicitation);
    world.run(5);
    let heard = heard.borrow();
    let [advertisement] = &heard[..] else {
        panic!("{heard:?}: {:?}", world.near.counters());
    };
    assert_eq!(advertisement[..6], world.far.ethernet());
    assert_eq!(advertisement[ETHERNET + 24..MESSAGE], from);
    assert_eq!(
        (advertisement[MESSAGE], advertisement[MESSAGE + 4]),
        (136, 0x60)
    );
}

/// A host that probes an address before using it has no source address (RFC 5227 and RFC 4862).
#[test]
fn who_wants_an_address_that_is_taken_is_told() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let mut questions = questions(&mut world);
    let [arp, solicitation] = &mut questions;
    arp[ETHERNET + 14..ETHERNET + 18].fill(0);
    solicitation[ETHERNET + 8..ETHERNET + 24].fill(0);
    // A sender without an address includes no link-layer address either.
    solicitation.truncate(MESSAGE + 24);
    complete(solicitation);

    let heard = world.kept(|end, _| end == 0);
    for frame in &questions {
        world.wire.put(0, frame);
    }
    // A message forwarded by a router is not from this link.
    let mut forwarded = questions[1].clone();
    forwarded[ETHERNET + 7] = 254;
    world.wire.put(0, &forwarded);
    world.run(5);
    let heard = heard.borrow();
    let own = world.near.ethernet();
    let [reply, advertisement] = &heard[..] else {
        panic!("{heard:?}: {:?}", world.near.counters());
    };
    // RFC 826: a reply, from the owner of the address.
    assert_eq!(reply[ETHERNET + 6..ETHERNET + 8], [0, 2]);
    assert_eq!(reply[ETHERNET + 8..ETHERNET + 14], own);
    // RFC 4861, section 7.2.4: to all nodes, without the solicited flag.
    assert_eq!(advertisement[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(advertisement[MESSAGE], 136);
    assert_eq!(advertisement[MESSAGE + 4], 0x20);
    assert_eq!(world.near.counters().link.in_address_conflicts, 0);
    assert_eq!(world.near.counters().icmp.in_errors, 1);
}

/// Includes a complete message in a single fragment (RFC 6980).
#[test]
fn what_neighbours_say_in_pieces_is_not_heard() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let [_, solicitation] = questions(&mut world);
    let mut cut = solicitation.clone();
    insert_headers(&mut cut, FRAGMENT, &[58, 0, 0, 0, 1, 2, 3, 4]);
    let heard = world.kept(|end, _| end == 0);
    for (frame, answers, errors) in [(&cut, 0, 1), (&solicitation, 1, 1)] {
        world.wire.put(0, frame);
        world.run(5);
        assert_eq!(heard.borrow().len(), answers);
        assert_eq!(world.near.counters().icmp.in_errors, errors);
    }
}
