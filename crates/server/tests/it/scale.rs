//! Many flows on few threads, and the thread figures of a run: both ends in this process.

use std::time::{Duration, Instant};

use crate::common::{TestServer, run, try_run};
use linerate_record::cost::MAX_STREAMS_IN_SERIES;
use linerate_record::exit_codes;
use linerate_record::plan::{Direction, PerEnd, Plan, RunKind, TransportProtocol, WaitMode};
use linerate_record::record::Record;

fn plan(server: &TestServer, protocol: TransportProtocol, streams: u32) -> Plan {
    let mut plan = server.plan(RunKind::Throughput, protocol);
    plan.streams = streams;
    plan.payload_bytes = 16 << 10;
    plan.duration_ns = Some(400_000_000);
    plan.interval_ns = Some(100_000_000);
    plan
}

/// Both ends counted the same for each flow.
fn check_flows(record: &Record, streams: usize) {
    for direction in &record.directions {
        assert_eq!(direction.streams.len(), streams);
        for stream in &direction.streams {
            assert_eq!(
                stream.summary.bytes_sent, stream.summary.bytes_received,
                "stream {}",
                stream.id
            );
            assert!(stream.sender.is_some() && stream.receiver.is_some());
        }
        let index = direction.summary.fairness_index.unwrap();
        assert!((0.0..=1.0).contains(&index), "{index}");
    }
}

#[test]
fn many_streams_share_threads_and_none_starves() {
    let server = TestServer::start();
    for wait in [None, Some(PerEnd::same(WaitMode::Spin))] {
        let mut plan = plan(&server, TransportProtocol::Tcp, 60);
        plan.threads = Some(PerEnd {
            client: 2,
            server: 1,
        });
        plan.wait.clone_from(&wait);
        let record = run(plan);
        let threads = record.plan.threads.clone().unwrap();
        assert_eq!((threads.client, threads.server), (2, 1));
        if wait.is_none() {
            assert_eq!(record.plan.wait.as_ref().unwrap().client, WaitMode::Epoll);
        }
        check_flows(&record, 60);
        let streams = &record.directions[0].streams;
        assert!(streams.iter().all(|s| s.summary.bytes_received > Some(0)));
        let of = |part: usize| &record.summary.cpu[part].threads;
        assert_eq!(of(0).iter().map(|t| t.flows).sum::<u32>(), 60);
        assert_eq!((of(0).len(), of(1).len()), (2, 1));
    }
}

#[test]
fn a_run_reports_each_stream_and_each_thread() {
    let server = TestServer::start();
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        let mut plan = plan(&server, protocol, 3);
        plan.payload_bytes = 1_000;
        plan.rate_bps = Some(8_000_000);
        plan.directions = vec![Direction::Send, Direction::Receive];
        let record = run(plan);
        for direction in &record.directions {
            let intervals =
                (record.intervals.iter()).filter(|i| i.direction == direction.direction);
            for stream in &direction.streams {
                let of_it = intervals.clone().flat_map(|i| &i.streams);
                let bytes = of_it
                    .filter(|part| part.id == stream.id)
                    .map(|part| part.bytes);
                assert_eq!(
                    Some(bytes.sum()),
                    stream.summary.bytes_received,
                    "{protocol}"
                );
            }
            for interval in intervals.clone() {
                let sum: u64 = interval.streams.iter().map(|part| part.bytes).sum();
                assert_eq!(sum, interval.bytes, "{interval:?}");
                assert_eq!(interval.tcp.is_some(), protocol == TransportProtocol::Tcp);
                if let Some(tcp) = interval.tcp {
                    assert_eq!(tcp.flows, 3);
                    assert_eq!(interval.retransmits, Some(tcp.retransmits));
                }
            }
            if std::path::Path::new("/proc/self/schedstat").exists() {
                let reported = intervals.filter(|i| i.sender_threads.is_some());
                assert!(reported.count() > 0, "the threads' time is told");
            }
        }
        for cost in &record.summary.cpu {
            // Three threads in each direction.
            assert_eq!(cost.threads.len(), 6);
            assert!(cost.ns_per_byte.is_some_and(|ns| ns > 0.0));
            assert_eq!(
                cost.ns_per_packet.is_some(),
                protocol == TransportProtocol::Udp
            );
            for thread in &cost.threads {
                let spent = thread.cpu_ns + thread.runnable_ns.unwrap_or(0);
                assert!(thread.blocked_ns.unwrap_or(0) + spent <= thread.wall_ns + 50_000_000);
                assert!(thread.calls.unwrap() >= thread.empty_calls.unwrap());
            }
            assert!(cost.cycles.is_some() || cost.uncounted_reason.is_some());
        }
        assert_eq!(record.summary.memory.len(), 2);
        assert_eq!(record.summary.memory[0].streams, 6);
    }
}

