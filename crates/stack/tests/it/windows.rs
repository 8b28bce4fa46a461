//! Peers that ignore the announced window, and windows that close, shrink and are updated late.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;

use crate::common::{BulkTransfer, LinkModel, TwoStackSim, expect_ready, packets, segments};

const SECOND_NS: u64 = 1_000_000_000;

/// The window of a SYN is not scaled, but smoltcp applies the scale: eight times the buffer's size.
#[test]
fn payload_beyond_the_buffer_is_rejected() {
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
        let mut sim = TwoStackSim::symmetric(&[&window_setting], LinkModel::CLEAN);
        let frames = sim.capture(|end, frame| end == 0 && segments::is_tcp(frame));
        let (client, server) = sim.connect(80);
        // The last segment of the handshake, after which the server has announced no scaled window
        // yet.
        let last = frames.borrow().last().cloned().expect("a greeting");
        let number = segments::sequence(&last).wrapping_add(ahead);
        let beyond = segments::segment_like(&last, number, segments::ACK, &[0xaa; 1_400]);
        sim.wire.deliver(1, &beyond);
        let mut local = BulkTransfer::new(client, 600_000);
        let mut remote = BulkTransfer::new(server, 0);
        // Until the buffer is full, without reading.
        for _ in 0..3_000 {
            local.step(&mut sim.local);
            sim.poll();
            sim.advance();
        }
        assert!(
            local.sent < local.send,
            "{window} {ahead}: there was no end to the room"
        );
        sim.run_until(60, |sim| {
            local.step(&mut sim.local);
            remote.step(&mut sim.remote);
            remote.has_received_end
        });
        assert_eq!(remote.received, local.send, "{window} {ahead}");
    }
}

/// A closed window is probed with a byte that arrives and is not accepted.
#[test]
fn a_closed_window_is_no_black_hole() {
    let settings = [
        "tcp.receive_window=8192",
        "tcp.send_buffer=64K",
        "tcp.min_rto=100ms",
        "tcp.tail_probe=off",
    ];
    let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    let mut local = BulkTransfer::new(client, 60_000);
    local.has_received_end = true;
    let until = sim.now + 30 * SECOND_NS;
    while sim.now < until {
        local.step(&mut sim.local);
        sim.poll();
        sim.advance();
    }
    assert_eq!(sim.remote.tcp_queued(server).unwrap().1, 8192, "it is full");
    let counters_before = sim.local.counters().tcp;
    // SYN and ACK, six segments with payload, and probes.
    assert!(counters_before.out_segments > 8 + 6, "{counters_before:#?}");
    assert_eq!(counters_before.retransmitted_segments, 0);
    // All segments sent first after the window opens are lost, for one timeout.
    let lost = Rc::new(Cell::new(0));
    let count = Rc::clone(&lost);
    let until = sim.now + SECOND_NS / 20;
    let clock = Rc::new(Cell::new(sim.now));
    let now = Rc::clone(&clock);
    sim.wire.filter = Box::new(move |end, frame| {
        let drops = end == 0 && frame.len() > 600 && now.get() < until;
        count.set(count.get() + u32::from(drops));
        !drops
    });
    let mut remote = BulkTransfer::new(server, 0);
    sim.run_until(60, |sim| {
        clock.set(sim.now);
        local.step(&mut sim.local);
        remote.step(&mut sim.remote);
        remote.has_received_end
    });
    assert!(lost.get() > 0);
    assert_eq!(remote.received, 60_000);
    let counters = sim.local.counters().tcp;
    assert!(counters.retransmitted_segments > 0);
    assert_eq!(counters.path_mtu_guesses, 0, "{counters:#?}");
}

