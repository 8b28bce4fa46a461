//! What single rules say of records of the bank in which a thing or two is another.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use linerate_metric::finding::Finding;
use linerate_metric::record::Record;
use serde_json::{Value, json};

use super::{documents, made, put};

/// Values at JSON pointers.
pub(super) type Changes<'a> = &'a [(&'a str, Value)];

/// The recorded records and the cases made from them, by name: read once for all tests.
static BANK: LazyLock<[BTreeMap<String, Value>; 2]> = LazyLock::new(|| {
    let recorded = documents("recorded").into_iter();
    let recorded = recorded.map(|(name, document)| (name, document["record"].clone()));
    [recorded.collect(), documents("made").into_iter().collect()]
});

/// A record of the bank by its name, changed.
pub(super) fn changed(name: &str, changes: Changes<'_>) -> Record {
    let [recorded, cases] = &*BANK;
    let mut record = match recorded.get(name) {
        Some(record) => record.clone(),
        None => made(name, &cases[name], recorded),
    };
    for (pointer, value) in changes {
        put(&mut record, pointer, value.clone());
    }
    serde_json::from_value(record).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(super) fn explained(name: &str, changes: Changes<'_>) -> Vec<Finding> {
    linerate_explain::explain(&changed(name, changes))
}

/// The finding of a rule, if there is one.
pub(super) fn of(cause: &str, name: &str, changes: Changes<'_>) -> Option<Finding> {
    let found = explained(name, changes).into_iter();
    found.into_iter().find(|found| found.cause == cause)
}

/// What a finding's evidence has under a name.
pub(super) fn reading(found: &Finding, name: &str) -> Option<Value> {
    let seen = found.evidence.iter().find(|seen| seen.counter == name)?;
    Some(serde_json::to_value(&seen.value).expect("JSON"))
}

/// The command of a finding that has to be there.
pub(super) fn command(cause: &str, name: &str, changes: Changes<'_>) -> String {
    let found = of(cause, name, changes);
    let found = found.unwrap_or_else(|| panic!("{name}: no {cause}"));
    found.command.unwrap_or_default()
}

/// A cable that breaks frames is mended by no longer ring.
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
        assert_eq!(found[0].cause, first, "{counter}");
        let command = found[0].command.as_deref().unwrap_or_default();
        assert!(command.contains(command_has), "{counter}: {command}");
        let ring = found
            .iter()
            .any(|found| found.cause == "too-few-descriptors");
        assert_eq!(ring, counter == "rx_missed", "{counter}");
        let cable = found.iter().any(|found| found.remedy.contains("cable"));
        assert_eq!(cable, counter == "rx_errors", "{counter}");
    }
    // What a cable breaks of a stream is in view.
    let changes = [("/counters/0/counter", json!("rx_errors"))];
    assert!(of("nic-drop", "nic-drop-tcp", &changes).is_some());
    assert!(of("path-loss", "nic-drop-tcp", &changes).is_none());
}

/// A queue each has its own discipline below `mq`.
#[test]
fn mq_may_have_fq_below() {
    for (root, default, told) in [
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
        let found = of("congestion-control", "congestion-control-bbr", &changes);
        assert_eq!(found.is_some(), told, "{root} over {default}");
    }
    // Nobody told what is below.
    let mut record = changed(
        "congestion-control-bbr",
        &[("/hosts/0/interface/qdisc", json!("mq"))],
    );
    record.hosts[0].sysctls.clear();
    let found = linerate_explain::explain(&record);
    assert!(
        found
            .iter()
            .all(|found| found.cause != "congestion-control")
    );
}

/// What a record tells of the queues' own disciplines goes before what they are by default.
#[test]
fn what_is_below_a_discipline_is_known() {
    let below = |kinds: &[&str]| {
        let children = kinds.iter().map(|kind| json!({ "kind": kind, "count": 2 }));
        Value::from_iter(children)
    };
    for (root, children, default, told) in [
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
        let found = of("congestion-control", "congestion-control-bbr", &changes);
        assert_eq!(found.is_some(), told, "{root} over {children:?}");
        let evidence = found.map(|found| found.evidence).unwrap_or_default();
        let seen = evidence
            .iter()
            .any(|seen| seen.counter == "qdisc, below it");
        assert_eq!(seen, told, "{root} over {children:?}: {evidence:?}");
    }
}

/// Below `mq` each queue has a rate of its own: one flow takes one of them.
#[test]
fn queues_below_mq_hold_to_their_rates() {
    let bucket = |count: u32, rate: u64| json!({ "kind": "tbf", "count": count, "rate_bps": rate, "burst_bytes": 32_768 });
    let record = changed("shaped-link-tcp", &[]);
    let rate = record.hosts[0]
        .interface
        .as_ref()
        .and_then(|own| own.qdisc_rate_bps);
    let rate = rate.expect("it is shaped");
    for (children, flows, told) in [
        (json!([bucket(4, rate)]), 1, Some(rate)),
        (json!([bucket(2, rate / 2)]), 2, Some(rate)),
        // One of the two, and nobody knows which.
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
        let found = found.iter().find(|found| found.cause == "shaped-link");
        let seen = found.and_then(|found| reading(found, "rate"));
        assert_eq!(seen, told.map(|rate| json!(rate)), "{children}: {found:#?}");
    }
}

/// A token bucket towards the client holds nothing that goes to the server.
#[test]
fn a_rate_on_the_way_is_of_the_direction_that_leaves_there() {
    let at = |interface: &str, rate: u64| json!({ "host": "s1", "interface": interface, "counter": "qdisc_rate_bps", "before": rate, "after": rate });
    for (name, near, far, told) in [
        ("shaped-link-switch", 0, 1, true),
        ("shaped-link-switch", 1, 0, false),
        ("shaped-link-back", 1, 0, true),
        ("shaped-link-back", 0, 1, false),
    ] {
        let mut record = changed(name, &[]);
        let moved = record.directions[0].summary.goodput_bps.expect("it moved");
        let rate = (moved * 1.06) as u64;
        let counters = json!([at("port1", near * rate), at("port2", far * rate)]);
        record.counters = serde_json::from_value(counters).expect("counters");
        for host in &mut record.hosts {
            let interface = host.interface.as_mut().expect("an interface");
            interface.qdisc_rate_bps = None;
        }
        let found = linerate_explain::explain(&record);
        let found = found.iter().find(|found| found.cause == "shaped-link");
        let told_rate = found.and_then(|found| reading(found, "rate")) == Some(json!(rate));
        assert_eq!(told_rate, told, "{name} {near} {far}: {found:#?}");
    }
}

/// IPv6 takes 20 bytes more of each packet, and 8 of each fragment.
#[test]
fn headers_are_those_of_the_family() {
    for (host, payload, fragments, l2) in [
        ("10.77.0.2", 1472, 1.0, 1514.0 / 1472.0),
        ("10.77.0.2", 1473, 2.0, (1473.0 + 8.0 + 2.0 * 34.0) / 1473.0),
        ("fd77::2", 1452, 1.0, 1514.0 / 1452.0),
        ("fd77::2", 1453, 2.0, (1453.0 + 8.0 + 2.0 * 62.0) / 1453.0),
        ("::ffff:10.77.0.2", 1472, 1.0, 1514.0 / 1472.0),
        ("fe80::1%eth0", 1452, 1.0, 1514.0 / 1452.0),
        // Fragments but the last hold 1480 bytes, of IPv6 1448; that may have 1452.
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
        let case = linerate_explain::case::Case::new(&record);
        let way = &case.ways[0];
        assert_eq!(way.fragments(), fragments, "{payload} B to {host}");
        let found = way.l2_bps().expect("a rate") / 1e6;
        assert!(
            (found - l2).abs() < 1e-9,
            "{payload} B to {host}: {found} for {l2}"
        );
    }
    // The sockets of the flows go before what was asked for.
    let mut record = changed("healthy-tcp-ipv6", &[("/plan/host", json!("server"))]);
    assert!(linerate_explain::case::Case::new(&record).ways[0].is_ipv6());
    record.directions[0].streams.clear();
    assert!(!linerate_explain::case::Case::new(&record).ways[0].is_ipv6());
}

/// Packets of 512 KiB are worth twice those of 64 KiB, as measured.
#[test]
fn larger_packets_give_what_they_were_measured_to() {
    for (bytes, cost, gain, sizes) in [
        (
            65_536_u64,
            0.47,
            1.9,
            "gso_max_size 524280 gso_ipv4_max_size 524280 gro_ipv4_max_size 524280",
        ),
        // What every `ip` can set gets as far as the kernel's own limit.
        (16_384, 0.8, 2.6, "gso_max_size 65536"),
        (8_192, 0.89, 4.8, "gso_max_size 65536"),
    ] {
        let changes = [("/hosts/0/interface/gso_ipv4_max_bytes", json!(bytes))];
        let found = of("gso-size", "gso-size-16k", &changes).expect("it is told");
        assert!((found.cost - cost).abs() < 0.02, "{bytes}: {}", found.cost);
        let told = found.gain.expect("a gain");
        assert!((told / gain - 1.0).abs() < 0.05, "{bytes}: {told}");
        assert_eq!(found.is_cause(), bytes < 65_536, "{bytes}");
        let command = found.command.unwrap_or_default();
        let want = format!("ip link set dev eth0 {sizes}");
        assert_eq!(command, want, "{bytes}");
    }
}

/// A rate that was kept needed no other processor for the kernel's work.
#[test]
fn interrupts_beside_a_kept_rate_take_nothing() {
    for (error, told) in [(-0.25, true), (-0.05, true), (-0.01, false), (0.0, false)] {
        let changes = [("/directions/0/rate_error", json!(error))];
        let found = of("softirq-core", "softirq-core-client", &changes);
        assert_eq!(found.is_some(), told, "{error}");
    }
}

/// A window of our own stack that is used up is the limit, although its least round trip is a fraction of those at work.
#[test]
fn windows_of_our_own_stack_are_small_by_their_use() {
    // Window, goodput and share of the time waited for it, as measured over veth.
    for (window, goodput, limited, told) in [
        (1 << 10, 328e6, 0.28, true),
        (2 << 10, 801e6, 0.197, true),
        (4 << 10, 928e6, 0.28, true),
        (8 << 10, 1.8e9, 0.34, true),
        (16 << 10, 2.5e9, 0.44, true),
        (64 << 10, 3.8e9, 0.53, false),
        (256 << 10, 3.2e9, 0.02, false),
    ] {
        let mut record = changed("receive-window-own-stack", &[]);
        let direction = &mut record.directions[0];
        direction.summary.goodput_bps = Some(goodput);
        for stream in &mut direction.streams {
            let receiver = stream.receiver.as_mut().expect("a receiver");
            receiver.receive_buffer_bytes = Some(window);
        }
        for interval in &mut record.intervals {
            let tcp = interval.tcp.as_mut().expect("TCP_INFO");
            (tcp.min_rtt_ns, tcp.rtt_ns) = (Some(7_000), 20_000);
            tcp.receive_window_limited = Some(limited);
        }
        let found = linerate_explain::explain(&record);
        let found = found.iter().find(|found| found.cause == "receive-window");
        assert_eq!(found.is_some(), told, "{window}: {found:#?}");
    }
}

/// Our own stack tells no round-trip time: a buffer of few segments that goes round quickly is the limit.
#[test]
fn send_buffers_of_our_own_stack_are_small_by_their_rounds() {
    for (buffer, goodput, again, told) in [
        (1_u64 << 10, 864e6, 0, true),
        (3 << 10, 1.3e9, 0, true),
        (8 << 10, 2.2e9, 0, true),
        // A slow path, losses, and room for more than the receiver takes.
        (8 << 10, 90e6, 0, false),
        (8 << 10, 2.2e9, 2_000, false),
        (64 << 10, 3.2e9, 0, false),
    ] {
        let changes = [
            ("/directions/0/goodput_bps", json!(goodput)),
            (
                "/directions/0/streams/0/sender/send_buffer_bytes",
                json!(buffer),
            ),
            (
                "/hosts/0/stack/counters",
                json!({ "tcp": { "out_segments": 100_000, "retransmitted_segments": again } }),
            ),
        ];
        let found = of("send-buffer", "delayed-ack-own-stack", &changes);
        assert_eq!(found.is_some(), told, "{buffer} {goodput}: {found:#?}");
        if let Some(command) = found.and_then(|found| found.command) {
            assert!(command.contains("--set tcp.send_buffer=64K"), "{command}");
        }
    }
}

/// Over a longer path a bufferful takes a round trip of it, which the receiving kernel knows.
#[test]
fn send_buffers_of_our_own_stack_are_small_for_the_path() {
    for (buffer, goodput, path_ns, told) in [
        (1_u64 << 10, 1.31e6, json!(6_308_000), true),
        (64 << 10, 84e6, json!(6_308_000), true),
        // Something else takes most of the time, or nobody knows the path.
        (1 << 10, 0.4e6, json!(6_308_000), false),
        (1 << 10, 1.31e6, Value::Null, false),
        (1 << 10, 1.31e6, json!(40_000), false),
    ] {
        let state = json!({ "retransmits": 0, "cwnd_segments": 10, "mss_bytes": 1460, "path_mtu_bytes": 1500, "rtt_ns": 6_400_000, "rtt_variation_ns": 9_000, "min_rtt_ns": path_ns });
        let changes = [
            ("/directions/0/goodput_bps", json!(goodput)),
            (
                "/directions/0/streams/0/sender/send_buffer_bytes",
                json!(buffer),
            ),
            ("/directions/0/streams/0/receiver/tcp", state),
            (
                "/hosts/0/stack/counters",
                json!({ "tcp": { "out_segments": 900, "retransmitted_segments": 0 } }),
            ),
        ];
        let found = of("send-buffer", "delayed-ack-own-stack", &changes);
        assert_eq!(
            found.is_some(),
            told,
            "{buffer} {goodput} {path_ns}: {found:#?}"
        );
    }
}

/// A second of 40 ms each, with bufferfuls between them that nobody waited for.
#[test]
fn timers_of_acknowledgements_take_their_time_whatever_comes_between() {
    for (delayed, goodput, told) in [(16, 14e6, true), (2, 14e6, false), (16, 3e9, false)] {
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
        let found = found.iter().find(|found| found.cause == "delayed-ack");
        assert_eq!(found.is_some(), told, "{delayed} {goodput}: {found:#?}");
        if let Some(found) = found {
            assert!((found.cost - 0.64).abs() < 0.01, "{}", found.cost);
            // With Nagle's algorithm off it came to 1.44 Gb/s.
            assert!(
                found.gain.is_some_and(|gain| gain > 100.0),
                "{:?}",
                found.gain
            );
        }
    }
}

/// A real-time thread that spins may be taken off its processor; that it was has to show.
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
    for (waited_ns, told) in [(0, false), (20_000_000, false), (50_000_000, true)] {
        let found = of("rt-throttle", "healthy-tcp-send", &stream(waited_ns));
        assert_eq!(found.is_some(), told, "{waited_ns} ns");
    }
    for (max_ns, told) in [(400_000, false), (48_000_000, true)] {
        let changes = [("/summary/rtt_ns/max", json!(max_ns))];
        let found = of("rt-throttle", "rt-throttle-client", &changes);
        assert_eq!(found.is_some(), told, "{max_ns} ns");
    }
    // The other end waits as it did, where there is a word for it.
    for (far, want) in [
        (json!("spin"), "--wait block/spin"),
        (json!("epoll"), "--wait block/epoll"),
        (json!("interval:100us"), "--wait block/block"),
    ] {
        let told = command(
            "rt-throttle",
            "rt-throttle-client",
            &[("/plan/wait/far", far)],
        );
        assert!(told.contains(want), "{told}");
    }
    // Our own stack has no call that sleeps.
    let own = [("/plan/stack/near", json!("linerate"))];
    let told = command("rt-throttle", "rt-throttle-client", &own);
    assert!(told.contains("--set poll.interval=125us"), "{told}");
    assert!(!told.contains("--wait"), "{told}");
}

