//! Segments that others have overtaken.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::{Link, World, ready};

/// What it acknowledges is known already, and what it carries is not.
#[test]
fn payload_that_left_before_an_acknowledgement_is_taken() {
    let mut world = World::alike(&["tcp.min_rto=1s"], Link::CLEAN);
    let (client, server) = world.connected(80);
    let late = Rc::new(RefCell::new(None));
    let held = Rc::clone(&late);
    world.wire.watch = Box::new(move |end, frame| {
        let first = end == 0 && held.borrow().is_none() && frame.len() > 600;
        if first {
            *held.borrow_mut() = Some(frame.clone());
        }
        !first
    });
    ready(world.near.tcp_send(client, |room| {
        room[..600].fill(7);
        600
    }));
    world.run(2);
    let late = late.take().expect("a segment with payload");
    ready(world.far.tcp_send(server, |room| room.len().min(5_000)));
    world.until(1, |world| {
        world.far.tcp_queued(server).unwrap().0 == 0
            && world.near.tcp_queued(client).unwrap().1 == 5_000
    });
    assert_eq!(world.far.tcp_queued(server).unwrap().1, 0);
    world.wire.put(1, &late);
    world.run(3);
    let content = ready(world.far.tcp_receive(server, |bytes| (600, bytes.to_vec())));
    assert_eq!(content, [7; 600]);
    world.until(1, |world| world.near.tcp_queued(client).unwrap().0 == 0);
    assert_eq!(world.near.counters().tcp.retransmitted_segments, 0);
}
