//! Timestamped round trips over loopback: every stage exists, and they add up.

use crate::common::TestServer;
use linerate_record::facts::Role;
use linerate_record::plan::{PerEnd, Plan, RunKind, TimestampLevel, TransportProtocol, WaitMode};
use linerate_record::record::Record;

/// Runs timestamped round trips against a server of this process.
fn run(change: impl Fn(&mut Plan)) -> Record {
    run_any(RunKind::Latency, TransportProtocol::Udp, |plan| {
        plan.duration_ns = None;
        plan.round_trips = Some(2_000);
        plan.interval_ns = None;
        plan.timestamps = TimestampLevel::Packets;
        change(plan);
    })
}

fn run_any(kind: RunKind, protocol: TransportProtocol, change: impl Fn(&mut Plan)) -> Record {
    // The kernel enables receive timestamps with a delay after the first socket requests them; a
    // busy one may do so after the run.
    let runs = (0..5).map(|_| {
        let server = TestServer::start();
        let mut plan = server.plan(kind, protocol);
        change(&mut plan);
        crate::common::run(plan)
    });
    let timestamped = |record: &Record| {
        let pass = record.stage_pass.as_ref();
        pass.is_none_or(|pass| pass.round_trips > 500)
    };
    let mut last = None;
    for record in runs {
        let enough = timestamped(&record);
        last = Some(record);
        if enough {
            break;
        }
    }
    last.expect("there was a run")
}

/// Checks invariants that do not depend on the load of the machine.
fn check(record: &Record) -> Vec<String> {
    let pass = record.stage_pass.as_ref().unwrap();
    let notes = &pass.notes;
    assert_eq!(record.summary.round_trips, Some(2_000));
    assert_eq!(record.summary.mismatched, Some(0));
    // Receive timestamps start some milliseconds after the first socket requests them.
    assert!(pass.round_trips > 500, "{pass:?}");
    assert_eq!(pass.round_trips + pass.incomplete, 2_000, "{pass:?}");
    let means: f64 = record.stages.iter().map(|stage| stage.mean_ns).sum();
    let round_trip = pass.rtt_ns.unwrap().mean;
    // Each round trip is the sum of its own stages; only a timestamp before its call would break
    // that.
    assert!(
        (means - round_trip).abs() <= 0.01 * round_trip,
        "{means} {round_trip} {notes:?}"
    );
    let medians: u64 = record.stages.iter().map(|stage| stage.p50_ns).sum();
    assert_eq!(medians, pass.sum_of_medians_ns);
    record
        .stages
        .iter()
        .map(|stage| stage.stage.clone())
        .collect()
}

const PACKETS: [&str; 9] = [
    "client-send-call",
    "client-qdisc",
    "path-to-server",
    "server-receive",
    "server-application",
    "server-send-call",
    "server-qdisc",
    "path-to-client",
    "client-receive",
];

#[test]
fn datagrams_pass_every_stage() {
    assert_eq!(check(&run(|_| {})), PACKETS);
    let spinning = run(|plan| plan.wait = Some(PerEnd::same(WaitMode::Spin)));
    assert_eq!(check(&spinning), PACKETS);
    assert_eq!(spinning.timeline, None, "nobody asked for it");
}

#[test]
fn every_wait_mode_but_a_ring_has_stages() {
    let select = WaitMode::Select { timeout_ns: None };
    for (client, server) in [
        (WaitMode::Poll, WaitMode::Poll),
        (select, WaitMode::Epoll),
        (WaitMode::Epoll, select),
        (WaitMode::BusyPoll { time_ns: None }, WaitMode::Block),
    ] {
        for protocol in [TransportProtocol::Udp, TransportProtocol::Tcp] {
            println!("{client}/{server} {protocol:?}");
            let record = run(|plan| {
                plan.wait = Some(PerEnd { client, server });
                plan.protocol = protocol;
                plan.payload_bytes = 100;
            });
            assert_eq!(check(&record), PACKETS);
        }
    }
}