/// Half duplex is told where no mode is, promises nothing that nobody knows, and does no harm to a rate that was kept.
#[test]
fn half_duplex_is_no_slow_device() {
    let bare = [
        ("/hosts/0/interface/speed_bps", Value::Null),
        ("/hosts/0/interface/fastest_bps", Value::Null),
        ("/hosts/1/interface/fastest_bps", Value::Null),
    ];
    let found = of("link-speed", "link-speed-half", &bare).expect("it is told");
    assert!(
        found.what.contains("one direction at a time"),
        "{}",
        found.what
    );
    assert!(!found.what.contains("supports"), "{}", found.what);
    assert_eq!(found.gain, None);
    let faster = of("link-speed", "link-speed-cable", &[]).expect("it is told");
    assert!(
        faster.what.contains("supports 1.00 Gb/s"),
        "{}",
        faster.what
    );
    assert_eq!(faster.gain, Some(10.0));
    let kept = [
        ("/plan/rate_bps", json!(40_000_000)),
        ("/directions/0/rate_error", json!(0.0)),
    ];
    assert_eq!(of("link-speed", "link-speed-half", &kept), None);
}

/// What changes a host of a lab is typed for that host, with its interface.
#[test]
fn commands_name_the_interface_and_the_host() {
    let in_lab = json!({
        "command": "throughput",
        "through": ["linerate", "lab", "exec", "pair/client", "--"],
        "program": "linerate",
        "arguments": [{ "words": ["10.77.0.2"] }],
    });
    let several = |gso: u64| {
        [
            ("/command", in_lab.clone()),
            ("/plan/streams", json!(4)),
            ("/hosts/0/interface/gso_ipv4_max_bytes", json!(gso)),
        ]
    };
    let told = command(
        "receiver-cpu",
        "receiver-cpu-copies-alone",
        &several(65_536),
    );
    assert_eq!(
        told,
        "linerate lab exec pair/client -- ip link set dev eth0 gso_max_size 524280 gso_ipv4_max_size 524280 gro_ipv4_max_size 524280"
    );
    // As large as they can be they are no advice.
    let told = command(
        "receiver-cpu",
        "receiver-cpu-copies-alone",
        &several(524_280),
    );
    assert_eq!(told, "");
    let told = command(
        "link-speed",
        "link-speed-half",
        &[("/command", in_lab.clone())],
    );
    assert!(
        told.starts_with("linerate lab exec pair/server -- sh -c 'ethtool -s enp3s0"),
        "{told}"
    );
    let told = command("nic-drop", "nic-drop-tcp", &[("/command", in_lab)]);
    assert!(
        told.starts_with("linerate lab exec pair/server -- sh -c 'ethtool -S enp3s0"),
        "{told}"
    );
}

