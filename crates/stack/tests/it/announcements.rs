//! Address announcements at start, and address conflicts (RFC 5227, RFC 4861).

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::packets::{ETHERNET_BYTES, FRAGMENT, V6_BYTES, complete, insert_headers};
use crate::common::{
    LOCAL, LOCAL_V6, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, addressing, config, socket_address,
};
use linerate_port::{PortUrl, open};
use linerate_stack::{Stack, StackAddressing, StackConfig, memory_plan};
use linerate_sys::frames::frame_memory::FrameRegion;

/// Returns the frames that an idle stack sends on its own, each with its time in milliseconds.
fn spontaneous_frames(
    config: &StackConfig,
    addressing: &StackAddressing,
    seconds: u64,
) -> (Vec<(u64, Vec<u8>)>, Stack) {
    let urls: [PortUrl; 2] = ["ring:x,end=a", "ring:x,end=b"].map(|url| url.parse().unwrap());
    let plan = memory_plan(config, &urls[0]).combine(memory_plan(config, &urls[1]));
    let memory = FrameRegion::new(plan).unwrap();
    let [port, mut remote_port] = urls.map(|url| open(&url, &memory).unwrap().remove(0));
    let mut stack = Stack::new(port, &memory, config, addressing).unwrap();
    let (mut pool, mut frames) = (memory.pool(), Vec::new());
    for ms in 1..seconds * 1_000 {
        stack.poll(ms * 1_000_000);
        let mut burst = linerate_sys::frames::burst::Burst::new();
        while linerate_port::RxQueue::receive(&mut remote_port.receive, &mut pool, &mut burst) > 0 {
            let frames_in_burst = burst.frames().iter();
            frames.extend(frames_in_burst.map(|frame| (ms, memory.bytes(frame).to_vec())));
            pool.free_all(&mut burst);
        }
    }
    (frames, stack)
}

fn addressing_with_ethernet(address: &str, address_v6: &str, ethernet: u8) -> StackAddressing {
    let mut own = addressing(address, address_v6);
    own.ethernet = Some([2, 0, 0, 0, 0, ethernet]);
    own
}

#[test]
fn a_starting_stack_announces_itself_twice() {
    let (frames, stack) = spontaneous_frames(
        &config(&[]),
        &addressing_with_ethernet(LOCAL, LOCAL_V6, 9),
        8,
    );
    let shown = frames.iter().map(|(ms, frame)| {
        let bytes = frame.iter().map(|byte| format!("{byte:02x}"));
        let hex_bytes: Vec<String> = bytes.collect();
        let lines = hex_bytes.chunks(16).map(|line| line.join(" "));
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
    let (frames, stack) =
        spontaneous_frames(&config, &addressing_with_ethernet(LOCAL, LOCAL_V6, 9), 8);
    assert_eq!(frames.len(), 4);
    assert_eq!(stack.counters().link.out_ring_full, 0);
}

/// Returns the announcements of a stack with these addresses.
fn announcements(addressing: &StackAddressing) -> Vec<Vec<u8>> {
    let (frames, _) = spontaneous_frames(&config(&[]), addressing, 2);
    frames.into_iter().map(|(_, frame)| frame).collect()
}

#[test]
fn an_announcement_updates_the_neighbors_of_a_previous_owner() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    sim.run(20);
    for remote in [REMOTE, REMOTE_V6] {
        let family = if remote == REMOTE { "0.0.0.0" } else { "::" };
        let socket = sim.local.udp_bind(socket_address(family, 0)).unwrap();
        let captured = sim.capture(|end, _| end == 0);
        let to = |sim: &mut TwoStackSim| {
            captured.borrow_mut().clear();
            let sent = sim
                .local
                .udp_send(socket, Some(socket_address(remote, 9)), 4, |space| {
                    space.fill(1)
                });
            assert!(sent.is_ready());
            sim.run(20);
            // The last frame: an address request may precede the datagram.
            captured.borrow().last().unwrap()[..6].to_vec()
        };
        let before = to(&mut sim);
        assert_ne!(before, [2, 0, 0, 0, 0, 9], "{remote}");
        for frame in announcements(&addressing_with_ethernet(REMOTE, REMOTE_V6, 9)) {
            sim.wire.deliver(0, &frame);
        }
        sim.run(2);
        assert_eq!(to(&mut sim), [2, 0, 0, 0, 0, 9], "{remote}");
        // Announcements of unknown hosts are not stored.
        let requests_before = sim.local.counters().link.out_neighbor_requests;
        for frame in announcements(&addressing_with_ethernet("10.0.0.9", "fd00::9", 9)) {
            sim.wire.deliver(0, &frame);
        }
        sim.run(2);
        let third_host = if remote == REMOTE {
            "10.0.0.9"
        } else {
            "fd00::9"
        };
        let (_, is_known) = sim
            .local
            .resolve_next_hop(third_host.parse().unwrap())
            .unwrap();
        assert!(!is_known);
        assert_eq!(
            sim.local.counters().link.out_neighbor_requests,
            requests_before + 1
        );
    }
}

#[test]
fn an_address_conflict_is_counted_and_gets_no_reply() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    for (ethernet, conflicts) in [(9, 2), (0, 0)] {
        let mut addressing = addressing_with_ethernet(LOCAL, LOCAL_V6, ethernet);
        if ethernet == 0 {
            // Frames of its own that are looped back.
            addressing.ethernet = Some(sim.local.ethernet_address());
        }
        let before = sim.local.counters().link;
        for frame in announcements(&addressing) {
            sim.wire.deliver(0, &frame);
        }
        sim.run(20);
        let link = sim.local.counters().link;
        let counted = link.in_address_conflicts - before.in_address_conflicts;
        assert_eq!(counted, conflicts, "{ethernet}");
        assert_eq!(link.out_frames, before.out_frames, "{ethernet}");
    }
}