/// The peer closes its window below the data in flight, which is lost, and its later segments do
/// not arrive: one end has to probe (RFC 9293, section 3.8.6: MUST-35).
#[test]
fn a_window_that_shrinks_to_zero_is_probed() {
    let mut sim = TwoStackSim::symmetric(&["tcp.min_rto=100ms"], LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    // Both have announced scaled windows.
    expect_ready(sim.local.tcp_send(client, |_| 1));
    sim.run_until(5, |sim| sim.local.tcp_queued(client).unwrap().0 == 0);
    expect_ready(sim.remote.tcp_receive(server, |_| (1, ())));
    sim.run(20);
    // Data of the local stack is lost, and segments of the remote one close its window.
    sim.wire.filter = Box::new(|end, frame| {
        if end == 1 && segments::is_tcp(frame) {
            let window = segments::TCP_OFFSET + 14;
            frame[window..window + 2].fill(0);
            packets::complete(frame);
        }
        // Only acknowledgements arrive.
        end == 1 || !segments::is_tcp(frame) || frame.len() <= 54
    });
    expect_ready(sim.local.tcp_send(client, |space| {
        space[..1_000].fill(7);
        1_000
    }));
    expect_ready(sim.remote.tcp_send(server, |_| 10));
    let until = sim.now + 2 * SECOND_NS;
    while sim.now < until {
        sim.poll();
        sim.advance();
    }
    assert_eq!(sim.local.tcp_queued(client).unwrap(), (1_000, 10));
    // From here on the link is clean, and the peer has nothing to send.
    sim.wire.filter = Box::new(|_, _| true);
    sim.run_until(20, |sim| sim.remote.tcp_queued(server).unwrap().1 == 1_000);
    assert_eq!(sim.local.counters().tcp.path_mtu_guesses, 0);
}

/// A reordered segment contains an outdated window.
#[test]
fn a_reordered_segment_closes_no_open_window() {
    let settings = ["tcp.receive_window=8192", "tcp.min_rto=1s"];
    let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    expect_ready(sim.local.tcp_send(client, |space| space.len().min(8_192)));
    // The window is full, and all of it is acknowledged.
    sim.run_until(20, |sim| {
        sim.remote.tcp_queued(server).unwrap().1 == 8_192
            && sim.local.tcp_queued(client).unwrap().0 == 0
    });
    // A segment of the peer with the closed window is held back.
    let held_frame = Rc::new(RefCell::new(None));
    let holder = Rc::clone(&held_frame);
    sim.wire.filter = Box::new(move |end, frame| {
        let is_held = end == 1 && frame.len() > 500 && holder.borrow().is_none();
        if is_held {
            *holder.borrow_mut() = Some(frame.clone());
        }
        !is_held
    });
    expect_ready(sim.remote.tcp_send(server, |space| space.len().min(500)));
    sim.run(5);
    let held_frame = held_frame.take().expect("a segment that is held back");
    // The peer reads everything, and its window opens.
    while sim.remote.tcp_queued(server).unwrap().1 > 0 {
        expect_ready(sim.remote.tcp_receive(server, |bytes| (bytes.len(), ())));
    }
    sim.run(50);
    sim.wire.deliver(0, &held_frame);
    sim.run(5);
    assert_eq!(sim.local.tcp_queued(client).unwrap().1, 500, "it is taken");
    // New data leaves at once, without waiting for a window probe.
    let start = sim.now;
    expect_ready(sim.local.tcp_send(client, |space| {
        space[..700].fill(7);
        700
    }));
    sim.run_until(5, |sim| sim.remote.tcp_queued(server).unwrap().1 == 700);
    let elapsed_ms = (sim.now - start) / 1_000_000;
    assert!(elapsed_ms < 100, "{elapsed_ms} ms");
}

/// A window that is rounded down ends before the one announced earlier; the stream may end between
/// the two.
#[test]
fn a_fin_beyond_the_last_announced_window_waits_for_its_payload() {
    /// Odd, so that its announcement is rounded down.
    const WINDOW: usize = 99_991;
    let setting = format!("tcp.receive_window={WINDOW}");
    let mut sim = TwoStackSim::symmetric(&[&setting], LinkModel::CLEAN);
    let frames = sim.capture(|end, frame| end == 0 && segments::is_tcp(frame));
    let (_, server) = sim.connect(80);
    let last = frames.borrow().last().cloned().expect("a greeting");
    let put = |sim: &mut TwoStackSim, offset: usize, bytes: usize, flags| {
        let number = segments::sequence(&last).wrapping_add(offset as u32);
        let segment = segments::segment_like(&last, number, flags, &vec![0xaa; bytes]);
        sim.wire.deliver(1, &segment);
        for _ in 0..3 {
            sim.poll();
            sim.advance();
        }
    };
    for offset in (0..99_000).step_by(1_000) {
        put(&mut sim, offset, 1_000, segments::ACK);
    }
    let fin_flags = segments::ACK | segments::FIN;
    put(&mut sim, 99_000, 991, fin_flags);
    let read = |sim: &mut TwoStackSim| {
        let mut received = 0;
        loop {
            let take = |bytes: &[u8]| (bytes.len(), bytes.len());
            match sim.remote.tcp_receive(server, take) {
                Poll::Ready(Ok(0)) => return (received, true),
                Poll::Ready(Ok(bytes)) => received += bytes,
                unexpected => {
                    assert!(unexpected.is_pending(), "{unexpected:?}");
                    return (received, false);
                }
            }
        }
    };
    assert_eq!(read(&mut sim), (WINDOW - 1, false));
    // A window update is sent.
    sim.poll();
    put(&mut sim, WINDOW - 1, 1, fin_flags);
    assert_eq!(read(&mut sim), (1, true));
}