/// An interface that nobody told of has no name to be typed.
#[test]
fn commands_have_no_place_to_fill_in() {
    for (cause, name, want) in [
        ("softirq-core", "softirq-core-client", ""),
        ("line-rate", "line-rate-tcp", "ethtool enp3s0"),
    ] {
        let changes = [("/hosts/0/interface", Value::Null)];
        assert_eq!(command(cause, name, &changes), want, "{cause}");
    }
}

/// A kernel at the far end knows no `-C none`: our own stack's key does.
#[test]
fn what_ignores_loss_can_be_typed() {
    let changes = |control: &'static str| {
        [
            (
                "/directions/0/streams/0/sender/congestion_control",
                json!(control),
            ),
            ("/plan/congestion_control", json!(control)),
            (
                "/hosts/0/stack/counters",
                json!({ "tcp": { "out_segments": 40_000, "retransmitted_segments": 1_000 } }),
            ),
            ("/directions/0/goodput_bps", json!(90e6)),
        ]
    };
    let told = command("path-loss", "delayed-ack-own-stack", &changes("reno"));
    assert!(told.contains("--set tcp.congestion_control=none"), "{told}");
    assert!(!told.contains("-C "), "{told}");
    // Without one there is none to leave out.
    let told = command("path-loss", "delayed-ack-own-stack", &changes("none"));
    assert!(!told.contains("none"), "{told}");
}