/// Returns the remote stack's requests for the local addresses (ARP and neighbour solicitation),
/// which did not arrive.
fn capture_address_requests(sim: &mut TwoStackSim) -> [Vec<u8>; 2] {
    // A datagram that follows the request needs a socket.
    sim.local.udp_bind(socket_address("0.0.0.0", 9)).unwrap();
    [(LOCAL, "0.0.0.0"), (LOCAL_V6, "::")].map(|(address, family)| {
        let request = Rc::new(RefCell::new(None));
        let captured = Rc::clone(&request);
        sim.wire.filter = Box::new(move |end, frame| {
            if end == 1 {
                captured.borrow_mut().get_or_insert(frame.clone());
            }
            end != 1
        });
        let socket = sim.remote.udp_bind(socket_address(family, 0)).unwrap();
        let sent = sim
            .remote
            .udp_send(socket, Some(socket_address(address, 9)), 4, |space| {
                space.fill(1)
            });
        assert!(sent.is_ready());
        sim.run(3);
        request.take().unwrap()
    })
}

/// Offset of an ICMPv6 message.
const MESSAGE_OFFSET: usize = ETHERNET_BYTES + V6_BYTES;

/// Linux sends such a solicitation to verify that a known neighbour is reachable.
#[test]
fn a_solicitation_from_a_link_local_address_gets_a_reply() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let [_, mut solicitation] = capture_address_requests(&mut sim);
    let mut from = [0; 16];
    (from[0], from[1], from[15]) = (0xfe, 0x80, 5);
    solicitation[ETHERNET_BYTES + 8..ETHERNET_BYTES + 24].copy_from_slice(&from);
    complete(&mut solicitation);
    let captured = sim.capture(|end, _| end == 0);
    sim.wire.deliver(0, &solicitation);
    sim.run(5);
    let captured = captured.borrow();
    let [advertisement] = &captured[..] else {
        panic!("{captured:?}: {:?}", sim.local.counters());
    };
    assert_eq!(advertisement[..6], sim.remote.ethernet_address());
    assert_eq!(advertisement[ETHERNET_BYTES + 24..MESSAGE_OFFSET], from);
    assert_eq!(
        (
            advertisement[MESSAGE_OFFSET],
            advertisement[MESSAGE_OFFSET + 4]
        ),
        (136, 0x60)
    );
}

/// A host that probes an address before using it has no source address (RFC 5227 and RFC 4862).
#[test]
fn a_probe_for_an_address_in_use_gets_a_reply() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let mut requests = capture_address_requests(&mut sim);
    let [arp, solicitation] = &mut requests;
    arp[ETHERNET_BYTES + 14..ETHERNET_BYTES + 18].fill(0);
    solicitation[ETHERNET_BYTES + 8..ETHERNET_BYTES + 24].fill(0);
    // A sender without an address includes no link-layer address either.
    solicitation.truncate(MESSAGE_OFFSET + 24);
    complete(solicitation);

    let captured = sim.capture(|end, _| end == 0);
    for frame in &requests {
        sim.wire.deliver(0, frame);
    }
    // A message forwarded by a router is not from this link.
    let mut forwarded = requests[1].clone();
    forwarded[ETHERNET_BYTES + 7] = 254;
    sim.wire.deliver(0, &forwarded);
    sim.run(5);
    let captured = captured.borrow();
    let ethernet = sim.local.ethernet_address();
    let [reply, advertisement] = &captured[..] else {
        panic!("{captured:?}: {:?}", sim.local.counters());
    };
    // RFC 826: a reply, from the owner of the address.
    assert_eq!(reply[ETHERNET_BYTES + 6..ETHERNET_BYTES + 8], [0, 2]);
    assert_eq!(reply[ETHERNET_BYTES + 8..ETHERNET_BYTES + 14], ethernet);
    // RFC 4861, section 7.2.4: to all nodes, without the solicited flag.
    assert_eq!(advertisement[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(advertisement[MESSAGE_OFFSET], 136);
    assert_eq!(advertisement[MESSAGE_OFFSET + 4], 0x20);
    assert_eq!(sim.local.counters().link.in_address_conflicts, 0);
    assert_eq!(sim.local.counters().icmp.in_errors, 1);
}

/// Includes a complete message in a single fragment (RFC 6980).
#[test]
fn fragmented_neighbor_messages_are_ignored() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let [_, solicitation] = capture_address_requests(&mut sim);
    let mut fragmented = solicitation.clone();
    insert_headers(&mut fragmented, FRAGMENT, &[58, 0, 0, 0, 1, 2, 3, 4]);
    let captured = sim.capture(|end, _| end == 0);
    for (frame, answers, errors) in [(&fragmented, 0, 1), (&solicitation, 1, 1)] {
        sim.wire.deliver(0, frame);
        sim.run(5);
        assert_eq!(captured.borrow().len(), answers);
        assert_eq!(sim.local.counters().icmp.in_errors, errors);
    }
}
