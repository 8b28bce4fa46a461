//! Congestion window: data in flight without acknowledgement.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Poll;

use crate::common::{LinkModel, TwoStackSim, config, expect_ready, packets};

const FULL_SEGMENT: usize = 1_460;
const ROUNDS: usize = 12;

/// Returns the full segments that leave without acknowledgement, after rounds of `segments`
/// segments each. In each round data is written before the acknowledgement of the round before,
/// which covers all of it at once.
fn unacknowledged_segments(control: &str, segments: usize) -> usize {
    let sender = config(&[
        "tcp.send_buffer=512K",
        "tcp.nagle=off",
        "tcp.min_rto=1s",
        "tcp.tail_probe=off",
        &format!("tcp.congestion_control={control}"),
    ]);
    let receiver = config(&["tcp.receive_window=512K"]);
    let mut sim = TwoStackSim::new(&sender, &receiver, LinkModel::CLEAN).after_announcements();
    let (client, server) = sim.connect(80);
    let (mut written, mut read) = (0, 0);
    let mut write = |sim: &mut TwoStackSim, bytes: usize| {
        let mut remaining = bytes;
        while remaining > 0 {
            remaining -= expect_ready(
                sim.local
                    .tcp_send(client, |space| space.len().min(remaining)),
            );
        }
        written += bytes;
        written
    };
    let mut goal = 0;
    for round in 0..=ROUNDS {
        sim.run_until(10, |sim| {
            while let Poll::Ready(got) = sim
                .remote
                .tcp_receive(server, |payload| (payload.len(), payload.len()))
            {
                read += got.expect("a connection that stands");
            }
            // The acknowledgement is at the sender, which has not polled yet.
            read == goal && sim.wire.frames_in_flight() == 0
        });
        if round < ROUNDS {
            goal = write(&mut sim, segments * FULL_SEGMENT);
        }
    }
    sim.run_until(10, |sim| sim.local.tcp_queued(client).unwrap().0 == 0);

    let count = Rc::new(Cell::new(0));
    let counter = Rc::clone(&count);
    sim.wire.filter = Box::new(move |end, frame| {
        let is_full = end == 0 && packets::payload_offset(frame) > 0 && frame.len() > FULL_SEGMENT;
        counter.set(counter.get() + usize::from(is_full));
        false
    });
    write(&mut sim, 300 * FULL_SEGMENT);
    let until = sim.now + 50_000_000;
    sim.run_until(1, |sim| sim.now >= until);
    count.get()
}

/// RFC 7661, section 1: an unused window is no evidence about the path and must not grow. Data
/// written after everything had left was not limited by it, though it waits when the
/// acknowledgement arrives.
#[test]
fn an_unused_congestion_window_does_not_grow() {
    for control in ["reno", "cubic"] {
        let few = unacknowledged_segments(control, 6);
        let many = unacknowledged_segments(control, 60);
        assert!(few < 24, "{control}: {few} segments, of 6 at a time");
        assert!(many > 48, "{control}: {many} segments, of 60 at a time");
    }
    assert_eq!(unacknowledged_segments("none", 6), 300);
}