/// Who saw an address change asks for that address, and not for its own.
#[test]
fn the_neighbour_that_moved_is_asked_for() {
    for (host, want) in [
        ("client", "arping -c 3 -I eth0 10.77.0.2"),
        ("server", "arping -c 3 -I eth0 10.77.0.1"),
    ] {
        let mut record = changed("neighbour-moved", &[]);
        for counter in &mut record.counters {
            if counter.counter == "neighbour_address_changes" {
                counter.after = if counter.host == host { 6 } else { 0 };
                counter.before = 0;
            }
        }
        if host == "server" {
            let counter = record
                .counters
                .iter()
                .find(|found| found.counter == "neighbour_address_changes");
            let mut counter = counter.expect("it was read").clone();
            (counter.host, counter.after) = ("server".to_owned(), 6);
            record
                .counters
                .retain(|found| found.counter != "neighbour_address_changes");
            record.counters.push(counter);
        }
        let found = linerate_explain::explain(&record);
        let found = found.iter().find(|found| found.cause == "neighbour");
        let told = found.and_then(|found| found.command.as_deref());
        assert_eq!(told, Some(want), "{host}");
    }
}

/// Where one processor is usable another one of the machine may be made so; a machine of one has none.
#[test]
fn one_usable_processor_is_not_split() {
    for (usable, logical, has) in [
        (1, 1, None),
        (1, 2, Some("taskset -c 0 linerate ")),
        (2, 2, Some("--cpu 0/1")),
    ] {
        let changes = [
            ("/hosts/0/cpu/usable", json!(usable)),
            ("/hosts/0/cpu/logical", json!(logical)),
        ];
        let found = of("shared-core", "shared-core-udp", &changes).expect("it is told");
        let command = found.command.as_deref();
        match has {
            None => assert_eq!(command, None, "{usable} of {logical}"),
            Some(has) => assert!(
                command.is_some_and(|told| told.contains(has)),
                "{command:?}"
            ),
        }
        let remedied = logical > 1;
        assert_eq!(found.gain.is_some(), remedied, "{usable} of {logical}");
        assert_eq!(found.is_cause(), remedied, "{usable} of {logical}");
    }
}

