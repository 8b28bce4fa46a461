//! Requests and responses: every mode, and its counts.

use linerate_record::round_trip::SocketMode;

use super::*;

#[test]
fn round_trips_get_correct_responses() {
    let server = TestServer::start(false);
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        for wait in [
            "block",
            "spin",
            "block/spin",
            "poll",
            "select",
            "select:50us",
            "epoll",
            "io-uring",
            "busy-poll:20us",
        ] {
            for bytes in [1, 14, 64, 20_000] {
                let mut plan = server.plan(RunKind::Latency, protocol);
                plan.payload_bytes = bytes;
                plan.wait = Some(wait.parse().unwrap());
                plan.duration_ns = None;
                plan.round_trips = Some(200);
                plan.interval_ns = Some(10_000_000);
                let Some(record) = run_if_possible(plan) else {
                    continue;
                };
                let summary = &record.summary;
                let context = format!("{protocol} {wait} {bytes}: {summary:?}");
                assert_eq!(summary.round_trips, Some(200), "{context}");
                assert_eq!(summary.mismatched, Some(0), "{context}");
                assert_eq!(summary.lost, Some(0), "{context}");
                let rtt = summary.rtt_ns.unwrap();
                assert!(
                    rtt.min > 500 && rtt.min <= rtt.p50 && rtt.p50 <= rtt.max,
                    "{context}"
                );
                assert_eq!(record.histograms["rtt_ns"].count, 200);
                let counted: u64 = record.intervals.iter().filter_map(|i| i.packets).sum();
                assert_eq!(counted, 200, "{context}");
                let timed: u64 = (record.intervals.iter())
                    .filter_map(|interval| Some(interval.rtt_ns?.count))
                    .sum();
                assert_eq!(timed, 200, "{context}");
            }
        }
    }
    server.end().unwrap();
}

#[test]
fn slow_responses_are_listed_with_their_causes() {
    let server = TestServer::start(false);
    for protocol in [TransportProtocol::Udp, TransportProtocol::Tcp] {
        let mut plan = server.plan(RunKind::Latency, protocol);
        plan.duration_ns = None;
        plan.round_trips = Some(3_000);
        plan.streams = 2;
        // Every response is above it.
        plan.round_trip.limit_ns = Some(1);
        let record = run(plan);
        assert_eq!(record.summary.slow, Some(3_000));
        assert_eq!(record.slow.len(), 1_000, "the list is bounded");
        assert!(record.slow.is_sorted_by_key(|slow| slow.at_ns));
        for slow in &record.slow {
            assert!(slow.time_ns > 1 && slow.number < 1_500, "{slow:?}");
            assert!(!slow.cause.is_empty());
        }
        assert_eq!(record.summary.mismatched, Some(0));
    }
    // Without a limit or a comparison, their figures are absent.
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    plan.round_trip.verify = false;
    let record = run(plan);
    assert_eq!((record.summary.slow, record.slow.len()), (None, 0));
    assert_eq!(record.summary.mismatched, None);
    assert_eq!(record.summary.duplicates, Some(0));
    server.end().unwrap();
}

#[test]
fn a_socket_per_request_and_its_steps() {
    let server = TestServer::start(false);
    for protocol in [TransportProtocol::Udp, TransportProtocol::Tcp] {
        for wait in ["block", "spin", "poll", "epoll", "select"] {
            let mut plan = server.plan(RunKind::Latency, protocol);
            plan.duration_ns = None;
            plan.round_trips = Some(100);
            plan.streams = 2;
            plan.wait = Some(wait.parse().unwrap());
            plan.round_trip.socket_mode = SocketMode::Reopened;
            let record = run(plan);
            let summary = &record.summary;
            let context = format!("{protocol} {wait}: {summary:?} {:?}", record.validity);
            assert_eq!(summary.round_trips, Some(100), "{context}");
            assert_eq!(
                (summary.lost, summary.mismatched),
                (Some(0), Some(0)),
                "{context}"
            );
            let complete = summary.whole_ns.unwrap();
            assert!(complete.p50 > summary.rtt_ns.unwrap().p50, "{context}");
            for step in ["open_ns", "connect_ns", "send_ns", "receive_ns", "close_ns"] {
                assert_eq!(record.histograms[step].count, 100, "{step} {context}");
            }
            let binds = record.histograms.contains_key("bind_ns");
            assert_eq!(binds, protocol == TransportProtocol::Udp, "{context}");
            let connections = summary.connections_per_second.is_some();
            assert_eq!(connections, protocol == TransportProtocol::Tcp, "{context}");
        }
    }
    server.end().unwrap();
}

