//! Who does not keep to the window that it was told.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::{Bulk, Link, World, segments};

/// The window of a greeting is not scaled, and the engine takes it to be: eight times as much as there is room for.
#[test]
fn what_is_sent_beyond_the_buffer_is_not_taken() {
    for (window, ahead) in [
        // Across the end of the buffer, just beyond it, and far beyond.
        ("256K", (256 << 10) - 700),
        ("256K", 256 << 10),
        ("256K", 500_000),
        ("64K", (64 << 10) - 1),
        ("64K", 100_000),
        ("32K", (32 << 10) - 1_000),
    ] {
        let window_setting = format!("tcp.receive_window={window}");
        let mut world = World::alike(&[&window_setting], Link::CLEAN);
        let frames = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&frames);
        world.wire.watch = Box::new(move |end, frame| {
            if end == 0 && segments::is_tcp(frame) {
                seen.borrow_mut().push(frame.clone());
            }
            true
        });
        let (client, server) = world.connected(80);
        // The last of the greeting, after which the far end has told of no window yet.
        let last = frames.borrow().last().cloned().expect("a greeting");
        let number = segments::sequence(&last).wrapping_add(ahead);
        let beyond = segments::like(&last, number, segments::ACK, &[0xaa; 1_400]);
        world.wire.put(1, &beyond);
        let mut near = Bulk::new(client, 600_000);
        let mut far = Bulk::new(server, 0);
        // Until all room is taken, and nobody reads.
        for _ in 0..3_000 {
            near.step(&mut world.near);
            world.turn();
            world.pass();
        }
        assert!(
            near.sent < near.send,
            "{window} {ahead}: there was no end to the room"
        );
        world.until(60, |world| {
            near.step(&mut world.near);
            far.step(&mut world.far);
            far.ended
        });
        assert_eq!(far.received, near.send, "{window} {ahead}");
    }
}