/// The limits of a kernel's sockets are none of our own stack's.
#[test]
fn our_own_stack_has_no_rmem_max() {
    for (stack, told) in [("kernel", true), ("linerate", false)] {
        let changes = [("/plan/stack/far", json!(stack))];
        let found = of("socket-buffer-cap", "socket-buffer-cap-tcp", &changes);
        assert_eq!(found.is_some(), told, "{stack}");
    }
}

/// A higher priority than it has, and the other end's as it was.
#[test]
fn a_priority_is_raised() {
    for (near, far, want) in [
        ("inherited", "fifo:20", Some("--sched fifo:50/fifo:20")),
        ("fifo:50", "inherited", Some("--sched fifo:90/inherited")),
        ("fifo:95", "rr:10", Some("--sched fifo:96/rr:10")),
        ("fifo:99", "inherited", None),
    ] {
        let changes = [
            ("/plan/sched/near", json!(near)),
            ("/plan/sched/far", json!(far)),
            ("/hosts/0/cpu/usable", json!(8)),
        ];
        let told = command("scheduling-delay", "scheduling-delay-hogs", &changes);
        match want {
            Some(want) => assert!(told.ends_with(want), "{near} {far}: {told}"),
            None => assert!(!told.contains("--sched"), "{near} {far}: {told}"),
        }
    }
}

/// A datagram that fits a packet is 20 bytes shorter with IPv6.
#[test]
fn datagrams_fit_packets_of_their_family() {
    for (host, length) in [("10.77.0.2", "-l 1372"), ("fd77::2", "-l 1352")] {
        let mut record = changed("nic-drop-mtu", &[("/plan/host", json!(host))]);
        for direction in &mut record.directions {
            direction.streams.clear();
        }
        let found = linerate_explain::explain(&record);
        let found = found.iter().find(|found| found.cause == "nic-drop");
        let told = found.and_then(|found| found.command.clone());
        assert!(
            told.as_ref().is_some_and(|told| told.ends_with(length)),
            "{host}: {told:?}"
        );
    }
}

/// What was moved as asked for lacked neither time nor frequency.
#[test]
fn a_rate_that_was_kept_was_not_stolen() {
    for (cause, name) in [
        ("steal", "steal-throughput"),
        ("cpu-frequency", "cpu-frequency-sender"),
    ] {
        let kept = [
            ("/plan/rate_bps", json!(1_000_000_000_u64)),
            ("/directions/0/rate_error", json!(0.0)),
        ];
        assert!(of(cause, name, &[]).is_some(), "{cause}");
        assert_eq!(of(cause, name, &kept), None, "{cause}");
    }
}