#[test]
fn of_very_many_streams_the_series_holds_the_total() {
    let server = TestServer::start();
    let record = run(plan(
        &server,
        TransportProtocol::Tcp,
        MAX_STREAMS_IN_SERIES + 1,
    ));
    check_flows(&record, MAX_STREAMS_IN_SERIES as usize + 1);
    assert!(record.intervals.iter().all(|i| i.streams.is_empty()));
}

#[test]
fn figures_of_thousands_of_streams_take_several_frames() {
    // Both ends of 2,100 flows, and the other descriptors of this process.
    linerate_sys::fd_table::raise_open_file_limit();
    if linerate_sys::fd_table::open_file_limit().is_some_and(|limit| limit < 10_000) {
        println!("needs an open-file limit of 10,000");
        return;
    }
    let server = TestServer::start();
    let mut plan = plan(&server, TransportProtocol::Tcp, 2_100);
    plan.amount_bytes = Some(64 << 20);
    plan.duration_ns = None;
    let started = Instant::now();
    let record = run(plan);
    check_flows(&record, 2_100);
    assert_eq!(record.summary.bytes_received, Some(64 << 20));
    println!("took {:?}", started.elapsed());
}

#[test]
fn streams_beyond_the_open_files_are_rejected_before_any_traffic() {
    let server = TestServer::start();
    let Some(limit) = linerate_sys::fd_table::open_file_limit() else {
        println!("this process may open any number of files");
        return;
    };
    if limit >= 16_000 {
        println!("an open-file limit of {limit} holds the largest number of streams");
        return;
    }
    let mut plan = plan(&server, TransportProtocol::Tcp, limit as u32);
    plan.wait = Some(PerEnd::same(WaitMode::Epoll));
    let error = try_run(plan).unwrap_err();
    assert_eq!(error.exit_code(), exit_codes::MISSING, "{error}");
    assert!(error.to_report().next_step.contains("ulimit -n"), "{error}");
}

#[test]
fn sleeping_calls_do_not_go_with_fewer_threads() {
    let server = TestServer::start();
    let mut plan = plan(&server, TransportProtocol::Tcp, 4);
    plan.threads = Some(PerEnd {
        client: 4,
        server: 2,
    });
    plan.wait = Some(PerEnd::same(WaitMode::Block));
    let error = try_run(plan).unwrap_err();
    assert_eq!(error.exit_code(), exit_codes::MISSING, "{error}");
    assert!(
        error.to_report().situation.contains("serves only one"),
        "{error}"
    );
}

#[test]
fn sockets_in_descriptor_tables_of_threads_are_closed() {
    // Other tests of this process open files too.
    if std::env::var_os("LINERATE_TEST_ALONE").is_none() {
        let name = "scale::sockets_in_descriptor_tables_of_threads_are_closed";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env("LINERATE_TEST_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let server = TestServer::start();
    let open = || linerate_sys::fd_table::count_open_files().unwrap_or(0);
    run(plan(&server, TransportProtocol::Udp, 2));
    let before = open();
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        for wait in [WaitMode::Block, WaitMode::Spin, WaitMode::Epoll] {
            let mut plan = plan(&server, protocol, 2);
            plan.payload_bytes = 1_000;
            plan.duration_ns = Some(60_000_000);
            plan.wait = Some(PerEnd::same(wait));
            run(plan);
        }
    }
    // Sessions end a moment after their clients.
    let until = Instant::now() + Duration::from_secs(10);
    while open() > before + 4 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(open() <= before + 4, "{} files, {before} before", open());
}