#[test]
fn hundreds_of_sleeping_threads_come_to_their_end() {
    let server = TestServer::start(true);
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Tcp);
    plan.streams = 150;
    plan.payload_bytes = 64;
    plan.wait = Some(PerEnd::same(WaitMode::Block));
    plan.interval_ns = None;
    plan.round_trip.socket_mode = SocketMode::Reopened;
    plan.round_trip.connections = true;
    plan.response_timeout_ns = Some(8_000_000_000);
    let ran = client(plan).run(&AtomicBool::new(false), &mut |_| {});
    let (record, failure) = ran.unwrap();
    server.end().unwrap();
    assert!(failure.is_none(), "{failure:?}");
    let summary = &record.summary;
    assert!(summary.round_trips.unwrap() > 150, "{summary:?}");
    assert_eq!((summary.lost, summary.mismatched), (Some(0), Some(0)));
}

/// The CPUs of both ends are known without intervals, which are only for display.
#[test]
fn cpus_of_round_trips_are_sampled_without_intervals() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    let first = linerate_record::plan::CpuList(vec![linerate_sys::cpu::list_usable().unwrap()[0]]);
    plan.cpu = PerEnd::same(first.clone());
    plan.interval_ns = None;
    let record = run(plan);
    server.end().unwrap();
    let costs = &record.summary.cpu;
    assert_eq!(costs.len(), 2, "{costs:?}");
    for thread in costs.iter().flat_map(|end| &end.threads) {
        assert_eq!(thread.cpus, Some(first.clone()), "{costs:?}");
    }
}

#[test]
fn unconnected_sockets_send_requests() {
    let server = TestServer::start(false);
    for wait in ["block", "spin", "poll", "epoll"] {
        for bytes in [14, 20_000] {
            let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
            plan.duration_ns = None;
            plan.round_trips = Some(100);
            plan.payload_bytes = bytes;
            plan.wait = Some(wait.parse().unwrap());
            plan.round_trip.socket_mode = SocketMode::Unconnected;
            let record = run(plan);
            assert_eq!(record.summary.round_trips, Some(100), "{wait}");
            assert_eq!(record.summary.mismatched, Some(0), "{wait}");
            let requests = record.directions[0].streams[0].sender.as_ref().unwrap();
            assert_eq!(requests.remote, None, "it is connected to nobody");
        }
    }
    server.end().unwrap();
}

#[test]
fn a_schedule_does_not_depend_on_the_responses() {
    let server = TestServer::start(false);
    for protocol in [TransportProtocol::Udp, TransportProtocol::Tcp] {
        for (wait, bytes) in [
            (None, 64),
            (Some("spin/block"), 14),
            (Some("poll/epoll"), 9_000),
        ] {
            let mut plan = server.plan(RunKind::Latency, protocol);
            plan.payload_bytes = bytes;
            plan.streams = 2;
            plan.wait = wait.map(|wait| wait.parse().unwrap());
            plan.round_trip.rate_per_second = Some(1_000);
            plan.round_trip.outstanding = 32;
            let plan_ns = plan.duration_ns.unwrap();
            let record = run(plan);
            let summary = &record.summary;
            let context = format!("{protocol} {wait:?} {bytes}: {summary:?}");
            let requests_sent = summary.round_trips.unwrap() + summary.lost.unwrap();
            // Exactly 1,000 requests a second on each of two flows, for the planned duration.
            let due = plan_ns * 2_000 / 1_000_000_000;
            assert_eq!(requests_sent + summary.unsent.unwrap(), due, "{context}");
            assert_eq!(summary.mismatched, Some(0), "{context}");
            let (intended, actual) = (summary.rtt_intended_ns.unwrap(), summary.rtt_ns.unwrap());
            assert!(intended.count >= actual.count, "{context}");
            assert!(intended.mean >= actual.mean, "{context}");
        }
        // As many as may be outstanding, without a schedule.
        let mut plan = server.plan(RunKind::Latency, protocol);
        plan.duration_ns = None;
        plan.round_trips = Some(500);
        plan.round_trip.outstanding = 8;
        let record = run(plan);
        assert_eq!(record.summary.round_trips, Some(500), "{protocol}");
        assert_eq!(record.summary.mismatched, Some(0), "{protocol}");
        assert_eq!(record.summary.rtt_intended_ns, None);
    }
    server.end().unwrap();
}

#[test]
fn requests_to_a_group_get_responses() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    plan.duration_ns = None;
    plan.round_trips = Some(50);
    plan.round_trip.group = Some("239.77.1.2".parse().unwrap());
    let stop = AtomicBool::new(false);
    match client(plan.clone()).run(&stop, &mut |_| {}) {
        Ok((record, failure)) => {
            assert!(failure.is_none(), "{failure:?}");
            assert_eq!(record.summary.round_trips, Some(50));
            assert_eq!(record.summary.mismatched, Some(0));
        }
        Err(error) => println!("needs multicast on the loopback interface: {error}"),
    }
    plan.round_trip.group = Some("ff12::77".parse().unwrap());
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), exit_codes::MISSING, "{error}");
    server.end().unwrap();
}