/// One in a hundred is lost at random, and the payload leaves in bursts.
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
        assert_eq!(found[0].cause, first, "{place}: {found:#?}");
        let bursts = found.iter().find(|found| found.cause == "burst-size");
        assert!(bursts.is_some(), "{place}");
    }
}

/// A ring that is as long as that is not made longer by asking for it.
#[test]
fn rings_are_asked_for_longer_than_they_are() {
    for (rx, tx, want) in [
        (Some(512), Some(512), "--rxd 1024 --txd 1024"),
        (Some(1024), Some(512), "--txd 1024"),
        (Some(4096), Some(2048), ""),
        (None, None, "--rxd 1024 --txd 1024"),
    ] {
        let changes = [
            ("/forward/ports/0/rx_descriptors", json!(rx)),
            ("/forward/ports/0/tx_descriptors", json!(tx)),
        ];
        let told = command("too-few-descriptors", "too-few-descriptors-ring", &changes);
        match want {
            "" => assert_eq!(told, "", "{rx:?} {tx:?}"),
            _ => assert!(told.ends_with(want), "{rx:?} {tx:?}: {told}"),
        }
        assert_eq!(
            told.contains("--rxd"),
            want.contains("--rxd"),
            "{rx:?} {tx:?}"
        );
    }
}

/// A router's queue towards the server drops nothing of what comes back.
#[test]
fn drops_at_a_router_are_of_the_direction_that_leaves_there() {
    let at = |interface: &str, drops: u64| json!({ "host": "s1", "interface": interface, "counter": "qdisc_drops", "before": 0, "after": drops });
    for (name, near, far, told) in [
        ("qdisc-drop-back", 200, 0, true),
        ("qdisc-drop-back", 0, 200, false),
        ("qdisc-drop-short-queue", 0, 200, true),
        ("qdisc-drop-short-queue", 200, 0, false),
    ] {
        let counters = json!([at("port1", near), at("port2", far)]);
        let changes = [
            ("/counters", counters),
            ("/losses", json!([])),
            ("/directions/0/retransmits", json!(200)),
        ];
        let found = of("qdisc-drop", name, &changes);
        assert_eq!(found.is_some(), told, "{name} {near} {far}");
    }
}

/// Over a long path a receiver that spins stands in line for a core half of the time, and costs the stream nothing.
#[test]
fn who_waits_for_the_path_waits_for_no_core() {
    let found = explained("path-loss-narrow-back", &[]);
    let causes: Vec<_> = found.iter().map(|found| found.cause.as_str()).collect();
    assert_eq!(causes, ["path-loss"]);
    // What takes its time to be acknowledged may have waited for a thread.
    let changes: Vec<(String, Value)> = (0..4)
        .map(|at| (format!("/intervals/{at}/tcp/rtt_ns"), json!(200_000_000)))
        .collect();
    let changes: Vec<(&str, Value)> = (changes.iter())
        .map(|(pointer, value)| (pointer.as_str(), value.clone()))
        .collect();
    assert!(of("scheduling-delay", "path-loss-narrow-back", &changes).is_some());
    // Nor does a window hold a sender that uses a quarter of it.
    let mut record = changed("path-loss-narrow-back", &[]);
    let told = record.intervals.iter_mut();
    told.filter_map(|interval| interval.tcp.as_mut())
        .for_each(|tcp| tcp.cwnd_bytes *= 4);
    let found = linerate_explain::explain(&record);
    let waited = found.iter().any(|found| found.cause == "scheduling-delay");
    assert!(waited, "{found:?}");
    // A few losses at one time are an accident.
    let mut record = changed("path-loss-narrow-back", &[]);
    for interval in record.intervals.iter_mut().skip(1) {
        interval.tcp.as_mut().expect("it was told").retransmits = 0;
    }
    record.directions[0].summary.retransmits = Some(4);
    let found = linerate_explain::explain(&record);
    assert!(found.iter().all(|found| found.cause != "path-loss"));
}

/// An end that looks in vain stands in line for a core as long as one that works.
#[test]
fn waiting_in_line_is_no_work_that_an_offload_would_spare() {
    for (working, waiting, told) in [(0.9, 0.05, true), (0.3, 0.65, true), (0.02, 0.9, false)] {
        let mut record = changed("offload-off-tso", &[]);
        for cost in record.directions[0]
            .summary
            .cpu
            .iter_mut()
            .chain(&mut record.summary.cpu)
        {
            for thread in &mut cost.threads {
                let share = |share: f64| (thread.wall_ns as f64 * share) as u64;
                (thread.cpu_ns, thread.runnable_ns) = (share(working), Some(share(waiting)));
                thread.blocked_ns = Some(share(1.0 - working - waiting));
                (thread.voluntary_switches, thread.empty_calls) = (0, Some(0));
            }
        }
        let found = linerate_explain::explain(&record);
        let is_told = found.iter().any(|found| found.cause == "offload-off");
        assert_eq!(is_told, told, "{working} {waiting}: {found:?}");
    }
}