#[test]
fn timestamped_round_trips_keep_a_rate() {
    let record = run(|plan| {
        plan.round_trip.rate_per_second = Some(4_000);
        plan.round_trip.outstanding = 64;
    });
    assert_eq!(check(&record), PACKETS);
    // The last of 2,000 left half a second after the first, and none before its time.
    let duration = record.summary.duration_ns.unwrap();
    assert!(duration >= 499_000_000, "{duration}");
    let notes = record.stage_pass.unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("keep the rate")));
}

#[test]
fn streams_pass_every_stage() {
    let record = run(|plan| {
        plan.protocol = TransportProtocol::Tcp;
        plan.payload_bytes = 100;
    });
    assert_eq!(check(&record), PACKETS);
}

#[test]
fn fragments_pass_every_stage() {
    let record = run(|plan| {
        // More than loopback's MTU holds.
        plan.payload_bytes = 65_507;
        plan.timestamps = TimestampLevel::Scheduler;
    });
    check(&record);
}

#[test]
fn wake_ups_are_distinguished_where_permitted() {
    let record = run(|plan| plan.timestamps = TimestampLevel::Driver);
    let stages = check(&record);
    let pass = record.stage_pass.unwrap();
    if !pass.notes.is_empty() {
        println!("skipped: {}", pass.notes.join("; "));
        return;
    }
    // On a busy machine the message may be there before the call: then no wake-up exists.
    println!("{stages:?}");
    let timeline = record.timeline.unwrap();
    assert!(timeline.slices.iter().any(|slice| slice.name == "wake-up"));
    assert!(timeline.slices.iter().any(|slice| slice.name == "net-rx"));
    assert!(timeline.driver.iter().all(|work| work.duration_ns.p50 > 0));
    let starts = timeline.slices.windows(2);
    assert!(
        starts
            .into_iter()
            .all(|pair| pair[0].start_ns <= pair[1].start_ns)
    );
}

#[test]
fn calls_of_streams_make_a_timeline() {
    let record = run_any(RunKind::Throughput, TransportProtocol::Tcp, |plan| {
        plan.duration_ns = Some(200_000_000);
        plan.streams = 2;
        plan.calls = true;
        plan.trace = true;
    });
    let timeline = record.timeline.unwrap();
    assert!(record.stage_pass.is_none() && record.stages.is_empty());
    for (role, name) in [(Role::Client, "send"), (Role::Server, "recv")] {
        let local_stages: Vec<_> = timeline.slices.iter().filter(|s| s.role == role).collect();
        assert!(local_stages.len() > 10, "{role:?} {}", local_stages.len());
        assert!(
            local_stages.iter().all(|s| s.end_ns >= s.start_ns),
            "{role:?}"
        );
        assert!(
            local_stages.iter().any(|s| s.name.starts_with(name)),
            "{:?}",
            local_stages[0]
        );
        // One thread makes one call at a time.
        for thread in 0..2 {
            let calls: Vec<_> = local_stages
                .iter()
                .filter(|s| s.thread == Some(thread))
                .collect();
            assert!(
                calls
                    .windows(2)
                    .all(|pair| pair[0].end_ns <= pair[1].start_ns)
            );
        }
    }
    let none = run_any(RunKind::Throughput, TransportProtocol::Udp, |plan| {
        plan.duration_ns = Some(50_000_000);
    });
    assert_eq!(none.timeline, None);
}

#[test]
fn a_timeline_of_calls_ends_with_the_one_that_was_waited_for() {
    let record = run_any(RunKind::Throughput, TransportProtocol::Tcp, |plan| {
        plan.duration_ns = Some(200_000_000);
        plan.calls = true;
        plan.trace = true;
        // Every call is longer.
        plan.trace_on_ns = Some(1);
    });
    let timeline = record.timeline.unwrap();
    for role in [Role::Client, Role::Server] {
        let local_stages = timeline.slices.iter().filter(|s| s.role == role).count();
        assert!((1..=65).contains(&local_stages), "{role:?} {local_stages}");
    }
}
