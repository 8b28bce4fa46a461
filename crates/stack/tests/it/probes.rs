//! Choice of the tail probe's delay (`tcp.tail_probe`): its cost when segments are lost, and its
//! benefit when a receiver in user space only waits for its processor. All in simulated time, over
//! a path of 1 ms.

use std::fmt::Write;
use std::task::Poll;

use crate::common::{LinkModel, TwoStackSim, expect_ready};

const MS: u64 = 1_000_000;

/// Round-trip time of the path.
const RTT_NS: u64 = MS;

fn new_sim(probe: &str) -> TwoStackSim {
    let key = format!("tcp.tail_probe={probe}");
    let settings = [&key, "tcp.send_buffer=256K", "tcp.receive_window=256K"];
    let link = LinkModel {
        delay_ns: RTT_NS / 2,
        ..LinkModel::CLEAN
    };
    TwoStackSim::symmetric(&settings, link)
}

/// Returns the goodput in Mb/s of a stream whose receiver pauses about every 40 ms for `wait_ms`,
/// and the spurious retransmissions.
fn goodput_with_pauses(probe: &str, wait_ms: u64) -> (u64, u64) {
    const TIME: u64 = 400 * MS;
    let mut sim = new_sim(probe);
    let (client, server) = sim.connect(80);
    let mut random = fastrand::Rng::with_seed(7);
    let end = sim.now + TIME;
    let (mut stall_at, mut resume_at, mut received) = (sim.now + 10 * MS, 0, 0);
    while sim.now < end {
        while let Poll::Ready(sent) = sim.local.tcp_send(client, |space| space.len()) {
            sent.unwrap();
        }
        sim.local.poll(sim.now);
        if sim.now >= stall_at {
            resume_at = sim.now + wait_ms * MS;
            stall_at = resume_at + random.u64(20 * MS..60 * MS);
        }
        if sim.now >= resume_at {
            sim.remote.poll(sim.now);
            while let Poll::Ready(got) = sim
                .remote
                .tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
            {
                received += got.unwrap() as u64;
            }
            sim.remote.flush();
        }
        sim.wire.transfer(sim.now);
        match sim.now < resume_at {
            true => sim.now += MS / 10,
            false => sim.advance(),
        }
    }
    let retransmitted = sim.local.counters().tcp.retransmitted_segments;
    (received * 8_000 / TIME, retransmitted)
}

/// Returns the time in ms until the last of 20 segments arrives when the last three are lost.
fn lost_tail_ms(probe: &str) -> u64 {
    const BYTES: usize = 20 * 1_460;
    let mut sim = new_sim(probe);
    let (client, server) = sim.connect(80);
    let mut elapsed = 0;
    for round in 0..6 {
        // The round-trip time is measured by then.
        let drops = round >= 3;
        let mut count = 0;
        sim.wire.filter = Box::new(move |end, frame| {
            count += u32::from(end == 0 && frame.len() > 1_000);
            !(drops && (18..=20).contains(&count) && end == 0)
        });
        let (start, mut written, mut received) = (sim.now, 0, 0);
        while written < BYTES {
            let rest = BYTES - written;
            written += expect_ready(sim.local.tcp_send(client, |space| space.len().min(rest)));
        }
        sim.run_until(10, |sim| {
            while let Poll::Ready(got) = sim
                .remote
                .tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
            {
                received += got.unwrap();
            }
            received == BYTES
        });
        elapsed = sim.now - start;
        sim.run(200);
    }
    elapsed / MS
}

/// A thread that shares its processor with one, two or three others of its class waits 4, 8 or 12
/// ms for it: one tick for each, in a kernel with 250 ticks a second, as distributions build it
/// (measured, to the tenth of a millisecond). So `on` means 10 ms: more than two ticks and less
/// than three.
#[test]
fn a_probe_waits_out_two_ticks() {
    let mut table =
        String::from("probe  lost tail  Mb/s/retransmissions, for receiver pauses of\n");
    table.push_str("                  0 ms      4 ms      8 ms      12 ms\n");
    let mut rows = Vec::new();
    for probe in ["1us", "2ms", "6ms", "on", "20ms", "off"] {
        let tail = lost_tail_ms(probe);
        let rates = [0, 4, 8, 12].map(|wait| goodput_with_pauses(probe, wait));
        write!(table, "{probe:5} {tail:4} ms").unwrap();
        for (rate, retransmitted) in rates {
            write!(table, "{rate:7}/{retransmitted:<2}").unwrap();
        }
        table.push('\n');
        rows.push((tail, rates));
    }
    insta::assert_snapshot!(table);
    let [.., six_ms, on, twenty_ms, off] = &rows[..] else {
        panic!("there are six rows");
    };
    let rate = |row: &(u64, [(u64, u64); 4]), column: usize| row.1[column].0 as f64;
    // Two ticks cost nothing; with a shorter delay they would.
    assert_eq!(on.1[2].1, 0, "{table}");
    assert!(rate(on, 2) > 0.98 * rate(off, 2), "{table}");
    assert!(rate(six_ms, 2) < 0.85 * rate(on, 2), "{table}");
    // Three ticks would need a longer delay, by which each lost tail would be recovered later.
    assert!(on.1[3].1 > 0 && twenty_ms.1[3].1 == 0, "{table}");
    assert!(on.0 < twenty_ms.0 && 2 * on.0 < off.0, "{table}");
}

/// More data than leaves at a time: no acknowledgement of the first segments can have arrived when
/// the next ones leave.
#[test]
fn a_burst_after_a_pause_is_not_probed() {
    let mut sim = new_sim("on");
    let (client, server) = sim.connect(80);
    for pause in [0, 20 * MS, 60_000 * MS] {
        sim.now += pause;
        let mut received = 0;
        for _ in 0..4 {
            expect_ready(sim.local.tcp_send(client, |space| space.len().min(20_000)));
        }
        sim.run_until(10, |sim| {
            while let Poll::Ready(got) = sim
                .remote
                .tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
            {
                received += got.unwrap();
            }
            received == 80_000 && sim.local.tcp_queued(client).unwrap().0 == 0
        });
        let retransmitted = sim.local.counters().tcp.retransmitted_segments;
        assert_eq!(retransmitted, 0, "after {} ms", pause / MS);
    }
}