/// What our own stack's port had no descriptor for has a counter, and what all came was not lost.
#[test]
fn what_a_ring_had_no_room_for_is_lost_on_no_path() {
    for name in [
        "too-few-descriptors-own-ring",
        "too-few-descriptors-own-ring-udp",
    ] {
        assert!(of("path-loss", name, &[]).is_none(), "{name}");
        let command = command("too-few-descriptors", name, &[]);
        assert!(
            command.contains("--set rx_descriptors=256"),
            "{name}: {command}"
        );
    }
    // Fewer frames came than were sent, and no ring was full.
    let counters = "/hosts/0/stack/counters/link";
    let in_frames = &*format!("{counters}/in_frames");
    let late = "healthy-own-stack-late-answers";
    let is_lost = |changes: Changes<'_>| of("path-loss", late, changes).is_some();
    assert!(!is_lost(&[]));
    assert!(is_lost(&[(in_frames, json!(200_000))]));
    // What others sent stands for nothing that was lost: frames for others, more than were sent, or a wire out of view.
    let not_ours = format!("{counters}/in_not_ours");
    assert!(is_lost(&[(&*not_ours, json!(100_000))]));
    assert!(is_lost(&[(in_frames, json!(400_000))]));
    assert!(is_lost(&[("/hosts/0/boot_id", json!("another"))]));
}

/// One thread of our own stack sends each datagram by itself, and `--offload` is refused beside `--dev`.
#[test]
fn our_own_stack_is_told_nothing_that_it_refuses() {
    for name in ["healthy-own-stack-flood", "healthy-own-stack-udp"] {
        for found in explained(name, &[]) {
            let command = found.command.unwrap_or_default();
            assert!(!command.contains("--offload"), "{name}: {command}");
        }
    }
    // Nor where it receives what a kernel sends.
    let own = [
        ("/plan/stack/far", json!("linerate")),
        ("/plan/streams", json!(2)),
    ];
    for name in ["small-writes-udp", "tool-limit-udp"] {
        let kernels = explained(name, &own[1..]);
        let offloads = |found: &Finding| {
            let command = found.command.as_deref();
            command.is_some_and(|command| command.contains("--offload"))
        };
        assert!(kernels.iter().any(offloads), "{name}: {kernels:?}");
        let found = explained(name, &own);
        assert!(!found.iter().any(offloads), "{name}: {found:?}");
    }
}

/// What our own stack gains is within what it ever moved: 1 KiB of send buffer is not made 64 times as fast by 64 KiB.
#[test]
fn gains_of_our_own_stack_are_within_its_reach() {
    for name in ["receive-window-own-stack", "send-buffer-own-stack-long"] {
        let found = &explained(name, &[])[0];
        let record = changed(name, &[]);
        let goodput = record.summary.goodput_bps.expect("it was measured");
        let gain = found.gain.expect("it is estimated");
        assert!(
            gain > 1.0 && gain * goodput < 3.4e9,
            "{name}: {gain} of {goodput}"
        );
    }
    let command = command("receive-window", "receive-window-own-stack", &[]);
    assert!(command.contains("tcp.receive_window=64K"), "{command}");
}

/// Nobody knows how fast a path is that a window still grows on: no factor is promised but within a known rate.
#[test]
fn what_grows_is_promised_no_more_than_is_known() {
    for name in ["healthy-spinning-from-late-on", "healthy-long-start"] {
        let record = changed(name, &[]);
        let found = linerate_explain::explain(&record);
        let growing = found
            .iter()
            .filter(|found| found.what.contains("still growing"));
        for found in growing {
            let most = if name == "healthy-long-start" {
                1.2
            } else {
                1.0
            };
            assert!(found.gain.is_none_or(|gain| gain < most), "{found:?}");
        }
    }
}

/// Over a long path the window is what goes each round trip: 64 times of it are no 340.
#[test]
fn a_window_gains_what_it_grows_by() {
    for name in ["receive-window-unscaled-back", "path-delay-window-live"] {
        for found in explained(name, &[]) {
            let is_window = ["receive-window", "send-buffer"].contains(&found.cause.as_str());
            let gain = found.gain.filter(|_| is_window).unwrap_or(1.0);
            assert!(gain <= 65.0, "{name}: {found:?}");
        }
    }
    // What else takes time stays: half of it waiting is a factor of two at most.
    let mut record = changed("receive-window-unscaled-back", &[]);
    for interval in &mut record.intervals {
        let tcp = interval.tcp.as_mut().expect("it was told");
        tcp.receive_window_limited = Some(0.5);
    }
    let found = linerate_explain::explain(&record);
    let found = found.iter().find(|found| found.cause == "receive-window");
    let found = found.expect("it is told");
    let gain = found.gain.expect("a gain");
    assert!(gain > 1.5 && gain < 1.0 / (1.0 - found.cost), "{found:?}");
}

