//! Single rules applied to records of the bank with a few values changed.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::record::Record;
use serde_json::{Value, json};

use super::{made_record, put_at_pointer, read_documents};

/// Values by JSON pointer.
pub(super) type Changes<'a> = &'a [(&'a str, Value)];

/// Recorded records and the cases made from them, by name; read once for all tests.
static BANK: LazyLock<[BTreeMap<String, Value>; 2]> = LazyLock::new(|| {
    let recorded = read_documents("recorded").into_iter();
    let recorded = recorded.map(|(name, document)| (name, document["record"].clone()));
    [
        recorded.collect(),
        read_documents("made").into_iter().collect(),
    ]
});

/// Returns a record of the bank by name, with changes.
pub(super) fn changed(name: &str, changes: Changes<'_>) -> Record {
    let [recorded, cases] = &*BANK;
    let mut record = match recorded.get(name) {
        Some(record) => record.clone(),
        None => made_record(name, &cases[name], recorded),
    };
    for (pointer, value) in changes {
        put_at_pointer(&mut record, pointer, value.clone());
    }
    serde_json::from_value(record).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(super) fn explained(name: &str, changes: Changes<'_>) -> Vec<Finding> {
    linerate_explain::explain(&changed(name, changes))
}

/// Returns the finding of a rule, if there is one.
pub(super) fn finding_of(cause: &str, name: &str, changes: Changes<'_>) -> Option<Finding> {
    let found = explained(name, changes).into_iter();
    found
        .into_iter()
        .find(|found| found.cause.as_str() == cause)
}

/// Returns the value of a finding's evidence by counter name.
pub(super) fn reading(found: &Finding, name: &str) -> Option<Value> {
    let seen = found.evidence.iter().find(|seen| seen.counter == name)?;
    Some(serde_json::to_value(&seen.value).expect("JSON"))
}

/// Returns the command of a finding that must exist.
pub(super) fn command(cause: &str, name: &str, changes: Changes<'_>) -> String {
    let found = finding_of(cause, name, changes);
    let found = found.unwrap_or_else(|| panic!("{name}: no {cause}"));
    found.command.unwrap_or_default()
}

/// A longer ring does not repair a cable that corrupts frames.
#[test]
fn frames_that_arrive_broken_are_no_short_ring() {
    for (counter, first, command_has) in [
        (
            "rx_missed",
            "too-few-descriptors",
            "ethtool -G enp3s0 rx 4096",
        ),
        ("rx_errors", "nic-drop", "ethtool -S enp3s0"),
    ] {
        let changes = [("/counters/0/counter", json!(counter))];
        let found = explained("too-few-descriptors-nic", &changes);
        assert_eq!(found[0].cause.as_str(), first, "{counter}");
        let command = found[0].command.as_deref().unwrap_or_default();
        assert!(command.contains(command_has), "{counter}: {command}");
        let ring = found
            .iter()
            .any(|found| found.cause == CauseId::TooFewDescriptors);
        assert_eq!(ring, counter == "rx_missed", "{counter}");
        let cable = found.iter().any(|found| found.remedy.contains("cable"));
        assert_eq!(cable, counter == "rx_errors", "{counter}");
    }
    // Corrupted frames of a stream are visible.
    let changes = [("/counters/0/counter", json!("rx_errors"))];
    assert!(finding_of("nic-drop", "nic-drop-tcp", &changes).is_some());
    assert!(finding_of("path-loss", "nic-drop-tcp", &changes).is_none());
}

/// Below `mq` every queue has a discipline of its own.
#[test]
fn mq_may_have_fq_below() {
    for (root, default, is_reported) in [
        ("noqueue", "fq", true),
        ("fq", "fq_codel", false),
        ("mq", "fq", false),
        ("mq", "fq_codel", true),
        ("mq", "pfifo_fast", true),
    ] {
        let changes = [
            ("/hosts/0/interface/qdisc", json!(root)),
            ("/hosts/0/sysctls/net.core.default_qdisc", json!(default)),
        ];
        let found = finding_of("congestion-control", "congestion-control-bbr", &changes);
        assert_eq!(found.is_some(), is_reported, "{root} over {default}");
    }
    // The disciplines below are unknown.
    let mut record = changed(
        "congestion-control-bbr",
        &[("/hosts/0/interface/qdisc", json!("mq"))],
    );
    record.hosts[0].sysctls.clear();
    let found = linerate_explain::explain(&record);
    assert!(
        found
            .iter()
            .all(|found| found.cause != CauseId::CongestionControl)
    );
}

/// Recorded disciplines of the queues win over the default.
#[test]
fn the_device_below_a_queue_discipline_is_known() {
    let below = |kinds: &[&str]| {
        let children = kinds.iter().map(|kind| json!({ "kind": kind, "count": 2 }));
        Value::from_iter(children)
    };
    for (root, children, default, is_reported) in [
        ("mq", &["fq"][..], "fq_codel", false),
        ("mq", &["fq", "pfifo_fast"], "pfifo_fast", false),
        ("mq", &["fq_codel"], "fq", true),
        ("mq", &["pfifo_fast"], "pfifo_fast", true),
        ("htb", &["fq"], "pfifo_fast", false),
        ("htb", &["pfifo"], "fq", true),
    ] {
        let changes = [
            ("/hosts/0/interface/qdisc", json!(root)),
            ("/hosts/0/interface/qdisc_children", below(children)),
            ("/hosts/0/sysctls/net.core.default_qdisc", json!(default)),
        ];
        let found = finding_of("congestion-control", "congestion-control-bbr", &changes);
        assert_eq!(found.is_some(), is_reported, "{root} over {children:?}");
        let evidence = found.map(|found| found.evidence).unwrap_or_default();
        let seen = evidence
            .iter()
            .any(|seen| seen.counter == "qdisc, below it");
        assert_eq!(seen, is_reported, "{root} over {children:?}: {evidence:?}");
    }
}

/// Below `mq` every queue has a rate of its own: one flow uses one of them.
#[test]
fn queues_below_mq_hold_to_their_rates() {
    let bucket = |count: u32, rate: u64| json!({ "kind": "tbf", "count": count, "rate_bps": rate, "burst_bytes": 32_768 });
    let record = changed("shaped-link-tcp", &[]);
    let rate = record.hosts[0]
        .interface
        .as_ref()
        .and_then(|interface| interface.qdisc_rate_bps);
    let rate = rate.expect("it is shaped");
    for (children, flows, expected_rate) in [
        (json!([bucket(4, rate)]), 1, Some(rate)),
        (json!([bucket(2, rate / 2)]), 2, Some(rate)),
        // One of the two, and it is unknown which.
        (json!([bucket(1, rate), bucket(3, rate * 9)]), 1, None),
        (
            json!([bucket(1, rate), { "kind": "pfifo_fast", "count": 1 }]),
            1,
            None,
        ),
    ] {
        let mut record = changed(
            "shaped-link-tcp",
            &[
                ("/hosts/0/interface/qdisc", json!("mq")),
                ("/hosts/0/interface/qdisc_rate_bps", Value::Null),
                ("/hosts/0/interface/qdisc_burst_bytes", Value::Null),
                ("/hosts/0/interface/qdisc_children", children.clone()),
            ],
        );
        record
            .counters
            .retain(|found| !found.counter.starts_with("qdisc_"));
        let stream = record.directions[0].streams[0].clone();
        record.directions[0].streams.resize(flows, stream);
        let found = linerate_explain::explain(&record);
        let found = found
            .iter()
            .find(|found| found.cause == CauseId::ShapedLink);
        let seen = found.and_then(|found| reading(found, "rate"));
        assert_eq!(
            seen,
            expected_rate.map(|rate| json!(rate)),
            "{children}: {found:#?}"
        );
    }
}

/// A token bucket towards the client limits nothing that goes to the server.
#[test]
fn a_rate_on_the_path_counts_for_the_direction_that_leaves_there() {
    let at = |interface: &str, rate: u64| json!({ "host": "s1", "interface": interface, "counter": "qdisc_rate_bps", "before": rate, "after": rate });
    for (name, towards_client, towards_server, is_reported) in [
        ("shaped-link-switch", 0, 1, true),
        ("shaped-link-switch", 1, 0, false),
        ("shaped-link-back", 1, 0, true),
        ("shaped-link-back", 0, 1, false),
    ] {
        let mut record = changed(name, &[]);
        let goodput_bps = record.directions[0].summary.goodput_bps.expect("it moved");
        let rate = (goodput_bps * 1.06) as u64;
        let counters = json!([
            at("port1", towards_client * rate),
            at("port2", towards_server * rate)
        ]);
        record.counters = serde_json::from_value(counters).expect("counters");
        for host in &mut record.hosts {
            let interface = host.interface.as_mut().expect("an interface");
            interface.qdisc_rate_bps = None;
        }
        let found = linerate_explain::explain(&record);
        let found = found
            .iter()
            .find(|found| found.cause == CauseId::ShapedLink);
        let rate_is_reported = found.and_then(|found| reading(found, "rate")) == Some(json!(rate));
        assert_eq!(
            rate_is_reported, is_reported,
            "{name} {towards_client} {towards_server}: {found:#?}"
        );
    }
}

/// IPv6 needs 20 more bytes a packet, and 8 more a fragment.
#[test]
fn headers_are_those_of_the_family() {
    for (host, payload, fragments, l2) in [
        ("10.77.0.2", 1472, 1.0, 1514.0 / 1472.0),
        ("10.77.0.2", 1473, 2.0, (1473.0 + 8.0 + 2.0 * 34.0) / 1473.0),
        ("fd77::2", 1452, 1.0, 1514.0 / 1452.0),
        ("fd77::2", 1453, 2.0, (1453.0 + 8.0 + 2.0 * 62.0) / 1453.0),
        ("::ffff:10.77.0.2", 1472, 1.0, 1514.0 / 1472.0),
        ("fe80::1%eth0", 1452, 1.0, 1514.0 / 1452.0),
        // All fragments but the last hold 1480 bytes, with IPv6 1448; the last one may hold 1452.
        ("10.77.0.2", 14_792, 10.0, (14_800.0 + 340.0) / 14_792.0),
        ("10.77.0.2", 14_793, 11.0, (14_801.0 + 374.0) / 14_793.0),
        ("fd77::2", 14_476, 10.0, (14_484.0 + 620.0) / 14_476.0),
        ("fd77::2", 14_477, 11.0, (14_485.0 + 682.0) / 14_477.0),
    ] {
        let mut record = changed(
            "healthy-udp-paced",
            &[
                ("/plan/host", json!(host)),
                ("/plan/payload_bytes", json!(payload)),
            ],
        );
        let direction = &mut record.directions[0];
        direction.streams.clear();
        direction.summary.goodput_bps = Some(1e6);
        let run = linerate_explain::run_view::RunView::new(&record);
        let direction_view = &run.directions[0];
        assert_eq!(
            direction_view.fragments(),
            fragments,
            "{payload} B to {host}"
        );
        let found = direction_view.l2_bps().expect("a rate") / 1e6;
        assert!(
            (found - l2).abs() < 1e-9,
            "{payload} B to {host}: {found} for {l2}"
        );
    }
    // The addresses of the flows win over the requested host.
    let mut record = changed("healthy-tcp-ipv6", &[("/plan/host", json!("server"))]);
    assert!(linerate_explain::run_view::RunView::new(&record).directions[0].is_ipv6());
    record.directions[0].streams.clear();
    assert!(!linerate_explain::run_view::RunView::new(&record).directions[0].is_ipv6());
}

/// A rate that was reached needed no other processor for the kernel's work.
#[test]
fn interrupts_at_a_reached_rate_cost_nothing() {
    for (error, is_reported) in [(-0.25, true), (-0.05, true), (-0.01, false), (0.0, false)] {
        let changes = [("/directions/0/rate_error", json!(error))];
        let found = finding_of("softirq-core", "softirq-core-client", &changes);
        assert_eq!(found.is_some(), is_reported, "{error}");
    }
}

/// 16 times 40 ms of one second, with full buffers between them that waited for nothing.
#[test]
fn timers_of_acknowledgements_take_their_time_whatever_comes_between() {
    for (delayed, goodput, is_reported) in [(16, 14e6, true), (2, 14e6, false), (16, 3e9, false)] {
        let mut record = changed(
            "delayed-ack-own-stack",
            &[
                ("/directions/0/goodput_bps", json!(goodput)),
                ("/directions/0/duration_ns", json!(1_000_000_000)),
                (
                    "/directions/0/streams/0/sender/send_buffer_bytes",
                    json!(2_048),
                ),
            ],
        );
        record
            .counters
            .retain(|found| found.counter != "delayed_acks");
        let counter = json!({ "host": "server", "counter": "delayed_acks", "before": 3, "after": 3 + delayed });
        record
            .counters
            .push(serde_json::from_value(counter).expect("a counter"));
        let found = linerate_explain::explain(&record);
        let found = found
            .iter()
            .find(|found| found.cause == CauseId::DelayedAck);
        assert_eq!(
            found.is_some(),
            is_reported,
            "{delayed} {goodput}: {found:#?}"
        );
        if let Some(found) = found {
            assert!((found.cost - 0.64).abs() < 0.01, "{}", found.cost);
            // With Nagle's algorithm off the rate was 1.44 Gb/s.
            assert!(
                found.gain.is_some_and(|gain| gain > 100.0),
                "{:?}",
                found.gain
            );
        }
    }
}

/// A spinning real-time thread may be throttled; the record must show that it was.
#[test]
fn a_throttle_that_never_struck_is_no_cause() {
    let stream = |waited_ns: u64| {
        [
            (
                "/hosts/0/sysctls/kernel.sched_rt_runtime_us",
                json!("950000"),
            ),
            ("/plan/sched/near", json!("fifo:50")),
            ("/plan/wait/near", json!("spin")),
            ("/summary/cpu/0/threads/0/wall_ns", json!(1_000_000_000)),
            ("/summary/cpu/0/threads/0/cpu_ns", json!(900_000_000)),
            ("/summary/cpu/0/threads/0/blocked_ns", json!(1_000_000)),
            ("/summary/cpu/0/threads/0/runnable_ns", json!(waited_ns)),
            ("/summary/cpu/0/threads/0/voluntary_switches", json!(0)),
        ]
    };
    for (waited_ns, reported) in [(0, false), (20_000_000, false), (50_000_000, true)] {
        let found = finding_of("rt-throttle", "healthy-tcp-send", &stream(waited_ns));
        assert_eq!(found.is_some(), reported, "{waited_ns} ns");
    }
    for (max_ns, reported) in [(400_000, false), (48_000_000, true)] {
        let changes = [("/summary/rtt_ns/max", json!(max_ns))];
        let found = finding_of("rt-throttle", "rt-throttle-client", &changes);
        assert_eq!(found.is_some(), reported, "{max_ns} ns");
    }
    // The other end keeps its wait mode, where an option value exists for it.
    for (server_wait, expected) in [
        (json!("spin"), "--wait block/spin"),
        (json!("epoll"), "--wait block/epoll"),
        (json!("interval:100us"), "--wait block/block"),
    ] {
        let reported = command(
            "rt-throttle",
            "rt-throttle-client",
            &[("/plan/wait/far", server_wait)],
        );
        assert!(reported.contains(expected), "{reported}");
    }
    // The user-space stack has no call that sleeps.
    let netstack = [("/plan/stack/near", json!("linerate"))];
    let reported = command("rt-throttle", "rt-throttle-client", &netstack);
    assert!(reported.contains("--set poll.interval=125us"), "{reported}");
    assert!(!reported.contains("--wait"), "{reported}");
}

/// Half duplex is reported without a known speed, promises no unknown gain, and does not harm a
/// rate that was reached.
#[test]
fn half_duplex_is_no_slow_device() {
    let unknown_speed = [
        ("/hosts/0/interface/speed_bps", Value::Null),
        ("/hosts/0/interface/fastest_bps", Value::Null),
        ("/hosts/1/interface/fastest_bps", Value::Null),
    ];
    let found = finding_of("link-speed", "link-speed-half", &unknown_speed).expect("a finding");
    assert!(found.summary.contains("half duplex"), "{}", found.summary);
    assert!(!found.summary.contains("supports"), "{}", found.summary);
    assert_eq!(found.gain, None);
    let faster = finding_of("link-speed", "link-speed-cable", &[]).expect("a finding");
    assert!(
        faster.summary.contains("supports 1.00 Gb/s"),
        "{}",
        faster.summary
    );
    assert_eq!(faster.gain, Some(10.0));
    let rate_reached = [
        ("/plan/rate_bps", json!(40_000_000)),
        ("/directions/0/rate_error", json!(0.0)),
    ];
    assert_eq!(
        finding_of("link-speed", "link-speed-half", &rate_reached),
        None
    );
}

/// The priority is raised, and the other end's is kept.
#[test]
fn a_priority_is_raised() {
    for (client, server, expected) in [
        ("inherited", "fifo:20", Some("--sched fifo:50/fifo:20")),
        ("fifo:50", "inherited", Some("--sched fifo:90/inherited")),
        ("fifo:95", "rr:10", Some("--sched fifo:96/rr:10")),
        ("fifo:99", "inherited", None),
    ] {
        let changes = [
            ("/plan/sched/near", json!(client)),
            ("/plan/sched/far", json!(server)),
            ("/hosts/0/cpu/usable", json!(8)),
        ];
        let advice = command("scheduling-delay", "scheduling-delay-hogs", &changes);
        match expected {
            Some(expected) => assert!(advice.ends_with(expected), "{client} {server}: {advice}"),
            None => assert!(!advice.contains("--sched"), "{client} {server}: {advice}"),
        }
    }
}

/// A run that reached its requested rate lacked neither time nor frequency.
#[test]
fn a_rate_that_was_kept_was_not_stolen() {
    for (cause, name) in [
        ("steal", "steal-throughput"),
        ("cpu-frequency", "cpu-frequency-sender"),
    ] {
        let rate_reached = [
            ("/plan/rate_bps", json!(1_000_000_000_u64)),
            ("/directions/0/rate_error", json!(0.0)),
        ];
        assert!(finding_of(cause, name, &[]).is_some(), "{cause}");
        assert_eq!(finding_of(cause, name, &rate_reached), None, "{cause}");
        // When one burst is most of the run, the rate error is unknown.
        let caveat = json!([{ "doubt": "rate-too-coarse", "why": "one datagram takes 8 s" }]);
        let coarse = [
            ("/plan/rate_bps", json!(1_000)),
            ("/directions/0/rate_error", Value::Null),
            ("/validity", caveat),
        ];
        assert!(finding_of(cause, name, &coarse[..2]).is_some(), "{cause}");
        assert_eq!(finding_of(cause, name, &coarse), None, "{cause}");
    }
}

/// Complete delivery shows nothing when one burst exceeds the rate.
#[test]
fn a_rate_that_one_burst_fills_is_no_limit() {
    let (cause, name) = ("slow-sender-application", "slow-sender-asked-udp");
    let caveat = json!([{ "doubt": "rate-too-coarse", "why": "one datagram takes 8 s" }]);
    assert!(finding_of(cause, name, &[]).is_some());
    assert_eq!(finding_of(cause, name, &[("/validity", caveat)]), None);
}

/// One in a hundred is lost at random, and the payload is sent in bursts.
#[test]
fn random_loss_comes_before_the_bursts() {
    let at = |place: &'static str| {
        [
            ("/losses/0/place", json!(place)),
            ("/plan/pace/burst", json!({ "payloads": 64 })),
        ]
    };
    for (place, first) in [("path", "path-loss"), ("qdisc", "burst-size")] {
        let found = explained("path-loss-udp", &at(place));
        assert_eq!(found[0].cause.as_str(), first, "{place}: {found:#?}");
        let bursts = found.iter().find(|found| found.cause == CauseId::BurstSize);
        assert!(bursts.is_some(), "{place}");
    }
}

/// A router's queue towards the server drops nothing of the reverse direction.
#[test]
fn drops_at_a_router_count_for_the_direction_that_leaves_there() {
    let at = |interface: &str, drops: u64| json!({ "host": "s1", "interface": interface, "counter": "qdisc_drops", "before": 0, "after": drops });
    for (name, towards_client, towards_server, is_reported) in [
        ("qdisc-drop-back", 200, 0, true),
        ("qdisc-drop-back", 0, 200, false),
        ("qdisc-drop-short-queue", 0, 200, true),
        ("qdisc-drop-short-queue", 200, 0, false),
    ] {
        let counters = json!([at("port1", towards_client), at("port2", towards_server)]);
        let changes = [
            ("/counters", counters),
            ("/losses", json!([])),
            ("/directions/0/retransmits", json!(200)),
        ];
        let found = finding_of("qdisc-drop", name, &changes);
        assert_eq!(
            found.is_some(),
            is_reported,
            "{name} {towards_client} {towards_server}"
        );
    }
}

/// Over a long path a spinning receiver is runnable half of the time, at no cost for the stream.
#[test]
fn a_receiver_that_waits_for_the_path_waits_for_no_core() {
    let found = explained("path-loss-narrow-back", &[]);
    let causes: Vec<_> = found.iter().map(|found| found.cause.as_str()).collect();
    assert_eq!(causes, ["path-loss"]);
    // A late acknowledgement may have waited for a thread.
    let changes: Vec<(String, Value)> = (0..4)
        .map(|at| (format!("/intervals/{at}/tcp/rtt_ns"), json!(200_000_000)))
        .collect();
    let changes: Vec<(&str, Value)> = (changes.iter())
        .map(|(pointer, value)| (pointer.as_str(), value.clone()))
        .collect();
    assert!(finding_of("scheduling-delay", "path-loss-narrow-back", &changes).is_some());
    // Nor does a window limit a sender that uses a quarter of it.
    let mut record = changed("path-loss-narrow-back", &[]);
    let intervals = record.intervals.iter_mut();
    intervals
        .filter_map(|interval| interval.tcp.as_mut())
        .for_each(|tcp| tcp.cwnd_bytes *= 4);
    let found = linerate_explain::explain(&record);
    let waited = found
        .iter()
        .any(|found| found.cause == CauseId::SchedulingDelay);
    assert!(waited, "{found:?}");
    // A few losses at one time are an accident.
    let mut record = changed("path-loss-narrow-back", &[]);
    for interval in record.intervals.iter_mut().skip(1) {
        interval.tcp.as_mut().expect("TCP_INFO").retransmits = 0;
    }
    record.directions[0].summary.retransmits = Some(4);
    let found = linerate_explain::explain(&record);
    assert!(found.iter().all(|found| found.cause != CauseId::PathLoss));
}

/// A thread that polls without result is runnable as long as one that works.
#[test]
fn waiting_in_line_is_no_work_that_an_offload_would_spare() {
    for (working, waiting, is_reported) in
        [(0.9, 0.05, true), (0.3, 0.65, true), (0.02, 0.9, false)]
    {
        let mut record = changed("offload-off-tso", &[]);
        set_thread_times(&mut record, working, waiting);
        let found = linerate_explain::explain(&record);
        let has_finding = found.iter().any(|found| found.cause == CauseId::OffloadOff);
        assert_eq!(has_finding, is_reported, "{working} {waiting}: {found:?}");
    }
}

/// Sets the fractions of time that all threads of a record work and wait; they sleep for the rest.
fn set_thread_times(record: &mut Record, working: f64, waiting: f64) {
    let directions = record.directions[0].summary.cpu.iter_mut();
    for cost in directions.chain(&mut record.summary.cpu) {
        for thread in &mut cost.threads {
            let share = |share: f64| (thread.wall_ns as f64 * share) as u64;
            (thread.cpu_ns, thread.runnable_ns) = (share(working), Some(share(waiting)));
            thread.blocked_ns = Some(share(1.0 - working - waiting));
            (thread.voluntary_switches, thread.empty_calls) = (0, Some(0));
        }
    }
}

/// An end that sleeps while others use the peer's processor does not wait for a timer of bbr.
#[test]
fn no_congestion_control_is_slow_where_others_have_the_processors() {
    let none_needless = [("/directions/0/retransmits", json!(0))];
    for (working, waiting, is_reported) in [
        (0.5, 0.1, true),
        (0.4, 0.28, true),
        (0.4, 0.32, false),
        (0.32, 0.48, false),
    ] {
        let mut record = changed("congestion-control-bbr", &none_needless);
        set_thread_times(&mut record, working, waiting);
        let found = linerate_explain::explain(&record);
        let is_named = found
            .iter()
            .any(|found| found.cause == CauseId::CongestionControl);
        assert_eq!(is_named, is_reported, "{working} {waiting}: {found:#?}");
    }
}

/// An end that works for most of its time, but not all, does not limit a stream whose full
/// congestion window waits for a long path.
#[test]
fn an_offload_holds_a_stream_over_a_long_path_where_an_end_has_no_time_left() {
    for (working, waiting, rtt_ns, is_reported) in [
        (0.86, 0.0, 20_000_000, true),
        (0.84, 0.0, 20_000_000, false),
        // Runnable time is no work, and no spare time either.
        (0.52, 0.4, 20_000_000, true),
        (0.49, 0.4, 20_000_000, false),
        (0.52, 0.32, 20_000_000, false),
        // Without such a path an end that works that much is the limit.
        (0.84, 0.0, 600_000, true),
    ] {
        let mut record = changed("offload-off-tso", &[]);
        set_thread_times(&mut record, working, waiting);
        let rate = record.directions[0]
            .summary
            .goodput_bps
            .expect("it was measured");
        let intervals = record.intervals.iter_mut();
        for tcp in intervals.filter_map(|interval| interval.tcp.as_mut()) {
            (tcp.rtt_ns, tcp.min_rtt_ns) = (rtt_ns, Some(rtt_ns));
            tcp.cwnd_bytes = (rate / 8e9 * rtt_ns as f64) as u64;
            (tcp.busy, tcp.receive_window_limited) = (Some(1.0), Some(0.0));
            (tcp.retransmits, tcp.reordering_seen) = (0, Some(0));
        }
        let found = linerate_explain::explain(&record);
        let has_finding = found.iter().any(|found| found.cause == CauseId::OffloadOff);
        assert_eq!(
            has_finding, is_reported,
            "{working} {waiting} {rtt_ns}: {found:?}"
        );
    }
}

/// A request of 4 KB through the user-space stack's buffer of 1 KiB waits for acknowledgements, not
/// for the path.
#[test]
fn a_request_in_parts_gets_the_buffer_finding() {
    let command = command("delayed-ack", "delayed-ack-question-in-parts", &[]);
    assert!(command.contains("--set tcp.send_buffer=64K"), "{command}");
    assert!(finding_of("path-delay", "delayed-ack-question-in-parts", &[]).is_none());
    // Several of the four parts wait for the timer.
    for (p50_ms, is_reported) in [(20, false), (88, true), (130, true), (250, false)] {
        let changes = [("/summary/rtt_ns/p50", json!(p50_ms * 1_000_000))];
        let found = finding_of("delayed-ack", "delayed-ack-question-in-parts", &changes);
        assert_eq!(found.is_some(), is_reported, "{p50_ms}");
    }
}

/// Acknowledgements that fill the reverse direction limit a stream only when they wait in a queue:
/// a stream at the full rate fills it as well.
#[test]
fn acknowledgements_limit_where_they_wait() {
    let name = "asymmetric-path-answers";
    let found = finding_of("asymmetric-path", name, &[]).expect("a finding");
    assert!(found.cost > 0.8, "{found:?}");
    let mut record = changed(name, &[]);
    let reported = record.intervals.iter_mut();
    for tcp in reported.filter_map(|interval| interval.tcp.as_mut()) {
        tcp.rtt_ns = tcp.min_rtt_ns.unwrap_or(5_000) + 200_000;
    }
    let found = linerate_explain::explain(&record);
    let reported = found
        .iter()
        .any(|found| found.cause == CauseId::AsymmetricPath);
    assert!(!reported, "{found:?}");
    // The acknowledgements cannot have passed a rate that they exceed.
    let record = changed(name, &[]);
    let interface = record.hosts[1].interface.as_ref().expect("it is known");
    let rate = interface.qdisc_rate_bps.expect("it is held to one");
    let slower = [("/hosts/1/interface/qdisc_rate_bps", json!(rate * 3 / 4))];
    assert!(finding_of("asymmetric-path", name, &slower).is_none());
}
