//! Congestion window: data in flight without acknowledgement.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::task::Poll;

use common::{Link, World, config, packets, ready};

const FULL: usize = 1_460;
const ROUNDS: usize = 12;

/// Returns the full segments that leave without acknowledgement, after rounds of `segments`
/// segments each. In each round data is written before the acknowledgement of the round before,
/// which covers all of it at once.
fn leave(control: &str, segments: usize) -> usize {
    let near = config(&[
        "tcp.send_buffer=512K",
        "tcp.nagle=off",
        "tcp.min_rto=1s",
        "tcp.tail_probe=off",
        &format!("tcp.congestion_control={control}"),
    ]);
    let far = config(&["tcp.receive_window=512K"]);
    let mut world = World::new(&near, &far, Link::CLEAN).announced();
    let (client, server) = world.connected(80);
    let (mut written, mut read) = (0, 0);
    let mut write = |world: &mut World, bytes: usize| {
        let mut left = bytes;
        while left > 0 {
            left -= ready(world.near.tcp_send(client, |room| room.len().min(left)));
        }
        written += bytes;
        written
    };
    let mut goal = 0;
    for round in 0..=ROUNDS {
        world.until(10, |world| {
            while let Poll::Ready(got) = world
                .far
                .tcp_receive(server, |came| (came.len(), came.len()))
            {
                read += got.expect("a connection that stands");
            }
            // The acknowledgement is at the sender, which has not polled yet.
            read == goal && world.wire.in_flight() == 0
        });
        if round < ROUNDS {
            goal = write(&mut world, segments * FULL);
        }
    }
    world.until(10, |world| world.near.tcp_queued(client).unwrap().0 == 0);

    let count = Rc::new(Cell::new(0));
    let seen = Rc::clone(&count);
    world.wire.watch = Box::new(move |end, frame| {
        let whole = end == 0 && packets::body(frame) > 0 && frame.len() > FULL;
        seen.set(seen.get() + usize::from(whole));
        false
    });
    write(&mut world, 300 * FULL);
    let until = world.now + 50_000_000;
    world.until(1, |world| world.now >= until);
    count.get()
}

/// RFC 7661, section 1: an unused window is no evidence about the path and must not grow. Data
/// written after everything had left was not limited by it, though it waits when the
/// acknowledgement arrives.
#[test]
fn what_is_written_after_all_has_left_widens_nothing() {
    for control in ["reno", "cubic"] {
        let few = leave(control, 6);
        let many = leave(control, 60);
        assert!(few < 24, "{control}: {few} segments, of 6 at a time");
        assert!(many > 48, "{control}: {many} segments, of 60 at a time");
    }
    assert_eq!(leave("none", 6), 300);
}