/// What one machine moved at best bounds no other one that moves more.
#[test]
fn a_faster_machine_is_told_no_gain() {
    for (goodput, told) in [(2e9, true), (4e9, false)] {
        let changes = [
            ("/summary/goodput_bps", json!(goodput)),
            ("/directions/0/goodput_bps", json!(goodput)),
        ];
        let found = of("receive-window", "receive-window-own-stack", &changes);
        let found = found.expect("it is told");
        assert_eq!(found.gain.is_some(), told, "{found:?}");
    }
}

/// What had arrived when it was sent again was late, and not lost.
#[test]
fn segments_that_had_arrived_were_not_lost() {
    assert!(of("path-loss", "healthy-latency-answered-late", &[]).is_none());
    let streams = "/directions/0/streams/0";
    let none =
        ["sender", "receiver"].map(|end| format!("{streams}/{end}/tcp/spurious_retransmits"));
    // An end that does not tell may have sent those that were lost.
    let untold = [(&*format!("{streams}/receiver/tcp"), Value::Null)];
    assert!(of("path-loss", "healthy-latency-answered-late", &untold).is_some());
    let changes = [(&*none[0], json!(0)), (&*none[1], json!(0))];
    let found = of("path-loss", "healthy-latency-answered-late", &changes);
    assert_eq!(
        reading(&found.expect("they were lost"), "round_trips"),
        Some(json!(592))
    );
}

/// A flow has no fewer threads than one at each end: `--threads 1` would change nothing.
#[test]
fn a_single_flow_is_not_told_to_have_fewer_threads() {
    let mut told = 0;
    for (streams, fewer) in [(1, false), (4, true)] {
        let changes = [
            ("/plan/streams", json!(streams)),
            ("/hosts/0/cpu/usable", json!(1)),
            ("/hosts/1/cpu/usable", json!(1)),
        ];
        for found in explained("scheduling-delay-tcp", &changes) {
            if found.cause == "scheduling-delay" {
                let command = found.command.unwrap_or_default();
                assert_eq!(
                    command.contains("--threads 1"),
                    fewer,
                    "{streams}: {command}"
                );
                told += 1;
            }
        }
    }
    assert!(told >= 2, "{told}");
    // An end with a machine of its own has a thread for each direction.
    let changes = [
        ("/hosts/0/cpu/usable", json!(0)),
        ("/hosts/1/cpu/usable", json!(0)),
        ("/hosts/1/boot_id", json!("another")),
    ];
    let found = of("scheduling-delay", "scheduling-delay-tcp", &changes);
    let remedy = found.expect("it is told").remedy;
    let names = |text| remedy.contains(text);
    assert!(names("--bidir") && !names("two machines"), "{remedy}");
}

/// Half of the rate tells whether datagrams are lost by load; a search for a rate without loss finds none on such a path.
#[test]
fn datagrams_lost_on_the_way_are_sent_at_half_of_the_rate() {
    let command = command("path-loss", "path-loss-udp-live", &[]);
    assert!(command.contains(" -b 14."), "{command}");
}

/// A question of 4 KB through 1 KiB of our own stack's buffer waits for acknowledgements, and for no path.
#[test]
fn a_question_in_parts_is_told_of_its_buffer() {
    let command = command("delayed-ack", "delayed-ack-question-in-parts", &[]);
    assert!(command.contains("--set tcp.send_buffer=64K"), "{command}");
    assert!(of("path-delay", "delayed-ack-question-in-parts", &[]).is_none());
    // Several parts of four wait for the timer.
    for (p50_ms, told) in [(20, false), (88, true), (130, true), (250, false)] {
        let changes = [("/summary/rtt_ns/p50", json!(p50_ms * 1_000_000))];
        let found = of("delayed-ack", "delayed-ack-question-in-parts", &changes);
        assert_eq!(found.is_some(), told, "{p50_ms}");
    }
}

/// Acknowledgements that use up the way back hold a stream only where they stand in a queue: one that goes as fast as it
/// can fills it as well.
#[test]
fn acknowledgements_limit_where_they_wait() {
    let name = "asymmetric-path-answers";
    let found = of("asymmetric-path", name, &[]).expect("it is told");
    assert!(found.cost > 0.8, "{found:?}");
    let mut record = changed(name, &[]);
    let told = record.intervals.iter_mut();
    for tcp in told.filter_map(|interval| interval.tcp.as_mut()) {
        tcp.rtt_ns = tcp.min_rtt_ns.unwrap_or(5_000) + 200_000;
    }
    let found = linerate_explain::explain(&record);
    let told = found.iter().any(|found| found.cause == "asymmetric-path");
    assert!(!told, "{found:?}");
    // What they cannot have taken did not pass that rate.
    let record = changed(name, &[]);
    let interface = record.hosts[1].interface.as_ref().expect("it is known");
    let rate = interface.qdisc_rate_bps.expect("it is held to one");
    let slower = [("/hosts/1/interface/qdisc_rate_bps", json!(rate * 3 / 4))];
    assert!(of("asymmetric-path", name, &slower).is_none());
}
