//! Neighbours that do not reply, and frames that wait for them.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::{FAR, Link, World, any, at, ready};

/// Datagrams to an absent host leave waiting places to other neighbours.
#[test]
fn a_silent_neighbour_leaves_others_places_to_wait() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let server = world.far.udp_bind(any(7)).unwrap();
    let client = world.near.udp_bind(any(0)).unwrap();
    let send = |world: &mut World, to: &str, count: usize| {
        for _ in 0..count {
            ready(world.near.udp_send(client, Some(at(to, 7)), 1, |_| ()));
        }
    };
    send(&mut world, "10.0.0.77", 100);
    assert_eq!(world.near.counters().link.out_unresolved, 100 - 48);
    send(&mut world, FAR, 10);
    world.run(20);
    assert_eq!(world.far.udp_waiting(server).unwrap(), 10);
    // Frames for the silent neighbour still wait, and are dropped together.
    assert_eq!(world.near.counters().link.out_unresolved, 100 - 48);
    world.until(5, |world| world.near.counters().link.out_unresolved == 100);
}

/// Requests for many neighbours are repeated at the same time, within the frame budget of a poll.
#[test]
fn questions_that_are_asked_again_share_the_turns() {
    let mut world = World::alike(&["tx_descriptors=4"], Link::CLEAN).announced();
    let client = world.near.udp_bind(any(0)).unwrap();
    for host in 100..140 {
        let to = at(&format!("10.0.0.{host}"), 7);
        world.until(1, |world| {
            world.near.udp_send(client, Some(to), 1, |_| ()).is_ready()
        });
    }
    let asked = Rc::new(RefCell::new(0));
    let count = Rc::clone(&asked);
    world.wire.watch = Box::new(move |end, frame| {
        *count.borrow_mut() += u32::from(end == 0 && frame[12..14] == [8, 6]);
        true
    });
    let (mut all, end) = (0, world.now + 3_000_000_000);
    while world.now < end {
        world.turn();
        let asked = asked.take();
        assert!(asked <= 4, "{asked} in a poll");
        all += asked;
        world.pass();
    }
    assert_eq!(all, 2 * 40);
}
