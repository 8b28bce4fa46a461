//! Neighbours that do not reply, and frames that wait for them.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{LinkModel, REMOTE, TwoStackSim, any_address, expect_ready, socket_address};

/// Datagrams to an absent host leave waiting places to other neighbours.
#[test]
fn a_silent_neighbor_leaves_queue_slots_to_others() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    let send = |sim: &mut TwoStackSim, to: &str, count: usize| {
        for _ in 0..count {
            expect_ready(
                sim.local
                    .udp_send(client, Some(socket_address(to, 7)), 1, |_| ()),
            );
        }
    };
    send(&mut sim, "10.0.0.77", 100);
    assert_eq!(sim.local.counters().link.out_unresolved, 100 - 48);
    send(&mut sim, REMOTE, 10);
    sim.run(20);
    assert_eq!(sim.remote.udp_queued(server).unwrap(), 10);
    // Frames for the silent neighbour still wait, and are dropped together.
    assert_eq!(sim.local.counters().link.out_unresolved, 100 - 48);
    sim.run_until(5, |sim| sim.local.counters().link.out_unresolved == 100);
}

/// Requests for many neighbours are repeated at the same time, within the frame budget of a poll.
#[test]
fn repeated_requests_share_the_frame_budget() {
    let mut sim =
        TwoStackSim::symmetric(&["tx_descriptors=4"], LinkModel::CLEAN).after_announcements();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    for host in 100..140 {
        let to = socket_address(&format!("10.0.0.{host}"), 7);
        sim.run_until(1, |sim| {
            sim.local.udp_send(client, Some(to), 1, |_| ()).is_ready()
        });
    }
    let requests = Rc::new(RefCell::new(0));
    let count = Rc::clone(&requests);
    sim.wire.filter = Box::new(move |end, frame| {
        *count.borrow_mut() += u32::from(end == 0 && frame[12..14] == [8, 6]);
        true
    });
    let (mut all, end) = (0, sim.now + 3_000_000_000);
    while sim.now < end {
        sim.poll();
        let requests = requests.take();
        assert!(requests <= 4, "{requests} in a poll");
        all += requests;
        sim.advance();
    }
    assert_eq!(all, 2 * 40);
}
